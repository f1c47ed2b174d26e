"""A training step as one CUDA graph around a compiled network, replayed without the host in between.

Elsewhere than on CUDA the step is called as it is. What cannot be compiled or captured runs uncompiled or uncaptured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``torch.compile(function)``, or the function itself, with a warning, where it cannot be compiled."""
    chosen = torch.compile(function, dynamic=False, **options)

    def call(*arguments: Any) -> Any:
        nonlocal chosen
        try:
            return chosen(*arguments)
        except TorchDynamoException as error:
            if chosen is function:
                raise
            reason = " ".join(str(error).split())[:300]
            warnings.warn(f"the network could not be compiled and runs uncompiled: {reason}", stacklevel=2)
            chosen = function
            return function(*arguments)

    return call


class Captured:
    """Calls ``function`` every step; on CUDA it is captured after ``warmup`` calls and replayed from then on.

    Steps run on a stream of their own, so that several objects work side by side; :meth:`join` before looking at what
    they did. Whatever the function touches must stay allocated as long as this object, and it must not wait for the
    host. A function that cannot be captured goes on being called, with a warning that says why.

    With ``autotune`` cuDNN times its algorithms and takes the fastest, which may differ from one process to the next
    in the last bits of their results; without it every process takes the same, deterministic ones.
    """

    def __init__(
        self,
        function: Callable[[], None],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        warmup: int = 3,
        autotune: bool = False,
        capture: bool = True,
    ) -> None:
        """
        Args:
            function: the step.
            device: where it works.
            generators: the random streams that it uses.
            warmup: calls before it is captured.
            autotune: let cuDNN time its algorithms.
            capture: otherwise the function is called every time.
        """
        self.function, self.generators, self.remaining = function, list(generators), warmup
        self.cuda = device.type == "cuda"
        self.wanted = self.cuda and capture
        self.autotune = autotune
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device) if self.cuda else None

    def __call__(self) -> None:
        if self.stream is None:
            return self.function()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if self.graph is not None:
                self.graph.replay()
            elif not self.wanted or self.remaining > 0:
                self.remaining -= 1
                self._run()
            else:
                self._capture()

    def join(self) -> None:
        """Lets what comes next wait for the steps made so far."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def _run(self) -> None:
        """The function, with cuDNN's choice of algorithms as it was asked for."""
        cudnn = torch.backends.cudnn
        before = cudnn.benchmark, cudnn.deterministic
        cudnn.benchmark, cudnn.deterministic = self.autotune, not self.autotune
        try:
            self.function()
        finally:
            cudnn.benchmark, cudnn.deterministic = before

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self._run()
        except Exception as error:
            torch.cuda.synchronize()
            self.wanted = False
            warnings.warn(f"the training step could not be captured and runs uncaptured: {error}", stacklevel=2)
            self._run()
            return
        self.graph = graph
        graph.replay()
