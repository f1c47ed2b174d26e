"""Networks written as C, compiled into programs that run outside Python."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gibbsprune.export.c.source import Source
from gibbsprune.export.c.write import network

#: Reads images from standard input, runs the network on all of them, and writes all outputs.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
static net_model model;
static net_context context;
int main(int argc, char **argv) {
  const int n = atoi(argv[1]);
  (void)argc;
  net_load(net_weights, &model);
  net_init(&context);
  KIND *x = malloc(sizeof(KIND) * n * NET_INPUT);
  if (fread(x, sizeof(KIND) * NET_INPUT, n, stdin) != (size_t)n) return 1;
  DECLARE
  net_run(&model, &context, n, x GIVEN);
  net_run(&model, &context, n, x GIVEN);
  WRITE
  free(x);
  return 0;
}
"""


def need(*commands: str) -> None:
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"{command} is not installed")


def written(source: Source, folder: Path) -> Path:
    """The files of a network and a program around it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [(name.removeprefix("output"), macro) for name, macro, _ in source.outputs]
    program = (
        PROGRAM.replace("KIND", source.kind)
        .replace("DECLARE", "".join(f"float *y{i} = malloc(4ul * n * {macro});\n" for i, macro in names))
        .replace("GIVEN", "".join(f", y{i}" for i, _ in names))
        .replace("WRITE", "".join(f"fwrite(y{i}, 4ul * {macro}, n, stdout); free(y{i});\n" for i, macro in names))
    )
    for name, text in (("net.c", source.source()), ("net.h", source.header()), ("test.c", program)):
        (folder / name).write_text(text)
    return folder


def built(folder: Path, command: Sequence[str], name: str = "test") -> Path:
    """Compile without a single warning."""
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=fast")
    done = subprocess.run(
        [*command, *flags, "test.c", "net.c", "-lm", "-o", name], cwd=folder, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr[:4000]
    return folder / name


def run(program: Path, x: Tensor, source: Source, before: Sequence[str] = ()) -> list[Tensor]:
    """What the program writes for these images."""
    data = x.contiguous().numpy().tobytes()
    done = subprocess.run([*before, str(program), str(len(x))], input=data, capture_output=True)
    assert not done.returncode, done.stderr.decode()[:4000]
    found, start = np.frombuffer(done.stdout, dtype=np.float32), 0
    outputs = []
    for _, _, value in source.outputs:
        outputs.append(
            torch.from_numpy(found[start : start + len(x) * value.size].copy()).reshape(len(x), *value.shape)
        )
        start += len(x) * value.size
    assert start == len(found)
    return outputs


def source_of(model: nn.Module, x: Tensor, **options: object) -> Source:
    return Source(network(model.eval(), (x,)), "net", 1, **options)  # type: ignore[arg-type]


def assert_close(model: nn.Module, found: list[Tensor], x: Tensor, tolerance: float = 1e-5) -> None:
    with torch.no_grad():
        expected = model(x)
    for a, b in zip([expected] if isinstance(expected, Tensor) else expected, found):
        assert a.shape == b.shape
        assert float((a - b).abs().max()) <= tolerance * float(a.abs().max()), float(
            (a - b).abs().max() / a.abs().max()
        )
