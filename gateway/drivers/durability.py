"""Where durable work is kept, by the config, and what is refused where it cannot be.

In this order: the settings, which everybody may read, also where nobody takes jobs; and the refusals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.core.errors import CallerFault, GatewayError
from gateway.core.snapshot import Setting
from gateway.core.types import SharedState

Accept = Literal["fsync", "replicated", "fast"]
"""What a Redis has to have done before a job counts as taken: written it to its disk, given it to a replica, or nothing more.
"""


IN_REDIS: Final = "redis"
"""The word in the place of a folder: blobs are in the Redis that has the jobs."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Where jobs and their files are kept, and the bounds of both; read at start only."""

    store: str = ""
    """The absolute path of the SQLite file; empty: they are in `redis`, or this gateway takes none."""
    redis: SharedState | None = None
    """The Redis that has the jobs of all its gateways; None: they are in a file, or there are none."""
    accept: Accept = "fsync"
    files: str = ""
    """The folder of blobs, an absolute path, or IN_REDIS."""
    takes_files: bool = True
    """Files and batches are ours; False: they go on to the provider of `passthrough`."""
    works: bool = True
    """This gateway runs jobs; False: it only takes them."""
    max_file_bytes: int = 512 * 1024 * 1024
    max_bytes: int = 50 * 1024**3
    max_bytes_per_tenant: int = 20 * 1024**3
    max_response_log_bytes: int = 16 * 1024 * 1024
    """The bytes of the events of one response in the background; of a longer one the log goes."""
    max_response_bytes_per_tenant: int = 1024**3
    """The bytes of kept responses; those put first go early."""
    max_run_bytes_per_tenant: int = 1024**3
    """The bytes of runs with their steps; those touched least lately go early."""
    min_free_bytes: int = 1024**3
    max_open_jobs: int = 1_000_000
    max_open_jobs_per_tenant: int = 100_000

    @property
    def is_on(self) -> bool:
        """Returns whether this gateway has a store of jobs."""
        return bool(self.store) or self.redis is not None


JOB_SETTINGS: Final[Setting[JobSettings]] = Setting("where jobs are kept", JobSettings())
"""Where durable work is kept; by default nowhere."""
KEEP_RUNS_S: Final[Setting[float]] = Setting("keep_runs", 7 * 86_400.0)
"""The life of runs that have steps, and of each step, from when it was kept on: seconds."""


# --- refusals, in OpenAI's shape ---


class JobsUnavailable(GatewayError):
    """Jobs cannot be kept now: the message says what is wrong for everybody, the log has the remedy. Plain calls go on."""

    status = 503
    should_retry: bool | None = True
    retry_after_s = 5.0
    code = "jobs_unavailable"


class OutcomeUnknown(JobsUnavailable):
    """Nobody answered whether it was done: the message says what may be there, and how to ask for it again."""


class NotDurable(JobsUnavailable):
    """It was done, but is not as safe as the config asks for: `result` is what it came to."""

    result: Any = None


class JobsOff(CallerFault):
    """This gateway takes no jobs."""

    status = 404
    code = "jobs_off"
