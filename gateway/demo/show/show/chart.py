"""The demos' charts as SVG, a panel per run and a bar per second: calls against the limit, or the outcomes of calls.

Of a batch the only panel has the provider's answers, and when there was no gateway; of workflows the panels have what was paid.

Pure. A chart has a background of its own, for light and dark pages. Invariants: all panels have the same scales; a bar that is
higher than its panel is cut off and labelled with its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, inf

from gateway.demo.record.reckoning import BatchRun
from gateway.demo.record.record import Fate, Run, Trial, fates_by_second, per_second
from gateway.demo.storm.storm.outage import Outage
from gateway.demo.workflow.reckoning import WorkflowArm

WIDTH, MARGIN, LEFT, PANEL, HEADING, BOTTOM, LABEL = 860, 24, 60, 130, 52, 64, 22
PLOT = WIDTH - LEFT - MARGIN

_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a } .axis { stroke: #afb8c1 }
  .ground { fill: #ffffff; stroke: #d0d7de } .cut { fill: #ffffff } .heading { font-weight: 600; fill: #1f2328 }
  .answered { fill: #2f6fde } .late { fill: #e0a100 } .refused, .failed { fill: #d9480f } .act { fill: #eaeef2 }
  .limit { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 6 4 } .end { text-anchor: end } .middle { text-anchor: middle }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .heading { fill: #f0f6fc } .ground { fill: #0d1117; stroke: #3d444d } .cut { fill: #0d1117 }
    .answered { fill: #58a6ff } .late { fill: #d9a514 } .refused, .failed { fill: #ff7b54 }
    .limit { stroke: #f0f6fc } .act { fill: #21262d } .axis { stroke: #3d444d } }
"""


def storm_chart(runs: Sequence[Run]) -> str:
    """Returns calls per second at the provider against its limit, refused ones on top; there is at least one run."""
    seconds = max(1, ceil(max(run.duration_s for run in runs)))
    bars = [per_second(run.ticks, seconds) for run in runs]
    limit = max(run.rate_per_s for run in runs)
    top = min(max(1.05 * max(sum(both) for counts in bars for both in counts), 1.5 * limit), 2.5 * limit)
    headings = [_heading(run, f"{run.seen_429s:,} 429s, over after {run.duration_s:.1f} s") for run in runs]
    panels = [[*_bars(("answered", "refused"), counts, PANEL / top, PANEL), *_cut(counts, top)] for counts in bars]
    for run, panel in zip(runs, panels, strict=True):
        y = PANEL - run.rate_per_s * PANEL / top
        panel.append(_line("limit", LEFT, WIDTH - MARGIN, y))
        panel += [_text(LEFT - 8, y + 4, f"{run.rate_per_s:g}/s", "end"), _text(LEFT - 8, PANEL + 4, "0", "end")]
    legend = _legend(("answered", 0, "answered by the provider"), ("refused", 215, "refused with a 429"))
    legend += [_line("limit", LEFT + 375, LEFT + 405, -4), _text(LEFT + 411, 0, "its limit; one bar is one second")]
    return _page("Calls per second against the limit: " + "; ".join(headings), headings, panels, seconds, legend)


def outage_chart(outage: Outage, trials: Sequence[Trial]) -> str:
    """Returns the outcomes of the calls of each second, with the provider's faults; there is at least one trial."""
    seconds = max(1, ceil(outage.seconds))
    fates = [fates_by_second(trial, seconds) for trial in trials]
    scale = (PANEL - LABEL) / max(1, *(sum(fate) for panel in fates for fate in panel))
    headings = [_heading(trial, f"{trial.late:,} of them late, {trial.failed:,} failed") for trial in trials]
    panels = [[*_acts(outage, seconds), *_bars(Fate._fields, panel, scale, inf)] for panel in fates]
    late, note = f"in more than {outage.late_s:g} s", "of the calls made in each second; shaded: trouble"
    legend = _legend(("answered", 0, "answered"), ("late", 110, late), ("failed", 260, "failed"))
    legend.append(_text(LEFT + 340, 0, note))
    return _page("What became of the calls of every second. " + ". ".join(headings), headings, panels, seconds, legend)


def batch_chart(run: BatchRun) -> str:
    """Returns the provider's answers of each second against its limit, and the times without a gateway."""
    seconds = max(1, ceil(run.duration_s))
    counts = [0] * seconds
    before = 0
    for at_s, answered in run.seen:
        counts[min(int(at_s), seconds - 1)] += answered - before
        before = answered
    top = max(1.5 * run.rate_per_s, 1.05 * max(counts))
    y = PANEL - run.rate_per_s * PANEL / top
    panel = [*_away(run, seconds), *_bars(("answered",), [(count,) for count in counts], PANEL / top, PANEL)]
    panel += [_line("limit", LEFT, WIDTH - MARGIN, y), _text(LEFT - 8, y + 4, f"{run.rate_per_s:g}/s", "end")]
    panel.append(_text(LEFT - 8, PANEL + 4, "0", "end"))
    head = f"A batch of {run.lines:,} lines: {len(run.answered):,} answered, {run.results_twice} twice"
    head += f", {run.paid_twice} paid twice, over after {run.duration_s:.1f} s"
    legend = _legend(("answered", 0, "answered by the provider"), ("act", 215, "no gateway"))
    legend += [_line("limit", LEFT + 330, LEFT + 360, -4), _text(LEFT + 366, 0, "its limit; one bar is one second")]
    return _page(head, [head], [panel], seconds, legend)


def _away(run: BatchRun, seconds: int) -> Iterator[str]:
    for kill, away_s in zip(run.kills, run.away_s, strict=False):
        x, width = LEFT + kill.at_s * PLOT / seconds, away_s * PLOT / seconds
        yield f'<rect class="act" x="{x:.1f}" y="0" width="{width:.1f}" height="{PANEL}"/>'
        yield _text(x + width / 2, 15, "kill -9", "middle")


def workflow_chart(arms: Sequence[WorkflowArm]) -> str:
    """Returns the steps that were paid in each second, those paid again on top, and the kills; there is at least one way."""
    seconds = max(1, ceil(max(arm.duration_s for arm in arms)))
    paid = [arm.paid_by_second(seconds) for arm in arms]
    most = max(1, *(sum(both) for counts in paid for both in counts))
    panels = [
        [*_kills(arm, seconds), *_bars(("answered", "failed"), counts, (PANEL - LABEL) / most, inf)]
        for arm, counts in zip(arms, paid, strict=True)
    ]
    heads = [
        f"{arm.name[:1].upper()}{arm.name[1:]}: {arm.whole:,} of {arm.runs:,} runs met no failure, {arm.repaid:,} steps paid"
        f" again, ${arm.usd_per_run:.4f} a run"
        for arm in arms
    ]
    legend = _legend(("answered", 0, "steps paid"), ("failed", 130, "paid again"), ("act", 250, "no gateway"))
    legend.append(_text(LEFT + 390, 0, "one bar is one second; marks: kill -9 of the program"))
    return _page("Steps paid in every second. " + ". ".join(heads), heads, panels, seconds, legend)


def _kills(arm: WorkflowArm, seconds: int) -> Iterator[str]:
    for kill in arm.kills:
        x, end = (LEFT + (at - arm.began_at) * PLOT / seconds for at in (kill.at, kill.back_at))
        if kill.whom == "gateway":
            yield f'<rect class="act" x="{x:.1f}" y="0" width="{end - x:.1f}" height="{PANEL}"/>'
        else:
            yield f'<line class="limit" x1="{x:.1f}" y1="{LABEL}" x2="{x:.1f}" y2="{PANEL}"/>'
        yield _text((x + end) / 2, 15, "kill -9", "middle")


def _heading(run: Run | Trial, rest: str) -> str:
    return f"{run.name[:1].upper()}{run.name[1:]}: {run.answered:,} of {run.calls:,} calls answered, {rest}"


def _page(title: str, heads: list[str], panels: list[list[str]], seconds: int, legend: list[str]) -> str:
    """Returns a whole chart; its title is for screen readers."""
    total, group = len(panels) * (HEADING + PANEL) + BOTTOM, '<g transform="translate(0 {})">\n{}\n</g>'
    parts = [f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>"]
    parts.append(f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{total - 1}" rx="8"/>')
    for index, (head, panel) in enumerate(zip(heads, panels, strict=True)):
        panel = [_text(LEFT, -14, head, "heading"), *panel, _line("axis", LEFT, WIDTH - MARGIN, PANEL)]
        parts.append(group.format(index * (HEADING + PANEL) + HEADING, "\n".join(panel)))
    step = next((step for step in (1, 2, 5, 10, 20, 60, 120, 300, 600) if seconds / step <= 10), 3600)
    marks = [_text(LEFT + at * PLOT / seconds, 20, f"{at} s", "middle") for at in range(0, seconds + 1, step)]
    parts += [group.format(total - BOTTOM, "\n".join(marks)), group.format(total - 16, "\n".join(legend))]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" width="{WIDTH}" height="{total}" role="img">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _bars(kinds: Sequence[str], counts: Sequence[Sequence[int]], scale: float, most: float) -> Iterator[str]:
    """Yields bars stacked from the first kind up to `most`, without parts of height 0."""
    slot, gap = PLOT / len(counts), min(1.0, PLOT / len(counts) / 4)
    for second, parts in enumerate(counts):
        lower = 0.0
        for kind, count in zip(kinds, parts, strict=True):
            upper = min(lower + count * scale, most)
            if upper > lower:
                at = f'x="{LEFT + second * slot + gap:.1f}" y="{PANEL - upper:.1f}"'
                yield f'<rect class="{kind}" {at} width="{slot - 2 * gap:.1f}" height="{upper - lower:.1f}"/>'
            lower = upper


def _cut(counts: Sequence[Sequence[int]], top: float) -> Iterator[str]:
    slot = PLOT / len(counts)
    cut = [second for second, both in enumerate(counts) if sum(both) > top]
    for second in cut:
        yield f'<rect class="cut" x="{LEFT + second * slot:.1f}" y="10" width="{slot:.1f}" height="3"/>'
    if cut:
        x, side = ((cut[-1] + 1) * slot + 6, "start") if cut[-1] < len(counts) / 2 else (cut[0] * slot - 6, "end")
        yield _text(LEFT + x, 16, f"up to {max(map(sum, counts)):,} calls a second", side)


def _acts(outage: Outage, seconds: int) -> Iterator[str]:
    for act in outage.acts:
        x, end = (LEFT + share * outage.seconds / seconds * PLOT for share in (act.start, act.end))
        yield f'<rect class="act" x="{x:.1f}" y="0" width="{end - x:.1f}" height="{PANEL}"/>'
        yield _text((x + end) / 2, 15, act.label, "middle")


def _legend(*entries: tuple[str, int, str]) -> list[str]:
    square = '<rect class="{}" x="{}" y="-10" width="12" height="12"/>'
    return [square.format(kind, LEFT + x) + _text(LEFT + x + 18, 0, text) for kind, x, text in entries]


def _line(kind: str, x1: float, x2: float, y: float) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y:.1f}" x2="{x2}" y2="{y:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
