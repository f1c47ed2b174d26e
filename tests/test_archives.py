"""Archives: what they claim is held against what they are before any memory is taken."""

import contextlib
import hashlib
import io
import json
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
import torch
from torch import nn

import gibbsprune as gp
from gibbsprune.archives import check_tensors, read_arrays
from gibbsprune.data import load_npz
from gibbsprune.errors import UserError
from gibbsprune.export import packed
from gibbsprune.training import checkpoint


@contextlib.contextmanager
def refused(sentence):
    """Refused with this sentence, and without much memory of Python and numpy."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=sentence):
            yield
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def npz(entries, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def header(shape, kind="|u1", order="False"):
    text = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def test_arrays_come_back(tmp_path):
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.array("word"),
        "c": np.asfortranarray(np.eye(3, dtype=np.int8)),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "x.npz", **arrays)
        for source in (tmp_path / "x.npz", (tmp_path / "x.npz").read_bytes()):
            found = read_arrays(source, "x", arrays)
            assert all(np.array_equal(found[key], arrays[key]) for key in arrays)
    assert list(read_arrays(tmp_path / "x.npz", "x", ["b"])) == ["b"]


def test_an_array_that_would_grow_a_thousand_times_is_refused(tmp_path):
    """400 MB of zeros in 400 KB: the sentence comes before the memory."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x_train.npy", "w") as file:
        file.write(header((400, 1000, 1000)))
        for _ in range(400):
            file.write(bytes(1000 * 1000))
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, content in (("y_train", np.arange(400)), ("x_test", np.zeros((1, 1000, 1000))), ("y_test", [0])):
            with archive.open(f"{name}.npy", "w") as file:
                np.save(file, content) if name != "x_test" else file.write(header((1,)) + b"0")
    (tmp_path / "mine.npz").write_bytes(buffer.getvalue())
    with refused(r"mine\.npz would grow from \d+,\d+ bytes to 40\d,\d+,\d+, more than 100 times"):
        load_npz(tmp_path / "mine.npz")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (header((1 << 40,)), r"x: a is damaged: uint8 of shape \(1099511627776,\) is not what it holds"),
        (header((-1,)) + b"0", r"x: a is damaged: uint8 of shape \(-1,\) is not what it holds"),
        (header((2,)) + b"0", r"x: a is damaged: uint8 of shape \(2,\) is not what it holds"),
        (header((1,), "|O") + b"0", "x: a holds Python objects, which are never loaded; save numbers only"),
        (b"\x93NUMPY\x07\x00", r"x: a is of version 7.0 of numpy's format"),
        (b"nothing", "x is damaged"),
    ],
)
def test_claims_of_a_header_are_held_against_its_bytes(content, sentence):
    with refused(f"^{sentence}"):
        read_arrays(npz({"a": content}), "x", ["a"])


def test_what_torch_saves_passes_and_what_it_does_not_is_refused():
    def saved(value):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return buffer.getvalue()

    state = {"a": torch.ones(3), "b": [1, 2.5, None, "x", True], "c": {"d": torch.Generator().get_state()},
             "e": nn.Parameter(torch.ones(2).half()), "f": torch.Size([2]), "g": torch.float32}  # fmt: skip
    check_tensors(saved(state))
    for value, name in ((bytearray(4), "bytearray"), ({1, 2}, "set"), (nn.Linear(1, 1), "Linear")):
        with pytest.raises(ValueError, match=name):
            check_tensors(saved({"a": value}))


def test_a_compressed_checkpoint_is_refused(tmp_path):
    """torch would take 64 MB for a file of 64 KB."""
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2 << 20)}, buffer)
    squeezed = io.BytesIO()
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(squeezed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            new.writestr(entry, old.read(entry))
    payload = squeezed.getvalue()
    assert torch.load(io.BytesIO(payload), weights_only=True)["a"].numel() == 2 << 20, "torch itself takes it"
    digest = hashlib.sha256(payload).hexdigest().encode()
    (tmp_path / "x").write_bytes(b"gibbsprune-checkpoint sha256 " + digest + b"\n" + payload)
    with refused("cannot be read with torch .*: parts of it are compressed"):
        checkpoint.load(tmp_path / "x")


def write_packed(path, layout, values=b""):
    import safetensors.torch

    parts = {"layout": zlib.compress(layout, 9), "positions": zlib.compress(b""), "values": zlib.compress(values, 9)}
    tensors = {key: torch.frombuffer(bytearray(part), dtype=torch.uint8) for key, part in parts.items()}
    metadata = {"format": packed.FORMAT, "version": packed.VERSION, "sha256": packed._digest(parts)}
    path.write_bytes(safetensors.torch.save(tensors, metadata=metadata))


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(0, 3))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            [["weight", "float32", [1 << 31], "index", 1, 0, "float32", 0]],
            "another network: 'weight' is torch.float32",
        ),
        ([["weight", "float32", [0, 4], "mask", 1 << 40, 0, "float32", 0]], "of another network: 'weight'"),
        ([[f"layer{n}", "float32", [1], "index", 1, 0, "float32", 0] for n in range(99)], "the file has no 'weight'"),
        ([["weight", "float32", [0, 3], "mask", 1 << 40, 0, "float32", 0]], "unknown way of writing positions"),
        ([["weight", "float32", [0, 3], "dense", 1, 0, "float32", 1 << 40]], "has 1099511627776 values"),
        ([["weight", "float32", [0, 3], "index", 1, 1 << 40, "float32", 0]], "1099511627776 bytes of positions"),
    ],
)
def test_a_packed_file_takes_no_more_than_the_model(tmp_path, rows, sentence):
    write_packed(tmp_path / "x", json.dumps(rows).encode())
    with refused(sentence):
        gp.load_packed(tmp_path / "x", Empty())


def test_a_packed_layout_that_would_grow_without_end_is_refused(tmp_path):
    write_packed(tmp_path / "x", b"[" + b"0," * (4 << 20) + b"0]")
    assert (tmp_path / "x").stat().st_size < 1 << 16
    with refused("damaged|cannot be read|far longer"):
        gp.load_packed(tmp_path / "x", nn.Linear(3, 2))


def test_packed_values_that_would_grow_beyond_the_model_are_refused(tmp_path):
    rows = [
        ["weight", "float32", [2, 3], "dense", 1, 0, "float32", 6],
        ["bias", "float32", [2], "dense", 1, 0, "float32", 2],
    ]
    write_packed(tmp_path / "x", json.dumps(rows).encode(), bytes(64 << 20))
    assert (tmp_path / "x").stat().st_size < 1 << 17
    with refused("bytes left over"):
        gp.load_packed(tmp_path / "x", nn.Linear(3, 2))
