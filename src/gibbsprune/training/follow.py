"""What the processes of a run do beside the first: the same training, and no files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gibbsprune import data
from gibbsprune.training.environment import suitable_threads
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.interrupt import Interrupt
from gibbsprune.training.ranks import Ranks, compare_data
from gibbsprune.training.spec import RunSpec


def follow(
    specs: Sequence[RunSpec], ranks: Ranks, autotune: bool, state: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Trains along with rank 0 from the start, or from the state it was given, and returns the results."""
    with Interrupt() as interrupt:
        arrays = data.load(specs[0].data)
        compare_data(ranks, arrays)
        with suitable_threads(arrays, ranks.device):
            fleet = Fleet(specs, arrays, device=ranks.device, autotune=autotune, ranks=ranks)
            if state is not None:
                fleet.load_state_dict(state)
            while fleet.epoch < fleet.epochs:
                interrupt.begin_epoch()
                fleet.train_epoch(interrupt.step)
                fleet.evaluate()
                if ranks.any(interrupt.requested):
                    interrupt.requested = True
                interrupt.end_epoch()
            return fleet.finish()
