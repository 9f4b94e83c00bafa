"""What an answer tells about its way through the gateway: request id, target, attempts, times."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.call import Call, Replay
from gateway.core.ledger.settle import known_usd, overhead_s
from gateway.core.types.words import Gap, shown

MOST_SHOWN = 200


def answer_headers(call: Call, now: float) -> list[tuple[bytes, bytes]]:
    """The `x-gateway-*` headers and `x-request-id` of an answer that begins at `now` (monotonic seconds)."""
    own_id = call.id.encode()
    replay = call.replay
    headers = [
        (b"x-gateway-cache", b"bypass") if replay is None else (b"x-gateway-cache", replay.result.encode()),
        (b"x-gateway-queue-ms", b"%d" % (call.queue_s * 1000) if call.queue_s else b"0"),
        (b"x-gateway-overhead-ms", b"%.2f" % (overhead_s(call, now) * 1000)),
        (b"x-gateway-request-id", own_id),
    ]
    upstream_id = None
    attempts = call.attempts
    if replay is not None:
        _tell_source(headers, replay, is_served=not attempts)
    if call.denied is not None:
        headers.append((b"x-gateway-retry-denied", call.denied.encode()))
    if call.joined is not None:
        headers.append((b"x-gateway-grouped", b"%d" % call.joined[1]))
    if call.lowered is not None:
        headers.append((b"x-gateway-degraded", ", ".join(call.lowered.fields).encode()))
    if attempts:
        last = attempts[-1]
        cost_usd = last.cost_usd if len(attempts) == 1 else known_usd(attempts)
        if cost_usd is not None:
            headers.append((b"x-gateway-cost-usd", b"%.8f" % cost_usd))
        upstream_id = last.upstream_request_id
        trail = str(last) if len(attempts) == 1 else shown(attempts)
        headers += (b"x-gateway-target", last.target.encode()), (b"x-gateway-attempts", trail.encode())
    if upstream_id is None:
        headers.append((b"x-request-id", own_id))
    elif call.echo_request_id:
        headers += (b"x-request-id", own_id), (b"x-gateway-upstream-request-id", upstream_id)
    else:
        headers.append((b"x-request-id", upstream_id))
    return headers


def lossy_header(gaps: Iterable[Gap]) -> tuple[bytes, bytes]:
    """What was lost on the way to a provider, by name: that belongs to the answer, whoever gets it."""
    told = ", ".join(f"{gap.field}({gap.how})" for gap in gaps)
    return b"x-gateway-lossy", told[:MOST_SHOWN].encode("ascii", "replace")


def _tell_source(headers: list[tuple[bytes, bytes]], replay: Replay, *, is_served: bool) -> None:
    """Adds whose answer it is, where the call was spared a provider."""
    if replay.key:
        headers.append((b"x-gateway-cache-key", replay.key.hex().encode()))
    if replay.layer:
        headers.append((b"x-gateway-cache-source", replay.source.encode()))
        if is_served and replay.target:
            headers.append((b"x-gateway-target", replay.target.encode()))
        if is_served and replay.attempts:
            headers.append((b"x-gateway-attempts", replay.attempts.encode()))
    if replay.similarity is not None:
        headers.append((b"x-gateway-cache-similarity", b"%.4f" % replay.similarity))
