"""The fault suite: everything that goes wrong at providers, streamed and not, and exactly what comes of it.

Default rules throughout: what an attempt costs here allows five of them, four at the model's own targets; the draws are 0.5,
so backoffs are 50, 100 and 200 ms. Each act takes 100 ms where it says nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate

import httpx
import pytest

from gateway.core.types import Phase
from tests.support.faults import (
    ANSWER,
    DONE,
    HTML,
    OK,
    ROLE,
    STOP,
    TOTAL,
    WORD,
    Act,
    Seen,
    Stage,
    body,
    breaks,
    error_of,
    says,
)
from tests.support.flow import JSON
from tests.support.virtual import START_S, WALL_S, run

TRY_USD = 0.000818
"""What an attempt may have cost that was sent and came to nothing: estimated input, and the 100 tokens that were asked for."""
REFUSED = breaks(httpx.ConnectError("cannot connect to p0.test: Connection refused"), Phase.NOTHING_SENT)
NO_NAME = breaks(httpx.ConnectError("cannot connect to p0.test: Name or service not known"), Phase.NOTHING_SENT)
NO_TLS = breaks(httpx.ConnectError("cannot connect to p0.test: certificate has expired"), Phase.NOTHING_SENT)
NO_ROUTE = breaks(httpx.ConnectTimeout("cannot connect to p0.test: no connection in time"), Phase.NOTHING_SENT, 1.0)
RESET = breaks(httpx.ReadError("the connection broke: reset by peer"), Phase.SENT)
CUT = httpx.RemoteProtocolError("the provider closed the connection in the middle of its answer")
BROKE = httpx.ReadError("the connection broke: reset by peer")
SILENCE = Act(after_s=99.0)
RATE = {"kind": "requests", "code": "rate_limit_exceeded"}
QUOTA = says(429, kind="insufficient_quota", code="insufficient_quota")
NO_MODEL = says(404, kind="invalid_request_error", code="model_not_found")
BAD_KEY = says(401, kind="invalid_request_error", code="invalid_api_key")
BAD_KEY_BY_WORDS = says(403, kind="invalid_request_error", code="invalid_api_key")
TOO_LONG = says(400, kind="invalid_request_error", code="context_length_exceeded")
IN_BAND = error_of("server_error")
IN_BAND_RATE = error_of("rate_limit_error", "rate_limit_exceeded")
BAD_GATEWAY = Act(502, (HTML,), (b"<html><h1>502 Bad Gateway</h1></html>",), None)


@dataclass(frozen=True)
class Row:
    """One fault. `acts` are told provider by provider, the last act of each for ever."""

    name: str
    acts: Sequence[Sequence[Act]]
    seen: Sequence[Seen]
    """What comes of each call; as many are made."""
    streamed: Sequence[Seen] | None = None
    """The same for streams; None: no different."""
    fallbacks: int = 0
    contexts: int = 0
    accounts: Sequence[str] = ()
    given_s: float | None = None
    """The caller's own deadline."""
    changes: Mapping[str, object] = field(default_factory=dict)


def retry_after(value: object) -> tuple[bytes, bytes]:
    return b"retry-after", str(value).encode()


def event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def good(trail: str, *waits: float, tries: int = 0) -> Seen:
    """A whole answer, after so many tries that may have cost something."""
    return Seen(trail, waits=waits, wasted_usd=round(tries * TRY_USD, 5))


def bad(
    trail: str,
    status: int,
    code: str,
    *waits: float,
    outcome: str | None = None,
    tries: int = 0,
    after: int | None = None,
) -> Seen:
    """An error, with the word that no SDK should try again."""
    return Seen(
        trail,
        status,
        code,
        waits,
        outcome or code,
        should_retry="false",
        retry_after=None if after is None else str(after),
        usd=None,
        wasted_usd=round(tries * TRY_USD, 5),
        text=0,
    )


def passing(trail: str, status: int, code: str, *waits: float, outcome: str | None = None, tries: int = 0) -> Seen:
    """An error of the provider's own trouble, with the word that SDKs may try again in a second."""
    error = bad(trail, status, code, *waits, outcome=outcome, tries=tries)
    return replace(error, should_retry="true", retry_after="1")


def held(trail: str, status: int, code: str, *waits: float, outcome: str | None = None) -> Seen:
    """The same of a target that fails for everybody, without pay: the call goes on at a slower pace, and the breaker opens."""
    error = passing(trail, status, code, *waits, outcome=outcome)
    return replace(error, retry_after="2", moves=("p0 open",), left="p0 open")


def broken(code: str = "stream_interrupted", *, outcome: str | None = None, words: int = 1, usd: float = 3e-5) -> Seen:
    """A stream that had begun, and ends with an error event."""
    return Seen("p0:200", 200, code, outcome=outcome or code, usd=usd, text=words)


FOUR = (0.05, 0.1, 0.2)
"""The waits of four tries at one target, where the call has somewhere else to go."""
ALONE = (0.05, 0.1, 1.237)
"""Where it has not: the last try comes 1.7 s after the first failure."""
FINE = good("p0:200")
ELSEWHERE = good("p1:200")
AGAIN = good("p0:malformed_response p0:200", 0.05, tries=1)

ROWS = [
    # A rate limit: the target is left alone for as long as it says, and the call waits for it.
    Row(
        "429 with retry-after-ms", [[says(429, (b"retry-after-ms", b"250"), **RATE), OK]], [good("p0:429 p0:200", 0.25)]
    ),
    Row("429 with Retry-After", [[says(429, retry_after(2), **RATE), OK]], [good("p0:429 p0:200", 2.0)]),
    Row(
        "429 with both, of which the finer is meant",
        [[says(429, (b"retry-after-ms", b"250"), retry_after(1), **RATE), OK]],
        [good("p0:429 p0:200", 0.25)],
    ),
    Row(
        "429 with a date",
        [[says(429, retry_after(formatdate(WALL_S + START_S + 3, usegmt=True)), **RATE), OK]],
        [good("p0:429 p0:200", 2.9)],
    ),
    Row("429 without a hint", [[says(429, **RATE), OK]], [good("p0:429 p0:200", 0.05)]),
    Row(
        "429 without end: for longer each time, and a refusal when the next would come too late",
        [[says(429, **RATE)]],
        [
            replace(
                bad(
                    " ".join(["p0:429"] * 11),
                    503,
                    "queue_wait_exceeds_deadline",
                    *(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0),
                    after=8,
                ),
                should_retry="true",
            )
        ],
    ),
    Row(
        "429 with a huge Retry-After: refused at once, with a true time",
        [[says(429, retry_after(120), **RATE)]],
        [
            # The next call, which is another one, finds out that it is not the first's own fault.
            *[bad("p0:429", 503, "queue_wait_exceeds_deadline", after=120)] * 2,
            bad("", 503, "queue_wait_exceeds_deadline", after=120),
        ],
    ),
    Row(
        "429 with a huge Retry-After, and a fallback",
        [[says(429, retry_after(120), **RATE)], [OK]],
        [*[good("p0:429 p1:200", 0.0)] * 2, ELSEWHERE],
        fallbacks=1,
    ),
    Row(
        "429 with a short Retry-After, and a fallback that is not needed",
        [[says(429, retry_after(1), **RATE), OK], [OK]],
        [good("p0:429 p0:200", 1.0)],
        fallbacks=1,
    ),
    Row(
        "429 at one of two",
        [[says(429, retry_after(20), **RATE), OK], [OK]],
        [good("p0:429 p1:200", 0.0), ELSEWHERE],
    ),
    Row(
        "429 with a Retry-After of hours is a spent quota",
        [[says(429, retry_after(7200), **RATE)]],
        [
            bad("p0:429", 429, "rate_limit_exceeded", outcome="rate_limit_requests", after=7200),
            bad("", 503, "quota_exhausted", after=1800),
        ],
    ),
    # A spent quota: the account is left alone until its reset.
    Row(
        "quota",
        [[QUOTA]],
        [
            bad("p0:429", 429, "insufficient_quota", outcome="quota_exhausted"),
            bad("", 503, "quota_exhausted", after=1800),
        ],
    ),
    Row("quota, and a fallback", [[QUOTA], [OK]], [good("p0:429 p1:200", 0.0), ELSEWHERE], fallbacks=1),
    Row(
        "quota at one of two, and the other fails once",
        [[QUOTA], [OK, says(500), OK]],
        [good("p0:429 p1:200", 0.0), good("p1:500 p1:200", 0.05)],
    ),
    # Overload and server errors: again after a backoff, elsewhere at once.
    Row("500 once", [[says(500), OK]], [good("p0:500 p0:200", 0.05)]),
    Row("500 always", [[says(500)]], [passing(" ".join(["p0:500"] * 4), 500, "server_error", *ALONE)]),
    Row("500 always at one of two", [[says(500)], [OK]], [good("p0:500 p1:200", 0.0)] * 2),
    Row(
        "500 always at two",
        [[says(500)], [says(500)]],
        [passing("p0:500 p1:500 p0:500 p1:500", 500, "server_error", 0.0, 0.1, 1.287)],
    ),
    Row(
        "500 always, and a fallback",
        [[says(500)], [OK]],
        [
            *[good("p0:500 p0:500 p0:500 p0:500 p1:200", *FOUR, 0.0)] * 4,
            good("p0:500 p1:200", 0.0),
        ],
        fallbacks=1,
    ),
    Row(
        "503 always",
        [[says(503)]],
        [
            held(" ".join(["p0:503"] * 6), 503, "server_error", *ALONE, 0.1, 0.18, outcome="overloaded"),
        ],
        given_s=2.5,
    ),
    Row(
        "503 everywhere",
        [[says(503)], [says(503)]],
        [passing("p0:503 p0:503 p0:503 p0:503 p1:503", 503, "server_error", *FOUR, 0.0, outcome="overloaded")],
        fallbacks=1,
    ),
    Row("503 with Retry-After", [[says(503, retry_after(2)), OK]], [good("p0:503 p0:200", 2.0)]),
    Row("503 with Retry-After at one of two", [[says(503, retry_after(2)), OK], [OK]], [good("p0:503 p1:200", 0.0)]),
    Row(
        "503 with a huge Retry-After: passed through at once",
        [[says(503, retry_after(100))]],
        [bad("p0:503", 503, "server_error", outcome="overloaded", after=100)],
    ),
    Row(
        "503 with a huge Retry-After, and a fallback",
        [[says(503, retry_after(100))], [OK]],
        [good("p0:503 p1:200", 0.0), ELSEWHERE],
        fallbacks=1,
    ),
    Row("529", [[says(529, kind="overloaded_error"), OK]], [good("p0:529 p0:200", 0.05)]),
    Row("flapping", [[OK, says(503), OK, says(503), OK]], [FINE, *[good("p0:503 p0:200", 0.05)] * 2]),
    Row("409, a lock that another request holds", [[says(409), OK]], [good("p0:409 p0:200", 0.05)]),
    Row(
        "500 that is not to be tried again",
        [[says(500, (b"x-should-retry", b"false"))]],
        [bad("p0:500", 500, "server_error")],
    ),
    Row("504 of the provider", [[says(504), OK]], [good("p0:504 p0:200", 0.05)]),
    Row("408", [[says(408), OK]], [good("p0:408 p0:200", 0.05)]),
    # Faults of the request: the same everywhere.
    *[
        Row(
            f"{status} {outcome}",
            [[says(status, kind="invalid_request_error", code="x")], [OK]],
            [bad(f"p0:{status}", status, "x", outcome=outcome)] * 6,
            fallbacks=1,
        )
        for status, outcome in [
            (400, "bad_request"),
            (403, "permission"),
            (404, "not_found"),
            (413, "payload_too_large"),
            (418, "bad_request"),
        ]
    ],
    Row(
        "content filter",
        [[says(400, kind="invalid_request_error", code="content_filter")], [OK]],
        [bad("p0:400", 400, "content_filter", outcome="content_policy")],
        fallbacks=1,
    ),
    Row(
        "context length, and a fallback that is no larger",
        [[TOO_LONG], [OK]],
        [bad("p0:400", 400, "context_length_exceeded")],
        fallbacks=1,
    ),
    Row(
        "context length, and a larger window",
        [[TOO_LONG], [OK], [OK]],
        [good("p0:400 p2:200", 0.0)],
        fallbacks=1,
        contexts=1,
    ),
    Row(
        "context length, and a larger window that fails once",
        [[TOO_LONG], [OK], [says(500), OK]],
        [good("p0:400 p2:500 p2:200", 0.0, 0.05)],
        fallbacks=1,
        contexts=1,
    ),
    Row(
        "context length, and a larger window that has to be waited for",
        [[TOO_LONG], [says(429, (b"retry-after-ms", b"500"), **RATE), OK]],
        [good("p0:400 p1:429 p1:200", 0.0, 0.5)],
        contexts=1,
    ),
    # What only the fallback says of itself: the primary is tried once more, later, and its failure is the answer.
    *[
        Row(
            f"503 always, and a fallback that says {status} {code}",
            [[says(503)], [says(status, kind="invalid_request_error", code=code)]],
            [
                held(
                    f"p0:503 p0:503 p0:503 p0:503 p1:{status} p0:503 p0:503 p0:503",
                    503,
                    "server_error",
                    *FOUR,
                    0.0,
                    0.837,
                    0.1,
                    0.18,
                    outcome="overloaded",
                )
            ],
            given_s=2.5,
            fallbacks=1,
        )
        for status, code in [(400, "x"), (403, "x"), (404, "x"), (413, "x"), (400, "content_filter")]
    ],
    # Credentials.
    Row(
        "401 of one credential of two",
        [[BAD_KEY], [OK]],
        [
            replace(good("p0:401 p1:200", 0.0), moves=("openai open",), left="openai open"),
            replace(ELSEWHERE, left="openai open"),
        ],
        accounts=("openai", "openai#2"),
    ),
    Row(
        "401 of the only credential: tried again, for nobody else is left",
        [[BAD_KEY]],
        [
            replace(
                bad("p0:401", 502, "provider_credential_refused", outcome="auth"), moves=("p0 open",), left="p0 open"
            ),
            replace(
                bad("p0:401", 502, "provider_credential_refused", outcome="auth"),
                left="p0 open",  # in vain: no news
            ),
        ],
    ),
    Row(
        "401 of the caller's own credential",
        [[BAD_KEY], [OK]],
        [bad("p0:401", 401, "invalid_api_key", outcome="auth")] * 2,
        accounts=("",),
    ),
    Row(
        "403 whose words refuse the only credential",
        [[BAD_KEY_BY_WORDS]],
        [
            replace(
                bad("p0:403", 502, "provider_credential_refused", outcome="auth"), moves=("p0 open",), left="p0 open"
            )
        ],
    ),
    Row(
        "403 whose words refuse the caller's own credential",
        [[BAD_KEY_BY_WORDS], [OK]],
        [bad("p0:403", 403, "invalid_api_key", outcome="auth")] * 2,
        accounts=("",),
    ),
    # A model that the config names and the provider does not know.
    Row(
        "404 of the model, others know it: these go first from then on",
        [[NO_MODEL], [OK]],
        [
            replace(good("p0:404 p1:200", 0.0), moves=("p0 open",), left="p0 open"),
            *[replace(ELSEWHERE, left="p0 open")] * 3,
        ],
    ),
    Row(
        "404 of the model, and a fallback",
        [[NO_MODEL], [OK]],
        [
            replace(good("p0:404 p1:200", 0.0), moves=("p0 open",), left="p0 open"),
            replace(ELSEWHERE, left="p0 open"),
        ],
        fallbacks=1,
    ),
    Row(
        "404 of the model, of the only target: its word, each time",
        [[NO_MODEL]],
        [bad("p0:404", 404, "model_not_found")] * 5,
    ),
    Row(
        "404 of the model everywhere: the last one's word",
        [[NO_MODEL], [NO_MODEL]],
        [
            replace(bad("p0:404 p1:404", 404, "model_not_found", 0.0), moves=("p0 open",), left="p0 open"),
            *[replace(bad("p1:404", 404, "model_not_found"), left="p0 open")] * 3,
        ],
    ),
    Row(
        "404 of the model at the second: what the first said decides",
        [[says(503), says(503), OK], [NO_MODEL]],
        [
            replace(
                good("p0:503 p1:404 p0:503 p0:200", 0.0, 0.05, 0.1, tries=0),
                moves=("p1 open",),
                left="p1 open",
            )
        ],
    ),
    Row(
        "404 of the model in another shape: the provider's own word",
        [[Act(404, (JSON,), (b'{"code":"gone","error":"The model m does not exist"}',), None)]],
        [replace(bad("p0:404", 404, "model_not_found"), code=None)] * 2,
    ),
    # No answer.
    Row("reset before anything was sent", [[REFUSED, OK]], [good("p0:connection p0:200", 0.0)]),
    Row(
        "refused always",
        [[REFUSED]],
        [passing(" ".join(["p0:connection"] * 4), 502, "no_target_available", 0.0, 0.1, 1.287)],
    ),
    Row(
        "refused always, though it has answered before",
        [[OK, REFUSED]],
        [FINE, held(" ".join(["p0:connection"] * 6), 502, "no_target_available", 0.0, 0.1, 1.287, 0.1, 0.18)],
        given_s=2.5,
    ),
    *[
        Row(
            name,
            [[fault], [OK]],
            [good("p0:connection p0:connection p0:connection p0:connection p1:200", 0.0, 0.1, 0.2, 0.0)],
            fallbacks=1,
        )
        for name, fault in [("DNS failure", NO_NAME), ("TLS failure", NO_TLS)]
    ],
    Row(
        "no route",
        [[NO_ROUTE], [OK]],
        [good("p0:timeout p0:timeout p0:timeout p1:200", 0.05, 0.1, 0.0)],
        fallbacks=1,
    ),
    Row("reset after the request was sent", [[RESET, OK]], [good("p0:connection p0:200", 0.05, tries=1)]),
    Row(
        "reset after the request was sent, always",
        [[RESET]],
        [passing(" ".join(["p0:connection"] * 4), 502, "no_target_available", *ALONE, tries=4)],
    ),
    Row("silence once", [[SILENCE, OK]], [replace(good("p0:timeout p0:200", 0.05, tries=1), took_s=10.15)]),
    Row(
        "silence always: no attempt starts after the deadline",
        [[SILENCE]],
        [replace(bad("p0:timeout p0:timeout p0:timeout", 504, "upstream_timeout", 0.05, 0.1, tries=3), took_s=30.15)],
    ),
    Row(
        "silence until the caller's own deadline, for which nobody else is to blame",
        [[SILENCE], [OK]],
        [replace(bad("p0:timeout", 504, "deadline_exceeded", tries=1), took_s=2.0, should_retry="true")] * 6,
        fallbacks=1,
        given_s=2.0,
    ),
    Row(
        "silence in the second attempt until the caller's own deadline",
        [[says(500), SILENCE]],
        [replace(bad("p0:500 p0:timeout", 504, "deadline_exceeded", 0.05, tries=1), took_s=0.5, should_retry="true")],
        given_s=0.5,
    ),
    Row("slow first token", [[replace(OK, after_s=9.0)]], [replace(FINE, took_s=9.0)]),
    Row(
        "comments instead of a first token: connecting and first byte together have passed",
        [[body(3.0, ANSWER, events=(b": wait\n\n", 4.0) * 10), OK]],
        [FINE],
        [replace(good("p0:timeout p0:200", 0.05, tries=1), took_s=11.15)],
    ),
    # Answers that break off.
    Row("cut before the first event", [[body(ANSWER[:30], CUT, events=(ROLE, CUT)), OK]], [AGAIN]),
    Row(
        "reset before the first event",
        [[body(ANSWER[:30], BROKE, events=(ROLE, BROKE)), OK]],
        [good("p0:connection p0:200", 0.05, tries=1)],
    ),
    Row("cut in the middle", [[body(ANSWER[:30], CUT, events=(ROLE, WORD, CUT)), OK]], [AGAIN], [broken()]),
    Row(
        "cut in the middle of an event",
        [[body(ANSWER[:30], CUT, events=(ROLE, WORD, WORD[:30], CUT)), OK]],
        [AGAIN],
        [broken()],
    ),
    Row("the end without a terminal event", [[body(ANSWER[:-5], events=(ROLE, WORD)), OK]], [AGAIN], [broken()]),
    Row(
        "the end without [DONE], after the finish reason",
        [[body(ANSWER, events=(ROLE, WORD, STOP, TOTAL))]],
        [FINE],
        [replace(FINE, text=1)],
    ),
    Row(
        "stall before the first event",
        [[body(ANSWER[:30], 99.0, events=(ROLE, 99.0)), OK]],
        [replace(good("p0:timeout p0:200", 0.05, tries=1), took_s=5.25)],
    ),
    Row(
        "stall in the middle",
        [[body(ANSWER[:30], 99.0, events=(ROLE, WORD, 99.0)), OK]],
        [replace(good("p0:timeout p0:200", 0.05, tries=1), took_s=5.25)],
        [replace(broken(), took_s=5.1)],
    ),
    Row(
        "drip: one event in three seconds, where one a second is the least",
        [[body(b" ", 3.0, ANSWER, events=(ROLE, *(WORD, 3.0) * 20))]],
        [Seen("p0:200", text=1)],
        [replace(broken("timeout", words=5, usd=7e-5), took_s=12.1)],
    ),
    Row(
        "wrong length",
        [[body(ANSWER[:-30], CUT, events=(ROLE, WORD, STOP, CUT)), OK]],
        [AGAIN],
        [broken()],
    ),
    # Answers that make no sense.
    Row("malformed first frame", [[body(b"{nope", events=(b"data: nope\n\n",)), OK]], [AGAIN]),
    Row(
        "malformed frame in the middle",
        [[body(b"{nope", events=(ROLE, WORD, b"data: {nope\n\n", STOP, DONE)), OK]],
        [AGAIN],
        [broken()],
    ),
    Row("truncated JSON", [[body(ANSWER[:40]), OK]], [AGAIN]),
    Row("HTML instead of an answer", [[Act(200, (HTML,), (b"<html>Log in</html>",), None), OK]], [AGAIN]),
    Row(
        "HTML instead of an answer, always",
        [[Act(200, (HTML,), (b"<html>Log in</html>",), None)]],
        [bad(" ".join(["p0:malformed_response"] * 3), 502, "no_target_available", 0.05, 1.437, tries=3)],
    ),
    Row("HTML of a bad gateway", [[BAD_GATEWAY, OK]], [good("p0:502 p0:200", 0.05)]),
    Row(
        "HTML of a bad gateway, always: told in a shape that clients can read",
        [[BAD_GATEWAY]],
        [passing(" ".join(["p0:502"] * 4), 502, "no_target_available", *ALONE)],
    ),
    Row(
        "empty",
        [[body(events=()), OK]],
        [AGAIN],
        [good("p0:stream_interrupted p0:200", 0.05, tries=1)],
    ),
    Row("no choices", [[body(b'{"choices":[]}', events=(b'data: {"choices":[]}\n\n', DONE)), OK]], [AGAIN]),
    Row("a redirect", [[Act(302, (JSON,), (b"",), None), OK]], [AGAIN]),
    # Errors inside an answer.
    Row(
        "error in a 200 before any output",
        [[body(IN_BAND, events=(ROLE, event(IN_BAND))), OK]],
        [good("p0:502 p0:200", 0.05)],
    ),
    Row(
        "error in a 200 before any output, always: a real status",
        [[body(IN_BAND, events=(ROLE, event(IN_BAND)))]],
        [passing(" ".join(["p0:502"] * 4), 502, "server_error", *ALONE)],
    ),
    Row(
        "rate limit in a 200",
        [[body(IN_BAND_RATE, events=(event(IN_BAND_RATE),)), OK]],
        [good("p0:429 p0:200", 0.05)],
    ),
    Row(
        "error in the middle",
        [[body(IN_BAND, events=(ROLE, WORD, event(IN_BAND))), OK]],
        [good("p0:502 p0:200", 0.05)],
        [broken("server_error", outcome="stream_error")],
    ),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_fault_has_its_own_outcome(row: Row, stream: bool) -> None:
    """Attempts and waits, status and error, headers, metrics, breakers and money are those of the table."""
    stage = Stage(row.acts, row.fallbacks, row.contexts, row.accounts, stream=stream)
    expected = row.streamed if stream and row.streamed is not None else row.seen

    seen = run(lambda clock: stage.play(clock, len(expected), given_s=row.given_s, **row.changes))

    assert [forget(one, like=wanted) for one, wanted in zip(seen, expected, strict=True)] == list(expected)
    assert stage.leftovers() == []
    assert [provider.requests for provider in stage.providers] == [
        sum(one.trail.count(f"p{number}:") for one in expected) for number in range(len(row.acts))
    ]


def forget(seen: Seen, like: Seen) -> Seen:
    """Without what the table does not tell."""
    return seen if like.took_s is not None else replace(seen, took_s=None)
