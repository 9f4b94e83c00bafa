"""Which targets a call may go to, by what it needs of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson
import pytest

from gateway.core.call import Call
from gateway.core.errors import InvalidRequest
from gateway.core.openai.bodies import Capabilities
from gateway.dialects.base import ServerFacts
from gateway.dialects.embeddings import EmbeddingsOverGenerate
from gateway.dialects.endpoints import EMBEDDINGS
from tests.rows import rows
from tests.support.flow import Bench, ScriptedUpstream, whole

EVERYTHING = Capabilities()
NO_TOOLS = Capabilities(tools=False)
NO_IMAGES = Capabilities(images=False)
SMALL = Capabilities(context_window=1000)
TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}]}
IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}
LONG = {"messages": [{"role": "user", "content": "words and more words " * 1000}]}


def bench(*capabilities: Capabilities, fallbacks: int = 0, contexts: int = 0) -> Bench:
    upstreams = [ScriptedUpstream(whole(), whole()) for _ in capabilities]
    return Bench(upstreams, capabilities=capabilities, fallbacks=fallbacks, contexts=contexts)


def asking(bench: Bench, body: Mapping[str, object]) -> Call:
    return bench.call(body=orjson.dumps({"model": "m", "messages": [], **body}))


def sent(bench: Bench) -> list[int]:
    return [len(upstream.sent) for upstream in bench.upstreams]


@pytest.mark.parametrize(("lacking", "body"), [(NO_TOOLS, TOOLS), (NO_IMAGES, IMAGE), (SMALL, LONG)])
async def test_who_cannot_serve_the_call_is_passed_over(lacking: Capabilities, body: Mapping[str, object]) -> None:
    """The next one gets it; a call that does not need what is lacking goes to the first."""
    two = bench(lacking, EVERYTHING)

    await two.pipeline.handle(asking(two, body))
    assert sent(two) == [0, 1]
    await two.pipeline.handle(asking(two, {}))
    assert sent(two) == [1, 1]


async def test_a_model_that_is_known_to_read_less_is_passed_over() -> None:
    """Where the call is surely longer: an estimate that is a little above is the provider's to judge."""
    length = 5000  # tokens, about
    for most, expected in ((length // 2, [0, 1]), (length - 500, [1, 0]), (None, [1, 0])):
        two = bench(EVERYTHING, EVERYTHING)
        call = asking(two, LONG)
        first, second = call.route.model.targets
        first = replace(first, find_most_input={first.model or "m": most}.get, gaps={"chat": lambda _body: ()})
        call.change_route(
            replace(
                call.route,
                model=replace(call.route.model, targets=(first, second), plan=(first, second), prefers_native=False),
            )
        )

        await two.pipeline.handle(call)

        assert sent(two) == expected


@rows(
    ("converted", "orders", "prefers", "failing", "expected"),
    [
        ((0,), (1, 1, 1), True, (), [1]),
        ((0,), (1, 1, 1), False, (), [0]),
        ((0,), (1, 1, 1), True, (1,), [1, 2]),
        ((0,), (1, 1, 1), True, (1, 2), [1, 2, 0]),
        ((0,), (1, 2, 2), True, (), [0]),
        ((0, 1), (1, 1, 2), True, (0,), [0, 1]),
        ((0, 1, 2), (1, 1, 1), True, (), [0]),
    ],
)
async def test_who_speaks_the_callers_language_goes_first(
    converted: Sequence[int], orders: Sequence[int], prefers: bool, failing: Sequence[int], expected: list[int]
) -> None:
    """Of one order, before those that its call is converted for; of one kind, as they are listed."""
    three = bench(EVERYTHING, EVERYTHING, EVERYTHING)
    for number in failing:
        three.upstreams[number].scripts[0] = whole(b'{"error": {"message": "no"}}', 500)
    call = asking(three, {})
    targets = tuple(
        replace(target, order=order, gaps={"chat": lambda _body: ()} if number in converted else {})
        for number, (target, order) in enumerate(zip(call.route.model.targets, orders, strict=True))
    )
    call.change_route(
        replace(call.route, model=replace(call.route.model, targets=targets, plan=targets, prefers_native=prefers))
    )

    await three.pipeline.handle(call)

    asked = [[target.name for target in targets].index(attempt.target.name) for attempt in call.attempts]
    assert asked == expected


async def test_a_fallback_stands_in_for_what_the_model_lacks() -> None:
    """None of the model's own targets can do it."""
    two = bench(NO_TOOLS, EVERYTHING, fallbacks=1)

    await two.pipeline.handle(asking(two, TOOLS))

    assert sent(two) == [0, 1]


async def test_what_a_fallback_would_lose_is_looked_for_once_it_is_needed() -> None:
    """That is a look at each message; most calls are served where nothing is lost."""
    two = bench(EVERYTHING, EVERYTHING, fallbacks=1)
    two.upstreams[0].scripts[1] = whole(b'{"error": {"message": "no"}}', 500)
    looks: list[object] = []

    def look(body: dict[str, object]) -> tuple[()]:
        looks.append(body["model"])
        return ()

    for expected in ([], ["m"]):
        call = asking(two, {})
        first, second = call.route.model.plan
        second = replace(second, gaps={"chat": look})
        call.change_route(replace(call.route, model=replace(call.route.model, plan=(first, second))))

        await two.pipeline.handle(call)

        assert looks == expected
    assert sent(two) == [2, 1]


async def test_who_fails_is_not_followed_by_one_that_cannot() -> None:
    """Retries keep to the targets that can serve the call."""
    three = bench(EVERYTHING, NO_TOOLS, EVERYTHING)
    three.upstreams[0].scripts[0] = whole(b'{"error": {"message": "no"}}', 500)

    await three.pipeline.handle(asking(three, TOOLS))

    assert sent(three) == [1, 0, 1]


async def test_a_call_that_nobody_can_serve_is_told_what_is_lacking() -> None:
    """At once, without asking anybody."""
    two = bench(NO_TOOLS, NO_TOOLS)

    with pytest.raises(InvalidRequest, match="it needs tools") as error:
        await two.pipeline.handle(asking(two, TOOLS))

    assert (error.value.status, error.value.code) == (400, "unsupported_by_targets")
    assert sent(two) == [0, 0]
    assert two.account.outcome == "unsupported_by_targets"


async def test_a_field_that_no_target_takes_is_refused_with_its_reason() -> None:
    """What it is, and what to send instead: as token ids for embeddings at Gemini."""
    one = bench(EVERYTHING)
    call = asking(one, {"input": [[1, 2]]})
    call.replace_request(replace(call.request, endpoint=EMBEDDINGS, path="/embeddings"), call.parsed)
    target = replace(
        call.route.model.targets[0],
        gaps={"embeddings": lambda body: EmbeddingsOverGenerate().gaps(body, ServerFacts())},
    )
    call.change_route(replace(call.route, model=replace(call.route.model, targets=(target,), plan=(target,))))
    call.parsed = orjson.loads(call.request.body)

    with pytest.raises(
        InvalidRequest, match=r"input \(the target takes texts, .*: send the texts themselves\)"
    ) as error:
        await one.pipeline.handle(call)

    assert error.value.param == "input"


async def test_a_call_too_long_for_all_goes_to_a_larger_window_at_once() -> None:
    """No provider has to say so first."""
    two = bench(SMALL, EVERYTHING, contexts=1)

    reply = await two.pipeline.handle(asking(two, LONG))

    assert reply.status == 200
    assert sent(two) == [0, 1]


async def test_a_call_too_long_for_some_stays_with_the_model() -> None:
    """Larger windows of other models are for those whom nobody else can serve."""
    three = bench(SMALL, EVERYTHING, EVERYTHING, contexts=1)

    await three.pipeline.handle(asking(three, LONG))

    assert sent(three) == [0, 1, 0]


async def test_the_tokens_asked_for_count_for_the_window() -> None:
    """Input and output share it."""
    two = bench(SMALL, EVERYTHING)
    call = asking(two, {"max_tokens": 2000})
    call.request.max_tokens = 2000

    await two.pipeline.handle(call)

    assert sent(two) == [0, 1]
