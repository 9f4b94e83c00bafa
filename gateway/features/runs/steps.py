"""Steps: a call that names its run and its step is paid for once, and given its answer as often as it comes.

    serve ── the step is being run here ───────────────── share its answer
          ── it is kept ───────────────────────────────── give that, at no cost
          ── another process runs it ──────────────────── wait until it is kept there
          ── else lead: claim, run the call, keep the answer, give it

The claim is that of an idempotency record under an id of tenant, run and step; the answer is in the store of jobs. First the
calls, then the store as they see it. Invariants: an answer is given whole only after it is kept; who leaves stops no call that
is being paid for; a step has one answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from gateway.core.call import (
    INVALID_ANSWER,
    Call,
    CallFeature,
    CallRoute,
    Reply,
    Serve,
    deciding_attempt,
)
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.ledger import Accounts, answer_headers
from gateway.core.openai import sse
from gateway.core.relay import StreamBroken
from gateway.dialects.conversion import last_response
from gateway.dialects.last_word import LastWord
from gateway.drivers.durability import JOB_SETTINGS, KEEP_RUNS_S, JobsOff, JobsUnavailable
from gateway.drivers.store import LEASE_S, LONGEST_POLL_S, POLL_S, RecordClaim, RecordToClaim, Store, claimed
from gateway.features.identity import SENT_KEY
from gateway.features.outcome import OF_THE_ANSWER, OUTCOME, CacheOutcome, is_stream, is_terminal
from gateway.features.run_port import NO_JOB
from gateway.features.runs.rules import StepRequest
from gateway.features.runs.step import (
    KEPT_STEP,
    PART,
    REPLAYED,
    STEP,
    DurableStore,
    StepAbout,
    StepChanged,
    StepRunning,
    StepTooLarge,
    StoredStep,
    WriteBehindSum,
    not_a_step,
    read_step,
    step_fingerprint,
    step_record,
)
from gateway.features.single_flight import SharedAnswer, SingleFlight

FREE = (b"x-gateway-cost-usd", b"0.00000000")


class StepCalls(CallFeature):
    """Serves calls that are steps of runs. One per process."""

    name = "steps"
    options: frozenset[bytes] = frozenset((STEP,))

    def __init__(self, clock: Clock, accounts: Accounts, store: Store) -> None:
        """`store` has the claims."""
        self._clock = clock
        self._accounts = accounts
        self._store = store
        self._flights = SingleFlight(clock, accounts)
        self._running: set[asyncio.Task[None]] = set()
        self.kept = StepStore(clock)

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for calls that name a step."""
        return None if requested.isdisjoint(self.options) else self

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        """Notes which step of its run the call is. Raises InvalidRequest, or JobsOff where no steps are remembered."""
        if call.request.method != "POST":
            return
        if not JOB_SETTINGS.of(call.route.policy).is_on:
            raise JobsOff("This gateway remembers no steps; its operator names a file with `jobs.store`.")
        part = PART.find(call)
        step = read_step(headers, "" if part is None else part.run)
        if call.route.model.answered_by:  # such as a pipeline, which remembers its own steps
            raise not_a_step(call.route.model.answered_by, "model")
        if part is not None:
            part.step, part.is_durable = step, True
            NO_JOB.put(call, not_a_step)
        SENT_KEY.drop(call)  # the step says what is the same

    def serve(self, call: Call, next: Serve) -> Awaitable[Reply]:
        """Returns the reply to the call, which may be that of a step."""
        part = PART.find(call)
        if part is None or not part.run or part.step is None:
            return next(call)
        return self._serve(call, part.step, next)

    async def _serve(self, call: Call, ask: StepRequest, next: Serve) -> Reply:
        """Returns the step's answer; the account is settled in any case. Raises as the pipeline does."""
        try:
            record, fingerprint = step_record(call.request.tenant, ask), step_fingerprint(call)
            while True:
                shared = self._flights.get(record)
                if shared is None:
                    shared = self._lead(call, ask, record, fingerprint, next)
                elif shared.fingerprint != fingerprint and not ask.reruns:
                    raise _changed(ask)
                elif shared.fingerprint != fingerprint or not shared.takes_readers:
                    await self._until_over(call, ask, shared)
                    continue
                joined = await self._join(call, ask, shared)
                if joined is not None:
                    if shared.call is not call:
                        joined.headers += (REPLAYED, FREE)
                    return joined
        except GatewayError as error:  # a cancelled call is settled by `join`
            self._accounts.settle_failed(call, error)
            raise
        except Exception as defect:
            raise self._accounts.settle_failed(call, defect) from defect

    async def drain(self, grace_s: float) -> None:
        """Lets the steps that run end, whoever waits for them, at most for `grace_s`, and stops the others."""
        if self._running and grace_s > 0:
            await asyncio.wait(self._running, timeout=grace_s)
        for task in self._running:
            task.cancel("shutdown")
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.kept.aclose()

    async def _join(self, call: Call, ask: StepRequest, shared: SharedAnswer) -> Reply | None:
        """Returns the shared answer; None: the call looks again, for it need not fail as the other did."""
        try:
            return await self._flights.join(call, shared)
        except StepChanged:
            if ask.reruns and shared.call is not call:
                return None
            raise

    async def _until_over(self, call: Call, ask: StepRequest, shared: SharedAnswer) -> None:
        """Waits until a step that is being run is not any more. Raises StepRunning at the call's deadline."""
        left_s = call.request.deadline - self._clock.monotonic()
        if left_s <= 0:
            raise _running(ask)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(call.request.deadline, lambda: _wake(over))
        try:
            await asyncio.wait([one for one in (shared.task, over) if one is not None], return_when="FIRST_COMPLETED")
        except asyncio.CancelledError as stopped:
            self._accounts.settle_stopped(call, stopped)
            raise
        finally:
            timer.cancel()
            over.cancel()

    # --- leading ---

    def _lead(self, call: Call, ask: StepRequest, record: bytes, fingerprint: bytes, next: Serve) -> SharedAnswer:
        own = SharedAnswer(call, 2 * MOST_BYTES, goes_on=True)
        own.fingerprint = fingerprint
        own.keys = (record,)
        self._flights.start(own, self._run(own, ask, record, next))
        if own.task is not None:
            self._running.add(own.task)
            own.task.add_done_callback(self._running.discard)
        return own

    async def _run(self, own: SharedAnswer, ask: StepRequest, record: bytes, next: Serve) -> None:
        """Gets the step's answer, from the store or by running its call, and has it kept."""
        call = own.call
        claim = RecordToClaim(record=record, fingerprint=own.fingerprint, lease_s=LEASE_S.of(call.route.model))
        lease: RecordClaim | None = None
        with self._flights.leading(own):
            try:
                kept = await self._kept_or_claimed(own, ask, claim)
                if kept is not None and (kept.about.fingerprint == own.fingerprint or not ask.reruns):
                    own.complete_whole(self._replayed(call, ask, own.fingerprint, kept))
                    return
                if claim.fence and not self._store.is_local:
                    lease = RecordClaim(self._clock, self._store.records, claim)
                reply = await next(call)
                give = self._give_whole if reply.chunks is None else self._give_stream
                await give(own, ask, record, reply, replaces=kept is not None)
            finally:
                if claim.fence:  # what is held must not be paid for elsewhere
                    self.kept.once_kept(record, partial(self._release, claim, lease))

    def _release(self, claim: RecordToClaim, lease: RecordClaim | None) -> None:
        if lease is not None:
            lease.end()
        self._store.records.release(claim.record, claim.fence)

    async def _kept_or_claimed(self, own: SharedAnswer, ask: StepRequest, claim: RecordToClaim) -> StoredStep | None:
        """Returns the step that is kept; None: it is to be run here, and claimed where others could run it, too."""
        call, pause_s = own.call, POLL_S
        kept = await self.kept.find(call, ask, claim.record)
        if self._store.is_local:
            return kept
        while kept is None or (ask.reruns and kept.about.fingerprint != own.fingerprint):
            found = await claimed(self._store.records, claim)
            if found.state == "mismatch" and not ask.reruns:
                raise _changed(ask)
            if found.state in ("claimed", "done"):
                claim.fence = found.fence
                return await self.kept.find(call, ask, claim.record)  # by whom it was claimed until just now
            # Another process runs it, and keeps the answer before it gives up its claim; if it has died, the lease ends.
            if self._clock.monotonic() >= call.request.deadline:
                raise _running(ask)
            await self._clock.sleep(pause_s)
            pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
            kept = await self.kept.find(call, ask, claim.record)
        return kept

    def _replayed(self, call: Call, ask: StepRequest, fingerprint: bytes, kept: StoredStep) -> Reply:
        """Returns a kept answer for a call, with its account closed. Raises StepChanged for another question."""
        about = kept.about
        if about.fingerprint != fingerprint:
            raise _changed(ask)
        outcome = CacheOutcome(
            "hit",
            KEPT_STEP,
            source=about.source,
            target=about.target,
            age_s=max(0.0, self._clock.wall() - about.created_at),
            saved=about.usage,
            saved_usd=about.cost_usd,
            tried=[(KEPT_STEP, "hit")],
        )
        OUTCOME.put(call, outcome)
        self._accounts.settle(call, about.status, about.outcome)
        shared = list(about.headers)
        headers = [*shared, *answer_headers(call, self._clock.monotonic()), REPLAYED, FREE]
        return Reply(about.status, headers, kept.body, shared=shared)

    async def _keep(
        self, own: SharedAnswer, ask: StepRequest, record: bytes, reply: Reply, body: bytes, *, replaces: bool
    ) -> StoredStep | None:
        """Keeps an answer, if it is a step's; returns the one that another call has had kept before, None if there is none."""
        if not is_kept(own.call, reply, body):
            return None
        step = stored_step(own.call, ask, own.fingerprint, reply, body, self._clock.wall())
        keep = partial(self.kept.keep, step, record, replaces=replaces)
        write_behind = self.kept.write_behind
        kept = await (keep() if write_behind is None else write_behind(own.call.request.tenant, ask.run, keep))
        return None if kept == step else kept

    async def _give_whole(
        self, own: SharedAnswer, ask: StepRequest, record: bytes, reply: Reply, *, replaces: bool
    ) -> None:
        kept = await self._keep(own, ask, record, reply, reply.body, replaces=replaces)
        if kept is not None:
            if kept.about.fingerprint != own.fingerprint:
                raise _changed(ask)
            shared = list(kept.about.headers)
            headers = [*shared, *answer_headers(own.call, self._clock.monotonic())]
            reply = Reply(kept.about.status, headers, kept.body, shared=shared)
        own.complete_whole(reply)

    async def _give_stream(
        self, own: SharedAnswer, ask: StepRequest, record: bytes, reply: Reply, *, replaces: bool
    ) -> None:
        """Passes a stream on as it comes, but for its end, which goes on once all of it is kept."""
        assert reply.chunks is not None  # noqa: S101  # that is why it is a stream
        own.begin(reply)
        ends_in_words = is_stream(reply.shared) and own.call.request.endpoint.shape.stream != "other"
        ending = LastWord() if ends_in_words else None
        held, passed_on, size = b"", bytearray(), 0
        try:
            async for chunk in reply.chunks:
                size += len(chunk)
                if size > MOST_BYTES:
                    # It is too large to be kept, so it ends here, and the step is known for that from now on.
                    await reply.close()
                    step = stored_step(own.call, ask, own.fingerprint, reply, bytes(MOST_BYTES + 1), self._clock.wall())
                    await self.kept.keep(step, record, replaces=replaces)
                    raise too_large(ask)
                if ending is not None:
                    chunk = ending.feed(chunk)
                else:  # any chunk may be the last
                    chunk, held = held, chunk
                if chunk:
                    passed_on += chunk
                    await own.add(chunk)
            await reply.close()
            held = held if ending is None else ending.held
            if await self._keep(own, ask, record, reply, bytes(passed_on) + held, replaces=replaces) is not None:
                raise StreamBroken("another answer of this step was kept before")
            if held:
                await own.add(held)
            own.end()
        finally:
            await reply.close()


def _wake(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


def _changed(ask: StepRequest) -> StepChanged:
    return StepChanged(
        f"The step '{ask.step}' of run '{ask.run}' has the answer to another request; name another step, or send "
        "'x-gateway-step-on-change: rerun' to have it run again in its place.",
        param="x-gateway-step",
    )


def _running(ask: StepRequest) -> StepRunning:
    return StepRunning(
        f"The step '{ask.step}' of run '{ask.run}' is being run for another request; send this one again to get its answer.",
        param="x-gateway-step",
    )


# --- steps in the store of jobs, as a call sees them: nothing is paid for that could not be kept ---

MOST_BYTES = 64 * 1024 * 1024
"""The longest answer that can be a step's."""
HELD_BYTES = 128 * 1024 * 1024
"""The most bytes of all answers that are held because the store does not take them."""
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
    """The functions that are called once it is kept."""


class StepStore:
    """Finds and keeps steps. One per process.

    Invariant: an answer that was paid for is held here until it is kept, as long as the process lives and there is room.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.open: Callable[[], Awaitable[DurableStore]] | None = None
        """Opens the store of jobs, or raises JobsUnavailable; None: there is none."""
        self.write_behind: WriteBehindSum | None = None
        """None: nobody keeps the sums of runs."""
        self._held: dict[bytes, HeldStep] = {}
        """The held steps by record."""
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
            found = await store.runs.find_step(call.request.tenant, ask.run, ask.step)
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

    async def _store(self) -> DurableStore:
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
    """Returns whether an answer is a step's: a complete one, or an error that the same request would always get.

    One that is not what its model's policy wants (`output`) is given, but is none to build on: the next call asks again.
    """
    if not is_terminal(call, reply.status) or INVALID_ANSWER.find(call):
        return False
    if call.request.endpoint.name != "responses" or reply.status >= 300:
        return True
    if reply.chunks is not None:
        return last_response(body) is not None
    return (sse.answer_object(body) or {}).get("status") != "failed"


def stored_step(call: Call, ask: StepRequest, fingerprint: bytes, reply: Reply, body: bytes, wall: float) -> StoredStep:
    """Returns an answer as it is kept; it came at `wall`."""
    last = deciding_attempt(call)
    replay = OUTCOME.find(call)
    is_cached = replay is not None and bool(replay.layer)
    about = StepAbout(
        tenant=call.request.tenant,
        run=ask.run,
        step=ask.step,
        fingerprint=fingerprint,
        status=reply.status,
        headers=[header for header in reply.shared if header[0] in OF_THE_ANSWER],
        is_stream=is_stream(reply.shared),
        endpoint=call.request.endpoint.name,
        usage=call.usage or (replay.saved if replay is not None else None),
        cost_usd=0.0 if is_cached else last.cost_usd if last is not None else None,
        model=call.request.model_name,
        target=last.target.name if last is not None else replay.target if replay is not None else "",
        source=call.request.id,
        outcome=str(call.outcome),
        created_at=wall,
        keep_until=wall + KEEP_RUNS_S.of(call.route.policy),
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
