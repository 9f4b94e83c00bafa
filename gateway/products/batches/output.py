"""What a batch looks like to its owner, and the lines of its output and error files.

    {"id": "batch_req_…", "custom_id": "a-1", "response": {"status_code": 200, "request_id": "…", "body": {…}}, "error": null}
    {"id": "batch_req_…", "custom_id": "a-2", "response": null, "error": {"code": "batch_expired", "message": "…"}}

An answer with a status of 400 or more goes into the error file as the first form; what has no answer, as the second. In this
order: the names of what a batch remembers; the batch object; lines of files; what a caller asks of a batch; the price of lines;
and the request of a line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.json_edit import find_fields, insert_field, mended_json
from gateway.core.openai.usage import MOST_TOKENS
from gateway.core.types import Usage
from gateway.features.run_port import RunWords, ServedLines
from gateway.products.jobs.calls import JSON, StoredRequest, step_of, with_version
from gateway.products.jobs.model import ChunkPlan, Job, JobState, LineResult, Stage, Tally
from gateway.products.jobs.request import RUN_WORDS, read_metadata
from gateway.products.jobs.rules import BatchRules, JobRules

# --- the names in `about` and `marks` of what the pieces of a batch need of each other, in one place ---

INPUT_FILE: Final = "input_file_id"
"""In `about`: as the caller named it."""
INPUT: Final = "input"
"""In `about`: the blob of the input file."""
ENDPOINT: Final = "endpoint"
"""In `about`: such as `/v1/chat/completions`."""
WINDOW: Final = "completion_window"
"""In `about`: as the caller wrote it."""
METADATA: Final = "metadata"
OUTPUT_LASTS_S: Final = "output_lasts_s"
"""In `about`: for how long the output files are kept, where the caller says so."""
BROUGHT_CREDENTIAL: Final = "brought_credential"
"""In `about`: the caller had a credential of its own, which is not stored."""
INDEX: Final = "index"
"""In `marks`, once checked: the blob that says where each line is."""
LINES_PER_CHUNK: Final = "lines_per_chunk"
PARALLEL: Final = "parallel_chunks"
MODELS: Final = "models"
"""In `marks`, once checked: the models of its lines, numbered as the index does."""
ERRORS: Final = "errors"
"""In `marks`: what is wrong with the input, as a batch shows it."""
OUTPUT_FILE: Final = "output_file_id"
ERROR_FILE: Final = "error_file_id"
IN_PROGRESS_AT: Final = "in_progress_at"
FINALIZING_AT: Final = "finalizing_at"
BRAKED_BY: Final = "braked_by"
"""In `marks`: the class of errors for which only single lines are tried; absent: nothing keeps it."""
WAITS_FOR: Final = "waits_for"
"""In `marks`: the code with which its lines are put off until another day, `budget_exceeded`; absent: they are not."""
NATIVE: Final = "native"
"""In `marks`: its chunks may go to a provider's own Batch API, each as a part; `native.N` says how far chunk N has come."""
MOST_FAILED: Final = "most_failed"
"""In `about` of a batch of a run's items: so many of its lines may fail; absent: all of them."""
BROKEN: Final = "tolerance_broken"
"""In `marks`: it was stopped, since more have failed; the last of them, as in the file of errors."""
CANCELLING_AT: Final = "cancelling_at"
"""In `marks`: when it was asked to stop, as the store notes it."""


def plan_of(job: Job) -> ChunkPlan:
    return ChunkPlan(job.tally.total, job.marks[LINES_PER_CHUNK], job.marks.get(PARALLEL, 1))


def batch_folder(job_id: str) -> str:
    """Returns what the names of all blobs begin with that a batch needs on its way."""
    return f"batch/{job_id}"


def index_blob(job_id: str) -> str:
    return f"{batch_folder(job_id)}/index"


def part_mark(chunk: int) -> str:
    """Returns the name of the mark that says how far a chunk has come at a provider."""
    return f"{NATIVE}.{chunk}"


def parts_of(job: Job) -> dict[int, dict[str, Any]]:
    """Returns the marks of all chunks that have been on the way to a provider."""
    begin = f"{NATIVE}."
    return {int(name.removeprefix(begin)): mark for name, mark in job.marks.items() if name.startswith(begin)}


def part_blob(job_id: str, chunk: int) -> str:
    """Returns the name of the blob with a chunk's lines as a provider gets them."""
    return f"{batch_folder(job_id)}/{chunk:06d}.part.jsonl"


def chunk_blob(job_id: str, chunk: int, fence: int, kind: str) -> str:
    """Returns the name of a chunk's blob, `kind` being output or errors; each claim of a chunk writes blobs of its own."""
    return f"{batch_folder(job_id)}/{chunk:06d}.{fence}.{kind}"


# --- batches as the Batch API shows them ---

ENDED: Final[Mapping[JobState, str]] = {
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.EXPIRED: "expired",
}


def batch_object(job: Job) -> dict[str, Any]:
    """Returns a batch as the Batch API shows it.

    Every field is there, null where it has no value: SDKs of some languages know no absent ones. Source:
    https://platform.openai.com/docs/api-reference/batch/object
    """
    status, about, marks = batch_status(job), job.about, job.marks
    ended_at = {ENDED[job.state]: job.ended_at} if job.state.is_end else {}
    errors = marks.get(ERRORS)
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": about[ENDPOINT],
        "model": job.model or _only(marks.get(MODELS)),
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": about[INPUT_FILE],
        "completion_window": about[WINDOW],
        "status": status,
        "output_file_id": marks.get(OUTPUT_FILE),
        "error_file_id": marks.get(ERROR_FILE),
        "created_at": int(job.created_at),
        "in_progress_at": _whole(marks.get(IN_PROGRESS_AT)),
        "expires_at": int(job.deadline),
        "finalizing_at": _whole(marks.get(FINALIZING_AT)),
        "completed_at": _whole(ended_at.get("completed")),
        "failed_at": _whole(ended_at.get("failed")),
        "expired_at": _whole(ended_at.get("expired")),
        "cancelling_at": _whole(marks.get(CANCELLING_AT)),
        "cancelled_at": _whole(ended_at.get("cancelled")),
        "request_counts": {"total": job.tally.total, "completed": job.tally.completed, "failed": job.tally.failed},
        "usage": _usage(job.tally),
        "metadata": about.get(METADATA) or None,
    }


def batch_status(job: Job) -> str:
    """Returns OpenAI's word for how far a batch has come."""
    if job.state.is_end:
        return ENDED[job.state]
    if job.ends_as is JobState.CANCELLED:
        return "cancelling"
    if job.stage is Stage.CHECK:
        return "validating"
    return "finalizing" if job.stage is Stage.FINALISE else "in_progress"


def _usage(tally: Tally) -> dict[str, Any]:
    return {
        "input_tokens": tally.input_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.output_tokens,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
        "total_tokens": tally.input_tokens + tally.output_tokens,
    }


def _only(models: object) -> str | None:
    return models[0] if isinstance(models, list) and len(models) == 1 else None


def _whole(at: float | None) -> int | None:
    return None if at is None else int(at)


# --- lines of files: an answer, or why there is none ---

EXPIRED: Final = "batch_expired", "This request could not be executed before the completion window expired."
CANCELLED: Final = "batch_cancelled", "This request was not executed because the batch was cancelled."


class LineIdentity(NamedTuple):
    """Whose answer a line is."""

    line: int
    """Counted from 0 over the whole batch."""
    id: str
    custom_id: str


def answered_line(
    who: LineIdentity, status: int, request_id: str, body: bytes, usage: Usage | None, cost_usd: float | None
) -> LineResult:
    """Returns the result of a line that was answered: the body as it came, on one line."""
    value, plain = _read(body)
    text = b'{"id":%b,"custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}\n' % (
        orjson.dumps(who.id),
        orjson.dumps(who.custom_id),
        status,
        orjson.dumps(request_id),
        plain,
    )
    tokens = usage or Usage(0, 0)
    is_failed = not 200 <= status < 400
    return LineResult(
        who.line, is_failed, text, tokens.input, tokens.cached, tokens.output, cost_usd or 0.0, _reasoning(value)
    )


def unanswered_line(who: LineIdentity, code: str, message: str) -> LineResult:
    """Returns the result of a line that has no answer, and never will."""
    error = orjson.dumps({"code": code, "message": message})
    text = b'{"id":%b,"custom_id":%b,"response":null,"error":%b}\n' % (
        orjson.dumps(who.id),
        orjson.dumps(who.custom_id),
        error,
    )
    return LineResult(who.line, True, text)


def stopped_line(who: LineIdentity, ends_as: JobState) -> LineResult:
    """Returns the result of a line that its batch ended without: because it was cancelled, or its time was over."""
    return unanswered_line(who, *(CANCELLED if ends_as is JobState.CANCELLED else EXPIRED))


def _read(body: bytes) -> tuple[Any, bytes]:
    """Returns an answer's body as a value, and as JSON without line ends: what is no JSON becomes a string.

    In JSON line ends are white space.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = mended_json(body)
        if value is None:
            return None, orjson.dumps(body.decode(errors="replace")) if body.strip() else b"null"
    return value, body.translate(None, b"\r\n") if b"\n" in body or b"\r" in body else body


def _reasoning(answer: Any) -> int:
    """Returns the tokens that an answer reports as spent on reasoning; 0 where it says nothing.

    Sources: https://platform.openai.com/docs/api-reference/chat/object and .../responses/object.
    """
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return 0
    details = usage.get("completion_tokens_details", usage.get("output_tokens_details"))
    tokens = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return tokens if type(tokens) is int and 0 <= tokens < MOST_TOKENS else 0


# --- what a caller may ask of a batch: the fields of `POST /v1/batches` ---

FIELDS: Final = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
LEAST_WINDOW_S, LONGEST_WINDOW_S = 600, 7 * 86_400
LEAST_LIFE_S, LONGEST_LIFE_S = 3600, 30 * 86_400
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A batch as it was asked for."""

    input_file_id: str
    endpoint: str
    """Such as `/v1/chat/completions`."""
    window: str
    """The `completion_window`, as the caller wrote it."""
    window_s: float
    metadata: Mapping[str, str]
    output_lasts_s: float | None
    """Seconds for which its files are kept, where the caller says so."""


def read_batch_request(fields: Mapping[str, Any], endpoints: Collection[str]) -> BatchRequest:
    """Reads the fields; `endpoints` are paths below the base URL. Raises InvalidRequest, naming the field and the remedy.

    Source: https://platform.openai.com/docs/api-reference/batch/create; the fields are checked as OpenAI checks them.
    """
    unknown = next((name for name in fields if name not in FIELDS), None)
    if unknown is not None:
        _refuse(unknown[:64], f"is unknown; known are {', '.join(FIELDS)}")
    file_id = _text(fields, "input_file_id")
    endpoint = _text(fields, "endpoint")
    path = endpoint.removeprefix("/v1")
    if path not in endpoints:
        _refuse("endpoint", f"must be one of {', '.join('/v1' + one for one in endpoints)}")
    window = _text(fields, "completion_window")
    return BatchRequest(
        file_id, f"/v1{path}", window, _window_s(window), read_metadata(fields.get("metadata")), _life_s(fields)
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        _refuse(name, "must be a text of 1 to 256 characters")
    return value


def _window_s(window: str) -> float:
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not LEAST_WINDOW_S <= seconds <= LONGEST_WINDOW_S:
        _refuse("completion_window", 'must be "24h", or another time from "10m" to "7d"')
    return float(seconds)


def _life_s(fields: Mapping[str, Any]) -> float | None:
    value = fields.get("output_expires_after")
    if value is None:
        return None
    seconds = value.get("seconds") if isinstance(value, dict) and value.get("anchor") == "created_at" else None
    if type(seconds) is not int or not LEAST_LIFE_S <= seconds <= LONGEST_LIFE_S:
        _refuse(
            "output_expires_after",
            f'must be {{"anchor": "created_at", "seconds": {LEAST_LIFE_S} to {LONGEST_LIFE_S}}}',
        )
    return float(seconds)


def _refuse(name: str, problem: str) -> NoReturn:
    raise InvalidRequest(f"The field '{name}' {problem}.", param=name)


# --- the price of lines: `service_tier: flex` is about half of the usual one, and is served when there is room ---

FIELD = "service_tier"
ENDPOINTS = frozenset(("/v1/chat/completions", "/v1/responses"))
"""The endpoints whose requests know that tier; Anthropic's Messages refuse it."""


def with_tier(body: bytes, rules: BatchRules, left_s: float, endpoint: str) -> bytes:
    """Returns the body with the tier that the rules want, where it names none; `left_s` is the time left to its batch.

    Sources: OpenAI's guide to flex processing ("priced at Batch API rates"); Gemini and Azure have the same field.
    """
    if (
        not rules.asks_for_flex
        or endpoint not in ENDPOINTS
        or left_s < rules.standard_before_end_s
        or find_fields(body, FIELD)
    ):
        return body
    return insert_field(body, FIELD, b'"flex"')


# --- the request that one line of a batch stands for ---


def request_of(job: Job, rules: JobRules, now: float, id: str, body: bytes, parsed: dict[str, Any]) -> StoredRequest:
    """Returns the request of a line whose body is `body`, and says what `parsed` does; `now` is wall-clock seconds."""
    left_s = job.deadline - now
    sent = with_tier(body, rules.batches, left_s, job.about[ENDPOINT])
    return StoredRequest(
        id=id,
        endpoint=job.about[ENDPOINT],
        body=sent,
        headers=with_version(job.about[ENDPOINT], JSON),
        key=job.key,
        tenant=job.tenant,
        lane=job.lane,
        deadline_s=max(0.0, left_s),
        part=RunWords(*job.about.get(RUN_WORDS, ())),
        group_most=rules.batches.group_embeddings,
        parsed=parsed if sent is body else None,
        step=step_of(job),
    )


def served_lines(job: Job, results: Sequence[LineResult], now: float) -> ServedLines:
    """Returns what lines that another has served came to, for the run of their batch, at `now`, in wall-clock seconds."""
    step = step_of(job)
    return ServedLines(
        now,
        RunWords(*job.about.get(RUN_WORDS, ())) if step is None else step.words,
        [result.cost_usd for result in results],
        sum(result.is_failed for result in results),
        not results[-1].is_failed,
        sum(result.input_tokens for result in results),
        sum(result.output_tokens for result in results),
    )
