"""How long a body may be: at each endpoint what its providers take, unless the config says something else for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from gateway.core import request_fields
from gateway.core.types import Endpoint, Server
from gateway.dialects.endpoints import ENDPOINTS, GENERATE
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import config_of, connect, post

MIB: Final = 1024 * 1024
TAKEN: Final[Mapping[str, int]] = {
    "chat": 50_000_000 * 4 // 3,
    "responses": 50_000_000 * 4 // 3,
    "messages": 32 * MIB,
    "count_tokens": 32 * MIB,
    "transcriptions": 25 * MIB + 1000,
    "generate": 100 * MIB,
    "passthrough": 64 * MIB + 1000,
}
"""Of OpenAI, Anthropic and Google: pictures and files of 50 MB in base64, sound of 25 MiB, parts of uploads of 64 MiB."""


@pytest.mark.parametrize("endpoint", [*ENDPOINTS, GENERATE, request_fields.OTHER], ids=lambda one: one.name)
def test_what_a_provider_takes_is_not_refused(endpoint: Endpoint) -> None:
    """And `max_body` goes before it, upwards and downwards."""
    assert Server().most_bytes(endpoint) >= TAKEN.get(endpoint.name, 20_000_000)
    assert Server(max_body_bytes=7).most_bytes(endpoint) == 7
    assert Server(max_body_bytes=10**9).most_bytes(endpoint) == 10**9


async def test_sound_of_25_mib_is_transcribed(start: StartGateway) -> None:
    """It was a 413; one byte more than the bound still is."""
    gateway = await start(config_of)
    part = b'--b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    form = part % (b"model", b"", b"gpt-4o") + part % (b"file", b'; filename="a.wav"', b"s" * 25 * MIB) + b"--b--\r\n"

    async with connect(gateway.url) as peer:
        kind = "content-type: multipart/form-data; boundary=b"
        served = await peer.exchange(post("/v1/audio/transcriptions", form, kind))
        over = await peer.exchange(post("/v1/audio/transcriptions", b"x", kind, length=27_262_977))

    assert (served.status, over.status) == (200, 413)
