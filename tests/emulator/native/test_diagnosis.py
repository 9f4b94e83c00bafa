"""The gateway's own tables of errors, which know nothing of the emulator, take its faults for what they are."""

from __future__ import annotations

import pytest

from gateway.core.types import ErrorClass as E
from gateway.core.types import Phase
from gateway.emulator.config import EmulatorConfig
from gateway.emulator.limits import open_native_account
from gateway.emulator.replies import fault_problem
from tests.support.error_rows import WALL
from tests.support.tables import table_of

SPOKEN = {"anthropic": "messages", "gemini": "generate", "vertex": "generate", "bedrock": "converse"}
MEANT = {
    "quota": E.QUOTA_EXHAUSTED,
    "e401": E.AUTH,
    "e403": E.PERMISSION,
    "e404": E.MODEL_NOT_FOUND,
    "e500": E.SERVER_ERROR,
    "e503": E.OVERLOADED,
    "e529": E.OVERLOADED,
    "content_filter": E.CONTENT_POLICY,
    "context_length": E.CONTEXT_LENGTH_EXCEEDED,
}


@pytest.mark.parametrize("fault", list(MEANT))
@pytest.mark.parametrize("kind", list(SPOKEN))
def test_a_refusal_is_diagnosed(kind: str, fault: str) -> None:
    """In each language; Google's filtered prompt is no refusal."""
    language = SPOKEN[kind]
    problem = fault_problem(fault, language, "/v1/projects/p" if kind == "vertex" else "")
    assert problem is not None
    reply = problem.reply(language)
    diagnosis = table_of(kind).diagnose(Phase.ANSWERED, reply.status, reply.headers, reply.body, WALL)

    assert diagnosis.error_class is MEANT[fault] or (language, fault) == ("generate", "content_filter")


@pytest.mark.parametrize("is_bare", [False, True])
@pytest.mark.parametrize("kind", list(SPOKEN))
def test_a_throttle_is_diagnosed(kind: str, is_bare: bool) -> None:
    """With the delay, where the provider names one; Google's without any hint is its word for a lack of capacity."""
    language = SPOKEN[kind]
    account = open_native_account(EmulatorConfig(rpm=60), language, "m", 0.0, lambda: WALL)
    reply = account.throttle(20.0, 0.0, is_bare=is_bare).reply(language)
    diagnosis = table_of(kind).diagnose(Phase.ANSWERED, reply.status, reply.headers, reply.body, WALL)

    wanted = E.OVERLOADED if is_bare and language == "generate" else E.RATE_LIMIT_REQUESTS
    assert diagnosis.error_class in (wanted, E.RATE_LIMIT_TOKENS)
    named = None if is_bare or language == "converse" else 20
    assert diagnosis.delay_s == (1 if is_bare and kind == "vertex" else named)  # the table's own, for shared capacity
