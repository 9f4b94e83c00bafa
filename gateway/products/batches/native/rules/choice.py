"""Which lines of batches may go to a provider's own Batch API, and to whose. Asked again before each part is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.core.snapshot.snapshot.provider import Provider
from gateway.core.snapshot.snapshot.snapshot import PolicySnapshot, Target
from gateway.core.types.words import EMULATOR
from gateway.products.batches.input.line_rules import key_named
from gateway.products.batches.output.marks import ENDPOINT, MODELS
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.model.lines import ChunkPlan
from gateway.products.jobs.rules import BatchRules

ENDPOINTS: Final = frozenset(
    f"/v1/{name}"
    for name in ("chat/completions", "responses", "embeddings", "completions", "moderations", "images/generations")
)
"""That some provider's Batch API takes; one that does not take all of them refuses the part, which then runs here.

Source: https://platform.openai.com/docs/api-reference/batch/create
"""
INLINE_ENDPOINTS: Final = frozenset(("/v1/messages", "/v1/chat/completions", "/v1/responses"))
"""Whose lines go to Anthropic's Message Batches, as messages whatever they were.

Source: https://platform.claude.com/docs/en/api/messages/batches/create
"""
CHECKED_ENDPOINTS: Final = frozenset(("/v1/chat/completions", "/v1/responses", "/v1/messages"))
"""Whose answers may have to keep a schema."""
MOST_PARTS: Final = 64
"""Of one batch at providers at a time."""


class NoPart(Exception):
    """Lines cannot go to a provider's Batch API. The message says why."""


def plan_parts(
    policy: PolicySnapshot, job: Job, models: Sequence[str], total: int, rules: BatchRules
) -> ChunkPlan | None:
    """Returns the division of a batch whose chunks go to providers as parts; None: it runs here."""
    native = rules.native
    if not rules.goes_native or total < native.min_lines or len(models) != 1:
        return None
    try:
        targets_of(policy, job, models[0], rules)
    except NoPart:
        return None
    parts = -(-total // native.part_lines)
    return ChunkPlan(total, -(-total // parts), min(MOST_PARTS, max(parts, rules.parallel_chunks)))


def target_of(policy: PolicySnapshot, job: Job, chunk: int, rules: BatchRules) -> Target:
    """Returns the target whose provider gets a chunk, by the weights of the split. Raises NoPart."""
    models = job.marks.get(MODELS, ())
    if not rules.goes_native or len(models) != 1:
        raise NoPart("the policy does not ask for it any more")
    if key_named(policy, job.key) is None:
        raise NoPart(f"the key '{job.key}' is no longer there")
    targets = targets_of(policy, job, models[0], rules)
    return targets[_turn([weight_of(policy, one, rules.native.split) for one in targets], chunk)]


def targets_of(policy: PolicySnapshot, job: Job, model_name: str, rules: BatchRules) -> list[Target]:
    """Returns the targets of a model whose providers may get parts of it, at least one. Raises NoPart."""
    if job.about[ENDPOINT] not in ENDPOINTS | INLINE_ENDPOINTS:
        raise NoPart(f"no provider's Batch API has {job.about[ENDPOINT]}")
    model = policy.find_model(model_name)
    if model is not None and model.output is not None and job.about[ENDPOINT] in CHECKED_ENDPOINTS:
        raise NoPart(f"the answers of '{model_name}' are checked (output), which is done call by call")
    own = [one for one in model.targets if may_take(policy.providers[one.provider])] if model is not None else []
    if not own:
        raise NoPart(f"no provider of '{model_name}' has an api_key in the config")
    own = [one for one in own if _has(policy.providers[one.provider], one, str(job.about[ENDPOINT]))]
    if not own:
        raise NoPart(
            f"no provider of '{model_name}' has {job.about[ENDPOINT]} itself: such calls are converted one by one"
        )
    split = rules.native.split
    found = [one for one in own if weight_of(policy, one, split)] if split else own[:1]
    if not found:
        raise NoPart(f"no provider of '{model_name}' is in native.split")
    return found


def is_inline(provider: Provider) -> bool:
    """Tells whether the provider takes lines along with the request for their batch: Anthropic's Message Batches."""
    return provider.dialect == "anthropic"


def model_at(target: Target, job: Job) -> str:
    """Returns what the target's provider calls the one model of a batch."""
    asked = str(job.marks[MODELS][0])
    return target.model or (asked.removeprefix(target.strip) if target.strip else asked)


def _has(provider: Provider, target: Target, endpoint: str) -> bool:
    """Tells whether the provider's Batch API takes lines of this endpoint."""
    if is_inline(provider):
        return endpoint in INLINE_ENDPOINTS
    return has_batch_api(provider) and endpoint in ENDPOINTS and endpoint.removeprefix("/v1") not in target.detours


def has_batch_api(provider: Provider) -> bool:
    """Tells whether a provider of this dialect may have a Batch API that is known here."""
    return provider.dialect in ("openai", "azure", "anthropic")


def weight_of(policy: PolicySnapshot, target: Target, split: Mapping[str, int]) -> int:
    """Returns the weight of a target's provider, which a split names by its name in the config."""
    provider = policy.providers[target.provider]
    return split.get(provider.group or provider.name, 0) if split else 1


def may_take(provider: Provider) -> bool:
    """Tells whether the gateway itself has an account there: a caller's own credential is not kept."""
    return provider.api_key is not None or provider.base_url.startswith(EMULATOR)


def _turn(weights: Sequence[int], number: int) -> int:
    """Returns whose turn the `number`-th is: each so often as its weight, spread evenly."""
    taken = [0] * len(weights)
    for _ in range(number % sum(weights)):
        taken[_next(weights, taken)] += 1
    return _next(weights, taken)


def _next(weights: Sequence[int], taken: Sequence[int]) -> int:
    return min(range(len(weights)), key=lambda one: ((taken[one] + 1) / weights[one], one))
