"""What jobs add to the numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gateway.core.metrics import Metrics
from gateway.core.types import Lane
from gateway.products.jobs.dead_letters.rules import DeadGroup
from gateway.products.jobs.model import Job, JobDepth, JobState, LineResult


class JobMeter:
    """Counts jobs, and what becomes of them. Every method is cheap and synchronous, and never raises."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def began(self, job: Job, waited_s: float) -> None:
        """Counts a job whose first piece has begun, so long after it could have."""
        self._metrics.job_waits.observe((), max(0.0, waited_s))

    def ended(self, job: Job, state: JobState, ran_s: float) -> None:
        """Counts a job that has ended, so long after it began."""
        self._metrics.jobs.totals[str(job.kind), str(state)] += 1
        self._metrics.job_runs.observe((str(job.kind),), max(0.0, ran_s))

    def tried_again(self, error_class: str) -> None:
        """Counts an attempt that came to nothing, after which there is another."""
        self._metrics.job_attempts.totals[(error_class,)] += 1

    def lines(self, results: Sequence[LineResult]) -> None:
        """Counts lines of batches whose results were committed."""
        failed = sum(result.is_failed for result in results)
        self._metrics.job_lines.totals[("failed",)] += failed
        self._metrics.job_lines.totals[("completed",)] += len(results) - failed

    def claim_lost(self) -> None:
        """Counts a claim that ended while its worker still worked on it."""
        self._metrics.job_claims_lost.totals[()] += 1

    def braked(self, error_class: str) -> None:
        """Counts a batch that was slowed down to single tries."""
        self._metrics.brakes.totals[(error_class,)] += 1

    def degraded(self, code: str) -> None:
        """Counts a call that became a job where it would have been refused with this code."""
        self._metrics.jobs_degraded.totals[(code,)] += 1

    def delivered(self, endpoint: str, result: str) -> None:
        """Counts an attempt to tell a webhook something; `endpoint` is its name in the config."""
        self._metrics.webhooks.totals[endpoint, result] += 1

    def paid(
        self, model: str, target: str, key: str, results: Sequence[LineResult], estimated: Collection[int] = ()
    ) -> None:
        """Counts what lines have used and cost at a provider's own Batch API, all by their names in the config; `estimated` are
        the numbers of those of which it has told too little."""
        tokens, cost = self._metrics.tokens.totals, self._metrics.cost.totals
        for result in results:
            tokens[model, target, "input", key] += result.input_tokens
            tokens[model, target, "output", key] += result.output_tokens
            if result.cached_tokens:
                tokens[model, target, "cached_input", key] += result.cached_tokens
            if result.cost_usd:
                cost[model, target, key] += result.cost_usd
            if result.line in estimated:
                self._metrics.estimated.totals[model, target] += 1
                self._metrics.estimated_cost.totals[model, target, key] += result.cost_usd

    def lost(self, target: str, gaps: Mapping[tuple[str, str], int]) -> None:
        """Counts fields of lines that did not reach a provider's own Batch API as they were said, by field and how."""
        for (field, how), lines in gaps.items():
            self._metrics.lossy_fields.totals[target, field, how] += lines

    def set_early_runs(self, number: int) -> None:
        """Sets how many runs, and steps of runs that stay, were forgotten for want of room."""
        self._metrics.runs_early.totals[()] = number

    def set_early_responses(self, number: int) -> None:
        """Sets how many kept responses were forgotten for want of room."""
        self._metrics.responses_early.totals[()] = number

    def set_native_parts(self, parts: Mapping[str, int]) -> None:
        """Sets how many parts are at providers now, by how far they have come."""
        self._metrics.native_parts.values = {(state,): number for state, number in parts.items()}

    def dead(self, groups: Sequence[DeadGroup], now: float) -> None:
        """Sets how many dead letters there are; `now` is wall-clock seconds."""
        depth: dict[tuple[str, ...], float] = {}
        oldest: dict[tuple[str, ...], float] = {}
        for group in groups:
            labels = (str(group.kind), group.error_class)
            depth[labels] = depth.get(labels, 0) + group.number
            oldest[labels] = max(oldest.get(labels, 0.0), now - group.oldest_at)
        self._metrics.dead_letters.values, self._metrics.dead_oldest.values = depth, oldest

    def replayed(self, error_class: str, *, is_ok: bool) -> None:
        """Counts the end of a dead letter's replay."""
        self._metrics.replays.totals[error_class, "ok" if is_ok else "failed"] += 1

    def set_depth(self, depth: Mapping[tuple[str, Lane, str], JobDepth], now: float) -> None:
        """Sets what waits and runs now; `now` is wall-clock seconds."""
        self._metrics.jobs_depth.values = {labels: of.number for labels, of in depth.items()}
        self._metrics.jobs_oldest.values = {
            labels: max(0.0, now - of.oldest_at) for labels, of in depth.items() if of.number
        }
