"""Questions that mean the same, through a real gateway: recognised, marked, explained, and never across a partition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, Response, Running, chat, config_of, connect, get, post, until

CHAT = "/v1/chat/completions"
MEANING = {"embeddings": "text-embedding-3-small", "threshold": 0.6, "wait": "10s"}
TEAMS = [{"name": "a", "key": "key-of-team-a-0123456789"}, {"name": "b", "key": "key-of-team-b-0123456789"}]
ASKED, MEANT, ELSE = (
    "How do I reset the password of my account?",
    "How can I reset my account's password?",
    "How do I bake sourdough bread at home?",
)


def caching(tmp_path: Path, state: str = "memory", **rule: Any) -> Any:
    """A config whose chat model has a semantic cache."""
    policies = tmp_path / "policies"
    policies.mkdir(exist_ok=True)
    policies.joinpath("cache.yaml").write_text(yaml.safe_dump({"meaning": {"semantic": {**MEANING, **rule}}}))

    def config(base_url: str) -> Mapping[str, Any]:
        models = {
            "gpt-4o": {"targets": ["main/gpt-4o"], "cache": "meaning"},
            "text-embedding-3-small": {"targets": ["main/text-embedding-3-small"]},
        }
        admin = {"key": ADMIN_KEY}
        return config_of(base_url, models=models, keys=TEAMS, policies=str(policies), admin=admin, state=state)

    return config


async def ask(
    gateway: Running, text: str, *headers: str, key: str = "a", until_kept: bool = True, **fields: Any
) -> Response:
    body = {**chat(), "messages": [{"role": "user", "content": text}], **fields}
    secret = next(team["key"] for team in TEAMS if team["name"] == key)
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, orjson.dumps(body), f"authorization: Bearer {secret}", *headers))
    assert answer.status == 200, answer.raw
    semantic = gateway.gateway._semantic
    assert semantic is not None
    await until(lambda: not until_kept or semantic.stats()["keeping"] == 0)
    return answer


def chats(gateway: Running) -> int:
    return sum(request["path"].endswith("/chat/completions") for request in gateway.received())


async def test_a_question_in_other_words_gets_the_kept_answer(start: StartGateway, tmp_path: Path) -> None:
    """Marked, with its similarity and whose answer it is; another question is asked."""
    gateway = await start(caching(tmp_path))
    first = await ask(gateway, ASKED, "x-request-id: req-first")
    again = await ask(gateway, MEANT)
    other = await ask(gateway, ELSE)

    assert first.header("x-gateway-cache") == other.header("x-gateway-cache") == "miss"
    assert again.header("x-gateway-cache") == "semantic"
    assert again.body == first.body
    assert 0.6 <= float(again.header("x-gateway-cache-similarity") or 0) < 1
    assert again.header("x-gateway-cache-source") == "req-first"
    assert again.header("age") is not None
    assert chats(gateway) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.5},
        {"messages": [{"role": "system", "content": "Be rude."}, {"role": "user", "content": MEANT}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
        {"response_format": {"type": "json_object"}},
        {"max_tokens": 5},
    ],
)
async def test_all_but_the_question_has_to_be_equal(
    start: StartGateway, tmp_path: Path, fields: dict[str, Any]
) -> None:
    """What was said before, tools, parameters and formats are the partition."""
    gateway = await start(caching(tmp_path))
    await ask(gateway, ASKED)
    assert (await ask(gateway, MEANT, **fields)).header("x-gateway-cache") == "miss"


async def test_tenants_never_meet(start: StartGateway, tmp_path: Path) -> None:
    """Not even with the very same words."""
    gateway = await start(caching(tmp_path))
    await ask(gateway, ASKED)
    assert (await ask(gateway, ASKED, key="b")).header("x-gateway-cache") == "miss"


@pytest.mark.parametrize(
    "other",
    [
        "How do I not reset the password of my account?",
        "How do I reset the password of my 2 account?",
        "How do I reset the password of my 'main' account?",
    ],
)
async def test_near_is_not_the_same(start: StartGateway, tmp_path: Path, other: str) -> None:
    """The guards keep apart what only looks alike, and `why` says which."""
    gateway = await start(caching(tmp_path))
    await ask(gateway, ASKED)
    answer = await ask(gateway, other)
    assert answer.header("x-gateway-cache") == "miss"
    async with connect(gateway.url) as peer:
        told = await peer.exchange(
            get(
                f"/admin/cache/why?request={answer.header('x-gateway-request-id')}",
                f"authorization: Bearer {ADMIN_KEY}",
            )
        )
    assert "differs in its" in " ".join(orjson.loads(told.body)["why"])


async def test_a_streamed_answer_serves_a_whole_one(start: StartGateway, tmp_path: Path) -> None:
    """And the other way round, as with equal requests."""
    gateway = await start(caching(tmp_path))
    streamed = await ask(gateway, ASKED, stream=True)
    whole = await ask(gateway, MEANT)
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert whole.header("x-gateway-cache") == "semantic"
    assert orjson.loads(whole.body)["object"] == "chat.completion"


async def test_clients_can_refuse(start: StartGateway, tmp_path: Path) -> None:
    """`no-cache` asks anew, `no-store` leaves nothing behind."""
    gateway = await start(caching(tmp_path))
    await ask(gateway, ASKED, "cache-control: no-store")
    assert (await ask(gateway, MEANT)).header("x-gateway-cache") == "miss"
    assert (await ask(gateway, ASKED, "cache-control: no-cache")).header("x-gateway-cache") == "miss"
    assert (await ask(gateway, MEANT)).header("x-gateway-cache") == "semantic"


async def test_without_embeddings_calls_go_on(start: StartGateway, tmp_path: Path) -> None:
    """The embedding model fails: a miss for each call, no failure for any."""
    gateway = await start(caching(tmp_path, wait="50ms"))
    gateway.script(*["e500"] * 10, model="text-embedding-3-small")
    for _ in range(2):
        assert (await ask(gateway, ASKED, until_kept=False)).header("x-gateway-cache") == "miss"


async def test_questions_survive_a_restart_on_sqlite(start: StartGateway, tmp_path: Path) -> None:
    """The file has their vectors and their answers."""
    state = f"sqlite:///{tmp_path / 'state.db'}"
    first = await start(caching(tmp_path, state))
    url = first.emulator.base_url
    answer = await ask(first, ASKED)
    await first.gateway.stop()
    second = await start(lambda _own: caching(tmp_path, state)(url))
    again = await ask(second, MEANT)
    assert again.header("x-gateway-cache") == "semantic"
    assert again.body == answer.body
    await second.stop()


async def test_a_purge_forgets_questions_too(start: StartGateway, tmp_path: Path) -> None:
    """By tenant, with their answers."""
    gateway = await start(caching(tmp_path))
    await ask(gateway, ASKED)
    async with connect(gateway.url) as peer:
        told = await peer.exchange(
            post("/admin/cache/purge", orjson.dumps({"tenant": "a"}), f"authorization: Bearer {ADMIN_KEY}")
        )
    assert orjson.loads(told.body) == {"forgotten": 1}
    assert (await ask(gateway, MEANT)).header("x-gateway-cache") == "miss"
