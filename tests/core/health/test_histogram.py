"""The decaying histogram: quantiles within a step of the truth, over any range, and old values fade."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.health.times import DecayingHistogram

BOUNDED = settings(deadline=None, derandomize=True)
STEP = 2**0.25

values = st.lists(st.floats(1.0, 2.0**20), min_size=1, max_size=60)


def of(seen: list[float], half_life: int = 500, share: float = 0.9) -> DecayingHistogram:
    """One that has counted these values from 1 up."""
    histogram = DecayingHistogram(1.0, 24, half_life, share)
    for value in seen:
        histogram.add(value)
    return histogram


def test_without_values_it_has_no_quantile() -> None:
    """The followed one is the least that can be told apart."""
    histogram = of([])

    assert (histogram.weight, histogram.edge) == (0.0, 1.0)
    with pytest.raises(IndexError):
        histogram.quantile(0.5)


@BOUNDED
@given(values, st.sampled_from([0.5, 0.9, 0.99]))
def test_a_followed_quantile_is_at_most_a_step_too_high(seen: list[float], share: float) -> None:
    """Compared with sorting all values; weights hardly differ over so few."""
    edge = of(seen, share=share).edge

    ranked = sorted(seen)
    low = ranked[max(0, ceil((share - 0.02) * len(seen)) - 2)]
    high = ranked[min(len(seen) - 1, ceil((share + 0.02) * len(seen)))]
    assert low * 0.999 <= edge < high * STEP * 1.001


@BOUNDED
@given(values, st.sampled_from([0.5, 0.9, 0.99]))
def test_the_followed_quantile_is_the_one_that_is_summed(seen: list[float], share: float) -> None:
    """The pointer, which moves with each value, and the sum over all steps find the same step: edge and middle of it."""
    histogram = of(seen, share=share)

    found = histogram.quantile(share)
    assert any(abs(histogram.edge / (found * STEP**away) - STEP**0.5) < 1e-6 for away in (-1, 0, 1))


@BOUNDED
@given(st.integers(0, 80))
def test_a_value_on_the_edge_of_two_steps_belongs_to_the_lower(step: int) -> None:
    """So the 90th percentile of answers of 512 tokens is 512, however the logarithm is rounded."""
    value = 2 ** (step / 4)

    assert of([value]).edge == pytest.approx(value)


@BOUNDED
@given(st.floats(0.0, 1e300, allow_nan=False))
def test_what_is_out_of_range_counts_as_the_nearest(value: float) -> None:
    """Nothing raises, not even for nought."""
    assert 1.0 <= of([value]).edge <= 2.0**24


@BOUNDED
@given(st.integers(2, 400))
def test_the_latest_values_have_half_of_the_weight(half_life: int) -> None:
    """So many as the half-life says, behind any number of others."""
    histogram = of([2.0] * 5000 + [1000.0] * half_life, half_life, 0.0)

    assert histogram.quantile(0.49) == pytest.approx(2.0, rel=0.1)
    assert histogram.quantile(0.51) == pytest.approx(1000.0, rel=0.1)


def test_old_values_are_forgotten() -> None:
    """Long answers of long ago do not count, and the weights stay numbers over any time."""
    histogram = of([5000.0] * 300_000)
    for _ in range(3000):
        histogram.add(20)
    assert histogram.edge == pytest.approx(20, rel=0.2)

    for value in [300, 20, 20, 20] * 1000:
        histogram.add(value)
    assert histogram.edge == pytest.approx(300, rel=0.2)
    assert 0.0 < histogram.weight < 1e160
