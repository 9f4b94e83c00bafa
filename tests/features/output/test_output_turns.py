"""Checks in a process of their own: one at a time, tenants in turn."""

from __future__ import annotations

import asyncio

import pytest

from gateway.drivers.json_schema import JsonSchema, compile_schema
from gateway.drivers.turns import MOST_WAITING
from gateway.features.output.judging import CheckerProcess, Judge
from gateway.features.output.rules import OutputResult, OutputText, Violation
from tests.drivers.test_turns import settle

SCHEMA = compile_schema(b'{"type": "object"}')
DEAR = '{"text": "' + "x" * 200_000 + '"}'


async def test_dear_texts_of_one_tenant_do_not_cost_another_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own beyond the bound are skipped at once; the other's is next."""
    checked: list[bytes] = []

    async def slow(self: CheckerProcess, schema: JsonSchema, text: bytes) -> Violation | None:
        checked.append(text)
        turn.set()
        await may_end.wait()
        return None

    monkeypatch.setattr(CheckerProcess, "_checked", slow)
    turn, may_end = asyncio.Event(), asyncio.Event()
    judge, text = Judge(), [OutputText(0, DEAR)]
    flood = [asyncio.ensure_future(judge.verdict(SCHEMA, text, 60.0, "a")) for _ in range(MOST_WAITING + 5)]
    await turn.wait()
    other = asyncio.ensure_future(judge.verdict(SCHEMA, [OutputText(0, DEAR + " ")], 60.0, "b"))
    await settle()
    may_end.set()

    assert (await other).result is OutputResult.VALID
    assert [text.endswith(b" ") for text in checked[:2]] == [False, True]
    told = [(await one).result for one in flood]
    assert (told.count(OutputResult.VALID), told.count(OutputResult.SKIPPED)) == (MOST_WAITING + 1, 4)
