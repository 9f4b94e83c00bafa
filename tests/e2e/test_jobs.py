"""Durable calls over the wire: a real gateway with its jobs in a file, a real provider, callers of two tenants.

What only a process can lose (a kill, a full disk) is in `test_batch_crash.py` and `products/jobs/`; here a gateway starts,
stops and starts again in this one.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs import answers_http as job_events
from gateway.products.jobs import worker
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import (
    ASYNC,
    NIGHTLY,
    QUICK,
    WEB,
    ask,
    becomes,
    end_of,
    files_of_jobs,
    look,
    new_job,
    policies,
    result_of,
    take,
    with_jobs,
)
from tests.e2e.harness import KEYS, Running, chat, config_of, connect, get, post, until
from tests.e2e.replaying import hold
from tests.rows import rows

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
ONE_AT_A_TIME = {"segments": {"all": {"concurrency": 1}}}
"""For jobs.yaml."""
SECRET = "a-secret-of-the-prompt-5f3e"  # it is to be found nowhere


@pytest.fixture
async def gateway(start: StartGateway, tmp_path: Path) -> Running:
    """A gateway with jobs."""
    return await start(with_jobs(tmp_path))


def prompts(gateway: Running) -> list[str]:
    """What the provider was asked, in order."""
    bodies = [orjson.loads(one["body"]) if isinstance(one["body"], str) else one["body"] for one in gateway.received()]
    return [body["messages"][0]["content"] for body in bodies]


def saying(words: str, **extra: Any) -> dict[str, Any]:
    """A chat request with this prompt."""
    return {**chat(**extra), "messages": [{"role": "user", "content": words}]}


# `Prefer: respond-async`.


@pytest.mark.parametrize("path", [CHAT, "/chat/completions"])
async def test_a_call_becomes_a_job_and_its_answer_waits(gateway: Running, path: str) -> None:
    """202 says where and when to look; there the provider's answer is, byte for byte."""
    accepted = await ask(gateway.url, post(path, chat(), WEB, ASYNC))
    job = orjson.loads(accepted.body)
    answer = await result_of(gateway.url, job["id"])
    again = await result_of(gateway.url, job["id"])

    assert accepted.status == 202
    assert accepted.header("location") == f"/v1/jobs/{job['id']}"
    assert accepted.header("preference-applied") == "respond-async"
    assert accepted.header("retry-after") == "2"
    assert accepted.header("openai-poll-after-ms") == "2000"
    assert (job["object"], job["kind"], job["endpoint"], job["model"]) == ("job", "call", CHAT, "gpt-4o")
    assert answer.status == 200
    assert answer.header("x-gateway-job") == job["id"]
    assert orjson.loads(answer.body)["object"] == "chat.completion"
    assert again.body == answer.body
    assert gateway.upstream_calls() == 1


async def test_a_caller_that_waits_long_enough_has_the_usual_answer(gateway: Running) -> None:
    """A whole one, a streamed one and embeddings: those of the provider, and what is kept is the same."""
    waits = "prefer: respond-async, wait=60"
    for path, body in (
        (CHAT, chat()),
        (CHAT, chat(stream=True)),
        (EMBEDDINGS, {"model": "text-embedding-3-small", "input": "hello"}),
    ):
        answer = await ask(gateway.url, post(path, body, WEB, waits))
        kept = await result_of(gateway.url, answer.header("x-gateway-job") or "")

        assert (answer.status, answer.header("preference-applied")) == (200, "respond-async")
        assert kept.body == answer.body
        if body.get("stream"):
            assert (answer.header("content-type") or "").startswith("text/event-stream")
            assert answer.body.endswith(b"data: [DONE]\n\n")
        else:
            assert orjson.loads(answer.body)["usage"]


async def test_a_caller_that_waits_too_short_has_the_place_of_the_answer(gateway: Running) -> None:
    """The connection is let go, the call is not."""
    may_end = hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)

    accepted = await ask(gateway.url, post(CHAT, chat(), WEB, "prefer: respond-async, wait=1"))
    job = orjson.loads(accepted.body)
    may_end.set()

    assert (accepted.status, job["status"]) == (202, "running")
    assert (await result_of(gateway.url, job["id"])).status == 200
    assert gateway.upstream_calls() == 1


async def test_a_caller_whose_job_is_taken_is_not_sent_away(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that cannot be read behind the accept is no reason: a refused call would be sent, and paid for, again."""
    await end_of(gateway.url, (await take(gateway.url, new_job()))["id"])

    async def fail(_store: SqliteJobStore, _job_id: str, _tenant: str | None) -> None:
        raise JobsUnavailable("The disk says nothing.")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteJobStore, "find", fail)
        accepted = await ask(gateway.url, post(CHAT, chat(), WEB, "prefer: respond-async, wait=5"))

    assert accepted.status == 202, accepted.raw
    assert (await result_of(gateway.url, orjson.loads(accepted.body)["id"])).status == 200


async def test_a_caller_that_waits_hears_of_its_job_when_the_gateway_stops(start: StartGateway, tmp_path: Path) -> None:
    """Before the grace is over, and by the place of the answer: to a refusal it would send the call again."""
    gateway = await start(with_jobs(tmp_path, server={"grace": "20s"}))
    may_end = hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    asked = asyncio.create_task(ask(gateway.url, post(CHAT, chat(), WEB, "prefer: respond-async, wait=600")))
    await until(lambda: gateway.upstream_calls() == 1)
    draining = asyncio.create_task(gateway.gateway.drain(asyncio.Event()))
    accepted = await asked
    is_drained = draining.done()
    may_end.set()
    await draining

    assert (accepted.status, is_drained) == (202, False)


async def test_a_caller_that_leaves_takes_nothing_with_it(gateway: Running) -> None:
    """The job was durable before its caller waited."""
    may_end = hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    async with connect(gateway.url) as peer:
        peer.send(post(CHAT, chat(), WEB, "prefer: respond-async, wait=600"))
        await until(lambda: gateway.upstream_calls() == 1)
    await gateway.idle()
    may_end.set()
    (job,) = orjson.loads((await ask(gateway.url, get("/v1/jobs", WEB))).body)["data"]

    assert (await result_of(gateway.url, job["id"])).status == 200
    assert gateway.upstream_calls() == 1


async def test_the_sdk_reads_the_result_of_a_job(gateway: Running) -> None:
    """An SDK that sends the header has its usual object where it waits, and the job where it does not."""
    async with gateway.sdk() as client:
        waits = {"prefer": "respond-async, wait=60"}
        message: Any = [{"role": "user", "content": "hello"}]
        completion = await client.chat.completions.create(model="gpt-4o", messages=message, extra_headers=waits)
        accepted = await client.chat.completions.with_raw_response.create(
            model="gpt-4o", messages=message, extra_headers={"prefer": "respond-async"}
        )

    assert completion.choices[0].message.content
    assert accepted.status_code == 202
    assert accepted.headers["location"].startswith("/v1/jobs/job_gw")


@pytest.mark.parametrize("section", [{"jobs": "off"}, {"jobs": {"store": "off"}}], ids=str)
async def test_where_there_are_no_jobs_the_preference_is_ignored(start: StartGateway, section: dict[str, Any]) -> None:
    """As RFC 7240 has it for what a server does not know; the resource is not there, and no file is made."""
    gateway = await start(lambda url: config_of(url, keys=KEYS, **section))

    plain = await ask(gateway.url, post(CHAT, chat(), WEB, ASYNC))
    refused = [await ask(gateway.url, one) for one in (new_job(), get("/v1/jobs", WEB), get("/v1/jobs/job_gw1", WEB))]

    assert (plain.status, plain.header("preference-applied")) == (200, None)
    assert [answer.status for answer in refused] == [404] * 3
    assert [answer.error["code"] for answer in refused] == ["jobs_off"] * 3
    assert [one.name for one in gateway.config_path.parent.iterdir()] == ["config.yaml"]


async def test_without_their_redis_jobs_are_refused_and_calls_are_served(start: StartGateway) -> None:
    """The gateway starts and is ready, and says so; the refusal says that it passes."""
    gateway = await start(lambda url: config_of(url, keys=KEYS, state="redis://127.0.0.1:1/0"))

    plain, refused = [await ask(gateway.url, one) for one in (post(CHAT, chat(), WEB), new_job())]
    ready = await ask(gateway.url, get("/readyz"))

    assert plain.status == ready.status == 200
    assert (refused.status, refused.error["code"], refused.header("retry-after")) == (503, "jobs_unavailable", "5")
    assert orjson.loads(ready.body)["jobs"] == "unavailable"


async def test_a_gateway_that_is_never_asked_for_a_job_makes_no_file(gateway: Running, tmp_path: Path) -> None:
    """Plain calls leave nothing behind."""
    assert (await ask(gateway.url, post(CHAT, chat(), WEB))).status == 200
    assert not files_of_jobs(tmp_path)


# The resource.


async def test_a_job_is_made_shown_listed_followed_and_fetched(gateway: Running) -> None:
    """From 202 to its answer, by all ways there are."""
    job = await take(gateway.url, new_job(metadata={"order": "4711"}, priority=7, max_attempts=3))
    other = await take(gateway.url, new_job(metadata={"order": "4712"}, body=saying("another")))
    ended = await end_of(gateway.url, job["id"])
    await end_of(gateway.url, other["id"])
    events = await ask(gateway.url, get(f"/v1/jobs/{job['id']}/events", WEB))
    listed = [
        orjson.loads((await ask(gateway.url, get(f"/v1/jobs{query}", WEB))).body)
        for query in ("", "?metadata[order]=4711", "?status=failed,cancelled", "?limit=1", f"?after={other['id']}")
    ]

    for query, param in (("?order=asc", "order"), ("?after=job_gwnobodys", "after")):
        refused = await ask(gateway.url, get(f"/v1/jobs{query}", WEB))
        assert (refused.status, refused.error["param"]) == (400, param)
    assert (job["status"], job["attempts"]["max"], job["priority"]) == ("queued", 3, 7)
    assert ended["status"] == "succeeded"
    assert ended["attempts"]["made"] == 1
    assert ended["progress"] == {"total": 1, "done": 1, "failed": 0, "percent": 100.0}
    assert ended["usage"]["output_tokens"] == 60
    assert ended["result"] == {"url": f"/v1/jobs/{job['id']}/result"}
    assert ended["created_at"] <= ended["started_at"] <= ended["finished_at"]
    assert [[one["id"] for one in page["data"]] for page in listed] == [
        [other["id"], job["id"]],
        [job["id"]],
        [],
        [other["id"]],
        [job["id"]],
    ]
    assert [page["has_more"] for page in listed] == [False, False, False, True, False]
    assert events.header("content-type") is not None
    shown = [orjson.loads(line[6:]) for line in events.body.split(b"\n") if line.startswith(b"data: ")]
    assert [one["status"] for one in shown] == ["succeeded"]


async def test_events_follow_a_job_to_its_end(gateway: Running) -> None:
    """Who comes back with the number of the last event is told only what is new."""
    may_end = hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    job = await take(gateway.url, new_job())
    await becomes(gateway.url, job["id"], "running")
    async with connect(gateway.url) as peer:
        peer.send(get(f"/v1/jobs/{job['id']}/events", WEB))
        first = await peer.reader.readuntil(b"\n\n\r\n")
        number = re.search(rb"id: (\d+)", first)
        assert number is not None
        may_end.set()
        rest = await peer.reader.readuntil(b"0\r\n\r\n")
    last = await ask(gateway.url, get(f"/v1/jobs/{job['id']}/events", WEB, f"last-event-id: {number[1].decode()}"))

    assert b'"status":"running"' in first
    assert b'"status":"succeeded"' in rest
    assert last.body.count(b"event: job") == 1
    assert b'"status":"succeeded"' in last.body


async def test_readers_of_events_are_counted_while_they_are_there(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more than there may be is refused; who leaves makes room."""
    monkeypatch.setattr(job_events, "MOST_READERS", 2)
    job = await take(gateway.url, new_job(delay="1h"))
    follow = get(f"/v1/jobs/{job['id']}/events", WEB)
    for _ in range(3):
        async with connect(gateway.url) as one, connect(gateway.url) as other:
            for peer in (one, other):
                peer.send(follow)
                await peer.reader.readuntil(b"\n\n\r\n")
            refused = await ask(gateway.url, follow)
            assert (refused.status, refused.error["code"]) == (429, "too_many_event_readers")
        await gateway.idle()
        await until(lambda: len(gateway.connections) == 0)


async def test_a_running_job_is_cancelled_and_its_call_ends(gateway: Running) -> None:
    """The provider's connection is let go; there is no answer to fetch, and to cancel again changes nothing."""
    hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    job = await take(gateway.url, new_job())
    await until(lambda: gateway.upstream_calls() == 1)

    await ask(gateway.url, post(f"/v1/jobs/{job['id']}/cancel", b"", WEB))
    await becomes(gateway.url, job["id"], "cancelled")
    await until(lambda: gateway.emulator.emulator.stats.cancelled == 1)
    fetched = await ask(gateway.url, get(f"/v1/jobs/{job['id']}/result", WEB))
    again = await ask(gateway.url, post(f"/v1/jobs/{job['id']}/cancel", b"", WEB))

    assert (fetched.status, fetched.error["code"]) == (409, "job_without_result")
    assert orjson.loads(again.body)["status"] == "cancelled"


async def test_what_the_provider_refuses_is_the_result(gateway: Running) -> None:
    """Its status and its words, after one attempt."""
    gateway.script("context_length")
    job = await take(gateway.url, new_job())
    answer = await result_of(gateway.url, job["id"])
    ended = await end_of(gateway.url, job["id"])

    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert (ended["status"], ended["attempts"]["made"]) == ("failed", 1)
    assert gateway.upstream_calls() == 1


async def test_what_fails_for_now_is_tried_again(start: StartGateway, tmp_path: Path) -> None:
    """Beyond the attempts of one call, until it is answered."""
    place = policies(tmp_path, jobs=QUICK, retries={"attempts": 1}, breakers={"enabled": False})
    gateway = await start(with_jobs(tmp_path, policies=place))
    gateway.script("e500", "e500", "ok")
    job = await take(gateway.url, new_job())

    assert (await result_of(gateway.url, job["id"])).status == 200
    ended = await end_of(gateway.url, job["id"])
    assert (ended["status"], ended["attempts"]["made"]) == ("succeeded", 3)
    assert ended["progress"]["failed"] == 0


# When, and how often.


async def test_one_dedupe_key_is_one_job(gateway: Running) -> None:
    """The second is told of the first; another payload is a conflict, another tenant somebody else."""
    first = await ask(gateway.url, new_job(dedupe_key="order-4711"))
    second = await ask(gateway.url, new_job(dedupe_key="order-4711"))
    other = await ask(gateway.url, new_job(dedupe_key="order-4711", body=saying("other")))
    foreign = await ask(gateway.url, new_job(dedupe_key="order-4711", key=NIGHTLY))
    by_header = await ask(gateway.url, post(CHAT, chat(), WEB, ASYNC, "x-gateway-dedupe: order-4711"))
    ids = [one.header("x-gateway-job") or "" for one in (first, second, foreign, by_header)]
    for job_id, key in zip(ids, (WEB, WEB, NIGHTLY, WEB), strict=True):
        await result_of(gateway.url, job_id, key)

    assert [one.status for one in (first, second, other, foreign)] == [202, 200, 409, 202]
    assert (other.error["code"], other.error["param"]) == ("dedupe_conflict", "dedupe_key")
    assert ids[0] == ids[1] == ids[3] != ids[2]
    assert gateway.upstream_calls() == 2


async def test_an_idempotency_key_is_one_job(gateway: Running) -> None:
    """Whichever door it comes by, and although the SDK repeats it."""
    key = "idempotency-key: order-4711"
    answers = [await ask(gateway.url, post(CHAT, chat(), WEB, ASYNC, key)) for _ in range(2)]
    answers.append(await ask(gateway.url, new_job(key)))
    other = await ask(gateway.url, post(CHAT, saying("other"), WEB, ASYNC, key))
    (job_id,) = {one.header("x-gateway-job") or "" for one in answers}  # whether it has ended yet or not
    await result_of(gateway.url, job_id)

    assert (other.status, other.error["param"]) == (409, "Idempotency-Key")
    assert gateway.upstream_calls() == 1


async def test_of_debounced_jobs_the_last_runs(gateway: Running) -> None:
    """Under the first one's id, once its callers are quiet."""
    debounce = {"key": "draft-7", "wait": "500ms", "max_wait": "1m"}
    answers = [
        await ask(gateway.url, new_job(debounce=debounce, body=saying(f"draft {number}"))) for number in range(3)
    ]
    (job_id,) = {orjson.loads(one.body)["id"] for one in answers}
    scheduled = await look(gateway.url, job_id)
    await result_of(gateway.url, job_id)

    assert scheduled["status"] == "scheduled"
    assert [one.header("x-gateway-debounced") for one in answers] == [None, "1", "2"]
    assert prompts(gateway) == ["draft 2"]


async def test_a_job_runs_when_it_is_due(gateway: Running) -> None:
    """Not before, and without being asked for."""
    due_at = time.time() + 1.0
    soon = await take(gateway.url, new_job(run_at=due_at))
    late = await take(gateway.url, new_job(delay="1h", body=saying("in an hour")))
    by_header = await take(gateway.url, post(CHAT, saying("later"), WEB, ASYNC, f"x-gateway-run-at: {due_at + 3600}"))

    assert {one["status"] for one in (soon, late, by_header)} == {"scheduled"}
    assert gateway.upstream_calls() == 0
    await result_of(gateway.url, soon["id"])
    assert time.time() >= due_at
    assert prompts(gateway) == ["hello there"]
    assert (await look(gateway.url, late["id"]))["status"] == "scheduled"


async def test_the_urgent_go_first(start: StartGateway, tmp_path: Path) -> None:
    """Before those of their lane that came earlier; and interactive ones before a batch's."""
    gateway = await start(with_jobs(tmp_path, policies=policies(tmp_path, jobs=ONE_AT_A_TIME)))
    may_end = hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    await take(gateway.url, new_job(body=saying("first")))
    await until(lambda: gateway.upstream_calls() == 1)
    jobs = [
        await take(gateway.url, new_job(key=NIGHTLY, body=saying("nightly"))),
        await take(gateway.url, new_job(body=saying("usual"))),
        await take(gateway.url, new_job(body=saying("urgent"), priority=9)),
    ]
    may_end.set()
    for job, key in zip(jobs, (NIGHTLY, WEB, WEB), strict=True):
        await result_of(gateway.url, job["id"], key)

    assert prompts(gateway) == ["first", "urgent", "usual", "nightly"]


async def test_a_job_whose_deadline_passes_expires(start: StartGateway, tmp_path: Path) -> None:
    """Whether it runs, and is broken off, or has waited in vain, and never begins."""
    gateway = await start(with_jobs(tmp_path, policies=policies(tmp_path, jobs=ONE_AT_A_TIME)))
    hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    running = await take(gateway.url, new_job(deadline="2s", body=saying("runs")))
    await until(lambda: gateway.upstream_calls() == 1)
    waiting = await take(gateway.url, new_job(deadline="500ms", body=saying("waits")))

    ended = [await end_of(gateway.url, one["id"]) for one in (waiting, running)]

    assert [one["status"] for one in ended] == ["expired"] * 2
    assert [one["attempts"]["made"] for one in ended] == [0, 0]
    assert prompts(gateway) == ["runs"]


# Who may see what, and what is refused.


async def test_tenants_see_their_own_jobs_only(gateway: Running) -> None:
    """Another's job is answered byte for byte as one that never was."""
    job = await take(gateway.url, new_job())
    await result_of(gateway.url, job["id"])

    for method, tail in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("POST", "/cancel")):
        foreign, absent = [
            await ask(gateway.url, get(f"/v1/jobs/{job_id}{tail}", NIGHTLY, method=method))
            for job_id in (job["id"], job["id"][:-1])
        ]
        assert (foreign.status, foreign.body) == (absent.status, absent.body)
        assert foreign.error["code"] == "not_found"
    listed = orjson.loads((await ask(gateway.url, get("/v1/jobs", NIGHTLY))).body)
    keyless = await ask(gateway.url, get(f"/v1/jobs/{job['id']}"))

    assert listed["data"] == []
    assert keyless.status == 401
    assert (await look(gateway.url, job["id"]))["status"] == "succeeded"


@rows(
    ("fields", "param"),
    [
        ({"endpoint": None}, "endpoint"),
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"body": "text"}, "body"),
        ({"body": {"messages": []}}, "model"),
        ({"priority": 10}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"run_at": "tomorrow"}, "run_at"),
        ({"run_at": 99_999_999_999}, "run_at"),
        ({"run_at": 1, "delay": 1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"deadline": 1}, "deadline"),
        ({"deadline": 1e300}, "deadline"),
        ({"deadline": "9" * 400 + "d"}, "deadline"),
        ({"deadline": "3000d"}, "deadline"),
        ({"delay": "9" * 400 + "d"}, "delay"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"dedupe_key": "k" * 257}, "dedupe_key"),
        ({"debounce": {"wait": "1s"}}, "debounce.key"),
        ({"debounce": {"key": "k", "wait": "2m", "max_wait": "1m"}}, "debounce.max_wait"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"lane": "express"}, "lane"),
        ({"webhok": "x"}, "webhok"),
    ],
    ids=str,
)
async def test_a_field_that_is_wrong_is_named(gateway: Running, fields: dict[str, Any], param: str) -> None:
    """Nothing is taken, and the provider hears of nothing."""
    refused = await ask(gateway.url, new_job(**fields))

    assert refused.status in (400, 404), refused.raw
    assert refused.error["param"] == param
    assert orjson.loads((await ask(gateway.url, get("/v1/jobs", WEB))).body)["data"] == []
    assert gateway.upstream_calls() == 0


@pytest.mark.parametrize(
    ("header", "param"),
    [
        ("x-gateway-priority: 12", "x-gateway-priority"),
        ("x-gateway-run-at: tomorrow", "x-gateway-run-at"),
        ("x-gateway-debounce: k; wait=soon", "x-gateway-debounce"),
        ("x-gateway-dedupe: " + "k" * 257, "x-gateway-dedupe"),
        ("x-gateway-debounce: k; often=yes", "x-gateway-debounce"),
    ],
)
async def test_a_header_that_is_wrong_is_named(gateway: Running, header: str, param: str) -> None:
    """As for the fields."""
    refused = await ask(gateway.url, post(CHAT, chat(), WEB, ASYNC, header))

    assert (refused.status, refused.error["param"]) == (400, param)
    assert gateway.upstream_calls() == 0


async def test_a_body_that_is_nested_too_deeply_is_refused(gateway: Running) -> None:
    """As that of a plain call."""
    deep = b'{"endpoint":"/v1/chat/completions","body":{"model":"gpt-4o","messages":%b}}' % (b"[" * 300 + b"]" * 300)
    refused = await ask(gateway.url, post("/v1/jobs", deep, WEB))

    assert (refused.status, "nested" in refused.error["message"]) == (400, True)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/files", "/v1/batches"])
@pytest.mark.parametrize("limit", ["0", "101000", "00000000010001", "000001" + "9" * 5000, "%C2%B2", "-1", "1e1", ""])
async def test_a_page_has_no_more_than_it_may(gateway: Running, path: str, limit: str) -> None:
    """However the number is written."""
    refused = await ask(gateway.url, get(f"{path}?limit={limit}", WEB))

    assert (refused.status, refused.error["param"]) == (400, "limit")


async def test_an_odd_last_event_id_is_none(gateway: Running) -> None:
    """The events begin with the job as it is."""
    job = await take(gateway.url, new_job())
    await end_of(gateway.url, job["id"])
    events = await ask(gateway.url, get(f"/v1/jobs/{job['id']}/events", WEB, "last-event-id: \xb2"))

    assert events.status == 200
    assert b"succeeded" in events.body


async def test_a_key_may_make_jobs_of_its_models_only(gateway: Running) -> None:
    """As of calls."""
    refused = await ask(gateway.url, new_job(key=NIGHTLY, body=chat("renamed")))

    assert (refused.status, refused.error["code"]) == (403, "model_not_allowed")


async def test_a_callers_own_credential_makes_no_job(start: StartGateway, tmp_path: Path) -> None:
    """None is ever stored: it is said when the job is taken, not when it runs; a plain call goes on."""
    made = with_jobs(tmp_path, keys=None, auth=None)

    def bare(url: str) -> dict[str, Any]:
        config = dict(made(url))
        config["providers"] = {"main": {"dialect": "openai", "base_url": url}}
        return config

    gateway = await start(bare)
    own = "authorization: Bearer sk-of-the-caller-0a1b2c3d4e5f"
    refused = [await ask(gateway.url, one) for one in (new_job(key=own), post(CHAT, chat(), own, ASYNC))]
    plain = await ask(gateway.url, post(CHAT, chat(), own))

    assert [one.error["code"] for one in refused] == ["job_needs_provider_key"] * 2
    assert all("providers.main.api_key" in one.error["message"] for one in refused)
    assert plain.status == 200
    assert gateway.upstream_calls() == 1


async def test_neither_credentials_nor_prompts_are_told(
    start: StartGateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a job that succeeds, one that fails and one that is refused: not in the log, and no credential in the files."""
    gateway = await start(with_jobs(tmp_path))
    gateway.script("ok", "context_length")
    for number in range(2):
        job = await take(gateway.url, new_job(body=saying(f"{SECRET} {number}")))
        await result_of(gateway.url, job["id"])
    await ask(gateway.url, new_job(body=saying(SECRET), priority=SECRET))
    await gateway.stop()
    told = gateway.log.getvalue() + caplog.text
    kept = b"".join(files_of_jobs(tmp_path).values())

    assert SECRET not in told
    for secret in (WEB, config_of("")["providers"]["main"]["api_key"]):
        assert secret.rpartition(" ")[2] not in told
        assert secret.rpartition(" ")[2].encode() not in kept
    assert SECRET.encode() in kept  # it is where it belongs: the test looks in the right place


# The gateway's own life.


async def test_a_gateway_that_stops_hands_its_jobs_to_the_next(start: StartGateway, tmp_path: Path) -> None:
    """What can end within the grace does, the rest runs again, once, with no attempt counted; what waits, waits on."""
    config = with_jobs(tmp_path, server={"grace": "200ms"}, policies=policies(tmp_path, jobs=ONE_AT_A_TIME))
    first = await start(config)
    hold(first)
    await first.emulator.configure(ttft_s=1.0)
    jobs = [await take(first.url, new_job(body=saying(f"number {number}"))) for number in range(3)]
    await until(lambda: first.upstream_calls() == 1)
    await first.gateway.drain(asyncio.Event())
    await first.stop()
    second = await start(config)
    ended = [await end_of(second.url, job["id"]) for job in jobs]

    assert prompts(first) == ["number 0"]
    assert sorted(prompts(second)) == ["number 0", "number 1", "number 2"]
    assert [(one["status"], one["attempts"]["made"]) for one in ended] == [("succeeded", 1)] * 3


async def test_a_file_that_cannot_be_made_turns_off_jobs_and_nothing_else(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """503 names the way out and is counted, the log the remedy, once; plain calls go on, jobs when the folder is there."""
    monkeypatch.setattr(worker, "RETRY_S", 0.0)
    gateway = await start(with_jobs(tmp_path / "missing"))
    requests = (new_job(), post(CHAT, chat(), WEB, ASYNC), get("/v1/jobs", WEB), get("/v1/jobs/job_gw1", WEB))
    refused = [await ask(gateway.url, one) for one in requests]
    plain = await ask(gateway.url, post(CHAT, chat(), WEB))
    ready, metrics = [await ask(gateway.url, get(path)) for path in ("/readyz", "/metrics")]
    (tmp_path / "missing").mkdir()
    job = await take(gateway.url, new_job())

    assert [(one.status, one.error["code"]) for one in refused] == [(503, "jobs_unavailable")] * 4
    assert all(one.header("retry-after") for one in refused)
    assert b'gateway_requests_refused_total{code="jobs_unavailable"} 4.0' in metrics.body
    assert plain.status == ready.status == 200
    assert (await result_of(gateway.url, job["id"])).status == 200
    said = [record.getMessage() for record in caplog.records if "jobs are off" in record.getMessage()]
    assert len(said) == 1
    assert "Make the folder" in said[0]
