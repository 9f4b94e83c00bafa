"""Questions for the tokens of a request of Messages, put to OpenAI: what its Responses would be sent is counted there.

Source: OpenAI's API reference, `POST /v1/responses/input_tokens`, which takes of a request what is read, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.types.words import Gap
from gateway.dialects.anthropic.in_stream.translator import MessagesOverChat
from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, Reader, ServerFacts
from gateway.dialects.base.hub import ThroughChat
from gateway.dialects.openai.translators.translators import ChatOverResponses

_COUNTED: Final = ("model", "input", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning")
_MOST_TOKENS: Final = 1
"""The most tokens of an answer, which a request that only asks does not have and a whole one has to; it is not counted."""


class CountsOfResponses:
    """Asks OpenAI; implements `base.Translator`."""

    def __init__(self) -> None:
        self._said = ThroughChat(MessagesOverChat(), ChatOverResponses())

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return ()

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = self._said.request({"max_tokens": _MOST_TOKENS, **body}, facts, now, new_id).body
        return ConvertedRequest({name: made[name] for name in _COUNTED if name in made}, body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        """Raises MalformedAnswer where no number is told."""
        count = body.get("input_tokens")
        if type(count) is not int:
            raise MalformedAnswer("the answer tells no number of tokens")
        return {"input_tokens": count}

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Raises MalformedAnswer: a number is not streamed."""
        raise MalformedAnswer("the provider has streamed a number")
