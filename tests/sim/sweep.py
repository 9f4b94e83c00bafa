"""The sweeps of `make sim`: what admission does under each load, at each size, for many tenants, with other settings.

Each point is a world of its own, run for a while of virtual time; points run side by side in several processes. It must
not know how results are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Counting, Holding
from gateway.core.types import LANES, Lane, QueueBounds
from tests.sim.limits import Refill
from tests.sim.provider import Latency, Provider
from tests.sim.score import jain, percentile
from tests.sim.traffic import Caller, Sizes, burst, poisson
from tests.sim.world import Site, World

LOADS = (0.5, 0.8, 0.95, 1.05, 1.5, 2.0, 4.0, 10.0)
RATES = (10, 30, 100, 300, 1000, 3000, 10_000)
TENANTS = (1, 3, 10, 30, 100, 300, 1000)
RESERVES = (0.0, 5.0, 10.0, 20.0, 40.0)
AGEINGS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)
SIZES = Sizes(300, 0.8, 120, 0.7)
_MEAN_TOKENS = 450
"""What a call of these sizes is charged on average, the larger of input and output."""
_WARM_SHARE = 0.25
"""Of a run, before its waits and shares count."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One run: a provider of `rate_per_s`, and `load` times as many calls as it takes."""

    load: float = 1.0
    rate_per_s: float = 1000.0
    seconds: float = 60.0
    tenants: int = 20
    lanes: tuple[tuple[Lane, float], ...] = (("interactive", 0.2), ("batch", 0.5), ("background", 0.3))
    error_sigma: float = 0.2
    tells: bool = True
    binds: Literal["requests", "tokens"] = "requests"
    """Which of the provider's limits calls run into."""
    reserve_percent: float = 10.0
    aged_percent: float = 5.0
    burst_s: float = 1.0
    seed: int = 1


@dataclass(slots=True)
class Point:
    """What came of it. Waits are of calls that were answered, and so are the tenants' shares."""

    setting: Setting
    offered: int = 0
    answered_per_s: float = 0.0
    goodput: float = 0.0
    """Answered, of what the provider can take at most (all that is offered, if that is less)."""
    waits_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Median and 99th percentile by lane."""
    answered: dict[str, float] = field(default_factory=dict)
    """Of the calls of each lane that have ended, the share that was answered."""
    lane_share: dict[str, float] = field(default_factory=dict)
    """Of the answers, by lane."""
    refused_early: float = 0.0
    upstream_429s: float = 0.0
    fairness: float = 1.0
    cpu_us_per_call: float = 0.0


def run(setting: Setting) -> Point:
    """Run one world."""
    world = _world(setting)
    names = [f"t{number}" for number in range(setting.tenants)]
    sizes = replace(SIZES, error_sigma=setting.error_sigma)
    offered_per_s = setting.load * setting.rate_per_s
    if setting.binds == "tokens":  # what is there at the start, but for the reserve, goes first
        large = Sizes(setting.rate_per_s * 60 * _MEAN_TOKENS / 100, output_tokens=1)
        world.clock.start(burst(world, Caller("interactive", sizes=large), 90))
    for lane, share in setting.lanes:
        for name, part in _parts(names):
            caller = Caller(lane, [name], sizes)
            world.clock.start(poisson(world, caller, offered_per_s * share * part, setting.seconds))
    started = time.process_time()
    world.run(for_s=setting.seconds * _WARM_SHARE)
    before = _mark(world)
    world.run(for_s=setting.seconds * (1 - _WARM_SHARE))
    return _point(setting, world, before, time.process_time() - started)


def sweeps(seconds: float) -> dict[str, list[Setting]]:
    """All settings, by the name of their sweep. `seconds` of virtual time for most of them."""
    usual = Setting(seconds=seconds)
    return {
        "load": [replace(usual, load=load) for load in LOADS],
        "load, no headers": [replace(usual, load=load, tells=False) for load in LOADS],
        "load, by tokens": [replace(usual, load=load, binds="tokens") for load in LOADS],
        "rate": [_of_rate(usual, rate) for rate in RATES],
        "tenants": [_of_tenants(usual, tenants) for tenants in TENANTS],
        "reserve": [
            replace(
                usual, load=1.5, rate_per_s=100, reserve_percent=percent, lanes=(("interactive", 0.5), ("batch", 0.5))
            )
            for percent in RESERVES
        ],
        "ageing": [
            replace(
                usual,
                load=2.0,
                seconds=3 * usual.seconds,
                rate_per_s=300,
                aged_percent=percent,
                lanes=(("interactive", 0.75), ("background", 0.25)),
            )
            for percent in AGEINGS
        ],
    }


def run_all(
    settings: dict[str, list[Setting]], executor: Executor, on_point: Callable[[str, Point], None]
) -> dict[str, list[Point]]:
    """Run all of them; the longest first, told as they end."""
    flat = [(name, index, one) for name, some in settings.items() for index, one in enumerate(some)]
    flat.sort(key=lambda item: -item[2].load * item[2].rate_per_s * item[2].seconds)
    found: dict[str, dict[int, Point]] = {name: {} for name in settings}
    points: Iterable[Point] = executor.map(run, [one for _, _, one in flat])
    for (name, index, _), point in zip(flat, points, strict=True):
        found[name][index] = point
        on_point(name, point)
    return {name: [points[index] for index in sorted(points)] for name, points in found.items()}


def as_facts(points: dict[str, list[Point]]) -> dict[str, Any]:
    """As JSON can say it."""
    return {name: [asdict(point) for point in some] for name, some in points.items()}


def _world(setting: Setting) -> World:
    per_min = setting.rate_per_s * 60
    latency = Latency(0.4, 0.5, tokens_per_s=80, reach_s=0.005, reach_jitter_s=0.02)
    headers, retry_after = ("openai", "ms") if setting.tells else ("none", "none")
    at_once = max(1.0, setting.rate_per_s * setting.burst_s)
    if setting.binds == "requests":
        limit = Refill("requests", per_min, at_once)
        told = Limits(requests_per_min=per_min, request_burst=at_once)
    else:
        limit = Refill("tokens", per_min * _MEAN_TOKENS)
        told = Limits(tokens_per_min=per_min * _MEAN_TOKENS)
    provider = Provider("p0", [limit], latency, headers, retry_after)  # type: ignore[arg-type]  # literals
    return World(
        [Site(provider, told, Counting(kind="openai", charge="max"))],
        Holding(reserve_percent=setting.reserve_percent),
        QueueBounds(age_after_s={"batch": 5.0, "background": 10.0}, aged_percent=setting.aged_percent),
        seed=setting.seed,
        keeps=False,
    )


def _of_tenants(usual: Setting, tenants: int) -> Setting:
    """Long enough for each of them to be served a hundred times, and so loud that each has work all the time."""
    seconds = max(usual.seconds, 0.15 * tenants)
    load = 1.5 * (1 + (tenants > 1) * 9 / tenants)
    return replace(usual, load=load, tenants=tenants, seconds=seconds, lanes=(("batch", 1.0),))


def _of_rate(usual: Setting, rate: float) -> Setting:
    """As many calls at each rate, but not for less than a minute or more than an hour."""
    return replace(usual, load=1.5, rate_per_s=rate / 1.5, seconds=min(3600.0, max(30.0, 60_000 / rate)))


def _parts(names: Sequence[str]) -> list[tuple[str, float]]:
    """What each tenant offers, as a part of all: the first ten times as much as each of the others."""
    whole = len(names) + 9
    return [(name, (10 if index == 0 else 1) / whole) for index, name in enumerate(names)]


def _mark(world: World) -> dict[str, Any]:
    score = world.score
    return {
        "offered": score.offered,
        "outcomes": score.outcomes.copy(),
        "tokens": score.tokens.copy(),
        "waits": {lane: len(waits) for lane, waits in score.waits.items()},
        "attempts": score.attempts,
        "refused": score.refused_upstream,
    }


def _point(setting: Setting, world: World, before: dict[str, Any], cpu_s: float) -> Point:
    score = world.score
    span_s = setting.seconds * (1 - _WARM_SHARE)
    outcomes = score.outcomes - before["outcomes"]
    offered = score.offered - before["offered"]
    waits = {lane: score.waits[lane][before["waits"][lane] :] for lane in LANES if outcomes[lane, "ok"]}
    answered = sum(len(some) for some in waits.values())
    ended = {lane: sum(number for (of, _), number in outcomes.items() if of == lane) for lane in LANES}
    early = sum(
        number for (_, what), number in outcomes.items() if what in ("queue_wait_exceeds_deadline", "queue_full")
    )
    tokens = score.tokens - before["tokens"]
    return Point(
        setting,
        offered=score.offered,
        answered_per_s=answered / span_s,
        goodput=answered / min(offered, setting.rate_per_s * span_s),
        waits_s={lane: (percentile(some, 50), percentile(some, 99)) for lane, some in waits.items()},
        answered={lane: outcomes[lane, "ok"] / ended[lane] for lane in LANES if ended[lane]},
        lane_share={lane: len(some) / answered for lane, some in waits.items()},
        refused_early=early / offered,
        upstream_429s=(score.refused_upstream - before["refused"]) / max(1, score.attempts - before["attempts"]),
        fairness=jain(tokens[f"t{number}"] for number in range(setting.tenants)),
        cpu_us_per_call=cpu_s * 1e6 / score.offered,
    )
