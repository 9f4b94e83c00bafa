"""The life of a part at a provider, under every order of events: it ends, and asks for nothing twice without a reason."""

from __future__ import annotations

from dataclasses import replace

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.products.batches.native import rules
from gateway.products.batches.native.formats import (
    RemoteBatch,
    part_line,
    read_answer,
    read_batch,
    read_message_batch,
    read_result,
)
from gateway.products.batches.native.rules import (
    BatchThere,
    Done,
    Failed,
    Gone,
    NotListed,
    Part,
    PartEvent,
    PartPhase,
    Refused,
    Unsent,
    Unsure,
    UploadedFile,
    _turn,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
STATUSES = (
    "validating",
    "in_progress",
    "finalizing",
    "cancelling",
    "completed",
    "failed",
    "expired",
    "cancelled",
    "odd",
)
BATCHES = st.builds(
    RemoteBatch,
    id=st.just("batch_1"),
    status=st.sampled_from(STATUSES),
    output=st.sampled_from(["", "out"]),
    errors=st.sampled_from(["", "err"]),
    completed=st.integers(0, 3),
    code=st.sampled_from(["", "token_limit_exceeded", "invalid_json_line"]),
)
EVENTS: st.SearchStrategy[PartEvent] = st.one_of(
    st.builds(UploadedFile, st.just("file-1")),
    st.builds(BatchThere, BATCHES),
    st.just(NotListed()),
    st.just(Gone()),
    st.builds(Failed, st.just("down"), st.floats(0, 1000)),
    st.builds(Refused, st.just("no"), st.booleans()),
    st.just(Unsent("too late")),
    st.just(Unsure("one may be it")),
    st.just(Done()),
)
ORDER = list(PartPhase)


def begun(*, is_inline: bool = False) -> Part:
    """A part of which nobody has heard."""
    return rules.new_part("batch_1", 3, "openai/m", "openai", "m", 0.0, is_inline=is_inline)


def fits(part: Part, event: PartEvent) -> bool:
    """Whether what was asked in this phase can be answered so."""
    if isinstance(event, Unsure):
        return part.is_inline and part.phase is PartPhase.CREATING and part.is_asked
    match part.phase:
        case PartPhase.UPLOADING:
            return not isinstance(event, BatchThere | Gone | Done | Unsent) and (
                part.is_asked or not isinstance(event, NotListed)
            )
        case PartPhase.CREATING:
            is_for_looks, is_for_asking = isinstance(event, NotListed), isinstance(event, Refused | Unsent)
            return not isinstance(event, UploadedFile | Gone | Done) and not (
                is_for_asking if part.is_asked else is_for_looks
            )
        case PartPhase.RECALLING:
            return isinstance(event, Failed) or (
                isinstance(event, BatchThere | NotListed) if part.is_asked else isinstance(event, Done | Refused)
            )
        case PartPhase.WORKING:
            return not isinstance(event, UploadedFile | Done | Unsent)
        case PartPhase.CANCELLING:
            return isinstance(event, Failed) or (
                isinstance(event, Done | Refused) is not part.is_asked and not _is_file(event)
            )
    return isinstance(event, Failed | Refused | Done | Gone)


def _is_file(event: PartEvent) -> bool:
    return isinstance(event, UploadedFile)


@given(st.lists(EVENTS, min_size=1, max_size=300), st.lists(st.booleans(), min_size=300, max_size=300))
def test_whatever_is_heard_it_asks_for_a_batch_once_and_ends_once(events: list[PartEvent], wants: list[bool]) -> None:
    """Unless the provider has refused, or has shown none for long, and none after its file was removed; and the end stays
    the end.
    """
    part, now, asked_at, may_exist = begun(), 0.0, 0.0, False
    for event, is_wanted in zip(events, wants, strict=False):
        now = max(now, part.due)
        part = rules.recall(part, now, "late") if is_wanted else part
        if not fits(part, event):
            continue
        if part.phase is PartPhase.CREATING and not part.is_asked:
            assert not may_exist, "a second batch is asked for, and nothing says that there is no first"
            part, may_exist, asked_at = rules.mark_queried(part), True, now
        elif part.phase is PartPhase.UPLOADING and not part.is_asked:
            part = rules.mark_queried(part)
        if part.phase is PartPhase.CREATING:
            is_over = isinstance(event, BatchThere) and event.batch.is_over
            may_exist = may_exist and not isinstance(event, Refused | Unsent) and not is_over
        elif (part.phase is PartPhase.RECALLING and part.is_asked and isinstance(event, NotListed)) or (
            isinstance(event, BatchThere) and event.batch.is_over
        ):
            may_exist = False
        before = part
        part = rules.advanced(part, event, now, 15.0)
        assert rules.of_mark(rules.to_mark(part)).phase is part.phase
        assert part.due <= now + rules.MOST_POLL_S
        if part.phase is PartPhase.RECALLING is not before.phase:
            assert now - asked_at >= rules.SETTLED_S
        if before.is_over:
            assert part == before
        elif ORDER.index(part.phase) < ORDER.index(before.phase):
            assert part.submission == before.submission + 1, "it goes back only to be submitted again"
            if before.phase is PartPhase.RECALLING:
                assert (part.phase, part.file) == (PartPhase.UPLOADING, "")
            else:
                assert isinstance(event, BatchThere)
                assert (event.batch.is_full, part.phase) == (True, PartPhase.CREATING)
            assert part.name != before.name


@given(st.lists(EVENTS, min_size=1, max_size=300), st.lists(st.booleans(), min_size=300, max_size=300))
def test_where_lines_go_along_it_asks_again_only_when_none_was_seen_for_long(
    events: list[PartEvent], wants: list[bool]
) -> None:
    """There is no file to remove: only a list that has shown none for INLINE_SETTLED_S, a refusal, or what was never sent."""
    part, now, seen_none_since, may_exist = begun(is_inline=True), 0.0, 0.0, False
    for event, is_wanted in zip(events, wants, strict=False):
        now = max(now, part.due)
        part = rules.recall(part, now, "late") if is_wanted and now > 2000 else part
        if not fits(part, event):
            continue
        assert part.phase not in (PartPhase.UPLOADING, PartPhase.RECALLING)
        if part.phase is PartPhase.CREATING and not part.is_asked:
            assert not may_exist, "a second batch is asked for, and nothing says that there is no first"
            part, may_exist, seen_none_since = rules.mark_queried(part, 7), True, 0.0
        before = part
        if part.phase is PartPhase.CREATING and isinstance(event, NotListed | Unsure):
            seen_none_since = seen_none_since or now or 1e-9
        if isinstance(event, Refused | Unsent) or (isinstance(event, BatchThere) and event.batch.is_over):
            may_exist = False
        part = rules.advanced(part, event, now, 15.0)
        assert part.due <= now + rules.MOST_POLL_S
        if part.submission > before.submission and not isinstance(event, BatchThere):
            assert isinstance(event, NotListed)
            assert now - seen_none_since >= rules.INLINE_SETTLED_S - 1
            may_exist = False
        assert rules.of_mark(rules.to_mark(part)).phase is part.phase


@given(st.lists(EVENTS, min_size=1, max_size=40), EVENTS, st.booleans())
def test_a_part_that_is_wanted_back_ends_whatever_is_heard_again_and_again(
    events: list[PartEvent], last: PartEvent, is_inline: bool
) -> None:
    """No provider keeps a line for ever."""
    part, now = begun(is_inline=is_inline), 0.0
    for event in events:
        part = rules.advanced(rules.mark_queried(part), event, now, 15.0) if fits(part, event) else part
        now = max(now, part.due)
    part = rules.recall(part, now, "late")
    rounds = 0
    while not part.is_over:
        rounds += 1
        assert rounds < 500, part
        now = max(now, part.due)
        event = last if fits(part, last) else Done() if fits(part, Done()) else Failed("down")
        part = rules.advanced(part, event, now, 15.0)


def test_a_mark_is_the_part() -> None:
    """Whatever is in it."""
    part = replace(
        begun(), file="f", batch="b", misses=2, troubles=3, is_wanted=True, why="w", submission=2, is_asked=True
    )

    assert rules.of_mark(rules.to_mark(part)) == part


@given(JSON)
def test_anything_may_stand_where_a_batch_should(value: object) -> None:
    """It is one, or none."""
    read_batch(value)
    read_batch({"id": "b", "status": "completed", "errors": value, "metadata": value, "request_counts": value})
    read_message_batch(value)
    read_message_batch({"id": "b", "processing_status": "ended", "request_counts": value, "created_at": value})
    read_result(orjson.dumps({"custom_id": "batch_req_x000001", "result": value}, default=str), "batch_req_x")


@given(st.binary(max_size=60))
def test_anything_may_stand_in_a_file(text: bytes) -> None:
    """It is an answer to a line, or none."""
    assert read_answer(text, "batch_req_x") is None
    assert read_result(text, "batch_req_x") is None


def test_a_result_is_an_answer_a_fault_of_the_line_or_none() -> None:
    """What was cancelled, had no time left, or failed by the provider runs here."""

    def read(result: str) -> tuple[int, bytes] | None:
        found = read_result(b'{"custom_id":"batch_req_x000007","result":%b}' % result.encode(), "batch_req_x")
        return None if found is None else (found.status, found.body)

    error = '{"type":"error", "error":{"type":"%s","message":"no"}}'
    assert read('{"type":"succeeded","message":{"id":"m", "x":1.50}}') == (200, b'{"id":"m", "x":1.50}')
    bad = error % "invalid_request_error"
    assert read(f'{{"type":"errored","error":{bad}}}') == (400, bad.encode())
    for other in ("overloaded_error", "authentication_error", "not_found_error", "billing_error", "new_error"):
        assert read(f'{{"type":"errored","error":{error % other}}}') is None
    assert read('{"type":"canceled"}') is read('{"type":"expired"}') is read("null") is None


def test_a_line_comes_home_as_the_provider_wrote_it() -> None:
    """The body byte by byte; the owner's name never left."""
    sent = part_line("batch_req_x000007", "/chat/completions", b'{"model":"alias","messages":[],\r"n":1.50}', "gpt-4o")
    body = b'{"usage":{"prompt_tokens":3,"completion_tokens":2}, "price":1.50, "response":{"body":{}}}'
    text = b'{"body":1,"custom_id":"batch_req_x000007","response":{"status_code":200,"body":%b},"error":null}' % body
    answer = read_answer(text, "batch_req_x")

    assert sent == (
        b'{"custom_id":"batch_req_x000007","method":"POST","url":"/chat/completions",'
        b'"body":{"model":"gpt-4o","messages":[],"n":1.50}}\n'
    )
    assert answer is not None
    assert (answer.number, answer.status, answer.body) == (7, 200, body)
    assert answer.usage is not None
    assert (answer.usage.input, answer.usage.output) == (3, 2)
    assert read_answer(text.replace(b":200", b":503"), "batch_req_x") is None
    assert read_answer(text.replace(b":200", b":0"), "batch_req_x") is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 200))
def test_turns_are_by_weight(weights: list[int], start: int) -> None:
    """In any stretch as long as the weights together each has its number."""
    turns = [_turn(weights, number) for number in range(start, start + sum(weights))]

    assert [turns.count(one) for one in range(len(weights))] == weights
