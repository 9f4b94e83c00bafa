"""When the streams that wait are told that they still do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.call import Call
from gateway.core.retry import Attempt
from gateway.core.snapshot import Holding
from gateway.core.waiting import MAX_COMMENTS, KeepAlive, waiting_for
from tests.support.flow import Bench
from tests.support.targets import target_named


@dataclass
class Listener:
    """A call whose client listens, and what it has heard."""

    keepalive_after_s: float = 15.0
    is_there: bool = True
    heard: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        call = Bench([]).call(stream=True)
        model = replace(call.route.model, holding=Holding(keepalive_after_s=self.keepalive_after_s))
        self.call: Call = replace(call, route=replace(call.route, model=model), comment=self._hear)

    def _hear(self, text: bytes) -> bool:
        if self.is_there:
            self.heard.append(text)
        return self.is_there


def test_a_comment_comes_after_the_delay_and_again_each_time_it_has_passed() -> None:
    """Not a moment before."""
    keepalive, listener = KeepAlive(lambda _call: b"still here"), Listener()
    keepalive.begin(listener.call, 100.0)
    counts = []

    for now in (100.0, 114.9, 115.0, 115.1, 129.9, 130.0, 144.0, 146.0):
        keepalive.sweep(now)
        counts.append(len(listener.heard))

    assert counts == [0, 0, 1, 1, 1, 2, 2, 3]
    assert set(listener.heard) == {b"still here"}


def test_a_call_that_has_ended_hears_nothing() -> None:
    """Ended before its time, between two comments, or twice; nothing of it is kept."""
    keepalive, early, late = KeepAlive(), Listener(), Listener()
    for listener in (early, late):
        keepalive.begin(listener.call, 0.0)

    keepalive.end(early.call)
    keepalive.sweep(20.0)
    keepalive.end(late.call)
    keepalive.end(late.call)
    keepalive.sweep(60.0)

    assert (early.heard, late.heard, len(keepalive)) == ([], [b"waiting"], 0)


def test_a_withdrawn_call_gets_comments_until_they_are_ended() -> None:
    """A pipeline withdraws its call, for its steps are the calls, and still has a stream to answer; a 202 has no comment."""
    keepalive, waits, answered = KeepAlive(), Listener(), Listener()
    for listener in (waits, answered):
        listener.call.is_withdrawn = True
        keepalive.begin(listener.call, 0.0)

    answered.call.end_comments()
    keepalive.sweep(20.0)

    assert (waits.heard, answered.heard) == ([b"waiting"], [])


def test_a_call_whose_client_cannot_be_told_is_not_tried_again() -> None:
    """It is too late, or nobody is there; and some have no connection at all."""
    keepalive, gone, mute = KeepAlive(), Listener(is_there=False), Listener()
    mute.call.comment = None
    for listener in (gone, mute):
        keepalive.begin(listener.call, 0.0)

    keepalive.sweep(15.0)

    assert len(keepalive) == 0


def test_a_defect_in_one_comment_is_logged_and_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The sweep goes on, and does not try that call again."""
    broken, sound = Listener(), Listener()
    keepalive = KeepAlive(lambda call: b"%d" % float("inf") if call is broken.call else b"fine")
    for listener in (broken, sound):
        keepalive.begin(listener.call, 0.0)

    for now in (15.0, 30.0):
        keepalive.sweep(now)

    assert (broken.heard, sound.heard, len(keepalive)) == ([], [b"fine", b"fine"], 1)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [OverflowError]


def test_the_words_are_found_when_they_are_sent() -> None:
    """What was true when the call came in is not what it waits for now."""
    keepalive, listener = KeepAlive(), Listener()
    keepalive.begin(listener.call, 0.0)

    keepalive.sweep(15.0)
    listener.call.attempts += [
        Attempt(target_named("openai/gpt-4o"), 16.0),
        Attempt(target_named("azure/gpt-4o"), 17.0),
    ]
    keepalive.sweep(30.0)

    assert listener.heard == [b"waiting", b"waiting for azure/gpt-4o"]
    assert waiting_for(listener.call) == listener.heard[-1]


def test_thousands_that_came_at_once_are_not_all_told_at_once() -> None:
    """One sweep tells a bounded number, the next ones the rest; and so it stays from then on."""
    keepalive, listeners = KeepAlive(), [Listener() for _ in range(2 * MAX_COMMENTS + 10)]
    for listener in listeners:
        keepalive.begin(listener.call, 0.0)
    told = []

    for now in (15.0, 15.05, 15.1, 15.15, 30.0, 30.05, 30.1):
        keepalive.sweep(now)
        told.append(sum(len(listener.heard) for listener in listeners))

    many = MAX_COMMENTS
    assert told == [many, 2 * many, 2 * many + 10, 2 * many + 10, 3 * many + 10, 4 * many + 10, 4 * many + 20]
    assert all(len(listener.heard) == 2 for listener in listeners)


@given(
    delays=st.lists(st.sampled_from([1.0, 5.0, 15.0]), min_size=1, max_size=8),
    steps=st.lists(
        st.tuples(st.sampled_from(["begin", "end", "sweep"]), st.integers(0, 7), st.integers(0, 4)), max_size=60
    ),
)
def test_it_does_what_a_timer_for_each_call_would_do(delays: list[float], steps: list[tuple[str, int, int]]) -> None:
    """Whatever the models' delays, and in whatever order calls come and go."""
    keepalive, listeners = KeepAlive(), [Listener(delay_s) for delay_s in delays]
    due: dict[int, float] = {}
    expected = [0] * len(listeners)
    now = 0.0

    for step, number, later_s in steps:
        now += later_s
        index = number % len(listeners)
        listener = listeners[index]
        if step == "begin" and index not in due:
            keepalive.begin(listener.call, now)
            due[index] = now + listener.keepalive_after_s
        elif step == "end":
            keepalive.end(listener.call)
            due.pop(index, None)
        elif step == "sweep":
            keepalive.sweep(now)
            for each in [each for each, at in due.items() if at <= now]:
                expected[each] += 1
                due[each] = now + listeners[each].keepalive_after_s

        assert [len(listener.heard) for listener in listeners] == expected
        assert len(keepalive) == len(due)
