"""The C source of a network compiled by this machine's compiler, and the library loaded."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from .source import Source

FLAGS = ("-O3", "-march=native")
ALWAYS = ("-std=gnu11", "-ffp-contract=fast", "-shared", "-fPIC")


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
    key = hashlib.sha256("\0".join((text, header, command, version, *flags, machine())).encode()).hexdigest()[:32]
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


def machine() -> str:
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
