"""What the tests of `/admin/cache` stand on: its routes at a real port, and a keeper that remembers what it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gateway.core.errors import GatewayError
from gateway.core.http.server import HttpServer, bind
from gateway.core.retry import Attempt
from gateway.core.snapshot import Policies
from gateway.core.types import Endpoint, Usage
from gateway.features.outcome import CacheOutcome
from gateway.features.reuse.http import cache_routes
from gateway.features.reuse.savings import Savings
from gateway.routes import build_app
from tests.e2e.harness import ADMIN_KEY, KEYS, config_of
from tests.support.configs import load_text
from tests.support.flow import Bench, Recorder, ScriptedUpstream
from tests.support.targets import target_named

KEY = bytes(range(32))


class Quiet(Recorder):
    """A meter that takes refusals as they come."""

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        return None


@dataclass
class FakeCache:
    """Keeps nothing; answers as it is told."""

    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: {"answers": {"entries": 3, "bytes": 3000}})
    forgets: int = 3
    replay: CacheOutcome = field(default_factory=CacheOutcome)
    refuses: GatewayError | None = None
    purged: list[tuple[bytes | None, str | None, str | None]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        return self.sizes

    async def purge(self, key: bytes | None, model: str | None, tenant: str | None) -> int:
        self.purged.append((key, model, tenant))
        return self.forgets

    async def explain(self, endpoint: Endpoint, body: dict[str, Any], tenant: str) -> CacheOutcome:
        self.asked.append((endpoint.name, body, tenant))
        if self.refuses is not None:
            raise self.refuses
        return self.replay


def hit(**changes: Any) -> CacheOutcome:
    """How a call fared that the exact cache spared its provider."""
    values: dict[str, Any] = {
        "result": "hit",
        "layer": "exact",
        "key": KEY,
        "source": "req_0",
        "target": "main/gpt-4o",
        "age_s": 12.34567,
        "saved": Usage(1000, 200),
        "saved_usd": 0.25,
        "tried": [("single_flight", "miss"), ("exact", "hit")],
        "why": ["temperature is 0"],
    }
    return CacheOutcome(**{**values, **changes})


def miss() -> CacheOutcome:
    """How a call fared that no layer knew."""
    return CacheOutcome(tried=[("single_flight", "miss"), ("exact", "miss")])


def saved(*ended: CacheOutcome) -> Savings:
    """What comes of calls that fared so, as `req_1`, `req_2` …; whoever was not spared went to a provider."""
    bench, savings = Bench([ScriptedUpstream()]), Savings()
    for number, replay in enumerate(ended, 1):
        attempts = [] if replay.layer else [Attempt(target_named("a/m"), 1.0)]
        savings.note(bench.call(id=f"req_{number}", replay=replay, attempts=attempts))
    return savings


@asynccontextmanager
async def serving(
    folder: Path, cache: FakeCache, savings: Savings, keys: Sequence[Mapping[str, Any]] = KEYS, **sections: Any
) -> AsyncIterator[str]:
    """The routes at this address, as long as the test lasts."""
    config = config_of("http://127.0.0.1:1/v1", keys=[*keys] or None, **{"admin": {"key": ADMIN_KEY}, **sections})
    policies, meter = Policies(load_text(folder, yaml.safe_dump(config))), Quiet()
    app = build_app(cache_routes(policies, cache, savings), meter)
    server = HttpServer(app, bind("127.0.0.1", 0), meter.refused)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()
