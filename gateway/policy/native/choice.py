"""Which lines of batches may go to a provider's own Batch API, and to whose. Asked again before each part is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gateway.policy.batches.line_rules import key_named
from gateway.policy.batches.marks import ENDPOINT, MODELS
from gateway.policy.jobs.job import Job
from gateway.policy.jobs.lines import ChunkPlan
from gateway.policy.jobs.rules import BatchRules
from gateway.policy.snapshot import PolicySnapshot, Provider, Target
from gateway.words import EMULATOR

ENDPOINTS: Final = frozenset(
    f"/v1/{name}"
    for name in ("chat/completions", "responses", "embeddings", "completions", "moderations", "images/generations")
)
"""That some provider's Batch API takes; one that does not take all of them refuses the part, which then runs here.

Source: https://platform.openai.com/docs/api-reference/batch/create
"""
CHECKED_ENDPOINTS: Final = frozenset(("/v1/chat/completions", "/v1/responses"))
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
    if job.about[ENDPOINT] not in ENDPOINTS:
        raise NoPart(f"no provider's Batch API has {job.about[ENDPOINT]}")
    model = policy.find_model(model_name)
    if model is not None and model.output is not None and job.about[ENDPOINT] in CHECKED_ENDPOINTS:
        raise NoPart(f"the answers of '{model_name}' are checked (output), which is done call by call")
    own = [one for one in model.targets if may_take(policy.providers[one.provider])] if model is not None else []
    if not own:
        raise NoPart(f"no provider of '{model_name}' has an api_key in the config")
    path = str(job.about[ENDPOINT]).removeprefix("/v1")
    own = [one for one in own if path not in one.detours]
    if not own:
        raise NoPart(
            f"no provider of '{model_name}' has {job.about[ENDPOINT]} itself: such calls are converted one by one"
        )
    split = rules.native.split
    found = [one for one in own if weight_of(policy, one, split)] if split else own[:1]
    if not found:
        raise NoPart(f"no provider of '{model_name}' is in native.split")
    return found


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
