"""What the Triton kernels must do, on any device: with few rows in Triton's interpreter, with many on a GPU.

Run as a script, ``TRITON_INTERPRET=1 python triton_checks.py exact``, it checks kernels in the interpreter, which
must be chosen before Triton is imported. It takes a tenth of a second for a row, nearly all of it for Triton's random
numbers, which are therefore made by numpy here: the same ones, bit for bit, which is checked as well.

Frequencies of events (a spin is up, two spins agree, the sum is large) are held against their probabilities from
enumeration by exact binomial tests, and the means of Σ h_i x_i and S² (or S_A S_B), to which the law's scale of h and J
shows most, by Chernoff's bound. A comparison fails where its p-value is under ALPHA = 1e-6; there are fewer than 500 of
them, so that all together raise a false alarm with probability under 5e-4 for a new kernel; seeds are fixed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from scipy import optimize, special, stats

import gibbsprune as gp
from gibbsprune.law import Law
from gibbsprune.samplers import SWEEPS, Rows, Source, chromatic
from gibbsprune.site import Site
from gibbsprune.threshold import Segments

ALPHA = 1e-6


def seeded(seed: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def numbers(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, generator=seeded(seed))


def source(device: str, rows: list[int], size: int, seeds: list[int]) -> Source:
    return Source([seeded(seed, device) for seed in seeds], rows, size, device)


# -- Triton's random numbers, by numpy ---------------------------------------------------------------------------------


def philox(seed: np.ndarray, offset: np.ndarray) -> list[np.ndarray]:
    """Four words for each seed and offset, as ``tl.randint4x`` makes them: ten rounds of Philox."""
    low = np.uint64(0xFFFFFFFF)
    seed, offset = np.broadcast_arrays(seed.astype(np.uint64), offset.astype(np.uint64))
    k0, k1 = seed & low, seed >> np.uint64(32)
    c0, c1 = offset & low, offset >> np.uint64(32)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & low, (a >> np.uint64(32)) ^ c3 ^ k1, a & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return [c.astype(np.uint32) for c in (c0, c1, c2, c3)]


def uniform(word: np.ndarray) -> np.ndarray:
    """On [0, 1) from a word, as ``tl.rand4x`` does it."""
    signed = word.view(np.int32)
    return np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10)


def hasten_interpreter(words: Callable[[np.ndarray, np.ndarray], list[np.ndarray]] = philox) -> None:
    """Puts other words in the place of those that Triton's own generator makes: the same ones by default."""
    import triton.language as tl

    def as_tensors(made, kind, offset):
        block = tl.block_type(kind, list(made[0].shape)) if made[0].shape else kind
        return tuple(tl.tensor(type(offset.handle)(values, kind), block) for values in made)

    def randint4x(seed, offset):
        return as_tensors(words(seed.handle.data, offset.handle.data), tl.uint32, offset)

    def rand4x(seed, offset):
        made = words(seed.handle.data, offset.handle.data)
        return as_tensors([uniform(word) for word in made], tl.float32, offset)

    tl.randint4x, tl.rand4x, tl.rand = randint4x, rand4x, lambda seed, offset: rand4x(seed, offset)[0]


# -- laws by hand ------------------------------------------------------------------------------------------------------


def states(size: int) -> np.ndarray:
    """All configurations of ±1, the first spin the lowest bit."""
    return np.where((np.arange(1 << size)[:, None] >> np.arange(size)) & 1, 1.0, -1.0)


def complete_law(field: np.ndarray, coupling: float) -> np.ndarray:
    """p(x) ∝ exp(J S²/2 − Σ h_i x_i) by enumeration."""
    x = states(len(field))
    return special.softmax(coupling * x.sum(1) ** 2 / 2 - x @ field)


def chain_law(field: np.ndarray, coupling: float, split: int, sweeps: int) -> np.ndarray:
    """The chromatic chain's law after so many sweeps from the all-or-nothing law, by matrix products."""
    x = states(len(field))
    law = np.zeros(len(x))
    law[-1], law[0] = special.expit(-2 * field.sum()), special.expit(2 * field.sum())
    first = np.arange(len(field)) < split
    sweep = np.eye(len(x))
    for half in (first, ~first):
        pull = coupling * x[:, ~half].sum(1)
        chance = special.expit(2 * x[None, :, half] * (pull[:, None, None] - field[half])).prod(2)
        sweep = sweep @ np.where((x[:, None, ~half] == x[None, :, ~half]).all(2), chance, 0.0)
    return law @ np.linalg.matrix_power(sweep, sweeps)


def log_masses(field: np.ndarray) -> np.ndarray:
    """log Σ exp(−Σ h_i x_i) over the states of each sum S = −n, −n + 2, …, n, by adding spin after spin."""
    table = np.array([0.0])
    for h in field:
        table = np.logaddexp(np.append(table + h, -np.inf), np.append(-np.inf, table - h))
    return table


def log_sum(field: np.ndarray, coupling: float) -> float:
    """log Σ exp(J S²/2 − Σ h_i x_i) over all states."""
    return special.logsumexp(log_masses(field) + coupling * np.arange(-len(field), len(field) + 1, 2.0) ** 2 / 2)


def sums_and_spins(field: np.ndarray, coupling: float) -> tuple[np.ndarray, np.ndarray]:
    """p(S) and P(x_i = +1) of a neighbourhood too large to enumerate."""
    size = len(field)
    sums = np.arange(-size, size + 1, 2.0)
    law = log_masses(field) + coupling * sums**2 / 2
    total = special.logsumexp(law)
    others = np.arange(-size + 1, size, 2.0)
    up = [log_masses(np.delete(field, i)) - field[i] + coupling * (others + 1) ** 2 / 2 for i in range(size)]
    return np.exp(law - total), np.exp([special.logsumexp(part) - total for part in up])


# -- statistics --------------------------------------------------------------------------------------------------------


def check_event(happened: np.ndarray, probability: float, label: str) -> None:
    p = stats.binomtest(int(happened.sum()), len(happened), min(1.0, max(0.0, float(probability)))).pvalue
    assert p > ALPHA, f"{label}: {happened.mean():.4f} of {len(happened)}, not {probability:.4f} (p = {p:.1e})"


def check_mean(observed: np.ndarray, cumulants: Callable[[float], float], label: str) -> None:
    """The mean of T against its law, given as K(t) = log E exp(tT): P(mean beyond m) ≤ exp(−N sup_t (tm − K(t)))."""
    mean = float(observed.mean())
    rate = -optimize.minimize_scalar(lambda t: cumulants(t) - t * mean, bounds=(-3, 3), method="bounded").fun
    p = 2 * np.exp(-len(observed) * max(0.0, rate))
    expected = (cumulants(1e-5) - cumulants(-1e-5)) / 2e-5
    assert p > ALPHA, f"{label}: mean {mean:.4f} of {len(observed)}, not {expected:.4f} (p < {p:.1e})"


def check_sums(spins: np.ndarray, law: np.ndarray, label: str) -> None:
    """The distribution function of S, and of |S|, at every value."""
    size = spins.shape[1]
    values, total = np.arange(-size, size + 1, 2), spins.sum(1)
    for value in values[1::2]:
        check_event(total >= value, law[values >= value].sum(), f"{label} P(S >= {value})")
        if value > 0:
            check_event(abs(total) >= value, law[abs(values) >= value].sum(), f"{label} P(|S| >= {value})")


def check_small(mask: torch.Tensor, field: torch.Tensor, law: np.ndarray, split: int, label: str) -> None:
    """Every spin, neighbouring pairs, sums and energies, against the probabilities of all states."""
    spins, h = np.where(mask.cpu().numpy(), 1, -1), field.double().numpy()
    size = spins.shape[1]
    x = states(size)
    for i in range(size):
        check_event(spins[:, i] > 0, law[x[:, i] > 0].sum(), f"{label} spin {i}")
        agree = x[:, i] == x[:, i - 1]
        check_event(spins[:, i] == spins[:, i - 1], law[agree].sum(), f"{label} spins {i - 1} and {i} agree")
    check_sums(spins, np.array([law[x.sum(1) == s].sum() for s in range(-size, size + 1, 2)]), label)
    quantities = {"field": lambda x: x @ h, "S squared": lambda x: x.sum(1) ** 2,
                  "S_A S_B": lambda x: x[:, :split].sum(1) * x[:, split:].sum(1)}  # fmt: skip
    for name, quantity in quantities.items():
        values = quantity(x)
        check_mean(quantity(spins), lambda t, v=values: special.logsumexp(t * v, b=law), f"{label} {name}")


def check_large(mask: torch.Tensor, field: torch.Tensor, coupling: float, label: str) -> None:
    spins, h = np.where(mask.cpu().numpy(), 1, -1), field.double().numpy()
    law, up = sums_and_spins(h, coupling)
    check_sums(spins, law, label)
    for i, probability in enumerate(up):
        check_event(spins[:, i] > 0, probability, f"{label} spin {i}")
    squares = np.arange(-len(h), len(h) + 1, 2.0) ** 2
    check_mean(spins.sum(1) ** 2, lambda t: special.logsumexp(t * squares, b=law), f"{label} S squared")
    whole = log_sum(h, coupling)
    check_mean(spins @ h, lambda t: log_sum((1 - t) * h, coupling) - whole, f"{label} field")


def alternating(fields: torch.Tensor, couplings: list[float], rows: int, device: str):
    """Rows that take the laws in turn, so that a row that reads another's field is noticed."""
    count = len(fields)
    field = fields.repeat(rows, 1).to(device)
    return (
        field,
        torch.tensor(couplings).repeat(rows)[:, None].to(device),
        [slice(k, None, count) for k in range(count)],
    )


# -- thresholds --------------------------------------------------------------------------------------------------------


def check_thresholds(device: str, rows: int) -> None:
    """Bit for bit what sorting gives: ties, single elements, segments at and over the edge of a block, zeros, inf.

    With a program for every block, and with so few programs that each works through several.
    """
    lengths = [1, 2, 3, 2048, 2049, 4097, 1, 70]
    cases = [([0.5] * 8, 2048, 11), ([0.0, 0.3, 0.9, 0.75, 0.95, 0.999, 0.7, 0.1], 2, 8)]
    for seed, (sparsities, programs, pieces) in enumerate(cases):
        segments = Segments(lengths, sparsities)
        with mock.patch.object(sys.modules[Segments.__module__], "PROGRAMS", programs):
            assert len(segments.pieces(torch.device(device))) == pieces
        plain = numbers(sum(lengths), seed=seed).square()
        coarse = (4 * plain).round() / 4  # nearly all of them tied
        wide = plain * 10.0 ** torch.linspace(-38, 38, len(plain))[torch.randperm(len(plain), generator=seeded(seed))]
        wide[::7] = 0.0
        assert bool(wide.isinf().any()), "no inf among them"
        constant = torch.full_like(plain, 0.3)
        for values in (plain, coarse, wide, constant, torch.zeros_like(plain), plain):
            found, expected = segments._radix(values.to(device)), segments._selected(values)
            assert torch.equal(found.cpu(), expected), (seed, found, expected)
            kept = segments._converged_radix(values.to(device)).cpu()
            assert torch.equal(kept, segments.converged(values)), (seed, kept)


# -- independent spins -------------------------------------------------------------------------------------------------


def field(kind: str, value: np.ndarray, q: float) -> np.ndarray:
    return {"sign": np.sign(q - value), "square": q - value, "abs": np.sqrt(q) - np.sqrt(value)}[kind]


def independent(device: str, values, q, beta, kind: str, lengths: list[int], source: Source) -> torch.Tensor:
    """One mask of layers of so many neighbourhoods, by the kernel."""
    from gibbsprune.samplers import independent_triton as kernel

    pieces = Segments(lengths, [0.5] * len(lengths)).pieces(torch.device(device), source.size)
    tensors = [torch.as_tensor(t, dtype=torch.float32).to(device) for t in (values, q, beta)]
    return kernel.draw_layers(*tensors, source, pieces, kind).cpu()


def check_independent(device: str, rows: int) -> None:
    values, q, betas = np.array([0.0, 0.01, 0.2, 0.5, 0.9, 2.0]), [0.5, 0.3], [1.3, 0.4]
    counts = [3 * rows, rows]  # two layers with a Q and a β of their own
    lengths = [6 * count for count in counts]
    for kind, size in (("sign", 1), ("sign", 3), ("square", 1), ("abs", 1)):
        drawn = independent(
            device, np.tile(values, 4 * rows), q, betas, kind, lengths, source(device, [2], size, [size])
        )
        for layer, mask in enumerate(drawn.split(lengths)):
            kept = mask.view(counts[layer], 6, size).numpy()
            for k, a in enumerate(field(kind, values, q[layer])):
                chance = special.expit(-2 * betas[layer] * a)
                for c in range(size):
                    check_event(kept[:, k, c], chance, f"independent {kind}, layer {layer}, w² = {values[k]}, {c}")

    # A run draws the same alone as among others, however long the programs' pieces are, and something else next time.
    def toss(lengths: list[int], source: Source) -> torch.Tensor:
        ones = [1.0] * len(lengths)
        return independent(device, np.ones(sum(lengths)), ones, ones, "square", lengths, source)

    both = source(device, [2, 2], 1, [1, 2])
    coins, again = toss([100, 5000, 1, 5000], both), toss([100, 5000, 1, 5000], both)
    with mock.patch.object(sys.modules[Segments.__module__], "PROGRAMS", 1):
        assert torch.equal(coins, toss([100, 5000, 1, 5000], source(device, [2, 2], 1, [1, 2])))
    assert torch.equal(coins[5100:], toss([1, 5000], source(device, [2], 1, [2])))
    first, second = coins[100:5100, 0].numpy(), coins[5101:, 0].numpy()
    check_event(first, 0.5, "independent coins")
    check_event(first == second, 0.5, "independent runs")
    check_event(first == again[100:5100, 0].numpy(), 0.5, "independent draws")
    check_event(first[:100] == coins[:100, 0].numpy(), 0.5, "independent layers")
    for apart in (1, 2, 511, 512, 513, 1024, 1536, 2048):  # numbers are made four at a time, a quarter of a block apart
        check_event(first[apart:] == first[:-apart], 0.5, f"independent weights {apart} apart")

    # What is rarer than random numbers can tell is not made frequent; a weight on Q is a fair coin at any β.
    count = (10_000 if device == "cuda" else 50) * rows
    for chance in (1e-9, 1e-12):
        beta = -special.logit(chance) / 2
        for value, rare in ((0.0, True), (2.0, False)):
            given = (np.full(count, value, np.float32), [1.0], [beta], "square", [count])
            mask = independent(device, *given, source(device, [1], 1, [3]))
            check_event((mask[:, 0] == rare).numpy(), chance, f"independent P = {chance}")
    mask = independent(device, np.ones(9000), [1.0], [3e38], "square", [9000], source(device, [1], 1, [4]))
    check_event(mask[:, 0].numpy(), 0.5, "independent on the threshold")

    check_law(device)


class Own(gp.Hamiltonian):
    """A field that no kernel knows."""

    def field(self, squares: torch.Tensor, means: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
        return threshold - squares.sqrt() * squares


def check_law(device: str) -> None:
    """Layers of several runs through :class:`Law`, which leaves to the kernel what it can do."""
    from gibbsprune.samplers import independent_triton as kernel

    kinds = [(gp.Weight(), gp.Linear("square")), (gp.Weight(), gp.Linear("abs")), (gp.Weight(), gp.Linear("sign")),
             (gp.Filter(), gp.Linear("sign")), (gp.Kernel(), gp.Quadratic())]  # fmt: skip
    shapes = [((40, 30), 0.3), ((60, 70), 0.9)]
    sites = [Site(shape, structure, h, p, run=run) for run in (0, 1) for structure, h in kinds for shape, p in shapes]
    sites.append(Site((40, 30), gp.Weight(), Own(), 0.5))
    weights = [numbers(*site.shape, seed=k) for k, site in enumerate(sites)]

    def draw(some: list[int], betas: list[float], seeds: list[int]) -> list[torch.Tensor]:
        law = Law([replace(sites[i], run=sites[i].run if len(betas) > 1 else 0) for i in some])
        beta = torch.tensor(betas, dtype=torch.float64, device=device)
        made = law.draw([weights[i].to(device) for i in some], beta, [seeded(s, device) for s in seeds])
        return [mask.cpu() for mask in made]

    here = mock.patch("gibbsprune.samplers.in_triton", lambda values: values.dtype == torch.float32)
    with here, mock.patch.object(kernel, "draw_layers", wraps=kernel.draw_layers) as used:
        frozen = draw(list(range(len(sites) - 1)), [1e7, 1e7], [0, 1])
        assert used.call_count == len(kinds) + 1  # filters of two sizes
        for site, weight, mask in zip(sites, weights, frozen):
            assert mask.shape == weight.shape
            differ = int((mask != gp.converged_mask(weight, site.sparsity, site.structure)).sum())
            assert differ <= 1, (site, differ)  # a weight beside Q
        second = [i for i, site in enumerate(sites) if site.run == 1]
        together = draw(list(range(len(sites) - 1)), [0.1, 0.5], [0, 1])
        for i, mask in zip(second, draw(second, [0.5], [1])):
            assert torch.equal(together[i], mask), sites[i]
        used.reset_mock()
        draw([len(sites) - 1], [1.0], [0])
        assert not used.called


def check_words() -> None:
    """So many of all 2^32 words draw the rarer state as its probability says, up to half a word and float32's rounding.

    In the interpreter alone, where any word can be put in the place of a random one: found by bisection.
    """
    tails = special.logit(np.append(0.5, 10.0 ** -np.arange(1, 13)))
    t = np.append(tails, -tails).astype(np.float32)
    count = len(t)
    q, values = np.where(t < 0, -t / 2, 0), np.where(t > 0, t / 2, 0)  # −2(Q − w²) = t
    low, high = np.zeros(count, np.int64), np.full(count, 1 << 32)
    numbered = SimpleNamespace(size=1, seeds=lambda: torch.arange(count))
    while (low < high).any():
        word = (low + high) // 2
        hasten_interpreter(lambda seed, offset, w=word: [np.full(offset.shape, w[int(seed.flat[0])], np.uint32)] * 4)
        mask = independent("cpu", values, q, np.ones(count), "square", [1] * count, numbered)[:, 0].numpy()
        rarer = mask != (t > 0)
        low, high = np.where(rarer, word + 1, low), np.where(rarer, high, word)
    expected = 2.0**32 * special.expit(-abs(t.astype(np.float64)))
    assert (abs(low - expected) <= 0.5 + 2e-6 * expected).all(), low / expected
    hasten_interpreter()


# -- the exact sampler -------------------------------------------------------------------------------------------------


def ground_states(size: int, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Strong fields and couplings, and the one mask that they leave: others are less likely by e^−25 and more.

    The fields alone would leave another, and so would half the coupling or twice it. Since −J S²/2 depends on S alone,
    the best mask of each S keeps the elements of the lowest fields.
    """
    rng, found = np.random.default_rng(size), []
    sums = np.arange(-size, size + 1, 2.0)
    while len(found) < rows:
        h, j = rng.normal(rng.normal(0, 10), 60, size), rng.uniform(40, 160) / size
        order = np.argsort(h)
        partial = np.append(0, np.cumsum(2 * h[order])) - h.sum()
        best = [np.sort(partial - factor * j * sums**2 / 2) for factor in (0, 0.5, 1, 2)]
        kept = [int(np.argmin(partial - factor * j * sums**2 / 2)) for factor in (0, 0.5, 1, 2)]
        if best[2][1] - best[2][0] > 25 and kept[2] not in (kept[0], kept[1], kept[3]) and 0 < kept[2] < size:
            found.append((h, j, np.isin(np.arange(size), order[: kept[2]])))
    fields, couplings, masks = (np.array(column) for column in zip(*found))
    return torch.from_numpy(fields).float(), torch.from_numpy(couplings).float()[:, None], torch.from_numpy(masks)


def check_exact(device: str, rows: int) -> None:
    from gibbsprune.samplers import exact_triton as kernel

    # Kernels of nine: disorder and the onset of order.
    signs = torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1, 1])
    fields = torch.stack([0.7 * signs, 1.2 * signs])
    couplings = [0.15, 0.25]
    field, coupling, parts = alternating(fields, couplings, rows, device)
    mask = kernel.draw(Rows(field, coupling, source(device, [len(field)], 9, [0])))
    for part, h, j in zip(parts, fields, couplings):
        check_small(mask[part], h, complete_law(h.double().numpy(), j), 5, f"exact n = 9, J = {j}")

    # Rows of forty: weak fields, for which the proposal is made, at the transition.
    h = numbers(40, seed=3, scale=0.3).sign() * 0.25 + 0.01
    field, coupling, _ = alternating(h[None], [0.025], rows, device)
    mask = kernel.draw(Rows(field, coupling, source(device, [rows], 40, [1])))
    check_large(mask, h, 0.025, "exact n = 40")

    for size in (2, 9, 17, 40):  # fields that decide; sizes and numbers of rows that fill no block
        h = torch.where(numbers(5, size, seed=size) > 0, 12.0, -12.0)
        mask = kernel.draw(Rows(h.to(device), torch.full((5, 1), 1e-3, device=device), source(device, [5], size, [3])))
        assert torch.equal(mask.cpu(), h < 0), size
    for size in (9, 40):  # fields and couplings that decide together
        h, j, expected = ground_states(size, 6)
        mask = kernel.draw(Rows(h.to(device), j.to(device), source(device, [6], size, [2])))
        assert torch.equal(mask.cpu(), expected), f"ground states of {size}"
        great = [(tensor[:2] * 1e12).to(device) for tensor in (h, j)]
        mask = kernel.draw(Rows(*great, source(device, [2], size, [2])))
        assert torch.equal(mask.cpu(), expected[:2]), f"ground states of {size}, β great"

    # A coupling so strong that p(u) is a comb, and fields with which no S is far from the best.
    h = torch.arange(-8.0, 9, 2) * 100 + numbers(9, seed=6, scale=0.3)
    field, coupling, _ = alternating(h[None], [100.0], rows, device)
    mask = kernel.draw(Rows(field, coupling, source(device, [rows], 9, [6])))
    check_small(mask, h, complete_law(h.double().numpy(), 100.0), 5, "exact n = 9, J = 100")

    for size in (9, 40):  # two states: all or nothing with probability σ(−2 Σ h)
        field = numbers(size, seed=4, scale=0.1)
        field = (field + (1.5 - field.sum()) / size).repeat(rows, 1)
        field[0], field[1] = 3.0, -3.0
        coupling = torch.full((rows, 1), 60.0 / size, device=device)
        mask = kernel.draw(Rows(field.to(device), coupling, source(device, [rows], size, [4]))).cpu()
        assert torch.equal(mask.all(1), mask.any(1)), f"a row of {size} is neither kept nor pruned whole"
        assert mask[:2, 0].tolist() == [False, True]
        check_event(mask[2:, 0].numpy(), special.expit(-3.0), f"exact two states of {size}")

    # A two-state row beside others in one program: each has its own way.
    h = torch.stack([torch.full((9,), 3.0), numbers(9, seed=5).sign() * 12, torch.full((9,), -3.0)])
    j = torch.tensor([[9.0], [1e-3], [9.0]])
    mask = kernel.draw(Rows(h.to(device), j.to(device), source(device, [3], 9, [5]))).cpu()
    assert torch.equal(mask, h < 0)

    for size in (9, 40):
        check_streams(lambda h, j, s: kernel.draw(Rows(h, j, s)), device, size)


# -- the chromatic chain -----------------------------------------------------------------------------------------------


def staircase(size: int, split: int) -> tuple[torch.Tensor, float]:
    """Fields and a coupling so strong that nothing is left to chance, by which each half-sweep turns one more spin up.

    All start down, which the last spin's large field sees to; spin k of a half turns when k of the other (k + 1 in the
    second half) have turned.
    """
    coupling, second = 16.0, size - split
    h = torch.empty(size)
    for k in range(split):
        h[k] = coupling * (2 * k - second - 1)
    for k in range(second):
        h[split + k] = coupling * (2 * k - split + 1)
    h[-1] = 4 * coupling * size**2
    return h, coupling


def check_chromatic(device: str, rows: int) -> None:
    from gibbsprune.samplers import chromatic_triton as kernel

    # From the initial law, after two sweeps.
    signs = torch.tensor([1.0, 1, 1, 1, -1, -1])
    fields = torch.stack([0.6 * signs, 0.3 * signs.flip(0) + 0.1])
    couplings = [0.3, 0.5]
    field, coupling, parts = alternating(fields, couplings, rows, device)
    mask = kernel.draw(Rows(field, coupling, source(device, [len(field)], 6, [0]), 4, 2))
    for part, h, j in zip(parts, fields, couplings):
        check_small(mask[part], h, chain_law(h.double().numpy(), j, 4, 2), 4, f"chromatic J = {j}")

    # Sweep by sweep: so many spins of each half are up after so many sweeps, as in PyTorch.
    for size, split in ((9, 5), (21, 12), (40, 24)):
        h, j = staircase(size, split)
        field, coupling = h.repeat(2, 1), torch.full((2, 1), j)
        for sweeps in (1, 2, 3, 4, 5, 7) if size == 21 else (6,):
            expected = torch.zeros(size, dtype=torch.bool)
            expected[: min(sweeps, split, size - split)] = True
            expected[split : split + min(sweeps, size - split - 1)] = True
            plain = chromatic.draw(Rows(field, coupling, source("cpu", [2], size, [1]), split, sweeps))
            mask = kernel.draw(
                Rows(field.to(device), coupling.to(device), source(device, [2], size, [1]), split, sweeps)
            )
            assert torch.equal(plain, expected.expand(2, -1)), "the staircase is not one"
            assert torch.equal(mask.cpu(), plain), (size, sweeps)

    # Inside a half nothing is coupled: beside a half of sum zero the other's spins are free, however strong J is.
    h = torch.tensor([-12.0, 12, -12, 12, 0, 0, 0, 0])
    field = h.repeat(rows, 1).to(device)
    mask = (
        kernel.draw(Rows(field, torch.ones(rows, 1, device=device), source(device, [rows], 8, [7]), 4, 1)).cpu().numpy()
    )
    for i in range(4, 8):
        check_event(mask[:, i], 0.5, f"chromatic spin {i} beside a half of sum zero")
    check_event(mask[:, 4] == mask[:, 5], 0.5, "chromatic spins of one half")

    # Frozen rows keep the initial law.
    field = torch.full((rows, 9), 1 / 6)
    field[0], field[1] = 3.0, -3.0
    coupling = torch.full((rows, 1), 8.0, device=device)
    mask = kernel.draw(Rows(field.to(device), coupling, source(device, [rows], 9, [8]), 5, SWEEPS)).cpu()
    assert torch.equal(mask.all(1), mask.any(1))
    assert mask[:2, 0].tolist() == [False, True]
    check_event(mask[2:, 0].numpy(), special.expit(-3.0), "frozen chain")

    check_streams(lambda h, j, s: kernel.draw(Rows(h, j, s, 5, 2)), device, 9)


def check_streams(draw, device: str, size: int) -> None:
    """A run draws the same alone as among others, and something else the next time."""
    h = numbers(5, size, seed=9, scale=0.1).to(device)
    j = torch.full((5, 1), 0.5 / size, device=device)
    both = source(device, [3, 2], size, [1, 2])
    together, again = draw(h, j, both), draw(h, j, both)
    assert torch.equal(together[3:], draw(h[3:], j[3:], source(device, [2], size, [2])))
    assert not torch.equal(together, again)


# -- convolutions ------------------------------------------------------------------------------------------------------


def check_convolutions(device: str, rows: int) -> None:
    """What ``conv2d`` computes, gradients included: the shapes of the networks, odd sizes, runs as channels or not."""
    from gibbsprune.training import conv_triton as kernel

    shapes = [(3, 16, 3, 1), (3, 16, 3, 2), (8, 16, 3, 1), (16, 32, 3, 1), (16, 32, 3, 2), (16, 32, 1, 2)]
    shapes += [(32, 16, 1, 1), (32, 64, 3, 2), (32, 64, 1, 2), (64, 32, 3, 1)]
    for number, shape in enumerate(shapes):
        assert kernel.suits(*shape)
        for height, width in ((8, 8), (5, 7)):
            compare_convolutions(device, kernel.convolve, *shape, height, width, number)
    unsuitable = [(16, 24, 3, 1), (16, 32, 5, 1), (16, 32, 3, 3), (4, 16, 1, 1), (256, 16, 1, 1), (16, 256, 3, 1)]
    assert not any(kernel.suits(*shape) for shape in unsuitable)


def check_rows(device: str, rows: int) -> None:
    """The same for square convolutions row by row: images of one piece and of several, more strips than a block."""
    from gibbsprune.training import conv_rows_triton as kernel

    def convolve(x, weight, runs, stride):
        return kernel.convolve(x, weight, runs)

    for channels, height, width in ((16, 8, 8), (16, 19, 5), (32, 5, 7), (16, 1, 70)):
        assert kernel.suits(channels)
        compare_convolutions(device, convolve, channels, channels, 3, 1, height, width, channels + height)
    assert not kernel.suits(24)


def compare_convolutions(device, convolve, inputs, outputs, side, stride, height, width, number) -> None:
    kind, error = (torch.float32, 1e-5) if device == "cpu" else (torch.bfloat16, 2e-2)
    runs, batch, again = 2 + number % 2, 2, inputs >= 16
    x = numbers(batch, runs * inputs, height, width, seed=number).to(kind).float()
    w = numbers(runs * outputs, inputs, side, side, seed=number + 50, scale=0.1).to(kind).float()
    expected = F.conv2d(x.requires_grad_(again), w.requires_grad_(), None, stride, side // 2, groups=runs)
    slope = numbers(*expected.shape, seed=number + 90).to(kind).float()
    answers = [expected, *torch.autograd.grad(expected, [x, w] if again else [w], slope)]
    for form in (torch.channels_last, torch.contiguous_format)[: 1 + (height == 5)]:
        image = x.detach().to(device, kind, memory_format=form).requires_grad_(again)
        weight = w.detach().to(device, kind).requires_grad_()
        y = convolve(image, weight, runs, stride)
        found = [y, *torch.autograd.grad(y, [image, weight] if again else [weight], slope.to(device, kind))]
        for one, other in zip(found, answers):
            away = (one.cpu().float() - other).abs().max() / other.abs().max()
            assert one.shape == other.shape
            assert away < error, (inputs, outputs, side, stride, away)


#: Each kernel's check, and how many rows of each law the interpreter has time for.
CHECKS = {
    "threshold": (check_thresholds, 1),
    "independent": (check_independent, 200),
    "exact": (check_exact, 80),
    "chromatic": (check_chromatic, 90),
    "convolution": (check_convolutions, 1),
    "rows": (check_rows, 1),
}


DRAWING = {"independent", "exact", "chromatic"}  # which make random numbers


def check_generator() -> None:
    """The hastened interpreter draws the same as the plain one."""
    from gibbsprune.samplers import chromatic_triton, exact_triton

    def draws() -> list[torch.Tensor]:
        coins = (np.ones(3), [1.0], [1.0], "square", [3])
        out = [independent("cpu", *coins, source("cpu", [1], 1, [seed])) for seed in range(10)]
        for size, rows in ((9, 2), (40, 2)):
            h, j = numbers(rows, size, seed=size), torch.full((rows, 1), 1.0 / size)
            out.append(exact_triton.draw(Rows(h, j, source("cpu", [rows], size, [1]))))
            out.append(chromatic_triton.draw(Rows(h, j, source("cpu", [rows], size, [2]), 5, 5)))
        return out

    plain = draws()
    hasten_interpreter()
    for one, other in zip(plain, draws()):
        assert torch.equal(one, other)


if __name__ == "__main__":
    if DRAWING & set(sys.argv):
        check_generator()
    for name in sys.argv[1:]:
        if name == "independent":
            check_words()
        check, rows = CHECKS[name]
        check("cpu", rows)
        print(f"{name}: as it must be")
