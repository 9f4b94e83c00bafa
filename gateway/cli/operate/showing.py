"""How the answers of the admin API look on a terminal.

Whatever a client or a provider has named is shown so that no terminal takes it for a command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

By = Literal["layer", "model", "key"]

TARGET_HEADINGS = ("", "state", "next probe", "in flight", "p95", "failures", "reason")
SAVINGS_HEADINGS = ("calls", "hits", "rate", "tokens saved", "money saved")
PROVIDER = "provider"
"""The line for those whom no layer could spare: keep in sync with `flow.reuse.stats.PROVIDER`."""
UNITS = ("B", "KiB", "MiB", "GiB")


def claimed(answer: Mapping[str, Any]) -> str:
    """Tells how many objects are the tenant's now, and which are somebody else's, one a line."""
    count, others = answer["claimed"], answer["others"]
    told = f"{_count(count, 'object')} at {safe(answer['provider'])} now of {safe(answer['tenant'])}"
    lines = [f"{safe(id)} is {safe(owner)}'s already; --move gives it all the same" for id, owner in others.items()]
    return "\n".join([told, *lines])


def flagged(answer: Mapping[str, Any]) -> str:
    """Tells of each job what came of the wish that it stand still, or go on."""
    words = {"done": "is paused" if answer["action"] == "pause" else "goes on", "ended": "has ended"}
    words["unknown"] = "is no job of this gateway's"
    return "\n".join(f"{safe(id)} {told}" for name, told in words.items() for id in answer[name])


def retried(answer: Mapping[str, Any]) -> str:
    """Tells of each job what came of the wish that it be tried again."""
    lines = []
    for one in answer["done"]:
        what = f"runs again as {safe(one['job'])}" if one["job"] else f"{_count(one['letters'], 'dead line')} run again"
        lines.append(f"{safe(one['id'])} {what}; gateway dlq show {safe(one['replay'])} shows how far it is")
    lines += [f"{safe(one['id'])} {safe(one['why'])}" for one in answer["refused"]]
    return "\n".join([*lines, *(f"{safe(id)} is no job of this gateway's" for id in answer["unknown"])])


def table(shown: Mapping[str, Any]) -> str:
    """Shows targets, then accounts, one a line."""
    rows = [TARGET_HEADINGS, *(_row(name, row) for name, row in shown["targets"].items())]
    rows += [_row(f"account {name}", row) for name, row in shown["accounts"].items()]
    return lay_out(rows)


def sentence(row: Mapping[str, Any]) -> str:
    """Tells the state of one target or account after a change."""
    account = row.get("account") or {"state": "closed"}
    text = f"{safe(row['name'])} is {_state(row)} ({safe(row['reason'])}), {row.get('in_flight', 0)} in flight"
    if account["state"] == "closed":
        return text
    return (
        f"{text}; no call gets there yet: its account {safe(account['name'])} is {account['state'].replace('_', ' ')}"
    )


def _row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    failures = row["failures"]
    return (
        safe(name),
        _state(row),
        _seconds(row["next_probe_s"]),
        str(row.get("in_flight", "-")),
        _p95(row.get("time_to_first_byte")),
        f"{failures['rate']:.0%} of {failures['calls']}" if failures["calls"] else "-",
        _why(row),
    )


def _state(row: Mapping[str, Any]) -> str:
    state = str(row["state"]).replace("_", " ")
    return f"{state} (ramping)" if row["ramping"] else state


def _why(row: Mapping[str, Any]) -> str:
    """Tells what is in the way of calls, and for how long."""
    warning = row.get("warning")
    notes = [warning] if warning else []
    if row["last_opened_s"] is not None and not (warning and warning.startswith(row["reason"])):
        notes.append(row["reason"])
    account = row.get("account")
    if account and account["state"] != "closed":
        notes.append(f"account {account['name']} is {account['state'].replace('_', ' ')}")
    if row.get("quota_spent_s"):
        notes.append(f"quota spent for {_seconds(row['quota_spent_s'])}")
    elif row.get("paused_s"):
        notes.append(f"paused for {_seconds(row['paused_s'])}")
    if row.get("credential_refused"):
        notes.append("credential refused")
    return safe("; ".join(notes)) or "-"


def _p95(times: Mapping[str, Any] | None) -> str:
    """Tells the time of the first byte of streams; where there are none, of whole answers."""
    if times is None:
        return "-"
    streams = times["streams"]["p95_s"]
    return _seconds(times["whole_answers"]["p95_s"] if streams is None else streams)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if 0 < value < 1 else f"{value:.1f} s"


def safe(text: object) -> str:
    """Returns the text as it is, unless a terminal would take it for a command."""
    shown = str(text)
    return shown if shown.isprintable() else repr(shown)


def lay_out(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Puts cells into columns, a row a line; those of the columns `right` end below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        shown = [cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in enumerate(cells)]
        lines.append("  ".join(shown).rstrip())
    return "\n".join(lines)


def stats_table(answer: Mapping[str, Any], by: By) -> str:
    """Shows what was saved, one layer, model or key a line, and the sum of all calls."""
    rows = [(by, *SAVINGS_HEADINGS), *(_stats_row(name, row) for name, row in answer[f"{by}s"].items())]
    return lay_out([*rows, _stats_row("total", answer["total"])], right=range(1, len(rows[0])))


def cache_table(answer: Mapping[str, Any]) -> str:
    """Shows what is kept and how much may be, one kind a line, and what came of it so far."""
    bounds = answer["bounds"]
    answers = [f"{size(most)} ({safe(group)})" for group, most in bounds["answers_bytes"].items()]
    at_most = {
        "answers": ", ".join(answers) or "nothing",
        "records": size(bounds["records_bytes"]),
        "vectors": f"{bounds['vectors_per_partition']:,} per partition",
    }
    rows = [("", "entries", "size", "at most")]
    for kind, sizes in answer["kept"].items():
        rows.append((safe(kind), f"{sizes['entries']:,}", size(sizes["bytes"]), at_most.get(kind, "-")))
    return f"{lay_out(rows, right=(1, 2))}\n{_sum_up(answer['total'])}"


def purged(answer: Mapping[str, Any]) -> str:
    """Tells how many answers were forgotten."""
    count = answer["forgotten"]
    return f"{_count(count, 'answer')} forgotten" if count else "nothing matched"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def story(answer: Mapping[str, Any]) -> str:
    """Tells how a call was spared its provider or was not, or how one would fare now."""
    reasons = [*answer["why"]] or [None]
    facts = [
        ("call" if "request" in answer else "request", _whose(answer)),
        ("cache", f"{answer['result']}, by {answer['layer']}" if answer["layer"] else answer["result"]),
        ("asked", ", ".join(f"{said['layer']}: {said['result']}" for said in answer["tried"]) or "no layer"),
        ("key", answer["cache_key"]),
        ("source", _source(answer)),
        ("similarity", answer["similarity"]),
        ("saved", _saved(answer["saved"])),
        *zip(["why", *[""] * len(reasons)], reasons, strict=False),
    ]
    return lay_out([(label, safe(fact)) for label, fact in facts if fact is not None])


def moment(seconds: float) -> str:
    """Writes a time of the wall clock."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"


def size(count: float) -> str:
    """Writes a number of bytes in a unit that keeps it short."""
    unit = 0
    while count >= 1024 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:,.0f} {UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {UNITS[unit]}"


def _stats_row(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    if name == PROVIDER:
        return name, f"{row['calls']:,}", "-", "-", "-", "-"
    tokens = row["input_tokens"] + row["output_tokens"]
    return safe(name), f"{row['calls']:,}", f"{row['hits']:,}", _rate(row), f"{tokens:,}", _money(row)


def _sum_up(total: Mapping[str, Any]) -> str:
    """Sums up all calls in one sentence."""
    if not total["calls"]:
        return "no call that could be spared its provider has ended since the start"
    tokens = total["input_tokens"] + total["output_tokens"]
    return (
        f"since the start {total['hits']:,} of {total['calls']:,} calls ({_rate(total)}) were spared their provider: "
        f"{tokens:,} tokens, {_money(total)}"
    )


def _rate(row: Mapping[str, Any]) -> str:
    return "-" if row["hit_rate"] is None else f"{row['hit_rate']:.1%}"


def _money(row: Mapping[str, Any]) -> str:
    """Writes what was saved in dollars; what has no known price is not free."""
    unpriced = f"{row['unpriced']:,} not priced" if row["unpriced"] else ""
    if unpriced and not row["usd"]:
        return unpriced
    return f"{usd(row['usd'])} + {unpriced}" if unpriced else usd(row["usd"])


def usd(amount: float) -> str:
    """Writes an amount in dollars, short."""
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.3g}"


def _whose(answer: Mapping[str, Any]) -> str:
    if "request" not in answer:
        return f"{answer['endpoint']}, tenant {answer['tenant']}"
    return (
        f"{answer['request']} ({answer['endpoint']}, {answer['model']}, key {answer['key']}, tenant {answer['tenant']})"
    )


def _source(answer: Mapping[str, Any]) -> str | None:
    if answer["source"] is None:
        return None
    target = f" at {answer['source_target']}" if answer["source_target"] else ""
    age = "" if answer["age_s"] is None else f", {answer['age_s']:,.1f} s before"
    return f"{answer['source']}{target}{age}"


def _saved(saved: Mapping[str, Any] | None) -> str | None:
    if saved is None:
        return None
    price = "at a price not known" if saved["usd"] is None else usd(saved["usd"])
    return f"{saved['input_tokens']:,} input and {saved['output_tokens']:,} output tokens, {price}"


def saved(answer: dict[str, Any], name: str) -> str:
    """Tells what has been done, and how the copy is used."""
    return (
        f"{answer['file']}: {answer['bytes']:,} bytes, checked. To use it, stop the gateway, put it in the place of the {name} "
        "file (without the -wal file that may be beside that), and start again."
    )
