"""Learns limits that nobody wrote down, by what becomes of calls. In this order:

    Strays           refusals that come whatever the rate, as opposed to those of a limit
    RateSearch       the search for a rate that nobody states, by the numbers of its `SearchPolicy`
    RateDiscovery    whether a rate has to be searched for at all
    AdaptiveCap      a cap on calls in flight that follows latency
    UnwrittenBurst   how many requests a provider takes at once

All of it is arithmetic on outcomes and their times, in O(1) for each call. It must not know why an attempt failed, only
that it was refused for its rate; nor limits, pauses or calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, log, sqrt
from typing import NamedTuple

# --- strays: refusals that are no limit's ---

_RAREST, _RARE = 0.00009, 0.002
"""The share of strays where none was ever seen: one refusal is evidence enough, and two where no limit is known."""
_MOST_USUAL = 0.06
"""A higher share of strays than this is never taken to be usual."""
_FULL = 7.0
"""The evidence that proves a limit: odds of a thousand to one."""
_HEAD_START = 4.0
"""The evidence to begin with once the rate was lowered (Lucas and Crosier, 1982): often it was not lowered enough."""
_BY_LIMIT = 0.10
"""The least share of calls that a limit which matters refuses, beside the strays."""
_MEMORY = 2000.0
"""The calls that show how usual strays are; then the older count half."""
_DOUBT = 60.0
"""The calls without a stray that are assumed beside those that were seen."""
_PROVEN = 3.0
"""The strays that are beyond doubt; before, one of them may have been a limit's."""
_CLEAN, _CLEAN_PROVEN = 3.0, 5.0
"""Without a stray in so many times the calls that usually bring one, half are forgotten: a chance of one in 20 (150)."""


class Strays:
    """The refusals of one target, and how many of them are usual whatever the rate.

    A limit refuses all that is too much: its refusals come thick, and stop as soon as the rate is lowered. Some providers
    refuse one call in a hundred at any rate; such strays come one at a time, at a low rate, too. A cumulative sum of
    evidence (Page, "Continuous inspection schemes", Biometrika 1954) tells the two apart: each refusal adds to it, each
    accepted call takes a little of it away, and when it is full there is a limit. How much a refusal adds depends on how
    usual strays are, which is learned while the rate is known to be low enough. Where none was ever seen, one refusal is
    proof enough near a rate that was measured. Where no limit is known it takes two, one behind the other or within a few
    calls.
    """

    __slots__ = ("_calls", "_evidence", "_found", "_is_undecided", "_limits", "_suspects", "accepted")

    def __init__(self) -> None:
        self.accepted = 0
        """Calls since the last refusal; whoever sees one accepted counts it here."""
        self._evidence = 0.0
        self._calls = 0.0  # at a rate that is low enough, as far as somebody was refused there ...
        self._found = 0.0  # ... and those of them that were refused
        self._limits = 0.0  # how often several were too many for chance
        self._suspects = 0.0  # of these, the ones that are evidence of a limit now
        self._is_undecided = False  # the last one came while nobody knew of a limit, and counts as neither yet

    def refused(self, *, has_room: bool, is_unknown: bool = False) -> bool:
        """A call was refused: True when there is a limit, False for a stray. The former begins anew.

        `has_room` says that no limit is thought to be near: then it tells how usual strays are. `is_unknown` says that nothing
        is known of a limit: one refusal alone counts as a stray once enough calls were accepted behind it.
        """
        accepted, self.accepted = self.accepted, 0
        rarest = _RARE if is_unknown else _RAREST
        usual = max(rarest, self.usual)
        evidence = self._evidence - accepted * log((1 - usual) / (1 - usual - _BY_LIMIT))
        if evidence <= 0:
            if self._is_undecided:  # so many were let in behind it that it was none of a limit
                self._found += 1
                self._calls += accepted + 1
            evidence = self._suspects = 0.0
        self._is_undecided = is_unknown
        if is_unknown and evidence and not accepted and not self.are_usual:  # one behind the other
            evidence = _FULL
        if accepted * usual > (_CLEAN_PROVEN if self.are_proven else _CLEAN):
            self._found /= 2
        if has_room:
            self._calls += accepted + 1
            self._found += 1
            self._suspects += 1
            if self._calls > _MEMORY:
                self._calls, self._found, self._suspects = self._calls / 2, self._found / 2, self._suspects / 2
                self._limits /= 2
            usual = max(rarest, self.usual)
        self._evidence = evidence + log((usual + _BY_LIMIT) / usual)
        if self._evidence < _FULL:
            return False
        if self._suspects > 1:  # a single one may well have been a stray
            self._found = max(0.0, self._found - self._suspects)
            self._limits += 1
        self.lowered()
        return True

    def lowered(self) -> None:
        self._suspects = 0.0
        self._is_undecided = False
        self._evidence = _HEAD_START

    def found(self, strays: float, calls: float) -> None:
        """Notes that so many of these calls were strays, as it has turned out."""
        self._found += strays
        self._calls += calls

    @property
    def usual(self) -> float:
        """The share of calls that is refused whatever the rate, as far as anybody knows."""
        share = (self._found - (0.0 if self.are_proven else 1.0)) / (self._calls + _DOUBT)
        return min(max(share, _RAREST), _MOST_USUAL)

    @property
    def are_usual(self) -> bool:
        """Whether more than one was seen."""
        return self._found > 1.0

    @property
    def are_proven(self) -> bool:
        """Whether they are usual beyond doubt, and not too many to be strays: then no pause follows from one."""
        return max(_PROVEN, 2 * self._limits) <= self._found <= _MOST_USUAL * self._calls


# --- the search for a rate ---

_EARLY_S = 1e-6
_STEP_S = 0.01
_SAMPLE_S = 0.25
_LONGEST_HOLD_S = 1.0
_MOST_SPARE = 30.0
"""The accepted calls that are remembered: as many more may be refused to find out whether calls are accepted again."""
_SLOW_LEAP_PERCENT = 300.0
"""The most by which a rate grows at once that nobody has measured, and at which less than one call is in flight."""
_TIMED_PER_S = 1.0
"""A provider that says when to come back needs no rate below this: it is refused once for each pause."""
_FAR = 2.0
"""The multiple of the measured rate that shows that the latter binds no more."""
_ROOM = 0.95
"""The share of the measured rate below which a limit has room."""
_FLIGHT, _LARGE_FLIGHT = 3, 8
"""The calls accepted behind a refusal that show it was a stray, and those that show how usual strays are."""
_FLIGHT_STRAYS = 0.05
"""The share of these calls that may be refused, too."""


@dataclass(frozen=True, slots=True)
class SearchPolicy:
    """Rates are calls per second; the defaults did best over all providers of `tests/core/limits/storm.py` together."""

    blind_rate: float = 12.5
    """The rate until the first answer."""
    first_rate: float = 50.0
    """The rate from the first answer on, if it is no refusal."""
    min_rate: float = 1 / 60
    max_rate: float = 10_000.0
    burst_s: float = 0.2
    """The seconds of the rate that may go at once (at least one call)."""
    first_window: int = 16
    """The calls that may be in flight during the search, whatever the rate."""
    resume_window: int = 0
    """The calls that may be in flight right after a pause, whatever the rate."""
    window_percent: float = 2.0
    """The share of the accepted calls that is added to the window: if all in it are refused, that is few beside those."""
    growth_percent: float = 40.0
    """Growth during the search per second (or round trip, if longer), compounding; probing is never faster."""
    leap_percent: float = 25.0
    """The most that the rate grows by at once."""
    cut: float = 0.5
    """The least share of the rate that a refusal leaves, and all it leaves when too few calls show the true rate."""
    enough: int = 4
    """The calls accepted since a refusal that show the true rate."""
    settle: float = 0.9
    """The share of the measured rate to go on with after a refusal."""
    probe_percent: float = 2.0
    """Growth per round trip at the measured rate; at twice that rate sixteen times as much (256 among strays)."""
    probe_call_percent: float = 0.1
    """Growth per call, if that is less: about a hundred calls pay for one refusal."""
    floor_percent: float = 2.0
    """The share of the measured rate that goes on while all is refused, to notice when that ends (a window, an outage)."""
    spare_floor: float = 1 / 3
    """The least of that share, in calls per second, as long as less was refused than accepted."""

    clean_s: float = inf
    """After so many seconds without a refusal, and so many calls, the rate grows as before the first one."""
    clean_calls: int = 8

    def bounded(self, rate_per_s: float) -> float:
        """The rate, within the least and the most."""
        return min(max(rate_per_s, self.min_rate), self.max_rate)

    def floor(self, measured: float, spare: float) -> float:
        """The rate that no refusal cuts below; `measured` is infinite as long as nothing is, `spare` refusals cost little."""
        floor = self.floor_percent / 100 * measured if measured < inf else 0.0
        return max(floor, self.spare_floor if spare > 0 else self.min_rate)

    def probe(self, trips: float, calls: float) -> float:
        """By how many percent the measured rate grows in so many round trips and calls."""
        return min(self.probe_percent * trips, self.probe_call_percent * max(1.0, calls))


SLOW_START = SearchPolicy(
    blind_rate=1.0,
    first_rate=1.0,
    first_window=1,
    resume_window=1,
    window_percent=100.0,
    growth_percent=100.0,
    clean_s=5.0,
)
"""One call at a time, and one more with each that is accepted: where refusals have shown that the stated rate is too much."""


class _Before(NamedTuple):
    """The state of a search before a refusal."""

    rate_per_s: float
    measured: float
    window: float
    is_searching: bool


class RateSearch:
    """The request rate of one target, and the limit that enforces it.

    The rate grows only while somebody waits for it: an idle target teaches nothing. One refusal cuts once, together with
    all the others for calls that were sent before that cut.

    It begins like TCP's slow start (RFC 5681): a window of calls in flight and a rate both grow with answers. The first
    refusal ends that, and from then on refusals measure: one means that the provider's bucket is empty, and what an empty
    bucket accepts is its rate. We stay a little below it and probe upwards, the faster the farther nothing is refused
    (additive increase, multiplicative decrease: Chiu and Jain, 1989; probing on a convex curve: CUBIC, RFC 9438).

    Invariants: a refusal never raises the rate; once the window is gone, any second sees at most 1.2 times the highest rate
    in it (or that and one call); with nothing in flight somebody may go within a second and `1 / rate`.
    """

    __slots__ = (
        "_accepted",
        "_before",
        "_behind",
        "_bound_accepted",
        "_bound_since",
        "_credit_s",
        "_cut_at",
        "_gap_s",
        "_grown_at",
        "_is_guess",
        "_is_searching",
        "_latest",
        "_measured",
        "_next_at",
        "_policy",
        "_refused_at",
        "_since",
        "_spare",
        "_wanted_at",
        "_window",
        "in_flight",
        "rate_per_s",
        "strays",
    )

    def __init__(self, now: float, policy: SearchPolicy | None = None, strays: Strays | None = None) -> None:
        self._policy = policy or SearchPolicy()
        self.strays = strays or Strays()
        self.in_flight = 0
        self._next_at = now
        self._gap_s = 0.0
        self._set(self._policy.blind_rate)
        self._window: float = self._policy.first_window  # 0: only the rate counts
        self._is_searching = True  # nothing was ever refused
        self._is_guess = False  # the last cut had no measurement behind it
        self._measured = inf
        self._cut_at = -inf
        self._grown_at = now  # in the future: not to grow before
        self._wanted_at = -inf  # until when somebody is known to wait
        # Accepted calls are counted by when they were sent: after one, up to the other.
        self._since = self._latest = now
        self._accepted = 0
        self._behind = 0  # and refused of those, though sent before the cut
        # The same over all refusals since the rate was measured last: where each comes before enough were accepted.
        self._bound_since = now
        self._bound_accepted = 0
        self._spare = float(self._policy.enough)  # so many more may be refused before as many were accepted
        self._before = _Before(self.rate_per_s, inf, self._window, True)  # what a guess has ended
        self._refused_at = now

    def wait_s(self, now: float) -> float:
        """Seconds until one more call may go; 0.0 now."""
        wait_s = self._next_at - now
        return 0.0 if self.in_flight < self._window or wait_s <= _EARLY_S else wait_s

    def want(self, now: float) -> float:
        """A call wants to go: as `wait_s`, but notes that somebody waits, without whom the rate does not grow."""
        wait_s = self.wait_s(now)
        if wait_s:
            self._wanted_at = self._next_at
        return wait_s

    def is_binding(self, now: float, within_s: float) -> bool:
        """Returns whether somebody had to wait for it within so many seconds."""
        return now - self._wanted_at <= within_s

    @property
    def shown_per_s(self) -> float | None:
        """The rate that refusals have shown; None: they have shown none, or far more has been accepted since."""
        return self._measured if self.rate_per_s <= _FAR * self._measured < inf else None

    @property
    def has_measured(self) -> bool:
        """Whether refusals have shown the rate; before, it is a guess, and nothing should be refused on its strength."""
        return self._measured < inf and not self._is_guess

    def ready_at(self, now: float, ahead: float = 0.0) -> float:
        """When one more may go after `ahead` others: an estimate, at the present rate."""
        ahead -= max(0.0, self._window - self.in_flight)
        if ahead < 0:
            return now
        return max(now, max(self._next_at, now - self._credit_s) + ahead * self._gap_s)

    def take(self, now: float) -> None:
        """One call goes; only to be called when `wait_s` is 0.0."""
        self.in_flight += 1
        next_at = self._next_at
        if next_at <= now + _EARLY_S:  # else it goes by the window
            earliest = now - self._credit_s
            self._next_at = (next_at if next_at > earliest else earliest) + self._gap_s

    def give_back(self, now: float) -> None:
        """It was never sent."""
        self.left(now)
        # With a window it may have gone by that, and then it put nobody off.
        if not self._window:
            self._next_at -= self._gap_s

    def left(self, now: float) -> None:
        """It ended with neither an answer nor a refusal, and teaches nothing."""
        if self.in_flight:
            self.in_flight -= 1

    def succeeded(self, sent_at: float, now: float) -> None:
        """The provider accepted the call that was sent at `sent_at`; while somebody waits the rate may grow."""
        if self.in_flight:
            self.in_flight -= 1
        if sent_at > self._since:
            self._accepted += 1
            self.strays.accepted += 1
            if sent_at > self._latest:
                self._latest = sent_at
        if sent_at > self._bound_since:
            self._bound_accepted += 1
            if self._spare < _MOST_SPARE:
                self._spare += 1
        grown_at = self._grown_at
        if now < grown_at:
            return
        if self._is_searching:
            self._widen()
        elif self._is_guess:
            self._measure_flight(sent_at, now)
        # Read anew: the measurement above may have put growth off.
        if now - grown_at >= _STEP_S and now >= self._grown_at:
            self._grown_at = now
            if self._wanted_at >= grown_at and sent_at >= self._cut_at:
                self._grow(now - grown_at, now - sent_at)

    def refused(self, sent_at: float, now: float, *, is_timed: bool = False) -> bool:
        """The call that was sent at `sent_at` was refused. False: by chance, as far as is known, not for its rate.

        `is_timed` says that the provider has said when to come back.
        """
        self.left(now)
        if sent_at < self._cut_at:
            # It went before the last cut, which has answered for its whole flight.
            self._behind += sent_at > self._since
            return True
        self._spare = max(0.0, self._spare - 1)
        is_first = self._cut_at == -inf and not self._policy.resume_window
        is_slow = not self._accepted or self.rate_per_s <= _TIMED_PER_S
        if is_timed and is_slow and not is_first and self._bound_accepted < self._policy.enough:
            return True  # the pauses are slow enough: after them to be slower would only be later
        if not self._judge(sent_at):
            return False
        before = _Before(self.rate_per_s, self._measured, self._window, self._is_searching)
        accepted_per_s = self._accepted_per_s(sent_at)
        if self._is_searching:
            self._before = before
            # The flight under way was sent at a rate that may be far too high: its answers come first.
            self._window = 0
            self._is_searching = False
            self._is_guess = True
            self._cut(self._policy.cut)
            self._next_at = max(self._next_at, now + min(now - sent_at, _LONGEST_HOLD_S))
            self._count_from(sent_at)
        elif accepted_per_s is not None:
            self._measured = accepted_per_s
            share = self._policy.settle * min(1.0, self._measured / self.rate_per_s)
            self._cut(max(self._policy.cut, share))
            self._is_guess = False
            self._count_from(sent_at)
        else:
            self._cut(self._policy.cut)
            if not self._is_guess or self._accepted:
                self._before = before
                self._count_from(sent_at, is_measured=False)
            self._is_guess = True
        self._next_at = max(self._next_at, now + self._gap_s)
        self._cut_at = now
        self._grown_at = max(self._grown_at, now)
        return True

    def _accepted_per_s(self, sent_at: float) -> float | None:
        """What was accepted since the last refusal, or since the rate was measured; None: too little, or nobody waited.

        Where nobody waited it is what was asked for, and more may be accepted.
        """
        enough = self._policy.enough
        if self._accepted >= enough and self._latest > self._since and self._wanted_at >= self._since:
            return self._accepted / (self._latest - self._since)
        span_s = max(sent_at, self._latest) - self._bound_since
        if self._bound_accepted >= enough and span_s > 0 and self._wanted_at >= self._bound_since:
            return self._bound_accepted / span_s
        return None

    def _judge(self, sent_at: float) -> bool:
        """Counts a refusal; returns whether a limit is behind it. Refusals are fast: the calls in flight count as let in."""
        strays = self.strays
        between = self.rate_per_s * (sent_at - max(self._refused_at, self._cut_at))
        self._refused_at = sent_at
        strays.accepted = max(strays.accepted, int(min(between, strays.accepted + self.in_flight)))
        were_proven = strays.are_proven
        is_unknown = self._is_searching or self._measured == inf or self._wanted_at < self._since
        has_room = self.rate_per_s <= _ROOM * self._measured and not is_unknown
        if strays.refused(has_room=has_room, is_unknown=is_unknown):
            return True
        if strays.are_proven and not were_proven:  # what was measured before may have been by strays
            self._is_searching, self._is_guess = True, False
            if self._policy.resume_window:
                self._measured = inf
        return False

    def resumed(self, now: float) -> None:
        """A pause has ended: the first second sees no herd. Calls from before the pause neither raise nor cut the rate."""
        self._window = min(self._window, self._policy.resume_window)
        self._is_guess = False
        self._count_from(now - _EARLY_S, is_measured=False)  # those that go at once count
        self._cut_at = now
        self._grown_at = now + 1.0

    def _widen(self) -> None:
        """While searching, the window grows, and the rate is at least what the provider takes."""
        if self._window:
            self._window += self._policy.window_percent / 100
        if self._window and self.rate_per_s < self._policy.first_rate:
            self._set(self._policy.first_rate)
        span_s = self._latest - self._since
        if self._accepted > self.rate_per_s * (span_s if span_s > _SAMPLE_S else _SAMPLE_S):
            self._set(self._accepted / max(span_s, _SAMPLE_S))
        if span_s >= 4 * _SAMPLE_S:
            self._count_from(self._latest)

    def _measure_flight(self, sent_at: float, now: float) -> None:
        """Takes the rate from what is accepted of the flight behind a refusal, once half of the flight is known."""
        if sent_at >= self._cut_at:
            self._is_guess = False
            return
        span_s = self._latest - self._since
        if span_s <= 0 or span_s < (self._cut_at - self._since) / 2:
            return
        accepted, refused, before = self._accepted, self._behind, self._before
        if accepted >= _FLIGHT and refused <= _FLIGHT_STRAYS * accepted:
            # All that went behind a refusal was let in: it was a stray.
            self._is_searching, self._is_guess = before.is_searching, False
            self._window = before.window
            self._measured = before.measured
            self._set(before.rate_per_s)
            if self._accepted >= _LARGE_FLIGHT:
                self.strays.found(1 + self._behind, self._accepted)
            self._grown_at = now + (now - sent_at)  # the next flight shows what this rate brings about
        elif accepted >= self._policy.enough:
            # By the share, where fewer went than might have.
            self._measured = max(accepted / span_s, before.rate_per_s * accepted / (accepted + refused))
            self._set(self._policy.settle * self._measured)
        else:
            most = max((accepted + 1) / span_s, before.rate_per_s * (accepted + 1) / (accepted + 1 + refused))
            self._set(min(self.rate_per_s, self._policy.settle * most))

    def _grow(self, elapsed_s: float, latency_s: float) -> None:
        policy, rate = self._policy, self.rate_per_s
        goal = policy.settle * self._measured
        # Below what was measured there is nothing to find out: no need to grow step by step.
        if rate < goal < inf:
            self._set(goal)
            return
        trips = elapsed_s / (latency_s + 1e-9)
        # A rate neither measured nor searched for is low: even if it grows at each round trip few calls overshoot.
        is_low = goal == inf and not self._is_searching
        percent = policy.growth_percent * (trips if is_low or latency_s > 1 else elapsed_s)
        if goal < inf:
            far = (rate / self._measured) ** (8 if self.strays.are_usual else 4)
            is_clean = self._accepted >= policy.clean_calls and self._grown_at - self._cut_at >= policy.clean_s
            if not is_clean:
                percent = min(percent, far * policy.probe(trips, rate * elapsed_s))
        leap_percent = _SLOW_LEAP_PERCENT if is_low and rate * latency_s < 1 else policy.leap_percent
        self._set(rate * (1 + min(percent, leap_percent) / 100))

    def _cut(self, share: float) -> None:
        self._set(min(self.rate_per_s, max(self.rate_per_s * share, self._policy.floor(self._measured, self._spare))))

    def _set(self, rate_per_s: float) -> None:
        self.rate_per_s = self._policy.bounded(rate_per_s)
        gap_s = 1 / self.rate_per_s
        self._next_at += gap_s - self._gap_s  # as if the last call had gone at this rate
        self._gap_s = gap_s
        self._credit_s = max(0.0, self._policy.burst_s - gap_s)

    def _count_from(self, sent_at: float, *, is_measured: bool = True) -> None:
        self._since = self._latest = sent_at
        self._accepted = self._behind = 0
        if is_measured:
            self._bound_since = sent_at
            self._bound_accepted = 0


# --- whether there is a rate to search for ---


_UNEXPLAINED = 0.1
"""The share of refusals above which the stated rate is not believed any more."""
_FADE = 0.02
"""The weight of one call in the share of refusals."""
LET_GO_S = 60.0
"""A search beside a stated rate ends once nobody has had to wait for it so long."""


class RateDiscovery:
    """Decides whether a target's rate has to be found out, because nobody states one or the stated one is not believed.

        nobody states a rate -> a search      someone does -> none      too many refusals all the same -> a search below it
        the search comes above the stated rate, or nobody has to wait for it any more -> none

    The stated rate may be wrong: somebody else uses the account, or the config has a slip. Invariant: every refusal is
    judged by the strays, with a search or without.
    """

    __slots__ = (
        "_distrusted_at",
        "_let_in_per_s",
        "_refused_at",
        "_refused_share",
        "_strays",
        "is_distrusted",
        "let_in",
        "search",
    )

    def __init__(self, now: float) -> None:
        self.search: RateSearch | None = None
        """The search for a rate; None: a stated one is believed, or nothing is to be learned."""
        self._distrusted_at = -inf
        self._refused_at = now
        self._let_in_per_s = 0.0  # between the last two refusals, or moments of several
        self.is_distrusted = False
        """The stated rate is not believed."""
        self.let_in = 0
        """Calls that were let in since the last refusal; whoever sees one counts it here."""
        self._strays = Strays()
        self._refused_share = 0.0

    def review(self, now: float, *, learns: bool, is_known: bool) -> None:
        """Begins or ends the search after what is known has changed: `is_known` says that there is a rate."""
        if not learns or (is_known and not self.is_distrusted):
            self.search = None
        elif self.search is None:
            self.search = RateSearch(now, strays=self._strays)

    def refused(
        self, sent_at: float, now: float, *, is_current: bool, is_explained: bool = False, is_timed: bool = False
    ) -> bool:
        """Notes a refusal; returns False for one that beyond doubt would have come at any rate.

        `is_current` says that no other call of its epoch was refused before, `is_explained` that headers tell of a limit
        of which nothing is left, `is_timed` that the provider has said when to come back.
        """
        let_in, self.let_in = self.let_in, 0
        if let_in:
            self._let_in_per_s = let_in / max(1.0, now - self._refused_at)
        self._refused_at = now
        self._refused_share *= (1 - _FADE) ** let_in
        if self.search is not None:
            is_limit = self.search.refused(sent_at, now, is_timed=is_timed)
        elif is_explained:
            return True
        elif is_current:
            self._strays.accepted = let_in
            is_limit = self._strays.refused(has_room=True)  # by all that is known there was
        else:
            return True
        return is_limit or is_explained or not self._strays.are_proven

    def count_unexplained(self) -> None:
        """Counts a refusal that a burst does not explain against the stated rate."""
        self._refused_share += (1 - self._refused_share) * _FADE

    @property
    def is_unexplained(self) -> bool:
        """More is refused than a rate that is true would bring about."""
        return self._refused_share > _UNEXPLAINED

    def distrust(self, now: float) -> None:
        """Begins a search for the rate that binds, below the stated one."""
        self.is_distrusted, self._refused_share = True, 0.0
        rate_per_s = max(SLOW_START.blind_rate, self._let_in_per_s)
        self.search = RateSearch(now, replace(SLOW_START, blind_rate=rate_per_s, first_rate=rate_per_s), self._strays)
        self._distrusted_at = now

    def trust(self) -> bool:
        """Trusts a distrusted rate again; returns whether it was distrusted."""
        was_distrusted, self.is_distrusted, self._refused_share = self.is_distrusted, False, 0.0
        return was_distrusted

    def trust_if_confirmed(self, reported_per_s: float, now: float) -> bool:
        """Trusts a distrusted rate again once the search has come above it, or binds nobody; returns whether it does."""
        if not self.is_distrusted or self.search is None:
            return False
        is_binding = now - self._distrusted_at <= LET_GO_S or self.search.is_binding(now, LET_GO_S)
        if self.search.rate_per_s <= reported_per_s and is_binding:
            return False
        return self.trust()


# --- a cap on calls in flight ---

EPOCH_ROUNDS = 40
"""The rounds for which the unloaded time is believed."""
ROUND = 20
"""The least number of answers that make a round; it takes as many as the cap, too."""
TOLERANCE = log(1.25)
"""By so much, and what the spread explains, a round may be slower than unloaded without a queue (Envoy's buffer)."""
SMOOTHING = 0.3
_STEP = 1.25
_DROP = 0.9
_EARLY = 5
_FAR_SLOWER = log(2)
_SURE = 3.0  # standard errors
_DIP_ANSWERS = 10
_SMALL = 8.0
_MOST_SLOWER = log(3)
_FIRST_VARIANCE = 0.25
_SHORTEST_S = 1e-3


class AdaptiveCap:
    """How many calls may be in flight. At the end of each round the cap moves; all times are natural logarithms.

    Gradient control as in Netflix's concurrency-limits (Gradient2: tolerance, allowance of the root of the cap, smoothing)
    and Envoy's adaptive concurrency filter (minRTT windows): the cap shrinks by the ratio of the unloaded to the present
    time to the first byte, and grows while there is none. The unloaded time is measured again every so often with half of
    the cap.

    That time also depends on the prompt, over orders of magnitude. Nothing is divided by tokens for it, as the slope
    differs with every cached prefix; instead rounds of answers are compared by the means of logarithms, and only what is
    more than their spread explains counts as a queue. The least of several rounds is never used: it is lower the more they
    vary, and with such a goal the cap shrinks to nothing. Invariant: the cap stays within its bounds.
    """

    __slots__ = (
        "_before_dip",
        "_cap",
        "_count",
        "_largest",
        "_measured_at",
        "_most_in_flight",
        "_rounds",
        "_skips",
        "_smallest",
        "_squares",
        "_sum",
        "_unloaded",
        "_variance",
    )

    def __init__(self, first: int = 16, smallest: int = 1, largest: int = 1000) -> None:
        self._cap = self._measured_at = float(first)
        self._smallest = smallest
        self._largest = largest
        self._unloaded = inf
        self._variance = _FIRST_VARIANCE  # of single unloaded calls
        self._rounds = 0
        self._before_dip = 0.0  # while the unloaded time is measured: the cap to go on with
        self._skips = 0  # answers still to come to calls that may have waited in the old queue
        self._count = self._most_in_flight = 0
        self._sum = self._squares = 0.0

    @property
    def cap(self) -> int:
        return int(self._cap)

    def observe(self, first_byte_s: float, in_flight: int) -> None:
        """One call's first byte came `first_byte_s` after it was sent, when so many were in flight."""
        if not 0 <= first_byte_s < inf:
            return
        if self._skips:
            self._skips -= 1
            return
        time = log(max(first_byte_s, _SHORTEST_S))
        if self._unloaded == inf:
            self._unloaded = time  # the first to come meets an idle server
        self._count += 1
        self._sum += time
        self._squares += time * time
        if in_flight > self._most_in_flight:
            self._most_in_flight = in_flight
        if self._count >= max(_DIP_ANSWERS if self._before_dip else ROUND, self._cap) or self._is_far_slower():
            self._end_round(self._sum / self._count)

    def dropped(self) -> None:
        """The server timed out or said that it is overloaded."""
        self._set(self._cap * _DROP)
        self._before_dip *= _DROP
        self._begin_round()

    def _is_far_slower(self) -> bool:
        """Whether the queue is so long that there is no need to wait for the end of the round."""
        if self._before_dip or self._count < _EARLY:
            return False
        excess = self._sum / self._count - self._unloaded
        return excess > _FAR_SLOWER + _SURE * sqrt(self._variance / self._count)

    def _begin_round(self) -> None:
        self._count = self._most_in_flight = 0
        self._sum = self._squares = 0.0

    def _end_round(self, mean: float) -> None:
        if self._before_dip:  # the unloaded time is measured: on with the cap from before
            self._unloaded = min(mean, self._unloaded + _MOST_SLOWER)  # the queue may not have run empty
            variance = max(0.0, self._squares / self._count - mean * mean)
            self._variance += SMOOTHING * (variance - self._variance)
            self._rounds = 0
            self._measured_at = self._before_dip
            self._set(self._before_dip)
            self._before_dip = 0.0
        else:
            self._rounds += 1
            error = sqrt(self._variance / self._count)
            if mean < self._unloaded - error:
                self._unloaded += SMOOTHING * (mean - self._unloaded)
            if self._most_in_flight >= self._cap / 2:  # else latency tells nothing about the cap
                self._move(mean - self._unloaded - sqrt(2) * error)
            if self._rounds >= EPOCH_ROUNDS or self._cap < self._measured_at / 2:
                # The queue at the server is to run empty, if there is one.
                self._before_dip = self._cap
                self._skips = int(self._cap)
                self._set(self._cap / 2 if self._cap > _SMALL else 1.0)
        self._begin_round()

    def _move(self, excess: float) -> None:
        share = _STEP if excess <= TOLERANCE else max(0.5, exp(TOLERANCE - excess))
        goal = self._cap * share + sqrt(self._cap) / 2
        self._set(self._cap + SMOOTHING * (goal - self._cap))

    def _set(self, cap: float) -> None:
        self._cap = min(max(cap, float(self._smallest)), float(self._largest))


# --- how many requests go at once ---


FIRST_S = 1.0
"""The seconds' worth of the rate that go at once to begin with, and a fifth of that however many are refused."""
LEAST_S = 0.2
FIRST_CALLS = 4.0
"""The least number of calls at once to begin with, of a slow rate: a few refusals cost nobody more than a moment."""
UNREFUSED_S = 0.5
"""A refusal comes fast: whoever was not refused after this time was let in, however long the answer takes."""
AGAIN_S, LONGEST_AGAIN_S = 10.0, 640.0
"""Seconds after a refusal for which no more is tried; twice as long each time."""
_FIRST_STEP, _LARGEST_STEP = 0.05, 0.5
_FLIGHTS = 3
"""The flights in a row whose refusals are put down to the burst; what is refused then has another cause."""


class UnwrittenBurst:
    """How many requests a provider takes at once, as far as is known, where neither the config nor its headers say so.

        grow -> (those calls go) -> nobody is refused -> grow …       or refused: so many less

    It begins with a second's worth of the rate. While calls wait for more, and nobody was refused, a few more go at once,
    then twice as many each time, as in TCP's slow start (RFC 5681), up to what is allowed. Each refusal says that it was
    one call too many; then it is tried again seldom. Once headers say what is left, they are believed. Invariants: never
    above `most` unless headers say so; what is tried at once is at most half of what is known to go; a refusal never raises
    it.
    """

    __slots__ = (
        "_again_s",
        "_due",
        "_flights",
        "_is_tried",
        "_least",
        "_step",
        "_tried_at",
        "_try_at",
        "burst",
        "is_known",
        "is_news",
        "most",
    )

    def __init__(self, rate_per_s: float, most: float, *, is_known: bool = False) -> None:
        """`most` is what is allowed where headers say nothing."""
        self.most = most
        self.burst = min(max(FIRST_S * rate_per_s, FIRST_CALLS), most)
        """The requests that may go at once."""
        self.is_known = is_known
        """Headers say what is left."""
        self.is_news = False
        """A refusal has shown the burst, and other replicas do not know yet."""
        self._least = min(max(1.0, LEAST_S * rate_per_s), most)
        self._step = max(1.0, _FIRST_STEP * self.burst)
        self._is_tried = False
        self._tried_at = -inf
        self._due = 0
        self._try_at = -inf
        self._again_s = AGAIN_S
        self._flights = 0

    @property
    def may_be_more(self) -> float:
        """So much more may go at once, as far as anybody knows; nobody should be turned away on the strength of a guess."""
        return 0.0 if self.is_known or self._try_at > -inf else self.most - self.burst

    def grow(self, now: float, let_in: int, in_flight: int) -> float:
        """All that may go at once has gone, and calls wait: by how much it is raised.

        `let_in` counts the calls that were let in since the last refusal, `in_flight` are those of whom nobody knows.
        """
        if self.is_known or self.burst >= self.most or now < self._try_at:
            return 0.0
        if not self._is_tried:
            # What goes now has to be let in first: only then does more tell anything.
            self._expect(now, let_in + in_flight)
            return 0.0
        if let_in < self._due and now - self._tried_at < UNREFUSED_S:
            return 0.0
        step = min(self._step, _LARGEST_STEP * self.burst, self.most - self.burst)
        step = max(1.0, float(int(step)))
        self._step = 2 * step
        self.burst += step
        self._flights = 0
        self._expect(now, let_in + in_flight + int(step))
        return step

    def refused(self, now: float, *, is_first: bool) -> bool:
        """A call was refused; `is_first` of its flight. False: not because too many went at once, as far as anybody knows."""
        self._rest(now)
        self._flights += is_first
        if self.burst <= self._least:
            return False
        self.burst = max(self._least, self.burst - 1)
        self.is_news = True
        return self._flights <= _FLIGHTS

    def observe(self, left: float, most: float) -> float:
        """Headers say that so many are left, of `most` that there can ever be; returns by how much that raises it."""
        self.is_known = True
        before = self.burst
        self.burst = max(before, min(left, most))
        return self.burst - before

    def adopt(self, burst: float, now: float) -> None:
        """Another replica has found it to be so many."""
        self.burst = max(self._least, min(burst, max(self.most, self.burst)))
        self._rest(now)

    def _rest(self, now: float) -> None:
        """No more is tried for a while, and then little at first."""
        if now >= self._try_at:
            self._flights = 0
            self._try_at = now + self._again_s
            self._again_s = min(2 * self._again_s, LONGEST_AGAIN_S)
        self._is_tried = False
        self._step = 1.0

    def _expect(self, now: float, due: int) -> None:
        self._is_tried = True
        self._tried_at = now
        self._due = due
