"""Decides how long a call waits whose caller has neither set a timeout nor chosen a lane, by what its client is known to do.

Whoever does not want to wait hangs up, and the gateway sees that. A client's own timeout ends call after call after the same
time; a person who stops a program ends all of its calls in one moment. So hang-ups count by moments, not by calls, and only
those after about the same wait. It must not know calls or clocks. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SDK_S = 600.0
"""For an SDK that sends its timeout and has sent none: the default of openai-python, openai-node and Anthropic's SDKs."""
UNKNOWN_S = 300.0
"""For all other clients: undici, beneath Node's `fetch`, waits so long for the head of an answer."""
SHORTEST_S = 5.0
"""A client that hangs up sooner teaches nothing: its calls hardly take up any room in the queue."""
MOMENT_S = 1.0
"""Hang-ups closer together than this are one moment, whatever has caused them."""
FEWEST_MOMENTS = 3
"""The moments with hang-ups after about the same wait that show a timeout of the client's own."""
ALIKE = 0.05
"""Two waits are alike if they differ by less than this share of the longer one."""
FORGET_S = 300.0
"""Seconds without a hang-up after which a client is unknown again. What it was known for prevents the hang-ups that would
confirm it, so this is also for how long a mistake lasts."""
MOST_CLIENTS = 1024
"""The clients that are remembered; of more, those whose last hang-up is the longest ago are forgotten."""
MOST_NAME_BYTES = 200
"""The part of a user agent by which clients differ."""


class HangUps(NamedTuple):
    """A client's latest hang-ups after about the same wait."""

    wait_s: float
    """The longest of the waits."""
    moments: int
    at: float
    """The last moment that was counted (monotonic seconds)."""


class ClientName(NamedTuple):
    """A key's name and a user agent: as far as the gateway can tell clients apart."""

    key: str
    user_agent: bytes


def client_of(key: str, user_agent: bytes) -> ClientName:
    """Returns the client that sends this user agent with the key of this name."""
    return ClientName(key, user_agent[:MOST_NAME_BYTES])


def are_alike(one_s: float, other_s: float) -> bool:
    """Returns whether the two waits may have been ended by the same timeout."""
    return abs(one_s - other_s) <= ALIKE * max(one_s, other_s)


def after_hang_up(seen: HangUps | None, waited_s: float, now: float) -> HangUps | None:
    """Returns what is known of a client that hung up after `waited_s` without an answer.

    A longer wait than before begins the count anew, because the client does not always hang up so soon; a shorter one does so
    only while nothing was learned.
    """
    if seen is not None and now - seen.at >= FORGET_S:
        seen = None
    if waited_s < SHORTEST_S:
        return seen
    if seen is None:
        return HangUps(waited_s, 1, now)
    is_alike = are_alike(waited_s, seen.wait_s)
    if now - seen.at < MOMENT_S:
        return seen._replace(wait_s=max(seen.wait_s, waited_s)) if is_alike else seen
    if is_alike:
        return HangUps(max(seen.wait_s, waited_s), seen.moments + 1, now)
    if waited_s < seen.wait_s and seen.moments >= FEWEST_MOMENTS:
        return seen
    return HangUps(waited_s, 1, now)


def patience_s(seen: HangUps | None, now: float) -> float:
    """Returns for how many seconds the client waits, from SHORTEST_S to UNKNOWN_S."""
    if seen is None or seen.moments < FEWEST_MOMENTS or now - seen.at >= FORGET_S:
        return UNKNOWN_S
    return min(max(seen.wait_s, SHORTEST_S), UNKNOWN_S)


class ClientPatience:
    """What is known of the clients that have hung up of late."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[ClientName, HangUps] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def hung_up(self, client: ClientName, waited_s: float, now: float) -> HangUps | None:
        """Notes that the client hung up after `waited_s` without an answer, and returns what is known of it now."""
        seen = after_hang_up(self._seen.pop(client, None), waited_s, now)
        if seen is not None:
            self._seen[client] = seen  # the last one in: it is forgotten last
            if len(self._seen) > MOST_CLIENTS:
                del self._seen[next(iter(self._seen))]
        return seen

    def forget(self, client: ClientName) -> None:
        """Forgets a client that turns out to wait longer."""
        self._seen.pop(client, None)

    def of(self, client: ClientName, now: float) -> float:
        """Returns for how many seconds the client waits."""
        return patience_s(self._seen.get(client), now)

    def learned(self, now: float) -> Iterator[tuple[ClientName, float]]:
        """Yields the clients that are known to wait for less than UNKNOWN_S, with the seconds."""
        for client, seen in self._seen.items():
            wait_s = patience_s(seen, now)
            if wait_s < UNKNOWN_S:
                yield client, wait_s
