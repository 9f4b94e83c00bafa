"""What every store of jobs promises of the responses that it keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.products.jobs.response_store import REMOVED_S, KeptBounds, KeptResponses
from gateway.products.jobs.transitions import OpenBounds
from tests.support.conformance import Wall
from tests.support.job_stores import DAY_S, HOUR_S, Jobs, MakeJobStore
from tests.support.memory_store.store import MemoryJobStore


async def there(responses: KeptResponses, *names: str, tenant: str = "t") -> list[str]:
    return [name for name in names if await responses.find(name, tenant) is not None]


async def test_a_response_is_found_as_it_was_put(jobs: Jobs) -> None:
    """Bytes as they are; nobody else finds it."""
    response = jobs.response("r1", previous_id="r0", body=b'{"a":"\\u0000\xff"}\n', input_items=b'[{"b":1}]')
    responses = jobs.store.responses
    await responses.put(response)
    assert await responses.find("r1", "t") == response
    assert await responses.find("r1", "u") is None
    assert await responses.find("r2", "t") is None


async def test_one_with_the_same_id_takes_its_place(jobs: Jobs) -> None:
    """A worker that comes back puts it again; ids of tenants do not meet."""
    responses = jobs.store.responses
    await responses.put(jobs.response("r1"))
    await responses.put(jobs.response("r1", tenant="u", body=b"theirs"))
    again = jobs.response("r1", body=b"again", previous_id="r0")
    await responses.put(again)
    assert await responses.find("r1", "t") == again
    theirs = await responses.find("r1", "u")
    assert theirs is not None
    assert theirs.body == b"theirs"


async def test_a_removed_response_is_not_kept_again(jobs: Jobs) -> None:
    """By a worker that did not hear of it. After a day nobody can mean that one any more."""
    responses = jobs.store.responses
    response = jobs.response("r1", keep_until=jobs.wall() + 30 * DAY_S)
    await responses.put(response)
    assert await responses.remove("r1", "u") is False
    assert await responses.remove("r1", "t") is True
    assert await responses.remove("r1", "t") is False
    await responses.put(response)
    await responses.put(replace(response, tenant="u"))
    assert await there(responses, "r1") == []
    assert await there(responses, "r1", tenant="u") == ["r1"]
    jobs.wall.advance(REMOVED_S - 1)
    await responses.trim(10)
    await responses.put(response)
    assert await there(responses, "r1") == []
    jobs.wall.advance(2)
    await responses.trim(10)
    await responses.put(response)
    assert await there(responses, "r1") == ["r1"]


async def test_what_was_never_there_is_kept_unless_it_was_expected(jobs: Jobs) -> None:
    """A response may be deleted while it is made."""
    responses = jobs.store.responses
    assert await responses.remove("r1", "t") is False
    assert await responses.remove("r2", "t", is_expected=True) is False
    for name in ("r1", "r2"):
        await responses.put(jobs.response(name))
    assert await there(responses, "r1", "r2") == ["r1"]


async def test_a_response_is_gone_when_its_time_is_over(jobs: Jobs) -> None:
    """It is not found from then on, and trimmed a few at a time."""
    responses = jobs.store.responses
    for number in range(5):
        await responses.put(jobs.response(f"r{number}", keep_until=jobs.wall() + HOUR_S + number))
    await responses.put(jobs.response("r0", keep_until=jobs.wall() + DAY_S))
    assert await responses.trim(10) == 0
    jobs.wall.advance(HOUR_S + 3)
    assert await there(responses, "r0", "r1", "r2", "r3", "r4") == ["r0", "r4"]
    assert [await responses.trim(2), await responses.trim(2)] == [2, 1]
    jobs.wall.advance(1)
    assert await responses.remove("r4", "t") is False
    assert await there(responses, "r0", "r4") == ["r0"]


async def test_a_chain_goes_back_to_its_beginning(jobs: Jobs) -> None:
    responses = jobs.store.responses
    links = [jobs.response(f"r{number}", previous_id=f"r{number - 1}" if number else "") for number in range(5)]
    for link in links:
        await responses.put(link)
    assert list(await responses.chain("r4", "t", 64)) == links[::-1]
    assert list(await responses.chain("r4", "t", 2)) == [links[4], links[3]]
    assert list(await responses.chain("r4", "t", 64, 2 * links[0].bytes)) == links[4:1:-1]
    assert list(await responses.chain("r9", "t", 64)) == []
    assert list(await responses.chain("r4", "u", 64)) == []


async def test_a_chain_ends_where_one_is_gone(jobs: Jobs) -> None:
    """Also one of another tenant, and one that was there before."""
    responses = jobs.store.responses
    await responses.put(jobs.response("r0"))
    await responses.put(jobs.response("r1", previous_id="r0"))
    await responses.put(jobs.response("r2", previous_id="r1", keep_until=jobs.wall() + 2 * DAY_S))
    await responses.put(jobs.response("theirs", tenant="u", previous_id="r2"))
    await responses.put(jobs.response("ring", previous_id="rung"))
    await responses.put(jobs.response("rung", previous_id="ring"))
    await responses.remove("r0", "t")
    assert [one.id for one in await responses.chain("r2", "t", 64)] == ["r2", "r1"]
    assert [one.id for one in await responses.chain("theirs", "u", 64)] == ["theirs"]
    assert [one.id for one in await responses.chain("ring", "t", 64)] == ["ring", "rung"]
    jobs.wall.advance(DAY_S)
    assert [one.id for one in await responses.chain("r2", "t", 64)] == ["r2"]


async def test_those_put_first_go_early_where_there_is_no_room(
    make_store: MakeJobStore, wall: Wall, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the same tenant, counted, and said in the log once; one that was put again is the newest."""
    jobs = Jobs(make_store(OpenBounds(), KeptBounds(tenant_bytes=1000)), wall)
    responses = jobs.store.responses
    size = {"body": b"x" * 200, "input_items": b"y" * 50}
    await responses.put(jobs.response("theirs", tenant="u", **size))
    for number in range(4):
        await responses.put(jobs.response(f"r{number}", **size))
    await responses.put(jobs.response("r0", **size))
    assert responses.early == 0
    for number in (4, 5):
        await responses.put(jobs.response(f"r{number}", **size))
    assert await there(responses, *[f"r{number}" for number in range(6)]) == ["r0", "r3", "r4", "r5"]
    assert await there(responses, "theirs", tenant="u") == ["theirs"]
    assert responses.early == 2
    assert sum("max_response_bytes_per_tenant" in record.getMessage() for record in caplog.records) == 1

    await responses.put(jobs.response("large", body=b"x" * 700))
    assert await there(responses, *[f"r{number}" for number in range(6)], "large") == ["r5", "large"]


async def test_one_that_has_no_room_at_all_leaves_the_others(make_store: MakeJobStore, wall: Wall) -> None:
    """Nobody pays for it with all that they have; what it was to replace is gone."""
    jobs = Jobs(make_store(OpenBounds(), KeptBounds(tenant_bytes=1000)), wall)
    responses = jobs.store.responses
    for name in ("r1", "r2"):
        await responses.put(jobs.response(name))
    await responses.put(jobs.response("r2", body=b"x" * 1000))
    assert await there(responses, "r1", "r2") == ["r1"]
    assert responses.early == 1


async def test_what_is_gone_leaves_room(make_store: MakeJobStore, wall: Wall) -> None:
    """Removed, replaced by a smaller one, or trimmed."""
    jobs = Jobs(make_store(OpenBounds(), KeptBounds(tenant_bytes=1000)), wall)
    responses = jobs.store.responses
    for turn in range(3):
        await responses.put(jobs.response(f"a{turn}", body=b"x" * 900))
        await responses.remove(f"a{turn}", "t")
        await responses.put(jobs.response(f"b{turn}", body=b"x" * 900))
        await responses.put(jobs.response(f"b{turn}", body=b"x" * 100, keep_until=wall() + 1))
        await responses.put(jobs.response(f"c{turn}", body=b"x" * 800, keep_until=wall() + 1))
        wall.advance(1)
        assert await responses.trim(10) == 2
    assert responses.early == 0


_STEP = st.tuples(
    st.sampled_from(["put", "put", "put", "remove", "pass", "trim"]), st.integers(0, 5), st.integers(0, 400)
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_STEP, max_size=40))
async def test_every_store_does_as_the_reference(
    make_store: MakeJobStore, wall: Wall, steps: list[tuple[str, int, int]]
) -> None:
    """Whatever happens in whichever order."""
    bounds = KeptBounds(tenant_bytes=1000)
    jobs = Jobs(make_store(OpenBounds(), bounds), wall)
    both = [jobs.store.responses, MemoryJobStore(wall, kept_bounds=bounds).responses]
    for what, which, size in steps:
        name, tenant = f"r{which}", "tu"[which % 2]
        if what == "put":
            one = jobs.response(
                name, tenant=tenant, body=b"x" * size * 2, keep_until=wall() + size, previous_id=f"r{(which + 2) % 6}"
            )
            for responses in both:
                await responses.put(one)
        elif what == "remove":
            assert len({await responses.remove(name, tenant, is_expected=size > 200) for responses in both}) == 1
        elif what == "pass":
            wall.advance(size * (1000 if size > 300 else 1))
        else:
            assert len({await responses.trim(which) for responses in both}) == 1
        chains = [list(await responses.chain(name, tenant, 4, 500)) for responses in both]
        assert chains[0] == chains[1]
        assert both[0].early == both[1].early
