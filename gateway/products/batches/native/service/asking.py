"""What is asked of a provider for a part, and what is looked for there. It must not know what is kept of the part."""

from __future__ import annotations

from gateway.core.clock import Clock
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.products.batches.input.chunks import lines_of
from gateway.products.batches.native.formats.remote import NotToldYet
from gateway.products.batches.native.lines.answers.input import WrittenInput
from gateway.products.batches.native.lines.lines import number_of
from gateway.products.batches.native.rules import part as parts
from gateway.products.batches.native.rules.events import BatchThere, Done, FileThere, NotListed, PartEvent, Unsure
from gateway.products.batches.native.rules.part import Part, PartPhase
from gateway.products.batches.output.marks import ENDPOINT, parts_of, plan_of
from gateway.products.jobs.calls.ports.ports import ProviderBatches
from gateway.products.jobs.model.ids import line_id
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.store.blobs import Blobs

LAG_S = 3600.0
"""A provider's clock may be so far behind ours."""


class Moment:
    """The time within which something that is about to be noted may be asked."""

    def __init__(self, clock: Clock) -> None:
        """It begins now, before the note: nobody can have seen that any earlier."""
        self._clock = clock
        self._began = clock.monotonic(), clock.wall()

    def lasts(self, within_s: float = parts.SENT_WITHIN_S) -> bool:
        """Tells whether it is not over, by either clock: a machine that sleeps, or is moved, may stop one of them."""
        now = self._clock.monotonic(), self._clock.wall()
        return all(at - began <= within_s for at, began in zip(now, self._began, strict=True))


class ProviderAsking:
    """Asks providers, one thing at a time. Holds nothing of any part."""

    def __init__(self, blobs: Blobs, batches: ProviderBatches) -> None:
        self._blobs = blobs
        self._batches = batches

    async def ask(
        self, job: Job, part: Part, provider: Provider, source: WrittenInput | None, moment: Moment
    ) -> PartEvent:
        """Has the provider do what is noted; `source` is the input, where that is to be sent.

        Raises ProviderRefused, Unreachable, NeverSent.
        """
        if source is not None and part.is_inline:
            content = self._blobs.read(source.blob)
            made = self._batches.submit(provider, source.size, content, lambda: moment.lasts(parts.INLINE_SENT_S))
            return BatchThere(await made)
        if source is not None:
            content = self._blobs.read(source.blob)
            return FileThere(await self._batches.upload(provider, part.filename, source.size, content))
        url = url_of(job, provider)
        return BatchThere(await self._batches.create(provider, part.file, url, part.name, moment.lasts))

    async def look(self, job: Job, chunk: int, part: Part, provider: Provider) -> PartEvent:
        """Sees what has become of what was asked, or does what may be done twice. Raises ProviderRefused, Unreachable."""
        batches, not_before = self._batches, part.since - LAG_S
        match part.phase:
            case PartPhase.UPLOADING:
                file = await batches.find_file(provider, part.filename, not_before)
                return NotListed() if file is None else FileThere(file)
            case PartPhase.RECALLING if not part.is_asked:
                await batches.remove(provider, part.file)
                return Done()
            case PartPhase.TIDYING:
                await self._tidy(part, provider)
                return Done()
            case PartPhase.CANCELLING if not part.is_asked:
                await batches.cancel(provider, part.batch)
                return Done()
        if part.batch and (part.is_inline or part.misses < parts.VANISHED):
            return BatchThere(await batches.look(provider, part.batch))
        if part.is_inline:
            return await self._find_submitted(job, chunk, part, provider)
        found = await batches.find_batch(provider, part.name, part.file, not_before)
        return NotListed() if found is None else BatchThere(found)

    async def _find_submitted(self, job: Job, chunk: int, part: Part, provider: Provider) -> PartEvent:
        """Looks for a batch that has no name of ours: by its lines, among those of the time."""
        prefix, numbers = line_id(job.id, 0)[:-6], lines_of(plan_of(job), chunk)
        others = {str(mark.get("batch")) for number, mark in parts_of(job).items() if number != chunk}
        try:
            found = await self._batches.find_submitted(
                *(provider, lambda name: number_of(name, prefix) in numbers, part.lines, others, part.since - LAG_S)
            )
        except NotToldYet as why:
            return Unsure(str(why))
        return NotListed() if found is None else BatchThere(found)

    async def _tidy(self, part: Part, provider: Provider) -> None:
        """Removes the part's files at the provider, or its batch, where that is all there is."""
        if part.is_inline:
            if part.batch:
                await self._batches.remove(provider, part.batch)
            return
        file = part.file or await self._batches.find_file(provider, part.filename, part.since - LAG_S)
        for one in (file, part.output, part.errors):
            if one:
                await self._batches.remove(provider, one)


def url_of(job: Job, provider: Provider) -> str:
    """Returns the endpoint as the provider spells it: Azure's has no `/v1`."""
    endpoint = str(job.about[ENDPOINT])
    return endpoint.removeprefix("/v1") if provider.dialect == "azure" else endpoint
