"""The masks of a model's layers: in place, drawn by their laws from one random stream per device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .attaching import attach, burn, check_masked
from .checks import layers_told
from .diagnostics import Diagnostics, LayerDiagnostics, diagnose, untimely
from .distributed import Whole, leave_out, rehome, reshard, whole
from .errors import UserError
from .fading import fade
from .filling import Filling
from .importance import Score
from .law import Law
from .masking import GibbsMasked
from .samplers import stream
from .site import Site, units
from .weights import Layer, path


class Drawing:
    r"""Masks over the weights of ``layers``; the model is changed in place.

    Args:
        model: the network.
        layers: what is pruned of it, by name.
        sites: how, by the same names.
        pruned: the names of those that lose anything at all, now or later.
        gradient: what reaches a masked weight (see :mod:`gibbsprune.masking`).
        survivors: what is left of the others.
        seed: of the random streams.
        sweeps: of a chain.
        importance: what takes the place of the weight's magnitude (:mod:`gibbsprune.importance`).
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, Layer],
        sites: Mapping[str, Site],
        pruned: set[str],
        gradient: str,
        survivors: str,
        seed: int,
        sweeps: int,
        importance: str = "magnitude",
    ) -> None:
        self.model, self.layers, self.sites, self.pruned = model, dict(layers), dict(sites), pruned
        self.gradient, self.survivors, self.seed, self.sweeps = gradient, survivors, seed, sweeps
        self.generators: dict[torch.device, torch.Generator] = {}
        self.before: dict[torch.device, Tensor] = {}  # the generators' states before the last draw
        self._laws: dict[tuple[str, ...], Law] = {}
        self._fillings: dict[tuple[str, ...], Filling] = {}
        self._decays: dict[torch.optim.Optimizer, RemovableHandle] = {}
        self.scores: dict[str, Score] = {}
        self.warm = any(site.warm for site in sites.values())
        self.masks = {
            name: GibbsMasked(layer.weight, site.structure, site.sparsity, gradient, survivors, site.normed, site.view)
            for name, layer, site in ((name, layer, sites[name]) for name, layer in self.layers.items())
        }
        for name, layer in self.layers.items():
            masked = self.masks[name]
            attach(layer.module, masked, layer.parameter)
            if importance != "magnitude":
                self.scores[name] = masked.score = Score(importance, layer.module, layer.stored, masked.seeing)
            rehome(model, layer.stored, layer.module.parametrizations[layer.parameter], "original")  # type: ignore[index,arg-type]
        for unit in units(list(sites.values())):
            together = [(self.layers[name], sites[name]) for name in (list(sites)[i] for i in unit)]
            for layer, _ in together if len(together) > 1 else ():
                self.masks[layer.name].tie(together)
        own = ("mask", "converged", "slope", "left", "joint", "sparsity")
        where = [path(layer.owner, f"parametrizations.{layer.parameter}.0") for layer in self.layers.values()]
        leave_out(model, [f"{masked}.{buffer}" for masked in where for buffer in own])

    def check(self) -> None:
        """Refuses layers that have been exchanged since they were masked."""
        check_masked(self.model, self.layers, self.masks)

    def check_finite(self, steps: int) -> None:
        """Refuses weights that are no numbers any more, of which no mask can be drawn."""
        reshard(self.model)
        weights = {name: layer.stored for name, layer in self.layers.items()}
        if any(weight.is_cuda for weight in weights.values()) and torch.cuda.is_current_stream_capturing():
            return  # a captured graph must not wait for an answer
        finite = {name: torch.isfinite(whole(weight)).all() for name, weight in weights.items()}
        if lost := [name for name, all_finite in finite.items() if not bool(all_finite)]:
            raise UserError(
                f"{layers_told(lost, 'holds', 'hold')} NaN or infinite weights after {steps} steps: the training has "
                "diverged; a smaller learning rate or clipped gradients may help"
            )

    def set_sparsities(self, sparsities: Mapping[str, float]) -> None:
        """Another sparsity of each layer from now on."""
        for name, sparsity in sparsities.items():
            self.sites[name] = self.sites[name].at(sparsity)
            self.masks[name].sparsity.fill_(self.sites[name].sparsity)
        for names, law in self._laws.items():
            law.set_sparsities([sparsities[name] for name in names])

    def early(self) -> str:
        """What is wrong with weights that were loaded, as those of the best epoch: the sparsity had not risen there."""
        sizes = {name: math.prod(site.shape) for name, site in self.sites.items()}
        levels = {name: (float(self.masks[name].sparsity), site.sparsity) for name, site in self.sites.items()}
        had, has = (sum(size * levels[name][i] for name, size in sizes.items()) / sum(sizes.values()) for i in (0, 1))
        return untimely(had, has) if has - had > 0.01 else ""

    @torch.no_grad()
    def draw(self, beta: float, steps: int, again: bool = False) -> None:
        """Fresh masks; ``again`` from the random numbers of the draw before, else from the stream of that step on."""
        for names, masks in self._sampled(beta, steps, again, last=False):
            torch._foreach_copy_([self.masks[name].mask for name in names], masks)
            self.fill(names, beta)

    @torch.no_grad()
    def final(self, beta: float, steps: int) -> dict[str, Tensor]:
        """The masks with which training ends, by one more draw."""
        drawn = self._sampled(beta, steps, again=True, last=True)
        return {name: mask for names, masks in drawn for name, mask in zip(names, masks)}

    @torch.no_grad()
    def converged(self) -> dict[str, Tensor]:
        """x_cvg of every layer that loses anything."""
        reshard(self.model)
        found: dict[str, Tensor] = {}
        for names in self.by_device():
            found.update(zip(names, self._law(names).converged(self._weights(names))))
        return found

    def sparsity(self) -> float:
        """The share of the weights that the masks in place hide."""
        masks = [masked.mask for masked in self.masks.values()]
        return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)

    @torch.no_grad()
    def agreement(self) -> float:
        """The share of weights on which the masks in place equal x_cvg."""
        converged = self.converged()
        same = sum(int((self.masks[name].mask == mask).sum()) for name, mask in converged.items())
        total = sum(mask.numel() for mask in converged.values())
        return same / total if total else 1.0

    def _sampled(self, beta: float, steps: int, again: bool, last: bool) -> list[tuple[tuple[str, ...], list[Tensor]]]:
        reshard(self.model)
        found = []
        for names in self.by_device():
            law, weights = self._law(names), self._weights(names)
            device = weights.weights[0].device
            generator = self.generator(device, steps)
            going = [whole(self.masks[name].mask) for name in names] if self.warm and device in self.before else None
            if again and device in self.before and not self.warm:  # a chain must not use its numbers twice
                generator.set_state(self.before[device])
            self.before[device] = generator.get_state()
            if beta == math.inf:
                masks = law.converged(weights)
            else:
                how = law.final if last else law.draw
                masks = how(weights, _betas(beta, device), [generator], self.sweeps, going)
            found.append((names, masks))
        return found

    @torch.no_grad()
    def fill(self, names: tuple[str, ...], beta: float) -> None:
        """What is left of survivors, and what the gradient is multiplied by."""
        law, weights, left, pulls = self._law(names), self._weights(names), {}, {}
        if any(self.masks[name].left is not None for name in names):
            left = dict(zip(names, law.left(weights)))
        if self.gradient == "law" and beta < math.inf:  # where P is 0 or 1 nothing pulls
            pulls = dict(zip(names, law.pull(weights, _betas(beta, weights[0].device))))
        self._filling(names).fill(lambda name: whole(self.layers[name].stored), left, pulls)

    def decay(self, optimizer: torch.optim.Optimizer, masked: float) -> None:
        """Another weight decay of masked weights than ``optimizer`` has for the rest of their layers."""
        handle = fade(optimizer, masked, self._by_weight)
        if optimizer in self._decays:
            self._decays.pop(optimizer).remove()
        self._decays[optimizer] = handle

    def _by_weight(self) -> dict[int, Tensor]:
        """The masks in place, by the ids of the stored weights under them."""
        reshard(self.model)
        return {id(layer.stored): self.masks[name].mask for name, layer in self.layers.items()}

    def diagnose(self, beta: float, draws: int, seed: int) -> Diagnostics:
        """What the laws of the pruned layers do at this β."""
        reshard(self.model)
        found: dict[str, LayerDiagnostics] = {}
        for names in self.by_device():
            sites = {name: self.sites[name] for name in names}
            some = diagnose(sites, self._weights(names), beta, draws, self.sweeps, seed & (2**63 - 1))
            found.update({layer.name: layer for layer in some.layers})
        return Diagnostics(beta, [found[name] for name in self.layers if name in found])

    def by_device(self) -> list[tuple[str, ...]]:
        """Layers that are really pruned, together where their weights are on the same device."""
        groups: dict[torch.device, list[str]] = {}
        for name, layer in self.layers.items():
            if name in self.pruned:
                groups.setdefault(layer.stored.device, []).append(name)
        return [tuple(names) for names in groups.values()]

    def _weights(self, names: tuple[str, ...]) -> Whole:
        """What the laws are of: the weights, or the scores in their place."""
        stored = {name: self.layers[name].stored for name in names}
        return Whole(self.scores[name](weight) if name in self.scores else weight for name, weight in stored.items())

    def _law(self, names: tuple[str, ...]) -> Law:
        if names not in self._laws:
            self._laws[names] = Law([self.sites[name] for name in names])
        return self._laws[names]

    def _filling(self, names: tuple[str, ...]) -> Filling:
        if names not in self._fillings:
            sites = [(name, 0, self.sites[name]) for name in names]
            layers = {name: self.masks[name] for name in names}
            self._fillings[names] = Filling(layers, sites, [self.gradient], [self.survivors])
        return self._fillings[names]

    def generator(self, device: torch.device, steps: int) -> torch.Generator:
        """The random stream of a device; one that begins after some steps is another one."""
        if device not in self.generators:
            more = [steps] if steps else []
            self.generators[device] = stream(self.seed & (2**63 - 1), "masks", device, *more)
        return self.generators[device]

    def restart(self, beta: float) -> None:
        """The first masks again, from the beginning of the random streams."""
        self.generators, self.before = {}, {}
        self.draw(beta, 0)

    def resume(
        self,
        seed: int,
        steps: int,
        beta: float,
        streams: Mapping[torch.device, Tensor],
        before: Mapping[torch.device, Tensor],
    ) -> None:
        """Random streams as they were saved, and what follows from the masks that are in place."""
        self.seed, self.generators, self.before = seed, {}, dict(before)
        for device, state in streams.items():
            self.generator(device, steps).set_state(state)
        for names in self.by_device():
            self.fill(names, beta)

    @torch.no_grad()
    def left(self, beta: float) -> dict[str, Tensor]:
        """The share of its value that every weight keeps by now, where any loses some."""
        reshard(self.model)
        for names in self.by_device():
            self.fill(names, beta)
        return {name: left for name in self.pruned if (left := self.masks[name].left) is not None}

    def take_off(self, masks: Mapping[str, Tensor], left: Mapping[str, Tensor]) -> None:
        """Burns masks and what is left of survivors into the weights, and removes the parametrisations; a layer without
        a mask stays as it is."""
        for handle in self._decays.values():
            handle.remove()
        for score in self.scores.values():
            score.detach()
        for name, layer in self.layers.items():
            mask = masks.get(name, torch.ones_like(self.masks[name].mask))
            burn(layer.module, mask, left.get(name), layer.parameter)
            rehome(self.model, layer.stored, layer.module, layer.parameter)


def _betas(beta: float, device: torch.device) -> Tensor:
    return torch.full((1,), beta, dtype=torch.float64, device=device)
