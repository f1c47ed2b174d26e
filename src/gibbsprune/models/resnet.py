"""The CIFAR residual networks: depth 6n + 2, three stages of n basic blocks with 16, 32 and 64 channels.

Convolutions carry no biases. At the two stage changes the shortcut is a 1 × 1 convolution of stride 2 without
batch norm. Global average pooling and one dense layer follow.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import bad, check_whole

WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """relu(shortcut(x) + bn2(conv2(relu(bn1(conv1(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """First convolution, three stages of `blocks` basic blocks, pooling, dense layer; images (N, C, H, W)."""

    def __init__(self, blocks: int, classes: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(WIDTHS[0])
        layers, inputs = [], WIDTHS[0]
        for stage, outputs in enumerate(WIDTHS):
            for block in range(blocks):
                layers.append(BasicBlock(inputs, outputs, stride=2 if stage > 0 and block == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.dense = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.dense(x.mean(dim=(2, 3)))


def resnet(depth: int, classes: int = 10, channels: int = 3, generator: torch.Generator | None = None) -> ResNet:
    """The network of that depth (8, 14, 20, 26, 32, 44, 56, 110 or any other 6n + 2), freshly initialised.

    The initial weights are a function of `generator`, a CPU generator, or of torch's global one where None;
    with a generator given, the global one is left as it was. Images may have any size from 8 × 8.

    Args:
        depth: 6n + 2.
        classes: the outputs.
        channels: of the images.
        generator: for the initial weights.
    """
    if depth < 8 or (depth - 2) % 6:
        raise bad("model", f"resnet{depth}", "depths of 6n + 2, such as 8, 14, 20, 32, 56, 110")
    for name, value, least in (("classes", classes, 2), ("channels", channels, 1)):
        check_whole(name, value, least)
    with torch.random.fork_rng(devices=[]):  # the layers' own default initialisation is thrown away
        model = ResNet((depth - 2) // 6, classes, channels)
    initialise(model, generator)
    return model


def initialise(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """He-normal weights, N(0, 2 / fan-in), for convolutions and dense layers; dense biases zero."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
