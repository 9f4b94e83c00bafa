"""The life of a call, top to bottom. Read this first.

    replay -> admission -> attempt, admission -> attempt, … -> answer or give up -> relay -> settle

One explicit function instead of a stack of wrappers: everything shares one plan, one deadline and one attempt ledger, and
with a stream "returned" is not "finished". Invariant: `Accounts.settle` runs exactly once for every call that enters
`handle`, whichever way it leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gateway.core.admission.admission import Admission
from gateway.core.answers import AttemptDeadlines, FirstAnswer, clocks_of
from gateway.core.attempts import Attempts
from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.ledger import (
    CLIENT_GONE,
    CLIENT_GONE_STATUS,
    Accounts,
    answer_headers,
    lossy_header,
    media_usage,
    should_retry_of,
    streamed_usage,
    whole_usage,
    with_retry_advice,
)
from gateway.core.openai.headers import passthrough_response_headers, response_headers
from gateway.core.openai.media import MEDIA
from gateway.core.openai.usage import LONGEST_ANSWER
from gateway.core.ports import Meter, Store
from gateway.core.relay import OverlongStream, RawRelay, SseRelay
from gateway.core.render import with_googles_advice
from gateway.core.types import PASSING, Usage
from gateway.dialects.count_tokens import TokenCounts
from gateway.features.background_charges import Deferred
from gateway.features.degrade.service import SlowModels
from gateway.features.grouping.service import Groups
from gateway.features.output.service import Outputs, tell_result
from gateway.features.ownership.rules import ObjectRules
from gateway.features.ownership.service import Ownership
from gateway.features.reuse.inspect import Savings
from gateway.features.reuse.layers import plan_reuse
from gateway.features.reuse.service import Replays
from gateway.features.reuse.single_flight import SharedAnswer, count_saved, follow
from gateway.features.runs.rules import RunPart
from gateway.features.runs.steps import StepCalls
from gateway.features.runs.table import RunBudget, RunTable
from gateway.features.sdk_retries import Ended, Running
from gateway.products.realtime.service import RealtimeSessions

SLOW_CLIENT = "slow_client"
SLOW_CLIENT_S = 5.0
"""A provider that was kept waiting for so long is not to blame when its stream breaks or takes too long."""


def _half() -> float:
    return 0.5


class Pipeline:
    """Serves calls. One per process; holds no state of any call."""

    __slots__ = (
        "_accounts",
        "_admission",
        "_attempts",
        "_clock",
        "_deferred",
        "_fuse",
        "_groups",
        "_outputs",
        "_returned",
        "_returned_as_is",
        "_returned_by_many",
        "_running",
        "_slow",
        "counts",
        "ownership",
        "realtime",
        "replays",
        "steps",
    )

    def __init__(
        self,
        clock: Clock,
        meter: Meter,
        watch: AttemptDeadlines,
        admission: Admission,
        store: Store,
        draw: Callable[[], float] = _half,
        savings: Savings | None = None,
        kept_clock: Clock | None = None,
        runs: RunTable | None = None,
    ) -> None:
        """`draw` gives uniform numbers from [0, 1); without it no backoff is random.

        `kept_clock` is the clock by which answers grow old, that of the store; absent: `clock`. `runs` is where runs are
        counted; absent: they are not.
        """
        self._clock = clock
        self._admission = admission
        savings = Savings() if savings is None else savings
        count_in_run = None if runs is None else runs.settled
        ends = (clock, meter, admission.outcomes.settle, admission.budgets.spent, savings.note, count_in_run)
        self._accounts = Accounts(*ends)
        self._fuse = None if runs is None else RunBudget(runs, admission.costs)
        self._attempts = Attempts(clock, meter, admission, watch, draw)
        self._groups = Groups(clock, meter, admission, self._attempts)
        self._outputs = Outputs(clock, meter, admission, self._attempts, watch)
        self._deferred = Deferred(admission)
        self._running = Running(clock)
        self._slow = SlowModels(clock, admission.gates)
        self.counts = TokenCounts(clock, admission, self._accounts)
        self.ownership = Ownership(store.objects)
        self.replays = Replays(clock if kept_clock is None else kept_clock, self._accounts, store, self._answer)
        self.realtime = RealtimeSessions(clock, Accounts(*ends), self._attempts, admission, self._fuse)
        self.steps = StepCalls(self._clock if kept_clock is None else kept_clock, self._accounts, store, self._paid)
        self._returned = response_headers()
        self._returned_by_many = response_headers(limits=False)
        self._returned_as_is = passthrough_response_headers()

    def handle(self, call: Call) -> Coroutine[Any, Any, Reply]:
        """Serves one call. Raises the GatewayError that the client gets instead of an answer; cancelling it stops the call.

        When the reply has `chunks`, the account is settled when they end; in all other cases before this returns.
        """
        self._accounts.opened()
        part = call.part
        if part is not None and part.run:
            return self._paid(call) if part.step is None else self.steps.serve(call, part.step)
        rules = call.policy.objects
        if rules is not None and self.ownership.concerns(call, rules):
            return self._admitted(call, rules)
        plan = plan_reuse(call, recognises=self.replays.layers.semantic is not None)
        return self._answer(call) if plan is None else self.replays.serve(call, plan)

    def _paid(self, call: Call) -> Coroutine[Any, Any, Reply]:
        """Serves a call of a run that no kept step answers."""
        if call.part is not None and self._fuse is not None and not self._fuse.lets_in(call, call.part):
            return self._in_run(call, call.part, self._fuse)
        return self._begun(call)

    def _begun(self, call: Call) -> Coroutine[Any, Any, Reply]:
        """Serves a call that its run has let in. All others take the same way in `handle` itself: that is a frame less."""
        rules = call.policy.objects
        if rules is not None and self.ownership.concerns(call, rules):
            return self._admitted(call, rules)
        plan = plan_reuse(call, recognises=self.replays.layers.semantic is not None)
        return self._answer(call) if plan is None else self.replays.serve(call, plan)

    async def aclose(self) -> None:
        """Waits for answers that are being stored. To be called when every call has been stopped."""
        await self.replays.aclose()

    async def _in_run(self, call: Call, part: RunPart, fuse: RunBudget) -> Reply:
        """Returns the answer to a call of a run. Raises RunBudgetExceeded where the run has had enough."""
        await self._let_in(call, fuse.admit(call, part))
        return await self._begun(call)

    async def _admitted(self, call: Call, rules: ObjectRules) -> Reply:
        """Returns the answer to a call about objects at a provider. Raises NotFound for those of another tenant."""
        await self._let_in(call, self.ownership.admit(call, rules))
        plan = plan_reuse(call, recognises=self.replays.layers.semantic is not None)
        return await (self._answer(call) if plan is None else self.replays.serve(call, plan))

    async def _let_in(self, call: Call, admission: Awaitable[None]) -> None:
        """Waits until a call may go on. One that may not, or is stopped meanwhile, has its account closed."""
        with self._accounts.closing(call):
            await admission

    async def _answer(self, call: Call) -> Reply:
        """Returns the answer of a provider, or of the call that this one repeats."""
        original = self._running.enter(call)
        ended: Ended = None
        try:
            if call.model.degrade is not None:
                self._slow.degrade(call, call.model.degrade)
            if original is not None:
                reply = await self._repeated(call, original)
                if reply is not None:
                    ended = reply if reply.chunks is None else None
                    return reply
            if call.output is not None:
                opened = await self._outputs.first_answer(call)
            elif call.model.grouping is None and not call.group_most:
                opened = await self._attempts.first_answer(call)
            else:
                opened = await self._groups.first_answer(call)
            if call.objects is not None:
                opened = await self.ownership.learn(call, opened, self._attempts.first_answer)
            if opened.relay is None:
                ended = self._whole_reply(call, opened)
                if call.output_check is not None:
                    tell_result(ended, call.output_check)
                return ended
            reply = self._stream_reply(call, opened, opened.relay)
            if not self._running.is_followed(call):
                return reply
            # An SDK retry waits for this answer, so both read a shared one. A call without a task of the edge's leads other
            # readers already, and still has to pass the answer on to them after its own client has left.
            is_at_the_edge = call.task is not None
            ended = self.replays.single_flight.share(call, reply)
            if call.left and is_at_the_edge:
                return Reply(CLIENT_GONE_STATUS, [])
            return await self.replays.single_flight.join(call, ended) or reply
        except asyncio.CancelledError as stopped:
            # Settling ends the attempt, and only an attempt in flight gets a price here: first this, then that.
            unfinished = self._admission.costs.price_unfinished(call, self._clock.monotonic())
            self._accounts.settle_stopped(call, stopped, *unfinished)
            raise
        except GatewayError as error:
            stale = self.replays.stale_reply_for(call, error.status)
            if stale is not None:
                return stale
            ended = self._accounts.settle_failed(call, error)
            raise
        except Exception as defect:
            ended = self._accounts.settle_failed(call, defect)
            raise ended from defect
        finally:
            self._running.leave(call, ended)
            ended = None  # this frame is part of the error's traceback: together they would be a reference cycle

    async def _repeated(self, call: Call, original: Call) -> Reply | None:
        """Returns the answer of the original call; None: the repeated call has to be served itself."""
        followed = await self._running.follow(call, original)
        if isinstance(followed, SharedAnswer):
            return await self.replays.single_flight.join(call, followed)
        if followed is None:
            return None
        follow(call, original)
        count_saved(call, original)
        self._accounts.settle(call, followed.status, original.outcome)
        headers = followed.shared + answer_headers(call, self._clock.monotonic())
        return Reply(followed.status, headers, followed.body, shared=followed.shared)

    def _whole_reply(self, call: Call, opened: FirstAnswer) -> Reply:
        body = opened.body
        diagnosis = opened.diagnosis
        error_class = None if diagnosis is None else diagnosis.error_class  # as its property, without a call
        if error_class is None:
            usage = opened.usage
            if usage is None or not usage.input or not 0 < usage.output <= LONGEST_ANSWER:
                # Not both numbers of tokens are told: it may be of a response that ends later, else the rest is estimated.
                if call.endpoint.request == "any" and self._deferred.awaits(call):
                    self._deferred.shown(call, body)
                if call.endpoint.sse == "responses":
                    usage = self._deferred.unfinished(call, opened.target, body) or usage
                usage = whole_usage(call, usage, body)
            self._accounts.settle(call, opened.status, "ok", target=opened.target, usage=usage)
        else:
            instead = self.replays.stale_reply_for(call, opened.status)
            if instead is not None:
                return instead
            self._accounts.settle(call, opened.status, error_class, target=opened.target)
        shared = self._shared(call, opened)
        # On pass-through a client reads the provider's own advice, as it came.
        if error_class is not None and call.endpoint.request != "any":
            is_passing = (error_class in PASSING or should_retry_of(opened.headers)) and call.denied is None
            back_in_s = self._admission.back_in_s(call) if is_passing else None
            shared = with_retry_advice(shared, back_in_s)
            if call.endpoint.sse == "generate":
                body = with_googles_advice(body, shared)
        # The headers tell the cost, which the attempt has only since the account was settled.
        return Reply(opened.status, shared + answer_headers(call, self._clock.monotonic()), body, shared=shared)

    def _stream_reply(self, call: Call, opened: FirstAnswer, relay: SseRelay | RawRelay | OverlongStream) -> Reply:
        def on_end(outcome: str, usage: Usage | None, output_tokens: int) -> None:
            if usage is None:
                self._deferred.cut(call, opened.target, relay, output_tokens)
            if call.endpoint.name in MEDIA:
                usage = media_usage(call, opened.target, usage, output_tokens if outcome == "ok" else None)
            else:
                usage = streamed_usage(call, outcome, usage, output_tokens)
            is_clients_doing = isinstance(relay, SseRelay) and relay.paused_s > SLOW_CLIENT_S and outcome != "ok"
            if isinstance(relay, SseRelay):
                call.usage_event = relay.usage_event
            if call.output_check is not None:
                self._outputs.ended(call, call.output_check, outcome)
            self._admission.outcomes.ended(call, SLOW_CLIENT if is_clients_doing else outcome)
            self._accounts.settle(call, opened.status, outcome, target=opened.target, usage=usage)

        chunks = relay.chunks(on_end, clocks_of(opened.target, call), self._clock.monotonic)
        pass_on = relay.pass_on if isinstance(relay, SseRelay) else None
        if call.objects is not None and call.objects.learns:
            chunks = self.ownership.watched(call, call.objects, opened.target, chunks)
            pass_on = None  # each block is looked into on its way
        if call.output_check is not None and call.output_check.result is None:
            chunks, pass_on = self._outputs.watched(call, call.output_check, chunks), None

        async def close() -> None:
            await chunks.aclose()
            # A generator that never ran has not closed its relay.
            await relay.aclose()
            if not call.settled:  # closed before the first chunk was asked for: the generator never ran
                on_end(CLIENT_GONE, *relay.account())

        shared = self._shared(call, opened)
        if isinstance(relay, RawRelay):
            # A raw body passes unchanged, so its announced length holds.
            shared += (header for header in opened.headers if header[0] == b"content-length")
            if call.endpoint.request == "any" and self._deferred.awaits(call):
                chunks = self._deferred.watched(call, chunks)
        headers = shared + answer_headers(call, self._clock.monotonic())
        return Reply(opened.status, headers, chunks=chunks, close=close, pass_on=pass_on, shared=shared)

    def _shared(self, call: Call, opened: FirstAnswer) -> list[tuple[bytes, bytes]]:
        """Returns the provider's headers that the client gets; of a model with several targets their limits together."""
        if call.endpoint.request == "any":
            shared = self._returned_as_is.keep(opened.headers)
        elif len(call.model.plan) == 1:
            shared = self._returned.keep(opened.headers)
        else:
            shared = self._returned_by_many.keep(opened.headers)
            shared += self._admission.limits_together(call, opened.headers)
        gaps = call.attempts[-1].gaps if call.attempts else ()
        if gaps:
            shared.append(lossy_header(gaps))
        return shared
