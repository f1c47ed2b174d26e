"""Independent small jobs side by side on a GPU: each on a CUDA stream of its own, also within a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Lanes:
    """Runs jobs that do not depend on one another; streams are made once and kept.

    What a job allocates is its stream's own, and the next jobs there wait for all that came before, so that memory
    which was freed meanwhile is not written while it is still read.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, list[torch.cuda.Stream]] = {}

    def run(self, jobs: Sequence[Callable[[], Any]], device: torch.device) -> list[Any]:
        """The jobs' results; the first runs on the current stream, and what comes after waits for all."""
        if device.type != "cuda" or len(jobs) < 2:
            return [job() for job in jobs]
        streams = self._streams.setdefault(device, [])
        while len(streams) < len(jobs) - 1:
            streams.append(torch.cuda.Stream(device))
        here, others = torch.cuda.current_stream(device), streams[: len(jobs) - 1]
        for stream in others:
            stream.wait_stream(here)
        results = [jobs[0]()]
        for job, stream in zip(jobs[1:], others):
            with torch.cuda.stream(stream):
                results.append(job())
        for stream in others:
            here.wait_stream(stream)
        return results
