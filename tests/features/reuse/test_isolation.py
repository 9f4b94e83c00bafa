"""Nobody ever gets another's answer: random probes by everybody for what somebody else has just asked, or is asking.

Every answer of the scripted provider names the call that it was made for, so a leak shows in the bytes, whatever the gateway
says of them. All layers are on, and the embeddings are as bad as can be: each question is the nearest of each. The long
version is in `tests/soak`.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.core.health.detector import BreakerRules
from gateway.core.snapshot import Key
from gateway.core.types import ErrorClass, Outgoing, Phase, UpstreamFailed
from gateway.dialects.endpoints import COMPLETIONS, EMBEDDINGS
from gateway.features.reuse.rules import Caching, ExactRule, SemanticRule
from gateway.features.reuse.service import Replays
from gateway.features.semantic.index import VectorIndex
from gateway.features.semantic.lookup import Semantic
from tests.support.flow import CHAT, JSON, RESPONSES, SSE, Bench, Script, ScriptedAnswer, ScriptedUpstream
from tests.sweeps import sampled

TTL_S = 60.0
CACHING = Caching(
    coalesce="always",
    exact=ExactRule("always", ttl_s=TTL_S, stale_if_error_s=3600),
    semantic=SemanticRule("embedder", threshold=0.5, wait_s=5),
)
CALLER = b"x-stainless-caller"
"""Goes to the provider, and is no part of a question."""
CANARY = re.compile(rb"made for (\d+) of round (\d+)")
WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heron",
    "iris",
    "jade",
    "kelp",
    "lotus",
    "maple",
    "north",
    "olive",
    "pearl",
    "quill",
    "river",
]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


@dataclass(frozen=True, slots=True)
class Owner:
    """Somebody who must share with nobody else: a tenant, a credential, or an account that it is used for."""

    number: int
    tenant: str
    credential: bytes | None = None
    account: tuple[tuple[bytes, bytes], ...] = ()
    key: str = "web"


def owners() -> list[Owner]:
    """Names that look like lengths, ends and prefixes of each other; one key, or one credential, for several of them."""
    tenants = ["web", "web2", "2:we", "b", "3:web0:", "web0:", "web/a", "web/b", "a", "", ":", "ä"]
    secrets = [b"Bearer sk-a", b"Bearer sk-ab", b"bearer sk-a", b"Bearer 3:web"]
    projects = [(b"openai-project", b"p"), (b"openai-project", b"p1"), (b"openai-organization", b"p")]
    found = [Owner(0, tenant) for tenant in tenants]
    found += [Owner(0, tenant, secret) for secret in secrets for tenant in ("anonymous", "web")]
    found += [Owner(0, "anonymous", secrets[0], (project,)) for project in projects]
    found.append(Owner(0, "anonymous", secrets[0], tuple(projects[1:])))
    return [replace(owner, number=number) for number, owner in enumerate(found)]


class NearEmbedder:
    """To whom all questions mean the same."""

    async def embed(self, text: str, call: Call) -> Sequence[float]:
        return [1.0, 0.0, 0.001 * len(text)]


class Telling(ScriptedUpstream):
    """Answers any number of calls, each with whom it was made for (`CALLER`); fails where it is told to."""

    async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
        await asyncio.sleep(0)
        caller = dict(outgoing.headers)[CALLER]
        if b"fail" in caller:
            raise UpstreamFailed(ErrorClass.CONNECTION, Phase.NOTHING_SENT, "refused")
        return ScriptedAnswer(_answer(outgoing.path, orjson.loads(bytes(outgoing.body)), caller.decode()))


def _answer(path: str, body: dict[str, Any], told: str) -> Script:
    """A proper answer of the endpoint that says what it is told."""
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    if path == EMBEDDINGS.path:
        value: dict[str, Any] = {"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": told}
    elif path == RESPONSES.path:
        text = {"type": "output_text", "text": told, "annotations": []}
        item = {"id": "msg", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
        value = {"id": "resp", "object": "response", "status": "completed", "output": [item], "usage": None}
        if body.get("stream"):
            event = {"type": "response.completed", "sequence_number": 0, "response": value}
            return Script(200, (SSE,), [b"event: response.completed\ndata: %b\n\n" % orjson.dumps(event)])
    else:
        message = _message(told, with_tools="tools" in body)
        ends = {"index": 0, "finish_reason": "stop"}
        said = {"message": message} if path == CHAT.path else {"text": told}
        value = {"id": "c", "created": 1, "model": "m", "choices": [{**ends, **said}], "usage": usage}
        if body.get("stream"):
            for call in message.get("tool_calls", ()):
                call["index"] = 0
            said = {"delta": message} if path == CHAT.path else {"text": told}
            chunk = {"id": "c", "created": 1, "model": "m", "choices": [{**ends, **said}]}
            return Script(200, (SSE,), [b"data: %b\n\n" % orjson.dumps(chunk), b"data: [DONE]\n\n"])
    return Script(200, (JSON,), [orjson.dumps(value)])


def _message(told: str, *, with_tools: bool) -> dict[str, Any]:
    if not with_tools:
        return {"role": "assistant", "content": told}
    call = {"id": "call", "type": "function", "function": {"name": "look_up", "arguments": told}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@dataclass
class Probing:
    """A gateway with every layer on, and everybody who asks."""

    draw: random.Random
    everybody: list[Owner] = field(default_factory=owners)
    caching: Caching = CACHING
    results: Counter[str] = field(default_factory=Counter)
    """What came of probes, and of those who asked again what they had asked themselves (`own …`)."""

    def __post_init__(self) -> None:
        self.bench = Bench([Telling()], caching=self.caching, breaker=BreakerRules(is_enabled=False))
        assert self.bench.store is not None
        self.store = self.bench.store
        self.semantic = Semantic(self.bench.clock, VectorIndex(), self.store.vectors, lambda _rule: NearEmbedder())
        self.replays = self.bench.product(Replays)
        self.replays.layers.semantic = self.semantic

    async def run(self, rounds: int, probes: int = 4) -> None:
        """In each round somebody asks, and others probe for it at that moment or later."""
        for number in range(rounds):
            await self._round(number, probes)
            if number % 50 == 49:
                self.bench.meter.accounts.clear()
                self.store.tick()
        await self.semantic.aclose()
        await self.replays.aclose()

    async def _round(self, number: int, probes: int) -> None:
        draw = self.draw
        victim, *others = draw.sample(self.everybody, probes + 1)
        question = self._question()
        headers = self._idempotency(number)
        first = asyncio.ensure_future(self._ask(victim, number, question, **headers))
        if draw.random() < 0.7:
            await first
            if draw.random() < 0.15:
                self.bench.clock.advance(TTL_S + 1)  # what is left is given in an emergency only
        else:
            await asyncio.sleep(0)
        asked = [self._probe(other, number, question, headers) for other in others]
        if draw.random() < 0.5:
            await asyncio.gather(first, *asked)
        else:
            await first
            for each in asked:
                await each
        again = await self._ask(victim, number, question)
        self.results[f"own {again}"] += 1

    async def _probe(self, owner: Owner, number: int, question: dict[str, Any], headers: dict[str, Any]) -> None:
        draw = self.draw
        mine = self._similar(question) if draw.random() < 0.5 else question
        changes = dict(headers) if draw.random() < 0.8 else {}
        if draw.random() < 0.2:
            changes["cache_control"] = draw.choice([b"only-if-cached", b"max-stale", b"max-age=9999", b"no-store"])
        if draw.random() < 0.2:
            changes["sdk_retry"] = 1
        self.results[await self._ask(owner, number, mine, fails=draw.random() < 0.2, **changes)] += 1

    async def _ask(
        self, owner: Owner, number: int, question: dict[str, Any], *, fails: bool = False, **changes: Any
    ) -> str:
        """What came of it: as the answer's head says, or the error; the answer itself is made for its owner in any case."""
        endpoint, body = question["endpoint"], question["body"]
        told = b"%b made for %d of round %d" % (b"fail" if fails else b"", owner.number, number)
        call = self.bench.call(
            id=f"{owner.number}#{number}",
            endpoint=endpoint,
            path=endpoint.path,
            tenant=owner.tenant,
            credential=owner.credential,
            key=Key(owner.key, owner.tenant, b""),
            headers=[*owner.account, (CALLER, told)],
            body=orjson.dumps(body),
            parsed=orjson.loads(orjson.dumps(body)),
            stream=body.get("stream", False),
            stream_options=body.get("stream_options"),
            **changes,
        )
        try:
            reply = await self.bench.pipeline.handle(call)
            text = reply.body if reply.chunks is None else b"".join([chunk async for chunk in reply.chunks])
            await reply.close()
        except GatewayError as error:
            return error.code or error.type
        found = CANARY.findall(text)
        assert found, text
        assert {int(whose) for whose, _ in found} == {owner.number}, (owner, question, changes, reply.headers, text)
        head = dict(reply.headers)
        source = head.get(b"x-gateway-cache-source", call.request.id.encode())
        assert source.partition(b"#")[0] == b"%d" % owner.number
        return head[b"x-gateway-cache"].decode()

    def _question(self) -> dict[str, Any]:
        """One that nobody has asked before, most likely."""
        draw = self.draw
        text = f"what do people say of {' and '.join(draw.sample(WORDS, 6))}?"
        endpoint = draw.choice([CHAT, CHAT, CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES])
        body: dict[str, Any] = {"model": "m"}
        if endpoint is CHAT:
            body["messages"] = [{"role": "user", "content": text}]
            if draw.random() < 0.3:
                body["tools"] = TOOLS
        else:
            body["prompt" if endpoint is COMPLETIONS else "input"] = text
        if endpoint is not EMBEDDINGS and draw.random() < 0.5:
            body["stream"] = True
            if endpoint is not RESPONSES and draw.random() < 0.3:
                body["stream_options"] = {"include_usage": True}
        return {"endpoint": endpoint, "body": body}

    def _similar(self, question: dict[str, Any]) -> dict[str, Any]:
        """In another form, or in slightly other words."""
        text = orjson.dumps(question["body"])
        if self.draw.random() < 0.5:
            text = text.replace(
                b"what do people say of", self.draw.choice([b"what do people think of", b"what is said of"])
            )
        body = orjson.loads(text)
        if question["endpoint"] is not EMBEDDINGS and self.draw.random() < 0.5:
            body["stream"] = not body.get("stream", False)
        return {**question, "body": body}

    def _idempotency(self, number: int) -> dict[str, Any]:
        return {"idempotency_key": b"key-%d" % number} if self.draw.random() < 0.4 else {}


@pytest.mark.parametrize("seed", sampled(range(4), lambda seed: seed < 2))
async def test_500_probes_find_nothing_of_anybody_else(seed: int) -> None:
    """Neither in memory nor on the way, neither fresh nor stale, neither equal nor similar; everybody finds their own."""
    probing = Probing(random.Random(seed))

    await probing.run(rounds=125)

    results = probing.results
    assert sum(results[name] for name in results if not name.startswith("own")) == 500
    assert not results["idempotency_key_reused"]
    assert results["own hit"] > 60
    assert results["miss"] > 150
    assert results["not_cached"]
    assert results["no_target_available"]
