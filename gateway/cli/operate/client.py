"""The operator's end of the admin API of a running gateway.

It must not know the gateway's inside, only its HTTP. Every failure is an `AdminRefused` with a sentence that says what to
do; the admin key goes to the address the operator named and nowhere else (no redirect, no proxy). Invariant of a backup: a
file of the given name is a whole copy or is not there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from gateway.cli.arguments.values import DEFAULT_URL

TIMEOUT_S = 10.0
BACKUP_TIMEOUT_S = 600.0
"""The gateway answers when the copy is made, which takes a large file's time."""
PIECE_BYTES = 1_048_576
LONGEST_NAME = 255
"""Of a file; whatever is longer is none."""


class AdminRefused(Exception):
    """The gateway did not do what was asked; `is_misuse`: because of what was asked, or by whom."""

    def __init__(self, message: str, *, is_misuse: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_misuse = is_misuse


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway listens."""

    url: str
    """As the operator wrote it."""
    host: str
    port: int | None
    is_tls: bool
    base: str
    """The path before that of a route; empty, or it begins with a slash."""

    @classmethod
    def read(cls, url: str) -> GatewayAddress:
        """Reads an address with or without its scheme, and with or without `/v1`. Raises AdminRefused."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        if not host or parts.scheme not in ("http", "https"):
            raise AdminRefused(f"{url!r} is no address; write it as {DEFAULT_URL}", is_misuse=True)
        return cls(url, host, port, parts.scheme == "https", parts.path.rstrip("/").removesuffix("/v1"))

    @contextmanager
    def connected(self, timeout_s: float) -> Iterator[HTTPConnection]:
        """Gives a connection to it, of which no wait is longer than that. Raises AdminRefused where it breaks."""
        kind = HTTPSConnection if self.is_tls else HTTPConnection
        connection = kind(self.host, self.port, timeout=timeout_s)
        try:
            yield connection
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AdminRefused(f"no gateway answers at {self.url}: {reason}; is it running, is --url right?") from error
        finally:
            connection.close()


class AdminClient:
    """Speaks to the admin API at `url`; its methods raise AdminRefused."""

    def __init__(self, url: str, key: str) -> None:
        self._address = GatewayAddress.read(url)
        self._url = url
        self._key = key

    def get(self, path: str) -> dict[str, Any]:
        """Returns what the page `path` below `/admin/` shows."""
        return self._ask("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Has `body` carried out, and returns what came of it."""
        return self._ask("POST", path, body)

    def backup(self, name: str) -> Iterator[bytes]:
        """Yields the file "state" or "jobs" as it is now, piece by piece."""
        with self._asked("GET", f"{name}/backup", None, BACKUP_TIMEOUT_S) as response:
            if response.status != 200:
                self._answer(response.status, response.read())
            while piece := response.read(PIECE_BYTES):
                yield piece
            if response.length:  # http.client ends quietly where a connection breaks
                raise AdminRefused(f"the copy broke off {response.length} bytes before its end; try again")

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        with self._asked(method, path, body, TIMEOUT_S) as response:
            return self._answer(response.status, response.read())

    def _answer(self, status: int, text: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise AdminRefused(f"what listens at {self._url} is no gateway (status {status})")
        if status != 200:
            raise _refusal(status, answer, self._url)
        return answer

    @contextmanager
    def _asked(self, method: str, path: str, body: object, timeout_s: float) -> Iterator[HTTPResponse]:
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        content = None if body is None else json.dumps(body)
        try:
            with self._address.connected(timeout_s) as connection:
                connection.request(method, f"{self._address.base}/admin/{path}", content, headers)
                yield connection.getresponse()
        except ValueError:
            raise AdminRefused("the admin key has characters that no key has", is_misuse=True) from None


def _refusal(status: int, answer: Mapping[str, Any], url: str) -> AdminRefused:
    error = answer.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    if status == 401:
        message = f"the gateway at {url} does not take this key; it wants the admin.key of its config"
    elif status == 404 and str(message).startswith("Unknown path"):
        message = f"there is no admin API at {url}; if the config has admin.listen, that is the address for --url"
    return AdminRefused(str(message or f"the gateway at {url} answered with {status}"), is_misuse=400 <= status < 500)


def save(pieces: Iterable[bytes], file: Path, problem_of: Callable[[str], str | None]) -> dict[str, Any]:
    """Writes the copy to `file`, which must not exist, and returns its path and size. Raises AdminRefused or OSError.

    `problem_of` tells what is wrong with a file.
    """
    if file.exists():
        raise AdminRefused(f"{file} is there already; name another file", is_misuse=True)
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        with open(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as out:  # answers, in clear
            for piece in pieces:
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        problem = problem_of(str(unfinished))
        if problem is not None:
            raise AdminRefused(f"the copy is damaged ({problem}), and so may be the file itself; see the gateway's log")
        os.link(unfinished, file)  # unlike a rename it takes no file's place that came meanwhile
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return {"file": str(file), "bytes": file.stat().st_size}


def question(text: str, standard_input: TextIO) -> dict[str, Any] | None:
    """Returns the request that is asked about: `-` is standard input, the name of a file that file; None: it is a call's id.

    Raises OSError for a `.json` file that is not there, AdminRefused for what is no JSON object.
    """
    is_file = text.endswith(".json") or (len(text) <= LONGEST_NAME and Path(text).is_file())
    if text != "-" and not is_file:
        return None
    try:
        body = json.loads(standard_input.read() if text == "-" else Path(text).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # the latter: brackets without end
        body = None
    if not isinstance(body, dict):
        raise AdminRefused(f"{text} is no JSON object; give the body of a request, or a call's id", is_misuse=True)
    return body
