"""Callers of chat completions and of embeddings at targets that speak generateContent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.types.words import Gap
from gateway.dialects.base.base import ConvertedRequest, Json, Reader, ServerFacts, once
from gateway.dialects.gemini import out_gaps as gaps
from gateway.dialects.gemini.out_answer.answer import chat_of_generated
from gateway.dialects.gemini.out_answer.echoes import with_echoes
from gateway.dialects.gemini.out_answer.stream import GenerateAsChat
from gateway.dialects.gemini.out_request.options import GenerateOptions
from gateway.dialects.gemini.out_request.request import generate_body
from gateway.dialects.memory.remembered import gaps_of_foreign
from gateway.dialects.schema_tools.tools.tool_names import GEMINIS, gaps_of_names, with_allowed_names


class ChatOverGenerate:
    """Serves a caller of chat completions by generateContent; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        echoed = with_echoes(body, facts.memory)
        return _gaps(body, echoed, facts, GenerateOptions(echoed, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        echoed = with_echoes(body, facts.memory)
        named, names = with_allowed_names(echoed, GEMINIS)
        settled = GenerateOptions(named, facts)
        lost = _gaps(body, echoed, facts, settled)
        made = generate_body(named, facts, settled)
        memory = facts.memory
        return ConvertedRequest(made, body, new_id(), now, issuer=facts.issuer, memory=memory, gaps=lost, names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return chat_of_generated(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return GenerateAsChat(sent)


def _gaps(body: Json, echoed: Json, facts: ServerFacts, settled: GenerateOptions) -> Sequence[Gap]:
    """`echoed` is the request with what was remembered of it."""
    found = gaps_of_foreign(body.get("messages"), facts.memory) + gaps_of_names(body, GEMINIS)
    return once(found + settled.gaps + gaps.gaps_at_top(echoed) + gaps.gaps_of_messages(echoed, facts))
