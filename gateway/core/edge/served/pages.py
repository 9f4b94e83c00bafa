"""Web pages that call a gateway without keys: any page open on this machine could spend its money and read its answers.

Without keys the gateway listens on loopback only, so whoever may call it says so. A page of another site gives itself away by
its `Origin`, or by `Sec-Fetch-Site` where a browser sends no origin (images, forms by GET, links: W3C Fetch Metadata, 2.3); one
whose name was made to resolve to this machine (DNS rebinding) by its `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.core.errors import Forbidden

_LOCAL_HOST = re.compile(rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]{1,5})?", re.IGNORECASE)


def refuse_pages(index: Mapping[bytes, bytes]) -> None:
    """Raises Forbidden for a request of a web page that is not of this machine; `index` has the headers by name."""
    origin = index.get(b"origin")
    if origin is None:
        site = index.get(b"sec-fetch-site")
        is_foreign = site is not None and site.strip().lower() == b"cross-site"
    else:
        is_foreign = _LOCAL_HOST.fullmatch(origin.partition(b"://")[2]) is None
    if is_foreign:
        raise Forbidden(
            "Without keys, pages of other sites may not call this gateway; add 'keys' to the config.",
            code="origin_not_allowed",
        )
    host = index.get(b"host")
    if host and not _LOCAL_HOST.fullmatch(host):
        raise Forbidden(
            "Without keys, this gateway answers to localhost and 127.0.0.1 only; add 'keys' to the config.",
            code="host_not_allowed",
        )
