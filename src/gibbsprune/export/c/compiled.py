"""A network in C as a module: compiled in several ways, of which the fastest is kept."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ...looking import arguments
from ..onnx import compared, prepared
from .library import FLAGS, Library, compiler, library, machine
from .pack import BYTES
from .source import Source
from .write import network

TOLERANCE = 1e-4


@dataclass(frozen=True)
class CompileReport:
    """Milliseconds at the example inputs: of the plain model, of what was chosen, and of all that were tried."""

    before: float
    after: float
    chosen: str
    difference: float = 0.0
    tried: dict[str, float] = field(default_factory=dict)


class CompiledNetwork(nn.Module):
    """A network in C: called like the model that it was made of, with any batch size, for inference alone."""

    def __init__(self, found: Library) -> None:
        super().__init__()
        self.found = found
        self.report: CompileReport | None = None

    def forward(self, *inputs: Tensor) -> Any:
        return self.found(*inputs)

    def __deepcopy__(self, memo: Any) -> CompiledNetwork:
        twin = CompiledNetwork(self.found)
        twin.report = self.report
        return twin

    def __reduce__(self) -> Any:
        raise UserError("a compiled network cannot be saved; save the model and compile it again, which is cached.")


def compile_c(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Tensor],
    threads: int = 1,
    dtype: str = "float32",
    rounds: int = 5,
) -> nn.Module:
    """The eval mode of a finalized model, compiled by this machine's C compiler; its ``report`` tells what that gained.

    Vectors of several widths, and images one by one or side by side, are compiled, checked and timed at the example
    inputs, and the fastest is returned; libraries are kept in ``~/.cache/gibbsprune/c`` or $GIBBSPRUNE_CACHE. Where
    none is faster than the model itself, or there is no compiler, the model comes back as a copy.

    Args:
        model: a finalized model, whose pruned weights are exact zeros.
        example_inputs: one input, or the sequence of the arguments of ``forward``, of the batch size to be fast at.
        threads: how many compute at the same time: each some images, or, where there are fewer, each a part of one.
        dtype: how weights are rounded, "float32", "float16" or "int8".
        rounds: how often each is timed; the least time counts.
    """
    if dtype not in BYTES:
        raise UserError(f"dtype is '{dtype}'; allowed for C are {', '.join(BYTES)}.")
    if threads < 1 or rounds < 1:
        raise UserError(f"threads are {threads} and rounds {rounds}; both must be at least 1.")
    plain, inputs = prepared(model, example_inputs)
    given = tuple(x.cpu() for x in arguments(example_inputs)[0])
    if compiler() is None:
        warnings.warn(
            "no C compiler (cc, gcc or clang) was found, so the network stays as it is.", UserWarning, stacklevel=2
        )
        return _reported(plain, CompileReport(0.0, 0.0, "plain: no C compiler"))
    source = Source(network(plain, inputs), "net", len(given[0]), dtype)
    ways: dict[str, nn.Module] = {"plain": plain}
    worst = 0.0
    for bits in _widths():
        path = library(source, (*FLAGS, f"-DGP_BYTES={bits // 8}"))
        kinds = {"": (False, False)}
        if len(given[0]) >= bits // 32:
            kinds[", images side by side"] = (True, False)
        if len(given[0]) < threads:
            kinds[", threads share images"] = (False, True)
        for kind, way in kinds.items():
            found = CompiledNetwork(Library(source, path, *way, threads))
            worst = max(worst, compared(plain, found, inputs))
            ways[f"{bits} bits{kind}"] = found
    if dtype == "float32" and not worst <= TOLERANCE:
        reason = f"plain: the compiled network would differ by {worst:.1e} of the output's scale"
        return _reported(plain, CompileReport(0.0, 0.0, reason))
    took = _timed(ways, given, rounds, threads)
    best = min(took, key=lambda name: took[name])
    return _reported(ways[best], CompileReport(took["plain"], took[best], best, worst, took))


def _widths() -> list[int]:
    """The widths of vectors that are worth trying here."""
    if platform.machine() in ("x86_64", "AMD64"):
        return [512, 256] if "avx512vl" in machine() else [256] if "avx2" in machine() else [128]
    return [128]


def _clock(threads: int) -> Callable[[], float]:
    """Processor time where one thread computes, since nothing else that runs here lengthens it; else seconds."""
    alone = threads == torch.get_num_threads() == 1 and time.get_clock_info("thread_time").resolution < 1e-6
    return time.thread_time if alone else time.perf_counter


@torch.no_grad()
def _timed(ways: dict[str, nn.Module], inputs: tuple[Tensor, ...], rounds: int, threads: int) -> dict[str, float]:
    """The least milliseconds of each, in interleaved rounds after one to warm up.

    Each has its turn for some time: short calls are many, threads are awake, and those of the way before, which look
    for work for some milliseconds before they sleep, no longer take processors away.
    """
    took, clock, turns = dict.fromkeys(ways, float("inf")), _clock(threads), 2e-3 if threads == 1 else 2e-2
    for turn in range(rounds + 1):
        for name, way in ways.items():
            calls, begin = 0, time.perf_counter()
            while calls < 2 or time.perf_counter() < begin + turns:
                calls, start = calls + 1, clock()
                way(*inputs)
                if turn:
                    took[name] = min(took[name], 1e3 * (clock() - start))
    return took


def _reported(module: nn.Module, report: CompileReport) -> nn.Module:
    module.report = report  # type: ignore[assignment]
    return module
