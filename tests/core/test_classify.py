"""What provider errors mean, by the tables that ship: every row of the references, every shape, nothing without a class."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import error_tables
from gateway.core.error_tables import (
    BODY_BYTES,
    TEXT_CHARS,
    Diagnosis,
    ErrorRule,
    ErrorTable,
    Phrase,
    error_object,
    in_band_status,
    is_openai_shaped,
    normalised,
    numberless,
    read_body,
)
from gateway.core.types import ErrorClass, Phase
from gateway.emulator.config import EmulatorConfig
from gateway.emulator.limits import RequestDemand, open_account
from gateway.emulator.replies import CDN_PAGE, FAULT_PROBLEMS
from tests.rows import rows
from tests.support.error_rows import BY_STATUS, ROWS, WALL, Row
from tests.support.mutations import mutated
from tests.support.tables import built_in, table_of

BOUNDED = settings(deadline=None, derandomize=True)
E = ErrorClass
KINDS = sorted({row.kind for row in ROWS})

plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner, max_size=2)
)
FIELDS = [
    "code",
    "type",
    "status",
    "message",
    "details",
    "metadata",
    "error",
    "innererror",
    "detail",
    "choices",
    "__type",
]
error_objects = st.dictionaries(st.sampled_from(FIELDS), values)


def diagnose(status: int | None, body: bytes, kind: str = "other", phase: Phase = Phase.ANSWERED) -> Diagnosis:
    """What it means without any header."""
    return table_of(kind).diagnose(phase, status, (), body, WALL)


def name_of(row: Row) -> str:
    return f"{row.kind}-{row.status}-{row.body[:60]!r}"


@rows("row", ROWS, ids=name_of)
def test_every_known_error_means_what_its_reference_says(row: Row) -> None:
    """Class; scope, delay and never-fits where the reference tells them."""
    diagnosis = table_of(row.kind).diagnose(row.phase, row.status, row.headers, row.body, WALL)

    assert diagnosis.error_class is row.error_class
    assert diagnosis.never_fits is row.never_fits
    assert row.scope in (None, diagnosis.scope)
    if row.delay_s is not None:
        assert diagnosis.delay_s == pytest.approx(row.delay_s, abs=0.001)


@rows("kind", [name for name in KINDS if name != "other"])
def test_every_rule_of_a_provider_is_used_by_some_row(kind: str) -> None:
    """A rule that no known error meets is a mistake, or shadowed by another."""
    rows = [row for row in ROWS if row.kind == kind]
    used = {table_of(kind).diagnose(row.phase, row.status, row.headers, row.body, WALL).rule for row in rows}

    assert {rule.name for rule in table_of(kind).rules if rule.name.startswith(f"{kind}:")} - used == set()


def test_every_rule_for_everybody_is_used_by_some_row() -> None:
    """As those of one provider."""
    used = {table_of(r.kind).diagnose(r.phase, r.status, r.headers, r.body, WALL).rule for r in ROWS}
    inside = {"timeout", "credential", "permission", "not found", "bad request", "rate limit"}
    unused = {rule.name for rule in table_of().rules} - used

    assert unused <= {f"default: inside an answer, {what}" for what in inside} | {"default: requests a minute, by type"}


@rows(("status", "error_class"), BY_STATUS.items())
@rows("body", [b"", b"<html>502 Bad Gateway</html>", b'{"x":1}', b'{"error":null}', b"[]", b"7", b"\xff"])
def test_without_words_the_status_decides(status: int, error_class: ErrorClass, body: bytes) -> None:
    """HTML, other JSON, or nothing at all; and the rule says that it was the status."""
    diagnosis = diagnose(status, body)

    assert diagnosis.error_class is error_class
    assert diagnosis.rule.startswith("default: status ") or error_class is E.UNKNOWN


@rows("status", [None, 100, 302, 304, 399])
def test_only_what_even_the_status_does_not_tell_is_unknown(status: int | None) -> None:
    """It has no rule, no scope beyond the target and no delay."""
    assert diagnose(status, b"") == Diagnosis(E.UNKNOWN)


def test_a_table_without_rules_knows_nothing() -> None:
    """But still answers."""
    assert ErrorTable().diagnose(Phase.ANSWERED, 429, [(b"retry-after", b"3")], b"", WALL) == Diagnosis(E.UNKNOWN)


@rows("kind", ["openai", "other"])
@rows("shape", ["object", "array", "flat", "sse", "named sse", "raw tail", "array tail"])
def test_an_error_is_found_in_every_shape(shape: str, kind: str) -> None:
    """With the same class and rule."""
    error = {"message": "m", "type": "invalid_request_error", "code": "context_length_exceeded"}
    nested = orjson.dumps({"error": error}, option=orjson.OPT_INDENT_2)
    flat = orjson.dumps({"object": "error", **error})
    bodies = {
        "object": nested,
        "array": b"[" + nested + b"]",
        "flat": flat,
        "sse": b'data: {"choices":[]}\n\ndata: ' + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n",
        "named sse": b'event: error\r\ndata: {"type":"error",' + flat[1:] + b"\r\n\r\n",
        "raw tail": b'data: {"choices":[]}\n\n' + nested + b"\n",
        "array tail": b'[{"candidates":[]}\n,\n' + nested + b"\n]",
    }

    for status, phase in ((400, Phase.ANSWERED), (200, Phase.ANSWERED), (200, Phase.STREAMING)):
        diagnosis = diagnose(status, bodies[shape], kind, phase)

        assert (diagnosis.error_class, diagnosis.rule) == (E.CONTEXT_LENGTH_EXCEEDED, "default: context length")


@rows("quote", ["'{}'", '"{}"', "`{}`", "'{}", "'x'{}'", "`it's {}`"])
@rows("status", [400, 403, 404, 422])
def test_what_a_provider_quotes_of_a_request_has_no_consequences_for_others(quote: str, status: int) -> None:
    """Anybody can have his own words repeated in an error: they must not close an account or pause a target."""
    words = "insufficient_quota credit balance is too low incorrect api key try again in 9d"
    message = f"Invalid value: {quote.format(words)}. Supported values are: 'text'."
    for body in (
        orjson.dumps({"error": {"message": message}}),
        orjson.dumps({"error": {"message": message + "x" * 9000}}),
    ):
        for kind in KINDS:
            found = diagnose(status, body, kind)
            assert found.error_class not in (E.QUOTA_EXHAUSTED, E.AUTH), kind
            assert found.delay_s is None


def test_a_truncated_body_is_read_as_text() -> None:
    """Its words still count, exact codes do not."""
    body = b'{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","co'

    assert diagnose(429, body, "openai").error_class is E.QUOTA_EXHAUSTED
    assert diagnose(429, b'{"error":{"message":"m","type":"tok').error_class is E.RATE_LIMIT_REQUESTS


@rows(
    ("error", "status", "error_class"),
    [
        ({"type": "service_unavailable_error", "code": "server_is_overloaded"}, 503, E.OVERLOADED),
        ({"type": "overloaded_error", "message": "Overloaded"}, 503, E.OVERLOADED),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "m"}, 429, E.RATE_LIMIT_REQUESTS),
        ({"type": "tokens", "code": "rate_limit_exceeded"}, 429, E.RATE_LIMIT_TOKENS),
        ({"type": "requests", "code": "rate_limit_exceeded"}, 429, E.RATE_LIMIT_REQUESTS),
        ({"type": "insufficient_quota", "code": "insufficient_quota"}, 429, E.QUOTA_EXHAUSTED),
        ({"code": 503, "status": "UNAVAILABLE", "message": "m"}, 503, E.OVERLOADED),
        ({"code": "429", "message": "token rate limit"}, 429, E.RATE_LIMIT_TOKENS),
        ({"code": 502, "metadata": {"error_type": "provider_unavailable"}}, 502, E.SERVER_ERROR),
        ({"object": "error", "type": "BadRequestError", "code": 400, "message": "m"}, 400, E.BAD_REQUEST),
        ({"message": "Model is overloaded", "type": "overloaded", "code": None}, 503, E.OVERLOADED),
        ({"message": "m", "type": "validation", "code": None}, 400, E.BAD_REQUEST),
        ({"type": "invalid_request_error", "code": None, "message": "m"}, 400, E.BAD_REQUEST),
        ({"type": "authentication_error", "message": "m"}, 401, E.AUTH),
        ({"type": "permission_error", "message": "m"}, 403, E.PERMISSION),
        ({"type": "not_found_error", "message": "m"}, 404, E.NOT_FOUND),
        ({"type": "timeout_error", "message": "m"}, 504, E.TIMEOUT),
        ({"code": "context_length_exceeded"}, 400, E.CONTEXT_LENGTH_EXCEEDED),
        ({"code": "content_filter"}, 400, E.CONTENT_POLICY),
        ({"code": 200, "message": "m"}, 502, E.SERVER_ERROR),
        ({"code": 500, "message": "m"}, 502, E.SERVER_ERROR),
        ({"code": True}, 502, E.SERVER_ERROR),
        ({"code": "server_error"}, 502, E.SERVER_ERROR),
        ({}, 502, E.SERVER_ERROR),
    ],
)
def test_errors_inside_a_200_get_the_status_they_should_have_had(
    error: dict[str, Any], status: int, error_class: ErrorClass
) -> None:
    """By their code where it is a status, else by their words; a 500 inside a 200 is the provider's, not ours."""
    diagnosis = table_of().diagnose_error(Phase.STREAMING, None, error, (), WALL)

    assert (in_band_status(error, diagnosis), diagnosis.error_class) == (status, error_class)
    assert table_of().diagnose_error(Phase.STREAMING, 200, error, (), WALL) == diagnosis


def test_an_error_object_may_come_with_a_status_of_its_own() -> None:
    """Which then counts as that of an answer."""
    diagnosis = table_of().diagnose_error(Phase.ANSWERED, 404, {"message": "m"}, (), WALL)

    assert diagnosis == Diagnosis(E.NOT_FOUND, rule="default: status 404")


def test_hints_are_read_from_an_error_object_too() -> None:
    """Google's delay stands in its details."""
    error = {"code": 429, "message": "m", "details": [{"retryDelay": "34s"}]}

    assert table_of("gemini").diagnose_error(Phase.STREAMING, None, error, (), WALL).delay_s == 34


def test_googles_delay_is_found_behind_long_details() -> None:
    """It comes last, after every violation."""
    body = orjson.dumps({"error": {"code": 429, "message": "m" * 3000, "details": [{"retryDelay": "34s"}]}})

    assert diagnose(429, body, "gemini").delay_s == 34


def test_the_servers_delay_is_never_undercut_but_may_be_raised() -> None:
    """By the rule's own minimum; a daily reset counts only where the server names nothing."""
    body = b'{"error":{"message":"insufficient_quota"}}'

    def delay_s(value: bytes) -> float | None:
        return table_of().diagnose(Phase.ANSWERED, 429, [(b"retry-after", value)], body, WALL).delay_s

    assert (delay_s(b"1"), delay_s(b"7200"), delay_s(b"soon")) == (1800, 7200, 1800)


@rows(("at", "delay_s"), [("2026-11-20T07:59:00", 60), ("2026-11-20T08:00:00", 0), ("", 72_000)])
def test_a_daily_reset_is_the_next_one(at: str, delay_s: float) -> None:
    """In UTC, whatever the hour."""
    now = WALL if not at else WALL - 4 * 3600 - (60 if "59" in at else 0)
    table = ErrorTable((ErrorRule("r", E.QUOTA_EXHAUSTED, resets_daily_at_s=8 * 3600.0),))

    assert table.diagnose(Phase.ANSWERED, 429, (), b"", now).delay_s == delay_s


@rows(
    ("phrase", "text", "is_there"),
    [
        ("Too  Many\n Requests", "sorry, too many requests", True),
        ("limit * reached", "Limit of 5 was reached", True),
        ("limit * reached", "reached the limit", False),
        ("after # seconds", "retry after 6 seconds", True),
        ("after # seconds", "retry after 1,000.5 seconds", True),
        ("after # seconds", "retry after a few seconds", False),
        ("limit 6", "limit 60", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("*", "anything", True),
        ("a.c", "abc", False),
        ("(a+)+$", "aaaaaaaaaaaaaaaa!", False),
    ],
)
def test_phrases_are_text_with_gaps_and_numbers(phrase: str, text: str, is_there: bool) -> None:
    """And nothing else: what regexes mean by their signs means itself here."""
    words = normalised(text)

    assert Phrase.of(phrase).is_in(words, numberless(words)) is is_there


def test_conditions_of_a_rule_must_all_hold() -> None:
    """Phase, status, code, type, body status, words and headers; each one alone breaks it."""
    rule = ErrorRule(
        "r",
        E.TIMEOUT,
        phases=frozenset([Phase.SENT]),
        statuses=frozenset([418]),
        codes=frozenset(["c"]),
        types=frozenset(["t"]),
        states=frozenset(["s"]),
        says=(Phrase.of("word"),),
        unless_says=(Phrase.of("but"),),
        headers=((b"h", (Phrase.of("v"),)),),
    )
    table = ErrorTable((rule,))
    error = {"code": "C", "type": "T", "status": "S", "message": "a WORD"}

    def matched(
        change: dict[str, str] | None = None, phase: Phase = Phase.SENT, status: int = 418, header: bytes = b"a V"
    ) -> str:
        body = orjson.dumps({"error": {**error, **(change or {})}})
        return table.diagnose(phase, status, [(b"h", header)], body, WALL).rule

    assert matched() == "r"
    assert matched(phase=Phase.ANSWERED) == matched(status=419) == matched(header=b"x") == ""
    assert {matched({field: "other"}) for field in error} == {""}
    assert matched({"message": "a word, but"}) == ""


@rows("dialect", ["openai", "azure", "anthropic"])
@rows("fault", FAULT_PROBLEMS)
def test_the_emulators_faults_are_what_their_names_say(dialect: str, fault: str) -> None:
    """In the words of each dialect."""
    problem = FAULT_PROBLEMS[fault](dialect)
    meant = {
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

    assert diagnose(problem.status, problem.render(dialect), dialect).error_class is meant[fault]
    assert diagnose(502, CDN_PAGE, dialect).error_class is E.SERVER_ERROR


@rows("dialect", ["openai", "azure", "anthropic"])
@rows("is_bare", [False, True])
def test_the_emulators_throttles_are_rate_limits(dialect: str, is_bare: bool) -> None:
    """With the delay that they name; without any hint they are still no quota."""
    config = EmulatorConfig(dialect=dialect, rpm=60, tpm=1000)
    reply = open_account(config, "m", 0.0, lambda: WALL).throttle(20.0, 0.0, is_bare=is_bare).reply(dialect)
    diagnosis = table_of(dialect).diagnose(Phase.ANSWERED, reply.status, reply.headers, reply.body, WALL)

    assert diagnosis.error_class in (E.RATE_LIMIT_REQUESTS, E.RATE_LIMIT_TOKENS)
    assert diagnosis.delay_s == (None if is_bare else 20)


def test_what_the_emulator_can_never_serve_never_fits() -> None:
    """OpenAI's words for a request above the limit itself."""
    config = EmulatorConfig(tpm=1000)
    refusal = open_account(config, "m", 0.0, lambda: WALL).admit(RequestDemand(5000), 0.0)
    assert refusal is not None
    reply = refusal.reply("openai")
    diagnosis = table_of("openai").diagnose(Phase.ANSWERED, reply.status, reply.headers, reply.body, WALL)

    assert (diagnosis.error_class, diagnosis.never_fits) == (E.RATE_LIMIT_TOKENS, True)


@BOUNDED
@given(
    st.sampled_from(KINDS),
    st.sampled_from(Phase),
    st.none() | st.integers(100, 599),
    st.binary(max_size=80) | error_objects.map(lambda error: orjson.dumps({"error": error})) | values.map(orjson.dumps),
    st.lists(st.tuples(st.sampled_from([b"retry-after", b"x-amzn-errortype", b"policy-id"]), st.binary(max_size=20))),
)
def test_every_answer_has_a_diagnosis(
    kind: str, phase: Phase, status: int | None, body: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    """Whatever the phase, the status, the headers and the bytes; it is unknown only where nothing is told."""
    diagnosis = table_of(kind).diagnose(phase, status, headers, body, WALL)

    assert diagnosis.error_class is not E.UNKNOWN or status is None or not (200 <= status < 300 or status >= 400)
    assert diagnosis.delay_s is None or 0 <= diagnosis.delay_s < 32 * 86_400


@BOUNDED
@given(error_objects)
def test_every_error_inside_a_200_has_a_status_and_a_class(error: dict[str, Any]) -> None:
    """The status is one of an error, so that SDKs raise."""
    diagnosis = table_of().diagnose_error(Phase.STREAMING, None, error, (), WALL)

    assert diagnosis.error_class is not E.UNKNOWN
    assert 400 <= in_band_status(error, diagnosis) < 600


@rows("shape", ['{"error":{"code":%s,"type":%s,"message":%s}}', '{"code":%s,"type":%s,"error":%s}'])
def test_nesting_as_deep_as_the_parser_takes_it_has_a_class(shape: str) -> None:
    """What cannot be printed is not read, nor written again for its hints."""
    deep = "[" * 1000 + "]" * 1000

    for fields in [(deep, "1", '"m"'), ('"c"', deep, '"m"'), ("null", "null", deep), (deep, deep, deep)]:
        body = (shape % fields).encode()

        assert diagnose(500, body).error_class is E.SERVER_ERROR
        assert diagnose(200, body).error_class in (E.SERVER_ERROR, E.MALFORMED_RESPONSE)
        assert (
            table_of().diagnose_error(Phase.SENT, None, error_object(body) or {}, (), WALL).error_class
            is E.SERVER_ERROR
        )


def test_broken_bodies_of_every_known_error_have_a_class() -> None:
    """Cut, doubled, filled up or with any byte changed: the long sweep is with the soak tests."""
    draw = random.Random(1)

    for row in draw.choices(ROWS, k=3000):
        diagnosis = table_of(row.kind).diagnose(row.phase, row.status, row.headers, mutated(row.body, draw), WALL)

        assert diagnosis.error_class is not E.UNKNOWN or 300 <= row.status < 400


@pytest.mark.parametrize(
    "body", [b"1 " * 10**6, b'{"error":{"message":"%s"}}' % (b"limit 1 " * 900), b"data: {" * 10**5]
)
def test_work_is_bounded_whatever_the_size(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes parsed, so many characters searched, in so many phrases."""
    parsed: list[int] = []
    loads = orjson.loads

    class Counted:
        """orjson that counts what it is given."""

        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(text: bytes) -> Any:
            parsed.append(len(text))
            return loads(text)

    monkeypatch.setattr(error_tables, "orjson", Counted)

    wording = read_body(body).wording

    assert sum(parsed) <= 6 * BODY_BYTES
    assert len(wording.text) <= TEXT_CHARS
    assert len(wording.numberless) <= len(wording.text)
    for kind in KINDS:
        rules = built_in().of(kind).rules
        assert sum(len(rule.says) + len(rule.unless_says) for rule in rules) < 150


def test_of_a_long_stream_the_end_is_read_and_of_anything_else_the_beginning() -> None:
    """An error comes last in a stream, and first in a page."""
    error = b'data: {"error":{"type":"overloaded_error","message":"m"}}\n\n'
    chunks = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n' * 1000

    assert diagnose(200, chunks + error, phase=Phase.STREAMING).error_class is E.OVERLOADED
    assert diagnose(400, b"prompt is too long" + b" " * 10**5).error_class is E.CONTEXT_LENGTH_EXCEEDED


@rows(
    ("body", "error"),
    [
        (b'{"error":{"code":"c"}}', {"code": "c"}),
        (b'[{"error":{"code":"c"}}]', {"code": "c"}),
        (b'{"error":"text","code":"c"}', {"error": "text", "code": "c", "message": "text"}),
        (b'{"message":"text"}', {"message": "text"}),
        (b'{"detail":"text"}', {"detail": "text", "message": "text"}),
        (b'[{"error":{}},{}]', None),
        (b'"error"', None),
        (b"", None),
    ],
)
def test_error_objects_are_found_where_they_are(body: bytes, error: dict[str, Any] | None) -> None:
    """Nested, in an array, as a text, or flat."""
    assert error_object(body) == error


@rows(
    ("body", "readable"),
    [(b'{"error":{"message":"m"}}', True), (b'{"error":"m"}', False), (b'[{"error":{}}]', False), (b"<html>", False)],
)
def test_only_openais_shape_is_shown_to_clients_as_it_is(body: bytes, readable: bool) -> None:
    """SDKs read `error` as an object."""
    assert is_openai_shaped(body) is readable
