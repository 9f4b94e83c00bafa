"""Reads the files under `errors/`: by kind of provider, the meaning of its error answers.

The built-in tables are such files too and ship with the gateway; each is read when a target first needs it. A user's file
goes before the built-in one of the same name, rule by rule: a built-in rule is dropped where the user's file has one of
its name. Invariant: every table ends with the rules of default.yaml, and has a bounded number of phrases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Annotated, ClassVar, Final, Literal, Never

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

from gateway.core.config.admission import KINDS
from gateway.core.config.fields import Flag, PositiveDuration, Section, problem_of, substitute
from gateway.core.config.schema import Entry, check
from gateway.core.config.source import Document, Problem, did_you_mean, parse_document, quoted, read_document, read_text
from gateway.core.error_tables import ErrorRule, ErrorTable, Phrase, Scope
from gateway.core.types import ErrorClass, Phase

# --- one rule of a file ---


_PHRASE_CHARS = 200
_CLASSES = ", ".join(quoted(str(one)).replace('"', "'") for one in ErrorClass)

_STATUS = re.compile(r"[1-5][0-9][0-9]")
_STATUSES = re.compile(r"([1-5])xx", re.IGNORECASE)
_TIME = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


def _texts(value: object) -> object:
    """Accepts numbers as texts, because providers write their codes either way."""
    return [str(item) if _is_number(item) else item for item in _as_list(value)]


def _as_list(value: object) -> list[object]:
    """Accepts a single item in place of a list."""
    return value if isinstance(value, list) else [value]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _phrases(value: object) -> tuple[Phrase, ...]:
    return tuple(map(_phrase, _as_list(value)))


def _phrase(text: object) -> Phrase:
    text = str(text) if _is_number(text) else text
    if not isinstance(text, str):
        raise problem_of("expected phrases, each a text; is one to be quoted?")
    if len(text) > _PHRASE_CHARS:
        raise problem_of(f"a phrase has at most {_PHRASE_CHARS} characters")
    if "#" in text and re.search(r"[0-9]", text):
        raise problem_of(
            f"{quoted(text)} has digits beside a #, which stands for any number: write # for them too, or for none"
        )
    return Phrase.of(text)


def _phrases_with_words(value: object) -> tuple[Phrase, ...]:
    phrases = _phrases(value)
    if not all(phrase.parts for phrase in phrases):
        raise problem_of("a phrase without words would be found in every error")
    return phrases


def _statuses(value: object) -> frozenset[int]:
    found: set[int] = set()
    for item in _as_list(value):
        text = str(item) if isinstance(item, (str, int)) else ""
        hundred = _STATUSES.fullmatch(text)
        if hundred is not None:
            found |= {*range(100 * int(hundred[1]), 100 * int(hundred[1]) + 100)}
        elif _STATUS.fullmatch(text) is not None:
            found.add(int(text))
        else:
            raise problem_of(f"{quoted(item)} is no HTTP status: write for example 429 or 5xx")
    return frozenset(found)


def _time_of_day(value: object) -> float:
    """Returns seconds after midnight; YAML reads some unquoted times as numbers."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise problem_of(f'{quoted(value)} is no time of day: write for example "08:00", in quotes; it is in UTC')
    return int(match[1]) * 3600.0 + int(match[2]) * 60.0


def _error_class(value: object) -> ErrorClass:
    try:
        return ErrorClass(str(value))
    except ValueError:
        raise PydanticKnownError("literal_error", {"expected": _CLASSES}) from None


def _headers(value: object) -> tuple[tuple[bytes, tuple[Phrase, ...]], ...]:
    if not isinstance(value, dict):
        raise problem_of("expected a mapping of header names to phrases, such as {policy-id: token}")
    return tuple((name.lower().encode(errors="replace"), _phrases(phrases)) for name, phrases in value.items())


Texts = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_texts), Field(min_length=1)]
Phrases = Annotated[tuple[Phrase, ...], BeforeValidator(_phrases_with_words), Field(min_length=1)]


class RuleEntry(Entry):
    """One rule; `class` is a keyword of Python, so unknown fields are found by hand."""

    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)
    stand_ins: ClassVar[Section] = {"class": "unknown"}

    phase: Annotated[
        list[Literal["nothing_sent", "sent", "answered", "streaming"]], BeforeValidator(_as_list), Field(min_length=1)
    ] = Field(default_factory=list)
    status: Annotated[frozenset[int], BeforeValidator(_statuses), Field(min_length=1)] = frozenset()
    code: Texts = Field(default_factory=list)
    type: Texts = Field(default_factory=list)
    body_status: Texts = Field(default_factory=list)
    finish_reason: Texts = Field(default_factory=list)
    says: Phrases = ()
    unless_says: Phrases = ()
    headers: Annotated[
        tuple[tuple[bytes, tuple[Phrase, ...]], ...], BeforeValidator(_headers), Field(min_length=1)
    ] = ()
    error_class: Annotated[ErrorClass, BeforeValidator(_error_class), Field(alias="class")]
    scope: Scope = "target"
    never_fits: Flag = False
    delay: PositiveDuration | None = None
    resets_daily_at: Annotated[float, BeforeValidator(_time_of_day)] | None = None


FIELDS: Final = tuple(field.alias or name for name, field in RuleEntry.model_fields.items())
CONDITIONS: Final = FIELDS[: FIELDS.index("class")]


DEFAULT: Final = "default"
NAMES: Final = (DEFAULT, *KINDS)
MAX_PHRASES = 300
"""Phrases in a file, at most, because every error may be searched for each of them."""
_OWN = "own "


class ErrorTables:
    """The error table of every kind of provider, compiled when it is first asked for.

    Keep it for as long as a config is loaded: the tables are what targets keep.
    """

    def __init__(
        self, own: Mapping[str, tuple[ErrorRule, ...]], documents: tuple[Document, ...], folder: FilePath
    ) -> None:
        self.documents = documents
        """The user's files, by kind."""
        self._own = own
        self._folder = folder
        self._built_in: dict[str, tuple[ErrorRule, ...]] = {}
        self._made: dict[str, ErrorTable] = {}

    def of(self, kind: str) -> ErrorTable:
        """Returns the table of this kind of provider (empty: of none in particular), which ends with the default rules."""
        kind = kind or "other"
        table = self._made.get(kind)
        if table is None:
            rules = (*self._rules(kind), *self._rules(DEFAULT))
            self._made[kind] = table = ErrorTable(rules, "" if kind == "other" else kind)
        return table

    def _rules(self, name: str) -> tuple[ErrorRule, ...]:
        own = self._own.get(name, ())
        replaced = {rule.name.removeprefix(_OWN) for rule in own}
        return (*own, *(rule for rule in self._read_built_in(name) if rule.name not in replaced))

    def _read_built_in(self, name: str) -> tuple[ErrorRule, ...]:
        """Reads a built-in file; raises RuntimeError where it is missing or bad, because then the installation is broken."""
        rules = self._built_in.get(name)
        if rules is None:
            rules = ()
            if name != "other":
                file, problems = self._folder / f"{name}.yaml", list[Problem]()
                text = read_text(file, problems)
                rules = _built_in_rules(file, text, name) if text is not None else _broken(problems)
            self._built_in[name] = rules
        return rules


@lru_cache(maxsize=2 * len(NAMES))
def _built_in_rules(file: FilePath, text: str, name: str) -> tuple[ErrorRule, ...]:
    """Returns the rules of a built-in file that says this, which it still does when the config is loaded again."""
    problems: list[Problem] = []
    document = parse_document(file, text, problems)
    rules = _read_rules(document, name, "") if document is not None else ()
    return _broken(problems) if problems else rules


def _broken(problems: list[Problem]) -> Never:
    raise RuntimeError(f"the built-in error table cannot be used: {problems[0]}")


def built_in_folder() -> FilePath:
    """Returns the folder of the built-in tables: beside the package in a checkout, inside it where it is installed."""
    package = FilePath(__file__).resolve().parents[2]
    installed = package / "_policies" / "errors"
    return installed if installed.is_dir() else package.parent / "policies" / "errors"


def read_error_tables(files: Iterable[FilePath], environ: Mapping[str, str], problems: list[Problem]) -> ErrorTables:
    """Returns the tables with the user's own files, those of `errors/` in the policy folder; notes their problems."""
    folder = built_in_folder()
    documents: dict[str, Document] = {}
    for file in files:
        if file.stem not in NAMES or file.suffix != ".yaml":
            known = [f"{name}.yaml" for name in NAMES]
            problems.append(Problem(str(file), 0, f"unknown error table{did_you_mean(file.name, known)}"))
        elif document := read_document(file, problems):
            documents[file.stem] = substitute(document, environ)
    own = {
        name: _read_rules(document, name, _OWN)
        for name, document in documents.items()
        if FilePath(document.file).resolve() != folder / f"{name}.yaml"
    }
    return ErrorTables(own, tuple(documents.values()), folder)


def _read_rules(document: Document, table: str, prefix: str) -> tuple[ErrorRule, ...]:
    """Returns the sound rules of a file, in its order."""
    if not isinstance(document.data, dict):
        document.complain(
            (), f"expected named rules such as `busy: {{status: 503, class: overloaded}}`, not {quoted(document.data)}"
        )
        return ()
    read = [(name, _read_rule(document, name)) for name in document.data]
    entries = [(name, entry) for name, entry in read if entry is not None]
    count = sum(len(entry.says) + len(entry.unless_says) for _, entry in entries)
    if count > MAX_PHRASES:
        document.complain(
            (), f"has {count} phrases, of which a file takes {MAX_PHRASES}: every one is looked for in every error"
        )
    return tuple(_rule(f"{prefix}{table}: {name}", entry, document, name) for name, entry in entries)


def _read_rule(document: Document, name: str) -> RuleEntry | None:
    entry = document.data[name]
    if not isinstance(entry, dict):
        document.complain((name,), f"expected a rule such as {{status: 503, class: overloaded}}, not {quoted(entry)}")
        return None
    for field in entry:
        if field not in FIELDS:
            document.complain((name, field), f"unknown field{did_you_mean(field, FIELDS)}")
    if not any(entry.get(field) is not None for field in CONDITIONS):
        document.complain(
            (name,), f"has no condition, so it would hold for every error; there are: {', '.join(CONDITIONS)}"
        )
    return check(RuleEntry, document, (name,))


def _rule(label: str, entry: RuleEntry, document: Document, name: str) -> ErrorRule:
    return ErrorRule(
        name=label,
        error_class=entry.error_class,
        scope=entry.scope,
        phases=frozenset(map(Phase, entry.phase)),
        statuses=entry.status,
        codes=_exact(entry.code),
        types=_exact(entry.type),
        states=_exact(entry.body_status),
        finishes=_exact(entry.finish_reason),
        says=entry.says,
        unless_says=entry.unless_says,
        headers=entry.headers,
        never_fits=entry.never_fits,
        delay_s=entry.delay,
        resets_daily_at_s=entry.resets_daily_at,
        where=f"{document.file}:{document.line_of((name,))}",
    )


def _exact(texts: list[str]) -> frozenset[str]:
    return frozenset(text.strip().lower() for text in texts)
