"""Training methods, one per file: Gibbs pruning and those that the paper compares it with."""

from __future__ import annotations

from ...checks import check_one_of
from .dense import Dense
from .feedback import Feedback
from .filter_l1 import FilterL1
from .gibbs import Gibbs
from .gradual import Gradual
from .l1 import L1
from .lottery import Lottery
from .magnitude import Magnitude
from .method import MaskRule, Method, Phase, Rising, Setting
from .random_mask import RandomMask
from .reinit import Reinit
from .rewinding import Rewinding
from .rigl import RigL
from .soft_threshold import SoftThreshold
from .targeted_dropout import TargetedDropout
from .thinet import ThiNet

__all__ = ["METHODS", "MaskRule", "Method", "Phase", "Rising", "Setting", "method"]

_PAPER = (Gibbs, Dense, L1, Magnitude, Lottery, TargetedDropout, FilterL1, ThiNet, RandomMask, Reinit)
_LATER = (Gradual, Feedback, RigL, Rewinding, SoftThreshold)
METHODS: dict[str, Method] = {kind.name: kind() for kind in (*_PAPER, *_LATER)}


def method(name: str) -> Method:
    """The method of that name."""
    return METHODS[check_one_of("method", name, METHODS)]
