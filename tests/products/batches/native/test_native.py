"""Parts of batches at providers' own Batch APIs: half price, and no line lost to anything that a provider says or does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.core.errors import Forbidden
from gateway.products.batches.output import WAITS_FOR
from gateway.products.jobs.model import JobFlag, JobState
from gateway.products.jobs.request import RUN_WORDS
from tests.products.batches.native.native_provider import Lies
from tests.products.batches.native.native_stage import PRICE_USD, NativeStage, native_rules
from tests.support.virtual import LoopClock, run
from tests.sweeps import sampled


def test_a_batch_is_done_at_the_provider_for_half_the_price() -> None:
    """No line goes through the gateway; the answers are the provider's, under their owners' names; nothing stays there."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.worker.start()
        await stage.accept_batch(25)
        await asyncio.sleep(60)
        assert stage.parts.phases() == {"working": 3}

        job = await stage.ended()

        assert (job.state, job.tally.completed, stage.tries) == (JobState.SUCCEEDED, 25, [])
        assert (job.tally.input_tokens, job.tally.output_tokens) == (75, 50)
        assert job.tally.cost_usd == pytest.approx(25 * PRICE_USD) == stage.accounts.usd
        assert not stage.metrics.estimated_cost.totals
        assert set(stage.provider.served.values()) == {1}
        assert {line["response"]["body"]["model"] for line in stage.lines["batch_1"]} == {"openai-m"}
        assert (stage.left_behind, stage.parts.phases()) == (set(), {})
        assert stage.metrics.tokens.totals["m", "openai/openai-m", "input", "web"] == 75

    run(story)


LIES = {
    "says nothing of its files at first": Lies(files_late_s=120),
    "never says where its files are": Lies(files_late_s=1e9),
    "counts wrongly": Lies(wrong_counts=True),
    "forgets lines": Lies(drops=4),
    "has lines without a status": Lies(status_zero=3),
    "was overloaded": Lies(overloaded=5),
    "refuses lines": Lies(bad=5),
    "begins its files with a mark": Lies(bom=True),
    "has an empty account for lines": Lies(spent=5),
    "has a model that is too short for lines": Lies(too_long=5),
    "loses the batch": Lies(vanishes_after_s=100),
    "expires with answers": Lies(expires_after_s=300),
    "finds the file invalid": Lies(invalid=True),
    "has a full queue": Lies(full=2),
    "refuses for a full queue": Lies(refuses_full=2),
    "answers twice": Lies(twice=True),
    "breaks off": Lies(breaks_off=3),
    "writes garbage": Lies(garbage=True),
    "has no files": Lies(no_files_api=True),
    "refuses at first": Lies(refuses_create=2),
    "refuses always": Lies(refuses_create=99),
    "does not answer": Lies(lost_answers=4),
    "does not answer, and lists late": Lies(lost_answers=4, list_lags_s=10),
    "does not answer, and keeps no metadata": Lies(lost_answers=4, keeps_no_metadata=True),
    "is down": Lies(always_down_after_s=0),
    "goes down": Lies(always_down_after_s=200),
    "is slow": Lies(works_s=1e9),
    "is slow, and does not hear": Lies(works_s=1e9, ignores_cancel=3),
    "is slow, and never hears": Lies(works_s=1e9, ignores_cancel=999),
    "lies about everything": Lies(
        files_late_s=90,
        wrong_counts=True,
        drops=7,
        status_zero=4,
        overloaded=6,
        twice=True,
        breaks_off=2,
        garbage=True,
        lost_answers=2,
        list_lags_s=5,
    ),
}
ALL_THERE = {
    *("says nothing of its files at first", "counts wrongly", "has a full queue", "refuses for a full queue"),
    *("answers twice", "breaks off", "writes garbage", "refuses at first", "does not answer"),
    *("does not answer, and lists late", "does not answer, and keeps no metadata"),
}
"""What a provider may do that costs nobody a line of it."""


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"prompt_tokens": 2**31, "completion_tokens": 2**31, "total_tokens": 2**32},
        {"prompt_tokens": 2**31, "completion_tokens": 16_000_000},
        {"prompt_tokens": 5, "completion_tokens": None},
    ],
)
def test_lines_without_a_usage_that_can_be_right_are_estimated(told: dict[str, Any]) -> None:
    """By what was asked and what was answered: they were paid for."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.provider.lies = Lies(usage=told)
        stage.worker.start()
        await stage.accept_batch(25, body=b'{"model":"m","max_tokens":100}')

        job = await stage.ended()

        assert job.tally.completed == 25
        assert job.tally.output_tokens == 25 * 100
        assert job.tally.input_tokens > 25 * 3
        usd = (job.tally.input_tokens * 1.0 + job.tally.output_tokens * 2.0) / 1e6 * 0.5
        assert job.tally.cost_usd == pytest.approx(usd) == stage.accounts.usd
        assert sum(stage.metrics.estimated_cost.totals.values()) == pytest.approx(usd)

    run(story)


@pytest.mark.parametrize("lie", LIES)
def test_no_line_is_lost_to_a_provider_that(lie: str) -> None:
    """What is missing there runs here; what is there is not paid for twice, and its files are removed."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock, replace(LIES[lie]))
        stage.worker.start()
        await stage.accept_batch(25)

        job = await stage.ended()

        assert job.state is JobState.SUCCEEDED
        assert job.tally.failed == (6 if lie == "refuses lines" else 0)
        assert max(stage.provider.served.values(), default=1) == 1
        assert len(set(stage.tries)) == len(stage.tries)
        if lie in ALL_THERE:
            assert (stage.tries, len(stage.provider.served)) == ([], 25)
        if lie not in ("goes down", "is down", "never says where its files are"):
            assert stage.left_behind == set()

    run(story)


def test_answers_stay_where_the_file_of_errors_is_not_given() -> None:
    """Only the lines that it would have told of run here; the others have been paid for."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock, Lies(bad=5, loses_errors=True))
        stage.worker.start()
        await stage.accept_batch(25)

        job = await stage.ended()

        assert (job.state, job.tally.completed, len(stage.tries)) == (JobState.SUCCEEDED, 25, 6)
        assert stage.accounts.usd == pytest.approx(19 * PRICE_USD)

    run(story)


def test_what_is_not_done_in_time_is_taken_back() -> None:
    """By half of its window; what was done by then is kept, and the rest runs here."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock, Lies(works_s=3600))
        stage.worker.start()
        await stage.accept_batch(20)
        began_at = clock.wall()

        job = await stage.ended()

        assert job.state is JobState.SUCCEEDED
        assert 1800 <= clock.wall() - began_at <= 2000
        assert 8 <= len(stage.provider.served) <= 10
        assert len(stage.tries) == 20 - len(stage.provider.served)
        assert stage.left_behind == set()

    run(story)


@pytest.mark.parametrize("at_s", [1.5, 45.0, 300.0])
def test_a_cancelled_batch_stops_at_the_provider_and_keeps_what_is_done(at_s: float) -> None:
    """It waits for what the provider gives back, and nothing more runs."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.worker.start()
        await stage.accept_batch(25)
        await asyncio.sleep(at_s)
        await stage.store.flag("batch_1", "t", JobFlag.CANCEL)

        job = await stage.ended()

        assert (job.state, stage.tries) == (JobState.CANCELLED, [])
        assert len(stage.lines["batch_1"]) == job.tally.completed == len(stage.provider.served)
        assert (job.tally.completed > 5) is (at_s == 300.0)
        assert job.tally.cost_usd == pytest.approx(job.tally.completed * PRICE_USD)
        assert stage.left_behind == set()

    run(story)


def test_an_expired_batch_takes_what_the_provider_has() -> None:
    """Where no worker was there to take it back in time."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.worker.start()
        await stage.accept_batch(25)
        await asyncio.sleep(60)
        await stage.worker.aclose()
        await asyncio.sleep(4000)
        stage.begin_life().start()

        job = await stage.ended()

        assert (job.state, job.tally.completed, stage.tries) == (JobState.EXPIRED, 25, [])

    run(story)


def test_a_batch_is_split_by_weight() -> None:
    """Each provider by its own name of the model; one without a credential gets nothing."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock, rules=native_rules(part_lines=5, split={"openai": 3, "azure": 1, "bare": 9}))
        stage.worker.start()
        await stage.accept_batch(40)

        job = await stage.ended()

        assert (job.tally.completed, stage.tries) == (40, [])
        assert stage.provider.by_provider == {"openai": 6, "azure": 2}
        models = Counter(line["response"]["body"]["model"] for line in stage.lines["batch_1"])
        assert models == {"openai-m": 30, "azure-m": 10}

    run(story)


def test_lines_at_a_provider_are_calls_of_the_run_that_their_batch_names() -> None:
    """With what they cost there; the next ones add to it."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.worker.start()
        await stage.accept_batch(25, about={RUN_WORDS: ["nightly", "r-1", "label"]})
        job = await stage.ended()

        assert {told[:2] for told in stage.runs} == {("t", "r-1")}
        first, *others = [change for _, _, change in stage.runs]
        run_sum = sum(others, first)
        task = run_sum.tasks["label"]
        assert (task.calls, task.bad_calls, task.input_tokens, task.output_tokens) == (25, 0, 75, 50)
        assert task.cost_usd == pytest.approx(job.tally.cost_usd) == pytest.approx(25 * PRICE_USD)
        assert run_sum.workflow is not None
        assert run_sum.workflow.word == "nightly"

    run(story)


def test_a_key_without_money_waits() -> None:
    """Nothing is sent for it until it has some again."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.accounts.spent = True
        stage.worker.start()
        await stage.accept_batch(25)
        await asyncio.sleep(700)
        assert stage.provider.asked == []
        waiting = await stage.store.find("batch_1", None)
        assert waiting is not None
        assert waiting.marks[WAITS_FOR] == "budget_exceeded"
        stage.accounts.spent = False

        job = await stage.ended()
        assert (job.tally.completed, stage.tries, job.marks.get(WAITS_FOR)) == (25, [], None)

    run(story)


def test_a_provider_that_is_taken_out_of_the_config_loses_its_parts() -> None:
    """Its lines run here."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.worker.start()
        await stage.accept_batch(25)
        await asyncio.sleep(60)
        policy = stage.policies.current
        others = {name: one for name, one in policy.providers.items() if name != "openai"}
        stage.policies.current = replace(policy, providers=others)

        assert ((await stage.ended()).tally.completed, len(stage.tries)) == (25, 25)

    run(story)


def test_what_comes_back_all_at_once_runs_a_few_chunks_at_a_time() -> None:
    """As any other batch does; and a provider that takes no files is not asked for every chunk."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock, Lies(no_files_api=True), native_rules(part_lines=5))
        await stage.accept_batch(100)
        stage.worker.start()
        await asyncio.sleep(0.1)
        most = 0
        while len(stage.tries) < 100:
            most = max(most, stage.chunks.chunks)
            await asyncio.sleep(0.02)

        job = await stage.ended()

        assert (job.tally.completed, len(stage.tries), most) == (100, 100, 4)

    run(story)


def test_a_worker_that_stops_in_good_order_leaves_its_parts_to_the_next() -> None:
    """Whatever it was about."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.worker.start()
        await stage.accept_batch(25)
        for _ in range(30):
            await asyncio.sleep(23)
            await stage.worker.drain(0.0)
            stage.begin_life().start()

        assert ((await stage.ended()).tally.completed, stage.tries) == (25, [])
        assert set(stage.provider.served.values()) == {1}

    run(story)


async def told(
    clock: LoopClock, lasts: list[int], cancel_at: int = -1, *, is_inline: bool = False, **lies: Any
) -> NativeStage:
    """Tells of a batch of 12 lines whose workers die after so many steps each; the last one lives."""
    rules = native_rules(part_lines=6)
    stage = NativeStage(clock, Lies(**{"works_s": 100.0, **lies}), rules, is_inline=is_inline)
    await stage.accept_batch(12)
    for number, last in enumerate([*lasts, -1]):
        if number == cancel_at:
            await stage.store.flag("batch_1", "t", JobFlag.CANCEL)
        worker = stage.begin_life(last)
        worker.start()
        dead = asyncio.create_task(stage.life.over.wait())
        ended = asyncio.create_task(stage.end_of("batch_1"))
        await asyncio.wait((dead, ended), return_when=asyncio.FIRST_COMPLETED)
        dead.cancel()
        ended.cancel()
        await asyncio.sleep(1)
    await stage.ended()
    return stage


def check_books(stage: NativeStage) -> None:
    """No batch was made twice, no line was lost or paid for twice, nothing stays behind."""
    assert Counter(one.part for one in stage.provider.batches.values()).most_common(1)[0][1] == 1
    assert len(stage.provider.batches) == 2
    assert stage.provider.served == {f"batch_req_batch_1{number:06d}": 1 for number in range(12)}
    assert stage.tries == []
    uploads = [name for name, _, _ in stage.provider.files.values() if name != "output.jsonl"]
    assert len(uploads) == len(set(uploads))
    assert stage.left_behind == set()


@pytest.mark.parametrize("works_s", sampled([10.0, 100.0], lambda works_s: works_s == 10.0))
def test_a_death_between_any_two_steps_submits_nothing_twice_and_loses_nothing(works_s: float) -> None:
    """Every step in turn, those between an effect and its note among them; a long wait only has the same looks more often."""
    steps = run(lambda clock: told(clock, [], works_s=works_s)).life.steps

    for last in range(1, steps + 1):
        stage = run(lambda clock, last=last: told(clock, [last], works_s=works_s))  # type: ignore[misc]  # bound at once

        check_books(stage)
        tally = run_tally(stage)
        assert (tally.completed, tally.cost_usd) == (12, pytest.approx(12 * PRICE_USD)), last


def test_a_machine_whose_time_was_set_submits_nothing_twice() -> None:
    """What it has noted by a clock that is a day ahead, or behind, is looked for by the provider's time."""

    async def story(clock: LoopClock, last: int, ahead_s: float) -> NativeStage:
        clock.ahead_s = ahead_s
        return await told(clock, [last], works_s=10.0, machine_is_wrong=ahead_s < 0)

    for last in range(1, 12):
        for ahead_s in (86_400.0, -86_400.0):
            check_books(run(lambda clock, last=last, by=ahead_s: story(clock, last, by)))  # type: ignore[misc]  # bound at once


def run_tally(stage: NativeStage) -> Any:
    """Returns the tally of the batch."""
    return stage.store._jobs["batch_1"].job.tally


@pytest.mark.parametrize("seed", range(3))
def test_fifty_deaths_in_a_row_submit_nothing_twice_and_lose_nothing(seed: int) -> None:
    """At random, of a provider that loses answers, too."""
    draw = Random(seed)
    lasts = [draw.randint(1, 9) for _ in range(50)]
    stage = run(lambda clock: told(clock, lasts, lost_answers=seed, list_lags_s=5.0 * seed))

    check_books(stage)
    assert run_tally(stage).cost_usd == pytest.approx(12 * PRICE_USD)


@pytest.mark.parametrize("cancels_s", sampled([5.0, 60.0], lambda cancels_s: cancels_s == 5.0))
def test_deaths_while_a_batch_is_cancelled_lose_nothing_that_was_paid_for(cancels_s: float) -> None:
    """Every step of the way back in turn; a long wait only has the same looks more often."""
    steps = run(lambda clock: told(clock, [12], cancel_at=1, cancels_s=cancels_s)).life.steps

    for last in range(1, steps + 1):
        stage = run(
            lambda clock, last=last: told(clock, [12, last], cancel_at=1, cancels_s=cancels_s)  # type: ignore[misc]  # bound at once
        )

        assert len(stage.provider.batches) <= 2
        assert run_tally(stage).completed == len(stage.lines["batch_1"]) == len(stage.provider.served)
        assert (stage.tries, stage.left_behind) == ([], set())


@pytest.mark.parametrize("lists_late_s", [0.0, 100.0])
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_worker_that_goes_on_after_another_has_taken_over_submits_nothing(
    lists_late_s: float, is_checked: bool
) -> None:
    """Stopped between its note and its request: by its clocks it is too late; where these have stopped, too, there is no file
    for its batch any more.
    """

    async def story(clock: LoopClock) -> None:
        awakes = asyncio.Event()

        async def stands_still() -> None:
            while not awakes.is_set():
                with suppress(asyncio.CancelledError):  # it does not hear that its claim is lost
                    await awakes.wait()

        lies = Lies(stands_still=stands_still, is_checked=is_checked, list_lags_s=lists_late_s)
        stage = NativeStage(clock, lies, native_rules(part_lines=25))
        stage.worker.start()
        await stage.accept_batch(25)
        await asyncio.sleep(30)
        assert stage.parts.phases() == {"creating": 1}

        stage.begin_life().start()
        await asyncio.sleep(400)
        assert len(stage.provider.batches) == 1
        awakes.set()
        job = await stage.ended()

        assert (len(stage.provider.batches), set(stage.provider.served.values())) == (1, {1})
        assert (job.tally.completed, stage.tries, stage.left_behind) == (25, [], set())

    run(story)


@pytest.mark.parametrize("is_slow_s", [20.0, 100.0])
def test_a_request_that_is_on_its_way_for_long_is_waited_for(is_slow_s: float) -> None:
    """Nothing that a list does not show is taken for never asked before that can be so."""

    async def story(clock: LoopClock) -> None:
        arrives = asyncio.Event()
        clock.call_at(clock.monotonic() + is_slow_s, arrives.set)

        async def is_slow() -> None:
            while not arrives.is_set():
                with suppress(
                    asyncio.CancelledError
                ):  # what is on its way goes on, whatever becomes of who has sent it
                    await arrives.wait()

        stage = NativeStage(clock, Lies(stands_still_sent=is_slow), native_rules(part_lines=25))
        stage.worker.start()
        await stage.accept_batch(25)
        await asyncio.sleep(1)
        stage.begin_life().start()

        job = await stage.ended()

        assert (len(stage.provider.batches), set(stage.provider.served.values())) == (1, {1})
        assert (job.tally.completed, stage.tries, stage.left_behind) == (25, [], set())

    run(story)


def test_a_provider_that_does_not_list_its_batches_is_asked_for_no_second_one() -> None:
    """Its answer lost, it cannot be told whether there is one: what it may have done is not done again before the lines are
    wanted back.
    """

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock, Lies(lost_answers=2, no_list=True, works_s=60), native_rules(part_lines=25))
        stage.worker.start()
        await stage.accept_batch(25)

        job = await stage.ended()

        assert (job.tally.completed, len(stage.provider.batches), len(stage.tries)) == (25, 1, 25)

    run(story)


def test_a_machine_that_slept_before_its_request_asks_anew() -> None:
    """Nobody else has had the part meanwhile; it is noted again, and no look for it is needed."""

    async def story(clock: LoopClock) -> None:
        async def sleeps() -> None:
            await asyncio.sleep(11)

        stage = NativeStage(clock, Lies(stands_still=sleeps), native_rules(part_lines=25))
        stage.worker.start()
        await stage.accept_batch(25)

        job = await stage.ended()

        assert (job.tally.completed, stage.tries, len(stage.provider.batches)) == (25, [], 1)
        assert "find_batch" not in stage.provider.asked

    run(story)


def _budget(stage: NativeStage, usd: float) -> None:
    """From now on the batch's key may spend so much a day."""
    policy = stage.policies.current
    keys = {digest: replace(key, budget_usd_per_day=usd) for digest, key in policy.keys.items()}
    stage.policies.current = replace(policy, keys=keys)


def test_parts_that_each_fit_a_budget_do_not_go_beyond_it_together() -> None:
    """What a part is going to cost is charged before it is sent; the next one waits until the first has cost less."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        _budget(stage, 0.08)
        stage.worker.start()
        await stage.accept_batch(20)
        await asyncio.sleep(60)
        assert stage.accounts.charged == pytest.approx(0.05)
        assert len(stage.provider.batches) == 1

        job = await stage.ended()

        assert (job.tally.completed, stage.tries, len(stage.provider.batches)) == (20, [], 2)
        assert stage.accounts.most_charged == pytest.approx(0.05)
        assert stage.accounts.charged == pytest.approx(0.0)
        assert stage.accounts.usd == pytest.approx(20 * PRICE_USD)

    run(story)


def test_a_part_that_no_budget_pays_for_runs_here() -> None:
    """Line by line, as far as the budget goes; it is not waited for a day on which it would fit."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        _budget(stage, 0.04)
        stage.worker.start()
        await stage.accept_batch(20)

        job = await stage.ended()

        assert (job.tally.completed, len(stage.tries), stage.provider.asked) == (20, 20, [])
        assert stage.accounts.most_charged == 0

    run(story)


def test_a_part_whose_price_is_not_known_runs_here() -> None:
    """Where its key has a budget, which is told so line by line: at the provider nobody would count it."""

    def refuse() -> float:
        raise Forbidden("what it costs is not known", code="unpriced_endpoint")

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock)
        stage.price_usd = refuse
        stage.worker.start()
        await stage.accept_batch(20)

        await stage.ended()

        assert (len(stage.tries), stage.provider.asked) == (20, [])

    run(story)


@pytest.mark.parametrize("outlives", [False, True])
@pytest.mark.parametrize("lie", ["is honest", "refuses always", "is slow", "has a full queue", "was overloaded"])
def test_what_was_charged_is_given_back_once_however_parts_end(lie: str, outlives: bool) -> None:
    """Also by another process, which knows of the charge what the part's mark says; and where the batch is cancelled."""

    async def story(clock: LoopClock, is_cancelled: bool) -> None:
        stage = NativeStage(clock, replace(LIES.get(lie, Lies())))
        stage.accounts.outlives = outlives
        stage.worker.start()
        await stage.accept_batch(20)
        await asyncio.sleep(100)
        await stage.worker.drain(0.0)
        stage.begin_life().start()
        await asyncio.sleep(200)
        if lie in ("is honest", "is slow"):
            assert stage.accounts.charged == pytest.approx(0.1)
        if is_cancelled:
            await stage.store.flag("batch_1", "t", JobFlag.CANCEL)

        await stage.ended()

        assert stage.accounts.most_charged == pytest.approx(0.1)
        assert stage.accounts.charged == pytest.approx(0.0)

    for is_cancelled in (False, True):
        run(lambda clock, is_cancelled=is_cancelled: story(clock, is_cancelled))  # type: ignore[misc]  # bound at once


def test_a_charge_of_yesterday_is_not_booked_again() -> None:
    """It counted for that day; a process that begins on the next one gives back nothing that it has not booked."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock, Lies(works_s=1500))
        stage.worker.start()
        await asyncio.sleep(86_400 - clock.wall() % 86_400 - 200)
        await stage.accept_batch(20)
        await asyncio.sleep(100)
        assert stage.accounts.charged == pytest.approx(0.1)
        await stage.worker.drain(0.0)
        await asyncio.sleep(200)
        stage.begin_life().start()

        assert (await stage.ended()).tally.completed == 20
        assert stage.accounts.charged == 0.0

    run(story)
