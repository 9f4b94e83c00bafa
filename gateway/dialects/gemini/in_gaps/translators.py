"""Callers of generateContent: at targets with chat completions, and at Gemini's own places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.core.types.words import Gap
from gateway.dialects.base.base import ConvertedRequest, Json, Reader, ServerFacts, once
from gateway.dialects.gemini.in_answer.answer import generated
from gateway.dialects.gemini.in_answer.stream import ChatAsGenerate
from gateway.dialects.gemini.in_gaps.gaps import gaps_of
from gateway.dialects.gemini.in_request.request import chat_body
from gateway.dialects.schema_tools.tools.tool_names import OPENAIS, with_allowed_names


class GenerateOverChat:
    """Serves a caller of generateContent by chat completions; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return once(gaps_of(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        made = chat_body(body, facts)
        names: Mapping[str, str] = {}
        if not facts.takes_details:  # behind another conversion, that one knows which names are allowed
            made, names = with_allowed_names(made, OPENAIS)
        return ConvertedRequest(made, body, new_id(), now, gaps=self.gaps(body, facts), names=names)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return generated(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ChatAsGenerate(sent)
