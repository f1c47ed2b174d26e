"""Linear layers pruned to 2:4, packed for the sparse tensor cores of an NVIDIA GPU.

torch.sparse packs whatever it is given and drops what does not fit the pattern without a word. So the pattern is looked
at first, weight by weight, and every packed layer is held against the plain one.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..attaching import check_plain
from ..errors import UserError
from ..structures import PRUNABLE, as_structure
from ..text import first_line
from .equality import difference

DTYPES = (torch.bfloat16, torch.float16)
CAPABILITY = (8, 0)  # of the first GPUs that multiply 2:4
ROWS = 64  # of the input that a packed layer is compared at
TOLERANCE = 2e-2  # of the greatest output, in bfloat16


@dataclass(frozen=True)
class SemiStructuredReport:
    """The layers that are packed, and the other convolutions and Linears with the reason why they are not."""

    packed: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        head = f"{len(self.packed)} of {len(self.packed) + len(self.left)} layers packed to 2:4"
        return "\n".join([head, *self.packed, *(f"left: {name} ({why})" for name, why in self.left.items())])


def to_semi_structured(model: nn.Module) -> nn.Module:
    """A copy of a finalized model for inference, its Linears that are 2:4 in torch.sparse's packed form.

    Args:
        model: on an NVIDIA GPU of compute capability 8.0 or later, in bfloat16 or float16, pruned with
            ``structure="2:4"``; a row may keep fewer than two of four.

    Returns:
        A module with a :class:`SemiStructuredReport` as its ``report``: which layers were left, and why. A model of
        which no layer can be packed is refused. docs/exporting.md says at which sizes it pays.
    """
    check_plain(model, "packing it to 2:4")
    if not torch.cuda.is_available():
        raise UserError("2:4 runs on NVIDIA GPUs only, and torch sees none here")
    if (found := torch.cuda.get_device_capability()) < CAPABILITY:
        raise UserError(f"2:4 needs compute capability 8.0 or later, but this GPU has {found[0]}.{found[1]}")
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    packed, left = [], reasons(copied)
    for name, module in copied.named_modules():
        if isinstance(module, PRUNABLE) and name not in left:
            assert isinstance(module, nn.Linear)
            if why := _pack(module):
                left[name] = why
            else:
                packed.append(name)
    if not packed:
        name, why = next(iter(left.items()), ("none", "the model has no Linear"))
        raise UserError(f"no layer can be packed to 2:4; of {len(left)} the first, {name!r}: {why}")
    copied.report = SemiStructuredReport(packed, left)  # type: ignore[assignment]
    return copied


def reasons(model: nn.Module) -> dict[str, str]:
    """The convolutions and Linears that cannot be packed, and why."""
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, PRUNABLE) and (why := _reason(module, owners[id(module.weight)])):
            found[name] = why
    return found


def _reason(module: nn.Module, owners: int) -> str | None:
    weight = module.weight
    assert isinstance(weight, Tensor)
    if type(module) is not nn.Linear:
        return f"a {type(module).__name__}: torch.sparse has nn.Linear only"
    if owners > 1:
        return "its weight is another layer's, too"
    if weight.dtype not in DTYPES:
        return f"in {str(weight.dtype).removeprefix('torch.')}: allowed are bfloat16, float16"
    return misfit(weight)


def misfit(weight: Tensor) -> str | None:
    """Where a weight keeps more than two of four consecutive inputs; None where it never does."""
    if weight.shape[1] % 4:
        return f"{weight.shape[1]} inputs, which four does not divide"
    kept = as_structure("2:4").rows(weight.detach() != 0).sum(1)
    if int(kept.max()) <= 2:
        return None
    worst = int(kept.argmax())
    output, group = divmod(worst, weight.shape[1] // 4)
    share = float((kept > 2).float().mean())
    return (
        f"not 2:4: output {output} keeps {int(kept[worst])} of its inputs {4 * group} to {4 * group + 3}, "
        f"and {share:.1%} of all groups keep more than two"
    )


def _pack(linear: nn.Linear) -> str | None:
    """Packs a layer in place; a sentence where torch refuses it, or where what it packed computes something else."""
    from torch.sparse import to_sparse_semi_structured

    plain = linear.weight
    x = torch.randn(ROWS, linear.in_features, dtype=plain.dtype, device=plain.device)
    expected = linear(x)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is a prototype
            sparse = to_sparse_semi_structured(plain.detach().contiguous())
            linear.weight = nn.Parameter(sparse, requires_grad=False)
            found = linear(x)
    except Exception as error:  # of sizes and GPUs that its kernels do not have
        linear.weight = plain
        return first_line(error)
    if not (differs := difference(expected, found)) <= TOLERANCE:
        linear.weight = plain
        return f"packed, its outputs differ by {differs:.2g}"
    return None
