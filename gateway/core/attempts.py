"""All attempts of one call: admission, one try, and what follows from it, until an answer is final.

    enter -> dispatch -> (the ledger) -> next_step -> Try | TryLater | GiveUp

One loop, one ledger, one deadline. `core/retry.py` decides, this acts. It must not know how an answer is relayed.
Invariant: every reservation is given back or handed to the account of the call, whichever way its attempt ends.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from gateway.core.admission.admission import Admission
from gateway.core.answers import JSON_TYPE, AttemptDeadlines, dispatch
from gateway.core.balancing import Action
from gateway.core.call import FALLBACK_ANSWER, Call, ErrorAnswer, Opened, Whole, deciding_attempt, earlier_tries_of
from gateway.core.clock import Clock
from gateway.core.error_tables import error_object, is_openai_shaped
from gateway.core.errors import (
    MAX_RETRY_AFTER_S,
    CircuitOpen,
    DeadlineExceeded,
    GatewayError,
    NoTargetAvailable,
    ProviderCredentialRefused,
    TargetsTimedOut,
    drop_frames,
)
from gateway.core.ledger import cost_usd, should_retry_of
from gateway.core.limits.reservation import Refusal
from gateway.core.ports import Meter
from gateway.core.racing import Failover, Hedges, Move, Suspects
from gateway.core.render import client_status, error_body, unknown_path
from gateway.core.retry import (
    DENIALS,
    Attempt,
    GiveUp,
    Plan,
    Step,
    Try,
    TryLater,
    attempts_apart,
    concerns_target_alone,
    is_final,
    next_step,
    rule_for,
    shown,
)
from gateway.core.types import PASSING, ErrorClass, NotExpressible, Phase, ProviderError, UpstreamFailed

LIMITS_RATE = frozenset((ErrorClass.RATE_LIMIT_REQUESTS, ErrorClass.RATE_LIMIT_TOKENS, ErrorClass.QUOTA_EXHAUSTED))
"""The target has refused the call for how much was asked of it, not for what."""


_OPERATORS = frozenset((ErrorClass.AUTH, ErrorClass.MODEL_NOT_FOUND))
"""The failures that the operator has to mend: the provider says it best."""
MOST_TRIALS = 10
"""The most trials of one call, where each of them was answered with a 500 or 409."""
FEW_TRIALS = 3
"""The most trials of one call, where others are served that were sent after a failure of its: it may be the call's own content.

And where a target has never answered anybody: its address may be wrong.
"""
MOST_WORDS = 500
"""The most characters of a provider's words in a message of ours."""
_WANTS_TARGET = frozenset(("attempts", "no_target", "doubt"))
"""Why a call is given up that another target might have served."""
SOON_S = 0.01
"""A call that has waited for a turn for this many seconds has made no detour."""
MOST_DETOURS = 100
"""A decision that cannot be carried out is taken again, but not for ever."""


class Attempts:
    """Makes the attempts of calls. One per process; holds no state of any call."""

    __slots__ = ("_admission", "_clock", "_draw", "_hedges", "_meter", "_moves", "_watch")

    def __init__(
        self, clock: Clock, meter: Meter, admission: Admission, watch: AttemptDeadlines, draw: Callable[[], float]
    ) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._meter = meter
        self._admission = admission
        self._watch = watch
        self._draw = draw
        self._hedges = Hedges(clock, meter, admission, watch, self._learn)
        self._moves = Failover(clock, admission, watch, self._next_answer)
        watch.look = Suspects(clock, admission, watch, self._moves, draw).look

    def _next_answer(self, call: Call, move: Move) -> Coroutine[Any, Any, Opened]:
        """The first answer that is final of the attempts that a call makes beside one that has stalled."""
        return self.open(call, self._next_step(call, move.left, move), failed=move.left, move=move)

    async def broken_off(self, call: Call, attempt: Attempt, failure: UpstreamFailed) -> Opened:
        """The first answer that is final of a call whose stream has broken off before anything of it was given."""
        attempt.ended_at = self._clock.monotonic()
        attempt.status, attempt.error_class, attempt.phase = None, failure.error_class, failure.phase
        self._learn_failure(call, attempt, failure)
        drop_frames(failure)
        return await self.open(call, self._next_step(call, attempt), failure, attempt)

    async def open(
        self,
        call: Call,
        step: Step | None = None,
        last: ErrorAnswer | UpstreamFailed | None = None,
        failed: Attempt | None = None,
        move: Move | None = None,
    ) -> Opened:
        """The first answer that is final: a success, or an error that nothing helps against. `step` is the first one.

        `failed` is the attempt before that, `last` how it has failed, where the client may get that. With `move` the attempts
        run beside one of the call's that has stalled. Raises GatewayError when there is no answer that the client could read.
        """
        admission = self._admission
        detours = 0
        while True:
            if isinstance(step, GiveUp) or detours > MOST_DETOURS:
                return self._give_up(call, last, step if isinstance(step, GiveUp) else GiveUp("no_target"))
            decided_at = 0.0 if step is None else self._clock.monotonic()
            try:
                entered = admission.admit(call) if step is None else self._enter(call, step, failed, move)
                attempt = entered if isinstance(entered, Attempt) else await entered
            except CircuitOpen:
                if last is None:
                    # There is no earlier failure that would tell the client more.
                    raise
                attempt = None  # what the attempt before has ended with tells the client more: decide by that
            except GatewayError as refusal:
                _add_words(refusal, last)
                raise
            if attempt is None:  # what was decided is out of date; to have waited for a turn is no detour
                detours = detours + 1 if self._clock.monotonic() - decided_at < SOON_S else 0
                step = self._next_step(call, failed, move)
                continue
            if move is not None:
                attempt.beside = move.stalled
            hedging = call.route.model.retries.hedging
            late_after_s = None if hedging is None else self._hedges.late_after_s(call, attempt, hedging)
            trials = (
                None if step is None else admission.gates.line(attempt.target, call).gate.health.responsiveness.trials
            )
            # It has failed before: where enough such calls wait, no further one follows (`doubt`).
            if trials is not None:
                trials[id(call)] = self._clock.monotonic()
            try:
                if late_after_s is None:
                    opened = await dispatch(call, attempt, self._clock, self._watch)
                else:
                    racer = await self._hedges.race(call, attempt, late_after_s)
                    attempt = racer.attempt
                    opened = racer.task.result()
            except UpstreamFailed as failure:
                self._learn_failure(call, attempt, failure)
                drop_frames(failure)
                # That a target's language lacks words must not hide what another target answered.
                if not isinstance(failure, NotExpressible):
                    last, failed = failure, attempt
                elif late_after_s is not None:
                    failed = deciding_attempt(call)  # a second one beside it may have failed
            except BaseException:  # cancelled, or a defect: the attempt elsewhere must not outlive the call
                if attempt.is_stalled:
                    await self._moves.abandon(call, attempt)
                raise
            else:
                if isinstance(opened, Whole) and move is None and not attempt.is_stalled and call.reads is None:
                    # The gate hears of both in one visit: answered, and settled at once.
                    if attempt.reservation is not None:
                        attempt.reservation.headers = opened.headers
                    return opened
                if not isinstance(opened, ErrorAnswer):
                    if attempt.is_stalled:
                        self._moves.cancel(call, attempt)
                    admission.outcomes.answered(call, attempt, opened.headers)
                    return opened
                self._learn_error(call, opened)
                failed = attempt
                # That a target is ruled out is no news where another one, which may still serve, had something to say.
                if last is None or not self._is_ruled_out_alone(call, opened, move):
                    last = opened
                ledger = _ledger(call, attempt, move)
                if attempt.is_stalled and is_final(ledger, admission.planner.plan(call), call.route.model.retries):
                    self._moves.cancel(call, attempt)  # whoever answers first has the say, here as there
            finally:
                if trials is not None:
                    trials.pop(id(call), None)
            if attempt.is_stalled:
                # First this: the next step depends on what has become of the attempts beside it.
                moved = await self._moves.outcome(call, attempt)
                if moved is not None:
                    return moved
                failed = deciding_attempt(call)
            step = self._next_step(call, failed, move)

    async def _enter(
        self, call: Call, step: Try | TryLater, failed: Attempt | None, move: Move | None
    ) -> Attempt | None:
        """The attempt that the call may make, once it may; None: decide again.

        Raises GatewayError when it may go nowhere in time.
        """
        admission = self._admission
        if isinstance(step, TryLater):
            if move is None:  # else it waits for the attempt that has stalled as well
                call.own_setbacks().backoff_s += max(0.0, step.until - self._clock.monotonic())
            await self._clock.sleep(step.until - self._clock.monotonic())
            assert failed is not None  # noqa: S101  # only a call that has failed waits before it is sent
            plan = admission.planner.plan_now(call, failed)
            usable = [*plan.own, *plan.others, *plan.context]
            if not any(target in usable for target in step.targets):
                return None  # they have been left alone meanwhile, and others are in service; or there are none
            first = step.targets[0]
            # Other calls may have spent the budget during the wait.
            if admission.retries.of(call).denies(first, failed) is not None:
                return None
            retry = admission.retries.book(call, failed, first)
            # Should it have to wait there, it goes where it has not been.
            met = {attempt.target.name for attempt in call.attempts}
            is_too_long = any(attempt.error_class == ErrorClass.CONTEXT_LENGTH_EXCEEDED for attempt in call.attempts)
            fresh = [] if is_too_long else [one for one in (*plan.own, *plan.others) if one.name not in met]
            targets = sorted([*step.targets, *fresh], key=lambda one: one not in plan.own)
            return await admission.enter(call, targets, failed, retry)
        return await admission.enter(call, step.targets, failed)

    def _learn(self, call: Call, attempt: Attempt, failed: ErrorAnswer | UpstreamFailed) -> None:
        """An attempt has failed while another goes on."""
        if isinstance(failed, UpstreamFailed):
            self._learn_failure(call, attempt, failed)
        else:
            self._learn_error(call, failed)

    def _learn_failure(self, call: Call, attempt: Attempt, failure: UpstreamFailed) -> None:
        """There was no usable answer."""
        if isinstance(failure, NotExpressible):  # it does not stand in the ledger
            self._admission.outcomes.not_expressible(attempt, failure.phase)
            call.own_setbacks().not_expressible = {
                **(call.not_expressible or {}),
                attempt.target.name: failure.refusal(),
            }
            return
        attempt.detail = failure.detail
        attempt.is_trial = _is_trial(call, attempt, failure.error_class)
        self._admission.outcomes.failed(
            *(call, attempt, failure.error_class, failure.phase), fault=failure.fault, is_ours=failure.is_ours
        )
        self._judge(call, attempt)
        attempt.never_again = attempt.never_again or failure.is_lasting
        if failure.phase is not Phase.NOTHING_SENT:  # somebody may have worked on it, and may want to be paid
            used = self._admission.costs.usage_by(call, attempt, self._clock.monotonic())
            attempt.cost_usd = cost_usd(call, attempt.target, used)

    def _learn_error(self, call: Call, opened: ErrorAnswer) -> None:
        """The target answered with an error."""
        attempt, diagnosis, target = opened.attempt, opened.diagnosis, opened.attempt.target
        attempt.should_retry = should_retry_of(opened.headers)
        attempt.is_callers = not target.account and target.name not in call.route.model.without_caller_credential
        if diagnosis.error_class in LIMITS_RATE:
            refusal = self._admission.outcomes.refused(call, attempt, diagnosis, opened.headers)
            is_waited_for = rule_for(attempt, call.route.model.retries).action is Action.HOLD
            attempt.is_refused = is_waited_for and refusal is Refusal.WAIT
            attempt.never_again = not attempt.is_refused
            return
        attempt.is_trial = _is_trial(call, attempt, diagnosis.error_class)
        self._admission.outcomes.answered(call, attempt, opened.headers, is_error=True)
        self._admission.outcomes.failed(call, attempt, diagnosis.error_class, Phase.ANSWERED, diagnosis)
        self._judge(call, attempt)

    def _is_ruled_out_alone(self, call: Call, opened: ErrorAnswer, move: Move | None) -> bool:
        """The error says nothing of what other targets do with the call."""
        if opened.error_class is ErrorClass.MODEL_NOT_FOUND:
            return True
        return concerns_target_alone(_ledger(call, opened.attempt, move), self._admission.planner.plan(call))

    def _judge(self, call: Call, attempt: Attempt) -> None:
        attempt.never_again = rule_for(attempt, call.route.model.retries).action not in (Action.RETRY, Action.HOLD)

    def _next_step(self, call: Call, failed: Attempt | None, move: Move | None = None) -> Step:
        """What follows this failure; None: the call has made no attempt yet."""
        if call.request.endpoint.request == "any":
            return GiveUp("final")  # of another kind: whether it may be sent twice is not known
        now = self._clock.monotonic()
        if failed is None:
            return Try(self._admission.planner.own_targets(call, now))  # what could not be said to one was not tried
        step = self._step(call, failed, move, now)
        if isinstance(step, GiveUp) and step.reason == "attempts" and self._is_held(call, failed, now):
            # A trial does not count against the call's attempts, so the same decision now finds room.
            failed.is_trial = True
            step = self._step(call, failed, move, now)
        if isinstance(step, GiveUp) and step.reason in DENIALS:
            if move is None:
                call.own_setbacks().deny(step.reason)
            else:
                move.denied = step.reason
            self._meter.retry_denied(step.reason)
        return step

    def _step(self, call: Call, failed: Attempt, move: Move | None, now: float) -> Step:
        admission = self._admission
        plan = admission.planner.plan_now(call, failed)
        step = next_step(
            _ledger(call, failed, move),
            plan,
            call.route.model.retries,
            admission.retries.of(call),
            call.request.deadline,
            now,
            self._draw(),
            is_hard=call.request.deadline_is_callers,
            is_repeated=call.slots is not None and earlier_tries_of(call) > 0,
        )
        self._note_left_out(call, plan, step)
        return step

    def _note_left_out(self, call: Call, plan: Plan, step: Step) -> None:
        """Notes the targets that the call would have tried next, had they been in service."""
        candidates = (*plan.own, *plan.others)
        has_left_out = len(candidates) < len(call.route.model.plan)
        is_too_long = any(attempt.error_class == ErrorClass.CONTEXT_LENGTH_EXCEEDED for attempt in call.attempts)
        if not has_left_out or is_too_long or (isinstance(step, GiveUp) and step.reason not in _WANTS_TARGET):
            return
        met = {attempt.target.name for attempt in call.attempts}
        chosen = () if isinstance(step, GiveUp) else [one for one in step.targets if one.name not in met]
        self._admission.planner.note_left_out(call, candidates, chosen[0] if chosen else None)

    def _is_held(self, call: Call, failed: Attempt, now: float) -> bool:
        """Whether the call goes on beyond its attempts at the only target left: they cost nothing, and nobody was served."""
        retries, target = call.route.model.retries, failed.target
        is_unsent = failed.error_class == ErrorClass.CONNECTION and failed.phase is Phase.NOTHING_SENT
        if now >= call.request.deadline or not (is_unsent or failed.error_class == ErrorClass.OVERLOADED):
            return False
        rule = rule_for(failed, retries)
        if rule.action is not Action.RETRY or rule.attempts <= 1 or retries.attempts <= 1 or earlier_tries_of(call):
            return False  # whoever forbids a second try forbids it here, too
        out = {attempt.target.name for attempt in call.attempts if attempt.never_again or attempt.is_stalled}
        if _has_other_answer(call) or any(
            one.name not in out and one.name != target.name for one in call.route.model.plan
        ):
            return False
        health = self._admission.gates.line(target, call).gate.health
        if is_unsent and not health.responsiveness.answers:
            return False  # it has never answered: more likely a wrong address than an outage, and its user is told soon
        return not _was_served_since(call, failed, health.responsiveness.answers) and health.breaker.begin_pacing(now)

    def _give_up(self, call: Call, last: ErrorAnswer | UpstreamFailed | None, step: GiveUp) -> ErrorAnswer:
        """The last provider's own error if clients can read it, else one of ours; on pass-through its word in any shape."""
        if isinstance(last, ErrorAnswer) and last.error_class is ErrorClass.AUTH and not last.attempt.is_callers:
            return _credential_refused(call, last)
        if isinstance(last, ErrorAnswer) and call.request.endpoint.request == "any":
            return last
        if isinstance(last, ErrorAnswer):
            if last.error_class is ErrorClass.NOT_FOUND:
                last = replace(
                    last, body=unknown_path(last.attempt.target.provider, last.status, last.body) or last.body
                )
            is_readable = is_openai_shaped(last.body) or (last.body.strip() != b"" and _is_final_word(last, step))
            readable = _in_callers_shape(call, last, is_readable=is_readable)
            if readable is not None:
                return readable
        if last is None and call.not_expressible is not None:
            raise NoTargetAvailable(
                f"No target could serve this call; tried: {_tried(call)}.{call.route.model.skipped}"
            )
        if last is None or (call.request.deadline_is_callers and self._clock.monotonic() >= call.request.deadline):
            raise DeadlineExceeded(f"The deadline passed before an answer began; tried: {_tried(call)}.")
        error_class = last.error_class
        detail = _in_public(last) if isinstance(last, UpstreamFailed) else f"status {last.status}"
        kind = TargetsTimedOut if error_class is ErrorClass.TIMEOUT else NoTargetAvailable
        why = _WHY.get(step.reason, "")
        error = kind(
            f"No target could serve this call; tried: {_tried(call)}. The last one: {error_class} ({detail}).{why}"
            f"{call.route.model.skipped}"
        )
        if call.request.endpoint.request == "any":
            error.should_retry = None  # nothing was tried again here: that is for the client to decide
        # The provider's word against another try holds for SDKs, too.
        elif isinstance(last, ErrorAnswer) and should_retry_of(last.headers) is False:
            error.should_retry = False
        elif error_class in PASSING and step.reason not in DENIALS:
            back_in_s = self._admission.back_in_s(call)
            error.should_retry, error.retry_after_s = back_in_s <= MAX_RETRY_AFTER_S, back_in_s
        raise error


def _ledger(call: Call, attempt: Attempt, move: Move | None) -> Sequence[Attempt]:
    """The attempts by which it is decided what follows this one, which is the last of them.

    For those of a move the attempt that has stalled has failed; for that one these do not count yet.
    """
    if move is not None:
        return [move.left if one is move.stalled else one for one in call.attempts]
    return attempts_apart(call.attempts, attempt) if attempt.is_stalled else call.attempts


def _is_trial(call: Call, attempt: Attempt, error_class: ErrorClass) -> bool:
    """Whether the attempt only showed that its target is in trouble: it does not count against the call's attempts.

    A 500 or 409 may come of the call's own content, so a call with nobody beside it does not go on for ever; nor does a call
    that fails while others are served.
    """
    reservation = attempt.reservation
    if reservation is None:
        return False
    gate = reservation.gate
    answers = gate.health.responsiveness.answers
    # Calls in flight were sent before this failure: their answers say nothing of what came after it.
    attempt.served_by_then = answers + gate.in_flight
    if not reservation.is_trial or error_class not in PASSING:
        return False
    rule = call.route.model.retries.by_class.get(error_class)
    if call.route.model.retries.attempts <= 1 or rule is None or rule.attempts <= 1:
        return False  # whoever forbids a second try forbids it here, too
    # A 500 or 409 may come of the call's own content; these two hardly do.
    most = inf if error_class in (ErrorClass.CONNECTION, ErrorClass.OVERLOADED) else MOST_TRIALS
    is_never_reached = (
        error_class == ErrorClass.CONNECTION and not answers
    )  # more likely a wrong address than an outage
    if is_never_reached or _was_served_since(call, attempt, answers):
        most = FEW_TRIALS
    return sum([one.is_trial for one in call.attempts]) < most


def _has_other_answer(call: Call) -> bool:
    """Whether the client can be given something though nobody serves the call: a stale answer, or one against its schema."""
    if FALLBACK_ANSWER.find(call):
        return True
    return any(one.phase is Phase.ANSWERED and (one.status or 0) < 400 for one in call.attempts)


def _was_served_since(call: Call, last: Attempt, answers: int) -> bool:
    """Whether the target of this attempt, with so many answers by now, served calls that were sent after it failed this one."""
    return any(one.target.name == last.target.name and 0 < one.served_by_then < answers for one in call.attempts)


_WHY = {
    "money": " Not tried again: the call may not cost more (max_usd_per_call).",
    "key_budget": " Not tried again: the key's budget is spent.",
    "doubt": " Not tried again: others that tried what is left had no answer there.",
}


_OF_THE_REFUSAL = frozenset(
    (b"content-type", b"content-encoding", b"retry-after", b"retry-after-ms", b"x-should-retry")
)
"""Headers of a refused credential's answer that do not hold for what the client gets."""


def _credential_refused(call: Call, last: ErrorAnswer) -> ErrorAnswer:
    """Returns what the client gets for a 401 that means the gateway's own credential; the provider's words go to the log."""
    attempt, message = last.attempt, (error_object(last.body) or {}).get("message")
    if attempt.detail is None and isinstance(message, str):
        attempt.detail = message[:MOST_WORDS]
    error = ProviderCredentialRefused(attempt.target.provider)
    headers = [header for header in last.headers if header[0] not in _OF_THE_REFUSAL]
    # A retry would bring the same refused credential.
    kept = [*headers, (b"content-type", JSON_TYPE), (b"x-should-retry", b"false")]
    return replace(
        last, status=error.status, headers=kept, body=error_body(error, call.request.endpoint, call.request.id)
    )


def _in_callers_shape(call: Call, last: ErrorAnswer, *, is_readable: bool) -> ErrorAnswer | None:
    """The provider's own error, put so that this call's client can read it; None: it is a 5xx of which nothing can be read.

    `is_readable`: clients of OpenAI's can read it, as it is.
    """
    is_converted = call.request.path in last.attempt.target.converters_by_path
    request_id = (last.attempt.upstream_request_id or b"").decode("latin-1") or call.request.id
    error = ProviderError(last.status, last.body, last.headers, last.error_class, is_converted, is_readable, request_id)
    body = call.request.endpoint.shape.provider_error(error)
    if body is None:
        return None
    if body is last.body:
        return last
    headers = [header for header in last.headers if header[0] != b"content-type"]
    status = client_status(last.status, last.error_class)
    return replace(last, status=status, headers=[*headers, (b"content-type", JSON_TYPE)], body=body)


def _is_final_word(last: ErrorAnswer, step: GiveUp) -> bool:
    """What is wrong with the request is the provider's to say, in whatever shape."""
    return last.status < 500 and (step.reason == "final" or last.error_class in _OPERATORS)


def _in_public(failure: UpstreamFailed) -> str:
    """Returns what clients read of it: paths of addresses, and files, are the operator's."""
    if failure.public is not None:
        return failure.public
    if failure.error_class is not ErrorClass.CONNECTION:
        return failure.detail
    return "it cannot be reached" if failure.phase is Phase.NOTHING_SENT else "the connection broke"


def _add_words(refusal: GatewayError, last: ErrorAnswer | UpstreamFailed | None) -> None:
    """To a refusal of ours, what the provider has said that the call was waiting for."""
    message = (error_object(last.body) or {}).get("message") if isinstance(last, ErrorAnswer) else None
    if isinstance(message, str) and message and isinstance(last, ErrorAnswer):
        refusal.message += f" {last.attempt.target.name} had answered with status {last.status}: {message[:MOST_WORDS]}"


def _tried(call: Call) -> str:
    return shown(call.attempts, ", ", call.skips) or "nothing"
