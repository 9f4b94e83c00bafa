"""The types of an SDK as plain data: which fields an object may have, and of what kind each is.

A form is one of: the name of a kind (`str int float bool null any`), `@Name` for an object, a list of one form for a list of
such, `{"|": [...]}` for one of several, `{"=": [...]}` for one of these values, `{"*": form}` for an object with any names. An
object's fields are in `Forms.types`, by its name; `name!` is a field that must be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, NotRequired, Required, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel

Json = dict[str, Any]
_WRAPPERS: set[Any] = {Required, NotRequired, typing_extensions.Required, typing_extensions.NotRequired}
_REQUIRED: set[Any] = {Required, typing_extensions.Required}
_KINDS: dict[Any, str] = {str: "str", bytes: "str", int: "int", float: "float", bool: "bool", NoneType: "null"}


class Forms(NamedTuple):
    """What there is to say in a language, from one root."""

    root: Any
    types: dict[str, Json]

    def fields(self, name: str) -> dict[str, tuple[Any, bool]]:
        """Returns an object's fields: the form of each, and whether it must be there."""
        return {field.rstrip("!"): (form, field.endswith("!")) for field, form in self.types[name].items()}


def recorded_forms(language: str, root: str) -> Forms:
    """Returns what `renew.py` has recorded of an SDK that is not installed where the tests run."""
    found = json.loads((Path(__file__).parent / f"{language}.json").read_bytes())
    return Forms(found["roots"][root], found["types"])


def choices(form: Any) -> list[Any]:
    """Returns the forms of which this is one, but for nothing at all."""
    if isinstance(form, dict) and "|" in form:
        return [one for inner in form["|"] for one in choices(inner)]
    return [] if form == "null" else [form]


class Reader:
    """Reads types of an SDK into `types`."""

    def __init__(self) -> None:
        self.types: dict[str, Json] = {}
        self._names: dict[Any, str] = {}

    def form(self, hint: Any) -> Any:
        origin, within = get_origin(hint), get_args(hint)
        if origin in _WRAPPERS or str(origin) == "<class 'typing.Annotated'>" or hasattr(hint, "__metadata__"):
            return self.form(within[0] if within else hint.__origin__)
        if hint in _KINDS:
            return _KINDS[hint]
        if origin is Literal or origin is typing_extensions.Literal:
            return {"=": list(within)}
        if origin is Union or origin is UnionType:
            return self._one_of(within)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return {"=": [one.value for one in hint if "UNSPECIFIED" not in one.value]}
        if isinstance(hint, type) and (hasattr(hint, "__total__") or (issubclass(hint, BaseModel) and origin is None)):
            return self._object(hint)
        if isinstance(origin, type) and issubclass(origin, dict | _Mapping):
            return {"*": self.form(within[1])}
        if origin is not None and isinstance(origin, type) and issubclass(origin, _Iterable):
            return [self.form(within[0])]
        return "any"

    def _one_of(self, hints: tuple[Any, ...]) -> Any:
        found: list[Any] = []
        for form in (self.form(hint) for hint in hints):
            found += [
                one for one in (form["|"] if isinstance(form, dict) and "|" in form else [form]) if one not in found
            ]
        values = [value for one in found if isinstance(one, dict) and "=" in one for value in one["="]]
        found = [one for one in found if not (isinstance(one, dict) and "=" in one)]
        found += [{"=": values}] if values else []
        return found[0] if len(found) == 1 else {"|": found}

    def _object(self, cls: Any) -> str:
        if cls not in self._names:
            name, number = cls.__name__, 2
            while name in self.types:
                name, number = f"{cls.__name__}{number}", number + 1
            self._names[cls] = name
            self.types[name] = {}
            self.types[name] = dict(self._fields(cls))
        return f"@{self._names[cls]}"

    def _fields(self, cls: Any) -> Any:
        if issubclass(cls, dict):
            for name, hint in typing_extensions.get_type_hints(cls, include_extras=True).items():
                is_needed = get_origin(hint) in _REQUIRED or name in cls.__required_keys__
                yield name + "!" * is_needed, self.form(hint)
        else:
            for name, field in cls.model_fields.items():
                yield (field.alias or name) + "!" * field.is_required(), _without_null(self.form(field.annotation))


def _without_null(form: Any) -> Any:
    """Models say of nearly all that it may be nothing; that is no news."""
    if not isinstance(form, dict) or "|" not in form:
        return form
    found = [one for one in form["|"] if one != "null"]
    return found[0] if len(found) == 1 else {"|": found}
