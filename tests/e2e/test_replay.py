"""Nobody pays twice, seen from the wire: real clients, a real provider, and its own count of what it was asked."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
import yaml

from gateway.drivers.sqlite_store import SqliteStore
from gateway.emulator.config import EmulatorConfig
from gateway.features.single_flight import LEAST_ROOM, PIECE_BYTES, SLOW_READER
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import (
    KEYS,
    NIGHTLY_KEY,
    WEB_KEY,
    Running,
    chat,
    config_of,
    connect,
    post,
    until,
)
from tests.e2e.replaying import DONE, Crowd, Question, ask, assert_sound, check, hold, is_replayed, questions
from tests.e2e.test_sdk_retries import deaf_proxy
from tests.soak.support import MANNERS, Held, mortal, until_only
from tests.support.sqlite_support import Disk, Monotonic, failing

UNHURRIED = EmulatorConfig(ttft_s=0.3, tokens_per_second=80.0, output_tokens=60)
"""About a second for an answer: time to come late, and to leave early."""
HELD = EmulatorConfig(tokens_per_second=10.0)
"""With `hold`: answers end when a test says so."""
STREAM = Question("a-stream", "asked-stream", stream=True)
WHOLE = Question("a-whole", "asked-whole", stream=False)
BOTH = pytest.mark.parametrize("question", [STREAM, WHOLE], ids=["stream", "whole"])
CHAT = "/v1/chat/completions"


def on_sqlite(folder: Path, base_url: str, **sections: Any) -> dict[str, Any]:
    """A config whose state is a file."""
    return config_of(base_url, state=f"sqlite:///{folder}/state.db", **sections)


def times(gateway: Running, question: Question) -> int:
    """How often the provider was asked."""
    return gateway.emulator.emulator.stats.models[question.model]


# Many keys, many callers.


@pytest.mark.parametrize("state", ["memory", "sqlite"])
async def test_40_keys_from_12_callers_each_who_leave_at_any_byte(
    start: StartGateway, tmp_path: Path, state: str
) -> None:
    """One execution a key; those who stay have equal bytes, and so has whoever asks later; nothing is left behind."""
    gateway = await start(partial(on_sqlite, tmp_path) if state == "sqlite" else config_of, emulator=UNHURRIED)
    before, stats, asked = Held.by(gateway), gateway.emulator.emulator.stats, questions(40)

    crowds = [Crowd(gateway.url, one, 12, random.Random(number), stats) for number, one in enumerate(asked)]
    answers = await asyncio.gather(*(crowd.ask() for crowd in crowds))
    later = await asyncio.gather(*(ask(gateway.url, one) for one in asked))

    for question, seen, again in zip(asked, answers, later, strict=True):
        check(question, [*seen, again])
        assert is_replayed(again)
        assert times(gateway, question) == 1
    assert len({answer.body for answer in later}) == len(asked)
    await until_only(before, gateway)


@BOTH
async def test_500_identical_calls_are_one(start: StartGateway, question: Question) -> None:
    """Nobody hangs; all but the first are told that they share; without any key."""
    gateway = await start(emulator=HELD)
    may_end = hold(gateway)
    request = post(CHAT, orjson.dumps(chat(question.model, stream=question.stream, temperature=0)))

    async def call() -> Any:
        async with connect(gateway.url) as peer:
            return await peer.exchange(request)

    calls = [asyncio.ensure_future(call()) for _ in range(500)]
    await until(lambda: len(gateway.inflight) == 500)
    may_end.set()
    answers = await asyncio.gather(*calls)

    check(question, answers)
    assert gateway.upstream_calls() == 1
    assert [answer.header("x-gateway-cache") for answer in answers].count("coalesced") == 499
    await gateway.idle()


# What a key is.


@BOTH
async def test_a_key_is_for_one_request(start: StartGateway, question: Question) -> None:
    """Another body is refused while the first runs and when it is done; neither disturbs it."""
    gateway = await start(emulator=HELD)
    may_end = hold(gateway)
    other = question.request(temperature=1)

    running = asyncio.ensure_future(ask(gateway.url, question))
    await until(lambda: times(gateway, question) == 1)
    async with connect(gateway.url) as peer:
        refused = [await peer.exchange(other)]
        may_end.set()
        answer = await running
        refused.append(await peer.exchange(other))
        again = await peer.exchange(question.request())

    assert [(one.status, one.error["code"]) for one in refused] == [(422, "idempotency_key_reused")] * 2
    assert [one.error["param"] for one in refused] == ["Idempotency-Key"] * 2
    check(question, [answer, again])
    assert (is_replayed(answer), is_replayed(again), times(gateway, question)) == (False, True, 1)


async def test_quoted_and_bare_are_the_same_key(gateway: Running) -> None:
    """A string of RFC 8941, escapes included; who is not replayed is not told so."""
    async with connect(gateway.url) as peer:
        answers = [
            await peer.exchange(WHOLE.request(key=key)) for key in (r"a\"b", r'"a\\\"b"', '"plain"', "plain", "p")
        ]

    assert [is_replayed(one) for one in answers] == [False, True, False, True, False]
    assert times(gateway, WHOLE) == 3


@pytest.mark.parametrize("key", ["", '""', "k" * 256, f'"{"k" * 256}"', "schl\u00fcssel", '"open', "a\tb"])
async def test_a_bad_key_is_named(gateway: Running, key: str) -> None:
    """400 that names the header; nobody is asked. The longest good one is taken."""
    async with connect(gateway.url) as peer:
        refused = await peer.exchange(post(CHAT, None, f"Idempotency-Key: {key}"))
        taken = await peer.exchange(post(CHAT, None, f"Idempotency-Key: {'k' * 255}"))

    assert (refused.status, refused.error["code"]) == (400, "invalid_idempotency_key")
    assert refused.error["param"] == "Idempotency-Key"
    assert "Idempotency-Key" in refused.error["message"]
    assert (taken.status, gateway.upstream_calls()) == (200, 1)


async def test_tenants_do_not_meet_under_a_key(start: StartGateway) -> None:
    """Not while it runs, not when it is done, not by naming another body; each has its own answer again."""
    gateway = await start(partial(config_of, keys=KEYS), emulator=HELD)
    may_end = hold(gateway)
    question = Question("shared", "gpt-4o", stream=True, extra={"temperature": 0})
    owners = [f"authorization: Bearer {key}" for key in (WEB_KEY, NIGHTLY_KEY)]

    asking = [asyncio.ensure_future(ask(gateway.url, question, owner)) for owner in owners]
    await until(lambda: gateway.upstream_calls() == 2)
    may_end.set()
    firsts = await asyncio.gather(*asking)
    again = [await ask(gateway.url, question, owner) for owner in owners]
    async with connect(gateway.url) as peer:
        strangers = await peer.exchange(question.request(owners[0], seed=1))

    assert [is_replayed(one) for one in [*firsts, *again]] == [False, False, True, True]
    assert firsts[0].body != firsts[1].body
    assert [one.body for one in again] == [one.body for one in firsts]
    assert strangers.status == 422
    assert gateway.upstream_calls() == 2


# The SDK.


async def test_the_sdk_gets_its_answer_again(gateway: Running) -> None:
    """Equal objects, streamed and whole; only the second is told that it is a replay."""
    client = gateway.sdk()
    headers = {"Idempotency-Key": "sdk-whole"}
    first, second = [
        await client.chat.completions.with_raw_response.create(**chat(), extra_headers=headers) for _ in range(2)
    ]
    headers = {"Idempotency-Key": "sdk-stream"}
    streams = [await client.chat.completions.create(**chat(stream=True), extra_headers=headers) for _ in range(2)]
    chunks = [[chunk async for chunk in stream] for stream in streams]
    with pytest.raises(openai.UnprocessableEntityError, match="new key for each request"):
        await client.chat.completions.create(**chat(temperature=1), extra_headers=headers)
    await client.close()

    assert [one.headers.get("idempotent-replayed") for one in (first, second)] == [None, "true"]
    assert first.parse() == second.parse()
    assert chunks[0] == chunks[1]
    assert gateway.upstream_calls() == 2


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "impatient"}], ids=["no key", "key"])
async def test_an_impatient_sdks_own_retry_attaches(start: StartGateway, headers: dict[str, str]) -> None:
    """Its first try is still running behind a proxy that tells nobody: one execution, and the SDK has its answer."""
    gateway = await start(emulator=HELD)
    may_end = hold(gateway)
    headers = {"x-gateway-deadline-ms": "60000", **headers}
    async with (
        deaf_proxy(gateway.url) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-x", timeout=1.0, max_retries=5) as client,
    ):
        asking = asyncio.ensure_future(client.chat.completions.create(**chat(temperature=1), extra_headers=headers))
        await until(lambda: len(gateway.inflight) == 2)
        may_end.set()
        answer = await asking
        await gateway.idle()

    assert answer.choices[0].message.content
    assert gateway.upstream_calls() == 1


# Whoever makes trouble.


@BOTH
async def test_the_first_caller_may_go(start: StartGateway, question: Question) -> None:
    """In any manner, while eleven others wait for what it asked for."""
    gateway = await start(emulator=HELD)
    for number, manner in enumerate(MANNERS):
        may_end = hold(gateway)
        one = Question(f"{question.key}{number}", f"{question.model}{number}", question.stream)
        async with mortal(gateway.url) as first:
            await first.send(one.request())
            await until(lambda: times(gateway, one) == 1)  # noqa: B023  # it is awaited here
            others = [asyncio.ensure_future(ask(gateway.url, one)) for _ in range(11)]
            await until(lambda: len(gateway.inflight) == 12)
            await first.die(manner)
            await until(lambda: len(gateway.inflight) == 11)
        may_end.set()
        check(one, await asyncio.gather(*others))
        assert times(gateway, one) == 1
    await gateway.idle()


@BOTH
async def test_when_all_have_gone_the_next_one_runs_it(start: StartGateway, question: Question) -> None:
    """The provider is told, nothing is kept, the key is free."""
    gateway = await start(emulator=HELD)
    may_end = hold(gateway)
    callers = [asyncio.ensure_future(ask(gateway.url, question)) for _ in range(5)]
    await until(lambda: len(gateway.inflight) == 5 and times(gateway, question) == 1)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    await until(lambda: gateway.emulator.emulator.stats.cancelled == 1)
    may_end.set()
    answer, again = await ask(gateway.url, question), await ask(gateway.url, question)

    check(question, [answer, again])
    assert (is_replayed(answer), is_replayed(again), times(gateway, question)) == (False, True, 2)


async def test_who_hardly_reads_holds_nobody_up(start: StartGateway) -> None:
    """A caller that takes a byte now and then is let go once it is too far behind; the others have it all in time."""
    gateway = await start(emulator=EmulatorConfig(output_tokens=5500))
    gateway.gateway._servers[0]._socket.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768
    )  # else the kernel has room
    request = post(CHAT, orjson.dumps(chat("long-name-" * 20, stream=True, temperature=0)))
    async with (
        connect(gateway.url) as fast,
        mortal(gateway.url, receive_buffer=4096) as slow,
        connect(gateway.url) as faster,
    ):
        fast.send(request)
        await slow.send(request)
        assert await slow.read(12) == b"HTTP/1.1 200"
        faster.send(request)
        reading = asyncio.gather(fast.response(), faster.response())
        while not reading.done():
            assert len(await slow.read(1)) == 1
            await asyncio.wait((reading,), timeout=0.1)
        answers = await reading
        held = max(one.transport.get_write_buffer_size() for one in gateway.connections)
        with contextlib.suppress(ConnectionError):
            assert DONE not in await slow.read(len(answers[0].body) * 2)

    assert answers[0].body == answers[1].body
    assert answers[0].body.endswith(DONE)
    assert len(answers[0].body) > 1.5 * LEAST_ROOM
    assert held < 3 * PIECE_BYTES
    assert gateway.upstream_calls() == 1
    await gateway.stop()
    outcomes = sorted(one["outcome"] for one in gateway.records if one["event"] == "call")
    assert outcomes == ["ok", "ok", SLOW_READER]


class Gate(Disk):
    """A disk that can be made to say nothing for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.works = threading.Event()
        self.works.set()
        self.asked = 0
        self.before = self._wait

    def _wait(self, sql: str) -> None:
        if "FROM records WHERE" in sql:
            self.asked += 1
            self.works.wait(5.0)


def use_disk(monkeypatch: pytest.MonkeyPatch, disk: Disk, clock: Callable[[], float]) -> None:
    """Gateways started from now on have their state file on this disk."""
    monkeypatch.setattr(
        "gateway.drivers.sqlite_store.SqliteStore", partial(SqliteStore, connect=disk.connect, monotonic=clock)
    )


async def test_leaving_while_the_key_is_claimed_leaves_nothing(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow to say whether the key is known: who leaves meanwhile runs nothing and holds nothing."""
    disk = Gate()
    use_disk(monkeypatch, disk, Monotonic())
    gateway = await start(partial(on_sqlite, tmp_path))
    disk.works.clear()
    async with mortal(gateway.url) as client:
        await client.send(WHOLE.request())
        await until(lambda: disk.asked == 1)
        await client.die("reset")
    await gateway.idle()
    waiting = asyncio.ensure_future(ask(gateway.url, WHOLE))
    await until(lambda: len(gateway.inflight) == 1)
    disk.works.set()
    first = await waiting
    again = await ask(gateway.url, WHOLE)

    check(WHOLE, [first, again])
    assert (is_replayed(again), times(gateway, WHOLE)) == (True, 1)


@BOTH
async def test_a_reload_does_not_part_those_who_wait_together(start: StartGateway, question: Question) -> None:
    """Who comes after it joins what began before it, though neither targets nor policies are what they were."""
    gateway = await start(emulator=HELD)
    may_end = hold(gateway)
    callers = [asyncio.ensure_future(ask(gateway.url, question)) for _ in range(3)]
    await until(lambda: len(gateway.inflight) == 3 and times(gateway, question) == 1)
    folder = gateway.config_path.parent / "policies"
    folder.mkdir()
    (folder / "cache.yaml").write_text(yaml.safe_dump({"default": {"version": 7, "exact": {"requests": "always"}}}))
    url = gateway.emulator.base_url
    gateway.write_config(config_of(url, policies="policies", models={"*": {"targets": ["main"]}}))
    gateway.gateway.reload()
    await until(lambda: gateway.gateway.policy.version == 2)
    callers += [asyncio.ensure_future(ask(gateway.url, question)) for _ in range(3)]
    await until(lambda: len(gateway.inflight) == 6)
    may_end.set()
    answers = [*await asyncio.gather(*callers), await ask(gateway.url, question)]

    check(question, answers)
    assert is_replayed(answers[-1])
    assert times(gateway, question) == 1


# Disks that fail.

FULL = failing("database or disk is full", sqlite3.SQLITE_FULL, "COMMIT")
FSYNC = failing("disk I/O error", sqlite3.SQLITE_IOERR | 4 << 8, "COMMIT")


@pytest.mark.parametrize("fault", [FULL, FSYNC], ids=["full", "fsync"])
async def test_a_failing_disk_costs_no_call(
    start: StartGateway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[str], None],
) -> None:
    """Calls go on, it is said once; when it works again, without a restart, what was promised meanwhile is in the file."""
    disk, clock = Disk(), Monotonic()
    use_disk(monkeypatch, disk, clock)
    gateway = await start(partial(on_sqlite, tmp_path))
    before, during, after = questions(5), questions(20, first=5), questions(2, first=25)

    answers = [await ask(gateway.url, one) for one in before]
    disk.before = fault
    answers += await asyncio.gather(*(ask(gateway.url, one) for one in during))
    meanwhile = [await ask(gateway.url, one) for one in during]
    warned = [one.getMessage() for one in caplog.records if "Calls go on" in one.getMessage()]
    disk.before = lambda _: None
    clock.now += 60.0
    answers += [await ask(gateway.url, one) for one in after]
    recovered = [one for one in caplog.records if "works again; it misses" in one.getMessage()]
    await gateway.gateway.stop()
    restarted = await start(partial(on_sqlite, tmp_path))
    later = [await ask(restarted.url, one) for one in (*before, *during, *after)]

    for question, first, again in zip((*before, *during, *after), answers, later, strict=True):
        check(question, [first, again])
        assert is_replayed(again)
        assert times(gateway, question) == 1
    assert all(map(is_replayed, meanwhile))
    assert (len(warned), len(recovered), restarted.upstream_calls()) == (1, 1, 0)
    await restarted.stop()
    assert_sound(tmp_path / "state.db")
