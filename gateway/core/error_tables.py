"""What a provider's error means: its body is read, and the first rule that matches gives the class.

In this order: the words of a body, one rule, the table of rules. A body is read at known places only, whatever its words mean;
no provider is known here, all of that is in the tables. Total, and bounded: of a body no more than BODY_BYTES are looked at, of
a field no more than FIELD_CHARS, and nothing is followed deeper than those places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from gateway.core.limits.headers import never_fits, parse_reset, provider_now, retry_delay_s
from gateway.core.openai.json_edit import is_crowded
from gateway.core.types import ErrorClass, Phase, RawHeaders

__all__ = ["Diagnosis", "ErrorTable", "Scope", "error_object", "in_band_status", "is_openai_shaped"]


BODY_BYTES = 8_192
TEXT_CHARS = 2_048
"""The characters of all words together, after the codes."""
FIELD_CHARS = 1_024
_ITEMS = 4
"""The items that are read of a list."""
_TRIES = 4
"""The places in a broken body at which JSON may begin."""

_QUOTE = re.compile(r"[`\"]|(?<!\w)'")
_QUOTE_IN_JSON = re.compile(r"`|\\\"|(?<!\w)'")
_NUMBER = re.compile(r"[0-9]+(?:[,._][0-9]+)*")
_STATUS = re.compile(r"[45][0-9][0-9]")
_STREAM_STARTS = (b"data:", b"event:", b"id:", b":")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wording:
    """An answer's words, all in lower case; `text` has all of them, `numberless` the same with # for every number."""

    codes: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    """The values of the body's `status` fields."""
    finishes: tuple[str, ...] = ()
    """The reasons for which an answer that is no error has ended."""
    text: str = ""
    numberless: str = ""
    unquoted: str = ""
    """The `text` without quotations: providers quote a request, so quoted words may be the caller's."""
    unquoted_numberless: str = ""


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """One body, read; `error` is None where it holds no error object."""

    error: Json | None
    wording: Wording


def read_body(body: bytes) -> ErrorBody:
    """Returns the wording of a body."""
    seen = _window(body)
    value = _json_in(seen)
    if value is None:
        return ErrorBody(None, _wording([], [], [], [], [seen[:TEXT_CHARS].decode(errors="replace")]))
    error = _error_in(value)
    finishes = _finishes(value)
    if error is None:
        return ErrorBody(None, _wording([], [], [], finishes, []))
    return ErrorBody(error, _words_of(error, finishes))


def read_error(error: Json) -> ErrorBody:
    """Returns the wording of an error object that came inside an answer."""
    return ErrorBody(error, _words_of(error, _finishes(error)))


def error_object(body: bytes) -> Json | None:
    """Returns the error object of a body: `{"error": {…}}`, an array of one such, or flat; None when there is none."""
    value = _parsed(body)
    return None if value is None else _error_in(value)


def is_openai_shaped(body: bytes) -> bool:
    """Returns whether a client that expects OpenAI's error shape can read this body, as far as a short look tells."""
    if is_crowded(body):
        return False
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def status_in(error: Json) -> int | None:
    """Returns the HTTP status that an error object names itself."""
    for place in ("code", "status", "statusCode", "status_code"):
        found = _plain(error.get(place))
        if found is not None and _STATUS.fullmatch(found):
            return int(found)
    return None


def resets_at(error: Json) -> str | None:
    """Returns the time at which the limit of an error is reset, as written (OpenRouter)."""
    metadata = _inner(error, "metadata")
    headers = _inner(metadata, "headers")
    return _plain(metadata.get("resets_at")) or _plain(headers.get("X-RateLimit-Reset"))


def normalised(text: str) -> str:
    """Returns the text in lower case, with single spaces."""
    return " ".join(text.lower().split())


def numberless(text: str) -> str:
    """Returns the text with # for every number, be it `30`, `1,000` or `2.5`."""
    return _NUMBER.sub("#", text)


def _window(body: bytes) -> bytes:
    """Returns the part of a body that is read: the end of a stream, the beginning of anything else."""
    if len(body) <= BODY_BYTES:
        return body
    return body[-BODY_BYTES:] if body.startswith(_STREAM_STARTS) else body[:BODY_BYTES]


def _json_in(seen: bytes) -> Json | None:
    """Returns the body's JSON object; else an object in it that is an error, or the last one."""
    value = _parsed(seen)
    if value is not None:
        return value
    found = [value for piece in _pieces(seen) if (value := _parsed(piece)) is not None]
    return next((value for value in found if _error_in(value) is not None), found[0] if found else None)


def _pieces(seen: bytes) -> Iterator[bytes]:
    """Yields the parts of a non-JSON body that may hold an error: lines behind `data:`, or raw JSON at the end of a stream."""
    tail = max(seen.rfind(b"\n{"), seen.rfind(b"\n["))
    if tail >= 0:
        yield seen[tail:]
        yield seen[tail:].rstrip().removesuffix(b"]")  # the last item of an array that began long before
    for mark in (b"\ndata:", b"\nerror:"):
        yield from _last_lines(b"\n" + seen, mark)


def _last_lines(seen: bytes, mark: bytes) -> Iterator[bytes]:
    """Yields the contents of the last few lines that begin with `mark`, the last one first."""
    end = len(seen)
    for _ in range(_TRIES):
        end = seen.rfind(mark, 0, end)
        if end < 0:
            return
        yield seen[end + len(mark) :].partition(b"\n")[0]


def _parsed(text: bytes) -> Json | None:
    if is_crowded(text):
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if isinstance(value, list) and value:
        value = value[-1]
    return value if isinstance(value, dict) else None


def _error_in(value: Json) -> Json | None:
    """Returns the error that an object is or holds."""
    error = value.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error, **value}
    # Objects that may hold one: a Responses event's, OpenRouter's choice, Groq's own part.
    places = (_inner(value, "response"), _first(value, "choices"), _inner(value, "x_groq"))
    inner = next((place["error"] for place in places if place.get("error")), None)
    if isinstance(inner, dict):
        return inner
    if isinstance(inner, str):
        return {"message": inner}
    if "message" in value or "Message" in value:
        return value
    return {"message": value["detail"], **value} if "detail" in value else None


def _words_of(error: Json, finishes: list[Any]) -> Wording:
    details, metadata = error.get("details"), _inner(error, "metadata")
    parts = [item for item in _items(details) if isinstance(item, dict)]
    kept = details if isinstance(details, dict) else {}
    reasons = [part.get("reason") for part in parts]
    violations = [limit for part in parts for limit in _items(part.get("violations"))]
    quotas = [limit.get("quotaId") for limit in violations if isinstance(limit, dict)]
    faults = [fault for fault in _items(error.get("detail")) if isinstance(fault, dict)]
    codes = [error.get("code"), kept.get("error_code"), _inner(error, "innererror").get("code")]
    amazons = (_plain(error.get("__type")) or "").rpartition("#")[2]  # com.amazon.coral.service#ThrottlingException
    types = [error.get("type"), error.get("error_type"), metadata.get("error_type"), amazons]
    texts = [error.get("message"), error.get("Message"), *quotas, *(fault.get("msg") for fault in faults)]
    about = [metadata.get(name) for name in ("limit_source", "provider_code", "raw")]
    flagged = ["flagged_input"] if "flagged_input" in metadata else _items(metadata.get("reasons"))
    named = [*codes, error.get("statusCode"), *reasons]
    return _wording(named, types, [error.get("status")], finishes, [*texts, *flagged, *about])


def _wording(codes: list[Any], types: list[Any], states: list[Any], finishes: list[Any], texts: list[Any]) -> Wording:
    known = [_all_plain(one) for one in (codes, types, states, finishes, texts)]
    words = normalised("\n".join(text for one in (*known[:3], known[4]) for text in one)[:TEXT_CHARS])
    exact = [tuple(text.strip().lower() for text in one) for one in known[:4]]
    own = _unquoted(words)
    return Wording(exact[0], exact[1], exact[2], exact[3], words, numberless(words), own, numberless(own))


def _unquoted(words: str) -> str:
    """Returns the text without everything from its first quotation mark to its last, or to the end.

    A caller may have written what stands between. In JSON that could not be read, the marks of the JSON itself do not count.
    """
    quote = _QUOTE_IN_JSON if words.startswith(("{", "[")) else _QUOTE
    first = quote.search(words)
    if first is None:
        return words
    last = max(words.rfind(mark) for mark in (("`", '\\"', "'") if quote is _QUOTE_IN_JSON else ("`", '"', "'")))
    return f"{words[: first.start()]} {words[last + 1 :] if last > first.start() else ''}"


def _finishes(value: Json) -> list[Any]:
    """Returns every word for how an answer ended, by the dialects' names."""
    choice, candidate = _first(value, "choices"), _first(value, "candidates")
    incomplete = _inner(value, "incomplete_details") or _inner(_inner(value, "response"), "incomplete_details")
    reasons = [place.get(name) for place in (value, choice) for name in ("finish_reason", "stop_reason", "stopReason")]
    refusal = "refusal" if _inner(choice, "message").get("refusal") else None
    blocked = _inner(value, "promptFeedback").get("blockReason")
    stopped = _inner(value, "delta").get("stop_reason")
    return [*reasons, refusal, blocked, stopped, candidate.get("finishReason"), incomplete.get("reason")]


def _all_plain(values: list[Any]) -> list[str]:
    return [text for value in values if (text := _plain(value))]


def _plain(value: object) -> str | None:
    """Returns text, cut, or a number of a sane length; None for anything else, which may be nested too deeply to be printed."""
    if isinstance(value, str):
        return value[:FIELD_CHARS]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15:
        return str(value)
    return None


def _inner(value: Json, name: str) -> Json:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _first(value: Json, name: str) -> Json:
    items = _items(value.get(name))
    return items[0] if items and isinstance(items[0], dict) else {}


def _items(value: object) -> list[Any]:
    return value[:_ITEMS] if isinstance(value, list) else []


# --- one rule: conditions on an answer, and the diagnosis when they all hold ---


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
    """A text to be found, whatever its case and spacing: `*` stands for any stretch, `#` for a number.

    It is no regex, so no written rule can be slow: it is searched once, from left to right, in a text of bounded length.
    """

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

    def holds(self, answer: ErrorFacts) -> bool:
        """Returns whether all conditions hold, the cheapest checked first."""
        return (
            (not self.phases or answer.phase in self.phases)
            and (not self.statuses or self._takes_status(answer))
            and self._has_words(answer.wording)
            and all(answer.has_header(name, phrases) for name, phrases in self.headers)
        )

    def _takes_status(self, answer: ErrorFacts) -> bool:
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
class ErrorFacts:
    """The parts of an error answer that rules look at."""

    phase: Phase
    status: int | None
    headers: RawHeaders
    wording: Wording
    is_in_band: bool = False

    def has_header(self, name: bytes, phrases: Iterable[Phrase]) -> bool:
        values = [value[:_HEADER_BYTES].decode("latin-1") for present, value in self.headers if present == name]
        texts = [normalised(value) for value in values]
        return any(phrase.is_in(text, numberless(text)) for text in texts for phrase in phrases)


def answer_of(
    phase: Phase, status: int | None, headers: RawHeaders, wording: Wording, *, is_in_band: bool = False
) -> ErrorFacts:
    """Returns the parts of an answer that rules look at; AWS names the type in a header."""
    named = [value for name, value in headers if name == b"x-amzn-errortype"]
    types = (value[:_HEADER_BYTES].decode("latin-1").partition(":")[0].strip().lower() for value in named)
    return ErrorFacts(phase, status, headers, replace(wording, types=(*wording.types, *types)), is_in_band)


def _is_any_in(phrases: tuple[Phrase, ...], wording: Wording, *, is_own: bool = False) -> bool:
    """Returns whether any phrase occurs; `is_own`: in the provider's own words, not in what it quotes."""
    text, numberless_text = wording.text, wording.numberless
    if is_own:
        text, numberless_text = wording.unquoted, wording.unquoted_numberless
    return any(phrase.is_in(text, numberless_text) for phrase in phrases)


# --- a table of ordered rules: phase, status, headers and body -> a diagnosis ---


_HINT_BYTES = 2_048
_DAY_S = 86_400.0
_STATUS_OF = {
    ErrorClass.BAD_REQUEST: 400,
    ErrorClass.CONTEXT_LENGTH_EXCEEDED: 400,
    ErrorClass.CONTENT_POLICY: 400,
    ErrorClass.AUTH: 401,
    ErrorClass.PERMISSION: 403,
    ErrorClass.MODEL_NOT_FOUND: 404,
    ErrorClass.NOT_FOUND: 404,
    ErrorClass.CONFLICT: 409,
    ErrorClass.PAYLOAD_TOO_LARGE: 413,
    ErrorClass.RATE_LIMIT_REQUESTS: 429,
    ErrorClass.RATE_LIMIT_TOKENS: 429,
    ErrorClass.QUOTA_EXHAUSTED: 429,
    ErrorClass.OVERLOADED: 503,
    ErrorClass.TIMEOUT: 504,
}
_RATE_LIMITS = frozenset((ErrorClass.RATE_LIMIT_REQUESTS, ErrorClass.RATE_LIMIT_TOKENS))
_LIMITS = _RATE_LIMITS | {ErrorClass.QUOTA_EXHAUSTED}
_PASSES = _LIMITS | {ErrorClass.OVERLOADED, ErrorClass.SERVER_ERROR, ErrorClass.TIMEOUT, ErrorClass.CONNECTION}
"""The classes that may pass with time. A delay named with any other error is a word of the request."""
_NO_RULE = ErrorRule("", ErrorClass.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The class of a failure, its scope, and the time at which it may be over."""

    error_class: ErrorClass
    scope: Scope = "target"
    delay_s: float | None = None
    """The least delay in seconds: the server's most exact hint, or the one that the rule knows."""
    never_fits: bool = False
    """The call asks for more than a limit of the target ever holds."""
    rule: str = ""
    """The rule that matched: its table and its name."""


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """The rules of one kind of provider in order, the rules for all providers last.

    The first rule that holds decides. Invariant: total. Every answer has a diagnosis, and it is `unknown` only where even
    the status tells nothing.
    """

    rules: tuple[ErrorRule, ...] = ()
    kind: str = ""
    """The name of the provider's own table; empty: the rules for all providers alone."""

    def diagnose(
        self, phase: Phase, status: int | None, headers: RawHeaders, body: bytes, wall_now: float
    ) -> Diagnosis:
        """Returns the diagnosis of an answer; `body` may be anything, header names are lower case, `wall_now` is epoch seconds.

        An error inside a 2xx is read as such; a 2xx without one is taken for broken, as its caller has found it to be.
        """
        read = read_body(body)
        if read.error is not None and status is not None and status < 300:
            return self._diagnose_in_band(phase, read, headers, wall_now)
        return self._diagnosed(answer_of(phase, status, headers, read.wording), read.error, body, wall_now)

    def diagnose_error(
        self, phase: Phase, status: int | None, error: Json, headers: RawHeaders, wall_now: float
    ) -> Diagnosis:
        """Returns the diagnosis of an error object inside an answer; a `status` below 400 says nothing of it."""
        read = read_error(error)
        if status is None or status < 400:
            return self._diagnose_in_band(phase, read, headers, wall_now)
        return self._diagnosed(answer_of(phase, status, headers, read.wording), error, _as_bytes(error), wall_now)

    def rule_for(self, answer: ErrorFacts) -> ErrorRule | None:
        """Returns the first rule that holds."""
        return next((rule for rule in self.rules if rule.holds(answer)), None)

    def rule_named(self, name: str) -> ErrorRule | None:
        """Returns the rule that a diagnosis names."""
        return next((rule for rule in self.rules if rule.name == name), None)

    def _diagnose_in_band(self, phase: Phase, read: ErrorBody, headers: RawHeaders, wall_now: float) -> Diagnosis:
        """Returns the diagnosis by the status and the words of the error; with neither it is a failure of the server."""
        error = read.error or {}
        answer = answer_of(phase, status_in(error), headers, read.wording, is_in_band=True)
        if self.rule_for(answer) is None:
            answer = answer_of(phase, 500, headers, read.wording)
        return self._diagnosed(answer, error, _as_bytes(error), wall_now)

    def _diagnosed(self, answer: ErrorFacts, error: Json | None, body: bytes, wall_now: float) -> Diagnosis:
        """Returns the verdict of the first rule that holds, with the server's hints about coming back."""
        rule = self.rule_for(answer) or _NO_RULE
        # Hints are in the beginning of a body, and at its end, where Google puts its delay.
        at = body.find(b'"retryDelay"', _HINT_BYTES, BODY_BYTES)
        hinted = body[:_HINT_BYTES] + (body[at : at + 64] if at >= 0 else b"")
        wall_now = provider_now(answer.headers, wall_now)
        status = 429 if rule.error_class in _LIMITS else answer.status or 0
        named_s = None
        if rule.error_class in _PASSES:
            named_s = retry_delay_s(status, answer.headers, hinted, wall_now)
        if named_s is None and error is not None and (instant := resets_at(error)) is not None:
            named_s = parse_reset(instant, wall_now)
        return Diagnosis(
            rule.error_class,
            rule.scope,
            _at_least(rule, named_s, wall_now),
            rule.never_fits or (rule.error_class in _RATE_LIMITS and never_fits(hinted)),
            rule.name,
        )


def in_band_status(error: Json, diagnosis: Diagnosis) -> int:
    """Returns the HTTP status for an error inside a 200: its own, else that of its class; always 400 to 599."""
    own = status_in(error)
    return own if own is not None and own != 500 else _STATUS_OF.get(diagnosis.error_class, 502)


def _at_least(rule: ErrorRule, named_s: float | None, wall_now: float) -> float | None:
    """Returns the longest delay: the server's, which is never undercut, the rule's, or until the daily reset without one."""
    if named_s is None and rule.resets_daily_at_s is not None:
        named_s = (rule.resets_daily_at_s - wall_now) % _DAY_S
    if rule.delay_s is None or named_s is None:
        return named_s if named_s is not None else rule.delay_s
    return max(named_s, rule.delay_s)


def _as_bytes(error: Json) -> bytes:
    """Returns the error as JSON, for the hints in it; nothing where it is nested too deeply to be written."""
    try:
        return orjson.dumps(error)
    except (orjson.JSONEncodeError, RecursionError):
        return b""
