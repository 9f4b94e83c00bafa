"""What one call takes from limits, by the part that each limit counts, and what providers charge for it.

It must not know limits. Invariant: the sum of a cost's input and output tokens is what a joint token limit is charged.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from gateway.core.limits.table.rules import ChargeRule

REQUESTS, INPUT, OUTPUT, TOKENS, SLOT = range(5)
"""The parts of a cost, in the order of `Parts`: each limit counts one of them."""
TOKEN_PARTS = (INPUT, OUTPUT, TOKENS)
Parts: TypeAlias = tuple[float, float, float, float, float]


class Cost(NamedTuple):
    """What one call takes from each limit. A joint token limit takes the sum of both kinds of tokens."""

    requests: float = 1
    input_tokens: float = 0
    output_tokens: float = 0


NOTHING = Cost(0, 0, 0)


def parts_of(cost: Cost, slots: float | None = None) -> Parts:
    """Returns `cost` by the parts that limits count; `slots` None: as many slots as requests."""
    requests, input_tokens, output_tokens = cost
    return requests, input_tokens, output_tokens, input_tokens + output_tokens, requests if slots is None else slots


def charge(
    rule: ChargeRule,
    input_tokens: int,
    max_tokens: int | None,
    expected_output: int,
    *,
    cached: int = 0,
    excludes_cached: bool = False,
) -> Cost:
    """Returns what a provider charges for one request at admission; `max_tokens` None: what is expected.

    `max`: the larger of input and max_tokens; `sum`: both; `input`: the input alone; `real`: input and output as they will
    be, as far as can be told, whatever max_tokens allows. The sum of both tokens of the result is the charge of a joint limit.
    """
    if excludes_cached:
        input_tokens = max(0, input_tokens - cached)
    return Cost(1, input_tokens, charged_output(rule, input_tokens, max_tokens, expected_output))


def charged_output(rule: ChargeRule, input_tokens: int, max_tokens: int | None, expected_output: int) -> int:
    """Returns the output tokens that `charge` comes to."""
    if rule == "input":
        return 0
    output_tokens = expected_output if max_tokens is None or rule == "real" else max_tokens
    return max(0, output_tokens - input_tokens) if rule == "max" else output_tokens
