"""What a caller gives a pipeline: read from a chat completion's or a response's request, and held against the plan's schema.

`metadata.input` is the input as it is, or as JSON in a text; without it the last message of the user is: as JSON where the
schema wants an object or a list and the text is one; else as the one field that the schema demands; else as a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.core.errors import InvalidRequest
from gateway.products.pipelines.compile.compiling.plan import PipelinePlan
from gateway.products.pipelines.rules.schemas import misfit_of, with_defaults

FIELD: Final = "metadata.input"


def input_of(plan: PipelinePlan, request: Mapping[str, Any]) -> Any:
    """Returns the input of a run. Raises InvalidRequest, naming the field and the remedy."""
    value = with_defaults(plan.input_schema, _said(plan, request))
    misfit = None if plan.input_schema is None else misfit_of(plan.input_schema, value)
    if misfit is not None:
        where, why = misfit
        name = f"input.{where}" if where else "input"
        raise InvalidRequest(
            f"The input of {plan.model_name} is not what it takes: '{name}' {why}. Send it as JSON in the last user message, "
            f"or in '{FIELD}'.",
            param=name,
            code="invalid_pipeline_input",
        )
    return value


def _said(plan: PipelinePlan, request: Mapping[str, Any]) -> Any:
    metadata = request.get("metadata")
    if isinstance(metadata, dict) and "input" in metadata:
        value = metadata["input"]
        if not isinstance(value, str) or not _wants_structure(plan):
            return value
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            raise InvalidRequest(f"The field '{FIELD}' is no JSON.", param=FIELD) from None
    text = _last_text(request)
    if text is None:
        raise InvalidRequest(
            f"There is no input: put it into the last message with the role 'user', or into '{FIELD}'.",
            param="messages",
        )
    return _read(plan, text)


def _read(plan: PipelinePlan, text: str) -> Any:
    schema = plan.input_schema or {}
    if not _wants_structure(plan):
        return text
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = text
    if isinstance(value, dict | list):
        return value
    required = schema.get("required")
    if isinstance(required, list) and len(required) == 1:
        return {required[0]: text}
    return text


def _wants_structure(plan: PipelinePlan) -> bool:
    """Tells whether the schema takes an object or a list, and no text."""
    schema = plan.input_schema or {}
    kind = schema.get("type", "object" if "required" in schema or "properties" in schema else None)
    return kind in ("object", "array")


def _last_text(request: Mapping[str, Any]) -> str | None:
    """Returns the last text of the user in a request of either form."""
    said = request.get("messages", request.get("input"))
    if isinstance(said, str):
        return said
    messages = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    last = next((one for one in reversed(messages) if one.get("role") == "user"), None)
    if last is None:
        return None
    content = last.get("content")
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [text for text in parts if isinstance(text, str)]
    return "".join(texts) if texts else None
