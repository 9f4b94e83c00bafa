"""Callers of chat completions and of embeddings at targets that speak generateContent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.types import Gap
from gateway.dialects.anthropic.in_stream import MessagesOverChat
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    Reader,
    ServerFacts,
    ThroughChat,
    once,
    text_of,
)
from gateway.dialects.gemini import out_gaps
from gateway.dialects.gemini.out_answer import GenerateAsChat, chat_of_generated, with_echoes
from gateway.dialects.gemini.out_request import GenerateOptions, generate_body
from gateway.dialects.memory import gaps_of_foreign
from gateway.dialects.schema_tools.tools import GEMINIS, gaps_of_names, with_allowed_names


class ChatOverGenerate:
    """Serves a caller of chat completions by generateContent; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        echoed = with_echoes(body, facts.memory)
        return _gaps(body, echoed, facts, GenerateOptions(echoed, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        echoed = with_echoes(body, facts.memory)
        named, names = with_allowed_names(echoed, GEMINIS)
        settled = GenerateOptions(named, facts)
        lost = _gaps(body, echoed, facts, settled)
        made = generate_body(named, facts, settled)
        memory = facts.memory
        return ConvertedRequest(made, body, new_id(), now, issuer=facts.issuer, memory=memory, gaps=lost, names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return chat_of_generated(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return GenerateAsChat(sent)


def _gaps(body: Json, echoed: Json, facts: ServerFacts, settled: GenerateOptions) -> Sequence[Gap]:
    """`echoed` is the request with what was remembered of it."""
    found = gaps_of_foreign(body.get("messages"), facts.memory) + gaps_of_names(body, GEMINIS)
    return once(found + settled.gaps + out_gaps.gaps_at_top(echoed) + out_gaps.gaps_of_messages(echoed, facts))


# Questions for the tokens of a request of Messages, put to models of Google's: what they would be sent is counted there.
#
# Source: the Gemini API's reference, `countTokens`, which takes a whole request, and Vertex AI's, which takes parts of one.


_COUNTED: Final = ("contents", "systemInstruction", "tools")
_MOST_TOKENS: Final = 1
"""The most tokens of an answer, which a request that only asks does not have and a whole one has to; it is not counted."""


class CountsOfGenerate:
    """Asks the Gemini API; implements `base.Translator`."""

    def __init__(self) -> None:
        self._request = ThroughChat(MessagesOverChat(), ChatOverGenerate())

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return ()

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = self._request.request({"max_tokens": _MOST_TOKENS, **body}, facts, now, new_id).body
        counted: Json = {name: made[name] for name in _COUNTED if name in made}
        return ConvertedRequest(self._question(counted, body), body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        """Raises MalformedAnswer where no number is told."""
        count = body.get("totalTokens")
        if type(count) is not int:
            raise MalformedAnswer("the answer tells no number of tokens")
        return {"input_tokens": count}

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Raises MalformedAnswer: a number is not streamed."""
        raise MalformedAnswer("the provider has streamed a number")

    def _question(self, counted: Json, body: Json) -> Json:
        model = f"models/{text_of(body.get('model')).removeprefix('models/')}"
        return {"generateContentRequest": {"model": model, **counted}}


class CountsAtVertexAI(CountsOfGenerate):
    """Asks Vertex AI of models of Google's own."""

    def _question(self, counted: Json, body: Json) -> Json:
        return counted
