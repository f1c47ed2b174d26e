"""A pruned model of transformers as a smaller model of the same class, whose configuration says how small.

A configuration has one number for the width of all feed-forward layers, and none for anything else that pruning makes
uneven: heads, streams and single layers keep their sizes. So units of feed-forward layers leave that have no influence,
as many as in the layer that has most of them left. A unit has none if nobody reads it, or if it always has the same
value, which then goes into the bias of the layer that reads it.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from ..attaching import check_plain
from ..errors import UserError
from ..looking import arguments, plain_eval
from .compaction import TOLERANCE, CompactReport
from .equality import difference, difference_in_double

#: What configurations call the width of feed-forward layers, and their activation.
WIDTHS = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "hidden_dim", "n_inner")
ACTIVATIONS = ("hidden_act", "activation_function", "activation", "hidden_activation", "dense_act_fn")


@torch.no_grad()
def compact_pretrained(model: nn.Module, example_inputs: Any) -> nn.Module:
    """A smaller model of the same class and the same function, for ``save_pretrained`` and ``push_to_hub``.

    Args:
        model: a finalized model of transformers, pruned with ``structure="filter"``.
        example_inputs: its inputs, as for :func:`compact`.

    Returns:
        A new model in eval mode with a :class:`CompactReport` as its ``report``. :func:`compact` makes models smaller
        than a configuration can say, which :func:`save_compact` stores.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "save_pretrained"):
        raise UserError(f"model is a {type(model).__name__}: allowed are models of transformers")
    check_plain(model, "compacting")
    args, kwargs = arguments(example_inputs)
    before = sum(p.numel() for p in model.parameters())
    small = model
    for key in WIDTHS:
        small = _narrowed(small, key)
    small = copy.deepcopy(small).eval() if small is model else small
    with plain_eval(model):
        expected = model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        with plain_eval(small):
            found = difference(dict(expected), dict(small(*copy.deepcopy(args), **copy.deepcopy(kwargs))))
    if not found <= TOLERANCE:
        found = difference_in_double(model, small, args, kwargs)
    if not found <= TOLERANCE:
        raise UserError(f"the smaller {type(model).__name__} would differ by {found:.1e} of the output's scale")
    small.report = CompactReport(before, sum(p.numel() for p in small.parameters()), found)  # type: ignore[assignment]
    return small


def _narrowed(model: Any, key: str) -> Any:
    """The model with the smallest width of that name that all its feed-forward layers can have."""
    width = getattr(model.config, key, None)
    if key == "n_inner" and width is None:  # GPT-2's default
        width = 4 * getattr(model.config, "n_embd", 0)
    if not isinstance(width, int) or not width:
        return model
    with torch.device("meta"):
        probe = _made(model, key, width + 1)
    shapes = {name: tensor.shape for name, tensor in probe.state_dict().items()}
    state = dict(model.state_dict())
    layers: dict[str, dict[str, int]] = defaultdict(dict)  # of each feed-forward layer, which axis of what is its width
    for name, tensor in state.items():
        axes = [i for i, (a, b) in enumerate(zip(tensor.shape, shapes[name])) if a != b]
        if len(axes) > 1 or any(tensor.shape[axis] != width for axis in axes):  # such as experts, stacked
            return model
        if axes:
            layers[_layer(name)][name] = axes[0]
    units = [_Units(model, state, axes, width) for axes in layers.values()]
    live = max((int(one.live.sum()) for one in units), default=width)
    if not 0 < live < width:
        return model
    for one in units:
        one.keep(live)
    small = _made(model, key, live)
    small.load_state_dict(state)
    like = next(model.parameters())
    return small.to(like.device, like.dtype).eval()


def _made(model: Any, key: str, width: int) -> Any:
    config = copy.deepcopy(model.config)
    setattr(config, key, width)
    return type(model)(config)


def _layer(name: str) -> str:
    """Names up to the last number belong to one feed-forward layer: ``encoder.layer.3``."""
    found = re.match(r"(.*\.\d+)\.", name)
    return found[1] if found else ""


class _Units:
    """The hidden units of one feed-forward layer: which have an influence, and what the others always are."""

    def __init__(self, model: nn.Module, state: dict[str, Tensor], axes: dict[str, int], width: int) -> None:
        self.state, self.axes = state, axes
        self.live = torch.ones(width, dtype=torch.bool)
        self.readers = [name for name in axes if _reads(model, name, axes[name])]
        writers = [name for name in axes if name not in self.readers and state[name].dim() > 1]
        read = [self._rows(name).any(1).cpu() for name in self.readers]
        if read:
            self.live &= torch.stack(read).any(0)
        self.constant: Tensor | None = None
        for name in writers:
            bias = name.removesuffix("weight") + "bias"
            still = ~self._rows(name).any(1).cpu()
            if bias not in axes:
                self.live &= ~still  # an activation of 0, or a factor of 0
            elif len(writers) == 1 and (act := _activation(model)) is not None:
                self.constant = act(state[bias]) * still.to(state[bias])
                self.live &= ~still
            else:
                self.live &= ~(still & (state[bias] == 0).cpu())

    def _rows(self, name: str) -> Tensor:
        """A tensor as one row per unit."""
        return self.state[name].movedim(self.axes[name], 0).flatten(1) != 0

    def keep(self, count: int) -> None:
        """Cut the state to the units that live and as many others as make up the count."""
        others = (~self.live).nonzero()[:, 0][: count - int(self.live.sum())]
        kept = torch.cat([self.live.nonzero()[:, 0], others]).sort().values
        gone = torch.ones_like(self.live)
        gone[kept] = False
        for name in self.readers:
            bias = name.removesuffix("weight") + "bias"
            if self.constant is not None and bool((self.constant[gone] != 0).any()):
                weight = self.state[name].movedim(self.axes[name], -1)
                if bias not in self.state:
                    raise UserError(f"'{name}' has no bias, which constant units before it would need")
                self.state[bias] = self.state[bias] + weight @ (self.constant * gone.to(self.constant))
        for name, axis in self.axes.items():
            self.state[name] = self.state[name].index_select(axis, kept.to(self.state[name].device))


def _reads(model: nn.Module, name: str, axis: int) -> bool:
    """Whether a tensor's axis is that of a layer's inputs; the ``Conv1D`` of transformers has them first."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return name.endswith("weight") and axis == (0 if type(owner).__name__ == "Conv1D" else 1)


def _activation(model: Any) -> Any:
    from transformers.activations import ACT2FN

    named = next((n for key in ACTIVATIONS if isinstance(n := getattr(model.config, key, None), str)), None)
    if named not in ACT2FN:
        return None
    return ACT2FN[named]  # get() would give its class
