"""Builds the request for a target: the client's own bytes, changed only where a rule needs it."""

from __future__ import annotations

import re

import orjson

from gateway.core.call import Call
from gateway.core.errors import InvalidRequest
from gateway.core.openai.bodies.body_edits import BodyEdits
from gateway.core.openai.bodies.large_body import LARGE_BYTES, Large, edited
from gateway.core.openai.json_edit import json_edit
from gateway.core.snapshot.route_plan import upstream_model
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.exchange import Clocks, Outgoing
from gateway.core.types.splice import Spliced
from gateway.core.types.words import Attempt, Gap, How
from gateway.features.reuse.rules.keys.keys import ACCOUNTS

_STORED_PROMPT = re.compile(rb'"prompt"\s*:\s*\{')


def outgoing_of(call: Call, target: Target, clocks: Clocks, attempt: Attempt) -> Outgoing:
    """Returns the request of this attempt; a caller's own deadline bounds the time to its first byte."""
    first_byte_s = clocks.first_byte_s
    if call.deadline_is_callers:
        first_byte_s = min(first_byte_s, max(0.001, call.deadline - attempt.started_at))
    model = target.model
    if model is None:
        model = upstream_model(call, target)
    headers, credential = call.headers, call.credential
    if credential is not None and target.name in call.model.withheld:
        headers, credential = [header for header in headers if header[0] not in ACCOUNTS], None
    body: bytes | Spliced = call.body
    if model != call.model_name or call.large is not None or call.stream or call.lowered is not None:
        body = _body_for(call, model)
    if target.edits is not None and call.endpoint.request == "json":
        edits = target.edits if call.endpoint.name != "count_tokens" else target.edits.of_count()
        body = _edited(body, edits, attempt, refuses_loss=call.model.on_loss == "refuse")
    return Outgoing(
        call.method,
        call.path,
        call.query,
        model,
        headers,
        body,
        credential,
        clocks,
        first_byte_s,
        attempt,
    )


def _body_for(call: Call, model: str) -> bytes | Spliced:
    """Returns the client's bytes, changed only where a rule needs it: the model's name, and the request for usage."""
    body, large = call.body if call.lowered is None else call.lowered.body, call.large
    if large is not None and large.model is not None and call.model_name:
        return _large_body(call, large, None if model == call.model_name else model)
    if model != call.model_name and body:
        if call.model_span is not None and call.model_name and len(body) > LARGE_BYTES:
            return Spliced(body, [(*call.model_span, model.encode())])
        body = _with_model(body, model, call.model_span) if call.model_name else _named(body, model)
    if adds_usage(call):
        body = json_edit.with_include_usage(body, call.stream_options)
    return body


def _edited(body: bytes | Spliced, edits: BodyEdits, attempt: Attempt, *, refuses_loss: bool) -> bytes:
    """Makes what the target's config says of the body; what is dropped from it is told as what is lost in a conversion.

    Raises InvalidRequest where nothing may be lost.
    """
    made, dropped = edits.apply(bytes(body))
    if dropped and refuses_loss:
        named = ", ".join(f"'{name}'" for name in dropped)
        message = f"The config of the model's target drops {named}. Send the call without, or use another model."
        raise InvalidRequest(message, param=dropped[0], code="unsupported_by_targets")
    attempt.gaps = [Gap(name, How.DROPPED, "the config of the target drops it") for name in dropped]
    return made


def _large_body(call: Call, large: Large, model: str | None) -> bytes | Spliced:
    is_asking = adds_usage(call)
    if model is None and not is_asking:
        return call.body
    return edited(call.body, large, model, call.stream_options, adds_usage=is_asking)


def _named(body: bytes, model: str) -> bytes:
    """Adds the target's model to a body that names none, unless it has a stored prompt, which has a model of its own."""
    if _STORED_PROMPT.search(body) is not None:
        return body
    if json_edit.find_fields(body, "model"):  # null
        return json_edit.with_model(body, model)
    return json_edit.insert_field(body, "model", orjson.dumps(model))


def _with_model(body: bytes, model: str, span: tuple[int, int] | None) -> bytes:
    if span is None:
        return json_edit.with_model(body, model)
    return body[: span[0]] + model.encode() + body[span[1] :]


def adds_usage(call: Call) -> bool:
    """Returns whether the gateway asks for usage in the stream, because the caller did not say."""
    if not (call.stream and call.endpoint.usage_option and call.model.include_usage):
        return False
    options = call.stream_options
    return options is None or (isinstance(options, dict) and options.get("include_usage") is None)
