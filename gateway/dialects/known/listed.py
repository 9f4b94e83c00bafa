"""What providers tell of their models in the list of them, as the fields of `ModelFacts` that follow from it.

What a list does not say, or says in a way that is not known, leaves the rows of `models.yaml` as they are. Source: the
references of Anthropic's `GET /v1/models` and of the Gemini API's `models.list`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from gateway.dialects.base.base import Json, object_of, objects, text_of
from gateway.dialects.known.models import MOST_NAME_CHARS

LISTS: Final = frozenset(("anthropic", "gemini"))
"""The dialects whose list of models tells more than names."""
MOST_MODELS: Final = 2000
_A_PAGE: Final = "1000"
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_MODELS: Final = "models/"


class ListPage(NamedTuple):
    """One page of a list."""

    facts: Mapping[str, Mapping[str, Any]]
    """By the provider's name for the model, what is told of it."""
    next: bytes | None
    """The query of the next page; None: this is the last one."""


def first_page(dialect: str) -> bytes:
    """Returns the query of a list's first page."""
    return urlencode({"limit" if dialect == "anthropic" else "pageSize": _A_PAGE}).encode()


def read_page(dialect: str, body: Json) -> ListPage:
    """Returns what a page tells. Total on any JSON object."""
    if dialect == "anthropic":
        facts = {text_of(one.get("id")): _of_claude(one) for one in objects(body.get("data"))}
        last = text_of(body.get("last_id")) if body.get("has_more") is True else ""
        more = {"limit": _A_PAGE, "after_id": last}
    else:
        facts = {text_of(one.get("name")).removeprefix(_MODELS): _of_gemini(one) for one in objects(body.get("models"))}
        last = text_of(body.get("nextPageToken"))
        more = {"pageSize": _A_PAGE, "pageToken": last}
    known = {name: told for name, told in facts.items() if 0 < len(name) <= MOST_NAME_CHARS and told}
    return ListPage(known, urlencode(more, errors="replace").encode() if last else None)


def _of_claude(model: Json) -> dict[str, Any]:
    told = _counts(model, ("max_input", "max_input_tokens"), ("max_output", "max_tokens"))
    can = object_of(model.get("capabilities"))
    if (has_schema := _is_supported(can, "structured_outputs")) is not None:
        told["json_schema"] = has_schema
    shown = {kind: _is_supported(can, f"{kind}_input") for kind in ("image", "pdf")}
    if None not in shown.values():
        told["reads"] = tuple(kind for kind, is_read in shown.items() if is_read)
    if _is_supported(can, "effort") is not None:
        effort = object_of(can["effort"])
        told["efforts"] = tuple(one for one in _EFFORTS if _is_supported(effort, one))
    return told | _thinking_of(can)


def _thinking_of(can: Json) -> dict[str, Any]:
    supported, types = _is_supported(can, "thinking"), object_of(object_of(can.get("thinking")).get("types"))
    if supported is False:
        return {"thinking": "none"}
    told = {}
    if supported and _is_supported(types, "adaptive"):
        told["thinking"] = "adaptive"
    elif supported and _is_supported(types, "enabled"):
        told["thinking"] = "budget"
    ways = {way: _is_supported(types, way) for way in ("disabled", "between_tools")}
    if told and None not in ways.values():
        told["thinking_off"] = next((way for way, is_taken in ways.items() if is_taken), "never")
    return told


def _of_gemini(model: Json) -> dict[str, Any]:
    told = _counts(model, ("max_input", "inputTokenLimit"), ("max_output", "outputTokenLimit"))
    return told | ({"thinking": "none"} if model.get("thinking") is False else {})


def _counts(model: Json, *names: tuple[str, str]) -> dict[str, Any]:
    return {ours: count for ours, theirs in names if type(count := model.get(theirs)) is int and count > 0}


def _is_supported(can: Json, name: str) -> bool | None:
    """Returns whether a capability is there; None: it is not said."""
    supported = object_of(can.get(name)).get("supported")
    return supported if isinstance(supported, bool) else None
