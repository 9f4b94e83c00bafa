"""Answers on their way out of request cycles, without the messages of ASGI in between.

A whole answer is one write, a part of a stream is one write. It must not know what an answer means. Invariant: whoever sends
a part waits until the client has taken enough of what was written before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sized

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.core.errors import GatewayError
from gateway.core.http.writing.cycle import AnyCycle
from gateway.core.render import error_body, error_headers, named_request

UNSENT_BYTES = 8 * 1024
"""What may wait in the process for a client to read it, beside a part that is being written; the kernel takes more."""
LARGE_BYTES = 2048
UNKNOWN = -1
"""The length of an answer that ends with its connection."""


class PatientFlow(FlowControl):
    """Reads nothing more while requests are waiting for their turn: a peer cannot queue up without bound."""

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting
        transport.set_write_buffer_limits(UNSENT_BYTES, UNSENT_BYTES // 4)

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


def refusal_bytes(error: GatewayError, request_id: str) -> bytes:
    """The bytes of an error that answers no request."""
    body = error_body(error)
    headers = error_headers(error, len(body))
    headers += [(b"x-request-id", request_id.encode()), (b"connection", b"close")]
    return b"".join((STATUS_LINE[error.status], *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body))


async def answer_at_once(cycle: AnyCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Give a whole answer, once the client has taken enough of what was written before."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    write_whole(cycle, status, headers, body)


async def answer_error(cycle: AnyCycle, error: GatewayError, extra: list[tuple[bytes, bytes]]) -> None:
    """Answer with an error; `extra` carries the request id and whatever the call's trail has to tell."""
    if cycle.endpoint is not None and cycle.endpoint.sse == "messages":
        body = error_body(error, cycle.endpoint, dict(named_request(extra)).get(b"request-id", b"").decode())
    else:
        body = error_body(error, cycle.endpoint)
    await answer_at_once(cycle, error.status, error_headers(error, len(body)) + extra, body)


def write_whole(cycle: AnyCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Write a whole answer at once, instead of in the two pieces that ASGI messages make.

    The headers are trusted: those of a provider have passed a strict parser, ours are made here.
    """
    if cycle.disconnected:
        return
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    lines = b"\r\n".join(map(b": ".join, [*cycle.default_headers, *headers]))
    end = b"\r\n\r\n" if cycle.keep_alive else b"\r\nconnection: close\r\n\r\n"
    cycle.transport.write(STATUS_LINE[status] + lines + end + (body if cycle.method != "HEAD" else b""))
    cycle.response_complete = True
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.connection.on_response_complete()


async def start_stream(cycle: AnyCycle, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    """Write the head of an answer that comes in parts, once the client has taken enough of what was written before."""
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if not cycle.disconnected:
        begin_stream(cycle, headers, b"", status)


def begin_stream(cycle: AnyCycle, headers: list[tuple[bytes, bytes]], first: bytes, status: int = 200) -> None:
    """Write the head and the first part of an answer; `send_chunk` and `end_stream` do the rest.

    As long as its `content-length` says, else chunked, or for a client of HTTP/1.0, which does not know chunks, up to the end
    of the connection.
    """
    cycle.response_started = True
    cycle.waiting_for_100_continue = False
    length = next((value for name, value in headers if name == b"content-length"), None)
    has_body = cycle.method != "HEAD" and status not in (204, 304)
    cycle.chunked_encoding = has_body and length is None and cycle.http_version == "1.1"
    cycle.expected_content_length = 0 if not has_body else UNKNOWN if length is None else int(length)
    if cycle.chunked_encoding:
        headers = [*headers, (b"transfer-encoding", b"chunked")]
    elif cycle.expected_content_length == UNKNOWN:
        cycle.keep_alive = False
    lines = b"\r\n".join(map(b": ".join, [*cycle.default_headers, *headers]))
    end = b"\r\n\r\n" if cycle.keep_alive else b"\r\nconnection: close\r\n\r\n"
    cycle.transport.write(STATUS_LINE[status] + lines + end + (_framed(cycle, first) if first else b""))


def write_chunk(cycle: AnyCycle, chunk: bytes) -> None:
    """Write a part of a stream, however much waits for the client already."""
    cycle.transport.write(_framed(cycle, chunk))


async def send_chunk(cycle: AnyCycle, chunk: bytes) -> None:
    """Write the next part of a stream, and wait until its client has taken enough.

    What waits is all there is of the stream here: whoever makes the next part holds none while this one waits.
    """
    if chunk and not cycle.disconnected:  # an empty chunk would end the body
        if not cycle.chunked_encoding:
            _write_plain(cycle, chunk)
        elif len(chunk) > LARGE_BYTES:
            cycle.transport.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))  # not copied
        else:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()


def chunk_writer(cycle: AnyCycle) -> Callable[[bytes], bool]:
    """Returns a function that writes a part of a chunked stream, unless its client has to be waited for: then it does
    nothing and returns False, and the part is for `send_chunk`."""
    flow, write = cycle.flow, cycle.transport.write

    def write_part(chunk: bytes) -> bool:
        if flow.write_paused or cycle.disconnected:
            return False
        write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        return True

    return write_part


async def end_stream(cycle: AnyCycle, last: bytes = b"") -> None:
    """End what `begin_stream` began, behind these bytes. Raises RuntimeError where its length was announced as another."""
    await send_chunk(cycle, last)
    if cycle.disconnected:
        return
    if cycle.chunked_encoding:
        cycle.transport.write(b"0\r\n\r\n")
    elif cycle.expected_content_length > 0:
        raise RuntimeError("the answer is shorter than its content-length")
    cycle.response_complete = True
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.connection.on_response_complete()


def _write_plain(cycle: AnyCycle, chunk: bytes) -> None:
    if cycle.method == "HEAD":
        return
    if cycle.expected_content_length != UNKNOWN:
        cycle.expected_content_length -= len(chunk)
        if cycle.expected_content_length < 0:
            raise RuntimeError("the answer is longer than its content-length")
    cycle.transport.write(chunk)


def _framed(cycle: AnyCycle, chunk: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if cycle.chunked_encoding else chunk
