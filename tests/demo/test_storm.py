"""The scenario, on a real emulator and a real gateway, and its end by Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.demo import show as show_module
from gateway.demo.clients import Ask, CallFailedError, Connect, OnAnswer, plain_client, sdk_client
from gateway.demo.record import Run
from gateway.demo.show import Display, show
from gateway.demo.storm import DIRECT, THROUGH, Storm, fire, measure, run_storm
from gateway.emulator.config import EmulatorConfig
from tests.demo.support import Terminal

AT_ONCE = EmulatorConfig()
WIDE = Storm(calls=12, rpm=5000, burst=5000, pace=AT_ONCE)


class Clock:
    """Time that moves by hand."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now(self) -> float:
        return self.at_s


@pytest.mark.parametrize("connect", [sdk_client, plain_client])
async def test_both_ways_are_measured_alike(connect: Connect) -> None:
    """Under a wide limit both answer everything; only the gateway adds time of its own."""
    begun: list[Run] = []

    runs = await run_storm(WIDE, connect, begun.append)

    assert runs == begun
    assert [run.name for run in runs] == [DIRECT, THROUGH]
    for run in runs:
        assert (run.answered, run.failed, run.seen_429s, run.upstream_calls, run.wasted_calls) == (12, 0, 0, 12, 0)
        assert sum(tick.answered for tick in run.ticks) == 12
        assert run.tokens > 0
    assert [len(run.overheads_ms) for run in runs] == [0, 12]


async def test_what_a_tight_limit_refuses_is_counted_at_both_ends() -> None:
    """Two calls fit, three are refused three times each."""

    async def sleep(_seconds: float) -> None:
        """The next minute is far away."""

    run = Run(DIRECT, 5, 2 / 60)
    await measure(run, Storm(5, 2, burst=2, pace=AT_ONCE), partial(plain_client, sleep=sleep), Clock().now)

    assert (run.answered, run.failed, run.seen_429s) == (2, 3, 9)
    assert (run.upstream_calls, run.upstream_429s, run.wasted_calls) == (11, 9, 9)


async def test_all_calls_are_made_at_once() -> None:
    """None waits for another; each is another question."""
    asked: set[int] = set()
    all_there = asyncio.Event()

    async def ask(number: int) -> int:
        asked.add(number)
        if len(asked) == 20:
            all_there.set()
        await all_there.wait()
        if number % 2:
            raise CallFailedError
        return 7

    run = Run("a run", 20, 1.0)
    run.begin(0.0, 0.0)
    await fire(run, ask, Clock().now)

    assert (len(asked), run.answered, run.failed, run.tokens) == (20, 10, 10, 70)


def use(monkeypatch: pytest.MonkeyPatch, connect: Connect) -> None:
    """Let the demo call with this client."""
    monkeypatch.setattr(show_module, "choose_client", lambda: ("a scripted client", connect))


def test_it_ends_with_a_table_and_a_chart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is printed first says what is compared."""
    use(monkeypatch, plain_client)
    terminal = Terminal()

    table = show(WIDE, Display(terminal, {}), tmp_path / "demo.svg")

    assert terminal.getvalue().startswith("12 calls in one moment. The provider's limit: 5,000 requests/min")
    assert "a scripted client" in terminal.getvalue()
    assert "12 of 12" in table
    assert "12 of 12 calls answered" in (tmp_path / "demo.svg").read_text()


def test_json_has_the_figures_of_both_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For machines."""
    use(monkeypatch, plain_client)

    figures = json.loads(show(WIDE, Display(Terminal(), {}), tmp_path / "demo.svg", as_json=True))

    assert [(run["name"], run["answered"]) for run in figures["runs"]] == [(DIRECT, 12), (THROUGH, 12)]


async def _never(_number: int) -> int:
    raise AssertionError("nothing is asked")


def interrupted(ended: list[str]) -> Connect:
    """A client in whose hands Ctrl-C is pressed, and again while it tidies up."""

    @asynccontextmanager
    async def connect(_base_url: str, _heard: OnAnswer) -> AsyncIterator[Ask]:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.Event().wait()
            yield _never
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            ended.append("tidy")

    return connect


def test_ctrl_c_leaves_a_clean_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The line is left, everything is stopped in order, even when it is pressed twice, and no chart is written."""
    ended: list[str] = []
    use(monkeypatch, interrupted(ended))
    terminal = Terminal()

    with pytest.raises(KeyboardInterrupt):
        show(WIDE, Display(terminal, {}), tmp_path / "demo.svg")

    assert ended == ["tidy"]
    assert terminal.getvalue().endswith("\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a traceback, and with nothing on standard output that a machine would read."""
    use(monkeypatch, interrupted([]))

    code = main(["demo", "--json", "--chart", str(tmp_path / "demo.svg")])

    output, errors = capsys.readouterr()
    assert (code, output) == (130, "")
    assert "Traceback" not in errors


def test_a_chart_that_cannot_be_saved_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, exit code 1."""
    missing = tmp_path / "nowhere"

    code = main(["demo", "--chart", str(missing / "demo.svg")])

    assert (code, *capsys.readouterr()) == (1, "", f"gateway: {missing}: No such file or directory\n")


@pytest.mark.parametrize("wrong", [("--calls", "0"), ("--rpm", "x"), ("--calls", "5001")])
def test_senseless_numbers_are_wrong_usage(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(["demo", *wrong])

    assert end.value.code == 2
    assert wrong[0] in capsys.readouterr().err
