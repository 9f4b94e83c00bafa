"""Calls to a cloud's endpoints, over real sockets: what arrives is what was signed, and secrets stay where they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import formatdate

import pytest

from gateway.core.http.client.transport import Http1Transport
from gateway.core.http.client.wire import Wire
from gateway.core.snapshot import Provider
from gateway.core.types import ErrorClass, Outgoing, Phase, Spliced, UpstreamFailed
from gateway.credentials.auth import CloudAuth
from gateway.credentials.fetch import AwsKeys, BearerToken, Credential, CredentialMissing, Minted
from gateway.credentials.sources import LARGE_BYTES, LiveCredential, Signed
from tests.core.http.client.test_wire import CHAT, read
from tests.credentials.wire.servers import Answers, Asked, LocalServer, Said, is_signed, serving
from tests.support.flow import FakeClock

KEYS = AwsKeys("AKIAONE", "secret-key-number-one", "session/token+with=signs")
AUTH = CloudAuth("aws", "imds", region="us-east-1")
GOOGLE = CloudAuth("google", "metadata")


class Calls:
    """A target behind a server on loopback, whose credentials are those of a list, one after the other."""

    def __init__(self, server: LocalServer, auth: CloudAuth, credentials: list[Credential | CredentialMissing]) -> None:
        self.server = server
        self.clock = FakeClock()
        self.credentials = credentials
        self.fetches = 0
        self.transport = Http1Transport()
        provider = Provider(
            "cloud", "openai", f"{server.url}/openai/v1", auth=auth, headers=(("X-Amzn-Trace", "a  b"),)
        )
        self.live = LiveCredential(str(auth), self.mint, self.clock, lambda: 0.5)
        self.upstream = Signed(Wire(provider, "m", self.transport), auth, self.live, self.clock)

    async def mint(self) -> Minted:
        self.fetches += 1
        found = self.credentials.pop(0) if len(self.credentials) > 1 else self.credentials[0]
        if isinstance(found, CredentialMissing):
            raise found
        return Minted(found, 3600.0)


@asynccontextmanager
async def calling(
    answers: Answers, *credentials: Credential | CredentialMissing, auth: CloudAuth = AUTH
) -> AsyncIterator[Calls]:
    async with serving(answers) as server:
        calls = Calls(server, auth, [*credentials])
        try:
            yield calls
        finally:
            await calls.live.aclose()
            await calls.transport.aclose()


def verifying(secrets: dict[str, str]) -> Answers:
    return lambda asked: (200, b"{}") if is_signed(asked, secrets, "us-east-1", "bedrock") else (403, b"{}")


SPLICED = Spliced(b'{"model": "gpt-4o", "x": "' + b"y" * 70_000 + b'"}', [(10, 18, b'"other"')])


@pytest.mark.parametrize(
    "outgoing",
    [
        CHAT,
        replace(CHAT, body=SPLICED),
        replace(CHAT, body=b"z" * (LARGE_BYTES + 1)),
        replace(CHAT, method="GET", path="/models", query=b"b=2&a=1", body=b"", headers=[]),
        replace(CHAT, path="/model/anthropic.claude%3A0/converse"),
    ],
    ids=["plain", "spliced", "large", "query", "encoded"],
)
async def test_what_arrives_is_what_was_signed(outgoing: Outgoing) -> None:
    """Host, path, query and body, by a verifier of the test's own; the caller's credential stays here."""
    async with calling(verifying({"AKIAONE": KEYS.secret_key}), KEYS) as calls:
        answer = await calls.upstream.send(outgoing)
        await read(answer)
        again = await calls.upstream.send(outgoing)
        await read(again)

    assert answer.status == again.status == 200
    assert calls.fetches == 1
    assert calls.server.asked[0].headers["x-amz-security-token"] == KEYS.session_token
    assert "callers-own" not in str(calls.server.asked)


async def test_a_token_goes_as_a_bearer() -> None:
    """In place of the caller's own."""
    async with calling(lambda _: (200, b"{}"), BearerToken("ya29.token"), auth=GOOGLE) as calls:
        await read(await calls.upstream.send(CHAT))

    assert calls.server.asked[0].headers["authorization"] == "Bearer ya29.token"


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_credential_is_replaced_once(status: int) -> None:
    """Nobody has worked on a call that was refused at the door; where there is no other one, the refusal is the answer."""
    fresh = AwsKeys("AKIATWO", "secret-key-number-two")
    good = {"AKIATWO": fresh.secret_key}

    def answers(asked: Asked) -> Said:
        return (200 if is_signed(asked, good, "us-east-1", "bedrock") else status, b"{}")

    async with calling(answers, KEYS, fresh) as calls:
        answer = await calls.upstream.send(CHAT)
        await read(answer)
    async with calling(answers, KEYS) as lost:
        refused = [await lost.upstream.send(CHAT) for _ in range(3)]
        for one in refused:
            await read(one)

    assert answer.status == 200
    assert [one.status for one in refused] == [status] * 3
    assert len(lost.server.asked) == 3
    assert lost.fetches == 2


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
async def test_a_wrong_clock_is_made_up_for(off_s: float) -> None:
    """AWS takes signatures of five minutes; what it says the time is, the next ones tell at once."""
    async with calling(lambda _: (403, b"{}"), KEYS) as calls:
        right = calls.clock.wall() + off_s
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(right))
        calls.server.date = formatdate(right, usegmt=True)
        calls.server.answers = lambda asked: (200 if asked.headers["x-amz-date"] == stamp else 403, b"{}")
        answers = [await calls.upstream.send(CHAT) for _ in range(2)]
        for one in answers:
            await read(one)

    assert [one.status for one in answers] == [200, 200]
    assert len(calls.server.asked) == 3


@pytest.mark.parametrize("date", ["Mon, 23 Nov 2020 10:00:00 GMT", "soon", ""])
async def test_a_clock_that_is_not_the_reason_changes_nothing(date: str) -> None:
    """A proxy's may be wrong: then the next call tells our own time again."""
    async with calling(lambda _: (403, b"{}"), KEYS) as calls:
        calls.server.date = date
        for _ in range(2):
            await read(await calls.upstream.send(CHAT))

    ours = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(calls.clock.wall()))
    told = [asked.headers["x-amz-date"] for asked in calls.server.asked]
    assert told[0] == told[-1 if len(told) == 2 else 2] == ours


async def test_secrets_that_a_provider_repeats_are_masked() -> None:
    """Those of now, and those of a moment ago: calls with them are still under way."""
    both = [KEYS.session_token, KEYS.secret_key, "ya29.second-token"]
    said = ", ".join(str(one) for one in both).encode()
    async with calling(lambda _: (400, said), KEYS, BearerToken("ya29.second-token")) as calls:
        first = await read(await calls.upstream.send(CHAT))
        calls.clock.advance(3600)
        second = await read(await calls.upstream.send(CHAT))

    assert b"session/token" not in first
    assert b"secret-key" not in first
    assert second == b", ".join(b"*" * len(str(one)) for one in both)


async def test_without_a_credential_nothing_is_sent() -> None:
    """The failure is of the class `auth`; callers hear what is missing, the operator where."""
    missing = CredentialMissing("no AWS credential was found", "~/.aws/credentials: no such file")
    async with calling(lambda _: (200, b"{}"), missing) as calls:
        with pytest.raises(UpstreamFailed) as failed:
            await calls.upstream.send(CHAT)
    failure = failed.value

    assert (failure.error_class, failure.phase) == (ErrorClass.AUTH, Phase.NOTHING_SENT)
    assert failure.fault == "no AWS credential was found"
    assert "~/.aws/credentials" in failure.detail
    assert calls.server.asked == []


async def test_a_slow_source_holds_a_call_no_longer_than_a_connection() -> None:
    """Its caller has a time limit."""
    async with calling(lambda _: (200, b"{}"), KEYS) as calls:
        begun = asyncio.Event()

        async def never() -> Minted:
            begun.set()
            await asyncio.sleep(3600)
            raise AssertionError

        calls.live._mint = never
        with pytest.raises(UpstreamFailed, match="did not come in time"):
            await calls.upstream.send(replace(CHAT, first_byte_s=0.01))
        assert begun.is_set()


def test_nothing_secret_is_in_a_repr() -> None:
    """Of what calls are made with."""
    clock = FakeClock()
    auth = CloudAuth("aws", "keys", region="r", access_key="AKIA", secret_key="hidden-1", session_token="hidden-2")
    provider = Provider("cloud", "openai", "http://h.test", auth=auth)

    async def never() -> Minted:
        raise AssertionError

    live = LiveCredential(str(auth), never, clock, lambda: 0.5)

    shown = repr([Signed(Wire(provider, "m", Http1Transport()), auth, live, clock), provider, auth])

    assert "hidden" not in shown


async def test_calls_that_are_refused_together_are_healed_by_one_fetch() -> None:
    """A token that was revoked is refused to all that are under way: each of them is sent once more."""
    good = {"AKIATWO": "secret-key-number-two"}
    async with calling(
        lambda asked: (200 if is_signed(asked, good, "us-east-1", "bedrock") else 403, b"{}"),
        KEYS,
        AwsKeys("AKIATWO", good["AKIATWO"]),
    ) as calls:
        await calls.live.get(1)
        answers = await asyncio.gather(*(calls.upstream.send(CHAT) for _ in range(8)))
        for answer in answers:
            await read(answer)

    assert [answer.status for answer in answers] == [200] * 8
    assert calls.fetches == 2


async def test_a_caller_who_leaves_during_a_renewal_holds_no_connection() -> None:
    """The refusal that waits for another credential is let go."""
    async with calling(lambda _: (401, b"x" * 500_000), KEYS) as calls:
        begun = asyncio.Event()
        await calls.live.get(1)

        async def never() -> Minted:
            begun.set()
            await asyncio.sleep(3600)
            raise AssertionError

        calls.live._mint = never
        call = asyncio.create_task(calls.upstream.send(CHAT))
        await begun.wait()
        call.cancel()
        await asyncio.wait([call])

        assert call.cancelled()
        assert calls.transport.stats().active == 0
