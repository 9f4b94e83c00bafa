"""Steady traffic: a call every so often, whatever becomes of those before it.

It must not know who answers. Invariant: a call is made when it is due, however many are open, and recorded once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.demo.clients import AnswerBrokenError, Ask, CallFailedError
from gateway.demo.trial import Trial

Now = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


async def keep_calling(trial: Trial, ask: Ask, rate_per_s: float, now: Now, sleep: Sleep) -> None:
    """Make all calls of a trial that has begun, and wait for the last to end."""
    began_at = now()
    async with asyncio.TaskGroup() as tasks:
        for number in range(trial.calls):
            due = began_at + number / rate_per_s
            if due > now():
                await sleep(due - now())
            tasks.create_task(_call(trial, partial(ask, number), now(), now))


async def _call(trial: Trial, ask: Callable[[], Awaitable[int]], made_at: float, now: Now) -> None:
    try:
        await ask()
    except CallFailedError as error:
        trial.end(made_at, now(), is_answered=False, is_broken=isinstance(error, AnswerBrokenError))
    else:
        trial.end(made_at, now(), is_answered=True)
