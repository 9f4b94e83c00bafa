"""Conversations that move between providers, each of which refuses what another one has signed.

Three turns with a tool: at the first provider, at another one while the first is down, at the first again. No provider here
takes a part that it does not know; each tells of a refusal in its own words.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.snapshot import Model, OnLoss, Provider, Target
from gateway.core.types import Outgoing, UpstreamFailed
from gateway.dialects.issuers import MOST_PROOFS, Issuers, ProofReader, language_at, proofs_in
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint, languages_of
from gateway.dialects.upstream import Languages
from tests.dialects.ways import CALLERS, MODELS, TABLES, TOOL
from tests.support.flow import JSON, SSE, Bench, Script, ScriptedAnswer, ScriptedUpstream

Json = dict[str, Any]
NAMES = {b"encrypted_content", b"signature", b"data", b"thoughtSignature", b"thought_signature", b"redactedContent"}
STAND_IN = "skip_thought_signature_validator"


@dataclass
class Place:
    """A provider: how it is configured, and which languages it speaks."""

    dialect: str = "openai"
    kind: str = "other"
    speaks: tuple[str, ...] | None = None
    model: str = "m"
    url: str = ""
    signs: bool = True
    signer: str = ""
    """Whose signatures it knows, where others have the same."""


PLACES: dict[str, Place] = {
    "openai": Place(kind="openai", speaks=("responses",), url="https://api.openai.com/v1"),
    "openai 2": Place(kind="openai", speaks=("responses",), url="https://api.openai.com/v1"),
    "azure": Place(kind="azure", speaks=("responses",), url="https://x.openai.azure.com"),
    "openai chat": Place(kind="openai", speaks=("chat",), url="https://api.openai.com/v1", signs=False),
    "vllm": Place(kind="vllm", speaks=("responses",), signs=False),
    "mistral": Place(kind="mistral", speaks=("chat",), signs=False),
    "strict": Place(kind="other", speaks=("chat",), signs=False),
    "deepseek": Place(kind="deepseek", speaks=("chat",), signs=False),
    "kimi chat": Place(speaks=("chat",), signs=False),
    "openrouter": Place(kind="openrouter", speaks=("chat",), url="https://openrouter.ai/api/v1"),
    "google chat": Place(
        kind="gemini",
        speaks=("chat",),
        model="gemini-3-pro",
        url="https://generativelanguage.googleapis.com/v1beta/openai",
        signer="gemini",
    ),
    "anthropic": Place(
        "anthropic", "anthropic", model="claude-haiku-4-5", url="https://api.anthropic.com/v1", signer="claude"
    ),
    "kimi": Place(kind="other", speaks=("messages",)),
    "gemini": Place("gemini", "gemini", model="gemini-3-pro"),
    "vertex": Place("vertex", "vertex", model="gemini-3-pro"),
    "bedrock": Place("bedrock", "bedrock", model="us.anthropic.claude-haiku-4-5-20251001-v1:0", signer="claude"),
}


def values_in(value: Any) -> list[tuple[str, Any]]:
    """All fields of a body, at any depth."""
    if isinstance(value, list):
        return [one for item in value for one in values_in(item)]
    if not isinstance(value, dict):
        return []
    return [pair for name, inner in value.items() for pair in ((name, inner), *values_in(inner))]


@dataclass
class StrictServer:
    """A provider that signs what its model thinks, and knows nobody else's proofs."""

    name: str
    place: Place
    errors: tuple[type[Exception], ...] = ()
    is_down: bool = False
    turn: int = 0
    sent: list[Outgoing] = field(default_factory=list)
    objects_to: str = ""
    objects_once: str = ""
    misses: str = ""
    """What it says of a turn with calls that has no reasoning."""
    refused: list[str] = field(default_factory=list)
    proofs_back: int = 0
    """How many of its own proofs, of the first turn, the last request had."""

    async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
        if self.is_down:
            return ScriptedAnswer(Script(503, (JSON,), (b'{"error":{"message":"down"}}',)))
        self.sent.append(outgoing)
        body = orjson.loads(bytes(outgoing.body))
        language = language_at(outgoing.path) or ""
        if why := self._objection(body, language):
            self.refused.append(why)
            return ScriptedAnswer(Script(400, (JSON,), (orjson.dumps({"error": {"message": why}}),)))
        proof = proof_of(self)
        if outgoing.path.endswith("alt=sse") or body.get("stream"):
            told = (
                b"data: " + orjson.dumps(STREAMED[language](ANSWERS[language](self.place, proof, self.turn))) + b"\n\n"
            )
            at = told.index(proof.encode()) + 7  # in the middle of it
            return ScriptedAnswer(Script(200, (SSE,), (told[:at], told[at:])))
        return ScriptedAnswer(Script(200, (JSON,), (orjson.dumps(ANSWERS[language](self.place, proof, self.turn)),)))

    def failure(self, error: Exception) -> UpstreamFailed:
        raise AssertionError(error)

    def _objection(self, body: Json, language: str) -> str:
        if why := self.objects_to or self.objects_once:
            self.objects_once = ""
            return why
        turns = [one for one in body.get("messages", ()) if one["role"] == "assistant"]
        if self.misses and not all(one.get("reasoning_content") or "'thinking': '" in str(one) for one in turns):
            return self.misses
        proofs = [
            value for name, value in values_in(body)
            if name.encode() in NAMES and isinstance(value, str) and value and value != STAND_IN
        ]  # fmt: skip
        own = b64encode(f"{self.place.signer or self.name:_<12}".encode()).decode()
        first = b64encode(f"{self.place.signer or self.name:_<12}001".encode()).decode()
        self.proofs_back = sum(1 for one in proofs if one.startswith(first))
        if any(not one.startswith(own) for one in proofs):
            return {
                "responses": "The encrypted content for item rs_1 could not be verified.",
                "messages": "messages.1.content.0: Invalid `signature` in `thinking` block",
                "converse": "messages.1.content.0: Invalid `signature` in `thinking` block",
                "generate": "Thought signature is not valid",
            }.get(language, "messages.1.reasoning_details: Extra inputs are not permitted")
        if language == "responses" and self.place.kind in ("openai", "azure"):
            reasoning = [item for item in body["input"] if item.get("type") == "reasoning"]
            if any(item.get("content") for item in reasoning):
                return "Invalid 'input[1].content': array too long. Expected an array with maximum length 0."
            if any(not item.get("encrypted_content") for item in reasoning):
                return "Item with id 'rs_1' not found."
        if language == "chat":
            names = {name for message in body["messages"] for name in message}
            extra = {name for message in body["messages"] for call in message.get("tool_calls") or () for name in call}
            taken = {"role", "content", "tool_calls", "tool_call_id", "name", "refusal"}
            taken |= {"reasoning_details"} if self.place.kind == "openrouter" else set()
            taken |= {"reasoning_content"} if self.place.kind in ("deepseek", "other", "openrouter", "vllm") else set()
            allowed = {"id", "type", "function"} | ({"extra_content"} if self.place.kind == "gemini" else set())
            if names - taken or extra - allowed:
                return f"{(names - taken) | (extra - allowed)}: Extra inputs are not permitted"
        if language == "chat" and self.place.kind == "openrouter":
            for message in body["messages"]:
                ids = {call["id"] for call in message.get("tool_calls", ())}
                if {detail.get("id") for detail in message.get("reasoning_details", ())} - ids:
                    return "reasoning_details: unknown id"
        if language == "generate":
            for content in body["contents"]:
                parts = [part for part in content["parts"] if "functionCall" in part]
                if parts and not parts[0].get("thoughtSignature"):
                    return "Function call is missing a thought_signature in functionCall parts."
        if language == "chat" and self.place.kind == "gemini":
            for message in body["messages"]:
                if message.get("tool_calls") and "extra_content" not in message["tool_calls"][0]:
                    return "Function call is missing a thought_signature in functionCall parts."
        return ""


def proof_of(server: StrictServer) -> str:
    """What it signs this turn with."""
    return b64encode(f"{server.place.signer or server.name:_<12}{server.turn:03d}".encode() * 8).decode()


def _chat(place: Place, proof: str, number: int) -> Json:
    call: Json = {
        "id": f"call_{proof[:16]}{number}",
        "type": "function",
        "function": {"name": "f", "arguments": '{"x":1}'},
    }
    message: Json = {"role": "assistant", "content": None, "tool_calls": [call]}
    if place.kind == "gemini":
        call["extra_content"] = {"google": {"thought_signature": proof}}
    elif place.kind == "openrouter":
        message["reasoning_details"] = [
            {"type": "reasoning.encrypted", "data": proof, "id": call["id"], "format": "google-gemini-v1", "index": 0}
        ]
    elif place.kind == "deepseek":
        message["reasoning_content"] = "hm"
    return {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


def _response(place: Place, proof: str, number: int) -> Json:
    reasoning: Json = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
    reasoning |= (
        {"encrypted_content": proof} if place.signs else {"content": [{"type": "reasoning_text", "text": "hm"}]}
    )
    call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{proof[:16]}{number}", "name": "f",
            "arguments": '{"x":1}'}  # fmt: skip
    return {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [reasoning, call]}


def _message(place: Place, proof: str, number: int) -> Json:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": proof},
        {"type": "tool_use", "id": f"toolu_{proof[:16]}{number}", "name": "f", "input": {"x": 1}},
    ]
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content,
            "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip


def _generated(place: Place, proof: str, number: int) -> Json:
    call = {"functionCall": {"name": "f", "args": {"x": 1}, "id": f"c{proof[:16]}{number}"}, "thoughtSignature": proof}
    return {"candidates": [{"content": {"role": "model", "parts": [call]}, "index": 0, "finishReason": "STOP"}]}


def _conversed(place: Place, proof: str, number: int) -> Json:
    content = [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": proof}}},
        {"toolUse": {"toolUseId": f"t_{proof[:16]}{number}", "name": "f", "input": {"x": 1}}},
    ]
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    return {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use", "usage": usage}


ANSWERS: dict[str, Callable[[Place, str, int], Json]] = {
    "chat": _chat, "responses": _response, "messages": _message, "generate": _generated, "converse": _conversed,
}  # fmt: skip


STREAMED: dict[str, Callable[[Json], Json]] = {
    "responses": lambda said: {"type": "response.completed", "sequence_number": 0, "response": said},
    "messages": lambda said: {
        "type": "content_block_delta", "index": 0,
        "delta": {"type": "signature_delta", "signature": said["content"][0]["signature"]},
    },
    "generate": lambda said: said,
}  # fmt: skip
"""The event of an answer that has its proof, by language."""


class Moving(Bench):
    """A bench whose targets are these providers, in this order, with what the gateway puts before each."""

    def __init__(self, *names: str, on_loss: OnLoss = "report", **options: Any) -> None:
        self.on_loss = on_loss
        self.servers = [StrictServer(name, PLACES[name]) for name in names]
        super().__init__([ScriptedUpstream() for _ in names], **options)

    def _model(self) -> Model:
        self.languages = Languages(self.clock, lambda: f"{next(self.ids):02d}")
        self.ids = iter(range(100))
        model = super()._model()
        placed = {one.name: self._at(one, server) for one, server in zip(model.plan, self.servers, strict=True)}
        return replace(
            model,
            on_loss=self.on_loss,
            targets=tuple(placed[one.name] for one in model.targets),
            plan=tuple(placed[one.name] for one in model.plan),
        )

    def _at(self, target: Target, server: StrictServer) -> Target:
        place = server.place
        url = place.url or f"https://{server.name}.example/v1"
        provider = Provider(target.provider, place.dialect, url, api_key=f"sk-{server.name}")  # type: ignore[arg-type]
        upstream = self.languages.conversing(server, provider, place.kind)
        speaks = languages_of(place.dialect, place.kind, place.speaks)
        spoken = TargetLanguages(place.kind, speaks, place.dialect, MODELS.of).at(place.model)
        around = self.languages.converting(upstream, spoken, server.name)
        assert around is not None
        return replace(
            target,
            model=place.model,
            upstream=upstream,
            converters_by_path=around.converters_by_path,
            on_unknown_path=around.on_unknown_path,
            gaps=gaps_by_endpoint(spoken, place.model),
            errors=TABLES.of(place.kind),
        )

    async def say(self, asked: str, history: list[Any]) -> Json:
        """Sends the conversation; adds the model's turn and the result of its call, as a client of this language does."""
        body = {"model": "m", **ASKED[asked](history)}
        endpoint = CALLERS[asked]
        call = {"endpoint": endpoint, "path": endpoint.path, "parsed": body, "tenant": "t"}
        reply, said = await self.serve(body=orjson.dumps(body), **call)
        assert reply.status == 200, said
        ADDED[asked](history, orjson.loads(said))
        return {name.decode(): value.decode() for name, value in reply.headers if name.startswith(b"x-gateway")}


ASKED: dict[str, Callable[[list[Any]], Json]] = {
    "chat": lambda history: {
        "messages": history, "tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL}}]
    },
    "responses": lambda history: {
        "input": history, "tools": [{"type": "function", "name": "f", "parameters": TOOL, "strict": False}],
        "store": False, "include": ["reasoning.encrypted_content"],
    },
    "messages": lambda history: {
        "messages": history, "max_tokens": 50, "tools": [{"name": "f", "input_schema": TOOL}],
    },
    "generate": lambda history: {
        "contents": history, "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": TOOL}]}],
    },
}  # fmt: skip
BEGIN: dict[str, Json] = {
    "chat": {"role": "user", "content": "go"},
    "responses": {"role": "user", "content": "go"},
    "messages": {"role": "user", "content": "go"},
    "generate": {"role": "user", "parts": [{"text": "go"}]},
}


def _add_chat(history: list[Any], said: Json) -> None:
    message = said["choices"][0]["message"]
    history.append(message)
    history += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in message["tool_calls"]]


def _add_items(history: list[Any], said: Json) -> None:
    history += said["output"]
    calls = [item for item in said["output"] if item["type"] == "function_call"]
    history += [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"} for call in calls]


def _add_blocks(history: list[Any], said: Json) -> None:
    history.append({"role": "assistant", "content": said["content"]})
    calls = [block for block in said["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "ok"} for call in calls]
    history.append({"role": "user", "content": results})


def _add_contents(history: list[Any], said: Json) -> None:
    content = said["candidates"][0]["content"]
    history.append(content)
    calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    named = [{"name": call["name"], "id": call.get("id"), "response": {"output": "ok"}} for call in calls]
    history.append({"role": "user", "parts": [{"functionResponse": one} for one in named]})


ADDED: dict[str, Callable[[list[Any], Json], None]] = {
    "chat": _add_chat, "responses": _add_items, "messages": _add_blocks, "generate": _add_contents,
}  # fmt: skip


@pytest.mark.parametrize("asked", CALLERS)
@pytest.mark.parametrize("first", PLACES)
async def test_a_conversation_moves_to_another_provider_and_back(first: str, asked: str) -> None:
    """No turn is refused anywhere, and who signed a part gets it back."""
    found = {}
    for after in PLACES.keys() - {first}:
        bench = Moving(first, after)
        one, other = bench.servers
        history: list[Any] = [BEGIN[asked]]
        for turn, server in enumerate((one, other, one), start=1):
            one.is_down, other.is_down = server is other, server is one
            server.turn = turn
            await bench.say(asked, history)
        is_carried = one.place.signs
        found[after] = one.refused, other.refused, one.proofs_back == 1 or not is_carried

    assert found == dict.fromkeys(found, ([], [], True))


@pytest.mark.parametrize("asked", CALLERS)
@pytest.mark.parametrize("after", ["openai 2", "anthropic", "kimi", "vertex", "strict", "mistral"])
async def test_a_conversation_moves_where_nothing_is_remembered(after: str, asked: str) -> None:
    """As between workers: what is refused is left out, and each turn is answered."""
    for first in (name for name, place in PLACES.items() if place.signs and name != after):
        bench = Moving(first, after)
        one, other = bench.servers
        history: list[Any] = [BEGIN[asked]]
        for turn, server in enumerate((one, other, one), start=1):
            bench.languages._issuers._issuers.clear()
            one.is_down, other.is_down = server is other, server is one
            server.turn = turn
            await bench.say(asked, history)

        assert len(one.refused) + len(other.refused) <= 2


RESPONSE_TURN: Json = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT: Json = {"type": "function_call_output", "call_id": "c", "output": "ok"}


def thought(proof: str) -> Json:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": proof}


async def test_a_proof_that_nobody_remembers_is_refused_once_and_then_left_out() -> None:
    """As after a restart: the refused request is tried once more without it, and the next turn goes so at once."""
    bench = Moving("openai")
    (server,) = bench.servers
    history = [BEGIN["responses"], thought("gAAAA" * 40), RESPONSE_TURN, RESULT]

    told = await bench.say("responses", history)
    again = await bench.say("responses", history)

    assert told["x-gateway-lossy"] == again["x-gateway-lossy"] == "input.reasoning(dropped)"
    assert len(server.refused) == 1
    assert len(server.sent) == 3
    assert [item["type"] for item in orjson.loads(bytes(server.sent[1].body))["input"][1:]] == [
        "function_call", "function_call_output",
    ]  # fmt: skip
    assert "id" not in orjson.loads(bytes(server.sent[1].body))["input"][1]


async def test_an_answer_to_the_second_try_is_remembered_too() -> None:
    """What it is signed with does not go to the next provider, which would refuse it."""
    bench = Moving("openai", "azure")
    one, other = bench.servers
    history = [BEGIN["responses"], thought("gAAAA" * 40), RESPONSE_TURN, RESULT]
    await bench.say("responses", history)
    del history[1]
    one.is_down = True

    told = await bench.say("responses", history)

    assert (len(one.refused), other.refused) == (1, [])
    assert told["x-gateway-lossy"] == "input.reasoning(dropped)"


async def test_an_item_whose_reasoning_is_missed_goes_without_its_id() -> None:
    """OpenAI pairs what it keeps by ids; a client that has cut its history has no reasoning to leave out."""
    bench = Moving("openai")
    (server,) = bench.servers
    server.objects_once = (
        "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'."
    )

    await bench.say("responses", [BEGIN["responses"], RESPONSE_TURN, RESULT])

    assert [one.get("id") for one in orjson.loads(bytes(server.sent[1].body))["input"]] == [None] * 3


MISSING = {
    "deepseek": "The `reasoning_content` in the thinking mode must be passed back to the API.",
    "kimi chat": "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
    "kimi": "The `content[].thinking` in the thinking mode must be passed back to the API.",
}


@pytest.mark.parametrize(("name", "asked"), [("deepseek", "chat"), ("kimi chat", "responses"), ("kimi", "messages")])
async def test_reasoning_that_is_missed_is_stood_in_for(name: str, asked: str) -> None:
    """Calls that another provider's model made have none; who was refused once is asked with it from then on."""
    bench = Moving("openai", name)
    one, other = bench.servers
    other.misses = MISSING[name]
    history: list[Any] = [BEGIN[asked]]
    for turn, server in enumerate((one, other, other), start=1):
        one.is_down, other.is_down = server is other, server is one
        server.turn = turn
        await bench.say(asked, history)

    assert other.refused == [MISSING[name]]


async def test_a_refusal_of_something_else_is_the_callers() -> None:
    bench = Moving("openai")
    (server,) = bench.servers
    server.objects_to = "Unsupported value: 'reasoning.effort' does not support 'max' with this model."
    body = {"model": "m", "input": [BEGIN["responses"], thought("gAAAA" * 40), RESPONSE_TURN, RESULT]}

    reply, _ = await bench.serve(endpoint=CALLERS["responses"], path="/responses", body=orjson.dumps(body), parsed=body)

    assert reply.status == 400
    assert len(server.sent) == 1


async def test_who_wants_nothing_lost_hears_the_refusal() -> None:
    bench = Moving("openai", on_loss="refuse")
    (server,) = bench.servers
    body = {"model": "m", "input": [BEGIN["responses"], thought("gAAAA" * 40), RESPONSE_TURN, RESULT]}

    reply, said = await bench.serve(
        endpoint=CALLERS["responses"], path="/responses", body=orjson.dumps(body), parsed=body
    )

    assert reply.status == 400
    assert b"could not be verified" in said
    assert len(server.sent) == 1


def test_an_account_outlives_its_key_and_may_have_several() -> None:
    """A provider of the config is an account; the header `OpenAI-Organization` makes several one, and so does one key."""
    account_of = Issuers().account_of

    assert account_of("a", "sk-1", []) == account_of("a", "sk-2", []) == account_of("b", "sk-1", []) == "a"
    assert account_of("c", "sk-3", []) != "a"
    assert account_of("a", "sk-1", [("OpenAI-Organization", "o")]) == account_of(
        "c", "sk-3", [("openai-organization", "o")]
    )
    assert account_of("a", None, []) == ""


@given(st.data(), st.sampled_from(["responses", "messages", "generate", "chat", "converse"]))
def test_proofs_are_found_however_a_stream_is_cut(data: st.DataObject, language: str) -> None:
    server = StrictServer("x", PLACES["openrouter" if language == "chat" else "openai"])
    proof = data.draw(st.text(st.sampled_from('ab/+="\\é'), min_size=1, max_size=30))
    body = orjson.dumps(ANSWERS[language](server.place, proof, 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    reader = ProofReader(language)

    found = [one for start, end in pairwise([0, *cuts, len(body)]) for one in reader.feed(body[start:end])]

    assert set(found) == {proof} == set(proofs_in(body, language))


def test_what_is_only_named_alike_is_no_proof() -> None:
    body = b'{"input":{"database":"x","data":1,"signature_key":"y","text":"\\"signature\\":\\"z\\""},"signature":"s"}'

    assert list(proofs_in(body, "messages")) == ["s"]


def test_the_word_for_no_signature_is_nobodys() -> None:
    """Any caller can have a model tell it, as an argument of a tool, or a provider refuse it."""
    issuers = Issuers()
    for proof in proofs_in(b'{"type":"tool_use","input":{"data":"%b"}}' % STAND_IN.encode(), "messages"):
        issuers.remember(proof, "anthropic")
        issuers.refuse(proof, "gemini")

    assert not issuers.is_foreign(STAND_IN, "gemini")


def test_what_is_known_of_proofs_is_bounded() -> None:
    issuers = Issuers()
    for number in range(MOST_PROOFS + 1):
        issuers.remember(str(number), "a")

    assert not issuers.is_foreign("0", "b")
    assert issuers.is_foreign("1", "b")
    assert not issuers.is_foreign("1", "a")


@pytest.mark.parametrize(
    ("asked", "first", "after", "lost"),
    [
        ("responses", "openai", "azure", "input.reasoning"),
        ("responses", "openai", "openai 2", "input.reasoning"),
        ("messages", "kimi", "anthropic", "messages.thinking"),
        ("messages", "anthropic", "kimi", "messages.thinking"),
        ("generate", "gemini", "vertex", "contents.thoughtSignature"),
        ("generate", "vertex", "gemini", "contents.thoughtSignature"),
    ],
)
async def test_a_stream_in_the_callers_own_language_is_remembered_as_its_bytes_go_by(
    asked: str, first: str, after: str, lost: str
) -> None:
    bench = Moving(first, after)
    one, other = bench.servers
    history: list[Any] = [BEGIN[asked]]
    endpoint = CALLERS[asked]
    front = {"model": "m", "stream": True}
    call = {"endpoint": endpoint, "path": endpoint.path, "stream": True, "tenant": "t"}
    one.turn = 1
    reply, said = await bench.serve(body=orjson.dumps(front | ASKED[asked](history)), **call)
    whole = ANSWERS[asked](one.place, proof_of(one), 1)
    ADDED[asked](history, whole)
    one.is_down = True

    told = await bench.say(asked, history)

    assert reply.status == 200
    assert said.startswith(b"data: " + orjson.dumps(STREAMED[asked](whole)))
    assert other.refused == []
    assert told["x-gateway-lossy"] == f"{lost}(dropped)"
