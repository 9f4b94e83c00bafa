"""Items of stored responses that the input of another response names instead of bringing them.

`{"type": "item_reference", "id": …}`, or the id alone; a reasoning item without anything that it thought, a picture that was
made without its bytes: the provider puts in what it has stored under that id, for whoever has the account's key. What brings
its own content is no reference, whatever its id is. A body that was parsed is read at the one place where items stand; of any
other only what could be one is looked at, and what cannot be told is refused. Source: OpenAI's API reference (`input` of
`/responses`, `items` of `/conversations`), its guides to reasoning and to images (an earlier picture by its id).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from gateway.core.errors import InvalidRequest
from gateway.core.openai.json_edit.json_text import outside_strings

KINDS = frozenset(("responses", "conversations"))
"""The kinds below whose paths items are sent."""
FIELD = "input"
MOST_FOUND = 5_000
NEAR = 4_096
FAR = 65_536
_PIECE_BYTES = 65_536
_MOST_CONTENTS = 8
_STEP = 256
_LISTS = frozenset(("input", "items"))
_OWN_CONTENT: Mapping[str, tuple[str, ...]] = {
    "reasoning": ("encrypted_content", "content"),
    "image_generation_call": ("result",),
}
"""The fields, by type, in which an item that is no reference has content."""
_REFERENCE = re.compile(rb'"item_reference"')
_STORED = re.compile(rb'"id"\s{0,64}:\s{0,64}"((?:rs|ig)_[^"]{0,256})"', re.IGNORECASE)
_BARE = re.compile(
    rb'[\[,]\s{0,64}\{\s{0,64}(?:"type"\s{0,64}:\s{0,64}null\s{0,64},\s{0,64})?"id"\s{0,64}:\s{0,64}"([^"]{0,256})"\s{0,64}'
    rb'(?:,\s{0,64}"type"\s{0,64}:\s{0,64}null\s{0,64})?\}',
    re.IGNORECASE,
)
_ID = re.compile(rb'"id"\s*:\s*"([^"]*)"', re.IGNORECASE)
_CONTENT = re.compile(rb'"(?:encrypted_content|content|result)"\s{0,64}:\s{0,64}(?:"[^"]|\[\s{0,64}\{)')
_BRACE = re.compile(rb"[{}]")
_ESCAPED_TYPE = re.compile(rb'"type"\s{0,64}:\s{0,64}"[^"\\]{0,64}\\u00[4-7]', re.IGNORECASE)


def references_in(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yields the ids of the items that a parsed body names without their content."""
    for name, items in tree.items():
        if name.lower() in _LISTS:
            for item in items if isinstance(items, list) else (items,):
                if isinstance(item, dict):
                    yield from _reference(item)


def _reference(item: Mapping[str, Any]) -> Iterator[str]:
    fields = item if all(name.islower() for name in item) else {name.lower(): value for name, value in item.items()}
    id, kind = fields.get("id"), fields.get("type")
    if not isinstance(id, str):
        return
    kind = kind.lower() if isinstance(kind, str) else ""
    if kind == "item_reference":
        yield id
    elif not kind:
        if "role" not in fields:
            yield id
    elif kind in _OWN_CONTENT and not any(fields.get(name) for name in _OWN_CONTENT[kind]):
        yield id


def references_searched(body: bytes) -> Iterator[str | None]:
    """Yields the same of a body that is not parsed; None now and then, so that others get their turn. Raises InvalidRequest."""
    count = 0
    for start in range(0, len(body), _PIECE_BYTES):
        yield None
        end = start + _PIECE_BYTES + NEAR  # what the end of a piece cuts in two is whole here
        piece = body[start:end].lower()
        if b"\\u00" in piece and _ESCAPED_TYPE.search(piece) is not None:
            raise InvalidRequest(
                "The types of items are written with escapes (\\u0072…); write them as they are.", param=FIELD
            )
        for id in chain(_typed(body, start, piece), _bare(body, start, end), _without_content(body, start, end)):
            count += 1
            if count > MOST_FOUND:
                raise InvalidRequest(
                    f"The body names more than {MOST_FOUND} items; send fewer.", code="too_many_objects"
                )
            if count % _STEP == 0:
                yield None
            yield id.decode("utf-8", "replace")


def _typed(body: bytes, start: int, piece: bytes) -> Iterator[bytes]:
    """Yields the ids beside each type that reads `item_reference`. Raises InvalidRequest where they cannot be told."""
    for word in _REFERENCE.finditer(piece):
        at = start + word.start()
        before = body[max(0, at - NEAR) : at].rstrip()
        name = before[:-1].rstrip()
        if before and not before.endswith(b":"):
            continue  # a word in a list
        if name and name[-6:].lower() != b'"type"':
            continue  # another field's value
        opening, closing = body.rfind(b"{", max(0, at - NEAR), at), body.find(b"}", at, at + NEAR)
        ids = _ID.findall(body, opening, closing) if 0 <= opening < closing and name else []
        if not ids or b"}" in body[opening:at]:
            raise InvalidRequest("An item_reference has to be its 'type' and its 'id' alone.", param=FIELD)
        yield from ids


def _bare(body: bytes, start: int, end: int) -> Iterator[bytes]:
    for found in _BARE.finditer(body, start, end):
        yield found[1]


def _without_content(body: bytes, start: int, end: int) -> Iterator[bytes]:
    """Yields the ids of reasoning items and pictures without content of their own."""
    stored = [*_STORED.finditer(body, start, end)]
    ends = [one.start() for one in stored[1:]] + [end + FAR]
    for found, until in zip(stored, ends, strict=False):
        if not _brings_content(body, found.end(), until):
            yield found[1]


def _brings_content(body: bytes, at: int, until: int) -> bool:
    """Returns whether the object whose id ends at `at` has content of its own before `until`."""
    for content in islice(_CONTENT.finditer(body, at, min(until, at + FAR)), _MOST_CONTENTS):
        depth = 0
        for brace in _BRACE.finditer(outside_strings(body[at : content.start()])):
            depth += 1 if brace[0] == b"{" else -1
            if depth < 0:
                return False
        if depth == 0:
            return True
    return False
