"""Keeps streams that wait alive with comments (`KeepAlive`), and sheds the lowest lanes under load (`Shedding`).

Housekeeping feeds it once a second with the process's memory and the delay of the event loop. It acts on nothing itself; the
edge asks it before a body is read. Memory that is resident without calls is not load: refusing calls would free none of it.
Invariants: the level moves by one step at a time; a lane is never shed while a lower one is served; `critical` is never shed;
memory holds no level up while no call is served.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice

from gateway.core.call import Call, deciding_attempt
from gateway.core.errors import GatewayOverloaded
from gateway.core.types import LANES, Lane, QueueBounds

# --- comments for clients whose call is held, or whose provider is silent ---


log = logging.getLogger("gateway.flow")

MAX_COMMENTS = 200
"""The comments sent for each delay in one sweep: thousands of calls that came at once must not block the loop."""

_Waiting = dict[int, tuple[float, Call]]
"""By the call's identity: the time of the next comment, and the call. With one delay for all, the order of insertion is the
order of due time.
"""


def waiting_for(call: Call) -> bytes:
    """Returns the comment for a call that is not held: it names the target whose answer the call waits for."""
    attempt = next((one for one in call.attempts if one.is_stalled), deciding_attempt(call))
    return b"waiting" if attempt is None else b"waiting for " + attempt.target.name.encode()


class KeepAlive:
    """The streams that have nothing for their client yet. `begin` wants times that do not go back.

    The timers of SDKs and load balancers must not fire while a call waits for its first byte. One sweep over the calls in
    order of their due times replaces a timer for each; a call costs one dictionary entry. It knows neither connections nor
    queues: `call.comment` sends, `describe` writes the text. Invariant: a call gets no comment before its model's delay,
    nor after its `end`.
    """

    __slots__ = ("_describe", "_waiting")

    def __init__(self, describe: Callable[[Call], bytes] = waiting_for) -> None:
        """`describe` gives a comment's text: one line, without the colon."""
        self._describe = describe
        self._waiting: dict[float, _Waiting] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def begin(self, call: Call, now: float) -> None:
        """Sends `call` a comment whenever it has waited another `keepalive_after_s` of its model."""
        delay_s = call.route.model.holding.keepalive_after_s
        waiting = self._waiting.get(delay_s)
        if waiting is None:
            waiting = self._waiting[delay_s] = {}
        waiting[id(call)] = (now + delay_s, call)

    def end(self, call: Call) -> None:
        """Stops the comments because the answer begins, or there will be none; a second call does nothing."""
        waiting = self._waiting.get(call.route.model.holding.keepalive_after_s)
        if waiting is not None:
            waiting.pop(id(call), None)

    def sweep(self, now: float) -> None:
        """Sends the comments that are due, at most MAX_COMMENTS for each delay; called every SWEEP_S of the deadlines."""
        for delay_s, waiting in list(self._waiting.items()):
            # A list, because each call is taken out of the dictionary that is walked.
            for call in list(islice(_due(waiting, now), MAX_COMMENTS)):
                del waiting[id(call)]
                if self._tell(call):
                    # Put in anew, the call is the last: the order stays that of the due times.
                    waiting[id(call)] = (now + delay_s, call)
            if not waiting:
                del self._waiting[delay_s]  # reloads may bring ever new ones

    def _tell(self, call: Call) -> bool:
        """Sends the comment; returns whether that worked. A defect costs only this call its comments, and the sweep goes on."""
        try:
            return call.comment is not None and call.comment(self._describe(call))
        except Exception:
            log.exception("defect while keeping %s alive", call.request.id)
            return False


def _due(waiting: _Waiting, now: float) -> Iterator[Call]:
    for due, call in waiting.values():
        if due > now:
            # The order is that of the due times, so no call behind this one is due.
            return
        yield call


MAX_LEVEL = 3
SHED_AT: dict[Lane, int] = {"background": 1, "batch": 2, "interactive": 3, "critical": MAX_LEVEL + 1}
HELD_SHARE = 0.9
"""The part of the queue's bytes that may be held; the rest is for the lanes that are still served."""
EASY = 0.8
"""The part of each limit below which one more lane is served; between this and the limit the level stays."""
CALM_S = 3.0
"""The load has to be below EASY for this long before one more lane is served, in seconds."""
STEADY_S = 15.0
"""After this long below the memory limit, in seconds, a lane is served again although memory has not fallen below EASY."""
GROWTH = 0.01
"""A rise by this part of the memory limit counts as growth; less is noise."""
AT_REST = 0.7
"""Memory resident without calls counts for at most this part of the memory limit, so that there is always room for calls."""
PEAK_BYTES = 32 * 1024 * 1024
"""Memory is given back, while no call is served, when it exceeds the last amount by this much."""
SOONEST_S = 10.0
"""The least seconds between two attempts if the first freed memory; each attempt that frees nothing doubles them."""
LATEST_S = 60.0
LITTLE = 0.02
"""The part of the resident memory below which an attempt counts as having freed nothing."""
CEILING = 19 / 16
"""The most that resting memory moves the limit, of the container's share: to 95 % of what the container may use at all."""


READ_AT_LEAST = 8
"""This part of what may be held is left for bodies that are being read."""
READ_OF_MEMORY = 2
"""This part of the memory may have unfinished bodies: each grows by copies."""


class Shedding:
    """The present level of load shedding, from 0 (nothing is shed) to 3 (all lanes but `critical`)."""

    __slots__ = (
        "_calm_since",
        "_full_at",
        "_grown_to_bytes",
        "_held_bytes",
        "_memory_bytes",
        "_rest_bytes",
        "level",
        "shed_total",
    )

    def __init__(self, memory_bytes: int | None = None) -> None:
        """`memory_bytes` is the limit where the policy names none; None: memory is not watched."""
        self._memory_bytes = memory_bytes
        self.level = 0
        self.shed_total: dict[Lane, int] = dict.fromkeys(LANES, 0)
        """The requests refused so far, by lane."""
        self._calm_since = float("-inf")
        self._full_at = float("-inf")
        """The time at which memory was last above its limit, or a lane was served again that it had kept out."""
        self._grown_to_bytes = self._held_bytes = 0
        self._rest_bytes = 0

    def sheds(self, lane: Lane) -> bool:
        """Returns whether requests of this lane are refused now."""
        return self.level >= SHED_AT[lane]

    def refusal(self, lane: Lane) -> GatewayOverloaded:
        """Counts a request of this lane as shed, and returns the error to answer it with."""
        self.shed_total[lane] += 1
        wait_s = float(2 ** (self.level - 1))
        message = f"The gateway is overloaded and takes no {lane} calls for now; try again in {wait_s:g} s."
        return GatewayOverloaded(message, retry_after_s=wait_s)

    def memory_limit(self, bounds: QueueBounds) -> int | None:
        """Returns the bytes that may be resident before load is shed; None: memory is not watched."""
        return bounds.shed_memory_bytes or self._memory_bytes

    def body_bytes(self, bounds: QueueBounds) -> int:
        """Returns how many bytes of unfinished bodies there may be: they are held like those of calls that wait."""
        most = max(bounds.max_bytes - self._held_bytes, bounds.max_bytes // READ_AT_LEAST)
        memory = self.memory_limit(bounds)
        return most if memory is None else min(most, memory // READ_OF_MEMORY)

    def observe(
        self,
        now: float,
        resident_bytes: int | None,
        held_bytes: int,
        loop_lag_s: float,
        bounds: QueueBounds,
        *,
        is_at_rest: bool = False,
    ) -> None:
        """Takes in the state of the process, about once a second: the level rises by a step, falls by one, or stays.

        `now` is monotonic seconds; `resident_bytes` None: unknown; `loop_lag_s` is the worst lag since the last call that
        the process's own work explains; `is_at_rest`: no call is served or held.
        """
        self._held_bytes = held_bytes
        memory = self._memory_strain(resident_bytes, self.memory_limit(bounds), is_at_rest=is_at_rest)
        if memory >= 1:
            self._full_at = now
        elif now - self._full_at >= STEADY_S:
            memory = min(memory, EASY)
        strains = {
            "memory": memory,
            "the bodies of held calls": held_bytes / max(1.0, HELD_SHARE * bounds.max_bytes),
            "the lag of the event loop": loop_lag_s / bounds.shed_loop_lag_s,
        }
        what = max(strains, key=strains.__getitem__)
        strain, before = strains[what], self.level
        if strain > EASY:
            self._calm_since = now
        if strain > 1:
            self.level = min(MAX_LEVEL, self.level + 1)
        elif self.level and now - self._calm_since >= CALM_S:
            self.level -= 1
            # The next step down needs calm seconds of its own.
            self._calm_since = now
        if self.level > before:
            log.warning(
                "load is shed, level %d of %d: %s is at %d %% of its limit", self.level, MAX_LEVEL, what, 100 * strain
            )
        elif before and not self.level:
            log.warning("load is shed no more; %d requests were refused so far", sum(self.shed_total.values()))

    def _memory_strain(self, resident_bytes: int | None, limit: int | None, *, is_at_rest: bool) -> float:
        """Returns the part of its limit that memory takes; above it, memory that does not grow calls for no more than level 2.

        The allocator does not always return freed memory: it would shed lanes for ever, although their calls fit into it. The
        memory that is still resident at rest is the new normal, from which growth counts.
        """
        if resident_bytes is None or not limit:
            return 0.0
        if is_at_rest:
            self._rest_bytes = resident_bytes
        surplus = max(0, self._rest_bytes - int(AT_REST * limit))
        if self._memory_bytes is not None:
            surplus = min(surplus, max(0, int(CEILING * self._memory_bytes) - limit))
        grows = resident_bytes > self._grown_to_bytes + GROWTH * limit
        # The mark falls with the memory, so that a later rise counts as growth again.
        if grows or resident_bytes < self._grown_to_bytes:
            self._grown_to_bytes = resident_bytes
        strain = (resident_bytes - surplus) / limit
        if is_at_rest:
            return min(strain, EASY)
        if grows or self.level < MAX_LEVEL - 1:
            return strain
        # EASY lets the highest level fall; 1.0 keeps the level below it, and does not raise it.
        return min(strain, EASY if self.level == MAX_LEVEL else 1.0)


class LoopLag:
    """The worst delays of the event loop since the last `take`, as noted by whatever ticks in it."""

    __slots__ = ("_busy_s", "_worst_s")

    def __init__(self) -> None:
        self._worst_s = 0.0
        self._busy_s = 0.0

    def note(self, late_s: float, cpu_s: float) -> None:
        """Notes that something ran `late_s` seconds later than it was due, while the process used `cpu_s` of CPU time.

        A process that was stopped, or its machine asleep, was late for nothing that shedding could spare it.
        """
        self._worst_s = max(self._worst_s, late_s)
        self._busy_s = max(self._busy_s, min(late_s, cpu_s))

    def take(self) -> tuple[float, float]:
        """Returns the worst delay in seconds, and the worst that its own work explains; starts anew."""
        taken = self._worst_s, self._busy_s
        self._worst_s = self._busy_s = 0.0
        return taken


class GiveBack:
    """Decides when freed memory is given back to the system. One per process.

    The C library keeps freed memory for later use, also after a peak that will not come again; glibc gives it back when told
    to. That takes milliseconds for hundreds of megabytes, so it is done rarely: before load would be shed for want of memory,
    and when a peak is over.
    """

    __slots__ = ("_next_at", "_settled_bytes", "_trim", "_wait_s")

    def __init__(self, trim: Callable[[], object] | None) -> None:
        """`trim` gives memory back within milliseconds; None: the C library has no such function, and nothing is ever due."""
        self._trim = trim
        self._next_at = float("-inf")
        self._wait_s = SOONEST_S
        self._settled_bytes: int | None = None

    def look(self, now: float, resident_bytes: int | None, limit: int | None, *, is_at_rest: bool) -> bool:
        """Notes how much memory is resident; returns whether to give some back: it is nearly at `limit`, or a peak is over and
        no call is served."""
        if self._trim is None or resident_bytes is None or now < self._next_at:
            return False
        if limit and resident_bytes > EASY * limit:
            # Load would be shed soon, so this does not wait until no call is served.
            return True
        if self._settled_bytes is None or resident_bytes < self._settled_bytes:
            self._settled_bytes = resident_bytes
        return is_at_rest and resident_bytes > self._settled_bytes + PEAK_BYTES

    def run(self) -> None:
        """Gives memory back; to be called in a thread."""
        if self._trim is not None:
            self._trim()

    def done(self, now: float, before_bytes: int, after_bytes: int) -> None:
        """Notes the result: the memory that is resident now is the normal amount until a new peak."""
        brought = before_bytes - after_bytes > LITTLE * before_bytes
        self._wait_s = SOONEST_S if brought else min(2 * self._wait_s, LATEST_S)
        self._next_at = now + self._wait_s
        self._settled_bytes = after_bytes
