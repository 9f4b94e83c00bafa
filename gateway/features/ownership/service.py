"""Objects at providers, kept apart by tenant: owners are checked before a call is sent, and recorded before its answer is.

    concerns -> admit (404 for what is not the tenant's) -> … -> learn (and lists filled) | watched (streams)

In this order: ids in answers; streams; lists without the objects of other tenants; the service, which the pipeline calls, and
does not call where all callers are one tenant; and the metrics. Ids are read only where a provider puts what it has made
itself, never where it repeats what the caller wrote: else a caller could make any id its own by writing it into a request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

import orjson

from gateway.core.call import (
    ALONE,
    Call,
    CallFeature,
    CallRoute,
    Chunks,
    ErrorAnswer,
    Open,
    Opened,
    Reply,
    Serve,
    Slot,
    Stream,
    Whole,
)
from gateway.core.errors import GatewayError, InvalidRequest, NoTargetAvailable, NotFound
from gateway.core.metrics import Counts, Levels, MetricTable
from gateway.core.openai.sse import event_data, json_object
from gateway.core.ports import result_or_default
from gateway.core.snapshot import Target
from gateway.core.types import ErrorClass, StreamedBody
from gateway.dialects.openai.lists import Page, id_of, read_page
from gateway.features.ownership.objects import (
    CHAT,
    MESSAGES,
    RESPONSES,
    ObjectAccess,
    ObjectPath,
    concern_of,
    ids_in_path,
    key_of,
    own_idempotency_key,
)
from gateway.features.ownership.rules import (
    MOST_FOUND,
    OBJECTS,
    NamedId,
    ObjectRules,
    endpoint_of,
    ids_in_body,
    may_name,
    reads_everybodys,
)
from gateway.features.ownership.store import Objects

MOST_PAGES = 10
"""The most pages that a provider is asked for, to fill one."""
PAGE = 100
"""The objects on each page but the first: the most that OpenAI gives of most kinds."""
_MARKS = (b"etag", b"last-modified", b"content-length")
_LONGEST_OPENING = 1_048_576
_MANY_EVENTS = 64
_OPENING = re.compile(
    rb'data: ?\{\s*(?:"type"\s*:\s*"response\.[a-z_]+"\s*,\s*(?:"sequence_number"\s*:\s*\d+\s*,\s*)?"response"\s*:\s*\{\s*)?'
    rb'"id"\s*:\s*"([^"\\]{1,200})"'
)
"""The first events of OpenAI's streams; nothing of the caller's comes before them."""


def ids_in_answer(concern: ObjectAccess, answer: Mapping[str, Any]) -> list[str]:
    """Returns the ids that an answer to this request makes the caller's."""
    place = concern.place
    if place is None or not concern.learns:
        return []
    found = [*_created(place, answer)] if concern.method == "POST" else []
    return [id for id in (*found, *_made(place, answer)) if isinstance(id, str) and id]


def _created(place: ObjectPath, answer: Mapping[str, Any]) -> Iterator[Any]:
    if place.kind == "threads" and place.verb == "runs" and not place.id:
        yield answer.get("thread_id")
    elif not place.id or place.verb == "remix":
        yield answer.get("id")
    elif place.kind == "uploads" and place.verb == "complete":
        yield _at(answer, "file", "id")


def _made(place: ObjectPath, answer: Mapping[str, Any]) -> Iterator[Any]:
    """Yields further ids that came into being with the answer."""
    if place.kind == "batches":
        yield from (answer.get("output_file_id"), answer.get("error_file_id"))
    elif place.kind == "fine_tuning/jobs":
        yield answer.get("fine_tuned_model")
        yield from _listed(answer.get("result_files"))
    elif place.kind in ("assistants", "threads"):
        yield from _listed(_at(answer, "tool_resources", "file_search", "vector_store_ids"))
    elif place.kind == "responses":
        for item in _listed(answer.get("output")):
            yield from _of_item(item)


def _of_item(item: Any) -> Iterator[Any]:
    """Yields the ids of a response's item, which another response can name, and of the container that it used."""
    if not isinstance(item, dict):
        return
    yield item.get("id")
    if item.get("type") in ("code_interpreter_call", "shell_call"):
        yield from (item.get("container_id"), _at(item, "environment", "container_id"))


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# --- streams ---


class Announcements:
    """Reads from a stream of events, as its bytes go by, the ids that it makes its caller's."""

    __slots__ = ("_concern", "_events", "_has_items", "_held", "_is_begun", "_logged")

    def __init__(self, concern: ObjectAccess) -> None:
        self._concern = concern
        self._held = b""
        self._events = 0
        self._has_items = concern.place is not None and concern.place.kind == RESPONSES.kind
        self._logged = set[str]()
        self._is_begun = False
        """The created object is known; ids that come into being later are reported when they do."""

    def read(self, block: bytes) -> list[str]:
        """Returns the ids that have come with these bytes."""
        ids = [] if self._is_begun else self._begin(block)
        if self._has_items and (b'"item"' in block or b'"output"' in block):
            later = dict.fromkeys(id for event in _events(block) for id in self._later(event))
            ids += [id for id in later if id not in self._logged]
            self._logged.update(later)
        return ids

    def _begin(self, block: bytes) -> list[str]:
        held = self._held + block
        if self._concern.place in (CHAT, RESPONSES) and (opening := _OPENING.search(held)) is not None:
            self._end()
            return [opening[1].decode("utf-8", "replace")]
        whole, between, self._held = held.rpartition(b"\n\n" if b"\r\n\r\n" not in held else b"\r\n\r\n")
        for event in _events(whole + between):
            ids = [*self._first(event)]
            self._events += 1
            if ids or self._events > _MANY_EVENTS:
                self._end()
                return ids
        if len(self._held) > _LONGEST_OPENING:
            self._end()
        return []

    def _end(self) -> None:
        self._is_begun, self._held = True, b""

    def _first(self, event: Mapping[str, Any]) -> Iterator[str]:
        place = self._concern.place
        if place is not None and place.kind == "threads":
            found = event.get("id") if event.get("object") == "thread" else event.get("thread_id")
        else:
            inside = "response" if place == RESPONSES else "message" if place == MESSAGES else None
            found = event.get("id") if inside is None else _at(event, inside, "id")
        if isinstance(found, str) and found:
            yield found

    def _later(self, event: Mapping[str, Any]) -> Iterator[str]:
        items = [event.get("item"), *_listed(_at(event, "response", "output"))]
        yield from (id for item in items for id in _of_item(item) if isinstance(id, str) and id)


def _events(block: bytes) -> Iterator[dict[str, Any]]:
    for event in block.replace(b"\r\n", b"\n").split(b"\n\n"):
        value = json_object(event_data(event))
        if value is not None:
            yield value


# --- lists ---


class Filling:
    """One page of the caller's own objects, filled from a provider's pages."""

    def __init__(self, query: bytes) -> None:
        params = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
        limit = params.get("limit", "")
        self._limit = int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 9 else None
        self._goes_back = "before" in params and "after" not in params
        self._params = params
        self._first: Page | None = None
        self._last: Page | None = None
        self._own: list[Any] = []
        self.pages = 0

    def add(self, page: Page, is_own: Sequence[bool]) -> None:
        """Adds a page; `is_own` says which of its objects are the caller's."""
        self.pages += 1
        if self._first is None:
            self._first = page
            if self._limit is None:
                self._limit = len(page.items)
        self._last = page
        kept = [item for item, own in zip(page.items, is_own, strict=True) if own]
        self._own = [*kept, *self._own] if self._goes_back else [*self._own, *kept]

    @property
    def next_query(self) -> bytes | None:
        """Returns the query for the next page; None: the page is full, or the list has ended."""
        page = self._last
        if page is None or self._limit is None or self.pages >= MOST_PAGES:
            return None
        if not page.has_more or len(self._own) > self._limit:
            return None
        cursor = id_of(page.items[0 if self._goes_back else -1])
        if not cursor:
            return None
        params = {
            **self._params,
            "limit": str(max(PAGE, self._limit)),
            "before" if self._goes_back else "after": cursor,
        }
        return urlencode(params).encode()

    def body(self) -> bytes:
        """Returns the page for the caller: `has_more`, `first_id` and `last_id` are those of its own objects."""
        first, last = self._first, self._last
        if first is None or last is None:
            return b""
        limit = self._limit or 0
        if not isinstance(first.whole, dict):
            return orjson.dumps(self._own)
        own = self._own[-limit:] if self._goes_back and limit else self._own[:limit]
        if "has_more" not in first.whole:
            own = self._own  # what was left out could not be asked for
        page = {**first.whole, "data": own}
        for name, value in (
            ("has_more", last.has_more or len(self._own) > len(own)),
            ("first_id", id_of(own[0]) if own else None),
            ("last_id", id_of(own[-1]) if own else None),
            ("total", len(own)),
            ("total_count", len(own)),
        ):
            if name in page:
                page[name] = value
        return orjson.dumps(page)


# --- the service ---

IDEMPOTENCY_KEY = b"idempotency-key"
_NOT_YOURS = (
    "No such object: it does not exist, or it is not this key's; use an id that an answer to this key has named."
)
ACCESS: Final[Slot[ObjectAccess]] = Slot("object access")
"""The objects that the call names or creates, where tenants share an account; none: it concerns no objects."""


class Ownership(CallFeature):
    """Keeps the objects of tenants apart. One per process; holds no state of any call.

    Invariants: an id is recorded as its tenant's before the client can use it; a caller that names another tenant's id gets the
    same answer as for an id that does not exist; while the owner of an id is unknown, no caller gets it.
    """

    __slots__ = ("_objects", "metrics")

    name = "objects"
    options: frozenset[bytes] = frozenset()

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.metrics: ObjectMetrics = ObjectMetrics()

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself where tenants share a provider's account."""
        return None if OBJECTS.of(route.policy) is None else self

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the reply to a call whose objects are all its tenant's. Raises NotFound, OwnerUnknown or InvalidRequest."""
        rules = OBJECTS.of(call.route.policy)
        if rules is not None and self.concerns(call, rules):
            await self.admit(call, rules)
        return await next(call)

    async def open(self, call: Call, next: Open) -> Opened:
        """Returns the answer, its objects recorded as the tenant's, those of others left out of a list."""
        opened = await next(call)
        return opened if ACCESS.find(call) is None else await self.learn(call, opened, next)

    def relay(self, call: Call, opened: Stream, chunks: Chunks) -> Chunks:
        """Returns the chunks of a stream, each one after the objects that it names have been recorded."""
        concern = ACCESS.find(call)
        return (
            chunks
            if concern is None or not concern.learns
            else self.watched(call, concern, opened.attempt.target, chunks)
        )

    def concerns(self, call: Call, rules: ObjectRules) -> bool:
        """Returns whether the call names or creates objects, and puts which on the call. To be called once, and first."""
        content_type = next((value for name, value in call.request.headers if name == b"content-type"), b"")
        if call.request.endpoint.request == "any":
            self._rename_key(call)
        if rules.is_open:
            return False
        concern = concern_of(call, may_name(call.request.body, content_type))
        if concern is None:
            return False
        ACCESS.put(call, concern)
        ALONE.put(call, True)  # what it names may be its tenant's only
        if concern.reads_answer:
            call.reads = "all" if concern.is_list else "some"
        return True

    async def admit(self, call: Call, rules: ObjectRules) -> None:
        """Checks that all objects named by the call are its tenant's. Raises NotFound, OwnerUnknown or InvalidRequest."""
        concern = ACCESS.find(call)
        if concern is None:
            return
        named = {id: NamedId(id, "", is_known_place=True) for id in ids_in_path(concern, call.request.query)}
        at_known_places = 0
        is_read = not isinstance(call.request.body, StreamedBody)  # an upload names no object
        if is_read and (concern.method not in ("GET", "HEAD", "DELETE") or call.request.body):
            content_type = next((value for name, value in call.request.headers if name == b"content-type"), b"")
            is_parsed = (
                call.request.large is None or call.request.large.tokens < 0
            )  # else these are top-level fields only
            parsed = call.parsed if is_parsed else None
            for one in ids_in_body(call.request.body, parsed, content_type, _endpoint_of(call)):
                if one is None:
                    await asyncio.sleep(0)  # a large body: others may have their turn
                elif one.is_known_place or one.id not in named:
                    named[one.id] = one
                    at_known_places += one.is_known_place
                if at_known_places > MOST_FOUND:
                    raise InvalidRequest(
                        f"The body names more than {MOST_FOUND} objects; send it in parts.", code="too_many_objects"
                    )
            if concern.place is not None and concern.place.kind == "evals" and reads_everybodys(call.request.body):
                raise _not_yours("data_source")
        await self._check(call, rules, [one for one in named.values() if not rules.is_everybodys(one.id)])

    async def learn(self, call: Call, opened: Opened, ask_again: Callable[[Call], Awaitable[Opened]]) -> Opened:
        """Records the answer's objects as the tenant's; takes those of others out of a list, and fills it from more pages."""
        concern, rules = ACCESS.find(call), OBJECTS.of(call.route.policy)
        if concern is None or rules is None or isinstance(opened, ErrorAnswer) or opened.status >= 300:
            return opened
        if concern.is_list and isinstance(opened, Whole):
            return await self._fill(call, rules, concern, opened, ask_again)
        if isinstance(opened, Whole) and concern.learns:
            answer = json_object(opened.body)
            if answer is not None:
                await self._own(call, rules, opened.attempt.target, ids_in_answer(concern, answer))
        place = concern.place
        if concern.method == "DELETE" and place is not None and place.id and not place.verb:
            await self._forget(call, rules, opened.attempt.target, place.id)
        return opened

    async def watched(
        self, call: Call, concern: ObjectAccess, target: Target, chunks: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of a stream, each one after the objects that it names have been recorded as the tenant's."""
        rules, announced = OBJECTS.of(call.route.policy), Announcements(concern)
        try:
            async for chunk in chunks:
                ids = announced.read(chunk)
                if ids and rules is not None:
                    await self._own(call, rules, target, ids)
                yield chunk
        finally:
            await chunks.aclose()

    async def claim(
        self, rules: ObjectRules, provider: str, tenant: str, ids: Sequence[str], *, moves: bool
    ) -> list[str]:
        """Gives existing objects to a tenant, with `moves` also those of another; returns the owner of each after that.

        Raises OwnerUnknown while the store is out of reach.
        """
        keys = [key_of(rules.scopes[provider], id) for id in ids]
        if moves and not await result_or_default(self._objects.disown(keys), False):
            raise _owner_unknown()
        owners = await result_or_default(self._objects.own(keys, tenant), None)
        if owners is None:
            raise _owner_unknown()
        return [*owners]

    # --- asking ---

    async def _check(self, call: Call, rules: ObjectRules, named: Sequence[NamedId]) -> None:
        """Checks that no id is another tenant's at any of the call's places, and each at a known place the tenant's at one."""
        is_own = [not one.is_known_place for one in named]
        for scope, is_strict in _scopes(call, rules) if named else ():
            owners: list[str | None] = []
            for at in range(0, len(named), MOST_FOUND):
                owners += await self._owners(scope, [one.id for one in named[at : at + MOST_FOUND]])
            for at, owner in enumerate(owners):
                if owner is not None and owner != call.request.tenant:
                    raise _not_yours(named[at].field)
                is_own[at] = is_own[at] or owner is not None or not is_strict
        for one, own in zip(named, is_own, strict=True):
            if not own:
                raise _not_yours(one.field)

    async def _owners(self, scope: bytes, ids: Sequence[str]) -> Sequence[str | None]:
        owners = await result_or_default(self._objects.owners([key_of(scope, id) for id in ids]), None)
        if owners is None:
            raise _owner_unknown()
        return owners

    # --- learning ---

    async def _own(self, call: Call, rules: ObjectRules, target: Target, ids: Sequence[str]) -> None:
        if ids and not _is_callers_account(call, target):
            scope = rules.scopes[target.provider]
            await result_or_default(self._objects.own([key_of(scope, id) for id in ids], call.request.tenant), None)

    async def _forget(self, call: Call, rules: ObjectRules, target: Target, id: str) -> None:
        if not rules.is_everybodys(id):
            await result_or_default(self._objects.disown([key_of(rules.scopes[target.provider], id)]), False)

    async def _fill(
        self,
        call: Call,
        rules: ObjectRules,
        concern: ObjectAccess,
        opened: Whole,
        ask_again: Callable[[Call], Awaitable[Opened]],
    ) -> Opened:
        """Returns one page of the tenant's own objects, from as many pages of the provider's as it needs and may read."""
        first, sent, attempt = opened, call.request, opened.attempt
        filling = Filling(sent.query)
        try:
            while True:
                page = read_page(opened.body)
                if page is None:
                    raise NoTargetAvailable(
                        "The provider's list cannot be told apart by tenants: it is no JSON list. Ask for single objects, or "
                        "set 'objects: shared'."
                    )
                filling.add(page, await self._are_own(call, rules, concern, opened.attempt.target, page.items))
                query = filling.next_query
                if query is None:
                    break
                call.replace_request(replace(sent, query=query), call.parsed)
                again = await ask_again(call)
                attempt = again.attempt
                if not isinstance(again, Whole) or again.status != 200:
                    if isinstance(again, ErrorAnswer) and again.error_class is ErrorClass.BAD_REQUEST:
                        break  # it does not take our size of a page: what there is so far is true
                    return again
                opened = again
        finally:
            call.replace_request(sent, call.parsed)
        # Without the headers that describe the provider's bytes.
        headers = [header for header in first.headers if header[0] not in _MARKS]
        return replace(first, attempt=attempt, headers=headers, body=filling.body())

    async def _are_own(
        self, call: Call, rules: ObjectRules, concern: ObjectAccess, target: Target, items: Sequence[Any]
    ) -> list[bool]:
        if _is_callers_account(call, target):
            return [True] * len(items)
        ids = [id_of(item) for item in items]
        owners = await self._owners(rules.scopes[target.provider], ids)
        is_own = [
            owner == call.request.tenant or rules.is_everybodys(id) for id, owner in zip(ids, owners, strict=True)
        ]
        if concern.place is not None:
            # What an object of the caller's own shows in the list is the caller's, too.
            kind, own_items = (
                ObjectPath(concern.place.kind),
                [item for item, own in zip(items, is_own, strict=True) if own],
            )
            made = [id for item in own_items for id in _made(kind, item) if isinstance(id, str) and id]
            await self._own(call, rules, target, made)
        return is_own

    def _rename_key(self, call: Call) -> None:
        """Makes the `Idempotency-Key` unique per tenant, for two tenants of one account may send the same."""
        if any(_is_callers_account(call, target) for target in call.route.model.plan):
            return
        headers = [
            (name, own_idempotency_key(value, call.request.tenant) if name == IDEMPOTENCY_KEY else value)
            for name, value in call.request.headers
        ]
        call.replace_request(replace(call.request, headers=headers), call.parsed)


def _scopes(call: Call, rules: ObjectRules) -> list[tuple[bytes, bool]]:
    """Returns the scope of ids for each place that the call may use, and whether its account is shared by tenants."""
    scopes: dict[bytes, bool] = {}
    for target in (*call.route.model.plan, *call.route.model.context_plan):
        scope = rules.scopes[target.provider]
        scopes[scope] = scopes.get(scope, False) or not _is_callers_account(call, target)
    return [*scopes.items()]


def _endpoint_of(call: Call) -> str:
    """Returns the name by which the places of ids in the call's body are looked up."""
    name = call.request.endpoint.name
    if call.request.endpoint.request == "any":
        return endpoint_of(call.request.path)
    return "messages" if name == "count_tokens" else name


def _is_callers_account(call: Call, target: Target) -> bool:
    """Returns whether the caller's own credential decides which objects are visible."""
    if call.request.credential is None or target.name in call.route.model.without_caller_credential:
        return False
    return call.route.policy.providers[target.provider].is_callers


def _not_yours(field: str) -> NotFound:
    return NotFound(_NOT_YOURS, param=field or None, code="object_not_found")


class OwnerUnknown(GatewayError):
    """The store is out of reach, so an object's owner is unknown; meanwhile no tenant gets the object."""

    status = 503
    should_retry: bool | None = True
    retry_after_s = 1.0
    code = "state_unavailable"


def _owner_unknown() -> OwnerUnknown:
    return OwnerUnknown(
        "Whose this object is cannot be said while the gateway's store is out of reach; try again soon."
    )


class ObjectMetrics(MetricTable):
    """The metrics of the objects whose owners are known."""

    after = "estimated_usage_total"

    def __init__(self) -> None:
        self.objects = Levels("objects", "Objects at providers of which it is known whose they are.")
        self.objects_lost = Counts(
            "objects_forgotten_total", "Objects of which that was forgotten for want of room: their tenants get 404."
        )

    def set_objects(self, entries: int, lost: int) -> None:
        """Sets of how many objects the store knows whose they are, and of how many it has had to forget that."""
        self.objects.values[()] = entries
        self.objects_lost.totals[()] = lost
