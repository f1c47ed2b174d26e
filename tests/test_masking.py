"""Masked layers: what the gradient sees, what is stored, and that eval follows the weights."""

import copy
import io

import pytest
import torch
from torch import func, nn

import gibbsprune as gp
from gibbsprune import masking
from gibbsprune.masking import GibbsMasked, Masked, attach, burn, check_plain, stored_weight


def masked_linear(sparsity=0.5, structure="weight"):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    kind = gp.Filter() if structure == "filter" else gp.Weight()
    attach(layer, GibbsMasked(layer.weight, kind, sparsity))
    return layer


def mask_of(layer):
    return layer.parametrizations.weight[0]


@pytest.fixture
def recomputed(monkeypatch):
    """How many times a converged mask was worked out."""
    calls = []
    original = masking.converged_mask

    def counted(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(masking, "converged_mask", counted)
    return calls


def test_forward_uses_weight_times_mask_without_rescaling():
    layer = nn.Linear(3, 2, bias=False)
    stored = layer.weight.detach().clone()
    attach(layer, masked := Masked(layer.weight))
    masked.mask.copy_(torch.tensor([[True, False, True], [False, False, True]]))
    x = torch.randn(5, 3)
    torch.testing.assert_close(layer(x), x @ (stored * masked.mask).T)
    assert torch.equal(stored_weight(layer), stored)


def test_a_masked_weight_gets_no_gradient_and_the_others_their_own():
    layer, plain = masked_linear(), nn.Linear(6, 4)
    mask = torch.rand(4, 6) < 0.5
    mask_of(layer).mask.copy_(mask)
    plain.load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    x = torch.randn(8, 6)
    for model in (layer, plain):
        model(x).square().sum().backward()
    gradient = stored_weight(layer).grad
    assert not gradient[~mask].any()
    torch.testing.assert_close(gradient, plain.weight.grad * mask)


def test_momentum_and_weight_decay_go_on_under_the_mask():
    layer = masked_linear()
    mask_of(layer).mask.fill_(False)
    before = stored_weight(layer).detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, weight_decay=0.5)
    layer(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(stored_weight(layer), before * (1 - 0.1 * 0.5))


def test_assigning_a_weight_sets_the_stored_one():
    layer = masked_linear()
    mask_of(layer).mask.fill_(False)
    layer.weight = torch.full((4, 6), 2.0)
    assert bool((stored_weight(layer) == 2).all())
    assert not layer.weight.any()


def test_eval_uses_the_converged_mask_and_train_the_sampled_one():
    layer = masked_linear(structure="filter")
    mask_of(layer).mask.fill_(False)
    assert not layer.weight.any()
    layer.eval()
    expected = gp.converged_mask(stored_weight(layer), 0.5, "filter")
    assert torch.equal(layer.weight, stored_weight(layer) * expected)
    layer.train()
    assert not layer.weight.any()
    assert not mask_of(layer).mask.any()


WRITERS = {
    "in place": lambda w: w.detach().mul_(torch.linspace(3, 0.1, 24).reshape(4, 6)),
    "copy_": lambda w: w.detach().copy_(w.flip(0)),
    "data in place": lambda w: w.data.mul_(torch.linspace(3, 0.1, 24).reshape(4, 6)),
    "data swapped": lambda w: setattr(w, "data", w.data.flip(0) * torch.linspace(3, 0.1, 24).reshape(4, 6)),
    "numpy": lambda w: w.detach().numpy().__imul__(torch.linspace(3, 0.1, 24).reshape(4, 6).numpy()),
    "optimiser": lambda w: _step(w),
}


def _step(weight):
    weight.grad = torch.linspace(-1, 1, 24).reshape(4, 6)
    torch.optim.SGD([weight], 0.5).step()


@pytest.mark.parametrize("writer", WRITERS)
def test_eval_follows_the_weights_whoever_writes_them(writer, recomputed):
    layer = masked_linear().eval()
    assert torch.equal(layer.weight != 0, gp.converged_mask(stored_weight(layer), 0.5))
    assert len(recomputed) == 1
    for _ in range(3):
        layer(torch.randn(2, 6))
    assert len(recomputed) == 1, "nothing has changed"
    for times in (2, 3):
        WRITERS[writer](stored_weight(layer))
        assert torch.equal(layer.weight != 0, gp.converged_mask(stored_weight(layer), 0.5))
        assert len(recomputed) == times


def test_eval_under_inference_mode_no_grad_and_autocast():
    layer = masked_linear().eval()
    x = torch.randn(2, 6)
    expected = layer(x).detach()
    with torch.inference_mode():
        torch.testing.assert_close(layer(x).clone(), expected)
    with torch.no_grad():
        stored_weight(layer).copy_(stored_weight(layer).flip(0))
        layer.bias.copy_(layer.bias.flip(0))
        torch.testing.assert_close(layer(x), expected.flip(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def test_a_layer_made_in_inference_mode():
    """Tensors that count no versions: the mask is worked out anew each time."""
    with torch.inference_mode():
        layer = nn.Linear(6, 4, bias=False)
        attach(layer, GibbsMasked(layer.weight, gp.Weight(), 0.5))
        layer.eval()
        first = layer.weight != 0
        stored_weight(layer).copy_(stored_weight(layer).flip(0))
        assert torch.equal(layer.weight != 0, first.flip(0))


def test_copies_have_masks_of_their_own():
    layer = masked_linear().eval()
    layer(torch.randn(1, 6))
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        stored_weight(twin).copy_(stored_weight(twin).flip(0))
    assert torch.equal(twin.weight != 0, (layer.weight != 0).flip(0))
    mask_of(twin).mask.fill_(False)
    assert mask_of(layer).mask.any()


def test_state_dict_carries_weight_and_sampled_mask():
    layer, other = masked_linear(), masked_linear()
    mask_of(layer).mask.copy_(torch.rand(4, 6) < 0.5)
    with torch.no_grad():
        stored_weight(layer).normal_()
    other.eval()(torch.randn(1, 6))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.weight, layer.eval().weight)
    assert torch.equal(other.train().weight, layer.train().weight)
    assert set(layer.state_dict()) == {"bias", "parametrizations.weight.original", "parametrizations.weight.0.mask"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype):
    layer = masked_linear().to(dtype)
    assert layer.weight.dtype == dtype
    assert mask_of(layer).mask.dtype == torch.bool
    assert torch.equal(layer.eval().weight != 0, gp.converged_mask(stored_weight(layer), 0.5))


def test_channels_last():
    layer = nn.Conv2d(3, 4, 3)
    attach(layer, GibbsMasked(layer.weight, gp.Filter(), 0.5))
    plain = layer.eval().weight.detach().clone()
    layer.to(memory_format=torch.channels_last)
    assert torch.equal(layer.weight, plain)


def test_burn_leaves_the_plain_layer_with_the_same_parameter():
    layer = nn.Linear(6, 4)
    names, weight = list(layer.state_dict()), layer.weight
    attach(layer, GibbsMasked(layer.weight, gp.Weight(), 0.5))
    mask = torch.rand(4, 6) < 0.5
    before = stored_weight(layer).detach().clone()
    burn(layer, mask)
    assert type(layer) is nn.Linear
    assert layer.weight is weight
    assert [name for name, _ in layer.named_parameters()] == names == ["weight", "bias"]
    assert torch.equal(layer.weight, before * mask)
    assert not torch.signbit(layer.weight[~mask]).any()


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_refresh_is_a_well_behaved_operator(structure):
    weight = torch.randn(4, 3, 3)
    arguments = (torch.ones(4, 3, 3, dtype=torch.bool), torch.full((3,), -1), weight, 0.5, structure, False, 1)
    torch.library.opcheck(masking.refresh_, arguments, test_utils=("test_schema", "test_faketensor"))


def test_one_backward_pass_through_two_evaluations():
    """The weights have not changed between them, so that neither has the mask."""
    layer = masked_linear().eval()
    first, second = torch.randn(3, 6), torch.randn(3, 6)
    (layer(first).sum() + layer(second).sum()).backward()
    expected = mask_of(layer).converged * (first + second).sum(0)
    torch.testing.assert_close(stored_weight(layer).grad, expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own derivatives use it
@pytest.mark.parametrize("structure", ["weight", "filter"])
def test_transforms_of_torch_func_in_eval(structure):
    """They give what they give for the layer with its converged mask burnt in."""
    layer, x = masked_linear(structure=structure).double().eval(), torch.randn(6).double()
    plain = copy.deepcopy(layer)
    burn(plain, mask := gp.converged_mask(stored_weight(plain), 0.5, structure))

    def loss(weight, model, name, x):
        return func.functional_call(model, {name: weight}, (x,)).square().sum()

    for transform in (func.jacrev, func.jacfwd, lambda f: func.hessian(lambda x: f(x).square().sum())):
        torch.testing.assert_close(transform(layer)(x), transform(plain)(x))
    cases = [(model, name, x) for model, name in ((layer, "parametrizations.weight.original"), (plain, "weight"))]
    stored, pruned = stored_weight(layer).detach(), plain.weight.detach()
    found = [func.grad(loss)(weight, *case) for weight, case in zip((stored, pruned), cases)]
    torch.testing.assert_close(found[0], found[1] * mask)
    found = [func.jvp(lambda w: loss(w, *case), (w,), (w,)) for w, case in zip((stored, pruned), cases)]  # noqa: B023
    torch.testing.assert_close(found[0], found[1])
    samples = torch.stack([x, 2 * x])
    each = func.vmap(func.grad(loss), (None, None, None, 0))(stored, layer, cases[0][1], samples)
    torch.testing.assert_close(each[1], func.grad(loss)(stored, layer, cases[0][1], 2 * x))
    weights = torch.stack([stored, stored.flip(0)])
    both = func.vmap(loss, (0, None, None, None))(weights, *cases[0])
    torch.testing.assert_close(both, torch.stack([loss(weight, *cases[0]) for weight in weights]))


def test_what_is_in_the_way_of_plain_weights_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)))
    sentence = r"^layer '1' is parametrised \(_SpectralNorm\): remove that \(torch.nn.utils.* before packing$"
    with pytest.raises(gp.UserError, match=sentence):
        check_plain(model, "packing")
    gp.GibbsPruner(model, 0.5, exclude="1")
    with pytest.raises(gp.UserError, match=r"^the model still carries masks: finalize it before packing$"):
        check_plain(model, "packing")
    check_plain(nn.Linear(4, 4), "packing")
