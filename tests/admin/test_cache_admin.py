"""`/admin/cache` and `/admin/stats`: what they tell, whom they obey, and what they do not take for an order."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.admin.http import MOST_BYTES
from gateway.core.errors import NotFound
from gateway.features.reuse.savings import Savings
from tests.admin.cacheadmin import KEY, FakeCache, hit, miss, saved, serving
from tests.e2e.harness import ADMIN_KEY, WEB_KEY, Response, chat, connect, get, post

ADMIN = f"authorization: Bearer {ADMIN_KEY}"
PURGE, WHY = "/admin/cache/purge", "/admin/cache/why"
ONE_TENANT = [{"name": "web", "key": WEB_KEY}]


async def exchange(folder: Path, request: bytes, cache: FakeCache | None = None, **options: Any) -> Response:
    """The answer to one request."""
    options.setdefault("savings", Savings())
    async with serving(folder, cache or FakeCache(), **options) as url, connect(url) as peer:
        return await peer.exchange(request)


def told(answer: Response) -> dict[str, Any]:
    """What a good answer says."""
    assert answer.status == 200, answer.raw
    found: dict[str, Any] = orjson.loads(answer.body)
    return found


@pytest.mark.parametrize(
    "request_of",
    [
        lambda *headers: get("/admin/cache", *headers),
        lambda *headers: get("/admin/stats", *headers),
        lambda *headers: get(f"{WHY}?request=req_1", *headers),
        lambda *headers: post(WHY, {"body": chat()}, *headers),
        lambda *headers: post(PURGE, {"all": True}, *headers),
    ],
)
async def test_all_of_it_is_behind_the_admin_key(tmp_path: Path, request_of: Any) -> None:
    """A caller's key is as wrong as none; without an admin key in the config there is nothing here."""
    cache = FakeCache()
    for wrong in ((), (f"authorization: Bearer {WEB_KEY}",)):
        assert (await exchange(tmp_path, request_of(*wrong), cache)).error["code"] == "invalid_api_key"

    off = await exchange(tmp_path, request_of(ADMIN), cache, admin=None)

    assert (off.status, off.error["code"]) == (404, "not_found")
    assert (cache.purged, cache.asked) == ([], [])


async def test_what_is_kept_is_shown_beside_what_may_be(tmp_path: Path) -> None:
    """And what came of it."""
    sizes = {"answers": {"entries": 3, "bytes": 3000}, "records": {"entries": 1, "bytes": 10}}

    shown = told(
        await exchange(tmp_path, get("/admin/cache", ADMIN), FakeCache(sizes), savings=saved(hit(), miss(), miss()))
    )

    assert shown["kept"] == sizes
    assert set(shown["bounds"]) == {"answers_bytes", "records_bytes", "vectors_per_partition"}
    assert shown["total"] == {
        "calls": 3,
        "hits": 1,
        "hit_rate": 0.3333,
        "input_tokens": 1000,
        "output_tokens": 200,
        "usd": 0.25,
        "unpriced": 0,
    }


async def test_what_was_saved_is_told_by_layer_model_and_key(tmp_path: Path) -> None:
    """Layers in the order in which they are asked, each of the calls for which it was; the provider at the end."""
    semantic = hit(layer="semantic", tried=[("exact", "miss"), ("semantic", "hit")], saved_usd=None)

    shown = told(
        await exchange(tmp_path, get("/admin/stats", ADMIN), savings=saved(semantic, miss(), hit(), miss(), miss()))
    )

    assert [(name, row["calls"], row["hits"], row["hit_rate"]) for name, row in shown["layers"].items()] == [
        ("single_flight", 4, 0, 0.0),
        ("exact", 5, 1, 0.2),
        ("semantic", 1, 1, 1.0),
        ("provider", 3, 0, 0.0),
    ]
    assert (shown["layers"]["semantic"]["usd"], shown["layers"]["semantic"]["unpriced"]) == (0, 1)
    assert shown["models"] == {"m": shown["total"]}
    assert shown["keys"] == {"web": shown["total"]}
    assert (shown["total"]["calls"], shown["total"]["hits"], shown["total"]["unpriced"]) == (5, 2, 1)


async def test_nothing_saved_is_no_rate(tmp_path: Path) -> None:
    """Of no calls there is no share."""
    shown = told(await exchange(tmp_path, get("/admin/stats", ADMIN)))

    assert shown["total"]["hit_rate"] is None
    assert shown["layers"] == shown["models"] == shown["keys"] == {}


@pytest.mark.parametrize(
    ("asked", "meant", "logged"),
    [
        ({"key": KEY.hex()}, (KEY, None, None), f"key '{KEY.hex()}'"),
        ({"model": "gpt-4o"}, (None, "gpt-4o", None), "model 'gpt-4o'"),
        ({"tenant": "web\n", "model": "m", "all": False}, (None, "m", "web\n"), "model 'm', tenant 'web\\n'"),
        (
            {"key": KEY.hex().upper(), "model": "m", "tenant": "t"},
            (KEY, "m", "t"),
            f"key '{KEY.hex()}', model 'm', tenant 't'",
        ),
        ({"all": True}, (None, None, None), "everything"),
    ],
)
async def test_what_is_named_is_forgotten(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    asked: dict[str, Any],
    meant: tuple[bytes | None, str | None, str | None],
    logged: str,
) -> None:
    """What matches all of it; how much that was is answered and logged."""
    cache = FakeCache(forgets=7)
    caplog.set_level(logging.WARNING, "gateway.admin")

    answer = told(await exchange(tmp_path, post(PURGE, asked, ADMIN), cache))

    assert (answer, cache.purged) == ({"forgotten": 7}, [meant])
    assert f"admin: purge of {logged}: 7 answers forgotten" in caplog.messages


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "Say what to forget: 'key', 'model' or 'tenant'"),
        ({"all": False}, "Say what to forget"),
        ({"key": None}, "Say what to forget"),
        ({"all": True, "model": "m"}, "'all' means everything of everybody"),
        ({"all": "yes"}, "'all' must be true or false"),
        ({"modle": "m", "tenant": "t"}, "Unknown field 'modle'; did you mean 'model'?"),
        ({"xyz": 1}, "Unknown field 'xyz'; there are: key, model, tenant, all."),
        ({"model": ""}, "'model' must be a string that is not empty"),
        ({"tenant": 1}, "'tenant' must be a string that is not empty"),
        ({"key": "abc"}, "the 64 hex digits of an answer's 'x-gateway-cache-key'"),
        ({"key": "ab" * 31}, "the 64 hex digits"),
        (b"[]", 'must be a JSON object, such as {"model": "gpt-4o"}'),
        (b"{", "must be a JSON object"),
    ],
)
async def test_nothing_is_forgotten_by_mistake(tmp_path: Path, asked: Mapping[str, Any] | bytes, said: str) -> None:
    """Least of all everything because something was misspelt."""
    cache = FakeCache()

    answer = await exchange(tmp_path, post(PURGE, asked, ADMIN), cache)

    assert answer.status == 400
    assert said in answer.error["message"]
    assert cache.purged == []


async def test_an_order_is_short(tmp_path: Path) -> None:
    """A request that is asked about may be as long as one that is served."""
    cache = FakeCache()
    long = "x" * MOST_BYTES

    order = await exchange(tmp_path, post(PURGE, {"model": long}, ADMIN), cache)
    question = await exchange(tmp_path, post(WHY, {"body": {"x": long}, "tenant": "web"}, ADMIN), cache)

    assert (order.status, question.status) == (413, 200)
    assert [body for _, body, _ in cache.asked] == [{"x": long}]


async def test_the_last_calls_are_explained(tmp_path: Path) -> None:
    """Whose it was, what each layer said, what it got and why."""
    shown = told(await exchange(tmp_path, get(f"{WHY}?request=req_2", ADMIN), savings=saved(miss(), hit())))

    assert shown == {
        "request": "req_2",
        "endpoint": "chat",
        "model": "m",
        "key": "web",
        "tenant": "web",
        "result": "hit",
        "layer": "exact",
        "tried": [{"layer": "single_flight", "result": "miss"}, {"layer": "exact", "result": "hit"}],
        "why": ["temperature is 0"],
        "cache_key": KEY.hex(),
        "source": "req_0",
        "source_target": "main/gpt-4o",
        "age_s": 12.346,
        "similarity": None,
        "saved": {"input_tokens": 1000, "output_tokens": 200, "usd": 0.25},
    }


async def test_what_is_not_known_of_a_call_is_null(tmp_path: Path) -> None:
    """A call that no layer knew has neither a source nor savings."""
    shown = told(await exchange(tmp_path, get(f"{WHY}?request=req_1", ADMIN), savings=saved(miss())))

    empty = ("layer", "cache_key", "source", "source_target", "age_s", "similarity", "saved")
    assert [shown[name] for name in empty] == [None] * len(empty)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        (f"{WHY}?request=req_9", 404, "No call 'req_9' is remembered: only the last 1,000 that"),
        (WHY, 400, "?request=<its x-request-id>; or POST a request"),
        (f"{WHY}?request=", 400, "?request=<its x-request-id>"),
    ],
)
async def test_a_call_that_is_not_known_is_said_to_be_none(tmp_path: Path, path: str, status: int, said: str) -> None:
    """With the reason why it may be unknown."""
    answer = await exchange(tmp_path, get(path, ADMIN), savings=saved(hit()))

    assert (answer.status, answer.error["param"]) == (status, "request")
    assert said in answer.error["message"]


@pytest.mark.parametrize(
    ("asked", "keys", "meant"),
    [
        ({"body": chat(), "tenant": "web/acme"}, None, ("chat", chat(), "web/acme")),
        ({"body": chat(), "endpoint": "embeddings"}, ONE_TENANT, ("embeddings", chat(), "web")),
        ({"body": {}}, [], ("chat", {}, "anonymous")),
    ],
)
async def test_a_request_that_was_not_made_is_explained(
    tmp_path: Path,
    asked: dict[str, Any],
    keys: list[dict[str, Any]] | None,
    meant: tuple[str, dict[str, Any], str],
) -> None:
    """Of the chat endpoint and the only tenant, where nothing else is said; with what each layer would say now."""
    cache = FakeCache(replay=hit())

    shown = told(await exchange(tmp_path, post(WHY, asked, ADMIN), cache, **({} if keys is None else {"keys": keys})))

    assert cache.asked == [meant]
    assert (shown["endpoint"], shown["tenant"]) == (meant[0], meant[2])
    assert (shown["result"], shown["layer"], shown["cache_key"]) == ("hit", "exact", KEY.hex())
    assert "request" not in shown


@pytest.mark.parametrize(
    ("asked", "param", "said"),
    [
        ({"body": chat()}, "tenant", "nobody gets another's answers: 'tenant' as one of nightly, web."),
        ({"tenant": "web"}, "body", "'body' must be a request's JSON object"),
        ({"body": "{}", "tenant": "web"}, "body", "'body' must be a request's JSON object"),
        ({"body": {}, "tenant": "web", "endpoint": "chatt"}, "endpoint", "must be one of: chat, completions,"),
        ({"body": {}, "tenant": "web", "endpoint": "transcriptions"}, "endpoint", "must be one of: chat,"),
        ({**chat(), "tenant": "web"}, "model", "Unknown field 'model'; there are: body, endpoint, tenant."),
    ],
)
async def test_a_question_names_what_it_lacks(tmp_path: Path, asked: dict[str, Any], param: str, said: str) -> None:
    """With the remedy."""
    cache = FakeCache()

    answer = await exchange(tmp_path, post(WHY, asked, ADMIN), cache)

    assert (answer.status, answer.error["param"]) == (400, param)
    assert said in answer.error["message"]
    assert cache.asked == []


async def test_a_request_that_would_be_refused_is_answered_as_it_would_be(tmp_path: Path) -> None:
    """An unknown model has no layers that could say anything."""
    cache = FakeCache(refuses=NotFound("The model 'x' does not exist.", code="model_not_found"))

    answer = await exchange(tmp_path, post(WHY, {"body": chat("x"), "tenant": "web"}, ADMIN), cache)

    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_nothing_is_forgotten_by_looking(tmp_path: Path) -> None:
    """A purge is a POST."""
    cache = FakeCache()

    answer = await exchange(tmp_path, get(PURGE, ADMIN), cache)

    assert (answer.status, answer.header("allow")) == (405, "POST")
    assert cache.purged == []
