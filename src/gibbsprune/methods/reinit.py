"""Random re-initialisation (Liu et al. 2019): the mask of a finished run, new random weights, trained anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UserError
from ..fields import text
from .method import Method, Setting

if TYPE_CHECKING:
    from ..training.replica import Replica
    from ..training.spec import RunSpec


class Reinit(Method):
    """The new weights are of another random stream: a run with its source's seed does not start where that did."""

    name = "reinit"
    about = "the mask of a finished run (--from), new random weights, trained anew"
    settings = {"from": Setting(text(), "the finished run whose masks are taken", lambda spec: None, "from.")}

    def check(self, spec: RunSpec) -> None:
        if spec.setting("from") is None:
            raise UserError("method 'reinit' needs the finished run whose masks it takes: give it with --from RUN")

    def begin_phase(self, run: Replica, phase: int) -> None:
        assert run.source is not None
        for name, site in run.sites.items():
            mask = run.source.masks.get(name)
            if mask is None or tuple(mask.shape) != site.shape:
                raise UserError(f"the run {run.spec.setting('from')} has no mask for layer {name} of this network")
            run.hold(name, mask)
