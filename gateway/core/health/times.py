"""What the answers of a target have taught: how fast they come, how long they get, and how long an attempt is waited for.

First a histogram whose old values fade, then one target's times to first byte (`Latency`), then the corrections of
estimates (`Calibration`), and last decisions on waiting: pure functions of what is usual at a target for calls of that
kind, and of the time that a caller has set. It must not know calls, attempts or clocks. Times are seconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from math import ceil, exp, inf, log, log2
from typing import NamedTuple

# --- a histogram of positive numbers whose old values fade ---


_PER_OCTAVE = 4
_ROUNDING = 1e-9
"""The tolerance in steps: a value on the edge of two belongs to the lower one, whatever its logarithm is rounded to."""
_HEAVY = 1e150  # far below the 1e308 at which a sum of weights would overflow
_NO_WEIGHTS = array("d")


class DecayingHistogram:
    """Weights of values by step; it may keep one quantile at hand, so that nothing is summed to read that.

    It says what share of the latest values lies below a value. Steps are logarithmic, four to an octave, so that a quantile
    is off by a fixed share of its value over any range (at most 9 % from the middle of its step, 19 % from its upper edge).
    New values weigh more and more instead of old ones less: it is the same, and all other steps stay as they are; when
    weights get heavy, all are scaled down at once. Invariants: every `add` is O(1), in a fixed amount of memory, of which
    nothing is taken before the first value.
    """

    __slots__ = (
        "_below",
        "_first",
        "_growth",
        "_last",
        "_least",
        "_next",
        "_pointer",
        "_share",
        "_weights",
        "edge",
        "weight",
    )

    def __init__(self, least: float, octaves: int, half_life: int, share: float = 0.0) -> None:
        """Values from `least`, a power of two, up to so many octaves above it are distinguished; others count as the nearest.

        The last `half_life` values have half of the weight. `share` is the quantile that `edge` follows; 0.0: none.
        """
        self._least = least
        self._first = round(log2(least)) * _PER_OCTAVE
        self._last = octaves * _PER_OCTAVE
        self._growth: float = 2 ** (1 / half_life)
        self._share = share
        self._weights = _NO_WEIGHTS
        self._next = 1.0  # weight of the next value
        self._pointer = 0  # the step in which the followed quantile lies ...
        self._below = 0.0  # ... and the weight of all steps below it
        self.weight = 0.0
        """The weight of all values together, in the first one's weight; 0.0: there was none."""
        self.edge = least
        """The followed quantile: the upper edge of its step; `least` before the first value."""

    def add(self, value: float) -> None:
        """Counts one value, which is not negative."""
        if not self.weight:
            self._weights = array("d", bytes(8 * (self._last + 1)))
        step = ceil(log2(value) * _PER_OCTAVE - _ROUNDING) - self._first if value > self._least else 0
        if step > self._last:
            step = self._last
        weight = self._next
        self._weights[step] += weight
        self.weight += weight
        self._next = weight * self._growth
        if self._next > _HEAVY:
            self._scale_down()
        if self._share:
            if step < self._pointer:
                self._below += weight
            goal = self._share * self.weight
            if self._below >= goal or self._below + self._weights[self._pointer] < goal:
                self._follow(goal)

    def quantile(self, share: float) -> float:
        """The middle of the step in which the value lies that this share (above 0, to 1) of the weight does not exceed.

        Raises IndexError as long as there was no value.
        """
        sums = list(accumulate(self._weights))
        step = bisect_left(sums, share * sums[-1])
        return float(2 ** ((step + self._first - 0.5) / _PER_OCTAVE))

    def _follow(self, goal: float) -> None:
        """Moves the pointer to the step of the followed quantile: by a step or two, as one value weighs little."""
        weights = self._weights
        while self._pointer < self._last and self._below + weights[self._pointer] < goal:
            self._below += weights[self._pointer]
            self._pointer += 1
        while self._pointer > 0 and self._below >= goal:
            self._pointer -= 1
            self._below -= weights[self._pointer]
        self.edge = 2 ** ((self._pointer + self._first) / _PER_OCTAVE)

    def _scale_down(self) -> None:
        self._weights = array("d", [weight / _HEAVY for weight in self._weights])
        self._next /= _HEAVY
        # Summed anew: what rounding has left in the running sums goes with it.
        self.weight = sum(self._weights)
        self._below = sum(self._weights[: self._pointer])


# --- the time to the first byte of one target: what to expect of it now, and what is usual there ---


DECAY_S = 10.0
"""The time constant, in seconds, with which a peak is forgotten: Finagle's."""
FORGET_S = 120.0
"""Seconds over which the times of a target that nobody uses are doubted more and more."""
SHORTEST_S, LONGEST_S = 2.0**-10, 2.0**13
"""Times between these two are distinguished: a millisecond to two hours."""
QUANTILE_MIN_SAMPLES = 20

_OCTAVES = int(log2(LONGEST_S / SHORTEST_S))
_HALF_LIFE = 200
"""The number of last answers that have half of the weight in the histogram, and each of them at least that part in the mean."""


class Latency:
    """Times to first byte of one target, in seconds; `now` is monotonic and never goes back.

    Two memories. The peak-EWMA (as in Finagle and linkerd) believes a worse answer at once and a better one only by and by;
    it says where to send the next call. The histogram, in which the last few hundred answers count, says what is late;
    failures, which come faster or slower than any answer, are not counted there. Invariants: between two observations
    nothing gets worse; every step is O(1), in a fixed amount of memory.
    """

    __slots__ = ("_at", "_histogram", "_mean", "_peak", "count")

    def __init__(self) -> None:
        self.count = 0
        """The number of answers that were measured."""
        self._peak = self._mean = 0.0
        self._at = 0.0
        self._histogram = DecayingHistogram(SHORTEST_S, _OCTAVES, _HALF_LIFE)

    @property
    def last_seen_at(self) -> float:
        """Returns when something was measured last, in monotonic seconds."""
        return self._at

    def observe(self, seconds: float, now: float) -> None:
        """Takes in that the first byte of an answer came after so many seconds."""
        self.count = count = self.count + 1
        mean = self._mean
        floor = seconds if seconds < mean else mean
        faded = floor + (self._peak - floor) * exp((self._at - now) / DECAY_S)
        self._peak = seconds if seconds > faded else faded
        self._mean = mean + (seconds - mean) / (count if count < _HALF_LIFE else _HALF_LIFE)
        self._at = now
        self._histogram.add(seconds)

    def penalise(self, seconds: float, now: float) -> None:
        """Makes the target be expected slower than usual by so many seconds for a while, because a call failed there."""
        self._peak = max(self.peak_ewma(now), self._mean + seconds)
        self._at = now

    def peak_ewma(self, now: float) -> float:
        """Returns the seconds to expect of it: the worst of late, fading to what is usual; 0.0 when nothing is known."""
        peak, mean = self._peak, self._mean
        if peak <= mean:
            return peak
        return mean + (peak - mean) * exp((self._at - now) / DECAY_S)

    def hoped(self, now: float) -> float:
        """Returns the seconds that a target with nothing in flight may be hoped to take: the older the news, the fewer."""
        return self.peak_ewma(now) * exp((self._at - now) / FORGET_S)

    def quantile(self, p: float, min_samples: int = QUANTILE_MIN_SAMPLES) -> float | None:
        """Returns the seconds within which the share `p` (above 0, to 1) of answers began, +-10 %; None: too few measured."""
        if self.count < max(min_samples, 1):
            return None
        return self._histogram.quantile(p)


# --- corrections: how far estimates are off, and how long answers get ---


_OUTPUT_OCTAVES, _OUTPUT_HALF_LIFE = 24, 500
_FEW = 5
_FIRST_MARGIN = 0.25
"""What estimates may be short of, before it is known how good they are."""
_FEW_TOKENS = 100.0  # what a call of two words errs by is no measure for one of thousands


class Calibration:
    """What one model's finished calls taught: real to estimated input, and how long its answers get.

    Everything is O(1), and the oldest calls fade: half of the weight is the last 14 (input) or 500 (output) calls.

    It learns from what providers report. Invariant: a correction stays within a factor of four.
    """

    __slots__ = ("_log_ratio", "_outputs", "count", "error", "expected_output", "ratio")

    def __init__(self, first_output: int = 512) -> None:
        self.count = 0
        """The calls whose estimate was compared with what they used."""
        self._log_ratio = 0.0
        self.ratio = 1.0
        """Real to estimated input tokens, 0.25 to 4."""
        self.expected_output = first_output
        """The 90th percentile of this model's answers, in tokens; `first_output` before any was seen."""
        self.error = 0.0
        """Mean of |real - estimated| / the greater of both, of corrected estimates; a call of few tokens errs by few."""
        self._outputs = DecayingHistogram(1.0, _OUTPUT_OCTAVES, _OUTPUT_HALF_LIFE, share=0.9)

    def expect(self, first_output: int) -> None:
        """Sets what an answer is taken to be long before any was seen, in tokens."""
        if not self._outputs.weight:
            self.expected_output = first_output

    def input_estimate(self, estimated: int) -> int:
        """The estimate of `estimate_input_tokens`, corrected; at least 1."""
        return max(1, round(estimated * self.ratio)) if self.count else estimated

    def output_estimate(self, max_tokens: int | None) -> int:
        """`expected_output`, at most `max_tokens`."""
        expected = self.expected_output
        return expected if max_tokens is None else min(expected, max_tokens)

    @property
    def answers_seen(self) -> float:
        """The answers that show how long they get; later ones weigh more."""
        return self._outputs.weight

    def input_bound(self, estimated: int) -> float:
        """As `input_estimate`, and so much more that it is seldom too little."""
        margin = min(self.error, _FIRST_MARGIN) if self.count >= _FEW else _FIRST_MARGIN
        return self.input_estimate(estimated) * (1 + margin)

    def observe(self, estimated: int, real_input: int, real_output: int) -> None:
        """Learns from one finished call; `estimated` is uncorrected. Counts that are not positive teach nothing."""
        if real_output > 0:
            self._outputs.add(real_output)
            self.expected_output = ceil(self._outputs.edge)
        if estimated <= 0 or real_input <= 0:
            return
        self.count += 1
        # A plain mean at first; from the twentieth call on the last 14 have half of the weight.
        share = max(1 / self.count, 0.05)
        expected = estimated * self.ratio
        error = abs(real_input - expected) / max(real_input, expected, _FEW_TOKENS)
        self.error += share * (error - self.error)
        ratio = min(max(real_input / estimated, 0.25), 4.0)
        self._log_ratio += share * (log(ratio) - self._log_ratio)
        self.ratio = exp(self._log_ratio)


# --- the decisions: how long an attempt is waited for, and what a long wait says ---

USUAL_TIMES_MIN_SAMPLES = 10
"""The fewest answers that show what is usual."""
UNKNOWN_MEDIAN_S = 2.0
"""Seconds that the next target is taken to need, if its times are unknown."""
LEAST_ROOM_S = 1.0
"""Seconds that an attempt gets at least, if the times of its target are unknown."""
_SHARE, _SHARE_THINKING = 0.5, 0.75
_LONGEST_PATIENCE_S = 600.0
"""A longer deadline, as of a lane that may wait for hours, gives no attempt more time: it is the default of OpenAI's SDKs."""
_BEYOND_USUAL, _DESERTED = 1.5, 3.0
_FIRST_EVENT_FACTOR = 4.0
_FIRST_EVENT_S, _FIRST_EVENT_THINKING_S = (10.0, 120.0), (30.0, 300.0)
_UNKNOWN_EVENT_S, _UNKNOWN_EVENT_THINKING_S = 60.0, 300.0
_UNKNOWN_STREAM_S, _UNKNOWN_THINKING_S = 10.0, 120.0
_UNKNOWN_WHOLE_S = (10.0, 120.0)
_UNKNOWN_TRIAL_S = 20.0
_STALL_S = 10.0
_DEADLINE_SHARE = 3.0
_SHORTEST_SILENCE_S = 2.0
_FIRST_PROBE_S, _PROBE_GROWTH = 2.0, 1.5
_PROBE_S, _PROBE_THINKING_S = 10.0, 30.0


class UsualTimes(NamedTuple):
    """The time that calls of one kind usually take at a target until something is there for the client; None: unknown."""

    median_s: float | None
    late_s: float | None
    """The time by which all but one in twenty are answered."""


UNKNOWN = UsualTimes(None, None)


def usual_of(times: Latency | None) -> UsualTimes:
    """Returns what is usual by the answers that were measured; `UNKNOWN` where they are too few."""
    if times is None or times.count < USUAL_TIMES_MIN_SAMPLES:
        return UNKNOWN
    return UsualTimes(times.quantile(0.5, USUAL_TIMES_MIN_SAMPLES), times.quantile(0.95, USUAL_TIMES_MIN_SAMPLES))


def room_s(left_s: float, usual: UsualTimes, following: UsualTimes, *, thinks: bool) -> float:
    """Returns the seconds that an attempt may take of the caller's `left_s` while another target is untried; inf: all.

    It is half of them (of 10 minutes at most; three quarters for a call that thinks, where nothing is known), or one and a
    half times what is usual, if that is more; but the time that is usual at the target that follows is left over. A target is
    never left before the time by which it usually has answered: a deadline that has no room for both is not divided.
    """
    most_s = left_s - (UNKNOWN_MEDIAN_S if following.median_s is None else following.median_s)
    if most_s < (LEAST_ROOM_S if usual.late_s is None else usual.late_s):
        return inf
    patience_s = min(left_s, _LONGEST_PATIENCE_S)
    if usual.late_s is None:
        return min(patience_s * (_SHARE_THINKING if thinks else _SHARE), most_s)
    return min(max(patience_s * _SHARE, usual.late_s * _BEYOND_USUAL), most_s)


def needed_s(median_s: float, timeout_s: float) -> float:
    """Returns the seconds that a call must have left when it goes to a target, so that its answer is likely to be in time.

    `median_s` is usual there for calls of its kind. At most half of the `timeout_s` that its caller has set is asked for,
    because the caller knows its calls, and some take much less than others. So a call that has not waited always goes, and
    what is known of a target does not keep calls away that would show it to be wrong.
    """
    return min(median_s, timeout_s / 2)


def first_event_s(usual: UsualTimes, *, thinks: bool) -> float:
    """Returns the seconds that the first event of a stream may take (`first_event: auto`)."""
    if usual.late_s is None:
        return _UNKNOWN_EVENT_THINKING_S if thinks else _UNKNOWN_EVENT_S
    least_s, most_s = _FIRST_EVENT_THINKING_S if thinks else _FIRST_EVENT_S
    return min(max(usual.late_s * _FIRST_EVENT_FACTOR, least_s), most_s)


def silence_s(usual: UsualTimes, factor: float, *, stream: bool, thinks: bool, shortest_deadline_s: float) -> float:
    """Returns the seconds without a sign of life after which several calls make their target suspect.

    `shortest_deadline_s` is that of the calls in flight there, as far as their callers set one; else inf.
    """
    if usual.late_s is not None:
        return max(usual.late_s * factor, _SHORTEST_SILENCE_S)
    if thinks:
        return _UNKNOWN_THINKING_S
    if stream:
        return _UNKNOWN_STREAM_S
    least_s, most_s = _UNKNOWN_WHOLE_S
    return min(max(shortest_deadline_s / _DEADLINE_SHARE, least_s), most_s)


def trial_s(usual: UsualTimes, silence_s: float, *, stream: bool, thinks: bool) -> float:
    """Returns the seconds without a sign of life after which a few of several calls try another target; inf: none does.

    It is less than `silence_s` where nothing is known of whole answers, which may be long: the other target's time tells.
    """
    return inf if usual.late_s is not None or stream or thinks else min(silence_s, _UNKNOWN_TRIAL_S)


def stall_s(usual: UsualTimes, factor: float) -> float:
    """Returns the seconds without a sign of life after which a single call tries another target; inf: nothing is known."""
    return inf if usual.late_s is None else max(usual.late_s * factor, _STALL_S)


def probe_s(usual: UsualTimes, ejections: int, *, thinks: bool) -> float:
    """Returns the seconds that a probe waits for a target which had fallen silent, after `ejections` in a row.

    Where nothing is known the probe waits longer each time, so that one that is only slow is found well, but never for long.
    """
    if usual.late_s is not None:
        return max(usual.late_s * _BEYOND_USUAL, _FIRST_PROBE_S)
    longest_s = _PROBE_THINKING_S if thinks else _PROBE_S
    return min(_FIRST_PROBE_S * _PROBE_GROWTH ** min(max(ejections - 1, 0), 30), longest_s)


def is_evidence(waited_s: float, usual: UsualTimes, *, thinks: bool, unserved_s: float = 0.0) -> bool:
    """Returns whether a deadline that passed after `waited_s` without a sign of life shows that the target is not well.

    Where nothing is known, a short wait only tells something of a target that has served nobody for long: `unserved_s`.
    """
    if usual.late_s is not None:
        return waited_s >= usual.late_s * _BEYOND_USUAL
    long_s = _UNKNOWN_THINKING_S if thinks else _UNKNOWN_STREAM_S
    return waited_s >= long_s or (unserved_s >= long_s and waited_s >= LEAST_ROOM_S)


def is_deserted(waited_s: float, usual: UsualTimes, *, thinks: bool) -> bool:
    """Returns whether a client that left after `waited_s` of silence shows it: most leave for reasons of their own."""
    if usual.late_s is not None:
        return waited_s >= max(usual.late_s * _DESERTED, _SHORTEST_SILENCE_S)
    return is_evidence(waited_s, usual, thinks=thinks)
