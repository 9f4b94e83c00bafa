"""The owners of a provider's objects where tenants share its account, as the config declares them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.bodies import MultipartError, Part, boundary_of, parts_in_steps
from gateway.core.openai.json_edit import outside_strings

# Items of stored responses that the input of another response names instead of bringing them.
#
# `{"type": "item_reference", "id": …}`, or the id alone; a reasoning item without anything that it thought, a picture that was
# made without its bytes: the provider puts in what it has stored under that id, for whoever has the account's key. What brings
# its own content is no reference, whatever its id is. A body that was parsed is read at the one place where items stand; of any
# other only what could be one is looked at, and what cannot be told is refused. Source: OpenAI's API reference (`input` of
# `/responses`, `items` of `/conversations`), its guides to reasoning and to images (an earlier picture by its id).


KINDS = frozenset(("responses", "conversations"))
"""The kinds below whose paths items are sent."""
FIELD = "input"
MOST_FOUND = 5_000
MAX_ITEM_BYTES = 4_096
MAX_CONTENT_BYTES = 65_536
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
        end = start + _PIECE_BYTES + MAX_ITEM_BYTES  # what the end of a piece cuts in two is whole here
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
        before = body[max(0, at - MAX_ITEM_BYTES) : at].rstrip()
        name = before[:-1].rstrip()
        if before and not before.endswith(b":"):
            continue  # a word in a list
        if name and name[-6:].lower() != b'"type"':
            continue  # another field's value
        opening, closing = body.rfind(b"{", max(0, at - MAX_ITEM_BYTES), at), body.find(b"}", at, at + MAX_ITEM_BYTES)
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
    ends = [one.start() for one in stored[1:]] + [end + MAX_CONTENT_BYTES]
    for found, until in zip(stored, ends, strict=False):
        if not _brings_content(body, found.end(), until):
            yield found[1]


def _brings_content(body: bytes, at: int, until: int) -> bool:
    """Returns whether the object whose id ends at `at` has content of its own before `until`."""
    for content in islice(_CONTENT.finditer(body, at, min(until, at + MAX_CONTENT_BYTES)), _MOST_CONTENTS):
        depth = 0
        for brace in _BRACE.finditer(outside_strings(body[at : content.start()])):
            depth += 1 if brace[0] == b"{" else -1
            if depth < 0:
                return False
        if depth == 0:
            return True
    return False


# The ids that a request's body names, wherever a provider would look for them.
#
# A small body is read as the tree it is, without what providers do not act on (`metadata`, schemas). A large one is only
# searched, by whole passes in C, and so is one that is no JSON: then every place counts that looks like the field. No id passes
# because two parsers read a body differently: names count in any case of letters, fields written twice count both.


FIELDS = frozenset((
    "file_id", "file_ids", "input_file_id", "vector_store_id", "vector_store_ids", "container_id", "previous_response_id",
    "previous_message_id", "training_file", "validation_file", "assistant_id", "thread_id",
))  # fmt: skip
"""The fields whose values are ids of objects, at any depth."""
_AT_THE_TOP = frozenset(("conversation", "container", "video"))
_NEEDLES = tuple(name.encode() for name in sorted((FIELDS | _AT_THE_TOP) - {"file_ids", "vector_store_ids"}))
_INERT = frozenset(("metadata", "attributes", "parameters", "schema", "item_schema", "input_schema"))
"""The fields whose contents are the caller's own: no provider takes them for ids."""
TREE_BYTES = 262_144
MOST_VALUES = 20_000
"""A larger body, or one of more values, is searched instead of being read."""
MAX_VALUE_BYTES, MAX_LIST_BYTES = 4_096, 262_144
"""The bytes behind a name within which its value, or a list of them, has to end."""
_COLON = re.compile(rb'[a-z_]{0,16}"\s{0,256}(?::\s{0,256}(?!\s)|(\s|:\s))', re.IGNORECASE)
"""The text between a name and its value; the group matches where there is more white space than real clients write."""
_TYPED = re.compile(rb'"type"\s{0,16}:\s{0,16}"\Z', re.IGNORECASE)
_STRING = re.compile(rb'"([^"]*)"')
_ESCAPED_LETTERS = (rb"\u004", rb"\u005", rb"\u006", rb"\u007")
_ESCAPED_NAME = re.compile(rb'\\u00[4-7][0-9a-fA-F](?:[^"\\]|\\u00[0-9a-fA-F]{2}){0,64}"\s*:')
_EVERYBODYS = re.compile(rb'"type"\s*:\s*"(?:stored_completions|logs|responses)"', re.IGNORECASE)
_EXTENDED_NAME = re.compile(rb"[;\s]name\s*\*", re.IGNORECASE)
_NAMES = re.compile(r"[a-z_]+")

Named = tuple[str, str]
"""An id, and the field that names it."""


def may_name(body: bytes, content_type: bytes) -> bool:
    """Returns whether the body could hold an id: a cheap look that never misses one."""
    if len(body) > TREE_BYTES or content_type[:10].lower() == b"multipart/":
        return True
    lower = body.lower()
    return (
        b"_id" in lower
        or b"contain" in lower
        or b"conversation" in lower
        or b"_file" in lower
        or b"video" in lower
        or b"\\u00" in lower
    )


def ids_in_body(
    body: bytes, parsed: dict[str, Any] | None, content_type: bytes, *, has_items: bool = False
) -> Iterator[Named | None]:
    """Yields the ids that the body names; None now and then, where others may have their turn. Raises InvalidRequest.

    `parsed` is all of the body, parsed; `has_items`: items of responses are sent in it.
    """
    if content_type.lower().startswith(b"multipart/"):
        yield from _in_parts(body, content_type)
    elif len(body) > TREE_BYTES or _values(body) > MOST_VALUES:
        is_json = body[:64].lstrip().startswith((b"{", b"[")) and b"\0" not in body[:4]
        yield from _searched(body) if is_json else _in_opaque(body)
        if has_items and is_json:
            yield None
            yield from _items_in(body, parsed, is_ambiguous=parsed is None or not _reads_one_way(body, parsed))
    else:
        tree: Any = parsed if parsed is not None else _tree_of(body)
        if isinstance(tree, dict | list):
            yield from _in_tree(tree)
            is_ambiguous = not _reads_one_way(body, tree)
            if is_ambiguous:
                yield from _searched(body)
            if has_items and isinstance(tree, dict):
                yield from _items_in(body, tree, is_ambiguous=is_ambiguous)
        else:
            yield from _in_opaque(body)


def reads_everybodys(body: bytes) -> bool:
    """Returns whether an eval asks for all that the account has stored, instead of naming it."""
    return _EVERYBODYS.search(body) is not None or any(escape in body for escape in _ESCAPED_LETTERS)


def _items_in(body: bytes, tree: dict[str, Any] | None, *, is_ambiguous: bool) -> Iterator[Named | None]:
    """Yields the items that are named without their content."""
    for id in references_in(tree) if tree is not None else ():
        yield id, FIELD
    for found in references_searched(body) if is_ambiguous else ():
        yield None if found is None else (found, FIELD)


# --- a tree ---


def _values(body: bytes) -> int:
    return body.count(b",") + body.count(b":") + body.count(b"[")


def _tree_of(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _reads_one_way(body: bytes, tree: Any) -> bool:
    """Returns whether no field of an object is written twice: of such fields the tree holds only one."""
    try:
        written = orjson.dumps(tree)
    except TypeError:
        return False  # too deep
    return outside_strings(written).count(b":") == outside_strings(body).count(b":")


def _in_tree(tree: dict[str, Any] | list[Any]) -> Iterator[Named]:
    ahead: list[Any] = [tree]
    is_top = True
    while ahead:
        here = ahead.pop()
        if isinstance(here, list):
            ahead += [one for one in here if isinstance(one, dict | list)]
            continue
        kind = here.get("type")
        for name, value in here.items():
            lower = name.lower()
            if lower in FIELDS or (lower in _AT_THE_TOP and (is_top or kind == "code_interpreter")):
                yield from _named(lower, value)
            if isinstance(value, dict | list) and lower not in _INERT:
                ahead.append(value)
        if kind == "file_id":
            yield from _named("id", here.get("id"))
        is_top = False


def _named(name: str, value: Any) -> Iterator[Named]:
    if isinstance(value, dict):
        value = value.get("id")
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, str | int) and not isinstance(one, bool):
            yield str(one), name


# --- a search ---


def _searched(body: bytes) -> Iterator[Named | None]:
    """Yields the ids that stand anywhere in the text; one pass for each name. Raises InvalidRequest for what hides names."""
    for escape in _ESCAPED_LETTERS if b"\\u00" in body else ():
        yield None
        for at in _places(body, escape):
            if at < 0 or _ESCAPED_NAME.match(body, at):
                raise InvalidRequest(
                    "Names of fields are written with escapes (\\u0066…); write them as they are.",
                    code="escaped_field_names",
                )
    yield None
    lower = body.lower()
    for needle in _NEEDLES:
        yield None
        for count, at in enumerate(_places(lower, needle)):
            if at < 0:
                raise too_many()
            if body[at - 1 : at] == b'"':
                yield from _value_at(body, at + len(needle), needle.decode())
            if count % 256 == 255:
                yield None


def _places(body: bytes, needle: bytes) -> Iterator[int]:
    """Yields the places of `needle`; -1 when there are too many."""
    at = body.find(needle)
    for _ in range(MOST_FOUND):
        if at < 0:
            return
        yield at
        at = body.find(needle, at + 1)
    yield -1


def _value_at(body: bytes, at: int, name: str) -> Iterator[Named]:
    """Yields the ids behind a name that ends at `at`, or behind more of it."""
    colon = _COLON.match(body, at)
    found: list[bytes] = []
    if colon is None:
        if name == "file_id" and _TYPED.search(body, max(0, at - 64), at - len(name)):  # `{"type": "file_id", "id": …}`
            start, end = body.rfind(b"{", max(0, at - MAX_VALUE_BYTES), at), body.find(b"}", at, at + MAX_VALUE_BYTES)
            found = _ID.findall(body, max(start, 0), end if end >= 0 else at + MAX_VALUE_BYTES)
    elif colon[1] is not None:
        raise InvalidRequest(f"There is white space without end behind '{name}'; leave it out.", param=name)
    else:
        at = colon.end()
        opening = body[at : at + 1]
        if opening == b'"':
            end = body.find(b'"', at + 1, at + MAX_VALUE_BYTES)
            found = [body[at + 1 : end] if end >= 0 else b""]
        elif opening == b"[":
            end = body.find(b"]", at, at + MAX_LIST_BYTES)
            if end < 0:
                raise too_many()
            found = _STRING.findall(body, at, end)
        elif opening == b"{":
            found = _ID.findall(body, at, body.find(b"}", at, at + MAX_VALUE_BYTES) + 1 or at + MAX_VALUE_BYTES)
    for one in found:
        yield one.decode("utf-8", "replace"), name


def too_many() -> InvalidRequest:
    """Returns the error for a body that names more objects than can be looked up in one go."""
    return InvalidRequest(f"The body names more than {MOST_FOUND} objects; send it in parts.", code="too_many_objects")


def _in_opaque(body: bytes) -> Iterator[Named | None]:
    """Yields ids of a body that is no JSON to us, but may be to others: forms have no quotes, other encodings have zeros."""
    lower = body.lower()
    is_wide = b"\0" in body[:4]
    if is_wide or any(name.encode() in lower for name in FIELDS):
        raise InvalidRequest("The request body names objects and is no JSON; send JSON in UTF-8.", code="invalid_json")
    yield None


# --- multipart ---


def _in_parts(body: bytes, content_type: bytes) -> Iterator[Named | None]:
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
        named = next((one for one in _NAMES.findall(name.lower()) if one in FIELDS or one in _AT_THE_TOP), None)
        if named is not None:
            yield body[start:end][:1024].decode("utf-8", "replace"), named
    if b"batch" in purposes:
        for _, start, end in found:
            lines = body[start:end]
            yield from _searched(lines)
            yield from _items_in(lines, None, is_ambiguous=True)


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
