"""What a provider says about when to come back is what it gets: nothing before, everything soon after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate

from tests.rows import rows
from tests.support.flow import Script, whole
from tests.support.outage import ERROR, City, Provider
from tests.support.virtual import LoopClock, run

WAIT_S = 25.0
Said = tuple[list[tuple[bytes, bytes]], bytes]
"""Headers and body of a refusal."""


def body(field: bytes) -> bytes:
    return ERROR[:-1] + b"," + field + b"}"


@rows(
    "says",
    [
        lambda wall, left_s: ([(b"x-ratelimit-remaining", b"0"), (b"x-ratelimit-reset", b"%d" % left_s)], ERROR),
        lambda wall, left_s: ([(b"ratelimit", b'"default";r=0;t=%d' % left_s)], ERROR),
        lambda wall, left_s: ([(b"ratelimit-remaining", b"0"), (b"ratelimit-reset", b"%d" % left_s)], ERROR),
        lambda wall, left_s: ([(b"anthropic-ratelimit-unified-reset", b"%d" % (wall + left_s))], ERROR),
        lambda wall, left_s: ([(b"retry-after", b"%ds" % left_s)], ERROR),
        lambda wall, left_s: ([], body(b'"retry_after":%d' % left_s)),
        lambda wall, left_s: ([], ERROR.replace(b'"no"', b'"Your quota will reset after %ds."' % left_s)),
        lambda wall, left_s: ([], ERROR.replace(b'"no"', b'"Please wait %d seconds."' % left_s)),
        lambda wall, left_s: (  # its clock is an hour ahead
            [
                (b"date", formatdate(wall + 3600, usegmt=True).encode()),
                (b"anthropic-ratelimit-requests-remaining", b"0"),
                (b"anthropic-ratelimit-requests-reset", b"%d" % (wall + 3600 + left_s)),
            ],
            ERROR,
        ),
    ],
    ids=["Envoy", "RateLimit", "Kong", "subscription", "30s", "field", "reset after", "wait", "another clock"],
)
def test_a_pause_is_obeyed_in_whatever_form_it_is_asked_for(says: Callable[[float, float], Said]) -> None:
    """Ten calls that wait send one request before it, and are served within three seconds after it."""

    async def story(clock: LoopClock) -> tuple[int, list[int | str], float]:
        start = clock.monotonic()

        async def fate() -> Script:
            await asyncio.sleep(0.05)
            left_s = WAIT_S - (clock.monotonic() - start)
            if left_s <= 0:
                return whole()
            headers, text = says(clock.wall(), left_s + 1.0)
            return whole(text, 429, *headers)

        provider = Provider(fate)
        city = City([provider], clock)
        calls = [city.start(deadline=start + 60.0) for _ in range(10)]
        told = [await call for call in calls]
        await city.settle()
        early = provider.asked(start + 1.0, start + WAIT_S)
        return early, [one.result for one in told], max(one.took_s for one in told)

    early, results, took_s = run(story)

    assert early == 0
    assert results == [200] * 10
    assert took_s <= WAIT_S + 4.0
