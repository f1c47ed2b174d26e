"""Where a run happens: versions and hardware, the device by its name, a fingerprint of the data."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..checks import bad
from ..data.arrays import Arrays
from ..errors import UserError
from ..site import check_device

SMALL = 16  # pixels; see suitable_threads
DEVICES = "'auto', 'cpu', 'cuda' and 'cuda:<number>'"


def resolve_device(name: str) -> torch.device:
    """The device called ``name``; ``auto`` is the GPU where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise bad("device", name, DEVICES) from None
    check_device("--device", device)
    if device.type not in ("cpu", "cuda"):
        raise bad("device", name, DEVICES)
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise UserError(f"device {name!r} is not available: torch sees {count} CUDA devices here")
    return device


@contextmanager
def suitable_threads(arrays: Arrays, device: torch.device) -> Iterator[None]:
    """One thread for small images on a CPU, where more would wait for each other, unless OMP_NUM_THREADS says else."""
    before = torch.get_num_threads()
    if device.type == "cpu" and max(arrays.size) <= SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware, as plain values."""
    packages = {"torch": str(torch.__version__), "numpy": np.__version__, "gibbsprune": __version__}
    hardware: dict[str, Any] = {
        "device": str(device),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
        packages["cuda"] = str(torch.version.cuda)
    return {
        "versions": {"python": platform.python_version(), **packages},
        "hardware": hardware,
        "system": platform.system() + " " + platform.machine(),
    }


def revision() -> str:
    """The revision of this package's source, if git knows it."""
    here, command = Path(__file__).parent, ["git", "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() or "unknown"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def fingerprint(arrays: Arrays) -> str:
    """A short hash of a data set's content, by which a resumed run knows that it has the same data."""
    digest = hashlib.sha256()
    for part in (arrays.x_train, arrays.y_train, arrays.x_test, arrays.y_test):
        array = np.ascontiguousarray(part.cpu().numpy())
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]
