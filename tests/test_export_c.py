"""Networks written as C compute what PyTorch computes, whatever the layers, masks, compilers and processors."""

from __future__ import annotations

import functools
import itertools
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from c_programs import assert_close, built, need, run, source_of, written
from export_zoo import ZOO, prune, randomise
from gibbsprune import UserError, compact, converged_mask, export_c
from gibbsprune.export.aten import capture
from gibbsprune.export.c.fuse import fused
from gibbsprune.export.c.library import Library, library
from gibbsprune.export.c.lower import Lowering, lowered
from gibbsprune.export.c.network import Layer
from gibbsprune.export.c.pack import cost, together
from gibbsprune.export.c.source import Source
from gibbsprune.export.c.write import network
from gibbsprune.models import build
from test_export_compact import made

NETWORKS = sorted(ZOO)
MASKS = [("weight", 0.0), ("weight", 0.6), ("weight", 0.9), ("weight", 0.99), ("kernel", 0.7)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIBBSPRUNE_CACHE", str(tmp_path / "cache"))


def outputs(found: object) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)  # type: ignore[call-overload]


@functools.cache
def graph(name: str) -> tuple[nn.Module, fx.GraphModule, dict[str, Tensor]]:
    """A network without masks, its graph, which shares its weights, and these weights."""
    model, x, _ = made(name, "weight", 0.0, 1)
    return model, capture(model, x), {key: value.clone() for key, value in model.state_dict().items()}


def masked(name: str, sparsity: float) -> tuple[nn.Module, Source, Tensor]:
    """A network with a random mask, and its source."""
    model, module, state = graph(name)
    model.load_state_dict(state)
    prune(model, "weight", sparsity, torch.Generator().manual_seed(2))
    x = torch.randn(ZOO[name][1], generator=torch.Generator().manual_seed(3))
    return model, Source(fused(Lowering(module, len(x)).network), "net", 1), x


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("name", NETWORKS)
def test_same_function(name: str, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 1 to 5 one by one, and one of 19 side by side with a rest; the compilers share the masks."""
    need(compiler)
    monkeypatch.setenv("CC", compiler)
    model, module, state = graph(name)
    generator = torch.Generator().manual_seed(1)
    first = 2 * NETWORKS.index(name) + (compiler == "clang")
    for structure, sparsity in (MASKS * 2)[first % len(MASKS) :: 2][: 1 if name == "resnet20" else 2]:
        model.load_state_dict(state)
        prune(model, structure, sparsity, generator)
        source = Source(fused(Lowering(module, ZOO[name][1][0]).network), "net", 1)
        found = Library(source, library(source, ("-O1", "-march=native")))
        for batch in (1, 2, 3, 4, 5, 19):
            images = torch.randn(batch, *ZOO[name][1][1:], generator=generator)
            assert_close(model, outputs(found(images)), images)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("resnet20", "conv1d", "vgg")])
def test_filters_that_are_gone(name: str) -> None:
    """The smaller network can be written, whatever it puts in the place of what is gone."""
    need("gcc")
    model, x, _ = made(name, *{"mlp": ("weight", 0.97), "densenet": ("filter", 0.9)}.get(name, ("filter", 0.6)), 1)
    small = Source(fused(lowered(compact(model, x, True, "speed"), (x,))), "net", 1)
    check(model, x, small)


def test_whatever_is_cheaper_is_written() -> None:
    """Channels that are gone cost C little: they are left out where that needs no other operations instead."""
    for name in ("resnet8", "squeeze_excite"):
        model, x, _ = made(name, "filter", 0.6, 1)
        plain, small = fused(lowered(model, (x,))), fused(lowered(compact(model, x, True, "speed"), (x,)))
        assert cost(network(model, (x,))) == min(cost(plain), cost(small))


def test_the_faster_kernel_is_chosen() -> None:
    """As benchmarks/kernels.py measures it: zeros must be many where few pixels share what a weight costs."""
    big, small, one = ((16, 32, 32), (256, 4, 4), (512, 2, 2))
    for layer, shape, batch, dense, sparse in (
        (nn.Conv2d(16, 16, 3, padding=1), big, 1, 0.1, 0.3),
        (nn.Conv2d(256, 256, 3, padding=1), small, 1, 0.3, 0.7),
        (nn.Conv2d(256, 256, 3, padding=1), small, 16, 0.0, 0.3),
        (nn.Conv2d(512, 512, 3, padding=1), one, 1, 0.3, 0.7),
        (nn.Linear(1024, 1024), (1024,), 16, 0.5, 0.7),
    ):
        weight = layer.weight.detach().clone()
        for sparsity, several in ((dense, True), (sparse, False)):
            torch.manual_seed(0)
            layer.weight.data = weight * (torch.rand_like(weight) >= sparsity)
            (found,) = (op for op in lowered(layer, (torch.randn(2, *shape),)).ops if isinstance(op, Layer))
            assert together(found, batch) == several, (layer, batch, sparsity)


def test_filters_that_are_gone_take_no_memory() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1)).eval()
    model[0].weight.data[2:] = 0
    model[0].bias.data[2:] = 0
    x = torch.randn(2, 3, 8, 8)
    assert source_of(model, x).arena() < Source(fused(lowered(model, (x,))), "net", 1).arena()


class Several(nn.Module):
    """Many operations on one input, each with an output of its own."""

    def __init__(self, *parts: object) -> None:
        super().__init__()
        self.parts = nn.ModuleList(part if isinstance(part, nn.Module) else Function(part) for part in parts)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part(x) for part in self.parts)


class Function(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)  # type: ignore[operator]


def check(model: nn.Module, x: Tensor, source: Source | None = None) -> None:
    """One by one and side by side."""
    need("gcc")
    source = source or source_of(model, x)
    found = Library(source, library(source, ("-O1", "-march=native")))
    images = torch.randn(17, *x.shape[1:], generator=torch.Generator().manual_seed(1))
    for batch in (images[:1], images):
        assert_close(model, outputs(found(batch)), batch)


@pytest.mark.parametrize("size", [(11, 16), (7, 9), (1, 33)])
def test_convolutions_of_every_kind(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    kinds = itertools.product((1, 2, 3), (1, 2, 3, 5), ((0, 0), (1, 2), (4, 3)), (1, 2), (1, 2, 6))
    layers: list[nn.Module] = []
    for i, (stride, kernel, padding, dilation, groups) in enumerate(kinds):
        reach = dilation * (kernel - 1) + 1
        if i % 3 == sum(size) % 3 and all(n + 2 * p >= reach for n, p in zip(size, padding)):
            strides = (stride, 1 + i % 2)
            layers.append(nn.Conv2d(6, 6, kernel, strides, padding, dilation, groups, bias=i % 5 > 0))
            layers[-1].weight.data *= torch.rand_like(layers[-1].weight) < (0.3, 1.0)[i % 2]
    check(Several(*layers[::3], nn.ConvTranspose2d(6, 4, 3, 2, 1, groups=2)), torch.randn(2, 6, *size))


def test_activations() -> None:
    kinds = [nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.SiLU(), nn.Hardswish(), nn.Sigmoid(), nn.Tanh(), nn.GELU()]
    kinds += [nn.GELU("tanh"), nn.Hardsigmoid(), nn.PReLU(3), nn.Softmax(1), nn.Softmax(-1), nn.Softmax(2)]
    fused = [nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), kind) for kind in kinds[:10]]
    check(
        Several(*kinds, *fused, torch.abs, lambda x: x.clamp(-0.5, 0.7), lambda x: F.softmax(30 * x, 1)),
        torch.randn(2, 3, 5, 7),
    )
    model = Several(nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.GELU(), nn.Softmax(1))
    source = source_of(model, torch.randn(2, 40))
    found = Library(source, library(source, ("-O1",)))
    for scale in (1e-4, 1e-2, 1.0, 30.0, 1e4):  # also relative to small outputs, and far out
        x = scale * torch.linspace(-1, 1, 40).repeat(3, 1)
        assert_close(model, outputs(found(x)), x)


def test_pooling_and_resampling() -> None:
    pools = [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 1, 1, dilation=2), nn.MaxPool2d(2, ceil_mode=True)]
    pools += [nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1, ceil_mode=True)]
    pools += [nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AvgPool2d(2, divisor_override=3)]
    pools += [nn.AvgPool2d((3, 1), (1, 2)), nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((3, 2))]
    pools += [nn.AdaptiveMaxPool2d(1), nn.AdaptiveMaxPool2d((2, 5)), nn.Upsample(scale_factor=2), nn.Upsample((5, 17))]
    means = [lambda x, d=d: x.mean(d) for d in ((2, 3), (1,), (-1,), (1, 2), (1, 2, 3), (2,))]
    largest = [lambda x: x.max(2)[0], lambda x: x.max(1, keepdim=True)[0], lambda x: x.amax((2, 3))]
    check(Several(*pools, *means, *largest), torch.randn(2, 3, 7, 9))


def test_moves_joins_and_norms() -> None:
    norm, shift = nn.LayerNorm(9), torch.randn(4, 1, 1)
    norm.weight.data.normal_(1)
    norm.bias.data.normal_()
    functions = [
        *(lambda x: x.flatten(1), lambda x: x.permute(0, 2, 3, 1), lambda x: x.transpose(1, 2)[:, 1:, ::2]),
        *(lambda x: F.pad(x, (1, 2, 0, 3)), lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"), lambda x: x.flip(1)),
        *(lambda x: torch.cat([x, 2 * x], 1), lambda x: torch.cat([x, x + 1], 3), lambda x: torch.cat([x, x], 2)),
        *(lambda x: x * x.mean((2, 3), keepdim=True), lambda x: x - x.mean(1, keepdim=True), lambda x: x / (x * x + 1)),
        *(lambda x: 3 - x, lambda x: (x + 1) * 0.5 - 2, lambda x: x + shift, lambda x: torch.add(x, x, alpha=0.5)),
        *(
            lambda x: x[:, 2],
            lambda x: x.unflatten(1, (2, 2)).transpose(1, 2).flatten(1, 2),
            norm,
            nn.LayerNorm((4, 6, 9)),
        ),
        *(
            lambda x: F.layer_norm(x.flatten(1), (216,)),
            lambda x: x[:, :1, 0, 0],
            nn.BatchNorm2d(4).eval(),
            nn.Linear(9, 5),
        ),
    ]
    check(Several(*functions), torch.randn(2, 4, 6, 9))


class Residual(nn.Module):
    """A sum with the layer's own input, which must not be overwritten while the layer reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 5, padding=2)
        self.three, self.none = nn.Linear(4, 4), nn.Conv2d(4, 4, 3, stride=2)
        nn.init.zeros_(self.none.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = F.relu(x + self.one(x))
        x = self.two(x) + x
        y = x.mean((2, 3))
        return F.silu(y + self.three(y)), self.none(x), torch.tanh(x)


def test_sums_with_a_layers_own_input() -> None:
    check(Residual(), torch.randn(2, 4, 9, 16))


class Transformer(nn.Module):
    """Patches of an image, a class token, places, and torch's own encoder, whose attention turns the batch round."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 13, 24))
        options = {"dropout": 0.1, "activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(24, 3, 40, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.encoder(x))[:, 0])


def test_a_transformer() -> None:
    torch.manual_seed(0)
    model = Transformer()
    prune(model, "weight", 0.7, torch.Generator().manual_seed(0))
    x = torch.randn(2, 3, 14, 17)
    check(model, x)
    layers = [op for op in source_of(model, x).network.ops if isinstance(op, Layer)]
    assert [layer.act.kind for layer in layers].count("GELU") == 2  # fused through the turns between


def attend(x: Tensor, **options: object) -> Tensor:
    q, k, v = x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, **options)  # type: ignore[arg-type]


def test_products_and_attention() -> None:
    mask = torch.rand(6, 6) < 0.7
    mask.fill_diagonal_(True)
    functions = [
        *(lambda x: x @ x.transpose(1, 2), lambda x: torch.bmm(x, x.transpose(1, 2)), lambda x: x @ torch.ones(24, 3)),
        lambda x: torch.ones(2, 6) @ x,
        lambda x: x.unflatten(2, (3, 8)).transpose(1, 2) @ x.unflatten(2, (3, 8)).permute(0, 2, 3, 1),
        *(attend, lambda x: attend(x, is_causal=True), lambda x: attend(x, attn_mask=mask, scale=0.3)),
        *(lambda x: attend(x, attn_mask=torch.linspace(0, 1, 36).view(6, 6)), lambda x: x.sum(1), lambda x: -x),
    ]
    check(Several(*functions), torch.randn(2, 6, 24))


def test_constants() -> None:
    """Numbers that no input changes: added, put between others, and as the whole output."""
    place, index = torch.randn(4, 6, 9), torch.tensor([2, 0])
    functions = [
        *(lambda x: x + place, lambda x: place - x, lambda x: 1 / (x * x + 1), lambda x: place[:, :1] * x),
        *(lambda x: torch.cat([x, place.expand(len(x), 4, 6, 9)], 2), lambda x: torch.where(place > 0, x, place)),
        *(lambda x: x.index_copy(1, index, 2 * x[:, :2]), lambda x: x.index_add(1, index, x[:, 2:])),
        *(lambda x: x[:, [3, 1, 1]], lambda x: torch.stack([x, -x], 1).flatten(1, 2), lambda x: x.new_ones(len(x), 3)),
        *(
            lambda x: F.interpolate(x, (9, 5), mode="bilinear"),
            lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        ),
        lambda x: 2 * x.mean((1, 2, 3)) + 1,
        *(lambda x: F.interpolate(x.flatten(2), 31, mode="linear"), lambda x: x.flatten(1) @ torch.ones(216, 2)),
    ]
    check(Several(*functions), torch.randn(2, 4, 6, 9))


@pytest.mark.parametrize(
    ("name", "width", "compiler"),
    [
        *(("resnet8", 64, "gcc"), ("odd", 16, "gcc"), ("odd", 32, "gcc"), ("squeeze_excite", 32, "gcc")),
        *(("mlp", 64, "gcc"), ("encoder", 32, "gcc"), ("mlp", 32, "clang")),  # clang takes minutes for convolutions
    ],
)
def test_sanitized(name: str, width: int, compiler: str, tmp_path: Path) -> None:
    """Nothing is read or written outside the arena and the tables, in vectors of every width."""
    need(compiler)
    model, source, x = masked(name, 0.7)
    folder = written(source, tmp_path)
    level = "-O0" if compiler == "clang" else "-O1"
    flags = (level, "-fsanitize=address,undefined", "-fno-sanitize-recover", f"-DGP_BYTES={width}", "-Wno-psabi")
    program = built(folder, (compiler, *flags, "-DNET_LANES=1"))
    images = torch.randn(18, *x.shape[1:])
    assert_close(model, run(program, images, source), images)


@pytest.mark.parametrize("name", ["resnet8", "mobilenet", "odd"])
def test_another_processor(name: str, tmp_path: Path) -> None:
    """The same files for aarch64 with its vectors, run by an emulator."""
    need("aarch64-linux-gnu-gcc", "qemu-aarch64")
    model, source, x = masked(name, 0.8)
    program = built(written(source, tmp_path), ("aarch64-linux-gnu-gcc", "-O1", "-static", "-DNET_LANES=1"))
    images = torch.randn(6, *x.shape[1:])
    assert_close(model, run(program, images, source, ("qemu-aarch64",)), images)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 5e-3), ("int8", 0.1)])
def test_weights_are_stored_small(dtype: str, tolerance: float, tmp_path: Path) -> None:
    need("gcc")
    generator = torch.Generator().manual_seed(0)
    model = prune(randomise(build("resnet8", 10, 3), generator), "weight", 0.95, generator)
    x = torch.randn(3, 3, 12, 12, generator=generator)
    report = export_c(model, x, tmp_path / "out", "small", dtype)
    assert report.difference is not None
    assert report.difference <= tolerance
    weights = [m.weight for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    survivors = sum(int((w != 0).sum()) for w in weights)
    each = {"float32": 4, "float16": 2, "int8": 1}[dtype] + 1.2
    biases = sum(len(w) for w in weights) * (8 if dtype == "int8" else 4) + 16 * len(weights)
    assert report.weights <= each * survivors + biases
    assert [path.name for path in report.files] == ["small.c", "small.h", "main.c"]
    assert "for each thread" in str(report)


@pytest.mark.parametrize(("structure", "kept"), [("2:4", 0.5), ("4x4", 0.25), ("at-most-3", 0.25)])
def test_patterns_are_stored_and_computed_small(structure: str, kept: float) -> None:
    """Patterns of hardware are zeros like others here: what they remove is not stored, and saves time."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Linear(1024, 12),
    )
    dense, x = randomise(model, generator), torch.randn(2, 3, 8, 8, generator=generator)
    whole = source_of(dense, x)
    for layer in (model[2], model[5]):
        mask = converged_mask(layer.weight.detach(), None if structure == "2:4" else 1 - kept, structure)
        layer.weight.data *= mask
    source = source_of(model, x)
    check(model, x, source)
    assert len(source.data) < (kept + 0.1) * len(whole.data)
    assert cost(source.network) < 0.9 * cost(whole.network)


def test_the_example_program(tmp_path: Path) -> None:
    """It compiles with the command that the report names, and prints the outputs for an image of zeros."""
    need("gcc", "cc")
    model, x, _ = made("mobilenet", "weight", 0.5, 0)
    report = export_c(model, x, tmp_path, "mobile")
    command = report.command.replace("-O3", "-O1").split()
    subprocess.run([*command, "-Wall", "-Wextra", "-Werror"], cwd=tmp_path, check=True)
    lines = subprocess.run([tmp_path / "mobile"], capture_output=True, text=True, check=True).stdout.split()
    with torch.no_grad():
        expected = model(torch.zeros_like(x[:1]))
    found = torch.tensor([[float(line) for line in lines]])
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_refusals(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    for options, words in (
        ({"dtype": "float8"}, "float8"),
        ({"name": "Not a name"}, "Not a name"),
        ({"mean": [0.5] * 3}, "together"),
        ({"mean": [0.5], "std": [0.5]}, "3 numbers"),
        ({"mean": [0.5] * 3, "std": [1.0, 0.0, 1.0]}, "positive"),
    ):
        with pytest.raises(UserError, match=words):
            export_c(model, x, tmp_path / "out", **options)
    with pytest.raises(UserError, match=r"aten\.cumsum"):
        export_c(Function(lambda x: x.cumsum(1)), x, tmp_path / "out")
    with pytest.raises(UserError, match=r"aten\.gru.* '1'"):
        export_c(nn.Sequential(nn.Flatten(2), nn.GRU(64, 4)), x, tmp_path / "out")
    with pytest.raises(UserError, match="another number than zero"):
        export_c(Function(lambda x: F.pad(x, (1, 1), value=2.0)), x, tmp_path / "out")
    with pytest.raises(UserError, match="of these shapes"):  # one that torch lines up with another image's
        export_c(Function(lambda x: x * x.mean((2, 3))), torch.randn(8, 8, 8, 8), tmp_path / "out")
    with pytest.raises(UserError, match="batch"):
        export_c(Function(lambda x: x.mean(0)), x, tmp_path / "out")
    with pytest.raises(UserError, match="not the last"):
        export_c(Function(lambda x: x.unsqueeze(1).softmax(1)), x, tmp_path / "out")
    with pytest.raises(UserError, match="not one for each image"):
        export_c(Function(lambda x: torch.cat([x, x.flip(0)], 1)), x, tmp_path / "out")
    with pytest.raises(UserError, match="first axis is not the batch"):
        export_c(Function(lambda x: x.transpose(0, 1) + 1), x, tmp_path / "out")
    with pytest.raises(UserError, match="differs between images"):
        export_c(Function(lambda x: x + torch.arange(2.0).view(2, 1, 1, 1)), torch.randn(2, 3, 8, 8), tmp_path / "out")
    assert not (tmp_path / "out").exists()
