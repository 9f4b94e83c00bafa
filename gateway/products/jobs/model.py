"""A job as data: durable work that outlives the connection, and the process, by which it came.

In this order: refusals; ids; jobs, claims and answers; the lines of a batch; and files. Plain, immutable and JSON-able:
stores keep it, the worker runs it, routes show it. Times are wall-clock seconds. A job's work is claimed in pieces: a `call` or
`response` is one; a `batch` is checked, then run in chunks of lines, then put together; a `run` is one piece that comes again
whenever one of its children has ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, get_args

from gateway.core.errors import AdmissionDenied, CallerFault, GatewayError
from gateway.core.types import Lane

# --- refusals of requests about jobs, batches and files, in OpenAI's shape ---


class TooManyJobs(AdmissionDenied):
    """The tenant, or the gateway, has as many open jobs as it may."""

    status = 429
    type = "rate_limit_error"
    retry_after_s = 30.0
    code = "too_many_jobs"


class FileTooLarge(CallerFault):
    """The uploaded file is over the cap."""

    status = 413
    code = "file_too_large"


class TenantStorageFull(CallerFault):
    """The tenant's files take all the room they may; removing some makes room."""

    status = 413
    code = "tenant_storage_full"


class DedupeConflict(CallerFault):
    """The dedupe key belongs to a job with another payload."""

    status = 409
    code = "dedupe_conflict"


class BatchNotCancellable(CallerFault):
    """The batch is at its end."""

    status = 409
    code = "batch_not_cancellable"


class JobNeedsProviderKey(CallerFault):
    """The job could only run with the caller's own credential, which is never stored."""

    code = "job_needs_provider_key"


class NoResult(CallerFault):
    """The job has ended without an answer to give."""

    status = 409
    code = "job_without_result"


class TooManyReaders(GatewayError):
    """As many streams of job events are open as may be."""

    status = 429
    type = "rate_limit_error"
    should_retry: bool | None = True
    retry_after_s = 5.0
    code = "too_many_event_readers"


# --- the ids of files, batches, responses and jobs ---

FILE: Final = "file-gw"
BATCH: Final = "batch_gw"
RESPONSE: Final = "resp_gw"
JOB: Final = "job_gw"
EVENT: Final = "evt_gw"
DELIVERY: Final = "msg_gw"
DEAD_LETTER: Final = "dl_gw"
RUN: Final = "run_gw"
Mark = Literal["file-gw", "batch_gw", "resp_gw", "job_gw", "evt_gw", "msg_gw", "dl_gw", "run_gw"]

Role = Literal["output", "errors"]
"""The role of a batch's own file."""

DRAW_BYTES = 16
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS: Final = [low + high for high in _DIGITS for low in _DIGITS]
"""What two digits of a number are written as: half as many divisions."""
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_BODY, _CHECK = 19, 3
_ID = re.compile(r"(file-gw|batch_gw|resp_gw|job_gw|evt_gw|msg_gw|dl_gw|run_gw)([0-9A-Za-z]{19})([0-9A-Za-z]{3})")
_STEPS: Final = {
    role: int.from_bytes(blake2b(digest_size=DRAW_BYTES, person=f"batch {role}".encode()).digest())
    for role in get_args(Role)
}
"""The distance from a batch's id to that of its own file, by its role."""


def new_id(mark: Mark, draw: bytes) -> str:
    """Returns an id made of `DRAW_BYTES` random bytes or more.

    An id is a mark and 22 letters and digits, of which the last three follow from the rest: ours are known by their looks, so a
    provider's own can be left to it. One of those passes for one of ours once in hundreds of millions, although OpenAI's files
    have just as many letters. The rest are 113 bits of a draw, or of the digest of another id.
    """
    body = _base62(int.from_bytes(draw), _BODY)
    return f"{mark}{body}{_check_of(mark, body)}"


def derived_file_id(batch_id: str, role: Role) -> str:
    """Returns the id of a batch's own file, always the same. Raises ValueError for what is no batch's id.

    The files of a batch have its own id moved on by fixed steps: whoever makes one twice gives it the same id, and by the id of
    a file its batch is known before there is one.
    """
    return _moved(BATCH, batch_id, FILE, _STEPS[role])


def batches_of_file(file_id: str) -> Sequence[tuple[str, Role]]:
    """Returns the batches that could have a file with this id, and what it would be to each; there is one of them at most."""
    if not is_ours(FILE, file_id):
        return []
    return [(_moved(FILE, file_id, BATCH, -_STEPS[role]), role) for role in get_args(Role)]


def derived_event_ids(job_id: str, endpoint: str) -> tuple[str, str]:
    """Returns the ids of the event of a job's end, and of its delivery to an endpoint, always the same."""
    source = job_id.encode()
    event = blake2b(source, digest_size=DRAW_BYTES, person=b"event").digest()
    delivery = blake2b(source + b"\0" + endpoint.encode(), digest_size=DRAW_BYTES, person=b"delivery").digest()
    return new_id(EVENT, event), new_id(DELIVERY, delivery)


def derived_redelivery_id(delivery_id: str) -> str:
    """Returns the id of the delivery that is made in place of one that has ended, always the same."""
    source = delivery_id.encode()
    return new_id(DELIVERY, blake2b(source, digest_size=DRAW_BYTES, person=b"redelivery").digest())


def derived_redrive_id(mark: Mark, letter_id: str, number: int) -> str:
    """Returns the id of the job that redrives a dead letter for the `number`-th time, always the same."""
    source = f"{letter_id}\0{number}".encode()
    return new_id(mark, blake2b(source, digest_size=DRAW_BYTES, person=b"replay").digest())


def derived_call_id(record: bytes, number: int) -> str:
    """Returns the id of the `number`-th job that stands for a call with an `Idempotency-Key`, always the same."""
    source = record + b"\0%d" % number
    return new_id(JOB, blake2b(source, digest_size=DRAW_BYTES, person=b"call").digest())


def derived_child_id(mark: Mark, run_id: str, step: str, attempt: int) -> str:
    """Returns the id of the job that is the `attempt`-th one of a run's step, always the same."""
    source = f"{run_id}\0{step}\0{attempt}".encode()
    return new_id(mark, blake2b(source, digest_size=DRAW_BYTES, person=b"child").digest())


def derived_response_id(tenant: str, provider_id: str) -> str:
    """Returns the id under which the gateway keeps a response that a provider calls `provider_id`, always the same."""
    source = f"{len(tenant)}:{tenant}{provider_id}".encode()
    return new_id(RESPONSE, blake2b(source, digest_size=DRAW_BYTES, person=b"response").digest())


def is_ours(mark: Mark, id: str) -> bool:
    """Returns whether the id is of this kind and looks like one that a gateway made."""
    parts = _ID.fullmatch(id)
    return parts is not None and parts[1] == mark and _check_of(mark, parts[2]) == parts[3]


def line_id(batch_id: str, line: int) -> str:
    """Returns the id of one line's request: that of its batch, and the line's number from 0."""
    return f"batch_req_{batch_id.removeprefix(BATCH)}{line:06d}"


def _moved(mark: Mark, id: str, to: Mark, step: int) -> str:
    """Returns the id of the other kind that lies so far behind this one."""
    parts = _ID.fullmatch(id)
    if parts is None or parts[1] != mark:
        raise ValueError(f"{id!r} does not begin with {mark}")
    number = 0
    for digit in reversed(parts[2]):
        number = 62 * number + _VALUES[digit]
    body = _base62((number + step) % 62**_BODY, _BODY)
    return f"{to}{body}{_check_of(to, body)}"


def _check_of(mark: str, body: str) -> str:
    return _base62(int.from_bytes(blake2b(f"{mark}{body}".encode(), digest_size=8).digest()), _CHECK)


def _base62(number: int, length: int) -> str:
    """Returns the lowest digits of a number, the lowest first."""
    digits = []
    for _ in range(length // 2):
        number, pair = divmod(number, 62 * 62)
        digits.append(_PAIRS[pair])
    if length % 2:
        digits.append(_DIGITS[number % 62])
    return "".join(digits)


CHECK: Final = -1
"""The piece of a batch that reads its input file and says what is wrong with it; chunks count from 0."""
FINALISE: Final = -2
"""The piece of a batch that puts its chunks together."""
RUN_PIECE: Final = 0
"""The piece of a run, while it has one: it looks at its children, and begins what is to be begun."""


class JobKind(StrEnum):
    """What a job does."""

    CALL = "call"
    """Serves one request; its answer is kept word by word."""
    BATCH = "batch"
    """Serves every line of an input file; the answers are two files."""
    RESPONSE = "response"
    """Serves one request for a response, whose events are kept in a log; the answer is that of its last event."""
    DELIVERY = "delivery"
    """The delivery of the end of another job to a webhook. It is nobody's: its tenant is empty, so that no tenant ever meets
    it.
    """
    REDRIVE = "replay"
    """Has dead letters run again, some a second. It is nobody's, too."""
    RUN = "run"
    """Takes the steps of a pipeline: each is a job of its own, whose `parent` it is."""


class JobState(StrEnum):
    """How far a job has come; the last four are ends, and an end never changes."""

    SCHEDULED = "scheduled"
    """Its time has not come."""
    QUEUED = "queued"
    """A piece of it waits for a worker, and none has begun."""
    RUNNING = "running"
    """A worker has begun; between two attempts, too."""
    WAITING = "waiting"
    """A run is parked until one of its children has ended: it has no piece, no claim and no task."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its deadline passed."""

    @property
    def is_end(self) -> bool:
        """Returns whether nothing more can happen to the job."""
        return self in ENDS


ENDS: Final = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)

REQUESTED: Final = "response"
"""In `about` of a job of kind `response`: what its request has asked for."""
ECHO: Final = "echo"
"""In that object: what a response repeats of its request, until it is kept."""
STATUS: Final = "status"
"""In `marks` of such a job whose response is kept: how that has ended."""
SETTLED: Final = "settled"
"""In `marks` of a run: how many of its steps are over."""
CURRENT: Final = "current"
"""In `marks` of a run: the steps under way when it was parked."""
WITH_FAILURES: Final = "completed_with_failures"
"""The status of a batch that has ended by itself, and some of whose lines have failed, or all; OpenAI calls it `completed`."""
STATE_OF_STATUS: Final[Mapping[str, JobState]] = {WITH_FAILURES: JobState.SUCCEEDED}
"""The states behind statuses that are none."""


class Stage(StrEnum):
    """The part of its life that a running batch is in; a `call` is always in `RUN`."""

    CHECK = "check"
    RUN = "run"
    FINALISE = "finalise"


class JobFlag(StrEnum):
    """What may be asked of a job from outside."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


class JobError(NamedTuple):
    """The last thing that went wrong with a job."""

    error_class: str
    """An `ErrorClass`, or the code of one of the gateway's own errors."""
    message: str
    at: float
    target: str = ""
    """The target, or the webhook, that failed last; empty: it is not known."""
    phase: str = ""
    """The progress of the attempt; empty: it is not known."""
    cost_usd: float = 0.0
    """The cost of the attempt."""


class Tally(NamedTuple):
    """What the lines of a job have come to; a `call` is one line. Tokens are as reported, money in US dollars."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    reasoning_tokens: int = 0
    """The part of `output_tokens` that is in no answer; of the lines of batches only."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as a store has it."""

    id: str
    kind: JobKind
    tenant: str
    key: str
    """The name of the key that created it, which pays for it; looked up anew when it runs."""
    lane: Lane
    segment: str
    """The jobs of one cost class, which share a part of the gateway: a set of `segments` in jobs.yaml."""
    is_urgent: bool
    """It goes before the others of its segment and lane."""
    model: str
    """The model as the caller named it; empty: the lines of a batch name several."""
    state: JobState
    created_at: float
    run_at: float
    """No piece of it is claimed before."""
    deadline: float
    max_attempts: int
    about: Mapping[str, Any]
    """What was asked for besides, as JSON: endpoint, metadata, dedupe key, trace context. No credential."""
    stage: Stage = Stage.RUN
    ends_as: JobState | None = None
    """CANCELLED or EXPIRED once it is to stop: what runs may finish, nothing more begins."""
    is_paused: bool = False
    """Nothing more begins until it is resumed."""
    attempts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    tally: Tally = field(default_factory=Tally)
    last_error: JobError | None = None
    marks: Mapping[str, Any] = field(default_factory=dict)
    """What it has left behind on its way, as JSON: times of its stages, ids of its files, the problems of its input."""
    revision: int = 0
    """Grows with every change that somebody may want to hear of."""
    parent: str = ""
    """The run of the same tenant that it is a step of, and that is woken by its end; empty: none."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be accepted: the job in state SCHEDULED or QUEUED, and what only the store needs to know of it."""

    job: Job
    payload: bytes = b""
    """The body of its request; of a batch nothing."""
    first_piece: int = 0
    """0 for a call and a run, CHECK for a batch."""
    reads: str = ""
    """The name of the blob that it reads, such as a batch's input file; it stays until the job ends."""
    fingerprint: bytes = b""
    """The digest of what was asked for: another payload under the same dedupe key is a conflict."""
    dedupe_key: bytes = b""
    """32 bytes that name tenant and key; empty: it is a job of its own in any case."""
    dedupe_until: float = 0.0
    debounce_key: bytes = b""
    """As `dedupe_key`: while a job with the same key is SCHEDULED, this one takes its place, and keeps its id."""
    debounce_wait_s: float = 0.0
    debounce_max_s: float = 0.0
    """Its `run_at` moves to now + wait with each replacement, and never behind the first one's creation + max."""


Following = Callable[[Job], Sequence[NewJob]]
"""What a job's end brings with it: given the job at its end, the jobs that a store accepts in the same step, whatever the
bounds. It never raises, may be called in any thread, and again for the same end: the ids have to follow from the job's."""


def nothing_follows(_ended: Job) -> Sequence[NewJob]:
    """Is the `Following` of a store whose jobs' ends concern nobody."""
    return ()


class Accepted(NamedTuple):
    """A store's answer to a new job."""

    job: Job
    """The job as it is kept: the new one, or the one that was there."""
    is_new: bool = True
    """False: it was there already, or has taken the place of one that was scheduled."""
    is_conflict: bool = False
    """The dedupe key belongs to a job with another payload, which is not shown to anybody."""
    debounced: int = 0
    """The number of payloads it has replaced so far."""


class ClaimRequest(NamedTuple):
    """How many pieces of work of one segment a worker has room for."""

    segment: str
    most: int


@dataclass(frozen=True, slots=True)
class ClaimedWork:
    """One piece of a job that this worker alone has now. It is shown with every write: a stale one changes nothing."""

    job: Job
    piece: int
    """0 for a call and a run; of a batch CHECK, FINALISE or the number of a chunk."""
    fence: int
    """Higher than that of every earlier claim of this piece."""
    claims: int
    """The claims of this piece that nobody gave back, this one included, from the last that came to something: more than one
    means that a worker has died with it."""
    payload: bytes = b""


class WriteResult(NamedTuple):
    """A store's answer to every write about claimed work."""

    is_ours: bool
    """False: the claim has ended or another worker has the piece, and nothing was changed."""
    ends_as: JobState | None = None
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The stored answer of a `call`, given again as it came."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ends."""

    state: JobState
    error: JobError | None = None
    answer: StoredAnswer | None = None
    tally: Tally | None = None
    """Replaces the job's, where given."""
    marks: Mapping[str, Any] = field(default_factory=dict)
    """Added to the job's."""
    is_attempt: bool = False
    """It ends by an attempt, which counts as one of the job's."""
    is_dead: bool = False
    """It failed for a reason that is not its caller's: it becomes a dead letter, which an operator may have run again."""


def job_status(job: Job) -> str:
    """Returns the word for how far a job has come, as callers and operators see it: its state, and whether lines failed."""
    has_failures = job.kind is JobKind.BATCH and job.state is JobState.SUCCEEDED and job.tally.failed > 0
    return WITH_FAILURES if has_failures else str(job.state)


class JobQuery(NamedTuple):
    """Which jobs of a tenant to list, newest first."""

    tenant: str | None
    """None: everybody's, for operators."""
    kind: JobKind | None = None
    statuses: Sequence[str] = ()
    """The statuses as `job_status` has them; empty: any."""
    after: str | None = None
    """The id of the last job of the page before."""
    limit: int = 20
    metadata: Mapping[str, str] = {}
    """Entries of `about["metadata"]` that have to be equal."""
    parent: str | None = None
    """The run whose children are meant; empty: jobs that are no children; None: both."""


class JobPage(NamedTuple):
    """A page of a list."""

    jobs: Sequence[Job]
    has_more: bool


class JobDepth(NamedTuple):
    """How much waits or runs."""

    number: int
    oldest_at: float
    """When the oldest of them could have begun, in wall-clock seconds."""


# --- the lines of a batch: what became of each, and how they are divided into chunks ---


class LineResult(NamedTuple):
    """What has become of one line of a batch."""

    line: int
    """Counted from 0 over the whole batch."""
    is_failed: bool
    """It belongs in the error file."""
    text: bytes
    """Its line in the output or error file, with the line end."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    reasoning_tokens: int = 0


class ChunkPlan(NamedTuple):
    """How a checked batch is divided: chunk n has the lines from n * `lines_per_chunk`."""

    total: int
    lines_per_chunk: int
    parallel: int
    """The most chunks for each gateway at work that wait or run at a time; 1: one in all."""

    @property
    def chunks(self) -> int:
        """Returns the number of chunks."""
        return -(-self.total // self.lines_per_chunk)

    def parallel_for(self, workers: int) -> int:
        """Returns how many chunks may wait or run while so many gateways share the work."""
        return self.parallel * workers if self.parallel > 1 else 1


class ChunkResult(NamedTuple):
    """The finished part of a batch's answers: two blobs with the lines of the chunk, in input order."""

    chunk: int
    output: str
    """The name of the blob with the lines of the output file; empty: it has none."""
    output_bytes: int
    errors: str
    errors_bytes: int


# --- files of the Files API ---


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the Files API; its bytes are a blob."""

    id: str
    tenant: str
    purpose: str
    filename: str
    bytes: int
    created_at: float
    expires_at: float | None
    blob: str


class FileQuery(NamedTuple):
    """Which files of a tenant to list."""

    tenant: str
    purpose: str | None = None
    after: str | None = None
    limit: int = 10_000
    is_newest_first: bool = True


# --- what jobs know of the deliveries that follow them ---

REQUEST_URL: Final = "webhook_url"
"""The URL that a request named, in `about` of its job and of the delivery."""
MESSAGE_ID: Final = "webhook_id"
"""The `webhook-id` of a delivery that is made again, in `about`; of the first one it is the job's own."""
DELIVERY_DEADLINE_S: Final = 7 * 86_400.0
"""What was not delivered by then, because its endpoint was disabled, throttled or gone from the config, never is."""


# --- the blobs that a batch needs on its way ---


def batch_of_blob(name: str) -> str:
    """Returns the batch that needs a blob on its way; empty: it is no batch's."""
    kind, _, rest = name.partition("/")
    return rest.partition("/")[0] if kind == "batch" else ""
