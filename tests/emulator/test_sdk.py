"""The official SDK against the emulator over loopback: it parses everything and raises what it should."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from functools import partial
from typing import cast

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_script_entry
from tests.emulator.conftest import StartServer
from tests.loopback import plain_http

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "say hello to the river"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture
async def server(start_server: StartServer) -> EmulatorServer:
    return await start_server()


@pytest.fixture
async def client(server: EmulatorServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=server.base_url, api_key="sk-test", max_retries=0, http_client=plain_http()
    ) as made:
        yield made


async def test_chat_answers_with_its_usage(client: AsyncOpenAI) -> None:
    """Text that quotes the prompt, and token counts that add up."""
    completion = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)

    assert (completion.choices[0].message.content or "").startswith("emulated answer to: say hello to the river")
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (6, 60)


async def test_a_chat_stream_says_what_the_json_says(client: AsyncOpenAI) -> None:
    """Same text; `usage` only in the extra last chunk, which has no choices."""
    whole = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    stream = await client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )

    chunks = [chunk async for chunk in stream]

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage == whole.usage


async def test_a_stream_without_options_has_no_usage(client: AsyncOpenAI) -> None:
    """Neither the extra chunk nor the null field."""
    stream = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)

    chunks = [chunk async for chunk in stream]

    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)


async def test_a_token_cap_cuts_the_answer(client: AsyncOpenAI) -> None:
    """Both names of the cap; finish_reason length; n choices of their own text."""
    old = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, max_tokens=20, n=2)
    new = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, max_completion_tokens=3)

    assert [choice.finish_reason for choice in old.choices] == ["length", "length"]
    assert old.choices[0].message.content != old.choices[1].message.content
    assert old.usage is not None
    assert old.usage.completion_tokens == 40
    assert new.choices[0].message.content == "emulated answer to:"


async def test_a_tool_choice_is_answered_with_a_call_until_its_result_is_there(client: AsyncOpenAI) -> None:
    """Arguments fit the schema; a tool message gets prose."""
    asked = await client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, tools=[WEATHER], tool_choice="required"
    )

    calls = asked.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert (calls[0].function.name, calls[0].function.arguments) == ("get_weather", '{"city":"emulated","days":1}')
    assert asked.choices[0].finish_reason == "tool_calls"
    told: list[ChatCompletionMessageParam] = [
        *MESSAGES,
        {
            "role": "assistant",
            "tool_calls": [
                {"id": calls[0].id, "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"},
    ]
    answered = await client.chat.completions.create(
        model="gpt-4o", messages=told, tools=[WEATHER], tool_choice="required"
    )
    assert answered.choices[0].finish_reason == "stop"


async def test_a_tool_call_streams_its_arguments(client: AsyncOpenAI) -> None:
    """Name and id first, then the arguments in pieces."""
    async with client.chat.completions.stream(
        model="gpt-4o",
        messages=MESSAGES,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    ) as stream:
        final = await stream.get_final_completion()

    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert (calls[0].function.name, calls[0].function.arguments) == ("get_weather", '{"city":"emulated","days":1}')


async def test_tools_that_the_last_message_names_are_called_together(client: AsyncOpenAI) -> None:
    """One after the other in a stream, one alone where the caller wants it so; a result that names one calls it again."""
    clock: ChatCompletionToolParam = {"type": "function", "function": {"name": "get_time"}}
    wish: ChatCompletionMessageParam = {"role": "user", "content": "use get_time and get_weather"}
    asked = partial(client.chat.completions.create, model="gpt-4o", tools=[WEATHER, clock])
    both = await asked(messages=[wish])
    alone = await asked(messages=[wish], parallel_tool_calls=False)
    async with client.chat.completions.stream(model="gpt-4o", messages=[wish], tools=[WEATHER, clock]) as stream:
        streamed = await stream.get_final_completion()
    result: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": "call_1", "content": "now get_time"}
    again = await asked(messages=[wish, result])

    def told(answer: ChatCompletion) -> list[tuple[str, str]]:
        calls = [call for call in answer.choices[0].message.tool_calls or () if call.type == "function"]
        return [(call.function.name, call.function.arguments) for call in calls]

    weather, time = ("get_weather", '{"city":"emulated","days":1}'), ("get_time", "{}")
    assert told(both) == told(streamed) == [weather, time]
    assert (told(alone), told(again)) == ([weather], [time])


async def test_a_turn_of_its_own_comes_back_whole_to_a_strict_one(start_server: StartServer) -> None:
    """With its refusal and its annotations, as clients send a turn back."""
    server = await start_server(EmulatorConfig(strict=True))
    async with AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0, http_client=plain_http()) as client:
        turn = (await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)).choices[0].message
        history = [*MESSAGES, cast(ChatCompletionMessageParam, turn.model_dump()), *MESSAGES]
        answer = await client.chat.completions.create(model="gpt-4o", messages=history)

    assert turn.annotations == []
    assert answer.choices[0].finish_reason == "stop"


async def test_structured_output_fits_its_schema(client: AsyncOpenAI) -> None:
    """json_object is JSON, json_schema is what the schema says, in chat and in responses."""
    free = await client.chat.completions.create(
        model="gpt-4o", messages=MESSAGES, response_format={"type": "json_object"}
    )
    chat = await client.chat.completions.parse(model="gpt-4o", messages=MESSAGES, response_format=Person)
    response = await client.responses.parse(model="gpt-4o", input="who", text_format=Person)

    assert (free.choices[0].message.content or "").startswith('{"answer":"emulated answer to: say')
    assert chat.choices[0].message.parsed == Person(name="emulated", age=1)
    assert response.output_parsed == Person(name="emulated", age=1)


async def test_legacy_completions_answer_and_stream(client: AsyncOpenAI) -> None:
    """The default cap is 16 tokens; the stream says the same."""
    whole = await client.completions.create(model="gpt-3.5-turbo-instruct", prompt="once upon")
    stream = await client.completions.create(model="gpt-3.5-turbo-instruct", prompt="once upon", stream=True)

    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16


async def test_embeddings_are_unit_vectors_with_similar_texts_near(client: AsyncOpenAI) -> None:
    """The SDK's base64 default and floats agree; shared words mean a smaller angle."""
    texts = ["the quick brown fox jumps", "the quick brown fox sleeps", "quarterly revenue grew again"]
    packed = await client.embeddings.create(model="text-embedding-3-small", input=texts)
    plain = await client.embeddings.create(
        model="text-embedding-3-small", input=texts, encoding_format="float", dimensions=256
    )

    vectors = [item.embedding for item in packed.data]

    def cosine(left: list[float], right: list[float]) -> float:
        return sum(a * b for a, b in zip(left, right, strict=True))

    assert [len(vector) for vector in vectors] == [1536] * 3
    assert cosine(vectors[0], vectors[0]) == pytest.approx(1.0, abs=1e-5)
    assert cosine(vectors[0], vectors[1]) > 0.6 > 0.3 > cosine(vectors[0], vectors[2])
    assert [len(item.embedding) for item in plain.data] == [256] * 3
    assert cosine(plain.data[0].embedding, plain.data[1].embedding) > 0.6


async def test_a_response_answers_with_its_usage(client: AsyncOpenAI) -> None:
    """Completed, or incomplete when its cap cut it."""
    whole = await client.responses.create(model="gpt-4o", input="say hello", instructions="be brief")
    cut = await client.responses.create(
        model="gpt-4o", input=[{"role": "user", "content": "say hello"}], max_output_tokens=3
    )

    assert whole.status == "completed"
    assert whole.output_text.startswith("emulated answer to: say hello")
    assert whole.usage is not None
    assert whole.usage.output_tokens == 60
    assert (cut.status, cut.output_text) == ("incomplete", "emulated answer to:")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


async def test_a_response_streams_its_events_in_order(client: AsyncOpenAI) -> None:
    """The real names, numbered from 0 without a gap, the text complete."""
    stream = await client.responses.create(model="gpt-4o", input="hi", stream=True, max_output_tokens=2)

    seen = [event async for event in stream]

    assert [event.type for event in seen] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))


async def test_the_responses_stream_helper_ends_complete(client: AsyncOpenAI) -> None:
    """The SDK's accumulator accepts the events."""
    async with client.responses.stream(model="gpt-4o", input="hi") as stream:
        final = await stream.get_final_response()

    assert final.status == "completed"
    assert final.output_text.startswith("emulated answer to: hi")


async def test_the_smaller_endpoints_answer(client: AsyncOpenAI) -> None:
    """Moderations, images, speech, transcriptions, models, files."""
    calm = await client.moderations.create(input=["a calm text", "pure violence"])
    image = await client.images.generate(model="gpt-image-1", prompt="a dot", n=2)
    speech = await client.audio.speech.create(model="tts-1", voice="alloy", input="hi")
    heard = await client.audio.transcriptions.create(model="whisper-1", file=("a.wav", io.BytesIO(b"RIFF")))
    models = await client.models.list()
    files = await client.files.list()

    assert [result.flagged for result in calm.results] == [False, True]
    assert [bool(each.b64_json) for each in image.data or []] == [True, True]
    assert speech.content.startswith(b"RIFF")
    assert heard.text == "emulated transcription"
    assert "gpt-4o" in [model.id for model in models.data]
    assert (await client.models.retrieve("any/model")).id == "any/model"
    assert files.data == []


async def test_the_azure_client_is_served_by_deployment(start_server: StartServer) -> None:
    """The deployment stands for the model; the first chunk holds filter results only."""
    server = await start_server(EmulatorConfig(dialect="azure", rpm=600, api_key="azure-key"))
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=server.url, api_key="azure-key", api_version="2024-10-21", max_retries=0
    ) as client:
        whole = await client.chat.completions.with_raw_response.create(model="my-deployment", messages=MESSAGES)
        stream = await client.chat.completions.create(model="my-deployment", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]

    assert whole.parse().model == "my-deployment"
    assert whole.headers["x-ms-region"] == "Emulated Central"
    assert whole.headers["x-ratelimit-remaining-requests"] == "99"
    assert chunks[0].choices == []
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_the_sync_client_is_served(server: EmulatorServer) -> None:
    """Chat, stream, embeddings, responses, models and moderations without asyncio."""

    def use() -> list[bool]:
        with OpenAI(base_url=server.base_url, api_key="sk-test", max_retries=0) as client:
            chat = client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
            stream = client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            response = client.responses.create(model="gpt-4o", input="hi", stream=True)
            return [
                text == chat.choices[0].message.content,
                [event.type for event in response][-1] == "response.completed",
                len(client.embeddings.create(model="text-embedding-3-large", input="hi").data[0].embedding) == 3072,
                len(client.models.list().data) == 5,
                not client.moderations.create(input="hi").results[0].flagged,
                client.completions.create(model="davinci", prompt="hi").choices[0].text.startswith("emulated"),
            ]

    assert await asyncio.to_thread(use) == [True] * 6


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("rate_limit", openai.RateLimitError),
        ("quota", openai.RateLimitError),
        ("e500", openai.InternalServerError),
        ("e529", openai.InternalServerError),
        ("html502", openai.InternalServerError),
        ("content_filter", openai.BadRequestError),
        ("reset", openai.APIConnectionError),
        ("truncated", openai.APIConnectionError),
    ],
)
async def test_a_fault_raises_what_the_sdk_has_for_it(
    server: EmulatorServer, client: AsyncOpenAI, fault: str, error: type[Exception]
) -> None:
    """The SDK's own exception classes."""
    server.emulator.faults.script("gpt-4o", [parse_script_entry(fault)])

    with pytest.raises(error):
        await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)


async def test_an_error_event_raises_from_the_stream(server: EmulatorServer, client: AsyncOpenAI) -> None:
    """The status was 200; the error comes with the first event."""
    server.emulator.faults.script("gpt-4o", [parse_script_entry("in_band_error")])

    stream = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)

    with pytest.raises(openai.APIError, match="overloaded"):
        await anext(stream)


async def test_the_sdk_recovers_from_a_scripted_fault_by_retrying(server: EmulatorServer) -> None:
    """Its retry meets the next entry of the script."""
    server.emulator.faults.script("gpt-4o", [parse_script_entry("rate_limit;seconds=0.001"), None])
    async with AsyncOpenAI(
        base_url=server.base_url, api_key="sk-test", max_retries=1, http_client=plain_http()
    ) as client:
        completion = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)

    assert completion.choices
    assert server.emulator.stats.statuses == {429: 1, 200: 1}
