"""A site: one weight tensor to be masked, how it is cut, by which law, how far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .across import Counts
from .checks import bad, check_one_of, check_sparsity, excluding, layers_told
from .errors import UserError
from .graphs import Graph
from .hamiltonians import RELATIVE, Hamiltonian, Linear, Quadratic, as_hamiltonian
from .limits import check_room
from .samplers import resolve
from .structures import Filter, Structure, given_sparsity
from .threshold import kept_count, mean_squares, position
from .weights import Layer

#: What reaches a masked weight (:mod:`gibbsprune.masking`).
GRADIENTS = ("masked", "proportional", "straight-through", "law")


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
    view: tuple[int, ...] | None = None  # the shape in which it is cut, where that is another than its own
    name: str = ""  # of its layer, where layers interact with each other
    peers: Counts = ()  # the layers that do
    unit: str = ""  # sites of a run with the same unit have neighbourhoods in common, row by row
    normed: bool = False  # whether nothing but norms reads its layer's outputs

    @property
    def cut(self) -> tuple[int, ...]:
        return self.view or self.shape

    @property
    def count(self) -> int:
        return self.structure.count(self.cut)

    @property
    def size(self) -> int:
        return self.structure.size(self.cut)

    @property
    def sizes(self) -> tuple[tuple[int, ...], int, int]:
        """Its shape, how many neighbourhoods it has, and of how many elements."""
        return self.shape, self.count, self.size

    @property
    def split(self) -> int:
        """Where the chromatic sampler cuts a row in two."""
        return self.structure.split(self.cut)

    def rows(self, weight: Tensor) -> Tensor:
        """The neighbourhoods of the weight, one per row."""
        return self.structure.rows(weight.reshape(self.cut))

    def means(self, weight: Tensor) -> Tensor:
        """w̄² of the neighbourhoods."""
        return mean_squares(weight.reshape(self.cut), self.structure)

    def unrows(self, rows: Tensor) -> Tensor:
        """The inverse of :meth:`rows`: (..., M, n) to (..., *shape)."""
        return self.structure.unrows(rows, self.cut).reshape(*rows.shape[:-2], *self.shape)

    def in_use(self, weight: Tensor, left: Tensor, runs: int = 1) -> Tensor:
        """‖w·x‖/‖w‖ of each output, at most 1, for all of its weights: how much of its strength a mask leaves.

        Args:
            weight: of one run, or of several side by side.
            left: what is left of each weight, 0 where it is masked.
            runs: how many.
        """
        kind, shape = self.structure, (runs * self.cut[0], *self.cut[1:])
        outputs = Filter(transposed=kind.transposed, groups=kind.groups * (runs if kind.transposed else 1))
        whole = outputs.rows(weight.detach().reshape(shape))
        rest = outputs.rows((weight.detach() * left).reshape(shape))
        exact = torch.promote_types(weight.dtype, torch.float32)
        strengths = [torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=exact) for rows in (rest, whole)]
        share = (strengths[0] / strengths[1].clamp_min(torch.finfo(exact).tiny)).clamp_(max=1)
        return outputs.unrows(share.expand_as(whole), shape).reshape(weight.shape)

    @property
    def pairing(self) -> Graph | None:
        """Which elements interact, where the Hamiltonian has pairs of its own."""
        return self.hamiltonian.pairing(self.cut, self.structure, self.name, self.peers)

    @property
    def limits(self) -> tuple[int, int] | None:
        """The least and the most that a neighbourhood keeps, where weights are decided on one by one."""
        return self.structure.limits(self.cut) if self.structure.limited else None

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
        real = self.rows(torch.ones(self.shape, dtype=torch.bool)).sum(1)
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


def layer_sites(
    layers: Mapping[str, Layer],
    structures: Mapping[str, Structure],
    hamiltonian: Hamiltonian,
    sparsities: Mapping[str, float],
    sampler: str,
    option: str = "exclude=",
    warm: bool = False,
    asked: Mapping[str, Any] | None = None,
) -> dict[str, Site]:
    """The sites of layers, off the edge; those that would lose their only neighbourhood are refused.

    Args:
        layers: by name.
        structures: of each, laid out as the layer stores its weight.
        hamiltonian: the energy of a mask.
        sparsities: the fraction to remove of each.
        sampler: a name of :mod:`gibbsprune.samplers`.
        option: by which its owner leaves layers out.
        warm: whether chains go on from the masks before.
        asked: what is asked for of each layer, where that is more than the sparsity in the end: layers of which the
            same is asked may be units.
    """
    found, counts = {}, {name: structures[name].count(layer.view or layer.shape) for name, layer in layers.items()}
    lost = [
        name
        for name, count in counts.items()
        if sparsities[name] and not structures[name].limited and kept_count(sparsities[name], count) == 0
    ]
    if lost:
        kind = structures[lost[0]].name
        raise UserError(
            f"{layers_told(lost, f'has a single {kind}', f'have a single {kind} each')}: sparsity "
            f"{sparsities[lost[0]]} would remove all of it; leave it out with {option}{excluding(lost, layers)!r}"
        )
    units, peers = units_of(layers, sparsities, asked), hamiltonian.peers(counts)
    for name, layer in layers.items():
        check_device(f"the device of layer {name!r}", layer.stored.device)
        structure, sparsity = structures[name], sparsities[name]
        law = _law(hamiltonian, structure)
        site = Site(
            layer.shape, structure, law, sparsity, sampler, warm=warm, view=layer.view, unit=units.get(name, ""),
            normed=layer.normed,
        )  # fmt: skip
        site = replace(site, name=name, peers=peers) if peers else site
        try:
            found[name] = site.checked().at(sparsity)
        except UserError as error:
            if not structure.limited:
                raise
            raise UserError(f"layer {name!r}: {error}") from None
    return found


def units_of(
    layers: Mapping[str, Layer], sparsities: Mapping[str, float], asked: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """The first layer of each unit, by the names of all layers in one; layers of which the same is asked alone are
    tied, that is the sparsity in the end unless it says more."""
    asked, first = asked or sparsities, dict[str, str]()
    for name in layers:
        root = name
        if (one := layers[name].tied) and layers[name].own and asked[one] != asked[name]:
            told = f"{sparsities[one]} for {one!r} and {sparsities[name]} for {name!r}"
            raise UserError(f"sparsity is {told}: layers of one unit are pruned together, with one sparsity")
        while layers[root].tied and asked[layers[root].tied] == asked[root]:
            root = layers[root].tied
        first[name] = root
    sizes = Counter(first.values())
    return {name: root for name, root in first.items() if sizes[root] > 1}


def _law(hamiltonian: Hamiltonian, structure: Structure) -> Hamiltonian:
    """The Hamiltonian of a layer with a structure of its own: one weight has nothing to be coupled with, weights of a
    neighbourhood are by the coupling that they have in units of the threshold unless another one is named."""
    if isinstance(hamiltonian, Quadratic) and structure.family == "weight":
        return Linear("square", hamiltonian.relative)
    alone = hamiltonian == RELATIVE["square"] and structure.family != "weight"
    return RELATIVE["quadratic"] if alone else hamiltonian


def joint_rows(weights: Sequence[Tensor], sites: Sequence[Site]) -> Tensor:
    """The neighbourhoods of a unit: the rows of its sites, side by side."""
    rows = [site.rows(weight.detach()) for weight, site in zip(weights, sites)]
    return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def units(sites: Sequence[Site]) -> list[tuple[int, ...]]:
    """The sites in units, most of one."""
    found: dict[Any, list[int]] = {}
    for index, site in enumerate(sites):
        found.setdefault((site.run, site.unit) if site.unit else index, []).append(index)
    return [tuple(unit) for unit in found.values()]


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
        alone = site.size == 1 and site.sampler == "independent" and not site.peers
        if gradient == "law" and not alone:
            kinds = f"{site.hamiltonian!r} and {site.structure.plural}"
            raise bad("gradient", gradient, f"'masked', 'proportional', 'straight-through' with {kinds}")
