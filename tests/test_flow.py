"""What a network's graph tells: depthwise convolutions are one with the layer whose filters they read."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gibbsprune as gp
from export_zoo import MobileNet
from gibbsprune.flow import look
from gibbsprune.models import build
from gibbsprune.survivors import shrunk_mask, strength
from gibbsprune.weights import prunable

TIED = {f"blocks.{i}.depth": f"blocks.{i}.up.0" for i in range(3)}


def mobile() -> MobileNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MobileNet()


def images() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("examples", [None, images()])
def test_the_layer_before_a_depthwise_convolution_is_found(examples: Tensor | None) -> None:
    seen = look(mobile(), examples)
    assert seen is not None
    assert seen.before == TIED
    assert seen.leaving == {"dense"}


class Norms(nn.Module):
    """``yes`` and ``pooled`` are read by norms alone; the others also elsewhere, with a bias, twice or by no norm."""

    def __init__(self) -> None:
        super().__init__()
        self.yes, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.pooled, self.groups = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.biased, self.also = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, bias=False)
        self.twice, self.curved = nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 4, 1, bias=False)
        self.linear, self.layer, self.last = nn.Linear(4, 4, bias=False), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.yes(x)).relu()
        x = self.groups(torch.nn.functional.max_pool2d(self.pooled(x).relu(), 2))
        x = self.groups(self.biased(x))
        x = self.norm(also := self.also(x)) + also
        x = self.twice(self.norm(self.twice(x)))
        x = self.norm(self.curved(x).sigmoid())
        return self.last(self.layer(self.linear(x.flatten(2).transpose(1, 2)).mean(1, keepdim=True)))


@pytest.mark.parametrize("examples", [None, images()])
def test_layers_that_only_norms_read_are_found(examples: Tensor | None) -> None:
    seen = look(Norms(), examples)
    assert seen is not None
    assert seen.normed == {"yes", "pooled"}
    resnet = look(build("resnet8", 10, 3), examples)
    assert resnet is not None
    convolutions = {
        name for name, layer in prunable(build("resnet8", 10, 3)).items() if isinstance(layer.module, nn.Conv2d)
    }
    assert convolutions - resnet.normed == {name for name in convolutions if "shortcut" in name}


def test_a_sum_or_a_second_use_ties_nothing() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.depth = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, groups=4)
            self.twice, self.last = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.depth((self.a(x) + self.b(x)).relu())
            return self.last(self.depth(self.twice(self.twice(x))))

    seen = look(Sum())
    assert seen is not None
    assert seen.before == {}


def zero_filters(weight: Tensor) -> Tensor:
    return (weight == 0).flatten(1).all(1)


def test_filters_and_their_depthwise_kernels_go_together() -> None:
    model = mobile()
    pruner = gp.GibbsPruner(model, 0.6, structure="filter", epochs=2)
    summary = pruner.summary()
    assert summary.tied == TIED
    assert "one unit: each filter of blocks.0.up.0 with its kernels in blocks.0.depth" in str(summary).splitlines()
    pruner.set_epoch(1)
    pruner.step()
    model.eval()
    expected, copied = model(images()), copy.deepcopy(model)
    torch.testing.assert_close(copied(images()), expected)
    with torch.no_grad():  # the mask of one layer follows the weights of the other
        copied.get_submodule("blocks.0.depth").parametrizations.weight.original.mul_(100 * torch.rand(36, 1, 1, 1))
    changed = zero_filters(copied.blocks[0].up[0].weight)
    assert not torch.equal(changed, zero_filters(model.blocks[0].up[0].weight))
    assert torch.equal(changed, zero_filters(copied.blocks[0].depth.weight))
    pruner.finalize("converged")
    torch.testing.assert_close(model(images()), expected)
    for depth, before in TIED.items():
        zero = zero_filters(model.get_submodule(before).weight)
        assert torch.equal(zero, zero_filters(model.get_submodule(depth).weight))
        rows = torch.cat([model.get_submodule(name).weight.flatten(1) for name in (before, depth)], 1)
        assert int(zero.sum()) == len(rows) - int((rows != 0).any(1).sum())
    small: Any = gp.compact(model, images())
    apart = mobile()
    layers = dict.fromkeys(pruner.masks, 0.6)
    loose = gp.GibbsPruner(apart, layers | dict.fromkeys(TIED, 0.61), structure="filter")
    assert loose.summary().tied == {}, "other sparsities"
    loose.finalize("converged")
    larger: Any = gp.compact(apart.eval(), images())
    for network, compacted, lost in ((model, small, False), (apart, larger, True)):
        both = [(network.get_submodule(name).weight, compacted.get_submodule(name).weight) for name in TIED]
        assert any(int((weight != 0).sum()) > after.numel() for weight, after in both) == lost, "kept in vain"


def test_they_are_drawn_together() -> None:
    model = mobile()
    pruner = gp.GibbsPruner(model, 0.5, structure="filter", hamiltonian="sign", schedule=lambda epoch: 0.0)
    up, depth = pruner.masks["blocks.0.up.0"].mask.flatten(1), pruner.masks["blocks.0.depth"].mask.flatten(1)
    pruner.set_epoch(0)
    pruner.beta = 1e6
    pruner.step()
    assert torch.equal(up.all(1), depth.all(1))
    assert torch.equal(up.any(1), depth.any(1))


def test_survivors_of_a_unit_lose_the_same_share() -> None:
    model = mobile()
    pruner = gp.GibbsPruner(model, 0.6, structure="filter", survivors="shrunk", epochs=1)
    pruner.step()
    before = {name: layer.stored.detach().clone() for name, layer in pruner.layers.items()}
    expected = model.eval()(images())
    back = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(back(images()), expected)
    pruner.finalize()
    torch.testing.assert_close(model(images()), expected)
    for depth, first in TIED.items():
        rows = torch.cat([before[name].flatten(1) for name in (first, depth)], 1)
        share = shrunk_mask(rows, pruner.masks[first].sparsity, "filter")[:, :1]
        for name in (first, depth):  # norms follow both: each is as strong as before
            whole = before[name].flatten(1)
            left = strength(whole.flatten(), (share * torch.ones_like(whole)).flatten()) * share
            torch.testing.assert_close(model.get_submodule(name).weight.flatten(1), whole * left)


def test_scores_of_a_unit_are_compared_together() -> None:
    model = mobile()
    pruner = gp.GibbsPruner(model, 0.6, structure="filter", importance="taylor", epochs=1)
    model(images()).square().sum().backward()
    expected = model.eval()(images())
    pruner.finalize()
    torch.testing.assert_close(model(images()), expected)
    for depth, first in TIED.items():
        assert torch.equal(*(zero_filters(model.get_submodule(name).weight) for name in (first, depth)))


def test_pairs_are_those_of_one_layer() -> None:
    pruner = gp.GibbsPruner(mobile(), 0.5, structure="filter", hamiltonian="redundancy")
    assert pruner.summary().tied == {}
    pruner.step()


def test_a_budget_shares_out_to_both() -> None:
    pruner = gp.GibbsPruner(mobile(), gp.Budget(0.5), structure="filter")
    found = {layer.name: layer for layer in pruner.summary().layers}
    assert pruner.summary().tied == TIED
    for depth, before in TIED.items():
        assert found[depth].target == found[before].target
    pruner.set_epoch(1)
    pruner.finalize("converged")
    kept = sum(layer.weights * (1 - layer.achieved) for layer in pruner.summary().layers)
    assert kept / pruner.summary().weights == pytest.approx(0.5, abs=0.03)


def test_other_structures_tie_nothing() -> None:
    assert gp.GibbsPruner(mobile(), 0.5).summary().tied == {}
    assert gp.GibbsPruner(mobile(), 0.5, structure="filter", exclude="*depth").summary().tied == {}
