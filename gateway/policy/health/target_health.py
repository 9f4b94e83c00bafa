"""How one target is doing, apart from its limits: breakers, times to first byte, retries in flight.

An account (one credential at a provider) has a breaker of its own, which opens when its credential is refused, or when every
target in use there is open. It must not know calls. Invariant: each permit is given back exactly once, with or without news.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf
from typing import NamedTuple

from gateway.policy.health.breaker import Breaker
from gateway.policy.health.rules import BreakerRules, account_rules
from gateway.policy.health.signs_of_life import Heard
from gateway.policy.retry.budgets import RetryBudget, RetryTokens
from gateway.policy.retry.retry import Doubt
from gateway.provider_errors import ErrorClass

OnChange = Callable[[str, str, str], None]
"""Told of each change of a breaker: its name, its new state, and why."""
CLIENT_GONE = "client_gone"
PANIC_FAILURE_SHARE = 2 / 3
"""Of the calls failed: then even the last target is left alone."""
LATELY_S = 10.0
"""After so long a third of the calls that were in flight together still counts as active."""
LONG_S = 60.0
"""A target that has served nobody for so long may be dead."""
FEWEST_TRIALS = 3
"""So many calls that have failed elsewhere may try at once whether a target serves."""
PROBE_PATIENCE_S = 0.25
"""A probe's turn that is so near is waited for."""
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
"""What speaks of the target's health. Refusals for a rate and errors of the request do not, nor does a client that left."""


class Permit(NamedTuple):
    """What the breakers have let through; to be given back."""

    own: int
    account: int | None


class Account:
    """One credential at a provider."""

    __slots__ = ("breaker", "is_refused", "name")

    def __init__(self, name: str, rules: BreakerRules, now: float, on_change: OnChange | None = None) -> None:
        self.name = name
        self.breaker = Breaker(name, account_rules(rules), now, on_change)
        self.is_refused = False
        """The provider does not take the credential."""


class TargetHealth:
    """The state of one target."""

    __slots__ = (
        "_busiest",
        "_busiest_at",
        "account",
        "breaker",
        "first_byte",
        "heard",
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
        """`kin` is of the same target, seen by another caller: how well the target is, they tell each other."""
        self.account = account
        self.breaker: Breaker = Breaker(name, rules, now, on_change) if kin is None else kin.breaker
        self.heard: Heard = Heard() if kin is None else kin.heard
        self.first_byte = self.heard.first_byte
        self.whole_answer = self.heard.whole_answer
        self._busiest = 0
        self._busiest_at = now
        self.retries = RetryBudget()
        self.tokens = RetryTokens()

    @property
    def is_clear(self) -> bool:
        """Nothing is in the way of any call."""
        return self.breaker.is_clear and self.account.breaker.is_clear

    @property
    def reason(self) -> str:
        """Why it is not clear, in words."""
        account = self.account.breaker
        return self.breaker.reason if account.is_clear else f"account {self.account.name}: {account.reason}"

    def wait_s(self, now: float, rank: int) -> float | None:
        """Seconds until a call of this rank may go; None: one in flight has to end first, inf: not before a person says so."""
        return _longer(self.breaker.wait_s(now, rank), self.account.breaker.wait_s(now, rank))

    def admit(self, now: float, rank: int) -> float | None:
        """As `Breaker.admit`, of both breakers: a call that may go brings about what its time is for."""
        return _longer(self.breaker.admit(now, rank), self.account.breaker.admit(now, rank))

    @property
    def is_probed(self) -> bool:
        """A few calls find out whether it is well again."""
        return self.breaker.state == "half_open" or self.account.breaker.state == "half_open"

    def is_open_to(self, rank: int, now: float) -> bool:
        """Whether a call of this rank gets its turn by rates alone: nothing is open, or a probe is wanted."""
        if self.is_clear:
            return True
        wait_s = self.wait_s(now, rank)
        if wait_s is None:
            return False
        return wait_s <= PROBE_PATIENCE_S or (self.breaker.state == "closed" == self.account.breaker.state)

    def doubt(self, now: float) -> Doubt | None:
        """What is known where as many calls as tell whether it serves are there again, or have failed; None: it may be tried.

        Others that have failed before have nothing to win there: where all targets are dead each of them would only be
        one more attempt. Calls that have not failed find out the same, and are not concerned.
        """
        breaker = self.breaker
        rules = breaker.rules
        if breaker.state != "closed" or not rules.is_enabled:
            return None  # what goes there is bounded, or by nobody's wish
        run, trials = breaker.failures_in_a_row, self.heard.trials
        enough, is_silent = max(FEWEST_TRIALS, rules.consecutive_failures), self.heard.suspicion is not None
        if run + len(trials) < (1 if is_silent else enough):
            return None
        if run <= 1 and self.heard.unserved_s(now) < LONG_S and not is_silent:
            return None
        return Doubt(next(iter(trials.values()), None), run >= enough or is_silent)

    def close_in_panic(self, now: float) -> bool:
        """Close a breaker that opened although many calls were served (Envoy's panic threshold); False: it is not such a one.

        For the last resort: a target that serves a third of its calls is better than none.
        """
        breaker = self.breaker
        is_open = breaker.state in ("open", "half_open") and not breaker.is_by_hand and self.account.breaker.is_clear
        if not is_open or self.heard.has_lost_model or breaker.failure_rate(now) > PANIC_FAILURE_SHARE:
            return False
        breaker.trust("nothing else is left, and it does serve calls", now)
        return True

    def probe_at(self, now: float) -> float:
        """When somebody may go at the earliest."""
        moments = [now]
        for breaker in (self.breaker, self.account.breaker):
            if breaker.state in ("open", "drained"):
                moments.append(breaker.probe_at)
        return max(moments)

    def take(self, now: float) -> Permit:
        """A call goes."""
        account = self.account.breaker
        return Permit(self.breaker.take(now), None if account.is_clear else account.take(now))

    def was_busy(self, in_flight: int, now: float) -> None:
        """So many calls are in flight, more than of late."""
        self._busiest, self._busiest_at = in_flight, now

    def busiest(self, now: float) -> float:
        """The most calls in flight of late: those that failed together are not in flight any more."""
        return self._busiest * exp((self._busiest_at - now) / LATELY_S)

    def forget(self, permit: Permit, now: float) -> None:
        """It told nothing."""
        self.breaker.forget(permit.own, now)
        if permit.account is not None:
            self.account.breaker.forget(permit.account, now)

    def succeeded(self, permit: Permit, now: float, first_byte_s: float | None) -> None:
        """It was answered; `first_byte_s` where that time says how quick the target is."""
        self.breaker.succeeded(permit.own, now, first_byte_s)
        if permit.account is not None:
            self.account.is_refused = False
            self.account.breaker.succeeded(permit.account, now, None)

    def failed(self, permit: Permit, now: float, u: float, why: str) -> None:
        """It came to nothing, and that is the target's doing; `u` is a uniform draw from [0, 1)."""
        self.heard.last_failure = why
        self.breaker.failed(permit.own, now, u, why)
        if permit.account is not None:
            self.account.breaker.failed(permit.account, now, u, why)


def _longer(own_s: float | None, accounts_s: float | None) -> float | None:
    if own_s == inf or accounts_s == inf:
        return inf
    return None if own_s is None or accounts_s is None else max(own_s, accounts_s)
