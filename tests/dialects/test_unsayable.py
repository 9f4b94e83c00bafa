"""Calls that cannot be put into the language that a target turned out to speak: the others of the plan serve them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.core.errors import InvalidRequest
from gateway.core.limits.limit_table import Limits
from gateway.core.openai.bodies import Large, needs_of
from gateway.core.snapshot import Model, Target
from gateway.core.types import Skip
from gateway.dialects.target_languages import TargetLanguages
from gateway.dialects.upstream import Converting
from tests.support.flow import RESPONSES, Bench, Script, ScriptedUpstream, whole

REFUSED = {"model": "m", "input": "hi", "conversation": "conv_1"}
"""Chat completions have no word for conversations."""
PLAIN = {"model": "m", "input": "hi"}
SAID = b'{"id": "r", "object": "response", "status": "completed", "output": [], "model": "m"}'
IN_CHAT = b'{"id": "c", "model": "m", "choices": [{"index": 0, "message": {"content": "so"}, "finish_reason": "stop"}]}'
UNKNOWN = Script(404, (), [b'{"detail": "Not Found"}'])
BROKEN = b'{"error": {"message": "no", "type": "server_error", "param": null, "code": null}}'

PASSED = {"p0/m": Skip("p0/m", "unsupported", 0)}
"""What a call notes of the first target."""


class Plan(Bench):
    """Targets of which those in `learns` are asked for another language where they do not know a path."""

    def __init__(
        self,
        *scripts: list[Script],
        learns: tuple[int, ...] = (0,),
        speaks: frozenset[str] | None = None,
        **options: Any,
    ) -> None:
        self.learns, self.speaks = learns, speaks
        super().__init__([ScriptedUpstream(*one) for one in scripts], **options)

    def _model(self) -> Model:
        model = super()._model()
        by_name = {one.name: self._around(one, number) for number, one in enumerate(model.plan)}
        return replace(
            model,
            targets=tuple(by_name[one.name] for one in model.targets),
            plan=tuple(by_name[one.name] for one in model.plan),
        )

    def _around(self, target: Target, number: int) -> Target:
        if number not in self.learns:
            return target
        learned: dict[str, float] | None = {} if self.speaks is None else None
        spoken = TargetLanguages("other", self.speaks)
        around = Converting(target.upstream, spoken, self.clock, lambda: "abc", learned=learned)
        return replace(target, converters_by_path=around.converters_by_path, on_unknown_path=around.on_unknown_path)

    async def ask(self, body: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """Returns what the caller of Responses gets."""
        given = {"endpoint": RESPONSES, "path": "/responses", "body": orjson.dumps(body)} | changes
        answer: dict[str, Any] = orjson.loads((await self.serve(**given))[1])
        return answer

    def paths(self) -> list[list[str]]:
        """Returns what each target was asked for."""
        return [[one.path.rpartition("/")[2] for one in upstream.sent] for upstream in self.upstreams]

    def ledgers(self) -> list[list[str]]:
        """Returns the attempts of the calls."""
        return [[str(attempt) for attempt in account.call.attempts] for account in self.meter.accounts]


async def test_who_turns_out_not_to_understand_is_passed_over() -> None:
    """For as long as that is known; calls that can be said go there."""
    plan = Plan(
        [UNKNOWN, whole(IN_CHAT), whole(IN_CHAT)], [whole(SAID), whole(SAID)], limits=[Limits(requests_per_min=2)]
    )

    await plan.ask(PLAIN)
    for _ in range(2):
        assert (await plan.ask(REFUSED))["id"] == "r"

    assert plan.paths() == [["responses", "completions"], ["responses", "responses"]]  # nothing was sent in vain
    assert plan.ledgers() == [["p0/m:200"], ["p1/m:200"], ["p1/m:200"]]
    assert [account.call.skips for account in plan.meter.accounts] == [None, PASSED, PASSED]
    await plan.ask(PLAIN)  # nothing of its limit was used for the others
    assert plan.meter.accounts[-1].call.queue_s == 0.0
    assert plan.ledgers()[-1] == ["p0/m:200"]


async def test_the_call_that_learns_goes_on_too() -> None:
    """What it cannot be told in its language, the next one is; a fallback, if there is no other."""
    plan = Plan([UNKNOWN], [whole(SAID)], fallbacks=1)

    assert (await plan.ask(REFUSED))["id"] == "r"
    assert plan.paths() == [["responses"], ["responses"]]
    assert plan.account.call.skips == PASSED


async def test_a_call_that_nobody_understands_is_told_so() -> None:
    """With the field, when everybody was asked."""
    plan = Plan([UNKNOWN], [UNKNOWN], learns=(0, 1))

    with pytest.raises(InvalidRequest, match="cannot serve 'conversation'") as refused:
        await plan.ask(REFUSED)

    assert (refused.value.param, refused.value.code) == ("conversation", "unsupported_by_targets")
    assert plan.paths() == [["responses"], ["responses"]]
    assert plan.account.outcome == "unsupported_by_targets"


@pytest.mark.parametrize("first", [0, 1])
async def test_who_has_failed_has_the_say(first: int) -> None:
    """That somebody else would not have understood is no news."""
    scripts = [[UNKNOWN], [whole(BROKEN, 500)]]
    plan = Plan(*(scripts if first == 0 else scripts[::-1]), learns=(first,))

    assert (await plan.ask(REFUSED))["error"]["message"] == "no"
    assert sorted(map(len, plan.paths())) == [1, 1]


async def test_a_large_call_finds_out_at_the_target() -> None:
    """Its body was not read before, although it is known what the target speaks."""
    plan = Plan([], [whole(SAID)], speaks=frozenset(("chat",)))
    large = Large(tokens=1, needs=needs_of({}, 1))

    assert (await plan.ask(REFUSED, large=large))["id"] == "r"
    assert plan.paths() == [[], ["responses"]]
    assert plan.account.call.skips == PASSED


LOSSY = {"model": "m", "input": "hi", "truncation": "auto"}


@pytest.mark.parametrize("is_large", [False, True])
async def test_a_call_that_may_lose_nothing_goes_where_it_can_be_said(is_large: bool) -> None:
    """Whether its body was looked at before, or only by the target's own conversion."""
    plan = Plan([whole(IN_CHAT), whole(IN_CHAT)], [whole(SAID)], speaks=frozenset(("chat",)))
    large = Large(tokens=1, needs=needs_of({}, 1)) if is_large else None
    strict = replace(plan.policy.models["m"], on_loss="refuse")

    assert (await plan.ask(LOSSY, large=large, model=strict))["id"] == "r"
    await plan.ask(LOSSY, large=large)
    await plan.ask(PLAIN, large=large, model=strict)  # of which nothing is lost
    assert plan.paths() == [["completions", "completions"], ["responses"]]
