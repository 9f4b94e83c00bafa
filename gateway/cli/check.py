"""`gateway check` and `gateway explain`: what a config means, without a gateway that runs."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gateway.admin.describe import describe
from gateway.admin.explain import explain, explain_error, read_headers
from gateway.around import products_around
from gateway.cli.config import compile_config, settings_of
from gateway.cli.main import FAILED, OK, UNUSABLE, fail
from gateway.core.clock import SystemClock
from gateway.core.config.error_tables import ErrorTables, read_error_tables
from gateway.core.config.load import locate_policies
from gateway.core.config.policies import list_error_files
from gateway.core.config.source import Problem, did_you_mean
from gateway.core.errors import ConfigError, GatewayError, NotFound
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import ErrorClass, SkipReason
from gateway.settings import Settings
from gateway.workers.channel import require_shared


def check(options: argparse.Namespace) -> int:
    """Checks a config, and with `--show` prints what it compiles to."""
    settings = settings_of(options)
    policy = compile_config(settings)
    require_shared(settings, policy, settings.workers)
    if options.show:
        print(json.dumps(describe(policy), indent=2))
    for notice in policy.notices:
        print(f"note: {notice}", file=sys.stderr)
    count = len(policy.models) + len(policy.patterns)
    providers = len({provider.group for provider in policy.providers.values()})
    print(
        f"{settings.config}: ok ({providers} providers, {count} models, {len(policy.keys)} keys)",
        file=sys.stderr,
    )
    return OK


_CODE: Final = re.compile(r"[A-Za-z0-9_]+")
"""What an error code, or a status, looks like, and a file hardly."""


def explain_call(options: argparse.Namespace) -> int:
    """Prints what would become of a request, or what an error answer means."""
    if options.error:
        return _explain_error(options)
    if (about := _about_code(str(options.request))) is not None and not options.request.exists():
        print(about)
        return OK
    if _CODE.fullmatch(str(options.request)) and not options.request.exists():
        return fail(
            f"{options.request}: neither a file nor an error code of the gateway{_suggestion(options.request)}", FAILED
        )
    policy = compile_config(settings_of(options))
    body = sys.stdin.buffer.read() if str(options.request) == "-" else options.request.read_bytes()
    try:
        print(
            explain(
                policy,
                body,
                path=options.path,
                key_name=options.key,
                shows_upstream=options.show_upstream,
                products=products_around(policy),
            )
        )
    except GatewayError as error:
        return fail(f"answered with {error.status} {error.code}: {error.message}", FAILED)
    return OK


def _suggestion(request: Path) -> str:
    """Returns what was meant by a word that is none of the gateway's codes; empty: who knows."""
    word = str(request).lower()
    if word.isdigit():
        return f"; of an answer with this status: gateway explain --error {word} BODY"
    known = {*CODES, *ErrorClass, *SkipReason, *(one.code for one in _errors() if one.code)}
    return did_you_mean(word, known).partition("; there are")[0]


def _error_of(code: str) -> type[GatewayError] | None:
    """Returns the error of the gateway with this code; None: there is none."""
    return next((one for one in _errors() if one.code == code), None)


def _errors() -> list[type[GatewayError]]:
    found = [GatewayError]
    for one in found:
        found += one.__subclasses__()
    return found


def _about_code(code: str) -> str | None:
    """Returns what this code of the gateway's means; None: there is none."""
    if (error := _error_of(code)) is not None:
        return _about(error)
    if code not in CODES:
        # No error code: a word of `x-gateway-attempts`?
        if code in {*ErrorClass}:
            return f"{code}: a class of errors of providers\nsee docs/reference/errors.md#error-classes"
        if code in {*SkipReason}:
            return f"{code}: why a call went past a target\nsee docs/reference/errors.md#skipped-targets"
        return None
    status, meaning = CODES[code]
    return f"{code}: status {status}\n{meaning}\nclients may try again: no\nsee docs/reference/errors.md"


def _about(error: type[GatewayError]) -> str:
    """Returns what an error of the gateway means."""
    again = {True: "yes", False: "no", None: "as its status says"}[error.should_retry]
    meaning = " ".join((error.__doc__ or "").split())
    head = f"{error.code}: status {error.status}, type {error.type}"
    return f"{head}\n{meaning}\nclients may try again: {again}\nsee docs/reference/errors.md"


def _explain_error(options: argparse.Namespace) -> int:
    status, text = options.error
    if not (status.isascii() and status.isdigit() and 100 <= int(status[:9]) <= 599):
        return fail(f"{status!r} is no HTTP status", UNUSABLE)
    settings = settings_of(options)
    tables = _error_tables(settings)
    try:
        kind = options.kind or (_kind_of(compile_config(settings), options.provider) if options.provider else "other")
        headers = read_headers(options.header)
    except GatewayError as error:
        return fail(error.message, UNUSABLE)
    print(explain_error(tables.of(kind), int(status), _body_of(text), headers, SystemClock().wall()))
    return OK


def _error_tables(settings: Settings) -> ErrorTables:
    """Returns the built-in tables, and the user's own where there is a config."""
    folder = locate_policies(settings.config, os.environ) if settings.config.is_file() else None
    problems: list[Problem] = []
    tables = read_error_tables(list_error_files(folder) if folder else (), os.environ, problems)
    if problems:
        raise ConfigError(list(map(str, problems)))
    return tables


def _kind_of(policy: PolicySnapshot, name: str) -> str:
    """Returns the kind of a provider that some target names."""
    kinds = {target.provider: target.counting.kind for model in policy.models.values() for target in model.plan}
    if name not in kinds:
        raise NotFound(f"no target uses a provider {name!r}; there are: {', '.join(kinds)}")
    return kinds[name]


def _body_of(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    is_literal = len(text) > 255 or text.lstrip().startswith(("{", "[", "<", '"'))  # no name of a file
    return text.encode(errors="replace") if is_literal or not Path(text).is_file() else Path(text).read_bytes()


# --- What codes mean that say more of a refusal than its class does ---


CODES: Final = MappingProxyType(
    {
        "invalid_json": (400, "The body is no JSON object, or is not UTF-8."),
        "empty_body": (400, "There is no body."),
        "missing_field": (400, "The field 'model' is not there."),
        "invalid_type": (400, "A field has another type than it must have; 'param' names it."),
        "invalid_value": (400, "The value of a field cannot be used; 'param' names it."),
        "duplicate_field": (400, "A field is there twice, and two parsers may read it differently."),
        "too_many_objects": (400, "The body names more than 5,000 objects."),
        "invalid_content_type": (400, "The endpoint takes multipart/form-data."),
        "invalid_multipart": (400, "The form is malformed."),
        "invalid_idempotency_key": (400, "The Idempotency-Key has not 1 to 255 printable ASCII characters."),
        "invalid_http": (400, "The request line, a header or the body's framing is not HTTP/1.1."),
        "unsupported_by_targets": (
            400,
            "No target of the model can do what the call needs, or be told it in its language; the message names the fields.",
        ),
        "previous_response_not_found": (
            400,
            "The response to go on from does not exist, is another tenant's, was not kept, or has not ended.",
        ),
        "conversation_too_long": (
            400,
            "It goes on from more than 64 responses, or from more than 8 MiB: send what matters as 'input'.",
        ),
        "invalid_pipeline_input": (400, "The input of a pipeline does not fit its schema; 'param' names the field."),
        "not_supported": (400, "A pipeline was asked for where it does not answer."),
        "step_not_async": (
            400,
            "x-gateway-step together with Prefer: respond-async, a pipeline, or a response in the background: send one "
            "of them.",
        ),
        "no_step": (400, "x-gateway-step on a POST that is no call of a model: send it without."),
        "invalid_handshake": (
            400,
            "The WebSocket handshake is not one, or has a header that is about one call; the message says which.",
        ),
        "field_not_allowed": (
            403,
            "The key has restricted 'models', and some provider chooses another by this field: leave it out.",
        ),
        "lane_not_allowed": (403, "The key may not use this lane."),
        "tenant_not_allowed": (403, "The key may not name a tenant."),
        "path_not_allowed": (403, "The key is limited to some models and may not use other endpoints."),
        "unpriced_endpoint": (
            403,
            "The key has a budget, and what the call costs at a target that it may go to, or at this endpoint, is not "
            "known: set 'price' at the target (0, where it is free), or 'allow_unpriced: true' at the key.",
        ),
        "origin_not_allowed": (403, "Without keys: a web page of another origin has sent it."),
        "host_not_allowed": (403, "Without keys: the Host is not this machine."),
        "model_not_found": (404, "The config has no such model; GET /v1/models lists those that it has."),
        "object_not_found": (404, "The file, batch or response does not exist, or is another tenant's."),
        "run_not_found": (404, "There is no such run, or it is another tenant's."),
        "websocket_not_supported": (
            501,
            "A WebSocket elsewhere than at /v1/realtime and /v1/responses, or the extra 'realtime' is not installed.",
        ),
        "transfer_encoding_not_supported": (501, "Only the transfer encoding 'chunked' is spoken."),
    }
)
"""The status and the meaning of each; clients need not try any of them again."""
