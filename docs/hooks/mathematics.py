r"""Formulas become MathML, which browsers draw by themselves: no script, no font, nothing to fetch.

In the pages they are ``$…$`` and ``$$…$$``; ``pymdownx.arithmatex`` has marked them as ``\(…\)`` and ``\[…\]``.
"""

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
NAME = re.compile(r"(<mi>(?:ln|log|sgn|cosh)</mi>)(?=<m[nir])")  # a function before a bare argument needs a gap


def on_page_content(content, page, config, files):
    def replace(match):
        display = "block" if match[2] == "[" else "inline"
        drawn = NAME.sub(r'\1<mspace width="0.17em"/>', convert(html.unescape(match[3]).strip(), display=display))
        return f'<{match[1]} class="formula">{drawn}</{match[1]}>'

    return FORMULA.sub(replace, content)
