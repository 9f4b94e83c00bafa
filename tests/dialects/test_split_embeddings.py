"""Texts for embeddings that go to a model which takes one at a time: one call to everybody, several to the target's limits."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from gateway.core.errors import GatewayError
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import Model
from gateway.dialects.base import ModelFacts
from gateway.dialects.endpoints import EMBEDDINGS
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint
from gateway.dialects.upstream import Converting
from tests.support.flow import Bench, Script, ScriptedUpstream, whole

SAID = whole(orjson.dumps({"embedding": [0.5], "inputTextTokenCount": 2}))
TITAN = ModelFacts(embeds="titan")


class _AtTitan(Bench):
    def _model(self) -> Model:
        model = super()._model()
        spoken = TargetLanguages("bedrock", frozenset(("converse",)), "bedrock", lambda _model: TITAN)
        (target,) = model.plan
        around = Converting(target.upstream, spoken, self.clock, lambda: "abc", learned=None)
        target = replace(target, converters_by_path=around.converters_by_path, gaps=gaps_by_endpoint(spoken, "m"))
        return replace(model, targets=(target,), plan=(target,))


@pytest.mark.parametrize("refused", [False, True])
async def test_each_text_is_a_request_of_the_targets(refused: bool) -> None:
    scripts = [SAID] * 9 + ([Script(500, (), [b"{}"])] if refused else [SAID])
    bench = _AtTitan([ScriptedUpstream(*scripts)], limits=[Limits(requests_per_min=60)])
    body = {"model": "m", "input": [str(one) for one in range(10)]}
    given = {"body": orjson.dumps(body), "parsed": body, "endpoint": EMBEDDINGS, "path": EMBEDDINGS.path}
    if refused:
        with pytest.raises(GatewayError):
            await bench.serve(**given)
    else:
        reply, said = await bench.serve(**given)
        assert (reply.status, orjson.loads(said)["usage"]["prompt_tokens"]) == (200, 20)
        assert bench.account.usage is not None
        assert bench.account.usage.input == 20

    assert len(bench.upstreams[0].sent) == 10
    (line,) = bench.admission.gates.lines.values()
    limit = next(one.limit for one in line.gate.limits.table.known if one.part == 0)
    assert limit.level_at(bench.clock.monotonic()) == pytest.approx(limit.capacity - 10, abs=1e-6)
