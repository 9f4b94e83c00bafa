"""Decides whether two questions that look alike mean the same: in what their words must agree, whatever an embedding says.

A text is brought into a canonical form: chaff dropped, spellings and close synonyms joined, every number, date, unit, negation,
quantifier, modal verb, tense, question word, name and quotation sorted by kind, and the order of the sentence reduced to what
rephrasing leaves alone. One short digest per kind is kept. In this order: the tables of words; numbers; tokens; the order of
words; the facts that are compared. Invariants: in doubt a guard objects, which costs a hit, not the truth; agreeing is an
equivalence; nothing but chaff and punctuation between words is dropped; the time is linear whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from unicodedata import normalize

# --- what words mean to the guards, language by language, in the `.txt` files of `words` ---

FOLDER = Path(__file__).with_name("words")
TABLES = ("english", "german", "french", "spanish", "all_languages")

Token: TypeAlias = tuple[str, str]
"""A kind, and what it says."""
Meaning: TypeAlias = tuple[Token, ...]
Phrases: TypeAlias = list[tuple[list[str], Meaning]]
"""The phrases that begin with one word: their other words, and what all mean together; longer ones first."""

PAUSE, STOP, VERB = ",", ".", "verb"
"""Breaks: of a clause, of a sentence, of a sentence that ends in its verb."""


def read_tables(name: str) -> dict[str, str]:
    """Returns the tables of one file by their names: what stands below `=== NAME`, without comments.

    A word of a table means one or several tokens, each of a kind; a word that means none is chaff, and may stand in one
    question and be absent from the other. Words of no table mean themselves. Invariant: leaving a word out of a table costs
    hits, never truth; putting one in has to be weighed, since two words with one token are taken for each other wherever they
    stand.
    """
    tables: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        if line.startswith("=== "):
            lines = tables.setdefault(line[4:], [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return {table: "\n".join(lines) for table, lines in tables.items()}


@dataclass(frozen=True, slots=True)
class Language:
    """Holds the tables and traits of one language."""

    name: str
    words: Mapping[str, Meaning]
    phrases: Mapping[str, Phrases]
    openings: Mapping[str, Phrases]
    """The phrases that have their meaning only where a sentence begins."""
    comma_groups: bool = False
    """True if 1,000 is a thousand."""
    plurals: bool = False
    """True if nouns take an s."""
    endings: tuple[str, ...] = ()
    """The endings that tell the infinitive of a verb from its first person."""
    verb_last: bool = False
    """True if a verb may come last: `wie kann ich eine Liste sortieren` is `wie sortiere ich eine Liste`."""
    bent: str = ""
    """The last letters of words that may have a stem."""
    signs: frozenset[str] = field(default_factory=frozenset)
    """The words by which the language is recognised."""


def _tokens(kind: str, token: str) -> Meaning:
    """Returns the tokens of an entry, several where the kind names several: `negation+tense not+past`."""
    return tuple(zip(kind.split("+"), token.split("+"), strict=True)) if kind != "chaff" else ()


def _phrase_table(lines: Phrases) -> dict[str, Phrases]:
    table: dict[str, Phrases] = {}
    for words, meaning in sorted(lines, key=lambda line: -len(line[0])):
        table.setdefault(words[0], []).append((words[1:], meaning))
    return table


def _ing(verb: str) -> str:
    """Returns the form in -ing: `make` gives making, and `run!` running, because the mark doubles the consonant."""
    if verb.endswith("!"):
        return f"{verb[:-1]}{verb[-2]}ing"
    return f"{verb[:-1]}ing" if verb.endswith("e") and not verb.endswith("ee") else f"{verb}ing"


def _entries(lexicon: str) -> list[tuple[str, Meaning, list[str]]]:
    """Reads lines `kind token: words, separated by commas`; a heading `[name]` names the section of those below it."""
    entries, section = [], ""
    for line in filter(None, map(str.strip, lexicon.splitlines())):
        if line.startswith("["):
            section = line.strip("[]")
            continue
        head, _, words = line.partition(": ")
        kind, _, token = head.partition(" ")
        start = int(token[:-2]) if token.endswith("..") else None
        for place, name in enumerate(words.casefold().split(", ")):
            value = token if start is None else str(start + place)
            entries.append((section, _tokens(kind, value or name), name.split()))
    return entries


def _language(name: str, lexicon: str, verbs: str = "", **traits: Any) -> Language:
    entries = _entries(lexicon)
    words: dict[str, Meaning] = {unit: (("units", token),) for unit, token in unit_names().items()}
    words.update({name[0]: meaning for section, meaning, name in entries if section != "openings" and len(name) == 1})
    for verb in verbs.split():
        base = verb.strip("!")
        words.setdefault(_ing(verb), words.get(base, (("words", base),)))
    phrases = [(name, meaning) for section, meaning, name in entries if section != "openings" and len(name) > 1]
    openings = [(name, meaning) for section, meaning, name in entries if section == "openings"]
    signs = frozenset(name[0] for section, _, name in entries if section == "grammar" and len(name) == 1)
    return Language(name, words, _phrase_table(phrases), _phrase_table(openings), signs=signs, **traits)


def unit_names() -> dict[str, str]:
    """Returns the canonical name of a unit by every one of its names."""
    lines = (line.partition(":") for line in _ALL["units"].split("\n"))
    return {name: unit for unit, _, names in lines for name in [unit, *names.split()]}


_TABLES = {name: read_tables(name) for name in TABLES}
_ENGLISH, _ALL = _TABLES["english"], _TABLES["all_languages"]
UNIT_NAMES = unit_names()
LANGUAGES = (
    _language("en", _ENGLISH["lexicon"], _ENGLISH["verbs"], comma_groups=True, plurals=True, bent="s"),
    _language("de", _TABLES["german"]["lexicon"], endings=("en", "e"), verb_last=True, bent="en"),
    _language("fr", _TABLES["french"]["lexicon"]),
    _language("es", _TABLES["spanish"]["lexicon"], endings=("ar", "er", "ir", "o"), bent="ro"),
)
NO_LANGUAGE = Language("", {unit: (("units", token),) for unit, token in UNIT_NAMES.items()}, {}, {})
HOMOGRAPHS = frozenset(_ENGLISH["homographs"].split())
SINGLING = frozenset(_ENGLISH["one of many"].split())
NOT_PLURAL = frozenset(_ENGLISH["plural only"].split())
ON_TEXT = frozenset(_ALL["wording"].split())
ON_WORDS = frozenset(_ALL["about words"].split())
ON_WRITING, ON_FORM = frozenset(_ALL["writing"].split()), frozenset(_ALL["written as"].split())
EVERY_WORD = "".join(text for tables in _TABLES.values() for text in tables.values())


def is_about_words(lowered: list[str]) -> bool:
    """Returns whether the words ask about a word itself: its meaning, its spelling, its synonyms."""
    return not ON_WORDS.isdisjoint(lowered) or not (ON_WRITING.isdisjoint(lowered) or ON_FORM.isdisjoint(lowered))


def language_of(lowered: list[str]) -> Language:
    """Returns the language that most of the words are signs of, the earlier of two; bare keywords count as English."""
    present = frozenset(lowered)
    votes = [len(language.signs & present) for language in LANGUAGES]
    most = max(votes)
    if most:
        return LANGUAGES[votes.index(most)]
    return LANGUAGES[0] if "".join(lowered).isascii() else NO_LANGUAGE


# --- numbers: each gets one spelling, apart from its unit ---

_CURRENCIES = "$€£¥"
_BEHIND = "abcdefghijklmnopqrstuvwxyzµ°%/ºª"
_ORDINALS = frozenset(("st", "nd", "rd", "th", "er", "e", "ème", "º", "ª"))
_HALVES_OF_DAYS = frozenset(("am", "pm"))
_WITHIN = frozenset(".,:/-")


def figure(lump: str, core: str, low: str, comma_groups: bool) -> Meaning:
    """Returns what a lump with digits means: a number and its unit, or a name to the letter.

    Invariant: 3.1 is not 3.10, -5 is not 5, 10:30 is not 10.30, and a lump with digits that is no number is a name.
    """
    if core[-1].isdigit() and lump.rstrip(".,;:?)")[-1] in "!\"'":  # a factorial, an inch, a foot
        return (("names", lump),)
    bare = low.strip(_CURRENCIES)
    digits = bare.rstrip(_BEHIND)
    unit = bare[len(digits) :]
    number = _number(digits, comma_groups)
    if number is None or not (unit in UNIT_NAMES or unit in _ORDINALS or unit in _HALVES_OF_DAYS or unit in ("", "k")):
        return (("names", core),)
    tokens: list[Token] = [("units", char) for char in low if char in _CURRENCIES]
    if unit in UNIT_NAMES:
        tokens.append(("units", UNIT_NAMES[unit]))
    elif unit in _HALVES_OF_DAYS:
        tokens.append(("dates", unit))
    else:
        number += unit
    return (("numbers", number), *tokens)


def _number(text: str, comma_groups: bool) -> str | None:
    """Returns the number with ASCII digits, without grouping commas, or None; dates, times and versions keep their spelling."""
    sign = "-" if text[:1] in ("-", "−") else ""  # noqa: RUF001 - the minus sign
    digits = text[len(sign) :]
    if comma_groups and "," in digits and _is_grouped(digits):
        digits = digits.replace(",", "")
    if digits.isdecimal():
        return sign + (str(int(digits)) if len(digits) < 20 and digits[0] != "0" else digits)
    if digits and all(char.isdecimal() or char in _WITHIN for char in digits):
        return sign + digits
    return None


def _is_grouped(digits: str) -> bool:
    head, *groups = digits.split(",")
    return 0 < len(head) < 4 and all(len(group) == 3 for group in groups)


# --- tokens: white space parts a text, tables say what its words mean, the rest stands for itself ---

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
_PAUSES = ",:、)—–\uff0c\uff1a\uff09"  # noqa: RUF001 - the dash is meant
_PLAIN = frozenset(("words", "opposites"))
_STOP: Token = ("break", STOP)
_PAUSE: Token = ("break", PAUSE)
_VERB_LAST: Token = ("break", VERB)


def read(text: str) -> tuple[str, list[Token]]:
    """Returns the text's language, and its tokens in their order.

    Quotations are taken out first and compared to the letter; so are addresses, paths, identifiers and versions, whatever
    follows a colon or a line's end, and all of a question about wording that quotes nothing (`translate I am`). The words of a
    question about words (`define buy`) are compared as they are written, too.
    """
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
    """Returns the singular of an English noun, where the spelling shows it."""
    if len(word) < 4 or word[-2] in "suix" or word in NOT_PLURAL:
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-2] if word.endswith(("ches", "shes", "xes", "sses", "zes")) else word[:-1]


# --- the order of words, reduced to what rephrasing leaves alone ---


def _is_pair(label: str, run: list[str]) -> bool:
    """Returns whether the phrase is `between X and Y` with one word each, so that their order means nothing."""
    return label == "between" and len(run) == 2


def forms_of(tokens: Iterable[Token]) -> list[str]:
    """Returns every sentence in its form, one after the other.

    A sentence is its question words and tenses, a base, and phrases that begin with a preposition. Such a phrase may stand in
    front as well as at the end (`in Python, how do I sort a list`); `the X of Y` is `the Y X`, as is `Y's X`; `between X and Y`
    has no order; everything else keeps its own. Invariant: two arguments that change places change the form.
    """
    sentences = _Sentences()
    turns, placed = sentences.turns, sentences.word
    for kind, token in tokens:
        if kind == "words":
            placed(token)
        elif kind == "label":
            sentences.label(token)
        elif kind == "article":
            sentences.article()
        elif kind == "genitive":
            sentences.genitive()
        elif kind == "break":
            sentences.pause(token)
            turns = sentences.turns
        elif kind == "asks":
            turns.append(token)
            sentences.back()
        elif kind == "tense":
            turns.append(token)
        else:
            placed(token)
    return sentences.forms()


class _Sentences:
    """Brings sentence after sentence into its form."""

    __slots__ = ("_at", "_base", "_forms", "_in_front", "_phrases", "_run", "turns")

    def __init__(self) -> None:
        self._forms: list[list[str]] = []
        self._start()

    def _start(self) -> None:
        self.turns: list[str] = []
        """The question words and tenses of the sentence, whose places mean nothing."""
        self._base: list[str] = []
        self._phrases: list[tuple[str, list[str]]] = []
        self._in_front = 0
        """The number of phrases before the base."""
        self.back()

    def back(self) -> None:
        """Ends the phrase: the next words belong to the base."""
        self._run = self._base
        self._at: int | None = None
        """The place of the next word in the run, where a genitive puts it before its head; None: at the end."""

    def word(self, token: str) -> None:
        """Adds a word whose place matters."""
        if self._at is None:
            self._run.append(token)
        else:
            self._run.insert(self._at, token)
            self._at += 1

    def label(self, preposition: str) -> None:
        """Begins a phrase."""
        self._in_front += not self._base
        self._run = []
        self._at = None
        self._phrases.append((preposition, self._run))

    def article(self) -> None:
        """Ends a phrase that has its noun, because an article begins another noun, which belongs to the base."""
        if self._run and self._at is None and self._run is not self._base:
            self.back()

    def genitive(self) -> None:
        """Puts the words that follow an `of` before the word that they belong to."""
        if not self._run:
            self.label("of")
        elif self._at is None:
            self._at = len(self._run) - 1
        elif self._at:
            self._at -= 1

    def pause(self, mark: str) -> None:
        """Ends a phrase at a comma and the sentence at a full stop; a verb that comes last goes to the front."""
        if mark == VERB:
            self._verb_first()
        if mark == PAUSE:
            self.back()
        else:
            self._end()

    def _verb_first(self) -> None:
        if self._at is None and self._run:
            self._base.insert(0, self._run.pop())

    def _end(self) -> None:
        if self._base or self._phrases or (self.turns and not self._forms):
            self._forms.append([self._form(), *sorted(self.turns)])
        elif self.turns:  # `I want to leave. How do I do that?` is one question
            self._forms[-1][1:] = sorted(self._forms[-1][1:] + self.turns)
        self._start()

    def forms(self) -> list[str]:
        """Ends the last sentence, and returns the forms of all."""
        self._end()
        return ["\1".join(form) for form in self._forms]

    def _form(self) -> str:
        phrases = self._phrases[self._in_front :] + self._phrases[: self._in_front]
        parts = ["\1".join(self._base)]
        parts += ["\1".join([label, *(sorted(run) if _is_pair(label, run) else run)]) for label, run in phrases]
        return "\2".join(parts)


# --- the facts of a question, one digest for each kind ---

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
    """Holds what the guards keep of a question: its edition and 8 bytes for each kind of fact.

    The prompt cannot be read from the facts; a guess can be checked against them, as it can against the vector that lies beside
    them.
    """

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
    """Returns the first guard that finds the two different, or None; `edition` where they cannot be compared."""
    if a.raw == b.raw:
        return None
    if len(a.raw) != len(b.raw):
        return "edition"
    differing = int.from_bytes(a.raw) ^ int.from_bytes(b.raw)
    return KINDS[(8 * len(a.raw) - differing.bit_length()) // (8 * _WIDTH)]


def _digest(tokens: list[str]) -> bytes:
    return sha256("\0".join(tokens).encode("utf-8", "surrogatepass")).digest()[:_WIDTH]
