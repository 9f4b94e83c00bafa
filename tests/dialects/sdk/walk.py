"""Sets each field that a language has, one at a time, wherever it may stand, in a request or an answer that has little else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from tests.dialects.sdk.forms import Forms, Json, choices


class Judge(Protocol):
    """Is told a place, and a body without and with what is set there."""

    def leaf(self, place: str, before: Json, after: Json) -> None:
        """A value, or an object that has nothing inside but what it is."""
        ...

    def stranger(self, place: str, before: Json, after: Json) -> None:
        """An object, without and with a field that nobody knows."""
        ...

    def opens(self, place: str, before: Json, after: Json) -> bool:
        """Returns whether what is inside of an object is worth a look; not where it is lost as a whole, and that is told."""
        ...


Build = Callable[[Any], Json]


STRANGER = "unheard_of"
"""A field that no language has."""


class Given(NamedTuple):
    """What a language's objects say where little is asked of them."""

    objects: Mapping[str, Json]
    """By an object's name, the fields that it has besides those that must be there, or with other values."""
    values: Mapping[str, Any]
    """By `Object.field` or `field`, a value that makes sense there; else it is made up by its kind."""
    finished: Callable[[Json], Json] = lambda body: body
    """Adds what a whole body needs besides: results to calls, say."""


class Walk:
    """One walk over a language's forms."""

    def __init__(self, forms: Forms, given: Given, judge: Judge) -> None:
        self._forms, self._given, self._judge = forms, given, judge

    def run(self) -> None:
        name = self._forms.root.removeprefix("@")
        self._visit(name, "", self._given.finished, (name,))

    def _visit(self, name: str, place: str, build: Build, above: tuple[str, ...]) -> None:
        """Sets each field of one object."""
        whole = self.least(name)
        self._judge.stranger(f"{place}.{STRANGER}".lstrip("."), build(whole), build({**whole, STRANGER: "told"}))
        for field, (form, _) in self._forms.fields(name).items():
            if field == "model" and not place:
                continue
            here = f"{place}.{field}".lstrip(".")
            rest = {one: value for one, value in whole.items() if one != field}
            without = whole if field in whole else rest

            def with_it(value: Any, rest: Json = rest, field: str = field) -> Json:
                return build({**rest, field: value})

            preset = self._given.values.get(f"{name}.{field}", self._given.values.get(field))
            if preset is not None and not any(True for _ in _inner(form)):
                self._judge.leaf(here, build(without), with_it(preset))
                continue
            for one in _known(form):
                self._try(one, here, build(without), with_it, whole.get(field), above)

    def _try(self, form: Any, here: str, before: Json, build: Build, now: Any, above: tuple[str, ...]) -> None:
        """Sets one field to what it may be by one of its forms, and what is inside of it."""
        if isinstance(form, list):
            for one in choices(form[0]):
                self._try(
                    one,
                    here,
                    before,
                    lambda value: build([value]),
                    now[0] if isinstance(now, list) and now else None,
                    above,
                )
        elif isinstance(form, dict) and "*" in form:
            for one in choices(form["*"]):
                self._try(one, here, before, lambda value: build({"told": value}), None, above)
        elif isinstance(form, str) and form.startswith("@"):
            name = form[1:]
            place = f"{here}[{self.label(name)}]"
            if name in above:
                return
            whole = build(self.least(name))
            if all(is_fixed(inner) for inner, _ in self._forms.fields(name).values()):
                self._judge.leaf(place, before, whole)
            elif self._judge.opens(place, before, whole):
                self._visit(name, place, build, (*above, name))
        else:
            for value in scalars(form):
                if value != now and not is_fixed(form):
                    shown = "" if isinstance(value, str) and value == "told" else f"={value}"
                    self._judge.leaf(f"{here}{shown}", before, build(value))

    def label(self, name: str) -> str:
        """Returns how an object is told from the others at its place: by its type or role, else by its name."""
        for field in ("type", "role"):
            form = self._forms.fields(name).get(field, ("", False))[0]
            if isinstance(form, dict) and "=" in form and len(form["="]) == 1:
                return str(form["="][0]).replace(".", "_")
        return name.removeprefix("Beta").removesuffix("Param")

    def least(self, name: str) -> Json:
        """Returns an object with what must be there, and what it is given."""
        given = self._given.objects.get(name, {})
        made = {}
        for field, (form, is_needed) in self._forms.fields(name).items():
            if is_needed and field not in given:
                made[field] = self._least(form, f"{name}.{field}")
        return made | given

    def _least(self, form: Any, place: str) -> Any:
        first = choices(form)[0]
        if isinstance(first, list):
            return [self._least(first[0], place)]
        if isinstance(first, dict) and "*" in first:
            return {}
        if isinstance(first, str) and first.startswith("@"):
            return self.least(first[1:])
        plain: Json = {"str": "x", "int": 1, "float": 0.5, "any": {}}
        return plain[first] if isinstance(first, str) and first in plain else scalars(first)[0]


def is_fixed(form: Any) -> bool:
    """Whether there is but one value."""
    return isinstance(form, dict) and len(form.get("=", ())) == 1


def scalars(form: Any) -> list[Any]:
    """Returns values of a kind."""
    if isinstance(form, dict):
        return list(form["="])
    kinds: dict[str, list[Any]] = {
        "str": ["told"], "int": [7], "float": [0.25], "bool": [True, False], "any": [{"told": "so"}]
    }  # fmt: skip
    return kinds[form]


def _known(form: Any) -> list[Any]:
    """Returns the forms of which a field is one, without what is anything (a file that the SDK reads) where others are told."""
    found = choices(form)
    told = [one for one in found if one != "any"]
    return told or found


def _inner(form: Any) -> Iterator[str]:
    """Yields the objects that may stand at a place."""
    for one in choices(form):
        if isinstance(one, list):
            yield from _inner(one[0])
        elif isinstance(one, dict) and "*" in one:
            yield from _inner(one["*"])
        elif isinstance(one, str) and one.startswith("@"):
            yield one


def problems(forms: Forms, value: Any, form: Any, place: str = "") -> list[str]:
    """Returns what an SDK would not take of a value: unknown fields, missing ones, other kinds."""
    if value is None:
        return [] if _may_be_null(form) else [f"{place}: null"]
    found: list[str] = []
    for one in choices(form) or ["null"]:
        if isinstance(value, dict) and one not in ("any", "null") and _is_another(forms, value, one):
            continue
        found = _problems(forms, value, one, place)
        if not found:
            return []
    several = len(choices(form)) > 1
    return [f"{place}: {_kind(value)} is none of them"] if several or not found else found


def _is_another(forms: Forms, value: Json, form: Any) -> bool:
    """Whether an object says by its type or role that it is another one."""
    if not (isinstance(form, str) and form.startswith("@")):
        return False
    fields = forms.types[form[1:]]
    for field in ("type!", "role!"):
        told = fields.get(field)
        if told is not None and isinstance(told, dict) and "=" in told and value.get(field[:-1]) not in told["="]:
            return True
    return False


def _problems(forms: Forms, value: Any, form: Any, place: str) -> list[str]:
    if form == "any":
        return []
    if isinstance(form, list):
        if not isinstance(value, list):
            return [f"{place}: no list"]
        return [
            found for number, one in enumerate(value) for found in problems(forms, one, form[0], f"{place}[{number}]")
        ]
    if isinstance(form, dict) and "*" in form:
        if not isinstance(value, dict):
            return [f"{place}: no object"]
        return [found for name, one in value.items() for found in problems(forms, one, form["*"], f"{place}.{name}")]
    if isinstance(form, str) and form.startswith("@"):
        if not isinstance(value, dict):
            return [f"{place}: no object"]
        fields = forms.fields(form[1:])
        unknown = [f"{place}.{name}: unknown" for name in value.keys() - fields.keys()]
        missing = [
            f"{place}.{name}: missing" for name, (_, is_needed) in fields.items() if is_needed and name not in value
        ]
        inner = [
            found
            for name, one in value.items()
            if name in fields
            for found in problems(forms, one, fields[name][0], f"{place}.{name}")
        ]
        return unknown + missing + inner
    if isinstance(form, dict):
        return [] if value in form["="] else [f"{place}: {value!r}"]
    kinds: dict[str, Any] = {"str": str, "int": int, "float": int | float, "bool": bool, "null": type(None)}
    is_it = isinstance(value, kinds[form]) and (form == "bool" or not isinstance(value, bool))
    return [] if is_it else [f"{place}: {_kind(value)} for {form}"]


def _may_be_null(form: Any) -> bool:
    return form in ("any", "null") or (isinstance(form, dict) and "|" in form and any(map(_may_be_null, form["|"])))


def _kind(value: Any) -> str:
    kind = value.get("type") or value.get("role") if isinstance(value, dict) else None
    return kind or type(value).__name__
