"""What `Cache-Control` allows: the strictest that was said holds, and an answer says truly how long it may be kept."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.features.reuse.keys import ANYTHING, Directives, age_headers, read_directives, serves
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)
MOST_S = 2_147_483_648.0

SECONDS = st.integers(0, 10**6)
BOUNDS = st.none() | SECONDS.map(float)
DIRECTIVES = st.builds(
    Directives,
    no_store=st.booleans(),
    no_cache=st.booleans(),
    max_age_s=BOUNDS,
    min_fresh_s=SECONDS.map(float),
    max_stale_s=BOUNDS,
)
ARGUMENTS = st.none() | st.sampled_from([b"", b"5", b'"5"', b"-1", b"1.5", b"x", b"99999999999999", b'"a,b"'])
NAMES = st.sampled_from([b"no-store", b"no-cache", b"max-age", b"min-fresh", b"max-stale", b"only-if-cached", b"foo"])


@rows(
    ("value", "read"),
    [
        (None, ANYTHING),
        (b"", ANYTHING),
        (b" , ,", ANYTHING),
        (b"no-store", Directives(no_store=True)),
        (b"No-Cache", Directives(no_cache=True)),
        (b'no-cache="a, no-store"', Directives(no_cache=True)),
        (b"only-if-cached , max-age=60", Directives(only_if_cached=True, max_age_s=60.0)),
        (b"max-age=60,MAX-AGE=30", Directives(max_age_s=30.0)),
        (b'max-age="60"', Directives(max_age_s=60.0)),
        (b"max-age = 60", Directives(max_age_s=60.0)),
        (b"max-age=0", Directives(max_age_s=0.0)),
        (b"max-age", Directives(max_age_s=0.0)),
        (b"max-age=", Directives(max_age_s=0.0)),
        (b"max-age=-5", Directives(max_age_s=0.0)),
        (b"max-age=1.5", Directives(max_age_s=0.0)),
        (b"max-age=1e3", Directives(max_age_s=0.0)),
        (b"max-age=\xb2", Directives(max_age_s=0.0)),
        (b"max-age=" + b"9" * 5000, Directives(max_age_s=MOST_S)),
        (b"min-fresh=10, min-fresh=20", Directives(min_fresh_s=20.0)),
        (b"min-fresh=soon", Directives(min_fresh_s=inf)),
        (b"max-stale", Directives(max_stale_s=inf)),
        (b"max-stale, max-stale=7", Directives(max_stale_s=7.0)),
        (b"max-stale=long", Directives(max_stale_s=0.0)),
        (b"public, immutable, s-maxage=9, stale-while-revalidate=1", ANYTHING),
        (b'foo="no-store, no-cache", bar', ANYTHING),
        (b'foo="unfinished, no-store', Directives(no_store=True)),
    ],
)
def test_a_request_is_read_as_strictly_as_it_can_be_meant(value: bytes | None, read: Directives) -> None:
    """Names in any case, numbers with or without quotes; what is unknown is ignored, what is broken is a bound of its own."""
    assert read_directives(value) == read


@BOUNDED
@given(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=5))
def test_the_order_of_directives_does_not_matter(said: list[tuple[bytes, bytes | None]]) -> None:
    """They are a set of bounds."""
    parts = [name if argument is None else name + b"=" + argument for name, argument in said]

    assert read_directives(b", ".join(parts)) == read_directives(b",".join(reversed(parts)))


@BOUNDED
@given(st.binary(max_size=60))
def test_anything_can_be_read(value: bytes) -> None:
    """A header is whatever a client sends."""
    read_directives(value)


@rows(
    ("value", "age_s", "fresh_for_s", "may"),
    [
        (b"", 10.0, 5.0, True),
        (b"", 10.0, 0.0, False),
        (b"", 10.0, -1.0, False),
        (b"no-cache", 0.0, 50.0, False),
        (b"no-store", 10.0, 5.0, True),
        (b"only-if-cached", 10.0, 5.0, True),
        (b"max-age=10", 10.0, 5.0, True),
        (b"max-age=10", 10.1, 5.0, False),
        (b"max-age=0", 0.2, 5.0, False),
        (b"min-fresh=5", 10.0, 5.0, True),
        (b"min-fresh=6", 10.0, 5.0, False),
        (b"max-stale", 1000.0, -900.0, True),
        (b"max-stale=5", 15.0, -5.0, True),
        (b"max-stale=5", 15.0, -6.0, False),
        (b"max-stale=0", 15.0, 0.0, True),
        (b"max-stale=99, max-age=10", 15.0, -5.0, False),
        (b"max-stale, min-fresh=1", 15.0, -5.0, False),
    ],
)
def test_an_answer_serves_within_all_bounds(value: bytes, age_s: float, fresh_for_s: float, may: bool) -> None:
    """Its age, what is left of its freshness, how long it has been stale."""
    assert serves(read_directives(value), age_s, fresh_for_s) is may


@BOUNDED
@given(DIRECTIVES, st.floats(0, 10**6), st.floats(-(10**6), 10**6), st.floats(0, 10**6))
def test_an_older_answer_never_serves_where_a_younger_does_not(
    directives: Directives, age_s: float, fresh_for_s: float, more_s: float
) -> None:
    """Time only takes away."""
    assert serves(directives, age_s, fresh_for_s) or not serves(directives, age_s + more_s, fresh_for_s - more_s)


@rows(
    ("age_s", "fresh_s", "age", "control"),
    [
        (0.0, 3600.0, b"0", b"private, max-age=3600"),
        (100.9, 50.9, b"100", b"private, max-age=150"),
        (100.0, 0.9, b"100", b"private, no-cache"),
        (100.0, -5.0, b"100", b"private, no-cache"),
        (-0.5, 10.0, b"0", b"private, max-age=10"),
    ],
)
def test_an_answer_says_its_age_and_how_long_it_may_be_kept(
    age_s: float, fresh_s: float, age: bytes, control: bytes
) -> None:
    """By nobody but its caller, and never longer than it is fresh here; a stale one not without asking."""
    assert age_headers(age_s, fresh_s) == [(b"age", age), (b"cache-control", control)]


@BOUNDED
@given(st.floats(0, 10**6), st.floats(0, 10**6))
def test_a_cache_further_on_keeps_an_answer_no_longer_than_it_is_fresh(age_s: float, fresh_s: float) -> None:
    """It takes the age off `max-age` (RFC 9111, 4.2)."""
    headers = dict(age_headers(age_s, fresh_s))

    lifetime_s = int(headers[b"cache-control"].partition(b"max-age=")[2] or b"0")
    left_s = lifetime_s - int(headers[b"age"])

    assert left_s <= fresh_s
    assert left_s > fresh_s - 1 or lifetime_s == 0
