"""A suite's state as a few files small enough to carry: results, what others start from, half-done fleets.

Everything goes into one compressed archive, cut into parts; a list beside them says what the parts must be. Only plain
files under ``results`` and ``work`` are ever taken out of it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from ..errors import UserError
from ..files import make_folder, write_atomic
from ..training import checkpoint
from ..training.places import Place, files, remove_folder
from . import pace, planner, store, suite
from .paper import Cell

PART = 15 * 2**20
TOTAL = 60 * 2**20
LIST = "suite-state.json"


def pack(
    everything: Sequence[Cell],
    results: Place,
    work: Place,
    out: Path,
    part: int = PART,
    total: int = TOTAL,
    say: Callable[[str], object] = print,
    of: str = "",
) -> list[Path]:
    """Writes the state into ``out`` as parts of at most ``part`` bytes; what does not fit into ``total`` is named.

    ``of`` is the suite's name.
    """
    suite.check_results(everything, results)
    make_folder(out)
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for group in _groups(everything, results, work):
            try:
                contents = [(name, file.read_bytes()) for name, file in group]
            except FileNotFoundError:  # a fleet that has ended meanwhile
                continue
            size = sum(len(content) for _, content in contents)
            if buffer.tell() + size > total and group[0][0].startswith("work/"):
                say(f"left out of the state, which would be too large: {group[0][0]} ({size / 2**20:.1f} MiB)")
                continue
            for name, content in contents:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    whole = buffer.getvalue()
    mark, pieces = hashlib.sha256(whole).hexdigest()[:6], [whole[at : at + part] for at in range(0, len(whole), part)]
    paths, listed = [], []
    for i, piece in enumerate(pieces):
        paths.append(out / f"suite-state.{mark}.{i:03d}")  # beside the parts before, which stay whole until the list
        write_atomic(paths[-1], piece)
        listed.append({"name": paths[-1].name, "sha256": hashlib.sha256(piece).hexdigest()})
    write_atomic(out / LIST, json.dumps({"suite": of, "parts": listed}, indent=1) + "\n")
    for old in set(out.glob("suite-state.*")) - {*paths, out / LIST}:
        old.unlink()
    return [*paths, out / LIST]


def _groups(everything: Sequence[Cell], results: Place, work: Place) -> Iterable[list[tuple[str, Place]]]:
    """What goes or stays together, the most important first."""
    for file in files(results, "*.json"):
        yield [(f"results/{file.name}", file)]
    if (record := work / pace.RECORD).exists():
        yield [(f"work/{pace.RECORD}", record)]
    fleets, at_hand = planner.begun(work), planner.saved(work)
    needed = [suite.source(spec) for specs in fleets.values() for spec in specs]
    needed += planner.needed(suite.with_follow_ups(everything, results), store.names(results), at_hand)
    for name in dict.fromkeys(needed):
        if name in at_hand:
            kept = f"{planner.FINISHED}/{name}.safetensors"
            yield [(f"work/{kept}", work / kept)]
    for folder in fleets:
        parts = [folder / planner.CELLS, *(path for _, path in checkpoint.checkpoints(folder)[-1:])]
        yield [(f"work/{folder.name}/{file.name}", file) for file in parts]


def unpack(everything: Sequence[Cell], source: Path, results: Place, work: Place, of: str = "") -> list[str]:
    """Takes a packed state apart into the two folders; returns what was written. Another suite's is refused.

    Results that are there already stay as they are.
    """
    try:
        found = json.loads((source / LIST).read_text())
        theirs, listed = ("", found) if isinstance(found, list) else (found["suite"], found["parts"])
        pieces = [(source / entry["name"]).read_bytes() for entry in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{source} holds no whole state of a suite: {error}") from None
    if of and theirs and of != theirs:
        raise UserError(f"{source} holds the state of the suite {theirs!r}, not of {of!r}")
    for entry, piece in zip(listed, pieces):
        if hashlib.sha256(piece).hexdigest() != entry["sha256"]:
            raise UserError(f"{source / entry['name']} is damaged (its checksum does not match)")
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces)), mode="r:gz") as archive:
            members = [(member.name, _target(member, results, work), _content(archive, member)) for member in archive]
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{source} holds no whole state of a suite: {error}") from None
    own, there, written = {f"results/{spec.name()}.json" for spec in suite.own(everything)}, store.names(results), []
    for name, target, content in members:  # all of them, before anything is written
        if name in own:
            store.parse(target.name, content)
    for name, target, content in members:
        if not (name.startswith("results/") and target.stem in there):
            make_folder(target.parent)
            write_atomic(target, content)
            written.append(name)
    _drop_finished(everything, results, work)
    return written


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def _target(member: tarfile.TarInfo, results: Place, work: Place) -> Place:
    """Where a member belongs; anything but a plain file of ours is refused."""
    parts = PurePosixPath(member.name).parts
    roots = {"results": results, "work": work}
    if not member.isfile() or len(parts) < 2 or parts[0] not in roots or ".." in parts:
        raise UserError(f"the state holds {member.name!r}, which is not a file of a suite")
    target = roots[parts[0]]
    for part in parts[1:]:
        target = target / part
    return target


def _drop_finished(everything: Sequence[Cell], results: Place, work: Place) -> None:
    """Forgets half-done fleets from which nothing is to be had any more."""
    known = suite.with_follow_ups(everything, results)
    for folder in planner.over(planner.begun(work), known, store.names(results), planner.saved(work)):
        remove_folder(folder)
