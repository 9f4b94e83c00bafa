"""Credentials as their sources give them, and the files and servers that they come from.

Metadata servers are asked directly, all others (token endpoints, STS) as the provider itself is: through its proxy, with its
authorities besides the system's. Answers are short, and never logged; no repr shows a secret.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import httpx
import orjson

from gateway.core.http.client.transport import ERRORS, Http1Transport, HttpxTransport
from gateway.drivers.outward import in_words, timeouts_of

Stamp: TypeAlias = tuple[int, int, int] | None
"""The mark by which one state of a file differs from another; None: there is no such file."""


MOST_FILE_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token that is sent as it is."""

    token: str = field(repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns what no answer may repeat."""
        return (self.token,)

    @property
    def damaged(self) -> str | None:
        """Returns what of it no header can hold, in words; None: it is sound."""
        return None if is_word(self.token) else "the token"


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """What requests to AWS are signed with."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns what no answer may repeat; the name of the key is none, errors tell it."""
        return (self.secret_key, self.session_token or "")

    @property
    def damaged(self) -> str | None:
        """Returns what of it no header can hold, or nobody signs with, in words; None: it is sound."""
        parts = {"access key": self.access_key, "secret key": self.secret_key, "session token": self.session_token}
        return next((f"the {name}" for name, part in parts.items() if part is not None and not is_word(part)), None)


Credential: TypeAlias = BearerToken | AwsKeys


@dataclass(frozen=True, slots=True)
class Minted:
    """A credential that has just been fetched."""

    credential: Credential
    lasts_s: float | None
    """The seconds that the credential lasts from now on; None: as long as nobody changes it."""
    files: Mapping[str, Stamp] = field(default_factory=dict)
    """What it was read from: a change there means another credential."""


class CredentialMissing(Exception):
    """There is no credential to be had now. Nothing in it is secret."""

    def __init__(self, what: str, where: str, files: Mapping[str, Stamp] | None = None) -> None:
        """`what` is missing is for callers, `where` it was looked for, and what helps, for the operator.

        A change of one of `files` is a reason to look again at once.
        """
        super().__init__(f"{what}: {where}")
        self.what = what
        self.files = files or {}


def is_word(text: str) -> bool:
    """Returns whether a text has neither spaces nor line breaks, and no letter that a header cannot hold."""
    return text.isascii() and text.isprintable() and " " not in text


def stamp_of(path: str) -> Stamp:
    """Returns the present state of a file."""
    try:
        seen = os.stat(path)
    except (OSError, ValueError):
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def read_text(path: str) -> tuple[str, Stamp]:
    """Returns a file's text and the state that it was read in, or an older one. Raises OSError or ValueError.

    Waits for no pipe: whoever opens one is held until somebody writes to it.
    """
    stamp = stamp_of(path)
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        return file.read(MOST_FILE_BYTES).decode("utf-8-sig"), stamp


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def why_unread(error: Exception) -> str:
    """Returns in few words why a file cannot be read."""
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return "it is not text" if isinstance(error, UnicodeError) else str(error)


ANSWER_S: Final = 10.0
NEARBY_S: Final = 2.0
"""The most seconds for a metadata server, which is on the same machine or is not there at all."""
MOST_ANSWER_BYTES: Final = 262_144
_MOST_SHOWN_CHARS: Final = 200
_FAULTS: tuple[type[Exception], ...] = (*ERRORS, httpx.InvalidURL, OSError, ValueError)


class Unreached(Exception):
    """There was no answer; its text says why, and holds nothing secret."""


class CredentialClient:
    """Fetches credentials over HTTP. Opens nothing before it is used."""

    def __init__(self, proxy: str | None = None, ca_file: str | None = None) -> None:
        self._proxy = proxy
        self._ca_file = ca_file
        self._near: httpx.AsyncBaseTransport | None = None
        self._far: httpx.AsyncBaseTransport | None = None

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        is_near: bool = False,
    ) -> tuple[int, bytes]:
        """Returns status and body. Raises Unreached. `is_near`: a metadata server, which no proxy leads to."""
        within_s = NEARBY_S if is_near else ANSWER_S
        try:
            request = httpx.Request(
                method,
                url,
                headers=dict(headers or {}),
                stream=httpx.ByteStream(body),
                extensions={"timeout": timeouts_of(within_s).as_extension()},
            )
            if body:
                request.headers["content-length"] = str(len(body))
            async with asyncio.timeout(within_s):
                return await _answer(await self._transport(is_near), request)
        except TimeoutError:
            raise Unreached(f"no answer within {within_s:g} s") from None
        except _FAULTS as error:
            raise Unreached(in_words(error)) from None

    async def aclose(self) -> None:
        """Closes its connections."""
        for transport in (self._near, self._far):
            if transport is not None:
                await transport.aclose()
        self._near = self._far = None

    async def _transport(self, is_near: bool) -> httpx.AsyncBaseTransport:
        if is_near:
            self._near = self._near or Http1Transport(max_connections=4)
            return self._near
        if self._far is None:
            context = await asyncio.to_thread(self._authorities)  # the system's take tens of milliseconds to load
            self._far = (
                Http1Transport(ssl_context=context, max_connections=4)
                if self._proxy is None
                else HttpxTransport(
                    ssl_context=context, max_connections=4, idle_expiry_s=30.0, http2=False, proxy=self._proxy
                )
            )
        return self._far

    def _authorities(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._ca_file is not None:
            context.load_verify_locations(self._ca_file)
        context.set_alpn_protocols(["http/1.1"])
        return context


async def _answer(transport: httpx.AsyncBaseTransport, request: httpx.Request) -> tuple[int, bytes]:
    response = await transport.handle_async_request(request)
    try:
        received = bytearray()
        async for chunk in response.aiter_raw():
            received += chunk
            if len(received) > MOST_ANSWER_BYTES:
                raise Unreached("the answer is too long")
        return response.status_code, bytes(received)
    finally:
        await response.aclose()


def object_of(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of an answer; an empty one where it is none."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def words_of(status: int, *texts: object, hidden: Collection[str] = ()) -> str:
    """Returns a refusal in words: the status, and what of the answer is known to be an error's code or text.

    `hidden` is what was sent and must not be told, though the answer may quote it.
    """
    words = ": ".join(_shown(text, hidden) for text in texts if isinstance(text, str) and text)
    return f"status {status}{f' ({words})' if words else ''}"


def _shown(text: str, hidden: Collection[str]) -> str:
    for secret in sorted(filter(None, hidden), key=len, reverse=True):
        text = text.replace(secret, "***")  # before it is cut: a piece would not be found any more
    return " ".join(text.split())[:_MOST_SHOWN_CHARS]
