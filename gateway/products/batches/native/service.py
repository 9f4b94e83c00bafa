"""Chunks of batches as parts at a provider's own Batch API: each claim does what is due, notes it, and comes back for the rest.

    choose -> (note what is to be asked -> ask it -> note what came of it) … -> commit the answers -> what is left runs here

No worker waits: between two looks at a provider's batch the chunk is given back. A crash leaves the note of what was about to
be asked; whoever has the chunk next looks whether it was. In this order: requests for a part; its charges; and the life of
parts. Invariants: nothing is asked of a provider that is not noted; a part ends `here` in every case, after which the chunk
runs like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import BudgetExceeded, Forbidden, GatewayError
from gateway.core.snapshot import Key, Policies, Provider
from gateway.drivers.durability import JobsUnavailable
from gateway.drivers.outward import Unreachable
from gateway.features.run_port import NO_RUNS, RunPort
from gateway.products.batches.input import key_named, lines_of
from gateway.products.batches.native import rules as parts
from gateway.products.batches.native.formats import (
    FULL,
    NativeAccounts,
    NeverSent,
    PendingResult,
    ProviderBatches,
    ProviderRefused,
    number_of,
)
from gateway.products.batches.native.lines import (
    ClaimLost,
    LineTranslator,
    ProviderAnswers,
    WrittenInput,
    unanswered_lines,
    write_input,
)
from gateway.products.batches.native.rules import (
    BatchThere,
    Done,
    Failed,
    Gone,
    NoPart,
    NotListed,
    Part,
    PartEvent,
    PartPhase,
    Refused,
    Unsent,
    Unsure,
    UploadedFile,
    is_inline,
    model_at,
    target_of,
)
from gateway.products.batches.output import (
    ENDPOINT,
    NATIVE,
    WAITS_FOR,
    part_mark,
    parts_of,
    plan_of,
    request_of,
    served_lines,
)
from gateway.products.jobs.calls import MakeCall
from gateway.products.jobs.lines import read_line
from gateway.products.jobs.model import Job, LineResult, line_id
from gateway.products.jobs.rules import USUAL_FACTOR, JobRules, may_take
from gateway.products.jobs.runner import run_of
from gateway.products.jobs.store import Blobs, JobStore
from gateway.products.jobs.worker import LAST_RETRY_S, RunningWork

# --- requests for a part, and searches for what may have been asked ---

LAG_S = 3600.0
"""The seconds that a provider's clock may be behind ours."""


class SendWindow:
    """The time within which something that is about to be noted may be asked."""

    def __init__(self, clock: Clock) -> None:
        """It begins now, before the note: nobody can have seen that any earlier."""
        self._clock = clock
        self._began = clock.monotonic(), clock.wall()

    def is_open(self, within_s: float = parts.SENT_WITHIN_S) -> bool:
        """Returns whether it is not over, by either clock: a machine that sleeps, or is moved, may stop one of them."""
        now = self._clock.monotonic(), self._clock.wall()
        return all(at - began <= within_s for at, began in zip(now, self._began, strict=True))


class PartRequests:
    """Asks providers, one thing at a time. Holds nothing of any part."""

    def __init__(self, blobs: Blobs, batches: ProviderBatches, clock: Clock) -> None:
        self._blobs = blobs
        self._batches = batches
        self._clock = clock

    async def perform(
        self, job: Job, part: Part, provider: Provider, source: WrittenInput | None, window: SendWindow
    ) -> PartEvent:
        """Has the provider do what is noted; `source` is the input, where that is to be sent.

        Raises ProviderRefused, Unreachable, NeverSent.
        """
        if source is not None and part.is_inline:
            content = self._blobs.read(source.blob)
            made = self._batches.submit(provider, source.size, content, lambda: window.is_open(parts.INLINE_SENT_S))
            return BatchThere(await made)
        if source is not None:
            content = self._blobs.read(source.blob)
            return UploadedFile(await self._batches.upload(provider, part.filename, source.size, content))
        url = url_of(job, provider)
        return BatchThere(await self._batches.create(provider, part.file, url, part.name, window.is_open))

    async def look(self, job: Job, chunk: int, part: Part, provider: Provider) -> PartEvent:
        """Sees what has become of what was asked, or does what may be done twice. Raises ProviderRefused, Unreachable."""
        batches, not_before = self._batches, self._not_before(job)
        match part.phase:
            case PartPhase.UPLOADING:
                file = await batches.find_file(provider, part.filename, not_before)
                return NotListed() if file is None else UploadedFile(file)
            case PartPhase.RECALLING if not part.is_asked:
                await batches.remove(provider, part.file)
                return Done()
            case PartPhase.TIDYING:
                await self._tidy(job, part, provider)
                return Done()
            case PartPhase.CANCELLING if not part.is_asked:
                await batches.cancel(provider, part.batch)
                return Done()
        if part.batch and (part.is_inline or part.misses < parts.VANISHED):
            return BatchThere(await batches.look(provider, part.batch))
        if part.is_inline:
            # it has no name of ours: it is looked for by its lines, among those of the time
            prefix, numbers = line_id(job.id, 0)[:-6], lines_of(plan_of(job), chunk)
            others = {str(mark.get("batch")) for number, mark in parts_of(job).items() if number != chunk}
            try:
                found = await batches.find_submitted(
                    provider, lambda name: number_of(name, prefix) in numbers, part.lines, others, not_before
                )
            except PendingResult as why:
                return Unsure(str(why))
            return NotListed() if found is None else BatchThere(found)
        found = await batches.find_batch(provider, part.name, part.file, not_before)
        return NotListed() if found is None else BatchThere(found)

    def _not_before(self, job: Job) -> float:
        """Returns a time, by clocks that are right, before which nothing can have been made for the job.

        What is missed would be sent, and paid for, again: a machine whose time was set may have noted parts by another time,
        and nobody knows which of the two is the right one.
        """
        return job.created_at - max(0.0, self._clock.ahead_s) - LAG_S

    async def _tidy(self, job: Job, part: Part, provider: Provider) -> None:
        """Removes the part's files at the provider, or its batch, where that is all there is."""
        if part.is_inline:
            if part.batch:
                await self._batches.remove(provider, part.batch)
            return
        file = part.file or await self._batches.find_file(provider, part.filename, self._not_before(job))
        for one in (file, part.output, part.errors):
            if one:
                await self._batches.remove(provider, one)


def url_of(job: Job, provider: Provider) -> str:
    """Returns the endpoint as the provider spells it: Azure's has no `/v1`."""
    endpoint = str(job.about[ENDPOINT])
    return endpoint.removeprefix("/v1") if provider.dialect == "azure" else endpoint


# --- charges: what parts cost their keys, booked before they are sent and set right when they are over ---

DAY_S = 86_400


class PartCharges:
    """Charges keys that have a budget; all others are charged nothing.

        take (before the part is noted) -> remember (by each worker that has it next) -> settle (when it runs here, or is done)

    No two parts, and no live call beside them, spend the same money of a budget. A charge counts for the day (UTC) on which it
    was taken, for which it is given back; what the answers cost is booked as they come (`ProviderAnswers`), so for a moment
    both count. Where what is spent outlives this process, so do charges; otherwise the next one books them again. Invariant:
    the part's mark says what is charged for it.
    """

    def __init__(
        self,
        blobs: Blobs,
        accounts: NativeAccounts,
        make_call: MakeCall,
        price_of: Callable[[Call], float],
        rules_of: Callable[[Job], JobRules],
        clock: Clock,
    ) -> None:
        """`price_of` gives what a call is reckoned with in a budget, in US dollars."""
        self._blobs = blobs
        self._accounts = accounts
        self._make_call = make_call
        self._price_of = price_of
        self._rules_of = rules_of
        self._clock = clock
        self._known: set[str] = set()
        """Parts whose charges this process has booked."""

    async def take(self, job: Job, chunk: int, has_result: Collection[int], key: Key, part: Part) -> Part | None:
        """Returns the part with what was charged for it; None: its key has not enough left today.

        Raises NoPart where it never has, JobsUnavailable.
        """
        budget_usd = key.budget_usd_per_day
        if budget_usd is None:
            return part
        if self._accounts.is_spent(key):
            return None
        try:
            usd = await self._estimate(job, chunk, has_result)
        except Forbidden as refused:
            raise NoPart(str(refused)) from refused  # lines that run here are refused one by one
        if usd > budget_usd:
            raise NoPart(f"it costs about ${usd:.2g}, and its key may spend ${budget_usd:g} a day")
        day = await self._accounts.charge(key, usd)
        if day is None:
            return None
        self._known.add(part.origin)
        return replace(part, charged_usd=usd, charged_day=day)

    def remember(self, job: Job, part: Part) -> None:
        """Books what an earlier life of this process has charged, where that is not known any more."""
        if not part.charged_usd or part.origin in self._known:
            return
        self._known.add(part.origin)
        is_todays = part.charged_day == int((self._clock.wall() - self._clock.ahead_s) // DAY_S)
        if is_todays and not self._accounts.outlives:
            self._accounts.correct(job.key, part.charged_day, part.charged_usd)

    def settle(self, job: Job, part: Part) -> None:
        """Gives back what was charged for a part that is over."""
        if part.charged_usd:
            self._known.discard(part.origin)
            self._accounts.correct(job.key, part.charged_day, -part.charged_usd)

    async def _estimate(self, job: Job, chunk: int, has_result: Collection[int]) -> float:
        rules, now, usd = self._rules_of(job), self._clock.wall(), 0.0
        try:
            async for lines in unanswered_lines(self._blobs, job, chunk, has_result):
                for line in lines:
                    read = read_line(line.text)
                    name = line_id(job.id, line.number)
                    try:
                        call = await self._make_call(request_of(job, rules, now, name, read.body, read.parsed))
                    except GatewayError:
                        continue  # a line that is refused here; there, too, most likely
                    usd += self._price_of(call)
        except (FileNotFoundError, ValueError) as error:
            raise NoPart("its input cannot be read") from error
        factor = rules.batches.native.price_factor
        return usd * (USUAL_FACTOR if factor is None else factor)


# --- the life of parts ---

log = logging.getLogger("gateway.jobs")

LEAST_POLL_S, SLOW_POLL_S = 15.0, 60.0
MOST_INPUT_BYTES = 100 * 1024 * 1024
"""The longest input of one part: Groq and OpenAI take 200 MB, Azure as much with room for its own, Anthropic 256 MB."""
NO_SUCH_API = (401, 403, 404, 405)
"""The statuses that mean that a provider, or this key, has no Batch API, rather than a fault of one request."""
SPENT_S = 300.0
"""A part of a key that has spent its budget is put off for so long."""
REFUSED_S = 600.0
"""A provider that refuses a file is given no other for so long."""
TURN_S = 10.0
"""A chunk whose batch has enough of them running here comes back after so long."""
SHOWN_S = 1200.0
"""A part that nobody here has looked at for so long is with another worker, or over."""


class NativeParts:
    """Drives the parts of batches."""

    def __init__(
        self,
        store: JobStore,
        blobs: Blobs,
        batches: ProviderBatches,
        accounts: NativeAccounts,
        charges: PartCharges,
        policies: Policies,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
        run_here: Callable[[RunningWork], Awaitable[None]],
        runs: RunPort = NO_RUNS,
    ) -> None:
        """`rules_of` gives the rules in force for a job; `run_here` runs a chunk through the gateway; `runs` get what
        lines have cost that are parts of them.
        """
        self._runs = runs
        self._run_here = run_here
        self._here: Counter[str] = Counter()
        """By batch, how many of its chunks run here now."""
        self._refused: dict[str, tuple[float, str]] = {}
        """Providers that take no files, until when that is believed, and their reason."""
        self._store = store
        self._blobs = blobs
        self._charges = charges
        self._policies = policies
        self._clock = clock
        self._rules_of = rules_of
        self._requests = PartRequests(blobs, batches, clock)
        self._answers = ProviderAnswers(store, blobs, batches, accounts, self._add_results)
        self._seen: dict[tuple[str, int], tuple[PartPhase, float]] = {}

    def _add_results(self, job: Job, results: Sequence[LineResult]) -> None:
        if run := run_of(job):
            self._runs.lines_served(job.tenant, run, served_lines(job, results, self._clock.wall()))

    def phases(self) -> Mapping[str, int]:
        """Returns how many parts are at providers, by how far they have come."""
        oldest = self._clock.wall() - SHOWN_S
        self._seen = {name: seen for name, seen in self._seen.items() if seen[1] >= oldest}
        return Counter(str(phase) for phase, _ in self._seen.values())

    async def run(self, running: RunningWork) -> None:
        """Does what is due of a chunk: of its part at a provider, or here, where not more than usual run at a time."""
        job = running.work.job
        if NATIVE not in job.marks:
            await self._run_here(running)
        elif await self._is_over(running):
            if self._here[job.id] >= self._rules_of(job).batches.parallel_chunks:
                await running.give_back(self._store, self._clock.wall() + TURN_S)
                return
            self._here[job.id] += 1
            try:
                await self._run_here(running)
            finally:
                self._here[job.id] -= 1
                if not self._here[job.id]:
                    del self._here[job.id]

    async def _is_over(self, running: RunningWork) -> bool:
        """Does what is due of a chunk's part. Returns whether the chunk is to run here; if not, its claim has ended."""
        job, chunk = running.work.job, running.work.piece
        try:
            mark = job.marks.get(part_mark(chunk))
            part = parts.of_mark(mark) if mark else await self._begun(running, chunk)
            waits_for = BudgetExceeded.code if part is None else None
            if not mark and job.marks.get(WAITS_FOR) != waits_for:
                await running.write(lambda: self._store.note(running.work, {WAITS_FOR: waits_for}))
            if part is None:
                await running.give_back(self._store, self._clock.wall() + SPENT_S)
                return False
            part = await self._driven(running, chunk, part)
        except ClaimLost:
            return False
        except JobsUnavailable:  # the log says why
            await running.give_back(self._store, self._clock.wall() + LAST_RETRY_S)
            return False
        except asyncio.CancelledError:
            await asyncio.shield(running.release(self._store))  # the next process looks for what is at the provider
            raise
        if part.is_over:
            return True
        due_at = part.due if part.is_wanted else min(part.due, self._ends_at(job))
        await running.give_back(self._store, None if running.stopping.is_set() else due_at)
        return False

    async def wind_up(self, running: RunningWork) -> bool:
        """Takes back the parts of a batch that is put together. Returns whether all are; if not, the claim has ended."""
        job = running.work.job
        found = {chunk: parts.of_mark(mark) for chunk, mark in parts_of(job).items()}
        due_at, is_late = inf, False
        try:
            for chunk, part in found.items():
                if part.is_over:
                    continue
                is_late = True
                left = await self._driven(running, chunk, part, is_last=True)
                due_at = due_at if left.is_over else min(due_at, left.due)
        except ClaimLost:
            return False
        except JobsUnavailable:
            due_at = self._clock.wall() + LAST_RETRY_S
        except asyncio.CancelledError:
            await asyncio.shield(running.release(self._store))  # the next process looks for what is at the provider
            raise
        if not is_late:
            for chunk in found:
                self._seen.pop((job.id, chunk), None)
            return True
        await running.give_back(self._store, None if due_at == inf else due_at)  # with what was counted meanwhile
        return False

    async def _begun(self, running: RunningWork, chunk: int) -> Part | None:
        """Returns a new part for the chunk, or one that is over before it began; None: its key has no money now."""
        job, now, policy = running.work.job, self._clock.wall(), self._policies.current
        here = Part("", "", "", "", PartPhase.HERE, now, now)
        try:
            if now >= self._ends_at(job):
                raise NoPart("its time there would be over")
            target = target_of(policy, job, chunk, self._rules_of(job).batches)
            until, reason = self._refused.get(target.provider, (0.0, ""))
            if now < until:
                raise NoPart(reason)
            model, at_once = model_at(target, job), is_inline(policy.providers[target.provider])
            part: Part | None = parts.new_part(
                job.id, chunk, target.name, target.provider, model, now, is_inline=at_once
            )
            key = key_named(policy, job.key)
            if key is not None and key.budget_usd_per_day is not None and part is not None:
                part = await self._charges.take(job, chunk, await self._answers.known(running), key, part)
        except NoPart as why:
            return await self._kept(running, chunk, parts.given_up(here, str(why)))
        if part is None or not part.charged_usd:
            return part
        try:
            return await self._kept(running, chunk, part)
        except ClaimLost:  # nobody else knows of the charge
            self._charges.settle(job, part)
            raise

    def _ends_at(self, job: Job) -> float:
        """Returns when what is not done at the provider is taken back."""
        share = self._rules_of(job).batches.native.take_back_after
        return job.created_at + share * (job.deadline - job.created_at)

    async def _driven(self, running: RunningWork, chunk: int, part: Part, *, is_last: bool = False) -> Part:
        """Returns the part after all that is due now. Raises ClaimLost, JobsUnavailable."""
        job = running.work.job
        self._charges.remember(job, part)
        while not part.is_over and not (running.is_draining if is_last else running.stopping.is_set()):
            now = self._clock.wall()
            wanted = part
            if is_last:
                wanted = parts.recall(part, now, "its batch has ended early")
            elif now >= self._ends_at(job):
                wanted = parts.recall(part, now, "its time there is over")
            if wanted is part and part.due > now:
                break
            if wanted is not part:
                part = await self._kept(running, chunk, wanted)
            if part.due <= now:
                part = await self._stepped(running, chunk, part)
        return part

    async def _stepped(self, running: RunningWork, chunk: int, part: Part) -> Part:
        provider = self._policies.current.providers.get(part.provider)
        if provider is None or not may_take(provider):
            return await self._kept(running, chunk, parts.given_up(part, "its provider is no longer in the config"))
        source, is_look = None, part.is_asked
        event: PartEvent
        try:
            first = PartPhase.CREATING if part.is_inline else PartPhase.UPLOADING
            if part.phase is first and not part.is_asked:
                source = await self._written(running, chunk, part, provider)
            if not part.is_asked and part.phase in (PartPhase.UPLOADING, PartPhase.CREATING):
                window = SendWindow(self._clock)
                lines = 0 if source is None else source.lines
                part = await self._kept(running, chunk, parts.mark_queried(part, lines))
                event = await self._requests.perform(running.work.job, part, provider, source, window)
            elif part.phase is PartPhase.FETCHING:
                rules = self._rules_of(running.work.job).batches
                policy, wording = self._policies.current, self._wording(running.work.job, part, provider)
                await self._answers.fetch(running, chunk, part, provider, policy, wording, rules)
                event = Done()
            else:
                event = await self._requests.look(running.work.job, chunk, part, provider)
        except NoPart as why:
            return await self._kept(running, chunk, parts.given_up(part, str(why)))
        except NeverSent as why:
            event = Unsent(f"{provider.name}: {why}")
        except Unreachable as why:
            event = Failed(f"{provider.name}: {why}")
        except ProviderRefused as refused:
            is_gone = refused.status in (404, 410)
            is_there = part.phase in (PartPhase.WORKING, PartPhase.CANCELLING, PartPhase.FETCHING)
            event = Gone() if is_gone and is_there else Refused(str(refused), refused.code in FULL)
            if is_look and part.phase in (PartPhase.CREATING, PartPhase.RECALLING):
                event = Failed(str(refused))  # what it does not tell may be there all the same
            if part.phase is PartPhase.UPLOADING or (part.is_inline and refused.status in NO_SUCH_API and not is_there):
                self._refused[provider.name] = self._clock.wall() + REFUSED_S, str(refused)
        least_s = LEAST_POLL_S if provider.dialect == "openai" else SLOW_POLL_S
        return await self._kept(running, chunk, parts.advanced(part, event, self._clock.wall(), least_s))

    async def _written(self, running: RunningWork, chunk: int, part: Part, provider: Provider) -> WrittenInput:
        """Writes what the provider is to get. Raises NoPart."""
        job = running.work.job
        known: Collection[int] = await self._answers.known(running)
        wording = self._wording(job, part, provider)
        try:
            source = await write_input(self._blobs, job, chunk, known, wording, is_inline=part.is_inline)
        except (FileNotFoundError, ValueError) as error:
            raise NoPart("its input cannot be read") from error
        if not source.lines:
            raise NoPart(f"none of its lines can be said to {provider.name}")
        if source.size > MOST_INPUT_BYTES:
            raise NoPart(f"its lines are {source.size} bytes")
        if wording.lost:
            lost = ", ".join(f"{name} {how} ({lines})" for (name, how), lines in sorted(wording.lost.items()))
            if running.meter is not None:
                running.meter.lost(part.target, wording.lost)
            log.warning(
                "job %s: lines of part %s do not reach %s as they are: %s", job.id, part.name, provider.name, lost
            )
        return source

    def _wording(self, job: Job, part: Part, provider: Provider) -> LineTranslator:
        return LineTranslator(self._policies.current, job, part, url_of(job, provider), self._clock.wall())

    async def _kept(self, running: RunningWork, chunk: int, part: Part) -> Part:
        """Notes how far the part has come. Raises ClaimLost."""
        work = running.work
        if not await running.write(lambda: self._store.note(work, {part_mark(chunk): parts.to_mark(part)})):
            raise ClaimLost
        self._seen[work.job.id, chunk] = part.phase, self._clock.wall()
        if part.is_over:
            del self._seen[work.job.id, chunk]
            self._charges.settle(work.job, part)
            if part.why:
                log.warning("job %s: lines of chunk %d run here: %s", work.job.id, chunk, part.why)
        return part
