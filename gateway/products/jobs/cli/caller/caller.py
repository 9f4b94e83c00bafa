"""A caller's end of `/v1`: jobs, batches and files of a running gateway.

It must not know the gateway's inside, only its HTTP. Every failure is an `AdminRefused` with a sentence that says what to do;
it is misuse if the same would be refused again, else it may pass. The key goes to the address that was named and nowhere
else. Invariant: of a file a piece at a time is in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

from gateway.cli.operate.client import PIECE_BYTES, AdminRefused, GatewayAddress

TIMEOUT_S = 60.0
"""Of each wait for the gateway: it answers an upload when the file is on its disk."""
MAY_PASS = (408, 429)


class CallerAnswer(NamedTuple):
    """What was answered."""

    fields: dict[str, Any]
    poll_after_s: float | None
    """When to ask again; None: it is not said."""
    paused: str | None
    """Why nothing goes on, in one word."""


class CallerClient:
    """Speaks to `/v1` of the gateway at `url`; its methods raise AdminRefused."""

    def __init__(self, url: str, key: str) -> None:
        """An empty key is not sent. Raises AdminRefused for an address that is none, or such a key."""
        self._address = GatewayAddress.read(url)
        if not (key.isascii() and key.isprintable()):
            raise AdminRefused("the key has characters that no key has", is_misuse=True)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> CallerAnswer:
        """Asks for the path below `/v1/`."""
        sent = {**self._headers, "content-type": "application/json", **(headers or {})}
        with self._address.connected(TIMEOUT_S) as connection:
            connection.request(method, self._path(path), None if body is None else json.dumps(body), sent)
            return self._answer(connection.getresponse())

    def upload(self, file: Path) -> dict[str, Any]:
        """Sends a file as the input of a batch, and returns the file object. Raises OSError where it cannot be opened."""
        with file.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            if not size:
                raise AdminRefused(
                    f"{file} is empty, or no file; a batch wants a line for each request", is_misuse=True
                )
            boundary = secrets.token_hex(16)
            head, tail = _form(boundary, file.name)
            headers = {
                **self._headers,
                "content-type": f"multipart/form-data; boundary={boundary}",
                "content-length": str(len(head) + size + len(tail)),
            }
            with self._address.connected(TIMEOUT_S) as connection:
                _send(connection, self._path("files"), _pieces(head, source, size, tail), headers)
                return self._answer(connection.getresponse()).fields

    def content(self, file_id: str) -> Iterator[bytes]:
        """Yields the bytes of a file."""
        with self._address.connected(TIMEOUT_S) as connection:
            connection.request("GET", self._path(f"files/{quote(file_id, safe='')}/content"), None, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                self._answer(response)
            while piece := response.read(PIECE_BYTES):
                yield piece
            if response.length:  # http.client ends quietly where a connection breaks
                raise AdminRefused(f"{file_id} broke off {response.length} bytes before its end")

    def _path(self, path: str) -> str:
        return f"{self._address.base}/v1/{path}"

    def _answer(self, response: HTTPResponse) -> CallerAnswer:
        status, url = response.status, self._address.url
        try:
            answer = json.loads(response.read())
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise AdminRefused(f"what listens at {url} is no gateway (status {status})", is_misuse=status < 500)
        if not 200 <= status < 300:
            raise _refusal(status, answer, url)
        after = response.headers.get("openai-poll-after-ms", "")
        poll_after_s = int(after) / 1000 if after.isascii() and after.isdigit() and len(after) < 8 else None
        return CallerAnswer(answer, poll_after_s, response.headers.get("x-gateway-paused"))


def caller_of(options: argparse.Namespace, url: str | None = None) -> CallerClient:
    """Returns the client that the arguments ask for, or the same at `url`. Raises AdminRefused."""
    key = options.api_key if options.api_key is not None else os.environ.get("OPENAI_API_KEY", "")
    return CallerClient(url or options.url, key)


def _refusal(status: int, answer: Mapping[str, Any], url: str) -> AdminRefused:
    error = answer.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    if status == 401:
        message = (
            f"the gateway at {url} does not take this key; give --api-key or set OPENAI_API_KEY to one of its keys"
        )
    elif status == 404 and str(message).startswith("Unknown path"):
        message = f"there are no jobs at {url}; is --url the address that clients call?"
    is_misuse = 400 <= status < 500 and status not in MAY_PASS
    return AdminRefused(str(message or f"the gateway at {url} answered with {status}"), is_misuse=is_misuse)


def _form(boundary: str, filename: str) -> tuple[bytes, bytes]:
    """The form of an upload, before and behind the bytes of the file (RFC 7578; names as HTML escapes them)."""
    name = filename.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A").encode(errors="replace")
    mark = boundary.encode()
    head = b'--%b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--%b\r\n' % (mark, mark)
    head += b'content-disposition: form-data; name="file"; filename="%b"\r\n' % name
    head += b"content-type: application/jsonl\r\n\r\n"
    return head, b"\r\n--%b--\r\n" % mark


def _pieces(head: bytes, source: BinaryIO, size: int, tail: bytes) -> Iterator[bytes]:
    """Yields the form with so much of the file as was there at first; less is none of it."""
    yield head
    while size:
        try:
            piece = source.read(min(PIECE_BYTES, size))
        except OSError as error:  # else it would look like the connection's
            raise AdminRefused(f"{source.name}: {error.strerror}", is_misuse=True) from error
        if not piece:
            raise AdminRefused(f"{source.name} has become shorter while it was sent; send it again", is_misuse=True)
        size -= len(piece)
        yield piece
    yield tail


def _send(connection: HTTPConnection, path: str, pieces: Iterator[bytes], headers: Mapping[str, str]) -> None:
    """Sends an upload; a gateway that refuses it early has its answer under way, and reads no more."""
    try:
        connection.request("POST", path, pieces, headers)
    except (BrokenPipeError, ConnectionResetError):
        if connection.sock is None:  # it never came so far
            raise
