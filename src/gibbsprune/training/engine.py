"""The training loop's inside: one network, of one run or of many fused ones, on one device.

A step makes a batch, draws the masks, computes loss and gradients, and updates the weights; on CUDA all of it is one
captured graph, compiled unless the training is short. Learning rates and β are device tensors, filled between epochs;
nothing waits for the host in an epoch.

Several processes (``ranks``) share the work of each step: every one has its rows of the batch, and the gradients are
summed. Batch norms use the statistics of the process's own rows in training, as under DistributedDataParallel; their
running statistics are averaged over the processes after each epoch, so that all of them end it in the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import bad
from ..data.arrays import Arrays
from ..lanes import Lanes
from ..recalibration import lagging, recalibrate
from ..samplers import stream
from .batches import Batches
from .capture import Captured, compiled
from .finished import Finished
from .fuse import share
from .masked import MaskedNetwork
from .optimizers import FlatOptimizer
from .ranks import ALONE, Ranks
from .replica import Replica
from .ruling import Masks
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
        """
        Args:
            specs: the runs.
            arrays: their data.
            device: where they are trained.
            sources: the finished run that each starts from, if any.
            autotune: whether cuDNN chooses its kernels by timing them.
            ranks: the processes that share the work.
        """
        self.specs, self.runs, self.device, self.arrays, self.ranks = list(specs), len(specs), device, arrays, ranks
        self.network = MaskedNetwork(specs, arrays, device)
        self.masks = Masks(specs, self.network, device)
        if ranks.size > 1 and self.network.scores:
            raise bad("importance", next(iter(self.network.scores))[0], "'magnitude' with several processes")
        self.optimizer = FlatOptimizer(*self.network.parameters(), [spec.recipe for spec in specs])
        for name in self.network.masks:
            own = [s.how.penalty(s) if name in sites else 0.0 for s, sites in zip(specs, self.network.names)]
            self.optimizer.set_penalties(self.network.stored(name), own)
        for level in self.network.levels.values():
            own = [found[1] if (found := s.how.soft_threshold(s)) else 0.0 for s in specs]
            self.optimizer.decay_of(level).copy_(torch.tensor(own))
        self.masks.set_decays({name: self.optimizer.decay_of(self.network.stored(name)) for name in self.network.masks})
        self.data_streams = [stream(spec.seed, "data") for spec in specs]
        self.layer_state = stream(specs[0].seed, "layers", device).get_state()
        self.batches = Batches(arrays, [spec.recipe for spec in specs], self.data_streams, device, ranks)
        self.test = arrays.x_test.to(device), arrays.y_test.to(device)
        self.loss_sum, self.correct = (torch.zeros(self.runs, device=device) for _ in range(2))
        self.losses: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = self.network.losses
        steps = specs[0].own_epochs * self.batches.steps * self.runs
        self.compiled = device.type == "cuda" and steps >= WORTH_COMPILING
        if self.compiled:
            self.losses = compiled(self.network.losses)
            self.optimizer.compile()
        # A sum over processes within a captured graph is not tried: then every step is called.
        self.lanes = Lanes()
        self.step = Captured(self._step, device, self.masks.streams, autotune=autotune, capture=ranks.size == 1)
        self.replicas = [Replica(self, k, source) for k, source in enumerate(sources or [None] * self.runs)]
        self.done, self.entered = 0, -1

    # -- one step ----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """One step, and what methods do after it: put values aside that they want back later, exchange masks."""
        self._advance()
        self.done += 1
        for run in self.replicas:
            if run.save_at == self.done:
                self.step.join()
                self.ranks.average_(self.network.buffers().values())
                run.put_aside(run.spec.how.keeps[0])
            if run.every is not None and self.done % run.every == 0:
                self.step.join()
                run.spec.how.after_step(run, self.done, run.spec.own_epochs * self.batches.steps)

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
        (x, y), _ = self.lanes.run([partial(self.batches.next, self.network.dtype), self.masks.draw], self.device)
        losses, correct = self.losses(x, y)
        grads = torch.autograd.grad(losses.sum(), self.optimizer.parameters, allow_unused=True, materialize_grads=True)
        self.optimizer.step(grads, self._combine if self.ranks.size > 1 else None)
        self.loss_sum += losses.detach()
        self.correct += correct

    def _combine(self, grads: Tensor) -> None:
        """The gradient of the global batch's mean loss, from that of this process's rows."""
        self.ranks.sum_(grads.mul_(self.batches.share))

    # -- epochs ------------------------------------------------------------------------------------------------------

    def enter(self, epoch: int) -> None:
        """What the runs' methods do before an epoch; after the last one, the phases that need no training."""
        if self.entered == epoch:
            return
        for run, spec in zip(self.replicas, self.specs):
            start = 0
            for index, phase in enumerate(spec.phases):
                if start == epoch:
                    if index == 0 and run.source is not None:
                        spec.how.start(run, run.source)
                    spec.how.begin_phase(run, index)
                start += phase.epochs
            if epoch < start:
                spec.how.begin_epoch(run, epoch)
        self.entered = epoch

    def begin_epoch(self, epoch: int) -> None:
        """Lets the methods act, draws the epoch's data order, sets learning rates and β."""
        self.enter(epoch)
        self.network.set_masks(self.masks.held)
        self.network.model.train()
        self.batches.draw_epoch()
        self.set_schedules(epoch)
        self.masks.share_out(epoch)
        self.done = epoch * self.batches.steps
        if not self.ranks.first:  # rank 0's stream is saved; those of the others begin anew, whoever resumes
            self.layer_state = stream(self.specs[0].seed, "layers", self.device, self.ranks.rank, epoch).get_state()
        self._compare_ranks(f"before epoch {epoch + 1}")
        self.loss_sum.zero_()
        self.correct.zero_()

    def set_schedules(self, epoch: int) -> None:
        self.rates = [spec.learning_rate(epoch) for spec in self.specs]
        self.optimizer.set_rates(self.rates)
        self.beta_values = self.masks.set_levels(epoch)

    def _compare_ranks(self, when: str) -> None:
        """An error unless every process has the same weights, random streams and masks."""
        if self.ranks.size > 1:
            streams = [g.get_state() for g in (*self.data_streams, *self.masks.streams)]
            masks = [*self.network.mask_views(), *self.masks.held]
            self.ranks.compare(when, weights=[self.optimizer.values], streams=streams, masks=masks)

    def end_epoch(self) -> list[dict[str, Any]]:
        """What each run did in the epoch."""
        self.step.join()
        self.masks.keep_chains()
        self._compare_ranks(f"after {self.done} steps")
        self.ranks.average_(self.network.buffers().values())
        self.loss_sum *= self.batches.share
        self.ranks.sum_(self.loss_sum)
        self.ranks.sum_(self.correct)
        seen = self.batches.steps * self.batches.batch
        masks = self.network.mask_views()
        agreement = self.masks.agreement(masks, self.masks.limits())
        removed = self.masks.agreement(masks, [torch.zeros_like(mask) for mask in masks])
        drawn = [spec.how.ends_with == "drawn" and not spec.how.cold(spec) for spec in self.specs]
        masked = [spec.how.masks(spec) for spec in self.specs]
        return [
            {
                "loss": self.loss_sum[k].item() / self.batches.steps,
                "train_accuracy": self.correct[k].item() / seen,
                "lr": self.rates[k],
                "beta": self.beta_values[k] if drawn[k] else None,
                "agreement": agreement[k] if drawn[k] else None,
                "sparsity": removed[k] if masked[k] else None,
            }
            for k in range(self.runs)
        ]

    @torch.no_grad()
    def evaluate(self, masks: Sequence[Tensor] | None = None) -> list[dict[str, float]]:
        """Test accuracy and loss of each run with the given masks, by default :meth:`Masks.limits`."""
        self.step.join()
        self.network.set_masks(self.masks.limits() if masks is None else masks)
        self.masks.shrink()
        self.network.model.eval()
        loss, correct = torch.zeros(self.runs, device=self.device), torch.zeros(self.runs, device=self.device)
        parts = list(zip(*(part.split(EVALUATION_BATCH) for part in self.test)))
        for images, labels in parts[self.ranks.rank :: self.ranks.size]:
            x = self.batches.evaluation(images, self.network.dtype)
            losses, right = self.network.losses(x, labels[:, None].expand(-1, self.runs))
            loss += losses * len(labels)
            correct += right
        self.ranks.sum_(loss)
        self.ranks.sum_(correct)
        self.network.model.train()
        count = len(self.test[1])
        return [{"accuracy": c / count, "loss": v / count} for c, v in zip(correct.tolist(), loss.tolist())]

    @torch.no_grad()
    def predictions(self) -> Tensor:
        """The class that each run sees in each test image, run by run, with the masks of the last test."""
        network = self.network
        network.model.eval()
        parts = (self.batches.evaluation(images, network.dtype) for images in self.test[0].split(EVALUATION_BATCH))
        found = [network.logits(x).argmax(-1) for x in parts]
        network.model.train()
        return torch.cat(found).T.cpu()

    def lagging(self, epochs: int) -> dict[int, int]:
        """The runs whose batch norms still know of outputs from before the sparsity rose, and how many steps ago that
        was; after so many epochs."""
        rose = {k: self.masks.rose(k, epochs) for k in range(self.runs)}
        ago = {k: (epochs - epoch) * self.batches.steps for k, epoch in rose.items() if epoch}
        return {k: steps for k, steps in ago.items() if lagging(self.network.model, steps)}

    @torch.no_grad()
    def recalibrate(self, runs: Collection[int] | None = None) -> None:
        """Batch-norm statistics of the masked networks as they are, or of some runs' alone, from augmented training
        batches; random streams stay as they were."""
        streams, buffers = [g.get_state() for g in self.data_streams], self.network.buffers()
        kept = {name: tensor.clone() for name, tensor in buffers.items()}
        self.batches.draw_epoch()
        recalibrate(_Logits(self.network), self._some_batches())
        self.ranks.average_(buffers.values())
        for k in () if runs is None else set(range(self.runs)) - set(runs):
            for name, buffer in buffers.items():
                share(buffer, k, self.runs).copy_(share(kept[name], k, self.runs))
        for generator, state in zip(self.data_streams, streams):
            generator.set_state(state)

    def _some_batches(self) -> Iterator[Tensor]:
        for _ in range(min(RECALIBRATION_BATCHES, self.batches.steps)):
            yield self.batches.next(self.network.dtype)[0]

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        self.step.join()
        return {
            "held": self.masks.remembered(),
            "sparsities": self.masks.sparsities,
            "saved": [run.saved for run in self.replicas],
            "optimizer": self.optimizer.state_dict(),
            "buffers": self.network.buffers(),
            "data_streams": [g.get_state() for g in self.data_streams],
            "mask_streams": [g.get_state() for g in self.masks.streams],
            "layer_state": self.layer_state,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place, since a captured graph goes on using the same memory."""
        self.step.join()
        self.optimizer.load_state_dict(state["optimizer"])
        for name, buffer in self.network.buffers().items():
            buffer.copy_(state["buffers"][name])
        for generators, what in ((self.data_streams, "data_streams"), (self.masks.streams, "mask_streams")):
            for generator, saved in zip(generators, state[what]):
                generator.set_state(saved.cpu())
        self.layer_state = state["layer_state"].cpu()
        for mask, saved in zip(self.masks.remembered(), state["held"]):
            mask.copy_(saved)
        self.masks.set_sparsities(state["sparsities"])
        for run, saved in zip(self.replicas, state["saved"]):
            run.keep(saved)
        self.entered = -1


class _Logits(nn.Module):
    """The logits of a network, mixed precision included, as a module."""

    def __init__(self, network: MaskedNetwork) -> None:
        super().__init__()
        self.model, self.logits = network.model, network.logits

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x)
