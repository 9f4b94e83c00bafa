"""Pass-through: which paths are relayed as they are, to whom, and who may ask for that.

Everything below `/v1`, and without `/v1` below the first segments of OpenAI's API alone, so that no path of the gateway's own
or of whatever stands beside it is taken for a provider's. What manages an account is relayed only where the config says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from gateway.core.errors import Forbidden, NotFound
from gateway.core.openai.usage.free_endpoints import costs_nothing
from gateway.core.peek.peek import no_model
from gateway.core.snapshot.snapshot.snapshot import Key, Model, PolicySnapshot
from gateway.core.types.words import PASSTHROUGH, Endpoint

OTHER = Endpoint(PASSTHROUGH, "", answer="binary", request="any")
"""Whatever is relayed as it is."""
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
        return bool(rest) and (policy.passthrough_admin or not is_admin(below))
    return below in SEGMENTS or (policy.passthrough_admin and below == "organization")


def is_admin(segment: str) -> bool:
    """Whether it leads to the administration of an account, however often it is encoded."""
    return _plain(segment).lower() in ADMIN_SEGMENTS


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
    if path.startswith("/responses/") and "/responses" in model.targets[0].detours:
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

    Whether there is a `/v1` to take away is told by the path that was matched (`scope["path"]`, decoded).
    """
    path: bytes = scope["raw_path"]
    start = b"/v1/" if scope["path"].startswith("/v1/") else b"/" + scope["path"][1:].partition("/")[0].encode()
    is_whole = start.endswith(b"/") or path[len(start) : len(start) + 1] in (b"/", b"")
    if not path.startswith(start) or not is_whole or _CLIMBS.search(path):
        raise NotFound("Unknown path.")
    if start == b"/v1/" and _VERSION.fullmatch(_plain(path[len(start) :].partition(b"/")[0].decode("ascii"))):
        raise NotFound("Unknown path.")  # behind a base_url without a version that is the same place as without it
    return path.removeprefix(b"/v1").decode("ascii") if start == b"/v1/" else path.decode("ascii")
