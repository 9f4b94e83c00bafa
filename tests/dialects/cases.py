"""Conversations that were recorded with real providers, in several languages each; and streams as bytes.

They lie beside the checkout, in `shared/fixtures/dialects` (SOURCES.md says whose they are), or where DIALECT_FIXTURES says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

FOLDER = Path(os.environ.get("DIALECT_FIXTURES", Path(__file__).parents[3] / "shared/fixtures/dialects")) / "cases"
LANGUAGES = {
    "chat": "chat-completions",
    "responses": "responses",
    "messages": "anthropic",
    "generate": "google",
    "converse": "bedrock",
}

needs_cases = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"0 recorded cases: there is no {FOLDER}")


class Recorded(NamedTuple):
    """One exchange; what was not recorded is None."""

    name: str
    request: dict[str, Any]
    answer: dict[str, Any] | None
    events: list[dict[str, Any]] | None


def recorded(language: str) -> Iterator[Recorded]:
    """Yields the exchanges of all cases in a language, or in a folder's, their second turns included."""
    for folder in sorted(FOLDER.glob(f"*/{LANGUAGES.get(language, language)}")):
        for turn in ("", "followup-"):
            request = _read(folder / f"{turn}request.json")
            if request is not None:
                answers = _read(folder / f"{turn}response.json"), _read(folder / f"{turn}response-streaming.json")
                yield Recorded(f"{folder.parent.name} {turn}", request, *answers)


def as_bytes(language: str, events: list[dict[str, Any]]) -> bytes:
    """Returns a stream as its provider sends it."""
    if language == "chat":
        return b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + b"data: [DONE]\n\n"
    if language == "generate":
        return b"".join(b"data: %b\r\n\r\n" % orjson.dumps(event) for event in events)
    return b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events)


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """Returns the objects of a stream's events."""
    blocks = [block.rpartition(b"data: ")[2] for block in stream.split(b"\n\n") if b"data: " in block]
    return [orjson.loads(block) for block in blocks if block != b"[DONE]"]


def _read(path: Path) -> Any:
    return orjson.loads(path.read_bytes()) if path.exists() else None
