"""What operators see of targets and accounts, and what they can do about them by hand."""

from __future__ import annotations

import asyncio
import logging
from math import isfinite
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admin.views import breaker_states, retry_levels, show_targets
from gateway.core.balancing import Retries
from gateway.core.errors import CircuitOpen
from gateway.core.health.breaker import Breaker
from gateway.core.health.detector import BreakerRules
from gateway.core.health.target_health import TargetHealth
from gateway.core.limits import reservation
from gateway.core.limits.limit_table import Limits
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import (
    ADMIN_KEY,
    KEYS,
    PROVIDER_KEY,
    WEB_KEY,
    Response,
    Running,
    chat,
    config_of,
    connect,
    get,
    post,
)
from tests.support.flow import Bench, ScriptedUpstream, read_all, streamed, whole

ADMIN = f"authorization: Bearer {ADMIN_KEY}"
WEB = f"authorization: Bearer {WEB_KEY}"
TARGET = "main/gpt-4o"
RULES = BreakerRules(open_s=10.0, jitter_percent=20.0, probes=3, ramp_s=10.0)


def guarded(url: str, **sections: Any) -> dict[str, Any]:
    """Keys for callers and a key for operators."""
    return config_of(url, keys=KEYS, admin={"key": ADMIN_KEY}, **sections)


def bench_of(**options: Any) -> Bench:
    """Two targets of one model, each with an account of its own."""
    return Bench([ScriptedUpstream(), ScriptedUpstream()], breaker=RULES, **options)


def vitals_of(bench: Bench, name: str = "p0/m") -> TargetHealth:
    return bench.admission.gates.lines[name].gate.health


def shown(bench: Bench, name: str = "p0/m", kind: str = "targets") -> dict[str, Any]:
    """One row of the view, now."""
    row: dict[str, Any] = show_targets(bench.admission, bench.policy, bench.clock.now)[kind][name]
    return row


def fail(bench: Bench, times: int, name: str = "p0/m") -> None:
    """So many calls there come to nothing, in a row."""
    health = vitals_of(bench, name)
    for _ in range(times):
        health.failed(health.take(bench.clock.now), bench.clock.now, 0.5, "timeout")


# What is shown


def test_a_target_of_which_nothing_is_known_yet() -> None:
    """Every field is there; what was not measured is None, and no time is a monotonic instant."""
    assert shown(bench_of()) == {
        "state": "closed",
        "reason": "not opened yet",
        "by_hand": False,
        "since_s": None,
        "last_opened_s": None,
        "next_probe_s": None,
        "ramping": False,
        "ejections": 0,
        "failures": {"rate": 0.0, "calls": 0, "usual_rate": 0.0},
        "usual_first_byte_s": None,
        "slow_after_s": 120.0,
        "suspect": None,
        "warning": None,
        "in_flight": 0,
        "waiting": 0,
        "retries": {"in_flight": 0, "tokens_left": 500.0},
        "time_to_first_byte": {
            "streams": {"answers": 0, "expected_s": None, "p50_s": None, "p95_s": None},
            "whole_answers": {"answers": 0, "expected_s": None, "p50_s": None, "p95_s": None},
        },
        "paused_s": 0.0,
        "quota_spent_s": 0.0,
        "account": {"name": "p0", "state": "closed"},
        "config": "p0/m",
        "models": {"m": {"order": 1, "weight": 1.0}},
    }


def test_an_open_breaker_says_why_since_when_and_until_when() -> None:
    """In seconds from now; the failures are those that opened it."""
    bench = bench_of()
    fail(bench, 5)
    bench.clock.advance(3.0)
    row = shown(bench)

    assert (row["state"], row["reason"]) == ("open", "5 failures in a row (timeout)")
    assert (row["since_s"], row["last_opened_s"], row["next_probe_s"], row["ejections"]) == (3.0, 3.0, 6.0, 1)
    assert row["failures"] == {"rate": 1.0, "calls": 5, "usual_rate": 0.0}
    assert shown(bench, "p1/m")["state"] == "closed"


def test_looking_moves_no_breaker() -> None:
    """One whose time is over waits for a call: the next one that comes may try."""
    bench = bench_of()
    fail(bench, 5)
    bench.clock.advance(100.0)

    assert [(shown(bench)["state"], shown(bench)["next_probe_s"]) for _ in range(2)] == [("open", 0.0)] * 2
    assert bench.meter.moves == [("p0/m", "open")]


def test_the_way_back_is_seen() -> None:
    """Half open since probes were due; then closed, but ramping, for as long as that takes."""
    bench = bench_of()
    fail(bench, 5)
    bench.clock.advance(10.0)
    health, now = vitals_of(bench), bench.clock.now
    assert health.admit(now, 3) == 0.0
    half_open = shown(bench)
    for _ in range(3):
        health.succeeded(health.take(now), now, 0.1)
    ramping = shown(bench)
    bench.clock.advance(10.0)
    healthy = shown(bench)

    assert (half_open["state"], half_open["since_s"], half_open["next_probe_s"]) == ("half_open", 1.0, 0.0)
    assert (ramping["state"], ramping["ramping"], ramping["next_probe_s"]) == ("closed", True, None)
    assert ramping["reason"] == "3 probes succeeded"
    assert (healthy["ramping"], healthy["last_opened_s"], healthy["ejections"]) == (False, 20.0, 1)


def test_by_hand_there_is_no_next_probe() -> None:
    """It stays so until a person says otherwise."""
    bench = bench_of()
    bench.admission.health.force("p0/m", "drained")
    bench.clock.advance(5.0)
    row = shown(bench)

    assert (row["state"], row["by_hand"], row["since_s"], row["next_probe_s"]) == ("drained", True, 5.0, None)


def test_times_retries_pauses_and_quota_are_shown() -> None:
    """Streams and whole answers apart: the ones take a first token, the others all of them."""
    bench = bench_of()
    now = bench.clock.now
    gate, health = bench.admission.gates.lines["p0/m"].gate, vitals_of(bench)
    for _ in range(100):
        health.first_byte.observe(0.5, now)
    health.whole_answer.observe(4.0, now)
    health.retries.take()
    health.tokens.take(120.0)
    gate.leave_alone(7.0, now)
    row = shown(bench)
    gate.exhaust(600.0, now)
    spent = shown(bench)

    times = row["time_to_first_byte"]
    assert times["streams"]["p50_s"] == times["streams"]["p95_s"] == pytest.approx(0.5, rel=0.1)
    assert (times["streams"]["answers"], times["streams"]["expected_s"]) == (100, 0.5)
    assert times["whole_answers"] == {"answers": 1, "expected_s": 4.0, "p50_s": None, "p95_s": None}
    assert row["retries"] == {"in_flight": 1, "tokens_left": 380.0}
    assert (row["paused_s"], row["quota_spent_s"], spent["quota_spent_s"]) == (7.0, 0.0, 600.0)


def test_an_account_has_a_row_and_its_state_is_told_with_its_targets() -> None:
    """A target that is well serves nobody while its account is open."""
    bench = bench_of()
    account = vitals_of(bench).account
    account.is_refused = True
    account.breaker.trip("its credential is refused", bench.clock.now, 0.0)
    row = shown(bench, "p0", "accounts")

    assert (row["state"], row["reason"], row["next_probe_s"]) == ("open", "its credential is refused", 10.0)
    assert (row["credential_refused"], row["targets"]) == (True, ["p0/m"])
    assert shown(bench)["account"] == {"name": "p0", "state": "open"}
    assert shown(bench)["state"] == shown(bench, "p1", "accounts")["state"] == "closed"


def test_what_the_gauges_get() -> None:
    """Every breaker once, accounts too; retry tokens as the tightest model reckons."""
    bench = bench_of(retries=Retries(tokens=50.0))
    vitals_of(bench).tokens.take(60.0)
    fail(bench, 5, "p1/m")

    states = dict(breaker_states(bench.admission))
    assert states == {"p0/m": "closed", "p1/m": "open", "p0": "closed", "p1": "closed"}
    assert dict(retry_levels(bench.admission, bench.policy)) == {"p0/m": 0.0, "p1/m": 50.0}


ACTS = st.sampled_from(["fail", "succeed", "forget", "open", "closed", "drained", "trip"])


def act(breaker: Breaker, what: str, now: float) -> None:
    """One thing that may happen to a breaker."""
    if what in ("open", "closed", "drained"):
        breaker.force(what, now)  # type: ignore[arg-type]  # narrowed by the line above
    elif what == "trip":
        breaker.trip("tripped", now, 0.5)
    elif breaker.admit(now, 3) == 0.0:
        permit = breaker.take(now)
        if what == "fail":
            breaker.failed(permit, now, 0.5, "timeout")
        elif what == "succeed":
            breaker.succeeded(permit, now, 0.2)
        else:
            breaker.forget(permit, now)


@settings(deadline=None)
@given(st.lists(st.tuples(ACTS, st.floats(0.0, 30.0)), max_size=40))
def test_whatever_happened_it_can_be_shown(course: list[tuple[str, float]]) -> None:
    """Times are finite and not negative, there is a next probe only where one comes by itself, and all of it is JSON."""
    bench = bench_of()
    for what, pause_s in course:
        act(vitals_of(bench).breaker, what, bench.clock.now)
        bench.clock.now += pause_s
        row = shown(bench)
        assert orjson.loads(orjson.dumps(row)) == row
        times = [row[name] for name in ("since_s", "last_opened_s", "next_probe_s") if row[name] is not None]
        assert all(isfinite(seconds) and seconds >= 0 for seconds in times)
        assert (row["next_probe_s"] is None) == (row["by_hand"] or row["state"] == "closed")
        assert (row["since_s"] is None) == (row["state"] == "closed")
        assert 0 <= row["failures"]["rate"] <= 1
        assert not row["ramping"] or row["state"] == "closed"


# By hand, and who waits


async def held(bench: Bench, **changes: Any) -> asyncio.Task[Any]:
    """A call that waits in the delay queue."""
    task = asyncio.create_task(bench.serve(**{"lane": "batch", "deadline": bench.clock.now + 600, **changes}))
    while not bench.admission.queue.occupancy.calls:  # noqa: ASYNC110 - a counter of another task, which sets no event
        await asyncio.sleep(0)
    return task


async def test_closing_lets_those_who_wait_go_at_once() -> None:
    """They were held for an open breaker's next probe."""
    bench = Bench([ScriptedUpstream(whole())])
    fail(bench, 5)
    task = await held(bench)

    bench.admission.health.force("p0/m", "closed")
    bench.clock.advance(0.0)
    reply, _ = await task

    assert reply.status == 200
    assert bench.account.call.queue_s == 0.0


async def test_draining_sends_those_who_wait_away() -> None:
    """With the reason: nobody knows how long it will last."""
    bench = Bench([ScriptedUpstream()], limits=[Limits(max_concurrency=1)])
    gate = bench.admission.gates.lines["p0/m"].gate
    grant = reservation.reserve(gate, gate.cost_of(0, None), bench.clock.now)
    assert grant is not None
    task = await held(bench)

    bench.admission.health.force("p0/m", "drained")
    bench.clock.advance(0.0)
    with pytest.raises(CircuitOpen, match="drained by hand"):
        await task

    assert gate.in_flight == 1


async def test_draining_lets_the_running_ones_end() -> None:
    """A stream goes on to its end, and its end brings nobody back."""
    gone_on = asyncio.Event()
    events = (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', gone_on, b"data: [DONE]\n\n")
    bench = Bench([ScriptedUpstream(streamed(*events))])
    reply = await bench.pipeline.handle(bench.call(stream=True))

    bench.admission.health.force("p0/m", "drained")
    during = shown(bench)
    gone_on.set()
    body = await read_all(reply)
    await reply.close()
    after = shown(bench)

    assert (during["state"], during["in_flight"]) == ("drained", 1)
    assert (after["state"], after["in_flight"]) == ("drained", 0)
    assert body.endswith(b"data: [DONE]\n\n")
    assert bench.account.outcome == "ok"


def test_closing_an_account_trusts_its_credential_again() -> None:
    """Somebody has repaired it; opening it by hand says nothing of that."""
    bench = bench_of()
    account = vitals_of(bench).account
    account.is_refused = True

    bench.admission.health.force("p0", "open")
    still_refused = account.is_refused
    bench.admission.health.force("p0", "closed")

    assert (still_refused, account.is_refused) == (True, False)
    assert bench.meter.moves == [("p0", "open"), ("p0", "closed")]


def test_nobody_is_forced_by_an_unknown_name() -> None:
    """KeyError."""
    with pytest.raises(KeyError):
        bench_of().admission.health.force("nobody", "open")


# Over HTTP


async def ask(gateway: Running, request: bytes) -> Response:
    """One request on a connection of its own."""
    async with connect(gateway.url) as peer:
        return await peer.exchange(request)


async def view(gateway: Running) -> dict[str, Any]:
    """`GET /admin/targets`."""
    answer = await ask(gateway, get("/admin/targets", ADMIN))
    assert answer.status == 200
    found: dict[str, Any] = orjson.loads(answer.body)
    return found


def switch(action: object, name: str = TARGET, kind: str = "targets") -> bytes:
    """The request that does something by hand."""
    return post(f"/admin/{kind}/{quote(name, safe='')}", orjson.dumps({"action": action}), ADMIN)


async def test_a_drained_target_gets_no_new_call_until_it_is_closed(
    start: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Who did it, and to what, is in the log."""
    gateway = await start(guarded)

    drained = await ask(gateway, switch("drain"))
    refused = await ask(gateway, post("/v1/chat/completions", None, WEB))
    closed = await ask(gateway, switch("close"))
    served = await ask(gateway, post("/v1/chat/completions", None, WEB))

    row = orjson.loads(drained.body)
    assert (drained.status, row["name"], row["action"], row["state"]) == (200, TARGET, "drain", "drained")
    assert (refused.status, refused.error["code"]) == (503, "circuit_open")
    assert "drained by hand" in refused.error["message"]
    assert (orjson.loads(closed.body)["state"], served.status) == ("closed", 200)
    assert gateway.upstream_calls() == 1
    records = [one for one in caplog.records if one.name == "gateway.admin"]
    assert [one.getMessage() for one in records] == [f"admin: drain {TARGET}", f"admin: close {TARGET}"]
    assert {one.levelno for one in records} == {logging.WARNING}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"/admin/targets/{TARGET}", {}),
        (f"/admin/targets/{quote(TARGET, safe='')}", {}),
        (f"/admin/targets?name={quote(TARGET, safe='')}", {}),
        ("/admin/targets", {"name": TARGET}),
        ("/admin/accounts/main", {}),
        ("/admin/accounts?name=main", {}),
        ("/admin/accounts", {"name": "main"}),
    ],
)
async def test_a_name_may_be_told_in_several_ways(start: StartGateway, path: str, body: dict[str, str]) -> None:
    """It has a slash in it, which not every client can put into a path."""
    gateway = await start(guarded)

    opened = await ask(gateway, post(path, {"action": "open", **body}, ADMIN))
    refused = await ask(gateway, post("/v1/chat/completions", None, WEB))
    reset = await ask(gateway, post(path, {"action": "reset", **body}, ADMIN))
    served = await ask(gateway, post("/v1/chat/completions", None, WEB))

    assert (opened.status, orjson.loads(opened.body)["state"]) == (200, "open")
    assert (refused.status, refused.error["code"]) == (503, "circuit_open")
    assert (reset.status, orjson.loads(reset.body)["state"], served.status) == (200, "closed", 200)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("targets/main/gpt-4", b'{"action": "open"}', 404, "did you mean 'main/gpt-4o'?"),
        ("targets/zzz", b'{"action": "open"}', 404, "there are: main/*, main/gpt-4o, main/gpt-4o-mini."),
        ("accounts/gpt-4o-mini", b'{"action": "open"}', 404, "did you mean 'main/gpt-4o-mini'?"),
        ("targets/main", b'{"action": "open"}', 404, "it is one of the accounts: use /admin/accounts."),
        ("accounts/main/gpt-4o", b'{"action": "open"}', 404, "it is one of the targets: use /admin/targets."),
        ("targets/main/gpt-4o", b'{"action": "shut"}', 400, "must be one of: open, close, drain, reset"),
        ("targets/main/gpt-4o", b'{"action": ["open"]}', 400, "must be one of: open, close, drain, reset"),
        ("targets/main/gpt-4o", b"{}", 400, "must be one of: open, close, drain, reset"),
        ("targets/main/gpt-4o", b"open", 400, "must be a JSON object"),
        ("targets/main/gpt-4o", b"[]", 400, "must be a JSON object"),
        ("targets/main/gpt-4o", b"", 400, "must be a JSON object"),
        ("targets", b'{"action": "open"}', 400, "Say which"),
        ("targets", b'{"action": "open", "name": 7}', 400, "Say which"),
        ("targets/main/gpt-4o", b'{"action": "open", "x": "%s"}' % (b"x" * 70_000), 413, "65536 bytes"),
    ],
)
async def test_what_cannot_be_done_is_said_and_changes_nothing(
    start: StartGateway, path: str, body: bytes, status: int, message: str
) -> None:
    """In OpenAI's shape, with what would have been right."""
    gateway = await start(guarded)

    answer = await ask(gateway, post(f"/admin/{path}", body, ADMIN))
    rows = await view(gateway)

    assert (answer.status, answer.error["type"]) == (status, "invalid_request_error")
    assert message in answer.error["message"]
    assert {row["state"] for kind in rows.values() for row in kind.values()} == {"closed"}


async def test_only_the_admin_key_may_look_or_change(start: StartGateway) -> None:
    """A caller's key is as wrong as none; without an admin key in the config there is nothing at all."""
    requests = [
        (method, path)
        for method, path in (
            ("GET", "/admin/targets"),
            ("POST", "/admin/targets"),
            ("POST", f"/admin/targets/{TARGET}"),
            ("POST", "/admin/accounts/main"),
        )
    ]
    gateway, without = await start(guarded), await start(lambda url: config_of(url, keys=KEYS))

    for method, path in requests:
        for headers in ((), (WEB,)):
            request = post(path, b'{"action": "open"}', *headers, method=method)
            assert (await ask(gateway, request)).error["code"] == "invalid_api_key"
            assert (await ask(without, request)).error["code"] == "not_found"
    assert {row["state"] for row in (await view(gateway))["targets"].values()} == {"closed"}


async def test_what_clients_name_is_seen_and_forced_but_is_no_label(start: StartGateway) -> None:
    """A wildcard's gates are seen under the models' names; by hand they are one, and so they are in the metrics."""
    gateway = await start(guarded)
    made_up = post("/v1/chat/completions", chat("made-up"), WEB)
    await ask(gateway, made_up)

    row = (await view(gateway))["targets"]["main/made-up"]
    await ask(gateway, switch("drain", "main/*"))
    refused = await ask(gateway, made_up)
    text = (await ask(gateway, get("/metrics"))).body.decode()

    assert (row["config"], row["models"]) == ("main/*", {"*": {"order": 1, "weight": 1.0}})
    assert (refused.status, refused.error["code"]) == (503, "circuit_open")
    assert 'gateway_breaker_state{target="main/*"} 3.0' in text
    assert 'gateway_breaker_transitions_total{target="main/*",to="drained"} 2.0' in text
    assert "made-up" not in text


async def test_no_credential_and_no_key_shows(start: StartGateway) -> None:
    """Neither the provider's, nor the caller's own, nor in the metrics anything made of one."""
    own = "sk-callers-own-canary-77"

    def config(url: str) -> dict[str, Any]:
        open_ended = {"dialect": "openai", "base_url": url}
        main = open_ended | {"api_key": PROVIDER_KEY}
        models = {"gpt-4o": {"targets": ["main/gpt-4o"]}, "own": {"targets": ["theirs/gpt-4o"]}}
        return config_of(url, providers={"main": main, "theirs": open_ended}, models=models, admin={"key": ADMIN_KEY})

    gateway = await start(config)
    served = await ask(gateway, post("/v1/chat/completions", chat("own"), f"authorization: Bearer {own}"))
    rows = await view(gateway)
    metrics = (await ask(gateway, get("/metrics"))).body.decode()

    assert served.status == 200
    (callers,) = [row for name, row in rows["targets"].items() if name.startswith("theirs/gpt-4o@")]
    assert callers["account"] == {"name": "caller's own", "state": "closed"}
    assert callers["config"] == "theirs/gpt-4o"
    assert list(rows["accounts"]) == ["main"]
    everything = orjson.dumps(rows).decode() + metrics
    assert not any(secret in everything for secret in (own, PROVIDER_KEY, ADMIN_KEY))
    assert "@" not in metrics
