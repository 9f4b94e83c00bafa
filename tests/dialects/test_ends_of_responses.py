"""When a converted response ended, by the wall clock."""

from __future__ import annotations

from typing import Final

import orjson
import pytest

from gateway.core.openai.sse import event_json, split_events
from tests.dialects.ways import STREAMS, WAYS, Ways, stream_of

TOOK_S: Final = 5


@pytest.mark.parametrize("spoken", [spoken for asked, spoken in WAYS if asked == "responses" and spoken != "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_complete_when_it_ended(spoken: str, stream: bool) -> None:
    """It was the second in which it began."""
    bench = Ways([spoken], [])
    first, *rest = STREAMS[spoken]
    bench.upstreams[0].scripts.append(stream_of(spoken, first, lambda: bench.clock.advance(TOOK_S), *rest))
    began = int(bench.clock.wall())

    _, body = await bench.serve(**bench.asking("responses", stream=stream))

    events = [event for one in split_events(body) if (event := event_json(one)) is not None] if stream else []
    response = events[-1]["response"] if stream else orjson.loads(body)
    assert (response["status"], response["completed_at"]) == ("completed", began + TOOK_S)
