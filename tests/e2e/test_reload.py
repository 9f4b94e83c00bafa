"""A config changed while calls run: no call fails, none sees half of it, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, KEYS, WEB_KEY, Peer, Running, chat, config_of, connect, get, post, until

CHAT = "/v1/chat/completions"
ADMIN = f"authorization: Bearer {ADMIN_KEY}"
TYPO = "providers: {main: {dialect: openai, base_url: 'http://x/v1', api_kee: 1}}\nmodels: {'*': {targets: [mian]}}\n"


def config(url: str, served_by: str = "gpt-4o", **sections: Any) -> dict[str, Any]:
    """A config whose provider and whose models `m` and `n` name the same upstream model: half of another would show.

    Another provider means another pool of connections, so a change of it retires the old one.
    """
    provider = {"dialect": "openai", "base_url": url, "api_key": "sk-x", "headers": {"x-stainless-for": served_by}}
    return config_of(
        url,
        providers={"main": provider},
        admin={"key": ADMIN_KEY},
        models={"m": {"targets": [f"main/{served_by}"]}, "n": {"targets": [f"main/{served_by}"]}},
        **sections,
    )


async def last_reload(peer: Peer) -> dict[str, Any]:
    """What /admin/config says of the last reload, and what is in force."""
    return dict(orjson.loads((await peer.exchange(get("/admin/config", ADMIN))).body))


async def reload(gateway: Running) -> None:
    """Reload, as SIGHUP does, and wait for the outcome."""
    before = gateway.gateway._reloading.last
    gateway.gateway.reload()
    await until(lambda: gateway.gateway._reloading.last is not before)


async def test_a_good_config_takes_over(start: StartGateway) -> None:
    """The next call follows it; log, metric and admin view say so."""
    gateway = await start(config)
    async with connect(gateway.url) as peer:
        await peer.exchange(post(CHAT, orjson.dumps(chat("m"))))
        gateway.write_config(config(gateway.emulator.base_url, "gpt-4o-mini"))
        await reload(gateway)
        await peer.exchange(post(CHAT, orjson.dumps(chat("m"))))
        shown = await last_reload(peer)
        metrics = (await peer.exchange(get("/metrics"))).body

    assert [orjson.loads(one["body"])["model"] for one in gateway.received()] == ["gpt-4o", "gpt-4o-mini"]
    assert (shown["last_reload"]["status"], shown["in_force"]["version"]) == ("loaded", 2)
    assert b"\ngateway_config_version 2.0\n" in metrics
    await gateway.stop()
    assert [one["policy"] for one in gateway.records if one["event"] == "call"] == [1, 2]


async def test_a_bad_config_changes_nothing_and_is_told_everywhere(
    start: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Every problem at once, in the log and in /admin/config; the counter counts; calls go on as before."""
    gateway = await start(config)
    gateway.write_config(TYPO)
    await reload(gateway)
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, orjson.dumps(chat("m"))))
        shown = await last_reload(peer)
        metrics = (await peer.exchange(get("/metrics"))).body

    assert answer.status == 200
    assert (shown["last_reload"]["status"], shown["in_force"]["version"]) == ("failed", 1)
    assert len(shown["last_reload"]["problems"]) == 2
    assert b"\ngateway_config_reload_errors_total 1.0\n" in metrics
    logged = [record.getMessage() for record in caplog.records if record.name == "gateway"]
    assert any("config not reloaded" in line and "api_kee" in line and "mian" in line for line in logged)


async def test_an_unreadable_config_changes_nothing(start: StartGateway) -> None:
    """Gone, empty, or no text at all."""
    gateway = await start(config)
    for content in (b"", b"\xff\xfe\x00", b"[", b"a: *b", None):
        if content is None:
            gateway.config_path.unlink()
        else:
            gateway.config_path.write_bytes(content)
        await reload(gateway)
        last = gateway.gateway._reloading.last
        assert last is not None
        assert last.status == "failed"

    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post(CHAT, orjson.dumps(chat("m"))))).status == 200


async def test_a_change_of_port_waits_for_a_restart_and_says_so(
    start: StartGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """The admin view tells where the gateway listens, whatever the new file says."""
    gateway = await start(config)
    gateway.write_config(config(gateway.emulator.base_url, server={"port": 1}))

    await reload(gateway)
    await until(lambda: gateway.gateway.policy.version == 2)
    async with connect(gateway.url) as peer:
        shown = await last_reload(peer)

    assert shown["listening"] == [gateway.url]
    assert sum("takes effect after a restart" in record.getMessage() for record in caplog.records) == 1


async def test_the_same_config_again_is_no_new_version(start: StartGateway) -> None:
    """A touched file costs nothing."""
    gateway = await start(config)

    await reload(gateway)

    assert gateway.gateway.policy.version == 1


async def test_a_changed_file_is_noticed_without_a_signal(start: StartGateway) -> None:
    """By housekeeping, once the file is at rest."""
    gateway = await start(config)
    gateway.write_config(config(gateway.emulator.base_url, "gpt-4o-mini"))
    for _ in range(2):
        await gateway.gateway._housekeeping.tick(0.0)

    await until(lambda: gateway.gateway.policy.version == 2)


async def test_a_reload_may_not_open_the_gateway_to_the_network(start: StartGateway) -> None:
    """The keys of a port that others can reach cannot be dropped, whatever the new file says about the host."""
    gateway = await start(lambda url: config(url, keys=KEYS), host="0.0.0.0")  # a bind that others can reach
    gateway.write_config(config(gateway.emulator.base_url, keys=None, server={"host": "127.0.0.1"}))

    await reload(gateway)

    last = gateway.gateway._reloading.last
    assert last is not None
    assert last.status == "failed"
    assert "without keys" in last.problems[0]
    assert gateway.gateway.policy.keys


async def test_a_host_of_the_file_stays_guarded_too(start: StartGateway) -> None:
    """The port stays bound where it was: another host in the new file does not unlock it."""
    gateway = await start(lambda url: config(url, keys=KEYS, server={"host": "0.0.0.0"}))
    gateway.write_config(config(gateway.emulator.base_url, server={"host": "127.0.0.1"}))

    await reload(gateway)

    last = gateway.gateway._reloading.last
    assert last is not None
    assert last.status == "failed"


async def test_keys_are_exchanged_in_one_step(start: StartGateway) -> None:
    """The old key is out and the new one in from the next call on; a running call ends as it began."""
    gateway = await start(lambda url: config(url, keys=KEYS))
    old, new = f"authorization: Bearer {WEB_KEY}", "authorization: Bearer another-key-0123456789abcdef"
    gateway.script("stall;after_chunks=1")
    async with connect(gateway.url) as streaming, connect(gateway.url) as peer:
        streaming.send(post(CHAT, orjson.dumps(chat("m", stream=True)), old))
        await streaming.reader.readuntil(b"data: ")
        gateway.write_config(
            config(gateway.emulator.base_url, keys=[{"name": "web", "key": "another-key-0123456789abcdef"}])
        )
        await reload(gateway)
        statuses = [(await peer.exchange(post(CHAT, orjson.dumps(chat("m")), key))).status for key in (old, new)]
        assert len(gateway.inflight) == 1

    assert statuses == [401, 200]
    await gateway.idle()


async def test_reloads_under_load_fail_no_call_and_mix_no_config(start: StartGateway) -> None:
    """Good and bad configs in turn while 200 calls run: each call is served whole by one version."""
    gateway = await start(config)
    url = gateway.emulator.base_url
    configs: list[dict[str, Any] | str] = [
        config(url, "even"),
        config(url, "odd"),
        TYPO,
        config(url, "even", passthrough="main"),
    ]
    statuses: list[int] = []

    async def caller(calls: int) -> None:
        async with connect(gateway.url) as peer:
            for number in range(calls):
                stream = number % 4 == 0
                body = orjson.dumps(chat("mn"[number % 2], stream=stream))
                statuses.append((await peer.exchange(post(CHAT, body))).status)

    calling = [asyncio.create_task(caller(20)) for _ in range(10)]
    for number in range(20):
        gateway.write_config(configs[number % 4])
        await reload(gateway)
    await asyncio.gather(*calling)
    version = gateway.gateway.policy.version
    received = gateway.received()
    await gateway.gateway._housekeeping.tick(0.0)
    assert len(gateway.gateway._pools.stats()) == 1
    await gateway.stop()

    assert statuses == [200] * 200
    calls = [one for one in gateway.records if one["event"] == "call"]
    assert {one["outcome"] for one in calls} == {"ok"}
    assert version > 10
    assert len(received) == 200
    for request in received:
        assert orjson.loads(request["body"])["model"] == dict(request["headers"])["x-stainless-for"]
    targets = {(one["policy"], one["target"]) for one in calls}
    assert len(targets) == len({policy for policy, _ in targets})
