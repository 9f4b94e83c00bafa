"""The two pairs: callers of Responses at targets with chat completions only, and the other way round.

At the end: counts of tokens for callers of Messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from gateway.core.types import Gap, How
from gateway.dialects.anthropic.in_gaps import MessagesOverChat
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    Reader,
    ServerFacts,
    ThroughChat,
    once,
    strings,
)
from gateway.dialects.memory import gaps_of_foreign
from gateway.dialects.openai import gaps
from gateway.dialects.openai.chat import ENCRYPTED, LEAST_TOKENS, ResponsesAsChat, chat_of_response, responses_body
from gateway.dialects.openai.gaps import fitted
from gateway.dialects.openai.responses_answer import ChatAsResponses, response_of_chat
from gateway.dialects.openai.responses_request import FlatRequest, chat_body, custom_tools, flattened
from gateway.dialects.schema_tools.tools import OPENAIS, gaps_of_names, with_allowed_names, with_own_names

# --- The two pairs ---


class ResponsesOverChat:
    """Serves a caller of Responses by chat completions; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _gaps_of_response(body, flattened(body), facts)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        flat = flattened(body)
        custom = frozenset() if facts.takes_custom_tools else custom_tools(flat.body)
        lost, made = _gaps_of_response(body, flat, facts), chat_body(flat.body, facts)
        carries = bool(facts.signed_in) or ENCRYPTED in strings(body.get("include"))
        return ConvertedRequest(
            made, body, new_id(), now, custom, gaps=lost, carries_proofs=carries, namespaces=flat.names
        )

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return response_of_chat(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ChatAsResponses(sent)


def _gaps_of_response(body: Json, flat: FlatRequest, facts: ServerFacts) -> Sequence[Gap]:
    """`flat` is the request without namespaces."""
    found = gaps.gaps_at_top(flat.body, facts)
    found += [*flat.gaps]
    found += gaps.gaps_of_tools(flat.body, facts)
    return once(found + gaps.gaps_of_input(flat.body, facts) + gaps.gaps_of_options(body, facts))


class ChatOverResponses:
    """Serves a caller of chat completions by Responses; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        found = gaps.gaps_of_chat_at_top(body, facts) + gaps.gaps_of_messages(body, facts)
        found += gaps_of_foreign(body.get("messages"), facts.memory) + gaps_of_names(body, OPENAIS)
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        if isinstance(most, int) and most < LEAST_TOKENS:
            found.append(Gap("max_tokens", How.APPROXIMATED, f"Responses take no less than {LEAST_TOKENS}"))
        return once(found)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        lost = self.gaps(body, facts)
        named, names = with_allowed_names(body, OPENAIS)
        return ConvertedRequest(responses_body(named, facts), body, new_id(), now, gaps=lost, names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return with_own_names(chat_of_response(sent, body), sent.names)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ResponsesAsChat(sent)


class HubOverResponses(ChatOverResponses):
    """Serves callers of languages that are not OpenAI's by Responses: what they ask is made to fit the model."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        made, lost = fitted(body, facts)
        return once([*lost, *super().gaps(made, facts)])

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made, lost = fitted(body, facts)
        sent = super().request(made, facts, now, new_id)
        return replace(sent, source=body, gaps=once([*lost, *(sent.gaps or ())]))


# --- Counts of tokens for callers of Messages ---


_COUNTED: Final = ("model", "input", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning")
_MOST_TOKENS: Final = 1
"""The most tokens of an answer, which a request that only asks does not have and a whole one has to; it is not counted."""


class CountsOfResponses:
    """Asks OpenAI for the tokens of what its Responses would be sent; implements `base.Translator`.

    Source: OpenAI's API reference, `POST /v1/responses/input_tokens`, which takes of a request what is read, and no more.
    """

    def __init__(self) -> None:
        self._request = ThroughChat(MessagesOverChat(), HubOverResponses())

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return ()

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = self._request.request({"max_tokens": _MOST_TOKENS, **body}, facts, now, new_id).body
        return ConvertedRequest({name: made[name] for name in _COUNTED if name in made}, body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        """Raises MalformedAnswer where there is no number."""
        count = body.get("input_tokens")
        if type(count) is not int:
            raise MalformedAnswer("the answer tells no number of tokens")
        return {"input_tokens": count}

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Raises MalformedAnswer: a number is not streamed."""
        raise MalformedAnswer("the provider has streamed a number")
