"""Steps of runs over the wire: the official SDK with two more headers, against a real gateway with its jobs in a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.durable import NIGHTLY, WEB, ask, policies, with_jobs
from tests.e2e.harness import KEYS, NIGHTLY_KEY, WEB_KEY, Running, chat, config_of, get, post
from tests.e2e.replaying import hold
from tests.e2e.test_responses import chat_only, ended


@pytest.fixture
async def gateway(start: StartGateway, tmp_path: Path) -> Running:
    """A gateway with jobs."""
    return await start(with_jobs(tmp_path))


def step(name: str, run: str = "order-4711", **more: str) -> dict[str, str]:
    return {"x-gateway-run": run, "x-gateway-step": name, **more}


async def create(gateway: Running, headers: dict[str, str], key: str = WEB_KEY, **asked: Any) -> Any:
    """The raw answer to a chat, over a connection of its own."""
    async with gateway.sdk(key) as sdk:
        return await sdk.chat.completions.with_raw_response.create(**(asked or chat()), extra_headers=headers)


async def run_of(gateway: Running, run: str = "order-4711", key: str = WEB) -> dict[str, Any]:
    answer = await ask(gateway.url, get(f"/v1/runs/{run}", key))
    assert answer.status == 200, answer.raw
    shown: dict[str, Any] = orjson.loads(answer.body)
    return shown


async def test_an_sdk_pays_for_a_step_once(gateway: Running) -> None:
    """Whole, streamed, and at another endpoint; another tenant's run of the same name is another."""
    answers = [await create(gateway, step("extract")) for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert [one.headers.get("x-gateway-step-replayed") for one in answers] == [None, "true"]
    assert [float(one.headers["x-gateway-cost-usd"]) > 0 for one in answers] == [True, False]

    texts = []
    for _ in range(2):
        async with gateway.sdk() as sdk:
            stream = await sdk.chat.completions.create(**chat(), stream=True, extra_headers=step("stream"))
            texts.append([chunk.model_dump() async for chunk in stream])
            await sdk.embeddings.create(model="text-embedding-3-small", input="x", extra_headers=step("embed"))
    assert texts[0] == texts[1] != []
    assert gateway.upstream_calls() == 3
    await create(gateway, step("extract"), NIGHTLY_KEY)
    assert gateway.upstream_calls() == 4

    shown = await run_of(gateway)
    assert [(one["step"], one["status"]) for one in shown["steps"]] == [
        ("extract", 200),
        ("stream", 200),
        ("embed", 200),
    ]
    assert shown["steps"][0]["usage"]["input_tokens"] > 0
    assert shown["steps"][0]["cost_usd"] == pytest.approx(float(answers[0].headers["x-gateway-cost-usd"]))
    assert [one["step"] for one in (await run_of(gateway, key=NIGHTLY))["steps"]] == ["extract"]
    assert (await ask(gateway.url, post("/v1/runs/order-4711/outcome", {"outcome": "succeeded"}, WEB))).status == 200
    assert (await run_of(gateway))["outcome"] == "succeeded"


async def test_steps_outlive_the_process_until_they_are_forgotten(start: StartGateway, tmp_path: Path) -> None:
    """So does what their run adds up to; forgotten, they are paid for again."""
    first = await start(with_jobs(tmp_path))
    await create(first, step("a/b[3]", "2026/order:1"))
    await first.gateway.stop()
    second = await start(with_jobs(tmp_path))
    await create(second, step("a/b[3]", "2026/order:1"))
    assert (second.upstream_calls(), (await run_of(second, "2026/order:1"))["calls"]["cached"]) == (0, 1)
    gone = get("/v1/runs/2026/order:1", WEB).replace(b"GET ", b"DELETE ", 1)
    assert (await ask(second.url, gone)).status == 204
    await create(second, step("a/b[3]", "2026/order:1"))
    assert second.upstream_calls() == 1


async def test_what_is_wrong_with_a_step_is_said(gateway: Running, start: StartGateway) -> None:
    """Naming the header and the remedy, before anything is asked of a provider."""
    await create(gateway, step("x"))
    other = {**chat(), "temperature": 0.3}
    for asked, headers, status, code, param in (
        (chat(), {"x-gateway-step": "x"}, 400, "missing_field", "x-gateway-run"),
        (chat(), step("a b"), 400, "invalid_value", "x-gateway-step"),
        (chat(), step("x" * 129), 400, "invalid_value", "x-gateway-step"),
        (chat(), step("x", run="a b"), 400, "invalid_value", "x-gateway-run"),
        (chat(), step("y", prefer="respond-async"), 400, "step_not_async", "prefer"),
        (chat(), {**step("y"), "x-gateway-step-on-change": "maybe"}, 400, "invalid_value", "x-gateway-step-on-change"),
        (other, step("x"), 422, "step_changed", "x-gateway-step"),
    ):
        with pytest.raises(openai.APIStatusError) as refusal:
            await create(gateway, headers, **asked)
        assert (refusal.value.status_code, refusal.value.code, refusal.value.param) == (status, code, param)
    await create(gateway, {**step("x"), "x-gateway-step-on-change": "rerun"}, **other)
    await create(gateway, {**step("x"), "idempotency-key": "k"}, **other)
    assert gateway.upstream_calls() == 2

    bare = await start(lambda url: config_of(url, keys=KEYS, jobs={"store": "off"}))
    with pytest.raises(openai.NotFoundError) as off:
        await create(bare, step("x"))
    assert (off.value.code, bare.upstream_calls()) == ("jobs_off", 0)


async def test_who_leaves_finds_the_answer_when_it_comes_back(gateway: Running) -> None:
    """It was paid for, and is given without another call; so it is to twins meanwhile."""
    may_end = hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)
    leaving = asyncio.create_task(create(gateway, step("slow")))
    while gateway.upstream_calls() < 1:  # noqa: ASYNC110 - a counter of another task
        await asyncio.sleep(0.001)
    leaving.cancel()
    twin = asyncio.create_task(create(gateway, step("slow")))
    await asyncio.sleep(0.01)
    may_end.set()
    first = await twin
    again = await create(gateway, step("slow"))
    assert (first.content, gateway.upstream_calls()) == (again.content, 1)


async def test_what_becomes_a_job_is_no_step(start: StartGateway, tmp_path: Path) -> None:
    """It would be begun anew each time, whatever its step: this is said before anything is."""
    (tmp_path / "policies" / "pipelines").mkdir(parents=True)
    one = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hello there"}]}
    told = orjson.dumps({"steps": {"only": {"call": one}}, "output": "steps.only.text"})
    (tmp_path / "policies" / "pipelines" / "short.yaml").write_bytes(told)
    gateway = await start(with_jobs(tmp_path, policies=str(tmp_path / "policies")))
    names = "x-gateway-run: r", "x-gateway-step: s", WEB
    asked = {"model": "gpt-4o", "input": "hello there", "background": True}
    for path, body, param in (
        ("/v1/responses", asked, "background"),
        ("/v1/chat/completions", {**chat(), "model": "pipelines/short"}, "model"),
    ):
        answer = await ask(gateway.url, post(path, body, *names))
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "step_not_async", param)
        assert (await ask(gateway.url, post(path, body, "idempotency-key: k", *names[::2]))).status == 200


async def test_what_has_no_room_goes_early_and_is_counted(start: StartGateway, tmp_path: Path) -> None:
    """Runs and kept responses, each within its own bound: the log names the field that is to be raised."""
    jobs = {"max_run_bytes_per_tenant": "8KiB", "max_response_bytes_per_tenant": "2KiB"}
    gateway = await start(chat_only(tmp_path, jobs=jobs))
    for number in range(6):
        await create(gateway, step("extract", f"order-{number}"))
        kept = await ask(gateway.url, post("/v1/responses", {"model": "gpt-4o", "input": "hello", "store": True}, WEB))
        assert kept.status == 200, kept.raw
    numbers = (await ask(gateway.url, get("/metrics"))).body.decode()
    early = dict(
        line.split() for line in numbers.splitlines() if line.startswith("gateway_") and "_early_total " in line
    )
    assert 0 < float(early["gateway_run_records_early_total"]) < 6
    assert 0 < float(early["gateway_kept_responses_early_total"]) < 6
    for run, calls in (("order-5", 12), ("order-0", 13)):
        await create(gateway, step("extract", run))
        assert gateway.upstream_calls() == calls


async def test_where_nothing_is_remembered_a_step_is_refused(start: StartGateway, tmp_path: Path) -> None:
    """Jobs, batches, files, runs, and responses in the background: naming the header or the field, and nothing is done."""
    gateway = await start(chat_only(tmp_path))
    headers = (WEB, "x-gateway-run: r", "x-gateway-step: s")
    job = {"endpoint": "/v1/chat/completions", "body": chat()}
    batch = {"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    response = {"model": "gpt-4o", "input": "hello", "background": True}
    for path, asked, code, param in (
        ("/v1/jobs", job, "no_step", "x-gateway-step"),
        ("/v1/batches", batch, "no_step", "x-gateway-step"),
        ("/v1/files", {}, "no_step", "x-gateway-step"),
        ("/v1/runs/r/outcome", {"outcome": "succeeded"}, "no_step", "x-gateway-step"),
        ("/v1/responses", response, "step_not_async", "background"),
    ):
        answer = await ask(gateway.url, post(path, asked, *headers))
        error = orjson.loads(answer.body)["error"]
        assert (answer.status, error["code"], error["param"]) == (400, code, param), path
    assert orjson.loads((await ask(gateway.url, get("/v1/jobs", WEB))).body)["data"] == []
    assert gateway.upstream_calls() == 0


async def test_a_response_of_our_own_store_is_a_step_with_its_id(start: StartGateway, tmp_path: Path) -> None:
    """Also one that goes on from another."""
    gateway = await start(chat_only(tmp_path))
    async with gateway.sdk() as sdk:
        before: str | None = None
        for name in ("first", "second"):
            one, again = [
                await sdk.responses.create(
                    model="gpt-4o", input=name, store=True, previous_response_id=before, extra_headers=step(name)
                )
                for _ in range(2)
            ]
            assert one.id == again.id
            before = one.id
            assert (await sdk.responses.retrieve(before)).output_text == one.output_text
    assert gateway.upstream_calls() == 2


async def test_a_streamed_response_is_given_again_with_its_id(start: StartGateway, tmp_path: Path) -> None:
    """Byte for byte, as a step and from a cache, under the id that it is kept by."""
    cache = {"exact": {"requests": "always", "ttl": "1h"}}
    gateway = await start(chat_only(tmp_path, policies=policies(tmp_path, cache=cache)))
    for text, headers in (("as a step", ("x-gateway-run: r", "x-gateway-step: s")), ("from a cache", ())):
        asked = {"model": "gpt-4o", "input": text, "store": True, "stream": True}
        first, again = [await ask(gateway.url, post("/v1/responses", asked, WEB, *headers)) for _ in range(2)]
        assert again.header("x-gateway-cache") == "hit"
        assert first.body == again.body
        last = orjson.loads(again.body.rsplit(b"data: ", 1)[1])["response"]
        assert last["store"] is True
        assert (await ask(gateway.url, get(f"/v1/responses/{last['id']}", WEB))).status == 200
    async with gateway.sdk() as sdk:
        made = await sdk.responses.create(model="gpt-4o", input="from a cache", background=True)
        assert (await ended(sdk, made)).status == "completed"
    assert gateway.upstream_calls() == 2


async def test_forms_and_large_bodies_are_steps(gateway: Running) -> None:
    """A form is the same with another boundary; one byte more in the middle of a large body is another question."""
    large = "x" * 3_000_000
    async with gateway.sdk() as sdk:
        for sound, replayed in ((b"RIFF", None), (b"RIFF", "true")):
            said = await sdk.audio.transcriptions.with_raw_response.create(
                model="whisper-1", file=("a.wav", sound * 500_000), extra_headers=step("listen")
            )
            assert said.headers.get("x-gateway-step-replayed") == replayed
        with pytest.raises(openai.UnprocessableEntityError, match="another request"):
            await sdk.audio.transcriptions.create(
                model="whisper-1", file=("a.wav", b"RIFX" * 500_000), extra_headers=step("listen")
            )
    assert gateway.upstream_calls() == 1
    asked: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": large}]}
    for _ in range(2):
        await create(gateway, step("large"), **asked)
    asked["messages"] = [{"role": "user", "content": large[:1_000_000] + "y" + large[1_000_001:]}]
    with pytest.raises(openai.UnprocessableEntityError):
        await create(gateway, step("large"), **asked)
    assert gateway.upstream_calls() == 2
