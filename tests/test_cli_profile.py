"""``gibbsprune profile``: its counts are right, its tables and picture are there."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from c_programs import need
from gibbsprune import UserError
from gibbsprune.cli import main
from gibbsprune.export.c import compiled
from gibbsprune.export.profile import Latency, multiply_adds, profile
from gibbsprune.export.profile_report import layers_table, totals_table
from gibbsprune.models import build

pytest.importorskip("safetensors")


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C is compiled without optimisation, in one width."""
    monkeypatch.setenv("GIBBSPRUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "FLAGS", ("-O1", "-march=native"))
    monkeypatch.setattr(compiled, "_widths", lambda: [256])


def test_multiply_adds_by_hand() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 5, padding=2, groups=4)),
        *(nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Flatten(), nn.Linear(6 * 100, 7)),
    )
    found = multiply_adds(model, torch.randn(2, 3, 10, 10))
    assert found == {
        "0": 25 * 8 * 3 * 9,
        "1": 25 * 8 * 2 * 25,
        "2": 25 * 8 * 6 * 4,
        "4": 600 * 7,
    }
    assert sum(multiply_adds(build("resnet20", 10, 3), torch.randn(1, 3, 32, 32)).values()) == 40_551_040 + 2 * 131_072


def test_multiply_adds_of_attention() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    found = multiply_adds(layer, torch.randn(2, 5, 16))
    assert found == {"self_attn": 4 * 5 * 16 * 16, "linear1": 5 * 16 * 32, "linear2": 5 * 16 * 32}

    class Across(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, kdim=6, vdim=7, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, key=x[:, :3, :6], value=x[:, :3, :7])[0]

    assert multiply_adds(Across(), torch.randn(2, 5, 16)) == {"attention": (2 * 5 * 16 + 3 * 6 + 3 * 7) * 16}
    forms = profile({"one": layer, "across": Across()}, torch.randn(2, 5, 16), batches=(1,), rounds=1)
    assert forms["one"].macs == sum(found.values())
    assert forms["one"].layers["self_attn"].shape == (48, 16)
    assert forms["across"].layers["attention"].parameters == forms["across"].parameters


def test_profile_counts_and_times() -> None:
    dense, sparse = build("resnet8", 10, 3), build("resnet8", 10, 3)
    sparse.blocks[0].conv1.weight.data[4:] = 0
    found = profile({"dense": dense, "pruned": sparse}, torch.randn(3, 3, 16, 16), batches=(1, 8), rounds=4)
    assert found["dense"].parameters == found["pruned"].parameters == sum(p.numel() for p in dense.parameters())
    row = found["pruned"].layers["blocks.0.conv1"]
    assert (row.parameters, row.nonzero, row.shape) == (2304, 4 * 144, (16, 16, 3, 3))
    assert found["dense"].nonzero - found["pruned"].nonzero == 12 * 144
    assert found["pruned"].size < found["dense"].size <= found["dense"].dense_size + 2000
    for form in found.values():
        assert set(form.latency) == {1, 8}
        for batch, total in form.latency.items():
            assert 0 < total.low <= total.median <= total.high
            assert 0 < sum(layer.latency[batch].low for layer in form.layers.values()) < 3 * total.high
    assert found["dense"].latency[8].low > found["dense"].latency[1].low
    assert str(Latency.of([1.0, 2.0, 3.0])) == "2.00 (1.50–2.50)"
    with pytest.raises(UserError, match="at least 1"):
        profile({"dense": dense}, torch.randn(1, 3, 16, 16), rounds=0)


@pytest.mark.usefixtures("quick")
def test_the_network_in_c_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it stores and multiplies is not zero; without a compiler, or an operator, one sentence says so."""
    need("cc")
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    model[0].weight.data[:, 1:] = 0
    x = torch.randn(2, 3, 8, 8)
    found = profile({"dense": model}, x, batches=(1, 9), rounds=2, in_c="dense")
    row = found["C"]
    assert (row.parameters, row.macs) == (36 + 4 + 720 + 5, 36 * 36 + 720)
    assert 4 * row.parameters <= row.size <= 6 * row.parameters
    assert set(row.latency) == {1, 9}
    assert "| C " in totals_table(found)
    assert "| C " not in layers_table(found)
    odd = nn.Sequential(model, nn.LogSoftmax(1))
    found = profile({"dense": odd}, x, batches=(1,), rounds=1, in_c="dense")
    assert "\nC: the operator aten.log_softmax" in totals_table(found)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    found = profile({"dense": model}, x, batches=(1,), rounds=1, in_c="dense")
    assert totals_table(found).endswith("\nC: no C compiler (cc, gcc or clang) was found")


@pytest.mark.usefixtures("quick")
def test_a_model_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "p.png"
    arguments = ["profile", "resnet8", "--sparsity", "0.75", "--size", "8", "--rounds", "2", "--layers", "--out"]
    before = torch.get_num_threads()
    assert main([*arguments, str(picture), "--threads", "1"]) == 0
    assert torch.get_num_threads() == before
    text = capsys.readouterr().out
    rows = {line.split("|")[1].strip(): line for line in reversed(text.splitlines()) if line.startswith("|")}
    counts = {
        name: [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", rows[name])[:2]] for name in ("dense", "compact")
    }
    plain = build("resnet8", 10, 3)
    norms = [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
    folded = sum(p.numel() for p in plain.parameters()) - sum(norm.num_features for norm in norms)
    assert counts["dense"] == [folded, folded], "its batch norms are biases, as those of the others are"
    assert counts["compact"][0] < 0.5 * counts["dense"][0]
    assert "blocks.2.conv2" in rows
    assert "C" in rows or "\nC: no C compiler" in text
    assert "the rest" in rows
    assert "Batch norms are folded in every row" in text
    pytest.importorskip("matplotlib")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"See {picture}." in text
    monkeypatch.setenv("PATH", "")  # no compiler, no C, no time
    monkeypatch.delenv("CC", raising=False)
    assert main(["profile", "resnet8", "--size", "8", "--rounds", "1", "--out", str(picture / "below.png")]) == 2
    told = capsys.readouterr()
    assert "| dense " in told.out, "a picture that cannot be written does not cost the table"
    assert "cannot write" in told.err


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert main(["profile", "runs/nowhere"]) == 2
    assert "runs/nowhere holds no run" in capsys.readouterr().err
    assert main(["profile", "lenet"]) == 2
    assert "model is 'lenet'" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{}")
    assert main(["profile", str(tmp_path), "--sparsity", "0.5"]) == 2
    assert "for a model by name" in capsys.readouterr().err
    for option in (["--structure", "foo"], ["--size", "7"]):
        assert main(["profile", str(tmp_path), *option]) == 2
        assert f"{option[0]} is for a model by name" in capsys.readouterr().err
    assert main(["profile", "resnet8", "--structure", "kernel"]) == 2
    assert "--structure says what to prune; give --sparsity, too" in capsys.readouterr().err
    assert main(["profile", "resnet8", "--size", "0"]) == 2
    assert "--size is 0: allowed are whole numbers from 1" in capsys.readouterr().err
    assert main(["profile", "resnet8", "--threads", "0"]) == 2
    assert "--threads is 0: allowed are whole numbers from 1" in capsys.readouterr().err
    (tmp_path / "own.py").write_text("mine")
    assert main(["profile", "resnet8", "--out", str(tmp_path / "own.py")]) == 2
    assert f"--out is '{tmp_path}/own.py': allowed are names ending in .png" in capsys.readouterr().err
    assert (tmp_path / "own.py").read_text() == "mine"
    assert main(["profile", "resnet8", "--rounds", "0"]) == 2
    assert "--rounds is 0: allowed are whole numbers from 1" in capsys.readouterr().err


def test_images_that_the_network_does_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flat_networks.py").write_text(
        "from torch import nn\n"
        "def small(classes, channels): return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, classes))\n"
        "def lazy(classes, channels): return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "flat_networks:small"]) == 2
    assert "flat_networks:small does not take images of 3 × 32 × 32 (--size is 32): mat1" in capsys.readouterr().err
    assert main(["describe", "flat_networks:lazy"]) == 2
    assert "1.weight has no size before the first image" in capsys.readouterr().err
