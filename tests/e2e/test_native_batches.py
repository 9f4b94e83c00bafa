"""Batches at half price over the wire: the official SDK, a real gateway, and a provider with a Batch API of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.emulator.config import EmulatorConfig
from tests.e2e.batches import begin, check_end, end_of, files_of, line, names
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import policies, with_jobs
from tests.e2e.harness import PROVIDER_KEY

NATIVE = {"batches": {"run": "native", "native": {"min_lines": 10, "part_lines": 20}}}
PRICE = {"input_usd_per_million": 1000, "output_usd_per_million": 2000}


def at(dialect: str, **provider: Any) -> dict[str, Any]:
    """Sections with one provider of a dialect, whose model has another name there."""
    return {
        "providers": {"main": {"dialect": dialect, "api_key": PROVIDER_KEY, **provider}},
        "models": {"renamed": {"targets": [{"provider": "main", "model": "gpt-4o-mini", "price": PRICE}]}},
    }


@pytest.mark.parametrize(
    ("dialect", "version"), [("openai", None), ("azure", None), ("azure", "2025-04-01-preview")], ids=str
)
async def test_a_batch_at_half_price(start: StartGateway, tmp_path: Path, dialect: str, version: str | None) -> None:
    """The owner sees a batch like any other; the provider sees batches of its own, no calls, and keeps nothing."""
    more = {"api_version": version} if version else {}

    def config(url: str) -> Any:
        base_url = url if dialect == "openai" else url.removesuffix("/v1")
        sections = at(dialect, base_url=base_url, **more)
        return with_jobs(tmp_path, policies=policies(tmp_path, jobs=NATIVE), **sections)(url)

    emulated = EmulatorConfig(batch_s=0, dialect=dialect, api_key=PROVIDER_KEY)
    gateway = await start(config, emulator=emulated)
    custom_ids = [*names(49), "über-lines"]
    async with gateway.sdk() as sdk:
        made = await begin(sdk, [line(name, "renamed") for name in custom_ids])
        done = await end_of(sdk, made.id)
        await check_end(sdk, done, custom_ids)
    provider = gateway.emulator.emulator

    assert (done.status, len(provider.batches.batches)) == ("completed", 3)
    assert len(provider.batches.served) == sum(provider.batches.served.values()) == 50
    assert {one["metadata"]["gateway_part"].split("-")[0] for one in provider.batches.batches.values()} == {made.id}
    assert provider.stats.endpoints["chat/completions"] == 0
    assert provider.batches.files == {}
    assert done.usage is not None
    assert done.usage.output_tokens == 50 * 60


ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20},
    "responses": {"input": "hi", "max_output_tokens": 20, "instructions": "Be kind."},
}


@pytest.mark.parametrize("endpoint", ASKED)
async def test_lines_go_to_message_batches_whatever_their_language(
    start: StartGateway, tmp_path: Path, endpoint: str
) -> None:
    """Answers and errors are those of a call to the endpoint; what cannot be said to Claude runs here, and fails as a call."""

    def config(url: str) -> Any:
        sections = at("anthropic", base_url=url)
        sections["models"]["renamed"]["targets"][0] |= {"model": "claude-opus-4-5", "body": {"set": {"top_k": 5}}}
        return with_jobs(tmp_path, policies=policies(tmp_path, jobs=NATIVE), **sections)(url)

    gateway = await start(config, emulator=EmulatorConfig(batch_s=0, api_key=PROVIDER_KEY, recorded_requests=50))
    lines: list[dict[str, Any]] = [
        {"custom_id": name, "method": "POST", "url": f"/v1/{endpoint}", "body": {"model": "renamed", **ASKED[endpoint]}}
        for name in names(25)
    ]
    bound = "max_output_tokens" if endpoint == "responses" else "max_tokens"
    lines[3]["body"][bound] = -1
    if endpoint == "chat/completions":
        lines[5]["body"]["seed"] = 7
    lines[4]["body"].update({"n": 3} if endpoint == "chat/completions" else {})
    async with gateway.sdk() as sdk:
        done = await end_of(sdk, (await begin(sdk, lines, endpoint=f"/v1/{endpoint}")).id)
        files = await files_of(sdk, done)
    provider = gateway.emulator.emulator
    books = provider.message_batches

    refused = {"line-3", "line-4"} if endpoint == "chat/completions" else {"line-3"}
    assert {one["custom_id"] for one in files.errors} == refused
    assert {one["custom_id"] for one in files.output} == {*names(25)} - refused
    kinds = {one["response"]["body"].get("object", one["response"]["body"].get("type")) for one in files.output}
    assert kinds == {{"chat/completions": "chat.completion", "messages": "message", "responses": "response"}[endpoint]}
    assert {one["response"]["body"].get("type") for one in files.errors} == {
        "error" if endpoint == "messages" else None
    }
    assert {one["response"]["status_code"] for one in files.errors} == {400}
    assert (books.made, books.batches) == (2, {})
    assert sum(books.served.values()) == len(books.served) == 26 - len(refused)
    assert provider.stats.endpoints["messages"] == 0
    sent = [orjson.loads(one.body) for one in provider.recorder._kept if one.method == "POST"]
    assert {one["params"]["top_k"] for batch in sent for one in batch["requests"]} == {5}
    labels = {"target": "main/claude-opus-4-5", "field": "seed", "how": "dropped"}
    lost = gateway.gateway.registry.get_sample_value("gateway_lossy_fields_total", labels)
    assert lost == (1 if endpoint == "chat/completions" else None)
    assert done.usage is not None
    assert done.usage.output_tokens == 20 * len(files.output)


async def test_what_a_provider_does_not_take_runs_here(start: StartGateway, tmp_path: Path) -> None:
    """Such as where the credential is another one for batches; its owner does not notice."""
    split = {"batches": {"run": "native", "native": {"min_lines": 10, "split": {"side": 1}}}}
    targets = [{"provider": "main", "model": "gpt-4o"}, {"provider": "side", "model": "gpt-4o"}]

    def config(url: str) -> Any:
        main = {"dialect": "openai", "base_url": url, "api_key": PROVIDER_KEY}
        sections = {
            "providers": {"main": main, "side": {**main, "api_key": "sk-another-key-0123456789abcdef"}},
            "models": {"gpt-4o": {"targets": targets}},
        }
        return with_jobs(tmp_path, policies=policies(tmp_path, jobs=split), **sections)(url)

    gateway = await start(config, emulator=EmulatorConfig(batch_s=0, api_key=PROVIDER_KEY))
    custom_ids = names(12)
    async with gateway.sdk() as sdk:
        done = await end_of(sdk, (await begin(sdk, [line(name) for name in custom_ids])).id)
        await check_end(sdk, done, custom_ids)

    provider = gateway.emulator.emulator
    assert (done.status, provider.batches.files, provider.batches.batches) == ("completed", {}, {})
    assert provider.stats.endpoints["chat/completions"] == 12


async def test_a_batch_follows_the_set_of_its_only_model(start: StartGateway, tmp_path: Path) -> None:
    """One whose lines name several models goes by `default`, since no set is more its own than another."""
    place = policies(tmp_path, jobs={})
    (tmp_path / "policies" / "jobs.yaml").write_text(yaml.safe_dump({"half": NATIVE}))

    def config(url: str) -> Any:
        sections = at("openai", base_url=url)
        halved = {**sections["models"]["renamed"], "jobs": "half"}
        return with_jobs(tmp_path, policies=place, **{**sections, "models": {**sections["models"], "halved": halved}})(
            url
        )

    gateway = await start(config, emulator=EmulatorConfig(batch_s=0, api_key=PROVIDER_KEY))
    provider, custom_ids, calls = gateway.emulator.emulator, names(20), []
    async with gateway.sdk() as sdk:
        for others in ("halved", "renamed"):
            lines = [line(name, "halved" if number % 2 else others) for number, name in enumerate(custom_ids)]
            done = await end_of(sdk, (await begin(sdk, lines)).id)
            await check_end(sdk, done, custom_ids)
            calls.append((len(provider.batches.served), provider.stats.endpoints["chat/completions"]))

    assert calls == [(20, 0), (20, 20)]
