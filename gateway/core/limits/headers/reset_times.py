"""Moments and durations as headers write them, read as seconds from now.

Total: what is garbage, past or absurdly far away (over 31 days) is None. `wall_now` is epoch seconds and comes in as an
argument; it must not know which header it reads.
"""

from __future__ import annotations

import re
from calendar import timegm

_ABSURD_S = 31 * 86_400.0
_VALUE_BYTES = 64

_NUMBER = re.compile(rb"\d{1,15}(?:\.\d{1,9})?")
_GO = re.compile(
    rb"(?:(\d{1,9}(?:\.\d{1,9})?)h)?(?:(\d{1,9}(?:\.\d{1,9})?)m(?!s))?"
    rb"(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,9}(?:\.\d{1,9})?)ms)?"
)
_RFC3339 = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d{1,9})?(?:[Zz]|([+-])(\d\d):(\d\d))")
_IMF_DATE = re.compile(rb"[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")
_RFC850_DATE = re.compile(rb"[A-Z][a-z]{5,8}, (\d\d)-([A-Z][a-z]{2})-(\d\d) (\d\d):(\d\d):(\d\d) GMT")
_ASCTIME_DATE = re.compile(rb"[A-Z][a-z]{2} ([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d) (\d{4})")
_MONTHS = {b"JanFebMarAprMayJunJulAugSepOctNovDec"[3 * n : 3 * n + 3]: n + 1 for n in range(12)}


def parse_reset(value: bytes | str, wall_now: float) -> float | None:
    """Seconds from `wall_now` (epoch seconds) to the moment a reset header names; None for anything not sane.

    In this order: RFC 3339 instant, Go duration (`6m0s`), epoch milliseconds, epoch seconds, plain seconds.
    """
    told = value.encode("ascii", "replace") if isinstance(value, str) else value
    if len(told) > _VALUE_BYTES:
        return None
    told = told.strip()
    if told[4:5] == b"-":
        return until_s(rfc3339(told), wall_now)
    if told[-1:] in (b"h", b"m", b"s"):
        return sane_s(_go_duration(told))
    number = plain_number(told)
    if number is None:
        return None
    if number > 1e12:
        return until_s(number / 1000, wall_now)
    return until_s(number, wall_now) if number > 1.6e9 else sane_s(number)


def parse_retry_after(value: bytes, wall_now: float) -> float | None:
    """The seconds that a `retry-after` asks for: a number or an HTTP date (RFC 9110, 10.2.3); one in the past means now."""
    value = value[: _VALUE_BYTES + 1].strip()
    seconds = plain_number(value)
    if seconds is not None:
        return sane_s(seconds)
    instant = _http_date(value, wall_now)
    return None if instant is None else sane_s(max(0.0, instant - wall_now))


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
        this_year = 1970 + int(wall_now // 31_556_952)
        century = this_year - this_year % 100
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
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    return float(timegm((year, month, day, hour, minute, second)))


def _go_duration(text: bytes) -> float | None:
    found = _GO.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds, millis = found.groups()
    return float(hours or 0) * 3600 + float(minutes or 0) * 60 + float(seconds or 0) + float(millis or 0) / 1000
