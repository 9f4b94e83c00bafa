"""The lines of a part at a provider's own Batch API: in its words on their way there, and what it has answered, into the store.

In this order: lines in the words of the provider; its input file; and its answers, which are read as they come, committed some
lines at a time, and paid for once. What a provider says of its own files is not believed: a line is answered when its answer
is there. Invariants: an answer counts for the line that it names, once; what was committed before a file broke off stays.
"""

from __future__ import annotations

import asyncio
import logging
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import count
from typing import Final, NamedTuple

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.ledger import usage_usd
from gateway.core.openai.bodies import count_answers
from gateway.core.openai.json_edit import with_model
from gateway.core.openai.sse import json_object
from gateway.core.openai.usage import (
    LONGEST_ANSWER,
    estimate_answer,
    estimate_input_tokens,
    filled,
    most_output,
    plausible,
)
from gateway.core.request_fields import max_tokens_of
from gateway.core.snapshot import PolicySnapshot, Provider, Rates
from gateway.core.types import How, Phase, UpstreamFailed, Usage
from gateway.dialects.base import ServerFacts
from gateway.dialects.issuers import LANGUAGES
from gateway.dialects.registry import PATHS, Pair, pair_of
from gateway.dialects.shapes import for_openai
from gateway.dialects.target_languages import Conversion, TargetLanguages
from gateway.dialects.upstream import ConversationWire
from gateway.drivers.outward import Unreachable
from gateway.products.batches.input import MOST_LINE_BYTES, ChunkInput, InputLine, LineCutter, key_named
from gateway.products.batches.input import lines_of as numbers_of
from gateway.products.batches.native.formats import (
    NativeAccounts,
    ProviderAnswer,
    ProviderBatches,
    ProviderRefused,
    part_line,
    read_answer,
    read_result,
)
from gateway.products.batches.native.rules import Part
from gateway.products.batches.output import ENDPOINT, MODELS, LineIdentity, answered_line, part_blob, plan_of
from gateway.products.jobs.dead_letters.rules import DEAD_CLASSES
from gateway.products.jobs.lines import read_custom_id, read_line
from gateway.products.jobs.model import FINALISE, Job, LineResult, line_id
from gateway.products.jobs.rules import USUAL_FACTOR, BatchRules
from gateway.products.jobs.store import Blobs, JobStore
from gateway.products.jobs.worker import RunningWork, committed

# --- lines in the words of their provider, and its answers in those of the lines' owner ---

MESSAGES: Final = "messages"
BATCH: Final = "batch"
"""The service tier that lines have at a provider's Batch API."""


class TranslatedLine(NamedTuple):
    """A line as the provider gets it, and what it loses on the way: fields, and how."""

    text: bytes
    lost: tuple[tuple[str, str], ...] = ()


class LineTranslator:
    """Translates the lines of one part. Made anew for each use: the policy in force says how.

    A target's own edits of bodies are made as for calls. Where a line cannot be expressed there, or only with a loss that its
    model's policy refuses, it is none of the part: it runs here, along the plan, or fails as a call would.
    """

    def __init__(self, policy: PolicySnapshot, job: Job, part: Part, url: str, now: float) -> None:
        """`url` is the endpoint as the provider spells it, `now` wall-clock seconds."""
        model = policy.find_model(job.marks[MODELS][0])
        targets = () if model is None else model.targets
        self._target = next((one for one in targets if one.name == part.target), None)
        self._refuses_loss = model is not None and model.on_loss == "refuse"
        self._part = part
        self._url = url
        self._now = now
        path = str(job.about[ENDPOINT]).removeprefix("/v1")
        self._requests = next((name for name, known in PATHS.items() if known == path), "")
        self._conversion = self._converting() if part.is_inline and self._requests != MESSAGES else None
        self.lost: Counter[tuple[str, str]] = Counter()
        """By field, and how it is lost, the number of lines that have lost it."""

    @property
    def converts(self) -> bool:
        """Returns whether answers are in other words than their owner's."""
        return self._conversion is not None

    def line(self, line_id: str, body: bytes) -> bytes | None:
        """Returns a line of the part without what separates it from the next; None: it cannot be expressed there."""
        line = self._translated(line_id, with_model(body, self._part.model))
        if line is None:
            return None
        line = self._fitted(line)
        if line is None:
            return None
        self.lost.update(line.lost)
        if not self._part.is_inline:
            return part_line(line_id, self._url, line.text, self._part.model)
        return b'{"custom_id":%b,"params":%b}' % (orjson.dumps(line_id), line.text.translate(None, b"\r\n"))

    def answer(self, line_id: str, body: bytes, provider_answer: ProviderAnswer) -> bytes | None:
        """Returns an answer in the words of the line, whose body is `body`; None: it is none that can be read."""
        if self._conversion is None:
            return provider_answer.body
        if provider_answer.status >= 400:
            return (
                for_openai(provider_answer.status, provider_answer.body, self.class_of(provider_answer))
                or provider_answer.body
            )
        answer = self._edited(with_model(body, self._part.model)) if body else None
        if answer is None:
            return None
        pair = self._conversion.pair
        try:
            sent, _, _ = pair.request(answer.text, self._facts(pair), self._now, _ids(line_id))
            made = pair.answer(sent, provider_answer.body)
        except (InvalidRequest, UpstreamFailed):
            return None
        return made

    def _converting(self) -> Conversion:
        """Returns what the target's calls of this endpoint are converted by; where it is gone, what any such target's are."""
        found = None if self._target is None else self._target.gaps.get(self._requests)
        if isinstance(found, Conversion) and found.pair.target == MESSAGES:
            return found
        language = TargetLanguages("anthropic", frozenset((MESSAGES,)), "anthropic")
        return Conversion(pair_of(self._requests, MESSAGES), language, self._part.model)

    def _translated(self, line_id: str, body: bytes) -> TranslatedLine | None:
        edited = self._edited(body)
        if edited is None or self._conversion is None:
            return edited
        pair = self._conversion.pair
        try:
            _, made, gaps = pair.request(
                edited.text, self._facts(pair), self._now, _ids(line_id), refuses_loss=self._refuses_loss
            )
        except InvalidRequest:
            return None
        return TranslatedLine(made, (*edited.lost, *((gap.field, str(gap.how)) for gap in gaps)))

    def _edited(self, body: bytes) -> TranslatedLine | None:
        edits = None if self._target is None else self._target.edits
        if edits is None:
            return TranslatedLine(body)
        made, dropped = edits.apply(body)
        lost = tuple((name, str(How.DROPPED)) for name in dropped)
        return None if dropped and self._refuses_loss else TranslatedLine(made, lost)

    def _fitted(self, line: TranslatedLine) -> TranslatedLine | None:
        """Returns the line as a call's body goes there: without what others signed, which counts as lost."""
        language = MESSAGES if self._part.is_inline else self._requests
        wire = None if self._target is None else self._target.upstream
        if not isinstance(wire, ConversationWire) or language not in LANGUAGES.values():
            return line
        made, gaps = wire.fit(line.text, language)
        if gaps and self._refuses_loss:
            return None
        return TranslatedLine(made, (*line.lost, *((gap.field, str(gap.how)) for gap in gaps)))

    def _facts(self, pair: Pair) -> ServerFacts:
        assert self._conversion is not None  # noqa: S101  # who asks has one
        return self._conversion.languages.facts(pair, self._part.model)

    def class_of(self, provider_answer: ProviderAnswer) -> str | None:
        """Returns the class of an error, by the same table as that of calls; None: its target is no longer in the config."""
        if self._target is None:
            return None
        table = self._target.errors
        return table.diagnose(Phase.ANSWERED, provider_answer.status, [], provider_answer.body, self._now).error_class


def _ids(line_id: str) -> Callable[[], str]:
    """Returns what makes new ids, the same ones for the same line."""
    numbers = count()
    return lambda: blake2b(b"%d %b" % (next(numbers), line_id.encode()), digest_size=12).hexdigest()


# --- the input file of a provider, and what each line's owner calls it: read from the batch's own input ---

AT_ONCE = 64
"""The lines that are worked on before others are served."""
LARGE_BYTES = 65_536
"""The length of a line that is work enough at once."""
THREAD_BYTES = 1_000_000
"""A longer one is put into other words by a thread."""


class WrittenInput(NamedTuple):
    """What a provider is to get."""

    blob: str
    size: int
    lines: int


async def write_input(
    blobs: Blobs, job: Job, chunk: int, has_result: Collection[int], wording: LineTranslator, *, is_inline: bool
) -> WrittenInput:
    """Writes a chunk's lines without results as a provider gets them, in a file or as one request.

    Raises JobsUnavailable; FileNotFoundError and ValueError where the batch's input is not what it was.
    """
    name = part_blob(job.id, chunk)
    writer = await blobs.writer(name)
    before, between, after = (b'{"requests":[', b",\n", b"]}\n") if is_inline else (b"", b"", b"")
    written = 0
    try:
        await writer.write(before)
        async for lines in unanswered_lines(blobs, job, chunk, has_result):
            texts = [text for line in lines if (text := await _text_of(job, line, wording)) is not None]
            if texts:
                await writer.write((between if written else b"") + between.join(texts))
            written += len(texts)
        await writer.write(after)
        return WrittenInput(name, await committed(writer), written)
    finally:
        await writer.abort()


async def _text_of(job: Job, line: InputLine, wording: LineTranslator) -> bytes | None:
    """Returns one line in the provider's words; a long one is not worked on at one go with others."""
    name, body = line_id(job.id, line.number), read_line(line.text).body
    if not wording.converts or len(body) < LARGE_BYTES:
        return wording.line(name, body)
    await asyncio.sleep(0)
    return wording.line(name, body) if len(body) < THREAD_BYTES else await asyncio.to_thread(wording.line, name, body)


async def custom_ids(blobs: Blobs, job: Job, chunk: int, has_result: Collection[int]) -> dict[int, str]:
    """Returns the custom_ids of a chunk's lines without results, by their numbers. Raises as `write_input` does."""
    found = {}
    async for lines in unanswered_lines(blobs, job, chunk, has_result):
        found.update({line.number: read_custom_id(line.text) for line in lines})
    return found


async def bodies(blobs: Blobs, job: Job, chunk: int, numbers: Collection[int]) -> AsyncIterator[tuple[int, bytes]]:
    """Yields the bodies of some of a chunk's lines, with their numbers. Raises as `write_input` does."""
    others = set(numbers_of(plan_of(job), chunk)) - set(numbers)
    async for lines in unanswered_lines(blobs, job, chunk, others):
        for line in lines:
            yield line.number, read_line(line.text).body


async def unanswered_lines(
    blobs: Blobs, job: Job, chunk: int, has_result: Collection[int]
) -> AsyncIterator[list[InputLine]]:
    """Yields a chunk's lines without results, some at a time. Raises as `write_input` does."""
    lines = ChunkInput(blobs, job, chunk)
    await lines.open(has_result)
    while some := await lines.next_lines(AT_ONCE):
        yield some
        await asyncio.sleep(0)


# --- the answers of a provider ---

log = logging.getLogger("gateway.jobs")


MOST_AT_ONCE, MOST_BYTES = 2048, 8 * 1024 * 1024
"""Answers, and bytes of them, that are put into other words together: the input is read once for all of these."""


class ClaimLost(Exception):
    """Another worker has the piece now."""


class ProviderAnswers:
    """Fetches and commits what providers have answered."""

    def __init__(
        self,
        store: JobStore,
        blobs: Blobs,
        batches: ProviderBatches,
        accounts: NativeAccounts,
        add_to_run: Callable[[Job, Sequence[LineResult]], None],
    ) -> None:
        """`add_to_run` adds results to the run of their batch before they are committed."""
        self._add_to_run = add_to_run
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
        wording: LineTranslator,
        rules: BatchRules,
    ) -> None:
        """Commits what a part has brought, as `wording` puts it.

        Lines that failed for what an operator has to mend have no result by that: they are held here until it is mended.

        Raises ProviderRefused, Unreachable, JobsUnavailable, ClaimLost.
        """
        rates = _rates(policy, running.work.job.marks[MODELS][0], part)
        taking = _ResultCollector(running, chunk, await self._names(running, chunk), wording, rates, rules)
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

    async def _read(
        self, taking: _ResultCollector, content: AsyncIterator[bytes], policy: PolicySnapshot, part: Part
    ) -> None:
        cutter = LineCutter(MOST_LINE_BYTES)
        async for piece in content:
            for _, text in cutter.feed(piece):
                taking.take(text)
                if taking.is_enough:
                    await self._commit(taking, policy, part)
        for _, text in cutter.end():
            taking.take(text)

    async def _commit(self, taking: _ResultCollector, policy: PolicySnapshot, part: Part) -> None:
        answers, bodies_of = taking.answers, await self._bodies(taking)
        taking.answers, taking.size = [], 0
        results = []
        for answer in answers:
            result = taking.result(answer, bodies_of.get(answer.number, b""))
            if result is not None:
                results.append(result)
            if len(results) >= AT_ONCE:
                await self._commit_some(taking, results, policy, part)
                results = []
        await self._commit_some(taking, results, policy, part)

    async def _bodies(self, taking: _ResultCollector) -> dict[int, bytes]:
        """Returns what was asked for what is to be put into its words, by the lines' numbers."""
        numbers = {
            answer.number
            for answer in taking.answers
            if taking.wording.converts or not taking.is_reported(answer.usage)
        }
        if not numbers:
            return {}
        try:
            return {
                number: body
                async for number, body in bodies(self._blobs, taking.running.work.job, taking.chunk, numbers)
            }
        except (FileNotFoundError, ValueError):
            log.exception("job %s: its input cannot be read any more", taking.running.work.job.id)
            return {}

    async def _commit_some(
        self, taking: _ResultCollector, results: list[LineResult], policy: PolicySnapshot, part: Part
    ) -> None:
        if not results:
            return
        running, work = taking.running, taking.running.work
        self._add_to_run(work.job, results)
        if not await running.write(lambda: self._store.commit(work, results)):
            raise ClaimLost
        key, model = key_named(policy, work.job.key), policy.find_model(work.job.marks[MODELS][0])
        if key is not None:
            self._accounts.paid(key, sum(result.cost_usd for result in results))
        if running.meter is not None:
            running.meter.lines(results)
            running.meter.paid(model.name if model else "", part.target, work.job.key, results, taking.estimated)
        await asyncio.sleep(0)


class _ResultCollector:
    """The answers of one part on their way."""

    def __init__(
        self,
        running: RunningWork,
        chunk: int,
        names: dict[int, str],
        wording: LineTranslator,
        rates: Rates | None,
        rules: BatchRules,
    ) -> None:
        self.running = running
        self.chunk = chunk
        self.names = names
        """The names of the lines that have no answer yet."""
        self.wording = wording
        self.is_inline = False
        self.answers: list[ProviderAnswer] = []
        self.size = 0
        """The bytes of the answers."""
        self.estimated: set[int] = set()
        """The lines whose usage rests on an estimate."""
        self._taken: set[int] = set()
        self._prefix = line_id(running.work.job.id, 0)[:-6]
        self._has_output = running.work.job.about[ENDPOINT] not in ("/v1/embeddings", "/v1/moderations")
        self._rates = rates
        self._factor, self._held = rules.native.price_factor, rules.brake_classes | DEAD_CLASSES

    def is_reported(self, usage: Usage | None) -> bool:
        """Returns whether a provider has reported both what a line has read and written, in numbers that can be right."""
        return usage is not None and usage.input > 0 and (0 < usage.output <= LONGEST_ANSWER or not self._has_output)

    def take(self, text: bytes | None) -> None:
        """Takes a line of a provider's file; None: one that is too long to be looked at."""
        read = read_result if self.is_inline else read_answer
        answer = read(text.removeprefix(BOM_UTF8), self._prefix) if text is not None else None
        if answer is not None and answer.number in self.names and answer.number not in self._taken:
            self._taken.add(answer.number)
            self.answers.append(answer)
            self.size += len(answer.body)

    @property
    def is_enough(self) -> bool:
        """Returns whether so much has come that it is time to commit: more, where the input has to be read for it."""
        return len(self.answers) >= (MOST_AT_ONCE if self.wording.converts else AT_ONCE) or self.size >= MOST_BYTES

    def result(self, answer: ProviderAnswer, request: bytes) -> LineResult | None:
        """Returns the result of a line; None: its answer cannot be read, or may be mended here: it runs here."""
        if answer.status >= 400 and self.wording.class_of(answer) in self._held:
            return None
        who = LineIdentity(answer.number, line_id(self.running.work.job.id, answer.number), self.names[answer.number])
        body = self.wording.answer(who.id, request, answer)
        if body is None:
            return None
        del self.names[answer.number]
        usage = answer.usage
        if answer.status == 200 and not self.is_reported(usage):
            usage = _estimated(usage, request, answer.body)
        if usage is not None and usage.estimated:
            self.estimated.add(answer.number)
        usd = None if usage is None else batch_usd(self._rates, usage, self._factor)
        return answered_line(who, answer.status, who.id, body, usage, usd)


def batch_usd(rates: Rates | None, usage: Usage, factor: float | None) -> float | None:
    """Returns what a line costs at a provider's Batch API; None: not priced.

    `factor` is a part of the usual price; None: by the price list's own prices of batches, where it has them.
    """
    if factor is None and rates is not None and BATCH in rates.by_tier:
        return usage_usd(rates, replace(usage, tier=BATCH))
    usd = usage_usd(rates, replace(usage, tier=""))
    return None if usd is None else usd * (USUAL_FACTOR if factor is None else factor)


def _estimated(answer: Usage | None, request: bytes, answered: bytes) -> Usage:
    """Returns what a line has used, estimated where its provider reports nothing, or far more than the line allows."""
    body = json_object(request) or {}
    if answer is not None:
        answer = plausible(answer, most_output(max_tokens_of(body), count_answers(body)))
    return filled(answer, Usage(estimate_input_tokens(request, body), estimate_answer(answered), estimated=True))


def _rates(policy: PolicySnapshot, model_name: str, part: Part) -> Rates | None:
    """Returns the price of the part's model; None: not priced, or its target is no longer in the config."""
    model = policy.find_model(model_name)
    targets = () if model is None else model.targets
    return next((one.find_rates(part.model) for one in targets if one.name == part.target), None)
