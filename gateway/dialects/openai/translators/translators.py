"""The two pairs: callers of Responses at targets with chat completions only, and the other way round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.types.words import Gap, How
from gateway.dialects.base.base import ConvertedRequest, Json, Reader, ServerFacts, gaps_of_fields, once
from gateway.dialects.memory.remembered import gaps_of_foreign
from gateway.dialects.openai import gaps
from gateway.dialects.openai.chat.chat_request.chat_answer import chat_of_response
from gateway.dialects.openai.chat.chat_request.chat_request import LEAST_TOKENS, responses_body
from gateway.dialects.openai.chat.chat_stream import ResponsesAsChat
from gateway.dialects.openai.responses_answer.responses_answer import response_of_chat
from gateway.dialects.openai.responses_answer.responses_stream import ChatAsResponses
from gateway.dialects.openai.responses_request import chat_body, custom_tools
from gateway.dialects.schema_tools.tools.tool_names import OPENAIS, gaps_of_names, with_allowed_names, with_own_names


class ResponsesOverChat:
    """Serves a caller of Responses by chat completions; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        found = gaps_of_fields(body, gaps.RESPONSES_ONLY)
        found += gaps.gaps_of_tools(body, takes_custom=facts.takes_custom_tools)
        return once(found + gaps.gaps_of_input(body, facts) + gaps.gaps_of_options(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        custom = frozenset() if facts.takes_custom_tools else custom_tools(body)
        lost = self.gaps(body, facts)
        return ConvertedRequest(chat_body(body, facts), body, new_id(), now, custom, gaps=lost)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return response_of_chat(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ChatAsResponses(sent)


class ChatOverResponses:
    """Serves a caller of chat completions by Responses; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        found = gaps_of_fields(body, gaps.CHAT_ONLY) + gaps.gaps_of_messages(body, facts)
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
