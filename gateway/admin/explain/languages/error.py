"""Tells what the gateway makes of a provider's error, without sending anything: class, rule, and why it matched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gateway.core.error_tables.body import read_body
from gateway.core.error_tables.classify import Diagnosis, ErrorTable
from gateway.core.error_tables.rules import ErrorAnswer, ErrorRule, answer_of
from gateway.core.errors import InvalidRequest
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.provider_errors import Phase

_SHOWN_CHARS = 200
_SCOPES = {
    "target": "this target",
    "key": "every target of this credential",
    "account": "every credential of the provider",
}


def explain_error(
    table: ErrorTable, status: int, body: bytes, headers: RawHeaders, wall_now: float, *, phase: Phase = Phase.ANSWERED
) -> str:
    """Show what an error answer means: its class, whom it concerns, when to come back, and the rule that says so."""
    diagnosis = table.diagnose(phase, status, headers, body, wall_now)
    answer = answer_of(phase, status, headers, read_body(body).wording)
    return "\n".join(_lines(table, diagnosis, answer))


def read_headers(told: Sequence[str]) -> RawHeaders:
    """Reads headers as they are written on a command line. Raises InvalidRequest for one without a colon."""
    pairs = [text.partition(":") for text in told]
    for name, colon, _ in pairs:
        if not colon or not name.strip():
            raise InvalidRequest(f"{name!r} is not a header: write for example --header 'retry-after: 20'")
    return [(name.strip().lower().encode("latin-1", "replace"), value.strip().encode()) for name, _, value in pairs]


def _lines(table: ErrorTable, diagnosis: Diagnosis, answer: ErrorAnswer) -> Iterator[str]:
    rule = table.rule_named(diagnosis.rule)
    yield f"class       {diagnosis.error_class}"
    yield f"concerns    {_SCOPES[diagnosis.scope]}"
    yield f"come back   {_delay(diagnosis.delay_s)}"
    yield f"never fits  {'yes: it asks for more than the limit ever holds' if diagnosis.never_fits else 'no'}"
    yield f"kind        {table.kind or 'other'}"
    if rule is None:
        yield "rule        none: not even the status tells anything"
    else:
        yield f"rule        {rule.name}  ({rule.where})"
        yield f"because     {'; '.join(_matched(rule, answer))}"
    yield f"read as     {_cut(answer.wording.text) or 'nothing'}"


def _delay(delay_s: float | None) -> str:
    return "the provider does not say" if delay_s is None else f"in {delay_s:.6g} s at the earliest"


def _matched(rule: ErrorRule, answer: ErrorAnswer) -> Iterator[str]:
    """Yields the conditions of the rule, as this answer meets them."""
    wording = answer.wording
    if rule.phases:
        yield f"phase is {answer.phase}"
    if rule.statuses:
        yield f"status is {answer.status}"
    exact = (
        ("code", rule.codes.intersection(wording.codes)),
        ("type", rule.types.intersection(wording.types)),
        ("body_status", rule.states.intersection(wording.states)),
        ("finish_reason", rule.finishes.intersection(wording.finishes)),
    )
    for field, words in exact:
        if words:
            yield f"{field} is {_any(words)}"
    if rule.says:
        yield f"says {_any(str(phrase) for phrase in rule.says if phrase.is_in(wording.text, wording.numberless))}"
    for name, phrases in rule.headers:
        yield f"header {name.decode()} says {_any(map(str, phrases))}"


def _any(words: Iterable[str]) -> str:
    return " or ".join(sorted(map(repr, words)))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
