"""Random re-initialisation (Liu et al. 2019): the mask of a finished run, new random weights, trained anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...checks import text
from ...errors import UserError
from ...site import Site
from ...structures import KINDS
from .method import Method, Setting

if TYPE_CHECKING:
    from ..finished import Finished
    from ..replica import Replica
    from ..spec import RunSpec


class Reinit(Method):
    """The new weights are of another random stream: a run with its source's seed does not start where that did."""

    name = "reinit"
    structures = KINDS
    about = "the mask of a finished run (--from), new random weights, trained anew"
    settings = {"from": Setting(text(), "take the masks of this finished run", None, "from.")}

    def check(self, spec: RunSpec) -> None:
        if spec.setting("from") is None:
            raise UserError("method 'reinit' needs the finished run whose masks it takes: give it with --from RUN")

    def check_source(self, spec: RunSpec, source: Finished, sites: Mapping[str, Site]) -> None:
        named, other = spec.setting("from"), source.spec
        if other is None:
            raise UserError(f"method 'reinit' takes the masks of a finished run, and {named} is a file of weights")
        if not source.masks:
            raise UserError(f"method 'reinit' takes the masks of a pruned run, but {named} is {other.method}")
        if (other.structure, other.sparsity) != (spec.structure, spec.sparsity):
            raise UserError(
                f"the run {named} was pruned by {other.structure} to {other.sparsity:g}, not by {spec.structure} to "
                f"{spec.sparsity:g}: give --structure {other.structure} --sparsity {other.sparsity:g}"
            )
        for name, site in sites.items():
            if name not in source.masks or tuple(source.masks[name].shape) != site.shape:
                raise UserError(f"the run {named} ({other.model}) has no mask for layer {name} of this {spec.model}")

    def start(self, run: Replica, source: Finished) -> None:
        for name in run.sites:
            run.hold(name, source.masks[name])
