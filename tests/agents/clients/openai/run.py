"""The openai SDK for Python: each trial by chat completions and by Responses."""

import json

import openai
import trials

client = openai.OpenAI(base_url=f"{trials.URL}/v1", api_key=trials.KEY)
chat, responses = client.chat.completions, client.responses
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": trials.WEATHER}


def tool() -> None:
    messages = [{"role": "user", "content": trials.ASK_FOR_TOOL}]
    tools = [{"type": "function", "function": FUNCTION}]
    turn = chat.create(model=trials.MODEL, messages=messages, tools=tools, tool_choice="auto").choices[0].message
    arguments = json.loads(turn.tool_calls[0].function.arguments)
    assert set(arguments) == {"city", "thread_id"}, arguments
    result = {"role": "tool", "tool_call_id": turn.tool_calls[0].id, "content": "sunny"}
    messages += [turn.model_dump(exclude_none=True), result]
    trials.is_story(chat.create(model=trials.MODEL, messages=messages, tools=tools).choices[0].message.content)

    given = [{"role": "user", "content": trials.ASK_FOR_TOOL}]
    tools = [{"type": "function", "strict": True, **FUNCTION}]
    metadata = {"thread_id": "01a2"}
    answer = responses.create(model=trials.MODEL, input=given, tools=tools, metadata=metadata, store=False)
    call = next(item for item in answer.output if item.type == "function_call")
    given += [item.model_dump(exclude_none=True) for item in answer.output]
    given.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    trials.is_story(responses.create(model=trials.MODEL, input=given, tools=tools, store=False).output_text)


def stream() -> None:
    messages = [{"role": "user", "content": trials.ASK}]
    with chat.create(model=trials.MODEL, messages=messages, stream=True) as chunks:
        trials.is_stream([chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices])
    with responses.create(model=trials.MODEL, input=trials.ASK, stream=True) as events:
        trials.is_stream([event.delta for event in events if event.type == "response.output_text.delta"])


def error() -> None:
    messages = [{"role": "user", "content": trials.ASK}]
    for call in (
        lambda: chat.create(model=trials.LONG_MODEL, messages=messages),
        lambda: list(chat.create(model=trials.LONG_MODEL, messages=messages, stream=True)),
        lambda: responses.create(model=trials.LONG_MODEL, input=trials.ASK),
        lambda: list(responses.create(model=trials.LONG_MODEL, input=trials.ASK, stream=True)),
    ):
        problem = trials.refused(call, openai.BadRequestError)
        trials.is_too_long(problem, problem.status_code)


trials.run(tool=tool, stream=stream, error=error)
