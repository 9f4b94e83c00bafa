"""What a disk holds when the power is cut: the files of a process, rebuilt from its system calls as strace(1) wrote them down.

A file's bytes are safe once fsync or fdatasync has returned. Of what was written since, a disk may hold all, some or
nothing, in any order, and half of one write (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

TRACED = "pwrite64,write,fsync,fdatasync,ftruncate,unlink"
STRACE = ("strace", "-f", "-y", "-xx", "-s", "4194304", "-e", f"trace={TRACED}")

_BEGUN = re.compile(r"^(\d+) +(\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_OF_FILE = re.compile(r"^(\d+)<([^>]*)>(.*)$")
_QUOTED = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')

# A write or a cut of a file: where, and the bytes; None stands for "cut off here".
_Change = tuple[int, bytes | None]


@dataclass
class Disk:
    """Files by their paths: what is safe, and what was done to each since."""

    safe: dict[str, bytearray] = field(default_factory=dict)
    waiting: dict[str, list[_Change]] = field(default_factory=dict)

    def write(self, path: str, change: _Change) -> None:
        self.waiting.setdefault(path, []).append(change)

    def sync(self, path: str) -> None:
        apply(self.safe.setdefault(path, bytearray()), self.waiting.pop(path, []))

    def remove(self, path: str) -> None:
        self.safe.pop(path, None)
        self.waiting.pop(path, None)

    def after_a_cut(self, draw: random.Random) -> dict[str, bytes]:
        """Returns the files as a cut could leave them now; a file that was never synced may be missing."""
        kept = draw.choice((0.0, 0.0, 0.5, 1.0))
        found: dict[str, bytes] = {}
        for path in sorted(self.safe.keys() | self.waiting.keys()):
            changes = [torn(one, draw) for one in self.waiting.get(path, []) if draw.random() < kept]
            if path in self.safe or changes:
                content = bytearray(self.safe.get(path, b""))
                apply(content, changes)
                found[path] = bytes(content)
        return found


def torn(change: _Change, draw: random.Random) -> _Change:
    """Returns the write, one time in ten only its first half or so, in sectors of 512 bytes."""
    at, data = change
    if data is None or draw.random() > 0.1:
        return change
    return at, data[: draw.randrange(0, len(data) + 1) // 512 * 512]


def apply(content: bytearray, changes: Iterable[_Change]) -> None:
    for at, data in changes:
        if data is None:
            del content[at:]
        content.extend(bytes(max(0, at + len(data or b"") - len(content))))
        content[at : at + len(data or b"")] = data or b""


def moments(trace: Path, files: str, pipe_of: str) -> Iterator[tuple[Disk, list[str]]]:
    """Yields the disk and the lines told so far: just before each sync returns, and just after each told line.

    `files` is how the paths of the files begin; `pipe_of` is the descriptor that lines are told on.
    """
    disk, told, begun = Disk(), list[str](), dict[str, tuple[str, str]]()
    with trace.open() as lines:
        for text in lines:
            if resumed := _RESUMED.match(text):
                name, arguments = begun.pop(resumed[1])
                returned = resumed[3]
            elif call := _BEGUN.match(text):
                name, arguments = call[2], call[3]
                returned = arguments
                if text.rstrip().endswith("<unfinished ...>"):
                    begun[call[1]] = (name, arguments)
                    if name.endswith("sync"):  # counts when it has returned; all else counts when it began
                        continue
            else:
                continue
            is_second_half = resumed is not None and not name.endswith("sync")
            if is_second_half or returned.rstrip().rpartition("= ")[2].startswith("-1"):
                continue
            if name == "unlink":
                disk.remove(_text(arguments))
                continue
            found = _OF_FILE.match(arguments)
            if found is None:
                continue
            descriptor, path, rest = found[1], _unescaped(found[2]).decode(), found[3]
            if name == "write" and descriptor == pipe_of:
                told += _text(rest).splitlines()
                yield disk, told
            elif not path.startswith(files) or path.endswith("-shm"):
                continue
            elif name.endswith("sync"):
                yield disk, told
                disk.sync(path)
            elif name == "ftruncate":
                disk.write(path, (int(rest.split(",")[1].split(")")[0]), None))
            elif name == "pwrite64":
                quoted = _QUOTED.search(rest)
                assert quoted is not None, rest[:200]
                at = int(rest[quoted.end() :].split(",")[2].split(")")[0].split("<")[0])
                disk.write(path, (at, _unescaped(quoted[1])))


def _text(arguments: str) -> str:
    quoted = _QUOTED.search(arguments)
    return _unescaped(quoted[1]).decode() if quoted else ""


def _unescaped(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
