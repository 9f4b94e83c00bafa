"""An upstream that speaks another language than its callers: converts what goes there and what comes back.

In this order: answers that are read whole, how calls are converted (`Converting`, `ConversationWire`, `Languages`,
`ConvertedAnswer`), how a call is addressed. The upstream stands beside a target's own, which has all calls that need no
conversion. That a server does not know a path is learned from its answer, for ten minutes: then its calls are converted
without a try there first. Errors come back as the server wrote them, because the tables of errors read those.
"""

from __future__ import annotations

import re
from asyncio import Semaphore, Task, TaskGroup, to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from gateway.core.clock import Clock
from gateway.core.errors import drop_frames
from gateway.core.openai.json_edit import has_lone_surrogate
from gateway.core.openai.sse import split_events
from gateway.core.openai.usage import read_usage
from gateway.core.render import is_unknown_path
from gateway.core.snapshot import Provider
from gateway.core.types import (
    Answer,
    ErrorClass,
    Gap,
    How,
    Outgoing,
    PassthroughChunks,
    Phase,
    Progress,
    RawHeaders,
    Upstream,
    UpstreamFailed,
    Usage,
)
from gateway.dialects.base import ConvertedRequest, Reader, ServerFacts, with_usage, with_wall
from gateway.dialects.issuers import (
    LANGUAGES,
    REFUSALS,
    IsLeft,
    Issuers,
    ProofReader,
    ProvidersPlace,
    Taken,
    fitted,
    hints_of,
    issuer_of,
    language_at,
    misses_reasoning,
    proofs_in,
    refuses_history,
    signs,
    taken_by,
    unwanted_in,
    with_reasoning,
    without,
)
from gateway.dialects.memory import OwnTurns, ThoughtMemory
from gateway.dialects.registry import COUNTS, PATHS, Pair, Place, own_place, pair_at, pair_of, refuse
from gateway.dialects.target_languages import TargetLanguages, facts_of

# --- Answers that are read as a whole: to be looked at, or to be put together from several ---
#
# Where a provider takes fewer texts for embeddings in one call than OpenAI does, one call becomes several, some of them at
# once, and their answers one: it is one call to everybody but the target, whose limits count them all.

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


# --- How calls are converted ---


LEARNED_FOR_S = 600.0
_PATH_STATUSES: Final = (400, 404, 405)
LARGE_BYTES = 1_000_000
"""A larger request or answer is converted in a thread, so that others do not wait."""
_THROUGH_CHAT: Final = ("messages", "generate")
"""Languages that reach a target of OpenAI's two by the first of these that it has."""
LARGE_EVENT_BYTES = 131_072
"""The bytes held back for an event of a stream from which on it, too, is converted in a thread."""
_FRAMES: Final = b"application/vnd.amazon.eventstream"
"""The content type of streams that are no event streams, and become some."""
_HALF: Final = Gap("answer", How.APPROXIMATED, "half of a surrogate pair stands alone in it; it is told as U+FFFD")
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
    """Implements `Upstream`."""

    __slots__ = (
        "_clock",
        "_converters_by_path",
        "_inner",
        "_languages",
        "_learned",
        "_learns",
        "_memory",
        "_new_id",
        "_own_place",
        "_pairs",
        "_until",
        "errors",
    )

    def __init__(
        self,
        inner: Upstream,
        languages: TargetLanguages,
        clock: Clock,
        new_id: Callable[[], str],
        *,
        learned: dict[str, float] | None,
        memory: ThoughtMemory | None = None,
    ) -> None:
        """`languages` tells which conversions are known to be needed; `learned`: others may turn out to be, or have (see
        `LearnedPaths`)."""
        self._inner = inner
        self.errors = inner.errors
        self._pairs = {PATHS[language]: pair for language, pair in languages.pairs.items()}
        self._languages = languages
        self._clock = clock
        self._new_id = new_id
        self._learned: dict[str, float] = {} if learned is None else learned
        self._learns = learned is not None
        self._memory = memory
        self._until: dict[str, float] = {}
        self._converters_by_path: dict[str, Upstream] = dict.fromkeys(self._pairs, self)
        if "messages" in (languages.speaks or ()):
            self._converters_by_path |= dict.fromkeys(OF_MESSAGES, self)
        self._own_place = own_place(languages.speaks)
        if self._own_place is not None:
            self._converters_by_path[PATHS["generate"]] = self
        for path, until in self._learned.items():
            if until > clock.monotonic() and (pair := pair_at(path)) is not None:
                self._pairs[path], self._converters_by_path[path], self._until[path] = pair, self, until

    def __repr__(self) -> str:
        return f"Converting({self._inner!r})"

    @property
    def converters_by_path(self) -> Mapping[str, Upstream]:
        """Returns by path what this stands in for; it changes with what is learned."""
        return self._converters_by_path

    def send(self, outgoing: Outgoing) -> Awaitable[Answer]:
        pair = self._pairs.get(outgoing.path)
        if self._own_place is not None and outgoing.path == PATHS["generate"]:
            return self._inner.send(at_own_path(outgoing, self._own_place))
        if pair is None or outgoing.method != "POST":
            return self._inner.send(self._as_message(outgoing) if outgoing.path in OF_MESSAGES else outgoing)
        if self._clock.monotonic() >= self._until.get(outgoing.path, inf):
            self._forget(outgoing.path)
            return self._inner.send(outgoing)
        if pair.keeps_bytes or pair.source == COUNTS:
            outgoing = unmarked(outgoing)
        if pair.source in _THROUGH_CHAT and self._clock.monotonic() < self._until.get(PATHS["chat"], 0.0):
            pair = pair_of(pair.source, "responses")
        return self._convert(pair, outgoing)

    def _as_message(self, outgoing: Outgoing) -> Outgoing:
        """Returns a call in Messages for a server that speaks it; Anthropic itself says what its models do not take."""
        is_anthropics = self._languages.dialect == "anthropic"
        return unmarked(outgoing, takes_system=is_anthropics or self._languages.find_model(outgoing.model).later_system)

    async def on_unknown_path(self, outgoing: Outgoing, answer: Answer) -> Answer:
        """Returns the answer to give instead of a 400, 404 or 405: the same one, or that of the call in another language.

        It is learned only where the other path is there: a server that is being deployed knows neither for a while.
        """
        pair = pair_at(outgoing.path)
        if not self._learns or pair is None or outgoing.method != "POST" or isinstance(answer, WholeAnswer):
            return answer
        body = await self._read(answer)
        if not is_unknown_path(body, answer.status):
            return WholeAnswer(answer, body)
        converted = await self._convert(pair, outgoing)
        if isinstance(converted, WholeAnswer) and converted.lacks_path:  # nor does it know the other one
            return WholeAnswer(answer, body, lacks_path=True)
        self._remember(outgoing.path, pair)
        return converted

    def _remember(self, path: str, pair: Pair) -> None:
        self._pairs[path], self._converters_by_path[path] = pair, self
        self._until[path] = self._learned[path] = self._clock.monotonic() + LEARNED_FOR_S

    def _forget(self, path: str) -> None:
        for learned in (self._pairs, self._converters_by_path, self._until, self._learned):
            learned.pop(path, None)

    async def _read(self, answer: Answer) -> bytes:
        try:
            return await read_whole(answer)
        except self.errors as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> UpstreamFailed:
        return self._inner.failure(error)

    async def _convert(self, pair: Pair, outgoing: Outgoing) -> Answer:
        given, now, facts = bytes(outgoing.body), self._clock.wall(), self._facts_for(pair, outgoing)
        if pair.most_texts is not None and (pieces := pair.pieces(given, facts)):
            return await in_pieces(outgoing, pieces, partial(self._convert, pair), pair.put_together, self._inner)
        refuses_loss = outgoing.signs is not None and outgoing.signs.refuses_loss
        headers = outgoing.headers
        convert = partial(pair.request, given, facts, now, self._new_id, refuses_loss=refuses_loss, headers=headers)
        sent, body, gaps = convert() if len(given) <= LARGE_BYTES else await to_thread(convert)
        if isinstance(facts.memory, OwnTurns) and facts.memory.missed and await facts.memory.fetch():
            sent, body, gaps = convert() if len(given) <= LARGE_BYTES else await to_thread(convert)
        if pair.source == "responses":
            sent = with_wall(sent, self._clock.wall)
        if outgoing.signs is not None:
            outgoing.signs.gaps = [*outgoing.signs.gaps, *gaps]
        answer = await self._inner.send(addressed(outgoing, pair, sent, body))
        if answer.status in _PATH_STATUSES and self._learns:
            raw = await self._read(answer)
            lacks_path = is_unknown_path(raw, answer.status)
            if lacks_path and outgoing.path in self._until:  # what was learned has passed
                self._forget(outgoing.path)
            elif lacks_path and pair.source in _THROUGH_CHAT and pair.target == "chat":
                other = await self._convert(pair_of(pair.source, "responses"), outgoing)
                if not isinstance(other, WholeAnswer) or not other.lacks_path:
                    self._remember(PATHS["chat"], pair_of("chat", "responses"))
                    return other
            return WholeAnswer(answer, raw, lacks_path=lacks_path)
        is_good = 200 <= answer.status < 300
        if not is_good and pair.source == COUNTS:  # it says nothing of the caller's own question
            await answer.aclose()
            raise UpstreamFailed(ErrorClass.BAD_REQUEST, Phase.ANSWERED, "the provider did not count the tokens")
        if not is_good:
            return answer
        try:
            return ConvertedAnswer(answer, pair, sent, self.errors, outgoing.signs)
        except self.errors as error:  # of what it is packed with
            raise self.failure(error) from error

    def _facts_for(self, pair: Pair, outgoing: Outgoing) -> ServerFacts:
        """Returns what is known of the target, and what is remembered of the caller's turns."""
        facts, memory = self._languages.facts(pair, outgoing.model), self._memory
        tenant = None if outgoing.signs is None else outgoing.signs.remembers_for
        if memory is None or tenant is None or not (facts.issuer or len(memory)):
            return facts
        # A language is part of whose a turn is: one cloud has models of several makers, and each says it in its own way.
        issuer = f"{facts.issuer} {pair.target}" if facts.issuer else ""
        own = memory.of(tenant, outgoing.credential, issuer, keeps_all=facts.model.binds_thinking)
        return replace(facts, memory=own)


class ConversationWire:
    """The wire to one provider, for calls in the language of conversations. Implements `Upstream`.

    What goes there is made to fit what the provider takes, converted or not: what others signed is left out, and told as lost.
    A refusal of what is left of that is answered by the same request without any of it, once.
    """

    __slots__ = ("_chats", "_hints", "_inner", "_issuers", "_place", "_signed", "_takes", "_wants_reasoning", "errors")

    def __init__(self, inner: Upstream, place: ProvidersPlace, issuers: Issuers) -> None:
        self._inner = inner
        self._place = place
        self._hints = {path: hints_of(language, place.kind) for path, language in LANGUAGES.items()}
        self._signed = frozenset(path for path, language in LANGUAGES.items() if signs(language, place.kind))
        self._chats = frozenset(path for path, language in LANGUAGES.items() if language == "chat") - self._signed
        """The paths at which nothing is to be looked at in a call without a turn of the model and without tools."""
        self._takes = taken_by(place.kind, takes_words=facts_of(place.kind).takes_reasoning)
        self._issuers = issuers
        self._wants_reasoning = False
        """The provider has refused a turn without reasoning, and taken what stands for it."""
        self.errors = inner.errors

    def __repr__(self) -> str:
        return f"ConversationWire({self._inner!r})"

    def send(self, outgoing: Outgoing) -> Awaitable[Answer]:
        body = outgoing.body
        if (
            outgoing.path in self._chats
            and isinstance(body, bytes)
            and len(body) <= LARGE_BYTES
            and b'assistant"' not in body
            and b'"parameters' not in body
        ):
            return self._inner.send(outgoing)
        hints = self._hints.get(outgoing.path)
        is_watched = outgoing.path in self._signed and self._is_watched
        if hints is not None and not is_watched and isinstance(body, bytes) and len(body) <= LARGE_BYTES:
            for hint in hints:
                if hint in body:
                    break
            else:  # as in most calls: their bytes go on
                return self._inner.send(outgoing)
        language = language_at(outgoing.path)
        if language is None or outgoing.method != "POST":
            return self._inner.send(outgoing)
        return self._converse(outgoing, bytes(body), language)

    @property
    def _is_watched(self) -> bool:
        """Returns whether it has to be remembered what answers are signed with: conversations may go elsewhere."""
        return len(self._issuers.places) > 1

    async def _converse(self, outgoing: Outgoing, given: bytes, language: str) -> Answer:
        issuer = issuer_of(self._place, language, outgoing.credential)
        body = await self._prepared(outgoing, given, language, partial(self._issuers.is_foreign, issuer=issuer))
        if body is not given:
            outgoing = replace(outgoing, body=body)
        answer = await self._inner.send(outgoing)
        if answer.status in REFUSALS:
            answer = await self._without_history(outgoing, body, language, issuer, answer)
        if answer.status == 200 and self._is_watched and signs(language, self._place.kind):
            return SignedAnswer(answer, language, partial(self._issuers.remember, issuer=issuer))
        return answer

    def fit(self, body: bytes, language: str) -> tuple[bytes, list[Gap]]:
        """Returns a request as it goes there with the config's credential, and what that loses, for the provider's batches."""
        issuer = issuer_of(self._place, language, None)
        return self._leave_out(body, language, partial(self._issuers.is_foreign, issuer=issuer))

    async def _prepared(self, outgoing: Outgoing, body: bytes, language: str, is_left: IsLeft) -> bytes:
        """Returns the request as it goes there. Raises InvalidRequest where something is lost, and nothing may be."""
        prepare = partial(self._leave_out, body, language, is_left)
        made, lost = prepare() if len(body) <= LARGE_BYTES else await to_thread(prepare)
        if lost and outgoing.signs is not None:
            refuse(lost, refuses_loss=outgoing.signs.refuses_loss)
            outgoing.signs.gaps = list(dict.fromkeys([*outgoing.signs.gaps, *lost]))
        return made

    def _leave_out(self, body: bytes, language: str, is_left: IsLeft) -> tuple[bytes, list[Gap]]:
        is_kept = not any(part in body for part in unwanted_in(language, self._takes))
        lost: list[Gap] = []
        if not is_kept or is_left("") or any(map(is_left, proofs_in(body, language))):
            body, lost = _without(body, language, is_left, self._takes)
        if self._wants_reasoning:
            body = with_reasoning(body, language)
        return fitted(body, language, self._place.kind), lost

    async def _without_history(
        self, outgoing: Outgoing, body: bytes, language: str, issuer: str, refusal: Answer
    ) -> Answer:
        """Returns what the provider answers without what its refusal may be about; else the refusal."""
        try:
            raw = await read_whole(refusal)
        except self.errors as error:
            raise self.failure(error) from error
        read, progress = ReadAnswer(refusal, raw), outgoing.signs
        if is_missing := misses_reasoning(raw):
            made = with_reasoning(body, language)
        elif not refuses_history(raw) or (progress is not None and progress.refuses_loss):
            return read
        else:
            made = await self._prepared(outgoing, body, language, lambda _proof: True)
        if made is body:
            return read
        if progress is not None:
            progress.requests += 1
        answer = await self._inner.send(replace(outgoing, body=made))
        if answer.status == 200 and is_missing:
            self._wants_reasoning = True
        elif answer.status == 200:  # the next turn goes without them at once
            for proof in proofs_in(body, language):
                self._issuers.refuse(proof, issuer)
        return answer

    def failure(self, error: Exception) -> UpstreamFailed:
        return self._inner.failure(error)


def _without(body: bytes, language: str, is_left: IsLeft, taken: Taken) -> tuple[bytes, list[Gap]]:
    """Returns a request without what a provider does not know, and what that loses; the same bytes where it knows all."""
    if language == "messages":
        from gateway.dialects.anthropic.in_thoughts import without_thoughts  # few conversations have foreign ones

        return without_thoughts(body, is_left)
    if language == "generate":
        from gateway.dialects.gemini.in_answer import without_signatures  # few have those of others

        return without_signatures(body, is_left)
    return without(body, language, is_left, taken)


class SignedAnswer:
    """An answer whose proofs are remembered as it goes by; its bytes stay as they are."""

    def __init__(self, inner: Answer, language: str, remember: Callable[[str], None]) -> None:
        self._inner, self._language, self._remember = inner, language, remember
        self.status = inner.status
        if inner.whole is not None:
            for proof in proofs_in(inner.whole, language):
                remember(proof)

    @property
    def headers(self) -> RawHeaders:
        return self._inner.headers

    @property
    def whole(self) -> bytes | None:
        return self._inner.whole

    @property
    def chunks(self) -> AsyncIterator[bytes]:
        chunks = self._inner.chunks
        if self._inner.whole is not None:
            return chunks
        return _SignedChunks(chunks, ProofReader(self._language), self._remember)

    def unpack(self, codings: bytes) -> None:
        self._inner.unpack(codings)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _SignedChunks(PassthroughChunks):
    """What is taken in passing is a piece of a text, and has no proofs."""

    __slots__ = ("_chunks", "_reader", "_remember")

    def __init__(self, chunks: AsyncIterator[bytes], reader: ProofReader, remember: Callable[[str], None]) -> None:
        self._chunks, self._reader, self._remember = chunks, reader, remember

    @property
    def on_block(self) -> Callable[[bytes], bool] | None:
        return self._chunks.on_block if isinstance(self._chunks, PassthroughChunks) else None

    @on_block.setter
    def on_block(self, take: Callable[[bytes], bool] | None) -> None:
        if isinstance(self._chunks, PassthroughChunks):
            self._chunks.on_block = take

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        for proof in self._reader.feed(chunk):
            self._remember(proof)
        return chunk


class Languages:
    """Makes what stands beside servers that do not speak all languages, and remembers what was learned of them.

    And, in `memory`, what the turns of models were signed with, and by whom. All of it outlives a reload of the config.
    """

    def __init__(self, clock: Clock, new_id: Callable[[], str]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._learned = LearnedPaths()
        self.memory = ThoughtMemory(clock.monotonic)
        self._issuers = Issuers()

    def conversing(self, upstream: Upstream, provider: Provider, kind: str) -> Upstream:
        """Returns the wire of a provider of this kind as conversations use it."""
        account = self._issuers.account_of(provider.name, provider.api_key, provider.headers)
        place = ProvidersPlace(provider.dialect, kind, provider.base_url, account)
        self._issuers.places.add(place)
        return ConversationWire(upstream, place, self._issuers)

    def converting(self, upstream: Upstream, languages: TargetLanguages, place: str) -> Converting | None:
        """Returns what stands beside a server that speaks these languages; nothing where all that it is asked goes as it is.

        Where it is not known which it speaks, its answers tell; `place` names server and model.
        """
        if languages.speaks is not None and not languages.pairs and "messages" not in languages.speaks:
            return None
        learned = self._learned.of(place) if languages.speaks is None else None
        return Converting(upstream, languages, self._clock, self._new_id, learned=learned, memory=self.memory)


class ConvertedAnswer:
    """A good answer in the caller's language."""

    def __init__(
        self,
        inner: Answer,
        pair: Pair,
        sent: ConvertedRequest,
        errors: tuple[type[Exception], ...],
        signs: Progress | None = None,
    ) -> None:
        """`errors` are those of the target's connection; `signs` gets what a whole answer has lost."""
        self._signs = signs
        self._errors = errors
        self._inner, self._pair, self._sent = inner, pair, pair.with_count(sent, inner.headers)
        self.status = inner.status
        self.headers: RawHeaders = [header for header in inner.headers if header[0] not in _CHANGED]
        index = dict(inner.headers)
        if b"content-encoding" in index:
            inner.unpack(index[b"content-encoding"])
        content = index.get(b"content-type", b"")
        self._is_stream = content.startswith((b"text/event-stream", _FRAMES))
        if content.startswith(_FRAMES):
            self.headers = [
                (b"content-type", b"text/event-stream") if one[0] == b"content-type" else one for one in self.headers
            ]
        if self._is_stream and not sent.source.get("stream"):  # it becomes a whole answer, which tells its usage
            self._sent = with_usage(self._sent)
        self._reader: Reader | None = None
        self._is_reported = False
        """The events that came last reported usage."""
        self.whole = None if inner.whole is None else self._whole(inner.whole)
        self.chunks: AsyncIterator[bytes] = self._stream(inner.chunks) if self._is_stream else self._once(inner.chunks)

    def unpack(self, codings: bytes) -> None:
        """Has nothing to do: what is converted is unpacked."""

    async def aclose(self) -> None:
        await self._inner.aclose()

    def reported(self) -> tuple[Usage | None, bool]:
        """As `ReportsUsage` has it."""
        usage = None if self._reader is None else self._reader.reported
        return (read_usage(usage) if isinstance(usage, dict) else usage), self._is_reported

    def _whole(self, body: bytes) -> bytes:
        if self._signs is not None and has_lone_surrogate(body):
            self._signs.gaps = [*self._signs.gaps, _HALF]
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
        data = bytes(body)
        yield self._whole(data) if len(data) <= LARGE_BYTES else await to_thread(self._whole, data)

    async def _stream(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        reader = self._reader = self._pair.reader(self._sent)
        held = 0
        try:
            async for chunk in chunks:
                made = []
                # One by one where a report is among them: what follows it is not in it.
                for piece in split_events(chunk) if b'"usage' in chunk else (chunk,):
                    known = reader.reported
                    if (
                        converted := reader.feed(piece)
                        if held < LARGE_EVENT_BYTES
                        else await to_thread(reader.feed, piece)
                    ):
                        held = 0
                        self._is_reported = reader.reported is not known
                        made.append(converted)
                    else:
                        self._is_reported = self._is_reported or reader.reported is not known
                        held += len(piece)
                if made:
                    yield made[0] if len(made) == 1 else b"".join(made)
        except self._errors:
            if not reader.is_over:  # Gemini's callers are told of no end but that of the connection
                raise
        if converted := reader.close(is_clean=True):
            yield converted


# --- A call, addressed as a target in another language, or with another name for its model, takes it ---


MARK: Final = b'"gw1.'
"""Begins the signature of thinking that another provider's model did; the same as `MARK` of Messages in `dialects`."""
SYSTEM_TURN: Final = re.compile(rb'"role"\s*:\s*"system"')
"""Begins instructions between the messages; or the like of it, in a text."""
OF_MESSAGES: Final = (PATHS["messages"], PATHS[COUNTS])
_ANTHROPICS: Final = b"anthropic-"
"""Begins the headers that mean something to Anthropic's Messages alone."""
_TOKENS: Final = b"sk-ant-oat"
"""The beginning of what is no key, but a token of a login at Anthropic."""


def addressed(outgoing: Outgoing, pair: Pair, sent: ConvertedRequest, body: bytes) -> Outgoing:
    """Returns the converted call; what the caller put behind its path was for another one."""
    place = sent.place or pair.place(outgoing.model, sent.source.get("stream") is True)
    headers, credential = outgoing.headers, outgoing.credential
    if outgoing.path in OF_MESSAGES:
        kept = pair.kept_headers
        headers = [header for header in headers if header[0] in kept or not header[0].startswith(_ANTHROPICS)]
    if pair.target == "messages":
        credential = _as_key(credential)
    if pair.headers:
        names = {name for name, _ in pair.headers}
        headers = [*pair.headers, *(header for header in headers if header[0] not in names)]
    return replace(outgoing, path=place, query=b"", body=body, headers=headers, credential=credential)


def _as_key(credential: bytes | None) -> bytes | None:
    """Returns a caller's own key in the form that the version of Anthropic's API takes which converted calls name.

    OpenAI's clients know bearer tokens alone.
    """
    scheme, _, token = (credential or b"").partition(b" ")
    is_token = token.count(b".") == 2 or token.startswith(_TOKENS)
    return credential if is_token or scheme.lower() != b"bearer" else b"x-api-key " + token.strip()


def at_own_path(outgoing: Outgoing, place: Place) -> Outgoing:
    """Returns a call of Gemini's callers at Gemini: the bytes that they sent, and the model in the path again."""
    from gateway.dialects.gemini.in_request import taken_out  # only Gemini's callers need it

    is_stream, body = taken_out(bytes(outgoing.body))
    return replace(outgoing, path=place(outgoing.model, is_stream), query=b"", body=body)


def unmarked(outgoing: Outgoing, *, takes_system: bool = True) -> Outgoing:
    """Returns a call in the target's own language, whose bytes stay as they are, but for what we have put into its history.

    `takes_system`: the target takes instructions between the messages; else they become words of the user's.
    Raises InvalidRequest where that costs something, and nothing may be lost.
    """
    body = bytes(outgoing.body)
    if MARK not in body and (takes_system or SYSTEM_TURN.search(body) is None):
        return outgoing
    from gateway.dialects.anthropic.in_request import without_system_turns  # few conversations have one
    from gateway.dialects.anthropic.in_thoughts import without_marks  # few conversations have one

    made, lost = without_marks(body)
    if not takes_system:
        made, more = without_system_turns(made)
        lost = [*lost, *more]
    if lost and outgoing.signs is not None:
        refuse(lost, refuses_loss=outgoing.signs.refuses_loss)
        outgoing.signs.gaps = [*outgoing.signs.gaps, *lost]
    return replace(outgoing, body=made)
