"""Commands about jobs: a caller's end of `/v1`, how jobs look on a terminal, `gateway jobs`, and `gateway work`.

In this order: the client; a line of progress; patience; what is printed; `gateway jobs`; a gateway in this process; and
`gateway work`. Only the gateway's HTTP is used. Every failure is an `AdminRefused` with a sentence that says what to do; it is
misuse if the same would be refused again, else it may pass. The key goes to the address that was named and nowhere else.
Invariant: of a file a piece at a time is in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import uvloop

from gateway.cli.config import compile_config, local_gateway, settings_of
from gateway.cli.main import FAILED, OK, UNUSABLE, fail
from gateway.cli.operate import PIECE_BYTES, AdminRefused, GatewayAddress, lay_out, moment, safe, usd
from gateway.cli.serve import log_to_stderr
from gateway.core.errors import ConfigError
from gateway.drivers.durability import JobSettings
from gateway.products.jobs.rules import JOBS
from gateway.workers.worker import running, serve

TIMEOUT_S = 60.0
"""Seconds of each wait for the gateway: it answers an upload when the file is on its disk."""
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

    def request(
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
            size = _size_of(source)
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


def check_input(file: Path) -> None:
    """Raises OSError for a file that cannot be opened, AdminRefused for one that is no input of a batch."""
    with file.open("rb") as source:
        _size_of(source)


def _size_of(source: BinaryIO) -> int:
    size = os.fstat(source.fileno()).st_size
    if not size:
        raise AdminRefused(f"{source.name} is empty, or no file; a batch wants a line for each request", is_misuse=True)
    return size


def caller_of(options: argparse.Namespace, url: str | None = None) -> CallerClient:
    """Returns the client that the arguments ask for, or the same at `url`. Raises AdminRefused."""
    url = url or options.url or local_gateway(options, os.environ).url
    key = options.api_key if options.api_key is not None else os.environ.get("OPENAI_API_KEY", "")
    return CallerClient(url, key)


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


# --- a line of progress, on standard error ---

EVERY_S = 5.0
"""Seconds after which the line is written again where no terminal shows it, if it has changed."""


class ProgressLine:
    """A line that takes the place of the one before on a terminal; elsewhere a line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._last = ""
        self._next_at = 0.0

    def show(self, text: str) -> None:
        """Shows how far the work is; `text` is for a terminal's eyes."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r{text[:width]}\x1b[K")
            self._out.flush()
            self._last = text
        elif text != self._last and time.monotonic() >= self._next_at:
            print(text, file=self._out, flush=True)
            self._last, self._next_at = text, time.monotonic() + EVERY_S

    def clear(self) -> None:
        """Leaves the terminal's line to what comes next."""
        if self._is_terminal and self._last:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._last = ""


# --- patience with a gateway that starts again, or has no room for now ---

AGAIN_S = 2.0
PATIENCE_S = 300.0
"""Seconds for which a gateway that is away, starts again or has no room is asked again."""
Answer = TypeVar("Answer")


def patiently(request: Callable[[], Answer], progress: ProgressLine) -> Answer:
    """Sends a request until it is answered. Raises AdminRefused for what is no use, or when the patience is at its end."""
    until: float | None = None
    while True:
        try:
            return request()
        except AdminRefused as error:
            now = time.monotonic()
            until = now + PATIENCE_S if until is None else until
            if error.is_misuse or now >= until:
                raise
            progress.show(f"waiting for the gateway: {safe(error.message)}")
        time.sleep(AGAIN_S)


# --- jobs and batches on a terminal ---

JOB_HEADINGS = ("id", "kind", "status", "model", "done", "created", "cost")
ENDS = frozenset({"succeeded", "completed_with_failures", "failed", "cancelled", "expired"})
MOST_PROBLEMS = 10
"""The problems of a batch's input that are printed."""


def jobs_table(page: Mapping[str, Any]) -> str:
    """Shows a page of jobs, one a line, and how to go on to the next."""
    jobs = page["data"]
    if not jobs:
        return "no jobs"
    table = lay_out([JOB_HEADINGS, *map(_row, jobs)], right=(4, 6))
    return f"{table}\nthere are more: --after {safe(page['last_id'])}" if page["has_more"] else table


def job_facts(job: Mapping[str, Any]) -> str:
    """Shows all that is known of a job, a fact a line."""
    error, attempts, usage = job["last_error"], job["attempts"], job["usage"]
    facts = [
        ("id", job["id"]),
        ("kind", job["kind"]),
        ("status", _status(job)),
        ("endpoint", job["endpoint"]),
        ("model", job["model"]),
        ("done", _done(job) if job["progress"]["total"] else None),
        ("paused", job.get("paused")),
        (
            "attempts",
            f"{attempts['made']} of {attempts['max']}" if attempts["max"] and job["kind"] != "batch" else None,
        ),
        ("last error", f"{error['class']}: {error['message']}" if error else None),
        ("created", _at(job["created_at"])),
        ("started", _at(job["started_at"])),
        ("finished", _at(job["finished_at"])),
        ("deadline", _at(job["deadline"])),
        ("tokens", f"{usage['input_tokens']:,} input, {usage['output_tokens']:,} output"),
        ("cost", usd(job["cost_usd"])),
        *_places(job),
    ]
    return lay_out([(label, safe(fact)) for label, fact in facts if fact is not None])


def cancelled(job: Mapping[str, Any]) -> str:
    """Returns what came of the wish that a job stop."""
    if job["status"] in ENDS:
        return f"{safe(job['id'])} has ended: {_status(job)}"
    return f"{safe(job['id'])} is stopping; it is {job['status']}"


def batch_progress(batch: Mapping[str, Any], paused: str | None) -> str:
    """Returns how far a batch is, in few words."""
    counts = batch["request_counts"] or {}
    total, failed = counts.get("total", 0), counts.get("failed", 0)
    words = [f"{safe(batch['id'])} {safe(batch['status'])}"]
    if total:
        words.append(f"{counts['completed'] + failed:,} of {total:,} lines")
    if failed:
        words.append(f"{failed:,} failed")
    if paused:
        words.append(f"paused: {safe(paused)}")
    return ", ".join(words)


def batch_end(batch: Mapping[str, Any], output: str | None, errors: str | None) -> str:
    """Returns how a batch has ended, and where its files are."""
    counts = batch["request_counts"]
    answered = f"{counts['completed']:,} of {counts['total']:,} lines answered" + (f": {output}" if output else "")
    failed = f"; {counts['failed']:,} failed" + (f": {errors}" if errors else "") if counts["failed"] else ""
    how = " with failures" if failed and batch["status"] == "completed" else ""
    return f"{safe(batch['id'])} {safe(batch['status'])}{how}; {answered}{failed}"


def batch_problems(batch: Mapping[str, Any]) -> str:
    """Returns what is wrong with the input of a batch, a problem a line."""
    found = (batch["errors"] or {}).get("data") or []
    lines = [
        f"{'' if one['line'] is None else 'line {:,}: '.format(one['line'])}{safe(one['message'])} ({safe(one['code'])})"
        for one in found[:MOST_PROBLEMS]
    ]
    more = [f"and {len(found) - MOST_PROBLEMS} more"] if len(found) > MOST_PROBLEMS else []
    return "\n".join([f"{safe(batch['id'])} has failed, and nothing of it has run", *lines, *more])


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        safe(job["id"]),
        safe(job["kind"]),
        _status(job),
        safe(job["model"] or "-"),
        _done(job) if job["progress"]["total"] else "-",
        _at(job["created_at"]) or "-",
        usd(job["cost_usd"]),
    )


def _status(job: Mapping[str, Any]) -> str:
    status = str(job["status"]).replace("_", " ")
    return f"{status} (paused)" if job["is_paused"] else status


def _done(job: Mapping[str, Any]) -> str:
    progress = job["progress"]
    failed = f", {progress['failed']:,} failed" if progress["failed"] else ""
    return f"{progress['done'] + progress['failed']:,} of {progress['total']:,}{failed}"


def _places(job: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Where the answers of an ended job are."""
    batch = job.get("batch")
    if batch is None:
        return [("result", job["result"]["url"] if job["result"] else None)]
    files = (("output", batch["output_file_id"]), ("errors", batch["error_file_id"]))
    return [(label, f"/v1/files/{file_id}/content" if file_id else None) for label, file_id in files]


def _at(seconds: float | None) -> str | None:
    return None if seconds is None else moment(seconds)


# --- `gateway jobs`: what a key has under way at a running gateway ---


def list_jobs(options: argparse.Namespace) -> int:
    """Lists jobs and batches, newest first."""
    params = {name: getattr(options, name) for name in ("limit", "status", "after") if getattr(options, name)}
    return _call_gateway(options, lambda client: client.request("GET", f"jobs?{urlencode(params)}").fields, jobs_table)


def show(options: argparse.Namespace) -> int:
    """Shows a job; of a batch its files, too, and why it stands still."""

    def request(client: CallerClient) -> dict[str, Any]:
        job = client.request("GET", f"jobs/{quote(options.id, safe='')}").fields
        if job["kind"] == "batch":
            batch = client.request("GET", f"batches/{quote(options.id, safe='')}")
            job |= {"batch": batch.fields, "paused": batch.paused}
        return job

    return _call_gateway(options, request, job_facts)


def cancel(options: argparse.Namespace) -> int:
    """Asks a job or a batch to stop."""
    path = f"jobs/{quote(options.id, safe='')}/cancel"
    return _call_gateway(options, lambda client: client.request("POST", path).fields, cancelled)


def _call_gateway(
    options: argparse.Namespace,
    request: Callable[[CallerClient], dict[str, Any]],
    show_answer: Callable[[dict[str, Any]], str],
) -> int:
    """Asks a running gateway, and prints its answer."""
    try:
        answer = request(caller_of(options))
    except AdminRefused as error:
        return fail(error.message, UNUSABLE if error.is_misuse else FAILED)
    print(json.dumps(answer, indent=2) if options.json else show_answer(answer))
    return OK


# --- a gateway in this process, for a command that finds none: by the same config, with the same jobs file ---

LOOK_S = 1.0


@contextmanager
def caller_for(options: argparse.Namespace, progress: ProgressLine) -> Iterator[tuple[CallerClient, bool]]:
    """Yields a client of the gateway to ask, and whether that is this process's own, which is told.

    It is the one that `--url` names; without one, whoever listens where the config says, else one that is started for this
    and stops behind it. Raises AdminRefused, ConfigError, StoreUnusable or OSError where that cannot be.

    The gateway of this process listens on a free port of loopback and lives as long as the command; what it has taken is in its
    jobs file, and goes on with whatever gateway starts on that next.
    """
    usual = local_gateway(options, os.environ).url
    if options.url is not None or _is_taken(usual):
        yield caller_of(options, options.url or usual), False
        return
    settings = settings_of(options)
    if not settings.config.exists():
        message = f"no gateway answers at {usual}, and there is no {settings.config} to run one by; "
        raise AdminRefused(f"{message}name a gateway by --url, or a config by --config", is_misuse=True)
    if not JOBS.of(compile_config(settings)).settings.works:
        message = "a gateway by this config runs no jobs (jobs.work: false); name a gateway by --url"
        raise AdminRefused(message, is_misuse=True)
    with running(settings, os.environ) as url:
        client = caller_of(options, url)
        progress.show(f"no gateway at {usual}: this process is one, by {safe(settings.config)}")
        yield client, True


def _is_taken(url: str) -> bool:
    place = urlsplit(url)
    try:
        socket.create_connection((place.hostname, place.port), LOOK_S).close()
    except OSError:
        return False
    return True


# --- `gateway work`: runs the jobs that gateways take into a Redis, and takes no calls itself ---


def run_worker(options: argparse.Namespace) -> int:
    """Runs jobs until it is told to stop. Raises ConfigError where there can be none for it."""
    settings = settings_of(options)
    refusal = why_no_work(JOBS.of(compile_config(settings)).settings)
    if refusal:
        raise ConfigError([f"{settings.config}: {refusal}"])
    log_to_stderr(settings)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings, os.environ, only_works=True))


def why_no_work(jobs: JobSettings) -> str:
    """Returns why a worker of its own has nothing to do with these settings; empty: it has."""
    if jobs.redis is not None:
        return ""
    if not jobs.is_on:
        return "jobs are off: there is nothing to work on"
    return (
        "jobs.store: an SQLite file is one process's alone, the gateway's that takes the jobs, and that runs them, too. For "
        "workers of their own keep jobs in a Redis: store: redis://HOST:PORT, or `state: redis://HOST:PORT`"
    )
