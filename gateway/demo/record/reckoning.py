"""What a batch came to whose gateway was killed on the way: by the batch's files, and by the provider's own ledger.

Pure. A line is known by its number. Invariant: what the provider says is taken from what it recorded, and nothing of it from
the gateway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


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
