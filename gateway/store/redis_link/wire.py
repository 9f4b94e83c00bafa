"""One connection, and the order of what goes over it.

What is asked for while a round trip is under way goes out together in the next. Invariants: replies belong to jobs in the
order in which these went out, whoever has lost interest meanwhile; a connection on which that order could be lost is closed.
It must not know what a job means, nor what its trouble is to others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from redis.asyncio import Connection
from redis.exceptions import ResponseError

from gateway.store.redis_link.connect import Node
from gateway.store.redis_link.job import StoreCommand, StoreGone

Dial = Callable[[Node], Awaitable[Connection]]


class WireOwner(Protocol):
    """Who hears what a wire cannot settle itself."""

    def refused(self, job: StoreCommand, error: ResponseError) -> None:
        """The server has said no."""
        ...

    def broke(self, error: BaseException) -> str:
        """A connection is gone; the answer says why, to those who wait for it."""
        ...


class StoreWire:
    """Jobs go out in the order in which they were asked for."""

    __slots__ = ("_dial", "_flying", "_owner", "_pending", "_task", "_wake", "node")

    def __init__(self, dial: Dial, owner: WireOwner) -> None:
        self._dial = dial
        self._owner = owner
        self._pending: list[StoreCommand] = []
        self._flying: deque[StoreCommand] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.node: Node = ("", 0)
        """Where it leads, or has led."""

    @property
    def is_open(self) -> bool:
        return self._task is not None

    async def open(self, node: Node) -> None:
        """Connect; raises as the connection does, and waits as long as it takes."""
        connection = await self._dial(node)
        self.node = node
        self._task = asyncio.create_task(self._run(connection), name="store wire")
        await asyncio.sleep(0)  # a task that has begun closes its connection however it ends

    def ask(self, *jobs: StoreCommand) -> None:
        """They are sent, nothing between them, as soon as what is under way is answered."""
        self._pending.extend(jobs)
        self._wake.set()

    def cut(self, reason: str) -> asyncio.Task[None] | None:
        """Whatever was asked is not answered. The task, if any, is over when the connection is closed."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        lost = [*self._flying, *self._pending]
        self._flying.clear()
        self._pending.clear()
        for job in lost:
            job.fail(StoreGone(reason))
        return task

    async def _run(self, connection: Connection) -> None:
        """The only reader and the only writer; nobody who asks can cancel it."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._pending:
                    connection = await self._living(connection)
                    await self._round_trip(connection)
        except Exception as error:  # noqa: BLE001 - the end of a task: its owner is told, whatever it is
            self._task = None
            self.cut(self._owner.broke(error))
        finally:
            await connection.disconnect(nowait=True)

    async def _living(self, connection: Connection) -> Connection:
        """This one, or a new one if the server has closed it while nothing was asked: that costs nobody an answer."""
        if not await connection.can_read():
            return connection
        await connection.disconnect(nowait=True)
        return await self._dial(self.node)

    async def _round_trip(self, connection: Connection) -> None:
        self._flying.extend(self._pending)
        self._pending.clear()
        await connection.send_packed_command([job.packed for job in self._flying], check_health=False)
        while self._flying:
            try:
                reply = await connection.read_response()
            except ResponseError as error:
                self._owner.refused(self._flying.popleft(), error)
            else:
                self._flying.popleft().answer(_flat(reply))


def _flat(reply: Any) -> Any:
    """A map as RESP2 would tell it."""
    return [part for pair in reply.items() for part in pair] if isinstance(reply, dict) else reply
