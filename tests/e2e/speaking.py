"""A provider that says to each prompt what a test has for it, and keeps a ledger of what was asked and what that costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import orjson

INPUT_TOKENS, OUTPUT_TOKENS = 100, 20
PRICE = {"input_usd_per_million": 10.0, "output_usd_per_million": 50.0}
CALL_USD = (INPUT_TOKENS * PRICE["input_usd_per_million"] + OUTPUT_TOKENS * PRICE["output_usd_per_million"]) / 1e6
"""What one answered call costs, whatever it says."""
Say = Callable[[str, int], "str | int"]
"""Returns what is said to a prompt that comes for the n-th time, from 0: a text, or the status of a refusal."""


class SpeakingProvider:
    """Serves chat completions on loopback."""

    def __init__(self, say: Say, delay_s: float = 0.0) -> None:
        self._say = say
        self._delay_s = delay_s
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.url = ""

    @property
    def usd(self) -> float:
        """What all its answers have cost."""
        return sum(self.answered.values()) * CALL_USD

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                status, body = await self._answer(await reader.readexactly(length))
                told = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                writer.write(told % (status, len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, body: bytes) -> tuple[int, bytes]:
        request = orjson.loads(body)
        prompt = request["messages"][-1]["content"]
        time, self.asked[prompt] = self.asked[prompt], self.asked[prompt] + 1
        await asyncio.sleep(self._delay_s)
        said = self._say(prompt, time)
        if isinstance(said, int):
            error = {"message": "This prompt is refused.", "type": "invalid_request_error", "param": None, "code": None}
            return said, orjson.dumps({"error": error})
        self.answered[prompt] += 1
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        total = INPUT_TOKENS + OUTPUT_TOKENS
        usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": total}
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": request["model"]}
        return 200, orjson.dumps({**answer, "choices": [choice], "usage": usage})


@asynccontextmanager
async def speaking(say: Say, delay_s: float = 0.0) -> AsyncIterator[SpeakingProvider]:
    """A provider that serves as long as this lasts."""
    provider = SpeakingProvider(say, delay_s)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield provider
    finally:
        server.close()
