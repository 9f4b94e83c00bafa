"""Runs as a table of text, one column each. Pure; it must not know where it is printed."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.demo.run import Run

_LABELS = (
    "",
    "calls answered",
    "calls failed",
    "429s the app saw",
    "upstream calls",
    "  of these wasted",
    "tokens answered",
    "time",
    "  ideal: the limit alone",
    "wait for an answer, p50",
    "added by the gateway, p50",
)


def table_of(runs: Sequence[Run]) -> str:
    """Lines without a trailing newline, as wide as their longest entries."""
    return lay_out([_LABELS, *map(_column, runs)])


def lay_out(columns: Sequence[Sequence[str]]) -> str:
    """Columns side by side, the first one of labels; a rule below their headings."""
    widths = [max(map(len, column)) for column in columns]
    rows = zip(*columns, strict=True)
    lines = ["   ".join([label.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for label, *cells in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _column(run: Run) -> tuple[str, ...]:
    return (
        run.name,
        f"{run.answered:,} of {run.calls:,}",
        f"{run.failed:,}",
        f"{run.seen_429s:,}",
        f"{run.upstream_calls:,}",
        f"{run.wasted_calls:,} ({run.wasted_calls / max(1, run.upstream_calls):.0%})",
        f"{run.tokens:,}",
        f"{run.duration_s:.1f} s",
        _ideal(run),
        or_dash(run.wait_p50_s, "{:.1f} s"),
        or_dash(run.added_p50_ms, "{:.2f} ms"),
    )


def _ideal(run: Run) -> str:
    """With the ratio only where everything was answered: giving up early is not fast."""
    ratio = f" ({run.duration_s / run.ideal_s:.2f}x)" if run.ideal_s and run.answered == run.calls else ""
    return or_dash(run.ideal_s, "{:.1f} s") + ratio


def or_dash(value: float | None, form: str) -> str:
    """A value in its form; a dash for what there was nothing to measure of."""
    return "-" if value is None else form.format(value)
