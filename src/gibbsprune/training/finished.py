"""A finished run: a folder with ``result.json`` and the tensors whose SHA-256 it names; the one place that reads it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from ..data.arrays import Arrays
from ..errors import UserError, needed
from ..files import ReadError, make_folder, read_bytes, save_tensors, write_atomic
from . import result
from .folder import RunFolder
from .methods.method import is_file
from .network import new_model
from .places import Place, place
from .spec import RunSpec

PARTS = ("model", "masks", "kept")


class Untrusted(UserError):
    """A file names code that would have to be run."""


@dataclass(frozen=True)
class Finished:
    """What a run may start from: a finished run, or a file of weights alone, of which no ``spec`` is known.

    ``model`` is the state of the network, pruned weights zero; ``masks`` are by layer, none of a dense run.

    ``kept`` are states from its way (:attr:`gibbsprune.training.methods.Method.keeps`), as ``what/name``.
    """

    spec: RunSpec | None
    model: Mapping[str, Tensor]
    masks: Mapping[str, Tensor]
    kept: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run as Python has it: what it was, what came out, and the pruned network, in eval mode."""

    path: Place
    spec: RunSpec
    metrics: dict[str, Any]
    model: nn.Module
    masks: Mapping[str, Tensor]


def images_of(arrays: Arrays, spec: RunSpec) -> dict[str, Any]:
    """What a network must be told of its images: their shape, how they are standardised, and what its classes are."""
    mean, std = arrays.statistics(spec.recipe.standardise)
    return {
        "classes": arrays.classes, "channels": arrays.channels, "size": list(arrays.size),
        "mean": mean.tolist(), "std": std.tolist(),
        "class_names": None if arrays.class_names is None else list(arrays.class_names),
    }  # fmt: skip


def save_finished(home: Place, finished: Finished, record: Mapping[str, Any]) -> None:
    """Writes a run's folder; ``record`` is its result, and is written last: it says that the run is complete."""
    assert finished.spec is not None
    make_folder(home)
    about = {"run": json.dumps(finished.spec.as_dict())}  # one entry: safetensors keeps several in no fixed order
    digests = {}
    for part in PARTS:
        if tensors := getattr(finished, part):
            file = home / f"{part}.safetensors"
            digests[file.name] = save_tensors(file, dict(tensors), about)
    write_atomic(home / result.NAME, result.text({**record, "files": digests}))


def source_of(spec: RunSpec, root: Place | None = None) -> Finished | None:
    """What a run starts from (setting ``from``); refused where it has another SHA-256 than the setting ``weights``."""
    named, digest = spec.setting("from"), spec.setting("weights")
    if named is None:
        return None
    if digest is not None and not (found := digest_of(named, spec.seed, root)).startswith(digest):
        raise UserError(
            f"{named} holds other weights than this run starts from: their SHA-256 begins with {found[:12]}, not with "
            f"{digest}"
        )
    if is_file(named):
        return Finished(None, _loaded(place(named), read_bytes(place(named))), {})
    return read_finished(named, spec.seed, root)


def identified(spec: RunSpec) -> RunSpec:
    """The run with the SHA-256 of what it starts from, so that it is another run where that is changed."""
    named = spec.setting("from")
    if named is None or spec.setting("weights") is not None:
        return spec
    return spec.replace(settings={**dict(spec.settings), "weights": digest_of(named, spec.seed)[:12]})


def digest_of(named: str, seed: int, root: Place | None = None) -> str:
    """The SHA-256 of the weights in a file, or of those of a finished run."""
    if is_file(named):
        return hashlib.sha256(read_bytes(place(named))).hexdigest()
    home = _home(named, seed, root)
    return str(result.read(home / result.NAME).get("files", {}).get("model.safetensors"))


def read_finished(text: str | os.PathLike[str], seed: int = 0, root: Place | None = None) -> Finished:
    """The tensors of a finished run, by its folder or by its name below ``root``; of a fleet, the run of that seed."""
    home = _home(text, seed, root)
    record = result.read(home / result.NAME)
    return Finished(RunSpec.from_dict(record["spec"]), *(_tensors(home, record, part) for part in PARTS))


def _home(text: str | os.PathLike[str], seed: int, root: Place | None) -> Place:
    if os.path.isfile(text):
        raise UserError(
            f"{os.fspath(text)} is neither the folder of a run nor a .safetensors file: write the weights of a network "
            "with safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')"
        )
    named = root / os.fspath(text) if root is not None else None
    return named if named is not None and (named / result.NAME).exists() else find(text, seed)


def load_run(folder: str | os.PathLike[str], trust: bool = False) -> Run:
    """A finished run: ``spec``, ``metrics`` (its ``result.json``), ``masks``, and its pruned network as ``model``.

    Args:
        folder: the run's folder; of a fleet, the folder of one of its runs.
        trust: import a network that the folder names as ``package.module:function``. That is somebody's code: without
            this it is refused.
    """
    home = find(folder)
    record = result.read(home / result.NAME)
    spec = RunSpec.from_dict(record["spec"])
    check_trust([spec], home, trust)
    state, masks = (_tensors(home, record, part) for part in PARTS[:2])
    try:
        images = SimpleNamespace(**record["images"])
        model = new_model(spec, images)  # type: ignore[arg-type]  # which asks for classes and channels alone
        model.load_state_dict(dict(state))
    except (KeyError, AttributeError, TypeError) as error:
        raise ReadError(f"{home / result.NAME} does not say what the run's images are ({error})") from None
    except RuntimeError as error:
        last = str(error).splitlines()[-1].strip()
        raise UserError(f"{home / 'model.safetensors'} is of another network than {spec.model}: {last}") from error
    return Run(home, spec, record, model.eval(), masks)


def check_trust(specs: list[RunSpec], where: object, trust: bool) -> None:
    """Refuses networks that a file names and that are somebody's code, unless they are trusted."""
    foreign = sorted({spec.model for spec in specs if ":" in spec.model})
    if foreign and not trust:
        raise Untrusted(
            f"{where} names the network {foreign[0]}, which is code that would be run; give --trust (trust=True) if "
            "you know where it comes from"
        )


def find(text: str | os.PathLike[str], seed: int | None = None) -> Place:
    """The folder of a finished run; of a fleet's, that of the run with a seed."""
    path = place(text)
    if (path / result.NAME).exists():
        return path
    folder = RunFolder.open(path.parent if not (path / "run.json").exists() and _inside(path) else path)
    homes = dict(zip(folder.runs, folder.specs))
    if path != folder.path:
        if path not in homes:
            if folder.path in homes:
                raise UserError(f"{path} holds no run, but {folder.path} does")
            names = ", ".join(home.name for home in homes)
            raise UserError(f"the fleet {folder.path} has no run {path.name}; its runs: {names}")
        homes = {path: homes[path]}
    elif len(homes) > 1 and seed is None:
        raise UserError(f"{path} holds {len(homes)} runs; name one of them, such as {folder.runs[0]}")
    elif len(homes) > 1:
        homes = {home: spec for home, spec in homes.items() if spec.seed == seed}
    if not homes:
        seeds = ", ".join(str(spec.seed) for spec in folder.specs)
        raise UserError(f"the fleet {path} has no run with seed {seed}; it has seeds {seeds}")
    if len(homes) > 1:
        names = ", ".join(home.name for home in homes)
        raise UserError(f"the fleet {path} has several runs with seed {seed}; name the folder of one: {names}")
    (home,) = homes
    if not (home / result.NAME).exists():
        raise UserError(f"the run {home} is not finished; continue it with: gibbsprune train --resume {folder.path}")
    return home


def _inside(path: Place) -> bool:
    return isinstance(path, Path) and (path.parent / "run.json").exists()


def _tensors(home: Place, record: Mapping[str, Any], part: str) -> Mapping[str, Tensor]:
    """One of a run's files, if it has it; one that is not as it was written is refused."""
    file = home / f"{part}.safetensors"
    digest = record.get("files", {}).get(file.name)
    if digest is None:
        if part == "model":
            raise ReadError(f"{home / result.NAME} does not say what {file.name} must be")
        return {}
    content = read_bytes(file)
    if hashlib.sha256(content).hexdigest() != digest:
        raise ReadError(f"{file} is damaged: its checksum is not the one in {result.NAME}")
    return _loaded(file, content)


def _loaded(file: Place, content: bytes) -> Mapping[str, Tensor]:
    tensors = needed("safetensors.torch", "reading a run", "demo")
    try:
        found: Mapping[str, Tensor] = tensors.load(content)
        return found
    except Exception as error:  # safetensors' own exception, which is no subclass of anything
        raise ReadError(f"{file} cannot be read: {error}") from None
