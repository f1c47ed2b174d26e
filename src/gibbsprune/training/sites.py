"""What a run prunes: from its spec to the layers' sites."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from ..errors import UserError
from ..samplers import CHAINS
from ..selection import select
from ..site import Site, layer_site
from ..structures import as_structure
from .methods.gibbs import hamiltonian
from .spec import RunSpec


def run_sites(spec: RunSpec, model: nn.Module) -> dict[str, Site]:
    """The layers a run prunes, by name: those that :class:`gibbsprune.GibbsPruner` would, as far as its method can."""
    if not spec.how.prunes:
        return {}
    layers, _ = select(model, as_structure(spec.structure), spec.include, spec.exclude)
    chosen, sites = hamiltonian(spec), {}
    for name, module in layers.items():
        if spec.include is None and not isinstance(module, spec.how.layers):
            continue
        structure, shape = spec.how.structure_of(spec, module), tuple(module.weight.shape)  # type: ignore[arg-type]
        advice = f"; leave it out with --exclude {name}"
        site = layer_site(name, shape, structure, chosen, spec.sparsity, spec.sampler, advice)
        if site.sampler in CHAINS:
            site = replace(site, sweeps=spec.setting("sweeps"), warm=spec.setting("chain") == "warm")
        sites[name] = site
    if not sites:
        kinds = ", ".join(kind.__name__ for kind in spec.how.layers)
        raise UserError(f"method {spec.method!r} prunes layers of {kinds}, not {', '.join(layers)}")
    return sites
