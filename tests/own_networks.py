"""Networks as a user would bring them, by the name ``own_networks:function``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Smooth(nn.Module):
    """Convolutions of all kinds with smooth activations: no sign of an activation can flip by a rounding error.

    No bias comes before a batch norm, where its gradient would be nothing but rounding errors.
    """

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.third = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.skip = nn.Sequential(nn.Conv2d(8, 16, 1, stride=2, bias=False))
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(16), nn.GroupNorm(4, 16)])
        self.dense = nn.Linear(16 * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norms[0](self.second(F.gelu(self.first(x)))))
        x = F.gelu(self.norms[1](self.third(x)) + self.skip(x))
        x = F.gelu(self.norms[2](self.depthwise(x)))
        return self.dense(F.avg_pool2d(x, 2).flatten(1))


def smooth(classes: int, channels: int) -> nn.Module:
    return Smooth(classes, channels)


class Dropping(nn.Module):
    """Cannot be fused: dropout, and a view that needs contiguous memory."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.3)
        self.dense = nn.Linear(8 * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(self.norm(self.second(self.first(x).relu())).relu(), 2)
        return self.dense(self.dropout(x.view(x.size(0), -1)))


def dropping(classes: int, channels: int) -> nn.Module:
    return Dropping(classes, channels)


def lazy(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def frozen(classes: int) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, classes))
    model[1].requires_grad_(False)
    return model


def perceptron(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, classes)
    )


def one_convolution(classes: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 9), nn.Linear(9, classes))


class Normless(nn.Module):
    """No batch norm: an image's output does not depend on the other images of its batch."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.dense = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(F.gelu(self.norm(self.second(F.gelu(self.first(x))))).mean((2, 3)))


def normless(classes: int, channels: int) -> nn.Module:
    return Normless(classes, channels)


class Answering(nn.Module):
    """Answers with what a function makes of a perceptron's logits."""

    def __init__(self, answer: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.inner, self.answer = perceptron(10), answer

    def forward(self, x: Tensor) -> object:
        return self.answer(self, self.inner(x))


def a_tuple() -> nn.Module:
    return Answering(lambda network, logits: (logits, logits))


def a_tuple_in_training() -> nn.Module:
    return Answering(lambda network, logits: (logits, logits) if network.training else logits)


def its_choice() -> nn.Module:
    return Answering(lambda network, logits: logits.argmax(1))


def seven_classes() -> nn.Module:
    return perceptron(7)


def three_channels() -> nn.Module:
    return one_convolution(10, 3)


SHARED = perceptron(10)


def always_the_same() -> nn.Module:
    return nn.Sequential(SHARED)


class Twice(nn.Module):
    """One convolution under two names."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.again = self.second
        self.dense = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.again(self.second(self.first(x).relu()).relu()).relu().mean((2, 3)))


def twice(classes: int, channels: int) -> nn.Module:
    return Twice(classes, channels)


def normed(classes: int, channels: int) -> nn.Module:
    """With layers whose weights are made from others, and which cannot be masked."""
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3)),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3)),
        nn.Conv2d(8, 8, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


class Versioned(nn.Sequential):
    """With a state of its own that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def versioned(classes: int) -> nn.Module:
    return Versioned(perceptron(classes))


class Counting(nn.Module):
    """With a buffer that is there from its first use on."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.inner = perceptron(classes)
        self.register_buffer("count", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count = torch.zeros(()) if self.count is None else self.count + 1
        return self.inner(x)


def counting(classes: int) -> nn.Module:
    return Counting(classes)


class Overwriting(nn.Sequential):
    """Works in place on its images, and views what a convolution made of them."""

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        x *= 3
        x = self[0](x).relu()
        return self[1](x.view(x.size(0), -1))


def overwriting(classes: int, channels: int) -> nn.Module:
    return Overwriting(nn.Conv2d(channels, 8, 3, padding=1), nn.Linear(8 * 64, classes))
