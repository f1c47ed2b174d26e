"""Files: whole or not there, no planted link followed, damaged JSON told in one sentence, locks."""

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from gibbsprune import files
from gibbsprune.errors import UserError


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_crash_at_any_step_leaves_the_old_file(tmp_path, monkeypatch, step):
    target = tmp_path / "file.json"
    files.write_atomic(target, "old")

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, step, crash)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.json"]


def test_leftovers_of_a_killed_process_are_cleaned(tmp_path):
    (tmp_path / ".file.json.123.tmp").write_text("part")
    (tmp_path / "kept.json").write_text("whole")
    files.clean(tmp_path)
    assert os.listdir(tmp_path) == ["kept.json"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    files.write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_pipes_and_devices_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe: it is no ordinary file$"):
        files.write_atomic(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo()


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("mine")
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "ab")
    (tmp_path / ".file.ab.tmp").symlink_to(tmp_path / "secret")
    with pytest.raises(files.WriteError, match=r"file: File exists; what was saved before is untouched$"):
        files.write_atomic(tmp_path / "file", "new")
    assert (tmp_path / "secret").read_text() == "mine"


def test_a_file_has_the_rights_of_any_new_file(tmp_path):
    (tmp_path / "usual").write_text("x")
    files.write_atomic(tmp_path / "file", "x")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_cleaning_goes_below_and_leaves_what_is_not_ours(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    ours = tmp_path / "checkpoints" / files.temporary_name("epoch-000001.ckpt")
    ours.write_text("part")
    (tmp_path / ".notes.tmp").write_text("a user's")
    files.clean(tmp_path)
    assert not ours.exists()
    assert (tmp_path / ".notes.tmp").exists()


def test_json_holds_no_nan(tmp_path):
    files.write_json(tmp_path / "x.json", {"a": float("nan"), "b": (1, float("inf")), 3: "c"})
    assert files.read_json(tmp_path / "x.json") == {"a": None, "b": [1, None], "3": "c"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"a": ' * 100_000, "it is nested too deeply"),
        (b'{"a": 1e999}', "the number 1e999 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "the number 99999999999999999999… is too large"),
        (b"[1, 2]", "it holds no JSON object"),
        (b"null", "it holds no JSON object"),
        (b'{"a": "\xff"}', "'utf-8' codec can't decode byte"),
        (b"", "Expecting value"),
        (b'{"a": 1', "Expecting"),
    ],
)
def test_damaged_json_is_one_sentence(tmp_path, content, sentence):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(files.ReadError) as caught:
        files.read_json(tmp_path / "x.json")
    assert str(caught.value).startswith(f"{tmp_path / 'x.json'} cannot be read: {sentence}")


def test_no_memory_is_one_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    (tmp_path / "x.json").write_text("{}")
    monkeypatch.setattr(json, "loads", full)
    with pytest.raises(files.ReadError, match=r"x\.json cannot be read"):
        files.read_json(tmp_path / "x.json")


def test_a_missing_file_and_a_folder_are_told(tmp_path):
    with pytest.raises(files.Missing, match=r"^there is no .*x\.json$"):
        files.read_json(tmp_path / "x.json")
    with pytest.raises(files.Missing):
        files.read_json(tmp_path / "x.json" / "y.json")
    with pytest.raises(files.ReadError, match="Is a directory"):
        files.read_json(tmp_path)


def test_random_damage_never_gives_a_traceback(tmp_path):
    content = bytearray(
        files.json_text({"runs": [{"seed": 3, "settings": {"lr": 0.1}}], "name": "ä", "x": None}).encode()
    )
    random = np.random.default_rng(0)
    told = []
    for _ in range(2000):
        changed = bytearray(content)
        for place in random.integers(len(changed), size=int(random.integers(1, 4))):
            changed[place] = random.integers(256)
        try:
            files.parse_json(bytes(changed), "x")
        except UserError as error:
            told.append(str(error))
    assert len(told) > 1000
    assert not any("\n" in sentence for sentence in told)


WAITER = """
import sys
from gibbsprune.files import Busy, Lock
try:
    Lock(sys.argv[1], busy="taken")
except Busy as error:
    print(error)
else:
    print("free")
"""


@pytest.mark.parametrize("folder", [True, False])
def test_a_lock_is_for_one_process(tmp_path, folder):
    path = tmp_path if folder else tmp_path / ".lock"
    ask = [sys.executable, "-c", WAITER, str(path)]
    with files.Lock(path):
        assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "taken\n"
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "free\n"


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(files.WriteError, match=r"cannot write .*file/inner: Not a directory"):
        files.make_folder(tmp_path / "file" / "inner")


def test_where_there_is_no_home_the_variable_is_named(monkeypatch, tmp_path):
    """As in a container that runs as a user of no name."""
    for name in ("HOME", "GIBBSPRUNE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 123456)
    with pytest.raises(UserError, match=r"^there is no home folder: set the variable GIBBSPRUNE_CACHE "):
        files.kept_in("GIBBSPRUNE_CACHE", "c")
    monkeypatch.setenv("GIBBSPRUNE_CACHE", str(tmp_path))
    assert files.kept_in("GIBBSPRUNE_CACHE", "c") == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.kept_in("OTHER_VARIABLE", "c") == tmp_path / ".cache" / "gibbsprune" / "c"
