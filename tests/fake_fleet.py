"""A stand-in for ``Fleet`` that keeps its contract at no cost: drifting weights, masks from their law."""

import math

import torch
from torch import nn

from gibbsprune.training.finished import Finished

LAYER, SHAPE = "layer1.0.conv1", (8, 8, 3, 3)


class FakeFleet:
    steps_per_epoch = 3
    on_step = None  # called with (fleet, step) within an epoch
    diverges_at = None  # the epoch whose loss is NaN

    def __init__(self, specs, arrays, device="cpu", autotune=False, ranks=None):
        self.specs, self.arrays, self.device = list(specs), arrays, torch.device(device)
        self.waits = [0] * len(specs)
        self.how = {"precision": "float32", "compiled": False, "autotune": autotune}
        self.epoch = 0
        self.epochs = specs[0].total_epochs
        self.generators = [torch.Generator().manual_seed(spec.seed) for spec in specs]
        self.weights = [0.1 * torch.randn(SHAPE, generator=g) for g in self.generators]
        self.drawn = [torch.ones(SHAPE, dtype=torch.bool) for _ in specs]
        self.final = None

    def starts_engine(self):
        return False

    def converged(self, k):
        squares = self.weights[k].square()
        return squares > squares.flatten().quantile(self.specs[k].sparsity)

    def beta(self):
        return 0.7 * (1e4 / 0.7) ** min(1.0, self.epoch / max(1, self.specs[0].recipe.anneal_epochs))

    def train_epoch(self, progress=None):
        for step in range(self.steps_per_epoch):
            if self.on_step is not None:
                type(self).on_step(self, step)
            for k, generator in enumerate(self.generators):
                self.weights[k] += 0.01 * torch.randn(SHAPE, generator=generator)
                squares = self.weights[k].square()
                field = squares.flatten().quantile(self.specs[k].sparsity) - squares
                keep = torch.sigmoid(-2 * self.beta() * field)
                self.drawn[k] = torch.rand(SHAPE, generator=generator) < keep
            if progress is not None:
                progress(step + 1, self.steps_per_epoch)
        records = []
        for k, spec in enumerate(self.specs):
            dense = spec.method == "dense"
            loss = math.nan if self.epoch == self.diverges_at else float(self.weights[k].square().sum())
            agreement = float((self.drawn[k] == self.converged(k)).float().mean())
            records.append(
                {
                    "loss": loss,
                    "train_accuracy": 1 - math.exp(-(self.epoch + 1) / 5),
                    "beta": None if dense else self.beta(),
                    "lr": 0.001,
                    "agreement": None if dense else agreement,
                }
            )
        self.epoch += 1
        return records

    def evaluate(self):
        self.drawn = [self.converged(k) for k in range(len(self.specs))]  # as the real one leaves it
        return [{"accuracy": 1 - math.exp(-self.epoch / 4), "loss": math.exp(-self.epoch / 4)} for _ in self.specs]

    def finish(self):
        self.final = [self.masks(k) for k in range(len(self.specs))]
        return [
            {
                "accuracy": 0.97 + 0.01 * k,
                "accuracy_converged": 0.971,
                "accuracy_recalibrated": 0.972,
                "loss": 0.1,
                "agreement": 0.999,
                "sparsity": 0.0 if spec.method == "dense" else spec.sparsity,
                "parameters": 600,
                "nonzero": 82,
                "layers": [] if spec.method == "dense" else [self._layer(spec)],
            }
            for k, spec in enumerate(self.specs)
        ]

    def _layer(self, spec):
        kept = int(self.converged(0).sum())
        return {
            "name": LAYER,
            "weights": 576,
            "kept": kept,
            "sparsity": 1 - kept / 576,
            "neighbourhoods": 576,
            "target": spec.sparsity,
        }

    def plan(self):
        return (
            []
            if self.specs[0].method == "dense"
            else [{**self._layer(self.specs[0]), "run": self.specs[0].seed, "kind": "Conv2d"}]
        )

    def model(self, k):
        net = nn.Conv2d(8, 8, 3, bias=False)
        net.weight.data = self.weights[k] * self.drawn[k]
        return net

    def finished(self, k):
        return Finished(self.specs[k], self.model(k).state_dict(), self.final[k] if self.final else {})

    def masks(self, k):
        return {} if self.specs[k].method == "dense" else {LAYER: self.drawn[k]}

    def trial_steps(self, n):
        return 0.01

    def state_dict(self):
        return {
            "epoch": self.epoch,
            "weights": [weight.clone() for weight in self.weights],
            "drawn": [mask.clone() for mask in self.drawn],
            "generators": [generator.get_state() for generator in self.generators],
        }

    def load_state_dict(self, state):
        self.epoch, self.weights, self.drawn = state["epoch"], state["weights"], state["drawn"]
        for generator, saved in zip(self.generators, state["generators"]):
            generator.set_state(saved)
