"""Callers of generateContent: at targets with chat completions, and at Gemini's own places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.dialects.base import ConvertedRequest, Json, Reader, ServerFacts, once
from gateway.dialects.gemini.from_generate.answer import generated
from gateway.dialects.gemini.from_generate.gaps import gaps_of
from gateway.dialects.gemini.from_generate.request import chat_body
from gateway.dialects.gemini.from_generate.stream import ChatAsGenerate
from gateway.words import Gap


class GenerateOverChat:
    """Serves a caller of generateContent by chat completions; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return once(gaps_of(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        return ConvertedRequest(chat_body(body, facts), body, new_id(), now, gaps=once(gaps_of(body, facts)))

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return generated(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return ChatAsGenerate(sent)
