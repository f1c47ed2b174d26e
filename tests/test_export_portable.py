"""A compact network in a file: the same network anywhere, and nothing but known operators, whatever a file says."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export_zoo import ZOO
from gibbsprune import UserError, compact, export_onnx, export_pt2, load_compact, save_compact
from gibbsprune.export.equality import difference
from gibbsprune.export.portable import FORMAT, _digest
from test_export_compact import made

safetensors: Any = pytest.importorskip("safetensors.torch")


def small(name: str = "mlp", structure: str = "filter") -> tuple[nn.Module, Tensor]:
    model, x, _ = made(name, structure, 0.6, 0)
    return compact(model, x), x


@torch.no_grad()
def answer(model: nn.Module, x: Tensor) -> Any:
    return model(x.clone())


@pytest.mark.parametrize("name", ZOO)
def test_the_same_network_comes_back(tmp_path: Path, name: str) -> None:
    network, x = small(name)
    save_compact(network, tmp_path / "net")
    again = load_compact(tmp_path / "net")
    assert again.report == network.report
    assert not again.training
    for rows in (1, len(x), len(x) + 2):
        given = torch.cat([x, x, x])[:rows]
        assert difference(answer(network, given), answer(again, given)) == 0
    theirs = dict(again.named_parameters())
    assert {k: p.requires_grad for k, p in network.named_parameters()} == {
        k: p.requires_grad for k, p in theirs.items()
    }
    assert all(torch.equal(p, theirs[k]) for k, p in network.named_parameters())
    save_compact(again, tmp_path / "again")
    assert difference(answer(load_compact(tmp_path / "again"), x), answer(network, x)) == 0


def test_it_trains_like_the_one_that_was_saved(tmp_path: Path) -> None:
    network, x = small("resnet8")
    save_compact(network, tmp_path / "net")
    both = [network, load_compact(tmp_path / "net")]
    for model in both:
        optimizer = torch.optim.SGD(model.train().parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            model(x.clone()).square().mean().backward()
            optimizer.step()
        model.eval()
    assert difference(answer(both[0], x), answer(both[1], x)) < 1e-6
    save_compact(both[1], tmp_path / "trained")
    assert difference(answer(load_compact(tmp_path / "trained"), x), answer(both[1], x)) == 0


def test_it_exports_and_is_made_smaller_again(tmp_path: Path) -> None:
    network, x = small("mobilenet")
    save_compact(network, tmp_path / "net")
    again = load_compact(tmp_path / "net")
    pytest.importorskip("onnxscript")
    assert export_onnx(again, x, tmp_path / "net.onnx").difference < 1e-4
    assert export_pt2(again, x, tmp_path / "net.pt2").difference < 1e-4
    assert difference(answer(compact(again, x), x), answer(network, x)) < 1e-4


def test_tied_and_frozen_weights_stay_so(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.words.weight
            self.shift = nn.Parameter(torch.ones(4), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.words(x) + self.shift)

    network = compact(Tied(), torch.tensor([[1, 2], [3, 4]]))
    save_compact(network, tmp_path / "net")
    again = load_compact(tmp_path / "net")
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in network.parameters()) == 28
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in network.parameters()]


def test_a_hugging_face_model_loads_without_its_class(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=16, num_labels=3, **sizes)
    ids = torch.arange(14).view(2, 7)
    network = compact(transformers.BertForSequenceClassification(config).eval(), {"input_ids": ids})
    save_compact(network, tmp_path / "net")
    torch.save(answer(network, ids).logits, tmp_path / "logits.pt")
    code = (
        "import sys, torch, gibbsprune as gp\n"
        "sys.modules['transformers'] = None\n"
        "network = gp.load_compact(sys.argv[1])\n"
        "found = network(input_ids=torch.arange(14).view(2, 7))\n"
        "assert found.logits is found['logits'] is found[0] and not hasattr(found, 'loss')\n"
        "assert torch.equal(found.logits, torch.load(sys.argv[2], weights_only=True))\n"
        "assert torch.export.export(network, (), {'input_ids': torch.zeros(2, 7, dtype=torch.long)})\n"
    )
    told = subprocess.run([sys.executable, "-W", "ignore", "-c", code, tmp_path / "net", tmp_path / "logits.pt"],
                          capture_output=True, text=True)  # fmt: skip
    assert told.returncode == 0, told.stderr


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # copies of graphs that take containers
def test_what_is_no_compact_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model is a Linear: allowed are networks made by compact$"):
        save_compact(nn.Linear(2, 2), tmp_path / "net")

    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UserError, match="made by compact, which left this one as it was: the network cannot"):
        save_compact(compact(Branching(), torch.ones(2, 2)), tmp_path / "net")

    class Listed(nn.Module):
        def forward(self, x: list[Tensor]) -> Tensor:
            return x[0] + x[1]

    with pytest.raises(UserError, match="takes containers of tensors"):
        save_compact(compact(Listed(), [[torch.ones(2, 2), torch.ones(2, 2)]]), tmp_path / "net")
    network, _ = small("resnet8")
    network.get_submodule("blocks.0.conv1").padding_mode = "reflect"  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"'blocks.0.conv1' pads with 'reflect'"):
        save_compact(network, tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    network, _ = small()
    save_compact(network, path := tmp_path / "net")
    whole, generator = path.read_bytes(), torch.Generator().manual_seed(0)
    for keep in (0, 4, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(UserError, match="net"):
            load_compact(path)
    for at in torch.randint(len(whole), (60,), generator=generator).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(UserError, match="net"):
            load_compact(path)
    path.write_bytes(safetensors.save({"weight": torch.ones(2)}))
    with pytest.raises(UserError, match="is a safetensors file, but no compact network"):
        load_compact(path)
    with pytest.raises(UserError, match="cannot read"):
        load_compact(tmp_path / "none")


Network = dict[str, Any]


def call(name: str, **named: Any) -> Callable[[Network], None]:
    """One more call, on the first input."""
    return lambda network: network["nodes"].insert(1, ["call", name, [{"node": 0}], named])


def node(*row: Any) -> Callable[[Network], None]:
    return lambda network: network["nodes"].insert(1, list(row))


def layer(change: Callable[[list[Any]], None]) -> Callable[[Network], None]:
    return lambda network: change(network["layers"]["0"])


HOSTILE: dict[str, tuple[Callable[[Network], None], str]] = {
    "code": (call("os.system"), "it calls 'os.system'"),
    "builtin": (call("eval"), "it calls 'eval'"),
    "file": (call("aten.from_file.default"), "it calls 'aten.from_file.default'"),
    "in place": (call("aten.add_.Tensor"), "it calls 'aten.add_.Tensor'"),
    "out": (call("aten.add.out"), "it calls 'aten.add.out'"),
    "overload": (call("aten.relu.overloads"), "it calls 'aten.relu.overloads'"),
    "namespace": (call("prim.Print.default"), "it calls 'prim.Print.default'"),
    "no name": (lambda network: network["nodes"].insert(1, ["call", ["relu"], [], {}]), "it calls"),
    "input": (node("placeholder", "x): print(1) #"), "is no name of an argument"),
    "keyword": (node("placeholder", "lambda"), "is no name of an argument"),
    "named": (call("relu", **{"inplace=print(1),x": 1}), "is no name of an argument"),
    "record": (node("record", {"a=print(1),b": None}), "is no name of an argument"),
    "dunder": (
        lambda network: network["tensors"].append(["__class__", "buffer", "0.weight"]),
        "is no name of a tensor",
    ),
    "tensor": (node("tensor", "forward.__globals__"), "it has no tensor 'forward.__globals__'"),
    "name taken": (lambda network: network["tensors"].append(["forward", "buffer", "0.weight"]), "forward"),
    "module": (node("layer", "__init__", []), "it has no layer '__init__'"),
    "class": (layer(lambda row: row.__setitem__(0, "Sequential")), "a layer of the class 'Sequential'"),
    "size": (layer(lambda row: row[1].update(in_features=10**12)), "does not fit its layer"),
    "option": (layer(lambda row: row[1].update(device="cuda")), "options that those have not"),
    "later": (call("relu", inplace={"node": 99}), "which is none before it"),
    "value": (call("relu", inplace={"dtype": "load"}), "it has a value"),
    "kind": (node("import", "os"), "it has a node of the kind 'import'"),
    "nothing": (lambda network: network.clear(), "no network that can be loaded"),
    "kinds": (lambda network: network.update(nodes=[3]), "no network that can be loaded"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Files with a right checksum that say what no network says."""
    change, told = HOSTILE[name]
    network, _ = small()
    save_compact(network, path := tmp_path / "net")
    content = path.read_bytes()
    tensors = safetensors.load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    record = json.loads(header["__metadata__"][FORMAT])
    change(record["network"])
    record["sha256"] = _digest(record["network"], tensors)
    path.write_bytes(safetensors.save(tensors, metadata={FORMAT: json.dumps(record)}))
    with pytest.raises(UserError, match=told) as refusal:
        load_compact(path)
    assert "\n" not in str(refusal.value)
    assert capsys.readouterr().out == ""
