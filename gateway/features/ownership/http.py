"""Serves `/admin/objects`: operators give objects at providers that were there before to their tenants.

Behind the admin key, and not on the hot path. It must not know how owners are remembered: that is behind `ObjectAdmin`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.admin.http import require_admin
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.intake import read_object, refuse_unknown
from gateway.core.snapshot import Policies, PolicySnapshot
from gateway.features.ownership.rules import OBJECTS, ObjectRules
from gateway.routes import json_response

MOST_BYTES = 1_048_576
MOST_IDS = 10_000
EXAMPLE = '{"tenant": "web", "ids": ["file-abc"]}'
_FIELDS = ("tenant", "ids", "provider", "move")
log = logging.getLogger("gateway.admin")


class ObjectAdmin(Protocol):
    """Changes the owners of objects."""

    async def claim(
        self, rules: ObjectRules, provider: str, tenant: str, ids: Sequence[str], *, moves: bool
    ) -> list[str]:
        """Gives objects to a tenant, those of another only if `moves`; returns the owner that each has then, in order."""
        ...


def object_routes(policies: Policies, objects: ObjectAdmin) -> list[BaseRoute]:
    """Returns `POST /admin/objects/claim`."""

    async def claim(request: Request) -> Response:
        require_admin(policies, request)
        fields = await read_object(request, policies.current.server, MOST_BYTES, EXAMPLE)
        policy = policies.current
        rules = _rules(policy)
        tenant, ids, moves = _what(fields, rules)
        provider = _provider(fields, policy)
        owners = await objects.claim(rules, provider, tenant, ids, moves=moves)
        others = {id: owner for id, owner in zip(ids, owners, strict=True) if owner != tenant}
        claimed = len(ids) - len(others)
        log.warning("admin: %d objects at %s are %s's now%s", claimed, provider, tenant, ", moved" if moves else "")
        return json_response({"tenant": tenant, "provider": provider, "claimed": claimed, "others": others})

    return [Route("/admin/objects/claim", claim, methods=["POST"])]


def _rules(policy: PolicySnapshot) -> ObjectRules:
    rules = OBJECTS.of(policy)
    if rules is None:
        raise NotFound("All keys are of one tenant: every object is its own, there is nothing to claim.")
    return rules


def _what(fields: Mapping[str, Any], rules: ObjectRules) -> tuple[str, list[str], bool]:
    """Reads the tenant, the ids, and whether ids of another tenant are meant, too. Raises InvalidRequest."""
    refuse_unknown(fields, _FIELDS)
    tenant, ids, moves = fields.get("tenant"), fields.get("ids"), fields.get("move", False)
    if not isinstance(tenant, str) or not rules.knows(tenant):
        close = get_close_matches(str(tenant), rules.tenants, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(sorted(rules.tenants)[:20])}."
        raise InvalidRequest(f"The field 'tenant' must be a tenant of the config; {hint}", param="tenant")
    if not isinstance(ids, list) or not 0 < len(ids) <= MOST_IDS or not all(isinstance(id, str) and id for id in ids):
        raise InvalidRequest(f"The field 'ids' must be a list of 1 to {MOST_IDS} ids, such as {EXAMPLE}.", param="ids")
    if not isinstance(moves, bool):
        raise InvalidRequest("The field 'move' must be true or false.", param="move")
    return tenant, list(dict.fromkeys(ids)), moves


def _provider(fields: Mapping[str, Any], policy: PolicySnapshot) -> str:
    """Returns the provider of the objects: the one named, that of `passthrough`, or the only one. Raises InvalidRequest."""
    named = fields.get("provider")
    if named is None and policy.passthrough is not None:
        return policy.passthrough.provider
    known = {provider.group or name for name, provider in policy.providers.items()}
    if named is None and len(known) == 1:
        return next(iter(known))
    if not isinstance(named, str) or named not in known:
        raise InvalidRequest(
            f"Say where the objects are: 'provider' as one of {', '.join(sorted(known))}.", param="provider"
        )
    return named
