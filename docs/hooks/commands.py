"""The page of all commands and options, made from the parser itself when the site is built: it cannot go stale."""

import argparse
import html

from mkdocs.structure.files import File

PAGE = "reference/commands.md"
HEAD = """# The command line

Everything that `gibbsprune` can be asked, made from its own parser; `gibbsprune COMMAND --help` prints the same.
Mistakes are told in one sentence on standard error, with exit status 2; a run stopped by Ctrl-C or SIGTERM exits with
130 and can be resumed.
"""


def on_files(files, config):
    from gibbsprune.cli import build_parser

    files.append(File.generated(config, PAGE, content=page(build_parser())))
    return files


def page(parser):
    """The whole page."""
    return "\n".join([HEAD, *(text for command in commands(parser) for text in section(command))])


def commands(parser):
    """Every command that does something, in its order; those of ``sweep`` and ``data`` below them."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield parser
    for action in inner:
        for below in dict.fromkeys(action.choices.values()):
            yield from commands(below)


def section(parser):
    yield f"\n## {parser.prog}\n"
    yield cell(parser.description or "") + "\n"
    for group in parser._action_groups:
        shown = [a for a in group._group_actions if a.help != argparse.SUPPRESS and "--help" not in a.option_strings]
        if shown:
            named = group.title not in ("options", "optional arguments", "positional arguments")
            yield f"| {group.title if named else ''} | |\n|---|---|"
            yield from (f"| {names(action)} | {cell(action.help or '')} |" for action in shown)
            yield ""
    if parser.epilog:
        yield f"```text\n{parser.epilog.rstrip()}\n```"


def names(action):
    """An option as it is typed, with its value."""
    value = "" if action.nargs == 0 else f" {action.metavar or (action.dest or '').upper()}"
    if not action.option_strings:
        return f"`{value.strip()}`"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def cell(text):
    """Text for a table, its percent signs as argparse shows them."""
    return html.escape(text.replace("%%", "%"), quote=False).replace("|", "\\|").replace("\n", " ")
