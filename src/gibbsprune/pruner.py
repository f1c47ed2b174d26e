"""The pruner: Gibbs masks on the layers of any model, drawn while its owner trains it as usual."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .budgets import Budget, Targets, shares_of
from .checks import bad, check_one_of, check_whole
from .distributed import Whole, compare_ranks, leave_out, rehome, reshard, whole
from .errors import UserError
from .hamiltonians import Hamiltonian, as_hamiltonian
from .holding import hold
from .law import Law
from .masking import GRADIENTS, GibbsMasked, attach, burn, check_masked, pack, stored_weight
from .samplers import SWEEPS, stream
from .saving import read_state
from .schedules import Schedule
from .selection import Selectors, Sparsity, select
from .site import Site, layer_site
from .structures import Structure, as_structure
from .summary import LayerSummary, Summary
from .threshold import kept_count, mean_squares


class GibbsPruner:
    """Trains and prunes a model at the same time.

    ::

        pruner = gp.GibbsPruner(model, sparsity=0.9, epochs=epochs)
        for epoch in range(epochs):
            pruner.set_epoch(epoch)
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward(); optimizer.step(); optimizer.zero_grad()
                pruner.step()
        model = pruner.finalize()

    Args:
        model: any module; its convolutions and Linears are masked in place.
        sparsity: the fraction to remove; a mapping or function from layer name; a :class:`Schedule`, as
            ``CubicSchedule(0, 0.9, epochs)``, for one that rises; a :class:`Budget` for all layers together.
        structure: ``"weight"``, ``"kernel"`` or ``"filter"``.
        hamiltonian: an object or a name of :data:`gibbsprune.hamiltonians.HAMILTONIANS`; None for the structure's
            best: ``Linear("square")`` for weights, else ``Quadratic(0.01)``.
        schedule: epoch → β; None for the Hamiltonian's own, over the first 64 % of ``epochs``.
        include: the layers to prune, by name patterns, module types or predicates (see
            :func:`gibbsprune.selection.select`); None for all but the first convolution and those whose outputs leave
            the network, and with filters but the projections of shortcuts.
        exclude: the layers to leave out, in the same way.
        sampler: ``"auto"`` or a name of :mod:`gibbsprune.samplers`.
        seed: of the one random stream that all masks come from.
        epochs: how long the training lasts, for the default schedule (200 as in the paper).
        gradient: what reaches a masked weight: "masked" (nothing, as in the paper), "straight-through" or "law"
            (see :mod:`gibbsprune.masking`).
        example_inputs: a tensor or a tuple of the model's inputs, for a budget of multiply-adds.
        sweeps: of the chromatic sampler.
        check_ranks: with several processes, steps between comparisons of their masks; 0 for never.
    """

    def __init__(
        self,
        model: nn.Module,
        sparsity: Sparsity | Schedule | Budget = 0.9,
        structure: str | Structure = "weight",
        hamiltonian: str | Hamiltonian | None = None,
        schedule: Schedule | Callable[[Any], float] | None = None,
        include: Selectors = None,
        exclude: Selectors = None,
        sampler: str = "auto",
        seed: int = 0,
        *,
        epochs: int = 200,
        gradient: str = "masked",
        example_inputs: Any = None,
        sweeps: int = SWEEPS,
        check_ranks: int = 100,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UserError(f"model is a {type(model).__name__}: allowed are torch.nn.Module")
        self.model, self.seed, self.sweeps, self.check_ranks = (
            model,
            check_whole("seed", seed, None),
            sweeps,
            check_ranks,
        )
        kind = self._kind = as_structure(structure)
        self._now: dict[str, float] = {}  # sparsities other than those of the end
        self.masks: dict[str, GibbsMasked] = {}
        self.hamiltonian = as_hamiltonian(hamiltonian, kind)
        self._layers, self._skipped = select(model, kind, include, exclude)
        self._plan = Targets(sparsity, shares_of(model, self._layers, kind, sparsity, example_inputs))
        self._targets = self._sparsities(math.inf)
        self._sites = {name: self._site(name, kind, sampler) for name in self._layers}
        self._check_gradient(gradient, kind)
        sizes = [math.prod(site.shape) for site in self._sites.values()]
        for what, value, least in (("epochs", epochs, 1), ("sweeps", sweeps, 1), ("check_ranks", check_ranks, 0)):
            check_whole(what, value, least)
        if not (schedule is None or callable(schedule)) or isinstance(schedule, type):
            raise bad("schedule", schedule, "schedules and functions from the epoch to beta")
        self.schedule = schedule or self.hamiltonian.annealing(epochs, sizes)
        self.epoch: float = 0
        self.beta: float = self._beta(0)  # the last that can refuse the arguments: from here on the model is changed
        self.steps, self.finalized = 0, False
        self._generators: dict[torch.device, torch.Generator] = {}
        self._before: dict[torch.device, Tensor] = {}  # the generators' states before the last draw
        self._laws: dict[tuple[str, ...], Law] = {}
        for name, module in self._layers.items():
            site = self._sites[name]
            self.masks[name] = GibbsMasked(module.weight, site.structure, site.sparsity, gradient)  # type: ignore[arg-type]
        for name, module in self._layers.items():
            attach(module, self.masks[name])
            rehome(model, stored_weight(module), module.parametrizations["weight"], "original")  # type: ignore[index,arg-type]
        own = ("mask", "converged", "extra")
        leave_out(model, [f"{n}.parametrizations.weight.0.{buffer}" for n in self.masks for buffer in own])
        try:
            self._set_sparsities(self._sparsities(0))
            self._draw()
        except BaseException:  # a device or type that nothing above foresaw: the model is left as it was
            self._take_off()
            raise

    def _site(self, name: str, kind: Structure, sampler: str) -> Site:
        module, target = self._layers[name], self._targets[name]
        structure = as_structure(kind, module)
        shape = tuple(module.weight.shape)  # type: ignore[arg-type]
        return layer_site(name, shape, structure, self.hamiltonian, target, sampler, ", exclude it")

    def _check_gradient(self, gradient: str, kind: Structure) -> None:
        check_one_of("gradient", gradient, GRADIENTS)
        alone = all(site.size == 1 and site.sampler == "independent" for site in self._sites.values())
        if gradient == "law" and not alone:
            raise bad("gradient", gradient, f"'masked', 'straight-through' with {self.hamiltonian!r} and {kind.name}s")
        self.gradient = gradient

    # -- training ----------------------------------------------------------------------------------------------------

    def _sparsities(self, epoch: float) -> dict[str, float]:
        """The sparsity of each layer at an epoch."""

        def means() -> list[Tensor]:
            of = stored_weight if self.masks else lambda module: module.weight
            return [mean_squares(whole(of(m)), as_structure(self._kind, m)) for m in self._layers.values()]

        return self._plan.at(epoch, means)

    def _set_sparsities(self, sparsities: Mapping[str, float]) -> bool:
        """Gives layers and laws other sparsities; whether any is another one."""
        changed = {name: p for name, p in sparsities.items() if p != self._now.get(name, self._targets[name])}
        if not changed:
            return False
        self._now = {} if sparsities == self._targets else dict(sparsities)
        for name in changed:
            site = self._sites[name] = self._sites[name].at(sparsities[name])
            self.masks[name].sparsity = site.sparsity
            self.masks[name].seen.fill_(-1)  # x_cvg is another one
        for names, law in self._laws.items():
            law.set_sparsities([sparsities[name] for name in names])
        return True

    def set_epoch(self, epoch: float) -> None:
        """Sets β and a sparsity that rises to their values for ``epoch``, counted from 0; it may be a fraction.

        When an epoch begins, a budget is shared out anew, and the masks that are there for its first step are drawn
        again at its own β and sparsity, from the same random numbers.
        """
        beta, before = self._beta(epoch), self.beta
        self.epoch, self.beta = epoch if isinstance(epoch, (int, float)) else epoch.item(), beta
        begins, changed = self.epoch == int(self.epoch), False
        if not self.finalized and (self._plan.rises or (begins and self._plan.shared)):
            changed = self._set_sparsities(self._sparsities(self.epoch))
        if (changed or beta != before) and self._before and not self.finalized and begins:
            self._draw(again=True)

    def _beta(self, epoch: float) -> float:
        if isinstance(epoch, bool) or not isinstance(epoch, (int, float, np.number)):
            raise bad("epoch", epoch, "numbers, 0 for the first")
        given = self.schedule(epoch)
        try:
            beta = float(given)
        except (TypeError, ValueError):
            beta = math.nan
        if math.isnan(beta):
            raise UserError(f"the schedule gives beta {given!r} at epoch {epoch}: allowed are numbers from 0 up")
        if beta < 0 and getattr(self.hamiltonian, "relative", None) != "offset":
            raise UserError(f"the schedule gives beta {beta!r} at epoch {epoch}: allowed are numbers from 0 up")
        return beta

    @torch._disable_dynamo
    def step(self) -> None:
        """Draws the next masks: call it after every optimiser step."""
        self._check_open("step", look=self.steps % 100 == 0)  # walking through the model each time would be felt
        if self.check_ranks and self.steps % self.check_ranks == 0:
            streams = (generator.get_state() for generator in self._generators.values())
            compare_ranks(self.steps, self.beta, streams, (masked.mask for masked in self.masks.values()))
        self._draw()
        self.steps += 1

    def restart(self) -> None:
        """Draws the first masks again, from the weights as they are now: after DDP has sent rank 0's to all ranks."""
        self._check_open("restart")
        self.steps, self._generators, self._before = 0, {}, {}
        self._draw()

    @torch.no_grad()
    def _draw(self, again: bool = False) -> None:
        reshard(self.model)
        for names in self._by_device():
            masks = self._sample(names, self._law(names).draw, again)
            torch._foreach_copy_([self.masks[name].mask for name in names], masks)
            self._fill_gradients(names)

    def _sample(self, names: tuple[str, ...], draw: Callable[..., list[Tensor]], again: bool) -> list[Tensor]:
        """Masks by one of the law's ways of drawing them; ``again`` from the random numbers of the draw before."""
        weights = self._weights(names)
        device = weights.weights[0].device
        generator = self._generator(device)
        if again and device in self._before:
            generator.set_state(self._before[device])
        self._before[device] = generator.get_state()
        if self.beta == math.inf:
            return self._law(names).converged(weights)
        betas = torch.full((1,), self.beta, dtype=torch.float64, device=device)
        return draw(weights, betas, [generator], self.sweeps)

    def _fill_gradients(self, names: tuple[str, ...]) -> None:
        """What the gradient is multiplied by beyond the mask."""
        if self.gradient == "masked":
            return
        layers = [self.masks[name] for name in names]
        if self.gradient == "straight-through" or self.beta == math.inf:
            factor = 1.0 if self.gradient == "straight-through" else 0.0
            more = [~layer.mask * factor for layer in layers]
        else:
            weights = self._weights(names)
            betas = torch.full((1,), self.beta, dtype=torch.float64, device=layers[0].mask.device)
            more = self._law(names).pull(weights, betas)
        torch._foreach_copy_([layer.extra for layer in layers if layer.extra is not None], more)

    def _weights(self, names: tuple[str, ...]) -> Whole:
        return Whole(stored_weight(self._layers[name]) for name in names)

    def _by_device(self) -> list[tuple[str, ...]]:
        """Layers that are really pruned, together where their weights are on the same device."""
        groups: dict[torch.device, list[str]] = {}
        for name, module in self._layers.items():
            if self._targets[name] or self._plan.shared:
                groups.setdefault(stored_weight(module).device, []).append(name)
        return [tuple(names) for names in groups.values()]

    def _law(self, names: tuple[str, ...]) -> Law:
        if names not in self._laws:
            self._laws[names] = Law([self._sites[name] for name in names])
        return self._laws[names]

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            more = [self.steps] if self.steps else []
            self._generators[device] = stream(self.seed & (2**63 - 1), "masks", device, *more)
        return self._generators[device]

    @torch.no_grad()
    def agreement(self) -> float:
        """The share of weights on which the sampled masks equal the converged ones: 1 when the masks have frozen."""
        self._check_open("agreement")
        reshard(self.model)
        same = total = 0
        for names in self._by_device():
            converged = self._law(names).converged(self._weights(names))
            same += sum(int((self.masks[n].mask == c).sum()) for n, c in zip(names, converged))
            total += sum(c.numel() for c in converged)
        return same / total if total else 1.0

    # -- the end -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def finalize(self, draw: str = "sample") -> nn.Module:
        """Burns the final masks into the weights, removes the parametrisations and returns the model.

        ``draw="sample"`` takes one more draw from the law, as in the paper: that of the last :meth:`step`, if nothing
        has changed since. ``"converged"`` takes x_cvg. The pruned weights stay zero if the model is trained on.
        """
        self._check_open("finalize")
        check_one_of("draw", draw, ("sample", "converged"))
        reshard(self.model)
        for name, module in self._layers.items():
            if not bool(torch.isfinite(whole(stored_weight(module))).all()):
                raise UserError(f"layer {name!r} holds NaN or infinite weights: the training has diverged")
        final: dict[str, Tensor] = {}
        for names in self._by_device():
            law = self._law(names)
            masks = (
                law.converged(self._weights(names))
                if draw == "converged"
                else self._sample(names, law.final, again=True)
            )
            for name, mask in zip(names, masks):
                final[name] = mask
                self.masks[name].mask.copy_(mask)
        if draw == "sample" and (agreement := self.agreement()) < 0.999:
            c = self.hamiltonian.coupling
            larger = f", where neighbourhoods stay half pruned use a larger coupling than {c:g}," if c else ""
            warnings.warn(
                f"the masks have not converged: {1 - agreement:.2%} of them differ from the converged masks at "
                f"beta {self.beta:g}, so the sparsity is not exact; anneal to a higher beta{larger} or use "
                f"finalize(draw='converged')",
                stacklevel=3,  # no_grad's wrapper is one
            )
        for name, module in self._layers.items():
            mask = final.get(name, torch.ones_like(self.masks[name].mask))
            self._remove(module, mask)
            if name in final:
                hold(module, mask)
        self.finalized = True
        return self.model

    def _take_off(self) -> None:
        """Removes the masks and leaves the weights as they are."""
        for name, module in self._layers.items():
            self._remove(module, torch.ones_like(self.masks[name].mask))

    def _remove(self, module: nn.Module, mask: Tensor) -> None:
        burn(module, mask)
        rehome(self.model, module.weight, module, "weight")  # type: ignore[arg-type]

    def _check_open(self, what: str, look: bool = True) -> None:
        if self.finalized:
            raise UserError(f"{what}() after finalize(): the masks are burnt in and the pruner is done")
        if look:
            check_masked(self.model, self._layers, self.masks)

    # -- looking and saving ------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """Every layer with its neighbourhoods, target and achieved sparsity; prints as a table."""
        if not self.finalized:
            check_masked(self.model, self._layers, self.masks)
        layers = []
        for name, module in self._layers.items():
            site, target = self._sites[name], self._targets[name]
            kept = kept_count(target, site.count)
            zeros = float((whole(module.weight) == 0).float().mean()) if self.finalized else 1 - kept / site.count  # type: ignore[arg-type]
            kind = type(module).__name__.removeprefix("Parametrized")
            layers.append(LayerSummary(name, kind, site.shape, site.count, site.size, target, zeros))
        return Summary(self._sites[layers[0].name].structure.name, layers, dict(self._skipped))

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs beside the model's and optimiser's states; safe for ``weights_only=True``."""
        self._check_open("state_dict")
        return {
            "version": 1,
            "seed": self.seed,
            "epoch": self.epoch,
            "steps": self.steps,
            "generators": {str(device): g.get_state() for device, g in self._generators.items()},
            "before": {str(device): state for device, state in self._before.items()},
            "masks": {name: pack(masked.mask) for name, masked in self.masks.items()},
            "sparsities": dict(self._now),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from :meth:`state_dict`: the same masks now, and the same ones after every further step."""
        self._check_open("load_state_dict")
        devices = {stored_weight(self._layers[names[0]]).device for names in self._by_device()}
        saved = read_state(state, {name: masked.mask for name, masked in self.masks.items()}, devices)
        beta = self._beta(saved.epoch)
        for name, masked in self.masks.items():  # from here on nothing is refused
            masked.mask.copy_(saved.masks[name])
        self.seed, self.steps, self.epoch, self.beta = saved.seed, saved.steps, saved.epoch, beta
        self._set_sparsities(saved.sparsities or self._targets)
        self._generators, self._before = {}, saved.before
        for device, stream_state in saved.generators.items():
            self._generator(device).set_state(stream_state)
        for names in self._by_device():
            self._fill_gradients(names)
