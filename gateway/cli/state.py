"""The operator's end of `gateway state backup`: where the copy of a running gateway's state file goes, and that it is whole.

It must not know the gateway's inside, only its HTTP. Invariant: a file of the given name is a whole copy or is not there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gateway.cli.admin import AdminRefused


def save(pieces: Iterable[bytes], file: Path, problem_of: Callable[[str], str | None]) -> dict[str, Any]:
    """Write the copy to `file`, which must not exist; its path and size. `problem_of` tells what is wrong with a file.

    Raises AdminRefused or OSError.
    """
    if file.exists():
        raise AdminRefused(f"{file} is there already; name another file", is_misuse=True)
    unfinished = file.with_name(f"{file.name}.unfinished")
    try:
        with open(os.open(unfinished, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as out:  # answers, in clear
            for piece in pieces:
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        problem = problem_of(str(unfinished))
        if problem is not None:
            raise AdminRefused(f"the copy is damaged ({problem}), and so may be the state file; see the gateway's log")
        os.link(unfinished, file)  # unlike a rename it takes no file's place that came meanwhile
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return {"file": str(file), "bytes": file.stat().st_size}


def saved(answer: dict[str, Any]) -> str:
    """What has been done, and how the copy is used."""
    return (
        f"{answer['file']}: {answer['bytes']:,} bytes, checked. To use it, stop the gateway, put it in the place of the state "
        "file (without the -wal file that may be beside that), and start again."
    )
