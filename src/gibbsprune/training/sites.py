"""What a run prunes: from its spec to the layers' sites."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ..budgets import Budget
from ..couplings import Coupled
from ..errors import UserError
from ..importance import check_inputs
from ..samplers import CHAINS
from ..selection import select
from ..site import Site, layer_sites
from ..structures import as_structure
from ..weights import untied
from .methods.gibbs import hamiltonian
from .spec import RunSpec


def run_sites(spec: RunSpec, model: nn.Module) -> dict[str, Site]:
    """The layers a run prunes, by name: those that :class:`gibbsprune.GibbsPruner` would, as far as its method can."""
    if not spec.how.prunes:
        return {}
    layers, _ = select(model, as_structure(spec.structure), spec.include, spec.exclude)
    able = {
        name: layer
        for name, layer in layers.items()
        if spec.include is not None or spec.how.layers is None or isinstance(layer.module, spec.how.layers)
    }
    if not able:
        kinds = ", ".join(kind.__name__ for kind in spec.how.layers or ())
        raise UserError(f"method {spec.method!r} prunes layers of {kinds}, not {', '.join(layers)}")
    chosen = hamiltonian(spec)
    if not spec.how.ties or isinstance(spec.how.target(spec), Budget) or isinstance(chosen, Coupled):
        able = untied(able)
    check_inputs(spec.how.importance(spec), able)
    structures = {name: spec.how.structure_of(spec, layer) for name, layer in able.items()}
    sparsities = dict.fromkeys(able, spec.sparsity)
    sites = layer_sites(able, structures, chosen, sparsities, spec.sampler, "--exclude ")
    return {name: _chained(site, spec) if site.sampler in CHAINS else site for name, site in sites.items()}


def _chained(site: Site, spec: RunSpec) -> Site:
    return replace(site, sweeps=spec.setting("sweeps"), warm=spec.setting("chain") == "warm")
