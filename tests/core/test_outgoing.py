"""What is sent of a large body under another name: the bytes that are there, not a copy of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from gateway.core.answers import outgoing_of
from gateway.core.request_fields import LargeBodies, Peeked
from gateway.core.retry import Attempt
from gateway.core.types import Spliced
from gateway.dialects.endpoints import ENDPOINTS
from tests.support.flow import Bench, ScriptedUpstream

SIZE = 5_000_000
CHAT = b'{"stream":true,"model":"alias","messages":[{"role":"user","content":"%b"}]}' % (b"words " * (SIZE // 6))
FORM = b'--B\r\ncontent-disposition: form-data; name="model"\r\n\r\nalias\r\n--B\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n--B--\r\n'  # noqa: E501  # as it is sent
ENDPOINT = {endpoint.name: endpoint for endpoint in ENDPOINTS}


async def peeked(name: str, body: bytes) -> Peeked:
    index = {b"content-type": b"multipart/form-data; boundary=B"} if name == "transcriptions" else {}
    return await LargeBodies().peek(ENDPOINT[name], body, index, 1_000_000)


@pytest.mark.parametrize(
    ("name", "body", "usage"),
    [("chat", CHAT, b'"stream_options":{"include_usage":true},'), ("transcriptions", FORM % (b"x" * SIZE), b"")],
)
async def test_a_large_body_is_not_copied_for_a_target_with_another_name(name: str, body: bytes, usage: bytes) -> None:
    """Nor for another attempt, elsewhere."""
    known = await peeked(name, body)
    bench = Bench([ScriptedUpstream()])
    fields: dict[str, Any] = {"stream": known.stream, "large": known.large, "model_span": known.model_span}
    call = bench.call(endpoint=ENDPOINT[name], body=body, model_name=known.model, **fields)
    target = call.route.model.targets[0]
    tracemalloc.start()

    both = [outgoing_of(call, Attempt(target, 0.0), target.clocks).body for _ in range(2)]

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000
    for sent in both:
        assert isinstance(sent, Spliced)
        wanted = body.replace(b"alias", b"m", 1)
        assert bytes(sent) == (b"{" + usage + wanted[1:] if usage else wanted)
