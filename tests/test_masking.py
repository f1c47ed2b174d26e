"""Masked layers: what the gradient sees, what is stored, and that eval follows the weights."""

import copy
import io
import pickle

import pytest
import torch
from torch import func, nn
from torch.nn.utils import parametrize

import gibbsprune as gp
from gibbsprune import converging
from gibbsprune.attaching import attach, burn, check_plain, stored_weight
from gibbsprune.masking import GibbsMasked, Masked


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
    original = converging.converged_mask

    def counted(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(converging, "converged_mask", counted)
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
    state = layer.state_dict()
    own = {f"parametrizations.weight.{part}" for part in ("original", "0.mask", "0.sparsity")}
    assert set(state) == {"bias", *own}
    assert state["parametrizations.weight.0.mask"].dtype == torch.bool
    third = masked_linear()
    third.load_state_dict(copy.deepcopy(state), assign=True)
    assert torch.equal(third.weight, layer.weight)
    assert [b.dtype for b in third.buffers()] == [b.dtype for b in layer.buffers()], "averaged in the same way"


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
    sparsity = torch.tensor(0.5, dtype=torch.float64)
    arguments = (torch.ones(4, 3, 3, dtype=torch.bool), torch.full((4,), -1), weight, sparsity, structure, False, 1)
    torch.library.opcheck(converging.refresh_, arguments, test_utils=("test_schema", "test_faketensor"))


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


# -- saved whole -------------------------------------------------------------------------------------------------------


def masked_net(law="annealed", gradient=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 6), nn.Linear(6, 2))
    return net, gp.GibbsPruner(net, 0.5, structure="weight", law=law, gradient=gradient, epochs=1)


def in_another_process(net, x, found):
    found.put((net.eval()(x).detach().numpy(), type(net[1]).__name__, [name for name, _ in net.named_parameters()]))


@pytest.mark.parametrize(("law", "gradient"), [("annealed", "straight-through"), ("rising", None)])
def test_a_masked_model_is_saved_whole(tmp_path, law, gradient):
    net, pruner = masked_net(law, gradient)
    pruner.step()
    torch.save(net, tmp_path / "net.pt")
    back = torch.load(tmp_path / "net.pt", weights_only=False)
    x = torch.randn(2, 1, 6, 6)
    for mode in (True, False):
        assert torch.equal(back.train(mode)(x), net.train(mode)(x))
    assert list(back.state_dict()) == list(net.state_dict())
    assert [name for name, _ in back.named_parameters()] == [name for name, _ in net.named_parameters()]
    with torch.no_grad():
        stored_weight(back[1]).fill_(1.0)
    assert not torch.equal(stored_weight(net[1]), stored_weight(back[1])), "it goes its own way"
    again = pickle.loads(pickle.dumps(back))
    assert torch.equal(again[1].weight, back[1].weight)
    assert torch.equal(copy.deepcopy(again)[1].weight, back[1].weight)
    pruner.finalize("converged")
    assert type(net[1]) is nn.Conv2d


def test_a_masked_model_goes_to_a_spawned_process():
    net, _ = masked_net()
    x = torch.randn(2, 1, 6, 6)
    there = torch.multiprocessing.get_context("spawn")
    found = there.Queue()
    process = there.Process(target=in_another_process, args=(net, x, found))
    process.start()
    outputs, name, names = found.get(timeout=200)
    process.join()
    torch.testing.assert_close(torch.from_numpy(outputs), net.eval()(x).detach())
    assert (name, names) == ("ParametrizedConv2d", [name for name, _ in net.named_parameters()])


def test_further_parametrisations_are_not_pickled():
    layer = nn.Linear(4, 3)
    parametrize.register_parametrization(layer, "bias", nn.Identity())
    attach(layer, Masked(layer.weight))
    with pytest.raises(RuntimeError, match="parametrized modules is only supported through state_dict"):
        pickle.dumps(layer)
    layer = masked_linear()
    parametrize.register_parametrization(layer, "bias", nn.Identity())
    with pytest.raises(gp.UserError, match=r"further parametrisations cannot be pickled: save its state_dict\(\)$"):
        pickle.dumps(layer)


def test_the_state_of_a_training_goes_into_a_plain_model():
    net, pruner = masked_net()
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 6), nn.Linear(6, 2))
    plain.load_state_dict(gp.plain_state(net.state_dict()))
    for name, layer in (("1", plain[1]), ("3", plain[3])):
        assert torch.equal(layer.weight, stored_weight(net[int(name)]) * pruner.masks[name].mask)
    plain.load_state_dict(gp.plain_state(net.state_dict(), masked=False))
    assert torch.equal(plain[1].weight, stored_weight(net[1]))
    assert gp.plain_state(plain.state_dict()).keys() == plain.state_dict().keys()
    with pytest.raises(gp.UserError, match=r"^state is a Sequential: allowed are state_dicts$"):
        gp.plain_state(plain)
    state = {name: value for name, value in net.state_dict().items() if not name.endswith("0.mask")}
    with pytest.raises(gp.UserError, match=r"^the state has no mask of layer '1': it is of another parametrisation$"):
        gp.plain_state(state)
