"""Moves calls: starts another attempt at another target, while the first one, which hangs, stays open.

    first ── hangs ── moved: second, at targets not tried by the call ── the first usable answer of the two serves

The first goes on in the call's own task. The second has a task, and a copy of the call, so that ledger, grant and deadline are
its own; it is served like any call whose attempt has failed, with retries and waits of its own. This must not know which
target is suspect, nor why a call moves. Invariants: a call has at most one move at a time; however the call ends, the second's
task ends too, its connection is closed and what it reserved is settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from gateway.core.admission.admission.admission import Admission
from gateway.core.answers import FirstAnswer
from gateway.core.attempts.outgoing.deadlines import AttemptDeadlines, Task
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.racing.hedge import CANCELLED
from gateway.core.retry.balancing.rules import Action
from gateway.core.retry.retry import rule_for
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.provider_errors import ErrorClass, Phase

Ended = Callable[[bool], None]
"""Called when a move has ended; the argument is true if it ended with an answer."""
log = logging.getLogger("gateway")


class MovedAttempt:
    """The second attempt of a call that moved. `opened` is the answer that it got, once there is one for the client."""

    __slots__ = ("call", "met", "opened", "task")

    def __init__(self, copy: Call) -> None:
        self.call = copy
        self.met = len(copy.attempts)
        """The number of the copy's attempts that were made by the call itself."""
        self.opened: FirstAnswer | None = None
        self.task: asyncio.Task[None] | None = None


class Moves:
    """Moves calls. One per process; holds no state of any call."""

    __slots__ = ("_admission", "_clock", "_serve", "_watch")

    def __init__(
        self,
        clock: Clock,
        admission: Admission,
        watch: AttemptDeadlines,
        serve: Callable[[Call], Awaitable[FirstAnswer]],
    ) -> None:
        """`serve` answers a call whose last attempt has failed, or raises GatewayError."""
        self._clock = clock
        self._admission = admission
        self._watch = watch
        self._serve = serve

    def places(self, call: Call) -> Sequence[Target]:
        """Returns the untried targets that the call may use now under its cost rules; empty: it stays where it is."""
        places = self._admission.planner.untried(call, self._clock.monotonic())
        if not places:
            return ()
        budgets, last = self._admission.retries.of(call), call.attempts[-1]
        made = [attempt for attempt in call.attempts if not attempt.is_refused]
        if len(made) >= budgets.attempts():
            return ()
        last.cost_usd = self._cost_usd(call)
        denied = budgets.denies_money()
        last.cost_usd = None
        return () if denied is not None else places

    def begin(self, call: Call, task: Task, ended: Ended | None = None) -> None:
        """Starts another attempt, at one of the `places`, of a call whose present attempt hangs in `task`."""
        last, now = call.attempts[-1], self._clock.monotonic()
        left = replace(
            last,
            ended_at=now,
            status=None,
            error_class=ErrorClass.TIMEOUT,
            phase=Phase.SENT,
            never_again=True,
            cost_usd=self._cost_usd(call),
        )
        copy = replace(
            call, attempts=[*call.attempts[:-1], left], grant=None, retry=None, key_cost=None, task=None, comment=None
        )
        move = call.other_attempt = copy.other_attempt = MovedAttempt(copy)
        move.task = asyncio.get_running_loop().create_task(self._make(call, move, task))
        if ended is not None:  # by the task, not in it: one that is called off at once never runs
            move.task.add_done_callback(lambda _: ended(move.opened is not None))

    async def outcome(self, call: Call) -> FirstAnswer | None:
        """Returns the answer that the second attempt got, now that the call's own has failed; None: it got none.

        In both cases the call's ledger has all attempts from then on.
        """
        move = _move_of(call)
        if move is None or move.task is None:
            return None
        try:
            await asyncio.wait((move.task,))
        except BaseException:  # the client has left
            await self.abandon(call)
            raise
        if call.other_attempt is not move:
            return None  # it is in the ledger already
        call.other_attempt = move.call.other_attempt = None  # the copy would lead back to itself
        call.attempts += move.call.attempts[move.met :]
        call.denied = call.denied or move.call.denied
        if move.opened is not None:
            call.grant, move.call.grant = move.call.grant, None
        return move.opened

    def call_off(self, call: Call) -> None:
        """Stops the second attempt because the call's own has an answer; the ledger lists it before the call's own."""
        move = _move_of(call)
        if move is None or move.task is None:
            return
        call.other_attempt = move.call.other_attempt = None
        move.task.cancel()
        self._end(move.call)
        call.attempts[-1:-1] = move.call.attempts[move.met :]

    async def abandon(self, call: Call) -> None:
        """Stops both attempts, because the client has left."""
        move = _move_of(call)
        if move is None or move.task is None:
            return
        self.call_off(call)
        await asyncio.wait((move.task,))
        if move.opened is not None and move.opened.relay is not None:
            await move.opened.relay.aclose()

    async def _make(self, call: Call, move: MovedAttempt, task: Task) -> None:
        copy = move.call
        try:
            opened = await self._serve(copy)
            if opened.diagnosis is None or is_final(copy):
                move.opened = opened
        except GatewayError:
            self._end(copy)  # a retry that was booked was never sent; the first attempt goes on
        except Exception:
            log.exception("moving a call failed")
            self._end(copy)
            return
        if move.opened is not None:
            self._watch.expire(task)
            return
        if copy.unsayable is not None:  # to find that out once is enough
            call.unsayable = {**copy.unsayable, **(call.unsayable or {})}
        own = call.attempts[-1:]  # none: its target could not be told the call
        if call.other_attempt is move and own and own[0].ended_at is None:  # it still hangs, and may move again
            call.other_attempt = copy.other_attempt = None
            call.attempts[-1:-1] = copy.attempts[move.met :]
            call.denied = call.denied or copy.denied

    def _end(self, copy: Call) -> None:
        """Ends the copy's attempt, which is not needed: settles what it reserved, and estimates its cost."""
        self._admission.outcomes.cancelled(copy, CANCELLED)
        last = copy.attempts[-1]
        if last.ended_at is None:
            last.cost_usd = self._cost_usd(copy)
            last.ended_at = self._clock.monotonic()
            last.status = None
            last.error_class = CANCELLED

    def _cost_usd(self, call: Call) -> float | None:
        target = find_target(call)
        return None if target is None else self._admission.costs.usd(call, target)


def is_final(call: Call) -> bool:
    """Returns whether the call's last answer, an error, would be the same at every target."""
    return rule_for(call.attempts[-1], call.model.retries).action is Action.PASS_THROUGH


def find_target(call: Call) -> Target | None:
    """Returns the target of the call's present attempt; None: the config no longer names it."""
    name = call.attempts[-1].target
    return next((one for one in (*call.model.plan, *call.model.context_plan) if one.name == name), None)


def _move_of(call: Call) -> MovedAttempt | None:
    return call.other_attempt if isinstance(call.other_attempt, MovedAttempt) else None
