"""Masks from and to torch.nn.utils.prune."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from gibbsprune import GibbsPruner, UserError, compact, from_torch_prune, to_torch_prune


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 16, 3))


def steps(model: nn.Module) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 1, 8, 8)).square().sum().backward()
        optimizer.step()
    return model


def zeros(model: nn.Module, name: str) -> Tensor:
    return model.get_submodule(name).weight == 0


def test_from_torch() -> None:
    model = network()
    prune.random_structured(model[2], "weight", 0.5, dim=0)
    prune.random_unstructured(model[2], "bias", 0.5)
    prune.l1_unstructured(model[4], "weight", 0.8)
    steps(model)
    state, x = copy.deepcopy(model.state_dict()), torch.randn(3, 1, 8, 8)
    expected, dead = model(x).detach(), {name: zeros(model, name) for name in ("2", "4")}
    ours = from_torch_prune(model)
    assert ours is model
    assert not prune.is_pruned(ours)
    assert list(ours.state_dict()) == list(network().state_dict())
    torch.testing.assert_close(ours(x), expected)
    small = compact(ours, x)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in ours.parameters())
    torch.testing.assert_close(small(x), expected)
    steps(ours)
    assert all(torch.equal(zeros(ours, name), mask) for name, mask in dead.items())  # they are held
    plain = network()
    plain.load_state_dict(from_torch_prune(dict(state)))
    torch.testing.assert_close(plain(x), expected)


def test_to_torch_and_back() -> None:
    pruner = GibbsPruner(network(), 0.5, include=["2", "4"])
    model = pruner.finalize("converged")
    plain, x = copy.deepcopy(model), torch.randn(3, 1, 8, 8)
    dead = {name: zeros(model, name) for name in ("2", "4")}
    theirs = to_torch_prune(model)
    assert [prune.is_pruned(theirs[i]) for i in (0, 2, 4)] == [False, True, True]
    assert all(torch.equal(theirs.get_buffer(f"{name}.weight_mask") == 0, mask) for name, mask in dead.items())
    torch.testing.assert_close(theirs(x), plain(x))
    steps(theirs)
    back = from_torch_prune(theirs)
    assert all(torch.equal(zeros(back, name), mask) for name, mask in dead.items())
    assert from_torch_prune(back) is back  # nothing left to do
    kept = {"4": torch.rand(3, 96, generator=torch.Generator().manual_seed(0)) > 0.9}
    assert torch.equal(to_torch_prune(plain, kept).get_buffer("4.weight_mask").bool(), kept["4"])


def test_what_is_no_mask_is_refused() -> None:
    model = network()
    with pytest.raises(UserError, match="masks have a layer '1': allowed are 0, 2, 4"):
        to_torch_prune(model, {"1": torch.ones(1)})
    with pytest.raises(UserError, match="shape"):
        to_torch_prune(model, {"0": torch.ones(4, 1, 3, 3), "2": torch.ones(2)})
    assert not prune.is_pruned(model)
    GibbsPruner(masked := network(), 0.5)
    with pytest.raises(UserError, match="still carries masks: finalize it"):
        to_torch_prune(masked)
    prune.custom_from_mask(model[2], "weight", torch.full((6, 4, 3, 3), 0.5))
    with pytest.raises(UserError, match=r"2\.weight_mask holds other values than 0 and 1"):
        from_torch_prune(model)
    assert prune.is_pruned(model)
    with pytest.raises(UserError, match=r"2\.weight_mask holds other values than 0 and 1"):
        from_torch_prune(dict(model.state_dict()))
