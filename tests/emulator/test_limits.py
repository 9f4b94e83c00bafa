"""Limits on a clock that stands still unless moved: exact grants, exact headers, exact bodies."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.emulator.config import EmulatorConfig
from gateway.emulator.limits import (
    EmulatedAccount,
    EmulatedBucket,
    EmulatedWindow,
    RequestDemand,
    go_duration,
    open_account,
)
from gateway.emulator.replies import EmulatedRefusal, EmulatedReply
from tests.emulator.conftest import FakeClock
from tests.rows import rows

LEARN_MORE = "Visit https://platform.openai.com/account/rate-limits to learn more."


def account(clock: FakeClock, model: str = "gpt-4o-mini", **settings: Any) -> EmulatedAccount:
    return open_account(EmulatorConfig(**settings), model, clock.now(), clock.wall)


def refused(refusal: EmulatedRefusal | None, dialect: str = "openai") -> EmulatedReply:
    assert refusal is not None
    reply = refusal.reply(dialect)
    assert reply.status == 429
    return reply


def error_of(reply: EmulatedReply) -> dict[str, Any]:
    error: dict[str, Any] = orjson.loads(reply.body)["error"]
    return error


@rows(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0843, "84ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (7.66, "7.66s"),
        (20.0, "20s"),
        (179.56, "2m59.56s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (0.9996, "1s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    """Go's format, to the millisecond."""
    assert go_duration(seconds) == text


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 500)), max_size=40))
def test_a_bucket_never_grants_more_than_its_capacity_and_its_refill(
    per_minute: int, steps: list[tuple[float, int]]
) -> None:
    """Over any span: granted <= capacity + rate * span."""
    now, granted = 0.0, 0
    bucket = EmulatedBucket(per_minute, now)

    for pause_s, amount in steps:
        now += pause_s
        if not bucket.wait_s(amount, now):
            bucket.spend(amount, now)
            granted += amount

    assert granted <= per_minute * (1 + now / 60) * (1 + 1e-6) + 1e-6


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_waiting_as_told_is_enough(per_minute: int, amount: int) -> None:
    """After the wait that a bucket names, it grants."""
    amount = min(amount, per_minute)
    bucket = EmulatedBucket(per_minute, 0.0)
    bucket.spend(per_minute, 0.0)

    assert bucket.wait_s(amount, bucket.wait_s(amount, 0.0)) == 0.0


def test_a_window_starts_anew_and_gives_nothing_before() -> None:
    """All of the capacity comes back at the window's end, none earlier."""
    window = EmulatedWindow(5, 10.0)
    window.spend(5, 1003.0)

    assert window.remaining(1009.9) == 0
    assert window.ends_in_s(1003.0) == pytest.approx(7.0, abs=1e-5)
    assert window.remaining(1010.0) == 5


def test_openai_names_both_limits_on_every_answer(clock: FakeClock) -> None:
    """Limit, remaining, and the time until full as a Go duration."""
    opened = account(clock, rpm=500, tpm=30_000)

    assert opened.admit(RequestDemand(prompt_tokens=10, max_tokens=100), clock.now()) is None

    assert dict(opened.headers(clock.now())) == {
        b"x-ratelimit-limit-requests": b"500",
        b"x-ratelimit-remaining-requests": b"499",
        b"x-ratelimit-reset-requests": b"120ms",
        b"x-ratelimit-limit-tokens": b"30000",
        b"x-ratelimit-remaining-tokens": b"29900",
        b"x-ratelimit-reset-tokens": b"200ms",
    }


def test_openai_token_refusal_has_the_exact_body_and_hints(clock: FakeClock) -> None:
    """The captured text: limit, used, requested and the wait; hints are rounded up."""
    opened = account(clock, tpm=200_000)
    opened.admit(RequestDemand(195_869), clock.now())

    reply = refused(opened.admit(RequestDemand(4412), clock.now()))

    assert error_of(reply) == {
        "message": "Rate limit reached for gpt-4o-mini in organization org-emulator on tokens per min (TPM): "
        f"Limit 200000, Used 195869, Requested 4412. Please try again in 84ms. {LEARN_MORE}",
        "type": "tokens",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    headers = dict(reply.headers)
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"1", b"85")
    assert headers[b"x-ratelimit-remaining-tokens"] == b"4131"
    assert headers[b"x-ratelimit-reset-tokens"] == b"58.761s"


def test_openai_request_refusal_has_the_exact_body_and_hints(clock: FakeClock) -> None:
    """Requests have their own type and their own name."""
    opened = account(clock, rpm=3)
    for _ in range(3):
        opened.admit(RequestDemand(1), clock.now())

    reply = refused(opened.admit(RequestDemand(1), clock.now()))

    assert error_of(reply) == {
        "message": "Rate limit reached for gpt-4o-mini in organization org-emulator on requests per min (RPM): "
        f"Limit 3, Used 3, Requested 1. Please try again in 20s. {LEARN_MORE}",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert dict(reply.headers)[b"retry-after"] == b"20"
    clock.at_s += 20
    assert opened.admit(RequestDemand(1), clock.now()) is None


def test_openai_says_when_a_call_can_never_fit(clock: FakeClock) -> None:
    """Requested > limit: no `Used`, no retry hint, and nothing is spent."""
    opened = account(clock, tpm=1000, rpm=10)

    reply = refused(opened.admit(RequestDemand(10, max_tokens=1500), clock.now()))

    assert (
        "Request too large for gpt-4o-mini in organization org-emulator on tokens per min (TPM): "
        in (error_of(reply)["message"])
    )
    assert "Limit 1000, Requested 1500." in error_of(reply)["message"]
    assert b"retry-after" not in dict(reply.headers)
    assert dict(reply.headers)[b"x-ratelimit-remaining-requests"] == b"10"


@pytest.mark.parametrize(("charge", "left"), [("max", b"900"), ("sum", b"860"), ("input", b"960")])
def test_the_charge_of_a_call_can_be_chosen(clock: FakeClock, charge: str, left: bytes) -> None:
    """40 in, 100 out at most: 100, 140 or 40 tokens."""
    opened = account(clock, tpm=1000, charge=charge)

    opened.admit(RequestDemand(40, max_tokens=100), clock.now())

    assert dict(opened.headers(clock.now()))[b"x-ratelimit-remaining-tokens"] == left


def test_azure_counts_calls_in_ten_second_windows(clock: FakeClock) -> None:
    """60 RPM is 10 per 10 s, whatever the minute would still allow."""
    opened = account(clock, dialect="azure", rpm=60)
    for _ in range(10):
        assert opened.admit(RequestDemand(1), clock.now()) is None
    clock.at_s += 4

    reply = refused(opened.admit(RequestDemand(1), clock.now()), "azure")

    error = error_of(reply)
    assert error["code"] == "429"
    assert "type" not in error
    assert error["message"].startswith(
        "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded call "
        "rate limit of your current OpenAI S0 pricing tier. Please retry after 6 seconds."
    )
    headers = dict(reply.headers)
    assert headers[b"policy-id"] == b"DeploymentRatelimit-Call"
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"6", b"6000")
    assert headers[b"x-ratelimit-reset-requests"] == b"6"
    clock.at_s += 6
    assert opened.admit(RequestDemand(1), clock.now()) is None


def test_azure_counts_tokens_in_minute_windows(clock: FakeClock) -> None:
    """Input plus max_tokens; everything comes back at the minute."""
    opened = account(clock, dialect="azure", tpm=1000)
    assert opened.admit(RequestDemand(400, max_tokens=500), clock.now()) is None

    reply = refused(opened.admit(RequestDemand(50, max_tokens=51), clock.now()), "azure")

    assert "exceeded token rate limit" in error_of(reply)["message"]
    headers = dict(reply.headers)
    assert headers[b"policy-id"] == b"DeploymentRatelimit-Token"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"100"
    assert headers[b"retry-after"] == b"20"  # the fake clock starts 20 s before a minute
    clock.at_s += 20
    assert dict(opened.headers(clock.now()))[b"x-ratelimit-remaining-tokens"] == b"1000"


def test_anthropic_names_instants_and_thousands(clock: FakeClock) -> None:
    """RFC 3339 resets, remaining tokens in thousands, `tokens` shows the tightest limit."""
    opened = account(clock, dialect="anthropic", rpm=50, tpm=30_000, output_tpm=8000)
    opened.admit(RequestDemand(1500, max_tokens=4000), clock.now())
    opened.emitted(4000, clock.now())

    headers = {name.decode().removeprefix("anthropic-ratelimit-"): value for name, value in opened.headers(clock.now())}

    assert headers == {
        "requests-limit": b"50",
        "requests-remaining": b"49",
        "requests-reset": b"2026-09-21T14:13:22Z",
        "tokens-limit": b"8000",
        "tokens-remaining": b"4000",
        "tokens-reset": b"2026-09-21T14:13:50Z",
        "input-tokens-limit": b"30000",
        "input-tokens-remaining": b"28000",
        "input-tokens-reset": b"2026-09-21T14:13:23Z",
        "output-tokens-limit": b"8000",
        "output-tokens-remaining": b"4000",
        "output-tokens-reset": b"2026-09-21T14:13:50Z",
    }


def test_anthropic_output_limit_holds_after_the_tokens_were_produced(clock: FakeClock) -> None:
    """Admission costs no output tokens; what was produced makes the next call wait."""
    opened = account(clock, dialect="anthropic", output_tpm=600)
    assert opened.admit(RequestDemand(1, max_tokens=100_000), clock.now()) is None
    opened.emitted(609, clock.now())

    reply = refused(opened.admit(RequestDemand(1), clock.now()), "anthropic")

    assert error_of(reply)["type"] == "rate_limit_error"
    assert "600 output tokens per minute" in error_of(reply)["message"]
    headers = dict(reply.headers)
    assert headers[b"retry-after"] == b"1"
    assert b"retry-after-ms" not in headers


@pytest.mark.parametrize("dialect", ["openai", "azure", "anthropic"])
def test_limit_headers_can_be_turned_off_everywhere(clock: FakeClock, dialect: str) -> None:
    """Neither the good answer nor the refusal carries a hint."""
    opened = account(clock, dialect=dialect, rpm=6, limit_headers=False)
    for _ in range(6):
        opened.admit(RequestDemand(1), clock.now())

    assert opened.headers(clock.now()) == ()
    refusals = [opened.admit(RequestDemand(1), clock.now()), opened.throttle(3.0, clock.now())]
    assert all(reply is None or reply.headers == () for reply in refusals)


@pytest.mark.parametrize("dialect", ["openai", "azure", "anthropic"])
def test_calls_in_flight_are_capped(clock: FakeClock, dialect: str) -> None:
    """One more than max_concurrency is refused with 429."""
    opened = account(clock, dialect=dialect, max_concurrency=2)
    opened.in_flight = 2

    refused(opened.admit(RequestDemand(1), clock.now()), dialect)

    opened.in_flight = 1
    assert opened.admit(RequestDemand(1), clock.now()) is None


def test_a_model_can_have_its_own_limits(clock: FakeClock) -> None:
    """`model_limits` replaces the general limits for its model only."""
    config = EmulatorConfig.from_mapping({"rpm": 100, "model_limits": {"slow": {"rpm": 1}}})

    slow = open_account(config, "slow", clock.now(), clock.wall)
    other = open_account(config, "other", clock.now(), clock.wall)

    assert dict(slow.headers(clock.now()))[b"x-ratelimit-limit-requests"] == b"1"
    assert dict(other.headers(clock.now()))[b"x-ratelimit-limit-requests"] == b"100"
