"""Finds a question's vector, and the facts that the guards compare, once for each question.

A call waits as long as its rule allows; the embedding goes on and is remembered. It must not know partitions. Invariants: equal
texts of one owner that are embedded at the same time share one embedding, and nothing is shared between owners; a model
that fails is left alone for a while, 1 s at first and 60 s at most, and then tried by one question; the log has one warning
of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.features.reuse.rules.keys.keys import digest, owner_of
from gateway.features.reuse.rules.rules import SemanticRule
from gateway.features.semantic.guards.facts import Facts, facts_of
from gateway.features.semantic.lookup.question.ports import Embedder, EmbeddingDenied, EmbeddingFailed
from gateway.features.semantic.lookup.tasks import Background

REMEMBERED = 4096
MOST_PENDING = 256
"""The embeddings that may be under way; a further question goes without."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
SHORT_CHARS = 200
"""The facts of a longer text take more than half a millisecond, so they are found in a thread."""
log = logging.getLogger("gateway.semantic")


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """A question with its facts; `vector` is packed."""

    vector: bytes
    facts: Facts


@dataclass(slots=True)
class _Trouble:
    """The failures of one embedding model."""

    failures: int = 0
    until: float = 0.0
    """The model is not asked before this time."""
    is_tried: bool = False
    """True while one question tries whether the model works again."""

    def stands_off(self, now: float) -> bool:
        return self.failures > 0 and (self.is_tried or now < self.until)


class Questions:
    """The recent questions, and those that are being embedded."""

    def __init__(
        self,
        clock: Clock,
        embedder_of: Callable[[SemanticRule], Embedder],
        pack: Callable[[Sequence[float]], bytes],
        thread: Executor,
    ) -> None:
        """`embedder_of` may raise EmbeddingFailed, `pack` ValueError."""
        self._clock = clock
        self._embedder_of = embedder_of
        self._pack = pack
        self._thread = thread
        self._background = Background(MOST_PENDING)
        self._known: OrderedDict[bytes, KnownQuestion | None] = OrderedDict()
        """The recent questions by name; None: the text has no vector."""
        self._pending: dict[bytes, asyncio.Task[KnownQuestion | None]] = {}
        self._troubles: dict[str, _Trouble] = {}

    @property
    def pending(self) -> int:
        """The number of embeddings under way."""
        return len(self._background)

    def ask(
        self, call: Call, text: str, rule: SemanticRule
    ) -> KnownQuestion | asyncio.Task[KnownQuestion | None] | None:
        """Returns the known question, or the task that embeds it; None: it cannot be embedded now."""
        name = _name_of(call, text, rule)
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name]
        pending = self._pending.get(name)
        if pending is not None:
            return pending
        trouble = self._troubles.get(rule.embeddings)
        if trouble is not None and trouble.stands_off(self._clock.monotonic()):
            return None
        return self._begin(name, call, text, rule)

    def forget(self) -> None:
        """Drops all known questions; an embedding under way is remembered when it comes."""
        self._known.clear()

    async def aclose(self) -> None:
        """Stops all embeddings."""
        await self._background.aclose()

    def _begin(
        self, name: bytes, call: Call, text: str, rule: SemanticRule
    ) -> asyncio.Task[KnownQuestion | None] | None:
        trouble = self._troubles.setdefault(rule.embeddings, _Trouble())
        task = self._background.start(self._find_out(name, call, text, rule, trouble))
        if task is not None:
            self._pending[name] = task
            trouble.is_tried = True
            task.add_done_callback(lambda _: self._ended(name, trouble))
        return task

    def _ended(self, name: bytes, trouble: _Trouble) -> None:
        """Ends an embedding, also one that was cancelled before it ran."""
        self._pending.pop(name, None)
        trouble.is_tried = False

    async def _find_out(
        self, name: bytes, call: Call, text: str, rule: SemanticRule, trouble: _Trouble
    ) -> KnownQuestion | None:
        began_at = self._clock.monotonic()
        try:
            vector = await self._embedder_of(rule).embed(text, call)
            packed = None if vector is None else self._pack(vector)
        except EmbeddingDenied:
            return None  # others may get theirs
        except (EmbeddingFailed, ValueError, TypeError) as error:
            self._failed(rule.embeddings, trouble, error, began_at)
            return None
        except Exception:
            self._failed(rule.embeddings, trouble, EmbeddingFailed("a defect, see below"), began_at)
            raise
        self._worked(rule.embeddings, trouble)
        question = None if packed is None else KnownQuestion(packed, await self._facts_of(text))
        self._known[name] = question
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return question

    async def _facts_of(self, text: str) -> Facts:
        if len(text) <= SHORT_CHARS:
            return facts_of(text)
        return await asyncio.get_running_loop().run_in_executor(self._thread, facts_of, text)

    def _failed(self, model: str, trouble: _Trouble, error: Exception, began_at: float) -> None:
        """Counts a failure; one of an attempt that began before the last failure was known tells nothing new."""
        if began_at < trouble.until:
            return
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(trouble.failures, 10), LONGEST_PAUSE_S)
        trouble.until = self._clock.monotonic() + pause_s
        if not trouble.failures:
            log.warning("no embeddings from %s, calls go on without the semantic cache: %s", model, error)
        trouble.failures += 1

    def _worked(self, model: str, trouble: _Trouble) -> None:
        if trouble.failures:
            log.info("embeddings from %s are back", model)
        trouble.failures = 0


def _name_of(call: Call, text: str, rule: SemanticRule) -> bytes:
    return digest(
        owner_of(call), rule.embeddings.encode(), b"%d" % (rule.dimensions or 0), text.encode("utf-8", "surrogatepass")
    )
