"""Keeps objects at providers apart by tenant: owners are checked before a call is sent, and recorded before its answer is.

    concerns -> admit (404 for what is not the tenant's) -> … -> learn (and lists filled) | watched (streams)

The pipeline makes these calls, and makes none where all callers are one tenant. Invariants: an id is recorded as its tenant's
before the client can use it; a caller that names another tenant's id gets the same answer as for an id that does not exist;
while the owner of an id is unknown, no caller gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from gateway.core.answers import FirstAnswer
from gateway.core.call import Call
from gateway.core.errors import NoTargetAvailable, NotFound, OwnerUnknown
from gateway.core.openai.sse.sse import json_object
from gateway.core.ports import Objects
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.provider_errors import ErrorClass
from gateway.features.ownership.rules.objects import Concern, concern_of, ids_in_path, key_of, own_idempotency_key
from gateway.features.ownership.rules.rules import ids as object_ids
from gateway.features.ownership.rules.rules.item_refs import KINDS as ITEM_KINDS
from gateway.features.ownership.rules.rules.rules import ObjectRules
from gateway.features.ownership.service.answers import (
    Announcements,
    Filling,
    id_of,
    ids_in_answer,
    ids_of_item,
    list_headers,
    read_page,
)
from gateway.features.reuse.layers.layers.records import result_or_default

IDEMPOTENCY_KEY = b"idempotency-key"
_NOT_YOURS = (
    "No such object: it does not exist, or it is not this key's; use an id that an answer to this key has named."
)


class Ownership:
    """Keeps the objects of tenants apart. One per process; holds no state of any call."""

    __slots__ = ("_objects",)

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def concerns(self, call: Call, rules: ObjectRules) -> bool:
        """Returns whether the call names or creates objects, and notes which on the call. To be called once, and first."""
        content_type = next((value for name, value in call.headers if name == b"content-type"), b"")
        if call.endpoint.request == "any":
            self._rename_key(call)
        if rules.is_open:
            return False
        call.objects = concern_of(call, object_ids.may_name(call.body, content_type))
        return call.objects is not None

    async def admit(self, call: Call, rules: ObjectRules) -> None:
        """Checks that all objects named by the call are its tenant's. Raises NotFound, OwnerUnknown or InvalidRequest."""
        concern = call.objects
        if concern is None:
            return
        named: dict[str, str | None] = dict.fromkeys(ids_in_path(concern, call.query))
        if concern.method not in ("GET", "HEAD", "DELETE") or call.body:
            content_type = next((value for name, value in call.headers if name == b"content-type"), b"")
            is_parsed = call.large is None or call.large.tokens < 0  # else these are top-level fields only
            parsed = call.parsed if is_parsed else None
            has_items = concern.place is not None and concern.place.kind in ITEM_KINDS
            for one in object_ids.ids_in_body(call.body, parsed, content_type, has_items=has_items):
                if one is None:
                    await asyncio.sleep(0)  # a large body: others may have their turn
                else:
                    named.setdefault(*one)
                if len(named) > object_ids.MOST_FOUND:
                    raise object_ids.too_many()
            if concern.place is not None and concern.place.kind == "evals" and object_ids.reads_everybodys(call.body):
                raise _not_yours("data_source")
        named = {id: field for id, field in named.items() if not rules.is_everybodys(id)}
        if named:
            await self._check(call, rules, named)

    async def learn(
        self, call: Call, opened: FirstAnswer, ask_again: Callable[[Call], Awaitable[FirstAnswer]]
    ) -> FirstAnswer:
        """Records the answer's objects as the tenant's; takes those of others out of a list, and fills it from more pages."""
        concern, rules = call.objects, call.policy.objects
        if concern is None or rules is None or opened.error_class is not None or opened.status >= 300:
            return opened
        if concern.is_list and opened.relay is None:
            return await self._fill(call, rules, concern, opened, ask_again)
        if opened.relay is None and concern.learns:
            answer = json_object(opened.body)
            if answer is not None:
                await self._own(call, rules, opened.target, ids_in_answer(concern, answer))
        place = concern.place
        if concern.method == "DELETE" and place is not None and place.id and not place.verb:
            await self._forget(call, rules, opened.target, place.id)
        return opened

    async def watched(
        self, call: Call, concern: Concern, target: Target, chunks: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of a stream, each one after the objects that it names have been recorded as the tenant's."""
        rules, announced = call.policy.objects, Announcements(concern)
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
            raise _cannot_say()
        owners = await result_or_default(self._objects.own(keys, tenant), None)
        if owners is None:
            raise _cannot_say()
        return [*owners]

    # --- asking ---

    async def _check(self, call: Call, rules: ObjectRules, named: dict[str, str | None]) -> None:
        """Checks that each id is the tenant's at one of the call's places, and no other tenant's at any of them."""
        ids = [*named]
        is_own = [False] * len(ids)
        for scope, is_strict in _scopes(call, rules):
            owners = await self._owners(scope, ids)
            for at, owner in enumerate(owners):
                if owner is not None and owner != call.tenant:
                    raise _not_yours(named[ids[at]])
                is_own[at] = is_own[at] or owner is not None or not is_strict
        for id, own in zip(ids, is_own, strict=True):
            if not own:
                raise _not_yours(named[id])

    async def _owners(self, scope: bytes, ids: Sequence[str]) -> Sequence[str | None]:
        owners = await result_or_default(self._objects.owners([key_of(scope, id) for id in ids]), None)
        if owners is None:
            raise _cannot_say()
        return owners

    # --- learning ---

    async def _own(self, call: Call, rules: ObjectRules, target: Target, ids: Sequence[str]) -> None:
        if ids and not _is_callers_account(call, target):
            scope = rules.scopes[target.provider]
            await result_or_default(self._objects.own([key_of(scope, id) for id in ids], call.tenant), None)

    async def _forget(self, call: Call, rules: ObjectRules, target: Target, id: str) -> None:
        if not rules.is_everybodys(id):
            await result_or_default(self._objects.disown([key_of(rules.scopes[target.provider], id)]), False)

    async def _fill(
        self,
        call: Call,
        rules: ObjectRules,
        concern: Concern,
        opened: FirstAnswer,
        ask_again: Callable[[Call], Awaitable[FirstAnswer]],
    ) -> FirstAnswer:
        """Returns one page of the tenant's own objects, from as many pages of the provider's as it needs and may read."""
        first, sent = opened, call.query
        filling = Filling(sent)
        try:
            while True:
                page = read_page(opened.body)
                if page is None:
                    raise NoTargetAvailable(
                        "The provider's list cannot be told apart by tenants: it is no JSON list. Ask for single objects, or "
                        "set 'objects: shared'."
                    )
                filling.add(page, await self._are_own(call, rules, concern, opened.target, page.items))
                query = filling.next_query
                if query is None:
                    break
                call.query = query
                opened = await ask_again(call)
                if opened.error_class is not None or opened.status != 200 or opened.relay is not None:
                    if opened.error_class is ErrorClass.BAD_REQUEST:
                        break  # it does not take our size of a page: what there is so far is true
                    return opened
        finally:
            call.query = sent
        return replace(first, headers=list_headers(first.headers), body=filling.body())

    async def _are_own(
        self, call: Call, rules: ObjectRules, concern: Concern, target: Target, items: Sequence[Any]
    ) -> list[bool]:
        if _is_callers_account(call, target):
            return [True] * len(items)
        ids = [id_of(item) for item in items]
        owners = await self._owners(rules.scopes[target.provider], ids)
        is_own = [owner == call.tenant or rules.is_everybodys(id) for id, owner in zip(ids, owners, strict=True)]
        if concern.place is not None:
            kind = concern.place.kind
            made = [id for item, own in zip(items, is_own, strict=True) if own for id in ids_of_item(kind, item)]
            await self._own(call, rules, target, made)
        return is_own

    def _rename_key(self, call: Call) -> None:
        """Makes the `Idempotency-Key` unique per tenant, for two tenants of one account may send the same."""
        if any(_is_callers_account(call, target) for target in call.model.plan):
            return
        call.headers = [
            (name, own_idempotency_key(value, call.tenant) if name == IDEMPOTENCY_KEY else value)
            for name, value in call.headers
        ]


def _scopes(call: Call, rules: ObjectRules) -> list[tuple[bytes, bool]]:
    """Returns the scope of ids for each place that the call may use, and whether its account is shared by tenants."""
    scopes: dict[bytes, bool] = {}
    for target in (*call.model.plan, *call.model.context_plan):
        scope = rules.scopes[target.provider]
        scopes[scope] = scopes.get(scope, False) or not _is_callers_account(call, target)
    return [*scopes.items()]


def _is_callers_account(call: Call, target: Target) -> bool:
    """Returns whether the caller's own credential decides which objects are visible."""
    if call.credential is None or target.name in call.model.withheld:
        return False
    return call.policy.providers[target.provider].is_callers


def _not_yours(field: str | None) -> NotFound:
    return NotFound(_NOT_YOURS, param=field, code="object_not_found")


def _cannot_say() -> OwnerUnknown:
    return OwnerUnknown(
        "Whose this object is cannot be said while the gateway's store is out of reach; try again soon."
    )
