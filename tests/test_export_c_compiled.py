"""Compiled networks as modules, and a trained one as a program that never sees Python."""

from __future__ import annotations

import copy
import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from c_programs import assert_close, built, need, run, written
from export_zoo import prune, randomise
from gibbsprune import UserError, compile_c, export_c
from gibbsprune.cli import main
from gibbsprune.export.c import CompiledNetwork, compiled, pack
from gibbsprune.export.c.source import Source
from gibbsprune.export.c.write import network
from gibbsprune.models import build
from test_export_compact import made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIBBSPRUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled without optimisation, in one width."""
    need("cc")
    monkeypatch.setattr(compiled, "FLAGS", ("-O1", "-march=native"))
    monkeypatch.setattr(compiled, "_widths", lambda: [256])


def favour(name: str) -> object:
    """Make-believe times: this way is the fastest."""
    return lambda ways, *_: {way: 1.0 if name in way else 2.0 for way in ways}


@pytest.mark.usefixtures("quick")
def test_a_compiled_network_is_a_module(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, generator = made("resnet8", "weight", 0.9, 1)
    monkeypatch.setattr(compiled, "_timed", favour("side by side"))
    found = compile_c(model, torch.cat([x] * 4), threads=2)
    assert isinstance(found, CompiledNetwork)
    assert found.report is not None
    assert found.report.chosen == "256 bits, images side by side"
    assert found.report.difference <= 1e-5
    assert len(list(cache.glob("*.so"))) == 1
    for batch in (1, 2, 7, 8, 41):
        images = torch.randn(batch, *x.shape[1:], generator=generator)
        before = images.clone()
        for twin in (found, copy.deepcopy(found)):
            assert_close(model, [twin(images)], images)
        assert torch.equal(images, before)
    strided = torch.randn(3, 17, 15, 3, generator=generator).permute(0, 3, 1, 2)
    assert_close(model, [found(strided)], strided)
    assert_close(model, [found(strided.double())], strided)
    with pytest.raises(UserError, match=r"\(3, 17, 15\)"):
        found(torch.randn(2, 3, 9, 9))
    with pytest.raises(UserError, match="compile it again"):
        pickle.dumps(found)


@pytest.mark.usefixtures("quick")
def test_threads_share_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest operations, by pixels and by filters."""
    model, x, generator = made("squeeze_excite", "weight", 0.6, 1)
    monkeypatch.setattr(compiled, "_timed", favour("threads share images"))
    monkeypatch.setattr(pack, "SHARED", 1)
    found = compile_c(model, x[:1], threads=3)
    assert found.report.chosen == "256 bits, threads share images"  # type: ignore[union-attr]
    with ThreadPoolExecutor(3) as pool:  # several callers at once, and each several times
        images = [torch.randn(batch, *x.shape[1:], generator=generator) for batch in (1, 2, 1, 2, 7, 1)]
        for given, y in zip(images, pool.map(found, images)):
            assert_close(model, [y], given)


@pytest.mark.usefixtures("quick")
def test_libraries_are_compiled_once_and_the_plain_model_is_kept_where_it_is_faster(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, _ = made("mlp", "weight", 0.9, 1)
    monkeypatch.setattr(compiled, "_timed", favour("plain"))
    found = compile_c(model, x)
    assert not isinstance(found, CompiledNetwork)
    assert found.report.chosen == "plain"  # type: ignore[union-attr]
    assert torch.equal(found(x), model(x))
    (library,) = cache.glob("*.so")
    before = library.stat().st_mtime_ns
    monkeypatch.setattr(compiled, "_timed", favour("256"))
    again = compile_c(model, x)
    assert isinstance(again, CompiledNetwork)
    assert library.stat().st_mtime_ns == before
    assert [path.name for path in cache.iterdir()] == [library.name]


def test_without_a_compiler_the_model_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    model, x, _ = made("mlp", "weight", 0.5, 1)
    with pytest.warns(UserWarning, match="no C compiler"):
        found = compile_c(model, x)
    assert torch.equal(found(x), model(x))
    report = export_c(model, x, tmp_path / "out")
    assert report.difference is None
    assert "not checked" in str(report)
    assert all(path.exists() for path in report.files)


def test_refusals() -> None:
    model, x = nn.Linear(3, 2), torch.randn(2, 3)
    for options, words in (({"threads": 0}, "threads are 0"), ({"rounds": 0}, "rounds 0"), ({"dtype": "bool"}, "bool")):
        with pytest.raises(UserError, match=words):
            compile_c(model, x, **options)


def test_in_earnest() -> None:
    """A ResNet of which 95 % of the weights are zero is at least twice as fast; ten times where nothing else runs."""
    need("cc")
    generator = torch.Generator().manual_seed(0)
    model = prune(randomise(build("resnet20", 10, 3), generator), "weight", 0.95, generator)
    found = compile_c(model, torch.randn(1, 3, 32, 32, generator=generator), rounds=15)
    assert isinstance(found, CompiledNetwork)
    assert found.report is not None
    assert 2 * found.report.after < found.report.before, found.report


def test_a_sparse_network_is_a_small_library(tmp_path: Path) -> None:
    """A ResNet-56 of which 95 % is zero, in float16: at most 1/12 of its dense weights in float32."""
    need("cc")
    generator = torch.Generator().manual_seed(0)
    model = prune(randomise(build("resnet56", 10, 3), generator), "weight", 0.95, generator)
    source = Source(network(model, (torch.randn(2, 3, 32, 32),)), "net", 1, "float16")
    folder = written(source, tmp_path)
    library = built(folder, ("cc", "-O2", "-march=native", "-s", "-shared", "-fPIC"), "net.so")
    dense = 4 * sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert 12 * os.path.getsize(library) <= dense


def test_a_trained_network_outside_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digits: the program takes the test set's raw pixels and gives the classes that PyTorch gives."""
    need("cc")
    pytest.importorskip("sklearn")
    pytest.importorskip("safetensors")
    from gibbsprune import data
    from gibbsprune.export.runs import load_run
    from gibbsprune.training import run as training
    from gibbsprune.training.progress import PlainProgress
    from gibbsprune.training.spec import RunSpec

    spec = RunSpec(data="digits", model="resnet8", structure="weight", sparsity=0.8, epochs=2)
    training.start([spec], tmp_path / "run", "cpu", progress=PlainProgress(io.StringIO()))
    found = load_run(tmp_path / "run", images=10**6)
    arrays = data.load("digits")
    mean, std = (side.tolist() for side in arrays.statistics(found.spec.recipe.standardise))
    assert main(["export", str(tmp_path / "run"), "--format", "c", "--out", str(tmp_path / "c")]) == 0
    assert "differs from PyTorch by" in capsys.readouterr().out
    source = Source(
        network(found.model, (found.images[:2],)), "net", 1, "float32", [1 / (255 * s) for s in std],
        [-m / s for m, s in zip(mean, std)], arrays.class_names,
    )  # fmt: skip
    folder = written(source, tmp_path / "program")
    assert (folder / "net.c").read_text() == (tmp_path / "c" / "net.c").read_text()
    pixels: Tensor = torch.as_tensor(arrays.x_test)
    (logits,) = run(built(folder, ("cc", "-O1", "-march=native")), pixels, source)
    assert len(logits) == 355
    with torch.no_grad():
        expected = found.model(found.images).argmax(1)
    assert torch.equal(logits.argmax(1), expected)
    accuracy = float((logits.argmax(1) == found.labels).float().mean())
    assert accuracy == float((expected == found.labels).float().mean())
