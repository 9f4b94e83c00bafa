"""The compiled `jobs` section of the config and of `jobs.yaml`. Sizes are bytes, times seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.core.balancing import Backoff, CostRule
from gateway.core.snapshot import Provider, Setting
from gateway.core.types import EMULATOR, Lane
from gateway.drivers.durability import JobSettings

_BACKOFF: Final = Backoff(base_s=30.0, factor=2.0, max_s=900.0)

StoreMode = Literal["provider", "gateway", "off", "never"]
"""Who keeps responses: the provider, untouched; the gateway; nobody; nobody, and none runs in the background."""


@dataclass(frozen=True, slots=True)
class SegmentRules:
    """The jobs of one cost class, and their share of this gateway."""

    name: str
    below_usd: float | None = None
    """Jobs whose estimated cost is below; None: all that no earlier segment takes."""
    concurrency: int = 100
    """Pieces of work that run at a time in one gateway."""


RunAs = Literal["here", "flex", "native", "cheapest"]
"""The price of lines: at the usual price; with `service_tier: flex` at about half of it where a provider has that; at half
price through the provider's own Batch API; or there, and by flex what cannot go there.
"""


USUAL_FACTOR: Final = 0.5
"""The price at most providers' Batch APIs, as a part of the usual one."""


@dataclass(frozen=True, slots=True)
class NativeRules:
    """How parts of batches go to providers' own Batch APIs."""

    min_lines: int = 500
    """A smaller batch is done sooner through the gateway."""
    part_lines: int = 1000
    """The most lines of one batch at a provider."""
    take_back_after: float = 0.5
    """The part of a batch's time after which what is not done there runs here."""
    price_factor: float | None = None
    """The price of a token there, as a part of its usual price; None: by the price list, else `USUAL_FACTOR`."""
    split: Mapping[str, int] = field(default_factory=dict)
    """Weights by the names of providers; empty: all goes to the first target's provider."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How batches run."""

    run: RunAs = "here"
    standard_before_end_s: float = 3600.0
    """Seconds before a batch's end from which on, with `flex`, its lines go at the usual price, which is served sooner."""
    max_lines: int = 50_000
    max_bytes: int = 200 * 1024 * 1024
    mixed_models: bool = True
    window: int = 200
    """Lines of one gateway that run or wait for a commit at a time."""
    parallel_chunks: int = 4
    slice_s: float = 10.0
    """A chunk that takes longer lets others go first."""
    brake_after: int = 20
    """The lines in a row that, when they fail with a class of `brake_classes`, slow the batch down to single tries."""
    brake_classes: frozenset[str] = frozenset(
        ("auth", "connection", "permission", "not_found", "model_not_found", "quota_exhausted")
    )
    cancel_grace_s: float = 30.0
    group_embeddings: int = 0
    """Lines for embeddings or moderations go to the provider together, with at most so many inputs; 0: each by itself."""
    native: NativeRules = NativeRules()
    most_at_once: int | None = None
    """The most lines of a batch that run at a time, whatever the window is, and one chunk; None: there is no such bound."""

    @property
    def goes_native(self) -> bool:
        """Returns whether lines may go to a provider's own Batch API."""
        return self.run in ("native", "cheapest")

    @property
    def asks_for_flex(self) -> bool:
        """Returns whether lines that run here ask for the tier that is served when there is room."""
        return self.run in ("flex", "cheapest")


DEGRADING: Final = (
    "queue_full",
    "queue_wait_exceeds_deadline",
    "queue_deadline_exceeded",
    "circuit_open",
    "quota_exhausted",
    "key_rate_limited",
)
"""The refusals in place of which a call may become a job: each of them passes by itself, and none has cost anything."""


@dataclass(frozen=True, slots=True)
class DegradeRules:
    """Which calls become jobs where they would be refused, if their key accepts a 202."""

    lanes: frozenset[Lane] = frozenset()
    """Empty: none do."""
    when: frozenset[str] = frozenset(("queue_full",))
    """Codes of refusals, of `DEGRADING`."""


DeadLines = Literal["poison", "transient", "never"]
"""The lines of batches that become dead letters: those that crash the process, or failed for what an operator can mend; besides
those that failed for now, again and again; none. All others are their caller's, in its error file.
"""


@dataclass(frozen=True, slots=True)
class DeadLetterRules:
    """How dead letters are kept."""

    max_bytes: int = 2 * 1024**3
    """The most bytes of payloads; above that those of the oldest letters go."""
    samples: int = 5
    """The newest letters that a group is shown with."""
    lines: DeadLines = "transient"


OnCrash = Literal["restart", "fail"]
"""The fate of a response whose model was broken off while it spoke: another run of it, or its end."""


@dataclass(frozen=True, slots=True)
class ResponseRules:
    """Who keeps responses, and how those in the background run."""

    store: StoreMode | None = None
    """None: the provider where one account serves the model by Responses; else the gateway, those that ask for it."""
    on_crash: OnCrash = "restart"


@dataclass(frozen=True, slots=True)
class JobRules:
    """One set of jobs.yaml."""

    attempts: int = 5
    deadline_s: float = 86_400.0
    """The deadline of a job that names none, from its `run_at` on."""
    backoff: Backoff = _BACKOFF
    by_cost: Sequence[CostRule] = (CostRule(2, above_usd=0.25), CostRule(10, below_usd=0.0001))
    """The first that fits says how often a job is tried whose attempt costs so much."""
    segments: Sequence[SegmentRules] = (
        SegmentRules("fast", below_usd=0.01, concurrency=400),
        SegmentRules("slow"),
    )
    keep_jobs_s: float = 7 * 86_400.0
    keep_files_s: float = 30 * 86_400.0
    """The life of files whose upload names no time of its own."""
    keep_dead_s: float = 30 * 86_400.0
    keep_background_s: float = 600.0
    """The life of responses that ran in the background and did not ask to be stored, from their ends on."""
    keep_responses_s: float = 30 * 86_400.0
    """The life of responses that are stored."""
    keep_runs_s: float = 7 * 86_400.0
    """The life of runs that have steps, and of each step, from when it was kept on."""
    dedupe_for_s: float = 86_400.0
    dead_letters: DeadLetterRules = DeadLetterRules()
    allow_request_urls: bool = False
    """Requests may name URLs that are notified of the ends of their jobs."""
    batches: BatchRules = BatchRules()
    degrade: DegradeRules = DegradeRules()
    responses: ResponseRules = ResponseRules()


@dataclass(frozen=True, slots=True)
class Jobs:
    """All that a policy says of jobs."""

    settings: JobSettings = field(default_factory=JobSettings)
    sets: Mapping[str, JobRules] = field(default_factory=lambda: {"default": JobRules()})

    @property
    def default(self) -> JobRules:
        """Returns the rules of jobs whose model picks no set, and those that concern all jobs at once."""
        return self.sets["default"]

    @property
    def is_on(self) -> bool:
        """Returns whether this gateway has a store of jobs."""
        return self.settings.is_on


JOBS: Final[Setting[Jobs]] = Setting("jobs", Jobs())
"""The rules of durable work: where it is kept, and how it runs."""
JOB_RULES: Final[Setting[JobRules]] = Setting("jobs of a model", JobRules())
"""How the jobs of a model are tried."""
ACCEPTS_202: Final[Setting[bool]] = Setting("accepts_202", False)
"""The callers of a key take a job for an answer, where their call would be refused and its rules have that."""


WEBHOOK_SEGMENT: Final = "webhooks:"
"""The deliveries to an endpoint are a segment of jobs of their own, so that a slow endpoint delays only itself: this, and its
name.
"""


# --- providers' own Batch APIs ---


def has_batch_api(provider: Provider) -> bool:
    """Returns whether a provider of this dialect may have a Batch API that is known here."""
    return provider.dialect in ("openai", "azure", "anthropic")


def may_take(provider: Provider) -> bool:
    """Returns whether the gateway itself has an account there: a caller's own credential is not kept."""
    return provider.api_key is not None or provider.base_url.startswith(EMULATOR)
