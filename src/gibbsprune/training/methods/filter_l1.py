"""Li et al. 2017: filters (or kernels) of small l1-norm are pruned from a trained network, with Han's schedule."""

from __future__ import annotations

from .magnitude import Magnitude


class FilterL1(Magnitude):
    """The score of a neighbourhood is the sum of its absolute weights, as in :class:`Magnitude`."""

    name = "filter-l1"
    about = "train, then prune filters or kernels by their l1-norm in steps of 10 % with fine-tuning (Li et al.)"
    structures = ("kernel", "filter")
