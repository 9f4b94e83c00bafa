"""Replicas that share a limit: together they use all of it and no more, whatever becomes of the store."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.errors import KeyRateLimited
from gateway.core.limits.limit_table import CONTINUOUS, Limits, Style
from gateway.core.snapshot import Key
from tests.core.fleet import Replica, SharedPools, admitted, fleet
from tests.support.virtual import LoopClock, run


def key(**limits: float) -> Key:
    return Key("web", "web", b"web", limits=Limits(**limits))  # type: ignore[arg-type]  # fields by name


async def overload(replicas: list[Replica], loads: list[float], for_s: float) -> None:
    """So many calls per second at each; those that cannot be served in time are refused."""
    await asyncio.gather(*[one.offer(load, for_s) for one, load in zip(replicas, loads, strict=True)])


@pytest.mark.parametrize("size", [2, 8])
def test_replicas_use_a_limit_up_together(size: int) -> None:
    """At three times the limit, unevenly spread: what refills is used within two percent, and nothing beyond it."""

    async def story(clock: LoopClock) -> int:
        _, replicas = fleet(clock, size, Limits(requests_per_min=600, request_burst=10))
        start = clock.now
        weights = [number + 1 for number in range(size)]
        await overload(replicas, [30 * weight / sum(weights) for weight in weights], 30)
        return admitted(replicas, start, start + 30)

    assert run(story) == pytest.approx(310, rel=0.02)


def test_a_few_calls_per_minute_are_shared_exactly() -> None:
    """Three per minute among eight: three at once, and then one every twenty seconds, whoever asks."""

    async def story(clock: LoopClock) -> tuple[int, int]:
        _, replicas = fleet(clock, 8, Limits(requests_per_min=3))
        start = clock.now
        await overload(replicas, [0.2] * 8, 60)
        return admitted(replicas, start, start + 5), admitted(replicas, start, start + 60.5)

    assert run(story) == (3, 6)


def test_a_call_that_finds_something_held_does_not_wait() -> None:
    """Under even load admission takes no time at all, from the first calls on."""

    async def story(clock: LoopClock) -> tuple[float, int]:
        store, (replica,) = fleet(clock, 1, Limits(requests_per_min=60_000))
        await replica.offer(100, 1)
        waits = [*replica.bench.meter.waits]
        rounds = store.rounds
        await replica.offer(1000, 4)
        assert len(replica.bench.meter.waits) == len(waits)
        return max((wait for _, wait in waits), default=0.0), store.rounds - rounds

    longest_s, rounds = run(story)
    assert longest_s < 0.01
    assert rounds < 400


def test_slots_are_shared() -> None:
    """Four at a time, over all replicas; who waits goes when one elsewhere ends."""

    async def story(clock: LoopClock) -> tuple[int, int]:
        _, replicas = fleet(clock, 3, Limits(max_concurrency=4))
        most, running = 0, 0

        async def one(replica: Replica) -> None:
            nonlocal most, running
            call = replica.bench.call(received_at=clock.now, deadline=clock.now + 60)
            attempt = await replica.admission.enter(call)
            running += 1
            most = max(most, running)
            await clock.sleep(0.5)
            running -= 1
            replica.admission.outcomes.settle(call, attempt, None)

        start = clock.now
        await asyncio.gather(*[one(replica) for replica in replicas for _ in range(8)])
        return most, round(clock.now - start)

    most, took_s = run(story)
    assert most == 4
    assert took_s <= 9


def test_without_the_store_each_lives_on_its_part_and_no_burst_follows() -> None:
    """Thirty seconds without: the limit is kept but for one part; when it is back, nothing comes twice."""

    async def story(clock: LoopClock) -> tuple[int, int, int]:
        store, replicas = fleet(clock, 4, Limits(requests_per_min=600, request_burst=20))
        start = clock.now
        load = asyncio.ensure_future(overload(replicas, [20.0, 10.0, 10.0, 5.0], 60))
        await clock.sleep(15)
        store.turn(False)
        await clock.sleep(30)
        store.turn(True)
        await load
        return (
            admitted(replicas, start + 5, start + 15),
            admitted(replicas, start + 15, start + 45),
            admitted(replicas, start + 45, start + 55),
        )

    before, during, after = run(story)
    assert before == pytest.approx(100, rel=0.03)
    assert 240 <= during <= 300 + 600 / 60 * 30 / 4
    assert after == pytest.approx(100, rel=0.05)


def test_a_store_that_forgot_everything_gives_no_second_burst() -> None:
    """It comes back empty: the replicas know the level, and full is not what they tell it."""

    async def story(clock: LoopClock) -> int:
        store, replicas = fleet(clock, 2, Limits(requests_per_min=600, request_burst=300))
        load = asyncio.ensure_future(overload(replicas, [20.0, 20.0], 50))
        await clock.sleep(30)
        store.turn(False)
        await clock.sleep(5)
        store.pools.clear()
        back_at = clock.now
        store.turn(True)
        await load
        return admitted(replicas, back_at, back_at + 10)

    assert run(story) <= 100 * 1.1


def test_a_key_is_not_refused_for_what_another_replica_holds() -> None:
    """What is not held here is asked for; what lies idle elsewhere comes within a second or two."""

    async def story(clock: LoopClock) -> tuple[int, int, int]:
        web = key(requests_per_min=100)
        _, replicas = fleet(clock, 2, Limits(), [web])
        first = await asyncio.gather(*[replicas[0].call(key=web) for _ in range(50)])
        second = await asyncio.gather(*[replicas[1].call(key=web) for _ in range(50)])
        await clock.sleep(2)
        third = await asyncio.gather(*[replicas[1].call(key=web) for _ in range(20)])
        return sum(first), sum(second), sum(third)

    first, second, third = run(story)
    assert first == 50
    assert second >= 40
    assert first + second + third in range(97, 105)


def test_a_key_that_has_used_all_of_it_is_told_when_to_come_back() -> None:
    """Refused on every replica, with the time at which there is more."""

    async def story(clock: LoopClock) -> list[Replica]:
        web = key(requests_per_min=2)
        _, replicas = fleet(clock, 2, Limits(), [web])
        for replica in (replicas[0], replicas[1], replicas[0], replicas[1]):
            await replica.call(key=web)
        return replicas

    replicas = run(story)
    assert [len(replica.admitted) for replica in replicas] == [1, 1]
    errors = [error for replica in replicas for error in replica.refused]
    assert all(isinstance(error, KeyRateLimited) for error in errors)
    assert all(20 <= (error.retry_after_s or 0) <= 61 for error in errors)


def test_a_refused_key_does_not_ask_the_store_each_time() -> None:
    """It was told that there is nothing: for a moment that is known here."""

    async def story(clock: LoopClock) -> int:
        web = key(requests_per_min=1)
        store, (replica,) = fleet(clock, 1, Limits(), [web])
        await replica.call(key=web)
        await replica.call(key=web)
        rounds = store.rounds
        for _ in range(100):
            await replica.call(key=web)
        return store.rounds - rounds

    assert run(story) <= 2


def test_what_a_replica_holds_at_its_end_is_given_back() -> None:
    """Others can use it at once, and the replica is counted no more."""

    async def story(clock: LoopClock) -> tuple[float, bool]:
        store, replicas = fleet(clock, 2, Limits(requests_per_min=600))
        await replicas[0].offer(50, 2)
        await replicas[0].sharing.aclose()
        (pool,) = store.pools.values()
        return pool.lent, replicas[0].leases.has_left

    assert run(story) == (0.0, True)


def test_a_replica_without_calls_stops_asking() -> None:
    """A minute after the last call the store hears nothing of it any more."""

    async def story(clock: LoopClock) -> int:
        store, (replica,) = fleet(clock, 1, Limits(requests_per_min=6000))
        await replica.offer(50, 2)
        await clock.sleep(60)
        rounds = store.rounds
        await clock.sleep(60)
        return store.rounds - rounds

    assert run(story) == 0


def test_a_round_that_is_not_answered_is_asked_again() -> None:
    """A single slow operation of a store that is not gone: whoever waits is served by the next round."""

    async def story(clock: LoopClock) -> bool:
        store, (replica,) = fleet(clock, 1, Limits(requests_per_min=60))
        store.is_up = False
        call = asyncio.ensure_future(replica.call())
        await clock.sleep(0.02)
        store.is_up = True
        return await call

    assert run(story)


@pytest.mark.parametrize("window_s", [None, 10.0])
def test_shares_follow_a_reload(window_s: float | None) -> None:
    """A lower limit holds from then on, for what was leased as well; so does another way of counting."""

    async def story(clock: LoopClock) -> int:
        _, (replica,) = fleet(clock, 1, Limits(requests_per_min=6000))
        await replica.offer(50, 1)
        limits = replica.admission.gates.lines["p0/m"].gate.limits
        style = CONTINUOUS if window_s is None else Style(request_window_s=window_s)
        limits.table.configure(Limits(requests_per_min=60, request_burst=10), clock.now, style)
        start = clock.now
        await replica.offer(20, 60)
        return replica.admitted_between(start, start + 60)

    assert 55 <= run(story) <= 71


def test_slots_of_calls_that_run_survive_a_reload() -> None:
    """Another way of counting requests says nothing about them; a cap that is removed and put back begins with none."""

    async def story(clock: LoopClock) -> tuple[bool, bool]:
        _, (replica,) = fleet(clock, 1, Limits(requests_per_min=6000, max_concurrency=2))
        running = [asyncio.ensure_future(replica.call(lasts_s=5)) for _ in range(2)]
        await clock.sleep(0.1)
        limits = replica.admission.gates.lines["p0/m"].gate.limits
        limits.table.configure(
            Limits(requests_per_min=6000, max_concurrency=2), clock.now, Style(request_window_s=10.0)
        )
        refused = await replica.call(deadline=clock.now + 1)
        limits.table.configure(Limits(requests_per_min=6000), clock.now)
        await asyncio.gather(*running)
        limits.table.configure(Limits(requests_per_min=6000, max_concurrency=2), clock.now)
        return refused, all(await asyncio.gather(*[replica.call(lasts_s=1) for _ in range(2)]))

    assert run(story) == (False, True)


def test_a_budget_is_spent_by_all_replicas_together() -> None:
    """What one spends counts for the others a moment later; alone, each goes on from what it has heard."""

    async def story(clock: LoopClock) -> tuple[list[bool], list[bool]]:
        web = Key("web", "web", b"web", budget_usd_per_day=1.0)
        store, replicas = fleet(clock, 2, Limits(), [web])
        call = replicas[0].bench.call(key=web)
        assert await replicas[1].call(key=web)
        replicas[0].admission.budgets.spent(call, 0.7)
        await clock.sleep(1.5)
        replicas[1].admission.budgets.spent(call, 0.4)
        for replica in replicas:  # who has not looked for long may let one call through
            await replica.call(key=web)
        await clock.sleep(1.5)
        together = [await replica.call(key=web) for replica in replicas]
        store.turn(False)
        store.pools.clear()
        await clock.sleep(1)
        store.turn(True)
        await clock.sleep(1)
        return together, [await replica.call(key=web) for replica in replicas]

    together, after = run(story)
    assert together == [False, False]
    assert after == [False, False]


def test_what_is_charged_ahead_fits_the_budget_of_all_replicas_together() -> None:
    """Whoever asks at once, with the store away, too; given back by another replica, it can be charged again."""

    async def story(clock: LoopClock) -> None:
        web = Key("web", "web", b"web", budget_usd_per_day=1.0)
        store, replicas = fleet(clock, 2, Limits(), [web])
        budgets = [replica.admission.budgets for replica in replicas]
        for one in replicas:
            assert await one.call(key=web)

        days = await asyncio.gather(*[one.charge(web, 0.6) for one in budgets])
        assert days.count(None) >= 1
        await clock.sleep(1.5)
        if days.count(None) == 2:
            assert await budgets[0].charge(web, 0.6) is not None
        assert [await one.charge(web, 0.6) for one in budgets] == [None, None]
        first, day = budgets[days[0] is None and days[1] is not None], budgets[0].today()
        await clock.sleep(1.5)
        first.correct("web", day, -0.6)
        await clock.sleep(1.5)
        assert await budgets[1].charge(web, 0.9) == day
        store.turn(False)
        await clock.sleep(5)
        assert await budgets[0].charge(web, 0.05) is None
        assert await budgets[0].charge(Key("free", "free", b""), 5.0) == day

    run(story)


def test_money_is_counted_once() -> None:
    """Whatever was lost on the way: an answer, or all that the store knew."""

    async def story(clock: LoopClock) -> list[float]:
        web = Key("web", "web", b"web", budget_usd_per_day=100.0)
        store, replicas = fleet(clock, 2, Limits(), [web])
        budgets = [replica.admission.budgets for replica in replicas]
        call = replicas[0].bench.call(key=web)
        budgets[0].spent(call, 3.0)
        await clock.sleep(1)
        store.turn(False)
        budgets[0].spent(call, 10.0)
        await clock.sleep(10)
        store.pools.clear()
        store.turn(True)
        for _ in range(3):
            await clock.sleep(1.5)
            for one in budgets:
                one._spent("web")
        return [one._spent("web") for one in budgets]

    assert run(story) == pytest.approx([13.0, 13.0])


def test_a_replica_that_has_just_started_hears_first_what_the_others_have_spent() -> None:
    """Its first call waits for that, one round trip; where there is no store it has its part of the budget."""

    async def story(clock: LoopClock) -> tuple[bool, bool, bool]:
        web = Key("web", "web", b"web", budget_usd_per_day=1.0)
        store, (first,) = fleet(clock, 1, Limits(), [web])
        first.admission.budgets.spent(first.bench.call(key=web), 1.0)
        await clock.sleep(1)
        newcomer = Replica(store, "new", Limits(), [web])
        refused = await newcomer.call(key=web)
        store.turn(False)
        store.replicas = 4
        lonely = Replica(store, "lonely", Limits(), [web])
        lonely.admission.budgets.spent(lonely.bench.call(key=web), 0.2)
        within = await lonely.call(key=web)
        lonely.admission.budgets.spent(lonely.bench.call(key=web), 0.1)
        return refused, within, await lonely.call(key=web)

    assert run(story) == (False, True, False)


def test_a_limit_that_fails_closed_lets_nothing_through_at_the_start_either() -> None:
    """Nobody has heard of the store yet: the calls wait for it."""

    async def story(clock: LoopClock) -> tuple[bool, bool]:
        store = SharedPools(clock, 1)
        store.is_up = False
        replica = Replica(store, "r", Limits(requests_per_min=60, fail_closed=frozenset({"requests_per_min"})))
        refused = await replica.call(deadline=clock.now + 1)
        waiting = asyncio.ensure_future(replica.call())
        await clock.sleep(1)
        store.turn(True)
        return refused, await waiting

    assert run(story) == (False, True)


def test_one_limit_that_cannot_be_asked_for_takes_no_other_with_it() -> None:
    """Of a cluster one server may be gone: the limits of the others go on being shared."""

    async def story(clock: LoopClock) -> int:
        store, replicas = fleet(clock, 4, Limits(requests_per_min=600, request_burst=10, max_concurrency=1000))
        store.lost = "concurrency"
        start = clock.now
        await overload(replicas, [40.0, 0.5, 0.5, 0.5], 30)
        return admitted(replicas, start, start + 30)

    assert run(story) == pytest.approx(310, rel=0.05)
