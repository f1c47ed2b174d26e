"""Eight bits per weight and activation, with exact zeros: ONNX files, and fine-tuning that knows of the rounding.

A weight w of output channel o is stored as the integer q = round(w / s_o), s_o = max |w_o| / 127, so that zeros stay
zeros: pruned weights survive. Batch norms that are folded into a convolution multiply all weights of a channel with one
number, which changes s_o and no q: what :class:`QuantizationAware` trains before batch norms is what the file computes
with. Activations are 0..255 between the smallest and largest values that calibration met.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..attaching import check_plain
from ..errors import UserError
from ..structures import PRUNABLE

LARGEST = 127
BATCH = 32


def quantized(onnx: Any, proto: Any, inputs: Sequence[Tensor]) -> Any:
    """An ONNX network with int8 weights and activations, calibrated at ``inputs``."""
    from onnxruntime import quantization

    names = [node.name for node in proto.graph.input]
    batches = iter([dict(zip(names, (x.numpy() for x in some))) for some in zip(*(x.split(BATCH) for x in inputs))])

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> Any:
            return next(batches, None)

    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "float32.onnx"
        before.write_bytes(proto.SerializeToString())
        quantization.quantize_static(
            before, out := Path(folder) / "int8.onnx", Reader(), quant_format=quantization.QuantFormat.QDQ,
            per_channel=True, weight_type=quantization.QuantType.QInt8, activation_type=quantization.QuantType.QUInt8,
            extra_options={"WeightSymmetric": True, "ActivationSymmetric": False},
        )  # fmt: skip
        found = onnx.load(out)
    _check_zeros(onnx, proto, found)
    return found


def _check_zeros(onnx: Any, before: Any, after: Any) -> None:
    """Refuse a file in which a pruned weight has come back."""
    stored = {tensor.name: tensor for tensor in after.graph.initializer}
    for tensor in before.graph.initializer:
        if (rounded := stored.get(f"{tensor.name}_quantized")) is not None:
            zero = onnx.numpy_helper.to_array(tensor) == 0
            if np.any(onnx.numpy_helper.to_array(rounded)[zero]):
                raise UserError(f"'{tensor.name}' would have fewer zeros as int8; not written")


class QuantizationAware:
    """Lets a pruned model compute as int8 would while it is fine-tuned.

    ::

        aware = gp.QuantizationAware(model)
        ...                                    # some epochs at a small learning rate, as usual
        model = aware.finalize()
        gp.export_onnx(model, x, "network.onnx", dtype="int8", calibration=images)

    Weights and inputs of all convolutions and Linears are rounded; gradients pass the rounding as if it were not there.
    In training mode the ranges of inputs follow what comes in. Zeros that were held stay held.
    """

    def __init__(self, model: nn.Module) -> None:
        check_plain(model, "quantizing")
        self.model = model
        self._layers = [m for m in model.modules() if isinstance(m, PRUNABLE) and "weight" in m._parameters]
        if not self._layers:
            raise UserError(f"model is a {type(model).__name__} without convolutions and Linears, which int8 is for")
        self._hooks = []
        for layer in self._layers:
            axis = 1 if isinstance(layer, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)) else 0
            parametrize.register_parametrization(layer, "weight", _Rounded(axis))
            self._hooks.append(layer.register_forward_pre_hook(_Range()))

    def finalize(self) -> nn.Module:
        """The plain model again, with weights trained to be rounded."""
        for layer, hook in zip(self._layers, self._hooks):
            hook.remove()
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
            for name in [name for name in layer._parameters if name != "weight"]:  # the weight first, as before
                layer._parameters[name] = layer._parameters.pop(name)
        self._layers = []
        return self.model


class _Rounded(nn.Module):
    """s_o round(w / s_o) per channel along ``axis``."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, weight: Tensor) -> Tensor:
        others = [dim for dim in range(weight.dim()) if dim != self.axis]
        scale = weight.detach().abs().amax(others) / LARGEST
        scale = scale.where(scale > 0, torch.ones_like(scale))
        none = torch.zeros(len(scale), dtype=torch.int32, device=weight.device)
        return torch.fake_quantize_per_channel_affine(weight, scale.float(), none, self.axis, -LARGEST, LARGEST)


class _Range:
    """The rounding of a layer's input to 256 steps, 0 among them, between ends that follow the batches in training."""

    ends: Tensor | None = None

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *rest = inputs
        if layer.training or self.ends is None:
            low, high = x.detach().aminmax()
            now = torch.stack([low.clamp(max=0), high.clamp(min=0)]).float()
            self.ends = now if self.ends is None else self.ends.lerp(now, 0.1)
        low, high = self.ends
        scale = ((high - low) / 255).clamp(min=torch.finfo(torch.float32).tiny)
        zero = (-low / scale).round().clamp(0, 255).to(torch.int32)
        return (torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255), *rest)
