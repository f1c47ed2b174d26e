"""The pruner's summary: every layer, as data and as a table."""

import pytest
import torch
from torch import nn

import gibbsprune as gp
from gibbsprune.summary import LayerSummary, Summary


def small_net():
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 10))


def test_a_dry_run_before_training():
    pruner = gp.GibbsPruner(small_net(), sparsity=0.9, structure="filter", law="annealed")
    summary = pruner.summary()
    assert summary.layers == [
        LayerSummary("1", "Conv2d", (16, 16, 3, 3), 16, 144, target=0.9, achieved=0.875, sampler="exact"),
        LayerSummary("3", "Linear", (32, 64), 32, 64, target=0.9, achieved=1 - 4 / 32, sampler="exact"),
    ]
    assert summary.skipped == {"0": "first convolution", "4": "its outputs leave the network"}
    assert summary.weights == 2304 + 2048
    assert summary.achieved == pytest.approx(0.875)


def test_where_layers_share_a_sparsity_it_says_so_and_what_each_bears_now():
    model = small_net()
    pruner = gp.GibbsPruner(model, sparsity=gp.Budget(0.5), epochs=4)
    shares = [layer.achieved for layer in pruner.summary().layers]
    assert pruner.summary().achieved == pytest.approx(0.5, abs=1e-3)
    assert [layer.target for layer in pruner.summary().layers] == shares
    lines = str(pruner.summary()).splitlines()
    told = "layers share 50.0% of all weights (global)"
    assert f"{told}: what each loses follows the weights, here as they were first" in lines
    assert not any(line.startswith("drawn by") for line in lines)
    assert all(bool(masked.mask.all()) for masked in pruner.masks.values())
    with torch.no_grad():
        model[1].parametrizations.weight.original.mul_(100)
    pruner.finalize()
    now = pruner.summary().layers
    assert now[0].achieved < 0.1 < shares[0]
    assert [layer.target for layer in now] == pytest.approx([layer.achieved for layer in now])
    assert told in str(pruner.summary()).splitlines()


def test_it_prints_as_a_table():
    layers = [
        LayerSummary("1", "Conv2d", (16, 16, 3, 3), 16, 144, 0.9, 0.875),
        LayerSummary("head.last", "Linear", (10, 64), 10, 64, 0.5, 0.4),
    ]
    assert str(Summary("filter", layers, {"0": "first convolution"})).splitlines() == [
        "layer      kind    shape          filters  of size  target  achieved",
        "────────────────────────────────────────────────────────────────────",
        "1          Conv2d  16×16×3×3      16       144      0.9     0.8750",
        "head.last  Linear  10×64          10       64       0.5     0.4000",
        "────────────────────────────────────────────────────────────────────",
        "all                2,944 weights                            0.7717",
        "not pruned: 0 (first convolution)",
    ]


def test_it_tells_how_much_of_the_network_it_covers():
    model = nn.Sequential(nn.Linear(4, 6), nn.LSTM(6, 8), nn.Bilinear(2, 2, 2))
    model.add_module("last", nn.Linear(8, 3))
    model.add_module("words", nn.Embedding(5, 4))
    model.register_parameter("scale", nn.Parameter(torch.ones(2, 1)))
    summary = gp.GibbsPruner(model, sparsity=0.5, include="0").summary()
    total = sum(p.numel() for p in model.parameters())
    assert summary.coverage == 24 / total
    assert summary.skipped == dict.fromkeys(["1.weight_ih_l0", "1.weight_hh_l0", "2", "last"], "not included")
    assert summary.others == {"words": "an embedding, pruned where include names it", "scale": summary.others["scale"]}
    assert summary.vectors == sum(p.numel() for p in model.parameters() if p.dim() == 1)
    text = str(summary).splitlines()
    assert f"covers 24 of {total} parameters ({2400 / total:.1f} %): warning, less than half" in text
    assert "not pruned: 1.weight_ih_l0 (not included)" in text
    assert "not prunable: scale (a parameter of Sequential, pruned where include names it)" in text
    assert f"not prunable: biases, norms and other vectors ({summary.vectors} parameters)" in text
    whole = gp.GibbsPruner(small_net(), sparsity=0.9, structure="filter").summary()
    assert whole.others == {}
    assert 0.5 < whole.coverage < 1
    assert "less than half" not in str(whole)


def test_after_finalize_it_counts_zeros():
    model = small_net()
    pruner = gp.GibbsPruner(model, sparsity={"1": 0.5, "3": 0.0}, structure="filter")
    promised = [layer.achieved for layer in pruner.summary().layers]
    pruner.finalize(draw="converged")
    found = [layer.achieved for layer in pruner.summary().layers]
    assert found == pytest.approx(promised) == [0.5, 0.0]
    with torch.no_grad():
        model[1].weight[:] = 0
    assert pruner.summary().layers[0].achieved == 1.0


def test_a_layer_with_a_weight_norm_is_left_out_and_told():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    nn.utils.parametrizations.weight_norm(model[0])
    pruner = gp.GibbsPruner(model, 0.5, include="1")
    assert pruner.summary().skipped["0"] == "not included"
