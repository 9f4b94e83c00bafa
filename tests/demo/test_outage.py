"""The scenario: its acts in their order, and a short one on real emulators and a real gateway."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.demo import show as show
from gateway.demo.clients import Ask, plain_client
from gateway.demo.record import Trial
from gateway.demo.show import Display, show_outage
from gateway.demo.storm import (
    ACTS,
    ATTEMPTS,
    DIRECT,
    QUIET,
    THROUGH,
    Act,
    Outage,
    World,
    count_tries,
    gateway_between,
    play,
    run_outage,
)
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.demo.support import Terminal
from tests.demo.test_traffic import Clock
from tests.rows import rows

DEAD = Act("dead", 0.25, 0.75, ("refuse",))
SHORT = Outage(seconds=0.4, rate_per_s=50.0, acts=(Act("dead", 0.0, 1.0, ("refuse",)),), pace=EmulatorConfig())


async def at_once(_seconds: float) -> None:
    """A client that does not wait between its tries."""
    await asyncio.sleep(0)


hasty_client = partial(plain_client, sleep=at_once)


@rows(
    ("trail", "told"),
    [
        ("", (0, 0)),
        ("primary/gpt-4o:200", (1, 0)),
        ("primary/gpt-4o:connection(0.0s) fallback/gpt-4o:200", (2, 1)),
        ("primary/gpt-4o:skipped(open) fallback/gpt-4o:200", (1, 0)),
        ("primary/gpt-4o:connection(0.3s) fallback/gpt-4o:200", (2, 0)),
        ("primary/gpt-4o:connection(0.0s) primary/gpt-4o:connection(0.0s) fallback/gpt-4o:503(0.1s)", (3, 2)),
    ],
)
def test_the_gateways_answer_tells_its_tries(trail: str, told: tuple[int, int]) -> None:
    """One that failed after a while was under way when the provider died: it did not go to a dead one."""
    assert count_tries({ATTEMPTS: trail} if trail else {}) == told


def test_acts_follow_each_other_and_leave_an_end_in_peace() -> None:
    """In order, with quiet between them, so that the way back is to be seen."""
    assert all(before.end < after.start for before, after in pairwise(ACTS))
    assert Outage().act_at(0.0) == QUIET
    assert Outage().act_at(39.9) == QUIET
    assert Outage().act_at(4.0).label == "dead"


class Watched(EmulatorServer):
    """Notes what it is told instead of doing it."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[tuple[str, ...], int]] = []

    async def configure(self, **changes: object) -> None:
        await super().configure(**changes)
        kinds = tuple(rule.fault.kind for rule in self.emulator.config.faults)
        self.told.append((kinds, self.emulator.config.rpm or 0))


async def test_every_act_happens_at_its_time_to_whom_it_concerns() -> None:
    """The fallback is spared unless it is said; a limit is a share of the traffic."""
    acts = (DEAD, Act("tight", 0.75, 0.8, takes=0.25), Act("all", 0.9, 1.0, ("e500",), is_everywhere=True))
    clock, outage = Clock(), Outage(seconds=100.0, rate_per_s=20.0, acts=acts)

    async def ask(_number: int) -> int:
        return 0

    world = World(Trial("a run", 1, 1.0), ask, Watched(), Watched())

    await play(outage, [world], clock.now, clock.sleep)

    quiet = ((), 12_000)
    assert clock.at_s == pytest.approx(150.0)
    assert isinstance(world.primary, Watched)
    assert world.primary.told == [quiet, (("refuse",), 12_000), ((), 300), quiet, (("e500",), 12_000)]
    assert isinstance(world.fallback, Watched)
    assert world.fallback.told == [quiet] * 4 + [(("e500",), 12_000)]


async def test_both_worlds_meet_the_same_and_only_one_has_a_way_out() -> None:
    """Every call is recorded in both; whoever has one provider fails while it is dead."""
    begun: list[list[Trial]] = []

    trials = await run_outage(SHORT, hasty_client, begun.append)

    direct, through = trials
    assert begun == [trials]
    assert [trial.name for trial in trials] == [DIRECT, THROUGH]
    assert [len(trial.ended) for trial in trials] == [20, 20]
    assert direct.failed > 0
    assert direct.tries_at_dead >= 3 * (direct.failed - direct.broken)
    assert direct.tries >= direct.answered
    assert through.answered > direct.answered
    assert through.tries >= through.answered


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo call with a client that does not wait."""
    monkeypatch.setattr(show, "choose_client", lambda: ("a scripted client", hasty_client))


def test_it_ends_with_a_table_and_a_chart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is printed first says what is compared."""
    use(monkeypatch)
    terminal = Terminal()

    table = show_outage(SHORT, Display(terminal, {}), tmp_path / "outage.svg")

    assert terminal.getvalue().startswith("50 calls a second for 0.4 s")
    assert "a scripted client" in terminal.getvalue()
    assert "of 20 (" in table
    assert "of 20 calls answered" in (tmp_path / "outage.svg").read_text()


def test_json_has_the_figures_of_both_worlds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For machines."""
    use(monkeypatch)

    figures = json.loads(show_outage(SHORT, Display(Terminal(), {}), tmp_path / "outage.svg", as_json=True))

    assert [(run["name"], run["calls"]) for run in figures["runs"]] == [(DIRECT, 20), (THROUGH, 20)]


def test_a_client_that_cannot_start_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error comes out, the terminal is as it was, no picture is written."""

    def broken(*_arguments: object, **_habits: object) -> AbstractAsyncContextManager[Ask]:
        raise OSError("no client today")

    monkeypatch.setattr(show, "choose_client", lambda: ("none", broken))
    terminal = Terminal()

    with pytest.raises(OSError, match="no client today"):
        show_outage(SHORT, Display(terminal, {}), tmp_path / "outage.svg")

    assert terminal.getvalue().endswith("\n")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_reaches_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gateway demo --outage`, with its figures on standard output and its progress elsewhere."""
    use(monkeypatch)
    chart = tmp_path / "outage.svg"

    code = main(["demo", "--outage", "--seconds", "1", "--rate", "5", "--json", "--chart", str(chart)])

    assert code == 0
    assert [run["calls"] for run in json.loads(capsys.readouterr().out)["runs"]] == [5, 5]
    assert chart.exists()


@pytest.mark.parametrize("wrong", [("--seconds", "0"), ("--rate", "x")])
def test_senseless_numbers_are_wrong_usage(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    with pytest.raises(SystemExit) as end:
        main(["demo", "--outage", *wrong])

    assert end.value.code == 2
    assert wrong[0] in capsys.readouterr().err


async def test_the_gateways_own_log_does_not_break_into_the_display() -> None:
    """While it runs in the demo its warnings have somewhere to go; afterwards all is as before."""
    log = logging.getLogger("gateway")
    before = list(log.handlers)

    async with gateway_between("http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"):
        assert any(isinstance(handler, logging.NullHandler) for handler in log.handlers)
    assert log.handlers == before
