"""Streams one answer with an official SDK for Python: `stream.py BASE_URL chat|responses|messages`; prints what it has got."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any


def main(base_url: str, language: str) -> None:
    text: list[str] = []
    error = None
    try:
        for piece in _pieces(base_url, language):
            text.append(piece)
    except Exception as problem:  # noqa: BLE001 - whatever the SDK raises is what is to be seen
        error = f"{type(problem).__name__}: {problem}"
    print(json.dumps({"text": "".join(text), "error": error}))  # noqa: T201 - the answer to whoever runs it


def _pieces(base_url: str, language: str) -> Any:
    if language == "messages":
        ours: Any = import_module("anthropic").Anthropic(base_url=base_url, api_key="k", max_retries=0)
        asked: Any = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        with ours.messages.stream(**asked) as stream:
            yield from stream.text_stream
        return
    client: Any = import_module("openai").OpenAI(base_url=base_url + "/v1", api_key="k", max_retries=0)
    if language == "chat":
        for chunk in client.chat.completions.create(
            model="m", stream=True, messages=[{"role": "user", "content": "hi"}]
        ):
            yield chunk.choices[0].delta.content or "" if chunk.choices else ""
    else:
        for event in client.responses.create(model="m", stream=True, input="hi"):
            yield event.delta if event.type == "response.output_text.delta" else ""


if __name__ == "__main__":
    main(*sys.argv[1:])
