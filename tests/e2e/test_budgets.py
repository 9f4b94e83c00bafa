"""A key's budget over real sockets: sixty calls at once, and endpoints whose price nobody knows."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import openai
import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, WEB_KEY, Running, chat, config_of, connect, get, post
from tests.e2e.objects_provider import ObjectsProvider
from tests.loopback import plain_http

BUDGET_USD = 0.05
PRICE = {"input_usd_per_million": 0.0, "output_usd_per_million": 150.0}


def spending(**key: Any) -> Any:
    """A config whose first key has a budget; an answer of the emulator costs some tenths of a cent."""

    def config(url: str) -> dict[str, Any]:
        web = {**KEYS[0], "budget_usd_per_day": BUDGET_USD, **key}
        target = {"provider": "main", "model": "gpt-4o", "price": PRICE}
        return config_of(url, keys=[web, KEYS[1]], models={"gpt-4o": {"targets": [target]}}, passthrough="main")

    return config


@pytest.mark.parametrize("stream", [False, True])
async def test_sixty_calls_at_once_spend_the_budget_at_most(start: StartGateway, stream: bool) -> None:
    """The SDK comes back by itself while calls in flight hold the rest."""
    running = await start(spending())
    async with openai.AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key=WEB_KEY, max_retries=1, http_client=plain_http()
    ) as sdk:
        messages: Any = [{"role": "user", "content": "hello there"}]

        async def ask() -> str:
            try:
                answer: Any = await sdk.chat.completions.create(
                    model="gpt-4o", messages=messages, max_tokens=60, stream=stream
                )
                if stream:
                    async for _ in answer:
                        pass
            except openai.RateLimitError as error:
                return str(error.code)
            return "served"

        ends = Counter(await asyncio.gather(*[ask() for _ in range(60)]))
    await running.idle()
    await running.stop()
    spent = sum(record["cost_usd"] or 0.0 for record in running.records if record["event"] == "call")

    assert set(ends) <= {"served", "budget_reserved", "budget_exceeded"}
    assert ends["served"] >= 3
    assert spent <= 1.1 * BUDGET_USD


async def answer_of(running: Running, request: bytes) -> tuple[int, str | None]:
    async with connect(running.url) as peer:
        response = await peer.exchange(request)
        return response.status, response.error["code"] if response.status == 403 else None


@pytest.mark.parametrize("path", ["/v1/batches", "/batches", "/v1/threads/runs", "/v1/fine_tuning/jobs", "/v1/files/x"])
async def test_what_has_no_price_is_not_for_keys_with_a_budget(start: StartGateway, path: str) -> None:
    """Unless the key may; looking, deleting and uploading costs nothing."""
    running, open_to = await start(spending()), await start(spending(allow_unpriced=True))
    secret = f"authorization: Bearer {WEB_KEY}"

    assert await answer_of(running, post(path, {"a": 1}, secret)) == (403, "unpriced_endpoint")
    assert await answer_of(running, get(path, secret)) != (403, "unpriced_endpoint")
    assert await answer_of(running, get(path, secret, method="DELETE")) != (403, "unpriced_endpoint")
    assert await answer_of(running, post("/v1/files", b"x", secret)) != (403, "unpriced_endpoint")
    assert await answer_of(open_to, post(path, {"a": 1}, secret)) != (403, "unpriced_endpoint")


async def test_what_is_free_is_free_when_the_budget_is_spent(start: StartGateway) -> None:
    """A key that may not call any more can still see to its files."""
    running = await start(spending(budget_usd_per_day=1e-6, allow_overspend=True))
    secret = f"authorization: Bearer {WEB_KEY}"
    async with connect(running.url) as peer:
        statuses = [(await peer.exchange(post("/v1/chat/completions", chat(), secret))).status for _ in range(2)]
        listed = await peer.exchange(get("/v1/files", secret))

    assert statuses == [200, 429]
    assert listed.status not in (403, 429)


async def test_a_call_that_names_no_model_has_no_price(start: StartGateway) -> None:
    """It would go to whoever takes it, and nobody could count what it costs."""
    running = await start(spending())
    secret = f"authorization: Bearer {WEB_KEY}"

    assert await answer_of(running, post("/v1/responses", {"input": "hello"}, secret)) == (403, "unpriced_endpoint")
    assert running.upstream_calls() == 0


@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_response_in_the_background_holds_its_budget_until_its_usage_is_shown(
    start: StartGateway, is_shared: bool
) -> None:
    """Whether its answer is read for its ids, because tenants share the account, or passes as it is."""
    secret = f"authorization: Bearer {WEB_KEY}"
    asked = {"model": "gpt-4o", "input": "hello", "background": True, "max_output_tokens": 300}
    async with ObjectsProvider() as provider:

        def config(_: str) -> dict[str, Any]:
            sections = spending()(provider.url)
            return sections if is_shared else {**sections, "keys": sections["keys"][:1]}

        running = await start(config)
        async with connect(running.url) as peer:
            made = await peer.exchange(post("/v1/responses", asked, secret))
            id = orjson.loads(made.body)["id"]
            refused = await peer.exchange(post("/v1/responses", asked, secret))
            polled = await peer.exchange(get(f"/v1/responses/{id}", secret))
            still_refused = await peer.exchange(post("/v1/responses", asked, secret))
            usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
            provider.objects["responses"][id] |= {"status": "completed", "usage": usage}
            shown = await peer.exchange(get(f"/v1/responses/{id}", secret))
            served = await peer.exchange(post("/v1/responses", asked, secret))

    assert [made.status, polled.status, shown.status, served.status] == [200] * 4
    assert {one.error["code"] for one in (refused, still_refused)} == {"budget_exceeded"}
