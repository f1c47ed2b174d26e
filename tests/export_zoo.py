"""Small networks of many kinds, with random batch-norm numbers and random masks, for the tests of compaction."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gibbsprune.models import build


class Leaky(TorchFunctionMode):
    """Lets ReLUs through, so that a gradient of 0 means no path, not a unit that these inputs happen to leave cold."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("relu", "relu_", "relu6", "hardtanh", "hardtanh_"):
            return F.silu(args[0])
        return func(*args, **(kwargs or {}))


def unnamed(model: nn.Module, small: Any, live: dict[str, int]) -> list[str]:
    """Weights of a compact network that are larger than 1.15 times what lives in them, and not in its report."""
    told, tables = (
        {*small.report.left, *small.report.larger},
        {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Embedding)},
    )  # which rows of a table are read is up to the inputs
    return [
        f"{name}: {weight.numel()} where {live[name]} live"
        for name, weight in small.named_parameters()
        if weight.dim() > 1 and name in live and name not in tables and weight.numel() > 1.15 * live[name]
        if not {name, name.removesuffix(".weight")} & told
    ]


def conv_bn(inputs: int, outputs: int, kernel: int = 3, **options: Any) -> nn.Sequential:
    options.setdefault("padding", kernel // 2)
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, bias=False, **options), nn.BatchNorm2d(outputs), nn.ReLU())


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 24), (24, 32)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(32 * 9, 40), nn.ReLU(True), nn.Dropout(), nn.Linear(40, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.classifier(x.view(x.size(0), -1))


class DenseNet(nn.Module):
    """Every layer reads the concatenation of all before; norm and ReLU come first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(inplace=True), nn.Conv2d(w, 8, 3, padding=1, bias=False))
            for w in (12, 20, 28)
        )
        self.transition = nn.Sequential(nn.BatchNorm2d(36), nn.ReLU(), nn.Conv2d(36, 18, 1), nn.AvgPool2d(2))
        self.last = nn.Sequential(nn.BatchNorm2d(18), nn.ReLU())
        self.dense = nn.Linear(18, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = [self.first(x)]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        x = self.last(self.transition(torch.cat(found, 1)))
        return self.dense(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class MobileNet(nn.Module):
    """Inverted residuals: 1 × 1 up, depthwise 3 × 3, 1 × 1 down without a ReLU; ReLU6 and hard swish."""

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            wide = 3 * inputs
            self.up = nn.Sequential(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
            self.depth = nn.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False)
            self.norm = nn.BatchNorm2d(wide)
            self.down = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
            self.same = stride == 1 and inputs == outputs

        def forward(self, x: Tensor) -> Tensor:
            y = self.down(F.hardswish(self.norm(self.depth(self.up(x)))))
            return x + y if self.same else y

    def __init__(self) -> None:
        super().__init__()
        self.first = conv_bn(3, 12, stride=2)
        self.blocks = nn.Sequential(*(self.Block(i, o, s) for i, o, s in ((12, 12, 1), (12, 16, 2), (16, 16, 1))))
        self.dense = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.blocks(self.first(x)).mean([2, 3]))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = conv_bn(3, 12), conv_bn(12, 16), conv_bn(16, 20)
        self.up2 = nn.ConvTranspose2d(20, 16, 2, stride=2)
        self.join2, self.join1 = conv_bn(32, 16), conv_bn(28, 12)
        self.out = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.up2(self.bottom(F.max_pool2d(b, 2)))
        b = self.join2(torch.cat([b, F.interpolate(c, size=b.shape[2:])], dim=1))
        b = F.interpolate(b, size=a.shape[-2:], mode="bilinear", align_corners=False)
        return self.out(self.join1(torch.cat([a, b], dim=1)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv_bn(3, 20), conv_bn(20, 20)
        self.fc1, self.fc2 = nn.Linear(20, 8), nn.Linear(8, 20)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(20, 6, 1), nn.SiLU(), nn.Conv2d(6, 20, 1), nn.Hardsigmoid()
        )
        self.dense = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        n, c, _, _ = x.shape
        s = torch.sigmoid(self.fc2(F.relu(self.fc1(x.mean((2, 3)))))).view(n, c, 1, 1)
        x = self.second(x * s)
        x = x * self.gate(x) + x
        return self.dense(F.adaptive_max_pool2d(x, 1).squeeze(-1).squeeze(-1))


class Odd(nn.Module):
    """Strides, dilation, padding modes, groups, uneven padding, scalars, slices, in-place sums, a shared branch."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv_bn(3, 16, 5, stride=2, padding=(1, 2), dilation=2)
        self.b = conv_bn(16, 16, 3, padding_mode="reflect")
        self.c = conv_bn(16, 16, 3, padding_mode="circular", groups=4)
        self.d = nn.Conv2d(16, 16, 3, padding="same", dilation=2)
        self.e = nn.Conv2d(16, 16, (3, 1), padding="valid")
        self.prelu, self.slope = nn.PReLU(16), nn.PReLU()
        self.pool = nn.AvgPool2d(3, stride=2, padding=1)
        self.grouped = nn.Conv2d(16, 24, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(24, affine=False)
        self.dense = nn.Linear(24 * 2 * 3, 10, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(x)
        y = self.b(x)
        y += self.c(x)
        y = y.relu_() * 0.5 + 1
        z = self.prelu(self.d(y)) - 2 * y
        z = self.slope(self.e(F.pad(z, (1, 0, 1, 1))))
        z = F.pad(self.pool(z), (1, 1, 1, 1), mode="replicate")
        z = self.norm(self.grouped(z[:, :, ::2, 1:]))
        return self.dense(F.adaptive_avg_pool2d(z, (2, 3)).flatten(1)), y.mean(-1, keepdim=True)


class Encoder(nn.Module):
    """The MLP and projections of a transformer's layer, with layer norms and attention over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        h = self.norm1(x)
        h = torch.softmax(self.q(h) @ self.k(h).transpose(1, 2), -1) @ self.v(h)
        x = x + self.o(h)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x.mean(1))


def mlp() -> nn.Module:
    widths = (30, 64, 50, 40)
    layers = [m for i, o in pairwise(widths) for m in (nn.Linear(i, o, bias=o != 50), nn.BatchNorm1d(o), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(40, 10))


def conv1d() -> nn.Module:
    """Convolutions over a line and in space."""
    return nn.Sequential(
        *(nn.Conv1d(4, 20, 5, padding=2), nn.BatchNorm1d(20), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(20, 20, 3, padding=1, stride=2), nn.BatchNorm1d(20), nn.LeakyReLU(0.1), nn.Unflatten(1, (20, 1))),
        *(nn.Flatten(), nn.Linear(20 * 5, 10)),
    )


ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet8": (lambda: build("resnet8", 10, 3), (2, 3, 17, 15)),
    "resnet20": (lambda: build("resnet20", 10, 3), (2, 3, 16, 16)),
    "vgg": (VGG, (2, 3, 24, 25)),
    "densenet": (DenseNet, (2, 3, 15, 13)),
    "mobilenet": (MobileNet, (2, 3, 19, 22)),
    "unet": (UNet, (2, 3, 21, 18)),
    "squeeze_excite": (SqueezeExcite, (2, 3, 9, 11)),
    "odd": (Odd, (2, 3, 29, 26)),
    "encoder": (Encoder, (2, 7, 12)),
    "mlp": (mlp, (5, 30)),
    "conv1d": (conv1d, (2, 4, 19)),
}
WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)


def randomise(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Random batch-norm statistics and affine numbers (some scales zero, some shifts negative), random biases."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.running_mean.normal_(0, 0.5, generator=generator)
            module.running_var.uniform_(0.3, 2, generator=generator)
            if module.affine:
                module.weight.data.normal_(1, 0.5, generator=generator)
                module.weight.data[torch.rand(len(module.weight), generator=generator) < 0.1] = 0
                module.bias.data.normal_(0, 0.7, generator=generator)
        elif isinstance(module, WEIGHTED) and module.bias is not None:
            module.bias.data.normal_(0, 0.3, generator=generator)
        elif isinstance(module, nn.PReLU):
            module.weight.data.uniform_(0.1, 0.9, generator=generator)
    return model.eval()


def prune(model: nn.Module, structure: str, sparsity: float, generator: torch.Generator) -> nn.Module:
    """Random masks: of "filter"s (biases of removed ones stay), "kernel"s, "weight"s, or of input "column"s."""
    layers = [m for m in model.modules() if isinstance(m, WEIGHTED)]
    for layer in layers[:-1] if structure != "weight" else layers:
        weight = layer.weight.data
        ones = [1] * (weight.dim() - 2)
        rows, columns = weight.shape[:2]
        if isinstance(layer, nn.ConvTranspose2d) and structure == "filter":
            structure_shape: tuple[int, ...] = (1, columns, *ones)
        else:
            structure_shape = {
                "filter": (rows, 1, *ones),
                "column": (1, columns, *ones),
                "kernel": (rows, columns, *ones),
                "weight": tuple(weight.shape),
            }[structure]
        weight *= torch.rand(structure_shape, generator=generator) >= sparsity
    return model
