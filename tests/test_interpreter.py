"""An interpreter that was built to be slow is told, and no other."""

from __future__ import annotations

import pytest

from gateway.process import doubt, judge

FAST = "-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall"


@pytest.mark.parametrize(
    ("configured", "flags", "prefix", "is_debug"),
    [
        (
            "'--prefix=/opt/pyenv/versions/3.11.7' '--enable-shared'",
            FAST,
            "/opt/pyenv/versions/3.11.7",
            False,
        ),
        ("'--enable-optimizations'", "-Og -g -O0", "/opt/python", False),
        ("'--with-pydebug'", "-g -Wall", "/usr", False),
        ("'--enable-optimizations'", FAST, "/usr", True),
    ],
    ids=["no profile", "last flag counts", "no flag", "debug"],
)
def test_slow_builds_are_doubted(configured: str, flags: str, prefix: str, is_debug: bool) -> None:
    """Those that compile as they come, and those for debugging."""
    assert judge(configured, flags, prefix=prefix, is_debug=is_debug)


@pytest.mark.parametrize(
    ("configured", "flags", "prefix"),
    [
        ("'--enable-optimizations' '--with-lto'", FAST, "/usr/local"),
        ("'--enable-shared' '--prefix=/usr' '--with-dtrace'", "-g -fwrapv -O2 -Wall", "/usr"),
        ("'--enable-shared'", f"{FAST} -fprofile-use", "/opt/python"),
        ("", "", "C:\\Python312"),
    ],
    ids=["container image", "distribution", "profile in the flags", "a build that tells nothing"],
)
def test_fast_builds_are_not_doubted(configured: str, flags: str, prefix: str) -> None:
    """Those with a profile, told or known, and those of which nothing is known."""
    assert judge(configured, flags, prefix=prefix, is_debug=False) is None


def test_the_one_that_runs_can_be_judged() -> None:
    """Whatever it is, nothing is raised."""
    assert doubt() is None or doubt()
