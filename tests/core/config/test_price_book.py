"""The price book against the price list's own calculation: every model, at every time and tier that it has prices for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time, timedelta
from math import inf
from random import Random
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, ModelPrice, StartDateConstraint, TieredPrices
from genai_prices.types import Provider as Seller
from genai_prices.types import Usage as ListUsage

from gateway.core.ledger import usage_usd
from gateway.core.types import Usage, UsageParts
from gateway.dialects.known import PricedModel

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def usages(draws: Random, most_input: int) -> Iterator[Usage]:
    """Yields one usage of text, and one of everything, with so much input."""
    cached, written, hourly = (draws.randrange(most_input // 8 + 1) for _ in range(3))
    output = draws.randrange(5000)
    yield Usage(most_input, output, cached, cache_written=written + hourly, cache_written_1h=hourly)
    sound, picture, film, cached_sound, cached_picture = (draws.randrange(most_input // 16 + 1) for _ in range(5))
    said, drawn, filmed, thought = (draws.randrange(output // 4 + 1) for _ in range(4))
    parts = UsageParts(
        audio_input=sound + cached_sound,
        audio_output=said,
        audio_cached=cached_sound,
        image_input=picture + cached_picture,
        image_output=drawn,
        image_cached=cached_picture,
        video_input=film,
        video_output=filmed,
        reasoning=thought,
        searches=draws.randrange(5),
        characters=draws.randrange(4000),
        audio_s=draws.choice((0.0, 3.5, 700.25)),
    )
    cached += cached_sound + cached_picture
    yield Usage(most_input, output, cached, cache_written=written + hourly, cache_written_1h=hourly, parts=parts)


def in_words_of_the_list(usage: Usage) -> ListUsage:
    parts = usage.parts
    return ListUsage(
        input_tokens=usage.input,
        output_tokens=usage.output,
        cache_read_tokens=usage.cached,
        cache_write_tokens=usage.cache_written,
        cache_write_1h_tokens=usage.cache_written_1h,
        input_audio_tokens=parts.audio_input,
        output_audio_tokens=parts.audio_output,
        cache_audio_read_tokens=parts.audio_cached,
        input_image_tokens=parts.image_input,
        output_image_tokens=parts.image_output,
        cache_image_read_tokens=parts.image_cached,
        input_video_tokens=parts.video_input,
        output_video_tokens=parts.video_output,
        output_reasoning_tokens=parts.reasoning,
        web_searches=parts.searches,
        input_characters=parts.characters,
        audio_seconds=parts.audio_s,
        input_audio_seconds=parts.audio_s,
    )


def prices_of(model: ModelInfo) -> list[ModelPrice]:
    listed = model.prices
    usual = [listed] if isinstance(listed, ModelPrice) else [one.prices for one in listed]
    return [*usual, *(one.prices for one in model.price_variants or ())]


def instants_of(model: ModelInfo) -> list[datetime]:
    """Now, and both sides of every instant at which a price of the model changes."""
    instants = {NOW}
    for one in (*(model.prices if isinstance(model.prices, list) else ()), *(model.price_variants or ())):
        if isinstance(one.constraint, StartDateConstraint):
            changes = [datetime.combine(one.constraint.start_date, time(), UTC)]
        elif one.constraint is not None:
            daily = (one.constraint.start_time, one.constraint.end_time)
            changes = [datetime.combine(NOW, at.replace(tzinfo=None), UTC) for at in daily]
        else:
            continue
        instants |= {change + side for change in changes for side in (timedelta(0), timedelta(microseconds=-1000))}
    return sorted(instants)


def contexts_of(model: ModelInfo) -> list[Mapping[str, str]]:
    return [{}, *{tuple(one.when.items()): one.when for one in model.price_variants or ()}.values()]


def inputs_of(model: ModelInfo, draws: Random) -> set[int]:
    tiered = [
        price for listed in prices_of(model) for price in vars(listed).values() if isinstance(price, TieredPrices)
    ]
    starts = {tier.start for price in tiered for tier in price.tiers}
    return {draws.randrange(100_000), *starts, *(start + 1 for start in starts)}


def wrong_costs(seller: Seller, model: ModelInfo, draws: Random) -> Iterator[Any]:
    book = PricedModel(seller, model)
    inputs = [(tokens, usage) for tokens in inputs_of(model, draws) for usage in usages(draws, tokens)]
    listed = [(usage, in_words_of_the_list(usage)) for _, usage in inputs]
    for context in contexts_of(model):
        for instant in instants_of(model):
            rates, until = book.at(context, instant.timestamp())
            assert until > instant.timestamp()
            assert until == inf or book.at(context, until - 0.001)[0] == rates
            for usage, same in listed if rates is not None else ():
                told = model.calc_price(same, seller, genai_request_timestamp=instant, price_context=context)
                usd, right = usage_usd(rates, usage) or 0.0, float(told.total_price)
                if usd != pytest.approx(right, rel=1e-9, abs=1e-12):
                    yield seller.id, model.id, context, instant, usage, usd, right


SELLERS = get_snapshot().providers


def test_every_model_costs_what_its_list_calculates() -> None:
    draws = Random(30)
    assert [wrong for seller in SELLERS for model in seller.models for wrong in wrong_costs(seller, model, draws)] == []
