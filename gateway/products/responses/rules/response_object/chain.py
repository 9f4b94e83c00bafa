"""The conversation behind a `previous_response_id`: what was asked and answered before, as items of the next request.

Instructions are no part of it: each request brings its own, as at OpenAI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.errors import InvalidRequest
from gateway.products.jobs.model.ids import RESPONSE, is_ours
from gateway.products.responses.rules.response_object.stored_response import StoredResponse

MOST_LINKS: Final = 64
MOST_BYTES: Final = 8 * 1024 * 1024
PARAM: Final = "previous_response_id"


class Conversation(NamedTuple):
    """What goes before the items of a request."""

    items: list[dict[str, Any]]
    previous_id: str = ""
    """A provider's own response at its beginning, which only the provider knows; empty: none."""


def conversation_of(response_id: str, chain: Sequence[StoredResponse]) -> Conversation:
    """Returns the items of kept responses, given the latest first, which is called `response_id`.

    Raises InvalidRequest where one is gone, or they are too many, or too long.
    """
    wanted, seen = response_id, set[str]()
    links: list[StoredResponse] = []
    for response in chain:
        if response.id != wanted or response.id in seen:
            break
        seen.add(response.id)
        links.append(response)
        wanted = response.previous_id
        if not is_ours(RESPONSE, wanted):
            break
    if wanted in seen or len(links) > MOST_LINKS or (len(links) == MOST_LINKS and is_ours(RESPONSE, wanted)):
        raise InvalidRequest(
            f"The response '{response_id}' goes on from more than {MOST_LINKS} others; send the conversation as 'input'.",
            param=PARAM,
            code="conversation_too_long",
        )
    if is_ours(RESPONSE, wanted):
        raise previous_not_found(wanted)
    if sum(link.bytes for link in links) > MOST_BYTES:
        raise InvalidRequest(
            f"The conversation behind '{response_id}' has more than {MOST_BYTES} bytes; send what matters of it as 'input'.",
            param=PARAM,
            code="conversation_too_long",
        )
    items: list[dict[str, Any]] = []
    for link in reversed(links):
        items += orjson.loads(link.input_items)
        items += said_again(orjson.loads(link.body).get("output"))
    return Conversation(items, wanted)


def previous_not_found(response_id: str, why: str = "") -> InvalidRequest:
    """Returns the refusal of a request that goes on from a response that nobody has."""
    return InvalidRequest(
        f"Previous response with id '{response_id}' not found.{why and ' ' + why}",
        param=PARAM,
        code="previous_response_not_found",
    )


def said_again(output: object) -> list[dict[str, Any]]:
    """Returns the items of an answer as they can be said again: no halves, and no reasoning that its provider has not kept."""
    items = output if isinstance(output, list) else []
    return [item for item in items if isinstance(item, dict) and _is_sayable(item)]


def _is_sayable(item: dict[str, Any]) -> bool:
    if item.get("status") in ("in_progress", "incomplete") and item.get("type") != "message":
        return False
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))
