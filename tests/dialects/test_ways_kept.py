"""Answers that are given again, on ways between languages: to callers of the same one, with what was lost of their calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import orjson
import pytest

from gateway.core.call import Reply
from gateway.core.errors import GatewayError
from gateway.features.identity import KeyReused
from gateway.features.reuse.rules import Caching, ExactRule
from tests.dialects.ways import CALLERS, Json, Ways
from tests.support.flow import JSON, Script

LOST: Final[dict[str, tuple[Json, str]]] = {
    "chat": ({"seed": 3}, "seed(dropped)"),
    "responses": ({"truncation": "auto"}, "truncation(dropped)"),
    "generate": ({"safetySettings": [{"category": "x"}]}, "safetySettings(dropped)"),
}
"""What of a call does not reach a provider of Messages, by the caller's language."""
KEPT: Final = Caching(exact=ExactRule("always"))
SETTLED: Final = Caching(exact=ExactRule("deterministic"))


def message(text: str = "so") -> Script:
    """A whole message."""
    said = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "stop_reason": "end_turn"}
    body = {**said, "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 3, "output_tokens": 1}}
    return Script(200, (JSON,), [orjson.dumps(body)])


def asking(bench: Ways, asked: str, *, is_strict: bool = False, **changes: Any) -> dict[str, Any]:
    """A whole call, as the edge has read it."""
    made = bench.asking(asked, stream=False, **changes)
    model = bench.policy.models["m"]
    return made | {
        "parsed": orjson.loads(made["body"]),
        "model": replace(model, on_loss="refuse") if is_strict else model,
    }


def lossy(reply: Reply) -> str | None:
    told = dict(reply.shared).get(b"x-gateway-lossy")
    return None if told is None else told.decode()


@pytest.mark.parametrize("asked", LOST)
@pytest.mark.parametrize("by_key", [False, True], ids=["cache", "record"])
async def test_what_was_lost_is_told_again(asked: str, by_key: bool) -> None:
    """And who may lose nothing gets no answer to less, whether it is kept for all or for a repeated key."""
    more, told = LOST[asked]
    bench = Ways(["messages"], [message(), message("other")], caching=Caching() if by_key else KEPT)
    keyed: dict[str, Any] = {"idempotency_key": b"k"} if by_key else {}
    first, body = await bench.serve(**asking(bench, asked, more=more, **keyed))
    again, repeated = await bench.serve(**asking(bench, asked, more=more, **keyed))
    assert (lossy(first), lossy(again), repeated) == (told, told, body)
    with pytest.raises(KeyReused if by_key else GatewayError) as refused:
        await bench.serve(**asking(bench, asked, more=more, is_strict=True, **keyed))
    assert refused.value.code in ("idempotency_key_reused", "unsupported_by_targets")
    assert len(bench.upstreams[0].sent) == 1


async def test_no_language_gets_anothers_answer() -> None:
    """Of one body that all could have sent."""
    bench = Ways(["messages"], [message()] * len(CALLERS), caching=KEPT)
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": "go"}],
        "input": "go",
        "contents": [{"role": "user", "parts": [{"text": "go"}]}],
    }
    said = []
    for asked in CALLERS:
        call = asking(bench, asked) | {"body": orjson.dumps(body), "parsed": body}
        said.append(orjson.loads((await bench.serve(**call))[1]))
        assert said[-1] == orjson.loads((await bench.serve(**call))[1])
    chat, responses, messages, generated = said
    assert (chat["object"], responses["object"]) == ("chat.completion", "response")
    assert (messages["type"], "candidates" in generated) == ("message", True)
    assert len(bench.upstreams[0].sent) == len(CALLERS)


@pytest.mark.parametrize(
    ("options", "asked_times"), [({"temperature": 0}, 1), ({"seed": 1}, 1), ({"temperature": 1}, 2)]
)
async def test_geminis_callers_say_elsewhere_that_they_want_the_same_again(options: Json, asked_times: int) -> None:
    bench = Ways(["messages"], [message(), message()], caching=SETTLED)
    for _ in range(2):
        await bench.serve(**asking(bench, "generate", more={"generationConfig": options}))
    assert len(bench.upstreams[0].sent) == asked_times
