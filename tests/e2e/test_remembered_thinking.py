"""A model that thinks and a client that drops it, over the wire: the openai SDK, a real gateway, a server of Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from tests.dialects.claude import OTHER, TOOL
from tests.dialects.test_remembered import CONTENT, SAID, events
from tests.e2e.anthropic_server import AnthropicServer
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Running, config_of, until

GO: dict[str, Any] = {"role": "user", "content": "go"}


async def _reload(gateway: Running) -> None:
    """Puts a config in force that is another one."""
    before = gateway.gateway._reloading.last
    gateway.write_config(gateway.config_path.read_text().replace("sk-ant-ours", "sk-ant-ours-2"))
    gateway.gateway.reload()
    await until(lambda: gateway.gateway._reloading.last is not before)


async def test_turns_go_back_over_a_restart_with_a_state(start: StartGateway, tmp_path: Path) -> None:
    """What one process was told, the next one finds in the file."""
    async with AnthropicServer() as server:

        def config(url: str) -> Mapping[str, Any]:
            made = config_of(url)
            made["providers"]["ant"] = {"dialect": "anthropic", "base_url": server.url, "api_key": "sk-ant-ours"}
            return made | {
                "models": {"claude": {"targets": ["ant/claude-x"]}},
                "state": f"sqlite:///{tmp_path}/state.db",
            }

        server.script += [(200, SAID | {"content": CONTENT}), (200, SAID)]
        asked: dict[str, Any] = {"model": "claude", "tools": [TOOL, OTHER]}
        first = await start(config)
        async with first.sdk() as sdk:
            said = (await sdk.chat.completions.create(**asked | {"messages": [GO]})).choices[0].message
        await first.stop()
        calls = [one.model_dump(include={"id", "type", "function"}) for one in said.tool_calls or ()]
        message = {"role": "assistant", "content": said.content, "tool_calls": calls}
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in calls]
        second = await start(config)
        async with second.sdk() as sdk:
            await sdk.chat.completions.create(**asked | {"messages": [GO, message, *results]})
        await second.idle()

    sent = orjson.loads(server.seen[1][2])["messages"]
    assert [one["content"] for one in sent if one["role"] == "assistant"] == [CONTENT]


async def test_turns_go_back_over_a_reload(start: StartGateway) -> None:
    """As they came, streamed or not; a model that is told to remembers nothing."""
    async with AnthropicServer() as server:

        def config(url: str) -> Mapping[str, Any]:
            made = config_of(url)
            made["providers"]["ant"] = {"dialect": "anthropic", "base_url": server.url, "api_key": "sk-ant-ours"}
            target = {"targets": ["ant/claude-x"]}
            made["models"] = {"claude": target, "plain": target | {"remember_thinking": False}}
            return made

        gateway = await start(config)
        async with gateway.sdk() as sdk:
            for model in ("claude", "plain"):
                server.script.append((200, events(CONTENT)))
                server.script += [(200, SAID), (200, SAID)]
                asked: dict[str, Any] = {"model": model, "tools": [TOOL, OTHER], "messages": [GO]}
                async with sdk.chat.completions.stream(**asked) as stream:
                    said = (await stream.get_final_completion()).choices[0].message
                calls = [one.model_dump(include={"id", "type", "function"}) for one in said.tool_calls or ()]
                for call in calls:
                    call["function"].pop("parsed_arguments", None)
                message = {"role": "assistant", "content": said.content, "tool_calls": calls}
                results = [{"role": "tool", "tool_call_id": one["id"], "content": "ok"} for one in calls]
                await sdk.chat.completions.create(**{**asked, "messages": [GO, message, *results]})
                await _reload(gateway)
                await sdk.chat.completions.create(**{**asked, "messages": [GO, message, *results]})
        await gateway.idle()
        count = gateway.gateway.registry.get_sample_value
        bodies = [orjson.loads(body) for _, _, body in server.seen]

    turns = [one["content"] for body in bodies for one in body["messages"] if one["role"] == "assistant"]
    assert [[one["type"] for one in turn] for turn in turns[2:]] == [["text", "tool_use", "tool_use"]] * 2
    assert turns[:2] == [CONTENT, CONTENT]
    assert count("gateway_remembered_thinking_total", {"result": "hit"}) == 2
    assert (count("gateway_remembered_thinking_bytes") or 0) > len(orjson.dumps(CONTENT))
