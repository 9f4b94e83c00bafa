"""Whatever 20 MB are sent, nobody else waits for them: the loop's own time for a step, in CPU seconds, is bounded."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
import yaml

from gateway.core.errors import GatewayError
from gateway.core.request_fields import LargeBodies
from gateway.dialects.endpoints import ENDPOINTS
from gateway.features.ownership.rules import ids_in_body
from tests.bench.canned import Canned, stream_events
from tests.e2e.harness import connect, post
from tests.soak.conftest import Report
from tests.soak.support import rss_kib, serve

pytestmark = pytest.mark.soak

SIZE = 19_000_000
STEP_S = 0.05
"""Of CPU time, which a busy machine does not stretch as it does the clock's."""
ENDPOINT = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "chat")
LIST = (b'{"model":"m","messages":[', b"0]}")
TEXT = (b'{"model":"m","messages":[{"role":"user","content":"', b'"}]}')
TOP = (b'{"model":"m","messages":[],', b'"z":1}')
UNITS = {
    "objects": (LIST, b"{},"),
    "lists": (LIST, b"[],"),
    "numbers": (LIST, b"1,"),
    "strings": (LIST, b'"",'),
    "nested": (LIST, b"[" * 100 + b"]" * 100 + b","),
    "names": (LIST, b'{"model":"a"},'),
    "deep": (LIST, b"["),
    "digits": (LIST, b"7"),
    "quotes": (LIST, b'""'),
    "fields": (TOP, b'"model":"a",'),
    "options": (TOP, b'"stream_options":{},'),
    "escaped fields": (TOP, rb'"\u006dodel":"a",'),
    "white space": (TOP, b" "),
    "words": (TEXT, b"hello world "),
    "a table": (TEXT, b"1,2,abc\\n"),
    "quotes in a text": (TEXT, rb"\""),
    "backslashes": (TEXT, rb"\\"),
    "escapes": (TEXT, rb"\u00e9"),
    "scripts": (TEXT, "é漢😀".encode()),
    "base64": (TEXT, b"QUJDRAAA"),
}


def body_of(name: str) -> bytes:
    """19 MB of it."""
    (prefix, suffix), unit = UNITS[name]
    return prefix + unit * ((SIZE - len(prefix) - len(suffix)) // len(unit)) + suffix


@pytest.mark.parametrize("name", UNITS)
async def test_no_body_stops_the_loop(name: str) -> None:
    """From its last byte to what it asks for, or to its refusal."""
    work = asyncio.create_task(LargeBodies().peek(ENDPOINT, body_of(name), {}, 1_000_000))
    longest = 0.0

    while not work.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)

    error = work.exception()
    assert error is None or (isinstance(error, GatewayError) and error.status == 400)
    assert longest < STEP_S


ITEMS = (
    b'{"id":"rs_1"},', b'"id":"rs_1",', b'"content":"x",', b'"item_reference",', b'{"type":"item_reference","id":"x"},',
    b"{},", b'"type":"', b'[{"id":"', b" ", b'"encrypted_content":{"x":"y"},',
)  # fmt: skip


@pytest.mark.parametrize("unit", ITEMS)
def test_no_body_is_searched_for_items_in_long_steps(unit: bytes) -> None:
    """What a caller names of other responses, where the body is too large to be parsed."""
    body = b'{"input":[{"id":"rs_0",' + unit * (SIZE // len(unit)) + b"0]}"
    longest, at = 0.0, time.thread_time()
    try:
        for _ in ids_in_body(body, None, b"application/json", "responses"):
            now = time.thread_time()
            longest, at = max(longest, now - at), now
    except GatewayError:
        pass

    assert longest < STEP_S


async def test_no_body_stops_the_process(tmp_path: Path, report: Report) -> None:
    """The same through a whole gateway: reading it, renaming its model, sending it on, giving its memory back."""
    config = tmp_path / "config.yaml"
    longest: dict[str, float] = {}
    events = stream_events()
    async with await asyncio.get_running_loop().create_server(lambda: Canned(events), "127.0.0.1", 0) as provider:
        base_url = "http://{}:{}/v1".format(*provider.sockets[0].getsockname())
        providers = {"main": {"dialect": "openai", "base_url": base_url, "api_key": "k"}}
        config.write_text(yaml.safe_dump({"providers": providers, "models": {"m": {"targets": ["main/renamed"]}}}))
        async with serve(config, "tests.soak.inside") as served:
            for name in UNITS:
                await served.inside("turns")
                async with connect(served.url) as peer:
                    peer.send(post(body=body_of(name)))
                    answer = await peer.response()
                longest[name] = (await served.inside("turns"))["longest"]
                assert answer.status in {200, 400, 413}, answer.raw
    report("\n".join(f"{name}: longest turn {seconds * 1000:.1f} ms of CPU" for name, seconds in longest.items()))
    assert max(longest.values()) < STEP_S


HELD_KIB = 80 * 1024
"""What three calls of 19 MB may take while their provider thinks: their bytes once, and half as much again."""


async def test_calls_in_flight_under_another_name_hold_their_bytes_once(tmp_path: Path) -> None:
    """The provider has all of each, and does not answer."""
    came, has_all = 0, asyncio.Event()

    async def think(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        while data := await reader.read(1_048_576):
            came += len(data)
            if came >= 3 * len(body):
                has_all.set()
        writer.close()

    provider = await asyncio.start_server(think, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{provider.sockets[0].getsockname()[1]}/v1"
    config = tmp_path / "gateway.yaml"
    targets = [{"provider": "main", "model": "its-own-name-for-it"}]
    config.write_text(
        json.dumps(
            {
                "providers": {"main": {"dialect": "openai", "base_url": url, "api_key": "k-canary-0123456789"}},
                "models": {"m": {"targets": targets}},
            }
        )
    )
    (prefix, suffix), unit = UNITS["words"]
    body = prefix + unit * (SIZE // len(unit)) + suffix
    async with (
        serve(config) as gateway,
        connect(gateway.url) as a,
        connect(gateway.url) as b,
        connect(gateway.url) as c,
    ):
        await asyncio.sleep(1.0)
        before = rss_kib(gateway.pid)
        for peer in (a, b, c):
            peer.send(post("/v1/chat/completions", body))
        async with asyncio.timeout(60):
            await has_all.wait()
        held = rss_kib(gateway.pid) - before
        for peer in (a, b, c):
            peer.close()
    provider.close()

    assert held < HELD_KIB
