"""How two networks are compared, and in which precision."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gibbsprune import compact, export_onnx, export_pt2
from gibbsprune.export.compaction import CompactReport
from gibbsprune.export.equality import difference, difference_in_double, own_error


class Cancelling(nn.Module):
    """Outputs are small differences of large sums: in float32 they are mostly rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 128), nn.Linear(128, 4, bias=False)
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            half = torch.randn(64, 64, generator=draw)
            self.wide.weight.copy_(torch.cat([half, half + 1e-6 * torch.randn(64, 64, generator=draw)]))
            self.wide.bias.fill_(300.0)
            self.narrow.weight.copy_(torch.randn(4, 64, generator=draw).repeat(1, 2))
            self.narrow.weight[:, 64:].neg_()
            for unit in range(0, 64, 3):
                for row in (unit, unit + 64):
                    self.wide.weight[row] = self.wide.bias[row] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(torch.relu(self.wide(x)))


def test_ill_conditioned_networks_are_compared_in_float64() -> None:
    model, x = Cancelling().eval(), torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    small = compact(model, x)
    found = small.report
    assert isinstance(found, CompactReport)
    assert found.parameters_after < 0.75 * found.parameters_before
    assert found.difference < 1e-6  # in float64
    with torch.no_grad():
        assert own_error(model, (x,), {}) > 1e-4  # float32 cannot tell
        assert difference(model(x), small(x)) > 1e-4
    assert difference_in_double(model, small, (x,), {}) == found.difference
    small.get_parameter("narrow.weight").data[0, 0] += 0.01
    assert difference_in_double(model, small, (x,), {}) > 1e-4  # and a wrong weight is still seen


def test_ill_conditioned_networks_are_exported(tmp_path: Path) -> None:
    """ONNX Runtime is no further from PyTorch than PyTorch from the truth."""
    pytest.importorskip("onnxscript")
    model, x = Cancelling().eval(), torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    assert export_onnx(model, x, tmp_path / "net.onnx").difference < 4 * own_error(model, (x,), {})


def test_networks_that_do_not_run_in_float64() -> None:
    class Narrow(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    assert difference_in_double(Narrow(2, 2), Narrow(2, 2), (torch.ones(1, 2),), {}) == float("inf")
    assert own_error(Narrow(2, 2), (torch.ones(1, 2),), {}) == 0


class Columns(nn.Module):
    """Reads the columns of a table, numbers of categories as tokens are, each by its place."""

    def __init__(self) -> None:
        super().__init__()
        self.tables, self.dense = nn.ModuleList(nn.Embedding(5, 2) for _ in range(3)), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], 1))


def test_columns_of_a_table_are_no_text_of_any_length(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    x = torch.randint(5, (4, 3))
    assert export_onnx(Columns(), x, tmp_path / "net.onnx").difference < 1e-6
    assert export_pt2(Columns(), x, tmp_path / "net.pt2").difference < 1e-6
