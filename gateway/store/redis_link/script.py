"""The scripts that run inside the server: each atomic, each known by the digest of its text.

Invariant: a script's text is all that it does; what differs between two runs are its keys and arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "redis" / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """One script of the folder, with the prelude in front."""

    name: str
    text: bytes
    sha: bytes
    """Under which the server knows it once it has seen the text."""


def load_script(name: str) -> Script:
    """The script in `lua/<name>.lua`."""
    return script_of(name, (FOLDER / f"{name}.lua").read_text())


def script_of(name: str, body: str) -> Script:
    """One that has no file of its own."""
    text = ((FOLDER / "prelude.lua").read_text() + body).encode()
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())
