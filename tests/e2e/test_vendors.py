"""What two providers see of a caller's own credential when a call leaves the first one, by every way there is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import WEB_KEY, connect, post
from tests.support.raw_server import READ, RawServer, Script

CREDENTIAL = "Bearer sk-of-the-caller"
OURS = "sk-of-our-own-account"


def answer(status: str, body: bytes) -> Script:
    """One request, one answer, and the connection ends."""
    return [
        READ,
        b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (status.encode(), len(body), body),
    ]


GOOD = answer(
    "200 OK", b'{"id":"1","object":"chat.completion","choices":[{"message":{"role":"assistant","content":"x"}}]}'
)
DOWN = answer("503 Service Unavailable", b'{"error":{"message":"down","type":"server_error","code":null}}')
LIMITED = answer(
    "429 Too Many Requests", b'{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}'
)
TOO_LONG = answer(
    "400 Bad Request",
    b'{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}',
)
NOT_FOUND = answer(
    "404 Not Found", b'{"error":{"message":"no such model","type":"invalid_request_error","code":"model_not_found"}}'
)
SILENT: Script = [READ]

WAYS: dict[str, tuple[Script, dict[str, Any]]] = {
    "fallback": (DOWN, {"targets": ["first/m"], "fallbacks": ["other"]}),
    "beside": (
        DOWN,
        {"targets": [{"provider": "first", "model": "m"}, {"provider": "second", "model": "m", "order": 2}]},
    ),
    "rate": (LIMITED, {"targets": ["first/m"], "fallbacks": ["other"]}),
    "context": (TOO_LONG, {"targets": ["first/m"], "context_fallbacks": ["other"]}),
    "no such model": (NOT_FOUND, {"targets": ["first/m"], "fallbacks": ["other"]}),
    "hedge": (SILENT, {"targets": ["first/m"], "fallbacks": ["other"], "retries": "hedged"}),
    "silence": (SILENT, {"targets": ["first/m"], "fallbacks": ["other"]}),
}
POLICIES = {
    "queue.yaml": "default: {lanes: {interactive: {prefer_primary_for: 50ms}}}\n",
    "retries.yaml": "default: {backoff: {base: 1ms, max: 5ms}}\nhedged: {hedge: {percentile: 95, at_least: 50ms}}\n",
    "timeouts.yaml": "default: {first_byte: 300ms}\n",
}


@pytest.mark.parametrize(("way", "keys"), [*((way, False) for way in WAYS), ("fallback", True)])
@pytest.mark.parametrize(
    ("second", "sees"),
    [
        ({}, None),
        ({"kind": "vllm"}, ""),
        ({"accepts_callers_of": ["first"]}, CREDENTIAL),
        ({"api_key": OURS}, f"Bearer {OURS}"),
    ],
)
async def test_another_vendor_never_sees_the_callers_credential(
    start: StartGateway, tmp_path: Any, way: str, keys: bool, second: dict[str, Any], sees: str | None
) -> None:
    """It is skipped (None), called without, or, where the config says so, shown it; alike with and without gateway keys."""
    script, model = WAYS[way]
    folder = tmp_path / "policies"
    folder.mkdir()
    for name, text in POLICIES.items():
        (folder / name).write_text(text)
    async with RawServer([script]) as one, RawServer([GOOD]) as other:
        config: dict[str, Any] = {
            "policies": str(folder),
            "providers": {
                "first": {"dialect": "openai", "base_url": one.url},
                "second": {"dialect": "openai", "base_url": other.url, **second},
            },
            "models": {"m": model, "other": {"targets": ["second/m"]}},
        }
        if keys:
            config["keys"] = [{"name": "web", "key": WEB_KEY}]
        gateway = await start(lambda _url: config)
        # Where nobody may serve it, the call lasts as long as its caller waits: through two silences of 300 ms, or none.
        patience_ms = 60_000 if sees is not None else 900 if script is SILENT else 400
        own = [
            f"authorization: {CREDENTIAL}",
            f"x-gateway-deadline-ms: {patience_ms}",
            "openai-organization: org-of-the-caller",
        ]
        async with connect(gateway.url) as peer:
            body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            told = await peer.exchange(
                post("/v1/chat/completions", body, *own, *([f"x-api-key: {WEB_KEY}"] if keys else []))
            )

        assert {request.header(b"authorization") for request in one.requests} == {CREDENTIAL.encode()}
        seen = [(request.header(b"authorization") or b"").decode() for request in other.requests]
        assert seen == ([] if sees is None else [sees])
        assert (told.status == 200) is (sees is not None)
        if sees != CREDENTIAL:
            assert all(
                b"sk-of-the-caller" not in request.head and b"org-of" not in request.head for request in other.requests
            )
        if sees is None and way in ("silence", "hedge"):
            assert b"providers.second.accepts_callers_of: [first]" in told.body
