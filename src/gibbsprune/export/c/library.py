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
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ...files import kept_in
from .source import Source

FLAGS = ("-O3", "-march=native")
ALWAYS = ("-std=gnu11", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")


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
    text, header = source.source(weights=False) + source.team(), source.header()
    version = str(os.stat(command).st_mtime_ns)
    key = hashlib.sha256("\0".join((text, header, command, version, *flags, machine())).encode()).hexdigest()[:32]
    folder = kept_in("GIBBSPRUNE_CACHE", "c")
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
        raise UserError(f"cannot write into {folder}: {error.strerror}; $GIBBSPRUNE_CACHE names another") from error
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


class Context:
    """What one thread needs to run a network."""

    def __init__(self, found: Library) -> None:
        size = found.source.arena() + found.source.arena(True) + 192
        self.numbers = np.zeros(size, dtype=np.float32)
        self.numbers = self.numbers[-self.numbers.ctypes.data % 64 // 4 :]
        self.pointer = ctypes.c_void_p(self.numbers.ctypes.data)
        found.function("init")(self.pointer)
        if not found.side:
            self.numbers.view(np.int32)[0] = 2**31 - 1


class Team:
    """The threads of a library, in one process; each has a context of its own."""

    def __init__(self, found: Library) -> None:
        self.process, self.found = os.getpid(), found
        self.contexts = [found.context() for _ in range(found.threads)]
        self.pointers = (ctypes.c_void_p * found.threads)(*(context.pointer.value for context in self.contexts))
        gather, disband = found.function("gather"), found.function("disband")
        gather.restype = ctypes.c_void_p
        self.pointer = ctypes.c_void_p(gather(found.threads))
        if not self.pointer:
            raise UserError(f"{found.threads} threads cannot be had from this system.")
        weakref.finalize(self, _disband, disband, self.pointer, self.process)


def _disband(function: Any, pointer: ctypes.c_void_p, process: int) -> None:
    if os.getpid() == process:  # a fork has none of the threads
        function(pointer)


class Library:
    """A loaded library with its expanded weights; any number of threads may call it at once.

    ``side``: images are computed side by side where there are enough of them. ``share``: the library's own threads
    share the work on an image where there are fewer images than threads, else the images.
    """

    def __init__(self, source: Source, path: Path, side: bool = True, share: bool = False, threads: int = 1) -> None:
        self.source, self.path, self.side, self.share, self.threads = source, path, side, share, threads
        self.code = ctypes.CDLL(str(path))
        self.busy = threading.Lock()
        self.team: Team | None = None
        self.weights = np.zeros(sum(source.sizes().values()) + source.sizes()["offset"] + 16, dtype=np.int32)
        self.model = ctypes.c_void_p(self.weights.ctypes.data)
        self.function("load")(ctypes.c_char_p(source.data), self.model)
        self.run, self.together = self.function("run"), self.function("together")
        self.free: list[Context] = []

    def function(self, name: str) -> Any:
        """A function of the library."""
        return getattr(self.code, f"{self.source.name}_{name}")

    def __call__(self, *inputs: Tensor) -> Any:
        """The outputs for a batch."""
        shapes = [value.shape for value in self.source.network.inputs]
        if [x.shape[1:] for x in inputs] != shapes:
            other = [tuple(x.shape) for x in inputs]
            raise UserError(f"the compiled network takes images of shape {shapes}, not inputs of {other}.")
        given = [x.detach().to("cpu", torch.float32).contiguous() for x in inputs]
        count = len(given[0])
        found = [torch.empty(count, *v.shape) for v in self.source.network.outputs]
        pointers = [ctypes.c_void_p(x.data_ptr()) for x in (*given, *found)]
        step = -(-count // self.threads)
        if self.side and count > self.threads * 16:
            step = -(-step // 16) * 16
        if self.share and count < self.threads:
            step = 0
        if self.threads == 1 or count == step or not self.busy.acquire(blocking=False):
            context = self.context()
            self.run(self.model, context.pointer, count, *pointers)
            self.free.append(context)
        else:
            try:
                if self.team is None or self.team.process != os.getpid():
                    self.team = Team(self)
                self.together(self.team.pointer, self.model, self.team.pointers, count, step, *pointers)
            finally:
                self.busy.release()
        return found[0] if len(found) == 1 else tuple(found)

    def context(self) -> Context:
        """A context that nobody uses."""
        try:
            return self.free.pop()
        except IndexError:
            return Context(self)
