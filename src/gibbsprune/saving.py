"""Saved states: a pruner's, checked as a whole before anything is changed, and a masked model's for a plain one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checks import check_sparsity, check_whole, one_line, shown
from .errors import UserError
from .text import first_line
from .weights import path

#: What a masked weight is called in the state of its model: its module, and its own name. Its mask is beside it.
STORED = re.compile(r"(?:(.*)\.)?parametrizations\.([^.]+)\.original")
VERSION = 1
NEEDED = ("seed", "epoch", "steps", "generators", "masks")


def pack(mask: Tensor) -> Tensor:
    """A mask as one bit per weight."""
    return torch.from_numpy(np.packbits(mask.flatten().cpu().numpy()))


def unpack(bits: Tensor, shape: torch.Size) -> Tensor:
    flat = np.unpackbits(bits.cpu().numpy(), count=shape.numel())
    return torch.from_numpy(flat).bool().reshape(shape)


@dataclass(frozen=True)
class Saved:
    """What :meth:`gibbsprune.GibbsPruner.state_dict` holds, for the devices and layers of this pruner."""

    seed: int
    epoch: float
    steps: int
    masks: dict[str, Tensor]
    generators: dict[torch.device, Tensor]
    before: dict[torch.device, Tensor]
    sparsities: dict[str, float]

    def state(self) -> dict[str, Any]:
        """What :func:`read_state` reads; safe for ``weights_only=True``."""
        return {
            "version": VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "steps": self.steps,
            "generators": {str(device): state for device, state in self.generators.items()},
            "before": {str(device): state for device, state in self.before.items()},
            "masks": {name: pack(mask) for name, mask in self.masks.items()},
            "sparsities": dict(self.sparsities),
        }


def read_state(state: Any, masks: Mapping[str, Tensor], devices: Iterable[torch.device]) -> Saved:
    """The state of a pruner of these masks; ``epoch`` is as it was saved."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if not isinstance(version, int) or version != VERSION:
        raise UserError(f"the saved pruner's state has version {shown(version)}: allowed is {VERSION}")
    if lacking := [key for key in NEEDED if key not in state]:
        raise UserError(f"the saved pruner's state lacks {', '.join(lacking)}")
    devices = list(devices)
    if devices and state["generators"] == {}:
        raise UserError("the saved pruner's state lacks its random stream")
    return Saved(
        check_whole("the saved pruner's seed", state["seed"], None),
        state["epoch"],
        check_whole("the saved pruner's steps", state["steps"], 0),
        _masks(state["masks"], masks),
        _streams(state["generators"], devices),
        _streams(state.get("before", {}), devices),
        _sparsities(state.get("sparsities", {}), masks),
    )


def _sparsities(saved: Any, masks: Mapping[str, Tensor]) -> dict[str, float]:
    """Of every layer, or of none where they are as in the end."""
    if not isinstance(saved, Mapping) or (saved and set(saved) != set(masks)):
        raise UserError("the saved pruner has sparsities of other layers than this one")
    return {name: check_sparsity(value) for name, value in saved.items()}


def _masks(saved: Any, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    given = set(saved) if isinstance(saved, Mapping) else set()
    if given != set(masks):
        other = one_line(", ".join(sorted(map(str, given ^ set(masks)))), 200)
        raise UserError(f"the saved pruner has other layers than this one: {other}")
    for name, mask in masks.items():
        bits = saved[name]
        if not isinstance(bits, Tensor) or bits.dtype != torch.uint8 or bits.dim() != 1:
            raise UserError(f"the saved mask of layer {name!r} is none")
        if bits.numel() != (mask.numel() + 7) // 8:
            raise UserError(f"the saved mask of layer {name!r} has another size than the layer")
    return {name: unpack(saved[name], mask.shape) for name, mask in masks.items()}


def _streams(saved: Any, devices: Iterable[torch.device]) -> dict[torch.device, Tensor]:
    """The saved stream of each device; where the model was on one other device of its kind, as on rank 0, of that."""
    found = {}
    try:
        streams = {torch.device(name): state for name, state in saved.items()}
        for device in devices:
            alike = [state for other, state in streams.items() if other.type == device.type]
            stream = streams.get(device, alike[0] if len(alike) == 1 else None)
            if stream is not None:
                found[device] = stream.cpu()
                torch.Generator(device).set_state(found[device])
    except (AttributeError, TypeError, RuntimeError) as error:
        raise UserError(f"the saved pruner's random stream is damaged: {first_line(error)}") from None
    return found


def plain_state(state: Mapping[str, Any], masked: bool = True) -> dict[str, Any]:
    """The state of a masked model, as a checkpoint of its training has it, for a model without masks.

    ::

        state = torch.load("epoch=7.ckpt", weights_only=True)["state_dict"]
        model.load_state_dict(gp.plain_state(state))

    Each weight is multiplied by the mask that was saved with it: the last one drawn, which is that of ``finalize`` once
    the masks have frozen. ``masked=False`` gives the weights under the masks. A state without masks is left as it is.
    Shrunk survivors come with their whole value: a state does not say what they lose. For those, and for the converged
    masks of a training that is not over, load the state and the pruner's own under a pruner with the same arguments,
    and finalize that.
    """
    if not isinstance(state, Mapping):
        raise UserError(f"state is a {type(state).__name__}: allowed are state_dicts")
    plain, masks = dict[str, Any](), set[str]()
    for name, value in state.items():
        if found := STORED.fullmatch(name):
            owner, parameter = found.groups("")
            masks.add(beside := name.removesuffix("original") + "0.mask")
            masks.add(name.removesuffix("original") + "0.sparsity")
            mask = state.get(beside)
            if mask is None and parameter != "weight":  # another parametrisation
                plain[name] = value
                continue
            if not isinstance(mask, Tensor) or mask.shape != value.shape:
                layer = owner if parameter == "weight" else path(owner, parameter)
                raise UserError(f"the state has no mask of layer {layer!r}: it is of another parametrisation")
            plain[path(owner, parameter)] = value * mask if masked else value
        else:
            plain[name] = value
    return {name: value for name, value in plain.items() if name not in masks}
