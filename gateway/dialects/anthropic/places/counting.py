"""Questions for the tokens of a request of Messages, put to clouds that count them: the number comes back as Anthropic says it.

Bedrock counts what InvokeModel would be given, for models themselves and not for profiles of regions; Vertex has one path
for all models, and the model's name in the body. Source: Bedrock's CountTokens, and Anthropic's SDK, `lib/vertex`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from gateway.core.types.words import Gap
from gateway.dialects.anthropic.places.envelope import MessagesAtBedrock, MessagesAtVertex
from gateway.dialects.base.base import ConvertedRequest, Json, MalformedAnswer, Reader, ServerFacts

_MOST_TOKENS: Final = 1
"""The most tokens of an answer, which a request that only asks does not have and InvokeModel's has to."""


class _Counting:
    """What all of them have in common; implements `base.Translator` but for the request."""

    told_as: str
    """The field of the answer with the number."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return ()

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        """Raises MalformedAnswer where no number is told."""
        count = body.get(self.told_as)
        if type(count) is not int:
            raise MalformedAnswer("the answer tells no number of tokens")
        return {"input_tokens": count}

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Raises MalformedAnswer: a number is not streamed."""
        raise MalformedAnswer("the provider has streamed a number")


class CountsAtBedrock(_Counting):
    """Asks Bedrock's CountTokens; implements `base.Translator`."""

    told_as = "inputTokens"

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = MessagesAtBedrock().request({"max_tokens": _MOST_TOKENS, **body}, facts, now, new_id).body
        counted = {"input": {"invokeModel": {"body": b64encode(orjson.dumps(made)).decode()}}}
        return ConvertedRequest(counted, body, new_id(), now)


class CountsAtVertex(_Counting):
    """Asks Vertex AI's count of Claude's tokens; implements `base.Translator`."""

    told_as = "input_tokens"

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = MessagesAtVertex().request(body, facts, now, new_id).body
        return ConvertedRequest({**made, "model": body.get("model")}, body, new_id(), now)
