"""Batches on the device: what an epoch visits, augmentation, the runs' independence, memory layout."""

from __future__ import annotations

import pytest
import torch

from gibbsprune.data.arrays import Arrays
from gibbsprune.errors import UserError
from gibbsprune.training.batches import Batches
from gibbsprune.training.recipes import RECIPES

SIZE = (6, 5)


def arrays(count: int = 50, channels: int = 3) -> Arrays:
    """Images that tell who they are: no two of them, nor two windows or mirrorings of one, are alike."""
    x = torch.randint(0, 256, (count, *SIZE, channels), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Arrays("random", x, torch.arange(count), x[:5].clone(), torch.arange(5), classes=count)


def batches(data: Arrays, seeds=(0,), **changes) -> Batches:
    recipe = RECIPES["paper"].replace(**{"batch": 8, "shift": 1, "flip": True, "standardise": "channel", **changes})
    return Batches(data, [recipe] * len(seeds), [torch.Generator().manual_seed(s) for s in seeds], torch.device("cpu"))


def epoch(made: Batches) -> tuple[torch.Tensor, torch.Tensor]:
    """All images (K, steps · B, H, W, C) of an epoch and their labels (K, steps · B)."""
    made.draw_epoch()
    parts = [made.next() for _ in range(made.steps)]
    runs = len(made.generators)
    x = torch.cat([images for images, _ in parts]).unflatten(1, (runs, -1)).permute(1, 0, 3, 4, 2)
    return x, torch.cat([labels for _, labels in parts]).T


def windows(made: Batches, data: Arrays) -> dict[tuple[int, int, bool], torch.Tensor]:
    """Every shift and flip of every training image, standardised by hand."""
    shift, (height, width) = made.edge, SIZE
    plain = (data.x_train.double() / 255 - made.mean.double()) / made.std.double()
    rows = torch.arange(height + 2 * shift).sub(shift).clamp(0, height - 1)
    columns = torch.arange(width + 2 * shift).sub(shift).clamp(0, width - 1)
    padded = plain[:, rows][:, :, columns]
    out = {}
    for dy in range(2 * shift + 1):
        for dx in range(2 * shift + 1):
            window = padded[:, dy : dy + height, dx : dx + width]
            out[dy, dx, False], out[dy, dx, True] = window, window.flip(2)
    return out


def test_an_epoch_visits_every_image_at_most_once():
    made = batches(arrays(50), seeds=(0, 1))
    assert (made.steps, made.batch) == (6, 8)
    orders = []
    for _ in range(3):
        _, labels = epoch(made)  # the labels are the images' numbers
        assert labels.shape == (2, 48)
        assert all(len(set(row.tolist())) == 48 for row in labels)
        orders += labels.tolist()
    assert len({tuple(order) for order in orders}) == 6, "two runs or two epochs have the same order"


def test_over_many_epochs_every_image_is_left_out_now_and_then():
    """Each of 10 images is left out of an epoch of 8 with probability 0.2: none 60 times in a row, under 2e-5."""
    made = batches(arrays(10), flip=False, shift=0)
    visits = sum(torch.bincount(epoch(made)[1][0], minlength=10) for _ in range(60))
    assert visits.sum() == 480
    assert visits.max() < 60


def test_augmented_images_are_windows_of_their_own_image():
    """With all shifts and flips about equally often: 18 kinds, each 640 times on average.

    A count is binomial with standard deviation 25; one of 18 lies beyond ±160 with probability under 1e-8.
    """
    data = arrays(64)
    made = batches(data, seeds=(0, 1))
    known = windows(made, data)
    counts = dict.fromkeys(known, 0)
    for _ in range(90):
        x, labels = epoch(made)
        found = torch.zeros(labels.shape, dtype=torch.int64)
        for kind, images in known.items():
            same = (x - images[labels]).abs().amax((2, 3, 4)) < 1e-5
            counts[kind] += int(same.sum())
            found += same
        assert found.eq(1).all(), "an image is no window of the one that its label names"
    assert sum(counts.values()) == 90 * 2 * 64
    assert all(abs(count - 640) < 160 for count in counts.values()), counts


def test_without_augmentation_the_images_are_as_they_are():
    data = arrays()
    made = batches(data, shift=0, flip=False)
    x, labels = epoch(made)
    torch.testing.assert_close(x.double(), windows(made, data)[0, 0, False][labels], rtol=1e-5, atol=1e-5)


def test_shift_without_flip_never_mirrors():
    data = arrays()
    made = batches(data, flip=False)
    known = windows(made, data)
    mirrored = torch.stack([images for (_, _, flip), images in known.items() if flip])
    for _ in range(5):
        x, labels = epoch(made)
        assert (x - mirrored[:, labels]).abs().amax((3, 4, 5)).min() > 1e-3


def test_shifts_that_are_no_whole_numbers_are_drawn_between_pixels():
    """Images that rise by 10 from column to column and by 20 from row to row say by how much they were shifted."""
    height, width = 12, 12
    rise = 20 * torch.arange(height)[:, None] + 10 * torch.arange(width)
    x = torch.stack([rise // 2] * 3, 2).to(torch.uint8).expand(64, -1, -1, -1)
    data = Arrays("rising", x, torch.arange(64), x[:5], torch.arange(5), classes=64)
    made = batches(data, shift=2.5, flip=False)
    images = torch.cat([epoch(made)[0][0] for _ in range(8)]) * made.std * 255 + made.mean * 255
    inside = images[:, 3:9, 3:9, 0] * 2  # halved above, to stay below 256; no repeated edges there
    torch.testing.assert_close(inside[:, 1:] - inside[:, :-1], torch.full((512, 5, 6), 20.0), rtol=0, atol=1e-2)
    torch.testing.assert_close(inside[..., 1:] - inside[..., :-1], torch.full((512, 6, 5), 10.0), rtol=0, atol=1e-2)
    shifts = inside[:, 0, 0] - 20 * 3 - 10 * 3  # 20 · down + 10 · right, each within ±2.5
    assert shifts.abs().max() <= 75.01
    assert shifts.abs().max() > 60
    assert abs(shifts.mean()) < 5 * 32.3 / 512**0.5
    assert (shifts % 10 - 5).abs().mean() < 4, "whole pixels only"
    middle = made.sample(4, torch.Generator().manual_seed(0)) * made.std[:, None, None] * 255
    torch.testing.assert_close(middle[:, :, 1:] - middle[:, :, :-1], torch.full((4, 3, 11, 12), 10.0), rtol=0, atol=0.1)


@pytest.mark.parametrize("shift", [0.9999, 1.999, 3.9985, 0.001])
def test_shifts_close_to_whole_pixels_stay_within_the_image(shift):
    made = batches(arrays(), shift=shift)
    made.draw_epoch()
    made.code.copy_(torch.tensor([(2 * made.reach + 1) ** 2 - 1, 0]).repeat(made.code.shape[1] // 2))
    images, _ = made.next()
    assert images.isfinite().all()


def test_a_shift_out_of_the_image_is_refused():
    with pytest.raises(UserError, match=r"shift is 100.*: allowed are numbers below 5: images are of 6×5 pixels"):
        batches(arrays(), shift=100)


def test_standardised_with_the_training_sets_statistics():
    data = arrays(64)
    for mode in ("channel", "global"):
        made = batches(data, shift=0, flip=False, standardise=mode)
        x, _ = epoch(made)  # 64 images in batches of 8: all of them
        over = (0, 1, 2, 3) if mode == "channel" else (0, 1, 2, 3, 4)
        torch.testing.assert_close(x.mean(over), torch.zeros_like(x.mean(over)), atol=1e-5, rtol=0)
        torch.testing.assert_close(x.std(over, correction=0), torch.ones_like(x.mean(over)), atol=1e-5, rtol=0)


def test_a_run_has_the_same_batches_alone_as_among_others():
    data = arrays()
    alone, among = batches(data, seeds=(5,)), batches(data, seeds=(3, 5, 9))
    for _ in range(2):
        (x, labels), (xs, several) = epoch(alone), epoch(among)
        assert torch.equal(x[0], xs[1])
        assert torch.equal(labels[0], several[1])
        assert not torch.equal(labels[0], several[0])


def test_runs_are_channel_groups_in_channels_last_memory():
    data = arrays()
    made = batches(data, seeds=(0, 1), shift=0, flip=False)
    made.draw_epoch()
    x, labels = made.next()
    assert x.shape == (8, 6, *SIZE)
    assert x.is_contiguous(memory_format=torch.channels_last)
    known = windows(made, data)[0, 0, False]
    for run in range(2):
        own = x[:, 3 * run : 3 * run + 3].permute(0, 2, 3, 1)
        torch.testing.assert_close(own.double(), known[labels[:, run]], rtol=1e-5, atol=1e-5)
    assert made.next(torch.bfloat16)[0].dtype == torch.bfloat16


def test_evaluation_shows_the_same_images_to_every_run():
    data = arrays()
    made = batches(data, seeds=(0, 1))
    x = made.evaluation(data.x_test)
    assert x.shape == (5, 6, *SIZE)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x[:, :3], x[:, 3:])
    expected = (data.x_test.double() / 255 - made.mean.double()) / made.std.double()
    torch.testing.assert_close(x[:, :3].permute(0, 2, 3, 1).double(), expected, rtol=1e-5, atol=1e-5)
    assert made.evaluation(data.x_test, torch.bfloat16).dtype == torch.bfloat16


def test_a_batch_larger_than_the_set_is_the_set():
    made = batches(arrays(5), batch=128, flip=False, shift=0)
    assert (made.steps, made.batch) == (1, 5)
    x, labels = epoch(made)
    assert x.shape[:2] == (1, 5)
    assert sorted(labels[0].tolist()) == [0, 1, 2, 3, 4]


def test_a_square_of_each_image_is_hidden_anywhere_in_the_runs_that_want_that():
    """Every pixel now and then: of 480 images one of a square of 4 misses a given pixel with probability under 0.87."""
    data = arrays(48)
    plain = [RECIPES["modern"].replace(batch=8, shift=0, flip=flip) for flip in (False, True)]
    for recipe in plain:
        seeds = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
        made = Batches(data, [recipe, recipe.replace(cutout=4)], seeds, torch.device("cpu"))
        alone = Batches(data, [recipe], [torch.Generator().manual_seed(0)], torch.device("cpu"))
        seen = torch.zeros(SIZE, dtype=torch.int64)
        for _ in range(10):
            (x, labels), (same, _) = epoch(made), epoch(alone)
            assert torch.equal(x[0], same[0])
            whole = ((data.x_train / 255 - made.mean) / made.std)[labels[1]]
            hidden = (x[1] == 0).all(-1)
            sizes = hidden.sum((1, 2))
            assert bool(((sizes >= 4) & (sizes <= 16)).all())
            mirrored = whole.flip(2) if recipe.flip else whole
            as_is = [torch.isclose(x[1], one, atol=1e-5).all(-1) | hidden for one in (whole, mirrored)]
            assert bool((as_is[0].all(2).all(1) | as_is[1].all(2).all(1)).all())
            seen += hidden.sum(0)
        assert bool((seen > 0).all())
    with pytest.raises(UserError, match="cutout is 6: allowed are whole numbers up to 5: images are of 6×5 pixels"):
        batches(data, cutout=6)
