"""Plain statements about the results, computed from them; what was not run is said to be so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from gibbsprune.training.spec import RunSpec

from . import cells, published
from .groups import Group, Results, beyond_chance, clearly, family

NETWORK = {"resnet20": "ResNet-20", "resnet56": "ResNet-56"}
NAMES = {
    "binary": "binary", "sign": "linear sign", "square": "linear square", "abs": "linear abs", "quadratic": "quadratic",
}  # fmt: skip
NOTHING = "not run"
HOT = "with β to 10⁶"  # cells.FINAL_BETA


def findings(results: Results) -> list[tuple[str, list[str]]]:
    """Questions and their answers, one per network where they differ."""
    questions = [
        ("Where do we stand against the paper's tables?", against_paper),
        ("Which Hamiltonian is best?", hamiltonians),
        ("Do the masks converge?", convergence),
        ("Does the exact sampler differ from the chromatic chain?", samplers),
        ("Does Gibbs pruning beat a random mask and re-initialisation at every rate?", random_masks),
        ("Does it beat the other methods?", other_methods),
        ("Does stretching help?", stretching),
        ("How close does 95 % come to the dense network?", high_rates),
    ]
    return [(question, gathered(list(answer(results)))) for question, answer in questions]


def gathered(answers: list[str]) -> list[str]:
    """What was not run at all in one line at the end."""
    bare = [
        answer for answer in answers if answer.endswith(f"{NOTHING}.") and answer.count(":") == 1 and "±" not in answer
    ]
    bare = [answer for answer in bare if not any(sign.isdigit() for sign in answer.partition(":")[2])]
    rest = [answer for answer in answers if answer not in bare]
    if not bare:
        return rest
    named = [answer.removesuffix(f" {NOTHING}.").replace(": ", ", ").removesuffix(":") for answer in bare]
    return [*rest, f"{NOTHING.capitalize()}: {'; '.join(named)}."]


def number(group: Group) -> str:
    """Mean ± deviation."""
    deviation = group.deviation()
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    return f"{group.mean():.2f}{spread}"


def hot(group: Group) -> str:
    """That runs stand here in place of others that did not converge, and which, if not all."""
    if not group.hot:
        return ""
    seeds = "" if len(group.hot) == len(group.records) else f" for seed {' and '.join(map(str, group.hot))}"
    return f" {HOT}{seeds}"


def few(*groups: Group) -> str:
    """A caution where a comparison rests on fewer than three seeds."""
    least = min(len(group.records) for group in groups)
    return "" if least >= 3 else " (from fewer than three seeds, which prove little)"


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


def against_paper(results: Results) -> Iterator[str]:
    for model in cells.MODELS:
        pairs = [(group, value) for spec, value in printed(model) if (group := results.of(spec)) is not None]
        total = len(list(printed(model)))
        if not pairs:
            yield f"{NETWORK[model]}: {NOTHING}."
            continue
        gaps = [group.mean() - value for group, value in pairs]
        verdicts = [beyond_chance(gap, group.error, group.assumed) for gap, (group, _) in zip(gaps, pairs)]
        above, below = verdicts.count(1), verdicts.count(-1)
        yield (
            f"{NETWORK[model]}: of the {total} accuracies that the paper prints we have {len(pairs)}; {above} of ours "
            f"are higher, {below} lower, {len(pairs) - above - below} the same within two standard errors, those of "
            f"the paper taken as single runs. The difference is {sum(gaps) / len(gaps):+.2f} points on average, from "
            f"{min(gaps):+.2f} to {max(gaps):+.2f}."
        )


def hamiltonians(results: Results) -> Iterator[str]:
    for structure, names in cells.HAMILTONIANS.items():
        for model in cells.MODELS:
            runs = {name: results.of(cells.as_printed(model, structure, name)) for name in names}
            order = sorted(names, key=lambda name: -published.HAMILTONIANS[structure][model][name])
            how = " (quadratic by the paper's chain)" if structure == "filter" else ""
            yield f"{structure}-wise, {NETWORK[model]}{how}: {_ranking(runs, order)}"


def _ranking(runs: dict[str, Group | None], order: Sequence[str]) -> str:
    """Ours against the paper's order of names."""
    found = {name: group for name, group in runs.items() if group is not None}
    if not found:
        return f"{NOTHING}."
    ours = sorted(found, key=lambda name: -found[name].mean())
    shown = ", ".join(f"{NAMES[name]} {number(found[name])}" for name in ours)
    missing = [NAMES[name] for name in runs if name not in found]
    theirs = [name for name in order if name in found]
    text = shown
    if len(found) > 1:
        sure = all(clearly(found[a], found[b]) > 0 for a, b in itertools.pairwise(ours))
        same = "the paper's order" if ours == theirs else f"the paper's is {', '.join(NAMES[name] for name in theirs)}"
        text += f" ({same}; {'every step' if sure else 'not every step'} is beyond two standard errors)"
    return text + (f"; {', '.join(missing)} {NOTHING}." if missing else ".")


def convergence(results: Results) -> Iterator[str]:
    for model in cells.MODELS:
        asked = {family(spec): spec for spec in cells.asked()}
        kind = (model, "gibbs", "paper")
        specs = [spec for spec in asked.values() if (spec.model, spec.method, spec.recipe.name) == kind]
        found = [group for spec in specs if (group := results.of(spec)) is not None]
        if not found:
            yield f"{NETWORK[model]}: {NOTHING}."
            continue
        least = 100 * cells.CONVERGED
        loose = [
            f"{group.spec.structure}-wise {NAMES[str(group.spec.hamiltonian)]} at {100 * group.spec.sparsity:g} %, "
            f"stretch {group.spec.stretch}{hot(group)}: {group.mean('agreement'):.2f} %, accuracy {group.mean():.2f} "
            f"with the last draw and {group.mean('accuracy_converged'):.2f} with the converged mask"
            for group in found
            if group.mean("agreement") < least
        ]
        yield (
            f"{NETWORK[model]}: the last draw agrees with the converged mask in {least:g} % of the weights or more in "
            f"{len(found) - len(loose)} of {len(found)} kinds of Gibbs runs"
            + (f"; not in these: {'; '.join(loose)}." if loose else ".")
        )


def samplers(results: Results) -> Iterator[str]:
    for model in cells.MODELS:
        exact = results.of(cells.run(model, structure="filter"))
        chain = results.of(cells.as_printed(model, "filter", "quadratic"))
        if exact is None or chain is None:
            lacking = " and ".join(name for name, group in (("exact", exact), ("chromatic", chain)) if group is None)
            yield f"{NETWORK[model]}, filters: {lacking} {NOTHING}."
            continue
        verdict = {1: "the exact sampler is better", -1: "the chain is better", 0: "no difference beyond chance"}
        yield (
            f"{NETWORK[model]}, filters: exact {number(exact)}, chromatic {number(chain)}: "
            f"{verdict[clearly(exact, chain)]}{few(exact, chain)}."
        )


def random_masks(results: Results) -> Iterator[str]:
    for model in cells.MODELS:
        answers, groups = [], []
        for p in cells.RATES:
            gibbs = results.of(cells.run(model, sparsity=p))
            others = {
                "random mask": results.of(cells.run(model, "random-mask", sparsity=p)),
                "re-initialisation": results.of(cells.reinit(model, p)),
            }
            for name, other in others.items():
                if gibbs is None or other is None:
                    answers.append(f"{name} at {100 * p:g} %: {NOTHING}")
                else:
                    sure = "" if clearly(gibbs, other) else ", within chance"
                    answers.append(f"{name} at {100 * p:g} %: {gibbs.mean() - other.mean():+.2f}{sure}")
                    groups += [gibbs, other]
        done = [answer for answer in answers if not answer.endswith(NOTHING)]
        if not done:
            yield f"{NETWORK[model]}: {NOTHING}."
            continue
        ahead = all("+" in answer and "within" not in answer for answer in done)
        verdict = ("ahead at every rate that was run" if ahead else "not clearly ahead everywhere") + few(*groups)
        yield f"{NETWORK[model]}: {verdict}. Points by which Gibbs pruning is ahead: {'; '.join(answers)}."


def other_methods(results: Results) -> Iterator[str]:
    for number_, structure in cells.COMPARED.items():
        for model in cells.MODELS:
            series = cells.FIGURES[number_](model)
            gibbs = [group for spec in series[0].specs if (group := results.of(spec)) is not None]
            others = [
                (line.label, group)
                for line in (*series[1:], *cells.variations(model, [structure]))
                for spec in line.specs
                if (group := results.of(spec))
            ]
            where = f"{structure}-wise, {NETWORK[model]}"
            if not gibbs or not others:
                yield f"{where}: {'the other methods' if gibbs else 'Gibbs pruning'} {NOTHING}."
                continue
            label, strongest = max(others, key=lambda pair: pair[1].mean())
            plain, top = gibbs[0], max(gibbs, key=lambda group: group.epochs)
            relation = {1: "ahead of", 0: "about equal to", -1: "behind"}
            exactly = " (exact sampler)" if structure == "filter" else ""
            text = (
                f"{where}: Gibbs pruning{exactly} in {plain.epochs} epochs ({plain.mean():.2f}) is "
                f"{relation[clearly(plain, strongest)]} the best other, {label} in {strongest.epochs} epochs "
                f"({strongest.mean():.2f})"
            )
            if top is not plain:
                text += f"; stretched to {top.epochs} epochs{hot(top)} ({top.mean():.2f}) "
                text += f"{relation[clearly(top, strongest)]} it"
            chain = results.of(cells.as_printed(model, structure, "quadratic")) if structure == "filter" else None
            if chain is not None:
                text += f"; by the paper's chain ({chain.mean():.2f}) {relation[clearly(chain, strongest)]} it"
            lacking = sum(results.of(spec) is None for line in series[1:] for spec in line.specs)
            missing = f"; {lacking} of the other methods' points {NOTHING}" if lacking else ""
            yield f"{text}{missing}."


def stretching(results: Results) -> Iterator[str]:
    for structure in cells.HAMILTONIANS:
        for model in cells.MODELS:
            runs = {s: results.of(cells.run(model, structure=structure, stretch=s)) for s in cells.STRETCHES}
            found = {s: group for s, group in runs.items() if group is not None}
            where = f"{structure}-wise, {NETWORK[model]}"
            if len(found) < 2:
                yield f"{where}: stretched schedules {NOTHING}."
                continue
            shown = ", ".join(f"{number(group)} at stretch {s}{hot(group)}" for s, group in found.items())
            first, last = found[min(found)], found[max(found)]
            verdict = {1: "it helps", 0: "no difference beyond chance", -1: "it hurts"}[clearly(last, first)]
            yield f"{where}: {shown}: {verdict}{few(first, last)}."


def high_rates(results: Results) -> Iterator[str]:
    for model in cells.MODELS:
        dense = results.of(cells.dense(model))
        runs = [(s, results.of(cells.run(model, sparsity=0.95, stretch=s))) for s in cells.STRETCHES]
        found = [(s, group) for s, group in runs if group is not None]
        if dense is None or not found:
            yield f"{NETWORK[model]}: {NOTHING}."
            continue
        shown = ", ".join(f"{dense.mean() - group.mean():.2f} at stretch {s}{hot(group)}" for s, group in found)
        yield f"{NETWORK[model]}: points lost {shown} (paper, stretched: {published.STRETCHED_LOSS[model]:.2f})."
