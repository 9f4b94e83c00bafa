"""A job as data: durable work that outlives the connection, and the process, by which it came.

Plain, immutable and JSON-able: stores keep it, the worker runs it, routes show it. Times are wall-clock seconds. A job's work
is claimed in pieces: a `call` or `response` is one; a `batch` is checked, then run in chunks of lines, then put together; a
`run` is one piece that comes again whenever one of its children has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from gateway.core.types.words import Lane

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
    """Tells a webhook of the end of another job. It is nobody's: its tenant is empty, so that no tenant ever meets it."""
    REPLAY = "replay"
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
        """Tells whether nothing more can happen to the job."""
        return self in ENDS


ENDS: Final = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)


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
    """How far the attempt had come; empty: it is not known."""
    cost_usd: float = 0.0
    """What the attempt has cost."""


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
    """As the caller named it; empty: the lines of a batch name several."""
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
    """The run of the same tenant that it is a step of, and that hears of its end; empty: none."""


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
    """As it is kept: the new one, or the one that was there."""
    is_new: bool = True
    """False: it was there already, or has taken the place of one that was scheduled."""
    is_conflict: bool = False
    """The dedupe key belongs to a job with another payload, which is not shown to anybody."""
    debounced: int = 0
    """How many payloads it has replaced so far."""


class ClaimAsk(NamedTuple):
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


class JobQuery(NamedTuple):
    """Which jobs of a tenant to list, newest first."""

    tenant: str | None
    """None: everybody's, for operators."""
    kind: JobKind | None = None
    states: Sequence[JobState] = ()
    """Empty: in any state."""
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
