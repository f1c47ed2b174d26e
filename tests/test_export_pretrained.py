"""Pruned models of transformers as smaller models of their own class."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gibbsprune import GibbsPruner, UserError, compact_pretrained
from gibbsprune.export.equality import difference
from gibbsprune.looking import plain_eval
from test_export_transformers import EXCLUDED, made

transformers: Any = pytest.importorskip("transformers")
WIDTHS = {"vit": "intermediate_size", "bert": "intermediate_size", "llama": "intermediate_size", "t5": "d_ff"}


def pruned(name: str, sparsity: float = 0.5) -> tuple[Any, dict[str, torch.Tensor]]:
    model, inputs = made(name)
    for parameter in model.parameters():
        parameter.data *= 3  # so that each layer matters for the output
    how: Any = {"structure": "filter", "exclude": EXCLUDED.get(name), "example_inputs": inputs, "law": "annealed"}
    pruner = GibbsPruner(model, sparsity, **how)
    return pruner.finalize("converged").eval(), inputs


@torch.no_grad()
def apart(one: nn.Module, other: nn.Module, inputs: dict[str, torch.Tensor]) -> float:
    more = {key: torch.cat([value, value.roll(1, -1)])[:3] for key, value in inputs.items()}
    with plain_eval(one), plain_eval(other):
        return difference(dict(one(**more)), dict(other(**more)))


@pytest.mark.parametrize("name", WIDTHS)
def test_the_configuration_says_how_small_it_is(name: str, tmp_path: Path) -> None:
    model, inputs = pruned(name)
    state, before = copy.deepcopy(model.state_dict()), getattr(model.config, WIDTHS[name])
    small = compact_pretrained(model, inputs)
    assert type(small) is type(model)
    assert getattr(small.config, WIDTHS[name]) <= before // 2 < before == getattr(model.config, WIDTHS[name])
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert small.report.parameters_after == sum(p.numel() for p in small.parameters()) < small.report.parameters_before
    assert apart(model, small, inputs) < 1e-4
    small.save_pretrained(tmp_path)
    assert apart(type(model).from_pretrained(tmp_path), small, inputs) < 1e-6


def test_constant_units_go_into_the_next_bias() -> None:
    """Rows of zeros whose biases are not: what the layer behind reads of them is a constant."""
    model, inputs = pruned("bert", 0.75)
    layer = model.bert.encoder.layer[0]
    still = ~layer.intermediate.dense.weight.any(1)
    assert layer.intermediate.dense.bias[still].all()
    small = compact_pretrained(model, inputs)
    ours, theirs = small.bert.encoder.layer[0].output.dense.bias, layer.output.dense.bias
    assert not torch.allclose(ours, theirs)
    assert apart(model, small, inputs) < 1e-4
    layer.output.dense.bias.data.copy_(ours)
    assert apart(model, small, inputs) > 1e-3  # it matters


def test_layers_keep_as_many_units_as_the_one_that_needs_most() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=8, **sizes)
    model, inputs = transformers.BertModel(config).eval(), {"input_ids": torch.arange(14).view(2, 7)}
    first, second = (layer.intermediate.dense.weight.data for layer in model.encoder.layer)
    first[5:] = 0
    second[::2] = 0
    small = compact_pretrained(model, inputs)
    assert small.config.intermediate_size == 12
    assert apart(model, small, inputs) < 1e-4
    second[:] = 1
    assert compact_pretrained(model, inputs).config.intermediate_size == 24


def test_what_it_cannot_do_is_one_sentence() -> None:
    with pytest.raises(UserError, match="model is a Linear: allowed are models of transformers"):
        compact_pretrained(nn.Linear(2, 2), torch.ones(1, 2))
    model, inputs = pruned("llama")
    model.model.layers[0].mlp.act_fn = nn.Sigmoid()  # its configuration says otherwise
    with pytest.raises(UserError, match="the smaller LlamaForCausalLM would differ by"):
        compact_pretrained(model, inputs)
