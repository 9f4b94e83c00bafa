"""Reads what a target's config changes in the bodies of its calls, and in the names of their models."""

from __future__ import annotations

import json
import re
from typing import Final

import orjson

from gateway.core.config.fields.check import check
from gateway.core.config.fields.fields.fields import is_pattern
from gateway.core.config.schema import BodyEntry, TargetEntry
from gateway.core.config.source.problems import Document, Path, quoted
from gateway.core.openai.bodies.body_edits import NOT_EDITABLE, BodyEdits

_TASK: Final = "input_type"
"""What texts for embeddings are for; OpenAI has no word for it, and this is the one of servers that know its API."""
_NAME: Final = re.compile(r"[\w\-]+")
"""Names that are the same in JSON, whoever wrote it. One with a point is meant for a field of a field."""
_WILD: Final = re.compile(r"[*?\[]")


def read_edits(document: Document, path: Path, model: str, entry: TargetEntry) -> BodyEdits | None:
    """Returns the edits of the target at this path, which is one of `model`; notes problems of them and of `strip`."""
    _check_strip(document, path, model, entry)
    said = check(BodyEntry, document, (*path, "body")) if entry.body is not None else BodyEntry()
    if said is None:
        return None
    here: Path = (*path, "body")
    if entry.embedding_task is not None:
        if _TASK in said.set or _TASK in said.drop:
            document.complain((*path, "embedding_task"), f"and {quoted(_TASK)} in body say the same: leave one out")
        said.set[_TASK] = entry.embedding_task
    for name in (*said.set, *said.drop):
        if name in NOT_EDITABLE:
            document.complain(here, f"{quoted(name)} is not to be changed here: it decides where a call goes, and how")
        elif not _NAME.fullmatch(name):
            document.complain(here, f"{quoted(name)} is no top-level field: those have letters, digits, `_` and `-`")
    for name in said.set.keys() & set(said.drop):
        document.complain(here, f"{quoted(name)} is both set and dropped")
    try:
        json.dumps(said.set, allow_nan=False, default=str)  # orjson would write null for what is no number
        values = tuple((name, orjson.dumps(value)) for name, value in said.set.items())
    except (TypeError, ValueError):
        document.complain((*here, "set"), "holds a value that cannot be written as JSON: put it into quotes")
        return None
    return BodyEdits(values, tuple(said.drop)) if values or said.drop else None


def _check_strip(document: Document, path: Path, model: str, entry: TargetEntry) -> None:
    if entry.strip is None:
        return
    if entry.model is not None or not is_pattern(model):
        document.complain((*path, "strip"), "is for targets without a model, of a model whose name is a pattern")
    elif not _WILD.split(model, maxsplit=1)[0].startswith(entry.strip):
        shown = document.show((*path, "strip"), entry.strip)
        document.complain((*path, "strip"), f"{shown} does not begin the names that {quoted(model)} takes")
