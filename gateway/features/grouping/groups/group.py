"""One group: calls that wait for others like them, and become one call.

Whose turn it is, and what its answer means, is not known here. Invariants: a call is in one group at most; a caller that leaves
takes only its own input with it, as long as the group has not been sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from gateway.core.answers import FirstAnswer
from gateway.core.call import Call
from gateway.core.clock import Timer
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.exchange import RawHeaders
from gateway.features.grouping.bodies.bodies import GroupInput, joined_body
from gateway.features.grouping.bodies.rules import MOST_TOKENS, TOKENS_PART

PER_CALL = frozenset(
    b"traceparent tracestate baggage x-client-request-id x-stainless-retry-count x-stainless-read-timeout "
    b"x-stainless-timeout".split()
)
"""Headers that are about one call, and not what it asks for: calls that differ in them go together, and without them."""


class Member:
    """One call of a group. `done` gives its answer; None: it is to be sent alone."""

    __slots__ = ("asked", "call", "done", "tokens")

    def __init__(self, call: Call, asked: GroupInput, tokens: int) -> None:
        self.call = call
        self.asked = asked
        self.tokens = tokens
        self.done: asyncio.Future[FirstAnswer | None] = asyncio.get_running_loop().create_future()


class Group:
    """Calls that go together."""

    __slots__ = ("call", "items", "members", "task", "timer", "tokens")

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.items = 0
        self.tokens = 0
        self.timer: Timer | None = None
        self.call: Call | None = None
        """What is sent for all of them; None: it has not been."""
        self.task: asyncio.Task[None] | None = None

    def fits(self, member: Member, most: int, most_tokens: float) -> bool:
        """Tells whether there is room for another call."""
        return self.items + len(member.asked.items) <= most and self.tokens + member.tokens <= most_tokens

    def add(self, member: Member) -> None:
        """Takes a call in."""
        self.members.append(member)
        self.items += len(member.asked.items)
        self.tokens += member.tokens

    def remove(self, member: Member) -> None:
        """Lets a caller go who waits no more."""
        self.members.remove(member)
        self.items -= len(member.asked.items)
        self.tokens -= member.tokens

    def join_calls(self) -> Call:
        """Returns the call that is made of all: as old as the oldest, as patient as the most patient.

        Its key has been asked by each of them, so it is asked no more.
        """
        first = self.members[0].call
        calls = [member.call for member in self.members]
        self.call = replace(
            first,
            body=joined_body([member.asked for member in self.members]),
            headers=shared_headers(first.headers),
            received_at=min(call.received_at for call in calls),
            deadline=max(call.deadline for call in calls),
            deadline_is_callers=False,
            seq=min(call.seq for call in calls),
            estimate=self.tokens,
            parsed=None,
            comment=None,
            task=None,
            server=None,
            attempts=[],
            key_cost=None,
            reserved=None,
            idempotency_key=None,
            replay=None,
        )
        for call in calls:
            call.joined = self.call, len(calls)
        return self.call


def most_tokens(targets: Sequence[Target]) -> float:
    """Returns how many estimated tokens a group may have, so that it fits each of the targets."""
    bounds = [float(MOST_TOKENS)]
    for target in targets:
        limits, window = target.limits, target.capabilities.context_window
        bounds += (limits.tokens_per_min or inf, limits.input_tokens_per_min or inf, window or inf)
    return TOKENS_PART * min(bounds)


def shared_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Returns the headers that say what is asked for."""
    return [header for header in headers if header[0] not in PER_CALL]
