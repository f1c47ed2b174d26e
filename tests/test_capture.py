"""A step as a CUDA graph; on the CPU the step as it is."""

from __future__ import annotations

import pytest
import torch

from gibbsprune.training.capture import Step

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_on_the_cpu_every_call_calls():
    calls = []
    step = Step(lambda: calls.append(1), torch.device("cpu"), [torch.Generator()], warmup=2)
    for _ in range(7):
        step()
    assert len(calls) == 7
    assert step.graph is None


def test_an_error_in_the_step_is_the_callers():
    def fail() -> None:
        raise ValueError("no")

    step = Step(fail, torch.device("cpu"))
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

        step = Step(function, device, [generator])
        step.wanted = captured
        for _ in range(6):
            step()
        assert (step.graph is not None) is captured
        state = generator.get_state()
        step()
        generator.set_state(state)
        step()
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

    step = Step(function, device, warmup=1)
    step()
    with pytest.warns(UserWarning, match="could not be captured and runs uncaptured"):
        step()
    step()
    assert total.item() == 3
    assert step.graph is None
