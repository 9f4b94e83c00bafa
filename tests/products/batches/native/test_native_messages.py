"""Parts of batches at Anthropic's Message Batches, which take lines with the request and keep no file that one could remove."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from gateway.core.errors import InvalidRequest
from gateway.products.batches.native import rules
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.model import JobState
from tests.products.batches.native.native_provider import Lies
from tests.products.batches.native.native_stage import PRICE_USD, NativeStage, native_rules
from tests.products.batches.native.test_native import check_books, run_tally, told
from tests.support.stage import Stage
from tests.support.virtual import LoopClock, run
from tests.sweeps import sampled

LIES = {
    "is honest": (Lies(), 0),
    "forgets lines": (Lies(drops=4), 8),
    "was overloaded": (Lies(overloaded=5), 5),
    "refuses lines": (Lies(bad=5), 0),
    "begins its files with a mark": (Lies(bom=True), 0),
    "has an empty account for lines": (Lies(spent=5), 6),
    "loses the batch": (Lies(vanishes_after_s=100), 25),
    "expires with answers": (Lies(expires_after_s=300), 14),
    "refuses for want of room": (Lies(refuses_full=2), 0),
    "answers twice": (Lies(twice=True), 0),
    "breaks off": (Lies(breaks_off=3), 0),
    "writes garbage": (Lies(garbage=True), 0),
    "has no such API": (Lies(no_files_api=True), 25),
    "does not answer": (Lies(lost_answers=3), 0),
    "does not answer, and lists minutes late": (Lies(lost_answers=3, list_lags_s=400), 0),
    "does not answer, and is never over": (Lies(lost_answers=3, works_s=1e9), 25),
    "does not answer, and lists nothing": (Lies(lost_answers=3, no_list=True), 25),
    "is down": (Lies(always_down_after_s=0), 25),
    "is slow, and never hears": (Lies(works_s=1e9, ignores_cancel=999), 25),
}
"""What the provider does, and how many lines run here then."""


@pytest.mark.parametrize("lie", LIES)
def test_no_line_is_lost_or_asked_for_twice_where_the_provider(lie: str) -> None:
    """A part whose batch cannot be told from others waits, and is taken back in time; what is there is paid for once."""

    async def story(clock: LoopClock) -> None:
        lies, here = LIES[lie]
        stage = NativeStage(clock, replace(lies), is_inline=True)
        stage.worker.start()
        await stage.accept_batch(25)

        job = await stage.ended()

        assert job.state is JobState.SUCCEEDED
        assert job.tally.failed == (6 if lie == "refuses lines" else 0)
        assert max(stage.provider.served.values(), default=1) == 1
        assert len(stage.provider.batches) <= 3, "no part was submitted a second time"
        assert (len(stage.tries), len(set(stage.tries))) == (here, here)

    run(story)


@pytest.mark.parametrize("works_s", sampled([10.0, 100.0], lambda works_s: works_s == 10.0))
def test_a_death_between_any_two_steps_submits_nothing_twice_and_loses_nothing(works_s: float) -> None:
    """Also where the batches of other parts have as many lines, so that only their results tell whose they are."""
    steps = run(lambda clock: told(clock, [], is_inline=True, works_s=works_s)).life.steps

    for last in range(1, steps + 1):
        stage = run(lambda clock, last=last: told(clock, [last], is_inline=True, works_s=works_s))  # type: ignore[misc]  # bound at once

        check_books(stage)
        tally = run_tally(stage)
        assert (tally.completed, tally.cost_usd) == (12, pytest.approx(12 * PRICE_USD)), last


def test_lines_that_run_here_name_a_version_and_fail_in_their_owners_shape() -> None:
    """They have no headers; and nobody reads OpenAI's errors in a batch of Messages."""

    async def story(clock: LoopClock) -> None:
        seen = set()

        def script(request: StoredRequest, _try: int) -> InvalidRequest:
            seen.add(dict(request.headers)[b"anthropic-version"])
            return InvalidRequest("No such field.", param="n")

        stage = Stage(clock, script=script, endpoint="/v1/messages")
        stage.worker.start()
        await stage.accept_batch(3)
        await stage.end_of("batch_1")

        bodies = [line["response"]["body"] for line in stage.lines["batch_1"]]
        assert [(body["type"], body["error"]["type"]) for body in bodies] == [("error", "invalid_request_error")] * 3
        assert seen == {b"2023-06-01"}
        await stage.worker.aclose()

    run(story)


def test_a_batch_that_is_gone_is_asked_for_again_after_a_long_time_only() -> None:
    """The list alone has to tell, which may lag behind, and what was sent may be on its way."""

    async def story(clock: LoopClock) -> None:
        stage = NativeStage(clock, Lies(lost_answers=1, vanishes_after_s=0), is_inline=True)
        stage.worker.start()
        await stage.accept_batch(5)
        while len(stage.provider.batches) < 2:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(1)
        first, second = stage.provider.batches.values()
        assert second.made_at - first.made_at >= rules.INLINE_SETTLED_S > rules.INLINE_SENT_S + 120
        await stage.ended()

    run(story)


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_request_that_stands_still_or_is_slow_is_made_once(is_sent: bool) -> None:
    """Stopped before its last piece it is too late when it goes on, and another's is the only one; on its way for minutes it is
    waited for.
    """

    async def story(clock: LoopClock) -> None:
        awakes = asyncio.Event()

        async def stands_still() -> None:
            while not awakes.is_set():
                with suppress(asyncio.CancelledError):  # it does not hear that its claim is lost
                    await awakes.wait()

        lies = Lies(stands_still_sent=stands_still) if is_sent else Lies(stands_still=stands_still)
        stage = NativeStage(clock, lies, native_rules(part_lines=25), is_inline=True)
        stage.worker.start()
        await stage.accept_batch(25)
        await asyncio.sleep(30)
        stage.begin_life().start()
        await asyncio.sleep(150 if is_sent else 900)
        assert len(stage.provider.batches) == (0 if is_sent else 1)
        awakes.set()
        job = await stage.ended()

        assert (len(stage.provider.batches), set(stage.provider.served.values())) == (1, {1})
        assert (job.tally.completed, stage.tries, stage.left_behind) == (25, [], set())

    run(story)


def test_a_batch_that_is_cancelled_keeps_what_was_done() -> None:
    """Also where its worker dies on the way back."""
    for last in (-1, 2, 5):
        stage = run(lambda clock, last=last: told(clock, [12, last], cancel_at=1, is_inline=True, cancels_s=5.0))  # type: ignore[misc]  # bound at once

        assert len(stage.provider.batches) <= 2
        assert run_tally(stage).completed == len(stage.lines["batch_1"]) == len(stage.provider.served)
        assert (stage.tries, stage.left_behind) == ([], set())
