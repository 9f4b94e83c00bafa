"""The body of a new job: the request in it goes on byte by byte, and is not read here."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.request_fields import LargeBodies
from gateway.products.jobs.answers_http import MOST_REST_BYTES, Parts, split_job, split_large_job
from gateway.products.jobs.request import (
    MOST_RUN_AT_S,
    JobOptions,
    canonical,
    read_option_headers,
    read_options,
)
from tests.rows import rows

TEXT = st.text(max_size=12) | st.sampled_from(["body", '"body":', "}{", "\\", '\\"'])
VALUE = st.recursive(
    st.none() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


@given(st.dictionaries(TEXT, VALUE, max_size=4), st.dictionaries(TEXT, VALUE, max_size=4), st.booleans())
def test_the_request_is_cut_out_as_it_was_written(
    body: dict[str, object], rest: dict[str, object], is_first: bool
) -> None:
    """Wherever it stands, whatever is in it, and in what is beside it."""
    rest = {name: value for name, value in rest.items() if name != "body"} | {"endpoint": "/v1/x"}
    written = orjson.dumps(body, option=orjson.OPT_INDENT_2)
    others = orjson.dumps(rest)[1:-1]
    raw = b'{"body" : %b, %b}' % (written, others) if is_first else b'{%b, "body":%b }' % (others, written)

    for split in (split_job, split_slowly):
        asked, found = split(raw)
        assert found == written
        assert asked == {**rest, "body": None}


def split_slowly(raw: bytes) -> Parts:
    """As large bodies are."""
    return asyncio.run(split_large_job(raw, LargeBodies(), 1_000_000))


async def test_a_request_of_megabytes_is_not_parsed_and_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is it written again: what it says is found out where a plain call's body is read."""
    parsed: list[int] = []
    real = orjson.loads

    def loads(data: bytes) -> object:
        parsed.append(len(data))
        return real(data)

    monkeypatch.setattr(orjson, "loads", loads)
    body = b'{"model": "m", "input": "%b", "n": 1.10}' % (b"x" * 4_000_000)

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    raw = b'{"endpoint": "/v1/embeddings", "body": %b}' % body
    asked, found = await split_large_job(raw, LargeBodies(), 1_000_000)
    beside.cancel()

    assert found == body
    assert asked["endpoint"] == "/v1/embeddings"
    assert sum(parsed) < 1000
    assert turns > 4_000_000 // 100_000


@rows(
    ("raw", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"endpoint": "/v1/x", "body": {"a": 1}', None),
        (b'{"endpoint": "/v1/x", "body": ', None),
        (b'{"endpoint": "/v1/x", "body": {"a": "%b"}\0}' % (b"x" * MOST_REST_BYTES), None),
        (b'{"endpoint": "/v1/x"\0, "body": {}}', None),
        (b'{"endpoint": "/v1/x"}', "body"),
        (b'{"endpoint": "/v1/x", "body": []}', "body"),
        (b'{"endpoint": "/v1/x", "body": null}', "body"),
        (b'{"endpoint": 7, "body": {}}', "endpoint"),
        (b'{"body": {}}', "endpoint"),
        (b'{"endpoint": "/v1/x", "body": {}, "body": {"model": "other"}}', "body"),
        (b'{"endpoint": "/v1/x", "body": {}, "b\\u006fdy": {"model": "other"}}', "body"),
        (b'{"endpoint": "/v1/x", "body": {}, "metadata": {"a": "%b"}}' % (b"x" * MOST_REST_BYTES), "body"),
    ],
)
def test_what_is_no_job_is_refused(raw: bytes, param: str | None) -> None:
    """With the field's name."""
    for split in (split_job, split_slowly):
        with pytest.raises(InvalidRequest) as refused:
            split(raw)
        assert refused.value.param == param


@given(
    st.lists(
        st.sampled_from([b"{", b"}", b'"body"', b'"endpoint"', b":", b",", b'"', b"\\", b"\0", b'"/v1/x"', b"[", b"7"])
    )
)
def test_whatever_comes_is_a_job_or_refused(pieces: list[bytes]) -> None:
    """No bytes are a defect."""
    for split in (split_job, split_slowly):
        with suppress(InvalidRequest):
            split(b'{"endpoint":"/v1/x",' + b"".join(pieces))


def test_a_call_that_says_nothing_of_its_job_has_the_options_of_a_job_that_says_nothing() -> None:
    """Nothing is read for it; what is told of its end goes by a header of its own."""
    told = {b"x-gateway-webhook": b"https://example.com/hook"}

    assert read_option_headers({}, 5.0) == read_options({}, 5.0) == JobOptions()
    assert read_option_headers(told, 5.0) == replace(JobOptions(), webhook="https://example.com/hook")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"run_at": 2000.0, "deadline": 1500.0}, "deadline"),
        ({"delay": "1h", "deadline": 1500.0}, "deadline"),
        ({"delay": "0s", "deadline": "0s"}, "deadline"),
        ({"delay": "400d"}, "delay"),
        ({"run_at": 1e9}, "run_at"),
        ({"debounce": {"key": "k", "wait": "400d"}}, "debounce.wait"),
        ({"debounce": {"key": "k", "wait": "2m", "max_wait": "1m"}}, "debounce.max_wait"),
    ],
)
def test_a_refusal_names_the_field_that_was_sent(asked: dict[str, object], param: str) -> None:
    """And a job whose time would be over before it may begin is refused."""
    with pytest.raises(InvalidRequest, match=f"'{param}'") as refused:
        read_options(asked, 1000.0)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("header", "value", "told"),
    [
        ("x-gateway-run-at", "tomorrow", "The header 'x-gateway-run-at' must be a time in seconds since 1970 (UTC)."),
        ("x-gateway-run-at", "99999999999", "The header 'x-gateway-run-at' is more than a year ahead."),
        ("x-gateway-priority", "12", "The header 'x-gateway-priority' must be a whole number from 0 to 9."),
        ("x-gateway-dedupe", "", "The header 'x-gateway-dedupe' must have 1 to 256 printable characters."),
        ("x-gateway-debounce", "k;wait=soon", "The part 'wait' of the header 'x-gateway-debounce' must be seconds, or"),
        ("x-gateway-debounce", "k;wait=2m;max=1m", "The part 'max' of the header 'x-gateway-debounce' must not be"),
        ("x-gateway-debounce", "k;often=1", "The header 'x-gateway-debounce' has an unknown part 'often'"),
        ("x-gateway-webhook", "ftp://a", "The header 'x-gateway-webhook' "),
    ],
)
def test_a_refusal_of_a_header_names_no_field(header: str, value: str, told: str) -> None:
    """The field that would say the same was not sent."""
    with pytest.raises(InvalidRequest) as refused:
        read_option_headers({header.encode(): value.encode()}, 1000.0)
    assert refused.value.message.startswith(told)
    assert refused.value.param == header
    assert "field" not in refused.value.message


def test_a_long_wait_has_a_longest_one_that_fits() -> None:
    """Twelve times of it would be more than a year, which nobody asked for."""
    options = read_options({"debounce": {"key": "k", "wait": "100d"}}, 1000.0)

    assert options.debounce is not None
    assert options.debounce.wait_s <= options.debounce.max_s <= MOST_RUN_AT_S


def test_the_keys_of_a_body_may_come_in_any_order() -> None:
    """What is no JSON is taken as it is."""
    assert canonical(b'{"b": {"y": 1, "x": 2}, "a": [3]}') == canonical(b'{"a":[3],"b":{"x":2,"y":1}}')
    assert canonical(b'{"a":[3,4]}') != canonical(b'{"a":[4,3]}')
    assert canonical(b"{odd") == b"{odd"
