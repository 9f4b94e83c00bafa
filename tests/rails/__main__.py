"""Writes the figures of the rails down where they have become better: `python -m tests.rails`.

A figure that has become worse stays as it is, and the tests go on failing: whoever has a reason for it changes
`rails.json` by hand and says the reason in the commit.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import uvloop

from tests.rails import house, walk
from tests.rails.test_rails import RAILS, this_python


def better_of(old: Any, new: Any) -> Any:
    """Return the smaller of two figures, and of two lists or tables what both have, so that nothing comes back."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: better_of(old[name], new[name]) for name in old if name in new}
    if isinstance(old, list) and isinstance(new, list):
        return [one for one in old if one in new]
    return min(old, new)


def main() -> int:
    """Measure, and write what is better; return the exit code."""
    old = json.loads(RAILS.read_text())
    by_python = dict(old["walk"])
    found = uvloop.run(walk.measure())
    by_python[this_python()] = better_of(by_python[this_python()], found) if this_python() in by_python else found
    kept = {"house": better_of(old["house"], house.measure()), "walk": by_python}
    RAILS.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")
    sys.stdout.write(f"{RAILS.name} has the best figures\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
