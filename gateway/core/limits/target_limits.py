"""The gate of one target: everything that decides when a call may go there, and what is known of it.

    enter -> Reservation.finish                                           the usual case: a whole answer, one visit each way
    admit -> take, or reserve (both in one) -> Reservation.answered | refused -> Reservation.settle      (or cancel)

A gate holds the limits, the pauses that a provider asked for, the search for a rate that nobody tells, a cap that follows
latency and the target's health; it is paused, resumed and looked at here. `limits/reservation.py` lets calls in and says
what their ends teach. The pauses come first, then the gate. It must not know calls, lanes' order or queues. Invariant:
during a pause nothing is granted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from math import inf, sqrt
from typing import NamedTuple, Protocol

from gateway.core.health.detector import BreakerRules
from gateway.core.health.target_health import Account, TargetHealth
from gateway.core.health.times import Calibration, Latency
from gateway.core.limits import limit_table
from gateway.core.limits.bucket import NOTHING, TOKEN_PARTS, Cost, charge
from gateway.core.limits.headers import READING_OF, Learned, Reading
from gateway.core.limits.idle_gates import IdleGateState
from gateway.core.limits.learning import AdaptiveCap, RateDiscovery
from gateway.core.limits.limit_table import LimitRow, Limits, LimitSet, ShareOut
from gateway.core.snapshot import Counting
from gateway.core.types import Lane

# --- pauses: until when a target is left alone after refusals, and how calls come back to it ---


FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.05, 8.0
"""The pause after a refusal that asks for none: twice as long with each epoch that was refused."""
LONGEST_DOUBT_S = 1.0
"""The most back-off that is added where a provider asks for shorter pauses again and again: it is not taken at its word."""
REFUSED_WITHIN_S = 1.0
"""A refusal comes fast: a probe that has not been refused after so long was let in, however long its answer takes."""
RESUME_S = 1.0
"""Seconds for which the resume cap lasts."""
LONGEST_TRUSTED_S = 2.0
"""Seconds for which all keep a pause before anybody looks, where the last one that a refusal asked for was true."""
MOST_CHECKS = 2
"""Calls unlike those refused that are refused as well, and then a pause holds for everybody."""
_AT_ONCE_S = 0.2
MOST_DOUBLINGS = 10
_MOST_CALLS = 1000


class ResumeCap:
    """The second behind a pause: at most 1.2 times the target's rate, whatever its level has come to meanwhile.

    `rate_per_s` flows in, behind a fifth of a second's worth that is there at once. A call goes while anything is left and
    takes what it costs, debt included: a large one need not wait until so much has flowed in, the next one waits instead.
    """

    __slots__ = ("_at", "_ends_at", "_level", "_rate_per_s", "counts_requests")

    def __init__(self, rate_per_s: float, now: float, *, counts_requests: bool) -> None:
        self.counts_requests = counts_requests
        """It counts requests rather than tokens."""
        self._rate_per_s = rate_per_s
        self._level = rate_per_s * _AT_ONCE_S - 1e-9
        self._at = now
        self._ends_at = now + RESUME_S

    def wait_s(self, now: float) -> float:
        """Returns the seconds until the next call may go, whatever it costs; 0.0 now."""
        if self.is_over(now):
            return 0.0
        level = self._level + (now - self._at) * self._rate_per_s
        return 0.0 if level > 0 else min(-level / self._rate_per_s, self._ends_at - now) + 1e-6

    def take(self, cost: float, now: float) -> None:
        self._level += (now - self._at) * self._rate_per_s - cost
        self._at = now

    def is_over(self, now: float) -> bool:
        """Returns whether the target is back to its limits alone."""
        return now >= self._ends_at


class CallTraits(NamedTuple):
    """What may set a call apart that is refused: its number, its tenant and its input tokens as estimated."""

    call: int
    tenant: str
    tokens: float


class RefusedCalls:
    """Calls of one target that were refused, and what they have in common.

    One call stands for itself alone. Several stand for all calls of their tenants that are at least half as large as the
    smallest of them.
    """

    __slots__ = ("calls", "is_kind", "smallest", "tenants")

    def __init__(self) -> None:
        self.calls: set[int] = set()
        self.tenants: set[str] = set()
        self.smallest = inf
        self.is_kind = True
        """No call like them is known to have been let in."""

    def add(self, one: CallTraits) -> None:
        """Adds a call that was refused."""
        self.calls.add(one.call)
        self.tenants.add(one.tenant)
        self.smallest = min(self.smallest, one.tokens)

    def merge(self, other: RefusedCalls) -> None:
        """Adds the calls of another set; the oldest knowledge goes when there is too much of it."""
        if len(self.calls) >= _MOST_CALLS:
            self.calls.clear()
        self.calls |= other.calls
        self.tenants |= other.tenants
        self.smallest = min(self.smallest, other.smallest)

    def matches(self, one: CallTraits) -> bool:
        """Returns whether the call is one of them, or of their kind."""
        if one.call in self.calls:
            return True
        return self.is_kind and len(self.calls) > 1 and one.tenant in self.tenants and 2 * one.tokens >= self.smallest


class Refusals:
    """Separates refusals of the target from those that only some calls get, by who is let in after them.

    `suspects` were refused, and nobody has been let in since. When a call that does not match them is let in, they are
    `apart`: from then on their refusals say nothing about other calls.
    """

    __slots__ = ("apart", "checks", "suspects")

    def __init__(self) -> None:
        self.suspects: RefusedCalls | None = None
        self.apart: RefusedCalls | None = None
        self.checks = 0
        """Calls unlike the suspects that were refused as well."""

    def is_apart(self, one: CallTraits) -> bool:
        """Returns whether a refusal of this call is no evidence about others."""
        return self.apart is not None and self.apart.matches(one)

    def is_lone(self, one: CallTraits) -> bool:
        """Returns whether no other call is known to be refused."""
        return self.is_apart(one) or (self.suspects is not None and self.suspects.calls == {one.call})

    def may_learn(self, call: int, tenant: str) -> bool:
        """Returns whether it could matter that this call is let in, whatever its tokens, for which it has to be read."""
        apart = self.apart
        if self.suspects is not None or apart is None:
            return True
        return call in apart.calls or (apart.is_kind and len(apart.calls) > 1 and tenant in apart.tenants)

    def has_refused(self, one: CallTraits) -> bool:
        """Returns whether this very call was refused, and nobody has been let in since."""
        return self.suspects is not None and one.call in self.suspects.calls

    def suspect(self, one: CallTraits, *, is_after: bool) -> bool:
        """Notes a refusal; returns whether the call is the first, or one more than those refused before.

        `is_after` as of `let_in`: a call that was sent before could not look.
        """
        if self.suspects is None:
            self.suspects, self.checks = RefusedCalls(), 0
        elif is_after and not self.suspects.matches(one):
            self.checks += 1
        is_new = one.call not in self.suspects.calls
        self.suspects.add(one)
        return is_new

    def let_in(self, one: CallTraits, *, is_after: bool) -> bool:
        """Notes that the target has let the call in; returns whether that sets the suspects apart.

        `is_after` says that the call was sent after the first of them was refused.
        """
        apart = self.apart
        if apart is not None and apart.matches(one):
            apart.calls.discard(one.call)
            apart.is_kind = False
            if not apart.calls:
                self.apart = None
        suspects = self.suspects
        if suspects is None or not is_after:
            return False
        self.suspects = None
        # One of their own kind is let in: nothing sets them apart from others.
        if suspects.matches(one):
            return False
        self.set_apart(suspects)
        return True

    def set_apart(self, suspects: RefusedCalls) -> None:
        """Notes that others are let in."""
        self.suspects = None
        if self.apart is None:
            self.apart = suspects
        else:
            self.apart.merge(suspects)


class Pauses:
    """The pauses of one target. All times are monotonic seconds; of several hints the latest wins.

        refused -> pause -> (it is over, and a call comes) -> the resume cap for a second -> normal
        refused in several epochs, served in none between -> one call at a time, until one is not refused

    An epoch ends with a refusal: the calls of one epoch were sent before they could learn of it, so that all their refusals
    count as one. Invariants: a pause never moves back; nothing goes while one lasts.
    """

    __slots__ = (
        "check_at",
        "count",
        "epoch",
        "is_resume_due",
        "is_trusted",
        "probed_at",
        "quota_until",
        "refusals",
        "refusals_in_a_row",
        "requested_until",
        "resume_cap",
        "sent_in_epoch",
        "until",
    )

    def __init__(self) -> None:
        self.until = -inf
        """When the pause ends that a refusal has asked for, or a back-off; in the past: there is none."""
        self.quota_until = -inf
        """When an account whose quota is spent is tried again."""
        self.count = 0
        """How often it was paused, for the metrics."""
        self.epoch = 0
        """Counts the refusals that ended an epoch."""
        self.sent_in_epoch = 0
        """Calls of this epoch that have not ended."""
        self.refusals_in_a_row = 0
        """Epochs that were refused, with no call served between."""
        self.probed_at = -inf
        """When a call was sent last."""
        self.is_resume_due = False
        """A pause has begun, and no call has come since it ended."""
        self.resume_cap: ResumeCap | None = None
        """Lets calls through in the second behind a pause; None: that is over."""
        self.refusals: Refusals | None = None
        """Who was refused of late; None: nobody of whom it is not known that it was the target's rate."""
        self.requested_until = -inf
        """The end of the pause that a refusal has asked for."""
        self.check_at = -inf
        """When a call unlike those refused may find out whether that pause concerns it."""
        self.is_trusted = False
        """The last pause that a refusal asked for concerned others, too."""

    @property
    def ends_at(self) -> float:
        """When the target may be used again; in the past: it may."""
        return max(self.until, self.quota_until)

    def pause_until(self, until: float, now: float) -> None:
        """Leaves the target alone until then; an end that is no finite number, or before the present one, moves nothing."""
        # A pause that only gets longer is the same pause.
        if self.until <= now < until:
            self.count += 1
        if self.until < until < inf:
            self.until = until
        self.is_resume_due = True

    def spend_until(self, until: float) -> None:
        """Leaves the target alone until then because its account is spent; then one call goes first."""
        self.quota_until = until
        self._begin_epoch()
        # From two in a row on the gate probes: one call goes, the others wait for its answer.
        self.refusals_in_a_row = max(self.refusals_in_a_row, 2)

    def end(self) -> None:
        """Ends whatever it was left alone for, by hand."""
        self.until = self.quota_until = -inf
        self.refusals_in_a_row = 0
        self.refusals = None

    def refused(self, epoch: int, *, is_again: bool = False) -> bool:
        """Notes a refusal of a call of this epoch; returns whether it is the first, which ends the epoch.

        `is_again` says that the same call was refused before, and no other since: that makes no row.
        """
        if epoch != self.epoch:
            return False
        self._begin_epoch()
        self.refusals_in_a_row += not is_again or not self.refusals_in_a_row
        return True

    def suspect(self, one: CallTraits, epoch: int) -> bool:
        """Notes which call of this epoch was refused; returns whether it was refused before, since one was let in."""
        if self.refusals is None:
            self.refusals = Refusals()
        is_again = not self.refusals.suspect(one, is_after=epoch == self.epoch)
        if self.refusals.checks:
            self.is_trusted = True
        return is_again

    def let_in(self, one: CallTraits, epoch: int, now: float) -> bool:
        """Notes that a call of this epoch was let in: a pause that was asked for of others does not concern it.

        Returns whether that sets several calls apart that were refused before.
        """
        refusals = self.refusals
        if refusals is None:
            return False
        are_several = refusals.suspects is not None and len(refusals.suspects.calls) > 1
        is_acquitted = refusals.let_in(one, is_after=epoch == self.epoch)
        if is_acquitted:
            self._acquit(now)
        if refusals.suspects is None and refusals.apart is None:
            self.refusals = None
        return is_acquitted and are_several

    def is_in_doubt(self, epoch: int, now: float) -> bool:
        """Returns whether a call of this epoch has looked whether the present pause concerns it."""
        is_doubted = self.refusals is not None and self.refusals.suspects is not None
        return is_doubted and epoch == self.epoch and self.until > now

    def stands_back(self, one: CallTraits, now: float, yields_until: float = -inf) -> bool:
        """Returns whether others go before this call, and find out how the target is: it was refused, or is like those.

        A call that is apart takes nobody's turn before `yields_until`; one of a kind that is, for LONGEST_BACKOFF_S more.
        """
        refusals = self.refusals
        if refusals is None:
            return False
        apart = refusals.apart
        if apart is not None and one.call in apart.calls:
            is_of_kind = apart.is_kind and len(apart.calls) > 1
            if now < yields_until + (LONGEST_BACKOFF_S if is_of_kind else 0.0):
                return True
        return refusals.suspects is not None and refusals.suspects.matches(one)

    def wait_s(self, one: CallTraits | None, now: float) -> float:
        """Returns the seconds for which the pauses hold the call up; 0.0: not. None: a call that is like all others."""
        ends_at = self.ends_at
        if ends_at <= now:
            return 0.0
        if one is not None and self._may_check(one):
            return max(0.0, self.check_at - now)
        return ends_at - now

    def ask_until(self, until: float, now: float) -> None:
        """Notes the end of a pause that a refusal has asked for; a call unlike those refused may look whether that is true."""
        self.requested_until = max(until, self.requested_until)
        self.check_at = min(until, now + (LONGEST_TRUSTED_S if self.is_trusted else FIRST_BACKOFF_S))

    def _may_check(self, one: CallTraits) -> bool:
        refusals = self.refusals
        if refusals is None or refusals.suspects is None or self.ends_at != self.requested_until:
            return False
        return refusals.checks < MOST_CHECKS and not refusals.suspects.matches(one)

    def _acquit(self, now: float) -> None:
        """Others than those refused are let in."""
        self.is_trusted = False
        if self.until == self.requested_until:
            self.until = min(self.until, now)

    @property
    def backoff_s(self) -> float:
        """How long to leave the target alone after a refusal that asks for no pause."""
        doublings = min(self.refusals_in_a_row - 1, MOST_DOUBLINGS)
        return min(FIRST_BACKOFF_S * 2.0**doublings, LONGEST_BACKOFF_S)

    def believed_s(self, delay_s: float) -> float:
        """Returns how long to leave the target alone after a refusal that asks for `delay_s`."""
        return delay_s if self.refusals_in_a_row < 2 else max(delay_s, min(self.backoff_s, LONGEST_DOUBT_S))

    def probe_wait_s(self, now: float) -> float:
        """Returns the seconds until one more call may find out whether it is still refused; 0.0 now, or nothing is probed."""
        if self.sent_in_epoch and (self.refusals_in_a_row > 1 or self.until > now):
            return max(0.0, self.probed_at + REFUSED_WITHIN_S - now)
        return 0.0

    def end_probing(self, now: float) -> None:
        """Ends the probing if the last probe has not been refused for so long that it was let in."""
        if self.sent_in_epoch and now - self.probed_at >= REFUSED_WITHIN_S:
            self.refusals_in_a_row = min(self.refusals_in_a_row, 1)
            refusals = self.refusals
            if self.until > now and refusals is not None and refusals.suspects is not None:
                refusals.set_apart(refusals.suspects)  # only a call unlike them goes during their pause
                self._acquit(now)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.sent_in_epoch = 0


# --- the gate ---

QUOTA_PROBE_S = 60.0
"""Seconds before which a spent quota is not tried again, whatever resets (of other limits) its headers tell."""
QUOTA_LONGEST_S = 1800.0
"""Seconds after which a spent quota is tried again, however far away its reset is: somebody may have added credit."""
LONGEST_HOLD_S = 3600.0
"""The most seconds that a rate limit asks for: what asks for more is a spent quota."""
ESTIMATE_TOLERANCE = 1.25
"""The factor by which a call's estimate may be above a limit, and the call still fit."""
MARGIN = 3.75
"""The mean errors of estimates that are left over for calls in flight: three standard deviations (1.25 mean errors each)."""
LET_GO_ABOVE = 5.0
"""The multiple of a found rate that has to be accepted before the rate is shown as binding no more."""
RESERVE_FADES_S = 300.0
"""Seconds without a call of a higher lane in which what lower lanes leave over for it shrinks evenly to nothing."""
BURST = "requests_at_once"
"""The name under which replicas send each other how many go at once, where nobody else says."""


class GateState(Enum):
    """What a gate is about, as far as calls are concerned; of several that hold, the first in this table.

    | state     | why                                    | what goes                          | until                        |
    |-----------|----------------------------------------|------------------------------------|------------------------------|
    | SPENT     | the account has no quota left          | nothing                            | its reset, or half an hour   |
    | PAUSED    | a refusal asked for it, or a back-off  | two calls unlike those refused     | the latest of all hints, or  |
    |           |                                        |                                    | one of those two is let in   |
    | RESUMING  | a pause is over                        | at most 1.2 times the rate         | 1 s behind the first call    |
    | PROBING   | refused in several epochs, served in   | one call at a time, 1 s each       | one is not refused           |
    |           | none between                           |                                    |                              |
    | SEARCHING | no stated rate is believed             | what the search for a rate allows  | a stated limit holds         |
    | NORMAL    | none of these                          | what the limits allow              |                              |

    A cap that follows latency, and the breakers, hold calls up besides, in any state.
    """

    SPENT = "spent"
    PAUSED = "paused"
    RESUMING = "resuming"
    PROBING = "probing"
    SEARCHING = "searching"
    NORMAL = "normal"


class GateNews(Protocol):
    """Who carries to other replicas what this one has learned of the gate `name`. Sync, and cheap."""

    def paused(self, name: str, left_s: float, now: float) -> None:
        """Reports that nothing goes there for so long."""
        ...

    def exhausted(self, name: str, left_s: float, now: float) -> None:
        """Reports that its account is spent for so long."""
        ...

    def learned(self, name: str, learned: Learned, now: float) -> None:
        """Reports the limits in an answer's headers."""
        ...

    def burst(self, name: str, burst: float, now: float) -> None:
        """Reports how many requests it takes at once, as refusals have shown."""
        ...


class Gate:
    """One target's limits, levels and pauses; kept over reloads under the target's name."""

    __slots__ = (
        "answer_s",
        "calibration",
        "cap",
        "counting",
        "discovery",
        "fast_path_open",
        "found_per_s",
        "has_streams",
        "has_token_limit",
        "health",
        "in_flight",
        "learns_from",
        "limits",
        "name",
        "news",
        "on_rate",
        "pauses",
        "squares",
        "urgent_at",
        "used_at",
    )

    def __init__(
        self,
        name: str,
        limits: Limits,
        counting: Counting,
        now: float,
        health: TargetHealth | None = None,
        share_out: ShareOut | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        """Without `health` it has breakers of its own, under the built-in rules; with `share_out` replicas share its limits.

        `calibration` is that of the same model at the same target, for another caller.
        """
        self.name = name
        rules = BreakerRules()
        self.health = health or TargetHealth(name, Account(name, rules, now), rules, now, None)
        self.limits = LimitSet(Limits(), now, counting.style, counting.arrival_lag_s, share_out)
        self.calibration = calibration or Calibration(counting.first_output_tokens)
        self.pauses = Pauses()
        self.discovery = RateDiscovery(now)
        self.cap: AdaptiveCap | None = None
        """The cap on calls in flight where the server queues without bound; None: nobody asked for that."""
        self.has_streams = False
        """The times of streams go into the cap; those of answers in one piece, which grow with their length, do not."""
        self.has_token_limit = False
        """Some limit counts tokens: calls have to be estimated."""
        self.answer_s = 0.0
        """Seconds from a grant to the answer, a running mean."""
        self.in_flight = 0
        self.squares = 0.0
        """The sum of the squares of the input tokens of calls in flight, of which `margin` is made."""
        self.used_at = now
        """When a call went there last."""
        self.urgent_at = -inf
        """When a call for which the others leave something over wanted to go there last."""
        self.learns_from = -inf
        """An answer's headers teach nothing new where its call was sent before this."""
        self.fast_path_open = False
        """Limits alone, all of them buckets of our own, say whether a call may go: no pause or what follows one, no search for
        a rate, no cap, no probes. What the breakers say is not in it."""
        self.news: GateNews | None = None
        """The way to other replicas, where there are any."""
        self.found_per_s: float | None = None
        """The rate that refusals have shown to bind, as it was reported last; None: none does."""
        self.on_rate: Callable[[str, float | None], None] | None = None
        """Called with the gate's name, and with the rate per minute that refusals have shown; None: it binds no more."""
        self.configure(limits, counting, now)

    def configure(self, limits: Limits, counting: Counting, now: float) -> None:
        """Puts the operator's numbers in force; levels, pauses and what was learned stay. A spent quota is tried again."""
        self.pauses.quota_until = -inf
        self.counting = counting
        self.calibration.expect(counting.first_output_tokens)
        if counting.charge == "input":  # what it calls tokens per minute counts the input alone
            inputs = limits.input_tokens_per_min
            inputs = limits.tokens_per_min if inputs is None else inputs
            limits = replace(limits, tokens_per_min=None, input_tokens_per_min=inputs)
        self.limits.table.configure(limits, now, counting.style)
        if not counting.adaptive:
            self.cap = None
        elif self.cap is None:
            self.cap = AdaptiveCap()
        self.review_rate(now)

    def review(self, now: float) -> None:
        """Derives whether the short way of `reservation.enter` is open; to be called after whatever may shut it."""
        is_normal = self.state(now) is GateState.NORMAL
        self.fast_path_open = is_normal and self.cap is None and self.limits.table.buckets is not None

    def review_rate(self, now: float) -> None:
        """Begins or ends the search for a rate after what is known has changed: there is one only where none is stated."""
        table = self.limits.table
        self.has_token_limit = table.has("tokens_per_min", "input_tokens_per_min", "output_tokens_per_min")
        is_known = self.has_token_limit or table.has("requests_per_min")
        self.discovery.review(now, learns=self.counting.learns, is_known=is_known)
        self.review(now)

    def state(self, now: float) -> GateState:
        """Returns which row of the table it is in."""
        pauses = self.pauses
        if pauses.quota_until > now:
            return GateState.SPENT
        if pauses.until > now:
            return GateState.PAUSED
        if pauses.is_resume_due or pauses.resume_cap is not None:
            return GateState.RESUMING
        if pauses.refusals_in_a_row > 1:
            return GateState.PROBING
        return GateState.NORMAL if self.discovery.search is None else GateState.SEARCHING

    def is_shut(self, lane: Lane, now: float) -> bool:
        """Returns whether a call of this lane had better not wait: no quota, or an open breaker that it has no time for."""
        if self.pauses.quota_until > now:
            return True
        probe_at = self.health.probe_at(now)
        return probe_at == inf or (probe_at > now and not self.health.breaker.rules.hold_for_s[lane])

    @property
    def is_full(self) -> bool:
        return self.cap is not None and self.in_flight >= self.cap.cap

    @property
    def capacity(self) -> float | None:
        """How many calls it can serve at a time, as far as anybody knows (its rate times its time: Little's law)."""
        table = self.limits.table
        most = self.cap.cap if self.cap is not None else table.concurrency
        rate_per_s = table.refills_per_s(requests=True) if most is None else inf
        return most if rate_per_s == inf else rate_per_s * max(self.answer_s, 0.01)

    @property
    def latency(self) -> Latency:
        """Its times to first byte, as balancing reads them."""
        return self.health.latency

    def cost_of(self, estimate: int, max_tokens: int | None, *, answers: bool = True) -> Cost:
        """Returns what a call of so many input tokens (as estimated, uncorrected) is charged when it is admitted.

        `answers` is False for calls whose answer has no tokens.
        """
        if not estimate:
            return Cost()
        tokens = self.calibration.input_estimate(estimate)
        expected = self.calibration.output_estimate(max_tokens) if answers else 0
        return self.limits.shrink(self.charge(tokens, max_tokens if answers else None, expected), ESTIMATE_TOLERANCE)

    def charge(self, tokens: int, max_tokens: int | None, output: int, cached: int = 0) -> Cost:
        """Returns what the provider charges for so many input and output tokens, of which `cached` were read from its cache."""
        counting = self.counting
        cost = charge(
            counting.charge, tokens, max_tokens, output, cached=cached, excludes_cached=counting.excludes_cached
        )
        return cost._replace(output_tokens=output) if counting.charge == "input" else cost

    def margin(self, cost: Cost) -> float:
        """Returns the input tokens to leave over because the estimates of all those in flight may be too low together.

        Estimates err independently, so it grows with the root of the sum of their squares.
        """
        error = self.calibration.error
        return MARGIN * error * sqrt(self.squares + cost.input_tokens * cost.input_tokens) if error else 0.0

    def reserve_percent(self, keep_percent: float, now: float) -> float:
        """Returns how much of each limit a call has to leave over that leaves `keep_percent` to higher lanes in use."""
        return keep_percent * max(0.0, 1.0 - (now - self.urgent_at) / RESERVE_FADES_S)

    def token_room(self, now: float, keep_percent: float) -> float:
        """Returns the tokens that are there by the scarcest limit, with so many percent of each left over."""
        keep_percent = self.reserve_percent(keep_percent, now)
        levels = [
            one.limit.level_at(now) - one.keep(keep_percent, 0.0, 0.0)
            for one in self.limits.table.known
            if one.part in TOKEN_PARTS
        ]
        return min(levels, default=inf) - self.margin(NOTHING)

    def learn(self, learned: Learned | None, sent_at: float, mark: tuple[float, ...] | None, now: float) -> None:
        """Takes over the limits in the headers of an answer to a call sent at `sent_at`; None: there are none."""
        if learned is not None:
            limit_table.learn(self.limits, learned, now, sent_at, mark, self.in_flight)
            self.review_rate(now)
            if self.news is not None:
                self.news.learned(self.name, learned, now)

    def trust_rate(self, now: float) -> None:
        """Believes the stated rate again: those that were refused were so for a reason of their own."""
        if self.discovery.trust():
            self.review_rate(now)
            self.review_found()

    def review_found(self) -> None:
        """Reports a rate that refusals have shown since the last look, or that binds no more."""
        search, found = self.discovery.search, self.found_per_s
        if found is None and search is not None:
            self.found_per_s = search.shown_per_s
        elif found is not None and (search is None or search.rate_per_s > LET_GO_ABOVE * found):
            self.found_per_s = None
        if found != self.found_per_s and self.on_rate is not None:
            self.on_rate(self.name, None if self.found_per_s is None else self.found_per_s * 60)

    def pause(self, delay_s: float, now: float, *, is_sure: bool = True) -> None:
        """Leaves the target alone for so long; has other replicas do the same if it `is_sure` to concern their calls."""
        self.pauses.pause_until(now + delay_s, now)
        self.review(now)
        if is_sure and self.news is not None and 0.0 < delay_s < inf:
            self.news.paused(self.name, delay_s, now)

    def leave_alone(self, delay_s: float, now: float) -> None:
        """Pauses for so long, or for half an hour, because the provider has asked for it, though not for a rate."""
        self.pause(min(delay_s, QUOTA_LONGEST_S), now)

    def exhaust(self, delay_s: float | None, now: float) -> None:
        """Leaves the target alone because its account is spent, for so long as far as anybody knows."""
        self.pauses.spend_until(now + min(max(delay_s or 0.0, QUOTA_PROBE_S), QUOTA_LONGEST_S))
        self.review(now)
        if self.news is not None:
            self.news.exhausted(self.name, self.pauses.quota_until - now, now)

    def peer_paused(self, left_s: float, now: float) -> None:
        """Leaves the target alone for so long because another replica was asked to."""
        until = now + min(left_s, LONGEST_HOLD_S)
        if until > self.pauses.until:
            self.pauses.pause_until(until, now)
            self.review(now)

    def peer_exhausted(self, left_s: float, now: float) -> None:
        """Leaves the target alone for so long because another replica has found the account spent."""
        until = now + min(left_s, QUOTA_LONGEST_S)
        if until > self.pauses.quota_until:
            self.pauses.spend_until(until)
            self.review(now)

    def peer_learned(self, name: str, amount: float, period_s: float, now: float) -> None:
        """Takes over a limit of so much in so many seconds from another replica; nothing of what is left of it."""
        if name == BURST:
            limit_table.adopt_burst(self.limits, amount, now)
        elif self.counting.learns and name in READING_OF:
            learned = Learned()
            setattr(learned, READING_OF[name], Reading(amount, period_s=period_s))
            limit_table.learn(self.limits, learned, now)
            self.review_rate(now)

    def kept(self, now: float) -> IdleGateState | None:
        """Returns what is to be known of it when it is used again, asked when no call is in flight; None: nothing."""
        pauses, used = self.pauses, limit_table.used(self.limits, now)
        if pauses.ends_at <= now and not used:
            return None
        return IdleGateState(now, pauses.until, pauses.quota_until, pauses.refusals_in_a_row, used)

    def remember(self, kept: IdleGateState, now: float) -> None:
        """Goes on where the gate of this name has left off; a quota that was spent is spent until it resets."""
        limit_table.use_again(self.limits, kept.used, now)
        self.pauses.refusals_in_a_row = kept.refusals
        if kept.paused_until > now:
            self.pauses.pause_until(kept.paused_until, now)
        if kept.exhausted_until > now:
            self.pauses.spend_until(kept.exhausted_until)
        self.review(now)

    def rows(self, now: float) -> list[LimitRow]:
        """Returns every limit, known, found or adaptive, for `/admin/limits` and the gauges."""
        rows, search = self.limits.table.rows(now), self.discovery.search
        if search is not None:
            per_min = search.rate_per_s * 60
            rows.append(LimitRow("found_requests_per_min", per_min, per_min, "learned", search.wait_s(now)))
        if self.cap is not None:
            cap, next_free_s = self.cap.cap, None if self.is_full else 0.0
            rows.append(LimitRow("found_concurrency", cap - self.in_flight, cap, "learned", next_free_s))
        return rows

    def blocking(self, cost: Cost, now: float, keep_percent: float = 0.0) -> str:
        """Returns the name of what holds the call up."""
        if self.pauses.quota_until > now:
            return "quota"
        if self.pauses.until > now:
            return "pause"
        which = self.limits.which(cost, now, self.reserve_percent(keep_percent, now))
        return which or ("concurrency" if self.discovery.search is None else "rate")
