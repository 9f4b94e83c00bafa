"""What all parts of the core share: error classes, endpoints, usage, gaps, attempts, and the exchange with a provider.

Nothing here knows httpx or sockets; each implementation of `Upstream` translates its own errors.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, runtime_checkable

from gateway.core.errors import GatewayError, InvalidRequest

# --- what goes wrong at a provider: the classes of failure, the progress of the attempt, the failure of one attempt ---


class ErrorClass(StrEnum):
    """The kinds of failure, whatever words the provider used.

    No client sees any of this as it is: the attempts try again or elsewhere, and turn the last failure into a
    `GatewayError`.
    """

    RATE_LIMIT_REQUESTS = "rate_limit_requests"
    RATE_LIMIT_TOKENS = "rate_limit_tokens"
    QUOTA_EXHAUSTED = "quota_exhausted"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    CONTENT_POLICY = "content_policy"
    AUTH = "auth"
    PERMISSION = "permission"
    MODEL_NOT_FOUND = "model_not_found"
    """The failure concerns a model that the config names, so the operator has to mend it."""
    NOT_FOUND = "not_found"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    CONFLICT = "conflict"
    MALFORMED_RESPONSE = "malformed_response"
    STREAM_INTERRUPTED = "stream_interrupted"
    UNKNOWN = "unknown"


PASSING = frozenset((ErrorClass.CONFLICT, ErrorClass.CONNECTION, ErrorClass.OVERLOADED, ErrorClass.SERVER_ERROR))
"""A target's own trouble, for which nobody has to be paid: another call, or this one a little later, may be served."""


class Phase(StrEnum):
    """The progress of an attempt when it failed: it decides what may be tried again without paying twice."""

    NOTHING_SENT = "nothing_sent"
    SENT = "sent"
    ANSWERED = "answered"
    STREAMING = "streaming"


class UpstreamFailed(Exception):
    """One attempt got no usable answer; `detail` is for logs and errors and carries no secret."""

    def __init__(
        self,
        error_class: ErrorClass,
        phase: Phase,
        detail: str,
        *,
        is_lasting: bool = False,
        fault: str | None = None,
        public: str | None = None,
        is_ours: bool = False,
    ) -> None:
        """`is_lasting`: the same call would fail there again. `fault`: so would every call, until the operator mends this.

        `public`: what clients read instead of `detail`; None: words of its class. `is_ours`: this process lacked what a
        connection takes, which says nothing of the target.
        """
        super().__init__(f"{error_class} ({phase}): {detail}")
        self.public = fault or public
        self.is_lasting = is_lasting or fault is not None
        self.fault = fault
        self.is_ours = is_ours
        self.error_class = error_class
        self.phase = phase
        self.detail = detail


class NotExpressible(UpstreamFailed):
    """The call cannot be put into the target's language, which says nothing of the target: another one may serve it."""

    def __init__(self, phase: Phase, message: str, param: str | None, code: str | None) -> None:
        """`message`, `param` and `code` are for the caller."""
        super().__init__(ErrorClass.BAD_REQUEST, phase, message, is_lasting=True)
        self._param = param
        self._code = code

    def refusal(self) -> InvalidRequest:
        """Returns the error that the caller gets if no other target can serve the call."""
        return InvalidRequest(self.detail, param=self._param, code=self._code)


# --- a large body in which a few places read differently, without a copy of all the rest ---


Edit = tuple[int, int, bytes]
"""The text between two offsets, and what replaces it."""


class Spliced:
    """A body that is written as a few buffers, any number of times; the body that they are parts of is only borrowed.

    `len()` gives its length as that of bytes; `bytes()` makes the copy that this class avoids.
    """

    __slots__ = ("_length", "_parts")

    def __init__(self, body: bytes, edits: Sequence[Edit]) -> None:
        """`edits` are in any order, and do not overlap."""
        view, at = memoryview(body), 0
        self._parts: list[memoryview] = []
        for start, end, text in sorted(edits):
            self._parts += (view[at:start], memoryview(text))
            at = end
        self._parts.append(view[at:])
        self._length = sum(map(len, self._parts))

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)

    def __radd__(self, before: bytes) -> bytes:
        return b"".join([before, *self._parts])

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yields the body in pieces of at most `size` bytes, none empty."""
        for part in self._parts:
            for start in range(0, len(part), size):
                yield bytes(part[start : start + size])


class StreamedBody(bytes):
    """A body that nobody here reads: it goes from the client to the provider piece by piece, once. To others it is empty."""

    length: int
    chunks: AsyncIterator[bytes]

    def __new__(cls, length: int, chunks: AsyncIterator[bytes]) -> Self:
        """`chunks` yields `length` bytes."""
        made = super().__new__(cls)
        made.length, made.chunks = length, chunks
        return made

    def __eq__(self, other: object) -> bool:
        """Nobody can say that two of them are the same."""
        return self is other

    __hash__ = object.__hash__


def pieces_of(body: bytes | Spliced, size: int) -> Iterator[bytes]:
    """Yields a body in pieces of at most `size` bytes."""
    if isinstance(body, Spliced):
        yield from body.pieces(size)
    else:
        for start in range(0, len(body), size):
            yield body[start : start + size]


# --- lanes, endpoints, usage, attempts, stored answers: plain data ---


Lane = Literal["critical", "interactive", "batch", "background"]


LANES: tuple[Lane, ...] = ("critical", "interactive", "batch", "background")
"""The lanes, highest first. A key's own lane is one of the last three; a call asks for `critical`, where its key allows it."""


PASSTHROUGH = "passthrough"


EMULATOR = "emulator://"
"""Begins the base URL of a provider that is answered inside the process."""


MOST_BODY_BYTES = 20_000_000
"""The longest body where no provider is known to take more."""


StreamForm = Literal["chat", "responses", "messages", "generate", "other"]
"""The end of a stream: `chat` is `[DONE]`, `responses` and `messages` are named events, `generate` has a reason in its last
event, `other` is unknown."""


class ProviderError(NamedTuple):
    """A provider's error on its way to a caller."""

    status: int
    body: bytes
    headers: RawHeaders
    code: str | None
    """The gateway's word for what is wrong, used where the body has none."""
    is_converted: bool
    """It comes from a server in another language, and may be in any shape."""
    is_readable: bool
    """Clients of OpenAI's can read it as it is."""
    request_id: str


class AnswerShape(Protocol):
    """How the callers of an endpoint read answers, streams and errors."""

    stream: StreamForm
    request_id_header: bytes | None
    """The header in which its callers look for a request's id, besides `x-request-id`."""

    def error_body(self, error: GatewayError, request_id: str | None = None) -> bytes:
        """Returns an error of ours as a JSON text."""
        ...

    def error_event(self, error: GatewayError, request_id: str) -> bytes:
        """Returns an error of ours as the last event of a stream."""
        ...

    def provider_error(self, error: ProviderError) -> bytes | None:
        """Returns a provider's error as callers read it, its own body if that is so already; None: nothing can be read of
        it."""
        ...

    def with_retry_advice(self, body: bytes, headers: RawHeaders) -> bytes:
        """Returns a provider's error with the delay that the headers name, where clients look for it in the body."""
        ...

    def error_inside(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the error that an answer with status 200 reports all the same. Raises UpstreamFailed where it is none."""
        ...

    def around_json(self, body: bytes = b"") -> tuple[bytes, bytes]:
        """Returns what makes a JSON answer the one event of a whole stream: the bytes before it and behind it."""
        ...

    def as_event(self, status: int, body: bytes) -> bytes:
        """Returns a provider's whole answer to a call that had asked for a stream, as a stream of one event."""
        ...

    def as_stream(self, body: bytes, *, include_usage: bool) -> bytes | None:
        """Returns the events of an answer that came whole; None where they are not certain."""
        ...

    def as_whole(self, frames: bytes) -> bytes | None:
        """Returns the whole answer that a complete stream brings; None where it is not certain."""
        ...

    def choices_wanted(self, request: dict[str, Any]) -> object:
        """Returns what a request says of how many answers it wants: a number, or anything else."""
        ...


class MediaUsage(Protocol):
    """What calls use that may be billed by other units than tokens."""

    def certain(self, reported: Usage | None, body: bytes, request: dict[str, Any]) -> Usage:
        """Returns what is certain of a call's usage: what its provider reported (None: nothing), and what its request shows.

        `request` is the body, parsed, and empty for a form.
        """
        ...

    def estimated(self, certain: Usage, body: bytes, request: dict[str, Any], written: int | None = None) -> Usage:
        """Returns `certain` with an estimate of everything else, and marked so.

        `written` are the tokens of a transcription as estimated by its text; None: there is none yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint: `name` for metrics and logs, `path` below the base URL, and how its callers read what comes back."""

    name: str
    path: str
    shape: AnswerShape
    answer: Literal["json", "binary"] = "json"
    request: Literal["json", "multipart", "any"] = "json"
    usage_option: bool = False
    """Streams carry usage only when `stream_options.include_usage` asks for it."""
    tokens: Literal["none", "input", "both"] = "none"
    """The tokens that are estimated when the provider reports no usage."""
    is_model_optional: bool = False
    """A call need not name a model: the provider, or a stored prompt, decides."""
    most_body_bytes: int = MOST_BODY_BYTES
    """The longest body that a provider takes there, with room for what is around a file; `server.max_body` goes before it."""
    takes_comments: bool = False
    """Readers of its streams take comments between events, and before the first one."""
    is_no_job: bool = False
    """Its calls are answered at once or never."""
    counts_tokens: bool = False
    """It tells how many tokens a request has, and no model answers that."""
    may_end_later: bool = False
    """What it answers with may be unfinished, and go on at the provider."""
    has_many_texts: bool = False
    """A request may bring several texts, or lists of tokens in their place, each of which is read by itself."""
    has_vectors: bool = False
    """It answers with vectors, in one of two forms."""
    is_completed: bool = False
    """Its whole answers get what they lack: the form of vectors that was asked for, or a usage."""
    media: MediaUsage | None = None
    """What its calls use beside tokens; None: nothing."""
    names_model: Callable[[Mapping[str, Any], bytes], str | None] | None = None
    """Finds the field, besides those of OpenAI's requests, by which a request names another model: of the body parsed, as far
    as it is known, and the body."""


@dataclass(frozen=True, slots=True)
class UsageParts:
    """The parts of a usage that may have prices of their own, and quantities that are billed by another unit than tokens.

    Tokens are parts of `Usage.input`, `.output` or `.cached`, and overlap only where it says so; 0: none, or not reported.
    """

    audio_input: int = 0
    audio_output: int = 0
    audio_cached: int = 0
    """The part of `audio_input` that was read from the provider's cache."""
    image_input: int = 0
    image_output: int = 0
    image_cached: int = 0
    """The part of `image_input` that was read from the provider's cache."""
    video_input: int = 0
    video_output: int = 0
    reasoning: int = 0
    """The part of the output that is reasoning, of whatever modality."""
    searches: int = 0
    """Searches of the web that the provider made."""
    characters: int = 0
    """Characters of text that were spoken."""
    audio_s: float = 0.0
    """Seconds of sound that were transcribed or spoken."""
    images: int = 0
    """Pictures that were made."""


ALL_TEXT: Final = UsageParts()


@dataclass(slots=True)
class Usage:
    """The tokens of one call; `cached` is the part of `input` read from a cache, `estimated` if the provider reported none."""

    input: int
    output: int
    cached: int = 0
    estimated: bool = False
    cache_written: int = 0
    """The part of `input` that the provider put into its cache for later calls, where it tells."""
    cache_written_1h: int = 0
    """The part of `cache_written` that stays there for an hour, where the provider has several prices."""
    parts: UsageParts = ALL_TEXT
    tier: str = ""
    """The provider's word for how the call was processed, from the answer: `default`, `flex`, `priority`, `batch`, `fast` …"""
    doubt: str = ""
    """Why the provider's numbers can't all be right, in words; empty: nothing is odd about them."""
    steps: tuple[Usage, ...] = ()
    """The requests to the model of which it is the sum, where the provider reports several: a price by length is of each."""


@dataclass(slots=True)
class Kept:
    """A complete answer that can be given again. Times are wall-clock seconds."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """The provider's headers that belong to the answer itself, such as its content type."""
    body: bytes
    """The body as the first client got it: JSON, raw event-stream frames, or anything else."""
    is_stream: bool
    """The body is an event stream."""
    endpoint: str
    model: str
    """The model's name as the client asked for it."""
    tenant: str
    group: str
    """The set of cache.yaml whose byte bound the answer counts against; empty for an idempotency record."""
    source: str
    """The id of the call that the provider answered."""
    target: str
    stored_at: float
    fresh_until: float
    """The answer is served as it is until this time; a record is forgotten then."""
    stale_until: float
    """The answer is served until this time when no target can answer; not before `fresh_until`."""
    outcome: str = "ok"
    """`ok`, or the class of an error that the same request would always get."""
    usage: Usage | None = None
    cost_usd: float | None = None
    includes_usage: bool = False
    """The client asked for usage in its stream."""
    usage_event: bytes = b""
    """The stream's usage event with its line ends, where the client did not ask for it and the body lacks it."""


class How(StrEnum):
    """What becomes of a field that a target's language cannot say."""

    APPROXIMATED = "approximated"
    DROPPED = "dropped"
    REFUSED = "refused"


class Gap(NamedTuple):
    """A field of one request that does not reach a target as it was said."""

    field: str
    """The caller's name for it, without positions: `tools.web_search`, `input.item_reference`."""
    how: How
    why: str
    """The reason in words, for `gateway explain` and the error that refuses the call."""


FindUnsupportedFields = Callable[[dict[str, Any]], Sequence[Gap]]
"""Returns what of a parsed request would not reach a target as it was said."""


class SkipReason(StrEnum):
    """What kept a call away from a target, besides limits, which have names of their own."""

    UNSUPPORTED = "unsupported"
    """It cannot do what the call needs."""
    DRAINED = "drained"
    CREDENTIAL_REFUSED = "credential_refused"
    MODEL_NOT_FOUND = "model_not_found"
    QUOTA_SPENT = "quota_spent"
    OPEN = "open"
    HALF_OPEN = "half_open"
    PAUSED = "paused"
    DEADLINE = "deadline"
    """Its answers usually take longer than the call has time."""
    RAMPING = "ramping"
    TROUBLE = "trouble"
    """Its last calls failed, and few go until it is known whether that lasts."""
    QUEUE = "queue"
    """Others wait for it, and go first."""


class Skip(NamedTuple):
    """A target that a call went past without an attempt."""

    target: str
    reason: str
    """A `SkipReason`, or the name of the limit that is used up: a label of a metric."""
    after: int
    """The number of attempts that the call had made by then."""

    def __str__(self) -> str:
        return f"{self.target}:skipped({self.reason})"


Skips = dict[str, Skip]
"""The skips by the target's name, in the order in which the call went past them."""


RawHeaders = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The time limits of one attempt, in seconds: connecting, writing, first byte, between bytes, all of it.

    They include the guard against slow streams: a begun stream has to bring `least_events_per_s` over every window.
    """

    connect_s: float
    write_s: float
    first_byte_s: float
    idle_s: float
    total_s: float
    least_events_per_s: float = 0.0
    """The least events per second of a stream that has begun, over every window; 0: no such guard."""
    drip_window_s: float = 60.0
    first_event_s: float | None = None
    """The time until the first event of a stream, in seconds; None: it follows from the target's usual time."""
    suspect_factor: float = 4.0
    """A target is suspect when several calls get no sign of life for this multiple of its usual time ..."""
    suspect_in_flight: int = 5
    """... and this number of calls waits there; 0: the target is never suspect."""


class Progress(Protocol):
    """An object that records a target's signs of life, and what did not reach it as it was said."""

    last_activity_at: float
    """The time of the last sign of life, in monotonic seconds."""
    gaps: Sequence[Gap]
    """What was lost when the request was put into the target's language."""
    refuses_loss: bool
    """Nothing may be lost by that: the call is then not sent."""
    remembers_for: str | None
    """The tenant for whom what signs its answer is remembered; None: it is not."""
    requests: int
    """How many requests it took at the target."""


@dataclass(slots=True)
class Outgoing:
    """One request for a target, before the target's own address, credential and dialect are put on it.

    `path` is the OpenAI path below the base URL (`/chat/completions`), `query` what the client sent after `?`;
    `credential` is the caller's own `Authorization` value, or its key behind `x-api-key `; used only where the provider has
    none configured.
    """

    method: str
    path: str
    query: bytes
    model: str
    headers: RawHeaders
    body: bytes | Spliced
    credential: bytes | None
    clocks: Clocks
    first_byte_s: float
    """The time limit for the first byte, in seconds: that of `clocks`, or less if the caller's deadline is nearer."""
    signs: Progress | None = None
    """The record of signs of life that come before the head is complete; None: they are not recorded."""


class PassthroughChunks(AsyncIterator[bytes]):
    """A body whose blocks may be taken in passing, while its reader waits for the next one."""

    __slots__ = ()

    on_block: Callable[[bytes], bool] | None
    """Takes a block instead of the reader who waits, and returns True; False: the reader gets it. None: nobody taps."""


class Answer(Protocol):
    """A provider's answer: the head is here, the body is still to be read."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> RawHeaders:
        """The headers, with names in lower case."""
        ...

    @property
    def whole(self) -> bytes | None:
        """The body, if all of it came with the head: there is then nothing to read or close. None: it is still to come."""
        ...

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        """The body, to be read once."""
        ...

    def unpack(self, codings: bytes) -> None:
        """Removes the `content-encoding`; the body is then read from `chunks`. Raises one of the upstream's errors."""
        ...

    async def aclose(self) -> None:
        """Gives the connection back, or closes it when the body was not read to its end."""
        ...


@runtime_checkable
class ReportsUsage(Protocol):
    """An answer whose body is converted on its way, so that the provider's own reports of usage do not stand in it."""

    def reported(self) -> tuple[Usage | None, bool]:
        """Returns the usage that the provider has reported so far, and whether that is of all that has come."""
        ...


OnFrame = Callable[[int, bytes | bytearray, bool], None]
"""Takes a WebSocket frame: its opcode (RFC 6455, 5.2), its payload, and whether it ends its message."""


class Socket(Protocol):
    """One peer of a WebSocket session: a client's connection, or one to a provider."""

    is_alive: bool
    """Something has come since somebody last set this to False."""

    @property
    def congested(self) -> bool:
        """Whether more waits for the peer than may."""
        ...

    @property
    def unsent(self) -> int:
        """Returns the number of bytes that wait for the peer."""
        ...

    @property
    def reading_paused(self) -> bool:
        """Whether nothing is read of the peer at present."""
        ...

    @property
    def received(self) -> int:
        """Returns the number of frames that have come."""
        ...

    def attach(
        self, on_frame: OnFrame, on_close: Callable[[int, str], None], on_congestion: Callable[[bool], None]
    ) -> None:
        """Hands on everything from now on. `on_close` gets code and reason, 1006 where the peer left without a word."""
        ...

    def send(self, opcode: int, data: bytes | bytearray, fin: bool) -> None:  # as frames have it
        """Sends a frame, unless the peer is leaving."""
        ...

    def ping(self) -> None:
        """Asks the peer for a sign of life."""
        ...

    def close(self, code: int, reason: str, *, at_once: bool = False) -> None:
        """Closes the session with the peer; `at_once`: without waiting for its own word."""
        ...

    def abort(self) -> None:
        """Leaves the peer without a word."""
        ...

    def pause(self) -> None:
        """Reads nothing more of the peer for now."""
        ...

    def resume(self) -> None:
        """Reads again."""
        ...


class Upstream(Protocol):
    """The connection to one target. Reading an answer may raise any of `errors`, which `failure` classifies."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...
    def send(self, outgoing: Outgoing) -> Awaitable[Answer]:
        """Raises UpstreamFailed when no response head arrives."""
        ...

    def failure(self, error: Exception) -> UpstreamFailed: ...


Learn = Callable[[Outgoing, Answer], Awaitable[Answer]]
"""Returns the answer to give instead of one that says that a path is not known: the same, or that of another path."""


class Conversions(Protocol):
    """Puts calls into another language for one target."""

    @property
    def converters_by_path(self) -> Mapping[str, Upstream]:
        """The upstreams by path that its calls go to instead of the target's own upstream; it changes with what is learned."""
        ...

    async def on_unknown_path(self, outgoing: Outgoing, answer: Answer) -> Answer:
        """Returns the answer to give instead of a 404 or 405."""
        ...


# --- what the process as a whole takes: its edge, its delay queue, its store. Part of the compiled policy ---


@dataclass(frozen=True, slots=True)
class Server:
    """Facts of the edge that a reload may change; host and port are fixed at start."""

    host: str = "127.0.0.1"
    port: int = 8080
    max_body_bytes: int | None = None
    """The longest body at any endpoint; None: each endpoint's own."""
    max_json_values: int = 1_000_000
    """The most values of one body: objects, lists, strings, numbers and the like, at any depth."""
    small_body_bytes: int = 262_144
    """Bodies up to here have fewer values in any case, are not too long, and are parsed at once."""
    body_timeout_s: float = 60.0
    grace_s: float = 30.0
    notice_s: float = 0.0
    """Before the grace: not ready any more, but calls are still taken."""
    admin_listen: tuple[str, int] | None = None
    admin_digest: bytes | None = field(default=None, repr=False)

    def most_bytes(self, endpoint: Endpoint | None = None) -> int:
        """Returns the length of the longest body at this endpoint; without one, of those that are no calls."""
        if self.max_body_bytes is not None:
            return self.max_body_bytes
        return MOST_BODY_BYTES if endpoint is None else endpoint.most_body_bytes


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """What the delay queue as a whole may hold, and when the gateway sheds load, from `queue.yaml`'s `default`."""

    max_calls: int = 20_000
    max_bytes: int = 512 * 1024 * 1024
    max_percent_per_tenant: float = 75.0
    """The percentage of both bounds that one tenant may hold, where several hold something."""
    age_after_s: Mapping[Lane, float] = field(default_factory=lambda: {"batch": 60.0, "background": 600.0})
    """A call that has waited so long in a lower lane gets a share of `aged_percent` of the grants, whoever is above it."""
    aged_percent: float = 5.0
    shed_memory_bytes: int | None = None
    """Resident memory above which the lowest lanes are shed; None: four fifths of the container's, if that is limited."""
    shed_loop_lag_s: float = 0.5


@dataclass(frozen=True, slots=True)
class StoreBounds:
    """How much a store may keep, in bytes of what it takes in memory or on disk."""

    answers: Mapping[str, int]
    """The bytes of answers by group; a group that is not named keeps nothing."""
    records: int
    vectors: int = 50_000
    """Rows of vectors per partition."""
    objects: int = 1_000_000
    """The objects of which it is remembered whose they are."""


# --- the Redis that replicas share, as the config names it ---


@dataclass(frozen=True, slots=True)
class SharedState:
    """The Redis that replicas share; fixed at start."""

    url: str = field(repr=False)
    """`redis://`, `rediss://`, `redis+sentinel://host:port,host:port/service/db` or `redis+cluster://host:port,host:port`."""
    namespace: str = "gateway"
    """Before every key: gateways of the same namespace are replicas of each other."""
    timeout_s: float = 0.05
    """Seconds of one operation; no call waits longer, nor twice."""
    connections: int = 4
    """To each server, besides the one of the subscription."""
    replicas: int = 1
    """The least number of replicas, as long as the store has not said how many there are."""
    ca_file: str | None = None


# --- names of models: what clouds and routers put around them ---


_REGIONS: Final = re.compile(r"(?:us|us-gov|eu|apac|jp|au|ca|sa|global)\.")


_MAKERS: Final = re.compile(
    r"(?:ai21|amazon|anthropic|cohere|deepseek|google|meta|minimax|mistral|moonshot|moonshotai|nvidia|openai|qwen|writer"
    r"|xai|zai)\."
)


_VERSION: Final = re.compile(r"-v\d+(?::\d+)?(?::\d+k)?$|@[^@]*$")


def plain_name(model: str) -> str:
    """Returns a model's name without what clouds and routers put around it: `us.anthropic.claude-x-v1:0` is `claude-x`."""
    return _MAKERS.sub("", name_in_cloud(model), count=1)


BEDROCK_HOST: Final = re.compile(r"(?:^|\.)bedrock-(?:runtime(?:-fips)?|mantle)\.([a-z]{2}(?:-[a-z]+)+-\d)\.")
"""The hosts of Bedrock's, which name their region."""


def name_in_cloud(model: str) -> str:
    """Returns a model's name with its maker's before it where a cloud has it so: `us.anthropic.claude-x-v1:0` is
    `anthropic.claude-x`."""
    return _VERSION.sub("", without_region(model.lower().rpartition("/")[2]))


def without_region(model: str) -> str:
    """Returns the name of the model that a profile of several regions is for: of `us.anthropic.claude-x`, all but `us.`."""
    region = _REGIONS.match(model)
    return model[region.end() :] if region is not None and _MAKERS.match(model, region.end()) else model
