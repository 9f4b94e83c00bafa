"""The price of a batch's lines: `service_tier: flex` is about half of the usual one, and is served when there is room.

Sources: OpenAI's guide to flex processing ("priced at Batch API rates"); Gemini and Azure have the same field.
"""

from __future__ import annotations

from gateway.core.openai.json_edit.json_edit import find_fields, insert_field
from gateway.products.jobs.rules import BatchRules

FIELD = "service_tier"
ENDPOINTS = frozenset(("/v1/chat/completions", "/v1/responses"))
"""Whose requests know that tier; Anthropic's Messages refuse it."""


def with_tier(body: bytes, rules: BatchRules, left_s: float, endpoint: str) -> bytes:
    """Returns the body with the tier that the rules want, where it names none; `left_s` is the time left to its batch."""
    if (
        not rules.asks_for_flex
        or endpoint not in ENDPOINTS
        or left_s < rules.standard_before_end_s
        or find_fields(body, FIELD)
    ):
        return body
    return insert_field(body, FIELD, b'"flex"')
