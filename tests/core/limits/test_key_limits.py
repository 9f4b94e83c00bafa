"""What a key may use, whatever target serves it: taken before, corrected after, kept over reloads."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.core.errors import KeyRateLimited
from gateway.core.limits.limit_table import Limits, LimitSet
from gateway.core.snapshot import Key
from gateway.core.types import ErrorClass, Usage
from tests.support.flow import Bench, ScriptedUpstream, failed, streamed, whole

DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 30}}\n\n'
WORD = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'


def key(name: str = "web", **limits: float) -> Key:
    return Key(name, name, name.encode(), limits=Limits(**limits))  # type: ignore[arg-type]  # fields by name


def one(*scripts: object, **limits: float) -> Bench:
    return Bench([ScriptedUpstream(*scripts)], keys=[key(**limits)])  # type: ignore[arg-type]  # scripts


def levels(bench: Bench, name: str = "web") -> dict[str, float]:
    return {row.name: row.level for row in bench.admission.keys.sets[name].table.rows(bench.clock.now)}


def reload(bench: Bench, *keys: Key) -> None:
    bench.admission.install(replace(bench.policy, keys={key.digest: key for key in keys}))


async def test_a_key_over_its_limit_is_told_when_to_come_back() -> None:
    """429 of our own, with the name of the limit and the exact time; nothing goes upstream, and nothing is held."""
    bench = one(whole(), whole(), requests_per_min=1)
    await bench.serve()

    with pytest.raises(KeyRateLimited) as refused:
        await bench.serve()

    assert (refused.value.status, refused.value.code) == (429, "key_rate_limited")
    assert refused.value.retry_after_s == pytest.approx(60)
    assert refused.value.should_retry
    assert refused.value.limit == "web requests_per_min"
    assert "'web'" in refused.value.message
    assert len(bench.upstreams[0].sent) == 1
    assert bench.clock.timers == []
    bench.clock.advance(refused.value.retry_after_s or 0)
    await bench.serve()


async def test_a_long_wait_is_nothing_to_be_retried_by_an_sdk() -> None:
    """A day's limit comes back tomorrow."""
    bench = one(whole(), requests_per_day=1)
    await bench.serve()

    with pytest.raises(KeyRateLimited) as refused:
        await bench.serve()

    assert refused.value.retry_after_s == pytest.approx(86_400)
    assert refused.value.should_retry is False


async def test_the_limit_of_one_key_is_no_other_keys() -> None:
    """Each has its own level; a key without limits has none."""
    bench = Bench([ScriptedUpstream(*[whole()] * 4)], keys=[key("web", requests_per_min=1), key("batch")])

    for name in ("web", "batch", "batch", "batch"):
        await bench.serve(key=bench.policy.keys[name.encode()])

    assert bench.admission.keys.sets.keys() == {"web"}
    with pytest.raises(KeyRateLimited):
        await bench.serve()


async def test_a_success_costs_what_it_used() -> None:
    """The estimate before, the provider's count after."""
    bench = one(whole(), requests_per_min=10, tokens_per_min=5000)

    await bench.serve()

    assert levels(bench) == {"requests_per_min": 9, "tokens_per_min": 5000 - 1010}


async def test_a_stream_costs_what_it_used_when_it_ends() -> None:
    """Until then the estimate is taken."""
    bench = one(streamed(WORD, USAGE, DONE), tokens_per_min=5000)
    reply = await bench.pipeline.handle(bench.call(stream=True))
    assert reply.chunks is not None
    assert levels(bench)["tokens_per_min"] < 5000 - 500

    async for _ in reply.chunks:
        pass
    await reply.close()

    assert levels(bench)["tokens_per_min"] == 5000 - 50


async def test_a_failure_costs_a_request() -> None:
    """Its tokens come back."""
    bench = one(failed(ErrorClass.SERVER_ERROR), requests_per_min=10, tokens_per_min=5000)

    with pytest.raises(Exception, match="No target"):
        await bench.serve()

    assert levels(bench) == {"requests_per_min": 9, "tokens_per_min": 5000}


async def test_each_refused_call_gets_its_place_in_the_line() -> None:
    """Thirty calls above a key's rate come back as they are told: each is served at its first or second return."""
    bench = one(*[whole()] * 31, requests_per_min=60, request_burst=1.0)
    await bench.serve()
    tried = 0

    async def client() -> None:
        nonlocal tried
        while True:
            tried += 1
            try:
                await bench.serve()
            except KeyRateLimited as refused:
                told_s.append(refused.retry_after_s or 0.0)
                event = asyncio.Event()
                bench.clock.call_at(bench.clock.now + told_s[-1] + 0.001, event.set)
                await event.wait()
            else:
                return

    told_s: list[float] = []
    clients = [asyncio.create_task(client()) for _ in range(30)]
    for _ in range(40):
        for _ in range(200):
            await asyncio.sleep(0)
        bench.clock.advance(1.0)

    assert all(task.done() for task in clients)
    assert told_s[:30] == [pytest.approx(1.0 + place) for place in range(30)]
    assert tried <= 62


async def test_a_client_that_leaves_frees_its_slot() -> None:
    """Once."""
    bench = one(streamed(asyncio.Event()), max_concurrency=1)
    task = asyncio.create_task(bench.serve(stream=True))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(bench.upstreams[0].sent) == 1
    with pytest.raises(KeyRateLimited) as refused:
        await bench.serve()
    assert refused.value.retry_after_s == 1.0  # nobody knows how long a slot is held

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert levels(bench) == {"concurrency": 1}


async def test_a_call_is_counted_once_however_often_it_is_tried() -> None:
    """A second target, or the same one after a 429, is no second request of the key."""
    bench = Bench(
        [ScriptedUpstream(whole(b"{}", 429, (b"retry-after-ms", b"0")), failed()), ScriptedUpstream(whole())],
        keys=[key(requests_per_min=10)],
    )

    await bench.serve()

    assert len(bench.account.call.attempts) == 3
    assert levels(bench) == {"requests_per_min": 9}


async def test_a_call_larger_than_the_limit_waits_for_all_of_it() -> None:
    """It is not refused for ever: the key's owner would not know why."""
    bench = one(whole(), tokens_per_min=100)

    await bench.serve()

    assert levels(bench)["tokens_per_min"] == 100 - 1010


async def test_levels_survive_a_reload() -> None:
    """New numbers are in force at once, what was used stays used."""
    bench = one(whole(), whole(), requests_per_min=2)
    await bench.serve()

    reload(bench, key(requests_per_min=10))

    assert levels(bench) == {"requests_per_min": 1}


async def test_a_key_that_is_limited_no_more_is_forgotten() -> None:
    """Calls that were counted by the old limit end in peace, also when it has come back in between."""
    bench = one(whole(), tokens_per_min=5000)
    call = bench.call()
    assert bench.admission.keys.try_enter(call, bench.admission.keys.cost_of(call, 100), bench.clock.now)

    reload(bench, key())
    assert bench.admission.keys.sets == {}
    bench.admission.keys.settle(call, Usage(100, 5), bench.clock.now)
    assert call.key_cost is None

    second = bench.call()
    reload(bench, key(tokens_per_min=5000))
    assert bench.admission.keys.try_enter(second, bench.admission.keys.cost_of(second, 100), bench.clock.now)
    reload(bench, key())
    bench.clock.advance(1)
    reload(bench, key(tokens_per_min=5000))
    bench.admission.keys.settle(second, Usage(4000, 5), bench.clock.now)
    assert levels(bench) == {"tokens_per_min": 5000}


def test_a_call_is_settled_once() -> None:
    """A second time changes nothing."""
    bench = one(tokens_per_min=5000)
    call = bench.call()
    assert bench.admission.keys.try_enter(call, bench.admission.keys.cost_of(call, 100), bench.clock.now)

    for _ in range(2):
        bench.admission.keys.settle(call, Usage(100, 5), bench.clock.now)

    assert levels(bench) == {"tokens_per_min": 4895}


def test_input_and_output_may_be_limited_apart() -> None:
    """As they may be for a target."""
    bench = one(input_tokens_per_min=1000, output_tokens_per_min=500)

    (limits,) = bench.admission.keys.sets.values()

    assert isinstance(limits, LimitSet)
    assert levels(bench) == {"input_tokens_per_min": 1000, "output_tokens_per_min": 500}
