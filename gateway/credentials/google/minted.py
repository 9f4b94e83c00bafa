"""What sources of credentials give, and what they say when they have none. No repr shows a secret."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Stamp: TypeAlias = tuple[int, int, int] | None
"""Tells one state of a file from another; None: there is no such file."""
MOST_FILE_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token that is sent as it is."""

    token: str = field(repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns what no answer may repeat."""
        return (self.token,)

    @property
    def damaged(self) -> str | None:
        """Returns what of it no header can hold, in words; None: it is sound."""
        return None if is_word(self.token) else "the token"


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """What requests to AWS are signed with."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Returns what no answer may repeat; the name of the key is none, errors tell it."""
        return (self.secret_key, self.session_token or "")

    @property
    def damaged(self) -> str | None:
        """Returns what of it no header can hold, or nobody signs with, in words; None: it is sound."""
        parts = {"access key": self.access_key, "secret key": self.secret_key, "session token": self.session_token}
        return next((f"the {name}" for name, part in parts.items() if part is not None and not is_word(part)), None)


Credential: TypeAlias = BearerToken | AwsKeys


@dataclass(frozen=True, slots=True)
class Minted:
    """A credential that has just been fetched."""

    credential: Credential
    lasts_s: float | None
    """From now on, in seconds; None: as long as nobody changes it."""
    files: Mapping[str, Stamp] = field(default_factory=dict)
    """What it was read from: a change there means another credential."""


class CredentialMissing(Exception):
    """There is no credential to be had now. Nothing in it is secret."""

    def __init__(self, what: str, where: str, files: Mapping[str, Stamp] | None = None) -> None:
        """`what` is missing is for callers, `where` it was looked for, and what helps, for the operator.

        A change of one of `files` is a reason to look again at once.
        """
        super().__init__(f"{what}: {where}")
        self.what = what
        self.files = files or {}


def is_word(text: str) -> bool:
    """Tells whether a text has neither spaces nor line breaks, and no letter that a header cannot hold."""
    return text.isascii() and text.isprintable() and " " not in text


def stamp_of(path: str) -> Stamp:
    """Returns the present state of a file."""
    try:
        seen = os.stat(path)
    except (OSError, ValueError):
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def read_text(path: str) -> tuple[str, Stamp]:
    """Returns a file's text and the state that it was read in, or an older one. Raises OSError or ValueError.

    Waits for no pipe: whoever opens one is held until somebody writes to it.
    """
    stamp = stamp_of(path)
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no file")
        return file.read(MOST_FILE_BYTES).decode("utf-8-sig"), stamp


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def why_unread(error: Exception) -> str:
    """Returns in few words why a file cannot be read."""
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return "it is not text" if isinstance(error, UnicodeError) else str(error)
