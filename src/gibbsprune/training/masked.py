"""The network of one run, or of many fused ones, with a mask on every layer that one of them prunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from .. import rising
from ..attaching import attach
from ..data.arrays import Arrays
from ..importance import Score
from ..masking import Masked
from ..structures import as_structure
from ..survivors import SURVIVORS
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
        self.masked: dict[str, Masked] = {}
        self.masks: dict[str, Tensor] = {}  # of these
        self.slopes: dict[str, Tensor] = {}  # of the gradient, where a run wants another one than the mask
        self.left: dict[str, Tensor] = {}  # of survivors, where a run shrinks them
        self.levels: dict[str, nn.Parameter] = {}  # of soft thresholds, one per run, where a run learns them
        soft = any(s.how.soft_threshold(s) for s in specs)
        self.importance = [spec.how.importance(spec) for spec in specs]
        self.scores: dict[tuple[str, str], Score] = {}  # by importance and layer, of all runs, where one wants it
        gradient = "masked" if all(s.how.gradient(s) == "masked" for s in specs) else "straight-through"
        asked = [spec.how.survivors(spec) for spec in specs]
        self.survivors = [
            rising.survivors(model, as_structure(spec.structure)) if kind == "auto" else kind
            for kind, model, spec in zip(asked, models, specs)
        ]
        survivors = max(self.survivors, key=SURVIVORS.index)  # whose layers have all that the others' want
        self.normed = {name for name, _, site in self.sites if site.normed}
        for name in dict.fromkeys(name for sites in self.names for name in sites):
            layer = self.layers[name] = layer_named(self.model, name)
            kept = survivors, name in self.normed
            masked = self._soft(name, gradient, *kept) if soft else Masked(layer.weight, gradient, *kept)
            attach(layer.module, masked, layer.parameter)
            self.masked[name], self.masks[name] = masked, masked.mask
            if masked.slope is not None:
                self.slopes[name] = masked.slope
            if masked.left is not None:
                self.left[name] = masked.left
            masked.scores = nn.ModuleDict()  # a checkpoint holds them as it does batch-norm statistics
            for kind in sorted(set(self.importance) - {"magnitude"}):
                score = self.scores[kind, name] = Score(kind, layer.module, layer.stored, masked.seeing)
                masked.scores[kind] = score
        precision = specs[0].precision
        low = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
        self.dtype = torch.bfloat16 if low else torch.float32

    def _soft(self, name: str, gradient: str, survivors: str, normed: bool) -> Soft:
        """A layer of which some runs learn a soft threshold."""
        found = [s.how.soft_threshold(s) if name in own else None for s, own in zip(self.specs, self.names)]
        starts = [one[0] if one else OFF for one in found]
        masked = Soft(self.layers[name].weight, gradient, torch.tensor(starts), survivors, normed)
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
        """What is trained, and whether it is the weight of a convolution; its bias is not."""
        convolutions = {id(p) for m in self.model.modules() if isinstance(m, _ConvNd) for p in _weights(m)}
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return parameters, [id(p) in convolutions for p in parameters]

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

    def judged(self) -> list[Tensor]:
        """What the laws of the sites are of: their weights, or the scores in their place."""
        values = self.weights()
        found = {key: score(self.stored(key[1])) for key, score in self.scores.items()}
        for i, (name, k, _) in enumerate(self.sites) if found else ():
            if (key := (self.importance[k], name)) in found:
                values[i] = share(found[key], k, self.runs)
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
        parts = [part for part in self.model.modules() if isinstance(part, Masked)]
        masks = {id(buffer) for part in parts for buffer in part.buffers(recurse=False)}
        return {name: buffer for name, buffer in self.model.named_buffers() if id(buffer) not in masks}

    def run_state(self, k: int) -> dict[str, Tensor]:
        """Run k's parameters and buffers under the names of the ordinary network, as views."""
        every = self.model.named_modules(remove_duplicate=False)
        ours = tuple(f"{name}." for name, part in every if isinstance(part, Masked))
        stored = {id(layer.stored) for layer in self.layers.values()}  # as ….parametrizations.weight.original
        return {
            name.replace("parametrizations.", "").removesuffix(".original") if id(tensor) in stored else name: share(
                tensor.detach(), k, self.runs
            )
            for name, tensor in self.model.state_dict(keep_vars=True).items()
            if not name.startswith(ours)
        }

    def extract(self, k: int, arrays: Arrays, masks: dict[str, Tensor]) -> nn.Module:
        """Run k as an ordinary model on the CPU, with the given masks burnt in, and what is left of survivors."""
        model = new_model(self.specs[k], arrays)
        model.load_state_dict(self.run_state(k))
        with torch.no_grad():  # in the module, which may be known by several names
            for name, mask in masks.items():
                weight = layer_named(model, name).stored
                if name in self.levels:
                    weight.copy_(softened(weight, self.levels[name][k].cpu()))
                weight.mul_(mask.cpu())
                if name in self.left:
                    weight.mul_(share(self.left[name], k, self.runs).cpu())
        return model.eval()


def _weights(module: nn.Module) -> list[nn.Parameter]:
    """The weight of a convolution, stored under a mask or not; its bias is not decayed."""
    return [p for name, p in module.named_parameters() if name.rpartition(".")[2] in ("weight", "original")]
