"""Jobs as the Redis has them: a head of tokens that scripts read, the rest as JSON, and the pieces; and back.

A job read so is a `WholeJob`, which `transitions` changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson

from gateway.core.types import Lane
from gateway.drivers.redis.partitions import JobPartitions, tenant_token
from gateway.products.jobs.model import (
    ChunkPlan,
    ChunkResult,
    ClaimedWork,
    Job,
    JobError,
    JobKind,
    JobState,
    LineResult,
    NewJob,
    Stage,
    StoredAnswer,
    Tally,
)
from gateway.products.jobs.transitions import PieceRecord, PieceState, WholeJob, is_past_stopping

NONE: Final = "-"
SEQ, TENANT = 17, 19
"""Places in a head."""
LETTERS: Final[Mapping[PieceState, str]] = {"ready": "r", "later": "l", "claimed": "c", "withheld": "w"}
STATES: Final[Mapping[str, PieceState]] = {letter: state for state, letter in LETTERS.items()}


@dataclass(slots=True)
class RedisJob:
    """A job as it was read, and what shows whether it has been written since."""

    kept: WholeJob
    """Without its payload, lines, chunks and answer."""
    writes: str
    """Counts the writes."""
    seq: str
    """Its place among all jobs."""
    ended_by: str
    """The fence of the claim that ended its check or itself."""
    rest: bytes
    payload_bytes: int


def claim_of(partitions: JobPartitions, work: ClaimedWork) -> tuple[str, int, int]:
    """Returns a claim as scripts read it."""
    return work.job.id, work.piece, partitions.own_fence(work.fence)


def queue_of(job: Job) -> str:
    """Returns the name of the queue that a job's pieces wait in."""
    return f"{quote(job.segment, safe='')}/{job.lane}/{'u' if job.is_urgent else 'n'}"


def queue_parts(queue: str) -> tuple[str, Lane]:
    """Returns segment and lane of a queue."""
    segment, lane, _ = queue.split("/")
    return unquote(segment), lane  # type: ignore[return-value]  # as it was written


def head_of(
    job: Job,
    reads: str,
    payload_bytes: int,
    debounced: int = 0,
    seq: str = NONE,
    ended_by: str = NONE,
    *,
    has_news: bool = False,
) -> str:
    """Returns a job's head; the script that writes it counts the writes."""
    tokens = (
        0,
        job.revision,
        job.state,
        _time_token(job.started_at),
        _time_token(job.created_at),
        _time_token(job.run_at),
        int(job.is_paused),
        job.ends_as or NONE,
        debounced,
        *job.tally,
        seq,
        job.kind,
        tenant_token(job.tenant),
        queue_of(job),
        ended_by,
        tenant_token(reads),
        payload_bytes,
        tenant_token(job.parent),
        int(has_news),
    )
    return " ".join(map(str, tokens))


def rest_of(job: Job, plan: ChunkPlan | None = None, next_chunk: int = 0) -> bytes:
    """Returns what scripts do not read of a job."""
    error = None if job.last_error is None else list(job.last_error)
    fields = [job.key, job.model, job.deadline, job.max_attempts, job.about]
    now = [job.stage, job.attempts, job.ended_at, error, job.marks, None if plan is None else list(plan), next_chunk]
    return orjson.dumps([*fields, *now])


def due_of(job: Job) -> str:
    """Returns when a job's deadline passes; empty: it has no say any more."""
    return "" if is_past_stopping(job) else repr(job.deadline)


def read_job(job_id: str, text: bytes) -> Job:
    """Returns the job that was written so."""
    head, _, rest = text.split(b"\n")
    return _read(job_id, head.decode().split(), orjson.loads(rest))


def _read(job_id: str, tokens: Sequence[str], rest: Sequence[Any]) -> Job:
    _, revision, state, started, created, run_at, paused, ends_as, _, *more = tokens
    tally, (_, kind, tenant, queue, _, _, _, parent, _) = more[:8], more[8:]
    key, model, deadline, most, about, stage, attempts, ended, error, marks, _, _ = rest
    segment, lane = queue_parts(queue)
    return Job(
        id=job_id,
        kind=JobKind(kind),
        tenant=unquote(tenant[1:]),
        key=key,
        lane=lane,
        segment=segment,
        is_urgent=queue.endswith("u"),
        model=model,
        state=JobState(state),
        created_at=float(created),
        run_at=float(run_at),
        deadline=deadline,
        max_attempts=most,
        about=about,
        stage=Stage(stage),
        ends_as=None if ends_as == NONE else JobState(ends_as),
        is_paused=paused == "1",
        attempts=attempts,
        started_at=None if started == NONE else float(started),
        ended_at=ended,
        tally=_tally(tally),
        last_error=None if error is None else JobError(*error),
        marks=marks,
        revision=int(revision),
        parent=unquote(parent[1:]),
    )


def thaw(job_id: str, text: bytes) -> RedisJob:
    """Returns a job with its pieces, to take a step with."""
    head, pieces, rest = text.split(b"\n")
    tokens, more = head.decode().split(), orjson.loads(rest)
    *_, plan, next_chunk = more
    kept = WholeJob(
        _read(job_id, tokens, more),
        reads=unquote(tokens[22][1:]),
        debounced=int(tokens[8]),
        pieces={piece.number: piece for piece in sorted(map(_piece, pieces.split()), key=_place)},
        plan=None if plan is None else ChunkPlan(*plan),
        next_chunk=next_chunk,
    )
    for piece in kept.pieces.values():
        piece.has_news = tokens[25] == "1"
    return RedisJob(kept, tokens[0], tokens[SEQ], tokens[21], rest, int(tokens[23]))


def seq_of(text: bytes) -> tuple[int, int]:
    """Returns the place of a job among all, in the order in which they came."""
    first, second = _tokens(text)[SEQ].split(b"-")
    return int(first), int(second)


def debounced_of(text: bytes) -> int:
    """Returns how many payloads a job has replaced."""
    return int(_tokens(text)[8])


def tenant_of(text: bytes) -> str:
    """Returns a job's tenant."""
    return unquote(_tokens(text)[TENANT].decode()[1:])


def new_arguments(new: NewJob) -> list[bytes | str | float]:
    """Returns a new job as `lua/jobs/take.lua` reads it."""
    job = new.job
    return [
        job.id,
        head_of(job, new.reads, len(new.payload)),
        rest_of(job),
        new.payload,
        new.fingerprint.hex(),
        new.dedupe_key.hex(),
        new.dedupe_until,
        new.debounce_key.hex(),
        new.debounce_wait_s,
        new.debounce_max_s,
        new.first_piece,
        due_of(job),
    ]


def line_arguments(result: LineResult) -> list[bytes | str | float]:
    """Returns a line's result as `lua/jobs/commit.lua` reads it."""
    line, failed, text, *counts = result
    return [line, int(failed), *counts, text]


def read_line(line: bytes, value: bytes) -> LineResult:
    """Returns the result of a line that was written so."""
    about, _, text = value.partition(b"\n")
    failed, tokens_in, tokens_cached, tokens_out, cost, reasoning = about.split()
    counts = (int(tokens_in), int(tokens_cached), int(tokens_out))
    return LineResult(int(line), failed == b"1", text, *counts, float(cost), int(reasoning))


def chunk_json(result: ChunkResult) -> bytes:
    """Returns a complete chunk as it is kept, without its number."""
    return orjson.dumps(list(result[1:]))


def read_chunk(number: bytes, value: bytes) -> ChunkResult:
    """Returns the complete chunk that was written so."""
    return ChunkResult(int(number), *orjson.loads(value))


def answer_about(answer: StoredAnswer) -> bytes:
    """Returns what is kept of an answer beside its body."""
    return orjson.dumps([answer.status, [list(header) for header in answer.headers]])


def read_answer(about: bytes, body: bytes) -> StoredAnswer:
    """Returns the answer that was written so."""
    status, headers = orjson.loads(about)
    return StoredAnswer(status, [(name, value) for name, value in headers], body)


def _tally(tokens: Sequence[str]) -> Tally:
    total, completed, failed, tokens_in, tokens_cached, tokens_out = map(int, tokens[:6])
    return Tally(total, completed, failed, tokens_in, tokens_cached, tokens_out, float(tokens[6]), int(tokens[7]))


def _tokens(text: bytes) -> list[bytes]:
    return text.partition(b"\n")[0].split()


def _piece(text: bytes) -> PieceRecord:
    number, state, ready_at, claims, fence, _, _ = text.decode().split(":")
    return PieceRecord(int(number), STATES[state], float(ready_at), 0, int(claims), int(fence))


def _place(piece: PieceRecord) -> tuple[float, int]:
    return piece.ready_at, piece.number


def _time_token(at: float | None) -> str:
    return NONE if at is None else repr(float(at))
