"""What a run leaves behind: the model, its masks, the result, the summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import result
from .account import write_summary
from .environment import describe_environment, revision
from .finished import images_of, save_finished
from .folder import RunFolder
from .session import Session


def records(session: Session, finals: Sequence[dict[str, Any]], source: str | None = None) -> list[dict[str, Any]]:
    """The result of each run of a session that has ended, from what its fleet's ``finish`` says."""
    fleet = session.fleet
    environment = {**describe_environment(fleet.device), "training": fleet.how}
    shared = {"fleet": len(fleet.specs), "seconds": round(session.spent, 1), "environment": environment}
    shared["revision"] = source or revision()
    return [
        result.make(spec, {**final, "epochs": spec.total_epochs, "curve": curve, **shared})
        for spec, final, curve in zip(fleet.specs, finals, session.curves())
    ]


def write_outputs(folder: RunFolder, session: Session, finals: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Writes the final files of every run. ``result.json`` comes last: it marks the run as finished."""
    found, fleet = records(session, finals), session.fleet
    write_summary(folder, found)
    for k, (home, record) in enumerate(zip(folder.runs, found)):
        images = images_of(fleet.arrays, fleet.specs[k])
        save_finished(home, fleet.finished(k), {**record, "images": images})
    return found
