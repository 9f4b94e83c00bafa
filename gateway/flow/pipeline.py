"""The life of a call, top to bottom. Read this first.

    admission -> attempt, admission -> attempt, … -> answer or give up -> relay -> settle

One explicit function instead of a stack of wrappers: everything shares one plan, one deadline and one attempt ledger, and
with a stream "returned" is not "finished". Invariant: `Accounts.settle` runs exactly once for every call that enters
`handle`, whichever way it leaves.
"""

from __future__ import annotations

import asyncio

from gateway.call import Call, Reply, Usage
from gateway.clock import Clock
from gateway.errors import (
    DeadlineExceeded,
    ErrorClass,
    GatewayError,
    InternalError,
    NoTargetAvailable,
    ShuttingDown,
    TargetsTimedOut,
    UpstreamFailed,
)
from gateway.flow.accounting import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts
from gateway.flow.admission import Admission
from gateway.flow.attempt import Opened, open_answer
from gateway.flow.relay import RawRelay, SseRelay, why_stopped
from gateway.flow.trail import trail_headers
from gateway.flow.watch import Watch
from gateway.policy.classify import is_openai_shaped, limits_rate, moves_on
from gateway.policy.gate import Refusal
from gateway.policy.headers import passthrough_response_headers, response_headers
from gateway.policy.snapshot import Target
from gateway.policy.usage import estimate_tokens, estimate_usage
from gateway.ports import Meter

NO_RETRY = (b"x-should-retry", b"false")


class Pipeline:
    """Serves calls. One per process; holds no state of any call."""

    __slots__ = ("_accounts", "_admission", "_clock", "_returned", "_returned_as_is", "_watch")

    def __init__(self, clock: Clock, meter: Meter, watch: Watch, admission: Admission) -> None:
        self._clock = clock
        self._admission = admission
        self._accounts = Accounts(clock, meter, admission.settle)
        self._watch = watch
        self._returned = response_headers()
        self._returned_as_is = passthrough_response_headers()

    async def handle(self, call: Call) -> Reply:
        """Serve one call. Raises GatewayError for what the client gets instead of an answer; cancel it to give up.

        When the reply has `chunks`, the account is settled when they end; in all other cases before this returns.
        """
        self._accounts.opened()
        try:
            opened = await self._first_answer(call)
            if opened.relay is not None:
                return self._stream_reply(call, opened, opened.relay)
            return self._whole_reply(call, opened)
        except GatewayError as error:
            self._accounts.settle(call, error.status, error.code or error.type)
            raise
        except asyncio.CancelledError as stopped:
            outcome = why_stopped(stopped)
            self._accounts.settle(call, CLIENT_GONE_STATUS if outcome == CLIENT_GONE else ShuttingDown.status, outcome)
            raise
        except Exception as defect:
            self._accounts.settle(call, 500, "internal_error")
            raise InternalError("The gateway failed on this request; its log has the details.") from defect

    async def _first_answer(self, call: Call) -> Opened:
        """The first answer that is final: a success, or an error that would be the same everywhere.

        A target that refuses the call for its rate is paused, and the call goes back to the head of its queue; one that
        fails is not tried again.
        """
        admission = self._admission
        last: Opened | UpstreamFailed | None = None
        failed: list[Target] = []
        while self._clock.monotonic() < call.deadline:
            target = await admission.enter(call, failed)
            if target is None:
                break
            try:
                opened = await open_answer(call, target, self._clock, self._watch)
            except UpstreamFailed as failure:
                admission.failed(call, failure)
                last = failure
                failed.append(target)
                continue
            error_class = opened.error_class
            if error_class is None:
                admission.answered(call, opened.headers)
                return opened
            if limits_rate(error_class):
                if admission.refused(call, error_class, opened.status, opened.headers, opened.body) is Refusal.WAIT:
                    continue
            else:
                admission.answered(call, opened.headers, is_error=True)
                admission.failed(call)
                if not moves_on(error_class):
                    return opened
            last = opened
            failed.append(target)
        return self._give_up(call, last)

    def _give_up(self, call: Call, last: Opened | UpstreamFailed | None) -> Opened:
        """Every target failed: the last provider's own error if clients can read it, else one of ours."""
        if isinstance(last, Opened) and is_openai_shaped(last.body):
            return last
        if last is None or (call.deadline_is_callers and self._clock.monotonic() >= call.deadline):
            raise DeadlineExceeded(f"The deadline passed before an answer began; tried: {_tried(call)}.")
        error_class = last.error_class
        detail = last.detail if isinstance(last, UpstreamFailed) else f"status {last.status}"
        error = TargetsTimedOut if error_class is ErrorClass.TIMEOUT else NoTargetAvailable
        raise error(f"No target could serve this call; tried: {_tried(call)}. The last one: {error_class} ({detail}).")

    def _whole_reply(self, call: Call, opened: Opened) -> Reply:
        body = opened.body
        if opened.error_class is None:
            usage = opened.usage or self._estimate(call, estimate_tokens(body))
            self._accounts.settle(call, opened.status, "ok", target=opened.target, usage=usage)
        else:
            self._accounts.settle(call, opened.status, opened.error_class, target=opened.target)
        headers = self._headers(call, opened)
        if opened.error_class is not None and limits_rate(opened.error_class):
            headers.append(NO_RETRY)  # waiting would have helped us before it helps them
        return Reply(opened.status, headers, body)

    def _stream_reply(self, call: Call, opened: Opened, relay: SseRelay | RawRelay) -> Reply:
        def on_end(outcome: str, usage: Usage | None, output_tokens: int) -> None:
            usage = usage or self._estimate(call, output_tokens)
            self._accounts.settle(call, opened.status, outcome, target=opened.target, usage=usage)

        chunks = relay.chunks(on_end, opened.target.clocks.total_s, self._clock.monotonic)

        async def close() -> None:
            await chunks.aclose()
            await relay.aclose()
            if not call.settled:  # closed before the first chunk was asked for: the generator never ran
                on_end(CLIENT_GONE, None, 0)

        headers = self._headers(call, opened)
        if isinstance(relay, RawRelay):
            headers += (header for header in opened.headers if header[0] == b"content-length")
        return Reply(opened.status, headers, chunks=chunks, close=close)

    def _headers(self, call: Call, opened: Opened) -> list[tuple[bytes, bytes]]:
        returned = self._returned_as_is if call.endpoint.request == "any" else self._returned
        return returned.keep(opened.headers) + trail_headers(call, self._clock.monotonic())

    def _estimate(self, call: Call, output_tokens: int) -> Usage | None:
        """The tokens of a call whose provider did not report them, where the endpoint has tokens at all."""
        if call.endpoint.tokens == "none":
            return None
        return estimate_usage(call.body, output_tokens if call.endpoint.tokens == "both" else 0)


def _tried(call: Call) -> str:
    return ", ".join(map(str, call.attempts)) or "nothing"
