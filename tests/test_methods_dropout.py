"""Targeted dropout: who is targeted, how often each is dropped, one coin per kernel or filter, α over the epochs.

Frequencies are of 4 000 draws. A bound of 5.5 standard deviations is exceeded by chance in 4e-8 of cases; the tests
here make fewer than 500 such comparisons, and the streams are seeded.
"""

from __future__ import annotations

import pytest
import torch

from gibbsprune.errors import UserError
from gibbsprune.threshold import kept_count, mean_squares
from gibbsprune.training.fleet import Fleet
from method_bench import RECIPE, SMALL, few, replica, spec
from test_methods_selection import ORDERED, SHAPED

DRAWS = 4000


def draws(run, count: int = DRAWS) -> torch.Tensor:
    """Masks of the layer as training draws them, one row per draw, one column per neighbourhood."""
    engine, site = run.engine, run.sites["second"]
    engine.set_schedules(0)
    found = []
    for _ in range(count):
        engine.masks.draw()
        rows = site.structure.rows(engine.network.mask_views()[run.places["second"]])
        assert bool((rows == rows[:, :1]).all()), "a neighbourhood was torn apart"
        found.append(rows[:, 0].clone())
    return torch.stack(found)


@pytest.mark.parametrize(
    ("structure", "targeted", "drop", "safe"),
    [
        ("weight", 0.5, 0.75, 10),  # 20 weights: 1 + ⌊19 · 0.5⌋ = 10 are targeted
        ("weight", 0.9, 0.2, 2),
        ("kernel", 0.5, 0.75, 5),  # 10 kernels: 1 + ⌊9 · 0.5⌋ = 5
        ("filter", 0.7, 0.9, 2),  # 5 filters: 1 + ⌊4 · 0.7⌋ = 3
    ],
)
def test_each_of_the_lowest_is_dropped_with_its_probability_and_no_other(structure, targeted, drop, safe):
    weight = ORDERED if structure == "weight" else SHAPED
    settings = {"targeted": targeted, "drop": drop}
    run = replica("targeted-dropout", structure, weight, sparsity=0.5, settings=settings)
    masks = draws(run)
    order = mean_squares(run.weights["second"], run.sites["second"].structure).argsort()
    lowest, largest = order[: len(order) - safe], order[len(order) - safe :]
    assert bool(masks[:, largest].all()), "one that is not targeted was dropped"
    deviation = (drop * (1 - drop) / DRAWS) ** 0.5
    gone = 1 - masks[:, lowest].double()
    assert (gone.mean(0) - drop).abs().max() < 5.5 * deviation
    pairs = torch.corrcoef(gone.T) - torch.eye(len(lowest))
    assert pairs.abs().max() < 5.5 / DRAWS**0.5, "two coins depend on each other"
    later = (gone[1:] - drop) * (gone[:-1] - drop)
    assert later.mean(0).abs().max() < 5.5 * drop * (1 - drop) / DRAWS**0.5, "a draw depends on the one before"


@pytest.mark.parametrize(("drop", "left"), [(0.0, 20), (1.0, 10)])
def test_never_and_always(drop, left):
    run = replica("targeted-dropout", weight=ORDERED, settings={"drop": drop, "targeted": 0.5})
    assert draws(run, 50).sum(1).tolist() == [left] * 50


def test_a_fraction_of_nothing_targets_nothing():
    """Also not the smallest weight, on which the quantile lies."""
    run = replica("targeted-dropout", weight=ORDERED, settings={"drop": 1.0, "targeted": 0.0})
    assert bool(draws(run, 20).all())


def test_the_papers_settings_are_the_defaults():
    usual = {
        "drop": 0.75,
        "targeted": 0.9,
        "ramping": False,
        "ramp": "none",
        "until": 0.5,
        "from": None,
        "weights": None,
    }
    assert dict(spec("targeted-dropout").settings) == usual
    assert spec("targeted-dropout", "kernel").setting("drop") == 0.75
    filters = spec("targeted-dropout", "filter", sparsity=0.75)
    assert (filters.setting("drop"), filters.setting("targeted")) == (0.9, 0.75)


def levels(epochs: int, stretch: int = 1, **settings) -> list[float]:
    """α in every epoch of a run, as the rule gets it."""
    recipe = RECIPE.replace(epochs=epochs)
    run = replica("targeted-dropout", recipe=recipe, stretch=stretch, sparsity=0.8, settings=settings)
    found = []
    for epoch in range(epochs * stretch):
        run.engine.set_schedules(epoch)
        found.append(run.engine.masks.betas.item())
    return found


def test_ramping_rises_linearly_from_zero_to_the_sparsity():
    assert levels(5, ramping=True) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert levels(1, stretch=5, ramping="yes") == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert levels(1, ramping=True) == [0]
    assert levels(3) == [0.75] * 3
    assert levels(2, drop=0.3) == [0.3] * 2


def test_ramping_and_a_drop_rate_contradict_each_other():
    with pytest.raises(
        UserError, match=r"^drop is 0\.3: allowed are none with ramping, in which α rises to the sparsity$"
    ):
        spec("targeted-dropout", settings={"ramping": True, "drop": 0.3})


def test_its_authors_let_both_rates_rise_and_hold_them():
    """Over half of eight epochs: γ is at 0.95 of its end by half of that, α at its end with it."""
    assert levels(8, ramp="authors") == pytest.approx([0, 0.2475, 0.495, 0.7425, *[0.99] * 4])
    assert levels(4, stretch=2, ramp="authors", until=0.25, drop=0.8) == pytest.approx([0, 0.4, *[0.8] * 6])
    with pytest.raises(UserError, match=r"^ramp is 'authors': allowed are 'none' with ramping"):
        spec("targeted-dropout", settings={"ramping": True, "ramp": "authors"})
    recipe, settings = RECIPE.replace(epochs=8), {"ramp": "authors", "drop": 1.0, "targeted": 0.8}
    run = replica("targeted-dropout", weight=ORDERED, recipe=recipe, settings=settings)
    left = []
    for epoch in range(8):
        run.engine.set_schedules(epoch)
        run.engine.masks.betas.fill_(1.0)  # all that are targeted go
        run.engine.masks.draw()
        left.append(int(run.engine.network.mask_views()[0].sum()))
    gamma = [0, 0.475 * 0.8, 0.95 * 0.8, 0.975 * 0.8, *[0.8] * 4]
    assert left == [kept_count(fraction, 20) for fraction in gamma]


def test_runs_of_a_fleet_have_their_own_targets_rates_and_coins():
    """The masks of fused runs are bit for bit those of each run alone."""
    specs = [
        spec("targeted-dropout", "kernel", model=SMALL, seed=1, settings={"drop": 0.2}),
        spec("gibbs", "kernel", model=SMALL, seed=1),
        spec("targeted-dropout", model=SMALL, seed=1, settings={"targeted": 0.3}),
        spec("targeted-dropout", "filter", model=SMALL, sparsity=0.75),
        spec("targeted-dropout", model=SMALL, settings={"ramp": "authors"}),
    ]
    digits = few(32)
    together = Fleet(specs, digits).engines[0]
    together.set_schedules(1)
    for _ in range(3):
        together.masks.draw()
    for k, one in enumerate(specs):
        alone = Fleet([one], digits).engines[0]
        alone.set_schedules(1)
        for _ in range(3):
            alone.masks.draw()
        own = [view for (_, run, _), view in zip(together.network.sites, together.network.mask_views()) if run == k]
        assert all(torch.equal(a, b) for a, b in zip(own, alone.network.mask_views(), strict=True)), one.name()
