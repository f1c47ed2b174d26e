"""The page of the recipe `best`: it is what the results say, and it tells chance from difference."""

from __future__ import annotations

import copy
from pathlib import Path

from paper import groups, rivals

ROOT = Path(__file__).parents[1]
BEST = ROOT / "results" / "best"


def test_the_page_is_what_the_results_say():
    written = (ROOT / "docs" / "best.md").read_text(encoding="utf-8")
    assert written == rivals.text(groups.load(BEST), BEST, ROOT / "docs")


def test_verdicts_follow_the_differences():
    records = [record for group in groups.load(BEST) for record in group.records]
    ours = [record for record in records if "resnet20-gibbs-" in record["name"] and record["spec"]["sparsity"] == 0.95]
    rival = [record for record in records if "-rigl-" in record["name"] and record["spec"]["sparsity"] == 0.95]
    for change, sign in ((0.0, 1), (0.1, -1)):  # RigL as it is, and ten points better
        changed = copy.deepcopy(rival)
        for record in changed:
            record["accuracy"] += change
        found = rivals.differences(list(groups.Results([*ours, *changed])), BEST)
        assert [each.names for each in found] == [("RigL, ERK", "95 %")]
        assert found[0].claim.sign(found[0].claim.p) == sign
        assert (found[0].claim.difference > 0) == (sign > 0)
        assert found[0].paired is not None
        assert len(found[0].paired.pairs) == 3
        assert found[0].paired.ahead > 0  # its images are as they were


def test_runs_that_nobody_knows_keep_their_names():
    (group, *_) = groups.load(BEST)
    assert rivals.label(group.spec.replace(method="random-mask")).startswith("cifar10-resnet20-random-mask")
