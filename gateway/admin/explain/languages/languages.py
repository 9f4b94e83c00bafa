"""Tells what a call becomes at targets that do not speak its language, what of it is lost, and what is known of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.sse.sse import json_object
from gateway.core.snapshot.snapshot.snapshot import Model, PolicySnapshot, Target
from gateway.core.types.words import Endpoint, FindGaps, How
from gateway.dialects.spoken import Conversion

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
        yield f"put into {_CALLED.get(find_gaps.pair.spoken, find_gaps.pair.spoken)}{lossless}"
    yield from (f"{gap.field} is {gap.how}: {gap.why}" for gap in gaps)
    if names := _in_the_way(find_gaps, model, parsed):
        yield f"skipped by this call, for {', '.join(names)}"
    if isinstance(find_gaps, Conversion):
        yield from _known(find_gaps, target.model or asked_of(parsed, target))


def explain_sent(policy: PolicySnapshot, endpoint: Endpoint, model: Model, body: bytes) -> Iterator[str]:
    """Yields, target by target, what a call becomes in another language."""
    asked = json_object(body) or {}
    for target in (*model.plan, *model.context_plan):
        conversion = target.gaps.get(endpoint.name)
        edited = _edited(target, asked)
        if conversion is not None and _in_the_way(conversion, model, edited):
            yield f"sent      {target.name}: nothing, for this call skips it"
            continue
        if not isinstance(conversion, Conversion):
            yield f"sent      {target.name}: as it came, but for what is said above"
            continue
        try:
            path, sent = conversion.shown({**edited, "model": asked_of(asked, target)})
        except InvalidRequest as error:
            yield f"sent      {target.name}: nothing, for the request cannot be put into its language: {error.message}"
            continue
        yield f"sent      {target.name}: POST {policy.providers[target.provider].base_url}{path}"
        yield orjson.dumps(sent, option=orjson.OPT_INDENT_2).decode()


def _edited(target: Target, body: dict[str, Any]) -> dict[str, Any]:
    return body if target.edits is None else target.edits.seen(body)


def asked_of(body: Mapping[str, Any], target: Target) -> str:
    """Returns the name by which the target's provider is asked for the model."""
    return target.model or str(body.get("model", "")).removeprefix(target.strip)


def _in_the_way(find_gaps: FindGaps, model: Model, body: dict[str, Any]) -> list[str]:
    """Returns the fields for which the call does not go to a target."""
    return [gap.field for gap in find_gaps(body) if gap.how is How.REFUSED or model.on_loss == "refuse"]


def _known(conversion: Conversion, model: str) -> Iterator[str]:
    """Yields the facts of a model that the conversion rests on, by where they are from."""
    facts = sorted(conversion.spoken.find_sources(model).items(), key=lambda one: one[1].source)
    for source, group in groupby(facts, key=lambda one: one[1].source):
        told = ", ".join(f"{name} {_written(one.value)}" for name, one in group)
        yield f"known of {model} ({source}): {told}"


def _written(value: Any) -> str:
    """Returns a fact as models.yaml has it."""
    return orjson.dumps(value).decode().replace('"', "").replace(",", ", ")
