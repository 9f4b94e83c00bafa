"""Every kind of failure end to end: what the application's SDK sees, what the providers see, and what is counted.

The SDK tries nothing again by itself, and is told whether another try helps. Each row is played streamed and not. What is
waited, budgets and money are tested on a virtual clock in `tests/core`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.faults import WORDS, End, Fault, Stage, answer, counted, failed, served, stage, told
from tests.soak.support import metrics, settled, sum_of, until_only
from tests.support.raw_server import CLOSE, READ, RESET
from tests.sweeps import sampled

SERVER_ERROR = openai.InternalServerError
AGAIN = ("A:500 A:200", "server_error ok")
BROKEN = ("A:malformed_response A:200", "malformed_response ok")
OVERLOADED = ("A:503 A:200", "overloaded ok")
RESETS = ("A:connection A:200", "connection ok")
LATE = ("A:timeout A:200", "timeout ok")
LIMITED = ("A:429 B:200", "rate_limit_requests ok")
NO_CONNECTION = failed(
    "A:connection " * 2 + "A:connection", "connection " * 3, SERVER_ERROR, 502, "no_target_available"
)
NOT_TRUSTED = failed("A:connection", "connection", SERVER_ERROR, 502, "no_target_available")
UNUSABLE = failed(
    " ".join(["A:malformed_response"] * 3), "malformed_response " * 3, SERVER_ERROR, 502, "no_target_available"
)
ELSEWHERE = served("A:connection B:200", "connection ok")
INTERRUPTED = "stream_interrupted"
BUSY = "server_is_overloaded"


def always(act: str) -> tuple[str, ...]:
    """More often than a call may ask."""
    return (act,) * 9


FAULTS: dict[str, Fault] = {
    # rate limits and quotas
    "429 with a hint": Fault(("rate_limit;seconds=0.05",), served("A:429 A:200", "rate_limit_requests ok")),
    "429 with a hint, others free": Fault(("rate_limit;seconds=9",), served(*LIMITED), shape="beside"),
    "429 without a hint": Fault(("rate_limit_bare",), served("A:429 A:200", "rate_limit_requests ok")),
    "429 without a hint, others free": Fault(("rate_limit_bare",), served(*LIMITED), shape="beside"),
    "429 for an hour": Fault(
        ("rate_limit;seconds=3600",),
        failed("A:429", "rate_limit_requests", SERVER_ERROR, 503, "queue_wait_exceeds_deadline"),
    ),
    "429 for an hour, others free": Fault(("rate_limit;seconds=3600",), served(*LIMITED), shape="beside"),
    "quota": Fault(
        ("quota",), failed("A:429", "quota_exhausted", openai.RateLimitError, 429, "insufficient_quota")
    ),
    "quota, another account": Fault(("quota",), served("A:429 B:200", "quota_exhausted ok"), shape="beside"),
    "quota of one credential": Fault(("quota",), served("A:429 A#2:200", "quota_exhausted ok"), shape="accounts"),
    # errors of the server
    "500 once": Fault(("e500",), served(*AGAIN)),
    "500 once, others free": Fault(("e500",), served("A:500 B:200", "server_error ok"), shape="beside"),
    "503 as often as there are attempts": Fault(
        ("e503",) * 3, served("A:503 A:503 A:503 A:200", "overloaded overloaded overloaded ok")
    ),
    "503 always, everywhere": Fault(
        always("e503"),
        failed("A:503 B:503 A:503", "overloaded " * 3, SERVER_ERROR, 503, BUSY),
        shape="beside",
        second=always("e503"),
    ),
    "503 always, a fallback": Fault(
        always("e503"), served("A:503 A:503 A:503 B:200", "overloaded overloaded overloaded ok"), shape="fallback"
    ),
    "503 for an hour": Fault(
        ("e503;seconds=3600",),
        replace(failed("A:503", "overloaded", SERVER_ERROR, 503, BUSY), should_retry="false"),
    ),
    "503 for an hour, others free": Fault(
        ("e503;seconds=3600",), served("A:503 B:200", "overloaded ok"), shape="beside"
    ),
    "529 once": Fault(("e529",), served("A:529 A:200", "overloaded ok")),
    "529 as often as there are attempts": Fault(
        ("e529",) * 3, served("A:529 A:529 A:529 A:200", "overloaded overloaded overloaded ok")
    ),
    "HTML once": Fault(("html502",), served("A:502 A:200", "server_error ok")),
    "HTML always": Fault(
        always("html502"),
        failed("A:502 A:502 A:502", "server_error " * 3, SERVER_ERROR, 502, "no_target_available"),
    ),
    # what would be the same again
    "404 of something else": Fault(
        (),
        failed("A:404", "not_found", openai.NotFoundError, 404, "x"),
        shape="beside",
        place="raw",
        scripts=((READ, answer(b'{"error":{"message":"no","code":"x"}}', status=b"404 Not Found"), CLOSE),),
    ),
    "403": Fault(
        ("e403",), failed("A:403", "permission", openai.PermissionDeniedError, 403, "model_not_found"), shape="beside"
    ),
    "400 in other words": Fault(
        (),
        failed("A:400", "bad_request", openai.BadRequestError, 400, None),
        shape="beside",
        place="raw",
        scripts=((READ, answer(b'{"detail":"no"}', status=b"400 No"), CLOSE),),
    ),
    "401 of one credential": Fault(("e401",), served("A:401 A#2:200", "auth ok"), shape="accounts"),
    "401 of every credential": Fault(
        ("e401", "e401"),
        failed("A:401 A#2:401", "auth auth", openai.InternalServerError, 502, "provider_credential_refused"),
        shape="accounts",
    ),
    "401, another account": Fault(("e401",), served("A:401 B:200", "auth ok"), shape="beside"),
    "context length": Fault(
        ("context_length",),
        failed("A:400", "context_length_exceeded", openai.BadRequestError, 400, "context_length_exceeded"),
        shape="beside",
    ),
    "context length, a larger model": Fault(
        ("context_length",), served("A:400 B:200", "context_length_exceeded ok"), shape="context"
    ),
    "content filter": Fault(
        ("content_filter",),
        failed("A:400", "content_policy", openai.BadRequestError, 400, "content_policy_violation"),
        shape="beside",
    ),
    "refusal": Fault(("refusal",), served("A:200", "ok", "content_filter"), shape="beside"),
    "401 of the caller's own credential": Fault(
        ("e401",), failed("A:401", "auth", openai.AuthenticationError, 401, "invalid_api_key"), shape="callers"
    ),
    "404 of the model": Fault(
        ("e404",), failed("A:404", "model_not_found", openai.NotFoundError, 404, "model_not_found")
    ),
    "404 of the model, others know it": Fault(
        ("e404",), served("A:404 B:200", "model_not_found ok"), shape="beside"
    ),
    "404 of the model, a fallback": Fault(("e404",), served("A:404 B:200", "model_not_found ok"), shape="fallback"),
    "404 of the model everywhere": Fault(
        ("e404",),
        failed("A:404 B:404", "model_not_found " * 2, openai.NotFoundError, 404, "model_not_found"),
        shape="beside",
        second=("e404",),
    ),
    # the wire
    "refused, others free": Fault((), ELSEWHERE, place="closed", shape="beside"),
    "refused, a fallback": Fault(
        (),
        served("A:connection A:connection A:connection B:200", "connection connection connection ok"),
        place="closed",
        shape="fallback",
    ),
    "no such name, others free": Fault((), ELSEWHERE, place="nowhere", shape="beside"),
    "a stranger's certificate": Fault((), NOT_TRUSTED, place="tls", scripts=((READ, CLOSE),)),
    "a stranger's certificate, others free": Fault((), ELSEWHERE, shape="beside", place="tls", scripts=((READ, CLOSE),)),
    "reset before sending, others free": Fault((), ELSEWHERE, place="raw", scripts=((RESET,),), shape="beside"),
    "reset after sending": Fault(("reset",), served(*RESETS)),
    "reset after sending, always": Fault(always("reset"), NO_CONNECTION),
    "reset in the middle": Fault(("reset;after_chunks=3",), served(*RESETS), told(INTERRUPTED, 3)),
    "silence": Fault(("silence",), served(*LATE)),
    "silence, others free": Fault(("silence",), served("A:timeout B:200", "timeout ok"), shape="beside"),
    "silence always": Fault(
        always("silence"), failed("A:timeout A:timeout", "timeout timeout", SERVER_ERROR, 504, "upstream_timeout")
    ),
    "slow first token": Fault(("slow_first_token;seconds=5",), served(*LATE)),
    # answers that are none
    "cut": Fault(("cut",), served(*BROKEN), told(INTERRUPTED, 2)),
    "cut at once": Fault(("cut;after_chunks=0",), served(*BROKEN)),
    "FIN without a terminal event": Fault(("no_done",), served("A:200", "ok"), told(INTERRUPTED, WORDS)),
    "stall": Fault(("stall",), served(*LATE), told(INTERRUPTED, 2)),
    "stall at once": Fault(("stall;after_chunks=0",), served(*LATE)),
    "drip": Fault(("drip;seconds=0.1",), served("A:200", "ok"), told("timeout", None)),
    "malformed frame": Fault(("malformed",), served(*BROKEN), told(INTERRUPTED, 2)),
    "malformed frame first": Fault(("malformed;after_chunks=0",), served(*BROKEN)),
    "malformed frame first, always": Fault(always("malformed;after_chunks=0"), UNUSABLE),
    "error event first": Fault(("in_band_error",), served(*OVERLOADED)),
    "error event behind the opening": Fault(("opening_error",), served(*OVERLOADED)),
    "error event first, as often as there are attempts": Fault(
        ("in_band_error",) * 3, served("A:503 A:503 A:503 A:200", "overloaded overloaded overloaded ok")
    ),
    "error event in the middle": Fault(
        ("in_band_error;after_chunks=3",), served(*OVERLOADED), told("stream_error", 3, BUSY)
    ),
    "error JSON in the middle": Fault(("raw_error",), served(*OVERLOADED), told(INTERRUPTED, 2)),
    "error in a 200": Fault(("error_in_200",), served(*OVERLOADED)),
    "empty 200": Fault(("empty_200",), served(*BROKEN)),
    "empty 200 always": Fault(always("empty_200"), UNUSABLE),
    "no choices": Fault(
        (),
        served("A:malformed_response B:200", "malformed_response ok"),
        shape="beside",
        place="raw",
        scripts=((READ, answer(b'{"id":"1","choices":[]}'), CLOSE),),
    ),
    "truncated": Fault(("truncated",), served(*BROKEN), told(INTERRUPTED, 10)),
    # 16 bytes: of JSON its end, of a stream nothing but the end of [DONE]
    "wrong length": Fault(("wrong_length",), served(*BROKEN), served("A:200", "ok")),
}  # fmt: skip


def reached(fault: Fault, end: End) -> tuple[int, int]:
    """How many calls each provider sees, if each sees those that are said to have been tried there."""
    names = [each.partition(":")[0] for each in end.tries.split()]
    can_be_reached = fault.place in ("emulator", "raw")
    return sum(name != "B" for name in names) * can_be_reached, names.count("B")


@pytest.mark.parametrize(
    ("name", "is_stream"),
    sampled(
        product(FAULTS, [False, True]),
        # Streamed where the bytes or the end differ; what comes of the others is decided alike, as `tests/core` shows.
        lambda name, is_stream: not is_stream or FAULTS[name].streamed is not None or FAULTS[name].place == "raw",
    ),
)
async def test_a_fault_ends_as_it_has_to(start: StartGateway, tmp_path: Path, name: str, is_stream: bool) -> None:
    """Exactly the tries it deserves, one request of the SDK, one account, and nothing left in flight."""
    fault = FAULTS[name]
    expected = fault.end(is_stream=is_stream)
    async with stage(start, tmp_path, fault) as on_stage:
        seen = await on_stage.ask(is_stream=is_stream)
        await until_only(on_stage.before, on_stage.running)

        if expected.words is None:
            assert 0 < (seen.words or 0) < WORDS
            seen = replace(seen, words=None)
        assert seen == replace(expected, classes="")
        assert on_stage.classes() == counted(expected)
        assert on_stage.reached() == reached(fault, expected)
        assert len(on_stage.requests) == 1
        assert sum(settled(on_stage.running).values()) == 1
        assert ("ok" in settled(on_stage.running)) == (expected.raises is None)


# What one call teaches the next.

HEALTHY = served("A:200", "ok")
DEAD = failed("A:503 A:503 A:503", "", SERVER_ERROR, 503, BUSY)
NOT_FOR_LONG = {"open_for": "1s", "jitter_percent": 0, "ramp": "0s"}
FOR_LONG = {"open_for": "2m", "max_open_for": "2m", "jitter_percent": 0}


def breaker(on_stage: Stage, sample: str = "gateway_breaker_state", **labels: str) -> float:
    """What the metrics say of A's breaker."""
    return sum_of(metrics(on_stage.running), sample, target="first/m", **labels)


async def ends(on_stage: Stage, calls: int) -> list[End]:
    """What comes of so many calls, one after the other, streamed and not by turns."""
    found = []
    for number in range(calls):
        found.append(await on_stage.ask(is_stream=number % 2 == 1))
        await until_only(on_stage.before, on_stage.running)
    return found


def tries(found: list[End]) -> list[str]:
    """Where the calls have been."""
    return [end.tries for end in found]


async def test_a_target_that_flaps_serves_every_call(start: StartGateway, tmp_path: Path) -> None:
    """Every other request fails: each call is served by its second try, and nobody takes the target for dead."""
    async with stage(start, tmp_path, Fault(("e500", "ok") * 6, HEALTHY)) as on_stage:
        found = await ends(on_stage, 6)

        assert {end.finish for end in found} == {"stop"}
        assert tries(found) == ["A:500 A:200"] * 6
        assert (on_stage.reached(), len(on_stage.requests)) == ((12, 0), 6)
        assert breaker(on_stage) == 0.0


@pytest.mark.parametrize("act", ["quota", "e401"])
async def test_a_credential_that_is_refused_is_not_asked_again(start: StartGateway, tmp_path: Path, act: str) -> None:
    """The first call finds out; the next ones go to the other credential at once."""
    async with stage(start, tmp_path, Fault((act,), HEALTHY, shape="accounts")) as on_stage:
        found = await ends(on_stage, 3)

        status, why = (429, "quota_spent") if act == "quota" else (401, "credential_refused")
        assert tries(found) == [f"A:{status} A#2:200", *[f"A:skipped({why}) A#2:200"] * 2]
        assert on_stage.reached() == (4, 0)


async def test_a_target_without_its_model_is_not_tried_first_by_every_call(start: StartGateway, tmp_path: Path) -> None:
    """The first call finds out; then it is tried again now and then, and serves again when its model is there."""
    fault = Fault(("e404", "ok"), HEALTHY, shape="beside")
    async with stage(start, tmp_path, fault, breakers=FOR_LONG) as on_stage:
        found = await ends(on_stage, 4)

        assert tries(found) == ["A:404 B:200"] + ["A:skipped(model_not_found) B:200"] * 3
        assert (on_stage.reached(), breaker(on_stage)) == ((1, 4), 2.0)


@pytest.mark.parametrize("act", ["rate_limit;seconds=3600", "e503;seconds=3600"])
async def test_a_target_that_asks_for_an_hour_gets_it(start: StartGateway, tmp_path: Path, act: str) -> None:
    """Nobody waits for it, and nobody bothers it."""
    async with stage(start, tmp_path, Fault((act,), HEALTHY, shape="beside")) as on_stage:
        found = await ends(on_stage, 4)

        assert tries(found)[1:] == ["A:skipped(paused) B:200"] * 3
        assert on_stage.reached() == (1, 4)


async def test_a_dead_target_is_left_alone(start: StartGateway, tmp_path: Path) -> None:
    """After five failures in a row hardly a call goes there, and none is served later or worse for it."""
    fault = Fault(always("e503") * 2, HEALTHY, shape="beside")
    async with stage(start, tmp_path, fault, breakers=FOR_LONG) as on_stage:
        found = await ends(on_stage, 10)

        assert tries(found)[:5] == ["A:503 B:200"] * 5
        assert set(tries(found)[5:]) <= {"A:skipped(open) B:200", "A:skipped(trouble) B:200", "A:503 B:200"}
        assert on_stage.reached()[0] <= 8  # a few find out whether it serves again
        assert len(on_stage.requests) == 10
