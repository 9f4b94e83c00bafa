"""The request's id as callers of Anthropic's Messages read it: in the header `request-id` of each answer."""

from __future__ import annotations

from gateway.core.call import Call, CallFeature, CallRoute, Reply, Serve
from gateway.core.render import named_request


class MessageIds(CallFeature):
    """Names the request in the answers to callers of Messages. Holds no state."""

    __slots__ = ()

    name = "message_ids"
    options: frozenset[bytes] = frozenset()

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for endpoints of Messages."""
        return None if route.endpoint.shape.request_id_header is None else self

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the reply to the call, named."""
        reply = await next(call)
        named_request(call.request.endpoint.shape, reply.headers)
        return reply
