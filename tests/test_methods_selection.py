"""The selection rule of every method on layers computed by hand: which weights, kernels and filters go, and why."""

from __future__ import annotations

import pytest
import torch

from gibbsprune.errors import UserError
from gibbsprune.structures import KINDS
from gibbsprune.threshold import kept_count
from gibbsprune.training.methods import METHODS
from gibbsprune.training.methods.gradual import cubic
from gibbsprune.training.methods.lottery import round_sparsity
from gibbsprune.training.methods.magnitude import largest, rates
from gibbsprune.training.methods.rigl import exchanged
from gibbsprune.training.network import new_model
from method_bench import SMALL, few, kept, replica, spec

SHAPE = (5, 2, 1, 2)
#: The magnitudes 1 … 20 in some order and with some signs; RANK[i] is the magnitude of weight i.
RANK = [7, 18, 3, 12, 1, 20, 9, 15, 5, 11, 2, 17, 14, 6, 19, 4, 13, 8, 16, 10]
ORDERED = (torch.tensor(RANK, dtype=torch.float32) * torch.tensor([1.0, -1.0] * 10) / 20).view(SHAPE)

#: Filters of two kernels of two weights. Sums of magnitudes and sums of squares order them differently.
#: kernels, l1:      1.0  0.2   0.8  0.8   0.3  0.1    0.6 0.55    0.7  0.0
#: kernels, squares: 1.0  .02   .32  .32   .05  .01    .36 .2525   .25  0.0
#: filters, l1:      1.2        1.6        0.4         1.15        0.7
#: filters, squares: 1.02       .64        .06         .6125       .25
SHAPED = torch.tensor(
    [[[1.0, 0.0], [0.1, -0.1]], [[0.4, -0.4], [0.4, 0.4]], [[-0.2, 0.1], [0.1, 0.0]], [[0.6, 0.0], [-0.5, 0.05]],
     [[0.3, -0.4], [0.0, 0.0]]]
).view(SHAPE)  # fmt: skip
ROWS = {"kernel": [[2 * k, 2 * k + 1] for k in range(10)], "filter": [list(range(4 * k, 4 * k + 4)) for k in range(5)]}


def places(structure: str, rows: list[int]) -> list[int]:
    return sorted(i for row in rows for i in ROWS[structure][row])


def above(least: int) -> list[int]:
    """The weights of ORDERED of at least that magnitude."""
    return [i for i, rank in enumerate(RANK) if rank >= least]


def test_the_table_of_shaped_weights():
    """What the comment above says."""
    kernels, filters = SHAPED.reshape(10, 2), SHAPED.reshape(5, 4)
    torch.testing.assert_close(kernels.abs().sum(1), torch.tensor([1, 0.2, 0.8, 0.8, 0.3, 0.1, 0.6, 0.55, 0.7, 0]))
    squares = torch.tensor([1, 0.02, 0.32, 0.32, 0.05, 0.01, 0.36, 0.2525, 0.25, 0])
    torch.testing.assert_close(kernels.square().sum(1), squares)
    torch.testing.assert_close(filters.abs().sum(1), torch.tensor([1.2, 1.6, 0.4, 1.15, 0.7]))
    torch.testing.assert_close(filters.square().sum(1), torch.tensor([1.02, 0.64, 0.06, 0.6125, 0.25]))


# -- magnitude and filter-l1 -------------------------------------------------------------------------------------------


def test_magnitude_prunes_the_smallest_step_by_step():
    """Of 20 weights those at or under the p-quantile go: 1 + ⌊19p⌋ of them, 2 at 10 %, 4 at 20 %, … 18 at 90 %."""
    run = replica("magnitude", weight=ORDERED, sparsity=0.9)
    how = METHODS["magnitude"]
    how.begin_phase(run, 0)
    assert len(kept(run)) == 20  # nothing goes before the first training
    for phase, gone in enumerate([2, 4, 6, 8, 10, 12, 14, 16, 18], start=1):
        how.begin_phase(run, phase)
        assert kept(run) == above(gone + 1)


def test_magnitude_looks_at_the_weights_of_now_but_never_brings_one_back():
    run = replica("magnitude", weight=ORDERED, sparsity=0.9)
    METHODS["magnitude"].begin_phase(run, 1)
    weight = run.weights["second"].flatten()
    weight[4] = 9.0  # rank 1: pruned, but its stored weight has grown
    weight[5] = 0.0  # rank 20: kept so far, now the smallest
    METHODS["magnitude"].begin_phase(run, 2)
    assert kept(run) == [i for i in above(4) if i != 5]


def test_zeros_among_the_survivors_do_not_bring_pruned_ones_back():
    run = replica("magnitude", weight=torch.zeros(SHAPE), sparsity=0.9)
    run.hold("second", torch.arange(20).view(SHAPE) >= 10)
    METHODS["magnitude"].begin_phase(run, 8)
    assert kept(run) == [10, 11, 12, 13]


def test_rates_are_tens_of_percent_and_then_the_sparsity():
    assert rates(0.9) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert rates(0.25) == [0.1, 0.2, 0.25]
    assert rates(0.3) == [0.1, 0.2, 0.3]
    assert rates(0.95)[-2:] == [0.9, 0.95]
    assert rates(0.05) == [0.05]


@pytest.mark.parametrize(
    ("structure", "sparsity", "stay"),
    [
        ("kernel", 0.5, [0, 2, 3, 6, 8]),  # by squares kernel 7 would stay and 8 go
        ("kernel", 0.7, [0, 2, 3]),
        ("kernel", 0.95, [0]),
        ("filter", 0.4, [0, 1, 3]),
        ("filter", 0.7, [0, 1]),
        ("filter", 0.8, [1]),  # by squares filter 0
    ],
)
def test_filter_l1_prunes_the_smallest_sums_of_magnitudes(structure, sparsity, stay):
    run = replica("filter-l1", structure, SHAPED, sparsity=sparsity)
    for phase in range(len(run.spec.phases)):
        METHODS["filter-l1"].begin_phase(run, phase)
    assert kept(run) == places(structure, stay)


def test_the_last_phases_take_the_sources_place():
    """tune_epochs = 0 from a finished run: all pruning at once, and nothing is trained."""
    one = spec("magnitude", settings={"tune_epochs": 0, "from": "somewhere"})
    assert (one.own_epochs, one.total_epochs) == (0, 2)
    one = spec("magnitude", settings={"tune_epochs": 3}, stretch=2)
    assert (one.own_epochs, one.total_epochs) == (4 + 27, 4 + 27)
    assert [one.learning_rate(epoch) for epoch in (0, 4, 30)] == pytest.approx([0.02, 6e-3, 6e-3])
    assert spec("filter-l1", "filter", settings={"tune_rate": 0.5}, sparsity=0.1).learning_rate(2) == 0.5
    paper = spec("magnitude", recipe=None, data="cifar10")
    assert (paper.total_epochs, paper.learning_rate(200)) == (290, pytest.approx(1e-5))  # 200 + 9n of the paper


# -- those that end with the largest weights ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "structure", "sparsity", "stay"),
    [
        ("l1", "weight", 0.75, above(16)),
        ("targeted-dropout", "weight", 0.75, above(16)),
        ("targeted-dropout", "kernel", 0.5, places("kernel", [0, 2, 3, 6, 7])),  # by squares: 7, not 8
        ("targeted-dropout", "filter", 0.8, places("filter", [0])),  # by squares: 0, not 1
    ],
)
def test_the_mask_at_the_end_keeps_the_largest(method, structure, sparsity, stay):
    run = replica(method, structure, ORDERED if structure == "weight" else SHAPED, sparsity=sparsity)
    masks = run.engine.masks
    (mask,) = masks.final(masks.limits(), masks.drawn())
    assert mask.flatten().nonzero().flatten().tolist() == stay


# -- lottery -----------------------------------------------------------------------------------------------------------


def test_lottery_prunes_the_same_share_of_what_is_left_in_every_round():
    assert [round_sparsity(0.875, done, 3) for done in (1, 2, 3)] == pytest.approx([0.5, 0.75, 0.875])
    assert round_sparsity(0.9, 2, 2) == 0.9  # exactly, so that the count is exact
    run = replica("lottery", weight=ORDERED, sparsity=0.875, settings={"rounds": 3})
    run.put_aside("early")
    METHODS["lottery"].begin_phase(run, 0)
    assert len(kept(run)) == 20
    weight = run.weights["second"].flatten()
    for phase, gone in ((1, 10), (2, 15), (3, 17)):  # 1 + ⌊19 · 0.5⌋, 1 + ⌊19 · 0.75⌋, 1 + ⌊19 · 0.875⌋
        if phase > 1:
            weight[4] = 9.0  # rank 1: pruned in the first round, so that it does not matter that it has grown
        METHODS["lottery"].begin_phase(run, phase)
        assert kept(run) == above(gone + 1)


def test_lottery_trains_once_more_than_it_prunes():
    assert spec("lottery").total_epochs == 4 * 2
    assert spec("lottery", settings={"rounds": 1}, stretch=3).total_epochs == 2 * 6
    one = spec("lottery", recipe=spec("dense").recipe.replace(milestones=(1,)), settings={"rounds": 1})
    assert [one.learning_rate(epoch) for epoch in range(4)] == pytest.approx([0.02, 0.002, 0.02, 0.002])


@pytest.mark.parametrize(
    ("wanted", "steps", "at"), [(None, 78000, 500), (None, 5000, 500), (None, 200, 20), (None, 5, 1), (7, 200, 7)]
)
def test_the_step_to_rewind_to(wanted, steps, at):
    assert METHODS["lottery"].save_at(spec("lottery", settings={"rewind_step": wanted}), steps) == at


# -- learning rates rewound --------------------------------------------------------------------------------------------


def test_learning_rates_are_rewound_and_weights_are_not():
    recipe = spec("dense").recipe.replace(epochs=4, milestones=(2, 3), lr=0.1)
    rates = [0.1, 0.1, 0.01, 0.001]
    one = spec("lr-rewinding", recipe=recipe)
    assert [one.learning_rate(epoch) for epoch in range(8)] == pytest.approx(2 * rates)
    half = spec("lr-rewinding", recipe=recipe, settings={"rounds": 2, "repeat": 0.5})
    assert (half.total_epochs, half.own_epochs) == (8, 8)
    assert [half.learning_rate(epoch) for epoch in range(8)] == pytest.approx(rates + 2 * rates[2:])
    stretched = spec("lr-rewinding", recipe=recipe, stretch=2, settings={"repeat": 0.5, "from": "somewhere"})
    assert (stretched.total_epochs, stretched.own_epochs) == (12, 4)
    assert [stretched.learning_rate(epoch) for epoch in range(4)] == pytest.approx([0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(
    ("method", "structure"), [("magnitude", "weight"), ("filter-l1", "filter"), ("thinet", "filter")]
)
def test_fine_tuning_with_learning_rates_rewound(method, structure):
    recipe = spec("dense").recipe.replace(epochs=4, milestones=(2, 3), lr=0.1)
    settings = {"tune_epochs": 2, "tune_rate": "rewind"}
    one = spec(method, structure, sparsity=0.2, recipe=recipe, settings=settings)
    later = [one.learning_rate(epoch) for epoch in range(4, one.own_epochs)]
    assert later == pytest.approx([0.01, 0.001] * (len(later) // 2))
    assert "-lrrewind-" in one.name()
    with pytest.raises(
        UserError, match=r"^tune_epochs is 5: allowed are the 4 epochs of training at most, with tune_rate"
    ):
        spec(method, structure, recipe=recipe, settings={"tune_epochs": 5, "tune_rate": "rewind"})


def test_rewinding_prunes_round_by_round_what_is_smallest_in_the_network():
    """To 1 − √0.1, then to 0.9; a pruned weight that has grown stays pruned."""
    run = replica("lr-rewinding", model=SMALL, sparsity=0.9, settings={"rounds": 2})
    how = METHODS["lr-rewinding"]
    total = sum(site.count for site in run.sites.values())
    before = {name: torch.ones(site.shape, dtype=torch.bool) for name, site in run.sites.items()}
    for phase, left in enumerate((1, 0.1**0.5, 0.1)):
        how.begin_phase(run, phase)
        weights, masks = run.weights, run.masks
        assert sum(int(mask.sum()) for mask in masks.values()) == int(left * total + 1e-9)
        assert all(bool((before[name] | ~mask).all()) for name, mask in masks.items())
        if phase:
            kept_ones = torch.cat([weights[name][mask].abs() for name, mask in masks.items()])
            gone = torch.cat([weights[name][before[name] & ~mask].abs() for name, mask in masks.items()])
            assert gone.max() <= kept_ones.min()
            for name, mask in masks.items():
                weights[name][~mask] = 9.0
        before = {name: mask.clone() for name, mask in masks.items()}


# -- gradual -----------------------------------------------------------------------------------------------------------


def test_the_cubic_schedule():
    """p(1 − (1 − t)³): 7/8 of the way at half-time."""
    assert [cubic(0.8, t) for t in (0, 0.25, 0.5, 0.75, 1, 2)] == pytest.approx([0, 0.4625, 0.7, 0.7875, 0.8, 0.8])


def test_gradual_renews_its_mask_before_every_epoch_until_it_is_reached():
    recipe = spec("dense").recipe.replace(epochs=8)
    run = replica("gradual", weight=ORDERED, sparsity=0.8, recipe=recipe, settings={"until": 0.5})
    how = METHODS["gradual"]
    for epoch, sparsity in enumerate([0.4625, 0.7, 0.7875, 0.8]):  # t = 1/4, 1/2, 3/4, 1
        how.begin_epoch(run, epoch)
        assert kept(run) == above(20 - kept_count(sparsity, 20) + 1)
    run.weights["second"].flatten()[4] = 9.0
    how.begin_epoch(run, 4)
    assert 4 not in kept(run)  # the ramp is over: the mask stays
    how.begin_epoch(run, 3)
    assert 4 in kept(run)  # within it, a pruned one that has grown comes back
    assert len(kept(run)) == kept_count(0.8, 20)


def test_gradual_is_stretched():
    """Half of four epochs, each twice: the four epochs of the ramp above."""
    recipe = spec("dense").recipe.replace(epochs=4)
    run = replica("gradual", weight=ORDERED, sparsity=0.8, recipe=recipe, stretch=2, settings={"until": 0.5})
    for epoch, sparsity in enumerate([0.4625, 0.7, 0.7875, 0.8]):
        METHODS["gradual"].begin_epoch(run, epoch)
        assert len(kept(run)) == kept_count(sparsity, 20)


def test_beta_is_stretched():
    """Every β lasts as many epochs as the stretch says."""
    recipe = spec("dense").recipe.replace(epochs=4, anneal_epochs=3, law="annealed")
    how, (plain, slow) = METHODS["gibbs"], [spec("gibbs", recipe=recipe, stretch=stretch) for stretch in (1, 3)]
    sites = list(replica("gibbs").sites.values())
    betas = [how.level(plain, sites)(epoch) for epoch in range(4)]
    assert betas == sorted(set(betas))
    assert [how.level(slow, sites)(epoch) for epoch in range(12)] == [beta for beta in betas for _ in range(3)]


@pytest.mark.parametrize(("structure", "stay"), [("kernel", [0, 2, 3, 6, 7]), ("filter", [0, 1])])
def test_gradual_removes_kernels_and_filters_of_small_squares(structure, stay):
    run = replica("gradual", structure, SHAPED, sparsity=0.5, settings={"until": 0.1})
    METHODS["gradual"].begin_epoch(run, 0)
    assert kept(run) == places(structure, stay)


def test_gradual_with_one_threshold_for_the_network_keeps_its_largest_weights():
    recipe = spec("dense").recipe.replace(epochs=4)
    run = replica("gradual", model=SMALL, sparsity=0.9, recipe=recipe, settings={"allocation": "global", "until": 1})
    with torch.no_grad():
        run.weights["third"].mul_(1.1)
    total = sum(site.count for site in run.sites.values())
    for epoch, t in enumerate((0.25, 0.5, 0.75, 1.0)):
        METHODS["gradual"].begin_epoch(run, epoch)
        masks, weights = run.masks, run.weights
        left = torch.cat([weights[name][mask].abs() for name, mask in masks.items()])
        gone = torch.cat([weights[name][~mask].abs() for name, mask in masks.items()])
        assert gone.max() <= left.min()
        assert len(left) == int((1 - cubic(0.9, t)) * total + 1e-9)
    rates = [float(mask.float().mean()) for mask in masks.values()]
    assert max(rates) > 1.2 * min(rates)


# -- rigl --------------------------------------------------------------------------------------------------------------


def test_rigl_drops_the_smallest_and_grows_where_the_gradient_is_largest():
    """10 of 20 weights, of which 3 are exchanged: the weights of ORDERED are 1 … 20, the mask keeps the first ten."""
    run = replica("rigl", weight=ORDERED, sparsity=0.5, settings={"fraction": 0.6, "until": 1})
    mask = (torch.arange(20) < 10).view(SHAPE)
    run.hold("second", mask)  # magnitudes 7 18 3 12 1 20 9 15 5 11
    gradient = run.gradients["second"].flatten()
    gradient[:] = torch.arange(20) / 100
    gradient[[2, 12, 16]] = torch.tensor([-3.0, 2.0, -1.0])
    moments = run.engine.optimizer.moments_of(run.engine.network.stored("second"))
    for moment in moments:
        moment.fill_(1)
    before = run.weights["second"].clone()
    METHODS["rigl"].after_step(run, 1, 2)  # half-time: α/2 = 0.3, so that 3, 1 and 5 go
    stays = [0, 1, 3, 5, 6, 7, 9]
    assert kept(run) == sorted([*stays, 2, 12, 16])  # 2 comes back at once
    after = run.weights["second"].flatten()
    assert torch.equal(after[[*stays, 2]], before.flatten()[[*stays, 2]])
    assert after.count_nonzero() == 8  # the others start from zero
    assert all(moment.flatten().nonzero().flatten().tolist() == sorted([*stays, 2]) for moment in moments)
    assert torch.equal(run.engine.network.masks["second"], run.masks["second"])  # what the next step sees


def test_rigl_exchanges_ever_less_and_nothing_in_the_end():
    assert [exchanged(0.3, step, 100.0) for step in (0, 50, 99, 100, 150)] == pytest.approx(
        [0.3, 0.15, 0, 0, 0], abs=1e-4
    )
    run = replica("rigl", weight=ORDERED, sparsity=0.5)
    METHODS["rigl"].begin_phase(run, 0)
    before = run.masks["second"].clone()
    run.gradients["second"].fill_(1)
    METHODS["rigl"].after_step(run, 75, 100)
    assert torch.equal(run.masks["second"], before)


def test_rigl_shares_its_sparsity_as_an_erdos_renyi_graph():
    run = replica("rigl", model=SMALL, sparsity=0.8)
    METHODS["rigl"].begin_phase(run, 0)
    left = {name: float(mask.float().mean()) for name, mask in run.masks.items()}
    raw = {"second": (12 + 8 + 3 + 3) / (12 * 8 * 9), "third": (16 + 12 + 3 + 3) / (16 * 12 * 9)}
    assert left["second"] / left["third"] == pytest.approx(raw["second"] / raw["third"], rel=0.01)
    assert sum(int(m.sum()) for m in run.masks.values()) == pytest.approx(0.2 * (12 * 8 + 16 * 12) * 9, abs=2)
    uniform = replica("rigl", model=SMALL, sparsity=0.8, settings={"allocation": "uniform"})
    METHODS["rigl"].begin_phase(uniform, 0)
    assert all(float(mask.float().mean()) == pytest.approx(0.2, abs=0.005) for mask in uniform.masks.values())


# -- random mask and reinit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_a_random_mask_keeps_as_many_of_each_layer_whole(structure):
    run = replica("random-mask", structure, model=SMALL, sparsity=0.75)
    METHODS["random-mask"].begin_phase(run, 0)
    for name, site in run.sites.items():
        rows = site.structure.rows(run.masks[name])
        assert bool((rows == rows[:, :1]).all())
        assert int(rows[:, 0].sum()) == kept_count(0.75, site.count)


def test_random_masks_of_other_seeds_are_independent_and_the_same_seed_gives_the_same():
    """Two masks of a 12·8·9 layer that keep half agree on a share of 0.5 ± 0.017 (one deviation); 5 are allowed,
    an error rate of 6e-7 for each of the ten pairs."""
    masks = {}
    for seed in (0, 1, 2, 3, 4):
        run = replica("random-mask", model=SMALL, sparsity=0.5, seed=seed)
        METHODS["random-mask"].begin_phase(run, 0)
        masks[seed] = run.masks["second"].clone()
        METHODS["random-mask"].begin_phase(run, 0)
        assert torch.equal(run.masks["second"], masks[seed])
        assert not torch.equal(run.masks["second"].flatten(), run.masks["third"].flatten()[: masks[seed].numel()])
    for one in masks:
        for other in range(one):
            assert abs((masks[one] == masks[other]).float().mean() - 0.5) < 5 * 0.5 / 864**0.5


def test_reinit_starts_from_other_weights_than_any_run_of_its_seed():
    digits = few(32)
    source, again = spec("gibbs", model=SMALL), spec("reinit", model=SMALL, settings={"from": "somewhere"})
    one, other = new_model(source, digits), new_model(again, digits)
    for name, weight in one.named_parameters():
        if weight.dim() > 1:
            assert not bool((weight == other.get_parameter(name)).any()), name


def test_largest_keeps_the_first_among_equals():
    site = replica("magnitude").sites["second"]
    assert largest(torch.ones(20), site, 0.5).flatten().nonzero().flatten().tolist() == list(range(10))


def test_every_method_of_the_comparison_has_its_structures():
    whole = ("weight", "kernel", "filter", "column", "block")
    every = KINDS
    assert set(KINDS) == {*whole, "nm", "at-most"}
    assert {name: how.structures if how.prunes else () for name, how in METHODS.items()} == {
        "gibbs": (*every, "head", "neuron"),
        "dense": (), "l1": ("weight",), "magnitude": ("weight",), "lottery": ("weight",),
        "targeted-dropout": whole, "filter-l1": ("kernel", "filter"), "thinet": ("filter",), "random-mask": every,
        "reinit": every, "gradual": every, "feedback": every, "rigl": ("weight",), "lr-rewinding": ("weight",),
        "str": ("weight",),
    }  # fmt: skip
