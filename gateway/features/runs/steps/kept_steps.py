"""Steps in the store of jobs, as a call sees them: nothing is paid for that could not be kept.

It must not know how twins share a step. Invariant: an answer that was paid for is held here until it is kept, as long as the
process lives and there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.openai import sse
from gateway.dialects.conversion import last_response
from gateway.features.output.rules import OutputResult
from gateway.features.reuse.layers import entries
from gateway.features.runs.rules import RunChange, RunRecord, RunsUnavailable, StepRequest
from gateway.features.runs.step import (
    Close,
    RunQuery,
    RunToChange,
    StepAbout,
    StepTooLarge,
    StoredStep,
    WriteBehindSum,
    nobody_waits,
)
from gateway.products.jobs.model import JobsOff, JobsUnavailable
from gateway.products.jobs.store import JobStore

# The runs in the store of jobs, as the runs of the process see them, and the steps of a run, to be shown.


AT_ONCE = 500
GONE = "Runs with steps cannot be read or changed now; the log of the gateway says why."


class DurableRuns:
    """Implements `gateway.core.ports.KeptRuns`."""

    def __init__(self, store: Callable[[], Awaitable[JobStore]], reader: Callable[[], Awaitable[JobStore]]) -> None:
        """`store` opens the store of jobs, `reader` what there is to look into; both raise JobsUnavailable."""
        self._store = store
        self._reader = reader

    async def merge(
        self,
        tenant: str,
        run: str,
        change: RunChange | None,
        close: Close,
        written: Callable[[], None] = nobody_waits,
    ) -> tuple[RunRecord, RunRecord] | None:
        """Adds a change, and closes the run if it has ended, in one step. Raises RunsUnavailable."""
        try:
            (result,) = await (await self._store()).runs.change([RunToChange(tenant, run, change, close, written)])
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble
        return result

    async def get(self, tenant: str, run: str) -> RunRecord | None:
        """Returns the run; None: there is none. Raises RunsUnavailable."""
        try:
            found = await (await self._reader()).runs.find(tenant, run)
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble
        return None if found is None else found[0].record

    async def forget(self, tenant: str, run: str) -> bool:
        """Forgets the run with its steps; returns whether there was one. Raises RunsUnavailable."""
        try:
            return await (await self._reader()).runs.forget(tenant, run)
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble

    async def last(self, tenant: str | None, most: int) -> Sequence[RunRecord]:
        """Returns the newest runs of a tenant, or of all. Raises RunsUnavailable."""
        found: list[RunRecord] = []
        after: tuple[str, str] | None = None
        try:
            runs = (await self._reader()).runs
            while len(found) < most:
                page = await runs.list_runs(RunQuery(tenant, min(AT_ONCE, most - len(found)), after))
                found += [run.record for run in page.runs]
                if not page.has_more:
                    break
                after = found[-1].tenant, found[-1].run
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble
        return found

    async def steps(self, tenant: str, run: str) -> Sequence[StepAbout]:
        """Returns the steps of a run, in the order in which they were kept. Raises RunsUnavailable."""
        try:
            found = await (await self._reader()).runs.find(tenant, run)
        except JobsUnavailable as trouble:
            raise RunsUnavailable(GONE) from trouble
        return () if found is None else found[1]


MOST_BYTES = 64 * 1024 * 1024
"""Of an answer that can be a step's."""
HELD_BYTES = 128 * 1024 * 1024
"""Of all answers that are held because the store does not take them."""
PATIENCE_S = 10.0
"""The seconds for which keeping an answer is tried while its client waits."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
TOO_LARGE = "step_too_large"
log = logging.getLogger("gateway.runs")


@dataclass(slots=True)
class HeldStep:
    """A step that was paid for, and is not kept as yet."""

    step: StoredStep
    replaces: bool
    then: list[Callable[[], None]] = field(default_factory=list)
    """To be called once it is kept."""


class KeptSteps:
    """Finds and keeps steps. One per process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.open: Callable[[], Awaitable[JobStore]] | None = None
        """Opens the store of jobs, or raises JobsUnavailable; None: there is none."""
        self.write_behind: WriteBehindSum | None = None
        """None: nobody keeps the sums of runs."""
        self._held: dict[bytes, HeldStep] = {}
        """By record."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def find(self, call: Call, ask: StepRequest, record: bytes) -> StoredStep | None:
        """Returns a step that is kept; None: it has to be paid for, and could be kept now.

        Raises JobsUnavailable, before anything is paid, and JobsOff.
        """
        store = await self._store()
        try:
            held = self._held.get(record)
            if held is not None:  # the last answer of the step, whatever is kept of it
                await self._keep_held(held, record)
            found = await store.runs.find_step(call.tenant, ask.run, ask.step)
        except JobsUnavailable as trouble:
            raise _refusal(is_held=record in self._held) from trouble
        if found is None and not store.is_well:
            raise _refusal(is_held=False)
        if found is not None and found.about.outcome == TOO_LARGE:
            raise too_large(ask)
        return found

    async def keep(self, step: StoredStep, record: bytes, *, replaces: bool) -> StoredStep:
        """Returns the step that is kept once it is; raises JobsUnavailable if that takes too long, and goes on trying.

        Raises StepTooLarge for one that never can be, which is then known of the step.
        """
        about, body = step
        if len(body) > MOST_BYTES:
            step = _as_too_large(step)
        until = self._clock.monotonic() + PATIENCE_S
        try:
            try:
                kept = await self._try(step, replaces=replaces, until=until)
            except StepTooLarge:
                step = _as_too_large(step)
                kept = await self._try(step, replaces=replaces, until=until)
        except JobsUnavailable as trouble:
            is_held = self._hold(step, record, replaces=replaces)
            raise _refusal(is_held=is_held, is_paid=True) from trouble
        if kept.about.outcome == TOO_LARGE:
            raise too_large(StepRequest(about.run, about.step, reruns=False))
        return kept

    def once_kept(self, record: bytes, then: Callable[[], None]) -> None:
        """Calls `then` when no answer of the step is held, which may be now."""
        held = self._held.get(record)
        if held is None:
            then()
        else:
            held.then.append(then)

    async def aclose(self) -> None:
        """Gives up what could not be kept."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._held:
            log.error("%d answers of steps could not be kept: their steps will be paid for again", len(self._held))

    async def _store(self) -> JobStore:
        if self.open is None:
            raise JobsOff("This gateway remembers no steps; its operator names a file with `jobs.store`.")
        try:
            return await self.open()
        except JobsUnavailable as trouble:
            raise _refusal(is_held=False) from trouble

    async def _try(self, step: StoredStep, *, replaces: bool, until: float) -> StoredStep:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await (await self._store()).runs.keep_step(step, replaces=replaces)
            except JobsUnavailable:
                if self._clock.monotonic() + pause_s >= until:
                    raise
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _hold(self, step: StoredStep, record: bytes, *, replaces: bool) -> bool:
        """Holds an answer until it can be kept; returns whether there was room for it."""
        if len(step.body) + sum(len(one.step.body) for one in self._held.values()) > HELD_BYTES:
            log.error(
                "an answer of a step could not be kept, and there is no room to hold it: it will be paid for again"
            )
            return False
        before = self._held.get(record)
        held = self._held[record] = HeldStep(step, replaces, [] if before is None else before.then)
        task = asyncio.get_running_loop().create_task(self._keep_later(held, record))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _keep_later(self, held: HeldStep, record: bytes) -> None:
        while self._held.get(record) is held:
            await self._clock.sleep(LONGEST_PAUSE_S)
            with suppress(JobsUnavailable):
                await self._keep_held(held, record)

    async def _keep_held(self, held: HeldStep, record: bytes) -> None:
        """Keeps an answer that is held; it is not held then, and what waits for that is done. Raises JobsUnavailable."""
        try:
            await (await self._store()).runs.keep_step(held.step, replaces=held.replaces)
        except StepTooLarge:
            await (await self._store()).runs.keep_step(_as_too_large(held.step), replaces=held.replaces)
        if self._held.get(record) is held:
            del self._held[record]
            for then in held.then:
                then()


def is_kept(call: Call, reply: Reply, body: bytes) -> bool:
    """Tells whether an answer is a step's: a complete one, or an error that the same request would always get.

    One that is not what its model's policy wants (`output`) is given, but is none to build on: the next call asks again.
    """
    check = call.output_check
    if not entries.is_terminal(call, reply.status) or (check is not None and check.result is OutputResult.INVALID):
        return False
    if call.endpoint.name != "responses" or reply.status >= 300:
        return True
    if reply.chunks is not None:
        return last_response(body) is not None
    return (sse.answer_object(body) or {}).get("status") != "failed"


def stored_step(call: Call, ask: StepRequest, fingerprint: bytes, reply: Reply, body: bytes, wall: float) -> StoredStep:
    """Returns an answer as it is kept; it came at `wall`."""
    last = call.attempts[-1] if call.attempts else None
    replay = call.replay
    is_cached = replay is not None and bool(replay.layer)
    about = StepAbout(
        tenant=call.tenant,
        run=ask.run,
        step=ask.step,
        fingerprint=fingerprint,
        status=reply.status,
        headers=[header for header in reply.shared if header[0] in entries.OF_THE_ANSWER],
        is_stream=entries.is_stream(reply.shared),
        endpoint=call.endpoint.name,
        usage=call.usage or (replay.saved if replay is not None else None),
        cost_usd=0.0 if is_cached else last.cost_usd if last is not None else None,
        model=call.model_name,
        target=last.target if last is not None else replay.target if replay is not None else "",
        source=call.id,
        outcome=str(call.outcome),
        created_at=wall,
        keep_until=wall + call.policy.jobs.default.keep_runs_s,
        bytes=len(body),
    )
    return StoredStep(about, body)


def too_large(ask: StepRequest) -> StepTooLarge:
    """Returns the error for a step whose answer cannot be kept, and so not be given."""
    return StepTooLarge(
        f"The answer of step '{ask.step}' of run '{ask.run}' is larger than what can be kept ({MOST_BYTES} bytes), so it is "
        "not given; ask for less under another step, or without 'x-gateway-step'."
    )


def _as_too_large(step: StoredStep) -> StoredStep:
    about = step.about
    small = StepAbout(
        *(about.tenant, about.run, about.step, about.fingerprint, StepTooLarge.status, [], False, about.endpoint),
        *(about.usage, about.cost_usd, about.model, about.target, about.source, TOO_LARGE),
        *(about.created_at, about.keep_until, 0),
    )
    return StoredStep(small, b"")


def _refusal(*, is_held: bool, is_paid: bool = False) -> JobsUnavailable:
    if is_held:
        return JobsUnavailable(
            "The step was run, and its answer cannot be kept now, so it is not given; it is held here, and is given as soon as "
            "it is kept: send the same request again. The log of the gateway says why."
        )
    if is_paid:
        return JobsUnavailable(
            "The step was run, and its answer could not be kept, so it is not given; sent again, it is paid for again. "
            "The log of the gateway says why."
        )
    return JobsUnavailable(
        "Steps cannot be kept now, so nothing was asked of a provider: send the request again later, or without "
        "'x-gateway-step', when it may be paid for twice. The log of the gateway says why."
    )
