"""What a program of a client needs: the gateway's place, a key, two models, and how it says what came of its trials."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable

URL = os.environ["GATEWAY_URL"]
KEY = os.environ["GATEWAY_KEY"]
MODEL = os.environ["MODEL"]
LONG_MODEL = os.environ["LONG_MODEL"]
"""It refuses every prompt as too long (`context_length_exceeded`)."""
ASK_FOR_TOOL = "Use get_weather for Paris."
ASK = "Tell me a story."
ANSWER = "emulated answer to:"
TOO_LONG = "context|prompt is too long|exceeds the maximum number of tokens|Input is too long"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "thread_id": {"type": "string"}},
    "required": ["city", "thread_id"],
    "additionalProperties": False,
}
"""The name `thread_id` is one of objects at providers, which no tool's argument is taken for."""


def is_story(text: str | None) -> None:
    """Raises ValueError unless the text is an answer."""
    if not text or ANSWER not in text:
        raise ValueError(f"no answer: {text!r}")


def is_stream(pieces: list[str]) -> None:
    """Raises ValueError unless these are several pieces of an answer."""
    is_story("".join(pieces))
    if len([piece for piece in pieces if piece]) < 3:
        raise ValueError(f"{len(pieces)} pieces")


def is_too_long(error: BaseException | str, status: int | None = 400) -> None:
    """Raises ValueError unless the error is a 400 that says, in the words of the target, that a prompt is too long."""
    if status != 400 or not re.search(TOO_LONG, str(error), re.IGNORECASE):
        raise ValueError(f"not the 400: {status} {error}")


def refused(call: Callable[[], object], kind: type[BaseException]) -> BaseException:
    """Returns what a call raises, which has to be of this kind."""
    try:
        call()
    except kind as error:
        return error
    raise ValueError("no error")


def output_of(*command: str, timeout_s: float = 60, **variables: str) -> tuple[int, str]:
    """Runs an agent's program with nothing to read; returns its exit code, and what it wrote."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **variables},
    )
    print(done.stdout)
    return done.returncode, done.stdout


def run(**trials: Callable[[], None]) -> None:
    """Runs the trials, and prints what became of each as one line of JSON: null, or what was wrong."""
    outcomes: dict[str, str | None] = {}
    for name, trial in trials.items():
        try:
            trial()
        except Exception as problem:  # noqa: BLE001 - whatever a client raises is the trial's outcome
            outcomes[name] = f"{type(problem).__name__}: {problem}"[:400]
        else:
            outcomes[name] = None
    print(json.dumps({"outcomes": outcomes}))
