"""What the head of a request says: who calls, in which lane, for whom, until when; and which paths are passed through.

It must not know bodies; `peek.py` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from gateway.core.errors import CallerFault, Forbidden, InvalidRequest, NotFound, Unauthorised
from gateway.core.openai.usage import costs_nothing
from gateway.core.patience import SDK_S
from gateway.core.peek import no_model
from gateway.core.route_plan import RoutePlan
from gateway.core.snapshot import Key, Model, PolicySnapshot, for_key
from gateway.core.types import LANES, PASSTHROUGH, Endpoint, Lane, RawHeaders
from gateway.features.runs import step

MAX_DEADLINE_S = 7 * 24 * 3600.0
SDK_MARGIN_S = 0.15
"""So long before an SDK's own timeout it gets our refusal: a sweep of the watch, and the way to it."""

_REQUEST_ID = _TENANT = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_BEARER = re.compile(rb"Bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)  # token68 of RFC 9110, 11.2
_IDEMPOTENCY_KEY = re.compile(rb"""(?s:"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-~][ -~]{0,254}))""")
_ESCAPED = re.compile(rb"\\(.)")
_JSON_TYPE = (b"content-type", b"application/json")
_ONE_ONLY = frozenset(
    b"authorization x-api-key api-key content-type content-length content-encoding host x-request-id "
    b"x-gateway-deadline-ms x-gateway-lane x-gateway-tenant idempotency-key "
    b"x-gateway-step x-gateway-step-on-change x-gateway-strict "
    b"x-gateway-webhook x-gateway-run-at x-gateway-priority x-gateway-dedupe x-gateway-debounce".split()
).union(step.HEADERS)
OPTIONS = frozenset(
    b"x-request-id content-encoding x-gateway-lane x-gateway-tenant x-gateway-deadline-ms x-stainless-read-timeout "
    b"x-stainless-timeout x-server-timeout x-stainless-retry-count idempotency-key cache-control prefer baggage "
    b"x-gateway-strict".split()
).union(step.HEADERS)
"""What a call may ask for in its headers, or tell of itself; a request without any is an ordinary one."""


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
    names = [name for name, _ in headers if name in _ONE_ONLY]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"The header '{twice.decode()}' occurs more than once; send it once.")


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


def sdk_retry(index: dict[bytes, bytes]) -> int:
    """How often an SDK has sent the same call before, as it says; 0: never, or nothing that makes sense."""
    count = index.get(b"x-stainless-retry-count")
    if count is None or count == b"0":
        return 0
    return int(count) if count.isdigit() and len(count) < 4 else 0


def idempotency_key(index: dict[bytes, bytes], endpoint: Endpoint) -> bytes | None:
    """The `Idempotency-Key`, quoted (a string of RFC 8941) or bare. Raises InvalidRequest for one that is none.

    On paths that are passed through it is the provider's business.
    """
    sent = index.get(b"idempotency-key")
    if sent is None or endpoint.request == "any":
        return None
    bare = _IDEMPOTENCY_KEY.fullmatch(sent.strip())
    if bare is None:
        raise InvalidRequest(
            "The header 'Idempotency-Key' must have 1 to 255 printable ASCII characters, in double quotes or without.",
            param="Idempotency-Key",
            code="invalid_idempotency_key",
        )
    return bare[2] if bare[1] is None else _ESCAPED.sub(rb"\1", bare[1])


def cache_control(headers: RawHeaders) -> bytes:
    """All that `Cache-Control` says, on however many lines (RFC 9110, 5.3)."""
    return b", ".join([value for name, value in headers if name == b"cache-control"])


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


# Web pages that call a gateway without keys: any page open on this machine could spend its money and read its answers.
#
# Without keys the gateway listens on loopback only, so whoever may call it says so. A page of another site gives itself away
# by its `Origin`, or by `Sec-Fetch-Site` where a browser sends no origin (images, forms by GET, links: W3C Fetch Metadata,
# 2.3); one whose name was made to resolve to this machine (DNS rebinding) by its `Host`.

_LOCAL_HOST = re.compile(rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)


def refuse_pages(index: Mapping[bytes, bytes]) -> None:
    """Raises Forbidden for a request of a web page that is not of this machine; `index` has the headers by name."""
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


# Pass-through: which paths are relayed as they are, to whom, and who may ask for that.
#
# Everything below `/v1`, and without `/v1` below the first segments of OpenAI's API alone, so that no path of the gateway's own
# or of whatever stands beside it is taken for a provider's. What manages an account is relayed only where the config says so.


OTHER = Endpoint(PASSTHROUGH, "", answer="binary", request="any", most_body_bytes=68_157_440)
"""Whatever is relayed as it is. Its body may be a part of 64 MiB, and a form around it."""
SEGMENTS = frozenset((
    "assistants", "audio", "batches", "chat", "completions", "containers", "conversations", "embeddings", "evals", "files",
    "fine_tuning", "images", "models", "moderations", "realtime", "responses", "threads", "uploads", "vector_stores", "videos",
))  # fmt: skip
"""What may come first below `/`."""
ADMIN_SEGMENTS = frozenset(("organization", "organizations", "projects"))
"""Of an account's own administration: users, keys, costs. The first of them also without `/v1`."""
_MOST_DECODINGS = 3
_CLIMBS = re.compile(rb"(?:^|/)(?:\.|%2e){1,2}(?:/|$)|//|\\|%2f|%5c|%00|;|%3b|%3f|%23|[^\x21-\x7e]", re.IGNORECASE)
"""What some servers take for another path: steps up, slashes that are hidden, what ends a path or a step (RFC 3986, 3.3)."""
_VERSION = re.compile(r"v\d+\w*", re.IGNORECASE)


def is_relayed(policy: PolicySnapshot, path: str) -> bool:
    """Whether a path (decoded) that nobody else answers belongs to the provider of `passthrough`."""
    if policy.passthrough is None:
        return False
    below, _, rest = path[1:].partition("/")
    if below == "v1":
        below = rest.partition("/")[0]
        return bool(rest) and (policy.passthrough_admin or _plain(below).lower() not in ADMIN_SEGMENTS)
    return below in SEGMENTS or (policy.passthrough_admin and below == "organization")


def _plain(segment: str) -> str:
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

    JSON may ask for a response in the background. Where tenants share an account, forms may name objects, but for uploads. A
    request that is signed, or sent again under a renewed credential, has to be there whole.
    """
    target = policy.passthrough
    if target is None or policy.providers[target.provider].auth is not None or b"json" in content_type.lower():
        return False
    return policy.objects is None or policy.objects.is_open or _UPLOADS.fullmatch(path) is not None
