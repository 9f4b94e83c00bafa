"""How full the delay queue is, and who has more than a share of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.admission.fair_queue import Occupancy
from gateway.core.types import QueueBounds

BOUNDS = QueueBounds(max_calls=4, max_bytes=100, max_percent_per_tenant=50)


def full_of(*tenants: str, size: int = 10) -> Occupancy:
    occupancy = Occupancy(BOUNDS)
    for tenant in tenants:
        occupancy.add(tenant, size, "m", "batch")
    return occupancy


def test_a_tenant_alone_may_take_everything() -> None:
    """There is nobody to leave something to."""
    occupancy = full_of("a", "a", "a")

    assert occupancy.may_hold("a", 70)
    assert not occupancy.is_full(70)
    assert occupancy.is_full(71)


def test_among_several_none_gets_more_than_its_share() -> None:
    """Half of the calls here, and half of the bytes."""
    occupancy = full_of("a", "a", "b")

    assert not occupancy.may_hold("a", 10)
    assert occupancy.may_hold("b", 40)
    assert not occupancy.may_hold("b", 41)
    assert occupancy.over_share("b") == "a"
    assert occupancy.over_share("a") is None


def test_a_call_larger_than_the_queue_is_never_held() -> None:
    """However many others were sent away."""
    assert not full_of().may_hold("a", 101)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.sampled_from(["batch", "interactive"])), max_size=12
    )
)
def test_whatever_was_counted_is_taken_back(calls: list[tuple[str, int, str]]) -> None:
    """In another order than it came."""
    occupancy = Occupancy(BOUNDS)
    for tenant, size, lane in calls:
        occupancy.add(tenant, size, "m", lane)  # type: ignore[arg-type]  # lane names
    for tenant, size, lane in sorted(calls):
        occupancy.remove(tenant, size, "m", lane)  # type: ignore[arg-type]  # lane names

    assert (occupancy.calls, occupancy.bytes, sum(occupancy.depth.values())) == (0, 0, 0)
    assert all(occupancy.over_share(tenant) is None for tenant in "abcd")
