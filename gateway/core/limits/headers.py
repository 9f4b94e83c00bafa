"""What providers say about their limits, in headers and error bodies, in one vocabulary: `Learned` and a delay.

First moments and durations as seconds from now, then the tables (how error bodies say when to come back, which headers
state a limit), then what is read by them. Total: whatever a provider sends, the answer is a sane number or None. It must
not decide what to do with it. `wall_now` is epoch seconds and comes in as an argument. Sources: the providers' rate-limit
pages and captured answers. Invariant: no number is negative or infinite, no delay is longer than 31 days; what is garbage,
past or absurdly far away is as good as absent.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.core.types import RawHeaders

# --- moments and durations as headers write them, read as seconds from now ---


_MINUTE_S = 60.0
_DAY_S = 86_400.0
_ABSURD_S = 31 * _DAY_S
_VALUE_BYTES = 64
_INSTANT_BYTES = 10
"""The fewest bytes of an instant: an epoch in seconds."""
_CLOCKS_DIFFER_S = 2.0
"""A `date` that differs by more shows that a clock is off; less is rounding and the way."""

_NUMBER = re.compile(rb"\d{1,15}(?:\.\d{1,20})?")  # Cerebras writes 15 decimals
_DURATION = re.compile(
    rb"(?:(\d{1,9}(?:\.\d{1,9})?)d)?(?:(\d{1,9}(?:\.\d{1,9})?)h)?(?:(\d{1,9}(?:\.\d{1,9})?)m(?!s))?"
    rb"(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?"
)
_RFC3339 = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d{1,9})?(?:[Zz]|([+-])(\d\d):(\d\d))")
_IMF_DATE = re.compile(rb"[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")
_RFC850_DATE = re.compile(rb"[A-Z][a-z]{5,8}, (\d\d)-([A-Z][a-z]{2})-(\d\d) (\d\d):(\d\d):(\d\d) GMT")
_ASCTIME_DATE = re.compile(rb"[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d) (\d{4})")
_MONTHS = {b"JanFebMarAprMayJunJulAugSepOctNovDec"[3 * n : 3 * n + 3]: n + 1 for n in range(12)}


def parse_reset(value: bytes | str, wall_now: float) -> float | None:
    """Seconds from `wall_now` (epoch seconds) to the moment a reset header names; None for anything not sane.

    In this order: RFC 3339 instant, duration (`6m0s`, `1d2h`), epoch milliseconds, epoch seconds, plain seconds.
    """
    text = value.encode("ascii", "replace") if isinstance(value, str) else value
    if len(text) > _VALUE_BYTES:
        return None
    text = text.strip()
    if text[4:5] == b"-":
        return until_s(rfc3339(text), wall_now)
    if text[-1:] in (b"d", b"h", b"m", b"s"):
        return sane_s(_duration_s(text))
    number = plain_number(text)
    if number is None:
        return None
    # As an epoch 1e12 ms is 2001 and 1.6e9 s is 2020: anything smaller is a number of seconds to wait.
    if number > 1e12:
        return until_s(number / 1000, wall_now)
    return until_s(number, wall_now) if number > 1.6e9 else sane_s(number)


def parse_retry_after(value: bytes, wall_now: float) -> float | None:
    """The seconds that a `retry-after` asks for: a number or an HTTP date (RFC 9110, 10.2.3); one in the past means now.

    What the RFC does not know but servers write (`30s`, an epoch) is read as in `parse_reset`.
    """
    value = value[: _VALUE_BYTES + 1].strip()
    instant = _http_date(value, wall_now)
    return parse_reset(value, wall_now) if instant is None else sane_s(max(0.0, instant - wall_now))


def provider_now(headers: RawHeaders, wall_now: float) -> float:
    """The provider's time in epoch seconds by the answer's `date` (RFC 9110, 6.6.1); `wall_now` where that is right.

    A `date` has whole seconds, rounded down, so a wait for an instant comes out up to a second too long, never too short.
    """
    date = next((value for name, value in headers if name == b"date"), None)
    instant = None if date is None else _http_date(date[: _VALUE_BYTES + 1].strip(), wall_now)
    return wall_now if instant is None or abs(instant - wall_now) <= _CLOCKS_DIFFER_S else instant


def until_s(instant: float | None, wall_now: float) -> float | None:
    """Seconds to an instant in epoch seconds; None for None, and as `sane_s`."""
    return None if instant is None else sane_s(instant - wall_now)


def sane_s(seconds: float | None) -> float | None:
    """The number, or None where it is negative or over 31 days."""
    return seconds if seconds is not None and 0 <= seconds <= _ABSURD_S else None


def plain_number(value: bytes) -> float | None:
    """The value of a plain decimal of at most 15 digits; `float` would also take signs, exponents and words."""
    if value.isdigit():
        return float(value) if len(value) <= 15 else None
    return float(value) if _NUMBER.fullmatch(value) else None


def _http_date(text: bytes, wall_now: float) -> float | None:
    """Epoch seconds of a date in any of the three forms of RFC 9110, 5.6.7."""
    if (found := _IMF_DATE.fullmatch(text)) is not None:
        day, month, year, *clock = found.groups()
        return epoch_s(int(year), _MONTHS.get(month, 0), int(day), *map(int, clock))
    if (found := _RFC850_DATE.fullmatch(text)) is not None:
        day, month, year, *clock = found.groups()
        this_year = 1970 + int(wall_now // 31_556_952)  # seconds of a mean year
        century = this_year - this_year % 100
        # RFC 9110, 5.6.7: what seems to be more than 50 years ahead is in the past.
        full_year = century + int(year) - (100 if century + int(year) > this_year + 50 else 0)
        return epoch_s(full_year, _MONTHS.get(month, 0), int(day), *map(int, clock))
    if (found := _ASCTIME_DATE.fullmatch(text)) is not None:
        month, day, *clock, year = found.groups()
        return epoch_s(int(year), _MONTHS.get(month, 0), int(day), *map(int, clock))
    return None


def rfc3339(text: bytes) -> float | None:
    found = _RFC3339.fullmatch(text)
    if found is None:
        return None
    *date, fraction, sign, hours, minutes = found.groups()
    year, month, day, hour, minute, second = map(int, date)
    instant = epoch_s(year, month, day, hour, minute, second)
    if instant is None:
        return None
    offset_s = (int(hours) * 3600 + int(minutes) * 60) if sign else 0
    return instant + float(fraction or 0) - (offset_s if sign == b"+" else -offset_s)


def epoch_s(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    """Epoch seconds of a date and time in UTC; None where there is no such one."""
    # Second 60 is a leap second.
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    return float(timegm((year, month, day, hour, minute, second)))


def _duration_s(text: bytes) -> float | None:
    """The seconds of a duration as Go writes it, or with days before it."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds, millis = [float(part or 0) for part in found.groups()]
    return days * _DAY_S + hours * 3600 + minutes * _MINUTE_S + seconds + millis / 1000


_MOST = 1e12
_BODY_BYTES = 16_384
_FIELD_BYTES = 512
_MOST_HINTS = 32

# --- the words of an error's body that say when to come back, in the order in which they are looked for, and who writes so ---
#
# docs/reference/headers.md has the headers in the same table.
#
#     "retryDelay": "34.07s"                     Google, google.rpc.RetryInfo: the words beside it may be rounded
#     "quotaResetDelay": "3h45m12s"              Google Code Assist, google.rpc.ErrorInfo
#     "retry_after": 30, "retry_after_ms": 1500  limiters of FastAPI and Express in front of self-hosted models
#     "resets_in_seconds": 3600                  ChatGPT subscriptions, `usage_limit_reached`
#     "estimated_time": 20.0                     Hugging Face, a model that is being loaded (503)
#     try again in 84ms, retry after 6 seconds   OpenAI, Groq, Gemini; Azure
#     will reset after 3h45m12s                  Google Code Assist
#     wait 30 seconds                            GitHub Models
#     after 34 seconds                           Azure, older
#     regain access on 2026-09-01 at 00:00 UTC   Anthropic, a spend limit

_RETRY_FIELD = re.compile(
    rb'"(?:retryDelay|quotaResetDelay|estimated_time|(?:resets_in|retry_?after)(?:_?(?:(ms)|s|seconds))?)\\?"'
    rb'\s{0,8}:\s{0,8}\\?"?([-+\d.:TZdhms]{1,40})(?=\s{0,8}[,}\]]|\\?"|\Z)',
    re.IGNORECASE,
)
_AGAIN = re.compile(
    rb"\b(?:try again|retry(?:ing)?|resets?|wait)(?: (?:in|after|for|at least|about|another)){0,2} (?=\d)",
    re.IGNORECASE,
)
_PIECE = re.compile(
    rb"\s{0,2}(\d{1,9}(?:\.\d{1,9})?)\s{0,2}"
    rb"(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])",
    re.IGNORECASE,
)
_AFTER = re.compile(rb"after (\d{1,9}) seconds", re.IGNORECASE)
_REGAIN = re.compile(rb"regain access on (\d{4})-(\d\d)-(\d\d) at (\d\d):(\d\d) UTC")
_UNIT_S = {b"d": _DAY_S, b"h": 3600.0, b"m": _MINUTE_S, b"s": 1.0, b"ms": 0.001}
_REQUESTED = re.compile(
    rb"Limit:? (\d[\d,]{0,19}?),?(?: Used:? \d[\d,]{0,19}?,?)? Requested:? (\d[\d,]{0,19})", re.IGNORECASE
)

# --- the headers that state a limit ---
#
# What a name counts, and in how many seconds, is known of the providers beside it; of all others only when it is whole again,
# which is what a refused call asks.

_PLACES = {"limit": 0, "remaining": 1, "reset": 2}
_NAMES = {
    "x-ratelimit-{}-requests": "requests",  # OpenAI, Groq (of a day), xAI, Azure, Fireworks
    "x-ratelimit-{}-tokens": "tokens",  # OpenAI, Groq, xAI, Azure
    "x-ratelimit-{}-project-tokens": "project-tokens",  # OpenAI, of a project
    "x-rate-limit-{}-requests": "requests",  # Azure, older
    "x-rate-limit-{}-tokens": "tokens",  # Azure, older
    "anthropic-ratelimit-requests-{}": "anthropic-requests",  # docs.anthropic.com, Rate limits
    "anthropic-ratelimit-tokens-{}": "anthropic-tokens",
    "anthropic-ratelimit-input-tokens-{}": "anthropic-input-tokens",
    "anthropic-ratelimit-output-tokens-{}": "anthropic-output-tokens",
    "x-ratelimitbysize-{}-minute": "by-size",  # Mistral, 2025
    "ratelimitbysize-{}": "by-size",
    "x-ratelimit-{}-req-minute": "requests",  # Mistral, 2026: captured answers
    "x-ratelimit-{}-tokens-minute": "tokens",  # Mistral, Cerebras
    "x-ratelimit-{}-tokens-per-minute": "tokens",  # DigitalOcean
    "x-ratelimit-{}-requests-minute": "requests",  # Cerebras
    "x-ratelimit-{}-requests-hour": "requests-hour",
    "x-ratelimit-{}-requests-day": "requests-day",
    "x-ratelimit-{}-tokens-hour": "tokens-hour",
    "x-ratelimit-{}-tokens-day": "tokens-day",
    "x-ratelimit-{}-tokens-per-day": "tokens-day",  # DigitalOcean
    "x-ratelimit-{}": "bare",  # Together (of a second), OpenRouter; Envoy: `X-RateLimit-Limit: 10, 10;w=60`, reset in seconds
    "ratelimit-{}": "ietf",  # draft-ietf-httpapi-ratelimit-headers-00 to -06, Kong
    "x-tokenlimit-{}": "bare-tokens",  # Together
    "x-ratelimit-{}-tokens-prompt": "prompt",  # Fireworks, all of a second
    "x-ratelimit-{}-tokens-cache-adjusted-prompt": "cache-adjusted-prompt",
    "x-ratelimit-{}-tokens-generated": "generated",
}
_FIELDS: dict[bytes, tuple[str, int]] = {
    **{
        pattern.format(field).encode(): (dimension, place)
        for pattern, dimension in _NAMES.items()
        for field, place in _PLACES.items()
    },
    b"ratelimitbysize-query-cost": ("cost", 0),
    b"x-ratelimit-tokens-query-cost": ("cost", 0),
    b"x-ratelimit-over-limit": ("over", 0),
}
"""The part of a dimension that a header states, by the header's name."""
_COMBINED = re.compile(rb"\b(r|remaining|t|reset)\s{0,2}=\s{0,2}(\d{1,15})\b")
"""A part of `RateLimit: "default";r=0;t=30` (draft -08 on), or of `limit=100, remaining=0, reset=30` (draft -07)."""
_SERVED = frozenset((b"allowed", b"allowed_warning"))
"""The values of `anthropic-ratelimit-unified-status` (subscriptions: captured answers) of an account with something left."""
_PERIOD_S = {
    **dict.fromkeys(("bare", "bare-tokens", "prompt", "cache-adjusted-prompt", "generated"), 1.0),
    "requests-day": _DAY_S,
}
_UNTOLD = (None,)

_HOSTS = {
    "groq.com": "groq",
    "together.xyz": "together",
    "together.ai": "together",
    "fireworks.ai": "fireworks",
    "openrouter.ai": "openrouter",
    "mistral.ai": "mistral",
    "anthropic.com": "anthropic",
    "openai.azure.com": "azure",
    "openai.com": "openai",
}


# --- what the headers and words are read into ---


class Reading(NamedTuple):
    """One limit as a provider states it: `limit` in `period_s` seconds, `remaining` of it, `reset_s` until it is whole.

    `remaining` is rounded down to a multiple of `grain`.
    """

    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None
    period_s: float = _MINUTE_S
    grain: float = 1.0


READING_OF = {
    "requests_per_min": "requests",
    "requests_per_day": "requests_per_day",
    "tokens_per_min": "tokens",
    "input_tokens_per_min": "input_tokens",
    "output_tokens_per_min": "output_tokens",
}
"""The field of `Learned` that has a limit, by the limit's name."""


@dataclass(slots=True)
class Learned:
    """All the limits that one answer states; None: not a word about it."""

    requests: Reading | None = None
    requests_per_day: Reading | None = None
    tokens: Reading | None = None
    input_tokens: Reading | None = None
    output_tokens: Reading | None = None
    charged_tokens: float | None = None
    """The tokens that the provider charged for this call at admission (Mistral)."""
    is_over: bool = False
    """The call was served, but above the limit: slow down (Fireworks)."""

    @property
    def is_used_up(self) -> bool:
        """Nothing is left of a limit."""
        return any(reading.remaining is not None and reading.remaining < 1 for _, reading in self.by_limit())

    def by_limit(self) -> list[tuple[str, Reading]]:
        """The readings, by the names of limits."""
        named = (  # as READING_OF names them, which would take a look-up by name for each answer
            ("requests_per_min", self.requests),
            ("requests_per_day", self.requests_per_day),
            ("tokens_per_min", self.tokens),
            ("input_tokens_per_min", self.input_tokens),
            ("output_tokens_per_min", self.output_tokens),
        )
        return [(name, reading) for name, reading in named if reading is not None]


SUMMED_LIMITS = {b"x-ratelimit-limit-requests": "requests_per_min", b"x-ratelimit-limit-tokens": "tokens_per_min"}
"""The limits by the header by which OpenAI's clients know them."""


def provider_of(base_url: str) -> str:
    """Whose headers to expect from this address: `groq`, `together`, … or empty when it is nobody we know."""
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:
        return ""
    return next((name for domain, name in _HOSTS.items() if host == domain or host.endswith("." + domain)), "")


def read_limit_headers(headers: RawHeaders, wall_now: float, provider: str = "") -> Learned | None:
    """Returns the limits that an answer's headers (names in lower case) state; None when they state none.

    `provider` is that of `provider_of`: Groq's requests are per day, Together's bare names per second.
    """
    found: dict[str, list[bytes | None]] = {}
    has_instant = False
    for name, value in headers:
        field = _FIELDS.get(name)
        if field is not None:
            dimension, place = field
            fields = found.get(dimension)
            if fields is None:
                found[dimension] = fields = [None, None, None]
            fields[place] = value
            if place == 2 and len(value) >= _INSTANT_BYTES:
                has_instant = True
    if not found:
        return None
    return _learned(found, provider_now(headers, wall_now) if has_instant else wall_now, provider)


def retry_delay_s(status: int, headers: RawHeaders, body: bytes, wall_now: float) -> float | None:
    """How long the provider asks to wait, in seconds; None when it does not say, or nothing sane.

    The first of: `retry-after-ms`, `retry-after`, the fields and words of the body, and with a 429 the resets of what the
    headers say is used up. Instants are read by the provider's clock.
    """
    index = dict(headers)
    wall_now = provider_now(headers, wall_now)
    value = index.get(b"retry-after-ms")
    if value is not None:
        milliseconds = plain_number(value.strip())
        delay_s = None if milliseconds is None else sane_s(milliseconds / 1000)
        if delay_s is not None:
            return delay_s
    value = index.get(b"retry-after")
    if value is not None:
        delay_s = parse_retry_after(value, wall_now)
        if delay_s is not None:
            return delay_s
    delay_s = _delay_in_body(body[:_BODY_BYTES], wall_now)
    return _exhausted_s(headers, wall_now) if delay_s is None and status == 429 else delay_s


def never_fits(body: bytes) -> bool:
    """Whether an error says that the call asks for more than the limit ever holds: waiting cannot help."""
    words = _REQUESTED.search(body[:_BODY_BYTES])
    if words is None:
        return False
    limit, requested = (int(number.replace(b",", b"")) for number in words.groups())
    return requested > limit


def _learned(found: dict[str, list[bytes | None]], wall_now: float, provider: str) -> Learned | None:
    cost = found.pop("cost", _UNTOLD)[0]
    over = found.pop("over", _UNTOLD)[0]
    readings = {
        dimension: reading
        for dimension, fields in found.items()
        if (reading := _reading(fields, wall_now, _PERIOD_S.get(dimension, _MINUTE_S))) is not None
    }
    reading_of = readings.get
    learned = Learned(
        requests=reading_of("anthropic-requests") or reading_of("requests"),
        requests_per_day=reading_of("requests-day"),
        tokens=_tighter(reading_of("tokens"), reading_of("project-tokens"))
        or reading_of("by-size")
        or reading_of("bare-tokens"),
        input_tokens=reading_of("anthropic-input-tokens")
        or reading_of("cache-adjusted-prompt")
        or reading_of("prompt"),
        output_tokens=reading_of("anthropic-output-tokens") or reading_of("generated"),
        charged_tokens=None if cost is None else _amount(cost),
        is_over=over is not None and over.strip().lower() in (b"yes", b"true", b"1"),
    )
    if learned.requests is None and provider == "together":
        learned.requests = reading_of("bare")
    elif learned.requests is not None and _is_daily(learned.requests, provider):
        learned.requests_per_day = learned.requests._replace(period_s=_DAY_S)
        learned.requests = None
    if learned.input_tokens is None and learned.output_tokens is None and learned.tokens is None:
        learned.tokens = reading_of("anthropic-tokens")  # else it only repeats the tighter of the two
    return learned if readings or cost is not None or over is not None else None


def _reading(fields: list[bytes | None], wall_now: float, period_s: float) -> Reading | None:
    """None when the limit makes no sense (Azure sends -1, with a remaining of 0)."""
    limit_text, remaining_text, reset_text = fields
    limit = remaining = None
    if limit_text is not None:
        limit = _amount(limit_text)
        if limit is None:
            limit = _amount(limit_text.partition(b",")[0])  # `10, 10;w=60`: the policies behind it are not looked at
        if not limit:
            return None
    if remaining_text is not None:
        remaining = _amount(remaining_text)
        if remaining is not None and limit is not None and remaining > limit:
            remaining = None
    reset_s = None if reset_text is None else parse_reset(reset_text, wall_now)
    if limit is None and remaining is None and reset_s is None:
        return None
    is_rounded = limit is not None and limit >= 10_000 and remaining is not None and remaining % 1000 == 0
    return Reading(limit, remaining, reset_s, period_s, 1000.0 if is_rounded else 1.0)


def _is_daily(requests: Reading, provider: str) -> bool:
    """Groq's always are. OpenAI's may be, which shows in how long the used ones take to come back."""
    if provider == "groq":
        return True
    limit, remaining, reset_s = requests.limit, requests.remaining, requests.reset_s
    if provider == "azure" or limit is None or remaining is None or reset_s is None or remaining >= limit:
        return False
    return 0.5 * _DAY_S < reset_s * limit / (limit - remaining) < 1.5 * _DAY_S


def _tighter(one: Reading | None, other: Reading | None) -> Reading | None:
    if one is None or other is None:
        return one or other
    if one.remaining is None or other.remaining is None:
        return one
    return one if one.remaining <= other.remaining else other


def _exhausted_s(headers: RawHeaders, wall_now: float) -> float | None:
    """The longest reset among what is used up; a reset alone (Azure's older headers) counts as used up."""
    found: dict[str, list[bytes | None]] = {}
    resets: list[tuple[float | None, float | None]] = []
    for name, value in headers:
        if (field := _FIELDS.get(name)) is not None:
            found.setdefault(field[0], [None, None, None])[field[1]] = value
        elif name == b"ratelimit":
            resets += _combined(value)
    index = dict(headers)
    unified = index.get(b"anthropic-ratelimit-unified-reset")
    if unified is not None and index.get(b"anthropic-ratelimit-unified-status") not in _SERVED:
        resets.append((None, parse_reset(unified, wall_now)))
    for fields in found.values():
        reading = _reading(fields, wall_now, _MINUTE_S)
        if reading is not None:
            resets.append((reading.remaining, reading.reset_s))
    used_up = [reset_s for remaining, reset_s in resets if reset_s is not None and (remaining is None or remaining < 1)]
    return max(used_up, default=None)


def _combined(value: bytes) -> Iterator[tuple[float | None, float | None]]:
    """Yields what remains of each policy in a `RateLimit` field, and its reset in seconds."""
    value = value[:_FIELD_BYTES]
    for member in [value] if b"limit=" in value else value.split(b","):
        values = dict(_COMBINED.findall(member))
        remaining, reset = values.get(b"r", values.get(b"remaining")), values.get(b"t", values.get(b"reset"))
        yield None if remaining is None else float(remaining), None if reset is None else sane_s(float(reset))


def _delay_in_body(body: bytes, wall_now: float) -> float | None:
    for field in islice(_RETRY_FIELD.finditer(body), _MOST_HINTS):
        parsed_s = parse_reset(field[2], wall_now)
        if parsed_s is not None:
            return parsed_s / 1000 if field[1] else parsed_s
    for again in islice(_AGAIN.finditer(body), _MOST_HINTS):
        delay_s = _words_s(body, again.end())
        if delay_s is not None:
            return sane_s(delay_s)
    after = _AFTER.search(body)
    if after is not None:
        return sane_s(float(after[1]))
    regain = _REGAIN.search(body)
    if regain is not None:
        year, month, day, hour, minute = map(int, regain.groups())
        return until_s(epoch_s(year, month, day, hour, minute, 0), wall_now)
    return None


def _words_s(body: bytes, start: int) -> float | None:
    """The duration that stands at `start`: `1h2m3.5s`, `84ms`, `6 seconds`, `5 minutes 10 seconds`."""
    total_s = None
    # There are five units; a body that goes on longer is not followed.
    for _ in range(5):
        piece = _PIECE.match(body, start)
        if piece is None:
            break
        unit = piece[2].lower()
        short = b"ms" if unit.startswith((b"ms", b"milli")) else unit[:1]
        total_s = (total_s or 0.0) + float(piece[1]) * _UNIT_S[short]
        start = piece.end()
    return total_s


def _amount(value: bytes) -> float | None:
    number = plain_number(value.strip())
    return number if number is not None and number <= _MOST else None
