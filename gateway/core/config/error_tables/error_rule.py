"""The shape of one rule in `errors/*.yaml`, and how its fields are read; it must not know how rules work together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

from gateway.core.config.fields.fields.fields import Flag, PositiveDuration, Section, said
from gateway.core.config.schema import Entry
from gateway.core.config.source.problems import quoted
from gateway.core.error_tables.rules import Phrase, Scope
from gateway.core.types.provider_errors import ErrorClass

_PHRASE_CHARS = 200
_CLASSES = ", ".join(quoted(str(one)).replace('"', "'") for one in ErrorClass)

_STATUS = re.compile(r"[1-5][0-9][0-9]")
_STATUSES = re.compile(r"([1-5])xx", re.IGNORECASE)
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


def _texts(value: object) -> object:
    """Accepts numbers as texts, because providers write their codes either way."""
    return [str(item) if _is_number(item) else item for item in _as_list(value)]


def _as_list(value: object) -> list[object]:
    """Accepts a single item in place of a list."""
    return value if isinstance(value, list) else [value]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _phrases(value: object) -> tuple[Phrase, ...]:
    return tuple(map(_phrase, _as_list(value)))


def _phrase(text: object) -> Phrase:
    text = str(text) if _is_number(text) else text
    if not isinstance(text, str):
        raise said("expected phrases, each a text; is one to be quoted?")
    if len(text) > _PHRASE_CHARS:
        raise said(f"a phrase has at most {_PHRASE_CHARS} characters")
    if "#" in text and re.search(r"[0-9]", text):
        raise said(
            f"{quoted(text)} has digits beside a #, which stands for any number: write # for them too, or for none"
        )
    return Phrase.of(text)


def _phrases_with_words(value: object) -> tuple[Phrase, ...]:
    phrases = _phrases(value)
    if not all(phrase.parts for phrase in phrases):
        raise said("a phrase without words would be found in every error")
    return phrases


def _statuses(value: object) -> frozenset[int]:
    return frozenset(number for item in _as_list(value) for number in _status_range(item))


def _status_range(item: object) -> Iterable[int]:
    text = str(item) if isinstance(item, (str, int)) else ""
    hundred = _STATUSES.fullmatch(text)
    if hundred is not None:
        return range(100 * int(hundred[1]), 100 * int(hundred[1]) + 100)
    if _STATUS.fullmatch(text) is None:
        raise said(f"{quoted(item)} is no HTTP status: write for example 429 or 5xx")
    return (int(text),)


def _time_of_day(value: object) -> float:
    """Returns seconds after midnight; YAML reads some unquoted times as numbers."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise said(f'{quoted(value)} is no time of day: write for example "08:00", in quotes; it is in UTC')
    return int(match[1]) * 3600.0 + int(match[2]) * 60.0


def _error_class(value: object) -> ErrorClass:
    try:
        return ErrorClass(str(value))
    except ValueError:
        raise PydanticKnownError("literal_error", {"expected": _CLASSES}) from None


def _headers(value: object) -> tuple[tuple[bytes, tuple[Phrase, ...]], ...]:
    if not isinstance(value, dict):
        raise said("expected a mapping of header names to phrases, such as {policy-id: token}")
    return tuple((name.lower().encode(errors="replace"), _phrases(phrases)) for name, phrases in value.items())


Texts = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_texts), Field(min_length=1)]
Phrases = Annotated[tuple[Phrase, ...], BeforeValidator(_phrases_with_words), Field(min_length=1)]


class RuleEntry(Entry):
    """One rule; `class` is a keyword of Python, so unknown fields are found by hand."""

    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)
    stand_ins: ClassVar[Section] = {"class": "unknown"}

    phase: Annotated[
        list[Literal["nothing_sent", "sent", "answered", "streaming"]], BeforeValidator(_as_list), Field(min_length=1)
    ] = Field(default_factory=list)
    status: Annotated[frozenset[int], BeforeValidator(_statuses), Field(min_length=1)] = frozenset()
    code: Texts = Field(default_factory=list)
    type: Texts = Field(default_factory=list)
    body_status: Texts = Field(default_factory=list)
    finish_reason: Texts = Field(default_factory=list)
    says: Phrases = ()
    unless_says: Phrases = ()
    headers: Annotated[
        tuple[tuple[bytes, tuple[Phrase, ...]], ...], BeforeValidator(_headers), Field(min_length=1)
    ] = ()
    error_class: Annotated[ErrorClass, BeforeValidator(_error_class), Field(alias="class")]
    scope: Scope = "target"
    never_fits: Flag = False
    delay: PositiveDuration | None = None
    resets_daily_at: Annotated[float, BeforeValidator(_time_of_day)] | None = None


FIELDS: Final = tuple(field.alias or name for name, field in RuleEntry.model_fields.items())
CONDITIONS: Final = FIELDS[: FIELDS.index("class")]
