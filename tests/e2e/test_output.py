"""Answers that have to keep a schema: the openai SDK, a real gateway, the emulator behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from gateway.emulator.config import parse_script_entry
from gateway.features.output.rules import OUTPUT
from gateway.features.reuse.rules import CACHING
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import with_jobs
from tests.e2e.harness import KEYS, WEB_KEY, Running, config_of, connect, post, until

QUESTION: Any = [{"role": "user", "content": "hello there"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
ASKED: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}


def keeping(folder: Path, **rules: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any]]:
    """A config with a model for each rule."""
    (folder / "schema.json").write_bytes(orjson.dumps(SCHEMA))
    models = {name: {"targets": ["main/gpt-4o"], "output": rule} for name, rule in rules.items()}
    return lambda url: config_of(url, keys=[{**KEYS[0], "budget_usd_per_day": 5}], models=models)


def checks(gateway: Running, model: str, result: str) -> float | None:
    return gateway.gateway.registry.get_sample_value("gateway_output_checks_total", {"model": model, "result": result})


async def test_the_requests_own_schema_is_checked_in_every_form(start: StartGateway, tmp_path: Path) -> None:
    """Whole, relayed and held back; chat and responses. The SDK reads them all."""
    asks = {"schema": "request"}
    gateway = await start(keeping(tmp_path, plain=asks, held={**asks, "stream": "buffer"}))
    async with gateway.sdk() as sdk:
        raw = await sdk.chat.completions.with_raw_response.create(
            model="plain", messages=QUESTION, response_format=ASKED
        )
        response = await sdk.responses.with_raw_response.create(
            model="plain", input="hi", text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
        )
        texts = []
        for model in ("plain", "held"):
            stream = await sdk.chat.completions.create(
                model=model, messages=QUESTION, response_format=ASKED, stream=True
            )
            texts.append("".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]))
        async with sdk.responses.stream(
            model="held", input="hi", text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
        ) as events:
            final = await events.get_final_response()
        free = await sdk.chat.completions.with_raw_response.create(model="plain", messages=QUESTION)
    assert (raw.headers["x-gateway-output"], response.headers["x-gateway-output"]) == ("valid", "valid")
    assert "x-gateway-output" not in free.headers
    for text in (*texts, final.output_text):
        assert orjson.loads(text).keys() == {"name", "count"}
    assert (checks(gateway, "plain", "valid"), checks(gateway, "held", "valid")) == (3, 2)
    await gateway.stop()
    assert [call.get("output") for call in gateway.records] == ["valid"] * 5 + [None]


async def test_what_no_retry_mends_is_an_error_and_all_of_it_is_paid_once(start: StartGateway, tmp_path: Path) -> None:
    """The emulator writes prose where no format is asked for. The key has paid what the emulator has counted."""
    rule = {"schema": f"{tmp_path}/schema.json", "on_invalid": {"retry": 1, "repair_with": "passing"}}
    passing = {"schema": f"{tmp_path}/schema.json", "on_invalid": {"then": "pass"}}
    gateway = await start(keeping(tmp_path, strict=rule, passing=passing))
    async with gateway.sdk() as sdk:
        with pytest.raises(openai.InternalServerError) as told:
            await sdk.chat.completions.create(model="strict", messages=QUESTION)
        raw = await sdk.chat.completions.with_raw_response.create(model="passing", messages=QUESTION)
    error = told.value
    assert (error.status_code, error.code, error.response.headers["x-should-retry"]) == (502, "output_invalid", "false")
    assert "rule `json`" in error.message
    assert raw.headers["x-gateway-output"] == "invalid"
    assert raw.parse().choices[0].message.content
    received = gateway.received()
    assert len(received) == 4
    spent = gateway.gateway._admission.budgets._spent("web")
    await gateway.stop()
    failed, passed = gateway.records
    assert (failed["outcome"], failed["output"], failed["output_rule"]) == (
        "output_invalid",
        "invalid",
        "rule `json` at `/`",
    )
    assert [one.split(":")[1].split("(")[0] for one in failed["attempts"]] == ["output_invalid"] * 3
    assert failed["retries_usd"] > 2 * passed["cost_usd"]
    assert spent == pytest.approx(failed["retries_usd"] + passed["cost_usd"])


async def test_a_changed_schema_is_read_again(start: StartGateway, tmp_path: Path) -> None:
    """The file is watched as the config is."""
    gateway = await start(keeping(tmp_path, filed={"schema": f"{tmp_path}/schema.json"}))
    before = gateway.gateway._policies.current
    (tmp_path / "schema.json").write_bytes(orjson.dumps({"type": "string"}))
    gateway.gateway.reload()
    await until(lambda: gateway.gateway._policies.current is not before)
    after = gateway.gateway._policies.current
    await gateway.stop()
    assert OUTPUT.of(before.models["filed"]) != OUTPUT.of(after.models["filed"])
    assert CACHING.of(before.models["filed"]).version != CACHING.of(after.models["filed"]).version


async def test_who_waits_for_a_held_stream_is_kept_alive_and_hears_of_its_end(
    start: StartGateway, tmp_path: Path
) -> None:
    """Comments have taken the status with them: that no answer keeps the rule is an event then."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "queue.yaml").write_text("default: {keepalive_after: 50ms}\n")
    make = keeping(tmp_path, held={"schema": f"{tmp_path}/schema.json", "stream": "buffer"})
    gateway = await start(lambda url: {**make(url), "policies": f"{tmp_path}/policies"})
    gateway.emulator.emulator.faults.script("*", [parse_script_entry({"fault": "slow_first_token", "seconds": 0.3})])
    body = orjson.dumps({"model": "held", "stream": True, "messages": QUESTION})
    async with connect(gateway.url) as peer:
        peer.send(post("/v1/chat/completions", body, f"authorization: Bearer {WEB_KEY}"))
        answer = await peer.response()
    assert (answer.status, answer.body.startswith(b": waiting for main/gpt-4o")) == (200, True)
    assert b'"code":"output_invalid"' in answer.body
    assert b"emulated" not in answer.body
    await gateway.stop()


async def test_a_response_that_breaks_the_rule_is_kept_nowhere(start: StartGateway, tmp_path: Path) -> None:
    """Neither in the background, where it is checked before it is kept, nor one that its client has already."""
    (tmp_path / "schema.json").write_bytes(orjson.dumps(SCHEMA))
    rules = {"strict": "fail", "passing": "pass"}
    models: Any = {
        name: {
            "targets": ["main/gpt-4o"],
            "output": {"schema": f"{tmp_path}/schema.json", "on_invalid": {"then": then}},
        }
        for name, then in rules.items()
    }

    def chat_only(url: str) -> Any:
        config: Any = {**with_jobs(tmp_path, models=models)(url)}
        config["providers"]["main"]["speaks"] = ["chat"]
        return config

    gateway = await start(chat_only)
    async with gateway.sdk() as sdk:
        queued = await sdk.responses.create(model="strict", input="hi", background=True)
        while queued.status in ("queued", "in_progress"):
            queued = await sdk.responses.retrieve(queued.id)
            await asyncio.sleep(0.02)
        assert (queued.status, queued.error and queued.output) == ("failed", [])
        whole: Any = (await sdk.responses.create(model="passing", input="hi", store=True)).to_dict()
        async with sdk.responses.stream(model="passing", input="hi", store=True) as events:
            streamed: Any = (await events.get_final_response()).to_dict()
        for told in (whole, streamed):
            assert told["store"] is False
            with pytest.raises(openai.NotFoundError):
                await sdk.responses.retrieve(told["id"])
    await gateway.stop()
    assert [call["output"] for call in gateway.records if "output" in call] == ["invalid"] * 3
