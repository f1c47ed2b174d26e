"""A finished run read back from its folder: the trained network, and real inputs to try it on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gibbsprune import data
from gibbsprune.data.augment import standardise
from gibbsprune.errors import UserError
from gibbsprune.training.folder import RunFolder
from gibbsprune.training.network import new_model
from gibbsprune.training.spec import RunSpec


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run's network in eval mode, its test images as the network takes them, their labels, and its folder."""

    path: Path
    spec: RunSpec
    model: nn.Module
    images: Tensor
    labels: Tensor


def load_run(path: str | os.PathLike[str], images: int = 2000) -> TrainedRun:
    """Read the run in ``path``, with at most that many test images; of a fleet, give one run's own folder."""
    run, spec = _find(Path(path))
    file = run / "model.safetensors"
    try:
        from safetensors.torch import load
    except ImportError as error:
        raise UserError("reading a run needs safetensors: install gibbsprune[export].") from error
    try:
        state = load(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{run} is not finished: it has no model.safetensors yet.") from None
    except Exception as error:  # safetensors' own exception for a damaged file, which is no subclass of anything
        raise UserError(f"{file} cannot be read: {error}") from error
    arrays = data.load(spec.data)
    model = new_model(spec, arrays)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"{file} is of another network than {spec.model}: {str(error).splitlines()[-1].strip()}"
        ) from error
    mean, std = arrays.statistics(spec.recipe.standardise)
    x = standardise(arrays.x_test[:images], mean, std, torch.float32).permute(0, 3, 1, 2)
    x = x.clone(memory_format=torch.contiguous_format)  # of one channel, contiguous() would keep channels-last strides
    return TrainedRun(run, spec, model.eval(), x, arrays.y_test[:images])


def _find(path: Path) -> tuple[Path, RunSpec]:
    """The folder of one run, and what the run is."""
    if not (path / "run.json").exists() and (path.parent / "run.json").exists():
        folder = RunFolder.open(path.parent)  # one run of a fleet
        for run, spec in zip(folder.runs, folder.specs):
            if run.resolve() == path.resolve():
                return run, spec
    folder = RunFolder.open(path)
    if len(folder.runs) > 1:
        raise UserError(f"{path} holds {len(folder.runs)} runs; name one of them, such as {folder.runs[0]}.")
    return folder.runs[0], folder.specs[0]


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 250) -> float:
    """The share of images that ``model`` labels rightly; it gets copies of them, as it may overwrite its input."""
    pairs = zip(images.split(batch), labels.split(batch))
    return sum(int((model(x.clone()).argmax(1) == y).sum()) for x, y in pairs) / len(labels)
