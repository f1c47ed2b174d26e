"""Checkpoints: whole or not there, verified, the newest usable one found, nothing lost on a bad disk."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

from gibbsprune.errors import UserError
from gibbsprune.training import checkpoint


def state(value):
    return {"weights": [torch.full((3, 4), float(value))], "epoch": value, "name": "x", "nested": {"lr": 0.1}}


def test_round_trip(tmp_path):
    checkpoint.save(tmp_path / "new", 3, state(3))
    epoch, loaded = checkpoint.load_latest(tmp_path / "new")
    assert epoch == 3
    assert torch.equal(loaded["weights"][0], state(3)["weights"][0])
    assert loaded["nested"] == {"lr": 0.1}


def test_the_first_line_is_the_checksum(tmp_path):
    import hashlib

    path = checkpoint.save(tmp_path, 1, state(1))
    header, _, payload = path.read_bytes().partition(b"\n")
    assert header.decode() == "gibbsprune-checkpoint sha256 " + hashlib.sha256(payload).hexdigest()


def test_the_last_two_are_kept(tmp_path):
    for epoch in range(1, 6):
        checkpoint.save(tmp_path, epoch, state(epoch))
    assert sorted(os.listdir(tmp_path)) == ["epoch-000004.ckpt", "epoch-000005.ckpt"]


def test_no_folder_and_no_checkpoint_is_none(tmp_path):
    assert checkpoint.load_latest(tmp_path / "missing") is None
    assert checkpoint.load_latest(tmp_path) is None


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "header"])
def test_a_damaged_newest_falls_back_with_a_warning(tmp_path, damage):
    for epoch in (1, 2):
        newest = checkpoint.save(tmp_path, epoch, state(epoch))
    content = bytearray(newest.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    elif damage == "flipped":
        content[-20] ^= 1
    else:
        content[0] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=r"epoch-000002.ckpt is damaged or incomplete .*; going back to the one"):
        epoch, loaded = checkpoint.load_latest(tmp_path)
    assert (epoch, loaded["epoch"]) == (1, 1)


def test_all_damaged_is_one_sentence(tmp_path):
    for epoch in (1, 2):
        checkpoint.save(tmp_path, epoch, state(epoch)).write_bytes(b"nothing")
    told = []
    with pytest.raises(UserError) as caught:
        checkpoint.load_latest(tmp_path, warn=told.append)
    assert str(caught.value) == f"no usable checkpoint in {tmp_path}: all 2 there are damaged"
    assert len(told) == 1


def test_a_pickle_is_never_run(tmp_path):
    """A file with a valid checksum that asks for code to be run is refused."""
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    payload = pickle.dumps(Evil())
    header = b"gibbsprune-checkpoint sha256 " + hashlib.sha256(payload).hexdigest().encode() + b"\n"
    (tmp_path / "epoch-000001.ckpt").write_bytes(header + payload)
    with pytest.raises(UserError, match="no usable checkpoint"):
        checkpoint.load_latest(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_after_a_fall_back_the_abandoned_future_goes(tmp_path):
    for epoch in (4, 5):
        checkpoint.save(tmp_path, epoch, state(epoch))
    checkpoint.save(tmp_path, 2, state(2))
    assert checkpoint.load_latest(tmp_path)[0] == 2


FULL = """
import resource, signal, sys
from pathlib import Path
from gibbsprune.errors import UserError
from gibbsprune.training import checkpoint
import torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
checkpoint.save(Path(sys.argv[1]), 1, {"w": torch.zeros(10)})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoint.save(Path(sys.argv[1]), 2, {"w": torch.zeros(100_000)})
except UserError as error:
    print(error)
"""


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    """A limit on the file size stands for the full disk: writing fails part of the way."""
    folder = tmp_path / "checkpoints"
    done = subprocess.run([sys.executable, "-c", FULL, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"cannot write {folder / 'epoch-000002.ckpt'}: File too large; what was saved")
    assert os.listdir(folder) == ["epoch-000001.ckpt"]
    assert checkpoint.load_latest(folder)[0] == 1


def test_no_space_left_is_one_sentence(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    checkpoint.save(tmp_path, 1, state(1))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"epoch-000002.ckpt: No space left on device; what was saved before is"):
        checkpoint.save(tmp_path, 2, state(2))
    assert os.listdir(tmp_path) == ["epoch-000001.ckpt"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write .*file/checkpoints: Not a directory"):
        checkpoint.save(tmp_path / "file" / "checkpoints", 1, state(1))


def test_nothing_here_warns(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.save(tmp_path, 1, state(1))
        checkpoint.load_latest(tmp_path)
