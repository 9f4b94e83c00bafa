"""Progress on terminals and everywhere else."""

from __future__ import annotations

import io

from gateway.demo.record import Run
from gateway.demo.show import Display, run_line
from tests.demo.support import Terminal, run_of
from tests.rows import rows


def draw(stream: io.StringIO, **environ: str) -> str:
    """What a run leaves behind that is watched before, while and after it goes on."""
    display = Display(stream, environ, now=lambda: 1000.5)
    run = run_of([(2, 1)], calls=6)
    display.watch(Run("another", 1, 1.0))
    display.watch(run)
    display.close()
    return stream.getvalue()


def test_without_a_terminal_progress_is_plain_lines() -> None:
    """No control characters."""
    shown = draw(io.StringIO())

    assert all(line.isprintable() for line in shown.splitlines())
    assert "a run                    " in shown
    assert shown.endswith("    2 answered     1 failed     1 429s    0.5 s\n")


def test_a_terminal_has_one_line_that_renews_itself() -> None:
    """In colours; whatever happened, the cursor ends on a new line without colour."""
    shown = draw(Terminal())

    assert shown.count("\n") == 2
    assert shown.count("\r\x1b[2K") == 4
    assert "\x1b[32m" in shown
    assert shown.rindex("\x1b[0m") > shown.rindex("\x1b[2m")
    assert shown.endswith("\n")


def test_no_color_is_honoured() -> None:
    """The line renews itself all the same."""
    shown = draw(Terminal(), NO_COLOR="1")

    assert "\r\x1b[2K" in shown
    assert "\x1b[3" not in shown


def test_a_dumb_terminal_is_none() -> None:
    """It gets plain lines."""
    assert "\x1b" not in draw(Terminal(), TERM="dumb")


def test_closing_twice_writes_once() -> None:
    """As the end of a run and Ctrl-C may both do."""
    stream = Terminal()
    display = Display(stream, {})
    display.watch(run_of([(1, 0)]))
    display.close()
    shown = stream.getvalue()
    display.close()

    assert stream.getvalue() == shown


@rows("columns", [10, 40, 70, 80, 200])
@rows("seconds", [[], [(2, 1)], [(6, 0)]])
def test_a_line_never_reaches_the_edge(columns: int, seconds: list[tuple[int, int]]) -> None:
    """Or it would wrap, and could not be renewed."""
    assert len(run_line(run_of(seconds, calls=6), 1001.0, columns, "#x.", has_colour=False)) < columns


def test_the_bar_shows_answered_failed_and_open_calls() -> None:
    """One failed call among many is to be seen."""
    assert " ##############x............... " in run_line(run_of([(49, 1)]), 1001.0, 120, "#x.", has_colour=False)
