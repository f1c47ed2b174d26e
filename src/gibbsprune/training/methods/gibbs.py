"""Gibbs pruning: a fresh mask at every step from p(x) ∝ exp(−βH(x)).

The defaults are the paper's: a constant sparsity, shared equally, β annealed in units of the weights. The other edge of
the family is gradual magnitude pruning: a sparsity that rises, at zero temperature (:mod:`.feedback`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import rising
from ...budgets import ALLOCATIONS, Budget
from ...checks import bad, choice, number, or_word, whole
from ...energies import Neighbours, Redundancy
from ...hamiltonians import RELATIVE, Hamiltonian, Linear, Quadratic, as_hamiltonian, possible
from ...importance import KINDS as SCORES
from ...importance import check_importance
from ...law import Law
from ...samplers import SWEEPS
from ...schedules import RAMPED, ConstantSchedule, CubicSchedule, LinearSchedule, LogSchedule, Schedule, annealed
from ...site import GRADIENTS, Site, check_gradient
from ...structures import JOINT, KINDS, Filter, Joint, Weight, as_structure
from ...survivors import SURVIVORS
from .method import Method, Setting

if TYPE_CHECKING:
    from ..spec import RunSpec

UNTIL = Setting(number(0, 1, above=True), "share of training after which a rising sparsity is reached (0.8)",
                lambda spec: 0.8, "u")  # fmt: skip
ALLOCATION = Setting(choice(*ALLOCATIONS), "how layers share the sparsity (uniform)", lambda spec: "uniform", "")

#: The settings of the law ``rising``; patterns as N:M have no sparsity that could rise, and know the last two alone.
RISING = {
    "ramp": "cubic",
    "until": RAMPED,
    "temperature": "zero",
    "gradient": rising.GRADIENT,
}

ACTIVE = "active"  # in place of a decay of masked weights: only the others have one


def _by_law(name: str, annealed: str | float) -> Callable[[RunSpec], Any]:
    """A setting's default, by the recipe's law."""

    def default(spec: RunSpec) -> Any:
        lacks = name in ("ramp", "until") and as_structure(spec.structure).limited
        return RISING[name] if spec.recipe.law == "rising" and not lacks else annealed

    return default


def _as_measured(spec: RunSpec) -> bool:
    """Whether a run is of the recipe ``best`` and our ResNets, whose weights share by one threshold alone, and which
    leaves the two layers weaker that no norm follows, as in its results on CIFAR-10."""
    return spec.recipe.name == "best" and ":" not in spec.model


def _allocation(spec: RunSpec) -> str:
    """As the law has it."""
    if spec.recipe.law != "rising":
        return "uniform"
    kind = as_structure(spec.structure)
    return "global" if isinstance(kind, Weight) and _as_measured(spec) else rising.allocation(kind)


def _units(spec: RunSpec) -> str:
    """The paper's, but for networks of which nothing is known, whose weights may be of any size."""
    return "threshold" if spec.recipe.name == "plain" and spec.hamiltonian != "binary" else "weights"


def _survivors(spec: RunSpec) -> str:
    """With the law ``rising`` what suits the network, which is looked at when it is made."""
    if spec.recipe.law != "rising":
        return "whole"
    measured = "whole" if isinstance(as_structure(spec.structure), Filter) else "shrunk"
    return measured if _as_measured(spec) else "auto"


class Gibbs(Method):
    name = "gibbs"
    about = "masks sampled from an annealed Gibbs distribution while training"
    structures = (*KINDS, *JOINT)
    ends_with = "drawn"
    ties = True
    settings = {
        "ramp": Setting(choice("constant", "linear", "cubic"), "gibbs: how the sparsity rises (constant)",
                        _by_law("ramp", "constant"), ""),
        "until": dataclasses.replace(UNTIL, default=_by_law("until", 0.8)),
        "allocation": dataclasses.replace(ALLOCATION, default=_allocation),
        "floor": Setting(number(0, 1), "gibbs: where layers share a sparsity, the least share of each that stays (0)",
                         lambda spec: 0.0, "l"),
        "units": Setting(choice("weights", "threshold"),
                         "gibbs: what β is measured in (weights; of one's own data threshold)", _units, "in."),
        "gradient": Setting(choice(*GRADIENTS), "gibbs: what reaches a masked weight (masked)",
                            _by_law("gradient", "masked"), ""),
        "survivors": Setting(choice(*SURVIVORS, "auto"), "gibbs: what is left of a weight that is kept (whole)",
                             _survivors, ""),
        "temperature": Setting(choice("annealed", "zero"), "gibbs: the law's, or its limit from the start (annealed)",
                               _by_law("temperature", "annealed"), "t."),
        "importance": Setting(choice(*SCORES), "gibbs: what takes the place of |w| in the law (magnitude)",
                              lambda spec: "magnitude", ""),
        "chain": Setting(choice("cold", "warm"), "gibbs: whether a chain goes on from the step before (cold)",
                         lambda spec: "cold", ""),
        "sweeps": Setting(whole(1), "gibbs: sweeps of a chain (50)", lambda spec: SWEEPS, "n"),
        "fading": Setting(or_word(number(0), ACTIVE),
                          "gibbs: decay of masked weights beyond the recipe's, or 'active': they have none (0)",
                          lambda spec: 0.0, "f"),
    }  # fmt: skip

    def check(self, spec: RunSpec) -> None:
        if spec.hamiltonian == "binary" and spec.setting("units") == "threshold":
            raise bad("units", "threshold", "'weights' with hamiltonian 'binary', which has no field")
        if as_structure(spec.structure).limited and spec.setting("ramp") != "constant":
            raise bad("ramp", spec.setting("ramp"), f"'constant' with structure {spec.structure!r}")
        check_allocation(spec)
        for name, other, without in (("until", "ramp", "constant"), ("floor", "allocation", "uniform")):
            default = self.settings[name].default(spec)
            if spec.setting(other) == without and spec.setting(name) != default:
                raise bad(name, spec.setting(name), f"{default} with {other} {without!r}, which has no use for it")
        if self.cold(spec):
            _check_cold(spec)
        self.target(spec)  # refuses a floor that leaves more than is asked for
        check_importance(self.importance(spec), hamiltonian(spec), self.gradient(spec))

    def rule(self, sites: Sequence[Site], specs: Sequence[RunSpec], device: torch.device) -> Law:
        for site in sites:
            check_gradient(self.gradient(specs[site.run]), [site])
        return Law(sites, lanes=device.type == "cuda", cold=self.cold(specs[sites[0].run]))

    def cold(self, spec: RunSpec) -> bool:
        return bool(spec.setting("temperature") == "zero")

    def level(self, spec: RunSpec, sites: Sequence[Site]) -> Callable[[int], float]:
        if self.cold(spec):
            return lambda epoch: math.inf
        beta = schedule(spec, [site.count * site.size for site in sites])
        return lambda epoch: beta(epoch // spec.stretch)

    def target(self, spec: RunSpec) -> float | Schedule | Budget:
        return shared_out(spec, str(spec.setting("ramp")))

    def gradient(self, spec: RunSpec) -> str:
        return str(spec.setting("gradient"))

    def survivors(self, spec: RunSpec) -> str:
        return str(spec.setting("survivors"))

    def importance(self, spec: RunSpec) -> str:
        return str(spec.setting("importance"))

    def fading(self, spec: RunSpec) -> float | None:
        return None if spec.setting("fading") == ACTIVE else float(spec.setting("fading"))


def _check_cold(spec: RunSpec) -> None:
    """Refuses what only a law with a temperature has; the Hamiltonian is the structure's own where none is named."""
    kind, settings = as_structure(spec.structure), dict(spec.settings)
    given = {name: getattr(spec.recipe, name) for name in ("anneal", "beta_start", "beta_end")}
    coupling = None if spec.coupling == Quadratic().coupling else spec.coupling
    given |= {"coupling": coupling, "sampler": spec.sampler, "chain": settings["chain"]}
    named = None if spec.hamiltonian == possible(kind)[0] else spec.hamiltonian
    rising.chosen_law("rising", str(settings["gradient"]), hamiltonian=named, **given)


def shares_nothing(spec: RunSpec) -> bool:
    """Whether the structure says how much its layers keep, or makes units of them with others."""
    kind = as_structure(spec.structure)
    return kind.limited or isinstance(kind, Joint)


def check_allocation(spec: RunSpec) -> None:
    if shares_nothing(spec) and spec.setting("allocation") != "uniform":
        raise bad("allocation", spec.setting("allocation"), f"'uniform' with structure {spec.structure!r}")


def shared_out(spec: RunSpec, ramp: str) -> float | Schedule | Budget:
    """The spec's sparsity as it rises over unstretched epochs, shared out as its settings say; constant if limited."""
    if as_structure(spec.structure).limited:
        return spec.sparsity
    epochs = min(round(spec.setting("until") * spec.recipe.epochs), spec.recipe.epochs - 1)  # the last one has it all
    kinds = {"linear": LinearSchedule, "cubic": CubicSchedule}
    rises = kinds[ramp](0.0, spec.sparsity, epochs) if ramp in kinds and epochs > 0 else spec.sparsity
    allocation, floor = spec.setting("allocation"), spec.setting("floor") or 0.0
    return rises if allocation == "uniform" else Budget(rises, allocation=allocation, floor=floor)


def hamiltonian(spec: RunSpec) -> Hamiltonian:
    """The spec's Hamiltonian, with its coupling, in the units that it asks for."""
    relative = spec.setting("units") == "threshold"
    if spec.hamiltonian == "quadratic":
        plain = spec.coupling == Quadratic().coupling
        return RELATIVE["quadratic"] if relative and plain else Quadratic(spec.coupling, relative)
    chosen = as_hamiltonian(spec.hamiltonian, as_structure(spec.structure))
    if isinstance(chosen, (Neighbours, Redundancy)) and spec.coupling != Quadratic().coupling:
        if isinstance(chosen, Neighbours):
            return dataclasses.replace(chosen, attraction=spec.coupling)
        return dataclasses.replace(chosen, repulsion=spec.coupling)
    return Linear(chosen.kind, relative=True) if relative and isinstance(chosen, Linear) else chosen


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
