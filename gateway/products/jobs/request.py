"""What a caller may ask of a job: the fields of `POST /v1/jobs`, and the headers that say the same of any POST.

Source of `Prefer`: RFC 7240, 4.1 and 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Final, NoReturn

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.snapshot import Key, Model, PolicySnapshot, Setting
from gateway.core.types import EMULATOR, RawHeaders
from gateway.drivers.outward import NotPublic, read_public_url
from gateway.products.jobs.rules import JobRules

MOST_RUN_AT_S: Final = 366 * 86_400.0
MOST_DEADLINE_S: Final = 2 * MOST_RUN_AT_S
"""Seconds from now: a year after the latest begin. A time without end, or of hundreds of digits, is none that a store could
keep.
"""
MOST_WAIT_S: Final = 600.0
MOST_KEY_CHARS: Final = 256
MOST_METADATA, MOST_NAME_CHARS, MOST_VALUE_CHARS = 16, 64, 512
URGENT_FROM: Final = 7
"""The lowest urgent one of the priorities 0 to 9."""
USUAL_PRIORITY: Final = 5
FIELDS: Final = frozenset((
    "endpoint", "body", "run_at", "delay", "priority", "lane", "deadline", "max_attempts", "dedupe_key", "debounce", "metadata",
    "webhook",
))  # fmt: skip
WEBHOOK: Final = b"x-gateway-webhook"
OPTIONS: Final = frozenset(
    (b"prefer", b"x-gateway-run-at", b"x-gateway-debounce", b"x-gateway-dedupe", b"x-gateway-priority", WEBHOOK)
)
"""The headers that make a job of a call, or say how it is to run."""
IDEMPOTENCY_KEY: Final = "idempotency_key"
"""In `about`: the key under whose record the job's call is served."""
QUERY: Final = "query"
"""In `about`: what the caller had behind the path, where there was anything."""
RUN_WORDS: Final = "run_words"
"""In `about`: the workflow, run and task that the job's calls are parts of, where they are of any."""
FINGERPRINT: Final = "fingerprint"
"""In `about` of a job with such a key: the digest of its request, in hexadecimal digits."""
_HEADER_OF: Final = {
    "run_at": "x-gateway-run-at",
    "priority": "x-gateway-priority",
    "dedupe_key": "x-gateway-dedupe",
    "debounce": "x-gateway-debounce",
}
"""The header that says what the field says."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Debounce:
    """Of several jobs with one key that are not due yet only the last runs."""

    key: str
    wait_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job is to run. Times are seconds by the clock of jobs."""

    run_at: float | None = None
    deadline: float | None = None
    priority: int = USUAL_PRIORITY
    max_attempts: int | None = None
    dedupe_key: str | None = None
    debounce: Debounce | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    webhook: str = ""
    """A URL that is notified of the job's end; empty: none. Whether requests may name one is not decided here."""


def read_options(fields: Mapping[str, Any], now: float, ahead_s: float = 0.0) -> JobOptions:
    """Reads the fields of a job. Raises InvalidRequest, naming the field and the remedy.

    `now` is by the clock of jobs; a time that the caller names is by one that this clock is `ahead_s` ahead of.
    """
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        _refuse(unknown[0][:64], f"is unknown; known are {', '.join(sorted(FIELDS))}")
    if "run_at" in fields and "delay" in fields:
        _refuse("delay", "and 'run_at' exclude each other")
    run_at = None
    if fields.get("delay") is not None:
        run_at = now + _duration("delay", fields["delay"])
    elif fields.get("run_at") is not None:
        run_at = _time("run_at", fields["run_at"]) + ahead_s
    if run_at is not None and run_at > now + MOST_RUN_AT_S:
        _refuse("run_at" if fields.get("delay") is None else "delay", "is more than a year ahead")
    return JobOptions(
        run_at=run_at,
        deadline=_deadline(fields.get("deadline"), max(now, run_at or now), now, ahead_s),
        priority=_whole("priority", fields.get("priority", USUAL_PRIORITY), 0, 9),
        max_attempts=None
        if fields.get("max_attempts") is None
        else _whole("max_attempts", fields["max_attempts"], 1, 100),
        dedupe_key=_key("dedupe_key", fields.get("dedupe_key")),
        debounce=_debounce(fields.get("debounce")),
        metadata=read_metadata(fields.get("metadata")),
        webhook=read_webhook("webhook", fields.get("webhook")),
    )


def read_option_headers(index: Mapping[bytes, bytes], now: float, ahead_s: float = 0.0) -> JobOptions:
    """Reads the headers that say of any POST how its job is to run, as `read_options`. Raises InvalidRequest, naming the
    header."""
    options: dict[str, Any] = {}
    if (run_at := index.get(b"x-gateway-run-at")) is not None:
        text = run_at.decode("latin-1")
        options["run_at"] = float(text) if re.fullmatch(r"\d{1,12}(\.\d+)?", text) else text
    if (priority := index.get(b"x-gateway-priority")) is not None:
        options["priority"] = int(priority) if priority.isdigit() and len(priority) < 4 else -1
    webhook = read_webhook_header(index)
    if (dedupe := index.get(b"x-gateway-dedupe")) is not None:
        options["dedupe_key"] = dedupe.decode("latin-1")
    if (debounce := index.get(b"x-gateway-debounce")) is not None:
        key, *parts = [part.strip() for part in debounce.decode("latin-1").split(";")]
        preferences = dict(part.partition("=")[::2] for part in parts)
        options["debounce"] = {"key": key, **({"wait": preferences.pop("wait")} if "wait" in preferences else {})}
        if "max" in preferences:
            options["debounce"]["max_wait"] = preferences.pop("max")
        if preferences:
            _refuse(
                "x-gateway-debounce", f"has an unknown part {sorted(preferences)[0][:64]!r}; use KEY; wait=10s; max=2m"
            )
    if not options:
        return JobOptions(webhook=webhook)
    try:
        return replace(read_options(options, now, ahead_s), webhook=webhook)
    except InvalidRequest as refusal:
        name, _, part = (refusal.param or "").partition(".")
        header = _HEADER_OF[name]
        place = f"part '{part.removesuffix('_wait')}' of the header '{header}'" if part else f"header '{header}'"
        message = refusal.message.replace(f"field '{refusal.param}'", place, 1)
        raise InvalidRequest(message, param=header) from None


def responds_async(headers: RawHeaders) -> float | None:
    """Returns for how many seconds the caller waits before it takes a 202; None: it did not ask for one (RFC 7240).

    What is not understood in `Prefer` is ignored, as the RFC wants.
    """
    prefer = b",".join(value for name, value in headers if name == b"prefer").lower()
    preferences: dict[bytes, bytes] = {}
    for part in prefer.split(b","):
        name, _, value = part.partition(b";")[0].partition(b"=")
        preferences.setdefault(name.strip(), value.strip(b' \t"'))
    if b"respond-async" not in preferences:
        return None
    wait = preferences.get(b"wait", b"0")
    return min(MOST_WAIT_S, float(wait)) if wait.isdigit() and len(wait) < 9 else 0.0


def read_webhook_header(index: Mapping[bytes, bytes]) -> str:
    """Returns the URL that a request wants notified of its job's end; empty: none. Raises InvalidRequest, naming the header."""
    url = index.get(WEBHOOK)
    return "" if url is None else read_webhook(WEBHOOK.decode(), url.decode("latin-1"))


def read_webhook(name: str, value: object) -> str:
    """Reads a URL that is to be notified of a job's end, as far as that goes without looking its name up. Raises
    InvalidRequest.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        _refuse(name, "must be a text: an https URL")
    try:
        read_public_url(value)
    except NotPublic as error:
        _refuse(name, str(error))
    return value


def read_metadata(given: object) -> dict[str, str]:
    """Reads `metadata`: at most 16 texts of 512 characters under names of 64. Raises InvalidRequest."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        _refuse("metadata", "must be an object of texts")
    if len(given) > MOST_METADATA:
        _refuse("metadata", f"has more than {MOST_METADATA} entries")
    for name, value in given.items():
        if not isinstance(value, str) or len(value) > MOST_VALUE_CHARS or len(name) > MOST_NAME_CHARS:
            _refuse("metadata", f"takes names of {MOST_NAME_CHARS} characters and texts of {MOST_VALUE_CHARS}, no more")
    return dict(given)


def _refuse(name: str, problem: str) -> NoReturn:
    kind = "header" if name.startswith("x-gateway-") else "field"
    raise InvalidRequest(f"The {kind} '{name}' {problem}.", param=name)


def _whole(name: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        _refuse(name, f"must be a whole number from {least} to {most}")
    return value


def _key(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MOST_KEY_CHARS or not value.isprintable():
        _refuse(name, f"must have 1 to {MOST_KEY_CHARS} printable characters")
    return value


def _duration(name: str, value: object) -> float:
    """Seconds as a number, or text with a unit such as `10s`."""
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        return float(found[1]) * _UNITS[found[2]]
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0:
        return float(value)
    _refuse(name, 'must be seconds, or a text with a unit such as "90s" or "2h"')


def _time(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0:
        return float(value)
    _refuse(name, "must be a time in seconds since 1970 (UTC)")


def _deadline(value: object, begins_at: float, now: float, ahead_s: float) -> float | None:
    """A duration from the job's begin on, or a time in seconds since 1970."""
    if value is None:
        return None
    deadline = (
        begins_at + _duration("deadline", value) if isinstance(value, str) else _time("deadline", value) + ahead_s
    )
    if deadline <= now:
        _refuse("deadline", "has passed")
    if deadline <= begins_at:
        _refuse("deadline", "is before the job may begin: name a later one, or an earlier run_at or delay")
    if deadline > now + MOST_DEADLINE_S:
        _refuse("deadline", "is more than two years ahead")
    return deadline


def _debounce(value: object) -> Debounce | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not value.keys() <= {"key", "wait", "max_wait"}:
        _refuse("debounce", 'must be {"key": …, "wait": "10s", "max_wait": "2m"}')
    key = _key("debounce.key", value.get("key"))
    if key is None:
        _refuse("debounce.key", "is missing")
    wait_s = _duration("debounce.wait", value.get("wait", 10.0))
    if wait_s > MOST_RUN_AT_S:
        _refuse("debounce.wait", "must not be longer than a year")
    max_s = _duration("debounce.max_wait", value.get("max_wait", min(12 * wait_s, MOST_RUN_AT_S)))
    if max_s < wait_s or max_s > MOST_RUN_AT_S:
        _refuse("debounce.max_wait", "must not be shorter than `wait`, nor longer than a year")
    return Debounce(key, wait_s, max_s)


def canonical(body: bytes) -> bytes:
    """Returns a body with the keys of its objects in order, so that the same request has the same fingerprint."""
    try:
        return orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    except ValueError:
        return body


# --- the URL that a request names for the end of its job ---

WEBHOOK_SECRETS: Final[Setting[tuple[bytes, ...]]] = Setting("webhook_secrets", ())
"""Secrets of a key that sign what goes to URLs which its requests name; without any they cannot name one."""


class WebhookNotAllowed(InvalidRequest):
    """Requests may not name URLs here, or those of this key may not."""

    code = "webhook_not_allowed"


def refuse_request_url(url: str, rules: JobRules, key: Key) -> None:
    """Raises WebhookNotAllowed where a request named a URL, and may not; an empty one was not named."""
    if url and not rules.allow_request_urls:
        raise WebhookNotAllowed(
            "URLs in requests ('webhook', x-gateway-webhook) are not allowed here; set allow_request_urls: true in "
            "policies/jobs.yaml, or name the endpoint in the config's section 'webhooks'.",
            param="webhook",
        )
    if url and not WEBHOOK_SECRETS.of(key):
        raise WebhookNotAllowed(
            f"Nothing would sign what the URL in 'webhook' is told: give the key '{key.name}' webhook_secrets in the "
            "config, or webhook_settings.request_secrets where there are no keys.",
            param="webhook",
        )


# --- the credential that a job does not keep ---


def bare_provider(policy: PolicySnapshot, model: Model) -> str | None:
    """Returns a provider's name in the config if no provider of the model can be used without the caller's credential.

    The emulator wants none.
    """
    providers = [policy.providers[target.provider] for target in model.plan]
    if not providers or any(not one.is_callers or one.base_url.startswith(EMULATOR) for one in providers):
        return None
    return providers[0].group or providers[0].name
