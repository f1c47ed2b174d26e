"""Every weight: recurrent layers, attention, Conv1D, Bilinear, experts, embeddings and named parameters."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gibbsprune as gp
from gibbsprune.holding import hold_zeros
from gibbsprune.weights import on_request, prunable, transforms


class Tagger(nn.Module):
    """Words, a recurrent body, a dense head."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(11, 5), body, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.words(x))[0])


class Reader(nn.Module):
    """Attention with keys and values of other widths, a Bilinear and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True)
        self.pair, self.head = nn.Bilinear(8, 8, 6), nn.Linear(6, 3)
        self.gamma = nn.Parameter(torch.rand(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        y = self.attention(x, x[..., :5], x[..., :6], need_weights=False)[0]
        return self.head(self.pair(x, y) * self.gamma[:, 0])


class Experts(nn.Module):
    """Weights of several experts in one parameter, (experts, outputs, inputs) or with inputs first."""

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.num_experts, self.is_transposed = 3, is_transposed
        self.up = nn.Parameter(torch.randn((3, 5, 7) if is_transposed else (3, 7, 5)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bti,eio->bteo" if self.is_transposed else "bti,eoi->bteo", x, self.up).sum(2)


class Mixture(nn.Module):
    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.words, self.experts, self.head = nn.Embedding(11, 5), Experts(is_transposed), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.experts(self.words(x)))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(11, 8), body, nn.Linear(8, 3))


def gpt2() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=6, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = transformers.GPT2Model(config), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x, use_cache=False)[0])

    return Scores()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: Tagger(nn.LSTM(5, 6, 2, bidirectional=True, batch_first=True), 12),
    "projected": lambda: Tagger(nn.LSTM(5, 6, 2, proj_size=4, bias=False), 4),
    "gru": lambda: Tagger(nn.GRU(5, 6, 2, dropout=0.1), 6),
    "rnn": lambda: Tagger(nn.RNN(5, 6), 6),
    "reader": Reader,
    "encoder": encoder,
    "experts": lambda: Mixture(False),
    "experts, inputs first": lambda: Mixture(True),
    "gpt2": gpt2,
}


def made(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MODELS[name]()


def batch() -> Tensor:
    return torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch()).flatten(0, 1), batch().flatten() % 3)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("law", ["annealed", "rising"])
@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
@pytest.mark.parametrize("name", MODELS)
def test_every_weight_is_trained_masked_finalized_and_held(name: str, structure: str, law: str) -> None:
    model = made(name)
    names, before = [n for n, _ in model.named_parameters()], {n: id(p) for n, p in model.named_parameters()}
    weights = {n for n, layer in prunable(model).items() if n != "head" and not n.startswith("2")}
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    how: dict[str, Any] = {"structure": structure, "law": law, "gradient": "masked", "epochs": 2, "seed": 1}
    pruner = gp.GibbsPruner(model, lambda name: 0.5, example_inputs=batch(), **how)
    assert set(pruner.masks) == weights
    assert pruner.summary().others.keys() == {n for n, p in on_request(model).items() if p.stored.dim() > 1}
    for epoch in range(2):
        pruner.set_epoch(epoch)
        optimizer.zero_grad()
        loss_of(model).backward()
        for masked_name, masked in pruner.masks.items():
            gradient = pruner.layers[masked_name].stored.grad
            assert gradient is not None
            assert bool((gradient[~masked.mask] == 0).all())
            assert bool((gradient[masked.mask] != 0).any())
        optimizer.step()
        pruner.step()
    model.eval()
    converged = model(batch()).detach()
    copied = copy.deepcopy(model)
    torch.testing.assert_close(copied(batch()), converged)
    pruner.finalize("converged")
    torch.testing.assert_close(model(batch()), converged)  # eval has shown the network that comes out
    assert [n for n, _ in model.named_parameters()] == names
    assert {n: id(p) for n, p in model.named_parameters()} == before
    zeros = {n: prunable(model)[n].weight == 0 for n in weights}
    for layer in pruner.summary().layers:
        assert layer.achieved == pytest.approx(0.5, abs=1.01 / layer.neighbourhoods)
    for trained in (model, copy.deepcopy(model)):
        trained.train()
        optimizer = torch.optim.Adam(trained.parameters(), 0.1, weight_decay=0.1)
        loss_of(trained).backward()
        optimizer.step()
        assert all(bool((prunable(trained)[n].weight[zero] == 0).all()) for n, zero in zeros.items())
        assert any(bool((prunable(trained)[n].weight[~zero] != 0).all()) for n, zero in zeros.items())


@pytest.mark.parametrize("name", MODELS)
def test_states_are_saved_and_taken_off(name: str) -> None:
    model, other = made(name), made(name)
    plain = model.state_dict()
    expected = model.eval()(batch())
    pruner = gp.GibbsPruner(model, 0.5, example_inputs=batch(), epochs=1)
    again = gp.GibbsPruner(other, 0.5, seed=3, example_inputs=batch(), epochs=1)
    other.load_state_dict(model.state_dict())
    again.load_state_dict(pruner.state_dict())
    torch.testing.assert_close(model.train(False)(batch()), other.eval()(batch()))
    pruner.take_off()
    assert list(model.state_dict()) == list(plain)
    torch.testing.assert_close(model(batch()), expected)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("law", ["annealed", "rising"])
@pytest.mark.parametrize("name", ["lstm", "projected", "reader", "encoder", "experts"])
def test_masked_models_are_saved_whole_and_their_states_loaded_plain(name: str, law: str) -> None:
    model = made(name)
    pruner = gp.GibbsPruner(model, 0.5, example_inputs=batch(), law=law, epochs=1)
    back = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(back.eval()(batch()), model.eval()(batch()))
    assert [n for n, _ in back.named_parameters()] == [n for n, _ in model.named_parameters()]
    plain = made(name)
    plain.load_state_dict(gp.plain_state(model.state_dict()))
    for n, masked in pruner.masks.items():
        assert torch.equal(prunable(plain)[n].weight, pruner.layers[n].stored * masked.mask)


def test_importance_of_inputs_is_that_of_convolutions_and_linears() -> None:
    with pytest.raises(gp.UserError, match=r"not of layers 'body\.weight_ih_l0', .*: use 'taylor', or leave out with"):
        gp.GibbsPruner(made("lstm"), 0.5, importance="wanda", example_inputs=batch())
    pruner = gp.GibbsPruner(model := made("lstm"), 0.5, importance="taylor", example_inputs=batch())
    loss_of(model).backward()
    pruner.step()
    assert all(bool((score.value > 0).any()) for score in pruner._drawing.scores.values())


def test_inputs_of_recurrent_layers_are_cut_in_rows() -> None:
    for structure, cut in (("2:4", (12, 2, 4)), ("1x4", (12, 2, 4)), ("column", (12, 8))):
        model = nn.Sequential(nn.GRU(8, 4))
        gp.GibbsPruner(model, 0.5, structure, include="0.weight_ih_l0").finalize("converged")
        kept = (model[0].weight_ih_l0 != 0).view(cut).sum(0 if structure == "column" else 2)
        assert set(kept.flatten().tolist()) == {"2:4": {2}, "1x4": {0, 4}, "column": {0, 12}}[structure]


def test_a_hidden_unit_is_a_filter_and_a_gates_row_a_kernel() -> None:
    model = nn.Sequential(nn.LSTM(3, 4))
    pruner = gp.GibbsPruner(model, lambda name: 0.5, structure="filter", include="*")
    layers = {layer.name: (layer.neighbourhoods, layer.size) for layer in pruner.summary().layers}
    assert layers == {"0.weight_ih_l0": (4, 12), "0.weight_hh_l0": (4, 16)}
    pruner.finalize("converged")
    zero = (model[0].weight_ih_l0 == 0).view(4, 4, 3)
    assert int(zero.all(2).all(0).sum()) == 2, "all gates of two of four units"
    pruner = gp.GibbsPruner(nn.Sequential(nn.GRU(3, 4)), 0.5, structure="kernel", include="*")
    assert [(layer.neighbourhoods, layer.size) for layer in pruner.summary().layers] == [(12, 3), (12, 4)]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_filter_of_stacked_experts_is_an_output_of_one(is_transposed: bool) -> None:
    experts = Mixture(is_transposed)
    pruner = gp.GibbsPruner(experts, 0.5, structure="filter", include="experts*")
    assert [(layer.neighbourhoods, layer.size) for layer in pruner.summary().layers] == [(21, 5)]
    pruner.finalize("converged")
    zero = (experts.experts.up == 0).transpose(1, 2) if is_transposed else experts.experts.up == 0
    assert torch.equal(zero.any(2), zero.all(2))
    assert int(zero.all(2).sum()) == 11


def test_a_filter_of_conv1d_is_an_output_and_of_an_embedding_a_dimension() -> None:
    model = made("gpt2")
    pruner = gp.GibbsPruner(model, 0.5, structure="filter", include=["*c_fc", "*wte"])
    found = {layer.name: (layer.neighbourhoods, layer.size) for layer in pruner.summary().layers}
    assert found == {"body.h.0.mlp.c_fc": (32, 8), "body.wte": (8, 11)}


def test_parameters_are_pruned_by_name_with_a_structure_of_their_own() -> None:
    model = made("reader")
    kinds: Any = {"gamma": "weight", "pair": gp.Filter()}
    pruner = gp.GibbsPruner(model, lambda name: 0.5, structure="filter", include=kinds)
    found = {layer.name: (layer.neighbourhoods, layer.size) for layer in pruner.summary().layers}
    assert found == {"pair": (6, 64), "gamma": (12, 1)}
    pruner.finalize("converged")
    assert int((model.gamma == 0).sum()) == 6
    with pytest.raises(gp.UserError, match=r"^structure is 'row': allowed are"):
        gp.GibbsPruner(made("reader"), include={"gamma": "row"})
    with pytest.raises(gp.UserError, match=r"^include rule 'delta' matches no layer"):
        gp.GibbsPruner(made("reader"), include={"delta": "weight"})
    with pytest.raises(gp.UserError, match=r"^exclude is \{'gamma': 'weight'\}: allowed are"):
        gp.GibbsPruner(made("reader"), exclude={"gamma": "weight"})


def test_attention_is_masked_on_its_fast_path() -> None:
    model = made("encoder").eval()
    gp.GibbsPruner(model, 0.7, epochs=1)
    x = batch()
    slow = model(x).detach()
    fast = torch.backends.mha.get_fastpath_enabled()
    assert fast
    with torch.no_grad():
        torch.testing.assert_close(model(x), slow, rtol=1e-4, atol=1e-5)
    finalized = made("encoder").eval()
    pruner = gp.GibbsPruner(finalized, 0.7, epochs=1)
    pruner.step()
    pruner.finalize("converged")
    torch.testing.assert_close(finalized(x), slow)


def test_recurrent_layers_move_and_hold_zeros() -> None:
    model = made("lstm")
    pruner = gp.GibbsPruner(model, 0.5, epochs=1)
    model.double().eval()
    pruner.step()
    y = model(batch())
    assert y.dtype == torch.float64
    pruner.finalize("converged")
    torch.testing.assert_close(model(batch()), y)
    loaded = made("lstm").double().eval()
    loaded.load_state_dict(model.state_dict())
    hold_zeros(loaded)
    optimizer = torch.optim.SGD(loaded.parameters(), 1.0, weight_decay=0.1)
    loss_of(loaded).backward()
    optimizer.step()
    assert torch.equal(loaded.body.weight_hh_l0 == 0, model.body.weight_hh_l0 == 0)


def test_the_outputs_of_a_recurrent_layer_are_spared() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.body = nn.Linear(3, 4), nn.GRU(4, 5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(self.words(x))[0]

    for examples in (None, torch.ones(2, 1, 3)):
        pruner = gp.GibbsPruner(Encoder(), 0.5, example_inputs=examples)
        assert list(pruner.masks) == ["words", "body.weight_ih_l0", "body.weight_hh_l0"]
        reasons = dict.fromkeys(["body.weight_ih_l1", "body.weight_hh_l1"], "its outputs leave the network")
        assert pruner.summary().skipped == reasons


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recurrent_layers_stay_with_cudnn() -> None:
    model = made("lstm").cuda()
    gp.GibbsPruner(model, 0.5, example_inputs=batch().cuda(), law="annealed")
    weights = model.body._flat_weights
    assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    on_cpu = copy.deepcopy(model).cpu()
    torch.testing.assert_close(model(batch().cuda()).cpu(), on_cpu(batch()), rtol=1e-3, atol=1e-4)


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5), self.bias)


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, weight=self.weight / self.weight.norm(), bias=self.bias)


class Padded(nn.Conv2d):
    """Weights as they are, in a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(F.pad(x, (1, 1, 1, 1)), self.weight, self.bias)


def test_layers_that_transform_their_weight_are_refused_together() -> None:
    def network() -> nn.Sequential:
        parts = (nn.Conv2d(3, 4, 3), Standardised(4, 4, 3), Standardised(4, 4, 3), Padded(4, 4, 3), nn.Flatten())
        return nn.Sequential(*parts, nn.LazyLinear(4), Scaled(4, 4), nn.Linear(4, 2))

    model = network()
    model(torch.ones(1, 3, 8, 8))
    with pytest.raises(gp.UserError) as error:
        gp.GibbsPruner(model, 0.5)
    assert str(error.value) == (
        "layers '1', '2', '6' transform their weights before use: masked weights would not be zero where they are "
        "used; leave them out with exclude=['1', '2', '6']"
    )
    pruner = gp.GibbsPruner(model, 0.5, exclude=["1", "2", "6"])
    assert list(pruner.masks) == ["3", "5"]
    assert not transforms(prunable(nn.Sequential(Padded(1, 1, 3)))["0"])
