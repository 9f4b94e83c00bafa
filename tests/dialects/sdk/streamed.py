"""A whole answer as its provider would stream it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from gateway.dialects import conversion
from gateway.dialects import conversion_chat as chat
from tests.dialects.aws_frames import stream_of
from tests.dialects.cases import as_bytes
from tests.dialects.sdk.forms import Json


def _of_messages(answer: Json) -> bytes:
    return conversion.events_of(answer)


def _of_chat(answer: Json) -> bytes:
    return as_bytes("chat", chat.chunks_of(chat.normal(answer, is_chat=True), is_chat=True, include_usage=True))


def _of_generate(answer: Json) -> bytes:
    return as_bytes("generate", [answer])


def _of_responses(answer: Json) -> bytes:
    kind = {"failed": "response.failed", "incomplete": "response.incomplete"}.get(
        answer["status"], "response.completed"
    )
    begun = answer | {"status": "in_progress", "output": []}
    events = [{"type": "response.created", "response": begun}]
    for place, item in enumerate(answer["output"]):
        at = {"output_index": place, "item_id": item.get("id", "")}
        events.append(
            {"type": "response.output_item.added", **at, "item": item | ({"content": []} if "content" in item else {})}
        )
        if item["type"] == "message":
            events += [piece | at for number, part in enumerate(item["content"]) for piece in _pieces(part, number)]
        events.append({"type": "response.output_item.done", **at, "item": item})
    events.append({"type": kind, "response": answer})
    return as_bytes("responses", [event | {"sequence_number": number} for number, event in enumerate(events)])


def _pieces(part: Json, number: int) -> list[Json]:
    """Returns the events of one part of a message."""
    at, kind = {"content_index": number}, part["type"]
    told = {"output_text": "text", "refusal": "refusal"}[kind]
    more = {"logprobs": part["logprobs"]} if part.get("logprobs") else {}
    cited = [
        {"type": "response.output_text.annotation.added", **at, "annotation": one}
        for one in part.get("annotations", ())
    ]
    return [
        {"type": "response.content_part.added", **at, "part": {"type": kind, told: ""}},
        {"type": f"response.{kind}.delta", **at, "delta": part[told], **more},
        *cited,
        {"type": f"response.{kind}.done", **at, told: part[told]},
    ]


def _of_converse(answer: Json) -> bytes:
    events: list[Json] = [{"messageStart": {"role": "assistant"}}]
    for index, block in enumerate(answer["output"]["message"]["content"]):
        at = {"contentBlockIndex": index}
        if "toolUse" in block:
            used: dict[str, Any] = dict(block["toolUse"])
            said = orjson.dumps(used.pop("input")).decode()
            events.append({"contentBlockStart": {**at, "start": {"toolUse": used}}})
            events.append({"contentBlockDelta": {**at, "delta": {"toolUse": {"input": said}}}})
        else:
            events += [{"contentBlockDelta": {**at, "delta": delta}} for delta in _deltas(block)]
        events.append({"contentBlockStop": at})
    events.append({"messageStop": {name: answer[name] for name in ("stopReason",) if name in answer}})
    events.append({"metadata": {name: answer[name] for name in ("usage", "metrics", "serviceTier") if name in answer}})
    return stream_of(events)


def _deltas(block: Json) -> list[Json]:
    if "reasoningContent" in block:
        inner = block["reasoningContent"]
        told = inner.get("reasoningText", inner)
        return [{"reasoningContent": {name: value}} for name, value in told.items()]
    if "citationsContent" in block:
        inner = block["citationsContent"]
        said = [{"text": part["text"]} for part in inner.get("content", ()) if "text" in part]
        return said + [{"citation": one} for one in inner.get("citations", ())]
    return [block]


STREAMED: Mapping[str, Callable[[Json], bytes]] = {
    "chat": _of_chat,
    "converse": _of_converse,
    "generate": _of_generate,
    "messages": _of_messages,
    "responses": _of_responses,
}
"""By the language that is spoken."""
