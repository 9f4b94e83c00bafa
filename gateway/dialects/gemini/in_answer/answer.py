"""A chat completion as an answer of generateContent: each choice is a candidate, its message becomes parts.

Thoughts in words are told where the caller wants them (`includeThoughts`); what proves whose they are rides in any case.
"""

from __future__ import annotations

from typing import Final

from gateway.core.openai.json_edit.json_text import is_too_deep
from gateway.core.openai.sse.first_event import failed_finish_message, failed_reason
from gateway.core.openai.sse.sse import json_object
from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, count_in, object_of, objects, text_of
from gateway.dialects.gemini.in_answer.marks import FOREIGN, marked
from gateway.dialects.gemini.in_answer.names import camel, inner
from gateway.dialects.gemini.out_answer.signatures import FORMATS
from gateway.dialects.openai.responses_answer.responses_answer import argument_in, named_in, pieces_in, words_in
from gateway.dialects.schema_tools.media import data_url

FINISH: Final = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
"""Why a candidate ended, by the finish reason of a chat completion; all others are a STOP, calls of tools too."""
_GEMINI: Final = FORMATS["gemini"]


def generated(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the answer. Raises MalformedAnswer where there is none, or a call in it makes no sense."""
    if (reason := failed_reason(body)) is not None:
        raise MalformedAnswer(failed_finish_message(reason))
    choices = objects(body.get("choices"))
    if not choices:
        raise MalformedAnswer("the answer has no choices")
    usage = usage_of(body)
    made: Json = {"candidates": [_candidate(sent, place, one) for place, one in enumerate(choices)]}
    return made | ({"usageMetadata": usage} if usage else {}) | head(sent, body)


def head(sent: ConvertedRequest, body: Json) -> Json:
    """Returns what every piece of an answer repeats."""
    model = text_of(body.get("model")) or text_of(sent.asked.get("model"))
    return {"modelVersion": model, "responseId": sent.id}


def shows_thoughts(sent: ConvertedRequest) -> bool:
    """Returns whether the caller wants to read what the model thinks."""
    thinking = inner(inner(camel(sent.asked), "generationConfig"), "thinkingConfig")
    return thinking.get("includeThoughts") is True


def usage_of(body: Json) -> Json | None:
    """Returns the usage of a chat completion as theirs, whose candidates are without thoughts; None: there is none."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    read, said = count_in(usage, "prompt_tokens"), count_in(usage, "completion_tokens")
    thought = min(said, count_in(object_of(usage.get("completion_tokens_details")), "reasoning_tokens"))
    cached = count_in(object_of(usage.get("prompt_tokens_details")), "cached_tokens")
    made = {"promptTokenCount": read, "candidatesTokenCount": said - thought, "totalTokenCount": read + said}
    return made | {
        name: value for name, value in (("thoughtsTokenCount", thought), ("cachedContentTokenCount", cached)) if value
    }


def parts_of_details(details: list[Json], *, shows: bool) -> list[Json]:
    """Returns the parts that thoughts become that somebody has signed."""
    made: list[Json] = []
    for detail in details:
        own = text_of(detail.get("format")).startswith(_GEMINI)
        words = text_of(detail.get("text")) or text_of(detail.get("summary"))
        proof = text_of(detail.get("data")) or text_of(detail.get("signature"))
        if own and proof:
            made.append({"text": "", "thoughtSignature": proof})
        elif proof and (mark := marked({"detail": _held(detail, shows=shows and bool(words))})) is not None:
            made.append({"text": words if shows else "", "thought": True, "thoughtSignature": mark})
        elif words and shows:
            made.append({"text": words, "thought": True})
    return made


def part_of_call(sent: ConvertedRequest, place: int, name: str, text: str, call: Json) -> Json:
    """Returns the part that a call becomes. Raises MalformedAnswer where its arguments are no object."""
    args = json_object(text.encode()) if text.strip() else {}
    if args is None or not name or is_too_deep(text.encode()):
        raise MalformedAnswer(f"the arguments of the call of '{name}' are not a JSON object")
    id = text_of(call.get("id")) or f"call_{sent.id}{place:02}"
    made: Json = {"functionCall": {"name": sent.names.get(name, name), "args": args, "id": id}}
    extra = object_of(call.get("extra_content"))
    google = object_of(extra.get("google"))
    signature = text_of(google.get("thought_signature"))
    if signature and "issuer" not in google:
        made["thoughtSignature"] = signature
    elif extra and (mark := marked({"extra_content": extra})) is not None:
        made["thoughtSignature"] = mark
    elif not place:
        made["thoughtSignature"] = FOREIGN
    return made


def end_of(choice: Json, *, refusal: str = "") -> Json:
    """Returns why a candidate ended."""
    reason = FINISH.get(text_of(choice.get("finish_reason"))) or ("SAFETY" if refusal else "STOP")
    return {"finishReason": reason} | ({"finishMessage": refusal} if refusal else {})


def is_cut(choice: Json) -> bool:
    """Returns whether the answer ended before its model had said all."""
    return choice.get("finish_reason") in FINISH


def logprobs_of(choice: Json) -> Json:
    """Returns the probabilities of a choice's tokens, if it tells any."""
    tokens = objects(object_of(choice.get("logprobs")).get("content"))
    if not tokens:
        return {}
    chosen = [_token(one) for one in tokens]
    top = [{"candidates": [_token(other) for other in objects(one.get("top_logprobs"))]} for one in tokens]
    told: Json = {"chosenCandidates": chosen} | (
        {"topCandidates": top} if any(one["candidates"] for one in top) else {}
    )
    return {"logprobsResult": told}


def pictures_of(said: Json) -> list[Json]:
    """Returns the parts of pictures that the model has made."""
    made: list[Json] = []
    for image in objects(said.get("images")):
        media = data_url(text_of(object_of(image.get("image_url")).get("url")))
        if media is not None:
            made.append({"inlineData": {"mimeType": media.type, "data": media.data}})
    return made


def citations_of(said: Json) -> Json:
    """Returns the places that an answer cites, if it does."""
    cited = [object_of(one.get("url_citation")) for one in objects(said.get("annotations"))]
    sources = [
        {name: one[ours] for name, ours in _CITED if one.get(ours) is not None}
        for one in cited
        if text_of(one.get("url"))
    ]
    return {"citationMetadata": {"citationSources": sources}} if sources else {}


_CITED: Final = (("uri", "url"), ("title", "title"), ("startIndex", "start_index"), ("endIndex", "end_index"))


def _candidate(sent: ConvertedRequest, place: int, choice: Json) -> Json:
    said = choice.get("message")
    if not isinstance(said, dict):
        raise MalformedAnswer("the answer has no message")
    shows = shows_thoughts(sent)
    thought, text = words_in(said)
    details = objects(said.get("reasoning_details"))
    parts = parts_of_details(details, shows=shows)
    if thought and shows and not any(part.get("thought") and part["text"] for part in parts):
        parts.insert(0, {"text": thought, "thought": True})
    refusal = text_of(said.get("refusal"))
    parts += [{"text": words} for words in (text, refusal) if words] + pictures_of(said)
    for number, call in enumerate(pieces_in(said)):
        named = named_in(call)
        name, text = text_of(named.get("name")), argument_in(named)
        if not (is_cut(choice) and json_object(text.encode()) is None):  # what was cut off is no call
            parts.append(part_of_call(sent, number, name, text, call))
    index = choice.get("index")
    return {
        "content": {"role": "model", "parts": parts},
        **end_of(choice, refusal=refusal),
        "index": index if type(index) is int else place,
        **citations_of(said),
        **logprobs_of(choice),
    }


def _held(detail: Json, *, shows: bool) -> Json:
    """Returns what a mark holds of a detail: its words too, where they do not stand beside it."""
    left_out = ("text", "summary", "index") if shows else ("index",)
    return {name: value for name, value in detail.items() if name not in left_out}


def _token(one: Json) -> Json:
    return {"token": text_of(one.get("token")), "logProbability": one.get("logprob")}
