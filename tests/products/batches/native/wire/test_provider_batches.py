"""Providers' Batch APIs as they are spoken to: addresses, credentials, lists, and what an answer is taken for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from gateway.core.http.client.transport import Http1Transport
from gateway.core.snapshot import Provider
from gateway.drivers.outward import Unreachable
from gateway.products.batches.native.formats import FULL, NeverSent, PendingResult, ProviderRefused
from gateway.products.batches.native.providers import HttpProviderBatches
from tests.support.raw_server import CLOSE, READ, READ_HEAD, RawServer, Script

SECRET = "sk-canary-0123456789abcdef"
OPENAI = Provider("openai", "openai", "https://api.openai.com/v1", SECRET, headers=(("openai-project", "p1"),))
GROQ = Provider("groq", "openai", "https://api.groq.com/openai/v1", SECRET)
AZURE = Provider("azure", "azure", "https://east.openai.azure.com", SECRET)
AZURE_BY_VERSION = Provider("azure", "azure", "https://east.openai.azure.com", SECRET, api_version="2025-04-01")
BATCH = {"id": "batch_1", "status": "validating"}


class Wire:
    """Answers as it is told, and keeps the requests."""

    def __init__(self, answer: Callable[[httpx.Request], httpx.Response]) -> None:
        self.requests: list[httpx.Request] = []
        self.bodies: list[bytes] = []
        self._answer = answer
        self.batches = HttpProviderBatches(lambda _provider: httpx.MockTransport(self._handle))

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.bodies.append(await request.aread())
        said = self._answer(request)
        return httpx.Response(said.status_code, stream=httpx.ByteStream(said.content))  # unread, as from a socket


async def lines() -> AsyncIterator[bytes]:
    """An input file."""
    yield b'{"custom_id":"a"}\n'
    yield b'{"custom_id":"b"}\n'


def always(status: int, said: Any) -> Callable[[httpx.Request], httpx.Response]:
    """The same answer to everything."""
    content = said if isinstance(said, bytes) else orjson.dumps(said)
    return lambda _request: httpx.Response(status, content=content)


@pytest.mark.parametrize(
    ("provider", "url", "header"),
    [
        (OPENAI, "https://api.openai.com/v1/batches/batch_1", ("authorization", f"Bearer {SECRET}")),
        (AZURE, "https://east.openai.azure.com/openai/v1/batches/batch_1", ("api-key", SECRET)),
        (
            AZURE_BY_VERSION,
            "https://east.openai.azure.com/openai/batches/batch_1?api-version=2025-04-01",
            ("api-key", SECRET),
        ),
    ],
)
async def test_each_has_its_own_address_and_credential(provider: Provider, url: str, header: tuple[str, str]) -> None:
    """Those of the config."""
    wire = Wire(always(200, BATCH))
    assert (await wire.batches.look(provider, "batch_1")).status == "validating"

    (request,) = wire.requests
    assert (str(request.url), request.headers[header[0]]) == (url, header[1])
    assert request.headers.get("openai-project") == ("p1" if provider is OPENAI else None)


CLAUDE = Provider("claude", "anthropic", "https://api.anthropic.com/v1", SECRET)
MESSAGE_BATCH = {
    "id": "msgbatch_1",
    "processing_status": "in_progress",
    "request_counts": {"processing": 2, "succeeded": 0},
    "results_url": None,
    "created_at": "2026-11-23T10:00:00Z",
}


async def test_message_batches_are_made_of_lines_that_go_along() -> None:
    """Whole, once and in time, or not at all; and results come from the provider's own address, whatever it says."""
    wire = Wire(always(200, MESSAGE_BATCH))
    size = len(b"".join([part async for part in lines()]))
    made = await wire.batches.submit(CLAUDE, size, lines(), lambda: True)
    assert (made.id, made.status, made.output) == ("msgbatch_1", "in_progress", "")
    (request,) = wire.requests
    assert (str(request.url), request.headers["x-api-key"]) == ("https://api.anthropic.com/v1/messages/batches", SECRET)
    assert (request.headers["anthropic-version"], int(request.headers["content-length"])) == ("2023-06-01", size)

    moments = iter([True, False])
    with pytest.raises(NeverSent):  # what stands still in the middle of it
        await wire.batches.submit(CLAUDE, size, lines(), lambda: next(moments))
    wire._answer = always(429, {"type": "error", "error": {"type": "rate_limit_error", "message": "later"}})
    with pytest.raises(ProviderRefused) as refused:
        await wire.batches.submit(CLAUDE, size, lines(), lambda: True)
    assert refused.value.code in FULL
    wire._answer = always(529, {"type": "error", "error": {"type": "overloaded_error", "message": "later"}})
    with pytest.raises(Unreachable):
        await wire.batches.submit(CLAUDE, size, lines(), lambda: True)

    elsewhere = {**MESSAGE_BATCH, "processing_status": "ended", "results_url": "https://elsewhere.test/results"}
    wire._answer = always(200, elsewhere)
    ended = await wire.batches.look(CLAUDE, "msgbatch_1")
    assert (ended.is_over, ended.output, ended.created_at) == (True, "msgbatch_1", 1795428000.0)
    assert b"".join([part async for part in wire.batches.content(CLAUDE, ended.output)])
    assert str(wire.requests[-1].url) == "https://api.anthropic.com/v1/messages/batches/msgbatch_1/results"
    await wire.batches.remove(CLAUDE, "msgbatch_1")
    assert wire.requests[-1].method == "DELETE"


async def test_a_message_batch_is_found_by_its_results_among_those_of_as_many_lines() -> None:
    """One that is not over may be it; those that are known, too old, of other lines, or somebody else's are not."""
    said: list[dict[str, Any]] = []
    looked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/results"):
            return httpx.Response(200, json={"data": said, "has_more": False})
        id = request.url.path.split("/")[-2]
        looked.append(id)
        if id == "untold":
            return httpx.Response(404, content=b"{}")
        return httpx.Response(200, content=b'{"custom_id": "%b", "result": {}}\n' % (b"ours-7" if id == "b" else b"x"))

    def batch(id: str, at: str = "2026-11-23T10:00:00Z", lines: int = 2, *, is_over: bool = True) -> dict[str, Any]:
        status, url = ("ended", "https://x.test") if is_over else ("in_progress", None)
        counts = {"succeeded": lines - 1, "errored": 1} if is_over else {"processing": lines}
        about = {"processing_status": status, "results_url": url, "request_counts": counts, "created_at": at}
        return {"id": id, **about}

    async def find() -> Any:
        found = await wire.batches.find_submitted(CLAUDE, lambda name: name == "ours-7", 2, {"known"}, 1795427000.0)
        return found and found.id

    wire = Wire(answer)
    said += [batch("other", lines=3), batch("known"), batch("a"), batch("old", at="2026-11-22T10:00:00Z"), batch("b")]
    assert (await find(), looked) == (None, ["a"])
    said.insert(0, batch("open", is_over=False))
    with pytest.raises(PendingResult):
        await find()
    said[0] = batch("untold")
    with pytest.raises(PendingResult):
        await find()
    said[0] = batch("b")
    assert (await find(), looked) == ("b", ["a", "untold", "b"])


@pytest.mark.parametrize(("provider", "expires"), [(OPENAI, True), (AZURE, True), (GROQ, False)])
async def test_a_file_goes_up_whole_and_expires_where_the_provider_knows_that(
    provider: Provider, expires: bool
) -> None:
    """Groq refuses fields that it does not know."""
    wire = Wire(always(200, {"id": "file-1"}))
    size = len(b"".join([part async for part in lines()]))
    assert await wire.batches.upload(provider, "gateway-x.jsonl", size, lines()) == "file-1"
    wire._answer = always(200, BATCH)
    await wire.batches.create(provider, "file-1", "/v1/chat/completions", "x", lambda: True)

    upload, create = wire.bodies
    assert int(wire.requests[0].headers["content-length"]) == len(upload)
    assert b'filename="gateway-x.jsonl"' in upload
    assert b'\r\n\r\n{"custom_id":"a"}\n{"custom_id":"b"}\n\r\n--' in upload
    assert (b"expires_after[seconds]" in upload, b"output_expires_after" in create) == (expires, expires)
    assert orjson.loads(create)["metadata"] == {"gateway_part": "x"}


async def test_a_list_is_searched_page_by_page_until_it_is_too_old() -> None:
    """By what the metadata says; by the file only where there is none."""
    entries = [
        {
            **BATCH,
            "id": f"batch_{at}",
            "created_at": at,
            "input_file_id": f"file-{at}",
            "metadata": {"gateway_part": str(at)},
        }
        for at in range(1000, 0, -1)
    ]

    def page(request: httpx.Request) -> httpx.Response:
        ids = [one["id"] for one in entries]
        start = ids.index(request.url.params["after"]) + 1 if "after" in request.url.params else 0
        found = entries[start : start + 100]
        return httpx.Response(200, json={"data": found, "has_more": start + 100 < len(entries)})

    wire = Wire(page)
    entries[250]["metadata"] = {"gateway_part": "x"}
    found = await wire.batches.find_batch(OPENAI, "x", "file-none", 500.0)
    assert (found and found.id, len(wire.requests)) == ("batch_750", 3)

    assert await wire.batches.find_batch(OPENAI, "y", "file-740", 500.0) is None  # it is another's
    assert len(wire.requests) == 3 + 6
    entries[260]["metadata"] = None
    found = await wire.batches.find_batch(OPENAI, "y", "file-740", 500.0)
    assert found is not None
    assert found.id == "batch_740"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (always(500, b"<html>"), Unreachable),
        (always(429, {"error": {"message": "slow down"}}), Unreachable),
        (always(200, b"<html>"), Unreachable),
        (always(200, {"error": "gone"}), ProviderRefused),
        (always(404, {"error": {"message": "no such batch"}}), ProviderRefused),
        (always(429, {"error": {"code": "token_limit_exceeded"}}), ProviderRefused),
        (always(401, {"error": {"message": f"Incorrect API key provided: {SECRET}"}}), ProviderRefused),
    ],
)
async def test_an_answer_is_a_no_only_where_it_says_so(
    answer: Callable[[httpx.Request], httpx.Response], kind: type[Exception]
) -> None:
    """All else may have been done; what is told of it has no secret."""
    wire = Wire(answer)
    with pytest.raises(kind) as raised:
        await wire.batches.look(OPENAI, "batch_1")
    assert SECRET not in str(raised.value)


async def test_no_answer_is_no_answer() -> None:
    """Whatever became of it."""

    def fails(_request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("late")

    with pytest.raises(Unreachable, match="ReadTimeout"):
        await Wire(fails).batches.cancel(OPENAI, "batch_1")


async def test_a_file_that_is_gone_is_removed() -> None:
    """Nobody has to remove it again."""
    await Wire(always(404, {"error": {}})).batches.remove(OPENAI, "file-1")


async def test_an_id_is_one_step_of_a_path() -> None:
    """Whatever a provider calls its files."""
    wire = Wire(always(200, b"text"))
    content = b"".join([part async for part in wire.batches.content(OPENAI, "../models?x=1")])

    assert content == b"text"
    assert wire.requests[0].url.raw_path == b"/v1/files/..%2Fmodels%3Fx%3D1/content"


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("status", [400, 500])
async def test_no_part_of_a_secret_is_told_where_a_message_is_cut(status: int, form: str) -> None:
    """Whatever stands in front of it, and however it comes."""
    for before in range(150, 320, 7):
        message = "x" * before + SECRET
        wire = Wire(always(status, {"error": {"message": message}} if form == "json" else message.encode()))
        with pytest.raises((ProviderRefused, Unreachable)) as told:
            await wire.batches.look(OPENAI, "batch_1")
        assert SECRET[:8] not in str(told.value)


@pytest.mark.parametrize("is_used", [False, True])
async def test_a_batch_that_comes_too_late_is_not_asked_for(is_used: bool) -> None:
    """Of the request nothing but its head goes out, on a new connection as on one that was used before."""
    batch = orjson.dumps(BATCH)
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(batch), batch)
    script: Script = [READ, answer, READ_HEAD, READ] if is_used else [READ_HEAD, READ]
    async with RawServer([script]) as server, Http1Transport() as wire:
        provider = replace(GROQ, base_url=f"{server.url}/v1")
        batches = HttpProviderBatches(lambda _provider: wire)
        if is_used:
            await batches.look(provider, "batch_1")
        asked = len(server.requests)
        with pytest.raises(NeverSent, match="too late"):
            await batches.create(provider, "file-1", "/v1/chat/completions", "x", lambda: False)

        assert all(not one.body for one in server.requests[asked:])
        assert wire.stats().active == 0


async def test_what_no_connection_was_made_for_was_not_asked() -> None:
    """So it can be asked again at once; after the body it cannot be told."""
    async with Http1Transport() as wire:
        batches = HttpProviderBatches(lambda _provider: wire)
        nobody = replace(GROQ, base_url="http://127.0.0.1:9/v1")
        with pytest.raises(NeverSent):
            await batches.create(nobody, "file-1", "/v1/chat/completions", "x", lambda: True)
        async with RawServer([[READ, CLOSE]]) as server:
            provider = replace(GROQ, base_url=f"{server.url}/v1")
            with pytest.raises(Unreachable):
                await batches.create(provider, "file-1", "/v1/chat/completions", "x", lambda: True)
            assert len(server.requests) == 1


@pytest.mark.parametrize("cut", [1, 7, 64, 4096])
async def test_files_say_no_secret_however_they_are_cut(cut: int) -> None:
    """Their lines become results; in place, so that each stays the JSON that it was."""
    text = b"".join(
        b'{"custom_id":"%d","response":{"body":{"error":"key %b!"}}}\n' % (n, SECRET.encode()) for n in range(9)
    )
    text += SECRET.encode()[:-1]  # the beginning of one is none

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(text), cut):
            yield text[at : at + cut]

    async def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=pieces())

    batches = HttpProviderBatches(lambda _provider: httpx.MockTransport(answer))
    got = b"".join([part async for part in batches.content(GROQ, "file-1")])

    assert got == text.replace(SECRET.encode(), b"*" * len(SECRET))


@pytest.mark.parametrize("is_escaped", [False, True])
@pytest.mark.parametrize("status", [200, 400, 503])
async def test_no_reason_has_a_secret(status: int, is_escaped: bool) -> None:
    """Neither that of a batch that failed, which is noted and logged, nor that of a refusal."""
    said = {"message": f"Incorrect API key: {SECRET}", "code": f"x{SECRET}"}
    batch = {**BATCH, "status": "failed", "errors": {"data": [said]}}
    answer = orjson.dumps(batch if status == 200 else {"error": said})
    if is_escaped:
        answer = answer.replace(b"sk-canary", b"\\u0073k-canary")
    wire = Wire(always(status, answer))
    try:
        told = repr(await wire.batches.look(OPENAI, "batch_1"))
    except ProviderRefused as refused:
        told = str(refused)
    except Unreachable as why:
        told = str(why)

    assert "Incorrect API key" in told
    assert SECRET not in told


async def test_a_transport_that_sends_again_does_not_make_a_request_one_that_was_not_sent() -> None:
    """What went out once may have made a batch, and nothing goes out twice."""
    bodies: list[bytes] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        for _ in range(2):
            bodies.append(b"".join([part async for part in request.stream]))
        return httpx.Response(200, json=BATCH)

    class SendsTwice(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return await answer(request)

    batches = HttpProviderBatches(lambda _provider: SendsTwice())
    with pytest.raises(Unreachable):
        await batches.create(GROQ, "file-1", "/v1/chat/completions", "x", lambda: True)
    assert len(bodies) == 1
