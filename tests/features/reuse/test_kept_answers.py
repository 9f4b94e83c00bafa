"""A kept answer as bytes and back: in this process, in a file, on a wire."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from gateway.core.types import Kept, Usage, UsageParts
from gateway.drivers.memory import about, pack, restored, unpack

PLAIN = Usage(1200, 345, 1024, cache_written=90, cache_written_1h=40)
SOUND = replace(PLAIN, parts=UsageParts(audio_output=300, searches=2), tier="flex")


@pytest.mark.parametrize("usage", [PLAIN, SOUND, None])
def test_an_answer_comes_back_with_the_counts_of_its_usage(usage: Usage | None) -> None:
    """The parts and the tier only decide what an answer costs, and its cost is kept as such."""
    kept = Kept(200, [], b"x", False, "chat", "m", "t", "g", "id", "target", 0.0, 1.0, 2.0, usage=usage, cost_usd=0.5)
    plain = replace(kept, usage=None if usage is None else PLAIN)

    assert unpack(pack(kept)) == plain
    assert restored(about(kept), b"x") == plain


def test_an_answer_of_an_older_release_is_read() -> None:
    """It had fewer counts."""
    kept = Kept(200, [], b"x", False, "chat", "m", "t", "g", "id", "target", 0.0, 1.0, 2.0, usage=Usage(5, 6, 2))
    old = orjson.loads(about(kept)) | {"usage": [5, 6, 2, False]}

    assert restored(orjson.dumps(old), b"x") == kept
