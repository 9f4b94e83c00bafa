"""Sweeps of which every run sees the cases that tell something of their own, and `make soak` all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], telling: Callable[..., object]) -> list[Any]:
    """Returns the cases for `pytest.mark.parametrize`; those that are not `telling` are marked for the soak.

    A case that is a tuple gives several parameters, as it does there; `telling` gets each as an argument.
    """
    chosen: list[Any] = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        chosen.append(case if telling(*values) else pytest.param(*values, marks=pytest.mark.soak))
    return chosen
