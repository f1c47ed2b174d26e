"""The network of one run, or of many fused ones, with a mask on every layer that one of them prunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..data.arrays import Arrays
from ..importance import add_gradient, add_inputs, by_inputs, channel_axis
from ..masking import Masked, attach
from ..weights import Layer, layer_named
from .fuse import fuse, share
from .network import new_model, takes_channels_last
from .sites import run_sites
from .soft import OFF, Soft, softened
from .spec import RunSpec


class MaskedNetwork:
    """``names`` are the sites of each run by layer, ``sites`` all of them as (layer, run, site)."""

    def __init__(self, specs: Sequence[RunSpec], arrays: Arrays, device: torch.device) -> None:
        models = [new_model(spec, arrays) for spec in specs]
        self.specs, self.runs, self.device = list(specs), len(specs), device
        self.names = [run_sites(spec, model) for spec, model in zip(specs, models)]
        self.sites = [(name, k, replace(s, run=k)) for k, sites in enumerate(self.names) for name, s in sites.items()]
        self.model = fuse(models)
        self.channels_last = takes_channels_last(self.model, self.runs * arrays.channels, arrays.size)
        self.model.to(device)
        self.layers: dict[str, Layer] = {}
        self.masks: dict[str, Tensor] = {}
        self.extras: dict[str, Tensor] = {}  # of the gradient beyond the mask, where a run wants one
        self.lost: dict[str, Tensor] = {}  # by survivors, where a run shrinks them
        self.levels: dict[str, nn.Parameter] = {}  # of soft thresholds, one per run, where a run learns them
        soft = any(s.how.soft_threshold(s) for s in specs)
        self.importance = [spec.how.importance(spec) for spec in specs]
        self.scores: dict[tuple[str, str], Tensor] = {}  # by importance and layer, of all runs, where one wants it
        gradient = "masked" if all(s.how.gradient(s) == "masked" for s in specs) else "straight-through"
        survivors = "whole" if all(s.how.survivors(s) == "whole" for s in specs) else "shrunk"
        for name in dict.fromkeys(name for sites in self.names for name in sites):
            layer = self.layers[name] = layer_named(self.model, name)
            weight = layer.weight
            masked = self._soft(name, weight, gradient, survivors) if soft else Masked(weight, gradient, survivors)
            attach(layer.module, masked, layer.parameter)
            self.masks[name] = masked.mask
            if masked.extra is not None:
                self.extras[name] = masked.extra
            if masked.lost is not None:
                self.lost[name] = masked.lost
            for kind in dict.fromkeys(self.importance):
                if kind != "magnitude":
                    self._watch(name, kind, masked)
        precision = specs[0].precision
        low = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
        self.dtype = torch.bfloat16 if low else torch.float32

    def _soft(self, name: str, weight: Tensor, gradient: str, survivors: str) -> Soft:
        """A layer of which some runs learn a soft threshold."""
        starts = [found[0] if (found := s.how.soft_threshold(s)) and name in own else OFF
                  for s, own in zip(self.specs, self.names)]  # fmt: skip
        masked = Soft(weight, gradient, torch.tensor(starts), survivors)
        self.levels[name] = masked.level
        return masked

    def logits(self, x: Tensor) -> Tensor:
        """(B, K, classes) of images (B, K·C, H, W), in mixed precision."""
        if not self.channels_last:
            x = x.clone(memory_format=torch.contiguous_format)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            return self.model(x).float().unflatten(1, (self.runs, -1))

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy and number of right answers of each run."""
        logits = self.logits(x)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        return losses.mean(0), (logits.argmax(-1) == y).sum(0)

    def parameters(self) -> tuple[list[nn.Parameter], list[bool]]:
        """What is trained, and whether it is decayed: convolutions' weights, or all; no bias of a convolution."""
        everywhere = self.specs[0].recipe.decay_on == "all"
        convolutions = {id(p) for m in self.model.modules() if isinstance(m, _ConvNd) for p in _weights(m)}
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return parameters, [everywhere or id(p) in convolutions for p in parameters]

    def size(self) -> int:
        """The number of parameters of one run, without what its method learns beside them."""
        return sum(p.numel() for p in self.model.parameters()) // self.runs - len(self.levels)

    def stored(self, name: str) -> nn.Parameter:
        """The weight of a pruned layer, of all runs."""
        return self.layers[name].stored

    def weights(self) -> list[Tensor]:
        """The stored weight of every site, a view of the fused one."""
        stored = {name: self.stored(name).detach() for name in self.masks}
        return [share(stored[name], k, self.runs) for name, k, _ in self.sites]

    def _watch(self, name: str, kind: str, masked: Masked) -> None:
        """Room for the scores of a layer; a checkpoint holds it as it does batch-norm statistics."""
        module = self.layers[name].module
        inputs = next(
            site.shape[0 if site.structure.transposed else 1] for other, _, site in self.sites if other == name
        )
        count = inputs * int(getattr(module, "groups", 1)) if hasattr(module, "groups") else inputs * self.runs
        shape = self.stored(name).shape if kind == "taylor" else (count,)
        masked.register_buffer(kind, torch.zeros(shape, device=self.device), persistent=False)
        self.scores[kind, name] = value = masked.get_buffer(kind)
        if kind == "wanda":

            def look(layer: nn.Module, given: tuple[Tensor, ...], axis: int = channel_axis(module)) -> None:
                if layer.training:
                    add_inputs(value, given[0], axis)

            module.register_forward_pre_hook(look)

    @torch.no_grad()
    def observe(self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], through: Tensor) -> None:
        """Adds a step's gradients to the scores; in the runs ``through`` masked weights have one, too."""
        found = {id(p): g for p, g in zip(parameters, gradients)}
        for (kind, name), score in self.scores.items():
            if kind == "taylor":
                stored, mask = self.stored(name), self.masks[name].view(self.runs, -1)
                add_gradient(score, stored, found[id(stored)], (mask | through).view_as(score))

    def judged(self) -> list[Tensor]:
        """What the laws of the sites are of: their weights, or the scores in their place."""
        values = self.weights()
        for i, (name, k, _) in enumerate(self.sites) if self.scores else ():
            kind, module = self.importance[k], self.layers[name].module
            if kind == "taylor":
                values[i] = share(self.scores[kind, name], k, self.runs)
            elif kind == "wanda":
                groups = int(getattr(module, "groups", self.runs)) // self.runs
                norms = share(self.scores[kind, name], k, self.runs)
                values[i] = by_inputs(values[i], norms, groups, bool(getattr(module, "transposed", False)))
        return values

    def mask_views(self) -> list[Tensor]:
        """The mask of every site, a view of the fused one."""
        return [share(self.masks[name], k, self.runs) for name, k, _ in self.sites]

    @torch.no_grad()
    def set_masks(self, masks: Sequence[Tensor]) -> None:
        if self.sites:
            torch._foreach_copy_(self.mask_views(), list(masks))

    def buffers(self) -> dict[str, Tensor]:
        """Batch-norm statistics and scores; masks are drawn anew at every step, or held."""
        masks = {id(buffer) for part in self.model.modules() if isinstance(part, Masked) for buffer in part.buffers()}
        masks -= {id(score) for score in self.scores.values()}
        return {name: buffer for name, buffer in self.model.named_buffers() if id(buffer) not in masks}

    def run_state(self, k: int) -> dict[str, Tensor]:
        """Run k's parameters and buffers under the names of the ordinary network, as views."""
        state = self.model.state_dict(keep_vars=True)
        held = {id(mask) for mask in self.masks.values()}
        masks = {name for name, tensor in state.items() if id(tensor) in held}
        levels = set(map(id, self.levels.values()))
        under = [name.removesuffix("0.mask") for name in masks]  # …parametrizations.weight.
        plain = {f"{prefix}original": prefix.replace("parametrizations.", "").removesuffix(".") for prefix in under}
        return {
            plain.get(name, name): share(tensor.detach(), k, self.runs)
            for name, tensor in state.items()
            if name not in masks and id(tensor) not in levels
        }

    def extract(self, k: int, arrays: Arrays, masks: dict[str, Tensor]) -> nn.Module:
        """Run k as an ordinary model on the CPU, with the given masks burnt in, and what survivors lose."""
        model = new_model(self.specs[k], arrays)
        model.load_state_dict(self.run_state(k))
        with torch.no_grad():  # in the module, which may be known by several names
            for name, mask in masks.items():
                weight = layer_named(model, name).stored
                if name in self.levels:
                    weight.copy_(softened(weight, self.levels[name][k].cpu()))
                weight.mul_(mask.cpu())
                if name in self.lost:
                    weight.mul_(1 - share(self.lost[name], k, self.runs).cpu())
        return model.eval()


def _weights(module: nn.Module) -> list[nn.Parameter]:
    """The weight of a convolution, stored under a mask or not; its bias is not decayed."""
    return [p for name, p in module.named_parameters() if name.rpartition(".")[2] in ("weight", "original")]
