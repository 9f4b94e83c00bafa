"""Callers of chat completions at targets that speak Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.dialects.anthropic.from_chat import gaps
from gateway.dialects.anthropic.from_chat.answer import chat_of_message
from gateway.dialects.anthropic.from_chat.options import ChatOptions
from gateway.dialects.anthropic.from_chat.request import messages_body
from gateway.dialects.anthropic.from_chat.stream import MessagesAsChat
from gateway.dialects.base import ConvertedRequest, Json, Reader, ServerFacts, once
from gateway.dialects.tool_names import CLAUDES, gaps_of_names, with_allowed_names, with_own_names
from gateway.words import Gap


class ChatOverMessages:
    """Serves a caller of chat completions by Messages; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _gaps(body, facts, ChatOptions(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        named, names = with_allowed_names(body, CLAUDES)
        settled = ChatOptions(named, facts)
        lost = _gaps(body, facts, settled)
        made = messages_body(named, facts, settled)
        return ConvertedRequest(made, body, new_id(), now, memory=facts.memory, gaps=lost, names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return with_own_names(chat_of_message(sent, body), sent.names)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return MessagesAsChat(sent)


def _gaps(body: Json, facts: ServerFacts, settled: ChatOptions) -> Sequence[Gap]:
    keeps, recalled = settled.keeps_thoughts, settled.recalled
    found = settled.gaps + gaps.gaps_at_top(body) + gaps_of_names(body, CLAUDES)
    found += gaps.gaps_of_recalled(recalled, keeps_thoughts=keeps)
    return once(found + gaps.gaps_of_messages(body, facts, recalled.contents, keeps_thoughts=keeps))
