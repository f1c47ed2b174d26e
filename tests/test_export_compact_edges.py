"""Compaction at the edges of its rules: each small network is made smaller, exactly, and tells what it left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export_zoo import WEIGHTED, randomise
from gibbsprune import compact, load_compact, save_compact
from gibbsprune.export.equality import difference
from gibbsprune.export.parts import AddBorders


class Net(nn.Module):
    """Layers by name, and a function of them and the input."""

    def __init__(self, function: Callable[[Net, Tensor], Tensor], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def conv(inputs: int, outputs: int, size: int = 3, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2, **options)


def two(function: Callable[[Net, Tensor], Tensor], inputs: int = 8, **layers: nn.Module | nn.Parameter) -> nn.Module:
    return Net(function, a=conv(3, 8), b=conv(inputs, 8), **layers)


def reads_overwritten(net: Net, x: Tensor) -> Tensor:
    hidden = net.a(x)
    return net.b(F.relu(hidden, inplace=True)) + hidden


def shuffled(net: Net, x: Tensor) -> Tensor:
    hidden = net.a(x)
    return net.b(hidden.view(hidden.size(0), 2, 4, 8, 8).transpose(1, 2).reshape(hidden.size(0), 8, 8, 8))


def gated(net: Net, x: Tensor) -> Tensor:
    first, second = net.a(x).split(4, 1)[0], net.a(x)[:, 4:]
    return net.b(first * torch.sigmoid(second))


def sizes(net: Net, x: Tensor) -> Tensor:
    hidden = net.a(x)
    return net.b(hidden) / hidden.size(1) + hidden.shape[1] + hidden.size(dim=2)


def attention(net: Net, x: Tensor) -> Tensor:
    hidden = F.relu(net.a(x))
    return net.b(hidden * torch.sigmoid(net.map(hidden)))


CASES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "reads_overwritten": (lambda: two(reads_overwritten), ""),
    "sizes": (lambda: two(sizes), "depends on sizes that vary"),
    "attention": (lambda: two(attention, map=conv(8, 1)), ""),
    "layer_scale": (lambda: two(lambda n, x: n.b(n.a(x) * n.g), g=nn.Parameter(torch.rand(1, 8, 1, 1))), ""),
    "sum_of_list": (lambda: two(lambda n, x: sum([n.a(x), n.b(x)]), 3), ""),
    "to_itself": (lambda: two(lambda n, x: n.b((h := n.a(x)) + h)), ""),
    "one_place": (lambda: two(lambda n, x: n.b(F.adaptive_avg_pool2d(n.a(x), 1))), ""),
    "average_padded": (
        lambda: two(lambda n, x: n.b(F.avg_pool2d(n.a(x), 3, 1, 1))),
        "it pads with 0, which leaves 5 of 8",
    ),
    "padded": (
        lambda: two(lambda n, x: n.b(F.pad(n.a(x), (1, 2, 0, 1), value=0.3))),
        "it pads with 0.3, which leaves 5 of 8",
    ),
    "dropout": (lambda: two(lambda n, x: n.b(F.dropout(n.a(x), 0.5, training=n.training))), ""),
    "transposed": (
        lambda: two(lambda n, x: n.b(n.t(n.a(x))), t=nn.ConvTranspose2d(8, 8, 3, 2, 1, 1, dilation=2)),
        "",
    ),
    "groups": (
        lambda: two(lambda n, x: n.b(F.relu(n.g(n.a(x)))), 16, g=conv(8, 16, 5, groups=4, stride=2)),
        "its groups keep different numbers",
    ),
    "shuffled": (lambda: two(shuffled), ""),
    "largest": (lambda: two(lambda n, x: n.b(n.a(x) * n.a(x).max(3, keepdim=True)[0])), ""),
    "gated": (lambda: two(gated, 4), ""),
    "alpha": (lambda: two(lambda n, x: torch.add(n.a(x), n.b(x), alpha=2), 3), ""),
    "softmax": (lambda: two(lambda n, x: n.b(torch.softmax(n.a(x), 1))), ""),
    "functional": (
        lambda: two(lambda n, x: F.conv2d(n.a(x), n.w), 3, w=nn.Parameter(torch.randn(4, 8, 3, 3))),
        "",
    ),
    "batch_statistics": (
        lambda: two(lambda n, x: n.b(n.n(n.a(x))), n=nn.BatchNorm2d(8, track_running_stats=False, affine=False)),
        "no running statistics",
    ),
    "type_read": (lambda: two(lambda n, x: n.b(F.relu(n.a(x.to(n.a.weight.dtype))))), ""),
    "bias_read": (lambda: two(lambda n, x: n.b(F.relu(n.a(x))) - n.b.bias.sum()), "its bias is read elsewhere too"),
    "shuffle_pixels": (lambda: two(lambda n, x: n.b(F.pixel_shuffle(n.a(x), 2)), 2), ""),
}


@pytest.mark.parametrize("name", CASES)
def test_edges(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CASES[name][0]()
    if name != "batch_statistics":
        randomise(model, generator)
    model.eval()
    for layer in model.modules():
        if isinstance(layer, WEIGHTED):
            layer.weight.data[torch.rand(len(layer.weight), generator=generator) < 0.6] = 0
    x = torch.randn(2, 3, 8, 8, generator=generator)
    small = compact(model, x)
    expected, found = model(x), small(x)
    assert (expected - found).abs().max() <= 1e-5 * expected.abs().max()
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, small))
    reasons = small.report.left
    assert "the whole model" not in reasons, reasons
    assert after < before
    assert CASES[name][1] in " ".join(reasons.values())
    assert bool(reasons) == bool(CASES[name][1]), reasons


def test_convolutions_in_space() -> None:
    model = nn.Sequential(
        *(nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.AvgPool3d(2), nn.Conv3d(8, 5, 3, padding=1))
    ).eval()
    model[0].weight.data[2:] = 0
    model[1].bias.data.normal_()
    small = compact(model, torch.randn(1, 2, 8, 8, 8))
    x = torch.randn(2, 2, 6, 7, 8)
    assert (model(x) - small(x)).abs().max() <= 1e-5
    assert small.report.parameters_after < 0.6 * small.report.parameters_before


def without(model: nn.Module, share: float = 0.5) -> nn.Module:
    """The model in eval mode, with the first filters of its inner layers at zero."""
    for layer in [m for m in model.modules() if isinstance(m, WEIGHTED)][:-1]:
        layer.weight.data[: int(share * len(layer.weight))] = 0
    return model.eval()


def test_numbers_that_are_not_finite_must_be_the_same() -> None:
    plain = torch.tensor([1.0, -2.0, 3.0])
    holes, other = plain.clone(), plain.clone()
    holes[2], other[2] = torch.inf, -torch.inf
    assert difference(holes, holes) == 0
    assert difference(holes, holes + torch.tensor([0.0, 0.5, 0.0])) == 0.25
    for wrong in (plain, other, torch.full((3,), torch.nan)):
        assert difference(holes, wrong) == torch.inf
    assert difference(plain, torch.full((3,), torch.nan)) == torch.inf
    assert difference(torch.full((3,), torch.nan), torch.full((3,), torch.nan)) == 0


def test_one_row_stands_for_any_number_of_them() -> None:
    place = nn.Parameter(torch.randn(1, 8, 8, 8))
    model = without(Net(lambda net, x: net.b(F.relu(net.a(x) + net.place)), a=conv(3, 8), b=conv(8, 4), place=place))
    small = compact(model, torch.randn(1, 3, 8, 8))
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    x = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


def test_under_autocast() -> None:
    layers = {"a": conv(3, 8), "b": conv(8, 8), "c": conv(8, 4)}
    model = without(Net(lambda net, x: net.c(F.relu(net.a(x)) + net.b(F.relu(net.a(x)))), **layers))
    x = torch.randn(2, 3, 8, 8)
    small = compact(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(small(x).float(), model(x).float(), rtol=0.05, atol=0.05)


def test_what_reads_shapes_can_be_made_smaller_twice() -> None:
    def rows(net: Net, x: Tensor) -> Tensor:
        x = F.relu(net.b(F.relu(net.a(x))))
        n, c, h, w = x.shape
        return net.c(x.permute(0, 2, 3, 1).reshape(n, h * w * c))

    model = without(Net(rows, a=conv(3, 8), b=conv(8, 8), c=nn.Linear(8 * 16, 5)))
    x = torch.randn(2, 3, 4, 4)
    small = compact(compact(model, x), x)
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


def test_padding_that_ends_constants_is_told() -> None:
    model = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.Sigmoid(), nn.AvgPool2d(3, 1, 1), conv(8, 8))
    small = compact(without(model), torch.randn(2, 3, 8, 8))
    assert small.report.left == {"3": "it pads with 0, which leaves 4 of 8 channels no longer constant"}


@pytest.mark.parametrize("fold", [False, True])
def test_only_the_layer_whose_parameter_is_read_elsewhere_is_left(
    fold: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def reads(net: Net, x: Tensor) -> Tensor:
        return net.c(F.relu(net.n(net.b(F.relu(net.a(x)) - net.b.bias))))

    layers = {"a": nn.Linear(20, 64), "b": nn.Linear(64, 64), "n": nn.BatchNorm1d(64), "c": nn.Linear(64, 4)}
    model, x = without(Net(reads, **layers)), torch.randn(2, 20)
    small = compact(model, x, fold_batch_norm=fold)
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)
    assert small.report.left["b"] == "its bias is read elsewhere too"
    assert small.report.parameters_after < small.report.parameters_before
    assert ("n" in small.report.left) == fold
    assert capsys.readouterr() == ("", "")


def test_tied_weights_stay_tied() -> None:
    layers = {"e": nn.Embedding(100, 16), "l": nn.Linear(16, 16), "o": nn.Linear(16, 100, bias=False)}
    model = without(Net(lambda net, x: net.o(F.relu(net.l(net.e(x)))), **layers))
    model.o.weight = model.e.weight
    model.l.bias.data.zero_()
    x = torch.randint(100, (2, 5))
    small = compact(model, x)
    torch.testing.assert_close(small(x), model(x))
    assert [name for name, p in small.named_parameters() if p.shape == (100, 16)] == ["o.weight"]
    assert small.report.parameters_after < small.report.parameters_before
    assert small.report.left == {"o": "its weight is read elsewhere too"}


def test_attention_whose_values_are_gone_leaves_as_a_whole() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    attention.in_proj_weight.data[16:] = 0
    model = Net(lambda net, x: net.b(x + net.m(x, x, x, need_weights=False)[0]), m=attention, b=nn.Linear(8, 3)).eval()
    small = compact(model, x := torch.randn(2, 4, 8))
    assert {name for name, _ in small.named_parameters()} == {"b.weight", "b.bias"}
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


RECURRENT: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True),
    "gru": lambda: nn.GRU(8, 12, batch_first=True),
    "rnn": lambda: nn.RNN(8, 12, batch_first=True),
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_what_is_around_a_recurrent_layer_leaves(tmp_path: Path, kind: str) -> None:
    """The layer itself stays one operator, for sequences of any length, and is told."""
    layers = {"a": nn.Linear(5, 8), "r": RECURRENT[kind](), "b": nn.Linear(12, 8), "c": nn.Linear(8, 3)}
    model = without(Net(lambda net, x: net.c(F.relu(net.b(net.r(net.a(x))[0]))), **layers))
    for weight in (model.r.weight_ih_l0, model.r.weight_hh_l0):
        weight.data[::2] = 0
    small = compact(model, torch.randn(2, 4, 5))
    assert list(small.report.left) == ["r"]
    assert {"r.weight_ih_l0", "r.weight_hh_l0"} <= set(small.report.larger)
    assert small.b.weight.shape == (4, 12)
    save_compact(small, tmp_path / "net")
    again = load_compact(tmp_path / "net")
    for rows, length in ((1, 4), (3, 7)):
        x = torch.randn(rows, length, 5)
        torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)
        assert torch.equal(again(x), small(x))


def test_a_frozen_stem() -> None:
    """A trainable convolution keeps the stem's output for its gradients, though that needs none itself."""
    model = without(Net(lambda net, x: net.c((h := net.a(x)) + net.b(h)), a=conv(3, 8), b=conv(8, 8), c=conv(8, 4)))
    model.a.weight.data.normal_()
    model.a.requires_grad_(False)
    x = torch.randn(2, 3, 8, 8)
    small = compact(model, x)
    for net in (model, small):
        net.train()(x).sum().backward()
    torch.testing.assert_close(small.c.weight.grad, model.c.weight.grad)
    torch.testing.assert_close(small.b.weight.grad, model.b.weight.grad[4:])


def bordered() -> tuple[nn.Module, Tensor]:
    """A network whose second convolution gets its constants as a map: 16 live channels and 16 constant ones."""
    model = without(nn.Sequential(conv(3, 32), nn.BatchNorm2d(32), nn.ReLU(), conv(32, 8)))
    model[1].bias.data.uniform_(0.5, 3)
    return model, torch.randn(2, 3, 8, 8)


def test_autocast_leaves_nothing_behind() -> None:
    model, x = bordered()
    small = compact(model, x)
    assert any(isinstance(module, AddBorders) for module in small.modules())
    x = torch.randn(2, 3, 9, 9)  # a size that it has not met yet
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            found, expected = small(x), model(x)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
        torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


SUMS: dict[str, Callable[[], nn.Module]] = {
    "with the input": lambda: Net(lambda net, x: x + net.a(x), a=conv(3, 3)),
    "of some channels": lambda: two(lambda n, x: n.b(n.a(x)) + n.a2(x), a2=conv(3, 8)),
    "scattered": lambda: two(lambda n, x: n.a(x)),
}


@pytest.mark.parametrize("name", SUMS)
def test_types_under_autocast(name: str) -> None:
    model, x = without(SUMS[name]()), torch.randn(2, 3, 8, 8)
    small = compact(model, x)
    for grad in (False, True):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
            found, expected = small(x), model(x)
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
