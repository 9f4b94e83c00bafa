"""What a refusal of ours tells: a code in any case, and what the provider had said that the call was waiting for."""

from __future__ import annotations

import pytest

from gateway.core.errors import GatewayError, InvalidRequest
from tests.support.flow import Bench, Script, ScriptedUpstream

WORDS = "Rate limit reached for m in organization o on tokens per min (TPM): Limit 9, Used 8, Requested 3."


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, b'{"error": {"message": "%b", "type": "tokens", "param": null, "code": "rate_limit_exceeded"}}'),
        (429, b'{"message": "%b"}'),
    ],
)
async def test_a_call_that_waited_for_a_429_and_is_refused_is_told_the_providers_words(
    status: int, body: bytes
) -> None:
    """Its own 429 does not come through; what it says is what the caller has to know."""
    said = Script(status, ((b"content-type", b"application/json"), (b"retry-after", b"120")), (body % WORDS.encode(),))
    bench = Bench([ScriptedUpstream(said)])

    with pytest.raises(GatewayError) as refused:
        await bench.serve(deadline=bench.clock.monotonic() + 30)

    assert refused.value.code == "queue_wait_exceeds_deadline"
    assert WORDS in refused.value.message
    assert "p0/m had answered with status 429" in refused.value.message


def test_every_wrong_request_has_a_code() -> None:
    """Also where no better one is at hand."""
    assert InvalidRequest("The header is wrong.").code == "invalid_request"
    assert InvalidRequest("The header is wrong.", code="finer").code == "finer"
