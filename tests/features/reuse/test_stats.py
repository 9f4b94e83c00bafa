"""What was spared: every call once, at the layer that answered it; what can be recalled, and how little that holds."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.call import Call
from gateway.core.retry import Attempt
from gateway.core.types import Kept, Usage
from gateway.features.outcome import CacheOutcome
from gateway.features.reuse.savings import MOST_REMEMBERED, PROVIDER, SHOWN_CHARACTERS, Savings
from tests.support.flow import Bench, ScriptedUpstream
from tests.support.targets import target_named

LAYERS = ("idempotency", "single_flight", "exact", "semantic")
BENCH = Bench([ScriptedUpstream()])


def call(replay: CacheOutcome | None, *, attempts: int = 0, **changes: object) -> Call:
    """A call that has ended."""
    return BENCH.call(replay=replay, attempts=[Attempt(target_named("a/m"), 1.0) for _ in range(attempts)], **changes)


def noted(*calls: Call) -> Savings:
    """What comes of these."""
    savings = Savings()
    for one in calls:
        savings.note(one)
    return savings


@st.composite
def replays(draw: st.DrawFn) -> CacheOutcome:
    """What the layers may have said of a call, each of them asked or not, one of them with an answer or none."""
    tried = [(layer, draw(st.sampled_from(("miss", "bypass")))) for layer in LAYERS if draw(st.booleans())]
    layer = draw(st.sampled_from(("", *LAYERS)))
    if not layer:
        return CacheOutcome(tried=tried)
    usage = draw(st.none() | st.builds(Usage, st.integers(0, 1000), st.integers(0, 1000)))
    usd = draw(st.none() | st.floats(0, 10)) if usage else None
    return CacheOutcome("hit", layer, tried=[*tried, (layer, "hit")], saved=usage, saved_usd=usd)


@given(st.lists(st.tuples(replays(), st.integers(0, 2)), max_size=30))
def test_every_answered_call_is_counted_once(ended: list[tuple[CacheOutcome, int]]) -> None:
    """At its layer, or at the provider where one was asked; no layer answers more often than it was asked."""
    totals = noted(*(call(replay, attempts=attempts) for replay, attempts in ended)).totals()

    answered = Counter(replay.layer or PROVIDER for replay, attempts in ended if replay.layer or attempts)
    assert {layer: row.answered for (layer, _, _), row in totals.items() if row.answered} == dict(answered)
    assert all(row.answered <= row.calls for (layer, _, _), row in totals.items() if layer != PROVIDER)
    saved = [replay.saved for replay, _ in ended if replay.saved is not None]
    assert sum(row.input + row.output for row in totals.values()) == sum(one.input + one.output for one in saved)
    assert sum(row.unpriced for row in totals.values()) == sum(
        replay.saved is not None and replay.saved_usd is None for replay, _ in ended
    )


def test_totals_are_told_apart_by_layer_model_and_key() -> None:
    """As the config names them: the model that was asked for may be the client's invention."""
    hit = CacheOutcome("hit", "exact", tried=[("exact", "hit")], saved=Usage(100, 20), saved_usd=0.25)

    totals = noted(
        call(hit, model_name="invented"), call(hit), call(CacheOutcome(tried=[("exact", "miss")]), attempts=1)
    )

    assert {names: (row.calls, row.answered) for names, row in totals.totals().items()} == {
        ("exact", "m", "web"): (3, 2),
        (PROVIDER, "m", "web"): (0, 1),
    }
    row = totals.totals()["exact", "m", "web"]
    assert (row.input, row.output, row.usd, row.unpriced) == (200, 40, 0.5, 0)


def test_a_layer_that_was_kept_away_from_was_not_asked() -> None:
    """`no-cache` must not spoil its rate of hits."""
    totals = noted(call(CacheOutcome("bypass", tried=[("exact", "bypass")]), attempts=1)).totals()

    assert [names[0] for names in totals] == [PROVIDER]


def test_a_layer_that_is_asked_twice_of_one_call_is_counted_once() -> None:
    """First without luck, then for a stale answer."""
    stale = CacheOutcome("stale", "exact", tried=[("exact", "miss"), ("semantic", "miss"), ("exact", "stale")])

    totals = noted(call(stale, attempts=2)).totals()

    assert {names[0]: (row.calls, row.answered) for names, row in totals.items()} == {
        "exact": (1, 1),
        "semantic": (1, 0),
    }


def test_what_was_refused_before_anybody_was_asked_was_not_answered() -> None:
    """It can be recalled all the same: why it was refused may be the question."""
    savings = noted(call(CacheOutcome(tried=[("idempotency", "mismatch")]), id="req_422"))

    assert [(names[0], row.answered) for names, row in savings.totals().items()] == [("idempotency", 0)]
    assert savings.recall("req_422") is not None


def test_a_call_of_which_nothing_is_kept_is_none_of_these() -> None:
    """Neither counted nor remembered."""
    savings = noted(call(None, attempts=1))

    assert (savings.totals(), savings.recall("req_1")) == ({}, None)


def test_a_call_is_recalled_as_it_was() -> None:
    """Whose it was, what each layer said, and what it was given."""
    replay = CacheOutcome(
        "semantic",
        "semantic",
        key=b"k" * 32,
        source="req_0",
        target="a/m",
        age_s=3.0,
        similarity=0.93,
        saved=Usage(7, 5),
        saved_usd=0.01,
        tried=[("exact", "miss"), ("semantic", "hit")],
        why=["the same numbers"],
    )

    found = noted(call(replay, model_name="x" * 500)).recall("req_1")

    assert found is not None
    assert found.replay == replay
    assert (found.endpoint, found.key, found.tenant) == ("chat", "web", "web")
    assert found.model == "x" * SHOWN_CHARACTERS


def test_only_the_last_calls_are_remembered() -> None:
    """The oldest goes first; an id that comes again is as young as its last call."""
    savings = noted(*(call(CacheOutcome(), id=f"req_{number}") for number in range(MOST_REMEMBERED)))

    savings.note(call(CacheOutcome("hit", "exact"), id="req_0"))
    savings.note(call(CacheOutcome(), id="req_new"))

    known = [number for number in range(MOST_REMEMBERED) if savings.recall(f"req_{number}")]
    again = savings.recall("req_0")
    assert known == [0, *range(2, MOST_REMEMBERED)]
    assert again is not None
    assert again.replay.result == "hit"


def test_no_answer_is_held_by_what_is_remembered() -> None:
    """A replay may hold one for worse times; a thousand of them could be a gigabyte."""
    kept = Kept(200, [], b"", False, "chat", "m", "web", "", "req_0", "a/m", 0.0, 1.0, 2.0)
    held = sys.getrefcount(kept)

    savings = noted(call(CacheOutcome(stale=kept)))

    assert savings.recall("req_1") is not None
    assert sys.getrefcount(kept) == held


def test_everything_else_of_a_replay_is_told() -> None:
    """But for how long others may keep it; a field that is added has to be thought of."""
    told = {one.name: object() for one in fields(CacheOutcome) if one.name not in ("stale", "fresh_s")}
    told |= {"layer": "", "saved": None, "tried": []}  # these are read, the others only passed on

    found = noted(call(CacheOutcome(**told))).recall("req_1")  # type: ignore[arg-type]  # anything will do

    assert found is not None
    assert {name: getattr(found.replay, name) for name in told} == told
