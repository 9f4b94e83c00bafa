"""Calls at Bedrock: the model in the path, frames that become events, embeddings by another way."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from struct import unpack
from typing import Any

import orjson
import pytest

from gateway.core.clock import SystemClock
from gateway.core.errors import InvalidRequest
from gateway.core.http.client.wire import Wire
from gateway.core.retry import Attempt
from gateway.core.snapshot import Provider
from gateway.core.types import Clocks, Outgoing, UpstreamFailed
from gateway.dialects.config import read_models
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint, languages_of
from gateway.dialects.upstream import Converting
from tests.dialects.aws_frames import event, exception
from tests.dialects.cases import events_of
from tests.support.flow import JSON, Script, ScriptedAnswer, ScriptedUpstream
from tests.support.targets import target_named

CLOCKS = Clocks(1.0, 1.0, 1.0, 1.0, 1.0)
ARN = "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-haiku-4-5-20251001-v1:0"
SPOKEN = TargetLanguages("bedrock", languages_of("bedrock", "bedrock", None), "bedrock", read_models(None).of)
USAGE = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "so"}]}},
    "stopReason": "end_turn",
    "usage": USAGE,
}
FRAMES = (b"content-type", b"application/vnd.amazon.eventstream")
STREAM = [
    event("messageStart", {"role": "assistant"}),
    event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "so"}}),
    event("messageStop", {"stopReason": "end_turn"}),
    event("metadata", {"usage": USAGE}),
]


def around(*scripts: Script) -> tuple[ScriptedUpstream, Converting]:
    inner = ScriptedUpstream(*scripts)
    return inner, Converting(inner, SPOKEN, SystemClock(), lambda: "abc", learned=None)


def outgoing(path: str, model: str = ARN, **body: Any) -> Outgoing:
    given = orjson.dumps({"model": "m", **body})
    return Outgoing("POST", path, b"", model, [], given, None, CLOCKS, 1.0, Attempt(target_named("t"), 0.0))


CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


async def body_of(answer: Any) -> bytes:
    return answer.whole if answer.whole is not None else b"".join([chunk async for chunk in answer.chunks])


async def test_a_call_goes_to_its_models_own_path() -> None:
    """Encoded as one step, an ARN, too; the wire leaves it as it is."""
    inner, upstream = around(Script(200, (JSON,), [orjson.dumps(ANSWER)]))
    answer = await upstream.send(outgoing("/chat/completions", **CHAT))

    said = orjson.loads(await body_of(answer))
    assert said["choices"][0]["message"]["content"] == "so"
    (sent,) = inner.sent
    step = "arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.anthropic.claude-haiku-4-5-20251001-v1%3A0"
    assert sent.path == f"/model/{step}/converse"
    assert "model" not in orjson.loads(bytes(sent.body))
    provider = Provider("aws", "bedrock", "https://bedrock-runtime.us-east-1.amazonaws.com", api_key="k")
    head = Wire(provider, None, None)._address(sent).head  # type: ignore[arg-type]  # no transport is needed
    assert head.startswith(f"POST /model/{step}/converse HTTP/1.1\r\n".encode())
    assert b"authorization: Bearer k" in head


async def test_frames_become_events() -> None:
    inner, upstream = around(Script(200, (FRAMES,), STREAM))
    answer = await upstream.send(outgoing("/chat/completions", **CHAT, stream=True))

    stream = await body_of(answer)
    assert dict(answer.headers)[b"content-type"] == b"text/event-stream"
    assert [one["choices"][0]["delta"].get("content") for one in events_of(stream)] == ["", "so", None]
    assert stream.endswith(b"data: [DONE]\n\n")
    assert inner.sent[0].path.endswith("/converse-stream")


async def test_callers_of_responses_are_served_too() -> None:
    _, upstream = around(Script(200, (FRAMES,), [*STREAM[:2], exception("throttlingException", "slow")]))
    answer = await upstream.send(outgoing("/responses", input="hi", stream=True))

    last = events_of(await body_of(answer))[-1]
    assert (last["type"], last["message"]) == ("error", "slow")


async def test_embeddings_go_by_another_way() -> None:
    """As numbers and as base64, which is made here."""
    said = orjson.dumps({"embedding": [0.5, -1.0], "inputTextTokenCount": 3})
    inner, upstream = around(Script(200, (JSON,), [said]), Script(200, (JSON,), [said]))
    plain, packed = [
        orjson.loads(
            await body_of(
                await upstream.send(
                    outgoing("/embeddings", "amazon.titan-embed-text-v2:0", input="hi", encoding_format=form)
                )
            )
        )
        for form in ("float", "base64")
    ]
    assert plain["data"] == [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
    assert unpack("<2f", b64decode(packed["data"][0]["embedding"])) == (0.5, -1.0)
    assert plain["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert inner.sent[0].path == "/model/amazon.titan-embed-text-v2%3A0/invoke"
    assert orjson.loads(bytes(inner.sent[0].body)) == {"inputText": "hi"}


@pytest.mark.parametrize("model", ["", ".", "..", "a\nb"])
async def test_a_name_that_is_no_step_of_a_path_is_not_sent(model: str) -> None:
    _, upstream = around()
    with pytest.raises(UpstreamFailed, match="cannot be part of a URL"):
        await upstream.send(outgoing("/chat/completions", model, **CHAT))


async def test_what_the_model_is_not_known_to_embed_is_refused() -> None:
    _, upstream = around()
    with pytest.raises(InvalidRequest, match=r"a row of models\.yaml says it"):
        await upstream.send(outgoing("/embeddings", "some.model", input="hi"))


def test_endpoints_that_bedrock_does_not_have_are_told_to_be_so() -> None:
    found = gaps_by_endpoint(SPOKEN, "amazon.titan-embed-text-v2:0")
    assert [gap.field for gap in found["moderations"]({})] == ["the endpoint 'moderations'"]
    assert found["embeddings"]({"input": "hi"}) == []
    assert found["chat"](CHAT) == []


TITAN, COHERE = "amazon.titan-embed-text-v2:0", "cohere.embed-english-v3"


class _Embedder:
    """Titan: a vector of one number for each text, which says how many are asked for at once."""

    errors: tuple[type[Exception], ...] = ()

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.at_once, self.most, self.seen = refuses, 0, 0, list[str]()

    async def send(self, sent: Outgoing) -> Any:
        text = orjson.loads(bytes(sent.body))["inputText"]
        self.seen.append(text)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if text == self.refuses:
            return ScriptedAnswer(Script(429, (JSON,), [b'{"message":"Too many requests"}']))
        said = {"embedding": [float(text)], "inputTextTokenCount": 2}
        return ScriptedAnswer(Script(200, (JSON,), [orjson.dumps(said)]))

    def failure(self, error: Exception) -> UpstreamFailed:
        raise AssertionError from error


async def test_a_list_of_texts_is_several_calls_of_a_model_that_takes_one() -> None:
    """Some at once, put together in their order; all count as requests; the first that is refused stands for them all."""
    inner = _Embedder()
    upstream = Converting(inner, SPOKEN, SystemClock(), lambda: "abc", learned=None)
    asked = outgoing("/embeddings", TITAN, input=[str(one) for one in range(30)], user="u")
    said = orjson.loads(await body_of(await upstream.send(asked)))

    assert [(one["index"], one["embedding"]) for one in said["data"]] == [(one, [float(one)]) for one in range(30)]
    assert said["usage"] == {"prompt_tokens": 60, "total_tokens": 60}
    assert isinstance(asked.signs, Attempt)
    assert (asked.signs.requests, [gap.field for gap in asked.signs.gaps], inner.most) == (30, ["user"], 4)

    inner = _Embedder(refuses="5")
    upstream = Converting(inner, SPOKEN, SystemClock(), lambda: "abc", learned=None)
    answer = await upstream.send(outgoing("/embeddings", TITAN, input=[str(one) for one in range(30)]))
    assert (answer.status, await body_of(answer)) == (429, b'{"message":"Too many requests"}')
    assert len(inner.seen) < 15


async def test_tokens_that_a_header_tells_are_the_usage() -> None:
    said = orjson.dumps({"embeddings": [[0.5]] * 96}), orjson.dumps({"embeddings": [[0.5]] * 4})
    counted = [(JSON, (b"x-amzn-bedrock-input-token-count", number)) for number in (b"96", b"4")]
    _, upstream = around(*(Script(200, head, [body]) for head, body in zip(counted, said, strict=True)))
    answer = orjson.loads(await body_of(await upstream.send(outgoing("/embeddings", COHERE, input=["a"] * 100))))
    assert (len(answer["data"]), answer["usage"]) == (100, {"prompt_tokens": 100, "total_tokens": 100})
