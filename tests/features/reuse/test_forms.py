"""Kept answers in other forms: made once, right for each call, and within bounds."""

from __future__ import annotations

import orjson

from gateway.core.types import Kept
from gateway.features.reuse.layers import SMALL_BYTES, Forms, in_form
from gateway.features.reuse.rules import Caching, ExactRule
from tests.support.flow import Bench, ScriptedUpstream, streamed


def kept(text: str, *, stream: bool = True) -> Kept:
    """An answer of this text."""
    if stream:
        chunk = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
        body = b"data: %b\n\ndata: [DONE]\n\n" % orjson.dumps({"id": "1", "object": "chat.completion.chunk", **chunk})
    else:
        message = {"role": "assistant", "content": text}
        body = orjson.dumps({"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    return Kept(200, [], body, stream, "chat", "m", "web", "default", "req_1", "p0/m", 0.0, 9e9, 9e9)


CALL = Bench([ScriptedUpstream()]).call


def test_a_form_is_made_once() -> None:
    """The second call gets the very bytes of the first."""
    forms, answer = Forms(), kept("x" * 10_000)
    first = forms.body(CALL(), answer)
    assert first == in_form(CALL(), answer)
    assert forms.body(CALL(), kept("x" * 10_000)) is first


def test_each_call_gets_its_own_form() -> None:
    """Whole or streamed, with usage or without; another answer is another answer."""
    forms, answer = Forms(), kept("x" * 10_000, stream=False)
    told = {"stream": True, "stream_options": {"include_usage": True}}
    for changes in ({}, {"stream": True}, told):
        assert forms.body(CALL(**changes), answer) == in_form(CALL(**changes), answer)
    other = kept("y" * 10_000)
    assert forms.body(CALL(), other) == in_form(CALL(), other)


def test_what_is_as_it_is_wanted_is_not_copied() -> None:
    """Nor held."""
    forms, answer = Forms(), kept("x" * 10_000)
    assert forms.body(CALL(stream=True), answer) is answer.body
    assert not forms._made


def test_it_holds_no_more_than_it_may() -> None:
    """The least recently used goes first."""
    forms = Forms(most_bytes=32_000)
    answers = [kept(letter * 10_000) for letter in "abcd"]
    made = [forms.body(CALL(), answer) for answer in answers[:2]]
    assert forms.body(CALL(), answers[0]) is made[0]
    for answer in answers[2:]:
        forms.body(CALL(), answer)
    assert sum(len(made or b"") for made in forms._made.values()) <= forms._bytes <= 32_000
    assert forms.body(CALL(), answers[3]) is not None
    assert forms.body(CALL(), kept("z" * 50_000)) is not None
    assert forms._bytes <= 32_000


def test_small_answers_are_made_anew() -> None:
    """That is done before they would be found."""
    forms, answer = Forms(), kept("x" * (SMALL_BYTES // 4))
    assert forms.body(CALL(), answer) == in_form(CALL(), answer)
    assert not forms._made


def test_what_cannot_be_made_is_remembered_too() -> None:
    """It would be tried in vain at every call."""
    forms, answer = Forms(), kept("x" * 10_000)
    answer.body = answer.body.replace(b'"index":0', b'"index":"0"')
    assert forms.body(CALL(), answer) is None
    assert list(forms._made.values()) == [None]
    assert forms.body(CALL(), answer) is None


def test_the_endpoint_decides_what_is_made() -> None:
    """Equal bytes are different answers at different endpoints."""
    forms, chat = Forms(), kept("x" * 10_000)
    text = kept("x" * 10_000)
    text.endpoint = "completions"
    assert forms.body(CALL(), chat) == in_form(CALL(), chat)
    assert forms.body(CALL(), text) == in_form(CALL(), text)


async def test_a_stored_stream_tells_what_was_used_to_those_who_ask() -> None:
    """Its first client had not asked for it, and has not got the event that says so; a whole answer has it, too."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    events = [
        b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n',
        b'data: {"id":"1","choices":[],"usage":%b}\n\n' % orjson.dumps(usage),
        b"data: [DONE]\n\n",
    ]
    bench = Bench([ScriptedUpstream(streamed(*events))], caching=Caching(exact=ExactRule("always", ttl_s=60)))
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    call = {"body": orjson.dumps(asked), "parsed": asked}

    _, first = await bench.serve(**call, stream=True)
    _, second = await bench.serve(**call, stream=True, stream_options={"include_usage": True})
    _, third = await bench.serve(**call)

    assert first == events[0] + events[2]
    assert second.endswith(events[1] + events[2])
    assert orjson.loads(third)["usage"] == usage
    assert len(bench.upstreams[0].sent) == 1
