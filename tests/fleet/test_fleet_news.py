"""Three replicas that tell each other: what all know a moment later, what nobody repeats, and who of them probes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from gateway.core.admission.gates import MOST_NAMED
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.headers import Learned, Reading
from gateway.core.ports import PeerMessage
from gateway.core.snapshot import Counting, Model, Target
from gateway.core.types import LANES
from gateway.fleet import news
from gateway.fleet.breakers import FleetView
from gateway.fleet.news import (
    FIRST_GO,
    HAND_S,
    LIMIT_GRAIN_S,
    LOOK_AGAIN_S,
    MOST_KEPT,
    REMIND_S,
    SLOT_S,
    BreakerMove,
    FleetNews,
    read_hand,
    read_limits,
    read_move,
    write_hand,
    write_limits,
    write_move,
)
from tests.rows import rows
from tests.support.bus import Bus, BusNews, Fleet, Replica
from tests.support.flow import CLOCKS, ERRORS
from tests.support.outage import answers, fails, refuses, soon
from tests.support.virtual import LoopClock, run
from tests.sweeps import sampled

RULES = BreakerRules(open_s=4.0, jitter_percent=0.0, hold_for_s={**dict.fromkeys(LANES, 0.0), "batch": 60.0})
KEEN: dict[str, Any] = {"changes": {"counting": Counting()}}
"""It learns from headers."""


def fleet(clock: LoopClock, *fates: Any, size: int = 3, **changes: Any) -> Fleet:
    changes.setdefault("breaker", RULES)
    return Fleet(clock, fates or [answers()], size, **changes)


async def tell_open(group: Fleet, who: int = 0) -> None:
    """One of them sees five failures."""
    now, breaker = group.clock.now, group.replicas[who].breaker_of()
    for _ in range(5):
        breaker.failed(breaker.take(now), now, 0.0, "timeout")
    await group.hop()


def all_at_once(group: Fleet, calls_per_s: float, for_s: float) -> asyncio.Future[Any]:
    """The same traffic at each."""
    return asyncio.gather(*[replica.traffic(calls_per_s, for_s) for replica in group.replicas])


# Pauses, quotas, limits.


def test_a_pause_of_one_is_a_pause_of_all() -> None:
    """And nobody says it again."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        group.gates()[1].leave_alone(20.0, clock.now)
        await group.hop()

        left = [gate.pauses.ends_at - clock.now for gate in group.gates()]
        assert left == pytest.approx([20.0] * 3, abs=0.02)
        assert [gate.pauses.count for gate in group.gates()] == [1, 1, 1]
        assert len(group.bus.told) == 1
        await group.settle()

    run(story)


def test_a_429_at_one_pauses_all() -> None:
    """A refused call, its Retry-After, and no attempt before its time but one each that finds out whose it is."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(429, 0.01, (b"retry-after", b"3")))
        first = group.replicas[0].start()
        await asyncio.sleep(0.03)
        others = [replica.start() for replica in group.replicas[1:]]
        await asyncio.sleep(2.5)
        assert [replica.asked() for replica in group.replicas] == [1, 1, 1]
        group.fate(answers(0.01))
        await asyncio.gather(first, *others)

        assert [replica.asked() for replica in group.replicas] == [2, 2, 2]
        assert min(replica.providers[0].asked_at[-1] for replica in group.replicas) >= 1003.0
        await group.settle()

    run(story)


def test_the_longest_pause_wins() -> None:
    """News never shortens one; each hears what is longer than its own."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        for gate, pause_s in zip(group.gates(), (3.0, 9.0, 6.0), strict=True):
            gate.leave_alone(pause_s, clock.now)
        await group.hop()

        assert [gate.pauses.ends_at - clock.now for gate in group.gates()] == pytest.approx([9.0] * 3, abs=0.02)
        group.replicas[0].gossip.on_item(PeerMessage("pause", "p0/m", 1.0))
        assert group.gates()[0].pauses.ends_at - clock.now > 8.0
        await group.settle()

    run(story)


def test_a_storm_of_refusals_is_told_a_few_times() -> None:
    """A thousand refusals within 0.2 s, each with its own Retry-After: some ten words, no echo."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        for _ in range(1000):
            for gate in group.gates():
                gate.leave_alone(1.0, clock.now)
            await asyncio.sleep(0.0002)
        await group.hop()

        assert len(group.bus.told) <= 10
        ends = [gate.pauses.ends_at for gate in group.gates()]
        assert max(ends) - min(ends) < 0.06
        await group.settle()

    run(story)


def test_a_spent_quota_is_spent_for_all() -> None:
    """Who waits for it at another replica is not kept waiting."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        group.gates()[2].leave_alone(10.0, clock.now)
        await group.hop()
        waiting = group.replicas[1].start()
        await asyncio.sleep(0.1)
        group.gates()[0].exhaust(600.0, clock.now)
        told = await waiting

        assert isinstance(told.result, str)
        assert told.took_s < 1
        assert [gate.pauses.quota_until > clock.now + 599 for gate in group.gates()] == [True] * 3
        assert len(group.bus.of_kind("quota")) == 1
        await group.settle()

    run(story)


def test_a_learned_limit_is_known_to_all() -> None:
    """What one answer tells holds for every replica; the level is each one's own, and is not told again."""

    async def story(clock: LoopClock) -> None:
        headers = (
            (b"x-ratelimit-limit-requests", b"120"),
            (b"x-ratelimit-remaining-requests", b"7"),
            (b"x-ratelimit-limit-tokens", b"30000"),
        )
        group = fleet(clock, fails(400, 0.01, *headers), **KEEN)
        for _ in range(3):
            await group.replicas[0].call()
            await group.hop()

        rows = [{row.name: row for row in gate.limits.table.rows(clock.now)} for gate in group.gates()]
        assert [row["requests_per_min"].capacity for row in rows] == [120] * 3
        assert [row["tokens_per_min"].capacity for row in rows] == [30000] * 3
        assert rows[0]["requests_per_min"].level < 8
        assert rows[1]["requests_per_min"].level == 120
        assert len(group.bus.of_kind("limit")) == 1

        group.fate(fails(400, 0.01, (b"x-ratelimit-limit-requests", b"60")))
        await asyncio.sleep(LIMIT_GRAIN_S)
        await group.replicas[2].call()
        await group.hop()

        assert [gate.limits.table.rows(clock.now)[0].capacity for gate in group.gates()] == [60] * 3
        assert len(group.bus.of_kind("limit")) == 2
        await group.settle()

    run(story)


def test_a_limit_that_still_holds_is_told_again_before_it_is_forgotten() -> None:
    """Once in half an hour, by one of them."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, **KEEN)
        group.rest()
        learned = Learned(requests=Reading(500.0, 10.0))
        for _ in range(12):
            for replica in group.replicas:
                replica.gossip.learned(replica.gate().name, learned, clock.now)
                await group.hop()
            await asyncio.sleep(600)

        assert 3 <= len(group.bus.of_kind("limit")) <= 4
        await group.settle()

    run(story)


def test_limits_that_change_with_every_answer_are_told_now_and_then() -> None:
    """Two projects behind one gate, a thousand answers within a second: each a different limit, and no flood."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, **KEEN)
        told = [Learned(requests=Reading(amount, 10.0)) for amount in (500.0, 900.0)]
        for number in range(1000):
            replica = group.replicas[number % 3]
            replica.gossip.learned(replica.gate().name, told[number % 2], clock.now)
            await asyncio.sleep(0.001)
        assert len(group.bus.of_kind("limit")) <= 3

        await asyncio.sleep(LIMIT_GRAIN_S)
        kept = read_limits(group.bus.of_kind("limit")[-1].item.detail)["requests_per_min"][0]
        other = told[kept == 500.0]
        group.replicas[0].gossip.learned(group.gates()[0].name, other, clock.now)
        assert group.bus.of_kind("limit")[-1].at == clock.now
        await group.settle()

    run(story)


def test_the_ends_that_are_known_are_bounded() -> None:
    """However many pauses last at the same time; those that last longest stay known."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=1)
        heard = group.replicas[0].gossip
        for number in range(3 * MOST_KEPT):
            heard._ends.note(("pause", f"p0/{number}"), clock.now + 1000.0 + number, clock.now)

        assert len(heard._ends.ends) <= MOST_KEPT
        assert ("pause", f"p0/{3 * MOST_KEPT - 1}") in heard._ends.ends
        await group.settle()

    run(story)


# Who comes later, and what is not there yet.


def test_who_joins_later_hears_what_still_holds() -> None:
    """A pause, an open breaker and a target drained by hand; not what is over."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, answers(), answers(), answers(), answers(), size=1)
        first = group.replicas[0]
        first.gate(0).leave_alone(20.0, clock.now)
        first.gate(1).leave_alone(1.0, clock.now)
        first.breaker_of(2).trip("no more", clock.now, 0.0)
        first.admission.health.force("p3/m", "drained")
        await asyncio.sleep(2.0)
        late = group.join()
        await group.hop()

        assert late.gate(0).pauses.ends_at == pytest.approx(first.gate(0).pauses.ends_at, abs=0.01)
        assert late.gate(1).pauses.ends_at < clock.now
        assert (late.breaker_of(2).state, late.breaker_of(2).probe_at) == ("open", 1000.0 + 4.0 * FIRST_GO)
        assert (late.breaker_of(3).state, late.breaker_of(3).is_by_hand) == ("drained", True)
        await group.settle()

    run(story)


def wildcard(replica: Replica) -> Target:
    return Target("p0/*", "p0", None, replica.providers[0], CLOCKS, errors=ERRORS, account="p0", breaker=RULES)


def with_wildcard(replica: Replica) -> Replica:
    """It serves any model."""
    target = wildcard(replica)
    models = {**replica.bench.policy.models, "*": Model("*", (target,), (target,))}
    replica.bench.policy = replace(replica.bench.policy, models=models)
    replica.admission.install(replica.bench.policy)
    return replica


def line_of(replica: Replica, model: str, credential: bytes | None = None) -> Any:
    call = replica.bench.call(model=replica.bench.policy.models["*"], model_name=model, credential=credential)
    return replica.admission.gates.line(call.route.model.targets[0], call)


def test_news_of_a_model_nobody_has_asked_for_here_waits_for_the_first_who_does() -> None:
    """Gates of a wildcard come with its calls; what has ended by then is not applied."""

    async def story(clock: LoopClock) -> None:
        bus = Bus(clock)
        one, other = (
            with_wildcard(Replica([answers_provider()], clock, breaker=RULES).joins(bus, who)) for who in (0, 1)
        )
        line_of(one, "foo").gate.leave_alone(20.0, clock.now)
        line_of(one, "bar").gate.leave_alone(1.0, clock.now)
        line_of(one, "baz").gate.health.breaker.trip("no more", clock.now, 0.0)
        one.admission.health.force("p0/qux", "drained") if line_of(one, "qux") else None
        await asyncio.sleep(2.0)

        assert line_of(other, "foo").gate.pauses.ends_at == pytest.approx(clock.now + 18.0, abs=0.01)
        assert line_of(other, "bar").gate.pauses.ends_at < clock.now
        assert line_of(other, "baz").gate.health.breaker.state == "open"
        assert line_of(other, "qux").gate.health.breaker.state == "drained"
        assert not other.gossip._unmet.items

    run(story)


def answers_provider() -> Any:
    from tests.support.outage import Provider  # beside its only use

    return Provider(answers())


def test_news_of_an_account_that_is_not_configured_yet_waits_for_it() -> None:
    """A reload comes at different times to different replicas."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=1)
        (replica,) = group.replicas
        replica.gossip.on_item(
            PeerMessage("breaker", "two", 20.0, write_move(BreakerMove(True, 1, "refused", is_refused=True)))
        )
        target = replace(wildcard(replica), name="p2/m", model="m", account="two")
        policy = replica.bench.policy
        replica.admission.install(replace(policy, models={**policy.models, "n": Model("n", (target,), (target,))}))

        account = replica.admission.gates.accounts["two"]
        assert (account.breaker.state, account.is_refused) == ("open", True)
        await group.settle()

    run(story)


def test_what_is_remembered_of_unknown_gates_is_bounded() -> None:
    """However many names others have; those that are over make room."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=1)
        heard = group.replicas[0].gossip
        for number in range(MOST_KEPT + 500):
            heard.on_item(PeerMessage("pause", f"elsewhere/{number}", 5.0))
        assert len(heard._unmet.items) == MOST_KEPT

        await asyncio.sleep(6.0)
        heard.on_item(PeerMessage("pause", "elsewhere/new", 5.0))

        assert len(heard._unmet.items) == 1
        await group.settle()

    run(story)


def test_nothing_of_a_callers_own_credential_is_told() -> None:
    """However many callers there are; their target's health is. A model whose name has an @ is told."""

    async def story(clock: LoopClock) -> None:
        bus = Bus(clock)
        one = Replica([answers_provider()], clock, breaker=RULES).joins(bus, 0)
        one.bench.policy = replace(
            one.bench.policy, providers={"p0": replace(one.bench.policy.providers["p0"], api_key=None)}
        )
        with_wildcard(one)
        gate = line_of(one, "foo", b"Bearer sk-0").gate
        for number in range(MOST_NAMED + 40):
            gate = line_of(one, "foo", b"Bearer sk-%d" % number).gate
            gate.leave_alone(20.0, clock.now)
            gate.exhaust(20.0, clock.now)
        assert "@" in gate.name
        one.admission.health.force(gate.name, "closed")
        with pytest.raises(KeyError):
            one.admission.health.force(gate.name, "drained")
        assert bus.told == []

        gate.health.breaker.trip("no more", clock.now, 0.0)
        assert bus.told == []
        gate.health.target_breaker.trip("no more", clock.now, 0.0)
        assert [(told.item.kind, told.item.name) for told in bus.told] == [("breaker", "p0/foo")]
        bus.told.clear()

        line_of(one, "@cf/foo").gate.leave_alone(20.0, clock.now)
        assert [told.item.name for told in bus.told] == ["p0/@cf/foo"]

    run(story)


@rows(
    "item",
    [
        PeerMessage("pause", "p0/m", -1.0),
        PeerMessage("pause", "p0/m", float("nan")),
        PeerMessage("quota", "p0/m", float("inf")),
        PeerMessage("breaker", "p0/m", 5.0, b"?"),
        PeerMessage("breaker", "p0/m", 5.0, b""),
        PeerMessage("hand", "p0/m", 5.0, b"explode 1234"),
        PeerMessage("hand", "p0/m", 5.0, b"\xff"),
        PeerMessage("limit", "p0/m", 5.0, b"requests_per_min=nan/60;tokens_per_min=-1/60;x=1/60;y"),
        PeerMessage("vector", "p0/m", 5.0, b"nobody listens"),
        PeerMessage("record", "p0/m", 5.0, b"nor here"),
    ],
)
def test_what_makes_no_sense_changes_nothing(item: PeerMessage) -> None:
    """Another release's, or garbage."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=1, **KEEN)
        group.replicas[0].gossip.on_item(item)

        (gate,) = group.gates()
        assert gate.pauses.ends_at < clock.now
        assert gate.health.is_clear
        assert gate.limits.table.rows(clock.now) == []
        await group.settle()

    run(story)


def test_details_survive_the_way() -> None:
    """What is written can be read; a reason is cut rather than refused."""
    move = BreakerMove(True, 300, "ü" * 200, is_refused=True)
    assert read_move(write_move(move))._replace(reason="") == BreakerMove(True, 255, "", True)  # type: ignore[union-attr]  # it is one
    assert read_move(write_move(BreakerMove(False, 2, "3 probes succeeded"))) == BreakerMove(
        False, 2, "3 probes succeeded"
    )
    assert read_hand(write_hand(None, "ab")) == (None, "ab")
    assert read_limits(write_limits({"tokens_per_min": (3e4, 60.0)})) == {"tokens_per_min": (3e4, 60.0)}


def test_other_news_goes_to_those_whom_it_concerns() -> None:
    """Vectors and purges."""

    async def story(clock: LoopClock) -> None:
        heard: list[bytes] = []
        replica = Replica([answers_provider()], clock)
        bus = Bus(clock)
        FleetNews(
            clock, BusNews(bus, 0), replica.admission, lambda: 0.5, {"vector": heard.append, "purge": heard.append}
        )
        bus.tell(1, PeerMessage("vector", "v", 0.0, b"one"), lasts=False)
        bus.tell(1, PeerMessage("purge", "p", 0.0, b"two"), lasts=False)
        await asyncio.sleep(0.1)

        assert heard == [b"one", b"two"]

    run(story)


# Breakers.


def test_an_opened_breaker_opens_all() -> None:
    """With the reason, until nearly the same time: whoever failed tries last. Each further ejection is as long as for him."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        for _ in range(5):
            group.breakers()[0].succeeded(group.breakers()[0].take(clock.now), clock.now, 0.1)
        await tell_open(group)

        assert group.states() == ["open"] * 3
        assert [breaker.failure_rate(clock.now) for breaker in group.breakers()] == [0.5] * 3
        assert group.breakers()[1].reason == "told by another replica: 5 failures in a row (timeout)"
        ends = [breaker.probe_at for breaker in group.breakers()]
        assert ends == pytest.approx([1004.0] + [1000.0 + 4.0 * FIRST_GO] * 2, abs=0.01)
        assert [breaker.ejections for breaker in group.breakers()] == [1] * 3
        assert len(group.bus.told) == 1
        await group.settle()

    run(story)


def test_an_open_one_stays_open_for_the_longest() -> None:
    """Another has seen it, too, at another time."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        await tell_open(group)
        await asyncio.sleep(2.0)
        FleetView(group.breakers()[0]).peer_opened(clock.now + 1.0, 1, "less", clock.now)
        assert group.breakers()[0].probe_at == pytest.approx(1004.0, abs=0.01)

        group.replicas[0].gossip.on_item(PeerMessage("breaker", "p0/m", 30.0, write_move(BreakerMove(True, 4, "more"))))

        assert group.breakers()[0].probe_at - clock.now == pytest.approx(30.0)
        assert group.breakers()[0].ejections == 4
        await group.settle()

    run(story)


def test_who_sees_it_well_does_not_believe_it() -> None:
    """One replica has lost its network; the others serve many calls, and go on."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        group.replicas[0].providers[0].fate = refuses()
        await asyncio.gather(*[replica.traffic(20, 5) for replica in group.replicas[1:]])
        traffic = all_at_once(group, 20, 30)
        await soon(lambda: group.breakers()[0].state == "open")
        await traffic

        for replica in group.replicas[1:]:
            assert replica.results() == {200: 700}
            assert replica.breaker_of().transitions["open"] == 0
        await group.settle()

    run(story)


@pytest.mark.parametrize(
    ("calls_per_s", "size", "for_s"),
    sampled(
        [(10, 2, 120), (1, 2, 300), (0.3, 2, 600), (0.3, 4, 600)],
        lambda calls_per_s, size, for_s: (calls_per_s, size) in ((10, 2), (0.3, 4)),
    ),
)
def test_whoever_cannot_reach_a_provider_does_not_keep_it_from_others(
    calls_per_s: float, size: int, for_s: float
) -> None:
    """One has lost its own way out, the others have just begun, or are seldom asked: they find out, and go on."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=size, breaker=BreakerRules())
        group.fates(refuses(), *[answers()] * (size - 1))
        await all_at_once(group, calls_per_s, for_s)

        for replica in group.replicas[1:]:
            assert replica.results().get(200, 0) > 0.8 * len(replica.told)
        assert 200 not in group.replicas[0].results()
        await group.settle()

    run(story)


def test_who_begins_late_does_not_wait_for_one_who_has_failed_for_long() -> None:
    """It takes the word for no longer than a first ejection; and if it was right, nobody is told to stay away for longer."""

    async def story(clock: LoopClock) -> None:
        for is_well in (True, False):
            group = fleet(clock, refuses(), size=1)
            await group.replicas[0].traffic(10, 100)
            late = group.join()
            late.providers[0].fate = answers() if is_well else refuses()
            told, began_at = len(group.bus.told), clock.now
            first_due, ejections = group.breakers()[0].probe_at, late.breaker_of().ejections
            assert group.states() == ["open"] * 2
            assert late.breaker_of().probe_at == pytest.approx(began_at + RULES.open_s)
            traffic = asyncio.ensure_future(late.traffic(4, 8))
            await asyncio.sleep(RULES.open_s + 1.5)

            if is_well:
                assert late.results(since=began_at + RULES.open_s + 0.6).keys() == {200}
            else:
                assert late.breaker_of().probe_at == pytest.approx(first_due, rel=0.1)
                assert late.breaker_of().ejections == ejections
                assert (len(group.bus.told), late.asked()) == (told, 1)
            await traffic
            await group.settle()

    run(story)


def test_who_waits_for_a_probe_that_is_put_off_is_sent_on() -> None:
    """A call that came just before the probe's time learns at once that it is later now."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503), size=1)
        (replica,) = group.replicas
        await tell_open(group)
        await asyncio.sleep(3.9)
        call = replica.start()
        await asyncio.sleep(0.02)
        assert not call.done()
        replica.gossip.on_item(PeerMessage("breaker", "p0/m", 25.0, write_move(BreakerMove(True, 2, "a probe failed"))))
        told = await call

        assert told.result == "circuit_open"
        assert told.took_s < 0.1
        await group.settle()

    run(story)


def test_what_one_has_found_well_is_well_for_all() -> None:
    """A dead provider heals: the probes of one close it everywhere, behind each one's ramp."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503))
        traffic = all_at_once(group, 20, 40)
        await soon(lambda: group.states() == ["open"] * 3)
        await asyncio.sleep(1.0)
        group.fate(answers())
        healed_at = clock.now
        await soon(lambda: group.states() == ["closed"] * 3)
        closed_at = clock.now
        await traffic

        assert closed_at - healed_at < RULES.open_s + 1.0
        reasons = sorted(breaker.reason for breaker in group.breakers())
        assert reasons == ["3 probes succeeded"] + ["told by another replica: 3 probes succeeded"] * 2
        for replica in group.replicas:
            assert set(replica.results(since=closed_at + RULES.ramp_s + 1)) == {200}
        await group.settle()

    run(story)


def test_a_refused_credential_is_refused_for_all() -> None:
    """The account's breaker, and why."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, answers(), answers(), accounts=("one", "one"))
        first = group.replicas[0]
        first.admission.health.credential_refused(first.gate(), clock.now)
        await group.hop()

        accounts = [replica.admission.gates.accounts["one"] for replica in group.replicas]
        assert [account.breaker.state for account in accounts] == ["open"] * 3
        assert [account.is_refused for account in accounts] == [True] * 3
        assert not group.gates(1)[2].health.is_clear
        assert len(group.bus.told) == 1

        group.replicas[1].gossip.on_item(
            PeerMessage("breaker", "one", 0.0, write_move(BreakerMove(False, 1, "3 probes succeeded")))
        )
        assert (accounts[1].breaker.state, accounts[1].is_refused) == ("closed", False)
        await group.settle()

    run(story)


@pytest.mark.parametrize("to", ["open", "drained"])
def test_what_is_done_by_hand_holds_for_all_until_undone(to: Any) -> None:
    """And undoing it lets one of them try."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        health = group.replicas[0].admission.health
        health.force("p0/m", to)
        await asyncio.sleep(100)
        assert [(breaker.state, breaker.is_by_hand) for breaker in group.breakers()] == [(to, True)] * 3

        group.replicas[2].admission.health.force("p0/m", None)
        await group.hop()
        assert [breaker.is_by_hand for breaker in group.breakers()] == [False] * 3
        await all_at_once(group, 20, 1)

        assert group.states() == ["closed"] * 3
        await group.settle()

    run(story)


def test_closed_by_hand_it_is_trusted_by_all() -> None:
    """Breakers, pauses and spent quotas of all are over, for those who come later, too; and heard twice it is done once."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        await tell_open(group)
        group.gates()[1].leave_alone(50.0, clock.now)
        group.gates()[2].exhaust(500.0, clock.now)
        await group.hop()
        group.replicas[0].admission.health.force("p0/m", "closed")
        await group.hop()

        assert [gate.health.is_clear and gate.pauses.ends_at < clock.now for gate in group.gates()] == [True] * 3
        late = group.join()
        assert late.gate().pauses.ends_at < clock.now
        assert late.breaker_of().transitions == {"closed": 0, "open": 0, "half_open": 0, "drained": 0}

        await tell_open(group, 1)
        _, item = group.bus.kept["hand", "p0/m"]
        group.replicas[2].gossip.on_item(item)
        assert group.states() == ["open"] * 4
        await group.settle()

    run(story)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_was_closed_by_hand_long_ago_undoes_nothing_of_now(is_first: bool) -> None:
    """Who comes later hears of pauses and breakers that came since, in whatever order; only what was set by hand is over."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, answers(), answers(), size=2)
        for name, to in (("p0/m", "drained"), ("p0/m", "closed"), ("p1/m", "closed")):
            group.replicas[0].admission.health.force(name, to)  # type: ignore[arg-type]  # these are its words
            await group.hop()
        await asyncio.sleep(3600.0)
        group.gates(0)[0].leave_alone(30.0, clock.now)
        group.breakers(1)[0].trip("ill", clock.now, 0.0)
        await group.hop()
        hands = {about: kept for about, kept in group.bus.kept.items() if about[0] == "hand"}
        rest = {about: kept for about, kept in group.bus.kept.items() if about[0] != "hand"}
        group.bus.kept = {**hands, **rest} if is_first else {**rest, **hands}
        late = group.join()

        assert late.gate(0).pauses.ends_at == pytest.approx(clock.now + 30.0, abs=0.1)
        assert (late.breaker_of(0).state, late.breaker_of(1).state) == ("closed", "open")

        late.breaker_of(0).force("drained", clock.now)  # of an act that was older still
        late.gossip._hands.acts.clear()
        late.gossip.on_item(hands["hand", "p0/m"][1]._replace(left_s=HAND_S - 3600.0))
        assert (late.breaker_of(0).state, late.gate(0).pauses.ends_at > clock.now) == ("closed", True)
        await group.settle()

    run(story)


def test_the_last_act_counts_though_an_older_one_is_heard_later() -> None:
    """Who was cut off acts, and then hears what was kept of before."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=1)
        (replica,) = group.replicas
        await asyncio.sleep(100)
        replica.admission.health.force("p0/m", "drained")
        replica.gossip.on_item(PeerMessage("hand", "p0/m", HAND_S - 50.0, write_hand("closed", "aa")))
        assert group.states() == ["drained"]

        replica.gossip.on_item(PeerMessage("hand", "p0/m", HAND_S, write_hand("closed", "bb")))
        assert group.states() == ["closed"]
        await group.settle()

    run(story)


def test_what_holds_by_hand_survives_a_store_that_has_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept again soon, and for as long as it holds; nobody hears of what he knows, and at last nobody says anything."""
    monkeypatch.setattr(news, "HAND_S", 600.0)

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, answers(), answers(), size=2)
        group.rest()
        group.replicas[0].admission.health.force("p0/m", "drained")
        await asyncio.sleep(100.0)
        group.bus.kept.clear()
        await asyncio.sleep(REMIND_S + 1.0)
        assert group.join().breaker_of().state == "drained"

        group.rest()
        await asyncio.sleep(1500.0)
        assert group.join().breaker_of().state == "drained"
        assert [breaker.transitions["drained"] for breaker in group.breakers()] == [1] * 4

        group.rest()
        group.replicas[1].admission.health.force("p0/m", "closed")
        await asyncio.sleep(2 * REMIND_S)
        told = len(group.bus.told)
        await asyncio.sleep(10 * REMIND_S)
        assert len(group.bus.told) == told
        assert group.states() == ["closed"] * 4
        await group.settle()

    run(story)


def test_an_account_closed_by_hand_is_so_for_those_who_come_later() -> None:
    """Its own breaker is not told of as open any more."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, answers(), answers(), accounts=("one", "one"))
        first = group.replicas[0]
        first.admission.health.credential_refused(first.gate(), clock.now)
        await group.hop()
        first.admission.health.force("one", "closed")
        await group.hop()

        assert group.join().admission.gates.accounts["one"].breaker.state == "closed"
        await group.settle()

    run(story)


def test_a_pause_after_a_hand_is_news_again() -> None:
    """What was told before it was over does not silence what comes after."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock)
        group.gates()[0].leave_alone(50.0, clock.now)
        await group.hop()
        group.replicas[1].admission.health.force("p0/m", "closed")
        await group.hop()
        group.gates()[0].leave_alone(5.0, clock.now)
        await group.hop()

        assert [gate.pauses.ends_at > clock.now + 4 for gate in group.gates()] == [True] * 3
        await group.settle()

    run(story)


def test_a_credential_that_is_refused_at_one_replica_serves_the_others() -> None:
    """While keys are changed each has its own: the refused one is tried at every call, and that is told a few times."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, answers(), size=2, accounts=("one",), breaker=BreakerRules())
        group.fates(fails(401), answers())
        await all_at_once(group, 5, 120)

        served = group.replicas[1].results(since=1010.0)
        assert served.get(200, 0) > 0.9 * sum(served.values())
        assert len(group.bus.of_kind("breaker")) < 30
        await group.settle()

    run(story)


# Whose turn it is.


def test_a_dead_provider_sees_the_probes_of_one_replica() -> None:
    """Of three busy ones; so it is asked no more often than by one gateway alone."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503))
        traffic = all_at_once(group, 20, 70)
        await soon(lambda: group.states() == ["open"] * 3)
        await asyncio.sleep(1.0)
        since = clock.now
        await traffic

        asked = sorted(at for replica in group.replicas for at in replica.providers[0].asked_at if at > since)
        apart = [later - before for before, later in pairwise(asked)]
        assert 3 <= len(asked) <= 10
        assert min(apart) > RULES.open_s * FIRST_GO
        told = [round(told.item.left_s / FIRST_GO, 1) for told in group.bus.of_kind("breaker")]
        assert sorted({*told}) == [4.0, 8.0, 16.0, 32.0, 60.0][: len({*told})]
        assert len(told) <= len({*told}) + 2  # all have seen the first failures themselves
        await group.settle()

    run(story)


def test_while_one_probes_the_others_wait_for_its_word() -> None:
    """A probe that takes long: the others refuse at once, and its turn is kept until it has ended."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503))
        await tell_open(group)
        group.fate(answers(20.0))
        await asyncio.sleep(4.5)
        since = clock.now
        traffic = all_at_once(group, 20, 15)
        await asyncio.sleep(14.0)

        asked = [replica.asked(since) for replica in group.replicas]
        assert sorted(asked) == [0, 0, 1]
        idle = group.replicas[asked.index(0)]
        assert set(idle.results(since=since)) == {"circuit_open"}
        assert max(told.took_s for told in idle.told) < 0.3
        await traffic
        group.fate(answers())
        await all_at_once(group, 20, 8)
        assert group.states() == ["closed"] * 3
        await group.settle()

    run(story)


def test_who_has_the_turn_and_dies_is_followed_by_another() -> None:
    """Its slot is free after its time."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503))
        await tell_open(group)
        dying = group.replicas[0]
        group.fate(answers(0.05))
        dying.providers[0].fate = answers(1000.0)
        await asyncio.sleep(4.1)
        call = dying.start()
        await soon(lambda: dying.asked() == 1)
        group.leave(dying)
        died_at = clock.now
        await asyncio.gather(*[replica.traffic(20, 12) for replica in group.replicas[1:]])

        served = min(told.at for replica in group.replicas[1:] for told in replica.told if told.result == 200)
        assert served - died_at <= SLOT_S + 2 * LOOK_AGAIN_S + 0.5
        assert group.states()[1:] == ["closed"] * 2
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await group.settle()

    run(story)


HELD_BY_ANOTHER = (99, float("inf"))


def test_whose_turn_it_is_not_is_told_at_once() -> None:
    """A call that came just when a probe was due does not wait for somebody else's."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=1)
        await tell_open(group)
        group.bus.slots["probe:p0/m"] = HELD_BY_ANOTHER
        await asyncio.sleep(4.1)
        told = await group.replicas[0].call()

        assert (told.result, told.attempts) == ("circuit_open", 0)
        assert told.took_s < 0.05
        await group.settle()

    run(story)


def test_a_turn_is_over_when_its_outcome_is_known_or_of_no_use() -> None:
    """The slot is given back at once: by closing, and where leave comes when the target is well already."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=1)
        (replica,) = group.replicas
        await tell_open(group)
        await asyncio.sleep(4.1)
        await replica.traffic(20, 0.5)
        assert group.states() == ["closed"]
        assert (len(group.bus.taken), group.bus.slots) == (1, {})

        breaker = replica.breaker_of()
        breaker.trip("ill", clock.now, 0.0)
        await asyncio.sleep(8.1)
        assert breaker.admit(clock.now, 0) == pytest.approx(0.2)
        FleetView(breaker).peer_closed("well", clock.now)
        await group.hop()
        assert (len(group.bus.taken), group.bus.slots) == (2, {})
        await group.settle()

    run(story)


def test_leave_that_was_given_up_is_asked_for_again() -> None:
    """One call goes as a probe meanwhile; as somebody else has the turn by now, no other does."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503), answers(), size=1, fallbacks=1)
        (replica,) = group.replicas
        await tell_open(group)
        await asyncio.sleep(4.1)
        await replica.call()
        await asyncio.sleep(SLOT_S)
        assert (group.states(), group.bus.slots) == (["half_open"], {})
        group.bus.slots["probe:p0/m"] = HELD_BY_ANOTHER
        asked = replica.asked()
        group.fate(fails(429, 0.05, (b"retry-after-ms", b"1")))  # which says nothing
        await replica.traffic(10, 3)

        assert group.bus.taken[1] == (0, "probe:p0/m", False)
        assert replica.asked() == asked + 1
        assert group.states() == ["open"]
        await group.settle()

    run(story)


def test_few_calls_suffice_to_find_it_well() -> None:
    """A call a minute, at one replica: the first after the time probes, and need not have come a moment earlier."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503))
        await tell_open(group)
        group.fate(answers())
        results = []
        for _ in range(4):
            await asyncio.sleep(60)
            results.append((await group.replicas[1].call()).result)

        assert results == [200] * 4
        assert group.states() == ["closed"] * 3
        await group.settle()

    run(story)


def test_with_a_fallback_few_calls_suffice_too() -> None:
    """None of them waits for its turn at the primary: leave that nobody used is used by the next, an hour later if need be."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503), answers(), fallbacks=1)
        await tell_open(group)
        group.rest()
        group.fate(answers())
        for _ in range(8):
            await asyncio.sleep(3600)
            told = await group.replicas[1].call()
            assert told.result == 200

        assert group.states() == ["closed"] * 3
        assert group.replicas[1].asked() >= 3
        await group.settle()

    run(story)


def test_an_idle_replica_does_not_keep_the_turn() -> None:
    """It asked for one call, which went elsewhere; a busy one has it within seconds."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503), answers(), fallbacks=1)
        await tell_open(group)
        group.fate(answers())
        await asyncio.sleep(5.0)
        await group.replicas[0].call()
        await asyncio.sleep(0.1)
        assert group.states()[0] == "half_open"
        since = clock.now
        await group.replicas[1].traffic(10, 10)

        assert group.states() == ["closed"] * 3
        assert group.replicas[0].asked() == 0
        assert group.replicas[1].providers[0].asked_at[0] - since < SLOT_S / 2 + 2 * LOOK_AGAIN_S + 0.5
        await group.settle()

    run(story)


def test_an_account_and_its_targets_are_probed_by_the_same_replica() -> None:
    """Else each would wait for what the other has."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503), fails(503), accounts=("one", "one"))
        traffic = all_at_once(group, 20, 40)
        accounts = [replica.admission.gates.accounts["one"].breaker for replica in group.replicas]
        await soon(lambda: all(breaker.state == "open" for breaker in accounts))
        await asyncio.sleep(0.5)
        group.fate(answers(), 0)
        group.fate(answers(), 1)
        healed_at = clock.now
        longest = max(breaker.probe_at for breaker in (*accounts, *group.breakers(0), *group.breakers(1)))
        await soon(lambda: all(breaker.state == "closed" for breaker in (*accounts, *group.breakers())))

        assert clock.now - longest < 2.0
        assert healed_at < longest
        await traffic
        await group.settle()

    run(story)


def test_a_target_whose_account_is_open_probes_in_the_accounts_turn() -> None:
    """One slot for both; it is given back when neither uses it any more."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, size=1, accounts=("one",))
        (replica,) = group.replicas
        account = replica.admission.gates.accounts["one"].breaker
        await tell_open(group)
        account.trip("all are open", clock.now, 0.0)
        await asyncio.sleep(5.0)
        replica.gate().health.admit(clock.now, 0)
        await group.hop()
        assert {slot for _, slot, _ in group.bus.taken} == {"probe:one"}
        assert (account.state, group.states()) == ("half_open", ["half_open"])

        FleetView(group.breakers()[0]).peer_closed("well", clock.now)
        assert set(group.bus.slots) == {"probe:one"}
        FleetView(account).peer_closed("well", clock.now)
        assert group.bus.slots == {}
        await group.settle()

    run(story)


def test_without_the_store_everybody_probes_for_himself() -> None:
    """Nothing is heard, nothing is waited for."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503))
        await tell_open(group)
        group.bus.is_up = False
        await asyncio.sleep(4.1)
        since = clock.now
        await all_at_once(group, 20, 1)

        assert [replica.asked(since) >= 1 for replica in group.replicas] == [True] * 3
        group.fate(answers())
        await all_at_once(group, 20, 30)
        assert group.states() == ["closed"] * 3
        await group.settle()

    run(story)


def test_a_store_that_fails_to_say_lets_everybody_probe() -> None:
    """As without it; an ask that was given up is no different."""

    async def story(clock: LoopClock) -> None:
        for fails_with in (RuntimeError("a defect"), None):
            group = fleet(clock, fails(503), size=1)
            await tell_open(group)
            answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            if fails_with is None:
                answer.cancel()
            else:
                answer.set_exception(fails_with)
            group.replicas[0].gossip._news.take_slot = lambda *_: answer  # type: ignore[method-assign]  # noqa: B023
            group.fate(answers())
            await asyncio.sleep(4.1)
            await group.replicas[0].traffic(20, 1)

            assert group.states() == ["closed"]
            await group.settle()

    run(story)


def test_the_store_that_goes_while_a_turn_is_held_harms_nobody() -> None:
    """Whoever holds it goes on; the others, too."""

    async def story(clock: LoopClock) -> None:
        group = fleet(clock, fails(503))
        await tell_open(group)
        group.fate(answers(0.5))
        await asyncio.sleep(4.1)
        calls = [replica.start() for replica in group.replicas]
        await asyncio.sleep(0.2)
        group.bus.is_up = False
        await asyncio.gather(*calls)
        await all_at_once(group, 20, 10)

        assert group.states() == ["closed"] * 3
        await group.settle()

    run(story)
