"""Never worse than straight: the same calls in the same trouble, straight to a provider and through the whole gateway.

The property draws faults and clients at random; the named cases are what it has found, and what bulk programs meet. A bound
that is looser than the promise says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Lane
from tests.rows import rows
from tests.sim.scenario import Clients, Fate, Result, Scenario, Target, Trouble, play

LANE_WAIT_S = {"critical": 30.0, "interactive": 300.0, "batch": 600.0, "background": 21600.0}
"""For how long the gateway holds a call whose client tells no timeout."""
RECOVERY_S = 10.0
"""Within this time after a target's trouble all that waits is served, with stray errors and answers of a second."""
PROBES_PER_S = 1 / 1.5
"""The tries at a target in trouble, while calls wait that have nothing else."""
FIRST_TRIES = 5
"""The failures that show that there is trouble."""
LOST_TO_STRAYS = 2
"""Of at most sixty calls."""
MOST_OF_ONE = 3 + 10
"""The tries of a call that fails whatever the time: three attempts, and those that count for none as long as nobody else is
served. Each of the client's own tries may cost as many."""
FEWEST = 5
"""Fewer calls that get 500s are not told from calls whose content fails: each ends after its attempts, as an SDK's would."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Breakers that open and close by the thousand are not worth a line each."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


errors: st.SearchStrategy[Fate] = st.sampled_from([503, 500, 0])
spans = st.tuples(st.sampled_from([0.0, 0.3, 2.0, 8.0]), st.sampled_from([0.3, 1.0, 3.0, 12.0, 20.0]), errors)
troubles = st.lists(spans.map(lambda one: Trouble(one[0], one[0] + one[1], one[2])), max_size=2).map(tuple)
targets = st.builds(
    Target,
    answer_s=st.sampled_from([0.3, 1.0]),
    troubles=troubles,
    stray_percent=st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    stray=errors,
    slow_percent=st.sampled_from([0.0, 5.0]),
)
clients = st.builds(
    Clients,
    calls=st.sampled_from([1, 5, 10, 30, 60]),
    every_s=st.sampled_from([0.0, 0.05, 0.5]),
    lane=st.sampled_from(["interactive", "batch", "background"]),
    retries=st.sampled_from([0, 2, 10]),
    timeout_s=st.sampled_from([None, 60.0, 600.0]),
    is_sdk=st.booleans(),
    poison=st.sampled_from(
        [None, None, 400, 429, 500]
    ),  # 503 alone for ever is an outage, and waited for to the deadline
)
scenarios = st.builds(
    Scenario,
    targets=st.one_of(st.tuples(targets), st.tuples(targets, targets)),
    clients=st.tuples(clients),
    fallback=st.booleans(),
    seed=st.integers(0, 10_000),
)


def lost_in_vain(scenario: Scenario, through: Result) -> list[str]:
    """The calls that were lost, though their time allowed two tries at a moment when the first target was well."""
    (client,), target = scenario.clients, scenario.targets[0]
    if all(one.troubles for one in scenario.targets[1:]) and len(scenario.targets) > 1:
        return []  # in trouble at both, a call's attempts are spent sooner than either is known to be in trouble
    is_few = client.calls < FEWEST or client.every_s > 0.1
    if is_few and any(trouble.fate == 500 for one in scenario.targets for trouble in one.troubles):
        return []
    if max(one.stray_percent for one in scenario.targets) > 5:
        return []
    told_s = client.timeout_s if client.is_sdk else None
    wait_s = min(told_s or LANE_WAIT_S[client.lane], client.timeout_s or LANE_WAIT_S[client.lane])
    well_at = max([one.ends_s for one in target.troubles], default=0.0)
    slow_s = target.slow_s if target.slow_percent else target.answer_s
    lost = [name for name, one in through.ended.items() if one.status != 200 and not (client.poison and name == "a0")]
    return [
        name
        for name in lost
        if through.ended[name].began_s + wait_s >= max(well_at, through.ended[name].began_s) + RECOVERY_S + 2 * slow_s
    ]


def most_requests(scenario: Scenario, straight: Result, through: Result) -> float:
    """The requests that providers may see: 5 % more than straight, one for each call saved, and those that find out."""
    (client,) = scenario.clients
    in_trouble_s = sum(one.ends_s - one.begins_s for target in scenario.targets for one in target.troubles)
    in_vain = 1 / (1 - max(one.stray_percent for one in scenario.targets) / 100)
    most = 1.05 * straight.requests + in_vain * len(through.served - straight.served)
    if len(scenario.targets) > 1:  # what fails at one target is tried at the other
        most += len({name for _, name, _, status in through.asked if status != 200})
    most += sum(FIRST_TRIES * (1 + len(one.troubles)) for one in scenario.targets) + in_trouble_s * PROBES_PER_S
    if client.poison == 429:  # it is waited for until the call's deadline
        most += sum(name == "a0" for _, name, _, _ in through.asked)
    elif client.poison is not None:
        most += MOST_OF_ONE * len(scenario.targets) * (client.retries + 1)
    return most


@given(scenarios)
def test_no_call_is_lost_that_is_served_straight(scenario: Scenario) -> None:
    """Nor one that had the time, and providers see hardly more requests than without a gateway."""
    straight, through = play(scenario, is_straight=True), play(scenario, is_straight=False)

    has_strays = any(one.stray_percent for one in scenario.targets)
    has_many = len(scenario.targets) > 1 and max(one.stray_percent for one in scenario.targets) > 5
    # Where one error in five is a stray and both targets are in trouble, attempts are spent at the one that is down.
    assert len(through.served) >= len(straight.served) - (1 if has_many else 0)
    # A stray error is an attempt, also of a call that trouble meets next.
    assert len(lost_in_vain(scenario, through)) <= (LOST_TO_STRAYS if has_strays else 0)
    assert through.requests <= most_requests(scenario, straight, through)


# What it has found.


@rows(
    ("every_s", "answer_s", "retries"),
    [(0.1, 0.3, 0), (0.1, 3.0, 0), (0.5, 3.0, 0), (2.0, 0.3, 0), (2.0, 3.0, 2)],
)
def test_calls_that_trickle_into_an_outage_wait_for_its_end(every_s: float, answer_s: float, retries: int) -> None:
    """503 for 20 s amid steady calls: nobody is lost. What was sent before the outage proves nothing."""
    outage = Target(answer_s=answer_s, troubles=(Trouble(20.0, 40.0, 503),))
    calls = Clients(calls=round(60 / every_s), every_s=every_s, retries=retries)
    through = play(Scenario((outage,), (calls,)), is_straight=False)

    assert len(through.served) == calls.calls
    assert through.requests <= calls.calls + 20 * PROBES_PER_S + 30


@rows(("slow_percent", "fate"), [(5.0, None), (0.0, "hangs")])
def test_an_sdk_tries_again_after_its_own_timeout(slow_percent: float, fate: Fate | None) -> None:
    """Answers that take longer than the SDK waits, now and then or for a while: as many are served as straight."""
    hung = () if fate is None else (Trouble(0.3, 12.3, fate),)
    target = Target(answer_s=1.0, troubles=hung, slow_percent=slow_percent)
    scenario = Scenario((target,), (Clients(calls=60, every_s=0.05, timeout_s=10.0),))
    straight, through = play(scenario, is_straight=True), play(scenario, is_straight=False)

    assert len(straight.served) == len(through.served) == 60


def test_an_sdks_own_retries_are_not_multiplied() -> None:
    """A call that always fails costs what its SDK tries, and two more; the others are served."""
    scenario = Scenario(clients=(Clients(calls=30, every_s=0.5, retries=10, poison=500),))
    straight, through = play(scenario, is_straight=True), play(scenario, is_straight=False)

    assert (len(straight.served), len(through.served)) == (29, 29)
    assert straight.requests == 29 + 11
    assert through.requests <= 29 + 11 + 2


# Limits.


@rows(
    ("window", "tells", "is_written", "lane", "least_percent", "most_each"),
    [
        ("bucket", "headers", True, "interactive", 95, 1.05),
        ("bucket", "headers", True, "batch", 95, 1.05),
        # When the minute slides, several calls find out at once.
        ("sliding", "headers", True, "interactive", 95, 1.07),
        ("sliding", "hints", False, "batch", 95, 1.13),
        ("sliding", "headers", True, "batch", 90, 1.05),
        ("sliding", "headers", False, "batch", 90, 1.07),
        # A limit that nobody has written or told is searched for: from one call at a time, once two refusals have shown it.
        ("bucket", "hints", False, "interactive", 84, 1.15),
        ("bucket", "nothing", False, "batch", 78, 1.2),
        ("sliding", "nothing", False, "batch", 69, 1.3),
        # Without a time to wait, a minute that slides is taken for a bucket.
        ("sliding", "nothing", True, "batch", 87, 1.15),
    ],
)
def test_a_true_limit_is_used(
    window: Literal["bucket", "sliding"],
    tells: Literal["headers", "hints", "nothing"],
    is_written: bool,
    lane: Lane,
    least_percent: float,
    most_each: float,
) -> None:
    """Two hundred calls at once, sixty a minute: until the last one is let in, so much of what the limit allows is used."""
    target = Target(rpm=60.0, window=window, tells=tells, written_rpm=60.0 if is_written else None)
    scenario = Scenario(
        (target,), (Clients(calls=200, lane=lane, timeout_s=None if lane == "batch" else 600.0),), warm=0
    )
    through = play(scenario, is_straight=False)

    last_s = max(at for at, _, _, status in through.asked if status == 200)
    ideal_s = 199.0 if window == "bucket" else 180.0
    assert len(through.served) == 200
    assert 100 * ideal_s / last_s >= least_percent
    assert through.requests <= most_each * 200
