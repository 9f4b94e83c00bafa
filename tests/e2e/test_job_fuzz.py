"""Whatever is asked of files, batches and jobs is done, or refused with a code, and is never an error of the gateway's own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.conftest import StartGateway
from tests.e2e.durable import with_jobs
from tests.e2e.harness import NIGHTLY_KEY, WEB_KEY, chat

EXAMPLES = int(os.environ.get("JOB_FUZZ", "120"))
BOUNDARY = "b0undary"
ODD_TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "0", "-1", "1e999", "NaN", "9" * 40, "../../etc/passwd", "a" * 600, "\x00", "\ud800", "é", "null"]
    ),
)
ODD: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        ODD_TEXT,
        st.sampled_from(["24h", "10m", "-5s", "1e400s", 10**30, 1.5, 0]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(ODD_TEXT, inner, max_size=3)),
    max_leaves=4,
)


def object_of(*needed: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some of these fields, each as it should be or odd; the needed ones are mostly there, and good."""
    odd = {name: st.one_of(good, good, ODD) for name, good in fields.items()}
    rest = {name: one for name, one in odd.items() if name not in needed}
    good = st.fixed_dictionaries({name: fields[name] for name in needed}, optional=rest)
    return st.one_of(good, good, st.fixed_dictionaries({}, optional=odd))


ENDPOINT = st.sampled_from(
    ["/v1/chat/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/jobs", "chat/completions"]
)
METADATA = st.dictionaries(ODD_TEXT, ODD_TEXT, max_size=3)
LATER = st.sampled_from(["1s", "2h", 2_000_000_000, 1])
JOB = object_of(
    "endpoint",
    "body",
    endpoint=ENDPOINT,
    body=st.one_of(st.just(chat()), st.just({"model": "gpt-4o", "input": ["a"]})),
    run_at=LATER,
    delay=LATER,
    deadline=LATER,
    priority=st.integers(-1, 11),
    lane=st.sampled_from(["batch", "interactive", "none"]),
    max_attempts=st.integers(-1, 101),
    dedupe_key=ODD_TEXT,
    debounce=object_of(key=ODD_TEXT, wait=LATER, max_wait=LATER),
    webhook=st.sampled_from(["https://example.com/hook", "http://127.0.0.1/", "//", "https://[::"]),
    metadata=METADATA,
)
BATCH = object_of(
    "input_file_id",
    "endpoint",
    "completion_window",
    input_file_id=st.sampled_from(["FILE", "file-gw0", "file-abc"]),
    endpoint=ENDPOINT,
    completion_window=st.sampled_from(["24h", "10m", "9d"]),
    metadata=METADATA,
    output_expires_after=object_of(anchor=st.just("created_at"), seconds=st.integers(0, 10**8)),
)
LINE = object_of(custom_id=ODD_TEXT, method=st.just("POST"), url=ENDPOINT, body=st.just(chat()))
LINES = st.lists(st.one_of(LINE.map(lambda line: json.dumps(line).encode()), st.binary(max_size=20)), max_size=3)
PART = st.tuples(
    st.sampled_from(
        [b'name="file"; filename="a.jsonl"', b'name="purpose"', b'name="expires_after[anchor]"', b"name", b""]
    ),
    st.one_of(LINES.map(b"\n".join), st.sampled_from([b"batch", b"created_at", b"3600"]), st.binary(max_size=20)),
)


def form(parts: list[tuple[bytes, bytes]]) -> bytes:
    """A multipart body."""
    mark = b"--" + BOUNDARY.encode()
    whole = b"".join(mark + b"\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % part for part in parts)
    return whole + mark + b"--\r\n"


UPLOAD = st.one_of(
    LINES.map(
        lambda lines: form([(b'name="purpose"', b"batch"), (b'name="file"; filename="a.jsonl"', b"\n".join(lines))])
    ),
    st.lists(PART, max_size=3).map(form),
    st.binary(max_size=60),
)
HEADER_NAMES = (
    "prefer idempotency-key range last-event-id accept content-type x-gateway-run-at x-gateway-delay x-gateway-debounce "
    "x-gateway-dedupe x-gateway-priority x-gateway-webhook x-gateway-lane x-gateway-deadline-ms"
)
HEADER_VALUES = (
    "respond-async|respond-async, wait=0|wait=x|bytes=0-|bytes=9-3|bytes=-0|text/event-stream|1|-1|key=a;wait=10s;max=2m|"
    f"key=;wait=|2h|99999999999|multipart/form-data; boundary={BOUNDARY}"
)
HEADERS = st.dictionaries(
    st.sampled_from(HEADER_NAMES.split()),
    st.one_of(
        st.sampled_from(HEADER_VALUES.split("|")),
        st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=10),
    ),
    max_size=3,
)
QUERY = st.lists(
    st.tuples(
        st.sampled_from(
            ["limit", "after", "before", "order", "status", "purpose", "metadata[a]", "metadata[", "starting_after"]
        ),
        st.one_of(
            st.sampled_from(["1", "0", "101", "asc", "desc", "queued", "batch", "JOB", "BATCH", "FILE"]), ODD_TEXT
        ),
    ),
    max_size=3,
)
ID = st.one_of(
    st.sampled_from(
        ["JOB", "BATCH", "FILE", "JOB", "BATCH", "FILE", "job_gw" + "0" * 22, "batch_gw" + "z" * 22, "file-gw%00"]
    ),
    ODD_TEXT,
)
BELOW = st.sampled_from(["", "", "/cancel", "/result", "/events", "/content", "/x"])
METHODS_OF_ALL = ["POST", "POST", "POST", "GET", "GET", "HEAD", "DELETE"]
METHODS_OF_ONE = ["GET", "GET", "GET", "DELETE", "POST", "PUT", "HEAD"]
KIND = st.sampled_from(["files", "batches", "jobs"])


def encoded(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="%")


class Caller:
    """Asks, and keeps the ids of what it has made."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url).netloc
        self.known = {"JOB": "job_gw0", "BATCH": "batch_gw0", "FILE": "file-gw0"}
        self.statuses: dict[int, int] = {}

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> None:
        """Sends a request, and looks at the answer."""
        connection = http.client.HTTPConnection(self._place, timeout=30)
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value.encode("latin-1"))
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            kind = answer.headers.get("content-type", "")
            text = b"" if kind.startswith("text/event-stream") else answer.read()
        finally:
            connection.close()
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        said = f"{method} {path} {headers} {body!r}: {answer.status} {text[:500]!r}"
        assert answer.status < 500, said
        if answer.status >= 400 and method != "HEAD":
            error = json.loads(text)
            assert set(error) == {"error"}, said
            assert set(error["error"]) == {"message", "type", "param", "code"}, said
            assert error["error"]["code"], said
            assert error["error"]["message"], said
        elif method == "POST" and kind == "application/json":
            made = json.loads(text)
            what = str(made.get("object", "")).upper()
            if what in self.known:
                self.known[what] = made["id"]


def bodies_of(kind: str) -> st.SearchStrategy[bytes]:
    """Bodies for one of the three."""
    if kind == "files":
        return UPLOAD
    wanted = JOB if kind == "jobs" else BATCH
    return st.one_of(
        wanted.map(lambda one: json.dumps(one).encode()),
        ODD.map(lambda one: json.dumps(one).encode()),
        st.binary(max_size=30),
    )


def fuzz(caller: Caller) -> None:
    """Asks for many things."""

    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def once(data: st.DataObject) -> None:
        kind = data.draw(KIND)
        is_one = data.draw(st.booleans())
        method = data.draw(st.sampled_from(METHODS_OF_ONE if is_one else METHODS_OF_ALL))
        path = f"/v1/{kind}"
        if is_one:
            name, below = data.draw(ID), data.draw(BELOW)
            path += f"/{caller.known.get(name) or encoded(name)}{below}"
            method = "POST" if below == "/cancel" else method
        query = "&".join(
            f"{encoded(name)}={caller.known.get(value) or encoded(value)}" for name, value in data.draw(QUERY)
        )
        path += f"?{query}" if query else ""
        is_upload = kind == "files" and not is_one
        headers = {
            "authorization": f"Bearer {data.draw(st.sampled_from([WEB_KEY, WEB_KEY, WEB_KEY, NIGHTLY_KEY]))}",
            "content-type": f"multipart/form-data; boundary={BOUNDARY}" if is_upload else "application/json",
            **data.draw(HEADERS),
        }
        body = data.draw(bodies_of(kind)) if method in ("POST", "PUT") else None
        if body is not None:
            body = body.replace(b'"FILE"', b'"%b"' % caller.known["FILE"].encode())
        caller.ask(method, path, headers, body)

    once()


async def test_whatever_is_asked_is_answered_or_refused_with_a_code(start: StartGateway, tmp_path: Path) -> None:
    """Odd methods, ids, queries, headers, bodies; `JOB_FUZZ` sets another number of them."""
    gateway = await start(with_jobs(tmp_path))
    caller = Caller(gateway.url)
    await asyncio.to_thread(fuzz, caller)

    assert sum(caller.statuses.values()) >= EXAMPLES
    assert {200, 400, 404} <= set(caller.statuses), caller.statuses
