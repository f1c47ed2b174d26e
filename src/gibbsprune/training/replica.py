"""One run's part of an engine, as its method sees it when a phase or an epoch begins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..samplers import stream
from ..site import Site
from ..structures import check_mask
from ..threshold import Segments
from .finished import Finished
from .fuse import share
from .soft import softened

if TYPE_CHECKING:
    from .engine import Engine


class Replica:
    """Weights and masks are views of the engine's memory: what is written here is what is trained."""

    def __init__(self, engine: Engine, k: int, source: Finished | None) -> None:
        self.engine, self.k, self.source = engine, k, source
        self.spec, self.sites = engine.specs[k], engine.network.names[k]
        self.places = {name: i for i, (name, run, _) in enumerate(engine.network.sites) if run == k}
        if source is not None:
            self.spec.how.check_source(self.spec, source, self.sites)
            self._check_fits(source)
        self.save_at = self.spec.how.save_at(self.spec, self.spec.phases[0].epochs * engine.batches.steps)
        self.every = self.spec.how.every(self.spec)
        self.saved: dict[str, Tensor] = {}
        for what in self.spec.how.keeps:
            self.put_aside(what)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The stored weight of every pruned layer."""
        network = self.engine.network
        return {name: share(network.stored(name).detach(), self.k, network.runs) for name in self.sites}

    @property
    def masks(self) -> Mapping[str, Tensor]:
        """The mask that every pruned layer holds."""
        return {name: self.engine.masks.held[i] for name, i in self.places.items()}

    def hold(self, name: str, mask: Tensor) -> None:
        """Gives a layer its mask until the next one."""
        site: Site = self.sites[name]
        self.engine.masks.held[self.places[name]].copy_(check_mask(mask, site.shape))

    @property
    def gradients(self) -> Mapping[str, Tensor]:
        """The gradient of the last step at the stored weight of every pruned layer."""
        network, of = self.engine.network, self.engine.optimizer.gradient_of
        return {name: share(of(network.stored(name)), self.k, network.runs) for name in self.sites}

    @property
    def softened(self) -> Mapping[str, Tensor]:
        """The weight of every pruned layer with the soft threshold that it has learned."""
        levels = self.engine.network.levels
        return {name: softened(weight, levels[name][self.k].detach()) for name, weight in self.weights.items()}

    @cached_property
    def segments(self) -> Segments:
        """The neighbourhoods of the run's layers, one layer after another."""
        return Segments([site.count for site in self.sites.values()], [site.sparsity for site in self.sites.values()])

    @torch.no_grad()
    def exchange(self, masks: Mapping[str, Tensor]) -> None:
        """Gives layers other masks within an epoch. What has not been active before starts from zero, moments too."""
        engine, held = self.engine, self.masks
        for name, mask in masks.items():
            stored, idle = engine.network.stored(name), ~(held[name] & mask)
            for values in (stored, *engine.optimizer.moments_of(stored)):
                share(values.detach(), self.k, engine.runs).masked_fill_(idle, 0)
            self.hold(name, mask)
            share(engine.network.masks[name], self.k, engine.runs).copy_(mask)

    def stream(self, what: str, *more: int) -> torch.Generator:
        """A random stream of the run, from its beginning; ``more`` numbers make further ones of its kind."""
        return stream(self.spec.seed, what, "cpu", *more)

    def values(self) -> dict[str, Tensor]:
        """All parameters and batch-norm statistics of the run, views; not what all runs of an engine share."""
        shared = self.engine.runs > 1
        return {
            name: value for name, value in self.engine.network.run_state(self.k).items() if value.dim() or not shared
        }

    @torch.no_grad()
    def load(self, source: Finished) -> None:
        """Starts from the values of a finished run or file."""
        for name, value in self.values().items():
            if name in source.model:  # a count of batches, which nothing depends on, may be missing
                value.copy_(source.model[name])
        self.engine.optimizer.forget(self.k)

    def _check_fits(self, source: Finished) -> None:
        """Refuses the weights of another network."""
        ours, named = self.engine.network.run_state(self.k), self.spec.setting("from")
        lacking = [name for name, value in ours.items() if name not in source.model and value.dim()]
        if strange := lacking or sorted(set(source.model) - set(ours)):
            whose = str(named) if lacking else f"this {self.spec.model}"
            raise UserError(f"{named} is of another network than this {self.spec.model}: {whose} has no {strange[0]}")
        for name, value in source.model.items():
            if value.shape != ours[name].shape:
                raise UserError(
                    f"{named} is of another network than this {self.spec.model}: its {name} is {tuple(value.shape)}, "
                    f"not {tuple(ours[name].shape)}"
                )
            if value.is_floating_point() and not value.isfinite().all():
                raise UserError(f"{named} holds values that are no numbers, in {name}")

    def put_aside(self, what: str) -> None:
        """Keeps the run's values as they are now under that name."""
        self.saved.update(
            {f"{what}/{name}": value.clone() for name, value in self.engine.network.run_state(self.k).items()}
        )

    @torch.no_grad()
    def put_back(self, what: str) -> None:
        """Puts back the values that were put aside, and starts the optimiser anew."""
        for name, value in self.values().items():
            value.copy_(self.saved[f"{what}/{name}"])
        self.engine.optimizer.forget(self.k)

    def keep(self, kept: Mapping[str, Tensor]) -> None:
        """Takes over what another run has put aside."""
        self.saved = {name: value.to(self.engine.device) for name, value in kept.items()}

    def model(self) -> nn.Module:
        """A copy of the run's network as it is, masks burnt in, on the run's device."""
        return self.engine.network.extract(self.k, self.engine.arrays, dict(self.masks)).to(self.engine.device)

    def images(self, count: int, generator: torch.Generator) -> Tensor:
        """Random training images as the network sees them in evaluation, (count, C, H, W)."""
        return self.engine.batches.sample(count, generator)
