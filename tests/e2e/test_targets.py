"""`gateway targets` against a running gateway: what it prints, what it does, and how it says that it cannot."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import orjson
import pytest

from gateway.cli.main import main
from gateway.cli.operate import sentence, table
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, KEYS, WEB_KEY, Running, config_of, connect, post
from tests.rows import rows

TARGET = "main/gpt-4o"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's admin key is in the environment; proxies, which nobody should be asked through, are."""
    monkeypatch.delenv("GATEWAY_ADMIN_KEY", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")


def guarded(url: str, **admin: Any) -> dict[str, Any]:
    """Keys for callers and a key for operators."""
    return config_of(url, keys=KEYS, admin={"key": ADMIN_KEY, **admin})


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; the gateway goes on in this loop meanwhile."""
    code = await asyncio.to_thread(main, ["targets", *arguments])
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    return code, output, errors


async def status_of_a_call(gateway: Running) -> int:
    """How a caller fares."""
    async with connect(gateway.url) as peer:
        return (await peer.exchange(post("/v1/chat/completions", None, f"authorization: Bearer {WEB_KEY}"))).status


async def test_targets_and_accounts_are_shown_one_a_line(
    start: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """With their headings; an SDK's base_url will do for the address."""
    gateway = await start(guarded)
    await status_of_a_call(gateway)

    code, output, errors = await run(capsys, "--url", f"{gateway.url}/v1", "--key", ADMIN_KEY)

    heading, *lines = output.splitlines()
    assert (code, errors) == (0, "")
    assert heading.split() == ["state", "next", "probe", "in", "flight", "p95", "failures", "reason"]
    assert [line.split("  ")[0] for line in lines] == ["main/*", TARGET, "main/gpt-4o-mini", "account main"]
    assert lines[1].split() == [TARGET, "closed", "-", "0", "-", "0%", "of", "1", "-"]


async def test_a_target_is_drained_and_closed_from_the_command_line(
    start: StartGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time its new state is told; calls feel it at once."""
    gateway = await start(guarded)
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN_KEY)

    drained = await run(capsys, "drain", TARGET, "--url", gateway.url)
    shown = await run(capsys, "--url", gateway.url)
    refused = await status_of_a_call(gateway)
    closed = await run(capsys, "close", TARGET, "--url", gateway.url)
    served = await status_of_a_call(gateway)

    assert drained == (0, f"{TARGET} is drained (drained by hand), 0 in flight\n", "")
    assert f"{TARGET}       drained  -           0          -    -         drained by hand\n" in shown[1]
    assert closed == (0, f"{TARGET} is closed (closed by hand), 0 in flight\n", "")
    assert (refused, served) == (503, 200)


async def test_a_model_that_the_provider_does_not_know_is_said(
    start: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """An SDK is served by the next target; what a caller made up under `*` is his, and nothing to mend."""
    models = {"gpt-4o": {"targets": ["main/retired", "main/gpt-4o"], "choose": "in_order"}, "*": {"targets": ["main"]}}
    gateway = await start(lambda url: {**guarded(url), "models": models})
    await gateway.emulator.configure(models=("gpt-4o",))

    plain = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=WEB_KEY, http_client=plain) as client:
        answered = await client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="made-up", messages=[{"role": "user", "content": "hi"}])
    _, output, _ = await run(capsys, "--url", gateway.url, "--key", ADMIN_KEY)

    lines = {line.split()[0]: line for line in output.splitlines()[1:]}
    assert (answered.choices[0].finish_reason, caught.value.code) == ("stop", "model_not_found")
    assert lines["main/retired"].split()[1] == "open"
    assert lines["main/retired"].endswith(
        "the provider knows no model 'retired', or not for this account; correct the target's `model` in the config,"
        " or have it made available there"
    )
    assert [name for name, line in lines.items() if "knows no model" in line] == ["main/retired"]


async def test_an_account_is_named_without_a_slash(start: StartGateway, capsys: pytest.CaptureFixture[str]) -> None:
    """A target that is closed while its account is not gets no calls, and that is said."""
    gateway = await start(guarded)
    common = ("--url", gateway.url, "--key", ADMIN_KEY)

    opened = await run(capsys, "open", "main", *common)
    target = await run(capsys, "close", TARGET, *common)
    shown = await run(capsys, *common)
    answer = await run(capsys, "reset", "main", "--json", *common)

    assert opened == (0, "main is open (opened by hand), 0 in flight\n", "")
    assert target[1].endswith("0 in flight; no call gets there yet: its account main is open\n")
    assert "account main is open\n" in shown[1]
    assert orjson.loads(answer[1])["state"] == "closed"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--key", WEB_KEY), 2, "does not take this key"),
        (("--key", "wrong\n"), 2, "has characters that no key has"),
        (("--key", "schlüssel"), 2, "does not take this key"),
        (("--key", "密钥"), 2, "has characters that no key has"),
        ((), 2, "no admin key: set GATEWAY_ADMIN_KEY or give --key"),
        (("--key", ADMIN_KEY, "drain"), 2, "which one? gateway targets drain NAME"),
        (("--key", ADMIN_KEY, "drain", "main/gpt-4"), 2, "did you mean 'main/gpt-4o'?"),
        (("--key", ADMIN_KEY, "drain", "mian"), 2, "did you mean 'main'?"),
        (("--key", ADMIN_KEY, "--url", "http://127.0.0.1:1"), 1, "no gateway answers at http://127.0.0.1:1"),
        (("--key", ADMIN_KEY, "--url", "ftp://x"), 2, "'ftp://x' is no address"),
        (("--key", ADMIN_KEY, "--url", "http://x:port"), 2, "'http://x:port' is no address"),
    ],
)
async def test_what_cannot_be_done_is_a_sentence(
    start: StartGateway, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    """On standard error: 2 for what was asked, 1 where nobody answers."""
    gateway = await start(guarded)

    found, output, errors = await run(capsys, "--url", gateway.url, *arguments)

    assert (found, output) == (code, "")
    assert errors.startswith("gateway: ")
    assert said in errors


async def test_an_admin_api_that_is_off_or_elsewhere_is_said(
    start: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """No admin key in the config; a port of its own for operators; a port on which something else listens."""
    off = await start(lambda url: config_of(url, keys=KEYS))
    elsewhere = await start(lambda url: guarded(url, listen="127.0.0.1:0"))

    for url, said, expected in (
        (off.url, "The admin API is off; set 'admin.key'", 2),
        (elsewhere.url, "if the config has admin.listen, that is the address for --url", 2),
        (f"{off.url}/healthz?", "no admin API", 2),
    ):
        code, _, errors = await run(capsys, "--url", url, "--key", ADMIN_KEY)
        assert said in errors
        assert code == expected


async def test_something_that_is_no_gateway_is_not_believed(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever it answers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        code, _, errors = await run(capsys, "--url", url, "--key", ADMIN_KEY)

    assert (code, errors) == (1, f"gateway: what listens at {url} is no gateway (status 200)\n")


def row(**changes: Any) -> dict[str, Any]:
    """A target's row as the gateway tells it."""
    times = {"streams": {"p95_s": None}, "whole_answers": {"p95_s": None}}
    usual = {
        "state": "closed",
        "reason": "not opened yet",
        "ramping": False,
        "last_opened_s": None,
        "next_probe_s": None,
        "in_flight": 0,
        "time_to_first_byte": times,
        "failures": {"rate": 0.0, "calls": 0},
        "account": {"name": "a", "state": "closed"},
    }
    return usual | changes


def cells(**changes: Any) -> list[str]:
    """The one line of a table, but for the name."""
    line = table({"targets": {"a/m": row(**changes)}, "accounts": {}}).splitlines()[1]
    return [cell.strip() for cell in line.split("  ") if cell.strip()][1:]


@rows(
    ("changes", "expected"),
    [
        ({}, ["closed", "-", "0", "-", "-", "-"]),
        (
            {"state": "open", "reason": "gone", "last_opened_s": 1.0, "next_probe_s": 1.64, "in_flight": 3},
            ["open", "1.6 s", "3", "-", "-", "gone"],
        ),
        (
            {"state": "half_open", "reason": "gone", "last_opened_s": 9.0, "next_probe_s": 0.0},
            ["half open", "0.0 s", "0", "-", "-", "gone"],
        ),
        (
            {
                "ramping": True,
                "reason": "3 probes succeeded",
                "last_opened_s": 9.0,
                "failures": {"rate": 0.25, "calls": 8},
            },
            ["closed (ramping)", "-", "0", "-", "25% of 8", "3 probes succeeded"],
        ),
        (
            {"time_to_first_byte": {"streams": {"p95_s": 0.25}, "whole_answers": {"p95_s": 4.0}}},
            ["closed", "-", "0", "250 ms", "-", "-"],
        ),
        (
            {"time_to_first_byte": {"streams": {"p95_s": None}, "whole_answers": {"p95_s": 4.0}}},
            ["closed", "-", "0", "4.0 s", "-", "-"],
        ),
        ({"paused_s": 3.0, "quota_spent_s": 0.0}, ["closed", "-", "0", "-", "-", "paused for 3.0 s"]),
        (
            {"paused_s": 60.0, "quota_spent_s": 60.0},
            ["quota spent", "-", "0", "-", "-", "quota spent, tried again in 60.0 s"],
        ),
        (
            {"account": {"name": "a", "state": "half_open"}},
            ["account half open", "-", "0", "-", "-", "account a is half open"],
        ),
        ({"warning": "no model"}, ["closed", "-", "0", "-", "-", "no model"]),
        (
            {"warning": "no model; mend it", "reason": "no model", "last_opened_s": 1.0},
            ["closed", "-", "0", "-", "-", "no model; mend it"],
        ),
        ({"credential_refused": True}, ["closed", "-", "0", "-", "-", "credential refused"]),
        (
            {"credential_refused": True, "reason": "its credential is still refused", "last_opened_s": 1.0},
            ["closed", "-", "0", "-", "-", "its credential is still refused"],
        ),
    ],
)
def test_a_line_says_what_is_in_the_way(changes: dict[str, Any], expected: list[str]) -> None:
    """A dash for what there is nothing to say of."""
    assert cells(**changes) == expected


def test_no_name_commands_the_terminal() -> None:
    """Some are made by clients."""
    text = table({"targets": {"a/\x1b[2J": row()}, "accounts": {}}) + sentence(row(name="a/\x1b[2J"))

    assert "\x1b" not in text
