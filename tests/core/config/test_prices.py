"""What tokens cost, without the network."""

from __future__ import annotations

import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.core import ledger
from gateway.core.errors import ConfigError
from gateway.core.ledger import usage_usd
from gateway.core.snapshot import Provider, Rates
from gateway.core.types import Usage, UsageParts
from gateway.dialects.known import price_finder
from tests.rows import rows
from tests.support.configs import ROOT, load_text

OPENAI = Provider(name="p", dialect="openai", base_url="https://api.openai.com/v1")


NOW = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()


def now() -> float:
    return NOW


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any socket fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("a price must not need the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_known_model_has_rates_per_token() -> None:
    """Dollars per token, cached input apart."""
    rates = price_finder(OPENAI, now)("gpt-4o")

    assert rates is not None
    assert (rates.input_usd, rates.output_usd, rates.cached_input_usd) == pytest.approx((2.5e-6, 10e-6, 1.25e-6))


def test_model_without_output_or_cache_price_has_plain_ones() -> None:
    """Embeddings make no tokens; without a cache price cached input costs as input does."""
    rates = price_finder(OPENAI, now)("text-embedding-3-small")

    assert rates is not None
    assert (rates.input_usd, rates.output_usd, rates.cached_input_usd) == pytest.approx((2e-8, 0, 2e-8))


@rows("name", ["no-such-model", "", "x" * 300, "gpt-4o" * 100, "\ud800", "💥"])
def test_unknown_model_is_unpriced(name: str) -> None:
    """Whatever a client calls a model, the answer is rates or None."""
    assert price_finder(OPENAI, now)(name) is None


@rows("url", ["https://x.openai.azure.com", "emulator://default", "http://127.0.0.1:9"])
@rows("dialect", ["openai", "azure"])
def test_unknown_host_is_priced_by_its_dialect(dialect: str, url: str) -> None:
    """A private address speaks for nobody, so the dialect's own prices count."""
    provider = Provider(name="p", dialect="azure" if dialect == "azure" else "openai", base_url=url)

    assert price_finder(provider, now)("gpt-4o") is not None


def test_known_host_is_priced_as_itself() -> None:
    """An OpenAI-compatible provider does not get OpenAI's prices."""
    groq = Provider(name="p", dialect="openai", base_url="https://api.groq.com/openai/v1")

    assert price_finder(groq, now)("llama-3.3-70b-versatile") is not None
    assert price_finder(groq, now)("gpt-4o") is None


def test_what_is_cached_for_an_hour_has_a_price_of_its_own() -> None:
    """Anthropic takes twice the input's price for it, and a quarter more for five minutes."""
    claude = Provider(name="p", dialect="anthropic", base_url="https://api.anthropic.com")
    rates = price_finder(claude, now)("claude-sonnet-4-6")

    assert rates is not None
    assert (rates.cache_write_usd, rates.cache_write_1h_usd) == pytest.approx(
        (1.25 * rates.input_usd, 2 * rates.input_usd)
    )


def test_lookups_are_remembered_but_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated name costs nothing; a stream of new ones does not grow the memory."""
    assert ledger.MAX_REMEMBERED_PRICES <= 4096
    monkeypatch.setattr(ledger, "MAX_REMEMBERED_PRICES", 50)
    find = price_finder(OPENAI, now)
    first = find("gpt-4o-mini")

    assert find("gpt-4o-mini") is first
    for number in range(100):
        find(f"gpt-4o-mini-{number}")
    again = find("gpt-4o-mini")
    assert again == first
    assert again is not first


def test_price_in_the_config_wins(tmp_path: Path) -> None:
    """Per million in the file, per token in the snapshot; cached input defaults to input."""
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

    assert price_finder(google, now)("models/gemini-2.5-flash") == price_finder(google, now)("gemini-2.5-flash")
    assert price_finder(mantle, now)("anthropic.claude-sonnet-4-5") is not None
    assert price_finder(OPENAI, now)("models/gpt-4o") is None


DEEPSEEK = Provider("d", "openai", "https://api.deepseek.com/v1")
GEMINI = Provider("g", "gemini", "https://generativelanguage.googleapis.com/v1beta")
CLAUDE = Provider("c", "anthropic", "https://api.anthropic.com")


def at(hour: int, minute: int = 0) -> float:
    return datetime(2026, 11, 29, hour, minute, tzinfo=UTC).timestamp()


def test_a_price_follows_the_hour() -> None:
    """DeepSeek's is double at 01:00-04:00 and 06:00-10:00 UTC; the config is loaded once."""
    times = [at(0, 30), at(0, 59), at(1), at(3, 59), at(4), at(7)]
    clock = iter(times)
    find = price_finder(DEEPSEEK, lambda: next(clock))

    found = [find("deepseek-v4-pro") for _ in times]

    assert [rates and rates.input_usd for rates in found] == pytest.approx(
        [0.66e-6, 0.66e-6, *2 * [1.32e-6], 0.66e-6, 1.32e-6]
    )
    soon = [rates.soon and rates.soon.input_usd for rates in found if rates]
    assert soon == [None, pytest.approx(1.32e-6), None, pytest.approx(0.66e-6), None, None]


def test_no_clock_is_asked_for_a_price_that_never_changes() -> None:
    """It is asked once, by the first look."""
    clock = iter([NOW])
    find = price_finder(OPENAI, lambda: next(clock))

    assert find("gpt-4o") is find("gpt-4o")


PUBLISHED: list[tuple[str, Provider, str, Usage, float]] = [
    ("above 200k tokens all cost more", GEMINI, "gemini-2.5-pro", Usage(200_001, 1000), 0.5150025),
    ("at 200k they do not", GEMINI, "gemini-2.5-pro", Usage(200_000, 1000), 0.26),
    (
        "a batch, whose cache reads are not halved",
        GEMINI,
        "gemini-2.5-pro",
        Usage(2000, 1000, 1000, tier="batch"),
        0.00575,
    ),
    (
        "flex at Gemini",
        GEMINI,
        "gemini-3.8-flash-tts",
        Usage(1000, 1000, tier="flex"),
        0.00475,
    ),
    ("pictures", GEMINI, "gemini-3-pro-image-preview", Usage(1000, 1000, parts=UsageParts(image_output=900)), 0.1112),
    ("flex", OPENAI, "gpt-5.4", Usage(1000, 1000, 500, tier="flex"), 0.00819),
    ("priority", OPENAI, "gpt-5.4", Usage(1000, 1000, tier="priority"), 0.035),
    ("scale, which was paid for beforehand", OPENAI, "gpt-5.4", Usage(1000, 1000, tier="scale"), 0.0175),
    ("an hour of sound", OPENAI, "whisper-1", Usage(0, 0, parts=UsageParts(audio_s=3600)), 0.36),
    ("characters", OPENAI, "tts-1", Usage(0, 0, parts=UsageParts(characters=3000)), 0.045),
    ("searches", CLAUDE, "claude-sonnet-4-6", Usage(1000, 0, parts=UsageParts(searches=2)), 0.023),
]


@rows("provider, model, usage, usd", [row[1:] for row in PUBLISHED], ids=[row[0] for row in PUBLISHED])
def test_published_prices(provider: Provider, model: str, usage: Usage, usd: float) -> None:
    """Worked out by hand from the providers' price pages."""
    assert usage_usd(price_finder(provider, now)(model), usage) == pytest.approx(usd, abs=1e-9)


def test_a_target_states_prices_by_tier_modality_and_length(tmp_path: Path) -> None:
    """What a service tier or a longer input does not name stays as it is beside it."""
    text = (
        "providers: {p: {dialect: openai, base_url: 'https://x'}}\n"
        "models:\n  m:\n    targets:\n      - provider: p\n        price:\n"
        "          {input_usd_per_million: 1.25, output_usd_per_million: 10, cached_input_usd_per_million: 0.125,\n"
        "           image_output_usd_per_million: 120, search_usd_per_thousand: 10,\n"
        "           above: [{input_tokens: 200000, input_usd_per_million: 2.5}],\n"
        "           service_tiers: {flex: {input_usd_per_million: 0.5}, reserved: {output_usd_per_million: 1}}}\n"
    )
    rates = load_text(tmp_path, text).models["m"].targets[0].find_rates("m")

    assert usage_usd(rates, Usage(200_000, 1000, 1000)) == pytest.approx(199_000 * 1.25e-6 + 0.000125 + 0.01)
    assert usage_usd(rates, Usage(300_000, 1000, 1000)) == pytest.approx(299_000 * 2.5e-6 + 0.000125 + 0.01)
    assert usage_usd(rates, Usage(300_000, 1000, tier="flex")) == pytest.approx(0.15 + 0.01)
    assert usage_usd(rates, Usage(1000, 1000, tier="reserved")) == pytest.approx(0.00125 + 0.001)
    assert usage_usd(rates, Usage(0, 1000, parts=UsageParts(image_output=900, searches=3))) == pytest.approx(
        0.001 + 0.108 + 0.03
    )


PRICED = (
    "providers: {{p: {{dialect: openai, base_url: 'https://x'}}}}\n"
    "models: {{m: {{targets: [{{provider: p, price: {}}}]}}}}"
)


@rows(
    "price, problem",
    [
        ("{output_usd_per_million: 1}", "price.input_usd_per_million: is missing"),
        ("{input_usd_per_million: 1, above: [{input_usd_per_million: 2}]}", "price.above[0].input_tokens: is missing"),
        (
            "{input_usd_per_million: 1, above: [{input_tokens: 9, output_usd_per_million: 2}]}",
            "price: above[0] has output_usd_per_million, which has no price for less input: state that beside above",
        ),
        (
            "{input_usd_per_million: 1, service_tiers: {flex: {inputs: 1}}}",
            "price.service_tiers.flex.inputs: unknown field",
        ),
        (
            "{output_usd_per_million: 1}",
            "price.input_usd_per_million: is missing: write what a million tokens of input cost (0: they are free), or a "
            "price by the character, hour of sound, picture or call",
        ),
        (
            "{input_usd_per_million: 1, above: [{input_tokens: 9, input_usd_per_million: 2}, {input_tokens: 9}]}",
            "price: above[1] has the input_tokens of above[0]: one entry says all prices from there on",
        ),
        (
            "{input_usd_per_million: 1, service_tiers: {flex: {service_tiers: {}}}}",
            "targets[0].price.service_tiers.flex.service_tiers: unknown field here: it belongs into "
            "models.m.targets[0].price",
        ),
        (
            "{input_usd_per_million: 1, service_tiers: {default: {input_usd_per_million: 2}}}",
            "price: service_tiers.default is the usual tier: state its prices beside service_tiers",
        ),
        (
            "{input_usd_per_million: 1, service_tiers: {auto: {input_usd_per_million: 2}}}",
            "price: service_tiers.auto is no tier: an answer names the one that has served it, such as priority",
        ),
        (
            "{input_usd_per_million: 1, service_tiers: {Flex: {input_usd_per_million: 2}}}",
            "price: service_tiers.Flex must be in lower case: answers are compared so",
        ),
    ],
)
def test_a_price_that_says_too_little_is_a_mistake(tmp_path: Path, price: str, problem: str) -> None:
    with pytest.raises(ConfigError) as failure:
        load_text(tmp_path, PRICED.format(price))

    assert problem in str(failure.value)


@rows(
    "field", ["input_usd_per_million: -1", "input_usd_per_million: cheap", "input_usd_per_milion: 1", "image_usd: one"]
)
def test_a_price_that_is_written_wrong_is_told_once(tmp_path: Path, field: str) -> None:
    """It is there, so that it is missing is no second mistake."""
    with pytest.raises(ConfigError) as failure:
        load_text(tmp_path, PRICED.format(f"{{{field}}}"))

    assert "is missing" not in str(failure.value)


@rows(
    "price",
    [
        "{character_usd_per_million: 15}",
        "{audio_usd_per_hour: 0.36}",
        "{image_usd: 0.04}",
        "{request_usd_per_thousand: 5}",
    ],
)
def test_a_price_need_not_be_one_of_tokens(tmp_path: Path, price: str) -> None:
    rates = load_text(tmp_path, PRICED.format(price)).models["m"].targets[0].find_rates("m")

    assert rates is not None
    assert not rates.prices_tokens
