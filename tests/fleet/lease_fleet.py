"""Replicas that share one limit, for tests: each keeps its counts as a real one does, and uses what it was given.

`Plain` is a store for them: the model, asked as the script is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from gateway.core.limits.limit_table import LimitKind
from gateway.fleet.lease import LeaseAsk, LeaseReply
from tests.fleet.lease_model import LeaseModel

NEAR = 1e-6
BEGIN = 1_000_000.0
Ask = Callable[[float, bytes, LeaseAsk], LeaseReply]
"""A store: when, who, what."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A limit, as the config has it."""

    kind: LimitKind
    rate_per_s: float
    capacity: float
    window_s: float = 0.0


@dataclass(slots=True)
class Member:
    """One replica: what it tells is true, and an answer that it does not hear changes nothing for it."""

    id: bytes
    shape: Shape
    granted: float = 0.0
    used: float = 0.0
    given: float = 0.0
    charged: float = 0.0
    charged_before: float = 0.0
    in_use: float = 0.0
    """Of slots."""
    window: int = 0
    ends_at: float = 0.0
    most: float = inf
    """Of slots: as last heard."""
    used_in: dict[int, float] = field(default_factory=dict)
    """By window."""

    @property
    def held(self) -> float:
        return self.granted - self.used - self.given - self.in_use

    def ask(self, want: float = 0.0, first: float = 0.0, **more: Any) -> LeaseAsk:
        shape = self.shape
        rest: dict[str, Any] = {"window_s": shape.window_s, **more}
        return LeaseAsk(
            "limit",
            shape.kind,
            shape.rate_per_s,
            shape.capacity,
            granted=self.granted,
            used=self.used,
            given=self.given,
            want=want,
            first=first,
            window=self.window,
            charged=self.charged,
            charged_before=self.charged_before,
            **rest,
        )

    def hear(self, reply: LeaseReply, now: float) -> None:
        self.granted, self.charged_before = reply.granted, self.charged
        self.window, self.ends_at, self.most = reply.window, now + reply.ends_in_s, reply.most

    def use(self, amount: float, now: float) -> float:
        """As much of it as is held; of a window only while that lasts."""
        if self.shape.kind == "window" and now >= self.ends_at:
            return 0.0
        taken = max(0.0, min(amount, self.held))
        if self.shape.kind == "slots":
            self.in_use += taken
        else:
            self.used += taken
            self.used_in[self.window] = self.used_in.get(self.window, 0.0) + taken
        return taken

    def end_calls(self, count: float) -> None:
        """Slots that were in use are held, and idle; those above what is fair are given back."""
        self.in_use -= min(count, self.in_use)
        self.give_back(self.held + self.in_use - self.most)

    def give_back(self, amount: float) -> float:
        """So much of what is held and idle, at most; the next ask tells it."""
        returned = max(0.0, min(amount, self.held))
        self.given += returned
        return returned


@dataclass(slots=True)
class Worker:
    """A replica with calls that arrive evenly and wait for at most two seconds."""

    member: Member
    per_s: float
    phase: float = 0.0
    backlog: float = 0.0
    next_at: float = 0.0
    refused: float = 0.0
    admitted: list[tuple[float, float]] = field(default_factory=list)
    """When, and how many."""

    def step(self, now: float, step_s: float) -> None:
        """Let time pass: calls arrive, and go as far as there is room."""
        self.phase += self.per_s * step_s
        calls = float(int(self.phase))
        self.phase -= calls
        self.backlog += calls
        taken = self.member.use(self.backlog, now)
        taken_whole = float(int(taken))
        if taken_whole != taken:  # only whole calls go
            self.member.used -= taken - taken_whole
        self.backlog -= taken_whole
        most = max(1.0, 2 * self.per_s)
        self.refused += max(0.0, self.backlog - most)
        self.backlog = min(self.backlog, most)
        if taken_whole:
            self.admitted.append((now, taken_whole))

    def wish(self) -> tuple[float, float]:
        """What it asks for: whoever waits, and the calls of the next quarter of a second."""
        ahead = float(int(self.per_s * 0.25))
        want = max(0.0, self.backlog + ahead - self.member.held)
        return want, 1.0 if self.backlog >= 1 and self.member.held < 1 else 0.0

    def count(self, since: float, until: float) -> float:
        return sum(calls for at, calls in self.admitted if since <= at < until)


def fair_shares(demands: list[float], total: float) -> list[float]:
    """Max-min: nobody gets more than it asks for, and who gets less than that gets no less than anybody else."""
    shares = [0.0] * len(demands)
    left = total
    for place, index in enumerate(sorted(range(len(demands)), key=demands.__getitem__)):
        shares[index] = min(demands[index], left / (len(demands) - place))
        left -= shares[index]
    return shares


BUCKET = Shape("bucket", 10.0, 20.0)
WINDOW = Shape("window", 0.0, 5.0, 2.0)
SLOTS = Shape("slots", 0.0, 6.0)
SHAPES = (
    Shape("bucket", 10.0, 20.0),
    Shape("bucket", 0.05, 3.0),
    Shape("bucket", 500.0, 30_000.0),
    Shape("window", 0.0, 5.0, 2.0),
    Shape("slots", 0.0, 6.0),
)


class Plain:
    """The model, asked in the same way."""

    def __init__(self) -> None:
        self.limit: LeaseModel | None = None

    def forget(self) -> None:
        self.limit = None

    def __call__(self, now: float, id: bytes, ask: LeaseAsk) -> LeaseReply:
        if self.limit is None:
            self.limit = LeaseModel.new(now, ask)
        reply = self.limit.ask(now, id, ask)
        assert self.limit.level + self.limit.out <= min(ask.capacity, ask.ceiling) + NEAR or ask.kind == "slots"
        assert all(each.lent >= -NEAR and each.aside >= 0 for each in self.limit.replicas)
        return reply


def two(shape: Shape) -> tuple[Member, Member]:
    return Member(b"one", shape), Member(b"other", shape)


def tell(asked: Ask, now: float, member: Member, want: float = 0.0, first: float = 0.0, **more: float) -> LeaseReply:
    """An ask whose answer is heard."""
    reply = asked(now, member.id, member.ask(want, first, **more))
    member.hear(reply, now)
    return reply


def bursts(uses: Sequence[tuple[float, float]], rate_per_s: float) -> float:
    """The most that was ever used in any span over and above what refilled in it."""
    worst = left = 0.0
    before = uses[0][0] if uses else 0.0
    for at, amount in uses:
        left = max(0.0, left - (at - before) * rate_per_s) + amount
        worst, before = max(worst, left), at
    return worst
