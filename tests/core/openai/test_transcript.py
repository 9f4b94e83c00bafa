"""What a stream has said: complete, failed or neither; nothing in a text changes it."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.sse import (
    PENDING_LIMIT,
    EventCutter,
    event_json,
    is_plain_chat,
    is_plain_generated,
    is_plain_message,
    is_plain_response,
)
from gateway.core.openai.transcript import Transcript
from gateway.core.types import StreamForm, Usage
from tests.core.openai.test_sse import DELTA, DONE, ERRORS, LIES, USAGE, data
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
SPACED = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": null}]}\n\n'
TEXT = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hi"}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"error":null}}\n\n'


def one() -> int:
    return 1


def heard(*blocks: bytes, form: StreamForm = "chat", strips_usage: bool = False) -> tuple[Transcript, bytes]:
    """A transcript of these blocks, and what it passed on."""
    said = Transcript(form, strips_usage=strips_usage)
    return said, b"".join([said.read(block) for block in blocks])


# -- plain events ---------------------------------------------------------------------------------------------------------


@rows(
    ("block", "plain"),
    [
        (DELTA, True),
        (SPACED, True),
        (FINISH, False),
        (USAGE, False),
        (DONE, False),
        (DELTA + DELTA, False),
        (DELTA.replace(b"\n", b"\r\n"), False),
        (DELTA[:-5] + b"\n\n", False),
        (DELTA[6:], False),
        (b": x\n\n", False),
        (b"", False),
    ],
)
def test_a_plain_chat_event_is_one_whole_line_without_an_end(block: bytes, plain: bool) -> None:
    """Anything else is looked into."""
    assert is_plain_chat(block) is plain


@rows(
    ("block", "plain"),
    [
        (TEXT, True),
        (TEXT + TEXT, False),
        (CREATED, False),
        (TEXT.replace(b"\n", b"\r\n"), False),
        (TEXT[:-3] + b"\n\n", False),
        (TEXT.partition(b"\n")[2], False),
        (TEXT.replace(b"_text.delta\n", b"_text.done\n", 1), False),
        (b"event: error\ndata: {}\n\n", False),
        (b"", False),
    ],
)
def test_a_plain_response_event_is_one_delta(block: bytes, plain: bool) -> None:
    """By its name, and on one line."""
    assert is_plain_response(block) is plain


DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{}}\n\n'


@rows(
    ("block", "plain"),
    [
        (DELTA, True),
        (DELTA + DELTA, False),
        (DELTA.replace(b"\n", b"\r\n"), False),
        (DELTA[:-5] + b"\n\n", False),
        (DELTA.replace(b"_delta", b"_start"), False),
        (DELTA.partition(b"\n")[2], False),
        (b"", False),
    ],
)
def test_a_plain_event_of_messages_is_one_delta(block: bytes, plain: bool) -> None:
    """By its name, and on one line."""
    assert is_plain_message(block) is plain


# -- the end of a stream --------------------------------------------------------------------------------------------------


@rows("done", [DONE, b"data:[DONE]\r\n\r\n", b"data: [DONE] \n\n"])
def test_done_ends_a_chat_also_where_the_connection_breaks(done: bytes) -> None:
    """Everything was said before."""
    said, passed = heard(DELTA, done)

    assert passed == DELTA + done
    assert said.is_over
    assert said.is_complete(one, is_clean=False)


def test_a_finish_reason_ends_a_chat_only_with_a_clean_end() -> None:
    """Some providers leave out [DONE]."""
    said, _ = heard(DELTA, FINISH)

    assert said.is_complete(one, is_clean=True)
    assert not said.is_complete(one, is_clean=False)
    assert not said.is_complete(lambda: 2, is_clean=True)


def test_every_choice_has_to_finish() -> None:
    """The same one twice is not two."""
    twice, _ = heard(FINISH, FINISH)
    both, _ = heard(FINISH, FINISH.replace(b'"index":0', b'"index":1'))

    assert not twice.is_complete(lambda: 2, is_clean=True)
    assert both.is_complete(lambda: 2, is_clean=True)


@rows("name", ["response.completed", "response.incomplete"])
@rows("form", ["responses", "other"])
def test_a_responses_stream_ends_with_its_last_event(name: str, form: StreamForm) -> None:
    """By its type, named or not; also where nobody knew what stream it was."""
    named = f'event: {name}\ndata: {{"type":"{name}"}}\n\n'.encode()

    for last in (named, named.replace(b"\n", b"\r\n"), named.partition(b"\n")[2]):
        said, _ = heard(CREATED, TEXT, form=form)

        assert not said.is_complete(one, is_clean=True)
        said.read(last)
        assert said.is_complete(one, is_clean=False)


def test_an_error_of_ours_has_the_next_number() -> None:
    """Behind events that were read, and behind those that were not."""
    said = Transcript("responses")
    assert b'"sequence_number":0' in said.error_event("cut", "x")
    said.read(b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{}}\n\n')
    assert b'"sequence_number":1' in said.error_event("cut", "x")
    said.last_plain = (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":7}\n\n'
    )
    assert b'"sequence_number":8' in said.error_event("cut", "x")
    said.read(b'event: response.x\ndata: {"type":"response.x","sequence_number":18446744073709551615}\n\n')
    assert b'"sequence_number":8' in said.error_event("cut", "x")


def test_a_stream_in_anthropics_form_ends_with_message_stop() -> None:
    """It is known by its start; its error has its own form, and its tokens come in two places."""
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
    delta = b'event: message_delta\ndata: {"type":"message_delta","delta":{},"usage":{"output_tokens":5}}\n\n'
    said, passed = heard(start, delta, form="other")

    assert passed == start + delta
    assert not said.is_complete(one, is_clean=True)
    assert said.error_event("m", "c").startswith(b'event: error\ndata: {"type":"error","error":{')
    assert said.usage == Usage(9, 5)
    said.read(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert said.is_complete(one, is_clean=False)


GENERATED = b'data: {"candidates":[{"content":{"parts":[{"text":"a"}]},"index":0}]}\r\n\r\n'
ENDED = (
    b'data: {"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":3,"totalTokenCount":9}}\r\n\r\n'
)
BLOCKED = b'data: {"promptFeedback":{"blockReason":"SAFETY"}}\n\n'


def test_a_stream_of_geminis_ends_with_a_reason_and_cleanly() -> None:
    """A prompt that was blocked has ended, too; errors of ours have Google's form."""
    for blocks, is_clean, complete in (
        ((GENERATED, ENDED), True, True),
        ((GENERATED, ENDED), False, False),
        ((GENERATED,), True, False),
        ((BLOCKED,), True, True),
    ):
        said, passed = heard(*blocks, form="generate")
        assert said.is_complete(one, is_clean=is_clean) is complete
        assert passed == b"".join(blocks)
    said, _ = heard(GENERATED, ENDED, form="generate")
    assert said.usage == Usage(3, 6)
    assert is_plain_generated(GENERATED)
    assert not is_plain_generated(ENDED)
    assert not is_plain_generated(GENERATED + GENERATED)
    said, _ = heard(GENERATED, b"data: nonsense\n\n", form="generate")
    assert said.failure is not None
    assert b'"status":"INTERNAL"' in said.failure.event


def test_every_candidate_has_to_end() -> None:
    """As many as were asked for, unless the prompt was blocked; what is no number counts as the first."""
    second = ENDED.replace(b'"finishReason"', b'"index":1,"finishReason"')
    for blocks, complete in (
        ((GENERATED, ENDED), False),
        ((GENERATED, second), False),
        ((GENERATED, ENDED, second), True),
        ((BLOCKED,), True),
    ):
        assert heard(*blocks, form="generate")[0].is_complete(lambda: 2, is_clean=True) is complete
    for index in (b"[]", b"{}", b'"x"', b"null"):
        odd = ENDED.replace(b'"finishReason"', b'"index":%b,"finishReason"' % index)
        assert heard(odd, form="generate")[0].is_complete(one, is_clean=True)


def test_other_streams_end_when_they_end() -> None:
    """Of images we know no last event."""
    said, _ = heard(b'data: {"type":"image_generation.completed"}\n\n', form="other")

    assert said.is_complete(one, is_clean=True)
    assert not said.is_complete(one, is_clean=False)


@rows("more", [DONE, DELTA, FINISH, b"garbage\n\n", ERRORS["openai"][0], b": bye\n\n", USAGE])
def test_nothing_follows_the_end(more: bytes) -> None:
    """A second [DONE], another event or garbage is left out, and is no failure."""
    for blocks in ((DELTA, FINISH, DONE, more), (DELTA + FINISH + DONE + more,)):
        said, passed = heard(*blocks)

        assert passed == DELTA + FINISH + DONE
        assert said.failure is None


def test_done_behind_a_completed_response_is_passed_on_once() -> None:
    """Some send it there too."""
    last = b'data: {"type":"response.completed","response":{}}\n\n'

    assert heard(TEXT, last, DONE, DONE, TEXT, form="responses")[1] == TEXT + last + DONE


# -- failures -------------------------------------------------------------------------------------------------------------


@rows(
    "nonsense",
    [
        b'data: {"choices":[{"delta":{"content":"Hel\n\n',
        b"data: what is this\n\n",
        b"data: [1]\n\n",
        DELTA[:-2] + DELTA,
        b"<html><body>502</body></html>\n\n",
        b'{\n "code": 503\n}\n\n',
    ],
)
def test_what_is_not_json_is_never_passed_on(nonsense: bytes) -> None:
    """A client could only choke on it: it gets an error event that it can read, and nothing else."""
    for blocks in ((DELTA, nonsense, DELTA), (DELTA + nonsense + DELTA,)):
        said, passed = heard(blocks[0])
        for block in blocks[1:]:
            if said.failure is None:
                passed += said.read(block)

        assert passed == DELTA
        assert said.failure is not None
        assert said.failure.outcome == "stream_interrupted"
        assert orjson.loads(said.failure.event[6:])["error"]["code"] == "stream_interrupted"


@rows("name", sorted(set(ERRORS) - {"gemini, in an array", "llama.cpp, old", "named, no json"}))
def test_the_providers_own_error_ends_the_stream(name: str) -> None:
    """As it came where SDKs see an error in it, else with the same error put so that they do; nothing follows."""
    event, error = ERRORS[name]
    said, passed = heard(DELTA, event + DELTA + DONE)

    assert said.failure is not None
    assert said.failure.outcome == "stream_error"
    shown = (passed + said.failure.event).removeprefix(DELTA)
    sent, parsed = event_json(event), event_json(shown)
    assert sent is not None
    assert parsed is not None
    if sent.get("error"):
        assert shown == event
    else:
        assert parsed == {"error": error}


def test_an_error_in_a_stream_of_messages_has_their_form() -> None:
    """Anthropic's own passes as it came; another server's is put into that form, which is all that their clients read."""
    own = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"m"}}\n\n'
    said, passed = heard(own, form="messages")
    assert (passed, said.failure and said.failure.outcome) == (own, "stream_error")
    said, passed = heard(b'data: {"error":{"message":"m","code":"c"}}\n\n', form="messages")
    assert passed == b""
    assert said.failure is not None
    error = {"type": "api_error", "message": "m", "code": "c"}
    assert event_json(said.failure.event) == {"type": "error", "error": error}
    assert said.failure.event.startswith(b"event: error\n")


@rows(
    "event",
    [b'error: {"code":500,"message":"m"}\n\n', b"event: error\ndata: m\n\n", b'[{"error":{"message":"m"}}]\n\n'],
)
def test_an_error_that_is_no_event_is_told_as_one(event: bytes) -> None:
    """Its message reaches the client."""
    said, passed = heard(DELTA, event)

    assert passed == DELTA
    assert said.failure is not None
    assert said.failure.outcome == "stream_interrupted"
    assert orjson.loads(said.failure.event[6:])["error"]["message"] == "m"


def test_a_failed_response_is_no_success() -> None:
    """It is a whole stream for its reader, and counted as what it is; its tokens count."""
    response = {"status": "failed", "error": {"code": "server_error", "message": "m"}, "usage": {"input_tokens": 3}}
    event = b"event: response.failed\n" + data({"type": "response.failed", "response": response})
    said, passed = heard(TEXT, event, form="responses")

    assert passed == TEXT + event
    assert said.failure is not None
    assert (said.failure.outcome, said.failure.event) == ("stream_error", b"")
    assert said.usage == Usage(3, 0)


def test_a_providers_error_is_followed_by_the_failed_response() -> None:
    """With the names of the one that had begun, and the next number."""
    created = {"type": "response.created", "response": {"id": "resp_1", "model": "m", "instructions": "long"}}
    error = {"type": "error", "code": "context_length_exceeded", "message": "too long", "sequence_number": 4}
    said, passed = heard(
        b"event: response.created\n" + data(created), b"event: error\n" + data(error), form="responses"
    )

    assert passed.endswith(data(error))
    assert said.failure is not None
    failed = event_json(said.failure.event) or {}
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", 5)
    assert (failed["response"]["id"], failed["response"]["model"]) == ("resp_1", "m")
    assert failed["response"]["error"] == {"code": "context_length_exceeded", "message": "too long"}
    assert failed["response"]["instructions"] is None


@rows(
    "event,told",
    [
        (b": ping\n\n", b": ping\n"),
        (b": a\r\n: b\r\n\r\n", b": a\n: b\n"),
        (b"event: ping\n\n", b""),
        (b"retry: 5\n: c\n\n", b": c\n"),
    ],
)
def test_a_providers_comments_are_lines_for_the_go_sdk(event: bytes, told: bytes) -> None:
    """It takes the empty line behind one, or behind a name without data, for an event."""
    for headers, expected in (((), event), (((b"x-stainless-lang", b"go"),), told)):
        said = Transcript("chat", headers=headers)
        assert said.read(event + DELTA) == expected + DELTA


@rows("reason", ["error", "insufficient_system_resource", "abort"])
def test_a_finish_reason_that_means_failure_is_followed_by_an_error(reason: str) -> None:
    """The chunk is passed on, and SDKs are told in a way that they understand."""
    event = FINISH.replace(b"stop", reason.encode())
    said, passed = heard(DELTA, event + DONE)

    assert passed == DELTA + event
    assert said.failure is not None
    assert said.failure.outcome == "stream_error"
    assert reason in orjson.loads(said.failure.event[6:])["error"]["message"]


# -- texts ----------------------------------------------------------------------------------------------------------------


@BOUNDED
@given(st.lists(st.sampled_from(LIES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=4))
def test_no_text_ends_a_stream_or_fails_it(texts: list[str]) -> None:
    """In content, tool arguments or keys, whatever stands next to it, plain or not."""
    text = "".join(texts)
    delta = {
        "content": text,
        "tool_calls": [{"function": {"arguments": orjson.dumps({text: text}).decode()}}],
        "k": text,
    }
    for reason in ({"finish_reason": None}, {}):
        event = data({"id": "c", "choices": [{"index": 0, "delta": delta, **reason}]})

        said, passed = heard(event)

        assert passed == event
        assert (said.is_over, said.failure, said.usage, said.finished) == (False, None, None, set())


# -- usage ----------------------------------------------------------------------------------------------------------------

AZURE_FIRST = b'data: {"choices":[],"prompt_filter_results":[{"prompt_index":0}]}\n\n'
CHOICES_AND_USAGE = DELTA.replace(b"]}\n", b'],"usage":{"prompt_tokens":1}}\n')
SAYS_SO = data({"choices": [{"delta": {"content": USAGE.decode()}}], "x": '"choices":[]'})
KEPT = (DELTA, AZURE_FIRST, CHOICES_AND_USAGE, SAYS_SO, b'data: {"choices":[]}\n\n', b": comment\n\n", FINISH)


@BOUNDED
@given(st.lists(st.sampled_from([*KEPT, USAGE, USAGE.replace(b":[]", b": []")]), max_size=8), st.booleans())
def test_only_the_extra_usage_event_is_taken_out(some: list[bytes], crlf: bool) -> None:
    """Every other event stays, byte for byte and in order; and it is read in any case."""
    if crlf:
        some = [event.replace(b"\n", b"\r\n") for event in some]

    said, left = heard(b"".join(some), strips_usage=True)

    assert left == b"".join(event for event in some if b'"total_tokens":11}}' not in event)
    if left != b"".join(some):
        assert said.usage == Usage(9, 2)


def test_the_null_usage_of_other_chunks_is_taken_out() -> None:
    """It is there because the gateway asked; text that looks like it stays."""
    said = data({"choices": [{"delta": {"content": ',"usage":null'}}]})

    assert heard(DELTA.replace(b"]}\n", b'],"usage":null}\n') + said, strips_usage=True)[1] == DELTA + said


def test_usage_is_kept_where_it_was_asked_for() -> None:
    """And read."""
    said, passed = heard(DELTA, FINISH, USAGE, DONE)

    assert passed == DELTA + FINISH + USAGE + DONE
    assert said.usage == Usage(9, 2)


@rows("holder", ["x_groq", "response", "message"])
def test_usage_is_found_wherever_providers_put_it(holder: str) -> None:
    """Groq's, Responses', Anthropic's."""
    assert heard(data({holder: {"usage": {"input_tokens": 4, "output_tokens": 2}}}))[0].usage == Usage(4, 2)


@rows(
    ("end", "usage"),
    [
        ({"output_tokens": 9}, Usage(112, 9, 100, cache_written=5, cache_written_1h=2)),
        ({"input_tokens": 0, "output_tokens": 9}, Usage(112, 9, 100, cache_written=5, cache_written_1h=2)),
        (
            {"input_tokens": 3, "cache_read_input_tokens": None, "output_tokens": 9},
            Usage(108, 9, 100, cache_written=5, cache_written_1h=2),
        ),
        (
            {"input_tokens": 0, "cache_read_input_tokens": 40, "output_tokens": 9},
            Usage(45, 9, 40, cache_written=5, cache_written_1h=2),
        ),
    ],
)
def test_the_last_numbers_of_a_message_hold(end: dict[str, Any], usage: Usage) -> None:
    """They are of all so far, and none of input is no news; at the start it may have been estimated."""
    start = {"input_tokens": 7, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 1,
             "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 2}}  # fmt: skip
    told = data({"type": "message_start", "message": {"usage": start}}), data({"type": "message_delta", "usage": end})
    for form in ("messages", "other"):
        assert heard(*told, form=form)[0].usage == usage


# -- long events ----------------------------------------------------------------------------------------------------------


def relayed(stream: bytes, size: int, form: StreamForm = "chat") -> tuple[Transcript, bytes]:
    """What is passed on of a stream that comes in pieces of this size."""
    cutter, said, passed = EventCutter(), Transcript(form), b""
    for at in range(0, len(stream), size):
        block = cutter.feed(stream[at : at + size])
        if block and said.failure is None:
            passed += said.read(block, is_part=cutter.inside)
    return said, passed


LONG: dict[str, Any] = {"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * 3 * PENDING_LIMIT}}]}


@rows("size", [1000, 30_000, PENDING_LIMIT + 1])
def test_a_long_event_passes_in_parts(size: int) -> None:
    """Exactly, and what follows it is read as ever."""
    stream = DELTA + data(LONG) + DELTA + FINISH + DONE

    said, passed = relayed(stream, size)

    assert passed == stream
    assert not said.is_inside
    assert said.is_over


def test_a_long_last_event_is_the_last() -> None:
    """A completed response carries all of its output; its tokens stand near its end."""
    response = {"output": "x" * 2 * PENDING_LIMIT, "usage": {"input_tokens": 7, "output_tokens": 2}, "metadata": {}}
    last = b"event: response.completed\n" + data({"type": "response.completed", "response": response})

    said, passed = relayed(TEXT + last + b"garbage\n\n", 30_000, "responses")

    assert passed == TEXT + last
    assert said.is_over
    assert said.usage == Usage(7, 2)


def test_a_long_last_event_of_geminis_has_a_reason() -> None:
    """A picture comes with the end of its answer."""
    part = {"inlineData": {"mimeType": "image/png", "data": "x" * 2 * PENDING_LIMIT}}
    end = {"content": {"parts": [part]}, "finishReason": "STOP", "index": 0}
    stream = data({"candidates": [end], "usageMetadata": {"promptTokenCount": 3, "totalTokenCount": 9}})

    said, passed = relayed(stream, 30_000, "generate")

    assert passed == stream
    assert said.is_complete(one, is_clean=True)
    assert said.usage == Usage(3, 6)


def test_a_long_event_that_is_no_json_never_ends_for_the_client() -> None:
    """It has a part of it already: its end is held back, and only breaking off is left."""
    said, passed = relayed(data(LONG)[:-10] + b"\n\n" + DELTA, 30_000)

    assert said.failure is not None
    assert (said.failure.outcome, said.failure.event) == ("stream_interrupted", b"")
    assert said.is_inside
    assert not said.is_complete(one, is_clean=True)
    assert b"\n\n" not in passed


def test_endless_garbage_is_not_passed_on() -> None:
    """A page without a blank line is known by its first bytes."""
    said, passed = relayed(b"<html>" + b"x" * 2 * PENDING_LIMIT, 30_000)

    assert passed == b""
    assert not said.is_inside
    assert said.failure is not None
    assert said.failure.event


def test_usage_in_the_first_choice_is_read() -> None:
    """Moonshot ends its streams so; what it read from its cache stands at the top there."""
    said = Transcript("chat")
    said.read(
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":1000,'
        b'"completion_tokens":100,"total_tokens":1100,"cached_tokens":600}}]}\n\ndata: [DONE]\n\n'
    )

    assert said.usage == Usage(1000, 100, 600)


def test_a_compaction_is_read_at_the_end_of_a_message() -> None:
    """Its tokens stand in the iterations of the last event alone."""
    said = Transcript("messages")
    said.read(
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":400,"output_tokens":1}}}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":100,'
        b'"iterations":[{"type":"compaction","input_tokens":3000,"output_tokens":500},'
        b'{"type":"message","input_tokens":400,"output_tokens":100}]}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )

    assert said.usage == Usage(3400, 600, steps=(Usage(3000, 500), Usage(400, 100)))
