"""Decides what of a call may be stored or shared, and under which keys.

This is decided once, when the call comes in, from the policy, the headers and the body. Most calls have nothing to reuse, and
that is found out in a microsecond. It must not know which answers are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.core.call import Call, Replay
from gateway.core.ports import Later
from gateway.core.types.words import Kept
from gateway.features.reuse.rules.keys.cache_control import ANYTHING, Directives, read_directives
from gateway.features.reuse.rules.keys.keys import (
    LARGE_BYTES,
    digest,
    exact_key,
    fingerprint,
    flight_key,
    partition_key,
    reads_one_way,
    record_key,
)
from gateway.features.reuse.rules.rules import Caching, applies, is_deterministic
from gateway.features.reuse.single_flight.shared_answer import SharedAnswer
from gateway.features.semantic.lookup.question.question import SemanticQuery, last_question


@dataclass(slots=True)
class ReusePlan:
    """The parts of a call that may be stored or shared, each with its key; an empty key: that layer is not used."""

    caching: Caching
    directives: Directives
    record: bytes = b""
    fingerprint: bytes = b""
    exact: bytes = b""
    """The key of an exact answer; it also names the call where only answers in the making are shared."""
    flight: bytes = b""
    is_kept: bool = False
    """The answer may be given to equal requests later."""
    found: Later[Kept | None] | None = None
    """The store's answer for the exact key, once it has been asked."""
    semantic: SemanticQuery | None = None
    """The question, if answers to questions that mean the same may be given."""
    fence: int = 0
    """The token of the claimed record; 0: none is claimed."""
    concurrent_leader: SharedAnswer | None = None
    """The equal call's answer in the making when the call came in; it may be complete when the stores have answered."""

    @property
    def waits(self) -> bool:
        """Returns whether a layer may still give an old answer, or none, which equal calls need not accept."""
        is_open = bool(self.record) and (not self.fence or self.is_kept)
        return is_open or self.found is not None or self.semantic is not None or self.directives.only_if_cached


def plan_reuse(call: Call, *, recognises: bool) -> ReusePlan | None:
    """Returns what may be stored or shared of the call; None: nothing. `recognises`: there is a semantic cache."""
    parsed, caching = call.parsed, call.model.caching
    if call.endpoint.request == "any":
        return None
    asks_for_nothing = call.idempotency_key is None and call.cache_control is None
    if asks_for_nothing and caching.exact.requests == "off" and not (recognises and caching.semantic is not None):
        # Only single flight is left, which the policy may exclude for this call, too.
        if parsed is None or caching.coalesce == "off":
            return None
        if caching.coalesce == "deterministic" and not is_deterministic(call.endpoint.name, parsed):
            return None
    is_keyed = call.idempotency_key is not None and caching.keep_s > 0
    is_shared = is_kept = means = False
    if parsed is not None:
        name = call.endpoint.name
        is_shared = applies(caching.coalesce, name, parsed)
        is_kept = applies(caching.exact.requests, name, parsed)
        means = recognises and caching.semantic is not None and applies("always", name, parsed)
    directives = ANYTHING if call.cache_control is None else read_directives(call.cache_control)
    if not (is_keyed or is_shared or is_kept or means or directives.only_if_cached):
        return None
    asked = ReusePlan(caching, directives, is_kept=is_kept)
    if parsed is not None and (is_shared or is_kept or means):
        asked.exact = exact_key(call, parsed, caching)
        has_own_rule = call.output is not call.model.output  # the model's own is part of its version
        if has_own_rule:
            asked.exact = digest(asked.exact, b"" if call.output is None else call.output.digest)
        if means and not has_own_rule:
            asked.semantic = _meaning(call, parsed)
        if is_shared and not asked.directives.no_cache:
            asked.flight = flight_key(call, parsed, asked.exact)
    if is_keyed and call.idempotency_key is not None:
        asked.record = record_key(call, call.idempotency_key)
        asked.fingerprint = fingerprint(call)
    is_looked_up = is_kept or asked.semantic is not None
    call.replay = Replay("miss" if is_keyed or is_looked_up else "bypass", key=asked.exact if is_looked_up else b"")
    return asked


def _meaning(call: Call, parsed: dict[str, Any]) -> SemanticQuery | None:
    """Returns the call's question for the semantic cache; None: it cannot be judged by its meaning."""
    caching = call.model.caching
    if caching.semantic is None or len(call.body) > LARGE_BYTES or not reads_one_way(call.body, parsed):
        return None
    question = last_question(call.endpoint.name, parsed, caching.exact.ignore)
    if question is None:
        return None
    embedder = call.policy.find_model(caching.semantic.embeddings)
    space = "" if embedder is None else embedder.caching.version  # where it goes makes its vectors what they are
    partition = digest(partition_key(call, caching, question.rest), space.encode())
    return SemanticQuery(partition, question.text, caching.semantic, call.model_name, call.tenant)
