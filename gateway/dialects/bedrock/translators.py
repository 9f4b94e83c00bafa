"""Callers of chat completions at models of Bedrock's, by Converse."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.types import Gap
from gateway.dialects.base import ConvertedRequest, Json, Reader, ServerFacts, once
from gateway.dialects.bedrock import gaps
from gateway.dialects.bedrock.answer import ConverseAsChat, chat_of_converse
from gateway.dialects.bedrock.request.options import ConverseOptions, takes_thoughts_back
from gateway.dialects.bedrock.request.request import converse_body
from gateway.dialects.schema_tools.tools import CONVERSES, gaps_of_names, with_allowed_names, with_own_names


class ChatOverConverse:
    """Serves a caller of chat completions by Converse; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _gaps(body, facts, ConverseOptions(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        named, names = with_allowed_names(body, CONVERSES)
        settled = ConverseOptions(named, facts)
        lost = _gaps(body, facts, settled)
        memory = facts.memory if takes_thoughts_back(facts) else None
        made = converse_body(named, facts, settled)
        return ConvertedRequest(made, body, new_id(), now, memory=memory, gaps=lost, names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return with_own_names(chat_of_converse(sent, body), sent.names)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ConverseAsChat(sent)


def _gaps(body: Json, facts: ServerFacts, settled: ConverseOptions) -> Sequence[Gap]:
    found = settled.gaps + gaps.gaps_at_top(body) + gaps_of_names(body, CONVERSES)
    return once(found + gaps.gaps_of_messages(body, facts, settled.recalled, keeps_thoughts=settled.keeps_thoughts))
