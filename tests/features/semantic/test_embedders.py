"""Embeddings are calls of their own: on the caller's account, through the pipeline, and no credential goes astray."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest

from gateway.core.call import Call, Reply
from gateway.core.errors import KeyRateLimited
from gateway.core.snapshot import Model, Provider
from gateway.features.reuse.rules import SemanticRule
from gateway.features.semantic.embedders import DEADLINE_S, ConfigEmbedder, Embedders, read_embedding
from gateway.features.semantic.question import Embedder, EmbeddingFailed
from tests.rows import rows
from tests.support.flow import JSON, Bench, FakeClock, ScriptedUpstream

VECTOR = [0.5, -0.25, 1.0]
AS_FLOATS = orjson.dumps({"data": [{"embedding": VECTOR, "index": 0}]})
AS_BASE64 = orjson.dumps({"data": [{"embedding": b64encode(array("f", VECTOR).tobytes()).decode()}]})


@dataclass
class Answering:
    """Stands in for the pipeline."""

    status: int = 200
    body: bytes = AS_BASE64
    in_pieces: bool = False
    fails: Exception | None = None
    calls: list[Call] = field(default_factory=list)
    closed: int = 0

    async def __call__(self, call: Call) -> Reply:
        self.calls.append(call)
        if self.fails is not None:
            raise self.fails
        if self.in_pieces:
            return Reply(self.status, [JSON], chunks=self._pieces(), close=self._close)
        return Reply(self.status, [JSON], self.body, close=self._close)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        for start in range(0, len(self.body), 10):
            yield self.body[start : start + 10]

    async def _close(self) -> None:
        self.closed += 1


def call_of(embeds_at: str = "p0", **changes: object) -> Call:
    """A call to the model `m` at provider p0, in a config where `embedder` is at some provider."""
    call = Bench([ScriptedUpstream()]).call(**changes)
    model = call.route.model
    target = replace(model.targets[0], provider=embeds_at)
    models = {**call.route.policy.models, "embedder": Model("embedder", (target,), (target,))}
    return replace(call, route=replace(call.route, policy=replace(call.route.policy, models=models)))


async def embed(answering: Answering, call: Call, text: str = "hello", dimensions: int | None = None) -> Any:
    embedder = ConfigEmbedder(answering, FakeClock(), "embedder", dimensions)
    return await embedder.embed(text, call)


async def test_the_call_is_on_the_callers_account() -> None:
    """Its key, its tenant, its lane, so that limits and money are the caller's; and with a deadline of its own."""
    answering = Answering()
    caller = call_of(lane="batch", tenant="acme", deadline=1001.0, deadline_is_callers=True)

    vector = await embed(answering, caller)

    (made,) = answering.calls
    assert list(vector) == VECTOR
    assert (made.route.key, made.request.tenant, made.request.lane) == (caller.route.key, "acme", "batch")
    assert (made.request.id, made.request.model_name, made.route.model.name) == (
        "req_1-embedding",
        "embedder",
        "embedder",
    )
    assert made.request.deadline == made.request.received_at + DEADLINE_S
    assert not made.request.deadline_is_callers
    assert made.slots is None
    assert made.parsed == orjson.loads(made.request.body)
    assert made.parsed == {"model": "embedder", "input": "hello", "encoding_format": "base64"}


async def test_fewer_dimensions_are_asked_for_where_the_rule_says_so() -> None:
    """For models that can do with fewer."""
    answering = Answering()

    await embed(answering, call_of(), dimensions=256)

    assert orjson.loads(answering.calls[0].request.body)["dimensions"] == 256


async def test_a_text_that_is_not_unicode_is_sent_as_well_as_it_can_be() -> None:
    """A lone surrogate has no UTF-8."""
    answering = Answering()

    await embed(answering, call_of(), "a\ud800b")

    assert orjson.loads(answering.calls[0].request.body)["input"] == "a?b"


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("body", [AS_FLOATS, AS_BASE64])
async def test_floats_and_base64_are_read(body: bytes, in_pieces: bool) -> None:
    """Not every provider knows base64; whole or in pieces, and the reply is closed."""
    answering = Answering(body=body, in_pieces=in_pieces)

    assert list(await embed(answering, call_of())) == VECTOR
    assert answering.closed == 1


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_text_that_the_provider_does_not_take_has_no_vector(status: int) -> None:
    """The next one may."""
    answering = Answering(status)

    assert await embed(answering, call_of()) is None
    assert answering.closed == 1


@pytest.mark.parametrize("status", [401, 404, 429, 500])
async def test_any_other_status_is_a_failure(status: int) -> None:
    """The reply is closed all the same."""
    answering = Answering(status)

    with pytest.raises(EmbeddingFailed, match=f"status {status}"):
        await embed(answering, call_of())

    assert answering.closed == 1


async def test_a_refusal_of_the_gateway_is_a_failure_with_its_code() -> None:
    """Such as the key's own limit."""
    with pytest.raises(EmbeddingFailed, match="key_rate_limited: too many"):
        await embed(Answering(fails=KeyRateLimited("too many", retry_after_s=1.0)), call_of())


async def test_a_model_that_a_reload_took_away_is_a_failure() -> None:
    """The call's own config decides."""
    answering = Answering()

    with pytest.raises(EmbeddingFailed, match="the config has no model embedder"):
        await embed(answering, Bench([]).call())

    assert answering.calls == []


@rows(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data":[]}',
        b'{"data":[{}]}',
        b'{"data":[{"embedding":null}]}',
        b'{"data":[{"embedding":["a"]}]}',
        b'{"data":[{"embedding":[[1]]}]}',
        b'{"data":[{"embedding":"?"}]}',
        b'{"data":[{"embedding":"AAA="}]}',
    ],
)
def test_an_answer_that_is_no_embedding_is_a_failure(body: bytes) -> None:
    """Whatever else it is."""
    with pytest.raises(EmbeddingFailed, match="not a list of embeddings"):
        read_embedding(body)


@pytest.mark.parametrize(
    ("embeds_at", "api_key", "is_sent"),
    [("p0", None, True), ("elsewhere", None, False), ("elsewhere", "sk-ours", True), ("p0", "sk-ours", True)],
)
async def test_the_callers_credential_goes_only_where_its_own_call_may_take_it(
    embeds_at: str, api_key: str | None, is_sent: bool
) -> None:
    """A provider with a credential of its own never uses the caller's; any other gets it if the call itself goes there."""
    call = call_of(embeds_at, credential=b"Bearer theirs")
    providers = {name: Provider(name, "openai", f"http://{name}.test") for name in ("p0", "elsewhere")}
    providers[embeds_at] = replace(providers[embeds_at], api_key=api_key)
    call = replace(call, route=replace(call.route, policy=replace(call.route.policy, providers=providers)))
    answering = Answering()

    await embed(answering, call)

    assert answering.calls[0].request.credential == (b"Bearer theirs" if is_sent else None)


class Local:
    """A model from disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    async def embed(self, text: str, call: Call) -> Sequence[float] | None:
        return VECTOR


async def test_models_from_disk_are_opened_beforehand_and_once() -> None:
    """Each folder by its rule; a model of the config needs no opening."""
    opened: list[str] = []

    def open_local(folder: str) -> Embedder:
        opened.append(folder)
        return Local(folder)

    embedders = Embedders(Answering(), FakeClock(), open_local)
    rules = [SemanticRule("local:/models/a"), SemanticRule("embedder", dimensions=3)]

    assert embedders.prepare([*rules, *rules]) == []
    assert embedders.prepare(rules) == []
    assert opened == ["/models/a"]
    assert isinstance(embedders.of(rules[0]), Local)
    assert isinstance(embedders.of(rules[1]), ConfigEmbedder)


async def test_a_model_that_could_not_be_opened_fails_when_it_is_asked() -> None:
    """With the reason; a later attempt may do better."""
    fails: list[Exception] = [ImportError("install tokenizers"), ValueError("there is no file tokenizer.json")]

    def open_local(folder: str) -> Embedder:
        if fails:
            raise fails.pop(0)
        return Local(folder)

    embedders = Embedders(Answering(), FakeClock(), open_local)
    rule = SemanticRule("local:/models/a")

    with pytest.raises(EmbeddingFailed, match="has not been opened"):
        embedders.of(rule)
    assert embedders.prepare([rule]) == ["install tokenizers"]
    assert embedders.prepare([rule]) == ["there is no file tokenizer.json"]
    with pytest.raises(EmbeddingFailed, match=r"no file tokenizer.json"):
        embedders.of(rule)
    assert embedders.prepare([rule]) == []
    assert isinstance(embedders.of(rule), Local)
