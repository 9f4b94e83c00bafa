"""The input of a batch: cut into lines, each checked, its place noted; later read by chunks, as the index has their places.

In this order: the division into chunks; the index; one line and its problems; the lines of a file; what lines may ask for; and
the lines of one chunk. Whoever feeds the check looks at the clock between lines. Invariants: no more is held of the file than
one line; of all problems the first hundred are kept, and how many more there are.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import orjson

from gateway.core.openai.json_edit import MAX_DEPTH, outside_strings
from gateway.core.openai.usage import other_model_field
from gateway.core.snapshot import Key, PolicySnapshot
from gateway.products.batches.output import INDEX, INPUT, LineIdentity, plan_of, unanswered_line
from gateway.products.jobs.model import ChunkPlan, Job, LineResult, line_id
from gateway.products.jobs.request import bare_provider
from gateway.products.jobs.rules import BatchRules
from gateway.products.jobs.store import Blobs

# --- the division of a batch: workers claim chunks, small enough that batches and tenants take turns ---

CHUNKS = 64
"""The chunks of a batch of middling size, and not one more: the work of 2, 4 or 8 gateways comes out even."""
LEAST_LINES, MOST_LINES = 16, 256
"""The lines of a chunk: fewer would cost more than they save, and more would keep others waiting."""


def plan_chunks(total: int, rules: BatchRules) -> ChunkPlan:
    """Returns the division of `total` lines: clamp(total / 64, 16, 256), rounded up, in each chunk, the last one what is left.

    With a bound of lines at a time there is one chunk at a time, and it is as long as may be: its end waits for its last line.
    """
    if rules.most_at_once is not None:
        return ChunkPlan(total, max(MOST_LINES, rules.most_at_once), 1)
    return ChunkPlan(total, min(max(-(-total // CHUNKS), LEAST_LINES), MOST_LINES), rules.parallel_chunks)


def lines_of(plan: ChunkPlan, chunk: int) -> range:
    start = chunk * plan.lines_per_chunk
    return range(start, min(start + plan.lines_per_chunk, plan.total))


# --- the index: where the lines of an input are, and which model each is for ---

ENTRY_BYTES = 12
_LENGTH_BITS, _MODEL_BITS = 32, 24
MOST_BYTES = 1 << 40
"""The longest input file."""


class IndexEntry(NamedTuple):
    """One line of the input file: its bytes without the line end, and the number of its model in the batch's list.

    It takes twelve bytes in the index, so a chunk is read by itself.
    """

    offset: int
    length: int
    model: int


def pack_entry(entry: IndexEntry) -> bytes:
    number = (entry.offset << _LENGTH_BITS | entry.length) << _MODEL_BITS | entry.model
    return number.to_bytes(ENTRY_BYTES)


def read_index(data: bytes) -> list[IndexEntry]:
    """Returns the entries in a part of an index that begins and ends with whole ones."""
    numbers = [int.from_bytes(data[at : at + ENTRY_BYTES]) for at in range(0, len(data), ENTRY_BYTES)]
    return [
        IndexEntry(
            number >> _LENGTH_BITS + _MODEL_BITS,
            number >> _MODEL_BITS & (1 << _LENGTH_BITS) - 1,
            number & (1 << _MODEL_BITS) - 1,
        )
        for number in numbers
    ]


# --- one line, and the problem of one that is none: OpenAI's codes, and the remedy ---

MOST_ID_CHARS = 512
MOST_MODEL_CHARS = 256
MOST_VALUES = 1_000_000
"""The most values in one line, as in other bodies by default: reading more would keep everybody else waiting for seconds."""
MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
"""Byte order marks."""
_NAMES = re.compile(rb'"\s*:')
"""Every name in a text has one, and a string that looks like JSON may have more."""
_STREAM = "A batch has whole answers only; leave 'stream' out."


@dataclass(frozen=True, slots=True)
class LineProblem:
    """What is wrong with one line, as a batch's `errors` have it."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """Counted from 1; None: the whole file is meant."""


class CheckedLine(NamedTuple):
    """What is known of a line that is right."""

    id_digest: bytes
    """16 bytes that stand for its custom_id."""
    model: str


@dataclass(frozen=True, slots=True)
class LineRules:
    """What the lines of one batch have in common."""

    endpoint: str
    """Below the base URL, such as `/chat/completions`."""
    fault_of_model: Callable[[str], LineProblem | None]
    """Returns why the batch's key cannot use a model."""
    fault_of_fields: Callable[[dict[str, Any]], LineProblem | None] | None = None
    """Returns what else of a body is not for this key; None: it may send anything."""


def check_line(text: bytes, rules: LineRules) -> CheckedLine | LineProblem:
    """Returns what is known of a line (without its end), or the first thing that is wrong with it.

        {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-4o", …}}

    A line is read once when the batch is checked, and again when it runs; its body goes on byte by byte as it was uploaded.
    """
    value = _parsed(text)
    if isinstance(value, LineProblem):
        return value
    for name in ("custom_id", "method", "url", "body"):
        if name not in value:
            return _missing(name)
    custom_id, body = value["custom_id"], value["body"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MOST_ID_CHARS:
        return _wrong("custom_id", f"The 'custom_id' must be a string of 1 to {MOST_ID_CHARS} characters.")
    if value["method"] != "POST":
        return _wrong("method", "The 'method' must be \"POST\".")
    if not _is_url_of(rules.endpoint, value["url"]):
        return LineProblem(
            "url_mismatch", f"The 'url' must be the batch's endpoint, \"/v1{rules.endpoint}\", in every line.", "url"
        )
    if not isinstance(body, dict):
        return _wrong("body", "The 'body' must be a JSON object.")
    fault = _fault_of_body(body, rules)
    return fault or CheckedLine(id_digest(custom_id), body["model"])


def _fault_of_body(body: dict[str, Any], rules: LineRules) -> LineProblem | None:
    if "model" not in body:
        return _missing("body.model")
    model = body["model"]
    if not isinstance(model, str) or not 0 < len(model) <= MOST_MODEL_CHARS or not model.isprintable():
        return _wrong("body.model", f"The model must be a string of 1 to {MOST_MODEL_CHARS} printable characters.")
    stream = body.get("stream")
    if stream is not None and stream is not False:
        return _wrong("body.stream", _STREAM)
    return rules.fault_of_model(model) or (rules.fault_of_fields(body) if rules.fault_of_fields else None)


def _is_url_of(endpoint: str, url: object) -> bool:
    return isinstance(url, str) and url.removeprefix("/v1") == endpoint


def _parsed(text: bytes) -> dict[str, Any] | LineProblem:
    """Returns the line's object, if it is one that all parsers read alike."""
    if text.count(b",") > MOST_VALUES and outside_strings(text).count(b",") > MOST_VALUES:
        return LineProblem("invalid_request", f"This line has more than {MOST_VALUES} JSON values.")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _not_json(text, error)
    if not isinstance(value, dict):
        return no_json("This line is no JSON object")
    names, depth = _measure(value)
    if depth > MAX_DEPTH:
        return no_json(f"This line is nested more than {MAX_DEPTH} levels deep")
    if len(_NAMES.findall(text)) != names and outside_strings(text).count(b":") != names:
        return no_json("An object in this line has a name twice; write each once")
    return value


def _measure(value: object) -> tuple[int, int]:
    """Returns the number of names in all objects of a parsed value (written are more where one occurs twice), and its depth."""
    names = depth = 0
    level: list[Any] = [value]
    while level:
        depth += 1
        inner: list[Any] = []
        for one in level:
            if type(one) is dict:
                names += len(one)
                one = one.values()
            inner += [child for child in one if type(child) is dict or type(child) is list]
        level = inner
    return names, depth


def _not_json(text: bytes, error: orjson.JSONDecodeError) -> LineProblem:
    if not text.strip():
        return no_json("This line is empty; take it out")
    if text.startswith(MARKS):
        return no_json("This file begins with a byte order mark; save it as plain UTF-8")
    try:
        text.decode()
    except UnicodeDecodeError as broken:
        return no_json(f"This line is not valid UTF-8 at byte {broken.start}; save the file as UTF-8")
    return no_json(f"This line is not parseable as valid JSON: {error.msg} at column {error.colno}")


def no_json(why: str) -> LineProblem:
    return LineProblem("invalid_json_line", f"{why}.")


def _missing(name: str) -> LineProblem:
    return LineProblem("missing_required_parameter", f"Missing required parameter: '{name}'.", name)


def _wrong(name: str, message: str) -> LineProblem:
    return LineProblem("invalid_request", message, name)


def id_digest(custom_id: str) -> bytes:
    return blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


# --- the lines of a file beside each other ---

MOST_PROBLEMS = 100
MOST_MODELS = 100
"""The most models that the lines of one batch name."""
MOST_LINE_BYTES = 64 * 1024 * 1024


class LineCutter:
    """Cuts pieces of a file into lines. Both LF and CRLF end one; the last one need not be ended."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max = min(max_line_bytes, MOST_LINE_BYTES)
        self._parts: list[bytes] = []
        self._held = 0
        self._start = 0
        """The offset of the line that is being gathered."""

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yields (offset, line without its end) of each line that ends in the piece; None for one that is too long."""
        at = 0
        while (end := piece.find(b"\n", at)) >= 0:
            yield self._ended(piece[at:end])
            at = end + 1
        self._gather(piece[at:])

    def end(self) -> Iterator[tuple[int, bytes | None]]:
        if self._held:
            yield self._ended(b"")

    def _ended(self, part: bytes) -> tuple[int, bytes | None]:
        start = self._start
        self._gather(part)
        text = b"".join(self._parts) if self._held <= self._max else None
        self._start += self._held + 1
        self._parts, self._held = [], 0
        return start, text.removesuffix(b"\r") if text is not None else None

    def _gather(self, part: bytes) -> None:
        self._held += len(part)
        if self._held <= self._max:
            self._parts.append(part)
        else:
            self._parts.clear()


class InputCheck:
    """What is known of a batch's input so far."""

    def __init__(self, lines: LineRules, rules: BatchRules, max_line_bytes: int) -> None:
        self._lines = lines
        self._rules = rules
        self._max_line_bytes = max_line_bytes
        self._number = 0
        self._blank: list[int] = []
        """The first of the empty lines that nothing has followed yet: at the end they are fine."""
        self._more_blank = 0
        self._blanks = 0
        """All empty lines: a file may consist of hundreds of millions."""
        self._ids: set[bytes] = set()
        self._index: list[bytes] = []
        self._models: dict[str, int] = {}
        self.total = 0
        self.problems: list[LineProblem] = []
        self.more_problems = 0
        self.is_hopeless = False
        """The input is wrong as a whole; nothing more has to be read."""

    @property
    def models(self) -> list[str]:
        """The models that its lines name, by the numbers that the index has."""
        return list(self._models)

    def add(self, offset: int, text: bytes | None) -> None:
        """Checks the next line, which begins at `offset`; None: it is too long to be looked at."""
        self._number += 1
        if text is not None and not text.strip():
            self._blanks += 1
            if self._blanks > self._rules.max_lines:
                self.is_hopeless = True
                self._report(no_json(f"The file has more than {self._rules.max_lines} empty lines; take them out"))
            elif len(self._blank) < MOST_PROBLEMS:
                self._blank.append(self._number)
            else:
                self._more_blank += 1
            return
        for blank in self._blank:
            self._report(replace(no_json("This line is empty; take it out"), line=blank))
        self.more_problems += self._more_blank
        self._blank.clear()
        self._more_blank = 0
        self.total += 1
        if self.total > self._rules.max_lines:
            self.is_hopeless = True
            self._report(
                LineProblem("too_many_tasks", f"The file has more than {self._rules.max_lines} lines; split it.")
            )
        elif text is None:
            most = self._max_line_bytes
            self._report(LineProblem("invalid_request", f"This line has more than {most} bytes.", line=self._number))
        else:
            checked = check_line(text, self._lines)
            problem = checked if isinstance(checked, LineProblem) else self._fault_beside(checked)
            if problem is not None:
                self._report(replace(problem, line=self._number))
            elif not self.problems and isinstance(checked, CheckedLine):
                self._index.append(pack_entry(IndexEntry(offset, len(text), self._models[checked.model])))

    def end(self) -> None:
        if not self.total:
            self._report(LineProblem("empty_file", "The file has no lines; write one request in each."))
        if self.more_problems:
            self.problems.append(LineProblem("invalid_request", f"{self.more_problems} more lines have problems."))

    def take_index(self) -> bytes:
        """Returns the entries of the index that have not been taken yet; of no use once there are problems."""
        index, self._index = b"".join(self._index), []
        return index

    def _fault_beside(self, line: CheckedLine) -> LineProblem | None:
        """Returns what is wrong with a good line beside the others."""
        if line.id_digest in self._ids:
            return LineProblem(
                "duplicate_custom_id", "Another line has the same 'custom_id'; each must be unique.", "custom_id"
            )
        self._ids.add(line.id_digest)
        if line.model not in self._models:
            if self._models and not self._rules.mixed_models:
                message = f"This line is for another model than the others ('{next(iter(self._models))}')."
                return LineProblem("model_mismatch", message, "body.model")
            if len(self._models) >= MOST_MODELS:
                return LineProblem("model_mismatch", f"The lines name more than {MOST_MODELS} models.", "body.model")
            self._models[line.model] = len(self._models)
        return None

    def _report(self, problem: LineProblem) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more_problems += 1


# --- what lines may ask for under the policy in force: the key that pays, its models, their providers ---


def line_rules(policy: PolicySnapshot, key: Key, endpoint: str, *, is_callers: bool) -> LineRules:
    """Returns the rules of a batch's lines; `endpoint` is below the base URL.

    `is_callers`: the batch came with a credential of the caller's own, which is not stored.
    """
    faults: dict[str, LineProblem | None] = {}

    def fault_of_model(name: str) -> LineProblem | None:
        if name not in faults:
            if len(faults) >= 4096:
                faults.clear()
            faults[name] = _fault_of_model(policy, key, name, is_callers=is_callers)
        return faults[name]

    return LineRules(endpoint, fault_of_model, _fault_of_fields if key.allows is not None else None)


def _fault_of_model(policy: PolicySnapshot, key: Key, name: str, *, is_callers: bool) -> LineProblem | None:
    model = policy.find_model(name)
    if model is None:
        return _fault("model_not_found", f"The model '{name}' does not exist; GET /v1/models lists those that do.")
    if key.allows is not None and not key.allows.match(name):
        return _fault("model_not_found", f"The key '{key.name}' may not use the model '{name}'.")
    if model.answered_by:
        message = f"'{name}' is {model.answered_by}; a batch has calls to models: use POST /v1/jobs."
        return _fault("model_not_found", message)
    bare = bare_provider(policy, model) if is_callers else None
    if bare is not None:
        return _fault(
            "job_needs_provider_key",
            f"The provider '{bare}' is paid with the caller's own credential here, and a batch keeps none; set "
            f"providers.{bare}.api_key in the gateway's config.",
        )
    return None


def _fault_of_fields(body: dict[str, Any]) -> LineProblem | None:
    other = other_model_field(body)
    if other is None:
        return None
    message = f"The batch's key may use some models only, and by '{other}' a provider may choose another; leave it out."
    return LineProblem("invalid_request", message, f"body.{other}")


def _fault(code: str, message: str) -> LineProblem:
    return LineProblem(code, message, "body.model")


def key_named(policy: PolicySnapshot, name: str) -> Key | None:
    """Returns the key of that name; None: it has been taken away."""
    if not policy.keys:
        return policy.anonymous
    return next((key for key in policy.keys.values() if key.name == name), None)


# --- the lines of one chunk on their way in ---

AHEAD_BYTES = 1024 * 1024
INPUT_GONE = (
    "input_no_permissions",
    "The input file of this batch is gone from the gateway's folder of files; send the request in another batch.",
)


class InputLine(NamedTuple):
    """A line that waits to be run."""

    number: int
    text: bytes
    offset: int
    """The place of its text in the input file."""
    model: int = 0
    """The number of its model in the batch's list."""


class ChunkInput:
    """Reads the lines of one chunk, in order, about a megabyte ahead.

    They are those that have no result yet, read from the input file a piece at a time.
    """

    def __init__(self, blobs: Blobs, job: Job, chunk: int) -> None:
        self._blobs = blobs
        self._job = job
        self._numbers = lines_of(plan_of(job), chunk)
        self._left: deque[tuple[int, IndexEntry]] = deque()
        self._read: deque[InputLine] = deque()
        self._unknown: list[int] = []
        """Lines of which it is not known where they are."""

    def __len__(self) -> int:
        return len(self._left) + len(self._read)

    async def open(self, has_result: Collection[int]) -> None:
        """Finds the lines that have no result yet. Raises JobsUnavailable, FileNotFoundError."""
        self._unknown = [number for number in self._numbers if number not in has_result]
        start = self._numbers.start * ENTRY_BYTES
        data = await self._bytes(self._job.marks[INDEX], start, len(self._numbers) * ENTRY_BYTES)
        entries = zip(self._numbers, read_index(data), strict=True)
        self._left.extend((number, entry) for number, entry in entries if number not in has_result)
        self._unknown = []

    def has_any(self, away: Collection[int]) -> bool:
        """Returns whether there are lines for other models than those."""
        return any(line.model not in away for line in self._read) or self._is_left(away)

    async def next_lines(self, most: int, away: Collection[int] = ()) -> list[InputLine]:
        """Returns the next lines for other models than `away`, at least one while there are any.

        Raises JobsUnavailable, FileNotFoundError.
        """
        if self._is_left(away) and all(line.model in away for line in self._read):
            await self._read_ahead(away)
        some = list(islice((line for line in self._read if line.model not in away), most))
        for line in some:
            self._read.remove(line)
        return some

    def give_up(self) -> list[LineResult]:
        """Returns the results of all lines that were not read: their input is gone, and with it what they are called."""
        numbers = [*self._unknown, *(number for number, _ in self._left)]
        self._left.clear()
        return [
            unanswered_line(LineIdentity(number, line_id(self._job.id, number), ""), *INPUT_GONE) for number in numbers
        ]

    def _is_left(self, away: Collection[int]) -> bool:
        return any(entry.model not in away for _, entry in self._left)

    async def _read_ahead(self, away: Collection[int]) -> None:
        wanted = [one for one in self._left if one[1].model not in away]
        start = wanted[0][1].offset
        taken = wanted[:1]
        for one in wanted[1:]:
            if _end(one[1]) - start > AHEAD_BYTES:
                break
            taken.append(one)
        data = await self._bytes(self._job.about[INPUT], start, _end(taken[-1][1]) - start)
        for number, entry in taken:
            self._left.remove((number, entry))
            at = entry.offset - start
            self._read.append(InputLine(number, data[at : at + entry.length], entry.offset, entry.model))

    async def _bytes(self, name: str, start: int, length: int) -> bytes:
        return b"".join([part async for part in self._blobs.read(name, start, length)])


def _end(entry: IndexEntry) -> int:
    return entry.offset + entry.length
