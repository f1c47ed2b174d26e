"""Two nodes of a Ray cluster on this machine, each a ``ray start`` of its own, and a way to be rid of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SMALL = ["--num-cpus", "1", "--object-store-memory", "100000000", "--disable-usage-stats", "--block"]
PORTS = ["--min-worker-port", "0", "--max-worker-port", "0"]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def two_nodes() -> Iterator[str]:
    """The address of a cluster with two nodes of one CPU each."""
    folder = Path(tempfile.mkdtemp(prefix="gp-ray-", dir="/tmp"))  # sockets lie there: the path must be short
    port, *others = map(str, free_ports(4))
    address = f"127.0.0.1:{port}"
    head = ["--head", "--port", port, "--include-dashboard", "false", "--temp-dir", str(folder)]
    head += ["--ray-client-server-port", others[0], "--dashboard-agent-listen-port", others[1]]
    nodes = []
    try:
        nodes.append(_start(folder / "head.log", head))
        _wait_for(port, nodes[0], folder / "head.log")
        nodes.append(_start(folder / "node.log", ["--address", address, "--dashboard-agent-listen-port", others[2]]))
        yield address
    finally:
        for node in reversed(nodes):
            node.terminate()
        for node in nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(timeout=15)
        _kill_all_of(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _start(log: Path, arguments: list[str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, *SMALL, *PORTS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment["RAY_worker_niceness"] = "0"  # by default workers yield to everything else, such as other tests
    with open(log, "w") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)


def _wait_for(port: str, head: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and head.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", int(port)), timeout=1).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"the head of the cluster did not start:\n{log.read_text()}")


def _kill_all_of(folder: Path) -> None:
    """Kills what is left: the processes whose command names the cluster's own folder."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
