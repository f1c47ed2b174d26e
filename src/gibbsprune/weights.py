"""The weights of a network that can be pruned: where each is, and how its layer lays it out.

==================================  ==============================================================================
convolutions, Linear, Bilinear      ``weight``: a filter is an output channel, as in the paper
``Conv1D`` of transformers          ``weight``, stored (inputs, outputs): a filter is an output
``MultiheadAttention``              ``in_proj_weight``, or those of q, k and v: a filter is a row
LSTM, GRU, RNN and their cells      each matrix of each layer and direction: a filter is a hidden unit, the rows of all
                                    its gates; a kernel is one of these rows
stacked experts                     parameters (experts, outputs, inputs): a filter is an output of an expert
==================================  ==============================================================================

Embeddings, whose filters are the dimensions of the vectors, and all other parameters are pruned where they are named.
The paper leaves recurrent layers to future work; this is our rule for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from .distributed import whole
from .errors import UserError
from .structures import NM, PRUNABLE, Block, Column, Structure, as_structure

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def check_module(model: Any) -> None:
    """Refuses what is no network."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model is a {type(model).__name__}: allowed are torch.nn.Module")


@dataclass(frozen=True, eq=False)
class Layer:
    """One weight of a module.

    Args:
        owner: the module's name in the network.
        module: it.
        parameter: the weight's name in the module.
        view: the shape in which it is cut into neighbourhoods, None for its own.
        transposed: whether inputs come before outputs in that shape.
        groups: of inputs, each with outputs of its own.
        own: the structure that was asked for this weight, None for that of the others.
        tied: the name of the layer whose filters it prunes as its own, as a depthwise convolution does.
        normed: whether nothing but norms reads its outputs, to which the size of the weight makes no difference.
    """

    owner: str
    module: nn.Module
    parameter: str = "weight"
    view: tuple[int, ...] | None = None
    transposed: bool = False
    groups: int = 1
    own: Structure | None = None
    tied: str = ""
    normed: bool = False

    @property
    def name(self) -> str:
        """The module's, where the module is a single layer, else the parameter's."""
        single = isinstance(self.module, (*PRUNABLE, nn.Bilinear, nn.Embedding)) or is_conv1d(self.module)
        return self.owner if single and self.parameter == "weight" else path(self.owner, self.parameter)

    @property
    def weight(self) -> Tensor:
        """The weight in use, masked where there is a mask."""
        return getattr(self.module, self.parameter)

    @property
    def stored(self) -> nn.Parameter:
        """The parameter that is trained, under a mask or not."""
        if parametrize.is_parametrized(self.module, self.parameter):
            return self.module.parametrizations[self.parameter].original  # type: ignore[index,union-attr]
        return self.module._parameters[self.parameter]  # type: ignore[return-value]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.stored.shape)

    @property
    def kind(self) -> str:
        return type(self.module).__name__.removeprefix("Parametrized")

    def structure(self, structure: str | Structure) -> Structure:
        """How this weight is cut, where others are by ``structure``."""
        kind = as_structure(self.own or structure)
        return replace(kind, transposed=self.transposed, groups=self.groups)

    def suited(self, structure: str | Structure) -> Layer:
        """The same layer; a recurrent one by the rows of its matrices, where inputs are cut and not hidden units."""
        by_rows = isinstance(as_structure(self.own or structure), (Column, Block, NM))
        return replace(self, view=None, transposed=False) if by_rows and isinstance(self.module, RECURRENT) else self

    def rows(self, structure: str | Structure) -> Tensor:
        """The neighbourhoods of the stored weight, one per row."""
        return self.structure(structure).rows(whole(self.stored).reshape(self.view or self.shape))


def untied(layers: Mapping[str, Layer]) -> dict[str, Layer]:
    """The layers, each of them pruned by itself."""
    return {name: replace(layer, tied="", view=None) if layer.tied else layer for name, layer in layers.items()}


def path(owner: str, parameter: str) -> str:
    return f"{owner}.{parameter}" if owner else parameter


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is a dense layer of transformers with its weight as (inputs, outputs)."""
    return any(
        cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils" for cls in type(module).mro()
    )


def prunable(model: nn.Module) -> dict[str, Layer]:
    """The weights that are pruned unless somebody says otherwise, by name."""
    found = (layer for owner, module in model.named_modules() for layer in _of(owner, module))
    return {layer.name: layer for layer in found}


def on_request(model: nn.Module) -> dict[str, Layer]:
    """All other weights, by name: embeddings, and parameters that only their owner knows."""
    known = {(id(layer.module), layer.parameter) for layer in prunable(model).values()}
    found = {}
    for owner, module in model.named_modules():
        if isinstance(module, parametrize.ParametrizationList):
            continue
        for name, parameter in module._parameters.items():
            if parameter is None or (id(module), name) in known:
                continue
            layer = Layer(owner, module, name, transposed=isinstance(module, nn.Embedding) and name == "weight")
            found[layer.name] = layer
    return found


def layer_named(model: nn.Module, name: str) -> Layer:
    """The layer of that name, also where its module is of another kind by now; of its layout nothing is known."""
    owner, _, parameter = name.rpartition(".")
    module = model.get_submodule(owner)
    if parameter in getattr(module, "_modules", {}) or not name:
        return Layer(name, model.get_submodule(name))
    return Layer(owner, module, parameter)


def _of(owner: str, module: nn.Module) -> Iterator[Layer]:
    if isinstance(module, PRUNABLE):
        transposed = bool(getattr(module, "transposed", False))
        yield Layer(owner, module, transposed=transposed, groups=int(getattr(module, "groups", 1)))
    elif isinstance(module, nn.Bilinear):
        yield Layer(owner, module)
    elif is_conv1d(module):
        yield Layer(owner, module, transposed=True)
    elif isinstance(module, nn.MultiheadAttention):
        yield from (Layer(owner, module, name) for name in ATTENTION if parameter_of(module, name) is not None)
    elif isinstance(module, RECURRENT):
        for name in _names(module):
            weight = parameter_of(module, name)
            if weight is None or not re.match("weight_(ih|hh|hr)", name):
                continue
            hidden = int(module.hidden_size)
            view = None if "_hr_" in name else (len(weight) // hidden, hidden, weight.shape[1])
            yield Layer(owner, module, name, view, transposed=view is not None)
    else:
        stacked = getattr(module, "num_experts", None)
        for name in _names(module) if isinstance(stacked, int) else []:
            weight = parameter_of(module, name)
            if weight is not None and weight.dim() == 3 and len(weight) == stacked:
                # seen as one layer in groups, the experts one below the other
                flipped = bool(getattr(module, "is_transposed", False))
                yield Layer(owner, module, name, (stacked * weight.shape[1], weight.shape[2]), flipped, stacked)


def _names(module: nn.Module) -> list[str]:
    return [*module._parameters, *getattr(module, "parametrizations", ())]


def parameter_of(module: nn.Module, name: str) -> torch.Tensor | None:
    """The stored parameter of a module that may be masked; None where several make it up, as with a weight norm."""
    if parametrize.is_parametrized(module, name):
        return getattr(module.parametrizations[name], "original", None)  # type: ignore[index]
    return module._parameters.get(name)


#: The functions that use a weight, by which argument.
USES = {
    **{getattr(F, f"conv{kind}{n}d"): 1 for kind in ("", "_transpose") for n in (1, 2, 3)},
    **{F.linear: 1, torch.addmm: 2, torch.matmul: 1, Tensor.matmul: 1, torch.bilinear: 2, F.bilinear: 2},
}


class _Using(TorchFunctionMode):
    """The weights that layers use, as they use them."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        where = USES.get(func)
        if where is not None:
            self.used.append(args[where] if len(args) > where else (kwargs or {}).get("weight"))
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def transforms(layer: Layer) -> bool:
    """Whether a convolution or Linear of the user's own class computes what it uses from its weight, as weight
    standardisation does: zeros of the weight are then none of what is used. Its code is run once to see."""
    module: Any = layer.module
    plain = next((kind for kind in PRUNABLE if isinstance(module, kind)), None)
    if plain is None or (type(module).forward is plain.forward and _own(type(module), plain, "_conv_forward")):
        return False
    weight, kernel = layer.stored, getattr(module, "kernel_size", ())
    spread = [1 + (k - 1) * d for k, d in zip(kernel, getattr(module, "dilation", ()))]
    inputs = getattr(module, "in_channels", None) or module.in_features
    shape = (1, inputs, *spread) if kernel else (1, inputs)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    using = _Using()
    try:
        with using, torch.random.fork_rng(devices=[]):
            module.forward(torch.zeros(shape, dtype=weight.dtype, device=weight.device))
    except Exception:  # a forward with other arguments, which nobody here can know
        return False
    finally:
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return bool(using.used) and not any(used is module.weight for used in using.used)


def _own(cls: type, plain: type, name: str) -> bool:
    return getattr(cls, name, None) is getattr(plain, name, None)
