"""The routes of files and batches on a real port, with stores in memory or in a folder: no worker, nothing mocked."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml
from openai import AsyncOpenAI
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.core import request_fields
from gateway.core.call import Call, Reply
from gateway.core.clock import SystemClock
from gateway.core.config.load import load_snapshot
from gateway.core.errors import NoTargetAvailable
from gateway.core.http.server import HttpServer, bind
from gateway.core.snapshot import Policies, PolicySnapshot, with_settings
from gateway.core.types import Upstream
from gateway.dialects.config import DialectLanguages
from gateway.drivers.durability import JobSettings
from gateway.products.batches.files_http import FileRoutes
from gateway.products.batches.finish import PartialFiles
from gateway.products.batches.http import BatchRoutes, MergedLists
from gateway.products.batches.service import BatchService, FileService
from gateway.products.jobs.answers_http import EventReaders
from gateway.products.jobs.rules import JOBS, Jobs
from gateway.products.jobs.store import Blobs, JobStore
from gateway.products.jobs.upkeep import Watchers
from gateway.products.jobs.worker import JobEngine
from gateway.routes import build_app
from gateway.sections import SECTIONS
from tests.e2e.harness import NIGHTLY_KEY, WEB_KEY, config_of
from tests.loopback import plain_http
from tests.support.memory_blobs import MemoryBlobs
from tests.support.memory_store.store import MemoryJobStore

OTHER_KEY = NIGHTLY_KEY
"""Of another tenant."""
KEYS = [
    {"name": "web", "key": WEB_KEY},
    {"name": "other", "key": OTHER_KEY},
    {"name": "few", "key": "few-canary-key-0123456789abcdef", "models": ["gpt-4o"], "tenant": "web"},
]
FEW_KEY = "few-canary-key-0123456789abcdef"
"""Of the tenant `web`, for one model."""


class Silent:
    """Hears of refusals."""

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        """Nobody reads it."""


def snapshot(folder: Path, settings: Mapping[str, Any] | None = None, **sections: Any) -> PolicySnapshot:
    """Compiles a config; `settings` are changes to its `jobs` section as compiled."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config_of("http://127.0.0.1:9/v1", **{"keys": KEYS, **sections})))
    policy = load_snapshot(
        path, {}, sections=SECTIONS, languages=DialectLanguages(), connect=_no_upstream, version=1, now_wall=0.0
    )
    return with_settings(policy, {JOBS: Jobs(replace(JobSettings(), store="memory", **(settings or {})))})


def _no_upstream(_provider: object, _model: str | None) -> Upstream:
    return None  # type: ignore[return-value]  # nothing is called here


@dataclass
class JobEdge:
    """What is running."""

    url: str
    policies: Policies
    store: JobStore
    blobs: Blobs
    files: FileService
    watchers: Watchers
    server: HttpServer
    readers: EventReaders
    clients: list[AsyncOpenAI] = field(default_factory=list)

    def sdk(self, api_key: str = WEB_KEY) -> AsyncOpenAI:
        """The official SDK."""
        client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, http_client=plain_http())
        self.clients.append(client)
        return client

    @property
    def connections(self) -> list[Any]:
        """The client connections."""
        return list(self.server._state.connections)


def _nobody(_call: Call) -> NoReturn:
    raise NoTargetAvailable("No provider is to be reached.")


@asynccontextmanager
async def job_edge(
    folder: Path,
    *,
    blobs: Blobs | None = None,
    provider: Callable[[Call], Reply] = _nobody,
    **config: Any,
) -> AsyncIterator[JobEdge]:
    """Serves the routes until its end; behind them everything is left to a passthrough that says so.

    `provider` answers what the gateway itself asks of that one. A request that is relayed after it was read comes back as 299.
    """
    policies = Policies(snapshot(folder, **config))
    clock = SystemClock()
    store, kept = MemoryJobStore(clock.wall), blobs or MemoryBlobs()

    async def open_store() -> JobStore:
        return store

    engine = JobEngine(open_store, lambda: True, None, clock)
    files = FileService(engine, kept, clock, lambda: JOBS.of(policies.current), os.urandom)
    watchers = Watchers(clock)
    batches = BatchService(engine, watchers, clock, lambda: JOBS.of(policies.current).default, os.urandom)
    readers = EventReaders()

    async def serve(call: Call) -> Reply:
        return provider(call)

    async def relay(scope: Scope, receive: Receive, send: Send) -> None:
        body = await scope["state"]["cycle"].read_body(
            policies.current.server.most_bytes(request_fields.OTHER), lambda _size: None
        )
        await Response(body, 299)(scope, receive, send)

    lists = MergedLists(policies, clock, serve)
    routes = (
        FileRoutes(policies, files, PartialFiles(open_store, kept), lists, relay).routes()
        + BatchRoutes(policies, batches, readers, lists, relay).routes()
    )
    left = Route("/{path:path}", lambda _request: PlainTextResponse("left to the provider"), methods=["GET", "POST"])
    app = build_app([*routes, left], Silent())  # type: ignore[arg-type]  # all that is asked of the meter
    server = HttpServer(app, bind("127.0.0.1", 0), lambda *_said: None)
    edge = JobEdge(server.url, policies, store, kept, files, watchers, server, readers)
    await server.start()
    try:
        yield edge
    finally:
        for client in edge.clients:
            await client.close()
        await server.stop()
        await store.aclose()
        await kept.aclose()
