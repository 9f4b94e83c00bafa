"""What a provider has answered on its way into the store: read as it comes, committed some lines at a time, paid for once.

What a provider says of its own files is not believed: a line is answered when its answer is there. Invariants: an answer counts
for the line that it names, once; what was committed before a file broke off stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from gateway.core.retry_budgets import cost_usd
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.core.snapshot.snapshot.snapshot import PolicySnapshot, Rates
from gateway.products.batches.input.input import MOST_LINE_BYTES, LineCutter
from gateway.products.batches.input.line_rules import key_named
from gateway.products.batches.native.formats.message_batch import read_result
from gateway.products.batches.native.formats.remote import ProviderRefused
from gateway.products.batches.native.lines.answers.input import AT_ONCE, bodies, custom_ids
from gateway.products.batches.native.lines.answers.wording import LineWording
from gateway.products.batches.native.lines.lines import ProviderAnswer, read_answer
from gateway.products.batches.native.rules.part import Part
from gateway.products.batches.output.marks import MODELS
from gateway.products.batches.output.output import LineIdentity, answered_line
from gateway.products.jobs.calls.ports.ports import NativeAccounts, ProviderBatches
from gateway.products.jobs.model.ids import line_id
from gateway.products.jobs.model.job import FINALISE
from gateway.products.jobs.model.lines import LineResult
from gateway.products.jobs.store.blobs import Blobs
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.webhooks.outward.job_ports_outward import Unreachable
from gateway.products.jobs.worker.running import RunningWork

log = logging.getLogger("gateway.jobs")


MOST_AT_ONCE, MOST_BYTES = 2048, 8 * 1024 * 1024
"""Answers, and bytes of them, that are put into other words together: the input is read once for all of these."""


class ClaimLost(Exception):
    """Another worker has the piece now."""


class ProviderAnswers:
    """Fetches and commits what providers have answered."""

    def __init__(self, store: JobStore, blobs: Blobs, batches: ProviderBatches, accounts: NativeAccounts) -> None:
        self._store = store
        self._blobs = blobs
        self._batches = batches
        self._accounts = accounts

    async def known(self, running: RunningWork) -> set[int]:
        """Returns the lines that have results, of the claimed chunk, or of all that are open for FINALISE."""
        store, work = self._store, running.work
        found = await (store.open_results(work) if work.piece == FINALISE else store.results(work))
        return {result.line for result in found}

    async def fetch(
        self,
        running: RunningWork,
        chunk: int,
        part: Part,
        provider: Provider,
        policy: PolicySnapshot,
        wording: LineWording,
        factor: float,
    ) -> None:
        """Commits what a part has brought, as `wording` puts it; `factor` is its price, as a part of the usual one.

        Raises ProviderRefused, Unreachable, JobsUnavailable, ClaimLost.
        """
        rates = _rates(policy, running.work.job.marks[MODELS][0], part)
        taking = _Taking(running, chunk, await self._names(running, chunk), wording, rates, factor)
        taking.is_inline = part.is_inline
        for file_id in (part.output, part.errors):
            if file_id:
                try:
                    await self._read(taking, self._batches.content(provider, file_id), policy, part)
                except (Unreachable, ProviderRefused):
                    await self._commit(taking, policy, part)
                    raise
        await self._commit(taking, policy, part)
        if taking.names:
            log.warning(
                "job %s: of part %s %d lines have no answer there, and run here",
                *(running.work.job.id, part.name, len(taking.names)),
            )

    async def _names(self, running: RunningWork, chunk: int) -> dict[int, str]:
        """Returns the custom_ids of the chunk's lines without results, which are those that are waited for."""
        job, known = running.work.job, await self.known(running)
        try:
            return await custom_ids(self._blobs, job, chunk, known)
        except (FileNotFoundError, ValueError):
            log.exception("job %s: its input cannot be read any more; answers to it cannot be kept", job.id)
            return {}

    async def _read(self, taking: _Taking, content: AsyncIterator[bytes], policy: PolicySnapshot, part: Part) -> None:
        cutter = LineCutter(MOST_LINE_BYTES)
        async for piece in content:
            for _, text in cutter.feed(piece):
                taking.take(text)
                if taking.is_enough:
                    await self._commit(taking, policy, part)
        for _, text in cutter.end():
            taking.take(text)

    async def _commit(self, taking: _Taking, policy: PolicySnapshot, part: Part) -> None:
        answers, bodies_of = taking.answers, await self._bodies(taking)
        taking.answers, taking.size = [], 0
        results = []
        for answer in answers:
            result = taking.result(answer, bodies_of.get(answer.number, b""))
            if result is not None:
                results.append(result)
            if len(results) >= AT_ONCE:
                await self._commit_some(taking.running, results, policy, part)
                results = []
        await self._commit_some(taking.running, results, policy, part)

    async def _bodies(self, taking: _Taking) -> dict[int, bytes]:
        """Returns what was asked for what is to be put into its words, by the lines' numbers."""
        if not taking.wording.converts or not taking.answers:
            return {}
        numbers = {answer.number for answer in taking.answers}
        try:
            return {
                number: body
                async for number, body in bodies(self._blobs, taking.running.work.job, taking.chunk, numbers)
            }
        except (FileNotFoundError, ValueError):
            log.exception("job %s: its input cannot be read any more", taking.running.work.job.id)
            return {}

    async def _commit_some(
        self, running: RunningWork, results: list[LineResult], policy: PolicySnapshot, part: Part
    ) -> None:
        if not results:
            return
        work = running.work
        if not await running.write(lambda: self._store.commit(work, results)):
            raise ClaimLost
        key, model = key_named(policy, work.job.key), policy.find_model(work.job.marks[MODELS][0])
        if key is not None:
            self._accounts.paid(key, sum(result.cost_usd for result in results))
        if running.meter is not None:
            running.meter.lines(results)
            running.meter.paid(model.name if model else "", part.target, work.job.key, results)
        await asyncio.sleep(0)


class _Taking:
    """The answers of one part on their way."""

    def __init__(
        self,
        running: RunningWork,
        chunk: int,
        names: dict[int, str],
        wording: LineWording,
        rates: Rates | None,
        factor: float,
    ) -> None:
        self.running = running
        self.chunk = chunk
        self.names = names
        """Of the lines that have no answer yet."""
        self.wording = wording
        self.is_inline = False
        self.answers: list[ProviderAnswer] = []
        self.size = 0
        """The bytes of the answers."""
        self._taken: set[int] = set()
        self._prefix = line_id(running.work.job.id, 0)[:-6]
        self._rates = rates
        self._factor = factor

    def take(self, text: bytes | None) -> None:
        """Takes a line of a provider's file; None: one that is too long to be looked at."""
        read = read_result if self.is_inline else read_answer
        answer = read(text, self._prefix) if text is not None else None
        if answer is not None and answer.number in self.names and answer.number not in self._taken:
            self._taken.add(answer.number)
            self.answers.append(answer)
            self.size += len(answer.body)

    @property
    def is_enough(self) -> bool:
        """Tells whether so much has come that it is time to commit: more, where the input has to be read for it."""
        return len(self.answers) >= (MOST_AT_ONCE if self.wording.converts else AT_ONCE) or self.size >= MOST_BYTES

    def result(self, answer: ProviderAnswer, asked: bytes) -> LineResult | None:
        """Returns the result of a line; None: its answer cannot be read, and it runs here."""
        who = LineIdentity(answer.number, line_id(self.running.work.job.id, answer.number), self.names[answer.number])
        body = self.wording.answer(who.id, asked, answer)
        if body is None:
            return None
        del self.names[answer.number]
        usage, usd = answer.usage, None
        if usage is not None:
            read = usage.cached, usage.cache_written, usage.cache_written_1h
            usd = cost_usd(self._rates, usage.input, usage.output, *read)
        return answered_line(who, answer.status, who.id, body, usage, None if usd is None else usd * self._factor)


def _rates(policy: PolicySnapshot, model_name: str, part: Part) -> Rates | None:
    """Returns the price of the part's model; None: not priced, or its target is no longer in the config."""
    model = policy.find_model(model_name)
    targets = () if model is None else model.targets
    return next((one.find_rates(part.model) for one in targets if one.name == part.target), None)
