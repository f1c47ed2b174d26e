"""Findings in plain sentences; what was not run is said to be so."""

from __future__ import annotations

from functools import singledispatch

from gibbsprune.text import safe

from . import cells, published
from .chance import Claim
from .findings import (
    AgainstGradual,
    AgainstPaper,
    Answer,
    Convergence,
    Finding,
    HighRates,
    NotRun,
    OtherMethods,
    RandomMasks,
    Ranking,
    Samplers,
    Stretching,
)
from .words import NOTHING, code, hamiltonian, hot, network, number, share

RELATION = {1: "ahead of", 0: "not told apart from", -1: "behind"}


def lines(answer: Answer) -> list[str]:
    """A sentence per finding; what was not run at all in one at the end."""
    found = [f"{where(one)}: {say(one, answer.cut)}." for one in answer.findings if not isinstance(one, NotRun)]
    missing = [one for one in answer.findings if isinstance(one, NotRun)]
    nothing = "; ".join(", ".join(filter(None, (where(one), safe(one.what)))) for one in missing)
    return found + ([f"{NOTHING.capitalize()}: {nothing}."] if nothing else [])


def where(finding: Finding) -> str:
    kind = f"{finding.structure}-wise" if finding.structure else ""
    return ", ".join(filter(None, (kind, network(finding.model) if finding.model else "")))


def thin(*claims: Claim) -> str:
    """Which of the differences rest on one seed on at least one side."""
    single = sum(claim.seeds == 1 for claim in claims)
    if not single:
        return ""
    if len(claims) == 1:
        return " (one seed)"
    return f" ({'all' if single == len(claims) else f'{single} of them'} on one seed)"


@singledispatch
def say(finding: Finding, cut: float) -> str:
    """The finding without where it is; ``cut`` is what counts as beyond chance."""
    raise TypeError(f"no sentence for {type(finding).__name__}")


@say.register
def _(finding: AgainstPaper, cut: float) -> str:
    signs, gaps = [claim.sign(cut) for claim in finding.claims], [claim.difference for claim in finding.claims]
    return (
        f"of the {finding.total} accuracies that the paper prints we have {len(signs)}; {signs.count(1)} of ours are "
        f"higher beyond chance, {signs.count(-1)} lower, {signs.count(0)} not told apart{thin(*finding.claims)}. The "
        f"difference is {sum(gaps) / len(gaps):+.2f} points on average, from {min(gaps):+.2f} to {max(gaps):+.2f}"
    )


@say.register
def _(finding: AgainstGradual, cut: float) -> str:
    spec, (claim,) = finding.other.spec, finding.claims
    return (
        f"at {share(spec.sparsity)}, recipe {safe(spec.recipe.name)}, {finding.other.epochs} epochs, Gibbs pruning "
        f"{number(finding.one)} is {RELATION[claim.sign(cut)]} gradual pruning {number(finding.other)} "
        f"({code(spec.name())}), {claim.difference:+.2f} points{thin(claim)}"
    )


@say.register
def _(finding: Ranking, cut: float) -> str:
    text = ", ".join(f"{hamiltonian(name)} {number(group)}" for name, group in finding.ours)
    if finding.structure == "filter":
        text = f"(quadratic by the paper's chain) {text}"
    if finding.claims:
        same = tuple(name for name, _ in finding.ours) == finding.theirs
        order = "the paper's order" if same else f"the paper's is {', '.join(map(hamiltonian, finding.theirs))}"
        sure = sum(claim.sign(cut) > 0 for claim in finding.claims)
        text += f"; {order}; {sure} of {len(finding.claims)} steps beyond chance{thin(*finding.claims)}"
    missing = ", ".join(map(hamiltonian, finding.missing))
    return text + (f"; {missing} {NOTHING}" if missing else "")


@say.register
def _(finding: Convergence, cut: float) -> str:
    loose = [
        f"{group.spec.structure}-wise {hamiltonian(group.spec.hamiltonian)} at {share(group.spec.sparsity)}, stretch "
        f"{group.spec.stretch}{hot(group)}: {group.mean('agreement'):.2f} %, accuracy {group.mean():.2f} with the last "
        f"draw and {group.mean('accuracy_converged'):.2f} with the converged mask"
        for group in finding.loose
    ]
    return (
        f"the last draw agrees with the converged mask in {share(cells.CONVERGED)} of the weights or more in "
        f"{finding.count - len(loose)} of {finding.count} kinds of Gibbs runs"
        + (f"; not in these: {'; '.join(loose)}" if loose else "")
    )


@say.register
def _(finding: Samplers, cut: float) -> str:
    (claim,) = finding.claims
    verdict = {1: "the exact sampler is better", -1: "the chain is better", 0: "no difference beyond chance"}
    told = "one seed cannot tell" if claim.seeds == 1 and claim.sign(cut) else verdict[claim.sign(cut)] + thin(claim)
    return f"exact {number(finding.one)}, chromatic {number(finding.other)}: {told}"


@say.register
def _(finding: RandomMasks, cut: float) -> str:
    rows = []
    for name, rate, claim in finding.rows:
        gap = NOTHING if claim is None else f"{claim.difference:+.2f}{'' if claim.sign(cut) else ', within chance'}"
        rows.append(f"{name} at {share(rate)}: {gap}")
    ahead = all(claim.sign(cut) > 0 for claim in finding.claims)
    verdict = "ahead at every rate that was run" if ahead else "not clearly ahead everywhere"
    return f"{verdict}{thin(*finding.claims)}. Points by which Gibbs pruning is ahead: {'; '.join(rows)}"


@say.register
def _(finding: OtherMethods, cut: float) -> str:
    best, kinds = finding.best, []
    for i, (group, claim) in enumerate(finding.gibbs):
        how = f"in {group.epochs} epochs" if i == 0 else f"stretched to {group.epochs} epochs{hot(group)}"
        if group.spec.sampler == "chromatic":
            how = "by the paper's chain"
        name = f"Gibbs pruning{' (exact sampler)' if finding.structure == 'filter' else ''} " if i == 0 else ""
        whom = f"the best other, {finding.label} in {best.epochs} epochs ({best.mean():.2f})" if i == 0 else "it"
        verdict = f"{'is ' if i == 0 else ''}{RELATION[claim.sign(cut)]} {whom}"
        kinds.append(f"{name}{how} ({group.mean():.2f}) {verdict}{thin(claim)}")
    missing = f"; {finding.missing} of the other methods' points {NOTHING}" if finding.missing else ""
    return "; ".join(kinds) + missing


@say.register
def _(finding: Stretching, cut: float) -> str:
    (claim,) = finding.claims
    shown = ", ".join(f"{number(group)} at stretch {group.spec.stretch}{hot(group)}" for group in finding.groups)
    verdict = {1: "it helps", 0: "no difference beyond chance", -1: "it hurts"}[claim.sign(cut)]
    return f"{shown}: {verdict}{thin(claim)}"


@say.register
def _(finding: HighRates, cut: float) -> str:
    shown = ", ".join(f"{lost:.2f} at stretch {group.spec.stretch}{hot(group)}" for group, lost in finding.lost)
    return f"points lost {shown} (paper, stretched: {published.STRETCHED_LOSS[finding.model]:.2f})"
