"""The events of a response on their way: those of its run in this process, its log in the store, and who reads them.

    run -> `LogWriter` -> `EventBuffer`, for readers here | the log in the store -> `FollowingReader` -> `EventReading.follow`

In this order: buffers; the way into the log; the logs that are read here; one reader; and all readers. Readers elsewhere, and
those who come late, read the log in the store. Invariants: nobody is given events of two runs of the model, but the
announcements of a response, which are the same for all; a reader touches nothing of the run: whoever leaves ends only his own
reading.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from itertools import islice

import orjson

from gateway.core.clock import Clock, Timer
from gateway.core.openai.sse import split_events
from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.model import Job, JobState, WriteResult
from gateway.products.jobs.response_store import EventLogs, LogPage, LogPart
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.worker import RunningWork, until_done
from gateway.products.responses.rules import ANNOUNCED, GENERATION_STEP, announcements, begun, frame, is_end, number_of

# --- buffers of the responses that run in this process: their last events, and a way to stop them at once ---

MOST_BYTES = 256 * 1024
"""The bytes of a buffer's events that are in the log, too: whoever is slower reads them there."""


class EventBuffer:
    """The events of one generation, from some event on, as they come."""

    def __init__(self, generation: int, readers: Callable[[], Sequence[FollowingReader]]) -> None:
        """`readers` gives those who read here now."""
        self.generation = generation
        self._readers = readers
        self._events: deque[bytes] = deque()
        self._first = 0
        self._bytes = 0
        self.logged = 0
        """The number of events that are in the log."""
        self.is_ended = False
        """The last of them is among them: the response is kept, though its job may not have ended yet."""

    @property
    def count(self) -> int:
        return self._first + len(self._events)

    def add(self, events: Sequence[bytes]) -> None:
        """Adds events, and lets the oldest go that are in the log."""
        self._events.extend(events)
        self._grown(sum(map(len, events)))
        for reader in self._readers():
            reader.wake()

    def pass_on(self, event: bytes) -> None:
        """Adds a usual event, which is none to end with: whoever has all before it may take it without being woken."""
        self._events.append(event)
        self._grown(len(event))
        for reader in self._readers():
            if not reader.take(self, event):
                reader.wake()

    def _grown(self, size: int) -> None:
        self._bytes += size
        while self._bytes > MOST_BYTES and self._first < self.logged:
            self._bytes -= len(self._events.popleft())
            self._first += 1

    def behind(self, after: int) -> bytes | None:
        """Returns the events behind the one at this place (-1: all); None: some of them are in the log only."""
        skipped = after + 1 - self._first
        return None if skipped < 0 else b"".join(islice(self._events, skipped, None))


class EventBuffers:
    """All of them, by the ids of their jobs."""

    def __init__(self) -> None:
        self._logs: dict[str, EventBuffer] = {}
        self._running: dict[str, RunningWork] = {}
        self._readers: dict[str, tuple[FollowingReader, ...]] = {}

    def begin(self, running: RunningWork, generation: int) -> EventBuffer:
        """Returns the log of a run of the model that begins."""
        job_id = running.work.job.id
        log = self._logs[job_id] = EventBuffer(generation, lambda: self._readers.get(job_id, ()))
        return log

    def run(self, running: RunningWork) -> None:
        self._running[running.work.job.id] = running

    def end(self, running: RunningWork) -> None:
        """Forgets a response that runs here no more."""
        job_id = running.work.job.id
        if self._running.get(job_id) is running:
            del self._running[job_id]
            self._logs.pop(job_id, None)
        self.wake(job_id)

    def find(self, job_id: str) -> EventBuffer | None:
        """Returns the log of a response of which there are events here."""
        log = self._logs.get(job_id)
        return log if log is not None and log.count else None

    def cancel(self, job_id: str) -> None:
        """Stops a response that runs here, which the store knows already."""
        running = self._running.get(job_id)
        if running is not None:
            running.note(WriteResult(is_ours=True, ends_as=JobState.CANCELLED))

    def watch(self, job_id: str, reader: FollowingReader) -> Callable[[], None]:
        """Wakes `reader` at news of a response; returns what ends that."""
        self._readers[job_id] = (*self._readers.get(job_id, ()), reader)

        def end() -> None:
            left = tuple(one for one in self._readers.get(job_id, ()) if one is not reader)
            if left:
                self._readers[job_id] = left
            else:
                self._readers.pop(job_id, None)

        return end

    def wake(self, job_id: str) -> None:
        for reader in self._readers.get(job_id, ()):
            reader.wake()


# --- the way into the log: a few events together, while the next ones come ---

PART_BYTES = 16 * 1024
"""The bytes that go at once."""
MOST_WAITING_BYTES = 4 * 1024 * 1024
"""The bytes that the store has not taken with which the provider is read no further."""


class LogWriter:
    """Writes one generation."""

    def __init__(self, store: JobStore, running: RunningWork, buffer: EventBuffer, clock: Clock) -> None:
        self._store = store
        self._running = running
        self._buffer = buffer
        self._clock = clock
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._wake = asyncio.Event()
        self._written = asyncio.Event()
        self._hurries = False
        self._rests = False
        """Nothing waits: the next event is to wake it."""
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_behind(self) -> bool:
        """Returns whether the store has to be waited for."""
        return self._bytes > MOST_WAITING_BYTES

    async def add(self, events: Sequence[bytes]) -> None:
        """Shows events to readers here, and has them written; waits only where the store is far behind."""
        self._waiting += events
        self._buffer.add(events)
        self._note(sum(map(len, events)))
        while self.is_behind and self._running.is_ours:
            self._written.clear()
            await self._written.wait()

    def pass_on(self, event: bytes) -> None:
        """Does the same with one event, for who cannot wait: not where it is behind, nor with a last event."""
        self._waiting.append(event)
        self._buffer.pass_on(event)
        self._note(len(event))

    async def end(self, events: Sequence[bytes]) -> None:
        """Shows the last events, and returns when all is written."""
        self._buffer.is_ended = True
        await self.add(events)
        await self.flush()

    async def flush(self) -> None:
        """Returns when all is written, or is another worker's to write."""
        self._hurries = True
        self._wake.set()
        if self._writing is not None:
            await self._writing

    def abandon(self) -> None:
        if self._writing is not None:
            self._writing.cancel()

    def _note(self, size: int) -> None:
        self._bytes += size
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_always())
        if self._rests or self._bytes >= PART_BYTES:
            self._wake.set()

    async def _write_always(self) -> None:
        """Writes until all is written and nothing more comes; an event behind a silence goes at once."""
        while self._running.is_ours and (self._waiting or not self._hurries):
            if not self._waiting:
                self._rests = True
                await self._pause()
                self._rests = False
                continue
            events, self._waiting, self._bytes = self._waiting, [], 0
            await self._append(LogPart(self._buffer.logged, self._buffer.logged + len(events) - 1, b"".join(events)))
            if self._bytes < PART_BYTES and not self._hurries:
                timer = self._clock.call_at(self._next_turn(), self._wake.set)
                await self._pause()
                timer.cancel()
        self._written.set()

    def _next_turn(self) -> float:
        """Returns when the log is written the next time: all are at the same moments, so that the store takes them at once."""
        every_s = self._store.events.every_s
        return (self._clock.monotonic() // every_s + 1) * every_s

    async def _pause(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    async def _append(self, part: LogPart) -> None:
        append = self._store.events.append
        self._running.note(await until_done(lambda: append(self._running.work, part), self._clock))
        self._buffer.logged = part.last + 1
        self._written.set()


# --- the logs in the store that are read here: one watch over each, one look for all at the same place ---

LOOK_S = 1.0
PAGE_BYTES = 1024 * 1024


class SharedLog:
    """The log of one response, from its first reader to its last.

    Readers come by the hundred to a response that is still queued, and each would ask the store once a second.
    """

    def __init__(self, events: EventLogs, job: Job, clock: Clock) -> None:
        self.job = job
        self.readers: dict[FollowingReader, None] = {}
        self._events = events
        self._clock = clock
        self._looks: dict[tuple[int, int], asyncio.Task[LogPage | None]] = {}
        self._unwatch = events.watch(job.id, self._changed)
        self._timer = self._next_look()

    def close(self) -> None:
        self._unwatch()
        self._timer.cancel()

    async def read(self, after: int, most_bytes: int = PAGE_BYTES) -> LogPage | None:
        """Returns what `EventLogs.read` does. Raises JobsUnavailable.

        Whoever asks the same meanwhile shares the look, which goes on for the others when one leaves.
        """
        arguments = after, most_bytes
        look = self._looks.get(arguments)
        if look is None:
            look = asyncio.create_task(self._events.read(self.job.id, self.job.tenant, after, most_bytes))
            self._looks[arguments] = look
            look.add_done_callback(lambda done: self._looked(arguments, done))
        return await asyncio.shield(look)

    def _looked(self, arguments: tuple[int, int], look: asyncio.Task[LogPage | None]) -> None:
        if self._looks.get(arguments) is look:
            del self._looks[arguments]
        if not look.cancelled():
            look.exception()  # whoever asked may have left

    def _changed(self) -> None:
        """The looks under way may have missed what is new."""
        self._looks.clear()
        for reader in tuple(self.readers):
            reader.on_message()

    def _next_look(self) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = self._next_look()
        for reader in tuple(self.readers):
            reader.wake()


class SharedLogs:
    """All that are read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logs: dict[str, SharedLog] = {}

    def join(self, events: EventLogs, job: Job, reader: FollowingReader) -> SharedLog:
        """Returns the log of a response; the reader is woken when there may be more in it, until he leaves."""
        log = self._logs.get(job.id)
        if log is None:
            log = self._logs[job.id] = SharedLog(events, job, self._clock)
        log.readers[reader] = None
        return log

    def leave(self, log: SharedLog, reader: FollowingReader) -> None:
        """Forgets a reader, and behind the last one the log."""
        del log.readers[reader]
        if not log.readers:
            log.close()
            del self._logs[log.job.id]


# --- one reader: where he is, and what he is given next ---

_RESTARTED = (
    "stream_restarted",
    "The model was broken off and runs again: what you have read is not continued. Stream it from its beginning.",
)
_CUT = (
    "stream_log_cut",
    "The response has outgrown the log of its events: poll GET /v1/responses/{id}, which has all of it at its end.",
)


class FollowingReader:
    """Where one reader is."""

    def __init__(self, job: Job, buffers: EventBuffers, after: int) -> None:
        self.job = job
        self.woken = asyncio.Event()
        self._buffers = buffers
        self._place = after % GENERATION_STEP if after >= 0 else -1
        """The place of the last event that he has, in its generation."""
        self._seen = after // GENERATION_STEP if self._place >= ANNOUNCED else None
        """The generation of which he has events; None: of none."""
        self._fence = 0
        """The fence of the generation in the log, once it is known to be the one that he has seen."""
        self.is_over = False
        self.is_waiting = False
        """He has all that there is, and nothing is on its way to him."""
        self.has_taken = False
        """Events have gone to him in passing."""
        self.write: Callable[[bytes], bool] | None = None
        """Gives events to him in passing; False: he has to be waited for."""

    def wake(self) -> None:
        self.woken.set()

    def on_message(self) -> None:
        """The log has grown: no news for one who reads what there is here."""
        if self._buffers.find(self.job.id) is None:
            self.woken.set()

    def take(self, buffer: EventBuffer, event: bytes) -> bool:
        """Takes the event that has just come, in passing; False: he has to be woken for it."""
        write, place = self.write, buffer.count - 1
        if (
            write is None
            or not self.is_waiting
            or self.woken.is_set()
            or self._seen != buffer.generation
            or self._place != place - 1
            or not write(event)
        ):
            return False
        self._place = place
        self.has_taken = True
        return True

    async def read(self, log: SharedLog) -> bytes | None:
        """Returns the next events; empty: there are none yet; None: there will be no more. Raises JobsUnavailable."""
        buffer = self._buffers.find(self.job.id)
        if buffer is not None:
            if self._seen not in (None, buffer.generation):
                return self._over(*_RESTARTED)
            block = buffer.behind(self._place)
            if block is not None:
                return self._given(block, buffer.generation, max(self._place, buffer.count - 1))
        page = await log.read(self._place)
        if page is None:
            return None
        if page.is_cut:
            return self._over(*_CUT)
        if page.generation == 0:
            if page.has_ended:
                return None
            made = announcements(begun(self.job, "queued"))[self._place + 1 :]
            self._place = max(self._place, ANNOUNCED - 1)
            return b"".join(made)
        if page.generation != self._fence and self._seen is not None and not await self._is_same(log):
            return self._over(*_RESTARTED)
        self._fence = page.generation
        if not page.parts:
            return None if page.has_ended else b""
        generation = number_of(page.parts[0].frames) // GENERATION_STEP
        if self._seen not in (None, generation):
            return self._over(*_RESTARTED)
        block = b"".join(_behind(part, self._place) for part in page.parts)
        return self._given(block, generation, page.parts[-1].last)

    async def _is_same(self, log: SharedLog) -> bool:
        """Returns whether the log is that of the generation that he has seen."""
        if self._fence:
            return False
        head = await log.read(-1, 1)
        return head is None or not head.parts or number_of(head.parts[0].frames) // GENERATION_STEP == self._seen

    def _given(self, block: bytes, generation: int, place: int) -> bytes:
        if place >= ANNOUNCED:
            self._seen = generation
        self._place = place
        self.is_over = bool(block) and is_end(last_event(block))
        return block

    def _over(self, code: str, message: str) -> bytes:
        self.is_over = True
        number = (self._seen or 0) * GENERATION_STEP + self._place + 1
        return frame("error", number, {"code": code, "message": message, "param": None})

    async def end_with(self, log: SharedLog, final: bytes) -> bytes | None:
        """Returns the last event, with what has to be before it; None: he has it. Raises JobsUnavailable."""
        last: LogPart | None = None
        place = -1
        while (page := await log.read(place)) is not None and page.parts:
            last = page.parts[-1]
            place = last.last
        if last is not None and (is_end(last_event(last.frames)) or self._place > last.last):
            return None
        self.is_over = True
        made = announcements(begun(self.job, "queued"))[self._place + 1 :] if last is None else []
        number = ANNOUNCED if last is None else number_of(last_event(last.frames)) + 1
        response = orjson.loads(final)
        return b"".join([*made, frame(f"response.{response['status']}", number, {"response": response})])


def last_event(block: bytes) -> bytes:
    """Returns the last of whole events."""
    cut = block.rfind(b"\n\n", 0, len(block) - 2)
    return block if cut < 0 else block[cut + 2 :]


def _behind(part: LogPart, place: int) -> bytes:
    """Returns the events of a part that are behind a place."""
    if part.first > place:
        return part.frames
    return b"".join(islice(split_events(part.frames), place + 1 - part.first, None))


# --- all readers of this process, each from any event on to the end of the response ---

SILENCE_S = 15.0
"""The longest silence of a stream."""
FinalOf = Callable[[str, str], Awaitable[bytes | None]]
"""Returns the response object of an id and a tenant at its end; None: it is gone."""


class Following:
    """The events of a response behind one. `blocks` is to be iterated once."""

    def __init__(self, reader: FollowingReader, blocks: AsyncGenerator[bytes | None, None]) -> None:
        self._reader = reader
        self.blocks = blocks
        """Blocks of events; None where there was none for a while."""

    def pass_on(self, write: Callable[[bytes], bool]) -> None:
        """Lets usual events go straight to `write` while `blocks` waits for the next, as `Reply.pass_on` says."""
        self._reader.write = write


class EventReading:
    """Reads the events of responses."""

    def __init__(self, clock: Clock, buffers: EventBuffers, final_of: FinalOf, is_closing: Callable[[], bool]) -> None:
        self._clock = clock
        self._buffers = buffers
        self._final_of = final_of
        self._is_closing = is_closing
        self._logs = SharedLogs(clock)

    def follow(self, store: JobStore, job: Job, after: int) -> Following:
        """Returns the events behind the one of this number (-1: all).

        They end behind the last event, or one that says why there will be no more, or with the process.
        """
        reader = FollowingReader(job, self._buffers, after)
        return Following(reader, self._blocks(store, reader))

    async def _blocks(self, store: JobStore, reader: FollowingReader) -> AsyncGenerator[bytes | None, None]:
        log = self._logs.join(store.events, reader.job, reader)
        unwatch = self._buffers.watch(reader.job.id, reader)
        sent_at = self._clock.monotonic()
        try:
            while not self._is_closing():
                reader.woken.clear()
                try:
                    block = await reader.read(log)
                    if block is None:
                        block = await self._end_of(reader, log)
                        if block is not None:
                            yield block
                        return
                except JobsUnavailable:
                    block = b""
                if block or reader.has_taken:
                    reader.has_taken = False
                    sent_at = self._clock.monotonic()
                if block:
                    yield block
                    if reader.is_over:
                        return
                    continue
                if self._clock.monotonic() - sent_at >= SILENCE_S:
                    sent_at = self._clock.monotonic()
                    yield None
                reader.is_waiting = True
                await reader.woken.wait()
                reader.is_waiting = False
        finally:
            reader.write = None
            unwatch()
            self._logs.leave(log, reader)

    async def _end_of(self, reader: FollowingReader, log: SharedLog) -> bytes | None:
        """Returns the last event of a response whose log has none, made of what is kept; None: it was read, or is gone."""
        final = await self._final_of(reader.job.id, reader.job.tenant)
        if final is None:
            return None
        return await reader.end_with(log, final)
