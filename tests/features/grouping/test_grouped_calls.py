"""Calls that go together, in virtual time: who is in one request, what each gets, pays and hears, and who may leave."""

from __future__ import annotations

import asyncio
import struct
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from gateway.core.balancing import Retries
from gateway.core.call import Call, Reply
from gateway.core.errors import DeadlineExceeded, GatewayError, KeyRateLimited, NoTargetAvailable, WaitTooLong
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Key, Rates, with_settings
from gateway.core.types import LANES, ErrorClass, Outgoing, Phase, Skip, UpstreamFailed
from gateway.dialects.endpoints import EMBEDDINGS, MODERATIONS
from gateway.features.grouping.rules import GROUPING, LINES_WINDOW_S, GroupRules
from gateway.features.grouping.service import GROUP, GROUP_RULES, Groups
from gateway.features.reuse.rules import Caching
from tests.rows import rows
from tests.support.flow import Bench, Broken, Script, ScriptedAnswer, failed, whole
from tests.support.virtual import LoopClock, run

RULES = GroupRules(0.005, 64)
BAD = "bad input"
OTHER = Key("other", "other", b"o")


@dataclass
class Embedder:
    """A provider of embeddings: an input's tokens are its letters, one that says `bad input` is refused, with all others."""

    errors: tuple[type[Exception], ...] = (Broken,)
    takes_s: float = 0.1
    sent: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[bytes, bytes]] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)
    """What becomes of the first requests."""
    broken_off: int = 0

    async def send(self, outgoing: Outgoing) -> ScriptedAnswer:
        """Answers after a moment."""
        body = orjson.loads(bytes(outgoing.body))
        self.sent.append(body)
        self.headers.append(dict(outgoing.headers))
        try:
            await asyncio.sleep(self.takes_s)
        except asyncio.CancelledError:
            self.broken_off += 1
            raise
        if self.scripts:
            script = self.scripts.pop(0)
            if script.fails is not None:
                raise script.fails
            return ScriptedAnswer(script)
        inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
        if BAD in inputs:
            error = {"message": "one input is bad", "type": "invalid_request_error", "param": "input", "code": None}
            return ScriptedAnswer(whole(orjson.dumps({"error": error}), 400))
        data = [{"object": "embedding", "index": at, "embedding": [len(str(one))]} for at, one in enumerate(inputs)]
        tokens = sum(len(str(one)) for one in inputs)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return ScriptedAnswer(whole(orjson.dumps({"object": "list", "data": data, "model": "m", "usage": usage})))

    def failure(self, error: Exception) -> UpstreamFailed:
        """Nothing breaks here."""
        raise AssertionError(error)

    @property
    def sizes(self) -> list[int]:
        """How many inputs each request had."""
        return [len(one["input"]) if isinstance(one["input"], list) else 1 for one in self.sent]


@dataclass
class Stage:
    """A pipeline in virtual time with one model, whose calls go together."""

    clock: LoopClock
    rules: GroupRules | None = RULES
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.provider = Embedder()
        self.bench = Bench(
            [self.provider],  # type: ignore[list-item]  # it sends
            clock=self.clock,
            rates=Rates(1e-3, 0, 1e-3),
            **self.options,
        )
        self.metrics = self.bench.product(Groups).metrics
        self.model = with_settings(self.bench.policy.models["m"], {GROUPING: self.rules})

    def call(self, said: Any, group_most: int = 0, **changes: Any) -> Call:
        """A call for the embedding of this; `group_most` is how many inputs go together by a rule of its own."""
        body = changes.pop("body", {"model": "m", "input": said})
        usual = {"endpoint": EMBEDDINGS, "path": "/embeddings", "model": self.model}
        call = self.bench.call(body=orjson.dumps(body), **{**usual, **changes})
        if group_most:
            GROUP_RULES.put(call, GroupRules(LINES_WINDOW_S, group_most))
        return call

    async def ask(self, said: Any, after_s: float = 0.0, **changes: Any) -> tuple[Call, Reply]:
        """A call and its answer."""
        await asyncio.sleep(after_s)
        call = self.call(said, **changes)
        return call, await self.bench.pipeline.handle(call)

    async def ask_all(self, *said: Any, **changes: Any) -> list[tuple[Call, Reply]]:
        """All at once."""
        return list(await asyncio.gather(*(self.ask(one, **changes) for one in said)))


def lengths(reply: Reply) -> list[int]:
    """What an answer has, in its order."""
    data = orjson.loads(reply.body)["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return [one["embedding"][0] for one in data]


def play(story: Callable[[Stage], Any], rules: GroupRules | None = RULES, **options: Any) -> Any:
    """Tells a story on a stage."""
    return run(lambda clock: story(Stage(clock, rules, options)))


def test_base64_is_packed_for_each_of_a_group() -> None:
    """Where the provider answers with numbers; calls that ask for these go in a group of their own."""

    async def story(stage: Stage) -> None:
        packs = [{"model": "m", "input": text, "encoding_format": "base64"} for text in ("a", "bb")]
        answers = await asyncio.gather(*(stage.ask("", body=body) for body in packs), stage.ask("c"), stage.ask("dd"))

        assert stage.provider.sizes == [2, 2]
        packed = [orjson.loads(reply.body)["data"][0]["embedding"] for _, reply in answers[:2]]
        assert [struct.unpack("<f", b64decode(one)) for one in packed] == [(1.0,), (2.0,)]
        assert [lengths(reply) for _, reply in answers[2:]] == [[1], [2]]

    play(story)


def test_calls_within_the_window_are_one_request() -> None:
    """Each gets its own part, pays for its own tokens, and knows; a limit of requests has let one through."""

    async def story(stage: Stage) -> None:
        answers = await stage.ask_all(*("x" * size for size in range(1, 11)), ["four", "seven77"])

        assert stage.provider.sizes == [12]
        assert [lengths(reply) for _, reply in answers] == [*([size] for size in range(1, 11)), [4, 7]]
        accounts = stage.bench.meter.accounts
        assert len(accounts) == 11
        assert sum(one.usage.input for one in accounts if one.usage) == 66  # as the provider counted them
        assert sum(one.cost_usd or 0 for one in accounts) == pytest.approx(66e-3)
        groups = [GROUP.find(one.call) for one in accounts if one.outcome == "ok"]
        assert [group and group.members for group in groups] == [11] * 11
        told = dict(answers[0][1].headers)
        assert told[b"x-gateway-grouped"] == b"11"
        assert told[b"x-gateway-attempts"] == b"p0/m:200"
        gate = stage.bench.admission.gates.lines["p0/m"].gate
        assert gate.in_flight == 0

    play(story, limits=[Limits(requests_per_min=60, request_burst=1)])


def test_a_group_is_sent_when_its_time_or_its_room_is_over() -> None:
    """Five milliseconds after the first of it; or with as many inputs, or tokens, as it may have."""

    async def story(stage: Stage) -> None:
        await asyncio.gather(stage.ask("a"), stage.ask("b", 0.004), stage.ask("c", 0.006))
        assert stage.provider.sizes == [2, 1]  # one that is alone goes as it came
        assert stage.provider.sent[1]["input"] == "c"
        stage.provider.sent.clear()
        await stage.ask_all(*"abcdefg")
        assert sorted(stage.provider.sizes) == [3, 4]
        stage.provider.sent.clear()
        await stage.ask_all("a", ["b", "c", "d"], ["e", "f"], ["g", "h", "i", "j"])
        assert sorted(stage.provider.sizes) == [2, 4, 4]

    play(story, GroupRules(0.005, 4))


def test_a_group_fits_the_limit_of_tokens() -> None:
    """Nine tenths of it, by estimate: what is more goes with the next one."""

    async def story(stage: Stage) -> None:
        answers = await stage.ask_all(*["word " * 40] * 12, deadline=stage.clock.now + 600)

        assert len(answers) == 12
        assert max(stage.provider.sizes) < 12
        assert all(sum(map(len, one["input"])) / 4 <= 400 for one in stage.provider.sent)

    play(story, limits=[Limits(tokens_per_min=400)])


@rows(
    "changes",
    [
        {"body": {"model": "m", "input": "other", "dimensions": 5}},
        {"body": {"model": "m", "input": "other", "encoding_format": "base64"}},
        {"body": {"model": "m", "input": "other", "user": "eve"}},
        {"body": {"model": "m", "input": [1, 2]}},
        {"key": OTHER},
        {"tenant": "other"},
        {"lane": "batch"},
        {"credential": b"Bearer eve"},
        {"headers": [(b"openai-beta", b"x")]},
        {"query": b"api-version=1"},
    ],
)
def test_only_what_asks_for_the_same_goes_together(changes: dict[str, Any]) -> None:
    """And of one key, tenant and lane."""

    async def story(stage: Stage) -> None:
        await asyncio.gather(stage.ask("a"), stage.ask("b"), stage.ask("other", **changes))
        assert sorted(stage.provider.sizes)[-1] == 2
        assert len(stage.provider.sent) == 2

    play(story)


def test_what_is_about_one_call_only_does_not_keep_calls_apart() -> None:
    """A trace, a retry's number: nobody's goes along."""

    async def story(stage: Stage) -> None:
        asked = [stage.ask("a", headers=[(b"traceparent", b"%d" % n), (b"accept", b"*/*")]) for n in range(3)]
        await asyncio.gather(*asked)
        assert stage.provider.sizes == [3]
        assert stage.provider.headers == [{b"accept": b"*/*"}]

    play(story)


def test_without_the_rules_each_goes_alone_and_as_it_came() -> None:
    """Nothing waits, and the body has its bytes."""

    async def story(stage: Stage) -> None:
        answers = await stage.ask_all("a", "b")
        assert stage.provider.sizes == [1, 1]
        assert {one["input"] for one in stage.provider.sent} == {"a", "b"}
        assert all(
            GROUP.find(call) is None and b"x-gateway-grouped" not in dict(reply.headers) for call, reply in answers
        )
        assert stage.clock.now < 1000.102

    play(story, None)


def test_one_bad_input_is_its_callers_only() -> None:
    """The group is refused, so each is sent by itself: one hears why, the others have their answers."""

    async def story(stage: Stage) -> None:
        answers = await stage.ask_all("one", BAD, "three")

        assert [reply.status for _, reply in answers] == [200, 400, 200]
        assert [lengths(answers[at][1]) for at in (0, 2)] == [[3], [5]]
        assert stage.provider.sizes == [3, 1, 1, 1]
        assert orjson.loads(answers[1][1].body)["error"]["param"] == "input"
        assert [one.outcome for one in stage.bench.meter.accounts].count("ok") == 2

    play(story)


def test_an_answer_that_does_not_fit_is_asked_for_again_one_by_one() -> None:
    """A provider that leaves one out, or gives a list where others were asked for."""

    async def story(stage: Stage) -> None:
        stage.provider.scripts.append(whole(b'{"object": "list", "data": [{"index": 0, "embedding": [9]}]}'))
        answers = await stage.ask_all("one", "three")
        assert [lengths(reply) for _, reply in answers] == [[3], [5]]
        assert stage.provider.sizes == [2, 1, 1]

    play(story)


def test_an_answer_that_does_not_fit_was_paid_for_all_the_same() -> None:
    """By those who were to have it, each its share: eight letters at a tenth of a cent, for nothing."""

    async def story(stage: Stage) -> None:
        unfit = b'{"data": [{"index": 0, "embedding": [9]}], "usage": {"prompt_tokens": 8, "total_tokens": 8}}'
        stage.provider.scripts.append(whole(unfit))
        answers = await stage.ask_all("one", "three")

        assert [lengths(reply) for _, reply in answers] == [[3], [5]]
        accounts = stage.bench.meter.accounts
        assert sum(one.cost_usd or 0.0 for one in accounts) == pytest.approx(0.008)
        assert sum(one.retries_usd for one in accounts) == pytest.approx(0.008)
        assert [one.estimated_retries_usd for one in accounts] == [0.0, 0.0]

    play(story)


def test_what_is_nobodys_fault_is_everybodys() -> None:
    """A dead provider, no room in time: one attempt each for the group, and the same words for all in it."""

    async def dead(stage: Stage) -> None:
        stage.provider.scripts += [failed()] * 9
        answers = await asyncio.gather(*(stage.ask(one) for one in "abc"), return_exceptions=True)
        assert all(isinstance(one, NoTargetAvailable) for one in answers)
        assert len({id(one) for one in answers}) == 3
        assert len(stage.provider.sent) == 1
        accounts = stage.bench.meter.accounts
        assert [one.outcome for one in accounts] == ["no_target_available"] * 3
        assert all(str(one.call.attempts[0]).startswith("p0/m:connection") for one in accounts)

    async def late(stage: Stage) -> None:
        await stage.ask("first")
        answers = await asyncio.gather(*(stage.ask(one) for one in "abc"), return_exceptions=True)
        assert all(isinstance(one, WaitTooLong) and one.retry_after_s for one in answers)
        assert len(stage.provider.sent) == 1

    play(dead)
    play(late, limits=[Limits(requests_per_min=1, request_burst=1)])


def test_a_failure_that_passes_is_tried_again_for_all() -> None:
    """Once, as one request; what it cost is shared out."""

    async def story(stage: Stage) -> None:
        fault = UpstreamFailed(ErrorClass.CONNECTION, Phase.SENT, "reset")
        stage.provider.scripts += [Script(fails=fault)]
        answers = await stage.ask_all("aaaa", "bbbb")
        assert stage.provider.sizes == [2, 2]
        assert [lengths(reply) for _, reply in answers] == [[4], [4]]
        first = [call.attempts[0].cost_usd or 0 for call, _ in answers]
        assert first[0] == pytest.approx(first[1])
        assert all(len(call.attempts) == 2 for call, _ in answers)

    play(story, retries=Retries())


@pytest.mark.parametrize("after_s", [0.001, 0.05])
def test_who_leaves_takes_nobody_along(after_s: float) -> None:
    """Before the group is sent its input is not sent; later the answer is the others' still."""

    async def story(stage: Stage) -> None:
        tasks = [asyncio.create_task(stage.ask(one)) for one in ("one", "gone4", "three")]
        await asyncio.sleep(after_s)
        tasks[1].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[1], asyncio.CancelledError)
        assert [lengths(one[1]) for one in (answers[0], answers[2]) if not isinstance(one, BaseException)] == [[3], [5]]
        assert stage.provider.sizes == ([2] if after_s < 0.005 else [3])
        gone = next(one for one in stage.bench.meter.accounts if one.outcome == "client_gone")
        assert bool(gone.call.attempts) is (after_s > 0.005)
        assert len(stage.bench.meter.accounts) == 3

    play(story)


def test_when_all_have_left_the_provider_is_let_go() -> None:
    """And what the group had taken is back."""

    async def story(stage: Stage) -> None:
        tasks = [asyncio.create_task(stage.ask(one)) for one in "abc"]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert stage.provider.broken_off == 1
        assert stage.bench.admission.gates.lines["p0/m"].gate.in_flight == 0

    play(story)


def test_a_deadline_of_ones_own_is_ones_own() -> None:
    """The impatient hears that its time is over; the others wait on."""

    async def story(stage: Stage) -> None:
        now = stage.clock.now
        hasty = stage.ask("hasty", deadline=now + 0.02, deadline_is_callers=True)
        answers = await asyncio.gather(hasty, stage.ask("calm"), return_exceptions=True)
        assert isinstance(answers[0], DeadlineExceeded)
        assert not isinstance(answers[1], BaseException)
        assert stage.provider.sizes == [2]

    play(story)


def test_the_keys_limits_are_asked_by_each_call() -> None:
    """Two of three are let in; nothing is taken from the key for the group itself."""

    async def story(stage: Stage) -> None:
        key = stage.bench.policy.keys[b"w"]
        answers = await asyncio.gather(*(stage.ask(one, key=key) for one in "abc"), return_exceptions=True)
        refused = [one for one in answers if isinstance(one, GatewayError)]
        assert [type(one) for one in refused] == [KeyRateLimited]
        assert stage.provider.sizes == [2]

    key = Key("web", "web", b"w", limits=Limits(requests_per_min=2, request_burst=2))
    play(story, keys=[key])


def test_an_idempotency_key_is_its_calls_own() -> None:
    """Repeated, it has its own part of the group's answer again."""

    async def story(stage: Stage) -> None:
        first = await asyncio.gather(*(stage.ask(one, idempotency_key=one.encode()) for one in ("one", "three")))
        again = await stage.ask("three", idempotency_key=b"three")
        assert lengths(first[1][1]) == lengths(again[1]) == [5]
        assert stage.provider.sizes == [2]

    play(story, caching=Caching(keep_s=60.0))


def test_lines_of_a_batch_go_together_where_their_rules_have_it() -> None:
    """Also where live calls of the model do not."""

    async def story(stage: Stage) -> None:
        await stage.ask_all(*"abcdefgh", group_most=8)
        assert stage.provider.sizes == [8]

    play(story, None)


def test_moderations_go_together_too() -> None:
    """They have no index, and no tokens."""

    async def story(stage: Stage) -> None:
        flags = orjson.dumps({"id": "modr-1", "model": "m", "results": [{"flagged": False}, {"flagged": True}]})
        stage.provider.scripts.append(whole(flags))
        answers: Sequence[tuple[Call, Reply]] = await stage.ask_all("a", "b", endpoint=MODERATIONS, path="/moderations")
        assert [orjson.loads(reply.body)["results"][0]["flagged"] for _, reply in answers] == [False, True]
        assert stage.provider.sizes == [2]

    play(story)


def test_a_group_is_counted_once_and_so_is_each_of_its_calls() -> None:
    async def story(stage: Stage) -> None:
        await stage.ask_all("a", "bb", "ccc")
        await stage.ask_all("a", "bb")
        metrics = stage.metrics
        assert stage.provider.sizes == [3, 2]
        assert dict(metrics.groups.totals) == {("m",): 2}
        assert dict(metrics.grouped_calls.totals) == {("m",): 5}

    play(story)


def test_each_of_its_calls_says_which_targets_a_group_went_past() -> None:
    """As if it had gone alone."""

    async def story(stage: Stage) -> None:
        stage.bench.admission.health.force("p0/m", "drained")
        await asyncio.gather(stage.ask("a"), stage.ask("b"), return_exceptions=True)
        assert [one.call.skips for one in stage.bench.meter.accounts] == [{"p0/m": Skip("p0/m", "drained", 0)}] * 2

    play(story, breaker=BreakerRules(hold_for_s=dict.fromkeys(LANES, 0.0)))
