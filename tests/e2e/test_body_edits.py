"""Targets whose config changes bodies and names: what their provider is asked, and what the caller is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Response, Running, config_of, connect, post, until
from tests.rows import rows
from tests.support.configs import problems_of

EDITS = {"set": {"top_p": 0.5, "metadata": {"team": "a"}}, "drop": ["logit_bias", "user"]}
SAID = [{"role": "user", "content": "hi"}]


def edited(url: str) -> dict[str, Any]:
    target = {"provider": "main", "strip": "vendor/", "body": EDITS}
    return config_of(url, models={"vendor/*": {"targets": [target]}})


async def ask(gateway: Running, *headers: str, **body: Any) -> Response:
    async with connect(gateway.url) as peer:
        return await peer.exchange(post("/v1/chat/completions", {"messages": SAID, **body}, *headers))


def asked(gateway: Running) -> list[dict[str, Any]]:
    return [orjson.loads(one["body"]) for one in gateway.received()]


async def test_a_provider_gets_the_body_that_the_config_makes(start: StartGateway) -> None:
    """Under the name that it knows, streamed or not; the caller hears of what was dropped."""
    gateway = await start(edited)
    answers = [await ask(gateway, model="vendor/gpt-4o", user="u", top_p=1, stream=stream) for stream in (False, True)]

    assert [dict(answer.headers).get("x-gateway-lossy") for answer in answers] == ["user(dropped)"] * 2
    wanted = {"model": "gpt-4o", "messages": SAID, "top_p": 0.5, "metadata": {"team": "a"}}
    whole, streamed = asked(gateway)
    assert whole == {**wanted, "stream": False}
    assert streamed == {**wanted, "stream": True, "stream_options": {"include_usage": True}}


async def test_a_call_that_may_lose_nothing_goes_to_no_target_that_drops_of_it(start: StartGateway) -> None:
    """It goes on in the plan; a field that is not there is no loss."""
    gateway = await start(edited)
    strict = "x-gateway-strict: true"
    refused = await ask(gateway, strict, model="vendor/gpt-4o", user="u")
    error = orjson.loads(refused.body)["error"]
    assert (refused.status, error["code"], error["param"]) == (400, "unsupported_by_targets", "user")
    assert (await ask(gateway, strict, model="vendor/gpt-4o")).status == 200
    assert gateway.upstream_calls() == 1


async def test_what_the_config_drops_is_in_nobodys_way(start: StartGateway) -> None:
    """A target that could not be told a field serves the call without; one that drops serves none that may lose nothing."""
    target = {"provider": "claude", "model": "claude-sonnet-4-5", "body": {"drop": ["n", "seed"]}}
    more = {"provider": "main", "model": "gpt-4o", "order": 2}

    def config(url: str) -> dict[str, Any]:
        made = config_of(url, models={"m": {"targets": [target, more]}})
        return made | {
            "providers": made["providers"]
            | {"claude": {"dialect": "anthropic", "base_url": url, "api_key": "sk-ant-1"}}
        }

    gateway = await start(config)
    served = await ask(gateway, model="m", n=2)
    headers = dict(served.headers)
    assert (headers["x-gateway-target"], headers["x-gateway-lossy"]) == ("claude/claude-sonnet-4-5", "n(dropped)")
    passed_on = await ask(gateway, "x-gateway-strict: true", model="m", n=2)
    assert dict(passed_on.headers)["x-gateway-target"] == "main/gpt-4o"


async def test_a_name_of_which_nothing_is_left_is_no_model(start: StartGateway) -> None:
    gateway = await start(edited)
    answer = await ask(gateway, model="vendor/")

    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (404, "model_not_found")
    assert gateway.upstream_calls() == 0


async def test_an_answer_to_another_body_is_not_given_again(start: StartGateway) -> None:
    """A key that was used before the config changed the body was of another call."""
    gateway = await start(edited)
    first, same = [await ask(gateway, "idempotency-key: one", model="vendor/gpt-4o") for _ in range(2)]
    gateway.config_path.write_text(gateway.config_path.read_text().replace("0.5", "0.7"))
    gateway.gateway.reload()
    await until(lambda: gateway.gateway._policies.current.version > 1)
    after = await ask(gateway, "idempotency-key: one", model="vendor/gpt-4o")

    assert (first.status, same.status, after.status) == (200, 200, 422)
    assert gateway.upstream_calls() == 1


@rows(
    ("target", "problem"),
    [
        ("body: {set: {model: x}}", 'body: "model" is not to be changed here: it decides where a call goes, and how'),
        ("body: {drop: [stream]}", 'body: "stream" is not to be changed here: it decides where a call goes, and how'),
        ("embedding_task: search", 'embedding_task: "search" is not one of document, query'),
        (
            "embedding_task: query, body: {set: {input_type: query}}",
            'embedding_task: and "input_type" in body say the same: leave one out',
        ),
        ("body: {set: {a: 1}, drop: [a]}", 'body: "a" is both set and dropped'),
        (
            f"body: {{set: {{a: {10**20}}}}}",
            "body.set: holds a value that cannot be written as JSON: put it into quotes",
        ),
        ("body: {set: {a: [.nan]}}", "body.set: holds a value that cannot be written as JSON: put it into quotes"),
        (
            "body: {set: {'a\"b': 1}}",
            'body: "a\\"b" is no top-level field: those have letters, digits, `_` and `-`',
        ),
        ("body: {drop: [a/b]}", 'body: "a/b" is no top-level field: those have letters, digits, `_` and `-`'),
        ("model: x, strip: a/", "strip: is for targets without a model, of a model whose name is a pattern"),
        ("strip: b/", 'strip: "b/" does not begin the names that "a/*" takes'),
    ],
)
def test_edits_that_cannot_be_are_said_at_load(tmp_path: Path, target: str, problem: str) -> None:
    models = f"models: {{'a/*': {{targets: [{{provider: p, {target}}}]}}}}"
    text = f"providers: {{p: {{dialect: openai, base_url: 'https://x'}}}}\n{models}\n"

    assert problems_of(tmp_path, text) == [f'config.yaml:2: models."a/*".targets[0].{problem}']
