"""A user's own network through package.module:function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from gibbsprune.errors import UserError
from gibbsprune.models import build

SOURCE = """
import torch
from torch import nn

def plain(): return nn.Linear(4, 2)
def sized(classes, channels=1): return nn.Linear(channels, classes)
def keyword(*, classes, **rest): return nn.Linear(len(rest) + 1, classes)
def seeded(classes, generator):
    layer = nn.Linear(3, classes)
    nn.init.normal_(layer.weight, generator=generator)
    return layer
def needy(classes, width, /, depth): return nn.Identity()
def number(): return 7
def broken(classes): raise RuntimeError("no luck\\nand more of it")
constant = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A current folder with the module `mynets` and one that cannot be imported."""
    (tmp_path / "mynets.py").write_text(SOURCE)
    (tmp_path / "faulty.py").write_text("import a_module_that_is_absent\n")
    (tmp_path / "wrong.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield
    for name in ("mynets", "faulty", "wrong"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("function", "shape"), [("plain", (2, 4)), ("sized", (5, 3)), ("keyword", (5, 1)), ("seeded", (5, 3))]
)
def test_it_is_called_with_what_it_accepts(function: str, shape: tuple[int, int]) -> None:
    model = build(f"mynets:{function}", classes=5, channels=3, generator=torch.Generator().manual_seed(0))
    assert isinstance(model, nn.Linear)
    assert model.weight.shape == shape


@pytest.mark.parametrize("function", ["sized", "seeded"])
def test_it_is_a_function_of_the_generator(function: str) -> None:
    def weight(seed: int) -> torch.Tensor:
        model = build(f"mynets:{function}", 5, 3, torch.Generator().manual_seed(seed))
        return model.weight.detach()  # type: ignore[union-attr, operator]

    first, other = weight(0), weight(1)
    torch.rand(3)
    assert torch.equal(first, weight(0))
    assert not torch.equal(first, other)


def test_the_global_generator_is_put_back() -> None:
    before = torch.get_rng_state()
    build("mynets:sized", 5, 3, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("vgg", "model is 'vgg': allowed are 'resnet8', .*'resnet110' and package.module:function"),
        ("absent:f", "there is no module absent"),
        ("torch.absent:f", r"there is no module torch\.absent"),
        ("faulty:f", "importing faulty failed .*a_module_that_is_absent"),
        ("wrong:f", "importing wrong failed .*ZeroDivisionError"),
        ("mynets:absent", "the module mynets has no function 'absent'"),
        ("mynets:constant", "the module mynets has no function 'constant'"),
        ("mynets:", "model is 'mynets:': allowed are package.module:function with both of them"),
        (":f", "model is ':f': allowed are package.module:function"),
        ("mynets:needy", "needs classes, width, depth; only classes, channels, generator can be passed"),
        ("mynets:number", r"returned a int; it must return a torch\.nn\.Module"),
        ("mynets:broken", r"mynets:broken failed \(RuntimeError: no luck\)$"),
    ],
)
def test_mistakes_are_named(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(name, 10, 3)
