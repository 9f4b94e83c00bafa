"""Responses in the background, and kept ones, over the wire: the openai SDK, a real gateway with its jobs in a file."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai.types.responses import Response, ResponseFailedEvent

from gateway.emulator.config import EmulatorConfig, Fault, FaultRule
from gateway.products.jobs import answers_http as events
from tests.e2e.anthropic_server import AnthropicServer
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import NIGHTLY, WEB, ask, policies, with_jobs
from tests.e2e.harness import NIGHTLY_KEY, PATIENCE_S, WEB_KEY, Running, get, post, until

SLOW = EmulatorConfig(tokens_per_second=20.0, output_tokens=400)
"""Twenty seconds, unless it is stopped."""


def chat_only(folder: Path, **sections: Any) -> Any:
    """A config with jobs, whose provider has no Responses."""
    made = with_jobs(folder, **sections)

    def make(url: str) -> Any:
        config = {**made(url)}
        config["providers"]["main"]["speaks"] = ["chat"]
        return config

    return make


@pytest.fixture(params=["responses", "chat"])
async def gateway(request: pytest.FixtureRequest, start: StartGateway, tmp_path: Path) -> Running:
    """A gateway before a provider that has Responses, and before one that has not."""
    return await start((with_jobs if request.param == "responses" else chat_only)(tmp_path))


async def ended(sdk: openai.AsyncOpenAI, response: Response) -> Response:
    """The response, polled to its end."""
    async with asyncio.timeout(PATIENCE_S):
        while response.status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
            response = await sdk.responses.retrieve(response.id)
    return response


async def test_created_polled_and_forgotten(gateway: Running) -> None:
    """The whole life of one, to the SDK; the provider is asked once, and keeps nothing."""
    async with gateway.sdk() as sdk:
        raw = await sdk.responses.with_raw_response.create(
            model="gpt-4o", input="hello there", background=True, instructions="Be short.", metadata={"order": "4711"}
        )
        queued = raw.parse()
        done = await ended(sdk, queued)
        items = await sdk.responses.input_items.list(queued.id)
        await sdk.responses.delete(queued.id)
        with pytest.raises(openai.NotFoundError) as gone:
            await sdk.responses.retrieve(queued.id)

    assert (queued.status, queued.background, queued.instructions) == ("queued", True, "Be short.")
    assert raw.headers["openai-poll-after-ms"] == "2000"
    assert queued.id.startswith("resp_gw")
    assert (done.id, done.status, done.created_at) == (queued.id, "completed", queued.created_at)
    assert done.output_text != ""
    assert done.usage is not None
    assert done.metadata == {"order": "4711"}
    assert [item.to_dict()["content"] for item in items.data] == [[{"type": "input_text", "text": "hello there"}]]
    assert gone.value.body == {
        "message": f"Response with id '{queued.id}' not found.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    (sent,) = gateway.received()
    assert "background" not in str(sent["body"])
    job = orjson.loads((await ask(gateway.url, get("/v1/jobs", WEB))).body)["data"][0]
    assert (job["id"], job["kind"], job["status"]) == (queued.id, "response", "succeeded")


async def test_streamed_and_streamed_again_from_any_event(gateway: Running) -> None:
    """All who stream read one log: contiguous numbers from 0, one id, and the same end."""
    async with gateway.sdk() as sdk:
        stream = await sdk.responses.create(model="gpt-4o", input="hello there", background=True, stream=True)
        events = [event async for event in stream]
        assert events[0].type == "response.created"
        response_id = events[0].response.id
        from_4 = [event async for event in await sdk.responses.retrieve(response_id, stream=True, starting_after=4)]
        async with sdk.responses.stream(response_id=response_id, starting_after=4) as helper:
            helped = [event.sequence_number async for event in helper]
        whole = await sdk.responses.retrieve(response_id)
        for beyond in (1_000_000, 1_000_000_000):
            with pytest.raises(openai.BadRequestError, match="starting_after"):
                await sdk.responses.retrieve(response_id, stream=True, starting_after=beyond)

    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.model_dump() for event in from_4] == [event.model_dump() for event in events[5:]]
    assert helped == [event.sequence_number for event in events[5:]]
    assert events[-1].response.model_dump() == whole.model_dump()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert {event.response.id for event in events if hasattr(event, "response")} == {response_id}


async def test_a_client_that_leaves_touches_nothing(start: StartGateway, tmp_path: Path) -> None:
    """It comes back for the rest, and gets what it would have got."""
    gateway = await start(with_jobs(tmp_path), emulator=EmulatorConfig(tokens_per_second=300.0, output_tokens=60))
    async with gateway.sdk() as sdk:
        stream = await sdk.responses.create(model="gpt-4o", input="hello there", background=True, stream=True)
        seen = []
        async for event in stream:
            seen.append(event)
            if len(seen) == 6:
                break
        await stream.close()
        assert seen[0].type == "response.created"
        response_id = seen[0].response.id
        rest = [
            event
            async for event in await sdk.responses.retrieve(
                response_id, stream=True, starting_after=seen[-1].sequence_number
            )
        ]
        beside = [event async for event in await sdk.responses.retrieve(response_id, stream=True)]

    assert [*seen, *rest] == beside
    assert rest[-1].type == "response.completed"
    assert gateway.upstream_calls() == 1


async def test_cancelled_at_once_and_again(start: StartGateway, tmp_path: Path) -> None:
    """The provider's connection ends; a second cancel, and one of a finished response, show it as it is.

    The stream ends with an event that the SDK knows, here and where it is read again.
    """
    gateway = await start(with_jobs(tmp_path), emulator=SLOW)
    async with gateway.sdk() as sdk:
        stream = await sdk.responses.create(model="gpt-4o", input="hello there", background=True, stream=True)
        events: list[Any] = [await anext(stream) for _ in range(10)]
        cancelled = await sdk.responses.cancel(events[0].response.id)
        events += [event async for event in stream]
        again = await sdk.responses.cancel(cancelled.id)
        async with sdk.responses.stream(response_id=cancelled.id) as read_again:
            last = [event async for event in read_again][-1]
        job = orjson.loads((await ask(gateway.url, get(f"/v1/jobs/{cancelled.id}", WEB))).body)
    await until(lambda: gateway.emulator.emulator.stats.active == 0)

    assert (cancelled.status, again.status, job["status"]) == ("cancelled", "cancelled", "cancelled")
    assert isinstance(events[-1], ResponseFailedEvent)
    assert isinstance(last, ResponseFailedEvent)
    assert [event.response.status for event in (events[-1], last)] == ["cancelled", "cancelled"]
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_strangers_get_the_same_404_as_for_what_never_was(gateway: Running) -> None:
    """On every route, byte for byte but for the id."""
    async with gateway.sdk() as sdk:
        mine = await sdk.responses.create(model="gpt-4o", input="hello there", background=True)
        await ended(sdk, mine)
    never = mine.id[:-1] + ("A" if mine.id[-1] != "A" else "B")
    for request in (
        get("/v1/responses/ID", NIGHTLY),
        get("/v1/responses/ID?stream=true", NIGHTLY),
        get("/v1/responses/ID/input_items", NIGHTLY),
        post("/v1/responses/ID/cancel", b"", NIGHTLY),
        get("/v1/responses/ID", NIGHTLY).replace(b"GET", b"DELETE", 1),
    ):
        theirs, nobodys = [await ask(gateway.url, request.replace(b"ID", id.encode())) for id in (mine.id, never)]
        assert theirs.status == nobodys.status == 404
        assert theirs.body.replace(mine.id.encode(), b"ID") == nobodys.body.replace(never.encode(), b"ID")
    async with gateway.sdk() as sdk:
        assert (await sdk.responses.retrieve(mine.id)).status == "completed"


async def test_a_conversation_that_the_gateway_keeps(start: StartGateway, tmp_path: Path) -> None:
    """At a provider of chat completions: stored where it is asked for, and gone on from; instructions are each turn's own."""
    gateway = await start(chat_only(tmp_path))
    async with gateway.sdk() as sdk:
        first = await sdk.responses.create(
            model="gpt-4o", input="My name is Ada.", store=True, instructions="Only now."
        )
        async with sdk.responses.stream(model="gpt-4o", input="And?", previous_response_id=first.id) as stream:
            second = await stream.get_final_response()
        third = await sdk.responses.create(
            model="gpt-4o", input="What is my name?", background=True, previous_response_id=second.id
        )
        third = await ended(sdk, third)
        unasked = await sdk.responses.create(model="gpt-4o", input="Nothing to keep.")
        kept = await sdk.responses.retrieve(second.id)
        with pytest.raises(openai.BadRequestError, match=r"Cannot cancel a synchronous response\."):
            await sdk.responses.cancel(second.id)
        with pytest.raises(openai.BadRequestError) as unknown:
            await sdk.responses.create(model="gpt-4o", input="x", previous_response_id=unasked.id)
    async with gateway.sdk(NIGHTLY_KEY) as sdk:
        with pytest.raises(openai.BadRequestError) as foreign:
            await sdk.responses.create(model="gpt-4o", input="x", previous_response_id=first.id)

    asked = [orjson.loads(one["body"])["messages"] for one in gateway.received()]
    said = [[(message["role"], _text(message["content"])) for message in messages] for messages in asked]
    assert said[0] == [("system", "Only now."), ("user", "My name is Ada.")]
    assert said[1] == [("user", "My name is Ada."), ("assistant", first.output_text), ("user", "And?")]
    assert said[2] == [*said[1], ("assistant", second.output_text), ("user", "What is my name?")]
    assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)
    assert kept.model_dump() == second.model_dump(exclude={"output": {"__all__": {"content": {"__all__": {"parsed"}}}}})
    for refused in (unknown, foreign):
        assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize("kind", ["deepseek", "groq"])
async def test_a_stateless_server_is_asked_in_its_language_and_keeps_nothing(
    start: StartGateway, tmp_path: Path, kind: str
) -> None:
    """At its own /responses; conversations go on here, and an id that nobody knows is no lost history."""

    def of_kind(url: str) -> Any:
        config = {**with_jobs(tmp_path)(url)}
        config["providers"]["main"]["kind"] = kind
        return config

    gateway = await start(of_kind)
    async with gateway.sdk() as sdk:
        first = await sdk.responses.create(model="gpt-4o", input="My name is Ada.", store=True)
        await sdk.responses.create(model="gpt-4o", input="What is my name?", previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError) as unknown:
            await sdk.responses.create(model="gpt-4o", input="x", previous_response_id="resp_unknown")

    assert unknown.value.code == "previous_response_not_found"
    sent = [orjson.loads(one["body"]) for one in gateway.received()]
    assert [len(one["input"]) for one in sent] == [len("My name is Ada."), 3]
    assert "previous_response_id" not in sent[1]


async def test_modes_of_keeping(start: StartGateway, tmp_path: Path) -> None:
    """`gateway` keeps unless it is told not to; a key of which nothing is kept has none in the background."""
    gateway = await start(
        with_jobs(
            tmp_path,
            keys=[{"name": "web", "key": WEB_KEY}, {"name": "zdr", "key": NIGHTLY_KEY, "keeps_responses": False}],
            policies=policies(tmp_path, jobs={"responses": {"store": "gateway"}}),
        )
    )
    async with gateway.sdk() as sdk:
        kept = await sdk.responses.create(model="gpt-4o", input="hello there")
        loose = await sdk.responses.create(model="gpt-4o", input="hello there", store=False)
        assert (await sdk.responses.retrieve(kept.id)).output_text == kept.output_text
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(loose.id)
        with pytest.raises(openai.BadRequestError) as stranger:
            await sdk.responses.create(model="gpt-4o", input="x", previous_response_id="resp_of_the_provider")
    async with gateway.sdk(NIGHTLY_KEY) as sdk:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model="gpt-4o", input="hello there", background=True)
        await sdk.responses.create(model="gpt-4o", input="hello there")

    assert stranger.value.code == "previous_response_not_found"
    assert refused.value.code == "background_not_allowed"
    assert [orjson.loads(one["body"]).get("store") for one in gateway.received()] == [False, False, False]


async def test_repeated_with_its_key(gateway: Running) -> None:
    """An SDK that sends a request again gets the same response."""
    async with gateway.sdk() as sdk:
        headers = {"Idempotency-Key": "once"}
        asked: Any = {"model": "gpt-4o", "input": "hello there", "background": True}
        first = await sdk.responses.create(**asked, extra_headers=headers)
        again = await sdk.responses.create(**asked, extra_headers=headers)
        done = await ended(sdk, first)
        late = await sdk.responses.create(**asked, extra_headers=headers)
        with pytest.raises(openai.ConflictError):
            await sdk.responses.create(**{**asked, "input": "else"}, extra_headers=headers)

    assert first.id == again.id == late.id
    assert late.output_text == done.output_text
    assert gateway.upstream_calls() == 1


async def test_a_stream_that_has_no_reader_left_is_refused_before_it_is_paid_for(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An SDK sends it again and again: each would be a job."""
    gateway = await start(with_jobs(tmp_path))
    monkeypatch.setattr(events, "MOST_READERS_PER_TENANT", 0)
    body = {"model": "gpt-4o", "input": "hello there", "background": True, "stream": True}
    refused = await ask(gateway.url, post("/v1/responses", body, WEB))
    jobs = orjson.loads((await ask(gateway.url, get("/v1/jobs", WEB))).body)["data"]

    assert (refused.status, jobs, gateway.upstream_calls()) == (429, [], 0)


async def test_what_is_removed_is_nowhere(start: StartGateway, tmp_path: Path) -> None:
    """Neither what was asked nor what was answered, however it ended; `HEAD` of its events does not wait for them."""
    refused = FaultRule(Fault("context_length"), model="gpt-4o-mini")
    gateway = await start(with_jobs(tmp_path), emulator=EmulatorConfig(faults=(refused,)))
    asked: Any = {"input": "the secret input", "instructions": "the secret rule", "background": True}
    async with gateway.sdk() as sdk:
        done = [await ended(sdk, await sdk.responses.create(model=model, **asked)) for model in ("gpt-4o", "renamed")]
        stream = await sdk.responses.create(model="gpt-4o", stream=True, **asked)
        streamed = [event async for event in stream][-1].response
        head = get(f"/v1/responses/{streamed.id}?stream=true", WEB, "connection: close").replace(b"GET", b"HEAD", 1)
        told = await ask(gateway.url, head)
        for response in (*done, streamed):
            await sdk.responses.delete(response.id)
    left = _rows(tmp_path / "jobs.db")

    assert [response.status for response in done] == ["completed", "failed"]
    assert (told.status, told.header("content-type")) == (200, "text/event-stream; charset=utf-8")
    assert done[0].id.encode() in left
    assert b"secret" not in left


async def test_an_answer_of_the_cache_whose_response_was_removed_says_that_it_is_not_kept(
    start: StartGateway, tmp_path: Path
) -> None:
    """It has the same id, which nobody can get any more."""
    cache = {"exact": {"requests": "always", "ttl": "1h"}}
    gateway = await start(chat_only(tmp_path, policies=policies(tmp_path, cache=cache)))
    async with gateway.sdk() as sdk:
        first = await sdk.responses.create(model="gpt-4o", input="hello there", store=True)
        await sdk.responses.delete(first.id)
        again = await sdk.responses.create(model="gpt-4o", input="hello there", store=True)

    assert (first.to_dict()["store"], again.to_dict()["store"]) == (True, False)
    assert gateway.upstream_calls() == 1


def _rows(file: Path) -> bytes:
    """All that a jobs file tells."""
    copy = shutil.copytree(file.parent, file.parent / "copy", ignore=lambda *_: ["blobs"]) / file.name
    with closing(sqlite3.connect(copy)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return b"".join(repr(row).encode() for name in tables for row in db.execute(f"SELECT * FROM {name}"))  # noqa: S608 - the names are the file's own


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def test_a_log_is_as_long_as_the_config_says(start: StartGateway, tmp_path: Path) -> None:
    """Of a longer one no event is told again; the response itself is there."""
    gateway = await start(with_jobs(tmp_path, jobs={"max_response_log": "2KiB"}))
    async with gateway.sdk() as sdk:
        stream = await sdk.responses.create(model="gpt-4o", input="hello there", background=True, stream=True)
        response_id = (await anext(stream)).response.id  # type: ignore[union-attr]
        await stream.close()
        response = await ended(sdk, await sdk.responses.retrieve(response_id))
        assert response.status == "completed"
        again = b""
        async with asyncio.timeout(PATIENCE_S):  # as long as its run is about to leave, it tells what it has in memory
            while b"stream_log_cut" not in again:
                again = (await ask(gateway.url, get(f"/v1/responses/{response_id}?stream=true", WEB))).raw


async def test_a_kept_conversation_goes_on_at_openai_without_the_words_of_its_reasoning(
    start: StartGateway, tmp_path: Path
) -> None:
    """Its first turn is a chat completion's; OpenAI's Responses take no reasoning in words."""
    message = {"role": "assistant", "content": "Hi.", "reasoning_content": "hm"}
    answer = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    async with AnthropicServer() as server:
        made = with_jobs(tmp_path)

        def config(url: str) -> Any:
            config = {**made(url)}
            config["providers"]["main"]["kind"] = "openai"
            config["providers"]["other"] = {
                "dialect": "openai", "base_url": server.url, "api_key": "sk-x", "speaks": ["chat"],
                "headers": {"anthropic-version": "x"},
            }  # fmt: skip
            spare = {"targets": [{"provider": "main", "model": "m", "speaks": ["responses"]}]}
            config["models"] |= {
                "gpt-4o": {"targets": ["other/m"], "fallbacks": ["spare"], "prefer_native": False},
                "spare": spare,
            }
            return config

        gateway = await start(config)
        server.script += [(200, answer), (503, {"error": {"message": "down"}})]
        async with gateway.sdk() as sdk:
            first = await sdk.responses.create(model="gpt-4o", input="Hello.", store=True)
            second = await sdk.responses.create(model="gpt-4o", input="And?", previous_response_id=first.id)

    assert [item.type for item in first.output] == ["reasoning", "message"]
    assert second.status == "completed"
    (sent,) = (orjson.loads(one["body"]) for one in gateway.received())
    assert [item.get("type", "message") for item in sent["input"]] == ["message"] * 3
