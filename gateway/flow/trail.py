"""What an answer tells about its way through the gateway: request id, target, attempts, times."""

from __future__ import annotations

from gateway.call import Call
from gateway.flow.accounting import overhead_s


def trail_headers(call: Call, now: float) -> list[tuple[bytes, bytes]]:
    """The `x-gateway-*` headers and `x-request-id` of an answer that begins at `now` (monotonic seconds)."""
    headers = [
        (b"x-gateway-cache", b"bypass"),
        (b"x-gateway-queue-ms", b"0"),
        (b"x-gateway-overhead-ms", b"%.2f" % (overhead_s(call, now) * 1000)),
        (b"x-gateway-request-id", call.id.encode()),
    ]
    attempts = call.attempts
    upstream_id = attempts[-1].upstream_request_id if attempts else None
    if attempts:
        headers.append((b"x-gateway-target", attempts[-1].target.encode()))
        headers.append((b"x-gateway-attempts", " ".join(map(str, attempts)).encode()))
    if upstream_id is None or call.echo_request_id:
        headers.append((b"x-request-id", call.id.encode()))
    else:
        headers.append((b"x-request-id", upstream_id.encode()))
    if upstream_id is not None and call.echo_request_id:
        headers.append((b"x-gateway-upstream-request-id", upstream_id.encode()))
    return headers
