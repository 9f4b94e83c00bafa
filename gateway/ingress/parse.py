"""Bytes to Call: who calls, what they ask for, until when. The body is parsed once to peek and kept as it came.

Only what the gateway itself needs is checked here; everything else in a body is the provider's to judge. Routing looks at
the matched endpoint and the top-level `model` alone: `api_base`, `base_url` and the like are inert at any depth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import CallerFault, Forbidden, InvalidRequest, NotFound, Unauthorised
from gateway.exchange import RawHeaders
from gateway.ingress.pages import refuse_pages
from gateway.policy.openai.headers import AllowList
from gateway.policy.openai.json_edit import is_written_once
from gateway.policy.openai.json_text import MAX_DEPTH, is_too_deep, too_deep
from gateway.policy.openai.large_body import Large
from gateway.policy.openai.multipart import MultipartError, boundary_of, find_fields
from gateway.policy.openai.thinking import FIELDS as REASONING
from gateway.policy.openai.thinking import asks_for_reasoning
from gateway.policy.snapshot import Key, Model, PolicySnapshot
from gateway.words import LANES, Endpoint, Lane

MAX_MODEL_CHARS = 256
MAX_CHOICES = 128
MAX_DEADLINE_S = 7 * 24 * 3600.0
SDK_MARGIN_S = 0.15
"""So long before an SDK's own timeout it is told that there will be no answer: a sweep of the watch, and the way to it."""

_REQUEST_ID = _TENANT = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_BEARER = re.compile(rb"Bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)  # token68 of RFC 9110, 11.2
_IDEMPOTENCY_KEY = re.compile(rb"""(?s:"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-~][ -~]{0,254}))""")
_ESCAPED = re.compile(rb"\\(.)")
_MODEL_KEY = b'"model"'  # how else a field may be written takes an escape, and then is looked at more closely
_JSON_TYPE = (b"content-type", b"application/json")
_ONE_ONLY = frozenset(
    b"authorization x-api-key api-key content-type content-length content-encoding host x-request-id "
    b"x-gateway-deadline-ms x-gateway-lane x-gateway-tenant idempotency-key".split()
)


class UnsupportedEncoding(CallerFault):
    """The body is compressed; bodies are taken as they are."""

    status = 415
    code = "unsupported_content_encoding"


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


def index_headers(headers: RawHeaders) -> dict[bytes, bytes]:
    """The headers by name. Raises InvalidRequest when one that must be unique occurs twice."""
    index = dict(headers)
    if len(index) != len(headers):
        names = [name for name, _ in headers if name in _ONE_ONLY]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"The header '{twice.decode()}' occurs more than once; send it once.")
    return index


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
        return policy.anonymous, authorization or _as_bearer(index.get(b"x-api-key") or index.get(b"api-key"))
    bearer = _bearer_token(authorization)
    if bearer is not None:
        key = policy.find_key(bearer)
        if key is not None:
            return key, None
    for name in (b"x-api-key", b"api-key"):
        secret = index.get(name)
        if secret is not None:
            key = policy.find_key(secret)
            if key is not None:
                return key, authorization if _is_another_token(policy, authorization, secret) else None
    if authorization is None and b"x-api-key" not in index and b"api-key" not in index:
        raise Unauthorised(
            "No API key was sent; send the gateway's key as 'Authorization: Bearer <key>' or 'x-api-key'."
        )
    raise Unauthorised("The API key is not one of this gateway's keys; check the key that the client sends.")


def _is_another_token(policy: PolicySnapshot, authorization: bytes | None, secret: bytes) -> bool:
    """Whether it is one plain bearer token and no secret of ours: in any other form one could hide."""
    bearer = _BEARER.fullmatch(authorization or b"")
    return bearer is not None and secret not in bearer[1] and policy.find_key(bearer[1]) is None


def find_model(policy: PolicySnapshot, key: Key, name: str) -> Model:
    """The entry that serves this model name. Raises NotFound, or Forbidden when the key may not use it."""
    if key.allows is not None and not key.allows.match(name):
        raise Forbidden(f"The key '{key.name}' may not use the model '{name}'.", param="model")
    model = policy.find_model(name)
    if model is None:
        raise NotFound(
            f"The model '{name}' does not exist; GET /v1/models lists those that do.",
            param="model",
            code="model_not_found",
        )
    return model


def refuse_encoded(index: dict[bytes, bytes]) -> None:
    """Raises UnsupportedEncoding for a compressed body: it would be counted, read and forwarded as what it is not."""
    encoding = index.get(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in (b"identity", b""):
        raise UnsupportedEncoding("The body is sent with a Content-Encoding; send it uncompressed.")


def peek(endpoint: Endpoint, body: bytes, index: dict[bytes, bytes]) -> Peeked:
    """What the body asks for; of a large one see `large_bodies.py`. Raises CallerFault, naming the field and the remedy."""
    if endpoint.request == "multipart":
        return _peek_multipart(body, index.get(b"content-type", b""))
    return _peek_json(body, is_model_optional=endpoint.is_model_optional)


def forwarded_headers(
    scope_headers: RawHeaders, allowed: AllowList, endpoint: Endpoint, index: dict[bytes, bytes]
) -> list[tuple[bytes, bytes]]:
    """The client's headers that go upstream; a JSON body is always called one."""
    headers = allowed.keep(scope_headers)
    if endpoint.request == "json" and b"json" not in index.get(b"content-type", b""):
        headers = [header for header in headers if header[0] != b"content-type"]
        headers.append(_JSON_TYPE)
    return headers


def deadline(policy: PolicySnapshot, lane: Lane, index: dict[bytes, bytes], now: float) -> tuple[float, bool]:
    """Until when an answer has to begin (monotonic seconds), and whether the caller said so or the lane."""
    own = index.get(b"x-gateway-deadline-ms")
    if own is not None:
        milliseconds = int(own) if own.isdigit() and len(own) < 12 else 0
        if not 0 < milliseconds <= MAX_DEADLINE_S * 1000:
            raise InvalidRequest(
                "The header 'x-gateway-deadline-ms' must be a whole number of milliseconds, 1 or more."
            )
        return now + milliseconds / 1000, True
    for name in (b"x-stainless-read-timeout", b"x-stainless-timeout"):
        seconds = _seconds(index[name]) if name in index else None
        if seconds is not None:  # our answer has to be there before the SDK stops listening, and comes again by itself
            return now + seconds - min(SDK_MARGIN_S, seconds / 4), True
    return now + policy.lane_deadline_s[lane], False


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
    asked = index.get(b"x-gateway-lane")
    if asked is None:
        return key.lane
    lane = next((lane for lane in LANES if lane.encode() == asked), None)
    if lane is None:
        raise InvalidRequest(f"The header 'x-gateway-lane' must be one of {', '.join(LANES)}.")
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


def _peek_json(body: bytes, *, is_model_optional: bool) -> Peeked:
    value = json_value(body)
    # To take one character out jumps from one to the next, to count them looks at every byte: three times as long.
    rest = len(body.replace(b"{", b"", MAX_DEPTH + 1)) + len(body.replace(b"[", b"", MAX_DEPTH + 1))
    if 2 * len(body) - rest > MAX_DEPTH and is_too_deep(body):
        raise too_deep()
    peeked = read_fields(value, is_model_optional=is_model_optional)
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
        raise _not_json(body, exc) from None
    if not isinstance(value, dict):
        raise InvalidRequest('The request body must be a JSON object, such as {"model": …}.', code="invalid_json")
    return value


def read_fields(value: dict[str, Any], *, is_model_optional: bool = False) -> Peeked:
    """What these top-level fields ask for; an empty name where they name no model and need not. Raises InvalidRequest."""
    name = value.get("model")
    model = "" if name is None and is_model_optional else _model_name(name, present="model" in value)
    stream = value.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("The field 'stream' must be true or false.", param="stream", code="invalid_type")
    thinks = not REASONING.isdisjoint(value) and asks_for_reasoning(value)
    options = value.get("stream_options")
    return Peeked(model, bool(stream), options, max_tokens=_max_tokens(value), thinks=thinks, parsed=value)


def written_twice(name: str) -> InvalidRequest:
    """What is said of a field that two parsers may read differently."""
    return InvalidRequest(
        f"The field '{name}' occurs more than once; send it once.", param=name, code="duplicate_field"
    )


def _max_tokens(body: dict[str, Any]) -> int | None:
    """The bound on the answer's tokens, for all choices together; what is not a sane number is the provider's to judge."""
    bound = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if type(bound) is not int or not 0 < bound < 1_000_000_000:
        return None
    for name in ("max_tokens", "max_output_tokens"):  # each provider heeds its own: a small one hides no larger one
        other = body.get(name) or bound
        if other != bound:
            if type(other) is not int or not 0 < other < 1_000_000_000:
                return None
            bound = max(bound, other)
    choices = body.get("n")
    return bound * choices if type(choices) is int and 1 < choices <= MAX_CHOICES else bound


def _peek_multipart(body: bytes, content_type: bytes) -> Peeked:
    try:
        found = find_fields(body, form_boundary(content_type), ("model", "stream"))
    except MultipartError as exc:
        raise malformed_form(exc) from None
    return read_form(body, found["model"], found["stream"])


def form_boundary(content_type: bytes) -> bytes:
    """The boundary of a form. Raises InvalidRequest for another content type, MultipartError without a boundary."""
    if not content_type.lower().startswith(b"multipart/form-data"):
        raise InvalidRequest(
            "This endpoint takes multipart/form-data; set the content type.", code="invalid_content_type"
        )
    return boundary_of(content_type)


def malformed_form(problem: MultipartError) -> InvalidRequest:
    """What is said of a form that is none."""
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
    """What is said where a model has to be named."""
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


def _bearer_token(authorization: bytes | None) -> bytes | None:
    if authorization is None or authorization[:7].lower() != b"bearer ":
        return None
    return authorization[7:].strip()


def _as_bearer(secret: bytes | None) -> bytes | None:
    return b"Bearer " + secret if secret else None


def _seconds(value: bytes) -> float | None:
    """An SDK's timeout header; whatever is not a sane number (some send `NOT_GIVEN`) is as good as none."""
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 < seconds <= MAX_DEADLINE_S else None
