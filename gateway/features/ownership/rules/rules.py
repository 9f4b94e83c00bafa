"""The owners of a provider's objects where tenants share its account: what the config declares, and what a body names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.core.errors import InvalidRequest
from gateway.core.openai.bodies import MultipartError, Part, boundary_of, parts_in_steps
from gateway.features.ownership.rules import places
from gateway.features.ownership.rules.places import FIELDS, NamedId, ids_in_json, ids_in_line

MOST_FOUND = 5_000
"""The ids at known places that one body may name."""
_ESCAPED_LETTERS = (rb"\u004", rb"\u005", rb"\u006", rb"\u007")
_EVERYBODYS = re.compile(rb'"type"\s*:\s*"(?:stored_completions|logs|responses)"', re.IGNORECASE)
_EXTENDED_NAME = re.compile(rb"[;\s]name\s*\*", re.IGNORECASE)
_NAMES = re.compile(r"[a-z_]+")
_LINES_AT_ONCE = 200
"""The lines of a batch file that are read before others get their turn."""


def may_name(body: bytes, content_type: bytes) -> bool:
    """Returns whether the body could name an object: a cheap look that never misses one."""
    return content_type[:10].lower() == b"multipart/" or places.may_name(body)


def ids_in_body(
    body: bytes, parsed: dict[str, Any] | None, content_type: bytes, endpoint: str
) -> Iterator[NamedId | None]:
    """Yields the ids that the body names; None now and then, where others may have their turn.

    `parsed` is all of the body, parsed, or None; `endpoint` is the first part of its path, or the endpoint's name.
    Raises InvalidRequest and BodyTooComplex for a body in which they cannot be found.
    """
    if content_type.lower().startswith(b"multipart/"):
        yield from _in_parts(body, content_type)
    else:
        yield from ids_in_json(body, parsed, endpoint)


def reads_everybodys(body: bytes) -> bool:
    """Returns whether an eval asks for all that the account has stored, instead of naming it."""
    return _EVERYBODYS.search(body) is not None or any(escape in body for escape in _ESCAPED_LETTERS)


def too_many() -> InvalidRequest:
    """Returns the error for a body that names more objects than can be looked up in one go."""
    return InvalidRequest(f"The body names more than {MOST_FOUND} objects; send it in parts.", code="too_many_objects")


def _in_parts(body: bytes, content_type: bytes) -> Iterator[NamedId | None]:
    """Yields the ids of a form's fields: `file_id`, `file_ids[]`, `image[file_id]`; and of the lines of a batch file."""
    found: list[Part] = []
    try:
        for part in parts_in_steps(body, boundary_of(content_type)):
            if part is None:
                yield None
            else:
                found.append(part)
    except MultipartError as exc:
        raise InvalidRequest(f"The multipart body is malformed: {exc}.", code="invalid_multipart") from None
    at, purposes = 0, set[bytes]()
    for name, start, end in found:
        if _EXTENDED_NAME.search(body, at, start):
            raise InvalidRequest("Names of form fields must be plain: 'name', not 'name*'.", code="invalid_multipart")
        at = end
        if name.lower() == "purpose":
            purposes.add(body[start:end][:1024].strip().lower())
        named = next((one for one in _NAMES.findall(name.lower()) if one in FIELDS), None)
        if named is not None:
            yield NamedId(body[start:end][:1024].decode("utf-8", "replace"), named, is_known_place=True)
    if b"batch" in purposes:
        for _, start, end in found:
            yield from _in_lines(body[start:end])


def _in_lines(text: bytes) -> Iterator[NamedId | None]:
    """Yields the ids that the calls in a batch file name, each by the endpoint of its line."""
    for number, line in enumerate(text.split(b"\n")):
        if number % _LINES_AT_ONCE == 0:
            yield None
        if places.may_name(line) or b'"id"' in line.lower():
            yield from ids_in_line(line)


@dataclass(frozen=True, slots=True)
class ObjectRules:
    """The rules of a policy under which several tenants share accounts; other policies have none."""

    scopes: Mapping[str, bytes]
    """The scope of ids, by provider. Providers at one address have the same."""
    is_open: bool = False
    """All objects are open to every tenant."""
    ids: frozenset[str] = frozenset()
    """The ids of objects that are open to every tenant."""
    prefixes: tuple[str, ...] = ()
    """The prefixes of ids of objects that are open to every tenant."""
    tenants: frozenset[str] = field(default=frozenset())
    """The tenants of the config; calls may name further ones below `named`."""
    named: frozenset[str] = frozenset()
    """The tenants whose keys name others, with `/` between."""

    def is_everybodys(self, id: str) -> bool:
        """Returns whether the config has opened the object to every tenant."""
        return id in self.ids or (bool(self.prefixes) and id.startswith(self.prefixes))

    def knows(self, tenant: str) -> bool:
        """Returns whether calls may come from this tenant."""
        return tenant in self.tenants or any(tenant.startswith(f"{one}/") for one in self.named)
