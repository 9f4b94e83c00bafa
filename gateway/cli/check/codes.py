"""What codes mean that say more of a refusal than its class does; `gateway explain CODE` tells of them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

CODES: Final = MappingProxyType(
    {
        "invalid_json": (400, "The body is no JSON object, or is not UTF-8."),
        "empty_body": (400, "There is no body."),
        "missing_field": (400, "The field 'model' is not there."),
        "invalid_type": (400, "A field has another type than it must have; 'param' names it."),
        "invalid_value": (400, "The value of a field cannot be used; 'param' names it."),
        "duplicate_field": (400, "A field is there twice, and two parsers may read it differently."),
        "too_many_objects": (400, "The body names more than 5,000 objects."),
        "invalid_content_type": (400, "The endpoint takes multipart/form-data."),
        "invalid_multipart": (400, "The form is malformed."),
        "invalid_idempotency_key": (400, "The Idempotency-Key has not 1 to 255 printable ASCII characters."),
        "invalid_http": (400, "The request line, a header or the body's framing is not HTTP/1.1."),
        "unsupported_by_targets": (
            400,
            "No target of the model can do what the call needs, or be told it in its language; the message names the fields.",
        ),
        "previous_response_not_found": (
            400,
            "The response to go on from does not exist, is another tenant's, was not kept, or has not ended.",
        ),
        "conversation_too_long": (
            400,
            "It goes on from more than 64 responses, or from more than 8 MiB: send what matters as 'input'.",
        ),
        "invalid_pipeline_input": (400, "The input of a pipeline does not fit its schema; 'param' names the field."),
        "not_supported": (400, "A pipeline was asked for where it does not answer."),
        "step_not_async": (
            400,
            "x-gateway-step together with Prefer: respond-async, a pipeline, or a response in the background: send one "
            "of them.",
        ),
        "no_step": (400, "x-gateway-step on a POST that is no call of a model: send it without."),
        "invalid_handshake": (
            400,
            "The WebSocket handshake is not one, or has a header that is about one call; the message says which.",
        ),
        "field_not_allowed": (
            403,
            "The key has restricted 'models', and some provider chooses another by this field: leave it out.",
        ),
        "lane_not_allowed": (403, "The key may not use this lane."),
        "tenant_not_allowed": (403, "The key may not name a tenant."),
        "path_not_allowed": (403, "The key is limited to some models and may not use other endpoints."),
        "unpriced_endpoint": (
            403,
            "The key has a budget, and what the call costs at a target that it may go to, or at this endpoint, is not "
            "known: set 'price' at the target (0, where it is free), or 'allow_unpriced: true' at the key.",
        ),
        "origin_not_allowed": (403, "Without keys: a web page of another origin has sent it."),
        "host_not_allowed": (403, "Without keys: the Host is not this machine."),
        "model_not_found": (404, "The config has no such model; GET /v1/models lists those that it has."),
        "object_not_found": (404, "The file, batch or response does not exist, or is another tenant's."),
        "run_not_found": (404, "There is no such run, or it is another tenant's."),
        "websocket_not_supported": (
            501,
            "A WebSocket elsewhere than at /v1/realtime and /v1/responses, or the extra 'realtime' is not installed.",
        ),
        "transfer_encoding_not_supported": (501, "Only the transfer encoding 'chunked' is spoken."),
    }
)
"""The status and the meaning of each; clients need not try any of them again."""
