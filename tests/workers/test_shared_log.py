"""The call log of several workers: no line ends up inside another's."""

from __future__ import annotations

import os
import subprocess
import sys

from gateway.workers.channel import make_lock

BATCHES, LINES, LENGTH = 10, 20, 3_000
WRITER = """
import os, sys
from gateway.workers.channel import LockedLog

output, lock, letter, batches, lines, length = sys.argv[1:]
log = LockedLog(os.fdopen(int(output), "w"), int(lock))
for _ in range(int(batches)):
    log.write((letter * int(length) + "\\n") * int(lines))
"""


def test_batches_of_several_processes_stay_whole() -> None:
    """Through a pipe that is full most of the time; each is longer than what a pipe takes in one piece."""
    reader, writer = os.pipe()
    lock = make_lock()
    about = [str(number) for number in (BATCHES, LINES, LENGTH)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(writer), str(lock), letter, *about], pass_fds=(writer, lock)
        )
        for letter in "abc"
    ]
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().splitlines()
    codes = [one.wait() for one in writers]
    os.close(lock)

    assert codes == [0, 0, 0]
    assert len(lines) == 3 * BATCHES * LINES
    assert {len(line) for line in lines} == {LENGTH}
    assert {len(set(line)) for line in lines} == {1}
