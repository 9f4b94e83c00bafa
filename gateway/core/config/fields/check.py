"""Checks one entry at a time, and puts pydantic's findings into words.

A bad field is noted and dropped, so that one mistake does not hide the next.
"""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.core.config.schema import Entry, KeyEntry, ModelEntry, ProviderEntry, TargetEntry
from gateway.core.config.source import Document, Path, did_you_mean, kind_of, path_text, quoted

EntryT = TypeVar("EntryT", bound=Entry)

_WANTED = {
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "bytes_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "an address such as 127.0.0.1:9090",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "flag_or_list": "true, false or a list of limits",
}
_BOUNDS = {
    "missing": "is missing",
    "too_short": "needs at least one entry",
    "string_too_short": "must not be empty",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}


_SUGGESTIONS = {
    "claude": "anthropic",
    "messages": "anthropic",
    "google": "gemini",
    "generate": "gemini",
    "vertexai": "vertex",
    "aws": "bedrock",
    "amazon": "bedrock",
    "converse": "bedrock",
}
"""Other names of what a field knows."""
_ENTRIES: dict[type[Entry], str] = {
    ProviderEntry: "a provider (providers.NAME)",
    ModelEntry: "a model (models.NAME)",
    TargetEntry: "a target (models.NAME.targets)",
    KeyEntry: "a key (keys)",
}
"""Entries whose fields are mistaken for each other's."""


def check(kind: type[EntryT], document: Document, path: Path) -> EntryT | None:
    """Returns the entry at this path without its bad fields, which are noted; None when too little remains."""
    data = document.at(path)
    data = {} if data is None else data
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    for detail in details:
        _report(kind, document, path, detail)
    bad = {detail["loc"][0] for detail in details if detail["loc"]}
    if not isinstance(data, dict) or not bad:
        return None
    good = {name: value for name, value in data.items() if name not in bad and value is not None}
    try:
        return kind.model_validate({**kind.stand_ins, **good})
    except ValidationError:
        return None


def check_sets(kind: type[EntryT], document: Document | None) -> dict[str, EntryT]:
    """Returns the named sets of a policy file (None: it does not exist), always with a `default`.

    A set that cannot be used keeps its name, so that picking it is not a second mistake.
    """
    sets = {"default": kind()}
    if document is None:
        return sets
    if not isinstance(document.data, dict):
        document.complain((), f"expected named sets such as `default: {{...}}`, not {quoted(document.data)}")
        return sets
    return sets | {name: check(kind, document, (name,)) or kind() for name in document.data}


def check_part(kind: type[EntryT], document: Document | None, path: Path) -> EntryT:
    """Returns the sound part of the mapping at this path; missing fields have built-in values."""
    if document is None or not isinstance(document.at(path), dict):
        return kind()
    return check(kind, document, path) or kind()


def _report(kind: type[Entry], document: Document, path: Path, detail: ErrorDetails) -> None:
    here = (*path, *(step for step in detail["loc"] if step != "[key]"))
    if detail["type"] == "extra_forbidden":
        if len(detail["loc"]) > 1 and here[-1] in _fields(kind):
            document.complain(here, f"unknown field here: it belongs into {path_text(path)}")
            return
        known = did_you_mean(here[-1], _fields(kind))
        document.complain(here, f"unknown field{known if 'did you' in known else _elsewhere(kind, here[-1]) or known}")
    else:
        document.complain(here, _in_words(detail, document.show(here, detail["input"])))


def _fields(kind: type[Entry]) -> list[str]:
    return [one.alias or name for name, one in kind.model_fields.items()]


def _elsewhere(kind: type[Entry], name: str | int) -> str:
    """Returns whose field it is, if it is one of another kind of entry."""
    owners = [label for other, label in _ENTRIES.items() if name in _fields(other)] if kind in _ENTRIES else []
    return f" here: it is one of {' or '.join(owners)}" if owners else ""


def _in_words(detail: ErrorDetails, shown: str) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "said":
        return str(context["message"])
    if kind == "about_value":
        return f"{shown} {context['message']}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        suggestion = _SUGGESTIONS.get(str(detail["input"]).lower(), "")
        known = (
            f"; did you mean {quoted(suggestion)}?" if suggestion in choices else did_you_mean(detail["input"], choices)
        )
        known = "" if shown.startswith("the value") else known
        return f"{shown} is not one of {', '.join(choices)}{known if 'did you' in known else ''}"
    if kind in _WANTED:
        quote = "; quote it" if _WANTED[kind].startswith("text") and _is_scalar(detail["input"]) else ""
        return f"expected {_WANTED[kind]}, not {kind_of(detail['input'])}{quote}"
    return _BOUNDS.get(kind, "cannot be used ({type})").format(**{**context, "type": kind})


def _is_scalar(value: object) -> bool:
    return isinstance(value, (bool, int, float))
