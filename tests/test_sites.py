"""From a spec to the layers that are pruned, their law and their β."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import own_networks
from gibbsprune.errors import UserError
from gibbsprune.hamiltonians import Binary, Linear, Quadratic
from gibbsprune.models import build
from gibbsprune.threshold import kept_count
from gibbsprune.training.methods.gibbs import hamiltonian, schedule
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.sites import run_sites
from gibbsprune.training.spec import RunSpec


def spec(**options) -> RunSpec:
    return RunSpec(**{"data": "cifar10", "recipe": RECIPES["paper"], **options})


def names(model: nn.Module, **options) -> list[str]:
    return list(run_sites(spec(**options), model))


@pytest.mark.parametrize(("depth", "pruned"), [(20, 269_824), (56, 850_432)])
def test_every_convolution_but_the_first(depth, pruned):
    """Table I's "other convolutions", projections included; filter-wise without them."""
    model = build(f"resnet{depth}", 10, 3, torch.Generator().manual_seed(0))
    convolutions = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    for structure in ("weight", "kernel"):
        sites = run_sites(spec(structure=structure), model)
        assert list(sites) == convolutions[1:]
        assert sum(site.count * site.size for site in sites.values()) == pruned
    assert names(model, structure="filter", sparsity=0.75) == [n for n in convolutions[1:] if "shortcut" not in n]


def test_dense_runs_prune_nothing():
    assert names(own_networks.smooth(10, 3), method="dense") == []


def test_include_and_exclude_decide():
    model = build("resnet8", 10, 3)
    assert names(model, include=("conv", "dense")) == ["conv", "dense"]
    assert names(model, include=("blocks.1.*",)) == ["blocks.1.conv1", "blocks.1.conv2", "blocks.1.shortcut"]
    assert names(model, include=("*.shortcut",), structure="filter") == ["blocks.1.shortcut", "blocks.2.shortcut"]
    assert names(model, exclude=("blocks.[12].*",)) == ["blocks.0.conv1", "blocks.0.conv2"]
    with pytest.raises(UserError, match="include rule 'nothing' matches no layer"):
        names(model, include=("nothing",))
    with pytest.raises(UserError, match="nothing to prune"):
        names(model, exclude=("blocks.*",))


def test_networks_with_few_convolutions_prune_dense_layers():
    assert names(own_networks.perceptron(10)) == ["1", "3"]
    assert names(own_networks.perceptron(10), structure="filter", sparsity=0.5) == ["1", "3"]
    assert names(own_networks.one_convolution(10, 1)) == ["3"]
    with pytest.raises(UserError, match="holds no convolution, dense, recurrent or attention layer"):
        names(nn.Sequential(nn.Flatten(), nn.ReLU()))


def test_sites_have_the_shapes_of_their_layers():
    model = own_networks.smooth(10, 3)
    for structure, sizes, spared in (
        ("weight", [1, 1, 1, 1], None),
        ("kernel", [9, 9, 1, 9], None),
        ("filter", [72, 72, 9], "skip.0"),
    ):
        sites = run_sites(spec(structure=structure), model)
        assert list(sites) == [name for name in ("second", "third", "skip.0", "depthwise") if name != spared]
        assert [site.size for site in sites.values()] == sizes
        for name, site in sites.items():
            assert site.shape == model.get_submodule(name).weight.shape
            assert site.count * site.size == model.get_submodule(name).weight.numel()


def test_no_neighbourhood_lies_on_the_threshold():
    """16 filters at 0.8: p(M − 1) = 12 is whole. The site's sparsity avoids that and keeps as many."""
    sites = run_sites(spec(structure="filter", sparsity=0.8), build("resnet8", 10, 3))
    for site in sites.values():
        where = site.sparsity * (site.count - 1)
        assert abs(where - round(where)) > 1e-3
        assert kept_count(site.sparsity, site.count) == kept_count(0.8, site.count)
    assert sites["blocks.0.conv1"].sparsity == pytest.approx(12.5 / 15)


def test_the_spec_names_the_law():
    cases = [
        ({}, Linear("square")),
        ({"hamiltonian": "abs"}, Linear("abs")),
        ({"structure": "kernel", "hamiltonian": "sign"}, Linear("sign")),
        ({"structure": "kernel", "coupling": 0.03}, Quadratic(0.03)),
        ({"structure": "filter", "hamiltonian": "binary"}, Binary("offset")),
    ]
    for options, law in cases:
        assert hamiltonian(spec(**options)) == law
        assert {site.hamiltonian for site in run_sites(spec(**options), own_networks.smooth(10, 3)).values()} == {law}
    sites = run_sites(spec(structure="filter", sampler="chromatic"), own_networks.smooth(10, 3))
    assert {site.sampler for site in sites.values()} == {"chromatic"}
    with pytest.raises(UserError, match=r"sampler is 'enumeration': allowed .* with neighbourhoods of 72 elements"):
        run_sites(spec(structure="filter", sampler="enumeration"), own_networks.smooth(10, 3))


def beta(epochs, **options) -> list[float]:
    recipe = RECIPES["paper"].replace(**options.pop("recipe", {}))
    made = schedule(spec(recipe=recipe, **options), [100])
    return [made(epoch) for epoch in epochs]


def test_beta_of_the_paper():
    """Logarithmic from 0.7 to 10⁴ over the first 128 epochs, then held."""
    assert beta([0, 64, 128, 199]) == pytest.approx([0.7, (0.7 * 1e4) ** 0.5, 1e4, 1e4])


def test_beta_is_the_hamiltonians_own_where_the_recipe_is_silent():
    assert beta([0, 128], structure="kernel", hamiltonian="sign") == pytest.approx([0.01, 10.0])
    assert beta([0, 128], hamiltonian="abs") == pytest.approx([0.1, 1e3])
    assert beta([0, 64, 128], hamiltonian="binary") == pytest.approx([-10.0, 5.0, 20.0])


def test_beta_of_the_recipe_takes_the_place_of_what_it_names():
    assert beta([0, 128], recipe={"beta_end": 1e6}) == pytest.approx([0.7, 1e6])
    assert beta([0, 64, 128], recipe={"beta_start": 0.0, "anneal": "linear"}) == pytest.approx([0.0, 5e3, 1e4])
    assert beta([0, 5, 128], recipe={"anneal": "constant", "beta_end": 3.0}) == [3.0, 3.0, 3.0]
    assert beta([0, 10], recipe={"anneal_epochs": 10}) == pytest.approx([0.7, 1e4])
    assert beta([0, 64, 128], hamiltonian="binary", recipe={"beta_end": 30.0}) == pytest.approx([-10.0, 10.0, 30.0])


def test_without_annealing_epochs_beta_rises_over_64_percent():
    """As 128 of the paper's 200 epochs."""
    recipe = {"anneal_epochs": None, "epochs": 50, "milestones": ()}
    assert beta([31, 32], recipe=recipe)[0] < 1e4
    assert beta([32, 49], recipe=recipe) == pytest.approx([1e4, 1e4])


@pytest.mark.parametrize("recipe", [{}, {"beta_end": 1e6}, {"anneal": "log"}, {"beta_start": 0.0, "anneal": "linear"}])
def test_a_dense_run_has_no_beta_whatever_the_recipe_says(recipe):
    dense = spec(method="dense", recipe=RECIPES["paper"].replace(**recipe))
    assert dense.how.level(dense, [])(100) == 0.0


@pytest.mark.parametrize("method", ["gibbs", "random-mask"])
def test_a_layer_of_one_filter_is_refused(method):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 1, 3), nn.Conv2d(1, 6, 3))
    spec = RunSpec(method=method, structure="filter", sparsity=0.5)
    with pytest.raises(UserError, match=r"^layer '1' has a single filter: sparsity 0.5 would remove all of it; leave"):
        run_sites(spec, model)
    with pytest.raises(UserError, match="nothing to prune"):
        run_sites(spec.replace(exclude="1"), model)
    assert list(run_sites(spec.replace(include=("0", "2")), model)) == ["0", "2"]
