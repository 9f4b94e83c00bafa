"""Answers that are read as a whole: to be looked at, or to be put together from several.

Where a provider takes fewer texts for embeddings in one call than OpenAI does, one call becomes several, some of them at once,
and their answers one: it is one call to everybody but the target, whose limits count them all.
"""

from __future__ import annotations

from asyncio import Semaphore, Task, TaskGroup
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from gateway.core.errors import drop_frames
from gateway.core.types import Answer, Outgoing, RawHeaders, Upstream

MOST_ERROR_BYTES: Final = 65_536
MOST_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of an answer that is no error."""
MOST_AT_ONCE: Final = 4
"""The most pieces of one call at once; their target serves others, too."""


class ReadAnswer:
    """An answer whose body was read to be looked at."""

    def __init__(self, answer: Answer, body: bytes) -> None:
        self.status = answer.status
        self.headers: RawHeaders = answer.headers
        self.whole: bytes | None = body
        self.chunks: AsyncIterator[bytes] = _nothing()

    def unpack(self, codings: bytes) -> None:
        """Has nothing to do."""

    async def aclose(self) -> None:
        """Has nothing to close."""


class WholeAnswer(ReadAnswer):
    """An answer that was looked at for what it says of the path; `lacks_path`: the server does not know it."""

    def __init__(self, answer: Answer, body: bytes, *, lacks_path: bool = False) -> None:
        super().__init__(answer, body)
        self.lacks_path = lacks_path


class _Refused(Exception):
    """One piece was not answered."""

    def __init__(self, answer: WholeAnswer) -> None:
        self.answer = answer


async def in_pieces(
    outgoing: Outgoing,
    bodies: Sequence[bytes],
    send: Callable[[Outgoing], Awaitable[Answer]],
    put_together: Callable[[Sequence[bytes]], bytes],
    inner: Upstream,
) -> Answer:
    """Returns one answer to all bodies, `put_together`; the first that is no answer stands for them all.

    Raises UpstreamFailed; `inner` makes it of its errors.
    """
    room = Semaphore(MOST_AT_ONCE)

    async def ask(body: bytes) -> tuple[Answer, bytes]:
        async with room:
            answer = await send(replace(outgoing, body=body))
            try:
                piece_body = await read_whole(answer, MOST_ANSWER_BYTES)
            except inner.errors as error:
                raise inner.failure(error) from error
        if not 200 <= answer.status < 300:
            raise _Refused(WholeAnswer(answer, piece_body))
        return answer, piece_body

    signs = outgoing.signs
    if signs is not None:
        signs.requests = len(bodies)
    first: BaseException | None = None
    tasks: list[Task[tuple[Answer, bytes]]] = []
    try:
        async with TaskGroup() as group:
            tasks += [group.create_task(ask(body)) for body in bodies]
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        drop_frames(failed)  # a group of tasks keeps what it raises in a variable
    if isinstance(first, _Refused):
        return first.answer
    if first is not None:
        raise first  # not above: the group would be its context, and all of its errors would stay
    if signs is not None:
        signs.gaps = list(dict.fromkeys(signs.gaps))  # each piece has the same gaps
    answers = [task.result() for task in tasks]
    return WholeAnswer(answers[0][0], put_together([body for _, body in answers]))


async def _nothing() -> AsyncIterator[bytes]:
    empty: tuple[bytes, ...] = ()
    for chunk in empty:
        yield chunk


async def read_whole(answer: Answer, most_bytes: int = MOST_ERROR_BYTES) -> bytes:
    """Reads a body, as much of it as matters, and gives the connection back."""
    if (codings := dict(answer.headers).get(b"content-encoding")) is not None:
        answer.unpack(codings)
    if answer.whole is not None:
        return answer.whole
    body = bytearray()
    async for chunk in answer.chunks:
        body += chunk
        if len(body) > most_bytes:
            break  # `aclose` gives up the rest
    await answer.aclose()
    return bytes(body)
