"""The examples: what they declare can be trained, together."""

import sys
from pathlib import Path

import pytest
import torch

from gibbsprune import data
from gibbsprune.sweeps import declare
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.fuse import same_function

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("file", ["rehearsal.yaml", "vit.py"])
def test_sweeps_are_declared(file: str) -> None:
    found = declare.read(EXAMPLES / file).everything({})
    assert len({spec.name() for spec in found}) == len(found) > 3


def test_the_transformer_is_trained_in_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of it are fused: tokens go through batched dense layers, and runs are more heads."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "vit", raising=False)
    import vit

    assert sum(p.numel() for p in vit.make(10, 3).parameters()) == 1_788_874
    assert same_function([vit.tiny(10, 1) for _ in range(3)], torch.zeros(2, 1, 8, 8))
    specs = [one for one in vit.trainings("digits", "vit:tiny", epochs=2) if one.seed == 0]
    fleet = Fleet(
        [one.replace(recipe=one.recipe.replace(shift=1, warmup_epochs=0)) for one in specs], data.load("digits")
    )
    assert len(fleet.engines) == 1
    losses = [[one["loss"] for one in fleet.train_epoch()] for _ in range(2)]
    assert specs[0].method == "dense"
    assert losses[1][0] < losses[0][0] < 2.4
    for one, found in zip(specs, fleet.finish()):
        assert found["sparsity"] == pytest.approx(one.sparsity if one.how.prunes else 0, abs=0.01)
