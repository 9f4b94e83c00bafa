"""What polls of batches cost: put together once for each look at the store, and written at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest
from uvicorn.server import ServerState

from gateway.core.http.writing import AsgiCycle, CycleOwner, WholeResponse
from gateway.products.batches import http, output
from gateway.products.batches.http import ShownBatches
from gateway.products.jobs.model import BATCH, Job, JobKind, JobState, new_id

BATCH_JOB = Job(
    id=new_id(BATCH, bytes(16)),
    kind=JobKind.BATCH,
    tenant="a",
    key="a",
    lane="batch",
    segment="calls",
    is_urgent=False,
    model="",
    state=JobState.QUEUED,
    created_at=0.0,
    run_at=0.0,
    deadline=100.0,
    max_attempts=1,
    about={output.ENDPOINT: "/v1/chat/completions", output.INPUT_FILE: "file-1", output.WINDOW: "24h"},
)


class Wire:
    """A connection that remembers what was written, and in how many pieces."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.pieces: list[bytes] = []
        self.answered = 0
        self.write_paused = is_full
        self.transport = self.flow = self
        self.logger = self.access_logger = self.on_gone = None
        self.url = b"/"
        self.server_state = ServerState()

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    async def drain(self) -> None:
        self.write_paused = False

    def on_response_complete(self) -> None:
        self.answered += 1


async def answer(wire: Wire, response: Any, method: str = "GET") -> None:
    """Has the response answer a request on this connection, as starlette does."""
    state: dict[str, Any] = {}
    scope = {
        "type": "http",
        "method": method,
        "query_string": b"",
        "http_version": "1.1",
        "headers": [],
        "state": state,
    }
    cycle = AsgiCycle(cast("CycleOwner", wire), scope, {}, expects=False, keep_alive=True)
    state["cycle"] = cycle
    await response(scope, cycle.receive, cycle.send)
    assert cycle.response_complete
    assert "cycle" not in state  # which holds the scope


async def test_an_answer_that_is_there_is_one_write() -> None:
    """As on the way of calls; to HEAD without the body."""
    told = WholeResponse(b'{"a":1}', 200, [(b"content-type", b"application/json")])
    wire, head, full = Wire(), Wire(), Wire(is_full=True)

    await answer(wire, told)
    await answer(head, told, "HEAD")
    await answer(full, told)

    start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n\r\n"
    assert wire.pieces == full.pieces == [start + b'{"a":1}']
    assert head.pieces == [start]
    assert wire.answered == head.answered == 1


async def test_behind_another_server_it_is_an_answer_as_any_other() -> None:
    """Whoever has no connection of ours gets the messages of ASGI."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    await WholeResponse(b"{}", 202, [])({"type": "http"}, cast("Any", None), send)

    assert [one["type"] for one in sent] == ["http.response.start", "http.response.body"]
    assert (sent[0]["status"], sent[0]["headers"], sent[1]["body"]) == (202, [(b"content-length", b"2")], b"{}")


def noting(made: list[str], name: str) -> Callable[..., Any]:
    """What the module calls by this name; the name is noted."""
    real = getattr(http, name)

    def call(*given: Any) -> Any:
        made.append(name)
        return real(*given)

    return call


def test_polls_of_one_look_share_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a request id of its own. What another look finds is shown anew; the ids of its files are kept."""
    made = list[str]()
    for name in ("batch_object", "derived_file_id"):
        monkeypatch.setattr(http, name, noting(made, name))
    shown = ShownBatches()

    first, second = shown.response(BATCH_JOB), shown.response(BATCH_JOB)
    assert made == ["derived_file_id", "derived_file_id", "batch_object"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.body == second.body

    later = replace(BATCH_JOB, is_paused=True, revision=1)
    assert shown.response(later).headers["x-gateway-paused"] == "operator"
    assert len(made) == 4
    ended = shown.response(replace(BATCH_JOB, state=JobState.FAILED, ended_at=5.0))
    assert orjson.loads(ended.body)["status"] == "failed"
    assert "x-gateway-output-file-id" not in ended.headers
    assert made.count("derived_file_id") == 2


def test_only_so_many_batches_are_remembered() -> None:
    """Polls of more of them are answered all the same."""
    shown = ShownBatches()
    for number in range(2 * http.MOST_KEPT):
        shown.response(replace(BATCH_JOB, id=new_id(BATCH, number.to_bytes(16, "little"))))

    assert 0 < len(shown._last) <= http.MOST_KEPT
