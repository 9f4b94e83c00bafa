"""Answers that break their schema: sent again, repaired, refused or passed, and what that costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.balancing import Backoff, Hedging, Retries
from gateway.core.call import Call, CallRoute, Reply
from gateway.core.errors import DeadlineExceeded, GatewayError, InvalidRequest
from gateway.core.limits.bucket import Cost
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Key, Model, Rates, Target
from gateway.core.telemetry import JsonLines
from gateway.dialects.endpoints import EMBEDDINGS
from gateway.drivers.json_schema import compile_schema
from gateway.features.output.rules import AtLast, OutputRule
from gateway.features.output.service import CHECK, OutputInvalid, Outputs, set_rule
from gateway.features.reuse.rules import Caching, ExactRule
from tests.support.flow import (
    CHAT,
    CLOCKS,
    ERRORS,
    RESPONSES,
    Bench,
    Broken,
    Script,
    ScriptedUpstream,
    failed,
    streamed,
    whole,
)

SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}
RULE = OutputRule(compile_schema(orjson.dumps(SCHEMA)))
GOOD, BAD, WORSE = '{"total": 1}', '{"total": "secret"}', '{"sum": 1}'
AT_ONCE = Retries(by_cost=(), backoff=Backoff(has_jitter=False, base_s=0.0))
CHEAP = Rates(input_usd=1e-6, output_usd=1e-6, cached_input_usd=1e-6)
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def answer(text: str, finish: str = "stop", used: tuple[int, int] = (100, 10), **message: object) -> bytes:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": used[0], "completion_tokens": used[1], "total_tokens": sum(used)}
    return orjson.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage})


def events(text: str, *, usage: bool = True, done: bool = True) -> list[bytes]:
    """The same as a stream, in two pieces."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    half = len(text) // 2
    told: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text[:half]}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": text[half:]}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    if usage:
        told.append({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}})
    frames = [b"data: " + orjson.dumps(head | one) + b"\n\n" for one in told]
    return [*frames, b"data: [DONE]\n\n"] if done else frames


@dataclass
class OutputBench(Bench):
    """A bench whose policy has a second model, `helper`, for repairs; its calls may be made with a rule, `output`."""

    repairs: Sequence[Script] = ()
    helper: ScriptedUpstream = field(init=False)
    retries: Retries = AT_ONCE

    def __post_init__(self) -> None:
        self.helper = ScriptedUpstream(*self.repairs)
        super().__post_init__()
        target = Target(
            "h/big", "h", "big", self.helper, CLOCKS, errors=ERRORS, account="h", find_rates=lambda _model: CHEAP
        )
        helper = Model("helper", (target,), (target,), retries=self.retries)
        self.policy = replace(self.policy, models={**self.policy.models, "helper": helper})
        self.admission.install(self.policy)

    @property
    def outputs(self) -> list[tuple[str, ...]]:
        """The model and the result of each check, those of one kind together."""
        totals = self.product(Outputs).metrics.output_checks.totals
        return [(model, str(result)) for (model, result), number in totals.items() for _ in range(int(number))]

    def call(self, **changes: object) -> Call:
        rule: Any = changes.pop("output", None)
        call = super().call(**changes)
        if rule is not None:
            set_rule(call, rule)
        return call


def bench_of(*scripts: Script, repairs: Sequence[Script] = (), **changes: Any) -> OutputBench:
    return OutputBench([ScriptedUpstream(*scripts)], repairs=repairs, **changes)


def text_of(body: bytes) -> str:
    content: str = orjson.loads(body)["choices"][0]["message"]["content"]
    return content


def output_of(reply: Reply) -> bytes | None:
    return dict(reply.headers).get(b"x-gateway-output")


async def test_a_good_answer_passes_untouched_and_is_counted() -> None:
    bench = bench_of(whole(answer(GOOD)))
    reply, body = await bench.serve(output=RULE, body=BODY)
    assert (body, output_of(reply)) == (answer(GOOD), b"valid")
    assert bench.outputs == [("m", "valid")]
    assert (bench.account.outcome, bench.account.call.attempts[0].error_class) == ("ok", None)


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (answer(BAD, "length"), "skipped"),
        (answer("", "tool_calls", tool_calls=[{"id": "t"}]), "skipped"),
        (answer("", refusal="I will not"), "refused"),
        (answer("", "content_filter"), "refused"),
    ],
)
async def test_what_is_no_violation_passes(given: bytes, result: str) -> None:
    bench = bench_of(whole(given))
    reply, body = await bench.serve(output=replace(RULE, retry=3), body=BODY)
    assert (body, output_of(reply)) == (given, result.encode())
    assert bench.outputs == [("m", result)]


async def test_the_log_line_names_the_result_and_the_rule_that_an_answer_broke() -> None:
    """Of a call whose answer is not checked it says nothing."""

    async def line(*scripts: Script, **changes: object) -> dict[str, Any]:
        bench = bench_of(*scripts)
        await bench.serve(body=BODY, **changes)
        logged: dict[str, Any] = orjson.loads(JsonLines({}).line(0.0, bench.account))
        return {name: value for name, value in logged.items() if name.startswith("output") and name != "output_tokens"}

    assert await line(whole(answer(GOOD)), output=RULE) == {"output": "valid"}
    retried = await line(whole(answer(BAD)), whole(answer(GOOD)), output=replace(RULE, retry=1))
    assert retried == {"output": "retried", "output_rule": "rule `type` at `/total`"}
    assert await line(whole(answer(GOOD)), output=OutputRule()) == {}
    assert await line(whole(answer(GOOD))) == {}


def test_it_costs_nothing_where_nobody_can_have_asked_for_it() -> None:
    """Calls of clients to a model without a rule; whoever makes a call inside the process may give it one."""
    bench = bench_of()
    route = CallRoute(bench.policy, Key("web", "web", b""), bench.policy.models["m"], CHAT, False)
    internal = replace(route, is_internal=True)
    outputs = bench.product(Outputs)
    assert outputs is not None
    assert outputs.for_route(route, frozenset()) is None
    assert outputs.for_route(internal, frozenset()) is outputs
    assert outputs.for_route(replace(internal, endpoint=EMBEDDINGS), frozenset()) is None


async def test_an_error_of_the_provider_is_nobodys_violation() -> None:
    refusal = b'{"error": {"message": "no", "type": "invalid_request_error", "param": null, "code": "bad"}}'
    bench = bench_of(whole(refusal, 400))
    reply, _ = await bench.serve(output=replace(RULE, retry=3), body=BODY)
    assert (reply.status, bench.outputs) == (400, [])


async def test_the_same_request_again_brings_a_good_answer_and_nobodys_breaker_hears_of_the_bad_one() -> None:
    bench = bench_of(whole(answer(BAD)), whole(answer(GOOD, used=(100, 20))))
    reply, body = await bench.serve(output=replace(RULE, retry=1), body=BODY)
    assert (text_of(body), output_of(reply)) == (GOOD, b"retried")
    first, second = bench.upstreams[0].sent
    assert first.body == second.body
    call = bench.account.call
    assert [(one.target.name, one.error_class) for one in call.attempts] == [("p0/m", "output_invalid"), ("p0/m", None)]
    assert bench.admission.gates.lines["p0/m"].gate.health.breaker.failures_in_a_row == 0
    assert bench.admission.gates.lines["p0/m"].gate.in_flight == 0
    paid = [100 * 2e-6 + 10 * 8e-6, 100 * 2e-6 + 20 * 8e-6]
    assert [one.cost_usd for one in call.attempts] == pytest.approx(paid)
    assert bench.account.cost_usd == pytest.approx(paid[1])
    assert bench.account.retries_usd == pytest.approx(paid[0])
    assert bench.account.estimated_retries_usd == 0.0  # its provider has reported what it used
    assert call.usage is not None
    assert (call.usage.input, call.usage.output) == (200, 30)


async def test_a_repair_takes_the_place_of_the_text_and_all_that_was_used_is_told() -> None:
    bench = bench_of(
        whole(answer(BAD)), whole(answer(WORSE)), repairs=[whole(answer(f"```json\n{GOOD}\n```", used=(300, 30)))]
    )
    reply, body = await bench.serve(output=replace(RULE, retry=1, repair_with="helper"), body=BODY)
    assert (text_of(body), output_of(reply)) == (GOOD, b"repaired")
    told = orjson.loads(body)
    assert (told["id"], told["usage"]) == ("c", {"prompt_tokens": 500, "completion_tokens": 50, "total_tokens": 550})
    asked = orjson.loads(bytes(bench.helper.sent[0].body))
    assert asked["model"] == "big"
    assert WORSE in asked["messages"][1]["content"]
    assert "rule `required` at `/`" in asked["messages"][1]["content"]
    call = bench.account.call
    trail = [(one.target.name, one.error_class) for one in call.attempts]
    assert trail == [("p0/m", "output_invalid"), ("p0/m", "output_invalid"), ("h/big", None)]
    assert sum(one.cost_usd or 0 for one in call.attempts) == pytest.approx(2 * (100 * 2e-6 + 10 * 8e-6) + 330e-6)
    assert (bench.account.cost_usd or 0) + bench.account.retries_usd == pytest.approx(2 * 280e-6 + 330e-6)
    assert call.usage is not None
    assert (call.usage.input, call.usage.output) == (500, 50)
    for line in bench.admission.gates.lines.values():
        assert line.gate.in_flight == 0


async def test_an_answer_that_breaks_its_schema_costs_no_more() -> None:
    """Where its usage is absurd; nor does the next one, nor do both together in what is told of the call."""
    body = b'{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"%b"}]}' % (b"x" * 400)
    stage = bench_of(whole(answer(BAD, used=(2**31, 2**31))), whole(answer(GOOD, used=(100, 16_000_000))))

    await stage.serve(output=replace(RULE, retry=1), body=body, max_tokens=100)

    assert stage.account.retries_usd == pytest.approx(107 * 2e-6 + 5 * 8e-6)
    assert stage.account.estimated_retries_usd == stage.account.retries_usd
    assert stage.account.cost_usd == pytest.approx(100 * 2e-6 + 3 * 8e-6)
    assert stage.account.call.usage is not None
    assert stage.account.call.usage.output == 5 + 3


async def test_a_repair_asks_for_itself_whatever_was_made_of_its_call() -> None:
    """The targets that cannot express the call are not the repair's."""
    bench = bench_of(whole(answer(BAD)), repairs=[whole(answer(GOOD))])
    not_expressible = {"h/big": InvalidRequest("It has no word for that.")}
    _, body = await bench.serve(output=replace(RULE, repair_with="helper"), body=BODY, not_expressible=not_expressible)
    assert text_of(body) == GOOD
    assert b"secret" in bytes(bench.helper.sent[0].body)


async def test_each_bad_choice_is_repaired_by_itself() -> None:
    two = orjson.loads(answer(BAD))
    two["choices"].append({"index": 1, "message": {"content": GOOD}, "finish_reason": "stop"})
    two["choices"].append({"index": 2, "message": {"content": WORSE}, "finish_reason": "stop"})
    bench = bench_of(whole(orjson.dumps(two)), repairs=[whole(answer('{"total": 2}')), whole(answer('{"total": 3}'))])
    _, body = await bench.serve(output=replace(RULE, repair_with="helper"), body=BODY)
    contents = [one["message"]["content"] for one in orjson.loads(body)["choices"]]
    assert contents == ['{"total": 2}', GOOD, '{"total": 3}']
    assert orjson.loads(body)["usage"]["total_tokens"] == 330


async def test_at_last_it_fails_with_the_place_and_never_the_text() -> None:
    bench = bench_of(whole(answer(BAD)), repairs=[whole(answer(BAD))])
    with pytest.raises(OutputInvalid) as told:
        await bench.serve(output=replace(RULE, repair_with="helper"), body=BODY)
    error = told.value
    assert (error.status, error.code, error.should_retry) == (502, "output_invalid", False)
    assert "rule `type` at `/total`" in error.message
    account = bench.account
    assert (account.status, account.outcome, account.cost_usd) == (502, "output_invalid", None)
    assert account.retries_usd == pytest.approx(100 * 2e-6 + 10 * 8e-6 + 110e-6)
    told_of = f"{error.message}{[(one.detail, str(one)) for one in account.call.attempts]}{CHECK.find(account.call)!r}"
    assert "secret" not in told_of.replace(BAD, "") or "secret" not in error.message


async def test_or_passes_as_it_came_whatever_was_tried_behind_it() -> None:
    rule = replace(RULE, retry=2, repair_with="helper", at_last="pass")
    bench = bench_of(whole(answer(BAD)), whole(answer(WORSE)), failed(), failed(), repairs=[failed()] * 4)
    reply, body = await bench.serve(output=rule, body=BODY)
    assert (text_of(body), output_of(reply), reply.status) == (WORSE, b"invalid", 200)
    account = bench.account
    assert (account.outcome, account.call.attempts[-1].error_class) == ("ok", "output_invalid")
    assert (account.cost_usd or 0) + account.retries_usd == pytest.approx(2 * 280e-6)
    assert account.call.usage is not None
    assert account.call.usage.input == 200
    assert bench.outputs == [("m", "invalid")]


async def test_a_retry_that_fails_on_the_way_goes_on_along_the_plan() -> None:
    """The target breaks down between the two answers: the second one is a fallback's."""
    main, other = ScriptedUpstream(whole(answer(BAD)), failed(), failed()), ScriptedUpstream(whole(answer(GOOD)))
    bench = OutputBench([main, other], fallbacks=1)
    reply, body = await bench.serve(output=replace(RULE, retry=1), body=BODY)
    assert (text_of(body), output_of(reply)) == (GOOD, b"retried")
    assert [one.target.name for one in bench.account.call.attempts][::3] == ["p0/m", "p1/m"]


@pytest.mark.parametrize(
    ("max_usd", "sent", "asked"), [(0.0001, 1, 0), (0.0006, 2, 0), (0.01, 2, 1)], ids=["nothing", "a retry", "both"]
)
async def test_money_bounds_retries_and_repairs_together(max_usd: float, sent: int, asked: int) -> None:
    rule = replace(RULE, retry=1, repair_with="helper", max_usd=max_usd)
    bench = bench_of(whole(answer(BAD)), whole(answer(BAD)), repairs=[whole(answer(BAD))])
    with pytest.raises(OutputInvalid):
        await bench.serve(output=rule, body=BODY, max_tokens=50)
    assert (len(bench.upstreams[0].sent), len(bench.helper.sent)) == (sent, asked)


async def test_the_calls_own_attempts_and_money_hold_too() -> None:
    for retries in (replace(AT_ONCE, attempts=1), replace(AT_ONCE, max_usd_per_call=0.0003)):
        bench = bench_of(whole(answer(BAD)), retries=retries)
        with pytest.raises(OutputInvalid):
            await bench.serve(output=replace(RULE, retry=3, repair_with="helper"), body=BODY, max_tokens=50)
        assert len(bench.upstreams[0].sent) == 1
        assert bench.helper.sent == []


async def test_a_keys_budget_pays_for_all_of_it_and_for_no_more() -> None:
    key = Key("team", "team", b"", budget_usd_per_day=1.0)
    bench = bench_of(whole(answer(BAD)), repairs=[whole(answer(GOOD, used=(300, 30)))])
    await bench.serve(output=replace(RULE, repair_with="helper"), body=BODY, key=key)
    budgets = bench.admission.budgets
    assert budgets._spent("team") == pytest.approx(280e-6 + 330e-6)
    assert budgets._flying == {}
    poor = Key("team", "team", b"", budget_usd_per_day=0.0003)
    bench = bench_of(whole(answer(BAD)))
    with pytest.raises(OutputInvalid):
        await bench.serve(output=replace(RULE, retry=1, repair_with="helper"), body=BODY, key=poor, max_tokens=10)
    assert bench.account.call.denied == "key_budget"
    assert bench.admission.budgets._spent("team") == pytest.approx(280e-6)


async def test_a_keys_own_tokens_are_those_of_all_that_was_tried() -> None:
    key = Key("team", "team", b"k", limits=Limits(tokens_per_min=10_000))
    bench = bench_of(whole(answer(BAD)), repairs=[whole(answer(GOOD, used=(300, 30)))], keys=[key])
    await bench.serve(output=replace(RULE, repair_with="helper"), body=BODY, key=key)
    levels = bench.admission.keys.sets["team"]
    assert levels.reserve(Cost(1, 10_000 - 440 - 20, 0), bench.clock.now) == 0.0
    assert levels.reserve(Cost(1, 40, 0), bench.clock.now) != 0.0


async def test_nothing_is_tried_when_the_deadline_has_passed() -> None:
    bench = bench_of()
    late = Script(chunks=[lambda: bench.clock.advance(60), answer(BAD)])
    bench.upstreams[0].scripts.append(late)
    with pytest.raises(OutputInvalid):
        await bench.serve(output=replace(RULE, retry=3, repair_with="helper"), body=BODY)
    assert (len(bench.upstreams[0].sent), bench.helper.sent) == (1, [])


async def test_who_leaves_in_the_middle_of_a_repair_leaves_nothing_behind() -> None:
    gate = asyncio.Event()
    bench = bench_of(whole(answer(BAD)), repairs=[Script(chunks=[gate, answer(GOOD)])])
    task = asyncio.ensure_future(bench.serve(output=replace(RULE, repair_with="helper"), body=BODY))
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.helper.sent
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    account = bench.account
    assert (account.outcome, len(account.call.attempts)) == ("client_gone", 2)
    assert account.call.attempts[1].cost_usd is not None
    assert account.retries_usd > 280e-6
    assert bench.admission.gates.lines["h/big"].gate.in_flight == 0


async def test_a_hedged_answer_is_checked_and_its_retry_goes_along_the_plan() -> None:
    """The first target hangs, the second one answers badly, and the retry finds the first one well again."""
    hedging = replace(AT_ONCE, hedging=Hedging(min_samples=5, at_least_s=1.0))
    hangs = Script(chunks=[asyncio.Event()])
    bench = OutputBench(
        [ScriptedUpstream(hangs, whole(answer(GOOD))), ScriptedUpstream(whole(answer(BAD)))], retries=hedging
    )
    heard = bench.admission.gates.line(bench.policy.models["m"].targets[0], bench.call()).gate.health.responsiveness
    for _ in range(10):
        heard.whole_answer.observe(0.5, bench.clock.now)
    task = asyncio.ensure_future(bench.serve(output=replace(RULE, retry=1), body=BODY))
    for _ in range(20):
        await asyncio.sleep(0)
    bench.clock.advance(3)
    reply, body = await task
    assert (text_of(body), output_of(reply)) == (GOOD, b"retried")
    trail = [(one.target.name, one.error_class) for one in bench.account.call.attempts]
    assert trail == [("p0/m", "cancelled"), ("p1/m", "output_invalid"), ("p0/m", None)]
    assert all(line.gate.in_flight == 0 for line in bench.admission.gates.lines.values())


answers_given = st.lists(st.sampled_from(["good", "bad", "cut", "fails"]), min_size=8, max_size=8)


@settings(deadline=None)
@given(
    answers_given,
    answers_given,
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["fail", "pass"]),
    st.sampled_from([None, 0.0004, 0.002]),
    st.booleans(),
)
def test_whatever_happens_the_key_pays_what_the_providers_have_counted(
    own: list[str],
    repairs: list[str],
    retry: int,
    is_repaired: bool,
    at_last: AtLast,
    max_usd: float | None,
    is_held: bool,
) -> None:
    """Their ledger is the sum over what they have answered; the client never gets a bad answer as a good one."""

    def script(kind: str, *, is_stream: bool) -> Script:
        if kind == "fails":
            return failed()
        text, finish = {"good": (GOOD, "stop"), "bad": (BAD, "stop"), "cut": (BAD, "length")}[kind]
        if is_stream:
            return streamed(*[one.replace(b'"stop"', b'"%b"' % finish.encode()) for one in events(text)])
        return whole(answer(text, finish))

    async def run() -> None:
        bench = bench_of(
            *[script(kind, is_stream=is_held) for kind in own],
            repairs=[script(kind, is_stream=False) for kind in repairs],
        )
        helper = "helper" if is_repaired else None
        rule = replace(RULE, retry=retry, repair_with=helper, at_last=at_last, max_usd=max_usd, stream="buffer")
        key = Key("team", "team", b"", budget_usd_per_day=5.0)
        try:
            reply, _ = await bench.serve(output=rule, body=BODY, key=key, stream=is_held, max_tokens=50)
            result = (output_of(reply) or b"").decode()
        except OutputInvalid:
            result = "invalid"
        except GatewayError:
            result = ""  # nobody has answered
        answered = [kind != "fails" for kind in own[: len(bench.upstreams[0].sent)]]
        helped = [kind != "fails" for kind in repairs[: len(bench.helper.sent)]]
        paid = sum(answered) * 280e-6 + sum(helped) * 110e-6
        assert bench.admission.budgets._spent("team") == pytest.approx(paid)
        assert bench.admission.budgets._flying == {}
        assert (bench.account.cost_usd or 0) + bench.account.retries_usd == pytest.approx(paid)
        assert all(line.gate.in_flight == 0 for line in bench.admission.gates.lines.values())
        kinds = [kind for kind in own[: len(bench.upstreams[0].sent)] if kind != "fails"]
        last = kinds[-1] if kinds else ""
        assert (
            result
            in {
                "good": {"valid", "retried"},
                "cut": {"skipped"},
                "bad": {"invalid", "repaired"},
                "": {""},
            }[last]
        )
        assert [one for _, one in bench.outputs] == ([result] if result else [])

    asyncio.run(run())


# --- the caller's own schema ---


async def test_the_requests_own_schema_counts_and_a_bad_one_is_the_providers_to_judge() -> None:
    def asking(schema: object) -> dict[str, Any]:
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        parsed = {"model": "m", "messages": [], "response_format": wanted}
        return {"body": orjson.dumps(parsed), "parsed": parsed, "output": OutputRule()}

    for schema, text, result in (
        (SCHEMA, GOOD, "valid"),
        (SCHEMA, BAD, "invalid"),
        ({"$ref": "https://example.com/x"}, BAD, "skipped"),
        ({"title": "x" * 70_000}, BAD, "skipped"),
        ({"type": 5}, BAD, "skipped"),
    ):
        bench = bench_of(whole(answer(text)))
        try:
            await bench.serve(**asking(schema))
        except OutputInvalid:
            assert result == "invalid"
        assert bench.outputs == [("m", result)]
    bench = bench_of(whole(answer("free text")))
    reply, _ = await bench.serve(output=OutputRule(), body=BODY)
    assert (output_of(reply), bench.outputs, CHECK.find(bench.account.call)) == (None, [], None)


async def test_a_response_is_checked_by_its_text_format() -> None:
    wanted = {"model": "m", "input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": BAD, "annotations": []}],
    }
    usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    given = {"id": "r", "object": "response", "status": "completed", "output": [item], "usage": usage}
    bench = bench_of(whole(orjson.dumps(given)), repairs=[whole(answer(GOOD))])
    rule = OutputRule(repair_with="helper")
    _, body = await bench.serve(endpoint=RESPONSES, path="/responses", body=orjson.dumps(wanted), output=rule)
    told = orjson.loads(body)
    assert told["output"][0]["content"][0]["text"] == GOOD
    assert told["usage"] == {"input_tokens": 200, "output_tokens": 20, "total_tokens": 220}
    assert bench.helper.sent[0].path.endswith("/chat/completions")


# --- what is kept ---


async def test_a_bad_answer_is_kept_nowhere_and_a_repaired_one_is() -> None:
    caching = Caching(name="default", exact=replace(ExactRule(), requests="always"))
    parsed = orjson.loads(BODY)
    passes, fails = replace(RULE, at_last="pass"), RULE
    for text, rule, kept in ((BAD, passes, False), (BAD, fails, False), (GOOD, fails, True)):
        bench = bench_of(whole(answer(text)), whole(answer(GOOD)), caching=caching)
        asked: dict[str, Any] = {"body": BODY, "output": rule, "idempotency_key": b"k"}
        if text == BAD and rule is fails:
            with pytest.raises(OutputInvalid):
                await bench.serve(**asked, parsed=dict(parsed))
        else:
            await bench.serve(**asked, parsed=dict(parsed))
        reply, body = await bench.serve(**asked, parsed=dict(parsed))
        assert len(bench.upstreams[0].sent) == (1 if kept else 2)
        assert (text_of(body), output_of(reply)) == (GOOD, b"valid")


async def test_equal_calls_share_the_final_answer() -> None:
    gate = asyncio.Event()
    bench = bench_of(Script(chunks=[gate, answer(BAD)]), whole(answer(GOOD)), caching=Caching(coalesce="always"))
    asked: dict[str, Any] = {"body": BODY, "output": replace(RULE, retry=1)}
    tasks = [asyncio.ensure_future(bench.serve(**asked, parsed=orjson.loads(BODY), id=f"req_{n}")) for n in range(3)]
    await asyncio.sleep(0.01)
    gate.set()
    for reply, body in await asyncio.gather(*tasks):
        assert (text_of(body), output_of(reply)) == (GOOD, b"retried")
    assert len(bench.upstreams[0].sent) == 2


# --- streams ---


async def test_a_relayed_stream_passes_and_is_counted_and_a_bad_one_is_not_kept() -> None:
    caching = Caching(name="default", exact=replace(ExactRule(), requests="always"))
    for text, result, sent in ((GOOD, "valid", 1), (BAD, "invalid", 2)):
        bench = bench_of(streamed(*events(text)), streamed(*events(text)), caching=caching)
        for _ in range(2):
            _, body = await bench.serve(
                output=RULE, body=BODY, parsed=orjson.loads(BODY), stream=True, stream_options={"include_usage": True}
            )
            assert body == b"".join(events(text))
        assert [one for _, one in bench.outputs] == [result] * sent
        assert len(bench.upstreams[0].sent) == sent


async def test_a_relayed_stream_that_breaks_or_has_no_last_word_is_judged_by_what_it_is() -> None:
    broken = bench_of(streamed(*events(GOOD, done=False)[:2], Broken()))
    await broken.serve(output=RULE, body=BODY, stream=True)
    assert broken.outputs == []
    silent = bench_of(streamed(*events(BAD, done=False)))
    await silent.serve(output=RULE, body=BODY, stream=True)
    assert silent.outputs == [("m", "invalid")]


async def test_a_held_stream_is_given_whole_or_retried_or_repaired() -> None:
    held = replace(RULE, stream="buffer", retry=1, repair_with="helper")
    asked: dict[str, Any] = {"output": held, "body": BODY, "stream": True, "stream_options": {"include_usage": True}}
    good = bench_of(streamed(*events(GOOD)))
    reply, body = await good.serve(**asked)
    assert (body, output_of(reply)) == (b"".join(events(GOOD)), b"valid")
    assert dict(reply.headers)[b"content-type"] == b"text/event-stream"
    retried = bench_of(streamed(*events(BAD)), streamed(*events(GOOD)))
    reply, body = await retried.serve(**asked)
    assert (body, output_of(reply)) == (b"".join(events(GOOD)), b"retried")
    assert retried.account.retries_usd == pytest.approx(280e-6)
    repaired = bench_of(streamed(*events(BAD)), streamed(*events(BAD)), repairs=[whole(answer('{"total": 7}'))])
    reply, body = await repaired.serve(**asked)
    assert output_of(reply) == b"repaired"
    assert b'{\\"total\\": 7}' in body
    assert b"secret" not in body
    assert body.endswith(b"data: [DONE]\n\n")
    for bench in (good, retried, repaired):
        assert all(line.gate.in_flight == 0 for line in bench.admission.gates.lines.values())


async def test_a_stored_stream_that_was_held_tells_what_was_used_to_those_who_ask() -> None:
    """Also of the one that was asked for again, and not of the one that was discarded."""
    caching = Caching(name="default", exact=replace(ExactRule(), requests="always"))
    other = [one.replace(b"100", b"900") for one in events(BAD)]
    bench = bench_of(streamed(*other), streamed(*events(GOOD)), caching=caching)
    held = replace(RULE, stream="buffer", retry=1)
    asked: dict[str, Any] = {"output": held, "body": BODY, "parsed": orjson.loads(BODY), "stream": True}
    _, first = await bench.serve(**asked)
    _, second = await bench.serve(**asked, stream_options={"include_usage": True})
    assert first == b"".join(event for event in events(GOOD) if b"usage" not in event)
    assert second.endswith(b"".join(events(GOOD)[-2:]))


async def test_a_held_stream_that_breaks_off_is_tried_again_for_nobody_has_anything_of_it() -> None:
    main = ScriptedUpstream(streamed(*events(GOOD)[:2], Broken()))
    bench = OutputBench([main, ScriptedUpstream(streamed(*events(GOOD)))])
    reply, body = await bench.serve(output=replace(RULE, stream="buffer"), body=BODY, stream=True)
    assert (reply.status, output_of(reply)) == (200, b"valid")
    assert body.endswith(b"data: [DONE]\n\n")
    first, second = bench.account.call.attempts
    assert (first.target.name, second.target.name, second.error_class) == ("p0/m", "p1/m", None)
    assert first.error_class is not None
    only = bench_of(streamed(*events(GOOD)[:2], Broken()), retries=replace(AT_ONCE, attempts=1))
    with pytest.raises(GatewayError) as told:
        await only.serve(output=replace(RULE, stream="buffer"), body=BODY, stream=True)
    assert told.value.code != "deadline_exceeded"


async def test_a_held_stream_ends_with_the_callers_time() -> None:
    bench = bench_of(streamed(*events(GOOD)[:1], asyncio.Event()))
    serving = bench.serve(
        output=replace(RULE, stream="buffer"),
        body=BODY,
        stream=True,
        deadline=bench.clock.now + 5,
        deadline_is_callers=True,
    )
    task = asyncio.ensure_future(serving)
    for _ in range(10):
        await asyncio.sleep(0)
    bench.clock.advance(6)
    bench.watch.sweep(bench.clock.now)
    with pytest.raises(DeadlineExceeded):
        await task
    assert all(line.gate.in_flight == 0 for line in bench.admission.gates.lines.values())
    assert bench.account.outcome == "deadline_exceeded"


async def test_a_stream_too_long_to_be_held_back_is_given_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.features.output.judging.MOST_HELD", 200)
    bench = bench_of(streamed(*events(BAD)))
    reply, body = await bench.serve(output=replace(RULE, stream="buffer"), body=BODY, stream=True)
    assert reply.chunks is not None
    assert body.count(b"data: ") == len(events(BAD)) - 1  # without the usage that nobody has asked for
    assert bench.outputs == [("m", "skipped")]
    assert bench.account.outcome == "ok"


# --- what takes long ---


async def test_what_takes_long_is_checked_by_a_process_of_its_own() -> None:
    long = orjson.dumps({"total": 1, "text": "x" * 200_000}).decode()
    bench = bench_of(whole(answer(long)))
    reply, _ = await bench.serve(output=RULE, body=BODY)
    assert output_of(reply) == b"valid"


async def test_a_failure_of_that_process_is_no_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.features.output.judging.CPU_S", 0)
    monkeypatch.setattr("gateway.features.output.judging.MEMORY_BYTES", 1)
    long = orjson.dumps({"total": "x" * 200_000}).decode()
    bench = bench_of(whole(answer(long)))
    reply, _ = await bench.serve(output=RULE, body=BODY)
    assert output_of(reply) == b"skipped"
