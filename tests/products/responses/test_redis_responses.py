"""Logs of responses and kept responses that replicas share: who hears of events, lost answers, and what stays behind."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from gateway.drivers.durability import JobsUnavailable, OutcomeUnknown
from gateway.products.jobs.redis_responses import RedisKeptResponses
from gateway.products.jobs.response_store import KeptBounds, LogPage
from tests.support.conformance import Wall
from tests.support.job_stores import DAY_S, OURS, Jobs, part
from tests.support.redis_jobs import JobLender, PromptJobStore


@pytest.fixture
def two(job_lends: JobLender, wall: Wall) -> tuple[Jobs, Jobs]:
    """Two replicas."""
    first = Jobs(job_lends.make(wall=wall), wall)
    return first, Jobs(job_lends.make(wall=wall, is_replica=True), wall)


@pytest.fixture
def one(two: tuple[Jobs, Jobs]) -> Jobs:
    return two[0]


def patient(jobs: Jobs) -> Jobs:
    """Asks again where nobody answers."""
    assert isinstance(jobs.store, PromptJobStore)
    jobs.store.is_patient(yes=True)
    return jobs


async def test_a_reader_in_another_replica_is_woken(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """As soon as it has said that it waits, by each part; where nobody waits elsewhere, nothing is told."""
    writer, reader = two
    work = await writer.running_response(id="r1")
    woken = asyncio.Event()
    end = reader.store.events.watch("r1", woken.set)
    await asyncio.wait_for(woken.wait(), 5)  # it hears from now on
    for number in range(3):
        assert (await reader.log("r1", number - 1)).parts == []
        woken.clear()
        await writer.store.events.append(work, part(number))
        await asyncio.wait_for(woken.wait(), 5)
        assert (await reader.log("r1", number - 1)).parts == [part(number)]
    end()
    await writer.store.aclose()
    await reader.store.aclose()


async def test_where_only_the_writer_reads_nothing_is_told(two: tuple[Jobs, Jobs], job_lends: JobLender) -> None:
    """A message costs every replica something."""
    writer, reader = two
    with Redis.from_url(job_lends.url) as client:

        def told() -> int:
            return int(client.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"])

        work = await writer.running_response(id="r1")
        end = writer.store.events.watch("r1", lambda: None)
        await writer.log("r1")
        await reader.log("r1")  # a look, after which nobody waits
        before = told()
        await writer.store.events.append(work, part(0))
        assert told() == before
        ends = end, reader.store.events.watch("r1", lambda: None)
        await reader.log("r1")
        await writer.log("r1")  # does not make the other one's waiting forgotten
        await writer.store.events.append(work, part(1))
        assert told() == before + 1
    for end in ends:
        end()
    await writer.store.aclose()
    await reader.store.aclose()


async def test_parts_that_come_together_are_a_few_scripts(one: Jobs, job_lends: JobLender) -> None:
    """With their own answers, one of them of a claim that has ended; large ones not all in one."""
    works = [await one.running_response(id=f"r{number}") for number in range(20)]
    await one.finish(works[7])
    ran = job_lends.links[0].ran
    ran.clear()
    told = await asyncio.gather(*(one.store.events.append(work, part(0)) for work in works))
    assert ran.count("jobs_events_append") <= 3
    assert [number for number, answer in enumerate(told) if answer != OURS] == [7]

    ran.clear()
    await asyncio.gather(*(one.store.events.append(work, part(1, text="x" * 500_000)) for work in works))
    assert 7 <= ran.count("jobs_events_append") <= 20


async def test_what_nobody_heard_of_is_sent_again(one: Jobs, job_lends: JobLender) -> None:
    """A part by its writer, a response and a removal by the store; each is done once."""
    patient(one)
    work = await one.running_response(id="r1")
    lost = job_lends.links[0].lost
    lost.update(jobs_events_append=1)
    with pytest.raises(JobsUnavailable):
        await one.store.events.append(work, part(0))
    for number in range(2):
        await one.store.events.append(work, part(number))
    assert await one.log("r1") == LogPage(work.fence, [part(0), part(1)])

    responses = one.store.responses
    lost.update(jobs_kept_put=1, jobs_kept_remove=1)
    await responses.put(one.response("r1"))
    assert await responses.find("r1", "t") == one.response("r1")
    assert await responses.remove("r1", "t") is True
    assert await responses.remove("r1", "t") is False
    assert not +lost


async def test_what_nobody_knows_is_said(one: Jobs, job_lends: JobLender) -> None:
    """A response that may be kept, or not."""
    job_lends.links[0].unheard.add("jobs_kept_put")
    with pytest.raises(OutcomeUnknown):
        await one.store.responses.put(one.response("r1"))


async def test_a_log_whose_end_the_redis_has_lost_is_cut(one: Jobs, job_lends: JobLender) -> None:
    """It was killed within a second of the last parts: a gap is never read, and the next generation is whole."""
    work = await one.running_response(id="r1")
    await one.store.events.append(work, part(0))
    with Redis.from_url(job_lends.url) as client:
        (name,) = client.scan_iter(match=f"{job_lends.namespace}:*:j:r1", count=1000)
        before = client.hget(name, "e")
        await one.store.events.append(work, part(1))
        client.hset(name, "e", before)
        (parts,) = client.scan_iter(match=f"{job_lends.namespace}:*:ev:r1", count=1000)
        client.xtrim(parts, maxlen=1)
    await one.store.events.append(work, part(2))
    assert await one.log("r1") == LogPage(work.fence, [], is_cut=True)
    await one.give_back(work)
    again = await one.claim()
    await one.store.events.append(again, part(0))
    assert (await one.log("r1")).parts == [part(0)]


async def test_nothing_stays_behind(one: Jobs, job_lends: JobLender) -> None:
    """When jobs are forgotten, and responses removed, trimmed or gone early."""

    def names() -> set[str]:
        with Redis.from_url(job_lends.url) as client:
            found = [key.decode() for key in client.scan_iter(match=f"{job_lends.namespace}:*", count=1000)]
        return {name.split("}:")[1].split(":")[0] for name in found}

    work = await one.running_response(id="r1")
    await one.store.events.append(work, part(0))
    for number in range(3):
        await one.store.responses.put(one.response(f"r{number}", keep_until=one.wall() + 10))
    assert {"ev", "kept", "puts", "kept_over", "kept_bytes"} <= names()
    await one.finish(work)
    await one.store.responses.remove("r1", "t")
    one.wall.advance(DAY_S)
    await one.store.forget_ended(one.wall(), 10)
    await one.store.responses.trim(10)
    left = names()
    assert not left & {"j", "ev", "kept", "puts", "kept_over", "kept_bytes"}
    assert "unkept" in left  # for a day, by the server's own clock


async def test_responses_cost_the_same_however_many_there_are(job_lends: JobLender, wall: Wall) -> None:
    """As many commands with two thousand of a tenant as with ten, want of room among it; much room is made in short steps."""
    bounds = KeptBounds(tenant_bytes=2_000_000)
    jobs = Jobs(job_lends.make(wall=wall, kept_bounds=bounds), wall)
    responses, ran = jobs.store.responses, job_lends.links[0].ran
    assert isinstance(responses, RedisKeptResponses)
    body = b"x" * 998
    costs = []
    with Redis.from_url(job_lends.url) as client:
        for number in (10, 2000):
            await asyncio.gather(*(responses.put(jobs.response(f"r{one}", body=body)) for one in range(number)))
            before = client.info("stats")["total_commands_processed"]
            await responses.put(jobs.response(f"new{number}", body=body))
            await responses.chain(f"r{number - 1}", "t", 10)
            await responses.remove(f"r{number - 1}", "t")
            await responses.trim(10)
            costs.append(client.info("stats")["total_commands_processed"] - before)
    assert responses.early == 1
    assert costs[1] - costs[0] <= 10  # the one that made room

    ran.clear()
    await responses.put(jobs.response("large", body=b"x" * 1_500_000))
    assert ran.count("jobs_kept_put") == 15
    assert responses.early == 1 + 1500


async def test_a_long_chain_is_read_in_short_steps(one: Jobs, job_lends: JobLender) -> None:
    """An answer of many MiB would hold up everybody; a ring ends where it closes, in whichever step."""
    links = [one.response(f"r{number}", previous_id=f"r{(number - 1) % 9}", body=b"x" * 400_000) for number in range(9)]
    for link in links:
        await one.store.responses.put(link)
    ran = job_lends.links[0].ran
    ran.clear()
    found = await one.store.responses.chain("r8", "t", 64)
    assert [response.id for response in found] == [link.id for link in links[::-1]]
    assert ran.count("jobs_kept_chain") == 3
