"""The page of the recipe `best`: it is what the results say, and it tells chance from difference."""

from __future__ import annotations

import copy
from pathlib import Path

from gibbsprune.training import RECIPES, RunSpec
from paper import groups, rivals

ROOT = Path(__file__).parents[1]
BEST = ROOT / "results" / "best"


def of_95(kind: str) -> list[dict]:
    """Records of ResNet-20 at 95 %, with the decay that the recipe had first."""
    records = [record for group in groups.load(BEST) for record in group.records]
    records = [record for record in records if record["spec"]["recipe"]["weight_decay"] == 3e-4]
    return [record for record in records if f"resnet20-{kind}-0.95-" in record["name"]]


def test_the_page_is_what_the_results_say():
    written = (ROOT / "docs" / "best.md").read_text(encoding="utf-8")
    assert written == rivals.text(groups.load(BEST), BEST, ROOT / "docs")


def test_verdicts_follow_the_differences():
    ours, rival = of_95("gibbs-weight-square"), of_95("rigl-weight")
    for change, sign in ((0.0, 1), (0.1, -1)):  # RigL as it is, and ten points better
        changed = copy.deepcopy(rival)
        for record in changed:
            record["accuracy"] += change
        found = rivals.differences(list(groups.Results([*ours, *changed])), BEST)
        assert [each.names for each in found] == [("RigL, ERK, decay 0.0003", "95 %")]
        assert found[0].claim.sign(found[0].claim.p) == sign
        assert (found[0].claim.difference > 0) == (sign > 0)
        assert found[0].paired is not None
        assert len(found[0].paired.pairs) == 3
        assert found[0].paired.ahead > 0  # its images are as they were


def test_all_are_compared_with_the_recipe_as_it_is_and_where_it_is_missing_as_it_was():
    before, rival = of_95("gibbs-weight-square"), of_95("rigl-weight")
    now = copy.deepcopy(before)
    for record in now:
        record["spec"]["recipe"]["weight_decay"] = 5e-4
        record["spec"]["settings"] |= {"gradient": "proportional", "fading": 0.0}
    earlier = "recipe `best`, straight-through gradients, decay 0.0003"
    found = rivals.differences(list(groups.Results([*before, *now, *rival[:1]])), BEST)
    assert [each.names[0] for each in found] == [earlier, "RigL, ERK, decay 0.0003"]
    found = rivals.differences(list(groups.Results([*before, *rival[:1]])), BEST)
    assert [each.names[0] for each in found] == ["RigL, ERK, decay 0.0003"]
    assert rivals.differences(list(groups.Results(rival)), BEST) == []


def test_runs_are_called_by_what_is_their_own_and_unknown_ones_by_their_names():
    spec = RunSpec("cifar10", "resnet20", recipe=RECIPES["best"].replace(weight_decay=1e-3, cutout=8))
    assert rivals.label(spec) == "recipe `best`, decay 0.001, cutout of 8"
    assert rivals.label(spec.replace(method="random-mask")).startswith("cifar10-resnet20-random-mask")
