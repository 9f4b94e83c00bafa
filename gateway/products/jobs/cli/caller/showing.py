"""How jobs and batches look on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.cli.operate.showing import lay_out, moment, safe, usd

JOB_HEADINGS = ("id", "kind", "status", "model", "done", "created", "cost")
ENDS = frozenset({"succeeded", "failed", "cancelled", "expired"})
MOST_PROBLEMS = 10
"""Of a batch's input, that are printed."""


def jobs_table(page: Mapping[str, Any]) -> str:
    """Shows a page of jobs, one a line, and how to go on to the next."""
    jobs = page["data"]
    if not jobs:
        return "no jobs"
    table = lay_out([JOB_HEADINGS, *map(_row, jobs)], right=(4, 6))
    return f"{table}\nthere are more: --after {safe(page['last_id'])}" if page["has_more"] else table


def job_facts(job: Mapping[str, Any]) -> str:
    """Shows all that is known of a job, a fact a line."""
    error, attempts, usage = job["last_error"], job["attempts"], job["usage"]
    facts = [
        ("id", job["id"]),
        ("kind", job["kind"]),
        ("status", _status(job)),
        ("endpoint", job["endpoint"]),
        ("model", job["model"]),
        ("done", _done(job) if job["progress"]["total"] else None),
        ("attempts", f"{attempts['made']} of {attempts['max']}" if attempts["max"] else None),
        ("last error", f"{error['class']}: {error['message']}" if error else None),
        ("created", _at(job["created_at"])),
        ("started", _at(job["started_at"])),
        ("finished", _at(job["finished_at"])),
        ("deadline", _at(job["deadline"])),
        ("tokens", f"{usage['input_tokens']:,} input, {usage['output_tokens']:,} output"),
        ("cost", usd(job["cost_usd"])),
        *_places(job),
    ]
    return lay_out([(label, safe(fact)) for label, fact in facts if fact is not None])


def cancelled(job: Mapping[str, Any]) -> str:
    """Tells what came of the wish that a job stop."""
    if job["status"] in ENDS:
        return f"{safe(job['id'])} has ended: {job['status']}"
    return f"{safe(job['id'])} is stopping; it is {job['status']}"


def batch_progress(batch: Mapping[str, Any], paused: str | None) -> str:
    """Tells how far a batch is, in few words."""
    counts = batch["request_counts"] or {}
    total, failed = counts.get("total", 0), counts.get("failed", 0)
    words = [f"{safe(batch['id'])} {safe(batch['status'])}"]
    if total:
        words.append(f"{counts['completed'] + failed:,} of {total:,} lines")
    if failed:
        words.append(f"{failed:,} failed")
    if paused:
        words.append(f"paused: {safe(paused)}")
    return ", ".join(words)


def batch_end(batch: Mapping[str, Any], output: str | None, errors: str | None) -> str:
    """Tells how a batch has ended, and where its files are."""
    counts = batch["request_counts"]
    answered = f"{counts['completed']:,} of {counts['total']:,} lines answered" + (f": {output}" if output else "")
    failed = f"; {counts['failed']:,} failed" + (f": {errors}" if errors else "") if counts["failed"] else ""
    return f"{safe(batch['id'])} {safe(batch['status'])}; {answered}{failed}"


def batch_problems(batch: Mapping[str, Any]) -> str:
    """Tells what is wrong with the input of a batch, a problem a line."""
    found = (batch["errors"] or {}).get("data") or []
    lines = [
        f"{'' if one['line'] is None else 'line {:,}: '.format(one['line'])}{safe(one['message'])} ({safe(one['code'])})"
        for one in found[:MOST_PROBLEMS]
    ]
    more = [f"and {len(found) - MOST_PROBLEMS} more"] if len(found) > MOST_PROBLEMS else []
    return "\n".join([f"{safe(batch['id'])} has failed, and nothing of it has run", *lines, *more])


def _row(job: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        safe(job["id"]),
        safe(job["kind"]),
        _status(job),
        safe(job["model"] or "-"),
        _done(job) if job["progress"]["total"] else "-",
        _at(job["created_at"]) or "-",
        usd(job["cost_usd"]),
    )


def _status(job: Mapping[str, Any]) -> str:
    return f"{job['status']} (paused)" if job["is_paused"] else str(job["status"])


def _done(job: Mapping[str, Any]) -> str:
    progress = job["progress"]
    failed = f", {progress['failed']:,} failed" if progress["failed"] else ""
    return f"{progress['done'] + progress['failed']:,} of {progress['total']:,}{failed}"


def _places(job: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Where the answers of an ended job are."""
    batch = job.get("batch")
    if batch is None:
        return [("result", job["result"]["url"] if job["result"] else None)]
    files = (("output", batch["output_file_id"]), ("errors", batch["error_file_id"]))
    return [(label, f"/v1/files/{file_id}/content" if file_id else None) for label, file_id in files]


def _at(seconds: float | None) -> str | None:
    return None if seconds is None else moment(seconds)
