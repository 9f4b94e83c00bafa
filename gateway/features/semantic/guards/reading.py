"""Reads a text into tokens: white space parts it, tables say what its words mean, the rest stands for itself.

Quotations are taken out first and compared to the letter; so are addresses, paths, identifiers and versions, whatever
follows a colon or a line's end, and all of a question about wording that quotes nothing (`translate I am`). The words of a
question about words (`define buy`) are compared as they are written, too. Invariant: nothing
else is dropped but chaff and punctuation between words, and the time is linear whatever the text is.
"""

from __future__ import annotations

import re

from gateway.features.semantic.guards.figures import figure
from gateway.features.semantic.guards.words import (
    HOMOGRAPHS,
    NOT_PLURAL,
    ON_TEXT,
    PAUSE,
    SINGLING,
    STOP,
    VERB,
    Language,
    Meaning,
    Phrases,
    Token,
    is_about_words,
    language_of,
)

_QUOTED = re.compile(
    r"(?<!`)`++[^`]*+`++|\"[^\"]*+\"|“[^“”]*+”|„[^„“”]*+[“”]|«[^«»]*+»|「[^「」]*+」|『[^『』]*+』|(?<![\w'])'[^'\n]*+'(?!\w)"
)
"""Every alternative ends at the next quotation mark, or nowhere: there is nothing to try twice."""
_MARKS = "\"`“„«「『'"
_PLACE, _NOT_OURS = "\ue000", "\ue001"
"""Private characters: where a quotation stood, and what the text's own such character becomes."""
_WIDE = "\uff0c\uff1b\uff1a\uff01\uff1f\uff08\uff09"
"""Comma, semicolon, colon, exclamation and question mark, brackets, as wide as a Chinese character."""
_AROUND = ".,;:!?¿¡()[]{}\"'…«»“”„—–。、؟" + _WIDE  # noqa: RUF001 - the dash is meant
_AFTER = ".,;:!?"
_LEADS_TO = ("\n", ": ", ":\t", "\uff1a")
_BEGINNINGS = "¿¡("
_FULL_STOPS = ".?!;。؟\uff1f\uff01\uff1b"
_PAUSES = ",:、)—–\uff0c\uff1a\uff09"  # noqa: RUF001 - as above
_PLAIN = frozenset(("words", "opposites"))
_STOP: Token = ("break", STOP)
_PAUSE: Token = ("break", PAUSE)
_VERB_LAST: Token = ("break", VERB)


def read(text: str) -> tuple[str, list[Token]]:
    """Returns the text's language, and its tokens in their order."""
    quotations: list[str] = []
    text = text.strip()
    start = _material_at(text)
    head = _without_quotations(text[:start].replace("’", "'"), quotations)  # noqa: RUF001 - the typographic apostrophe
    lumps = head.split()
    cores = [lump.strip(_AROUND) for lump in lumps]
    lowered = [core.casefold() for core in cores]
    language = language_of(lowered)
    is_plural_free = language.plurals and not _singles_out(head, lowered)
    tokens = _TokenReader(language, is_plural_free, quotations).read(lumps, cores, lowered)
    if start < len(text):
        tokens.append(("text", text[start:]))
    elif not quotations and not ON_TEXT.isdisjoint(lowered):
        tokens.append(("text", " ".join(text.split())))
    elif not quotations and is_about_words(lowered):
        words = language.words  # `define buy` is not `define purchase`, though greetings and manners still say nothing
        tokens.append(("text", " ".join([low for low in lowered if words.get(low) != ()])))
    return language.name, tokens


def _material_at(text: str) -> int:
    """Returns the place behind the first colon or line: what follows may be material, which is compared to the letter."""
    places = [place for mark in _LEADS_TO if (place := text.find(mark)) >= 0]
    return min(places) + 1 if places else len(text)


def _without_quotations(text: str, quotations: list[str]) -> str:
    if _PLACE in text:
        text = text.replace(_PLACE, _NOT_OURS)
    if not any(mark in text for mark in _MARKS):
        return text

    def take(match: re.Match[str]) -> str:
        quotations.append(match[0][1:-1])
        return f" {_PLACE} "

    return _QUOTED.sub(take, text)


def _singles_out(text: str, lowered: list[str]) -> bool:
    """Returns whether the number of things asked for matters, as in `the largest city` and `the largest cities`."""
    if not SINGLING.isdisjoint(lowered):
        return True
    return "est" in text and any(word.endswith("est") for word in lowered)


class _TokenReader:
    """Reads the tokens of one text in one pass."""

    __slots__ = ("_is_plural_free", "_language", "_quotations")

    def __init__(self, language: Language, is_plural_free: bool, quotations: list[str]) -> None:
        self._language = language
        self._is_plural_free = is_plural_free
        self._quotations = iter(quotations)

    def read(self, lumps: list[str], cores: list[str], lowered: list[str]) -> list[Token]:
        language = self._language
        words, phrases, openings = language.words, language.phrases, language.openings
        bent = language.bent
        tokens: list[Token] = []
        followers = [*lowered[1:], ""]
        opens = begins = True  # a clause, a sentence
        skip = 0
        for place, low in enumerate(lowered):
            lump, core = lumps[place], cores[place]
            if skip:
                skip -= 1
            else:
                if lump is not core and lump[0] in _BEGINNINGS:
                    tokens.append(_PAUSE)
                    opens = True
                taken = None
                if opens and low in openings:
                    taken = _phrase(openings[low], lowered, place, followers[place])
                if taken is None and low in phrases:
                    taken = _phrase(phrases[low], lowered, place, followers[place])
                if taken is not None:
                    skip, meaning = taken
                    opens = opens and not meaning
                    tokens += meaning
                elif core:
                    known = words.get(low)
                    if core != low:
                        known = _cased(core, low, known, begins, language)
                    if lump is not core and _is_code(lump, core):
                        tokens.append(("names", lump.rstrip(_AFTER)))
                    elif known is not None:
                        tokens += known
                    elif core.isalpha():
                        tokens.append(self._bent(low) if low[-1] in bent else ("words", low))
                    else:
                        tokens += self._odd(lump, core, low)
                    opens = False
                begins = False
            if lump is not core and lump[-1] in _FULL_STOPS and "." not in core:  # U.S. and e.g. end no sentence
                tokens.append(_VERB_LAST if language.verb_last and low.endswith("en") else _STOP)
                opens = begins = True
            elif lump is not core and lump[-1] in _PAUSES:
                tokens.append(_PAUSE)
                opens = True
        if language.verb_last and lowered and lowered[-1].endswith("en") and lumps[-1] is cores[-1]:
            tokens.append(_VERB_LAST)
        return tokens

    def _odd(self, lump: str, core: str, low: str) -> Meaning:
        """Returns the meaning of a lump of no table that is not all letters: that of its parts, or a name."""
        if core == _PLACE:
            return (("quoted", next(self._quotations)),)
        if any(char.isdigit() for char in core):
            return figure(lump, core, low, self._language.comma_groups)
        if "'" in low:
            return self._elided(low)
        return (("words", low),) if low.replace("-", "").isalpha() else (("names", core),)

    def _bent(self, low: str) -> Token:
        """Returns a plural or a form of a verb by its stem, where that is plain."""
        if self._is_plural_free and low[-1] == "s":
            low = _singular(low)
            meaning = self._language.words.get(low, ())
            if len(meaning) == 1 and meaning[0][0] in _PLAIN:
                return meaning[0]
        elif len(low) > 4 and low.endswith(self._language.endings):
            low = next(low[: -len(ending)] for ending in self._language.endings if low.endswith(ending))
        return ("words", low)

    def _elided(self, low: str) -> Meaning:
        """Returns the meaning of a word with an apostrophe: `l'eau` is two words, `Tim's` belongs to Tim."""
        head, _, tail = low.partition("'")
        before = self._language.words.get(f"{head}'")
        if before is not None and tail:
            after = self._language.words.get(tail)
            return before + (after if after is not None else (self._bent(tail),))
        return (self._bent(head) if tail in ("s", "") and head.isalpha() else ("words", low),)


def _phrase(candidates: Phrases, lowered: list[str], place: int, follower: str) -> tuple[int, Meaning] | None:
    """Returns the longest phrase that stands here: how many words follow the first, and what it means."""
    for rest, meaning in candidates:
        if not rest:
            return 0, meaning
        if rest[0] == follower and lowered[place + 1 : place + 1 + len(rest)] == rest:
            return len(rest), meaning
    return None


def _cased(core: str, low: str, known: Meaning | None, begins: bool, language: Language) -> Meaning | None:
    """Returns the meaning of a word with capitals, which may make a name of it: US, IT, WHO, vitamin A, Polish."""
    if len(core) == 1:
        return known if begins or core == "I" else (("names", core),)
    if known and known[0][0] != "article" and core.isupper() and low in language.signs:
        return (("names", core),)
    return (("names", core),) if low in HOMOGRAPHS and not begins else known


def _is_code(lump: str, core: str) -> bool:
    """Returns whether punctuation is a part of the word, as in `int[]`, `.env` and `f'`."""
    if lump[0] in ".!:" and lump[1].isalnum():
        return True
    return "[]" in lump or "()" in lump or "{}" in lump or (len(core) == 1 and lump.rstrip(_AFTER)[-1] == "'")


def _singular(word: str) -> str:
    """Returns the singular of an English noun, where the spelling tells it."""
    if len(word) < 4 or word[-2] in "suix" or word in NOT_PLURAL:
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-2] if word.endswith(("ches", "shes", "xes", "sses", "zes")) else word[:-1]
