"""Servers on loopback that give credentials, or ask for them, as a test's function says."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import quote

Said = tuple[int, bytes]


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answers = Callable[[Asked], Said | Awaitable[Said]]


@dataclass
class LocalServer:
    """Answers what `answers` says, and keeps what was asked."""

    answers: Answers
    url: str = ""
    date: str = ""
    """What its clock says, in the words of the header."""
    asked: list[Asked] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")[:-4].split("\r\n")
                method, path, _ = line.split(" ")
                headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.asked.append(Asked(method, path, headers, body))
                said = self.answers(self.asked[-1])
                status, text = said if isinstance(said, tuple) else await said
                head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n"
                told = f"date: {self.date}\r\n" if self.date else ""
                writer.write(f"{head}{told}\r\n".encode() + text)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has left, or the test
        finally:
            writer.close()


@asynccontextmanager
async def serving(answers: Answers) -> AsyncIterator[LocalServer]:
    """A server that runs."""
    local = LocalServer(answers)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await local.serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    local.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield local
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


def is_signed(asked: Asked, secrets: dict[str, str], region: str, service: str) -> bool:
    """Whether a request bears a good signature of AWS for what has arrived; written from AWS's documentation, not from ours."""
    found = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=(\w+)/(\d{8})/([\w-]+)/([\w-]+)/aws4_request, SignedHeaders=([\w;-]+), "
        r"Signature=([0-9a-f]{64})",
        asked.headers.get("authorization", ""),
    )
    if found is None or found[1] not in secrets or (found[3], found[4]) != (region, service):
        return False
    names = found[5].split(";")
    must = {"host", "content-type"} | {name for name in asked.headers if name.startswith("x-amz-")}
    if not must & asked.headers.keys() <= set(names) or names != sorted(names):
        return False
    path, _, query = asked.path.partition("?")
    canonical = [asked.method, quote(path, safe="/~"), "&".join(sorted(query.split("&")))]
    canonical += [*(f"{name}:{asked.headers[name]}" for name in names), "", found[5], sha256(asked.body).hexdigest()]
    scope = f"{found[2]}/{region}/{service}/aws4_request"
    to_sign = [
        "AWS4-HMAC-SHA256",
        asked.headers["x-amz-date"],
        scope,
        sha256("\n".join(canonical).encode()).hexdigest(),
    ]
    key = b"AWS4" + secrets[found[1]].encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(hmac.digest(key, "\n".join(to_sign).encode(), "sha256").hex(), found[6])
