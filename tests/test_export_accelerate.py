"""Acceleration: the same numbers, in ways that were measured to be faster; each way right by itself."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export_zoo import prune, randomise
from gibbsprune import GibbsPruner, UserError, accelerate, compact, export_onnx, export_pt2
from gibbsprune.export import acceleration
from gibbsprune.export.acceleration import AccelerateReport
from gibbsprune.export.executors import Fused, Lanes, Plain, Sparse
from gibbsprune.models import build
from test_export_compact import assert_same, made

CHANNELS_LAST = torch.channels_last


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=CHANNELS_LAST)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2}, {"bias": False}, {"padding": (0, 2), "kernel_size": (1, 5)}, {"stride": (1, 2)}]
)
def test_every_way_computes_the_same(relu: bool, summed: bool, options: dict) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 4, **{"kernel_size": 3, "padding": 1} | options).requires_grad_(False)
    layer.weight.data *= torch.rand(layer.weight.shape) < 0.2
    x = images(3, 6, 12, 24)
    other = torch.randn_like(layer(x)) if summed else None
    expected = layer(x) if other is None else layer(x) + other
    expected = expected.relu() if relu else expected
    pixels = Lanes.options(layer, x, expected)
    assert pixels
    ways = [Plain(layer, relu), Fused(layer, relu), Sparse(layer, relu), *(Lanes(layer, relu, f) for f in pixels)]
    assert Sparse.takes(layer, x)
    for way in ways:
        for own in (False, True):
            way.own = own
            given = None if other is None else other.clone()
            found = way(x) if given is None else way(x, given)
            assert found.shape == expected.shape
            assert (found - expected).abs().max() < 1e-5, (type(way).__name__, own)
            assert own or given is None or torch.equal(given, other)
    odd = images(2, 6, 7, 13)
    assert all((way(odd) - ways[0](odd)).abs().max() < 1e-5 for way in ways)


def test_sparse_dense_layers() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(30, 20).requires_grad_(False)
    layer.weight.data *= torch.rand(20, 30) < 0.1
    for shape in ((7, 30), (2, 5, 30)):
        x = torch.randn(shape)
        assert (Sparse(layer, True)(x) - layer(x).relu()).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["resnet8", "mlp"])
def test_same_function_whatever_is_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a measurement that calls every other way faster, so that all of them are put to use."""
    for structure in ("filter", "weight"):
        model, x, _ = made(name, structure, 0.8, 1)
        small = compact(model, x, True, "speed")
        for turn in range(3):
            monkeypatch.setattr(acceleration, "timed", lambda ways, inputs, rounds, clock, t=turn: favour(ways, t))
            fast = accelerate(small, x)
            assert_same(model, fast, x)
            assert_same(model, fast, x)
            if name == "resnet8":
                assert fast.report.choices


def favour(ways: dict, turn: int) -> dict:
    """Make-believe times: the plain way is slow, and of the others the one at ``turn`` is the fastest."""
    others = list(ways)[1:]
    return {
        name: 2.0 if name not in others else 0.5 if others.index(name) == turn % len(others) else 1.0 for name in ways
    }


def test_in_earnest() -> None:
    """A weight-wise pruned MLP of large layers, one input at a time: sparse matrices pay, and the report says what."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3000, 3000), nn.ReLU(), nn.Linear(3000, 10)).eval()
    final = GibbsPruner(model, sparsity=0.98, structure="weight").finalize("converged")
    x = torch.randn(1, 3000)
    fast = accelerate(final, x, rounds=9)
    assert isinstance(fast.report, AccelerateReport)
    assert fast.report.after <= fast.report.before
    assert [choice.way for choice in fast.report.choices if choice.name == "0"] == ["sparse"], fast.report
    assert "0: sparse" in str(fast.report)
    assert_same(final, fast, torch.randn(5, 3000))
    assert not any(p.requires_grad for p in fast.parameters())


def test_where_nothing_helps_it_is_a_copy() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    fast = accelerate(model, torch.randn(2, 4))
    assert fast.report.choices == []
    assert fast is not model

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    fast = accelerate(Branching(), torch.ones(2))
    assert "cannot be captured" in str(fast.report)


def test_refusals() -> None:
    model = build("resnet8", 10, 3)
    with pytest.raises(UserError, match="at least 1"):
        accelerate(model, torch.randn(1, 3, 8, 8), rounds=0)
    with pytest.raises(UserError, match="on the CPU"):
        accelerate(nn.Linear(2, 2, device="meta"), torch.randn(1, 2))
    GibbsPruner(model, sparsity=0.5)
    with pytest.raises(UserError, match="finalize"):
        accelerate(model, torch.randn(1, 3, 8, 8))


def test_a_residual_branch_is_not_overwritten_too_early() -> None:
    """The stream of a ResNet is read by a convolution first, then overwritten by the sum; twice gives the same."""
    generator = torch.Generator().manual_seed(3)
    model = prune(randomise(build("resnet20", 10, 3), generator), "filter", 0.75, generator)
    x = torch.randn(4, 3, 16, 16, generator=generator)
    fast = accelerate(compact(model, x, True, "speed"), x, rounds=2)
    before = x.clone()
    assert_same(model, fast, x)
    assert torch.equal(x, before)


class Flat(nn.Module):
    """A network that views its images as rows, which only one order of memory allows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16 * 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        return self.dense(x.view(x.size(0), -1))


def test_an_order_of_memory_that_the_network_refuses_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    final = GibbsPruner(Flat(), sparsity=0.9).finalize("converged")
    x = torch.randn(4, 3, 8, 8)
    for turn in range(3):
        monkeypatch.setattr(acceleration, "timed", lambda ways, inputs, rounds, clock, t=turn: favour(ways, t))
        fast = accelerate(final, x)
        assert fast.report.memory_format == "contiguous"
        assert fast.report.choices
        assert fast.report.note == ""
        assert_same(final, fast, torch.randn(5, 3, 8, 8))
    assert capsys.readouterr() == ("", "")


def test_the_callers_input_is_not_overwritten() -> None:
    class Overwriting(Flat):
        def forward(self, x: Tensor) -> Tensor:
            x -= 0.5
            x /= 0.25
            return super().forward(x)

    model, x = Overwriting().eval(), torch.rand(2, 3, 8, 8)
    before = x.clone()
    fast = accelerate(model, x, rounds=2)
    assert torch.equal(x, before)
    assert_same(model, fast, x)


def executors() -> list[tuple[Plain, Tensor]]:
    """Every way to compute a layer, with an input."""
    torch.manual_seed(0)
    conv, dense = nn.Conv2d(6, 4, 3, padding=1).requires_grad_(False), nn.Linear(30, 20).requires_grad_(False)
    for layer in (conv, dense):
        layer.weight.data *= torch.rand(layer.weight.shape) < 0.2
    x = images(3, 6, 12, 24)
    ways = [(way, x) for way in (Plain(conv, True), Fused(conv, True), Sparse(conv, True), Lanes(conv, True, 4))]
    return [*ways, (Sparse(dense, True), torch.randn(7, 30))]


@pytest.mark.parametrize("number", range(5))
def test_every_way_takes_new_weights_and_is_copied(number: int) -> None:
    way, x = executors()[number]
    fresh = {name: torch.randn_like(value) for name, value in way.state_dict().items()}
    expected = copy.deepcopy(way.layer)
    expected.load_state_dict({name.removeprefix("layer."): value for name, value in fresh.items()})
    twin = copy.deepcopy(way)
    assert torch.equal(twin(x), way(x))
    assert torch.equal(pickle.loads(pickle.dumps(way))(x), way(x))
    for found, assign in ((nn.Sequential(way), False), (nn.Sequential(twin), True)):
        found.load_state_dict({f"0.{name}": value for name, value in fresh.items()}, assign=assign)
        assert (found(x) - expected(x).relu()).abs().max() < 1e-4


def test_accelerated_networks_are_exported_and_accelerated_again(tmp_path: Path) -> None:
    """Other runtimes, and another round of acceleration, get the plain layers."""
    ways = executors()
    for name, net, x in (
        ("images", nn.Sequential(*(nn.Sequential(way, nn.Conv2d(4, 6, 1)) for way, _ in ways[:4])), ways[0][1]),
        ("rows", nn.Sequential(ways[4][0], nn.Linear(20, 3)), ways[4][1]),
    ):
        net.eval().requires_grad_(False)
        assert export_pt2(net, x, tmp_path / f"{name}.pt2").difference < 1e-4
        again = accelerate(net, x, rounds=1)
        assert "cannot be captured" not in again.report.note
        assert_same(net, again, x)
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert export_onnx(net, x, tmp_path / "rows.onnx").difference < 1e-4
