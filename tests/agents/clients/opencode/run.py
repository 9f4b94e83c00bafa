"""opencode, by itself: a server's tool by each of three providers of the AI SDK, and an error; it streams in any case."""

import json
import sys
from pathlib import Path

import trials

PACKAGES = {"chat": "@ai-sdk/openai-compatible", "responses": "@ai-sdk/openai", "messages": "@ai-sdk/anthropic"}
MODELS = {trials.MODEL: {}, trials.LONG_MODEL: {}}
CONFIG = {
    "autoupdate": False,
    "share": "disabled",
    "small_model": f"chat/{trials.MODEL}",
    "permission": {"*": "allow"},
    "provider": {
        name: {"npm": package, "options": {"baseURL": f"{trials.URL}/v1", "apiKey": trials.KEY}, "models": MODELS}
        for name, package in PACKAGES.items()
    },
    "mcp": {
        "weather": {
            "type": "local",
            "command": [sys.executable, str(Path(__file__).parent.parent / "tools_server.py")],
            "enabled": True,
        }
    },
}
VARIABLES = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}


def events_of(prompt: str, model: str) -> list[dict]:
    _, output = trials.output_of("opencode", "run", "--format", "json", "-m", model, prompt, **VARIABLES)
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"type"')]


def answer_of(events: list[dict]) -> str:
    return "".join(event["part"]["text"] for event in events if event["type"] == "text")


def server() -> None:
    for provider in PACKAGES:
        events = events_of("Use weather_get_weather now.", f"{provider}/{trials.MODEL}")
        trials.is_story(answer_of(events))
        if "sunny, given city, thread_id" not in json.dumps(events):
            raise ValueError(f"no result of the server's tool by {provider}")


def error() -> None:
    events = events_of("Tell me a story.", f"responses/{trials.LONG_MODEL}")
    trials.is_too_long(json.dumps([event for event in events if event["type"] == "error"]))


Path("opencode.json").write_text(json.dumps(CONFIG))
trials.run(server=server, error=error)
