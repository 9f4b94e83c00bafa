"""Each field of an answer that a target's SDK knows changes what its caller is told, or stands here with the reason."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from typing import NamedTuple

import orjson
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from gateway.dialects.base import MalformedAnswer, ServerFacts
from gateway.dialects.registry import pair_of
from tests.dialects.sdk.callers import forms_of
from tests.dialects.sdk.forms import Forms, Json, recorded_forms
from tests.dialects.sdk.streamed import STREAMED
from tests.dialects.sdk.walk import Given, Walk


class Way(NamedTuple):
    """Who asks in which language, what the target speaks, and what it may answer."""

    asked: str
    spoken: str
    forms: Callable[[], Forms]
    given: Given
    listed: dict[str, str]
    """Places that the caller is told nothing of, with the reason; what is inside of them, too."""


CHAT: Json = {"model": "m", "messages": [{"role": "user", "content": "x"}], "service_tier": "auto",
              "logprobs": True, "tools": [{"type": "function", "function": {"name": "f"}}]}  # fmt: skip
ASKED: dict[str, Json] = {
    "chat": CHAT,
    "responses": {"model": "m", "input": "x"},
    "messages": {"model": "m", "max_tokens": 9, "messages": CHAT["messages"]},
    "generate": {
        "model": "m",
        "contents": [{"role": "user", "parts": [{"text": "x"}]}],
        "generationConfig": {"responseLogprobs": True, "thinkingConfig": {"includeThoughts": True}},
    },
}


def of_claude(body: Json) -> Json:
    return body | ({"stop_reason": "refusal"} if body.get("stop_details") else {})


def of_gemini(body: Json) -> Json:
    if body.get("promptFeedback"):
        return {**body, "candidates": []}
    wordless = {"thought", "thoughtSignature", "mediaProcessing", "partMetadata"}
    for candidate in body["candidates"]:
        parts = candidate["content"]["parts"]
        parts[:] = [part | {"text": "x"} if part.keys() <= wordless else part for part in parts]
    return body


def of_responses(body: Json) -> Json:
    ended = {"error": "failed", "incomplete_details": "incomplete"}
    return body | {"status": next((status for name, status in ended.items() if body.get(name)), "completed")}


_TOKEN: Json = {"token": "x", "logProbability": -1.0}
_WEB: Json = {"location": {"web": {"url": "u"}}}
OF_CLAUDE = Given(
    {
        "BetaMessage": {"model": "m", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"},
        "BetaUsage": {"input_tokens": 9, "output_tokens": 9, "cache_creation_input_tokens": 9},
    },
    {},
    of_claude,
)
OF_GEMINI = Given(
    {
        "GenerateContentResponse": {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}]},
        "Candidate": {"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"},
        "Content": {"parts": [{"text": "x"}]},
        "FunctionCall": {"name": "f", "args": {}},
        "Blob": {"mimeType": "image/png", "data": "x"},
        "LogprobsResult": {"chosenCandidates": [_TOKEN]},
        "LogprobsResultTopCandidates": {"candidates": [_TOKEN]},
        "GroundingMetadata": {
            "groundingChunks": [{"web": {"uri": "u", "title": "t"}}],
            "groundingSupports": [{"groundingChunkIndices": [0], "segment": {"startIndex": 0, "endIndex": 1}}],
        },
        "GroundingChunkWeb": {"uri": "u"},
        "Segment": {"startIndex": 0, "endIndex": 1},
        "GroundingChunk": {"web": {"uri": "u", "title": "t"}},
        "GroundingSupport": {"groundingChunkIndices": [0], "segment": {"startIndex": 0, "endIndex": 1}},
        "GenerateContentResponsePromptFeedback": {"blockReason": "SAFETY"},
        "GenerateContentResponseUsageMetadata": {
            "promptTokenCount": 40,
            "candidatesTokenCount": 9,
            "cachedContentTokenCount": 9,
            "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 8}],
        },
        "ModalityTokenCount": {"modality": "AUDIO", "tokenCount": 1},
    },
    {"Blob.mimeType": "image/webp", "totalTokenCount": 99},
    of_gemini,
)
OF_BEDROCK = Given(
    {
        "ConverseResponse": {
            "output": {"message": {"role": "assistant", "content": [{"text": "x"}]}},
            "stopReason": "end_turn",
        },
        "CitationsContentBlock": {"content": [{"text": "x"}], "citations": [_WEB]},
        "Citation": _WEB,
        "TokenUsage": {"inputTokens": 9, "outputTokens": 9, "totalTokens": 18, "cacheWriteInputTokens": 9},
        "CacheDetail": {"ttl": "1h", "inputTokens": 1},
    },
    {},
)
OF_CHAT = Given(
    {
        "ChatCompletion": {
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}],
        },
        "Choice": {"index": 0, "message": {"role": "assistant", "content": "x"}},
        "ChatCompletionMessage": {"content": "x"},
        "FunctionCall": {"name": "f", "arguments": "{}"},
        "Function": {"name": "f", "arguments": "{}"},
        "Custom": {"name": "f", "input": "{}"},
    },
    {"arguments": '{"told":1}'},
)
OF_RESPONSES = Given(
    {
        "Response": {"model": "m", "created_at": 7, "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]}
        ]},
        "ResponseUsage": {"input_tokens": 9, "output_tokens": 9, "total_tokens": 0},
    },
    {"created_at": 9, "status": "completed"},
    of_responses,
)  # fmt: skip
_OWN_STATE = "the gateway keeps nothing at the provider"
_ECHO = "it repeats what was asked"
_AWAY = "it comes of tools that run at the provider, which its callers alone can ask for"
_IDS = "each language has ids of its own"
_FINER = "finer counts of what is told as a whole"
FROM_CLAUDE = {
    "container?*": _OWN_STATE,
    "content?text?.citations?char_location?*": "chat completions cite pages",
    "content?text?.citations?page_location?*": "chat completions cite pages",
    "content?text?.citations?content_block_location?*": "chat completions cite pages",
    "content?text?.citations?search_result_location?*": "chat completions cite pages",
    "content?text?.citations?web_search_result_location?.cited_text": "the place in the answer is told instead",
    "content?text?.citations?web_search_result_location?.encrypted_index": "it is of use to its provider alone",
    "content?tool_use?.caller?*": _AWAY,
    "content?tool_use?.toolset_name": _AWAY,
    "content?server_tool_use?*": _AWAY,
    "content?*_tool_result?*": _AWAY,
    "content?mcp_*": _AWAY,
    "content?container_upload?*": _AWAY,
    "content?compaction?*": "it was asked for in no chat completion",
    "content?fallback?*": "it was asked for in no chat completion",
    "context_management*": "it was asked for in no chat completion",
    "diagnostics?*": "it was asked for in no chat completion",
    "input_transformations?*": "it was asked for in no chat completion",
    "stop_details?refusal?.category=*": "its explanation is told",
    "stop_details?refusal?.fallback_*": "it was asked for in no chat completion",
    "stop_details?refusal?.recommended_model": "its explanation is told",
    "stop_reason=stop_sequence": "a chat completion stops in either case",
    "stop_reason=pause_turn": "a chat completion stops in either case",
    "stop_reason=compaction": "a chat completion stops in either case",
    "stop_sequence": "a chat completion does not say at which",
    "usage?*.fallback_credit?*": "it was asked for in no chat completion",
    "usage?*.inference_geo": "chat completions do not say where",
    "usage?*.cache_creation?*.ephemeral_5m_input_tokens=*": "it is the rest of what was written",
    "usage?*.iterations?*": _FINER,
    "usage?*.server_tool_use?*.web_fetch_requests=*": "fetching costs nothing but its tokens",
    "usage?*.speed=standard": "so it is without",
}
_PART = "candidates?Candidate?.content?Content?.parts?Part?"
_GROUNDED = "candidates?Candidate?.groundingMetadata?GroundingMetadata?"
FROM_GEMINI = {
    "sdkHttpResponse?*": "the SDK adds it",
    "automaticFunctionCallingHistory?*": "the SDK adds it",
    "parsed*": "the SDK adds it",
    f"{_PART}.mediaResolution?*": "it is said of what is sent",
    f"{_PART}.videoMetadata?*": "it is said of what is sent",
    f"{_PART}.mediaProcessing=*": "it is said of what is sent",
    f"{_PART}.documentMetadata?*": "it is said of what is sent",
    f"{_PART}.spreadsheetMetadata?*": "it is said of what is sent",
    f"{_PART}.audioMetadata?*": "it is said of what is sent",
    f"{_PART}.partMetadata=*": "it is said of what is sent",
    f"{_PART}.functionResponse?*": "it is said of what is sent",
    f"{_PART}.audioTranscription?*": "an answer with sound was not asked for",
    f"{_PART}.speechMetadata?*": "an answer with sound was not asked for",
    f"{_PART}.codeExecutionResult?*": _AWAY,
    f"{_PART}.executableCode?*": _AWAY,
    f"{_PART}.toolCall?*": _AWAY,
    f"{_PART}.toolResponse?*": _AWAY,
    f"{_PART}.fileData?*": "a model answers with what it has made",
    f"{_PART}.inlineData?Blob?.displayName": "pictures have no names in a message",
    f"{_PART}.functionCall?FunctionCall?.partialArgs?*": "calls in pieces were not asked for",
    f"{_PART}.functionCall?FunctionCall?.willContinue=*": "calls in pieces were not asked for",
    f"{_PART}.thought=False": "so it is without",
    "candidates?Candidate?.content?Content?.role": "it is the model's",
    "candidates?Candidate?.citationMetadata?*": "chat completions cite pages that were searched for",
    f"{_GROUNDED}.groundingChunks?*.web?*.domain": "its URL has it",
    f"{_GROUNDED}.groundingChunks?*.image?*": "chat completions cite pages",
    f"{_GROUNDED}.groundingChunks?*.maps?*": "chat completions cite pages",
    f"{_GROUNDED}.groundingChunks?*.retrievedContext?*": "chat completions cite pages",
    f"{_GROUNDED}.groundingSupports?*.confidenceScores=*": "chat completions do not say how sure it is",
    f"{_GROUNDED}.groundingSupports?*.renderedParts=*": "the place in the answer is told",
    f"{_GROUNDED}.groundingSupports?*.segment?*.partIndex=*": "the place in the answer is told",
    f"{_GROUNDED}.groundingSupports?*.segment?*.text": "the place in the answer is told",
    f"{_GROUNDED}.*Queries": "what was searched for is not cited",
    f"{_GROUNDED}.retrievalMetadata?*": "what was searched for is not cited",
    f"{_GROUNDED}.searchEntryPoint?*": "what was searched for is not cited",
    f"{_GROUNDED}.googleMapsWidgetContextToken": "chat completions cite pages",
    f"{_GROUNDED}.sourceFlaggingUris?*": "chat completions cite pages",
    "candidates?Candidate?.urlContextMetadata?*": _AWAY,
    "candidates?Candidate?.finishMessage": "it is told of what was filtered, and of what failed",
    "candidates?Candidate?.tokenCount=*": _FINER,
    "candidates?Candidate?.avgLogprobs=*": _FINER,
    "candidates?Candidate?.logprobsResult?*.logProbabilitySum=*": _FINER,
    "candidates?Candidate?.logprobsResult?*.tokenId=*": "chat completions tell tokens by their text",
    "candidates?Candidate?.safetyRatings?*": "what was filtered has its own finish reason",
    "promptFeedback?*.safetyRatings?*": "what was filtered has its own finish reason",
    "candidates?Candidate?.continuationToken": _OWN_STATE,
    "createTime=*": "the time at which the answer came is told",
    "modelStatus?*": "chat completions do not say how old a model is",
    "usageMetadata?*.trafficType=ON_DEMAND": "it is the usual way to pay",
}
_BLOCK = "output?ConverseOutput?.message?Message?.content?ContentBlock?"
_CITED = f"{_BLOCK}.citationsContent?*.citations?Citation?"
FROM_BEDROCK = {
    "output?ConverseOutput?.message?Message?.role=*": "it is the assistant's",
    f"{_BLOCK}.image?*": "a model answers with words",
    f"{_BLOCK}.document?*": "a model answers with words",
    f"{_BLOCK}.video?*": "a model answers with words",
    f"{_BLOCK}.audio?*": "a model answers with words",
    f"{_BLOCK}.toolResult?*": _AWAY,
    f"{_BLOCK}.searchResult?*": "it is said of what is sent",
    f"{_BLOCK}.guardContent?*": "it is said of what is sent",
    f"{_BLOCK}.cachePoint?*": "it is said of what is sent",
    f"{_BLOCK}.toolAddition?*": "it is said of what is sent",
    f"{_BLOCK}.toolRemoval?*": "it is said of what is sent",
    f"{_CITED}.source": "chat completions cite pages",
    f"{_CITED}.sourceContent?*": "the place in the answer is told instead",
    f"{_CITED}.location?*.web?*.domain": "its URL has it",
    f"{_CITED}.location?*.document*": "chat completions cite pages",
    f"{_CITED}.location?*.searchResultLocation?*": "chat completions cite pages",
    "stopReason=stop_sequence": "a chat completion stops in either case",
    "usage?TokenUsage?.totalTokens=*": "it is the sum of what is told",
    "metrics?*": "the gateway measures for itself",
    "additionalModelResponseFields=*": "none were asked for",
    "trace?*": "it was asked for in no chat completion",
    "performanceConfig?*": "it was asked for in no chat completion",
}
FROM_RESPONSES = {
    "id": _IDS,
    "output?*?.id": _IDS,
    "output?*?.status*": "the answer's own tells of it",
    "output?message?.phase=*": "chat completions have one message",
    "output?*_call?.async=*": _AWAY,
    "output?*_call?.caller?*": _AWAY,
    "output?*_call?.namespace": _AWAY,
    "output?*_search_call?*": _AWAY,
    "output?*_call_output?*": _AWAY,
    "output?tool_search_*": _AWAY,
    "output?computer_*": _AWAY,
    "output?program*": _AWAY,
    "output?additional_tools?*": _AWAY,
    "output?compaction?*": "it was asked for in no chat completion",
    "output?image_generation_call?*": _AWAY,
    "output?code_interpreter_call?*": _AWAY,
    "output?*shell_call?*": _AWAY,
    "output?apply_patch_call?*": _AWAY,
    "output?mcp_*": _AWAY,
    "error?*.misalignment?*": "its message tells of it",
    "error?*.param": "its message tells of it",
    "error?*.type": "its code tells of it",
    "access_programs?*": _ECHO,
    "background=*": _ECHO,
    "conversation?*": _ECHO,
    "image?*": _ECHO,
    "instructions*": _ECHO,
    "max_*": _ECHO,
    "metadata": _ECHO,
    "parallel_tool_calls=*": _ECHO,
    "previous_response_id": _ECHO,
    "prompt?*": _ECHO,
    "prompt_cache_*": _ECHO,
    "reasoning?*": _ECHO,
    "safety_identifier": _ECHO,
    "temperature=*": _ECHO,
    "text?*": _ECHO,
    "tool_choice*": _ECHO,
    "tools?*": _ECHO,
    "top_*": _ECHO,
    "truncation=*": _ECHO,
    "user": _ECHO,
    "stream=*": _ECHO,
    "completed_at=*": "when it was begun is told",
    "input_transformations?*": "it was asked for in no chat completion",
    "moderation?*": "it was asked for in no chat completion",
    "tool_usage?*": _AWAY,
    "usage?*.cache_write_tokens_details?*": _FINER,
}
_FROM_CHAT = {
    "id": _IDS,
    "choices?Choice?.finish_reason=tool_calls": "the calls tell of it",
    "choices?Choice?.finish_reason=function_call": "the call tells of it",
    "choices?Choice?.message?assistant?.audio?*": "sound was not asked for",
    "metadata": _ECHO,
    "moderation?*": "it was not asked for",
    "stream=*": _ECHO,
    "system_fingerprint": "there is no word for it",
    "usage?*.*_prediction_tokens=*": "nothing could be predicted",
    "usage?*.text_tokens=*": _FINER,
}
FOR_RESPONSES = _FROM_CHAT | {
    "choices?Choice?.logprobs?*.refusal?*": "refusals have none there",
    "service_tier=default": "so it is without",
}
FOR_MESSAGES = _FROM_CHAT | {
    "choices?Choice?.logprobs?*": "Messages do not tell how probable words are, and cannot ask",
    "choices?Choice?.message?assistant?.annotations?*": "Messages cite by what Anthropic's own search has encrypted",
    "created=*": "Messages do not say when",
}
FOR_GENERATE = _FROM_CHAT | {
    "choices?Choice?.logprobs?*.bytes=*": "Gemini tells tokens by their text",
    "choices?Choice?.logprobs?*.refusal?*": "refusals have none there",
    "created=*": "the Gemini API does not say when",
    "service_tier=*": "Google's SDK knows no field for it",
}
WAYS = {
    "Claude": Way("chat", "messages", lambda: recorded_forms("messages", "answer"), OF_CLAUDE, FROM_CLAUDE),
    "Gemini": Way("chat", "generate", lambda: recorded_forms("generate", "answer"), OF_GEMINI, FROM_GEMINI),
    "Bedrock": Way("chat", "converse", lambda: recorded_forms("converse", "answer"), OF_BEDROCK, FROM_BEDROCK),
    "OpenAI by Responses": Way("chat", "responses", lambda: forms_of(Response), OF_RESPONSES, FROM_RESPONSES),
    "chat completions, for Responses": Way(
        "responses", "chat", lambda: forms_of(ChatCompletion), OF_CHAT, FOR_RESPONSES
    ),
    "chat completions, for generateContent": Way(
        "generate", "chat", lambda: forms_of(ChatCompletion), OF_CHAT, FOR_GENERATE
    ),
    "chat completions, for Messages": Way("messages", "chat", lambda: forms_of(ChatCompletion), OF_CHAT, FOR_MESSAGES),
}


class Told:
    """Looks at what a caller is told, whole and streamed; a `walk.Judge`."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._translator = pair_of(way.asked, way.spoken).translator
        facts = ServerFacts(issuer="x")
        self._sent = self._translator.request(ASKED[way.asked], facts, 0.0, lambda: "id")
        asked = ASKED[way.asked] | {"stream": True, "stream_options": {"include_usage": True}}
        self._sent_for_stream = self._translator.request(asked, facts, 0.0, lambda: "id")
        self.lost: list[str] = []
        self.lost_in_streams: list[str] = []
        self.met: set[str] = set()
        """Listed places that are there, and nothing is told of."""

    def leaf(self, place: str, before: Json, after: Json) -> None:
        if before == after:
            return
        if self._said(before) == self._said(after):
            listed = [one for one in self._way.listed if fnmatch(place, one)]
            self.met.update(listed)
            if not listed:
                self.lost.append(place)
        elif self._streamed(before) == self._streamed(after):
            self.lost_in_streams.append(place)

    def stranger(self, place: str, before: Json, after: Json) -> None:
        """A provider may add to its answers what it likes."""

    def opens(self, place: str, before: Json, after: Json) -> bool:
        listed = [one for one in self._way.listed if fnmatch(place, one)]
        if listed and self._said(before) == self._said(after):
            self.met.update(listed)
            return False
        return True

    def _said(self, body: Json) -> bytes:
        try:
            return orjson.dumps(self._translator.answer(self._sent, body))
        except MalformedAnswer as error:
            return str(error).encode()

    def _streamed(self, body: Json) -> bytes:
        reader = self._translator.reader(self._sent_for_stream)
        return reader.feed(STREAMED[self._way.spoken](body)) + reader.close(is_clean=True)


@pytest.mark.parametrize("name", WAYS)
def test_each_field_of_an_answer_is_told_or_listed(name: str) -> None:
    """And what is listed is there, and is not told."""
    way = WAYS[name]
    told = Told(way)
    Walk(way.forms(), way.given, told).run()
    assert told.lost == []
    assert told.lost_in_streams == []
    assert told.met == way.listed.keys()
