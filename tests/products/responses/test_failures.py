"""What a failed response says of its error."""

from __future__ import annotations

from typing import get_args

from openai.types.responses import ResponseError

from gateway.products.responses.rules import failure
from tests.rows import rows


@rows(
    ("code", "kind", "told"),
    [
        ("invalid_image_url", "", "invalid_image_url"),
        ("no_target_available", "server_error", "server_error"),
        ("key_rate_limited", "rate_limit_error", "rate_limit_exceeded"),
        ("rate_limit_tokens", "", "rate_limit_exceeded"),
        ("quota_exhausted", "", "rate_limit_exceeded"),
        ("unsupported_by_targets", "invalid_request_error", "invalid_prompt"),
        ("content_policy", "", "invalid_prompt"),
        ("None", "None", "server_error"),
    ],
)
def test_a_failed_response_has_a_code_of_openais(code: str, kind: str, told: str) -> None:
    """Whoever matches on the codes of the reference finds the response's there."""
    assert failure("m", code, kind) == {"code": told, "message": "m"}
    assert told in get_args(ResponseError.model_fields["code"].annotation)
