"""``gibbsprune export`` on a real run, and the Python functions behind it: every file is read back and compared."""

import copy
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export_zoo import prune, randomise
from gibbsprune import GibbsPruner, UserError, compact, export_onnx, export_pt2, load_compact, load_packed
from gibbsprune.cli import main
from gibbsprune.cli.export import is_export
from gibbsprune.export.card import card
from gibbsprune.export.runs import accuracy, load_run
from gibbsprune.looking import quiet
from gibbsprune.models import build
from gibbsprune.training import run
from gibbsprune.training.progress import PlainProgress
from gibbsprune.training.spec import RunSpec

pytest.importorskip("safetensors")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network, filters pruned, trained for one epoch."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    spec = RunSpec(data="digits", model="resnet8", structure="filter", sparsity=0.75, epochs=1)
    run.start([spec], folder, "cpu", progress=PlainProgress(io.StringIO()))
    return folder


def test_a_run_is_read_back(trained: Path) -> None:
    found = load_run(trained, images=355)
    result = json.loads((trained / "result.json").read_text())
    assert accuracy(found.model, found.images, found.labels) == pytest.approx(result["accuracy"], abs=1e-9)
    assert not found.model.training


def test_onnx(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    out = tmp_path / "net.onnx"
    assert main(["export", str(trained), "--format", "onnx", "--compact", "--fold", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "77,562 parameters, now" in text
    assert "ONNX Runtime differs from PyTorch by" in text
    session = runtime.InferenceSession(out.read_bytes(), providers=["CPUExecutionProvider"])
    found = load_run(trained)
    for batch in (1, 5, 77):
        (y,) = session.run(None, {"input": found.pixels[:batch].numpy()})
        with torch.no_grad():
            assert np.abs(y - found.model(found.images[:batch]).numpy()).max() < 1e-4
    content = out.read_bytes()
    kinds = {node.op_type for node in __import__("onnx").load_from_string(content).graph.node}
    assert "BatchNormalization" not in kinds
    assert b"gibbsprune/" not in content, "no paths of the machine that wrote it"
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["mean"]) == found.about["mean"]
    assert json.loads(told["class_names"]) == list("0123456789")
    assert "raw pixels, uint8 0..255, of (batch, 8, 8, 1)" in told["input"]


def test_bare_files_take_what_the_network_takes(trained: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = load_run(trained, images=9)
    with torch.no_grad():
        expected = found.model(found.images)
    for form in ("onnx", "pt2"):
        assert main(["export", str(trained), "--format", form, "--bare", "--out", str(tmp_path / form)]) == 0
    session = runtime.InferenceSession(tmp_path / "onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"input": found.images.numpy()})
    assert np.abs(y - expected.numpy()).max() < 1e-4
    assert "(pixel / 255 - mean) / std" in session.get_modelmeta().custom_metadata_map["input"]
    with quiet():
        again = torch.export.load(tmp_path / "pt2").module()
    assert (again(found.images) - expected).abs().max() < 1e-4


def test_other_options_have_other_names_and_a_page(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = set()
    for more in ([], ["--compact"], ["--dtype", "float16"], ["--compact", "--dtype", "int8"]):
        assert main(["export", str(trained), "--format", "packed", *more]) == 0
        written.add(capsys.readouterr().out.splitlines()[-2].partition(": ")[0])
    names = {Path(file).name for file in written}
    assert names == {"model.packed", "model-compact.packed", "model-float16.packed", "model-compact-int8.packed"}
    for file in written:
        page = Path(file + ".md").read_text()
        assert "(pixel / 255 - mean) / std" in page, "a file of weights has no preprocessing in it"
        assert is_export(Path(file).name)
        assert is_export(Path(file).name + ".md")
        assert ("parameters of the compact network" in page) == ("compact" in file)
    assert not is_export("model.safetensors")
    assert not is_export("notes.txt")
    assert is_export("c-float16")
    run_record = json.loads((trained / "run.json").read_text())
    assert run_record["images"] == json.loads((trained / "result.json").read_text())["images"]
    assert run_record["images"]["class_names"] == list("0123456789")
    assert main(["export", str(trained), "--format", "packed", "--bare"]) == 2
    assert "--bare is for c, onnx, pt2" in capsys.readouterr().err


@pytest.mark.parametrize("bare", [[], ["--bare"]])
def test_compact_files_need_no_class(trained: Path, capsys: pytest.CaptureFixture[str], bare: list[str]) -> None:
    assert main(["export", str(trained), "--format", "compact", "--fold", *bare]) == 0
    told = capsys.readouterr().out
    assert "the file read back differs from PyTorch by" in told
    found = load_run(trained)
    network = load_compact(trained / f"network-compact-fold{'-bare' if bare else ''}.safetensors")
    given = found.images if bare else found.pixels
    assert f"labels {accuracy(network, given, found.labels):.2%} of 355" in told
    with torch.no_grad():
        torch.testing.assert_close(network(given[:7].clone()), found.model(found.images[:7]), atol=1e-4, rtol=1e-4)


def test_pt2_and_its_batch_sizes(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "net.pt2"
    assert main(["export", str(trained), "--format", "pt2", "--compact", "--out", str(out)]) == 0
    assert "the program read back differs" in capsys.readouterr().out
    with quiet():
        again = torch.export.load(out).module()
    found = load_run(trained)
    with torch.no_grad():
        assert (again(found.pixels[:9]) - found.model(found.images[:9])).abs().max() < 1e-4
    extra = {"metadata.json": ""}
    with quiet():
        torch.export.load(out, extra_files=extra)
    assert json.loads(json.loads(extra["metadata.json"])["class_names"]) == list("0123456789")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_packed(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    out = tmp_path / "net"
    assert main(["export", str(trained), "--format", "packed", "--dtype", dtype, "--out", str(out)]) == 0
    assert "times as large" in capsys.readouterr().out
    found = load_run(trained)
    before = accuracy(found.model, found.images, found.labels)
    again = load_packed(out, build("resnet8", 10, 1)).eval()
    assert abs(accuracy(again, found.images, found.labels) - before) <= (0.0 if dtype == "float32" else 0.01)


def test_safetensors_by_default_beside_the_model(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (trained / "model.safetensors").read_bytes()
    assert main(["export", str(trained), "--format", "safetensors", "--dtype", "float16", "--compact"]) == 0
    text = capsys.readouterr().out
    assert "fit gp.compact of this run's network" in text
    assert (trained / "model-export-compact-float16.safetensors").stat().st_size < 0.4 * len(before)
    assert (trained / "model.safetensors").read_bytes() == before


def test_names_of_classes_are_words_on_the_page_whatever_they_are(trained: Path) -> None:
    run = load_run(trained, images=1)
    run.about["class_names"] = ["a|b", "<script>", "two\nlines", *"3456789"]
    lines = card(run, "onnx", "model.onnx", False, "").splitlines()
    (line,) = (line for line in lines if line.startswith("| classes"))
    assert line.endswith("|")
    assert line.count("|") == 3
    assert not {"<", ">"} & set(line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--format", "tflite"],
            "--format is 'tflite': allowed are 'c', 'onnx', 'pt2', 'compact', 'packed', 'safetensors'",
        ),
        (["--dtype", "int4"], "'int4'"),
        (["--format", "pt2", "--dtype", "float16"], "--dtype is 'float16': allowed are 'float32' with --format pt2"),
        (["--fold"], "together with --compact"),
    ],
)
def test_refusals(trained: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["export", str(trained), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.safetensors", "run.json", "metrics.jsonl"])
def test_a_runs_own_files_are_not_overwritten(trained: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    before = (trained / name).read_bytes()
    assert main(["export", str(trained), "--format", "packed", "--out", str(trained / name)]) == 2
    assert f"{name}, a file of a run, which would be lost; choose another name" in capsys.readouterr().err
    assert (trained / name).read_bytes() == before
    assert main(["profile", str(trained), "--rounds", "1", "--out", str(trained / name)]) == 2
    assert f"{name}, a file of a run, which would be lost; choose another name" in capsys.readouterr().err
    assert (trained / name).read_bytes() == before


def test_neither_are_its_checkpoints(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved,) = list((trained / "checkpoints").glob("*.ckpt"))[-1:]
    before = saved.read_bytes()
    assert main(["export", str(trained), "--format", "packed", "--out", str(saved)]) == 2
    assert "a file of a run, which would be lost" in capsys.readouterr().err
    assert saved.read_bytes() == before


def test_what_is_no_finished_run(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(UserError, match=r"no run\.json"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text((trained / "run.json").read_text())
    with pytest.raises(UserError, match="not finished"):
        load_run(tmp_path)
    record = json.loads((trained / "result.json").read_text())
    record["spec"]["model"] = "resnet14"
    record["name"] = RunSpec.from_dict(record["spec"]).name()
    (tmp_path / "result.json").write_text(json.dumps(record))
    for name in ("model", "masks"):
        (tmp_path / f"{name}.safetensors").write_bytes((trained / f"{name}.safetensors").read_bytes())
    with pytest.raises(UserError, match="another network than resnet14"):
        load_run(tmp_path)


def test_a_network_that_views_and_overwrites_images_of_one_channel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = RunSpec(data="digits", model="own_networks:overwriting", sparsity=0.5, epochs=2)
    run.start([spec], tmp_path / "run", "cpu", progress=PlainProgress(io.StringIO()))
    reached = json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"]
    for form in ("packed", "safetensors", "pt2"):
        assert main(["export", "run", "--format", form, "--trust"]) == 0, capsys.readouterr().err
        told = f"{reached:.2%} of 355 raw test" if form == "pt2" else f"{reached:.2%}, read back {reached:.2%}."
        assert told in capsys.readouterr().out
    assert main(["profile", "run", "--rounds", "1", "--trust"]) == 0


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(self.a(x) + self.b(y)), self.a(x)


def test_python_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    inputs = (torch.randn(1, 6), torch.randn(1, 5))
    assert export_onnx(TwoInputs(), inputs, tmp_path / "two.onnx").difference < 1e-5
    assert export_pt2(TwoInputs(), inputs, tmp_path / "two.pt2").difference < 1e-5
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(256, 5)).eval()
    x = torch.randn(2, 3, 6, 6)
    whole = export_onnx(model, x, tmp_path / "net.onnx")
    half = export_onnx(model, x, tmp_path / "half.onnx", "float16")
    assert half.size < 0.6 * whole.size
    assert whole.difference < 1e-5 < half.difference < 1e-2
    computed = export_onnx(copy.deepcopy(model).half(), x.half(), tmp_path / "computed.onnx")
    assert 1e-5 < computed.difference < 1e-2
    with pytest.raises(UserError, match="ONNX Runtime does not take the exported model"):
        export_onnx(copy.deepcopy(model).bfloat16(), x.bfloat16(), tmp_path / "brain.onnx")
    for function in (export_onnx, export_pt2):
        with pytest.raises(UserError, match="example_inputs are None: allowed are a tensor, a list or a dict of"):
            function(model, None, tmp_path / "none")
    with pytest.raises(UserError, match="float32, float16, int8"):
        export_onnx(model, x, tmp_path / "net.onnx", "int4")
    GibbsPruner(model, sparsity=0.5)
    with pytest.raises(UserError, match="finalize"):
        export_pt2(model, x, tmp_path / "net.pt2")

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    capsys.readouterr()
    for function in (export_onnx, export_pt2):
        with pytest.raises(UserError, match="cannot be exported") as caught:
            function(Branching(), torch.ones(2, 3), tmp_path / "no")
        assert capsys.readouterr() == ("", ""), "the sentence is enough"
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "no").exists()


def test_a_network_may_overwrite_its_input(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")

    class Overwriting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            x -= 0.5
            x /= 0.25
            return self.dense(x)

    x = torch.rand(2, 6)
    before = x.clone()
    for function in (export_onnx, export_pt2):
        assert function(Overwriting(), x, tmp_path / "net").difference < 1e-5
    assert torch.equal(x, before)


def test_a_compact_network_of_half_precision(tmp_path: Path) -> None:
    """Its sums at some of the channels are written in a form that ONNX Runtime has in float16, too."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    generator = torch.Generator().manual_seed(0)
    model = prune(randomise(build("resnet8", 10, 3), generator), "filter", 0.75, generator).half()
    x = torch.randn(2, 3, 16, 16, generator=generator).half()
    small = compact(model, x)
    assert any("channels" in name for name, _ in small.named_buffers())
    assert export_onnx(small, x, tmp_path / "half.onnx").difference < 1e-2


def test_what_onnx_runtime_cannot_run_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")

    class Adds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.index_add(1, torch.tensor([0, 2]), x[:, :2])

    with pytest.raises(UserError, match=r"ONNX Runtime does not run the exported model: .*Float16") as caught:
        export_onnx(Adds(), torch.ones(2, 3).half(), tmp_path / "no.onnx")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "no.onnx").exists()
