"""Headers that come on several lines, as they are read."""

from __future__ import annotations

from gateway.core.request_fields import join_lists


def test_the_lines_of_a_list_are_read_as_one() -> None:
    """Of `Cache-Control`; of others the last line counts, where they may come twice."""
    headers = [
        (b"cache-control", b"no-store"),
        (b"baggage", b"a=1"),
        (b"baggage", b"b=2"),
        (b"cache-control", b"max-age=5"),
    ]
    index = dict(headers)

    join_lists(index, headers)

    assert index == {b"cache-control": b"no-store, max-age=5", b"baggage": b"b=2"}
