"""Units: heads and neurons of a network, found in it, pruned together and removed whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gibbsprune as gp
from gibbsprune.training.sites import run_sites
from gibbsprune.training.spec import RunSpec

WIDTH, HEADS = 16, 4


class Attention(nn.Module):
    """Queries, keys and values of one layer or of three, and heads that may share keys and values."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, shared = kind, 2 if kind == "shared" else HEADS
        if kind in ("below", "beside"):
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, n * 4) for n in (HEADS, shared, shared))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "below":
            q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, 4)).permute(2, 0, 3, 1, 4)
        elif self.kind == "beside":
            q, k, v = self.qkv(x).unflatten(-1, (HEADS, 3, 4)).permute(3, 0, 2, 1, 4)
        else:
            q, k, v = (part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
            k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
        if self.kind == "by hand":
            mixed = F.dropout(torch.softmax(q @ k.transpose(-1, -2) / 2, -1), 0.1, self.training) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.attention, self.norm, self.mlp = Attention(kind), nn.LayerNorm(WIDTH), Gated()

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.attention(self.norm(x)))


def seeded(make: Callable[[], nn.Module]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def network(kind: str = "three") -> Any:
    return seeded(lambda: nn.Sequential(nn.Linear(5, WIDTH), Block(kind), nn.Linear(WIDTH, 3)))


def inputs() -> Tensor:
    return torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))


def check_removed(pruner: gp.GibbsPruner, x: Tensor, shapes: dict[str, tuple[int, ...]]) -> None:
    """Trains some steps; then eval mode, the finalized and the compact network compute the same, at these sizes."""
    model: Any = pruner.model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(2):
        pruner.set_epoch(epoch)
        model.train()(x).square().mean().backward()
        optimizer.step()
        pruner.step()
    expected = model.eval()(x)
    pruner.finalize()
    torch.testing.assert_close(model(x), expected)
    small: Any = gp.compact(model, x)
    torch.testing.assert_close(small(x), expected, atol=1e-5, rtol=1e-4)
    state = dict(small.named_parameters())
    assert {name: tuple(state[name].shape) for name in shapes} == shapes


@pytest.mark.parametrize("kind", ["three", "by hand", "shared", "below", "beside"])
def test_heads_are_found_pruned_together_and_removed_whole(kind: str) -> None:
    pruner = gp.GibbsPruner(network(kind), 0.6, structure="head", example_inputs=inputs(), epochs=2)
    units, rows = (2, 8) if kind == "shared" else (4, 4 * 2)
    fused = kind in ("below", "beside")
    queries = ["qkv"] if fused else ["q", "k", "v"]
    summary = pruner.summary()
    assert {layer.name for layer in summary.layers} == {f"1.attention.{n}" for n in (*queries, "out")}
    assert {layer.neighbourhoods for layer in summary.layers} == {units}
    assert summary.tied["1.attention.out"] == f"1.attention.{queries[0]}"
    assert f"one unit: each head of 1.attention.{queries[0]}" in str(summary)
    assert summary.skipped["1.mlp.up"] == "part of no head"
    shapes: dict[str, tuple[int, ...]] = {"1.attention.out.weight": (WIDTH, rows)}
    shapes[f"1.attention.{queries[0]}.weight"] = (3 * rows if fused else rows, WIDTH)
    if kind == "shared":
        shapes["1.attention.k.weight"] = (4, WIDTH)
    check_removed(pruner, inputs(), shapes)


def test_heads_of_torchs_own_attention_need_no_inputs() -> None:
    encoder = seeded(lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True))
    x = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(1))
    pruner = gp.GibbsPruner(copy.deepcopy(encoder), 0.6, structure="head", epochs=2)
    assert pruner.summary().tied == {"self_attn.out_proj": "self_attn.in_proj_weight"}
    check_removed(pruner, x, {"self_attn.out_proj.weight": (WIDTH, 8)})
    pruner = gp.GibbsPruner(encoder, 0.5, structure="neuron", epochs=2)
    assert pruner.summary().tied == {"linear2": "linear1"}
    check_removed(pruner, x, {"linear1.weight": (12, WIDTH), "linear2.weight": (WIDTH, 12)})


@pytest.mark.parametrize(
    ("structure", "layers"), [("head", ("attn.c_attn", "attn.c_proj")), ("neuron", ("mlp.c_fc", "mlp.c_proj"))]
)
def test_weights_that_are_stored_with_inputs_first(structure: str, layers: tuple[str, str]) -> None:
    """GPT-2, whose dense layers are of another class and layout."""
    transformers = pytest.importorskip("transformers", reason="transformers are not installed")
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=16, n_layer=1, n_head=4, n_positions=7, bos_token_id=1, eos_token_id=2
    )
    model = seeded(lambda: transformers.GPT2LMHeadModel(config)).eval()
    words = {"input_ids": torch.arange(14).view(2, 7)}
    pruner = gp.GibbsPruner(model, 0.5, structure=structure, example_inputs=words, epochs=1)
    pruner.step()
    one, two = (f"transformer.h.0.{name}" for name in layers)
    assert pruner.summary().tied == {two: one}
    expected = model(**words).logits
    sizes = {name: pruner.layers[name].stored.numel() for name in (one, two)}
    small: Any = gp.compact(pruner.finalize(), words)
    torch.testing.assert_close(small(**words).logits, expected)
    assert {name: 2 * small.get_submodule(name).weight.numel() for name in (one, two)} == sizes


@pytest.mark.parametrize("examples", [None, inputs()])
def test_neurons_with_their_gates(examples: Tensor | None) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(5, WIDTH), Gated(), nn.Linear(WIDTH, 3)))
    pruner = gp.GibbsPruner(model, 0.5, structure="neuron", example_inputs=examples, epochs=2)
    assert pruner.summary().tied == {"1.up": "1.gate", "1.down": "1.gate"}
    assert pruner.summary().skipped == {"0": "part of no neuron", "2": "part of no neuron"}
    check_removed(pruner, inputs(), {"1.gate.weight": (12, 16), "1.up.weight": (12, 16), "1.down.weight": (16, 12)})


def test_a_weight_between_two_neurons_is_the_seconds_and_no_output_leaves() -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)
        )
    )
    pruner = gp.GibbsPruner(model, 0.5, structure="neuron", epochs=1)
    assert pruner.summary().tied == {"5": "2"}
    x = torch.randn(32, 5, generator=torch.Generator().manual_seed(1))
    check_removed(pruner, x, {"0.weight": (6, 5), "2.weight": (4, 6), "5.weight": (3, 4)})


def test_neurons_of_convolutions_go_with_the_kernels_that_read_them() -> None:
    model = seeded(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3))
    )
    pruner = gp.GibbsPruner(model, 0.5, structure="neuron", epochs=1)
    assert pruner.summary().skipped == {"0": "first convolution"}
    assert pruner.summary().tied == {"4": "1"}
    x = torch.randn(2, 1, 9, 9, generator=torch.Generator().manual_seed(1))
    check_removed(pruner, x, {"1.weight": (4, 4, 3, 3), "4.weight": (6, 4, 3, 3)})


def test_what_others_read_too_is_no_neuron() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            z = self.b(y.relu()) + y
            return self.d(self.c(z).softmax(-1))

    with pytest.raises(gp.UserError, match="no neurons were found among a, b, c, d: give example_inputs"):
        gp.GibbsPruner(Twice(), 0.5, structure="neuron")


def test_units_of_ones_own_and_several_kinds_in_one_network() -> None:
    heads = gp.Unit({"*.q": "filter", "*.k": "filter", "*.v": "filter", "*.out": "column"}, units=HEADS)
    named = gp.GibbsPruner(network(), 0.6, structure=heads, law="annealed")
    found = gp.GibbsPruner(network(), 0.6, structure="head", example_inputs=inputs(), law="annealed")
    assert named.summary().tied == found.summary().tied
    for name, masked in found.masks.items():
        assert torch.equal(named.masks[name].mask, masked.mask)
    both = gp.GibbsPruner(
        network(), 0.6, include={"*.attention.*": "head", "*.mlp.*": "neuron", "2": "weight"}, example_inputs=inputs()
    )
    kinds = {layer.name: (layer.neighbourhoods, layer.size) for layer in both.summary().layers}
    assert kinds["1.attention.q"] == (4, 64)
    assert kinds["1.mlp.down"] == (24, 16)
    assert kinds["2"] == (48, 1)
    both.finalize()


def test_a_budget_shares_out_whole_units() -> None:
    pruner = gp.GibbsPruner(network(), gp.Budget(0.5), structure="head", example_inputs=inputs())
    found = {layer.name: layer.target for layer in pruner.summary().layers}
    assert len({found[f"1.attention.{name}"] for name in ("q", "k", "v", "out")}) == 1
    pruner.finalize()


def test_the_law_is_that_of_the_rows_side_by_side() -> None:
    """β decides of a head by the sum of all its weights: the frequencies of its masks against one wide layer."""
    model = network()
    pruner = gp.GibbsPruner(model, 0.6, structure="head", example_inputs=inputs(), schedule=lambda epoch: 2.0)
    layers = [f"1.attention.{name}" for name in ("q", "k", "v", "out")]
    stored = [pruner.layers[name].stored.detach() for name in layers]
    rows = torch.cat([*(w.reshape(HEADS, -1) for w in stored[:3]), stored[3].T.reshape(HEADS, -1)], 1)
    wide = gp.sample(rows, None, "filter", pruner.masks[layers[0]].sparsity, 2.0, draws=4000)
    kept = torch.zeros(HEADS)
    for _ in range(200):
        pruner.step()
        mask = pruner.masks[layers[3]].mask.T.reshape(HEADS, -1)
        kept += mask.float().mean(1)
    torch.testing.assert_close(kept / 200, wide.float().mean((0, 2)), atol=0.15, rtol=0)


def test_a_run_prunes_the_same_units() -> None:
    spec = RunSpec(structure="neuron", sparsity=0.5, settings={"units": "threshold"})
    sites = run_sites(spec, seeded(lambda: nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 3))))
    assert {name: (site.unit, site.count, site.size) for name, site in sites.items()} == {
        "0": ("0", 9, 5), "2": ("0", 9, 3),
    }  # fmt: skip
    with pytest.raises(gp.UserError, match="structure is 'head'"):
        RunSpec(method="gradual", structure="head")
    with pytest.raises(gp.UserError, match="allocation is 'global'"):
        RunSpec(structure="head", settings={"allocation": "global"})


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gp.Unit({}), "parts is {}: allowed are mappings from patterns"),
        (lambda: gp.Unit({"a": "kernel"}), "parts is 'kernel': allowed are 'filter', 'column'"),
        (lambda: gp.Unit({"a": "filter"}, units=1), "units is 1: allowed are whole numbers from 2"),
        (lambda: gp.converged_mask(torch.ones(4, 4), 0.5, "head"), "'head' is of several weights of a network"),
        (lambda: prune({"*.x": "filter"}), r"parts name '\*.x', which matches no layer"),
        (lambda: prune({"*.q": "filter", "1.*.k": "filter"}), "match 1.attention.q alone of a unit of 2"),
        (lambda: prune({"*.up": "filter", "*.out": "column"}), "match .* alone of a unit"),
        (lambda: prune({"1.mlp.up": "filter", "1.attention.out": "column"}), "24 of 1.mlp.up, 16 of 1.attention.out"),
        (lambda: prune({"1.mlp.up": "filter"}, 7), "units is 7: allowed are divisors of 24"),
        (lambda: gp.GibbsPruner(network(), 0.5, structure="head"), "no heads were found .* give example_inputs"),
        (
            lambda: gp.GibbsPruner(
                network(), lambda name: 0.5 + 0.1 * ("out" in name), "head", example_inputs=inputs()
            ),
            "sparsity is 0.5 for '1.attention.q' and 0.6 for '1.attention.out': layers of one unit",
        ),
        (
            lambda: gp.GibbsPruner(network(), 0.5, "head", "redundancy", example_inputs=inputs()),
            "hamiltonian is 'redundancy': allowed are .* with structure 'head'",
        ),
    ],
)
def test_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(gp.UserError, match=sentence):
        make()


def prune(parts: dict[str, str], units: int | None = None) -> gp.GibbsPruner:
    return gp.GibbsPruner(network(), 0.5, structure=gp.Unit(parts, units))
