"""The guard against requests into private networks: spellings of what is not public, and of what is."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.drivers.outward import NotPublic, is_public, read_public_url, refuse_private
from tests.products.jobs.webhooks.ssrf_table import ALLOWED, NAMES, PRIVATE, SPELLINGS
from tests.rows import rows


def test_the_table_is_long() -> None:
    """And says nothing twice."""
    spellings = [*SPELLINGS, *(f"https://{name}/" for name in NAMES)]

    assert len(set(spellings)) == len(spellings) >= 200


@rows("url", SPELLINGS)
def test_what_is_spelled_to_mislead_is_refused_unresolved(url: str) -> None:
    """The reason names no path."""
    with pytest.raises(NotPublic) as refused:
        read_public_url(url)

    assert "s3cret" not in str(refused.value)


@rows("name", NAMES)
def test_a_name_that_stands_for_a_private_address_is_refused_once_it_is_resolved(name: str) -> None:
    """It looks like any other."""
    assert read_public_url(f"https://{name}/hook").host == name
    with pytest.raises(NotPublic, match="stands for an address that is not public"):
        refuse_private(NAMES[name])


@rows("address", PRIVATE)
def test_addresses_that_are_not_public(address: str) -> None:
    """Alone, and beside a public one: which of them is used is chance."""
    assert not is_public(address)
    with pytest.raises(NotPublic):
        refuse_private(["93.184.215.14", address])


@rows("url", ALLOWED)
def test_public_urls_are_read_as_they_are_written(url: str) -> None:
    """Host, port and target."""
    host, port, target, is_address = ALLOWED[url]

    assert read_public_url(url) == (host, port, target, is_address)


@given(st.ip_addresses(v=4))
def test_no_address_is_public_that_python_takes_for_special(address: ipaddress.IPv4Address) -> None:
    """Nor is it in any of its wrappings."""
    is_special = not address.is_global or address.is_multicast or address.is_reserved
    number = int(address)
    wrapped = [
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        str(ipaddress.IPv6Address(0x2002 << 112 | number << 80)),
        str(
            ipaddress.IPv6Address(0x20010000 << 96 | int(ipaddress.IPv4Address("8.8.8.8")) << 64 | number ^ 0xFFFFFFFF)
        ),
        str(ipaddress.IPv6Address(0x26062800 << 96 | 0x5EFE << 32 | number)),
    ]

    assert {is_public(one) for one in wrapped} == {is_public(str(address))}
    assert not (is_special and is_public(str(address)))


@given(st.ip_addresses(v=6))
def test_no_plain_address_of_six_is_public_that_python_takes_for_special(address: ipaddress.IPv6Address) -> None:
    """Wrapped ones are judged by what they hold."""
    is_wrapped = address in ipaddress.IPv6Network("64:ff9b::/96") or address.ipv4_mapped is not None
    if not is_wrapped and is_public(str(address)):
        assert address.is_global or address.sixtofour is not None or address.teredo is not None


@given(st.text(max_size=40))
def test_whatever_is_read_has_one_plain_host(text: str) -> None:
    """No text after the scheme makes a host of anything but letters, digits, dots and hyphens, or colons."""
    try:
        url = read_public_url(f"https://{text}")
    except NotPublic:
        return
    assert url.port in (443, 8443)
    assert set(url.host) <= set("0123456789abcdefghijklmnopqrstuvwxyz.-:")
    assert url.target.startswith("/")
