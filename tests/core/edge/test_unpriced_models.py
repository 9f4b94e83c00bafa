"""A model without a price and a key with a budget: the same on every endpoint, and named by `check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.core.errors import Forbidden
from gateway.core.snapshot import Key, Rates, no_rates
from gateway.core.types import Endpoint
from gateway.dialects.endpoints import ENDPOINTS, GENERATE
from gateway.products.realtime.http import REALTIME
from tests.rows import rows
from tests.support.configs import load_text
from tests.support.flow import RATES, Bench, ScriptedUpstream, whole

TEAM = Key("team", "team", b"", budget_usd_per_day=5.0)
OPEN = replace(TEAM, allow_unpriced=True)
PRICED = [one for one in (*ENDPOINTS, GENERATE, REALTIME) if one.tokens != "none" and one.name != "count_tokens"]
BY_THE_HOUR = Rates(0.0, 0.0, 0.0, audio_second_usd=1e-4, prices_tokens=False)
FREE = Rates(0.0, 0.0, 0.0)


def bench(rates: Rates | None) -> Bench:
    return Bench([ScriptedUpstream(whole())], rates=rates)


@pytest.mark.parametrize("endpoint", PRICED, ids=lambda endpoint: endpoint.name)
@pytest.mark.parametrize("rates", [None, BY_THE_HOUR], ids=["no price", "another unit"])
async def test_a_key_with_a_budget_is_refused_what_has_no_price(endpoint: Endpoint, rates: Rates | None) -> None:
    stage = bench(rates)
    call = stage.call(key=TEAM, endpoint=endpoint, path=endpoint.path)

    with pytest.raises(Forbidden) as refusal:
        await stage.admission.enter(call)

    assert refusal.value.code == "unpriced_endpoint"
    assert "p0/m" in str(refusal.value)
    assert not stage.admission.budgets._flying


async def test_a_fallback_without_a_price_is_one_of_them() -> None:
    """For a context that is too long as well: the call may end there."""
    stage = Bench([ScriptedUpstream(whole()), ScriptedUpstream(whole())], contexts=1)
    (unpriced,) = stage.policy.models["m"].context_plan
    object.__setattr__(unpriced, "find_rates", no_rates)

    with pytest.raises(Forbidden) as refusal:
        await stage.admission.enter(stage.call(key=TEAM))

    assert "p1/m" in str(refusal.value)


@rows("key, rates", [(OPEN, None), (replace(TEAM, budget_usd_per_day=None), None), (TEAM, FREE), (TEAM, RATES)])
async def test_others_are_served(key: Key, rates: Rates | None) -> None:
    """A price of nothing is one."""
    reply, _ = await bench(rates).serve(key=key)

    assert reply.status == 200


CONFIG = (
    "providers:\n  own: {dialect: openai, base_url: 'http://127.0.0.1:9/v1', api_key: k}\n"
    "models:\n  m: {targets: [{provider: own, model: house-model}]}\n  n: {targets: [own/house-model]}\n"
    "  p: {targets: [{provider: own, model: third, price: {input_usd_per_million: 1}}], fallbacks: [m]}\n"
    "  free: {targets: [{provider: own, model: other, price: {input_usd_per_million: 0}}]}\n"
    "keys:\n  - {name: team, key: sk-0123456789abcdef0123456789, budget_usd_per_day: 5%s}\n"
)


@rows(
    "changes, told",
    [
        ("", "key team has a budget and is refused models with a target that has no price: own/house-model (m, n, p)"),
        (", allow_unpriced: true", "key team: its budget does not count what has no price: own/house-model (m, n, p)"),
        (", models: [free]", None),
    ],
)
def test_check_names_what_a_budget_cannot_hold(tmp_path: Path, changes: str, told: str | None) -> None:
    notices: Any = [notice for notice in load_text(tmp_path, CONFIG % changes).notices if "no price" in notice]

    assert len(notices) == (told is not None)
    assert told is None or notices[0].startswith(told)
