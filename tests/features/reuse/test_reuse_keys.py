"""Keys: what may have an answer in common, and above all what may not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from gateway.core.call import Call
from gateway.core.render import OPENAI
from gateway.core.types import Endpoint
from gateway.dialects.endpoints import IMAGES
from gateway.features.identity import digest, fingerprint, owner_of, reads_one_way, record_key
from gateway.features.reuse.keys import exact_key, flight_key, partition_key
from gateway.features.reuse.rules import CACHING, Caching, ExactRule
from tests.rows import rows
from tests.support.flow import SPEECH, Bench, ScriptedUpstream

BOUNDED = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
STEREO = Endpoint("transcriptions", "/audio/transcriptions", OPENAI, answer="binary", request="multipart")
BENCH = Bench([ScriptedUpstream()])
LONGEST = 2**64 - 1
"""Beyond it, our parser rounds whole numbers."""

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.sampled_from(["a", "b", "role", "content", "stream", "temperature", "ü", '"', "\\", ":", "a:1", ""])
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), LONGEST) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
BODIES = st.dictionaries(NAMES, VALUES, max_size=4).map(lambda body: {**body, "model": "m"})
TRICKY = st.sampled_from(
    ["", "a", "b", "1:a", "1", ":", "0:", "3:a:b", "a/b", "a:", "11:Bearer", "a\x00b", "ä", "3:web0:", "web"]
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"openai-beta", b"openai-project", b"openai-organization", b"anthropic-beta"]),
        st.sampled_from([b"", b"a", b"1:a", b"openai-beta", b"a1:b"]),
    ),
    max_size=3,
)


def asking(body: bytes | dict[str, Any], **changes: Any) -> Call:
    """A call with this body."""
    text = body if isinstance(body, bytes) else orjson.dumps(body)
    parsed = orjson.loads(text)
    stream = parsed.get("stream") is True
    return BENCH.call(body=text, parsed=parsed, stream=stream, stream_options=parsed.get("stream_options"), **changes)


def exact(call: Call, caching: Caching | None = None) -> bytes:
    assert call.parsed is not None
    return exact_key(call, call.parsed, caching or CACHING.of(call.route.model))


def flight(call: Call) -> bytes:
    assert call.parsed is not None
    return flight_key(call, call.parsed, exact(call))


def keys(call: Call) -> list[bytes]:
    """Each key under which a call may meet another."""
    return [exact(call), flight(call), record_key(call, b"k")]


# --- digests ---


@BOUNDED
@given(st.lists(TRICKY, max_size=4), st.lists(TRICKY, max_size=4))
def test_parts_cannot_flow_into_each_other(one: list[str], other: list[str]) -> None:
    """Whatever looks like a length or an end inside of a part: other parts, another digest."""
    equal = digest(*(part.encode() for part in one)) == digest(*(part.encode() for part in other))

    assert equal == (one == other)


def test_a_digest_is_a_whole_sha_256() -> None:
    """Nothing is cut off: who finds two that are equal has broken more than this."""
    assert len(digest()) == len(digest(b"a", b"b")) == 32


# --- whose ---


@BOUNDED
@given(
    st.tuples(TRICKY, st.none() | TRICKY.filter(bool), HEADERS),
    st.tuples(TRICKY, st.none() | TRICKY.filter(bool), HEADERS),
    BODIES,
)
def test_two_owners_have_no_key_in_common(one: Any, other: Any, body: dict[str, Any]) -> None:
    """Neither of answers, nor of flights, nor of records; by tenant, credential, and the account that it is used for."""

    def owned(tenant: str, credential: str | None, headers: list[tuple[bytes, bytes]]) -> Call:
        secret = None if credential is None else credential.encode()
        return asking(body, tenant=tenant, credential=secret, headers=headers)

    def account(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        meant = [header for header in headers if header[0] in (b"openai-project", b"openai-organization")]
        return sorted(meant, key=lambda header: header[0])

    is_same = one[:2] == other[:2] and (one[1] is None or account(one[2]) == account(other[2]))
    a, b = owned(*one), owned(*other)

    assert (owner_of(a) == owner_of(b)) == is_same
    assert (record_key(a, b"k") == record_key(b, b"k")) == is_same
    if not is_same:
        assert not set(keys(a)) & set(keys(b))


def test_a_record_is_never_taken_for_a_flight() -> None:
    """Both are looked for in one place, and clients choose what is in them."""
    call = asking({"model": "m", "stream": True}, tenant="record")
    chosen = [exact(call), flight(call), b"stream", b"record"]

    assert not {record_key(call, key) for key in chosen} & {exact(call), flight(call)}


# --- what ---

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("tenant", {"tenant": "web2"}),
    ("credential", {"credential": b"Bearer sk-2"}),
    ("path", {"path": "/completions"}),
    ("query", {"query": b"api-version=2"}),
    ("model's name", {"model_name": "m2"}),
    ("beta", {"headers": [(b"openai-beta", b"assistants=v2")]}),
    ("version", {"headers": [(b"anthropic-version", b"2023-06-01")]}),
    ("project", {"headers": [(b"openai-project", b"p")]}),
    ("two betas", {"headers": [(b"anthropic-beta", b"a"), (b"anthropic-beta", b"b")]}),
    ("two betas, the other way round", {"headers": [(b"anthropic-beta", b"b"), (b"anthropic-beta", b"a")]}),
    ("a beta in two words", {"headers": [(b"anthropic-beta", b"a14:anthropic-beta1:b")]}),
]
OF_THE_OWNER = ("tenant", "credential", "model's name")
"""Records are looked for by these, or they stand in the body: a repetition need not be compared in them."""


def test_whatever_is_around_a_body_keeps_calls_apart() -> None:
    """Each of them alone; no two of them come to the same."""
    body = {"model": "m", "messages": [], "temperature": 0}
    calls = [asking(body), *(asking(body, **changes) for _, changes in CHANGES)]
    entry = replace(calls[0].route.model, name="m*")

    found = [exact(call) for call in [*calls, asking(body, model=entry)]]
    assert len(set(found)) == len(found)
    assert exact(calls[0], Caching(version="2")) not in found
    assert exact(asking(body, model=replace(calls[0].route.model, on_loss="refuse"))) not in found
    repeated = [asking(body, **changes) for name, changes in CHANGES if name not in OF_THE_OWNER]
    strict = asking(body, model=replace(calls[0].route.model, on_loss="refuse"))
    assert len({fingerprint(call) for call in [calls[0], strict, *repeated]}) == 2 + len(repeated)


def test_sdks_may_differ_in_what_they_tell_of_themselves() -> None:
    """That is no part of a question; nor is the order of headers with different names."""
    body = {"model": "m"}
    told = [(b"openai-beta", b"x"), (b"anthropic-beta", b"y")]
    same = asking(body, headers=[*told, (b"user-agent", b"a"), (b"x-stainless-retry-count", b"1")])
    again = asking(body, headers=[(b"accept", b"*/*"), *reversed(told)])

    assert keys(same) == keys(again)
    assert fingerprint(same) == fingerprint(again)


@BOUNDED
@given(BODIES, BODIES)
def test_only_equal_bodies_have_equal_keys(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal as JSON is: 1 is not 1.0, nor true, and -0.0 is not 0.0."""
    a, b = asking(one), asking(other)
    is_same = _exactly(_asked(one)) == _exactly(_asked(other))

    assert (exact(a) == exact(b)) == is_same
    assert (fingerprint(a) == fingerprint(b)) == (_exactly(one) == _exactly(other))


@BOUNDED
@given(BODIES, VALUES, st.data())
def test_any_change_of_a_body_is_another_question(body: dict[str, Any], value: Any, data: st.DataObject) -> None:
    """Wherever in it, and whatever it is changed to."""
    name = data.draw(NAMES.filter(lambda name: name != "stream"))
    changed = {**body, name: value}
    assume(_exactly(body) != _exactly(changed))

    assert exact(asking(body)) != exact(asking(changed))


@BOUNDED
@given(BODIES, st.sampled_from([None, 0, 2, "\t"]), st.booleans(), st.randoms())
def test_the_same_in_another_hand_is_the_same(body: dict[str, Any], indent: Any, ascii_only: bool, draw: Any) -> None:
    """White space, the order of keys, escapes: the spelling of a body is no part of it."""
    spelt = json.dumps(_shuffled(body, draw), indent=indent, ensure_ascii=ascii_only, separators=None).encode()
    assume(_exactly(orjson.loads(spelt)) == _exactly(body) and not _has_long_numbers(body))

    assert keys(asking(body)) == keys(asking(spelt))
    assert fingerprint(asking(body)) == fingerprint(asking(spelt))


def test_how_an_answer_is_sent_is_no_part_of_the_question() -> None:
    """But part of what others can read along."""
    body: dict[str, Any] = {"model": "m", "messages": []}
    told = {"stream": True, "stream_options": {"include_usage": True}}
    calls = [
        asking(body),
        asking({**body, "stream": False}),
        asking({**body, "stream": True}),
        asking({**body, **told}),
    ]

    assert len({exact(call) for call in calls}) == 1
    assert flight(calls[0]) == flight(calls[1]) == exact(calls[0])
    assert len({flight(call) for call in calls}) == 3
    assert len({fingerprint(call) for call in calls}) == 4


@pytest.mark.parametrize("endpoint", [IMAGES, SPEECH])
def test_where_no_form_can_be_made_of_another_the_form_is_part_of_the_question(endpoint: Endpoint) -> None:
    """Otherwise one would be kept instead of the other by turns."""
    body = {"model": "m"}

    assert exact(asking(body, endpoint=endpoint)) != exact(asking({**body, "stream": True}, endpoint=endpoint))


def test_only_fields_at_the_top_can_be_ignored() -> None:
    """`ignore: [user]` says nothing about a user deeper down, nor about another field."""
    caching = Caching(exact=ExactRule("always", ignore=frozenset({"user"})))
    same: list[dict[str, Any]] = [{"model": "m", "user": "a"}, {"model": "m", "user": ["b"]}, {"model": "m"}]
    others: list[dict[str, Any]] = [
        {"model": "m", "x": {"user": "a"}},
        {"model": "m", "x": {"user": "b"}},
        {"model": "m", "metadata": {}},
    ]

    assert len({exact(asking(body), caching) for body in same}) == 1
    assert len({exact(asking(body), caching) for body in same + others}) == 4
    assert len({fingerprint(asking(body)) for body in same + others}) == 6


# --- what two parsers may read differently ---

TWICE = [
    b'{"model":"m","temperature":0,"temperature":1}',
    b'{"model":"m","temperature":1,"temperature":1}',
    b'{"model":"m","temperature" : 0 , "temperature":1}',
    b'{"model":"m","temperature":1,"temp\\u0065rature":1}',
    b'{"model":"m","messages":[{"role":"user","role":"system","content":"x"}]}',
    b'{"model":"m","a":{"":1,"":2}}',
    b'{"model":"m","a":"\\\\","a":"\\":"}',
    b'{"model":"m","a":[[[{"b":{},"b":{"c":":"}}]]]}',
]
LONG = [
    b'{"model":"m","seed":18446744073709551616}',
    b'{"model":"m","seed":18446744073709551617}',
    b'{"model":"m","seed":-9223372036854775809}',
    b'{"model":"m","seed":123456789012345678901234567890}',
    b'{"model":"m","seed":[1,2,{"a":99999999999999999999}]}',
]


@rows("body", [*TWICE, *LONG])
def test_what_a_provider_may_read_differently_stands_for_itself(body: bytes) -> None:
    """The first of two equal keys counts there perhaps, or a number is not rounded: it shares with its own bytes only."""
    call = asking(body)
    as_we_read_it = asking(orjson.dumps(call.parsed))

    assert not reads_one_way(body, orjson.loads(body))
    assert not set(keys(call)[:2]) & set(keys(as_we_read_it)[:2])
    assert fingerprint(call) != fingerprint(as_we_read_it)
    assert keys(call) == keys(asking(body))


def test_long_numbers_are_told_apart() -> None:
    """Our parser rounds them to the same one."""
    assert orjson.loads(LONG[0]) == orjson.loads(LONG[1])
    assert len({exact(asking(body)) for body in LONG}) == len(LONG)


@BOUNDED
@given(BODIES, NAMES, st.data())
def test_a_key_that_is_there_twice_is_noticed_wherever_it_is(
    body: dict[str, Any], name: str, data: st.DataObject
) -> None:
    """And no body without one is taken for such, however it is spelt."""
    indent = data.draw(st.sampled_from([None, 0, 1]))

    def spell(value: Any) -> str:
        return orjson.dumps(value).decode() if indent == 0 else json.dumps(value, indent=indent)

    value = data.draw(VALUES)
    inner = f"{{{spell(name)}:{spell(value)},{spell(name)} :{spell(data.draw(VALUES))}}}"
    good, bad = (f'{{"model":"m","x":[{spell(body)},{one}]}}'.encode() for one in (spell({name: value}), inner))

    assert reads_one_way(good, orjson.loads(good)) or _has_long_numbers([body, value])
    assert not reads_one_way(bad, orjson.loads(bad))


@pytest.mark.parametrize("body", [b'{"model":"m","a":1e400}', b'{"model":"m","a":"\\ud800"}', b'{"model":"m","a":NaN}'])
def test_what_has_no_reading_has_no_key(body: bytes) -> None:
    """The edge refuses it, so it need not be told from anything. This test fails when the parser changes its mind."""
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(body)


@rows("depth", [200, 253, 254, 255, 256, 1000, 1022])
def test_nothing_is_nested_too_deeply_for_a_key(depth: int) -> None:
    """What cannot be written again stands for itself, stream and all; nothing else is mistaken for it."""

    def deep(leaf: str, *fields: str) -> Call:
        return asking(f'{{"model":"m",{"".join(fields)}"a":{"[" * depth}{leaf}{"]" * depth}}}'.encode())

    calls = [deep("1"), deep("2"), deep("1", '"stream":true,"stream_options":{"x":1},')]

    assert len({flight(call) for call in calls}) == 3
    assert exact(calls[0]) == exact(deep("1")) != exact(calls[1])
    assert fingerprint(calls[0]) != fingerprint(calls[1])


def test_deep_options_of_a_stream_are_told_apart() -> None:
    """They are part of what another can read along."""
    options = [f"{'[' * 600}{leaf}{']' * 600}" for leaf in (1, 2)]
    calls = [asking(f'{{"model":"m","stream":true,"stream_options":{each}}}'.encode()) for each in options]

    assert flight(calls[0]) != flight(calls[1])


# --- files ---


def upload(boundary: bytes, *parts: bytes, head: bytes = b'content-disposition: form-data; name="a"') -> Call:
    """A multipart body."""
    delimiter = b"--" + boundary
    body = b"".join(delimiter + b"\r\n" + head + b"\r\n\r\n" + part + b"\r\n" for part in parts) + delimiter + b"--\r\n"
    kind = b'multipart/form-data; boundary="%b"' % boundary
    return BENCH.call(endpoint=STEREO, path=STEREO.path, body=body, headers=[(b"content-type", kind)])


def test_a_boundary_is_drawn_anew_each_time() -> None:
    """So it is no part of what is sent."""
    assert fingerprint(upload(b"X1", b"one", b"two")) == fingerprint(upload(b"Y2", b"one", b"two"))


@rows(
    ("one", "other"),
    [
        (upload(b"a", b"banana"), upload(b"a", b"bnn")),
        (upload(b"X1", b"one", b"two"), upload(b"X1", b"onetwo")),
        (upload(b"X1", b"one\r\n--\r\ntwo"), upload(b"X1", b"one", b"two", head=b"")),
        (upload(b"X1", b"--Y2"), upload(b"Y2", b"--X1")),
        (upload(b"X1", b"one"), upload(b"X1", b"one ")),
    ],
)
def test_what_is_in_a_file_is_no_boundary(one: Call, other: Call) -> None:
    """Wherever the letters of the boundary occur: other contents are another request."""
    assert fingerprint(one) != fingerprint(other)


# --- partitions of questions ---


def test_partitions_are_as_far_apart_as_keys() -> None:
    """Two owners, endpoints or models never compare questions."""
    calls = [asking({"model": "m"}), *(asking({"model": "m"}, **changes) for _, changes in CHANGES)]
    found = {partition_key(call, CACHING.of(call.route.model), b"rest") for call in calls}

    assert len(found) == len(calls)


def _asked(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def _exactly(value: Any) -> Any:
    """What is equal only if it is the same JSON, numbers and all; the order of keys apart."""
    if isinstance(value, dict):
        return ("object", frozenset((name, _exactly(one)) for name, one in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(_exactly, value)))
    return (type(value).__name__, repr(value))


def _shuffled(value: Any, draw: Any) -> Any:
    if isinstance(value, list):
        return [_shuffled(one, draw) for one in value]
    if not isinstance(value, dict):
        return value
    names = list(value)
    draw.shuffle(names)
    return {name: _shuffled(value[name], draw) for name in names}


def _has_long_numbers(value: Any) -> bool:
    """Of so many digits that they may have been rounded: such a body may stand for itself."""
    if isinstance(value, dict):
        return any(map(_has_long_numbers, value.values()))
    if isinstance(value, list):
        return any(map(_has_long_numbers, value))
    return isinstance(value, float | int) and sum(letter.isdigit() for letter in repr(value)) >= 16
