"""Neighbourhoods that keep a limited number of weights: in a pruner, in pieces, with ties, run by run."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gibbsprune as gp
from gibbsprune import limited, stacks
from gibbsprune.law import Law
from gibbsprune.samplers import conditional
from gibbsprune.site import Site
from gibbsprune.structures import as_structure
from gibbsprune.threshold import kept_count


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def net():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3, groups=2), nn.ReLU(), nn.ConvTranspose2d(6, 5, 2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(5 * 25, 9), nn.ReLU(), nn.Linear(9, 3))


def batch(seed):
    return torch.randn(16, 3, 8, 8, generator=seeded(seed)), torch.arange(16) % 3


def kept(structure, module, mask):
    """How many weights each neighbourhood keeps, and how many it has."""
    kind = as_structure(structure, module)
    return kind.rows(mask).sum(1), kind.rows(torch.ones_like(mask)).sum(1)


def check(structure, module, mask):
    number, real = kept(structure, module, mask)
    if structure == "2:4":
        assert torch.equal(number, real.clamp(max=2))
    else:
        assert int(number.max()) <= 3


@pytest.mark.parametrize("law", ["annealed", "rising"])
@pytest.mark.parametrize(("structure", "sparsity"), [("2:4", None), ("at-most-3", 0.75)])
def test_a_pruner_keeps_the_pattern_at_every_step_and_in_the_end(structure, sparsity, law):
    model = net()
    pruner = gp.GibbsPruner(model, sparsity, structure, epochs=4, include=["2", "4", "6"], law=law)
    if structure == "2:4":
        assert "groups of 4" in str(pruner.summary())
        assert [layer.achieved for layer in pruner.summary().layers] == [0.5, 1 - 2 / 3, 1 - 63 / 125]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    seen = []
    for epoch in range(4):
        pruner.set_epoch(epoch)
        x, y = batch(epoch)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        pruner.step()
        for name, masked in pruner.masks.items():
            check(structure, model.get_submodule(name), masked.mask)
        seen.append(pruner.masks["6"].mask.clone())
        model.eval()
        assert torch.equal(model[6].weight != 0, gp.converged_mask(_stored(model[6]), sparsity, structure))
        model.train()
        if epoch == 2:
            state = copy.deepcopy((pruner.state_dict(), model.state_dict()))
    assert not torch.equal(seen[0], seen[1])
    again = net()
    other = gp.GibbsPruner(again, sparsity, structure, epochs=4, include=["2", "4", "6"], law=law)
    other.load_state_dict(state[0])
    again.load_state_dict(state[1])
    assert all(torch.equal(other.masks[n].mask, state[1][f"{n}.parametrizations.weight.0.mask"]) for n in ("4", "6"))
    other.step()
    check(structure, again[6], other.masks["6"].mask)
    pruner.beta = 1e12
    pruned = pruner.finalize()
    for name in ("2", "4", "6"):
        check(structure, pruned.get_submodule(name), pruned.get_submodule(name).weight != 0)
    expected = 9 * 63 if structure == "2:4" else kept_count(0.75, 9 * 125)
    assert int((pruned[6].weight != 0).sum()) == expected


def _stored(module):
    return module.parametrizations.weight.original.detach()


def test_a_compiled_forward_pass_follows_the_converged_pattern():
    model = net()
    gp.GibbsPruner(model, None, "2:4", include=["6"])
    model.eval()
    compiled = torch.compile(model, backend="aot_eager")
    x = batch(0)[0]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        _stored(model[6]).copy_(_stored(model[6]).flip(1))
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("structure", ["2:4", "3:7", "at-most-2"])
def test_equal_weights_end_as_in_the_converged_mask(structure):
    """No field decides between them, whatever β; the pattern holds all the same."""
    weight = torch.ones(6, 10, 3)
    site = Site(weight.shape, as_structure(structure), gp.Linear(), None).checked()
    law, betas = Law([site]), torch.tensor([1e6], dtype=torch.float64)
    (final,) = law.final([weight], betas, [seeded(0)])
    assert torch.equal(final, gp.converged_mask(weight, None, structure))
    (drawn,) = law.draw([weight], betas, [seeded(0)])
    if structure != "at-most-2":
        assert not torch.equal(drawn, final)


@pytest.mark.parametrize("structure", ["2:4", "at-most-3"])
@pytest.mark.parametrize("hamiltonian", ["square", "binary"])
def test_a_run_draws_the_same_masks_alone_as_among_others(structure, hamiltonian):
    kind, law = as_structure(structure), gp.hamiltonians.HAMILTONIANS[hamiltonian]
    shapes = [(4, 6, 3, 3), (3, 9, 3, 3)]
    weights = [
        [torch.randn(shape, generator=seeded(10 * run + i)) for i, shape in enumerate(shapes)] for run in range(2)
    ]
    sites = [Site(shape, kind, law, None, run=run) for run in range(2) for shape in shapes]
    betas = torch.tensor([3.0, 5.0], dtype=torch.float64)
    together = Law(sites).draw([w for run in weights for w in run], betas, [seeded(1), seeded(2)])
    alone = Law([Site(shape, kind, law, None) for shape in shapes]).draw(weights[1], betas[1:], [seeded(2)])
    assert all(torch.equal(a, b) for a, b in zip(together[2:], alone))


@pytest.mark.parametrize("structure", ["2:4", "8:16", "at-most-3"])
def test_a_large_layer_is_drawn_in_pieces_from_the_same_law(structure, monkeypatch):
    weight = 0.3 * torch.randn(64, 32, 3, 3, generator=seeded(0))
    whole = gp.sample(weight, None, structure, beta=4.0, draws=20, generator=seeded(1)).float()
    monkeypatch.setattr(limited, "CHUNK", 2000)
    monkeypatch.setattr(stacks, "CHUNK", 2000)
    pieces = torch.cat([gp.sample(weight, None, structure, beta=4.0, generator=seeded(s)) for s in range(20)])
    for mask in pieces:
        number, _ = kept(structure, None, mask)
        assert bool((number == as_structure(structure).limits(weight.shape)[1]).all()) or structure == "at-most-3"
    order = weight.square().flatten().argsort()
    for part in order.split(2048):  # as often kept, from the smallest to the largest
        a, b = whole.flatten(1)[:, part].mean(), pieces.float().flatten(1)[:, part].mean()
        assert abs(a - b) < 5 * (2 * 0.25 / (20 * len(part))) ** 0.5


def test_finalize_warns_of_a_pattern_that_has_not_converged():
    pruner = gp.GibbsPruner(net(), None, "2:4", schedule=gp.ConstantSchedule(0.1))
    with pytest.warns(UserWarning, match="the masks have not converged"):
        pruned = pruner.finalize("sample")
    check("2:4", pruned[6], pruned[6].weight != 0)


def test_layers_of_the_same_limits_are_drawn_together():
    sites = [Site((8, 8), as_structure(s), gp.Linear(), None) for s in ("2:4", "2:4", "1:4")]
    assert [len(group.units) for group in Law(sites).groups] == [1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Law(sites).draw([torch.randn(8, 8)] * 3, torch.ones(1, dtype=torch.float64), [seeded(0)])


@pytest.mark.parametrize("structure", ["2:4", "column", "4x4", "filter"])
def test_rows_by_a_single_index_are_the_same(structure):
    """As on a GPU, where each layer by itself would cost a kernel."""
    layers = [nn.Conv2d(6, 5, 3), nn.ConvTranspose2d(6, 4, 2, groups=2), nn.Conv2d(8, 6, 3, groups=2), nn.Linear(7, 9)]
    sites = [
        Site(tuple(m.weight.shape), as_structure(structure, m), gp.hamiltonians.HAMILTONIANS["sign"], None)
        for m in layers
    ]
    weights = [m.weight.detach() for m in layers]
    for group in Law(sites).groups:
        own = [weights[i] for unit in group.units for i in unit]
        rows = group.rows(weights)
        assert torch.equal(group.gathered(own), rows)
        assert all(torch.equal(a, b) for a, b in zip(group.returned(rows), own))
        assert group.moved == (
            len(own) > 1 and (structure != "filter" or any(s.structure.transposed for s in group.sites))
        )


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_patterns_in_few_kernels_are_the_same(keep):
    odds = torch.randn(5, 100, generator=seeded(0), dtype=torch.float64)
    table = conditional.members(5, keep, odds.device)
    torch.testing.assert_close(odds[table].sum(1), conditional._sums(odds, keep))
    assert torch.equal(conditional.patterns(5, keep, odds.device).nonzero()[:, 1].view(-1, keep), table)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("hamiltonian", ["square", "sign", "binary"])
@pytest.mark.parametrize("structure", ["2:4", "8:16", "at-most-3"])
def test_on_a_gpu_also_in_a_captured_graph(structure, hamiltonian):
    """The same pattern, and each share of the weights as often kept as on the CPU."""
    weight = 0.3 * torch.randn(64, 33, 3, 3, generator=seeded(0))
    law = gp.hamiltonians.HAMILTONIANS[hamiltonian]
    site = Site(weight.shape, as_structure(structure), law, None).checked()
    beta = {"square": 4.0, "sign": 0.3, "binary": -40.0}[hamiltonian]
    draw, there = Law([site]), weight.cuda()
    betas, generator = torch.tensor([beta], dtype=torch.float64, device="cuda"), torch.Generator("cuda").manual_seed(1)
    assert torch.equal(draw.converged([there])[0].cpu(), gp.converged_mask(weight, None, structure))
    draw.draw([there], betas, [generator])
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        (mask,) = draw.draw([there], betas, [generator])
    found = []
    for _ in range(20):
        graph.replay()
        found.append(mask.cpu())
        number, real = kept(structure, None, found[-1])
        most = real.clamp(max=site.limits[1])
        assert bool((number <= most).all())
        assert site.limits[0] == 0 or torch.equal(number, most)
    assert not torch.equal(found[0], found[1])
    here = gp.sample(weight, law, structure, beta=beta, draws=20, generator=seeded(2)).float().flatten(1)
    for part in weight.square().flatten().argsort().split(2048):
        a, b = here[:, part].mean(), torch.stack(found).float().flatten(1)[:, part].mean()
        assert abs(a - b) < 6 * (2 * 0.25 / (20 * len(part))) ** 0.5
