"""Every format that is read, damaged at random from a fixed seed: each is read or refused in one sentence.

Bytes are flipped, cut, repeated and exchanged for large numbers and deep nestings; values of states and records are
left out and exchanged for others. Checksums are put right again, so that the damage reaches what lies behind them.
"""

import copy
import hashlib
import io
import json
import random
import warnings
import zlib
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

import gibbsprune as gp
from gibbsprune.data import load, load_npz
from gibbsprune.errors import UserError
from gibbsprune.export import packed
from gibbsprune.files import json_text
from gibbsprune.sweeps import declare, pace
from gibbsprune.training import checkpoint, pictures, result, run
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.folder import RunFolder, read_metrics
from gibbsprune.training.session import Session
from gibbsprune.training.snapshots import load_snapshots, save_snapshot
from gibbsprune.training.spec import RunSpec

SEED = 23
NASTY = (
    None, True, -1, 0, 2**70, 1e300, -0.5, "", "x", "9" * 400, "x\x00y\n", [], [1], {}, {"a": 1}, [[[[]]]], "../../x",
)  # fmt: skip
TENSORS = (torch.zeros(0), torch.ones(3), torch.zeros(2, 2, dtype=torch.int64), torch.tensor(float("nan")))
TOKENS = (b"9" * 400, b"[" * 3000, b'{"a":' * 3000, b"\xff", b"null", b"-1", b"1e999", b"\x00" * 9, b"\xff" * 8)


def torn(content, chance):
    """Bytes with one to three wounds."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        to = min(len(data), at + chance.randint(1, 40))
        kind = chance.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at:to]
        elif kind == 2:
            data[at:at] = data[at:to]
        elif kind == 3:
            data[at:to] = chance.choice(TOKENS)
        elif kind == 4:
            data[at:to] = chance.randbytes(to - at)
        else:
            del data[at if chance.random() < 0.5 else max(0, len(data) - 30) :]
    return bytes(data)


def places(value, path=()):
    """Every place in nested dicts and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(value, chance, tensors=()):
    """Nested dicts and lists with one or two values left out, exchanged or added."""
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 2)):
        every = list(places(value))
        if not every:
            return value
        *path, last = chance.choice(every)
        inside = value
        for key in path:
            inside = inside[key]
        other = chance.choice((*NASTY, *tensors))
        if chance.random() < 0.25:
            del inside[last]
        elif chance.random() < 0.1 and isinstance(inside, dict):
            inside["new"] = other
        else:
            inside[last] = copy.deepcopy(other)
    return value


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole run, and the spec of its fleet."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    spec = RunSpec(model="own_networks:normless", epochs=1)
    with patch.object(pictures, "available", lambda: False):
        run.start([spec], out=folder, device="cpu")
    return folder


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6)
        self.tied = nn.Linear(8, 6)
        self.tied.weight = self.last.weight


def try_all(count, make, read, refused):
    """How many of ``count`` damaged things were refused; whatever is raised else is the test's failure."""
    sentences = []
    for number in range(count):
        chance = random.Random(SEED + number)
        thing = make(chance)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(thing)
        except UserError as error:
            sentences.append(str(error))
        except BaseException as error:
            raise AssertionError(f"damage {number} of {thing!r:.300}") from error
    assert not [sentence for sentence in sentences if "\n" in sentence or len(sentence) > 2000]
    assert len(sentences) >= refused * count, f"only {len(sentences)} of {count} were refused"


def test_records_of_runs(finished, tmp_path):
    """``run.json``, ``result.json``, ``metrics.jsonl`` and the times of a sweep: 4 000 times."""
    home = tmp_path / "home"
    home.mkdir()

    def record(name, read):
        whole = (finished / name).read_bytes()
        tree = json.loads(whole)

        def write(content):
            (home / name).write_bytes(content)
            read(home)

        try_all(1000, lambda chance: torn(whole, chance), write, 0.5)
        try_all(1000, lambda chance: json_text(changed(tree, chance)).encode(), write, 0.2)

    def open_folder(home):
        folder = RunFolder.open(home)
        run._options(folder)
        run._ranks_before(folder)
        run.how_to_resume(folder)

    record("run.json", open_folder)
    record("result.json", lambda home: result.read(home / "result.json"))


def test_lines_and_times_are_read_as_far_as_they_are_whole(finished, tmp_path):
    lines = (finished / "metrics.jsonl").read_bytes() * 3

    def metrics(content):
        (tmp_path / "metrics.jsonl").write_bytes(content)
        assert len(read_metrics(tmp_path / "metrics.jsonl")) <= 300

    try_all(500, lambda chance: torn(lines, chance), metrics, 0)
    times = [
        {"device": "cpu", "data": "digits", "model": "resnet8", "runs": 1, "epochs": 2, "seconds": 1.5, "start": 0}
    ]

    def pacing(content):
        (tmp_path / pace.RECORD).write_bytes(content)
        pace.records(tmp_path)

    try_all(500, lambda chance: json_text(changed(times * 2, chance)).encode(), pacing, 0)


def test_sweeps(tmp_path):
    text = b"base:\n  data: digits\n  model: resnet8\n  epochs: 2\ngrid:\n  sparsity: [0.5, 0.9]\n  seed: [0, 1]\n"
    (tmp_path / "sweep.yaml").write_bytes(text)
    assert len(declare.read(tmp_path / "sweep.yaml").declared({})) == 4

    def read(content):
        (tmp_path / "sweep.yaml").write_bytes(content)
        declare.read(tmp_path / "sweep.yaml")

    try_all(200, lambda chance: torn(text, chance), read, 0.2)


def signed(payload):
    return b"gibbsprune-checkpoint sha256 " + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def test_checkpoints(finished, tmp_path):
    """The file, and what a session takes from it."""
    (_, file), *_ = checkpoint.checkpoints(finished / "checkpoints")
    payload = file.read_bytes().partition(b"\n")[2]
    bad = tmp_path / "epoch-000001.ckpt"

    def read(content):
        bad.write_bytes(content)
        checkpoint.load(bad)

    try_all(300, lambda chance: torn(file.read_bytes(), chance), read, 0.99)
    try_all(700, lambda chance: signed(torn(payload, chance)), read, 0.3)
    state = checkpoint.load(file)
    fleet = Fleet([RunSpec(model="own_networks:normless", epochs=1)], load("digits"), device=torch.device("cpu"))

    def session(state):
        again = Session(fleet, tmp_path)
        again.load(state)
        again.curves()
        RunFolder(tmp_path, fleet.specs).write_metrics(again.history)

    try_all(300, lambda chance: changed(state, chance, TENSORS), session, 0.3)


def test_packed_networks(tmp_path):
    gp.save_packed(Net(), tmp_path / "net")
    content = (tmp_path / "net").read_bytes()
    parts = packed._parts("net", content)
    layout = json.loads(zlib.decompress(parts["layout"]))
    target = Net()

    def write(content):
        (tmp_path / "bad").write_bytes(content)
        gp.load_packed(tmp_path / "bad", target)

    def made(parts):
        import safetensors.torch

        tensors = {key: torch.frombuffer(bytearray(part), dtype=torch.uint8) for key, part in parts.items() if part}
        metadata = {"format": packed.FORMAT, "version": packed.VERSION, "sha256": packed._digest(parts)}
        return safetensors.torch.save(tensors, metadata=metadata)

    def other(chance):
        which = chance.choice(packed._PARTS)
        if which == "layout" and chance.random() < 0.8:
            return made({**parts, which: zlib.compress(json.dumps(changed(layout, chance)).encode())})
        if chance.random() < 0.5:
            return made({**parts, which: zlib.compress(torn(zlib.decompress(parts[which]), chance))})
        return made({**parts, which: torn(parts[which], chance)})

    try_all(500, lambda chance: torn(content, chance), write, 0.95)
    try_all(1000, other, write, 0.4)


def test_arrays(tmp_path):
    """A user's data, and the pictures of a run, which never cost one."""
    chance = np.random.default_rng(0)
    images = chance.integers(0, 256, (6, 5, 5, 1), dtype=np.uint8)
    plain, small = io.BytesIO(), io.BytesIO()
    for buffer, save in ((plain, np.savez), (small, np.savez_compressed)):
        save(buffer, x_train=images, y_train=np.arange(6) % 2, x_test=images, y_test=np.arange(6) % 2)

    def read(content):
        (tmp_path / "mine.npz").write_bytes(content)
        load_npz(tmp_path / "mine.npz")

    for buffer in (plain, small):
        try_all(750, lambda chance, buffer=buffer: torn(buffer.getvalue(), chance), read, 0.5)
    save_snapshot(tmp_path / "shots", {"a": torch.ones(4, 3, 3, 3, dtype=torch.bool)}, 1, 2.5)
    (shot,) = (tmp_path / "shots").iterdir()
    whole = shot.read_bytes()

    def look(content):
        shot.write_bytes(content)
        load_snapshots(shot.parent)

    try_all(500, lambda chance: torn(whole, chance), look, 0)


def test_finished_networks(finished, tmp_path):
    """The tensors of a run, the checksum put right."""
    home = tmp_path / "home"
    home.mkdir()
    whole = {name: (finished / name).read_bytes() for name in ("model.safetensors", "masks.safetensors")}
    record = json.loads((finished / "result.json").read_bytes())

    def read(files):
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        (home / "result.json").write_text(json.dumps({**record, "files": digests}))
        for name, content in files.items():
            (home / name).write_bytes(content)
        gp.load_run(home, trust=True)

    def make(chance):
        name = chance.choice(list(whole))
        return {**whole, name: torn(whole[name][: 4000 if chance.random() < 0.3 else None], chance)}

    try_all(500, make, read, 0.3)


@pytest.mark.parametrize("law", ["annealed", "rising"])
def test_states_of_a_pruner(law):
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    pruner = gp.GibbsPruner(net, 0.5, include=["1"], law=law)
    state = pruner.state_dict()
    untouched = pruner.masks["1"].mask.clone()

    def read(state):
        try:
            pruner.load_state_dict(state)
        except UserError:
            assert torch.equal(pruner.masks["1"].mask, untouched)
            raise

    try_all(1000, lambda chance: changed(state, chance, TENSORS), read, 0.3)
    pruner.step()
