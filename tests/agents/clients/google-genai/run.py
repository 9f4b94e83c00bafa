"""The google-genai SDK for Python."""

import trials
from google import genai
from google.genai import errors, types

client = genai.Client(api_key=trials.KEY, http_options=types.HttpOptions(base_url=trials.URL))
models = client.models
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters_json_schema": trials.WEATHER}


def tool() -> None:
    config = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[FUNCTION])])
    contents = [types.Content(role="user", parts=[types.Part(text=trials.ASK_FOR_TOOL)])]
    turn = models.generate_content(model=trials.MODEL, contents=contents, config=config)
    call = turn.function_calls[0]
    assert set(call.args) == {"city", "thread_id"}, call.args
    response = types.FunctionResponse(id=call.id, name=call.name, response={"output": "sunny"})
    contents += [turn.candidates[0].content, types.Content(role="user", parts=[types.Part(function_response=response)])]
    trials.is_story(models.generate_content(model=trials.MODEL, contents=contents, config=config).text)


def stream() -> None:
    chunks = models.generate_content_stream(model=trials.MODEL, contents=trials.ASK)
    trials.is_stream([chunk.text or "" for chunk in chunks])


def error() -> None:
    asked = {"model": trials.LONG_MODEL, "contents": trials.ASK}
    for call in (lambda: models.generate_content(**asked), lambda: list(models.generate_content_stream(**asked))):
        problem = trials.refused(call, errors.ClientError)
        trials.is_too_long(problem, problem.code)


trials.run(tool=tool, stream=stream, error=error)
