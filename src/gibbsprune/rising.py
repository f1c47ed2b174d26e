"""The law ``rising``: no temperature, and a sparsity of the whole network that rises while all weights go on learning.

It is the zero-temperature edge of the Gibbs law (docs/theory.md) with what the search on held-out images found best:

- one threshold for the network, s(t) = p·(1 − (1 − t/0.9)³) of whose weights lie under it after a share t of training,
  but that every layer is assured of three quarters of an equal share, whatever the size of its weights;
- what a weight adds to the network is shrunk by the threshold of its layer, so that it comes and goes at zero, and each
  layer is rescaled to be as strong as before; filters in a network with batch norms stay whole;
- the gradient of the pruned network is applied to every weight, to masked ones in proportion to what their output has
  left: a batch norm would tear at an output of which nothing is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .budgets import Budget
from .checks import bad, check_one_of, check_sparsity, check_whole
from .schedules import LAWS, RAMPED, ConstantSchedule, CubicSchedule, Schedule
from .structures import Filter, Joint, Structure
from .targets import Sparsity, by_layer

COLD = ConstantSchedule(math.inf)
GRADIENT = "proportional"
#: What only a temperature has, where that is something without one.
USUAL = {"sampler": "auto", "warm": False, "chain": "cold", "temperature": "zero"}


def ramp(sparsity: float, epochs: int) -> float | Schedule:
    """A sparsity that is reached after 90 % of training, before its last epoch.

    >>> [round(ramp(0.9, 10)(epoch), 3) for epoch in (0, 3, 9)]
    [0.0, 0.633, 0.9]
    """
    length = min(round(RAMPED * epochs), epochs - 1)
    return CubicSchedule(0.0, sparsity, length) if length > 0 else sparsity


def plan(
    law: str, sparsity: Sparsity | Budget, structure: Structure, layers: Mapping[str, Structure], epochs: int
) -> Sparsity | Budget:
    """How far each layer goes, and when: under the law ``rising`` one number is of the network, several of layers.

    Args:
        law: its name; with another one what is asked for is constant.
        sparsity: as it was asked for; schedules, also of budgets, are their owner's.
        structure: of the layers, if they have none of their own.
        layers: that of each, by name; one that says how many weights stay has nothing that could rise.
        epochs: how long training lasts.
    """
    check_whole("epochs", epochs)
    refused = isinstance(sparsity, Budget) and any(own.limited for own in layers.values())  # by who reads this
    if law != "rising" or isinstance(sparsity, Schedule) or refused:
        return sparsity
    if isinstance(sparsity, Budget):
        return sparsity.along(partial(ramp, epochs=epochs))
    way = allocation(*([structure] if isinstance(structure, Joint) else layers.values()))
    if not (callable(sparsity) or isinstance(sparsity, Mapping) or way == "uniform"):
        return Budget(ramp(check_sparsity(sparsity), epochs), allocation=way)
    each = by_layer(sparsity, list(layers))
    return {
        name: value if layers[name].limited or isinstance(value, Schedule) else ramp(check_sparsity(value), epochs)
        for name, value in each.items()
    }


def allocation(*structures: Structure) -> str:
    """How layers of these share the sparsity; units of several weights and patterns share nothing."""
    return "uniform" if any(own.limited or isinstance(own, Joint) for own in structures) else "balanced"


def survivors(model: nn.Module, structure: Structure) -> str:
    """What the law leaves of them. Of a filter that is shrunk as a whole a batch norm would give everything back.

    >>> from gibbsprune.structures import Weight
    >>> network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    >>> survivors(network, Weight()), survivors(network, Filter()), survivors(nn.Linear(2, 2), Filter())
    ('rescaled', 'whole', 'rescaled')
    """
    normed = any(isinstance(module, _BatchNorm) for module in model.modules())
    return "whole" if normed and isinstance(structure, Filter) else "rescaled"


def chosen_law(law: str | None, gradient: str | None, **warm: Any) -> str:
    """The law asked for; without a name ``rising``, but ``annealed`` where something is given that only that has.

    Args:
        law: its name; one that there is not is refused, as is with the law ``rising`` what it does not have.
        gradient: what reaches a masked weight; "law" goes through a probability.
        warm: what only a law with a temperature has, as it was given.
    """
    named = [what for what, value in warm.items() if value is not None and value != USUAL.get(what)]
    if law is None:
        return "annealed" if named or gradient == "law" else "rising"
    check_one_of("law", law, LAWS)
    if law == "rising" and named:
        allowed = f"{USUAL.get(named[0])!r} with law 'rising', which has no temperature ('annealed' has)"
        raise bad(named[0], warm[named[0]], allowed)
    if law == "rising" and gradient == "law":
        raise bad("gradient", gradient, "'masked', 'proportional', 'straight-through' with law 'rising'")
    return law
