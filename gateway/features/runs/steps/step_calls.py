"""Steps: a call that names its run and its step is paid for once, and given its answer as often as it comes.

    serve ── the step is being run here ───────────────── share its answer
          ── it is kept ───────────────────────────────── give that, at no cost
          ── another process runs it ──────────────────── wait until it is kept there
          ── else lead: claim, run the call, keep the answer, give it

The claim is that of an idempotency record under an id of tenant, run and step; the answer is in the store of jobs. Invariants:
an answer is given whole only after it is kept; who leaves stops no call that is being paid for; a step has one answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.core.call import CacheOutcome, Call, Reply
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.ledger import Accounts, answer_headers
from gateway.core.ports import Store
from gateway.core.relay import StreamBroken
from gateway.features.reuse.layers.entries import is_stream
from gateway.features.reuse.layers.layers import LONGEST_POLL_S, POLL_S, RecordClaim, ReusePlan, claimed
from gateway.features.reuse.rules.keys import ANYTHING
from gateway.features.reuse.single_flight import LastWord, SharedAnswer, SingleFlight
from gateway.features.runs.rules import StepRequest
from gateway.features.runs.step import (
    KEPT_STEP,
    REPLAYED,
    StepAbout,
    StepChanged,
    StepRunning,
    StoredStep,
    step_fingerprint,
    step_record,
)
from gateway.features.runs.steps.kept_steps import MOST_BYTES, KeptSteps, is_kept, stored_step, too_large

FREE = (b"x-gateway-cost-usd", b"0.00000000")


class StepCalls:
    """Serves calls that are steps of runs. One per process."""

    def __init__(
        self, clock: Clock, accounts: Accounts, store: Store, answer: Callable[[Call], Awaitable[Reply]]
    ) -> None:
        """`store` has the claims; `answer` serves a call that has to be paid for, and settles its account."""
        self._clock = clock
        self._accounts = accounts
        self._store = store
        self._answer = answer
        self._flights = SingleFlight(clock, accounts)
        self._running: set[asyncio.Task[None]] = set()
        self.kept = KeptSteps(clock)

    async def serve(self, call: Call, ask: StepRequest) -> Reply:
        """Returns the step's answer; the account is settled in any case. Raises as the pipeline does."""
        try:
            record, fingerprint = step_record(call.tenant, ask), step_fingerprint(call)
            while True:
                shared = self._flights.get(record)
                if shared is None:
                    shared = self._lead(call, ask, record, fingerprint)
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
        left_s = call.deadline - self._clock.monotonic()
        if left_s <= 0:
            raise _running(ask)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(call.deadline, lambda: _wake(over))
        try:
            await asyncio.wait([one for one in (shared.task, over) if one is not None], return_when="FIRST_COMPLETED")
        except asyncio.CancelledError as stopped:
            self._accounts.settle_stopped(call, stopped)
            raise
        finally:
            timer.cancel()
            over.cancel()

    # --- leading ---

    def _lead(self, call: Call, ask: StepRequest, record: bytes, fingerprint: bytes) -> SharedAnswer:
        own = SharedAnswer(call, 2 * MOST_BYTES, goes_on=True)
        own.fingerprint = fingerprint
        own.keys = (record,)
        self._flights.start(own, self._run(own, ask, record))
        if own.task is not None:
            self._running.add(own.task)
            own.task.add_done_callback(self._running.discard)
        return own

    async def _run(self, own: SharedAnswer, ask: StepRequest, record: bytes) -> None:
        """Gets the step's answer, from the store or by running its call, and has it kept."""
        call = own.call
        claim = ReusePlan(call.model.caching, ANYTHING, record=record, fingerprint=own.fingerprint)
        lease: RecordClaim | None = None
        try:
            kept = await self._kept_or_claimed(own, ask, claim)
            if kept is not None and (kept.about.fingerprint == own.fingerprint or not ask.reruns):
                own.complete_whole(self._replayed(call, ask, own.fingerprint, kept))
                return
            if claim.fence and not self._store.is_local:
                lease = RecordClaim(self._clock, self._store, claim)
            reply = await self._answer(call)
            if reply.chunks is None:
                await self._give_whole(own, ask, record, reply, replaces=kept is not None)
            else:
                await self._give_stream(own, ask, record, reply, replaces=kept is not None)
        except StreamBroken as broken:
            own.end(broken)
        except asyncio.CancelledError as stopped:
            self._accounts.settle_stopped(call, stopped)
            own.end(StreamBroken("the answer broke off"))
        except Exception as failure:  # noqa: BLE001  # the readers get it, and log it
            own.end(self._accounts.settle_failed(call, failure))
        finally:
            if claim.fence:  # what is held must not be paid for elsewhere
                self.kept.once_kept(record, partial(self._release, claim, lease))
            self._flights.forget(own)

    def _release(self, claim: ReusePlan, lease: RecordClaim | None) -> None:
        if lease is not None:
            lease.end()
        self._store.records.release(claim.record, claim.fence)

    async def _kept_or_claimed(self, own: SharedAnswer, ask: StepRequest, claim: ReusePlan) -> StoredStep | None:
        """Returns the step that is kept; None: it is to be run here, and claimed where others could run it, too."""
        call, pause_s = own.call, POLL_S
        kept = await self.kept.find(call, ask, claim.record)
        if self._store.is_local:
            return kept
        while kept is None or (ask.reruns and kept.about.fingerprint != own.fingerprint):
            found = await claimed(self._store, claim)
            if found.state == "mismatch" and not ask.reruns:
                raise _changed(ask)
            if found.state in ("claimed", "done"):
                claim.fence = found.fence
                return await self.kept.find(call, ask, claim.record)  # by whom it was claimed until just now
            if self._clock.monotonic() >= call.deadline:
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
        call.replay = _replay_of(about, self._clock.wall())
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
        kept = await (keep() if write_behind is None else write_behind(own.call.tenant, ask.run, keep))
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
        ends_in_words = is_stream(reply.shared) and own.call.endpoint.sse != "other"
        ending = LastWord() if ends_in_words else None
        held, passed_on, size = b"", bytearray(), 0
        try:
            async for chunk in reply.chunks:
                size += len(chunk)
                if size > MOST_BYTES:
                    await self._refuse_for_good(own, ask, record, reply, replaces=replaces)
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

    async def _refuse_for_good(
        self, own: SharedAnswer, ask: StepRequest, record: bytes, reply: Reply, *, replaces: bool
    ) -> None:
        """Ends a stream that is too large to be kept; the step is known for that from now on. Raises StepTooLarge."""
        await reply.close()
        step = stored_step(own.call, ask, own.fingerprint, reply, bytes(MOST_BYTES + 1), self._clock.wall())
        await self.kept.keep(step, record, replaces=replaces)
        raise too_large(ask)


def _replay_of(about: StepAbout, wall: float) -> CacheOutcome:
    return CacheOutcome(
        "hit",
        KEPT_STEP,
        source=about.source,
        target=about.target,
        age_s=max(0.0, wall - about.created_at),
        saved=about.usage,
        saved_usd=about.cost_usd,
        tried=[(KEPT_STEP, "hit")],
    )


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
