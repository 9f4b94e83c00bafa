"""Reads numbers: each gets one spelling, apart from its unit.

Invariant: 3.1 is not 3.10, -5 is not 5, 10:30 is not 10.30, and a lump with digits that is no number is a name.
"""

from __future__ import annotations

from gateway.features.semantic.guards.words import UNIT_NAMES, Meaning, Token

_CURRENCIES = "$€£¥"
_BEHIND = "abcdefghijklmnopqrstuvwxyzµ°%/ºª"
_ORDINALS = frozenset(("st", "nd", "rd", "th", "er", "e", "ème", "º", "ª"))
_HALVES_OF_DAYS = frozenset(("am", "pm"))
_WITHIN = frozenset(".,:/-")


def figure(lump: str, core: str, low: str, comma_groups: bool) -> Meaning:
    """Returns what a lump with digits means: a number and its unit, or a name to the letter."""
    if core[-1].isdigit() and lump.rstrip(".,;:?)")[-1] in "!\"'":  # a factorial, an inch, a foot
        return (("names", lump),)
    bare = low.strip(_CURRENCIES)
    digits = bare.rstrip(_BEHIND)
    unit = bare[len(digits) :]
    number = _number(digits, comma_groups)
    if number is None or not (unit in UNIT_NAMES or unit in _ORDINALS or unit in _HALVES_OF_DAYS or unit in ("", "k")):
        return (("names", core),)
    tokens: list[Token] = [("units", char) for char in low if char in _CURRENCIES]
    if unit in UNIT_NAMES:
        tokens.append(("units", UNIT_NAMES[unit]))
    elif unit in _HALVES_OF_DAYS:
        tokens.append(("dates", unit))
    else:
        number += unit
    return (("numbers", number), *tokens)


def _number(text: str, comma_groups: bool) -> str | None:
    """Returns the number with ASCII digits, without grouping commas, or None; dates, times and versions keep their spelling."""
    sign = "-" if text[:1] in ("-", "−") else ""  # noqa: RUF001 - the minus sign
    digits = text[len(sign) :]
    if comma_groups and "," in digits and _is_grouped(digits):
        digits = digits.replace(",", "")
    if digits.isdecimal():
        return sign + (str(int(digits)) if len(digits) < 20 and digits[0] != "0" else digits)
    if digits and all(char.isdecimal() or char in _WITHIN for char in digits):
        return sign + digits
    return None


def _is_grouped(digits: str) -> bool:
    head, *groups = digits.split(",")
    return 0 < len(head) < 4 and all(len(group) == 3 for group in groups)
