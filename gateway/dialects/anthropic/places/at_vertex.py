"""Claude at Vertex AI for callers of chat completions: Messages in the cloud's envelope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.core.types.words import Gap, How
from gateway.dialects.anthropic.out_request.tools.blocks import picture_url
from gateway.dialects.anthropic.places.envelope import ELSEWHERE, MessagesAtVertex
from gateway.dialects.anthropic.places.translators import ChatOverMessages
from gateway.dialects.base.base import ConvertedRequest, Json, ServerFacts, objects, once
from gateway.dialects.schema_tools.media import URLS


class ChatAtVertex(ChatOverMessages):
    """Serves a caller of chat completions by Claude at Vertex, whose answers and streams are Anthropic's own."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return _with_pictures(body, super().gaps(body, facts))

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        sent = super().request(body, facts, now, new_id)
        made = MessagesAtVertex().request(sent.body, facts, now, new_id).body
        return replace(sent, body=made, gaps=_with_pictures(body, sent.gaps or ()))


def _with_pictures(body: Json, found: Sequence[Gap]) -> Sequence[Gap]:
    """Returns the gaps with that of pictures that lie elsewhere."""
    for message in objects(body.get("messages")):
        for part in objects(message.get("content")):
            if part.get("type") == "image_url" and (picture_url(part) or "").startswith(URLS):
                return once([*found, Gap("messages.image_url", How.REFUSED, ELSEWHERE)])
    return found
