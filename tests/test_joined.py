"""Pairs across layers: every sampler against enumeration over the spins of several layers, and in a pruner.

The statistics and their error rate are those of tests/test_sampler_contract.py.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

import gibbsprune as gp
from gibbsprune.across import pieces
from gibbsprune.errors import UserError
from gibbsprune.joined import Joined
from gibbsprune.law import Law
from gibbsprune.site import Site
from gibbsprune.structures import as_structure
from test_sampler_contract import (
    BETAS,
    DRAWS,
    all_masks,
    check_counts,
    codes,
    energies_by_hand,
    gibbs,
    neighbourhoods,
    seeded,
)

# -- laws by hand ------------------------------------------------------------------------------------------------------

LAYERS = {"a": ("filter", (3, 2), 0.45), "b": ("filter", (3, 2, 2), 0.6), "c": ("weight", (2, 2), 0.3)}
STARTS = {"a": 0, "b": 3, "c": 6}  # of their elements among all 10
CASES = {
    "k-th with k-th": {("a", "b"): gp.kth_pairs},
    "a tree of all": {("a", "b"): [(0, 0), (0, 1), (2, 2)], ("b", "c"): [(1, 3), (1, 0)], ("a", "a"): [(0, 1)]},
    "a ring through all": {("a", "b"): [(0, 0), (1, 1)], ("b", "c"): [(1, 3), (0, 3)], ("c", "a"): [(1, 0), (2, 1)]},
}  # fmt: skip


def weights_of(scale=1.0, seed=0):
    generator = seeded(seed)
    shapes = [shape for _, shape, _ in LAYERS.values()]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * math.sqrt(scale) for shape in shapes]


def sites_of(energy, sampler="auto", run=0, **more):
    kinds = {name: as_structure(structure) for name, (structure, *_) in LAYERS.items()}
    peers = energy.peers({name: kinds[name].count(shape) for name, (_, shape, _) in LAYERS.items()})
    return [
        Site(shape, kinds[name], energy, p, sampler, run=run, name=name, peers=peers, **more)
        for name, (_, shape, p) in LAYERS.items()
    ]


def flat(pairs):
    """The pairs of a case as numbers of all elements, in the order given."""
    both = {names: given((3, 3)) if callable(given) else given for names, given in pairs.items()}
    return [(STARTS[a] + int(i), STARTS[b] + int(j)) for (a, b), given in both.items() for i, j in given]


def energies(weights, pairs, strengths, centred=False, relative=False):
    """H of all masks of the 10 elements, pair by pair."""
    x = np.where(all_masks(10), 1.0, -1.0)
    field, mean = [], []
    for (structure, shape, p), weight in zip(LAYERS.values(), weights):
        squares = weight.numpy().ravel() ** 2
        groups = neighbourhoods(structure, shape)
        means = np.array([squares[list(g)].mean() for g in groups])
        q, count = np.quantile(means, p), len(means)
        unit = q * len(groups[0]) if relative else 1.0
        field += [float((q - squares[list(g)]).sum()) / unit for g in groups]
        mean += [2 * (count - 1 - math.floor(p * (count - 1) + 1e-12)) / count - 1 if centred else 0.0] * count
    total = x @ np.array(field)
    for (i, j), a in zip(pairs, strengths):
        total = total + a * (x[:, i] - mean[i]) * (x[:, j] - mean[j])
    return total


def drawn(sites, weights, beta, sweeps=50, draws=DRAWS, seed=1):
    """Codes of the elements, in the order of LAYERS, of many draws."""
    (group,) = Law(sites).groups
    assert isinstance(group, Joined)
    rows = group.draw(weights, torch.tensor([beta], dtype=torch.float64), [seeded(seed)], sweeps, draws)
    each = rows.view(draws, -1)
    return codes(torch.cat([each[:, group.places[name]] for name in LAYERS], 1))


def check(codes_, law, label):
    check_counts(np.bincount(codes_, minlength=1024), law, label)


@pytest.mark.parametrize("sampler", ["transfer", "enumeration"])
@pytest.mark.parametrize("case", CASES)
def test_exact_laws_against_enumeration(case, sampler):
    pairs = flat(CASES[case])
    for scale, centred, relative in ((0.05, False, False), (1.0, True, False), (1.0, True, True)):
        weights = weights_of(scale, len(case))
        strengths = torch.randn(len(pairs), generator=seeded(7), dtype=torch.float64) * scale * 0.7
        base = gp.Linear("square", relative=relative)
        energy = gp.Pairwise(CASES[case], strengths, "network", base, centred)
        by_hand = energies(weights, pairs, strengths.numpy(), centred, relative)
        for beta in (0.0, *BETAS):
            label = f"{case} {sampler} {scale} {centred} {relative} {beta}"
            check(drawn(sites_of(energy, sampler), weights, beta), gibbs(by_hand, beta), label)


@pytest.mark.parametrize("case", CASES)
def test_a_chain_of_many_sweeps_against_enumeration(case):
    pairs, weights = flat(CASES[case]), weights_of(seed=len(case))
    strengths = torch.randn(len(pairs), generator=seeded(7), dtype=torch.float64) * 0.5
    energy = gp.Pairwise(CASES[case], strengths, "network")
    for beta in (0.0, 0.7):
        law = gibbs(energies(weights, pairs, strengths.numpy()), beta)
        check(drawn(sites_of(energy, "coloured"), weights, beta, 60, DRAWS // 2), law, f"{case} coloured {beta}")


@pytest.mark.parametrize("sampler", ["low_rank", "enumeration"])
def test_squares_of_several_layers_against_enumeration(sampler):
    vectors = {name: torch.randn(2, n, generator=seeded(n)) * 0.4 for name, n in (("c", 4), ("a", 3), ("b", 3))}
    energy, weights = gp.Pairwise.low_rank(vectors, "network"), weights_of()
    x = np.where(all_masks(10), 1.0, -1.0)
    v = torch.cat([vectors[name] for name in LAYERS], 1).double().numpy()
    by_hand = energies(weights, [], []) - ((x @ v.T) ** 2).sum(1) / 2
    for beta in (0.0, 0.5, 3.0):
        draws = 4000 if sampler == "low_rank" else DRAWS
        check(drawn(sites_of(energy, sampler), weights, beta, draws=draws), gibbs(by_hand, beta), f"squares {beta}")


def test_without_strength_layers_are_as_by_themselves():
    """Single weights of two layers, of Linear's own law each."""
    energy = gp.Pairwise({("one", "two"): gp.kth_pairs}, 0.0, "network")
    weights = [torch.randn(2, 2, generator=seeded(s), dtype=torch.float64) for s in (1, 2)]
    peers = energy.peers({"one": 4, "two": 4})
    sites = [Site((2, 2), gp.Weight(), energy, 0.45, name=name, peers=peers) for name in ("one", "two")]
    (group,) = Law(sites).groups
    rows = group.draw(weights, torch.tensor([2.0], dtype=torch.float64), [seeded(3)], 50, DRAWS).view(DRAWS, 8)
    for weight, mine in zip(weights, rows.split(4, 1)):
        law = gibbs(energies_by_hand("square", weight, "weight", 0.45, 0.0), 2.0)
        check_counts(np.bincount(codes(mine), minlength=16), law, "Linear")


def test_the_limits_of_attraction_and_repulsion():
    """Strong pairs make both alike, or one the opposite of the other, at any field."""
    weights = weights_of()
    for strength, alike in ((-50.0, True), (50.0, False)):
        energy = gp.Pairwise({("a", "b"): gp.kth_pairs}, strength, "network")
        bits = drawn(sites_of(energy), weights, 1.0)[:, None] >> np.arange(10) & 1
        assert ((bits[:, :3] == bits[:, 3:6]) == alike).all()
        assert 0.01 < bits[:, 0].mean() < 0.99


def test_strengths_that_are_functions_of_the_weights():
    """Of several layers by name; the draws are those of the same numbers given."""

    def similar(weights):
        assert set(weights) == {"a", "b"}
        norms = [weights[name].norm(dim=1) for name in ("a", "b")]
        return -norms[0] * norms[1]

    weights = weights_of()
    fixed = -weights[0].norm(dim=1) * weights[1].flatten(1).norm(dim=1)
    both = [gp.Pairwise({("a", "b"): gp.kth_pairs}, how, "network") for how in (similar, fixed)]
    first, second = (drawn(sites_of(energy), weights, 1.0, draws=200) for energy in both)
    assert (first == second).all()
    wrong = gp.Pairwise({("a", "b"): gp.kth_pairs}, lambda weights: torch.zeros(2), "network")
    with pytest.raises(UserError, match=r"the function of strengths gives \(2,\): allowed are tensors of shape \(3,\)"):
        drawn(sites_of(wrong), weights, 1.0, draws=1)
    infinite = gp.Pairwise({("a", "b"): gp.kth_pairs}, lambda weights: torch.full((3,), math.nan), "network")
    with pytest.raises(UserError, match="the function of strengths gives NaN or infinite numbers"):
        drawn(sites_of(infinite), weights, 1.0, draws=1)


def test_a_layer_that_keeps_all_is_felt_by_the_others():
    """While the sparsity of "a" is 0 its spins are +1, and b has the law given that."""
    energy, weights = gp.Pairwise({("a", "b"): gp.kth_pairs}, -0.4, "network", centred=False), weights_of()
    law = Law(sites_of(energy))
    law.set_sparsities([0.0, 0.6, 0.3])
    rows = law.groups[0].draw(weights, torch.tensor([1.0], dtype=torch.float64), [seeded(3)], 50, DRAWS)
    each = rows.view(DRAWS, -1)
    assert bool(each[:, law.groups[0].places["a"]].all())
    by_hand = energies(weights, flat(CASES["k-th with k-th"]), [-0.4] * 3)[7::8].reshape(16, 8)[0]  # c as it comes
    mine = np.bincount(codes(each[:, law.groups[0].places["b"]]), minlength=8)
    check_counts(mine, gibbs(by_hand, 1.0), "given that a keeps all")


@pytest.mark.parametrize("sampler", ["auto", "coloured"])
def test_a_run_draws_the_same_alone_as_among_others(sampler):
    energies_ = [gp.Pairwise(CASES[case], 0.3, "network") for case in CASES][:2]
    weights = [weights_of(seed=seed) for seed in (1, 2, 3)]
    sites = [s for run, e in enumerate((energies_[0], energies_[1], energies_[0])) for s in sites_of(e, sampler, run)]
    betas = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    together = Law(sites).draw([w for some in weights for w in some], betas, [seeded(s) for s in (4, 5, 6)])
    for run in range(3):
        mine = sites_of(energies_[run % 2], sampler)
        alone = Law(mine).draw(weights[run], betas[run : run + 1], [seeded(4 + run)])
        assert all(torch.equal(a, b) for a, b in zip(alone, together[3 * run :]))


def test_layers_are_drawn_by_what_their_own_pairs_need():
    """A chain where all of two layers interact, an exact way where pieces are small; alike pieces are rows."""
    names = {"a": 40, "b": 40, "c": 64, "d": 64, "e": 5}
    everything = np.indices((40, 40)).reshape(2, -1).T
    energy = gp.Pairwise({("a", "b"): everything, ("c", "d"): gp.kth_pairs}, -0.01, "network")
    peers = energy.peers(names)
    sites = [Site((n, 2), gp.Filter(), energy, 0.5, name=name, peers=peers) for name, n in names.items()]
    law = Law(sites)
    assert [site.sampler for site in law.sites] == ["coloured", "coloured", "transfer", "transfer", "independent"]
    assert [part.elements.shape for part in law.groups[0].parts] == [(64, 2), (1, 80), (5, 1)]
    masks = law.draw([torch.randn(n, 2) for n in names.values()], torch.ones(1), [seeded(0)])
    assert all(torch.equal(mask[:, 0], mask[:, 1]) for mask in masks)


def test_pieces_hold_every_spin_and_every_pair_once():
    rng = np.random.default_rng(0)
    keys = rng.choice(40 * 39 // 2, 25, replace=False)
    graph = gp.graphs.Graph(40, gp.all_pairs(40)[keys])
    found = pieces(graph)
    assert sorted(np.concatenate([p.elements.ravel() for p in found]).tolist()) == list(range(40))
    assert sorted(np.concatenate([p.edges.ravel() for p in found]).tolist()) == list(range(25))
    for piece in found:
        for elements, edges in zip(piece.elements, piece.edges):
            back = {frozenset(elements[pair]) for pair in piece.graph.pairs}
            assert back == {frozenset(graph.pairs[edge].tolist()) for edge in edges}


# -- in a pruner -------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block whose shortcut is a projection."""

    def __init__(self):
        super().__init__()
        self.first, self.body, self.short = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(4, 6, 1)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = self.first(x).relu()
        return self.head((self.body(x) + self.short(x)).relu().mean((2, 3)))


PAIRS = {("body", "short"): gp.kth_pairs}
RELATIVE = gp.Linear("square", relative=True)


def pruner_of(strength=-0.5, sparsity=0.5, pairs=PAIRS, **options):
    torch.manual_seed(0)
    energy = gp.Pairwise(pairs, strength, "network", RELATIVE, centred=True)
    options = {"include": ["first", "body", "short"], "schedule": lambda epoch: 2.0 + epoch} | options
    return gp.GibbsPruner(Block(), sparsity, "filter", energy, **options)


@pytest.mark.parametrize("options", [{}, {"sampler": "coloured", "warm": True, "sweeps": 2}, {"importance": "taylor"}])
def test_a_pruner_goes_on_where_it_was_saved(options):
    one, two = (pruner_of(**options) for _ in range(2))
    x = torch.randn(8, 3, 8, 8, generator=seeded(1))
    for step in range(3):
        one.set_epoch(step)
        one.model(x).square().mean().backward()
        one.step()
    two.model.load_state_dict(one.model.state_dict())
    two.load_state_dict(one.state_dict())
    seen = set()
    for _ in range(3):
        for pruner in (one, two):
            pruner.step()
        masks = [{name: masked.mask for name, masked in pruner.masks.items()} for pruner in (one, two)]
        assert all(torch.equal(masks[0][name], masks[1][name]) for name in masks[0])
        seen.add(tuple(masks[0]["body"][:, 0, 0, 0].tolist()))
        assert all(torch.equal(m, m[:, :1, :1, :1].expand_as(m)) for m in masks[0].values())
    assert len(seen) > 1 or "importance" in options  # whose fields are strong


def test_filters_that_are_added_go_together_and_compaction_removes_them():
    pruner = pruner_of(-3.0)
    assert "independent (exact) in 1 layer, transfer (exact) in 2 layers" in str(pruner.summary())
    pruner.set_epoch(1e6)
    pruner.step()
    with pytest.warns(UserWarning, match="masks have not converged"):
        model = pruner.finalize(draw="sample").eval()
    kept = [(layer.weight != 0).flatten(1).any(1) for layer in (model.body, model.short)]
    assert torch.equal(*kept)
    assert 0 < int(kept[0].sum()) < 6
    for layer in (model.body, model.short):
        nn.init.zeros_(layer.bias)
    small = gp.compact(model, torch.randn(1, 3, 8, 8))
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters()) / 1.5


def test_a_pruner_ends_with_converged_masks_and_a_sparsity_that_rises():
    pruner = pruner_of(sparsity=gp.CubicSchedule(0.0, 0.5, 4))
    assert all(bool(masked.mask.all()) for masked in pruner.masks.values())
    for epoch in range(6):
        pruner.set_epoch(epoch)
        pruner.step()
    assert 0 <= pruner.agreement() <= 1
    model = pruner.finalize()
    assert all(int((w.weight != 0).flatten(1).any(1).sum()) * 2 == len(w.weight) for w in (model.body, model.short))


@pytest.mark.parametrize("sampler", ["auto", "coloured"])
def test_diagnostics_share_the_energy_out(sampler):
    """The layers' energies add up to H of the network, by hand from the masks that are in place."""
    pruner = pruner_of(sampler=sampler)
    told = pruner.diagnostics(draws=4)
    assert [layer.name for layer in told.layers] == ["first", "body", "short"]
    assert told.mixed
    drawing = pruner._drawing
    names = drawing.by_device()[0]
    masks = [pruner.masks[name].mask for name in names]
    law = drawing._law(names)
    found = law.groups[0].energies(drawing._weights(names), masks)
    total = 0.0
    for name, mask in zip(names, masks):
        weight, site = pruner.layers[name].stored.detach().double(), drawing.sites[name]
        means = weight.flatten(1).square().mean(1)
        q = float(gp.threshold(weight, site.sparsity, "filter"))
        total += float(((1 - means / q) * (2 * mask[:, 0, 0, 0].double() - 1)).sum())
    spins = [2 * pruner.masks[name].mask[:, 0, 0, 0].double() - 1 for name in ("body", "short")]
    mean = 2 * 3 / 6 - 1
    total += float((-0.5 * (spins[0] - mean) * (spins[1] - mean)).sum())
    assert sum(found.values()) == pytest.approx(total, rel=1e-5)


def test_a_layer_without_a_sparsity_has_no_part_in_pairs():
    before = torch.get_rng_state()
    with pytest.raises(UserError, match="pairs name layer 'short', which is not drawn with the others"):
        pruner_of(sparsity={"first": 0.5, "body": 0.5, "short": 0.0})
    torch.set_rng_state(before)
    assert pruner_of(sparsity={"first": 0.0, "body": 0.5, "short": 0.5}).beta == 2.0


def test_the_law_has_no_gradient_across_layers():
    energy = gp.Pairwise(PAIRS, -0.5, "network", RELATIVE)
    with pytest.raises(UserError, match="gradient is 'law'"):
        gp.GibbsPruner(Block(), 0.5, "filter", energy, include=["first", "body", "short"], gradient="law")
