"""Fusing: the fused network computes what the separate ones do, and what cannot be fused is recognised."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from gibbsprune.models import build
from gibbsprune.training.fuse import CannotFuse, FusedConv2d, FusedLinear, fuse, same_function, share

RUNS, BATCH = 3, 4


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def replicas(make, runs: int = RUNS) -> list[nn.Module]:
    """Networks of one architecture with different parameters and batch-norm statistics."""
    models = []
    for k in range(runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(k)
            model = make()
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    if tensor.is_floating_point():
                        tensor += 0.1 * torch.rand_like(tensor)
        models.append(model)
    return models


def beside(x: Tensor) -> Tensor:
    """(K, B, C, …) as the runs' images lie in a fused network: (B, K·C, …)."""
    return x.transpose(0, 1).flatten(1, 2)


def network(*layers: nn.Module):
    return lambda: nn.Sequential(*copy.deepcopy(layers))


class Residual(nn.Module):
    """A network with code of its own: pooling, an addition, an identity written as an empty Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.branches = nn.ModuleDict({"conv": nn.Conv2d(6, 6, 3, padding=1), "identity": nn.Sequential()})
        self.norms = nn.ModuleList([nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False)])
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.stem(x)))
        x = self.norms[1](self.branches["conv"](x)) + self.branches["identity"](x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


NETWORKS = {
    "resnet8": lambda: build("resnet8", 10, 3, torch.default_generator),
    "resnet14": lambda: build("resnet14", 10, 3, torch.default_generator),
    "mlp": network(nn.Flatten(), nn.Linear(192, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 7, bias=False)),
    "cnn": network(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8, bias=False), nn.BatchNorm2d(8), nn.GELU(),
        nn.Conv2d(8, 12, 1, groups=4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 10),
    ),
    "transposed": network(
        nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), nn.LeakyReLU(), nn.AvgPool2d(3),
        nn.Flatten(), nn.Linear(96, 10),
    ),
    "padding": network(
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.Conv2d(4, 6, (1, 3), padding="same"),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(24, 10),
    ),
    "one dimension": network(
        nn.Flatten(2), nn.Conv1d(3, 4, 3, stride=2), nn.BatchNorm1d(4), nn.SiLU(), nn.AdaptiveAvgPool1d(2),
        nn.Flatten(), nn.Linear(8, 10),
    ),
    "own code": Residual,
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_fused_equals_separate(name):
    """Outputs, gradients and batch-norm statistics, in training and then in evaluation."""
    models = replicas(NETWORKS[name])
    fused = fuse([copy.deepcopy(m) for m in models])
    x = torch.randn(RUNS, BATCH, 3, 8, 8, generator=seeded(0))
    target = torch.randn(BATCH, RUNS, 1, generator=seeded(1))
    for training in (True, False):
        together = fused.train(training)(beside(x)).unflatten(1, (RUNS, -1))
        apart = torch.stack([m.train(training)(part) for m, part in zip(models, x)], 1)
        torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
        (together * target).sum().backward()
        (apart * target).sum().backward()
    for name, parameter in fused.named_parameters():
        for k, model in enumerate(models):
            torch.testing.assert_close(
                share(parameter.grad, k, RUNS), model.get_parameter(name).grad, rtol=1e-3, atol=1e-4
            )
    for name, buffer in fused.named_buffers():
        for k, model in enumerate(models):
            torch.testing.assert_close(share(buffer, k, RUNS), model.get_buffer(name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_same_function_accepts_what_can_be_fused(name):
    assert same_function(replicas(NETWORKS[name], 2), torch.zeros(BATCH, 3, 8, 8))


@settings(max_examples=120)
@given(
    runs=st.integers(2, 3),
    inputs=st.integers(1, 5),
    outputs=st.integers(1, 5),
    groups=st.sampled_from([1, 1, 1, 2]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    bias=st.booleans(),
    channels_last=st.booleans(),
)
def test_fused_convolution(
    runs, inputs, outputs, groups, kernel, stride, padding, dilation, bias, channels_last
):  # fmt: skip
    """Every way to compute it against nn.Conv2d run by run, forward and backward."""
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    layers = replicas(lambda: nn.Conv2d(inputs * groups, outputs * groups, kernel, **options), runs)
    fused = fuse(layers)
    assert isinstance(fused, FusedConv2d)
    x = torch.randn(runs, 2, inputs * groups, 7, 6, generator=seeded(inputs), requires_grad=True)
    seen = beside(x)
    if channels_last:
        seen = seen.contiguous(memory_format=torch.channels_last)
    together = fused(seen).unflatten(1, (runs, -1))
    apart = torch.stack([layer(part) for layer, part in zip(layers, x)], 1)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    pull = torch.randn(apart.shape, generator=seeded(outputs))
    gradients = torch.autograd.grad((together * pull).sum(), [x, *fused.parameters()])
    expected = torch.autograd.grad((apart * pull).sum(), [x, *(p for layer in layers for p in layer.parameters())])
    torch.testing.assert_close(gradients[0], expected[0], rtol=1e-4, atol=1e-4)
    each = [torch.cat(expected[1 + i :: len(gradients) - 1]) for i in range(len(gradients) - 1)]
    for ours, theirs in zip(gradients[1:], each):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_both_ways_of_a_convolution_are_taken(monkeypatch):
    """Stride 1 and as many outputs as inputs: a grouped convolution; otherwise products. The sweep needs both."""
    products = []
    monkeypatch.setattr(
        FusedConv2d, "_taps", lambda self, x, plain=FusedConv2d._taps: products.append(1) or plain(self, x)
    )
    x = torch.randn(2, RUNS * 4, 5, 5, generator=seeded(0))
    fuse(replicas(lambda: nn.Conv2d(4, 4, 3)))(x)
    assert not products
    for outputs, stride in ((8, 1), (4, 2)):
        fuse(replicas(lambda n=outputs, s=stride: nn.Conv2d(4, n, 3, stride=s)))(x)
    assert len(products) == 2


@pytest.mark.parametrize("bias", [True, False])
def test_fused_dense_layer(bias):
    layers = replicas(lambda: nn.Linear(5, 4, bias=bias))
    fused = FusedLinear(layers)
    x = torch.randn(RUNS, BATCH, 5, generator=seeded(0))
    together = fused(beside(x)).unflatten(1, (RUNS, -1))
    torch.testing.assert_close(together, torch.stack([layer(part) for layer, part in zip(layers, x)], 1))
    assert (fused.bias is None) is not bias


def test_a_single_network_is_left_alone():
    model = nn.Linear(2, 2)
    assert fuse([model]) is model


def test_the_originals_are_left_alone():
    models = replicas(NETWORKS["cnn"])
    before = [copy.deepcopy(m.state_dict()) for m in models]
    fused = fuse(models)
    with torch.no_grad():
        for tensor in [*fused.parameters(), *fused.buffers()]:
            tensor.add_(1)
    for model, state in zip(models, before):
        torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
        assert [type(m) for m in model] == [type(m) for m in NETWORKS["cnn"]()]


def test_frozen_parameters_stay_frozen():
    def make():
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4), nn.Linear(4, 2))
        for part in (model[0], model[1], model[3]):
            part.requires_grad_(False)
        return model

    trained = [name for name, p in fuse(replicas(make)).named_parameters() if p.requires_grad]
    assert trained == ["4.weight", "4.bias"]


# -- what cannot be fused ----------------------------------------------------------------------------------------------


class Head(nn.Module):
    """A body that makes 4 channels of 3, pooling and a dense layer."""

    def __init__(self, body: nn.Module | None = None, channels: int = 4) -> None:
        super().__init__()
        self.body = body or nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(channels, 10)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Concatenating(Head):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(7, 4, 1)

    def features(self, x: Tensor) -> Tensor:
        return self.wide(torch.cat([x, self.body(x)], 1))


class ConcatenatingFromZero(Concatenating):
    """Its outputs are zero at first, so that nothing shows until it is trained."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class NormalisedOverChannels(Head):
    def features(self, x: Tensor) -> Tensor:
        return F.normalize(self.body(x), dim=1)


class Particular(Head):
    def features(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3, "three channels, please"
        return self.body(x)


class Dropping(Head):
    """Draws random numbers of its own; now and then only, so that a comparison of outputs may miss it."""

    def features(self, x: Tensor) -> Tensor:
        return F.dropout(self.body(x), 1e-6, self.training)


class Unregistered(Head):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Conv2d(3, 4, 1)]

    def features(self, x: Tensor) -> Tensor:
        return self.layers[0](x)


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def doubling_head() -> nn.Module:
    model = Head()
    model.head = Doubling(4, 10)
    return model


@pytest.mark.parametrize(
    "make",
    [
        Concatenating,
        ConcatenatingFromZero,
        NormalisedOverChannels,
        Particular,
        Dropping,
        Unregistered,
        doubling_head,
        network(nn.Linear(8, 4), nn.Flatten(), nn.Linear(96, 10)),
    ],
    ids=lambda make: getattr(make, "__name__", ""),
)
def test_code_that_mixes_the_runs_is_found_out(make):
    with torch.random.fork_rng(devices=[]):
        models = [make(), make()]
        before = torch.get_rng_state()
        assert not same_function(models, torch.zeros(BATCH, 3, 8, 8))
        assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are used up"


class OwnParameter(Head):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 1, 1))


class OwnBuffer(Head):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10, 4)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def used_twice() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Sequential(layer), nn.Sequential(nn.ReLU(), layer))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm((6, 6)))), "body.1 is a LayerNorm"),
        (lambda: Head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout())), "body.1 is a Dropout"),
        (lambda: Head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU())), "body.1 is a PReLU"),
        (lambda: Head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4))), "body.1 is a InstanceNorm2d"),
        (lambda: Head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1))), "body.1 is a Softmax"),
        (OwnParameter, "the network is a OwnParameter"),
        (OwnBuffer, "the network is a OwnBuffer"),
        (Tokens, "tokens is a Embedding"),
        (lambda: nn.Bilinear(2, 2, 2), "the network is a Bilinear"),
        (tied, "2.weight is shared with another layer"),
        (used_twice, "1.1.bias is shared with another layer"),
        (lambda: Head(parametrizations.weight_norm(nn.Conv2d(3, 4, 3))), "body has the parameters .*original0"),
        (lambda: Head(parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))), "body has the parameters .*original"),
        (lambda: parametrizations.orthogonal(nn.Linear(4, 4)), "the network has the parameters"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), "1 has the parameters"),
    ],
)
def test_layers_that_cannot_be_fused_are_named(make, sentence):
    models = [make(), make()]
    with pytest.raises(CannotFuse, match=f"^{sentence}"):
        fuse(models)
    with pytest.raises(CannotFuse, match=f"^{sentence}"):
        same_function(models, torch.zeros(BATCH, 3, 8, 8))


# -- shares ------------------------------------------------------------------------------------------------------------


def test_shares_are_views_in_order():
    tensor = torch.arange(12.0).view(6, 2)
    parts = [share(tensor, k, 3) for k in range(3)]
    assert torch.equal(torch.cat(parts), tensor)
    parts[1].zero_()
    assert tensor[2:4].eq(0).all()
    assert tensor[[0, 1, 4, 5]].eq(0).sum() == 1  # element 0 was zero before


def test_scalars_and_single_runs_are_shared_whole():
    scalar, tensor = torch.tensor(3), torch.ones(5, 2)
    assert share(scalar, 2, 3) is scalar
    assert share(tensor, 0, 1) is tensor
