"""The worlds that tests and sweeps start from: targets of the usual kinds, told to the gateway or not, and ideal times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gateway.core.limits.limit_table import AZURE, Limits, Style
from gateway.core.snapshot import Counting
from tests.sim.limits import Refill, Windows
from tests.sim.provider import Fault, Latency, Provider
from tests.sim.world import OPENAI, Site, World

TellsLimits = Literal["headers", "nothing"]
MINUTE = Counting(kind="mistral", charge="sum", style=Style(request_window_s=60.0, token_window_s=60.0))
USUAL = Latency()
"""The first byte, and the whole answer, after 0.3 s; no time on the way."""
AZURES = Counting(kind="azure", charge="sum", style=AZURE)


def requests_site(
    rpm: float = 6000,
    burst: float = 100,
    *,
    name: str = "p0",
    tells: TellsLimits = "headers",
    is_configured: bool = True,
    latency: Latency = USUAL,
    faults: Sequence[Fault] = (),
    is_fallback: bool = False,
) -> Site:
    """So many requests a minute by continuous refill; `tells` nothing: neither limit headers nor Retry-After."""
    provider = Provider(
        name,
        [Refill("requests", rpm, burst)],
        latency=latency,
        headers="openai" if tells == "headers" else "none",
        retry_after="ms" if tells == "headers" else "none",
        faults=faults,
    )
    limits = Limits(requests_per_min=rpm, request_burst=burst) if is_configured else Limits()
    return Site(provider, limits, OPENAI, is_fallback)


def tokens_site(tpm: float = 600_000, *, tells: TellsLimits = "headers") -> Site:
    """So many tokens a minute by continuous refill, a minute's worth at most."""
    headers: Literal["openai", "none"] = "openai" if tells == "headers" else "none"
    retry_after: Literal["ms", "none"] = "ms" if tells == "headers" else "none"
    provider = Provider("p0", [Refill("tokens", tpm)], headers=headers, retry_after=retry_after)
    return Site(provider, Limits(tokens_per_min=tpm), OPENAI)


def azure_site(rpm: float = 6000, *, tells: TellsLimits = "headers", phase_s: float = 0.0) -> Site:
    """Azure's windows: a sixth of the minute's requests in 10 s. The first begins `phase_s` before time does."""
    headers: Literal["azure", "none"] = "azure" if tells == "headers" else "none"
    retry_after: Literal["s", "none"] = "s" if tells == "headers" else "none"
    limits = [Windows("requests", rpm, 10.0, phase_s)]
    provider = Provider("p0", limits, headers=headers, retry_after=retry_after, charge="sum")
    return Site(provider, Limits(requests_per_min=rpm), AZURES)


def anthropic_site(per_min: float = 300_000, *, tells: TellsLimits = "headers") -> Site:
    """Input tokens counted when a call is let in, output tokens when they have come; as many of each."""
    headers: Literal["anthropic", "none"] = "anthropic" if tells == "headers" else "none"
    retry_after: Literal["s", "none"] = "s" if tells == "headers" else "none"
    limits = [Refill("input-tokens", per_min), Refill("output-tokens", per_min)]
    provider = Provider("p0", limits, headers=headers, retry_after=retry_after, charge="input")
    told = Limits(input_tokens_per_min=per_min, output_tokens_per_min=per_min)
    return Site(provider, told, Counting(kind="anthropic", charge="input"))


def slots_site(most: int = 20, *, latency: Latency = USUAL) -> Site:
    """At most so many at a time."""
    provider = Provider("p0", latency=latency, headers="none", retry_after="none", max_concurrency=most)
    return Site(provider, Limits(max_concurrency=most), Counting(learns=False))


def unbounded_site(best: int = 16) -> Site:
    """A server of one's own that queues without bound, at its best with so many at a time."""
    latency = Latency(0.5, 0.3, slows_above=best)
    provider = Provider("p0", latency=latency, headers="none", retry_after="none")
    return Site(provider, counting=Counting(learns=False, adaptive=True))


def finished_s(world: World) -> float:
    """When the last answer ended, from the start."""
    return max(call.ended_at for call in world.calls if call.outcome == "ok") - world.started_at
