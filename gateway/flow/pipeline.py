"""The life of a call, top to bottom. Read this first.

    admission -> attempt, admission -> attempt, … -> answer or give up -> relay -> settle

One explicit function instead of a stack of wrappers: everything shares one plan, one deadline and one attempt ledger, and
with a stream "returned" is not "finished". Invariant: `Accounts.settle` runs exactly once for every call that enters
`handle`, whichever way it leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.call import Call, Reply, Usage
from gateway.clock import Clock
from gateway.errors import GatewayError, InternalError, ShuttingDown
from gateway.flow.accounting import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts
from gateway.flow.admission import Admission
from gateway.flow.attempt import Attempts
from gateway.flow.opening import Opened, clocks_of
from gateway.flow.rawrelay import RawRelay, why_stopped
from gateway.flow.relay import SseRelay
from gateway.flow.running import COALESCED, Ended, Running
from gateway.flow.trail import trail_headers
from gateway.flow.watch import Watch
from gateway.policy.headers import passthrough_response_headers, response_headers
from gateway.policy.usage import estimate_tokens, estimate_usage
from gateway.ports import Meter

SLOW_CLIENT = "slow_client"
SLOW_CLIENT_S = 5.0
"""A provider that was kept waiting for so long is not to blame when its stream breaks or takes too long."""
NO_RETRY = (b"x-should-retry", b"false")


def _half() -> float:
    return 0.5


class Pipeline:
    """Serves calls. One per process; holds no state of any call."""

    __slots__ = ("_accounts", "_admission", "_attempts", "_clock", "_returned", "_returned_as_is", "_running")

    def __init__(
        self, clock: Clock, meter: Meter, watch: Watch, admission: Admission, draw: Callable[[], float] = _half
    ) -> None:
        """`draw` gives uniform numbers from [0, 1); without it no backoff is random."""
        self._clock = clock
        self._admission = admission
        self._accounts = Accounts(clock, meter, admission.settle, admission.budgets.spent)
        self._attempts = Attempts(clock, meter, admission, watch, draw)
        self._running = Running(clock)
        self._returned = response_headers()
        self._returned_as_is = passthrough_response_headers()

    async def handle(self, call: Call) -> Reply:
        """Serve one call. Raises GatewayError for what the client gets instead of an answer; cancel it to give up.

        When the reply has `chunks`, the account is settled when they end; in all other cases before this returns.
        """
        self._accounts.opened()
        twin = self._running.enter(call)
        ended: Ended = None
        try:
            if twin is not None:
                reply = await self._running.follow(call, twin)
                if reply is not None:
                    ended = reply
                    self._accounts.settle(call, reply.status, COALESCED)
                    return reply
            opened = await self._attempts.first_answer(call)
            if opened.relay is not None:
                return self._stream_reply(call, opened, opened.relay)
            ended = self._whole_reply(call, opened)
            return ended
        except GatewayError as error:
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
            ended = InternalError("The gateway failed on this request; its log has the details.")
            raise ended from defect
        finally:
            self._running.leave(call, ended)
            ended = None  # an error would lead back to itself by this frame

    def _whole_reply(self, call: Call, opened: Opened) -> Reply:
        body = opened.body
        if opened.error_class is None:
            usage = opened.usage or self._estimate(call, estimate_tokens(body))
            self._accounts.settle(call, opened.status, "ok", target=opened.target, usage=usage)
        else:
            self._accounts.settle(call, opened.status, opened.error_class, target=opened.target)
        headers = self._headers(call, opened)
        if opened.error_class is not None and call.endpoint.request != "any":  # what could be tried was: no multiplying
            headers = [header for header in headers if header[0] != b"x-should-retry"]
            headers.append(NO_RETRY)
        return Reply(opened.status, headers, body)

    def _stream_reply(self, call: Call, opened: Opened, relay: SseRelay | RawRelay) -> Reply:
        def on_end(outcome: str, usage: Usage | None, output_tokens: int) -> None:
            usage = usage or self._estimate(call, output_tokens)
            is_clients_doing = isinstance(relay, SseRelay) and relay.paused_s > SLOW_CLIENT_S and outcome != "ok"
            self._admission.ended(call, SLOW_CLIENT if is_clients_doing else outcome)
            self._accounts.settle(call, opened.status, outcome, target=opened.target, usage=usage)

        chunks = relay.chunks(on_end, clocks_of(opened.target, call), self._clock.monotonic)

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
