"""Masked recurrent layers: torch's LSTM, GRU and RNN compute from a list of parameters that they keep beside them.

While such a layer is masked, its list is made of the masked weights whenever it is read, on a GPU in the one stretch of
memory that cuDNN works from. When the masks are gone, so is everything of this file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def follow_masks(layer: nn.RNNBase) -> None:
    """Lets a layer, whose class is its own since it was parametrised, compute from what its weights are now."""
    layer.__dict__.pop("_flat_weights", None)
    for name in ("_flat_weights", "_init_flat_weights", "_update_flat_weights", "flatten_parameters"):
        setattr(type(layer), name, vars(_Recurrent)[name])


class _Recurrent:
    """What a masked recurrent layer has instead of torch's list of parameters, which knows of no mask."""

    @property
    def _flat_weights(self: Any) -> list[Any]:
        weights: list[Any] = [getattr(self, name, None) for name in self._flat_weights_names]
        return _packed(self, weights) if all(_for_cudnn(weight) for weight in weights) else weights

    @_flat_weights.setter
    def _flat_weights(self, weights: list[Tensor]) -> None:
        """Replicas and torch's own loading set it; it follows the masked weights all the same."""

    def _init_flat_weights(self) -> None:
        """There is nothing to bring up to date: the list is made when it is read."""

    _update_flat_weights = flatten_parameters = _init_flat_weights


def _for_cudnn(weight: Tensor | None) -> bool:
    return weight is not None and weight.is_cuda and torch.backends.cudnn.is_acceptable(weight)


def _packed(layer: Any, weights: list[Tensor]) -> list[Tensor]:
    """The weights in one stretch of memory, as cuDNN wants them."""
    if not torch._use_cudnn_rnn_flatten_weight() or len({weight.dtype for weight in weights}) > 1:
        return weights
    return list(_Packed.apply(layer, *weights))


class _Packed(torch.autograd.Function):
    """Tensors copied into the places that cuDNN gives them; gradients go back as they come."""

    @staticmethod
    def forward(ctx: Any, layer: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        from torch.backends.cudnn.rnn import get_cudnn_mode

        copies = [weight.clone() for weight in weights]
        torch._cudnn_rnn_flatten_weight(
            copies,
            (4 if layer.bias else 2) + (layer.proj_size > 0),
            layer.input_size,
            get_cudnn_mode(layer.mode),
            layer.hidden_size,
            layer.proj_size,
            layer.num_layers,
            layer.batch_first,
            bool(layer.bidirectional),
        )
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *gradients
