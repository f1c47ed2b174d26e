"""Which layers are pruned: defaults, rules, and refusals."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import gibbsprune as gp
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
    layers, skipped = select(Net(), gp.Weight())
    assert list(layers) == ["stage.0", "stage.1", "hidden", "head"]
    assert skipped == {"stem": "first convolution"}


def test_with_filters_the_outputs_are_left_out_too():
    layers, skipped = select(Net(), gp.Filter())
    assert list(layers) == ["stage.0", "stage.1", "hidden"]
    assert skipped == {"stem": "first convolution", "head": "last Linear: its rows are the outputs"}


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
        ({"exclude": "stem"}, ["stage.0", "stage.1", "hidden", "head"]),
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
        gp.UserError, match=r"^the model has nothing to prune: it holds no convolution and no Linear layer$"
    ):
        select(nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), gp.Weight())


def test_a_lazy_layer_has_to_be_run_first():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(gp.UserError, match=r"^layer '0' has no weight yet: run the model once before pruning it$"):
        gp.GibbsPruner(model, 0.5)
    model(torch.ones(1, 3))
    assert chosen(model) == ["0", "2"]


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def test_tied_layers_are_refused_together_and_one_by_one():
    sentence = (
        r"^layers '0' and '2' share one weight, so that pruning one prunes the other: exclude both or untie them$"
    )
    with pytest.raises(gp.UserError, match=sentence):
        select(tied(), gp.Weight())
    with pytest.raises(gp.UserError, match=sentence):
        select(tied(), gp.Weight(), exclude="2")
    assert chosen(tied(), exclude=["0", "2"]) == ["1"]


def test_a_weight_shared_with_an_embedding_is_refused():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    model[2].weight = model[0].weight
    with pytest.raises(gp.UserError, match=r"^layers '2' and '0' share one weight"):
        select(model, gp.Weight())
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
        gp.UserError, match=r"^layer '1' already has a parametrised weight: remove that, or exclude the layer$"
    ):
        select(model, gp.Weight())
    assert chosen(model, exclude="1") == ["0"]
