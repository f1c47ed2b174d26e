"""Eight bits with exact zeros: ONNX files, and fine-tuning that knows of the rounding."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export_zoo import prune, randomise
from gibbsprune import GibbsPruner, QuantizationAware, UserError, compact, data, export_onnx, hold_zeros
from gibbsprune.cli import main
from gibbsprune.export.onnx import open_onnx
from gibbsprune.export.runs import accuracy, load_run, training_images
from gibbsprune.training import RunSpec, run
from gibbsprune.training.progress import PlainProgress

onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
            nn.ConvTranspose2d(16, 6, 2), nn.Flatten(), nn.Linear(54, 5),
        )  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    return prune(randomise(model, draw), "weight", 0.7, draw).eval()


def integers(path: Path) -> dict[str, Tensor]:
    """The int8 weights of a file, by the names of the float ones."""
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    return {
        name.removesuffix("_quantized"): torch.from_numpy(values.copy())
        for name, values in tensors.items()
        if name.endswith("weight_quantized")
    }


def test_zeros_are_exact_and_weights_are_rounded_per_channel(tmp_path: Path) -> None:
    model, x = network(), torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    report = export_onnx(model, x[:4], tmp_path / "net.onnx", dtype="int8", calibration=x)
    assert 0 < report.difference < 0.1
    found = integers(tmp_path / "net.onnx")
    assert set(found) == {"0.weight", "3.weight", "5.weight", "7.weight"}
    for name, q in found.items():
        weight = model.get_parameter(name).detach()
        if name == "0.weight":  # the batch norm that has been folded in changes signs and scales, and no step
            weight = weight * model.get_parameter("1.weight").detach().sign().view(-1, 1, 1, 1)
        assert q.dtype == torch.int8
        assert not q[weight == 0].any()
        axis = 1 if name == "5.weight" else 0
        scale = weight.abs().amax([d for d in range(weight.dim()) if d != axis], keepdim=True) / 127
        assert ((weight / scale.clamp(min=1e-9)).round() - q).abs().max() <= 1, name


def test_what_is_trained_is_what_the_file_computes(tmp_path: Path) -> None:
    model, x = network(), torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    names, plain, zeros = (
        list(model.state_dict()),
        copy.deepcopy(model),
        sum(int((p == 0).sum()) for p in model.parameters()),
    )
    optimizer = torch.optim.Adam(hold_zeros(model).parameters(), 1e-3, weight_decay=0.1)
    aware = QuantizationAware(model)
    for layer in (model[0], model[3], model[7]):
        scale = layer.weight.abs().flatten(1).amax(1).clamp(min=1e-9) / 127
        steps = layer.weight.flatten(1) / scale[:, None]
        assert (steps - steps.round()).abs().max() < 1e-3
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        rounded = model.eval()(x)
    assert aware.finalize() is model
    assert list(model.state_dict()) == names
    assert sum(int((p == 0).sum()) for p in model.parameters()) == zeros
    assert not torch.equal(model[3].weight, plain[3].weight)
    export_onnx(model, x[:4], tmp_path / "net.onnx", dtype="int8", calibration=x)
    (theirs,) = open_onnx((tmp_path / "net.onnx").read_bytes())(x)
    with torch.no_grad():
        exact = model(x)
    error = float((exact - rounded).norm() / exact.norm())
    assert 1e-4 < error < 0.02
    assert float((theirs - rounded).norm() / exact.norm()) < 0.02  # the file rounds its output, too


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    for dtype, calibration in (("int8", None), ("float32", x)):
        with pytest.raises(UserError, match=f"dtype is '{dtype}': calibration is given with int8, and only then"):
            export_onnx(model, x, tmp_path / "net.onnx", dtype=dtype, calibration=calibration)
    with pytest.raises(UserError, match="model is a ReLU without convolutions and Linears"):
        QuantizationAware(nn.ReLU())
    GibbsPruner(model, 0.5)
    with pytest.raises(UserError, match="still carries masks"):
        QuantizationAware(model)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_digits_network_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained and pruned, then as int8 by command, then fine-tuned for it: accuracy and size."""
    spec = RunSpec("digits", "resnet8", sparsity=0.9, epochs=4)
    home = run.start([spec], tmp_path / "run", "cpu", progress=PlainProgress()).folder
    for dtype in ("float32", "int8"):
        assert main(["export", str(home), "--dtype", dtype]) == 0
    said = capsys.readouterr().out
    right = [float(text) for text in re.findall(r"labels ([0-9.]+)% of 355 raw test images", said)]
    assert right[0] > 75
    assert abs(right[0] - right[1]) < 2
    sizes = [(home / name).stat().st_size for name in ("model.onnx", "model-int8.onnx")]
    assert sizes[1] < 0.4 * sizes[0]
    found = load_run(home)
    digits = data.load("digits")
    images, model = training_images(found, len(digits.y_train)), hold_zeros(found.model)
    masks = {name: p != 0 for name, p in model.named_parameters()}
    aware, optimizer = QuantizationAware(model.train()), torch.optim.Adam(model.parameters(), 1e-4)
    for some in torch.arange(len(images)).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(images[some]), digits.y_train[some]).backward()
        optimizer.step()
    model = compact(aware.finalize().eval(), images[:2])
    report = export_onnx(model, images[:8], tmp_path / "tuned.onnx", dtype="int8", calibration=images[:256])
    run_file = open_onnx((tmp_path / "tuned.onnx").read_bytes())
    assert 100 * accuracy(lambda x: run_file(x)[0], found.images, found.labels) > right[0] - 2
    assert report.size < 0.4 * sizes[0]
    for name, q in integers(tmp_path / "tuned.onnx").items():
        assert name not in masks or not q[~masks[name]].any(), name
