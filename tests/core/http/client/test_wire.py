"""A target's wire, through the same seam that the real transports use: respx stands in for the provider."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import httpx
import pytest
import respx

from gateway.core.http.client.wire import Wire
from gateway.core.snapshot import Provider
from gateway.core.types import Answer, Clocks, ErrorClass, Outgoing, Phase, UpstreamFailed

OPENAI = Provider(
    "openai", "openai", "https://api.openai.test/v1", api_key="sk-provider", headers=(("X-Team", "search"),)
)
ANTHROPIC = Provider("anthropic", "anthropic", "https://anthropic.test/v1", api_key="anthropic-secret")
AZURE = Provider("azure", "azure", "https://east.azure.test", api_key="azure-secret", api_version="2024-10-21")
CHAT = Outgoing(
    method="POST",
    path="/chat/completions",
    query=b"",
    model="gpt-4o",
    headers=[(b"content-type", b"application/json"), (b"user-agent", b"sdk/1")],
    body=b'{"model": "gpt-4o"}',
    credential=b"Bearer callers-own",
    clocks=Clocks(connect_s=5, write_s=60, first_byte_s=600, idle_s=300, total_s=3600),
    first_byte_s=600,
)


def wire(router: respx.Router, provider: Provider, model: str | None = "gpt-4o") -> Wire:
    """A wire whose provider is the router."""
    return Wire(provider, model, httpx.MockTransport(router.async_handler))


async def read(answer: Answer) -> bytes:
    """The whole body."""
    try:
        return b"".join([chunk async for chunk in answer.chunks])
    finally:
        await answer.aclose()


async def sent(provider: Provider, outgoing: Outgoing = CHAT, model: str | None = "gpt-4o") -> httpx.Request:
    """What the provider gets for a call."""
    router = respx.Router(assert_all_called=False)
    route = router.route().respond(200, json={})
    await read(await wire(router, provider, model).send(outgoing))
    request = route.calls.last.request
    assert isinstance(request, httpx.Request)
    return request


@pytest.mark.parametrize(
    ("path", "query", "url"),
    [
        ("/messages", b"beta=true", "https://api.openai.test/anthropic/v1/messages?beta=true"),
        ("/messages/count_tokens", b"", "https://api.openai.test/anthropic/v1/messages/count_tokens"),
        ("/chat/completions", b"", "https://api.openai.test/v1/chat/completions"),
        ("/messages/batches", b"", "https://api.openai.test/v1/messages/batches"),
    ],
)
async def test_messages_go_where_the_server_takes_them(path: str, query: bytes, url: str) -> None:
    """All else goes to its usual place."""
    provider = replace(OPENAI, messages_url="https://api.openai.test/anthropic/v1")

    request = await sent(provider, replace(CHAT, path=path, query=query))

    assert str(request.url) == url


async def test_openai_gets_its_own_key_and_the_bytes_as_they_came() -> None:
    """The configured key replaces the caller's, configured headers are added, the body is not touched."""
    request = await sent(OPENAI)

    assert str(request.url) == "https://api.openai.test/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer sk-provider"
    assert request.headers["x-team"] == "search"
    assert request.headers["host"] == "api.openai.test"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["content-length"] == "19"
    assert request.content == CHAT.body


async def test_without_a_key_the_callers_credential_is_passed_through() -> None:
    """An application may keep its own provider key."""
    request = await sent(replace(OPENAI, api_key=None))

    assert request.headers["authorization"] == "Bearer callers-own"


@pytest.mark.parametrize("api_version", ["2024-10-21", None])
@pytest.mark.parametrize(
    ("credential", "header"),
    [
        (b"Bearer callers-own", ("api-key", "callers-own")),
        (b"bearer  callers.own", ("api-key", "callers.own")),
        (b"Bearer head.claims.signature", ("authorization", "Bearer head.claims.signature")),
        (b"Basic dTpw", ("authorization", "Basic dTpw")),
    ],
)
async def test_azure_gets_the_callers_key_as_its_own_kind(
    credential: bytes, header: tuple[str, str], api_version: str | None
) -> None:
    """A key as `api-key`, an Entra token (it looks like a JWT) as a bearer token."""
    azure = replace(AZURE, api_key=None, api_version=api_version)

    request = await sent(azure, replace(CHAT, credential=credential))

    credentials = {(n, v) for n, v in request.headers.items() if n in ("api-key", "authorization")}
    assert credentials == {header}


@pytest.mark.parametrize(
    ("provider", "credential", "header"),
    [
        (ANTHROPIC, b"x-api-key sk-ant-1", ("x-api-key", "sk-ant-1")),
        (ANTHROPIC, b"Bearer sk-ant-1", ("authorization", "Bearer sk-ant-1")),
        (ANTHROPIC, b"Bearer head.claims.signature", ("authorization", "Bearer head.claims.signature")),
        (AZURE, b"x-api-key callers-own", ("api-key", "callers-own")),
        (OPENAI, b"x-api-key callers-own", ("authorization", "Bearer callers-own")),
    ],
)
async def test_a_callers_key_stays_a_key(provider: Provider, credential: bytes, header: tuple[str, str]) -> None:
    """Anthropic takes both, each in its own header; elsewhere it is what that API has."""
    request = await sent(replace(provider, api_key=None), replace(CHAT, credential=credential))

    names = ("api-key", "x-api-key", "authorization")
    assert {(n, v) for n, v in request.headers.items() if n in names} == {header}


async def test_a_key_of_bedrocks_is_a_bearer_token_in_anthropics_language_too() -> None:
    """As at the endpoint of Bedrock's that speaks Messages."""
    for key in ("ABSKx1", "bedrock-api-key-x1"):
        headers = (await sent(replace(ANTHROPIC, api_key=key))).headers
        assert (headers.get("authorization"), headers.get("x-api-key")) == (f"Bearer {key}", None)


@pytest.mark.parametrize("dialect", ["gemini", "vertex"])
async def test_google_gets_a_key_as_its_own_kind(dialect: Literal["gemini", "vertex"]) -> None:
    """As `x-goog-api-key`; a token of a login, which no key looks like, as a bearer token. Of the caller's, and of ours."""
    for key, name, value in (
        ("AIza-1", "x-goog-api-key", "AIza-1"),
        ("ya29.a0-1", "authorization", "Bearer ya29.a0-1"),
    ):
        callers = replace(OPENAI, dialect=dialect, api_key=None)
        for provider in (callers, replace(callers, api_key=key)):
            request = await sent(provider, replace(CHAT, credential=b"Bearer " + key.encode()))
            credentials = {(n, v) for n, v in request.headers.items() if n in ("x-goog-api-key", "authorization")}
            assert credentials == {(name, value)}


async def test_a_configured_header_wins_over_the_callers() -> None:
    """It goes out once; what is not configured passes."""
    provider = replace(OPENAI, headers=(("User-Agent", "gateway"), ("OpenAI-Beta", "a")))
    headers = [(b"user-agent", b"sdk/1"), (b"openai-beta", b"b"), (b"accept", b"*/*")]

    request = await sent(provider, replace(CHAT, headers=headers))

    assert request.headers.get_list("user-agent") == ["gateway"]
    assert request.headers.get_list("openai-beta") == ["a"]
    assert request.headers.get_list("accept") == ["*/*"]


async def test_without_any_credential_none_is_sent() -> None:
    """A local server that asks for none gets none."""
    request = await sent(replace(OPENAI, api_key=None), replace(CHAT, credential=None))

    assert "authorization" not in request.headers


async def test_azure_with_a_version_speaks_deployments() -> None:
    """The model is the deployment in the path, the key travels as `api-key`."""
    request = await sent(AZURE, replace(CHAT, model="my deployment/1"), "my deployment/1")

    assert request.url.raw_path == b"/openai/deployments/my%20deployment%2F1/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == "azure-secret"
    assert "authorization" not in request.headers


@pytest.mark.parametrize("model", [".", "..", "", "a\nb", "a\0", "\ud800"])
async def test_a_model_that_is_no_step_of_a_path_is_refused(model: str) -> None:
    """A client's model never leads to another path of the provider; nothing is sent."""
    with pytest.raises(UpstreamFailed) as caught:
        await sent(AZURE, replace(CHAT, model=model), None)

    assert (caught.value.error_class, caught.value.phase) == (ErrorClass.BAD_REQUEST, Phase.NOTHING_SENT)


async def test_an_address_is_made_once_where_the_path_decides() -> None:
    """For a target of any model too, unless the model is in the URL."""
    sent_to: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent_to.append(request.url.path)
        return httpx.Response(200)

    kept = []
    for provider in (OPENAI, AZURE):
        target = Wire(provider, None, httpx.MockTransport(answer))
        for model in ("a", "b"):
            await read(await target.send(replace(CHAT, model=model)))
            kept.append(dict(target._addresses))

    assert kept[0]["/chat/completions"] is kept[1]["/chat/completions"]
    assert kept[2:] == [{}, {}]
    assert sent_to[2:] == [f"/openai/deployments/{m}/chat/completions" for m in "ab"]


async def test_addresses_do_not_pile_up() -> None:
    """A client may ask for any path of a pass-through provider."""
    target = wire(respx.Router(assert_all_mocked=False), OPENAI, None)

    for number in range(600):
        await read(await target.send(replace(CHAT, path=f"/batches/{number}/cancel")))

    assert len(target._addresses) <= 256


async def test_azure_without_a_version_speaks_v1() -> None:
    """The newer surface has OpenAI's paths."""
    request = await sent(replace(AZURE, api_version=None))

    assert str(request.url) == "https://east.azure.test/openai/v1/chat/completions"


async def test_a_query_is_kept() -> None:
    """Pass-through endpoints list with `?limit=`."""
    outgoing = replace(CHAT, method="GET", path="/files", query=b"limit=2&after=a%20b", body=b"")

    request = await sent(OPENAI, outgoing, None)

    assert request.url.raw_path == b"/v1/files?limit=2&after=a%20b"
    assert "content-length" not in request.headers


async def test_the_clocks_travel_with_the_request() -> None:
    """One timeout extension per target, and a shorter one for a caller in a hurry."""
    usual = await sent(OPENAI)
    hurried = await sent(OPENAI, replace(CHAT, first_byte_s=1.5))

    assert usual.extensions["timeout"] == {"connect": 5, "pool": 5, "write": 60, "first_byte": 600, "read": 300}
    assert hurried.extensions["timeout"]["first_byte"] == 1.5


@pytest.mark.parametrize(
    ("error", "error_class", "phase"),
    [
        (httpx.ConnectError("refused"), ErrorClass.CONNECTION, Phase.NOTHING_SENT),
        (httpx.ConnectTimeout("slow"), ErrorClass.TIMEOUT, Phase.NOTHING_SENT),
        (httpx.PoolTimeout("full"), ErrorClass.TIMEOUT, Phase.NOTHING_SENT),
        (httpx.ReadTimeout("silent"), ErrorClass.TIMEOUT, Phase.SENT),
        (httpx.ReadError("reset"), ErrorClass.CONNECTION, Phase.SENT),
        (httpx.RemoteProtocolError("closed"), ErrorClass.CONNECTION, Phase.SENT),
    ],
)
async def test_a_failure_without_an_answer_tells_class_and_phase(
    error: Exception, error_class: ErrorClass, phase: Phase
) -> None:
    """What may be tried again without paying twice depends on both."""
    router = respx.Router()
    router.route().mock(side_effect=error)

    with pytest.raises(UpstreamFailed) as caught:
        await wire(router, OPENAI).send(CHAT)

    assert (caught.value.error_class, caught.value.phase) == (error_class, phase)


async def test_a_failure_while_reading_is_of_the_answered_phase() -> None:
    """The status line is here, the body broke: the provider has worked, and may bill."""

    class Torn(httpx.AsyncByteStream):
        async def __aiter__(self):  # type: ignore[no-untyped-def]  # an async generator, as httpx's own streams are
            yield b"half"
            raise httpx.ReadError("reset")

    router = respx.Router()
    router.route().mock(return_value=httpx.Response(200, stream=Torn()))
    target = wire(router, OPENAI)

    answer = await target.send(CHAT)
    with pytest.raises(target.errors) as caught:
        await read(answer)

    failure = target.failure(caught.value)
    assert (failure.error_class, failure.phase) == (ErrorClass.CONNECTION, Phase.ANSWERED)


async def test_answer_headers_have_lower_case_names() -> None:
    """The allow-lists compare in one case."""
    router = respx.Router()
    router.route().mock(return_value=httpx.Response(200, headers=[(b"X-Request-ID", b"r1")], json={}))

    answer = await wire(router, OPENAI).send(CHAT)

    assert (b"x-request-id", b"r1") in answer.headers
    await answer.aclose()


def test_no_credential_shows_in_a_repr() -> None:
    """Tracebacks and logs print reprs."""
    shown = repr(wire(respx.Router(), OPENAI)) + repr(OPENAI)

    assert "sk-provider" not in shown
    assert "search" not in shown
