"""Documents that know the line of every value, how a problem is worded, and how one YAML file becomes a document.

First problems and documents, then the reading. It must not know what the values mean. Only plain YAML is accepted: no tags,
no duplicate keys, text keys only; aliases and merge keys work, but the nodes that they expand to are counted. Invariant:
any file yields a document or a problem, never another exception.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import yaml

# --- problems ---


Path = tuple[str | int, ...]

_BARE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN_CHARS = 60


class Problem(NamedTuple):
    """One problem, a printable line: `file:line: path: message`; `line` is 0 when it concerns the file as a whole.

    Invariant: a value that came from the environment is never shown, only the expression that fetched it, because it may be
    a secret in the wrong place.
    """

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return printable(f"{where}: {self.message}")


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML file as plain data, with the line of every value and the list that its problems go to."""

    file: str
    """The path as the user named it."""
    data: Any = field(repr=False)
    lines: Mapping[Path, int]
    problems: list[Problem]
    origins: Mapping[Path, str] = field(default_factory=dict)
    """The expression of each value that came from the environment."""
    broken: frozenset[Path] = frozenset()
    """The paths of values that could not be substituted: that is noted already, so they get no second problem."""

    def at(self, path: Path) -> Any:
        """Returns the value at the path; None when there is none."""
        value = self.data
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def line_of(self, path: Path) -> int:
        """Returns the line of this path, else of the nearest enclosing value."""
        for end in range(len(path), -1, -1):
            line = self.lines.get(path[:end])
            if line is not None:
                return line
        return 0

    def complain(self, path: Path, message: str) -> None:
        """Notes one problem, unless the value is already known to be broken."""
        if path not in self.broken:
            text = f"{path_text(path)}: {message}" if path else message
            self.problems.append(Problem(self.file, self.line_of(path), text))

    def no_such(self, path: Path, what: str, name: str, known: Iterable[str]) -> None:
        """Notes that nothing has this name."""
        # A value from the environment gets no suggestion: a close match would give it away.
        suggestion = "" if self.origin_of(path) else did_you_mean(name, known)
        self.complain(path, f"no {what} {self.show(path, name)}{suggestion}")

    def show(self, path: Path, value: object) -> str:
        """Returns the value as a problem may show it."""
        origin = self.origin_of(path)
        return f"the value of {origin}" if origin else quoted(value)

    def origin_of(self, path: Path) -> str | None:
        """Returns the expression that fetched the value, or the short form that it was a part of; None: it is literal."""
        return self.origins.get(path) or self.origins.get(path[:-1])


def path_text(path: Path) -> str:
    """Returns the path as text, such as `models."gpt-4.1".targets[0]`; names that are not plain words are quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _BARE_NAME.fullmatch(step) else quoted(step))
    return text


def quoted(value: object) -> str:
    """Returns a value in the words of YAML, cut where it gets long."""
    if value is None or isinstance(value, (bool, int, float, str)):
        text = json.dumps(value[:_SHOWN_CHARS] if isinstance(value, str) else value, ensure_ascii=False)
        return text if not isinstance(value, str) or len(value) <= _SHOWN_CHARS else f'{text[:-1]}…"'
    return kind_of(value)


def kind_of(value: object) -> str:
    """Returns the type of a value in words, for "expected ..., not ..."."""
    if isinstance(value, bool):
        return "true or false"
    names = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a mapping"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "nothing")


def printable(text: str) -> str:
    """Returns the text on one line, with everything escaped that a terminal could act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns `; did you mean "openai"?`, else the known names, ready to be appended to a message."""
    names = list(known)
    close = []
    if isinstance(name, str) and len(name) <= _SHOWN_CHARS:
        close = get_close_matches(name, names, n=1) or [one for one in names if one.startswith(f"{name}_")]
    if len(close) == 1:
        return f"; did you mean {quoted(close[0])}?"
    return f"; there are: {', '.join(names[:20])}" if names else ""


MAX_FILE_BYTES = 1_000_000
MAX_NODES = 50_000
MAX_DEPTH = 30

# The C parser is twenty times faster; both are safe, they build no objects.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + "str", _TAG + "timestamp", _TAG + "value"}  # `2024-10-21` is a version here, not a date
_PLAIN_TAGS = {_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"}

_HINTS = (
    ("cannot start any token", "a tab or another character that YAML does not allow here; indent with spaces"),
    ("while scanning an alias", 'a name that begins with * must be quoted: "*"'),
    ("could not find expected ':'", "expected `name: value`; is a colon or a quote missing?"),
    ("mapping values are not allowed", "a colon where no `name:` can begin; check the indentation, or quote the value"),
    ("expected a single document", "only one document per file: remove the second `---`"),
)


class _Unusable(Exception):
    """The file as a whole cannot be used."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read_document(path: FilePath, problems: list[Problem]) -> Document | None:
    """Returns the file's content; None, with a problem added, when it cannot be used at all."""
    text = read_text(path, problems)
    return None if text is None else parse_document(path, text, problems)


def read_text(path: FilePath, problems: list[Problem]) -> str | None:
    """Returns the file's text; None, with a problem added, when it has none that could be a document."""
    try:
        return _read_text(path)
    except _Unusable as fault:
        problems.append(Problem(str(path), fault.line, fault.message))
        return None


def parse_document(path: FilePath, text: str, problems: list[Problem]) -> Document | None:
    """Returns what this text of a file says; None, with a problem added, when it cannot be used at all."""
    try:
        root = _compose(text)
        builder = _Builder(str(path), problems)
        data = builder.build(root, (), 0) if root is not None else {}
    except _Unusable as fault:
        problems.append(Problem(str(path), fault.line, fault.message))
        return None
    return Document(str(path), data, builder.lines, problems)


def _read_text(path: FilePath) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise _Unusable("is a directory, not a file")
        if not stat.S_ISREG(mode):
            raise _Unusable("is not a regular file")  # a pipe would block the start
        with path.open("rb") as file:
            # One byte more shows that a file is too large, without reading all of it.
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _Unusable("there is no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _Unusable(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise _Unusable(f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        # Some editors begin a file with a byte order mark, which is no part of its text.
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Unusable("is not valid UTF-8", raw.count(b"\n", 0, error.start) + 1) from None
    if not text.strip():
        raise _Unusable("is empty")
    return text


def _compose(text: str) -> yaml.Node | None:
    """Returns the file's node tree; the depth is checked on the event stream first, because composing recurses."""
    try:
        events = yaml.parse(text, Loader=_Loader)
        depth = 0
        for event in events:
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_DEPTH:
                raise _Unusable(f"is nested deeper than {MAX_DEPTH} levels", _line_of(event.start_mark))
        root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _Unusable(_in_words(error), _line_of(error.problem_mark)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Unusable("holds a control character that YAML does not allow", line) from None
    except yaml.YAMLError:
        raise _Unusable("is not valid YAML") from None
    return root


def _in_words(error: yaml.MarkedYAMLError) -> str:
    parser_words = f"{error.context or ''} {error.problem or ''}"
    hint = next((hint for words, hint in _HINTS if words in parser_words), None)
    return f"is not valid YAML: {hint or parser_words.strip()}"


def _line_of(mark: Any) -> int:
    """Returns the line of a mark; its type is Any because the two parsers' mark classes are mixed up in the stubs."""
    return mark.line + 1 if mark is not None else 0


class _Builder:
    """Turns nodes into dicts, lists and scalars, counting what aliases expand to."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.lines: dict[Path, int] = {}
        self._file = file
        self._problems = problems
        self._nodes = 0
        self._scalars = yaml.constructor.SafeConstructor()

    def build(self, node: yaml.Node, path: Path, depth: int) -> Any:
        """Returns the node's value; raises _Unusable when the document exceeds its caps."""
        line = _line_of(node.start_mark)
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise _Unusable("grows too large; do its aliases repeat each other?", line)
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node, line)

    def _scalar(self, node: yaml.Node, line: int) -> Any:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _TEXT_TAGS | _PLAIN_TAGS:
            self._complain(line, f"the tag {quoted(node.tag.removeprefix(_TAG))} is not allowed: only plain YAML is")
            return None
        if node.tag in _TEXT_TAGS:
            return node.value
        try:
            return self._scalars.construct_object(node)
        except (ValueError, KeyError):  # `!!int abc`, `!!bool maybe`, more digits than int() takes
            return node.value

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        built: dict[str, Any] = {}
        # merges last: a mapping's own pairs go before what it merges in
        for key_node, value_node in sorted(node.value, key=lambda pair: pair[0].tag == _TAG + "merge"):
            merged = key_node.tag == _TAG + "merge"
            if merged:
                self._merge(built, value_node, path, depth)
                continue
            line = _line_of(key_node.start_mark)
            if key_node.tag not in _TEXT_TAGS:
                shown = f" {quoted(key_node.value)}" if isinstance(key_node, yaml.ScalarNode) else ""
                self._complain(line, f"the name{shown} is not text: quote it")
                continue
            here = (*path, key_node.value)
            if key_node.value in built:
                self._complain(line, f"{quoted(key_node.value)} is here twice, first on line {self.lines[here]}")
                continue
            self.lines.setdefault(here, line)  # what a merge key brings in comes last and keeps the line of its own
            built[key_node.value] = self.build(value_node, here, depth + 1)
        return built

    def _merge(self, into: dict[str, Any], node: yaml.Node, path: Path, depth: int) -> None:
        """Handles `<<: *base`: adds the names that are not there yet; of several bases the first one wins."""
        for base in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(base, yaml.MappingNode):
                self._complain(_line_of(node.start_mark), "`<<` takes a mapping or a list of mappings")
                return
            for name, value in self.build(base, path, depth + 1).items():
                into.setdefault(name, value)

    def _complain(self, line: int, message: str) -> None:
        self._problems.append(Problem(self._file, line, message))


def is_file(path: str) -> bool:
    """Returns whether the path is an existing file."""
    try:
        return FilePath(path).is_file()
    except (OSError, ValueError):
        return False


def beside(document: Document, file: str) -> str:
    """Returns the path of a file that the document names relative to its own folder."""
    return str(FilePath(document.file).parent / file)
