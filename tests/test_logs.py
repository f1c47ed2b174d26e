"""Logs beside the run's folder, each by its real package: TensorBoard's files, MLflow's file store, wandb offline."""

import os
import sys

import pytest

from fake_fleet import FakeFleet
from gibbsprune.errors import UserError
from gibbsprune.training import logs, pictures, run
from gibbsprune.training.spec import RunSpec

SPEC = RunSpec(model="resnet8", epochs=6)


@pytest.fixture
def fleet(monkeypatch, tmp_path):
    fresh = type("Fresh", (FakeFleet,), {})
    monkeypatch.setattr(run, "Fleet", fresh)
    monkeypatch.setattr(pictures, "available", lambda: False)
    monkeypatch.chdir(tmp_path)
    return fresh


@pytest.fixture
def client(monkeypatch, tmp_path):
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    return MlflowClient()


def of(*names):
    return run.Options(log=names)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the file store's future
def test_nothing_is_logged_unasked(fleet, client, tmp_path):
    run.start([SPEC], out="r")
    assert client.search_experiments(filter_string="name = 'gibbsprune'") == []
    assert not (tmp_path / "r" / "tensorboard").exists()


def test_tensorboard(fleet, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run.start([SPEC], out="r", options=of("tensorboard"))
    events = EventAccumulator(str(tmp_path / "r" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("test_accuracy")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the file store's future
def test_mlflow(fleet, client, tmp_path):
    """What the run is, every epoch, what came out; a fleet's runs apart."""
    specs = [SPEC, SPEC.replace(seed=1)]
    outcome = run.start(specs, out="r", options=of("mlflow", "tensorboard"))
    (experiment,) = client.search_experiments(filter_string="name = 'gibbsprune'")
    found = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    assert set(found) == {spec.name() for spec in specs}
    for spec, result in zip(specs, outcome.results):
        logged = found[spec.name()]
        assert logged.info.status == "FINISHED"
        assert logged.data.params["sparsity"] == "0.9"
        assert logged.data.params["recipe.batch"] == "64"
        assert logged.data.params["seed"] == str(spec.seed)
        assert logged.data.metrics["final_accuracy"] == result["accuracy"]
        history = client.get_metric_history(logged.info.run_id, "test_accuracy")
        curve = {point["epoch"]: point["test_accuracy"] for point in result["curve"]}
        assert {point.step: point.value for point in history} == curve
        assert logged.info.run_id in (tmp_path / "r" / "run.json").read_text()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_stopped_run_goes_on_in_the_same_log(fleet, client, monkeypatch):
    real = fleet.train_epoch

    def stopping(self, *args):
        if self.epoch == 3:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(fleet, "train_epoch", stopping)
    with pytest.raises(KeyboardInterrupt):
        run.start([SPEC], out="r", options=of("mlflow"))
    (experiment,) = client.search_experiments(filter_string="name = 'gibbsprune'")
    assert [each.info.status for each in client.search_runs([experiment.experiment_id])] == ["KILLED"]
    monkeypatch.setattr(fleet, "train_epoch", real)
    run.resume("r")
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    history = client.get_metric_history(logged.info.run_id, "loss")
    assert [point.step for point in history] == [1, 2, 3, 4, 5, 6]


def test_a_log_that_fails_never_costs_a_run(fleet, monkeypatch, capsys):
    """Not within the training; one that cannot begin is refused before anything is trained."""

    class Failing(logs.TensorBoard):
        def add(self, values, epoch):
            if epoch == 3:
                raise OSError("the server is gone")

    monkeypatch.setitem(logs.LOGS, "tensorboard", Failing)
    assert run.start([SPEC], out="r", options=of("tensorboard")).results
    warning = "warning: the log tensorboard failed and is given up, the run goes on (OSError: the server is gone)"
    assert capsys.readouterr().out.count(warning) == 1

    def refuse(*_):
        raise OSError("no such server")

    monkeypatch.setitem(logs.LOGS, "tensorboard", refuse)
    with pytest.raises(UserError, match=r"^--log tensorboard cannot be used here: OSError: no such server$"):
        run.start([SPEC], out="s", options=of("tensorboard"))


def test_names_and_packages(fleet, monkeypatch):
    with pytest.raises(UserError, match=r"^--log is 'comet': allowed are 'tensorboard', 'mlflow', 'wandb'$"):
        run.start([SPEC], out="r", options=of("comet"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    sentence = r"^--log wandb needs the package wandb; install it with: pip install 'gibbsprune\[wandb\]'$"
    with pytest.raises(UserError, match=sentence):
        run.start([SPEC], out="r", options=of("wandb"))
    assert not os.path.exists("r")


@pytest.mark.slow
def test_wandb_offline(fleet, monkeypatch, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run.start([SPEC, SPEC.replace(seed=1)], out="r", options=of("wandb"))
    for seed in (0, 1):
        assert list((tmp_path / "r" / f"seed-{seed}" / "wandb").glob("offline-run-*/run-*.wandb"))
