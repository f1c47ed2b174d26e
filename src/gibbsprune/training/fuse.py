"""K networks of one architecture as a single network: replicas are channel groups.

An image batch of run k occupies channels k·C … (k + 1)·C of a (B, K·C, H, W) tensor. Convolutions become grouped ones,
batch norm works per channel as it is, dense layers are batched over the runs. Every parameter and buffer of the fused
network is the runs' own, concatenated along the first dimension, so run k's share is ``tensor.chunk(K)[k]``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

#: Layers without parameters or randomness that treat every channel alike.
PLAIN = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Tanh, nn.Identity, nn.Flatten,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
)  # fmt: skip


class FusedLinear(nn.Module):
    """K dense layers side by side: (…, K·inputs) → (…, K·outputs)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.runs = self.groups = len(layers)
        self.in_features = self.runs * layers[0].in_features
        self.weight = _joined([layer.weight for layer in layers])
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = _joined(biases) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        per_run = x.unflatten(-1, (self.runs, -1)).flatten(0, -3).transpose(0, 1)  # (K, B, inputs)
        out = torch.bmm(per_run, self.weight.unflatten(0, (self.runs, -1)).transpose(1, 2))
        out = out.transpose(0, 1).reshape(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


class FusedConv2d(nn.Conv2d):
    """K convolutions side by side, as one grouped convolution or, where cuDNN is slow at that, as matrix products.

    cuDNN has grouped kernels for stride 1 and as many outputs as inputs per group, and of few channels faster ones are
    in :mod:`.conv_rows_triton`. Other convolutions cuDNN runs group by group. They have kernels of their own
    (:mod:`.conv_triton`) or, where these do not do, are written out.
    """

    runs: int
    triton: bool  # whether there are Triton and a GPU that it suits

    def forward(self, x: Tensor) -> Tensor:
        square = self.in_channels == self.out_channels and self.stride == (1, 1)
        per_run = self.groups // self.runs
        if per_run > 1 or self.padding_mode != "zeros" or isinstance(self.padding, str):
            return super().forward(x)
        out = self._in_triton(x, square)
        if out is None:
            if square:
                return super().forward(x)
            out = self._written_out(x, self.padding)
        return out if self.bias is None else out + self.bias[:, None, None]

    def _in_triton(self, x: Tensor, square: bool) -> Tensor | None:
        """The convolution without its bias, or None where there is no kernel for it."""
        if not self.triton or not x.is_cuda or x.dtype not in (torch.bfloat16, torch.float16):
            return None
        from . import conv_rows_triton, conv_triton

        (side, other), inputs = self.kernel_size, self.in_channels // self.runs
        centred = side == other and self.padding == (side // 2, side // 2) and self.dilation == (1, 1)
        if not centred or self.stride[0] != self.stride[1]:
            return None
        if square:
            suits = side == 3 and conv_rows_triton.suits(inputs)
            return conv_rows_triton.convolve(x, self.weight, self.runs) if suits else None
        if inputs < 16 and x.requires_grad:
            return None
        suits = conv_triton.suits(inputs, self.out_channels // self.runs, side, self.stride[0])
        return conv_triton.convolve(x, self.weight, self.runs, self.stride[0]) if suits else None

    def _written_out(self, x: Tensor, padding: tuple[int, ...]) -> Tensor:
        """The taps of the kernel are strided slices of the padded input, stacked beside the channels, and one batched
        product over the runs does the rest."""
        (pad_h, pad_w), weight = padding, self.weight
        x = F.pad(x, (pad_w, pad_w, pad_h, pad_h)).permute(0, 2, 3, 1).unflatten(3, (self.runs, -1))
        taps = torch.cat(list(self._taps(x)), 4)  # (B, H, W, K, taps · inputs)
        factor = weight.permute(0, 2, 3, 1).flatten(1)  # (K · outputs, taps · inputs)
        if spare := -taps.shape[4] % 8:  # tensor cores want rows of a multiple of 16 bytes
            taps, factor = F.pad(taps, (0, spare)), F.pad(factor, (0, spare))
        batch, height, width = taps.shape[:3]
        columns = taps.reshape(-1, self.runs, taps.shape[4]).transpose(0, 1)
        out = torch.bmm(columns, factor.unflatten(0, (self.runs, -1)).transpose(1, 2))  # (K, B · H · W, outputs)
        return out.transpose(0, 1).reshape(batch, height, width, -1).permute(0, 3, 1, 2)

    def _taps(self, x: Tensor) -> Iterator[Tensor]:
        """The padded input (B, H, W, …) as each tap of the kernel sees it."""
        spans = []
        for size, kernel, dilation, stride in zip(x.shape[1:3], self.kernel_size, self.dilation, self.stride):
            reach = dilation * (kernel - 1)
            spans.append([slice(k * dilation, size - reach + k * dilation, stride) for k in range(kernel)])
        for rows in spans[0]:
            for columns in spans[1]:
                yield x[:, rows, columns]


class CannotFuse(Exception):
    """Says which part of a network keeps its replicas from being fused."""


def fuse(models: Sequence[nn.Module]) -> nn.Module:
    """The fused network of ``models``; a single model is returned as it is. Raises :class:`CannotFuse`."""
    if len(models) == 1:
        return models[0]
    names = [name for name, _ in models[0].named_parameters(remove_duplicate=False)]
    if tied := sorted(set(names) - {name for name, _ in models[0].named_parameters()}):
        raise CannotFuse(f"{tied[0]} is shared with another layer")
    fused = _fuse_module("", models)
    _check_coverage(fused, len(models))
    return fused


def _fuse_module(name: str, models: Sequence[nn.Module]) -> nn.Module:
    first = models[0]
    if isinstance(first, (nn.Linear, _ConvNd, _BatchNorm, nn.GroupNorm)):
        _check_layer(name, first)
    if isinstance(first, nn.Linear):
        return FusedLinear([m for m in models if isinstance(m, nn.Linear)])
    if isinstance(first, (_ConvNd, _BatchNorm, nn.GroupNorm)):
        return _widen(models)
    if isinstance(first, PLAIN):
        return first
    children = dict(first.named_children())
    own = [*first.named_parameters(recurse=False), *first.named_buffers(recurse=False)]
    container = isinstance(first, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
    if own or (not children and not container and type(first).__module__.startswith("torch.nn")):
        raise CannotFuse(f"{name or 'the network'} is a {type(first).__name__}")
    fused = copy.copy(first)
    fused._modules = dict(first._modules)
    for child in children:
        parts = [m.get_submodule(child) for m in models]
        fused._modules[child] = _fuse_module(f"{name}.{child}".lstrip("."), parts)
    return fused


def _check_layer(name: str, layer: nn.Module) -> None:
    """Refuses a layer whose weight is not simply its own: parametrised, normalised, not yet there."""
    names = [key for key, _ in layer.named_parameters()]
    if set(names) - {"weight", "bias"} or any(isinstance(p, UninitializedParameter) for p in layer.parameters()):
        raise CannotFuse(f"{name or 'the network'} has the parameters {', '.join(names)}, not a plain weight and bias")


def _joined(parameters: Sequence[Tensor]) -> nn.Parameter:
    """The runs' parameters one after another; what is frozen stays so."""
    return nn.Parameter(torch.cat([p.detach() for p in parameters]), requires_grad=parameters[0].requires_grad)


def _widen(models: Sequence[nn.Module]) -> nn.Module:
    """The same layer K times as wide, with the runs' parameters one after another."""
    runs, wide = len(models), copy.deepcopy(models[0])
    if type(wide) is nn.Conv2d:
        wide.__class__ = FusedConv2d
        wide.runs, wide.triton = runs, _modern_gpu()  # type: ignore[assignment]
    for attribute in ("in_channels", "out_channels", "groups", "num_features", "num_groups", "num_channels"):
        if hasattr(wide, attribute):
            setattr(wide, attribute, getattr(wide, attribute) * runs)
    for key, _ in list(wide.named_parameters()):
        setattr(wide, key, _joined([m.get_parameter(key) for m in models]))
    for key, buffer in list(wide.named_buffers()):
        if buffer.dim():
            wide.register_buffer(key, torch.cat([m.get_buffer(key) for m in models]))
    return wide


def _modern_gpu() -> bool:
    """Looked at once: a compiled network cannot ask."""
    found = find_spec("triton") is not None and torch.cuda.is_available()
    return found and torch.cuda.get_device_capability() >= (8, 0)


def _check_coverage(fused: nn.Module, runs: int) -> None:
    for name, tensor in [*fused.named_parameters(), *fused.named_buffers()]:
        if tensor.dim() and tensor.shape[0] % runs:
            raise CannotFuse(f"{name} of shape {tuple(tensor.shape)} cannot be shared out among {runs} runs")


def share(tensor: Tensor, run: int, runs: int) -> Tensor:
    """Run k's part of a fused parameter or buffer, as a view; scalars are common to all."""
    if not tensor.dim() or runs == 1:
        return tensor
    size = len(tensor) // runs
    return tensor.narrow(0, run * size, size)


@torch.no_grad()
def same_function(models: Sequence[nn.Module], example: Tensor) -> bool:
    """Whether the fused network computes what the separate ones do, in training and in evaluation.

    Layers alone do not tell: a network may reshape or concatenate channels in its own code. So it is run, with noise
    on its parameters, since one whose last layer starts from zeros computes zeros however its channels are mixed.
    """
    generator = torch.Generator().manual_seed(0)
    models = [_shaken(m, generator) for m in models]
    x = torch.randn(len(models), *example.shape, generator=generator)
    for training in (True, False):
        parts = [copy.deepcopy(m).train(training) for m in models]
        fused = fuse([copy.deepcopy(m) for m in models]).train(training)
        with torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            apart = torch.stack([m(part) for m, part in zip(parts, x)], 1)
            if not torch.equal(before, torch.get_rng_state()):
                return False  # it draws random numbers, which runs must not share
        try:
            together = fused(x.transpose(0, 1).flatten(1, 2)).unflatten(1, (len(models), -1))
        except Exception:  # the network's own code may do anything with a number of channels it does not expect
            return False
        if together.shape != apart.shape or not torch.allclose(together, apart, rtol=1e-3, atol=1e-4):
            return False
    return True


def _shaken(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy in float32 with some noise on every parameter, small beside usual initial values."""
    model = copy.deepcopy(model).float()
    for parameter in model.parameters():
        if parameter.is_floating_point() and not isinstance(parameter, UninitializedParameter):
            fan_in = parameter.numel() / parameter.shape[0] if parameter.dim() else 1.0
            parameter.add_(0.1 / fan_in**0.5 * torch.randn(parameter.shape, generator=generator))
    return model
