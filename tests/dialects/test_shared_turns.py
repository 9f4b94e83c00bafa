"""What turns were signed with, found by another process in the store that both share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.ports import Later
from gateway.core.types import Kept, StoreBounds
from gateway.dialects.config import THINKING_BYTES
from gateway.dialects.memory import (
    MOST_LOOKED_FOR,
    PATIENCE_S,
    SHARED_FOR_S,
    THINKING,
    UNKNOWN_FOR_S,
    OwnTurns,
    SharedTurns,
    SignedElsewhere,
    ThoughtMemory,
    VisibleTurn,
)
from gateway.drivers.store import Answers
from tests.support.configs import load_text
from tests.support.conformance import MakeStore, Wall, settle

BOUNDS = StoreBounds({THINKING: 1_000_000}, 1_000_000)


CONVERTED = """\
providers: {c: {dialect: anthropic, base_url: "https://api.anthropic.com", api_key: sk-x}}
models: {m: {targets: [c/claude], remember_thinking: %s}}
keys: [{name: web, key: web-key-0123456789abcdef}]
"""


class Now:
    """Monotonic seconds, moved by hand."""

    at = 0.0

    def __call__(self) -> float:
        return self.at


def said(number: int, argument: int = 0) -> VisibleTurn:
    return VisibleTurn([(f"toolu_{number}", "f", {"n": argument})], "so")


def process(answers: Answers, wall: Wall, now: Now | None = None) -> ThoughtMemory:
    memory = ThoughtMemory(now or Now())
    memory.shared = SharedTurns(answers, wall)
    return memory


def of(memory: ThoughtMemory, tenant: str = "a", credential: bytes | None = None, issuer: str = "i") -> OwnTurns:
    return memory.of(tenant, credential, issuer, keeps_all=False)


class Watched:
    """The answers of a store, whose last write can be awaited."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.get, self.forget = answers.get, answers.forget
        self.last: Later[None] = None

    def put(self, key: bytes, kept: Kept) -> Later[None]:
        self.last = self._answers.put(key, kept)
        return self.last


async def kept(answers: Watched, memory: ThoughtMemory, number: int, signed: Any) -> None:
    of(memory).keep(said(number), signed, has_thoughts=True)
    await asyncio.sleep(0)  # it is stored behind the answer
    await settle(answers.last)


async def found(turns: OwnTurns, *numbers: int) -> list[Any]:
    """As a conversion asks, once more if another process knew something."""
    first = [turns.find(said(number)) for number in numbers]
    return [turns.find(said(number)) for number in numbers] if await turns.fetch() else first


@pytest.fixture
async def answers(make_lasting_store: MakeStore, wall: Wall) -> AsyncIterator[Watched]:
    store = make_lasting_store(BOUNDS, wall)
    yield Watched(store.answers)
    await settle(store.answers.forget())


async def test_another_process_finds_a_turn_once(answers: Watched, wall: Wall) -> None:
    """As it was signed, whatever its bytes; from then on it has it itself."""
    one, other = process(answers, wall), process(answers, wall)
    await kept(answers, one, 1, {"thinking": "\u00e9\n\0", "signature": "x=="})

    assert await found(of(other), 1, 2) == [{"thinking": "\u00e9\n\0", "signature": "x=="}, None]
    assert (other.counts.hit, other.counts.miss) == (1, 1)
    await settle(answers.forget())
    assert await found(of(other), 1) == [{"thinking": "\u00e9\n\0", "signature": "x=="}]


async def test_only_whose_it_is_and_what_was_said(answers: Watched, wall: Wall) -> None:
    """Neither another tenant nor another credential finds it, nor who has changed it; another provider hears that."""
    one, other = process(answers, wall), process(answers, wall)
    await kept(answers, one, 1, "s")

    assert await found(of(other, "b"), 1) == [None]
    assert await found(of(other, credential=b"Bearer x"), 1) == [None]
    assert await found(of(other, issuer="j"), 1) == [SignedElsewhere.BY_ANOTHER]
    turns = of(process(answers, wall))
    assert turns.find(said(1, argument=2)) is None
    assert await turns.fetch()
    assert turns.find(said(1, argument=2)) is None


async def test_a_turn_goes_an_hour_after_it_was_said(answers: Watched, wall: Wall) -> None:
    one = process(answers, wall)
    await kept(answers, one, 1, "s")
    wall.advance(SHARED_FOR_S - 1)
    assert await found(of(process(answers, wall)), 1) == ["s"]

    wall.advance(2)

    assert await found(of(process(answers, wall)), 1) == [None]


async def test_what_nobody_knows_is_not_asked_for_at_each_call(answers: Watched, wall: Wall) -> None:
    """For a minute; then it is."""
    now = Now()
    memory = process(answers, wall, now)
    turns = of(memory)
    assert await found(turns, 1) == [None]

    again = of(memory)
    assert again.find(said(1)) is None
    assert again.missed == []
    assert memory.counts.miss == 2
    now.at = UNKNOWN_FOR_S + 1
    later = of(memory)
    assert later.find(said(1)) is None
    assert later.missed == ["toolu_1"]


class Hung:
    """A store that answers nobody."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, key: bytes, group: str) -> asyncio.Future[Kept | None]:
        self.asked += 1
        return asyncio.get_running_loop().create_future()


async def test_a_store_that_hangs_is_not_waited_for(wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call goes without, and asks again the next time; of many turns the last ones are asked for."""
    waited: list[float] = []

    async def wait(futures: Any, **options: Any) -> None:
        waited.append(options["timeout"])

    monkeypatch.setattr("gateway.dialects.memory.asyncio.wait", wait)
    hung = Hung()
    memory = process(hung, wall)  # type: ignore[arg-type]  # of its methods only `get` is asked
    numbers = range(MOST_LOOKED_FOR + 20)

    assert await found(of(memory), *numbers) == [None] * len(numbers)
    assert (hung.asked, waited) == (MOST_LOOKED_FOR, [PATIENCE_S])
    turns = of(memory)
    turns.find(said(1))
    assert turns.missed == ["toolu_1"]


async def test_what_another_release_wrote_is_not_there(answers: Watched, wall: Wall) -> None:
    one, other = process(answers, wall), process(answers, wall)
    written: list[Kept] = []

    class Spoiling(Watched):
        def put(self, key: bytes, kept: Kept) -> Later[None]:
            kept.headers = [(b"digest", b"zz"), (b"issuer", b"i")]
            written.append(kept)
            return super().put(key, kept)

    spoiling = Spoiling(answers)
    one.shared = SharedTurns(spoiling, wall)
    await kept(spoiling, one, 1, "s")

    assert await found(of(other), 1) == [None]
    assert len(written) == 1


def test_a_store_has_room_for_turns_where_calls_are_converted(tmp_path: Path) -> None:
    """By the dialects, whatever else keeps answers there."""
    assert load_text(tmp_path, CONVERTED % "true").store.answers == {THINKING: THINKING_BYTES}
    assert load_text(tmp_path, CONVERTED % "false").store.answers == {}
