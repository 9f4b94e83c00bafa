"""What connections of Responses remember of their own conversations, where nobody else keeps these.

A response with `store: false`, or of a model behind chat completions, can be gone on from while its connection is open, as at
OpenAI. It must not outlive the connection, nor be seen by another one. Invariant: never more than MOST_BYTES in all.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MOST_BYTES: Final = 128 * 1024 * 1024
MOST_EACH_BYTES: Final = 8 * 1024 * 1024
MOST_EACH: Final = 16
"""Conversations of one connection: each of its streams has its latest ones."""
_PLACE_BYTES: Final = 256


class ConversationMemory:
    """The conversations of all connections of the process; of too many the oldest go."""

    __slots__ = ("_all", "_of", "bytes")

    def __init__(self) -> None:
        self._all: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._of: dict[int, OrderedDict[str, int]] = {}
        self.bytes = 0

    def remember(self, connection: int, response_id: str, items: bytes) -> None:
        """Remembers the items up to and with a response; one that is too long is not remembered."""
        if len(items) > MOST_EACH_BYTES:
            return
        self._drop((connection, response_id))
        known = self._of.setdefault(connection, OrderedDict())
        known[response_id] = len(items) + _PLACE_BYTES
        self._all[connection, response_id] = items
        self.bytes += len(items) + _PLACE_BYTES
        while len(known) > MOST_EACH or (len(known) > 1 and sum(known.values()) > MOST_EACH_BYTES):
            self._drop((connection, next(iter(known))))
        while self.bytes > MOST_BYTES:
            self._drop(next(iter(self._all)))

    def find(self, connection: int, response_id: str) -> bytes | None:
        """Returns the items up to and with a response of this connection; None: they are not known here."""
        return self._all.get((connection, response_id))

    def forget(self, connection: int) -> None:
        """Forgets all of a connection."""
        for response_id in list(self._of.get(connection, ())):
            self._drop((connection, response_id))

    def _drop(self, name: tuple[int, str]) -> None:
        if self._all.pop(name, None) is None:
            return
        connection, response_id = name
        known = self._of[connection]
        self.bytes -= known.pop(response_id)
        if not known:
            del self._of[connection]
