"""Scores from gradients and activations in the place of magnitudes: by hand, in the pruner, in fleets."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gibbsprune as gp
from gibbsprune.data import load
from gibbsprune.errors import UserError
from gibbsprune.importance import NEW, by_inputs
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

RELATIVE = gp.Linear("square", relative=True)


def pruner_of(kind, model, **options):
    return gp.GibbsPruner(model, 0.5, hamiltonian=RELATIVE, importance=kind, epochs=4, include="0", **options)


def test_taylor_scores_are_those_of_the_kept_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    pruner, x = pruner_of("taylor", model), torch.randn(20, 6)
    weight, masked = model[0].parametrizations.weight.original, pruner.masks["0"]
    expected = torch.zeros(5, 6)
    for _ in range(3):
        mask = masked.mask.clone()
        model(x).square().mean().backward()
        expected += NEW * mask * ((weight.grad * weight).abs().detach() - expected)
        model.zero_grad()
        pruner.step()
    torch.testing.assert_close(masked.score.value, expected)
    assert torch.equal(pruner._drawing.converged()["0"], gp.converged_mask(expected, 0.5))
    model.eval()
    assert torch.equal(model[0].weight != 0, gp.converged_mask(expected, 0.5))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [(nn.Linear(6, 5), (9, 6)), (nn.Conv2d(6, 4, 3, groups=2), (3, 6, 5, 5)),
     (nn.ConvTranspose2d(4, 6, 2), (3, 4, 5, 5)), (nn.Conv1d(4, 3, 3), (2, 4, 7))],
)  # fmt: skip
def test_wanda_scores_are_weights_times_norms_of_their_inputs(layer, inputs):
    """Scaling an input channel up scales the scores of what reads it, and of nothing else."""
    x = torch.randn(inputs, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(layer)
    pruner = pruner_of("wanda", model)
    score = pruner.masks["0"].score
    model(x)
    channels = x.transpose(0, -1 if isinstance(layer, nn.Linear) else 1).flatten(1)
    torch.testing.assert_close(score.value, NEW * channels.square().mean(1))
    weight = model[0].parametrizations.weight.original
    change = by_inputs(weight, score.value * torch.eye(len(score.value))[1], score.groups, score.transposed)
    reads = change != 0
    outputs = weight.shape[0] if not score.transposed else weight.shape[1]
    assert int(reads.sum()) == outputs // score.groups * weight[0, 0].numel()
    model.eval()
    before = score.value.clone()
    model(x)
    assert torch.equal(score.value, before)  # tests do not count
    pruner.finalize("converged")
    model.train()
    model(x)
    assert torch.equal(score.value, before)  # nor what comes after


def test_scores_are_saved_with_the_model():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)) for _ in range(2)]
    pruners, x = [pruner_of("taylor", model) for model in models], torch.randn(20, 6)
    models[0](x).sum().backward()
    pruners[0].step()
    models[1].load_state_dict(models[0].state_dict())
    pruners[1].load_state_dict(pruners[0].state_dict())
    for model, pruner in zip(models, pruners):
        model.zero_grad()
        model(x).sum().backward()
        pruner.step()
    assert torch.equal(pruners[0].masks["0"].mask, pruners[1].masks["0"].mask)
    assert torch.equal(pruners[0].masks["0"].score.value, pruners[1].masks["0"].score.value)


RECIPE = RECIPES["digits"].replace(batch=700, epochs=2)


def spec(**changes):
    settings = {"units": "threshold", **changes.pop("settings", {})}
    return RunSpec(model="resnet8", sparsity=0.8, recipe=RECIPE, precision="float32", settings=settings, **changes)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


WARM = {"chain": "warm", "sweeps": 2}
KINDS = [
    spec(settings={"importance": "taylor"}),
    spec(settings={"importance": "wanda"}),
    spec(hamiltonian="channels", settings=WARM),
    spec(hamiltonian="redundancy", structure="filter", settings=WARM),
]


def test_runs_of_a_fleet_are_what_they_are_alone(digits):
    """Scores and warm chains of one run know nothing of the others, and survive a checkpoint."""
    together = Fleet(KINDS, digits)
    together.train_epoch()
    saved = copy.deepcopy(together.state_dict())
    together.evaluate()  # with other masks, from which no chain may go on
    together.train_epoch()
    masks = [together.engines[0].network.mask_views()[i].clone() for i in range(len(together.engines[0].network.sites))]
    again = Fleet(KINDS, digits)
    again.load_state_dict(saved)
    again.train_epoch()
    for mask, same in zip(masks, again.engines[0].network.mask_views()):
        assert torch.equal(mask, same)
    for one in KINDS[:3:2]:
        alone = Fleet([one], digits)
        alone.train_epoch()
        alone.train_epoch()
        own = alone.engines[0].network.mask_views()
        mine = [m for m, (_, k, _) in zip(masks, together.engines[0].network.sites) if KINDS[k] == one]
        share = sum(int((a == b).sum()) for a, b in zip(own, mine)) / sum(m.numel() for m in own)
        assert share > 0.97  # the arithmetic of a fused network rounds otherwise


def test_a_fleet_scores_as_a_plain_loop_does(digits):
    """|g·w| and ‖x‖² of a first step, from the network's own gradient."""
    fleet = Fleet(KINDS[:2], digits)
    (engine,) = fleet.engines
    engine.begin_epoch(0)
    network = engine.network
    seen = {}
    losses = engine.losses
    engine.losses = lambda x, y: (seen.update(x=x, y=y), losses(x, y))[1]
    before = {name: network.stored(name).detach().clone() for name in network.masks}
    engine.advance()
    for k, kind in enumerate(("taylor", "wanda")):
        model = network.extract(k, digits, {})
        state = {f"{name}.weight": value.chunk(2)[k] for name, value in before.items()}
        model.load_state_dict(state, strict=False)
        assert set(state) <= set(model.state_dict())
        assert float(network.scores[kind, next(iter(network.masks))].value.abs().sum()) > 0
        for (name, run, _), score, mask in zip(network.sites, network.judged(), network.mask_views()):
            if run == k and kind == "taylor":
                assert bool((score[~mask] == 0).all())
                assert float((score[mask] > 0).float().mean()) > 0.5
            elif run == k:
                ratio = score / before[name].chunk(2)[k].abs().clamp_min(1e-12)
                assert ratio.shape == mask.shape


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gp.GibbsPruner(nn.Linear(4, 4), 0.5, importance="size", include=""), "importance is 'size'"),
        (lambda: gp.GibbsPruner(nn.Sequential(nn.Linear(4, 4)), 0.5, hamiltonian="square", importance="taylor"),
         r"importance is 'taylor': allowed are 'magnitude' with Linear\('square'\), whose field has a unit"),
        (lambda: pruner_of("wanda", nn.Sequential(nn.Linear(4, 4)), gradient="law"), "with gradient 'law'"),
        (lambda: RunSpec(settings={"units": "weights", "importance": "taylor"}), "importance is 'taylor'"),
    ],
)  # fmt: skip
def test_refused(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


def test_the_first_step_decides_nothing():
    """All scores are 0 then: every weight is kept with probability one half, and no NaN comes of it."""
    model = nn.Sequential(nn.Linear(100, 100))
    pruner = pruner_of("taylor", model)
    assert abs(float(pruner.masks["0"].mask.float().mean()) - 0.5) < 0.05
    assert F.linear(torch.ones(1, 100), model[0].weight).isfinite().all()
