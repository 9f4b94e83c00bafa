"""Public names stay: of config fields, headers, metrics, routes, log fields, error codes, commands and variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.surface.surfaces import FOLDER, admin_surface, surfaces

HOW = (
    "{name}.txt differs from the code: gone {gone}, new {new}. Users rely on these names. Where one is meant to come or go, "
    "tell it in the CHANGELOG and renew the file: python -m tests.surface.surfaces"
)
NAMES = ("config", "policies", "headers", "metrics", "log", "errors", "cli", "environment")


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """What the code has."""
    return surfaces()


def compare(name: str, lines: list[str]) -> None:
    """Hold a surface to its file."""
    known = (FOLDER / f"{name}.txt").read_text().splitlines()
    assert lines == known, HOW.format(
        name=name, gone=sorted(set(known) - set(lines)), new=sorted(set(lines) - set(known))
    )


def test_each_surface_has_its_file(found: dict[str, list[str]]) -> None:
    """None is left out of the comparison."""
    assert set(found) == set(NAMES)
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*NAMES, "admin"}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_those_that_users_know(found: dict[str, list[str]], name: str) -> None:
    """Neither gone nor new without being written down."""
    assert len(found[name]) > 5
    compare(name, found[name])


async def test_routes_and_their_fields_are_those_that_users_know(tmp_path: Path) -> None:
    """As a running gateway answers them."""
    compare("admin", await admin_surface(tmp_path))
