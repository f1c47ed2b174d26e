"""What the results say, as records: who is compared with whom, and by how much. ``sentences`` puts them into words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from gibbsprune.training.spec import RunSpec

from . import cells, published
from .chance import Chance, Claim, holm
from .groups import Group, Results, family


@dataclass(frozen=True)
class Finding:
    """One record: what it is about, and the differences that it rests on."""

    model: str
    structure: str | None = None
    claims: tuple[Claim, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class NotRun(Finding):
    """What there would be to say is not there."""

    what: str = ""


@dataclass(frozen=True)
class AgainstPaper(Finding):
    """Our accuracies against those that the paper prints, of which there are ``total``."""

    total: int = field(kw_only=True)


@dataclass(frozen=True)
class Ranking(Finding):
    """Hamiltonians, ours from the best to the worst, and the paper's order; ``claims`` are the steps of ours."""

    ours: tuple[tuple[str, Group], ...] = field(kw_only=True)
    theirs: tuple[str, ...] = field(kw_only=True)
    missing: tuple[str, ...] = field(kw_only=True)


@dataclass(frozen=True)
class Convergence(Finding):
    """Of ``count`` kinds of Gibbs runs those whose last draw is not the converged mask."""

    count: int = field(kw_only=True)
    loose: tuple[Group, ...] = field(kw_only=True)


@dataclass(frozen=True)
class Pair(Finding):
    """Two kinds of runs that differ in one thing."""

    one: Group = field(kw_only=True)
    other: Group = field(kw_only=True)


@dataclass(frozen=True)
class Samplers(Pair):
    """The exact sampler against the paper's chain."""


@dataclass(frozen=True)
class AgainstGradual(Pair):
    """Gibbs pruning as published against gradual pruning, all else equal."""


@dataclass(frozen=True)
class RandomMasks(Finding):
    """Gibbs pruning against a method that knows no weights, rate by rate; None where one of the two is missing."""

    rows: tuple[tuple[str, float, Claim | None], ...] = field(kw_only=True)


@dataclass(frozen=True)
class OtherMethods(Finding):
    """Kinds of Gibbs pruning, the plain one first, each against the best of the other methods."""

    label: str = field(kw_only=True)
    best: Group = field(kw_only=True)
    gibbs: tuple[tuple[Group, Claim], ...] = field(kw_only=True)
    missing: int = field(kw_only=True)


@dataclass(frozen=True)
class Stretching(Finding):
    """Gibbs pruning at several stretches; the claim is the longest against the shortest."""

    groups: tuple[Group, ...] = field(kw_only=True)


@dataclass(frozen=True)
class HighRates(Finding):
    """Points lost against the dense network at 95 %, by stretch."""

    lost: tuple[tuple[Group, float], ...] = field(kw_only=True)


@dataclass(frozen=True)
class Answer:
    """A question, what was found, and the largest probability that counts as beyond chance among all its claims."""

    question: str
    findings: tuple[Finding, ...]
    cut: float


Asked = Callable[[Results, Chance], Iterator[Finding]]


def answer(question: str, asked: Asked, results: Results, chance: Chance | None = None) -> Answer:
    """All findings of one kind, judged together."""
    found = tuple(asked(results, chance or Chance(results)))
    return Answer(question, found, holm(claim.p for finding in found for claim in finding.claims))


def printed(model: str) -> Iterator[tuple[RunSpec, float]]:
    """Every accuracy that the paper prints, with its cell."""
    yield cells.dense(model), published.DENSE[model]
    for structure, table in published.HAMILTONIANS.items():
        for name, value in table[model].items():
            yield cells.as_printed(model, structure, name), value
    for method, row in published.RANDOM[model].items():
        for sparsity, value in row.items():
            if method == "reinit":
                yield cells.reinit(model, sparsity), value
            elif method != "gibbs" or sparsity != cells.SPARSITY["weight"]:
                yield cells.run(model, method, sparsity=sparsity), value


def against_paper(results: Results, chance: Chance) -> Iterator[Finding]:
    for model in cells.MODELS:
        pairs = [(results.of(spec), value) for spec, value in printed(model)]
        claims = tuple(chance.printed(group, value) for group, value in pairs if group is not None)
        yield AgainstPaper(model, claims=claims, total=len(pairs)) if claims else NotRun(model)


def gradual(results: Results, chance: Chance) -> Iterator[Finding]:
    """Gibbs pruning as published, against gradual pruning of the same network, sparsity, recipe and length."""
    rivals = [group for group in results if group.spec.method == "gradual"]
    if not rivals:
        yield NotRun("", what="gradual pruning")
    for rival in sorted(rivals, key=lambda group: group.spec.name()):
        spec = rival.spec.replace(method="gibbs", hamiltonian=None, settings=())
        if (gibbs := results.of(spec)) is None:
            yield NotRun(spec.model, spec.structure, what=f"Gibbs pruning beside {rival.spec.name()}")
        else:
            claims = (chance.claim(gibbs, rival),)
            yield AgainstGradual(spec.model, spec.structure, claims=claims, one=gibbs, other=rival)


def hamiltonians(results: Results, chance: Chance) -> Iterator[Finding]:
    for structure, names in cells.HAMILTONIANS.items():
        for model in cells.MODELS:
            runs = {name: results.of(cells.as_printed(model, structure, name)) for name in names}
            found = {name: group for name, group in runs.items() if group is not None}
            if not found:
                yield NotRun(model, structure)
                continue
            ours = sorted(found.items(), key=lambda pair: -pair[1].mean())
            order = sorted(found, key=lambda name: -published.HAMILTONIANS[structure][model][name])
            steps = tuple(chance.claim(one, other) for (_, one), (_, other) in itertools.pairwise(ours))
            missing = tuple(name for name in names if name not in found)
            yield Ranking(model, structure, claims=steps, ours=tuple(ours), theirs=tuple(order), missing=missing)


def convergence(results: Results, chance: Chance) -> Iterator[Finding]:
    asked = {family(spec): spec for spec in cells.asked()}
    for model in cells.MODELS:
        kind = (model, "gibbs", "paper")
        specs = [spec for spec in asked.values() if (spec.model, spec.method, spec.recipe.name) == kind]
        found = _found(results, specs)
        loose = tuple(group for group in found if group.mean("agreement") < 100 * cells.CONVERGED)
        yield Convergence(model, count=len(found), loose=loose) if found else NotRun(model)


def samplers(results: Results, chance: Chance) -> Iterator[Finding]:
    for model in cells.MODELS:
        exact = results.of(cells.run(model, structure="filter"))
        chain = results.of(cells.as_printed(model, "filter", "quadratic"))
        if exact is None or chain is None:
            lacking = " and ".join(name for name, group in (("exact", exact), ("chromatic", chain)) if group is None)
            yield NotRun(model, "filter", what=lacking)
        else:
            yield Samplers(model, "filter", claims=(chance.claim(exact, chain),), one=exact, other=chain)


def random_masks(results: Results, chance: Chance) -> Iterator[Finding]:
    for model in cells.MODELS:
        rows: list[tuple[str, float, Claim | None]] = []
        for rate in cells.RATES:
            gibbs = results.of(cells.run(model, sparsity=rate))
            blind = cells.run(model, "random-mask", sparsity=rate)
            for name, spec in (("random mask", blind), ("re-initialisation", cells.reinit(model, rate))):
                other = results.of(spec)
                rows.append((name, rate, None if gibbs is None or other is None else chance.claim(gibbs, other)))
        claims = tuple(claim for _, _, claim in rows if claim is not None)
        yield RandomMasks(model, claims=claims, rows=tuple(rows)) if claims else NotRun(model)


def other_methods(results: Results, chance: Chance) -> Iterator[Finding]:
    for number, structure in cells.COMPARED.items():
        for model in cells.MODELS:
            first, *rest = cells.FIGURES[number](model)
            gibbs = _found(results, first.specs)
            lines = (*rest, *cells.variations(model, [structure]))
            others = [(line.label, group) for line in lines for group in _found(results, line.specs)]
            if not gibbs or not others:
                yield NotRun(model, structure, what="the other methods" if gibbs else "Gibbs pruning")
                continue
            label, best = max(others, key=lambda pair: pair[1].mean())
            kinds = [gibbs[0]]
            if (longest := max(gibbs, key=lambda group: group.epochs)) is not gibbs[0]:
                kinds.append(longest)
            if structure == "filter":
                kinds += _found(results, [cells.as_printed(model, structure, "quadratic")])
            judged = tuple((group, chance.claim(group, best)) for group in kinds)
            missing = sum(results.of(spec) is None for line in rest for spec in line.specs)
            claims = tuple(claim for _, claim in judged)
            yield OtherMethods(model, structure, claims=claims, label=label, best=best, gibbs=judged, missing=missing)


def stretching(results: Results, chance: Chance) -> Iterator[Finding]:
    for structure in cells.HAMILTONIANS:
        for model in cells.MODELS:
            found = _found(results, [cells.run(model, structure=structure, stretch=s) for s in cells.STRETCHES])
            if len(found) < 2:
                yield NotRun(model, structure, what="stretched schedules")
            else:
                claims = (chance.claim(found[-1], found[0]),)
                yield Stretching(model, structure, claims=claims, groups=tuple(found))


def high_rates(results: Results, chance: Chance) -> Iterator[Finding]:
    for model in cells.MODELS:
        dense = results.of(cells.dense(model))
        found = _found(results, [cells.run(model, sparsity=0.95, stretch=s) for s in cells.STRETCHES])
        if dense is None or not found:
            yield NotRun(model)
        else:
            yield HighRates(model, lost=tuple((group, dense.mean() - group.mean()) for group in found))


def _found(results: Results, specs: Sequence[RunSpec]) -> list[Group]:
    return [group for spec in specs if (group := results.of(spec)) is not None]


FIRST: dict[str, Asked] = {
    "Where do we stand against the paper's tables?": against_paper,
    "How does Gibbs pruning as published compare with gradual pruning?": gradual,
}
THEN: dict[str, Asked] = {
    "Which Hamiltonian is best?": hamiltonians,
    "Do the masks converge?": convergence,
    "Does the exact sampler differ from the chromatic chain?": samplers,
    "Does Gibbs pruning beat a random mask and re-initialisation at every rate?": random_masks,
    "Does it beat the other methods?": other_methods,
    "Does stretching help?": stretching,
    "How close does 95 % come to the dense network?": high_rates,
}


def answers(results: Results, questions: dict[str, Asked]) -> list[Answer]:
    """Each question with its findings, one or more per network."""
    chance = Chance(results)
    return [answer(question, asked, results, chance) for question, asked in questions.items()]
