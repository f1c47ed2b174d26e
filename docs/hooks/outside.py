"""Files of the repository that lie outside ``docs`` and that pages link to become part of the site.

Pages are written to be read in the repository too, so they link to ``../benchmarks/README.md``; on the site that page
is ``benchmarks/README.md``. Folders have no page: their names stay as text.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = ["benchmarks/README.md", "CHANGELOG.md"]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files, config):
    """Adds the pages themselves, and everything that some page links to."""
    for path in PAGES:
        files.append(outside(path, config))
    linked = {
        resolve(file.src_uri, link)
        for file in files.documentation_pages()
        for _, link, _ in LINK.findall(Path(file.abs_src_path).read_text(encoding="utf-8"))
    }
    linked = {path for path in linked if path and (ROOT / path).is_file() and path not in files.src_uris}
    for path in sorted(linked):
        files.append(outside(path, config))
    return files


def outside(path, config):
    return File.generated(config, path, abs_src_path=str(ROOT / path))


def resolve(page, link):
    """A link's target as a path in the repository, or nothing where it stays within ``docs``."""
    if page in PAGES:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    else:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return "" if target.startswith("docs/") else target


def on_page_markdown(markdown, page, config, files):
    """Rewrites the links that leave ``docs``."""
    here = posixpath.dirname(page.file.src_uri)

    def replace(match):
        text, link, anchor = match[1], match[2], match[3] or ""
        target = resolve(page.file.src_uri, link)
        if not target and page.file.src_uri in PAGES:
            target = posixpath.normpath(posixpath.join(here, link)).removeprefix("docs/")
        if not target:
            return match[0]
        if not files.get_file_from_path(target):
            return text if target in text else f"{text} (`{target}`)"
        return f"[{text}]({posixpath.relpath(target, here or '.')}{anchor})"

    return LINK.sub(replace, markdown)
