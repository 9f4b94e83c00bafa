"""What operators see and do of webhooks: deliveries made again, once, under their old id; endpoints switched and tested."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.errors import InvalidRequest, NotFound
from gateway.drivers.outward import Unreachable
from gateway.products.jobs import worker
from gateway.products.jobs.model import JOB, JobState, new_id
from gateway.products.jobs.webhooks.http import WebhookAdmin
from gateway.products.jobs.webhooks.rules import REQUESTED
from tests.products.jobs.webhooks.hooks import Hooks, hook
from tests.products.jobs.webhooks.test_hook_urls import URL, told
from tests.support.virtual import LoopClock, run

ID, OTHER_ID = new_id(JOB, b"1" * 16), new_id(JOB, b"2" * 16)


@pytest.fixture(autouse=True)
def _long_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks for what nobody wakes it for once a minute: deliveries take days."""
    monkeypatch.setattr(worker, "LOOK_S", 60.0)


def desk_of(hooks: Hooks) -> WebhookAdmin:
    async def store() -> Any:
        return hooks.stage.store

    return WebhookAdmin(lambda: hooks.rules, hooks.endpoints, hooks.requested, store, hooks.clock)


def test_what_has_failed_is_told_again_once_under_its_old_id() -> None:
    """Of the endpoint that is named, since the time that is given; asked for twice, it is under way; the bytes are the same."""

    async def story(clock: LoopClock) -> None:
        hooks, began_at = Hooks(clock, hook("crm"), hook("erp")), clock.wall()
        hooks.script = lambda _url, _try: Unreachable("nobody there")
        hooks.worker.start()
        await hooks.stage.accept(ID, OTHER_ID)
        await hooks.all_told()
        desk, seen = desk_of(hooks), len(hooks.seen)
        before = {one.headers[b"webhook-id"]: one.event for one in hooks.attempts()}
        hooks.takes_s = lambda _url: 5.0
        hooks.script = lambda _url, _try: 200

        assert (await desk.redeliver_since("crm", clock.wall() + 1))["redelivered"] == 0
        assert await desk.redeliver_since("crm", began_at) == _told(redelivered=2)
        assert await desk.redeliver_since("crm", began_at) == _told(under_way=2)
        await hooks.all_told()
        assert await desk.redeliver_since("crm", began_at) == _told()
        again = hooks.seen[seen:]
        assert {one.headers[b"webhook-id"]: one.event for one in again} == before
        assert len(again) == 2
        await hooks.worker.aclose()

    run(story)


@pytest.mark.parametrize("which", ["job", "event", "delivery"])
def test_one_delivery_is_made_again_by_any_of_its_ids(which: str) -> None:
    """Delivered or not, again and again; one under way is left to it."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock, hook("crm"), hook("erp"))
        hooks.worker.start()
        await hooks.stage.accept(ID)
        await hooks.all_told()
        desk = desk_of(hooks)
        first = hooks.attempts()[0]
        id = {"job": ID, "event": first.event["id"], "delivery": first.headers[b"webhook-id"].decode()}[which]
        for _ in range(3):
            assert await desk.redeliver("crm", id) == _told(redelivered=1)
            assert await desk.redeliver("crm", id) == _told(under_way=1)
            await asyncio.sleep(1.0)
            await hooks.all_told()

        assert [(one.headers[b"webhook-id"], one.event) for one in hooks.attempts()] == 4 * [
            (first.headers[b"webhook-id"], first.event)
        ]
        assert {job.state for job in await hooks.deliveries()} == {JobState.SUCCEEDED}
        for wrong in (OTHER_ID, new_id("msg_gw", b"3" * 16), new_id("evt_gw", b"4" * 16)):
            with pytest.raises(NotFound, match="Nothing was to be told to 'crm'"):
                await desk.redeliver("crm", wrong)
        with pytest.raises(InvalidRequest, match="must be that of a job"):
            await desk.redeliver("crm", "batch_1")
        with pytest.raises(NotFound, match=r"'cmr' is no webhook; there are: crm, erp, \(requests\)"):
            await desk.redeliver("cmr", ID)
        await hooks.worker.aclose()

    run(story)


def test_urls_of_requests_are_told_again_too() -> None:
    """To the URL that was named, however its delivery has ended."""

    async def story(clock: LoopClock) -> None:
        hooks, began_at = Hooks(clock, hook(events=("batch.*",))), clock.wall()
        hooks.script = lambda _url, number: 410 if number == 0 else 200
        hooks.worker.start()
        await told(hooks, ID)
        await hooks.all_told()
        desk = desk_of(hooks)

        assert (await desk.redeliver_since(REQUESTED, began_at))["redelivered"] == 1
        await asyncio.sleep(1.0)
        await hooks.all_told()
        assert (await desk.redeliver(REQUESTED, ID))["redelivered"] == 1
        await asyncio.sleep(1.0)
        await hooks.all_told()
        assert len({one.headers[b"webhook-id"] for one in hooks.attempts(URL)}) == 1
        assert len(hooks.attempts(URL)) == 3
        shown = await desk.show()
        assert shown["requests"]["state"] == "allowed"
        assert [one["result"] for one in shown["requests"]["last"]] == ["ok", "ok", "gone"]
        assert "s3cret" not in str(shown)
        await hooks.worker.aclose()

    run(story)


def test_a_disabled_endpoint_hears_nothing_until_it_is_enabled() -> None:
    """What waits is shown; enabling also ends what a 410 or a rest has earned."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        desk = desk_of(hooks)
        hooks.worker.start()
        assert desk.switch("crm", on=False) == {"name": "crm", "state": "disabled"}
        await hooks.stage.accept(ID, OTHER_ID)
        await asyncio.sleep(300.0)
        row = (await desk.show())["webhooks"]["crm"]
        assert (hooks.seen, row["state"], row["waiting"]) == ([], "disabled", {"ready": 2, "later": 0, "claimed": 0})

        hooks.script = lambda _url, number: 410 if number < 2 else 200
        assert desk.switch("crm", on=True)["state"] == "ok"
        await asyncio.sleep(100.0)
        row = (await desk.show())["webhooks"]["crm"]
        assert (row["state"], [one["why"] for one in row["last"]]) == ("gone", 2 * ["the answer was 410"])
        desk.switch("crm", on=True)
        await hooks.all_told()
        assert len(hooks.seen) == 4
        with pytest.raises(InvalidRequest, match="allow_request_urls"):
            desk.switch(REQUESTED, on=False)
        await hooks.worker.aclose()

    run(story)


def test_a_test_is_sent_at_once_and_tells_the_answer() -> None:
    """Signed as all events are, to an endpoint in any state; nothing is stored."""

    async def story(clock: LoopClock) -> None:
        hooks = Hooks(clock)
        desk = desk_of(hooks)
        desk.switch("crm", on=False)
        hooks.script = lambda _url, number: (204, 500, Unreachable("nobody there"))[number]
        answers = [await desk.test("crm") for _ in range(3)]

        assert [(one["status"], one["result"], one["why"]) for one in answers] == [
            (204, "ok", None),
            (500, "failed", None),
            (None, "unreachable", "nobody there"),
        ]
        (first, *_) = hooks.seen
        assert (first.event["type"], first.event["data"]) == ("test", {"id": "crm"})
        assert first.headers[b"webhook-signature"].startswith(b"v1,")
        assert await hooks.deliveries() == []

    run(story)


def _told(*, redelivered: int = 0, under_way: int = 0) -> dict[str, Any]:
    return {"name": "crm", "redelivered": redelivered, "under_way": under_way, "more": False}
