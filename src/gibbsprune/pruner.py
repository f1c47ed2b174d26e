"""The pruner: Gibbs masks on the layers of any model, drawn while its owner trains it as usual."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from . import rising
from .budgets import Budget
from .checks import bad, check_one_of, check_whole
from .couplings import Coupled
from .diagnostics import TRAINED, Diagnostics, stale, unconverged, unrisen
from .distributed import compare_ranks
from .drawing import Drawing
from .errors import UserError
from .hamiltonians import Hamiltonian, as_hamiltonian
from .holding import hold
from .importance import check_importance
from .law import CONVERGED
from .masking import GibbsMasked
from .recalibration import lagging
from .samplers import SWEEPS
from .saving import Saved, read_state
from .schedules import Schedule, beta_at
from .selection import Selectors, select
from .site import check_gradient, layer_sites
from .structures import Structure, as_structure, given_sparsity
from .summary import Summary, summarised
from .survivors import SURVIVORS
from .targets import FELT, Sparsity, Targets, shares_of, tied_to
from .weights import check_module, untied


class GibbsPruner:
    r"""Trains and prunes a model at the same time.

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
        model: any module; its weights (:mod:`gibbsprune.weights`) are masked in place.
        sparsity: the fraction to remove, by default 0.9 or what a pattern N:M has; a :class:`Schedule` for one that
            rises; a mapping or function from layer name to such; a :class:`Budget` for all layers together.
        structure: ``"weight"``, ``"filter"``, ``"2:4"``, ``"head"`` or another of :mod:`gibbsprune.structures`.
        hamiltonian: an object or a name of :data:`gibbsprune.hamiltonians.HAMILTONIANS`, the paper's; None, where masks
            are drawn, for the structure's best with β in units of the threshold, which suits every network.
        schedule: epoch → β; None for the Hamiltonian's own, over the first 64 % of ``epochs``.
        include: the layers to prune, by name patterns, module types or predicates, or as a mapping from patterns to
            structures (see :func:`gibbsprune.selection.select`); None for all but the first convolution and those whose
            outputs leave the network, and with filters but the projections of shortcuts.
        exclude: the layers to leave out, in the same way.
        sampler: ``"auto"`` or a name of :mod:`gibbsprune.samplers`.
        seed: of the one random stream that all masks come from.
        epochs: how long the training lasts, for the ramp of the sparsity or the schedule of β.
        law: "rising", no temperature and a sparsity of the network that rises over 90 % of ``epochs``
            (:mod:`gibbsprune.rising`), the most accurate so far (docs/best.md); "annealed", a temperature that falls,
            as in the paper. None for the first, but where something is given that only the second has.
        gradient: what reaches a masked weight (:mod:`gibbsprune.masking`): "proportional", "straight-through", "law" or
            "masked" (nothing, as in the paper); None for the first, and the last with ``law="annealed"``.
        survivors: what is left of a weight that is kept (:mod:`gibbsprune.masking`): "shrunk", "rescaled" or "whole",
            as in the paper; None for what suits the network, and the last with ``law="annealed"``.
        example_inputs: a tensor, a tuple or a dict of the model's inputs, to find the layers whose outputs leave the
            network where its own code cannot be traced, attention heads, and for a budget of multiply-adds.
        sweeps: of a chain.
        warm: whether a chain goes on from the masks of the step before, where a few sweeps then suffice.
        importance: what the law is of (:mod:`gibbsprune.importance`): "magnitude" of weights, "taylor" or "wanda".
        check_ranks: with several processes, steps between comparisons of their masks; 0 for never.
    """

    def __init__(
        self,
        model: nn.Module,
        sparsity: Sparsity | Budget | None = None,
        structure: str | Structure = "weight",
        hamiltonian: str | Hamiltonian | None = None,
        schedule: Schedule | Callable[[Any], float] | None = None,
        include: Selectors = None,
        exclude: Selectors = None,
        sampler: str = "auto",
        seed: int = 0,
        *,
        epochs: int = 200,
        law: str | None = None,
        gradient: str | None = None,
        survivors: str | None = None,
        example_inputs: Any = None,
        sweeps: int = SWEEPS,
        warm: bool = False,
        importance: str = "magnitude",
        check_ranks: int = 100,
    ) -> None:
        check_module(model)
        self.model, self.seed, self.check_ranks = model, check_whole("seed", seed, None), check_ranks
        kind = self._kind = as_structure(structure)
        if sparsity is None or isinstance(sparsity, (int, float)):
            sparsity = given_sparsity(sparsity, kind)
        self.law = rising.chosen_law(
            law, gradient, hamiltonian=hamiltonian, schedule=schedule, sampler=sampler, warm=warm
        )
        if self.law == "rising":
            schedule, gradient = rising.COLD, gradient or rising.GRADIENT
            survivors = survivors or rising.survivors(model, kind)
        gradient, survivors = gradient or "masked", survivors or "whole"
        self.hamiltonian = as_hamiltonian(hamiltonian, kind)
        self.layers, self._skipped = select(model, kind, include, exclude, example_inputs)
        if isinstance(self.hamiltonian, Coupled):  # whose pairs are those of one layer
            self.layers = untied(self.layers)
        kinds = {name: layer.structure(kind) for name, layer in self.layers.items()}
        self._rising = partial(rising.plan, self.law, sparsity, kind, kinds)
        sparsity = self._rising(epochs)
        shares = shares_of(model, self.layers, kind, sparsity, example_inputs)
        self._plan = Targets(sparsity, shares, tied_to(self.layers, sparsity))
        self._plan.check(kinds)
        self._targets = self._now = self._plan.at(math.inf, self._means)
        asked = self._plan.asked
        sites = layer_sites(self.layers, kinds, self.hamiltonian, self._targets, sampler, warm=warm, asked=asked)
        check_gradient(gradient, sites.values())
        check_one_of("survivors", survivors, SURVIVORS)
        check_importance(importance, self.hamiltonian, gradient, self.layers)
        for what, value, least in (("sweeps", sweeps, 1), ("check_ranks", check_ranks, 0)):
            check_whole(what, value, least)
        if isinstance(schedule, type) or not (schedule is None or callable(schedule)):
            raise bad("schedule", schedule, "schedules and functions from the epoch to beta")
        self._sizes = [math.prod(site.shape) for site in sites.values()]
        self.schedule = schedule or self.hamiltonian.annealing(epochs, self._sizes)
        self.epoch: float = 0
        self.beta: float = self._beta(0)
        first = self._plan.at(0, self._means)  # the last to refuse anything: from here the model changes
        self.steps, self._rose, self._left, self.finalized = 0, 0, 1.0, False
        pruned = {name for name in self.layers if self._targets[name] or self._plan.budget}
        self._drawing = Drawing(model, self.layers, sites, pruned, gradient, survivors, self.seed, sweeps, importance)
        self.masks: dict[str, GibbsMasked] = self._drawing.masks
        try:
            self._set_sparsities(first)
            self._drawing.draw(self.beta, self.steps)
        except BaseException:  # a device or type that nothing above foresaw: the model is left as it was
            self.take_off()
            raise

    def _means(self) -> list[Tensor]:
        return self._plan.means(self.layers, self._kind)

    # -- training ----------------------------------------------------------------------------------------------------

    def _set_sparsities(self, sparsities: dict[str, float]) -> bool:
        """Gives the layers other sparsities; whether any is another one."""
        changed, self._now = sparsities != self._now, sparsities
        if changed:
            self._drawing.set_sparsities(sparsities)
        return changed

    def lasts(self, epochs: int) -> None:
        """The defaults for a training of so many epochs, where they become known only when it begins."""
        self._plan = Targets(self._rising(epochs), self._plan.shares, self._plan.tied)
        if self.law == "annealed":
            self.schedule = self.hamiltonian.annealing(epochs, self._sizes)
        self.set_epoch(self.epoch)

    def set_epoch(self, epoch: float) -> None:
        """Sets β and a sparsity that rises to their values for ``epoch``, counted from 0; it may be a fraction.

        When an epoch begins, a budget is shared out anew (within one whenever it has changed by a hundredth), and the
        masks that are there for its first step are drawn again at its own β and sparsity, from the same random numbers.
        """
        beta, last, before = self._beta(epoch), self.beta, self.epoch
        self.epoch, self.beta = epoch if isinstance(epoch, (int, float)) else epoch.item(), beta
        if self.finalized:
            return
        changed = False
        if self.steps == 0 or self._plan.due(self.epoch, before):
            changed = self._set_sparsities(self._plan.at(self.epoch, self._means))
            if (left := 1 - self._plan.total(self.epoch)) < FELT * self._left:
                self._rose, self._left = self.steps, left
        if self.epoch == int(self.epoch) and (changed or beta != last):
            self._drawing.draw(self.beta, self.steps, again=True)

    def _beta(self, epoch: float) -> float:
        return beta_at(self.schedule, epoch, getattr(self.hamiltonian, "relative", None) == "offset")

    @torch._disable_dynamo
    def step(self) -> None:
        """Draws the next masks: call it after every optimiser step."""
        now_and_then = self.steps % 100 == 0  # each time would be felt
        self._check_open("step", look=now_and_then)
        if now_and_then:
            self._drawing.check_finite(self.steps)
        if self.check_ranks and self.steps % self.check_ranks == 0:
            streams = (generator.get_state() for generator in self._drawing.generators.values())
            compare_ranks(self.steps, self.beta, streams, (masked.mask for masked in self.masks.values()))
        self._drawing.draw(self.beta, self.steps)
        self.steps += 1

    def set_decay(self, optimizer: torch.optim.Optimizer, masked: float) -> None:
        """Gives masked weights a weight decay of their own in every further step of ``optimizer``.

        Without it they decay as the others do. 0 decays only what the mask of a step keeps; with more than the
        optimiser's own masked weights fade, as in the recipe ``best``. It is decoupled from the gradient where the
        optimiser's is (``AdamW``, ``decoupled_weight_decay``). The state of a pruner does not hold it.
        """
        self._check_open("set_decay")
        self._drawing.decay(optimizer, masked)

    def restart(self) -> None:
        """Draws the first masks again, from the weights as they are now: after DDP has sent rank 0's to all ranks."""
        self._check_open("restart")
        self.steps = 0
        self._set_sparsities(self._plan.at(self.epoch, self._means))
        self._drawing.restart(self.beta)

    def sparsity(self) -> float:
        """The share of the weights of all its layers that the masks in place hide."""
        self._check_open("sparsity")
        return self._drawing.sparsity()

    def agreement(self) -> float:
        """The share of weights on which the sampled masks equal the converged ones: 1 when the masks have frozen."""
        self._check_open("agreement")
        return self._drawing.agreement()

    # -- the end -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def finalize(self, draw: str = "converged") -> nn.Module:
        """Burns the final masks into the weights, removes the parametrisations and returns the model.

        ``draw="converged"`` takes x_cvg, the masks of ``model.eval()``, at exactly the sparsity asked for, ``"sample"``
        one more draw from the law, as in the paper: that of the last :meth:`step`, if nothing has changed since. Where
        masks have not converged, or a sparsity has not risen to its end, the rest goes all the same, with a warning.
        The pruned weights stay zero if the model is trained on.
        """
        self._check_open("finalize")
        check_one_of("draw", draw, ("sample", "converged"))
        self._drawing.check_finite(self.steps)
        now, end, early = self._plan.total(self.epoch), self._plan.total(), self._drawing.early()
        # Of survivors, as they were trained, if at all: what goes beyond that takes nothing from them.
        left = self._drawing.left(self.beta) if self.steps else {}
        short = self._plan.open(self.epoch) and self._set_sparsities(self._plan.at(math.inf, self._means))
        final = self._drawing.converged() if draw == "converged" else self._drawing.final(self.beta, self.steps)
        if draw == "sample":
            for name, mask in final.items():
                self.masks[name].mask.copy_(mask)
        if early or (short and self.steps >= TRAINED):
            warnings.warn(early or unrisen(now, end, self.epoch), stacklevel=3)  # no_grad's wrapper is one
        elif (draw == "sample" or self.steps >= TRAINED) and (agreement := self.agreement()) < CONVERGED:
            warnings.warn(unconverged(agreement, self.beta, self.hamiltonian.coupling, draw), stacklevel=3)
        if self._rose and not short and left and lagging(self.model, ago := self.steps - self._rose):
            warnings.warn(stale(ago), stacklevel=3)
        self._drawing.take_off(final, left)
        for name, mask in final.items():
            hold(self.layers[name].module, mask, self.layers[name].parameter)
        self.finalized = True
        return self.model

    def take_off(self) -> None:
        """Removes the masks and leaves the weights as they are; the pruner is done."""
        self._drawing.take_off({}, {})
        self.finalized = True

    def _check_open(self, what: str, look: bool = True) -> None:
        if self.finalized:
            raise UserError(f"{what}() after finalize(): the masks are burnt in and the pruner is done")
        if look:
            self._drawing.check()

    # -- looking and saving ------------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """Every layer with its neighbourhoods, target and achieved sparsity; prints as a table."""
        if not self.finalized:
            self._drawing.check()
        ends = self._now if self.finalized else self._targets
        sites = {name: site.at(ends[name]) for name, site in self._drawing.sites.items()}
        told = ends, self._skipped, self.finalized, self._plan.budget, self.law == "rising"
        return summarised(self.model, self._kind, self.layers, sites, *told)

    def diagnostics(self, draws: int = 16) -> Diagnostics:
        """What the law is doing: energy, acceptance, undecided weights, whether a chain has mixed; prints as a table.

        Measured on ``draws`` masks of its own, of a chain on two of as many sweeps as the pruner makes: training is not
        touched. See docs/how_to/diagnostics.md.
        """
        self._check_open("diagnostics")
        return self._drawing.diagnose(self.beta, check_whole("draws", draws, 2), self.seed + self.steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs beside the model's and optimiser's states; safe for ``weights_only=True``."""
        self._check_open("state_dict")
        masks = {name: masked.mask for name, masked in self.masks.items()}
        streams = {device: generator.get_state() for device, generator in self._drawing.generators.items()}
        sparsities = {} if self._now == self._targets and not self._plan.budget else self._now
        return Saved(self.seed, self.epoch, self.steps, masks, streams, self._drawing.before, sparsities).state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from :meth:`state_dict`: the same masks now, and the same ones after every further step."""
        self._check_open("load_state_dict")
        devices = {self.layers[names[0]].stored.device for names in self._drawing.by_device()}
        saved = read_state(state, {name: masked.mask for name, masked in self.masks.items()}, devices)
        beta = self._beta(saved.epoch)
        for name, masked in self.masks.items():  # from here on nothing is refused
            masked.mask.copy_(saved.masks[name])
        self.seed, self.steps, self.epoch, self.beta = saved.seed, saved.steps, saved.epoch, beta
        self._set_sparsities(saved.sparsities or self._targets)
        self._rose, self._left = 0, 1 - self._plan.total(self.epoch)  # nobody knows when it rose
        self._drawing.resume(saved.seed, saved.steps, beta, saved.generators, saved.before)
