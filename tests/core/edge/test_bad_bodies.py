"""Bodies that a careless or hostile client sends: each gets a clear answer, and the next call is served.

What the gateway needs itself (a JSON object, one `model`, a boolean `stream`) it judges; everything else is the provider's
to judge, byte for byte as it was sent.
"""

from __future__ import annotations

import gc
import gzip
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from gateway.core.openai.json_edit import with_model
from gateway.core.request_fields import peek
from gateway.dialects.endpoints import ENDPOINTS
from gateway.emulator.config import EmulatorConfig
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Response, Running, chat, connect, post
from tests.rows import rows

CHAT = "/v1/chat/completions"
MULTIPART = "content-type: multipart/form-data; boundary=b0undary"
Body = bytes | Callable[[], bytes]
"""A large one is made when it is sent: every worker reads this file."""


def made(body: Body) -> bytes:
    """The bytes to send."""
    return body if isinstance(body, bytes) else body()


@dataclass(frozen=True)
class Refused:
    """A request that must never reach a provider, and how it is answered."""

    name: str
    body: Body
    code: str | None
    param: str | None = None
    status: int = 400
    path: str = CHAT
    headers: tuple[str, ...] = ()
    says: str = ""


def raw_chat(fields: bytes) -> bytes:
    """A chat body with these fields, as they are written."""
    return b'{"messages":[{"role":"user","content":"hi"}],%s}' % fields


def form(*parts: tuple[str, bytes], end: bytes = b"--b0undary--\r\n") -> bytes:
    """A multipart body."""
    each = (
        b'--b0undary\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (n.encode(), v) for n, v in parts
    )
    return b"".join(each) + end


AUDIO = "/v1/audio/transcriptions"
NESTED_ARRAYS = b'{"model":"gpt-4o","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
NESTED_OBJECTS = b'{"model":"gpt-4o","x":' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001
NESTED_A_LITTLE = b'{"model":"gpt-4o","x":' + b"[" * 127 + b"]" * 127 + b"}"
NESTED_TOO_MUCH = b'{"model":"gpt-4o","x":' + b"[" * 128 + b"]" * 128 + b"}"

REFUSED = [
    Refused("1_empty", b"", "empty_body", says="empty"),
    Refused("1_blank", b" \r\n\t ", "empty_body"),
    Refused("2_cut_off", b"{", "invalid_json", says="not valid JSON"),
    Refused("3_array", b"[]", "invalid_json", says="JSON object"),
    Refused("3_string", b'"x"', "invalid_json"),
    Refused("3_null", b"null", "invalid_json"),
    Refused("3_number", b"1", "invalid_json"),
    Refused("4_nan", raw_chat(b'"model":"gpt-4o","temperature":NaN'), "invalid_json"),
    Refused("4_infinity", raw_chat(b'"model":"gpt-4o","temperature":-Infinity'), "invalid_json"),
    Refused("5_model_twice", raw_chat(b'"model":"gpt-4o","model":"gpt-5"'), "duplicate_field", "model"),
    Refused("5_model_twice_escaped", raw_chat(b'"model":"gpt-4o","mod\\u0065l":"x"'), "duplicate_field", "model"),
    Refused("6_deep_arrays", NESTED_ARRAYS, "body_too_complex", says="nested deeper than 128 levels"),
    Refused("6_deep_objects", NESTED_OBJECTS, "body_too_complex", says="nested deeper than 128 levels"),
    Refused("6_129_levels", NESTED_TOO_MUCH, "body_too_complex", says="nested deeper than 128 levels"),
    Refused("6_large_and_deep", lambda: raw_chat(b'"model":"gpt-4o","x":' + b"[" * 200_000 + b"]" * 200_000),
            "body_too_complex", says="nested deeper than 128 levels"),
    Refused("6_1000000_messages", lambda: orjson.dumps({"messages": [{}] * 1_000_000, "model": "gpt-4o"}),
            "body_too_complex", says="more than 1,000,000 JSON values"),
    Refused("6_1000000_token_numbers_of_a_chat", lambda: orjson.dumps(chat(x=[1] * 1_000_000)), "body_too_complex",
            says="server.max_json_values"),
    Refused("6_1000000_messages_of_a_response", lambda: orjson.dumps({"model": "gpt-4o", "input": [[]] * 1_000_000}),
            "body_too_complex", path="/v1/responses", says="server.max_json_values"),
    Refused("6_300000_models", lambda: raw_chat(b'"model":"gpt-4o"' + b',"model":"x"' * 300_000), "body_too_complex",
            says="4,096 fields"),
    Refused("5_model_twice_in_a_large_body",
            lambda: raw_chat(b'"model":"gpt-4o","x":"%b","mod\\u0065l":"y"' % (b"x" * 5_000_000)),
            "duplicate_field", "model"),
    Refused("18_no_model_in_a_large_body", lambda: orjson.dumps({"messages": [], "x": "y" * 5_000_000}),
            "missing_field", "model"),
    Refused("23_stream_as_string_in_a_large_body", lambda: orjson.dumps(chat(stream="true", x="y" * 5_000_000)), "invalid_type",
            "stream"),
    Refused("9_invalid_utf8_in_a_large_body", lambda: raw_chat(b'"model":"gpt-4o","user":"%b\xff"' % (b"x" * 5_000_000)),
            "invalid_json", says="UTF-8"),
    Refused("1_large_and_blank", lambda: b" " * 5_000_000, "invalid_json"),
    Refused("2_large_and_cut_off", lambda: orjson.dumps(chat(x="y" * 5_000_000))[:-1], "invalid_json", says="not valid JSON"),
    Refused("10_large_with_bom", lambda: b"\xef\xbb\xbf" + orjson.dumps(chat(x="y" * 5_000_000)), "invalid_json",
            says="byte order mark"),
    Refused("7_million_digits", lambda: raw_chat(b'"model":"gpt-4o","seed":' + b"9" * 1_000_000), "invalid_json"),
    Refused("9_invalid_utf8", raw_chat(b'"model":"gpt-4o","user":"\xff\xfe"'), "invalid_json", says="UTF-8"),
    Refused("10_bom", b"\xef\xbb\xbf" + orjson.dumps(chat()), "invalid_json", says="byte order mark"),
    Refused("10_utf16", orjson.dumps(chat()).decode().encode("utf-16"), "invalid_json", says="byte order mark"),
    Refused("10_utf16_without_bom", orjson.dumps(chat()).decode().encode("utf-16-le"), "invalid_json"),
    Refused("11_nul_in_model", raw_chat(b'"model":"gpt\\u0000-4o"'), "invalid_value", "model"),
    Refused("11_right_to_left_in_model", raw_chat('"model":"gpt\u202e-4o"'.encode()), "invalid_value", "model"),
    Refused("15_form_instead_of_json", b"model=gpt-4o&messages=hi", "invalid_json"),
    Refused("16_no_boundary", form(("model", b"x")), "invalid_multipart", path=AUDIO, says="boundary",
            headers=("content-type: multipart/form-data",)),
    Refused("16_other_boundary", form(("model", b"x")), "invalid_multipart", path=AUDIO, says="boundary",
            headers=("content-type: multipart/form-data; boundary=other",)),
    Refused("16_100000_parts", lambda: form(*[("f", b"")] * 100_000), "invalid_multipart", path=AUDIO, says="parts",
            headers=(MULTIPART,)),
    Refused("16_huge_part_head", lambda: form(("f" * 1_000_000, b"")), "invalid_multipart", path=AUDIO, headers=(MULTIPART,)),
    Refused("16_part_without_end", form(("model", b"x"), end=b""), "invalid_multipart", path=AUDIO,
            headers=(MULTIPART,)),
    Refused("16_model_twice", form(("model", b"a"), ("model", b"b")), "duplicate_field", "model", path=AUDIO,
            headers=(MULTIPART,)),
    Refused("16_no_model", form(("file", b"a")), "missing_field", "model", path=AUDIO, headers=(MULTIPART,)),
    Refused("16_model_not_utf8", form(("model", b"\xff")), "invalid_value", "model", path=AUDIO, headers=(MULTIPART,)),
    Refused("16_json_instead_of_form", orjson.dumps(chat()), "invalid_content_type", path=AUDIO),
    Refused("17_gzip_bomb", lambda: gzip.compress(bytes(20_000_000)), "unsupported_content_encoding", status=415,
            headers=("content-encoding: gzip",)),
    Refused("17_unknown_encoding", b"x", "unsupported_content_encoding", status=415,
            headers=("content-encoding: sparkle",)),
    Refused("17_stacked_encodings", b"x", "unsupported_content_encoding", status=415,
            headers=("content-encoding: gzip, gzip",)),
    Refused("18_no_model", orjson.dumps({"messages": []}), "missing_field", "model", says="missing"),
    Refused("18_null_model", raw_chat(b'"model":null'), "invalid_type", "model"),
    Refused("18_number_as_model", raw_chat(b'"model":4'), "invalid_type", "model"),
    Refused("18_empty_model", raw_chat(b'"model":""'), "invalid_value", "model"),
    Refused("19_model_of_10_kb", orjson.dumps(chat("m" * 10_000)), "invalid_value", "model", says="256"),
    Refused("19_model_with_line_break", raw_chat(b'"model":"gpt\\r\\nx: y"'), "invalid_value", "model"),
    Refused("23_stream_as_string", orjson.dumps(chat(stream="true")), "invalid_type", "stream"),
    Refused("23_stream_as_number", orjson.dumps(chat(stream=1)), "invalid_type", "stream"),
]  # fmt: skip


async def survives(gateway: Running, request: bytes) -> Response:
    """Send a request, then a good one on the same connection if it lives, and one on a new connection."""
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(request)
        if answer.header("connection") != "close":
            assert (await peer.exchange(post())).status == 200
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post())).status == 200
    return answer


@pytest.fixture
async def logged(gateway: Running) -> AsyncIterator[Running]:
    """A gateway that is sent all of them, and tells each in one line of its log."""
    yield gateway
    await gateway.stop()
    assert [one["event"] for one in gateway.records].count("refused") == len(REFUSED)


@rows("case", REFUSED, ids=lambda case: case.name)
async def test_a_bad_body_is_refused_before_any_provider_sees_it(logged: Running, case: Refused) -> None:
    """The status, a code, the field's name and what is wrong; no upstream call; a line in the log without the body."""
    answer = await survives(logged, post(case.path, made(case.body), *case.headers))

    assert answer.status == case.status
    assert (answer.error["code"], answer.error["param"]) == (case.code, case.param)
    assert answer.error["type"] == "invalid_request_error"
    assert case.says in answer.error["message"]
    assert case.param is None or f"'{case.param}'" in answer.error["message"]
    assert answer.header("x-should-retry") == "false"
    assert all(request["body"] == orjson.dumps(chat()).decode() for request in logged.received())


def long_chat(count: int) -> dict[str, Any]:
    """A chat of many messages."""
    return chat(messages=[{"role": "user", "content": "hi"}] * count)


LOOP_SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#"}}}
PROVIDERS_TO_JUDGE: dict[str, Body] = {
    "4_number_out_of_range": raw_chat(b'"model":"gpt-4o","user":1e308'),
    "5_other_key_twice": raw_chat(b'"model":"gpt-4o","user":"a","user":"b"'),
    "6_nested_128_levels": NESTED_A_LITTLE,
    "7_integer_of_many_digits": raw_chat(b'"model":"gpt-4o","max_tokens":' + b"9" * 20),
    "14_100000_messages": lambda: orjson.dumps(long_chat(100_000)),
    "14_100000_tools": lambda: orjson.dumps(chat(tools=[{"type": "function", "function": {"name": "f"}}] * 100_000)),
    "14_4000_keys": lambda: orjson.dumps(chat() | {f"k{number}": "x" * 100 for number in range(4_000)}),
    "14_a_table_in_one_string": lambda: orjson.dumps(chat(messages=[{"role": "user", "content": "1,2,[3],{4}\n" * 1_500_000}])),
    "14_900000_numbers": lambda: orjson.dumps(chat(x=[7] * 900_000)),
    "19_model_that_climbs": orjson.dumps(chat("../../admin/../v1")),
    "19_model_with_emoji": orjson.dumps(chat("gpt-\N{ROCKET}")),
    "20_messages_missing": orjson.dumps({"model": "gpt-4o"}),
    "20_messages_empty": orjson.dumps(chat(messages=[])),
    "20_messages_string": orjson.dumps(chat(messages="hi")),
    "21_role_invalid": orjson.dumps(chat(messages=[{"role": "king", "content": "hi"}])),
    "22_content_null": orjson.dumps(chat(messages=[{"role": "user", "content": None}])),
    "22_content_number": orjson.dumps(chat(messages=[{"role": "user", "content": 4}])),
    "22_content_mixed": orjson.dumps(chat(messages=[{"role": "user", "content": ["a", 1, None, {}]}])),
    "24_n_0": orjson.dumps(chat(n=0)),
    "24_n_1000000": orjson.dumps(chat(n=1_000_000)),
    "25_max_tokens_negative": orjson.dumps(chat(max_tokens=-1)),
    "25_max_tokens_2_to_63": orjson.dumps(chat(max_tokens=2**63)),
    "26_temperature_negative": orjson.dumps(chat(temperature=-1)),
    "27_stop_1000": orjson.dumps(chat(stop=["x"] * 1000)),
    "28_tool_without_schema": orjson.dumps(chat(tools=[{"type": "function"}, 4, None])),
    "28_tool_schema_loops": orjson.dumps(
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": LOOP_SCHEMA}}])
    ),
    "29_tool_call_id_unmatched": orjson.dumps(chat(messages=[{"role": "tool", "tool_call_id": "no", "content": "x"}])),
    **{
        f"30_image_at_{name}": orjson.dumps(
            chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])
        )
        for name, url in {
            "file": "file:///etc/passwd",
            "gopher": "gopher://127.0.0.1:70/",
            "metadata": "http://169.254.169.254/latest/meta-data/",
            "backslash": "http://a\\@127.0.0.1/",
            "data": "data:image/png;base64," + "A" * 1_000_000,
        }.items()
    },
    "31_unknown_fields": orjson.dumps(chat(zebra={"deep": [1, {"model": "other"}]}, _x=None)),
    "usage_options_odd": orjson.dumps(chat(stream=True, stream_options=[4])),
}  # fmt: skip


@pytest.fixture
async def recording(start: StartGateway) -> Running:
    """A gateway whose provider remembers large bodies, too."""
    return await start(emulator=EmulatorConfig(recorded_bytes=40_000_000))


@rows("name", PROVIDERS_TO_JUDGE)
async def test_what_is_not_the_gateways_business_reaches_the_provider_untouched(recording: Running, name: str) -> None:
    """The provider gets exactly the bytes that were sent, and its verdict, whatever it is, is the answer."""
    body = made(PROVIDERS_TO_JUDGE[name])

    answer = await survives(recording, post(CHAT, body))

    last = recording.emulator.emulator.recorder.last(3)  # it, and what it survives
    (received,) = [one for one in last if one["body"] != orjson.dumps(chat()).decode()]
    assert received["body_bytes"] == len(body)
    assert received["body"] == body.decode()
    assert answer.status in (200, 400)
    if answer.status == 400:
        assert answer.error["message"]


async def test_the_response_of_another_tenant_is_the_providers_to_refuse(gateway: Running) -> None:
    """32: `previous_response_id` is an opaque field; the gateway keeps nothing that it could mix up."""
    body = orjson.dumps({"model": "gpt-4o", "input": "hi", "previous_response_id": "resp_of_somebody_else"})

    answer = await survives(gateway, post("/v1/responses", body))

    assert answer.status == 200
    assert gateway.received()[0]["body"] == body.decode()


async def test_batch_lines_are_not_read_as_json_bodies(gateway: Running) -> None:
    """33: JSON lines sent to an endpoint for one object are no JSON object."""
    line = orjson.dumps({"custom_id": "1", "url": CHAT, "body": chat(api_base="http://127.0.0.1:1")})

    answer = await survives(gateway, post(CHAT, line + b"\n\n" + line))

    assert answer.status == 400
    assert answer.error["code"] == "invalid_json"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_json_body_under_another_name_is_served_and_forwarded_as_json(
    gateway: Running, content_type: str
) -> None:
    """15: the body decides; a provider is never told that JSON is text or a form."""
    answer = await survives(gateway, post(CHAT, None, f"content-type: {content_type}"))

    assert answer.status == 200
    headers = dict(gateway.received()[0]["headers"])
    assert headers["content-type"] == "application/json"


async def test_a_request_of_many_megabytes_below_the_cap_is_served(start: StartGateway) -> None:
    """30: a large data URL is an ordinary prompt."""
    gateway = await start(emulator=EmulatorConfig(recorded_bytes=40_000_000))
    body = orjson.dumps(chat(user="A" * 15_000_000))

    answer = await survives(gateway, post(CHAT, body))

    assert answer.status == 200
    assert gateway.received()[0]["body_bytes"] == len(body)


@pytest.mark.parametrize("start", [b'"metadata":{"model":"x"}', b'"user":"\\u0041"'], ids=["model_deeper", "escape"])
def test_a_body_of_many_pieces_takes_no_step_for_each(start: bytes) -> None:
    """One caller's 20 MB must not stop everybody for seconds: what has to be looked for is looked for in whole passes."""
    few, many = (b'{"model":"m",%s,"input":[%s""]}' % (start, b'"",' * pieces) for pieces in (10, 100_000))
    steps_of(few)  # compiles the patterns, which other tests may have done or pushed out of the cache of `re`

    assert steps_of(many) <= steps_of(few) + 10


def steps_of(body: bytes) -> int:
    """The calls that it takes to look at a body and to change its model, whatever is left of other tests aside."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    gc.collect()
    gc.disable()  # a finalizer's steps are not the body's
    sys.setprofile(count)
    try:
        peek(ENDPOINTS[0], body, {})
        with_model(body, "n")
    finally:
        sys.setprofile(None)
        gc.enable()
    return steps
