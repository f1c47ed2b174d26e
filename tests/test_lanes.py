"""Jobs side by side: the same results, in order, on any device."""

from __future__ import annotations

import pytest
import torch

from gibbsprune.lanes import Lanes

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_results_come_in_the_order_of_the_jobs():
    done: list[int] = []
    jobs = [lambda k=k: done.append(k) or 10 * k for k in range(4)]
    assert Lanes().run(jobs, torch.device("cpu")) == [0, 10, 20, 30]
    assert done == [0, 1, 2, 3]
    assert Lanes().run([], torch.device("cpu")) == []


@cuda
@pytest.mark.parametrize("captured", [False, True])
def test_on_a_gpu_jobs_see_what_came_before_and_are_seen_by_what_comes_after(captured):
    """Nested, with freed memory in between, again and again."""
    device, outer, inner = torch.device("cuda"), Lanes(), Lanes()
    start = torch.zeros((), device=device)
    total = torch.zeros(3, device=device)

    def job(k):
        made = torch.full((1 << 20,), float(k), device=device)
        for _ in range(20):
            made = made + start
        return made.mean()

    def step():
        start.add_(1)
        (one, (two, three)) = outer.run(
            [lambda: job(1), lambda: inner.run([lambda: job(2), lambda: job(3)], device)], device
        )
        total.copy_(torch.stack([one, two, three]))

    expected = [[k + 20.0 * n for k in (1, 2, 3)] for n in (1, 2, 3, 4)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph, stream=stream):
                step()
        seen = [total.tolist()]
        for _ in range(3):
            graph.replay() if captured else step()
            seen.append(total.tolist())
    assert seen == expected
