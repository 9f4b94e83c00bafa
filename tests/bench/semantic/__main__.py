"""`python -m tests.bench.semantic --model FOLDER`: how well meanings are told apart. README.md says how to read it."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from tests.bench.semantic import pairs, plot, score
from tests.bench.semantic.score import Judged, Row

RESULTS = Path(__file__).parent / "results"
SHOWN = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 0.99)
HALVES = ("held-out", "dev")


def main() -> int:
    """Judge every pair, print the table, write table.csv, table.json and table.png."""
    options = _options()
    judged = score.judge(pairs.load(), options.model)
    rows = [row for half in HALVES for row in score.table(judged, half)]
    _print_table(rows)
    _print_kinds(judged)
    options.output.mkdir(parents=True, exist_ok=True)
    _write(rows, options.output)
    try:
        plot.draw([row for row in rows if row.half == "held-out"], options.output / "table.png")
    except ImportError:
        _say("no picture: matplotlib is not installed")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.semantic", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder with model.safetensors and tokenizer.json")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the files go (default: %(default)s)")
    options: argparse.Namespace = parser.parse_args()
    return options


def _print_table(rows: Sequence[Row]) -> None:
    for half in HALVES:
        _say(f"\n{half}\nrule         cosine  recall  manners       false hits  strangers  precision")
        for row in rows:
            if row.half == half and row.threshold in SHOWN:
                false = f"{row.false_hits}/{row.near_misses} {row.false_rate:.2%}"
                _say(
                    f"{row.rule:<12}{row.threshold:>7.2f}{row.recall:>8.1%}{row.recall_manners:>9.1%}"
                    f"{false:>17}{row.stranger_hits:>11}{row.precision:>11.1%}"
                )


def _print_kinds(judged: Sequence[Judged]) -> None:
    """Near misses of the held-out half by what sets them apart: how many look alike, and who objected."""
    ours = [one for one in judged if one.pair.half == "held-out" and one.pair.sort == "near miss"]
    _say("\nheld-out near misses by kind: pairs, of them with a cosine of 0.8 or more, first objections")
    for kind, pairs_of_kind in Counter(one.pair.kind for one in ours).most_common():
        same = [one for one in ours if one.pair.kind == kind]
        objections = Counter(one.objection or "NONE" for one in same)
        alike = sum(one.cosine >= 0.8 for one in same)
        _say(f"{kind:<12}{pairs_of_kind:>5}{alike:>5}  " + ", ".join(f"{n} {c}" for n, c in objections.most_common()))


def _write(rows: Sequence[Row], folder: Path) -> None:
    (folder / "table.json").write_text(json.dumps(score.as_json(rows), indent=1) + "\n")
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(
            {name: round(value, 5) if isinstance(value, float) else value for name, value in row.items()}
            for row in score.as_json(rows)
        )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
