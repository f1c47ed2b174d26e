"""The Triton kernels: in Triton's interpreter on any machine, and with many more rows where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import triton_checks

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton")


@pytest.mark.slow
@pytest.mark.parametrize("drawing", [True, False])
def test_in_the_interpreter(drawing):
    """In a process of their own, since the interpreter is chosen when Triton is imported."""
    kernels = [name for name in triton_checks.CHECKS if (name in triton_checks.DRAWING) == drawing]
    script = Path(triton_checks.__file__)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, script.name, *kernels], cwd=script.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{kernel}: as it must be" for kernel in kernels]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kernel", triton_checks.CHECKS)
def test_on_the_gpu(kernel):
    triton_checks.CHECKS[kernel][0]("cuda", 20_000)
