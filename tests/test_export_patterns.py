"""Patterns of well-known networks in small: the same function, no larger than what lives in it, or told why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from export_zoo import unnamed
from gibbsprune import GibbsPruner, compact
from gibbsprune.export.compaction import CompactReport


class NormAct(nn.BatchNorm2d):
    """A norm with its activation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(super().forward(x))


class Dense(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Standardised(nn.Conv2d):
    """A convolution that standardises its weight before use."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5), self.bias, padding=self.padding)


class Normed(nn.Conv2d):
    """The same as a batch norm of its weight, with a gain."""

    def forward(self, x: Tensor) -> Tensor:
        gain = torch.linspace(0.5, 1, len(self.weight))
        weight = F.batch_norm(self.weight.reshape(1, len(gain), -1), None, None, gain.to(x), training=True, momentum=0)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, padding=self.padding)


class Network(nn.Module):
    """A stem, one pattern of 8 channels, and a head."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), NormAct(8))
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.mix, self.head = Dense(self.width, 10), Dense(10, 5)

    width = 8

    def body(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.silu(self.mix(self.body(self.stem(x)).mean((2, 3)))))


def conv(inputs: int, outputs: int, size: int = 3, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups)


class Ghost(Network):
    """Half of the channels are cheap functions of the others; to some of them a shortcut is added in their place."""

    width = 14

    def __init__(self) -> None:
        super().__init__(primary=conv(8, 8, 1), cheap=conv(8, 8, 3, 8), skip=conv(8, 14, 1))

    def body(self, x: Tensor) -> Tensor:
        y = F.silu(self.primary(x))
        y = torch.cat([y, F.silu(self.cheap(y))], 1)[:, :14]
        y += self.skip(x)
        y[:, 3] = 2 * y[:, 0]
        return y


class Res2(Network):
    """Splits of the channels, each with what came out of the one before."""

    def __init__(self) -> None:
        super().__init__(**{f"part{i}": conv(2, 2) for i in range(3)})

    def body(self, x: Tensor) -> Tensor:
        parts = x.chunk(4, 1)
        found = [parts[0]]
        for i in range(3):
            found.append(F.silu(getattr(self, f"part{i}")(parts[i + 1] + found[-1])))
        return torch.cat(found, 1) + x


class Shuffle(Network):
    """Half of the channels pass, half are worked on, then both are shuffled."""

    def __init__(self) -> None:
        super().__init__(a=conv(4, 4, 1), b=conv(4, 4, 3, 4), c=conv(4, 4, 1))

    def body(self, x: Tensor) -> Tensor:
        left, right = x.split(4, 1)
        x = torch.cat([left, F.silu(self.c(self.b(F.silu(self.a(right)))))], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class SplitAttention(Network):
    """Two branches, weighted by a softmax over them."""

    def __init__(self) -> None:
        super().__init__(branches=conv(8, 16), squeeze=conv(8, 6, 1), weigh=conv(6, 16, 1))

    def body(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        y = F.silu(self.branches(x)).view(n, 2, 8, *x.shape[2:])
        gate = self.weigh(F.silu(self.squeeze(y.sum(1).mean((2, 3), keepdim=True))))
        return (y * gate.view(n, 2, 8, 1, 1).softmax(1)).sum(1)


class Scaled(Network):
    """Layer scale and stochastic depth around a block with an instance norm."""

    def __init__(self) -> None:
        super().__init__(norm=nn.InstanceNorm2d(8, affine=True), up=conv(8, 20, 1), down=conv(20, 8, 1))
        self.gamma = nn.Parameter(torch.rand(8, 1, 1))

    def body(self, x: Tensor) -> Tensor:
        y = self.gamma * self.down(F.gelu(self.up(self.norm(x))))
        if self.training:
            y = y * torch.bernoulli(torch.full((len(y), 1, 1, 1), 0.9)) / 0.9
        return x + y


class Weighted(Network):
    """Weights that are computed from parameters."""

    def __init__(self) -> None:
        super().__init__(a=Standardised(8, 12, 3, padding=1), b=weight_norm(conv(12, 8)), c=Normed(8, 8, 3, padding=1))

    def body(self, x: Tensor) -> Tensor:
        return self.c(F.silu(self.b(F.silu(self.a(x)))))


class Encoder(Network):
    """torch's own encoder layer, with its input projection in one."""

    def __init__(self) -> None:
        super().__init__(layer=nn.TransformerEncoderLayer(8, 2, 12, batch_first=True))

    def body(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return self.layer(x.flatten(2).transpose(1, 2)).transpose(1, 2).view(n, c, h, w)


class Pixels(Network):
    """Channels as pixels, a transposed convolution in groups, group norm."""

    width = 4

    def __init__(self) -> None:
        super().__init__(a=conv(8, 16), up=nn.ConvTranspose2d(4, 4, 2, 2, groups=2), norm=nn.GroupNorm(2, 4))

    def body(self, x: Tensor) -> Tensor:
        return self.norm(self.up(F.silu(F.pixel_shuffle(self.a(x), 2))))


class Inception(Network):
    """Branches side by side, of which an average reads all, with zeros around them, which constants are not."""

    def __init__(self) -> None:
        super().__init__(a=conv(8, 8, 1), b=conv(8, 10), c=conv(18, 8, 1))

    def body(self, x: Tensor) -> Tensor:
        x = torch.cat([F.silu(self.a(x)), F.silu(self.b(x))], 1)
        return F.silu(self.c(F.avg_pool2d(x, 3, stride=1, padding=1)))


class Levels(Network):
    """One tower for images of two sizes, as detectors have it, of which one part is called three times."""

    def __init__(self) -> None:
        tower = nn.Sequential(conv(8, 12), nn.BatchNorm2d(12), nn.PReLU(), conv(12, 8), nn.PReLU(8))
        super().__init__(lateral=conv(8, 8, 1), tower=tower)

    def body(self, x: Tensor) -> Tensor:
        small = self.tower(F.avg_pool2d(F.silu(self.lateral(x)), 2))
        return self.tower[3:](self.tower[:3](x)) * F.silu(self.tower[3](self.tower[:3](x))) + F.interpolate(
            small, scale_factor=2
        )


PATTERNS: list[Callable[[], Network]] = [
    *(Ghost, Res2, Shuffle, SplitAttention, Scaled, Weighted, Encoder, Pixels, Inception, Levels),
]


#: Where constant channels become some of the pixels of an image of any size, and are computed and named.
ABOVE = {(Pixels, "filter")}
#: Layers that compute their weight, which a pruner refuses; here rows of what they compute it from are zero.
COMPUTED = {Weighted: ["a", "b", "c"]}


def pruned(make: Callable[[], Network], structure: str) -> tuple[Network, torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make()
        model(torch.randn(32, 3, 8, 8))  # statistics of norms
    model.eval()
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.data += 0.2 * torch.randn(p.shape, generator=generator)
        elif name in ("a.weight", "b.parametrizations.weight.original0", "c.weight") and make in COMPUTED:
            p.data *= (torch.rand(len(p), generator=generator) > 0.5).view(-1, *[1] * (p.dim() - 1))
    left = ["head", *COMPUTED.get(make, [])]
    GibbsPruner(model, 0.5, structure=structure, include="*", exclude=left, law="annealed").finalize("converged")
    return model, generator


def live_weights(model: nn.Module, generator: torch.Generator) -> dict[str, int]:
    """The number of non-zero weights on which the outputs depend, by their gradients at random inputs in float64."""
    y = model.double()(2 * torch.randn(16, 3, 8, 8, generator=generator, dtype=torch.float64))
    (y * torch.randn(y.shape, generator=generator)).sum().backward()
    found = {name: int(((p != 0) & (p.grad != 0)).sum()) for name, p in model.named_parameters() if p.grad is not None}
    model.float()
    return found


@pytest.mark.parametrize("structure", ["filter", "kernel", "weight"])
@pytest.mark.parametrize("make", PATTERNS)
def test_patterns(make: Callable[[], Network], structure: str) -> None:
    model, generator = pruned(make, structure)
    small = compact(model, torch.randn(2, 3, 8, 8, generator=generator))
    found = small.report
    assert isinstance(found, CompactReport)
    assert "the whole model" not in found.left, found
    with torch.no_grad():
        for rows in (1, 4):
            x = torch.randn(rows, 3, 8, 8, generator=generator)
            expected = model(x)
            assert (small(x) - expected).abs().max() <= 1e-4 * expected.abs().max()
    live = live_weights(model, generator)
    after = sum(p.numel() for p in small.parameters())
    assert unnamed(model, small, live) == []
    if structure == "filter":
        assert after < found.parameters_before
    else:  # what does not leave is zero
        after = sum(int((p != 0).sum()) for p in small.parameters())
    assert after <= 1.15 * sum(live.values()) or (make, structure) in ABOVE, (after, live)


class Sequence(nn.Module):
    """Attention over the first dimension, which mixes heads with the batch where its weights are asked for."""

    def __init__(self, weights: bool) -> None:
        super().__init__()
        self.a, self.attention, self.head = nn.Linear(5, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 3)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.head(self.attention(x, x, x, need_weights=self.weights)[0])


@pytest.mark.parametrize("weights", [False, True])
def test_heads_beside_the_batch(weights: bool) -> None:
    torch.manual_seed(0)
    model = Sequence(weights).eval()
    model.attention.in_proj_weight.data[torch.rand(24) < 0.5] = 0
    small = compact(model, torch.randn(6, 2, 5))
    reasons = list(small.report.left.values())
    assert reasons == (["its channels share a dimension with one that varies, such as the batch"] if weights else [])
    assert small.report.parameters_after < small.report.parameters_before
    for rows in (1, 3, 5):
        x = torch.randn(6, rows, 5)
        torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


class Halves(nn.Module):
    """Heads of which a part is turned and the rest is not, put together again; a part may be dead as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(5, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).view(*x.shape[:2], 2, 8).transpose(1, 2)
        x = torch.cat([-x[..., :4], x[..., 4:]], -1)
        return self.head(x.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("dead", [slice(0, 4), slice(4, 8)])
def test_a_dead_part_of_a_concatenation_leaves(dead: slice) -> None:
    torch.manual_seed(0)
    model = Halves().eval()
    for parameter in (model.a.weight, model.a.bias):
        parameter.data.view(2, 8, -1)[:, dead] = 0
        parameter.data.view(2, 8, -1)[1, 3:5] = 0
    small = compact(model, torch.randn(2, 6, 5))
    assert small.report.left == {}
    assert small.a.weight.numel() < 10 * 5, "of 16"
    for rows in (1, 3):
        x = torch.randn(rows, 6, 5)
        torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


class Step(nn.Module):
    """The sum of what comes in and of a state that has a dimension of one step in front."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 12), nn.Linear(5, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.a(x) + self.b(x).unsqueeze(0))[0])


def test_a_sum_of_tensors_with_other_numbers_of_dimensions() -> None:
    torch.manual_seed(0)
    model = Step().eval()
    for layer, dead in ((model.a, slice(0, 7)), (model.b, slice(5, 10))):
        layer.weight.data[dead] = 0
    small = compact(model, torch.randn(2, 5))
    assert small.report.left == {}
    assert small.a.weight.numel() + small.b.weight.numel() == (5 + 7) * 5
    for rows in (1, 3):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


class Decoder(nn.Module):
    """torch's own decoder, with a causal mask; its attention to another sequence cuts the weights of that."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Linear(5, 8), nn.Linear(5, 8)
        self.core = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, batch_first=True), 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.core(self.target(x), self.source(x), tgt_mask=mask))


def test_a_decoder() -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    for name, weight in model.named_parameters():
        if "core" in name and weight.dim() == 2:
            weight.data[::2] = 0
    small = compact(model, torch.randn(2, 4, 5))
    assert small.report.left == {}
    assert small.report.parameters_after < 0.7 * small.report.parameters_before
    for rows, length in ((1, 4), (3, 6)):
        x = torch.randn(rows, length, 5)
        torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-5)


class Routed(nn.Module):
    """Takes its way by the values of its inputs, of which no graph can be made."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu()) if (x > 0).any() else self.b(self.a(-x))


def test_a_network_without_a_graph_is_told_in_the_report_alone(capfd: pytest.CaptureFixture[str]) -> None:
    model, x = Routed(), torch.randn(2, 5)
    with pytest.warns(UserWarning, match="b, is taken for its only output"):
        GibbsPruner(model, 0.5, structure="filter", example_inputs=x).finalize("converged")
    small = compact(model.eval(), x)
    assert list(small.report.left) == ["the whole model"]
    assert torch.equal(small(x), model(x))
    assert capfd.readouterr() == ("", "")
