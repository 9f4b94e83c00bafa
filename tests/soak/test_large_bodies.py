"""Whatever 20 MB are sent, nobody else waits for them: the loop's own time for a step, in CPU seconds, is bounded."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.errors import GatewayError
from gateway.ingress.largebodies import LargeBodies
from gateway.ingress.routes import ENDPOINTS
from gateway.policy.itemrefs import references_searched

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
        for _ in references_searched(body):
            now = time.thread_time()
            longest, at = max(longest, now - at), now
    except GatewayError:
        pass

    assert longest < STEP_S
