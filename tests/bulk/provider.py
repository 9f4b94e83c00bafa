"""Two scripted providers of chats and embeddings in one process, and the count of what became of each call.

The first one limits by a strict sliding minute, answers errors at random, stalls and goes away for a while; the fallback has
room and answers few errors. Time begins with the first call. `GET /tally` shows the counts.

    python -m tests.bulk.provider [--minute S] [--text FILE]    # prints the two ports
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import math
import random
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.emulator.writer import example_of

ANSWER_S = (0.3, 0.9)
EMBEDDING_DIMENSIONS = 32
_ERRORS = (500, 503, 529)
_NAMES = ("requests", "tokens")
_RESET = 0
"""Stands for a status where the connection is reset."""


class SlidingMinute:
    """No window of `length_s` takes more than so many requests and tokens; what it refuses costs nothing."""

    def __init__(self, requests: int, tokens: int, length_s: float) -> None:
        self.limits = (requests, tokens)
        self._length_s = length_s
        self._taken: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def wait_s(self, tokens: int, now: float) -> float:
        """Returns the time until such a call has room: 0 if it has it now, infinite if it never will."""
        self._forget(now)
        if tokens > self.limits[1]:
            return math.inf
        calls, held, free_at = len(self._taken), self._tokens, now
        for at, cost in self._taken:
            if calls < self.limits[0] and held + tokens <= self.limits[1]:
                break
            calls, held, free_at = calls - 1, held - cost, at + self._length_s
        return free_at - now

    def take(self, tokens: int, now: float) -> None:
        """Counts a call."""
        self._taken.append((now, tokens))
        self._tokens += tokens

    def headers(self, now: float) -> dict[str, str]:
        """Returns the limit headers; a reset is when all of the minute's room is back."""
        self._forget(now)
        reset_s = self._taken[-1][0] + self._length_s - now if self._taken else 0.0
        shown: dict[str, str] = {}
        for name, limit, used in zip(_NAMES, self.limits, (len(self._taken), self._tokens), strict=True):
            shown |= {
                f"x-ratelimit-limit-{name}": str(limit),
                f"x-ratelimit-remaining-{name}": str(limit - used),
                f"x-ratelimit-reset-{name}": f"{reset_s:.3f}s",
            }
        return shown

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0][0] + self._length_s <= now:
            self._tokens -= self._taken.popleft()[1]


@dataclass(frozen=True, slots=True)
class Script:
    """What a provider allows and what goes wrong at it; times in seconds since the first call."""

    requests: int
    tokens: int
    minute_s: float = 60.0
    errors: float = 0.05
    stalls: float = 0.0
    outage: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def first(cls, minute_s: float = 60.0) -> Script:
        """Returns the provider in trouble, with all of its times in proportion to its minute."""
        outage = (minute_s * 50 / 60, minute_s * 70 / 60)
        return cls(requests=120, tokens=20_000, minute_s=minute_s, stalls=0.01, outage=outage)

    @classmethod
    def fallback(cls, minute_s: float = 60.0) -> Script:
        """Returns the provider that has room."""
        return cls(requests=600, tokens=10_000_000, minute_s=minute_s)

    def is_out(self, time_s: float) -> bool:
        return self.outage[0] <= time_s < self.outage[1]

    def ideal_s(self, calls: Iterable[tuple[int, str]]) -> float:
        """Returns when the last of these calls (tokens, model) could begin: all are there at 0, and nothing else goes wrong."""
        minutes: dict[str, tuple[SlidingMinute, float]] = {}
        for cost, model in calls:
            minute, now = minutes.get(model) or (SlidingMinute(self.requests, self.tokens, self.minute_s), 0.0)
            now += minute.wait_s(cost, now)
            now = self.outage[1] if self.is_out(now) else now
            minute.take(cost, now)
            minutes[model] = minute, now
        return max((now for _, now in minutes.values()), default=0.0)


@dataclass(slots=True)
class Tally:
    """What became of the calls of one provider."""

    calls: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    abandoned: int = 0
    """Calls that were to be answered when their client had left."""
    accepted: list[tuple[float, int, str]] = field(default_factory=list)
    """When a call was taken, its tokens and its model."""
    paid: Counter[str] = field(default_factory=Counter)
    """Answers by the digest of their call's body."""

    def to_mapping(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "statuses": dict(self.statuses),
            "abandoned": self.abandoned,
            "accepted": self.accepted,
            "paid": dict(self.paid),
        }


def paid_twice(tallies: Iterable[Mapping[str, int]]) -> int:
    """Returns how many answers were paid for a body that had one already, at whatever provider."""
    together: Counter[str] = Counter()
    for paid in tallies:
        together.update(paid)
    return together.total() - len(together)


def digest_of(body: Mapping[str, Any]) -> str:
    """Returns what tells one call from another: its body but for the model, which a fallback renames."""
    rest = {name: value for name, value in body.items() if name != "model"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def tokens_of(body: Mapping[str, Any]) -> int:
    """Returns what a call counts: the longer of its input, four characters a token, and the answer that it allows."""
    asked = json.dumps(body.get("messages") or body.get("input") or body.get("prompt"), ensure_ascii=False)
    allowed = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    return max(1, len(asked) // 4, int(allowed))


class Clock:
    """Seconds since the first call of any provider."""

    def __init__(self) -> None:
        self._began_at: float | None = None

    def now(self) -> float:
        if self._began_at is None:
            self._began_at = time.monotonic()
        return time.monotonic() - self._began_at


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and when it is sent; `digest` names what is paid with it."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    digest: str | None = None
    content_type: str = "application/json"


class Provider:
    """One provider: what its script says of each call, in the order of their arrival."""

    def __init__(self, script: Script, clock: Clock, text: str, seed: int) -> None:
        self.tally = Tally()
        self._script = script
        self._clock = clock
        self._text = text
        self._rng = random.Random(seed)
        self._minutes: dict[str, SlidingMinute] = {}

    def answer(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Returns what comes of a call that arrives now."""
        now = self._clock.now()
        self.tally.calls += 1
        if self._script.is_out(now):
            status = self._rng.choice((503, _RESET))
            return self._error(status, "The server is overloaded or not ready yet.", {})
        model, script = str(body.get("model")), self._script
        minute = self._minutes.setdefault(model, SlidingMinute(script.requests, script.tokens, script.minute_s))
        cost = tokens_of(body)
        wait_s = minute.wait_s(cost, now)
        if wait_s:
            return self._refuse(wait_s, minute.headers(now))
        minute.take(cost, now)
        self.tally.accepted.append((round(now, 3), cost, model))
        fate, delay_s = self._rng.random(), self._rng.uniform(*ANSWER_S)
        if fate < script.errors:
            status = self._rng.choice(_ERRORS)
            return self._error(status, "The server had an error while processing your request.", minute.headers(now))
        if fate < script.errors + script.stalls:
            delay_s += script.minute_s
        kind, content = self._content(path, body)
        return Reply(200, content, minute.headers(now), delay_s, digest_of(body), kind)

    def _refuse(self, wait_s: float, headers: Mapping[str, str]) -> Reply:
        hints = (
            {}
            if math.isinf(wait_s)
            else {"retry-after": str(math.ceil(wait_s)), "retry-after-ms": str(math.ceil(wait_s * 1000))}
        )
        message = f"Rate limit reached: Limit {self._script.requests} / min. Please try again in {wait_s:.3f}s."
        error = {"message": message, "type": "requests", "param": None, "code": "rate_limit_exceeded"}
        self.tally.statuses[429] += 1
        return Reply(429, json.dumps({"error": error}).encode(), {**headers, **hints})

    def _error(self, status: int, message: str, headers: Mapping[str, str]) -> Reply:
        self.tally.statuses[status] += 1
        error = {"message": message, "type": "server_error", "param": None, "code": None}
        return Reply(status, json.dumps({"error": error}).encode(), headers)

    def _content(self, path: str, body: Mapping[str, Any]) -> tuple[str, bytes]:
        spent = max(1, tokens_of({**body, "max_tokens": 0, "max_completion_tokens": 0}))
        usage = {"prompt_tokens": spent, "completion_tokens": 16, "total_tokens": spent + 16}
        if path.endswith("/embeddings"):
            return "application/json", json.dumps(_embeddings(body, usage)).encode()
        message, reason = _message(body, self._text)
        head = {"id": f"chatcmpl-{self.tally.calls}", "created": int(time.time()), "model": body.get("model")}
        if body.get("stream"):
            delta = {"index": 0, "delta": message, "finish_reason": None}
            end = {"index": 0, "delta": {}, "finish_reason": reason}
            chunks = [{**head, "object": "chat.completion.chunk", "choices": [each]} for each in (delta, end)]
            chunks.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
            events = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
            return "text/event-stream", "".join(f"data: {event}\n\n" for event in events).encode()
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        answer = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return "application/json", json.dumps(answer).encode()


def _message(body: Mapping[str, Any], text: str) -> tuple[dict[str, Any], str]:
    """Returns a function's call where one has to be made, JSON where a schema asks for it, else the text."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools and isinstance(choice, dict | str) and choice not in ("auto", "none"):
        function = tools[0]["function"]
        arguments = json.dumps(example_of(function.get("parameters") or {}))
        call = {
            "index": 0,
            "id": "call_1",
            "type": "function",
            "function": {"name": function["name"], "arguments": arguments},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        text = json.dumps(example_of(form["json_schema"].get("schema") or {}))
    return {"role": "assistant", "content": text}, "stop"


def _embeddings(body: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    given = body.get("input")
    texts: Sequence[Any] = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    rows = []
    for index, text in enumerate(texts):
        drawn = random.Random(json.dumps(text))
        vector: Any = [drawn.uniform(-1.0, 1.0) for _ in range(int(body.get("dimensions") or EMBEDDING_DIMENSIONS))]
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        rows.append({"object": "embedding", "index": index, "embedding": vector})
    return {"object": "list", "model": body.get("model"), "data": rows, "usage": usage}


class Door:
    """The HTTP side of a provider: as much of HTTP/1.1 as clients of JSON use."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; returns whether another one may follow on the connection."""
        request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = request.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await _body_of(reader, headers)
        tally = self._provider.tally
        if method == "GET":
            shown = tally.to_mapping() if path == "/tally" else {"object": "list", "data": []}
            _write(writer, Reply(200, json.dumps(shown).encode()))
            return True
        reply = self._provider.answer(path, json.loads(body))
        if reply.status == _RESET:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        await asyncio.sleep(reply.after_s)
        if reply.digest is not None:
            if reader.at_eof() or writer.is_closing():
                tally.abandoned += 1
                return False
            tally.statuses[200] += 1
            tally.paid[reply.digest] += 1
        _write(writer, reply)
        await writer.drain()
        return True


async def _body_of(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length") or 0))
    pieces = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readuntil(b"\r\n")
    return b"".join(pieces)


def _write(writer: asyncio.StreamWriter, reply: Reply) -> None:
    lines = [f"HTTP/1.1 {reply.status} X", f"content-type: {reply.content_type}", f"content-length: {len(reply.body)}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + reply.body)


async def main() -> None:
    """Serve both providers until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.bulk.provider", description=__doc__)
    parser.add_argument("--minute", type=float, default=60.0, help="its length in seconds (default: 60)")
    parser.add_argument("--text", type=Path, help="a file with what is answered where no schema asks for JSON")
    parser.add_argument("--seed", type=int, default=1, help="of all that goes wrong (default: 1)")
    options = parser.parse_args()
    text = options.text.read_text() if options.text else "The answer is 4."
    clock, servers = Clock(), []
    for seed, script in enumerate((Script.first(options.minute), Script.fallback(options.minute))):
        door = Door(Provider(script, clock, text, options.seed * 2 + seed))
        servers.append(await asyncio.start_server(door.serve, "127.0.0.1", 0, backlog=4096, limit=1 << 24))
    sys.stdout.write(json.dumps([server.sockets[0].getsockname()[1] for server in servers]) + "\n")
    sys.stdout.flush()
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main())
