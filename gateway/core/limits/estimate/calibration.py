"""How far estimates of a model's tokens are off, and how long its answers get, learned from what providers report.

It must not know requests or limits. Invariants: every step is O(1); a correction stays within a factor of four.
"""

from __future__ import annotations

from math import ceil, exp, log
from typing import NamedTuple

from gateway.core.health.times.histogram import DecayingHistogram


class EstimateErrors(NamedTuple):
    """How far corrected estimates were off: running means of real/estimated and of |real - estimated| / real."""

    calls: int
    ratio: float
    mean_error: float


_OUTPUT_OCTAVES, _OUTPUT_HALF_LIFE = 24, 500
_FEW = 5
_FIRST_MARGIN = 0.25
"""What estimates may be short of, before it is known how good they are."""


class Calibration:
    """What one model's finished calls taught: real to estimated input, and how long its answers get.

    Everything is O(1), and the oldest calls fade: half of the weight is the last 14 (input) or 500 (output) calls.
    """

    __slots__ = ("_first_output", "_log_ratio", "_outputs", "count", "error", "expected_output", "ratio")

    def __init__(self, first_output: int = 512) -> None:
        self.count = 0
        self._first_output = first_output
        self._log_ratio = 0.0
        self.ratio = 1.0
        """Real to estimated input tokens, 0.25 to 4."""
        self.expected_output = first_output
        """The 90th percentile of this model's answers, in tokens; `first_output` before any was seen."""
        self.error = 0.0
        """Mean of |real - estimated| / real, of corrected estimates."""
        self._outputs = DecayingHistogram(1.0, _OUTPUT_OCTAVES, _OUTPUT_HALF_LIFE, share=0.9)

    def expect(self, first_output: int) -> None:
        """Sets what an answer is taken to be long before any was seen, in tokens."""
        self._first_output = first_output
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
        """So many answers have told how long they get; later ones weigh more."""
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
        share = max(1 / self.count, 0.05)
        error = abs(real_input - estimated * self.ratio) / real_input
        self.error += share * (error - self.error)
        ratio = min(max(real_input / estimated, 0.25), 4.0)
        self._log_ratio += share * (log(ratio) - self._log_ratio)
        self.ratio = exp(self._log_ratio)

    def errors(self) -> EstimateErrors:
        """For the metric and `/admin`."""
        return EstimateErrors(self.count, self.ratio, self.error)
