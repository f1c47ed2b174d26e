"""Arrays: validation, statistics, hold-out; a user's own .npz; the names `load` knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gibbsprune.data import Arrays, absolute, load, load_npz
from gibbsprune.errors import UserError


def random_arrays(n: int = 60, channels: int = 3, classes: int = 4, seed: int = 0) -> Arrays:
    g = torch.Generator().manual_seed(seed)

    def images(count: int) -> torch.Tensor:
        return torch.randint(0, 256, (count, 6, 5, channels), generator=g).to(torch.uint8)

    def labels(count: int) -> torch.Tensor:
        return torch.arange(count) % classes

    return Arrays("toy", images(n), labels(n), images(20), labels(20), classes)


@pytest.mark.parametrize("mode", ["global", "channel"])
def test_statistics_are_those_of_the_training_pixels(mode: str) -> None:
    arrays = random_arrays()
    x = arrays.x_train.double() / 255
    axes = (0, 1, 2) if mode == "channel" else (0, 1, 2, 3)
    mean, std = arrays.statistics(mode)
    assert mean.shape == std.shape == (3,)
    assert mean.dtype == std.dtype == torch.float32
    torch.testing.assert_close(mean.double(), x.mean(axes).expand(3), rtol=0, atol=1e-7)
    torch.testing.assert_close(std.double(), x.std(axes, correction=0).expand(3), rtol=0, atol=1e-7)


def test_a_constant_channel_has_deviation_one_and_unknown_modes_are_refused() -> None:
    arrays = random_arrays()
    arrays.x_train[..., 1] = 51
    mean, std = arrays.statistics("channel")
    assert mean[1].item() == pytest.approx(0.2)
    assert std[1].item() == 1.0
    with pytest.raises(UserError, match="standardise is 'pixel': allowed are 'global', 'channel'"):
        arrays.statistics("pixel")


def test_holdout_splits_the_training_set_alone() -> None:
    arrays = random_arrays(n=61)
    held = arrays.holdout(21, seed=3)
    again = arrays.holdout(21, seed=3)
    other = arrays.holdout(21, seed=4)
    assert torch.equal(held.x_test, again.x_test)
    assert not torch.equal(held.x_test, other.x_test)
    assert (len(held.x_test), len(held.x_train)) == (21, 40)
    together = torch.cat([held.x_train, held.x_test]).flatten(1).tolist()
    assert sorted(together) == sorted(arrays.x_train.flatten(1).tolist())
    assert all(abs(count - 21 / 4) <= 1 for count in held.y_test.bincount().tolist())
    for count in (0, 61):
        with pytest.raises(UserError, match=f"holdout is {count}: allowed are whole numbers from 1 to 60"):
            arrays.holdout(count, seed=0)


def test_to_moves_every_tensor() -> None:
    moved = random_arrays().to("cpu")
    assert torch.equal(moved.x_train, random_arrays().x_train)
    assert (moved.channels, moved.size, moved.classes) == (3, (6, 5), 4)


X, Y = torch.zeros(4, 6, 5, 3, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x_train": X.float()}, "x_train is torch.float32"),
        ({"x_test": X[..., 0]}, "images must be uint8 of shape"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "x_test of shape .* is empty"),
        ({"y_train": Y.float()}, "labels must be int64"),
        ({"y_train": Y[:3]}, "4 images but y_train 3 labels"),
        ({"y_test": Y + 1}, r"the label 2; labels must lie in 0\.\.1"),
        ({"y_test": Y - 1}, "the label -1"),
        ({"x_test": X[:, :4]}, "both must be the same"),
        ({"classes": 1}, "at least 2 classes"),
    ],
)
def test_bad_arrays_are_refused_with_a_sentence(change: dict, sentence: str) -> None:
    good = {"name": "toy", "x_train": X, "y_train": Y, "x_test": X, "y_test": Y, "classes": 2}
    Arrays(**good)
    with pytest.raises(UserError, match=sentence):
        Arrays(**{**good, **change})


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


def save(folder: Path, **change: np.ndarray | None) -> Path:
    contents = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:6], "y_test": LABELS[:6]} | change
    path = folder / "mine.npz"
    np.savez(path, **{key: value for key, value in contents.items() if value is not None})
    return path


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x,
        lambda x: x.astype(np.int32),
        lambda x: x.transpose(0, 3, 1, 2),
        lambda x: (x / 255).astype(np.float32),
        lambda x: x.astype(np.float64),
    ],
    ids=["uint8", "int32", "NCHW", "float-0-1", "float-0-255"],
)
def test_npz_forms_all_give_the_same_arrays(tmp_path: Path, convert) -> None:
    arrays = load(save(tmp_path, x_train=convert(IMAGES), x_test=convert(IMAGES[:6])))
    assert (arrays.name, arrays.classes) == ("mine", 3)
    assert np.array_equal(arrays.x_train.numpy(), IMAGES)
    assert np.array_equal(arrays.x_test.numpy(), IMAGES[:6])
    assert arrays.y_train.tolist() == LABELS.tolist()


def test_npz_mixed_types_grey_images_and_column_labels(tmp_path: Path) -> None:
    arrays = load_npz(save(tmp_path, x_train=IMAGES / 255, y_train=LABELS[:, None].astype(np.uint8)))
    assert np.array_equal(arrays.x_train.numpy(), IMAGES)
    grey = load_npz(save(tmp_path, x_train=IMAGES[..., 0], x_test=IMAGES[:6, :, :, 0]))
    assert grey.x_train.shape == (12, 8, 8, 1)
    wide = np.repeat(IMAGES[..., :1], 12, axis=3)  # 12 channels, square images
    assert load_npz(save(tmp_path, x_train=wide, x_test=wide[:6])).channels == 12


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x_test": None, "y_test": None}, "lacks x_test, y_test; it holds x_train, y_train"),
        ({"x_train": IMAGES[0, 0]}, r"x_train has shape \(8, 3\); images must be"),
        ({"x_train": np.zeros((12, 3, 8, 3))}, r"may be \(N, H, W, C\) or \(N, C, H, W\)"),
        ({"x_train": np.zeros((12, 5, 6, 7))}, r"may be \(N, H, W, C\) or \(N, C, H, W\)"),
        ({"x_test": IMAGES[:0]}, "x_test of shape .* is empty"),
        ({"x_train": IMAGES.astype(float) - 1}, "pixels must lie in 0..255"),
        ({"x_train": IMAGES * np.float32(np.nan)}, "values from nan to nan"),
        ({"x_train": IMAGES.astype("U3")}, "images must be integers or floats"),
        ({"x_train": IMAGES.astype(object)}, "holds Python objects, which are never loaded"),
        ({"x_test": IMAGES[:6, :6]}, "both must be the same"),
        ({"y_train": LABELS + 1}, "3 different labels from 1 to 3"),
        ({"y_train": LABELS * 2}, "3 different labels from 0 to 4"),
        ({"y_train": LABELS + 0.5}, "labels must be integers"),
        ({"y_train": np.eye(3, dtype=int)[LABELS]}, "labels must be integers"),
        ({"y_train": LABELS[:5]}, "12 images but y_train 5 labels"),
        ({"y_train": LABELS[:0]}, "y_train is empty"),
        ({"y_test": LABELS[:6] + 3}, r"the label 5; labels must lie in 0\.\.2"),
    ],
)
def test_npz_mistakes_are_named(tmp_path: Path, change: dict, sentence: str) -> None:
    path = save(tmp_path, **change)
    with pytest.raises(UserError, match=sentence) as caught:
        load_npz(path)
    assert "mine" in str(caught.value)


def test_names_of_classes(tmp_path: Path) -> None:
    names = np.array([f"class {k}" for k in range(1 + int(LABELS.max()))])
    assert load_npz(save(tmp_path, class_names=names)).class_names == tuple(names)
    assert load_npz(save(tmp_path)).class_names is None
    for wrong, sentence in (
        (names[:-1], "different names"),
        (np.array(["a"] * len(names)), "different names"),
        (np.arange(len(names)), "names must be strings"),
        (names.astype(object), "Python objects"),
    ):
        with pytest.raises(UserError, match=sentence):
            load_npz(save(tmp_path, class_names=wrong))
    assert load("digits").class_names == tuple("0123456789")


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load(tmp_path / "absent.npz")
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    with pytest.raises(UserError, match="is damaged or of another kind"):
        load(text)
    single = tmp_path / "single.npz"
    with open(single, "wb") as file:
        np.save(file, IMAGES)
    with pytest.raises(UserError, match="is damaged or of another kind"):
        load(single)
    whole = save(tmp_path).read_bytes()
    for keep in (0, 100, len(whole) // 2, len(whole) - 10):
        cut = tmp_path / "cut.npz"
        cut.write_bytes(whole[:keep])
        with pytest.raises(UserError, match=r"cut\.npz"):
            load(cut)


def test_unknown_names_list_what_is_allowed() -> None:
    with pytest.raises(UserError, match=r"data is 'mnist': allowed are 'digits', 'cifar10' and paths ending in \.npz"):
        load("mnist")


def test_digits_are_split_the_same_way_every_time() -> None:
    digits = load("digits")
    assert digits.x_train.shape == (1442, 8, 8, 1)
    assert digits.x_test.shape == (355, 8, 8, 1)
    assert (int(digits.x_train.min()), int(digits.x_train.max())) == (0, 255)
    shares = digits.y_test.bincount() / (digits.y_test.bincount() + digits.y_train.bincount())
    assert shares.min() > 0.19
    assert shares.max() < 0.21
    assert torch.equal(digits.x_test, load("digits").x_test)


# -- held-out images, by name ------------------------------------------------------------------------------------------


def test_a_name_says_how_many_training_images_are_held_out():
    whole, tenth, some = (load(name) for name in ("digits", "digits:heldout", "digits:heldout=30"))
    assert (len(tenth.x_test), len(some.x_test)) == (len(whole.x_train) // 10, 30)
    for part in (tenth, some):
        assert len(part.x_train) + len(part.x_test) == len(whole.x_train)
    assert torch.equal(some.x_test, whole.holdout(30, 0).x_test)


@pytest.mark.parametrize("name", ["digits:heldout=0", "digits:heldout=x", "digits:heldout5", "digits:heldout=-1"])
def test_a_name_that_holds_out_nothing_is_refused(name):
    with pytest.raises(UserError, match=r"^data is '.*': allowed are 'digits:heldout' and 'digits:heldout=5000'$"):
        load(name)


def test_a_path_stays_the_same_from_another_folder(tmp_path):
    assert absolute("a.npz", tmp_path) == str(tmp_path / "a.npz")
    assert absolute("a.npz:heldout=5", tmp_path) == str(tmp_path / "a.npz:heldout=5")
    assert absolute("cifar10:heldout", tmp_path) == "cifar10:heldout"
