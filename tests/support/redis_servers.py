"""Real servers for tests: one, three in a cluster, one watched by a sentinel, and a way there that can fail.

Each listens on a port of its own on 127.0.0.1, keeps nothing on disk, and is gone when the test process is, even if killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

SLOTS = 16384
SERVER = os.environ.get("REDIS_SERVER", "redis-server")
"""The program: another version of Redis, or Valkey."""
READY_S = 60.0
FIRST_PORT, BUS = 11_000, 10_000
"""Ports of servers begin there; a cluster's nodes also listen so far above."""


def free_port() -> int:
    """One that nobody listens on, below those that the system gives to connections: else one of them may take it meanwhile."""
    while True:
        port = FIRST_PORT + secrets.randbelow(BUS)
        if _is_free(port) and _is_free(port + BUS):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_for(fact: Callable[[], object], within_s: float = READY_S) -> None:
    """Until it is true; for what another process does."""
    end = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.005)


class RedisServer:
    """A redis-server process."""

    def __init__(self, *options: str, conf: str = 'save ""\nappendonly no\n', port: int | None = None) -> None:
        self.port = port or free_port()
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self._conf = self._folder / "redis.conf"
        self._conf.write_text(conf)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def version(self) -> tuple[int, int]:
        with self.client() as client:
            major, minor = client.info("server")["redis_version"].split(".")[:2]
        return int(major), int(minor)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self, **options: object) -> redis.Redis:
        """One that waits, for the test's own questions."""
        return redis.Redis(port=self.port, protocol=2, **options)  # type: ignore[arg-type]  # as the client names them

    def do(self, *words: str | bytes | int) -> Any:
        """One command, and its raw reply."""
        with self.client() as client:
            return client.execute_command(*words)

    def start(self) -> RedisServer:
        """Returns when it answers."""
        where = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder))
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", SERVER, str(self._conf), *where, *self._options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self._answers)
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.2) as there:
                there.sendall(b"PING\r\n")
                return there.recv(64)[:1] in (b"+", b"-")
        except OSError:
            return False

    def kill(self) -> None:
        """At once; what was not saved is lost."""
        self._end(signal.SIGKILL)

    def stop(self, *, saved: bool = False) -> None:
        """In good order. `saved`: what it holds is there after `start`."""
        if saved:
            with self.client() as client:
                client.save()
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def restart(self, *, with_data: bool = False) -> None:
        """`with_data`: as a server that has saved; else it is empty."""
        self.stop(saved=with_data)
        if not with_data:
            (self._folder / "dump.rdb").unlink(missing_ok=True)
        self.start()

    def pause(self) -> None:
        """It hangs: connections are accepted by the system, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def flush(self) -> None:
        """Nothing is in it, no script known, and nothing of what a test has set about it is left."""
        self.resume()
        with self.client() as client:
            client.flushall()
            client.script_flush()

    def close(self) -> None:
        """Gone, with its files."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


class RedisCluster:
    """Three nodes that share the slots, each without a replica."""

    def __init__(self, size: int = 3, *options: str) -> None:
        self.nodes = [
            RedisServer(
                *("--cluster-enabled", "yes", "--cluster-node-timeout", "500"),
                *("--cluster-require-full-coverage", "no", *options),
            )
            for _ in range(size)
        ]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> RedisCluster:
        for node in self.nodes:
            node.start()
        first, *others = self.nodes
        bounds = [SLOTS * at // len(self.nodes) for at in range(len(self.nodes) + 1)]
        for number, node in enumerate(self.nodes):
            with node.client() as client:
                _once(client, "already non-zero", "SET-CONFIG-EPOCH", number + 1)
                _once(client, "already busy", "ADDSLOTS", *range(bounds[number], bounds[number + 1]))
        for node in others:
            with node.client() as client:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", first.port)
        wait_for(self.is_whole, 10.0)
        return self

    def is_whole(self) -> bool:
        """Whether every node knows who has which slots."""
        return all(self._knows_all(node) for node in self.nodes)

    def _knows_all(self, node: RedisServer) -> bool:
        with node.client() as client:
            info = client.execute_command("CLUSTER INFO")
            return (info["cluster_state"], info["cluster_slots_assigned"]) == ("ok", str(SLOTS))

    def node_of(self, key: bytes) -> RedisServer:
        """The one that has the key's slot."""
        rows = self.nodes[0].do("CLUSTER", "SLOTS")
        ports = [owner[1] for first, last, owner, *_ in rows if first <= key_slot(key) <= last]
        return next(node for node in self.nodes if node.port == ports[0])

    def begin_move(self, key: bytes, target: RedisServer) -> None:
        """From now on the key's slot is under way."""
        source = self.node_of(key)
        target.do("CLUSTER", "SETSLOT", key_slot(key), "IMPORTING", source.do("CLUSTER", "MYID"))
        source.do("CLUSTER", "SETSLOT", key_slot(key), "MIGRATING", target.do("CLUSTER", "MYID"))

    def end_move(self, key: bytes, target: RedisServer) -> None:
        """It has arrived."""
        for node in (target, *self.nodes):
            node.do("CLUSTER", "SETSLOT", key_slot(key), "NODE", target.do("CLUSTER", "MYID"))

    def move(self, key: bytes, target: RedisServer) -> None:
        """With the key that is in it."""
        source = self.node_of(key)
        self.begin_move(key, target)
        with source.client() as client:
            client.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 1000)
        self.end_move(key, target)

    def flush(self) -> None:
        for node in self.nodes:
            node.flush()

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class RedisWatched:
    """A master, its replica and a sentinel that knows them as `main`."""

    service = "main"

    def __init__(self) -> None:
        self.master = RedisServer("--repl-diskless-sync-delay", "0")
        self.replica = RedisServer(
            *("--replicaof", "127.0.0.1", str(self.master.port), "--repl-diskless-sync-delay", "0"),
            *("--replica-priority", "1"),
        )
        watch = f"sentinel monitor main 127.0.0.1 {self.master.port} 1\nsentinel down-after-milliseconds main 500\n"
        self.sentinel = RedisServer("--sentinel", conf=watch + "sentinel failover-timeout main 2000\n")

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{self.service}/0"

    def start(self) -> RedisWatched:
        for each in (self.master, self.replica):
            each.start()
        wait_for(self._is_linked)
        self.sentinel.start()  # before, on a busy machine it would take the master for down, and the replica for one
        return self

    def _is_linked(self) -> bool:
        with self.replica.client() as client:
            return bool(client.info("replication")["master_link_status"] == "up")

    def fail_over(self) -> None:
        """The replica becomes the master, and the master its replica."""
        with contextlib.suppress(redis.ResponseError):  # before Redis 7.0 it asks every ten seconds
            self.sentinel.do("SENTINEL", "DEBUG", "INFO-PERIOD", 50)
        wait_for(self._has_failed_over, 30.0)
        self.master.do("REPLICAOF", "127.0.0.1", self.replica.port)  # the sentinel would, after eight seconds

    def _has_failed_over(self) -> bool:
        if self.replica.do("ROLE")[0] == b"master":
            return True
        with contextlib.suppress(redis.ResponseError):  # it has not heard enough of the replica yet, or is about it
            self.sentinel.do("SENTINEL", "FAILOVER", self.service)
        return False

    def close(self) -> None:
        for each in (self.sentinel, self.replica, self.master):
            each.close()


class Proxy:
    """A way to a server that can be cut. To be used in one event loop; connections that stand follow every change."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.port = 0
        self.accepted = 0
        self._passes = asyncio.Event()
        self._passes.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def blackhole(self) -> None:
        """From now on everything is accepted, and nothing comes through."""
        self._passes.clear()

    async def refuse(self) -> None:
        """Nobody listens, and connections that stand are reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.reset()

    def reset(self) -> None:
        """Connections that stand end with a reset; new ones are made."""
        for writer in self._writers:
            with contextlib.suppress(OSError):
                there = writer.get_extra_info("socket")
                there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()

    async def recover(self) -> None:
        """As at the start; what was held back comes through."""
        self._passes.set()
        if self._server is None:
            await self.start()

    async def aclose(self) -> None:
        await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            await self._passes.wait()
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.to)
            self._writers.add(there_writer)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(reader, there_writer))
                    both.create_task(self._pass(there_reader, writer))
            finally:
                self._writers.discard(there_writer)
                there_writer.transport.abort()
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    server = RedisServer(*options)
    try:
        yield server.start()
    finally:
        server.close()


@contextlib.contextmanager
def redis_cluster(size: int = 3) -> Iterator[RedisCluster]:
    cluster = RedisCluster(size)
    try:
        yield cluster.start()
    finally:
        cluster.close()


@contextlib.contextmanager
def redis_watched() -> Iterator[RedisWatched]:
    watched = RedisWatched()
    try:
        yield watched.start()
    finally:
        watched.close()


@contextlib.asynccontextmanager
async def proxied(port: int) -> AsyncIterator[Proxy]:
    proxy = await Proxy(port).start()
    try:
        yield proxy
    finally:
        await proxy.aclose()


def _once(client: redis.Redis, done: str, *command: str | int) -> None:
    """On a busy machine the client asks twice: the server has done it, but its answer came too late."""
    try:
        client.execute_command("CLUSTER", *command)  # type: ignore[no-untyped-call]  # redis has no types for it
    except redis.ResponseError as error:
        if done not in str(error):
            raise
