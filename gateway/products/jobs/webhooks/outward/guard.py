"""The guard of every request to a URL that a caller has named: none leaves but to public addresses."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.products.jobs.webhooks.outward.job_ports_outward import FetchRefused
from gateway.products.jobs.webhooks.outward.public_address import NotPublic, PublicUrl, read_public_url, refuse_private


class AddressGuard:
    """Implements `gateway.products.jobs.webhooks.outward.job_ports_outward.FetchGuard`."""

    def read(self, url: str) -> PublicUrl:
        """Returns the URL's parts. Raises FetchRefused."""
        try:
            return read_public_url(url)
        except NotPublic as error:
            raise FetchRefused(f"the URL {error}") from None

    def check(self, addresses: Sequence[str]) -> None:
        """Looks at all addresses that a name stands for. Raises FetchRefused."""
        try:
            refuse_private(addresses)
        except NotPublic as error:
            raise FetchRefused(f"its host {error}") from None
