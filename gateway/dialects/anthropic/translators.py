"""Callers of chat completions at targets that speak Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.dialects.anthropic.from_chat import gaps
from gateway.dialects.anthropic.from_chat.answer import chat_of_message
from gateway.dialects.anthropic.from_chat.options import ChatOptions
from gateway.dialects.anthropic.from_chat.request import messages_body
from gateway.dialects.anthropic.from_chat.stream import MessagesAsChat
from gateway.dialects.base import ConvertedRequest, Json, Reader, ServerFacts, once
from gateway.words import Gap


class ChatOverMessages:
    """Serves a caller of chat completions by Messages; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _gaps(body, facts, ChatOptions(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        settled = ChatOptions(body, facts)
        lost = _gaps(body, facts, settled)
        made = messages_body(body, facts, settled)
        return ConvertedRequest(made, body, new_id(), now, memory=facts.memory, gaps=lost)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return chat_of_message(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return MessagesAsChat(sent)


def _gaps(body: Json, facts: ServerFacts, settled: ChatOptions) -> Sequence[Gap]:
    keeps, recalled = settled.keeps_thoughts, settled.recalled
    found = settled.gaps + gaps.gaps_at_top(body) + gaps.gaps_of_recalled(recalled, keeps_thoughts=keeps)
    return once(found + gaps.gaps_of_messages(body, facts, recalled.contents, keeps_thoughts=keeps))
