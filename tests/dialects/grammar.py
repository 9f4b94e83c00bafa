"""What a stream must look like, event by event."""

from __future__ import annotations

from typing import Any

import orjson

Events = list[dict[str, Any]]
_PART_ENDS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
_ENDS = ("response.completed", "response.incomplete", "error")


def check_responses(events: Events) -> dict[str, Any]:
    """Returns the whole response of a stream, after each rule was checked.

    created in_progress (item)* (completed | incomplete) | ... error; numbers from 0; whatever is added is done, as it was told.
    """
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] in _ENDS
    if events[0]["type"] == "error":
        return events[0]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    open_items: dict[int, str] = {}
    done: dict[int, dict[str, Any]] = {}
    texts: dict[tuple[int, str], str] = {}
    open_parts: set[tuple[int, int]] = set()
    for event in events[2:-1]:
        kind, place = event["type"].removeprefix("response."), event["output_index"]
        if kind == "output_item.added":
            assert place == len(open_items) + len(done)
            open_items[place] = event["item"]["id"]
        elif kind == "output_item.done":
            assert open_items.pop(place) == event["item"]["id"]
            assert not any(at == place for at, _ in open_parts)
            done[place] = event["item"]
        else:
            assert open_items[place] == event["item_id"], "of an item that is not open"
            _check_inside(kind, event, texts, open_parts)
    last = events[-1]
    if last["type"] == "error":
        return last
    assert not open_items
    assert not open_parts
    assert last["response"]["output"] == [done[place] for place in sorted(done)]
    assert last["response"]["status"] == last["type"].removeprefix("response.")
    whole: dict[str, Any] = last["response"]
    return whole


def _check_inside(
    kind: str, event: dict[str, Any], texts: dict[tuple[int, str], str], parts: set[tuple[int, int]]
) -> None:
    place = event["output_index"]
    part = (place, event.get("content_index", -1))
    if kind == "content_part.added":
        assert part not in parts
        parts.add(part)
    elif kind == "content_part.done":
        parts.remove(part)
        field = _PART_ENDS[event["part"]["type"]]
        assert event["part"][field] == texts[place, f"{part[1]}"]
    elif kind.endswith(".delta"):
        key = (place, f"{part[1]}")
        texts[key] = texts.get(key, "") + event["delta"]
    elif kind.endswith(".done"):
        said = next(event[name] for name in ("text", "refusal", "arguments", "input") if name in event)
        assert said == texts[place, f"{part[1]}"]


def check_chat(events: Events, stream: bytes) -> dict[str, Any]:
    """Returns the whole message of a stream: role first, one finish reason, calls in a dense order, `[DONE]` at the end."""
    assert stream.endswith(b"data: [DONE]\n\n")
    assert stream.count(b"[DONE]") == 1
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[0]["delta"]["role"] == "assistant"
    finishes = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    assert len(finishes) == 1
    assert choices[-1]["finish_reason"] == finishes[0]
    message: dict[str, Any] = {"content": "", "refusal": "", "reasoning_content": "", "tool_calls": []}
    for choice in choices:
        for name in ("content", "refusal", "reasoning_content"):
            message[name] += choice["delta"].get(name) or ""
        for call in choice["delta"].get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                assert call["id"]
                message["tool_calls"].append(call)
            else:
                assert "id" not in call
                kind, field = ("custom", "input") if "custom" in call else ("function", "arguments")
                message["tool_calls"][call["index"]][kind][field] += call[kind][field]
    return message | {
        "finish_reason": finishes[0],
        "usage": next((event["usage"] for event in events if event.get("usage")), None),
    }


_GROWS = {
    "text": (("text_delta", "text"), ("citations_delta", "citations")),
    "thinking": (("thinking_delta", "thinking"), ("signature_delta", "signature")),
    "tool_use": (("input_json_delta", "partial_json"),),
    "server_tool_use": (("input_json_delta", "partial_json"),),
}
"""What the deltas of a block are called, and bring; blocks of other types come whole."""


def check_messages(stream: bytes) -> dict[str, Any]:
    """Returns the whole message of a stream, put together as Anthropic's SDK does, after each rule was checked; or its error.

    message_start (block)* message_delta message_stop | ... error; each event has its name; one block is open at a time, and
    places count up from 0; pings come behind the start, comments anywhere; an error is the last event and has no end before it.
    """
    blocks = [block for block in stream.split(b"\n\n") if block and not block.startswith(b":")]
    events: Events = []
    for block in blocks:
        name, data = block.split(b"\n")
        events.append(orjson.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + events[-1]["type"].encode()
    events = [event for place, event in enumerate(events) if not (place and event["type"] == "ping")]
    error = events[-1]
    if error["type"] == "error":
        _check_begun(events[:-1])
        return error
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message, is_open = _check_begun(events[:-2])
    assert not is_open, "a block has no end"
    last = events[-2]
    is_cut = any(block.pop("is_cut", False) for block in message["content"])
    assert not is_cut or last["delta"]["stop_reason"] in ("max_tokens", "refusal")
    whole: dict[str, Any] = message | last["delta"] | {"usage": message["usage"] | last["usage"]}
    return whole


def _check_begun(events: Events) -> tuple[dict[str, Any], bool]:
    """Returns the message as far as it was told, and whether a block is still open."""
    if not events:
        return {}, False
    assert events[0]["type"] == "message_start"
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == []
    assert message["stop_reason"] is None
    blocks: Events = []
    place: int | None = None
    kinds: list[str] = []
    for event in events[1:]:
        if event["type"] == "content_block_start":
            assert place is None, "two blocks are open"
            assert event["index"] == len(blocks)
            place, kinds = event["index"], []
            blocks.append(event["content_block"])
            continue
        assert event["index"] == place, "of a block that is not open"
        if event["type"] == "content_block_stop":
            _check_block(blocks[-1], kinds)
            place = None
            continue
        assert event["type"] == "content_block_delta"
        _grow(blocks[-1], event["delta"])
        kinds.append(event["delta"]["type"])
    return message | {"content": blocks}, place is not None


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    (field,) = [field for kind, field in _GROWS.get(block["type"], ()) if kind == delta["type"]]
    if field == "partial_json":
        block["input"] = (block["input"] or "") + delta[field]
    elif field == "citations":
        block[field] = [*(block.get(field) or ()), delta["citation"]]
    else:
        block[field] += delta[field]


def _check_block(block: dict[str, Any], kinds: list[str]) -> None:
    """Checks a block that has ended: thinking is signed, once and last; arguments are one JSON object, but where cut."""
    if block["type"] == "thinking":
        assert kinds.index("signature_delta") == len(kinds) - 1
        assert block["signature"]
    if block["type"] == "text":
        assert block["text"].strip()
    if block["type"] == "tool_use":
        assert block["id"]
        assert block["name"]
        assert kinds
        try:
            said = orjson.loads(block["input"])
        except orjson.JSONDecodeError:
            said = None
        if isinstance(said, dict):
            block["input"] = said
        else:
            block["is_cut"] = True  # only the end tells whether it may be
