"""Cells: the runs behind the paper's tables, as data. A cell is a :class:`~gibbsprune.training.spec.RunSpec`."""

from __future__ import annotations

from collections.abc import Sequence

from ..training.recipes import RECIPES
from ..training.spec import RunSpec


def cell(model: str, method: str = "gibbs", structure: str = "weight", seed: int = 0, **options: object) -> RunSpec:
    """One run on CIFAR-10 with the recipe ``paper``; filters are pruned to 75 %, everything else to 90 %."""
    options.setdefault("sparsity", 0.75 if structure == "filter" else 0.9)
    return RunSpec("cifar10", model, method, structure, recipe=RECIPES["paper"], seed=seed, **options)  # type: ignore[arg-type]


def headline(model: str, seeds: Sequence[int] = (0, 1)) -> list[RunSpec]:
    """Dense, and the best Hamiltonian of each structure."""
    cells = [[cell(model, "dense", seed=s), *(cell(model, structure=k, seed=s) for k in ("weight", "kernel", "filter"))]
             for s in seeds]  # fmt: skip
    return [spec for group in cells for spec in group]


def hamiltonians(model: str, seeds: Sequence[int] = (0,)) -> list[RunSpec]:
    """Tables II and IV: every Hamiltonian of every structure; filter-wise also with the paper's Markov chain."""
    kinds = {"weight": ("binary", "sign", "square", "abs"), "kernel": ("binary", "sign", "quadratic"),
             "filter": ("binary", "sign", "quadratic")}  # fmt: skip
    cells = [
        cell(model, structure=structure, hamiltonian=name, seed=seed)
        for seed in seeds
        for structure, names in kinds.items()
        for name in names
    ]
    chain = [cell(model, structure="filter", sampler="chromatic", seed=seed) for seed in seeds]
    return cells + chain


def rates(model: str, seeds: Sequence[int] = (0,)) -> list[RunSpec]:
    """Table III's Gibbs row: unstructured pruning at other rates than 90 %."""
    return [cell(model, sparsity=p, seed=seed) for seed in seeds for p in (0.5, 0.75, 0.95)]


def unique(cells: Sequence[RunSpec]) -> list[RunSpec]:
    """Without repetitions, in order."""
    return list(dict.fromkeys(cells))
