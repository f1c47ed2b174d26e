"""An environment with torch and numpy alone: import, help, pruning; a sentence for whatever an extra would bring."""

import os
import resource
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def needed(*names):
    """The distributions that these need, themselves included."""
    found, queue = {}, list(names)
    while queue:
        name = queue.pop().lower().replace("_", "-")
        if name not in found:
            found[name] = metadata.distribution(name)
            wanted = map(Requirement, found[name].requires or [])
            queue += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A new environment that holds links to torch, numpy and what these need, and the source of this package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for dist in needed("torch", "numpy").values():
        for top in {Path(str(file)).parts[0] for file in dist.files or []} - {"..", "__pycache__"}:
            source = Path(str(dist.locate_file(top)))
            if source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    (packages / "gibbsprune.pth").write_text(str(ROOT / "src"))
    for extra in ("sklearn", "safetensors", "matplotlib", "rich", "onnx", "yaml"):
        assert not (packages / extra).exists()
    return folder / "bin" / "python"


def run(python, *arguments, folder=None):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run([str(python), *arguments], capture_output=True, text=True, cwd=folder, env=environment)


def test_version_and_help_take_no_time(bare):
    """Under 0.4 seconds of CPU each, as torch is not loaded; the help of ``train`` lists what the methods say."""
    for arguments in (
        ["--version"],
        ["--help"],
        [],
        ["export", "--help"],
        ["profile", "--help"],
        ["sweep", "--help"],
        ["sweep", "run", "--help"],
        ["compare", "--help"],
        ["tune", "--help"],
        ["demo", "--help"],
        ["data", "--help"],
        ["describe", "--help"],
        ["trian"],
    ):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run(bare, "-m", "gibbsprune", *arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == (2 if arguments == ["trian"] else 0), done.stderr
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert took < 0.4, f"{arguments}: {took:.2f} s"


def test_every_public_name_is_there_and_loaded_when_asked_for():
    code = (
        "import sys, gibbsprune as gp\n"
        "assert 'torch' not in sys.modules and set(gp.__all__) <= set(dir(gp))\n"
        "for name in gp.__all__: getattr(gp, name)\n"
        "import gibbsprune.threshold\n"
        "assert callable(gp.threshold) and gp.law.sample is gp.sample and gp.threshold.__name__ == 'threshold'\n"
        "assert not hasattr(gp, 'nothing')"
    )
    done = run(sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{code}")
    assert done.returncode == 0, done.stderr


SCRIPT = """
import torch, gibbsprune as gp
from gibbsprune.cli import main
from gibbsprune.models import build

model = build("resnet8", 10, 3)
pruner = gp.GibbsPruner(model, 0.5, "filter", epochs=1)
pruner.step()
model = pruner.finalize()
x = torch.zeros(2, 3, 8, 8)
assert torch.allclose(gp.compact(model, x)(x), model.eval()(x), atol=1e-4)

def told(call):
    try:
        call()
    except gp.UserError as error:
        print(error)

told(lambda: gp.data.load("digits"))
told(lambda: gp.save_packed(model, "x"))
told(lambda: gp.export_onnx(model, x, "x"))
told(lambda: __import__("gibbsprune.integrations.lightning").integrations.lightning.GibbsPruning(0.5))
told(lambda: __import__("gibbsprune.integrations.transformers"))
for line in ("train --model resnet8", "train --data own.npz", "sweep run x.yaml", "sweep run x.py",
             "profile resnet8 --size 8 --rounds 1"):
    print(main(line.split()), flush=True)
"""


def test_whatever_an_extra_would_bring_is_told_in_a_sentence(bare, tmp_path):
    import numpy as np

    images, labels = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    (tmp_path / "x.yaml").write_text("base: {data: digits}\n")
    (tmp_path / "x.py").write_text(
        "from gibbsprune.training.spec import RunSpec\ndef runs(): return [RunSpec('own.npz', 'resnet8', epochs=1)]\n"
    )
    done = run(bare, "-c", SCRIPT, folder=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    for sentence in (
        "the data set digits needs the package scikit-learn; install it with: pip install 'gibbsprune[demo]'",
        "packed files need safetensors: pip install 'gibbsprune[export]'",
        "ONNX needs the package onnx: pip install 'gibbsprune[export]'",
        "GibbsPruning needs Lightning: pip install 'gibbsprune[lightning]'",
        "GibbsPruningCallback needs Transformers: pip install 'gibbsprune[transformers]'",
    ):
        assert sentence in done.stdout
    for sentence in (
        "a run needs the package safetensors; install it with: pip install 'gibbsprune[demo]'",
        "a sweep needs the package safetensors; install it with: pip install 'gibbsprune[demo]'",
        "x.yaml needs the package PyYAML; install it with: pip install 'gibbsprune[sweep]'",
    ):
        assert sentence in done.stderr
    assert all(line.startswith("gibbsprune: ") for line in done.stderr.splitlines() if "Warning" not in line)
