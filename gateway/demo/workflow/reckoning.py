"""What the runs of a demo of workflows came to: by the program's journal, the provider's own ledger, and the gateway's runs.

Pure, but for reading the journal. A run is known by its number, a step by its run and its number in it. Invariant: what was
paid is taken from what the provider recorded, and nothing of it from the gateway or the program.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import orjson

INPUT_USD, OUTPUT_USD = 2.5e-6, 10e-6
"""The price of a token."""
ALLOWED_FAILURES = 0.001
"""So many of the runs through the gateway may have a step that failed."""
CENT = 0.01
_LATE_S = 0.5
"""After the return of a gateway a connection to the one before may fail so late."""

Step = tuple[int, int]


class JournalEntry(NamedTuple):
    """What happened in the program, in its own words."""

    at: float
    """Of a clock that all processes share."""
    run: int
    what: str
    """`begin`, `answered`, `replayed`, `failed` or `done`."""
    step: int
    status: int | None
    """Of the answer that was a failure; None: there was none."""


class StepCall(NamedTuple):
    """A call that reached the provider."""

    at: float
    step: Step
    status: int | None
    """Of its answer; None: the connection broke before there was one."""
    is_left: bool
    """Who called was gone before the end of the answer."""
    usd: float
    """What the answer costs."""

    @property
    def is_paid(self) -> bool:
        """Tells whether the provider worked for it: it answered, or was about to when the caller was gone."""
        return self.status == 200 or (self.status is None and self.is_left)


class ProcessKill(NamedTuple):
    """A kill, as found right after it."""

    whom: str
    """`program` or `gateway`."""
    at: float
    back_at: float
    """When it was there again."""
    calls: int = 0
    """So many calls had reached the provider; of a gateway."""
    kept: frozenset[Step] = frozenset()
    """The steps that were on the disk; of a gateway."""


class RunsReported(NamedTuple):
    """What `GET /v1/runs` says."""

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
    """None: there was no gateway to tell it."""

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
        return sum(len(_paid(self.ledger[: kill.calls]) - kill.kept) for kill in self._gateway_kills)

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


def read_journal(path: Path) -> list[JournalEntry]:
    """Returns the entries of a journal, which need not be there."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [JournalEntry(*orjson.loads(line)) for line in lines]


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


def _paid(calls: Iterable[StepCall]) -> set[Step]:
    return {call.step for call in calls if call.is_paid}
