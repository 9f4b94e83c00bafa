"""The events of a response that runs in the background, made of a provider's: with its own id, and numbers without gaps.

    created queued in_progress … (completed | incomplete | failed)

The first two follow from the job alone, so whoever waits for a worker has them already. Each run of the model ("generation")
numbers its events from a multiple of GENERATION_STEP on: a number says of which run it is, so that nobody who comes back can
be given the end of another answer than the one he has begun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.core.openai.sse import event_data, event_json, json_object, split_events
from gateway.products.jobs.model import derived_response_id
from gateway.products.responses.rules import failure

# The answer of a call in the foreground as one that the gateway keeps: under its own id, whole or as events.
#
# The id follows from the tenant and the provider's own, so that an answer that is given again, from a cache or to a repeated
# request, has the same one.


_KEPT: Final = frozenset(("completed", "incomplete"))
_LAST: Final = frozenset(("response.completed", "response.incomplete"))
_EVENT_ENDS: Final = (b"\n\n", b"\r\n\r\n")


class KeptEvents:
    """Puts the gateway's id into the answer to one call."""

    def __init__(self, tenant: str, previous_id: str) -> None:
        self._tenant = tenant
        self._previous_id = previous_id
        self._pending = bytearray()
        self._last: dict[str, Any] = {}
        self._behind = b""
        self.final: dict[str, Any] | None = None
        """The response at its end, which is to be kept before its event goes out by `end`."""

    def whole(self, response: dict[str, Any]) -> dict[str, Any] | None:
        """Returns a whole answer under the gateway's id; None: it is none, or has failed, and is not kept."""
        if response.get("object") != "response" or response.get("status") not in _KEPT:
            return None
        return self._own(response)

    def feed(self, chunk: bytes) -> bytes:
        """Returns the events of this chunk up to that of the end."""
        block = _whole_events(self._pending, chunk)
        if b'"response"' not in block:
            return block
        made: list[bytes] = []
        for event in split_events(block):
            if self.final is not None:
                self._behind += event
            else:
                made.append(self._read(event))
        return b"".join(made)

    def end(self, *, is_kept: bool) -> bytes:
        """Returns the event of the end, and what came with it."""
        if self.final is not None and not is_kept:
            self._last["response"] = {**self.final, "store": False}
        behind, self._behind, self.final = self._behind, b"", None
        return _frame(self._last) + behind

    def rest(self) -> bytes:
        """Returns what had no end."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _read(self, event: bytes) -> bytes:
        parsed = event_json(event) if b'"response"' in event else None
        response = None if parsed is None else parsed.get("response")
        if parsed is None or not isinstance(response, dict):
            return event
        parsed["response"] = self._own(response)
        if parsed.get("type") in _LAST:
            self._last, self.final = parsed, parsed["response"]
            return b""
        return _frame(parsed)

    def _own(self, response: dict[str, Any]) -> dict[str, Any]:
        id = derived_response_id(self._tenant, str(response.get("id")))
        return {**response, "id": id, "store": True, "previous_response_id": self._previous_id or None}


def _whole_events(pending: bytearray, chunk: bytes) -> bytes:
    """Returns the events that a chunk completes; what is none yet stays in `pending`."""
    if not pending and chunk.endswith(_EVENT_ENDS):
        return chunk
    pending += chunk
    cut = max(pending.rfind(end) + len(end) if end in pending else 0 for end in _EVENT_ENDS)
    block = bytes(pending[:cut])
    del pending[:cut]
    return block


def _frame(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.get("type")).encode(), orjson.dumps(event))


GENERATION_STEP: Final = 1_000_000
"""More events than one answer has."""
ANNOUNCED: Final = 2
"""`response.created` and `response.queued`."""
MOST_HELD_BYTES: Final = 64 * 1024 * 1024
ENDS: Final = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
"""The last one is of logs that an older gateway has written, and of providers that go their own way."""
_REPLACED: Final = frozenset(("response.created", "response.queued"))
_NUMBER: Final = re.compile(rb'"sequence_number": ?(\d+)')
_DIGITS: Final = re.compile(rb" ?\d+")
_DELTA: Final = re.compile(rb'\{"type": ?"(response\.[a-z_.]+\.delta)"')


class EndlessEvent(ValueError):
    """An event of a provider's has no end in sight."""


def frame(kind: str, number: int, fields: Mapping[str, Any]) -> bytes:
    """Returns an event as it goes over the wire."""
    event = {"type": kind, "sequence_number": number, **fields}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


def announcements(queued: Mapping[str, Any]) -> list[bytes]:
    """Returns the events of a response that nobody has begun with, of generation 0."""
    return [
        frame(kind, number, {"response": queued}) for number, kind in enumerate(("response.created", "response.queued"))
    ]


def number_of(event: bytes) -> int:
    """Returns the number of an event that `OwnEvents` has made."""
    found = _NUMBER.search(event)
    return -1 if found is None else int(found[1])


def is_end(event: bytes) -> bool:
    """Tells whether nothing follows an event that `OwnEvents` has made."""
    return event[7 : event.find(b"\n")].decode("latin-1") in ENDS


class OwnEvents:
    """Makes the events of one generation; those that end it are held back, and asked for by `end`."""

    def __init__(self, own: Mapping[str, Any], queued: Mapping[str, Any], generation: int) -> None:
        """`own` are the fields that replace a provider's; `queued` is the response before anything was answered."""
        self._own = own
        self._queued = queued
        self._pending = bytearray()
        self._items: dict[int, Any] = {}
        self._response: dict[str, Any] = dict(queued)
        self.next_number = generation * GENERATION_STEP
        self._has_begun = False
        self.final: dict[str, Any] | None = None
        """The response at its end, as the provider has it."""
        self.error: dict[str, Any] | None = None
        """What the provider has reported instead of an end."""

    @property
    def has_begun(self) -> bool:
        """Tells whether there are events of this generation."""
        return self._has_begun

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the events that this chunk of a provider's stream has completed. Raises EndlessEvent."""
        block = _whole_events(self._pending, chunk)
        if not block and len(self._pending) > MOST_HELD_BYTES:
            raise EndlessEvent(f"an event has more than {MOST_HELD_BYTES} bytes")
        made: list[bytes] = []
        for event in split_events(block):
            self._read(event, made)
        return made

    def plain(self, event: bytes) -> bytes | None:
        """Returns a usual event, which brings only more of the answer, with its own number; None: it has to be fed.

        `event` is one whole event, of two lines: its name, and its data with that as `type`.
        """
        if self._pending or not self._has_begun or self.final is not None:
            return None
        name_end = event.find(b"\n")
        if not event.startswith(b'data: {"type":"%b"' % event[7:name_end], name_end + 1):
            return None
        before, _, behind = event.partition(b'"sequence_number":')
        digits = _DIGITS.match(behind)
        if digits is None or b'"sequence_number":' in behind:
            return None
        made = b'%b"sequence_number":%d%b' % (before, self.next_number, behind[digits.end() :])
        self.next_number += 1
        return made

    def end(self, response: Mapping[str, Any]) -> list[bytes]:
        """Returns the last events: that of the response's end, and all before it that there has to be.

        OpenAI has no event for a cancelled response (openai-openapi, `ResponseStreamEvent`): it is `response.failed` with the
        status `cancelled`, as in Microsoft's server of that API (azure-sdk-for-python, azure-ai-agentserver-responses, B26).
        """
        made: list[bytes] = []
        if not self._has_begun:
            self._begin(made, is_running=False)
        kind = "failed" if response["status"] == "cancelled" else response["status"]
        made.append(self._frame(f"response.{kind}", {"response": response}))
        return made

    def so_far(self) -> dict[str, Any]:
        """Returns the response with the items that are done, for an end that is not the provider's."""
        return {**self._response, **self._own, "output": [self._items[at] for at in sorted(self._items)], "usage": None}

    def _read(self, event: bytes, made: list[bytes]) -> None:
        data = event_data(event).strip()
        if not data:
            return  # a comment
        if self._has_begun and (kind := _DELTA.match(data)) and len(_NUMBER.findall(data)) == 1:
            # the usual event: nothing in it is the gateway's but its number
            data = _NUMBER.sub(b'"sequence_number":%d' % self.next_number, data, count=1)
            made.append(b"event: %b\ndata: %b\n\n" % (kind[1], data))
            self.next_number += 1
            return
        parsed = json_object(data)
        if parsed is None or self.final is not None or self.error is not None:
            return  # [DONE], as some send; the failed response behind an error; nonsense is found by the relay
        kind = parsed.get("type")
        if not isinstance(kind, str) or kind == "error" or "error" in parsed:
            self.error = _error_in(parsed)
            return
        self._take(kind, parsed, made)

    def _take(self, kind: str, event: dict[str, Any], made: list[bytes]) -> None:
        response = event.get("response")
        if isinstance(response, dict):
            self._response = event["response"] = {**response, **self._own}
        if kind in ENDS:
            self.final = self._response
            if self._items and not self.final.get("output"):  # some providers leave the output to the events before
                self.final = {**self.final, "output": [self._items[at] for at in sorted(self._items)]}
            return
        if kind in _REPLACED:
            return
        if not self._has_begun:
            self._begin(made, is_running=kind != "response.in_progress")
        if kind == "response.output_item.done" and isinstance(event.get("output_index"), int):
            self._items[event["output_index"]] = event.get("item")
        event.pop("type")
        event.pop("sequence_number", None)
        made.append(self._frame(kind, event))

    def _begin(self, made: list[bytes], *, is_running: bool) -> None:
        self._has_begun = True
        made += [self._frame(kind, {"response": self._queued}) for kind in ("response.created", "response.queued")]
        if is_running:
            running = {**self._response, **self._own, "status": "in_progress"}
            made.append(self._frame("response.in_progress", {"response": running}))

    def _frame(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        made = frame(kind, self.next_number, fields)
        self.next_number += 1
        return made


def _error_in(event: dict[str, Any]) -> dict[str, Any]:
    error = event.get("error")
    inner = error if isinstance(error, dict) else event
    message, code = inner.get("message"), inner.get("code") or inner.get("type")
    text = message if isinstance(message, str) else "The provider reported an error."
    return failure(text, str(code), str(inner.get("type")))
