"""Claude Code, by itself: a model that it knows and one that it does not, its own tools and those of a server, and an error."""

import json
import sys
from pathlib import Path

import trials

SERVERS = {
    "weather": {"command": sys.executable, "args": [str(Path(__file__).parent.parent / "tools_server.py")]},
}
VARIABLES = {
    "ANTHROPIC_BASE_URL": trials.URL,
    "ANTHROPIC_AUTH_TOKEN": trials.KEY,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": trials.MODEL,  # what it asks beside the conversation
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "ENABLE_TOOL_SEARCH": "false",  # a server's tools are there from the start
}
TOOL = "mcp__weather__get_weather"
KNOWN_MODEL = f"claude-sonnet-4-5-{trials.MODEL}"


def events_of(prompt: str, model: str, *options: str) -> list[dict]:
    form = ("--output-format", "stream-json", "--include-partial-messages", "--verbose")
    _, output = trials.output_of("claude", "-p", prompt, "--model", model, *form, *options, **VARIABLES)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def answer_of(events: list[dict]) -> str:
    """Returns the last words of a turn, which has to end well."""
    last = events[-1]
    if last.get("type") != "result" or last["is_error"]:
        raise ValueError(f"ended with {last}")
    trials.is_story(last["result"])
    return last["result"]


def tool() -> None:
    (Path.cwd() / "emulated").write_text("a file")
    events = events_of("Use Read now.", KNOWN_MODEL, "--tools", "Read")
    answer_of(events)
    messages = [event["message"] for event in events if event["type"] == "user"]
    if not any(block["type"] == "tool_result" for message in messages for block in message["content"]):
        raise ValueError("no result of a tool")


def stream() -> None:
    for model in (trials.MODEL, KNOWN_MODEL):
        events = events_of("Tell me a story.", model, "--tools", "")
        answer_of(events)
        steps = [event["event"] for event in events if event["type"] == "stream_event"]
        deltas = [step["delta"] for step in steps if step["type"] == "content_block_delta"]
        trials.is_stream([delta.get("text", "") for delta in deltas])


def error() -> None:
    last = events_of("Tell me a story.", trials.LONG_MODEL)[-1]
    if not last["is_error"]:
        raise ValueError(f"no error: {last}")
    trials.is_too_long(last["result"])


def server() -> None:
    settings = (
        "--tools",
        "",
        "--mcp-config",
        json.dumps({"mcpServers": SERVERS}),
        "--allowedTools",
        "mcp__weather__get_weather",
    )
    events = events_of("Use get_weather, which is mcp__weather__get_weather.", KNOWN_MODEL, *settings)
    answer_of(events)
    if "sunny, given city, thread_id" not in json.dumps(events):
        raise ValueError("no result of the server's tool")


trials.run(tool=tool, stream=stream, error=error, server=server)
