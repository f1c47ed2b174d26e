"""The training loop's inside: one network, of one run or of many fused ones, on one device.

A step makes a batch, draws the masks, computes loss and gradients, and updates the weights; on CUDA all of it is one
captured graph, compiled unless the training is short. Learning rates and β are device tensors, filled between epochs;
nothing waits for the host in an epoch.

Several processes (``ranks``) share the work of each step: every one has its rows of the batch, and the gradients are
summed. Batch norms use the statistics of the process's own rows in training, as under DistributedDataParallel; their
running statistics are averaged over the processes after each epoch, so that all of them end it in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..data.arrays import Arrays
from ..lanes import Lanes
from ..law import Law
from ..masking import Masked, attach, stored_weight
from ..recalibration import recalibrate
from ..samplers import stream
from .batches import Batches
from .capture import Step, compiled
from .finished import Finished
from .fuse import fuse, share
from .methods import Rule
from .network import new_model, takes_channels_last
from .optimizers import FlatOptimizer
from .ranks import ALONE, Ranks
from .replica import Replica
from .sites import run_sites
from .spec import RunSpec

EVALUATION_BATCH = 500
RECALIBRATION_BATCHES = 40
#: Steps times runs from which on compiling, half a minute and more, is won back by faster steps.
WORTH_COMPILING = 75_000


class Engine:
    """Trains the runs ``specs``, which share architecture, data, batch size, optimiser and number of epochs."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        arrays: Arrays,
        device: torch.device,
        sources: Sequence[Finished | None] | None = None,
        autotune: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.specs, self.runs, self.device, self.arrays = list(specs), len(specs), device, arrays
        models = [new_model(spec, arrays) for spec in specs]
        self.names = [run_sites(spec, model) for spec, model in zip(specs, models)]
        self.model = fuse(models)
        self.channels_last = takes_channels_last(self.model, self.runs * arrays.channels, arrays.size)
        self.model.to(device)
        self.layers = dict.fromkeys(name for sites in self.names for name in sites)
        self.masks: dict[str, Tensor] = {}
        for name in self.layers:
            module = self.model.get_submodule(name)
            attach(module, masked := Masked(module.weight))  # type: ignore[arg-type]
            self.masks[name] = masked.mask
        self.sites = [(name, k, site) for k, sites in enumerate(self.names) for name, site in sites.items()]
        placed = [replace(site, run=k) for _, k, site in self.sites]
        self.held = [torch.ones(site.shape, dtype=torch.bool, device=device) for site in placed]
        self.rules: list[tuple[Rule, list[int]]] = []
        for how in dict.fromkeys(spec.how for spec in specs):
            mine = [i for i, (_, k, site) in enumerate(self.sites) if specs[k].how is how and site.sparsity > 0]
            if mine and (rule := how.rule([placed[i] for i in mine], specs, device)) is not None:
                self.rules.append((rule, mine))
        self.limited = [i for i, (_, k, _) in enumerate(self.sites) if specs[k].how.ends_with != "held"]
        self.limit = Law([placed[i] for i in self.limited])
        self.levels = [spec.how.level(spec, list(sites.values())) for spec, sites in zip(specs, self.names)]
        self.optimizer = FlatOptimizer(*self._parameters(), self.runs, specs[0].recipe)
        for name in self.layers:
            own = [spec.how.penalty(spec) if name in sites else 0.0 for spec, sites in zip(specs, self.names)]
            self.optimizer.set_penalties(stored_weight(self.model.get_submodule(name)), own)
        self.data_streams = [stream(spec.seed, "data") for spec in specs]
        self.mask_streams = [stream(spec.seed, "masks", device) for spec in specs]
        self.layer_state = stream(specs[0].seed, "layers", device).get_state()
        self.batches = Batches(arrays, specs[0].recipe, self.data_streams, device, ranks)
        self.x_test, self.y_test = arrays.x_test.to(device), arrays.y_test.to(device)
        self.betas = torch.zeros(self.runs, dtype=torch.float64, device=device)
        self.loss_sum = torch.zeros(self.runs, device=device)
        self.correct = torch.zeros(self.runs, device=device)
        precision = specs[0].precision
        low = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
        self.dtype = torch.bfloat16 if low else torch.float32
        self.losses: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = self._losses
        steps = specs[0].own_epochs * self.batches.steps * self.runs
        self.compiled = device.type == "cuda" and steps >= WORTH_COMPILING
        if self.compiled:
            self.losses = compiled(self._losses)
            self.optimizer.compile()
        # A sum over processes within a captured graph is not tried: then every step is called.
        self.lanes, self.rule_lanes = Lanes(), Lanes()
        self.step = Step(self._step, device, self.mask_streams, autotune=autotune, capture=ranks.size == 1)
        self.replicas = [Replica(self, k, source) for k, source in enumerate(sources or [None] * self.runs)]
        self.save_at = [spec.how.save_at(spec, spec.phases[0].epochs * self.batches.steps) for spec in specs]
        self.saved: list[dict[str, Tensor]] = [{} for _ in specs]
        for k, spec in enumerate(specs):
            for what in spec.how.keeps:
                self.put_aside(k, what)
        self.done, self.entered = 0, -1

    def _parameters(self) -> tuple[list[nn.Parameter], list[bool]]:
        everywhere = self.specs[0].recipe.decay_on == "all"
        convolutions = {id(p) for m in self.model.modules() if isinstance(m, _ConvNd) for p in _weights(m)}
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return parameters, [everywhere or id(p) in convolutions for p in parameters]

    # -- one step ----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One step; values that a method wants back later are put aside after it."""
        self._advance()
        self.done += 1
        for k, at in enumerate(self.save_at):
            if at == self.done:
                self.step.join()
                self.ranks.average_(self.buffers().values())
                self.put_aside(k, self.specs[k].how.keeps[0])

    def put_aside(self, k: int, what: str) -> None:
        """Keeps a copy of run k's values as they are now."""
        self.saved[k].update({f"{what}/{name}": value.clone() for name, value in self.run_state(k).items()})

    def _advance(self) -> None:
        """A step in which layers that draw from torch's global generator, such as dropout, draw the run's own."""
        if self.runs > 1:
            return self.step()  # a network with such layers is not fused
        generator = torch.default_generator
        if self.device.type == "cuda":
            index = self.device.index
            generator = torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
        outside = generator.get_state()
        generator.set_state(self.layer_state)
        try:
            self.step()
        finally:
            self.layer_state = generator.get_state()
            generator.set_state(outside)

    def _step(self) -> None:
        (x, y), _ = self.lanes.run([partial(self.batches.next, self.dtype), self.draw_masks], self.device)
        losses, correct = self.losses(x, y)
        grads = torch.autograd.grad(losses.sum(), self.optimizer.parameters, allow_unused=True, materialize_grads=True)
        self.optimizer.step(grads, self._combine if self.ranks.size > 1 else None)
        self.loss_sum += losses.detach()
        self.correct += correct

    def _combine(self, grads: Tensor) -> None:
        """The gradient of the global batch's mean loss, from that of this process's rows."""
        self.ranks.sum_(grads.mul_(self.batches.share))

    def _losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy and number of right answers of each run."""
        logits = self._logits(x)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        return losses.mean(0), (logits.argmax(-1) == y).sum(0)

    def _logits(self, x: Tensor) -> Tensor:
        if not self.channels_last:
            x = x.clone(memory_format=torch.contiguous_format)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            return self.model(x).float().unflatten(1, (self.runs, -1))

    # -- masks -------------------------------------------------------------------------------------------------------

    def weights(self) -> list[Tensor]:
        """The stored weight of every site, a view of the fused one."""
        stored = {name: stored_weight(self.model.get_submodule(name)).detach() for name in self.layers}
        return [share(stored[name], k, self.runs) for name, k, _ in self.sites]

    def mask_views(self) -> list[Tensor]:
        return [share(self.masks[name], k, self.runs) for name, k, _ in self.sites]

    @torch.no_grad()
    def draw_masks(self) -> None:
        """A fresh mask for every layer whose method draws one; the others keep theirs."""
        weights, views = self.weights(), self.mask_views()
        jobs = [
            partial(rule.draw, [weights[i] for i in places], self.betas, self.mask_streams)
            for rule, places in self.rules
        ]
        for (_, places), drawn in zip(self.rules, self.rule_lanes.run(jobs, self.device)):
            torch._foreach_copy_([views[i] for i in places], drawn)

    @torch.no_grad()
    def set_masks(self, masks: Sequence[Tensor]) -> None:
        if self.sites:
            torch._foreach_copy_(self.mask_views(), list(masks))

    @torch.no_grad()
    def limits(self) -> list[Tensor]:
        """The masks with which the runs would end now, but for a last draw: converged ones, or those held."""
        masks, weights = list(self.held), self.weights()
        for i, mask in zip(self.limited, self.limit.converged([weights[i] for i in self.limited])):
            masks[i] = mask
        return masks

    @torch.no_grad()
    def final_masks(self) -> list[Tensor]:
        """The masks with which the runs end: :meth:`limits`, or one more draw from the law."""
        masks, weights = self.limits(), self.weights()
        for rule, places in self.rules:
            if isinstance(rule, Law):
                for i, mask in zip(places, rule.final([weights[i] for i in places], self.betas, self.mask_streams)):
                    masks[i] = mask
        return masks

    @torch.no_grad()
    def agreement(self, masks: Sequence[Tensor], others: Sequence[Tensor]) -> list[float]:
        """Per run, the share of weights on which two sets of masks are equal."""
        same, total = torch.zeros(self.runs, dtype=torch.int64, device=self.device), [0] * self.runs
        for (_, k, _), a, b in zip(self.sites, masks, others):
            same[k] += (a == b).sum()
            total[k] += a.numel()
        return [s / t if t else 1.0 for s, t in zip(same.tolist(), total)]

    # -- epochs ------------------------------------------------------------------------------------------------------

    def enter(self, epoch: int) -> None:
        """What the runs' methods do before an epoch; after the last one, the phases that need no training."""
        if self.entered == epoch:
            return
        for run, spec in zip(self.replicas, self.specs):
            start = 0
            for index, phase in enumerate(spec.phases):
                if start == epoch:
                    spec.how.begin_phase(run, index)
                start += phase.epochs
            if epoch < start:
                spec.how.begin_epoch(run, epoch)
        self.entered = epoch

    def begin_epoch(self, epoch: int) -> None:
        """Lets the methods act, draws the epoch's data order, sets learning rates and β."""
        self.enter(epoch)
        self.set_masks(self.held)
        self.model.train()
        self.batches.draw_epoch()
        self.set_schedules(epoch)
        self.done = epoch * self.batches.steps
        if not self.ranks.first:  # rank 0's stream is saved; those of the others begin anew, whoever resumes
            self.layer_state = stream(self.specs[0].seed, "layers", self.device, self.ranks.rank, epoch).get_state()
        self._compare_ranks(f"before epoch {epoch + 1}")
        self.loss_sum.zero_()
        self.correct.zero_()

    def set_schedules(self, epoch: int) -> None:
        self.rates = [spec.learning_rate(epoch) for spec in self.specs]
        self.optimizer.set_rates(self.rates)
        self.beta_values = [level(epoch) for level in self.levels]
        self.betas.copy_(torch.tensor(self.beta_values, dtype=torch.float64))

    def _compare_ranks(self, when: str) -> None:
        """An error unless every process has the same weights, random streams and masks."""
        if self.ranks.size > 1:
            streams = [g.get_state() for g in (*self.data_streams, *self.mask_streams)]
            views = self.mask_views()
            self.ranks.compare(when, weights=[self.optimizer.values], streams=streams, masks=[*views, *self.held])

    def end_epoch(self) -> list[dict[str, Any]]:
        """What each run did in the epoch."""
        self.step.join()
        self._compare_ranks(f"after {self.done} steps")
        self.ranks.average_(self.buffers().values())
        self.loss_sum *= self.batches.share
        self.ranks.sum_(self.loss_sum)
        self.ranks.sum_(self.correct)
        seen = self.batches.steps * self.batches.batch
        agreement = self.agreement(self.mask_views(), self.limits())
        drawn = [spec.how.ends_with == "drawn" for spec in self.specs]
        return [
            {
                "loss": self.loss_sum[k].item() / self.batches.steps,
                "train_accuracy": self.correct[k].item() / seen,
                "lr": self.rates[k],
                "beta": self.beta_values[k] if drawn[k] else None,
                "agreement": agreement[k] if drawn[k] else None,
            }
            for k in range(self.runs)
        ]

    @torch.no_grad()
    def evaluate(self, masks: Sequence[Tensor] | None = None) -> list[dict[str, float]]:
        """Test accuracy and loss of each run with the given masks, by default :meth:`limits`."""
        self.step.join()
        self.set_masks(self.limits() if masks is None else masks)
        self.model.eval()
        loss, correct = torch.zeros(self.runs, device=self.device), torch.zeros(self.runs, device=self.device)
        parts = list(zip(self.x_test.split(EVALUATION_BATCH), self.y_test.split(EVALUATION_BATCH)))
        for images, labels in parts[self.ranks.rank :: self.ranks.size]:
            x = self.batches.evaluation(images, self.dtype)
            losses, right = self._losses(x, labels[:, None].expand(-1, self.runs))
            loss += losses * len(labels)
            correct += right
        self.ranks.sum_(loss)
        self.ranks.sum_(correct)
        self.model.train()
        count = len(self.y_test)
        return [{"accuracy": c / count, "loss": v / count} for c, v in zip(correct.tolist(), loss.tolist())]

    @torch.no_grad()
    def recalibrate(self) -> None:
        """Batch-norm statistics of the masked network as it is, from augmented training batches."""
        self.batches.draw_epoch()
        recalibrate(_Network(self._logits, self.model), self._some_batches())
        self.ranks.average_(self.buffers().values())

    def _some_batches(self) -> Iterator[Tensor]:
        for _ in range(min(RECALIBRATION_BATCHES, self.batches.steps)):
            yield self.batches.next(self.dtype)[0]

    # -- state -------------------------------------------------------------------------------------------------------

    def buffers(self) -> dict[str, Tensor]:
        """Batch-norm statistics; masks are drawn anew at every step, or held."""
        masks = {id(mask) for mask in self.masks.values()}
        return {name: buffer for name, buffer in self.model.named_buffers() if id(buffer) not in masks}

    def _held(self) -> list[Tensor]:
        """The masks that must be remembered."""
        drawn = set(self.limited)
        return [mask for i, mask in enumerate(self.held) if i not in drawn]

    def run_state(self, k: int) -> dict[str, Tensor]:
        """Run k's parameters and buffers under the names of the ordinary network, as views."""
        state = self.model.state_dict(keep_vars=True)
        held = {id(mask) for mask in self.masks.values()}
        masks = {name for name, tensor in state.items() if id(tensor) in held}
        under = [name.removesuffix("0.mask") for name in masks]  # …parametrizations.weight.
        plain = {f"{prefix}original": prefix.removesuffix("parametrizations.weight.") + "weight" for prefix in under}
        return {
            plain.get(name, name): share(tensor.detach(), k, self.runs)
            for name, tensor in state.items()
            if name not in masks
        }

    def state_dict(self) -> dict[str, Any]:
        self.step.join()
        return {
            "held": self._held(),
            "saved": self.saved,
            "optimizer": self.optimizer.state_dict(),
            "buffers": self.buffers(),
            "data_streams": [g.get_state() for g in self.data_streams],
            "mask_streams": [g.get_state() for g in self.mask_streams],
            "layer_state": self.layer_state,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place, since a captured graph goes on using the same memory."""
        self.step.join()
        self.optimizer.load_state_dict(state["optimizer"])
        for name, buffer in self.buffers().items():
            buffer.copy_(state["buffers"][name])
        for what in ("data_streams", "mask_streams"):
            for generator, saved in zip(getattr(self, what), state[what]):
                generator.set_state(saved.cpu())
        self.layer_state = state["layer_state"].cpu()
        for mask, saved in zip(self._held(), state["held"]):
            mask.copy_(saved)
        self.saved = [{name: tensor.to(self.device) for name, tensor in saved.items()} for saved in state["saved"]]
        self.entered = -1

    def extract(self, k: int, arrays: Arrays, masks: dict[str, Tensor]) -> nn.Module:
        """Run k as an ordinary model on the CPU, with the given masks burnt in."""
        model = new_model(self.specs[k], arrays)
        model.load_state_dict(self.run_state(k))
        with torch.no_grad():  # in the module, which may be known by several names
            for name, mask in masks.items():
                model.get_submodule(name).get_parameter("weight").mul_(mask.cpu())
        return model.eval()


class _Network(nn.Module):
    """The logits of a network, mixed precision included, as a module."""

    def __init__(self, logits: Callable[[Tensor], Tensor], network: nn.Module) -> None:
        super().__init__()
        self.network, self.logits = network, logits

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)


def cloned(state: Any) -> Any:
    """A copy of a nested state, tensors included."""
    if isinstance(state, Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: cloned(value) for key, value in state.items()}
    return [cloned(value) for value in state] if isinstance(state, list) else state


def _weights(module: nn.Module) -> list[nn.Parameter]:
    """The weight of a convolution, stored under a mask or not; its bias is not decayed."""
    return [p for name, p in module.named_parameters() if name.rpartition(".")[2] in ("weight", "original")]
