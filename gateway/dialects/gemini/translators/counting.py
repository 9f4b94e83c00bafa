"""Questions for the tokens of a request of Messages, put to models of Google's: what they would be sent is counted there.

Source: the Gemini API's reference, `countTokens`, which takes a whole request, and Vertex AI's, which takes parts of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.types.words import Gap
from gateway.dialects.anthropic.in_stream.translator import MessagesOverChat
from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, Reader, ServerFacts, text_of
from gateway.dialects.base.hub import ThroughChat
from gateway.dialects.gemini.translators.translators import ChatOverGenerate

_COUNTED: Final = ("contents", "systemInstruction", "tools")
_MOST_TOKENS: Final = 1
"""The most tokens of an answer, which a request that only asks does not have and a whole one has to; it is not counted."""


class CountsOfGenerate:
    """Asks the Gemini API; implements `base.Translator`."""

    def __init__(self) -> None:
        self._said = ThroughChat(MessagesOverChat(), ChatOverGenerate())

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return ()

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = self._said.request({"max_tokens": _MOST_TOKENS, **body}, facts, now, new_id).body
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
