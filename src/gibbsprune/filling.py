"""What masked layers have beside their masks, kept up to date: what is left of survivors, and what gradients see.

Both are buffers of a layer (:mod:`.masking`). Layer by layer they would take dozens of small operations, each of which
is felt on a GPU; so layers that are alike are worked on together, of one run or of several side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import torch
from torch import Tensor

from .law import LARGE
from .masking import Masked
from .site import Site
from .survivors import keeps_strength, strength

BUFFERS = attrgetter("left"), attrgetter("slope")
#: Gradients that do not ask how outputs lie in a weight.
BY_RUN = ("straight-through", "law")
#: Which runs something is for, as (runs, 1); None for all.
Where = Tensor | None


@dataclass
class _Alike:
    """Layers of one shape and kind.

    ``rescaled`` are runs that multiply what is left by a factor, ``normed`` whether norms follow the layers,
    ``through`` runs with straight-through gradients, ``shared`` those with proportional ones, by how outputs lie in the
    weight, and ``pulled`` those with the law's; each a list of at most one but ``shared``.
    """

    rescaled: list[Where]
    normed: bool
    through: list[Where]
    shared: list[tuple[Site, Where]]
    pulled: list[Where]
    names: list[str] = field(default_factory=list)


class Filling:
    """Fills the buffers of masked layers.

    Args:
        layers: the masks on them, by name.
        sites: what is pruned, by layer and run.
        gradients: of each run, what reaches a masked weight.
        survivors: of each run, what is left of the others.
    """

    def __init__(
        self,
        layers: Mapping[str, Masked],
        sites: Iterable[tuple[str, int, Site]],
        gradients: Sequence[str],
        survivors: Sequence[str],
    ) -> None:
        self.layers, self.runs = dict(layers), len(gradients)
        outputs: dict[str, dict[tuple, tuple[Site, list[int]]]] = {name: {} for name in layers}
        normed = set()
        for name, run, site in sites:
            if site.normed:
                normed.add(name)
            if gradients[run] == "proportional":
                kind = site.cut, site.structure.transposed, site.structure.groups
                outputs[name].setdefault(kind, (site, []))[1].append(run)
        self.alike: dict[tuple, _Alike] = {}
        sizes: dict[tuple, int] = {}
        for name, layer in self.layers.items():
            buffers = [layer.slope is None, layer.left is None]
            if all(buffers):
                continue
            mask, kinds = layer.mask, tuple((kind, *runs) for kind, (_, runs) in outputs[name].items())
            dtype = next(buffer.dtype for buffer in (layer.slope, layer.left) if buffer is not None)
            key = mask.shape, mask.device, dtype, name in normed, *buffers, kinds
            sizes[key] = sizes.get(key, 0) + mask.numel()
            key = *key, (sizes[key] - 1) // LARGE  # no more are stacked at once
            if key not in self.alike:
                through, pulled = (self._where([kind == own for own in gradients], mask) for kind in BY_RUN)
                kept = [layer.left is not None and keeps_strength(kind, name in normed) for kind in survivors]
                shared = [
                    (site, where)
                    for site, own in outputs[name].values()
                    for where in self._where([run in own for run in range(self.runs)], mask)
                ]
                self.alike[key] = _Alike(self._where(kept, mask), name in normed, through, shared, pulled)
            self.alike[key].names.append(name)

    def _where(self, runs: Sequence[bool], like: Tensor) -> list[Where]:
        if not any(runs) or all(runs):
            return [None] if any(runs) else []
        return [torch.tensor(runs, device=like.device)[:, None]]

    @torch.no_grad()
    def fill(
        self,
        weights: Callable[[str], Tensor],
        left: Mapping[str, Tensor],
        pulls: Mapping[str, Tensor],
        gradients: bool = True,
    ) -> None:
        """Brings buffers up to date.

        Args:
            weights: gives the stored ones of a layer, by its name.
            left: what shrinking leaves of survivors, by layer; it may be the buffers themselves.
            pulls: what the gradient has through the probability of keeping, in the same way; nothing where none is.
            gradients: whether what the gradient is multiplied by is wanted, too.
        """
        for group in self.alike.values():
            layers = [self.layers[name] for name in group.names]
            lefts, slopes = ([own for own in map(kind, layers) if own is not None] for kind in BUFFERS)
            weight = rest = scaled = factor = None
            if group.rescaled or group.shared:
                weight = self._stacked([weights(name) for name in group.names])
            if lefts:
                rest = scaled = self._stacked([left[name] for name in group.names])
            if weight is not None and rest is not None and group.rescaled:
                factor = _chosen(group.rescaled[0], strength(weight, rest), rest.new_ones(()))
                scaled = rest * factor
                rest = rest if group.normed else scaled  # a norm takes the factor away again
            if slopes and gradients:
                mask = self._stacked([layer.mask for layer in layers])
                slope = mask.to(torch.promote_types(slopes[0].dtype, torch.float32))
                for where in group.pulled if pulls else ():
                    slope = _chosen(where, slope + self._stacked([pulls[name] for name in group.names]), slope)
                for where in group.through:
                    slope = _chosen(where, torch.ones_like(slope), slope)
                for site, where in group.shared:
                    assert weight is not None
                    used = slope if rest is None else slope * rest
                    share = site.in_use(weight.flatten(0, 1), used.flatten(0, 1), len(layers) * self.runs)
                    slope = _chosen(where, torch.where(mask, 1, share.view_as(mask)), slope)
                if group.normed and factor is not None:
                    slope = slope * factor
                self._write(slopes, slope)
            if scaled is not None:  # last: what was given may be the buffers
                self._write(lefts, scaled)

    def _stacked(self, tensors: Sequence[Tensor]) -> Tensor:
        """Those of several layers as (layers, runs, weights)."""
        views = [tensor.reshape(self.runs, -1) for tensor in tensors]
        return views[0][None] if len(views) == 1 else torch.stack(views)

    def _write(self, buffers: Sequence[Tensor], values: Tensor) -> None:
        torch._foreach_copy_([buffer.view(self.runs, -1) for buffer in buffers], list(values))


def _chosen(where: Where, of_these: Tensor, else_: Tensor) -> Tensor:
    return of_these if where is None else torch.where(where, of_these, else_)
