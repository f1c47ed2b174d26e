"""Gibbs pruning (the paper): a fresh mask at every step from p(x) ∝ exp(−βH(x)), with β annealed over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from ...hamiltonians import Hamiltonian, Quadratic, as_hamiltonian
from ...law import Law
from ...schedules import ConstantSchedule, LinearSchedule, LogSchedule, Schedule, annealed
from ...site import Site
from ...structures import as_structure
from .method import Method

if TYPE_CHECKING:
    from ..spec import RunSpec


class Gibbs(Method):
    name = "gibbs"
    about = "masks sampled from an annealed Gibbs distribution while training"
    ends_with = "drawn"

    def rule(self, sites: Sequence[Site], specs: Sequence[RunSpec], device: torch.device) -> Law:
        return Law(sites, lanes=device.type == "cuda")

    def level(self, spec: RunSpec, sites: Sequence[Site]) -> Callable[[int], float]:
        beta = schedule(spec, [site.count * site.size for site in sites])
        return lambda epoch: beta(epoch // spec.stretch)


def hamiltonian(spec: RunSpec) -> Hamiltonian:
    """The spec's Hamiltonian, with its coupling."""
    if spec.hamiltonian == "quadratic":
        return Quadratic(spec.coupling)
    return as_hamiltonian(spec.hamiltonian, as_structure(spec.structure))


def schedule(spec: RunSpec, sizes: Sequence[int]) -> Schedule:
    """β over unstretched epochs: the recipe's, and where it is silent the Hamiltonian's own."""
    recipe, law = spec.recipe, hamiltonian(spec)
    epochs = recipe.anneal_epochs or annealed(recipe.epochs)
    default = law.default_schedule(epochs, sizes)
    if recipe.anneal is None and recipe.beta_start is None and recipe.beta_end is None:
        return default
    start = recipe.beta_start if recipe.beta_start is not None else default(0)
    end = recipe.beta_end if recipe.beta_end is not None else default(epochs)
    kind = recipe.anneal or ("linear" if isinstance(default, LinearSchedule) else "log")
    if kind == "constant":
        return ConstantSchedule(end)
    return (LinearSchedule if kind == "linear" else LogSchedule)(start, end, epochs)
