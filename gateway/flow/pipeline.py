"""The life of a call, top to bottom. Read this first.

    replay -> admission -> attempt, admission -> attempt, … -> answer or give up -> relay -> settle

One explicit function instead of a stack of wrappers: everything shares one plan, one deadline and one attempt ledger, and
with a stream "returned" is not "finished". Invariant: `Accounts.settle` runs exactly once for every call that enters
`handle`, whichever way it leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.call import Call, Reply
from gateway.clock import Clock
from gateway.errors import GatewayError, InternalError, ShuttingDown
from gateway.flow.admission.admission import Admission
from gateway.flow.admission.deferred import Deferred
from gateway.flow.answer_headers import answer_headers
from gateway.flow.attempt import Attempts
from gateway.flow.deadlines import AttemptDeadlines
from gateway.flow.dispatch import FirstAnswer, clocks_of
from gateway.flow.objects import Ownership
from gateway.flow.raw_relay import RawRelay, why_stopped
from gateway.flow.relay import SseRelay
from gateway.flow.reuse import entries
from gateway.flow.reuse.eligibility import plan_reuse
from gateway.flow.reuse.reuse import Replays
from gateway.flow.reuse.sdk_retries import Ended, Running
from gateway.flow.reuse.shared_answer import Flight
from gateway.flow.reuse.stats import Savings
from gateway.flow.settle import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts
from gateway.policy.objects.rules import ObjectRules
from gateway.policy.openai.headers import passthrough_response_headers, response_headers
from gateway.policy.openai.usage import estimate_tokens, estimate_usage
from gateway.ports import Meter, Store
from gateway.words import Usage

SLOW_CLIENT = "slow_client"
SLOW_CLIENT_S = 5.0
"""A provider that was kept waiting for so long is not to blame when its stream breaks or takes too long."""
NO_RETRY = (b"x-should-retry", b"false")


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
        "_returned",
        "_returned_as_is",
        "_running",
        "ownership",
        "replays",
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
    ) -> None:
        """`draw` gives uniform numbers from [0, 1); without it no backoff is random.

        `kept_clock` is the clock by which answers grow old, that of the store; absent: `clock`.
        """
        self._clock = clock
        self._admission = admission
        savings = Savings() if savings is None else savings
        self._accounts = Accounts(clock, meter, admission.settle, admission.budgets.spent, savings.note)
        self._attempts = Attempts(clock, meter, admission, watch, draw)
        self._deferred = Deferred(admission)
        self._running = Running(clock)
        self.ownership = Ownership(store.objects)
        self.replays = Replays(clock if kept_clock is None else kept_clock, self._accounts, store, self._answer)
        self._returned = response_headers()
        self._returned_as_is = passthrough_response_headers()

    def handle(self, call: Call) -> Coroutine[Any, Any, Reply]:
        """Serve one call. Raises GatewayError for what the client gets instead of an answer; cancel it to give up.

        When the reply has `chunks`, the account is settled when they end; in all other cases before this returns.
        """
        self._accounts.opened()
        rules = call.policy.objects
        if rules is not None and self.ownership.concerns(call, rules):
            return self._admitted(call, rules)
        asked = plan_reuse(call, recognises=self.replays.semantic is not None)
        return self._answer(call) if asked is None else self.replays.serve(call, asked)

    async def aclose(self) -> None:
        """Wait for what is still being kept. To be called when every call has been stopped."""
        await self.replays.aclose()

    async def _admitted(self, call: Call, rules: ObjectRules) -> Reply:
        """The answer to a call about objects at a provider, if they are its tenant's."""
        try:
            await self.ownership.admit(call, rules)
        except GatewayError as error:
            self._accounts.settle(call, error.status, error.code or error.type)
            raise
        except asyncio.CancelledError as stopped:
            self._accounts.settle(call, CLIENT_GONE_STATUS, why_stopped(stopped))
            raise
        except Exception as defect:
            self._accounts.settle(call, 500, "internal_error")
            raise InternalError() from defect
        asked = plan_reuse(call, recognises=self.replays.semantic is not None)
        return await (self._answer(call) if asked is None else self.replays.serve(call, asked))

    async def _answer(self, call: Call) -> Reply:
        """The answer of a provider, or of the call that this one repeats."""
        twin = self._running.enter(call)
        ended: Ended = None
        try:
            if twin is not None:
                reply = await self._repeated(call, twin)
                if reply is not None:
                    ended = reply if reply.chunks is None else None
                    return reply
            opened = await self._attempts.first_answer(call)
            if call.objects is not None:
                opened = await self.ownership.learn(call, opened, self._attempts.first_answer)
            if opened.relay is None:
                ended = self._whole_reply(call, opened)
                return ended
            reply = self._stream_reply(call, opened, opened.relay)
            if not self._running.is_followed(call):
                return reply
            is_at_the_edge = call.task is not None  # else a flight of its own reads it, and keeps it
            ended = self.replays.flights.share(call, reply)
            if call.left and is_at_the_edge:
                return Reply(CLIENT_GONE_STATUS, [])  # nobody reads it; the others have the flight
            return await self.replays.flights.join(call, ended) or reply
        except GatewayError as error:
            instead = self.replays.stale_reply_for(call, error.status)
            if instead is not None:
                self._accounts.settle(call, instead.status, "ok")
                return instead
            ended = error
            self._accounts.settle(call, error.status, error.code or error.type)
            raise
        except asyncio.CancelledError as stopped:
            outcome = why_stopped(stopped)
            self._admission.price_unfinished(call)
            self._accounts.settle(call, CLIENT_GONE_STATUS if outcome == CLIENT_GONE else ShuttingDown.status, outcome)
            raise
        except Exception as defect:
            self._accounts.settle(call, 500, "internal_error")
            ended = InternalError()
            raise ended from defect
        finally:
            self._running.leave(call, ended)
            ended = None  # an error would lead back to itself by this frame

    async def _repeated(self, call: Call, twin: Call) -> Reply | None:
        """The answer of the call that this one repeats; None: it has to be served itself."""
        followed = await self._running.follow(call, twin)
        if isinstance(followed, Flight):
            return await self.replays.flights.join(call, followed)
        if followed is None:
            return None
        entries.follow(call, twin)
        entries.count_saved(call, twin)
        self._accounts.settle(call, followed.status, twin.outcome)
        headers = followed.shared + answer_headers(call, self._clock.monotonic())
        return Reply(followed.status, headers, followed.body, shared=followed.shared)

    def _whole_reply(self, call: Call, opened: FirstAnswer) -> Reply:
        body, error_class = opened.body, opened.error_class
        if error_class is None:
            usage = opened.usage
            if usage is None or not usage.output:
                usage = self._untold(call, opened, usage)
            self._accounts.settle(call, opened.status, "ok", target=opened.target, usage=usage)
        else:
            instead = self.replays.stale_reply_for(call, opened.status)
            if instead is not None:
                self._accounts.settle(call, instead.status, "ok")
                return instead
            self._accounts.settle(call, opened.status, error_class, target=opened.target)
        shared = self._shared(call, opened)
        if error_class is not None and call.endpoint.request != "any":  # what could be tried was: no multiplying
            shared = [header for header in shared if header[0] != b"x-should-retry"]
            shared.append(NO_RETRY)
        return Reply(opened.status, shared + answer_headers(call, self._clock.monotonic()), body, shared=shared)

    def _stream_reply(self, call: Call, opened: FirstAnswer, relay: SseRelay | RawRelay) -> Reply:
        def on_end(outcome: str, usage: Usage | None, output_tokens: int) -> None:
            if usage is None:
                self._deferred.cut(call)
                usage = self._estimate(call, output_tokens)
            is_clients_doing = isinstance(relay, SseRelay) and relay.paused_s > SLOW_CLIENT_S and outcome != "ok"
            if isinstance(relay, SseRelay):
                call.usage_event = relay.usage_event
            self._admission.ended(call, SLOW_CLIENT if is_clients_doing else outcome)
            self._accounts.settle(call, opened.status, outcome, target=opened.target, usage=usage)

        chunks = relay.chunks(on_end, clocks_of(opened.target, call), self._clock.monotonic)
        if call.objects is not None and call.objects.learns:
            chunks = self.ownership.watched(call, call.objects, opened.target, chunks)

        async def close() -> None:
            await chunks.aclose()
            await relay.aclose()
            if not call.settled:  # closed before the first chunk was asked for: the generator never ran
                on_end(CLIENT_GONE, None, 0)

        shared = self._shared(call, opened)
        if isinstance(relay, RawRelay):
            shared += (header for header in opened.headers if header[0] == b"content-length")
            if call.endpoint.request == "any" and self._deferred.awaits(call):
                chunks = self._deferred.watched(call, chunks)
        headers = shared + answer_headers(call, self._clock.monotonic())
        return Reply(opened.status, headers, chunks=chunks, close=close, shared=shared)

    def _shared(self, call: Call, opened: FirstAnswer) -> list[tuple[bytes, bytes]]:
        """The provider's headers that the client gets."""
        returned = self._returned_as_is if call.endpoint.request == "any" else self._returned
        return returned.keep(opened.headers)

    def _untold(self, call: Call, opened: FirstAnswer, told: Usage | None) -> Usage | None:
        """The tokens of a whole answer that has told none that it wrote, or no usage at all."""
        if call.endpoint.request == "any" and self._deferred.awaits(call):
            self._deferred.shown(call, opened.body)
        if call.endpoint.sse == "responses":
            told = self._deferred.unfinished(call, opened.target, opened.body) or told
        return told or self._estimate(call, estimate_tokens(opened.body))

    def _estimate(self, call: Call, output_tokens: int) -> Usage | None:
        """The tokens of a call whose provider did not report them, where the endpoint has tokens at all."""
        if call.endpoint.tokens == "none":
            return None
        output_tokens = output_tokens if call.endpoint.tokens == "both" else 0
        if call.large is not None and call.large.tokens >= 0:
            return Usage(call.large.tokens, output_tokens, estimated=True)
        return estimate_usage(call.body, output_tokens)
