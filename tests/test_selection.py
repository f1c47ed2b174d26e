"""Which layers are pruned: defaults, rules, and refusals."""

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils import _pytree as pytree

import gibbsprune as gp
from export_zoo import ZOO, Leaky, randomise
from gibbsprune.flow import leaving
from gibbsprune.selection import select


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.stem = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.stage = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3))
        self.hidden = nn.Linear(4, 6)
        self.head = nn.Linear(6, 2)


def chosen(model, structure=None, **rules):
    return list(select(model, structure or gp.Weight(), **rules)[0])


def test_first_convolution_norms_embeddings_and_biases_are_left_out():
    for structure in (gp.Weight(), gp.Kernel(), gp.Filter()):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            layers, skipped = select(Net(), structure)
        assert len(told) == (structure.name == "filter"), "it has no forward, so that its output is assumed"
        assert list(layers) == ["stage.0", "stage.1", "hidden"]
        assert skipped == {"head": "its outputs leave the network", "stem": "first convolution"}


class Branches(nn.Module):
    """Two heads, of which one is defined first, a residual sum with a projection, and a hook."""

    def __init__(self):
        super().__init__()
        self.boxes = nn.Conv2d(8, 4, 1)
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.skip = nn.Conv2d(4, 8, 1, stride=2)
        self.scores = nn.Linear(8, 5)
        self.seen = None
        self.body.register_forward_pre_hook(lambda module, inputs: 1 / 0)

    def forward(self, x):
        x = self.stem(x).relu()
        self.seen = x
        x = self.body(x) + self.skip(x)
        return {"boxes": self.boxes(x).sigmoid(), "scores": [self.scores(x.mean((2, 3))).softmax(1)]}


def test_outputs_are_found_in_the_graph():
    model = Branches()
    assert leaving(model) == {"boxes", "scores"}
    assert model.seen is None, "what the network puts aside is as before"
    assert chosen(model) == chosen(model, gp.Kernel()) == ["body.0", "body.2", "skip"]
    layers, skipped = select(model, gp.Filter())
    assert list(layers) == ["body.0", "body.2"]
    assert skipped["skip"] == "projection of a shortcut"


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.first = nn.Linear(2, 4)

    def forward(self, x):
        return nn.functional.linear(self.first(x), self.last.weight)


def test_outputs_of_weights_used_without_their_layer_and_of_attention():
    assert leaving(Functional()) == {"last"}
    attention = nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 1, 8))
    assert leaving(attention) == {"1.linear2"}


def test_a_network_that_cannot_be_traced_ends_with_the_layer_defined_last():
    class Deciding(nn.Sequential):
        def forward(self, x):
            return self[0](x) if x.sum() > 0 else self[1](x)

    assert leaving(Deciding(nn.Linear(2, 2), nn.Linear(2, 2))) == {"1"}


class Sized(nn.Module):
    """A head that is defined first, in code that cannot be traced without inputs."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 3)])
        self.body = nn.Linear(3, 4)

    def forward(self, x, **options):
        if x.shape[1] != 3:
            raise ValueError("three features")
        x = self.body(x).relu()
        return [head(x).softmax(1) for head in self.heads]


def test_with_example_inputs_outputs_are_found_where_code_cannot_be_traced():
    model = Sized()
    for inputs in (torch.ones(2, 3), [torch.ones(2, 3)], {"x": torch.ones(2, 3)}):
        assert leaving(model, inputs) == {"heads.0", "heads.1"}
    assert model.training
    assert list(select(model, gp.Filter(), examples=torch.ones(2, 3))[0]) == ["body"]
    with pytest.warns(UserWarning, match="its last layer, body, is taken for its only output"):
        select(model, gp.Filter())


@torch.no_grad()
def alive(model, x):
    """Which channels of each output differ between two rows; ReLUs let everything through."""
    with Leaky():
        return [(y[0] != y[1]).reshape(y.shape[1], -1).any(1) for y in pytree.tree_leaves(model(x))]


@pytest.mark.parametrize("name", [*ZOO, "two heads, defined first"])
def test_no_output_is_removed(name):
    make, shape = ZOO.get(name, (Sized, (2, 3)))
    torch.manual_seed(0)
    model, x = randomise(make(), torch.Generator().manual_seed(0)), torch.randn(shape)
    before = alive(model, x)
    examples = x if name in ("unet", "two heads, defined first") else None
    gp.GibbsPruner(model, 0.75, structure="filter", example_inputs=examples).finalize("converged")
    assert all(map(torch.equal, alive(model, x), before))
    assert before[0].all()


def test_tracing_lets_other_threads_work():
    """Module calls of other threads go on while a network is traced."""
    other, started, results = nn.Linear(2, 2), threading.Event(), []

    class Slow(nn.Sequential):
        def forward(self, x):
            worker = threading.Thread(target=lambda: results.append(other(torch.ones(1, 2))))
            worker.start()
            worker.join()
            started.set()
            return super().forward(x)

    assert leaving(Slow(nn.Linear(2, 2), nn.Linear(2, 2))) == {"1"}
    assert started.is_set()
    assert torch.equal(results[0], other(torch.ones(1, 2)))


def test_a_model_of_one_layer_is_pruned():
    assert chosen(nn.Sequential(nn.Conv2d(1, 2, 3))) == ["0"]
    assert chosen(nn.Linear(3, 3), gp.Filter()) == [""]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"include": "stage.*"}, ["stage.0", "stage.1"]),
        ({"include": "stem"}, ["stem"]),
        ({"include": nn.Linear}, ["hidden", "head"]),
        ({"include": [nn.ConvTranspose2d, "head"]}, ["stage.1", "head"]),
        ({"include": lambda name, module: module.weight.numel() > 100}, ["stage.0", "stage.1"]),
        ({"exclude": "head"}, ["stage.0", "stage.1", "hidden"]),
        ({"exclude": (nn.Linear,)}, ["stage.0", "stage.1"]),
        ({"exclude": "stem"}, ["stage.0", "stage.1", "hidden"]),
        ({"include": "*", "exclude": ["st*", lambda name, _: name == "head"]}, ["hidden"]),
    ],
)
def test_rules(rules, expected):
    assert chosen(Net(), **rules) == expected


def test_the_reasons_are_told():
    skipped = select(Net(), gp.Weight(), include=["stage.*", "head"], exclude="head")[1]
    assert skipped == {"stem": "not included", "hidden": "not included", "head": "excluded"}


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        (
            {"include": "conv*"},
            "include rule 'conv*' matches no layer: there are stem, stage.0, stage.1, hidden, head",
        ),
        (
            {"exclude": ["head", "norm"]},
            "exclude rule 'norm' matches no layer: there are stem, stage.0, stage.1, hidden, head",
        ),
        (
            {"exclude": nn.Conv3d},
            "exclude rule <class 'torch.nn.modules.conv.Conv3d'> matches no layer: there are stem, stage.0, stage.1, "
            "hidden, head",
        ),
        ({"exclude": "*"}, "the model has nothing to prune: include and exclude leave no layer"),
        ({"include": []}, "the model has nothing to prune: include and exclude leave no layer"),
    ],
)
def test_rules_that_leave_nothing(rules, sentence):
    with pytest.raises(gp.UserError) as error:
        select(Net(), gp.Weight(), **rules)
    assert str(error.value) == sentence


def test_a_model_without_weights_to_prune():
    with pytest.raises(
        gp.UserError,
        match=r"^the model has nothing to prune: it holds no convolution, dense, recurrent or attention layer; name",
    ):
        select(nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), gp.Weight())


def test_a_lazy_layer_has_to_be_run_first():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    sentence = (
        "layers '0', '2' have no weight yet: run the model once before pruning it, or leave them out with exclude='*'"
    )
    with pytest.raises(gp.UserError) as error:
        gp.GibbsPruner(model, 0.5, include="*")
    assert str(error.value) == sentence
    model(torch.ones(1, 3))
    assert chosen(model) == ["0"]


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def test_tied_layers_are_refused_together_and_one_by_one():
    sentence = (
        r"^layers '0', '2' share their weights, so that pruning one prunes another: untie them, or leave them out with "
        r"exclude=\['0', '2'\]$"
    )
    with pytest.raises(gp.UserError, match=sentence):
        select(tied(), gp.Weight())
    with pytest.raises(gp.UserError, match=sentence):
        select(tied(), gp.Weight(), exclude="2")
    assert chosen(tied(), exclude=["0", "2"]) == ["1"]


def test_layers_of_several_faults_are_refused_at_once():
    model = nn.Sequential(tied(), nn.Linear(4, 4), nn.LazyLinear(4))
    parametrizations.weight_norm(model[1])
    with pytest.raises(gp.UserError) as error:
        select(model, gp.Weight(), include="*")
    assert str(error.value) == (
        "layers '0.0', '0.2' share their weights, so that pruning one prunes another, and layer '1' already has a "
        "parametrised weight, and layer '2' has no weight yet: leave them out with exclude=['0.0', '0.2', '1', '2']"
    )
    assert chosen(model, include="*", exclude=["0.0", "0.2", "1", "2"]) == ["0.1"]


def test_a_weight_shared_with_an_embedding_is_refused():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    model[2].weight = model[0].weight
    with pytest.raises(gp.UserError, match=r"^layers '2', '0' share their weights"):
        select(model, gp.Weight(), include="*")
    assert chosen(model, exclude="2") == ["1"]


def test_a_module_used_twice_is_one_layer():
    layer = nn.Linear(4, 4)
    assert chosen(nn.Sequential(layer, nn.ReLU(), layer)) == ["0"]


@pytest.mark.parametrize(
    "wrap", [lambda m: parametrizations.weight_norm(m), lambda m: prune.random_unstructured(m, "weight", 0.5)]
)
def test_a_weight_that_is_computed_already_is_refused(wrap):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    wrap(model[1])
    with pytest.raises(
        gp.UserError,
        match=r"^layer '1' already has a parametrised weight: remove that, or leave it out with exclude='1'$",
    ):
        select(model, gp.Weight(), include="*")
    assert chosen(model, include="*", exclude="1") == ["0"]
