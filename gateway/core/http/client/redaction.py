"""How far a request got before it failed, and secrets masked in answers; in this order.

Some providers repeat a credential: in the error that refuses it, in a header, in a stream. Every answer passes
`Secrets.guard` where it enters, and every failure `Secrets.text`, so that neither a client nor a cache, a store, a log or
an admin page can get what is not there any more. In place, by as many `*`: lengths and frames stay true.

Known forms: as it was sent, with JSON's escapes of any of its letters, percent-encoded; also across reads. Unknown: base64,
compressed bodies, a secret that a model spells out over several events.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from operator import itemgetter
from typing import Protocol, TypeVar
from urllib.parse import quote

import httpx
import orjson

from gateway.core.snapshot import Provider
from gateway.core.types import Phase, RawHeaders

# --- how far a request got before it failed: the one fact that decides whether it may be tried again ---


_E = TypeVar("_E", bound=httpx.TransportError)

_NOTHING_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)


def with_phase(error: _E, phase: Phase) -> _E:
    """Mark `error` with the phase it happened in and return it."""
    error.phase = phase  # type: ignore[attr-defined]  # httpx has no field for it; `phase_of` is the reader
    return error


def phase_of(error: BaseException, *, answered: bool = False) -> Phase:
    """Returns the phase of any transport's failure; `answered`: it came while the body was being read.

    `NOTHING_SENT`: no byte of the request left this process. `SENT`: the provider may have seen it, nothing was answered.
    `ANSWERED`: a status line arrived and the rest broke. Exceptions of `Http1Transport` carry the phase; those of other
    httpx transports are judged by their type. Invariant: `NOTHING_SENT` is only returned when it is certain.
    """
    marked: Phase | None = getattr(error, "phase", None)
    if marked is not None:
        return marked
    if answered:
        return Phase.ANSWERED
    return Phase.NOTHING_SENT if isinstance(error, _NOTHING_SENT) else Phase.SENT


# --- secrets, masked in answers ---

MIN_BYTES = 8
"""Shorter texts are no secrets: to mask them would spoil answers that have nothing to do with them."""
PROBE_BYTES = 8
"""The bytes of secrets' beginnings, which are looked for where there are several: most of them begin alike (`sk-proj-`)."""
STAND_INS = frozenset(["lm-studio", "no-key-required", "not-needed", "not-used", "placeholder", "sk-no-key-required"])
"""The keys that are sent to servers which want none, only the header: words, which answers may hold."""
ESCAPE = rb"\u00"
"""The beginning of a letter that JSON may have as it is: some write `-`, `+` or `'` so (.NET, Gson)."""
MOST_BACKSLASHES = 4
"""The most backslashes before an escape: text in JSON, in JSON, ..."""
_IN_ESCAPES = rb"\u0123456789abcdefABCDEF"
_VALUE = itemgetter(1)


class GuardedAnswer(Protocol):
    """The parts of an answer that can tell something."""

    headers: RawHeaders
    whole: bytes | None

    def mask_body(self, secrets: Secrets) -> None:
        """Mask these in what has come of the body, and in all that comes from now on, whoever reads it and how."""
        ...


class Secrets:
    """The texts that must not stand in an answer of one provider."""

    __slots__ = ("_escaped", "_needles", "_texts", "ends", "probes")

    def __init__(self, texts: Iterable[str]) -> None:
        """Those too short, and those that are no secrets, are left out."""
        self._texts = sorted({text for text in texts if _is_secret(text)})
        needles = {form for text in self._texts for form in _forms(text)}
        self._needles = sorted(needles)
        self._escaped = re.compile(b"|".join(map(_with_escapes, self._texts)))
        probes = self._needles if len(needles) < 3 else sorted({needle[:PROBE_BYTES] for needle in needles})
        self.probes = [*probes, ESCAPE] if needles else []
        # A beginning never holds the last letter in its place: with that one the secret is whole.
        letters = {letter for needle in needles for letter in needle[:-1]}
        self.ends = frozenset(bytes((letter,)) for letter in letters | {*_IN_ESCAPES}) if needles else frozenset()

    def __bool__(self) -> bool:
        return bool(self._needles)

    def guard(self, answer: GuardedAnswer) -> None:
        """Mask them in an answer's headers and in its body, whole or as it comes."""
        parts, whole = [*map(_VALUE, answer.headers)], answer.whole
        if whole is not None:  # no longer than a read
            parts.append(whole)
        together = b"".join(parts)  # each search has its price, however little there is to look at
        for probe in self.probes:
            if together.replace(probe, probe) is not together:
                # There is something in one of them, or only where two of them met: each is looked at by itself.
                answer.headers = [(name, self.mask(value)) for name, value in answer.headers]
                answer.mask_body(self)
                return
        if whole is None:
            answer.mask_body(self)

    def text(self, text: str) -> str:
        """The text without them."""
        raw = text.encode("utf-8", "surrogatepass")
        return self.mask(raw).decode("utf-8", "surrogatepass")

    def mask(self, block: bytes) -> bytes:
        """The block without them; the very same object where it holds none."""
        for probe in self.probes:
            # The cheapest search there is: it gives back what it was given.
            if block.replace(probe, probe) is not block:
                return self.mask_all(block)
        return block

    def mask_all(self, block: bytes, is_masked: int = 0) -> bytes:
        """As `mask`, also where they overlap; the first `is_masked` bytes are part of one in any case."""
        masked = bytearray(block)
        masked[:is_masked] = b"*" * is_masked
        for needle in self._needles:
            at = block.find(needle)
            while at >= 0:
                masked[at : at + len(needle)] = b"*" * len(needle)
                # From the next byte on, for a secret may overlap with itself.
                at = block.find(needle, at + 1)
        if ESCAPE in block:
            for found in self._escaped.finditer(block):
                masked[found.start() : found.end()] = b"*" * (found.end() - found.start())
        return bytes(masked)

    def beginning(self, block: bytes) -> int:
        """Returns how many bytes at the block's end are how one of them begins; 0: none."""
        longest = max(_overlap(block, needle) for needle in self._needles)
        return max(longest, *(_escaped_overlap(block, text) for text in self._texts)) if b"\\" in block else longest


class SecretMasker:
    """Masks a body that comes in blocks: what may be the beginning of a secret waits for the next block, and nothing else."""

    __slots__ = ("_is_masked", "_secrets", "ends", "kept", "probes")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self.ends, self.probes = secrets.ends, secrets.probes
        self.kept = b""
        """The end of what has come, which may be the beginning of a secret."""
        self._is_masked = 0
        """The number of kept bytes that also are the end of a secret that has been seen whole."""

    def feed(self, block: bytes) -> bytes:
        """What can go on now; may be nothing."""
        secrets = self._secrets
        if not self.kept and block[-1:] not in self.ends:
            return secrets.mask(block)
        block = self.kept + block
        masked = secrets.mask_all(block, self._is_masked)
        goes = len(block) - secrets.beginning(block)
        self.kept = block[goes:]
        self._is_masked = len(self.kept) - len(masked[goes:].lstrip(b"*"))
        return masked[:goes]

    def end(self) -> bytes:
        """What was kept, when no more comes."""
        rest = self._secrets.mask_all(self.kept, self._is_masked)
        self.kept, self._is_masked = b"", 0
        return rest


class MaskedChunks:
    """A body's chunks, masked."""

    __slots__ = ("_error", "_next", "_seam")

    def __init__(self, chunks: AsyncIterator[bytes], seam: SecretMasker) -> None:
        self._next = chunks.__anext__
        self._seam = seam
        self._error: Exception | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        try:
            while True:
                block = self._seam.feed(await self._next())
                if block:
                    return block
        except Exception as end:  # the body's end, too
            rest = self._seam.end()
            if not rest:
                raise
            # What was kept goes first; the next step raises the end.
            self._error = end
            return rest


def secrets_of(provider: Provider, minted: Iterable[str] = ()) -> Secrets | None:
    """What is sent to this provider and is nobody else's business, what was `minted` for it included; None: nothing."""
    return Secrets((*provider.secrets, provider.api_key or "", *minted)) or None


def _is_secret(text: str) -> bool:
    return len(text) >= MIN_BYTES and text not in STAND_INS


def _forms(text: str) -> Iterator[bytes]:
    """How it may be written in an answer."""
    escaped = orjson.dumps(text)[1:-1]
    yield text.encode()
    yield escaped
    yield escaped.replace(b"/", rb"\/")
    for plus in (rb"\u002B", rb"\u002b"):
        yield escaped.replace(b"+", plus)
    encoded = quote(text, safe="")
    yield encoded.encode()
    yield quote(text, safe="/").encode()


def _with_escapes(text: str) -> bytes:
    """Returns a pattern for the text in JSON, whichever of its letters are escaped (RFC 8259, 7), in a text in JSON, too."""
    letters = []
    for letter in text:
        code = "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in f"{ord(letter):04x}")
        slashes = rf"\\{{0,{MOST_BACKSLASHES}}}" if letter in '/"\\' else ""
        letters.append(rf"(?:{slashes}{re.escape(letter)}|\\{{1,{MOST_BACKSLASHES}}}u{code})")
    return "".join(letters).encode("utf-8", "surrogatepass")


def _escaped_overlap(block: bytes, text: str) -> int:
    """As `_overlap`, of the text with any of its letters escaped."""
    longest = len(text) * (MOST_BACKSLASHES + 5)
    at = max(0, len(block) - longest)
    while at < len(block):
        if _begins(block, at, text):
            return len(block) - at
        at += 1
    return 0


def _begins(block: bytes, at: int, text: str) -> bool:
    """Whether all of the block from there is how the text begins, with any of its letters escaped."""
    for letter in text:
        backslashes = 0
        while block[at : at + 1] == b"\\" and backslashes < MOST_BACKSLASHES:
            at, backslashes = at + 1, backslashes + 1
        rest = block[at : at + 5].lower()
        escape, plain = b"u%04x" % ord(letter), letter.encode("utf-8", "surrogatepass")
        if len(block) - at < 5 and backslashes and escape.startswith(rest):
            return True  # the block ends within the escape, or before it
        if backslashes and rest == escape:
            at += 5
        elif block.startswith(plain, at):
            at += len(plain)
        else:
            return at == len(block)
    return False


def _overlap(block: bytes, needle: bytes) -> int:
    """Returns how many bytes at the block's end, fewer than the needle has, are the first of the needle; the most there are."""
    at = block.find(needle[:1], max(0, len(block) - len(needle) + 1))
    while at >= 0:
        if needle.startswith(block[at:]):
            return len(block) - at
        at = block.find(needle[:1], at + 1)
    return 0
