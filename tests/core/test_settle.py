"""The account of a call: closed once, with the right times and money."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import Call, CallRecord, CallRoute, Request
from gateway.core.clock import Timer
from gateway.core.errors import GatewayError
from gateway.core.ledger import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts, cost_usd, lossy_header, overhead_s
from gateway.core.retry import Attempt
from gateway.core.snapshot import Key, Model, PolicySnapshot, Rates, Target
from gateway.core.types import Clocks, Gap, How, Upstream, Usage
from gateway.dialects.endpoints import CHAT
from tests.support.targets import target_named

BOUNDED = settings(deadline=None, derandomize=True)

RATES = Rates(input_usd=2.5e-6, output_usd=1e-5, cached_input_usd=1.25e-6)


class HandClock:
    """Time that stands still until it is set."""

    ahead_s = 0.0

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds

    def call_at(self, when: float, callback: object) -> Timer:
        raise AssertionError("an account waits for nothing")


class Ledger:
    """A meter that keeps what it is told."""

    def __init__(self) -> None:
        self.calls_begun = self.calls_withdrawn = 0
        self.records: list[CallRecord] = []

    def began(self) -> None:
        self.calls_begun += 1

    def waited(self, lane: str, seconds: float) -> None:
        raise AssertionError("a call waited")

    def withdrew(self) -> None:
        self.calls_withdrawn += 1

    def settled(self, record: CallRecord) -> None:
        self.records.append(record)

    def retry_denied(self, reason: str) -> None:
        raise AssertionError("a retry was denied")

    def breaker_changed(self, name: str, state: str) -> None:
        raise AssertionError("a breaker moved")

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        raise AssertionError("a call was refused")


def keep_all(_call: Call, _attempt: Attempt | None, _usage: Usage | None) -> None:
    """Nothing is limited here."""


def new_call(received_at: float = 0.0, attempts: list[Attempt] | None = None) -> Call:
    request = Request(
        id="r1",
        endpoint=CHAT,
        model_name="gpt-4o",
        body=b"{}",
        stream=False,
        stream_options=None,
        model_span=None,
        headers=(),
        credential=None,
        lane="interactive",
        received_at=received_at,
        deadline=received_at + 30,
        deadline_is_callers=False,
    )
    policy, model = cast("PolicySnapshot", SimpleNamespace()), Model("gpt-4o", (), ())
    return Call(request, CallRoute(policy, Key("web", "web", b""), model, CHAT, False), attempts=attempts or [])


def target(prices: dict[str, Rates], model: str | None = "gpt-4o-2024") -> Target:
    return Target("openai/x", "openai", model, cast("Upstream", None), Clocks(1, 1, 1, 1, 1), find_rates=prices.get)


def test_a_call_that_becomes_a_job_is_not_booked() -> None:
    """It was opened, so the calls in flight are told; what would close it later, or withdraw it again, changes nothing."""
    ledger = Ledger()
    accounts = Accounts(HandClock(), ledger, keep_all)
    call = new_call()

    accounts.opened()
    accounts.withdraw(call)
    accounts.withdraw(call)
    accounts.settle_failed(call, GatewayError("no room"))

    assert (ledger.calls_begun, ledger.calls_withdrawn, ledger.records) == (1, 1, [])


def test_an_account_is_settled_once() -> None:
    """Whoever comes second, with whatever outcome, changes nothing."""
    ledger = Ledger()
    accounts = Accounts(HandClock(), ledger, keep_all)
    call = new_call()

    accounts.opened()
    accounts.settle(call, 200, "ok", usage=Usage(1, 2))
    accounts.settle(call, CLIENT_GONE_STATUS, CLIENT_GONE)
    accounts.settle(call, 500, "internal_error")

    assert ledger.calls_begun == 1
    assert [(record.status, record.outcome, record.usage) for record in ledger.records] == [(200, "ok", Usage(1, 2))]
    assert call.settled


@pytest.mark.parametrize("start", [0.0, 1000.0])
def test_a_settled_call_has_its_times(start: float) -> None:
    """The first byte counts from the start of the last attempt; a clock may stand at zero."""
    failed = Attempt(target_named("a/x"), start + 0.25, ended_at=start + 1.25, error_class="connection")
    last = Attempt(target_named("b/x"), start + 1.5, first_byte_at=start + 2.0, status=200)
    ledger = Ledger()

    Accounts(HandClock(start + 4.0), ledger, keep_all).settle(new_call(start, [failed, last]), 200, "ok")

    record = ledger.records[0]
    assert record.duration_s == pytest.approx(4.0)
    assert record.overhead_s == pytest.approx(0.5)
    assert record.time_to_first_byte_s == pytest.approx(0.5)
    assert last.ended_at == start + 4.0


def test_a_first_byte_at_the_clocks_zero_is_one() -> None:
    """Zero is a time like any other."""
    attempt = Attempt(target_named("a/x"), started_at=-1.0, first_byte_at=0.0, ended_at=0.0)
    ledger = Ledger()

    Accounts(HandClock(2.0), ledger, keep_all).settle(new_call(-1.5, [attempt]), 200, "ok")

    assert ledger.records[0].time_to_first_byte_s == pytest.approx(1.0)
    assert ledger.records[0].overhead_s == pytest.approx(2.5)
    assert attempt.ended_at == 0.0


def test_a_call_without_an_attempt_or_a_first_byte_has_no_time_to_it() -> None:
    """Refused by the deadline, or left by its client while waiting."""
    ledger = Ledger()
    accounts = Accounts(HandClock(3.0), ledger, keep_all)

    accounts.settle(new_call(), 504, "deadline_exceeded")
    accounts.settle(new_call(attempts=[Attempt(target_named("a/x"), 1.0)]), CLIENT_GONE_STATUS, CLIENT_GONE)

    assert [record.time_to_first_byte_s for record in ledger.records] == [None, None]
    assert [record.overhead_s for record in ledger.records] == [3.0, 1.0]


def test_cost_is_tokens_times_rates_with_cached_ones_cheaper() -> None:
    """Cached tokens are part of the input and are paid once, at their own rate."""
    priced = target({"gpt-4o-2024": RATES})

    assert cost_usd(new_call(), priced, Usage(1000, 100)) == pytest.approx(1000 * 2.5e-6 + 100 * 1e-5)
    assert cost_usd(new_call(), priced, Usage(1000, 100, cached=600)) == pytest.approx(
        400 * 2.5e-6 + 600 * 1.25e-6 + 100 * 1e-5
    )
    assert cost_usd(new_call(), priced, Usage(0, 0)) == 0.0


def test_the_price_is_that_of_the_name_the_provider_knows() -> None:
    """The target's own, or the name that was asked for where it has none."""
    prices = {"gpt-4o": RATES}

    assert cost_usd(new_call(), target(prices, model=None), Usage(0, 1)) == pytest.approx(1e-5)
    assert cost_usd(new_call(), target(prices, model="other"), Usage(0, 1)) is None


def test_what_is_not_known_is_not_priced() -> None:
    """No price, no usage or no target: None, never zero."""
    assert cost_usd(new_call(), target({}), Usage(5, 5)) is None
    assert cost_usd(new_call(), target({"gpt-4o-2024": RATES}), None) is None
    assert cost_usd(new_call(), None, Usage(5, 5)) is None


@BOUNDED
@given(st.integers(0, 2**53), st.integers(0, 2**53), st.floats(0, 1))
def test_cost_is_never_negative_and_caching_never_dearer(input_tokens: int, output: int, part: float) -> None:
    """For any split into cached and fresh tokens."""
    priced = target({"gpt-4o-2024": RATES})
    cached = min(int(input_tokens * part), input_tokens)

    with_cache = cost_usd(new_call(), priced, Usage(input_tokens, output, cached))
    without = cost_usd(new_call(), priced, Usage(input_tokens, output))

    assert with_cache is not None
    assert without is not None
    assert 0 <= with_cache <= without * (1 + 1e-9)


@BOUNDED
@given(
    st.floats(0, 1e6),
    st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.floats(0, 1e6)), max_size=4),
    st.floats(0, 1e6),
)
def test_overhead_is_never_negative(received: float, spans: list[tuple[float, float | None]], now: float) -> None:
    """Whatever the times of the attempts: they may touch, and floats round."""
    attempts = [
        Attempt(target_named("a/x"), started, ended_at=None if length is None else started + length)
        for started, length in spans
    ]

    assert overhead_s(new_call(received, attempts), now) >= 0.0


def test_the_header_of_losses_has_whole_entries_the_gravest_first() -> None:
    """What was dropped goes before what was changed, and tools before other fields; the rest is counted."""
    few = [Gap("a", How.APPROXIMATED, ""), Gap("b", How.DROPPED, ""), Gap("tools.x", How.DROPPED, "")]
    many = [*few, *(Gap(f"input.field_{number}", How.APPROXIMATED, "") for number in range(9))]

    assert lossy_header(few)[1] == b"tools.x(dropped), b(dropped), a(approximated)"
    assert lossy_header(many)[1] == (
        b"tools.x(dropped), b(dropped), a(approximated), input.field_0(approximated), input.field_1(approximated), "
        b"input.field_2(approximated), input.field_3(approximated), input.field_4(approximated), +4 more"
    )


@BOUNDED
@given(st.lists(st.tuples(st.text("ab.", min_size=1, max_size=150), st.sampled_from(How)), min_size=1, max_size=40))
def test_the_header_of_losses_is_short_and_leaves_nothing_uncounted(lost: list[tuple[str, How]]) -> None:
    """At most 200 bytes, each entry whole."""
    told = lossy_header([Gap(field, how, "") for field, how in lost])[1].decode()
    entries = told.split(", ")
    more = int(entries.pop()[1:].removesuffix(" more")) if entries[-1].startswith("+") else 0

    assert len(told) <= 200
    assert len(entries) + more == len(lost)
    assert set(entries) <= {f"{field}({how})" for field, how in lost}
