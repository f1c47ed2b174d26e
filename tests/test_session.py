"""A training session: when it tests, saves and stops, and what it knows after being taken up again."""

from __future__ import annotations

import math
import os
import signal

import pytest
import torch

from gibbsprune.errors import UserError
from gibbsprune.training import checkpoint, session
from gibbsprune.training.interrupt import Interrupt, Interrupted
from gibbsprune.training.session import Session, Watch


class Scripted:
    """A fleet whose epochs take the seconds that are written down; its second engine starts with the fourth."""

    specs, device, steps_per_epoch, epochs, waits = ("a", "b"), torch.device("cpu"), 8, 6, [0, 3]

    def __init__(self) -> None:
        self.epoch, self.now, self.seconds = 0, 0.0, [3.0, 1.0, 1.0, 2.9, 1.0, 1.0]

    def monotonic(self) -> float:
        return self.now

    def starts_engine(self) -> bool:
        return self.epoch == 3

    def train_epoch(self, step) -> list[dict]:
        self.now += self.seconds[self.epoch]
        self.epoch += 1
        return [{"loss": 1.0}, {"loss": 2.0}]

    def evaluate(self) -> list[dict]:
        return [{"accuracy": 0.5}] * 2

    def state_dict(self) -> dict:
        return {"epoch": self.epoch}

    def load_state_dict(self, state) -> None:
        self.epoch = state["epoch"]


@pytest.fixture
def fleet(monkeypatch) -> Scripted:
    scripted = Scripted()
    monkeypatch.setattr(session, "time", scripted)
    return scripted


def train(one: Session) -> bool:
    with Interrupt() as interrupt:
        return one.train(interrupt)


@pytest.mark.parametrize(("seconds", "reached"), [(15.5, 6), (13.4, 3), (7.0, 1), (6.9, 0)])
def test_starting_engines_are_reckoned_with_once(tmp_path, fleet, seconds, reached):
    """A start takes 2 s on the CPU; every moment has 1.5 epochs and a margin of 5 s to go."""
    one = Session(fleet, tmp_path, test_every=6, save_seconds=1e9, seconds=seconds)
    assert train(one) == (reached == 6)
    assert fleet.epoch == checkpoint.checkpoints(tmp_path)[-1][0] == reached
    assert one.allowed.seen == {
        runs: took for runs, took in ((1, [1.0, 1.0]), (2, [1.0, 1.0])) if reached > 3 * (runs - 1) + 1
    }


def test_runs_that_wait_have_their_own_epochs(fleet):
    one = Session(fleet, test_every=2)
    assert train(one)
    assert [[record["epoch"] for record in past] for past in one.history] == [[2, 4, 6], [1, 3]]
    assert one.curves()[0][0] == {"epoch": 2, "loss": 1.0, "test_accuracy": 0.5}


@pytest.mark.parametrize(
    ("every", "seconds", "saved"), [(1, 0.0, [1, 2, 3, 4, 5, 6]), (4, 0.0, [4, 6]), (1, 4.0, [2, 5, 6]), (1, 99.0, [6])]
)
def test_when_it_is_saved(fleet, tmp_path, monkeypatch, every, seconds, saved):
    found = []
    monkeypatch.setattr(checkpoint, "save", lambda folder, epoch, state: found.append(epoch))
    train(Session(fleet, tmp_path, save_every=every, save_seconds=seconds))
    assert found == saved


@pytest.mark.parametrize("when", ["passed", "between"])
def test_a_signal_that_comes_when_an_epoch_is_no_longer_saved_waits_for_the_next(fleet, tmp_path, monkeypatch, when):
    def stop(*_) -> bool:
        if fleet.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return False

    watch = Watch()
    monkeypatch.setattr(*((watch, "passed") if when == "passed" else (fleet, "starts_engine")), stop)
    with pytest.raises(Interrupted):
        train(Session(fleet, tmp_path, save_seconds=99.0, watch=watch))
    assert fleet.epoch == checkpoint.checkpoints(tmp_path)[-1][0] == 3


def test_it_goes_on_from_its_checkpoint(fleet, tmp_path):
    assert not train(Session(fleet, tmp_path, seconds=13.4))
    again = Session(Scripted(), tmp_path)
    assert session.resume(again, print)
    assert (again.fleet.epoch, [len(past) for past in again.history], again.earlier) == (3, [3, 0], 5.0)
    assert not session.resume(Session(Scripted(), tmp_path / "new"), print)


@pytest.mark.parametrize("state", [{"fleet": {"epoch": 1}}, {"fleet": {}, "history": [], "spent": 0.0}])
def test_checkpoints_of_something_else_are_refused(tmp_path, state):
    checkpoint.save(tmp_path, 1, state)
    with pytest.raises(UserError, match="holds checkpoints of something else"):
        session.resume(Session(Scripted(), tmp_path), print)


def test_all_have_diverged_when_none_is_left():
    bad, good = {"loss": math.nan}, {"loss": 1.0}
    assert session.all_diverged([bad, bad])
    assert not session.all_diverged([bad, good])
    assert not session.all_diverged([bad, None]), "one that has not started"
