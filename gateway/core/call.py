"""A request's life as data, and the hooks by which products take part in it.

In this order: the call, with its typed slots; what came back for it; its reply and its account; then `CallFeature` and how the
features of a route are compiled. A `Call` belongs to one client request and is only touched by the task that serves it. A
product gives the calls of a route a `CallFeature`, or None: then it costs these calls nothing. The core knows no product by
name: the list of them is handed to the pipeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from gateway.core.error_tables import Diagnosis
from gateway.core.errors import InvalidRequest
from gateway.core.limits.bucket import Cost
from gateway.core.metrics import MetricTable
from gateway.core.openai.bodies import Large
from gateway.core.retry import Attempt
from gateway.core.retry_budgets import Reserved
from gateway.core.snapshot import Key, Model, PolicySnapshot, Target
from gateway.core.types import Clocks, Endpoint, ErrorClass, Lane, RawHeaders, Skips, Usage

T = TypeVar("T")

Headers: TypeAlias = list[tuple[bytes, bytes]]
ReadAnswers: TypeAlias = Literal["all", "some"]
"""The answers that a feature reads whole, and may replace: `all`, or `some`, without streams of events, audio or video."""
Chunks: TypeAlias = AsyncGenerator[bytes, None]


class Slot(Generic[T]):
    """A typed place on a call for the state of one feature. Private to the product that makes it."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, call: Call, value: T) -> T:
        """Stores the value on the call, in place of an earlier one; returns it."""
        if call.slots is None:
            call.slots = {}
        call.slots[self] = value
        return value

    def find(self, call: Call) -> T | None:
        """Returns the value on the call; None: there is none."""
        return None if call.slots is None else call.slots.get(self)

    def drop(self, call: Call) -> None:
        """Takes the value off the call, if there is one."""
        if call.slots is not None:
            call.slots.pop(self, None)


# The slots by which features, and whoever makes a call, let others know of it, who need not know them.

VARIANT: Final[Slot[bytes]] = Slot("variant")
"""What the maker of a call asks for beside its body, as a digest: equal requests of two variants get two answers."""
ALONE: Final[Slot[bool]] = Slot("alone")
"""True if the call is not to be put together with others into one request."""
INVALID_ANSWER: Final[Slot[bool]] = Slot("invalid answer")
"""True if a feature has found the answer not to be what was asked for: its client may get it, and nothing is built on it."""
EARLIER_TRIES: Final[Slot[int]] = Slot("earlier tries")
"""How often its client has sent the call before, as far as a feature knows."""
FALLBACK_ANSWER: Final[Slot[bool]] = Slot("fallback answer")
"""True if a feature has an answer in case that nobody serves the call."""
AWAITED: Final[Slot[bool]] = Slot("awaited")
"""True if other calls wait for the answer: the call is not stopped when its client leaves."""
LED: Final[Slot[bool]] = Slot("led")
"""True if a feature serves the call in a task of its own, which closes its account."""


def earlier_tries_of(call: Call) -> int:
    """Returns how often its client has sent the call before."""
    return EARLIER_TRIES.find(call) or 0


class QueuePlace(Protocol):
    """A place in the delay queue."""

    def position(self) -> int:
        """How many go before it, and itself; 1 is next."""
        ...

    def eta_s(self, now: float) -> float:
        """Seconds until its turn comes, as far as it is known."""
        ...


@dataclass(slots=True)
class Request:
    """What a client sent. Never written once it is made: what a feature has changed is another one, for `Call.replace_request`.

    It is not frozen, for that would cost something for each field on each call.
    """

    id: str
    endpoint: Endpoint
    model_name: str
    """As the client wrote it; `model.name` of the route may be a pattern."""
    body: bytes
    stream: bool
    stream_options: object
    """As the caller sent them, parsed; None when absent."""
    model_span: tuple[int, int] | None
    """Where a multipart body names the model; None for JSON."""
    headers: RawHeaders
    """The client's headers that may go upstream."""
    credential: bytes | None
    """The caller's own credential, where it is passed on."""
    lane: Lane
    received_at: float
    """When its last byte was here: a slow upload is not our time."""
    deadline: float
    """No attempt starts after it; where the caller set it (`deadline_is_callers`), an answer has to have begun by then."""
    deadline_is_callers: bool
    method: str = "POST"
    path: str = ""
    """The path below the base URL; the endpoint's own, but for pass-through."""
    query: bytes = b""
    echo_request_id: bool = False
    """The client sent the id itself and expects it back."""
    tenant: str = ""
    """The tenant whose share of the queue it takes: the key's tenant, or the one it names."""
    max_tokens: int | None = None
    """The most tokens that its answer may have, all choices together; None: the caller did not say."""
    thinks: bool = False
    """It wants its model to reason first: minutes without a word are usual."""
    large: Large | None = None
    """The facts kept of a large body; None: it is small, or nobody reads it."""


@dataclass(frozen=True, slots=True)
class CallRoute:
    """What is the same for all calls of one key to one model at one endpoint that want the same."""

    policy: PolicySnapshot
    """Read once when a call came in: it lives and dies on it."""
    key: Key
    model: Model
    endpoint: Endpoint
    has_own_credential: bool
    """The caller's own credential pays at the targets that have none."""
    is_internal: bool = False
    """The calls are made inside the process: their makers may want what no client can."""
    hooks: Hooks | None = None
    """The hooks of its calls; None: not compiled. `Pipeline.handle` compiles those of calls made inside the process."""


@dataclass(slots=True)
class Setbacks:
    """What has kept a call from an answer at once."""

    held: QueuePlace | None = None
    """Its place in the delay queue, while it is there."""
    queue_s: float = 0.0
    """How long it was held, over all attempts."""
    backoff_s: float = 0.0
    """How long it waited between attempts."""
    denied: str | None = None
    """Why another attempt that would have been made was not."""
    skips: Skips | None = None
    """The targets that it went past; None: it has met none that could not take it."""
    not_expressible: dict[str, InvalidRequest] | None = None
    """The targets, by name, into whose language it cannot be put, with the error of its caller if no other can serve it."""

    def wait(self, seconds: float) -> None:
        """Counts time for which the call was held."""
        self.queue_s += seconds

    def deny(self, reason: str) -> None:
        """Notes why another attempt was not made."""
        self.denied = reason

    def add(self, other: Setbacks) -> None:
        """Counts those of another call that was made for this one: its waits, and what this one has not met itself."""
        self.queue_s += other.queue_s
        self.backoff_s += other.backoff_s
        self.denied = self.denied or other.denied
        self.skips = self.skips or other.skips


@dataclass(slots=True)
class Call:
    """One client request, from its first byte to its last."""

    request: Request
    """What goes to providers: as it came, unless a feature has changed it before the first attempt."""
    route: CallRoute
    parsed: dict[str, Any] | None = None
    """The body, parsed, until its tokens are counted or it is known that nobody wants to know; of one that is not parsed its
    top-level fields, as far as they were read."""
    comment: Callable[[bytes], bool] | None = None
    """Set by the edge for a stream: begins the answer if it has not begun, and sends an SSE comment. False: too late."""
    server: asyncio.Task[None] | None = None
    """The edge's task, whoever else works for the call."""
    attempts: list[Attempt] = field(default_factory=list)
    estimate: int = -1
    """Input tokens as estimated, uncorrected; negative: not counted yet."""
    key_cost: Cost | None = None
    """The amounts that it has taken from its key's limits, at `key_cost_at`."""
    key_cost_at: float = 0.0
    reserved: Reserved | None = None
    """The part of its key's budget that it has reserved."""
    seq: int = 0
    """Its age among all calls, given when it first asks to be let through; 0: it has not. Negative: that of the call which it
    repeats, to be taken on then."""
    setbacks: Setbacks | None = None
    """What has kept it from an answer at once; None: nothing has, as with most calls."""
    settled: bool = False
    """Its account is closed; it is closed once."""
    usage: Usage | None = None
    """The usage, once it is settled."""
    left: bool = False
    """Its client has left, and others wait for its answer."""
    outcome: str = ""
    """How it ended, once it is settled: as of its answer, whether its client has waited for that or not."""
    reads: ReadAnswers | None = None
    """The answers that would go on to the client unread, and that a feature has to read before; None: no such answer."""
    slots: dict[Slot[Any], Any] | None = None
    """The state of the features that take part in it; None: there is none yet."""
    is_begun: bool = False
    """The head of its answer has gone out, with comments behind it: no other status can follow."""
    is_withdrawn: bool = False
    """A product has made something else of it, or has refused it before it was a call: nothing of it is booked."""

    @property
    def queue_s(self) -> float:
        """How long it was held, over all attempts."""
        return 0.0 if self.setbacks is None else self.setbacks.queue_s

    @property
    def backoff_s(self) -> float:
        """How long it waited between attempts."""
        return 0.0 if self.setbacks is None else self.setbacks.backoff_s

    @property
    def denied(self) -> str | None:
        """Why another attempt that would have been made was not."""
        return None if self.setbacks is None else self.setbacks.denied

    @property
    def skips(self) -> Skips | None:
        """The targets that it went past; None: it has met none that could not take it."""
        return None if self.setbacks is None else self.setbacks.skips

    @property
    def held(self) -> QueuePlace | None:
        """Its place in the delay queue, while it is there."""
        return None if self.setbacks is None else self.setbacks.held

    @property
    def not_expressible(self) -> dict[str, InvalidRequest] | None:
        """The targets, by name, into whose language it cannot be put, with the error of its caller."""
        return None if self.setbacks is None else self.setbacks.not_expressible

    def own_setbacks(self) -> Setbacks:
        """Returns its setbacks to write in; makes them if it has met none."""
        if self.setbacks is None:
            self.setbacks = Setbacks()
        return self.setbacks

    def share_setbacks(self, other: Call) -> None:
        """Takes on the setbacks of a call that was made of this one and others."""
        met = other.setbacks
        self.setbacks = None if met is None else replace(met, held=None, not_expressible=None)

    def replace_request(self, request: Request, parsed: dict[str, Any] | None = None) -> None:
        """Sends `request` to the providers in place of what has come; `parsed` is its body, parsed."""
        self.request, self.parsed = request, parsed

    def drop_parsed(self) -> None:
        """Frees the parsed body: it is not wanted any more, or not for long enough to be worth its memory."""
        self.parsed = None

    def end_comments(self) -> None:
        """Sends its client no more comments: its answer has a status of its own."""
        self.comment = None

    def change_route(self, route: CallRoute) -> None:
        """Sends the call on this route from now on."""
        self.route = route


Ending: TypeAlias = Callable[[str, Usage | None, int], None]
"""Called with how a stream has ended, the usage that was reported, and the estimated tokens of output that have come."""


class Relay(Protocol):
    """A stream on its way to the client: an event stream, a raw body, or one whose beginning was held back."""

    def chunks(self, on_end: Ending, clocks: Clocks, now: Callable[[], float]) -> Chunks:
        """Yields the stream from its first byte; `on_end` is called once with how it has ended. To be iterated once."""
        ...

    def account(self) -> tuple[Usage | None, int]:
        """Returns the usage and the estimated tokens of what has come, as `on_end` gets them."""
        ...

    async def aclose(self) -> None:
        """Stops reading the stream, and closes it."""
        ...


@dataclass(slots=True)
class Whole:
    """A good answer that is here in one piece."""

    attempt: Attempt
    status: int
    headers: RawHeaders
    body: bytes = b""
    usage: Usage | None = None
    """The usage as the provider reports it; None: it reports none."""


@dataclass(slots=True)
class Stream:
    """A good answer that has begun: `relay` brings the rest of it, and is to be closed."""

    attempt: Attempt
    status: int
    headers: RawHeaders
    relay: Relay
    endings: tuple[Ending, ...] = ()
    """Called when the relay ends, before the account of the call is closed."""


@dataclass(slots=True)
class ErrorAnswer:
    """The target answered with an error; `diagnosis` says what it means."""

    attempt: Attempt
    status: int
    headers: RawHeaders
    body: bytes
    diagnosis: Diagnosis

    @property
    def error_class(self) -> ErrorClass:
        return self.diagnosis.error_class


Opened: TypeAlias = Whole | Stream | ErrorAnswer
"""What an attempt has come to, before the client has anything of it."""


def deciding_attempt(call: Call) -> Attempt | None:
    """Returns the attempt that has decided how a call goes on, or how it ended: the last one listed; None: it has made none."""
    return next(reversed(call.attempts), None)


def upstream_model(call: Call, target: Target) -> str:
    """Returns the name by which the target's provider knows the model of a call."""
    if target.model is not None:
        return target.model
    name = call.request.model_name
    return name.removeprefix(target.strip) if target.strip else name


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
    pass_on: Callable[[Callable[[bytes], bool]], None] | None = None
    """Takes a function that writes a block to the client, and lets blocks that need no reading go straight there, without a
    turn of the call's task. Where that function returns False the client has to be waited for: the block then comes out of
    `chunks`, as all others do. None: `chunks` has all."""
    shared: list[tuple[bytes, bytes]] = field(default_factory=list)
    """The headers that are not about this one call: whoever else gets the answer gets them too."""


@dataclass(slots=True)
class CallRecord:
    """The account of one ended call. `outcome` is `ok`, `client_gone` or an error code or class; times are seconds."""

    call: Call
    status: int
    outcome: str
    usage: Usage | None
    cost_usd: float | None
    """The cost in US dollars; None: not priced."""
    retries_usd: float
    """The US dollars that attempts which came to nothing may have cost besides."""
    duration_s: float
    overhead_s: float
    time_to_first_byte_s: float | None
    estimated_retries_usd: float = 0.0
    """The part of `retries_usd` that no provider has reported a usage for."""
    fields: Mapping[str, object] | None = None
    """The fields that products add to its line in the call log."""
    estimated_usd: float | None = None
    """The part of `cost_usd` that rests on an estimate; None: all of it where the usage is one, else nothing."""


# --- features: what products do around a call ---

Serve: TypeAlias = Callable[[Call], Awaitable[Reply]]
Open: TypeAlias = Callable[[Call], Awaitable[Opened]]


class CallFeature:
    """What one product does for the calls of one route. A hook that a class does not override is not called.

    | hook    | when                                       | may                                              | must not      |
    |---------|--------------------------------------------|--------------------------------------------------|---------------|
    | read    | the request is parsed; the innermost first | fill its slot, raise a GatewayError              | wait, reserve |
    | serve   | around the whole call, the outermost first | answer itself, wait, call `next` once, raise     | read bytes    |
    | open    | around all attempts, before a client byte  | replace the answer, ask again, read whole bodies | settle        |
    | relay   | around the chunks of a stream              | read and hold back chunks                        | add bytes     |
    | headers | an answer's or error's headers are made    | append headers                                   | wait          |
    | closed  | the account has been closed, once          | count, charge, return fields for the call log    | wait          |

    `read`, `headers` and `closed` are sync. A defect in `headers` or `closed` is logged and hurts nobody; in another hook it is
    the 500 of its call. A feature that has a reply or a stream from `next`, and does not return it, closes it. One that runs
    `next` in a task of its own (single flight) owns that task until the gateway stops, and puts `LED` there.
    """

    __slots__ = ()
    absent_headers: tuple[tuple[bytes, bytes], ...] = ()
    """Of a product: the headers of calls for which it has no feature."""
    fixed_headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers that the answers and errors of all its calls have."""
    metrics: MetricTable | None = None
    """Of a product: what it counts; None: nothing."""

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        """Reads what the request asks of this feature; `headers` are those of the client, by lower-case name."""

    def serve(self, call: Call, next: Serve) -> Awaitable[Reply]:
        """Returns the reply to the call. Raises the GatewayError that the client gets; `handle` closes the account."""
        return next(call)

    def open(self, call: Call, next: Open) -> Awaitable[Opened]:
        """Returns the answer that is final."""
        return next(call)

    def relay(self, call: Call, opened: Stream, chunks: Chunks) -> Chunks:
        """Returns the chunks of a stream as they go on to the client."""
        return chunks

    def headers(self, call: Call, headers: Headers) -> None:
        """Appends to the `x-gateway-*` headers of an answer or error."""

    def closed(self, record: CallRecord) -> Mapping[str, object] | None:
        """Counts the call; returns fields for its line in the call log, None for none."""


class CallMetrics(MetricTable):
    """The metrics of a product that counts ended calls behind them, in batches, and not in `closed`."""

    def count(self, record: CallRecord) -> None:
        """Counts an ended call in which some product had a part."""


class CallProduct(Protocol):
    """A product that takes part in calls."""

    name: str
    """The name by which operators know it."""
    options: frozenset[bytes]
    """The request headers, in lower case, by which a single call asks for the product."""
    absent_headers: tuple[tuple[bytes, bytes], ...]
    """The headers of the answers to calls for which it has no feature."""

    @property
    def metrics(self) -> MetricTable | None:
        """What it counts; None: nothing."""
        ...

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns its feature for calls of this route that bring the headers `requested`; None: it does nothing for them."""
        ...


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of a route, ready to be called: each is empty, or the core's own, where no feature overrides it."""

    serve: Serve
    open: Open
    read: tuple[Callable[[Call, Mapping[bytes, bytes]], None], ...] = ()
    relay: tuple[Callable[[Call, Stream, Chunks], Chunks], ...] = ()
    headers: tuple[Callable[[Call, Headers], None], ...] = ()
    closed: tuple[Callable[[CallRecord], Mapping[str, object] | None], ...] = ()
    fixed_headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers that all answers and errors of the route have."""


def compile_hooks(
    features: Sequence[CallFeature], serve: Serve, open: Open, fixed_headers: tuple[tuple[bytes, bytes], ...] = ()
) -> Hooks:
    """Returns the hooks of a route with these features, the outermost first, around the pipeline's own `serve` and `open`."""
    for feature in reversed(features):
        if _overrides(feature, "serve"):
            serve = partial(feature.serve, next=serve)
        if _overrides(feature, "open"):
            open = partial(feature.open, next=open)
    return Hooks(
        serve,
        open,
        # An outer feature may change what an inner one has read: the answer to a step is the same whatever else it names.
        read=tuple(one.read for one in reversed(features) if _overrides(one, "read")),
        # The innermost reads the provider's chunks first.
        relay=tuple(one.relay for one in reversed(features) if _overrides(one, "relay")),
        headers=tuple(one.headers for one in features if _overrides(one, "headers")),
        closed=tuple(one.closed for one in features if _overrides(one, "closed")),
        fixed_headers=fixed_headers,
    )


def features_of(
    products: Iterable[CallProduct], route: CallRoute, requested: frozenset[bytes]
) -> tuple[list[CallFeature], tuple[tuple[bytes, bytes], ...]]:
    """Returns the features that the products, the outermost first, have for a route and the options that a call asks for; and
    the headers that all its calls have."""
    features: list[CallFeature] = []
    fixed_headers: Headers = []
    for product in products:
        feature = product.for_route(route, requested)
        if feature is None:
            fixed_headers += product.absent_headers
        else:
            features.append(feature)
            fixed_headers += feature.fixed_headers
    return features, tuple(fixed_headers)


def _overrides(feature: CallFeature, hook: str) -> bool:
    own: Any = getattr(type(feature), hook)
    return own is not getattr(CallFeature, hook)
