"""What a request of Responses asks for beside its answer: to run in the background, to be kept, to go on from another one.

Source: OpenAI's API reference, POST /v1/responses; `store` is true there where a request does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.core.errors import InvalidRequest

StoreMode = Literal["provider", "gateway", "off", "never"]
"""Who keeps responses: the provider, untouched; the gateway; nobody; nobody, and none runs in the background."""
Keeping = Literal["provider", "asked", "gateway", "off", "never"]
"""As StoreMode; `asked`: the gateway, those that ask for it, because no one account has them all."""

MOST_ID_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """What a request says of its response as a thing that is kept."""

    in_background: bool = False
    stores: bool | None = None
    """None: it does not say."""
    previous_id: str = ""
    """The response that it goes on from; empty: none."""


def read_asked(body: Mapping[str, Any]) -> AskedResponse:
    """Reads the top-level fields of a body. Raises InvalidRequest, naming the field."""
    previous = body.get("previous_response_id")
    if previous is not None and not (isinstance(previous, str) and len(previous) <= MOST_ID_CHARS):
        raise InvalidRequest(
            "The field 'previous_response_id' must be the id of a response.",
            param="previous_response_id",
            code="invalid_type",
        )
    return AskedResponse(bool(_flag(body, "background")), _flag(body, "store"), previous or "")


def keeps(keeping: Keeping, asked: AskedResponse, *, goes_on_from_ours: bool) -> bool:
    """Tells whether the gateway keeps the answer of a call in the foreground."""
    if keeping == "gateway":
        return asked.stores is not False
    return keeping == "asked" and (asked.stores is True or (asked.stores is None and goes_on_from_ours))


def items_of(given: object) -> list[dict[str, Any]]:
    """Returns the `input` of a request as a list of items. Raises InvalidRequest where it is none."""
    if given is None:
        return []
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if isinstance(given, list) and all(isinstance(item, dict) for item in given):
        return given
    raise InvalidRequest("The field 'input' must be a text or a list of items.", param="input", code="invalid_type")


def sent_upstream(
    body: Mapping[str, Any], before: Sequence[dict[str, Any]], previous_id: str, *, stores: bool | None
) -> dict[str, Any]:
    """Returns the body for a provider: with the items of earlier responses, and what it is to go on from at the provider.

    It never runs in the background there; `stores` says whether the provider is to keep it, None: as the request says.
    """
    left_out = ("background", "previous_response_id")
    sent = {name: value for name, value in body.items() if name not in left_out}
    if previous_id:
        sent["previous_response_id"] = previous_id
    if stores is not None:
        sent["store"] = stores
    if before:
        sent["input"] = [*before, *items_of(body.get("input"))]
    return sent


def _flag(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"The field '{name}' must be true or false.", param=name, code="invalid_type")
    return value
