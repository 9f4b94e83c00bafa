"""Answers as providers give them, drawn at random, and an SDK that reads them from memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import httpx2
import orjson
from hypothesis import strategies as st
from openai import OpenAI

Json = dict[str, Any]

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
ODD = st.sampled_from(
    ['"', "\\", "\r\n", "\n\n", "data: [DONE]", '"usage":null', ',"usage":null', "👩‍🚀🎈", "e\u0301", "\u2028", "\x00"]
)
SHORT = st.lists(st.text(max_size=8) | ODD, max_size=4).map("".join)
TEXTS = st.builds(str.__mul__, SHORT, st.sampled_from([1, 1, 1, 1, 700]))
NAMES = st.sampled_from(["weather", "f", "größe"])
TOKENS = st.fixed_dictionaries(
    {"token": SHORT, "logprob": st.floats(-99, 0), "bytes": st.none(), "top_logprobs": st.just([])}
)
TOKEN_LISTS = st.none() | st.lists(TOKENS, max_size=3)
COUNTS = st.integers(0, 2**40)


def objects(required: Json, optional: Json | None = None) -> st.SearchStrategy[Json]:
    """Objects with these fields; JSON values stand for themselves."""
    fields = (
        {name: each if isinstance(each, st.SearchStrategy) else st.just(each) for name, each in part.items()}
        for part in (required, optional or {})
    )
    return st.fixed_dictionaries(next(fields), optional=next(fields))


def numbered(entries: list[Json], prefix: str) -> list[Json]:
    """The entries, each with an id of its own."""
    return [{**entry, "id": f"{prefix}{number}"} for number, entry in enumerate(entries)]


USAGES = objects(
    {"prompt_tokens": COUNTS, "completion_tokens": COUNTS, "total_tokens": COUNTS},
    {"prompt_tokens_details": objects({"cached_tokens": COUNTS}), "completion_tokens_details": st.none()},
)
CALLS = objects(
    {"type": "function", "function": objects({"name": NAMES, "arguments": TEXTS})}, {"extra": objects({"sign": NAMES})}
) | objects({"type": "custom", "custom": objects({"name": NAMES, "input": TEXTS})})
CITED = objects({"url": NAMES, "title": SHORT, "start_index": COUNTS, "end_index": COUNTS})
MESSAGES = objects(
    {"role": "assistant", "content": st.none() | TEXTS, "refusal": st.none() | TEXTS},
    {
        "reasoning_content": st.none() | TEXTS,
        "reasoning": TEXTS,
        "tool_calls": st.none() | st.lists(CALLS, max_size=3).map(lambda calls: numbered(calls, "call_")),
        "function_call": objects({"name": NAMES, "arguments": TEXTS}),
        "annotations": st.lists(objects({"type": "url_citation", "url_citation": CITED}), max_size=2),
        "audio": objects(
            {
                "id": "audio_1",
                "expires_at": COUNTS,
                "data": st.sampled_from(["", "AAA=", "AAAA" * 700]),
                "transcript": TEXTS,
            }
        ),
        "provider_specific_fields": objects({"region": NAMES}),
    },
)
ENDS = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "function_call"])
CHOICES = objects(
    {"message": MESSAGES, "finish_reason": ENDS},
    {
        "logprobs": st.none() | objects({"content": TOKEN_LISTS, "refusal": TOKEN_LISTS}),
        "stop_reason": st.none() | NAMES,
    },
)
TEXT_LOGPROBS = objects(
    {
        "tokens": st.lists(SHORT, max_size=3),
        "token_logprobs": st.lists(st.floats(-9, 0), max_size=3),
        "top_logprobs": st.none(),
    }
)
TEXT_CHOICES = objects(
    {"text": TEXTS, "finish_reason": st.sampled_from(["stop", "length"])}, {"logprobs": st.none() | TEXT_LOGPROBS}
)
HEAD: Json = {"id": st.sampled_from(["c-1", "c-2"]), "created": COUNTS, "model": NAMES}
EXTRAS: Json = {
    "system_fingerprint": st.none() | NAMES,
    "service_tier": st.none() | st.sampled_from(["default", "flex"]),
    "citations": st.lists(SHORT, max_size=2),
    "x_provider": objects({"id": NAMES, "score": st.floats(0, 1)}),
    "usage": USAGES,
}


def with_places(body: Json) -> Json:
    """Its choices with an index each."""
    choices = [{"index": place, **choice} for place, choice in enumerate(body["choices"])]
    return body | {"choices": choices}


CHATS = objects(
    {**HEAD, "object": "chat.completion", "choices": st.lists(CHOICES, min_size=1, max_size=3)}, EXTRAS
).map(with_places)
TEXT_ANSWERS = objects(
    {**HEAD, "object": "text_completion", "choices": st.lists(TEXT_CHOICES, min_size=1, max_size=3)}, EXTRAS
).map(with_places)

CITATIONS = objects({"type": "url_citation", "url": NAMES, "title": SHORT, "start_index": COUNTS, "end_index": COUNTS})
PARTS = objects(
    {"type": "output_text", "text": TEXTS, "annotations": st.lists(CITATIONS, max_size=2)}, {"logprobs": st.just([])}
) | objects({"type": "refusal", "refusal": TEXTS})
SUMMARIES = st.lists(objects({"type": "summary_text", "text": TEXTS}), max_size=2)
ITEMS = st.one_of(
    objects({"type": "message", "role": "assistant", "status": "completed", "content": st.lists(PARTS, max_size=3)}),
    objects(
        {"type": "reasoning", "summary": SUMMARIES},
        {
            "content": st.lists(objects({"type": "reasoning_text", "text": TEXTS}), max_size=2),
            "encrypted_content": NAMES,
        },
    ),
    objects({"type": "function_call", "status": "completed", "name": NAMES, "arguments": TEXTS, "call_id": "call_1"}),
    objects({"type": "custom_tool_call", "name": NAMES, "input": TEXTS, "call_id": "call_2"}),
    objects(
        {
            "type": "web_search_call",
            "status": st.sampled_from(["completed", "failed"]),
            "action": objects({"type": "search", "query": SHORT}),
        }
    ),
    objects(
        {
            "type": "code_interpreter_call",
            "status": "completed",
            "code": st.none() | TEXTS,
            "container_id": "c",
            "outputs": st.none(),
        }
    ),
    objects(
        {
            "type": "mcp_call",
            "status": "completed",
            "name": NAMES,
            "arguments": TEXTS,
            "server_label": "s",
            "output": SHORT,
        }
    ),
    objects({"type": "image_generation_call", "status": "completed", "result": NAMES}),
)


def distinct(body: Json) -> Json:
    """Its items told apart by their ids."""
    items = numbered(body["output"], "item_")
    for number, item in enumerate(items):
        if "call_id" in item:
            item["call_id"] = f"call_{number}"
    return body | {"output": items}


RESPONSES = objects(
    {
        "id": "resp_1",
        "object": "response",
        "created_at": COUNTS,
        "model": NAMES,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": st.sampled_from([{}, {"a": "response.completed"}]),
        "output": st.lists(ITEMS, max_size=4),
        "usage": objects({"input_tokens": COUNTS, "output_tokens": COUNTS, "total_tokens": COUNTS}),
    }
).map(distinct)


# -- streams --------------------------------------------------------------------------------------------------------------


def cut(text: str, draw: Random) -> list[str]:
    """A text in pieces, some of them empty."""
    ends = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 4)))
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def deltas_of(message: Json, draw: Random) -> tuple[Json, list[list[Json]]]:
    """The opening delta of a message, and the trains of those that follow, each of them in order."""
    opening: Json = {}
    trains: list[list[Json]] = []
    for name, value in message.items():
        if isinstance(value, str) and name != "role":
            opening |= {name: ""} if draw.random() < 0.5 else {}
            trains.append([{name: piece} for piece in cut(value, draw)])
        elif name == "tool_calls" and value:
            trains.append([{name: piece} for piece in tool_pieces(value, draw)])
        elif name == "function_call":
            pieces = cut(value["arguments"], draw)
            trains.append([{name: value | {"arguments": ""}}, *({name: {"arguments": piece}} for piece in pieces)])
        else:
            opening[name] = value
    return opening, trains


def tool_pieces(calls: list[Json], draw: Random) -> list[list[Json]]:
    """The calls begin in their order; what follows is mixed."""
    first, rest = [], []
    for index, call in enumerate(calls):
        kind, text = ("function", "arguments") if "function" in call else ("custom", "input")
        first.append([{"index": index, **call, kind: call[kind] | {text: ""}}])
        rest.append([[{"index": index, kind: {text: piece}}] for piece in cut(call[kind][text], draw)])
    return first + mixed(rest, draw)


def mixed(trains: list[list[Any]], draw: Random) -> list[Any]:
    """All cars of all trains, those of one train in their order."""
    turns = [number for number, train in enumerate(trains) for _ in train]
    draw.shuffle(turns)
    ahead = [iter(train) for train in trains]
    return [next(ahead[number]) for number in turns]


def streamed(body: Json, draw: Random, frame: Callable[[Json], bytes]) -> tuple[bytes, bytes]:
    """A chat as a provider might stream it, in arbitrary pieces; the event with its usage; each framed by `frame`."""
    head = {name: value for name, value in body.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    openings, trains, ends = [], [], []
    for choice in body["choices"]:
        opening, parts = deltas_of(choice["message"], draw)
        around = {name: value for name, value in choice.items() if name not in ("message", "finish_reason", "logprobs")}
        quiet = {"logprobs": None} if "logprobs" in choice else {}
        openings.append({**around, "delta": opening, **quiet, "finish_reason": None})
        told = {"logprobs": choice["logprobs"]} if quiet else {}
        trains.append([{**around, "delta": delta, **quiet, "finish_reason": None} for delta in mixed(parts, draw)])
        ends.append({**around, "delta": {}, **told, "finish_reason": choice["finish_reason"]})
    chunks = [head | {"choices": [choice], "usage": None} for choice in [*openings, *mixed(trains, draw), *ends]]
    usage = frame(head | {"choices": [], "usage": body["usage"]}) if "usage" in body else b""
    return b"".join(map(frame, chunks)) + usage + frame_of(b"[DONE]"), usage


def frame_of(data: bytes) -> bytes:
    """As OpenAI does it."""
    return b"data: %b\n\n" % data


def plainly(chunk: Json) -> bytes:
    """An event as OpenAI writes it."""
    return frame_of(orjson.dumps(chunk))


def oddly(draw: Random) -> Callable[[Json], bytes]:
    """Events with all that SSE allows: comments, names, ids, any line ends, data over several lines, escapes, blanks."""

    def frame(chunk: Json) -> bytes:
        end = draw.choice(["\n", "\r\n", "\r"])
        indent = draw.choice([None, None, 1])
        lines = json.dumps(chunk, ensure_ascii=draw.random() < 0.5, indent=indent).split("\n")
        fields = [draw.choice(["data: ", "data:"]) + line for line in lines]
        extra = draw.choice([[], [": keep-alive"], ["event: message", "id: 7"], ["retry: 10"]])
        comment = draw.choice(["", "", f": PROCESSING{end}{end}", f":{end}{end}"])
        return (comment + end.join([*extra, *fields]) + end + end).encode()

    return frame


# -- the SDK --------------------------------------------------------------------------------------------------------------


def sdk_of(body: bytes) -> OpenAI:
    """An SDK whose provider has this one answer, whole or streamed."""
    kind = "application/json" if body.startswith(b"{") else "text/event-stream"

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": kind}, content=body)

    return OpenAI(api_key="k", max_retries=0, http_client=httpx2.Client(transport=httpx2.MockTransport(answer)))


def bare(value: Any) -> Any:
    """What an SDK's object says, without what only says that there is nothing, or how it came."""
    if isinstance(value, dict):
        said = {name: bare(each) for name, each in value.items() if name not in ("parsed", "parsed_arguments")}
        for call in said.get("tool_calls") or ():
            call.pop("index", None)
        return {name: each for name, each in said.items() if each is not None}
    return [bare(each) for each in value] if isinstance(value, list) else value


def chat_read_whole(body: bytes) -> Any:
    """A chat as the SDK reads it in one piece."""
    with sdk_of(body) as client:
        return bare(client.chat.completions.create(**ASK).to_dict())


def chat_read_streamed(frames: bytes) -> Any:
    """A chat as the SDK puts it together."""
    with sdk_of(frames) as client, client.chat.completions.stream(**ASK) as stream:
        return bare(stream.until_done().current_completion_snapshot.to_dict())  # the final one raises for some ends


def response_read_whole(body: bytes) -> Any:
    """A response as the SDK reads it in one piece."""
    with sdk_of(body) as client:
        return bare(client.responses.create(model="m", input="?").to_dict())


def response_read_streamed(frames: bytes) -> Any:
    """A response as the SDK puts it together."""
    with sdk_of(frames) as client, client.responses.stream(model="m", input="?") as stream:
        return bare(stream.get_final_response().to_dict())
