"""Other ways for a CPU to compute a convolution or dense layer, with the sum and the ReLU behind it.

Each computes relu(layer(x) + other), with or without the sum and the ReLU, and falls back to the plain way for inputs
that it cannot take, and when torch.export or torch.compile look on. None of them has gradients.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gibbsprune.export.parts import LANES, add_into


class Plain(nn.Module):
    """The layer, then the sum, then the ReLU."""

    own = False  # whether ``other`` may be overwritten

    def __init__(self, layer: Any, relu: bool) -> None:
        super().__init__()
        self.layer, self.relu = layer, relu
        self.register_load_state_dict_post_hook(_derive)

    def derive(self) -> None:
        """Bring the layer's weights into another form; again whenever new ones are loaded."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        return self.finish(self.layer(x), other)

    def finish(self, y: Tensor, other: Tensor | None) -> Tensor:
        """The sum and the ReLU, written into ``y``."""
        if other is not None:
            y = add_into(y, other)
        return y.relu_() if self.relu else y


def _derive(executor: Plain, _: Any) -> None:
    executor.derive()


class Fused(Plain):
    """Convolution, sum and ReLU in one pass of oneDNN, added into ``other`` where that may be overwritten."""

    @classmethod
    def takes(cls, layer: Any, x: Tensor) -> bool:
        known = hasattr(torch.ops.mkldnn, "_convolution_pointwise") and torch.backends.mkldnn.is_available()
        plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return known and plain and x.dim() == 4 and x.dtype == torch.float32

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        if torch.compiler.is_compiling():
            return super().forward(x, other)
        layer = self.layer
        return self.fused(x, other, (layer.weight, layer.bias), layer.stride, self.relu)

    def fused(self, x: Tensor, other: Tensor | None, weights: Any, stride: Any, relu: bool) -> Tensor:
        """One call of oneDNN, with this weight, bias and stride."""
        layer, ops = self.layer, torch.ops.mkldnn
        shape = (*weights, list(layer.padding), list(stride), list(layer.dilation), layer.groups)
        if other is None:
            return ops._convolution_pointwise(x, *shape, "relu" if relu else "none", [], "")
        tail: tuple[Any, ...] = ("add", 1.0, "relu" if relu else None, [], "")
        if self.own:
            return ops._convolution_pointwise_.binary(other, x, *shape, *tail)
        return ops._convolution_pointwise.binary(x, other, *shape, *tail)


class Lanes(Fused):
    """A narrow convolution that computes f neighbouring pixels at once.

    A CPU computes 16 channels at a time, so that 4 outputs cost as much as 16. Here the outputs of f pixels in a row
    are f times as many channels of one convolution with a kernel wider by (f − 1) strides and f times the stride:
    W'[(p, o), i, a, b + p s] = W[o, i, a, b]. In channels-last memory its output is, byte for byte, the output wanted.
    """

    wide: Tensor
    wide_bias: Tensor | None

    def __init__(self, layer: Any, relu: bool, pixels: int) -> None:
        super().__init__(layer, relu)
        self.pixels = pixels
        self.derive()

    def derive(self) -> None:
        layer, pixels = self.layer, self.pixels
        outputs, inputs, height, width = layer.weight.shape
        step = layer.stride[1]
        wide = layer.weight.new_zeros(pixels, outputs, inputs, height, width + (pixels - 1) * step)
        for pixel in range(pixels):
            wide[pixel, ..., pixel * step : pixel * step + width] = layer.weight.detach()
        wide = wide.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        self.register_buffer("wide", wide, persistent=False)
        bias = None if layer.bias is None else layer.bias.detach().repeat(pixels)
        self.register_buffer("wide_bias", bias, persistent=False)

    @classmethod
    def options(cls, layer: Any, x: Tensor, y: Tensor) -> list[int]:
        """The numbers of pixels worth a try."""
        if not cls.takes(layer, x) or layer.groups > 1 or layer.dilation[1] > 1:
            return []
        if not x.is_contiguous(memory_format=torch.channels_last):
            return []
        most = LANES // len(layer.weight)
        return [f for f in range(2, most + 1) if y.shape[3] % f == 0][-2:]

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        layer = self.layer
        width = (x.shape[3] + 2 * layer.padding[1] - layer.kernel_size[1]) // layer.stride[1] + 1
        if torch.compiler.is_compiling() or width % self.pixels:
            return super().forward(x, other)
        if not x.is_contiguous(memory_format=torch.channels_last):
            return super().forward(x, other)
        bare = other is None
        stride = (layer.stride[0], layer.stride[1] * self.pixels)
        y = self.fused(x, None, (self.wide, self.wide_bias), stride, self.relu and bare)
        y = y.permute(0, 2, 3, 1).reshape(len(y), y.shape[2], width, len(layer.weight)).permute(0, 3, 1, 2)
        return y if bare else self.finish(y, other)


class Sparse(Plain):
    """The surviving weights as a sparse matrix (CSR), times the input; of a convolution, times its unfolded input."""

    def __init__(self, layer: Any, relu: bool) -> None:
        super().__init__(layer, relu)
        self.derive()

    def derive(self) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*Sparse.*beta", category=UserWarning)
            self.matrix = self.layer.weight.detach().flatten(1).to_sparse_csr()

    def __getstate__(self) -> dict[str, Any]:
        """For copies: without the matrix, which torch cannot copy, and which they derive anew."""
        return {name: value for name, value in self.__dict__.items() if name != "matrix"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.derive()

    @classmethod
    def takes(cls, layer: Any, x: Tensor) -> bool:
        weight = layer.weight
        if weight.ne(0).sum() > 0.3 * weight.numel() or x.dtype not in (torch.float32, torch.float64):
            return False
        if type(layer) is nn.Linear:
            return x.dim() >= 2
        plain = type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return plain and layer.groups == 1 and x.dim() == 4

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        layer = self.layer
        if x.dtype != self.matrix.dtype or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
            return super().forward(x, other)
        if isinstance(layer, nn.Linear):
            y = (self.matrix @ x.reshape(-1, x.shape[-1]).t()).t()
            y = y.reshape(*x.shape[:-1], len(layer.weight))
        else:
            columns = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
            sizes = [
                (size + 2 * p - d * (k - 1) - 1) // s + 1
                for size, p, d, k, s in zip(x.shape[2:], layer.padding, layer.dilation, layer.kernel_size, layer.stride)
            ]
            y = self.matrix @ columns.permute(1, 0, 2).reshape(columns.shape[1], -1)
            order = torch.contiguous_format if x.is_contiguous() else torch.channels_last  # as a convolution's
            y = y.view(-1, len(x), *sizes).transpose(0, 1).contiguous(memory_format=order)
        if layer.bias is not None:
            y = y + (layer.bias if isinstance(layer, nn.Linear) else layer.bias.view(-1, 1, 1))
        return self.finish(y, other)
