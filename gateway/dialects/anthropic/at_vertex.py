"""Claude at Vertex AI for callers of chat completions: Messages in the cloud's envelope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.dialects.anthropic.envelope import MessagesAtVertex
from gateway.dialects.anthropic.translators import ChatOverMessages
from gateway.dialects.base import ConvertedRequest, Json, ServerFacts


class ChatAtVertex(ChatOverMessages):
    """Serves a caller of chat completions by Claude at Vertex, whose answers and streams are Anthropic's own."""

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        sent = super().request(body, facts, now, new_id)
        return replace(sent, body=MessagesAtVertex().request(sent.body, facts, now, new_id).body)
