"""Converts a streamed chat or text completion into a whole one, and the other way round.

In this order: how chunks are merged (`add`, `agree`), chunks as a whole answer, a whole answer as chunks. A delta adds: the
texts that are known to come in pieces grow, lists whose entries have an `index` grow entry by entry, and everything else
comes once. What stands around deltas is repeated: it has to be the same each time, or more of the same. A whole answer is
cut into the chunks that put together make it again. Invariants: `chunks_of` and `completion_of` are the inverse of each
other, or one of them has given up; what could be put together in two ways raises `Ambiguous`; nothing is guessed, nothing
is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gateway.core.openai.sse import failed_reason
from gateway.core.openai.transcript import usage_in

# --- How chunks are merged ---


_TEXTS = frozenset(
    (
        "arguments",
        "content",
        "data",
        "input",
        "reasoning",
        "reasoning_content",
        "refusal",
        "summary",
        "text",
        "thinking",
        "transcript",
    )
)
"""The strings of a delta that come in pieces, at any depth."""
_NAMES = frozenset(("format", "id", "name", "role", "type"))
"""The strings of a delta that some providers repeat; they are never cut."""
_GROWING = frozenset(("annotations",))
"""The lists of a delta whose entries come one after another, without an index."""


class Ambiguous(ValueError):
    """Two pieces of an answer that can be put together in more than one way, or in none."""


class Text:
    """A text that grows; it becomes a string at the end, so that pieces are copied only once."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def __str__(self) -> str:
        return "".join(self.pieces)


def plain(value: object) -> str:
    """For `orjson.dumps(default=…)`: returns the string of a text."""
    if isinstance(value, Text):
        return str(value)
    raise TypeError(type(value).__name__)


def add(known: dict[str, Any], news: dict[str, Any]) -> None:
    """Adds a delta to those before it. Raises Ambiguous."""
    for name, value in news.items():
        known[name] = _added(name, known.get(name), value)


def agree(known: dict[str, Any], news: dict[str, Any]) -> None:
    """Merges a repeated field. Raises Ambiguous where it is not the same as before."""
    for name, value in news.items():
        known[name] = _agreed(known[name], value) if name in known else value


def add_text(known: Text | None, piece: str) -> Text:
    """Returns the text with one more piece."""
    text = known or Text()
    text.pieces.append(piece)
    return text


def index_of(entry: dict[str, Any]) -> int:
    """Returns the index of an entry. Raises Ambiguous when it has none."""
    index = entry.get("index")
    if type(index) is not int or index < 0:
        raise Ambiguous("an entry without an index")
    return index


def is_indexed(entries: list[Any]) -> bool:
    """Returns whether every entry has an index."""
    return bool(entries) and all(isinstance(entry, dict) and type(entry.get("index")) is int for entry in entries)


def _added(name: str, old: Any, new: Any) -> Any:
    if new is None:
        return old
    if isinstance(new, str):
        return _added_string(name, old, new)
    if isinstance(new, dict):
        known = {} if old is None else old
        if not isinstance(known, dict):
            raise Ambiguous(name)
        add(known, new)
        return known
    if isinstance(new, list):
        return _added_list(name, old, new)
    if old is not None and old != new:
        raise Ambiguous(name)
    return new


def _added_string(name: str, old: Any, new: str) -> Any:
    if name in _TEXTS:
        if old is not None and not isinstance(old, Text):
            raise Ambiguous(name)
        if name == "data" and new and old is not None and str(old).endswith("="):
            raise Ambiguous("base64 that had ended")
        return add_text(old, new)
    if name == "id" and new == "null":
        return old  # as Mistral writes it in all pieces of a tool call but the first
    if not old:
        return new
    if new and (name not in _NAMES or old != new):
        raise Ambiguous(name)  # a name that is sent twice, or a text in pieces: the stream does not tell which
    return old


def _added_list(name: str, old: Any, new: list[Any]) -> Any:
    if old is not None and not isinstance(old, list):
        raise Ambiguous(name)
    if name not in _GROWING and is_indexed(new):
        return _added_entries(old or [], new)
    if name == "tool_calls" and new:
        raise Ambiguous("tool calls without an index")
    if not old or not new:
        return old or new
    if name not in _GROWING or any(entry in old for entry in new):
        raise Ambiguous(name)
    return old + new


def _added_entries(old: list[Any], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if old and not is_indexed(old):
        raise Ambiguous("entries with and without an index")
    for entry in new:
        index = index_of(entry)
        known = next((known for known in reversed(old) if known["index"] == index), None)
        if known is None:
            known = {"index": index}
            old.append(known)
        add(known, entry)
    old.sort(key=index_of)
    return old


def _agreed(old: Any, new: Any) -> Any:
    if old == new or new in (None, "") or (new == [] and isinstance(old, list)):
        return old
    if old in (None, ""):
        return new
    if isinstance(old, dict) and isinstance(new, dict):
        agree(old, new)
        return old
    if isinstance(old, list) and isinstance(new, list) and new[: len(old)] == old:
        return new  # some repeat a list with every event, as long as it has become
    raise Ambiguous("said twice, and not the same")


# --- Chunks as a whole answer ---


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
    whole["choices"] = [_closed(choices[index]) for index in sorted(choices)]
    usage = whole.pop("usage", None) or usage_in(whole)
    return whole | {"usage": usage} if usage is not None else whole


def _add_head(whole: Json, chunk: Json) -> None:
    for name, value in chunk.items():
        if name in _PADDING or (name in whole and whole[name] == value):
            continue
        if name not in whole or (name in _LAST and value is not None) or (name in _FIRST and not whole[name]):
            whole[name] = value
        elif name not in _LAST and name not in _FIRST:
            agree(whole, {name: value})


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
        content = _checked(choice, dict).get("message" if is_chat else "text")
        _checked(content, dict if is_chat else str)
        choice.setdefault("index", place)
        _closed(choice)
    choices.sort(key=index_of)
    rest = {name: value for name, value in body.items() if (name, value) != ("usage", None)}
    return rest | {"object": "chat.completion" if is_chat else "text_completion"}


# --- A whole answer as chunks ---


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
    parts = list(_deltas(choice["message"]) if is_chat else _texts(choice["text"]))
    parts.append({"delta": {}} if is_chat else {"text": ""})
    counted = next((place for place, part in enumerate(parts) if _has_tokens(part)), len(parts) - 1)
    for place, part in enumerate(parts):
        logprobs = {"logprobs": choice["logprobs"]} if quiet and place == counted else quiet
        finish = choice.get("finish_reason") if place == len(parts) - 1 else None
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
