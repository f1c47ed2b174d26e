"""Structures: rows and back, and that a row is what its structure says it is, by running the layer."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gibbsprune as gp
from gibbsprune import NM, AtMost, Block, Column, Filter, Kernel, UserError, Weight
from gibbsprune.structures import ALLOWED, EXAMPLES, as_structure, check_mask, given_sparsity
from gibbsprune.threshold import kept_count

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
@pytest.mark.parametrize("kind", EXAMPLES)
def test_rows_and_back(name, kind):
    layer = LAYERS[name][0]
    structure = as_structure(kind, layer)
    shape = layer.weight.shape
    rows = structure.rows(layer.weight)
    inputs, outputs = channels_of(layer)
    kernel = math.prod(shape[2:])
    groups = getattr(layer, "groups", 1)
    across = (math.ceil(inputs / 4), math.ceil(outputs / 4))
    sizes = {
        "weight": (shape.numel(), 1),
        "kernel": (inputs * outputs, kernel),
        "filter": (outputs, inputs * kernel),
        "column": (inputs * groups, outputs // groups * kernel),
        "4x4": (math.prod(across) * kernel, 16),
        "2:4": (across[0] * outputs * kernel, 4),
        "at-most-3": (inputs * outputs, kernel),
    }
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


@pytest.mark.parametrize("name", LAYERS)
def test_a_column_is_an_input_channel(name):
    """With nothing but row k left, the output hears input channel k and no other."""
    layer, inputs = LAYERS[name]
    structure, shape = as_structure("column", layer), layer.weight.shape
    x = torch.rand(inputs, generator=torch.Generator().manual_seed(0)) + 0.5
    assert structure.count(shape) == inputs[1]
    for k in range(inputs[1]):
        keep = torch.zeros(structure.count(shape), structure.size(shape))
        keep[k] = 1
        weight = {"weight": structure.unrows(keep, shape)}
        only = torch.zeros_like(x)
        only[:, k] = x[:, k]
        heard = torch.func.functional_call(layer, weight, (x,))
        assert heard.any()
        torch.testing.assert_close(heard, torch.func.functional_call(layer, weight, (only,)))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", ["2:4", "4x4", "3x2"])
def test_a_tile_is_of_consecutive_outputs_and_inputs_at_one_place(name, kind):
    """Only the layer's own channels tell: which inputs and outputs of a group a row of ones joins."""
    layer = LAYERS[name][0]
    structure, shape = as_structure(kind, layer), layer.weight.shape
    tall, wide = structure.tile()
    per_group, outputs = channels_of(layer)
    seen = torch.zeros(outputs, per_group)
    kernel = math.prod(shape[2:])
    for k in range(structure.count(shape)):
        rows = torch.zeros(structure.count(shape), structure.size(shape))
        rows[k] = 1
        weight = structure.unrows(rows, shape)
        by_output = Filter(transposed=structure.transposed, groups=structure.groups).rows(weight)
        pairs = by_output.reshape(outputs, per_group, kernel)
        assert int(pairs.any(0).any(0).sum()) == 1, "one place of the kernel"
        o, i = pairs.any(2).nonzero().T
        assert (o.max() - o.min(), i.max() - i.min()) <= (tall - 1, wide - 1)
        assert o.min() % tall == 0
        assert i.min() % wide == 0
        assert len(o) == min(tall, outputs - int(o.min())) * min(wide, per_group - int(i.min()))
        seen += pairs.sum(2)
    assert bool((seen == kernel).all())


@pytest.mark.parametrize("name", LAYERS)
def test_two_of_four_along_the_inputs(name):
    """Of every four consecutive inputs that an output hears at a place, two; in the end those with largest weights."""
    layer = LAYERS[name][0]
    weight, shape = layer.weight.detach(), layer.weight.shape
    structure = as_structure("2:4", layer)
    per_group, outputs = channels_of(layer)
    lay = Filter(transposed=structure.transposed, groups=structure.groups)
    for mask in (gp.converged_mask(weight, None, structure), gp.sample(weight, None, structure, beta=0.3)[0]):
        kept, sizes = (lay.rows(x).reshape(outputs, per_group, -1) for x in (mask, weight.abs()))
        for first in range(0, per_group, 4):
            group = kept[:, first : first + 4]
            assert bool((group.sum(1) == min(2, group.shape[1])).all())
    kept = lay.rows(gp.converged_mask(weight, None, structure)).reshape(outputs, per_group, -1)
    low = torch.where(kept, sizes, 9).amin(1) if per_group <= 4 else None
    if low is not None:
        assert bool((low >= torch.where(kept, 0, sizes).amax(1)).all())
    assert kept.numel() == shape.numel()


def test_ties_within_a_group_go_to_the_lowest_index():
    weight = torch.tensor([[1.0, -1, 1, 1, 0, 0, 0, 0, 2, 1, 2, 1, 0, 3]])
    kept = gp.converged_mask(weight, None, "2:4").int().tolist()
    assert kept == [[1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1]]
    wide = torch.ones(2, 24)
    assert gp.converged_mask(wide, None, "5:12").reshape(-1, 12).int().tolist() == [[1] * 5 + [0] * 7] * 4


@given(st.integers(1, 64).flatmap(lambda m: st.tuples(st.integers(1, m), st.just(m))), st.integers(1, 70), st.data())
@settings(max_examples=60)
def test_any_n_of_any_m(pattern, inputs, data):
    n, m = pattern
    values = st.integers(0, 3)
    rows = data.draw(st.lists(st.lists(values, min_size=inputs, max_size=inputs), min_size=1, max_size=3))
    weight = torch.tensor(rows, dtype=torch.float32)
    kept = gp.converged_mask(weight, None, NM(n, m))
    drawn = gp.sample(weight, None, NM(n, m), beta=0.7)[0]
    for row, chosen, other in zip(weight, kept, drawn):
        for first in range(0, inputs, m):
            part, mask = row[first : first + m], chosen[first : first + m]
            order = sorted(range(len(part)), key=lambda i: (-float(part[i]), i))
            assert sorted(mask.nonzero().flatten().tolist()) == sorted(order[:n])
            assert int(other[first : first + m].sum()) == min(n, len(part))


@given(st.integers(1, 5), st.floats(0.45, 0.99), st.integers(0, 1000))
@settings(max_examples=60)
def test_at_most_k_with_the_exact_count_of_the_layer(k, sparsity, seed):
    weight = torch.randint(0, 4, (3, 4, 3, 3), generator=torch.Generator().manual_seed(seed)).float()
    sparsity = max(sparsity, 1 - k / 9)
    kept = gp.converged_mask(weight, sparsity, AtMost(k))
    assert int(kept.sum()) == kept_count(sparsity, 108)
    assert int(kept.flatten(2).sum(2).max()) <= k
    allowed = torch.stack([gp.converged_mask(part, None, NM(k, 9)) for part in weight.reshape(12, 9)])
    values = weight.reshape(12, 9)
    assert bool((allowed | ~kept.reshape(12, 9)).all()), "none beyond the k largest of a kernel"
    left = values[allowed & ~kept.reshape(12, 9)]
    if left.numel():
        assert float(values[kept.reshape(12, 9)].min()) >= float(left.max())
    assert int(gp.sample(weight, None, AtMost(k), sparsity, 2.0)[0].flatten(2).sum(2).max()) <= k


def test_weights_keep_the_tensors_own_order():
    layer = nn.ConvTranspose2d(3, 2, 2)
    assert torch.equal(as_structure("weight", layer).rows(layer.weight).flatten(), layer.weight.flatten())


@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.sampled_from(EXAMPLES), st.booleans())
def test_rows_partition_any_shape(shape, kind, transposed):
    structure = replace(as_structure(kind), transposed=transposed)
    index = torch.arange(math.prod(shape)).reshape(shape)
    rows = structure.rows(index + 1) - 1
    assert sorted(rows[rows >= 0].tolist()) == list(range(index.numel()))
    assert rows.shape == (structure.count(shape), structure.size(shape))
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
    assert as_structure(Filter(transposed=True), nn.Conv2d(4, 6, 3, groups=2)) == Filter(groups=2)
    assert as_structure("column") == Column()
    assert as_structure("2:4") == NM(2, 4)
    assert as_structure("1x4") == Block(1, 4)
    assert as_structure("at-most-3", nn.ConvTranspose2d(4, 6, 3)) == AtMost(3, transposed=True)
    for kind in EXAMPLES:
        assert as_structure(kind).spelling == kind


def test_a_structure_of_ones_own_keeps_its_fields():
    @dataclass(frozen=True)
    class Pairs(Weight):
        width: int = 2

        def size(self, shape):
            return self.width

    assert as_structure(Pairs(width=4), nn.Linear(4, 4)).width == 4


@pytest.mark.parametrize("bad", ["channel", None, 3, Filter, "2:", "4x", "at-most-x", "2/4", "-2:4"])
def test_unknown_structure(bad):
    with pytest.raises(UserError) as error:
        as_structure(bad)
    assert str(error.value) == f"structure is {bad!r}: allowed are {ALLOWED}"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: NM(5, 4), "n is 5: allowed are whole numbers from 1 to 4 with m = 4"),
        (lambda: as_structure("0:4"), "n is 0: allowed are whole numbers from 1"),
        (lambda: NM(2, 65), "m is 65: allowed are whole numbers from 1 to 64"),
        (lambda: NM(2.0, 4), "n is 2.0: allowed are whole numbers from 1"),
        (lambda: Block(0, 4), "height is 0: allowed are whole numbers from 1"),
        (lambda: as_structure("4x0"), "width is 0: allowed are whole numbers from 1"),
        (lambda: AtMost(0), "k is 0: allowed are whole numbers from 1"),
        (
            lambda: given_sparsity(0.9, NM(2, 4)),
            "sparsity is 0.9: allowed are 0.5 with structure '2:4', or 0 for a layer left whole",
        ),
        (
            lambda: gp.sample(torch.ones(2, 2, 3, 3), None, "at-most-3", 0.5),
            "sparsity is 0.5: allowed are numbers from 0.6667 with at most 3 of 9, and 0 to keep all",
        ),
        (
            lambda: gp.sample(torch.ones(2, 8), "quadratic", "2:4"),
            "hamiltonian is 'quadratic': allowed are 'square', 'abs', 'sign', 'binary' with structure '2:4'",
        ),
        (
            lambda: gp.sample(torch.ones(2, 8), None, "2:4", sampler="independent"),
            "sampler is 'independent': allowed are 'auto', 'conditional' with Linear('square', relative=True)",
        ),
        (
            lambda: gp.GibbsPruner(nn.Sequential(nn.Linear(8, 8)), 0.9, "2:4", include="0"),
            "sparsity is 0.9: allowed are 0.5 with structure '2:4', or 0 for a layer left whole",
        ),
        (
            lambda: gp.GibbsPruner(nn.Sequential(nn.Linear(8, 8)), {"0": 0.7}, "2:4", include="0"),
            "layer '0': sparsity is 0.7: allowed are 0.5 with structure '2:4', or 0 for a layer left whole",
        ),
        (
            lambda: gp.GibbsPruner(nn.Sequential(nn.Conv2d(8, 8, 3)), 0.5, "at-most-3", include="0"),
            "layer '0': sparsity is 0.5: allowed are numbers from 0.6667 with at most 3 of 9, and 0 to keep all",
        ),
        (
            lambda: gp.GibbsPruner(nn.Sequential(nn.Linear(8, 8)), gp.Budget(0.5), "2:4", include="0"),
            "sparsity is Budget(weights=0.5, macs=None, allocation='global', floor=0.0, round_to=1, latency=None): "
            "allowed are numbers, one or by layer, with structure '2:4'",
        ),
        (
            lambda: gp.GibbsPruner(nn.Sequential(nn.Linear(8, 8)), None, "2:4", include="0", gradient="law"),
            "gradient is 'law': allowed are 'masked', 'proportional', 'straight-through' with Linear('square', "
            "relative=True) and groups of 4",
        ),
    ],
)
def test_impossible_patterns_and_counts(make, sentence):
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == sentence


def test_check_mask():
    whole = torch.tensor([[1.0, 0.0]])
    assert torch.equal(check_mask(whole, (1, 2)), torch.tensor([[True, False]]))
    with pytest.raises(UserError, match=r"^mask has shape \(2,\), but the weight has shape \(1, 2\)$"):
        check_mask(torch.ones(2), (1, 2))
    with pytest.raises(
        UserError, match=r"^mask holds values other than 0 and 1: a mask is True where a weight is kept$"
    ):
        check_mask(torch.tensor([[0.5, 1.0]]), (1, 2))
