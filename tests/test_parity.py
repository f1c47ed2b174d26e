"""One meaning of Gibbs pruning: a plain loop with a pruner does what a fleet does, and both choose alike by default."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gibbsprune as gp
import own_networks
from gibbsprune.data import load
from gibbsprune.hamiltonians import HAMILTONIANS, possible
from gibbsprune.models import build
from gibbsprune.structures import EXAMPLES, as_structure
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.network import new_model
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.sites import run_sites
from gibbsprune.training.spec import RunSpec

STEPS = 20
#: Epochs of seven steps, so that β changes twice. A product with a power of two is exact, so that torch's optimiser and
#: the fleet's, which multiply and add in another order, round alike.
RECIPE = RECIPES["digits"].replace(
    law="annealed", batch=200, epochs=4, anneal_epochs=None, optimizer="sgd", lr=0.125, momentum=0.5,
    weight_decay=2.0**-10, lr_schedule="steps", milestones=[1], gamma=0.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def digits():
    return load("digits")


#: A sparsity that rises, one threshold for the network, β in units of it, gradients for masked weights.
RISING = {"ramp": "cubic", "until": 0.5, "allocation": "global", "units": "threshold", "gradient": "straight-through"}
#: And survivors that are shrunk by the threshold.
SHRUNK = {**RISING, "survivors": "shrunk"}

#: The law of the recipe ``best``, which has nothing to set.
RISES: dict = {}


@pytest.mark.parametrize(
    ("structure", "settings"),
    [*((structure, {}) for structure in (*EXAMPLES, "neuron")),
     ("2:4", {"units": "threshold", "gradient": "straight-through"}),
     ("weight", RISING), ("filter", RISING), ("weight", SHRUNK), ("kernel", SHRUNK),
     ("weight", {**SHRUNK, "survivors": "rescaled"}), ("kernel", {**SHRUNK, "gradient": "masked"}),
     ("weight", {**SHRUNK, "survivors": "rescaled", "gradient": "proportional"}),
     ("2:4", {"units": "threshold", "gradient": "straight-through", "survivors": "shrunk"}),
     ("weight", {"gradient": "law", "units": "threshold"}),
     ("weight", {**SHRUNK, "gradient": "proportional"}),
     *((structure, RISES) for structure in ("weight", "kernel", "filter", "4x4", "2:4", "neuron")),
     ("weight", {"gradient": "masked", "units": "threshold", "importance": "taylor"}),
     ("kernel", {"gradient": "straight-through", "units": "threshold", "importance": "wanda"})],
)  # fmt: skip
def test_a_plain_loop_and_a_fleet_give_the_same_bits(structure, settings, digits):
    fixed, final = as_structure(structure).sparsity, "converged" if structure == "kernel" else "sample"
    recipe = RECIPE.replace(final=final)
    if settings is RISES:  # which ends with its sparsity
        recipe = recipe.replace(law="rising", epochs=3)
    spec = RunSpec(model="resnet8", structure=structure, sparsity=fixed or 0.8, recipe=recipe, seed=3,
                   precision="float32", settings=settings)  # fmt: skip
    fleet, other = Fleet([spec], digits), Fleet([spec], digits)
    (engine,), (source,) = fleet.engines, other.engines
    model = new_model(spec, digits).train()
    relative = "units" in settings  # as the pruner is by default; a run has the paper's units
    options = {"gradient": settings["gradient"]} if relative else {"hamiltonian": spec.hamiltonian}
    options |= {name: settings[name] for name in ("survivors", "importance") if name in settings}
    options = {"law": "rising"} if settings is RISES else options | {"law": "annealed"}
    sparsity = gp.Budget(gp.CubicSchedule(0.0, 0.8, 2), allocation="global") if "ramp" in settings else spec.sparsity
    pruner = gp.GibbsPruner(model, sparsity, structure, seed=spec.seed, epochs=recipe.epochs, **options)
    decayed = [p for p in model.parameters() if p.dim() == 4]
    rest = [p for p in model.parameters() if p.dim() != 4]
    groups = [{"params": decayed, "weight_decay": RECIPE.weight_decay}, {"params": rest}]
    optimizer = torch.optim.SGD(groups, lr=RECIPE.lr, momentum=RECIPE.momentum, nesterov=RECIPE.nesterov)
    steps, per_epoch, chance = 0, fleet.steps_per_epoch, False
    while steps < STEPS:
        epoch = steps // per_epoch
        for each in (engine, source):
            each.begin_epoch(epoch)
        pruner.set_epoch(epoch)
        assert pruner.beta == engine.beta_values[0]
        for group in optimizer.param_groups:
            group["lr"] = spec.learning_rate(epoch)
        for _ in range(per_epoch):
            x, y = source.batches.next()
            limits = engine.masks.limits()
            engine.advance()
            chance |= engine.masks.agreement(engine.network.mask_views(), limits)[0] < 1
            for name, mask in fleet.masks(0).items():
                assert torch.equal(pruner.masks[name].mask, mask), (steps, name)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y[:, 0]).backward()
            optimizer.step()
            trained = engine.network.run_state(0)
            for name, value in model.state_dict().items():
                if not any(part in name for part in ("mask", "score", "num_batches", "0.sparsity")):
                    plain = name.replace("parametrizations.weight.original", "weight")
                    assert torch.equal(value, trained[plain]), (steps, name)
            pruner.step()
            steps += 1
    fleet.epoch = 1 + epoch
    fleet.finish()
    assert chance or settings is RISES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the masks have not converged
        pruned = pruner.finalize(draw=final)
    for name, mask in fleet.final[0].items():
        left = pruned.get_submodule(name).weight != 0  # shrunk by the threshold, a kept weight below it is zero, too
        shrunk = "survivors" in settings or settings is RISES
        assert bool((left <= mask).all()) if shrunk else torch.equal(left, mask), name
        assert torch.equal(pruned.get_submodule(name).weight, fleet.model(0).get_submodule(name).weight), name


NETWORKS = {
    "resnet20": lambda: build("resnet20", 10, 3),
    "resnet8": lambda: build("resnet8", 10, 1),
    "smooth": lambda: own_networks.smooth(10, 3),
    "perceptron": lambda: own_networks.perceptron(10),
    "one convolution": lambda: own_networks.one_convolution(10, 1),
    "dropping": lambda: own_networks.dropping(10, 1),
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("structure", EXAMPLES)
def test_layers_laws_and_schedules_are_the_same(network, structure):
    sparsity = 0.7 if structure == "at-most-3" else 0.5
    for name in (None, *possible(as_structure(structure))):
        settings = {"units": "threshold"} if name is None else {}
        spec = RunSpec(structure=structure, hamiltonian=name, sparsity=sparsity, epochs=30, settings=settings)
        model = NETWORKS[network]()
        sites = run_sites(spec, model)
        beta = spec.how.level(spec, list(sites.values()))
        pruner = gp.GibbsPruner(model, spec.sparsity, structure, name, epochs=spec.epochs, law="annealed")
        assert list(pruner.masks) == list(sites)
        assert {site.hamiltonian for site in sites.values()} == {pruner.hamiltonian}
        assert [beta(epoch) for epoch in range(40)] == [pruner.schedule(epoch) for epoch in range(40)]
    assert HAMILTONIANS["binary"] == gp.Binary("offset")
