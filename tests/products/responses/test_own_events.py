"""The events of a response in the background: usual ones are taken whole, and come out as if they had been read."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.openai.sse import response_failed
from gateway.products.responses.rules import GENERATION_STEP, OwnEvents, frame

KINDS = st.sampled_from(
    ["response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta"]
)
TEXTS = st.one_of(st.text(), st.sampled_from(['"sequence_number":7', 'a\n\ndata: {"sequence_number": 8}', "\r\r"]))


def begun(generation: int) -> OwnEvents:
    """Events of which the first have come."""
    events = OwnEvents({"id": "resp_gw"}, {"id": "resp_gw", "status": "queued"}, generation)
    events.feed(
        frame("response.created", 0, {"response": {"id": "p"}}) + frame("response.in_progress", 1, {"response": {}})
    )
    return events


@given(KINDS, st.lists(TEXTS, min_size=1), st.integers(0, 3), st.sampled_from([b":", b": "]), st.booleans())
def test_a_usual_event_is_what_it_would_be_if_it_were_read(
    kind: str, deltas: list[str], generation: int, colon: bytes, is_last: bool
) -> None:
    """Whatever the text says, wherever its number stands."""
    read, passing = begun(generation), begun(generation)
    for number, delta in enumerate(deltas):
        said = {"delta": delta, "sequence_number": number} if is_last else {"sequence_number": number, "delta": delta}
        data = orjson.dumps({"type": kind, **said}).replace(
            b'"sequence_number":%d' % number, b'"sequence_number"%b%d' % (colon, number)
        )
        event = b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
        (expected,) = read.feed(event)
        assert passing.plain(event) == expected
    assert read.next_number == passing.next_number == generation * GENERATION_STEP + 3 + len(deltas)


def test_what_is_not_usual_has_to_be_read() -> None:
    """Another name than its data says, no number, two of them; and nothing is before it has begun."""
    events, usual = begun(0), b'event: response.x.delta\ndata: {"type":"response.x.delta","sequence_number":1}\n\n'
    odd = [
        usual.replace(b"event: response.x", b"event: response.y"),
        usual.replace(b',"sequence_number":1', b""),
        usual.replace(b":1}", b':1,"part":{"sequence_number":2}}'),
        usual.replace(b":1}", b':"1"}'),
    ]
    assert [events.plain(event) for event in odd] == [None] * len(odd)
    assert events.plain(usual) is not None
    assert OwnEvents({}, {}, 0).plain(usual) is None


def test_the_failed_response_behind_an_error_is_no_end_of_the_job() -> None:
    """The error decides whether the job is tried again."""
    events, error = begun(0), {"code": "stream_interrupted", "message": "m"}
    events.feed(frame("error", 2, error) + response_failed(error, 3))
    assert (events.error, events.final) == ({"code": "server_error", "message": "m"}, None)
