"""The values of a plan: texts with places for them, `{{ steps.extract.json.title | first(200) }}`, and conditions.

A place is a path and filters, and nothing else: no code runs. Values are put in once and never read as templates themselves,
so that no input can change what a request is. A place that is a whole text keeps the type of its value, unless it stands where
only text can (`TEXT_FIELDS`). In this order: problems of a source; places, and the values that they are filled with;
how they are read from a plan's source; conditions in JMESPath, and the judge of them; the division of a long text;
and the work of all that, which is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, NamedTuple

import orjson

# --- problems of a source, with the path of the value, so that a reader of files can add its line ---

Path = tuple[str | int, ...]


class PlanProblem(NamedTuple):
    """One thing that is wrong."""

    path: Path
    """Where, from the top of the source."""
    message: str
    given: str = ""
    """The name that is not known; empty: it is another kind of problem."""
    known: Sequence[str] = ()
    """The names that could have been meant."""


# --- places, and the values that they are filled with ---

FILTERS: Final = ("first", "split", "json", "join")
ROOTS: Final = ("input", "steps", "item")
TEXT_FIELDS: Final = frozenset(("content", "text", "instructions"))
"""Fields of requests whose value is a text, whatever is put into it."""
BETWEEN: Final = "\n\n"
"""The text that `join` puts between texts where nothing else is given."""
MOST_TEXT_CHARS: Final = 20_000_000
"""The longest text with its values: as large as a request may be by default."""


class ValueMissing(Exception):
    """A value cannot be put in: it is not there, or its filter cannot use it. The message names the path, never the value."""


class Scope(NamedTuple):
    """What paths lead into."""

    input: Any
    steps: Mapping[str, Mapping[str, Any]]
    """The values of each step that has ended; no entry: it was left out, or has failed and that was accepted."""
    item: Any = None
    has_item: bool = False


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a place."""

    name: str
    number: int = 0
    text: str = BETWEEN


@dataclass(frozen=True, slots=True)
class Place:
    """A path, or a text that stands for itself, and what is done to it."""

    path: tuple[str, ...]
    literal: str
    """The value of a place that has no path."""
    filters: tuple[Filter, ...]
    at: Path = field(default=(), compare=False)
    """Where it stands in its source."""

    @property
    def step(self) -> str | None:
        """Returns the name of the step that it refers to; None: to none."""
        return self.path[1] if len(self.path) > 1 and self.path[0] == "steps" else None

    @property
    def is_of_item(self) -> bool:
        """Returns whether it is another value for each item."""
        return self.path[:1] == ("item",)

    def value(self, scope: Scope, filling: StepFilling) -> Any:
        value = _look_up(self.path, scope) if self.path else self.literal
        for one in self.filters:
            value = _APPLIED[one.name](value, one, ".".join(self.path), filling)
        return value


class StepFilling:
    """What the requests of one step are filled with: a place that says nothing of an item has its value made once.

    To be used with scopes that differ in nothing but their item.
    """

    def __init__(self, count: Count, work: Work | None = None) -> None:
        self.work = Work() if work is None else work
        self.count = self.work.counting(count)
        self.sizes: dict[int, int] = {}
        """The sizes of values that are kept here, by their identity."""
        self.verdicts: dict[object, bool | str] = {}
        """What conditions that say nothing of an item have come to, or why they could not be judged."""
        self._judge: ConditionJudge | None = None
        self._values: dict[Place, Any] = {}
        self._texts: dict[Place, str] = {}
        self._missing: dict[Place, str] = {}

    @property
    def judge(self) -> ConditionJudge:
        """Returns what evaluates the conditions of the step, which needs the package for them."""
        if self._judge is None:
            self._judge = ConditionJudge(self.work)
        return self._judge

    def value(self, place: Place, scope: Scope) -> Any:
        """Returns the value of a place. Raises ValueMissing, TooMuchWork."""
        if place.is_of_item:
            return place.value(scope, self)
        if place in self._missing:
            raise ValueMissing(self._missing[place])
        if place not in self._values:
            try:
                value = place.value(scope, self)
            except ValueMissing as error:
                self._missing[place] = str(error)
                raise
            self._values[place] = value
            if isinstance(value, dict | list):
                self.sizes[id(value)] = size_of(value)
        return self._values[place]

    def text(self, place: Place, scope: Scope) -> str:
        """Returns the value of a place as it is put into a text. Raises ValueMissing, TooMuchWork."""
        if place.is_of_item:
            return _shown(as_text(self.value(place, scope)), self.work)
        if place not in self._texts:
            self._texts[place] = _shown(as_text(self.value(place, scope)), self.work)
        return self._texts[place]


@dataclass(frozen=True, slots=True)
class FilledText:
    """A text with places."""

    parts: tuple[str | Place, ...]
    is_text: bool
    """The template is a text in any case; False: a lone place keeps its value's type."""

    def value(self, scope: Scope, filling: StepFilling) -> Any:
        """Returns the text, or the value of a lone place. Raises ValueMissing, TooMuchWork."""
        if not self.is_text and len(self.parts) == 1 and isinstance(self.parts[0], Place):
            return filling.value(self.parts[0], scope)
        parts = [part if isinstance(part, str) else filling.text(part, scope) for part in self.parts]
        chars = sum(map(len, parts))
        if chars > MOST_TEXT_CHARS:
            raise ValueMissing(f"a text with its values has more than {MOST_TEXT_CHARS} characters")
        filling.work.take(chars)
        return "".join(parts)


Template = Any
"""Plain data in which texts with places are `FilledText`."""


def as_text(value: object) -> str:
    """Returns a value as it is put into a text: texts as they are, nothing as nothing, all else as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else as_json(value)


def as_json(value: object) -> str:
    """Returns a value as JSON. Raises ValueMissing for what is nested too deep."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise ValueMissing("a value is nested too deep") from None


def places_of(template: Template) -> Iterator[Place]:
    if isinstance(template, dict):
        for value in template.values():
            yield from places_of(value)
    elif isinstance(template, list):
        for value in template:
            yield from places_of(value)
    elif isinstance(template, FilledText):
        yield from (part for part in template.parts if isinstance(part, Place))
    elif isinstance(template, Place):
        yield template


def fill(template: Template, scope: Scope, filling: StepFilling) -> Any:
    """Returns the template with its values. Raises ValueMissing, TooMuchWork."""
    if isinstance(template, dict):
        return {name: fill(value, scope, filling) for name, value in template.items()}
    if isinstance(template, list):
        return [fill(value, scope, filling) for value in template]
    if isinstance(template, FilledText):
        return template.value(scope, filling)
    return filling.value(template, scope) if isinstance(template, Place) else template


def size_of(value: object, known: Mapping[int, int] | None = None) -> int:
    """Returns about how many characters plain data has as JSON; `known` has the sizes of some values, by their identity."""
    if isinstance(value, str):
        return len(value) + 2
    if known is not None and id(value) in known:
        return known[id(value)]
    if isinstance(value, dict):
        return sum(len(name) + 4 + size_of(one, known) for name, one in value.items()) + 2
    return sum(size_of(one, known) for one in value) + len(value) + 2 if isinstance(value, list) else 8


def _look_up(path: tuple[str, ...], scope: Scope) -> Any:
    """Follows a path; through a step that has no result, all is nothing."""
    if path[0] == "input":
        value, rest = scope.input, path[1:]
    elif path[0] == "item":
        if not scope.has_item:
            raise ValueMissing("there is no `item` outside of for_each")
        value, rest = scope.item, path[1:]
    elif path[1] not in scope.steps:
        return None
    else:
        value, rest = scope.steps[path[1]], path[2:]
    for at, name in enumerate(rest, len(path) - len(rest)):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and len(name) < 10 and int(name) < len(value):
            value = value[int(name)]
        else:
            raise ValueMissing(f"{'.'.join(path[: at + 1])} is not there")
    return value


def _shown(text: str, work: Work) -> str:
    """Returns a text, and counts that it has been made, or read."""
    work.take(len(text))
    return text


def _first(value: Any, one: Filter, where: str, filling: StepFilling) -> Any:
    if value is None:
        return None
    if not isinstance(value, str | list):
        raise ValueMissing(f"{where} is neither a text nor a list, of which `first` takes a part")
    filling.work.take(min(one.number, len(value)))
    return value[: one.number]


def _split(value: Any, one: Filter, where: str, filling: StepFilling) -> Any:
    if value is None:
        return []
    if not isinstance(value, str):
        raise ValueMissing(f"{where} is no text that `split` could divide")
    return split_text(value, one.number, filling.count)


def _join(value: Any, one: Filter, where: str, filling: StepFilling) -> Any:
    if value is None:
        return ""
    if not isinstance(value, list):
        raise ValueMissing(f"{where} is no list that `join` could put together")
    filling.work.take_values(len(value))
    return one.text.join([_shown(as_text(item), filling.work) for item in value if item is not None])


def _json(value: Any, _one: Filter, _where: str, filling: StepFilling) -> Any:
    return _shown(as_json(value), filling.work)


_APPLIED: Final[Mapping[str, Callable[[Any, Filter, str, StepFilling], Any]]] = {
    "first": _first, "split": _split, "join": _join, "json": _json,
}  # fmt: skip


# --- templates and places, read from the texts of a source ---

_PLACE: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_FILTER: Final = re.compile(r"([A-Za-z_]\w*)(?:\((.*)\))?", re.DOTALL)
_MOST_NUMBER: Final = 100_000_000


def read_template(source: Any, path: Path, problems: list[PlanProblem]) -> Template:
    """Reads all texts of plain data."""
    if isinstance(source, dict):
        return {name: read_template(value, (*path, name), problems) for name, value in source.items()}
    if isinstance(source, list):
        return [read_template(value, (*path, index), problems) for index, value in enumerate(source)]
    if not isinstance(source, str) or "{{" not in source:
        return source
    parts: list[str | Place] = []
    end = 0
    for found in _PLACE.finditer(source):
        if found.start() > end:
            parts.append(source[end : found.start()])
        place = read_place(found[1], path, problems)
        parts.append("" if place is None else place)
        end = found.end()
    if "{{" in source[end:]:
        problems.append(PlanProblem(path, 'a `{{` has no `}}`; write {{ "{{" }} for the characters'))
    if end < len(source):
        parts.append(source[end:])
    return FilledText(tuple(parts), is_text=bool(path) and path[-1] in TEXT_FIELDS)


def read_place(source: str, path: Path, problems: list[PlanProblem]) -> Place | None:
    """Reads `PATH | FILTER | …`, as it stands between braces; None, with a problem, where it is none."""
    first, *rest = (part.strip() for part in _bars(source))
    filters = [one for one in (_read_filter(part, path, problems) for part in rest) if one is not None]
    if first.startswith('"'):
        try:
            return Place((), str(orjson.loads(first)), tuple(filters), path)
        except orjson.JSONDecodeError:
            first = ""
    if not _PATH.fullmatch(first):
        problems.append(
            PlanProblem(
                path, f"`{source.strip()[:60]}` is no value: write a path such as input.document, then filters behind |"
            )
        )
        return None
    steps = tuple(first.split("."))
    if steps[0] not in ROOTS:
        problems.append(PlanProblem(path, f"unknown value {steps[0]}", steps[0], ROOTS))
        return None
    if steps == ("steps",):
        problems.append(PlanProblem(path, "`steps` is no value: name one, such as steps.NAME.text"))
        return None
    return Place(steps, "", tuple(filters), path)


def _bars(source: str) -> list[str]:
    """Divides at bars, but not at those in quotes."""
    parts, is_quoted, begin = [], False, 0
    for at, char in enumerate(source):
        if char == '"' and (at == 0 or source[at - 1] != "\\"):
            is_quoted = not is_quoted
        elif char == "|" and not is_quoted:
            parts.append(source[begin:at])
            begin = at + 1
    return [*parts, source[begin:]]


def _read_filter(source: str, path: Path, problems: list[PlanProblem]) -> Filter | None:
    found = _FILTER.fullmatch(source)
    name, arguments = (source, None) if found is None else (found[1], found[2])
    if name not in FILTERS:
        problems.append(PlanProblem(path, f"unknown filter `{name[:60]}`", name, FILTERS))
        return None
    if name in ("first", "split"):
        if (
            arguments is None
            or not re.fullmatch(r"\s*[0-9]{1,9}\s*", arguments)
            or not 0 < int(arguments) <= _MOST_NUMBER
        ):
            problems.append(PlanProblem(path, f"`{name}` takes a number above 0, such as {name}(2000)"))
            return None
        return Filter(name, int(arguments))
    if name == "join" and arguments is not None:
        try:
            between = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            between = None
        if not isinstance(between, str):
            problems.append(PlanProblem(path, '`join` takes nothing, or a text in quotes, such as join(", ")'))
            return None
        return Filter(name, text=between)
    if arguments is not None:
        problems.append(PlanProblem(path, f"`{name}` takes nothing: leave the parentheses out"))
        return None
    return Filter(name)


# --- the conditions of branches, in JMESPath: an expression over `input`, `steps` and `item`, which runs no code ---

NEEDS_EXTRA: Final = "needs packages that are not installed: pip install '.[pipelines]'"
"""The problem of a condition where the package is absent: it is an extra, imported when the first condition is read."""
MOST_CHARS: Final = 2_000
_RELATIVE_BEHIND_FIRST: Final = frozenset(
    ("subexpression", "index_expression", "projection", "value_projection", "filter_projection", "pipe")
)
"""Nodes of which only the first child sees all values; the others see what the first came to."""
_OF_ALL: Final = frozenset(("current", "value_projection"))
"""Nodes that may see all values where they stand first; where else they stand, they are taken to."""
_UNFIT: Final = (TypeError, ValueError, ArithmeticError, RecursionError)
"""The exceptions that the package lets through where values do not fit, such as a text that is compared with a number."""


class ConditionFailed(Exception):
    """A condition cannot be judged on these values, such as a function that wants a number."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition, read."""

    source: str
    steps: Sequence[tuple[str, ...]]
    """The parts of steps that it refers to: paths such as ("steps", "language", "text")."""
    has_item: bool
    has_all: bool
    """It may look at all values together, such as by `@`."""
    at: Path = field(compare=False)
    """Where it stands in its source."""
    parsed: Any = field(repr=False, compare=False)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(path[1] for path in self.steps)

    def holds(self, scope: Scope, filling: StepFilling) -> bool:
        """Returns whether it is true of these values; one that says nothing of an item is judged once for all of them.

        Raises ConditionFailed, TooMuchWork.
        """
        verdict = filling.verdicts.get(self)
        if verdict is None:
            verdict = self._judged(scope, filling.judge)
            if not self._may_see_item:
                filling.verdicts[self] = verdict
        if isinstance(verdict, str):
            raise ConditionFailed(f"`when` cannot be judged: {verdict}")
        return verdict

    def _judged(self, scope: Scope, judge: ConditionJudge) -> bool | str:
        """Returns whether it is true, or the name of what was raised instead. Raises TooMuchWork."""
        values = {"input": scope.input, "steps": scope.steps, "item": scope.item}
        try:
            found = judge.visit(self.parsed.parsed, values)
        except (import_module("jmespath.exceptions").JMESPathError, *_UNFIT) as error:
            return type(error).__name__
        return found is not None and found is not False and found not in ("", [], {})

    @property
    def _may_see_item(self) -> bool:
        """Returns whether it may come to something else for another item: by its name, or with all that there is."""
        return self.has_item or self.has_all


def read_condition(source: object, path: Path, problems: list[PlanProblem]) -> Condition | None:
    """Reads a condition; None, with a problem, where it is none."""
    if not isinstance(source, str) or not source.strip():
        problems.append(PlanProblem(path, "must be a JMESPath expression, such as steps.language.text == 'es'"))
        return None
    if len(source) > MOST_CHARS:
        problems.append(PlanProblem(path, f"is longer than {MOST_CHARS} characters"))
        return None
    try:
        jmespath: Any = import_module("jmespath")  # an extra: whoever has no conditions need not have it
    except ImportError:
        problems.append(PlanProblem(path, NEEDS_EXTRA))
        return None
    try:
        parsed = jmespath.compile(source)
    except import_module("jmespath.exceptions").JMESPathError as error:
        reason = " ".join(str(error).split())[:200]
        problems.append(PlanProblem(path, f"is not valid JMESPath: {reason}"))
        return None
    except RecursionError:
        problems.append(PlanProblem(path, "is nested too deep"))
        return None
    for name in _functions(parsed.parsed):
        known = tuple(import_module("jmespath.functions").Functions.FUNCTION_TABLE)
        if name not in known:
            problems.append(PlanProblem(path, f"unknown function {name}", name, known))
    steps: list[tuple[str, ...]] = []
    has_item = False
    for chain in _chains(parsed.parsed):
        if chain[0] not in ROOTS:
            problems.append(PlanProblem(path, f"unknown value {chain[0]}", chain[0], ROOTS))
        elif chain[0] == "item":
            has_item = True
        elif chain[0] == "steps" and len(chain) < 2:
            problems.append(PlanProblem(path, "`steps` alone is no value: name one, such as steps.NAME.text"))
        elif chain[0] == "steps":
            steps.append(chain)
    has_all = any(node["type"] in _OF_ALL for node in _nodes(parsed.parsed))
    return Condition(source, tuple(steps), has_item, has_all, path, parsed)


def _functions(node: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the functions that are called."""
    return (one["value"] for one in _nodes(node) if one["type"] == "function_expression")


def _nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields all parts of an expression."""
    yield node
    for child in node["children"]:
        if isinstance(child, dict):
            yield from _nodes(child)


def _chains(node: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields the fields, with those behind them, that are looked up in all values."""
    kind, children = node["type"], node["children"]
    if kind == "field":
        yield (node["value"],)
    elif kind == "subexpression" and children[0]["type"] == "field":
        names = [children[0]["value"]]
        for child in children[1:]:
            if child["type"] != "field":
                break
            names.append(child["value"])
        yield tuple(names)
    elif kind in _RELATIVE_BEHIND_FIRST:
        yield from _chains(children[0])
    elif kind not in ("expref", "literal", "current", "identity"):
        for child in children:
            yield from _chains(child)


# --- a judge of conditions, with its work counted: an expression may look at each value of an input, once an item ---

MOST_AT_ONCE: Final = 20_000_000
"""The work of one function, in characters that are copied: some tens of milliseconds."""
_A_VISIT: Final = 600
"""The work of a look at a part of an expression, and of a value that is written as JSON: one or two microseconds."""
_A_COMPARISON: Final = 64
"""The work of a comparison by which a list is sorted."""
_MADE_LISTS: Final = ("flatten", "slice")


class ConditionJudge:
    """Evaluates expressions at the expense of one step's work.

    The package walks an expression by a visitor, which counts here what it is about to do. What a function does at once keeps
    the interpreter's lock, in a thread too, so that it has a bound of its own. Source: the JMESPath specification; "true" is
    what is not empty, false or null there.
    """

    def __init__(self, work: Work) -> None:
        visitor: Any = import_module("jmespath.visitor")  # an extra: it is here, since a condition was read
        functions: Any = import_module("jmespath.functions")
        self._work = work
        self._functions = functions.Functions()
        tree = visitor.TreeInterpreter(visitor.Options(custom_functions=self))
        self._visit: Callable[..., Any] = tree.visit
        compare: Mapping[str, Callable[[Any, Any], Any]] = tree.COMPARATOR_FUNC
        tree.COMPARATOR_FUNC = {name: self._counted(one) for name, one in compare.items()}
        tree.visit = self.visit  # by which the tree goes on, too

    def visit(self, node: Mapping[str, Any], value: Any) -> Any:
        """Returns what a part of an expression comes to. Raises TooMuchWork, and what the package raises."""
        self._work.take(_A_VISIT)
        found = self._visit(node, value)
        if node["type"] in _MADE_LISTS and isinstance(found, list):
            self._work.take_values(len(found))
        return found

    def call_function(self, name: str, given: list[Any]) -> Any:
        """Returns what a function comes to, as the package calls it. Raises as `visit` does."""
        for value in given:
            if isinstance(value, str):
                self._take(len(value))
            elif isinstance(value, list | dict):
                values = len(value)
                self._work.take_values(values)
                if values * A_VALUE > MOST_AT_ONCE:
                    raise TooMuchWork(MOST_AT_ONCE)
        if name in ("sort", "sort_by") and given and isinstance(given[0], list):
            self._take(_A_COMPARISON * len(given[0]) * len(given[0]).bit_length())
        elif name in ("to_string", "join"):
            self._take(sum(self._deep(value) for value in given))
        elif name == "contains" and len(given) == 2 and isinstance(given[0], list):
            self._take(len(given[0]) * self._compared(given[1]))
        return self._functions.call_function(name, given)

    def _counted(self, compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def counted(one: Any, other: Any) -> Any:
            if type(one) is type(other):
                self._take(self._compared(one))
            return compare(one, other)

        return counted

    def _compared(self, value: Any) -> int:
        """Returns what it is to compare a value with one like it."""
        if isinstance(value, str):
            return len(value)
        return self._deep(value) if isinstance(value, list | dict) else 0

    def _deep(self, value: Any) -> int:
        """Returns what it is to go through all of a value, which it does, and counts. Raises TooMuchWork."""
        todo, size = [value], 0
        while todo:
            one = todo.pop()
            step = _A_VISIT + (len(one) if isinstance(one, str) else 0)
            size += step
            self._work.take(step)
            if isinstance(one, dict):
                todo.extend(one.values())
            elif isinstance(one, list):
                todo.extend(one)
            if size > MOST_AT_ONCE:
                raise TooMuchWork(MOST_AT_ONCE)
        return size

    def _take(self, chars: int) -> None:
        self._work.take(chars)
        if chars > MOST_AT_ONCE:
            raise TooMuchWork(MOST_AT_ONCE)


# --- a long text in pieces of so many tokens, which put together again are the text ---

Count = Callable[[str], float]
"""Returns the number of tokens of a text."""
_BEHIND: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\n\s*\n",  # paragraphs
        r"\n",  # lines
        r"(?<=[.!?…])\s+|(?<=[.!?…][\"'»”)\]])\s+|[。！？]+",  # sentences  # noqa: RUF001  # as they end in Chinese and Japanese
        r"\s+",  # words
    )
)
"""The ends of parts of a text, the largest first. Each is found in one pass, whatever the text is.

Cuts are where a reader would make them: behind a paragraph, else a line, a sentence, a word, and within a word only where
nothing else is left. Never within a code point: texts here have nothing smaller.
"""
_FULL: Final = 0.9
"""The part of a piece's tokens from which on no more is tried to be put into it."""
_TAIL: Final = 1.25
"""The rest of a text is tried as a whole, if it is no longer than this times what a piece is guessed to be."""


def split_text(text: str, tokens: int, count: Count) -> list[str]:
    """Returns the text in pieces of at most so many tokens; a code point that has more is a piece of its own.

    Tokens are counted of what a piece may be, a few times a piece, and not of all that could be cut off: a guess at its length
    comes from the piece before it, so that all that is counted is a few times the text, whatever the text is.
    """
    if not text:
        return []
    its_tokens = count(text)
    if its_tokens <= tokens or len(text) == 1:
        return [text]
    pieces: list[str] = []
    begin, guess = 0, max(1, int(len(text) * tokens / its_tokens))
    while begin < len(text):
        guess = _room(text, begin, tokens, guess, count)
        end = _end(text, begin, begin + guess, tokens, count)
        pieces.append(text[begin:end])
        begin = end
    return pieces


def _room(text: str, begin: int, tokens: int, guess: int, count: Count) -> int:
    """Returns how many characters from there fit, almost as many as can; 1 where none does."""
    rest = len(text) - begin
    size = rest if rest <= guess * _TAIL else guess
    fitting, beyond = 1, rest + 1
    while fitting < size < beyond:
        its_tokens = count(text[begin : begin + size])
        if its_tokens <= tokens:
            fitting = size
            if its_tokens >= tokens * _FULL or 1 + size * _TAIL > beyond:
                break
            size = min(size * 2, int(size * tokens / its_tokens) if its_tokens else size * 2, rest, beyond - 1)
        else:
            beyond = size
            size = max(fitting, size // 4, min(size * 9 // 10, int(size * tokens / its_tokens)))
    return fitting


def _end(text: str, begin: int, end: int, tokens: int, count: Count) -> int:
    """Returns where a piece ends that begins there and fits to this end: there, if what a cut leaves of it has more tokens."""
    if end == len(text):
        return end
    cut = _cut(text, begin, end)
    return cut if cut == end or count(text[begin:cut]) <= tokens else end


def _cut(text: str, begin: int, end: int) -> int:
    """Returns where a reader would cut, but not so early that most of the room is left, unless a word is as long as that."""
    early = begin + (end - begin) // 4
    last = begin
    for behind in _BEHIND:
        for found in behind.finditer(text, begin, end):
            last = max(last, found.end())
        if last > early:
            return last
    return last if last > begin else end


# --- the work that is done to values before they are asked for, which is bounded ---

MOST_WORK: Final = 1_000_000_000
"""The work of one step, in characters that are copied: some seconds of a processor. It is counted, not timed, so that it is
refused alike on any machine."""
MOST_IN_A_HURRY: Final = 2_000_000
"""The work of all steps that are decided upon at once: some ten milliseconds."""
_A_REQUEST: Final = 3_000
"""The work of a request with nothing in it."""
A_VALUE: Final = 16
"""The work of a value of a list, and of a character whose tokens are counted: about so many times a copied character."""


class TooMuchWork(Exception):
    """Putting together what a step asks for is more work than it may be. The message names the remedy."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"to put its requests together is more work than a step may be ({most} characters that are read or written); "
            "what filters and conditions make of `item` is made for each item: give fewer or shorter items, or have an "
            "earlier step, or the caller, prepare them"
        )


class TooLong(Exception):
    """It is more than may be done while others wait, and is to be done again where nobody does."""


class Hurry:
    """Counts the work of several steps that is done while others wait."""

    def __init__(self, most: int = MOST_IN_A_HURRY) -> None:
        self._left = most

    def take(self, chars: int) -> None:
        """Counts as `Work` does. Raises TooLong."""
        self._left -= chars
        if self._left < 0:
            raise TooLong


class Work:
    """Counts the work of one step. Where others wait, each may raise TooLong, too."""

    def __init__(self, most: int = MOST_WORK, hurry: Hurry | None = None) -> None:
        self._most = most
        self._left = most
        self._hurry = hurry

    def take(self, chars: int) -> None:
        """Counts characters that are copied or written. Raises TooMuchWork."""
        self._left -= chars
        if self._left < 0:
            raise TooMuchWork(self._most)
        if self._hurry is not None:
            self._hurry.take(chars)

    def take_values(self, values: int) -> None:
        """Counts values that are looked at one by one. Raises TooMuchWork."""
        self.take(values * A_VALUE)

    def take_request(self) -> None:
        """Counts that a request is put together, whatever is in it. Raises TooMuchWork."""
        self.take(_A_REQUEST)

    def counting(self, count: Count) -> Count:
        """Returns what counts tokens, and the work of that. It raises TooMuchWork."""

        def counted(text: str) -> float:
            self.take((len(text) + 1) * A_VALUE)
            return count(text)

        return counted
