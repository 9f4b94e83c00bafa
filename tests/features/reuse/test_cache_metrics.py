"""The metrics of caches: what layers have said and spared, and what the store keeps."""

from __future__ import annotations

from gateway.core.telemetry import Telemetry
from gateway.features.reuse.savings import CacheMetrics
from tests.core.test_telemetry import make, scrape, spared


def meter() -> tuple[Telemetry, CacheMetrics]:
    """Telemetry with the metrics of caches."""
    telemetry, _, _ = make()
    caches = CacheMetrics()
    telemetry.register(caches, caches.count)
    return telemetry, caches


async def test_what_each_layer_said_and_what_it_saved_is_counted() -> None:
    """A miss in one layer and a hit in the next are two results of one call; nothing was used, so nothing is charged."""
    telemetry, _ = meter()

    telemetry.settled(spared())
    telemetry.settled(spared(result="miss", layer="", saved=None, saved_usd=None, tried=[("exact", "miss")]))
    samples = {name: value for name, value in scrape(telemetry).items() if "_cache_" in name and "created" not in name}

    labels = "('layer', 'semantic'), ('model', 'm')"
    assert samples == {
        "gateway_cache_requests_total[('layer', 'exact'), ('result', 'miss')]": 2,
        "gateway_cache_requests_total[('layer', 'semantic'), ('result', 'hit')]": 1,
        f"gateway_cache_saved_tokens_total[('kind', 'input'), {labels}]": 100,
        f"gateway_cache_saved_tokens_total[('kind', 'output'), {labels}]": 20,
        f"gateway_cache_saved_usd_total[('key', 'web'), {labels}]": 0.25,
    }


async def test_what_was_spared_at_an_unknown_price_saves_no_money() -> None:
    """Its tokens are counted; a guess at its price is not."""
    telemetry, _ = meter()

    telemetry.settled(spared(saved_usd=None))
    names = "".join(scrape(telemetry))

    assert "gateway_cache_saved_tokens_total[" in names
    assert "gateway_cache_saved_usd_total[" not in names


async def test_the_size_of_the_store_is_what_it_is_now() -> None:
    """By kind; what is gone at the next look is forgotten."""
    telemetry, caches = meter()

    caches.set_store({"answers": {"entries": 3, "bytes": 3000}, "vectors": {"entries": 1, "bytes": 400}})
    caches.set_store({"answers": {"entries": 2, "bytes": 2000}, "records": {"entries": 0, "bytes": 0, "early": 5}})
    assert scrape(telemetry)["gateway_records_forgotten_early_total[]"] == 5
    samples = {name: value for name, value in scrape(telemetry).items() if "_cache_" in name}

    assert samples == {
        "gateway_cache_entries[('kind', 'answers')]": 2,
        "gateway_cache_entries[('kind', 'records')]": 0,
        "gateway_cache_bytes[('kind', 'answers')]": 2000,
        "gateway_cache_bytes[('kind', 'records')]": 0,
    }
