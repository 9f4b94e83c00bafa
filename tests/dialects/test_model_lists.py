"""Lists of models are asked for by the clock, once at a time, and a provider that does not tell changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any, cast

import pytest

from gateway.core.snapshot import Provider
from gateway.core.types import ErrorClass, Outgoing, Phase, Upstream, UpstreamFailed
from gateway.dialects import model_lists
from gateway.dialects.model_lists import EVERY_S, ModelLists
from tests.support.flow import FakeClock

CLAUDES = Provider("a", "anthropic", "https://a.example/v1", api_key="k", group="a", learns_models=True)
GEMINIS = Provider("g", "gemini", "https://g.example/v1beta", api_key="k", group="g", learns_models=True)
SILENT = Provider("s", "anthropic", "https://s.example/v1", api_key="k", group="s")


class Answered:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.whole = status, None
        self.body = body

    @property
    async def chunks(self) -> Any:
        yield self.body

    async def aclose(self) -> None:
        pass


class Lists:
    """Providers whose lists are scripted, one answer after the other."""

    errors = (ConnectionError,)

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, bytes]] = []
        self.is_held = asyncio.Event()
        self.is_held.set()

    def __call__(self, _provider: Provider, _model: str | None) -> Upstream:
        return cast("Upstream", self)

    async def send(self, outgoing: Outgoing) -> Any:
        self.asked.append((outgoing.path, outgoing.query))
        await self.is_held.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Answered(*answer) if isinstance(answer, tuple) else Answered(200, json.dumps(answer).encode())


def claude(most: int, **more: Any) -> dict[str, Any]:
    return {"data": [{"id": f"claude-{most}", "max_input_tokens": most}], **more}


async def ticked(lists: ModelLists, *providers: Provider) -> None:
    lists.tick(providers)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_is_told_is_known_and_asked_for_again_after_an_hour() -> None:
    """All pages of it; who is asked already is not asked a second time, and who does not want it never."""
    provider, clock = Lists(claude(1, has_more=True, last_id="claude-1"), claude(2), claude(3)), FakeClock()
    lists = ModelLists(provider, clock)
    provider.is_held.clear()

    await ticked(lists, CLAUDES, SILENT)
    await ticked(lists, CLAUDES, SILENT)
    assert len(provider.asked) == 1
    provider.is_held.set()
    await ticked(lists, CLAUDES, SILENT)

    assert provider.asked == [("/models", b"limit=1000"), ("/models", b"limit=1000&after_id=claude-1")]
    assert lists.listed.of("a", "claude-2") == {"max_input": 2}
    clock.advance(EVERY_S - 1)
    await ticked(lists, CLAUDES)
    assert len(provider.asked) == 2
    clock.advance(1)
    await ticked(lists, CLAUDES)
    assert (lists.listed.of("a", "claude-2"), lists.listed.of("a", "claude-3")) == ({}, {"max_input": 3})
    await lists.aclose()


async def test_a_list_that_does_not_come_changes_nothing_and_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again, ever more seldom; calls know what they knew."""
    monkeypatch.setattr(model_lists, "MOST_BYTES", 100)
    refused = UpstreamFailed(ErrorClass.CONNECTION, Phase.NOTHING_SENT, "no route")
    wrong = [refused, (503, b"{}"), (200, b"<html>"), (200, b"[]"), (200, b" " * 101), ConnectionError("cut")]
    provider, clock = Lists({"models": [{"name": "models/g", "inputTokenLimit": 7}]}, *wrong), FakeClock()
    lists = ModelLists(provider, clock)
    with caplog.at_level(logging.INFO, "gateway.models"):
        await ticked(lists, GEMINIS)
        for number, wait_s in enumerate((EVERY_S, 60, 120, 240, 480, 960), 1):
            clock.advance(wait_s - 1)
            await ticked(lists, GEMINIS)
            assert len(provider.asked) == number
            clock.advance(1)
            await ticked(lists, GEMINIS)
            assert len(provider.asked) == number + 1

    assert lists.listed.of("g", "g") == {"max_input": 7}
    assert [record.getMessage() for record in caplog.records] == [
        "provider g has told of 1 models, 1 of them new or changed",
        "provider g did not tell of its models: no route; what is known of them stays",
    ]
