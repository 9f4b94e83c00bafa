"""One connection with pipelining: the commands that arrive during a round trip go out together in the next.

Invariants: replies are matched to commands in the order of sending, cancelled ones included; a connection on which that order
could be lost is closed. It must not know what a command means, nor what its failure means for others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from redis.asyncio import Connection
from redis.exceptions import ResponseError

from gateway.drivers.redis.connect import Node
from gateway.drivers.redis.job import NoReply, StoreCommand, StoreGone

Dial = Callable[[Node], Awaitable[Connection]]


class WireOwner(Protocol):
    """Handles the failures of a connection."""

    def refused(self, job: StoreCommand, error: ResponseError) -> None:
        """Handles the server's error reply to a command."""
        ...

    def broke(self, error: BaseException) -> str:
        """Handles a broken connection; returns the reason with which its commands fail."""
        ...


class StoreWire:
    """One connection; commands are sent in the order in which they were given."""

    __slots__ = ("_dial", "_in_flight", "_owner", "_pending", "_task", "_wake", "node")

    def __init__(self, dial: Dial, owner: WireOwner) -> None:
        self._dial = dial
        self._owner = owner
        self._pending: list[StoreCommand] = []
        self._in_flight: deque[StoreCommand] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.node: Node = ("", 0)
        """The server of the present or last connection."""

    @property
    def is_open(self) -> bool:
        return self._task is not None

    async def open(self, node: Node) -> None:
        """Connects; raises as the connection does, and has no timeout of its own."""
        connection = await self._dial(node)
        self.node = node
        self._task = asyncio.create_task(self._run(connection), name="store wire")
        await asyncio.sleep(0)  # a task that has begun closes its connection however it ends

    def ask(self, *jobs: StoreCommand) -> None:
        """Sends the commands, with nothing in between, as soon as the round trip under way is complete."""
        self._pending.extend(jobs)
        self._wake.set()

    def cut(self, reason: str) -> asyncio.Task[None] | None:
        """Closes the connection and fails its commands; the returned task, if any, ends when the connection is closed."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        sent, unsent = [*self._in_flight], [*self._pending]
        self._in_flight.clear()
        self._pending.clear()
        for job in sent:
            job.fail(NoReply(reason))
        for job in unsent:
            job.fail(StoreGone(reason))
        return task

    async def _run(self, connection: Connection) -> None:
        """Is the only reader and writer of the connection; a caller that is cancelled does not cancel it."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._pending:
                    connection = await self._alive(connection)
                    await self._round_trip(connection)
        except Exception as error:  # noqa: BLE001 - the task ends: its owner handles any error
            self._task = None
            self.cut(self._owner.broke(error))
        finally:
            await connection.disconnect(nowait=True)

    async def _alive(self, connection: Connection) -> Connection:
        """Returns this connection, or a new one if the server closed it while it was idle."""
        if not await connection.can_read():
            return connection
        await connection.disconnect(nowait=True)
        return await self._dial(self.node)

    async def _round_trip(self, connection: Connection) -> None:
        self._in_flight.extend(self._pending)
        self._pending.clear()
        await connection.send_packed_command([job.packed for job in self._in_flight], check_health=False)
        while self._in_flight:
            try:
                reply = await connection.read_response()
            except ResponseError as error:
                self._owner.refused(self._in_flight.popleft(), error)
            else:
                self._in_flight.popleft().answer(reply)
