"""How several workers that start at once compile together what each of them will import.

On a fresh clone each would compile the gateway and rewrite every test module by itself, for a quarter of a minute. Each
begins at another place instead, so that it finds compiled what the others have done when it comes there.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def compile_in_turn(collected: Iterable[str], *, spared: Path | None) -> None:
    """Compile what is not yet, and import the test modules of these folders, if this is one worker of several.

    Nobody will collect the folder that is `spared`.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1:
        return
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    helpers = [path for top in ("gateway", "tests") for path in ROOT.joinpath(top).rglob("*.py") if not _is_test(path)]
    for path in _from_its_turn(helpers, number / count):
        if not Path(cache_from_source(path)).exists():
            with suppress(OSError, SyntaxError):  # who imports it will tell
                SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    tests = [
        path for folder in collected for path in Path(folder).resolve().rglob("test_*.py") if path.parent != spared
    ]
    for path in _from_its_turn(tests, number / count):
        with suppress(Exception, pytest.skip.Exception):  # who collects it will tell
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def _is_test(path: Path) -> bool:
    return path.name.startswith("test_") or path.name == "conftest.py"


def _from_its_turn(paths: list[Path], part: float) -> list[Path]:
    """All of them, beginning after this part of their bytes."""
    paths = sorted(paths)
    rest = part * sum(path.stat().st_size for path in paths)
    for place, path in enumerate(paths):
        if rest <= 0:
            return paths[place:] + paths[:place]
        rest -= path.stat().st_size
    return paths
