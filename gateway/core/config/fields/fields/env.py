"""Puts environment variables into a document: `${VAR}`, `${VAR:-default}`, `os.environ/VAR`, `env.VAR`.

`${}` works anywhere in a text, the other two only as the whole value; `$$` is a dollar. The value of a variable is data:
it is never read as YAML or substituted again. Invariant: a value that cannot be resolved is a problem that names the
variable, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.core.config.source.problems import Document, Path

_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|(?P<odd>\{))")
_WHOLE_VALUE = re.compile(r"(?:os\.environ/|env\.)(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


class EnvText(str):
    """Text from a variable; fields that take numbers read its digits, because a variable has no type."""

    __slots__ = ()


def substitute(document: Document, environ: Mapping[str, str]) -> Document:
    """Returns the document with its variables filled in; a missing variable becomes None and a problem."""
    pass_ = _Pass(document, environ)
    data = pass_.resolve(document.data, ())
    return replace(document, data=data, origins=pass_.origins, broken=frozenset(pass_.broken))


class _Pass:
    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ
        self.origins: dict[Path, str] = {}
        self.broken: set[Path] = set()

    def resolve(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {name: self.resolve(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item, (*path, index)) for index, item in enumerate(value)]
        return self._text(value, path) if isinstance(value, str) else value

    def _text(self, text: str, path: Path) -> str | None:
        whole = _WHOLE_VALUE.fullmatch(text)
        if whole is not None:
            text = f"${{{whole['name']}}}"
        if "$" not in text:
            return text
        references = [match for match in _REFERENCE.finditer(text) if not match["dollar"]]
        resolved = [self._lookup(match, path) for match in references]
        if None in resolved:
            self.broken.add(path)
            return None
        found = iter(resolved)
        filled = _REFERENCE.sub(lambda match: "$" if match["dollar"] else next(found) or "", text)
        if not references:
            return filled
        if not any(self._takes_default(match) and match["default"] != ":-" for match in references):
            self.origins[path] = whole[0] if whole else " and ".join(f"${{{match['name']}}}" for match in references)
        return EnvText(filled)

    def _lookup(self, match: re.Match[str], path: Path) -> str | None:
        if match["odd"]:
            self._document.complain(path, "`${` needs a variable's name and a `}`; write `$${` for the characters")
            return None
        if self._takes_default(match):
            return str(match["default"][2:])
        value = self._environ.get(match["name"])
        if value is None:
            self._document.complain(path, f"the environment variable {match['name']} is not set")
        return value

    def _takes_default(self, match: re.Match[str]) -> bool:
        """Tells whether the default is used: as in a shell, for a variable that is unset or empty."""
        return match["default"] is not None and not self._environ.get(match["name"])
