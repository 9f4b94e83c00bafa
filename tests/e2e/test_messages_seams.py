"""Callers of Messages where what serves them meets what others need: books, caches, jobs, edits of bodies, odd requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.anthropic_server import AnthropicServer, events
from tests.e2e.caches import keeping
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import WEB, result_of, with_jobs
from tests.e2e.harness import connect, get, post
from tests.e2e.test_messages import ASKED, CHAT, PATH, VERSION, ask, beside

STRICT = "x-gateway-strict: true"
CHATS = "/v1/chat/completions"


@pytest.fixture
async def anthropic() -> AsyncIterator[AnthropicServer]:
    async with AnthropicServer() as server:
        yield server


async def test_no_odd_block_is_a_defect(start: StartGateway, anthropic: AnthropicServer) -> None:
    """Whatever stands where a type is looked for."""
    gateway = await start(beside(anthropic))
    odds: tuple[Any, ...] = ([], {}, 7, None)
    for odd in odds:
        messages = [{"role": "user", "content": [{"type": odd}, {"type": "tool_result", "content": [{"type": odd}]}]}]
        for path, model in ((PATH, "gpt"), (PATH + "/count_tokens", "gpt"), (CHATS, "claude"), (CHATS, "gpt")):
            answer = await ask(gateway, {**ASKED, "model": model, "messages": messages}, path=path)
            assert answer.status < 500, answer.raw
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(get(f"/v1/models?limit=000000001{'9' * 5000}", VERSION))
    assert answer.status == 400


async def test_a_stream_that_breaks_off_is_paid_as_far_as_it_came(
    start: StartGateway, anthropic: AnthropicServer
) -> None:
    """Its start tells the input, and one token of output, whatever follows."""
    gateway = await start(beside(anthropic))
    anthropic.script.append((200, events(*["word "] * 50, is_whole=False)))
    await ask(gateway, {**ASKED, "stream": True}, VERSION)
    await gateway.idle()
    await gateway.stop()
    (call,) = gateway.records
    assert (call["input_tokens"], call["cached_tokens"], call["usage_estimated"]) == (112, 100, True)
    assert call["output_tokens"] >= 50


async def test_a_strict_call_gets_no_kept_answer_to_less(
    start: StartGateway, anthropic: AnthropicServer, tmp_path: Path
) -> None:
    gateway = await start(beside(anthropic, **keeping(tmp_path)))
    lossy = {**CHAT, "seed": 3}
    assert (await ask(gateway, lossy, path=CHATS)).header("x-gateway-lossy") == "seed(dropped)"
    again = await ask(gateway, lossy, path=CHATS)
    assert (again.header("x-gateway-cache"), again.header("x-gateway-lossy")) == ("hit", "seed(dropped)")
    answer = await ask(gateway, lossy, STRICT, path=CHATS)
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (400, "unsupported_by_targets")


async def test_a_repetition_tells_what_was_lost_and_a_strict_one_is_another_call(
    start: StartGateway, anthropic: AnthropicServer
) -> None:
    """Who asks for nothing to be lost is not given the answer to a call that lost something."""
    gateway = await start(beside(anthropic))
    lossy, key = {**CHAT, "seed": 3, "stream": True}, "idempotency-key: k1"
    first = await ask(gateway, lossy, key, path=CHATS)
    again = await ask(gateway, lossy, key, path=CHATS)
    assert (first.body, first.header("x-gateway-lossy")) == (again.body, "seed(dropped)")
    assert (again.header("idempotent-replayed"), again.header("x-gateway-lossy")) == ("true", "seed(dropped)")
    strict = await ask(gateway, lossy, key, STRICT, path=CHATS)
    assert (strict.status, orjson.loads(strict.body)["error"]["code"]) == (422, "idempotency_key_reused")
    assert len(anthropic.seen) == 1


async def test_a_strict_call_is_strict_as_a_job(
    start: StartGateway, anthropic: AnthropicServer, tmp_path: Path
) -> None:
    """The header stays with it, and goes to no provider."""
    made, jobs = beside(anthropic), with_jobs(tmp_path)

    def make(url: str) -> Mapping[str, Any]:
        return {**jobs(url), **{name: made(url)[name] for name in ("providers", "models")}}

    gateway = await start(make)
    for request in (
        post(CHATS, {**CHAT, "seed": 3}, WEB, STRICT, "prefer: respond-async"),
        post("/v1/jobs", {"endpoint": CHATS, "body": {**CHAT, "seed": 3}}, WEB, STRICT),
    ):
        async with connect(gateway.url) as peer:
            job = orjson.loads((await peer.exchange(request)).body)
        answer = await result_of(gateway.url, job["id"])
        assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (400, "unsupported_by_targets")
    assert anthropic.seen == []


async def test_a_count_has_no_field_that_it_cannot_have(start: StartGateway, anthropic: AnthropicServer) -> None:
    made = beside(anthropic)

    def make(url: str) -> Mapping[str, Any]:
        config: dict[str, Any] = dict(made(url))
        target = {"provider": "ant", "model": "claude-x", "body": {"set": {"service_tier": "auto"}, "drop": ["x"]}}
        return config | {"models": {"claude": {"targets": [target]}}}

    gateway = await start(make)
    await ask(gateway, {**ASKED, "x": 1}, VERSION, path=f"{PATH}/count_tokens")
    await ask(gateway, {**ASKED, "x": 1}, VERSION)
    counted, asked = (orjson.loads(body) for _, _, body in anthropic.seen)
    assert counted == {**ASKED, "model": "claude-x"}
    assert asked == {**ASKED, "model": "claude-x", "service_tier": "auto"}
