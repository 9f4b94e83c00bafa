"""How the answers of `/admin/cache` and `/admin/stats` look on a terminal, and what `gateway cache why` is asked about.

It must not know the gateway's inside, only its HTTP. Whatever a client or a provider has named is shown so that no terminal
takes it for a command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from gateway.cli.admin import AdminRefused, lay_out, safe

By = Literal["layer", "model", "key"]

HEADINGS = ("calls", "hits", "rate", "tokens saved", "money saved")
PROVIDER = "provider"
"""The line for those whom no layer could spare: keep in sync with `flow.savings.PROVIDER`."""
UNITS = ("B", "KiB", "MiB", "GiB")
LONGEST_NAME = 255
"""Of a file; whatever is longer is none."""


def question(text: str, standard_input: TextIO) -> dict[str, Any] | None:
    """The request that is asked about: `-` is standard input, the name of a file that file; None: it is a call's id.

    Raises OSError for a `.json` file that is not there, AdminRefused for what is no JSON object.
    """
    is_file = text.endswith(".json") or (len(text) <= LONGEST_NAME and Path(text).is_file())
    if text != "-" and not is_file:
        return None
    try:
        body = json.loads(standard_input.read() if text == "-" else Path(text).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # the latter: brackets without end
        body = None
    if not isinstance(body, dict):
        raise AdminRefused(f"{text} is no JSON object; give the body of a request, or a call's id", is_misuse=True)
    return body


def stats_table(answer: Mapping[str, Any], by: By) -> str:
    """What was saved, one layer, model or key a line, and the sum of all calls."""
    rows = [(by, *HEADINGS), *(_stats_row(name, row) for name, row in answer[f"{by}s"].items())]
    return lay_out([*rows, _stats_row("total", answer["total"])], right=range(1, len(rows[0])))


def cache_table(answer: Mapping[str, Any]) -> str:
    """What is kept and how much may be, one kind a line, and what came of it so far."""
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
    """How much was forgotten."""
    count = answer["forgotten"]
    return f"{count:,} {'answer' if count == 1 else 'answers'} forgotten" if count else "nothing matched"


def story(answer: Mapping[str, Any]) -> str:
    """How a call was spared its provider or was not, or how one would fare now."""
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


def size(count: float) -> str:
    """Bytes, in a unit that keeps the number short."""
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
    """In one sentence."""
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
    """In dollars; what has no known price is not free."""
    unpriced = f"{row['unpriced']:,} not priced" if row["unpriced"] else ""
    if unpriced and not row["usd"]:
        return unpriced
    return f"{_usd(row['usd'])} + {unpriced}" if unpriced else _usd(row["usd"])


def _usd(amount: float) -> str:
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
    price = "at a price not known" if saved["usd"] is None else _usd(saved["usd"])
    return f"{saved['input_tokens']:,} input and {saved['output_tokens']:,} output tokens, {price}"
