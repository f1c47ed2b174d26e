"""A site: one weight tensor to be masked, how it is cut, by which law, how far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from .checks import bad, check_one_of, check_sparsity
from .errors import UserError
from .graphs import Graph
from .hamiltonians import Hamiltonian, as_hamiltonian
from .limits import check_room
from .samplers import resolve
from .structures import Structure, given_sparsity
from .threshold import kept_count, position

#: What reaches a masked weight (:mod:`gibbsprune.masking`).
GRADIENTS = ("masked", "straight-through", "law")


@dataclass(frozen=True)
class Site:
    """One weight tensor to be masked: how it is cut, by which law, and whose β and random stream it follows."""

    shape: tuple[int, ...]
    structure: Structure
    hamiltonian: Hamiltonian
    sparsity: float
    sampler: str = "auto"
    run: int = 0
    sweeps: int | None = None  # of a chain; None for as many as whoever draws says
    warm: bool = False  # whether a chain goes on from the mask before

    @property
    def count(self) -> int:
        return self.structure.count(self.shape)

    @property
    def size(self) -> int:
        return self.structure.size(self.shape)

    @property
    def pairing(self) -> Graph | None:
        """Which elements interact, where the Hamiltonian has pairs of its own."""
        return self.hamiltonian.pairing(self.shape, self.structure)

    @property
    def limits(self) -> tuple[int, int] | None:
        """The least and the most that a neighbourhood keeps, where weights are decided on one by one."""
        return self.structure.limits(self.shape) if self.structure.limited else None

    @property
    def removed(self) -> float:
        """The sparsity of the converged mask."""
        limits, total = self.limits, math.prod(self.shape)
        if self.sparsity == 0:
            return 0.0
        if limits is None:
            return 1 - kept_count(self.sparsity, self.count) / self.count
        if limits[0] < limits[1]:
            return 1 - kept_count(self.sparsity, total) / total
        real = self.structure.rows(torch.ones(self.shape, dtype=torch.bool)).sum(1)
        return 1 - int(real.clamp_(max=limits[1]).sum()) / total

    def at(self, sparsity: float) -> Site:
        """The same site at another sparsity, none of its neighbourhoods on Q."""
        if self.structure.sparsity is not None:
            return replace(self, sparsity=given_sparsity(sparsity, self.structure))
        count = self.count * self.size if self.limits else self.count
        return replace(self, sparsity=off_edge(check_sparsity(sparsity), count))

    def checked(self) -> Site:
        """The same site with its sampler resolved, or a sentence saying what is wrong."""
        as_hamiltonian(self.hamiltonian, self.structure)
        if not 0 <= self.hamiltonian.coupling < math.inf:
            raise bad("coupling", self.hamiltonian.coupling, "numbers from 0 up")
        sparsity = given_sparsity(self.sparsity, self.structure)
        limits, total = self.limits, math.prod(self.shape)
        if limits and limits[0] < limits[1]:
            check_room(sparsity, kept_count(sparsity, total), limits[1], self.size, self.count)
        limited = self.structure.limited
        chosen = resolve(self.sampler, self.hamiltonian, self.size, limited, self.pairing)
        return replace(self, sparsity=sparsity, sampler=chosen)


def off_edge(sparsity: float, count: int) -> float:
    """The same number of kept neighbourhoods, from a sparsity that puts none of them exactly on Q.

    K is the same for all p with the same ⌊p(M − 1)⌋. Where p(M − 1) is whole, as for 16 filters at 0.8, one
    neighbourhood would lie on Q itself, feel no field and never freeze; the middle of the interval avoids that.
    """
    low, fraction = position(sparsity, count)
    return sparsity if fraction or sparsity == 0 else (low + 0.5) / (count - 1)


def layer_site(
    name: str,
    shape: tuple[int, ...],
    structure: Structure,
    hamiltonian: Hamiltonian,
    sparsity: float,
    sampler: str,
    advice: str,
) -> Site:
    """The site of a layer, off the edge; one that would lose its only neighbourhood is refused.

    Args:
        name: of the layer, for the sentence.
        shape: of its weight.
        structure: laid out as the layer stores it.
        hamiltonian: the energy of a mask.
        sparsity: the fraction to remove.
        sampler: a name of :mod:`gibbsprune.samplers`.
        advice: what the sentence ends with.
    """
    count = structure.count(shape)
    if structure.limited:
        try:
            return Site(shape, structure, hamiltonian, sparsity, sampler).checked().at(sparsity)
        except UserError as error:
            raise UserError(f"layer {name!r}: {error}") from None
    if sparsity and kept_count(sparsity, count) == 0:
        raise UserError(
            f"layer {name!r} has a single {structure.name}: sparsity {sparsity} would remove all of it{advice}"
        )
    return Site(shape, structure, hamiltonian, off_edge(sparsity, count), sampler).checked()


def check_device(what: str, device: torch.device) -> None:
    """Refuses Apple's GPUs, which have no float64: thresholds and laws are worked out in it."""
    if device.type == "mps":
        raise UserError(
            f"{what} is 'mps': allowed are cpu and cuda; masks are drawn in float64, which mps does not have"
        )


def check_gradient(gradient: str, sites: Iterable[Site]) -> None:
    """The law's own gradient is that of weights which are drawn by themselves."""
    check_one_of("gradient", gradient, GRADIENTS)
    for site in sites:
        if gradient == "law" and not (site.size == 1 and site.sampler == "independent"):
            kinds = f"{site.hamiltonian!r} and {site.structure.plural}"
            raise bad("gradient", gradient, f"'masked', 'straight-through' with {kinds}")
