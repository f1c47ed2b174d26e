"""What a run prunes and how: from its spec to sites of the law, its Hamiltonian and its schedule of β."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ..hamiltonians import Binary, Hamiltonian, Quadratic, as_hamiltonian
from ..law import Site, off_edge
from ..schedules import ConstantSchedule, LinearSchedule, LogSchedule, Schedule
from ..selection import CONVOLUTIONS, select
from ..structures import as_structure
from .spec import RunSpec


def run_sites(spec: RunSpec, model: nn.Module) -> dict[str, Site]:
    """The layers a run prunes, by name.

    Unless the spec includes or excludes layers: every convolution but the first, as in the paper, and filter-wise
    without the 1×1 projections of residual shortcuts; in a network without convolutions every Linear.
    """
    if spec.method == "dense":
        return {}
    kind = as_structure(spec.structure)
    include, exclude = spec.include, spec.exclude
    convolutions = [name for name, module in model.named_modules() if isinstance(module, CONVOLUTIONS)]
    if include is None and len(convolutions) > 1:
        include = tuple(convolutions[1:])
        if spec.structure == "filter":
            include = tuple(name for name in include if not name.endswith(".shortcut"))
    layers, _ = select(model, kind, include, exclude)
    chosen = hamiltonian(spec)
    sites = {}
    for name, module in layers.items():
        structure, shape = as_structure(kind, module), tuple(module.weight.shape)  # type: ignore[arg-type]
        sparsity = off_edge(spec.sparsity, structure.count(shape))
        sites[name] = Site(shape, structure, chosen, sparsity, spec.sampler).checked()
    return sites


def hamiltonian(spec: RunSpec) -> Hamiltonian:
    """The spec's Hamiltonian; the binary one takes β as the distance from N ln 2: all layers switch together."""
    if spec.hamiltonian == "quadratic":
        return Quadratic(spec.coupling)
    if spec.hamiltonian == "binary":
        return Binary("offset")
    return as_hamiltonian(spec.hamiltonian, as_structure(spec.structure))


def schedule(spec: RunSpec, sizes: Sequence[int]) -> Schedule:
    """β over unstretched epochs: the recipe's, and where it is silent the Hamiltonian's own."""
    if spec.method == "dense":
        return ConstantSchedule(0.0)  # whatever the recipe says of β
    recipe = spec.recipe
    epochs = recipe.anneal_epochs or max(1, round(0.64 * recipe.epochs))
    default = hamiltonian(spec).default_schedule(epochs, sizes)
    if recipe.anneal is None and recipe.beta_start is None and recipe.beta_end is None:
        return default
    start = recipe.beta_start if recipe.beta_start is not None else default(0)
    end = recipe.beta_end if recipe.beta_end is not None else default(epochs)
    kind = recipe.anneal or ("linear" if isinstance(default, LinearSchedule) else "log")
    if kind == "constant":
        return ConstantSchedule(end)
    return (LinearSchedule if kind == "linear" else LogSchedule)(start, end, epochs)
