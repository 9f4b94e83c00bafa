"""The gate of one target: what it lets through, and what each kind of answer teaches it."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.error_tables import Diagnosis
from gateway.core.limits import reservation
from gateway.core.limits.bucket import NOTHING, Cost
from gateway.core.limits.headers import Learned, never_fits, retry_delay_s
from gateway.core.limits.limit_table import Limits, Style
from gateway.core.limits.reservation import Refusal, Reservation, refused
from gateway.core.limits.target_limits import BURST, LONGEST_HOLD_S, QUOTA_LONGEST_S, QUOTA_PROBE_S, Gate
from gateway.core.snapshot import Counting
from gateway.core.types import LANES, ErrorClass, Usage
from tests.rows import rows

WALL = 1_800_000_000.0
FIXED = Counting(learns=False)
LEARNING = Counting(kind="openai")
ONE = Cost()
PER_MINUTE = ((b"x-ratelimit-limit-requests", b"120"), (b"x-ratelimit-remaining-requests", b"119"))
TOO_LARGE = b'{"error": {"message": "Request too large: Limit 30000, Requested 60000."}}'

Headers = tuple[tuple[bytes, bytes], ...]


def new_gate(counting: Counting = FIXED, /, **limits: float) -> Gate:
    return Gate("p/m", Limits(**limits), counting, 0.0)  # type: ignore[arg-type]  # fields by name


def take(gate: Gate, now: float, cost: Cost = ONE, *, estimate: int = 0, max_tokens: int | None = None) -> Reservation:
    grant = reservation.reserve(gate, cost, now, estimate=estimate, max_tokens=max_tokens)
    assert grant is not None
    return grant


def accept(gate: Gate, grant: Reservation, now: float, *headers: tuple[bytes, bytes], is_stream: bool = False) -> None:
    grant.answered(headers, now, WALL + now, is_stream=is_stream)


def refuse(
    gate: Gate,
    grant: Reservation,
    now: float,
    *headers: tuple[bytes, bytes],
    error_class: str = ErrorClass.RATE_LIMIT_REQUESTS,
    body: bytes = b"",
) -> Refusal:
    delay_s = retry_delay_s(429, headers, body, WALL + now)
    diagnosis = Diagnosis(ErrorClass(error_class), delay_s=delay_s, never_fits=never_fits(body))
    return refused(grant, diagnosis, headers, now, WALL + now)


def retry_after(seconds: float) -> tuple[bytes, bytes]:
    return b"retry-after-ms", b"%d" % (seconds * 1000)


def levels(gate: Gate, now: float) -> dict[str, float]:
    return {row.name: row.level for row in gate.rows(now)}


def capacities(gate: Gate) -> dict[str, tuple[float, str]]:
    return {row.name: (row.capacity, row.source) for row in gate.rows(0.0)}


def drain(gate: Gate, start: float, seconds: float, cost: Cost = ONE, *, latency_s: float | None = None) -> list[float]:
    """When calls go, each at the first moment it may, while more wait than ever fit. With a latency all succeed."""
    now = start
    went: list[float] = []
    flying: list[Reservation] = []
    while now < start + seconds and len(went) < 100_000:
        while latency_s is not None and flying and flying[0].at + latency_s <= now:
            accept(gate, flying.pop(0), now)
        grant = reservation.reserve(gate, cost, now)
        if grant is not None:
            went.append(now)
            flying.append(grant)
            continue
        wait_s = reservation.admit(gate, cost, now)
        ends_at = flying[0].at + latency_s if flying and latency_s is not None else inf
        now = min(inf if wait_s is None else now + max(wait_s, 1e-6), ends_at)
        if now == inf:
            break
    return went


# -- A grant ends once


@rows("end", ["settle", "cancel", "failed", "refused"])
@rows("again", ["settle", "cancel", "failed"])
def test_what_was_taken_is_corrected_once(end: str, again: str) -> None:
    """Whatever ends a grant, a second end changes nothing: the slot is free once, the levels are right."""
    gate = new_gate(requests_per_min=10, tokens_per_min=1000, max_concurrency=3)
    other = take(gate, 0.0, Cost(1, 100, 50), estimate=100)
    grant = take(gate, 0.0, Cost(1, 100, 50), estimate=100)

    finish(gate, grant, end)
    after, in_flight = levels(gate, 0.0), gate.in_flight
    finish(gate, grant, again)

    assert (levels(gate, 0.0), gate.in_flight) == (after, in_flight)
    assert in_flight == 1
    assert after["concurrency"] == 2
    finish(gate, other, "cancel")
    assert gate.in_flight == 0


def finish(gate: Gate, grant: Reservation, how: str) -> None:
    if how == "settle":
        grant.settle(Usage(80, 20), 0.0)
    elif how == "cancel":
        grant.cancel(0.0)
    elif how == "failed":
        grant.failed(0.0, is_overload=False)
    else:
        refuse(gate, grant, 0.0)


@pytest.mark.parametrize(
    ("end", "requests", "tokens"),
    [("settle", 9, 900), ("cancel", 10, 1000), ("failed", 9, 1000), ("refused", 9, 1000)],
)
def test_each_end_gives_back_what_was_not_used(end: str, requests: float, tokens: float) -> None:
    """The real usage stays taken; of a refused or failed call its request; of one that was never sent nothing."""
    gate = new_gate(requests_per_min=10, tokens_per_min=1000)

    finish(gate, take(gate, 0.0, Cost(1, 300, 50), estimate=300), end)

    assert levels(gate, 0.0) == {"requests_per_min": requests, "tokens_per_min": tokens}


def test_a_flight_refused_for_its_tokens_keeps_those_of_one_call() -> None:
    """Our level was too high: that is put right once, and not by probes, nor where headers tell the true level."""
    tokens = ErrorClass.RATE_LIMIT_TOKENS
    gate = new_gate(LEARNING, tokens_per_min=1000)
    for grant in [take(gate, 0.0, Cost(1, 100, 0)) for _ in range(3)]:
        refuse(gate, grant, 0.0, retry_after(1), error_class=tokens)
    assert levels(gate, 0.0)["tokens_per_min"] == 900
    refuse(gate, take(gate, 1.0, Cost(1, 100, 0)), 1.0, retry_after(1), error_class=tokens)
    assert levels(gate, 1.0)["tokens_per_min"] == pytest.approx(900 + 1000 / 60)

    gate = new_gate(LEARNING, tokens_per_min=1000)
    refuse(gate, take(gate, 0.0, Cost(1, 100, 0)), 0.0, *PER_MINUTE, retry_after(1), error_class=tokens)
    assert levels(gate, 0.0)["tokens_per_min"] == 1000


def test_an_end_that_tells_no_usage_leaves_the_estimate() -> None:
    """Nobody knows better: a client that left, an answer without counts."""
    gate = new_gate(tokens_per_min=1000)

    take(gate, 0.0, Cost(1, 300, 50), estimate=300).settle(None, 0.0)

    assert levels(gate, 0.0)["tokens_per_min"] == 650


def test_a_reservation_is_all_or_nothing() -> None:
    """What does not fit takes nothing, neither a slot nor a request."""
    gate = new_gate(requests_per_min=10, tokens_per_min=1000, max_concurrency=1)
    take(gate, 0.0, Cost(1, 500, 0))
    before = levels(gate, 0.0)

    assert reservation.reserve(gate, Cost(1, 100, 0), 0.0) is None
    assert reservation.reserve(gate, Cost(1, 600, 0), 0.0) is None

    assert levels(gate, 0.0) == before
    assert gate.in_flight == 1


@pytest.mark.parametrize(("since_s", "goes"), [(None, 100), (0.0, 90), (150.0, 95), (300.0, 100)])
def test_what_is_left_over_for_higher_lanes_shrinks_while_none_of_them_calls(since_s: float | None, goes: int) -> None:
    """A tenth of the limit right after such a call, nothing five minutes later, nor where none has ever come."""
    gate = new_gate(requests_per_min=100)
    if since_s is not None:
        take(gate, 0.0).cancel(0.0)
    now = since_s or 0.0

    went = 0
    while reservation.enter(gate, 0, None, now, 10.0, LANES.index("batch")) is not None:
        went += 1

    assert went == goes


def test_a_call_whose_client_left_is_not_in_flight_any_more() -> None:
    """Not for the search either: else its window would fill up with the dead."""
    gate = new_gate(LEARNING)

    for _ in range(10):
        grants = [reservation.reserve(gate, ONE, 0.0) for _ in range(10)]
        assert None not in grants
        for grant in grants:
            assert grant is not None
            grant.settle(None, 0.0)


def test_fractions_of_tokens_leave_no_trace() -> None:
    """Estimates are cut to fractions; when calls have ended in any order, the next one is still let in."""
    gate = new_gate(tokens_per_min=1e9)
    take(gate, 0.0, Cost(1, 100, 0), estimate=100).settle(Usage(200, 5), 0.0)  # estimates err
    take(gate, 0.0, NOTHING)

    for parts in range(3, 300):
        grants = [take(gate, 0.0, Cost(1, 1e5 / (parts + n), 0)) for n in range(3)]
        for grant in grants:
            grant.settle(None, 0.0)
        take(gate, 0.0, NOTHING).cancel(0.0)


# -- Pauses


def test_nothing_goes_during_a_pause() -> None:
    """Until its very end; the wait is told to the moment."""
    gate = new_gate(requests_per_min=600)

    assert refuse(gate, take(gate, 10.0), 10.0, retry_after(5)) is Refusal.WAIT

    assert gate.pauses.ends_at == 15.0
    assert reservation.admit(gate, ONE, 10.0) == 5.0
    assert reservation.ready_at(gate, ONE, 10.0) == 15.0
    assert reservation.reserve(gate, ONE, 14.999) is None
    assert reservation.reserve(gate, ONE, 15.0) is not None


@pytest.mark.parametrize("order", [(5, 2), (2, 5), (5, 0), (5, 5)])
def test_the_latest_hint_wins(order: tuple[float, float]) -> None:
    """A pause never moves back, whoever tells what in which order."""
    gate = new_gate()
    grants = [take(gate, 0.0) for _ in order]

    for grant, hint in zip(grants, order, strict=True):
        refuse(gate, grant, 1.0, retry_after(hint))

    assert gate.pauses.ends_at == 6.0
    assert gate.pauses.count == 1


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from([None, 0.0, 0.5, 7.0, 4000.0])), max_size=20))
def test_no_answer_moves_a_pause_back(course: list[tuple[float, float | None]]) -> None:
    """Nor does anything go before its end."""
    gate = new_gate(LEARNING, requests_per_min=6000)
    now, until = 0.0, -inf
    grants = [take(gate, now) for _ in course]

    for (gap_s, hint), grant in zip(course, grants, strict=True):
        now += gap_s
        refuse(gate, grant, now, *([] if hint is None else [retry_after(hint)]))
        until = max(until, gate.pauses.ends_at)
        assert gate.pauses.ends_at == until
        assert (reservation.reserve(gate, ONE, now) is None) or until <= now


def test_those_behind_a_pause_are_predicted_one_after_the_other() -> None:
    """After its end, at the rate of the limit."""
    gate = new_gate(requests_per_min=60)
    refuse(gate, take(gate, 0.0), 0.0, retry_after(5))

    assert reservation.ready_at(gate, ONE, 0.0, Cost(10, 0, 0)) == 15.0


def test_a_success_of_an_earlier_call_ends_no_pause() -> None:
    """It was sent before the refusal, and says nothing about now."""
    gate = new_gate(requests_per_min=600)
    early, refused = take(gate, 0.0), take(gate, 0.0)

    refuse(gate, refused, 1.0, retry_after(5))
    accept(gate, early, 2.0)

    assert reservation.admit(gate, ONE, 2.0) == 4.0


@rows(
    ("limits", "cost", "rate", "most"),
    [
        ({"requests_per_min": 6000}, ONE, 100, 120),
        ({"requests_per_min": 60}, ONE, 1, 2),
        ({"tokens_per_min": 60_000}, Cost(1, 10, 0), 100, 121),
        ({"tokens_per_min": 60_000}, Cost(1, 900, 0), 1000 / 900, 3),
        ({"input_tokens_per_min": 60_000}, Cost(1, 10, 5), 100, 121),
        ({"requests_per_min": 6000, "tokens_per_min": 60_000}, Cost(1, 10, 0), 100, 120),
    ],
)
def test_no_herd_follows_a_pause(limits: dict[str, float], cost: Cost, rate: float, most: int) -> None:
    """The first second sees at most 1.2 times the rate (or one call more than that), though a minute's worth is there."""
    gate = new_gate(**limits)
    refuse(gate, take(gate, 0.0, cost), 0.0, retry_after(5))

    went = drain(gate, 5.0, 1.0, cost)

    assert went[0] == 5.0
    assert 0.5 * rate <= len(went) <= most


def test_the_burst_does_not_come_a_second_later_either() -> None:
    """What was left of a minute's requests before the refusal is not believed after it."""
    gate = new_gate(requests_per_min=6000)
    refuse(gate, take(gate, 0.0), 0.0, retry_after(5))

    assert len(drain(gate, 5.0, 10.0)) <= 1.2 * 10 * 100


def test_no_herd_follows_a_pause_where_no_limit_is_known() -> None:
    """The rate that is being searched for holds from the first moment on."""
    gate = new_gate(LEARNING)
    grants = [take(gate, 0.0) for _ in range(16)]
    for grant in grants:
        accept(gate, grant, 0.1)
        grant.settle(None, 0.1)
    refuse(gate, take(gate, 0.2), 0.3, retry_after(5))

    assert reservation.admit(gate, ONE, 5.3) == 0.0
    (row,) = gate.rows(5.3)
    went = drain(gate, 5.3, 1.0, latency_s=0.05)

    assert row.name == "found_requests_per_min"
    assert 1 <= len(went) <= 1.2 * row.capacity / 60 + 1


def test_long_after_a_pause_there_is_no_herd_to_fear() -> None:
    """Whoever comes a minute later may use the whole burst."""
    gate = new_gate(requests_per_min=600)
    refuse(gate, take(gate, 0.0), 0.0, retry_after(5))

    assert len(drain(gate, 65.0, 0.001)) == 600


def test_a_target_that_only_refuses_is_asked_by_one_call_at_a_time() -> None:
    """After the second pause without a success between; the first success opens it up."""
    gate = new_gate(requests_per_min=6000)
    refuse(gate, take(gate, 0.0), 0.0, retry_after(1))
    assert len(drain(gate, 2.5, 0.001)) > 1  # after one pause: as the limits allow
    probes = [reservation.reserve(gate, ONE, 2.6) for _ in range(2)]
    assert probes[1] is not None
    refuse(gate, probes[1], 2.7, retry_after(1))

    probe = take(gate, 4.0)
    assert reservation.reserve(gate, ONE, 4.0) is None
    assert reservation.admit(gate, ONE, 4.0) == 1.0
    refuse(gate, probe, 4.1, retry_after(1))
    assert reservation.reserve(gate, ONE, 5.0) is None  # it is a pause again
    probe = take(gate, 6.2)
    assert reservation.reserve(gate, ONE, 6.2) is None
    accept(gate, probe, 6.3)

    assert len(drain(gate, 7.3, 0.001)) > 1


@pytest.mark.parametrize("end", ["cancel", "failed", "settle"])
def test_a_probe_that_ends_without_a_word_makes_room_for_the_next(end: str) -> None:
    """A client that left or a broken connection neither opens the gate nor closes it for ever."""
    gate = new_gate()
    for now in (0.0, 2.0):
        refuse(gate, take(gate, now), now, retry_after(1))
    probe = take(gate, 5.0)

    finish(gate, probe, end)

    take(gate, 5.0)
    assert reservation.reserve(gate, ONE, 5.0) is None


def test_calls_of_an_earlier_flight_are_no_probes() -> None:
    """Those still on their way when the target was paused do not keep the probe from going."""
    gate = new_gate()
    flight = [take(gate, 0.0) for _ in range(5)]
    refuse(gate, flight[0], 1.0, retry_after(1))
    refuse(gate, take(gate, 3.0), 3.0, retry_after(1))

    probe = take(gate, 5.0)
    for grant in flight[1:]:
        grant.settle(None, 5.0)
    assert reservation.reserve(gate, ONE, 5.0) is None

    probe.cancel(5.0)
    take(gate, 5.0)


def test_a_success_of_an_earlier_flight_opens_nothing() -> None:
    """The target let that call in before it began to refuse."""
    gate = new_gate()
    early, first = take(gate, 0.0), take(gate, 0.0)
    refuse(gate, first, 1.0, retry_after(1))
    refuse(gate, take(gate, 3.0), 3.0, retry_after(1))

    accept(gate, early, 3.5)

    take(gate, 5.0)
    assert reservation.reserve(gate, ONE, 5.0) is None


def test_a_flight_of_refusals_counts_once() -> None:
    """A hundred calls that were sent together and refused together are one sign, not a hundred."""
    gate = new_gate()
    for grant in [take(gate, 0.0) for _ in range(100)]:
        refuse(gate, grant, 1.0, retry_after(1))

    assert len([reservation.reserve(gate, ONE, 3.0) for _ in range(5)]) == 5
    assert gate.in_flight == 5


@pytest.mark.parametrize("hint", [0.0, 0.001])
def test_a_provider_that_asks_for_no_time_again_and_again_is_not_hammered(hint: float) -> None:
    """`retry-after: 0` is taken at its word once."""
    gate = new_gate()
    now, asked = 0.0, 0

    while now < 10.0:
        grant = reservation.reserve(gate, ONE, now)
        if grant is not None:
            asked += 1
            now += 0.001
            refuse(gate, grant, now, retry_after(hint))
        else:
            now += max(0.0001, reservation.admit(gate, ONE, now) or 0.0)

    assert asked <= 20


# -- Refusals that nobody explains


def test_unexplained_refusals_back_off_exponentially() -> None:
    """Known limits, no hint when to come back: each time twice as long, up to eight seconds; a success starts anew."""
    gate = new_gate(requests_per_min=60_000)
    now, waits = 0.0, []
    for _ in range(10):
        refuse(gate, take(gate, now), now)
        waits.append(gate.pauses.ends_at - now)
        now = gate.pauses.ends_at

    assert waits == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0])
    accept(gate, take(gate, now), now)
    grant = take(gate, now)
    refuse(gate, grant, now)
    assert gate.pauses.ends_at - now == pytest.approx(0.05)


def test_limits_that_do_not_explain_the_refusals_are_not_believed_for_ever() -> None:
    """Somebody else uses the same account: the rate that is left for us is searched for, headers or no headers."""
    gate = new_gate(LEARNING, requests_per_min=60_000)
    now = 0.0
    while "found_requests_per_min" not in levels(gate, now):
        refuse(gate, take(gate, now), now)
        now = gate.pauses.ends_at
        accept(gate, take(gate, now), now)  # it serves, but not as much as was told
        assert now < 60

    found = levels(gate, now)["found_requests_per_min"]
    assert found < 60_000
    now += 1
    accept(gate, take(gate, now), now, (b"x-ratelimit-limit-requests", b"60000"))
    assert found <= levels(gate, now)["found_requests_per_min"] < 1000
    assert len({row.name for row in gate.rows(now)}) == len(gate.rows(now))


def test_a_refusal_now_and_then_does_not_make_limits_unbelievable() -> None:
    """One in thirty calls, for hours: no search."""
    gate = new_gate(LEARNING, requests_per_min=60_000)
    now = 0.0
    for number in range(3000):
        now = max(now + 0.1, gate.pauses.ends_at)
        grant = take(gate, now)
        if number % 30:
            accept(gate, grant, now)
            grant.settle(None, now)
        else:
            refuse(gate, grant, now)

    assert levels(gate, now).keys() == {"requests_per_min"}


def test_limits_are_believed_where_the_config_says_so() -> None:
    """With `learns` off there is no search."""
    gate = new_gate(requests_per_min=60_000)
    now = 0.0
    for _ in range(50):
        refuse(gate, take(gate, now), now)
        now = gate.pauses.ends_at

    assert levels(gate, now).keys() == {"requests_per_min"}


# -- Quotas, and what never fits


@pytest.mark.parametrize(
    ("error_class", "headers", "until"),
    [
        (ErrorClass.QUOTA_EXHAUSTED, [], QUOTA_PROBE_S),
        (ErrorClass.QUOTA_EXHAUSTED, [retry_after(300)], 300.0),
        (ErrorClass.RATE_LIMIT_REQUESTS, [retry_after(LONGEST_HOLD_S + 1)], QUOTA_LONGEST_S),
    ],
)
def test_a_spent_quota_is_not_waited_for(error_class: str, headers: list[tuple[bytes, bytes]], until: float) -> None:
    """No turn is predicted before its reset; then it is tried again."""
    gate = new_gate(requests_per_min=60)
    grant, other = take(gate, 0.0), take(gate, 0.0)

    assert refuse(gate, grant, 0.0, *headers, error_class=error_class) is Refusal.EXHAUSTED
    refuse(gate, other, 0.0, retry_after(1))

    assert gate.pauses.quota_until == until
    assert reservation.ready_at(gate, ONE, 1.0) == inf
    assert reservation.reserve(gate, ONE, until - 0.001) is None
    assert gate.blocking(ONE, 1.0) == "quota"
    assert reservation.ready_at(gate, ONE, until) == until
    take(gate, until)


def test_the_longest_rate_limit_is_still_one() -> None:
    """An hour is waited for, if the caller has the time."""
    gate = new_gate()

    assert refuse(gate, take(gate, 0.0), 0.0, retry_after(LONGEST_HOLD_S)) is Refusal.WAIT
    assert reservation.ready_at(gate, ONE, 0.0) == LONGEST_HOLD_S


def test_a_call_above_the_limit_pauses_nobody() -> None:
    """It is told so, takes nothing, and the others go on."""
    gate = new_gate(requests_per_min=60, tokens_per_min=100_000)
    before = levels(gate, 0.0)

    refusal = refuse(gate, take(gate, 0.0, Cost(1, 60_000, 0)), 0.0, retry_after(9), body=TOO_LARGE)

    assert refusal is Refusal.NEVER_FITS
    assert levels(gate, 0.0) == before
    assert (gate.in_flight, reservation.admit(gate, ONE, 0.0)) == (0, 0.0)


def test_an_estimate_a_little_above_the_limit_still_fits() -> None:
    """Estimates err: up to a quarter above waits for all of the limit; far above never fits."""
    gate = new_gate(tokens_per_min=1000)

    assert gate.cost_of(1200, 0) == Cost(1, 1000, 0)
    assert reservation.admit(gate, gate.cost_of(1200, 0), 0.0) == 0.0
    assert gate.cost_of(1300, 0) == Cost(1, 1300, 0)
    assert reservation.admit(gate, gate.cost_of(1300, 0), 0.0) == inf
    assert reservation.ready_at(gate, gate.cost_of(1300, 0), 0.0) == inf


def test_never_is_never_also_while_a_slot_is_awaited() -> None:
    """A call that can never fit is not told to wait for a release, nor for a search or a probe."""
    gate = new_gate(tokens_per_min=1000, max_concurrency=1)
    take(gate, 0.0, Cost(1, 10, 0))

    assert reservation.admit(gate, Cost(1, 5000, 0), 0.0) == inf
    assert reservation.admit(gate, Cost(1, 10, 0), 0.0) is None

    gate = new_gate(tokens_per_min=1000)
    for now in (0.0, 2.0, 9.0):
        probe = take(gate, now, Cost(1, 10, 0))
        if now < 9.0:
            refuse(gate, probe, now, retry_after(1))
    assert reservation.admit(gate, Cost(1, 5000, 0), 9.0) == inf
    assert reservation.admit(gate, Cost(1, 10, 0), 9.0) == 1.0


def test_a_probe_that_is_not_refused_at_once_has_been_let_in() -> None:
    """Its answer may take minutes; the others need not wait for it."""
    gate = new_gate(requests_per_min=6000)
    for now in (0.0, 2.0):
        refuse(gate, take(gate, now), now, retry_after(1))
    take(gate, 5.0)
    assert reservation.reserve(gate, ONE, 5.9) is None

    take(gate, 6.1)
    take(gate, 6.1)


# -- Headers


def test_headers_tell_the_limits_and_end_the_search() -> None:
    """What a provider tells needs not be found by trial."""
    gate = new_gate(LEARNING)
    assert levels(gate, 0.0).keys() == {"found_requests_per_min"}

    accept(gate, take(gate, 0.0), 0.1, *PER_MINUTE)

    assert capacities(gate) == {"requests_per_min": (120, "learned")}
    assert levels(gate, 0.1)["requests_per_min"] == pytest.approx(119, abs=1)


def test_token_limits_are_counted_from_when_they_are_known() -> None:
    """Then calls cost tokens here, too."""
    gate = new_gate(LEARNING)
    assert levels(gate, 0.0).keys() == {"found_requests_per_min"}

    accept(
        gate, take(gate, 0.0), 0.0, (b"x-ratelimit-limit-tokens", b"1000"), (b"x-ratelimit-remaining-tokens", b"900")
    )

    assert gate.has_token_limit
    assert reservation.reserve(gate, Cost(1, 950, 0), 0.0) is None
    assert reservation.reserve(gate, Cost(1, 850, 0), 0.0) is not None


def test_a_refusals_headers_teach_as_well() -> None:
    """A 429 tells what is left: nothing."""
    gate = new_gate(LEARNING, requests_per_min=600)
    headers = ((b"x-ratelimit-limit-requests", b"600"), (b"x-ratelimit-remaining-requests", b"0"), retry_after(0.001))

    refuse(gate, take(gate, 0.0), 0.01, *headers)

    assert levels(gate, 0.011)["requests_per_min"] <= 1.2


def test_what_the_operator_forbids_to_learn_is_not_learned() -> None:
    """`learns: false`: the config alone counts."""
    gate = new_gate(FIXED, requests_per_min=600)

    accept(gate, take(gate, 0.0), 0.0, *PER_MINUTE)
    refuse(gate, take(gate, 0.0), 0.0, *PER_MINUTE, retry_after(0.001))

    assert capacities(gate) == {"requests_per_min": (600, "configured")}


def served_within(gate: Gate, start: float, seconds: float, *headers: tuple[bytes, bytes]) -> int:
    """Counts the calls of 1,100 tokens that go, one each half second, answered at once with these headers."""
    went = 0
    for step in range(int(2 * seconds)):
        now = start + step / 2
        grant = reservation.enter(gate, 1000, 100, now)
        if grant is not None:
            went += 1
            accept(gate, grant, now, *headers)
            grant.settle(Usage(1000, 100), now)
    return went


@rows(
    "limits",
    [
        {},
        {"tokens_per_min": 1_000_000},
        {"requests_per_min": 600},
        {"tokens_per_min": 1_000_000, "requests_per_min": 600},
    ],
)
@rows("odd", [(b"x-ratelimit-limit-tokens", b"200"), (b"x-ratelimit-limit-requests", b"1")])
def test_one_odd_limit_does_not_stick_for_good(limits: dict[str, float], odd: tuple[bytes, bytes]) -> None:
    """What one answer has told, and none of those that came since, is believed for five minutes."""
    gate = new_gate(LEARNING, **limits)
    assert served_within(gate, 0.0, 0.5, odd) == 1

    assert 5 <= served_within(gate, 1.0, 300.0) <= 6  # what it tells is obeyed, and nothing larger is impossible
    assert served_within(gate, 302.0, 60.0) >= 60
    assert capacities(gate).keys() - {"found_requests_per_min"} == limits.keys()
    assert {capacities(gate)[name] for name in limits} == {(limit, "configured") for limit in limits.values()}


@rows("limits", [{}, {"requests_per_min": 600}])
def test_a_limit_that_each_answer_tells_is_believed_for_as_long(limits: dict[str, float]) -> None:
    """However seldom calls come, and however long they wait for it."""
    gate = new_gate(LEARNING, **limits)
    told = (b"x-ratelimit-limit-requests", b"2")

    assert 119 <= served_within(gate, 0.0, 3600.0, told) <= 123


def test_a_call_above_the_operators_own_number_fits_never() -> None:
    """Whatever headers say: only what they narrow is cut."""
    gate = new_gate(LEARNING, tokens_per_min=1000)
    accept(gate, take(gate, 0.0), 0.0, (b"x-ratelimit-limit-tokens", b"200"))

    assert reservation.enter(gate, 1000, 200, 0.1) is not None
    assert reservation.admit(gate, gate.cost_of(1000, 300), 0.1) == inf


def test_headers_of_calls_that_went_together_are_read_once() -> None:
    """Reading costs more than it teaches: one answer in five milliseconds."""
    gate = new_gate(LEARNING)

    grants = [take(gate, 0.001 * n) for n in range(11)]

    assert [grant.mark is not None for grant in grants] == [n % 5 == 0 for n in range(11)]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([n for n, _ in PER_MINUTE] + [b"retry-after"]), st.binary(max_size=12))))
def test_no_header_breaks_a_gate(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever a provider sends, limits stay numbers and calls go on."""
    gate = new_gate(LEARNING, requests_per_min=600)

    accept(gate, take(gate, 0.0), 0.0, *headers)
    refuse(gate, take(gate, 0.01), 0.01, *headers)

    assert 0 < capacities(gate)["requests_per_min"][0] <= 600
    assert gate.pauses.ends_at < inf


# -- Tokens


@rows(
    ("charge", "max_tokens", "reserved", "usage", "left"),
    [
        pytest.param("sum", 500, Cost(1, 100, 500), Usage(120, 50), 10_000 - 120 - 500, id="max_tokens is charged"),
        pytest.param("sum", None, Cost(1, 100, 512), Usage(120, 50), 10_000 - 120 - 50, id="without it, what was said"),
        pytest.param("max", 500, Cost(1, 100, 400), Usage(120, 50), 10_000 - 500, id="the larger of both"),
        pytest.param("max", 50, Cost(1, 100, 0), Usage(120, 50), 10_000 - 120, id="the input, where it is larger"),
        pytest.param("input", 500, Cost(1, 100, 500), Usage(120, 50), 10_000 - 120, id="the input alone"),
    ],
)
def test_tokens_are_charged_by_the_providers_rule(
    charge: str, max_tokens: int | None, reserved: Cost, usage: Usage, left: float
) -> None:
    """Up front by the estimate, in the end by what was used."""
    gate = new_gate(Counting(learns=False, charge=charge), tokens_per_min=10_000)  # type: ignore[arg-type]  # a rule

    cost = gate.cost_of(100, max_tokens)
    grant = take(gate, 0.0, cost, estimate=100, max_tokens=max_tokens)
    grant.settle(usage, 0.0)

    assert cost == reserved
    (level,) = levels(gate, 0.0).values()
    assert level == left


def test_cached_tokens_cost_nothing_where_the_provider_says_so() -> None:
    """Read from its cache, they are not charged in the end."""
    for excludes_cached, left in ((True, 10_000 - 30 - 20), (False, 10_000 - 130 - 20)):
        gate = new_gate(Counting(learns=False, excludes_cached=excludes_cached), tokens_per_min=10_000)

        take(gate, 0.0, gate.cost_of(100, None), estimate=100).settle(Usage(130, 20, cached=100), 0.0)

        assert levels(gate, 0.0)["tokens_per_min"] == left


def test_output_is_counted_apart_where_it_is_limited_apart() -> None:
    """A provider that charges the input alone may still limit the output."""
    counting = Counting(learns=False, charge="input")
    gate = new_gate(counting, tokens_per_min=10_000, output_tokens_per_min=1000)

    take(gate, 0.0, gate.cost_of(100, 300), estimate=100, max_tokens=300).settle(Usage(110, 40), 0.0)

    assert levels(gate, 0.0) == {"input_tokens_per_min": 9890, "output_tokens_per_min": 960}


def test_estimates_are_set_right_by_what_was_used() -> None:
    """A model whose calls turn out twice as large is charged twice the estimate; answers as long as they were."""
    gate = new_gate(tokens_per_min=1e6)
    for _ in range(50):
        take(gate, 0.0, gate.cost_of(100, None), estimate=100).settle(Usage(200, 30), 0.0)

    cost = gate.cost_of(100, None)

    assert cost.input_tokens == pytest.approx(200, rel=0.05)
    assert 30 <= cost.output_tokens <= 40


def test_uncertain_estimates_leave_a_margin() -> None:
    """Where they are often wrong, fewer calls are let in together than their sum would allow; one alone always fits."""
    taken = {}
    for spread in (0, 50):
        gate = new_gate(tokens_per_min=10_000)
        for number in range(200):
            grant = take(gate, number * 60.0, gate.cost_of(100, 1), estimate=100, max_tokens=1)
            grant.settle(Usage(100 + spread * (-1) ** number, 1), number * 60.0)
        taken[spread] = len([None for _ in range(200) if reservation.reserve(gate, Cost(1, 100, 0), 1e6) is not None])
        take(gate, 2e6, Cost(1, 10_000, 0))

    assert taken[0] == 100
    assert 50 < taken[50] < 95


def test_our_own_guess_teaches_nothing() -> None:
    """Usage that nobody reported would only confirm the estimate."""
    gate = new_gate(tokens_per_min=1e6)

    take(gate, 0.0, gate.cost_of(100, None), estimate=100).settle(Usage(200, 30, estimated=True), 0.0)

    assert gate.cost_of(100, None) == Cost(1, 100, 512)


def test_calls_without_tokens_cost_a_request() -> None:
    """Speech, pictures and the like; embeddings have no answer to be charged."""
    gate = new_gate(tokens_per_min=1e6)

    assert gate.cost_of(0, None) == Cost(1, 0, 0)
    assert gate.cost_of(100, 50, answers=False) == Cost(1, 100, 0)


# -- Caps


def test_slots_are_waited_for_and_not_timed() -> None:
    """All in use: nobody knows when one comes free, so the wait is not told; a release lets the next in."""
    gate = new_gate(max_concurrency=2)
    grants = [take(gate, 0.0) for _ in range(2)]

    assert reservation.admit(gate, ONE, 0.0) is None
    grants[0].settle(None, 1.0)
    assert reservation.admit(gate, ONE, 1.0) == 0.0


def test_a_target_that_queues_without_bound_is_kept_where_it_answers_fast() -> None:
    """Its cap follows the time to the first byte: it shrinks when that grows, and calls above it wait."""
    gate = new_gate(Counting(learns=False, adaptive=True))
    now = 0.0
    for _ in range(2000):
        grants: list[Reservation] = []
        while (grant := reservation.reserve(gate, ONE, now)) is not None and len(grants) < 200:
            grants.append(grant)
        # Eight at a time take a tenth of a second; everyone above that waits behind them.
        now += 0.1 * max(1.0, len(grants) / 8)
        for grant in grants:
            accept(gate, grant, now, is_stream=True)
            grant.settle(None, now)

    (row,) = gate.rows(now)
    assert row.name == "found_concurrency"
    assert 2 <= row.capacity <= 40


def test_a_target_that_times_out_gets_fewer_calls() -> None:
    """Other failures say nothing about its load."""
    gate = new_gate(Counting(learns=False, adaptive=True))
    first = capacities(gate)["found_concurrency"]

    for _ in range(5):
        take(gate, 0.0).failed(1.0, is_overload=False)
    assert capacities(gate)["found_concurrency"] == first
    for _ in range(5):
        take(gate, 0.0).failed(60.0, is_overload=True)

    assert capacities(gate)["found_concurrency"] < first


def test_a_long_answer_is_no_sign_of_a_queue() -> None:
    """Whole answers are measured by the token: where some are a hundred times longer, the cap does not shrink for it."""
    gate = new_gate(Counting(learns=False, adaptive=True))
    now = 0.0
    for number in range(2000):
        flight: list[Reservation] = []
        while (grant := reservation.reserve(gate, ONE, now)) is not None and len(flight) < 100:
            flight.append(grant)
        output = 10 if number % 2 else 1000
        now += 0.01 * output
        for grant in flight:
            accept(gate, grant, now)
            grant.settle(Usage(10, output), now)

    assert capacities(gate)["found_concurrency"][0] > 50


def test_an_adaptive_cap_comes_and_goes_with_the_config() -> None:
    """A reload that turns it off leaves the target without one."""
    gate = new_gate(Counting(learns=False, adaptive=True))
    assert levels(gate, 0.0).keys() == {"found_concurrency"}

    gate.configure(Limits(), FIXED, 0.0)

    assert levels(gate, 0.0) == {}


# -- Reloads


def test_a_reload_keeps_levels_pauses_and_what_was_learned() -> None:
    """New numbers change the capacity, not what is left of it."""
    gate = new_gate(LEARNING, requests_per_min=600, tokens_per_min=10_000)
    grant = take(gate, 0.0, Cost(1, 4000, 0))
    accept(gate, grant, 0.0, (b"x-ratelimit-limit-tokens", b"9000"))
    refuse(gate, take(gate, 0.0), 0.0, retry_after(5))

    gate.configure(Limits(requests_per_min=300, tokens_per_min=20_000), LEARNING, 0.0)

    assert gate.pauses.ends_at == 5.0
    assert gate.in_flight == 1
    assert levels(gate, 0.0)["tokens_per_min"] <= 6000
    grant.settle(None, 0.0)
    assert gate.in_flight == 0


def test_a_reload_may_change_what_an_unknown_answer_is_taken_to_cost() -> None:
    """Before any was seen."""
    gate = new_gate(tokens_per_min=10_000)

    gate.configure(Limits(tokens_per_min=10_000), Counting(learns=False, first_output_tokens=99), 0.0)

    assert gate.cost_of(100, None) == Cost(1, 100, 99)


@pytest.mark.parametrize(
    "style", [Style(request_window_s=10.0), Style(request_burst=0.1)], ids=["windows", "a smaller burst"]
)
def test_a_reload_may_change_how_the_provider_counts(style: Style) -> None:
    """Another window or burst is in force at once."""
    gate = new_gate(requests_per_min=600)

    gate.configure(Limits(requests_per_min=600), Counting(learns=False, style=style), 0.0)

    assert capacities(gate)["requests_per_min"][0] < 600


def test_a_reload_may_take_all_limits_away() -> None:
    """Then the rate is searched for, or nothing is limited."""
    for counting, left in ((LEARNING, {"found_requests_per_min"}), (FIXED, set())):
        gate = new_gate(counting, requests_per_min=1)
        take(gate, 0.0)

        gate.configure(Limits(), counting, 0.0)

        assert levels(gate, 0.0).keys() == left
        take(gate, 0.0)


# -- Any course of events

courses = st.lists(
    st.tuples(
        st.sampled_from(["take", "accept", "settle", "refuse", "quota", "too large", "fail", "cancel", "reload"]),
        st.sampled_from([0.0, 0.01, 1.0, 70.0]),
        st.integers(0, 30),
        st.sampled_from([0, 10, 333]),
    ),
    max_size=40,
)


@settings(deadline=None, derandomize=True)
@given(
    courses,
    st.sampled_from([FIXED, LEARNING, Counting(kind="openai", adaptive=True), Counting(charge="input")]),
    st.sampled_from([{}, {"requests_per_min": 300}, {"tokens_per_min": 6000, "max_concurrency": 3}]),
)
def test_no_course_of_events_breaks_a_gate(
    course: list[tuple[str, float, int, int]], counting: Counting, limits: dict[str, float]
) -> None:
    """In flight are those that were let in and have not ended; a wait is never negative; in the end all is given back."""
    gate = new_gate(counting, **limits)
    now = 0.0
    flying: list[Reservation] = []
    for event, gap_s, index, tokens in course:
        now += gap_s
        cost = gate.cost_of(tokens, None)
        if event == "take":
            wait_s = reservation.admit(gate, cost, now)
            grant = reservation.reserve(gate, cost, now, estimate=tokens)
            assert (grant is not None) == (wait_s == 0.0)
            flying += [grant] if grant is not None else []
        elif event == "reload":
            gate.configure(Limits(requests_per_min=60 * (1 + index)), counting, now)
        elif flying:
            grant = flying[index % len(flying)]
            if event == "accept":
                accept(gate, grant, now, *PER_MINUTE, is_stream=tokens == 0)
            else:
                flying.remove(grant)
                end_somehow(gate, grant, event, now, tokens)
        assert gate.in_flight == len(flying)
        wait = reservation.admit(gate, cost, now)
        assert wait is None or wait >= 0
        assert reservation.ready_at(gate, cost, now, Cost(index, index * tokens, 0)) >= now
        for row in gate.rows(now):
            assert row.level <= row.capacity + 1e-9

    for grant in flying:
        grant.cancel(now)
    assert gate.in_flight == 0
    now = max(now, gate.pauses.ends_at) + 120
    assert reservation.reserve(gate, gate.cost_of(10, None), now) is not None


def end_somehow(gate: Gate, grant: Reservation, event: str, now: float, tokens: int) -> None:
    if event == "settle":
        grant.settle(Usage(tokens, 5) if tokens else None, now)
    elif event == "refuse":
        refuse(gate, grant, now, *([retry_after(tokens / 100)] if tokens else []))
    elif event == "quota":
        refuse(gate, grant, now, error_class=ErrorClass.QUOTA_EXHAUSTED)
    elif event == "too large":
        refuse(gate, grant, now, body=TOO_LARGE)
    elif event == "fail":
        grant.failed(now, is_overload=tokens > 0)
    else:
        grant.cancel(now)


# Other replicas


class Ear:
    """Notes what a gate would have others know."""

    def __init__(self, gate: Gate) -> None:
        self.said: list[tuple[str, float]] = []
        gate.news = self

    def paused(self, name: str, left_s: float, now: float) -> None:
        self.said.append(("pause", left_s))

    def exhausted(self, name: str, left_s: float, now: float) -> None:
        self.said.append(("quota", left_s))

    def learned(self, name: str, learned: Learned, now: float) -> None:
        self.said += [(limit, reading.limit or 0.0) for limit, reading in learned.by_limit()]

    def burst(self, name: str, burst: float, now: float) -> None:
        self.said.append((BURST, burst))


def test_too_many_at_once_is_no_word_on_the_rate() -> None:
    """Nobody has told the burst, and 15 of the first 20 are refused: less goes at once, at the same rate; others hear."""
    gate = new_gate(LEARNING, requests_per_min=1200, unstated_burst_s=10.0)
    ear = Ear(gate)
    flight = [take(gate, 0.0) for _ in range(20)]
    assert reservation.admit(gate, Cost(), 0.0) != 0.0

    for grant in flight[5:]:
        refuse(gate, grant, 0.02, retry_after(1))
    for grant in flight[:5]:
        accept(gate, grant, 0.05)

    assert not any(row.name.startswith("found") for row in gate.rows(0.1))
    assert reservation.admit(gate, Cost(), 1.1) == 0.0
    assert ear.said[-1] == (BURST, 5.0)
    other = new_gate(LEARNING, requests_per_min=1200, unstated_burst_s=10.0)
    other.peer_learned(*ear.said[-1], 60.0, 0.0)
    assert [row.capacity for row in other.rows(0.0)] == [5.0]


def test_nobody_is_turned_away_on_the_strength_of_a_guess() -> None:
    """Until a refusal has told the burst, a wait is predicted as if ten seconds' worth went at once."""
    gate = new_gate(LEARNING, requests_per_min=1200, unstated_burst_s=10.0)
    ahead = Cost(requests=150)
    before = reservation.ready_at(gate, Cost(), 0.0, ahead)
    refuse(gate, take(gate, 0.0), 0.0, retry_after(1))

    assert before == 0.0
    assert reservation.ready_at(gate, Cost(), 2.0, ahead) == pytest.approx(2.0 + (150 - 19) / 20, abs=0.1)


def test_what_it_learns_by_itself_is_for_others() -> None:
    """A pause that was asked for or backed off to, a spent quota, a limit."""
    gate = new_gate(LEARNING, requests_per_min=600)
    ear = Ear(gate)
    accept(gate, take(gate, 0.0), 0.1, *PER_MINUTE)
    refuse(gate, take(gate, 1.0), 1.0, retry_after(4))
    refuse(gate, take(gate, 9.0), 9.0)
    gate.leave_alone(2.0, 20.0)
    gate.exhaust(90.0, 30.0)

    assert [name for name, _ in ear.said] == ["requests_per_min", "pause", "pause", "pause", "quota"]
    assert [left_s for _, left_s in ear.said[1:]] == pytest.approx([4.0, 0.05, 2.0, 90.0], abs=0.06)


@given(told=st.lists(st.tuples(st.sampled_from(["pause", "quota"]), st.floats(0, 1e5), st.floats(0, 100)), max_size=20))
@settings(deadline=None)
def test_hearsay_only_ever_makes_a_pause_longer(told: list[tuple[str, float, float]]) -> None:
    """Within bounds, and it is not said again."""
    gate = new_gate()
    ear = Ear(gate)
    gate.leave_alone(5.0, 0.0)
    now = 0.0
    for kind, left_s, later_s in told:
        before = gate.pauses.ends_at
        if kind == "pause":
            gate.peer_paused(left_s, now)
        else:
            gate.peer_exhausted(left_s, now)
        assert gate.pauses.ends_at == max(
            before, now + min(left_s, LONGEST_HOLD_S if kind == "pause" else QUOTA_LONGEST_S)
        )
        now += later_s

    assert ear.said == [("pause", 5.0)]


def test_a_limit_heard_of_is_like_one_that_was_read() -> None:
    """Full, for nobody has told its level; a configured one is only narrowed; who is not to learn does not."""
    gate = new_gate(LEARNING, requests_per_min=100)
    gate.peer_learned("requests_per_min", 60.0, 60.0, 1.0)
    gate.peer_learned("tokens_per_min", 500.0, 1.0, 1.0)
    gate.peer_learned("requests_per_fortnight", 1.0, 1.0, 1.0)
    assert capacities(gate) == {"requests_per_min": (60, "configured"), "tokens_per_min": (5000, "learned")}
    assert levels(gate, 1.0)["tokens_per_min"] == 5000

    gate.peer_learned("requests_per_min", 600.0, 60.0, 1.0)
    assert capacities(gate)["requests_per_min"] == (100, "configured")

    fixed = new_gate(FIXED)
    fixed.peer_learned("requests_per_min", 60.0, 60.0, 1.0)
    assert capacities(fixed) == {}
