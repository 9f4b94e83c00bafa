"""The records of the demos' runs, and what they came to.

In this order: a batch whose gateway was killed on the way, a storm and an outage (by the client and the provider's
counters), workflows whose program was killed, too. Pure: `now` comes in, in seconds on any monotonic clock. It must not
know how figures are shown. Invariants: a call is recorded exactly once, with or without an answer; events before `begin` do
not count; what was paid is taken from what the provider recorded, and nothing of it from the gateway or the program.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import orjson

from gateway.demo.program import JournalEntry

# --- A batch ---


class LedgerEntry(NamedTuple):
    """A call that reached the provider."""

    line: int
    status: int | None
    """The status of its answer; None: the connection broke before there was one."""
    is_left: bool
    """The gateway was gone before the end of the answer."""

    @property
    def is_paid(self) -> bool:
        """Returns whether the provider worked for it: it answered, or was about to when the gateway was gone."""
        return self.status == 200 or (self.status is None and self.is_left)


class KillNote(NamedTuple):
    """A kill of the gateway, as found right after it."""

    at_s: float
    """Seconds since the batch was made."""
    calls: int
    """The calls that had reached the provider."""
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
    """The seconds that the gateway was away after each kill."""
    seen: list[tuple[float, int]] = field(default_factory=list)
    """The answers that the provider had given, with the second of each count."""
    began_at: float | None = None
    duration_s: float = 0.0
    status: str = ""
    """The status of the batch at its end."""
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


# --- A storm ---


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


# --- An outage ---


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


# --- Workflows ---


INPUT_USD, OUTPUT_USD = 2.5e-6, 10e-6
"""The price of a token."""
ALLOWED_FAILURES = 0.001
"""The share of the runs through the gateway that may have a step that failed."""
CENT = 0.01
_LATE_S = 0.5
"""Seconds after the return of a gateway in which a connection to the one before may still fail."""

Step = tuple[int, int]


class StepCall(NamedTuple):
    """A call that reached the provider."""

    at: float
    step: Step
    status: int | None
    """The status of its answer; None: the connection broke before there was one."""
    is_left: bool
    """Who called was gone before the end of the answer."""
    usd: float
    """What the answer costs."""

    @property
    def is_paid(self) -> bool:
        """Returns whether the provider worked for it: it answered, or was about to when the caller was gone."""
        return self.status == 200 or (self.status is None and self.is_left)


class ProcessKill(NamedTuple):
    """A kill, as found right after it."""

    whom: str
    """`program` or `gateway`."""
    at: float
    back_at: float
    """The time at which it was there again."""
    calls: int = 0
    """The calls that had reached the provider, at the kill of a gateway."""
    kept: frozenset[Step] = frozenset()
    """The steps that were on the disk, at the kill of a gateway."""


class RunsReported(NamedTuple):
    """The figures of `GET /v1/runs`."""

    succeeded: int
    usd: float


@dataclass(slots=True)
class WorkflowArm:
    """The record of `runs` runs of `steps` steps that went one way to the provider, with a gateway on it or without."""

    name: str
    runs: int
    steps: int
    has_gateway: bool
    began_at: float = 0.0
    """0: not yet."""
    ended_at: float = 0.0
    finished_so_far: int = 0
    kills: list[ProcessKill] = field(default_factory=list)
    journal: Sequence[JournalEntry] = ()
    ledger: Sequence[StepCall] = ()
    """What the provider recorded, in its order."""
    reported: RunsReported | None = None
    """The report of the gateway; None: there was none on this way."""

    @property
    def duration_s(self) -> float:
        return max(0.0, self.ended_at - self.began_at)

    def killed(self, whom: str) -> int:
        """Returns how often it was killed."""
        return sum(kill.whom == whom for kill in self.kills)

    # --- what the program saw ---

    @property
    def finished(self) -> int:
        """Returns the number of runs that came to their end."""
        return len({entry.run for entry in self.journal if entry.what == "done"})

    @property
    def replayed(self) -> int:
        """Returns the number of answers that the gateway remembered."""
        return sum(entry.what == "replayed" for entry in self.journal)

    @property
    def failures(self) -> list[JournalEntry]:
        """Returns the failures of steps, but for those that no gateway was there to answer."""
        return [entry for entry in self.journal if entry.what == "failed" and self._away(entry) is None]

    @property
    def whole(self) -> int:
        """Returns the number of finished runs of which no step has failed."""
        return self.finished - len({entry.run for entry in self.failures})

    @property
    def cut(self) -> int:
        """Returns how many runs the kills have cut off, each kill by itself."""
        program = [kill for kill in self.kills if kill.whom == "program"]
        cuts, is_open = set[tuple[int, float]](), dict[int, float]()
        for entry in self.journal:
            killed = next((kill for kill in program if is_open.get(entry.run, entry.at) < kill.at < entry.at), None)
            if entry.what == "begin" and killed is not None:
                cuts.add((entry.run, killed.at))
            if entry.what == "begin":
                is_open[entry.run] = entry.at
            elif entry.what in ("failed", "done"):
                is_open.pop(entry.run, None)
            if entry.what == "failed" and (away := self._away(entry)) is not None:
                cuts.add((entry.run, away.at))
        return len(cuts)

    def _away(self, failure: JournalEntry) -> ProcessKill | None:
        """Returns the kill of the gateway that a step without an answer is owed to."""
        gateways = (kill for kill in self.kills if kill.whom == "gateway" and failure.status is None)
        return next((kill for kill in gateways if kill.at <= failure.at <= kill.back_at + _LATE_S), None)

    # --- what the provider was paid ---

    @property
    def paid(self) -> Counter[Step]:
        """Returns how often the provider worked for each step."""
        return Counter(call.step for call in self.ledger if call.is_paid)

    @property
    def repaid(self) -> int:
        """Returns the number of calls that were paid for beyond one of each step."""
        return sum(count - 1 for count in self.paid.values())

    @property
    def in_flight(self) -> int:
        """Returns the number of steps, over all kills of the gateway, that were paid for and not kept."""
        return sum(len(_paid_steps(self.ledger[: kill.calls]) - kill.kept) for kill in self._gateway_kills)

    @property
    def paid_though_kept(self) -> int:
        """Returns the number of calls after a kill of the gateway for steps that had been kept by then."""
        return sum(
            call.step in kept
            for begin, end, kept in _lives(self._gateway_kills, len(self.ledger))
            for call in self.ledger[begin:end]
        )

    @property
    def _gateway_kills(self) -> list[ProcessKill]:
        return [kill for kill in self.kills if kill.whom == "gateway"]

    @property
    def usd(self) -> float:
        """Returns what the provider was paid."""
        return sum(call.usd for call in self.ledger if call.is_paid)

    @property
    def usd_once(self) -> float:
        """Returns what each step costs once."""
        return sum({call.step: call.usd for call in self.ledger if call.is_paid}.values())

    @property
    def usd_per_run(self) -> float:
        return self.usd / self.runs

    def paid_by_second(self, seconds: int) -> list[tuple[int, int]]:
        """Returns how many steps were paid for the first time, and again, in each of the first `seconds` seconds."""
        counts, seen = [(0, 0)] * seconds, set[Step]()
        for call in self.ledger:
            if call.is_paid:
                second = max(0, min(int(call.at - self.began_at), seconds - 1))
                first, again = counts[second]
                counts[second] = (first, again + 1) if call.step in seen else (first + 1, again)
                seen.add(call.step)
        return counts

    @property
    def faults(self) -> int:
        """Returns the number of calls that met a fault of the provider."""
        return sum(not call.is_paid for call in self.ledger)

    def to_mapping(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return {
            "name": self.name,
            "runs": self.runs,
            "finished": self.finished,
            "without_a_failed_step": self.whole,
            "begun_again_after_a_failed_step": len(self.failures),
            "begun_again_after_a_kill": self.cut,
            "kills": {whom: self.killed(whom) for whom in ("program", "gateway")},
            "replayed_steps": self.replayed,
            "provider": {
                "calls": len(self.ledger),
                "faults": self.faults,
                "steps_paid": self.paid.total(),
                "repaid": self.repaid,
                "in_flight_at_gateway_kills": self.in_flight,
                "paid_though_kept": self.paid_though_kept,
                "usd": round(self.usd, 6),
                "usd_once": round(self.usd_once, 6),
                "usd_per_run": round(self.usd_per_run, 6),
            },
            "told": None
            if self.reported is None
            else {"succeeded": self.reported.succeeded, "usd": round(self.reported.usd, 6)},
            "duration_s": round(self.duration_s, 3),
        }


def broken_promises(straight: WorkflowArm, through: WorkflowArm) -> list[str]:
    """Returns what was promised and is not so, in sentences; empty: all promises were kept."""
    reported, steps = through.reported or RunsReported(0, 0.0), through.runs * through.steps
    facts = (
        (straight.finished < straight.runs, f"{straight.finished} runs straight to the provider were finished"),
        (through.finished < through.runs, f"{through.finished} runs through the gateway were finished"),
        (
            through.runs - through.whole > ALLOWED_FAILURES * through.runs,
            f"{through.runs - through.whole} runs through the gateway met a step that failed",
        ),
        (len(through.paid) != steps, f"the provider knows of {len(through.paid)} steps of {steps}"),
        (
            through.repaid > through.in_flight,
            f"{through.repaid} steps were paid for again, but {through.in_flight} were in flight at the kills",
        ),
        (through.paid_though_kept, f"{through.paid_though_kept} calls were for steps that had been kept"),
        (reported.succeeded != through.runs, f"GET /v1/runs has {reported.succeeded} runs that succeeded"),
        (
            abs(reported.usd - through.usd_once) >= CENT / 2,
            f"GET /v1/runs has ${reported.usd:.4f}, the ledger ${through.usd_once:.4f} for each step once",
        ),
    )
    return [sentence for is_so, sentence in facts if is_so]


def step_call(recorded: Mapping[str, Any]) -> StepCall:
    """Returns a call for a step as the provider recorded it."""
    question = orjson.loads(recorded["body"])["messages"][-1]["content"]
    run, _, step = question.partition(":")[0].partition("/")
    tokens = recorded["tokens"] or {"input": 0, "output": 0}
    usd = tokens["input"] * INPUT_USD + tokens["output"] * OUTPUT_USD
    return StepCall(recorded["mono_s"], (int(run), int(step)), recorded["status"], recorded["left"], usd)


def _lives(kills: Sequence[ProcessKill], end: int) -> Iterable[tuple[int, int, frozenset[Step]]]:
    """Returns the calls of each life of the gateway, from one to another, and the steps that had been kept before it.

    A step that was kept at one kill and is not at the next was forgotten: whoever pays for it again, pays though it was kept.
    """
    ends = [*(kill.calls for kill in kills[1:]), end]
    kept = accumulate((kill.kept for kill in kills), operator.or_)
    return [(kill.calls, until, so_far) for kill, until, so_far in zip(kills, ends, kept, strict=False)]


def _paid_steps(calls: Iterable[StepCall]) -> set[Step]:
    return {call.step for call in calls if call.is_paid}
