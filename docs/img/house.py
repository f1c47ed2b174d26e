"""Draws house.svg: the rooms of the house, and which is built on which, as the imports in the source say."""

import ast
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "gibbsprune"
WIDTH, HEIGHT, ACROSS, DOWN = 170, 62, 212, 88

#: Each room: its column and row, and what is in it.
ROOMS = {
    "core": (0, 1, "weights ► law ► masks", "GibbsPruner"),
    "data": (1, 0, "images with labels", "by name, from .npz"),
    "models": (1, 1, "networks", "by name"),
    "integrations": (1, 2, "callbacks for", "other trainers"),
    "training": (2, 0.5, "recipes, methods,", "fleets, run folders"),
    "sweeps": (3, 0, "many runs, here", "or on a cluster"),
    "export": (3, 1, "compact, C, ONNX,", "packed; profile"),
    "paper": (4, 0, "the evaluation:", "a user of sweeps"),
    "cli": (4, 1, "one file", "per command"),
}


def room(parts: list[str]) -> str:
    """Where a module lies, by the parts of its name within the package."""
    return parts[0] if parts and parts[0] in ROOMS else "core"


def imported(path: Path) -> set[str]:
    """The rooms that a file imports from, wherever in it."""
    here = ["gibbsprune", *path.relative_to(PACKAGE).parts] if path.is_relative_to(PACKAGE) else ["paper", path.name]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            found |= {".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {room(name.split(".")[1:]) for name in found if name.split(".")[0] == "gibbsprune"}


def needs() -> dict[str, set[str]]:
    """What each room is built on; the package's front door, which shows the names of others, and main are no part."""
    found: dict[str, set[str]] = {name: set() for name in ROOMS}
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "paper").glob("*.py")]:
        inside = path.is_relative_to(PACKAGE)
        name = room(list(path.relative_to(PACKAGE).parts)) if inside else "paper"
        if path.parent != PACKAGE or not path.name.startswith("__"):
            found[name] |= imported(path) - {name}
    return found


def below(name: str, found: dict[str, set[str]]) -> set[str]:
    """All that a room rests on."""
    return {name} | {other for near in found[name] for other in below(near, found)}


def drawing(found: dict[str, set[str]]) -> str:
    """The picture; of two ways from one room to another the shorter is left out."""
    parts = []
    for name, near in found.items():
        beyond = {other for one in near for other in below(one, found) - {one}}
        for other in sorted(near - beyond):
            (x, y), (u, v) = ((ROOMS[one][0] * ACROSS + 10, ROOMS[one][1] * DOWN + 10) for one in (other, name))
            line = f'x1="{x + WIDTH}" y1="{y + HEIGHT / 2:g}" x2="{u - 7}" y2="{v + HEIGHT / 2:g}"'
            parts.append(f'<line {line} stroke="#0072B2" stroke-width="1.6" marker-end="url(#tip)"/>')
    for name, (column, row, *lines) in ROOMS.items():
        x, y = column * ACROSS + 10, row * DOWN + 10
        look = 'rx="7" fill="#F4F4F0" stroke="#08306B"'
        parts.append(f'<rect x="{x}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" {look}/>')
        for i, text in enumerate([name if name == "core" else f"{name}/", *lines]):
            weight = ' font-weight="bold" font-size="14"' if i == 0 else ""
            parts.append(f'<text x="{x + WIDTH // 2}" y="{y + 19 + 17 * i:g}"{weight}>{escape(text)}</text>')
    size = f'viewBox="0 0 {4 * ACROSS + WIDTH + 20} {2 * DOWN + HEIGHT + 20}"'
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    tip += '<path d="M0 0L8 4L0 8z" fill="#0072B2"/></marker>'
    style = 'font-family="sans-serif" font-size="12" text-anchor="middle" fill="#222222"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([head, f"<defs>{tip}</defs>", *parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("house.svg").write_text(drawing(needs()), encoding="utf-8")
