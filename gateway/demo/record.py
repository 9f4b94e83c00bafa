"""Records the runs of a demo, and sums them up afterwards.

Pure except for `keep_calling`: `now` comes in, in seconds on any monotonic clock. It must not know the provider, nor how
figures are shown. Invariants: a call is recorded exactly once, with or without an answer; events before `begin` do not count.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from gateway.core.http.client.transport import Http1Transport
from gateway.demo.storm.clients import AnswerBrokenError, Ask, Caller, CallFailedError

# The demos' processes: modules of this package that can be killed, each with its output in a file.
#
# They have sessions of their own, so that Ctrl-C at the terminal is for the demo, which ends them. Invariant: no process is
# left when its context ends, however it ends.


_LOOK_S = 0.01
_PATIENCE_S = 60.0
_ROOT = Path(__file__).parents[2]


class ProcessFailedError(Exception):
    """A process of the demo ended, or did not begin, by itself."""


class DemoProcess:
    """A running command."""

    def __init__(self, module: str, arguments: tuple[str, ...], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - this program, with arguments of the demo's own
                [sys.executable, "-m", module, *arguments],
                cwd=log.parent,
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    async def address(self, before: str) -> str:
        """Waits until it says where it listens, which stands behind the words `before`. Raises ProcessFailedError."""
        async with asyncio.timeout(_PATIENCE_S):
            while not (found := self._behind(before)):
                if self._process.poll() is not None:
                    raise self._failed()
                await asyncio.sleep(_LOOK_S)
        return found

    @property
    def has_done_its_work(self) -> bool:
        """Tells whether it has ended well. Raises ProcessFailedError where it has not ended well."""
        status = self._process.poll()
        if status:
            raise self._failed()
        return status == 0

    def kill(self) -> None:
        """Ends it as `kill -9` does, and returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def _failed(self) -> ProcessFailedError:
        return ProcessFailedError(f"a process of the demo ended by itself; it said: {self._last_words()}")

    def _behind(self, before: str) -> str:
        found = self._log.read_text(errors="replace").partition(before)[2]
        return found.partition(",")[0].strip() if "," in found else ""

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-500:] or "nothing"


@asynccontextmanager
async def process(folder: Path, *arguments: str, module: str = "gateway") -> AsyncIterator[DemoProcess]:
    """Runs `gateway`, or another module, with these arguments in the folder, and kills it at the end."""
    name = arguments[0] if module == "gateway" else module.rpartition(".")[2]
    one = DemoProcess(module, arguments, folder / f"{name}-{time.monotonic_ns()}.log")
    try:
        yield one
    finally:
        one.kill()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a process: no settings of a gateway of the user's, and this package before all others."""
    kept = {name: value for name, value in environ.items() if not name.startswith("GATEWAY_")}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))}


# What a batch came to whose gateway was killed on the way: by the batch's files, and by the provider's own ledger.
#
# Pure. A line is known by its number. Invariant: what the provider says is taken from what it recorded, and nothing of it from
# the gateway.


class LedgerEntry(NamedTuple):
    """A call that reached the provider."""

    line: int
    status: int | None
    """Of its answer; None: the connection broke before there was one."""
    is_left: bool
    """The gateway was gone before the end of the answer."""

    @property
    def is_paid(self) -> bool:
        """Tells whether the provider worked for it: it answered, or was about to when the gateway was gone."""
        return self.status == 200 or (self.status is None and self.is_left)


class KillNote(NamedTuple):
    """A kill of the gateway, as found right after it."""

    at_s: float
    """Seconds since the batch was made."""
    calls: int
    """So many calls had reached the provider."""
    kept: frozenset[int]
    """The lines whose results were on the disk."""


@dataclass(slots=True)
class BatchRun:
    """The record of one batch of `lines` at a limit of `rate_per_s` requests."""

    lines: int
    rate_per_s: float
    level: int
    """The calls that the limit admitted at once when the batch began."""
    kills: list[KillNote] = field(default_factory=list)
    away_s: list[float] = field(default_factory=list)
    """How long the gateway was away after each kill."""
    seen: list[tuple[float, int]] = field(default_factory=list)
    """At which second the provider had given how many answers."""
    began_at: float | None = None
    duration_s: float = 0.0
    status: str = ""
    """Of the batch at its end."""
    answered: Sequence[int] = ()
    """The lines of the output file."""
    failed: Sequence[int] = ()
    """The lines of the error file."""
    ledger: Sequence[LedgerEntry] = ()
    """What the provider recorded, in its order."""

    def time_s(self, now: float) -> float:
        """Returns the seconds since the batch was made."""
        return now - self.began_at if self.began_at is not None else 0.0

    @property
    def results_twice(self) -> int:
        """Returns the number of results beyond one of each line."""
        return sum(count - 1 for count in Counter([*self.answered, *self.failed]).values())

    @property
    def lost(self) -> int:
        """Returns the number of lines without a result."""
        return self.lines - len({*self.answered, *self.failed})

    @property
    def paid(self) -> Counter[int]:
        """Returns how often the provider worked for each line."""
        return Counter(entry.line for entry in self.ledger if entry.is_paid)

    @property
    def paid_twice(self) -> int:
        """Returns the number of calls that were paid for beyond one of each line."""
        return sum(count - 1 for count in self.paid.values())

    @property
    def in_flight(self) -> int:
        """Returns the number of lines, over all kills, that the provider had worked for and whose results were not kept."""
        return sum(len(_paid(self.ledger[: kill.calls]) - kill.kept) for kill in self.kills)

    @property
    def paid_though_kept(self) -> int:
        """Returns the number of calls after a kill for lines whose results had been kept by then."""
        kept: set[int] = set()
        again, begin = 0, 0
        for kill in [*self.kills, KillNote(0.0, len(self.ledger), frozenset())]:
            again += sum(entry.line in kept for entry in self.ledger[begin : kill.calls])
            kept, begin = kept | kill.kept, kill.calls
        return again

    @property
    def statuses(self) -> Counter[int | None]:
        """Returns how often the provider answered with each status; None: it broke the connection instead."""
        return Counter(entry.status for entry in self.ledger if not (entry.status is None and entry.is_left))

    @property
    def ideal_s(self) -> float:
        """Returns the time at which the limit admits the last line, each being asked for once."""
        return max(0.0, (self.lines - self.level) / self.rate_per_s)

    def broken_promises(self) -> list[str]:
        """Returns what was promised and is not so, in sentences; empty: all promises were kept."""
        facts = (
            (self.status != "completed", f"the batch is {self.status or 'not at its end'}"),
            (self.lost, f"{self.lost} lines have no result"),
            (self.results_twice, f"{self.results_twice} results are there twice"),
            (len(self.failed), f"{len(self.failed)} lines have failed"),
            (self.lines - len(self.paid), f"the provider knows of {len(self.paid)} lines"),
            (
                self.paid_twice > self.in_flight,
                f"{self.paid_twice} calls were paid for twice, but {self.in_flight} were in flight",
            ),
            (self.paid_though_kept, f"{self.paid_though_kept} calls were for lines whose results had been kept"),
        )
        return [sentence for is_so, sentence in facts if is_so]

    def to_mapping(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return {
            "lines": self.lines,
            "answered": len(self.answered),
            "failed": len(self.failed),
            "lost": self.lost,
            "results_twice": self.results_twice,
            "paid_twice": self.paid_twice,
            "in_flight_at_kills": self.in_flight,
            "paid_though_kept": self.paid_though_kept,
            "kills": [{"at_s": round(kill.at_s, 3), "kept": len(kill.kept)} for kill in self.kills],
            "away_s": [round(away_s, 3) for away_s in self.away_s],
            "provider": {
                "calls": len(self.ledger),
                "paid": self.paid.total(),
                "statuses": {str(status): count for status, count in self.statuses.items() if status},
                "connections_broken": self.statuses[None],
            },
            "duration_s": round(self.duration_s, 3),
            "ideal_s": self.ideal_s,
            "broken_promises": self.broken_promises(),
        }


def _paid(entries: Iterable[LedgerEntry]) -> set[int]:
    return {entry.line for entry in entries if entry.is_paid}


Now = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]
OVERHEAD = "x-gateway-overhead-ms"


class Tick(NamedTuple):
    """An interval at the provider: its end, the calls answered in it, and those refused with a 429."""

    at_s: float
    answered: int
    refused: int


@dataclass(slots=True)
class Run:
    """The record of one storm of `calls` at a limit of `rate_per_s` requests."""

    name: str
    calls: int
    rate_per_s: float
    level: float = 0.0
    """The calls that the limit admitted at once when the storm began."""
    began_at: float | None = None
    latencies_s: list[float] = field(default_factory=list)
    """The latencies of the answered calls."""
    failed: int = 0
    tokens: int = 0
    duration_s: float = 0.0
    """Seconds until the last call ended."""
    seen_429s: int = 0
    """The 429s that reached the app's client, whether it retried or not."""
    overheads_ms: list[float] = field(default_factory=list)
    """The gateway's own time for each answer, from its headers."""
    ticks: list[Tick] = field(default_factory=list)
    upstream_calls: int = 0
    upstream_answers: int = 0
    upstream_429s: int = 0

    def begin(self, level: float, now: float) -> None:
        """Starts the storm; call the methods below after it."""
        self.level, self.began_at = level, now

    def record(self, status: int, headers: Mapping[str, str]) -> None:
        """Records a response that reached the app's client."""
        if status == 429:
            self.seen_429s += 1
        elif status == 200 and OVERHEAD in headers:
            self.overheads_ms.append(float(headers[OVERHEAD]))

    def ended(self, tokens: int | None, called_at: float, now: float) -> None:
        """Records the end of a call; `tokens` is None for an error."""
        if tokens is None:
            self.failed += 1
        else:
            self.latencies_s.append(now - called_at)
            self.tokens += tokens
        self.duration_s = max(self.duration_s, self.time_s(now))

    def counted(self, calls: int, answered: int, refused: int, now: float) -> None:
        """Records the provider's counters since the storm began; call it often."""
        tick = Tick(self.time_s(now), answered - self.upstream_answers, refused - self.upstream_429s)
        if tick.answered or tick.refused:
            self.ticks.append(tick)
        self.upstream_calls, self.upstream_answers, self.upstream_429s = calls, answered, refused

    def time_s(self, now: float) -> float:
        """Returns the seconds since the storm began."""
        return now - self.began_at if self.began_at is not None else 0.0

    @property
    def answered(self) -> int:
        return len(self.latencies_s)

    @property
    def wasted_calls(self) -> int:
        """Returns the number of upstream calls without an answer for the app."""
        return max(0, self.upstream_calls - self.answered)

    @property
    def ideal_s(self) -> float | None:
        """Returns the time at which the limit admits the last call; None where no call has to wait."""
        return (self.calls - self.level) / self.rate_per_s if self.calls > self.level else None

    @property
    def wait_p50_s(self) -> float | None:
        return median(self.latencies_s) if self.latencies_s else None

    @property
    def added_p50_ms(self) -> float | None:
        """Returns the median of the gateway's own time in ms; None for a run without a gateway."""
        return median(self.overheads_ms) if self.overheads_ms else None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return {name: getattr(self, name) for name in _RUN_FIGURES}


_RUN_FIGURES = (
    *("name", "calls", "answered", "failed", "seen_429s", "upstream_calls", "upstream_429s", "wasted_calls", "tokens"),
    *("duration_s", "ideal_s", "wait_p50_s", "added_p50_ms"),
)


def per_second(ticks: Iterable[Tick], seconds: int) -> list[tuple[int, int]]:
    """Returns the calls answered and refused in each of the first `seconds` seconds; later ones count in the last."""
    counts = [(0, 0)] * seconds
    for at_s, answered, refused in ticks:
        second = min(int(at_s), seconds - 1)
        counts[second] = (counts[second][0] + answered, counts[second][1] + refused)
    return counts


class CallEnd(NamedTuple):
    """A call: the time of its start, the seconds until its end, and whether it was answered or broke off."""

    made_at_s: float
    latency_s: float
    is_answered: bool
    is_broken: bool = False


class Fate(NamedTuple):
    """The outcomes of some calls: answered in time, answered late, failed."""

    answered: int
    late: int
    failed: int


@dataclass(slots=True)
class Trial:
    """The record of one run of `calls`; an answer after more than `late_s` is late."""

    name: str
    calls: int
    late_s: float
    began_at: float | None = None
    ended: list[CallEnd] = field(default_factory=list)
    tries: int = 0
    """The tries at providers for these calls."""
    tries_at_dead: int = 0
    """The tries at a provider that refused connections."""

    def begin(self, now: float) -> None:
        """Starts the traffic; call the methods below after it."""
        self.began_at = now

    def tried(self, tries: int, at_dead: int) -> None:
        """Records tries at providers, and those of them at one that refused connections."""
        if self.began_at is not None:
            self.tries += tries
            self.tries_at_dead += at_dead

    def end(self, made_at: float, now: float, *, is_answered: bool, is_broken: bool = False) -> None:
        """Records the end of a call; `is_broken`: it failed after a part of its answer."""
        self.ended.append(CallEnd(self.time_s(made_at), now - made_at, is_answered, is_broken))

    def time_s(self, now: float) -> float:
        """Returns the seconds since the traffic started."""
        return now - self.began_at if self.began_at is not None else 0.0

    @property
    def answered(self) -> int:
        return sum(call.is_answered for call in self.ended)

    @property
    def late(self) -> int:
        """Returns the number of late answers."""
        return fate_of(self.ended, self.late_s).late

    @property
    def failed(self) -> int:
        return len(self.ended) - self.answered

    @property
    def broken(self) -> int:
        """Returns the number of calls that failed within their answer, which no client or gateway can retry unnoticed."""
        return sum(call.is_broken for call in self.ended)

    @property
    def wasted_tries(self) -> int:
        """Returns the number of tries without an answer for the app."""
        return max(0, self.tries - self.answered)

    @property
    def tries_per_call(self) -> float:
        return self.tries / max(1, len(self.ended))

    @property
    def latency_p50_s(self) -> float | None:
        return self._latency_s(0.5)

    @property
    def latency_p99_s(self) -> float | None:
        return self._latency_s(0.99)

    def _latency_s(self, share: float) -> float | None:
        """Returns the latency that this share of the answers did not exceed."""
        known = sorted(call.latency_s for call in self.ended if call.is_answered)
        return known[ceil(share * len(known)) - 1] if known else None

    def to_mapping(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return {name: getattr(self, name) for name in _TRIAL_FIGURES}


_TRIAL_FIGURES = (
    *(
        "name",
        "calls",
        "answered",
        "late",
        "failed",
        "broken",
        "tries",
        "tries_per_call",
        "wasted_tries",
        "tries_at_dead",
    ),
    *("latency_p50_s", "latency_p99_s"),
)


def fate_of(calls: Iterable[CallEnd], late_s: float) -> Fate:
    """Returns the outcomes of these calls."""
    answered = late = failed = 0
    for call in calls:
        if not call.is_answered:
            failed += 1
        elif call.latency_s > late_s:
            late += 1
        else:
            answered += 1
    return Fate(answered, late, failed)


def fates_by_second(trial: Trial, seconds: int) -> list[Fate]:
    """Returns the outcomes of the calls that were made in each of the first `seconds` seconds."""
    made: list[list[CallEnd]] = [[] for _ in range(seconds)]
    for call in trial.ended:
        made[min(int(call.made_at_s), seconds - 1)].append(call)
    return [fate_of(calls, trial.late_s) for calls in made]


async def keep_calling(trial: Trial, ask: Ask, rate_per_s: float, now: Now, sleep: Sleep) -> None:
    """Makes all calls of a trial that has begun, and waits for the last to end."""
    began_at = now()
    async with asyncio.TaskGroup() as tasks:
        for number in range(trial.calls):
            due = began_at + number / rate_per_s
            if due > now():
                await sleep(due - now())
            tasks.create_task(_call(trial, partial(ask, number), now(), now))


async def _call(trial: Trial, ask: Callable[[], Awaitable[int]], made_at: float, now: Now) -> None:
    try:
        await ask()
    except CallFailedError as error:
        trial.end(made_at, now(), is_answered=False, is_broken=isinstance(error, AnswerBrokenError))
    else:
        trial.end(made_at, now(), is_answered=True)


# The provider of demos in which others are killed: an emulator in a process of its own, whose ledger is what counts.
#
# It outlives them all. Invariant: no process is left when its context ends, however it ends.


_LEDGER = {"recorded_requests": 1_000_000, "recorded_bytes": 256 * 1024 * 1024}


@dataclass(frozen=True, slots=True)
class RecordingProvider:
    """The started emulator. Its methods raise AskFailedError."""

    url: str
    """Where its API is."""
    controls: Caller

    async def answers(self) -> int:
        """Returns how many calls it has answered with 200."""
        return int((await self.controls.get("/__emulator/stats"))["statuses"].get("200", 0))

    async def calls(self) -> list[dict[str, Any]]:
        """Returns the calls that it recorded, in their order."""
        recorded: list[dict[str, Any]] = (await self.controls.get("/__emulator/requests"))["requests"]
        return recorded

    async def until_left(self) -> None:
        """Waits until it has noticed that nobody is there any more."""
        while (await self.controls.get("/__emulator/stats"))["concurrency"]["now"]:  # noqa: ASYNC110 - a poll
            await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def recording_provider(
    folder: Path, sender: Http1Transport, seed: int, faults: Sequence[str], settings: Mapping[str, Any]
) -> AsyncIterator[RecordingProvider]:
    """Yields the started emulator, with these faults and other settings of its own."""
    async with process(folder, "emulate", "--port", "0", "--seed", str(seed)) as one:
        url = await one.address("base_url ")
        controls = Caller(sender, url.removesuffix("/v1"))
        await controls.post("/__emulator/config", {**settings, **_LEDGER, "fault": list(faults)})
        yield RecordingProvider(url, controls)
