"""pydantic-ai: an agent with a tool, by each of its models' languages."""

import asyncio

import trials
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

calls: list[tuple[str, str]] = []


def get_weather(city: str, thread_id: str) -> str:
    """The weather."""
    calls.append((city, thread_id))
    return "sunny"


def agents(model: str) -> list[Agent]:
    openai = OpenAIProvider(base_url=f"{trials.URL}/v1", api_key=trials.KEY)
    anthropic = AnthropicProvider(base_url=trials.URL, api_key=trials.KEY)
    google = GoogleProvider(base_url=trials.URL, api_key=trials.KEY)
    models = [
        OpenAIChatModel(model, provider=openai),
        OpenAIResponsesModel(model, provider=openai),
        AnthropicModel(model, provider=anthropic),
        GoogleModel(model, provider=google),
    ]
    return [Agent(model, tools=[get_weather]) for model in models]


async def tool() -> None:
    for agent in agents(trials.MODEL):
        calls.clear()
        answer = await agent.run(trials.ASK_FOR_TOOL)
        trials.is_story(answer.output)
        assert len(calls) == 1, calls


async def stream() -> None:
    for agent in agents(trials.MODEL):
        async with Agent(agent.model).run_stream(trials.ASK) as answer:
            trials.is_stream([piece async for piece in answer.stream_text(delta=True, debounce_by=None)])


async def error() -> None:
    for agent in agents(trials.LONG_MODEL):
        try:
            await agent.run(trials.ASK)
        except ModelHTTPError as problem:
            trials.is_too_long(problem, problem.status_code)
        else:
            raise ValueError("no error")


def blocking(trial):
    return lambda: asyncio.run(trial())


trials.run(tool=blocking(tool), stream=blocking(stream), error=blocking(error))
