"""The problems of a config: documents that know the line of every value, and how a problem is worded.

A problem is one printable line, `file:line: path: message`. Invariant: a value that came from the environment is never
shown, only the expression that fetched it, because it may be a secret in the wrong place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

Path = tuple[str | int, ...]

_BARE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_CHARS = 60


class Problem(NamedTuple):
    """One problem; `line` is 0 when it concerns the file as a whole."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return printable(f"{where}: {self.message}")


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML file as plain data, with the line of every value and the list that its problems go to."""

    file: str
    """The path as the user named it."""
    data: Any = field(repr=False)
    lines: Mapping[Path, int]
    problems: list[Problem]
    origins: Mapping[Path, str] = field(default_factory=dict)
    """The expression of each value that came from the environment."""
    broken: frozenset[Path] = frozenset()
    """The paths of values that could not be substituted: that is noted already, so they get no second problem."""

    def at(self, path: Path) -> Any:
        """Returns the value at the path; None when there is none."""
        value = self.data
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def line_of(self, path: Path) -> int:
        """Returns the line of this path, else of the nearest enclosing value."""
        for end in range(len(path), -1, -1):
            line = self.lines.get(path[:end])
            if line is not None:
                return line
        return 0

    def complain(self, path: Path, message: str) -> None:
        """Notes one problem, unless the value is already known to be broken."""
        if path not in self.broken:
            text = f"{path_text(path)}: {message}" if path else message
            self.problems.append(Problem(self.file, self.line_of(path), text))

    def show(self, path: Path, value: object) -> str:
        """Returns the value as a problem may show it."""
        origin = self.origin_of(path)
        return f"the value of {origin}" if origin else quoted(value)

    def origin_of(self, path: Path) -> str | None:
        """Returns the expression that fetched the value, or the short form that it was a part of; None: it is literal."""
        return self.origins.get(path) or self.origins.get(path[:-1])


def path_text(path: Path) -> str:
    """Returns the path as text, such as `models."gpt-4.1".targets[0]`; names that are not plain words are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _BARE_NAME.fullmatch(step) else quoted(step))
    return text


def quoted(value: object) -> str:
    """Returns a value in the words of YAML, cut where it gets long."""
    if value is None or isinstance(value, (bool, int, float, str)):
        text = json.dumps(value[:_SHOWN_CHARS] if isinstance(value, str) else value, ensure_ascii=False)
        return text if not isinstance(value, str) or len(value) <= _SHOWN_CHARS else f'{text[:-1]}…"'
    return kind_of(value)


def kind_of(value: object) -> str:
    """Returns the type of a value in words, for "expected ..., not ..."."""
    if isinstance(value, bool):
        return "true or false"
    names = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "nothing")


def printable(text: str) -> str:
    """Returns the text on one line, with everything escaped that a terminal could act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns `; did you mean "openai"?`, else the known names, ready to be appended to a message."""
    names = list(known)
    close = get_close_matches(name, names, n=1) if isinstance(name, str) and len(name) <= _SHOWN_CHARS else []
    if close:
        return f"; did you mean {quoted(close[0])}?"
    return f"; there are: {', '.join(names[:20])}" if names else ""
