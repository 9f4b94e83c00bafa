"""A stage whose batches may go to scripted providers' own Batch APIs, and whose worker may die at any step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

import orjson
import yaml

from gateway.core.config.load import load_snapshot
from gateway.core.snapshot import Key, Policies, PolicySnapshot
from gateway.core.types import Upstream
from gateway.dialects.config import DialectLanguages
from gateway.dialects.upstream import Languages
from gateway.features.run_port import RunPort, ServedLines
from gateway.features.runs.rules import RunChange, lines_change
from gateway.products.batches.chunk import ChunkRunner
from gateway.products.batches.input import IndexEntry, pack_entry
from gateway.products.batches.native.formats import ProviderBatches
from gateway.products.batches.native.rules import plan_parts
from gateway.products.batches.native.service import NativeParts, PartCharges
from gateway.products.batches.output import INDEX, INPUT, LINES_PER_CHUNK, MODELS, NATIVE, PARALLEL
from gateway.products.jobs.calls import CallServer
from gateway.products.jobs.model import CHECK, FINALISE, ClaimedWork, Job, JobEnd, JobKind, JobState
from gateway.products.jobs.rules import BatchRules, JobRules, NativeRules, SegmentRules
from gateway.products.jobs.worker import JobWorker, RunningWork
from gateway.sections import SECTIONS
from tests.products.batches.native.inline_provider import InlineBatches
from tests.products.batches.native.native_provider import Lies, ScriptedBatches
from tests.support.flow import FakeClock
from tests.support.stage import Stage
from tests.support.virtual import LoopClock

PRICE_USD = (3 * 1.0 + 2 * 2.0) / 1e6 * 0.5
"""Of a line at half price."""
CHARGED_USD = 0.01
"""A line is reckoned with so much, at the usual price."""


@cache
def snapshot(*names: str, languages: Languages | None = None) -> PolicySnapshot:
    """A model `m` at three providers, of which one has no credential, or at those that are named."""
    languages = languages or Languages(FakeClock(), lambda: "id")
    price = {"price": {"input_usd_per_million": 1.0, "output_usd_per_million": 2.0}}
    config = {
        "providers": {
            "openai": {
                "dialect": "openai",
                "kind": "openai",
                "base_url": "http://127.0.0.1:9/v1",
                "api_key": "sk-one-canary-1f0e9d8c",
            },
            "azure": {"dialect": "azure", "base_url": "http://127.0.0.1:8", "api_key": "two-canary-1f0e9d8c7b"},
            "bare": {"dialect": "openai", "base_url": "http://127.0.0.1:7/v1"},
            "claude": {"dialect": "anthropic", "base_url": "http://127.0.0.1:6", "api_key": "sk-ant-canary-1f0e9d8c"},
        },
        "models": {
            "m": {
                "targets": [
                    {"provider": name, "model": f"{name}-m", **price} for name in names or ("openai", "azure", "bare")
                ]
            }
        },
        "keys": [{"name": "web", "key": "web-canary-key-0123456789abcdef", "budget_usd_per_day": 100, "tenant": "t"}],
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        connect, converse = _no_upstream, languages.conversing
        return load_snapshot(
            path,
            {},
            sections=SECTIONS,
            languages=DialectLanguages(),
            connect=connect,
            converse=converse,
            version=1,
            now_wall=0.0,
        )


def _no_upstream(_provider: Any, _model: Any) -> Upstream:
    return cast(Upstream, SimpleNamespace(errors=()))


def native_rules(*, part_lines: int = 10, **changes: Any) -> JobRules:
    """Returns rules under which batches go to providers in small parts."""
    native = NativeRules(min_lines=1, part_lines=part_lines, **changes)
    batches = BatchRules(window=8, run="native", native=native)
    return JobRules(segments=(SegmentRules("all", concurrency=20),), batches=batches)


class CountedLines(RunPort):
    """Runs that note what is added to them."""

    def __init__(self, added: list[tuple[str, str, RunChange]]) -> None:
        self._added = added

    def lines_served(self, tenant: str, run: str, lines: ServedLines) -> None:
        self._added.append((tenant, run, lines_change(lines)))


@dataclass
class Life:
    """The life of a process, which ends before or after the `last`-th thing that it does to the world."""

    last: int = -1
    steps: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)
    graves: list[asyncio.Future[None]] = field(default_factory=list)
    is_buried: bool = False

    async def step(self) -> None:
        """Counts; never returns once the process is dead."""
        self.steps += 1
        if self.steps == self.last:
            self.over.set()
        if self.over.is_set():
            await self.for_ever()

    async def for_ever(self) -> None:
        """Never returns; what waits here is not collected, which would be another way to end."""
        if self.is_buried:
            raise asyncio.CancelledError
        grave = asyncio.get_running_loop().create_future()
        self.graves.append(grave)
        await grave


class Mortal:
    """An object whose methods do nothing once the process is dead, and which may die before or after each of them."""

    def __init__(self, inner: Any, life: Life, counted: tuple[str, ...]) -> None:
        self._inner, self._life, self._counted = inner, life, counted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "content":
            return self._content
        if not asyncio.iscoroutinefunction(found):
            return found

        async def done(*args: Any, **kwargs: Any) -> Any:
            if name not in self._counted:
                if self._life.over.is_set():
                    await self._life.for_ever()
                return await found(*args, **kwargs)
            await self._life.step()
            result = await found(*args, **kwargs)
            await self._life.step()
            return result

        return done

    async def _content(self, *args: Any) -> AsyncIterator[bytes]:
        async for part in self._inner.content(*args):
            await self._life.step()
            yield part


class Accounts:
    """Books what was paid, and what is charged."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.usd = 0.0
        self.charged = 0.0
        self.most_charged = 0.0
        self.outlives = False
        self.spent = False

    async def charge(self, key: Key, usd: float) -> int | None:
        assert key.budget_usd_per_day is not None
        if self.usd + self.charged + usd > key.budget_usd_per_day:
            return None
        self.correct(key.name, self.today(), usd)
        return self.today()

    def today(self) -> int:
        return int(self._clock.wall() // 86_400)

    def correct(self, _key: str, day: int, usd: float) -> None:
        if day != self.today():  # as `KeyBudgets` does
            usd = max(usd, 0.0)
        self.charged += usd
        self.most_charged = max(self.charged, self.most_charged)

    def is_spent(self, _key: Key) -> bool:
        return self.spent

    def paid(self, _key: Key, usd: float) -> None:
        self.usd += usd


WRITES = ("note", "commit", "give_back", "complete_chunk", "finish", "begin_lines")
EFFECTS = ("upload", "create", "look", "cancel", "remove", "find_batch", "find_file", "submit", "find_submitted")


class NativeStage(Stage):
    """A stage with providers; each of its workers is a process of its own."""

    def __init__(
        self,
        clock: LoopClock,
        lies: Lies | None = None,
        rules: JobRules | None = None,
        *,
        is_inline: bool = False,
        **more: Any,
    ) -> None:
        self.provider = (InlineBatches if is_inline else ScriptedBatches)(clock, lies or Lies())
        self.policies = Policies(snapshot("claude") if is_inline else snapshot())
        self.accounts = Accounts(clock)
        self.price_usd: Callable[[], float] = lambda: CHARGED_USD
        self.lives: list[Life] = []
        self.runs: list[tuple[str, str, RunChange]] = []
        """What was added to runs."""
        if is_inline:
            more["endpoint"] = "/v1/messages"
        super().__init__(clock, rules=rules or native_rules(), **more)
        self.begin_life()

    def begin_life(self, last: int = -1) -> JobWorker:
        """Begins another process, on what the last one has left behind."""
        for kept in self.store._jobs.values():
            for piece in kept.pieces.values():
                if piece.state == "claimed":
                    piece.state = "ready"
            self.store._pieces._withhold(kept, self.clock.wall())
            self.store._pieces.stop_if_requested(kept, self.clock.wall())
        life = self.life = Life(last)
        self.lives.append(life)
        store: Any = Mortal(self.store, life, WRITES)
        batches: ProviderBatches = cast(Any, Mortal(self.provider, life, EFFECTS))
        server = CallServer(self.make_call, self.serve, self.clock)
        chunks = self.chunks = ChunkRunner(store, self.blobs, server, self.clock, self._rules_of, lambda: 1.0)
        if not self.accounts.outlives:
            self.accounts.charged = 0.0
        charges = PartCharges(
            self.blobs, self.accounts, self.make_call, lambda _call: self.price_usd(), self._rules_of, self.clock
        )
        parts = self.parts = NativeParts(
            *(store, self.blobs, batches, self.accounts, charges, self.policies),
            *(self.clock, self._rules_of, chunks.run, CountedLines(self.runs)),
        )

        async def run(running: RunningWork) -> None:
            work = running.work
            if work.piece == CHECK:
                await self._check(work)
            elif work.piece == FINALISE:
                if await parts.wind_up(running):
                    await self._put_together(store, running)
            else:
                await parts.run(running)

        self.worker = JobWorker(store, run, self.clock, lambda: self.rules.segments, self.meter)
        return self.worker

    async def _put_together(self, store: Any, running: RunningWork) -> None:
        job = running.work.job
        late = [orjson.loads(result.text) for result in await self.store.open_results(running.work)]
        self.lines[job.id] = await self._read_chunks(job.id) + late
        await running.finish(store, JobEnd(job.ends_as or JobState.SUCCEEDED))

    async def _check(self, work: ClaimedWork) -> None:
        job = work.job
        text = b"".join([part async for part in self.blobs.read(job.about[INPUT])])
        offset, index = 0, []
        for line in text.splitlines():
            index.append(pack_entry(IndexEntry(offset, len(line), 0)))
            offset += len(line) + 1
        await self.write_blob("index", b"".join(index))
        plan = plan_parts(self.policies.current, job, ["m"], len(index), self.rules.batches)
        assert plan is not None
        marks = {INDEX: "index", LINES_PER_CHUNK: plan.lines_per_chunk, PARALLEL: plan.parallel}
        await self.store.begin_lines(work, plan, {**marks, NATIVE: True, MODELS: ["m"]})

    async def end_of(self, id: str = "job_1", within_s: float = 10_000.0) -> Job:
        """Waits until a job has ended; looks less often than others, because parts take their time."""
        ends_at = self.clock.monotonic() + within_s
        while (job := await self.store.find(id, None)) is None or not job.state.is_end:
            assert self.clock.monotonic() < ends_at, f"it has not ended: {job}"
            self.store.tick()
            await asyncio.sleep(2)
        return job

    async def ended(self, within_s: float = 20_000.0) -> Job:
        """Waits until the batch has ended; every line has one result then, and the counts are those of the lines."""
        job = await self.end_of("batch_1", within_s)
        assert job.kind is JobKind.BATCH
        names = Counter(line["custom_id"] for line in self.lines["batch_1"])
        assert set(names.values()) <= {1}, f"some lines have two results: {names}"
        if job.state is JobState.SUCCEEDED:
            assert names.keys() == {f"c{number}" for number in range(job.tally.total)}
            assert job.tally.completed + job.tally.failed == job.tally.total
        await self._bury()
        return job

    async def _bury(self) -> None:
        """Ends all that has not ended by itself, of dead processes and of the last one."""
        for life in self.lives:
            life.is_buried = True
            life.over.set()
        for _ in range(3):
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=1)

    @property
    def left_behind(self) -> set[str]:
        """The files that are still at the provider."""
        return self.provider.files.keys() - self.provider.removed
