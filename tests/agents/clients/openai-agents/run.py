"""openai-agents: an agent with a tool, by Responses and by chat completions."""

import asyncio

import agents
import openai
import trials

agents.set_tracing_disabled(True)
calls: list[tuple[str, str]] = []


@agents.function_tool
def get_weather(city: str, thread_id: str) -> str:
    """The weather."""
    calls.append((city, thread_id))
    return "sunny"


def made(model: str, *tools: agents.Tool) -> list[agents.Agent]:
    client = openai.AsyncOpenAI(base_url=f"{trials.URL}/v1", api_key=trials.KEY)
    models = [
        agents.OpenAIResponsesModel(model=model, openai_client=client),
        agents.OpenAIChatCompletionsModel(model=model, openai_client=client),
    ]
    return [agents.Agent(name="helper", instructions="Be kind.", model=model, tools=list(tools)) for model in models]


async def tool() -> None:
    for agent in made(trials.MODEL, get_weather):
        calls.clear()
        answer = await agents.Runner.run(agent, trials.ASK_FOR_TOOL)
        trials.is_story(answer.final_output)
        assert len(calls) == 1, calls


async def stream() -> None:
    for agent in made(trials.MODEL):
        events = agents.Runner.run_streamed(agent, trials.ASK).stream_events()
        data = [event.data async for event in events if event.type == "raw_response_event"]
        trials.is_stream([each.delta for each in data if each.type == "response.output_text.delta"])


async def error() -> None:
    for agent in made(trials.LONG_MODEL):
        try:
            await agents.Runner.run(agent, trials.ASK)
        except openai.BadRequestError as problem:
            trials.is_too_long(problem, problem.status_code)
        else:
            raise ValueError("no error")


def blocking(trial):
    return lambda: asyncio.run(trial())


trials.run(tool=blocking(tool), stream=blocking(stream), error=blocking(error))
