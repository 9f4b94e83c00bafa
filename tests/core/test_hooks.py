"""The hooks of a route: which are there, and in which order the features of a route have their turn."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace

from gateway.core.call import Call, CallFeature, Opened, Reply, RouteFacts, compile_hooks, features_of
from gateway.core.ledger import answer_headers
from tests.support.flow import Bench, ScriptedUpstream


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


class Absent(CallFeature):
    """A product that has a feature for calls with a credential of their own only."""

    name = "absent"
    options: frozenset[bytes] = frozenset()
    absent_headers: tuple[tuple[bytes, bytes], ...] = ((b"x-gateway-absent", b"yes"),)

    def for_route(self, facts: RouteFacts, requested: frozenset[bytes]) -> CallFeature | None:
        return self if facts.has_own_credential else None


def test_a_product_without_a_feature_for_a_route_says_so_in_its_answers() -> None:
    """Where it has one that is the feature's to say."""
    call = Bench([ScriptedUpstream()]).call()
    facts = RouteFacts(call.policy, call.key, call.model, call.endpoint, has_own_credential=False)

    for own, headers in ((False, [(b"x-gateway-absent", b"yes")]), (True, [])):
        features, absent = features_of([Absent()], replace(facts, has_own_credential=own), frozenset())
        call.hooks = compile_hooks(features, unserved, unopened, absent)
        assert [one for one in answer_headers(call, 0.0) if one[0] == b"x-gateway-absent"] == headers
