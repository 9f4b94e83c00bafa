"""Tells what a call becomes at targets that do not speak its language, what of it is lost, and what is known of the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import orjson

from gateway.core.error_tables import Diagnosis, ErrorAnswer, ErrorRule, ErrorTable, answer_of, read_body
from gateway.core.errors import InvalidRequest
from gateway.core.openai.sse import json_object
from gateway.core.peek import Peeked
from gateway.core.snapshot.snapshot import Key, Model, PolicySnapshot, Target
from gateway.core.types import Endpoint, FindUnsupportedFields, How, Phase, RawHeaders
from gateway.dialects.target_languages import Conversion
from gateway.products.jobs.model import RESPONSE, is_ours
from gateway.products.responses.rules.keeping import RESPONSES, keeping_of
from gateway.products.responses.rules.response_object import Keeping, ResponseOptions, keeps, read_response_options

# Tells what the gateway makes of a provider's error, without sending anything: class, rule, and why it matched.


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


def read_headers(lines: Sequence[str]) -> RawHeaders:
    """Reads headers as they are written on a command line. Raises InvalidRequest for one without a colon."""
    pairs = [text.partition(":") for text in lines]
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


# Tells who keeps the response of a request, and for how long.


_NOT_HERE: Mapping[Keeping, str] = {
    "provider": "by the provider, as the request says",
    "asked": "by nobody: it does not ask for it (`store`), and no one account has them all",
    "gateway": "by nobody: it says so (`store`)",
    "off": "by nobody (responses.store)",
    "never": "by nobody (responses.store, or keeps_responses of the key)",
}


def explain_keeping(policy: PolicySnapshot, endpoint: Endpoint, key: Key, peeked: Peeked, model: Model) -> str | None:
    """Returns who keeps the response of a request; None: it makes none. Raises InvalidRequest."""
    if endpoint.name != RESPONSES:
        return None
    options, keeping = read_response_options(peeked.parsed or {}), keeping_of(policy, key, model, endpoint)
    if keeping is None:
        return "by the provider, as the request says: this gateway takes no jobs (jobs.store)"
    if options.in_background:
        return _in_background(policy, model, options, keeping)
    if keeping == "provider" and all(RESPONSES in target.gaps for target in model.plan):
        keeping = "asked"
    if not keeps(keeping, options, goes_on_from_ours=is_ours(RESPONSE, options.previous_id)):
        return _NOT_HERE[keeping]
    return f"here, for {model.jobs.keep_responses_s:g} s; the provider is asked to keep nothing"


def _in_background(policy: PolicySnapshot, model: Model, options: ResponseOptions, keeping: Keeping) -> str:
    if keeping == "never":
        return "by nobody: refused, as one in the background has to be kept (responses.store, or keeps_responses of the key)"
    if keeping == "provider" and not policy.jobs.settings.takes_files:
        return "by the provider, which runs it in the background (jobs is not set, and there is a passthrough)"
    keep_s = model.jobs.keep_responses_s if options.stores else model.jobs.keep_background_s
    return f"here, where it runs in the background, and for {keep_s:g} s after its end"


_CALLED: Final = {
    "chat": "chat completions",
    "responses": "Responses",
    "messages": "Anthropic's Messages",
    "generate": "Gemini's generateContent",
    "vertex": "Vertex AI's generateContent",
    "converse": "Bedrock's Converse",
    "claude": "Anthropic's Messages, as Bedrock has them",
    "claude_at_vertex": "Anthropic's Messages, as Vertex AI has them",
}


def explain_conversion(endpoint: Endpoint, model: Model, target: Target, body: bytes) -> Iterator[str]:
    """Yields what is lost where a call is put into another language for the target, and on what that rests."""
    find_gaps = target.gaps.get(endpoint.name)
    if find_gaps is None:
        return
    parsed = _edited(target, json_object(body) or {})
    gaps = find_gaps(parsed)
    if isinstance(find_gaps, Conversion):
        lossless = "" if gaps else "; nothing is lost"
        yield f"put into {_CALLED.get(find_gaps.pair.target, find_gaps.pair.target)}{lossless}"
    yield from (f"{gap.field} is {gap.how}: {gap.why}" for gap in gaps)
    if names := _in_the_way(find_gaps, model, parsed):
        yield f"skipped by this call, for {', '.join(names)}"
    if isinstance(find_gaps, Conversion):
        yield from _known(find_gaps, target.model or model_at_provider(parsed, target))


def explain_sent(policy: PolicySnapshot, endpoint: Endpoint, model: Model, body: bytes) -> Iterator[str]:
    """Yields, target by target, what a call becomes in another language."""
    fields = json_object(body) or {}
    for target in (*model.plan, *model.context_plan):
        conversion = target.gaps.get(endpoint.name)
        edited = _edited(target, fields)
        if conversion is not None and _in_the_way(conversion, model, edited):
            yield f"sent      {target.name}: nothing, for this call skips it"
            continue
        if not isinstance(conversion, Conversion):
            yield f"sent      {target.name}: as it came, but for what is said above"
            continue
        try:
            path, sent = conversion.shown({**edited, "model": model_at_provider(fields, target)})
        except InvalidRequest as error:
            yield f"sent      {target.name}: nothing, for the request cannot be put into its language: {error.message}"
            continue
        yield f"sent      {target.name}: POST {policy.providers[target.provider].base_url}{path}"
        yield orjson.dumps(sent, option=orjson.OPT_INDENT_2).decode()


def _edited(target: Target, body: dict[str, Any]) -> dict[str, Any]:
    return body if target.edits is None else target.edits.seen(body)


def model_at_provider(body: Mapping[str, Any], target: Target) -> str:
    """Returns the name by which the target's provider is asked for the model."""
    return target.model or str(body.get("model", "")).removeprefix(target.strip)


def _in_the_way(find_gaps: FindUnsupportedFields, model: Model, body: dict[str, Any]) -> list[str]:
    """Returns the fields for which the call does not go to a target."""
    return [gap.field for gap in find_gaps(body) if gap.how is How.REFUSED or model.on_loss == "refuse"]


def _known(conversion: Conversion, model: str) -> Iterator[str]:
    """Yields the facts of a model that the conversion rests on, by where they are from."""
    facts = sorted(conversion.languages.find_sources(model).items(), key=lambda one: one[1].source)
    for source, group in groupby(facts, key=lambda one: one[1].source):
        shown = ", ".join(f"{name} {_written(one.value)}" for name, one in group)
        yield f"known of {model} ({source}): {shown}"


def _written(value: Any) -> str:
    """Returns a fact as models.yaml has it."""
    return orjson.dumps(value).decode().replace('"', "").replace(",", ", ")
