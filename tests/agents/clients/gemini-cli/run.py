"""Gemini CLI, by itself: its own tools and those of a server, and an error."""

import json
import os
import sys
from pathlib import Path

import trials

SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "mcpServers": {
        "weather": {
            "command": sys.executable,
            "args": [str(Path(__file__).parent.parent / "tools_server.py")],
            "trust": True,
        }
    },
}
VARIABLES = {"GOOGLE_GEMINI_BASE_URL": trials.URL, "GEMINI_API_KEY": trials.KEY}


def output_of(prompt: str, model: str) -> str:
    options = ("--output-format", "stream-json", "--skip-trust")
    return trials.output_of("gemini", "-m", model, "-p", prompt, *options, **VARIABLES)[1]


def events_of(prompt: str, model: str) -> list[dict]:
    """Returns the events of a turn, which has to end well."""
    output = output_of(prompt, model)
    events = [json.loads(line) for line in output.splitlines() if line.startswith('{"type"')]
    if not events or events[-1]["type"] != "result" or events[-1]["status"] != "success":
        raise ValueError(f"ended with {events[-1:] or output[-300:]}")
    said = [event["content"] for event in events if event["type"] == "message" and event["role"] == "assistant"]
    trials.is_stream(said)
    return events


def tool() -> None:
    for model in (trials.MODEL, f"gemini-2.5-pro-{trials.MODEL}"):
        events = events_of("Use list_directory now.", model)
        if not any(event["type"] == "tool_result" for event in events):
            raise ValueError("no result of a tool")


def stream() -> None:
    events_of("Tell me a story.", trials.MODEL)


def error() -> None:
    trials.is_too_long(output_of("Tell me a story.", trials.LONG_MODEL))


def server() -> None:
    events = events_of("Use mcp_weather_get_weather, which is get_weather.", trials.MODEL)
    if "sunny, given city, thread_id" not in json.dumps(events):
        raise ValueError("no result of the server's tool")


folder = Path(os.environ["HOME"]) / ".gemini"
folder.mkdir()
(folder / "settings.json").write_text(json.dumps(SETTINGS))
trials.run(tool=tool, stream=stream, error=error, server=server)
