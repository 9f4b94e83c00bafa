"""What models' turns were signed with, kept in this process for callers that do not send it back.

It lives as long as the process, whatever the config becomes; where several processes share a store, what one of them keeps the
others find there. Each tenant has its own, and so has each credential that callers
bring themselves; nobody finds what another one was told. When it is full, what was not asked for the longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

import orjson

from gateway.dialects.memory.remembered import MOST_TURN_BYTES, SaidTurn, SignedElsewhere
from gateway.dialects.memory.shared import SharedTurn, SharedTurns

MOST_BYTES: Final = 32 * 1024 * 1024
"""All of it, what it takes to find it included."""
KEPT_FOR_S: Final = 3600.0
"""How long a turn is kept that nobody asks for."""
UNKNOWN_FOR_S: Final = 60.0
"""How long a turn that other processes do not know either is not asked of them again."""
MOST_UNKNOWN: Final = 4_096
"""So many such turns are known; callers may name any, and take no room from what was signed."""
MOST_SHARED_CHARACTERS: Final = 256
"""No turn with a longer id is asked of other processes; providers' ids have 64 at most."""
ENTRY_BYTES: Final = 600
"""What an entry takes besides what was signed, at most: its key, its place, the objects around it."""
_OWNER_BYTES: Final = 12

Key = tuple[str, str]
"""The owner, and the id of a turn's first call."""


@dataclass(slots=True)
class _Entry:
    issuer: str
    digest: bytes
    signed: bytes
    until: float
    """In monotonic seconds."""


@dataclass(slots=True)
class TurnCounts:
    """How often turns were asked for, and what became of that."""

    hit: int = 0
    """It goes back."""
    miss: int = 0
    """Nothing is known of it: it never had thoughts, another worker has it, or it is gone."""
    changed: int = 0
    """The caller has changed it."""
    foreign: int = 0
    """Another provider has signed it."""


class ThoughtMemory:
    """All turns of all tenants. Requests may be converted in threads: a lock keeps it together."""

    def __init__(self, monotonic: Callable[[], float], most_bytes: int = MOST_BYTES) -> None:
        self._monotonic = monotonic
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._unknown: OrderedDict[Key, float] = OrderedDict()
        """Until when turns are not asked of other processes again, which did not know them."""
        self._lock = Lock()
        self.bytes = 0
        """What it takes, no less than it does."""
        self.counts = TurnCounts()
        self.shared: SharedTurns | None = None
        """Where other processes find them; None: there is no such place."""

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, tenant: str, credential: bytes | None, issuer: str, *, keeps_all: bool) -> OwnTurns:
        """Returns the turns of a tenant, or of one who brings a credential, for one call.

        `issuer` signs its answer, or nobody does (empty); `keeps_all`: turns without thoughts are remembered, too.
        """
        owner = tenant
        if credential is not None:
            owner = f"{tenant}\0{blake2b(credential, digest_size=_OWNER_BYTES).hexdigest()}"
        return OwnTurns(self, owner, issuer, keeps_all=keeps_all)

    def put(self, key: Key, issuer: str, digest: bytes, signed: bytes) -> None:
        """Remembers a turn, and forgets others as there is need."""
        self._put(key, _Entry(issuer, digest, signed, self._monotonic() + KEPT_FOR_S))
        if self.shared is not None:
            self.shared.put(*key, SharedTurn(issuer, digest, signed))

    def heard(self, key: Key, turn: SharedTurn | None) -> None:
        """Remembers what other processes say of a turn; None: they do not know it."""
        if turn is not None:
            self._put(key, _Entry(*turn, self._monotonic() + KEPT_FOR_S))
            return
        with self._lock:
            self._unknown[key] = self._monotonic() + UNKNOWN_FOR_S
            self._unknown.move_to_end(key)
            if len(self._unknown) > MOST_UNKNOWN:
                self._unknown.popitem(last=False)

    def is_unknown(self, key: Key) -> bool:
        """Returns whether other processes have said lately that they do not know a turn."""
        until = self._unknown.get(key)
        return until is not None and until > self._monotonic()

    def _put(self, key: Key, entry: _Entry) -> None:
        with self._lock:
            self._unknown.pop(key, None)
            self._drop(key)
            self._entries[key] = entry
            self.bytes += _size(key, entry.signed)
            self._trim(self._monotonic())

    def get(self, key: Key) -> _Entry | None:
        """Returns a turn, which is then kept for longer; None: it is not known."""
        if key not in self._entries:  # most turns are not, and to see that takes no lock
            return None
        now = self._monotonic()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.until <= now:
                return None
            entry.until = now + KEPT_FOR_S
            self._entries.move_to_end(key)
            return entry

    def forget_old(self) -> None:
        """Forgets what nobody has asked for in time."""
        with self._lock:
            self._trim(self._monotonic())

    def _trim(self, now: float) -> None:
        while self._entries:
            # Who was asked for last stands last, and is kept the longest.
            key, first = next(iter(self._entries.items()))
            if self.bytes <= self._most_bytes and first.until > now:
                return
            self._drop(key)

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= _size(key, entry.signed)


def _size(key: Key, signed: bytes) -> int:
    return len(signed) + 4 * len(key[1]) + ENTRY_BYTES


class OwnTurns:
    """The turns of one owner, as one call sees them. Implements `dialects.remembered.TurnMemory`."""

    __slots__ = ("_all", "_found", "_issuer", "_keeps_all", "_owner", "missed")

    def __init__(self, memory: ThoughtMemory, owner: str, issuer: str, *, keeps_all: bool) -> None:
        self._all, self._owner, self._issuer, self._keeps_all = memory, owner, issuer, keeps_all
        self._found: dict[str, tuple[SaidTurn, Any]] = {}
        """By the id of the first call, the turn last asked for: the gaps of a request are looked for before it is converted.

        Some servers call every turn's first call the same, so that one of many turns with an id may be the remembered one.
        """
        self.missed: list[str] = []
        """Ids of turns that are not known here, but may be to other processes."""
        if memory.shared is not None:
            memory.shared.bind()

    def keep(self, turn: SaidTurn, signed: Any, *, has_thoughts: bool) -> None:
        if not self._issuer or not (has_thoughts or self._keeps_all):
            return
        digest = turn.digest()
        try:
            # A copy, because what it gives has room for up to six times as much.
            written = bytes(memoryview(orjson.dumps(signed)))
        except orjson.JSONEncodeError:  # it is too deep
            return
        if digest and len(written) + len(turn.id) <= MOST_TURN_BYTES:
            self._all.put((self._owner, turn.id), self._issuer, digest, written)

    def find(self, turn: SaidTurn) -> Any:
        found = self._found.get(turn.id)
        if found is None or not found[0].is_same(turn):
            found = self._found[turn.id] = turn, self._look(turn)
        return found[1]

    def _look(self, turn: SaidTurn) -> Any:
        counts, entry = self._all.counts, self._all.get((self._owner, turn.id))
        if entry is None:
            is_asked_for = self._issuer and self._all.shared is not None and len(turn.id) <= MOST_SHARED_CHARACTERS
            if is_asked_for and not self._all.is_unknown((self._owner, turn.id)):
                self.missed.append(turn.id)
            else:
                counts.miss += 1
            return None
        if entry.digest != turn.digest():
            counts.changed += 1
            return None
        if entry.issuer != self._issuer:
            counts.foreign += 1
            return SignedElsewhere.BY_ANOTHER
        counts.hit += 1
        return orjson.loads(entry.signed)

    async def fetch(self) -> bool:
        """Asks other processes for what was missed; returns whether they knew some of it, and it is to be looked for again."""
        missed, self.missed = self.missed, []
        if self._all.shared is None or not missed:
            return False
        heard = await self._all.shared.find(self._owner, missed)
        for id, turn in heard.items():
            self._all.heard((self._owner, id), turn)
        if not any(heard.values()):
            self._all.counts.miss += len(missed)
            return False
        for id in missed:
            self._found.pop(id, None)
        return True
