"""Callers who send one call many times over under one key, and what each of them has seen of its answer.

Every question has a model name of its own, so that the provider's statistics tell how often it was asked. Nothing here judges
by the gateway's word alone. Invariant: while a crowd is there, one of it has been there since before the first one left.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gateway.emulator.call import Stats
from tests.e2e.harness import PATIENCE_S, Peer, Response, Running, _header, chat, connect, post, until
from tests.soak.support import MANNERS, Manner, draw_cut, mortal

ANSWER_BYTES = 12_000
"""Less than a streamed answer of the emulator takes; of a whole one, which is shorter, some read all and leave then."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One call that may be sent again."""

    key: str
    model: str
    stream: bool
    extra: dict[str, Any] = field(default_factory=dict)

    def request(self, *headers: str, key: str | None = None, **other: Any) -> bytes:
        """On the wire; `other` makes it another body."""
        body = orjson.dumps(chat(self.model, stream=self.stream, **self.extra, **other))
        return post("/v1/chat/completions", body, f"Idempotency-Key: {key or self.key}", *headers)


def questions(count: int, *, first: int = 0) -> list[Question]:
    """As many, every other one streamed, every third key quoted."""
    return [
        Question(f'"key {number}"' if number % 3 == 0 else f"key-{number}", f"q{number}", number % 2 == 0)
        for number in range(first, first + count)
    ]


async def ask(url: str, question: Question, *headers: str) -> Response:
    """The answer, on a connection of its own."""
    async with connect(url) as peer:
        return await peer.exchange(question.request(*headers))


def is_replayed(answer: Response) -> bool:
    """Whether it says that it was kept for this key."""
    return answer.header("idempotent-replayed") == "true"


def check(question: Question, answers: Iterable[Response]) -> bytes:
    """That all of them are the one answer, each told truly for what it is; returns it."""
    answers = list(answers)
    first = answers[0]
    for answer in answers:
        told = answer.header("x-gateway-cache")
        assert answer.status == 200, answer.headers
        assert answer.body == first.body, (first.headers, answer.headers)
        assert answer.header("content-type") == first.header("content-type")
        assert told in (("hit", "coalesced") if is_replayed(answer) else ("miss", "bypass", "coalesced")), (
            answer.headers
        )
        assert answer.body.endswith(DONE) == question.stream
    return first.body


def hold(gateway: Running) -> asyncio.Event:
    """From now on the provider begins answers (a stream with its first token) and ends none until the event is set."""
    may_end = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        await may_end.wait()

    gateway.emulator.emulator._sleep = sleep
    return may_end


# Crowds.


@dataclass(frozen=True, slots=True)
class Fate:
    """How a caller ends: after `cut` bytes of the answer (0: while it waits), or not before it has all of it."""

    stays: bool
    cut: int = 0
    manner: Manner = "close"


def draw_fate(rng: random.Random) -> Fate:
    """One in three stays; of the others each byte may be the last."""
    if rng.random() < 1 / 3:
        return Fate(stays=True)
    cut = 0 if rng.random() < 0.3 else draw_cut(rng, ANSWER_BYTES)
    return Fate(stays=False, cut=cut, manner=rng.choice(MANNERS))


class Crowd:
    """Callers of one question, each at one of the places. The first may leave when the second has seen the answer begin."""

    def __init__(
        self, urls: str | Sequence[str], question: Question, callers: int, rng: random.Random, stats: Stats
    ) -> None:
        self._urls = (urls,) if isinstance(urls, str) else urls
        self._question = question
        self._callers = callers
        self._rng = rng
        self._stats = stats
        self._may_leave = asyncio.Event()

    async def ask(self) -> list[Response]:
        """The answers of those who stayed, in no order."""
        question, rng = self._question, self._rng
        first = draw_fate(rng) if question.stream else Fate(stays=True)
        leading = asyncio.ensure_future(self._live(first, may_leave=self._may_leave))
        await until(lambda: self._stats.models[question.model] > 0)
        heir = asyncio.ensure_future(self._inherit())
        fates = [draw_fate(rng) for _ in range(self._callers - 2)]
        answers = await asyncio.gather(leading, heir, *(self._come(fate, rng.random()) for fate in fates))
        return [answer for answer in answers if answer is not None]

    @property
    def _url(self) -> str:
        return self._rng.choice(self._urls)

    async def _inherit(self) -> Response:
        if not self._question.stream:
            return await ask(self._url, self._question)
        async with connect(self._url) as peer:
            peer.send(self._question.request())
            answer = await begun(peer)
            self._may_leave.set()
            return await answer

    async def _come(self, fate: Fate, after_s: float) -> Response | None:
        await asyncio.sleep(after_s)
        return await self._live(fate)

    async def _live(self, fate: Fate, may_leave: asyncio.Event | None = None) -> Response | None:
        if fate.stays:
            return await ask(self._url, self._question)
        async with mortal(self._url) as client:
            await client.send(self._question.request("Connection: close"))
            await client.read(fate.cut)
            if may_leave is not None:
                await may_leave.wait()
            await client.die(fate.manner)
        return None


async def begun(peer: Peer) -> asyncio.Future[Response]:
    """The rest of a streamed answer, once its head is there."""
    head = await peer.reader.readuntil(b"\r\n\r\n")
    status, *lines = head[:-4].decode("latin-1").split("\r\n")
    headers = tuple(_header(line) for line in lines)

    async def rest() -> Response:
        body, framed = await peer._body(dict(headers))
        return Response(int(status.split(" ")[1]), headers, body, head + framed)

    return asyncio.ensure_future(rest())


# Lives.


async def hear(url: str, question: Question, patience_s: float = PATIENCE_S) -> bytes | None:
    """The answer, if its last byte has come, whatever became of the connection afterwards; else None."""
    async with connect(url) as peer:
        peer.send(question.request("Connection: close"))
        head, found, rest = (await peer.rest(patience_s)).partition(b"\r\n\r\n")
    if not found:
        return None
    assert head.startswith(b"HTTP/1.1 200"), head
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        body, found, _ = _unchunked(rest).partition(DONE)
        return body + found if found else None
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return rest if len(rest) == length else None


def _unchunked(framed: bytes) -> bytes:
    """What there is of a chunked body that may break off anywhere."""
    parts = []
    while framed:
        size, found, framed = framed.partition(b"\r\n")
        length = int(size, 16) if found else 0
        parts.append(framed[:length])
        framed = framed[length + 2 :]
    return b"".join(parts)


class Ledger:
    """What was answered, and what was not, over the lives of a gateway that is killed again and again."""

    def __init__(self, stats: Stats, seed: int) -> None:
        self._stats = stats
        self._rng = random.Random(seed)
        self._answered: dict[Question, bytes] = {}
        self._interrupted: list[Question] = []
        self.asked = 0
        self.replayed = 0
        self.heard_late = 0
        """Nobody had heard their end, but they were kept."""
        self.ran_again = 0

    async def live(self, url: str, calls: int, kill: Callable[[], None]) -> None:
        """Ask so many new questions at once, and kill when a random part of them has been answered."""
        asked = questions(calls, first=self.asked)
        self.asked += calls
        hearing = [asyncio.ensure_future(self._hear(url, question)) for question in asked]
        enough = len(self._answered) + self._rng.randrange(calls)
        await until(lambda: len(self._answered) >= enough)
        await asyncio.sleep(self._rng.random() * 0.01)
        kill()
        await asyncio.gather(*hearing)

    async def _hear(self, url: str, question: Question) -> None:
        body = await hear(url, question)
        if body is None:
            self._interrupted.append(question)
        else:
            self._answered[question] = body

    async def reckon(self, url: str) -> None:
        """All that was answered is replayed, without a word to the provider; all that was not is answered now."""
        await asyncio.gather(*(self._again(url, *one) for one in self._answered.items()))
        interrupted, self._interrupted = self._interrupted, []
        await asyncio.gather(*(self._anew(url, question) for question in interrupted))

    async def _again(self, url: str, question: Question, body: bytes) -> None:
        times = self._stats.models[question.model]
        again = await ask(url, question)
        assert (again.status, is_replayed(again)) == (200, True), (question, again.headers)
        assert again.body == body
        assert self._stats.models[question.model] == times
        self.replayed += 1

    async def _anew(self, url: str, question: Question) -> None:
        times = self._stats.models[question.model]
        answer = await ask(url, question)
        check(question, [answer])
        self._answered[question] = answer.body
        if is_replayed(answer):
            self.heard_late += 1
        else:
            self.ran_again += 1
        assert self._stats.models[question.model] == times + (not is_replayed(answer))

    def __str__(self) -> str:
        return (
            f"{self.asked} calls; {self.replayed} times an answer was replayed in another life, {self.heard_late} of them "
            f"that nobody had heard, {self.ran_again} interrupted ones ran again"
        )


# State files.


def assert_sound(path: Path) -> None:
    """What a crash or a full disk leaves is a file that sqlite finds nothing wrong with."""
    db = sqlite3.connect(path)
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        db.close()
