"""The summary and its pictures: exact text where it matters, pictures that are there and not empty."""

import math

import numpy as np
import pytest
import torch

from gibbsprune.training import account, pictures
from gibbsprune.training.folder import RunFolder
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.snapshots import (
    choose_layer,
    load_snapshots,
    picture,
    save_snapshot,
    snapshot_epochs,
)
from gibbsprune.training.spec import RunSpec


def layer(name, weights, kept, target):
    sparsity = 1 - kept / weights
    return {
        "name": name,
        "weights": weights,
        "kept": kept,
        "sparsity": sparsity,
        "neighbourhoods": weights,
        "target": target,
    }


LAYERS = [layer("layer1.0.conv1", 2304, 230, 0.9), layer("layer3.0.project", 64, 58, 0.1)]
RESULT = {
    "accuracy": 0.9712,
    "accuracy_converged": 0.9718,
    "accuracy_recalibrated": 0.9715,
    "agreement": 0.9996,
    "sparsity": 0.9,
    "parameters": 75290,
    "nonzero": 8310,
    "layers": LAYERS,
    "seconds": 83.0,
}


def make(tmp_path, method="gibbs", seeds=(0,)):
    recipe = RECIPES["digits"].replace(law="annealed")
    specs = [RunSpec(model="resnet8", method=method, recipe=recipe, epochs=8, seed=seed) for seed in seeds]
    about = {"hardware": {"cpu": "a processor"}, "versions": {"torch": "2.6"}}
    folder = RunFolder.create(tmp_path / "r", specs, about)
    curve = []
    for epoch in range(1, 9):
        record = {
            "epoch": epoch,
            "loss": math.exp(-epoch / 3),
            "test_loss": 0.1 + math.exp(-epoch / 2),
            "train_accuracy": 1 - math.exp(-epoch / 3),
            "test_accuracy": 1 - math.exp(-epoch / 2),
            "beta": None if method == "dense" else 0.7 * 4.0**epoch,
            "agreement": None if method == "dense" else 1 - 0.5**epoch,
        }
        curve.append(record)
        if method != "dense" and epoch in snapshot_epochs(6, 8):
            keep = 0.5 + 0.4 * epoch / 8
            masks = {"layer1.0.conv1": torch.rand(16, 16, 3, 3, generator=torch.Generator().manual_seed(epoch)) > keep}
            for run in folder.runs:
                save_snapshot(run / "snapshots", masks, epoch, record["beta"])
    folder.unlock()
    return folder, {**RESULT, "curve": curve}


HEAD = """\
# r

resnet8 on digits, pruned weight-wise by gibbs to a sparsity of 90.00 %, 8,310 of 75,290 parameters left, reached \
a test accuracy of **97.12 %**.

## Result

| run    | accuracy | converged mask | recalibrated | agreement | sparsity | parameters | nonzero | time |
| ------ | -------: | -------------: | -----------: | --------: | -------: | ---------: | ------: | ---: |
| seed 0 |  97.12 % |        97.18 % |      97.15 % |   99.96 % |  90.00 % |     75,290 |   8,310 | 1:23 |
"""

LAYER_TABLE = """\
| layer              | weights | neighbourhoods | weights kept |  target | sparsity |
| ------------------ | ------: | -------------: | -----------: | ------: | -------: |
| `layer1.0.conv1`   |   2,304 |          2,304 |          230 | 90.00 % |  90.02 % |
| `layer3.0.project` |      64 |             64 |           58 | 10.00 % |   9.38 % |
"""


def test_summary_of_a_run(tmp_path):
    folder, result = make(tmp_path)
    account.write_summary(folder, [result])
    text = (folder.path / "summary.md").read_text()
    assert text.startswith(HEAD)
    assert LAYER_TABLE in text
    assert "| device " in text
    assert "a processor" in text
    for name in account.CAPTIONS:
        assert f"]({name})" in text
        from PIL import Image

        with Image.open(folder.path / name) as image:
            pixels = np.asarray(image.convert("L"))
        assert pixels.shape[1] >= 1300
        assert 0.005 < (pixels < 200).mean() < 0.6, name


def test_summary_of_a_dense_run_has_no_masks(tmp_path):
    folder, result = make(tmp_path, "dense")
    account.write_summary(folder, [{**result, "layers": [], "sparsity": 0.0}])
    text = (folder.path / "summary.md").read_text()
    assert "resnet8 on digits, dense, reached **97.12 %** test accuracy." in text
    assert sorted(path.name for path in folder.path.glob("*.png")) == ["curves.png"]


def test_statistics_that_were_estimated_anew_are_told_of(tmp_path):
    folder, result = make(tmp_path, seeds=(0, 1))
    lagged = [{**result, "lagged": {"steps": 22, "accuracy": accuracy}} for accuracy in (0.8, 0.9)]
    assert "rose until 22 steps before the end" in (told := account.headline(folder.specs[0], lagged))
    assert told.endswith("With those that training left it reaches 85.00 %.")
    assert "rose" not in account.headline(folder.specs[0], [result, result])


def test_summary_of_a_fleet_tells_the_spread(tmp_path):
    folder, result = make(tmp_path, seeds=(0, 1))
    account.write_summary(folder, [result, {**result, "accuracy": 0.9812}])
    text = (folder.path / "summary.md").read_text()
    assert "**97.62 %** ± 0.71 (2 seeds)" in text
    assert "| seed 1 |  98.12 % |" in text
    assert "`seed-0/metrics.jsonl`" in text
    assert (folder.path / "masks.png").exists()


def test_without_matplotlib_the_summary_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "available", lambda: False)
    folder, result = make(tmp_path)
    account.write_summary(folder, [result])
    assert "No pictures: matplotlib is not installed" in (folder.path / "summary.md").read_text()
    assert not list(folder.path.glob("*.png"))


def test_the_same_run_gives_the_same_pictures(tmp_path):
    _, result = make(tmp_path)
    pictures.draw_curves(tmp_path / "a.png", [result["curve"]], dense=False)
    pictures.draw_curves(tmp_path / "b.png", [result["curve"]], dense=False)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_picture_lays_kernels_out_by_channel():
    mask = torch.zeros(2, 3, 2, 2, dtype=torch.bool)
    mask[1, 2, 0, 1] = True
    shown, block = picture(mask)
    assert shown.shape == (4, 6)
    assert block == (2, 2)
    assert np.argwhere(shown).tolist() == [[2, 5]]


@pytest.mark.parametrize(
    ("shape", "pixels"),
    [
        ((10, 20), (10, 20)),
        ((500, 500), (128, 128)),
        ((64, 64, 3, 3), (96, 96)),
        ((4, 4, 5), (4, 20)),
        ((7,), (1, 7)),
    ],
)
def test_pictures_of_every_kind_of_layer(shape, pixels):
    assert picture(torch.ones(shape, dtype=torch.bool))[0].shape == pixels


def test_the_layer_shown_has_kernels_if_any_has():
    flat, deep = torch.ones(4, 4, 1, 1, dtype=torch.bool), torch.ones(4, 4, 3, 3, dtype=torch.bool)
    assert choose_layer({"a": flat, "b": deep}) == "b"
    assert choose_layer({"a": flat}) == "a"
    assert choose_layer({}) is None


def test_snapshot_epochs_cover_the_annealing():
    assert sorted(snapshot_epochs(128, 200)) == [1, 27, 52, 78, 103, 129]
    assert sorted(snapshot_epochs(16, 3)) == [1, 2, 3]
    assert snapshot_epochs(1, 1) == {1}


def test_snapshots_round_trip(tmp_path):
    masks = {"conv": torch.eye(8, dtype=torch.bool).reshape(8, 8, 1, 1).expand(8, 8, 3, 3)}
    save_snapshot(tmp_path / "s", masks, 3, 12.5)
    (shot,) = load_snapshots(tmp_path / "s")
    assert (shot.layer, shot.epoch, shot.beta, shot.block) == ("conv", 3, 12.5, (3, 3))
    assert shot.picture.sum() == 72
    assert load_snapshots(tmp_path / "none") == []


def test_masks_that_have_not_converged_are_told_of():
    spec = RunSpec(model="resnet8", hamiltonian="square")
    assert "converged" not in account.headline(spec, [RESULT])
    assert "The masks have not converged: only 50.55 %" in account.headline(
        spec, [RESULT, {**RESULT, "agreement": 0.5055}]
    )
    assert "trained with other masks than it ends with" in account.headline(spec, [{**RESULT, "agreement": 0.9985}])
    other = RunSpec(model="resnet8", method="random-mask")
    assert "converged" not in account.headline(other, [{**RESULT, "agreement": 0.5}])


def test_a_last_draw_is_explained_where_its_accuracy_is_told():
    drawn = RunSpec(model="resnet8", hamiltonian="square", recipe=RECIPES["digits"].replace(final="sample"))
    told = account.headline(drawn, [RESULT])
    assert (
        "**97.12 %** (the final mask is one more draw from the law; with the converged mask, as in the epochs' " in told
    )
    assert "97.18 %; --final chooses)" in told
    assert "sparsity is not exact" in account.headline(drawn, [{**RESULT, "agreement": 0.9985}])
    assert "which is one more draw from the law" in account.result_note([drawn])
    assert "which is the converged one" in account.result_note([RunSpec(model="resnet8", hamiltonian="square")])
