"""The rules that hold for the jobs of runs, whatever else is said of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from gateway.core.limits.estimate.estimate import text_tokens
from gateway.core.snapshot.snapshot.snapshot import PolicySnapshot
from gateway.products.jobs.rules import JobRules, SegmentRules
from gateway.products.pipelines.compile.compiling.plan import MOST_ITEMS
from gateway.products.pipelines.rules.carried import AT_ONCE, RETRIES
from gateway.products.pipelines.templates.splitting import Count

RUNS: Final = "(runs)"
"""The segment of runs: they only decide, so that none of them waits for a call to end."""
RUNS_AT_ONCE: Final = 50
MOST_INPUT_BYTES: Final = 1 << 30


def run_segment() -> SegmentRules:
    """Returns the segment of runs."""
    return SegmentRules(RUNS, concurrency=RUNS_AT_ONCE)


def rules_of_items(rules: JobRules, about: Mapping[str, Any]) -> JobRules:
    """Returns the rules of a step's items, from those of their model: as many at a time as the step says, and here."""
    batches = replace(
        rules.batches,
        run="flex" if rules.batches.asks_for_flex else "here",
        max_lines=MOST_ITEMS,
        max_bytes=MOST_INPUT_BYTES,
        mixed_models=True,
        most_at_once=about[AT_ONCE],
    )
    if RETRIES in about:
        return replace(rules, batches=batches, attempts=about[RETRIES] + 1, by_cost=())
    return replace(rules, batches=batches)


def count_of(policy: PolicySnapshot, name: str) -> Count:
    """Returns what counts the tokens of a model: its tokenizer where that is loaded, else what texts of their kind have."""
    model = policy.find_model(name)
    for target in model.targets if model is not None else ():
        find = target.counting.exact_tokens
        exact = None if find is None else find(target.model or name)
        if exact is not None:
            return exact
    return text_tokens
