"""Opens what webhooks leave by: one way to endpoints of the config, which may be internal; a guarded one to others."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import httpx

from gateway.core.http.client.httpx_transport.httpx_transport import HttpxTransport
from gateway.core.http.client.transport import Http1Transport
from gateway.products.jobs.webhooks.outward.guarded import GuardedOutward
from gateway.products.jobs.webhooks.outward.job_ports_outward import FetchGuard, Outward
from gateway.products.jobs.webhooks.outward.outwards_outward import CONNECTIONS, HttpOutward


def open_outwards(guard: FetchGuard, egress_proxy: str | None, ca_file: str | None) -> tuple[Outward, Outward]:
    """Returns the way to endpoints of the config, and the guarded one. Raises OSError for a `ca_file` that cannot be read."""

    def tls() -> ssl.SSLContext:
        context = ssl.create_default_context()
        if ca_file is not None:
            context.load_verify_locations(ca_file)
        context.set_alpn_protocols(["http/1.1"])
        return context

    if egress_proxy is not None:
        own, others = (_through(egress_proxy, tls) for _ in range(2))
        return HttpOutward(own), GuardedOutward(guard, tls, others)
    context = None if ca_file is None else tls()  # the default one is loaded at first use
    return HttpOutward(Http1Transport(ssl_context=context, max_connections=CONNECTIONS)), GuardedOutward(guard, tls)


def _through(proxy: str, tls: Callable[[], ssl.SSLContext]) -> httpx.AsyncBaseTransport:
    return HttpxTransport(ssl_context=tls(), max_connections=8 * CONNECTIONS, proxy=proxy)
