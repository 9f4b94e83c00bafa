"""Callers of Anthropic's Messages, over the wire: at a server of that language, and at the emulator, which has OpenAI's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.emulator.config import EmulatorConfig
from tests.e2e.anthropic_server import AnthropicServer, error, events, message
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, WEB_KEY, Response, Running, config_of, connect, get, post, until

PATH = "/v1/messages"
VERSION = "anthropic-version: 2023-06-01"
ASKED: Mapping[str, Any] = {
    "model": "claude",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hello there"}],
}
CHAT: Mapping[str, Any] = {"model": "claude", "messages": [{"role": "user", "content": "hello there"}]}


@pytest.fixture
def start(start: StartGateway) -> StartGateway:
    """Starts gateways whose provider refuses what its language does not have."""
    return partial(start, emulator=EmulatorConfig(strict=True))


@pytest.fixture
async def anthropic() -> AsyncIterator[AnthropicServer]:
    async with AnthropicServer() as server:
        yield server


def beside(asked: AnthropicServer, **sections: Any) -> Callable[[str], Mapping[str, Any]]:
    """A config with that server as `claude`, and the emulator as `gpt`, each the other's fallback where `both`."""

    def make(url: str) -> Mapping[str, Any]:
        config = config_of(url)
        key = sections.pop("api_key", "sk-ant-of-the-gateway")
        config["providers"]["ant"] = {"dialect": "anthropic", "base_url": asked.url} | ({"api_key": key} if key else {})
        config["models"] = {
            "claude": {"targets": ["ant/claude-x"]},
            "gpt": {"targets": ["main/gpt-4o"]},
            "both": {"targets": ["ant/claude-x"], "fallbacks": ["gpt"]},
        }
        return config | sections

    return make


async def ask(gateway: Running, body: Mapping[str, Any] | bytes, *headers: str, path: str = PATH) -> Response:
    async with connect(gateway.url) as peer:
        return await peer.exchange(post(path, body, *headers))


def message_error(answer: Response) -> dict[str, Any]:
    """The error object, checked to be of Anthropic's shape."""
    value = orjson.loads(answer.body)
    assert (value["type"], value["request_id"]) == ("error", answer.header("request-id")), answer.raw
    assert value["request_id"]
    found: dict[str, Any] = value["error"]
    assert isinstance(found["message"], str)
    return found


async def test_bytes_go_through_at_a_server_of_the_language(start: StartGateway, anthropic: AnthropicServer) -> None:
    """There and back, whole and streamed, but for the model's name; with the query, and the headers that mean something."""
    gateway = await start(beside(anthropic))
    odd = b'{ "model": "claude", "max_tokens": 5,"unknown":{"a": 1.50}, "messages": [{"role":"user","content":"x"}] }'
    headers = ("anthropic-version: 2026-10-21", "anthropic-beta: one,two", "anthropic-user-profile-id: up_1")
    whole = await ask(gateway, odd, *headers, path=f"{PATH}?beta=true")
    streamed = await ask(gateway, {**ASKED, "stream": True}, VERSION)
    await gateway.idle()
    await gateway.stop()

    assert (whole.status, orjson.loads(whole.body)) == (200, message("hello"))
    assert (streamed.status, streamed.body) == (200, events("hel", "lo"))
    assert whole.header("request-id") == "req_of_anthropic"
    (path, told, sent), (_, later, _) = anthropic.seen
    assert (path, sent) == (f"{PATH}?beta=true", odd.replace(b'"claude"', b'"claude-x"'))
    names = ("anthropic-version", "anthropic-beta", "anthropic-user-profile-id", "x-api-key")
    assert [told.get(name) for name in names] == ["2026-10-21", "one,two", "up_1", "sk-ant-of-the-gateway"]
    assert later["anthropic-version"] == "2023-06-01"
    for call in gateway.records:
        assert (call["endpoint"], call["input_tokens"], call["output_tokens"]) == ("messages", 112, 9)
        assert (call["cached_tokens"], call["usage_estimated"]) == (100, False)


async def test_a_caller_of_messages_at_a_provider_of_chat(start: StartGateway, anthropic: AnthropicServer) -> None:
    """Nothing of Anthropic's goes there but what is said in chat completions; the answer is a message in either form."""
    gateway = await start(beside(anthropic))
    asked = {**ASKED, "model": "gpt", "system": "Be brief.", "top_k": 3}
    whole = await ask(gateway, asked, VERSION, "anthropic-beta: one", path=f"{PATH}?beta=true")
    streamed = await ask(gateway, {**asked, "stream": True}, VERSION)

    said = orjson.loads(whole.body)
    assert (said["type"], said["role"], said["stop_reason"]) == ("message", "assistant", "end_turn")
    assert said["content"][0]["text"]
    assert whole.header("x-gateway-lossy") == "top_k(dropped)"
    assert whole.header("request-id")
    assert streamed.body.startswith(b"event: message_start\n")
    assert b"event: message_stop" in streamed.body
    assert b"[DONE]" not in streamed.body
    first = gateway.received()[0]
    assert first["path"] == "/v1/chat/completions"
    assert not [name for name, _ in first["headers"] if name.startswith("anthropic")]
    assert anthropic.seen == []


async def test_a_caller_of_chat_at_a_server_of_messages(start: StartGateway, anthropic: AnthropicServer) -> None:
    gateway = await start(beside(anthropic))
    whole = orjson.loads((await ask(gateway, CHAT, path="/v1/chat/completions")).body)
    assert whole["choices"][0]["message"]["content"] == "hello"
    assert whole["usage"]["prompt_tokens"] == 112
    path, headers, body = anthropic.seen[0]
    assert (path, headers["anthropic-version"]) == (PATH, "2023-06-01")
    assert orjson.loads(body)["model"] == "claude-x"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_falls_back_across_languages(
    start: StartGateway, anthropic: AnthropicServer, *, stream: bool
) -> None:
    """Before its first byte, also when the first server's stream begins with an error."""
    gateway = await start(beside(anthropic))
    begun = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
    anthropic.script.extend([(200, begun) if stream else (529, error("overloaded_error"))] * 9)
    answer = await ask(gateway, {**ASKED, "model": "both", "stream": stream}, VERSION)
    assert answer.status == 200
    assert answer.header("x-gateway-target") == "main/gpt-4o"
    assert (b"message_stop" in answer.body) is stream
    assert b'"type":"message"' in answer.body


OWN: Mapping[str, tuple[list[str], Any, int, str, str]] = {
    "no key": ([], ASKED, 401, "authentication_error", "invalid_api_key"),
    "an unknown model": ([f"x-api-key: {WEB_KEY}"], {**ASKED, "model": "none"}, 404, "not_found_error", "model_not_found"),
    "no JSON": ([f"x-api-key: {WEB_KEY}"], b"{", 400, "invalid_request_error", "invalid_json"),
    "no model": ([f"authorization: Bearer {WEB_KEY}"], b"{}", 400, "invalid_request_error", "missing_field"),
    "too large": ([f"x-api-key: {WEB_KEY}"], b'{"model":"%b"}' % (b"x" * 3000), 413, "request_too_large", "request_too_large"),
    "a bad lane": ([f"x-api-key: {WEB_KEY}", "x-gateway-lane: x"], ASKED, 400, "invalid_request_error", "invalid_request"),
    "not sayable": (
        [f"x-api-key: {WEB_KEY}"],
        {**ASKED, "model": "gpt", "mcp_servers": [{"type": "url"}]},
        400,
        "invalid_request_error",
        "unsupported_by_targets",
    ),
}  # fmt: skip


async def test_our_own_errors_have_anthropics_shape(start: StartGateway, anthropic: AnthropicServer) -> None:
    gateway = await start(beside(anthropic, keys=KEYS, server={"max_body": "2kB"}))
    for name, (headers, body, status, kind, code) in OWN.items():
        for path in (PATH, f"{PATH}/count_tokens"):
            if name == "not sayable" and path != PATH:
                continue
            answer = await ask(gateway, body, VERSION, *headers, path=path)
            found = message_error(answer)
            assert (answer.status, found["type"], found["code"]) == (status, kind, code), name
    async with connect(gateway.url) as peer:
        for path, status in ((PATH, 405), (f"{PATH}/none", 404)):
            answer = await peer.exchange(get(path, f"x-api-key: {WEB_KEY}"))
            assert answer.status == status
            message_error(answer)
        assert (await peer.exchange(get("/v1/chat/completions"))).error["code"] == "method_not_allowed"
    assert anthropic.seen == []


async def test_providers_errors_have_the_callers_shape(start: StartGateway, anthropic: AnthropicServer) -> None:
    """A native one goes to callers of Messages as it is; in between languages type, status and words stay."""
    gateway = await start(beside(anthropic))
    wrong = error("invalid_request_error", "prompt is too long: 205351 tokens > 200000 maximum")
    anthropic.script.extend([(400, wrong), (400, wrong)])
    native = await ask(gateway, ASKED, VERSION)
    assert (native.status, orjson.loads(native.body)) == (400, wrong)
    converted = await ask(gateway, CHAT, path="/v1/chat/completions")
    assert converted.status == 400
    assert converted.error == {
        "message": wrong["error"]["message"],
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
    }
    gateway.script("context_length")
    other = await ask(gateway, {**ASKED, "model": "gpt"}, VERSION)
    found = message_error(other)
    assert (other.status, found["type"]) == (400, "invalid_request_error")
    assert found["message"]


async def test_streams_that_fail_say_so_in_the_callers_form(start: StartGateway, anthropic: AnthropicServer) -> None:
    """Cut or with an error in the middle: an error event, and no end."""
    gateway = await start(beside(anthropic))
    told = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
    anthropic.script.extend([(200, events("hel", is_whole=False)), (200, events("hel", is_whole=False) + told)])
    cut = await ask(gateway, {**ASKED, "stream": True}, VERSION)
    broken = await ask(gateway, {**ASKED, "stream": True}, VERSION)
    last = cut.body.rpartition(b"event: ")[2]
    assert last.startswith(b'error\ndata: {"type":"error","error":{"type":"api_error"')
    assert broken.body == events("hel", is_whole=False) + told
    for fault in ("cut;after_chunks=4", "in_band_error;after_chunks=4"):
        gateway.script(fault)
        converted = await ask(gateway, {**ASKED, "model": "gpt", "stream": True}, VERSION)
        assert b"message_stop" not in converted.body
        assert converted.body.rpartition(b"event: ")[2].startswith(b'error\ndata: {"type":"error","error":{'), fault


async def test_tokens_are_counted_by_who_can_and_estimated_elsewhere(
    start: StartGateway, anthropic: AnthropicServer
) -> None:
    """Past limits and breakers: a generation's place is never taken, and none of the failures is a target's."""
    gateway = await start(beside(anthropic))
    path = f"{PATH}/count_tokens"
    asked = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    native = await ask(gateway, asked, VERSION, path=f"{path}?beta=true")
    assert (native.status, orjson.loads(native.body)) == (200, {"input_tokens": 42})
    assert native.header("x-gateway-estimated") is None
    assert anthropic.paths() == [f"{path}?beta=true"]
    assert orjson.loads(anthropic.seen[0][2])["model"] == "claude-x"
    anthropic.script.extend([(404, error("not_found_error")), (529, error("overloaded_error"))])
    guessed = [
        await ask(gateway, {**asked, "model": name, "system": "long " * 400}, VERSION, path=path)
        for name in ("claude", "claude", "gpt")
    ]
    for answer in guessed:
        assert (answer.status, answer.header("x-gateway-estimated")) == (200, "true")
        assert 400 < orjson.loads(answer.body)["input_tokens"] < 800
        assert answer.header("request-id")
    anthropic.script.append((400, error("invalid_request_error", "no such tool")))
    wrong = await ask(gateway, asked, VERSION, path=path)
    assert (wrong.status, message_error(wrong)["message"]) == (400, "no such tool")
    assert (await ask(gateway, ASKED, VERSION)).status == 200
    await gateway.idle()
    await gateway.stop()
    assert [call["endpoint"] for call in gateway.records] == ["count_tokens"] * 5 + ["messages"]
    assert gateway.received() == []


async def test_counts_take_nothing_from_limits_and_tell_breakers_nothing(
    start: StartGateway, anthropic: AnthropicServer
) -> None:
    """However often they fail, the one call a minute goes at once."""
    models = {"claude": {"targets": [{"provider": "ant", "model": "claude-x", "rpm": 1, "burst": 1}]}}
    gateway = await start(beside(anthropic, models=models))
    anthropic.script.extend([(500, error("api_error"))] * 12)
    for _ in range(14):
        assert (await ask(gateway, ASKED, VERSION, path=f"{PATH}/count_tokens")).status == 200
    answer = await ask(gateway, ASKED, VERSION, "x-gateway-deadline-ms: 5000")
    assert (answer.status, answer.header("x-gateway-queue-ms")) == (200, "0")
    assert len(anthropic.seen) == 15


CREDENTIALS = {
    "a key": ("x-api-key: sk-ant-mine", ("x-api-key", "sk-ant-mine")),
    "a bearer token": ("authorization: Bearer any.token", ("authorization", "Bearer any.token")),
}


@pytest.mark.parametrize("name", CREDENTIALS)
async def test_a_callers_own_credential_stays_what_it_is(
    start: StartGateway, anthropic: AnthropicServer, name: str
) -> None:
    """Both forms open Anthropic's API, and each is one only; a client of chat has but one, and its key is sent as a key."""
    gateway = await start(beside(anthropic, api_key=None))
    sent, (header, value) = CREDENTIALS[name]
    assert (await ask(gateway, ASKED, VERSION, sent)).status == 200
    assert anthropic.seen[0][1][header] == value
    assert len({"x-api-key", "authorization"} & anthropic.seen[0][1].keys()) == 1
    assert (await ask(gateway, CHAT, "authorization: Bearer sk-ant-mine", path="/v1/chat/completions")).status == 200
    assert anthropic.seen[1][1]["x-api-key"] == "sk-ant-mine"


async def test_thinking_of_others_does_not_go_to_anthropic(start: StartGateway, anthropic: AnthropicServer) -> None:
    """What a model elsewhere thought came back without a signature: with our mark it would be refused there."""
    gateway = await start(beside(anthropic))
    thought = {"type": "thinking", "thinking": "hm", "signature": "gw1."}
    signed = {"type": "thinking", "thinking": "hm", "signature": "EqQB"}
    turn = {"role": "assistant", "content": [thought, signed, {"type": "text", "text": "hi"}]}
    await ask(gateway, {**ASKED, "messages": [*ASKED["messages"], turn, *ASKED["messages"]]}, VERSION)
    assert orjson.loads(anthropic.seen[0][2])["messages"][1]["content"] == [signed, {"type": "text", "text": "hi"}]


async def test_models_are_listed_in_the_clients_shape(start: StartGateway, anthropic: AnthropicServer) -> None:
    gateway = await start(beside(anthropic, keys=KEYS))
    async with connect(gateway.url) as peer:
        page = orjson.loads((await peer.exchange(get("/v1/models?limit=2", VERSION, f"x-api-key: {WEB_KEY}"))).body)
        rest = orjson.loads(
            (await peer.exchange(get("/v1/models?after_id=claude", VERSION, f"x-api-key: {WEB_KEY}"))).body
        )
        one = orjson.loads((await peer.exchange(get("/v1/models/gpt", VERSION, f"x-api-key: {WEB_KEY}"))).body)
        refused = await peer.exchange(get("/v1/models", VERSION))
        plain = orjson.loads((await peer.exchange(get("/v1/models", f"x-api-key: {WEB_KEY}"))).body)
    assert [(model["type"], model["id"]) for model in page["data"]] == [("model", "both"), ("model", "claude")]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, "both", "claude")
    assert [model["id"] for model in rest["data"]] == ["gpt"]
    assert (one["id"], one["type"]) == ("gpt", "model")
    assert (refused.status, message_error(refused)["type"]) == (401, "authentication_error")
    assert plain["object"] == "list"


@pytest.mark.parametrize("model", ["claude", "gpt"])
async def test_answers_are_kept_for_messages_in_either_form(
    start: StartGateway, anthropic: AnthropicServer, tmp_path: Path, model: str
) -> None:
    """Whole and streamed stand for each other; a caller of chat never gets one, whatever else is the same."""
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "cache.yaml").write_text("default: {exact: {requests: always}}\n")
    gateway = await start(beside(anthropic, policies=str(rules)))
    asked = {**ASKED, "model": model}
    whole = await ask(gateway, asked, VERSION)
    streamed = await ask(gateway, {**asked, "stream": True}, VERSION)
    again = await ask(gateway, asked, VERSION)
    chat = await ask(gateway, asked, VERSION, path="/v1/chat/completions")
    newer = await ask(gateway, asked, "anthropic-version: 2026-10-21")

    shown = [one.header("x-gateway-cache") for one in (whole, streamed, again, chat, newer)]
    assert shown == ["miss", "hit", "hit", "miss", "miss"]
    assert again.body == whole.body
    text = orjson.loads(whole.body)["content"][0]["text"]
    assert text in "".join(
        orjson.loads(line[6:])["delta"].get("text", "")
        for line in streamed.body.decode().splitlines()
        if line.startswith('data: {"type":"content_block_delta"')
    )
    assert streamed.header("content-type") == "text/event-stream; charset=utf-8"
    assert streamed.body.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert orjson.loads(chat.body)["object"] == "chat.completion"
    for answer in (streamed, again):
        assert answer.header("request-id") == answer.header("x-request-id")


async def test_a_repeated_key_gets_its_message_and_no_other_form(
    start: StartGateway, anthropic: AnthropicServer
) -> None:
    """`Idempotency-Key` holds the endpoint: the same body to another one is another request."""
    gateway = await start(beside(anthropic))
    key = "idempotency-key: k1"
    first = await ask(gateway, ASKED, VERSION, key)
    second = await ask(gateway, ASKED, VERSION, key)
    other = await ask(gateway, ASKED, VERSION, key, path="/v1/chat/completions")
    assert (second.body, second.header("idempotent-replayed")) == (first.body, "true")
    assert (other.status, other.error["code"]) == (422, "idempotency_key_reused")
    assert len(anthropic.seen) == 1
    mine = await ask(gateway, {**ASKED, "max_tokens": 7}, VERSION, key)
    assert (mine.status, message_error(mine)["code"]) == (422, "idempotency_key_reused")


async def test_equal_calls_in_flight_are_one(start: StartGateway, anthropic: AnthropicServer) -> None:
    gateway = await start(beside(anthropic))
    anthropic.wait_s = 0.2
    asked = {**ASKED, "temperature": 0}
    answers = await asyncio.gather(*(ask(gateway, asked, VERSION) for _ in range(3)))
    assert len(anthropic.seen) == 1
    assert {answer.body for answer in answers} == {orjson.dumps(message("hello"))}


async def test_a_whole_answer_to_who_asked_for_a_stream_comes_as_one(
    start: StartGateway, anthropic: AnthropicServer
) -> None:
    """Its events are those that a provider would have sent."""
    gateway = await start(beside(anthropic))
    tool = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"where": "there"}}
    anthropic.script.append((200, message("hello") | {"content": [tool], "stop_reason": "tool_use"}))
    answer = await ask(gateway, {**ASKED, "stream": True}, VERSION)
    names = [line[7:] for line in answer.body.decode().splitlines() if line.startswith("event: ")]
    assert names == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert b'"partial_json":"{\\"where\\":\\"there\\"}"' in answer.body
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"


async def test_a_held_stream_is_kept_alive_and_told_why_it_ends(
    start: StartGateway, anthropic: AnthropicServer, tmp_path: Path
) -> None:
    """By comments, which its SDK passes over; what comes behind them has Anthropic's form: the answer, or an error."""
    (tmp_path / "queue.yaml").write_text("default: {keepalive_after: 20ms}\n")
    models = {"claude": {"targets": [{"provider": "ant", "model": "claude-x", "max_concurrency": 1}]}}
    gateway = await start(beside(anthropic, models=models, policies=str(tmp_path)))
    hang = asyncio.Event()
    anthropic.holds.append(hang)
    asked = {**ASKED, "stream": True}
    async with connect(gateway.url) as first, connect(gateway.url) as served, connect(gateway.url) as refused:
        first.send(post(PATH, asked, VERSION))
        await until(lambda: len(anthropic.seen) == 1)
        served.send(post(PATH, asked, VERSION, "x-gateway-deadline-ms: 3600000"))
        refused.send(post(PATH, asked, VERSION, "x-gateway-deadline-ms: 300"))
        heads = [await peer.reader.readuntil(b"\r\n\r\n") for peer in (served, refused)]
        comments = [await peer.reader.readuntil(b"\n\n") for peer in (served, refused)]
        late = await refused.reader.readuntil(b"0\r\n\r\n")
        hang.set()
        rest = await served.reader.readuntil(b"0\r\n\r\n")

    assert all(head.startswith(b"HTTP/1.1 200 OK\r\n") and b"\r\nrequest-id: req_" in head for head in heads)
    assert all(b": queued position=" in comment for comment in comments)
    assert b'event: error\ndata: {"type":"error","error":{"type":' in late
    assert b'"request_id":"req_' in late
    assert rest.index(b"event: message_start\n") < rest.index(b"event: message_stop\n")
