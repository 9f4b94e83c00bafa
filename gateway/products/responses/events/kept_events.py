"""The answer of a call in the foreground as one that the gateway keeps: under its own id, whole or as events.

The id follows from the tenant and the provider's own, so that an answer that is given again, from a cache or to a repeated
request, has the same one.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from gateway.core.openai.sse.sse import event_json, split_events
from gateway.products.jobs.model.ids import derived_response_id

_KEPT: Final = frozenset(("completed", "incomplete"))
_LAST: Final = frozenset(("response.completed", "response.incomplete"))
_EVENT_END: Final = (b"\n\n", b"\r\n\r\n")


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
        if self._pending or not chunk.endswith(_EVENT_END):
            self._pending += chunk
            cut = max(self._pending.rfind(end) + len(end) if end in self._pending else 0 for end in _EVENT_END)
            chunk = bytes(self._pending[:cut])
            del self._pending[:cut]
        if b'"response"' not in chunk:
            return chunk
        made: list[bytes] = []
        for event in split_events(chunk):
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
        said = event_json(event) if b'"response"' in event else None
        response = None if said is None else said.get("response")
        if said is None or not isinstance(response, dict):
            return event
        said["response"] = self._own(response)
        if said.get("type") in _LAST:
            self._last, self.final = said, said["response"]
            return b""
        return _frame(said)

    def _own(self, response: dict[str, Any]) -> dict[str, Any]:
        id = derived_response_id(self._tenant, str(response.get("id")))
        return {**response, "id": id, "store": True, "previous_response_id": self._previous_id or None}


def _frame(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.get("type")).encode(), orjson.dumps(event))
