"""Finds a stored answer to a question that means the same as this one, in other words.

    the question's vector -> its partition -> those that are near enough -> the first that the guards have nothing against

Orchestration only: `vectors.py` knows vectors and rows, `guards.py` decides,
and the index searches, off the event loop when there is much to search. It must not know answers; they are stored
elsewhere, under the keys that are found here. Invariants: rows of different partitions are never compared; a call waits
no longer than its rule says; a failure here is a miss, not the call's failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.features.identity import digest
from gateway.features.outcome import OUTCOME
from gateway.features.reuse.rules import SemanticRule
from gateway.features.reuse.similar import Explained, Match, Neighbour, SemanticQuery
from gateway.features.semantic.guards import Facts, objection
from gateway.features.semantic.question import MOST_CHARS, Embedder, Index, Near, Neighbourhood, query_of
from gateway.features.semantic.store import VectorRow, Vectors
from gateway.features.semantic.vectors import Background, KnownQuestion, Partitions, Questions, result_by

MOST_CANDIDATES = 8
"""The guards judge at most this number of the nearest questions."""
ROWS_AT_ONCE = 500
"""This number of rows is searched on the event loop, because handing them to a thread would take as long."""
MOST_SEARCHES = 64
MOST_KEEPING = 1000
"""The rows that may wait for their vector; further ones are not stored."""
EXPLAIN_S = 10.0
SHOWN = 5
"""The number of nearest questions in an explanation."""

LATE = "its embedding was not there in time"
NO_VECTOR = "there is no embedding of it to be had"
NOT_LOADED = "the questions that it is compared with were not there in time"
TOO_LONG = f"its last user message is empty or has more than {MOST_CHARS} characters"


class Semantic:
    """Implements `gateway.features.reuse.similar.SemanticLayer`. One per process."""

    def __init__(
        self, clock: Clock, index: Index, store: Vectors, embedder_of: Callable[[SemanticRule], Embedder]
    ) -> None:
        """`embedder_of` may raise EmbeddingFailed."""
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "semantic")
        self._questions = Questions(clock, embedder_of, index.pack, self._thread)
        self._partitions = Partitions(clock, index, store)
        self._searches = Background(MOST_SEARCHES)
        self._keeping = 0

    def query_of(self, call: Call, parsed: dict[str, Any]) -> SemanticQuery | None:
        """Returns the call's question; None: it cannot be judged by its meaning."""
        return query_of(call, parsed)

    async def find(self, call: Call, ask: SemanticQuery) -> Match | None:
        """Returns the nearest question that may stand for this one; None: there is none, or none in the rule's time.

        Notes the reason on the call's `replay.why`.
        """
        deadline = self._clock.monotonic() + ask.rule.wait_s
        compared = await self._compare(call, ask, ask.rule.threshold, MOST_CANDIDATES, deadline)
        if isinstance(compared, str):
            _note(call, compared)
            return None
        question, partition, rows, nearest = compared
        for near in nearest:
            guard = objection(question.facts, Facts.from_bytes(near.row.facts))
            if guard is None:
                return Match(near.row.id, near.similarity, partition, near.row.stored_at)
            _note(call, f"a question with similarity {near.similarity:.4f} differs in its {guard}")
        if not nearest:
            _note(call, f"none of {len(rows)} questions has similarity {ask.rule.threshold:g} or more")
        return None

    def keep(self, call: Call, ask: SemanticQuery, key: bytes) -> None:
        """Stores the question of an answer that is stored under this key, so that it is recognised from now on."""
        if not _is_comparable(ask.text):
            return
        known = self._questions.known_or_pending(call, ask.text, ask.rule)
        if isinstance(known, KnownQuestion):
            self._add(ask, known, key)
        elif known is not None and self._keeping < MOST_KEEPING:
            self._keeping += 1
            known.add_done_callback(lambda task: self._add_late(ask, task, key))

    def lost(self, match: Match) -> None:
        """Removes the question, because there is no answer under its key any more."""
        self._partitions.remove(match.partition, match.key)

    async def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes the questions that match every argument given, or all of them without arguments; returns their number."""
        if key is None and model is None:
            self._questions.forget()
        return await self._partitions.forget(key=key, model=model, tenant=tenant)

    def add_shared(self, row: VectorRow) -> None:
        """Takes in a question that another replica has stored."""
        self._partitions.add_shared(row)

    def forget_here(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> None:
        """Removes questions as `forget` does, in memory only: another replica has removed them from the store."""
        if key is None and model is None:
            self._questions.forget()
        self._partitions.forget_here(key=key, model=model, tenant=tenant)

    def reload(self) -> None:
        """Drops what is in memory, because the store is back, and may have rows of other replicas that are missing here."""
        self._partitions.forget_here()

    async def explain(self, call: Call, ask: SemanticQuery) -> Explained:
        """Returns the questions nearest to this one, whatever the threshold; may cost an embedding."""
        deadline = self._clock.monotonic() + EXPLAIN_S
        compared = await self._compare(call, ask, -1.0, SHOWN, deadline)
        if isinstance(compared, str):
            return Explained(ask.rule.threshold, problem=compared)
        question, partition, rows, nearest = compared
        neighbours = tuple(_neighbour(question.facts, near) for near in nearest)
        return Explained(ask.rule.threshold, partition.hex()[:16], len(rows), neighbours)

    def stats(self) -> dict[str, int]:
        """Returns the numbers of embeddings, loads and searches under way."""
        return {
            "embedding": self._questions.pending,
            "loading": self._partitions.loading,
            "searching": len(self._searches),
            "keeping": self._keeping,
        }

    async def aclose(self) -> None:
        """Stops all embeddings, loads and searches."""
        for part in (self._questions, self._partitions, self._searches):
            await part.aclose()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _compare(
        self, call: Call, ask: SemanticQuery, threshold: float, most: int, deadline: float
    ) -> tuple[KnownQuestion, bytes, Neighbourhood, list[Near]] | str:
        """Returns the question, its partition, the rows there and the nearest of them; or why there is nothing to compare."""
        if not _is_comparable(ask.text):
            return TOO_LONG
        question = self._questions.known_or_pending(call, ask.text, ask.rule)
        if isinstance(question, asyncio.Task):
            task = question
            question = await result_by(self._clock, task, deadline)
            if question is None and not task.done():
                return LATE
        if question is None:
            return NO_VECTOR
        partition = _partition_of(ask, question)
        rows = await self._partitions.open(partition, ask.rule.max_entries, deadline)
        if rows is None:
            return NOT_LOADED
        nearest = await self._search(rows, question.vector, threshold, most, deadline)
        return NOT_LOADED if nearest is None else (question, partition, rows, nearest)

    async def _search(
        self, rows: Neighbourhood, vector: bytes, threshold: float, most: int, deadline: float
    ) -> list[Near] | None:
        if len(rows) <= ROWS_AT_ONCE:
            return rows.search(vector, threshold, most, self._clock.wall())
        task = self._searches.start(self._search_aside(rows, vector, threshold, most))
        return None if task is None else await result_by(self._clock, task, deadline)

    async def _search_aside(self, rows: Neighbourhood, vector: bytes, threshold: float, most: int) -> list[Near]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, rows.search, vector, threshold, most, self._clock.wall())

    def _add(self, ask: SemanticQuery, question: KnownQuestion, key: bytes) -> None:
        now = self._clock.wall()
        facts, ends_at = question.facts.to_bytes(), now + ask.rule.ttl_s
        partition = _partition_of(ask, question)
        row = VectorRow(key, partition, question.vector, facts, ask.model, ask.tenant, now, ends_at)
        self._partitions.add(row, ask.rule.max_entries)

    def _add_late(self, ask: SemanticQuery, task: asyncio.Task[KnownQuestion | None], key: bytes) -> None:
        self._keeping -= 1
        question = None if task.cancelled() else task.result()
        if question is not None:
            self._add(ask, question, key)


def _partition_of(ask: SemanticQuery, question: KnownQuestion) -> bytes:
    """Returns the partition of a vector: those of different models or dimensions cannot be compared."""
    return digest(b"semantic", ask.partition, ask.rule.embeddings.encode(), b"%d" % len(question.vector))


def _is_comparable(text: str) -> bool:
    return len(text) <= MOST_CHARS and not text.isspace() and bool(text)


def _neighbour(facts: Facts, near: Near) -> Neighbour:
    guard = objection(facts, Facts.from_bytes(near.row.facts))
    return Neighbour(near.row.id.hex(), near.similarity, guard, near.row.stored_at)


def _note(call: Call, words: str) -> None:
    outcome = OUTCOME.find(call)
    if outcome is not None:
        outcome.why.append(words)
