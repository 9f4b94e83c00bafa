"""What models' turns were signed with, kept in this process for callers that do not send it back.

In this order: a turn as its caller sees it (`VisibleTurn`), turns that several processes share (`SharedTurns`), the memory
of this process (`ThoughtMemory`), which lives as long as it, whatever the config becomes. A model that thinks wants its
thoughts back with the results of its calls, unchanged and at their places. Chat completions carry them beyond OpenAI's own
fields (`reasoning_details`, `extra_content`), which many clients drop. Invariants: each tenant has a memory of its own, and
so has each credential that callers bring themselves: nobody finds another one's. When the memory is full, what was not used
for the longest goes first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

import orjson

from gateway.core.metrics import Counts, Levels, MetricTable
from gateway.core.ports import Later
from gateway.core.types import Gap, How, Kept

# --- A turn as its caller sees it ---


IN_ID: Final = "__thought__"
"""Separates a call's id from its signature, which some gateways put behind it (BerriAI/litellm#18374)."""
MOST_TURN_BYTES: Final = 1_000_000
"""The size of a turn, in bytes or characters; a longer one is not remembered."""
FOREIGN: Final = Gap(
    "messages.reasoning_details", How.DROPPED, "thoughts go back to the provider that signed them, and to no other"
)
"""What of turns that another provider has signed does not arrive."""
_DIGEST_BYTES: Final = 16


class VisibleTurn:
    """A turn of the model with tool calls, as its caller sees it: without the signed thoughts.

    It is found by the id of its first call; what was signed goes back only where the caller repeats the very same ids,
    names, arguments and words.
    """

    __slots__ = ("_calls", "_words", "id")

    def __init__(self, calls: Sequence[tuple[str, Any, Any]], words: Any) -> None:
        """`calls` are ids, names and arguments, of one call at least; `words` are a string, or the parts of a message."""
        self.id = calls[0][0]
        self._calls, self._words = calls, words

    def is_same(self, other: VisibleTurn) -> bool:
        """Returns whether the other one is written the same, of two turns of one request."""
        return self is other or (self._calls == other._calls and self._words == other._words)

    def digest(self) -> bytes:
        """Returns what is equal for equal turns, however their arguments are written; empty: they cannot be written."""
        calls = [(id, name, _object_in(arguments)) for id, name, arguments in self._calls]
        words = _text_in(self._words)
        try:
            packed = orjson.dumps([calls, "" if words.isspace() else words], option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:  # of arguments that are deeper than what can be written
            return b""
        return blake2b(packed, digest_size=_DIGEST_BYTES).digest()


class SignedElsewhere(Enum):
    """Whose a remembered turn is, where it does not go back."""

    BY_ANOTHER = "another"


class TurnMemory(Protocol):
    """The turns of one tenant; what signs one call's answer."""

    def keep(self, turn: VisibleTurn, signed: Any, *, has_thoughts: bool) -> None:
        """Remembers what was signed in a turn (anything that JSON can say); it may refuse."""
        ...

    def find(self, turn: VisibleTurn) -> Any:
        """Returns what was signed in this very turn; None where none is known, `BY_ANOTHER` where
        it was signed, but not here."""
        ...


class UnknownMemory:
    """Stands for a memory that cannot be asked yet: whatever may be remembered is. Implements `TurnMemory`."""

    def keep(self, turn: VisibleTurn, signed: Any, *, has_thoughts: bool) -> None:
        """Remembers nothing."""

    def find(self, turn: VisibleTurn) -> Any:
        return []


class Presumed(Mapping[int, list[Any]]):
    """What an `UnknownMemory` has of a conversation, by the numbers of messages, each of which is looked at when it is
    needed.
    """

    def __init__(self, messages: Any) -> None:
        self._messages = messages if isinstance(messages, list) else []

    def __getitem__(self, number: int) -> list[Any]:
        if any(True for _ in unechoed(self._messages[number : number + 1])):
            return []
        raise KeyError(number)

    def __iter__(self) -> Iterator[int]:
        return (number for number, _ in unechoed(self._messages))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def unechoed(messages: Any) -> Iterator[tuple[int, VisibleTurn]]:
    """Yields the turns that came back without what they were signed with, each with its message's number."""
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        if type(message) is dict and "tool_calls" in message and message.get("role") == "assistant":
            turn = _turn_of(message)
            if turn is not None:
                yield number, turn


def gaps_of_foreign(messages: Any, memory: TurnMemory | None) -> list[Gap]:
    """Returns the gap of turns that another provider has signed, for a target that takes back no thoughts of anybody's."""
    if memory is None or isinstance(memory, UnknownMemory):
        return []
    return [FOREIGN] if any(memory.find(turn) is SignedElsewhere.BY_ANOTHER for _, turn in unechoed(messages)) else []


def id_of_call(id: str) -> str:
    """Returns a call's id without a signature in it."""
    return id.partition(IN_ID)[0] or id if IN_ID in id else id


def _turn_of(message: dict[str, Any]) -> VisibleTurn | None:
    """Returns a turn as the caller repeats it; None: it has no calls, or thoughts of its own, or makes no sense."""
    calls = message["tool_calls"]
    if type(calls) is not list or not calls or message.get("refusal"):
        return None
    if message.get("reasoning_details") or message.get("thinking_blocks"):
        return None
    made = []
    for call in calls:
        function = call.get("function") if type(call) is dict else None
        if type(function) is not dict or "extra_content" in call:
            return None
        id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
        if type(id) is not str or not id:
            return None
        made.append((id_of_call(id), name, arguments))
    return VisibleTurn(made, message.get("content"))


def _object_in(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return orjson.loads(arguments or b"{}")
    except orjson.JSONDecodeError:
        return arguments


def _text_in(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


# --- Turns that several processes share, in the store of the answers ---


THINKING: Final = "(thinking)"
"""The group of answers that a store keeps what turns were signed with in; no set of cache.yaml."""
SHARED_FOR_S: Final = 3600.0
"""Seconds for which a turn is found in the store."""
MOST_LOOKED_FOR: Final = 100
"""The turns of a request that are looked for, the last ones: the store gets a question for each, all at once."""
PATIENCE_S: Final = 0.5
"""The most seconds that a call waits for shared turns; then it goes without them, as it would anyway."""


class SharedTurn(NamedTuple):
    """A turn as it is found in the store."""

    issuer: str
    digest: bytes
    signed: bytes


class TurnStore(Protocol):
    """Where processes that share a store keep turns. No method raises."""

    def get(self, key: bytes, group: str) -> Later[Kept | None]:
        """Returns the turn; None: there is none, or it is past its end."""
        ...

    def put(self, key: bytes, kept: Kept) -> Later[None]:
        """Stores the turn in place of an older one."""
        ...


class SharedTurns:
    """Turns of all tenants in the store. All but `put` is for the thread of the running loop.

    A worker or replica that has to go on with a turn of another one's looks here, once. Nobody waits for what is put here;
    what cannot be read, because the store is out of reach or another release wrote it, is as good as not there.
    """

    def __init__(self, answers: TurnStore, wall: Callable[[], float]) -> None:
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
        pending = {id: self._answers.get(_key(owner, id), THINKING) for id in ids[-MOST_LOOKED_FOR:]}
        waited_for = [answer for answer in pending.values() if isinstance(answer, asyncio.Future)]
        if waited_for:
            await asyncio.wait(waited_for, timeout=PATIENCE_S)
        return {id: _turn_in(answer) for id, answer in pending.items() if _is_there(answer)}

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
    headers = dict(kept.headers)
    try:
        return SharedTurn(headers[b"issuer"].decode(), bytes.fromhex(headers[b"digest"].decode()), kept.body)
    except (KeyError, ValueError):
        return None


# --- The memory of this process ---


MOST_BYTES: Final = 32 * 1024 * 1024
"""The bytes of the whole memory, what it takes to find turns included."""
KEPT_FOR_S: Final = 3600.0
"""Seconds for which a turn is kept that nobody looks for."""
UNKNOWN_FOR_S: Final = 60.0
"""Seconds in which a turn that other processes do not know either is not looked for there again."""
MOST_UNKNOWN: Final = 4_096
"""The turns that are noted as unknown; callers may name any, and take no room from what was signed."""
MOST_SHARED_CHARACTERS: Final = 256
"""The characters of an id; no turn with a longer one is looked for in the store. Providers' ids have 64 at most."""
ENTRY_BYTES: Final = 600
"""The bytes that an entry takes besides what was signed, at most: its key, its place, the objects around it."""
_OWNER_BYTES: Final = 12

Key = tuple[str, str]
"""The owner, and the id of a turn's first call."""


@dataclass(slots=True)
class _Entry:
    issuer: str
    digest: bytes
    signed: bytes
    until: float
    """The end of its life, in monotonic seconds."""


@dataclass(slots=True)
class TurnCounts:
    """How often turns were looked for, by what came of it."""

    hit: int = 0
    """The turn goes back."""
    miss: int = 0
    """Nothing is known of the turn: it never had thoughts, another worker has it, or it is gone."""
    changed: int = 0
    """The caller has changed the turn."""
    foreign: int = 0
    """Another provider has signed the turn."""


class ThoughtMemory:
    """All turns of all tenants. Requests may be converted in threads: a lock keeps it together."""

    def __init__(self, monotonic: Callable[[], float], most_bytes: int = MOST_BYTES) -> None:
        self._monotonic = monotonic
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._unknown: OrderedDict[Key, float] = OrderedDict()
        """The times until which turns that other processes did not know are not looked for there again."""
        self._lock = Lock()
        self.bytes = 0
        """The bytes that the memory takes, at least as many as it really does."""
        self.counts = TurnCounts()
        self.shared: SharedTurns | None = None
        """Where other processes find turns; None: there is no such place."""

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

    def remember_shared(self, key: Key, turn: SharedTurn | None) -> None:
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
        """Returns whether other processes were found lately not to know a turn."""
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
    """The turns of one owner, as one call sees them. Implements `TurnMemory`."""

    __slots__ = ("_all", "_found", "_issuer", "_keeps_all", "_owner", "missed")

    def __init__(self, memory: ThoughtMemory, owner: str, issuer: str, *, keeps_all: bool) -> None:
        self._all, self._owner, self._issuer, self._keeps_all = memory, owner, issuer, keeps_all
        self._found: dict[str, tuple[VisibleTurn, Any]] = {}
        """By the id of the first call, the turn last asked for: the gaps of a request are looked for before it is converted.

        Some servers call every turn's first call the same, so that one of many turns with an id may be the remembered one.
        """
        self.missed: list[str] = []
        """Ids of turns that are not known here, but may be to other processes."""
        if memory.shared is not None:
            memory.shared.bind()

    def keep(self, turn: VisibleTurn, signed: Any, *, has_thoughts: bool) -> None:
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

    def find(self, turn: VisibleTurn) -> Any:
        found = self._found.get(turn.id)
        if found is None or not found[0].is_same(turn):
            found = self._found[turn.id] = turn, self._look(turn)
        return found[1]

    def _look(self, turn: VisibleTurn) -> Any:
        counts, entry = self._all.counts, self._all.get((self._owner, turn.id))
        if entry is None:
            is_wanted = self._issuer and self._all.shared is not None and len(turn.id) <= MOST_SHARED_CHARACTERS
            if is_wanted and not self._all.is_unknown((self._owner, turn.id)):
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
        """Looks in the store for what was missed; returns whether some of it was there, and is to be looked for again."""
        missed, self.missed = self.missed, []
        if self._all.shared is None or not missed:
            return False
        found = await self._all.shared.find(self._owner, missed)
        for id, turn in found.items():
            self._all.remember_shared((self._owner, id), turn)
        if not any(found.values()):
            self._all.counts.miss += len(missed)
            return False
        for id in missed:
            self._found.pop(id, None)
        return True


class ThinkingMetrics(MetricTable):
    """The metrics of the memory."""

    after = "requests_shed_total"

    def __init__(self) -> None:
        self.thinking = Counts(
            "remembered_thinking_total",
            "Turns without their signed thinking that were looked for in the memory of it: hit, miss, changed, foreign.",
            "result",
        )
        self.thinking_bytes = Levels("remembered_thinking_bytes", "Memory that signed thinking is kept in.")

    def set_memory(self, memory: ThoughtMemory) -> None:
        """Sets how much is remembered, and what became of the turns that were looked for."""
        self.thinking_bytes.values[()] = memory.bytes
        self.thinking.totals.update({(result,): total for result, total in asdict(memory.counts).items()})
