"""An answer of generateContent as a chat completion: each candidate is a choice, its parts become one message.

A part is told the same way whether the answer is streamed or whole: as what it adds to the message. Source: the Gemini API's
reference, GenerateContentResponse.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from gateway.core.openai.sse.first_event import GIVEN_UP
from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, count_in, object_of, objects, text_of
from gateway.dialects.gemini.out_answer.echoes import KeptTurn
from gateway.dialects.gemini.out_answer.grounding import Words
from gateway.dialects.gemini.out_answer.signatures import told_of_call, told_signature, told_thought

FINISH: Final = {
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "ESCALATION": "content_filter",
    "PUP_LIMITED_DISABLED": "content_filter",
    "LANGUAGE": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
    "IMAGE_OTHER": "content_filter",
    "NO_IMAGE": "content_filter",
}
"""The finish reason of a chat completion, by why a candidate ended; all others but GIVEN_UP are a `stop`."""
_NOT_SAID: Final = ("", "FINISH_REASON_UNSPECIFIED")
_TIERS: Final = {"standard": "default", "flex": "flex", "priority": "priority"}
_MOST_QUOTED: Final = 200
_CALLS_A_CANDIDATE: Final = 100


class Candidate:
    """What has been told of one candidate."""

    __slots__ = (
        "_details",
        "_issuer",
        "_pictures",
        "_sent",
        "calls",
        "end",
        "index",
        "is_thinking",
        "kept",
        "message",
        "words",
    )

    def __init__(self, sent: ConvertedRequest, index: int) -> None:
        self._sent, self._issuer = sent, sent.issuer
        self.index = index
        self.calls = self._details = self._pictures = 0
        self.kept = KeptTurn() if sent.memory is not None and sent.body.get("tools") else None
        """What is to be remembered of it; None: nothing."""
        self.words = Words()
        self.is_thinking = False
        """The last thing told was a thought, which a next one goes on with."""
        self.end = ""
        """Why it ended, in the provider's word; empty: it has not. Some models say it more than once, the last word holds."""
        self.message = ""
        """What the provider says of that."""

    def hear_end(self, candidate: Json) -> None:
        """Takes note of why a candidate ended. Raises MalformedAnswer where that means that it has failed."""
        reason = text_of(candidate.get("finishReason"))
        if reason in _NOT_SAID:
            return
        self.message = text_of(candidate.get("finishMessage"))
        if reason in GIVEN_UP:
            raise MalformedAnswer(
                f"the provider gave up on the answer ({reason}) {self.message[:_MOST_QUOTED]}".rstrip()
            )
        self.end = reason

    @property
    def finish(self) -> str:
        """Why it ended. A limit or a filter is never taken for calls (NousResearch/hermes-agent#43478)."""
        found = FINISH.get(self.end, "stop")
        return "tool_calls" if found == "stop" and self.calls else found

    @property
    def refusal(self) -> str | None:
        """What is said of an answer that was filtered."""
        return (self.message or None) if self.finish == "content_filter" else None

    @property
    def thought(self) -> int:
        """The place of the thought that is being told, among the details."""
        return self._details - 1

    def delta(self, part: Json) -> Json:
        """Returns what a part adds to the message. Raises MalformedAnswer."""
        made = self._delta(part)
        if self.kept is not None:
            self.kept.take(made)
        return made

    def remember(self) -> None:
        """Remembers what the turn was signed with, now that it has come to its end."""
        if self.kept is not None and self._sent.memory is not None:
            self.kept.keep(self._sent.memory)

    def _delta(self, part: Json) -> Json:
        signature = text_of(part.get("thoughtSignature"))
        if isinstance(call := part.get("functionCall"), dict):
            return {"tool_calls": [self._call(call, signature)]}
        text = part.get("text")
        made: Json = {}
        if isinstance(text, str) and text:
            if part.get("thought") is True:
                made |= {"reasoning_content": text, "reasoning_details": [self._thought(text)]}
            else:
                self.is_thinking = False
                self.words.say(text)
                made["content"] = text
        elif isinstance(data := part.get("inlineData"), dict) and part.get("thought") is not True:
            made |= self._picture(data)
        if signature:
            detail = told_signature(signature, self._issuer, self._next_detail())
            made.setdefault("reasoning_details", []).append(detail)
        return made

    def _thought(self, text: str) -> Json:
        is_first = not self.is_thinking
        index = self._next_detail() if is_first else self.thought
        self.is_thinking = True
        return told_thought(text, self._issuer, index, is_first=is_first)

    def _next_detail(self) -> int:
        self._details += 1
        self.is_thinking = False
        return self._details - 1

    def _call(self, call: Json, signature: str) -> Json:
        name, given = call.get("name"), call.get("args")
        if not isinstance(name, str) or not name or not isinstance(given, dict | None):
            raise MalformedAnswer("a call of a tool has no name, or no object as its arguments")
        self.is_thinking = False
        index = self.calls
        self.calls += 1
        id = text_of(call.get("id")) or f"call_{self._sent.id}{self.index * _CALLS_A_CANDIDATE + index:02}"
        made: Json = {
            "index": index,
            "id": id,
            "type": "function",
            "function": {"name": self._sent.names.get(name, name), "arguments": _arguments(given)},
        }
        if signature:
            made["extra_content"] = told_of_call(signature, self._issuer)
        return made

    def _picture(self, data: Json) -> Json:
        """Tells a picture as OpenRouter does; chat completions of OpenAI's have none in a message."""
        kind, content = text_of(data.get("mimeType")), text_of(data.get("data"))
        if not kind.startswith("image/") or not content:
            return {}
        self.is_thinking = False
        self._pictures += 1
        url = {"url": f"data:{kind};base64,{content}"}
        return {"images": [{"index": self._pictures - 1, "type": "image_url", "image_url": url}]}


def _arguments(given: Json | None) -> str:
    try:
        return orjson.dumps(given).decode() if given else "{}"
    except orjson.JSONEncodeError as error:
        raise MalformedAnswer("the arguments of a call are nested too deeply") from error


def chat_of_generated(sent: ConvertedRequest, body: Json) -> Json:
    """Returns the chat completion. Raises MalformedAnswer."""
    choices = [_choice(sent, place, one) for place, one in enumerate(objects(body.get("candidates")))]
    if not choices:
        if (reason := blocked(body)) is None:
            raise MalformedAnswer("the answer has no candidates")
        message = {"role": "assistant", "content": "", "refusal": reason}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "content_filter"}]
    usage = object_of(body.get("usageMetadata"))
    made = {**head(sent, body, "chat.completion"), "choices": choices}
    return made | ({"usage": usage_of_chat(usage)} if usage else {})


def _choice(sent: ConvertedRequest, place: int, said: Json) -> Json:
    candidate = Candidate(sent, index_of(said, place))
    message: Json = {"role": "assistant", "content": "", "refusal": None}
    message |= _merged(map(candidate.delta, objects(object_of(said.get("content")).get("parts"))))
    if "groundingMetadata" in said and (cited := candidate.words.cited(said["groundingMetadata"])):
        message["annotations"] = cited
    candidate.hear_end(said)
    if not candidate.end and len(message) == 3 and not message["content"]:
        raise MalformedAnswer("the answer is empty, and has no end")
    candidate.remember()
    for call in message.get("tool_calls", ()):
        del call["index"]
    if candidate.calls and not message["content"]:
        message["content"] = None
    message["refusal"] = candidate.refusal
    return {
        "index": candidate.index,
        "message": message,
        "logprobs": logprobs_of(said),
        "finish_reason": candidate.finish,
    }


def _merged(deltas: Iterable[Json]) -> Json:
    """Returns all that these add to a message."""
    lists: Json = {}
    words: dict[str, list[str]] = {}
    thoughts: dict[int, list[str]] = {}
    """The pieces of details of reasoning that go on, by their places."""
    for delta in deltas:
        for name, value in delta.items():
            if isinstance(value, str):
                words.setdefault(name, []).append(value)
                continue
            held = lists.setdefault(name, [])
            for one in value:
                if name == "reasoning_details" and held and held[-1]["index"] == one["index"]:
                    thoughts.setdefault(len(held) - 1, [held[-1]["text"]]).append(one["text"])
                else:
                    held.append(one)
    for place, pieces in thoughts.items():
        lists["reasoning_details"][place]["text"] = "".join(pieces)
    return {name: "".join(pieces) for name, pieces in words.items()} | lists


def head(sent: ConvertedRequest, body: Json, kind: str) -> Json:
    """Returns what every piece of a chat completion repeats; the tier only where one was asked for, as OpenAI does."""
    made = {
        "id": text_of(body.get("responseId")) or f"chatcmpl-{sent.id}",
        "object": kind,
        "created": int(sent.now),
        "model": text_of(body.get("modelVersion")) or sent.asked.get("model"),
    }
    tier = _TIERS.get(text_of(object_of(body.get("usageMetadata")).get("serviceTier")).lower())
    return made | ({"service_tier": tier} if tier and sent.asked.get("service_tier") else {})


def index_of(candidate: Json, place: int) -> int:
    """Returns a candidate's number; the provider leaves a 0 out at times."""
    index = candidate.get("index")
    return index if type(index) is int and index >= 0 else place


def blocked(body: Json) -> str | None:
    """Returns why a prompt was not answered; None: it was."""
    feedback = object_of(body.get("promptFeedback"))
    reason = text_of(feedback.get("blockReason"))
    told = text_of(feedback.get("blockReasonMessage"))
    return (f"{reason}: {told}" if told else reason) if reason else None


def logprobs_of(candidate: Json) -> Json | None:
    """Returns the probabilities of a candidate's tokens; None: it tells none."""
    result = candidate.get("logprobsResult")
    if not isinstance(result, dict):
        return None
    tops = objects(result.get("topCandidates"))
    content = []
    for number, chosen in enumerate(objects(result.get("chosenCandidates"))):
        others = objects(tops[number].get("candidates")) if number < len(tops) else []
        content.append(_token(chosen) | {"top_logprobs": [_token(one) for one in others]})
    return {"content": content, "refusal": None} if content else None


def _token(said: Json) -> Json:
    token = text_of(said.get("token"))
    # Surrogates that stand for half a character have no bytes.
    return {"token": token, "logprob": said.get("logProbability"), "bytes": list(token.encode(errors="replace"))}


def usage_of_chat(usage: Json) -> Json:
    """Returns the counts of an answer in the words of chat completions, whose output includes what was thought."""
    came = count_in(usage, "promptTokenCount") + count_in(usage, "toolUsePromptTokenCount")
    thought = count_in(usage, "thoughtsTokenCount")
    went = max(count_in(usage, "totalTokenCount") - came, count_in(usage, "candidatesTokenCount") + thought)
    return {
        "prompt_tokens": came,
        "completion_tokens": went,
        "total_tokens": came + went,
        "prompt_tokens_details": {
            "cached_tokens": count_in(usage, "cachedContentTokenCount"),
            "audio_tokens": _of_audio(usage.get("promptTokensDetails")),
        },
        "completion_tokens_details": {
            "reasoning_tokens": thought,
            "audio_tokens": _of_audio(usage.get("candidatesTokensDetails")),
        },
    }


def _of_audio(details: Any) -> int:
    return sum(count_in(one, "tokenCount") for one in objects(details) if one.get("modality") == "AUDIO")
