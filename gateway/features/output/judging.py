"""The verdict on the texts of an answer: at once where that is quick, by a process of its own where it is not.

In this order: streams that are held back for it; repairs by another model; checks in another process; and the judge.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from gateway.core.admission.admission import Admission
from gateway.core.answers import AttemptDeadlines, clocks_of
from gateway.core.call import (
    EARLIER_TRIES,
    Call,
    ErrorAnswer,
    Opened,
    Setbacks,
    Stream,
    Whole,
    earlier_tries_of,
    upstream_model,
)
from gateway.core.clock import Clock
from gateway.core.errors import DeadlineExceeded, GatewayError, ShuttingDown
from gateway.core.health.target_health import CLIENT_GONE
from gateway.core.ledger import cost_usd, streamed_usage, whole_usage
from gateway.core.openai.sse import json_object
from gateway.core.relay import HeldEnd, OverlongStream, SseRelay, StreamBroken
from gateway.core.retry import Attempt, Step, Try
from gateway.core.snapshot import Model, Target
from gateway.core.types import ErrorClass, Phase, UpstreamFailed, Usage
from gateway.dialects.endpoints import CHAT
from gateway.drivers.json_schema import INLINE_BYTES, MOST_BYTES, JsonSchema, SchemaUnusable, compile_schema
from gateway.drivers.turns import FairTurns, NotATurn
from gateway.features.output.rules import (
    CHECKED,
    OutputResult,
    OutputRule,
    OutputText,
    StreamedTexts,
    Violation,
    fits,
    repair_request,
    repaired_text,
    violation_of,
)

# --- a stream is held back until it has ended, or has grown too long for that ---

MOST_HELD = 32 * 1024 * 1024
"""The bytes of one stream; a longer one is not held back any more."""


@dataclass(slots=True)
class HeldStream:
    """A stream that has ended well, its events being `opened.body`; or an answer that was whole from the beginning."""

    opened: Whole
    texts: list[OutputText] | None
    """None: they are not known."""


async def hold(
    call: Call, opened: Stream, relay: SseRelay, clock: Clock, watch: AttemptDeadlines
) -> HeldStream | OverlongStream:
    """Reads a stream to its end, by the caller's own deadline.

    Raises UpstreamFailed when it breaks off: the client has nothing of it; DeadlineExceeded when the caller's time is up.
    """
    attempt, end, texts = opened.attempt, HeldEnd(), StreamedTexts(call.request.endpoint.name)
    chunks = relay.chunks(end, clocks_of(attempt.target, call), clock.monotonic)
    parts, size = [], 0
    task = watch.begin(call.request.deadline, attempt, call) if call.request.deadline_is_callers else None
    try:
        async for chunk in chunks:
            attempt.last_activity_at = clock.monotonic()  # it is anything but silent, though nobody hears of it
            texts.feed(chunk)
            parts.append(chunk)
            size += len(chunk)
            if size > MOST_HELD:
                return OverlongStream(b"".join(parts), chunks, end)
    except StreamBroken as broken:
        raise UpstreamFailed(ErrorClass.STREAM_INTERRUPTED, Phase.STREAMING, str(broken)) from broken
    except asyncio.CancelledError:
        await chunks.aclose()
        if task is None or not watch.uncancel_expired(task):
            raise
        raise DeadlineExceeded("The deadline passed before the answer, which is held back until it is whole.") from None
    finally:
        watch.end(task)
    attempt.usage_event = relay.usage_event
    if end.outcome != "ok":
        raise UpstreamFailed(_class_of(end.outcome), Phase.STREAMING, "the stream broke off while it was held back")
    attempt.ended_at = clock.monotonic()
    usage = streamed_usage(call, attempt, "ok", end.usage, end.tokens)
    return HeldStream(Whole(attempt, opened.status, opened.headers, b"".join(parts), usage), texts.texts())


def _class_of(outcome: str | None) -> ErrorClass:
    known = {str(one): one for one in ErrorClass}
    return known.get(outcome or "", ErrorClass.STREAM_INTERRUPTED)


# --- repairs: another model is asked to correct a text, as one more part of the call that it is for ---

_OF_THE_CALL = frozenset((b"idempotency-key", b"content-encoding"))
"""Headers that are about the client's own request."""

OpenFrom = Callable[[Call, Step, None, Attempt], Coroutine[Any, Any, Opened]]


@dataclass(slots=True)
class Repaired:
    """A corrected text, and the attempt that gave it."""

    text: str
    attempt: Attempt
    usage: Usage


class Repairs:
    """Asks for repairs. One per process; holds no state of any call.

    The question is a call of its own to the other model's targets, with their limits, breakers and retries; it shares the
    ledger, the deadline, the place in line and the money of the call that it is for. Invariant: however it ends, what it took
    from a target is settled, and its attempts are in the call's ledger, priced.
    """

    __slots__ = ("_admission", "_clock", "_open")

    def __init__(self, clock: Clock, admission: Admission, open: OpenFrom) -> None:
        """`open` makes the attempts of a call, beginning with a step after the attempt that has failed."""
        self._clock = clock
        self._admission = admission
        self._open = open

    async def repair(
        self,
        call: Call,
        bad: Attempt,
        rule: OutputRule,
        schema: JsonSchema,
        violation: Violation,
        text: str,
        first: int,
    ) -> Repaired | None:
        """Returns a corrected text, unchecked; None: there is none, or the call may not pay for it.

        `bad` is the attempt that gave the text, `first` the number of attempts that the call had made when its answer was first
        found invalid.
        """
        model = None if rule.repair_with is None else call.route.policy.find_model(rule.repair_with)
        if model is None or rule.repair_with is None:
            return None
        if call.request.credential is not None:
            model = model.model_for_caller_credentials or model
        repair = _call_for(
            call, model, rule.repair_with, repair_request(rule.repair_with, schema.source, violation, text)
        )
        admission = self._admission
        try:
            targets = self._targets(call, bad, repair, rule, first)
            opened = await self._open(repair, Try(targets), None, bad) if targets else None
            return None if opened is None else await self._taken(repair, opened)
        except ShuttingDown:
            raise
        except GatewayError:
            return None
        except asyncio.CancelledError:
            admission.costs.price_unfinished(repair, self._clock.monotonic())
            raise
        finally:
            for one in repair.attempts:  # of what has ended there is nothing left to give back
                admission.outcomes.cancelled(one, CLIENT_GONE)
            if repair.setbacks is not None:
                call.own_setbacks().add(repair.setbacks)
            admission.budgets.share(call, repair)

    def _targets(self, call: Call, bad: Attempt, repair: Call, rule: OutputRule, first: int) -> Sequence[Target]:
        """Returns where the repair may go; nowhere, if the call has no time, attempts or money for it."""
        admission = self._admission
        made = sum([not attempt.is_refused for attempt in call.attempts])
        if self._clock.monotonic() >= call.request.deadline or made >= admission.retries.of(call).attempts():
            return ()
        plan = admission.planner.plan_now(repair, bad)
        targets = (*plan.own, *plan.others)
        if not targets:
            return ()
        usd = admission.costs.usd(repair, targets[0])
        most, spent = call.route.model.retries.max_usd_per_call, spent_usd(call.attempts, 0)
        if usd is not None and most is not None and spent + usd > most:
            return ()
        if not fits(rule, spent_usd(call.attempts, first), usd):
            return ()
        return targets if admission.retries.of(repair).denies_money() is None else ()

    async def _taken(self, repair: Call, opened: Opened) -> Repaired | None:
        """Returns what an answer says, with the account of its attempt closed."""
        attempt, target = opened.attempt, opened.attempt.target
        if isinstance(opened, Stream):  # a stream, or an endless text: nobody has asked for that
            await opened.relay.aclose()
            attempt.cost_usd = self._admission.costs.usd(repair, target)
            self._admission.outcomes.used(repair, attempt, None)
            return None
        if isinstance(opened, ErrorAnswer):
            return None
        usage = whole_usage(repair, attempt, opened.usage, opened.body) or Usage(0, 0, estimated=True)
        attempt.cost_usd, attempt.is_cost_reported = cost_usd(repair, target, usage), not usage.estimated
        self._admission.outcomes.used(repair, attempt, usage)
        text = repaired_text(opened.body)
        # The call that it is for has another model: its own would name another one to a target that has none.
        attempt.target = replace(target, model=upstream_model(repair, target))
        return None if text is None else Repaired(text, attempt, usage)


def spent_usd(ledger: Sequence[Attempt], first: int) -> float:
    """Returns what retries and repairs have cost: all attempts behind the `first` ones, which the call had without them."""
    return sum([attempt.cost_usd or 0.0 for attempt in ledger[first:]])


def _call_for(call: Call, model: Model, name: str, body: bytes) -> Call:
    """Returns the call that asks for the repair: on the ledger, the deadline and the money of the one that it is for."""
    endpoint = call.request.endpoint if call.request.endpoint.name == CHAT.name else CHAT
    request = replace(
        call.request,
        endpoint=endpoint,
        path=CHAT.path,
        query=b"",
        method="POST",
        model_name=name,
        body=body,
        stream=False,
        stream_options=None,
        model_span=None,
        headers=[
            one for one in call.request.headers if one[0] not in _OF_THE_CALL and not one[0].startswith(b"anthropic-")
        ],
        max_tokens=None,
        thinks=False,
        large=None,
    )
    # It is as old as the call, so its key is not billed again; what it has reserved of the key is theirs together.
    repair = Call(
        request,
        replace(call.route, model=model, endpoint=endpoint),
        server=call.server,
        attempts=call.attempts,
        reserved=call.reserved,
        seq=call.seq,
        setbacks=None if call.skips is None else Setbacks(skips=call.skips),
    )
    EARLIER_TRIES.put(repair, earlier_tries_of(call))
    return repair


# --- checks that take long, in a process of their own: bounded in time and memory, one at a time, tenants in turn ---

CPU_S = 2
MEMORY_BYTES = 512 * 1024 * 1024
log = logging.getLogger("gateway.flow")


class CheckFailed(Exception):
    """The check took too long, or could not be made."""


class CheckerProcess:
    """Runs `gateway.features.output.child`.

    The library holds Python's lock while it works, so that no thread would leave the loop its turn. A process costs a tenth of
    a second, which is little beside the answer that it is for.
    """

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns = FairTurns()

    async def violation(self, schema: JsonSchema, text: bytes, tenant: str) -> Violation | None:
        """Returns where the text breaks the schema; cancelling it ends the process. Raises CheckFailed."""
        try:
            async with self._turns.turn(tenant, len(text)):
                return await self._checked(schema, text)
        except NotATurn as error:
            raise CheckFailed("too many wait") from error
        except OSError as error:
            raise CheckFailed(str(error)) from error

    async def _checked(self, schema: JsonSchema, text: bytes) -> Violation | None:
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "gateway.features.output.child",
                str(CPU_S),
                str(MEMORY_BYTES),
                str(len(schema.source)),
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            verdicts, _ = await child.communicate(schema.source + text)
        finally:
            if child.returncode is None:
                child.kill()
                await asyncio.shield(child.wait())
        lines = verdicts.splitlines()  # the verdict first, then its place, for which there may not have been time
        if not lines:
            log.warning("a check of %d bytes was given up: the process ended with %s", len(text), child.returncode)
            raise CheckFailed("no verdict")
        if orjson.loads(lines[0]):
            return None
        return Violation(*orjson.loads(lines[1])) if len(lines) > 1 else Violation("schema", "")


# --- the judge ---

MOST_SCHEMAS = 256
MOST_SCHEMA_BYTES = 2 * 1024 * 1024
"""The most bytes of all callers' schemas that are remembered."""
MOST_BODY = 1_048_576
"""Bytes of a request or an answer that is read in one piece, in a few milliseconds; nothing is looked for in larger ones."""


class BadText(NamedTuple):
    """A text that breaks the rule, and where."""

    text: OutputText
    violation: Violation


class OutputVerdict(NamedTuple):
    """What the check of one answer says: `valid`, `invalid` (then `bad` has why), `refused` or `skipped`."""

    result: OutputResult
    bad: Sequence[BadText] = ()


class Schemas:
    """The callers' own schemas, compiled; the least recently used go first."""

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, JsonSchema | None]] = OrderedDict()
        self._bytes = 0

    def of(self, call: Call, rule: OutputRule) -> JsonSchema | OutputResult | None:
        """Returns the schema of the call's answer; None: there is none; `skipped`: there is one, which cannot be used here."""
        if call.request.endpoint.name not in CHECKED:
            return None
        if rule.schema is not None:
            return rule.schema
        if b"json_schema" not in call.request.body:
            return None
        parsed = None if call.request.large is not None else call.parsed
        if parsed is None and len(call.request.body) <= MOST_BODY:
            parsed = json_object(call.request.body)
        form = None if parsed is None else _requested_schema(call.request.endpoint.name, parsed)
        if parsed is not None and form is None:
            return None
        schema = None if form is None else self._compiled(form)
        return OutputResult.SKIPPED if schema is None else schema

    def _compiled(self, form: Any) -> JsonSchema | None:
        try:
            source = orjson.dumps(form)
        except TypeError:
            return None  # too deep
        if len(source) > MOST_BYTES:
            return None
        name = sha256(source).digest()
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known[1]
        try:
            schema = compile_schema(source)
        except SchemaUnusable:
            schema = None
        self._known[name] = len(source), schema
        self._bytes += len(source)
        while len(self._known) > MOST_SCHEMAS or self._bytes > MOST_SCHEMA_BYTES:
            _, (size, _gone) = self._known.popitem(last=False)
            self._bytes -= size
        return schema


def _requested_schema(endpoint: str, parsed: dict[str, Any]) -> Any:
    """Returns the schema that a request names; None: it names none."""
    if endpoint == "responses":
        text = parsed.get("text")
        form = text.get("format") if isinstance(text, dict) else None
        inner = form
    elif endpoint == "messages":
        config = parsed.get("output_config")
        inner = form = config.get("format") if isinstance(config, dict) else None
    else:
        form = parsed.get("response_format")
        inner = form.get("json_schema") if isinstance(form, dict) else None
    if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(inner, dict):
        return None
    return inner.get("schema")


class Judge:
    """Gives verdicts. One per process."""

    __slots__ = ("_apart",)

    def __init__(self) -> None:
        self._apart = CheckerProcess()

    async def verdict(
        self, schema: JsonSchema, texts: Sequence[OutputText] | None, within_s: float, tenant: str
    ) -> OutputVerdict:
        """Returns the verdict, after `within_s` seconds at the latest: what takes or waits longer is skipped."""
        at_once = self.verdict_at_once(schema, texts)
        if at_once is not None:
            return at_once
        try:
            async with asyncio.timeout(within_s):
                return await self._verdict(schema, [one for one in texts or () if one.excuse is None], tenant)
        except (CheckFailed, TimeoutError):
            return OutputVerdict(OutputResult.SKIPPED)

    async def _verdict(self, schema: JsonSchema, texts: Sequence[OutputText], tenant: str) -> OutputVerdict:
        bad: list[BadText] = []
        for one in texts:
            text = one.text.encode("utf-8", "surrogatepass")
            if schema.is_dear(text):
                violation = await self._apart.violation(schema, text, tenant)
            else:
                violation = violation_of(schema, text)
                await asyncio.sleep(0)  # an answer may have many choices: others have their turn between
            if violation is not None:
                bad.append(BadText(one, violation))
        return OutputVerdict(OutputResult.INVALID, bad) if bad else OutputVerdict(OutputResult.VALID)

    def verdict_at_once(self, schema: JsonSchema, texts: Sequence[OutputText] | None) -> OutputVerdict | None:
        """Returns the verdict; None: it would take long."""
        if not texts:
            return OutputVerdict(OutputResult.SKIPPED)
        checked = [one for one in texts if one.excuse is None]
        if not checked:
            is_refused = any(one.excuse is OutputResult.REFUSED for one in texts)
            return OutputVerdict(OutputResult.REFUSED if is_refused else OutputResult.SKIPPED)
        written = [one.text.encode("utf-8", "surrogatepass") for one in checked]
        if sum(map(len, written)) > INLINE_BYTES or any(map(schema.is_dear, written)):
            return None
        found = [(one, violation_of(schema, text)) for one, text in zip(checked, written, strict=True)]
        bad = [BadText(one, violation) for one, violation in found if violation is not None]
        return OutputVerdict(OutputResult.INVALID, bad) if bad else OutputVerdict(OutputResult.VALID)
