"""The command line, one module per command: ``train``, ``sweep``, ``compare``, ``export``, ``profile`` …

Mistakes are told in one sentence, ``gibbsprune: <sentence>`` on standard error, with exit status 2; a run
stopped by Ctrl-C or SIGTERM exits with 130.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..errors import UserError
from .launch import several, speaks, wait_for_the_speaker

EPILOG = """\
try:
  gibbsprune demo                                      a first look, a minute on a CPU
  gibbsprune train --model resnet8 --sparsity 0.95     prune a small network on the embedded digits
  gibbsprune compare --sparsity 0.9                    all methods on the digits, in one table and one picture
  gibbsprune data get cifar10                          fetch CIFAR-10, then:
  gibbsprune train --data cifar10 --structure kernel   prune whole kernels of a ResNet-20
  gibbsprune export runs/… --format onnx --compact     the network, smaller, for ONNX Runtime
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that speaks the project's one-sentence errors."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required: "):
            names = message.partition(": ")[2]
            choices = next((list(a.choices) for a in self._actions if a.metavar == names and a.choices), None)
            hint = f": allowed are {', '.join(choices)}" if choices else f"; see {self.prog} --help"
            raise UserError(f"{self.prog}: {names} is missing{hint}")
        raise UserError(message.removeprefix("argument ").replace(": is ", " is ", 1))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"is {value!r}: allowed are {', '.join(action.choices)}")

    def print_help(self, file: Any = None) -> None:
        if speaks():
            super().print_help(file)


#: The commands, one module each, and what they do.
COMMANDS = {
    "train": "train and prune a network, or resume a run",
    "sweep": "any set of runs, declared in a file: run, status, report",
    "compare": "train all methods on one task: one table, one picture",
    "tune": "tune β ranges and the coupling on held-out training images",
    "demo": "a first look: a small network on digits, smaller and faster, in a minute on a CPU",
    "export": "write a run's network for use elsewhere, checked",
    "profile": "measure a network: size, multiply-adds, latency; dense, pruned and compact",
    "data": "fetch a data set",
    "describe": "count the parameters of networks by kind",
}


def build_parser(only: str | None = None) -> Parser:
    """The parser of all commands; with ``only`` the options of that one alone, as loading the others takes long."""
    parser = Parser(
        prog="gibbsprune",
        description="Train a network and prune it at the same time, with masks from a Gibbs law.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gibbsprune {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name, meaning in COMMANDS.items():
        if only in (None, name):
            import_module(f"gibbsprune.cli.{name}").add_parser(commands, meaning)
        else:
            commands.add_parser(name, help=meaning)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # the process is this command: a warning is a line, without the code that gave it
        warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show β shows a question mark
            stream.reconfigure(errors="replace")
    try:
        parser = build_parser(arguments[0] if arguments else "")
        if not arguments:
            parser.print_help()
            return 0
        if empty := _empty(arguments):
            raise UserError(f"{empty} has an empty value; give it one, or leave it out")
        if foreign := [argument for argument in arguments if not _is_text(argument)]:
            raise UserError(f"{foreign[0]!r} is not text in UTF-8; choose another name")
        if arguments[0].startswith("-") and arguments[0] not in ("-h", "--help", "--version"):
            raise UserError(f"{arguments[0]} stands before the command; commands are {', '.join(COMMANDS)}")
        if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"commands are {', '.join(COMMANDS)}"
            raise UserError(f"unknown command {arguments[0]!r}; {hint}")
        options, unknown = parser.parse_known_args(arguments)
        if unknown:
            raise UserError(_unknown(unknown[0], getattr(options, "parser", parser)))
        if options.command is None:
            parser.print_help()
            return 0
        options.command_line = shlex.join(["gibbsprune", *arguments])
        if several() and options.command != "train":
            raise UserError(f"gibbsprune {options.command} is one process; only gibbsprune train works under torchrun")
        return options.handler(options)
    except UserError as error:
        if speaks():
            print(f"gibbsprune: {error}", file=sys.stderr, flush=True)
        wait_for_the_speaker()
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a name that is too long, a folder that is not ours …
        where = f"{error.filename}: " if error.filename else ""
        print(f"gibbsprune: {where}{error.strerror or error}", file=sys.stderr, flush=True)
        return 2


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _empty(arguments: Sequence[str]) -> str | None:
    """The first argument whose value is an empty word, such as one from a variable of the shell that is not set."""
    for before, argument in zip(["", *arguments], arguments):
        if not argument.strip():
            return before if before.startswith("--") else "an argument"
        if argument.startswith("--") and argument.endswith("="):
            return argument.removesuffix("=")
    return None


def _unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    """The sentence for an option that does not exist, with the nearest one that does."""
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; see {parser.prog} --help"
    name = argument.partition("=")[0]
    options = [option.lstrip("-") for action in parser._actions for option in action.option_strings]
    near = difflib.get_close_matches(name.lstrip("-"), options, n=1)
    hint = f"did you mean --{near[0]}?" if near else f"see {parser.prog} --help"
    return f"unknown option {name}; {hint}"
