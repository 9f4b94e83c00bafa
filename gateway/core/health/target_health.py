"""Keeps the health of one target, apart from its limits: breakers, times to first byte, retries in flight.

First the health of an account, then that of a target. An account (one credential at a provider) has a breaker of its own,
which opens when its credential is refused, or when every target in use there is open. It must not know calls. Invariant:
each permit is given back exactly once, with or without news.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf
from typing import NamedTuple

from gateway.core.health.breaker import Breaker
from gateway.core.health.detector import BreakerRules, Responsiveness, account_rules
from gateway.core.health.times import Latency
from gateway.core.retry_budgets import RetryBudget, RetryTokens
from gateway.core.types import ErrorClass

OnChange = Callable[[str, str, str], None]
"""A callback for each change of a breaker: its name, its new state, and why."""
CLIENT_GONE = "client_gone"
PANIC_FAILURE_SHARE = 2 / 3
"""The share of failed calls above which even the last target of a call is left alone."""
LATELY_S = 10.0
"""The time constant, in seconds, with which the most calls in flight are forgotten."""
LONG_S = 60.0
"""Seconds without an answer after which a target may be dead."""
FEWEST_TRIALS = 3
"""The calls that have failed elsewhere and may try at the same time whether a target serves, at least."""
AWAITED_PROBE_S = 1.5
"""About the seconds between two probes of a target for which calls wait that have nowhere else to go."""
PROBE_PATIENCE_S = 0.25
"""Seconds up to which the turn of a probe is waited for."""
UNHEALTHY = frozenset(
    (
        ErrorClass.OVERLOADED,
        ErrorClass.SERVER_ERROR,
        ErrorClass.TIMEOUT,
        ErrorClass.CONNECTION,
        ErrorClass.MALFORMED_RESPONSE,
        ErrorClass.STREAM_INTERRUPTED,
        "stream_error",
    )
)
"""The outcomes that speak of a target's health; refusals for a rate, errors of the request and leaving clients do not."""


class Permit(NamedTuple):
    """The permits of the target's and the account's breaker for one call; both have to be given back."""

    own: int
    account: int | None


TRIED_AGAIN = "its credential is tried again: nobody else is left"
STILL_REFUSED = "its credential is still refused"
"""Why an account closes for a call that has no other, and opens behind it."""


class Account:
    """Keeps the health of one credential at a provider."""

    __slots__ = ("breaker", "is_refused", "name")

    def __init__(
        self,
        name: str,
        rules: BreakerRules,
        now: float,
        on_change: OnChange | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        """With a `breaker` it stands for all callers of the target that this one is of, none of whom it knows."""
        self.name = name
        self.breaker = breaker or Breaker(name, account_rules(rules), now, on_change)
        self.is_refused = False
        """True while the provider does not take the credential."""

    def try_again(self, now: float) -> None:
        """Closes for a call that has no other account; its answer shows whether the credential is taken now."""
        self.breaker.trust(TRIED_AGAIN, now)
        self.breaker.is_clear = False

    def accept(self) -> None:
        """The provider has taken the credential that it had refused."""
        self.is_refused = False
        if self.breaker.state == "closed":
            self.breaker.is_clear = True
            self.breaker.note("its credential is accepted")


class Doubt(NamedTuple):
    """A target's state after several failed calls have already been sent there to find out whether it serves."""

    tried_since: float | None
    """The time at which the oldest call that still waits for the target's answer began; None: no call waits."""
    has_failed: bool
    """The calls that have ended there have all failed, one after the other."""


class TargetHealth:
    """The health of one target: its breakers, and how it responds."""

    __slots__ = (
        "_busiest",
        "_busiest_at",
        "_callers_account",
        "account",
        "breaker",
        "first_byte",
        "is_callers",
        "responsiveness",
        "retries",
        "tokens",
        "whole_answer",
    )

    def __init__(
        self,
        name: str,
        account: Account,
        rules: BreakerRules,
        now: float,
        on_change: OnChange | None,
        kin: TargetHealth | None = None,
    ) -> None:
        """`kin` is the health of the target that one of several callers uses with a credential of his own.

        They share its answer times. The caller has a breaker of his own there; that of the target takes the place of an
        account's.
        """
        self.account = account if kin is None else kin.callers_account(rules, now)
        self.breaker = Breaker(name, rules, now, on_change)
        self._callers_account: Account | None = None
        self.is_callers = kin is not None
        """It is that of one caller's own credential."""
        self.responsiveness: Responsiveness = Responsiveness() if kin is None else kin.responsiveness
        self.first_byte = self.responsiveness.first_byte
        self.whole_answer = self.responsiveness.whole_answer
        self._busiest = 0
        self._busiest_at = now
        self.retries = RetryBudget()
        self.tokens = RetryTokens()

    def callers_account(self, rules: BreakerRules, now: float) -> Account:
        """Returns what takes the place of an account in the health of callers: this target's breaker."""
        if self._callers_account is None:
            self._callers_account = Account(self.account.name, rules, now, breaker=self.breaker)
        return self._callers_account

    @property
    def target_breaker(self) -> Breaker:
        """The breaker of the target itself, whoever calls it."""
        return self.account.breaker if self.is_callers else self.breaker

    @property
    def is_clear(self) -> bool:
        return self.breaker.is_clear and self.account.breaker.is_clear

    @property
    def reason(self) -> str:
        """Returns why it is not clear, in words."""
        breaker = self.account.breaker
        if breaker.is_clear:
            return self.breaker.reason
        return breaker.reason if self.is_callers else f"account {self.account.name}: {breaker.reason}"

    def wait_s(self, now: float, rank: int) -> float | None:
        """Returns the seconds until a call of this rank may go; None: one in flight must end first, inf: a person must act."""
        return _longer(self.breaker.wait_s(now, rank), self.account.breaker.wait_s(now, rank))

    def admit(self, now: float, rank: int) -> float | None:
        """Does for both breakers what `Breaker.admit` does for one, and returns the longer wait."""
        return _longer(self.breaker.admit(now, rank), self.account.breaker.admit(now, rank))

    @property
    def latency(self) -> Latency:
        """Its times to first byte; where it serves no streams, those of whole answers."""
        if self.first_byte.count:
            return self.first_byte
        thought = self.responsiveness.thought()
        if thought and not self.whole_answer.count:
            return thought[True] if True in thought else thought[False]
        return self.whole_answer

    @property
    def is_probed(self) -> bool:
        """Returns whether a few calls are finding out whether it is well again."""
        return self.breaker.state == "half_open" or self.account.breaker.state == "half_open"

    @property
    def is_on_trial(self) -> bool:
        """Returns whether single calls find out if it serves: those of a few moments of trouble, or probes."""
        return self.is_probed or self.breaker.is_stumbling or self.account.breaker.is_stumbling

    @property
    def is_left_alone(self) -> bool:
        """Returns whether a breaker keeps calls away, but for probes."""
        return self.breaker.state != "closed" or self.account.breaker.state != "closed"

    def is_open_to(self, rank: int, now: float) -> bool:
        """Returns whether only rates stand between a call of this rank and its turn: nothing is open, or a probe is wanted."""
        if self.is_clear:
            return True
        wait_s = self.wait_s(now, rank)
        if wait_s is None:
            return not self.is_left_alone
        return wait_s <= PROBE_PATIENCE_S or (self.breaker.state == "closed" == self.account.breaker.state)

    def doubt(self, now: float) -> Doubt | None:
        """Returns why a call that has failed elsewhere should not try this target now; None: it may.

        Enough such calls are there already to tell whether it serves, or have failed. Where all targets are dead, each
        further one would only be one more attempt. Calls that have not failed yet are not concerned.
        """
        breaker = self.breaker
        rules = breaker.rules
        if self.is_left_alone or self.is_on_trial or not rules.is_enabled:
            return None  # probes bound what goes there already, or the operator wants no bounds
        run, trials = breaker.failures_in_a_row, self.responsiveness.trials
        enough, is_silent = max(FEWEST_TRIALS, rules.consecutive_failures), self.responsiveness.suspicion is not None
        if run + len(trials) < (1 if is_silent else enough):
            return None
        if run <= 1 and self.responsiveness.unserved_s(now) < LONG_S and not is_silent:
            return None
        return Doubt(next(iter(trials.values()), None), run >= enough or is_silent)

    def close_in_panic(self, now: float) -> bool:
        """Closes a breaker that opened although many calls were served (Envoy's panic threshold); returns whether it did.

        It is for the last resort: a target that serves a third of its calls is better than none.
        """
        breaker = self.breaker
        is_open = breaker.state in ("open", "half_open") and not breaker.is_by_hand and self.account.breaker.is_clear
        if not is_open or self.responsiveness.has_lost_model or breaker.has_failed_for_all:
            return False
        if breaker.failure_rate(now) > PANIC_FAILURE_SHARE:
            return False
        breaker.trust("nothing else is left, and it does serve calls", now)
        return True

    def probe_for_waiting(self, now: float, u: float) -> None:
        """Has it probed soon, because calls wait that have nowhere else to go; `u` is a draw in [0, 1)."""
        for breaker in (self.breaker, self.account.breaker):
            breaker.probe_soon(now, AWAITED_PROBE_S * (0.75 + u / 2))

    def probe_at(self, now: float) -> float:
        """Returns the earliest time at which a call may go (monotonic seconds)."""
        moments = [now]
        for breaker in (self.breaker, self.account.breaker):
            if breaker.state in ("open", "drained") or breaker.is_stumbling:
                moments.append(breaker.probe_at)
        return max(moments)

    def take(self, now: float) -> Permit:
        """Counts a call that goes, and returns its permits."""
        breaker = self.account.breaker
        return Permit(self.breaker.take(now), None if breaker.is_clear else breaker.take(now))

    def was_busy(self, in_flight: int, now: float) -> None:
        """Remembers the number of calls in flight, because it is higher than of late."""
        self._busiest, self._busiest_at = in_flight, now

    def busiest(self, now: float) -> float:
        """Returns the most calls in flight of late, which includes those that have just failed together."""
        return self._busiest * exp((self._busiest_at - now) / LATELY_S)

    def forget(self, permit: Permit, now: float) -> None:
        """Gives the permits of a call back that said nothing about health."""
        self.breaker.forget(permit.own, now)
        if permit.account is not None:
            self.account.breaker.forget(permit.account, now)

    def succeeded(self, permit: Permit, now: float, first_byte_s: float | None) -> None:
        """Counts a call that was answered; `first_byte_s` is given if that time shows how quick the target is."""
        self.breaker.succeeded(permit.own, now, first_byte_s)
        if permit.account is not None:
            # An answer shows that the credential is taken again, whatever the probes have to show yet.
            if self.account.is_refused:
                self.account.accept()
            self.account.breaker.succeeded(permit.account, now, None)

    def failed(self, permit: Permit, now: float, u: float, why: str) -> None:
        """Counts a call whose failure is the target's doing; `u` is a uniform draw from [0, 1)."""
        self.responsiveness.last_failure = why
        self.breaker.failed(permit.own, now, u, why)
        if permit.account is not None:
            self.account.breaker.failed(permit.account, now, u, why)
        elif self.is_callers:
            self.responsiveness.fail_caller(self.breaker.name)


def _longer(own_s: float | None, accounts_s: float | None) -> float | None:
    if own_s == inf or accounts_s == inf:
        return inf
    return None if own_s is None or accounts_s is None else max(own_s, accounts_s)
