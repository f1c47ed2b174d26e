"""What masked layers have beside their masks, of layers alike together, is what each would have by itself."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gibbsprune import filling
from gibbsprune.filling import Filling
from gibbsprune.hamiltonians import as_hamiltonian
from gibbsprune.masking import Masked
from gibbsprune.site import Site
from gibbsprune.structures import as_structure

RUNS = ["proportional", "straight-through", "law", "masked", "proportional"]
SURVIVORS = ["shrunk", "rescaled", "whole", "rescaled", "whole"]
#: Layers of two shapes, with and without a norm behind them; `wide` and `deep` have outputs that lie otherwise.
SHAPES = {"a": (4, 3, 3, 3), "b": (4, 3, 3, 3), "c": (4, 3, 3, 3), "deep": (6, 4), "wide": (4, 3, 3, 3)}
NORMED = {"a", "b", "deep"}


def fused(runs, gradient="straight-through", survivors="rescaled"):
    """Masked layers of several runs side by side, their sites, weights, and what shrinking leaves of them."""
    generator = torch.Generator().manual_seed(0)
    layers, sites, weights, left, pulls = {}, [], {}, {}, {}
    for name, shape in SHAPES.items():
        kind = replace(as_structure("weight"), transposed=name == "wide")
        sites += [
            (name, k, Site(shape, kind, as_hamiltonian(None, kind), 0.5, normed=name in NORMED)) for k in range(runs)
        ]
        size = (runs * shape[0], *shape[1:])
        weights[name] = torch.randn(size, generator=generator)
        layer = layers[name] = Masked(weights[name], gradient, survivors, name in NORMED)
        layer.mask.copy_(torch.rand(size, generator=generator) > 0.6)
        left[name] = (1 - 0.4 / weights[name].abs()).clamp_min(0)
        pulls[name] = torch.rand(size, generator=generator)
    return layers, sites, weights, left, pulls


def alone(weight, mask, left, pull, site, gradient, survivors):
    """One layer of one run, by the formulas of docs/theory.md."""
    weight, mask, left = weight.double(), mask.double(), left.double()
    rescaled = survivors == "rescaled" or (survivors == "shrunk" and site.normed)
    factor = (weight.abs() * (left > 0)).sum() / (weight.abs() * left).sum() if rescaled else 1.0
    used = mask * (left if site.normed else left * factor)
    outputs = (0, *range(2, weight.dim())) if site.structure.transposed else tuple(range(1, weight.dim()))
    norms = [part.square().sum(outputs, keepdim=True).sqrt() for part in (weight * used, weight)]
    beyond = {
        "masked": 0, "law": pull.double(), "straight-through": 1 - mask,
        "proportional": (1 - mask) * (norms[0] / norms[1]).clamp(max=1),
    }  # fmt: skip
    slope = mask + beyond[gradient]
    return left * factor, slope * factor if site.normed else slope


@pytest.mark.parametrize("most", [filling.LARGE, 200])
def test_layers_together_are_as_each_by_itself(most, monkeypatch):
    monkeypatch.setattr(filling, "LARGE", most)  # so that some are stacked, or none
    layers, sites, weights, left, pulls = fused(len(RUNS))
    Filling(layers, sites, RUNS, SURVIVORS).fill(weights.get, left, pulls)
    for name, run, site in sites:
        parts = [x[name].chunk(len(RUNS))[run] for x in (weights, {name: layers[name].mask}, left, pulls)]
        wanted = alone(*parts, site, RUNS[run], SURVIVORS[run])
        found = [buffer.chunk(len(RUNS))[run].double() for buffer in (layers[name].left, layers[name].slope)]
        for one, theirs in zip(found, wanted):
            torch.testing.assert_close(one, theirs, rtol=1e-5, atol=1e-6, msg=f"{name} of run {run}")


def test_what_is_given_may_be_the_buffers_and_gradients_may_wait():
    layers, sites, weights, left, pulls = fused(len(RUNS))
    own = Filling(layers, sites, RUNS, SURVIVORS)
    own.fill(weights.get, left, pulls)
    wanted = {name: (layer.left.clone(), layer.slope.clone()) for name, layer in layers.items()}
    for name, layer in layers.items():
        layer.left.copy_(left[name])
        layer.slope.copy_(pulls[name])
    buffers = [{name: getattr(layer, kind) for name, layer in layers.items()} for kind in ("left", "slope")]
    own.fill(weights.get, *buffers)
    for name, layer in layers.items():
        assert torch.equal(layer.left, wanted[name][0])
        assert torch.equal(layer.slope, wanted[name][1])
        layer.left.copy_(left[name])
        layer.slope.fill_(7)
    own.fill(weights.get, buffers[0], {}, gradients=False)
    for name, layer in layers.items():
        assert torch.equal(layer.left, wanted[name][0])
        assert bool((layer.slope == 7).all())


def test_a_layer_passes_what_is_left_and_its_slope():
    layers, sites, weights, left, pulls = fused(1)
    Filling(layers, sites, ["proportional"], ["shrunk"]).fill(weights.get, left, pulls)
    for name, layer in layers.items():
        weight = weights[name].clone().requires_grad_()
        masked, gradient = layer(weight), torch.randn(weight.shape)
        masked.backward(gradient)
        assert bool((masked[~layer.mask] == 0).all())
        torch.testing.assert_close(masked, weight * layer.mask * layer.left)
        torch.testing.assert_close(weight.grad, gradient * layer.slope)
        assert torch.equal(layer.seeing(), layer.slope != 0)


class Counted(TorchDispatchMode):
    """How many operations are made that are more than another view."""

    def __init__(self):
        super().__init__()
        self.made = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.made[str(function)] += not function.is_view
        return function(*args, **(kwargs or {}))


def test_more_layers_of_a_kind_take_no_more_operations():
    """On a GPU each is a kernel, of which networks of many small layers would feel dozens per layer."""
    made = []
    for names in (("a", "b"), tuple(f"l{i}" for i in range(20))):
        kind = as_structure("weight")
        sites = [(name, 0, Site((4, 3, 3, 3), kind, as_hamiltonian(None, kind), 0.5, normed=True)) for name in names]
        weights = {name: torch.randn(4, 3, 3, 3) for name in names}
        layers = {name: Masked(weights[name], "proportional", "shrunk", True) for name in names}
        own = Filling(layers, sites, ["proportional"], ["shrunk"])
        with Counted() as counted:
            own.fill(weights.get, {name: torch.rand(4, 3, 3, 3) for name in names}, {})
        made.append(sum(count for name, count in counted.made.items() if "rand" not in name))
    assert made[0] == made[1] < 40
