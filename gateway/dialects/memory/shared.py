"""What turns were signed with, where several processes find it: in the store of the answers, beside these.

A worker or replica that is asked to go on with a turn of another one's looks here, once. Nobody waits for what is put here;
what cannot be read, because the store is out of reach or another release wrote it, is as good as not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from gateway.core.ports import Answers, Later
from gateway.core.types.words import THINKING, Kept

SHARED_FOR_S: Final = 3600.0
"""How long a turn is found there, from when it was said."""
MOST_LOOKED_FOR: Final = 100
"""So many turns of a request are looked for, the last ones: each is asked of the store by itself, all at once."""
PATIENCE_S: Final = 0.5
"""A call waits no longer for them; it goes without them, as it would anyway."""


class SharedTurn(NamedTuple):
    """A turn as it is found there."""

    issuer: str
    digest: bytes
    signed: bytes


class SharedTurns:
    """Turns of all tenants. All but `put` is for the thread of the running loop."""

    def __init__(self, answers: Answers, wall: Callable[[], float]) -> None:
        self._answers = answers
        self._wall = wall
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """Takes the running loop for the one that the store is used by."""
        self._loop = asyncio.get_running_loop()

    def put(self, owner: str, id: str, turn: SharedTurn) -> None:
        """Has a turn stored soon; from any thread, behind `bind`."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._store, owner, id, turn)

    async def find(self, owner: str, ids: Sequence[str]) -> dict[str, SharedTurn | None]:
        """Returns by id what the store says of the owner's turns: None where it has none."""
        asked = {id: self._answers.get(_key(owner, id), THINKING) for id in ids[-MOST_LOOKED_FOR:]}
        waited_for = [answer for answer in asked.values() if isinstance(answer, asyncio.Future)]
        if waited_for:
            await asyncio.wait(waited_for, timeout=PATIENCE_S)
        return {id: _turn_in(answer) for id, answer in asked.items() if _is_there(answer)}

    def _store(self, owner: str, id: str, turn: SharedTurn) -> None:
        now = self._wall()
        until = now + SHARED_FOR_S
        self._answers.put(
            _key(owner, id),
            Kept(
                status=200,
                headers=[(b"issuer", turn.issuer.encode()), (b"digest", turn.digest.hex().encode())],
                body=turn.signed,
                is_stream=False,
                endpoint="chat",
                model="",
                tenant=owner.partition("\0")[0],
                group=THINKING,
                source="",
                target="",
                stored_at=now,
                fresh_until=until,
                stale_until=until,
            ),
        )


def _key(owner: str, id: str) -> bytes:
    return blake2b(f"{len(owner)}:{owner}{id}".encode("utf-8", "surrogatepass"), digest_size=32).digest()


def _is_there(answer: Later[Kept | None]) -> bool:
    return not isinstance(answer, asyncio.Future) or answer.done()


def _turn_in(answer: Later[Kept | None]) -> SharedTurn | None:
    kept = answer.result() if isinstance(answer, asyncio.Future) else answer
    if kept is None:
        return None
    told = dict(kept.headers)
    try:
        return SharedTurn(told[b"issuer"].decode(), bytes.fromhex(told[b"digest"].decode()), kept.body)
    except (KeyError, ValueError):
        return None
