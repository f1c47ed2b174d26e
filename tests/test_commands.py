"""Every command that README, tutorial and demo print works as printed, in order, in a clean copy of the repository.

Only what would take long is cut short: trainings on CIFAR-10 are tried with ``--dry-run``, others have one epoch, and
pages are not built. What comes out of the tutorial is used by programs that know nothing of gibbsprune.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

import fake_cifar10
from gibbsprune.data import load

pytest.importorskip("sklearn")
pytest.importorskip("safetensors")

ROOT = Path(__file__).parents[1]
#: What a command gets in addition, by how it begins; the last value of an option counts.
SHORTER = {
    r"gibbsprune train --data cifar10": "--dry-run",
    r"gibbsprune sweep run paper/": "--dry-run --only '*-resnet20-*-s0'",
    r"gibbsprune compare": "--epochs 1 --seeds 0 --methods dense,gibbs",
    r"gibbsprune train --model": "--epochs 1",
    r"gibbsprune profile": "--rounds 1",
    r"--seeds 0-3": "--seeds 0-1",
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What git has of the repository, with an environment of its own that sees the packages of this one."""
    if shutil.which("make") is None or not (ROOT / ".git").exists():
        pytest.skip("a clone of the repository and make are needed")
    folder = tmp_path_factory.mktemp("clone") / "gibbsprune"
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    environment = folder / ".venv"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "all.pth").write_text(f"{folder / 'src'}\n{sysconfig.get_path('purelib')}\n")
    program = environment / "bin" / "gibbsprune"
    program.write_text(
        f"#!{environment}/bin/python\nimport sys\nfrom gibbsprune.cli import main\nsys.exit(main())\n", encoding="utf-8"
    )
    program.chmod(0o755)
    for stamp in (".installed", ".demo"):
        (environment / stamp).touch()
    data = folder.parent / "data"
    data.mkdir()
    with fake_cifar10.serve(fake_cifar10.archive()) as server:
        fake_cifar10.get(server, data)
    return folder


def commands(text):
    """The commands of the blocks for a shell, as printed, without their remarks."""
    for block in re.findall(r"^```sh\n(.*?)^```$", text, flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if command := re.sub(r"\s+# .*", "", line).strip():
                yield command


def shell(folder, lines):
    """Run lines one after the other in one shell, as somebody would type them; what they print."""
    for pattern, more in SHORTER.items():
        lines = [f"{line} {more}" if re.search(pattern, line) else line for line in lines]
    lines = [re.sub("^make (test|paper|docs)$", r"make -n \1", line) for line in lines]
    environment = {
        **os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": "", "OMP_NUM_THREADS": "1",
        "GIBBSPRUNE_DATA": str(folder.parent / "data"), "GIBBSPRUNE_CACHE": str(folder.parent / "cache"),
    }  # fmt: skip
    script = "set -e\n" + "\n".join(f"echo '$ {line}'\n{line}" for line in lines)
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_commands_of_the_readme_and_those_that_its_demo_prints(clone):
    lines = list(commands((clone / "README.md").read_text(encoding="utf-8")))
    assert lines[:2] == ["make demo", ". .venv/bin/activate"]
    assert len(lines) >= 12
    text = shell(clone, lines)
    demo = text.partition("$ . .venv/bin/activate")[0]
    smaller = float(re.search(r"([\d.]+) times smaller", demo)[1])
    faster = float(re.search(r"([\d.]+) times faster", demo)[1])
    assert smaller > 3
    assert faster > 1.2
    assert (clone / "runs/demo-gibbs/demo.png").exists()
    printed = [line.strip() for line in demo.partition("Try next")[2].splitlines() if "gibbsprune " in line]
    assert len(printed) == 4
    assert all(line.startswith(".venv/bin/gibbsprune ") for line in printed), "not activated yet when they are printed"
    shell(clone, printed)


READER = """
import json, sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
(scores,) = session.run(None, {"input": np.load(sys.argv[2])})
names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
assert "torch" not in sys.modules and "gibbsprune" not in sys.modules
print(*[names[i] for i in scores.argmax(1)])
"""

PROGRAM = """
#include <stdio.h>
#include "net.h"
static net_model model;
static net_context context;
static uint8_t pixels[NET_INPUT];
static float scores[NET_OUTPUT];
int main(void) {
  net_load(net_weights, &model);
  net_init(&context);
  while (fread(pixels, NET_INPUT, 1, stdin) == 1) {
    int best = 0;
    net_run(&model, &context, 1, pixels, scores);
    for (int i = 1; i < NET_OUTPUT; i++) if (scores[i] > scores[best]) best = i;
    puts(net_classes[best]);
  }
  return 0;
}
"""


@pytest.mark.slow
def test_the_tutorials_files_are_used_by_programs_that_know_nothing_of_us(clone, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    lines = list(commands((clone / "docs" / "tutorial.md").read_text(encoding="utf-8")))
    shell(clone, [". .venv/bin/activate", *lines])
    run = clone / "runs" / "tutorial"
    said = json.loads((run / "result.json").read_text())["accuracy"]
    digits = load("digits")
    pixels, labels = digits.x_test.numpy(), digits.y_test.numpy()

    def accuracy(words):
        return np.mean([word == str(label) for word, label in zip(words.split(), labels, strict=True)])

    np.save(tmp_path / "pixels.npy", pixels)
    reader = [sys.executable, "-c", READER, str(run / "model.onnx"), str(tmp_path / "pixels.npy")]
    done = subprocess.run(reader, capture_output=True, text=True, check=True, cwd=tmp_path, env={"PATH": os.defpath})
    assert accuracy(done.stdout) == pytest.approx(said)
    assert said > 0.93
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "own.c").write_text(PROGRAM)
    flags = ["-O1", "-ffp-contract=fast", f"-I{run / 'c'}"]
    build = [compiler, *flags, "own.c", str(run / "c" / "net.c"), "-lm", "-o", "own"]
    subprocess.run(build, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "own"], input=pixels.tobytes(), capture_output=True, check=True)
    assert accuracy(done.stdout.decode()) == pytest.approx(said)
