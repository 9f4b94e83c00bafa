"""What a provider has answered on its way into the store: read as it comes, committed some lines at a time, paid for once.

What a provider says of its own files is not believed: a line is answered when its answer is there. Invariants: an answer counts
for the line that it names, once; what was committed before a file broke off stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from gateway.job_ports.blobs import Blobs
from gateway.job_ports.jobs import JobStore
from gateway.job_ports.outward import Unreachable
from gateway.jobs.native.input import AT_ONCE, custom_ids
from gateway.jobs.ports import NativeAccounts, ProviderBatches
from gateway.jobs.running import RunningWork
from gateway.policy.batches.input import MOST_LINE_BYTES, LineCutter
from gateway.policy.batches.line_rules import key_named
from gateway.policy.batches.marks import MODELS
from gateway.policy.batches.output import LineIdentity, answered_line
from gateway.policy.jobs.ids import line_id
from gateway.policy.jobs.job import FINALISE
from gateway.policy.jobs.lines import LineResult
from gateway.policy.native.lines import ProviderAnswer, read_answer
from gateway.policy.native.part import Part
from gateway.policy.native.remote import ProviderRefused
from gateway.policy.retry.budgets import cost_usd
from gateway.policy.snapshot import PolicySnapshot, Provider, Rates

log = logging.getLogger("gateway.jobs")


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
        self, running: RunningWork, chunk: int, part: Part, provider: Provider, policy: PolicySnapshot, factor: float
    ) -> None:
        """Commits what a part has brought; `factor` is its price, as a part of the usual one.

        Raises ProviderRefused, Unreachable, JobsUnavailable, ClaimLost.
        """
        taking = _Taking(
            running, await self._names(running, chunk), _rates(policy, running.work.job.marks[MODELS][0], part), factor
        )
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
                if len(taking.results) >= AT_ONCE:
                    await self._commit(taking, policy, part)
        for _, text in cutter.end():
            taking.take(text)

    async def _commit(self, taking: _Taking, policy: PolicySnapshot, part: Part) -> None:
        running, results = taking.running, taking.results
        taking.results = []
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

    def __init__(self, running: RunningWork, names: dict[int, str], rates: Rates | None, factor: float) -> None:
        self.running = running
        self.names = names
        """Of the lines that have no answer yet."""
        self.results: list[LineResult] = []
        self._prefix = line_id(running.work.job.id, 0)[:-6]
        self._rates = rates
        self._factor = factor

    def take(self, text: bytes | None) -> None:
        """Takes a line of a provider's file; None: one that is too long to be looked at."""
        answer = read_answer(text, self._prefix) if text is not None else None
        if answer is not None and answer.number in self.names:
            self.results.append(self._result(answer, self.names.pop(answer.number)))

    def _result(self, answer: ProviderAnswer, custom_id: str) -> LineResult:
        who = LineIdentity(answer.number, line_id(self.running.work.job.id, answer.number), custom_id)
        usage, usd = answer.usage, None
        if usage is not None:
            usd = cost_usd(self._rates, usage.input, usage.output, usage.cached)
        return answered_line(
            who, answer.status, who.id, answer.body, usage, None if usd is None else usd * self._factor
        )


def _rates(policy: PolicySnapshot, model_name: str, part: Part) -> Rates | None:
    """Returns the price of the part's model; None: not priced, or its target is no longer in the config."""
    model = policy.find_model(model_name)
    targets = () if model is None else model.targets
    return next((one.find_rates(part.model) for one in targets if one.name == part.target), None)
