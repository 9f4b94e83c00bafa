"""Webhooks, assembled: who delivers, in which segments of jobs, and what operators see of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from gateway.core.clock import Clock
from gateway.core.snapshot import Policies
from gateway.drivers.outward import Outward
from gateway.products.jobs.request import WEBHOOK_SECRETS
from gateway.products.jobs.rules import JOBS, SegmentRules
from gateway.products.jobs.store import JobStore
from gateway.products.jobs.webhooks.http import WebhookAdmin
from gateway.products.jobs.webhooks.rules import WEBHOOKS
from gateway.products.jobs.webhooks.service import Deliveries, Endpoints, RequestedUrls, delivery_segments


class WebhookWork:
    """All of webhooks in one process."""

    def __init__(
        self,
        policies: Policies,
        clock: Clock,
        read_store: Callable[[], Awaitable[JobStore]],
        outwards: tuple[Outward, Outward],
        draw: Callable[[], float],
    ) -> None:
        """`outwards` lead to endpoints of the config, and guarded to all others; `draw` gives uniform numbers from [0, 1)."""
        self._policies = policies
        self._clock = clock
        self._draw = draw
        self._endpoints = Endpoints(lambda: WEBHOOKS.of(policies.current), clock.monotonic, outwards[0])
        self._requested = RequestedUrls(
            lambda: JOBS.of(policies.current).default.allow_request_urls, self._secrets, clock.monotonic, outwards[1]
        )
        self.admin = WebhookAdmin(
            lambda: WEBHOOKS.of(policies.current), self._endpoints, self._requested, read_store, clock
        )

    def deliveries(self, store: JobStore) -> Deliveries:
        """Returns who runs the deliveries of a store."""
        return Deliveries(store, self._endpoints, self._requested, self._clock, self._draw)

    def segments(self, store: JobStore) -> Sequence[SegmentRules]:
        """Returns the segments of the deliveries of a store, as they are now."""
        return delivery_segments(self._endpoints, self._requested, store)

    def _secrets(self, name: str) -> tuple[bytes, ...]:
        """Returns what signs the deliveries of a key, none where it is gone."""
        policy = self._policies.current
        keys = policy.keys.values() if policy.keys else [policy.anonymous]
        return next((WEBHOOK_SECRETS.of(key) for key in keys if key.name == name), ())
