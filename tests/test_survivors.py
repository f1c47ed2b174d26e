"""What is left of survivors: the soft threshold, of single weights and of whole neighbourhoods."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gibbsprune as gp
from gibbsprune.hamiltonians import as_hamiltonian
from gibbsprune.site import Site
from gibbsprune.structures import as_structure
from gibbsprune.survivors import shrunk_mask, strength


@given(st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=40), st.floats(0.01, 0.99))
def test_shrinking_is_the_soft_threshold_and_the_ground_state_of_masks_that_are_real(values, sparsity):
    weight = torch.tensor(values)
    root = gp.threshold(weight, sparsity).sqrt()
    left = shrunk_mask(weight, sparsity)
    soft = weight.sign() * (weight.abs() - root).clamp_min(0)
    torch.testing.assert_close(weight * left, soft * gp.converged_mask(weight, sparsity), rtol=1e-5, atol=1e-6)
    # of all masks x >= 0 it has the least ½(w − wx)² + √Q·|w|x, the price of what is changed and of what is kept
    grid = torch.linspace(0, 1.2, 241)[:, None]
    price = lambda x: 0.5 * (weight - weight * x).square() + root * (weight * x).abs()  # noqa: E731
    kept = gp.converged_mask(weight, sparsity)
    assert bool((price(left)[kept] <= price(grid)[:, kept].amin(0) + 1e-5).all())


def test_shrinking_moves_a_neighbourhood_as_a_whole_and_nothing_where_all_is_kept():
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    for kind, mean in (("kernel", weight.square().mean((2, 3))), ("filter", weight.square().mean((1, 2, 3)))):
        left = shrunk_mask(weight, 0.5, kind)
        expected = (1 - (gp.threshold(weight, 0.5, kind) / mean).sqrt()).clamp_min(0)
        torch.testing.assert_close(left, expected.view(*mean.shape, *[1] * (4 - mean.dim())).expand_as(weight))
    assert bool((shrunk_mask(weight, 0.0) == 1).all())


@given(st.integers(0, 2**16), st.floats(0.01, 0.99))
def test_rescaled_survivors_keep_their_mean_magnitude_and_their_order(seed, sparsity):
    weight = torch.randn(3, 40, generator=torch.Generator().manual_seed(seed)).sinh()
    shrunk = torch.stack([shrunk_mask(row, sparsity) for row in weight])
    left = shrunk * strength(weight, shrunk)
    kept = shrunk > 0
    assert torch.equal(left > 0, kept)
    means = [(values.abs() * kept).sum(1) / kept.sum(1) for values in (weight, weight * left)]
    torch.testing.assert_close(*means)
    torch.testing.assert_close(left / left.amax(1, keepdim=True), shrunk / shrunk.amax(1, keepdim=True))
    assert all(bool((strength(weight, torch.full_like(weight, one)) == 1).all()) for one in (0.0, 1.0))


@pytest.mark.parametrize(
    ("shape", "transposed", "groups"),
    [
        ((6, 4), False, 1),
        ((6, 4, 3, 3), False, 1),
        ((6, 2, 3), False, 2),
        ((6, 4, 3, 3), True, 1),
        ((6, 2, 3, 3), True, 2),
    ],
)
@pytest.mark.parametrize("runs", [1, 2])
def test_how_much_of_its_strength_an_output_has_left(shape, transposed, groups, runs):
    """‖w·x‖/‖w‖ over the weights that an output is made of, of one run or of several side by side."""
    generator = torch.Generator().manual_seed(0)
    kind = replace(as_structure("weight"), transposed=transposed, groups=groups)
    site = Site(shape, kind, as_hamiltonian("square", kind), 0.5)
    weights = torch.randn(runs, *shape, generator=generator)
    left = torch.rand(runs, *shape, generator=generator) * (torch.rand(runs, *shape, generator=generator) > 0.5)
    left[0].view(-1)[: left[0].numel() // 2] = 0
    found = site.in_use(weights.flatten(0, 1), left.flatten(0, 1), runs).view_as(weights)
    for weight, rest, shares in zip(weights, left, found):
        for index in torch.cartesian_prod(*[torch.arange(n) for n in shape]).tolist():
            mine = torch.zeros(shape, dtype=torch.bool)
            if transposed:  # (inputs, outputs of a group, ...): an output reads the inputs of its group
                each = shape[0] // groups
                first = index[0] // each * each
                mine[first : first + each, index[1]] = True
            else:
                mine[index[0]] = True
            assert shares[tuple(index)] == pytest.approx((weight * rest)[mine].norm() / weight[mine].norm())
