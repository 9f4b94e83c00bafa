"""Callers of Anthropic's Messages at targets with chat completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.types.words import Gap
from gateway.dialects.anthropic.in_answer.answer.answer import message_of_chat
from gateway.dialects.anthropic.in_gaps import gaps_of
from gateway.dialects.anthropic.in_request.request import chat_body
from gateway.dialects.anthropic.in_stream.stream import ChatAsMessages
from gateway.dialects.base.base import ConvertedRequest, Json, Reader, ServerFacts


class MessagesOverChat:
    """Serves a caller of Messages by chat completions; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return gaps_of(body, facts)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        lost = gaps_of(body, facts)
        return ConvertedRequest(chat_body(body, facts), body, new_id(), now, gaps=lost)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return message_of_chat(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ChatAsMessages(sent)
