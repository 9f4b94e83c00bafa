"""Turns at something that serves one at a time: tenants in rotation, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.drivers import turns
from gateway.drivers.turns import MOST_WAITING, FairTurns, NotATurn


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


class Work:
    """What has its turn until it is told to end."""

    def __init__(self) -> None:
        self.turns = FairTurns()
        self.served: list[str] = []
        self.ends: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, tenant: str, size: int = 1) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._have(tenant, size))
        self.tasks.append(task)
        return task

    async def _have(self, tenant: str, size: int) -> None:
        async with self.turns.turn(tenant, size):
            end = asyncio.Event()
            self.served.append(tenant)
            self.ends.append(end)
            await end.wait()

    async def go_on(self) -> None:
        """Ends all turns, one after the other."""
        await settle()
        seen = 0
        while seen < len(self.ends):
            assert not any(end.is_set() for end in self.ends[seen:])
            assert len(self.ends) == seen + 1, "two at a time"
            self.ends[seen].set()
            seen += 1
            await settle()
        assert all(task.done() for task in self.tasks)

    async def served_of(self, tenants: Sequence[str]) -> list[str]:
        for tenant in tenants:
            self.ask(tenant)
            await settle()
        await self.go_on()
        return self.served


async def test_a_tenant_with_much_waits_for_one_with_little() -> None:
    """Whoever came first: the others have their turn after the present one."""
    assert await Work().served_of(["a"] * 5 + ["b", "b", "c"]) == ["a", "b", "c", "a", "b", "a", "a", "a"]


async def test_what_waits_is_bounded_by_tenant() -> None:
    """One more is refused at once, and is nobody else's loss."""
    work = Work()
    for _ in range(MOST_WAITING + 1):
        work.ask("a")
    await settle()
    one_more, other = work.ask("a"), work.ask("b")
    await settle()
    assert isinstance(one_more.exception(), NotATurn)
    assert not other.done()
    await work.go_on()
    assert work.served.count("a") == MOST_WAITING + 1


async def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of the tenant with the most gives way."""
    monkeypatch.setattr(turns, "MOST_WAITING_BYTES", 100)
    work = Work()
    asked = [work.ask(tenant, size) for tenant, size in [("a", 1), ("a", 40), ("a", 40), ("b", 30)]]
    await settle()
    assert [task.done() for task in asked] == [False, False, True, False]
    assert isinstance(asked[2].exception(), NotATurn)
    await work.go_on()
    assert work.served == ["a", "b", "a"]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "ask", "end", "leave", "leave at once"])), max_size=30
    )
)
def test_whatever_comes_turns_go_on(course: list[tuple[str, str]]) -> None:
    """One at a time; whoever leaves, with a turn or without, leaves nothing behind."""

    async def run() -> None:
        work = Work()
        for tenant, what in course:
            if what == "ask":
                work.ask(tenant)
                await settle()
            elif what == "end" and work.ends:
                work.ends[-1].set()  # and perhaps somebody leaves in the same moment
            elif what.startswith("leave") and work.tasks:
                work.tasks[len(work.tasks) // 2].cancel()
                if what == "leave":
                    await settle()
        await settle()
        for task in work.tasks:
            if not task.done():
                assert work.served, "somebody has the turn"
        for _ in work.tasks:
            for end in work.ends:
                end.set()
            await settle()
        assert all(task.done() for task in work.tasks)
        assert not work.turns._waiting  # nothing is left
        assert work.turns._bytes == 0
        last = work.ask("z")
        await settle()
        assert work.served[-1] == "z"
        last.cancel()
        await settle()

    asyncio.run(run())
