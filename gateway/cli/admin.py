"""The operator's end of the admin API: what is asked of a running gateway, and how `gateway targets` shows the answer.

It must not know the gateway's inside, only its HTTP. Every failure is an `AdminRefused` with a sentence that says what to
do; the admin key goes to the address the operator named and nowhere else (no redirect, no proxy).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 10.0
BACKUP_TIMEOUT_S = 600.0
"""The gateway answers when the copy is made, which takes a large file's time."""
PIECE_BYTES = 1_048_576
HEADINGS = ("", "state", "next probe", "in flight", "p95", "failures", "reason")


class AdminRefused(Exception):
    """The gateway did not do what was asked; `is_misuse`: because of what was asked, or by whom."""

    def __init__(self, message: str, *, is_misuse: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_misuse = is_misuse


class AdminClient:
    """Speaks to the admin API at `url`. Its methods raise AdminRefused."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host = ""
        if not self._host or parts.scheme not in ("http", "https"):
            raise AdminRefused(f"{url!r} is no address; write it as http://127.0.0.1:8080", is_misuse=True)
        self._is_tls = parts.scheme == "https"
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._url = url
        self._key = key

    def targets(self) -> dict[str, Any]:
        """All targets and accounts."""
        return self._ask("GET", "/admin/targets")

    def switch(self, action: str, name: str) -> dict[str, Any]:
        """Opens, closes or drains a target or, where there is no slash in the name, an account; its new state."""
        kind = "targets" if "/" in name else "accounts"
        return self._ask("POST", f"/admin/{kind}/{quote(name, safe='/')}", {"action": action})

    def cache(self) -> dict[str, Any]:
        """What is kept, and how much may be."""
        return self._ask("GET", "/admin/cache")

    def stats(self) -> dict[str, Any]:
        """What was saved since the start."""
        return self._ask("GET", "/admin/stats")

    def purge(self, selection: Mapping[str, Any]) -> dict[str, Any]:
        """Forgets the answers that match all of `key`, `model` and `tenant`, or `all`; how many there were."""
        return self._ask("POST", "/admin/cache/purge", selection)

    def claim(self, selection: Mapping[str, Any]) -> dict[str, Any]:
        """Gives the objects `ids` at `provider` to a `tenant`, with `move` also those of another; whose the others are."""
        return self._ask("POST", "/admin/objects/claim", selection)

    def recall(self, request_id: str) -> dict[str, Any]:
        """How a call was spared its provider, or why not."""
        return self._ask("GET", f"/admin/cache/why?request={quote(request_id, safe='')}")

    def explain(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """How a request (`body`, `endpoint`, `tenant`) would fare now."""
        return self._ask("POST", "/admin/cache/why", question)

    def backup(self) -> Iterator[bytes]:
        """The state file as it is now, piece by piece."""
        with self._asked("GET", "/admin/state/backup", None, BACKUP_TIMEOUT_S) as response:
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
        kind = HTTPSConnection if self._is_tls else HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_s)
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, self._base + path, content, headers)
            yield connection.getresponse()
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise AdminRefused(
                f"no gateway answers at {self._url}: {reason}; is it running, is --url right?"
            ) from error
        except ValueError:
            raise AdminRefused("the admin key has characters that no key has", is_misuse=True) from None
        finally:
            connection.close()


def _refusal(status: int, answer: Mapping[str, Any], url: str) -> AdminRefused:
    error = answer.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    if status == 401:
        message = f"the gateway at {url} does not take this key; it wants the admin.key of its config"
    elif status == 404 and str(message).startswith("Unknown path"):
        message = f"there is no admin API at {url}; if the config has admin.listen, that is the address for --url"
    return AdminRefused(str(message or f"the gateway at {url} answered with {status}"), is_misuse=400 <= status < 500)


def claimed(answer: Mapping[str, Any]) -> str:
    """How many objects are the tenant's now, and which are somebody else's, one a line."""
    count, others = answer["claimed"], answer["others"]
    told = f"{count:,} {'object' if count == 1 else 'objects'} at {safe(answer['provider'])} now of {safe(answer['tenant'])}"
    lines = [f"{safe(id)} is {safe(owner)}'s already; --move gives it all the same" for id, owner in others.items()]
    return "\n".join([told, *lines])


def table(shown: Mapping[str, Any]) -> str:
    """Targets, then accounts, one a line."""
    rows = [HEADINGS, *(_row(name, row) for name, row in shown["targets"].items())]
    rows += [_row(f"account {name}", row) for name, row in shown["accounts"].items()]
    return lay_out(rows)


def sentence(row: Mapping[str, Any]) -> str:
    """The state of one target or account after a change."""
    account = row.get("account") or {"state": "closed"}
    text = f"{safe(row['name'])} is {_state(row)} ({safe(row['reason'])}), {row.get('in_flight', 0)} in flight"
    if account["state"] == "closed":
        return text
    return (
        f"{text}; no call gets there yet: its account {safe(account['name'])} is {account['state'].replace('_', ' ')}"
    )


def _row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    failures = row["failures"]
    return (
        safe(name),
        _state(row),
        _seconds(row["next_probe_s"]),
        str(row.get("in_flight", "-")),
        _p95(row.get("time_to_first_byte")),
        f"{failures['rate']:.0%} of {failures['calls']}" if failures["calls"] else "-",
        _why(row),
    )


def _state(row: Mapping[str, Any]) -> str:
    state = str(row["state"]).replace("_", " ")
    return f"{state} (ramping)" if row["ramping"] else state


def _why(row: Mapping[str, Any]) -> str:
    """The reason of what is in the way; how long it will be left alone besides."""
    warning = row.get("warning")
    notes = [warning] if warning else []
    if row["last_opened_s"] is not None and not (warning and warning.startswith(row["reason"])):
        notes.append(row["reason"])
    account = row.get("account")
    if account and account["state"] != "closed":
        notes.append(f"account {account['name']} is {account['state'].replace('_', ' ')}")
    if row.get("quota_spent_s"):
        notes.append(f"quota spent for {_seconds(row['quota_spent_s'])}")
    elif row.get("paused_s"):
        notes.append(f"paused for {_seconds(row['paused_s'])}")
    if row.get("credential_refused"):
        notes.append("credential refused")
    return safe("; ".join(notes)) or "-"


def _p95(times: Mapping[str, Any] | None) -> str:
    """Of the first byte of streams; where there are none, of whole answers."""
    if times is None:
        return "-"
    streams = times["streams"]["p95_s"]
    return _seconds(times["whole_answers"]["p95_s"] if streams is None else streams)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if 0 < value < 1 else f"{value:.1f} s"


def safe(text: object) -> str:
    """As it is, unless a terminal would take it for a command."""
    shown = str(text)
    return shown if shown.isprintable() else repr(shown)


def lay_out(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Cells in columns, a row a line; those of the columns `right` end below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        shown = [cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in enumerate(cells)]
        lines.append("  ".join(shown).rstrip())
    return "\n".join(lines)
