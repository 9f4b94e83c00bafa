"""A credential that a program of the user's gives: `credential_process` of a profile.

The program is run without a shell, with the environment of the gateway, and writes one JSON object. What it writes is never
told, nor are its arguments, which may be secret.

Source: https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from gateway.credentials.google.minted import CredentialMissing, Stamp, why_unread
from gateway.credentials.sources.asking import object_of

COMMAND: Final = "credential_process"
ANSWER_S = 20.0
"""A program takes no longer."""
MOST_SAID_BYTES: Final = 65_536
_VERSION: Final = 1


async def said_by(command: str, where: str, environ: Mapping[str, str], files: Mapping[str, Stamp]) -> dict[str, Any]:
    """Returns what the program says, which has the version of the contract. Raises CredentialMissing."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words:
        raise CredentialMissing("its program cannot be run", f"{where}: credential_process is no command", files)
    try:
        child = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,  # what it starts ends with it
        )
    except (OSError, ValueError) as error:
        told = f"{where}: credential_process: {words[0]}: {why_unread(error)}"
        raise CredentialMissing("its program cannot be run", told, files) from None
    try:
        async with asyncio.timeout(ANSWER_S):
            text = await _read(child)
            status = await child.wait()
    except TimeoutError:
        told = f"{where}: credential_process: {words[0]}: no end in {ANSWER_S:g} s"
        raise CredentialMissing("its program gives no credential", told, files) from None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.shield(child.wait())
    said = object_of(text)
    if status != 0 or said.get("Version") != _VERSION:
        what = f"it ends with status {status}" if status else "it says no JSON object of version 1"
        told = f"{where}: credential_process: {words[0]}: {what}"
        raise CredentialMissing("its program gives no credential", told, files)
    return said


async def _read(child: asyncio.subprocess.Process) -> bytes:
    """Returns what a program writes, or the beginning of too much."""
    made = bytearray()
    while child.stdout is not None and len(made) <= MOST_SAID_BYTES and (more := await child.stdout.read(4096)):
        made += more
    return bytes(made)
