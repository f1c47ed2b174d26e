"""The compact network computes the same function, over a zoo of networks, masks and sizes."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export_zoo import WEIGHTED, ZOO, conv_bn, prune, randomise
from gibbsprune import GibbsPruner, UserError, compact, load_packed, packed_size, save_packed
from gibbsprune.export.compaction import CompactReport
from gibbsprune.models import build


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def outputs(model: nn.Module, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        y = model(x.clone())
    return list(y) if isinstance(y, tuple) else [y]


def assert_same(model: nn.Module, small: nn.Module, x: Tensor) -> None:
    for a, b in zip(outputs(model, x), outputs(small, x)):
        assert a.shape == b.shape
        assert a.isfinite().all()
        assert (a - b).abs().max() <= 1e-4 * a.abs().max()


def report(model: nn.Module) -> CompactReport:
    found = model.report
    assert isinstance(found, CompactReport)
    assert "the whole model" not in found.left, found
    return found


def made(name: str, structure: str, sparsity: float, seed: int) -> tuple[nn.Module, Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ZOO[name][0]()
    randomise(model, generator)
    prune(model, structure, sparsity, generator)
    return model, torch.randn(ZOO[name][1], generator=generator), generator


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize(("structure", "sparsity"), [("filter", 0.75), ("column", 0.3), ("weight", 0.6)])
def test_same_function(name: str, structure: str, sparsity: float) -> None:
    model, x, generator = made(name, structure, sparsity, 0)
    state = copy.deepcopy(model.state_dict())
    small = compact(model, x)
    found = report(small)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert found.parameters_after == parameters(small) <= parameters(model) + 60
    if structure in ("filter", "column"):
        assert parameters(small) < (1 - 0.3 * sparsity) * parameters(model), (sparsity, str(found))
    if structure == "filter":  # nothing is left alone, but padding behind constants, and groups of several widths
        assert set(found.left) == ({"pad_2", "pool", "grouped"} if name == "odd" else set())
        assert all("it pads with 0, which leaves" in why or "its groups" in why for why in found.left.values())
    other = torch.randn(x.shape[0] + 1, *x.shape[1:], generator=generator)
    assert_same(model, small, x)
    assert_same(model, small, other)


@pytest.mark.parametrize("name", ["resnet8", "densenet", "mobilenet", "unet", "encoder", "conv1d"])
def test_whole_layers_pruned(name: str) -> None:
    """A layer in the middle, then all of them; on top of masks of filters."""
    model, x, _ = made(name, "filter", 0.3, 7)
    layers = [m for m in model.modules() if isinstance(m, WEIGHTED)]
    layers[len(layers) // 2].weight.data.zero_()
    small = compact(model, x)
    report(small)
    assert_same(model, small, x)
    for layer in layers:
        layer.weight.data.zero_()
    small = compact(model, x)
    report(small)
    assert_same(model, small, x)
    assert parameters(small) < 0.5 * parameters(model)


@pytest.mark.parametrize("name", ["resnet8", "densenet", "mobilenet", "squeeze_excite", "unet"])
def test_other_image_sizes(name: str) -> None:
    model, x, generator = made(name, "filter", 0.6, 3)
    small = compact(model, x)
    for size in ((16, 16), (23, 30), (33, 17)):
        assert_same(model, small, torch.randn(2, 3, *size, generator=generator))


def test_what_has_no_rule_is_left_and_told() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = conv_bn(3, 8), nn.Conv2d(8, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).sort(1).values)

    model = Sorted()
    model.first[0].weight.data[:4] = 0
    small = compact(model.eval(), torch.randn(1, 3, 8, 8))
    assert report(small).left == {"sort": "there is no rule for sort"}
    assert "left alone: sort, because" in str(report(small))
    assert parameters(small) < parameters(model)
    assert_same(model, small, torch.randn(2, 3, 9, 9))


@pytest.mark.parametrize("groups", [1, 6])
def test_a_layer_called_twice(groups: int) -> None:
    """It keeps what any call needs: here the first call's constants are live in the second. In groups it is left."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.conv = conv_bn(3, 6), nn.Conv2d(6, 6, 3, padding=1, groups=groups)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(torch.relu(self.conv(self.first(x))))

    model = randomise(Twice(), torch.Generator().manual_seed(0))
    model.first[0].weight.data[:3] = 0
    small = compact(model, torch.randn(1, 3, 8, 8))
    assert torch.equal(small.conv.weight, model.conv.weight)
    assert len(small.first.get_submodule("0").weight) <= 3
    assert [*report(small).left.values()] == (["it is called more than once"] if groups > 1 else [])
    assert_same(model, small, torch.randn(2, 3, 9, 9))


def test_a_model_that_cannot_be_captured_comes_back_whole() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.dense(x) if x.sum() > 0 else x

    model = Branching()
    small = compact(model, torch.ones(2, 4))
    assert "cannot be captured" in small.report.left["the whole model"]
    assert small is not model
    assert torch.equal(small(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_blocks_that_vanish_leave_no_trace() -> None:
    """A residual branch whose last norm is nought: the block is the identity, and its layers are gone."""
    model = build("resnet20", 10, 3).eval()
    for block in (1, 2):
        model.blocks[block].bn2.weight.data.zero_()
    small = compact(model, torch.randn(1, 3, 16, 16))
    gone = parameters(model.blocks[1]) + parameters(model.blocks[2])
    assert parameters(small) == parameters(model) - gone
    assert not [name for name, _ in small.named_buffers() if "channels" in name]
    assert_same(model, small, torch.randn(2, 3, 16, 16))


def test_channels_dead_in_every_branch_disappear() -> None:
    model = build("resnet20", 10, 3).eval()
    dead = [1, 5, 6, 9]
    convolutions = [model.conv, *(block.conv2 for block in model.blocks[:3])]
    for conv in convolutions:
        conv.weight.data[dead] = 0
    small = compact(model, torch.randn(1, 3, 16, 16))
    for name in ("conv", "blocks.0.conv2", "blocks.1.conv2"):
        assert small.get_submodule(name).weight.shape[0] == 12
    assert small.get_submodule("blocks.3.conv1").weight.shape[1] == 12
    assert_same(model, small, torch.randn(2, 3, 16, 16))


def test_compacting_twice_changes_nothing_more() -> None:
    model, x, _ = made("resnet20", "filter", 0.75, 1)
    small = compact(model, x)
    again = compact(small, x)
    assert parameters(again) <= parameters(small)
    assert_same(model, again, x)


def test_one_result_is_trainable_and_copies() -> None:
    model, x, _ = made("resnet8", "filter", 0.5, 1)
    small = copy.deepcopy(compact(model, x))
    small(x).sum().backward()
    assert all(p.grad is not None for p in small.parameters() if p.requires_grad)
    back = copy.deepcopy(small)
    back.load_state_dict(small.state_dict())
    assert_same(model, back, x)


def test_masks_must_be_final() -> None:
    model = build("resnet8", 10, 3)
    GibbsPruner(model, 0.5)
    with pytest.raises(UserError, match="finalize"):
        compact(model, torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    model, x, _ = made("resnet8", "filter", 0.75, 4)
    small = compact(model.to(dtype), x.to(dtype))
    assert report(small).difference <= 16 * torch.finfo(dtype).eps
    assert parameters(small) < 0.5 * parameters(model)


def test_a_residual_sum_adds_only_the_live_channels() -> None:
    """The branch computes its own live filters; the shift of the others' norm is added as a constant."""
    model = randomise(build("resnet8", 10, 3), torch.Generator().manual_seed(0))
    model.blocks[0].conv2.weight.data[4:] = 0
    small = compact(model, torch.randn(1, 3, 16, 16))
    assert small.get_submodule("blocks.0.conv2").weight.shape[0] <= 4
    assert_same(model, small, torch.randn(2, 3, 16, 16))


def test_arguments_by_sequence_and_several_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(6, 9), nn.Linear(5, 9, bias=False), nn.Linear(9, 3)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            hidden = torch.relu(self.a(x) + self.b(y))
            return {"hidden": hidden, "out": self.out(hidden * hidden)}

    model = Two()
    model.a.weight.data[2:6], model.b.weight.data[:5] = 0, 0
    inputs = (torch.randn(4, 6), torch.randn(4, 5))
    small = compact(model, inputs)
    report(small)
    assert parameters(small) < parameters(model)
    found, expected = small(*inputs), model(*inputs)
    assert all((found[key] - expected[key]).abs().max() < 1e-5 for key in expected)


@pytest.mark.parametrize("structure", ["filter", "kernel", "weight"])
def test_from_the_pruner_to_a_small_network_and_file(structure: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    model = randomise(build("resnet8", 10, 3), torch.Generator().manual_seed(1))
    final = GibbsPruner(model, sparsity=0.75, structure=structure, exclude=["dense"]).finalize("converged").eval()
    x = torch.randn(3, 3, 16, 16)
    small = compact(final, x)
    assert report(small).left == {}
    assert_same(final, small, x)
    save_packed(final, tmp_path / "net")
    assert packed_size(tmp_path / "net", final).packed < 0.45 * packed_size(tmp_path / "net", final).dense
    assert_same(final, load_packed(tmp_path / "net", build("resnet8", 10, 3)).eval(), x)
    save_packed(small, tmp_path / "small", "float16")
    assert (tmp_path / "small").stat().st_size < packed_size(tmp_path / "net", final).dense
