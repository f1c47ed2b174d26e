"""A training step as one CUDA graph, replayed without the host in between; elsewhere the step as it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch


class Step:
    """Calls ``function`` every step; on CUDA it is captured after ``warmup`` calls and replayed from then on.

    Whatever the function touches must stay allocated as long as this object, and it must not wait for the host. A
    function that cannot be captured goes on being called, with a warning that says why.
    """

    def __init__(
        self,
        function: Callable[[], None],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        warmup: int = 3,
    ) -> None:
        self.function, self.generators, self.remaining = function, list(generators), warmup
        self.wanted = device.type == "cuda"
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device) if self.wanted else None

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif not self.wanted:
            self.function()
        elif self.remaining > 0:
            self.remaining -= 1
            self._on_side_stream()
        else:
            self._capture()

    def _on_side_stream(self) -> None:
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.function()
        torch.cuda.current_stream().wait_stream(self.stream)

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.function()
        except Exception as error:
            torch.cuda.synchronize()
            self.wanted = False
            warnings.warn(f"the training step could not be captured and runs uncaptured: {error}", stacklevel=2)
            self.function()
            return
        self.graph = graph
        graph.replay()
