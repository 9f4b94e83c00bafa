"""What providers say about limits: their own words, and whatever else may stand in a header or body."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.limits.headers import (
    READING_OF,
    Learned,
    Reading,
    never_fits,
    parse_reset,
    provider_now,
    provider_of,
    read_limit_headers,
    retry_delay_s,
)
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

NOW = 1_795_176_000.0
"""2026-11-20T12:00:00Z."""

OPENAI_TPM = (
    b'{"error":{"message":"Rate limit reached for gpt-4o-mini in organization org-x on tokens per min (TPM): Limit '
    b'200000, Used 195869, Requested 4412. Please try again in 84ms.","type":"tokens","code":"rate_limit_exceeded"}}'
)
OPENAI_TOO_LARGE = (
    b'{"error":{"message":"Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, '
    b'Requested 45012. The input or output tokens must be reduced in order to run successfully."}}'
)
AZURE_CALLS = (
    b'{"error":{"code":"429","message":"Requests to the ChatCompletions_Create Operation under Azure OpenAI API version'
    b" 2024-10-21 have exceeded call rate limit of your current OpenAI S0 pricing tier. Please retry after 6 seconds."
    b' Please go here: https://aka.ms/oai/quotaincrease"}}'
)
GEMINI = (
    b'[{"error":{"code":429,"message":"You exceeded your current quota","status":"RESOURCE_EXHAUSTED","details":[{"@type"'
    b':"type.googleapis.com/google.rpc.RetryInfo","retryDelay": "34.07s"}]}}]'
)

DATES = st.from_regex(rb"Fri, [0-3]\d Nov 20\d\d [0-2]\d:00:00 GMT", fullmatch=True)
COMBINED = st.from_regex(
    rb'("a";r=[0-9];t=[0-9]{1,17},? ?){1,3}|limit=9, remaining=[0-9], reset=-?[0-9]+', fullmatch=True
)
DURATIONS = st.from_regex(rb"([0-9]{1,12}(d|h|m|s|ms|us)){1,4}", fullmatch=True)
NUMBERS = st.from_regex(rb"-?[0-9]{0,20}(\.[0-9]{0,3})?", fullmatch=True)
VALUES = st.binary(max_size=80) | NUMBERS | DATES | COMBINED | DURATIONS
NAMES = st.sampled_from(
    [
        *(
            b"x-ratelimit-%b-%b" % (field, of)
            for field in (b"limit", b"remaining", b"reset")
            for of in (b"requests", b"tokens")
        ),
        *(b"anthropic-ratelimit-requests-%b" % field for field in (b"limit", b"remaining", b"reset")),
        *(b"retry-after", b"retry-after-ms", b"x-ratelimit-limit", b"x-tokenlimit-limit", b"ratelimitbysize-reset"),
        *(b"date", b"ratelimit", b"ratelimit-limit", b"ratelimit-remaining", b"ratelimit-reset", b"x-ratelimit-reset"),
        *(b"anthropic-ratelimit-unified-reset", b"x-ratelimit-reset-requests-day", b"x-ratelimit-limit-tokens-minute"),
        *(b"ratelimitbysize-query-cost", b"x-ratelimit-over-limit", b"x-ratelimit-remaining-project-tokens"),
    ]
)
HEADERS = st.lists(st.tuples(NAMES | st.binary(max_size=20), VALUES), max_size=12)
PROVIDERS = st.sampled_from(["", "openai", "groq", "together", "azure", "anthropic"])


@rows(
    ("value", "seconds"),
    [
        ("2026-11-20T12:00:05Z", 5.0),
        ("2026-11-20T12:00:05.25Z", 5.25),
        ("2026-11-20T13:00:05+01:00", 5.0),
        ("2026-11-20T11:30:05-00:30", 5.0),
        ("6m0s", 360.0),
        ("1s", 1.0),
        ("2m59.56s", 179.56),
        ("7.66s", 7.66),
        ("120ms", 0.12),
        ("1h0m3s", 3603.0),
        ("1d2h", 93_600.0),
        ("0.5d", 43_200.0),
        ("11.382867097854614", 11.382867),
        ("9m", 540.0),
        ("0s", 0.0),
        ("1795176030000", 30.0),
        ("1795176030", 30.0),
        ("1795176030.5", 30.5),
        ("55", 55.0),
        (" 55 ", 55.0),
        ("0.25", 0.25),
        ("0", 0.0),
        ("2678400", 2_678_400.0),
    ],
)
def test_a_reset_is_read_in_every_format(value: str, seconds: float) -> None:
    """RFC 3339, Go durations, epochs and plain seconds, as text and as bytes."""
    assert parse_reset(value, NOW) == pytest.approx(seconds)
    assert parse_reset(value.encode(), NOW) == pytest.approx(seconds)


@rows(
    "value",
    [
        *(
            "",
            " ",
            "-1",
            "-5s",
            "soon",
            "nan",
            "inf",
            "1e3",
            "0x10",
            "1_000",
            "+5",
            "5.",
            ".5",
            "1,5",
            "5 s",
            "s",
            "ms",
        ),
        *(
            "1m2h",
            "2h1d",
            "99999999999s",
            "2678401",
            "32d",
            "745h",
            "1795175999",
            "1795175999000",
            "1" * 70,
            "\u0665",
            "5µs",
        ),
        *("2026-11-20T11:59:59Z", "2026-13-01T00:00:00Z", "2026-11-20T25:00:00Z", "2026-11-20", "2026-11-20T12:00:05"),
        *("0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-11-20 12:00:05Z"),
    ],
)
def test_a_reset_without_sense_is_none(value: str) -> None:
    """Garbage, what is past, and what is further away than 31 days."""
    assert parse_reset(value, NOW) is None
    assert parse_reset(value.encode(), NOW) is None


OPENAI_HEADERS = [
    (b"content-type", b"application/json"),
    (b"x-ratelimit-limit-requests", b"60"),
    (b"x-ratelimit-limit-tokens", b"150000"),
    (b"x-ratelimit-remaining-requests", b"59"),
    (b"x-ratelimit-remaining-tokens", b"149984"),
    (b"x-ratelimit-reset-requests", b"1s"),
    (b"x-ratelimit-reset-tokens", b"6m0s"),
]
GROQ_HEADERS = [
    (b"x-ratelimit-limit-requests", b"14400"),
    (b"x-ratelimit-limit-tokens", b"18000"),
    (b"x-ratelimit-remaining-requests", b"14370"),
    (b"x-ratelimit-remaining-tokens", b"17997"),
    (b"x-ratelimit-reset-requests", b"2m59.56s"),
    (b"x-ratelimit-reset-tokens", b"7.66s"),
]
ANTHROPIC_HEADERS = [
    (b"anthropic-ratelimit-requests-limit", b"4000"),
    (b"anthropic-ratelimit-requests-remaining", b"3999"),
    (b"anthropic-ratelimit-requests-reset", b"2026-11-20T12:00:01Z"),
    (b"anthropic-ratelimit-tokens-limit", b"90000"),
    (b"anthropic-ratelimit-tokens-remaining", b"90000"),
    (b"anthropic-ratelimit-input-tokens-limit", b"450000"),
    (b"anthropic-ratelimit-input-tokens-remaining", b"449000"),
    (b"anthropic-ratelimit-input-tokens-reset", b"2026-11-20T12:00:05Z"),
    (b"anthropic-ratelimit-output-tokens-limit", b"90000"),
    (b"anthropic-ratelimit-output-tokens-remaining", b"90000"),
]
CEREBRAS_HEADERS = [
    (b"x-ratelimit-limit-requests-day", b"14400"),
    (b"x-ratelimit-limit-tokens-minute", b"60000"),
    (b"x-ratelimit-remaining-requests-day", b"14399"),
    (b"x-ratelimit-remaining-tokens-minute", b"59998"),
    (b"x-ratelimit-reset-requests-day", b"33011.382867097855"),
    (b"x-ratelimit-reset-tokens-minute", b"11.382867097854614"),
]
MISTRAL_2026_HEADERS = [
    (b"x-ratelimit-limit-req-minute", b"60"),
    (b"x-ratelimit-limit-tokens-minute", b"50000"),
    (b"x-ratelimit-limit-tokens-month", b"4000000"),
    (b"x-ratelimit-remaining-req-minute", b"59"),
    (b"x-ratelimit-remaining-tokens-minute", b"47196"),
    (b"x-ratelimit-tokens-query-cost", b"2804"),
]
MISTRAL_HEADERS = [
    (b"x-ratelimitbysize-limit-minute", b"500000"),
    (b"x-ratelimitbysize-remaining-minute", b"467993"),
    (b"x-ratelimitbysize-limit-month", b"1000000000"),
    (b"ratelimitbysize-limit", b"500000"),
    (b"ratelimitbysize-reset", b"40"),
    (b"ratelimitbysize-query-cost", b"32007"),
]
TOGETHER_HEADERS = [
    (b"x-ratelimit-limit", b"10"),
    (b"x-ratelimit-remaining", b"9"),
    (b"x-ratelimit-reset", b"1"),
    (b"x-tokenlimit-limit", b"3000"),
    (b"x-tokenlimit-remaining", b"2900"),
]
FIREWORKS_HEADERS = [
    (b"x-ratelimit-limit-tokens-prompt", b"60000"),
    (b"x-ratelimit-limit-tokens-cache-adjusted-prompt", b"15000"),
    (b"x-ratelimit-limit-tokens-generated", b"600"),
    (b"x-ratelimit-remaining-tokens-generated", b"600"),
    (b"x-ratelimit-over-limit", b"yes"),
]


@rows(
    ("provider", "headers", "learned"),
    [
        pytest.param(
            "openai",
            OPENAI_HEADERS,
            Learned(requests=Reading(60, 59, 1.0), tokens=Reading(150_000, 149_984, 360.0)),
            id="openai",
        ),
        pytest.param(
            "openai",
            [*OPENAI_HEADERS, (b"x-ratelimit-remaining-project-tokens", b"700")],
            Learned(requests=Reading(60, 59, 1.0), tokens=Reading(None, 700)),
            id="the tighter of organization and project",
        ),
        pytest.param(
            "openai",
            [
                (b"x-ratelimit-limit-requests", b"10000"),
                (b"x-ratelimit-remaining-requests", b"9999"),
                (b"x-ratelimit-reset-requests", b"8.64s"),
            ],
            Learned(requests_per_day=Reading(10_000, 9999, 8.64, 86_400.0)),
            id="a day's requests, told by how slowly they come back",
        ),
        pytest.param(
            "groq",
            GROQ_HEADERS,
            Learned(requests_per_day=Reading(14_400, 14_370, 179.56, 86_400.0), tokens=Reading(18_000, 17_997, 7.66)),
            id="groq: requests are per day",
        ),
        pytest.param(
            "azure",
            [(b"x-ratelimit-remaining-requests", b"9"), (b"x-ratelimit-remaining-tokens", b"9000")],
            Learned(requests=Reading(None, 9), tokens=Reading(None, 9000)),
            id="azure: what remains, without the limit",
        ),
        pytest.param(
            "azure",
            [(b"x-rate-limit-reset-tokens", b"55"), (b"policy-id", b"DeploymentRatelimit-Token")],
            Learned(tokens=Reading(None, None, 55.0)),
            id="azure: the older spelling",
        ),
        pytest.param(
            "anthropic",
            ANTHROPIC_HEADERS,
            Learned(
                requests=Reading(4000, 3999, 1.0),
                input_tokens=Reading(450_000, 449_000, 5.0, grain=1000.0),
                output_tokens=Reading(90_000, 90_000, grain=1000.0),
            ),
            id="anthropic: the joint number only repeats",
        ),
        pytest.param(
            "anthropic",
            ANTHROPIC_HEADERS[3:5],
            Learned(tokens=Reading(90_000, 90_000, grain=1000.0)),
            id="anthropic: the joint number alone",
        ),
        pytest.param(
            "mistral",
            MISTRAL_HEADERS,
            Learned(tokens=Reading(500_000, 467_993, 40.0), charged_tokens=32_007.0),
            id="mistral",
        ),
        pytest.param(
            "mistral",
            MISTRAL_2026_HEADERS,
            Learned(requests=Reading(60, 59), tokens=Reading(50_000, 47_196), charged_tokens=2804.0),
            id="mistral: of 2026",
        ),
        pytest.param(
            "",
            CEREBRAS_HEADERS,
            Learned(
                requests_per_day=Reading(14_400, 14_399, 33_011.382867097855, 86_400.0),
                tokens=Reading(60_000, 59_998, 11.382867097854614),
            ),
            id="cerebras: a day's requests by their name",
        ),
        pytest.param(
            "together",
            TOGETHER_HEADERS,
            Learned(requests=Reading(10, 9, 1.0, 1.0), tokens=Reading(3000, 2900, None, 1.0)),
            id="together: per second",
        ),
        pytest.param(
            "fireworks",
            FIREWORKS_HEADERS,
            Learned(
                input_tokens=Reading(15_000, None, None, 1.0),
                output_tokens=Reading(600, 600, None, 1.0),
                is_over=True,
            ),
            id="fireworks: per second, uncached input",
        ),
    ],
)
def test_each_providers_headers_are_understood(
    provider: str, headers: list[tuple[bytes, bytes]], learned: Learned
) -> None:
    """In one vocabulary."""
    assert read_limit_headers(headers, NOW, provider) == learned


@rows(
    "headers",
    [
        [],
        [(b"content-type", b"application/json"), (b"retry-after", b"5")],
        [(b"x-ratelimit-limit-tokens", b"-1"), (b"x-ratelimit-remaining-tokens", b"0")],
        [(b"x-ratelimit-limit-tokens", b"0"), (b"x-ratelimit-remaining-tokens", b"0")],
        [(b"x-ratelimit-limit-tokens", b"unlimited"), (b"x-ratelimit-remaining-tokens", b"0")],
        [(b"x-ratelimit-limit-tokens", b"9" * 15), (b"x-ratelimit-remaining-tokens", b"0")],
        [(b"x-ratelimit-remaining-tokens", b"-1"), (b"x-ratelimit-reset-tokens", b"-1")],
    ],
)
def test_headers_without_sense_teach_nothing(headers: list[tuple[bytes, bytes]]) -> None:
    """Nor does a remaining beside a limit that makes none."""
    learned = read_limit_headers(headers, NOW)

    assert learned is None or learned.by_limit() == []


def test_more_remaining_than_the_limit_is_not_believed() -> None:
    """The limit is."""
    headers = [(b"x-ratelimit-limit-tokens", b"100"), (b"x-ratelimit-remaining-tokens", b"500")]

    assert read_limit_headers(headers, NOW) == Learned(tokens=Reading(100))


@rows(
    ("status", "headers", "body", "delay_s"),
    [
        pytest.param(429, [(b"retry-after-ms", b"1500"), (b"retry-after", b"2")], b"", 1.5, id="milliseconds first"),
        pytest.param(
            429, [(b"retry-after-ms", b"x"), (b"retry-after", b"2")], OPENAI_TPM, 2.0, id="garbage is skipped"
        ),
        pytest.param(503, [(b"retry-after", b"12")], b"", 12.0, id="seconds"),
        pytest.param(429, [(b"retry-after", b"0.5")], b"", 0.5, id="fractions"),
        pytest.param(429, [(b"retry-after", b"0")], OPENAI_TPM, 0.0, id="zero is an answer"),
        pytest.param(429, [(b"retry-after", b"Fri, 20 Nov 2026 12:00:30 GMT")], b"", 30.0, id="HTTP date"),
        pytest.param(429, [(b"retry-after", b"Friday, 20-Nov-26 12:00:30 GMT")], b"", 30.0, id="RFC 850 date"),
        pytest.param(429, [(b"retry-after", b"Fri Nov 20 12:00:30 2026")], b"", 30.0, id="asctime date"),
        pytest.param(429, [(b"retry-after", b"Fri, 20 Nov 2026 11:00:00 GMT")], b"", 0.0, id="a past date is now"),
        pytest.param(429, [(b"retry-after", b"30s")], b"", 30.0, id="a duration"),
        pytest.param(429, [(b"retry-after", b"1d2h")], b"", 93_600.0, id="a duration of days"),
        pytest.param(429, [(b"retry-after", b"1795176030")], b"", 30.0, id="an epoch"),
        pytest.param(429, [(b"retry-after", b"2026-11-20T12:00:30Z")], b"", 30.0, id="an RFC 3339 instant"),
        pytest.param(429, [(b"retry-after", b"soon")], OPENAI_TPM, 0.084, id="a word"),
        pytest.param(429, [(b"retry-after", b"-5")], b"", None, id="negative"),
        pytest.param(429, [(b"retry-after", b"99999999")], b"", None, id="absurd"),
        pytest.param(429, [(b"retry-after", b"Fri, 20 Foo 2026 12:00:30 GMT")], b"", None, id="no such month"),
        pytest.param(429, [], GEMINI, 34.07, id="Google's RetryInfo"),
        pytest.param(429, [], b'{"retryDelay":"36000s"}', 36_000.0, id="ten hours are obeyed"),
        pytest.param(429, [], OPENAI_TPM, 0.084, id="OpenAI's words"),
        pytest.param(429, [], AZURE_CALLS, 6.0, id="Azure's words"),
        pytest.param(429, [], b"Please retry after 86400 seconds.", 86_400.0, id="Azure's trial"),
        pytest.param(429, [], b"Please try again in 5.289s.", 5.289, id="Groq's words"),
        pytest.param(429, [], b"Please try again in 1h2m3.5s.", 3723.5, id="hours"),
        pytest.param(429, [], b"Try again in 2m59.56s", 179.56, id="minutes"),
        pytest.param(429, [], b"try again in 5 minutes 10 seconds", 310.0, id="words for units"),
        pytest.param(429, [], b"please try again in a moment; retry in 3s", 3.0, id="the second mention counts"),
        pytest.param(429, [], b"Your quota will reset after 8s.", 8.0, id="Google Code Assist's words"),
        pytest.param(429, [], b"Your quota will reset after 3h45m12s.", 13_512.0, id="its hours"),
        pytest.param(429, [], b'{"metadata":{"quotaResetDelay":"135h9m46s"}}', 486_586.0, id="its details"),
        pytest.param(
            429, [], b"Rate limit reached. Please wait 30 seconds before retrying.", 30.0, id="GitHub's words"
        ),
        pytest.param(429, [], b"resets in 2 minutes; wait for at least 1 minute", 120.0, id="the first words"),
        pytest.param(429, [], b'{"detail":"slow","retry_after": 30}', 30.0, id="a field"),
        pytest.param(429, [], b'{"error":{"details":{"retryAfter":"2.5"}}}', 2.5, id="a field in camel case"),
        pytest.param(429, [], b'{"retry_after_ms": 1500}', 1.5, id="a field in milliseconds"),
        pytest.param(429, [], b'{"error":{"resets_in_seconds":3600}}', 3600.0, id="a subscription's field"),
        pytest.param(429, [], b'{"retry_after":"2026-11-20T12:00:30Z"}', 30.0, id="an instant in a field"),
        pytest.param(429, [], b'{"retry_after":"2026 or so"}', None, id="a text in a field"),
        pytest.param(429, [], b'{"retry_after":-1}', None, id="below nothing in a field"),
        pytest.param(503, [], b'{"error":"M is loading","estimated_time":20.0}', 20.0, id="Hugging Face's field"),
        pytest.param(429, [], rb'{"message":"{"retry_after":30}"}', 30.0, id="a field in a text"),
        pytest.param(
            429, [], b'{"retry_after":null,"retry_after":"x","retry_after":4}', 4.0, id="the first with a number"
        ),
        pytest.param(429, [], b"we had to wait for a reset after that", None, id="words without a time"),
        pytest.param(429, [], b"wait; allowed after 34 seconds", 34.0, id="after so many seconds"),
        pytest.param(
            400, [], b"You will regain access on 2026-11-21 at 00:00 UTC.", 43_200.0, id="Anthropic's spend limit"
        ),
        pytest.param(429, [], b"You will regain access on 2027-11-21 at 00:00 UTC.", None, id="next year"),
        pytest.param(429, [], b"<html>Too many requests</html>", None, id="no word of it"),
        pytest.param(
            429,
            [*OPENAI_HEADERS[1:3], (b"x-ratelimit-remaining-requests", b"0"), *OPENAI_HEADERS[4:]],
            b"",
            1.0,
            id="the reset of what is used up",
        ),
        pytest.param(429, [(b"x-rate-limit-reset-tokens", b"55")], b"", 55.0, id="a reset alone"),
        pytest.param(
            429,
            [(b"x-ratelimit-limit", b"100, 100;w=60"), (b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", b"25")],
            b"",
            25.0,
            id="Envoy",
        ),
        pytest.param(
            429,
            [(b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", b"1795176025000")],
            b"",
            25.0,
            id="OpenRouter",
        ),
        pytest.param(
            429,
            [(b"x-ratelimit-remaining", b"3"), (b"x-ratelimit-reset", b"25")],
            b"",
            None,
            id="3 remain, of whatever",
        ),
        pytest.param(
            429,
            [(b"ratelimit-limit", b"5"), (b"ratelimit-remaining", b"0"), (b"ratelimit-reset", b"25")],
            b"",
            25.0,
            id="Kong, and the IETF's first drafts",
        ),
        pytest.param(429, [(b"ratelimit", b"limit=10, remaining=0, reset=7")], b"", 7.0, id="the IETF's draft 7"),
        pytest.param(429, [(b"ratelimit", b'"default";r=0;t=30')], b"", 30.0, id="the IETF's later drafts"),
        pytest.param(
            429, [(b"ratelimit", b'"a";r=0;t=1,"b";t=50;r=0, "c";r=9;t=99')], b"", 50.0, id="of several, the last"
        ),
        pytest.param(429, [(b"ratelimit", b'"default";r=50;t=30')], b"", None, id="50 remain"),
        pytest.param(429, [(b"ratelimit", b'"default";r=0;t=9999999')], b"", None, id="absurd, in a RateLimit"),
        pytest.param(
            429,
            [
                (b"x-ratelimit-remaining-tokens-minute", b"0"),
                (b"x-ratelimit-reset-tokens-minute", b"11.382867097854614"),
            ],
            b"",
            11.382867097854614,
            id="Cerebras",
        ),
        pytest.param(
            429, [(b"anthropic-ratelimit-unified-reset", b"1795183200")], b"", 7200.0, id="a subscription's reset"
        ),
        pytest.param(
            429,
            [
                (b"anthropic-ratelimit-unified-status", b"allowed"),
                (b"anthropic-ratelimit-unified-reset", b"1795183200"),
            ],
            b"",
            None,
            id="a subscription that is not used up",
        ),
        pytest.param(429, OPENAI_HEADERS, b"", None, id="nothing is used up"),
        pytest.param(500, [(b"x-rate-limit-reset-tokens", b"55")], b"", None, id="resets are for rate limits only"),
    ],
)
def test_the_delay_is_the_first_that_makes_sense(
    status: int, headers: list[tuple[bytes, bytes]], body: bytes, delay_s: float | None
) -> None:
    """Headers before Google's detail, before words, before resets."""
    found = retry_delay_s(status, headers, body, NOW)

    assert found == (None if delay_s is None else pytest.approx(delay_s))


@rows(
    ("body", "expected"),
    [
        (OPENAI_TOO_LARGE, True),
        (OPENAI_TPM, False),
        (b"on tokens per min (TPM): Limit 12000, Used 11000, Requested 12001.", True),
        (b"Limit 12,000, Requested 13,000, please reduce", True),
        (b"Limit 12000, Requested 12000", False),
        (b"Limit , Requested ,", False),
        (b"Limit: 20, Requested: 21", True),
        (b"", False),
        (b"x" * 20_000 + OPENAI_TOO_LARGE, False),
    ],
)
def test_asking_for_more_than_the_limit_never_fits(body: bytes, expected: bool) -> None:
    """Whatever the class of the error; only the first 16 KB are read."""
    assert never_fits(body) is expected


@rows(
    ("base_url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://mine.openai.azure.com/openai/v1", "azure"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://api.together.xyz/v1", "together"),
        ("https://api.fireworks.ai/inference/v1", "fireworks"),
        ("https://groq.com.example/v1", ""),
        ("http://127.0.0.1:8000/v1", ""),
        ("emulator://fast", ""),
        ("http://[::1", ""),
    ],
)
def test_a_provider_is_known_by_its_host(base_url: str, name: str) -> None:
    """Not by what else stands in the address."""
    assert provider_of(base_url) == name


@BOUNDED
@given(HEADERS, st.binary(max_size=200) | VALUES, st.integers(100, 599), PROVIDERS, st.floats(0.0, 4e9), st.data())
def test_hints_are_total(
    headers: list[tuple[bytes, bytes]], body: bytes, status: int, provider: str, wall_now: float, data: st.DataObject
) -> None:
    """On any bytes, and whatever comes out is a sane number."""
    learned = read_limit_headers(headers, wall_now, provider)
    words = st.sampled_from(
        [b"try again in ", b"will reset after ", b"wait ", b'{"retry_after": ', b'{"quotaResetDelay":"']
    )
    delay_s = retry_delay_s(status, headers, data.draw(words) + body, wall_now)
    never_fits(b"Limit " + body)

    assert delay_s is None or 0.0 <= delay_s <= 31 * 86_400
    for _, reading in learned.by_limit() if learned is not None else ():
        assert reading.limit is None or (isfinite(reading.limit) and reading.limit > 0)
        assert reading.remaining is None or 0 <= reading.remaining <= (reading.limit or 1e12)
        assert reading.reset_s is None or 0.0 <= reading.reset_s <= 31 * 86_400


@BOUNDED
@given(VALUES | st.text(max_size=80), st.floats(0.0, 4e9))
def test_a_reset_is_total(value: bytes | str, wall_now: float) -> None:
    """On any bytes and any text."""
    seconds = parse_reset(value, wall_now)

    assert seconds is None or 0.0 <= seconds <= 31 * 86_400


WAITS: list[Callable[[float], tuple[list[tuple[bytes, bytes]], bytes]]] = [
    lambda wait_s: ([(b"retry-after-ms", b"%d" % (wait_s * 1000))], b""),
    lambda wait_s: ([(b"retry-after", b"%d" % wait_s)], b""),
    lambda wait_s: ([(b"retry-after", b"%dh%dm%ds" % (wait_s // 3600, wait_s % 3600 // 60, wait_s % 60))], b""),
    lambda wait_s: ([(b"retry-after", formatdate(NOW + wait_s, usegmt=True).encode())], b""),
    lambda wait_s: ([(b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", b"%d" % wait_s)], b""),
    lambda wait_s: ([(b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", b"%d" % (NOW + wait_s))], b""),
    lambda wait_s: ([(b"ratelimit", b'"default";r=0;t=%d' % wait_s)], b""),
    lambda wait_s: ([(b"anthropic-ratelimit-unified-reset", b"%d" % (NOW + wait_s))], b""),
    lambda wait_s: ([], b"Your quota will reset after %dd%dh." % (wait_s // 86_400, wait_s % 86_400 // 3600)),
    lambda wait_s: ([], b"Please wait %.3f seconds." % wait_s),
    lambda wait_s: ([], b'{"error":{"retry_after":%d}}' % wait_s),
]
"""How a wait of so many seconds is told, rounded down: headers and body."""


@BOUNDED
@given(st.sampled_from(WAITS), st.floats(0.0, 30 * 86_400.0), st.floats(0.0, 30 * 86_400.0))
def test_who_asks_for_more_is_not_waited_for_less(
    told: Callable[[float], tuple[list[tuple[bytes, bytes]], bytes]], one_s: float, more_s: float
) -> None:
    """In every format: the delay grows with what is asked for, and is what is asked for but for rounding."""
    one_s, more_s = sorted((one_s, more_s))
    one, more = (retry_delay_s(429, *told(wait_s), NOW) for wait_s in (one_s, more_s))

    assert one is not None
    assert more is not None
    assert one <= more
    assert one_s - 3600 < one <= one_s + 1e-3


@BOUNDED
@given(st.sampled_from(WAITS), st.floats(4.0, 86_400.0), st.floats(-1e9, 1e9), st.booleans())
def test_a_clock_that_is_off_changes_no_wait(
    told: Callable[[float], tuple[list[tuple[bytes, bytes]], bytes]], wait_s: float, off_s: float, is_late: bool
) -> None:
    """Whether ours or the provider's is off: its `date` says what it means by an instant, to the second."""
    date = (b"date", formatdate(NOW + 0.9 * is_late, usegmt=True).encode())
    headers, body = told(wait_s)
    right = retry_delay_s(429, headers, body, NOW)
    found = retry_delay_s(429, [date, *headers], body, NOW + off_s)

    assert right is not None
    assert found == pytest.approx(right, abs=2.0)


def test_a_clock_that_is_off_makes_no_minute_a_day() -> None:
    """A reset as an instant is read by the provider's clock, or it would be hours away and the limit one of a day."""
    headers = [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"57"),
        (b"x-ratelimit-reset-requests", b"%d" % (NOW + 3)),
    ]
    learned = Learned(requests=Reading(60, 57, 3.0))

    assert read_limit_headers(headers, NOW) == learned
    assert read_limit_headers([(b"date", b"Fri, 20 Nov 2026 12:00:00 GMT"), *headers], NOW - 3600) == learned


def test_a_date_that_is_right_to_two_seconds_is_no_better_than_our_clock() -> None:
    """It has whole seconds only, and was on its way."""
    assert provider_now([(b"date", b"Fri, 20 Nov 2026 12:00:00 GMT")], NOW + 1.9) == NOW + 1.9
    assert provider_now([(b"date", b"Fri, 20 Nov 2026 12:00:00 GMT")], NOW + 2.1) == NOW
    assert provider_now([(b"date", b"yesterday")], NOW) == provider_now([], NOW) == NOW


@rows(
    "body",
    [
        *(b"retry in " * 2000, b"wait for about another " * 900, b'"retry_after":"' * 1200),
        *(b"Limit 1" * 3000, b"1" * 10**7, b"Limit " + b"1," * 10**6),
    ],
)
def test_a_hostile_body_costs_little(body: bytes) -> None:
    """Only its beginning is read, and no pattern goes back over it; this would hang for minutes otherwise."""
    assert retry_delay_s(429, [], body, NOW) is None
    assert never_fits(body) is False


def test_readings_by_limit_are_those_that_their_table_names() -> None:
    """The table is written out where each answer passes."""
    readings = {field: Reading(float(number)) for number, field in enumerate(READING_OF.values())}

    told = Learned()
    for field, reading in readings.items():
        setattr(told, field, reading)

    assert dict(told.by_limit()) == {name: readings[field] for name, field in READING_OF.items()}
