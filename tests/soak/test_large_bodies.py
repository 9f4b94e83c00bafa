"""Whatever 20 MB are sent, nobody else waits for them: the loop's own time for a step, in CPU seconds, is bounded."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.errors import GatewayError
from gateway.ingress.largebodies import LargeBodies
from gateway.ingress.routes import ENDPOINTS

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


@pytest.mark.parametrize("name", UNITS)
async def test_no_body_stops_the_loop(name: str) -> None:
    """From its last byte to what it asks for, or to its refusal."""
    (prefix, suffix), unit = UNITS[name]
    body = prefix + unit * ((SIZE - len(prefix) - len(suffix)) // len(unit)) + suffix
    work = asyncio.create_task(LargeBodies().peek(ENDPOINT, body, {}, 1_000_000))
    longest = 0.0

    while not work.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)

    error = work.exception()
    assert error is None or (isinstance(error, GatewayError) and error.status == 400)
    assert longest < STEP_S
