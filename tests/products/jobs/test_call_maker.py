"""Calls of stored requests: the rule for the answer that a step of a pipeline brings with it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.core.call import Call
from gateway.core.errors import InvalidRequest
from gateway.core.snapshot import Policies
from gateway.features.output.service import RULE
from gateway.products.jobs.call_maker import CallMaker
from gateway.products.jobs.calls import StepOfRun, StoredRequest
from tests.support.flow import Bench, FakeClock

DECLARED = {"schema": {"type": "object"}, "on_invalid": {"retry": 2, "then": "pass"}}


async def made(output: dict[str, Any] | None, endpoint: str = "chat/completions", *, is_held: bool = False) -> Call:
    """The call of a step with this rule."""
    step = StepOfRun("run_1", "pipelines/p", "a", None, output)
    body = b'{"model":"m","messages":[],"input":"a"}'
    maker = CallMaker(Policies(Bench([]).policy), FakeClock())
    return await maker(
        StoredRequest("c", f"/v1/{endpoint}", body, (), "web", "web", "batch", 60.0, step=step, is_held=is_held)
    )


async def test_the_rule_of_a_step_is_that_of_its_call() -> None:
    rule = RULE.find(await made(DECLARED))

    assert rule is not None
    assert rule.schema is not None
    assert rule.schema.source == orjson.dumps(DECLARED["schema"])
    assert (rule.retry, rule.repair_with, rule.at_last, rule.stream) == (2, None, "pass", "relay")
    assert RULE.find(await made(None)) is None
    assert RULE.find(await made(DECLARED, "embeddings")) is None
    held = RULE.find(await made(DECLARED, is_held=True))
    assert held is not None
    assert (held.stream, held.retry) == ("buffer", 2)


async def test_a_schema_that_cannot_be_used_here_is_the_requests_fault() -> None:
    with pytest.raises(InvalidRequest, match="The schema of the step cannot be used here: it is no JSON Schema"):
        await made({"schema": {"type": 3}})


async def test_a_step_whose_answer_nobody_here_can_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than taken unchecked; one without a rule is served."""
    monkeypatch.setattr("gateway.products.jobs.call_maker.HAS_OUTPUT", False)

    with pytest.raises(InvalidRequest, match="not installed"):
        await made(DECLARED)
    assert (await made(None)).request.model_name == "m"
