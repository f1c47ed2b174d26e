"""Adam, AdamW and SGD over one flat buffer of all parameters of all runs, with a learning rate per run.

PyTorch's optimisers have a learning rate per tensor; a fused fleet has several runs in every tensor. As one flat
elementwise update it is also a single kernel. The formulas are those of ``torch.optim.Adam`` (weight decay coupled
into the gradient), ``AdamW`` (times the learning rate, beside it) and ``SGD``, and the tests hold them equal to those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .recipes import Recipe


class FlatOptimizer:
    """Owns the parameters' memory: every parameter becomes a view of ``self.values``.

    Args:
        parameters: of the fused network.
        convolutions: whether each is the weight of a convolution.
        recipes: of the runs that follow one another in each: the kind of optimiser and its constants, which are the
            same for all but the decay, and what is decayed.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], convolutions: Sequence[bool], recipes: Sequence[Recipe]
    ) -> None:
        self.recipe, self.parameters = recipes[0], list(parameters)
        device = self.parameters[0].device
        sizes = [p.numel() for p in self.parameters]
        self.values = torch.cat([p.detach().reshape(-1).float() for p in self.parameters])
        self.grads = torch.zeros_like(self.values)
        self.starts = {id(p): sum(sizes[:i]) for i, p in enumerate(self.parameters)}
        for parameter, value in zip(self.parameters, self.values.split(sizes)):
            parameter.data = value.view(parameter.shape)
        # The run of every element: inside a fused tensor the runs follow one another.
        self.runs = runs = len(recipes)
        each = torch.arange(runs, dtype=torch.uint8 if runs < 256 else torch.int32)
        self.run = torch.cat([each.repeat_interleave(size // runs) for size in sizes]).to(device)
        own = [[r.weight_decay if one or r.decay_on == "all" else 0.0 for r in recipes] for one in convolutions]
        decay = [torch.tensor(each).repeat_interleave(size // runs) for size, each in zip(sizes, own)]
        self.decay = torch.cat(decay).to(device)
        self.penalty: Tensor | None = None
        self.rates = torch.zeros(runs, device=device)
        self.steps = torch.zeros(runs, device=device)
        names = ("velocity",) if self.recipe.optimizer == "sgd" else ("first", "second")
        self.state = {name: torch.zeros_like(self.values) for name in names}
        self.adam, self.sgd = adam_, sgd_

    def set_rates(self, rates: Sequence[float]) -> None:
        """The learning rate of each run."""
        self.rates.copy_(torch.tensor(rates))

    def set_penalties(self, parameter: Tensor, penalties: Sequence[float]) -> None:
        """λ of each run's l1 penalty λ·Σ|w| on one of the parameters, from the beginning or not at all."""
        if not any(penalties):
            return
        if self.penalty is None:
            self.penalty = torch.zeros_like(self.values)
        each = torch.tensor(penalties).repeat_interleave(parameter.numel() // self.runs)
        self._part(self.penalty, parameter).copy_(each)

    def decay_of(self, parameter: Tensor) -> Tensor:
        """The decay of one of the parameters, element by element, as it is used."""
        return self._part(self.decay, parameter)

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """The loss's gradient of the last step at one of the parameters."""
        return self._part(self.grads, parameter).view_as(parameter)

    def moments_of(self, parameter: Tensor) -> list[Tensor]:
        """The moments of one of the parameters, as they are used."""
        return [self._part(tensor, parameter).view_as(parameter) for tensor in self.state.values()]

    def _part(self, flat: Tensor, parameter: Tensor) -> Tensor:
        return flat.narrow(0, self.starts[id(parameter)], parameter.numel())

    def compile(self) -> None:
        """The update as one compiled kernel."""
        self.adam, self.sgd = torch.compile(adam_, dynamic=False), torch.compile(sgd_, dynamic=False)

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor], combine: Callable[[Tensor], None] | None = None) -> None:
        """One update of all parameters from their gradients, which ``combine`` may change as one flat tensor first."""
        torch.cat([grad.reshape(-1).float() for grad in grads], out=self.grads)
        if combine is not None:
            combine(self.grads)
        self.steps += 1
        recipe, shared = self.recipe, (self.values, self.grads, self.decay, self.penalty, self.run, self.rates)
        if recipe.optimizer == "sgd":
            self.sgd(*shared, self.state["velocity"], recipe.momentum, recipe.nesterov)
        else:
            moments = self.state["first"], self.state["second"], self.steps
            self.adam(*shared, *moments, recipe.beta1, recipe.beta2, recipe.eps, recipe.optimizer == "adamw")

    @torch.no_grad()
    def forget(self, run: int) -> None:
        """Starts a run's moments from nothing, as those of a new optimiser."""
        for tensor in self.state.values():
            tensor.masked_fill_(self.run == run, 0)
        self.steps[run] = 0

    def state_dict(self) -> dict[str, Tensor]:
        return {"values": self.values, "steps": self.steps, **self.state}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def adam_(
    values: Tensor,
    grads: Tensor,
    decay: Tensor,
    penalty: Tensor | None,
    run: Tensor,
    rates: Tensor,
    first: Tensor,
    second: Tensor,
    steps: Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    decoupled: bool = False,
) -> None:
    """m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², w ← w − λ m̂ / (√v̂ + ε), with g as in :func:`_full`.

    Decoupled: w ← (1 − λ · decay) w − …, and g without decay.
    """
    g = _full(values, grads, torch.zeros_like(decay) if decoupled else decay, penalty)
    if decoupled:
        values.mul_(1 - _each(rates, run) * decay)
    first.lerp_(g, 1 - beta1)
    second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    rate, root = _each(rates / _gone(beta1, steps), run), _each(_gone(beta2, steps).rsqrt(), run)
    values.sub_(rate * first / (second.sqrt() * root + eps))


def sgd_(
    values: Tensor,
    grads: Tensor,
    decay: Tensor,
    penalty: Tensor | None,
    run: Tensor,
    rates: Tensor,
    velocity: Tensor,
    momentum: float,
    nesterov: bool,
) -> None:
    """v ← μv + g, w ← w − λ(g + μv) with Nesterov's momentum, else w ← w − λv, with g as in :func:`_full`."""
    g = _full(values, grads, decay, penalty)
    velocity.mul_(momentum).add_(g)
    values.sub_(_each(rates, run) * (g + momentum * velocity if nesterov else velocity))


def _full(values: Tensor, grads: Tensor, decay: Tensor, penalty: Tensor | None) -> Tensor:
    """The gradient of the loss plus decay · w, plus that of an l1 penalty, λ · sign(w)."""
    g = grads + decay * values
    return g if penalty is None else g + penalty * values.sign()


def _each(per_run: Tensor, run: Tensor) -> Tensor:
    """A value per run, given to each of its elements."""
    return per_run if len(per_run) == 1 else per_run[run.int()]


def _gone(decay: float, steps: Tensor) -> Tensor:
    """1 − decay^steps, without the cancellation that leaves float32 five digits of 1 − 0.999."""
    return -torch.expm1(steps * math.log(decay)) if decay else torch.ones_like(steps)
