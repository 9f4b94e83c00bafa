"""Decides whether two questions that look alike mean the same: in what their words must agree, whatever an embedding says.

A text is brought into a canonical form: chaff dropped, spellings and close synonyms joined, every number, date, unit,
negation, quantifier, modal verb, tense, question word, name and quotation sorted by kind, and the order of the sentence
reduced to what rephrasing leaves alone. What is kept is one short digest per kind: two questions agree when all of these
are equal, so agreeing is an equivalence, and the guard that objects is the first kind that differs. The prompt cannot be
read from the facts; a guess can be checked against them, as it can against the vector that lies beside them.

It must not know embeddings, thresholds or partitions. Invariant: in doubt it objects; that costs a hit, not the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from unicodedata import normalize

from gateway.features.semantic.guards.reading import read
from gateway.features.semantic.guards.structure import forms_of
from gateway.features.semantic.guards.words import EVERY_WORD

KINDS = (
    "edition",
    "language",
    "text",
    "quoted",
    "numbers",
    "dates",
    "units",
    "negation",
    "quantifiers",
    "opposites",
    "modality",
    "tense",
    "asks",
    "names",
    "words",
    "order",
)
"""The guards, in the order in which they object; before them, whether the facts can be compared at all."""
_WIDTH = 8
_NOTHING = bytes(_WIDTH)
EDITION = sha256(f"2 {EVERY_WORD}".encode()).digest()[:_WIDTH]
"""The digest of the rules (by their number) and of all words; facts of another edition match nothing of this one."""

_EMPTY_TALK = frozenset(("language", "modality", "tense", "asks", "label", "article", "break", "genitive"))
"""The kinds that carry no content: questions of nothing else (`who am I?`) must agree to the letter."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Holds what the guards keep of a question: its edition and 8 bytes for each kind of fact."""

    raw: bytes

    def to_bytes(self) -> bytes:
        """Returns the bytes to store."""
        return self.raw

    @classmethod
    def from_bytes(cls, raw: bytes) -> Facts:
        """Reads stored bytes back; those of another edition are taken, and agree with nothing of this one."""
        return cls(raw)


def facts_of(text: str) -> Facts:
    """Returns the canonical facts of a question; linear in its length."""
    language, tokens = read(normalize("NFC", text))
    found: dict[str, list[str]] = {"language": [language]}
    for kind, token in tokens:
        if kind in found:
            found[kind].append(token)
        else:
            found[kind] = [token]
    if found.keys() <= _EMPTY_TALK:
        found["words"] = [" ".join(text.casefold().split())]
    for tokens_of_a_kind in found.values():
        tokens_of_a_kind.sort()
    found["order"] = forms_of(tokens)
    return Facts(EDITION + b"".join([_digest(found[kind]) if kind in found else _NOTHING for kind in KINDS[1:]]))


def objection(a: Facts, b: Facts) -> str | None:
    """Returns the first guard that tells the two apart, or None; `edition` where they cannot be compared."""
    if a.raw == b.raw:
        return None
    if len(a.raw) != len(b.raw):
        return "edition"
    differing = int.from_bytes(a.raw) ^ int.from_bytes(b.raw)
    return KINDS[(8 * len(a.raw) - differing.bit_length()) // (8 * _WIDTH)]


def _digest(tokens: list[str]) -> bytes:
    return sha256("\0".join(tokens).encode("utf-8", "surrogatepass")).digest()[:_WIDTH]
