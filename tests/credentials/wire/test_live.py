"""A credential that is kept fresh: one fetch for all, ahead of its end, and again when its source is mended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.credentials.fetch import BearerToken, CredentialMissing, Minted, Stamp, stamp_of
from gateway.credentials.sources import DOUBT_S, LAST_RETRY_S, MOST_LEAD_S, WATCH_S, LiveCredential
from tests.support.flow import FakeClock

HOUR = 3600.0


class Source:
    """Mints a new token each time, or fails as it is told to."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.minted = 0
        self.lasts_s: float | None = HOUR
        self.problem: Exception | None = None
        self.files: dict[str, Stamp] = {}
        self.gate: asyncio.Event | None = None
        self.value: str | None = None
        self.live = LiveCredential("google test", self.mint, self.clock, lambda: 0.5)

    async def mint(self) -> Minted:
        self.minted += 1
        number = self.minted
        if self.gate is not None:
            await self.gate.wait()
        if self.problem is not None:
            raise self.problem
        files = {path: stamp_of(path) for path in self.files}
        return Minted(BearerToken(self.value or f"token-{number}-secret"), self.lasts_s, files)

    async def token(self, within_s: float = 5.0) -> str:
        credential = await self.live.get(within_s)
        assert isinstance(credential, BearerToken)
        return credential.token

    async def pass_(self, seconds: float) -> None:
        """Lets time pass, and what begins by itself end."""
        left = seconds
        while left > 0:
            step = min(left, 1.0) if seconds <= 120 else min(left, seconds / 100)
            self.clock.advance(step)
            left -= step
            for _ in range(4):
                await asyncio.sleep(0)


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made = Source()
    yield made
    await made.live.aclose()


async def test_a_hundred_callers_wait_for_one_fetch(source: Source) -> None:
    """Nobody fetches for himself; then nobody waits."""
    source.gate = asyncio.Event()
    callers = [asyncio.create_task(source.token()) for _ in range(100)]
    await asyncio.sleep(0)
    callers[0].cancel()  # who fetched leaves: the others wait on
    await asyncio.sleep(0)
    source.gate.set()

    assert set(await asyncio.gather(*callers[1:])) == {"token-1-secret"}
    assert source.minted == 1
    assert source.live.current() is not None


async def test_it_is_fetched_again_before_it_ends_and_nobody_waits(source: Source) -> None:
    """Five minutes before its end, or a fifth of its life."""
    await source.token()
    await source.pass_(HOUR - MOST_LEAD_S - 1)
    assert source.minted == 1
    await source.pass_(MOST_LEAD_S / 2)

    assert source.minted == 2
    assert source.live.current() == BearerToken("token-2-secret")


async def test_a_failed_refresh_leaves_the_old_one_in_use_while_it_lives(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, asked again with growing pauses, and over when the old one ends."""
    await source.token()
    source.problem = CredentialMissing("its credential cannot be fetched", "oauth2: no answer")
    with caplog.at_level(logging.INFO, "gateway.credentials"):
        await source.pass_(HOUR - 60)
        assert source.live.current() == BearerToken("token-1-secret")
        tried = source.minted
        assert 2 < tried < 12
        await source.pass_(60)
        with pytest.raises(CredentialMissing, match="oauth2: no answer"):
            await source.token()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        source.problem = None
        await source.pass_(LAST_RETRY_S)

    assert source.live.current() is not None
    assert "is there again" in caplog.text
    assert "secret" not in caplog.text


async def test_a_missing_source_is_not_asked_in_a_storm(source: Source) -> None:
    """Calls fail at once in between, and it heals by itself."""
    source.problem = CredentialMissing("no credential", "nowhere")
    for _ in range(100):
        with pytest.raises(CredentialMissing):
            await source.token()
    assert source.minted == 1
    await source.pass_(600)
    assert 8 < source.minted < 20
    source.problem = None
    await source.pass_(LAST_RETRY_S)

    assert await source.token() == f"token-{source.minted}-secret"


async def test_a_changed_file_is_a_reason_to_look_again(source: Source, tmp_path: Path) -> None:
    """One that appears, and one that changes."""
    path = tmp_path / "key.json"
    source.lasts_s = None
    source.files = {str(path): None}
    source.problem = CredentialMissing("no file", str(path), {str(path): None})
    for _ in range(9):
        with pytest.raises(CredentialMissing):
            await source.token()
        await source.pass_(64)
    tried = source.minted
    source.problem = None
    path.write_text("one")
    await source.pass_(WATCH_S + 1)
    assert source.minted == tried + 1
    await source.token()
    await source.pass_(100)
    assert source.minted == tried + 1
    path.write_text("another")
    await source.pass_(WATCH_S + 1)

    assert source.minted == tried + 2
    assert await source.token() == f"token-{tried + 2}-secret"


async def test_a_refused_one_is_fetched_again_once_in_a_while(source: Source) -> None:
    """Of all that are told of the refusal one fetches; the same one again is none."""
    await source.token()
    refused = source.live.current()
    assert refused is not None
    found = await asyncio.gather(*(source.live.renewed(refused, 5) for _ in range(10)))
    assert BearerToken("token-2-secret") in found
    assert source.minted == 2
    source.value = "token-2-secret"
    await source.pass_(DOUBT_S + 1)
    again = source.live.current()
    assert again is not None
    assert await source.live.renewed(again, 5) is None
    assert source.minted == 3
    assert await source.live.renewed(again, 5) is None

    assert source.minted == 3


async def test_whoever_waits_waits_with_a_bound(source: Source) -> None:
    """The fetch goes on for those who come later."""
    source.gate = asyncio.Event()
    with pytest.raises(CredentialMissing, match="did not come in time"):
        await source.token(0.01)
    source.gate.set()

    assert await source.token() == "token-1-secret"
    assert source.minted == 1


async def test_one_that_has_ended_already_is_none(source: Source) -> None:
    """Of a machine whose clock is wrong."""
    source.lasts_s = -5
    with pytest.raises(CredentialMissing, match="is this clock right"):
        await source.token()


async def test_a_broken_source_tells_its_kind_and_not_its_text(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors quote what was read."""
    source.problem = RuntimeError("the-private-key")
    with pytest.raises(CredentialMissing) as told:
        await source.token()

    assert "RuntimeError" in str(told.value)
    assert "the-private-key" not in str(told.value)
    assert "the-private-key" not in caplog.text


async def test_a_stopped_one_fetches_no_more_by_itself(source: Source) -> None:
    """Its config is gone; a call that has it still may use it."""
    await source.token()
    source.live.stop()
    await source.pass_(2 * HOUR)
    assert source.minted == 1

    assert await source.token() == "token-2-secret"
    assert [timer for timer in source.clock.timers if not timer.cancelled] == []
