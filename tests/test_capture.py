"""A step as a CUDA graph; on the CPU the step as it is."""

from __future__ import annotations

import warnings

import pytest
import torch

from gibbsprune.training.capture import Captured, compiled

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_on_the_cpu_every_call_calls():
    calls = []
    step = Captured(lambda: calls.append(1), torch.device("cpu"), [torch.Generator()], warmup=2)
    for _ in range(7):
        step()
    assert len(calls) == 7
    assert step.graph is None


def test_an_error_in_the_step_is_the_callers():
    def fail() -> None:
        raise ValueError("no")

    step = Captured(fail, torch.device("cpu"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            step()


@cuda
def test_a_captured_step_does_what_the_plain_one_does():
    """Each call once, captured or not, with the run's own random numbers, which a loaded state continues."""
    device = torch.device("cuda")
    results = []
    for captured in (False, True):
        generator = torch.Generator(device).manual_seed(3)
        total, calls = torch.zeros((), device=device), torch.zeros((), device=device)

        def function(total=total, calls=calls, generator=generator) -> None:
            total.add_(torch.rand((), device=device, generator=generator))
            calls.add_(1)

        step = Captured(function, device, [generator])
        step.wanted = captured
        for _ in range(6):
            step()
        assert (step.graph is not None) is captured
        state = generator.get_state()
        step()
        generator.set_state(state)
        step()
        step.join()
        results.append((total.item(), calls.item()))
    assert results[0] == results[1]
    assert results[0][1] == 8


@cuda
def test_a_step_that_cannot_be_captured_goes_on_with_a_warning():
    device = torch.device("cuda")
    total = torch.zeros((), device=device)

    def function() -> None:
        total.add_(1)
        total.item()  # waits for the host

    step = Captured(function, device, warmup=1)
    step()
    with pytest.warns(UserWarning, match="could not be captured and runs uncaptured"):
        step()
    step()
    step.join()
    assert total.item() == 3
    assert step.graph is None


def broken(graph, inputs):
    raise RuntimeError("no kernel for this")


def test_what_cannot_be_compiled_runs_uncompiled_with_a_warning():
    seen = []

    def double(x):
        seen.append(torch.compiler.is_compiling())
        return 2 * x

    call = compiled(double, backend=broken)
    with pytest.warns(UserWarning, match="could not be compiled and runs uncompiled: .*no kernel for this"):
        assert call(torch.tensor(3.0)).item() == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert call(torch.tensor(4.0)).item() == 8
    assert seen[-2:] == [False, False]


def test_what_can_be_compiled_is():
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    call = compiled(lambda x: x + 1, backend=keep)
    assert call(torch.tensor(1.0)).item() == call(torch.tensor(1.0)).item() == 2
    assert len(graphs) == 1


def test_an_error_of_the_compiled_function_itself_is_the_callers():
    call = compiled(lambda x: x.view(7), backend="eager")
    with pytest.warns(UserWarning, match="runs uncompiled"), pytest.raises(RuntimeError, match="invalid for input"):
        call(torch.zeros(3))


@cuda
def test_two_steps_on_their_own_streams_each_do_their_work():
    device = torch.device("cuda")
    totals = [torch.zeros(1 << 20, device=device) for _ in range(2)]
    steps = [Captured(lambda total=total: total.add_(1), device) for total in totals]
    for _ in range(50):
        for step in steps:
            step()
    for step in steps:
        step.join()
    assert [total.unique().tolist() for total in totals] == [[50.0], [50.0]]
    assert all(step.graph is not None for step in steps)
