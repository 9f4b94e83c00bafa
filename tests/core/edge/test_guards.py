"""Who may use which route: one table, and the routes that there really are.

A route without a row fails, and so does a row without a route, on both ports: whoever adds one has to say here whom it serves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.routing import Route

from gateway.core.http.server import HttpServer
from gateway.products.jobs.answers_http import OwnRoute
from gateway.products.jobs.model import BATCH, FILE, JOB, RESPONSE, new_id
from gateway.products.routes import ObjectRoute
from gateway.routes import Front, PassThrough, Upgrade
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, KEYS, NIGHTLY_KEY, WEB_KEY, Peer, config_of, connect

MODEL = orjson.dumps({"model": "gpt-4o", "input": "x", "messages": [{"role": "user", "content": "x"}], "prompt": "x"})
CONTENTS = orjson.dumps({"contents": [{"parts": [{"text": "x"}]}]})
MESSAGE = orjson.dumps({"model": "gpt-4o", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]})
FORM = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\ngpt-4o\r\n--b--\r\n'
ANSWER = (
    b'{"object": "anything", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}], "output": []}'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
SWITCH = orjson.dumps({"action": "reset", "name": "main/gpt-4o"})

ROLES: Mapping[str, tuple[str, ...]] = {
    "nobody": (),
    "a caller": (f"authorization: Bearer {WEB_KEY}",),
    "a caller by x-api-key": (f"x-api-key: {WEB_KEY}",),
    "a restricted caller": (f"authorization: Bearer {NIGHTLY_KEY}",),
    "a stranger": ("authorization: Bearer made-up-key-0123456789",),
    "the operator": (f"authorization: Bearer {ADMIN_KEY}",),
    "a foreign page": ("origin: https://evil.example",),
    "a foreign page's image": ("sec-fetch-site: cross-site",),
    "a rebound page": ("host: evil.example",),
}
PAGES = ("a foreign page", "a foreign page's image", "a rebound page")
IN = 0
"""Served: whatever the row says of those who are."""

ANY = -1
"""A row's word: not refused; the methods differ in what they answer."""

Guards = Mapping[str, Mapping[str, int]]


def _guard(otherwise: int, **said: int) -> Mapping[str, int]:
    """The status that each role gets: what is said of it, or of all pages, or else."""
    pages = said.pop("pages", otherwise)
    named = {name.replace("_", " "): status for name, status in said.items()}
    return {role: named.get(role, pages if role in PAGES else otherwise) for role in ROLES}


_CALLERS = {"a_caller": IN, "a_restricted_caller": IN} | {"a caller by x-api-key": IN}
WITH_KEYS: Guards = {
    "all": _guard(IN),
    "scrapers": _guard(IN),
    "callers": _guard(401, **_CALLERS),
    "callers of all": _guard(401, **_CALLERS | {"a_restricted_caller": 403}),
    "operators": _guard(401, the_operator=IN),
}
"""By what guards a route: the status of each role where the config has callers' keys and an admin key …"""
WITHOUT_KEYS: Guards = {
    "all": _guard(IN),
    "scrapers": _guard(IN, pages=403),
    "callers": _guard(IN, pages=403),
    "callers of all": _guard(IN, pages=403),
    "operators": _guard(401, the_operator=IN),
}
"""… where it has the admin key alone, on loopback …"""
WITHOUT_ADMIN: Guards = {**WITH_KEYS, "operators": _guard(404)}
"""… and where it has callers' keys alone."""


@dataclass(frozen=True)
class Row:
    """A route: what guards it, a request that it serves, and the status of those whom it does."""

    guard: str
    path: str = ""
    """Where the pattern is none."""
    body: bytes = b""
    served: int = 200
    without_keys: int = 0
    """As `served`, where that is another."""


def _hot() -> Iterator[tuple[str, Row]]:
    for prefix in ("", "/v1"):
        for path in ("chat/completions", "completions", "embeddings", "responses", "moderations"):
            yield f"POST {prefix}/{path}", Row("callers", body=MODEL)
        for path in ("messages", "messages/count_tokens"):
            yield f"POST {prefix}/{path}", Row("callers", body=MESSAGE)
        for path in ("images/generations", "audio/speech"):
            yield f"POST {prefix}/{path}", Row("callers", body=MODEL)
        yield f"POST {prefix}/audio/transcriptions", Row("callers", body=FORM)


def _generate() -> Iterator[tuple[str, Row]]:
    for version in ("/v1beta", "/v1"):
        yield (
            f"POST {version}/models/{{name:path}}:{{verb}}",
            Row("callers", f"{version}/models/gpt-4o:generateContent", CONTENTS),
        )
    yield "GET|HEAD /v1beta/models", Row("callers")
    yield "GET|HEAD /v1beta/models/{name:path}", Row("callers", "/v1beta/models/gpt-4o")


def _jobs() -> Iterator[tuple[str, Row]]:
    """Whoever is served learns that there is none: a stranger does not."""
    job, response = new_id(JOB, bytes(16)), new_id(RESPONSE, bytes(16))
    body = b'{"endpoint": "/v1/chat/completions", "body": %b}' % MODEL
    for prefix in ("", "/v1"):
        yield f"GET|HEAD {prefix}/jobs", Row("callers")
        yield f"POST {prefix}/jobs", Row("callers", body=body, served=202)
        yield f"GET|HEAD {prefix}/jobs/{{id}}", Row("callers", f"{prefix}/jobs/{job}", served=404)
        for below in ("result", "events"):
            yield f"GET|HEAD {prefix}/jobs/{{id}}/{below}", Row("callers", f"{prefix}/jobs/{job}/{below}", served=404)
        yield f"POST {prefix}/jobs/{{id}}/cancel", Row("callers", f"{prefix}/jobs/{job}/cancel", served=404)
        for route, below in (("GET|HEAD", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET|HEAD", "/input_items")):
            path = f"{prefix}/responses/{{id}}{below}"
            yield f"{route} {path}", Row("callers", path.replace("{id}", response), served=404)


def _runs() -> Iterator[tuple[str, Row]]:
    """Whoever is served learns that there is none."""
    for prefix in ("", "/v1"):
        yield f"GET|HEAD {prefix}/runs", Row("callers")
        yield f"GET|HEAD {prefix}/runs/{{id:path}}", Row("callers", f"{prefix}/runs/r", served=404)
        yield f"DELETE {prefix}/runs/{{id:path}}", Row("callers", f"{prefix}/runs/r", served=404)
        told = Row("callers", f"{prefix}/runs/r/outcome", b'{"usable": true}', served=404)
        yield f"POST {prefix}/runs/{{id:path}}/outcome", told


def _own_objects() -> Iterator[tuple[str, Row]]:
    file, batch = new_id(FILE, bytes(16)), new_id(BATCH, bytes(16))
    for prefix in ("", "/v1"):
        for kind, id in (("files", file), ("batches", batch)):
            yield f"GET|HEAD {prefix}/{kind}", Row("callers")
            yield f"POST {prefix}/{kind}", Row("callers", served=400)  # of no content type, with no file to read
            yield f"GET|HEAD {prefix}/{kind}/{{id}}", Row("callers", f"{prefix}/{kind}/{id}", served=404)
        content = f"{prefix}/files/{file}/content"
        yield f"GET|HEAD {prefix}/files/{{id}}/content", Row("callers", content, served=404)
        yield f"DELETE {prefix}/files/{{id}}", Row("callers", f"{prefix}/files/{file}", served=404)
        yield f"GET|HEAD {prefix}/batches/{{id}}/events", Row("callers", f"{prefix}/batches/{batch}/events", served=404)
        yield f"POST {prefix}/batches/{{id}}/cancel", Row("callers", f"{prefix}/batches/{batch}/cancel", served=404)


DATA: Mapping[str, Row] = {
    **dict(_hot()),
    "GET|HEAD /models": Row("callers"),
    "GET|HEAD /v1/models": Row("callers"),
    "GET|HEAD /models/{name:path}": Row("callers", "/models/gpt-4o"),
    "GET|HEAD /v1/models/{name:path}": Row("callers", "/v1/models/gpt-4o"),
    **dict(_generate()),
    "GET|HEAD /realtime": Row("callers", served=426),
    "GET|HEAD /v1/realtime": Row("callers", served=426),
    **dict(_jobs()),
    **dict(_runs()),
    "DELETE|GET|HEAD|PATCH|POST|PUT /{path:path}": Row("callers of all", "/v1/audio/voices"),
}
OBJECTS: Mapping[str, Row] = dict(_own_objects())
"""Files and batches, where the config makes them the gateway's own."""
HEALTH: Mapping[str, Row] = {
    "GET|HEAD /healthz": Row("all"),
    "GET|HEAD /livez": Row("all"),
    "GET|HEAD /health/liveliness": Row("all"),
    "GET|HEAD /health/liveness": Row("all"),
    "GET|HEAD /readyz": Row("all"),
    "GET|HEAD /health/readiness": Row("all"),
}
OPERATIONS: Mapping[str, Row] = {
    "GET|HEAD /metrics": Row("scrapers"),
    "GET|HEAD /admin/config": Row("operators"),
    "GET|HEAD /admin/limits": Row("operators"),
    "GET|HEAD /admin/queue": Row("operators"),
    "GET|HEAD /admin/targets": Row("operators"),
    "POST /admin/targets": Row("operators", body=SWITCH),
    "POST /admin/targets/{name:path}": Row("operators", "/admin/targets/main/gpt-4o", SWITCH),
    "POST /admin/accounts": Row("operators", body=b'{"action": "reset", "name": "main"}'),
    "POST /admin/accounts/{name:path}": Row("operators", "/admin/accounts/main", SWITCH),
    "GET|HEAD /admin/cache": Row("operators"),
    "GET|HEAD /admin/stats": Row("operators"),
    "GET|HEAD /admin/costs": Row("operators"),
    "POST /admin/cache/purge": Row("operators", body=b'{"all": true}'),
    "GET|HEAD|POST /admin/cache/why": Row("operators", body=b'{"tenant": "web", "body": %b}' % MODEL, served=ANY),
    "GET|HEAD /admin/state/backup": Row("operators"),
    "GET|HEAD /admin/jobs/backup": Row("operators"),
    "GET|HEAD /admin/jobs": Row("operators"),
    **{
        f"POST /admin/jobs/{name}": Row("operators", body=b'{"ids": ["batch_1"]}')
        for name in ("pause", "resume", "retry")
    },
    "GET|HEAD /admin/workflows": Row("operators"),
    "GET|HEAD /admin/workflows/{name:path}/runs": Row("operators", "/admin/workflows/other/runs"),
    "GET|HEAD /admin/runs": Row("operators"),
    "GET|HEAD /admin/runs/{run:path}": Row("operators", "/admin/runs/r", served=404),
    "GET|HEAD /admin/webhooks": Row("operators"),
    "POST /admin/webhooks/{name:path}/redeliver": Row(
        "operators", "/admin/webhooks/(requests)/redeliver", b'{"since_s": 60}'
    ),
    **{
        f"POST /admin/webhooks/{{name:path}}/{action}": Row("operators", f"/admin/webhooks/crm/{action}", served=404)
        for action in ("disable", "enable", "test")
    },
    "GET|HEAD /admin/dlq": Row("operators"),
    "GET|HEAD /admin/dlq/{id}": Row("operators", served=404),
    "POST /admin/dlq/replay": Row("operators", body=b'{"dry_run": true}'),
    "POST /admin/dlq/purge": Row("operators", body=b'{"all": true}'),
    "POST /admin/objects/claim": Row("operators", body=b'{"tenant": "web", "ids": ["file-1"]}', without_keys=404),
}


@asynccontextmanager
async def agreeable() -> AsyncIterator[str]:
    """A provider that answers every request with 200."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                body = b"" if head.startswith(b"head ") else ANSWER
                writer.write(HEAD % len(ANSWER) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


def routes_of(server: HttpServer) -> list[str]:
    """Every method and path that a port serves; hot ones are found before the others, and have to be among them."""
    app: Any = server._config.app
    front = app if isinstance(app, Front) else None
    rest: Any = app if front is None else front._rest
    routes = [route for route in rest.routes if type(route) is not Upgrade]  # products/realtime: it closes what asks
    for route in routes:
        assert type(route) in (Route, ObjectRoute, OwnRoute, PassThrough), (
            f"{route}: the test does not know how to ask for this kind of route"
        )
    named = ["|".join(sorted(route.methods)) + " " + route.path for route in routes]
    assert front is None or {f"POST {path}" for path in front._hot} <= set(named)
    assert len(named) == len(set(named)), "a route is there twice: the first alone is asked"
    return named


def differing(routes: list[str], rows: Mapping[str, Row]) -> list[str]:
    """The routes without a row, and the rows without a route."""
    return sorted(set(routes) ^ set(rows))


async def wrongly_served(peer: Peer, rows: Mapping[str, Row], guards: Guards) -> list[str]:
    """Whoever gets another status than the table has for him."""
    wrong = []
    for name, row in rows.items():
        methods, _, pattern = name.partition(" ")
        served = row.without_keys or row.served if guards is WITHOUT_KEYS else row.served
        for method in methods.split("|"):
            for role, headers in ROLES.items():
                expected = guards[row.guard][role]
                status = await ask(peer, method, row.path or pattern, row.body, headers)
                is_right = (status < 500 and status not in (401, 403)) if served == ANY else status == served
                if not (is_right if expected == IN else status == expected):
                    wrong.append(f"{method} {pattern}: {role} got {status}, not {expected or served}")
    return wrong


async def ask(peer: Peer, method: str, path: str, body: bytes, headers: tuple[str, ...]) -> int:
    body = body if method in ("POST", "PUT", "PATCH") else b""
    kind = "multipart/form-data; boundary=b" if body is FORM else "application/json"
    host = [] if any(header.startswith("host:") for header in headers) else ["host: localhost"]
    lines = [f"{method} {path} HTTP/1.1", *host, f"content-length: {len(body)}", f"content-type: {kind}", *headers]
    peer.send("\r\n".join([*lines, "", ""]).encode() + body)
    return (await peer.response(head=method == "HEAD")).status


def config(url: str, folder: Path, **sections: Any) -> dict[str, Any]:
    """Everything that adds routes, or opens them."""
    return config_of(url, passthrough="main", state=f"sqlite:///{folder}/state.db", **sections)


@pytest.mark.parametrize(
    ("sections", "guards"),
    [
        ({"keys": KEYS, "admin": {"key": ADMIN_KEY}, "jobs": {}}, WITH_KEYS),
        ({"admin": {"key": ADMIN_KEY}, "jobs": {}}, WITHOUT_KEYS),
        ({"keys": KEYS, "admin": {"key": ADMIN_KEY}}, WITH_KEYS),
        ({"admin": {"key": ADMIN_KEY}}, WITHOUT_KEYS),
        ({"keys": KEYS}, WITHOUT_ADMIN),
    ],
    ids=["with files", "with files, without keys", "with keys", "without keys", "without an admin key"],
)
async def test_every_route_of_the_one_port_serves_whom_the_table_says(
    start: StartGateway, tmp_path: Path, sections: dict[str, Any], guards: Guards
) -> None:
    rows = {**DATA, **HEALTH, **OPERATIONS, **(OBJECTS if "jobs" in sections else {})}
    async with agreeable() as provider:
        gateway = await start(lambda _: config(provider, tmp_path, **sections))
        (server,) = gateway.gateway._servers
        assert differing(routes_of(server), rows) == []
        async with connect(server.url) as peer:
            assert await wrongly_served(peer, rows, guards) == []


async def test_with_two_ports_operators_and_callers_are_apart(start: StartGateway, tmp_path: Path) -> None:
    """What belongs to the other port is not there, whoever asks."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
    sections = {"keys": KEYS, "admin": {"key": ADMIN_KEY, "listen": listen}}
    async with agreeable() as provider:
        gateway = await start(lambda _: config(provider, tmp_path, **sections))
        data, admin = gateway.gateway._servers
        assert differing(routes_of(data), {**DATA, **HEALTH}) == []
        assert differing(routes_of(admin), {**HEALTH, **OPERATIONS}) == []
        async with connect(data.url) as peer, connect(admin.url) as operator:
            assert await wrongly_served(peer, {**DATA, **HEALTH}, WITH_KEYS) == []
            assert await wrongly_served(operator, {**HEALTH, **OPERATIONS}, WITH_KEYS) == []
            assert await wrongly_served(peer, OPERATIONS, _nothing()) == []
            assert await wrongly_served(operator, DATA, _nothing()) == []


def _nothing() -> Guards:
    return {name: _guard(404) for name in WITH_KEYS}


async def test_a_route_that_nobody_has_a_row_for_is_found(start: StartGateway, tmp_path: Path) -> None:
    """A new path, a method more on an old one, and a hot endpoint that the routes do not have."""
    gateway = await start(lambda url: config(url, tmp_path))
    (server,) = gateway.gateway._servers
    front: Any = server._config.app
    rows = {**DATA, **HEALTH, **OPERATIONS}

    async def show(_request: Any) -> None: ...

    front._rest.routes.append(Route("/debug/vars", show))
    front._rest.routes.append(Route("/admin/config", show, methods=["DELETE"]))
    assert differing(routes_of(server), rows) == ["DELETE /admin/config", "GET|HEAD /debug/vars"]

    front._hot["/v1/rerank"] = front._hot["/v1/embeddings"]
    with pytest.raises(AssertionError):
        routes_of(server)
