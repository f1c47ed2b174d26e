"""Places: plain paths need nothing, everything else goes through fsspec."""

from __future__ import annotations

import builtins
import uuid
from pathlib import Path

import pytest
import torch

from gibbsprune.cli import main
from gibbsprune.errors import UserError
from gibbsprune.files import WriteError, write_atomic
from gibbsprune.sweeps import results
from gibbsprune.training import checkpoint, places
from gibbsprune.training.places import Remote, place

pytest.importorskip("fsspec", reason="needs fsspec")
REHEARSAL = str(Path(__file__).parents[1] / "examples" / "rehearsal.yaml")


@pytest.fixture
def memory() -> Remote:
    """A folder in memory that no other test knows."""
    found = place(f"memory://{uuid.uuid4().hex}")
    assert isinstance(found, Remote)
    return found


@pytest.fixture(params=["memory", "local"])
def remote(request, tmp_path, memory) -> Remote:
    return memory if request.param == "memory" else place(f"local://{tmp_path}/there")


def test_paths_and_file_urls_are_plain_paths(monkeypatch):
    def refuse(name, *others, **more):
        assert not name.startswith("fsspec")
        return original(name, *others, **more)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert place("a/b") == Path("a/b")
    assert place(Path("a")) == Path("a")
    assert place("file:///a/b%20c") == Path("/a/b c")


def test_a_place_is_used_like_a_path(remote):
    file = remote / "deep" / "one.json"
    assert not file.exists()
    assert list(remote.glob("*")) == []
    write_atomic(file, "first")
    write_atomic(file, b"second")
    write_atomic(remote / "two.json", "2")
    assert (file.read_bytes().decode(), file.name, file.stem, str(file)) == (
        "second",
        "one.json",
        "one",
        f"{remote}/deep/one.json",
    )
    assert file.parent == remote / "deep"
    assert file.parent.parent == remote
    assert place("memory://bucket").parent == place("memory://bucket")
    assert place(str(file)) == file
    assert len({file, remote / "deep" / "one.json"}) == 1
    assert remote.is_dir()
    assert not file.is_dir()
    assert list(remote.glob("*.json")) == [remote / "two.json"]
    assert list(remote.glob("de*/*.json")) == [file]
    file.unlink()
    file.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        file.unlink()
    with pytest.raises(FileNotFoundError):
        file.read_bytes()
    places.remove_folder(remote)
    places.remove_folder(remote)
    assert not (remote / "two.json").exists()


def test_checkpoints_are_kept_and_verified_there(remote):
    for epoch in range(1, 5):
        checkpoint.save(remote / "work", epoch, {"x": torch.full((2,), float(epoch))}, keep=2)
    assert [number for number, _ in checkpoint.checkpoints(remote / "work")] == [3, 4]
    last = checkpoint.checkpoints(remote / "work")[-1][1]
    write_atomic(last, last.read_bytes()[:-3])
    said = []
    epoch, state = checkpoint.load_latest(remote / "work", said.append)
    assert (epoch, state["x"].tolist()) == (3, [3.0, 3.0])
    assert said == [
        f"checkpoint {last} is damaged or incomplete (its checksum does not match); going back to the one before"
    ]


def test_errors_of_a_filesystem_are_told_in_a_sentence(memory, monkeypatch):
    class Refused(Exception):
        """As some filesystems raise, which is no OSError."""

    def refuse(*arguments, **options):
        raise Refused("no entry")

    for name in ("pipe_file", "find", "exists"):
        monkeypatch.setattr(memory.fs, name, refuse, raising=False)
    with pytest.raises(WriteError, match=f"^cannot write {memory}/x: Refused: no entry; what was saved before"):
        write_atomic(memory / "x", "")
    with pytest.raises(UserError, match=f"^cannot look into {memory}: Refused: no entry$"):
        results.names(memory)
    with pytest.raises(UserError, match="cannot look into"):
        memory.exists()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nowhere://x", "nowhere://x cannot be opened: Protocol not known: nowhere"),
        ("dropbox://x", "dropbox://x cannot be"),
    ],
)
def test_unknown_filesystems_are_told(url, sentence):
    with pytest.raises(UserError, match=f"^{sentence}"):
        place(url)


def test_without_fsspec_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(
        UserError, match=r"^s3://a/b needs the package fsspec; install it with: .*gibbsprune\[cluster\]"
    ):
        place("s3://a/b")


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--engine dask", "--engine is 'dask': allowed are 'local', 'ray'"),
        ("--address 10.0.0.1:6379", "--address 10.0.0.1:6379 is of a Ray cluster; give --engine ray as well"),
        (
            "--engine ray --results memory://r",
            "memory://r is seen by one process alone; several need a folder or a store",
        ),
        ("--workers 2 --work memory://w", "memory://w is seen by one process alone"),
        ("--engine ray --device cuda:1", "--device is 'cuda:1', but on a cluster it must be auto, cpu or cuda"),
        ("--engine ray --address 127.0.0.1:1", "no Ray cluster answers at 127.0.0.1:1: "),
        ("--cpus 0", "--cpus is 0.0: allowed are numbers above 0"),
        ("--gpus -1", "--gpus is -1.0: allowed are numbers from 0"),
        ("--results nowhere://x", "nowhere://x cannot be opened"),
    ],
)
def test_mistakes_are_told_in_one_sentence(options, sentence, capsys, tmp_path, monkeypatch):
    if "127.0.0.1:1" in options:
        pytest.importorskip("ray", reason="needs Ray")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "run", REHEARSAL, *options.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gibbsprune: {sentence}")
    assert error.count("\n") == 1


def test_without_ray_the_extra_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert main(["sweep", "run", REHEARSAL, "--engine", "ray"]) == 2
    expected = "gibbsprune: --engine ray needs the package ray; install it with: pip install 'gibbsprune[cluster]'\n"
    assert capsys.readouterr().err == expected
