"""`/admin/costs` and `gateway costs`: what calls have cost, and how much of that nobody has reported."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.cli.operate import costs_table
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, KEYS, NIGHTLY_KEY, WEB_KEY, chat, config_of, connect, get, post
from tests.support.raw_server import READ, RawServer

ADMIN = f"authorization: Bearer {ADMIN_KEY}"
TOLD = orjson.dumps(
    {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 300, "completion_tokens": 100}}
)
UNTOLD = orjson.dumps({"choices": [{"message": {"content": "x" * 400}}]})


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def test_operators_see_how_much_of_a_keys_money_is_estimated(start: StartGateway) -> None:
    """Each key's own; a key that has called nobody stands there for its budget."""
    price = {"input_usd_per_million": 0.0, "output_usd_per_million": 1e4}
    keys = [
        {**KEYS[0], "budget_usd_per_day": 50.0},
        KEYS[1],
        {"name": "idle", "key": "idle-key-0123456789abcdef", "budget_usd_per_day": 7},
    ]
    models = {
        "gpt-4o": {"targets": [{"provider": "main", "model": "gpt-4o", "price": price}]},
        "gpt-4o-odd": {"targets": ["main/odd"]},
    }
    told, untold = (f"authorization: Bearer {secret}" for secret in (WEB_KEY, NIGHTLY_KEY))
    async with RawServer([[READ, answer(TOLD), READ, answer(UNTOLD), READ, answer(TOLD)]]) as provider:
        running = await start(lambda _: config_of(provider.url, keys=keys, models=models, admin={"key": ADMIN_KEY}))
        async with connect(running.url) as peer:
            for key, model in ((told, "gpt-4o"), (untold, "gpt-4o"), (untold, "gpt-4o-odd")):
                assert (await peer.exchange(post("/v1/chat/completions", chat(model=model), key))).status == 200
            shown: dict[str, Any] = orjson.loads((await peer.exchange(get("/admin/costs", ADMIN))).body)
            scraped = (await peer.exchange(get("/metrics", ADMIN))).body.decode()

    web, nightly, idle = (shown["keys"][name] for name in ("web", "nightly", "idle"))
    assert (web["usd"], web["estimated_usd"], web["estimated_share"], web["unpriced_calls"]) == (1.0, 0.0, 0.0, 0)
    assert (web["budget_usd_per_day"], web["spent_today_usd"]) == (50.0, 1.0)
    assert nightly["usd"] == nightly["estimated_usd"] > 0.0
    assert (nightly["estimated_share"], nightly["unpriced_calls"], nightly["spent_today_usd"]) == (1.0, 1, None)
    assert (idle["usd"], idle["estimated_share"], idle["spent_today_usd"]) == (0.0, None, 0.0)
    budgets = [line for line in scraped.splitlines() if line.startswith("gateway_budget_")]
    assert sorted(budgets) == [
        'gateway_budget_left_usd{key="idle"} 7.0',
        'gateway_budget_left_usd{key="web"} 49.0',
        'gateway_budget_usd{key="idle"} 7.0',
        'gateway_budget_usd{key="web"} 50.0',
    ]
    assert shown["models"]["gpt-4o-odd"] == {
        "usd": 0.0,
        "estimated_usd": 0.0,
        "estimated_share": None,
        "unpriced_calls": 1,
    }
    assert shown["total"]["usd"] == pytest.approx(1.0 + nightly["usd"])
    table = costs_table(shown, "key").splitlines()
    assert table[0].split() == [
        "key",
        "cost",
        "of",
        "that",
        "estimated",
        "share",
        "calls",
        "not",
        "priced",
        "spent",
        "today",
    ]
    assert table[3].split() == ["web", "$1.00", "$0.00", "0.0%", "0", "$1.00", "of", "$50.00"]
    assert costs_table(shown, "model").splitlines()[2].split() == ["gpt-4o-odd", "$0.00", "$0.00", "-", "1", "-"]
