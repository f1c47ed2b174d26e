"""What goes with an exported network: what it is, what it takes and what it answers, for its file and for a reader."""

from __future__ import annotations

import json
from pathlib import Path

from ..text import percent, safe, table
from .runs import TrainedRun

#: How a file is used in a few lines, by its format.
USE = {
    "onnx": """```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
images = np.zeros({shape}, np.{kind})  # yours: {images}
(scores,) = session.run(None, {{"input": images}})
print(scores.argmax(1))
```""",
    "pt2": """```python
import torch

network = torch.export.load("{file}").module()
images = torch.zeros({shape}, dtype=torch.{kind})  # yours: {images}
print(network(images).argmax(1))
```""",
    "compact": """```python
import gibbsprune as gp
import torch

network = gp.load_compact("{file}")
images = torch.zeros({shape}, dtype=torch.{kind})  # yours: {images}
print(network(images).argmax(1))
```""",
    "c": """```c
#include "net.h"

static net_model model;
static net_context context;
static {c_kind} image[NET_INPUT]; /* yours: {images} */
static float scores[NET_OUTPUT];

int main(void) {{
  net_load(net_weights, &model);
  net_init(&context);
  net_run(&model, &context, 1, image, scores);
}}
```

    {command}""",
    "packed": """```python
import gibbsprune as gp

network = gp.load_packed("{file}", network)  # one built in the same way
```""",
    "safetensors": """```python
from safetensors.torch import load_file

network.load_state_dict(load_file("{file}"))  # one built in the same way
```""",
}


def metadata(run: TrainedRun, bare: bool) -> dict[str, str]:
    """What a file says of itself; ``bare`` of one that takes standardised images instead of raw pixels."""
    about = run.about
    found = {
        "run": run.spec.name(),
        "network": run.spec.model,
        "data": Path(run.spec.data).name,
        "test_accuracy": f"{run.result['accuracy']:.4f}",
        "input": describe_input(run, bare),
        "mean": json.dumps(about["mean"]),
        "std": json.dumps(about["std"]),
        "output": f"one score for each of {about['classes']} classes; the largest is the answer",
    }
    if about["class_names"]:
        found["class_names"] = json.dumps(about["class_names"], ensure_ascii=False)
    return found


def describe_input(run: TrainedRun, bare: bool) -> str:
    """What comes in, in words."""
    (height, width), channels = run.about["size"], run.about["channels"]
    if bare:
        return f"float32 of (batch, {channels}, {height}, {width}): (pixel / 255 - mean) / std of each channel"
    return f"raw pixels, uint8 0..255, of (batch, {height}, {width}, {channels}): rows, columns, channels"


def card(
    run: TrainedRun, form: str, file: str, bare: bool, written: str, command: str = "", compact: int | None = None
) -> str:
    """The page beside an exported network.

    ``written`` is what was told when it was made, ``command`` compiles it, ``compact`` are its parameters if it has
    fewer than the run's.
    """
    result, about = run.result, run.about
    (height, width), channels = about["size"], about["channels"]
    shape = (1, channels, height, width) if bare else (1, height, width, channels)
    kind = "float32" if bare else "uint8"
    use = USE[form].format(
        file=file, shape=shape, kind=kind, c_kind="float" if bare else "uint8_t", images=describe_input(run, bare),
        command=command,
    )  # fmt: skip
    weights_alone = form in ("packed", "safetensors")
    rows = [
        ["network", f"{run.spec.model}, {run.spec.how.name}"],
        ["data", safe(Path(run.spec.data).name)],
        ["test accuracy of the run", percent(result["accuracy"])],
        ["weights left", f"{result['nonzero']:,} of {result['parameters']:,}"],
        *([["parameters of the compact network", f"{compact:,}"]] if compact is not None else []),
        ["input", describe_input(run, bare or weights_alone)],
        ["mean", ", ".join(f"{x:.6g}" for x in about["mean"]) + (" (inside)" if not (bare or weights_alone) else "")],
        ["std", ", ".join(f"{x:.6g}" for x in about["std"]) + (" (inside)" if not (bare or weights_alone) else "")],
        ["classes", safe(", ".join(about["class_names"] or map(str, range(about["classes"]))))],
        ["run", safe(run.spec.name())],
    ]
    return "\n\n".join([f"# {file}", written, table(["", ""], rows, left=2), "## Use", use]) + "\n"
