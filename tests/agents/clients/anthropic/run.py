"""The anthropic SDK for Python."""

import anthropic
import trials

messages = anthropic.Anthropic(base_url=trials.URL, api_key=trials.KEY).messages
TOOLS = [{"name": "get_weather", "description": "The weather.", "input_schema": trials.WEATHER}]


def tool() -> None:
    history = [{"role": "user", "content": trials.ASK_FOR_TOOL}]
    turn = messages.create(model=trials.MODEL, max_tokens=500, messages=history, tools=TOOLS)
    call = next(block for block in turn.content if block.type == "tool_use")
    assert turn.stop_reason == "tool_use", turn.stop_reason
    assert set(call.input) == {"city", "thread_id"}, call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history += [{"role": "assistant", "content": turn.content}, {"role": "user", "content": [result]}]
    last = messages.create(model=trials.MODEL, max_tokens=500, messages=history, tools=TOOLS)
    trials.is_story(last.content[-1].text)


def stream() -> None:
    history = [{"role": "user", "content": trials.ASK}]
    with messages.stream(model=trials.MODEL, max_tokens=500, messages=history) as events:
        trials.is_stream(list(events.text_stream))


def error() -> None:
    asked = {"model": trials.LONG_MODEL, "max_tokens": 500, "messages": [{"role": "user", "content": trials.ASK}]}
    for call in (lambda: messages.create(**asked), lambda: list(messages.create(**asked, stream=True))):
        problem = trials.refused(call, anthropic.BadRequestError)
        trials.is_too_long(problem, problem.status_code)


trials.run(tool=tool, stream=stream, error=error)
