"""The account of a call: settled exactly once, on every path, cancellation included.

In this order: the account (`Accounts`), what a call has used, what that costs, what a call is estimated to cost beforehand
(`CostEstimates`), and what its answer tells about its way (`answer_headers`). It must not know budgets. Money is in US dollars:
units times the rates of the moment; a price that is not known is None, "not priced", and never 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from math import ceil, inf
from typing import Any, Final

from gateway.core.admission.gates import Gates, answers_of, estimate_of
from gateway.core.call import Call, CallRecord, deciding_attempt, upstream_model
from gateway.core.clock import Clock
from gateway.core.errors import MAX_RETRY_AFTER_S, Forbidden, GatewayError, InternalError, ShuttingDown, drop_frames
from gateway.core.health.target_health import CLIENT_GONE as CLIENT_GONE
from gateway.core.limits.headers import plain_number
from gateway.core.openai.bodies import BodyEdits, count_answers
from gateway.core.openai.media import (
    NO_EXTRAS,
    SEARCH_TOKENS,
    SEARCHING,
    Extras,
    count_searches,
    estimate_extras,
    find_extras,
)
from gateway.core.openai.sse import json_object
from gateway.core.openai.usage import (
    LONGEST_ANSWER,
    estimate_answer,
    filled,
    find_requested_tier,
    most_output,
    plausible,
)
from gateway.core.ports import Meter
from gateway.core.request_fields import BOUNDING, find_bound
from gateway.core.retry import Attempt, shown, usage_in_all
from gateway.core.retry_budgets import FREE, SEEN_ANSWERS, Price, dearest, dearest_usd, price_of
from gateway.core.snapshot import MAX_NAME_CHARS, FindRates, Rates, RatesAt, Target
from gateway.core.types import ALL_TEXT, Gap, How, RawHeaders, Usage, UsageParts

log = logging.getLogger("gateway")
CLIENT_GONE_STATUS = 499
INTERNAL_ERROR = "internal_error"


def why_stopped(stopped: asyncio.CancelledError) -> str:
    """Returns the outcome of a cancelled call: its client left, unless the cancellation names another reason."""
    return str(stopped.args[0]) if stopped.args and stopped.args[0] else CLIENT_GONE


def _nobody_pays(_call: Call, _usd: float) -> None:
    return None


def _nothing_unfinished(_call: Call, _now: float) -> tuple[None, None]:
    return None, None


def note_left(call: Call, *, has_left: bool = True) -> None:
    """Notes whether the client of a call has left while others wait for its answer: its own account then says so."""
    call.left = has_left


def note_outcome(call: Call, outcome: str) -> None:
    """Notes how the answer ended that a call gets, where that is known before its account is closed."""
    call.outcome = outcome


class Accounts:
    """Closes the accounts of calls and reports them to the meter."""

    __slots__ = ("_charge", "_clock", "_meter", "_price_unfinished", "_release", "opened")

    def __init__(
        self,
        clock: Clock,
        meter: Meter,
        release: Callable[[Call, Attempt | None, Usage | None], None],
        charge: Callable[[Call, float], None] = _nobody_pays,
        price_unfinished: Callable[[Call, float], tuple[Attempt | None, Usage | None]] = _nothing_unfinished,
    ) -> None:
        """`release` gives back to the limits what the call took and did not use (with the attempt that had the answer; None:
        there is none), `charge` books money on the key, `price_unfinished` returns an attempt in flight that is given up, and
        what it may have used.
        """
        self._price_unfinished = price_unfinished
        self._release = release
        self._charge = charge
        self._clock = clock
        self._meter = meter
        self.opened = meter.began
        """To be called when a call has come in."""

    def settle(
        self,
        call: Call,
        status: int,
        outcome: str,
        *,
        attempt: Attempt | None = None,
        usage: Usage | None = None,
        beside_usd: float = 0.0,
        estimated_usd: float | None = None,
    ) -> None:
        """Close the call's account; a second time does nothing. `attempt` is the one that had the answer; None: there is none.

        `beside_usd` is what the call has cost, where its usage has no price of its own: it is the sum of several.
        `estimated_usd` is the part of the cost that rests on estimates; None: all of it where the usage is an estimate.
        """
        if call.settled or call.is_withdrawn:
            return
        # Set before the release and the books: whatever fails there, no second try closes the account again.
        call.settled = True
        call.usage, call.outcome = usage, outcome
        # Its client left while others waited for this answer: the good end is theirs.
        if call.left:
            status, outcome = CLIENT_GONE_STATUS, CLIENT_GONE
        try:
            self._release(call, attempt, usage)
        finally:  # whatever fails there, the books are kept
            self._book(call, status, outcome, attempt, usage, beside_usd, estimated_usd)

    def settle_failed(self, call: Call, failure: Exception) -> GatewayError:
        """Closes the account of a call that failed; returns the error to raise: `failure`, or InternalError for a defect."""
        if isinstance(failure, GatewayError):
            self.settle(call, failure.status, failure.code or failure.type)
            drop_frames(failure)  # it may be kept for others who wait for the same answer
            return failure
        self.settle(call, InternalError.status, INTERNAL_ERROR)
        internal = InternalError()
        # The edge logs the cause; the client learns nothing of it.
        internal.__cause__ = failure
        return internal

    def settle_stopped(
        self,
        call: Call,
        stopped: asyncio.CancelledError,
    ) -> None:
        """Closes the account of a call that was cancelled; what its attempt in flight may have used is priced, and teaches the
        limits nothing."""
        if call.settled or call.is_withdrawn:
            return
        # Settling ends the attempt, and only an attempt in flight gets a price: first this, then that.
        attempt, usage = self._price_unfinished(call, self._clock.monotonic())
        call.settled = True
        call.outcome = outcome = why_stopped(stopped)
        try:
            self._release(call, None, None)
        finally:
            status = CLIENT_GONE_STATUS if outcome == CLIENT_GONE else ShuttingDown.status
            self._book(call, status, outcome, attempt, usage)

    def withdraw(self, call: Call) -> None:
        """Takes back that the call was opened: it is answered without being one, or refused, and nothing of it is booked."""
        if not call.settled and not call.is_withdrawn:
            call.is_withdrawn = True
            self._meter.withdrew()

    @contextmanager
    def closing(self, call: Call) -> Iterator[None]:
        """Closes the account of a call that fails inside, or is stopped there. Raises what it failed with; a defect becomes
        an InternalError."""
        try:
            yield
        except asyncio.CancelledError as stopped:
            self.settle_stopped(call, stopped)
            raise
        except GatewayError as error:
            self.settle_failed(call, error)
            raise
        except Exception as defect:
            raise self.settle_failed(call, defect) from defect

    def _book(
        self,
        call: Call,
        status: int,
        outcome: str,
        attempt: Attempt | None,
        usage: Usage | None,
        beside_usd: float = 0.0,
        estimated_usd: float | None = None,
    ) -> None:
        now = self._clock.monotonic()
        last = deciding_attempt(call) if attempt is None else attempt
        if last is not None and last.ended_at is None:
            last.ended_at = now
            if outcome != "ok":
                last.error_class = outcome  # how a relay ended, or that nobody waited for it
        cost = beside_usd or (None if attempt is None else cost_usd(call, attempt.target, usage))
        is_served = last is not None and cost is not None
        retries_usd, retries = 0.0, call.attempts
        if len(retries) > int(is_served):  # more than the one that served it
            retries = [one for one in call.attempts if one is not last] if is_served else call.attempts
            retries_usd = known_usd(retries) or 0.0
            if any(one.discarded is not None for one in call.attempts):
                call.usage = usage_in_all(call.attempts, usage)
        if last is not None and cost is not None:
            last.cost_usd = cost
        # A charge also gives back what is reserved, so a call that cost nothing needs one, too.
        if call.route.key.budget_usd_per_day is not None and (cost or retries_usd or call.reserved is not None):
            self._charge(call, (cost or 0.0) + retries_usd)
        first_byte_s = None
        if last is not None and last.first_byte_at is not None:
            first_byte_s = last.first_byte_at - last.started_at
        record = CallRecord(
            call,
            status,
            outcome,
            usage,
            cost,
            retries_usd,
            now - call.request.received_at,
            overhead_s(call, now),
            first_byte_s,
        )
        if retries_usd:
            record.estimated_retries_usd = known_usd([one for one in retries if not one.is_cost_reported]) or 0.0
        if estimated_usd is not None:
            record.estimated_usd = estimated_usd
        hooks = call.route.hooks
        for closed in () if hooks is None else hooks.closed:
            try:
                fields = closed(record)
            except Exception:
                # The account is closed: a defect of a product must not undo that, nor keep others from it.
                log.exception("a product failed at the end of call %s", call.request.id)
            else:
                if fields:
                    record.fields = {**(record.fields or {}), **fields}
        self._meter.settled(record)


def overhead_s(call: Call, now: float) -> float:
    """The part of the call's time so far that was ours: neither a provider's nor spent waiting for its limits."""
    attempts = call.attempts
    if len(attempts) == 1:  # as in most calls
        attempt = attempts[0]
        upstream_s = (now if attempt.ended_at is None else attempt.ended_at) - attempt.started_at
    else:
        upstream_s = _upstream_s(attempts, now)
    ours_s = now - call.request.received_at - upstream_s
    if call.setbacks is not None:
        ours_s = ours_s - call.setbacks.queue_s - call.setbacks.backoff_s
    return ours_s if ours_s > 0.0 else 0.0


def _upstream_s(attempts: Sequence[Attempt], now: float) -> float:
    upstream_s, until = 0.0, -inf
    for attempt in sorted(attempts, key=lambda one: one.started_at):
        ended_at = now if attempt.ended_at is None else attempt.ended_at
        if ended_at > until:  # two may have run side by side
            upstream_s += ended_at - max(attempt.started_at, until)
            until = ended_at
    return upstream_s


# --- what a call has used ---


def whole_usage(call: Call, attempt: Attempt, reported: Usage | None, body: bytes) -> Usage | None:
    """Returns the usage of a whole answer: what its provider reports, and an estimate of each number that it does not.

    None: the endpoint has no tokens.
    """
    reported = _believed(call, reported)
    if reported is not None and reported.input and (reported.output or call.request.endpoint.tokens != "both"):
        return reported
    estimate = estimated_usage(call, attempt, estimate_answer(body))
    return reported if estimate is None else filled(reported, estimate)


def streamed_usage(
    call: Call, attempt: Attempt, outcome: str, reported: Usage | None, output_tokens: int
) -> Usage | None:
    """Returns the usage of a stream that has ended: what the provider has reported, and the estimate of what it has not.

    Of a stream that was left or broken off, a report is of its beginning; the estimate is then of all that has come.
    """
    reported = _believed(call, reported)
    if reported is None or not reported.input or not reported.output:
        estimate = estimated_usage(call, attempt, output_tokens)
        return reported if estimate is None else filled(reported, estimate)
    if outcome != "ok" and reported.output < output_tokens:
        return replace(reported, output=output_tokens, estimated=True)
    return reported


def _believed(call: Call, reported: Usage | None) -> Usage | None:
    """Returns what a provider reports, without an output that is far beyond what the call allows."""
    if reported is None or reported.output <= LONGEST_ANSWER or call.request.max_tokens is None:
        return reported
    return plausible(reported, most_output(call.request.max_tokens, answers_of(call)))


def estimated_usage(call: Call, attempt: Attempt, output_tokens: int) -> Usage | None:
    """Returns an estimate of what is not reported, its input as admission has it for the attempt's target.

    None: the endpoint has no tokens.
    """
    if call.request.endpoint.tokens == "none":
        return None
    input_tokens = estimate_of(call)
    if attempt.reservation is not None:
        input_tokens = attempt.reservation.gate.calibration.input_estimate(input_tokens)
    return Usage(input_tokens, output_tokens if call.request.endpoint.tokens == "both" else 0, estimated=True)


def media_usage(call: Call, target: Target, reported: Usage | None, written: int | None = None) -> Usage:
    """Returns what a call with a `media` usage has used at the target, or will use, of all units that have a price there.

    `reported` is what the provider has reported. The usage is marked as estimated where an estimate costs anything.
    `written` are the tokens of the text that came back, as estimated; None: not all of it has come.
    """
    request = call.request
    media, body = request.endpoint.media, request.body
    if media is None:
        return Usage(0, 0) if reported is None else reported
    fields: dict[str, Any] = {}
    # A large one is not parsed again, and is refused anyway.
    if request.endpoint.request == "json" and request.large is None:
        fields = call.parsed or json_object(body) or {}
        fields = fields if target.edits is None else target.edits.seen(fields)
    certain = media.certain(reported, body, fields)
    estimated = media.estimated(certain, body, fields, written)
    return certain if cost_usd(call, target, certain) == cost_usd(call, target, estimated) else estimated


# --- what that costs ---


MAX_REMEMBERED_PRICES: Final = 4096


def fixed_rates(rates: Rates | None) -> FindRates:
    """Returns a finder of these rates, whatever the model."""
    return lambda _model: rates


def remembered_rates(look_up: Callable[[str], RatesAt | None], wall: Callable[[], float]) -> FindRates:
    """Returns a finder that looks up each model once, and asks for its rates again when they have changed, by `wall`.

    Invariant: a hostile stream of model names cannot grow the memory.
    """
    models = lru_cache(maxsize=MAX_REMEMBERED_PRICES)(lambda name: _Remembered(look_up(name)))

    def find(name: str) -> Rates | None:
        # A caller may send any name, and each that is looked up is remembered.
        if len(name) > MAX_NAME_CHARS:
            return None
        found = models(name)
        if found.until < inf and (now := wall()) >= found.until:
            found.rates, found.until = (None, inf) if found.rates_at is None else found.rates_at(now)
        return found.rates

    return find


class _Remembered:
    """The rates of a model until they change; of most they never do, and no clock is asked."""

    __slots__ = ("rates", "rates_at", "until")

    def __init__(self, rates_at: RatesAt | None) -> None:
        self.rates_at = rates_at
        self.rates: Rates | None = None
        self.until = -inf


def cost_usd(call: Call, target: Target | None, usage: Usage | None) -> float | None:
    """Returns what the call's usage costs in US dollars; None when nothing was used or the price is not known.

    The price is that of the moment: an answer is billed when it is complete (DeepSeek's pricing page, on its hours). An
    estimate names no tier, and is billed at the one that was asked for.
    """
    if target is None or usage is None:
        return None
    model = target.model  # as `upstream_model` has it: nearly every target names one
    rates = target.find_rates(upstream_model(call, target) if model is None else model)
    if usage.estimated and not usage.tier and rates is not None and rates.by_tier:
        usage = replace(usage, tier=_requested_tier(call, target))
    return usage_usd(rates, usage)


def usage_usd(rates: Rates | None, usage: Usage) -> float | None:
    """Returns the price of a usage in US dollars, at the service tier that it names; None: not priced.

    Each token is billed once, at the price of its most specific part: as sound before as cached, as cached before as input.
    """
    if rates is None:
        return None
    if usage.tier or rates.above:
        if usage.steps:
            return _steps_usd(rates, usage)
        rates = rates.at(usage.input, usage.tier)
    usd = usage.input * rates.input_usd + usage.output * rates.output_usd
    if usage.cached:
        # Cached tokens are in the input already, so only the difference counts.
        usd += usage.cached * (rates.cached_input_usd - rates.input_usd)
    if usage.cache_written and rates.cache_write_usd is not None:
        usd += usage.cache_written * (rates.cache_write_usd - rates.input_usd)
        if usage.cache_written_1h and rates.cache_write_1h_usd is not None:
            usd += usage.cache_written_1h * (rates.cache_write_1h_usd - rates.cache_write_usd)
    if usage.parts is not ALL_TEXT or rates.request_usd:
        usd = max(0.0, usd + rates.request_usd + _parts_usd(rates, usage.parts))  # odd parts may overlap
    # A target that sells other units alone, none of which are known, has no price, which is not a price of 0.
    return usd if usd or rates.prices_tokens else None


def _steps_usd(rates: Rates, usage: Usage) -> float:
    """Returns the price of a call of several requests, each by its own length, and of what is part of none."""

    def priced(one: Usage, input_tokens: int) -> float:
        # The level is chosen: `usage_usd` must neither choose again nor come back here.
        level = replace(rates.at(input_tokens, usage.tier), above=(), by_tier={})
        return usage_usd(level, replace(one, tier="", steps=())) or 0.0

    longer_usd = [priced(one, one.input) - priced(one, 0) for one in usage.steps]
    return max(0.0, priced(usage, 0) + sum(longer_usd))


def _parts_usd(rates: Rates, parts: UsageParts) -> float:
    """Returns what the parts cost beyond what their tokens cost as text, and what is billed by other units."""
    usd = parts.searches * rates.search_usd + parts.characters * rates.character_usd + parts.images * rates.image_usd
    if parts.audio_s:
        usd += max(parts.audio_s, rates.least_audio_s) * rates.audio_second_usd
    for tokens, own_usd, text_usd in (
        (parts.audio_input - parts.audio_cached, rates.audio_input_usd, rates.input_usd),
        (parts.audio_cached, rates.cached_audio_input_usd, rates.cached_input_usd),
        (parts.audio_output, rates.audio_output_usd, rates.output_usd),
        (parts.image_input - parts.image_cached, rates.image_input_usd, rates.input_usd),
        (parts.image_cached, rates.cached_image_input_usd, rates.cached_input_usd),
        (parts.image_output, rates.image_output_usd, rates.output_usd),
        (parts.video_input, rates.video_input_usd, rates.input_usd),
        (parts.video_output, rates.video_output_usd, rates.output_usd),
        (parts.reasoning, rates.reasoning_usd, rates.output_usd),
    ):
        if own_usd is not None:
            usd += tokens * (own_usd - text_usd)
    return usd


def known_usd(attempts: Sequence[Attempt]) -> float | None:
    """What attempts have cost together, as far as it is known; None: nothing is."""
    costs = [attempt.cost_usd for attempt in attempts if attempt.cost_usd is not None]
    return sum(costs) if costs else None


# --- what a call is estimated to use and to cost, by what its targets have answered to calls before it ---

_SOME_TOKENS: Final = Usage(1, 1)
FASTEST_PER_S = 1_000
"""The most output tokens per second of one answer; the fastest providers generate some hundreds to two thousand."""


class CostEstimates:
    """Estimates what attempts cost. Holds no state of any call."""

    __slots__ = ("_gates",)

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    def usage(self, call: Call, target: Target) -> Usage:
        """Returns what an attempt at the target is estimated to use."""
        if call.request.endpoint.media is not None:
            return media_usage(call, target, None)
        learned = self._gates.line(target, call).gate.calibration
        output = 0
        if call.request.endpoint.tokens == "both":
            max_tokens, answers = _answers_wanted(call, target)
            output = learned.expected_output * answers
            output = output if max_tokens is None else min(output, max_tokens)
        estimate, extras = estimate_of(call), (_small_extras(call) or NO_EXTRAS).at(upstream_model(call, target))
        unseen = extras.audio + extras.video + extras.document
        if not unseen:
            return Usage(learned.input_estimate(estimate), output, estimated=True)
        if not extras.image:  # of pictures the estimate of a request is nearer than what is reserved for them
            estimate = max(0, estimate - extras.estimated)
        parts = UsageParts(audio_input=extras.audio, video_input=extras.video)
        return Usage(learned.input_estimate(estimate) + unseen, output, estimated=True, parts=parts)

    def usd(self, call: Call, target: Target) -> float | None:
        """Returns what an attempt at the target is estimated to cost; None: not priced."""
        return cost_usd(call, target, self.usage(call, target))

    def expected_usd(self, call: Call) -> float | None:
        """Returns what the call is estimated to cost at the dearest target that it may reach; None: none of them is priced, or
        nobody knows what it uses.

        It can be asked at any time once the request is parsed. It learns from each answer: the same call may be less, or more,
        a moment later.
        """
        endpoint = call.request.endpoint
        if endpoint.media is None and (endpoint.request == "any" or endpoint.tokens == "none"):
            return None
        return max([usd for one in _reached(call) if (usd := self.usd(call, one)) is not None], default=None)

    def price(self, call: Call, budget_usd: float, targets: Sequence[Target] = ()) -> Price:
        """Returns what the call may cost its key: at the dearest of `targets`, or of those that it may reach, where some are
        priced."""
        reached = targets or _reached(call)
        if call.request.endpoint.media is not None:
            costs = [cost_usd(call, target, media_usage(call, target, None)) for target in reached]
            usd = max([usd for usd in costs if usd is not None], default=0.0)
            return Price(usd, usd, usd)
        if call.request.endpoint.request == "any" or call.request.endpoint.tokens == "none":
            return FREE
        estimate, extras = estimate_of(call), _small_extras(call)
        prices = []
        for target in reached:
            model = upstream_model(call, target)
            rates = target.find_rates(model)
            if rates is not None:
                learned = self._gates.line(target, call).gate.calibration
                more = _large_extras(call, rates) if extras is None else extras
                if target.edits is not None and not target.edits.names.isdisjoint(SEARCHING):
                    more = more._replace(searches=count_searches(_edited(call, target.edits)))
                more = more.at(model)
                input_tokens = learned.input_bound(max(0, estimate - more.estimated)) + more.files
                input_tokens += more.searches * SEARCH_TOKENS
                tier = _requested_tier(call, target) if rates.by_tier else ""
                input_usd, output_usd = dearest_usd(rates, input_tokens, tier, more)
                max_tokens, answers = _answers_wanted(call, target)
                price = price_of(
                    input_usd,
                    output_usd if call.request.endpoint.tokens == "both" else 0.0,
                    learned.output_estimate(None),
                    max_tokens,
                    budget_usd,
                    answers=answers,
                    is_known=learned.answers_seen >= SEEN_ANSWERS,
                )
                prices.append(price)
        return dearest(prices)

    def refuse_unpriced(self, call: Call) -> None:
        """Raises Forbidden where a key with a budget would use what has no price, at any target that the call may go to."""
        request = call.request
        is_media = request.endpoint.media is not None
        if call.route.key.allow_unpriced or not (is_media or request.endpoint.tokens != "none"):
            return
        for target in _reached(call):
            if cost_usd(call, target, media_usage(call, target, None) if is_media else _SOME_TOKENS) is None:
                raise Forbidden(
                    f"The key '{call.route.key.name}' has a budget, and what '{request.endpoint.name}' costs at {target.name} "
                    "is not known; set 'price' at the target, or allow it with 'allow_unpriced: true' at the key.",
                    param="model",
                    code="unpriced_endpoint",
                )

    def usual_usd(self, call: Call) -> float:
        """Returns the usual price of a call at its model's own targets, where it is known, without fallbacks.

        Raises Forbidden where its key has a budget and it has none.
        """
        if call.route.key.budget_usd_per_day is not None:
            self.refuse_unpriced(call)
        return self.price(call, 0.0, call.route.model.targets).most

    def price_unfinished(self, call: Call, now: float) -> tuple[Attempt | None, Usage | None]:
        """Prices the attempt in flight of a call that is given up at `now`; returns it, and what it may have used.

        A provider that is hung up on may stop, or go on to the end (Google bills all of it): it is taken to have generated what
        is usual, if there was time for that.
        """
        last = deciding_attempt(call)
        if last is None or last.ended_at is not None or last.cost_usd is not None:
            return None, None
        usage = self.usage_by(call, last, now)
        last.cost_usd = cost_usd(call, last.target, usage)
        return last, usage

    def usage_by(self, call: Call, attempt: Attempt, now: float) -> Usage:
        """Returns what an attempt may have used by `now`, of which no answer came: what there was time for."""
        usage = replace(self.usage(call, attempt.target), estimated=True)
        if call.request.endpoint.media is None:
            answers = _answers_wanted(call, attempt.target)[1]
            usage.output = min(usage.output, ceil((now - attempt.started_at) * FASTEST_PER_S) * answers)
        return usage


def _reached(call: Call) -> tuple[Target, ...]:
    """Returns all targets that may serve the call, its fallbacks among them."""
    return (*call.route.model.plan, *call.route.model.context_plan)


def _small_extras(call: Call) -> Extras | None:
    """Returns what a call brings and asks for beside its text; None: it is too large to be read."""
    if call.request.large is not None and call.request.large.tokens >= 0:
        return None
    if call.request.endpoint.request != "json":
        return NO_EXTRAS
    heeds_detail = call.request.endpoint.name not in call.route.model.converted
    return find_extras(call.request.body, call.parsed, heeds_detail=heeds_detail)


def _large_extras(call: Call, rates: Rates) -> Extras:
    """Returns the extras of a call that is too large to be read, at a model with these rates."""
    large = call.request.large
    if large is None:
        return NO_EXTRAS
    shows_images = large.needs is not None and large.needs.images
    return estimate_extras(
        large.data_strings, large.data_bytes, shows_images=shows_images, hears=rates.audio_input_usd is not None
    )


def _answers_wanted(call: Call, target: Target) -> tuple[int | None, int]:
    """Returns the bound on the tokens of all answers (None: there is none), and how many answers the call pays for, with what
    the config changes in the target's bodies."""
    edits = target.edits
    if edits is None or call.request.endpoint.request != "json" or edits.names.isdisjoint(BOUNDING):
        return call.request.max_tokens, answers_of(call)
    wanted = _edited(call, edits)
    return find_bound(wanted), count_answers(wanted)


def _edited(call: Call, edits: BodyEdits) -> dict[str, Any]:
    """Returns what the call's body says with the edits made; of one that is too large to be read, the edits alone."""
    is_large = call.request.large is not None and call.request.large.tokens >= 0
    return edits.seen({} if is_large else call.parsed or json_object(call.request.body) or {})


def _requested_tier(call: Call, target: Target) -> str:
    """Returns the service tier that the call, or its target's own edits, ask for; empty: none."""
    edits = target.edits.set if target.edits is not None else ()
    edited = next((value for name, value in edits if name == "service_tier"), None)
    return find_requested_tier(call.request.body) if edited is None else edited.decode().strip('"')


# --- what an answer tells about its way through the gateway: request id, target, attempts, times ---


_NOT_QUEUED: Final = (b"x-gateway-queue-ms", b"0")


def answer_headers(call: Call, now: float, attempt: Attempt | None = None) -> list[tuple[bytes, bytes]]:
    """The `x-gateway-*` headers and `x-request-id` of an answer that begins at `now` (monotonic seconds).

    `attempt` is the one that had the answer; None: the call's deciding one, if it made any.
    """
    request = call.request
    own_id = request.id.encode()
    headers = [
        _NOT_QUEUED,
        (b"x-gateway-overhead-ms", b"%.2f" % (overhead_s(call, now) * 1000)),
        (b"x-gateway-request-id", own_id),
    ]
    attempts, setbacks, skips = call.attempts, call.setbacks, None
    if setbacks is not None:
        skips = setbacks.skips
        headers[0] = (b"x-gateway-queue-ms", b"%d" % (setbacks.queue_s * 1000))
        if setbacks.denied is not None:
            headers.append((b"x-gateway-retry-denied", setbacks.denied.encode()))
    hooks = call.route.hooks
    if hooks is not None:
        headers += hooks.fixed_headers
        for add_headers in hooks.headers:
            try:
                add_headers(call, headers)
            except Exception:  # the answer is there, and paid for: a defect of a product must not lose it
                log.exception("a product failed at the headers of call %s", request.id)
    last = deciding_attempt(call) if attempt is None else attempt
    if last is not None:
        cost_usd = last.cost_usd if len(attempts) == 1 else known_usd(attempts)
        if cost_usd is not None:
            headers.append((b"x-gateway-cost-usd", b"%.8f" % cost_usd))
        upstream_id = last.upstream_request_id
        if len(attempts) > 1 or skips:
            trail = shown(attempts, skips=skips)
        elif last.error_class is None:  # as in most calls: `str(last)` without a call
            trail = f"{last.target.name}:{last.status}"
        else:
            trail = str(last)
        headers += (b"x-gateway-target", last.target.name.encode()), (b"x-gateway-attempts", trail.encode())
    else:
        upstream_id = None
        if skips:
            headers.append((b"x-gateway-attempts", shown(attempts, skips=skips).encode()))
    if upstream_id is None:
        headers.append((b"x-request-id", own_id))
    # A client that sent an id of its own gets that back, and the provider's under another name.
    elif request.echo_request_id:
        headers += (b"x-request-id", own_id), (b"x-gateway-upstream-request-id", upstream_id)
    else:
        headers.append((b"x-request-id", upstream_id))
    return headers


MOST_SHOWN = 200


def lossy_header(gaps: Iterable[Gap]) -> tuple[bytes, bytes]:
    """Returns what was lost on the way to a provider, by name: that belongs to the answer, whoever gets it.

    The gravest goes first: what was dropped before what was changed, and tools before other fields. Entries that have no
    room are counted at the end: `+3 more`.
    """
    ordered = sorted(gaps, key=lambda gap: (gap.how is How.APPROXIMATED, not gap.field.startswith("tool"), gap.field))
    entries = [f"{gap.field}({gap.how})" for gap in ordered]
    value = ", ".join(entries)
    if len(value) > MOST_SHOWN:
        # The largest count that can follow gets its room first, so the real one always fits.
        room, shown = MOST_SHOWN - len(f"+{len(entries)} more"), 0
        for entry in entries:
            room -= len(entry) + len(", ")
            if room < 0:
                break
            shown += 1
        value = ", ".join([*entries[:shown], f"+{len(entries) - shown} more"])
    return b"x-gateway-lossy", value.encode("ascii", "replace")


_YES_OR_NO = frozenset((b"true", b"false"))


def with_retry_advice(headers: RawHeaders, back_in_s: float | None) -> list[tuple[bytes, bytes]]:
    """The headers of an error, with advice for SDKs: come back in so many seconds, or (None) not at all.

    A provider that has named a time itself is believed, and so is its word against another try; for longer than a minute no SDK
    should wait by itself.
    """
    if should_retry_of(headers) is False:
        back_in_s = None
    kept = [
        (name, value)
        for name, value in headers
        if name != b"x-should-retry"
        # a `retry-after` that the gateway can read and clients cannot, such as `30s`
        and not (name == b"retry-after" and value[:1].isdigit() and plain_number(value.strip()) is None)
    ]
    named = [value for name, value in kept if name in (b"retry-after", b"retry-after-ms")]
    longest_s = max([back_in_s or 0.0, *(_seconds(name, value) for name, value in kept)])
    if back_in_s is None or longest_s > MAX_RETRY_AFTER_S:
        return [*kept, (b"x-should-retry", b"false")]
    kept.append((b"x-should-retry", b"true"))
    if not named:
        kept += (b"retry-after", b"%d" % ceil(back_in_s)), (b"retry-after-ms", b"%d" % ceil(back_in_s * 1000))
    return kept


def should_retry_of(headers: RawHeaders) -> bool | None:
    """Returns the provider's own `x-should-retry`; None: it says nothing."""
    return next(
        (value == b"true" for name, value in headers if name == b"x-should-retry" and value in _YES_OR_NO), None
    )


def _seconds(name: bytes, value: bytes) -> float:
    """The seconds that a header asks to wait; 0.0 where it is no such header, or no number."""
    unit = {b"retry-after": 1.0, b"retry-after-ms": 0.001}.get(name, 0.0)
    try:
        return float(value) * unit if unit else 0.0
    except ValueError:  # a date, as RFC 9110 allows
        return 0.0
