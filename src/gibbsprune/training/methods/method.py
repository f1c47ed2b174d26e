"""What a training method is: phases of epochs, and what is done to masks and weights between and within them.

Every method goes through the same loop, alone or in a fleet, and resumes the same way. A method says

- in which phases it trains, and with which learning rate;
- what it does when a phase or an epoch begins (:class:`~gibbsprune.training.replica.Replica` is what it works on);
- by which rule masks are drawn at every step, if they are; otherwise layers keep the mask they were given;
- with which mask it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ...budgets import Budget
from ...checks import Parser, number, optional, text
from ...errors import UserError
from ...schedules import Schedule
from ...site import Site
from ...structures import Structure
from ...weights import Layer

if TYPE_CHECKING:
    from ..finished import Finished
    from ..replica import Replica
    from ..spec import RunSpec


SHARE, BELOW_ONE = number(0, 1, above=True), number(0, 1, below=True)  # a share of training, a fraction of weights
#: In place of a learning rate: those of the last epochs of training.
REWIND = "rewind"


@dataclass(frozen=True)
class Phase:
    """Some epochs with a learning rate of their own; ``rate`` takes the phase's epoch, counted from 0."""

    name: str
    epochs: int
    rate: Callable[[int], float]


@dataclass(frozen=True)
class Setting:
    """A parameter of a method: how it is read, what it means, its default and its short name.

    A default may be a value or a function of a run's spec; it is kept as the latter.
    """

    parse: Parser
    meaning: str
    default: Any
    short: str

    def __post_init__(self) -> None:
        value = self.default
        if not callable(value):
            object.__setattr__(self, "default", lambda spec: value)


def starting(meaning: str, short: str = "from.") -> Setting:
    """A setting that names something to start from, or nothing."""
    return Setting(optional(text()), meaning, None, short)


#: Where any run may start: every method has these settings, unless it gives one a meaning of its own.
START = {
    "from": starting("start from the weights of this finished run or .safetensors file (new ones)"),
    "weights": starting("the SHA-256 that those weights must have, or its first digits (filled in)", "w"),
}


class MaskRule(Protocol):
    """Draws the masks of many sites at every step; ``levels`` (β, α) and ``generators`` are per run."""

    def draw(
        self, weights: Sequence[Tensor], levels: Tensor, generators: Sequence[torch.Generator | None]
    ) -> list[Tensor]: ...


@runtime_checkable
class Rising(MaskRule, Protocol):
    """A rule of which more than the level changes from epoch to epoch."""

    def set_epoch(self, epoch: int) -> None: ...


class Method:
    """The defaults are those of plain training, in one phase, with masks that stay as they are."""

    name: ClassVar[str]
    about: ClassVar[str]
    structures: ClassVar[tuple[str, ...]] = ("weight", "kernel", "filter", "column", "block")
    settings: ClassVar[dict[str, Setting]] = {}
    #: The kinds of layers that it prunes, others are passed over unless they are asked for; None for all.
    layers: ClassVar[tuple[type[nn.Module], ...] | None] = None
    #: The final mask: the one the layers hold, the converged mask x_cvg of the weights, or one more draw of the rule.
    ends_with: ClassVar[Literal["held", "converged", "drawn"]] = "held"
    #: Names of the states of the network that are put aside on the way, and kept with the finished run.
    keeps: ClassVar[tuple[str, ...]] = ()
    #: Whether it prunes the filters of a layer and of the depthwise one after it as one.
    ties: ClassVar[bool] = False
    #: Whether a mask may be asked for at all.
    prunes: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.settings = {**cls.settings, **{name: START[name] for name in START if name not in cls.settings}}

    def check(self, spec: RunSpec) -> None:
        """Refuses settings that contradict each other."""

    def check_source(self, spec: RunSpec, source: Finished, sites: Mapping[str, Site]) -> None:
        """Refuses what this run cannot start from (setting ``from``); ``sites`` are its own layers.

        Whether the weights fit its network is seen to elsewhere. The same weights are another function of the images
        where these are standardised, or batch norms regularised, in another way.
        """
        for name in ("standardise", "bn_eps"):
            mine, theirs = (getattr(one.recipe, name) for one in (spec, source.spec or spec))
            if mine != theirs:
                raise UserError(
                    f"{spec.setting('from')} was trained with {name} {theirs}, but this run's recipe has {mine}: give "
                    "both the same"
                )

    def start(self, run: Replica, source: Finished) -> None:
        """Before everything else, what the run takes from what it starts from."""
        run.load(source)

    def phases(self, spec: RunSpec) -> list[Phase]:
        return [training(spec)]

    def epochs_before(self, spec: RunSpec) -> int:
        """Epochs of the finished run that this one continues."""
        return 0

    def structure_of(self, spec: RunSpec, layer: Layer) -> Structure:
        """How a layer is cut into neighbourhoods."""
        return layer.structure(spec.structure)

    def rule(self, sites: Sequence[Site], specs: Sequence[RunSpec], device: torch.device) -> MaskRule | None:
        """How the masks of these sites are drawn at every step; None: they are held.

        ``specs`` are per run; those of the sites are all cold, or none is.
        """
        return None

    def cold(self, spec: RunSpec) -> bool:
        """Whether the rule is a law at zero temperature."""
        return False

    def masks(self, spec: RunSpec) -> bool:
        """Whether what a run masks while it trains is what it prunes, so far."""
        held = self.ends_with == "held" and self.soft_threshold(spec) is None
        return self.prunes and (held or self.ends_with == "drawn" or self.cold(spec))

    def level(self, spec: RunSpec, sites: Sequence[Site]) -> Callable[[int], float]:
        """The rule's parameter (β, α) as a function of the epoch, stretching included."""
        return lambda epoch: 0.0

    def lasting(self, spec: RunSpec) -> int:
        """For how many steps of an epoch a mask of the rule is in place before the next one."""
        return 1

    def target(self, spec: RunSpec) -> float | Schedule | Budget:
        """The sparsity, or how it rises and is shared out."""
        return spec.sparsity

    def gradient(self, spec: RunSpec) -> str:
        """What reaches a masked weight (:mod:`gibbsprune.masking`); the law's own only where masks are drawn."""
        return "masked"

    def survivors(self, spec: RunSpec) -> str:
        """What is left of the weights that are kept (:mod:`gibbsprune.masking`), where masks are drawn; "auto" for what
        suits the network (:func:`gibbsprune.rising.survivors`)."""
        return "whole"

    def importance(self, spec: RunSpec) -> str:
        """What takes the place of |w| where masks are drawn (:mod:`gibbsprune.importance`)."""
        return "magnitude"

    def fading(self, spec: RunSpec) -> float | None:
        """The decay of masked weights beyond the recipe's, where masks are drawn; None: they have none at all."""
        return 0.0

    def penalty(self, spec: RunSpec) -> float:
        """λ of an l1 penalty λ·Σ|w| on the pruned layers' weights."""
        return 0.0

    def soft_threshold(self, spec: RunSpec) -> tuple[float, float] | None:
        """Where the level s of a soft threshold σ(s) per layer starts that is learned, and its decay; None: none is."""
        return None

    def save_at(self, spec: RunSpec, steps: int) -> int | None:
        """After how many steps, of ``steps`` in its first phase, the first of what the run ``keeps`` is put aside."""
        return None

    def begin_phase(self, run: Replica, phase: int) -> None:
        """Before the first epoch of a phase; phases of no epochs count."""

    def begin_epoch(self, run: Replica, epoch: int) -> None:
        """Before every epoch, after :meth:`begin_phase`."""

    def every(self, spec: RunSpec) -> int | None:
        """After how many steps, again and again, :meth:`after_step` is called; None: never."""
        return None

    def after_step(self, run: Replica, step: int, steps: int) -> None:
        """Between two steps, ``step`` of ``steps`` in all being done."""


def is_file(named: str) -> bool:
    """Whether what a run starts from is a file of weights, of which nothing else is known."""
    return named.endswith(".safetensors")


def training(spec: RunSpec) -> Phase:
    """The whole recipe."""
    recipe, stretch = spec.recipe, spec.stretch
    return Phase("train", recipe.total_epochs(stretch), lambda epoch: recipe.learning_rate(epoch, stretch))


def rewound(spec: RunSpec, epochs: int, name: str = "retrain") -> Phase:
    """The last epochs of the recipe's learning rates once more (learning-rate rewinding, Renda et al. 2020)."""
    whole = training(spec)
    return Phase(name, epochs, lambda epoch: whole.rate(whole.epochs - epochs + epoch))


def tuning(spec: RunSpec, epochs: int, name: str = "tune") -> Phase:
    """Fine-tuning at a constant learning rate, or with learning rates rewound."""
    rate = spec.setting("tune_rate")
    return rewound(spec, epochs, name) if rate == REWIND else Phase(name, epochs, lambda epoch: float(rate))
