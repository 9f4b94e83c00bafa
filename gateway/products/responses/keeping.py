"""Who keeps the responses of a model: its provider, where that is possible and no policy says otherwise, or the gateway."""

from __future__ import annotations

from typing import Final

from gateway.core.snapshot import Key, Model, PolicySnapshot
from gateway.core.types import Endpoint
from gateway.products.jobs.rules import JOB_RULES, JOBS
from gateway.products.responses.rules import KEEPS_RESPONSES, Keeping

RESPONSES = "responses"
STATELESS: Final = frozenset(("deepseek", "groq"))
"""Kinds of servers with Responses that keep none, and go on from none (their guides of the Responses API)."""


def keeping_of(policy: PolicySnapshot, key: Key, model: Model, endpoint: Endpoint) -> Keeping | None:
    """Returns who keeps responses of this key's calls; None: the call makes none, or the gateway keeps nothing at all."""
    if endpoint.name != RESPONSES or not JOBS.of(policy).is_on:
        return None
    if not KEEPS_RESPONSES.of(key):
        return "never"
    return JOB_RULES.of(model).responses.store or usual_keeping(model)


def usual_keeping(model: Model) -> Keeping:
    """Returns who keeps responses where no policy says it.

    One account keeps its own. Several know nothing of each other's, and chat completions and stateless servers keep none: then
    the gateway keeps those that ask for it, and nothing unasked.
    """
    targets = (*model.plan, *model.context_plan)
    accounts = {target.account or target.provider for target in targets}
    has_memory = not any(RESPONSES in target.gaps or target.counting.kind in STATELESS for target in targets)
    return "provider" if len(accounts) == 1 and has_memory else "asked"


def is_stateless(model: Model) -> bool:
    """Returns whether no target of the model keeps responses, though they may all answer them."""
    return all(target.counting.kind in STATELESS for target in model.plan)
