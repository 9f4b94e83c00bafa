"""The life of a call, top to bottom. Read this first.

    handle -> hooks.serve (features, the outermost first) -> answer -> hooks.open (features) -> attempts
           -> a whole reply, its account closed | a stream, whose relay closes it

Everything shares one plan, one deadline and one attempt ledger, and with a stream "returned" is not "finished". Products stand
around a call as the hooks of its route (`CallFeature`); a route for which no product is configured has none. Invariant: the
account of every call that enters `handle` is closed exactly once, whichever way the call leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.core.admission.admission import Admission
from gateway.core.answers import AttemptDeadlines, clocks_of
from gateway.core.attempts import Attempts
from gateway.core.call import (
    LED,
    Call,
    CallProduct,
    CallRoute,
    ErrorAnswer,
    Hooks,
    Opened,
    Reply,
    Stream,
    Whole,
    compile_hooks,
    features_of,
)
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.ledger import (
    CLIENT_GONE,
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
from gateway.core.openai.usage import LONGEST_ANSWER
from gateway.core.ports import Meter
from gateway.core.relay import RawRelay, SseRelay
from gateway.core.types import PASSING, Usage

SLOW_CLIENT = "slow_client"
SLOW_CLIENT_S = 5.0
"""A provider that was kept waiting for so long is not to blame when its stream breaks or takes too long."""


def _half() -> float:
    return 0.5


class Pipeline:
    """Serves calls. One per process; holds no state of any call. Products use its parts, and are given to `install`."""

    __slots__ = (
        "_returned",
        "_returned_as_is",
        "_returned_by_many",
        "accounts",
        "admission",
        "attempts",
        "clock",
        "draw",
        "meter",
        "options",
        "products",
        "watch",
    )

    def __init__(
        self,
        clock: Clock,
        meter: Meter,
        watch: AttemptDeadlines,
        admission: Admission,
        draw: Callable[[], float] = _half,
    ) -> None:
        """`draw` gives uniform numbers from [0, 1); without it no backoff is random."""
        self.clock = clock
        self.meter = meter
        self.watch = watch
        self.admission = admission
        self.draw = draw
        outcomes, budgets, costs = admission.outcomes, admission.budgets, admission.costs
        self.accounts = Accounts(clock, meter, outcomes.settle, budgets.spent, costs.price_unfinished)
        self.attempts = Attempts(clock, meter, admission, watch, draw)
        self.products: Sequence[CallProduct] = ()
        """The products that take part in calls, the outermost first."""
        self.options: frozenset[bytes] = frozenset()
        """The request headers by which a call asks for one of them."""
        self._returned = response_headers()
        self._returned_by_many = response_headers(limits=False)
        self._returned_as_is = passthrough_response_headers()

    def install(self, products: Sequence[CallProduct]) -> None:
        """Has these products take part in all calls from now on, the outermost first."""
        self.products = products
        self.options = frozenset().union(*(product.options for product in products))

    def hooks_of(self, route: CallRoute, requested: frozenset[bytes]) -> Hooks:
        """Returns the hooks for calls of this route that bring the headers `requested`."""
        features, absent_headers = features_of(self.products, route, requested)
        return compile_hooks(features, self.answer, self.attempts.open, absent_headers)

    def compiled(self, route: CallRoute, requested: frozenset[bytes]) -> CallRoute:
        """Returns the route with the hooks of calls that bring the headers `requested`."""
        return replace(route, hooks=self.hooks_of(route, requested))

    async def handle(self, call: Call) -> Reply:
        """Serves a call. Raises the GatewayError that the client gets instead of an answer; cancelling it stops the call.

        When the reply has `chunks`, the account is closed when they end; in all other cases before this returns.
        """
        self.accounts.opened()
        hooks = call.route.hooks
        try:
            if hooks is None:  # made inside the process: its maker may ask for whatever a header could
                hooks = self.hooks_of(call.route, self.options)
                call.change_route(replace(call.route, hooks=hooks))
            return await hooks.serve(call)
        except asyncio.CancelledError as stopped:
            if LED.find(call) is None:  # else a feature's own task goes on with it, and closes the account
                self.accounts.settle_stopped(call, stopped)
            raise
        except GatewayError as error:
            self.accounts.settle_failed(call, error)
            raise
        except Exception as defect:
            raise self.accounts.settle_failed(call, defect) from defect

    async def answer(self, call: Call) -> Reply:
        """Returns the provider's answer: the innermost `serve`. Raises GatewayError where there is none."""
        hooks = call.route.hooks
        assert hooks is not None  # noqa: S101  # `handle` has seen to that
        opened = await hooks.open(call)
        if isinstance(opened, Stream):
            try:
                return self._stream_reply(call, opened)
            except BaseException:
                # A feature has failed at it: no reply is left whose `close` would hang up on the provider.
                await opened.relay.aclose()
                raise
        return self._whole_reply(call, opened)

    def _whole_reply(self, call: Call, opened: Whole | ErrorAnswer) -> Reply:
        body = opened.body
        error_class = None
        if isinstance(opened, Whole):
            usage = opened.usage
            if usage is None or not usage.input or not 0 < usage.output <= LONGEST_ANSWER:
                usage = whole_usage(call, opened.attempt, usage, body)
            self.accounts.settle(call, opened.status, "ok", attempt=opened.attempt, usage=usage)
        else:
            error_class = opened.error_class
            self.accounts.settle(call, opened.status, error_class, attempt=opened.attempt)
        shared = self._shared(call, opened)
        # On pass-through a client reads the provider's own advice, as it came.
        if error_class is not None and call.request.endpoint.request != "any":
            is_passing = (error_class in PASSING or should_retry_of(opened.headers)) and call.denied is None
            back_in_s = self.admission.back_in_s(call) if is_passing else None
            shared = with_retry_advice(shared, back_in_s)
            body = call.request.endpoint.shape.with_retry_advice(body, shared)
        # The headers tell the cost, which the attempt has only since the account was settled.
        headers = shared + answer_headers(call, self.clock.monotonic(), opened.attempt)
        return Reply(opened.status, headers, body, shared=shared)

    def _stream_reply(self, call: Call, opened: Stream) -> Reply:
        relay, attempt = opened.relay, opened.attempt

        def on_end(outcome: str, usage: Usage | None, output_tokens: int) -> None:
            for ending in opened.endings:
                ending(outcome, usage, output_tokens)
            if call.request.endpoint.media is not None:
                usage = media_usage(call, attempt.target, usage, output_tokens if outcome == "ok" else None)
            else:
                usage = streamed_usage(call, attempt, outcome, usage, output_tokens)
            is_clients_doing = False
            if isinstance(relay, SseRelay):
                is_clients_doing = relay.paused_s > SLOW_CLIENT_S and outcome != "ok"
                attempt.usage_event = relay.usage_event
            self.admission.outcomes.ended(call, attempt, SLOW_CLIENT if is_clients_doing else outcome)
            self.accounts.settle(call, opened.status, outcome, attempt=attempt, usage=usage)

        chunks = unwatched = relay.chunks(on_end, clocks_of(attempt.target, call), self.clock.monotonic)
        pass_on = relay.pass_on if isinstance(relay, SseRelay) else None
        for relay_hook in () if call.route.hooks is None else call.route.hooks.relay:
            watched = relay_hook(call, opened, chunks)
            if watched is not chunks:  # each block is looked into on its way
                chunks, pass_on = watched, None

        async def close() -> None:
            await chunks.aclose()
            # A feature that is closed, or has failed, leaves what it reads where that stands.
            if chunks is not unwatched:
                await unwatched.aclose()
            # A generator that never ran has not closed its relay.
            await relay.aclose()
            if not call.settled:  # closed before the first chunk was asked for: the generator never ran
                on_end(CLIENT_GONE, *relay.account())

        shared = self._shared(call, opened)
        if isinstance(relay, RawRelay):
            # A raw body passes unchanged, so its announced length holds.
            shared += (header for header in opened.headers if header[0] == b"content-length")
        headers = shared + answer_headers(call, self.clock.monotonic(), attempt)
        return Reply(opened.status, headers, chunks=chunks, close=close, pass_on=pass_on, shared=shared)

    def _shared(self, call: Call, opened: Opened) -> list[tuple[bytes, bytes]]:
        """Returns the provider's headers that the client gets; of a model with several targets their limits together."""
        if call.request.endpoint.request == "any":
            shared = self._returned_as_is.keep(opened.headers)
        elif len(call.route.model.plan) == 1:
            shared = self._returned.keep(opened.headers)
        else:
            shared = self._returned_by_many.keep(opened.headers)
            shared += self.admission.limits_together(call, opened.headers)
        gaps = opened.attempt.gaps
        if gaps:
            shared.append(lossy_header(gaps))
        return shared
