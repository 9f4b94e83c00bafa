"""What another parser may read differently: a key that may use some models only must not name one that we do not see.

Providers differ in how they read a request: some take field names in any case (Go), some have fields of their own that choose
a model (OpenRouter's `models` and `provider`), some take a form's `name*=` (RFC 5987, 3.2), and Anthropic's advisor, a tool, is
a model by itself. Only asked for keys whose `models` are restricted: whoever may use every model gains nothing by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.core.errors import Forbidden
from gateway.core.openai.bodies.multipart import parts_in_steps
from gateway.core.openai.usage.model_fields import other_model_field
from gateway.core.peek.peek import form_boundary
from gateway.core.snapshot.snapshot.snapshot import Key
from gateway.core.types.words import Endpoint

_ADVISOR = re.compile(rb'"type"\s*:\s*"(?:advisor|[^"]*\\u)', re.IGNORECASE)
"""How such a tool begins in a body that is too large to be parsed."""
_EXTENDED_NAME = re.compile(rb";\s*name\*", re.IGNORECASE)


def refuse_other_readings(
    key: Key, endpoint: Endpoint, fields: Iterable[str], body: bytes, index: dict[bytes, bytes]
) -> None:
    """Raises Forbidden where the body names a model in a way that only some providers read.

    `fields` are the names at the top of a JSON body; those of a form are read here.
    """
    if endpoint.request == "multipart":
        fields = _form_fields(key, body, form_boundary(index.get(b"content-type", b"")))
    if endpoint.sse == "messages" and isinstance(fields, Mapping) and _asks_an_advisor(fields, body):
        _refuse(key, "tools.model")
    other = other_model_field(fields)
    if other is not None:
        _refuse(key, other)


def _asks_an_advisor(fields: Mapping[str, Any], body: bytes) -> bool:
    """Whether one of the tools has a model of its own."""
    tools = fields.get("tools")
    if isinstance(tools, list):
        return any(name.casefold() == "model" for tool in tools if isinstance(tool, dict) for name in tool)
    return tools is not None and _ADVISOR.search(body) is not None


def _form_fields(key: Key, body: bytes, boundary: bytes) -> list[str]:
    names: list[str] = []
    end = 0
    for part in parts_in_steps(body, boundary):
        if part is None:
            continue
        name, start, stop = part
        if _EXTENDED_NAME.search(body, end, start):
            _refuse(key, "name*")
        names.append(name)
        end = stop
    return names


def _refuse(key: Key, name: str) -> None:
    raise Forbidden(
        f"The key '{key.name}' may use some models only, and by the field '{name}' a provider may choose another; leave it "
        "out, and name the model in 'model'.",
        param=name,
        code="field_not_allowed",
    )
