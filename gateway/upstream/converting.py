"""An upstream that speaks another language than its callers: converts what goes there and what comes back.

It stands beside a target's own upstream, which has all calls that need no conversion. That a server does not know a path is
learned from its answer, for ten minutes: then its calls are converted without asking it first. Errors come back as the
server wrote them, because the tables of errors read those.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Final

from gateway.clock import Clock
from gateway.dialects.base import ConvertedRequest, ServerFacts
from gateway.dialects.pair import Pair, says_path_is_unknown
from gateway.dialects.registry import PATHS, facts_of, pair_at, pairs_for
from gateway.exchange import Answer, Outgoing, RawHeaders, Upstream
from gateway.provider_errors import ErrorClass, Phase, UpstreamFailed

LEARNED_FOR_S = 600.0
_PATH_STATUSES: Final = (404, 405)
MOST_ERROR_BYTES = 65_536
MOST_ANSWER_BYTES = 64 * 1024 * 1024
LARGE_BYTES = 1_000_000
"""A larger request or answer is converted in a thread, so that others do not wait."""
_CHANGED = frozenset((b"content-length", b"content-encoding", b"transfer-encoding", b"etag", b"content-md5", b"digest"))
"""The headers that say something of the body's bytes."""


class LearnedPaths:
    """The paths that servers turned out not to know, by server and model; outlives a reload of the config."""

    def __init__(self) -> None:
        self._until: dict[str, dict[str, float]] = {}

    def of(self, place: str) -> dict[str, float]:
        """Returns, for one server and model, the paths and until when they are taken for unknown (monotonic seconds)."""
        return self._until.setdefault(place, {})


class Converting:
    """Implements `exchange.Upstream`."""

    __slots__ = (
        "_clock",
        "_detours",
        "_facts",
        "_inner",
        "_learned",
        "_learns",
        "_new_id",
        "_pairs",
        "_until",
        "errors",
    )

    def __init__(
        self,
        inner: Upstream,
        pairs: Mapping[str, Pair],
        facts: ServerFacts,
        clock: Clock,
        new_id: Callable[[], str],
        *,
        learned: dict[str, float] | None,
    ) -> None:
        """`pairs` are those that are known to be needed, by the caller's endpoint; `learned`: others may turn out to be, or
        have (see `LearnedPaths`)."""
        self._inner = inner
        self.errors = inner.errors
        self._pairs = {PATHS[asked]: pair for asked, pair in pairs.items()}
        self._facts = facts
        self._clock = clock
        self._new_id = new_id
        self._learned: dict[str, float] = {} if learned is None else learned
        self._learns = learned is not None
        self._until: dict[str, float] = {}
        self._detours: dict[str, Upstream] = dict.fromkeys(self._pairs, self)
        for path, until in self._learned.items():
            if until > clock.monotonic() and (pair := pair_at(path)) is not None:
                self._pairs[path], self._detours[path], self._until[path] = pair, self, until

    def __repr__(self) -> str:
        return f"Converting({self._inner!r})"

    @property
    def detours(self) -> Mapping[str, Upstream]:
        """Returns by path what this stands in for; it changes with what is learned."""
        return self._detours

    def send(self, outgoing: Outgoing) -> Awaitable[Answer]:
        pair = self._pairs.get(outgoing.path)
        if pair is None or outgoing.method != "POST":
            return self._inner.send(outgoing)
        if self._clock.monotonic() >= self._until.get(outgoing.path, inf):
            self._forget(outgoing.path)
            return self._inner.send(outgoing)
        return self._convert(pair, outgoing)

    async def learn(self, outgoing: Outgoing, answer: Answer) -> Answer:
        """Returns the answer to give instead of a 404 or 405: the same one, or that of the call in another language.

        It is learned only where the other path is there: a server that is being deployed knows neither for a while.
        """
        pair = pair_at(outgoing.path)
        if not self._learns or pair is None or outgoing.method != "POST" or isinstance(answer, _Whole):
            return answer
        said = await self._read(answer)
        if not says_path_is_unknown(said):
            return _Whole(answer, said)
        converted = await self._convert(pair, outgoing)
        if isinstance(converted, _Whole) and converted.lacks_path:  # nor does it know the other one
            return _Whole(answer, said, lacks_path=True)
        until = self._clock.monotonic() + LEARNED_FOR_S
        self._pairs[outgoing.path], self._detours[outgoing.path] = pair, self
        self._until[outgoing.path] = self._learned[outgoing.path] = until
        return converted

    def _forget(self, path: str) -> None:
        for learned in (self._pairs, self._detours, self._until, self._learned):
            learned.pop(path, None)

    async def _read(self, answer: Answer) -> bytes:
        try:
            return await _read(answer)
        except self.errors as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> UpstreamFailed:
        return self._inner.failure(error)

    async def _convert(self, pair: Pair, outgoing: Outgoing) -> Answer:
        given, now = bytes(outgoing.body), self._clock.wall()
        if len(given) > LARGE_BYTES:
            sent, body, gaps = await to_thread(pair.request, given, self._facts, now, self._new_id)
        else:
            sent, body, gaps = pair.request(given, self._facts, now, self._new_id)
        if outgoing.signs is not None:
            outgoing.signs.gaps = gaps
        answer = await self._inner.send(replace(outgoing, path=pair.path, body=body))
        if answer.status in _PATH_STATUSES and self._learns:
            said = await self._read(answer)
            lacks_path = says_path_is_unknown(said)
            if lacks_path and outgoing.path in self._until:  # what was learned has passed
                self._forget(outgoing.path)
            return _Whole(answer, said, lacks_path=lacks_path)
        if answer.status != 200:
            return answer
        try:
            return ConvertedAnswer(answer, pair, sent)
        except self.errors as error:  # of what it is packed with
            raise self.failure(error) from error


class Languages:
    """Makes what stands beside servers that do not speak all languages, and remembers what was learned of them."""

    def __init__(self, clock: Clock, new_id: Callable[[], str]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._learned = LearnedPaths()

    def converting(self, upstream: Upstream, kind: str, speaks: frozenset[str] | None, place: str) -> Converting | None:
        """Returns what stands beside a server of this kind that speaks these languages; nothing where it speaks all.

        Without languages (None) it is not known which it speaks, and its answers tell; `place` names server and model.
        """
        pairs = pairs_for(speaks)
        if speaks is not None and not pairs:
            return None
        learned = self._learned.of(place) if speaks is None else None
        return Converting(upstream, pairs, facts_of(kind), self._clock, self._new_id, learned=learned)


class ConvertedAnswer:
    """A good answer in the caller's language."""

    def __init__(self, inner: Answer, pair: Pair, sent: ConvertedRequest) -> None:
        self._inner, self._pair, self._sent = inner, pair, sent
        self.status = inner.status
        self.headers: RawHeaders = [header for header in inner.headers if header[0] not in _CHANGED]
        index = dict(inner.headers)
        if b"content-encoding" in index:
            inner.unpack(index[b"content-encoding"])
        self._is_stream = index.get(b"content-type", b"").startswith(b"text/event-stream")
        self.whole = None if inner.whole is None else self._whole(inner.whole)
        self.chunks: AsyncIterator[bytes] = self._stream(inner.chunks) if self._is_stream else self._once(inner.chunks)

    def unpack(self, codings: bytes) -> None:
        """Has nothing to do: what is converted is unpacked."""

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _whole(self, body: bytes) -> bytes:
        if not self._is_stream:
            return self._pair.answer(self._sent, body)
        reader = self._pair.reader(self._sent)
        return reader.feed(body) + reader.close(is_clean=True)

    async def _once(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        body = bytearray()
        async for chunk in chunks:
            body += chunk
            if len(body) > MOST_ANSWER_BYTES:
                raise UpstreamFailed(
                    ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, "the answer is too long to be converted"
                )
        said = bytes(body)
        yield self._whole(said) if len(said) <= LARGE_BYTES else await to_thread(self._whole, said)

    async def _stream(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        reader = self._pair.reader(self._sent)
        async for chunk in chunks:
            if made := reader.feed(chunk):
                yield made
        if made := reader.close(is_clean=True):
            yield made


class _Whole:
    """An answer whose body was read to be looked at; `lacks_path`: it says that the server does not know the path."""

    def __init__(self, answer: Answer, body: bytes, *, lacks_path: bool = False) -> None:
        self.lacks_path = lacks_path
        self.status = answer.status
        self.headers = answer.headers
        self.whole: bytes | None = body
        self.chunks: AsyncIterator[bytes] = _nothing()

    def unpack(self, codings: bytes) -> None:
        """Has nothing to do."""

    async def aclose(self) -> None:
        """Has nothing to close."""


async def _nothing() -> AsyncIterator[bytes]:
    empty: tuple[bytes, ...] = ()
    for chunk in empty:
        yield chunk


async def _read(answer: Answer) -> bytes:
    """Reads an error's body, as much as matters, and gives the connection back."""
    if (codings := dict(answer.headers).get(b"content-encoding")) is not None:
        answer.unpack(codings)
    if answer.whole is not None:
        return answer.whole
    body = bytearray()
    async for chunk in answer.chunks:
        body += chunk
        if len(body) > MOST_ERROR_BYTES:
            break
    await answer.aclose()
    return bytes(body)
