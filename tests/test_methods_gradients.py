"""Rising and shared sparsities, gradients that reach masked weights and fading, in fleets: as alone, resumed."""

import itertools

import pytest
import torch

import gibbsprune as gp
from gibbsprune.data import load
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

RECIPE = RECIPES["digits"].replace(law="annealed", epochs=4, batch=256, anneal_epochs=3)
RISING = {"ramp": "cubic", "until": 0.5, "allocation": "global", "units": "threshold", "gradient": "straight-through"}


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def spec(method="gibbs", sparsity=0.9, seed=0, **settings):
    return RunSpec(
        model="resnet8",
        method=method,
        sparsity=sparsity,
        recipe=RECIPE,
        seed=seed,
        precision="float32",
        settings=settings,
    )


def stored(fleet, k=0):
    engine, i = fleet.home[k]
    return [w.clone() for (_, run, _), w in zip(engine.network.sites, engine.network.weights()) if run == i]


KINDS = [
    spec(**RISING),
    spec("feedback", allocation="lamp"),
    spec(ramp="linear", gradient="law", units="threshold", fading=1e-3),
    spec("gradual", allocation="global"),
    spec("gradual"),
    spec(**RISING, survivors="rescaled", temperature="zero"),
    spec(**RISING, survivors="shrunk", temperature="zero", fading=1e-3),
    spec(**RISING | {"gradient": "proportional"}, survivors="rescaled", temperature="zero"),
    spec(**RISING | {"gradient": "proportional"}, survivors="shrunk", temperature="zero"),
]


def test_runs_of_all_kinds_train_together_as_they_do_alone(digits):
    together = Fleet(KINDS, digits)
    assert len(together.engines) == 1
    for _ in range(3):
        together.train_epoch()
    for k, one in enumerate(KINDS):
        alone = Fleet([one], digits)
        for _ in range(3):
            alone.train_epoch()
        for mine, fused in zip(alone.masks(0).values(), together.masks(k).values()):
            assert (mine == fused).float().mean() > 0.98  # sums in another order, then other decisions
        for mine, fused in zip(stored(alone), stored(together, k)):
            assert (mine - fused).norm() < 0.1 * mine.norm()


@pytest.mark.parametrize("one", [*KINDS[:3], KINDS[-1]], ids=lambda one: one.name())
def test_a_resumed_run_ends_bit_for_bit_as_an_unbroken_one(one, digits):
    whole, first = Fleet([one], digits), Fleet([one], digits)
    for _ in range(2):
        whole.train_epoch()
        first.train_epoch()
    second = Fleet([one], digits)
    second.load_state_dict(first.state_dict())
    for fleet in (whole, second):
        for _ in range(2):
            fleet.train_epoch()
    assert whole.finish() == second.finish()
    assert all(torch.equal(a, b) for a, b in zip(stored(whole), stored(second)))


def test_the_whole_network_bears_the_sparsity_and_layers_bear_different_shares(digits):
    fleet = Fleet([spec(**RISING), spec("feedback", seed=1), spec("feedback", 0.0, seed=2)], digits)
    for _ in range(4):
        fleet.train_epoch()
    shared, uniform, none = fleet.finish()
    assert shared["sparsity"] == pytest.approx(0.9, abs=1e-3)
    rates = [layer["sparsity"] for layer in shared["layers"]]
    assert max(rates) - min(rates) > 0.02
    rates = [layer["sparsity"] for layer in uniform["layers"]]
    assert max(rates) - min(rates) < 0.02
    assert none["sparsity"] == 0


def test_masks_of_feedback_stay_for_as_many_steps_as_asked(digits):
    fleet = Fleet([spec("feedback", every=every) for every in (1, 4)], digits)
    fleet.train_epoch()
    (engine,), found = fleet.engines, [[], []]
    engine.begin_epoch(1)
    for _ in range(10):
        engine.advance()
        for k, masks in enumerate(found):
            masks.append(torch.cat([mask.flatten() for mask in fleet.masks(k).values()]))
    changes = [[not torch.equal(*pair) for pair in itertools.pairwise(masks)] for masks in found]
    assert all(changes[0])
    assert [i for i, changed in enumerate(changes[1], 1) if changed] == [4, 8]
    assert int(found[1][0].sum()) < len(found[1][0])  # renewed when the epoch began


def test_masked_weights_live_with_feedback_and_fade_where_asked(digits):
    sleeping, alive, fading = (
        Fleet([spec(ramp="constant", units="threshold", **more)], digits)
        for more in ({}, {"gradient": "straight-through"}, {"gradient": "straight-through", "fading": 1.0})
    )
    sizes = []
    for fleet in (sleeping, alive, fading):
        for _ in range(2):
            fleet.train_epoch()
        masks = fleet.masks(0).values()
        masked = torch.cat([w[~m] for w, m in zip(stored(fleet), masks)])
        sizes.append(float(masked.square().mean()))
    assert sizes[1] != sizes[0]
    assert sizes[2] < 0.5 * sizes[1]


def test_only_active_weights_decay_where_asked(digits):
    fleet = Fleet([spec(fading=fading) for fading in ("active", 0.0, 1.0)], digits)
    fleet.train_epoch()
    (engine,) = fleet.engines
    for name, masks in engine.network.masks.items():
        decay = engine.optimizer.decay_of(engine.network.stored(name)).view(3, -1)
        masks = masks.view(3, -1)
        assert 0 < int(masks[0].sum()) < masks[0].numel()
        plain = torch.full_like(decay[0], RECIPE.weight_decay)
        assert torch.equal(decay, torch.stack([plain * masks[0], plain, plain + ~masks[2]])), name


def test_what_is_written_of_shrunk_survivors_is_what_was_tested(digits):
    fleet = Fleet([KINDS[-1], spec("gradual")], digits)
    for _ in range(4):
        fleet.train_epoch()
    model = fleet.model(0)
    before = {name: p.clone() for name, p in model.named_parameters()}
    shrunk, plain = fleet.finish()
    assert shrunk["agreement"] == 1
    assert shrunk["sparsity"] == pytest.approx(0.9, abs=1e-3)
    for k, result in enumerate((shrunk, plain)):
        x = fleet.engines[0].batches.evaluation(digits.x_test, torch.float32)
        x = x.unflatten(1, (2, -1))[:, k]
        right = (fleet.model(k)(x).argmax(1) == digits.y_test).float().mean()
        assert float(right) == pytest.approx(result["accuracy"], abs=1e-6)
    assert all(torch.equal(p, before[name]) for name, p in fleet.model(0).named_parameters())
    for name, weight in zip(fleet.masks(0), stored(fleet)):
        left = fleet.model(0).get_submodule(name).weight.detach()
        (layer,) = (each for each in shrunk["layers"] if each["name"] == name)
        soft = (weight.abs() - gp.threshold(weight, layer["sparsity"]).sqrt()).clamp_min(0)
        if name in fleet.engines[0].network.normed:  # where the layer is as strong as before
            soft *= weight[left != 0].abs().mean() / soft[left != 0].mean()
        assert float((left.abs() - soft).abs().max()) < 0.02 * float(weight.abs().max())  # Q between two weights


def test_names_tell_the_settings_and_defaults_stay_as_they_were():
    assert spec().name(with_seed=False).startswith("digits-resnet8-gibbs-weight-square-0.9-")
    name = spec(**RISING).name()
    assert all(word in name for word in ("-cubic-", "-u0.5-", "-global-", "-in.threshold-", "-straight-through-"))
    assert RunSpec.from_dict(spec(**RISING).as_dict()) == spec(**RISING)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: spec(units="miles"), "units is 'miles': allowed are 'weights', 'threshold'"),
        (lambda: spec(fading="masked"), "fading is 'masked': allowed are numbers from 0, and 'active'"),
        (lambda: spec(allocation="best"), "allocation is 'best'"),
        (lambda: spec(allocation="global", floor=0.5), "floor is 0.5: allowed are numbers up to 0.1"),
        (lambda: spec(floor=0.01), "floor is 0.01: allowed are 0.0 with allocation 'uniform', which has no use for it"),
        (lambda: spec(until=0.5), "until is 0.5: allowed are 0.8 with ramp 'constant', which has no use for it"),
        (lambda: RunSpec(hamiltonian="binary", settings={"units": "threshold"}), "units is 'threshold'"),
    ],
)
def test_bad_settings_are_refused(made, told):
    with pytest.raises(gp.UserError, match=told):
        made()


def test_the_gradient_of_a_law_is_refused_for_filters(digits):
    one = RunSpec(model="resnet8", structure="filter", recipe=RECIPE, settings={"gradient": "law"})
    with pytest.raises(gp.UserError, match="gradient is 'law'"):
        Fleet([one], digits)
