"""What jobs add to the numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gateway.core.metrics import SECONDS, Counts, Distribution, Levels, Metrics, MetricTable
from gateway.core.types import Lane
from gateway.products.jobs.dead_letters.rules import DeadGroup
from gateway.products.jobs.model import Job, JobDepth, JobState, LineResult


class WorkMetrics(MetricTable):
    """The metrics of what jobs are made of, and of what is kept and sent of them."""

    after = "lossy_fields_total"

    def __init__(self) -> None:
        self.jobs_degraded = Counts(
            "jobs_degraded_total", "Calls that became jobs where they would have been refused.", "code"
        )
        self.job_lines = Counts("job_lines_total", "Lines of batches with a result.", "outcome")
        self.job_claims_lost = Counts("job_leases_lost_total", "Pieces of work that were taken over from this gateway.")
        self.brakes = Counts("batch_brakes_total", "Batches slowed down to single tries.", "class")
        self.runs_early = Counts(
            "run_records_early_total",
            "Runs with steps, and steps, that were forgotten before their time for want of room.",
        )
        self.responses_early = Counts(
            "kept_responses_early_total", "Kept responses that were forgotten before their time for want of room."
        )
        self.native_parts = Levels("native_parts", "Parts of batches at providers' own Batch APIs now.", "state")
        self.webhooks = Counts(
            "webhook_deliveries_total",
            "Attempts to tell webhooks something, by what they came to.",
            "endpoint",
            "result",
        )


class JobMeter(MetricTable):
    """Counts jobs, and what becomes of them. Every method is cheap and synchronous, and never raises."""

    after = "shed_level"

    def __init__(self, metrics: Metrics) -> None:
        """`metrics` are those of the core: what lines cost at a provider's own Batch API is counted as that of calls."""
        self._metrics = metrics
        self.work = WorkMetrics()
        self.jobs = Counts("jobs_total", "Durable jobs that have ended, by how.", "kind", "outcome")
        self.jobs_depth = Levels("jobs_depth", "Pieces of jobs: ready, for later, claimed.", "segment", "lane", "state")
        self.jobs_oldest = Levels(
            "jobs_oldest_seconds", "How long the oldest of them could have begun.", "segment", "lane", "state"
        )
        self.dead_letters = Levels("dlq_depth", "Dead letters: work that failed for good.", "kind", "class")
        self.dead_oldest = Levels("dlq_oldest_seconds", "How long the oldest of them is there.", "kind", "class")
        self.replays = Counts(
            "dlq_replays_total", "Dead letters that were run again, by how that ended.", "class", "outcome"
        )
        self.job_waits = Distribution("job_wait_seconds", "From a job's time to its begin.", SECONDS)
        self.job_runs = Distribution("job_run_seconds", "From a job's begin to its end.", SECONDS, "kind")
        self.job_attempts = Counts(
            "job_attempts_total", "Attempts of jobs and lines with another behind them.", "class"
        )

    def began(self, job: Job, waited_s: float) -> None:
        """Counts a job whose first piece has begun, so long after it could have."""
        self.job_waits.observe((), max(0.0, waited_s))

    def ended(self, job: Job, state: JobState, ran_s: float) -> None:
        """Counts a job that has ended, so long after it began."""
        self.jobs.totals[str(job.kind), str(state)] += 1
        self.job_runs.observe((str(job.kind),), max(0.0, ran_s))

    def tried_again(self, error_class: str) -> None:
        """Counts an attempt that came to nothing, after which there is another."""
        self.job_attempts.totals[(error_class,)] += 1

    def lines(self, results: Sequence[LineResult]) -> None:
        """Counts lines of batches whose results were committed."""
        failed = sum(result.is_failed for result in results)
        self.work.job_lines.totals[("failed",)] += failed
        self.work.job_lines.totals[("completed",)] += len(results) - failed

    def claim_lost(self) -> None:
        """Counts a claim that ended while its worker still worked on it."""
        self.work.job_claims_lost.totals[()] += 1

    def braked(self, error_class: str) -> None:
        """Counts a batch that was slowed down to single tries."""
        self.work.brakes.totals[(error_class,)] += 1

    def degraded(self, code: str) -> None:
        """Counts a call that became a job where it would have been refused with this code."""
        self.work.jobs_degraded.totals[(code,)] += 1

    def delivered(self, endpoint: str, result: str) -> None:
        """Counts an attempt to tell a webhook something; `endpoint` is its name in the config."""
        self.work.webhooks.totals[endpoint, result] += 1

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
        self.work.runs_early.totals[()] = number

    def set_early_responses(self, number: int) -> None:
        """Sets how many kept responses were forgotten for want of room."""
        self.work.responses_early.totals[()] = number

    def set_native_parts(self, parts: Mapping[str, int]) -> None:
        """Sets how many parts are at providers now, by how far they have come."""
        self.work.native_parts.values = {(state,): number for state, number in parts.items()}

    def dead(self, groups: Sequence[DeadGroup], now: float) -> None:
        """Sets how many dead letters there are; `now` is wall-clock seconds."""
        depth: dict[tuple[str, ...], float] = {}
        oldest: dict[tuple[str, ...], float] = {}
        for group in groups:
            labels = (str(group.kind), group.error_class)
            depth[labels] = depth.get(labels, 0) + group.number
            oldest[labels] = max(oldest.get(labels, 0.0), now - group.oldest_at)
        self.dead_letters.values, self.dead_oldest.values = depth, oldest

    def redriven(self, error_class: str, *, is_ok: bool) -> None:
        """Counts the end of a dead letter's redrive."""
        self.replays.totals[error_class, "ok" if is_ok else "failed"] += 1

    def set_depth(self, depth: Mapping[tuple[str, Lane, str], JobDepth], now: float) -> None:
        """Sets what waits and runs now; `now` is wall-clock seconds."""
        self.jobs_depth.values = {labels: of.number for labels, of in depth.items()}
        self.jobs_oldest.values = {labels: max(0.0, now - of.oldest_at) for labels, of in depth.items() if of.number}
