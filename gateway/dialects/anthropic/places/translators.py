"""Callers of chat completions at targets that speak Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.types.words import Gap
from gateway.dialects.anthropic.out_answer.answer import chat_of_message
from gateway.dialects.anthropic.out_answer.stream import MessagesAsChat
from gateway.dialects.anthropic.out_request.options.options import ChatOptions
from gateway.dialects.anthropic.out_request.options.request import messages_body
from gateway.dialects.anthropic.out_thoughts import gaps
from gateway.dialects.base.base import ConvertedRequest, Json, Reader, ServerFacts, once
from gateway.dialects.schema_tools.tools.tool_names import CLAUDES, gaps_of_names, with_allowed_names, with_own_names


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
