"""What a realtime session costs: its sound at prices of its own, where the model has any."""

from __future__ import annotations

from gateway.core.retry_budgets import cost_usd
from gateway.core.snapshot.snapshot.snapshot import Rates
from gateway.core.types.words import SpokenUsage, Usage


def session_usd(rates: Rates | None, usage: Usage) -> float | None:
    """Returns the price of the tokens in US dollars; None: the model has no price."""
    usd = cost_usd(rates, usage.input, usage.output, usage.cached, usage.cache_written)
    if usd is None or rates is None or not isinstance(usage, SpokenUsage):
        return usd
    fresh = usage.audio_input - usage.audio_cached
    usd += fresh * _more(rates.audio_input_usd, rates.input_usd)
    usd += usage.audio_cached * _more(rates.cached_audio_input_usd, rates.cached_input_usd)
    return usd + usage.audio_output * _more(rates.audio_output_usd, rates.output_usd)


def _more(own: float | None, usual: float) -> float:
    """What a token of sound costs beyond one of text."""
    return 0.0 if own is None else own - usual
