"""A small data set in CIFAR-10's forms, and a local server that can misbehave."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from gibbsprune.data import get_cifar10, load
from gibbsprune.data.cifar10 import Fingerprint
from gibbsprune.data.cifar10_sources import BATCHES, Archive, Package

PER_BATCH = 40
RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 256, (PER_BATCH, 32, 32, 3), dtype=np.uint8) for _ in BATCHES]
LABELS = [RNG.permutation(np.arange(PER_BATCH) % 10).astype(np.uint8) for _ in BATCHES]
X_TRAIN = np.concatenate(PICTURES[:-1])
EXPECTED = Fingerprint(
    train_per_class=(PER_BATCH // 2,) * 10,
    test_per_class=(PER_BATCH // 10,) * 10,
    first_labels=tuple(LABELS[0][:10].tolist()),
    mean=tuple((X_TRAIN / 255).mean((0, 1, 2)).round(4).tolist()),
    std=tuple((X_TRAIN / 255).std((0, 1, 2)).round(4).tolist()),
)
NO_NPM = Package(client="no-such-npm-client")


def archive(extra: dict[str, bytes] | None = None, leave_out: str = "") -> bytes:
    """The official archive's form: label byte, then the red, green and blue planes of each image."""
    members = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}
    for batch, x, y in zip(BATCHES, PICTURES, LABELS):
        records = np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(PER_BATCH, -1)], axis=1)
        members[f"cifar-10-batches-bin/{batch}.bin"] = records.tobytes()
    members.pop(leave_out, None)
    return tar(members | (extra or {}))


def tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def package_files() -> dict[str, bytes]:
    """The npm package's files: pictures with one row per image, and the labels as JSON."""
    files = {
        "train_lables.json": json.dumps(np.concatenate(LABELS[:-1]).tolist()).encode(),
        "test_lables.json": json.dumps(LABELS[-1].tolist()).encode(),
    }
    for batch, x in zip(BATCHES, PICTURES):
        buffer = io.BytesIO()
        Image.fromarray(x.reshape(PER_BATCH, 1024, 3)).save(buffer, "PNG")
        files[f"{batch}.png"] = buffer.getvalue()
    return files


class Server:
    """Serves one body; remembers the ranges asked for, and can break off or ignore ranges."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.break_off: list[int] = []  # bytes to send before breaking off, one entry per request
        self.ranges_supported = True
        self.status = 200
        self.asked: list[str | None] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges_supported else 0
        if self.status != 200:
            handler.send_error(self.status)
            return
        if start and start >= len(self.body):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        handler.send_header("Content-Length", str(len(self.body) - start))
        handler.end_headers()
        rest = self.body[start:]
        handler.wfile.write(rest[: self.break_off.pop(0)] if self.break_off else rest)


@contextmanager
def serve(body: bytes) -> Iterator[Server]:
    server = Server(body)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://127.0.0.1:{http.server_port}/cifar-10-binary.tar.gz"
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def get(server: Server, root: Path, source: str = "official", md5: str | None = None, **more) -> Path:
    checksum = md5 or hashlib.md5(server.body).hexdigest()
    return get_cifar10(root, source, archive=Archive(server.url, checksum), expected=EXPECTED, **more)


def check(root: Path) -> None:
    """The cache alone is in the folder, and holds the images in order."""
    assert [path.name for path in root.iterdir()] == ["cifar10.npz"]
    arrays = load("cifar10", root)
    assert np.array_equal(arrays.x_train.numpy(), X_TRAIN)
    assert np.array_equal(arrays.x_test.numpy(), PICTURES[-1])
    assert arrays.y_train.tolist() == np.concatenate(LABELS[:-1]).tolist()
    assert arrays.y_test.tolist() == LABELS[-1].tolist()
    assert (arrays.classes, arrays.y_test.dtype) == (10, torch.int64)
