"""The pruner with sparsities that rise, budgets, relative temperatures, and gradients beyond the mask."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gibbsprune as gp
from gibbsprune.attaching import stored_weight
from gibbsprune.survivors import shrunk_mask
from gibbsprune.threshold import kept_count


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*body, nn.Conv2d(12, 12, 3, padding=1), nn.Flatten(), nn.Linear(192, 40), nn.Linear(40, 10))


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(16, 3, 8, 8, generator=generator), torch.randint(10, (16,), generator=generator)


def masks(pruner: gp.GibbsPruner) -> Tensor:
    return torch.cat([layer.mask.flatten() for layer in pruner.masks.values()])


def train(model: nn.Module, pruner: gp.GibbsPruner, epochs: int, steps: int = 3, rate: float = 0.05) -> None:
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    for epoch in range(epochs):
        pruner.set_epoch(epoch)
        for step in range(steps):
            x, y = data(steps * epoch + step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            pruner.step()


def test_zero_temperature_with_a_cubic_ramp_is_gradual_pruning() -> None:
    """Zhu & Gupta: before every epoch the mask of the largest weights at s(t) = p(1 − (1 − t)³), from all weights."""
    model, epochs, final = network(), 6, 0.9
    ramp = gp.CubicSchedule(0.0, final, epochs=4)
    pruner = gp.GibbsPruner(model, ramp, schedule=gp.ConstantSchedule(math.inf), epochs=epochs)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in range(epochs):
        pruner.set_epoch(epoch)
        sparsity = final * (1 - (1 - min(1.0, epoch / 4)) ** 3)
        for name, layer in pruner.masks.items():
            weight = stored_weight(model.get_submodule(name)).detach()
            assert int(layer.mask.sum()) == kept_count(sparsity, weight.numel())
            kept, lost = weight[layer.mask].abs(), weight[~layer.mask].abs()
            assert not len(lost) or lost.max() <= kept.min()
        x, y = data(epoch)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        pruner.step()
    assert pruner.agreement() == 1.0


def test_a_rising_sparsity_begins_with_all_weights_and_ends_as_asked() -> None:
    model = network()
    law = gp.Linear("square", relative=True)
    pruner = gp.GibbsPruner(model, gp.CubicSchedule(0.0, 0.9, epochs=4), hamiltonian=law, epochs=8)
    assert bool(masks(pruner).all())
    pruner.set_epoch(2)
    assert 0.1 < float(masks(pruner).float().mean()) < 0.4
    train(model, pruner, 8)
    assert pruner.agreement() >= 0.999
    pruner.finalize("converged")
    assert pruner.summary().layers[0].achieved == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("how", ["rising", "schedule", "budget"])
def test_a_training_that_ends_too_early_gets_the_sparsity_and_a_warning(how: str) -> None:
    model, ramp = network(), gp.CubicSchedule(0.0, 0.9, 100)
    given = {"rising": 0.9, "schedule": ramp, "budget": gp.Budget(ramp)}[how]
    pruner = gp.GibbsPruner(model, given, law="rising" if how == "rising" else "annealed")
    train(model, pruner, 2, steps=60)
    assert float(masks(pruner).float().mean()) > 0.9
    with pytest.warns(UserWarning, match=r"risen to [0-9.]+% of the weights by epoch 1, and 90.0% are removed now"):
        pruner.finalize()
    layers = pruner.summary().layers
    zeros = sum(layer.achieved * layer.weights for layer in layers)
    assert zeros / sum(layer.weights for layer in layers) == pytest.approx(0.9, abs=0.01)


def test_a_sparsity_that_has_risen_is_shared_out_no_more_at_the_end() -> None:
    model = network()
    pruner = gp.GibbsPruner(model, 0.9, law="rising", epochs=4)
    train(model, pruner, 4)
    before = masks(pruner)
    with torch.no_grad():
        for name in pruner.masks:
            stored_weight(model.get_submodule(name)).mul_(1 if name == "2" else 10)  # another share, the same masks
    names = list(pruner.masks)
    pruner.finalize()
    after = torch.cat([(model.get_submodule(name).weight != 0).flatten() for name in names])
    assert bool((before == after).all())


@pytest.mark.parametrize("allocation", ["uniform", "global", "lamp", "erk"])
def test_a_budget_is_kept_by_all_layers_together(allocation: str) -> None:
    model = network()
    with torch.no_grad():
        model[2].weight.mul_(5)  # type: ignore[union-attr]
    budget = gp.Budget(gp.CubicSchedule(0.0, 0.9, epochs=3), allocation=allocation)
    pruner = gp.GibbsPruner(model, budget, hamiltonian=gp.Linear("square", relative=True), epochs=6)
    train(model, pruner, 6)
    pruner.finalize("converged")
    layers = pruner.summary().layers
    zeros = sum(layer.achieved * layer.weights for layer in layers)
    assert zeros / sum(layer.weights for layer in layers) == pytest.approx(0.9, abs=0.01)
    rates = [layer.achieved for layer in layers]
    if allocation == "uniform":
        assert max(rates) - min(rates) < 0.01
    else:
        assert max(rates) - min(rates) > 0.02
    if allocation == "global":
        assert rates[0] == min(rates)  # the layer with the large weights


def test_a_budget_of_multiply_adds_spares_what_is_cheap() -> None:
    x = torch.zeros(2, 3, 8, 8)
    by_weights = gp.GibbsPruner(network(), gp.Budget(0.8), schedule=gp.ConstantSchedule(math.inf))
    by_macs = gp.GibbsPruner(network(), gp.Budget(macs=0.8), schedule=gp.ConstantSchedule(math.inf), example_inputs=x)
    first, second = (p.summary().layers for p in (by_weights, by_macs))
    assert second[0].target > first[0].target  # a convolution at 64 places
    assert second[-1].target < first[-1].target  # a Linear
    with pytest.raises(gp.UserError, match="example_inputs is None"):
        gp.GibbsPruner(network(), gp.Budget(macs=0.5))


def test_filters_in_eights() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.Conv2d(16, 64, 3), nn.Conv2d(64, 32, 3), nn.Flatten(), nn.Linear(32, 4)
    )
    pruner = gp.GibbsPruner(model, gp.Budget(0.5, round_to=8), "filter")
    pruner.finalize("converged")
    alive = [int((model[i].weight.flatten(1) != 0).any(1).sum()) for i in (1, 2)]  # type: ignore[union-attr]
    assert all(count % 8 == 0 and count for count in alive)


@pytest.mark.parametrize("kind", ["square", "abs", "sign"])
def test_gradients_beyond_the_mask(kind: str) -> None:
    """Straight through: the gradient at the masked weights, for all; in proportion: as far as their output has weights
    left. Law: g·x + g·w ∂P/∂w, by autograd through P."""
    x, y = data()
    grads: dict[str, Tensor] = {}
    for gradient in ("masked", "proportional", "straight-through", "law"):
        model = network(3)
        pruner = gp.GibbsPruner(
            model, 0.6, hamiltonian=gp.Linear(kind, relative=True), schedule=gp.ConstantSchedule(2.0), gradient=gradient
        )
        layer, stored = model[2], stored_weight(model[2])
        effective = layer.weight
        plain = copy.deepcopy(network(3))
        for name in pruner.masks:  # the same network with the masked weights as they are
            plain.get_submodule(name).weight.data.copy_(model.get_submodule(name).weight)  # type: ignore[union-attr,operator,arg-type]
        F.cross_entropy(model(x), y).backward()
        F.cross_entropy(plain(x), y).backward()
        assert stored.grad is not None
        grads[gradient] = stored.grad
        g, mask, w = plain[2].weight.grad, pruner.masks["2"].mask, stored.detach()
        assert isinstance(g, Tensor)
        assert torch.equal(effective, w * mask)
        if gradient == "masked":
            wanted = g * mask
        elif gradient == "straight-through":
            wanted = g
        elif gradient == "proportional":
            share = torch.stack([(row * kept).norm() / row.norm() for row, kept in zip(w, mask)])
            wanted = g * mask + g * ~mask * share.view(-1, *[1] * (w.dim() - 1))
        else:
            leaf = w.double().clone().requires_grad_()
            q = float(gp.threshold(w, pruner._drawing.sites["2"].sparsity))
            field = {"square": 1 - leaf**2 / q, "abs": 1 - leaf.abs() / math.sqrt(q), "sign": (q - leaf**2).sign()}[
                kind
            ]
            (-4.0 * field).sigmoid().sum().backward()
            wanted = g * mask + g * (w * leaf.grad).float()
        torch.testing.assert_close(stored.grad, wanted, rtol=2e-4, atol=1e-7)
    if kind == "sign":
        assert torch.equal(grads["law"], grads["masked"])


@pytest.mark.parametrize(("gradient", "least", "most"), [("straight-through", 30, math.inf), ("proportional", 0, 1e-6)])
def test_an_output_of_which_nothing_is_left_is_not_torn_away_by_its_batch_norm(
    gradient: str, least: float, most: float
) -> None:
    """A batch norm divides what is 0 by the root of its ε, and the gradient with it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3), nn.Flatten(), nn.LazyLinear(4)
    )
    x = torch.randn(16, 3, 8, 8)
    model(x)
    nn.init.constant_(model[1].bias, 0.1)
    pruner = gp.GibbsPruner(model, 0.5, "filter", include=["0"], gradient=gradient, schedule=lambda epoch: math.inf)
    F.cross_entropy(model(x), torch.randint(4, (16,))).backward()
    rows = stored_weight(model[0]).grad.flatten(1).norm(dim=1)  # type: ignore[union-attr]
    kept = pruner.masks["0"].mask.flatten(1).any(1)
    assert least <= rows[~kept].mean() / rows[kept].mean() <= most


@pytest.mark.parametrize(
    ("structure", "survivors"),
    [*((kind, "shrunk") for kind in ("weight", "kernel", "filter", "2:4", "at-most-4", "2x2")),
     ("weight", "rescaled"), ("filter", "rescaled")],
)  # fmt: skip
def test_shrunk_survivors(structure: str, survivors: str) -> None:
    """Forward the weight shrunk by the threshold, the gradient straight through it; eval and the end are the same."""
    x, y = data()
    model = network(4)
    pruner = gp.GibbsPruner(
        model,
        0.5 if structure == "2:4" else 0.6,
        structure,
        schedule=gp.ConstantSchedule(math.inf),
        gradient="straight-through",
        survivors=survivors,
    )
    plain = network(4)
    for name in pruner.masks:
        w = stored_weight(model.get_submodule(name)).detach()
        left = w * shrunk_mask(w, pruner._drawing.sites[name].sparsity, structure)
        if survivors == "rescaled":  # by one factor of each layer
            left *= w[left != 0].abs().mean() / left[left != 0].abs().mean()
        assert torch.equal(left != 0, pruner.masks[name].mask)
        torch.testing.assert_close(model.get_submodule(name).weight, left)
        plain.get_submodule(name).weight.data.copy_(left)  # type: ignore[union-attr,operator]
    F.cross_entropy(model(x), y).backward()
    F.cross_entropy(plain(x), y).backward()
    for name in pruner.masks:
        torch.testing.assert_close(
            stored_weight(model.get_submodule(name)).grad,
            plain.get_submodule(name).weight.grad,  # type: ignore[union-attr]
        )
    with torch.no_grad():
        training = model(x)
        torch.testing.assert_close(model.eval()(x), training)
        torch._dynamo.reset()  # what other tests compiled counts towards its limit
        torch.testing.assert_close(torch.compile(model, backend="eager")(x), training)
        pruner.step()  # survivors of a training without one are left whole
        torch.testing.assert_close(pruner.finalize()(x), training)
    with pytest.raises(gp.UserError, match="survivors is 'half'"):
        gp.GibbsPruner(network(), 0.5, survivors="half")


class Unread(nn.Sequential):
    """A network without a graph."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.detach().sum()) < math.inf else x


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d, partial(nn.GroupNorm, 4)])
def test_a_layer_that_a_norm_follows_trains_as_if_it_were_only_shrunk(norm: Callable[[int], nn.Module]) -> None:
    """But for the statistics with which it is evaluated: those of a layer that shrinks lag behind it."""
    found = []
    for kind in (Unread, nn.Sequential):  # without a graph nobody knows what follows a layer
        torch.manual_seed(0)
        body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, bias=False), norm(16), nn.ReLU()]
        model = kind(*body, nn.Flatten(), nn.Linear(256, 10)).double()
        model[4].eps, model[4].momentum = 1e-30, 0.2  # type: ignore[union-attr,assignment]
        ramp = gp.Join((gp.ConstantSchedule(0.0), gp.ConstantSchedule(0.9)), (4,))
        pruner = gp.GibbsPruner(
            model,
            ramp,
            include="3",
            schedule=gp.ConstantSchedule(math.inf),
            survivors="shrunk",
            gradient="proportional",
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        for epoch in range(5):
            pruner.set_epoch(epoch)
            for step in range(4):
                x, y = data(4 * epoch + step)
                optimizer.zero_grad()
                F.cross_entropy(model(x.double()), y).backward()
                optimizer.step()
                pruner.step()
        x = data(99)[0].double()
        trained, tested = model.train()(x).detach(), model.eval()(x).detach()
        left = model[3].weight.detach().norm()
        found.append((stored_weight(model[3]).detach(), trained, (tested - trained).norm() / trained.norm(), left))
    (one, first, lag, weak), (other, second, less, strong) = found
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(first, second)
    assert strong > 2 * weak
    assert less < 0.75 * lag or norm is not nn.BatchNorm2d


@pytest.mark.parametrize(("steps", "lags"), [(4, True), (60, False)])
def test_batch_norms_that_lag_behind_a_short_training_are_told_of(steps: int, lags: bool) -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(256, 10))
    pruner = gp.GibbsPruner(model, 0.9, law="rising", epochs=4)
    train(model, pruner, 4, steps=steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pruner.finalize()
    told = [str(warning.message) for warning in caught]
    assert [text.startswith(f"the sparsity rose {steps} steps ago") for text in told] == [True] * lags


def test_the_gradient_of_a_law_needs_independent_weights() -> None:
    with pytest.raises(gp.UserError, match="gradient is 'law'"):
        gp.GibbsPruner(network(), 0.5, "filter", gradient="law")
    with pytest.raises(gp.UserError, match="gradient is 'all'"):
        gp.GibbsPruner(network(), 0.5, gradient="all")


@pytest.mark.parametrize("sparsity", [gp.CubicSchedule(0.0, 0.9, 6), gp.Budget(gp.CubicSchedule(0.0, 0.9, 6))])
def test_a_pruner_with_rising_sparsity_resumes_bit_for_bit(sparsity: object) -> None:
    def start() -> tuple[nn.Module, gp.GibbsPruner]:
        model = network(5)
        law = gp.Linear("square", relative=True)
        return model, gp.GibbsPruner(model, sparsity, hamiltonian=law, gradient="straight-through", epochs=8)  # type: ignore[arg-type]

    model, pruner = start()
    train(model, pruner, 4)
    other, resumed = start()
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(pruner.state_dict())
    assert torch.equal(masks(pruner), masks(resumed))
    for _ in range(3):
        pruner.step()
        resumed.step()
        assert torch.equal(masks(pruner), masks(resumed))
    assert torch.equal(model.eval()(data()[0]), other.eval()(data()[0]))


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_relative_laws_freeze_whatever_the_scale_of_the_weights(structure: str, scale: float) -> None:
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    law = gp.Linear("square", relative=True) if structure == "weight" else gp.Quadratic(1.0, relative=True)
    pruner = gp.GibbsPruner(model, gp.CubicSchedule(0.0, 0.75, 5), structure, law, epochs=10)
    train(model, pruner, 10, steps=1, rate=1e-3)
    assert pruner.agreement() >= 0.999


def test_the_rising_law_ends_with_the_sparsity_asked_for_and_masks_that_were_trained() -> None:
    model, epochs = network(), 8
    pruner = gp.GibbsPruner(model, 0.9, law="rising", epochs=epochs)
    assert bool(masks(pruner).all())  # nothing is pruned at first
    train(model, pruner, epochs)
    assert pruner.agreement() == 1.0
    before = {name: stored_weight(layer.module).detach().clone() for name, layer in pruner.layers.items()}
    pruner.finalize()
    layers = pruner.summary().layers
    zeros = sum(layer.achieved * layer.weights for layer in layers) / sum(layer.weights for layer in layers)
    assert zeros == pytest.approx(0.9, abs=0.01)
    assert len({round(layer.achieved, 3) for layer in layers}) > 1  # one threshold, not one rate
    for name, weight in before.items():  # survivors are shrunk by it, and rescaled where nothing else does that
        left = model.get_submodule(name).weight.detach()
        kept = left != 0
        ratios = (left / weight)[kept][weight[kept].abs().argsort()]
        assert bool((ratios.diff() >= 0).all())
        assert float(ratios[0]) < 0.5
        torch.testing.assert_close(left[kept].abs().mean(), weight[kept].abs().mean())


def test_under_the_rising_law_no_layer_of_filters_starves_whatever_its_scale() -> None:
    model, epochs = network(), 4
    with torch.no_grad():
        model[2].weight.mul_(0.01)
    kept = {}
    for way in ("balanced", "global"):
        sparsity = 0.5 if way == "balanced" else gp.Budget(gp.CubicSchedule(0.0, 0.5, 3))  # the law's own, and not
        pruner = gp.GibbsPruner(copy.deepcopy(model), sparsity, "filter", law="rising", epochs=epochs)
        pruner.set_epoch(epochs - 1)
        kept[way] = {name: int(layer.mask.flatten(1).any(1).sum()) for name, layer in pruner.masks.items()}
    assert kept["global"]["2"] == 1
    assert kept["balanced"]["2"] >= 4


def test_the_rising_law_learns_how_long_training_lasts_when_it_begins() -> None:
    early, late = (gp.GibbsPruner(network(), 0.9, law="rising", epochs=epochs) for epochs in (12, 200))
    late.lasts(12)
    for epoch in (0, 5, 11):
        early.set_epoch(epoch)
        late.set_epoch(epoch)
        assert torch.equal(masks(early), masks(late))
    annealed, other = (gp.GibbsPruner(network(), 0.9, law="annealed", epochs=epochs) for epochs in (12, 200))
    other.lasts(12)
    assert annealed.schedule == other.schedule


def test_under_the_rising_law_the_sparsity_rises_within_an_epoch_where_fractions_are_set() -> None:
    pruner, shared = gp.GibbsPruner(network(), 0.9, law="rising", epochs=3), []
    for step in range(100):
        pruner.set_epoch(step / 50)
        pruner.step()
        shared.append(1 - float(masks(pruner).float().mean()))
    wanted = [0.9 * (1 - (1 - step / 100) ** 3) for step in range(100)]
    assert shared == sorted(shared)
    assert max(abs(one - other) for one, other in zip(shared, wanted)) < 0.02
    assert 30 < len(set(shared)) < 70  # of a hundred steps, not each


@pytest.mark.parametrize("given", ["mapping", "function", "schedules"])
def test_under_the_rising_law_layers_may_have_sparsities_of_their_own(given: str) -> None:
    model, epochs = network(), 8
    asked = {"2": 0.5, "5": 0.0, "7": 0.9}
    sparsity = {
        "mapping": asked,
        "function": asked.__getitem__,
        "schedules": asked | {"7": gp.LinearSchedule(0, 0.9, 4)},
    }
    pruner = gp.GibbsPruner(model, sparsity[given], law="rising", epochs=epochs)  # type: ignore[arg-type]
    assert bool(masks(pruner).all())
    pruner.set_epoch(4)
    now = float(pruner.masks["7"].mask.float().mean())
    assert now == pytest.approx(0.1 if given == "schedules" else 1 - 0.9 * (1 - (1 - 4 / 7) ** 3), abs=1e-3)
    train(model, pruner, epochs)
    pruner.finalize()
    assert [layer.achieved for layer in pruner.summary().layers] == pytest.approx([*asked.values()], abs=0.01)


def test_patterns_beside_weights_have_nothing_that_rises() -> None:
    model, epochs = network(), 5
    both: dict = {"5": "weight", "7": "2:4"}
    pruner = gp.GibbsPruner(model, {"5": 0.8, "7": 0.5}, include=both, law="rising", epochs=epochs)
    assert [float(layer.mask.float().mean()) for layer in pruner.masks.values()] == [1.0, 0.5]
    train(model, pruner, epochs)
    pruner.finalize()
    assert [layer.achieved for layer in pruner.summary().layers] == pytest.approx([0.8, 0.5], abs=0.01)


@pytest.mark.parametrize("masked", [0.0, 0.5])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_masked_weights_have_a_decay_of_their_own(kind: type[torch.optim.Optimizer], masked: float) -> None:
    """As that of an optimiser which is told the decay of every single weight."""
    rate, own, steps = 0.01, 0.2, 3
    model = network()
    pruner = gp.GibbsPruner(model, 0.5, gradient="straight-through", epochs=1)
    other, twin = copy.deepcopy((model, pruner))  # whose decay is done by hand
    optimizer = kind(model.parameters(), lr=rate, weight_decay=own)
    by_hand = kind(other.parameters(), lr=rate, weight_decay=0.0)
    pruner.set_decay(optimizer, masked=1.0)
    pruner.set_decay(optimizer, masked=masked)  # in the place of the one before
    for step in range(steps):
        x, y = data(step)
        for one, trained in ((model, optimizer), (other, by_hand)):
            trained.zero_grad()
            F.cross_entropy(one(x), y).backward()
        masks = {id(stored_weight(layer.module)): twin.masks[name].mask for name, layer in twin.layers.items()}
        with torch.no_grad():
            for p in other.parameters():
                decay = torch.where(masks[id(p)], own, masked) if id(p) in masks else torch.tensor(own)
                p.mul_(1 - rate * decay) if kind is torch.optim.AdamW else p.grad.add_(decay * p)
        optimizer.step()
        by_hand.step()
        for one, theirs in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(one, theirs, rtol=1e-4, atol=1e-6)
        pruner.step()
        twin.step()
    pruner.finalize()
    optimizer.step()  # as any


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_masked_weights_decay_alike_whether_gradients_are_scaled_or_not(kind: type[torch.optim.Optimizer]) -> None:
    """A fused optimiser gets scaled gradients, and is called for steps that are to do nothing."""
    model = network()
    pruner = gp.GibbsPruner(model, 0.5, gradient="straight-through", epochs=1)
    other, twin = copy.deepcopy((model, pruner))
    scaler, runs = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for net, masks, fused in ((model, pruner, True), (other, twin, False)):
        optimizer = kind(net.parameters(), lr=0.01, weight_decay=0.2, fused=fused)  # type: ignore[call-arg]
        masks.set_decay(optimizer, masked=0.5)
        runs.append((net, masks, optimizer))
    for step, overflows in enumerate((False, True, False)):
        x, y = data(step)
        for net, _, optimizer in runs:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            (scaler.scale(loss) if net is model else loss).backward()
        if overflows:
            next(model.parameters()).grad[0] = torch.inf  # type: ignore[index]
        scaler.step(runs[0][2])
        scaler.update()
        if not overflows:
            runs[1][2].step()
        for one, theirs in zip(model.parameters(), other.parameters()):
            torch.testing.assert_close(one, theirs, rtol=1e-4, atol=1e-6)
        pruner.step()
        twin.step()


@pytest.mark.parametrize(
    ("optimizer", "masked", "told"),
    [(torch.optim.SGD, -1, "masked is -1: allowed are numbers from 0"), (torch.optim.SGD, "x", "masked is 'x'"),
     (torch.optim.LBFGS, 0.0, "optimizer is 'LBFGS': allowed are those that train the pruned layers"),
     (lambda parameters: None, 0.0, "optimizer is None: allowed are optimisers of torch")],
)  # fmt: skip
def test_a_decay_that_cannot_be_is_refused(optimizer: object, masked: object, told: str) -> None:
    model = network()
    pruner = gp.GibbsPruner(model, 0.5)
    with pytest.raises(gp.UserError, match=told):
        pruner.set_decay(optimizer(model.parameters()), masked)  # type: ignore[operator, arg-type]


@pytest.mark.parametrize(
    "given",
    [{"law": "falling"}, {"law": "rising", "hamiltonian": "square"}, {"law": "rising", "schedule": lambda epoch: 1.0},
     {"law": "rising", "sampler": "exact"}, {"law": "rising", "warm": True}, {"law": "rising", "gradient": "law"},
     {"law": "rising", "sparsity": {"2": 0.5, "5": "x", "7": 0.5}}, {"law": "rising", "epochs": 0}],
)  # fmt: skip
def test_what_the_rising_law_has_not_is_refused_before_anything_changes(given: dict) -> None:
    model = network()
    with pytest.raises(gp.UserError, match="allowed are"):
        gp.GibbsPruner(model, **{"sparsity": 0.9, **given})
    assert not any("parametrizations" in name for name in model.state_dict())
