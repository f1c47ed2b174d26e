"""Structures: rows and back, and that a row is what its structure says it is, by running the layer."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gibbsprune import Filter, Kernel, UserError, Weight
from gibbsprune.structures import STRUCTURES, as_structure, check_mask

LAYERS = {
    "linear": (nn.Linear(5, 4, bias=False), (2, 5)),
    "conv1d": (nn.Conv1d(3, 4, 3, bias=False), (2, 3, 7)),
    "conv2d": (nn.Conv2d(4, 6, 3, bias=False), (2, 4, 6, 6)),
    "conv3d": (nn.Conv3d(2, 3, 2, bias=False), (2, 2, 4, 4, 4)),
    "grouped": (nn.Conv2d(4, 6, (1, 3), groups=2, bias=False), (2, 4, 5, 5)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 5, 5)),
    "transposed1d": (nn.ConvTranspose1d(3, 4, 3, bias=False), (2, 3, 7)),
    "transposed2d": (nn.ConvTranspose2d(3, 5, 2, bias=False), (2, 3, 4, 4)),
    "transposed3d": (nn.ConvTranspose3d(2, 3, 2, bias=False), (2, 2, 3, 3, 3)),
    "grouped transposed": (nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), (2, 4, 5, 5)),
}


def channels_of(layer):
    """Inputs per group and outputs, by the layer's own account."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels // layer.groups, layer.out_channels


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", STRUCTURES)
def test_rows_and_back(name, kind):
    layer = LAYERS[name][0]
    structure = as_structure(kind, layer)
    shape = layer.weight.shape
    rows = structure.rows(layer.weight)
    inputs, outputs = channels_of(layer)
    kernel = math.prod(shape[2:])
    sizes = {"weight": (shape.numel(), 1), "kernel": (inputs * outputs, kernel), "filter": (outputs, inputs * kernel)}
    assert tuple(rows.shape) == sizes[kind] == (structure.count(shape), structure.size(shape))
    assert torch.equal(structure.unrows(rows, shape), layer.weight)
    stack = torch.stack([rows, 2 * rows, 3 * rows])
    assert torch.equal(structure.unrows(stack, shape)[2], 3 * layer.weight)


@pytest.mark.parametrize("name", LAYERS)
def test_a_filter_is_an_output_channel(name):
    """Zeroing row k makes output channel k zero and leaves the others as they are."""
    layer, inputs = LAYERS[name]
    structure, shape = as_structure("filter", layer), layer.weight.shape
    x = torch.randn(inputs, generator=torch.Generator().manual_seed(0))
    weight = layer.weight.detach().clone()
    full = layer(x).detach()
    for k in range(structure.count(shape)):
        keep = torch.ones(structure.count(shape), structure.size(shape), dtype=torch.bool)
        keep[k] = False
        pruned = torch.func.functional_call(layer, {"weight": weight * structure.unrows(keep, shape)}, (x,)).detach()
        assert not pruned[:, k].any()
        others = [j for j in range(full.shape[1]) if j != k]
        torch.testing.assert_close(pruned[:, others], full[:, others])
        assert full[:, k].any()


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "linear"])
def test_a_kernel_joins_one_input_to_one_output(name):
    """With nothing but row k left, one output channel is alive, and it hears one input channel."""
    layer, inputs = LAYERS[name]
    structure, shape = as_structure("kernel", layer), layer.weight.shape
    per_group, outputs = channels_of(layer)
    x = torch.rand(inputs, generator=torch.Generator().manual_seed(0)) + 0.5
    for k in range(structure.count(shape)):
        rows = torch.zeros(structure.count(shape), structure.size(shape))
        rows[k] = 1.0
        weight = {"weight": structure.unrows(rows, shape)}
        output, group = k // per_group, k // per_group // (outputs // layer.groups)
        heard = group * per_group + k % per_group
        y = torch.func.functional_call(layer, weight, (x,))
        assert y[:, output].all()
        assert not y[:, [j for j in range(outputs) if j != output]].any()
        only = torch.zeros_like(x)
        only[:, heard] = x[:, heard]
        torch.testing.assert_close(torch.func.functional_call(layer, weight, (only,)), y)


def test_weights_keep_the_tensors_own_order():
    layer = nn.ConvTranspose2d(3, 2, 2)
    assert torch.equal(as_structure("weight", layer).rows(layer.weight).flatten(), layer.weight.flatten())


@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.sampled_from(sorted(STRUCTURES)), st.booleans())
def test_rows_partition_any_shape(shape, kind, transposed):
    structure = STRUCTURES[kind](transposed=transposed)
    index = torch.arange(math.prod(shape)).reshape(shape)
    rows = structure.rows(index)
    assert sorted(rows.flatten().tolist()) == list(range(index.numel()))
    assert torch.equal(structure.unrows(rows, shape), index)


@pytest.mark.parametrize(
    ("structure", "shape", "split"),
    [
        (Filter(), (8, 4, 3, 3), 18),
        (Filter(), (8, 5, 3, 3), 27),
        (Filter(), (8, 1, 3, 3), 5),
        (Filter(), (8, 6), 3),
        (Filter(transposed=True), (4, 8, 2), 4),
        (Filter(transposed=True, groups=2), (8, 3, 2), 4),
        (Kernel(), (8, 4, 3, 3), 5),
        (Weight(), (8, 4, 3, 3), 1),
    ],
)
def test_halves_are_cut_by_input_channel(structure, shape, split):
    assert structure.split(shape) == split


def test_a_structure_by_name_object_or_module():
    assert as_structure("filter") == Filter()
    assert as_structure(Kernel(transposed=True)) == Kernel(transposed=True)
    assert as_structure("filter", nn.ConvTranspose2d(4, 6, 3, groups=2)) == Filter(transposed=True, groups=2)
    assert as_structure(Filter(transposed=True), nn.Conv2d(4, 6, 3, groups=2)) == Filter()


def test_a_structure_of_ones_own_keeps_its_fields():
    @dataclass(frozen=True)
    class Pairs(Weight):
        width: int = 2

        def size(self, shape):
            return self.width

    assert as_structure(Pairs(width=4), nn.Linear(4, 4)).width == 4


@pytest.mark.parametrize("bad", ["channel", None, 3, Filter])
def test_unknown_structure(bad):
    with pytest.raises(UserError) as error:
        as_structure(bad)
    assert str(error.value) == f"structure is {bad!r}: allowed are 'weight', 'kernel', 'filter'"


def test_check_mask():
    whole = torch.tensor([[1.0, 0.0]])
    assert torch.equal(check_mask(whole, (1, 2)), torch.tensor([[True, False]]))
    with pytest.raises(UserError, match=r"^mask has shape \(2,\), but the weight has shape \(1, 2\)$"):
        check_mask(torch.ones(2), (1, 2))
    with pytest.raises(
        UserError, match=r"^mask holds values other than 0 and 1: a mask is True where a weight is kept$"
    ):
        check_mask(torch.tensor([[0.5, 1.0]]), (1, 2))
