"""The packed file: identical models back, small files, and refusals in one sentence."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gibbsprune import UserError, load_packed, save_packed
from gibbsprune.export.packed import packed_size
from gibbsprune.export.packing import Positions, gaps, positions
from gibbsprune.export.runs import accuracy, load_run
from gibbsprune.models import build
from gibbsprune.training import run
from gibbsprune.training.progress import PlainProgress
from gibbsprune.training.spec import RunSpec

pytest.importorskip("safetensors")


def pruned(name: str, sparsity: float, structure: str = "weight", seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = build(name, 10, 3, generator)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            shape = module.weight.shape
            cut = {"weight": shape, "kernel": (*shape[:2], 1, 1), "filter": (shape[0], 1, 1, 1)}[structure]
            module.weight.data *= torch.rand(cut, generator=generator) >= sparsity
        elif isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2, generator=generator)
    return model


def same(a: nn.Module, b: nn.Module) -> bool:
    """Equal bit by bit, but for the signs of zeros."""

    def bits(tensor: Tensor) -> Tensor:
        return (tensor + 0.0 if tensor.is_floating_point() else tensor).reshape(-1).view(torch.uint8)

    ours, theirs = a.state_dict(), b.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(bits(ours[k]), bits(theirs[k])) for k in ours)


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.75, 0.95, 1.0])
def test_float32_comes_back_bit_for_bit(tmp_path: Path, structure: str, sparsity: float) -> None:
    model = pruned("resnet8", sparsity, structure)
    save_packed(model, tmp_path / "net", "float32")
    back = load_packed(tmp_path / "net", build("resnet8", 10, 3))
    assert same(model, back)
    size = packed_size(tmp_path / "net", model)
    assert size.packed < size.dense * (1.05 - sparsity) + 16_000


def test_float16_and_int8_are_rounded_and_zeros_stay(tmp_path: Path) -> None:
    model = pruned("resnet8", 0.75)
    for dtype in ("float16", "int8"):
        save_packed(model, tmp_path / dtype, dtype)
        back = load_packed(tmp_path / dtype, build("resnet8", 10, 3)).state_dict()
        for name, value in model.state_dict().items():
            if value.dim() < 2:
                assert torch.equal(back[name], value), name
                continue
            scale = value.flatten(1).abs().amax(1).view(-1, *[1] * (value.dim() - 1))
            bound = scale / 254 * 1.001 if dtype == "int8" else value.abs() * 2**-11 + 1e-7
            assert ((back[name] - value).abs() <= bound).all(), (dtype, name)
            assert (back[name][value == 0] == 0).all()


def test_a_sparse_resnet56_is_a_fifteenth_of_dense(tmp_path: Path) -> None:
    model = pruned("resnet56", 0.95)
    save_packed(model, tmp_path / "net", "float16")
    size = packed_size(tmp_path / "net", model)
    assert size.packed * 15 <= size.dense
    assert size.packed * 2 <= size.gzip
    assert "times" in str(size)


def test_other_dtypes_and_empty_and_integer_entries(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("counts", torch.tensor([[0, 0, 0, 7]] * 9))
    model.register_buffer("bfloat", torch.tensor([[0.0, 1.5]] * 40, dtype=torch.bfloat16))
    model.register_buffer("float64", torch.tensor([[0.0, 1.5]] * 40, dtype=torch.float64))
    model.register_buffer("empty", torch.zeros(0, 3))
    model.register_buffer("on", torch.tensor(True))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    save_packed(model, tmp_path / "net")
    for value in model.buffers():
        value.zero_()
    load_packed(tmp_path / "net", model)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(200, 16), nn.Linear(16, 16), nn.Linear(16, 200, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_shared_weights_are_stored_and_counted_once(tmp_path: Path, dtype: str) -> None:
    model, back, apart = Tied(), Tied(), Tied()
    apart.head.weight = nn.Parameter(torch.zeros(200, 16))
    save_packed(model, tmp_path / "net", dtype)
    size = packed_size(tmp_path / "net", model)
    count = sum(p.numel() for p in model.parameters())
    assert 4 * count <= size.dense <= 4 * count + 500
    assert size.packed <= {"float32": 4, "float16": 2, "int8": 1}[dtype] * count + 2000
    for found in (load_packed(tmp_path / "net", back), load_packed(tmp_path / "net", apart)):
        assert torch.equal(found.head.weight, found.embed.weight)
        assert (found.head.weight - model.head.weight).abs().max() < 0.05
    assert back.head.weight is back.embed.weight
    assert dtype != "float32" or same(model, back)


def test_files_of_another_version_are_refused(tmp_path: Path) -> None:
    save_packed(nn.Linear(3, 3), tmp_path / "net")
    content = (tmp_path / "net").read_bytes()
    assert b'"version":"3"' in content
    (tmp_path / "net").write_bytes(content.replace(b'"version":"3"', b'"version":"4"'))
    with pytest.raises(UserError, match="is of version '4' of the packed format; this release reads 3"):
        load_packed(tmp_path / "net", nn.Linear(3, 3))


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_it_is_smaller_than_gzip_of_the_dense_file(tmp_path: Path, sparsity: float) -> None:
    """Also where nothing is zero, as in a compact network."""
    model = pruned("resnet8", sparsity)
    save_packed(model, tmp_path / "net")
    size = packed_size(tmp_path / "net", model)
    assert size.packed < 0.97 * size.gzip


def test_damage_is_refused_and_the_model_untouched(tmp_path: Path) -> None:
    model = pruned("resnet8", 0.9)
    save_packed(model, tmp_path / "net")
    content = (tmp_path / "net").read_bytes()
    fresh = build("resnet8", 10, 3, torch.Generator().manual_seed(5))
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    rng = np.random.default_rng(0)
    broken = [content[:cut] for cut in (0, 5, 60, len(content) // 2, len(content) - 1)]
    for at in [*range(0, 400, 13), *rng.integers(0, len(content), 40)]:
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        broken.append(bytes(flipped))
    for bad in [*broken, b"PK not one of ours", content + b"more"]:
        (tmp_path / "bad").write_bytes(bad)
        with pytest.raises(UserError) as caught:
            load_packed(tmp_path / "bad", fresh)
        assert "\n" not in str(caught.value)
        assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())


def test_refusals(tmp_path: Path) -> None:
    model = pruned("resnet8", 0.9)
    save_packed(model, tmp_path / "net")
    with pytest.raises(UserError, match="another network"):
        load_packed(tmp_path / "net", build("resnet14", 10, 3))
    with pytest.raises(UserError, match="another network"):
        load_packed(tmp_path / "net", build("resnet8", 7, 3))
    with pytest.raises(UserError, match="cannot read"):
        load_packed(tmp_path / "none", model)
    with pytest.raises(UserError, match="allowed are"):
        save_packed(model, tmp_path / "net", "int4")
    with pytest.raises(UserError, match="cannot write"):
        save_packed(model, tmp_path / "no" / "net")
    model.dense.weight.data[0, 0] = 1e6
    with pytest.raises(UserError, match="too large"):
        save_packed(model, tmp_path / "net", "float16")
    nn.utils.parametrize.register_parametrization(model.dense, "weight", nn.Identity())
    with pytest.raises(UserError, match="remove that"):
        save_packed(model, tmp_path / "net")
    import safetensors.torch

    safetensors.torch.save_file({"a": torch.ones(2)}, tmp_path / "plain")
    with pytest.raises(UserError, match="no packed network"):
        load_packed(tmp_path / "plain", model)


def test_gaps_past_255_and_the_shortest_way() -> None:
    rng = np.random.default_rng(1)
    for size, density in ((1, 1.0), (1, 0.0), (254, 0.0), (5000, 0.002), (5000, 0.1), (5000, 0.6), (5000, 1.0)):
        alive = rng.random(size) < density
        kept = np.flatnonzero(alive)
        assert np.array_equal(positions("index", 1, gaps(kept), size), kept)
        where = Positions.shortest(alive, (1,), 4)
        assert np.array_equal(positions(where.way, where.unit, where.code, size) if density < 1 else kept, kept)
        assert where.way == {0.1: "index", 0.6: "mask", 1.0: "dense"}.get(density, where.way)
    for way, code in (("mask", np.zeros(3, np.uint8)), ("index", np.full(2, 200, np.uint8)), ("odd", gaps(kept))):
        with pytest.raises(ValueError):
            positions(way, 1, code, 100)


@pytest.mark.slow
def test_a_trained_network_keeps_its_accuracy_as_float16(tmp_path: Path) -> None:
    """95 % of the weights pruned, trained on digits: a twelfth of the file, the same accuracy but for two images."""
    pytest.importorskip("sklearn")
    spec = RunSpec(data="digits", model="resnet20", sparsity=0.95, epochs=3)
    run.start([spec], tmp_path / "run", "cpu", progress=PlainProgress(io.StringIO()))
    found = load_run(tmp_path / "run")
    save_packed(found.model, tmp_path / "net", "float16")
    size = packed_size(tmp_path / "net", found.model)
    assert size.packed * 12 <= size.dense
    back = load_packed(tmp_path / "net", build("resnet20", 10, 1)).eval()
    before, after = (accuracy(model, found.images, found.labels) for model in (found.model, back))
    assert before > 0.2
    assert abs(after - before) <= 2.01 / len(found.labels)
