"""Every method through run folders: on digits end to end, interrupted and resumed bit for bit, started from others."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gibbsprune import data
from gibbsprune.checks import listed
from gibbsprune.cli import main
from gibbsprune.errors import UserError
from gibbsprune.structures import as_structure
from gibbsprune.threshold import kept_count
from gibbsprune.training import finished, pictures, run
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.folder import RunFolder, read_metrics
from gibbsprune.training.interrupt import Interrupted
from gibbsprune.training.methods import METHODS
from gibbsprune.training.network import new_model
from gibbsprune.training.progress import PlainProgress
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.sites import run_sites
from gibbsprune.training.spec import RunSpec
from method_bench import SMALL

EPOCHS = 1
QUICK = RECIPES["digits"].replace(epochs=EPOCHS, anneal="constant", beta_end=1e9)  # cold from the start


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(pictures, "available", lambda: False)


# -- digits, end to end ------------------------------------------------------------------------------------------------

ONE_PHASE = [
    *[("gibbs", structure, {}) for structure in ("weight", "kernel", "filter")],
    ("dense", "weight", {}),
    ("l1", "weight", {}),
    *[("targeted-dropout", structure, {}) for structure in ("weight", "kernel", "filter")],
    ("targeted-dropout", "weight", {"ramping": True}),
    ("targeted-dropout", "weight", {"ramp": "authors"}),
    *[("random-mask", structure, {}) for structure in ("weight", "kernel", "filter")],
    *[("gradual", structure, {}) for structure in ("weight", "kernel", "filter")],
    *[("feedback", structure, {}) for structure in ("weight", "kernel", "filter")],
    ("rigl", "weight", {"every": 5, "allocation": "uniform"}),
    ("str", "weight", {}),
]
LONGER = dict.fromkeys(("magnitude", "filter-l1", "thinet", "lottery", "lr-rewinding"), 2 * EPOCHS)


def resnet(method: str, structure: str, sparsity: float = 0.9, **settings) -> RunSpec:
    """Couplings so strong that no weight of a kernel or filter is left alone by chance."""
    return RunSpec(model="resnet8", method=method, structure=structure, sparsity=sparsity, recipe=QUICK, coupling=1.0,
                   settings=settings)  # fmt: skip


@pytest.mark.slow
def test_every_method_and_structure_on_digits(tmp_path):
    """One fleet of those that train once, and those that start from these: sparsity, zeros, masks, epochs."""
    specs = [resnet(method, structure, **settings) for method, structure, settings in ONE_PHASE]
    folders = [run.start(specs, tmp_path / "once", "cpu").folder]
    first = RunFolder.open(folders[0])
    where = {(one.method, one.structure): str(path) for one, path in zip(first.specs, first.runs)}
    dense = where["dense", "weight"]
    tuned = [resnet("magnitude", "weight", 0.1, tune_epochs=1, **{"from": dense}),
             resnet("lr-rewinding", "weight", allocation="uniform", **{"from": dense}),
             resnet("filter-l1", "kernel", 0.1, tune_epochs=1, **{"from": dense}),
             resnet("filter-l1", "filter", 0.1, tune_epochs=1, **{"from": dense}),
             resnet("thinet", "filter", 0.75, tune_epochs=1, images=64, **{"from": dense})]  # fmt: skip
    again = [resnet("reinit", kind, **{"from": where["gibbs", kind]}) for kind in ("weight", "kernel", "filter")]
    folders.append(run.start([*tuned, *again], tmp_path / "started", "cpu").folder)
    folders.append(run.start([resnet("lottery", "weight", rounds=1)], tmp_path / "lottery", "cpu").folder)
    seen = set()
    for folder in map(RunFolder.open, folders):
        assert folder.finished()
        for one, path, result in zip(folder.specs, folder.runs, folder.results(), strict=True):
            seen.add((one.method, one.structure))
            check_files(one, path, result)
            assert result["epochs"] == one.total_epochs == LONGER.get(one.method, EPOCHS)
            assert len(read_metrics(path / "metrics.jsonl")) == one.own_epochs
            if one.structure == "weight" or one.sparsity < 0.5:  # they learn: chance is 0.1
                assert result["accuracy_recalibrated"] > 0.2, path.name
            if one.method == "reinit":
                check_masks_taken(path, Path(one.setting("from")))
    wanted = {(name, structure) for name, how in METHODS.items() for structure in how.structures if how.prunes}
    wanted = {(name, structure) for name, structure in wanted if structure in ("weight", "kernel", "filter")}
    assert seen == wanted | {("dense", "weight")}
    text = (tmp_path / "once" / "summary.md").read_text()
    assert "21 runs of resnet8 on digits, trained together." in text
    assert all(f"| {path.name} " in text for path in first.runs)
    with pytest.raises(
        UserError, match=r"once has several runs with seed 0; name the folder of one: digits-resnet8-gibbs"
    ):
        run.start([resnet("magnitude", "weight", **{"from": str(tmp_path / "once")})], tmp_path / "no", "cpu")


NEWER = {"column": 0.5, "4x4": 0.75, "2:4": 0.5, "at-most-3": 0.75}


def test_every_method_with_the_other_structures(place, tmp_path):
    """An epoch of few digits: masks of the right pattern, in the middle and in the end."""
    short = QUICK.replace(epochs=1, batch=64)

    def one(method: str, structure: str, **settings) -> RunSpec:
        return RunSpec(data=str(place / "few.npz"), model="resnet8", method=method, structure=structure, recipe=short,
                       sparsity=NEWER[structure], coupling=1.0, settings=settings)  # fmt: skip

    methods = [name for name, how in METHODS.items() if "column" in how.structures and how.prunes and name != "reinit"]
    specs = [
        one(name, kind) for name in methods for kind in NEWER if as_structure(kind).name in METHODS[name].structures
    ]
    folder = RunFolder.open(run.start(specs, tmp_path / "once", "cpu").folder)
    source = next(path for each, path in zip(specs, folder.runs) if (each.method, each.structure) == ("gibbs", "2:4"))
    assert source.name.startswith("few-resnet8-gibbs-2of4-square-0.5-converged-digits-e1-")
    again = RunFolder.open(run.start([one("reinit", "2:4", **{"from": str(source)})], tmp_path / "two", "cpu").folder)
    seen = set()
    for each, path, result in [
        *zip(specs, folder.runs, folder.results()),
        (*again.specs, *again.runs, *again.results()),
    ]:
        check_files(each, path, result)
        seen.add((each.method, as_structure(each.structure).name))
    kinds = [as_structure(kind).name for kind in NEWER]
    wanted = {(name, kind) for name, how in METHODS.items() for kind in how.structures if kind in kinds and how.prunes}
    assert seen == {pair for pair in wanted if pair[0] != "reinit"} | {("reinit", "nm")}


def check_files(one: RunSpec, path: Path, result: dict) -> None:
    """Exactly K of M neighbourhoods are kept, whole ones, and what is pruned is zero in the file."""
    weights = load_file(path / "model.safetensors")
    if not one.how.prunes:
        assert not (path / "masks.safetensors").exists()
        assert result["sparsity"] == 0
        return
    masks = load_file(path / "masks.safetensors")
    sites = run_sites(one, new_model(one, data.load("digits")))
    assert masks.keys() == sites.keys()
    assert len(masks) == (6 if one.structure == "filter" else 8)  # filter-wise without the projections
    for name, site in sites.items():
        rows = site.structure.rows(masks[name])
        if site.structure.limited:
            assert int(rows.sum(1).max()) <= site.limits[1], (path.name, name)
            assert int(rows.sum()) == round((1 - site.removed) * math.prod(site.shape)), (path.name, name)
        else:
            assert bool((rows == rows[:, :1]).all()), (path.name, name)
        if not site.structure.limited and one.method != "str":  # whose layers share the sparsity as they learn to
            assert int(rows[:, 0].sum()) == kept_count(one.sparsity, site.count), (path.name, name)
        assert not weights[f"{name}.weight"][~masks[name]].any(), (path.name, name)
        assert weights[f"{name}.weight"][masks[name]].any(), (path.name, name)
    left, total = sum(int(m.sum()) for m in masks.values()), sum(m.numel() for m in masks.values())
    assert result["sparsity"] == pytest.approx(1 - left / total)
    assert result["nonzero"] == result["parameters"] - total + left


def check_masks_taken(ours: Path, source: Path) -> None:
    """The source's masks, other weights."""
    masks, theirs = load_file(ours / "masks.safetensors"), load_file(source / "masks.safetensors")
    assert masks.keys() == theirs.keys()
    assert all(torch.equal(masks[name], theirs[name]) for name in masks)
    weights, others = load_file(ours / "model.safetensors"), load_file(source / "model.safetensors")
    assert not torch.equal(weights["blocks.0.conv1.weight"], others["blocks.0.conv1.weight"])


# -- interrupted and resumed -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Few digits as a user's file, and finished dense, Gibbs and lottery runs on them."""
    folder = tmp_path_factory.mktemp("place")
    digits = data.load("digits")
    np.savez(folder / "few.npz", x_train=digits.x_train[:192].numpy(), y_train=digits.y_train[:192].numpy(),
             x_test=digits.x_test[:64].numpy(), y_test=digits.y_test[:64].numpy())  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "available", lambda: False)
        for method in ("dense", "gibbs"):
            train(folder, "--method", method, "--out", str(folder / method))
        lottery = ["--method", "lottery", "--rounds", "1", "--rewind-step", "4"]
        train(folder, *lottery, "--out", str(folder / "lottery"))
        train(folder, "--method", "dense", "--seeds", "1-2", "--out", str(folder / "fleet"))
    return folder


def train(place: Path, *arguments: str, model: str = SMALL, status: int = 0) -> None:
    command = ["train", "--data", str(place / "few.npz"), "--model", model, "--recipe", "digits", "--epochs", "2",
               "--batch", "32", "--device", "cpu", *arguments]  # fmt: skip
    assert main(command) == status


class Stops(PlainProgress):
    """Stops a run at once, within an epoch, as two Ctrl-C do."""

    def __init__(self, epoch: int, step: int) -> None:
        super().__init__(open(os.devnull, "w"))  # noqa: SIM115
        self.at, self.done = (epoch, step), 0

    def epoch(self, number: int, records) -> None:
        self.done = number

    def step(self, done: int, total: int) -> None:
        if (self.done, done) == self.at:
            self.stream.close()
            self.note = lambda message: None  # type: ignore[method-assign]
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)


LATER = [  # method, options, and an epoch (from 0) within a later phase where there is one
    ("gibbs", [], 1),
    ("gibbs", ["--from", "dense"], 1),
    ("dense", [], 1),
    ("l1", [], 1),
    ("magnitude", ["--sparsity", "0.25", "--tune-epochs", "2"], 5),
    ("magnitude", ["--sparsity", "0.25", "--tune-epochs", "2", "--from", "dense"], 3),
    ("lottery", ["--rounds", "2", "--rewind-step", "4"], 3),
    ("lottery", ["--rounds", "1", "--rewind-step", "11"], 1),  # stopped just after the step that is put aside
    ("lottery", ["--rounds", "2", "--rewind-step", "4", "--from", "lottery"], 3),
    ("lottery", ["--rounds", "2", "--rewind-step", "4", "--round", "1", "--from", "lottery"], 1),
    ("targeted-dropout", ["--structure", "kernel", "--ramping"], 1),
    ("targeted-dropout", ["--epochs", "4", "--ramp", "authors"], 2),
    ("filter-l1", ["--structure", "filter", "--sparsity", "0.25", "--tune-epochs", "2"], 3),
    ("thinet", ["--structure", "filter", "--sparsity", "0.5", "--tune-epochs", "3", "--images", "40"], 3),
    ("thinet", ["--structure", "filter", "--tune-epochs", "2", "--spread", "1", "--tune-rate", "rewind"], 3),
    ("random-mask", ["--structure", "kernel"], 1),
    ("reinit", ["--from", "gibbs"], 1),
    ("gradual", ["--epochs", "4", "--until", "0.9"], 2),
    ("gradual", ["--epochs", "4", "--until", "0.9", "--allocation", "global"], 2),
    ("feedback", ["--epochs", "4", "--allocation", "global"], 2),
    ("rigl", ["--every", "4"], 1),
    ("lr-rewinding", ["--rounds", "2"], 3),
    ("str", ["--start", "-4"], 1),
]


@pytest.mark.parametrize(
    ("method", "options", "epoch"), LATER, ids=lambda value: value if isinstance(value, str) else ""
)
def test_resumed_runs_are_bit_for_bit_those_never_stopped(place, tmp_path, monkeypatch, method, options, epoch):
    monkeypatch.chdir(tmp_path)
    options = [str(place / word) if word in ("dense", "gibbs", "lottery") else word for word in options]
    train(place, "--method", method, *options, "--out", "whole")
    (wanted,) = RunFolder.open("whole").specs
    with pytest.raises(Interrupted):
        run.start([wanted], "cut", "cpu", progress=Stops(epoch, 5))
    assert read_metrics(Path("cut/metrics.jsonl"))[-1]["epoch"] == epoch
    assert not RunFolder.open("cut").finished()
    assert main(["train", "--resume", "cut", "--trust"]) == 0
    for name in ("model.safetensors", "masks.safetensors"):
        if method != "dense" or name == "model.safetensors":
            assert Path("cut", name).read_bytes() == Path("whole", name).read_bytes(), name
    ours, theirs = (json.loads(Path(folder, "result.json").read_text()) for folder in ("cut", "whole"))
    assert ours == {**theirs, "seconds": ours["seconds"]}


def test_every_method_was_interrupted():
    assert {method for method, _, _ in LATER} == METHODS.keys()


def test_stopped_after_the_last_epoch_the_phases_without_epochs_are_still_done(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(place, "--method", "magnitude", "--tune-epochs", "0", "--out", "whole")
    (wanted,) = RunFolder.open("whole").specs
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_outputs", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            run.start([wanted], "cut", "cpu", progress=PlainProgress())
    assert main(["train", "--resume", "cut", "--trust"]) == 0
    assert Path("cut/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()


def test_pruning_a_finished_run_without_any_training(place, tmp_path, monkeypatch):
    """No epoch of its own: the dense network, pruned."""
    monkeypatch.chdir(tmp_path)
    train(place, "--method", "magnitude", "--tune-epochs", "0", "--from", str(place / "dense"), "--out", "cut")
    dense, ours = load_file(place / "dense" / "model.safetensors"), load_file("cut/model.safetensors")
    for name, mask in load_file("cut/masks.safetensors").items():
        assert torch.equal(ours[f"{name}.weight"], dense[f"{name}.weight"] * mask)
    assert torch.equal(ours["first.weight"], dense["first.weight"])
    assert json.loads(Path("cut/result.json").read_text())["epochs"] == 2


@pytest.mark.parametrize("method", ["magnitude", "targeted-dropout"])
def test_runs_of_other_methods_have_pictures_and_a_summary(place, tmp_path, monkeypatch, method):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures, "available", lambda: True)
    train(place, "--method", method, "--sparsity", "0.15", "--out", "drawn")
    assert {path.name for path in Path("drawn").glob("*.png")} == {"curves.png", "layers.png"}
    text = Path("drawn/summary.md").read_text()
    assert f"by {method} to a sparsity of" in text
    assert "draw from the law" not in text  # nothing is drawn at the end


# -- from other runs ---------------------------------------------------------------------------------------------------


def test_a_fleet_starts_from_the_runs_of_its_seeds(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["--method", "magnitude", "--tune-epochs", "0", "--sparsity", "0.5", "--from"]
    train(place, *common, str(place / "fleet"), "--seeds", "1-2", "--out", "both")
    train(place, *common, str(place / "fleet" / "seed-2"), "--out", "one")
    train(place, *common, str(place / "fleet"), "--seed", "1", "--out", "other")
    for seed, alone in ((2, "one"), (1, "other")):
        dense = load_file(place / "fleet" / f"seed-{seed}" / "model.safetensors")
        ours = load_file(f"both/seed-{seed}/model.safetensors")
        assert torch.equal(ours["first.weight"], dense["first.weight"])
        assert torch.equal(ours["third.weight"], load_file(f"{alone}/model.safetensors")["third.weight"])


def refused(place: Path, capsys, *arguments: str, **options) -> str:
    """The one sentence; nothing is left behind that would be in the way of the right command."""
    capsys.readouterr()
    train(place, *arguments, "--out", "refused", status=2, **options)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert not Path("refused").exists()
    return lines[0].removeprefix("gibbsprune: ").replace(str(place), "…")


def test_runs_that_cannot_be_started_from_are_one_sentence(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert refused(place, capsys, "--method", "reinit") == (
        "method 'reinit' needs the finished run whose masks it takes: give it with --from RUN"
    )
    for method in ("magnitude", "reinit"):
        assert refused(place, capsys, "--method", method, "--from", str(place / "nowhere")) == (
            "…/nowhere holds no run (it has no run.json)"
        )
    assert refused(place, capsys, "--method", "magnitude", "--from", str(place / "gibbs")) == (
        "method 'magnitude' would start from a dense method_bench:small on …/few.npz of 2 epochs, but …/gibbs is "
        "a gibbs method_bench:small on …/few.npz of 2 epochs"
    )
    assert refused(
        place, capsys, "--method", "magnitude", "--from", str(place / "dense"), model="method_bench:tiny"
    ) == (
        "method 'magnitude' would start from a dense method_bench:tiny on …/few.npz of 2 epochs, but …/dense is a "
        "dense method_bench:small on …/few.npz of 2 epochs"
    )
    lr = ["--method", "magnitude", "--from", str(place / "dense"), "--lr", "0.5"]
    assert refused(place, capsys, *lr).startswith("…/dense was trained with lr 0.")
    thinet = ["--method", "thinet", "--structure", "filter", "--from", str(place / "dense"), "--epochs", "3"]
    assert "of 3 epochs, but …/dense is a dense method_bench:small on …/few.npz of 2" in refused(place, capsys, *thinet)
    assert refused(place, capsys, "--method", "reinit", "--from", str(place / "dense")) == (
        "method 'reinit' takes the masks of a pruned run, but …/dense is dense"
    )
    assert refused(place, capsys, "--method", "reinit", "--from", str(place / "gibbs"), "--sparsity", "0.5") == (
        "the run …/gibbs was pruned by weight to 0.9, not by weight to 0.5: give --structure weight --sparsity 0.9"
    )
    assert refused(place, capsys, "--method", "reinit", "--from", str(place / "gibbs"), model="method_bench:tiny") == (
        "the run …/gibbs (method_bench:small) has no mask for layer second of this method_bench:tiny"
    )
    assert refused(place, capsys, "--method", "magnitude", "--from", str(place / "fleet"), "--seed", "5") == (
        "the fleet …/fleet has no run with seed 5; it has seeds 1, 2"
    )
    assert refused(place, capsys, "--method", "magnitude", "--from", str(place / "fleet" / "seed-7")) == (
        "the fleet …/fleet has no run seed-7; its runs: seed-1, seed-2"
    )


def test_an_unfinished_run_cannot_be_started_from(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (wanted,) = RunFolder.open(place / "dense").specs
    with pytest.raises(Interrupted):
        run.start([wanted], "cut", "cpu", progress=Stops(1, 2))
    here = str(tmp_path / "cut")
    assert refused(place, capsys, "--method", "magnitude", "--from", "cut") == (
        f"the run {here} is not finished; continue it with: gibbsprune train --resume {here}"
    )


def test_every_method_starts_from_weights(place, tmp_path):
    """A file and a run are the same start, alone or fused with runs of other methods; then the methods differ."""
    folder = place / "dense"
    (dense,) = RunFolder.open(folder).specs
    arrays = data.load(dense.data)
    weights = load_file(folder / "model.safetensors")
    methods = [name for name in METHODS if name not in ("reinit", "lottery", "thinet")]  # which rescales at once
    for named in (str(folder), str(folder / "model.safetensors")):
        settings = {name: {"from": named} for name in methods}
        specs = [
            dense.replace(method=name, structure=METHODS[name].structures[0], settings=settings[name], sparsity=0.5)
            for name in methods
        ]
        fleet = Fleet([finished.identified(spec) for spec in specs], arrays)
        for engine in fleet.engines:
            engine.enter(0)
            for replica in engine.replicas:
                for name, value in replica.values().items():
                    assert torch.equal(value, weights[name]), (replica.spec.method, name)


def test_a_trained_network_is_pruned_better_than_a_new_one(place, tmp_path, monkeypatch):
    """The commonest use: training is over, and a few epochs are left for pruning."""
    monkeypatch.chdir(tmp_path)
    (dense,) = RunFolder.open(place / "dense").specs
    trained = dense.replace(recipe=dense.recipe.replace(epochs=6), data="digits", model="resnet8")
    home = run.start([trained], "trained", "cpu", progress=PlainProgress()).folder
    accuracy = json.loads((home / "result.json").read_text())["accuracy"]
    few = trained.replace(method="gibbs", sparsity=0.9, epochs=2, recipe=trained.recipe.replace(lr=0.003, epochs=2),
                          settings=FINE)  # fmt: skip
    again = few.replace(settings={**FINE, "from": str(home / "model.safetensors")})
    found = [run.start([one], name, "cpu").results[0]["accuracy"] for one, name in ((few, "new"), (again, "again"))]
    assert found[0] + 0.04 < found[1]
    assert found[1] > accuracy - 0.03


FINE = {"ramp": "cubic", "allocation": "global", "units": "threshold", "gradient": "straight-through"}


def test_the_weights_are_a_part_of_what_a_run_is(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dense = place / "dense" / "model.safetensors"
    Path("start.safetensors").write_bytes(dense.read_bytes())
    train(place, "--from", "start.safetensors", "--out", "ours")
    (spec,) = RunFolder.open("ours").specs
    digest = hashlib.sha256(dense.read_bytes()).hexdigest()
    assert spec.setting("weights") == digest[:12]
    assert f"-w{digest[:6]}-s0" in spec.name()
    assert spec.setting("from") == str(tmp_path / "start.safetensors")
    with pytest.raises(Interrupted):
        run.start([spec], "cut", "cpu", progress=Stops(1, 2))
    other = load_file("start.safetensors")
    save_file({**other, "dense.bias": other["dense.bias"] + 1}, "start.safetensors")
    changed = finished.identified(spec.replace(settings={"from": spec.setting("from")}))
    assert changed.name() != spec.name()
    assert changed.name(with_seed=False) == spec.name(with_seed=False)
    capsys.readouterr()
    assert main(["train", "--resume", "cut", "--trust"]) == 2
    assert f"begins with {changed.setting('weights')}, not with {digest[:12]}" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_one_sentence(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    weights = load_file(place / "dense" / "model.safetensors")
    save_file({**weights, "more": torch.ones(1)}, "more.safetensors")
    save_file({name: value for name, value in weights.items() if name != "dense.bias"}, "less.safetensors")
    save_file({**weights, "dense.bias": torch.ones(3)}, "other.safetensors")
    save_file({**weights, "dense.bias": torch.full((10,), torch.nan)}, "nan.safetensors")
    Path("broken.safetensors").write_bytes(b"no")
    torch.save(weights, "model.pt")
    here = str(tmp_path)
    for name, told in {
        "more": f"{here}/more.safetensors is of another network than this {SMALL}: this {SMALL} has no more",
        "less": f"{here}/less.safetensors is of another network than this {SMALL}: {here}/less.safetensors has no "
        "dense.bias",
        "other": f"{here}/other.safetensors is of another network than this {SMALL}: its dense.bias is (3,), not (10,)",
        "nan": f"{here}/nan.safetensors holds values that are no numbers, in dense.bias",
        "none": f"there is no {here}/none.safetensors",
    }.items():
        assert refused(place, capsys, "--from", f"{name}.safetensors") == told
    assert refused(place, capsys, "--from", "broken.safetensors").startswith(
        f"{here}/broken.safetensors cannot be read"
    )
    assert "model.pt is neither the folder of a run nor a .safetensors file" in refused(
        place, capsys, "--from", "model.pt"
    )
    assert refused(place, capsys, "--from", str(place / "dense"), "--standardise", "channel") == (
        "…/dense was trained with standardise global, but this run's recipe has channel: give both the same"
    )
    for method in ("reinit", "lottery"):
        said = refused(place, capsys, "--method", method, "--from", str(place / "dense" / "model.safetensors"))
        assert said.endswith("model.safetensors is a file of weights")


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("l1", {"penalty": -1}, "penalty is -1: allowed are numbers from 0"),
        ("l1", {"penalty": "much"}, "penalty is 'much': allowed are numbers from 0"),
        ("l1", {"rounds": 3}, "method 'l1' has no setting 'rounds': allowed are penalty, from, weights"),
        ("dense", {"penalty": 1}, "method 'dense' has no setting 'penalty': allowed are from, weights"),
        ("magnitude", {"tune_epochs": 1.5}, "tune_epochs is 1.5: allowed are whole numbers from 0"),
        ("magnitude", {"tune_rate": 0}, "tune_rate is 0: allowed are numbers above 0, and 'rewind'"),
        ("lottery", {"rounds": 0}, "rounds is 0: allowed are whole numbers from 1"),
        ("lottery", {"rewind_step": "x"}, "rewind_step is 'x': allowed are whole numbers from 1, and 'default'"),
        ("lottery", {"round": 4}, "round is 4: allowed are numbers up to the 3 rounds"),
        ("lottery", {"round": 2}, "round 2 of a lottery needs 'from', the finished run of the round before"),
        (
            "lottery",
            {"round": 0, "from": "x"},
            "round 0 of a lottery is its first training, which starts from no run, not from x",
        ),
        ("targeted-dropout", {"drop": 1.1}, "drop is 1.1: allowed are numbers from 0 to 1"),
        ("targeted-dropout", {"targeted": 1}, "targeted is 1: allowed are numbers from 0 to below 1"),
        ("targeted-dropout", {"ramping": "maybe"}, "ramping is 'maybe': allowed are yes and no"),
        ("gradual", {"until": 0}, "until is 0: allowed are numbers above 0 to 1"),
        ("thinet", {"images": 0}, "images is 0: allowed are whole numbers from 1"),
        ("gibs", {}, f"method is 'gibs': allowed are {listed(METHODS)}"),
    ],
)
def test_bad_settings_are_one_sentence(method, settings, sentence):
    structure = "filter" if method == "thinet" else "weight"
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        RunSpec(method=method, structure=structure, settings=settings)


@pytest.mark.parametrize(
    ("method", "structure", "has"),
    [("l1", "kernel", "weight"), ("magnitude", "filter", "weight"), ("filter-l1", "weight", "kernel', 'filter"),
     ("thinet", "kernel", "filter")],
)  # fmt: skip
def test_a_structure_that_a_method_does_not_have(method, structure, has):
    with pytest.raises(UserError, match=f"^structure is '{structure}': allowed are '{has}' with method '{method}'$"):
        RunSpec(method=method, structure=structure)


def test_a_rewind_step_after_the_end(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = refused(place, capsys, "--method", "lottery", "--rewind-step", "13")
    assert said == "rewind_step is 13: allowed are numbers up to the 12 steps of training"


def test_settings_of_another_method_on_the_command_line(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert refused(place, capsys, "--method", "l1", "--rounds", "3") == (
        "method 'l1' has no setting 'rounds': allowed are penalty, from, weights"
    )
    assert (
        refused(place, capsys, "--method", "l1", "--coupling", "0.1")
        == "--coupling is for method 'gibbs', not for 'l1'"
    )
