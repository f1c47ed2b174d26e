"""Networks as graphs of ATen operators: the same function, names and parameters, whoever called the operators."""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export_zoo import ZOO
from gibbsprune import UserError
from gibbsprune.export.aten import OPERATORS, arguments, attribute, capture, op_name, shape, varies


@pytest.mark.parametrize("name", ZOO)
def test_the_same_function_at_other_batch_sizes(name: str) -> None:
    model, sizes = ZOO[name][0](), ZOO[name][1]
    model.train()
    graph = capture(model, torch.randn(sizes))
    assert all(module.training for module in model.modules())
    model.eval()
    x = torch.randn(sizes[0] + 3, *sizes[1:])
    given = x.clone()
    with torch.no_grad():
        expected, found = model(x.clone()), graph(given)
    for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (expected, found))):
        torch.testing.assert_close(b, a)
    assert torch.equal(given, x)
    targets = {op_name(n) for n in graph.graph.nodes if n.op == "call_function" and n.target is not operator.getitem}
    assert targets - {"", "sym_size"} <= OPERATORS
    own = dict(model.named_parameters())
    assert all(own[key] is value for key, value in graph.named_parameters())
    images = name in ("resnet8", "densenet", "unet")
    assert varies(next(n for n in graph.graph.nodes if n.op == "placeholder"))[2:] == (True, True) or not images


class Subclassed(nn.Conv2d):
    pass


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.weight = Subclassed(3, 8, 3, padding="same", dilation=2), nn.Parameter(torch.randn(4, 4, 2))

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        x = self.conv(x)
        x *= scale
        a, b = x[:, :4], x.chunk(2, 1)[1]
        a += 1
        return {"line": F.conv1d(a.flatten(2), self.weight, padding="same"), "both": torch.stack((a, b)).unbind()[1]}


def test_functionals_subclasses_names_and_overwriting() -> None:
    model = Caller().eval()
    inputs = {"scale": torch.rand(2, 1, 1, 1), "x": torch.randn(2, 3, 5, 6)}
    graph = capture(model, inputs)
    with torch.no_grad():
        expected, found = model(**inputs), graph(**inputs)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    names = [op_name(n) for n in graph.graph.nodes]
    assert names.count("convolution") == 2
    convolution = next(n for n in graph.graph.nodes if op_name(n) == "convolution")
    assert convolution.args[1].target == "conv.weight"
    assert attribute(graph, convolution.args[1]) is model.conv.weight
    assert shape(convolution) == (2, 8, 5, 6)


def test_what_cannot_be_captured_is_told_in_one_sentence() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UserError, match="the network cannot be captured as a graph: ") as found:
        capture(Branching(), torch.ones(3))
    assert "\n" not in str(found.value)


def test_inputs() -> None:
    x = torch.ones(1)
    assert arguments(x) == ((x,), {})
    assert arguments([x, x]) == ((x, x), {})
    assert arguments({"x": x}) == ((), {"x": x})
    for wrong in ((), {}, 3, None):
        with pytest.raises(UserError, match="example_inputs"):
            arguments(wrong)
