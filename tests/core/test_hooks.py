"""The hooks of a route: which are there, and in which order the features of a route have their turn."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace

from gateway.core.call import (
    Call,
    CallFeature,
    CallRecord,
    CallRoute,
    Chunks,
    Headers,
    Hooks,
    Open,
    Opened,
    Reply,
    Serve,
    Stream,
    compile_hooks,
    features_of,
)
from gateway.core.ledger import answer_headers
from tests.support.flow import Bench, ScriptedUpstream, streamed


class Reader(CallFeature):
    """A feature that reads requests."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        self._seen.append(self._name)


def unserved(_call: Call) -> Awaitable[Reply]:
    raise AssertionError("no call is served here")


def unopened(_call: Call) -> Awaitable[Opened]:
    raise AssertionError("no call is served here")


def test_an_outer_feature_reads_a_request_after_the_inner_ones() -> None:
    """So it may change what they have read."""
    seen: list[str] = []
    hooks = compile_hooks([Reader("outer", seen), CallFeature(), Reader("inner", seen)], unserved, unopened)

    for read in hooks.read:
        read(Bench([ScriptedUpstream()]).call(), {})

    assert seen == ["inner", "outer"]


def test_a_route_without_features_has_no_hooks() -> None:
    """Its calls are served by the pipeline itself, and by nobody else."""
    hooks = compile_hooks([CallFeature()], unserved, unopened)

    assert (hooks.serve, hooks.open) == (unserved, unopened)
    assert (hooks.read, hooks.relay, hooks.headers, hooks.closed) == ((), (), (), ())


def test_the_hooks_of_a_route_without_products_are_the_pipelines_own() -> None:
    """Nothing stands between such a call and its provider."""
    bench = Bench([ScriptedUpstream()])
    bench.pipeline.install(())
    call = bench.call()

    hooks = bench.pipeline.hooks_of(
        CallRoute(call.route.policy, call.route.key, call.route.model, call.request.endpoint, has_own_credential=False),
        frozenset(),
    )

    assert (hooks.serve, hooks.open) == (bench.pipeline.answer, bench.pipeline.attempts.open)
    assert hooks == Hooks(bench.pipeline.answer, bench.pipeline.attempts.open)


class Noting(CallFeature):
    """A feature that notes when its hooks are called."""

    name = "noting"
    options: frozenset[bytes] = frozenset()

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature:
        return self

    def note(self, hook: str) -> None:
        self._seen.append(f"{hook} {self._name}")

    async def serve(self, call: Call, next: Serve) -> Reply:
        self.note("serve")
        reply = await next(call)
        self.note("served")
        return reply

    async def open(self, call: Call, next: Open) -> Opened:
        self.note("open")
        opened = await next(call)
        self.note("opened")
        return opened

    def relay(self, call: Call, opened: Stream, chunks: Chunks) -> Chunks:
        self.note("relay")
        return self.watched(chunks)

    async def watched(self, chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            self.note("chunk")
            yield chunk

    def headers(self, call: Call, headers: Headers) -> None:
        self.note("headers")

    def closed(self, record: CallRecord) -> None:
        self.note("closed")


async def test_an_outer_feature_has_the_call_first_and_its_stream_last() -> None:
    """Whatever it asks for, the inner ones see; whatever they make of the answer, it sees."""
    seen: list[str] = []
    event = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    bench = Bench([ScriptedUpstream(streamed(event))])
    bench.pipeline.install((Noting("outer", seen), Noting("inner", seen)))

    await bench.serve(stream=True)

    order = "serve outer, serve inner, open outer, open inner, opened inner, opened outer, relay inner, relay outer, "
    order += (
        "headers outer, headers inner, served inner, served outer, chunk inner, chunk outer, closed outer, closed inner"
    )
    assert seen == order.split(", ")


class Absent(CallFeature):
    """A product that has a feature for calls with a credential of their own only."""

    name = "absent"
    options: frozenset[bytes] = frozenset()
    absent_headers: tuple[tuple[bytes, bytes], ...] = ((b"x-gateway-absent", b"yes"),)

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        return self if route.has_own_credential else None


def test_a_product_without_a_feature_for_a_route_says_so_in_its_answers() -> None:
    """Where it has one that is the feature's to say."""
    call = Bench([ScriptedUpstream()]).call()
    route = CallRoute(
        call.route.policy, call.route.key, call.route.model, call.request.endpoint, has_own_credential=False
    )

    for own, headers in ((False, [(b"x-gateway-absent", b"yes")]), (True, [])):
        features, absent = features_of([Absent()], replace(route, has_own_credential=own), frozenset())
        call.change_route(replace(call.route, hooks=compile_hooks(features, unserved, unopened, absent)))
        assert [one for one in answer_headers(call, 0.0) if one[0] == b"x-gateway-absent"] == headers
