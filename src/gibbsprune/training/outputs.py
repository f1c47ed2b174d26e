"""What a run leaves behind: TensorBoard events on request, the model, its masks, the result, the summary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gibbsprune.files import save_tensors, write_json
from gibbsprune.training.folder import RunFolder
from gibbsprune.training.summary import write_summary

if TYPE_CHECKING:
    from gibbsprune.training.fleet import Fleet

EVENTS = ("loss", "train_accuracy", "test_loss", "test_accuracy", "beta", "agreement", "lr")


class EventLog:
    """TensorBoard events of every run, under its ``tensorboard`` folder."""

    def __init__(self, folder: RunFolder, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writers = [SummaryWriter(str(run / "tensorboard"), purge_step=epoch + 1) for run in folder.runs]

    def add(self, epoch: int, records: Sequence[dict[str, Any]]) -> None:
        for writer, record in zip(self.writers, records):
            for key in EVENTS:
                if record.get(key) is not None:
                    writer.add_scalar(key, record[key], epoch)
            writer.flush()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:
            writer.close()


def write_outputs(folder: RunFolder, fleet: Fleet, results: Sequence[dict[str, Any]], seconds: float) -> None:
    """Write the final files of every run. ``result.json`` comes last: it marks the run as finished."""
    for k, (run, spec, result) in enumerate(zip(folder.runs, folder.specs, results)):
        result.update(seconds=round(seconds, 1), epochs=spec.total_epochs, name=spec.name())
        about = {"run": json.dumps(spec.as_dict())}  # one entry: safetensors keeps several in no fixed order
        done = fleet.finished(k)
        for name, tensors in (("model", done.model), ("masks", done.masks), ("kept", done.kept)):
            if tensors:
                save_tensors(run / f"{name}.safetensors", dict(tensors), about)
    write_summary(folder, results)
    for run, result in zip(folder.runs, results):
        write_json(run / "result.json", result)
    if len(folder.runs) > 1:
        write_json(folder.path / "result.json", {"runs": results})
