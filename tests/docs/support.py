"""What the tests of the documentation share: the pages, their sections and tables, and the constants of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}
"""Every page by its path from the top."""
REFERENCE = "docs/reference/{}.md"
FOREIGN = {"emulator", "demo"}
"""Folders whose headers and codes are those of a provider, or of a client."""
Told = tuple[ast.Constant | ast.keyword | ast.Assign, ...]
"""The nodes of a module that may hold what a user sees: constants, what is named in calls, and what is assigned."""

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")


def reference(name: str) -> str:
    """The text of a page of the reference."""
    return PAGES[REFERENCE.format(name)]


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page)


def fenced(page: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def section(page: str, heading: str) -> str:
    """What stands below a heading (`## state`), as far as the next one of whatever level."""
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#+ |\Z)", _FENCE.sub("", page), re.DOTALL | re.MULTILINE)
    assert found is not None, f"there is no heading {heading!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without the heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {at - 1 for at, line in enumerate(lines) if re.fullmatch(r"[|\s:-]+", line)}
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for at, row in enumerate(cells) if at not in heads and at - 1 not in heads]


def words(text: str) -> set[str]:
    """All that stands in backticks."""
    return set(_CODE.findall(text))


@cache
def modules() -> tuple[tuple[Path, Told], ...]:
    """The source of the gateway, parsed and walked once, without the emulator and the demo."""
    paths = [
        path for path in sorted((ROOT / "gateway").rglob("*.py")) if path.relative_to(ROOT).parts[1] not in FOREIGN
    ]
    return tuple((path, _told(path.read_text())) for path in paths)


def _told(source: str) -> Told:
    walked = ast.walk(ast.parse(source))
    return tuple(node for node in walked if isinstance(node, ast.Constant | ast.keyword | ast.Assign))


def constants(told: Told, kind: type) -> Iterator[object]:
    """Every constant of a type in a module."""
    for node in told:
        if isinstance(node, ast.Constant) and isinstance(node.value, kind):
            yield node.value
