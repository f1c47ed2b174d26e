"""The network of one run, or of many fused ones, with a mask on every layer that one of them prunes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..data.arrays import Arrays
from ..masking import Masked, attach
from ..weights import Layer, layer_named
from .fuse import fuse, share
from .network import new_model, takes_channels_last
from .sites import run_sites
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
        gradient = "masked" if all(s.how.gradient(s) == "masked" for s in specs) else "straight-through"
        for name in dict.fromkeys(name for sites in self.names for name in sites):
            layer = self.layers[name] = layer_named(self.model, name)
            attach(layer.module, masked := Masked(layer.weight, gradient), layer.parameter)
            self.masks[name] = masked.mask
            if masked.extra is not None:
                self.extras[name] = masked.extra
        precision = specs[0].precision
        low = precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
        self.dtype = torch.bfloat16 if low else torch.float32

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

    def stored(self, name: str) -> nn.Parameter:
        """The weight of a pruned layer, of all runs."""
        return self.layers[name].stored

    def weights(self) -> list[Tensor]:
        """The stored weight of every site, a view of the fused one."""
        stored = {name: self.stored(name).detach() for name in self.masks}
        return [share(stored[name], k, self.runs) for name, k, _ in self.sites]

    def mask_views(self) -> list[Tensor]:
        """The mask of every site, a view of the fused one."""
        return [share(self.masks[name], k, self.runs) for name, k, _ in self.sites]

    @torch.no_grad()
    def set_masks(self, masks: Sequence[Tensor]) -> None:
        if self.sites:
            torch._foreach_copy_(self.mask_views(), list(masks))

    def buffers(self) -> dict[str, Tensor]:
        """Batch-norm statistics; masks are drawn anew at every step, or held."""
        masks = {id(buffer) for buffer in (*self.masks.values(), *self.extras.values())}
        return {name: buffer for name, buffer in self.model.named_buffers() if id(buffer) not in masks}

    def run_state(self, k: int) -> dict[str, Tensor]:
        """Run k's parameters and buffers under the names of the ordinary network, as views."""
        state = self.model.state_dict(keep_vars=True)
        held = {id(mask) for mask in self.masks.values()}
        masks = {name for name, tensor in state.items() if id(tensor) in held}
        under = [name.removesuffix("0.mask") for name in masks]  # …parametrizations.weight.
        plain = {f"{prefix}original": prefix.replace("parametrizations.", "").removesuffix(".") for prefix in under}
        return {
            plain.get(name, name): share(tensor.detach(), k, self.runs)
            for name, tensor in state.items()
            if name not in masks
        }

    def extract(self, k: int, arrays: Arrays, masks: dict[str, Tensor]) -> nn.Module:
        """Run k as an ordinary model on the CPU, with the given masks burnt in."""
        model = new_model(self.specs[k], arrays)
        model.load_state_dict(self.run_state(k))
        with torch.no_grad():  # in the module, which may be known by several names
            for name, mask in masks.items():
                layer_named(model, name).stored.mul_(mask.cpu())
        return model.eval()


def _weights(module: nn.Module) -> list[nn.Parameter]:
    """The weight of a convolution, stored under a mask or not; its bias is not decayed."""
    return [p for name, p in module.named_parameters() if name.rpartition(".")[2] in ("weight", "original")]
