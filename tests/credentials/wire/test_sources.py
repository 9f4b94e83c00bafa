"""Which credentials there are: one for each config of one, as long as a provider uses it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.http.client.transport import Http1Transport
from gateway.core.http.client.wire import Wire
from gateway.core.snapshot import Provider
from gateway.credentials.auth import CloudAuth
from gateway.credentials.clouds import Clouds
from gateway.credentials.fetch import CredentialMissing
from gateway.credentials.sources import CredentialSources, Signed
from tests.support.flow import FakeClock

AUTH = CloudAuth("aws", "env", region="us-east-1")
ONE = Provider("one", "openai", "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1", auth=AUTH)
ENVIRON = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"}


async def test_equal_ones_are_one_and_outlive_a_reload() -> None:
    """Two providers of one account; one that is called by another way has its own."""
    sources = CredentialSources(ENVIRON, FakeClock(), lambda: 0.5)
    live = sources.of(AUTH, ONE)
    again = sources.of(replace(AUTH), replace(ONE, name="two"))
    proxied = sources.of(AUTH, replace(ONE, proxy="http://proxy.test:3128"))
    other = sources.of(replace(AUTH, region="eu-west-1"), ONE)
    await live.get(1)
    sources.keep_only([replace(ONE, headers=(("x-team", "a"),))])
    after = sources.of(AUTH, ONE)
    gone = sources.of(replace(AUTH, region="eu-west-1"), ONE)

    assert live is again is after
    assert live.current() is not None
    assert len({id(one) for one in (live, proxied, other, gone)}) == 4
    await other.get(1)  # a call that has it still may use it
    await sources.aclose()


async def test_the_emulator_wants_no_credential() -> None:
    """Nor does a provider without a cloud."""
    clouds = Clouds({}, FakeClock(), lambda: 0.5)
    transport = Http1Transport()
    wires = [Wire(one, "m", transport) for one in (replace(ONE, base_url="emulator://cloud"), replace(ONE, auth=None))]

    assert clouds.upstream(wires[0], replace(ONE, base_url="emulator://cloud")) is wires[0]
    assert clouds.upstream(wires[1], replace(ONE, auth=None)) is wires[1]
    assert isinstance(clouds.upstream(Wire(ONE, "m", transport), ONE), Signed)
    await clouds.aclose()


async def test_a_proxy_leads_to_tokens_too(tmp_path: Path) -> None:
    """And what it answers is told without its password."""
    token = tmp_path / "token"
    token.write_text("web-token")
    environ = {
        "AWS_ROLE_ARN": "arn",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_ENDPOINT_URL_STS": "https://sts.test",
    }
    sources = CredentialSources(environ, FakeClock(), lambda: 0.5)
    live = sources.of(replace(AUTH, source="web_identity"), replace(ONE, proxy="http://user:hidden@127.0.0.1:9"))
    with pytest.raises(CredentialMissing) as told:
        await live.get(5)
    assert "STS at https://sts.test: ConnectError" in str(told.value)
    assert "hidden" not in str(told.value)
    await sources.aclose()


async def test_reloads_leave_nothing_behind() -> None:
    """A credential that no config names is closed once nobody uses it."""
    sources = CredentialSources(ENVIRON, FakeClock(), lambda: 0.5)
    for number in range(50):
        auth = replace(AUTH, region=f"eu-west-{number}")
        provider = replace(ONE, auth=auth)
        await sources.of(auth, provider).get(1)
        sources.keep_only([provider])

    assert len(sources._retired) <= 4
    await sources.aclose()
