"""A run's network, from its spec."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from ..data.arrays import Arrays
from ..errors import UserError
from ..models import build
from ..samplers import stream
from ..text import told
from .spec import RunSpec


def new_model(spec: RunSpec, arrays: Arrays) -> nn.Module:
    """A run's network, initialised from its seed, with the recipe's batch norm."""
    weights = "new weights" if spec.method == "reinit" else "weights"
    model = build(spec.model, arrays.classes, arrays.channels, stream(spec.seed, weights))
    if lazy := [name for name, p in model.named_parameters() if isinstance(p, UninitializedParameter)]:
        raise UserError(f"{spec.model}: {lazy[0]} has no size yet; give its layer all its sizes instead of a lazy one")
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.momentum, module.eps = spec.recipe.bn_momentum, spec.recipe.bn_eps
    return model


@torch.no_grad()
def check_network(spec: RunSpec, arrays: Arrays) -> None:
    """Refuses a user's function whose network does not answer images of this data with a number per class, that has a
    state which cannot be saved, or that gives the same network out twice: runs, and the copies that are written at the
    end, would share its weights."""
    model, other = new_model(spec, arrays), new_model(spec, arrays)
    if {id(p) for p in model.parameters()} & {id(p) for p in other.parameters()}:
        raise UserError(f"{spec.model} returned the same weights twice; it must make a new network at every call")
    shape, wanted = (arrays.channels, *arrays.size), f"a tensor of {arrays.classes} numbers per image"
    for training in (True, False):
        with torch.random.fork_rng(devices=[]):
            try:
                answer = model.train(training)(torch.zeros(2, *shape))
            except Exception as error:
                raise UserError(f"{spec.model} fails on images of shape {shape}: {told(error)}") from error
        if not isinstance(answer, Tensor):
            raise UserError(f"{spec.model} answers with a {type(answer).__name__}; it must be {wanted}")
        if answer.shape != (2, arrays.classes) or not answer.is_floating_point():
            found = f"{str(answer.dtype).removeprefix('torch.')} of shape {tuple(answer.shape)}"
            raise UserError(f"{spec.model} answers two images with {found}; it must be {wanted}")
    before, after = other.state_dict(), model.state_dict()
    if strange := [name for name, value in before.items() if not isinstance(value, Tensor)]:
        raise UserError(f"{spec.model} keeps {strange[0]}, which is no tensor; a run can save tensors only")
    if new := sorted(before.keys() ^ after.keys()):
        raise UserError(f"{spec.model} has {new[0]} only before or after its first use; it must have it always")


@torch.no_grad()
def takes_channels_last(model: nn.Module, channels: int, size: tuple[int, int]) -> bool:
    """Whether a network runs on images in channels-last memory: ``view`` in its own code may not."""
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng(devices=[]):
        try:
            model.eval()(torch.zeros(2, *size, channels).permute(0, 3, 1, 2))
        except RuntimeError:
            return False
        finally:
            for module, training in modes:
                module.training = training
    return True
