"""`python -m tests.bench.vectors`: how long the semantic index takes, by rows and dimensions, and what a row takes in memory.

In one process, on random vectors that all lean to one side (the cosine of two of them is 0.26 on average, as with questions
about one subject), asked for one that has a near neighbour. `crowd` asks with a threshold that all rows reach, which is
the most that a search can cost. `every cosine` is what the same search takes without sketches. Median and 99th percentile.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

from gateway.features.semantic import index as nearest
from gateway.features.semantic.index import Partition, VectorIndex
from gateway.features.semantic.store import VectorRow

ROWS = (1_000, 10_000, 50_000)
DIMENSIONS = (256, 512, 1536)
LEAN, NEAR = 0.6, 0.2
THRESHOLD = 0.9
PARTITION = b"p" * 32
NEVER = 1e12
TITLES = ("dims", "rows", "search", "crowd", "every cosine", "add", "load", "a row", "RSS")
WIDTHS = (5, 6, 15, 15, 15, 7, 8, 7, 7)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.vectors", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--dimensions", type=int, nargs="*", default=DIMENSIONS)
    parser.add_argument("--searches", type=int, default=200, help="of each kind")
    parser.add_argument("--cpu", action="store_true", help="CPU time instead of elapsed, for a machine that is shared")
    options = parser.parse_args()
    now = time.thread_time if options.cpu else time.perf_counter
    say(line_of(TITLES))
    for dimensions in options.dimensions:
        for rows in options.rows:
            say(measure(rows, dimensions, options.searches, now))
    say("times in ms (median / 99th percentile), sizes in bytes; a row: as counted, RSS: as the process has grown")


def measure(count: int, dimensions: int, searches: int, now: Callable[[], float]) -> str:
    """One line of the table."""
    index = VectorIndex(1 << 32)
    np: Any = import_module("numpy")  # behind the index, which says with how many threads
    draw = np.random.default_rng(1)
    center = LEAN * draw.standard_normal(dimensions)
    vectors = (draw.standard_normal((count, dimensions)) + center).astype(np.float32)
    rows = [row_of(number, index.pack(vector)) for number, vector in enumerate(vectors)]
    queries = [index.pack(vectors[at] + NEAR * draw.standard_normal(dimensions)) for at in draw.integers(0, count, 50)]
    del vectors
    before = resident_bytes()
    began_at = now()
    partition = index.build(rows, count)
    load_s = now() - began_at
    index.put(PARTITION, partition)
    grown = (resident_bytes() - before) / count
    search = timed(now, searches, queries, lambda query: partition.search(query, THRESHOLD, 8, 0.0))
    crowd = timed(now, searches // 4, queries, lambda query: partition.search(query, -1.0, 8, 0.0))
    every = timed(now, searches // 8, queries, lambda query: without_sketches(partition, query))
    numbers = iter(range(count, 2 * count))
    add = timed(now, searches, queries, lambda query: index.add(row_of(next(numbers), query), 2 * count))
    told = (both(search), both(crowd), both(every), f"{add[0]:.3f}", f"{load_s * 1e3:.0f}")
    return line_of((str(dimensions), str(count), *told, str(nearest.row_bytes(dimensions)), f"{grown:.0f}"))


def line_of(cells: tuple[str, ...]) -> str:
    return " ".join([cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)])


def row_of(number: int, vector: bytes) -> VectorRow:
    return VectorRow(number.to_bytes(32, "big"), PARTITION, vector, bytes(120), "m", "acme", 0.0, NEVER)


def timed(
    now: Callable[[], float], times: int, queries: list[bytes], work: Callable[[bytes], object]
) -> tuple[float, float]:
    """The median and the 99th percentile of so many, in milliseconds."""
    taken = []
    for number in range(times + 2):
        query = queries[number % len(queries)]
        began_at = now()
        work(query)
        taken.append(1e3 * (now() - began_at))
    taken = sorted(taken[2:])
    return median(taken), taken[int(0.99 * (len(taken) - 1))]


def without_sketches(partition: Partition, query: bytes) -> list[Any]:
    """The cosine of every row."""
    kept = nearest.EXACT_ROWS
    nearest.EXACT_ROWS = sys.maxsize
    try:
        return partition.search(query, THRESHOLD, 8, 0.0)
    finally:
        nearest.EXACT_ROWS = kept


def both(times: tuple[float, float]) -> str:
    return f"{times[0]:.2f} / {times[1]:.2f}"


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
