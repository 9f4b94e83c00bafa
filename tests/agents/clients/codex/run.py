"""Codex, by itself: a model that it knows and one that it does not, its own tools and those of a server, and an error."""

import json
import os
import sys
from pathlib import Path

import trials

HOME = Path(os.environ["HOME"])
CONFIG = f"""
model_provider = "gateway"

[model_providers.gateway]
name = "gateway"
base_url = "{trials.URL}/v1"
env_key = "GATEWAY_KEY"
wire_api = "responses"
"""
SERVER = f"""
[mcp_servers.weather]
command = "{sys.executable}"
args = ["{Path(__file__).parent.parent / "tools_server.py"}"]
default_tools_approval_mode = "approve"
"""


def events_of(prompt: str, model: str) -> list[dict]:
    _, output = trials.output_of("codex", "exec", "--skip-git-repo-check", "--json", "-m", model, prompt)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def items_of(prompt: str, model: str) -> dict[str, dict]:
    """Returns what a turn had, by its type; the turn has to end well, with an answer."""
    events = events_of(prompt, model)
    if events[-1]["type"] != "turn.completed":
        raise ValueError(f"ended with {events[-1]}")
    items = {event["item"]["type"]: event["item"] for event in events if event["type"] == "item.completed"}
    trials.is_story(items.get("agent_message", {}).get("text"))
    return items


def tool() -> None:
    for model in (trials.MODEL, f"gpt-5.5-{trials.MODEL}"):
        items = items_of("Use exec_command now.", model)
        if "command_execution" not in items:
            raise ValueError(f"no command: {list(items)}")


def stream() -> None:
    items_of("Tell me a story.", trials.MODEL)


def error() -> None:
    last = events_of("Tell me a story.", trials.LONG_MODEL)[-1]
    if last["type"] != "turn.failed":
        raise ValueError(f"ended with {last}")
    trials.is_too_long(last["error"]["message"])


def server() -> None:
    (HOME / ".codex" / "config.toml").write_text(CONFIG + SERVER)
    items = items_of("Use get_weather, which is mcp__weather__get_weather.", trials.MODEL)
    if "sunny, given city, thread_id" not in str(items.get("mcp_tool_call", {}).get("result")):
        raise ValueError(f"no result: {items}")
    items_of("Use tool_search now.", f"gpt-5.5-{trials.MODEL}")  # there servers' tools are looked for by their words


(HOME / ".codex").mkdir()
(HOME / ".codex" / "config.toml").write_text(CONFIG)
trials.run(tool=tool, stream=stream, error=error, server=server)
