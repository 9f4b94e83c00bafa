"""The application of the demo of workflows: takes runs through their steps, each step's question quoting the answer before.

A process of its own that is killed and started again. It remembers which runs it has finished, in its journal, and nothing
else; a run whose step failed it begins again from the first, and a call it never repeats by itself. That a gateway remembers
the steps makes two headers of difference. It must not know providers, faults or kills.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson
import uvloop

from gateway.core.http.client.transport import Http1Transport
from gateway.demo.clients import API_KEY, MODEL

RUN, STEP = "order-", "step-"
"""What the ids of runs and steps begin with; the number of a run is behind it, that of a step plus one."""
WIDTH = 40
"""Runs that are under way at a time."""
_PAUSE_S = 1.0
"""Before a run is begun again."""
_TIMEOUTS = {"connect": 5.0, "read": 60.0, "write": 60.0, "pool": 60.0}
_TASK = (
    "You work on an order, one step at a time. Read what the step before has found, check it against the order and the terms "
    "of the customer, and say what the next step has to know: the items and their amounts, what is missing, what must be "
    "asked, who has to agree, and by when. Quote what you rely on. Do not repeat what the next step does not need. "
)


class JournalEntry(NamedTuple):
    """What happened in the program, in its own words."""

    at: float
    """The time, of a clock that all processes share."""
    run: int
    what: str
    """`begin`, `answered`, `replayed`, `failed` or `done`."""
    step: int
    status: int | None
    """The status of the answer that was a failure; None: there was none."""


def read_journal(path: Path) -> list[JournalEntry]:
    """Returns the entries of a journal, which need not be there."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [JournalEntry(*orjson.loads(line)) for line in lines]


class StepFailedError(Exception):
    """A step has no answer."""

    def __init__(self, status: int | None) -> None:
        """`status` is None where there was none."""
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Program:
    """The application, at work on `runs` runs of `steps` steps."""

    address: Path
    """A file with the URL of whoever answers, which may change."""
    journal: Path
    runs: int
    steps: int
    remembers: bool
    """Whoever answers remembers the steps of runs."""
    sender: Http1Transport

    async def work(self) -> None:
        """Finishes every run that is not finished."""
        done = {entry.run for entry in read_journal(self.journal) if entry.what == "done"}
        left = iter([run for run in range(self.runs) if run not in done])
        opened = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(WIDTH):
                    tasks.create_task(self._work_off(left, opened))
        finally:
            os.close(opened)

    async def _work_off(self, left: Iterator[int], journal: int) -> None:
        for run in left:
            while not await self._try(run, journal):  # noqa: ASYNC110 - a pause between tries
                await asyncio.sleep(_PAUSE_S)

    async def _try(self, run: int, journal: int) -> bool:
        """Takes a run through all its steps; returns whether it came to its end."""
        step, text = 0, "an order has come in."
        _note(journal, run, "begin")
        try:
            for step in range(self.steps):
                text, is_replayed = await self._step(run, step, text)
                _note(journal, run, "replayed" if is_replayed else "answered", step)
            if self.remembers:
                await self._post(f"/runs/{RUN}{run}/outcome", {"outcome": "succeeded", "usable": True}, {})
        except StepFailedError as failure:
            _note(journal, run, "failed", step, failure.status)
            return False
        _note(journal, run, "done")
        return True

    async def _step(self, run: int, step: int, before: str) -> tuple[str, bool]:
        """Returns what a step has answered, and whether the gateway remembered it."""
        question = f"{run}/{step}: {before[-400:]}"
        messages = [{"role": "system", "content": _TASK}, {"role": "user", "content": question}]
        headers = {"x-gateway-run": f"{RUN}{run}", "x-gateway-step": f"{STEP}{step + 1}"} if self.remembers else {}
        response = await self._post("/chat/completions", {"model": MODEL, "messages": messages}, headers)
        answer = orjson.loads(response.content)["choices"][0]["message"]["content"]
        return str(answer), response.headers.get("x-gateway-step-replayed") == "true"

    async def _post(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        """Raises StepFailedError."""
        url, key = self.address.read_text(), {"authorization": f"Bearer {API_KEY}"}
        request = httpx.Request("POST", url + path, json=body, headers=key | headers, extensions={"timeout": _TIMEOUTS})
        try:
            response = await self.sender.handle_async_request(request)
            await response.aread()
        except httpx.TransportError:
            raise StepFailedError(None) from None
        if not response.is_success:
            raise StepFailedError(response.status_code)
        return response


def _note(journal: int, run: int, what: str, step: int = 0, status: int | None = None) -> None:
    """Writes a line at once, whole: whoever is killed loses none."""
    os.write(journal, orjson.dumps([time.monotonic(), run, what, step, status]) + b"\n")


async def _main(address: str, journal: str, runs: str, steps: str, remembers: str) -> None:
    async with Http1Transport(max_connections=2 * WIDTH) as sender:
        await Program(Path(address), Path(journal), int(runs), int(steps), remembers == "yes", sender).work()


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
