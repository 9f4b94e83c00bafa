"""Odd requests for jobs, files and batches: slow, compressed, said twice, by the wrong method. Each hears what is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.durable import ASYNC, WEB, ask, new_job, with_jobs
from tests.e2e.harness import ADMIN_KEY, PATIENCE_S, Running, chat, connect, get, post

ADMIN = f"authorization: Bearer {ADMIN_KEY}"
CHAT = "/v1/chat/completions"


@pytest.fixture
async def gateway(start: StartGateway, tmp_path: Path) -> Running:
    """A gateway with jobs, and with operators."""
    return await start(with_jobs(tmp_path, admin={"key": ADMIN_KEY}))


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/batches", "/v1/files", "/admin/jobs/pause", "/admin/cache/purge"])
async def test_a_body_that_does_not_arrive_is_not_waited_for(start: StartGateway, tmp_path: Path, path: str) -> None:
    """As that of a plain call: an answer after `server.body_timeout`, and the end of the connection."""
    gateway = await start(with_jobs(tmp_path, admin={"key": ADMIN_KEY}, server={"body_timeout": "50ms"}))
    key = ADMIN if path.startswith("/admin") else WEB
    form = ("content-type: multipart/form-data; boundary=x",) if path == "/v1/files" else ()
    async with connect(gateway.url) as peer:
        peer.send(post(path, b"--x\r\n" * 5, key, *form)[:-20])
        answer = await peer.response()
        async with asyncio.timeout(PATIENCE_S):
            rest = await peer.reader.read()

    assert (answer.status, answer.error["code"]) == (408, "request_body_timeout")
    assert answer.header("connection") == "close"
    assert rest == b""


async def test_a_compressed_body_is_refused_as_that_of_a_plain_call(gateway: Running) -> None:
    """It would be read as what it is not."""
    refused = await ask(gateway.url, new_job("content-encoding: gzip"))

    assert (refused.status, refused.error["code"]) == (415, "unsupported_content_encoding")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/jobs", "GET, HEAD, POST"),
        ("DELETE", "/v1/jobs/job_gw1", "GET, HEAD"),
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("POST", "/files/file-gw1", "DELETE, GET, HEAD"),
        ("PATCH", "/v1/batches", "GET, HEAD, POST"),
        ("GET", "/v1/batches/batch_gw1/cancel", "POST"),
        ("DELETE", "/admin/cache/why", "GET, HEAD, POST"),
    ],
)
async def test_the_wrong_method_hears_of_all_that_are_right(
    gateway: Running, method: str, path: str, allow: str
) -> None:
    """RFC 9110, 15.5.6: `Allow` lists the methods of the resource, whichever route each of them has."""
    refused = await ask(gateway.url, get(path, WEB, method=method))

    assert (refused.status, refused.header("allow")) == (405, allow)
    assert refused.error["message"].endswith(f"use {allow}.")


async def test_an_option_that_is_said_twice_is_refused(gateway: Running) -> None:
    """Nobody knows which one was meant."""
    for name in ("run-at", "priority", "dedupe", "debounce"):
        header = f"x-gateway-{name}: 1"
        refused = await ask(gateway.url, post(CHAT, chat(), WEB, ASYNC, header, header))

        assert (refused.status, name in refused.error["message"]) == (400, True)
    assert gateway.upstream_calls() == 0


@pytest.mark.parametrize("limit", ["0", "101000", "00000000010001", "000000001" + "0" * 5000, "%C2%B2", ""])
@pytest.mark.parametrize("path", ["/admin/jobs?", "/admin/dlq?group=x&"])
async def test_an_operators_page_has_no_more_than_it_may(gateway: Running, path: str, limit: str) -> None:
    """However the number is written."""
    refused = await ask(gateway.url, get(f"{path}limit={limit}", ADMIN))

    assert (refused.status, refused.error["param"]) == (400, "limit")


@pytest.mark.parametrize("cursor", ["", "nan:dl_gw1", "inf:dl_gw1", "-1e999:", "dl_gw1"])
async def test_a_cursor_of_dead_letters_that_is_none_is_refused(gateway: Running, cursor: str) -> None:
    """And does not look like the last page."""
    refused = await ask(gateway.url, get(f"/admin/dlq?group=x&after={cursor}", ADMIN))

    assert (refused.status, refused.error["param"]) == (400, "after")
