"""Where the master of a service is: sentinels are asked, all at once, and the first who knows is believed.

Invariant: it is asked anew whenever something has gone wrong; a master that is none any more is found out by a write.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.store.redis_link.connect import TROUBLE, Node, StoreAddress, connect


async def master_of(address: StoreAddress) -> Node:
    """Raises as a connection does when nobody knows; waits as long as it takes."""
    tasks = [asyncio.create_task(_ask(address, sentinel)) for sentinel in address.nodes]
    trouble: BaseException | None = None
    try:
        for first in asyncio.as_completed(tasks):
            try:
                return await first
            except TROUBLE as error:
                trouble = error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise RedisConnectionError(f"no sentinel knows the master of {address.service}: {trouble}")


async def _ask(address: StoreAddress, sentinel: Node) -> Node:
    sentinels = replace(address, db=0)
    try:
        connection = await connect(sentinels, sentinel)
    except AuthenticationError:  # the login is the servers', not the sentinels'
        connection = await connect(replace(sentinels, username=None, password=None), sentinel)
    try:
        await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", address.service)
        match await connection.read_response():
            case [bytes(host), bytes(port)]:
                return host.decode(), int(port)
        raise RedisConnectionError("it does not know the service")
    finally:
        await connection.disconnect(nowait=True)
