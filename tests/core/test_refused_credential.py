"""A provider refuses a credential: the gateway's own is the operator's fault, a caller's own is the caller's."""

from __future__ import annotations

from typing import Final

import orjson
import pytest

from gateway.core.errors import ProviderCredentialRefused
from gateway.core.render import OPENAI
from gateway.core.types import Endpoint
from tests.dialects.ways import CALLERS, Ways
from tests.support.flow import Bench, Script, ScriptedUpstream, whole

PASSED: Final = Endpoint("passthrough", "", OPENAI, answer="binary", request="any")
REFUSED: Final = (
    b'{"error":{"message":"Incorrect API key provided: sk-o****123","type":"x","param":null,"code":"invalid_api_key"}}'
)


def refusal() -> Script:
    return whole(REFUSED, 401, (b"x-request-id", b"req_p"), (b"retry-after", b"3"), (b"x-should-retry", b"true"))


@pytest.mark.parametrize("asked", CALLERS)
async def test_the_gateways_own_credential_is_a_502_in_every_language(asked: str) -> None:
    """It names the provider and not the key; the caller's key is good, so no SDK tries again or tells its user to log in."""
    bench = Ways(["chat"], [refusal()])

    reply, body = await bench.serve(**bench.asking(asked, stream=False))

    headers = dict(reply.headers)
    assert (reply.status, headers[b"x-should-retry"], headers[b"x-request-id"]) == (502, b"false", b"req_p")
    assert b"retry-after" not in headers
    assert b"'p0'" in body
    assert b"sk-o" not in body
    assert b"Incorrect" not in body
    error = orjson.loads(body)["error"]
    code = error["details"][0]["reason"].lower() if asked == "generate" else error["code"]
    assert code == ProviderCredentialRefused.code
    assert bench.account.outcome == "auth"


async def test_the_log_has_the_providers_words() -> None:
    """For the operator, who has to mend it."""
    bench = Bench([ScriptedUpstream(refusal())])
    call = bench.call()

    await bench.pipeline.handle(call)

    assert call.attempts[-1].detail == "Incorrect API key provided: sk-o****123"


async def test_relayed_calls_hear_the_same() -> None:
    """Files and the like at a provider go with the gateway's credential, too."""
    bench = Bench([ScriptedUpstream(refusal())])

    reply, _ = await bench.serve(endpoint=PASSED, path="/files", method="GET", body=b"")

    assert reply.status == 502


@pytest.mark.parametrize("endpoint", [CALLERS["chat"], PASSED])
async def test_a_callers_own_credential_keeps_its_401(endpoint: Endpoint) -> None:
    """Byte for byte."""
    bench = Bench([ScriptedUpstream(refusal())], accounts=[""])

    reply, body = await bench.serve(endpoint=endpoint, path=endpoint.path or "/files", credential=b"Bearer sk-theirs")

    assert (reply.status, body) == (401, REFUSED)


async def test_another_target_serves_as_before() -> None:
    """Only the last word is put so."""
    bench = Bench([ScriptedUpstream(refusal()), ScriptedUpstream(whole())])

    reply, _ = await bench.serve()

    assert reply.status == 200


async def test_it_is_told_of_the_target_that_said_it() -> None:
    """Not of a later one that ruled itself out: a model that is not there is no news beside it."""
    missing = (
        b'{"error":{"message":"no such model","type":"invalid_request_error","param":null,"code":"model_not_found"}}'
    )
    upstreams = [ScriptedUpstream(refusal()), ScriptedUpstream(whole(missing, 404))]
    bench = Bench(upstreams, fallbacks=1)
    call = bench.call()

    reply = await bench.pipeline.handle(call)

    told = orjson.loads(reply.body)["error"]
    assert (reply.status, told["code"]) == (502, ProviderCredentialRefused.code)
    assert [one.detail is not None for one in call.attempts] == [True, False]
