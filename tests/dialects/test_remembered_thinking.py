"""Agents whose clients drop what a model thought, at scripted servers of Anthropic's: each of its turns goes back whole."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.core.snapshot import Model, Target
from gateway.core.types import StoreBounds
from gateway.dialects.base import ModelFacts
from gateway.dialects.memory import KEPT_FOR_S, THINKING, SharedTurns, ThoughtMemory
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint
from gateway.dialects.upstream import Converting
from gateway.drivers.memory import MemoryStore
from tests.dialects.claude import ADAPTIVE, BUDGET, TOOL
from tests.dialects.test_remembered import SAID, events
from tests.support.flow import Bench, Script, ScriptedUpstream, streamed, whole

ROUNDS = 30
IN_CHAT = b'{"id": "c", "model": "m", "choices": [{"index": 0, "message": {"content": "so"}, "finish_reason": "stop"}]}'
Turn = list[dict[str, Any]]


def turn(number: int) -> Turn:
    """What Claude thinks, says and calls in one round."""
    made: Turn = [{"type": "thinking", "thinking": f"thought {number} é", "signature": f"sig{number}=="}]
    if number % 3 == 0:
        made.append({"type": "text", "text": f"step {number}"})
    made.append({"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": {"n": number}})
    if number % 5 == 0:
        made.append({"type": "redacted_thinking", "data": f"data{number}"})
        made.append({"type": "tool_use", "id": f"toolu_{number}b", "name": "f", "input": {}})
    return made


def answers(turns: list[Turn], *, is_stream: bool) -> list[Script]:
    if is_stream:
        return [streamed(events(one)) for one in turns]
    return [whole(orjson.dumps({**SAID, "content": one})) for one in turns]


class Agents(Bench):
    """Targets that speak Messages, each of a dialect, with one memory before them."""

    def __init__(self, *scripts: list[Script], dialects: tuple[str, ...] = ("anthropic",), model: ModelFacts = ADAPTIVE,
                 **options: Any) -> None:  # fmt: skip
        self.dialects, self.facts = dialects, model
        self.memory: ThoughtMemory | None = None
        super().__init__([ScriptedUpstream(*one) for one in scripts], **options)

    def _model(self) -> Model:
        self.memory = ThoughtMemory(self.clock.monotonic)
        model = super()._model()
        by_name = {one.name: self._around(one, dialect) for one, dialect in zip(model.plan, self.dialects, strict=True)}
        return replace(
            model,
            targets=tuple(by_name[one.name] for one in model.targets),
            plan=tuple(by_name[one.name] for one in model.plan),
        )

    def _around(self, target: Target, dialect: str) -> Target:
        speaks = frozenset(("responses",)) if dialect == "responses" else frozenset(("messages",))
        spoken = TargetLanguages(
            "other", speaks, "openai" if dialect == "responses" else dialect, lambda _model: self.facts
        )
        around = Converting(target.upstream, spoken, self.clock, lambda: "abc", learned=None, memory=self.memory)
        return replace(target, converters_by_path=around.converters_by_path, gaps=gaps_by_endpoint(spoken, "m"))

    async def say(self, messages: list[Any], *, is_stream: bool = False, tenant: str = "t", **changes: Any) -> Any:
        """Returns the assistant's message, as a client keeps it that knows OpenAI's own fields alone, and the headers."""
        body: dict[str, Any] = {"model": "m", "messages": messages, "tools": [TOOL], "reasoning_effort": "low"}
        if is_stream:
            body["stream"] = True
        given = {"body": orjson.dumps(body), "stream": is_stream, "tenant": tenant, "parsed": body} | changes
        reply, said = await self.serve(**given)
        headers = {name: value for name, value in reply.headers if name.startswith(b"x-gateway")}
        message = merged(said) if is_stream else orjson.loads(said)["choices"][0]["message"]
        return {name: message[name] for name in ("role", "content", "tool_calls") if name in message}, headers

    def turns_sent(self, target: int = 0) -> list[list[Turn]]:
        """Returns the model's turns in each request to a target."""
        bodies = [orjson.loads(bytes(one.body)) for one in self.upstreams[target].sent]
        return [[one["content"] for one in body["messages"] if one["role"] == "assistant"] for body in bodies]


def merged(stream: bytes) -> dict[str, Any]:
    """A streamed message, put together as OpenAI's client does."""
    made: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for event in stream.split(b"\n\n"):
        if not event.startswith(b"data: {"):
            continue
        for choice in orjson.loads(event[6:])["choices"]:
            delta = choice["delta"]
            if delta.get("content"):
                made["content"] = (made["content"] or "") + delta["content"]
            for one in delta.get("tool_calls", ()):
                call = calls.setdefault(one["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                call["id"] = one.get("id", call.get("id"))
                call["function"]["name"] += one["function"].get("name", "")
                call["function"]["arguments"] += one["function"]["arguments"]
    return made | ({"tool_calls": list(calls.values())} if calls else {})


def results(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in message["tool_calls"]]


GO = {"role": "user", "content": "go"}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_thirty_rounds_keep_all_they_thought(is_stream: bool) -> None:
    """Every request has every earlier turn as it came, and nothing is told as lost but what the effort becomes."""
    turns = [turn(number) for number in range(ROUNDS)]
    agents = Agents(answers(turns, is_stream=is_stream))
    messages: list[Any] = [GO]
    for _ in turns:
        message, headers = await agents.say(messages, is_stream=is_stream)
        assert b"x-gateway-lossy" not in headers
        messages += [message, *results(message)]

    assert agents.turns_sent() == [turns[:number] for number in range(ROUNDS)]
    assert agents.memory is not None
    assert agents.memory.counts.hit == sum(range(ROUNDS))
    assert (agents.memory.counts.miss, agents.memory.counts.changed) == (0, 0)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_another_process_goes_on_where_both_share_a_store(is_stream: bool) -> None:
    """Round by round in turn, every request has every earlier turn as it came; alone, each would know half."""
    turns = [turn(number) for number in range(6)]
    both = [Agents(answers(turns[number::2], is_stream=is_stream)) for number in (0, 1)]
    store = MemoryStore(StoreBounds({THINKING: 1_000_000}, 0), both[0].clock.wall)
    for one in both:
        assert one.memory is not None
        one.memory.shared = SharedTurns(store.answers, one.clock.wall)
    messages: list[Any] = [GO]
    for number in range(len(turns)):
        message, headers = await both[number % 2].say(messages, is_stream=is_stream)
        assert b"x-gateway-lossy" not in headers
        messages += [message, *results(message)]
        await asyncio.sleep(0)

    assert [sent for pair in zip(*(one.turns_sent() for one in both), strict=True) for sent in pair] == [
        turns[:number] for number in range(len(turns))
    ]


async def test_another_tenant_finds_nothing() -> None:
    """Nor does another one's credential; the same tenant does."""
    turns = [turn(1), turn(2), turn(3), turn(4), turn(5)]
    agents = Agents(answers(turns, is_stream=False))
    message, _ = await agents.say([GO], credential=b"Bearer a")
    messages = [GO, message, *results(message)]

    await agents.say(messages, tenant="other", credential=b"Bearer a")
    await agents.say(messages, credential=b"Bearer b")
    await agents.say(messages)
    await agents.say(messages, credential=b"Bearer a")

    plain = [turn(1)[1:]]
    assert agents.turns_sent() == [[], plain, plain, plain, [turn(1)]]


@pytest.mark.parametrize("dialect", ["openai", "responses"])
async def test_a_fallback_elsewhere_is_not_told_and_says_so(dialect: str) -> None:
    """Thoughts go to nobody but who signed them; back there, they are there again."""
    refuses = whole(b'{"error": {"message": "no", "type": "server_error"}}', 500)
    other = b'{"id": "r", "object": "response", "status": "completed", "output": [], "model": "m"}'
    said = (
        whole(orjson.dumps(SAID | {"content": [{"type": "text", "text": "so"}]}))
        if dialect == "openai"
        else whole(other)
    )
    turns = [turn(0), turn(1)]
    first = answers(turns, is_stream=False)
    agents = Agents([first[0], refuses, first[1]], [said], dialects=("anthropic", dialect), fallbacks=1)
    message, _ = await agents.say([GO])
    messages = [GO, message, *results(message)]

    _, headers = await agents.say(messages)
    assert b"messages.reasoning_details(dropped)" in headers[b"x-gateway-lossy"]
    assert b"sig0" not in bytes(agents.upstreams[1].sent[0].body)
    _, headers = await agents.say(messages)
    assert b"x-gateway-lossy" not in headers
    assert agents.turns_sent()[-1] == [turn(0)]


async def test_what_is_forgotten_is_not_made_up() -> None:
    """The call goes without, and says so where its model cannot think then."""
    agents = Agents(answers([turn(1), turn(2), turn(3)], is_stream=False), model=BUDGET)
    message, _ = await agents.say([GO])
    messages = [GO, message, *results(message)]
    _, kept = await agents.say(messages)
    agents.clock.advance(KEPT_FOR_S)
    _, lost = await agents.say(messages)

    assert agents.turns_sent() == [[], [turn(1)], [turn(1)[1:]]]
    assert b"reasoning_effort(approximated)" in kept[b"x-gateway-lossy"]
    assert b"reasoning_effort(dropped)" in lost[b"x-gateway-lossy"]


async def test_a_model_may_remember_nothing() -> None:
    """By its config."""
    agents = Agents(answers([turn(1), turn(2)], is_stream=False))
    forgetful = replace(agents.policy.models["m"], remembers_thinking=False)
    message, _ = await agents.say([GO], model=forgetful)
    await agents.say([GO, message, *results(message)], model=forgetful)

    assert agents.memory is not None
    assert (len(agents.memory), agents.memory.counts.miss) == (0, 0)
    assert agents.turns_sent()[1] == [turn(1)[1:]]


async def test_a_call_that_may_lose_nothing_is_not_refused_for_what_is_remembered() -> None:
    """Whether it is known only where the call is converted; there it is refused, if it has to be."""
    agents = Agents(answers([turn(1), turn(2)], is_stream=False), model=replace(BUDGET, thinks_unasked=True))
    strict = replace(agents.policy.models["m"], on_loss="refuse")
    body = {"model": "m", "tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 2048}}

    async def ask(messages: list[Any]) -> Any:
        given = body | {"messages": messages}
        return await agents.say(messages, model=strict, body=orjson.dumps(given), parsed=given)

    message, _ = await ask([GO])
    await ask([GO, message | {"reasoning_content": "unsigned"}, *results(message)])
    assert agents.turns_sent()[1] == [turn(1)]
