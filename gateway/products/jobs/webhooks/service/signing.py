"""Signatures of deliveries, as https://github.com/standard-webhooks/standard-webhooks has them, by its own library."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from standardwebhooks import Webhook

USER_AGENT: Final = b"llm-gateway-sidecar"
"""Many a firewall refuses requests that have none."""


def signed_headers(secrets: Sequence[bytes], id: str, body: bytes, now: float) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a delivery: `id` is the same for each attempt, `now` is wall-clock seconds.

    Each secret signs, so that a receiver with either of them can verify it.
    """
    at = datetime.fromtimestamp(int(now), UTC)
    signatures = " ".join(Webhook(secret).sign(id, at, body.decode()) for secret in secrets)
    return [
        (b"content-type", b"application/json"),
        (b"user-agent", USER_AGENT),
        (b"webhook-id", id.encode()),
        (b"webhook-timestamp", b"%d" % int(now)),
        (b"webhook-signature", signatures.encode()),
    ]
