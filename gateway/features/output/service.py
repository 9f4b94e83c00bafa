"""The check of a call's answer, and what follows from it, before the client has anything of it.

    open -> (an answer, whole or held back) -> verdict -> retry -> … -> repair -> fail | pass
    open -> (a stream that is relayed) -> watched -> ended: it is only counted

It stands between the caches, which hear of the final answer only, and the attempts, of which each is made and accounted for as
any other. Invariant: an answer that is not given is settled before the next attempt begins, so that at the end of a call what
it used and paid is the sum of what its attempts did.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from gateway.core.admission.admission import Admission
from gateway.core.admission.gates import CALLERS_DEADLINE
from gateway.core.answers import AttemptDeadlines, wants_usage
from gateway.core.attempts import Attempts
from gateway.core.call import (
    INVALID_ANSWER,
    VARIANT,
    Call,
    CallFeature,
    CallRecord,
    CallRoute,
    Chunks,
    ErrorAnswer,
    Open,
    Opened,
    Reply,
    Serve,
    Slot,
    Stream,
    Whole,
)
from gateway.core.clock import Clock
from gateway.core.errors import CallerFault, DeadlineExceeded, GatewayError, InvalidRequest, ShuttingDown
from gateway.core.ledger import cost_usd, whole_usage
from gateway.core.metrics import Counts, MetricTable
from gateway.core.openai.sse import json_object
from gateway.core.ports import Meter
from gateway.core.relay import OverlongStream, SseRelay
from gateway.core.retry import Attempt, TryLater
from gateway.core.snapshot import Target
from gateway.core.types import ErrorClass, Phase, UpstreamFailed, Usage
from gateway.dialects.conversion import as_stream, as_whole
from gateway.dialects.last_word import is_last_word
from gateway.drivers.json_schema import JsonSchema, SchemaUnusable, compile_schema
from gateway.features.output.judging import (
    MOST_BODY,
    HeldStream,
    Judge,
    OutputVerdict,
    Repairs,
    Schemas,
    hold,
    spent_usd,
)
from gateway.features.output.rules import (
    CHECKED,
    OUTPUT,
    OUTPUT_INVALID,
    OutputResult,
    OutputRule,
    OutputText,
    StreamedTexts,
    Violation,
    added_usage,
    allows_retry,
    texts_of,
    with_texts,
)

LONGEST_CHECK_S = 10.0
"""Seconds of waiting for a turn and of the check itself, together."""


@dataclass(slots=True)
class OutputCheck:
    """How far the check of one call's answer has come."""

    result: OutputResult | None = None
    """The result of the check; None: not known, or not yet."""
    violation: Violation | None = None
    """The last one, also where the answer was mended after it."""
    schema: JsonSchema | None = None
    """The schema that the answer has to fit; None: it is not checked."""
    texts: StreamedTexts | None = None
    """Those of a stream that is relayed, as they pass."""
    retries: int = 0
    """How often the same request was sent again."""


CHECK: Final[Slot[OutputCheck]] = Slot("output check")
"""The check of the call's answer; none: there is nothing to check."""
RULE: Final[Slot[OutputRule]] = Slot("output rule")
"""The rule that the call's maker has given it in place of its model's."""


def set_rule(call: Call, rule: OutputRule) -> None:
    """Gives a call a rule of its own, in place of its model's: what was good enough for another rule is another answer."""
    RULE.put(call, rule)
    VARIANT.put(call, rule.digest)


MOST_RULES = 64
"""The compiled rules that are remembered."""


class DeclaredRules:
    """The rules that makers of calls have as plain data, each compiled when it is first needed."""

    __slots__ = ("_rules",)

    def __init__(self) -> None:
        self._rules: dict[bytes, OutputRule] = {}

    def set_for(self, call: Call, declared: Mapping[str, Any] | None, *, is_held: bool) -> None:
        """Gives a call the rule that is declared for its answer, `schema` and `on_invalid`; None: it has that of its model.

        `is_held`: its stream is held back until it has been checked. Raises InvalidRequest where the schema is of no use here.
        """
        if call.request.endpoint.name not in CHECKED:
            return
        rule = None if declared is None else self._compiled(declared)
        if is_held:
            held = OUTPUT.of(call.route.model) if rule is None else rule
            rule = replace(held, stream="buffer") if held is not None and held.stream == "relay" else rule
        if rule is not None:
            set_rule(call, rule)

    def _compiled(self, declared: Mapping[str, Any]) -> OutputRule:
        source = orjson.dumps(declared)
        rule = self._rules.get(source)
        if rule is None:
            if len(self._rules) >= MOST_RULES:
                self._rules.clear()
            rule = self._rules[source] = _rule_of(declared)
        return rule


def _rule_of(declared: Mapping[str, Any]) -> OutputRule:
    invalid = declared.get("on_invalid") or {}
    try:
        schema = compile_schema(orjson.dumps(declared["schema"]))
    except SchemaUnusable as error:
        raise InvalidRequest(f"The schema of the step cannot be used here: {error}", param="output") from None
    return OutputRule(
        schema, invalid.get("retry", 0), invalid.get("repair_with"), invalid.get("then", "fail"), stream="relay"
    )


@dataclass(slots=True)
class _Checked:
    """An answer that is here, and what the check says of it."""

    opened: Whole
    is_stream: bool
    attempt: Attempt
    verdict: OutputVerdict


class OutputInvalid(CallerFault):
    """The model's answer breaks the schema that was asked for, and neither a retry nor a repair has helped.

    What the rule allows has been tried: a job or a line that meets it has failed for good.
    """

    status = 502
    type = "server_error"
    code = "output_invalid"


class OutputMetrics(MetricTable):
    """The metric of checks."""

    after = "lossy_fields_total"

    def __init__(self) -> None:
        self.output_checks = Counts(
            "output_checks_total", "Answers that were checked against a schema.", "model", "result"
        )


class Outputs(CallFeature):
    """Checks answers. One per process; holds no state of any call but what is in it."""

    __slots__ = ("_admission", "_attempts", "_clock", "_judge", "_meter", "_repairs", "_schemas", "_watch", "metrics")

    name = "output"
    options: frozenset[bytes] = frozenset()

    def __init__(
        self,
        clock: Clock,
        meter: Meter,
        admission: Admission,
        attempts: Attempts,
        watch: AttemptDeadlines,
    ) -> None:
        self.metrics: OutputMetrics = OutputMetrics()
        self._clock = clock
        self._meter = meter
        self._admission = admission
        self._attempts = attempts
        self._watch = watch
        self._judge = Judge()
        self._schemas = Schemas()
        self._repairs = Repairs(clock, admission, attempts.open)

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for calls whose model has a rule, and for those whose makers may have set one."""
        is_ruled = OUTPUT.of(route.model) is not None or route.is_internal
        return self if is_ruled and route.endpoint.name in CHECKED else None

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the reply, with the result of the check of a whole answer in `x-gateway-output`."""
        reply = await next(call)
        check = CHECK.find(call)
        if check is not None and reply.chunks is None:
            add_result_header(reply, check)
        return reply

    async def open(self, call: Call, next: Open) -> Opened:
        """Returns the provider's answer, if it keeps the call's rule, or the rule lets it pass. Raises OutputInvalid."""
        rule = RULE.find(call) or OUTPUT.of(call.route.model)
        schema = None if rule is None else self._schemas.of(call, rule)
        if rule is None or schema is None:
            return await next(call)
        check = CHECK.put(call, OutputCheck())
        if isinstance(schema, OutputResult):
            opened = await next(call)
            if not isinstance(opened, ErrorAnswer):
                self._conclude(call, check, schema)
            return opened
        check.schema = schema
        return await self._first_good(call, rule, schema, check)

    def relay(self, call: Call, opened: Stream, chunks: Chunks) -> Chunks:
        """Returns the chunks of a stream, which is judged when it has ended."""
        check = CHECK.find(call)
        if check is None:
            return chunks
        opened.endings += (lambda outcome, _usage, _tokens: self.ended(call, check, outcome),)
        return self.watched(call, check, chunks) if check.result is None else chunks

    def closed(self, record: CallRecord) -> Mapping[str, object] | None:
        """Returns the result of the check, and the rule that one of the answers broke."""
        check = CHECK.find(record.call)
        if check is None or check.result is None:
            return None
        return {"output": str(check.result)} | ({"output_rule": str(check.violation)} if check.violation else {})

    async def _first_good(self, call: Call, rule: OutputRule, schema: JsonSchema, check: OutputCheck) -> Opened:
        opened: Opened | None = await self._attempts.open(call)
        bad: _Checked | None = None
        first = 0
        while opened is not None and (bad is None or not isinstance(opened, ErrorAnswer)):
            if isinstance(opened, ErrorAnswer) or not _is_read(call, rule, opened):
                return opened  # an error, or what is given as it comes
            try:
                read = await self._read(call, opened)
            except UpstreamFailed as failure:
                opened = await self._mended(call, opened.attempt, failure, has_another=bad is not None)
                continue
            except DeadlineExceeded:
                if bad is None:
                    raise
                break
            if isinstance(read, OverlongStream):
                self._conclude(call, check, OutputResult.SKIPPED)
                return Stream(opened.attempt, opened.status, opened.headers, read)
            verdict = await self._judge.verdict(schema, read.texts, _check_s(call, self._clock), call.request.tenant)
            if verdict.result is not OutputResult.INVALID:
                self._note(call, check, verdict)
                return read.opened
            bad = _Checked(read.opened, isinstance(opened, Stream), read.opened.attempt, verdict)
            self._discard(call, check, bad)
            first = first or len(call.attempts)
            opened = await self._retried(call, bad.attempt, rule, check, first)
        assert bad is not None  # noqa: S101  # that is how the loop ends
        repaired = await self._repaired(call, rule, schema, bad, first)
        if repaired is not None:
            self._conclude(call, check, OutputResult.REPAIRED)
            return repaired
        self._conclude(call, check, OutputResult.INVALID)
        if rule.at_last == "fail":
            raise OutputInvalid(
                f"The model's answer breaks the schema that was asked for: {check.violation}. Ask again, loosen the schema, or "
                "have `output.on_invalid` of the model changed: it may retry, repair, or pass such answers."
            )
        # The answer that was discarded is given after all, for there is no better one: its attempt is the deciding one again.
        at = next(number for number, one in enumerate(call.attempts) if one is bad.attempt)
        call.attempts.append(call.attempts.pop(at))
        bad.attempt.discarded = None
        return bad.opened

    async def _read(self, call: Call, opened: Whole | Stream) -> HeldStream | OverlongStream:
        """Returns an answer that is here, a stream among them. Raises UpstreamFailed, or DeadlineExceeded for a stream."""
        if isinstance(opened, Whole):
            return HeldStream(opened, _texts(call, opened.body))
        assert isinstance(opened.relay, SseRelay)  # noqa: S101  # no other stream is held back (`_is_read`)
        try:
            held = await hold(call, opened, opened.relay, self._clock, self._watch)
        except DeadlineExceeded:
            self._admission.costs.price_unfinished(call, self._clock.monotonic())
            attempt = opened.attempt
            self._admission.outcomes.cancelled(attempt, CALLERS_DEADLINE)
            attempt.ended_at, attempt.error_class = self._clock.monotonic(), ErrorClass.TIMEOUT
            raise
        if isinstance(held, HeldStream):
            self._admission.outcomes.ended(call, opened.attempt, "ok")
        return held

    async def _mended(
        self, call: Call, attempt: Attempt, failure: UpstreamFailed, *, has_another: bool
    ) -> Opened | None:
        """Returns the next answer after a stream that broke off while it was held back; None: there is only the one before."""
        try:
            return await self._attempts.broken_off(call, attempt, failure)
        except GatewayError as error:
            if not has_another or isinstance(error, ShuttingDown):
                raise
            return None

    def _discard(self, call: Call, check: OutputCheck, bad: _Checked) -> None:
        """Closes the account of an attempt whose answer breaks the rule; its target is not to blame."""
        opened, attempt = bad.opened, bad.attempt
        check.violation = bad.verdict.bad[0].violation
        usage = opened.usage = whole_usage(call, attempt, opened.usage, opened.body) or Usage(0, 0, estimated=True)
        attempt.cost_usd, attempt.is_cost_reported = cost_usd(call, attempt.target, usage), not usage.estimated
        _mark(attempt, str(check.violation))
        attempt.discarded = usage
        self._admission.outcomes.used(call, attempt, usage)

    async def _retried(
        self, call: Call, bad: Attempt, rule: OutputRule, check: OutputCheck, first: int
    ) -> Opened | None:
        """Returns the answer of the same request, sent again; None: it may not be, or has none."""
        targets = self._targets(call, bad, rule, check, first)
        if not targets:
            return None
        check.retries += 1
        try:
            return await self._attempts.open(call, TryLater(self._clock.monotonic(), targets), failed=bad)
        except ShuttingDown:
            raise
        except GatewayError:
            return None

    def _targets(self, call: Call, bad: Attempt, rule: OutputRule, check: OutputCheck, first: int) -> list[Target]:
        """Returns where the request may be sent again: nowhere, if time, attempts or money are spent."""
        admission = self._admission
        if check.retries >= rule.retry or self._clock.monotonic() >= call.request.deadline:
            return []
        budgets = admission.retries.of(call)
        if sum([not attempt.is_refused for attempt in call.attempts]) >= budgets.attempts():
            return []
        plan = admission.planner.plan_now(call, bad)
        out = {attempt.target.name for attempt in call.attempts if attempt.never_again}
        able = [one for one in (*plan.own, *plan.others) if one.name not in out]
        targets = [one for one in able if budgets.denies(one, bad) is None]
        denied = "budget" if able and not targets else budgets.denies_money()
        if denied is not None:
            call.own_setbacks().deny(denied)
            self._meter.retry_denied(denied)
            return []
        usd = admission.costs.usd(call, targets[0]) if targets else None
        return targets if allows_retry(rule, check.retries, spent_usd(call.attempts, first), usd) else []

    async def _repaired(
        self, call: Call, rule: OutputRule, schema: JsonSchema, bad: _Checked, first: int
    ) -> Opened | None:
        """Returns the answer with corrected texts in place of those that break the rule; None: there are none."""
        if rule.repair_with is None:
            return None
        opened = bad.opened
        if len(opened.body) > MOST_BODY:
            return None  # to write it again would hold everybody up
        whole = (
            as_whole(call.request.endpoint.name, opened.body, bad.attempt.usage_event) if bad.is_stream else opened.body
        )
        answer = None if whole is None else json_object(whole)
        if answer is None:
            return None
        texts: dict[int, str] = {}
        last = None
        for one, violation in bad.verdict.bad:
            repair = await self._repairs.repair(call, bad.attempt, rule, schema, violation, one.text, first)
            if last is not None:
                last.attempt.discarded = last.usage
            last = repair
            if repair is None:
                return None
            verdict = await self._judge.verdict(
                schema, [OutputText(0, repair.text)], _check_s(call, self._clock), call.request.tenant
            )
            if verdict.result is not OutputResult.VALID:
                _mark(repair.attempt, str(verdict.bad[0].violation) if verdict.bad else "a text that cannot be checked")
                repair.attempt.discarded = repair.usage
                return None
            texts[one.place] = repair.text
        assert last is not None  # noqa: S101  # there was a text to repair
        body = _with_texts(call, answer, texts, bad, last.usage)
        if bad.is_stream:
            frames = as_stream(call.request.endpoint.name, body, include_usage=wants_usage(call))
            if frames is None:
                last.attempt.discarded = last.usage
                return None
            body = frames
        return replace(opened, attempt=last.attempt, body=body, usage=last.usage)

    def _conclude(self, call: Call, check: OutputCheck, result: OutputResult) -> None:
        check.result = result
        if result is OutputResult.INVALID:
            INVALID_ANSWER.put(call, True)
        self.metrics.output_checks.totals[call.route.model.name, result] += 1

    # --- streams that are relayed ---

    async def watched(
        self, call: Call, check: OutputCheck, chunks: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """Yields the chunks of a stream, and reads what they say."""
        texts = check.texts = StreamedTexts(call.request.endpoint.name)
        try:
            async for chunk in chunks:
                texts.feed(chunk)
                is_over = check.schema is not None and check.result is None and is_last_word(chunk)
                if (
                    is_over and call.request.endpoint.name == "responses"
                ):  # whoever keeps it does so before its end is told
                    await self._judge_end(call, check, texts)
                yield chunk
                if is_over:
                    await self._judge_end(call, check, texts)
        finally:
            await chunks.aclose()

    async def _judge_end(self, call: Call, check: OutputCheck, texts: StreamedTexts) -> None:
        if check.schema is not None and check.result is None:
            verdict = await self._judge.verdict(check.schema, texts.texts(), LONGEST_CHECK_S, call.request.tenant)
            self._note(call, check, verdict)

    def ended(self, call: Call, check: OutputCheck, outcome: str) -> None:
        """Counts a stream that has ended, unless it has broken off."""
        if check.result is not None or check.schema is None or outcome != "ok":
            return
        verdict = None if check.texts is None else self._judge.verdict_at_once(check.schema, check.texts.texts())
        self._note(call, check, verdict or OutputVerdict(OutputResult.SKIPPED))

    def _note(self, call: Call, check: OutputCheck, verdict: OutputVerdict) -> None:
        if verdict.bad:
            check.violation = verdict.bad[0].violation
        is_late = verdict.result is OutputResult.VALID and check.retries
        self._conclude(call, check, OutputResult.RETRIED if is_late else verdict.result)


def _check_s(call: Call, clock: Clock) -> float:
    """Returns for how many seconds the client may wait for the check of an answer that is here."""
    return max(0.1, min(LONGEST_CHECK_S, call.request.deadline - clock.monotonic()))


def _is_read(call: Call, rule: OutputRule, opened: Whole | Stream) -> bool:
    """Returns whether the client gets nothing of an answer before it has been checked."""
    if isinstance(opened, Whole):
        return True
    return call.request.stream and rule.stream == "buffer" and isinstance(opened.relay, SseRelay)


def _mark(attempt: Attempt, why: str) -> None:
    """Records an attempt as one whose answer breaks the rule, whatever its status was."""
    attempt.status, attempt.error_class, attempt.phase, attempt.detail = None, OUTPUT_INVALID, Phase.ANSWERED, why


def add_result_header(reply: Reply, check: OutputCheck) -> None:
    """Adds `x-gateway-output` to a whole answer, whoever it is given to."""
    if check.result is not None and reply.status < 300:
        header = (b"x-gateway-output", check.result.encode())
        reply.headers.append(header)
        reply.shared.append(header)


def _texts(call: Call, body: bytes) -> list[OutputText] | None:
    """Returns the texts of a whole answer; None: it is too long to be read in one piece."""
    answer = json_object(body) if len(body) <= MOST_BODY else None
    return None if answer is None else texts_of(call.request.endpoint.name, answer)


def _with_texts(call: Call, answer: dict[str, Any], texts: dict[int, str], bad: _Checked, last: Usage) -> bytes:
    """Returns an answer's body with other texts, and the usage of all that it took to get them."""
    endpoint = call.request.endpoint.name
    others = [one.discarded for one in call.attempts if one.discarded is not None and one is not bad.attempt] + [last]
    more = sum([one.input for one in others]), sum([one.output for one in others])
    return orjson.dumps(
        with_texts(
            endpoint,
            answer,
            texts,
            added_usage(endpoint, answer.get("usage"), *more),
        )
    )
