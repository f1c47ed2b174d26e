"""The law ``rising``: no temperature, and a sparsity of the whole network that rises while all weights go on learning.

It is the zero-temperature edge of the Gibbs law (docs/theory.md) with what the search on held-out images found best:

- one threshold for the network, s(t) = p·(1 − (1 − t/0.9)³) of whose weights lie under it after a share t of training;
  where not single weights are decided on, every layer is assured of three quarters of what its shape would give it;
- what a weight adds to the network is shrunk by the threshold of its layer, so that it comes and goes at zero, and in a
  network without batch norms each layer is rescaled to be as strong as before; filters before batch norms stay whole;
- the gradient of the pruned network is applied to every weight, to masked ones in proportion to what their output has
  left: a batch norm would tear at an output of which nothing is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .budgets import Budget
from .checks import bad, check_one_of, check_whole
from .hamiltonians import Hamiltonian
from .schedules import LAWS, RAMPED, ConstantSchedule, CubicSchedule, Schedule
from .selection import Sparsity
from .structures import Filter, Structure, Weight

COLD = ConstantSchedule(math.inf)
GRADIENT = "proportional"


def budget(sparsity: float, epochs: int, structure: Structure) -> Budget:
    """One threshold for the network, at a sparsity that is reached after 90 % of training, before its last epoch.

    >>> [round(budget(0.9, 10, Weight()).target(epoch), 3) for epoch in (0, 3, 9)]
    [0.0, 0.633, 0.9]
    """
    ramp = min(round(RAMPED * epochs), epochs - 1)
    rises = CubicSchedule(0.0, sparsity, ramp) if ramp > 0 else sparsity
    return Budget(rises, allocation=allocation(structure))


def allocation(structure: Structure) -> str:
    """How layers share the sparsity: what is larger than a weight has a scale that depends on its layer's size."""
    return "global" if isinstance(structure, Weight) else "balanced"


def survivors(model: nn.Module, structure: Structure) -> str:
    """What the law leaves of them: a batch norm makes up for a layer that is shrunk, else the layer has to.

    >>> survivors(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), Weight()), survivors(nn.Linear(2, 2), Weight())
    ('shrunk', 'rescaled')
    """
    normed = any(isinstance(module, _BatchNorm) for module in model.modules())
    return normed_survivors(structure) if normed else "rescaled"


def normed_survivors(structure: Structure) -> str:
    """The same before batch norms: of a filter that is shrunk as a whole they would give everything back."""
    return "whole" if isinstance(structure, Filter) else "shrunk"


def check_law(
    law: str,
    structure: Structure,
    sparsity: Sparsity | Schedule | Budget,
    hamiltonian: str | Hamiltonian | None,
    schedule: Schedule | Callable[[Any], float] | None,
    epochs: int,
) -> float | None:
    """Refuses what a law does not have; the sparsity to which that of the law ``rising`` rises, where it is one number.

    Args:
        law: its name.
        structure: of the layers; one that says how many weights stay has nothing that could rise.
        sparsity: as it was given.
        hamiltonian: as it was given.
        schedule: of β, as it was given.
        epochs: how long training lasts.
    """
    check_one_of("law", law, LAWS)
    check_whole("epochs", epochs)
    if law != "rising":
        return None
    for what, given in (("hamiltonian", hamiltonian), ("schedule", schedule)):
        if given is not None:
            raise bad(what, given, "None with law 'rising', which has no temperature")
    if structure.limited or isinstance(sparsity, (Schedule, Budget)):
        return None
    if not isinstance(sparsity, (int, float)):
        raise bad("sparsity", sparsity, "numbers, schedules and budgets with law 'rising'")
    return sparsity
