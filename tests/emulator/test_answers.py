"""Answers: the same for the same question, at the pace that was asked for."""

from __future__ import annotations

import math
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.emulator.app import create_app
from gateway.emulator.config import EmulatorConfig
from gateway.emulator.embeddings import unit_vector
from gateway.emulator.writer import example_of
from tests.emulator.conftest import FakeClock, chat_body, client_of, events
from tests.rows import rows


async def ask(config: EmulatorConfig, content: str, **extra: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **extra}
    async with client_of(create_app(config)) as client:
        return await client.post("/v1/chat/completions", json=body)


def text_of(answer: httpx.Response) -> str:
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


async def test_text_follows_from_seed_and_prompt() -> None:
    """Another process, another call, the same words; another seed or prompt, others."""
    first = text_of(await ask(EmulatorConfig(seed=1), "hello"))

    assert text_of(await ask(EmulatorConfig(seed=1), "hello")) == first
    assert text_of(await ask(EmulatorConfig(seed=2), "hello")) != first
    assert text_of(await ask(EmulatorConfig(seed=1), "hello!")) != first


async def test_usage_counts_the_words_emitted() -> None:
    """One word is one token; four characters of the prompt are one."""
    answer = await ask(EmulatorConfig(output_tokens=25), "x" * 41)

    assert len(text_of(answer).split()) == 25
    assert answer.json()["usage"]["completion_tokens"] == 25
    assert answer.json()["usage"]["prompt_tokens"] == 11


async def test_lengths_spread_around_their_median() -> None:
    """Lognormal over prompts, fixed for one prompt."""
    config = EmulatorConfig(output_tokens=50, output_sigma=0.5)
    lengths = [(await ask(config, str(index))).json()["usage"]["completion_tokens"] for index in range(60)]

    assert len(set(lengths)) > 20
    assert 35 < sorted(lengths)[30] < 70
    assert (await ask(config, "7")).json()["usage"]["completion_tokens"] == lengths[7]


async def test_content_parts_are_read_as_text() -> None:
    """A list of parts counts and is quoted like a string."""
    parts = [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": "data:"}}]

    answer = await ask(EmulatorConfig(), parts)  # type: ignore[arg-type]  # a list is the point

    assert text_of(answer).startswith("emulated answer to: what is this")


async def test_a_whole_answer_takes_as_long_as_its_tokens(clock: FakeClock) -> None:
    """Time to first token, then one token after the other."""
    app = create_app(
        EmulatorConfig(ttft_s=0.3, tokens_per_second=60, output_tokens=60), now=clock.now, sleep=clock.sleep
    )
    async with client_of(app) as client:
        answer = await client.post("/v1/chat/completions", json=chat_body())

    assert clock.at_s - 1000.0 == pytest.approx(0.3 + 59 / 60)
    assert answer.headers["openai-processing-ms"] == "1283"


async def test_a_stream_keeps_its_pace_without_drift(clock: FakeClock) -> None:
    """Due times count from the first token, so late wake-ups do not add up."""

    async def late(seconds: float) -> None:
        await clock.sleep(seconds + 0.003)

    app = create_app(EmulatorConfig(ttft_s=0.3, tokens_per_second=50, output_tokens=101), now=clock.now, sleep=late)
    async with client_of(app) as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(stream=True))

    assert len(events(answer.content)) == 1 + 101 + 2
    assert clock.at_s - 1000.0 == pytest.approx(0.303 + 2.0 + 0.003)


async def test_jitter_varies_calls_and_repeats_with_the_seed(clock: FakeClock) -> None:
    """Lognormal factors drawn from the seed."""

    async def waits() -> list[float]:
        clock.slept.clear()
        app = create_app(EmulatorConfig(ttft_s=1.0, jitter=0.3, seed=4), now=clock.now, sleep=clock.sleep)
        async with client_of(app) as client:
            for _ in range(20):
                await client.post("/v1/chat/completions", json=chat_body())
        return list(clock.slept)

    first = await waits()

    assert len(set(first)) == 20
    assert all(0.2 < wait_s < 5 for wait_s in first)
    assert await waits() == first


async def test_limits_refill_with_the_clock_through_the_app(clock: FakeClock) -> None:
    """Per key and model: others are not concerned; after the wait the call is served."""
    app = create_app(EmulatorConfig(rpm=1), now=clock.now, sleep=clock.sleep)
    async with client_of(app) as client:

        async def call(key: str, model: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            answer = await client.post("/v1/chat/completions", json=chat_body(model=model), headers=headers)
            return answer.status_code

        assert [await call("k1", "a"), await call("k1", "a")] == [200, 429]
        assert [await call("k1", "b"), await call("k2", "a")] == [200, 200]
        clock.at_s += 60
        assert await call("k1", "a") == 200


async def test_a_model_name_with_the_slot_mark_harms_nothing() -> None:
    """The frame template is split at its own mark only."""
    answer = await ask(EmulatorConfig(output_tokens=3), "hi", model="m\x00", stream=True)

    assert b"".join(events(answer.content)).count(b'"model":"m\\u0000"') == 5
    contents = [orjson.loads(data)["choices"][0]["delta"].get("content") for data in events(answer.content)[1:4]]
    assert contents == ["emulated", " answer", " to:"]


@given(st.text(max_size=200), st.sampled_from([1, 2, 64, 1536]))
def test_vectors_have_length_one(text: str, dimensions: int) -> None:
    """For any text and any number of dimensions."""
    vector = unit_vector(text, dimensions)

    assert len(vector) == dimensions
    assert math.isclose(sum(value * value for value in vector), 1.0, rel_tol=1e-9)


@rows(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}}, {"a": [1]}),
        ({"$defs": {"x": {"enum": ["on", "off"]}}, "type": "array", "items": {"$ref": "#/$defs/x"}}, ["on"]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": ["boolean", "null"]}, True),
        ({"const": 5}, 5),
        ({}, "emulated"),
    ],
)
def test_an_example_fits_its_schema(schema: dict[str, Any], value: object) -> None:
    """Types, enums, references and unions."""
    assert example_of(schema) == value


def test_a_schema_that_refers_to_itself_has_an_example() -> None:
    """Recursion ends."""
    node = {"type": "object", "properties": {"next": {"$ref": "#"}}}

    assert orjson.dumps(example_of(node)).startswith(b'{"next":{"next":')
