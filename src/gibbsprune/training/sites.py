"""What a run prunes: from its spec to the layers' sites."""

from __future__ import annotations

from torch import nn

from ..law import Site, layer_site
from ..selection import CONVOLUTIONS, select
from ..structures import as_structure
from .methods.gibbs import hamiltonian
from .spec import RunSpec


def run_sites(spec: RunSpec, model: nn.Module) -> dict[str, Site]:
    """The layers a run prunes, by name.

    Unless the spec includes or excludes layers: every convolution but the first, as in the paper, and filter-wise
    without the 1×1 projections of residual shortcuts; in a network without convolutions every Linear.
    """
    if not spec.how.prunes:
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
        structure, shape = spec.how.structure_of(spec, module), tuple(module.weight.shape)  # type: ignore[arg-type]
        advice = f"; leave it out with --exclude {name}"
        sites[name] = layer_site(name, shape, structure, chosen, spec.sparsity, spec.sampler, advice)
    return sites
