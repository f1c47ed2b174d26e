"""The CIFAR ResNets: Table I, shapes, initialisation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from gibbsprune.errors import UserError
from gibbsprune.models import NAMES, build, describe, describe_table, resnet


@pytest.mark.parametrize(
    ("name", "values", "percents"),
    [
        ("resnet20", [432, 2752, 650, 269824, 273658], ["0.16", "1.01", "0.24", "98.60", "100.00"]),
        ("resnet56", [432, 8128, 650, 850432, 859642], ["0.05", "0.95", "0.08", "98.93", "100.00"]),
    ],
)
def test_table_one_comes_out_exactly(name: str, values: list[int], percents: list[str]) -> None:
    rows = describe(build(name, classes=10, channels=3))
    assert [row.name for row in rows] == ["first conv", "batch norm", "dense", "other convs", "all"]
    assert [row.values for row in rows] == values
    assert [f"{row.percent:.2f}" for row in rows] == percents


def test_the_table_as_text() -> None:
    lines = describe_table(["resnet20", "resnet56"]).splitlines()
    assert [line.split()[1] for line in (lines[0], *lines[2:4])] == ["network", "resnet20", "resnet56"]
    assert "269,824 (98.60 %)" in lines[2]
    assert lines[3].endswith("| 859,642 | 855,578 |")
    assert len({len(line) for line in lines[:4]}) == 1
    assert "without" in lines[6], "why the last two differ"
    assert "other " not in lines[0].replace("other convs", "")


def test_parameters_of_other_kinds_and_shared_ones_are_counted_once() -> None:
    conv = nn.Conv2d(2, 2, 1)
    norm = nn.BatchNorm2d(2, affine=False)
    model = nn.Sequential(nn.Conv1d(1, 1, 1), conv, conv, norm, nn.LayerNorm(5), nn.Linear(5, 2))
    rows = {row.name: row.values for row in describe(model)}
    assert rows == {
        "first conv": 2, "batch norm": 4, "dense": 12, "other convs": 6, "other": 10, "all": 34
    }  # fmt: skip


def test_a_parametrised_network_is_described_as_the_plain_one() -> None:
    class Halve(nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return w / 2

    model = resnet(8)
    masked = copy.deepcopy(model)
    for module in masked.modules():
        if isinstance(module, nn.Conv2d):
            nn.utils.parametrize.register_parametrization(module, "weight", Halve())
    assert describe(masked) == describe(model)


@pytest.mark.parametrize("name", NAMES)
def test_depth_is_the_number_of_weighted_layers(name: str) -> None:
    model = build(name, classes=10, channels=3)
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    projections = [m for m in layers if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)]
    assert len(layers) - len(projections) == int(name.removeprefix("resnet"))
    assert [m.stride for m in projections] == [(2, 2)] * 2
    assert all(m.bias is None for m in layers if isinstance(m, nn.Conv2d))


@pytest.mark.parametrize(("size", "channels", "classes"), [((8, 8), 1, 10), ((32, 32), 3, 10), ((9, 17), 5, 3)])
def test_any_image_size_and_channels(size: tuple[int, int], channels: int, classes: int) -> None:
    model = resnet(8, classes, channels)
    x = torch.randn(4, channels, *size).to(memory_format=torch.channels_last)
    out = model(x)
    assert out.shape == (4, classes)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_initial_weights_are_he_normal() -> None:
    model = resnet(56, generator=torch.Generator().manual_seed(0))
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 9000:
            fan_in = module.in_channels * 9
            scaled = module.weight.detach() / math.sqrt(2 / fan_in)
            noise = 5 / math.sqrt(scaled.numel())  # five standard errors
            assert abs(scaled.mean().item()) < noise
            assert abs(scaled.std().item() - 1) < noise
            assert scaled.abs().max() > 2.9  # a plain normal law, not a truncated one
    assert not model.dense.bias.any()


def test_initial_weights_are_a_function_of_the_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two = (resnet(8, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    three, four = resnet(8), resnet(8)
    assert not torch.equal(three.conv.weight, four.conv.weight)
    torch.manual_seed(1)
    assert torch.equal(resnet(8).conv.weight, three.conv.weight)


@pytest.mark.parametrize("depth", [2, 9, 18, 34])
def test_other_depths_are_refused(depth: int) -> None:
    with pytest.raises(UserError, match=rf"^model is 'resnet{depth}': allowed are depths of 6n \+ 2"):
        build(f"resnet{depth}", 10, 3)


def test_other_counts_are_refused() -> None:
    with pytest.raises(UserError, match="classes is 1"):
        resnet(8, classes=1)
    with pytest.raises(UserError, match="channels is 0"):
        resnet(8, channels=0)
