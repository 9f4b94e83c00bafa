"""The commands of operators: each asks the admin API of a running gateway, and shows its answer.

In this order: the client of the admin API (`AdminClient`), how its answers look on a terminal, the commands. Invariants:
the client knows of the gateway only its HTTP; each failure of it is an `AdminRefused` with a sentence that says what to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Literal, TextIO
from urllib.parse import quote, urlsplit

from gateway.cli.config import local_gateway
from gateway.cli.main import FAILED, OK, UNUSABLE, fail
from gateway.cli.values import DEFAULT_URL
from gateway.core.config.fields import is_loopback

# --- The client of the admin API ---


TIMEOUT_S = 10.0
BACKUP_TIMEOUT_S = 600.0
"""The most seconds until a copy comes: the gateway answers when it is made, which takes a large file's time."""
PIECE_BYTES = 1_048_576
LONGEST_NAME = 255
"""The characters of a file's name; a longer text is none."""


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
    """The URL, as the operator wrote it."""
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
    """Speaks to the admin API at `url`; its methods raise AdminRefused.

    The admin key goes to the address that the operator named and nowhere else (no redirect, no proxy).
    """

    def __init__(self, url: str, key: str) -> None:
        self._address = GatewayAddress.read(url)
        self._url = url
        self._key = key

    def get(self, path: str) -> dict[str, Any]:
        """Returns what the page `path` below `/admin/` shows."""
        return self._fetch_json("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Has `body` carried out, and returns what came of it."""
        return self._fetch_json("POST", path, body)

    def backup(self, name: str) -> Iterator[bytes]:
        """Yields the file "state" or "jobs" as it is now, piece by piece."""
        with self._request("GET", f"{name}/backup", None, BACKUP_TIMEOUT_S) as response:
            if response.status != 200:
                self._answer(response.status, response.read())
            while piece := response.read(PIECE_BYTES):
                yield piece
            if response.length:  # http.client ends quietly where a connection breaks
                raise AdminRefused(f"the copy broke off {response.length} bytes before its end; try again")

    def _fetch_json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        with self._request(method, path, body, TIMEOUT_S) as response:
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
    def _request(self, method: str, path: str, body: object, timeout_s: float) -> Iterator[HTTPResponse]:
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

    `problem_of` finds what is wrong with a file. Invariant: a file of the given name is a whole copy or is not there.
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


# --- How its answers look on a terminal ---


By = Literal["layer", "model", "key"]

TARGET_HEADINGS = ("", "state", "next probe", "in flight", "p95", "failures", "reason")
SAVINGS_HEADINGS = ("calls", "hits", "rate", "tokens saved", "money saved")
COSTS_HEADINGS = ("cost", "of that estimated", "share", "calls not priced", "spent today")
PROVIDER = "provider"
"""The line for those whom no layer could spare: keep in sync with `PROVIDER` in `features/reuse/inspect.py`."""
UNITS = ("B", "KiB", "MiB", "GiB")


def claimed(answer: Mapping[str, Any]) -> str:
    """Returns in words how many objects are the tenant's now, and which are somebody else's, one a line."""
    count, others = answer["claimed"], answer["others"]
    shown = f"{_count(count, 'object')} at {safe(answer['provider'])} now of {safe(answer['tenant'])}"
    lines = [f"{safe(id)} is {safe(owner)}'s already; --move gives it all the same" for id, owner in others.items()]
    return "\n".join([shown, *lines])


def flagged(answer: Mapping[str, Any]) -> str:
    """Returns in words what came, job by job, of the wish that it stand still, or go on."""
    words = {"done": "is paused" if answer["action"] == "pause" else "goes on", "ended": "has ended"}
    words["unknown"] = "is no job of this gateway's"
    return "\n".join(f"{safe(id)} {text}" for name, text in words.items() for id in answer[name])


def retried(answer: Mapping[str, Any]) -> str:
    """Returns in words what came, job by job, of the wish that it be tried again."""
    lines = []
    for one in answer["done"]:
        what = f"runs again as {safe(one['job'])}" if one["job"] else f"{_count(one['letters'], 'dead line')} run again"
        lines.append(f"{safe(one['id'])} {what}; gateway dlq show {safe(one['replay'])} shows how far it is")
    lines += [f"{safe(one['id'])} {safe(one['why'])}" for one in answer["refused"]]
    return "\n".join([*lines, *(f"{safe(id)} is no job of this gateway's" for id in answer["unknown"])])


def table(shown: Mapping[str, Any]) -> str:
    """Shows targets, then accounts, one a line."""
    rows = [TARGET_HEADINGS, *(_row(name, row) for name, row in shown["targets"].items())]
    rows += [_row(f"account {name}", row) for name, row in shown["accounts"].items()]
    return lay_out(rows)


def sentence(row: Mapping[str, Any]) -> str:
    """Returns in words the state of one target or account after a change."""
    account = row.get("account") or {"state": "closed"}
    text = f"{safe(row['name'])} is {_state(row)} ({safe(row['reason'])}), {row.get('in_flight', 0)} in flight"
    if account["state"] == "closed":
        return text
    return (
        f"{text}; no call gets there yet: its account {safe(account['name'])} is {account['state'].replace('_', ' ')}"
    )


def _row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    failures = row["failures"]
    account = row.get("account") or {"state": "closed"}
    is_kept_off = (
        row["state"] == "closed" != account["state"]
    )  # no call gets there, though its own breaker lets all through
    return (
        safe(name),
        f"account {account['state'].replace('_', ' ')}" if is_kept_off else _state(row),
        _seconds(row["next_probe_s"]),
        str(row.get("in_flight", "-")),
        _p95(row.get("time_to_first_byte")),
        f"{failures['rate']:.0%} of {failures['calls']}" if failures["calls"] else "-",
        _why(row),
    )


def _state(row: Mapping[str, Any]) -> str:
    is_spent = row["state"] == "closed" and row.get("quota_spent_s")
    state = "quota spent" if is_spent else str(row["state"]).replace("_", " ")
    return f"{state} (ramping)" if row["ramping"] else state


def _why(row: Mapping[str, Any]) -> str:
    """Returns in words what is in the way of calls, and for how long."""
    warning = row.get("warning")
    notes = [warning] if warning else []
    if row["last_opened_s"] is not None and not (warning and warning.startswith(row["reason"])):
        notes.append(row["reason"])
    account = row.get("account")
    if account and account["state"] != "closed":
        notes.append(f"account {account['name']} is {account['state'].replace('_', ' ')}")
    if row.get("quota_spent_s"):
        notes.append(f"quota spent, tried again in {_seconds(row['quota_spent_s'])}")
    elif row.get("paused_s"):
        notes.append(f"paused for {_seconds(row['paused_s'])}")
    if row.get("credential_refused") and not any("credential" in note for note in notes):
        notes.append("credential refused")
    return safe("; ".join(notes)) or "-"


def _p95(times: Mapping[str, Any] | None) -> str:
    """Returns in words the time of the first byte of streams; where there are none, of whole answers."""
    if times is None:
        return "-"
    streams = times["streams"]["p95_s"]
    return _seconds(times["whole_answers"]["p95_s"] if streams is None else streams)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if 0 < value < 1 else f"{value:.1f} s"


def safe(text: object) -> str:
    """Returns the text as it is, unless a terminal would take it for a command.

    Whatever a client or a provider has named goes through this.
    """
    shown = str(text)
    return shown if shown.isprintable() else repr(shown)


def lay_out(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Puts cells into columns, a row a line; those of the columns `right` end below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        shown = [cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in enumerate(cells)]
        lines.append("  ".join(shown).rstrip())
    return "\n".join(lines)


def stats_table(answer: Mapping[str, Any], by: By) -> str:
    """Shows what was saved, one layer, model or key a line, and the sum of all calls."""
    rows = [(by, *SAVINGS_HEADINGS), *(_stats_row(name, row) for name, row in answer[f"{by}s"].items())]
    return lay_out([*rows, _stats_row("total", answer["total"])], right=range(1, len(rows[0])))


def costs_table(answer: Mapping[str, Any], by: Literal["key", "model"]) -> str:
    """Shows what calls have cost and how much of that is estimated, one key or model a line, and the sum of all."""
    rows = [(by, *COSTS_HEADINGS), *(_costs_row(name, row) for name, row in answer[f"{by}s"].items())]
    table = lay_out([*rows, _costs_row("total", answer["total"])], right=range(1, len(rows[0])))
    return f"{table}\nsince the start of the process; what its provider does not report is estimated"


def cache_table(answer: Mapping[str, Any]) -> str:
    """Shows what is kept and how much may be, one kind a line, and what came of it so far."""
    bounds = answer["bounds"]
    answers = [f"{size(most)} ({safe(group)})" for group, most in bounds["answers_bytes"].items()]
    at_most = {
        "answers": ", ".join(answers) or "nothing",
        "records": size(bounds["records_bytes"]),
        "vectors": f"{bounds['vectors_per_partition']:,} per partition",
    }
    rows = [("", "entries", "size", "at most")]
    for kind, sizes in answer["kept"].items():
        rows.append((safe(kind), f"{sizes['entries']:,}", size(sizes["bytes"]), at_most.get(kind, "-")))
    return f"{lay_out(rows, right=(1, 2))}\n{_sum_up(answer['total'])}"


def purged(answer: Mapping[str, Any]) -> str:
    """Returns in words how many answers were forgotten."""
    count = answer["forgotten"]
    return f"{_count(count, 'answer')} forgotten" if count else "nothing matched"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def story(answer: Mapping[str, Any]) -> str:
    """Returns in words how a call was spared its provider or was not, or how one would fare now."""
    reasons = [*answer["why"]] or [None]
    facts = [
        ("call" if "request" in answer else "request", _whose(answer)),
        ("cache", f"{answer['result']}, by {answer['layer']}" if answer["layer"] else answer["result"]),
        ("asked", ", ".join(f"{attempt['layer']}: {attempt['result']}" for attempt in answer["tried"]) or "no layer"),
        ("key", answer["cache_key"]),
        ("source", _source(answer)),
        ("similarity", answer["similarity"]),
        ("saved", _saved(answer["saved"])),
        *zip(["why", *[""] * len(reasons)], reasons, strict=False),
    ]
    return lay_out([(label, safe(fact)) for label, fact in facts if fact is not None])


def moment(seconds: float) -> str:
    """Writes a time of the wall clock."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"


def size(count: float) -> str:
    """Writes a number of bytes in a unit that keeps it short."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:,.0f} {UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {UNITS[unit]}"


def _stats_row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    if name == PROVIDER:
        return name, f"{row['calls']:,}", "-", "-", "-", "-"
    tokens = row["input_tokens"] + row["output_tokens"]
    return safe(name), f"{row['calls']:,}", f"{row['hits']:,}", _rate(row), f"{tokens:,}", _money(row)


def _costs_row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    share = "-" if row["estimated_share"] is None else f"{row['estimated_share']:.1%}"
    budget = row.get("budget_usd_per_day")
    today = "-" if budget is None else f"{usd(row['spent_today_usd'])} of {usd(budget)}"
    return safe(name), usd(row["usd"]), usd(row["estimated_usd"]), share, f"{row['unpriced_calls']:,}", today


def _sum_up(total: Mapping[str, Any]) -> str:
    """Sums up all calls in one sentence."""
    if not total["calls"]:
        return "no call that could be spared its provider has ended since the start"
    tokens = total["input_tokens"] + total["output_tokens"]
    return (
        f"since the start {total['hits']:,} of {total['calls']:,} calls ({_rate(total)}) were spared their provider: "
        f"{tokens:,} tokens, {_money(total)}"
    )


def _rate(row: Mapping[str, Any]) -> str:
    return "-" if row["hit_rate"] is None else f"{row['hit_rate']:.1%}"


def _money(row: Mapping[str, Any]) -> str:
    """Writes what was saved in dollars; what has no known price is not free."""
    unpriced = f"{row['unpriced']:,} not priced" if row["unpriced"] else ""
    if unpriced and not row["usd"]:
        return unpriced
    return f"{usd(row['usd'])} + {unpriced}" if unpriced else usd(row["usd"])


def usd(amount: float) -> str:
    """Writes an amount in dollars, short."""
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.3g}"


def _whose(answer: Mapping[str, Any]) -> str:
    if "request" not in answer:
        return f"{answer['endpoint']}, tenant {answer['tenant']}"
    return (
        f"{answer['request']} ({answer['endpoint']}, {answer['model']}, key {answer['key']}, tenant {answer['tenant']})"
    )


def _source(answer: Mapping[str, Any]) -> str | None:
    if answer["source"] is None:
        return None
    target = f" at {answer['source_target']}" if answer["source_target"] else ""
    age = "" if answer["age_s"] is None else f", {answer['age_s']:,.1f} s before"
    return f"{answer['source']}{target}{age}"


def _saved(saved: Mapping[str, Any] | None) -> str | None:
    if saved is None:
        return None
    price = "at a price not known" if saved["usd"] is None else usd(saved["usd"])
    return f"{saved['input_tokens']:,} input and {saved['output_tokens']:,} output tokens, {price}"


def saved(answer: dict[str, Any], name: str) -> str:
    """Returns in words what has been done, and how the copy is used."""
    return (
        f"{answer['file']}: {answer['bytes']:,} bytes, checked. To use it, stop the gateway, put it in the place of the {name} "
        "file (without the -wal file that may be beside that), and start again."
    )


# --- The commands ---


def targets(options: argparse.Namespace) -> int:
    """Shows how targets and accounts are doing, or switches one by hand."""
    action, name = options.action, options.name
    if not action:
        return call_admin(options, lambda client: client.get("targets"), table)
    if not name:
        return fail(f"which one? gateway targets {action} NAME; 'gateway targets' shows them", UNUSABLE)
    kind = "targets" if "/" in name else "accounts"
    path = f"{kind}/{quote(name, safe='/')}"
    return call_admin(options, lambda client: client.post(path, {"action": action}), sentence)


def stats(options: argparse.Namespace) -> int:
    """Shows what was spared, by model, tenant or layer."""
    return call_admin(options, lambda client: client.get("stats"), lambda answer: stats_table(answer, options.by))


def costs(options: argparse.Namespace) -> int:
    """Shows what calls have cost, by key or model."""
    return call_admin(options, lambda client: client.get("costs"), lambda answer: costs_table(answer, options.by))


def cache_show(options: argparse.Namespace) -> int:
    """Shows what the caches hold."""
    return call_admin(options, lambda client: client.get("cache"), cache_table)


def cache_purge(options: argparse.Namespace) -> int:
    """Forgets kept answers."""
    given = {name: getattr(options, name) for name in ("key", "model", "tenant", "all") if getattr(options, name)}
    if not given:
        return fail("purge what? --key HEX, --model NAME, --tenant NAME, or --all for everything", UNUSABLE)
    return call_admin(options, lambda client: client.post("cache/purge", given), purged)


def cache_why(options: argparse.Namespace) -> int:
    """Shows how a call fared with the caches, or how a request would fare now."""

    def request(client: AdminClient) -> dict[str, Any]:
        body = question(options.request, sys.stdin)
        if body is None:
            return client.get(f"cache/why?request={quote(options.request, safe='')}")
        whose = {name: getattr(options, name) for name in ("endpoint", "tenant") if getattr(options, name)}
        return client.post("cache/why", {"body": body, **whose})

    return call_admin(options, request, story)


def state_backup(options: argparse.Namespace) -> int:
    """Copies the state file of a running gateway, and checks the copy."""
    return _backup(options, "state")


def jobs_backup(options: argparse.Namespace) -> int:
    """Copies the jobs file of a running gateway, and checks the copy."""
    return _backup(options, "jobs")


def flag_jobs(options: argparse.Namespace) -> int:
    """Has jobs stand still or go on; fails where one of them is not there."""
    path = f"jobs/{options.flag}"
    unknown: list[str] = []

    def request(client: AdminClient) -> dict[str, Any]:
        answer = client.post(path, {"ids": options.ids})
        unknown.extend(answer["unknown"])
        return answer

    return call_admin(options, request, flagged) or (FAILED if unknown else OK)


def retry_jobs(options: argparse.Namespace) -> int:
    """Has jobs and batches that failed tried again; fails where one of them is not."""
    left: list[object] = []

    def request(client: AdminClient) -> dict[str, Any]:
        answer = client.post("jobs/retry", {"ids": options.ids})
        left.extend([*answer["refused"], *answer["unknown"]])
        return answer

    return call_admin(options, request, retried) or (FAILED if left else OK)


def _backup(options: argparse.Namespace, name: str) -> int:
    from gateway.drivers.sqlite_file import damage_of  # no other command needs sqlite

    def copy(client: AdminClient) -> dict[str, Any]:
        return save(client.backup(name), options.file, damage_of)

    return call_admin(options, copy, lambda answer: saved(answer, name))


def claim(options: argparse.Namespace) -> int:
    """Gives objects that were there before to their tenant."""
    ids = [id for given in options.ids for id in (sys.stdin.read().split() if given == "-" else (given,))]
    given = {"tenant": options.tenant, "ids": ids, "move": options.move}
    if options.provider:
        given["provider"] = options.provider
    return call_admin(options, lambda client: client.post("objects/claim", given), claimed)


def call_admin(
    options: argparse.Namespace,
    request: Callable[[AdminClient], dict[str, Any]],
    show_answer: Callable[[dict[str, Any]], str],
) -> int:
    """Asks the admin API of a running gateway, and prints its answer; returns the exit code."""
    local = local_gateway(options, os.environ)
    url = options.url or local.admin_url
    try:
        is_near = options.url is None or is_loopback(GatewayAddress.read(url).host)  # else the key is another gateway's
        key = options.admin_key or os.environ.get("GATEWAY_ADMIN_KEY") or (local.admin_key if is_near else "")
        if not key:
            hint = f"set GATEWAY_ADMIN_KEY or give {options.key_flag}; it is admin.key of the config"
            if options.url is None and local.is_without_admin:
                hint = "the config has no admin.key, and a gateway without one has no /admin; write `admin: {key: …}`"
            return fail(f"no admin key: {hint}", UNUSABLE)
        answer = request(AdminClient(url, key))
    except AdminRefused as error:
        return fail(error.message, UNUSABLE if error.is_misuse else FAILED)
    print(json.dumps(answer, indent=2) if options.json else show_answer(answer))
    return OK
