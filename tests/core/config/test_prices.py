"""What tokens cost, without the network."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.core.config import prices
from gateway.core.config.prices import fixed_rates, price_finder
from gateway.core.snapshot.snapshot import Provider, Rates
from tests.rows import rows
from tests.support.configs import NOW, ROOT, load_text

OPENAI = Provider(name="p", dialect="openai", base_url="https://api.openai.com/v1")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any socket fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("a price must not need the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_known_model_has_rates_per_token() -> None:
    """Dollars per token, cached input apart."""
    rates = price_finder(OPENAI, NOW)("gpt-4o")

    assert rates is not None
    assert (rates.input_usd, rates.output_usd, rates.cached_input_usd) == pytest.approx((2.5e-6, 10e-6, 1.25e-6))


def test_model_without_output_or_cache_price_has_plain_ones() -> None:
    """Embeddings make no tokens; without a cache price cached input costs as input does."""
    rates = price_finder(OPENAI, NOW)("text-embedding-3-small")

    assert rates is not None
    assert (rates.input_usd, rates.output_usd, rates.cached_input_usd) == pytest.approx((2e-8, 0, 2e-8))


@rows("name", ["no-such-model", "", "x" * 300, "gpt-4o" * 100, "\ud800", "💥"])
def test_unknown_model_is_unpriced(name: str) -> None:
    """Whatever a client calls a model, the answer is rates or None."""
    assert price_finder(OPENAI, NOW)(name) is None


@rows("url", ["https://x.openai.azure.com", "emulator://default", "http://127.0.0.1:9"])
@rows("dialect", ["openai", "azure"])
def test_unknown_host_is_priced_by_its_dialect(dialect: str, url: str) -> None:
    """A private address speaks for nobody, so the dialect's own prices count."""
    provider = Provider(name="p", dialect="azure" if dialect == "azure" else "openai", base_url=url)

    assert price_finder(provider, NOW)("gpt-4o") is not None


def test_known_host_is_priced_as_itself() -> None:
    """An OpenAI-compatible provider does not get OpenAI's prices."""
    groq = Provider(name="p", dialect="openai", base_url="https://api.groq.com/openai/v1")

    assert price_finder(groq, NOW)("llama-3.3-70b-versatile") is not None
    assert price_finder(groq, NOW)("gpt-4o") is None


def test_what_is_cached_for_an_hour_has_a_price_of_its_own() -> None:
    """Anthropic takes twice the input's price for it, and a quarter more for five minutes."""
    claude = Provider(name="p", dialect="anthropic", base_url="https://api.anthropic.com")
    rates = price_finder(claude, NOW)("claude-sonnet-4-6")

    assert rates is not None
    assert (rates.cache_write_usd, rates.cache_write_1h_usd) == pytest.approx(
        (1.25 * rates.input_usd, 2 * rates.input_usd)
    )
    assert fixed_rates(1, 2, None, 3, 4)("any") == Rates(1e-6, 2e-6, 1e-6, 3e-6, 4e-6)


def test_lookups_are_remembered_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated name costs nothing; a stream of new ones does not grow the memory."""
    assert prices.MAX_REMEMBERED_PRICES <= 4096
    monkeypatch.setattr(prices, "MAX_REMEMBERED_PRICES", 50)
    find = price_finder(OPENAI, NOW)
    first = find("gpt-4o-mini")

    assert find("gpt-4o-mini") is first
    for number in range(100):
        find(f"gpt-4o-mini-{number}")
    again = find("gpt-4o-mini")
    assert again == first
    assert again is not first


def test_price_in_the_config_wins(tmp_path: Path) -> None:
    """Per million in the file, per token in the snapshot; cached input defaults to input."""
    assert fixed_rates(2, 8, 1)("any") == Rates(2e-6, 8e-6, 1e-6)
    text = (
        "providers: {p: {dialect: openai, base_url: 'https://x'}}\n"
        "models: {gpt-4o: {targets: [{provider: p, price: {input_usd_per_million: 3, output_usd_per_million: 9}}]}}"
    )

    assert load_text(tmp_path, text).models["gpt-4o"].targets[0].find_rates("gpt-4o") == Rates(3e-6, 9e-6, 3e-6)


def test_price_list_is_not_loaded_when_every_target_states_its_price(tmp_path: Path) -> None:
    """Start time and memory are not spent on what nobody asks."""
    (tmp_path / "c.yaml").write_text(
        "providers: {p: {dialect: openai, base_url: 'https://x'}}\n"
        "models: {m: {targets: [{provider: p, price: {input_usd_per_million: 3}}]}}\npassthrough: p\n"
    )
    script = (
        "import sys, pathlib; from tests.support.configs import load; load(pathlib.Path(sys.argv[1]));"
        "sys.exit('genai_prices' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", script, tmp_path / "c.yaml"], cwd=ROOT, check=False, timeout=60)

    assert done.returncode == 0


def test_what_stands_around_a_name_of_a_vendors_own_is_left_out() -> None:
    """Not so behind OpenAI's API, where such a name is another model's."""
    google = Provider("g", "gemini", "https://generativelanguage.googleapis.com/v1beta")
    mantle = Provider("m", "anthropic", "https://bedrock-mantle.us-east-1.api.aws/anthropic/v1")

    assert price_finder(google, NOW)("models/gemini-2.5-flash") == price_finder(google, NOW)("gemini-2.5-flash")
    assert price_finder(mantle, NOW)("anthropic.claude-sonnet-4-5") is not None
    assert price_finder(OPENAI, NOW)("models/gpt-4o") is None
