"""Looks up what words mean to the guards, language by language, in the tables of the `.txt` files beside this one.

A word of a table means one or several tokens, each of a kind; a word that means none is chaff, and may stand in one question
and be absent from the other. Words of no table mean themselves. Invariant: leaving a word out of a table costs hits, never
truth; putting one in has to be weighed, since two words with one token are taken for each other wherever they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

FOLDER = Path(__file__).parent
TABLES = ("english", "german", "french", "spanish", "all_languages")

Token: TypeAlias = tuple[str, str]
"""A kind, and what it says."""
Meaning: TypeAlias = tuple[Token, ...]
Phrases: TypeAlias = list[tuple[list[str], Meaning]]
"""The phrases that begin with one word: their other words, and what all mean together; longer ones first."""

PAUSE, STOP, VERB = ",", ".", "verb"
"""Breaks: of a clause, of a sentence, of a sentence that ends in its verb."""


def read_tables(name: str) -> dict[str, str]:
    """Returns the tables of one file by their names: what stands below `=== NAME`, without comments."""
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
            says = token if start is None else str(start + place)
            entries.append((section, _tokens(kind, says or name), name.split()))
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
