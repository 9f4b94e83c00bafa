"""Pipelines as models, over the wire: the SDK and bare HTTP against a real gateway, and what the provider was asked."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.cli.main import main
from gateway.products.pipelines.compile import PIPELINES
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import WEB, ask, end_of, look, new_job, policies, result_of, take, with_jobs
from tests.e2e.harness import KEYS, WEB_KEY, Running, get, post, until

CHAT = "/v1/chat/completions"
REPORT: dict[str, Any] = {
    "input": {"type": "object", "required": ["document"], "properties": {"words": {"type": "integer", "default": 5}}},
    "steps": {
        "parts": {
            "for_each": "input.document | split(4)",
            "call": {"endpoint": "embeddings", "model": "embedder", "input": "{{ item }}"},
        },
        "facts": {
            "for_each": "input.document | split(4)",
            "call": {"model": "gpt-4o", "messages": [{"role": "user", "content": "facts of {{ item }}"}]},
        },
        "report": {
            "call": {
                "model": "gpt-4o",
                "messages": [{"role": "user", "content": "in {{ input.words }} words: {{ steps.facts.texts | join }}"}],
            },
            "after": ["parts"],
        },
    },
    "output": "steps.report.text",
}
ONE = {"steps": {"only": {"call": {"model": "gpt-4o", "messages": [{"role": "user", "content": "{{ input }}"}]}}}}
DOCUMENT = "The first part. The other part."
KEYS_WITH_ONE = [*KEYS, {"name": "narrow", "key": "sk-narrow-0123456789abcdef", "models": ["pipelines/*"]}]


@pytest.fixture
async def gateway(start: StartGateway, tmp_path: Path) -> Running:
    """A gateway with two pipelines."""
    place = Path(policies(tmp_path)) / "pipelines"
    place.mkdir()
    for name, source in {"report": REPORT, "one": ONE}.items():
        (place / f"{name}.yaml").write_text(yaml.safe_dump(source))
    return await start(with_jobs(tmp_path, policies=str(place.parent), keys=KEYS_WITH_ONE))


def prompts(gateway: Running) -> list[str]:
    bodies = [orjson.loads(one["body"]) if isinstance(one["body"], str) else one["body"] for one in gateway.received()]
    return [body.get("input") or body["messages"][0]["content"] for body in bodies]


def asking(words: str, name: str = "pipelines/one", **extra: Any) -> dict[str, Any]:
    return {"model": name, "messages": [{"role": "user", "content": words}], **extra}


async def test_a_pipeline_answers_as_a_model(gateway: Running) -> None:
    answer = await ask(gateway.url, post(CHAT, asking(DOCUMENT, "pipelines/report"), WEB))
    body = orjson.loads(answer.body)

    assert answer.status == 200, answer.raw
    assert body["model"] == "pipelines/report"
    assert body["choices"][0]["message"]["content"]
    assert body["usage"]["completion_tokens"] > 0
    assert answer.header("x-gateway-steps") == "facts:2 parts:2 report:1"
    run_id = answer.header("x-gateway-run")
    assert run_id is not None
    job = await end_of(gateway.url, run_id)
    assert job["kind"] == "run"
    assert job["progress"] == {"total": 3, "done": 3, "failed": 0, "percent": 100.0}
    asked = prompts(gateway)
    assert len(asked) == 5
    assert asked[-1].startswith("in 5 words: ")
    assert {"The first part. ", "The other part."} <= set(asked)
    listed = orjson.loads((await ask(gateway.url, get("/v1/files", WEB))).body)
    assert listed["data"] == []  # what steps have answered is the run's own
    jobs = orjson.loads((await ask(gateway.url, get("/v1/jobs", WEB))).body)
    assert [one["id"] for one in jobs["data"]] == [run_id]
    told = orjson.loads((await ask(gateway.url, get(f"/v1/runs/{run_id}", WEB))).body)
    assert (told["workflow"], told["outcome"], told["calls"]["all"]) == ("pipelines/report", "succeeded", 5)
    assert {task["task"] for task in told["tasks"]} == {"parts", "facts", "report"}


async def test_the_sdk_gets_it_whole_and_as_a_stream(gateway: Running) -> None:
    async with gateway.sdk() as sdk:
        names = {model.id async for model in sdk.models.list()}
        assert {"pipelines/report", "pipelines/one"} <= names
        whole = await sdk.chat.completions.create(**asking("hello"))
        text = ""
        async for chunk in await sdk.chat.completions.create(**asking("hello", stream=True)):
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        response = await sdk.responses.create(model="pipelines/one", input="hello")
    assert whole.choices[0].message.content
    assert text
    assert response.output_text
    assert prompts(gateway) == ["hello"] * 3


async def test_an_input_that_does_not_fit_is_refused_by_name(gateway: Running) -> None:
    metadata = {"input": orjson.dumps({"words": "x", "document": "d"}).decode()}
    for body, param in (
        (asking('{"words": 3}', "pipelines/report"), "input.document"),
        (asking("", "pipelines/report", metadata=metadata), "input.words"),
        ({"model": "pipelines/one", "messages": []}, "messages"),
        (asking("x", "pipelines/oen"), "model"),
        (asking('{"document": ' + "[" * 200 + "]" * 200 + "}", "pipelines/report"), "input"),
        (asking('{"document": ' + "[" * 600 + "]" * 600 + "}", "pipelines/report"), "input"),
    ):
        answer = await ask(gateway.url, post(CHAT, body, WEB))
        assert answer.status in (400, 404), answer.raw
        assert answer.error["param"] == param
    wrong = await ask(gateway.url, post("/v1/embeddings", {"model": "pipelines/one", "input": "x"}, WEB))
    assert (wrong.status, wrong.error["code"]) == (400, "not_supported")
    narrow = await ask(gateway.url, post(CHAT, asking("x"), "authorization: Bearer sk-narrow-0123456789abcdef"))
    assert narrow.status == 403
    assert "pipelines/one calls" in narrow.error["message"]
    assert gateway.upstream_calls() == 0


async def test_who_cannot_wait_is_told_of_the_run(gateway: Running) -> None:
    gateway.script("slow_first_token;seconds=0.6")
    late = await ask(gateway.url, post(CHAT, asking("one"), WEB, "x-gateway-deadline-ms: 300"))
    error = orjson.loads(late.body)["error"]
    assert (late.status, error["code"]) == (504, "run_unfinished")
    assert (await result_of(gateway.url, error["run_id"])).status == 200
    taken = await ask(gateway.url, post(CHAT, asking("two"), WEB, "prefer: respond-async"))
    assert taken.status == 202
    assert (await result_of(gateway.url, orjson.loads(taken.body)["id"])).status == 200
    by_hand = await take(gateway.url, new_job(body=asking("three")))
    assert orjson.loads((await result_of(gateway.url, by_hand["id"])).body)["model"] == "pipelines/one"
    assert len(prompts(gateway)) == 3


async def test_the_same_key_is_the_same_run(gateway: Running) -> None:
    first = await ask(gateway.url, post(CHAT, asking("once"), WEB, "idempotency-key: k"))
    again = await ask(gateway.url, post(CHAT, asking("once"), WEB, "idempotency-key: k"))
    assert first.body == again.body
    assert prompts(gateway) == ["once"]


async def test_a_failed_step_is_named(gateway: Running) -> None:
    gateway.script("context_length")
    answer = await ask(gateway.url, post(CHAT, asking("bad"), WEB))
    error = orjson.loads(answer.body)["error"]
    assert (answer.status, error["code"], error["param"]) == (502, "run_failed", "only")


async def test_the_command_line_runs_one(
    gateway: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def command(*arguments: str) -> tuple[int, str, str]:
        code = await asyncio.to_thread(main, ["pipelines", *arguments])
        return code, *capsys.readouterr()

    where = ("--url", gateway.url, "--api-key", WEB_KEY)
    given = tmp_path / "given.txt"
    given.write_text(DOCUMENT)
    code, output, errors = await command("run", "report", "--input", str(given), *where)
    assert (code, bool(output.strip())) == (0, True), errors
    assert "3 steps" in errors
    run_id = re.findall(r"run_gw\w+", errors)[-1]
    assert (await command("run", run_id, *where))[:2] == (0, output)
    given.write_text("{}")
    code, _, errors = await command("run", "report", "--input", str(given), *where)
    assert (code, "'input.document' is missing" in errors) == (2, True), errors
    gateway.script("context_length")
    code, _, errors = await command("run", "one", "--input", str(given), *where)
    assert (code, "has ended as failed: only: " in errors) == (1, True), errors


async def test_a_pipeline_that_is_not_there_is_run_by_no_model(
    gateway: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even by one that takes any name."""
    (tmp_path / "given.txt").write_text(DOCUMENT)
    where = ("--input", str(tmp_path / "given.txt"), "--url", gateway.url, "--api-key", WEB_KEY)
    code = await asyncio.to_thread(main, ["pipelines", "run", "rapport", *where])
    assert (code, "it has one, report" in capsys.readouterr().err, gateway.upstream_calls()) == (2, True, 0)


async def test_a_run_keeps_to_the_plan_that_it_began_with(gateway: Running, tmp_path: Path) -> None:
    place = tmp_path / "policies" / "pipelines" / "one.yaml"

    async def write(words: str) -> None:
        last = {"call": {"model": "gpt-4o", "messages": [{"role": "user", "content": words}]}, "after": ["only"]}
        place.write_text(yaml.safe_dump({"steps": {**ONE["steps"], "last": last}}))
        gateway.gateway.reload()
        plans = gateway.gateway._policies
        await until(lambda: words in str(PIPELINES.of(plans.current)["one"].source))

    await write("old")
    gateway.script("slow_first_token;seconds=1")
    job = await take(gateway.url, new_job(body=asking("first")))
    await until(lambda: gateway.upstream_calls() > 0)
    seen = await look(gateway.url, job["id"])
    assert (seen["status"], seen["stage"], seen["progress"]["total"]) == ("waiting", "only", 2)
    await write("new")
    await result_of(gateway.url, job["id"])
    await ask(gateway.url, post(CHAT, asking("second"), WEB))
    assert prompts(gateway) == ["first", "old", "second", "new"]
