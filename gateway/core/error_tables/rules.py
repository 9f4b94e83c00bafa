"""One rule of an error table: conditions on an answer, and the diagnosis when they all hold.

Phrases are no regexes, so no written rule can be slow: each is searched once, from left to right, in a text of
bounded length. It must not know any provider.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from gateway.core.error_tables.body import Wording, normalised, numberless
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.provider_errors import ErrorClass, Phase

Scope = Literal["target", "key", "account"]
"""The extent of a failure: one target, every target of this credential, or every credential of the provider."""

_HEADER_BYTES = 512
_IN_BAND = 200
_OF_THE_REQUEST = frozenset(
    (
        ErrorClass.BAD_REQUEST,
        ErrorClass.CONTEXT_LENGTH_EXCEEDED,
        ErrorClass.CONTENT_POLICY,
        ErrorClass.PERMISSION,
        ErrorClass.NOT_FOUND,
        ErrorClass.PAYLOAD_TOO_LARGE,
        ErrorClass.CONFLICT,
    )
)
"""The classes that concern one request alone. All others have consequences for other calls."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A text to be found, whatever its case and spacing: `*` stands for any stretch, `#` for a number."""

    parts: tuple[str, ...]
    is_numberless: bool

    @classmethod
    def of(cls, text: str) -> Phrase:
        """Returns the phrase that was written as `text`."""
        is_numberless = "#" in text
        plain = normalised(text)
        parts = (numberless(plain) if is_numberless else plain).split("*")
        return cls(tuple(part for part in parts if part.strip()), is_numberless)

    def __str__(self) -> str:
        return "*".join(self.parts)

    def is_in(self, text: str, numberless_text: str) -> bool:
        """Returns whether the phrase occurs in the text."""
        searched = numberless_text if self.is_numberless else text
        at = 0
        for part in self.parts:
            at = searched.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return True


@dataclass(frozen=True, slots=True)
class ErrorRule:
    """Conditions, which must all hold (an empty one always does), and the diagnosis that follows."""

    name: str
    """The names of the rule's table and of the rule."""
    error_class: ErrorClass
    scope: Scope = "target"
    phases: frozenset[Phase] = frozenset()
    statuses: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    finishes: frozenset[str] = frozenset()
    says: tuple[Phrase, ...] = ()
    unless_says: tuple[Phrase, ...] = ()
    headers: tuple[tuple[bytes, tuple[Phrase, ...]], ...] = ()
    never_fits: bool = False
    delay_s: float | None = None
    """The least delay, in seconds."""
    resets_daily_at_s: float | None = None
    """The daily reset in seconds after midnight UTC, for errors without a delay from the server."""
    where: str = ""
    """The file and line of the rule."""

    def holds(self, answer: ErrorAnswer) -> bool:
        """Returns whether all conditions hold, the cheapest checked first."""
        return (
            (not self.phases or answer.phase in self.phases)
            and (not self.statuses or self._takes_status(answer))
            and self._has_words(answer.wording)
            and all(answer.has_header(name, phrases) for name, phrases in self.headers)
        )

    def _takes_status(self, answer: ErrorAnswer) -> bool:
        """Returns whether the status fits. Inside a 200, an error has only the status that it names, or else its words."""
        if answer.status in self.statuses:
            return True
        if not answer.is_in_band or not (self.codes or self.types or self.states or self.finishes or self.says):
            return False
        return answer.status is None or _IN_BAND in self.statuses

    def _has_words(self, wording: Wording) -> bool:
        return (
            (not self.codes or not self.codes.isdisjoint(wording.codes))
            and (not self.types or not self.types.isdisjoint(wording.types))
            and (not self.states or not self.states.isdisjoint(wording.states))
            and (not self.finishes or not self.finishes.isdisjoint(wording.finishes))
            and (not self.says or _is_any_in(self.says, wording, is_own=self.error_class not in _OF_THE_REQUEST))
            and not (self.unless_says and _is_any_in(self.unless_says, wording))
        )


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """The parts of an error answer that rules look at."""

    phase: Phase
    status: int | None
    headers: RawHeaders
    wording: Wording
    is_in_band: bool = False

    def has_header(self, name: bytes, phrases: Iterable[Phrase]) -> bool:
        values = [value[:_HEADER_BYTES].decode("latin-1") for told, value in self.headers if told == name]
        texts = [normalised(value) for value in values]
        return any(phrase.is_in(text, numberless(text)) for text in texts for phrase in phrases)


def answer_of(
    phase: Phase, status: int | None, headers: RawHeaders, wording: Wording, *, is_in_band: bool = False
) -> ErrorAnswer:
    """Returns the parts of an answer that rules look at; AWS names the type in a header."""
    named = [value for name, value in headers if name == b"x-amzn-errortype"]
    types = (value[:_HEADER_BYTES].decode("latin-1").partition(":")[0].strip().lower() for value in named)
    return ErrorAnswer(phase, status, headers, replace(wording, types=(*wording.types, *types)), is_in_band)


def _is_any_in(phrases: tuple[Phrase, ...], wording: Wording, *, is_own: bool = False) -> bool:
    """Returns whether any phrase occurs; `is_own`: in the provider's own words, not in what it quotes."""
    text, numberless_text = wording.text, wording.numberless
    if is_own:
        text, numberless_text = wording.unquoted, wording.unquoted_numberless
    return any(phrase.is_in(text, numberless_text) for phrase in phrases)
