"""Several processes: every rank draws the same masks for itself, and the ranks compare them now and then.

The masks depend on the weights, β and one seeded random stream. All three are the same on every rank, so the masks are
too and nobody has to send them. What this file adds is

* for sharded weights (``fully_shard``): the whole weight to draw a mask from, and a mask cut like its weight;
* for ``DistributedDataParallel``: masks are left out of its broadcast of buffers;
* a digest of masks and random streams that costs one small all-reduce, so that a rank gone astray is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .errors import UserError

# -- sharded weights -------------------------------------------------------------------------------------------------


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which this rank holds a part."""
    return hasattr(tensor, "full_tensor")


def whole(weight: Tensor) -> Tensor:
    """The whole weight: itself, or gathered from its shards, which all ranks must ask for together."""
    return weight.detach().full_tensor() if is_sharded(weight) else weight.detach()  # type: ignore[attr-defined]


class Whole(Sequence[Tensor]):
    """Weights that are gathered when they are looked at, so that not all of them are whole at the same time."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self.weights = list(weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: Any) -> Any:
        return whole(self.weights[index])


def cut_like(mask: Tensor, weight: Tensor) -> Tensor:
    """A whole mask, which every rank has, cut as ``weight`` is; nothing is sent."""
    if not is_sharded(weight):
        return mask
    from torch.distributed.tensor import DTensor, Replicate

    mesh = weight.device_mesh  # type: ignore[attr-defined]
    replicated = DTensor.from_local(mask, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(mesh, weight.placements)  # type: ignore[attr-defined]


def reshard(model: nn.Module) -> None:
    """Gives up what ``fully_shard`` has gathered for a forward pass, so that parameters are the trained shards."""
    if active():
        for module in model.modules():
            if _fully_sharded(module):
                module.reshard()  # type: ignore[operator]


def rehome(model: nn.Module, parameter: nn.Parameter, module: nn.Module, name: str) -> None:
    """Tells ``fully_shard`` that ``parameter`` is now ``module.name``, where the forward pass must find it whole.

    ``fully_shard`` remembers the owner of each parameter, which a parametrisation put on or taken off later changes.

    Args:
        model: the sharded model.
        parameter: that has moved.
        module: its owner now.
        name: by which the owner knows it.
    """
    for group in _parameter_groups(model):
        for held in group.fsdp_params:
            if held.sharded_param is not parameter:
                continue
            held._module_info.module, held._module_info.param_name = module, name
            saving, loading = (
                group._module_to_pre_save_state_dict_hook_handle,
                group._module_to_pre_load_state_dict_hook_handle,
            )
            if saving and module not in saving:  # states are saved and loaded as shards
                hook = lambda *_, **__: group._to_sharded()  # noqa: B023, E731
                saving[module] = module.register_state_dict_pre_hook(hook)
                loading[module] = module._register_load_state_dict_pre_hook(hook)
            return


@contextmanager
def plain_class(module: nn.Module) -> Iterator[None]:
    """Takes off the class that ``fully_shard`` put over a module's own, and puts it over what is then there."""
    cls = type(module)
    if not (_fully_sharded(module) and cls.__name__.startswith("FSDPParametrized")):
        yield
        return
    outer, inner = cls.__bases__[0], cls.__bases__[1]
    module.__class__ = inner
    try:
        yield
    finally:
        own = type(module)
        added = {"__deepcopy__": cls.__dict__["__deepcopy__"]} if "__deepcopy__" in cls.__dict__ else {}
        module.__class__ = type(f"FSDP{own.__name__}", (outer, own), added)


def _fully_sharded(module: nn.Module) -> bool:
    return hasattr(module, "_get_fsdp_state")


def _parameter_groups(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if _fully_sharded(module):
            state = module._get_fsdp_state()  # type: ignore[operator]
            groups = getattr(state, "_fsdp_param_groups", None)
            yield from groups if groups is not None else filter(None, [state._fsdp_param_group])


# -- whole weights on every rank -------------------------------------------------------------------------------------


def leave_out(model: nn.Module, buffers: Iterable[str]) -> None:
    """Keeps these buffers out of what ``DistributedDataParallel(model)`` sends to all ranks before each step."""
    ignored = [*getattr(model, "_ddp_params_and_buffers_to_ignore", ()), *buffers]
    model._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]


# -- do the ranks agree? ---------------------------------------------------------------------------------------------


def active() -> bool:
    """Whether this is one of several processes that talk to each other."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@torch.no_grad()
def digest(tensors: Iterable[Tensor]) -> int:
    """A 64-bit sum over the bytes of tensors, each eight multiplied by a number of its place."""
    total = torch.zeros((), dtype=torch.int64)
    for number, tensor in enumerate(tensors):
        data = tensor.detach().contiguous().flatten().view(torch.uint8)
        data = nn.functional.pad(data, (0, -data.numel() % 8)).view(torch.int64)
        place = torch.arange(data.numel(), device=data.device).add_(1 + (number << 40)).mul_(-7046029254386353131)
        place.bitwise_xor_(place >> 29).mul_(-4658895280553007687)
        total = total.to(data.device) + (data ^ (data >> 31)).mul_(place).sum()
    return int(total)


def unequal(parts: Mapping[str, int], device: torch.device) -> list[str]:
    """The names of those numbers that are not the same on all ranks, which must ask together."""
    mine = torch.tensor(list(parts.values()), dtype=torch.int64, device=device)
    both = torch.stack([mine, ~mine])  # ~x = −x − 1 turns the order around, also for the smallest number
    dist.all_reduce(both, dist.ReduceOp.MIN)
    return [name for name, same in zip(parts, (both[0] == ~both[1]).tolist()) if not same]


def compare_ranks(steps: int, beta: float, streams: Iterable[Tensor], masks: Iterable[Tensor]) -> None:
    """Raises on every rank unless all of them have the same masks; does nothing in a single process.

    Args:
        steps: that this rank has made.
        beta: its β.
        streams: the states of its random streams.
        masks: its masks.
    """
    if not active():
        return
    kept = list(masks)
    parts = {
        "the number of steps": steps,
        "beta": digest([torch.tensor([beta], dtype=torch.float64)]),
        "the random stream": digest(streams),
        "the masks": digest(kept),
    }
    device = kept[0].device if "nccl" in str(dist.get_backend()) else torch.device("cpu")
    if differing := unequal(parts, device):
        raise UserError(
            f"the ranks differ in {' and '.join(differing)} after {steps} steps: every rank needs the same seed, the "
            f"same weights and one pruner.step() per optimiser step (check_ranks=0 turns this check off)"
        )
