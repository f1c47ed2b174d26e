"""A finished run that another one starts from: its weights, its masks, and what it was."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ..errors import UserError
from ..files import save_tensors
from .folder import RunFolder
from .places import Place, Remote
from .spec import RunSpec


@dataclass(frozen=True)
class Finished:
    """``model`` is the state of the network, pruned weights zero; ``masks`` are by layer, none of a dense run.

    ``kept`` are states from its way (:attr:`gibbsprune.training.methods.Method.keeps`), as ``what/name``.
    """

    spec: RunSpec
    model: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    kept: Mapping[str, Tensor] = field(default_factory=dict)


def save_finished(path: Place, finished: Finished) -> None:
    """One small file of a finished run."""
    tensors = {f"model/{name}": tensor for name, tensor in finished.model.items()}
    tensors |= {f"mask/{name}": mask for name, mask in finished.masks.items()}
    tensors |= {f"kept/{name}": tensor for name, tensor in finished.kept.items()}
    save_tensors(path, tensors, {"run": json.dumps(finished.spec.as_dict())})


def read_finished(text: str | os.PathLike[str], seed: int = 0, root: Place | None = None) -> Finished:
    """A finished run by its folder, or by the name of a file of :func:`save_finished` in ``root``.

    Of a fleet's folder it is the run with the same seed; the folder of one of its runs is that run.
    """
    if root is not None and (file := root / f"{text}.safetensors").exists():
        return _read_file(file)
    path = Path(text)
    if path.suffix == ".safetensors" and path.exists():
        return _read_file(path)
    inside = not (path / "run.json").exists() and (path.parent / "run.json").exists()
    folder = RunFolder.open(path.parent if inside else path)
    if not folder.finished():
        raise UserError(
            f"the run {folder.path} is not finished; continue it with: gibbsprune train --resume {folder.path}"
        )
    spec, where = _run_inside(folder, path.name) if inside else _run_of_seed(folder, seed)
    masks, kept = (
        _tensors(file) if (file := where / f"{name}.safetensors").exists() else {} for name in ("masks", "kept")
    )
    return Finished(spec, _tensors(where / "model.safetensors"), masks, kept)


def _run_of_seed(folder: RunFolder, seed: int) -> tuple[RunSpec, Path]:
    runs = list(zip(folder.specs, folder.runs))
    found = runs if len(runs) == 1 else [(spec, where) for spec, where in runs if spec.seed == seed]
    if not found:
        seeds = ", ".join(str(spec.seed) for spec in folder.specs)
        raise UserError(f"the fleet {folder.path} has no run with seed {seed}; it has seeds {seeds}")
    if len(found) > 1:
        names = ", ".join(where.name for _, where in found)
        raise UserError(f"the fleet {folder.path} has several runs with seed {seed}; name the folder of one: {names}")
    return found[0]


def _run_inside(folder: RunFolder, name: str) -> tuple[RunSpec, Path]:
    for spec, where in zip(folder.specs, folder.runs):
        if where.name == name and where != folder.path:
            return spec, where
    names = ", ".join(where.name for where in folder.runs if where != folder.path) or "none"
    raise UserError(f"the fleet {folder.path} has no run {name}; its runs: {names}")


def _read_file(path: Place) -> Finished:
    from safetensors import SafetensorError, safe_open

    if isinstance(path, Remote):
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / path.name
            local.write_bytes(path.read_bytes())
            return _read_file(local)
    try:
        with safe_open(path, "pt") as file:
            spec = RunSpec.from_dict(json.loads((file.metadata() or {})["run"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise UserError(f"{path} is not the file of a finished run: {error}") from None
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "mask": {}, "kept": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        parts[kind][rest] = tensor
    return Finished(spec, parts["model"], parts["mask"], parts["kept"])


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
