"""Converts a streamed chat or text completion into a whole one, and the other way round.

Chunks are put together by `merge.py`'s rules; a whole answer is cut into the chunks that put together make it again.
It must not know where answers come from. Invariant: `chunks_of` and `completion_of` are the inverse of each other, or one of
them has given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gateway.core.openai.sse.first_event import failed_reason
from gateway.dialects.conversion.chat.merge import Ambiguous, add, add_text, agree, index_of

Json = dict[str, Any]

PIECE_LENGTH = 2_000
"""The characters of a text in one chunk: some clients cannot read lines of 64 KiB. A multiple of 4 keeps base64 readable."""

_FIRST = frozenset(("created", "id", "model", "object"))
"""The fields that some providers make anew for each chunk; the first chunk's are the answer's."""
_LAST = frozenset(("service_tier", "system_fingerprint", "usage"))
"""The fields that may change while an answer comes; the last value holds."""
_PADDING = frozenset(("obfuscation", "p"))
"""The fields that OpenAI and Mistral add to a chunk to hide how long its text is."""
_IN_EVERY_CHUNK = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_REASONING = ("reasoning", "reasoning_content", "thinking")
_LISTS_OF_TOKENS = ("logprobs", "token_ids")


def completion_of(chunks: Iterable[Json], *, is_chat: bool) -> Json:
    """Returns the whole answer that these chunks are the stream of; its texts are still `Text`. Raises Ambiguous."""
    whole: Json = {}
    choices: dict[int, Json] = {}
    for chunk in chunks:
        news = chunk.pop("choices", None)
        if chunk.get("error"):
            raise Ambiguous("an error")
        if not isinstance(news, list) and not isinstance(chunk.get("usage"), dict):
            raise Ambiguous("an event that is no chunk")
        _add_head(whole, chunk)
        for choice in news or ():
            _add_choice(choices, choice, is_chat=is_chat)
    if not choices or not all(choice["finish_reason"] for choice in choices.values()):
        raise Ambiguous("an answer without an end")
    if failed_reason({"choices": list(choices.values())}) is not None:
        raise Ambiguous("an answer that has failed")
    whole["object"] = "chat.completion" if is_chat else "text_completion"
    usage = whole.pop("usage", None) or _groq_usage(whole)
    whole["choices"] = [_closed(choices[index]) for index in sorted(choices)]
    return whole | {"usage": usage} if usage is not None else whole


def _add_head(whole: Json, chunk: Json) -> None:
    for name, value in chunk.items():
        if name in _PADDING or (name in whole and whole[name] == value):
            continue
        if name not in whole or (name in _LAST and value is not None) or (name in _FIRST and not whole[name]):
            whole[name] = value
        elif name not in _LAST and name not in _FIRST:
            agree(whole, {name: value})


def _groq_usage(whole: Json) -> Any:
    """Returns the usage that Groq puts at the end of a stream, and at the top of a whole answer."""
    ours = whole.get("x_groq")
    return ours.get("usage") if isinstance(ours, dict) else None


def _add_choice(choices: dict[int, Json], news: Any, *, is_chat: bool) -> None:
    if not isinstance(news, dict) or news.get("error"):
        raise Ambiguous("a choice that has failed")
    index = news.get("index")
    index = 0 if index is None else index_of(news)
    known = choices.get(index)
    if known is None:
        known = choices[index] = {
            "index": index,
            **({"message": {}} if is_chat else {"text": None}),
            "finish_reason": None,
        }
    for name, value in news.items():
        if is_chat and name == "delta":
            add(known["message"], _checked(value or {}, dict))
        elif not is_chat and name == "text":
            known["text"] = add_text(known["text"], _checked(value or "", str))
        elif name in _LISTS_OF_TOKENS:
            known[name] = _longer(known.get(name), value)
        elif name == "message":
            raise Ambiguous("a message beside its deltas")
        elif name != "index" and (value is not None or name not in known):
            agree(known, {name: value})


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise Ambiguous("a choice that is none")
    return value


def _longer(old: Any, new: Any) -> Any:
    """Merges a list with one entry for each token: the lists grow, side by side."""
    if old is None or new is None:
        return new if old is None else old
    if isinstance(old, list) and isinstance(new, list):
        old.extend(new)
        return old
    if not isinstance(old, dict) or not isinstance(new, dict):
        raise Ambiguous("tokens told in two ways")
    return {name: _longer(old.get(name), new.get(name)) for name in old | new}


def _closed(choice: Json) -> Json:
    """Returns a choice in the form of a whole answer."""
    message = choice.get("message")
    if message is None:
        choice["text"] = choice["text"] or ""
        return choice
    message.setdefault("role", "assistant")
    message.setdefault("content", None)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Ambiguous("tool calls that are none")
    for call in calls:
        call.pop("index", None)
    return choice


def normal(body: Json, *, is_chat: bool) -> Json:
    """Returns a whole answer as `completion_of` would put it, without fields of streams only. Raises Ambiguous."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or body.get("error"):
        raise Ambiguous("an answer without choices")
    for place, choice in enumerate(choices):
        said = _checked(choice, dict).get("message" if is_chat else "text")
        _checked(said, dict if is_chat else str)
        choice.setdefault("index", place)
        _closed(choice)
    choices.sort(key=index_of)
    rest = {name: value for name, value in body.items() if (name, value) != ("usage", None)}
    return rest | {"object": "chat.completion" if is_chat else "text_completion"}


def chunks_of(body: Json, *, is_chat: bool, include_usage: bool) -> list[Json]:
    """Returns the chunks of a normal body; the last one brings the usage, where there is any. Raises Ambiguous."""
    head = {name: body[name] for name in _IN_EVERY_CHUNK if name in body}
    head["object"] = "chat.completion.chunk" if is_chat else "text_completion"
    extras = {name: value for name, value in body.items() if name not in head and name not in ("choices", "usage")}
    usage = body.get("usage")
    silent = {"usage": None} if include_usage and usage is not None else {}
    chunks = []
    for choice in body["choices"]:
        for part in _parts(choice, is_chat=is_chat):
            chunks.append(head | extras | {"choices": [part]} | silent)
            extras = {}
    if usage is not None:
        chunks.append(head | {"choices": [], "usage": usage})
    return chunks


def _parts(choice: Json, *, is_chat: bool) -> Iterator[Json]:
    """Yields a choice in the order of a stream: its opening, its text, its end."""
    index = choice["index"]
    known = ("index", "message" if is_chat else "text", "finish_reason", "logprobs")
    extras = {name: value for name, value in choice.items() if name not in known}
    quiet = {"logprobs": None} if "logprobs" in choice else {}
    said = list(_deltas(choice["message"]) if is_chat else _texts(choice["text"]))
    said.append({"delta": {}} if is_chat else {"text": ""})
    told = next((place for place, part in enumerate(said) if _has_tokens(part)), len(said) - 1)
    for place, part in enumerate(said):
        logprobs = {"logprobs": choice["logprobs"]} if quiet and place == told else quiet
        finish = choice.get("finish_reason") if place == len(said) - 1 else None
        yield {"index": index, **part, **logprobs, **(extras if place == 0 else {}), "finish_reason": finish}


def _has_tokens(part: Json) -> bool:
    """Returns whether the part has some of the text whose tokens `logprobs` lists."""
    delta = part.get("delta", part)
    return any(delta.get(name) for name in ("content", "refusal", "text"))


def _texts(text: str) -> Iterator[Json]:
    return ({"text": piece} for piece in ["", *_pieces(text)])


def _deltas(message: Json) -> Iterator[Json]:
    """Yields a message as its deltas: first all fields with empty texts, then the texts and lists, piece by piece."""
    texts = [name for name in (*_REASONING, "content", "refusal") if isinstance(message.get(name), str)]
    later = [name for name in ("audio", "function_call", "tool_calls", "annotations") if message.get(name)]
    opening = {name: value for name, value in message.items() if name not in later}
    yield {"delta": opening | dict.fromkeys(texts, "")}
    for name in texts:
        for piece in _pieces(message[name]):
            yield {"delta": {name: piece}}
    for name in later:
        for delta in _LATER[name](message[name]):
            yield {"delta": {name: delta}}


def _audio_deltas(audio: Any) -> Iterator[Any]:
    yield from _grown(audio, ("transcript", "data"))


def _function_deltas(function: Any) -> Iterator[Any]:
    yield from _grown(function, ("arguments",))


def _tool_deltas(calls: Any) -> Iterator[Any]:
    for index, call in enumerate(calls):
        kind = "function" if "function" in call else "custom"
        body, text = call.get(kind), "arguments" if kind == "function" else "input"
        deltas = _grown(body, (text,)) if body is not None else iter(())
        yield [{"index": index, **call, **dict(zip((kind,), deltas, strict=False))}]
        for delta in deltas:
            yield [{"index": index, kind: delta}]


def _annotation_deltas(annotations: Any) -> Iterator[Any]:
    yield annotations


_LATER: Mapping[str, Callable[[Any], Iterator[Any]]] = {
    "audio": _audio_deltas,
    "function_call": _function_deltas,
    "tool_calls": _tool_deltas,
    "annotations": _annotation_deltas,
}


def _grown(value: Any, texts: tuple[str, ...]) -> Iterator[Any]:
    """Yields an object with these texts empty, then their pieces."""
    if not isinstance(value, dict):
        yield value
        return
    cut = [name for name in texts if isinstance(value.get(name), str)]
    yield value | dict.fromkeys(cut, "")
    for name in cut:
        for piece in _pieces(value[name]):
            yield {name: piece}


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + PIECE_LENGTH] for at in range(0, len(text), PIECE_LENGTH))
