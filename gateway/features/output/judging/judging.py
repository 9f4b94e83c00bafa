"""The verdict on the texts of an answer: at once where that is quick, by a process of its own where it is not."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from gateway.core.call import Call
from gateway.core.openai.sse.sse import json_object
from gateway.features.output.judging.apart import CheckerProcess, CheckFailed
from gateway.features.output.rules.answers import OutputText
from gateway.features.output.rules.check import violation_of
from gateway.features.output.rules.rules import CHECKED, OutputResult, OutputRule, Violation
from gateway.features.output.schema.schema import INLINE_BYTES, MOST_BYTES, OutputSchema, SchemaUnusable, compile_schema

MOST_SCHEMAS = 256
MOST_SCHEMA_BYTES = 2 * 1024 * 1024
"""Of all callers' schemas that are remembered."""
MOST_BODY = 1_048_576
"""Bytes of a request or an answer that is read in one piece, in a few milliseconds; nothing is looked for in larger ones."""


class BadText(NamedTuple):
    """A text that breaks the rule, and where."""

    text: OutputText
    violation: Violation


class OutputVerdict(NamedTuple):
    """What the check of one answer says: `valid`, `invalid` (then `bad` has why), `refused` or `skipped`."""

    result: OutputResult
    bad: Sequence[BadText] = ()


class Schemas:
    """The callers' own schemas, compiled; the least recently used go first."""

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, OutputSchema | None]] = OrderedDict()
        self._bytes = 0

    def of(self, call: Call, rule: OutputRule) -> OutputSchema | OutputResult | None:
        """Returns the schema of the call's answer; None: there is none; `skipped`: there is one, which cannot be used here."""
        if call.endpoint.name not in CHECKED:
            return None
        if rule.schema is not None:
            return rule.schema
        if b"json_schema" not in call.body:
            return None
        parsed = None if call.large is not None else call.parsed
        if parsed is None and len(call.body) <= MOST_BODY:
            parsed = json_object(call.body)
        asked = None if parsed is None else _asked_schema(call.endpoint.name, parsed)
        if parsed is not None and asked is None:
            return None
        schema = None if asked is None else self._compiled(asked)
        return OutputResult.SKIPPED if schema is None else schema

    def _compiled(self, asked: Any) -> OutputSchema | None:
        try:
            source = orjson.dumps(asked)
        except TypeError:
            return None  # too deep
        if len(source) > MOST_BYTES:
            return None
        name = sha256(source).digest()
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known[1]
        try:
            schema = compile_schema(source)
        except SchemaUnusable:
            schema = None
        self._known[name] = len(source), schema
        self._bytes += len(source)
        while len(self._known) > MOST_SCHEMAS or self._bytes > MOST_SCHEMA_BYTES:
            _, (size, _gone) = self._known.popitem(last=False)
            self._bytes -= size
        return schema


def _asked_schema(endpoint: str, parsed: dict[str, Any]) -> Any:
    """Returns the schema that a request names; None: it names none."""
    if endpoint == "responses":
        text = parsed.get("text")
        asked = text.get("format") if isinstance(text, dict) else None
        inner = asked
    elif endpoint == "messages":
        config = parsed.get("output_config")
        inner = asked = config.get("format") if isinstance(config, dict) else None
    else:
        asked = parsed.get("response_format")
        inner = asked.get("json_schema") if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or asked.get("type") != "json_schema" or not isinstance(inner, dict):
        return None
    return inner.get("schema")


class Judge:
    """Gives verdicts. One per process."""

    __slots__ = ("_apart",)

    def __init__(self) -> None:
        self._apart = CheckerProcess()

    async def verdict(
        self, schema: OutputSchema, texts: Sequence[OutputText] | None, within_s: float, tenant: str
    ) -> OutputVerdict:
        """Returns the verdict, after `within_s` seconds at the latest: what takes or waits longer is skipped."""
        at_once = self.verdict_at_once(schema, texts)
        if at_once is not None:
            return at_once
        try:
            async with asyncio.timeout(within_s):
                return await self._verdict(schema, [one for one in texts or () if one.excuse is None], tenant)
        except (CheckFailed, TimeoutError):
            return OutputVerdict(OutputResult.SKIPPED)

    async def _verdict(self, schema: OutputSchema, texts: Sequence[OutputText], tenant: str) -> OutputVerdict:
        bad: list[BadText] = []
        for one in texts:
            text = one.text.encode("utf-8", "surrogatepass")
            if schema.is_dear(text):
                violation = await self._apart.violation(schema, text, tenant)
            else:
                violation = violation_of(schema, text)
                await asyncio.sleep(0)  # an answer may have many choices: others have their turn between
            if violation is not None:
                bad.append(BadText(one, violation))
        return OutputVerdict(OutputResult.INVALID, bad) if bad else OutputVerdict(OutputResult.VALID)

    def verdict_at_once(self, schema: OutputSchema, texts: Sequence[OutputText] | None) -> OutputVerdict | None:
        """Returns the verdict; None: it would take long."""
        if not texts:
            return OutputVerdict(OutputResult.SKIPPED)
        asked = [one for one in texts if one.excuse is None]
        if not asked:
            is_refused = any(one.excuse is OutputResult.REFUSED for one in texts)
            return OutputVerdict(OutputResult.REFUSED if is_refused else OutputResult.SKIPPED)
        written = [one.text.encode("utf-8", "surrogatepass") for one in asked]
        if sum(map(len, written)) > INLINE_BYTES or any(map(schema.is_dear, written)):
            return None
        found = [(one, violation_of(schema, text)) for one, text in zip(asked, written, strict=True)]
        bad = [BadText(one, violation) for one, violation in found if violation is not None]
        return OutputVerdict(OutputResult.INVALID, bad) if bad else OutputVerdict(OutputResult.VALID)
