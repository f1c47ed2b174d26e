"""Docstrings as Markdown: roles such as ``:class:`X``` become code, examples (``>>>``) become blocks."""

import re

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([^`]+)`")
CODE = re.compile(r"``([^`]+)``")
COLONS = re.compile(r"^::\n|(?<=\S)::$", re.M)  # what introduces a block of code
EXAMPLE = re.compile(r"^(?:>>> .*\n?(?:(?!\n).+\n?)*)", re.M)


class AsMarkdown(griffe.Extension):
    """Rewrites every docstring as it is read."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            text = ROLE.sub(lambda m: f"`{m[1].removeprefix('gibbsprune.')}`", obj.docstring.value)
            text = COLONS.sub(lambda m: ":" if m[0] == "::" else "", CODE.sub(r"`\1`", text))
            obj.docstring.value = EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", text)
