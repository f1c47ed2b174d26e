"""Which masks the layers have, as their runs' methods say: drawn at every step, held, and with which they end."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from ..filling import Filling
from ..lanes import Lanes
from ..law import Law
from ..samplers import stream
from ..targets import Targets, site_shares
from .fuse import share
from .masked import MaskedNetwork
from .methods import MaskRule, Rising
from .spec import RunSpec


class Masks:
    """``held`` are the masks that methods have given to sites; ``betas`` the runs' levels (β, α) on the device."""

    def __init__(self, specs: Sequence[RunSpec], network: MaskedNetwork, device: torch.device) -> None:
        self.network, self.device, self.lanes = network, device, Lanes()
        self.streams = [stream(spec.seed, "masks", device) for spec in specs]
        sites = [site for _, _, site in network.sites]
        self.held = [torch.ones(site.shape, dtype=torch.bool, device=device) for site in sites]
        self.warm = [i for i, site in enumerate(sites) if site.warm]
        self.rules: list[tuple[MaskRule, list[int]]] = []
        kinds = [(spec.how, spec.how.cold(spec)) for spec in specs]
        for how, cold in dict.fromkeys(kinds):
            mine = [i for i, site in enumerate(sites) if kinds[site.run] == (how, cold) and site.sparsity > 0]
            if mine and (rule := how.rule([sites[i] for i in mine], specs, device)) is not None:
                self.rules.append((rule, mine))
        self.limited = [i for i, site in enumerate(sites) if specs[site.run].how.ends_with != "held"]
        self.limit = Law([sites[i] for i in self.limited])
        self.levels = [spec.how.level(spec, list(own.values())) for spec, own in zip(specs, network.names)]
        self.betas = torch.zeros(len(specs), dtype=torch.float64, device=device)
        self.lasting = [spec.how.lasting(spec) for spec in specs]
        self.steps = torch.zeros((), dtype=torch.int64, device=device)  # of the epoch so far
        self.sparsities = [site.sparsity for site in sites]
        given = {k: Targets(s.how.target(s), site_shares(own)) for k, (s, own) in enumerate(zip(specs, network.names))}
        self.targets = {k: targets for k, targets in given.items() if targets.rises or targets.budget}
        drawn = {sites[i].run for _, places in self.rules for i in places}
        gradients = [spec.how.gradient(spec) for spec in specs]
        self.pulled = [k for k, kind in enumerate(gradients) if kind == "law" and k in drawn]
        left = [kind if k in drawn else "whole" for k, kind in enumerate(network.survivors)]
        self.shrunk = {k for k, kind in enumerate(left) if kind != "whole"}
        self.filling = Filling(network.masked, network.sites, gradients, left)
        self.fading = [spec.how.fading(spec) if k in drawn else 0.0 for k, spec in enumerate(specs)]
        self.decays: list[tuple[Tensor, Tensor, Tensor]] = []

    def set_levels(self, epoch: int) -> list[float]:
        """The runs' levels in an epoch, and whatever else of their rules follows it."""
        values = [level(epoch) for level in self.levels]
        self.betas.copy_(torch.tensor(values, dtype=torch.float64))
        self.steps.zero_()
        for rule, _ in self.rules:
            if isinstance(rule, Rising):
                rule.set_epoch(epoch)
        return values

    def set_decays(self, decays: Mapping[str, Tensor]) -> None:
        """The decay of each layer's weights, which fades masked ones faster, or spares them, where a run wants that."""
        if all(rate == 0 for rate in self.fading):
            return
        rates = torch.tensor([rate or 0.0 for rate in self.fading], device=self.device)[:, None]
        spared = torch.tensor([rate is None for rate in self.fading], device=self.device)[:, None]
        for name in self.network.masks:
            plain = (view := decays[name].view(self.network.runs, -1)).clone()
            self.decays.append((view, plain, torch.where(spared, -plain, rates) if spared.any() else rates))

    @torch.no_grad()
    def share_out(self, epoch: int) -> None:
        """The sparsities of an epoch, where they rise or are shared among layers."""
        if not self.targets:
            return
        weights, sites = self.network.judged(), self.network.sites
        wanted = list(self.sparsities)
        for k, targets in self.targets.items():
            mine = [i for i, (_, run, _) in enumerate(sites) if run == k]
            now = targets.at(
                epoch // self.network.specs[k].stretch,
                lambda mine=mine: [sites[i][2].means(weights[i]) for i in mine],  # type: ignore[misc]
            )
            for i in mine:
                wanted[i] = now[sites[i][0]]
        self.set_sparsities(wanted)

    def rose(self, k: int, epochs: int) -> int:
        """The epoch from which on a run of so many epochs has had all of its sparsity that outputs show."""
        stretch = self.network.specs[k].stretch
        return self.targets[k].rose(-(-epochs // stretch)) * stretch if k in self.targets else 0

    def shares(self, k: int) -> dict[str, float]:
        """The sparsity of each of a run's layers now, where they have one of the network to share."""
        shared = k in self.targets and self.targets[k].budget
        sites = zip(self.network.sites, self.sparsities)
        return {name: sparsity for (name, run, _), sparsity in sites if run == k} if shared else {}

    def set_sparsities(self, sparsities: Sequence[float]) -> None:
        """One per site."""
        if list(sparsities) != self.sparsities:
            self.sparsities = list(sparsities)
            laws = [(rule, places) for rule, places in self.rules if isinstance(rule, Law)]
            for law, places in [*laws, (self.limit, self.limited)]:
                law.set_sparsities([self.sparsities[i] for i in places])

    @torch.no_grad()
    def draw(self) -> None:
        """A fresh mask for every layer whose method draws one at this step; the others keep theirs."""
        weights, views = self.network.judged(), self.network.mask_views()
        jobs = []
        for rule, places in self.rules:  # warm chains go on from the masks that are in place
            going = {"before": [views[i] for i in places]} if self.warm and isinstance(rule, Law) else {}
            jobs.append(partial(rule.draw, [weights[i] for i in places], self.betas, self.streams, **going))
        for (_, places), drawn in zip(self.rules, self.lanes.run(jobs, self.device)):
            before = [views[i] for i in places]
            torch._foreach_copy_(before, self._lasting(places, drawn, before))
        self.steps += 1
        self._shrink(weights)
        self._pull(weights)
        self.filling.fill(self.network.stored, self.network.left, self.network.slopes)
        for (decay, plain, rates), mask in zip(self.decays, self.network.masks.values()):
            torch.addcmul(plain, rates, (~mask).view_as(plain), out=decay)

    def _lasting(self, places: Sequence[int], drawn: Sequence[Tensor], before: Sequence[Tensor]) -> list[Tensor]:
        """The masks drawn at sites, and where those before last for more than this step, those."""
        masks, lasting = list(drawn), [self.lasting[self.network.sites[i][1]] for i in places]
        for steps in set(lasting) - {1}:  # those alike as one piece: on a GPU each by itself costs a kernel
            mine = [n for n, own in enumerate(lasting) if own == steps]
            new, old = (torch.cat([part[n].flatten() for n in mine]) for part in (drawn, before))
            kept = torch.where(self.steps % steps == 0, new, old).split([before[n].numel() for n in mine])
            for n, mask in zip(mine, kept):
                masks[n] = mask.view_as(before[n])
        return masks

    @torch.no_grad()
    def keep_chains(self) -> None:
        """Holds the masks of warm chains, which go on from them in the next epoch, whatever is tested in between."""
        views = self.network.mask_views()
        for i in self.warm:
            self.held[i].copy_(views[i])

    @torch.no_grad()
    def shrink(self) -> None:
        """What is left of survivors, by the weights as they are now."""
        self._shrink(self.network.judged())
        self.filling.fill(self.network.stored, self.network.left, {}, gradients=False)

    def _shrink(self, weights: Sequence[Tensor]) -> None:
        """What shrinking leaves of survivors."""
        for rule, places in self.rules if self.shrunk else ():
            if isinstance(rule, Law):
                self._into(self.network.left, self.shrunk, places, rule.left([weights[i] for i in places]))

    def _pull(self, weights: Sequence[Tensor]) -> None:
        """What the gradient has through the probability of keeping."""
        for rule, places in self.rules if self.pulled else ():
            if isinstance(rule, Law):
                pulls = rule.pull([weights[i] for i in places], self.betas)
                self._into(self.network.slopes, self.pulled, places, pulls)

    def _into(
        self, buffers: Mapping[str, Tensor], runs: Container[int], places: Sequence[int], values: Sequence[Tensor]
    ) -> None:
        """Puts a value for every weight of the sites in some places into their runs' parts of buffers."""
        found = [(*self.network.sites[i][:2], value) for i, value in zip(places, values)]
        mine = [(share(buffers[name], k, self.network.runs), value) for name, k, value in found if k in runs]
        if mine:
            torch._foreach_copy_([view for view, _ in mine], [value for _, value in mine])

    @torch.no_grad()
    def limits(self) -> list[Tensor]:
        """The masks with which the runs would end now, but for a last draw: converged ones, or those held."""
        masks, weights = list(self.held), self.network.judged()
        for i, mask in zip(self.limited, self.limit.converged([weights[i] for i in self.limited])):
            masks[i] = mask
        return masks

    @torch.no_grad()
    def drawn(self) -> list[Tensor]:
        """:meth:`limits`, and where masks are drawn from a law one more draw."""
        masks, weights = self.limits(), self.network.judged()
        for rule, places in self.rules:
            if isinstance(rule, Law):
                going = [self.held[i] for i in places] if self.warm else None
                drawn = rule.final([weights[i] for i in places], self.betas, self.streams, before=going)
                for i, mask in zip(places, drawn):
                    masks[i] = mask
        return masks

    def final(self, limits: Sequence[Tensor], drawn: Sequence[Tensor]) -> list[Tensor]:
        """The masks with which the runs end, of these two, as their recipes say."""
        specs, sites = self.network.specs, self.network.sites
        ends = [specs[k].how.ends_with == "drawn" and specs[k].recipe.final == "sample" for _, k, _ in sites]
        return [sample if last else limit for last, limit, sample in zip(ends, limits, drawn)]

    @torch.no_grad()
    def agreement(self, masks: Sequence[Tensor], others: Sequence[Tensor]) -> list[float]:
        """Per run, the share of weights on which two sets of masks are equal."""
        runs = self.network.runs
        same, total = torch.zeros(runs, dtype=torch.int64, device=self.device), [0] * runs
        for (_, k, _), a, b in zip(self.network.sites, masks, others):
            same[k] += (a == b).sum()
            total[k] += a.numel()
        return [s / t if t else 1.0 for s, t in zip(same.tolist(), total)]

    def remembered(self) -> list[Tensor]:
        """The held masks that a checkpoint must hold: the others follow from the weights."""
        drawn = set(self.limited) - set(self.warm)
        return [mask for i, mask in enumerate(self.held) if i not in drawn]
