"""Where the epochs of a run are told beside its folder, if that is asked for: TensorBoard, MLflow, Weights & Biases.

Each log is told what the run is when it begins, what each epoch says, and what came out. Addresses, projects and keys
are those of its package (``MLFLOW_TRACKING_URI``, ``WANDB_PROJECT`` …). A resumed run goes on in the same log, whose
number stands in ``run.json``. A log that fails while a run trains is given up with a warning: it never costs the run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..checks import check_one_of
from ..errors import UserError, needed
from ..text import told
from .folder import RunFolder
from .session import Record
from .spec import RunSpec

PROJECT = "gibbsprune"
EPOCH = ("loss", "train_accuracy", "test_loss", "test_accuracy", "beta", "agreement", "sparsity", "lr")
END = ("accuracy", "accuracy_converged", "accuracy_recalibrated", "sparsity", "parameters", "nonzero", "seconds")


class TensorBoard:
    """Events in the run's folder ``tensorboard``."""

    def __init__(self, home: Path, spec: RunSpec, epoch: int, number: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.number = "tensorboard"
        self.writer = SummaryWriter(str(home / self.number), purge_step=epoch + 1)

    def add(self, values: Mapping[str, float], epoch: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def end(self, values: Mapping[str, float] | None) -> None:
        self.writer.close()


class MLflow:
    """A run of the experiment ``gibbsprune``, or of ``MLFLOW_EXPERIMENT_NAME``."""

    def __init__(self, home: Path, spec: RunSpec, epoch: int, number: str | None) -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient()
        if number is not None:
            self.number = number
            self.client.update_run(number, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        of = experiment.experiment_id if experiment is not None else self.client.create_experiment(name)
        self.number = self.client.create_run(of, run_name=spec.name(), tags={"folder": str(home)}).info.run_id
        for key, value in settings(spec).items():
            self.client.log_param(self.number, key, value)

    def add(self, values: Mapping[str, float], epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.number, metrics=[Metric(name, value, now, epoch) for name, value in values.items()])

    def end(self, values: Mapping[str, float] | None) -> None:
        if values is not None:
            self.add({f"final_{name}": value for name, value in values.items()}, 0)
        self.client.set_terminated(self.number, "KILLED" if values is None else "FINISHED")


class WandB:
    """A run of the project ``gibbsprune``, or of ``WANDB_PROJECT``."""

    def __init__(self, home: Path, spec: RunSpec, epoch: int, number: str | None) -> None:
        import wandb

        self.number = number or secrets.token_hex(4)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=spec.name(), config=settings(spec), dir=str(home),
            id=self.number, resume="allow", reinit="create_new",
        )  # fmt: skip

    def add(self, values: Mapping[str, float], epoch: int) -> None:
        self.run.log(dict(values), step=epoch)

    def end(self, values: Mapping[str, float] | None) -> None:
        self.run.summary.update({f"final_{name}": value for name, value in (values or {}).items()})
        self.run.finish(exit_code=1 if values is None else 0)


Log = TensorBoard | MLflow | WandB
LOGS: dict[str, type[Log]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def settings(spec: RunSpec) -> dict[str, Any]:
    """A run's fields, those of its recipe and its method's settings, by name."""
    values = spec.as_dict()
    for part in ("recipe", "settings"):
        values.update({f"{part}.{name}": value for name, value in values.pop(part).items()})
    return values


def check_packages(names: Sequence[str]) -> None:
    """Refuses logs that there are not, or whose package is missing."""
    for name in names:
        check_one_of("--log", name, LOGS)
        needed(name, f"--log {name}", name)


class Logs:
    """The logs of every run of a folder."""

    def __init__(self, names: Sequence[str], folder: RunFolder, epoch: int, warn: Callable[[str], object]) -> None:
        self.warn = warn
        self.open: dict[str, list[Log]] = {}
        before = folder.record.get("logs", {})
        for name in names:
            numbers = before.get(name, [None] * len(folder.runs)) if isinstance(before, dict) else []
            if len(numbers) != len(folder.runs) or not all(isinstance(n, (str, type(None))) for n in numbers):
                raise UserError(f"{folder.path / 'run.json'} has been changed: logs.{name} is {str(numbers)[:40]!r}")
            with self._told(name, stop=not epoch):
                self.open[name] = [
                    LOGS[name](Path(str(home)), spec, epoch, number)
                    for home, spec, number in zip(folder.runs, folder.specs, numbers)
                ]
        folder.record["logs"] = {**before, **{name: [log.number for log in logs] for name, logs in self.open.items()}}

    def add(self, records: Sequence[Record | None]) -> None:
        """One epoch of each run."""
        for name in list(self.open):
            with self._told(name):
                for log, record in zip(self.open[name], records):
                    if record is not None:
                        values = {key: float(record[key]) for key in EPOCH if record.get(key) is not None}
                        log.add(values, record["epoch"])

    def end(self, results: Sequence[Mapping[str, Any]] | None) -> None:
        """The results, or None where the runs were stopped."""
        for name in list(self.open):
            with self._told(name):
                for number, log in enumerate(self.open[name]):
                    log.end(None if results is None else {key: float(results[number][key]) for key in END})
        self.open = {}

    @contextlib.contextmanager
    def _told(self, name: str, stop: bool = False) -> Iterator[None]:
        """A log that fails: when a run begins that is an error, later it is left out."""
        try:
            yield
        except Exception as error:
            if stop:
                raise UserError(f"--log {name} cannot be used here: {told(error)}") from None
            self.open.pop(name, None)
            self.warn(f"warning: the log {name} failed and is given up, the run goes on ({told(error)})")
