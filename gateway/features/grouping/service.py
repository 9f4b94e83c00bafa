"""Groups: calls for embeddings or moderations that come within a few milliseconds go to their provider as one.

    its key lets it in -> join a group -> (the window, or the group is full) -> one call, all its attempts -> each its part

First one group, then their metrics, then all groups. A group stands behind what is each call's own (idempotency, caches, its
key's limits and budget, its account), and before admission: what is admitted, held, tried again and given up is the group, as
one request with the sum of its tokens. So a limit of requests is asked once, which is what groups are for, and a limit of
tokens counts what it would count anyway.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from gateway.core.admission.admission import Admission
from gateway.core.admission.gates import estimate_of
from gateway.core.attempts import Attempts
from gateway.core.call import (
    ALONE,
    EARLIER_TRIES,
    Call,
    CallFeature,
    CallRoute,
    ErrorAnswer,
    Headers,
    Open,
    Opened,
    Slot,
    Stream,
    Whole,
    earlier_tries_of,
)
from gateway.core.clock import Clock, Timer
from gateway.core.errors import CallerFault, DeadlineExceeded, GatewayError, InternalError
from gateway.core.ledger import cost_usd, whole_usage
from gateway.core.metrics import Counts, MetricTable
from gateway.core.openai.sse import json_object
from gateway.core.retry import Attempt
from gateway.core.snapshot import Target
from gateway.core.types import RawHeaders, Usage
from gateway.features.grouping.rules import (
    GROUPING,
    MOST_TOKENS,
    RESULTS,
    TOKENS_PART,
    GroupInput,
    GroupRules,
    joined_body,
    read_group_input,
    split_answer,
)


class GroupedCall(NamedTuple):
    """What a call goes to its provider in."""

    sent: Call
    """The call that goes in place of this one and others."""
    members: int
    """How many they are together."""


GROUP: Final[Slot[GroupedCall]] = Slot("group")
"""The group in which the call is sent; none: it goes alone, or has not been sent."""
GROUP_RULES: Final[Slot[GroupRules]] = Slot("group rules")
"""The rules that the call's maker has given it in place of its model's."""

# --- one group: calls that wait for others like them, and become one call ---

PER_CALL = frozenset(
    b"traceparent tracestate baggage x-client-request-id x-stainless-retry-count x-stainless-read-timeout "
    b"x-stainless-timeout".split()
)
"""Headers that are about one call, and not what it asks for: calls that differ in them go together, and without them."""


class Member:
    """One call of a group. `done` gives its answer; None: it is to be sent alone."""

    __slots__ = ("call", "done", "input", "tokens")

    def __init__(self, call: Call, input: GroupInput, tokens: int) -> None:
        self.call = call
        self.input = input
        self.tokens = tokens
        self.done: asyncio.Future[Whole | ErrorAnswer | None] = asyncio.get_running_loop().create_future()


class Group:
    """Calls that go together.

    Invariants: a call is in one group at most; a caller that leaves takes only its own input with it, as long as the group has
    not been sent.
    """

    __slots__ = ("call", "items", "members", "task", "timer", "tokens")

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.items = 0
        self.tokens = 0
        self.timer: Timer | None = None
        self.call: Call | None = None
        """The call that is sent for all of them; None: it has not been."""
        self.task: asyncio.Task[None] | None = None

    def fits(self, member: Member, most: int, most_tokens: float) -> bool:
        """Returns whether there is room for another call."""
        return self.items + len(member.input.items) <= most and self.tokens + member.tokens <= most_tokens

    def add(self, member: Member) -> None:
        self.members.append(member)
        self.items += len(member.input.items)
        self.tokens += member.tokens

    def remove(self, member: Member) -> None:
        """Lets a caller go who waits no more."""
        self.members.remove(member)
        self.items -= len(member.input.items)
        self.tokens -= member.tokens

    def join_calls(self) -> Call:
        """Returns the call that is made of all: as old as the oldest, as patient as the most patient.

        Its key has been asked by each of them, so it is asked no more.
        """
        first = self.members[0].call
        calls = [member.call for member in self.members]
        request = replace(
            first.request,  # for what all of them have in common
            headers=shared_headers(first.request.headers),
            body=joined_body([member.input for member in self.members]),
            received_at=min(call.request.received_at for call in calls),
            deadline=max(call.request.deadline for call in calls),
            deadline_is_callers=False,
            echo_request_id=False,
            max_tokens=None,
            thinks=False,
            large=None,
        )
        self.call = Call(
            request,
            replace(first.route, hooks=None),
            seq=min(call.seq for call in calls),
            estimate=self.tokens,
        )
        EARLIER_TRIES.put(self.call, earlier_tries_of(first))
        for call in calls:
            GROUP.put(call, GroupedCall(self.call, len(calls)))
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


FAULTS = frozenset((400, 413, 422))
"""Answers that may be about one input only."""
log = logging.getLogger("gateway")


class GroupMetrics(MetricTable):
    """The metrics of groups."""

    after = "lossy_fields_total"

    def __init__(self) -> None:
        self.groups = Counts("groups_total", "Requests to providers that were made of several calls.", "model")
        self.grouped_calls = Counts("grouped_calls_total", "Calls that such requests were made of.", "model")

    def sent(self, model: str, calls: int) -> None:
        """Counts calls that have become one request to a provider; `model` is an entry of the config."""
        self.groups.totals[(model,)] += 1
        self.grouped_calls.totals[(model,)] += calls


class Groups(CallFeature):
    """All groups of the process.

    Only calls of one key and lane go together, and only if nothing but their inputs differs. Where a group is refused for what
    is in it, each call is sent alone, and has the answer to its own fault only. Invariants: each member gets an answer or an
    error once; the shares of a usage add up to it; what a group has taken from a limit is given back when it has ended, whoever
    still waits for it.
    """

    __slots__ = ("_admission", "_attempts", "_clock", "_open", "_running", "metrics")

    name = "grouping"
    options: frozenset[bytes] = frozenset()

    def __init__(self, clock: Clock, admission: Admission, attempts: Attempts) -> None:
        self._clock = clock
        self.metrics: GroupMetrics = GroupMetrics()
        self._admission = admission
        self._attempts = attempts
        self._open: dict[Hashable, Group] = {}
        """Groups that have not been sent, by what their calls have in common."""
        self._running: set[asyncio.Task[None]] = set()

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for calls of models that are grouped, and for those whose makers may have set rules."""
        is_grouped = GROUPING.of(route.model) is not None or route.is_internal
        return self if is_grouped and route.endpoint.name in RESULTS else None

    async def open(self, call: Call, next: Open) -> Opened:
        """Returns the call's part of a group's answer, where it can be in one; else its own."""
        rules = GROUP_RULES.find(call) or GROUPING.of(call.route.model)
        parsed = call.parsed or json_object(call.request.body)
        input = None
        if rules is not None and parsed is not None and call.request.endpoint.name in RESULTS:
            input = None if call.request.large is not None or ALONE.find(call) else read_group_input(parsed)
        if rules is None or input is None or len(input.items) >= rules.most:
            return await next(call)
        await self._admission.ask_key(call)
        member = Member(call, input, max(1, estimate_of(call)))
        call.drop_parsed()
        group, leave = self._join(member, rules)
        timer = None
        if call.request.deadline_is_callers:
            timer = self._clock.call_at(call.request.deadline, lambda: _fail(member, _too_late()))
        try:
            answer = await member.done
        except BaseException:
            leave()
            _note_attempts(member, group, 0.0)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if answer is not None:
            return answer
        GROUP.drop(call)
        return await next(call)

    def headers(self, call: Call, headers: Headers) -> None:
        """Appends how many calls have gone together."""
        group = GROUP.find(call)
        if group is not None:
            headers.append((b"x-gateway-grouped", b"%d" % group.members))

    def _join(self, member: Member, rules: GroupRules) -> tuple[Group, Callable[[], None]]:
        """Puts a call into the group of its kind; returns that, and how to leave it."""
        call, input = member.call, member.input
        route = call.route
        request = call.request
        like: Hashable = (
            *(
                route.policy.version,
                request.endpoint.name,
                route.model.name,
                route.model.on_loss,
                request.model_name,
                route.key.digest,
                route.key.name,
            ),
            *(
                request.tenant,
                request.lane,
                request.credential,
                tuple(shared_headers(request.headers)),
                rules.most,
            ),
            *(request.query, input.kind, input.rest),
        )
        group = self._open.get(like)
        if group is not None and not group.fits(member, rules.most, most_tokens(route.model.targets)):
            self._send(like, group)
            group = None
        if group is None:
            opened = group = self._open[like] = Group()
            at = self._clock.monotonic() + rules.window_s
            group.timer = self._clock.call_at(at, lambda: self._send(like, opened))
        joined = group
        joined.add(member)
        if joined.items >= rules.most:
            self._send(like, joined)

        def leave() -> None:
            if joined.call is None:
                if member in joined.members:
                    joined.remove(member)
            elif joined.task is not None and all(one.done.done() for one in joined.members):
                joined.task.cancel()  # nobody waits for it any more

        return joined, leave

    def _send(self, group_key: Hashable, group: Group) -> None:
        """Closes a group; the calls in it become one."""
        if self._open.get(group_key) is group:
            del self._open[group_key]
        if group.timer is not None:
            group.timer.cancel()
        if group.call is not None or not group.members:
            return
        if len(group.members) == 1:
            _answer(group.members[0], None)
            return
        call = group.join_calls()
        self.metrics.sent(call.route.model.name, len(group.members))
        group.task = asyncio.create_task(self._serve(group, call))
        self._running.add(group.task)
        group.task.add_done_callback(self._running.discard)

    async def _serve(self, group: Group, call: Call) -> None:
        """Gets the answer of a group, and gives each member its part."""
        usage = attempt = None
        try:
            opened = await self._attempts.open(call)
            attempt = opened.attempt
            if isinstance(opened, Stream):
                await opened.relay.aclose()
                self._admission.outcomes.ended(call, attempt, "ok")
                self._price_unfit(group, call, attempt, self._admission.costs.usage(call, attempt.target))
                self._part(group, None)
            elif isinstance(opened, ErrorAnswer):
                self._part(group, None if opened.status in FAULTS else [opened] * len(group.members))
            else:
                usage = whole_usage(call, attempt, opened.usage, opened.body)
                parts = _parts(group, call, opened)
                if parts is None:
                    self._price_unfit(group, call, attempt, usage)
                self._part(group, parts)
        except CallerFault:
            self._part(group, None)  # too much for one request, perhaps, and not for several
        except GatewayError as error:
            self._refuse(group, error)
        except asyncio.CancelledError:
            self._admission.costs.price_unfinished(call, self._clock.monotonic())
            raise
        except Exception as defect:  # noqa: BLE001  # the members get it, and log it
            internal = InternalError()
            internal.__cause__ = defect
            self._refuse(group, internal)
        finally:
            self._admission.outcomes.settle(call, attempt, usage)

    def _price_unfit(self, group: Group, call: Call, attempt: Attempt, usage: Usage | None) -> None:
        """Books for the members that an answer which is of no use to them was paid for."""
        attempt.ended_at = self._clock.monotonic() if attempt.ended_at is None else attempt.ended_at
        attempt.cost_usd = None if call.request.endpoint.tokens == "none" else cost_usd(call, attempt.target, usage)
        attempt.is_cost_reported = usage is not None and not usage.estimated
        for member, share in zip(group.members, _shares(group), strict=True):
            _note_attempts(member, group, share)

    def _part(self, group: Group, answers: Sequence[Whole | ErrorAnswer] | None) -> None:
        """Gives each member its answer; None: each is to be sent alone."""
        if answers is None:
            for member in group.members:
                _answer(member, None)
            return
        shares = _shares(group)
        for member, answer, share in zip(group.members, answers, shares, strict=True):
            own = _note_attempts(member, group, share)
            _answer(member, replace(answer, attempt=own.get(answer.attempt, answer.attempt)))

    def _refuse(self, group: Group, error: GatewayError) -> None:
        for member, share in zip(group.members, _shares(group), strict=True):
            _note_attempts(member, group, share)
            _fail(member, copy.copy(error))


def _parts(group: Group, call: Call, opened: Whole) -> list[Whole] | None:
    counts = [len(member.input.items) for member in group.members]
    weights = [member.tokens for member in group.members]
    parts = split_answer(call.request.endpoint.name, opened.body, counts, weights, opened.usage)
    if parts is None:
        log.warning(
            "%s has answered %d inputs with something else; each goes alone now",
            opened.attempt.target.name,
            group.items,
        )
        return None
    return [replace(opened, body=part.body, usage=part.usage) for part in parts]


def _shares(group: Group) -> list[float]:
    return [member.tokens / (group.tokens or 1) for member in group.members]


def _note_attempts(member: Member, group: Group, share: float) -> dict[Attempt, Attempt]:
    """Notes in a member's account how its group fared: the attempts, with its share of what they cost, and the waits.

    Returns by the group's attempts what the member has of them. What they have reserved stays the group's.
    """
    call, joined = member.call, group.call
    if joined is None or call.attempts:
        return {}
    shares = {
        one: replace(one, reservation=None, cost_usd=None if one.cost_usd is None else one.cost_usd * share)
        for one in joined.attempts
    }
    call.attempts.extend(shares.values())
    call.share_setbacks(joined)
    return shares


def _answer(member: Member, answer: Whole | ErrorAnswer | None) -> None:
    if not member.done.done():
        member.done.set_result(answer)


def _fail(member: Member, error: GatewayError) -> None:
    if not member.done.done():
        member.done.set_exception(error)


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("The deadline passed before an answer began; give the call more time.")
