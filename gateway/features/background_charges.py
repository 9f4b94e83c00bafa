"""Responses on which the provider goes on working when it has answered (`"background": true`), under a key's budget.

    unfinished or cut (all that was reserved is charged) -> … -> shown, by a later GET: corrected, once, to what was used

What such a call uses is told to whoever asks for its response later, and asking is free. Each is charged with all that was
reserved for it, its input and the most that its answer may have, until a response that passes here says what it has used. Kept
in this process and bounded: where that answer passes another replica, or none, the charge stays. It must not know who may
ask. Source: OpenAI's guide to background mode (`status`, `usage`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from gateway.core.admission.admission import Admission
from gateway.core.call import Call, CallFeature, CallRoute, Chunks, Open, Opened, Stream, Whole, upstream_model
from gateway.core.ledger import cost_usd, estimated_usage, known_usd, usage_usd
from gateway.core.openai.sse import answer_object, event_json, json_object, split_events
from gateway.core.openai.usage import ABSURD, LONGEST_ANSWER, add_beside, most_output, plausible, read_usage
from gateway.core.relay import RawRelay, SseRelay
from gateway.core.retry import Attempt
from gateway.core.snapshot import Rates
from gateway.core.types import Usage

MOST = 10_000
"""Responses whose usage is waited for; of more the oldest are charged as they were reserved."""
MOST_BYTES = 4_194_304
"""An answer that may tell what was used is not read when it is longer."""
MOST_DECODINGS = 3
"""How often the escapes of a path are read: a provider, and what stands before it, may each do so once."""
_UNFINISHED = ("queued", "in_progress")


@dataclass(frozen=True, slots=True)
class Charge:
    """What a key was charged for a response, on a UTC day, before anybody knew what it would use."""

    key: str
    day: int
    usd: float
    rates: Rates
    most_output: int
    """The most tokens of output that are believed of it."""


class Deferred(CallFeature):
    """The responses whose usage is not known yet. One per process."""

    __slots__ = ("_admission", "_charges")

    name = "background_charges"
    options: frozenset[bytes] = frozenset()

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._charges: dict[str, Charge] = {}  # by the response's id, the oldest first

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for calls that make responses, or may ask for one."""
        return self if route.endpoint.request == "any" or route.endpoint.may_end_later else None

    async def open(self, call: Call, next: Open) -> Opened:
        """Returns the answer, with the usage of a response that ends later as it is estimated."""
        opened = await next(call)
        if not isinstance(opened, Whole):
            return opened
        usage = opened.usage
        if usage is None or not usage.input or not 0 < usage.output <= LONGEST_ANSWER:
            # Not both numbers of tokens are reported: it may be of a response that ends later.
            if call.request.endpoint.request == "any" and self.awaits(call):
                self.shown(call, opened.body)
            if call.request.endpoint.may_end_later:
                opened.usage = self.unfinished(call, opened.attempt, opened.body) or usage
        return opened

    def relay(self, call: Call, opened: Stream, chunks: Chunks) -> Chunks:
        """Returns the chunks of a stream, read where they may be of a response that is waited for."""
        relay = opened.relay

        def ending(_outcome: str, usage: Usage | None, output_tokens: int) -> None:
            if usage is None:
                self.cut(call, opened.attempt, relay, output_tokens)

        opened.endings += (ending,)
        is_waited_for = isinstance(relay, RawRelay) and call.request.endpoint.request == "any" and self.awaits(call)
        return self.watched(call, chunks) if is_waited_for else chunks

    def unfinished(self, call: Call, attempt: Attempt, body: bytes) -> Usage | None:
        """Returns what a response is taken to use on which the provider goes on working; None: it is complete, or none.

        Of the budget of the call's key all that the call has reserved is charged when it is settled.
        """
        answer = answer_object(body)
        if answer is None or answer.get("status") not in _UNFINISHED:
            return None
        usage = self._admission.costs.usage(call, attempt.target)
        self._await(call, attempt, answer.get("id"), usage)
        return usage

    def cut(self, call: Call, attempt: Attempt, relay: object, output_tokens: int) -> None:
        """The stream of a response has ended before it told its usage: one that goes on without its client is charged.

        `output_tokens` is the estimate of what has come by its `relay`.
        """
        if call.reserved is not None and call.request.endpoint.may_end_later and _runs_on(call):
            id = relay.response_id if isinstance(relay, SseRelay) else None
            self._await(call, attempt, id, estimated_usage(call, attempt, output_tokens))

    def _await(self, call: Call, attempt: Attempt, id: object, usage: Usage | None) -> None:
        """Has all that the call has reserved charged, until the response reports what it has used."""
        reserved = call.reserved
        if reserved is None:
            return
        reserved.is_charged = True
        rates = attempt.target.find_rates(upstream_model(call, attempt.target))
        if rates is not None and isinstance(id, str):
            retries_usd = known_usd([one for one in call.attempts if one is not attempt]) or 0.0
            charged_usd = max(cost_usd(call, attempt.target, usage) or 0.0, reserved.usd - retries_usd)
            if len(self._charges) >= MOST:
                del self._charges[next(iter(self._charges))]
            most = most_output(call.request.max_tokens, 1)
            self._charges[id] = Charge(call.route.key.name, self._admission.budgets.today(), charged_usd, rates, most)

    def awaits(self, call: Call) -> bool:
        """Returns whether the call's answer may tell the usage of a response that is waited for."""
        return self._awaited(call) is not None

    def shown(self, call: Call, body: bytes) -> None:
        """The answer to a call about a response has passed: what it says was used is what the response has cost."""
        id = self._awaited(call)
        response = _response_in(body) if id is not None else None
        if id is None or response is None or response.get("id") != id or response.get("status") in _UNFINISHED:
            return
        reported = response.get("usage")
        usage = read_usage(reported) if isinstance(reported, dict) else None
        if usage is not None:
            usage = plausible(usage, self._charges[id].most_output)
        if usage is not None and usage.doubt != ABSURD:  # else it stays charged with all that was reserved
            add_beside(usage, response)
            charge = self._charges.pop(id)
            real_usd = usage_usd(charge.rates, usage) or 0.0
            self._admission.budgets.correct(charge.key, charge.day, real_usd - charge.usd)

    async def watched(self, call: Call, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The chunks of an answer to such a call, read as they pass."""
        parts: list[bytes] = []
        length = 0
        try:
            async for chunk in chunks:
                length += len(chunk)
                if length <= MOST_BYTES:
                    parts.append(chunk)
                else:
                    parts.clear()
                yield chunk
            self.shown(call, b"".join(parts))
        finally:
            await chunks.aclose()

    def _awaited(self, call: Call) -> str | None:
        """The id of the response that the call asks for, or calls off, if its usage is waited for."""
        if not self._charges or call.request.method not in ("GET", "POST"):
            return None
        id = response_in_path(call.request.path)
        return id if id in self._charges else None


def response_in_path(path: str) -> str | None:
    """Returns the id of the response that a path below the base URL shows or cancels, as it was sent; None: it does neither."""
    for _ in range(MOST_DECODINGS):
        path = unquote(path)
    steps = [step for step in path.split("/") if step]
    is_of_one = len(steps) > 1 and steps[0].lower() == "responses"
    return steps[1] if is_of_one and "/".join(steps[2:]).lower() in ("", "cancel") else None


def _runs_on(call: Call) -> bool:
    """Returns whether the call asked for that. A body that nobody parses is believed to, where it has the word."""
    if call.request.large is not None:
        return b'"background"' in call.request.body
    parsed = json_object(call.request.body)
    return parsed is not None and parsed.get("background") not in (None, False)


def _response_in(body: bytes) -> dict[str, Any] | None:
    """The response that an answer shows: the answer itself, or what the last event of a stream that has one says."""
    if body.lstrip().startswith(b"{"):
        return answer_object(body)
    for event in reversed([*split_events(body)]):
        parsed = event_json(event)
        response = parsed.get("response") if parsed is not None else None
        if isinstance(response, dict):
            return response
    return None
