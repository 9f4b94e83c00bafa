"""`gateway serve --workers N`: one port, one answer to a scrape, one thing to signal. Real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson
import pytest

from gateway.cli.main import main
from tests.e2e.harness import ADMIN_KEY, PATIENCE_S, WEB_KEY, Peer, connect, get, post, until
from tests.e2e.lives import HANG, Life, close_quickly, life, lose_patience, share_a_listener, share_nothing
from tests.e2e.test_process import CHAT, STREAM, Provider, provider, rewrite, status_of, write
from tests.soak.support import wait_for
from tests.support.redis_servers import RedisServer

__all__ = ["provider"]

WHO = get("/admin/config", f"authorization: Bearer {ADMIN_KEY}")


@pytest.fixture
def config(tmp_path: Path, provider: Provider) -> Path:
    """A provider, and an admin key to ask with who answers."""
    return write(tmp_path, provider.server.base_url, admin={"key": ADMIN_KEY})


@asynccontextmanager
async def crew(config: Path, count: int = 2) -> AsyncIterator[Life]:
    """A gateway with workers that share no store."""
    async with life(config, "--workers", str(count), before=share_nothing) as supervisor:
        yield supervisor


def workers_of(supervisor: Life) -> set[int]:
    """The processes that it is the parent of."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True)
    rows = (line.split() for line in table.stdout.splitlines())
    return {int(pid) for pid, parent in rows if int(parent) == supervisor.pid}


async def who(peer: Peer) -> tuple[int, int]:
    """The number and the process of the worker that a connection has reached."""
    told = orjson.loads((await peer.exchange(WHO)).body)
    return told["worker"], told["pid"]


@asynccontextmanager
async def one_to_each(url: str, count: int = 2) -> AsyncIterator[dict[int, Peer]]:
    """A connection to each worker, by its number."""
    async with AsyncExitStack() as stack:
        peers: dict[int, Peer] = {}
        while len(peers) < count:
            peer = await stack.enter_async_context(connect(url))
            peers.setdefault((await who(peer))[0], peer)
        yield peers


async def scrape(peer: Peer) -> dict[str, float]:
    """What a scrape over this connection says, by name and labels."""
    text = (await peer.exchange(get("/metrics"))).body.decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def served(numbers: dict[str, float]) -> float:
    """All calls that were ever counted."""
    return sum(value for name, value in numbers.items() if name.startswith("gateway_requests_total"))


async def open_stream(peer: Peer) -> None:
    """Ask for a stream, and read its head."""
    peer.send(STREAM)
    await peer.reader.readuntil(b"\r\n\r\n")


async def test_connections_are_dealt_out_to_all_workers(config: Path) -> None:
    """Each has its share; one port, said once."""
    async with crew(config, 3) as supervisor:
        seen: Counter[int] = Counter()
        for _ in range(45):
            async with connect(supervisor.url) as peer:
                seen[(await who(peer))[0]] += 1

        assert set(seen) == {1, 2, 3}
        assert min(seen.values()) >= 4
        assert supervisor.said.count("listens on") == 1
        assert f"listens on {supervisor.url}, 3 workers, models: " in supervisor.said


async def test_workers_may_share_one_listener(config: Path) -> None:
    """Where the kernel does not deal out: whoever is there answers, and the one that was killed is missed by nobody."""
    async with life(config, "--workers", "2", before=share_a_listener) as supervisor:
        async with connect(supervisor.url) as peer:
            _, victim = await who(peer)
        os.kill(victim, signal.SIGKILL)
        await supervisor.says("was killed by signal 9")
        answers = [await status_of(supervisor.url, get("/readyz")) for _ in range(10)]
        await supervisor.says("is ready again")
        supervisor.tell(signal.SIGTERM)
        code = await supervisor.ends()

    assert answers == [200] * 10
    assert code == 0


async def test_a_drain_loses_no_call(config: Path, provider: Provider) -> None:
    """A stream comes to its end; a worker that is done earlier leaves nobody at its door; exit code 0."""
    async with crew(config) as supervisor, connect(supervisor.url) as streaming:
        await open_stream(streaming)
        supervisor.tell(signal.SIGTERM)
        await wait_for(lambda: len(workers_of(supervisor)) == 1, lambda: supervisor.said)

        answers = [await status_of(supervisor.url, one) for one in (get("/readyz"), post()) for _ in range(10)]
        provider.may_go_on.set()
        rest = await streaming.rest()
        code = await supervisor.ends()

    assert set(answers) == {503}
    assert b"data: [DONE]\n\n" in rest
    assert code == 0
    assert supervisor.said.count("stopping: ") == 1
    assert "Traceback" not in supervisor.said


async def test_ctrl_c_in_a_terminal_is_one_signal(config: Path, provider: Provider) -> None:
    """Though all processes of the group get it: what runs comes to its end, nobody prints a traceback."""
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        for peer in peers.values():
            await open_stream(peer)
        os.killpg(supervisor.pid, signal.SIGINT)
        await supervisor.says("stopping: ")
        provider.may_go_on.set()
        rests = [await peer.rest() for peer in peers.values()]
        code = await supervisor.ends()

    assert all(b"data: [DONE]\n\n" in rest for rest in rests)
    assert code == 0
    assert "Traceback" not in supervisor.said


async def test_a_service_manager_may_tell_all_of_them(config: Path, provider: Provider) -> None:
    """SIGTERM to every process drains, and hurries none."""
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        for peer in peers.values():
            await open_stream(peer)
        os.killpg(supervisor.pid, signal.SIGTERM)
        await supervisor.says("stopping: ")
        provider.may_go_on.set()
        rests = [await peer.rest() for peer in peers.values()]
        code = await supervisor.ends()

    assert all(b"data: [DONE]\n\n" in rest for rest in rests)
    assert code == 0


async def test_a_second_signal_ends_all_at_once(config: Path) -> None:
    """Streams of every worker end with an error event; exit code 1."""
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        for peer in peers.values():
            await open_stream(peer)
        supervisor.tell(signal.SIGTERM)
        await supervisor.says("stopping: ")
        supervisor.tell(signal.SIGTERM)
        rests = [await peer.rest() for peer in peers.values()]
        code = await supervisor.ends()

    assert code == 1
    assert all(b'"code":"shutting_down"' in rest for rest in rests)
    assert "Traceback" not in supervisor.said


async def test_a_worker_that_is_killed_is_replaced_and_nobody_else_notices(config: Path, provider: Provider) -> None:
    """Its own stream breaks; the other's goes on, every new call is served, and no count goes back."""
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        provider.may_go_on.set()
        assert [(await peer.exchange(post())).status for peer in peers.values()] == [200, 200]
        before = await scrape(peers[2])
        _, victim = await who(peers[1])
        provider.may_go_on.clear()
        for peer in peers.values():
            await open_stream(peer)
        old = workers_of(supervisor)
        os.kill(victim, signal.SIGKILL)

        broken = await peers[1].rest()
        served_by_others = [await status_of(supervisor.url, get("/readyz")) for _ in range(40)]
        provider.may_go_on.set()
        rest = await peers[2].reader.readuntil(b"[DONE]")
        await supervisor.says("worker 1 is ready again")
        now = workers_of(supervisor)
        calls = [await status_of(supervisor.url, post()) for _ in range(10)]
        async with one_to_each(supervisor.url) as later:
            sums = [await scrape(peer) for peer in later.values()]

        assert b"[DONE]" not in broken
        assert set(served_by_others) == {200}
        assert b"[DONE]" in rest
        assert len(now) == 2
        assert old - now == {victim}
        assert calls == [200] * 10
        assert served(before) == 2
        assert [served(one) for one in sums] == [served(before) + 11] * 2  # one stream and ten calls
        assert sums[0]["gateway_worker_restarts_total"] == 1
        assert "worker 1 was killed by signal 9: another takes its place in 0.1 s" in supervisor.said


async def test_sighup_reaches_all_workers(config: Path) -> None:
    """Each compiles the config again and says so under its number; a bad one changes none of them."""
    async with crew(config) as supervisor:
        rewrite(config, "gpt-4o-mini", "gpt-4.1")
        supervisor.tell(signal.SIGHUP)
        for number in (1, 2):
            await supervisor.says(f"worker {number}: config version 2 is in force")
        rewrite(config, "models:", "nonsense: 1\nmodels:")
        supervisor.tell(signal.SIGHUP)
        for number in (1, 2):
            await supervisor.says(f"worker {number}: config not reloaded, version 2 stays in force")

        assert await status_of(supervisor.url, get("/readyz")) == 200


async def test_the_grace_is_that_of_the_config_in_force(config: Path, provider: Provider) -> None:
    """After a reload, too."""
    rewrite(config, "models:", "server: {grace: 100ms}\nmodels:")
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        rewrite(config, "100ms", "77s")
        supervisor.tell(signal.SIGHUP)
        for number in (1, 2):
            await supervisor.says(f"worker {number}: config version 2 is in force")
        await open_stream(peers[1])
        supervisor.tell(signal.SIGTERM)
        await supervisor.says("running ones have 77 s")
        provider.may_go_on.set()
        rest = await peers[1].rest()

        assert b"data: [DONE]\n\n" in rest
        assert await supervisor.ends() == 0


async def test_a_worker_is_not_replaced_by_one_of_another_state(config: Path, tmp_path: Path) -> None:
    """It would not share what the others do; these go on, and it says what to do."""
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        _, victim = await who(peers[1])
        rewrite(config, "models:", f"state: sqlite:///{tmp_path}/other.db\nmodels:")
        os.kill(victim, signal.SIGKILL)
        await supervisor.says("worker 1 cannot start: state, jobs or admin.listen has changed")
        await supervisor.says("worker 1 has ended with exit code 2: another takes its place in 0.2 s")

        assert (await scrape(peers[2]))["gateway_worker_restarts_total"] == 0
        assert [await status_of(supervisor.url, get("/readyz")) for _ in range(10)] == [200] * 10


async def test_a_scrape_of_any_worker_tells_of_all(config: Path, provider: Provider) -> None:
    """Counters and what is in flight are sums; the call log says which worker it was, in whole lines."""
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        provider.may_go_on.set()
        for _ in range(5):
            assert [(await peer.exchange(post())).status for peer in peers.values()] == [200, 200]
        sums = [await scrape(peer) for peer in peers.values()]
        provider.may_go_on.clear()
        async with one_to_each(supervisor.url) as streaming:
            for peer in streaming.values():
                await open_stream(peer)
            in_flight = [(await scrape(peer))["gateway_calls_in_flight"] for peer in peers.values()]
        supervisor.tell(signal.SIGTERM)
        assert await supervisor.ends() == 0

    assert [served(one) for one in sums] == [10, 10]
    assert sums[0]["gateway_overhead_seconds_count"] == 10
    assert (sums[0]["gateway_workers"], sums[0]["gateway_workers_answered"]) == (2, 2)
    assert in_flight == [2, 2]
    lines = [orjson.loads(line) for line in supervisor.said.splitlines() if line.startswith("{")]
    assert Counter(line["worker"] for line in lines if line.get("outcome") == "ok") == {1: 5, 2: 5}


async def test_a_worker_that_does_not_answer_is_left_out_of_a_scrape(config: Path, provider: Provider) -> None:
    """After a moment; its counters stay as they were told last, and the metrics say that it was left out."""
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        provider.may_go_on.set()
        assert [(await peer.exchange(post())).status for peer in peers.values()] == [200, 200]
        before = await scrape(peers[2])
        _, stuck = await who(peers[1])
        os.kill(stuck, signal.SIGSTOP)
        without = await scrape(peers[2])
        os.kill(stuck, signal.SIGCONT)
        again = await scrape(peers[2])

    assert [one["gateway_workers_answered"] for one in (before, without, again)] == [2, 1, 2]
    assert [served(one) for one in (before, without, again)] == [2, 2, 2]


@pytest.mark.parametrize("how", ["stopped", "busy"])
async def test_a_worker_that_hangs_is_replaced(config: Path, provider: Provider, how: str) -> None:
    """Nobody is left at its door, whether its process is stopped or its loop turns no more; the log says where it hung."""
    async with life(config, "--workers", "2", before=lose_patience) as supervisor, one_to_each(supervisor.url) as peers:
        provider.may_go_on.set()
        _, stuck = await who(peers[1])
        if how == "stopped":
            os.kill(stuck, signal.SIGSTOP)
        else:
            peers[1].send(HANG)
        answers = [await status_of(supervisor.url, post()) for _ in range(20)]
        await supervisor.says("worker 1 is ready again")

        assert answers == [200] * 20
        assert "worker 1 has not answered for " in supervisor.said
        assert "worker 1 was killed by signal 9" in supervisor.said
        assert ("in hang_if_asked" in supervisor.said) == (how == "busy")


async def test_a_worker_that_hangs_does_not_hold_up_the_end(config: Path) -> None:
    """The others drain, it is killed; exit code 1, for what it had taken on is lost."""
    async with life(config, "--workers", "2", before=lose_patience) as supervisor, one_to_each(supervisor.url) as peers:
        _, stuck = await who(peers[1])
        os.kill(stuck, signal.SIGSTOP)
        supervisor.tell(signal.SIGTERM)
        code = await supervisor.ends()

    assert code == 1
    assert "workers that do not end are killed" not in supervisor.said


async def test_a_worker_that_hangs_is_not_waited_for_beyond_the_grace(config: Path, provider: Provider) -> None:
    """What the other has comes to its end; the log says whose calls are lost, and so does the exit code."""
    rewrite(config, "models:", "server: {grace: 1s}\nmodels:")
    async with life(config, "--workers", "2", before=close_quickly) as supervisor, one_to_each(supervisor.url) as peers:
        _, stuck = await who(peers[1])
        await open_stream(peers[2])
        os.kill(stuck, signal.SIGSTOP)
        supervisor.tell(signal.SIGTERM)
        await supervisor.says("stopping: ")
        provider.may_go_on.set()
        rest = await peers[2].rest()
        code = await supervisor.ends()

    assert b"data: [DONE]\n\n" in rest
    assert code == 1
    assert "worker 1 was killed by signal 9: its calls are lost" in supervisor.said
    assert "has not answered for 5 s" not in supervisor.said


async def test_calls_lost_while_stopping_make_exit_code_1(config: Path, provider: Provider) -> None:
    """Whoever killed their worker."""
    async with crew(config) as supervisor, one_to_each(supervisor.url) as peers:
        _, victim = await who(peers[1])
        for peer in peers.values():
            await open_stream(peer)
        supervisor.tell(signal.SIGTERM)
        await supervisor.says("stopping: ")
        os.kill(victim, signal.SIGKILL)
        await supervisor.says("worker 1 was killed by signal 9: its calls are lost")
        provider.may_go_on.set()
        rest = await peers[2].rest()
        code = await supervisor.ends()

    assert b"data: [DONE]\n\n" in rest
    assert code == 1


async def test_metrics_on_a_port_of_their_own_tell_of_all(config: Path) -> None:
    """Every worker listens on both."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    rewrite(config, "admin:\n", f"admin:\n  listen: 127.0.0.1:{port}\n")
    async with crew(config) as supervisor:
        for _ in range(8):
            async with connect(f"http://127.0.0.1:{port}") as peer:
                assert (await scrape(peer))["gateway_workers_answered"] == 2
        assert await status_of(supervisor.url, get("/metrics")) == 404


async def test_workers_without_a_supervisor_drain_and_go(config: Path, provider: Provider) -> None:
    """What runs comes to its end, the port is free for another gateway at once, and no process is left."""
    async with crew(config) as supervisor, connect(supervisor.url) as streaming:
        await open_stream(streaming)
        workers = workers_of(supervisor)
        supervisor.kill()
        port = int(supervisor.url.rpartition(":")[2])
        await wait_for(lambda: is_free(port), lambda: supervisor.said)
        provider.may_go_on.set()
        rest = await streaming.rest()
        await until(lambda: not any(map(lives_on, workers)))

    assert b"data: [DONE]\n\n" in rest
    assert "Traceback" not in supervisor.said


def is_free(port: int) -> bool:
    """Whether somebody could listen there."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def lives_on(pid: int) -> bool:
    """Whether this process, whose parent has died, still runs; what only waits to be reaped does not."""
    row = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return row.stdout.strip() not in ("", "Z")


async def test_workers_share_their_limits(tmp_path: Path, provider: Provider) -> None:
    """In a real Redis: together they admit what one of them may; the metrics count both as replicas."""
    provider.may_go_on.set()
    redis = RedisServer().start()
    keys = [{"name": "web", "key": WEB_KEY, "rpm": 6}]
    config = write(tmp_path, provider.server.base_url, admin={"key": ADMIN_KEY}, keys=keys, state=redis.url)
    try:
        async with life(config, "--workers", "2") as supervisor, one_to_each(supervisor.url) as peers:
            async with asyncio.timeout(PATIENCE_S):
                while (await scrape(peers[1]))["gateway_replicas"] < 2:
                    pass
            call, began_at = post(CHAT, None, f"authorization: Bearer {WEB_KEY}"), time.monotonic()
            answers = [(await peer.exchange(call)).status for _ in range(10) for peer in peers.values()]
            refilled = int((time.monotonic() - began_at) * 6 / 60) + 1  # a machine may be so busy that it shows
            numbers = await scrape(peers[2])
    finally:
        redis.close()

    assert set(answers) == {200, 429}
    assert 6 <= answers.count(200) <= min(6 + refilled, 11), "each alone would admit six"
    assert numbers["gateway_state_up"] == 1


async def test_a_port_of_another_gateways_workers_is_in_use(config: Path) -> None:
    """They share it among themselves, not with others; one sentence, exit code 1."""
    async with crew(config) as supervisor:
        port = supervisor.url.rpartition(":")[2]
        words = f"gateway: cannot listen on 127.0.0.1:{port}: address already in use by "
        async with life(config, "--workers", "2", "--port", port, words=words, before=share_nothing) as other:
            assert await other.ends() == 1

        assert other.said.startswith(words)
        assert len(other.said.splitlines()) == 1


async def test_workers_that_cannot_start_say_why_once(config: Path, tmp_path: Path) -> None:
    """The first that cannot ends all of them; exit code 1."""
    file = tmp_path / "strange.db"
    file.write_text("no database" * 1000)
    rewrite(config, "models:", f"state: sqlite:///{file}\nmodels:")

    async with life(config, "--workers", "4", words="gateway: ", before=share_nothing) as supervisor:
        assert await supervisor.ends() == 1

    assert supervisor.said.count("strange.db") == 1
    assert "Traceback" not in supervisor.said


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["check"]])
def test_workers_need_a_state_that_they_share(
    config: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Else each would allow itself the whole of every limit; the message says so, and what to do."""
    assert main([*command, "--config", str(config), "--workers", "2"]) == 2

    errors = capsys.readouterr().err
    assert "'memory'" in errors
    assert "the whole of every limit" in errors
    assert "state: redis://" in errors


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["check"]])
def test_workers_cannot_share_a_jobs_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """One process alone can have it; without a setting for it there are no jobs, and many workers may be."""
    shared = {"state": "redis://127.0.0.1:1/0"}
    fine = write(tmp_path, "http://127.0.0.1:9/v1", **shared)
    assert main(["check", "--config", str(fine), "--workers", "2"]) == 0
    config = write(tmp_path, "http://127.0.0.1:9/v1", **shared, jobs={"store": "sqlite:///jobs.db"})
    assert main([*command, "--config", str(config), "--workers", "2"]) == 2

    errors = capsys.readouterr().err
    assert "jobs.store" in errors
    assert "--workers 1" in errors


def test_the_number_of_workers_may_come_from_the_environment(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every fact of the process; and has to make sense."""
    monkeypatch.setenv("GATEWAY_WORKERS", "2")
    refused = main(["check", "--config", str(config)])
    monkeypatch.setenv("GATEWAY_WORKERS", "0")
    senseless = main(["check", "--config", str(config)])

    assert (refused, senseless) == (2, 2)
    assert "GATEWAY_WORKERS: " in capsys.readouterr().err
