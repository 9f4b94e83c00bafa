"""Health, metrics and admin: what they say, to whom, and on which port."""

from __future__ import annotations

import random
import socket
from dataclasses import replace
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from gateway.admin.http import health_routes
from gateway.core.intake import InFlight
from gateway.core.ports import StoreHealth
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import (
    ADMIN_KEY,
    KEYS,
    NIGHTLY_KEY,
    PROVIDER_KEY,
    WEB_KEY,
    Peer,
    Running,
    chat,
    config_of,
    connect,
    get,
    post,
)

CHAT = "/v1/chat/completions"
ADMIN = f"authorization: Bearer {ADMIN_KEY}"
PROMPT = "a-prompt-canary-nobody-may-read"


def guarded(url: str, **admin: Any) -> dict[str, Any]:
    """Keys for callers and a key for operators."""
    return config_of(url, keys=KEYS, admin={"key": ADMIN_KEY, **admin})


async def series(peer: Peer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All of /metrics, parsed as Prometheus does."""
    answer = await peer.exchange(get("/metrics"))
    assert answer.status == 200
    assert (answer.header("content-type") or "").startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.body.decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def labels(**values: str) -> frozenset[tuple[str, str]]:
    """A set of labels."""
    return frozenset(values.items())


async def test_health_answers_on_every_path_without_a_key_or_a_provider(start: StartGateway) -> None:
    """Alive and ready, whoever asks, and nobody is called for it."""
    gateway = await start(guarded)
    paths = ["/healthz", "/livez", "/readyz", "/health/liveliness", "/health/liveness", "/health/readiness"]

    async with connect(gateway.url) as peer:
        answers = [await peer.exchange(get(path)) for path in paths]

    assert [answer.status for answer in answers] == [200] * 6
    assert gateway.upstream_calls() == 0


async def test_readiness_is_gone_while_draining_and_new_calls_are_refused(gateway: Running) -> None:
    """503 with a true hint, and the connection closes; liveness stays."""
    gateway.inflight.draining = True

    async with connect(gateway.url) as peer:
        ready = await peer.exchange(get("/readyz"))
        live = await peer.exchange(get("/healthz"))
        refused = await peer.exchange(post())

    assert (ready.status, live.status, refused.status) == (503, 200, 503)
    assert refused.error["code"] == "shutting_down"
    assert refused.header("x-should-retry") == "true"
    assert refused.header("retry-after") == "1"
    assert refused.header("connection") == "close"


async def readiness(inflight: InFlight, health: StoreHealth | None) -> tuple[int, dict[str, Any]]:
    """Status and body of `/readyz` where the store is so, a minute and a half after it became so."""
    app = Starlette(routes=health_routes(inflight, lambda: health, lambda: 1_090.04))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        answers = [await client.get(path) for path in ("/readyz", "/health/readiness")]
    assert answers[0].content == answers[1].content
    return answers[0].status_code, answers[0].json()


UP = StoreHealth(True, 1_000.0, "redis 7.0 at secret-host", 4, 100, 0)


async def test_readiness_tells_how_the_shared_store_is() -> None:
    """And what that means for the limits; nothing of it where none is shared."""
    up = {"status": "up", "since_s": 90.0, "replicas": 4, "limits": "shared"}

    assert await readiness(InFlight(), UP) == (200, {"status": "ready", "calls": 0, "state": up})
    assert await readiness(InFlight(), None) == (200, {"status": "ready", "calls": 0})


async def test_readiness_says_when_the_other_replicas_are_not_heard() -> None:
    """The limits are shared all the same."""
    _, said = await readiness(InFlight(), replace(UP, is_deaf=True))

    assert (said["state"]["limits"], said["state"]["news"]) == ("shared", "not heard")


async def test_a_gateway_whose_store_is_gone_stays_ready() -> None:
    """It serves on its part of each limit; taking it out of service would make an outage of it."""
    status, said = await readiness(InFlight(), replace(UP, is_up=False))

    assert status == 200
    assert said["state"] == {"status": "gone", "since_s": 90.0, "replicas": 4, "limits": "1/4 of each"}


async def test_readiness_shows_no_host_and_no_time_before_the_start() -> None:
    """Anybody may ask; and clocks are set back now and then."""
    inflight = InFlight()
    inflight.draining = True

    status, said = await readiness(inflight, replace(UP, since=2_000.0))

    assert (status, said["status"], said["state"]["since_s"]) == (503, "draining", 0.0)
    assert "secret-host" not in str(said)


async def test_metrics_count_what_was_served(gateway: Running) -> None:
    """Calls, tokens, attempts and refusals agree with what the client saw; a failure that was repaired is an attempt."""
    async with connect(gateway.url) as peer:
        for _ in range(3):
            await peer.exchange(post())
        await peer.exchange(post(CHAT, b"{"))
        gateway.script("e500", "context_length")
        await peer.exchange(post())
        seen = await series(peer)

    model, target = {"model": "gpt-4o"}, {"target": "main/gpt-4o"}
    assert seen["gateway_requests_total", labels(**model, key="anonymous", outcome="ok")] == 3
    assert seen["gateway_requests_total", labels(**model, key="anonymous", outcome="context_length_exceeded")] == 1
    assert seen["gateway_attempts_total", labels(**target, **{"class": "ok"})] == 3
    assert seen["gateway_attempts_total", labels(**target, **{"class": "server_error"})] == 1
    assert seen["gateway_attempts_total", labels(**target, **{"class": "context_length_exceeded"})] == 1
    assert seen["gateway_time_to_first_byte_seconds_count", labels(**target)] == 5
    assert seen["gateway_breaker_state", labels(**target)] == seen["gateway_breaker_state", labels(target="main")] == 0
    assert seen["gateway_retry_budget_level", labels(**target)] == 495
    assert seen["gateway_tokens_total", labels(**model, **target, kind="output")] == 180
    assert seen["gateway_requests_refused_total", labels(code="invalid_json")] == 1
    assert seen["gateway_calls_in_flight", labels()] == 0
    assert seen["gateway_config_version", labels()] == 1
    assert seen["gateway_request_duration_seconds_count", labels(**model)] == 4
    assert seen["gateway_cost_usd_total", labels(**model, **target, key="anonymous")] > 0


async def test_clients_cannot_add_series(start: StartGateway) -> None:
    """A hundred made-up models, paths, ids, codes and methods later /metrics has the labels that the config names."""
    gateway = await start(lambda url: config_of(url, passthrough="main"))
    draw = random.Random(7)
    async with connect(gateway.url) as peer:
        await peer.exchange(post())
        await peer.exchange(post(CHAT, orjson.dumps(chat("first"))))
        await peer.exchange(get("/v1/other"))
        await peer.exchange(get("/v1/files/other"))
        await peer.exchange(get("/nothing"))
        await peer.exchange(post(CHAT, b"{"))
        await gateway.gateway._housekeeping.tick(0.0)  # what it sets is there before as well as after
        before = set(await series(peer))
        for _ in range(100):
            name = f"m{draw.getrandbits(64):x}"
            await peer.exchange(post(CHAT, orjson.dumps(chat(name)), f"x-request-id: {name}"))
            await peer.exchange(get(f"/v1/{name}"))
            await peer.exchange(get(f"/{name}"))
        after = await series(peer)

    assert set(after) == before
    assert after["gateway_requests_total", labels(model="*", key="anonymous", outcome="ok")] == 101


async def test_openmetrics_is_served_to_those_who_ask(gateway: Running) -> None:
    """As newer scrapers do."""
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(get("/metrics", "accept: application/openmetrics-text; version=1.0.0"))

    assert (answer.header("content-type") or "").startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")


async def test_the_admin_api_does_not_exist_without_an_admin_key(start: StartGateway) -> None:
    """404, also for those who have another key."""
    gateway = await start(lambda url: config_of(url, keys=KEYS))

    async with connect(gateway.url) as peer:
        answers = [
            await peer.exchange(get("/admin/config", *headers))
            for headers in ((), ("authorization: Bearer ",), (f"authorization: Bearer {WEB_KEY}",))
        ]

    assert [(answer.status, answer.error["code"]) for answer in answers] == [(404, "not_found")] * 3


async def test_the_admin_api_opens_to_the_admin_key_only(start: StartGateway) -> None:
    """A caller's key is as wrong as none."""
    gateway = await start(guarded)
    wrong = [
        (),
        ("authorization: Bearer ",),
        ("authorization: Bearer wrong",),
        (f"authorization: Bearer {WEB_KEY}",),
        (f"authorization: Bearer {PROVIDER_KEY}",),
        (f"authorization: Basic {ADMIN_KEY}",),
        ("authorization: Bearer \xff\xfe",),
        (f"cookie: {ADMIN_KEY}",),
    ]

    async with connect(gateway.url) as peer:
        refused = [await peer.exchange(get("/admin/config", *headers)) for headers in wrong]
        shown = await peer.exchange(get("/admin/config", ADMIN))
        also = await peer.exchange(get("/admin/config", f"x-api-key: {ADMIN_KEY}"))
        calls = await peer.exchange(post(CHAT, None, ADMIN))

    assert [(answer.status, answer.error["code"]) for answer in refused] == [(401, "invalid_api_key")] * len(wrong)
    assert (shown.status, also.status) == (200, 200)
    assert calls.status == 401
    config = orjson.loads(shown.body)
    assert config["in_force"]["version"] == 1
    assert config["in_force"]["providers"]["main"]["api_key"] == "set"
    assert [key["name"] for key in config["in_force"]["keys"]] == ["web", "nightly"]
    assert config["last_reload"] is None


async def test_admin_listen_moves_metrics_and_admin_off_the_data_plane(start: StartGateway) -> None:
    """The first port serves calls and health, the second one operators and health, and no calls."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gateway = await start(lambda url: guarded(url, listen=f"127.0.0.1:{port}"))
    key = f"authorization: Bearer {WEB_KEY}"

    async with connect(gateway.url) as peer, connect(f"http://127.0.0.1:{port}") as operator:
        data = [(await peer.exchange(get(path, ADMIN))).status for path in ("/metrics", "/admin/config", "/healthz")]
        admin = [
            (await operator.exchange(get(path, ADMIN))).status for path in ("/metrics", "/admin/config", "/healthz")
        ]
        served = await peer.exchange(post(CHAT, None, key))
        not_served = await operator.exchange(post(CHAT, None, key))
        models = await operator.exchange(get("/v1/models", key))

    assert data == [404, 404, 200]
    assert admin == [200, 200, 200]
    assert (served.status, not_served.status, models.status) == (200, 404, 404)
    assert not_served.error["code"] == "not_found"


async def test_no_secret_and_no_prompt_shows_anywhere(start: StartGateway) -> None:
    """Keys, credentials, prompts, header values: not in the log, the metrics, the admin view, an error or the records."""
    own, header = "sk-callers-own-canary-99", "a-header-canary-17"
    models = {"*": {"targets": ["main"]}, "dead": {"targets": ["dead/x"]}}
    main = {"dialect": "openai", "api_key": PROVIDER_KEY, "headers": {"x-team": header}}
    dead = {"dialect": "openai", "api_key": PROVIDER_KEY, "base_url": "http://127.0.0.1:1/v1"}

    def config(url: str) -> dict[str, Any]:
        return guarded(url) | {"providers": {"main": main | {"base_url": url}, "dead": dead}, "models": models}

    gateway = await start(config)
    body = chat(messages=[{"role": "user", "content": PROMPT}])
    sent = [
        post(CHAT, orjson.dumps(body), f"authorization: Bearer {WEB_KEY}", f"x-secret: {header}"),
        post(CHAT, orjson.dumps(body | {"stream": True}), f"x-api-key: {WEB_KEY}", f"authorization: Bearer {own}"),
        post(CHAT, orjson.dumps(body | {"model": "dead"}), f"authorization: Bearer {WEB_KEY}"),
        post(CHAT, orjson.dumps(body | {"temperature": 9}), f"authorization: Bearer {WEB_KEY}"),
        post(CHAT, orjson.dumps(body), f"authorization: Bearer {own}"),
        post(CHAT, orjson.dumps(body | {"stream": PROMPT}), f"authorization: Bearer {WEB_KEY}"),
        post(CHAT, orjson.dumps(body)[:-1], f"authorization: Bearer {WEB_KEY}"),
        post(f"/v1/nowhere?key={own}", orjson.dumps(body), f"authorization: Bearer {own}"),
        get("/admin/config", f"authorization: Bearer {own}"),
    ]
    async with connect(gateway.url) as peer:
        answers = [await peer.exchange(request) for request in sent]
        shown = [await peer.exchange(get("/metrics")), await peer.exchange(get("/admin/config", ADMIN))]
    assert [answer.status for answer in answers] == [200, 200, 502, 400, 401, 400, 400, 404, 401]
    await gateway.stop()

    errors = b"".join(answer.raw for answer in answers if answer.status != 200)
    everything = gateway.log.getvalue().encode() + errors + b"".join(answer.raw for answer in shown)
    everything += b"".join(b": ".join(map(str.encode, each)) for answer in answers for each in answer.headers)
    for secret in (WEB_KEY, NIGHTLY_KEY, ADMIN_KEY, PROVIDER_KEY, own, header, PROMPT):
        assert secret.encode() not in everything, secret


async def test_it_is_not_ready_while_the_emulator_stands_in_for_others() -> None:
    """Made-up answers are no service: a balancer has to look elsewhere, and the operator is told what to do."""
    app = Starlette(routes=health_routes(InFlight(), emulated=lambda: ("openai",)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        ready, live = await client.get("/readyz"), await client.get("/healthz")

    assert (ready.status_code, live.status_code) == (503, 200)
    assert (ready.json()["status"], ready.json()["emulated"]) == ("emulating", ["openai"])
    assert "api_key" in ready.json()["remedy"]
