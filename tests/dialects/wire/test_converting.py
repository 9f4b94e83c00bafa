"""An upstream in another language than its callers': what goes where, what is learned from a 404, what comes back."""

from __future__ import annotations

from dataclasses import replace
from threading import current_thread, main_thread
from typing import Any

import orjson
import pytest

from gateway.core.answers import MAY_MEAN_PATH
from gateway.core.clock import SystemClock
from gateway.core.errors import InvalidRequest
from gateway.core.retry import Attempt
from gateway.core.types import Answer, Clocks, Outgoing, Spliced, UpstreamFailed
from gateway.dialects import registry
from gateway.dialects import upstream as module
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint, languages_of
from gateway.dialects.upstream import LARGE_BYTES, LEARNED_FOR_S, Converting, Languages
from tests.rows import rows
from tests.support.flow import JSON, Broken, Script, ScriptedUpstream
from tests.support.targets import target_named

CLOCKS = Clocks(1.0, 1.0, 1.0, 1.0, 1.0)
ASKED = {"model": "m", "input": "hi", "truncation": "auto"}
SAID = {
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}],
}
RESPONDED = {
    "status": "completed",
    "model": "m",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}],
}
SSE = (b"content-type", b"text/event-stream")
MODEL = {"error": {"message": "The model `m` does not exist", "code": "model_not_found", "param": None}}
OTHER_PATH = {
    "error": {
        "message": "This model is only supported in v1/responses and not in v1/chat/completions.",
        "param": "model",
    }
}


class Now(SystemClock):
    """A clock that is moved by hand."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at


def answers(*bodies: Any, status: int = 200) -> list[Script]:
    return [Script(status, (JSON,), [orjson.dumps(body)]) for body in bodies]


def around(inner: Any, clock: Any = None, *, speaks: frozenset[str] | None = None) -> Converting:
    learned: dict[str, float] | None = {} if speaks is None else None
    return Converting(inner, TargetLanguages("other", speaks), clock or Now(), lambda: "abc", learned=learned)


def outgoing(path: str = "/responses", body: Any = None, method: str = "POST") -> Outgoing:
    given = orjson.dumps(ASKED if body is None else body) if not isinstance(body, Spliced | bytes) else body
    return Outgoing(method, path, b"", "m", [], given, None, CLOCKS, 1.0, Attempt(target_named("t"), 0.0))


async def body_of(answer: Answer) -> Any:
    return orjson.loads(
        answer.whole if answer.whole is not None else b"".join([chunk async for chunk in answer.chunks])
    )


async def ask(upstream: Converting, sent: Outgoing) -> Answer:
    """Asks as an attempt does: what is not known there is learned from."""
    answer = await upstream.send(sent)
    return await upstream.on_unknown_path(sent, answer) if answer.status in MAY_MEAN_PATH else answer


async def test_what_a_server_does_not_speak_goes_in_what_it_does() -> None:
    """To the other path; what is lost is noted at the attempt."""
    inner = ScriptedUpstream(*answers(SAID))
    sent = outgoing()
    answer = await around(inner, speaks=frozenset(("chat",))).send(sent)

    assert (await body_of(answer))["output"][0]["content"][0]["text"] == "so"
    assert inner.sent[0].path == "/chat/completions"
    assert orjson.loads(bytes(inner.sent[0].body))["messages"] == [{"role": "user", "content": "hi"}]
    assert sent.signs is not None
    assert [(gap.field, gap.how) for gap in sent.signs.gaps] == [("truncation", "dropped")]


@pytest.mark.parametrize(
    ("path", "method"), [("/chat/completions", "POST"), ("/embeddings", "POST"), ("/responses", "GET")]
)
async def test_all_else_goes_as_it_is(path: str, method: str) -> None:
    """The very same request."""
    inner = ScriptedUpstream(*answers(SAID))
    sent = outgoing(path, method=method)

    await around(inner, speaks=frozenset(("chat",))).send(sent)

    assert inner.sent == [sent]


GENERATED = {"candidates": [{"content": {"parts": [{"text": "so"}]}, "finishReason": "STOP"}], "modelVersion": "g"}
EMBEDDED = {"embeddings": [{"values": [1.0]}], "predictions": [{"embeddings": {"values": [1.0]}}]}


@pytest.mark.parametrize(
    ("dialect", "path", "model", "is_stream", "place"),
    [
        ("gemini", "/chat/completions", "g-1", False, "/models/g-1:generateContent"),
        ("gemini", "/chat/completions", "models/g-1", True, "/models/g-1:streamGenerateContent?alt=sse"),
        ("gemini", "/responses", "g/é", False, "/models/g%2F%C3%A9:generateContent"),
        ("vertex", "/chat/completions", "g-1", True, "/publishers/google/models/g-1:streamGenerateContent?alt=sse"),
        ("gemini", "/embeddings", "e", False, "/models/e:batchEmbedContents"),
        ("vertex", "/embeddings", "e", False, "/publishers/google/models/e:predict"),
    ],
)
async def test_googles_models_are_steps_of_the_path(
    dialect: str, path: str, model: str, is_stream: bool, place: str
) -> None:
    """What is done with them stands behind a colon; embeddings are asked for beside the languages."""
    inner = ScriptedUpstream(*answers(EMBEDDED if path == "/embeddings" else GENERATED))
    spoken = TargetLanguages(dialect, languages_of(dialect, dialect, None), dialect)
    upstream = Converting(inner, spoken, Now(), lambda: "abc", learned=None)
    body = {"model": model, "stream": is_stream, "input": "hi", "messages": [{"role": "user", "content": "hi"}]}

    answer = await upstream.send(replace(outgoing(path, body), model=model))

    assert inner.sent[0].path == place
    assert (await body_of(answer))["object"] in ("list", "response", "chat.completion")


@pytest.mark.parametrize("model", ["", "..", "models/", "a\nb"])
async def test_a_model_leads_to_no_other_path(model: str) -> None:
    """A caller may send any name to a target that takes every model."""
    upstream = Converting(
        ScriptedUpstream(), TargetLanguages("gemini", frozenset(("generate",)), "gemini"), Now(), str, learned=None
    )
    with pytest.raises(InvalidRequest, match="model"):
        await upstream.send(
            replace(outgoing("/chat/completions", {"messages": [{"role": "user", "content": "x"}]}), model=model)
        )


async def test_what_cannot_be_said_is_refused_before_anything_is_sent() -> None:
    """With the names of the fields."""
    inner = ScriptedUpstream()
    with pytest.raises(InvalidRequest) as refused:
        await around(inner, speaks=frozenset(("chat",))).send(outgoing(body=ASKED | {"background": True}))

    assert (refused.value.param, refused.value.code) == ("background", "unsupported_by_targets")
    assert inner.sent == []


async def test_an_unknown_path_is_learned_for_ten_minutes() -> None:
    """The call is served at once; later ones do not ask in vain, until the time is over."""
    clock = Now()
    scripts = [*answers({"detail": "Not Found"}, status=404), *answers(SAID, SAID, ASKED)]
    inner = ScriptedUpstream(*scripts)
    upstream = around(inner, clock)

    for _ in range(2):
        assert (await body_of(await ask(upstream, outgoing())))["object"] == "response"
    assert [one.path for one in inner.sent] == ["/responses", "/chat/completions", "/chat/completions"]
    clock.at = LEARNED_FOR_S
    await ask(upstream, outgoing())
    assert inner.sent[-1].path == "/responses"


async def test_messages_are_put_into_what_turns_out_to_be_there() -> None:
    """A server is taken to have chat completions; where it has Responses alone, that holds for both of its callers."""
    clock = Now()
    responses = {"id": "r", "object": "response", "status": "completed", "output": [], "model": "m"}
    scripts = [*answers({"detail": "Not Found"}, status=404), *answers(responses, responses, responses)]
    inner = ScriptedUpstream(*scripts)
    upstream = around(inner, clock)
    message = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}

    for _ in range(2):
        assert (await body_of(await ask(upstream, outgoing("/messages", message))))["type"] == "message"
    assert (await body_of(await ask(upstream, outgoing("/chat/completions", message))))["object"] == "chat.completion"
    assert [one.path for one in inner.sent] == ["/chat/completions", *["/responses"] * 3]
    clock.at = LEARNED_FOR_S
    inner.scripts.extend(answers(SAID))
    await ask(upstream, outgoing("/messages", message))
    assert inner.sent[-1].path == "/chat/completions"


@pytest.mark.parametrize(
    ("said", "is_learned"),
    [
        (MODEL, False),
        ({"error": {"message": "no such file", "code": "x"}}, False),
        ({"detail": "model m is not loaded"}, False),
        (OTHER_PATH, True),
        ({"error": {"message": "Invalid URL (POST /v1/x)", "code": None}}, True),
        ({"error": {"message": "Unknown request", "code": "unknown_url"}}, True),
        ({"error": {"message": "Resource not found", "code": "404"}}, True),
        ({"detail": "Not Found"}, True),
        (b"<html>404</html>", True),
    ],
)
async def test_a_missing_model_is_no_missing_path(said: Any, is_learned: bool) -> None:
    """Unless the provider names the path that it is to be asked at. The answer can be read all the same."""
    first = Script(404, (JSON,), [said if isinstance(said, bytes) else orjson.dumps(said)])
    inner = ScriptedUpstream(first, *answers({"status": "completed", "output": [], "model": "m"}))
    upstream = around(inner)
    answer = await ask(upstream, outgoing("/chat/completions", {"model": "m", "messages": []}))

    assert len(inner.sent) == 1 + is_learned
    assert answer.status == (200 if is_learned else 404)
    assert await body_of(answer)


TOOLS_WITH_EFFORT = (
    "Function tools with reasoning_effort are not supported for gpt-5.4-mini in /v1/chat/completions. "
    "Please use /v1/responses instead."
)
OR_NO_EFFORT = "To use function tools, use /v1/responses or set reasoning_effort to 'none'."


@rows(
    ("message", "code", "is_learned"),
    [
        (TOOLS_WITH_EFFORT, None, True),
        (TOOLS_WITH_EFFORT, "unsupported_parameter", True),
        (OR_NO_EFFORT, "invalid_request_error", True),
        ("Unsupported parameter: 'foo' is not supported with /v1/chat/completions.", None, False),
        ("Invalid value: 'x'.", "invalid_value", False),
    ],
)
async def test_a_400_that_names_the_path_to_use_is_learned_from(
    message: str, code: str | None, is_learned: bool
) -> None:
    """OpenAI's models that take tools beside `reasoning_effort` by Responses alone; also for callers of Messages."""
    refusal = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    for path in ("/chat/completions", "/messages"):
        inner = ScriptedUpstream(*answers(refusal, status=400), *answers(RESPONDED))
        upstream = around(inner)
        answer = await ask(upstream, outgoing(path, asked))

        assert [one.path for one in inner.sent] == ["/chat/completions", "/responses"][: 1 + is_learned]
        assert answer.status == (200 if is_learned else 400)
        assert await body_of(answer)


async def test_nothing_is_learned_where_it_is_known() -> None:
    """Or of endpoints that have no other."""
    for speaks, path in ((frozenset(("chat",)), "/chat/completions"), (None, "/embeddings")):
        inner = ScriptedUpstream(*answers({"detail": "Not Found"}, status=404))
        answer = await ask(around(inner, speaks=speaks), outgoing(path))
        assert (answer.status, len(inner.sent)) == (404, 1)


async def test_calls_that_learn_at_once_are_all_served() -> None:
    """The one that hears of it later is not left with its 404."""
    missing = {"detail": "Not Found"}
    inner = ScriptedUpstream(*answers(missing, missing, status=404), *answers(SAID, SAID))
    upstream, sent = around(inner), outgoing()
    first, second = await upstream.send(sent), await upstream.send(sent)

    for answer in (first, second):
        assert (await body_of(await upstream.on_unknown_path(sent, answer)))["object"] == "response"


@pytest.mark.parametrize("said", [{"detail": "Not Found"}, b""])
async def test_nothing_is_learned_where_no_path_is_known(said: Any) -> None:
    """A server that is being deployed: its first word is given, and the path asked again next time."""
    scripts = [Script(404, (JSON,), [said if isinstance(said, bytes) else orjson.dumps(said)]) for _ in range(2)]
    inner = ScriptedUpstream(*scripts, *answers(ASKED))
    upstream = around(inner)

    assert (await ask(upstream, outgoing())).status == 404
    await ask(upstream, outgoing())
    assert [one.path for one in inner.sent] == ["/responses", "/chat/completions", "/responses"]


async def test_what_was_learned_is_forgotten_when_it_is_wrong() -> None:
    """The other path is gone: the next call asks the first one again."""
    missing = answers({"detail": "Not Found"}, status=404)
    inner = ScriptedUpstream(*missing, *answers(SAID), *answers({"detail": "Not Found"}, status=404), *answers(ASKED))
    upstream = around(inner)

    for status in (200, 404, 200):
        assert (await ask(upstream, outgoing())).status == status
    assert [one.path for one in inner.sent] == ["/responses", "/chat/completions", "/chat/completions", "/responses"]


@pytest.mark.parametrize("status", [404, 200])
async def test_what_is_packed_is_unpacked_or_the_targets_fault(status: int) -> None:
    """Packed, no word of a model can be seen in a refusal; this server's cannot be unpacked."""
    inner = ScriptedUpstream(Script(status, (JSON, (b"content-encoding", b"gzip")), [b"\x1f\x8b", b""]))
    upstream = around(inner, speaks=frozenset(("chat",)) if status == 200 else None)

    with pytest.raises(UpstreamFailed):
        await ask(upstream, outgoing())
    assert len(inner.sent) == 1


async def test_a_reload_forgets_nothing_that_was_learned() -> None:
    """The next config's targets ask the path that is there, as long as it holds."""
    clock = Now()
    languages = Languages(clock, lambda: "abc")
    inner = ScriptedUpstream(*answers({"detail": "Not Found"}, status=404), *answers(SAID, SAID))
    first = languages.converting(inner, TargetLanguages("other", None), "https://x m")
    assert first is not None
    await ask(first, outgoing())
    after, elsewhere = (
        languages.converting(inner, TargetLanguages("other", None), place) for place in ("https://x m", "https://y m")
    )
    assert after is not None
    assert elsewhere is not None

    assert set(after.converters_by_path) == {"/generate", "/messages", "/responses"}
    assert set(elsewhere.converters_by_path) == {"/generate", "/messages"}
    await ask(after, outgoing())
    assert inner.sent[-1].path == "/chat/completions"
    clock.at = LEARNED_FOR_S
    late = languages.converting(inner, TargetLanguages("other", None), "https://x m")
    assert late is not None
    assert set(late.converters_by_path) == {"/generate", "/messages"}


async def test_errors_come_back_as_the_server_wrote_them() -> None:
    """The tables of errors read those."""
    inner = ScriptedUpstream(*answers({"error": {"message": "slow down"}}, status=429))
    answer = await around(inner, speaks=frozenset(("chat",))).send(outgoing())

    assert (answer.status, await body_of(answer)) == (429, {"error": {"message": "slow down"}})


async def test_an_answer_without_a_message_is_the_targets_fault() -> None:
    """It is tried elsewhere."""
    inner = ScriptedUpstream(*answers({"choices": []}))
    answer = await around(inner, speaks=frozenset(("chat",))).send(outgoing())

    with pytest.raises(UpstreamFailed):
        await body_of(answer)


async def test_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has one, too."""
    monkeypatch.setattr(module, "MOST_ANSWER_BYTES", 100)
    inner = ScriptedUpstream(Script(200, (JSON,), [b" " * 60, b" " * 60]))
    answer = await around(inner, speaks=frozenset(("chat",))).send(outgoing())

    with pytest.raises(UpstreamFailed, match="too long"):
        await body_of(answer)


async def test_a_refusal_that_breaks_off_is_the_targets_fault() -> None:
    """Nothing is learned from it."""
    inner = ScriptedUpstream(Script(404, (JSON,), [b"{", Broken("gone")]))
    upstream = around(inner)

    with pytest.raises(UpstreamFailed):
        await ask(upstream, outgoing())
    assert set(upstream.converters_by_path) == {"/generate", "/messages"}


async def test_a_stream_is_converted_as_it_comes() -> None:
    """And what said something of its bytes is gone."""
    piece = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"so"},"finish_reason":null}]}\n\n'
    last = b'data: {"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    inner = ScriptedUpstream(Script(200, (SSE, (b"content-length", b"9")), [piece, last, b"data: [DONE]\n\n"]))
    answer = await around(inner, speaks=frozenset(("chat",))).send(outgoing(body=ASKED | {"stream": True}))
    chunks = [chunk async for chunk in answer.chunks]

    assert answer.headers == [SSE]
    assert b"response.output_text.delta" in chunks[0]
    assert b"response.completed" in chunks[-1]


@pytest.mark.parametrize("is_large", [False, True])
async def test_what_is_large_is_converted_in_a_thread(is_large: bool) -> None:
    """Requests and answers: others do not wait for them. Small ones are done sooner than a thread has begun."""
    words = "x" * LARGE_BYTES if is_large else "x"
    said = {
        **SAID,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"}],
    }
    threads: list[bool] = []

    class Watched(dict[str, Any]):
        """A body that tells where it is read."""

        def get(self, name: str, default: Any = None) -> Any:
            threads.append(current_thread() is main_thread())
            return super().get(name, default)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "json_object", lambda body: Watched(orjson.loads(body)))
        upstream = around(ScriptedUpstream(*answers(said)), speaks=frozenset(("chat",)))
        answer = await upstream.send(outgoing(body=ASKED | {"input": words}))
        assert threads[0] is not is_large
        threads.clear()
        await body_of(answer)
        assert threads[0] is not is_large


async def test_large_and_spliced_requests_are_converted_too() -> None:
    """In a thread, and put together first."""
    long = ASKED | {"input": "x" * LARGE_BYTES}
    text = orjson.dumps(ASKED)
    at = text.index(b'"hi"')
    inner = ScriptedUpstream(*answers(SAID, SAID))
    upstream = around(inner, speaks=frozenset(("chat",)))

    await upstream.send(outgoing(body=long))
    await upstream.send(outgoing(body=Spliced(text, [(at, at + 4, b'"ho"')])))

    sent = [orjson.loads(bytes(one.body))["messages"][0]["content"] for one in inner.sent]
    assert [len(sent[0]), sent[1]] == [LARGE_BYTES, "ho"]


async def test_openai_counts_what_its_responses_would_be_sent() -> None:
    """Other servers of its languages do not, and are not asked."""
    tool = {"name": "f", "input_schema": {"type": "object"}}
    asked = {"model": "m", "system": "S", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    inner = ScriptedUpstream(*answers({"object": "response.input_tokens", "input_tokens": 7}))
    upstream = Converting(inner, TargetLanguages("openai", None), Now(), lambda: "abc", learned={})

    assert await body_of(await upstream.send(outgoing("/messages/count_tokens", asked))) == {"input_tokens": 7}

    (sent,) = inner.sent
    told = orjson.loads(bytes(sent.body))
    assert sent.path == "/responses/input_tokens"
    assert told.keys() == {"model", "input", "tools"}
    assert [item["content"] for item in told["input"]] == ["S", "hi"]
    for kind, speaks in (("openai", frozenset(("chat",))), ("vllm", None), ("azure", None)):
        assert (
            "/messages/count_tokens"
            not in Converting(inner, TargetLanguages(kind, speaks), Now(), str, learned=None).converters_by_path
        )
        assert gaps_by_endpoint(TargetLanguages(kind, speaks), "m")["count_tokens"]({})
    assert not gaps_by_endpoint(TargetLanguages("openai", None), "m")["count_tokens"]({})


def test_what_is_declared_to_speak_a_language_is_asked_in_it() -> None:
    """Calls of OpenAI's clients cost nothing more; Messages are looked into for what we put there ourselves."""
    languages = Languages(Now(), lambda: "abc")
    declared = languages_of("openai", "other", ["chat", "responses"])
    between = languages.converting(ScriptedUpstream(), TargetLanguages("other", declared), "x m")
    assert between is not None
    assert set(between.converters_by_path) == {"/generate", "/messages"}
    everything = languages_of("openai", "other", ["chat", "responses", "messages"])
    between = languages.converting(ScriptedUpstream(), TargetLanguages("other", everything), "x m")
    assert between is not None
    assert set(between.converters_by_path) == {"/generate", "/messages", "/messages/count_tokens"}

    assert languages_of("openai", "mistral", None) == frozenset(("chat",))
    assert languages_of("openai", "openai", None) is None
