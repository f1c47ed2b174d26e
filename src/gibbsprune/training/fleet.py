"""A fleet: K runs of one architecture trained together, each as if it were alone.

Runs of as many epochs are fused into one network where the architecture allows it, else each has an engine (on CUDA: a
graph and a stream) of its own; engines work side by side. Each run has its own seed, data order, augmentation, method,
structure, sparsity, β and rate. Runs of fewer epochs than others wait before they start (``waits``), so that all end
together.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_whole
from ..data.arrays import Arrays
from ..errors import UserError
from ..site import Site
from ..text import first_line
from .engine import Engine
from .finished import Finished, source_of
from .fuse import CannotFuse, same_function
from .network import check_network, new_model
from .places import Place
from .ranks import ALONE, Ranks
from .spec import RunSpec

#: Recipe fields that runs fused into one network must share.
SHARED = (
    *("batch", "optimizer", "momentum", "nesterov", "beta1", "beta2", "eps"),
    *("bn_momentum", "bn_eps", "standardise", "shift", "flip"),
)

#: What a run that has not started did in an epoch, and how it did in a test.
WAITING = {"loss": math.nan, "train_accuracy": math.nan, "lr": 0.0, **dict.fromkeys(("beta", "agreement", "sparsity"))}
UNKNOWN = {"accuracy": math.nan, "loss": math.nan}


class Fleet:
    """Trains ``specs`` together; one spec is an ordinary run."""

    def __init__(
        self,
        specs: Sequence[RunSpec],
        arrays: Arrays,
        device: torch.device | str = "cpu",
        finished: Place | None = None,
        autotune: bool = False,
        ranks: Ranks = ALONE,
    ) -> None:
        """
        Args:
            specs: the runs, of one architecture, data set and precision.
            arrays: their data.
            device: where they are trained.
            finished: where runs named by others (``from``) lie, if they are not folders.
            autotune: let cuDNN choose its kernels by timing them: faster, but no longer the same from one process to
                the next in the last bits.
            ranks: the processes that share the work; all call the same methods in the same order, and all have the
                same results.
        """
        if not specs:
            raise UserError("a fleet needs at least one run")
        self.specs, self.arrays, self.device = list(specs), arrays, torch.device(device)
        self.autotune = autotune
        _check_shared(self.specs)
        if ":" in specs[0].model:
            check_network(specs[0], arrays)
        self.epoch, self.epochs = 0, max(spec.own_epochs for spec in self.specs)
        fused = len(specs) > 1 and _fusable(self.specs, arrays)
        groups: dict[int, list[int]] = {}
        for k, spec in enumerate(self.specs):
            groups.setdefault(spec.own_epochs if fused else k, []).append(k)
        sources = [source_of(spec, finished) for spec in self.specs]
        self.engines = [
            Engine([self.specs[k] for k in group], arrays, self.device, [sources[k] for k in group], autotune, ranks)
            for group in groups.values()
        ]
        self.waits = [self.epochs - spec.own_epochs for spec in self.specs]
        self.home = {
            k: (engine, i) for engine, group in zip(self.engines, groups.values()) for i, k in enumerate(group)
        }
        self.steps_per_epoch = self.engines[0].batches.steps
        self.final: list[dict[str, Tensor]] | None = None
        self.predictions: list[Tensor] = []  # after finish: the class that each run sees in each test image

    def train_epoch(self, progress: Callable[[int, int], None] | None = None) -> list[dict[str, Any]]:
        """Trains one epoch and says, per run: loss, train_accuracy, lr, beta, agreement, sparsity."""
        self.final = None
        active = self._active(self.epoch)
        for engine in active:
            engine.begin_epoch(self.epoch - self._wait(engine))
        for step in range(self.steps_per_epoch):
            for engine in active:
                engine.advance()
            if progress is not None:
                progress(step + 1, self.steps_per_epoch)
        self.epoch += 1
        ends = [engine.end_epoch() if engine in active else engine.runs * [WAITING] for engine in self.engines]
        return self._in_order(ends)

    def _wait(self, engine: Engine) -> int:
        """The epochs after which an engine starts."""
        return self.epochs - engine.specs[0].own_epochs

    def _active(self, epoch: int) -> list[Engine]:
        return [engine for engine in self.engines if epoch >= self._wait(engine)]

    def starts_engine(self) -> bool:
        """Whether an engine has its first step in the next epoch, after the others."""
        return self.epoch > 0 and any(self._wait(engine) == self.epoch for engine in self.engines)

    def evaluate(self) -> list[dict[str, float]]:
        """Per run: test accuracy and loss with the converged masks; of a run that has not started, not a number."""
        active = self._active(max(0, self.epoch - 1))
        found = [engine.evaluate() if engine in active else engine.runs * [UNKNOWN] for engine in self.engines]
        return self._in_order(found)

    def finish(self) -> list[dict[str, Any]]:
        """Draws the final masks and says, per run, what came out.

        ``accuracy`` is with the final mask, x_cvg or one more draw from the law (the recipe's ``final``);
        ``accuracy_converged`` with x_cvg; ``accuracy_recalibrated`` with the final mask after re-estimating batch-norm
        statistics on training data. ``agreement`` is that of one more draw with x_cvg. Where the sparsity rose too few
        steps before the end for batch norms to follow, the statistics that are estimated anew stay, and ``lagged``
        says how many steps that were, and the accuracy with those that training left.
        """
        finals = [self._finish_engine(engine) for engine in self.engines]
        self.final = self._in_order([masks for _, masks, _ in finals])
        self.predictions = self._in_order([seen for _, _, seen in finals])
        return self._in_order([results for results, _, _ in finals])

    def _finish_engine(self, engine: Engine) -> tuple[list[dict[str, Any]], list[dict[str, Tensor]], list[Tensor]]:
        if self.epoch == self.epochs:
            engine.enter(engine.specs[0].own_epochs)
        converged, drawn = engine.masks.limits(), engine.masks.drawn()
        final = engine.masks.final(converged, drawn)
        agreement = engine.masks.agreement(drawn, converged)
        lagged: dict[int, dict[str, Any]] = {}
        if ago := engine.lagging(self.epoch - self._wait(engine)):
            as_trained = engine.evaluate(final)
            lagged = {k: {"lagged": {"steps": n, "accuracy": as_trained[k]["accuracy"]}} for k, n in ago.items()}
            engine.recalibrate(ago)
        at_limit, plain = engine.evaluate(converged), engine.evaluate(final)
        seen = engine.predictions().to(torch.uint8 if self.arrays.classes <= 256 else torch.int32)
        kept = {name: tensor.clone() for name, tensor in engine.network.buffers().items()}
        engine.recalibrate()
        again = engine.evaluate(final)
        for name, buffer in engine.network.buffers().items():
            buffer.copy_(kept[name])
        masks: list[dict[str, Tensor]] = [{} for _ in range(engine.runs)]
        for (name, k, _), mask in zip(engine.network.sites, final):
            masks[k][name] = mask.clone()
        results = [
            {
                "accuracy": plain[k]["accuracy"],
                "accuracy_converged": at_limit[k]["accuracy"],
                "accuracy_recalibrated": again[k]["accuracy"],
                "loss": plain[k]["loss"],
                "agreement": agreement[k],
                **_sizes(engine, k, masks[k]),
                **lagged.get(k, {}),
            }
            for k in range(engine.runs)
        ]
        return results, masks, list(seen)

    def model(self, k: int) -> nn.Module:
        """Run k as an ordinary model with its final masks burnt in (before :meth:`finish`: the converged ones)."""
        engine, i = self.home[k]
        engine.masks.shrink()
        if self.final is not None:
            return engine.network.extract(i, self.arrays, self.final[k])
        masks = {name: mask for (name, run, _), mask in zip(engine.network.sites, engine.masks.limits()) if run == i}
        return engine.network.extract(i, self.arrays, masks)

    def masks(self, k: int) -> dict[str, Tensor]:
        """Run k's current masks by layer name."""
        engine, i = self.home[k]
        return {
            name: view.clone()
            for (name, run, _), view in zip(engine.network.sites, engine.network.mask_views())
            if run == i
        }

    def finished(self, k: int) -> Finished:
        """Run k as others may start from it."""
        engine, i = self.home[k]
        masks = self.final[k] if self.final is not None else {}
        kept = {name: value.cpu() for name, value in engine.replicas[i].saved.items()}
        return Finished(self.specs[k], self.model(k).state_dict(), masks, kept)

    def plan(self) -> list[dict[str, Any]]:
        """What will be pruned: the layers of every run, those of a run that prunes nothing left out."""
        rows = []
        for spec, (engine, i) in zip(self.specs, self.home.values()):
            for name, site in engine.network.names[i].items():
                kind = engine.network.layers[name].kind.removeprefix("Fused")
                kept = round((1 - site.removed) * math.prod(site.shape))
                rows.append({"run": spec.seed, "kind": kind, **_layer(name, site, spec.sparsity, kept)})
        return rows

    def trial_steps(self, count: int) -> float:
        """Seconds per step, from steps that are not kept. The first ones, which compile, are not counted."""
        saved, final = copy.deepcopy(self.state_dict()), self.final
        masks = [copy.deepcopy(engine.network.masks) for engine in self.engines]
        for engine in self.engines:
            engine.begin_epoch(max(0, self.epoch - self._wait(engine)))
        warmup = 5 if self.device.type == "cuda" else 0
        began = time.perf_counter()
        for step in range(warmup + count):
            if step == warmup:
                self._synchronise()
                began = time.perf_counter()
            for engine in self.engines:
                engine.advance()
        self._synchronise()
        seconds = (time.perf_counter() - began) / max(1, count)
        self.load_state_dict(saved)
        self.final = final
        for engine, before in zip(self.engines, masks):
            for name, mask in before.items():
                engine.network.masks[name].copy_(mask)
        return seconds

    @property
    def how(self) -> dict[str, Any]:
        """What of the way of computing may change the last digits: precision, compilation, chosen kernels."""
        first = self.engines[0]
        return {
            "precision": str(first.network.dtype).removeprefix("torch."),
            "compiled": first.compiled,
            "autotune": self.autotune,
        }

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed fleet needs: weights, optimisers, batch-norm statistics, every random stream."""
        return {"version": 2, "epoch": self.epoch, "engines": [engine.state_dict() for engine in self.engines]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not _alike(self.state_dict(), state) or state["version"] != 2:
            raise UserError("the saved state is of other runs, another network or another kind of device")
        self.final, self.epoch = None, check_whole("the saved epoch", state["epoch"], 0)
        try:
            for engine, saved in zip(self.engines, state["engines"]):
                engine.load_state_dict(saved)
        except (RuntimeError, TypeError) as error:  # as of a random stream whose bytes are none
            raise UserError(f"the saved state is damaged: {first_line(error)}") from None
        for engine in self.engines:
            engine.set_schedules(max(0, self.epoch - 1 - self._wait(engine)))

    def _in_order(self, per_engine: list[list[Any]]) -> list[Any]:
        """One list over all runs, in the order of the specs."""
        position = {id(engine): n for n, engine in enumerate(self.engines)}
        return [per_engine[position[id(engine)]][i] for engine, i in (self.home[k] for k in range(len(self.specs)))]


def _sizes(engine: Engine, k: int, masks: dict[str, Tensor]) -> dict[str, Any]:
    total = engine.network.size()
    layers: list[dict[str, Any]] = []
    shares = engine.masks.shares(k)
    for name, site in engine.network.names[k].items():
        target = site.at(shares[name]).removed if shares else engine.specs[k].sparsity
        layers.append(_layer(name, site, target, int(masks[name].sum())))
    prunable, left = sum(layer["weights"] for layer in layers), sum(layer["kept"] for layer in layers)
    return {
        "sparsity": 1 - left / prunable if prunable else 0.0,
        "parameters": total,
        "nonzero": total - prunable + left,
        "layers": layers,
    }


def _layer(name: str, site: Site, target: float, kept: int) -> dict[str, Any]:
    """What is told of a pruned layer."""
    weights = math.prod(site.shape)
    told = {"name": name, "weights": weights, "kept": kept, "sparsity": 1 - kept / weights}
    return {**told, "neighbourhoods": site.count, "target": target}


def _check_shared(specs: Sequence[RunSpec]) -> None:
    first = specs[0]
    for spec in specs[1:]:
        for mine, other, names, of in (
            (first, spec, ("data", "model", "precision"), ""),
            (first.recipe, spec.recipe, SHARED, "the recipe's "),
        ):
            for what in names:
                if (one := getattr(mine, what)) != (two := getattr(other, what)):
                    raise UserError(f"the runs of a fleet must share {of}{what}: {one!r} and {two!r} differ")


def _fusable(specs: Sequence[RunSpec], arrays: Arrays) -> bool:
    models = [new_model(specs[0], arrays), new_model(specs[0].replace(seed=specs[0].seed + 1), arrays)]
    example = torch.zeros(4, arrays.channels, *arrays.size)
    try:
        return same_function(models, example)
    except CannotFuse:
        return False


def _alike(own: Any, other: Any) -> bool:
    """Whether a saved state has the same keys, shapes and kinds of values."""
    if isinstance(own, Tensor):
        return isinstance(other, Tensor) and own.shape == other.shape and own.dtype == other.dtype
    if isinstance(own, dict):
        return isinstance(other, dict) and own.keys() == other.keys() and all(_alike(own[k], other[k]) for k in own)
    if isinstance(own, list):
        return isinstance(other, list) and len(own) == len(other) and all(map(_alike, own, other))
    numbers = isinstance(own, (int, float)) and isinstance(other, (int, float))
    return own is None or numbers or type(own) is type(other)
