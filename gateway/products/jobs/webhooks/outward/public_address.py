"""Which addresses a URL of a stranger's may lead to: public ones, and nothing else. Pure: who resolves names hands them in.

One reading of the URL serves the verdict and the connection, so that no second parser can see another host in it. What has
two readings anywhere (numbers in odd bases, backslashes, escapes, letters that fold into others) is refused, not repaired.
Source: RFC 3986; the IANA registries of special-purpose addresses (RFC 6890 and its updates), 2026-11; RFC 6052 (NAT64).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

PORTS: Final = (443, 8443)
MOST_URL_CHARS: Final = 2048
_URL: Final = re.compile(r"https://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(?::([0-9]{1,5}))?((?:/[!-~]*)?(?:\?[!-~]*)?)")
_LABEL: Final = re.compile(r"[0-9a-z](?:[0-9a-z-]{0,61}[0-9a-z])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_INTERNAL: Final = frozenset(
    [
        "alt",
        "arpa",
        "corp",
        "example",
        "home",
        "internal",
        "intranet",
        "invalid",
        "lan",
        "local",
        "localdomain",
        "localhost",
        "onion",
        "private",
        "test",
    ]
)
"""Last labels that no public name has (RFC 6761, 6762, 7686, 9476; ICANN's reserved ones), and those of routers at home."""

_RESERVED_4: Final = tuple(
    IPv4Network(net)
    for net in (
        "0.0.0.0/8",  # this network: on most systems this machine
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers' NAT; Alibaba's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform, at a public address
        "169.254.0.0/16",  # link-local: metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_GLOBAL_6: Final = IPv6Network("2000::/3")
"""All that was ever given out for the public; the rest (unspecified, loopback, local, multicast, mapped) lies outside."""
_RESERVED_6: Final = tuple(
    IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments: benchmarks, ORCHID, AMT, AS112; Teredo is looked into before
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
_MAPPED, _NAT64, _SIX_TO_FOUR, _TEREDO = (
    IPv6Network(net) for net in ("::ffff:0:0/96", "64:ff9b::/96", "2002::/16", "2001::/32")
)
_ISATAP: Final = frozenset((0x00005EFE, 0x02005EFE))
"""The upper half of an interface's id that holds an IPv4 address in the lower one (RFC 5214)."""


class NotPublic(Exception):
    """A URL, or an address that its name stands for, is not one that a stranger may name. The message names no path."""


class PublicUrl(NamedTuple):
    """A URL that has one reading."""

    host: str
    """In small letters: a name, or an IP address without brackets."""
    port: int
    target: str
    """Path and query."""
    is_address: bool
    """The host is an address, which is public; a name still has to be resolved, and what it stands for judged."""

    @property
    def origin(self) -> str:
        """Returns scheme, host and port, which may be shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}" if self.port == PORTS[0] else f"https://{host}:{self.port}"


def read_public_url(url: str) -> PublicUrl:
    """Reads a URL of a stranger's. Raises NotPublic with what is wrong."""
    if len(url) > MOST_URL_CHARS:
        raise NotPublic(f"has more than {MOST_URL_CHARS} characters")
    found = _URL.fullmatch(url)
    if found is None:
        raise NotPublic(_why_unreadable(url))
    host, port_text, target = found[1].lower(), found[2], found[3]
    port = PORTS[0] if port_text is None else int(port_text)
    if port not in PORTS or (port_text or "443").startswith("0"):
        raise NotPublic("must have the port 443 or 8443")
    target = target if target.startswith("/") else f"/{target}"
    if "#" in target or "\\" in target:
        raise NotPublic("must not have a fragment, or a backslash")
    if host.startswith("["):
        return PublicUrl(_public_literal(host[1:-1]), port, target, is_address=True)
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # as browsers and resolvers tell an address from a name
        return PublicUrl(_public_literal(host), port, target, is_address=True)
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise NotPublic("must have a host name of letters, digits and inner hyphens, without a dot at its end")
    if len(labels) < 2 or labels[-1] in _INTERNAL:
        raise NotPublic("must have a public host name, such as hooks.example.com")
    return PublicUrl(host, port, target, is_address=False)


def refuse_private(addresses: Sequence[str]) -> None:
    """Raises NotPublic unless each of the addresses that a name stands for is public: which of them is used is chance."""
    for address in addresses:
        if not is_public(address):
            raise NotPublic("stands for an address that is not public")


def is_public(address: str) -> bool:
    """Tells whether an IP address is one of the public Internet, also in what it wraps: mapped, 6to4, NAT64, Teredo, ISATAP."""
    try:
        if ":" not in address:
            return _is_public_4(IPv4Address(address))
        return "%" not in address and _is_public_6(IPv6Address(address))
    except AddressValueError:
        return False


def _is_public_4(address: IPv4Address) -> bool:
    return not any(address in net for net in _RESERVED_4)


def _is_public_6(address: IPv6Address) -> bool:
    number = int(address)
    if address in _MAPPED or address in _NAT64:
        return _is_public_4(IPv4Address(number & 0xFFFFFFFF))
    if address in _SIX_TO_FOUR:
        return _is_public_4(IPv4Address(number >> 80 & 0xFFFFFFFF))
    if address in _TEREDO:  # the server, and the client behind its NAT, of which each bit is turned
        wrapped = number >> 64 & 0xFFFFFFFF, ~number & 0xFFFFFFFF
        return all(_is_public_4(IPv4Address(one)) for one in wrapped)
    if address not in _GLOBAL_6 or any(address in net for net in _RESERVED_6):
        return False
    return number >> 32 & 0xFFFFFFFF not in _ISATAP or _is_public_4(IPv4Address(number & 0xFFFFFFFF))


def _public_literal(host: str) -> str:
    """Returns an address in its only spelling. Raises NotPublic."""
    try:
        address = str(IPv6Address(host)) if ":" in host else str(IPv4Address(host))
    except AddressValueError:
        raise NotPublic("has an address that is no plain one: write it as 93.184.215.14 or [2606:2800::1]") from None
    if not is_public(address):
        raise NotPublic("has an address that is not public")
    return address


def _why_unreadable(url: str) -> str:
    if not url.startswith("https://"):
        return "must begin with https://"
    if not url.isascii():
        return "must be ASCII: write other letters of the host as xn--…, those of the path as %XX"
    authority = re.split(r"[/?#\\]", url.removeprefix("https://"), maxsplit=1)[0]
    if "@" in authority:
        return "must not carry a user or password: deliveries are signed"
    return "is no plain URL: https://, a host name, if need be :8443, a path and a query"
