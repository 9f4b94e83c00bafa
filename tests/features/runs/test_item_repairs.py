"""Items of a step whose requests are repaired: each once, paid once, whatever dies in between."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.products.jobs.model import JobQuery, JobState
from tests.support.redis_servers import RedisServer
from tests.support.runs import CALL_USD, RUN_ID, CountingView, Ledger, RunProcess, call, run_process
from tests.support.town import Town, Where, town
from tests.support.virtual import LoopClock, run

ITEMS = [f"i{number}" for number in range(20)]


def source(others: dict[str, Any], **top: Any) -> dict[str, Any]:
    step = {"for_each": "input", "max_concurrency": 5, **call("do {{ item }}")}
    return {"steps": {"x": {**step, "on_failure": {"repair_with": "fixer", **others}}}, **top}


def says(failing: int, hopeless: int = 0, mute: int = 0) -> Callable[[str, int], str | int]:
    """So many items fail: of those the first stay what they are, and of the next ones no change is said."""

    def say(prompt: str, _time: int) -> str | int:
        if prompt.startswith("A request"):
            assert "Class of the error: bad_request" in prompt
            assert "Message: no: ok" in prompt
            number = int(prompt.partition('"do i')[2].partition('"')[0])
            if hopeless <= number < hopeless + mute:
                return "I would not know"
            return orjson.dumps({"messages": [{"role": "user", "content": f"redo i{number}"}]}).decode()
        word, _, item = prompt.partition(" ")
        is_failing = int(item[1:]) < (failing if word == "do" else hopeless)
        return 400 if is_failing else f"{word}ne {item}"

    return say


async def repairs_of(process: RunProcess) -> list[tuple[int, int]]:
    """How many requests each part of the step has had answered, and not."""
    children = (await process.store.list_jobs(JobQuery("t", parent=RUN_ID, limit=100))).jobs
    told = sorted((child.about["part"], child.tally.completed, child.tally.failed) for child in children)
    return [(completed, failed) for _, completed, failed in told]


@pytest.mark.parametrize("store", ["memory", "sqlite", "redis"])
def test_failed_items_are_repaired_once_and_what_is_left_may_be_tolerated(
    store: str,
    tmp_path: Path,
    _redis_process: RedisServer,  # noqa: PT019 - its URL is used
) -> None:
    async def told(clock: LoopClock) -> None:
        async with town(store, clock, Where(tmp_path, _redis_process.url)) as here:
            ledger = Ledger(says(failing=10, hopeless=1, mute=1))
            process = run_process(here, ledger)
            await process.accept_run(source({"tolerate_percent": 10}), ITEMS)
            done = await process.end_of(RUN_ID)

            texts = orjson.loads(await process.text_of(done))
            expected = [None, None, *(f"redone i{n}" for n in range(2, 10)), *(f"done i{n}" for n in range(10, 20))]
            assert texts == expected
            assert await repairs_of(process) == [(10, 10), (10, 0), (8, 1)]
            assert done.tally.cost_usd == pytest.approx(ledger.usd)
            assert ledger.usd == pytest.approx(CALL_USD * (10 + 10 + 8))
            assert set(ledger.asked.values()) == {1}
            answer = await process.store.answer(RUN_ID, "t")
            assert answer is not None
            assert ("x-gateway-steps", "x:18/20(repaired)") in [tuple(one) for one in answer.headers]

    run(told)


def in_memory(story: Callable[[Town], Coroutine[Any, Any, None]]) -> None:
    async def whole(clock: LoopClock) -> None:
        async with town("memory", clock, Where(Path(), "")) as one:
            await story(one)

    run(whole)


def test_without_tolerance_every_item_has_to_be_repaired() -> None:
    """No more is asked once it cannot be: what failed again stops those that wait."""

    async def story(here: Town) -> None:
        process = run_process(here, Ledger(says(failing=20, hopeless=5)))
        await process.accept_run(source({}), ITEMS)
        failed = await process.end_of(RUN_ID)
        assert failed.state is JobState.FAILED
        assert failed.last_error is not None
        assert "x: too_many_failed: more items have failed" in failed.last_error.message
        assert sum(prompt.startswith("redo") for prompt in process.ledger.asked) <= 10

    in_memory(story)


@pytest.mark.parametrize(("others", "redone"), [({}, 0), ({"tolerate_count": 1}, 0), ({"tolerate_count": 2}, 3)])
def test_no_changed_request_is_asked_where_too_many_could_not_be_changed(others: dict[str, Any], redone: int) -> None:
    """The step would fail in any case: what is asked then would be paid for in vain."""

    async def story(here: Town) -> None:
        process = run_process(here, Ledger(says(failing=5, mute=2)))
        await process.accept_run(source(others), ITEMS)
        ended = await process.end_of(RUN_ID)
        assert sum(prompt.startswith("redo") for prompt in process.ledger.asked) == redone
        assert ended.state is (JobState.SUCCEEDED if redone else JobState.FAILED)
        if not redone:
            assert ended.last_error is not None
            assert "x: too_many_failed: 5 of 20 items have failed" in ended.last_error.message

    in_memory(story)


@pytest.mark.parametrize(("others", "asked"), [({}, 0), ({"tolerate_count": 1}, 0), ({"tolerate_count": 2}, 18)])
def test_no_item_is_asked_where_too_many_have_no_request(others: dict[str, Any], asked: int) -> None:
    async def story(here: Town) -> None:
        process = run_process(here, Ledger(says(failing=0)))
        plan = source(others)
        plan["steps"]["x"].update(call("do {{ item.n }}"))
        await process.accept_run(plan, [{}, {}, *({"n": one} for one in ITEMS[2:])])
        ended = await process.end_of(RUN_ID)
        assert len(process.ledger.asked) == asked
        assert ended.state is (JobState.SUCCEEDED if asked else JobState.FAILED)

    in_memory(story)


def test_a_value_stands_in_for_what_could_not_be_repaired() -> None:
    async def story(here: Town) -> None:
        process = run_process(here, Ledger(says(failing=3, hopeless=2)))
        await process.accept_run(source({"use": "?"}), ITEMS[:4])
        done = await process.end_of(RUN_ID)
        assert orjson.loads(await process.text_of(done)) == ["?", "?", "redone i2", "done i3"]

    in_memory(story)


@pytest.mark.parametrize(
    ("others", "usd", "ends"),
    [({}, 10, "run_budget_exceeded"), ({"tolerate_count": 10}, 10, ""), ({}, 20, "run_budget_exceeded")],
)
def test_no_repair_begins_once_the_run_has_cost_what_it_may(others: dict[str, Any], usd: int, ends: str) -> None:
    """Where the plan accepts what has failed, the run goes on with that; the third has its money spent by the repairs."""

    async def story(here: Town) -> None:
        process = run_process(here, Ledger(says(failing=10)))
        await process.accept_run(source(others, usd_per_run=usd * CALL_USD - 1e-9), ITEMS)
        done = await process.end_of(RUN_ID)
        assert (done.last_error.error_class if done.last_error else "") == ends
        assert len(await repairs_of(process)) == usd // 10
        assert done.tally.cost_usd == pytest.approx(process.ledger.usd)

    in_memory(story)


def test_a_process_may_die_before_or_after_each_use_of_the_store() -> None:
    """Every third use: the run ends once, with the same text, and what had its answer is not asked for again."""
    uses: list[str] = []
    given = source({"tolerate_count": 1})
    say = says(failing=3, hopeless=1)

    async def undisturbed(here: Town) -> None:
        view = CountingView(here)
        process = run_process(here, Ledger(say), view)
        await process.accept_run(given, ITEMS[:5])
        await process.end_of(RUN_ID)
        uses.extend(view.uses)

    in_memory(undisturbed)
    first_end = uses.index("finish")
    for at in range(first_end, len(uses), 3):
        for after in (False, True):

            async def story(here: Town, at: int = at, *, after: bool = after) -> None:
                ledger = Ledger(say)
                view = CountingView(here, at, after=after)
                process = run_process(here, ledger, view)
                await process.accept_run(given, ITEMS[:5])
                await here.dies(process)
                other = run_process(here, ledger)
                done = await other.end_of(RUN_ID)

                told = orjson.loads(await other.text_of(done))
                assert told == [None, "redone i1", "redone i2", "done i3", "done i4"], uses[at]
                assert sum(ledger.asked.values()) - len(ledger.asked) <= 5, (uses[at], ledger.asked)
                assert await repairs_of(other) == [(2, 3), (3, 0), (2, 1)]
                assert done.tally.cost_usd <= ledger.usd + 1e-9

            in_memory(story)
