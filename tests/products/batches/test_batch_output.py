"""Lines of output and error files, and the objects of batches and files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Batch, FileObject

from gateway.core.types import Usage
from gateway.products.batches.finish import problem_objects
from gateway.products.batches.input import LineProblem
from gateway.products.batches.output import (
    LineIdentity,
    answered_line,
    batch_object,
    batch_status,
    stopped_line,
    unanswered_line,
)
from gateway.products.batches.service import file_object
from gateway.products.jobs.model import Job, JobKind, JobState, Stage, StoredFile, Tally
from gateway.products.jobs.transitions import counted
from gateway.products.routes import list_page
from tests.rows import rows

WHO = LineIdentity(7, "batch_req_x000007", 'a "quoted"\nid ü')


@given(st.binary(max_size=60) | st.text(max_size=30).map(orjson.dumps), st.sampled_from([200, 201, 400, 429, 500]))
def test_an_answer_is_one_line_of_json_whatever_it_is(body: bytes, status: int) -> None:
    """With the answer's own bytes in it where they are JSON."""
    result = answered_line(WHO, status, "req_1", body, Usage(3, 5, 2), 0.25)

    assert result.text.endswith(b"\n")
    assert result.text.count(b"\n") == 1
    value = orjson.loads(result.text)
    assert set(value) == {"id", "custom_id", "response", "error"}
    assert (value["id"], value["custom_id"], value["error"]) == (WHO.id, WHO.custom_id, None)
    assert set(value["response"]) == {"status_code", "request_id", "body"}
    assert result.is_failed == (status >= 400)
    assert result[3:] == (3, 2, 5, 0.25, 0)


def test_the_bytes_of_an_answer_stay_as_they_are() -> None:
    """Numbers are not rounded, names keep their order; only line ends go, which mean nothing in JSON."""
    body = b'{\r\n  "b": 1.10,\n  "a": 12345678901234567890123,\n  "s": "x\\n y"\n}'

    assert b'"body":{  "b": 1.10,  "a": 12345678901234567890123,  "s": "x\\n y"}}' in (
        answered_line(WHO, 200, "req_1", body, None, None).text
    )


@rows(
    ("usage", "tokens"),
    [
        (b'{"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 7}}', 7),
        (b'{"output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 7}}', 7),
        (b'{"completion_tokens_details": null}', 0),
        (b'{"completion_tokens_details": {"reasoning_tokens": "7"}}', 0),
        (b'{"completion_tokens_details": {"reasoning_tokens": -7}}', 0),
        (b'{"completion_tokens_details": {"reasoning_tokens": 7000000000000000}}', 0),
        (b"[]", 0),
    ],
)
def test_tokens_of_reasoning_are_counted(usage: bytes, tokens: int) -> None:
    """As chat completions and responses report them."""
    result = answered_line(WHO, 200, "r", b'{"usage": %b}' % usage, Usage(3, 9), 0.25)

    assert result.reasoning_tokens == tokens
    usage_shown = batch_object(batch(tally=counted(Tally(2), [result, result])))["usage"]
    assert usage_shown["output_tokens_details"] == {"reasoning_tokens": 2 * tokens}


def test_what_is_no_json_becomes_a_string() -> None:
    """A page of a proxy must not break the file."""
    body = b"<html>\n502 \xff</html>"

    assert (
        orjson.loads(answered_line(WHO, 502, "r", body, None, None).text)["response"]["body"]
        == "<html>\n502 \ufffd</html>"
    )
    assert orjson.loads(answered_line(WHO, 502, "r", b" ", None, None).text)["response"]["body"] is None


@pytest.mark.parametrize(
    ("state", "code"), [(JobState.CANCELLED, "batch_cancelled"), (JobState.EXPIRED, "batch_expired")]
)
def test_a_line_that_did_not_run_says_why(state: JobState, code: str) -> None:
    """In the error file, without an answer."""
    result = stopped_line(WHO, state)

    assert result.is_failed
    value = orjson.loads(result.text)
    assert (value["response"], value["error"]["code"]) == (None, code)


def test_any_other_end_is_told_the_same_way() -> None:
    """A line that crashes workers has no answer either."""
    assert orjson.loads(unanswered_line(WHO, "worker_crashed", "why").text) == {
        "id": WHO.id,
        "custom_id": WHO.custom_id,
        "response": None,
        "error": {"code": "worker_crashed", "message": "why"},
    }


def batch(**fields: Any) -> Job:
    job = Job(
        id="batch_gw1",
        kind=JobKind.BATCH,
        tenant="t",
        key="k",
        lane="batch",
        segment="slow",
        is_urgent=False,
        model="",
        state=JobState.RUNNING,
        created_at=100.7,
        run_at=100.7,
        deadline=86_500.7,
        max_attempts=5,
        about={"endpoint": "/v1/chat/completions", "input_file_id": "file-gw1", "completion_window": "24h"},
        stage=Stage.RUN,
    )
    return replace(job, **fields)


@rows(
    ("fields", "status"),
    [
        ({"state": JobState.QUEUED, "stage": Stage.CHECK}, "validating"),
        ({"stage": Stage.CHECK}, "validating"),
        ({}, "in_progress"),
        ({"is_paused": True}, "in_progress"),
        ({"ends_as": JobState.CANCELLED}, "cancelling"),
        ({"ends_as": JobState.EXPIRED}, "in_progress"),
        ({"stage": Stage.FINALISE}, "finalizing"),
        ({"stage": Stage.FINALISE, "ends_as": JobState.CANCELLED}, "cancelling"),
        ({"stage": Stage.FINALISE, "state": JobState.QUEUED}, "finalizing"),
        ({"state": JobState.SUCCEEDED}, "completed"),
        ({"state": JobState.FAILED}, "failed"),
        ({"state": JobState.CANCELLED}, "cancelled"),
        ({"state": JobState.EXPIRED}, "expired"),
    ],
)
def test_the_status_is_openais_word(fields: dict[str, Any], status: str) -> None:
    """For each stage and end."""
    job = batch(**fields)

    assert batch_status(job) == status
    assert Batch.model_validate(batch_object(job), strict=True).status == status


def test_a_batch_shows_every_field() -> None:
    """As the official object: null where there is nothing to tell."""
    empty = batch_object(batch(state=JobState.QUEUED, stage=Stage.CHECK))
    full = batch_object(
        batch(
            state=JobState.SUCCEEDED,
            ended_at=900.9,
            tally=Tally(10, 7, 3, 100, 20, 50, 0.1),
            marks={
                "in_progress_at": 200.2,
                "finalizing_at": 800.1,
                "output_file_id": "o",
                "error_file_id": "e",
                "models": ["m"],
            },
            about={**batch().about, "metadata": {"a": "b"}},
        )
    )

    assert set(empty) == set(full) == set(Batch.model_fields)
    assert {name for name, value in empty.items() if value is not None} == {
        "id", "object", "endpoint", "input_file_id", "completion_window", "status", "created_at", "expires_at",
        "request_counts", "usage",
    }  # fmt: skip
    assert empty["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert (full["in_progress_at"], full["finalizing_at"], full["completed_at"]) == (200, 800, 900)
    assert full["usage"]["total_tokens"] == 150
    assert (full["model"], full["metadata"]) == ("m", {"a": "b"})


def test_a_failed_batch_lists_what_is_wrong() -> None:
    """In the form of OpenAI's errors."""
    problems = problem_objects([LineProblem("invalid_json_line", "why", None, 3)])
    job = batch(state=JobState.FAILED, ended_at=5.0, marks={"errors": problems})

    shown = Batch.model_validate(batch_object(job), strict=True)

    assert shown.failed_at == 5
    assert shown.errors is not None
    assert shown.errors.data is not None
    assert [(one.code, one.line) for one in shown.errors.data] == [("invalid_json_line", 3)]


def test_a_file_is_shown_as_openai_does() -> None:
    """Also where it never expires; and in a page."""
    file = StoredFile("file-gw1", "t", "batch", "input.jsonl", 12, 100.5, None, "blob")

    shown = FileObject.model_validate(file_object(file), strict=True)
    page = list_page([file_object(file)], has_more=True)

    assert (shown.id, shown.bytes, shown.created_at, shown.expires_at) == ("file-gw1", 12, 100, None)
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("file-gw1", "file-gw1", True)
    assert list_page([], has_more=False) == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip


def test_an_answer_with_half_of_a_surrogate_pair_is_json_like_any_other() -> None:
    """In the same bytes: what is no JSON would become a string."""
    body = b'{"choices":[],"x":"a\\ud83d","usage":{"completion_tokens_details":{"reasoning_tokens":7}}}'
    result = answered_line(WHO, 200, "req_1", body, Usage(3, 5), None)
    assert b'"body":%b}' % body in result.text
    assert result.reasoning_tokens == 7
