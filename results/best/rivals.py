"""The recipe `best` and its rivals on the test set, equal epochs, the most important first.

    gibbsprune sweep run results/best/rivals.py --results results/best --work runs/best
    make paper                                                             # docs/best.md

All have the same recipe, weight decay included; with it feedback collapses at 98 %, where it has that of `modern`, too.
Gradual pruning with one threshold for the network reaches its sparsity after 80 % of training, as feedback's, where it
did better than after 64 %.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec

SPARSITIES, SEEDS = (0.95, 0.98, 0.9), (0, 1, 2)
STRUCTURES = {"kernel": 0.9, "filter": 0.75}
GRADUAL: dict[str, Any] = {"allocation": "global", "until": 0.8}
COMPARED: dict[str, dict[str, Any]] = {
    "gibbs": {},
    "gradual": GRADUAL,
    "feedback": {"allocation": "global"},
    "rigl": {},
}


def run(
    method: str = "gibbs",
    sparsity: float = 0.9,
    seed: int = 0,
    recipe: str = "best",
    model: str = "resnet20",
    structure: str = "weight",
    stretch: int = 1,
    **settings: Any,
) -> RunSpec:
    return RunSpec(
        "cifar10", model, method, structure=structure, sparsity=sparsity, recipe=RECIPES[recipe], seed=seed,
        stretch=stretch, settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for seed in SEEDS:
        for sparsity in SPARSITIES:
            yield from (run(method, sparsity, seed, **settings) for method, settings in COMPARED.items())
    for seed in SEEDS:  # feedback with the decay at which it lives, layer by layer, and as published
        yield run("feedback", 0.98, seed, "modern", allocation="global")
        for sparsity in SPARSITIES:
            yield run("gradual", sparsity, seed)
            yield run("gibbs", sparsity, seed, "modern")
        yield run("dense", seed=seed)
        for structure, sparsity in STRUCTURES.items():
            yield run("gibbs", sparsity, seed, structure=structure)
            yield run("gradual", sparsity, seed, structure=structure)
            yield run("gibbs", sparsity, seed, "modern", structure=structure)
    for seed in SEEDS:
        yield from long("resnet56", 1, seed)
    for model, stretch in (("resnet20", 2), ("resnet56", 2), ("resnet20", 4), ("resnet56", 4)):
        yield from long(model, stretch)


def long(model: str, stretch: int, seed: int = 0) -> Iterable[RunSpec]:
    for sparsity in SPARSITIES:
        yield run("gibbs", sparsity, seed, model=model, stretch=stretch)
        yield run("feedback", sparsity, seed, model=model, stretch=stretch, allocation="global")
        yield run("gradual", sparsity, seed, model=model, stretch=stretch, **GRADUAL)
    yield run("dense", seed=seed, model=model, stretch=stretch)
