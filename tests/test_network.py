"""A user's network is looked at before anything is trained or written."""

from __future__ import annotations

import pytest
import torch

from gibbsprune import data
from gibbsprune.cli import main
from gibbsprune.errors import UserError
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.network import check_network
from gibbsprune.training.spec import RunSpec


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("a_tuple", r"answers with a tuple; it must be a tensor of 10 numbers per image$"),
        ("a_tuple_in_training", r"answers with a tuple"),
        ("its_choice", r"answers two images with int64 of shape \(2,\); it must be a tensor of 10 numbers per image$"),
        ("seven_classes", r"answers two images with float32 of shape \(2, 7\); it must be a tensor of 10 numbers"),
        ("three_channels", r"fails on images of shape \(1, 8, 8\): RuntimeError: .* to have 3 channels"),
        ("versioned", r"keeps _extra_state, which is no tensor; a run can save tensors only$"),
        ("counting", r"has count only before or after its first use; it must have it always$"),
        ("always_the_same", r"returned the same weights twice; it must make a new network at every call$"),
    ],
)
@pytest.mark.parametrize("seeds", [1, 2])
def test_networks_that_cannot_be_trained_are_refused(function, sentence, seeds):
    name = f"own_networks:{function}"
    with pytest.raises(UserError, match=f"^{name} {sentence}"):
        Fleet([RunSpec(model=name, seed=seed) for seed in range(seeds)], data.load("digits"))


@pytest.mark.parametrize("function", ["dropping", "normless", "frozen"])
def test_others_are_not_and_no_random_number_is_used_up(function):
    before = torch.get_rng_state()
    check_network(RunSpec(model=f"own_networks:{function}"), data.load("digits"))
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_written_for_a_refused_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--model", "own_networks:a_tuple"]) == 2
    assert capsys.readouterr().err.startswith("gibbsprune: own_networks:a_tuple answers with a tuple")
    assert not list(tmp_path.iterdir())
