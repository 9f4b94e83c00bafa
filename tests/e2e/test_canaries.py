"""A provider that repeats our secrets in whatever it says, and every way out of the gateway: none of them comes through.

Each way is gone twice: as it is, and with the one guard switched off that it depends on. Then the secret must be seen, or the
way is none, and the first half proves nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.core.http.client.exchange import Exchange
from gateway.core.http.client.redaction import GuardedAnswer, SecretMasker, Secrets
from gateway.core.http.client.wire import HttpAnswer
from gateway.core.openai.sse import PENDING_LIMIT
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, Running, config_of, connect, get, post, until
from tests.support.raw_server import CLOSE, READ, Cut, RawServer, Script

KEY = "sk-proj-canary-Ab3dE5fG7hJ9kL1m"
VAULT = "hvs.canary/Zx9+Yw8vU7tS6rQ5"
KEY_BYTES, STARS = KEY.encode(), b"*" * len(KEY)
CANARIES = [KEY_BYTES, VAULT.encode(), VAULT.replace("/", r"\/").encode()]
ADMIN = f"authorization: Bearer {ADMIN_KEY}"
JSON, SSE = b"application/json", b"text/event-stream"
OPENAI_LIKE = {"type": "t", "param": None, "code": "c"}
REFUSED = orjson.dumps({"error": {"message": f"No such tool: {KEY} ({VAULT})", **OPENAI_LIKE}})
ANSWER = orjson.dumps({"choices": [{"message": {"content": f"it is {KEY} and {VAULT}"}, "finish_reason": "stop"}]})
DONE = b"data: [DONE]\n\n"
ERROR_EVENT = b"data: " + REFUSED + b"\n\n"
RETRIES: dict[str, Any] = {"attempts": 1, "by_class": {"rate_limit": "pass_through"}}


def event(text: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + b"\n\n"


HELLO = event("hello")


def says(body: bytes, kind: bytes = JSON, status: bytes = b"200 OK", headers: bytes = b"") -> Script:
    """A provider that answers so, in one piece."""
    return [READ, head(kind, status, b"content-length: %d\r\n%b" % (len(body), headers)) + body, CLOSE]


def says_in_two(body: bytes, kind: bytes = JSON, at: int | None = None) -> Script:
    """A provider whose body comes in two reads, by default cut in the middle of the key."""
    start = head(kind, b"200 OK", b"content-length: %d\r\n" % len(body))
    cut = body.index(KEY_BYTES) + len(KEY) // 2 if at is None else at
    return [READ, Cut(start + body, (len(start), len(start) + cut)), CLOSE]


def head(kind: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\nconnection: close\r\n%b\r\n" % (status, kind, headers)


@dataclass
class Front:
    """A gateway before the provider that tells everything."""

    gateway: Running
    provider: RawServer
    folder: Path

    async def ask(self, body: Any = None, *headers: str) -> bytes:
        """The answer to a chat."""
        return await self.say(post("/v1/chat/completions", body, *headers, "connection: close"))

    async def say(self, request: bytes) -> bytes:
        """All that comes back."""
        async with connect(self.gateway.url) as peer:
            peer.send(request)
            return await peer.rest()

    async def shown(self) -> bytes:
        """All that operators get to see, and what is on the disk."""
        pages = [await self.say(get(path, ADMIN, "connection: close")) for path in OPERATORS]
        self.gateway.gateway._telemetry.flush()
        files = [path.read_bytes() for path in sorted(self.folder.rglob("state.db*"))]
        return b"".join([*pages, self.gateway.log.getvalue().encode(), *files])


OPERATORS = ["/metrics", *(f"/admin/{page}" for page in ("config", "targets", "limits", "queue"))]


@asynccontextmanager
async def standing(
    start: StartGateway, folder: Path, scripts: Sequence[Script], *, transport: str = "http1", **policies: Any
) -> AsyncIterator[Front]:
    """A gateway whose provider plays these scripts, connection by connection."""
    places = folder / "policies"
    places.mkdir()
    for name, policy in ({"retries": RETRIES, "breakers": {"enabled": False}} | policies).items():
        (places / f"{name}.yaml").write_text(yaml.safe_dump({"default": policy}))
    async with RawServer(list(scripts)) as provider:
        main = {
            "dialect": "openai",
            "base_url": f"{provider.url}/v1",
            "api_key": KEY,
            "headers": {"X-Vault-Token": VAULT},
            "transport": transport,
        }
        config = config_of(
            "",
            providers={"main": main},
            models={"gpt-4o": {"targets": ["main/gpt-4o", "main/gpt-4o-mini"], "choose": "in_order"}},
            passthrough="main",
            policies=str(places),
            state=f"sqlite:///{folder / 'state.db'}",
            admin={"key": ADMIN_KEY},
        )
        running = await start(lambda _url: config)
        yield Front(running, provider, folder)


# --- the guards, and how to switch one off ---


def switch_off(name: str, patch: pytest.MonkeyPatch) -> None:
    guard = Secrets.guard

    def guard_all_but_one(secrets: Secrets, answer: GuardedAnswer) -> None:
        kept = getattr(answer, name)
        guard(secrets, answer)
        setattr(answer, name, kept)

    if name == "seam":
        patch.setattr(SecretMasker, "feed", lambda seam, block: seam._secrets.mask(block))
    elif name == "failure":
        patch.setattr(Secrets, "text", lambda _secrets, said: said)
    elif name == "chunks":
        for answer in (Exchange, HttpAnswer):
            patch.setattr(answer, "mask_body", lambda _answer, _secrets: None)
    else:
        patch.setattr(Secrets, "guard", guard_all_but_one)


# --- the ways ---

STREAM = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}], "stream": True}
Go = Callable[[StartGateway, Path], Awaitable[tuple[bytes, bytes]]]
"""Goes a way: what the client got to hear, and what operators got to see."""


@dataclass(frozen=True, slots=True)
class Way:
    """One call, its answer, and the guard that it depends on."""

    name: str
    guard: str
    script: Script
    request: bytes
    transport: str


WAYS: list[Way] = []
LONG_WAYS: dict[str, tuple[str, Go]] = {}
"""What takes more than a call and its answer."""


def way(
    name: str,
    guard: str,
    script: Script,
    *,
    ask: Any = None,
    path: str = "/v1/chat/completions",
    transport: str = "http1",
) -> None:
    request = get(path, "connection: close") if ask == "GET" else post(path, ask, "connection: close")
    WAYS.append(Way(name, guard, script, request, transport))


def long_way(name: str, guard: str) -> Callable[[Go], Go]:
    def note(go: Go) -> Go:
        LONG_WAYS[name] = guard, go
        return go

    return note


BATCHES = orjson.dumps({"object": "list", "data": [{"id": "batch_1", "metadata": {"key": KEY}}], "has_more": False})
RESPONSE = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n'
FAILED = b'event: error\ndata: {"type":"error","code":"x","message":"key %b","param":null}\n\n' % KEY_BYTES
CHOICE = b'{"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}'
SPEECH = {"model": "gpt-4o", "input": "hello", "voice": "alloy"}
BAD_CHUNK = head(JSON, headers=b"transfer-encoding: chunked\r\n") + b"not a size " + KEY_BYTES + b"\r\n"

way("whole answer", "whole", says(ANSWER))
way("whole answer in two reads", "seam", says_in_two(ANSWER))
way("whole answer, JSON's own escapes", "whole", says(ANSWER.replace(b"/", rb"\/")))
for status in (
    b"400 Bad Request",
    b"403 Forbidden",
    b"429 Too Many Requests",
    b"500 Oops",
    b"503 Busy",
):
    way(f"error {status.decode()}", "whole", says(REFUSED, status=status))
way("error of another shape", "whole", says(b'{"message": "bad %b"}' % KEY_BYTES, status=b"422 No"))
way("error in a good answer", "whole", says(REFUSED))
way("stream", "chunks", says(HELLO + event(KEY) + DONE, SSE), ask=STREAM)
way("stream cut in a key", "seam", says_in_two(HELLO + event(KEY) + DONE, SSE), ask=STREAM)
way("stream that is an error at once", "chunks", says(ERROR_EVENT, SSE), ask=STREAM)
way("stream whose first read holds an error", "chunks", says(HELLO + ERROR_EVENT, SSE), ask=STREAM)
way("stream whose later read holds an error", "chunks", says_in_two(HELLO + ERROR_EVENT, SSE, len(HELLO)), ask=STREAM)
way("stream whose last event lacks its end", "chunks", says(HELLO + ERROR_EVENT[:-2], SSE), ask=STREAM)
way("stream of the Responses API", "chunks", says(RESPONSE + FAILED, SSE), ask=STREAM, path="/v1/responses")
way("whole answer to who asked for events", "whole", says(ANSWER), ask=STREAM)
way("stream's head", "headers", says(HELLO + DONE, SSE, headers=b"openai-note: %b\r\n" % KEY_BYTES), ask=STREAM)
way("speech", "chunks", says(b"RIFF" + KEY_BYTES, b"audio/wav"), ask=SPEECH, path="/v1/audio/speech")
way("speech in two reads", "seam", says_in_two(b"RIFF" + KEY_BYTES, b"audio/wav"), ask=SPEECH, path="/v1/audio/speech")
way("header", "headers", says(CHOICE, headers=b"openai-note: %b\r\n" % KEY_BYTES))
way("request id, in the log, too", "headers", says(CHOICE, headers=b"x-request-id: %b\r\n" % KEY_BYTES))
way("error's header", "headers", says(REFUSED, status=b"400 No", headers=b"warning: %b\r\n" % VAULT.encode()))
way("batch list", "chunks", says(BATCHES), ask="GET", path="/v1/batches")
way("passed through in two reads", "seam", says_in_two(BATCHES), ask="GET", path="/v1/batches")
way("passed through, refused", "whole", says(REFUSED, status=b"404 No"), ask="GET", path="/v1/files/x")
way(
    "passed through, an error that is none",
    "whole",
    says(KEY_BYTES, b"text/plain", b"418 No"),
    ask="GET",
    path="/v1/files/x",
)
way(
    "passed through, moved",
    "headers",
    says(b"", status=b"302 Moved", headers=b"location: https://x.test/?key=%b\r\n" % KEY_BYTES),
    ask="GET",
    path="/v1/files/x/content",
)
way("failure that quotes the provider", "failure", [READ, BAD_CHUNK, CLOSE], transport="httpx")
way("another transport", "chunks", says(ANSWER), transport="httpx")
way("another transport's stream", "seam", says_in_two(HELLO + event(KEY) + DONE, SSE), ask=STREAM, transport="httpx")


@long_way("kept and given again", "whole")
async def _cached(start: StartGateway, folder: Path) -> tuple[bytes, bytes]:
    cache = {"exact": {"requests": "always"}}
    async with standing(start, folder, [says(ANSWER), [CLOSE]], cache=cache) as front:
        await front.ask()
        again = await front.ask()
        assert b"x-gateway-cache: hit" in again
        return again, await front.shown()


@long_way("stream that is kept and given again", "chunks")
async def _cached_stream(start: StartGateway, folder: Path) -> tuple[bytes, bytes]:
    cache = {"exact": {"requests": "always"}}
    stream = HELLO + event(KEY) + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n' + DONE
    async with standing(start, folder, [says(stream, SSE), [CLOSE]], cache=cache) as front:
        await front.ask(STREAM)
        again = await front.ask(STREAM)
        assert b"x-gateway-cache: hit" in again
        return again, await front.shown()


@long_way("record of an idempotency key", "whole")
async def _recorded(start: StartGateway, folder: Path) -> tuple[bytes, bytes]:
    async with standing(start, folder, [says(ANSWER), [CLOSE]]) as front:
        await front.ask(None, "idempotency-key: one")
        again = await front.ask(None, "idempotency-key: one")
        assert b"x-gateway-cache: hit" in again
        return again, await front.shown()


@long_way("shared by identical calls", "whole")
async def _coalesced(start: StartGateway, folder: Path) -> tuple[bytes, bytes]:
    both_are_here = asyncio.Event()
    script: Script = [READ, both_are_here, *says(ANSWER)[1:]]
    async with standing(start, folder, [script, [CLOSE]], cache={"coalesce": "always"}) as front:
        calls = [asyncio.create_task(front.ask()) for _ in range(2)]
        await until(lambda: len(front.gateway.inflight) == 2 and bool(front.provider.requests))
        both_are_here.set()
        heard = await asyncio.gather(*calls)
        assert sorted(b"x-gateway-cache: coalesced" in one for one in heard) == [False, True]
        return next(one for one in heard if b"coalesced" in one), await front.shown()


@long_way("hedged", "whole")
async def _hedged(start: StartGateway, folder: Path) -> tuple[bytes, bytes]:
    never = asyncio.Event()
    hedge = {"percentile": 50, "at_least": "1ms", "min_samples": 1}
    scripts: list[Script] = [says(b'{"choices": [{}]}'), [READ, never], says(ANSWER)]
    async with standing(start, folder, scripts, retries={**RETRIES, "attempts": 2, "hedge": hedge}) as front:
        await front.ask()
        heard = await front.ask()
        assert len(front.provider.requests) == 3
        return heard, await front.shown()


@long_way("error of a stream that was kept alive", "whole")
async def _kept_alive(start: StartGateway, folder: Path) -> tuple[bytes, bytes]:
    has_heard = asyncio.Event()
    script: Script = [READ, has_heard, *says(REFUSED, status=b"400 Bad Request")[1:]]
    async with (
        standing(start, folder, [script], queue={"keepalive_after": "1ms"}) as front,
        connect(front.gateway.url) as peer,
    ):
        peer.send(post("/v1/chat/completions", STREAM, "connection: close"))
        begun = await peer.reader.readuntil(b": waiting")
        has_heard.set()
        return begun + await peer.rest(), await front.shown()


@long_way("stream that was kept alive", "chunks")
async def _kept_alive_stream(start: StartGateway, folder: Path) -> tuple[bytes, bytes]:
    has_heard = asyncio.Event()
    script: Script = [READ, has_heard, *says(HELLO + event(KEY) + DONE, SSE)[1:]]
    async with (
        standing(start, folder, [script], queue={"keepalive_after": "1ms"}) as front,
        connect(front.gateway.url) as peer,
    ):
        peer.send(post("/v1/chat/completions", STREAM, "connection: close"))
        begun = await peer.reader.readuntil(b": waiting")
        has_heard.set()
        return begun + await peer.rest(), await front.shown()


@long_way("stream, long event in parts", "seam")
async def _long_event(start: StartGateway, folder: Path) -> tuple[bytes, bytes]:
    long_event, has_heard = event("x" * (2 * PENDING_LIMIT) + KEY), asyncio.Event()
    cut = long_event.index(KEY_BYTES) + 9
    script: Script = [READ, head(SSE) + HELLO, long_event[:cut], has_heard, long_event[cut:] + DONE, CLOSE]
    async with standing(start, folder, [script]) as front, connect(front.gateway.url) as peer:
        peer.send(post("/v1/chat/completions", STREAM, "connection: close"))
        begun = await peer.reader.readuntil(b"x" * 1000)
        begun += await peer.reader.readexactly(PENDING_LIMIT // 2)
        for _ in range(500):  # until the gateway has read up to the cut: nobody else could tell
            await asyncio.sleep(0)
        has_heard.set()
        heard = begun + await peer.rest()
        return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", heard), await front.shown()


async def go_all(start: StartGateway, folder: Path, transport: str) -> tuple[dict[str, bytes], bytes]:
    """What clients heard on each way of one call, and what operators saw behind them all."""
    ways = [one for one in WAYS if one.transport == transport]
    async with standing(start, folder, [one.script for one in ways], transport=transport) as front:
        heard = {one.name: await front.say(one.request) for one in ways}
        assert len(front.provider.requests) == len(ways)
        return heard, await front.shown()


def telling(heard: dict[str, bytes]) -> list[str]:
    """The ways on which a secret came through."""
    return [name for name, text in heard.items() if any(canary in text for canary in CANARIES)]


@pytest.mark.parametrize("transport", ["http1", "httpx"])
async def test_no_secret_leaves(start: StartGateway, tmp_path: Path, transport: str) -> None:
    """Masked for the client in as many bytes, and nowhere to be seen for operators or on the disk."""
    heard, shown = await go_all(start, tmp_path, transport)

    assert telling({**heard, "operators": shown}) == []
    assert [name for name, text in heard.items() if b"*" * len(VAULT) not in text] == []


@pytest.mark.parametrize("transport", ["http1", "httpx"])
@pytest.mark.parametrize("guard", ["headers", "whole", "chunks", "seam", "failure"])
async def test_each_way_is_one(
    start: StartGateway, tmp_path: Path, guard: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its guard the secret comes through: what the test before this one saw was the guard's doing."""
    switch_off(guard, monkeypatch)

    heard, _ = await go_all(start, tmp_path, transport)

    guarded = {one.name for one in WAYS if one.guard == guard and one.transport == transport}
    assert guarded - set(telling(heard)) == set()


@pytest.mark.parametrize("name", LONG_WAYS)
async def test_no_secret_leaves_in_the_long_run(
    start: StartGateway, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of it for what takes more than one call."""
    guard, go = LONG_WAYS[name]
    places = [tmp_path / "guarded", tmp_path / "not"]
    for place in places:
        place.mkdir()

    heard, shown = await go(start, places[0])
    switch_off(guard, monkeypatch)
    unguarded, _ = await go(start, places[1])

    assert telling({"client": heard, "operators": shown}) == []
    assert telling({"client": unguarded}) == ["client"]
