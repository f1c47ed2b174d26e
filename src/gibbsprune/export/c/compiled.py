"""The C source of a network compiled by this machine's compiler, and called like any module."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gibbsprune.errors import UserError
from gibbsprune.export.c.source import Source
from gibbsprune.export.onnx import compared, prepared
from gibbsprune.export.tracing import as_inputs

FLAGS = ("-O3", "-march=native")
ALWAYS = ("-std=gnu11", "-ffp-contract=fast", "-shared", "-fPIC")
TOLERANCE = 1e-4


def compiler() -> str | None:
    """The machine's C compiler: $CC, cc, gcc or clang; None without one."""
    return next(
        (found for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (found := shutil.which(name))), None
    )


def library(source: Source, flags: Sequence[str] = FLAGS) -> Path:
    """The compiled library of a source without its weights, from the cache where it has been compiled before."""
    command = compiler()
    if command is None:
        raise UserError("compiling needs a C compiler (cc, gcc or clang; $CC names another), and there is none.")
    flags = (*flags, *ALWAYS, *(f"-D{source.name.upper()}_{what}" for what in ("LANES=1", "SHARED=1")))
    text, header = source.source(weights=False), source.header()
    version = str(os.stat(command).st_mtime_ns)
    key = hashlib.sha256("\0".join((text, header, command, version, *flags, _machine())).encode()).hexdigest()[:32]
    folder = Path(os.environ.get("GIBBSPRUNE_CACHE") or Path.home() / ".cache" / "gibbsprune" / "c")
    target = folder / f"{key}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            (Path(work) / f"{source.name}.c").write_text(text, encoding="utf-8")
            (Path(work) / f"{source.name}.h").write_text(header, encoding="utf-8")
            done = subprocess.run(
                [command, *flags, f"{source.name}.c", "-lm", "-o", "net.so"], cwd=work, capture_output=True, text=True
            )
            if done.returncode:
                said = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
                raise UserError(f"{command} cannot compile the network: {said.strip()}")
            os.replace(Path(work) / "net.so", target)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}") from error
    return target


def _machine() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return (
        platform.machine()
        + "".join(line for line in lines if line.startswith(("flags", "Features", "model name")))[:4000]
    )


class Library:
    """A loaded library with its expanded weights; any number of threads may call it at once.

    ``side``: images are computed side by side where there are enough of them. ``share``: threads share the channels of
    an image where there are fewer images than threads.
    """

    def __init__(self, source: Source, path: Path, side: bool = True, share: bool = False) -> None:
        self.source, self.path, self.side, self.share = source, path, side, share
        self.code = ctypes.CDLL(str(path))
        self.team = threading.Lock()
        self.model = np.zeros(sum(source.sizes().values()) + source.sizes()["offset"] + 16, dtype=np.int32)
        getattr(self.code, f"{source.name}_load")(ctypes.c_char_p(source.data), ctypes.c_void_p(self.model.ctypes.data))
        self.free: list[np.ndarray] = []

    def __call__(self, *inputs: Tensor) -> Any:
        return self.over(inputs, None)

    def over(self, inputs: Sequence[Tensor], pool: ThreadPoolExecutor | None, threads: int = 1) -> Any:
        """The outputs for a batch, its images shared out among the threads."""
        given = [x.detach().to("cpu", torch.float32).contiguous() for x in inputs]
        values = self.source.network.inputs
        if len(given) != len(values) or any(tuple(x.shape[1:]) != v.shape for x, v in zip(given, values)):
            shapes = [tuple(x.shape) for x in given]
            raise UserError(
                f"the compiled network takes images of shape {[v.shape for v in values]}, not inputs of {shapes}."
            )
        count = len(given[0])
        found = [torch.empty(count, *v.shape) for v in self.source.network.outputs]
        if self.share and pool is not None and count < threads:
            for i in range(count):
                self._together(given, found, i, pool, threads)
            return found[0] if len(found) == 1 else tuple(found)
        step = -(-count // threads)
        if self.side and count > threads * 16:
            step = -(-step // 16) * 16
        parts = [(i, min(step, count - i)) for i in range(0, count, max(1, step))]
        if pool is None or len(parts) < 2:
            for part in parts:
                self._part(given, found, *part)
        else:
            for done in [pool.submit(self._part, given, found, *part) for part in parts]:
                done.result()
        return found[0] if len(found) == 1 else tuple(found)

    def _part(self, given: list[Tensor], found: list[Tensor], start: int, count: int) -> None:
        """Some of the images, by one thread."""
        context = self._context()
        self._call("run", context, (count,), given, found, start)
        self.free.append(context)

    def _together(
        self, given: list[Tensor], found: list[Tensor], start: int, pool: ThreadPoolExecutor, threads: int
    ) -> None:
        """One image, by all threads."""
        with self.team:  # two images at once could each wait for threads that the other one has
            context = self._context()
            work = [
                pool.submit(self._call, "share", context, (i, threads), given, found, start) for i in range(1, threads)
            ]
            self._call("share", context, (0, threads), given, found, start)
            for done in work:
                done.result()
            self.free.append(context)

    def _call(
        self,
        what: str,
        context: np.ndarray,
        numbers: tuple[int, ...],
        given: list[Tensor],
        found: list[Tensor],
        start: int,
    ) -> None:
        pointers = [ctypes.c_void_p(x.data_ptr() + 4 * start * (x.numel() // len(x))) for x in (*given, *found)]
        function = getattr(self.code, f"{self.source.name}_{what}")
        function(ctypes.c_void_p(self.model.ctypes.data), ctypes.c_void_p(context.ctypes.data), *numbers, *pointers)

    def _context(self) -> np.ndarray:
        """A context that nobody uses."""
        try:
            return self.free.pop()
        except IndexError:
            context = np.zeros(self.source.arena() + self.source.arena(True) + 192, dtype=np.float32)
            context = context[-context.ctypes.data % 64 // 4 :]
            getattr(self.code, f"{self.source.name}_init")(ctypes.c_void_p(context.ctypes.data))
            if not self.side:
                context.view(np.int32)[0] = 2**31 - 1
            return context


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

    def __init__(self, found: Library, threads: int) -> None:
        super().__init__()
        self.found, self.threads = found, threads
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self.report: CompileReport | None = None

    def forward(self, *inputs: Tensor) -> Any:
        return self.found.over(inputs, self.pool, self.threads)

    def __deepcopy__(self, memo: Any) -> CompiledNetwork:
        twin = CompiledNetwork(self.found, self.threads)
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
        threads: how many images are computed at the same time.
        dtype: how weights are rounded, "float32", "float16" or "int8".
        rounds: how often each is timed; the least time counts.
    """
    from gibbsprune.export.c.pack import BYTES
    from gibbsprune.export.c.write import network

    if dtype not in BYTES:
        raise UserError(f"dtype is '{dtype}'; allowed for C are {', '.join(BYTES)}.")
    if threads < 1 or rounds < 1:
        raise UserError(f"threads are {threads} and rounds {rounds}; both must be at least 1.")
    given = tuple(x.cpu() for x in as_inputs(example_inputs))
    plain, inputs = prepared(model, example_inputs)
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
            kinds[", threads share channels"] = (False, True)
        for kind, way in kinds.items():
            found = CompiledNetwork(Library(source, path, *way), threads)
            worst = max(worst, compared(plain, found, inputs))
            ways[f"{bits} bits{kind}"] = found
    if dtype == "float32" and not worst <= TOLERANCE:
        reason = f"plain: the compiled network would differ by {worst:.1e} of the output's scale"
        return _reported(plain, CompileReport(0.0, 0.0, reason))
    took = _timed(ways, given, rounds)
    best = min(took, key=lambda name: took[name])
    return _reported(ways[best], CompileReport(took["plain"], took[best], best, worst, took))


def _widths() -> list[int]:
    """The widths of vectors that are worth trying here."""
    if platform.machine() in ("x86_64", "AMD64"):
        return [512, 256] if "avx512vl" in _machine() else [256] if "avx2" in _machine() else [128]
    return [128]


@torch.no_grad()
def _timed(ways: dict[str, nn.Module], inputs: tuple[Tensor, ...], rounds: int) -> dict[str, float]:
    """The least milliseconds of each, in interleaved rounds after one to warm up."""
    took = dict.fromkeys(ways, float("inf"))
    for turn in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way(*inputs)
            if turn:
                took[name] = min(took[name], 1e3 * (time.perf_counter() - start))
    return took


def _reported(module: nn.Module, report: CompileReport) -> nn.Module:
    module.report = report  # type: ignore[assignment]
    return module
