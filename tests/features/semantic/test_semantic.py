"""A question in other words gets the answer of the one it means the same as, and nothing that fails here fails a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import cast

import pytest

from gateway.core.call import Call
from gateway.core.ports import Later
from gateway.features.outcome import OUTCOME, CacheOutcome
from gateway.features.reuse.rules import SemanticRule
from gateway.features.reuse.similar import SemanticQuery
from gateway.features.semantic import lookup, vectors
from gateway.features.semantic.guards import facts_of
from gateway.features.semantic.index import VectorIndex
from gateway.features.semantic.lookup import (
    LATE,
    MOST_CANDIDATES,
    NO_VECTOR,
    NOT_LOADED,
    ROWS_AT_ONCE,
    TOO_LONG,
    Semantic,
)
from gateway.features.semantic.question import MOST_CHARS, EmbeddingFailed
from gateway.features.semantic.store import VectorRow, Vectors
from gateway.features.semantic.vectors import FEW_ROWS, FIRST_PAUSE_S, MOST_LATE, SHORT_CHARS, Background, result_by
from tests.support.flow import Bench, FakeClock

WAIT_S = 0.2
RULE = SemanticRule("embedder", threshold=0.9, ttl_s=3600.0, max_entries=2000, wait_s=WAIT_S)
PARTITION = sha256(b"partition").digest()
KEY, OTHER_KEY = sha256(b"answer").digest(), sha256(b"another answer").digest()
PASSWORD = "How do I reset my password?"
FORGOTTEN = "How can I reset my password?"
WEATHER = "What is the weather in Rome?"
RELATED = "Reset of passwords: how?"
DIRECTIONS = {
    PASSWORD: [1.0, 0.0, 0.0],
    FORGOTTEN: [0.99, 0.1, 0.0],
    RELATED: [0.6, 0.8, 0.0],
    WEATHER: [0.0, 0.0, 1.0],
}
"""How the scripted model sees the questions of these tests."""


class ScriptedEmbedder:
    """Knows a few questions; can be made to wait, to fail, or to have nothing to say."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None
        self.fails: Exception | None = None

    async def embed(self, text: str, call: Call) -> Sequence[float] | None:
        self.asked.append(text)
        if self.gate is not None:
            await self.gate.wait()
        if self.fails is not None:
            raise self.fails
        return DIRECTIONS.get(text, [0.0, 1.0, 0.0]) if text != "unspeakable" else None


@dataclass
class Rows:
    """A store of rows; what it says comes at once, or when `held` is resolved."""

    rows: dict[tuple[bytes, bytes], VectorRow] = field(default_factory=dict)
    loads: int = 0
    held: asyncio.Future[None] | None = None

    def configure(self, most: int) -> None:
        """It has no bound."""

    def add(self, row: VectorRow) -> None:
        self.rows[row.partition, row.id] = row

    def load(self, partition: bytes, most: int) -> Later[Sequence[VectorRow]]:
        self.loads += 1
        found = [row for (where, _), row in self.rows.items() if where == partition][-most:]
        if self.held is None:
            return found
        return asyncio.ensure_future(self._when_let_go(self.held, found))

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> None:
        for id in ids:
            self.rows.pop((partition, id), None)

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        gone = [
            name
            for name, row in self.rows.items()
            if key in (None, row.id) and model in (None, row.model) and tenant in (None, row.tenant)
        ]
        for name in gone:
            del self.rows[name]
        if self.held is None:
            return len(gone)
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        told.set_result(len(gone))
        return told

    async def _when_let_go(self, held: asyncio.Future[None], found: list[VectorRow]) -> Sequence[VectorRow]:
        await asyncio.shield(held)
        return found


def why_of(call: Call) -> list[str]:
    """What is told of the look for an answer."""
    outcome = OUTCOME.find(call)
    assert outcome is not None
    return outcome.why


@dataclass
class World:
    """A semantic cache with a scripted model, a clock moved by hand, and calls to ask it with."""

    clock: FakeClock = field(default_factory=FakeClock)
    embedder: ScriptedEmbedder = field(default_factory=ScriptedEmbedder)
    store: Rows = field(default_factory=Rows)
    index: VectorIndex = field(default_factory=VectorIndex)

    def __post_init__(self) -> None:
        self.semantic = self.semantic_of(self.store)

    def semantic_of(self, store: Vectors) -> Semantic:
        return Semantic(self.clock, self.index, store, lambda _rule: self.embedder)

    def call(self, **changes: object) -> Call:
        return Bench([]).call(**{"replay": CacheOutcome(), **changes})

    async def find(self, text: str, **changes: object) -> bytes | None:
        """The key that is found for a question."""
        match = await self.semantic.find(self.call(), ask(text, **changes))
        return None if match is None else match.key

    async def why(self, text: str) -> list[str]:
        """What is told of a question."""
        call = self.call()
        await self.semantic.find(call, ask(text))
        return why_of(call)

    async def restart(self) -> None:
        """The process ends; what was in memory is gone, the store remains."""
        await self.semantic.aclose()
        self.index = VectorIndex()
        self.semantic = self.semantic_of(self.store)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """One, and nothing of it is left running."""
    world = World()
    yield world
    await world.semantic.aclose()


def ask(text: str, **changes: object) -> SemanticQuery:
    """A question of the partition that the tests use."""
    return replace(SemanticQuery(PARTITION, text, RULE, "m", "acme"), **changes)  # type: ignore[arg-type]  # fields by name


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def after_thread(world: World) -> None:
    """When its thread has done what it has been given so far."""
    await settle()
    await asyncio.get_running_loop().run_in_executor(world.semantic._thread, int)
    await settle()


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


async def test_a_question_in_other_words_is_recognised(world: World) -> None:
    """With its similarity, and the key that its answer is kept under."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()

    match = await world.semantic.find(world.call(), ask(FORGOTTEN))

    assert match is not None
    assert match.key == KEY
    assert match.similarity == pytest.approx(0.995, abs=0.002)
    assert match.stored_at == world.clock.wall()
    assert await world.find(PASSWORD) == KEY


async def test_what_is_not_near_enough_is_not_recognised(world: World) -> None:
    """And the call's explanation says so."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()

    assert await world.find(WEATHER) is None
    assert await world.find(RELATED) is None
    assert await world.why(WEATHER) == ["none of 1 questions has similarity 0.9 or more"]


@pytest.mark.parametrize(
    "other",
    [
        {"partition": sha256(b"another").digest()},
        {"rule": replace(RULE, embeddings="another-embedder")},
    ],
)
async def test_partitions_never_meet(world: World, other: dict[str, object]) -> None:
    """The same words in another partition, or seen by another model, are another question."""
    world.semantic.keep(world.call(), ask(PASSWORD, **other), KEY)
    await settle()

    assert await world.find(PASSWORD) is None
    assert await world.find(PASSWORD, **other) == KEY


async def test_vectors_of_other_dimensions_are_another_partition(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that has changed starts anew; nothing of the old one is found or harmed."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()
    await world.restart()
    monkeypatch.setitem(DIRECTIONS, PASSWORD, [1.0, 0.0, 0.0, 0.0])

    assert await world.find(PASSWORD) is None

    world.semantic.keep(world.call(), ask(PASSWORD), OTHER_KEY)
    await settle()

    assert await world.find(PASSWORD) == OTHER_KEY
    assert len(world.store.rows) == 2


async def test_the_guards_have_the_last_word(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However near a question is; and the next one is looked at."""
    other_number = "How do I reset my password 3 times?"
    monkeypatch.setitem(DIRECTIONS, other_number, [1.0, 0.0, 0.0])
    world.semantic.keep(world.call(), ask(other_number), OTHER_KEY)
    await settle()

    told = await world.why(PASSWORD)

    assert await world.find(PASSWORD) is None
    assert told == ["a question with similarity 1.0000 differs in its numbers"]

    world.semantic.keep(world.call(), ask(FORGOTTEN), KEY)
    await settle()

    assert facts_of(FORGOTTEN) == facts_of(PASSWORD)
    assert await world.find(PASSWORD) == KEY


async def test_only_the_best_few_are_shown_to_the_guards(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition of look-alikes costs no more than that."""
    monkeypatch.setattr(lookup, "objection", lambda a, b: "numbers")
    for number in range(3 * MOST_CANDIDATES):
        monkeypatch.setitem(DIRECTIONS, f"question {number}", [1.0, 0.0, 0.0])
        world.semantic.keep(world.call(), ask(f"question {number}"), number.to_bytes(32, "big"))
    await settle()

    assert len(await world.why(PASSWORD)) == MOST_CANDIDATES


async def test_what_is_past_its_time_is_not_recognised(world: World) -> None:
    """The rule says how long a question stands."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()

    world.clock.advance(RULE.ttl_s - 1)
    assert await world.find(PASSWORD) == KEY
    world.clock.advance(1)
    assert await world.find(PASSWORD) is None


async def test_a_question_without_its_answer_is_not_recognised_again(world: World) -> None:
    """In memory and in the store."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()
    match = await world.semantic.find(world.call(), ask(PASSWORD))
    assert match is not None

    world.semantic.lost(match)

    assert await world.find(PASSWORD) is None
    assert world.store.rows == {}


@pytest.mark.parametrize("text", ["", " \n", "x" * (MOST_CHARS + 1)])
async def test_what_cannot_be_compared_costs_nothing(world: World, text: str) -> None:
    """An empty text, and one so long that a single word makes no difference."""
    world.semantic.keep(world.call(), ask(text), KEY)

    assert await world.why(text) == [TOO_LONG]
    assert world.embedder.asked == []


async def test_a_text_without_a_vector_is_asked_for_once(world: World) -> None:
    """That is no trouble of the model's: others are embedded as ever."""
    assert await world.why("unspeakable") == [NO_VECTOR]
    world.semantic.keep(world.call(), ask("unspeakable"), KEY)
    await settle()

    assert world.embedder.asked == ["unspeakable"]
    assert world.store.rows == {}
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()
    assert await world.find(PASSWORD) == KEY


async def test_a_slow_embedding_is_waited_for_as_long_as_the_rule_says(world: World) -> None:
    """Then the call goes on without; the answer is kept for others when the embedding has come."""
    world.embedder.gate = asyncio.Event()
    call = world.call()
    finding = asyncio.create_task(world.semantic.find(call, ask(PASSWORD)))
    await settle()

    world.clock.advance(WAIT_S - 0.01)
    await settle()
    assert not finding.done()
    world.clock.advance(0.01)

    assert await finding is None
    assert why_of(call) == [LATE]

    world.semantic.keep(call, ask(PASSWORD), KEY)
    assert world.store.rows == {}
    assert world.semantic.stats() == {"embedding": 1, "loading": 0, "searching": 0, "keeping": 1}
    world.embedder.gate.set()
    await settle()

    assert await world.find(FORGOTTEN) == KEY
    assert world.embedder.asked == [PASSWORD, FORGOTTEN]
    assert world.semantic.stats() == {"embedding": 0, "loading": 0, "searching": 0, "keeping": 0}


async def test_without_patience_only_what_is_known_is_found(world: World) -> None:
    """And what needs no time at all, as with a model on disk."""
    rule = replace(RULE, wait_s=0.0)
    world.semantic.keep(world.call(), ask(PASSWORD, rule=rule), KEY)
    await settle()

    assert await world.find(FORGOTTEN, rule=rule) == KEY

    world.embedder.gate = asyncio.Event()
    assert await world.find(WEATHER, rule=rule) is None
    assert world.clock.timers == []


async def test_equal_texts_at_the_same_time_share_an_embedding(world: World) -> None:
    """And one that was embedded lately is not embedded again."""
    world.embedder.gate = asyncio.Event()
    finding = [asyncio.create_task(world.find(PASSWORD)) for _ in range(10)]
    await settle()
    world.embedder.gate.set()
    await asyncio.gather(*finding)
    await world.find(PASSWORD)

    assert world.embedder.asked == [PASSWORD]


@pytest.mark.parametrize("other", [{"tenant": "them"}, {"credential": b"Bearer theirs"}])
async def test_owners_share_no_embedding(world: World, other: dict[str, object]) -> None:
    """Else one could tell by the time it takes what the other has asked."""
    await world.semantic.find(world.call(), ask(PASSWORD))
    await world.semantic.find(world.call(**other), ask(PASSWORD))

    assert world.embedder.asked == [PASSWORD, PASSWORD]


async def test_a_client_that_leaves_takes_no_embedding_with_it(world: World) -> None:
    """Others may be waiting for it."""
    world.embedder.gate = asyncio.Event()
    leaving = asyncio.create_task(world.find(PASSWORD))
    staying = asyncio.create_task(world.find(PASSWORD))
    await settle()
    leaving.cancel()
    await settle()
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    world.embedder.gate.set()

    assert await staying in (KEY, None)
    assert leaving.cancelled()
    assert world.embedder.asked == [PASSWORD]
    assert all(timer.cancelled for timer in world.clock.timers)


async def test_a_model_that_fails_is_left_alone_for_a_while(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """One warning; then one question at a time tries whether it works again, ever more rarely."""
    world.embedder.fails = EmbeddingFailed("status 503")
    with caplog.at_level(logging.INFO):
        for number in range(3):
            assert await world.why(f"question {number}") == [NO_VECTOR]
        world.clock.advance(FIRST_PAUSE_S)
        await asyncio.gather(world.find("question 3"), world.find("question 4"))
        world.clock.advance(FIRST_PAUSE_S)
        await world.find("question 5")
        asked = world.embedder.asked.copy()
        world.embedder.fails = None
        world.clock.advance(FIRST_PAUSE_S)
        await world.find("question 6")
        await world.find("question 7")

    assert asked == ["question 0", "question 3"]
    assert world.embedder.asked[2:] == ["question 6", "question 7"]
    assert messages(caplog, logging.INFO) == [
        "no embeddings from embedder, calls go on without the semantic cache: status 503",
        "embeddings from embedder are back",
    ]


async def test_failures_of_one_moment_count_as_one(world: World) -> None:
    """Many questions were out when the model went away: the pause is no longer for that."""
    world.embedder.gate = asyncio.Event()
    world.embedder.fails = EmbeddingFailed("gone")
    finding = [asyncio.create_task(world.find(f"question {number}")) for number in range(20)]
    await settle()
    world.embedder.gate.set()
    await asyncio.gather(*finding)

    world.embedder.fails = None
    world.clock.advance(FIRST_PAUSE_S)
    await world.find(PASSWORD)

    assert world.embedder.asked[-1] == PASSWORD


@pytest.mark.parametrize("vector", [[0.0, 0.0], [], ["a"]])
async def test_a_model_that_talks_nonsense_fails(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, vector: list[float]
) -> None:
    """A vector without direction, or without numbers."""
    monkeypatch.setitem(DIRECTIONS, PASSWORD, vector)

    assert await world.why(PASSWORD) == [NO_VECTOR]
    assert len(messages(caplog)) == 1


async def test_a_defect_is_logged_and_is_nobodys_failure(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback; the model is left alone as after any failure."""
    world.embedder.fails = RuntimeError("a defect")

    assert await world.find(PASSWORD) is None
    assert await world.find(WEATHER) is None
    assert world.embedder.asked == [PASSWORD]
    assert [record.exc_info is not None for record in caplog.records] == [False, True]


async def test_embeddings_under_way_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question beyond goes without."""
    world.embedder.gate = asyncio.Event()
    finding = [asyncio.create_task(world.find(f"question {n}")) for n in range(vectors.MOST_PENDING)]
    await settle()

    assert await world.why("one more") == [NO_VECTOR]

    world.embedder.gate.set()
    await asyncio.gather(*finding)
    assert len(world.embedder.asked) == vectors.MOST_PENDING


async def test_questions_are_remembered_within_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those not asked for longest are forgotten first."""
    monkeypatch.setattr(vectors, "REMEMBERED", 2)
    for text in ("one", "two", "one", "three", "one", "two"):
        await world.find(text)

    assert world.embedder.asked == ["one", "two", "three", "two"]


async def test_rows_that_wait_for_their_vector_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One beyond is not kept."""
    monkeypatch.setattr(lookup, "MOST_KEEPING", 2)
    world.embedder.gate = asyncio.Event()
    for number in range(5):
        world.semantic.keep(world.call(), ask(PASSWORD), number.to_bytes(32, "big"))
    world.embedder.gate.set()
    await settle()

    assert len(world.store.rows) == 2
    assert world.semantic.stats()["keeping"] == 0


async def test_a_long_question_is_understood_in_a_thread(world: World) -> None:
    """Finding its facts would hold up every other call."""
    text = "Please tell me about it. " * SHORT_CHARS
    world.semantic.keep(world.call(), ask(text[:MOST_CHARS]), KEY)
    await after_thread(world)

    assert await world.find(text[:MOST_CHARS]) == KEY


async def test_a_partition_is_loaded_when_it_is_first_asked_for(world: World) -> None:
    """Once; what was kept before a restart is recognised after it."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()
    await world.restart()
    loads = world.store.loads

    assert await world.find(FORGOTTEN) == KEY
    assert await world.find(FORGOTTEN) == KEY
    assert world.store.loads == loads + 1


def many_rows(world: World, count: int) -> Iterable[VectorRow]:
    """Other questions of the tests' partition, so many that they are loaded and searched in a thread."""
    (row,) = world.store.rows.values()
    other = world.index.pack([0.0, 1.0, 0.2])
    return [replace(row, id=number.to_bytes(32, "big"), vector=other) for number in range(count)]


async def test_a_large_partition_is_loaded_and_searched_off_the_loop(world: World) -> None:
    """With the same result."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()
    for row in many_rows(world, 2 * ROWS_AT_ONCE):
        world.store.add(row)
    await world.restart()

    assert 2 * ROWS_AT_ONCE > FEW_ROWS
    assert await world.find(FORGOTTEN) == KEY
    assert await world.find(WEATHER) is None


async def test_searches_under_way_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call beyond goes without."""
    monkeypatch.setattr(lookup, "MOST_SEARCHES", 0)
    monkeypatch.setattr(lookup, "ROWS_AT_ONCE", 0)
    await world.restart()
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()

    assert await world.why(PASSWORD) == [NOT_LOADED]


async def test_a_slow_store_is_waited_for_as_long_as_the_rule_says(world: World) -> None:
    """Then the call goes on without; the partition is there for the next one, with what was kept meanwhile."""
    world.semantic.keep(world.call(), ask(WEATHER), OTHER_KEY)
    await settle()
    await world.restart()
    world.store.held = asyncio.get_running_loop().create_future()
    finding = asyncio.create_task(world.why(PASSWORD))
    await settle()
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    assert world.semantic.stats()["loading"] == 1
    world.clock.advance(WAIT_S)

    assert await finding == [NOT_LOADED]

    world.store.held.set_result(None)
    await settle()
    assert await world.find(PASSWORD) == KEY
    assert await world.find(WEATHER) == OTHER_KEY
    assert world.store.loads == 2


async def test_rows_that_wait_for_their_partition_are_bounded(world: World) -> None:
    """The store has the others."""
    await world.find(PASSWORD)
    await world.restart()
    world.store.held = asyncio.get_running_loop().create_future()
    await asyncio.wait([asyncio.create_task(world.find(PASSWORD, rule=replace(RULE, wait_s=0.0)))])
    for number in range(MOST_LATE + 5):
        world.semantic.keep(world.call(), ask(PASSWORD), number.to_bytes(32, "big"))
    world.store.held.set_result(None)
    await settle()

    assert len(world.index) == MOST_LATE
    assert len(world.store.rows) == MOST_LATE + 5


async def test_forgetting_reaches_the_index_and_the_store(world: World) -> None:
    """By key, model and tenant; everything when nothing is given."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    world.semantic.keep(world.call(), ask(WEATHER, model="n", partition=bytes(32)), OTHER_KEY)
    await settle()

    assert await world.semantic.forget(model="m", key=OTHER_KEY) == 0
    assert await world.semantic.forget(model="m") == 1
    assert await world.find(PASSWORD) is None
    assert await world.semantic.forget() == 1
    assert len(world.index) == len(world.store.rows) == 0


async def test_forgetting_a_tenant_forgets_what_it_asked(world: World) -> None:
    """Its questions are not remembered either, not even as numbers."""
    await world.find(PASSWORD)

    await world.semantic.forget(tenant="acme")
    await world.find(PASSWORD)

    assert world.embedder.asked == [PASSWORD, PASSWORD]


async def test_what_is_forgotten_while_it_is_loaded_does_not_come_back(world: World) -> None:
    """Nor what was kept before in the meantime; what is kept after that stays."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()
    await world.restart()
    world.store.held = asyncio.get_running_loop().create_future()
    finding = asyncio.create_task(world.find(PASSWORD))
    await settle()
    world.semantic.keep(world.call(), ask(PASSWORD), OTHER_KEY)

    assert await world.semantic.forget() == 2
    world.semantic.keep(world.call(), ask(WEATHER), OTHER_KEY)
    await settle()
    world.store.held.set_result(None)

    assert await finding is None
    await settle()
    assert await world.find(PASSWORD) is None
    assert await world.find(WEATHER) == OTHER_KEY


async def test_what_is_forgotten_right_after_the_store_was_asked_does_not_come_back(world: World) -> None:
    """The store may have read it before it forgot it."""
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()
    await world.restart()
    world.store.held = asyncio.get_running_loop().create_future()
    await world.find(PASSWORD, partition=bytes(32), rule=replace(RULE, wait_s=0.0))
    finding = asyncio.create_task(world.find(PASSWORD))
    await asyncio.sleep(0)
    assert world.store.loads == 3

    await world.semantic.forget(model="m")
    world.store.held.set_result(None)

    assert await finding is None
    assert await world.find(PASSWORD) is None


async def test_a_store_that_keeps_nothing_is_enough(world: World) -> None:
    """The index has the rows, also of a question that nobody tried to recognise before."""

    class Nothing:
        def configure(self, most: int) -> None: ...
        def add(self, row: VectorRow) -> None: ...
        def load(self, partition: bytes, most: int) -> Sequence[VectorRow]:
            return ()

        def remove(self, partition: bytes, ids: Sequence[bytes]) -> None: ...
        def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
            return 0

    await world.semantic.aclose()
    world.semantic = world.semantic_of(Nothing())
    world.semantic.keep(world.call(), ask(PASSWORD), KEY)
    await settle()

    assert await world.find(FORGOTTEN) == KEY
    assert await world.semantic.forget() == 1


async def test_an_explanation_tells_who_is_near_and_what_keeps_them_apart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the threshold says."""
    number = "How do I reset my password 3 times?"
    monkeypatch.setitem(DIRECTIONS, number, [0.9, 0.3, 0.0])
    for text, key in ((FORGOTTEN, KEY), (number, OTHER_KEY), (WEATHER, bytes(32))):
        world.semantic.keep(world.call(), ask(text), key)
    await settle()

    told = await world.semantic.explain(world.call(), ask(PASSWORD))

    assert (told.threshold, told.rows, told.problem) == (0.9, 3, None)
    assert len(told.partition) == 16
    assert [(one.key, one.objection) for one in told.nearest[:2]] == [(KEY.hex(), None), (OTHER_KEY.hex(), "numbers")]
    assert told.nearest[2].similarity == pytest.approx(0.0)
    assert told.nearest[2].objection is not None


async def test_an_explanation_says_why_there_is_none(world: World) -> None:
    """In the words of the call's own."""
    world.embedder.fails = EmbeddingFailed("gone")

    assert (await world.semantic.explain(world.call(), ask(""))).problem == TOO_LONG
    assert (await world.semantic.explain(world.call(), ask(PASSWORD))).problem == NO_VECTOR


async def test_closing_ends_all_that_is_under_way(world: World) -> None:
    """Whoever waits goes on without; nothing is begun any more."""
    world.embedder.gate = asyncio.Event()
    finding = asyncio.create_task(world.find(PASSWORD))
    world.semantic.keep(world.call(), ask(WEATHER), KEY)
    await settle()

    await world.semantic.aclose()

    assert await finding is None
    assert world.semantic.stats() == {"embedding": 0, "loading": 0, "searching": 0, "keeping": 0}
    assert await world.why("anything") == [NO_VECTOR]
    await world.semantic.aclose()


async def test_a_call_that_keeps_no_account_of_it_is_served_too(world: World) -> None:
    """Nobody wants to know why."""
    assert await world.semantic.find(world.call(replay=None), ask(PASSWORD)) is None


async def test_a_result_that_came_in_time_needs_no_timer() -> None:
    """And what was cancelled has none."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str | None] = loop.create_future()
    gone: asyncio.Future[str | None] = loop.create_future()
    done.set_result("here")
    gone.cancel()
    clock = FakeClock()

    assert await result_by(clock, done, 0.0) == "here"
    assert await result_by(clock, gone, clock.now + 1) is None
    assert clock.timers == []


async def test_work_in_the_background_is_bounded_and_ends() -> None:
    """What is refused is closed, so that nobody waits for it."""
    background = Background(1)

    async def work() -> str:
        await asyncio.Event().wait()
        return "never"

    first, second = background.start(work()), background.start(work())

    assert second is None
    assert len(background) == 1
    await background.aclose()
    assert cast("asyncio.Task[str | None]", first).cancelled()
    assert background.start(work()) is None
