"""A process that fills a memory store and lets its contents change, and prints what it really takes.

`python -m tests.drivers.churn BYTES PHASES` prints one JSON line per phase. In each, entries of another size than before
replace those that are there, among allocations that come and go, as calls do; nothing else runs in the process.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles

from gateway.core.types import StoreBounds
from tests.support.conformance import kept
from tests.support.stores import MemoryStore

NOW = 1_700_000_000.0
TYPICAL_BYTES = (1_100, 13_000, 3_000, 400, 60_000, 600)
"""The middle of the sizes of each phase's bodies; some are ten times as large."""
OWNERS = 50
SAMPLE = 5_000
TICK = 100
"""Puts between two ticks, which come once a second: of a busy gateway."""


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def micros(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and worst in microseconds."""
    cuts = quantiles(seconds, n=100)
    return {"p50": round(cuts[49] * 1e6, 1), "p99": round(cuts[98] * 1e6, 1), "max": round(max(seconds) * 1e6, 1)}


class Churn:
    """A store, and what is put into it."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._draw = random.Random(5)
        self._noise = os.urandom(4 << 20)
        self._likeness = kept(now=NOW, fresh_s=1e6)
        self._passing: list[bytes] = []
        self._before = rss_bytes()
        self._store = MemoryStore(StoreBounds(answers={"default": bound}, records=0), lambda: NOW)

    def phase(self, number: int) -> dict[str, object]:
        """Put in what fits, and a quarter more, and look; times are CPU, of the last puts, which replace others."""
        typical = TYPICAL_BYTES[number % len(TYPICAL_BYTES)]
        left = 1.25 * self.bound
        puts = array("d", bytes(8 * SAMPLE))  # no list: it would be what grows
        keys: deque[bytes] = deque(maxlen=SAMPLE)
        count, worst, worst_tick = 0, 0.0, 0.0
        while left > 0:
            body = self._body(typical)
            one = replace(self._likeness, body=body, tenant=f"t{self._draw.randrange(OWNERS)}")
            key = self._draw.randbytes(32)
            began = time.thread_time()
            self._store.answers.put(key, one)
            puts[count % SAMPLE] = time.thread_time() - began
            worst = max(worst, puts[count % SAMPLE])
            count += 1
            left -= len(body) + 600
            keys.append(key)
            if count % TICK == 0:
                began = time.perf_counter()
                self._store.tick()
                worst_tick = max(worst_tick, time.perf_counter() - began)
        figures = self._figures(number, keys)
        worsts = {"worst_put_us": round(worst * 1e6), "worst_tick_us": round(worst_tick * 1e6)}
        return {**figures, "puts": count, "put_us": micros(puts[:count]), **worsts}

    def _body(self, typical: int) -> bytes:
        size = min(1 << 20, int(typical * self._draw.lognormvariate(0, 1.0)))
        self._passing = [bytes(self._draw.randrange(500, 20_000)) for _ in range(3)]
        start = self._draw.randrange(1 << 20)
        return self._noise[start : start + size]

    def _figures(self, number: int, keys: Iterable[bytes]) -> dict[str, object]:
        gets = []
        for key in keys:
            began = time.thread_time()
            self._store.answers.get(key, "default")
            gets.append(time.thread_time() - began)
        stats = self._store.stats()["answers"]
        return {
            "phase": number,
            "entries": stats["entries"],
            "stated": round(stats["bytes"] / self.bound, 4),
            "resident": round((rss_bytes() - self._before) / self.bound, 4),
            "get_us": micros(gets),
        }


def main() -> None:
    gc.set_threshold(25_000, 20, 50)  # as the gateway runs
    churn = Churn(int(sys.argv[1]))
    for number in range(int(sys.argv[2])):
        print(json.dumps(churn.phase(number)), flush=True)  # noqa: T201 - read by who started it


if __name__ == "__main__":
    main()
