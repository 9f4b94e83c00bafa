"""The fields of a request that its language does not have, wherever they stand: one walk along the forms of the language.

What nobody knows is left out before a request is put into another language, and is told of under a name of ours: a caller's own
is no name for a header or a label. Texts, schemas, metadata and arguments of tools are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.core.types import Gap, How
from gateway.dialects.base import ConvertedRequest, Json, Reader, ServerFacts, Translator, lost_in, once

_WHY: Final = "the target has no such field"
_NOTHING: Final[tuple[object, ...]] = (None, False, "", [], {})
"""Values that say nothing."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields that an object, or each object of a list, may have."""

    gap: str
    """The name under which all others are told of; empty: they stay, and are judged elsewhere."""
    fields: Mapping[str, Form | None]
    """By its name, the form of what stands in a field; None: that is not looked at."""
    kinds: Mapping[str, Form] = field(default_factory=dict)
    """By its type, the form of an object that says its type, if there are several; one of another type is not looked at."""


def form(gap: str, leaves: str = "", kinds: Mapping[str, Form] | None = None, /, **within: Form) -> Form:
    """Returns a form; `leaves` are the names, with spaces between, of fields whose values are not looked at."""
    return Form(gap, {**dict.fromkeys(leaves.split()), **within}, kinds or {})


def known_part(value: Json, known: Form, lost: set[str]) -> Json:
    """Returns an object without the fields that its form does not have, itself where there are none.

    Adds the names under which those are told of to `lost`.
    """
    if known.kinds and type(kind := value.get("type")) is str:
        other = known.kinds.get(kind)
        if other is None:
            return value
        known = other
    fields, made = known.fields, value
    for name, given in value.items():
        kind_of_value = type(given)
        if name not in fields:
            if known.gap:
                if given not in _NOTHING:
                    lost.add(known.gap)
                made = dict(value) if made is value else made  # copied once, however much is unknown
                del made[name]
        elif (kind_of_value is list or kind_of_value is dict) and (inner := fields[name]) is not None:
            part = known_part(given, inner, lost) if kind_of_value is dict else _known_items(given, inner, lost)
            if part is not given:
                made = dict(value) if made is value else made
                made[name] = part
    return made


def _known_items(items: list[object], known: Form, lost: set[str]) -> list[object]:
    made = items
    for number, one in enumerate(items):
        if type(one) is dict and (part := known_part(one, known, lost)) is not one:
            made = [*items] if made is items else made
            made[number] = part
    return made


class KnownFields:
    """Leaves out what the caller's language does not have, before another translator converts; implements `base.Translator`."""

    __slots__ = ("_find_form", "_inner")

    def __init__(self, find_form: Callable[[], Form], inner: Translator) -> None:
        """`find_form` gives the form of a request, the same one each time."""
        self._find_form = find_form
        self._inner = inner

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        lost: set[str] = set()
        found = self._inner.gaps(known_part(body, self._find_form(), lost), facts)
        return once([*found, *_gaps(lost)]) if lost else found

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        lost: set[str] = set()
        known = known_part(body, self._find_form(), lost)
        sent = self._inner.request(known, facts, now, new_id)
        return replace(sent, gaps=once([*lost_in(sent, self._inner, facts), *_gaps(lost)])) if lost else sent

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return self._inner.answer(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return self._inner.reader(sent)


def _gaps(lost: set[str]) -> list[Gap]:
    return [Gap(name, How.DROPPED, _WHY) for name in lost]
