"""Vectors of the semantic cache: the partitions of rows, their sketches, and the questions.

In this order: work that goes on without its caller; the partitions, in memory or in the store; sketches; and questions, each
with its vector and the facts that the guards compare, made once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.ports import Later
from gateway.features.identity import digest, owner_of
from gateway.features.reuse.rules import SemanticRule
from gateway.features.semantic.guards import Facts, facts_of
from gateway.features.semantic.question import Embedder, EmbeddingDenied, EmbeddingFailed, Index, Neighbourhood
from gateway.features.semantic.store import VectorRow, Vectors

if TYPE_CHECKING:
    from numpy import float32, int8, uint64
    from numpy.typing import NDArray

# --- work that goes on when the call that began it does not wait for it any longer ---

T = TypeVar("T")


class Background:
    """The tasks of one part of the gateway, no more than `most` at a time.

    Invariants: every task is held until it is over; what fails is logged, and is nobody's failure; when `aclose` returns,
    nothing runs any more.
    """

    __slots__ = ("_closed", "_most", "_tasks")

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, T | None]) -> asyncio.Task[T | None] | None:
        """Starts a piece of work, whose result is None when it fails; returns None if there is too much of it already."""
        if self._closed or len(self._tasks) >= self._most:
            work.close()
            return None
        task = asyncio.create_task(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it would never be awaited
        return task

    async def aclose(self) -> None:
        """Cancels all tasks, and waits until they have ended."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def result_by(clock: Clock, future: asyncio.Future[T | None], deadline: float) -> T | None:
    """Returns the result, if it comes before `deadline` (monotonic seconds); None: it is late, or was cancelled.

    The work goes on in any case.
    """
    if not future.done():
        await _wait(clock, future, deadline)
    return future.result() if future.done() and not future.cancelled() else None


async def _wait(clock: Clock, future: asyncio.Future[Any], deadline: float) -> None:
    if deadline <= clock.monotonic():
        await asyncio.sleep(0)  # what needs no time at all gets its turn
        return
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    timer = clock.call_at(deadline, wake)
    future.add_done_callback(wake)
    try:
        await woken
    finally:
        timer.cancel()
        future.remove_done_callback(wake)


async def _guarded(work: Coroutine[Any, Any, T | None]) -> T | None:
    try:
        return await work
    except Exception:
        log.exception("work in the background has failed")
        return None


# --- the partitions: in memory while they are used, else in the store ---

MOST_LOADING = 64
MOST_LATE = 1000
"""The rows that may wait for their partition; further ones are found when it is loaded the next time."""
MOST_KNOWN = 10_000
FEW_ROWS = 250
"""This number of rows is made ready on the event loop, within two milliseconds; more go to a thread."""


class Partitions:
    """The index in memory, with the store behind it.

    A partition is loaded when it is first asked for. Invariants: a row that is added while its partition is being loaded is
    there when it has been; what is forgotten meanwhile does not come back; without a store that answers, calls go on.
    """

    def __init__(self, clock: Clock, index: Index, store: Vectors) -> None:
        self._clock = clock
        self._index = index
        self._store = store
        self._background = Background(MOST_LOADING)
        self._loading: dict[bytes, asyncio.Task[Neighbourhood | None]] = {}
        self._late: dict[bytes, list[tuple[VectorRow, int]]] = {}
        self._most: dict[bytes, int] = {}
        """The number of rows last asked for, by partition, as long as it is known."""
        self._forgotten = 0
        """The number of `forget` calls; a load that began before the last one begins again."""

    @property
    def loading(self) -> int:
        """The number of partitions that are being loaded."""
        return len(self._loading)

    async def open(self, partition: bytes, most: int, deadline: float) -> Neighbourhood | None:
        """Returns the partition, loaded with its newest `most` rows if needed; None: not before `deadline` (monotonic)."""
        self._note(partition, most)
        rows = self._index.get(partition)
        if rows is not None:
            return rows
        begun = self._loading.get(partition) or self._begin(partition, most)
        return await result_by(self._clock, begun, deadline) if isinstance(begun, asyncio.Task) else begun

    def add(self, row: VectorRow, most: int) -> None:
        """Adds a row both to the store and to the partition in memory."""
        self._store.add(row)
        self._note(row.partition, most)
        if self._index.get(row.partition) is None and row.partition not in self._loading:
            self._begin(row.partition, most)
        self._add_here(row, most)

    def add_shared(self, row: VectorRow) -> None:
        """Adds another replica's row to its partition, if that is in memory."""
        most = self._most.get(row.partition)
        if most is not None:
            self._add_here(row, most)

    def _add_here(self, row: VectorRow, most: int) -> None:
        late = self._late.get(row.partition)
        if late is None:
            self._index.add(row, most)
        elif len(late) < MOST_LATE:
            late.append((row, most))

    def remove(self, partition: bytes, id: bytes) -> None:
        """Removes one row whose answer is gone."""
        self._forgotten += partition in self._loading
        self._index.remove(partition, id)
        self._store.remove(partition, (id,))

    async def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes rows in memory and in the store, as `Answers.forget` does; returns their number."""
        here = self.forget_here(key=key, model=model, tenant=tenant)
        is_forgotten = self._store.forget(key=key, model=model, tenant=tenant)
        return max(here, await is_forgotten if isinstance(is_forgotten, asyncio.Future) else is_forgotten)

    def forget_here(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes rows in memory only, because the store has removed them already."""
        self._forgotten += 1
        return self._index.forget(key=key, model=model, tenant=tenant)

    async def aclose(self) -> None:
        """Stops all loads."""
        await self._background.aclose()

    def _note(self, partition: bytes, most: int) -> None:
        if len(self._most) >= MOST_KNOWN:
            self._most.clear()
        self._most[partition] = most

    def _begin(self, partition: bytes, most: int) -> Neighbourhood | asyncio.Task[Neighbourhood | None] | None:
        """Loads the partition: at once if the store has it at hand, with few rows."""
        loading = self._store.load(partition, most)
        if not isinstance(loading, asyncio.Future) and len(loading) <= FEW_ROWS:
            built = self._index.build(loading, most)
            self._index.put(partition, built)
            return built
        task = self._background.start(self._load(partition, loading, most, self._forgotten))
        if task is not None:
            self._loading[partition] = task
            self._late[partition] = []
            task.add_done_callback(lambda _: self._ended(partition))
        return task

    async def _load(
        self, partition: bytes, loading: Later[Sequence[VectorRow]], most: int, forgotten: int
    ) -> Neighbourhood | None:
        rows = await loading if isinstance(loading, asyncio.Future) else loading
        if len(rows) <= FEW_ROWS:
            built = self._index.build(rows, most)
        else:
            built = await asyncio.get_running_loop().run_in_executor(None, self._index.build, rows, most)
        if self._forgotten != forgotten:  # some of these may be what was forgotten: whoever asks next loads anew
            return None
        self._index.put(partition, built)
        for row, its_most in self._late.pop(partition, ()):
            self._index.add(row, its_most)
        return built

    def _ended(self, partition: bytes) -> None:
        """Ends a load, also one that was cancelled or failed; the store has the rows that came too late."""
        self._loading.pop(partition, None)
        self._late.pop(partition, None)


# --- sketches of vectors: on which side of 256 random planes each lies, a bit for each plane ---

SKETCH_BITS = 256
SIGMAS = 4.0
"""The margin in standard deviations: one of 30,000 pairs as near as the threshold is missed."""

_SEED = 20_020_519
_SURE = 0.999  # nearer vectors are told apart by rounding alone


class Sketches:
    """Computes sketches; the random planes are the same in every process.

    Two vectors at an angle a are parted by a plane with probability a/pi (Charikar 2002), whatever their dimensions mean, so a
    few words tell whether two of them can be near each other. Invariant: the planes of a number of dimensions are the same in
    every process with the same numpy; sketches are never kept for another.
    """

    __slots__ = ("_np", "_planes")

    def __init__(self, np: Any) -> None:
        self._np = np
        self._planes: dict[int, NDArray[float32]] = {}

    def of(self, codes: NDArray[int8]) -> NDArray[uint64]:
        """Returns the words of one sketch."""
        sides: Any = self._planes_for(codes.size) @ codes.astype(self._np.float32) > 0
        return self._np.packbits(sides).view(self._np.uint64)  # type: ignore[no-any-return]  # numpy comes as Any: it is loaded late

    def of_many(self, codes: NDArray[int8]) -> NDArray[uint64]:
        """Returns a row of words for each vector."""
        sides: Any = codes.astype(self._np.float32) @ self._planes_for(codes.shape[1]).T > 0
        return self._np.packbits(sides, axis=1).view(self._np.uint64)  # type: ignore[no-any-return]  # numpy comes as Any: it is loaded late

    def _planes_for(self, dims: int) -> NDArray[float32]:
        planes = self._planes.get(dims)
        if planes is None:
            draw = self._np.random.default_rng(_SEED)
            planes = self._planes[dims] = draw.standard_normal((SKETCH_BITS, dims), self._np.float32)
        return planes


def reach(threshold: float) -> int:
    """Returns the number of bits in which the sketches of two vectors may differ whose cosine is the threshold.

    n p + 4 sqrt(n p (1 - p)), where p = acos(threshold) / pi.
    """
    share = math.acos(max(-1.0, min(threshold, _SURE))) / math.pi
    return int(SKETCH_BITS * share + SIGMAS * math.sqrt(SKETCH_BITS * share * (1.0 - share)))


# --- questions ---

REMEMBERED = 4096
MOST_PENDING = 256
"""The embeddings that may be under way; a further question goes without."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
SHORT_CHARS = 200
"""The facts of a longer text take more than half a millisecond, so they are found in a thread."""
log = logging.getLogger("gateway.semantic")


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """A question with its facts; `vector` is packed."""

    vector: bytes
    facts: Facts


@dataclass(slots=True)
class _Trouble:
    """The failures of one embedding model."""

    failures: int = 0
    until: float = 0.0
    """The model is not asked before this time."""
    is_tried: bool = False
    """True while one question tries whether the model works again."""


class Questions:
    """The recent questions, and those that are being embedded.

    A call waits as long as its rule allows; the embedding goes on and is remembered. Invariants: equal texts of one owner that
    are embedded at the same time share one embedding, and nothing is shared between owners; a model that fails is left alone
    for a while, 1 s at first and 60 s at most, and then tried by one question; the log has one warning of it.
    """

    def __init__(
        self,
        clock: Clock,
        embedder_of: Callable[[SemanticRule], Embedder],
        pack: Callable[[Sequence[float]], bytes],
        thread: Executor,
    ) -> None:
        """`embedder_of` may raise EmbeddingFailed, `pack` ValueError."""
        self._clock = clock
        self._embedder_of = embedder_of
        self._pack = pack
        self._thread = thread
        self._background = Background(MOST_PENDING)
        self._known: OrderedDict[bytes, KnownQuestion | None] = OrderedDict()
        """The recent questions by name; None: the text has no vector."""
        self._pending: dict[bytes, asyncio.Task[KnownQuestion | None]] = {}
        self._troubles: dict[str, _Trouble] = {}

    @property
    def pending(self) -> int:
        """The number of embeddings under way."""
        return len(self._background)

    def known_or_pending(
        self, call: Call, text: str, rule: SemanticRule
    ) -> KnownQuestion | asyncio.Task[KnownQuestion | None] | None:
        """Returns the known question, or the task that embeds it; None: it cannot be embedded now."""
        name = _name_of(call, text, rule)
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name]
        pending = self._pending.get(name)
        if pending is not None:
            return pending
        trouble = self._troubles.get(rule.embeddings)
        if (
            trouble is not None
            and trouble.failures > 0
            and (trouble.is_tried or self._clock.monotonic() < trouble.until)
        ):
            return None
        return self._begin(name, call, text, rule)

    def forget(self) -> None:
        """Drops all known questions; an embedding under way is remembered when it comes."""
        self._known.clear()

    async def aclose(self) -> None:
        """Stops all embeddings."""
        await self._background.aclose()

    def _begin(
        self, name: bytes, call: Call, text: str, rule: SemanticRule
    ) -> asyncio.Task[KnownQuestion | None] | None:
        trouble = self._troubles.setdefault(rule.embeddings, _Trouble())
        task = self._background.start(self._find_out(name, call, text, rule, trouble))
        if task is not None:
            self._pending[name] = task
            trouble.is_tried = True
            task.add_done_callback(lambda _: self._ended(name, trouble))
        return task

    def _ended(self, name: bytes, trouble: _Trouble) -> None:
        """Ends an embedding, also one that was cancelled before it ran."""
        self._pending.pop(name, None)
        trouble.is_tried = False

    async def _find_out(
        self, name: bytes, call: Call, text: str, rule: SemanticRule, trouble: _Trouble
    ) -> KnownQuestion | None:
        began_at = self._clock.monotonic()
        try:
            vector = await self._embedder_of(rule).embed(text, call)
            packed = None if vector is None else self._pack(vector)
        except EmbeddingDenied:
            return None  # others may get theirs
        except (EmbeddingFailed, ValueError, TypeError) as error:
            self._failed(rule.embeddings, trouble, error, began_at)
            return None
        except Exception:
            self._failed(rule.embeddings, trouble, EmbeddingFailed("a defect, see below"), began_at)
            raise
        if trouble.failures:
            log.info("embeddings from %s are back", rule.embeddings)
        trouble.failures = 0
        question = None if packed is None else KnownQuestion(packed, await self._facts_of(text))
        self._known[name] = question
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return question

    async def _facts_of(self, text: str) -> Facts:
        if len(text) <= SHORT_CHARS:
            return facts_of(text)
        return await asyncio.get_running_loop().run_in_executor(self._thread, facts_of, text)

    def _failed(self, model: str, trouble: _Trouble, error: Exception, began_at: float) -> None:
        """Counts a failure; one of an attempt that began before the last failure was known says nothing new."""
        if began_at < trouble.until:
            return
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(trouble.failures, 10), LONGEST_PAUSE_S)
        trouble.until = self._clock.monotonic() + pause_s
        if not trouble.failures:
            log.warning("no embeddings from %s, calls go on without the semantic cache: %s", model, error)
        trouble.failures += 1


def _name_of(call: Call, text: str, rule: SemanticRule) -> bytes:
    return digest(
        owner_of(call), rule.embeddings.encode(), b"%d" % (rule.dimensions or 0), text.encode("utf-8", "surrogatepass")
    )
