"""The command line: its help, its plans and tables, its one-sentence refusals and exit statuses."""

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from fake_fleet import FakeFleet
from gibbsprune.cli import demo, dry_run, main
from gibbsprune.training import pictures, run
from gibbsprune.training.spec import RunSpec

REHEARSAL = Path(__file__).parents[1] / "examples" / "rehearsal.yaml"


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    """A folder of its own, a terminal of fixed width, no data at hand, and a fleet that costs nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("GIBBSPRUNE_DATA", str(tmp_path / "data"))
    fresh = type("Fresh", (FakeFleet,), {})
    monkeypatch.setattr(run, "Fleet", fresh)
    monkeypatch.setattr(dry_run, "Fleet", fresh)
    monkeypatch.setattr(pictures, "available", lambda: False)
    return fresh


HELP = """\
usage: gibbsprune [-h] [--version] COMMAND ...

Train a network and prune it at the same time, with masks from a Gibbs law.

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit

commands:
  COMMAND
    train     train and prune a network, or resume a run
    sweep     any set of runs, declared in a file: run, status, report
    compare   train all methods on one task: one table, one picture
    tune      tune β ranges and the coupling on held-out training images
    demo      a first look: a small network on digits, smaller and faster, in a minute on a CPU
    export    write a run's network for use elsewhere, checked
    profile   measure a network: size, multiply-adds, latency; dense, pruned and compact
    data      fetch a data set
    describe  count the parameters of networks by kind

try:
  gibbsprune demo                                      a first look, a minute on a CPU
  gibbsprune train --model resnet8 --sparsity 0.95     prune a small network on the embedded digits
  gibbsprune compare --sparsity 0.9                    all methods on the digits, in one table and one picture
  gibbsprune data get cifar10                          fetch CIFAR-10, then:
  gibbsprune train --data cifar10 --structure kernel   prune whole kernels of a ResNet-20
  gibbsprune export runs/… --format onnx --compact     the network, smaller, for ONNX Runtime
"""

DESCRIBE = """\
| network  |   first conv |     batch norm |        dense |       other convs |     all | trained |
| -------- | -----------: | -------------: | -----------: | ----------------: | ------: | ------: |
| resnet20 | 432 (0.16 %) | 2,752 (1.01 %) | 650 (0.24 %) | 269,824 (98.60 %) | 273,658 | 272,282 |
| resnet56 | 432 (0.05 %) | 8,128 (0.95 %) | 650 (0.08 %) | 850,432 (98.93 %) | 859,642 | 855,578 |
"""

PLAN = """\
digits-resnet8-gibbs-weight-square-0.9-converged-e5-s0
data        1,442 training and 355 test images
parameters  576
pruned      518 of 576 weights in 1 layers (89.93 %)
            covers 576 of 576 parameters (100.0 %)
            layers share it (balanced), by what they learn or their shape: below all have the same

| layer          | kind   | weights | neighbourhoods |  target | weights kept |
| -------------- | ------ | ------: | -------------: | ------: | -----------: |
| layer1.0.conv1 | Conv2d |     576 |            576 | 90.00 % |           58 |

time        about 0:00: 5 epochs of 3 steps,
            10.0 ms per step (from 2 steps, tests not included)
"""


def test_without_arguments_it_prints_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out == HELP


def test_the_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert capsys.readouterr().out == "gibbsprune {}\n".format(*re.findall('^version = "(.+)"$', project, re.MULTILINE))


def test_help_of_train_names_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    named = "data model method structure hamiltonian coupling sampler sparsity recipe epochs stretch seed seeds"
    kept = "device precision autotune out include exclude log dry-run show-recipe resume checkpoint-every"
    fields = "lr weight-decay milestones anneal-epochs batch optimizer beta-end shift flip"
    for option in f"{named} {kept} {fields}".split():
        assert f"  --{option} " in text, option
    assert "scales the recipe: milestones and annealing" in text


def test_describe_reproduces_table_one(capsys):
    assert main(["describe", "resnet20", "resnet56"]) == 0
    assert capsys.readouterr().out.startswith(DESCRIBE)


def test_show_recipe_with_overrides(capsys):
    arguments = "train --recipe paper --epochs 20 --lr 0.002 --weight-decay 0 --flip no --show-recipe"
    assert main(arguments.split()) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    shown = dict(pair for pair in lines if len(pair) == 2)
    assert lines[0] == ["recipe", "paper"]
    assert shown["epochs"] == "20"
    assert shown["milestones"] == "8,12,16"
    assert shown["anneal_epochs"] == "13"
    assert shown["lr"] == "0.002"
    assert shown["weight_decay"] == "0"
    assert shown["flip"] == "no"
    assert not os.path.exists("runs")


def test_an_explicit_milestone_is_not_scaled(capsys):
    main(
        [
            "train",
            "--recipe",
            "paper",
            "--epochs",
            "20",
            "--milestones",
            "5,10",
            "--anneal-epochs",
            "7",
            "--show-recipe",
        ]
    )
    text = capsys.readouterr().out
    assert "milestones     5,10 " in text
    assert "anneal_epochs  7 " in text


def test_dry_run_prints_the_plan_and_writes_nothing(capsys):
    arguments = ["train", "--model", "resnet8", "--epochs", "5", "--device", "cpu", "--dry-run"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == PLAN
    assert main([*arguments, "--law", "annealed"]) == 0
    assert "layers share" not in capsys.readouterr().out
    assert os.listdir() == []


def test_train_then_resume(capsys):
    arguments = "train --model resnet8 --epochs 3 --sparsity 0.8 --lr 0.01 --seed 2 --out r --device cpu"
    assert main(arguments.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("r\nepoch 1/3  loss ")
    assert re.search(r"parameters left, reached a test accuracy of [\d.]+ %\.", out)
    assert out.endswith("See r/summary.md.\n")
    with open("r/run.json") as file:
        record = json.load(file)
    spec = RunSpec.from_dict(record["runs"][0])
    assert (spec.sparsity, spec.seed, spec.recipe.lr, spec.recipe.anneal_epochs) == (0.8, 2, 0.01, 2)
    assert record["command"] == "gibbsprune " + arguments
    assert main(["train", "--resume", "r"]) == 0
    assert "r is already finished" in capsys.readouterr().out


def test_several_seeds_are_one_fleet():
    assert main(["train", "--model", "resnet8", "--epochs", "2", "--seeds", "0,3-4", "--out", "r"]) == 0
    assert {"seed-0", "seed-3", "seed-4"} <= set(os.listdir("r"))


def test_include_and_exclude_reach_the_run():
    assert (
        main(
            [
                "train",
                "--epochs",
                "1",
                "--include",
                "layer1*",
                "--include",
                "layer2*",
                "--exclude",
                "*project",
                "--out",
                "r",
            ]
        )
        == 0
    )
    with open("r/run.json") as file:
        spec = json.load(file)["runs"][0]
    assert (spec["include"], spec["exclude"]) == (["layer1*", "layer2*"], ["*project"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("trian", "unknown command 'trian'; did you mean train?"),
        ("xyz", "unknown command 'xyz'; commands are train, sweep, compare"),
        ("--sparsity 0.9", "--sparsity stands before the command; commands are train, sweep, compare"),
        ("sweep", "gibbsprune sweep: ACTION is missing: allowed are run, status, report"),
        ("data", "gibbsprune data: ACTION is missing: allowed are get"),
        ("sweep go", "ACTION is 'go': allowed are run, status, report"),
        ("demo --epochs few", "--epochs is 'few': allowed are whole numbers"),
        ("export", "gibbsprune export: RUN is missing; see gibbsprune export --help"),
        ("train --weigth-decay 0.1", "unknown option --weigth-decay; did you mean --weight-decay?"),
        ("train --colour red", "unknown option --colour; see gibbsprune train --help"),
        ("train digits", "unexpected argument 'digits'; see gibbsprune train --help"),
        ("train --lr fast", "the recipe's lr is 'fast': allowed are numbers above 0"),
        ("train --milestones 9,3", "the recipe's milestones is (9, 3): allowed are rising epochs"),
        ("train --recipe beast", "recipe is 'beast': allowed are 'paper', 'modern', 'best', 'digits', 'plain'"),
        (
            "train --sparsity 90",
            "sparsity is 90.0: allowed are numbers from 0 up to but not 1",
        ),
        ("train --sparsity much", "--sparsity is 'much': allowed are numbers"),
        ("train --seed 1.5", "--seed is '1.5': allowed are whole numbers"),
        ("train --seeds 3-", "--seeds is '3-': allowed are different seeds such as 0-15 or 0,3,7"),
        ("train --seeds 1,1", "--seeds is '1,1': allowed are different seeds such as 0-15 or 0,3,7"),
        ("train --seeds 0-99999", "--seeds is '0-99999': allowed are at most 10,000 seeds"),
        ("train --seed 1 --seeds 0-3", "give --seed or --seeds, not both"),
        ("train --epochs 0", "--epochs is 0: allowed are whole numbers from 1"),
        (
            "train --checkpoint-every often",
            "--checkpoint-every is 'often': allowed are epochs such as 5 and seconds such as 60s",
        ),
        (
            "train --structure kernel --hamiltonian square",
            "hamiltonian is 'square': allowed are 'quadratic', 'sign', 'binary' with structure 'kernel'",
        ),
        ("train --device tpu", "device is 'tpu': allowed are 'auto', 'cpu', 'cuda' and 'cuda:<number>'"),
        (
            "train --device mps",
            "--device is 'mps': allowed are cpu and cuda; masks are drawn in float64, which mps does",
        ),
        ("train --device cuda:99", "device 'cuda:99' is not available: torch sees"),
        ("train --data cifar10", "CIFAR-10 is not at"),
        ("train --data birds.npz", "birds.npz"),
        (
            "train --data birds",
            "data is 'birds': allowed are 'digits', 'cifar10' and paths ending in",
        ),
        ("train --resume nowhere", "nowhere holds no run (it has no run.json)"),
        ("train --resume r --lr 0.1", "--resume continues a run as it was started; leave out --lr"),
        ("train --resume r --recipe paper", "--resume continues a run as it was started; leave out --recipe"),
        ("train --resume r --seed 0", "--resume continues a run as it was started; leave out --seed"),
        ("train --rank-timeout 0", "--rank-timeout is 0.0: allowed are numbers above 0 to 1e+09"),
        ("train --coupling nan", "--coupling is 'nan': allowed are numbers"),
        ("train --coupling 1", "'neighbours', 'channels', 'redundancy', not for 'square'"),
        (
            f"train --out {'x' * 300}",
            f"{'x' * 300}/run.json: File name too long",
        ),
        (f"export {'x' * 300}", f"{'x' * 300}/result.json: File name too long"),
        ("train --out r\udcff", "'r\\udcff' is not text in UTF-8; choose another name"),
        (
            f"sweep run {REHEARSAL} --address h:1 --dry-run",
            "--address h:1 is of a Ray cluster; give --engine ray as well",
        ),
        (f"sweep run {REHEARSAL} --cpus 1 --dry-run", "--cpus 1.0 is of a Ray cluster; give --engine ray as well"),
        ("train --method dense --sparsity 0.5", "--sparsity is for methods that prune, not for 'dense'"),
        ("train --method dense --structure kernel", "--structure is for methods that prune, not for 'dense'"),
        ("train --data=", "--data has an empty value; give it one, or leave it out"),
        ("data get mnist", "unknown data set 'mnist'; cifar10 can be fetched, digits needs no download"),
        ("describe resnet21", "resnet21"),
    ],
)
def test_mistakes_are_one_sentence_and_status_two(capsys, arguments, sentence):
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("gibbsprune: ")
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    assert not os.path.exists("runs")


@pytest.mark.parametrize(
    "arguments", [["train", "--out", ""], ["train", "--method", "reinit", "--from", " "], ["sweep", "report", ""]]
)
def test_an_empty_word_is_not_a_value(capsys, arguments):
    assert main(arguments) == 2
    told = arguments[-2] if arguments[-2].startswith("--") else "an argument"
    assert capsys.readouterr().err == f"gibbsprune: {told} has an empty value; give it one, or leave it out\n"


def test_output_that_cannot_be_written_is_one_sentence(capsys):
    with open("file", "w") as file:
        file.write("in the way")
    assert main(["train", "--epochs", "1", "--out", "file/r"]) == 2
    assert "gibbsprune: cannot write file/r: Not a directory;" in capsys.readouterr().err


def ctrl_c(fleet, step):
    if (fleet.epoch, step) == (1, 0):
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_has_status_130(place, capsys):
    place.on_step = lambda fleet, step: os.kill(os.getpid(), signal.SIGINT) if fleet.epoch == 1 and step == 0 else None
    assert main(["train", "--epochs", "4", "--out", "r"]) == 130
    assert "stopped, saved after epoch 2 of 4; continue with: gibbsprune train --resume r" in capsys.readouterr().out
    place.on_step = None
    assert main(["train", "--resume", "r"]) == 0


def test_own_data_is_found_from_anywhere(tmp_path, monkeypatch, place):
    x = np.zeros((4, 8, 8, 1), dtype=np.uint8)
    np.savez("own.npz", x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 0, 1])
    place.on_step = lambda fleet, step: os.kill(os.getpid(), signal.SIGINT) if fleet.epoch == 1 and step == 0 else None
    assert main(["train", "--data", "own.npz", "--epochs", "3", "--out", "r"]) == 130
    place.on_step = None
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["train", "--resume", "../r"]) == 0


def form(accuracy, weights, size, milliseconds):
    return {"accuracy": accuracy, "weights": weights, "bytes": size, "ms": milliseconds}


@pytest.fixture
def costs(monkeypatch):
    """What the demo measures of real networks (test_commands.py runs it as it is)."""
    found = {
        "dense, PyTorch": form(0.99, 77_322, 310_000, 3.0),
        "dense, C": form(0.99, 77_322, 310_000, 1.8),
        "pruned, PyTorch": form(0.98, 8_667, 31_000, 3.1),
        "pruned, C": form(0.98, 8_667, 31_000, 0.3),
    }
    monkeypatch.setattr(demo, "measured", lambda dense, gibbs, structure: found)
    return found


def test_the_demo_compares_and_can_be_run_again(capsys, costs):
    assert main(["demo", "--epochs", "2"]) == 0
    text = capsys.readouterr().out
    assert "|                 | test accuracy | weights | file (kB) | ms for 128 images |" in text
    assert "| pruned, C       |       98.00 % |   8,667 |        31 |              0.30 |" in text
    assert (
        "10.0 times smaller and 6.0 times faster in C (10.0 times faster than dense, PyTorch), for 1.0 points of "
        "accuracy less" in text
    )
    assert "runs/demo-gibbs/summary.md" in text
    assert "\n  gibbsprune train --model resnet8 --sparsity 0.95\n" in text
    assert main(["demo", "--epochs", "2"]) == 0
    alike = {name: costs[name] for name in ("dense, PyTorch", "pruned, PyTorch")}
    assert "10.0 times smaller and 1.0 times faster, for 1.0 points" in demo.in_a_line(alike)


def test_the_demo_never_replaces_what_is_not_its_own(capsys, costs):
    assert main(["demo", "--epochs", "1"]) == 0
    note, exported = Path("runs/demo-gibbs/notes.txt"), Path("runs/demo-gibbs/model.packed")
    note.write_text("mine")
    exported.write_text("of the demo")
    capsys.readouterr()
    assert main(["demo", "--epochs", "1"]) == 2
    assert "runs/demo-gibbs holds notes.txt, which is not the demo's; move it" in capsys.readouterr().err
    assert note.read_text() == "mine"
    note.rename("runs/demo-gibbs/picture.png")
    assert main(["demo", "--epochs", "1"]) == 2
    assert "runs/demo-gibbs holds picture.png, which is not the demo's; move it" in capsys.readouterr().err
    Path("runs/demo-gibbs/picture.png").unlink()
    for wrong in (["--epochs", "0"], ["--device", "tpu"]):
        assert main(["demo", *wrong]) == 2
        assert Path("runs/demo-dense/run.json").exists(), "a refused demo removes nothing"
    assert main(["demo", "--epochs", "1"]) == 0
    assert not exported.exists()


def test_the_demo_never_replaces_another_run(capsys):
    assert main(["train", "--epochs", "1", "--out", "runs/demo-dense"]) == 0
    assert main(["demo"]) == 2
    assert "runs/demo-dense holds a run that is not the demo's" in capsys.readouterr().err


def test_data_get_reports_its_progress(capsys, monkeypatch):
    from gibbsprune.data import cifar10

    def fetch(root=None, progress=None):
        for done in (0, 5, 50, 51, 100):
            progress("cifar-10-binary.tar.gz", done, 100)
        return "data/cifar10.npz"

    monkeypatch.setattr(cifar10, "get_cifar10", fetch)
    assert main(["data", "get", "cifar10"]) == 0
    assert capsys.readouterr().out == (
        "cifar-10-binary.tar.gz: 0 %\ncifar-10-binary.tar.gz: 50 %\ncifar-10-binary.tar.gz: 100 %\n"
        "CIFAR-10 is ready, verified, at data/cifar10.npz\nTrain with it: gibbsprune train --data cifar10\n"
    )


def test_a_warning_of_a_command_is_one_line(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(sys, "argv", ["gibbsprune", "describe", "resnet8"])
    assert main() == 0
    assert warnings.formatwarning("not so fast", UserWarning, "file.py", 7, "code()") == "warning: not so fast\n"


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "gibbsprune"], capture_output=True, text=True, check=True)
    assert done.stdout == HELP


def test_a_terminal_that_cannot_show_a_beta(tmp_path):
    code = "import sys; from gibbsprune.cli import main; sys.exit(main(['--help']))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
