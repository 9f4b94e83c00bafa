"""Repairs: another model is asked to correct a text, as one more part of the call that it is for.

The question is a call of its own to the other model's targets, with their limits, breakers and retries; it shares the ledger,
the deadline, the place in line and the money of the call that it is for. Invariant: however it ends, what it took from a
target is settled, and its attempts are in the call's ledger, priced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.core.admission.admission.admission import Admission
from gateway.core.answers import FirstAnswer
from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError, ShuttingDown
from gateway.core.health.target_health.target_health.target_health import CLIENT_GONE
from gateway.core.ledger.settle import cost_usd, estimated_usage
from gateway.core.openai.usage.usage import estimate_tokens
from gateway.core.retry.retry import Step, Try
from gateway.core.snapshot.route_plan import upstream_model
from gateway.core.snapshot.snapshot.snapshot import Model, Target
from gateway.core.types.words import Attempt, Endpoint, Usage
from gateway.features.output.rules.money import fits, spent_usd
from gateway.features.output.rules.repair import repair_request, repaired_text
from gateway.features.output.rules.rules import OutputRule, Violation
from gateway.features.output.schema.schema import OutputSchema

CHAT = Endpoint("chat", "/chat/completions", usage_option=True, tokens="both")
_OF_THE_CALL = frozenset((b"idempotency-key", b"content-encoding"))
"""Headers that are about the client's own request."""

FirstAnswerOf = Callable[[Call, Step], Coroutine[Any, Any, FirstAnswer]]


@dataclass(slots=True)
class Repaired:
    """A corrected text, and the attempt that gave it."""

    text: str
    attempt: Attempt
    usage: Usage
    target: Target
    """With the name by which its provider knows the model."""


class Repairs:
    """Asks for repairs. One per process; holds no state of any call."""

    __slots__ = ("_admission", "_clock", "_first_answer")

    def __init__(self, clock: Clock, admission: Admission, first_answer: FirstAnswerOf) -> None:
        """`first_answer` makes the attempts of a call, beginning with a step."""
        self._clock = clock
        self._admission = admission
        self._first_answer = first_answer

    async def ask(
        self, call: Call, rule: OutputRule, schema: OutputSchema, violation: Violation, text: str, first: int
    ) -> Repaired | None:
        """Returns a corrected text, unchecked; None: there is none, or the call may not pay for it.

        `first` is the number of attempts that the call had made when its answer was first found invalid.
        """
        model = None if rule.repair_with is None else call.policy.find_model(rule.repair_with)
        if model is None or rule.repair_with is None:
            return None
        if call.credential is not None:
            model = model.for_callers or model
        repair = _call_for(
            call, model, rule.repair_with, repair_request(rule.repair_with, schema.source, violation, text)
        )
        admission = self._admission
        try:
            targets = self._targets(call, repair, rule, first)
            opened = await self._first_answer(repair, Try(targets)) if targets else None
            return None if opened is None else await self._taken(repair, opened)
        except ShuttingDown:
            raise
        except GatewayError:
            return None
        except asyncio.CancelledError:
            admission.costs.price_unfinished(repair)
            raise
        finally:
            admission.outcomes.cancelled(repair, CLIENT_GONE)  # of what has ended there is nothing left to give back
            call.queue_s += repair.queue_s
            call.backoff_s += repair.backoff_s
            call.denied = call.denied or repair.denied
            call.reserved = call.reserved or repair.reserved

    def _targets(self, call: Call, repair: Call, rule: OutputRule, first: int) -> Sequence[Target]:
        """Returns where the repair may go; nowhere, if the call has no time, attempts or money for it."""
        admission = self._admission
        made = sum([not attempt.is_refused for attempt in call.attempts])
        if self._clock.monotonic() >= call.deadline or made >= admission.retries.of(call).attempts():
            return ()
        plan = admission.planner.plan_now(repair)
        targets = (*plan.own, *plan.others)
        if not targets:
            return ()
        usd = admission.costs.usd(repair, targets[0])
        most, spent = call.model.retries.max_usd_per_call, spent_usd(call.attempts, 0)
        if usd is not None and most is not None and spent + usd > most:
            return ()
        if not fits(rule, spent_usd(call.attempts, first), usd):
            return ()
        return targets if admission.retries.of(repair).denies_money() is None else ()

    async def _taken(self, repair: Call, opened: FirstAnswer) -> Repaired | None:
        """Returns what an answer says, with the account of its attempt closed."""
        attempt, target = repair.attempts[-1], opened.target
        if opened.relay is not None:  # a stream, or an endless text: nobody has asked for that
            await opened.relay.aclose()
            attempt.cost_usd = self._admission.costs.usd(repair, target)
            self._admission.outcomes.used(repair, None)
            return None
        if opened.diagnosis is not None:
            return None
        usage = opened.usage
        if usage is None or not usage.output:
            usage = usage or estimated_usage(repair, estimate_tokens(opened.body)) or Usage(0, 0, estimated=True)
        attempt.cost_usd = cost_usd(repair, target, usage)
        self._admission.outcomes.used(repair, usage)
        text = repaired_text(opened.body)
        known = replace(target, model=upstream_model(repair, target))
        return None if text is None else Repaired(text, attempt, usage, known)


def _call_for(call: Call, model: Model, name: str, body: bytes) -> Call:
    """Returns the call that asks for the repair: on the ledger, the deadline and the money of the one that it is for."""
    return replace(
        call,
        endpoint=call.endpoint if call.endpoint.name == CHAT.name else CHAT,
        path=CHAT.path,
        query=b"",
        method="POST",
        model=model,
        model_name=name,
        body=body,
        stream=False,
        stream_options=None,
        model_span=None,
        headers=[one for one in call.headers if one[0] not in _OF_THE_CALL and not one[0].startswith(b"anthropic-")],
        max_tokens=None,
        thinks=False,
        parsed=None,
        large=None,
        comment=None,
        output=None,
        estimate=-1,
        grant=None,
        key_cost=None,
        queue_s=0.0,
        backoff_s=0.0,
        other_attempt=None,
        retry=None,
        denied=None,
        replay=None,
        objects=None,
        lowered=None,
        unsayable=None,
        output_check=None,
    )
