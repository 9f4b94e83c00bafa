"""The nouns of a request's life: Call, Attempt, Usage, Kept, Replay, Reply, Settled.

Plain slotted data. A `Call` belongs to one client request and is only ever touched by that request's task.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gateway.errors import Phase

if TYPE_CHECKING:
    import asyncio

    from gateway.policy.limits.gate import Grant
    from gateway.policy.limits.limits import Cost
    from gateway.policy.objects.objects import Concern
    from gateway.policy.openai.large_body import Large
    from gateway.policy.retry.budgets import Reserved, Retry
    from gateway.policy.snapshot import Key, Model, PolicySnapshot
    from gateway.ports import RawHeaders

Lane = Literal["critical", "interactive", "batch", "background"]
LANES: tuple[Lane, ...] = ("critical", "interactive", "batch", "background")
"""Highest first. A key's own lane is one of the last three; `critical` is asked for by a call, where its key allows it."""

PASSTHROUGH = "passthrough"
FIRST_SHOWN, LAST_SHOWN = 5, 20
"""Of a call's attempts, in headers and errors."""


class OtherAttempt(Protocol):
    """A second attempt of a call, at another target, while its first one hangs and stays open."""

    call: Call
    """A copy, with a ledger and a grant of its own."""


class QueuePlace(Protocol):
    """A place in the delay queue."""

    def position(self) -> int:
        """How many go before it, and itself; 1 is next."""
        ...

    def eta_s(self, now: float) -> float:
        """Seconds until its turn comes, as far as can be told."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One OpenAI endpoint: `name` for metrics and logs, `path` below the base URL, and what its answers look like."""

    name: str
    path: str
    answer: Literal["json", "binary"] = "json"
    request: Literal["json", "multipart", "any"] = "json"
    sse: Literal["chat", "responses", "other"] = "chat"
    """How a stream ends: `chat` with `[DONE]`, `responses` with a named event, `other` in ways we do not know."""
    usage_option: bool = False
    """Streams carry usage only when `stream_options.include_usage` asks for it."""
    tokens: Literal["none", "input", "both"] = "none"
    """What is estimated when the provider reports no usage."""
    is_model_optional: bool = False
    """A call may leave it to the provider which model it takes, or to a stored prompt."""


@dataclass(slots=True)
class Usage:
    """Tokens of one call; `cached` is the part of `input` read from a cache, `estimated` when nobody told us."""

    input: int
    output: int
    cached: int = 0
    estimated: bool = False


@dataclass(slots=True)
class Kept:
    """A complete answer that can be given again. Times are wall-clock seconds."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """The provider's that belong to the answer itself, such as its content type."""
    body: bytes
    """As the first client got it: JSON, raw event-stream frames, or anything else."""
    is_stream: bool
    """The body is an event stream."""
    endpoint: str
    model: str
    """As it was asked for."""
    tenant: str
    group: str
    """The set of cache.yaml that it is kept under, whose byte bound it counts against; of a record: empty."""
    source: str
    """The id of the call that was answered so."""
    target: str
    stored_at: float
    fresh_until: float
    """Served as it is until then; a record is forgotten then."""
    stale_until: float
    """Served until then when nobody can answer better; not before `fresh_until`."""
    outcome: str = "ok"
    """`ok`, or the error class of an error that would be the same again."""
    usage: Usage | None = None
    cost_usd: float | None = None
    tells_usage: bool = False
    """The client asked for usage in its stream."""
    usage_event: bytes = b""
    """The stream's usage event with its line ends, where the client did not ask for it and the body lacks it."""


@dataclass(slots=True)
class Replay:
    """How a call was, or was not, spared its provider."""

    result: str = "miss"
    """For `x-gateway-cache`: `miss`, `hit`, `semantic`, `coalesced`, `stale` or `bypass`."""
    layer: str = ""
    """Who answered: `idempotency`, `single_flight`, `exact` or `semantic`; empty: a provider."""
    key: bytes = b""
    """The exact key, 32 bytes; empty: not computed."""
    source: str = ""
    """The id of the call that was answered first."""
    target: str = ""
    """Who answered that one."""
    attempts: str = ""
    """How that one was answered, where that was a moment ago."""
    stale: Kept | None = None
    """What can be given when nobody can answer better."""
    age_s: float | None = None
    fresh_s: float | None = None
    """How long it may still be kept by others; negative: not at all."""
    similarity: float | None = None
    saved: Usage | None = None
    saved_usd: float | None = None
    tried: list[tuple[str, str]] = field(default_factory=list)
    """What each layer said, in the order in which they were asked: (layer, result)."""
    why: list[str] = field(default_factory=list)
    """In words, for `gateway cache why`."""


@dataclass(slots=True)
class Attempt:
    """One try of one call at one target. Times are monotonic seconds; `result` is a status or an error class."""

    target: str
    started_at: float
    first_byte_at: float | None = None
    ended_at: float | None = None
    status: int | None = None
    error_class: str | None = None
    upstream_request_id: bytes | None = None
    detail: str | None = None
    """What went wrong, for the log."""
    phase: Phase | None = None
    """How far it had come when it failed."""
    is_refused: bool = False
    """For its rate: the target waits, and the call with it; it is no failure."""
    never_again: bool = False
    """The target can never serve this call, whatever the time."""
    is_callers: bool = False
    """It was made with the caller's own credential."""
    is_retry: bool = False
    """The call had failed at this target before."""
    is_told: bool = False
    """The target's breaker knows how it went."""
    sign_at: float = 0.0
    """When the target was last heard of, before there was anything for the client: a 1xx, a comment, a part of a body."""
    cost_usd: float | None = None
    """What it cost, as far as it is known: an estimate for one that failed after it was sent; None: not priced."""

    @property
    def heard_at(self) -> float:
        """When the target was last heard of; before that: when it was sent."""
        return max(self.started_at, self.first_byte_at or 0.0, self.sign_at)

    def __str__(self) -> str:
        result = self.status if self.status is not None else self.error_class
        if self.error_class is None or self.ended_at is None:
            return f"{self.target}:{result}"
        return f"{self.target}:{result}({self.ended_at - self.started_at:.1f}s)"


def shown(attempts: Sequence[Attempt], between: str = " ") -> str:
    """The trail of attempts in one line; of very many only the first and the last."""
    if len(attempts) <= FIRST_SHOWN + LAST_SHOWN:
        return between.join(map(str, attempts))
    left_out = f"({len(attempts) - FIRST_SHOWN - LAST_SHOWN} more)"
    return between.join([*map(str, attempts[:FIRST_SHOWN]), left_out, *map(str, attempts[-LAST_SHOWN:])])


@dataclass(slots=True)
class Call:
    """One client request, from its first byte to its last."""

    id: str
    endpoint: Endpoint
    policy: PolicySnapshot
    """Read once when the call came in: it lives and dies on it."""
    key: Key
    model: Model
    model_name: str
    """As the client asked for it; `model.name` may be a pattern."""
    body: bytes
    stream: bool
    stream_options: object
    """As the caller sent them, parsed; None when absent."""
    model_span: tuple[int, int] | None
    """Where a multipart body names the model; None for JSON."""
    headers: RawHeaders
    """The client's headers that may go upstream."""
    credential: bytes | None
    lane: Lane
    received_at: float
    """When its last byte was here: a slow upload is not our time."""
    deadline: float
    """No attempt starts after it; where the caller set it (`deadline_is_callers`), an answer has to have begun by then."""
    deadline_is_callers: bool
    method: str = "POST"
    path: str = ""
    """Below the base URL; the endpoint's own, but for pass-through."""
    query: bytes = b""
    echo_request_id: bool = False
    """The client sent the id itself and expects it back."""
    tenant: str = ""
    """Whose share of the queue it takes: the key's tenant, or the one it names."""
    max_tokens: int | None = None
    """The most tokens that its answer may have, all choices together; None: the caller did not say."""
    thinks: bool = False
    """It asks its model to reason first: minutes without a word are usual."""
    parsed: dict[str, Any] | None = None
    """The body, parsed, until its tokens are counted or it is known that nobody wants to know; of one that is not parsed its
    top-level fields, as far as they were read."""
    large: Large | None = None
    """What is remembered of a large body; None: it is small, or nobody reads it."""
    comment: Callable[[bytes], bool] | None = None
    """Set by the edge for a stream: begins the answer if it has not begun, and sends an SSE comment. False: too late."""
    task: asyncio.Task[None] | None = None
    """The task that serves it, if the edge knows; None: whichever runs."""
    server: asyncio.Task[None] | None = None
    """The edge's task, whoever else works for the call."""
    attempts: list[Attempt] = field(default_factory=list)
    estimate: int = -1
    """Input tokens as estimated, uncorrected; negative: not counted yet."""
    grant: Grant | None = None
    """What the present attempt has taken from its target's limits."""
    key_cost: Cost | None = None
    """What it has taken from its key's limits, at `key_cost_at`."""
    key_cost_at: float = 0.0
    reserved: Reserved | None = None
    """What it has reserved of its key's budget."""
    seq: int = 0
    """Its age among all calls, given when it first asks to be let through; 0: it has not."""
    held: QueuePlace | None = None
    """Its place in the delay queue, while it is there."""
    queue_s: float = 0.0
    """How long it was held, over all attempts."""
    backoff_s: float = 0.0
    """How long it waited between attempts."""
    move: OtherAttempt | None = None
    """Its attempt hangs, and this is another one, elsewhere; both belong to it."""
    retry: Retry | None = None
    """What the next attempt has taken of its target's retry budgets, until that has begun."""
    denied: str | None = None
    """Why another attempt that would have been made was not."""
    settled: bool = False
    """Its account is closed; it is closed once."""
    sdk_retry: int = 0
    """So many times its SDK has sent it before."""
    twin_seq: int = 0
    """The age of the call that it repeats, which it takes on; 0: it has its own."""
    idempotency_key: bytes | None = None
    """As the client sent it, without quotes."""
    cache_control: bytes | None = None
    """The header as the client sent it."""
    replay: Replay | None = None
    """None: nothing is kept of it, and it shares nothing."""
    usage: Usage | None = None
    """What it used, once it is settled."""
    followers: int = 0
    """So many of its SDK's retries wait for its answer."""
    left: bool = False
    """Its client has left, and others wait for its answer."""
    outcome: str = ""
    """How it ended, once it is settled: as of its answer, whether its client has waited for that or not."""
    usage_event: bytes = b""
    """The usage event of its stream, where that was not passed on."""
    objects: Concern | None = None
    """What it has to do with objects that the provider keeps, where tenants share its account; None: nothing."""


async def _nothing_to_close() -> None:
    return None


@dataclass(slots=True)
class Reply:
    """What the client gets: a whole `body`, or `chunks` to relay as they come; `close` is to be called in any case."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    chunks: AsyncGenerator[bytes, None] | None = None
    close: Callable[[], Awaitable[None]] = _nothing_to_close
    shared: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Of its headers, those that are not about this one call: whoever else gets the answer gets them too."""


@dataclass(slots=True)
class Settled:
    """The account of one ended call. `outcome` is `ok`, `client_gone` or an error code or class; times are seconds."""

    call: Call
    status: int
    outcome: str
    usage: Usage | None
    cost_usd: float | None
    """None: not priced."""
    retries_usd: float
    """What attempts that came to nothing may have cost besides, as estimated."""
    duration_s: float
    overhead_s: float
    time_to_first_byte_s: float | None
