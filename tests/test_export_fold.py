"""Batch-norm folding and the preference for speed: the same function, in fewer operations."""

import pytest
import torch
from torch import Tensor, nn

from export_zoo import WEIGHTED, ZOO, prune, randomise
from gibbsprune import UserError, compact
from gibbsprune.export.parts import AddBorders, SumInto
from gibbsprune.models import build
from test_export_compact import assert_same, made, parameters, report

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, NORMS)]


@pytest.mark.parametrize("name", ZOO)
def test_same_function(name: str) -> None:
    """Filters and weights, with and without folding, and every layer gone."""
    for seed, (structure, sparsity, fold) in enumerate((("filter", 0.75, True), ("weight", 0.75, False))):
        model, x, generator = made(name, structure, sparsity, seed)
        other = torch.randn(x.shape[0] + 1, *x.shape[1:], generator=generator)
        small = compact(model, x, fold_batch_norm=fold, prefer="speed")
        report(small)
        assert_same(model, small, x)
        assert_same(model, small, other)
    folded = compact(model, x, fold_batch_norm=True)
    assert len(norms(folded)) == len([n for n in report(folded).left.values() if "cannot be folded" in n])
    for layer in model.modules():
        if isinstance(layer, WEIGHTED):
            layer.weight.data.zero_()
    small = compact(model, x, fold_batch_norm=True)
    report(small)
    assert_same(model, small, x)


@pytest.mark.parametrize(
    "name", ["resnet8", "resnet20", "vgg", "mobilenet", "unet", "squeeze_excite", "mlp", "conv1d", "odd"]
)
def test_no_norm_is_left_where_each_follows_a_layer(name: str) -> None:
    model, x, generator = made(name, "filter", 0.6, 3)
    assert norms(model)
    small = compact(model, x, fold_batch_norm=True)
    assert norms(small) == []
    assert "cannot be folded" not in str(report(small))
    if name in ("resnet8", "mobilenet", "unet", "squeeze_excite"):
        assert_same(model, small, torch.randn(2, 3, 23, 30, generator=generator))


def test_norms_that_cannot_be_folded_are_told() -> None:
    model, x, _ = made("densenet", "filter", 0.5, 0)
    small = compact(model, x, fold_batch_norm=True)
    left = report(small).left
    assert set(norms(small)) == set(left)
    assert "does not follow a convolution" in left["last.0"] or "follows AvgPool2d" in left["last.0"]
    assert_same(model, small, x)


class Refusals(nn.Module):
    """Norms behind a layer that others read too, behind a shared layer, over another axis, without statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.read_twice = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6)
        self.b, self.shared = nn.Conv1d(6, 6, 1), nn.BatchNorm1d(6)
        self.dense, self.other_axis = nn.Linear(8, 8), nn.BatchNorm1d(6)
        self.c, self.batch = nn.Conv1d(6, 6, 1), nn.BatchNorm1d(6, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = self.read_twice(x) + x
        x = self.shared(self.b(torch.relu(self.shared(self.b(x)))))
        return self.batch(self.c(self.other_axis(self.dense(x))))


def test_refusals() -> None:
    torch.manual_seed(0)
    model = Refusals()
    for norm in (model.read_twice, model.shared, model.other_axis):
        norm.running_mean.normal_(0, 0.5)
        norm.running_var.uniform_(0.3, 2)
    x = torch.randn(3, 4, 8)
    small = compact(model.eval(), x, fold_batch_norm=True)
    left = report(small).left
    for name, words in {
        "read_twice": "other readers",
        "shared": "more than once",
        "other_axis": "another axis",
    }.items():
        assert words in left[name], left
    assert "no running statistics" in left["batch"]
    assert_same(model, small, x)


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_every_kind_of_convolution(kind: type, groups: int) -> None:
    model = nn.Sequential(kind(6, 12, 3, padding=1, stride=2, groups=groups), nn.BatchNorm2d(12), nn.Hardswish())
    randomise(model, torch.Generator().manual_seed(groups))
    x = torch.randn(2, 6, 9, 7)
    small = compact(model, x, fold_batch_norm=True)
    assert norms(small) == []
    assert_same(model, small, x)


def test_a_sum_is_computed_whole_where_that_is_cheaper() -> None:
    model, x, _ = made("resnet20", "filter", 0.75, 1)
    small, fast = (compact(model, x, True, prefer) for prefer in ("size", "speed"))
    assert parameters(small) < parameters(fast) < parameters(model)
    scattered = [sum(isinstance(module, SumInto) for module in m.modules()) for m in (small, fast)]
    assert 2 * scattered[1] <= scattered[0], scattered
    with pytest.raises(UserError, match="size and speed"):
        compact(model, x, prefer="beauty")


def test_constants_at_borders_as_a_map() -> None:
    """Sixteen live inputs of a padded convolution: a seventeenth to carry the constants would open another vector."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 3, padding=1, dilation=1)),
        *(nn.ReLU(), nn.Conv2d(8, 5, 3, stride=2, padding=1)),
    )
    randomise(model, torch.Generator().manual_seed(0))
    model[1].weight.data.fill_(1.0)
    model[0].weight.data[::2] = 0
    small = compact(model, torch.randn(1, 3, 12, 12), fold_batch_norm=True)
    assert any(isinstance(module, AddBorders) for module in small.modules())
    assert small.get_submodule("3").weight.shape[1] == 16
    with torch.no_grad():
        for size in ((12, 12), (7, 9), (12, 12)):
            assert_same(model, small, torch.randn(2, 3, *size))
    with torch.no_grad():
        for module in small.modules():
            if isinstance(module, AddBorders):
                module.weight.mul_(2)
    assert (small(x := torch.randn(2, 3, 7, 9)) - model(x)).abs().max() > 1e-2
    small(torch.randn(2, 3, 7, 9)).sum().backward()


@pytest.mark.parametrize("prefer", ["size", "speed"])
def test_memory_is_reused_and_the_result_trains(prefer: str) -> None:
    """Overwriting is for inference only; gradients are those of the network that overwrites nothing."""
    model, x, _ = made("resnet20", "filter", 0.6, 2)
    small = compact(model, x, True, prefer)
    twice = torch.cat([small(x).detach(), small(x).detach()])
    assert torch.equal(twice[: len(x)], twice[len(x) :])
    with torch.no_grad():
        assert (small(x) - twice[: len(x)]).abs().max() <= 1e-5 * twice.abs().max()
    given = x.clone().requires_grad_()
    small(given).square().sum().backward()
    expected = x.clone().requires_grad_()
    model(expected).square().sum().backward()
    assert (given.grad - expected.grad).abs().max() <= 1e-4 * expected.grad.abs().max()


def test_resnet56_at_three_quarters() -> None:
    generator = torch.Generator().manual_seed(0)
    model = prune(randomise(build("resnet56", 10, 3), generator), "filter", 0.75, generator)
    x = torch.randn(1, 3, 32, 32, generator=generator)
    small = compact(model, x, fold_batch_norm=True, prefer="speed")
    assert report(small).left == {}
    assert norms(small) == []
    assert_same(model, small, torch.randn(3, 3, 32, 32, generator=generator))
    assert parameters(small) < 0.35 * parameters(model)
