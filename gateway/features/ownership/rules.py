"""The owners of a provider's objects where tenants share its account: what the config declares, and which ids a body names.

First the rules, then the ids in JSON, item references among them, and last those of any body: forms, and lines of batch files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import orjson

from gateway.core.errors import BodyTooComplex, InvalidRequest
from gateway.core.openai.bodies import MultipartError, Part, boundary_of, parts_in_steps
from gateway.core.openai.json_edit import piece_at
from gateway.core.snapshot import Setting


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


OBJECTS: Final[Setting[ObjectRules | None]] = Setting("objects", None)
"""The rules of whose a provider's objects are; None: all callers are one tenant, and it does not matter."""


# --- the ids of objects in a JSON body: where the provider's API reads them, and nowhere else ---

LARGE_BYTES = 262_144
MOST_VALUES = 100_000
"""The values of a body that names objects: reading as many takes some 50 ms, in which nothing else runs."""
MOST_VALUES_TWICE = 20_000
"""The values of a body in which a field is written twice, which takes ten times as long to read."""
MOST_DECODINGS = 3
"""The most times that a path may be percent-encoded: some servers decode it twice."""
FIELDS = frozenset((
    "file_id", "file_ids", "input_file_id", "vector_store_id", "vector_store_ids", "container", "container_id", "conversation",
    "previous_response_id", "previous_message_id", "training_file", "validation_file", "assistant_id", "thread_id", "video",
))  # fmt: skip
"""The names of fields whose values are ids of objects, at the places below."""

_CALL_IDS = frozenset(("call_id", "tool_call_id", "tool_use_id", "custom_id", "item_id"))
"""Fields of every agent's history that are named like ids, and name no object."""
_LIKE_AN_ID = re.compile(r"(?:.*_)?(?:file|files|container|conversation|video)|.*_ids?", re.DOTALL)
_ENDS_OF_CALL_IDS = (b'"call_id"', b'tool_call_id"', b'tool_use_id"')
_ENDS_OF_FIELDS = (b'_ids"', b'file"', b'files"', b'container"', b'conversation"', b'video"')
_ESCAPED_NAME = re.compile(rb'\\u00[4-7][0-9a-fA-F](?:[^"\\]|\\u00[0-9a-fA-F]{2}){0,64}"\s*:')

_INERT_ANYWHERE = frozenset((
    "metadata", "client_metadata", "attributes", "parameters", "schema", "item_schema", "input_schema", "output_schema",
    "json_schema", "arguments", "args", "parametersjsonschema", "responsejsonschema", "responseschema",
))  # fmt: skip
"""Fields whose contents are the caller's own wherever they stand: no provider takes them for ids."""
_INERT: Mapping[str, str] = {
    "messages": "messages.content.input messages.content.toolUse.input messages.content.toolResult",
    "generate": "contents.parts.functionCall contents.parts.functionResponse",
    "responses": "input.action input.input",
}
"""What models and tools write, by the language's names: arguments and results of calls."""

_INPUT = "file_id content.file_id output.file_id container_id environment.container_id environment.file_ids"
_TOOLS = (
    "vector_store_ids container container.id container.container_id container.file_ids input_image_mask.file_id "
    "environment.container_id environment.file_ids"
)
_RESOURCES = "code_interpreter.file_ids file_search.vector_store_ids file_search.vector_stores.file_ids"
_THREAD_MESSAGE = "file_ids attachments.file_id content.image_file.file_id"


def _below(above: str, places: str) -> str:
    return " ".join(f"{above}.{place}" for place in places.split())


_THREAD = f"{_below('messages', _THREAD_MESSAGE)} {_below('tool_resources', _RESOURCES)}"
KNOWN: Mapping[str, str] = {
    "responses": (
        f"previous_response_id conversation conversation.id {_below('input', _INPUT)} {_below('instructions', _INPUT)} "
        f"{_below('tools', _TOOLS)} prompt.variables.*.file_id"
    ),
    "conversations": f"{_below('items', _INPUT)} {_INPUT}",
    "chat": "messages.file_ids messages.content.file.file_id messages.content.file_id",
    "messages": (
        "container container.id thread.previous_message_id messages.content.file_id messages.content.source.file_id "
        "messages.content.content.file_id messages.content.content.source.file_id system.source.file_id"
    ),
    "assistants": f"assistant_id file_ids {_below('tool_resources', _RESOURCES)}",
    "threads": (
        f"assistant_id thread_id {_THREAD} {_THREAD_MESSAGE} {_below('thread', _THREAD)} "
        f"{_below('additional_messages', _THREAD_MESSAGE)}"
    ),
    "vector_stores": "file_id file_ids files.file_id vector_store_id",
    "containers": "file_id file_ids",
    "batches": "input_file_id",
    "fine_tuning": "training_file validation_file",
    "images": "file_id images.file_id image.file_id mask.file_id",
    "videos": "video video.id input_reference.file_id",
    "evals": "data_source.source.file_id data_source.file_id data_source.input_messages.file_id",
}
"""The places of ids by the first part of the path (or the endpoint), each as the names that lead there."""


class NamedId(NamedTuple):
    """An id that a body names."""

    id: str
    field: str
    is_known_place: bool
    """The provider reads an id here; else only another tenant's id is refused."""


class _Place:
    """A place in a body, and what lies below it."""

    __slots__ = ("below", "is_id", "is_inert", "is_item")

    def __init__(self) -> None:
        self.below: dict[str, _Place] = {}
        self.is_id = self.is_inert = self.is_item = False

    def at(self, path: str) -> _Place:
        """Returns the place that a path leads to, made where it is new."""
        place = self
        for name in path.lower().split("."):
            place = place.below.setdefault(name, _Place())
        return place


_UNKNOWN = _Place()
_STEP = 2_000
"""The objects and lists that are looked at before others get their turn."""


def _tables() -> Mapping[str, _Place]:
    tables: dict[str, _Place] = {}
    for endpoint in {*KNOWN, *_INERT}:
        top = tables[endpoint] = _Place()
        for path in KNOWN.get(endpoint, "").split():
            top.at(path).is_id = True
        for path in _INERT.get(endpoint, "").split():
            top.at(path).is_inert = True
    for endpoint, path in (("responses", "input"), ("responses", "instructions"), ("conversations", "items")):
        tables[endpoint].at(path).is_item = True
    return tables


_TABLES = _tables()


def json_may_name(body: bytes) -> bool:
    """Returns whether a body could name an object: a cheap look that never misses one."""
    if body[:1] not in (b"{", b"[") or b"\0" in body[:4]:
        return True  # no JSON to us, or with white space in front, which real clients do not send
    lower = body.lower()
    return (
        lower.count(b'_id"') > sum(map(lower.count, _ENDS_OF_CALL_IDS))
        or any(end in lower for end in _ENDS_OF_FIELDS)
        or (b"\\u00" in lower and _ESCAPED_NAME.search(lower) is not None)
    )


def ids_in_json(body: bytes, parsed: Any, endpoint: str) -> Iterator[NamedId | None]:
    """Yields the ids that a JSON body names; None now and then, where others may have their turn.

    `parsed` is the whole body, parsed, or None; `endpoint` is the first part of the path, or the name of the endpoint.
    Raises InvalidRequest for a body that only another parser could read, BodyTooComplex for one that takes long.

    An id at a known place has to be the tenant's. In a field that no table knows, but that is named like an id, only an id on
    record as another tenant's is refused, so that a field which a provider adds tomorrow opens nothing. What callers, models
    and tools write freely is inert: text, metadata, schemas, the arguments and results of tools. Names count in any case of
    letters, and a list stands for each of its members, because servers differ in what they take for the same.

    Sources: OpenAI's API reference (responses, conversations, chat, assistants, threads, vector stores, batches, fine-tuning,
    evals, images, videos, containers), Anthropic's Messages and Files API.
    """
    tree = yield from _tree_of(body, parsed)
    if isinstance(tree, dict | list):
        yield from _walk(tree, _TABLES.get(endpoint, _UNKNOWN))
    else:
        _refuse_opaque(body)


def ids_in_line(line: bytes) -> Iterator[NamedId | None]:
    """Yields the ids that the call in one line of a batch file names, by the endpoint of its `url`. Raises as `ids_in_json`."""
    tree = yield from _tree_of(line, None)
    if isinstance(tree, dict):
        fields = _in_lower_case(tree)
        for url in [*_strings(fields.get("url"))] or [""]:
            yield from _walk(fields.get("body"), _TABLES.get(endpoint_of(url), _UNKNOWN))
    else:
        _refuse_opaque(line)


def endpoint_of(path: str) -> str:
    """Returns the first part of a path below the base URL, by which the places of ids are looked up."""
    for _ in range(MOST_DECODINGS):
        path = unquote(path)
    return next((step for step in path.lower().split("/") if step not in ("", "v1")), "")


def _refuse_opaque(body: bytes) -> None:
    """Raises InvalidRequest for a body that is no JSON to us and may name objects to another parser.

    Forms have no quotes, and other encodings have zeros. An item's id is named `id`, and others take what is no JSON to us: a
    mark in front, a number beyond all bounds, half a surrogate pair.
    """
    lower = body.lower()
    names = (name.encode() if "_" in name else f'"{name}"'.encode() for name in (*FIELDS, "id"))
    if b"\0" in body[:4] or any(name in lower for name in names) or _ESCAPED_NAME.search(lower) is not None:
        raise InvalidRequest("The request body names objects and is no JSON; send JSON in UTF-8.", code="invalid_json")


def _tree_of(body: bytes, parsed: Any) -> Generator[None, None, Any]:
    """Returns the body as a tree that holds every value of a field that is written twice; of no JSON None.

    Yields between its steps, which take some tens of milliseconds each where a body is large.
    """
    is_large = len(body) > LARGE_BYTES
    values, names = yield from _counts(body)
    if values > MOST_VALUES:
        raise BodyTooComplex(
            f"A request body that names objects may have {MOST_VALUES:,} JSON values where tenants share an account; "
            "send less at a time."
        )
    try:
        tree = parsed if parsed is not None else orjson.loads(body)
        if is_large:
            yield
        written = orjson.dumps(tree)
    except (orjson.JSONDecodeError, TypeError):  # TypeError: nested too deep
        return None
    if (yield from _counts(written)) == (values, names):
        return tree
    if values > MOST_VALUES_TWICE:
        raise InvalidRequest(
            "The request body has a field twice in one object; write each once.", code="duplicate_field"
        )
    return json.loads(body, object_pairs_hook=_with_all_values)


def _counts(text: bytes) -> Generator[None, None, tuple[int, int]]:
    """Returns how many values (about) and how many names of fields JSON text has; yields between the pieces of a large one."""
    values = names = at = 0
    in_string = False
    while at < len(text):
        if at:
            yield
        piece = piece_at(text, at, LARGE_BYTES)
        at += len(piece)
        between = piece.split(b'"')
        outside = b"".join(between[in_string::2])
        in_string ^= len(between) % 2 == 0
        values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        names += outside.count(b":")
    return values, names


class _Values(list[Any]):
    """All values of a field that is written twice or more."""


def _with_all_values(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name not in found:
            found[name] = value
        elif isinstance(found[name], _Values):
            found[name].append(value)
        else:
            found[name] = _Values((found[name], value))
    return found


def _walk(tree: Any, top: _Place) -> Iterator[NamedId | None]:
    ahead: list[tuple[Any, _Place]] = [(tree, top)]
    for number in count(1):
        if not ahead:
            return
        if number % _STEP == 0:
            yield None
        here, place = ahead.pop()
        if isinstance(here, list):
            ahead += [(one, place) for one in here if isinstance(one, dict | list)]
            continue
        if not isinstance(here, dict):
            continue  # the body of a batch's line may be anything
        fields = _in_lower_case(here)
        if place.is_item:
            yield from _reference(fields)
        if "file_id" in _strings(fields.get("type")):  # {"type": "file_id", "id": …}: an eval's data
            yield from (NamedId(id, "id", is_known_place=True) for id in _strings(fields.get("id")))
        for name, value in fields.items():
            inner = place.below.get(name) or place.below.get("*") or _UNKNOWN
            if inner.is_inert or name in _INERT_ANYWHERE:
                continue
            if inner.is_id:
                yield from (NamedId(id, name, is_known_place=True) for id in _strings(value))
            elif name not in _CALL_IDS and _LIKE_AN_ID.fullmatch(name):
                inside = value.get("id") if isinstance(value, dict) else value
                yield from (NamedId(id, name, is_known_place=False) for id in _strings(inside))
            if isinstance(value, dict | list):
                ahead.append((value, inner))


def _in_lower_case(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields by their names in lower case, all values of those that differ in case only."""
    return _with_all_values((name.lower(), value) for name, value in tree.items())


def _strings(value: Any) -> Iterator[str]:
    """Yields the strings and numbers that a value is, or that stand in its lists."""
    if isinstance(value, list):
        for one in value:
            yield from _strings(one)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)


# --- items of stored responses that the input of another response names instead of bringing them ---

_OWN_CONTENT: Mapping[str, tuple[str, ...]] = {
    "reasoning": ("encrypted_content", "content"),
    "image_generation_call": ("result",),
}
"""The fields, by type, in which an item that is no reference has content."""


def _reference(item: Mapping[str, Any]) -> Iterator[NamedId]:
    """Yields the id that an item names in place of its content, if it is a reference.

    `{"type": "item_reference", "id": …}`, or the id alone; a reasoning item without anything that it thought, a picture that
    was made without its bytes: the provider puts in what it has stored under that id, for whoever has the account's key. What
    brings its own content is no reference, whatever its id is. Source: OpenAI's API reference (`input` of `/responses`, `items`
    of `/conversations`), its guides to reasoning and to images (an earlier picture by its id).
    """
    kinds = [kind.lower() for kind in _strings(item.get("type"))]
    is_reference = any(
        kind == "item_reference" or (kind in _OWN_CONTENT and not any(item.get(name) for name in _OWN_CONTENT[kind]))
        for kind in kinds
    )
    if is_reference or (not any(kinds) and "role" not in item):
        yield from (NamedId(id, "input", is_known_place=True) for id in _strings(item.get("id")))


# --- the ids of any body: forms, and lines of batch files ---

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
    return content_type[:10].lower() == b"multipart/" or json_may_name(body)


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
        if json_may_name(line) or b'"id"' in line.lower():
            yield from ids_in_line(line)
