"""The input of a batch, piece by piece: cut into lines, each checked, its place noted.

It must not know where the pieces come from. Whoever feeds it looks at the clock between lines. Invariants: no more is held of
the file than one line; of all problems the first hundred are kept, and how many more there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.products.batches.input.index import IndexEntry, pack_entry
from gateway.products.batches.input.lines import CheckedLine, LineProblem, LineRules, check_line, no_json
from gateway.products.jobs.rules import BatchRules

MOST_PROBLEMS = 100
MOST_MODELS = 100
"""That the lines of one batch name."""
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
        """Yields the last line, if it was not ended."""
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
        """It is wrong as a whole; nothing more has to be read."""

    @property
    def models(self) -> list[str]:
        """The models that its lines name, by the numbers that the index has."""
        return list(self._models)

    def add(self, offset: int, text: bytes | None) -> None:
        """Checks the next line, which begins at `offset`; None: it is too long to be looked at."""
        self._number += 1
        if text is not None and not text.strip():
            self._add_blank()
            return
        for blank in self._blank:
            self._tell(replace(no_json("This line is empty; take it out"), line=blank))
        self.more_problems += self._more_blank
        self._blank.clear()
        self._more_blank = 0
        self.total += 1
        if self.total > self._rules.max_lines:
            self.is_hopeless = True
            self._tell(
                LineProblem("too_many_tasks", f"The file has more than {self._rules.max_lines} lines; split it.")
            )
        elif text is None:
            most = self._max_line_bytes
            self._tell(LineProblem("invalid_request", f"This line has more than {most} bytes.", line=self._number))
        else:
            checked = check_line(text, self._lines)
            problem = checked if isinstance(checked, LineProblem) else self._fault_beside(checked)
            if problem is not None:
                self._tell(replace(problem, line=self._number))
            elif not self.problems and isinstance(checked, CheckedLine):
                self._index.append(pack_entry(IndexEntry(offset, len(text), self._models[checked.model])))

    def end(self) -> None:
        """The file has no more lines."""
        if not self.total:
            self._tell(LineProblem("empty_file", "The file has no lines; write one request in each."))
        if self.more_problems:
            self.problems.append(LineProblem("invalid_request", f"{self.more_problems} more lines have problems."))

    def take_index(self) -> bytes:
        """Returns the entries of the index that have not been taken yet; of no use once there are problems."""
        index, self._index = b"".join(self._index), []
        return index

    def _add_blank(self) -> None:
        self._blanks += 1
        if self._blanks > self._rules.max_lines:
            self.is_hopeless = True
            self._tell(no_json(f"The file has more than {self._rules.max_lines} empty lines; take them out"))
        elif len(self._blank) < MOST_PROBLEMS:
            self._blank.append(self._number)
        else:
            self._more_blank += 1

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

    def _tell(self, problem: LineProblem) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more_problems += 1
