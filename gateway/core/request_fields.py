"""What the gateway reads of a request: the plan of its route, then its head, then its body.

The plan is what is the same for all calls of one key to one model at one endpoint: it is compiled once. A target that is
compiled for a pattern serves the name the client asked for. The head: who calls, in which lane, for whom, until when;
whether it is a request of a web page (`refuse_pages`); and which paths are passed through. The body: which model, as a
stream or not, how many tokens at most; parsed once, and kept as it came; at the end large bodies, a piece at a time.

Only what the gateway itself needs is checked here; everything else in a body is the provider's to judge. Routing looks at
the matched endpoint and the top-level `model` alone: `api_base`, `base_url` and the like are inert at any depth.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import unquote

import orjson

from gateway.core.call import CallRoute
from gateway.core.errors import CallerFault, Forbidden, InvalidRequest, NotFound, Unauthorised
from gateway.core.openai.bodies import (
    PEEKED_BYTES,
    Large,
    MultipartError,
    boundary_of,
    count_answers,
    digest_in_steps,
    find_form_fields,
    find_in_steps,
    is_parsed,
    large_of,
)
from gateway.core.openai.json_edit import (
    MAX_DEPTH,
    Field,
    MalformedJson,
    Outline,
    is_too_deep,
    is_written_once,
    mended_json,
    read_contents,
    read_outline,
    too_deep,
)
from gateway.core.openai.transcript import FIELDS as REASONING
from gateway.core.openai.transcript import asks_for_reasoning
from gateway.core.openai.usage import costs_nothing
from gateway.core.patience import SDK_S, UNKNOWN_S
from gateway.core.render import OPENAI
from gateway.core.snapshot import READS_FORMS, Key, Model, PolicySnapshot, for_key
from gateway.core.types import LANES, PASSTHROUGH, Endpoint, Lane, RawHeaders

MOST_PLANS = 4096
"""The most plans of one snapshot: under a pattern clients choose the names, and there is no end of them."""


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """Holds the policy for every call of one key to one model name at one endpoint, with or without a credential of its own.

    A plan exists only if the key may use the name, and the name is fit to be one.
    """

    route: CallRoute
    """Its model is the entry that serves the name, for callers with a credential where that differs; its hooks, once they are
    compiled, are those of calls that want nothing by their headers."""
    lane: Lane
    """The key's own lane."""
    tenant: str
    """The key's own tenant."""
    deadline_s: float
    """The seconds that a call waits for which the caller has set no time and chosen no lane."""
    waits_as_client: bool
    """True if nobody has chosen a lane: then calls wait for as long as their client is known to."""
    passes_account: bool
    """True if the caller's headers that name its account go along: its own credential pays at each of the targets."""
    is_restricted: bool
    """True if the key may not use every model, so the body must not name another in a way that only some providers read."""
    takes_comments: bool
    """True if a stream that waits may get comments."""
    takes_interim: bool
    """True if a call that is no stream and waits may get interim responses."""
    variants: dict[frozenset[bytes], CallRoute] = field(default_factory=dict, repr=False, compare=False)
    """The routes of other calls, by the options that they ask for; compiled when the first of them comes."""


def plan_route(policy: PolicySnapshot, key: Key, model: Model, endpoint: Endpoint, *, is_callers: bool) -> RoutePlan:
    """Returns the plan of calls of `key` to `model` at `endpoint`; `is_callers`: with a credential of the caller's own."""
    passes_account = False
    if is_callers:
        model = model.model_for_caller_credentials or model
        going_to = (*model.plan, *model.context_plan)
        # beside a provider's own key these headers would name another's account
        passes_account = all(policy.providers[target.provider].is_callers for target in going_to)
    waits_as_client = policy.waits_as_clients and key.lane == "interactive" and not key.is_lane_chosen
    return RoutePlan(
        route=CallRoute(policy, key, model, endpoint, is_callers),
        lane=key.lane,
        tenant=key.tenant,
        deadline_s=UNKNOWN_S if waits_as_client else policy.lane_deadline_s[key.lane],
        waits_as_client=waits_as_client,
        passes_account=passes_account,
        is_restricted=key.allows is not None,
        takes_comments=endpoint.takes_comments,
        takes_interim=model.holding.interim is not None,
    )


class RoutePlans:
    """Keeps the plans of one snapshot, each compiled when it is first asked for.

    A route is (digest of the key's secret, model name, endpoint's name, whether the caller has a credential of its own).
    """

    __slots__ = ("_plans", "get", "policy")

    def __init__(self, policy: PolicySnapshot) -> None:
        self.policy = policy
        self._plans: dict[tuple[bytes, str, str, bool], RoutePlan] = {}
        self.get = self._plans.get
        """Returns the plan of a route; None: it was not asked for yet, or its calls are refused."""

    def remember(self, route: tuple[bytes, str, str, bool], plan: RoutePlan) -> None:
        """Keeps a plan for the next call; when there are too many, all are dropped and compiled anew."""
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        self._plans[route] = plan


# --- the head of a request: who calls, in which lane, for whom, until when ---

MAX_DEADLINE_S = 7 * 24 * 3600.0
SDK_MARGIN_S = 0.15
"""Seconds before an SDK's own timeout at which it gets our refusal: a sweep of the watch, and the way to it."""

_REQUEST_ID = _TENANT = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_BEARER = re.compile(rb"Bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)  # token68 of RFC 9110, 11.2
_JSON_TYPE = (b"content-type", b"application/json")
_ONE_ONLY = frozenset(
    b"authorization x-api-key api-key content-type content-length content-encoding host x-request-id "
    b"idempotency-key".split()
)
_OURS = b"x-gateway-"
"""Begins the headers by which calls ask a gateway for something, in whatever product: each is sent once."""
OPTIONS = frozenset(
    b"x-request-id content-encoding x-gateway-lane x-gateway-tenant x-gateway-deadline-ms x-stainless-read-timeout "
    b"x-stainless-timeout x-server-timeout x-stainless-retry-count "
    b"x-gateway-strict".split()
)
"""The core's own headers by which a call may ask for something or say something of itself; products have others. A request
without any is an ordinary one."""
_LISTS = frozenset((b"cache-control", b"prefer"))
METADATA = b"metadata"
"""The field of a body that is looked at for products, as the option of a call that brings it."""

_TIMEOUTS = (b"x-stainless-read-timeout", b"x-stainless-timeout", b"x-server-timeout")
"""Those of OpenAI's and Anthropic's SDKs, and google-genai's, which rounds it up to whole seconds."""
_SDKS = frozenset((b"x-stainless-retry-count", *_TIMEOUTS))
"""The headers of SDKs that send the timeout of their caller, if there is one."""


class UnsupportedEncoding(CallerFault):
    """The body is compressed; bodies are taken as they are."""

    status = 415
    code = "unsupported_content_encoding"


def index_headers(headers: RawHeaders) -> dict[bytes, bytes]:
    """The headers by name. Raises InvalidRequest when one that must be unique occurs twice."""
    index = dict(headers)
    if len(index) != len(headers):
        refuse_doubles(headers)
    return index


def refuse_doubles(headers: RawHeaders) -> None:
    """Raises InvalidRequest when a header that must be unique occurs twice."""
    names = [name for name, _ in headers if name in _ONE_ONLY or name.startswith(_OURS)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"The header '{twice.decode()}' occurs more than once; send it once.")


def join_lists(index: dict[bytes, bytes], headers: RawHeaders) -> None:
    """Puts all that a header says on several lines into its place in the index, where its lines make a list (RFC 9110, 5.3)."""
    for name in _LISTS.intersection(index):
        index[name] = b", ".join([value for one, value in headers if one == name])


def request_id(index: dict[bytes, bytes]) -> str | None:
    """The client's own `x-request-id`, if it is fit to be repeated in headers and logs."""
    sent = index.get(b"x-request-id")
    return sent.decode() if sent is not None and _REQUEST_ID.fullmatch(sent) else None


def authenticate(policy: PolicySnapshot, index: dict[bytes, bytes]) -> tuple[Key, bytes | None]:
    """The caller's key, and the credential that may be passed through to a provider which has none of its own.

    A secret that opened the gateway never goes on to a provider. Raises Unauthorised, or Forbidden for a web page.
    """
    authorization = index.get(b"authorization")
    if not policy.keys:
        refuse_pages(index)
        return policy.anonymous, authorization or _callers_key(index)
    if authorization is not None and authorization[:7].lower() == b"bearer ":
        key = policy.find_key(authorization[7:].strip())
        if key is not None:
            return key, None
    for name in (b"x-api-key", b"api-key"):
        secret = index.get(name)
        if secret is not None:
            key = policy.find_key(secret)
            if key is not None:
                # One plain bearer token that is no secret of ours may go on: in any other form one could hide.
                bearer = _BEARER.fullmatch(authorization or b"")
                is_callers = bearer is not None and secret not in bearer[1] and policy.find_key(bearer[1]) is None
                return key, authorization if is_callers else None
    if authorization is None and b"x-api-key" not in index and b"api-key" not in index:
        raise Unauthorised(
            "No API key was sent; send the gateway's key as 'Authorization: Bearer <key>' or 'x-api-key'."
        )
    # Begins with OpenAI's own words: by these some clients know what it is, whatever the status (LiteLLM).
    message = "Incorrect API key provided: it is not one of this gateway's keys; check the key that the client sends."
    raise Unauthorised(message)


def find_model(policy: PolicySnapshot, key: Key, name: str) -> Model:
    """The entry that serves this model name. Raises NotFound, or Forbidden when the key may not use it."""
    if key.allows is not None and not key.allows.match(name):
        raise Forbidden(f"The key '{key.name}' may not use the model '{name}'.", param="model")
    model = policy.find_model(name)
    if model is None or (model.nameless and name in model.nameless):
        raise NotFound(
            f"The model '{name}' does not exist; GET /v1/models lists those that do.",
            param="model",
            code="model_not_found",
        )
    return model if key.fallbacks == "any" else for_key(policy, key, model)


def strictly(model: Model, index: Mapping[bytes, bytes]) -> Model:
    """The model for a call that says whether it may lose anything on its way. Raises InvalidRequest for any other word."""
    value = index.get(b"x-gateway-strict", b"false").strip().lower()
    if value not in (b"true", b"false"):
        raise InvalidRequest("The header 'x-gateway-strict' must be true or false.")
    return model if value == b"false" or model.on_loss == "refuse" else replace(model, on_loss="refuse")


def refuse_encoded(index: dict[bytes, bytes]) -> None:
    """Raises UnsupportedEncoding for a compressed body: it would be counted, read and forwarded as what it is not."""
    encoding = index.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"identity", b""):
        raise UnsupportedEncoding("The body is sent with a Content-Encoding; send it uncompressed.")


def as_json(forwarded: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a JSON body that is not called one, with its content type set right."""
    return [*(header for header in forwarded if header[0] != b"content-type"), _JSON_TYPE]


def deadline(
    policy: PolicySnapshot, plan: RoutePlan, lane: Lane, index: dict[bytes, bytes], now: float
) -> tuple[float, bool]:
    """Returns until when the call waits (monotonic seconds), and whether the caller has set that time."""
    own = index.get(b"x-gateway-deadline-ms")
    if own is not None:
        milliseconds = int(own) if own.isdigit() and len(own) < 12 else 0
        if not 0 < milliseconds <= MAX_DEADLINE_S * 1000:
            raise InvalidRequest(
                "The header 'x-gateway-deadline-ms' must be a whole number of milliseconds, 1 or more."
            )
        return now + milliseconds / 1000, True
    for name in _TIMEOUTS:
        seconds = _seconds(index[name]) if name in index else None
        if seconds is not None:  # our answer has to be there before the SDK stops listening, and comes again by itself
            return now + seconds - min(SDK_MARGIN_S, seconds / 4), True
    if b"x-gateway-lane" in index:
        return now + policy.lane_deadline_s[lane], False
    return now + (SDK_S if plan.waits_as_client and not _SDKS.isdisjoint(index) else plan.deadline_s), False


def is_unknown_client(plan: RoutePlan, index: dict[bytes, bytes]) -> bool:
    """Returns whether how long the call waits is known only by what its client has done before."""
    return plan.waits_as_client and b"x-gateway-lane" not in index and _SDKS.isdisjoint(index)


def choose_lane(key: Key, index: dict[bytes, bytes]) -> Lane:
    """The key's lane, or a lower one that the call asks for. Raises InvalidRequest or Forbidden."""
    value = index.get(b"x-gateway-lane")
    return key.lane if value is None else allowed_lane(key, value.decode("latin-1"), "header 'x-gateway-lane'")


def allowed_lane(key: Key, value: object, source: str, param: str | None = None) -> Lane:
    """The lane that is asked for, where the key may use it. Raises InvalidRequest, naming what said it, or Forbidden."""
    lane = next((lane for lane in LANES if lane == value), None)
    if lane is None:
        raise InvalidRequest(f"The {source} must be one of {', '.join(LANES)}.", param=param)
    if LANES.index(lane) < LANES.index(key.lane) and not (lane == "critical" and key.critical):
        raise Forbidden(f"The key '{key.name}' may not use the lane '{lane}'.", code="lane_not_allowed")
    return lane


def choose_tenant(key: Key, index: dict[bytes, bytes]) -> str:
    """The key's tenant, or the one that the call names. Raises InvalidRequest or Forbidden."""
    named = index.get(b"x-gateway-tenant")
    if named is None:
        return key.tenant
    if not key.names_tenants:
        raise Forbidden(f"The key '{key.name}' may not name a tenant.", code="tenant_not_allowed")
    if not _TENANT.fullmatch(named):
        raise InvalidRequest("The header 'x-gateway-tenant' must have 1 to 128 of A-Z a-z 0-9 . _ : / + = @ -")
    return f"{key.tenant}/{named.decode()}"


def _callers_key(index: dict[bytes, bytes]) -> bytes | None:
    """A key that is no bearer token; Anthropic treats the two differently."""
    secret = index.get(b"x-api-key")
    if secret:
        return b"x-api-key " + secret
    secret = index.get(b"api-key")
    return b"Bearer " + secret if secret else None


def _seconds(value: bytes) -> float | None:
    """An SDK's timeout header; whatever is not a sane number (some send `NOT_GIVEN`) is as good as none."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 < seconds <= MAX_DEADLINE_S else None


# --- web pages that call a gateway without keys ---

_LOCAL_HOST = re.compile(rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)


def refuse_pages(index: Mapping[bytes, bytes]) -> None:
    """Raises Forbidden for a request of a web page that is not of this machine; `index` has the headers by name.

    Any page open on this machine could spend the money of a gateway without keys and read its answers. Such a gateway
    listens on loopback only, so whatever else reaches it may call it. A page of another site gives itself away by its
    `Origin`, or by `Sec-Fetch-Site` where a browser sends no origin (images, forms by GET, links: W3C Fetch Metadata, 2.3);
    one whose name was made to resolve to this machine (DNS rebinding) by its `Host`.
    """
    origin = index.get(b"origin")
    if origin is None:
        site = index.get(b"sec-fetch-site")
        is_foreign = site is not None and site.strip().lower() == b"cross-site"
    else:
        is_foreign = _LOCAL_HOST.fullmatch(origin.partition(b"://")[2]) is None
    if is_foreign:
        raise Forbidden(
            "Without keys, pages of other sites may not call this gateway; add 'keys' to the config.",
            code="origin_not_allowed",
        )
    host = index.get(b"host")
    if host and not _LOCAL_HOST.fullmatch(host):
        raise Forbidden(
            "Without keys, this gateway answers to localhost and 127.0.0.1 only; add 'keys' to the config.",
            code="host_not_allowed",
        )


# --- pass-through: which paths are relayed as they are, to whom, and who may ask for that ---


OTHER = Endpoint(PASSTHROUGH, "", OPENAI, answer="binary", request="any", most_body_bytes=68_157_440)
"""The endpoint of whatever is relayed as it is. Its body may be a part of 64 MiB, and a form around it."""
SEGMENTS = frozenset((
    "assistants", "audio", "batches", "chat", "completions", "containers", "conversations", "embeddings", "evals", "files",
    "fine_tuning", "images", "models", "moderations", "realtime", "responses", "threads", "uploads", "vector_stores", "videos",
))  # fmt: skip
"""The first segments that are relayed below `/`."""
ADMIN_SEGMENTS = frozenset(("organization", "organizations", "projects"))
"""The segments of an account's own administration: users, keys, costs. The first of them also without `/v1`."""
_MOST_DECODINGS = 3
_CLIMBS = re.compile(rb"(?:^|/)(?:\.|%2e){1,2}(?:/|$)|//|\\|%2f|%5c|%00|;|%3b|%3f|%23|[^\x21-\x7e]", re.IGNORECASE)
"""What some servers take for another path: steps up, slashes that are hidden, what ends a path or a step (RFC 3986, 3.3)."""
_VERSION = re.compile(r"v\d+\w*", re.IGNORECASE)


def is_relayed(policy: PolicySnapshot, path: str) -> bool:
    """Whether a path (decoded) that nobody else answers belongs to the provider of `passthrough`.

    That is everything below `/v1`, and without `/v1` what is below the first segments of OpenAI's API alone, so that no
    path of the gateway's own or of whatever stands beside it is taken for a provider's. What manages an account is relayed
    only where the config says so.
    """
    if policy.passthrough is None:
        return False
    below, _, rest = path[1:].partition("/")
    if below == "v1":
        below = rest.partition("/")[0]
        return bool(rest) and (policy.passthrough_admin or _plain(below).lower() not in ADMIN_SEGMENTS)
    return below in SEGMENTS or (policy.passthrough_admin and below == "organization")


def _plain(segment: str) -> str:
    # A segment may be encoded more than once, and somebody on its way may decode it as often.
    for _ in range(_MOST_DECODINGS):
        segment = unquote(segment)
    return segment


def unnamed_model(policy: PolicySnapshot, key: Key) -> Model | None:
    """The entry for calls that name no model: that of every name, `"*"`; None: there is none, and `passthrough` takes them.

    Raises Forbidden for a key that may not use every model, InvalidRequest where nothing takes such calls.
    """
    if key.allows is not None:
        raise Forbidden(
            f"The key '{key.name}' is limited to some models and may not leave out 'model'; name one of them.",
            param="model",
        )
    model = policy.patterns[-1][1] if policy.patterns else None
    if model is not None and model.name == "*":
        return model
    if policy.passthrough is None:
        raise no_model()
    return None


def passthrough_model(policy: PolicySnapshot, key: Key) -> Model:
    """The pseudo-model of other endpoints. Raises NotFound without `passthrough:`, Forbidden for a restricted key."""
    target = policy.passthrough
    if target is None:
        raise NotFound("Unknown path; to relay other endpoints to a provider, set 'passthrough' in the config.")
    if key.allows is not None:
        raise Forbidden(
            f"The key '{key.name}' is limited to some models and may not use other endpoints.", code="path_not_allowed"
        )
    return Model(PASSTHROUGH, (target,), (target,), include_usage=False)


def relayed_by(policy: PolicySnapshot, key: Key, scope: Mapping[str, Any]) -> Model:
    """Whoever takes a request that is relayed as it is. Raises NotFound, or Forbidden for a key that may not send it."""
    model = passthrough_model(policy, key)
    path = passthrough_path(scope)
    if path.startswith("/responses/") and "/responses" in model.targets[0].converters_by_path:
        raise NotFound(
            f"'{model.targets[0].provider}', the provider of 'passthrough', has chat completions and no Responses, so there is "
            "nothing below /v1/responses; only calls to /v1/responses itself are put into another language."
        )
    refuse_unpriced(key, OTHER, scope["method"], path)
    return model


def refuse_unpriced(key: Key, endpoint: Endpoint, method: str, path: str) -> None:
    """Raises Forbidden where a key with a budget would spend what nobody can count."""
    if key.budget_usd_per_day is None or key.allow_unpriced or costs_nothing(endpoint, method, path):
        return
    raise Forbidden(
        f"The key '{key.name}' has a budget, and what {method} {path.partition('?')[0]} costs is not known; allow it with "
        "'allow_unpriced: true' at the key.",
        code="unpriced_endpoint",
    )


def passthrough_path(scope: Mapping[str, Any]) -> str:
    """The path below the base URL, as the client sent it. Raises NotFound for one that climbs or hides its start.

    Whether there is a `/v1` to take away depends on the path that was matched (`scope["path"]`, decoded).
    """
    path: bytes = scope["raw_path"]
    start = b"/v1/" if scope["path"].startswith("/v1/") else b"/" + scope["path"][1:].partition("/")[0].encode()
    is_whole = start.endswith(b"/") or path[len(start) : len(start) + 1] in (b"/", b"")
    if not path.startswith(start) or not is_whole or _CLIMBS.search(path):
        raise NotFound("Unknown path.")
    if start == b"/v1/" and _VERSION.fullmatch(_plain(path[len(start) :].partition(b"/")[0].decode("ascii"))):
        raise NotFound("Unknown path.")  # behind a base_url without a version that is the same place as without it
    return path.removeprefix(b"/v1").decode("ascii") if start == b"/v1/" else path.decode("ascii")


STREAMED_FROM_BYTES = 1_048_576
"""A shorter body is held, as all others are."""
MOST_STREAMED_BYTES = 537_919_488
"""512 MiB of a file, as OpenAI takes it (API reference, files), and a form."""
_UPLOADS = re.compile(r"/(?:files|uploads/[^/]+/parts)")
"""The paths of forms that have a file in them and no id."""


def is_streamed(policy: PolicySnapshot, path: str, content_type: bytes) -> bool:
    """Returns whether nobody here has to read the body of a relayed request.

    JSON may ask for a response in the background. A product may have to read forms, but for uploads, which name nothing. A
    request that is signed, or sent again under a renewed credential, has to be there whole.
    """
    target = policy.passthrough
    if target is None or policy.providers[target.provider].auth is not None or b"json" in content_type.lower():
        return False
    return not READS_FORMS.of(policy) or _UPLOADS.fullmatch(path) is not None


# --- the body: which model, as a stream or not, how many tokens at most ---

MAX_MODEL_CHARS = 256
_MODEL_KEY = b'"model"'  # how else a field may be written takes an escape, and then is looked at more closely
_BOUNDS = frozenset(("max_completion_tokens", "max_tokens", "max_output_tokens"))
_ANSWERS = frozenset(("n", "best_of", "prompt"))
"""The fields that multiply the answers of one call."""
_RARE = REASONING | {"metadata", "generationConfig"}
"""The fields that are looked at more closely; one look-up for all of them."""
BOUNDING = _BOUNDS | _ANSWERS | {"generationConfig"}
"""The fields that say how long an answer may be, and how many there are."""


@dataclass(slots=True)
class Peeked:
    """What the gateway read in a body."""

    model: str
    stream: bool = False
    stream_options: object = None
    model_span: tuple[int, int] | None = None
    max_tokens: int | None = None
    thinks: bool = False
    parsed: dict[str, Any] | None = None
    large: Large | None = None
    metadata: object = None
    """As it stands in the body; None: there is none, or it was not read."""


def peek(endpoint: Endpoint, body: bytes, index: dict[bytes, bytes]) -> Peeked:
    """What the body asks for; of a large one see `LargeBodies`. Raises CallerFault, naming the field and the remedy."""
    if endpoint.request == "multipart":
        content_type = index.get(b"content-type", b"")
        try:
            found = find_form_fields(body, form_boundary(content_type), ("model", "stream"))
        except MultipartError as exc:
            raise malformed_form(exc) from None
        return read_form(body, found["model"], found["stream"])
    value = json_value(body)
    # To take one character out jumps from one to the next, to count them looks at every byte: three times as long.
    rest = len(body.replace(b"{", b"", MAX_DEPTH + 1)) + len(body.replace(b"[", b"", MAX_DEPTH + 1))
    if 2 * len(body) - rest > MAX_DEPTH and is_too_deep(body):
        raise too_deep()
    peeked = read_fields(value, is_model_optional=endpoint.is_model_optional)
    # One character is found much faster than four; `in` makes and drops an error first, that the text is no number.
    is_plain = body.count(_MODEL_KEY) == 1 and (body.find(b"\\") < 0 or body.find(b"\\u00") < 0)
    if not is_plain and "model" in value and not is_written_once(body, "model"):
        raise written_twice("model")
    return peeked


def json_value(body: bytes) -> dict[str, Any]:
    """The body, parsed. Raises InvalidRequest, or BodyTooComplex where it is deeper than the parser goes."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        value = mended_json(body)
        if value is None:
            raise _not_json(body, exc) from None
    if not isinstance(value, dict):
        raise InvalidRequest('The request body must be a JSON object, such as {"model": …}.', code="invalid_json")
    return value


def read_fields(value: dict[str, Any], *, is_model_optional: bool = False) -> Peeked:
    """What these top-level fields ask for; an empty name where they name no model and need not. Raises InvalidRequest."""
    name = value.get("model")
    if type(name) is not str or not 0 < len(name) <= MAX_MODEL_CHARS or not name.isprintable():
        name = "" if name is None and is_model_optional else _model_name(name, present="model" in value)
    stream = value.get("stream", False)
    if stream is not True and stream is not False:
        if stream is not None:
            raise InvalidRequest("The field 'stream' must be true or false.", param="stream", code="invalid_type")
        stream = False
    thinks, metadata = False, None
    if not _RARE.isdisjoint(value):
        thinks, metadata = asks_for_reasoning(value), value.get("metadata")
    max_tokens = None if _BOUNDS.isdisjoint(value) else max_tokens_of(value)
    if "generationConfig" in value and "contents" in value:
        max_tokens, thinks = _of_generated(value["generationConfig"])
    return Peeked(name, stream, value.get("stream_options"), None, max_tokens, thinks, value, None, metadata)


def written_twice(name: str) -> InvalidRequest:
    """Returns the words about a field that two parsers may read differently."""
    return InvalidRequest(
        f"The field '{name}' occurs more than once; send it once.", param=name, code="duplicate_field"
    )


def find_bound(value: dict[str, Any]) -> int | None:
    """Returns the bound that a parsed request of any language sets on the tokens of all its answers together; None: none."""
    if "generationConfig" in value and "contents" in value:
        return _of_generated(value["generationConfig"])[0]
    return max_tokens_of(value)


def max_tokens_of(body: dict[str, Any]) -> int | None:
    """The bound on the tokens of all answers together; what is not a sane number is the provider's to judge."""
    bound = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if type(bound) is not int or not 0 < bound < 1_000_000_000:
        return None
    for name in ("max_tokens", "max_output_tokens"):  # each provider heeds its own: a small one hides no larger one
        other = body.get(name) or bound
        if other != bound:
            if type(other) is not int or not 0 < other < 1_000_000_000:
                return None
            bound = max(bound, other)
    return bound if _ANSWERS.isdisjoint(body) else bound * count_answers(body)


def _of_generated(config: object) -> tuple[int | None, bool]:
    """The bound on the answer's tokens and whether it is thought before it, from Gemini's own options."""
    if not isinstance(config, dict):
        return None, False
    wanted = {"max_tokens": config.get("maxOutputTokens"), "n": config.get("candidateCount")}
    thinking = config.get("thinkingConfig")
    thinking = thinking if isinstance(thinking, dict) else {}
    budget, level = thinking.get("thinkingBudget"), str(thinking.get("thinkingLevel", "minimal")).lower()
    return max_tokens_of(wanted), level != "minimal" or (type(budget) is int and budget != 0)


def form_boundary(content_type: bytes) -> bytes:
    """The boundary of a form. Raises InvalidRequest for another content type, MultipartError without a boundary."""
    if not content_type.lower().startswith(b"multipart/form-data"):
        raise InvalidRequest(
            "This endpoint takes multipart/form-data; set the content type.", code="invalid_content_type"
        )
    return boundary_of(content_type)


def malformed_form(problem: MultipartError | str) -> InvalidRequest:
    """Returns the words about a form that is none."""
    return InvalidRequest(f"The multipart body is malformed: {problem}.", code="invalid_multipart")


def read_form(body: bytes, spans: Sequence[tuple[int, int]], streams: Sequence[tuple[int, int]]) -> Peeked:
    """What a form asks for whose fields `model` and `stream` stand there. Raises InvalidRequest."""
    if len(spans) > 1:
        raise written_twice("model")
    raw = body[slice(*spans[0])] if spans else b""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The field 'model' is not valid UTF-8.", param="model", code="invalid_value") from None
    model = _model_name(text, present=bool(spans))
    stream = bool(streams) and body[slice(*streams[0])].lower() == b"true"
    return Peeked(model, stream, model_span=spans[0])


def _model_name(value: Any, *, present: bool) -> str:
    if not present:
        raise no_model()
    if not isinstance(value, str):
        raise InvalidRequest("The field 'model' must be a string.", param="model", code="invalid_type")
    if not value or len(value) > MAX_MODEL_CHARS or not value.isprintable():
        raise InvalidRequest(
            f"The field 'model' must have 1 to {MAX_MODEL_CHARS} printable characters.",
            param="model",
            code="invalid_value",
        )
    return value


def no_model() -> InvalidRequest:
    """Returns the words where a model has to be named."""
    return InvalidRequest("The field 'model' is missing; name the model to use.", param="model", code="missing_field")


def _not_json(body: bytes, exc: orjson.JSONDecodeError) -> CallerFault:
    if not body.strip():
        return InvalidRequest("The request body is empty; send a JSON object.", code="empty_body")
    if "depth" in exc.msg or "ecursion" in exc.msg:  # its words depend on the version
        return too_deep()
    return InvalidRequest(f"The request body is not valid JSON: {_json_problem(body, exc)}.", code="invalid_json")


def _json_problem(body: bytes, exc: orjson.JSONDecodeError) -> str:
    """The parser's words, made plain where they are not."""
    if body[:3] == b"\xef\xbb\xbf" or body[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "it starts with a byte order mark; send plain UTF-8"
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        return f"it is not valid UTF-8 at byte {broken.start}"
    return f"{exc.msg} at line {exc.lineno} column {exc.colno}"


# --- large bodies: read a piece at a time, and between the pieces everybody else is served ---


_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

T = TypeVar("T")


class LargeBodies:
    """Reads the large bodies of this process, a piece at a time.

    One body at a time, so that the loop is never later by more than one piece, however many come at once. A body of more
    than a few megabytes is not parsed at all: what it costs is its bytes.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def peek(self, endpoint: Endpoint, body: bytes, index: dict[bytes, bytes], max_values: int) -> Peeked:
        """As the function of this name. Raises CallerFault, BodyTooComplex where there are more values than `max_values`."""
        async with self._turn:
            if endpoint.request == "multipart":
                try:
                    boundary = form_boundary(index.get(b"content-type", b""))
                    found = await _in_steps(find_in_steps(body, boundary, ("model", "stream")))
                except MultipartError as exc:
                    raise malformed_form(exc) from None
                peeked = read_form(body, found["model"], found["stream"])
                if b"idempotency-key" in index and len(body) > PEEKED_BYTES:  # it will be compared with another
                    peeked.large = Large(digest=await _in_steps(digest_in_steps(body, boundary)))
                return peeked
            try:
                # Where texts may be lists of token numbers, 2,048 of them with 512 each are usual, and harmless.
                counts_numbers, is_optional = not endpoint.has_many_texts, endpoint.is_model_optional
                outline = await _in_steps(read_outline(body, max_values, counts_numbers=counts_numbers))
                if is_parsed(body, outline):
                    peeked = read_fields(json_value(body), is_model_optional=is_optional)
                    large = large_of(body, outline)
                else:
                    contents = await _in_steps(read_contents(body))
                    peeked = read_fields(outline.fields, is_model_optional=is_optional)
                    large = large_of(body, outline, contents)
                    # The bound counts the answers that the outline shows; a list of prompts, which was not read, brings more.
                    if peeked.max_tokens is not None:
                        peeked.max_tokens = peeked.max_tokens // count_answers(outline.fields) * large.answers
                if "model" in outline.repeated:
                    raise written_twice("model")
                peeked.large = large
                return peeked
            except MalformedJson as problem:
                raise _malformed(body, problem) from None

    async def outline(self, body: bytes, max_values: int) -> Outline:
        """Returns the top level of a JSON object. Raises InvalidRequest, or BodyTooComplex."""
        async with self._turn:
            try:
                return await _in_steps(read_outline(body, max_values))
            except MalformedJson as problem:
                raise _malformed(body, problem) from None

    async def find_field(self, body: bytes, name: str, max_values: int) -> Field | None:
        """Returns the place of a field of the object that the body is; None: it has no such field.

        Raises InvalidRequest, also where the field is written twice, and BodyTooComplex.
        """
        async with self._turn:
            try:
                outline = await _in_steps(read_outline(body, max_values, counts_numbers=False))
            except MalformedJson as problem:
                raise _malformed(body, problem) from None
        if name in outline.repeated:
            raise written_twice(name)
        return outline.spans.get(name)


def _malformed(body: bytes, problem: MalformedJson) -> InvalidRequest:
    why = "it starts with a byte order mark; send plain UTF-8" if body.startswith(_MARKS) else str(problem)
    return InvalidRequest(f"The request body is not valid JSON: {why}.", code="invalid_json")


async def _in_steps(work: Generator[None, None, T]) -> T:
    """Returns what the work returns, after as many turns of the loop as it has steps."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            value: T = done.value
            return value
        await asyncio.sleep(0)
