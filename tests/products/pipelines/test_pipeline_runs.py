"""Runs of declared pipelines: paid once, finished once, whatever dies between which two steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.products.jobs.dead_letters.redrive import why_not_again
from gateway.products.jobs.model import BATCH, JOB, RUN, Job, JobFlag, JobQuery, JobState, derived_child_id, new_id
from gateway.products.pipelines.advance import advance
from gateway.products.pipelines.compile import PipelinePlan
from gateway.products.pipelines.rules import Decision, RunStates, run_segment
from gateway.products.pipelines.service import MOST_DEATHS
from tests.support.redis_servers import RedisServer
from tests.support.runs import CALL_USD, RUN_ID, STAGES, CountingView, Ledger, RunProcess, call, run_process, stages_say
from tests.support.stage import few_lines
from tests.support.town import Town, View, Where, town
from tests.support.virtual import LoopClock, run

Story = Callable[[Town], Coroutine[Any, Any, None]]
Tell = Callable[[Story], None]
STORES = ["memory", "sqlite", "redis"]


@pytest.fixture(params=STORES)
def tell(request: pytest.FixtureRequest, tmp_path: Path, _redis_process: RedisServer) -> Tell:
    """Tells a story of processes that share a store."""

    def told(story: Story) -> None:
        async def whole(clock: LoopClock) -> None:
            async with town(request.param, clock, Where(tmp_path, _redis_process.url)) as one:
                await story(one)

        run(whole)

    return told


def tell_in_memory(story: Story) -> None:
    async def whole(clock: LoopClock) -> None:
        async with town("memory", clock, Where(Path(), "")) as one:
            await story(one)

    run(whole)


def test_five_stages_with_a_branch_a_fan_out_and_a_repair(tell: Tell) -> None:
    async def story(here: Town) -> None:
        ledger = Ledger(stages_say(50, failing=5))
        process = run_process(here, ledger)
        process.class_of = {400: "context_length_exceeded"}
        await process.accept_run(STAGES, {"document": "un contrato"})
        done = await process.end_of(RUN_ID)

        assert await process.text_of(done) == "done: report short on 50"
        assert (done.tally.total, done.tally.completed, done.tally.failed) == (5, 5, 0)
        assert done.tally.cost_usd == pytest.approx(ledger.usd)
        assert ledger.usd == pytest.approx(CALL_USD * (2 + 45 + 1 + 1 + 1))
        assert set(ledger.asked.values()) == {1}
        assert sum("c1\n\n" in prompt for prompt in ledger.asked) == 0  # those that failed are left out of the text
        children = (await process.store.list_jobs(JobQuery("t", parent=RUN_ID, limit=100))).jobs
        assert len(children) == 7
        assert all(child.state.is_end for child in children)
        assert await process.store.dead.groups(1) == []  # what failed on the way is the run's own

    tell(story)


def test_items_run_so_many_at_a_time_and_a_parked_run_has_no_task(tell: Tell) -> None:
    source = {"steps": {"x": {"for_each": "input", "max_concurrency": 3, **call("{{ item }}")}}}

    async def story(here: Town) -> None:
        process = run_process(here, Ledger(lambda _prompt, _time: 5.0))
        await process.accept_run(source, [f"i{number}" for number in range(10)])
        await here.paid(3)
        parked = await process.store.find(RUN_ID, "t")
        assert parked is not None
        assert parked.state is JobState.WAITING
        assert RUN_ID not in {job_id for job_id, _ in process.worker._running}
        await process.end_of(RUN_ID)

        assert process.most_running == 3
        assert process.advanced == 2  # to begin, and when the last child had ended

    tell(story)


def test_a_process_may_die_before_or_after_each_use_of_the_store() -> None:
    """The run ends once, with the same text; what had its answer is not asked for again."""
    uses: list[str] = []

    async def undisturbed(here: Town) -> None:
        view = CountingView(here)
        process = run_process(here, Ledger(stages_say(2)), view)
        await process.accept_run(STAGES, {"document": "d"})
        await until_ended(process)
        uses.extend(view.uses)

    tell_in_memory(undisturbed)
    assert {"park", "finish", "answer", "files.find", "commit", "complete_chunk"} <= set(uses)

    for at in range(1, len(uses)):
        for after in (False, True):

            async def story(here: Town, at: int = at, *, after: bool = after) -> None:
                ledger = Ledger(stages_say(2))
                view = CountingView(here, at, after=after)
                process = run_process(here, ledger, view)
                await process.accept_run(STAGES, {"document": "d"})
                while not view.is_dead and len(ledger.asked) < 8:  # noqa: ASYNC110 - the dead set no event
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                await here.kill(process)
                other = run_process(here, ledger)
                done = await until_ended(other)

                assert await other.text_of(done) == "done: report short on 2", uses[at]
                again = sum(ledger.asked.values()) - len(ledger.asked)
                assert again <= 2, (uses[at], ledger.asked)  # what was in flight: as many as run at a time
                children = (await other.store.list_jobs(JobQuery("t", parent=RUN_ID, limit=100))).jobs
                assert len(children) == 7
                assert all(child.state.is_end for child in children)

            tell_in_memory(story)


@pytest.mark.parametrize(("deaths", "text"), [(MOST_DEATHS - 1, "done: report short on 2"), (MOST_DEATHS, None)])
def test_a_run_outlives_deaths_but_not_any_number(deaths: int, text: str | None) -> None:
    """Other things kill gateways, too, and may meet the same advance again; one that always kills is given up."""

    async def story(here: Town) -> None:
        ledger = Ledger(stages_say(2))
        for life in range(deaths):
            view = View(here.kept, here.over)
            view.dies_before = "park"
            process = run_process(here, ledger, view)
            if life == 0:
                await process.accept_run(STAGES, {"document": "d"})
            await here.dies(process)
        other = run_process(here, ledger)
        done = await until_ended(other)

        if text is None:
            assert f"its worker died {MOST_DEATHS} times" in str(done.last_error)
        else:
            assert await other.text_of(done) == text

    tell_in_memory(story)


async def until_ended(process: RunProcess) -> Job:
    """Waits for the end of the run without asking the process's own view of the store."""
    kept = process.view._kept.store
    for _ in range(10_000):
        job = await kept.find(RUN_ID, "t")
        if job is not None and job.state.is_end:
            return cast("Job", job)
        kept.tick()
        await asyncio.sleep(0.05)
    raise AssertionError("it has not ended")


def test_kills_after_each_step_pay_each_step_once_more_at_most(tell: Tell) -> None:
    steps = {f"s{n}": call(f"s{n}" + (f" {{{{ steps.s{n - 1}.text }}}}" if n else "")) for n in range(5)}

    async def story(here: Town) -> None:
        ledger = Ledger(lambda prompt, _time: prompt[:2])
        process = run_process(here, ledger)
        await process.accept_run({"steps": steps}, None)
        for paid in range(1, 6):
            await here.paid(paid + (paid - 1))
            await here.kill(process)
            process = run_process(here, ledger)
        done = await process.end_of(RUN_ID)

        assert await process.text_of(done) == "s4"
        assert len(ledger.asked) == 5
        assert sum(ledger.asked.values()) <= 5 + 5

    tell(story)


def test_to_cancel_a_run_stops_its_children(tell: Tell) -> None:
    source = {
        "steps": {"a": call("a"), "b": {"for_each": "input", **call("{{ item }}")}, "c": call("c", after=["a", "b"])}
    }

    async def story(here: Town) -> None:
        process = run_process(here, Ledger(lambda _prompt, _time: 50.0))
        await process.accept_run(source, [f"i{number}" for number in range(30)])
        await here.paid(10)
        await process.store.flag(RUN_ID, "t", JobFlag.CANCEL)
        done = await process.end_of(RUN_ID)
        a = await process.end_of(derived_child_id(JOB, RUN_ID, "a", 1))
        b = await process.end_of(derived_child_id(BATCH, RUN_ID, "b", 1))

        assert done.state is JobState.CANCELLED
        assert (a.state, b.state) == (JobState.CANCELLED, JobState.CANCELLED)
        assert len(here.tries) <= 1 + 20
        assert await process.store.find(derived_child_id(JOB, RUN_ID, "c", 1), "t") is None

    tell(story)


def test_deadlines_end_runs_and_steps(tell: Tell) -> None:
    slow = {
        "steps": {"a": call("slow", timeout=5.0), "b": call("b {{ steps.a.text }}", after=["a"])},
        "output": "steps.b.text",
    }

    async def story(here: Town) -> None:
        process = run_process(here, Ledger(lambda prompt, _time: 500.0 if prompt == "slow" else "fine"))
        await process.accept_run(slow, None)
        failed = await process.end_of(RUN_ID, within_s=60)
        assert failed.state is JobState.FAILED
        assert failed.last_error is not None
        assert "expired" in failed.last_error.message

    tell(story)

    async def late(here: Town) -> None:
        process = run_process(here, Ledger(lambda _prompt, _time: 500.0))
        await process.accept_run({"steps": {"a": call("slow")}}, None, deadline=here.clock.wall() + 30)
        done = await process.end_of(RUN_ID, within_s=60)
        child = await process.end_of(derived_child_id(JOB, RUN_ID, "a", 1))
        assert (done.state, child.state) == (JobState.EXPIRED, JobState.EXPIRED)

    tell_in_memory(late)


def test_a_run_may_not_begin_a_step_with_its_money_spent(tell: Tell) -> None:
    steps = {f"s{n}": call(f"s{n}", after=[f"s{n - 1}"] if n else []) for n in range(5)}

    async def story(here: Town) -> None:
        ledger = Ledger(lambda prompt, _time: prompt)
        process = run_process(here, ledger)
        await process.accept_run({"steps": steps, "usd_per_run": 2.5 * CALL_USD, "output": "steps.s4.text"}, None)
        done = await process.end_of(RUN_ID)
        answer = await process.store.answer(RUN_ID, "t")

        assert done.state is JobState.FAILED
        assert done.last_error is not None
        assert done.last_error.error_class == "run_budget_exceeded"
        assert answer is not None
        assert answer.status == 429
        assert list(ledger.asked) == ["s0", "s1", "s2"]
        assert done.tally.cost_usd == pytest.approx(ledger.usd)

    tell(story)


def test_a_failed_step_ends_its_run_and_what_runs_beside_it(tell: Tell) -> None:
    source = {
        "steps": {"a": call("bad"), "b": call("slow"), "c": call("c", after=["a", "b"])},
        "output": "steps.c.text",
    }

    async def story(here: Town) -> None:
        process = run_process(here, Ledger(lambda prompt, _time: 400 if prompt == "bad" else 500.0))
        await process.accept_run(source, None)
        done = await process.end_of(RUN_ID, within_s=60)
        beside = await process.end_of(derived_child_id(JOB, RUN_ID, "b", 1))
        answer = await process.store.answer(RUN_ID, "t")
        (group,) = await process.store.dead.groups(2)
        (letter,) = group.samples

        assert (group.kind, group.error_class, letter.job_id) == ("run", "run_failed", RUN_ID)
        assert "a: bad_request" in letter.error.message
        assert (letter.is_replayable, letter.bytes) == (False, 0)
        assert why_not_again(done, letter) == "cannot be tried again, as no run is: send it anew"
        assert done.state is JobState.FAILED
        assert beside.state is JobState.CANCELLED
        assert answer is not None
        assert (answer.status, b"The step 'a'" in answer.body) == (502, True)

    tell(story)


def test_a_run_that_cannot_be_advanced_ends_and_so_does_what_runs_of_it(tell: Tell) -> None:
    source = {
        "steps": {
            "a": call("a"),
            "b": call("slow"),
            "c": {"for_each": "steps.a.text | split(3)", **call("{{ item }}"), "after": ["a"]},
        },
        "output": "steps.c.texts",
    }

    def defective(_text: str) -> float:
        raise RuntimeError

    async def story(here: Town) -> None:
        ledger = Ledger(lambda prompt, _time: 500.0 if prompt == "slow" else "said")
        process = run_process(here, ledger)
        process.runs._count = lambda _model: defective
        await process.accept_run(source, None)
        done = await process.end_of(RUN_ID, within_s=60)
        beside = await process.end_of(derived_child_id(JOB, RUN_ID, "b", 1))

        assert (done.state, beside.state) == (JobState.FAILED, JobState.CANCELLED)
        assert done.last_error is not None
        assert "internal_error" in done.last_error.message
        assert done.tally.cost_usd == pytest.approx(ledger.usd)

    tell(story)


@pytest.mark.parametrize(("items", "in_loop"), [(5, True), (2_000, False)])
def test_a_condition_of_many_items_is_judged_beside_the_loop(
    items: int, in_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the input is: each of them is looked for in all of them."""
    when = "contains(input.list, item) && item == '0'"
    source = {"steps": {"x": {"for_each": "input.list", "choose": [{"when": when, **call("{{ item }}")}]}}}
    decided: list[bool] = []

    def noted(plan: PipelinePlan, states: RunStates) -> Decision:
        decision = advance(plan, states)
        decided.append(threading.current_thread() is threading.main_thread())
        return decision

    monkeypatch.setattr("gateway.products.pipelines.service.advance", noted)

    async def story(here: Town) -> None:
        process = run_process(here, Ledger(lambda _prompt, _time: "fine"))
        await process.accept_run(source, {"list": [str(number) for number in range(items)]})
        done = await process.end_of(RUN_ID)
        assert "fine" in await process.text_of(done)

    tell_in_memory(story)
    assert decided[0] is in_loop


@pytest.mark.parametrize(("on_failure", "asked"), [("fail", 20), ({"tolerate_percent": 10}, 40), ("continue", 200)])
def test_a_fan_out_stops_once_more_has_failed_than_may(tell: Tell, on_failure: Any, asked: int) -> None:
    source = {
        "steps": {"x": {"for_each": "input", "max_concurrency": 5, **call("{{ item }}"), "on_failure": on_failure}}
    }

    async def story(here: Town) -> None:
        ledger = Ledger(lambda prompt, _time: 400 if int(prompt) % 2 == 0 else "fine")
        process = run_process(here, ledger)
        await process.accept_run(source, [str(number) for number in range(200)])
        done = await process.end_of(RUN_ID)

        assert len(ledger.asked) <= asked + 20  # what had begun beside it
        assert done.tally.cost_usd == pytest.approx(ledger.usd)
        if on_failure == "continue":
            assert done.state is JobState.SUCCEEDED
        else:
            assert done.last_error is not None
            assert "x: too_many_failed: more items have failed" in done.last_error.message
            assert "such as: no: " in done.last_error.message

    tell(story)


def test_what_is_decided_beside_the_loop_is_one_at_a_time_and_tenants_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that compute would all go before the loop; who has many runs of that kind holds up his own."""
    decided: list[str] = []
    most_at_once, at_once, really = 0, 0, asyncio.to_thread

    async def beside(work: Any, *given: Any) -> Any:
        nonlocal most_at_once, at_once
        if work is not advance:
            return await really(work, *given)
        at_once += 1
        most_at_once = max(most_at_once, at_once)
        decided.append(given[1].input["of"])
        await asyncio.sleep(1.0)
        at_once -= 1
        return work(*given)

    monkeypatch.setattr(asyncio, "to_thread", beside)

    async def story(here: Town) -> None:
        rules = replace(few_lines(window=50), segments=(replace(run_segment(), name="all"),))
        process = run_process(here, Ledger(lambda _prompt, _time: "fine"), rules=rules)
        ids = [new_id(RUN, bytes([number] * 16)) for number in range(31)]
        source = {"steps": {"x": call("say {{ input.of }}")}}
        for one in ids[1:]:
            await process.accept_run(source, {"of": "a", "text": "x" * 300_000}, one, tenant="a")
        await asyncio.sleep(2.5)
        begun = len(decided)
        await process.accept_run(source, {"of": "b", "text": "x" * 300_000}, ids[0], tenant="b")
        for one in ids:
            assert (await process.end_of(one)).state is JobState.SUCCEEDED
        assert most_at_once == 1
        assert decided.index("b") - begun <= 1
        assert len(decided) == 62

    tell_in_memory(story)
