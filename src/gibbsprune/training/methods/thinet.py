"""ThiNet (Luo et al. 2017): input channels go whose removal changes a convolution's output least.

On sampled training activations the output of a convolution at one place is a sum Σ_c a_c over its input channels.
Greedily, the channel is removed whose a_c keeps the sum over all removed ones smallest in the mean square; then the
channels that stay are rescaled by least squares. Layers are pruned one after another, each on the activations of the
network as it is by then; fine-tuning follows, or goes on in between.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...checks import number, whole
from ...errors import UserError
from ...structures import Filter
from ...threshold import kept_count
from .after_training import SOURCE, TUNE_RATE, AfterTraining
from .method import Phase, Setting, tuning

if TYPE_CHECKING:
    from ...weights import Layer
    from ..replica import Replica
    from ..spec import RunSpec

PLACES = 10  # sampled per image


def _epochs(spec: RunSpec) -> int:
    return max(1, round(0.4 * spec.recipe.epochs))


class ThiNet(AfterTraining):
    """Neighbourhoods are input channels: removing one is removing a filter of the layer before."""

    name = "thinet"
    about = "train, remove the input channels that change each layer's output least, fine-tune (Luo et al.)"
    structures = ("filter",)
    layers = (nn.Conv2d,)
    settings = {
        "tune_epochs": Setting(whole(0), "epochs of fine-tuning (0.4 of training)", _epochs, "n"),
        "tune_rate": TUNE_RATE,
        "spread": Setting(
            number(0, 1), "thinet: share of fine-tuning in which layers are pruned one by one (0)", 0.0, "p"
        ),
        "images": Setting(whole(1), "thinet: training images that activations are sampled from (256)", 256, "i"),
        "from": SOURCE,
    }

    def tunes(self, spec: RunSpec) -> list[Phase]:
        return [tuning(spec, spec.setting("tune_epochs"))]

    def structure_of(self, spec: RunSpec, layer: Layer) -> Filter:
        if not isinstance(layer.module, nn.Conv2d) or layer.module.groups > 1:
            raise UserError(f"method 'thinet' prunes plain two-dimensional convolutions, not {layer.module}")
        return Filter(transposed=True)  # the second dimension of the weight: input channels

    def prune(self, run: Replica, step: int) -> None:
        self.prune_layers(run, 0)

    def begin_epoch(self, run: Replica, epoch: int) -> None:
        if (tuned := epoch - run.spec.phases[0].epochs) > 0:
            self.prune_layers(run, tuned)

    def prune_layers(self, run: Replica, tuned: int) -> None:
        """Those whose turn it is after so many epochs of fine-tuning."""
        due = turns(len(run.sites), run.spec.setting("spread") * run.spec.setting("tune_epochs"))
        names = [name for name, turn in zip(run.sites, due) if turn == tuned]
        if not names:
            return
        generator = run.stream("masks", *([tuned] if tuned else []))
        model, images = run.model(), run.images(run.spec.setting("images"), generator)
        for name in names:
            site, layer = run.sites[name], model.get_submodule(name)
            assert isinstance(layer, nn.Conv2d)
            parts = contributions(layer, inputs_of(model, layer, images), generator)
            kept = choose(parts, kept_count(site.sparsity, site.count))
            scale = torch.zeros(site.count, dtype=parts.dtype, device=parts.device)
            scale[kept] = rescale(parts, kept)
            with torch.no_grad():
                layer.weight *= scale.to(layer.weight.dtype)[:, None, None]
                run.weights[name].copy_(layer.weight)
            run.hold(name, kept[:, None, None].expand(site.shape))


def turns(layers: int, epochs: float) -> list[int]:
    """After how many epochs each layer is pruned, evenly over ``epochs``, the first at once.

    >>> turns(4, 2), turns(3, 6), turns(3, 0)
    ([0, 0, 1, 1], [0, 2, 4], [0, 0, 0])
    """
    return [math.floor(i * epochs / layers) for i in range(layers)]


@torch.no_grad()
def inputs_of(model: nn.Module, layer: nn.Module, images: Tensor) -> Tensor:
    """What the layer sees when the model looks at the images."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        model(images)
    finally:
        handle.remove()
    return seen[0]


@torch.no_grad()
def contributions(layer: nn.Conv2d, x: Tensor, generator: torch.Generator) -> Tensor:
    """a_c of every input channel c at sampled places and filters of a convolution's output, (samples, C)."""
    padding, weight = layer.padding, layer.weight.flatten(2)
    if isinstance(padding, str) or layer.padding_mode != "zeros":
        raise UserError(f"method 'thinet' needs zero padding given as numbers, not {layer}")
    patches = F.unfold(x, layer.kernel_size, layer.dilation, padding, layer.stride)  # (N, C · taps, places)
    patches = patches.unflatten(1, (x.shape[1], -1)).permute(0, 3, 1, 2)  # (N, places, C, taps)
    images = torch.arange(len(x)).repeat_interleave(PLACES)
    places = torch.randint(patches.shape[1], images.shape, generator=generator)
    filters = torch.randint(len(weight), images.shape, generator=generator)
    at = patches[images.to(x.device), places.to(x.device)]
    return (at.double() * weight[filters.to(x.device)].double()).sum(2)


def choose(parts: Tensor, keep: int) -> Tensor:
    """Which channels stay: the others were removed one by one, each the one that leaves Σ(Σ_removed a)² smallest."""
    gram = parts.T @ parts
    removed = torch.zeros(len(gram), dtype=torch.bool, device=gram.device)
    for _ in range(len(gram) - keep):
        cost = gram.diagonal() + 2 * gram[:, removed].sum(1)  # what adding a channel adds to the square of the sum
        removed[cost.masked_fill(removed, torch.inf).argmin()] = True
    return ~removed


def rescale(parts: Tensor, kept: Tensor) -> Tensor:
    """The least-squares factors of the kept channels, by which their sum comes closest to the whole output."""
    used = parts[:, kept]
    return torch.linalg.pinv(used.T @ used, hermitian=True) @ (used.T @ parts.sum(1))
