"""What a run shows: plain lines exactly, the live display's content, and which of the two is chosen."""

import builtins
import io
import math
import os

from gibbsprune.training import progress


class Clock:
    def __init__(self):
        self.time = 100.0

    def __call__(self):
        return self.time


class Terminal(io.StringIO):
    def isatty(self):
        return True


GIBBS = {"loss": 1.23456, "test_accuracy": 0.8712, "beta": 0.7, "agreement": 0.5123, "lr": 0.001}
COLD = {"loss": 0.01234, "test_accuracy": 0.9812, "beta": 10000.0, "agreement": 1.0, "lr": 0.001}
RISING = {"loss": 0.5, "test_accuracy": 0.9, "beta": None, "agreement": None, "sparsity": 0.632, "lr": 0.001}
DENSE = {"loss": 0.5, "test_accuracy": 0.9, "beta": None, "agreement": None, "lr": 0.001}

PLAIN = """\
runs/x
epoch  1/12  loss  1.2346  accuracy  87.12 %  β 0.7      agreement  51.23 %  0:22 left
epoch  2/12  loss  0.0123  accuracy  98.12 %  β 10,000   agreement 100.00 %  1:50 left
epoch  3/12  loss  0.5000  accuracy  90.00 %  1:39 left
epoch  4/12  loss  0.5000  accuracy  90.00 %  sparsity  63.20 %  1:06 left
"""


def test_plain_lines():
    stream, now = io.StringIO(), Clock()
    shown = progress.PlainProgress(stream, now)
    shown.begin("runs/x", 12)
    shown.step(1, 10)
    now.time = 102
    shown.epoch(1, [GIBBS])
    now.time = 122
    shown.epoch(2, [COLD])
    now.time = 133
    shown.epoch(3, [DENSE])
    shown.epoch(4, [RISING])
    shown.close()
    assert stream.getvalue() == PLAIN


def test_a_resumed_run_counts_its_own_pace():
    stream, now = io.StringIO(), Clock()
    shown = progress.PlainProgress(stream, now)
    shown.begin("runs/x", 12, done=10)
    now.time = 105
    shown.epoch(11, [DENSE])
    assert stream.getvalue().endswith("0:05 left\n")


def test_a_fleet_shows_its_mean():
    stream = io.StringIO()
    shown = progress.PlainProgress(stream)
    shown.begin("fleet", 1)
    shown.epoch(1, [GIBBS, COLD])
    assert "accuracy  92.62 %" in stream.getvalue()


def test_sparkline():
    assert progress.sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert progress.sparkline([1, 1]) == "▁▁"
    assert progress.sparkline([math.nan]) == ""


def test_the_live_display_tells_everything():
    stream, now = Terminal(), Clock()
    shown = progress.RichProgress(stream, now)
    shown.begin("runs/x", 12)
    shown.step(3, 10)
    now.time = 102
    shown.epoch(1, [GIBBS])
    text = io.StringIO()
    from rich.console import Console

    Console(file=text, width=100).print(shown.render())
    shown.note("a note")
    shown.close()
    shown.close()
    for part in ("runs/x", "1/12", "3/10", "1.2346", "87.12 %", "0.7", "51.23 %", "0:22 left"):
        assert part in text.getvalue(), part
    assert "a note" in stream.getvalue()


def test_a_title_is_shown_as_it_is():
    from rich.console import Console

    shown = progress.RichProgress(Terminal())
    shown.begin("runs/a[/b][red]", 2)
    shown.close()
    text = io.StringIO()
    Console(file=text, width=100).print(shown.render())
    assert "runs/a[/b][red]" in text.getvalue()


def test_the_live_display_of_a_dense_run_has_no_masks():
    from rich.console import Console

    shown = progress.RichProgress(Terminal())
    shown.begin("dense", 2)
    shown.epoch(1, [DENSE])
    shown.close()
    text = io.StringIO()
    Console(file=text, width=100).print(shown.render())
    assert "agreement" not in text.getvalue()
    assert "β" not in text.getvalue()


def test_a_terminal_gets_the_live_display_and_a_pipe_plain_lines():
    assert type(progress.make_progress(Terminal())) is progress.RichProgress
    assert type(progress.make_progress(io.StringIO())) is progress.PlainProgress


def test_without_rich_a_terminal_gets_plain_lines(monkeypatch):
    real = builtins.__import__

    def without_rich(name, *args, **kwargs):
        if name.split(".")[0] == "rich":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_rich)
    assert type(progress.make_progress(Terminal())) is progress.PlainProgress


def test_a_run_whose_output_nobody_reads_goes_on_and_says_so(capsys):
    """As in ``gibbsprune train | head``: what was written goes nowhere, the reader of errors hears of it."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        shown = progress.PlainProgress(stream)
        shown.begin("runs/x", 2)
        shown.epoch(1, [{"loss": 1.0, "test_accuracy": 0.5}])
    assert capsys.readouterr().err.count("nobody reads the output any more; the run goes on") == 1
