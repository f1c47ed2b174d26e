"""A network as C files: the source with its weights, a header, and a small program that runs it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from ...errors import UserError
from ...files import write_atomic
from ..compaction import compact
from ..onnx import compared, prepared
from ..pixels import scales
from .fuse import fused
from .library import Library, compiler, library
from .lower import lowered
from .network import Network
from .pack import BYTES, cost
from .source import COMMAND, Source

#: max |difference| / max |output| that is accepted, for each type of stored weights.
TOLERANCE = {"float32": 1e-4, "float16": 5e-2, "int8": 0.5}


@dataclass(frozen=True)
class CReport:
    """The files, bytes of weights in the source, bytes in memory at run time, and how far from PyTorch it is.

    ``difference`` is max |difference| / max |output|, the worst of several batch sizes; None without a compiler.
    """

    files: tuple[Path, ...]
    weights: int
    model: int
    arena: int
    difference: float | None
    command: str

    def __str__(self) -> str:
        found = "not checked, as there is no C compiler here"
        if self.difference is not None:
            found = f"differs from PyTorch by {self.difference:.1e} of the output's scale"
        return (
            f"{self.files[0]}: {self.weights:,} bytes of weights; in memory {self.model:,} bytes for the model and an "
            f"arena of {self.arena:,} for each thread; {found}. Compile the example in its folder with: {self.command}"
        )


def export_c(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    folder: str | os.PathLike[str],
    name: str = "net",
    dtype: str = "float32",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    class_names: Sequence[str] | None = None,
) -> CReport:
    """Write the eval mode of a finalized model as ``name.c``, ``name.h`` and ``main.c`` into ``folder``.

    Args:
        model: a finalized model, whose pruned weights are exact zeros: they are neither stored nor computed.
        example_inputs: one input, or the sequence of the arguments of ``forward``. Image sizes are fixed by them.
        folder: where to write; made where it is missing.
        name: that of the files and of everything public in them.
        dtype: how weights are stored, "float32", "float16" or "int8" (a scale for each filter); arithmetic is float32.
        mean: given with ``std``, the C function takes raw pixels, uint8 of shape (rows, columns, channels), and
            computes (pixel / 255 − mean) / std itself; else it takes floats of shape (channels, rows, columns).
        std: the standard deviation of each channel, of pixels / 255 as the mean is.
        class_names: what the outputs mean, for the array ``name_classes`` of the source.

    Where this machine has a C compiler the source is compiled and compared with PyTorch before it is written.
    """
    if dtype not in BYTES:
        raise UserError(f"dtype is '{dtype}'; allowed for C are {', '.join(BYTES)}.")
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise UserError(f"name is '{name}'; allowed are small letters, digits and underscores, a letter first.")
    model, inputs = prepared(model, example_inputs)
    scale, shift = scales(mean, std, inputs) or (None, None)
    source = Source(network(model, inputs), name, 1, dtype, scale, shift, class_names or ())
    difference = None
    if compiler() is not None:
        plain = source if source.scale is None else Source(source.network, name, 1, dtype)
        difference = compared(model, Library(plain, library(plain, ("-O1",))), inputs)
        if not difference <= TOLERANCE[dtype]:
            raise UserError(
                f"the C program would differ from PyTorch by {difference:.1e} of the output's scale; not written."
            )
    files = {f"{name}.c": source.source(), f"{name}.h": source.header(), "main.c": source.example()}
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from error
    for file, content in files.items():
        write_atomic(Path(folder) / file, content)
    command = f"{COMMAND} main.c {name}.c -lm -o {name}"
    paths = tuple(Path(folder) / file for file in files)
    return CReport(paths, len(source.data), 4 * sum(source.sizes().values()), 4 * source.arena(), difference, command)


def network(model: nn.Module, inputs: tuple[Tensor, ...]) -> Network:
    """The operations of a model; made smaller first where whole filters are gone and that saves more than it costs."""
    found = fused(lowered(model, inputs))
    if filters_gone(model):
        with contextlib.suppress(UserError):  # the small network may have operations that C has not
            found = min(found, fused(lowered(compact(model, inputs, True, "speed"), inputs)), key=cost)
    return found


def filters_gone(model: nn.Module) -> bool:
    """Whether some layer has filters without any weight."""
    layers = (m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d)))
    return any(bool((layer.weight.flatten(1) == 0).all(1).any()) for layer in layers)
