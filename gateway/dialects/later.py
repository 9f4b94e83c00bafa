"""A translator that is there before its code is: which pairs a config needs is known at its start, which are used, later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.dialects.base import ConvertedRequest, Json, Reader, ServerFacts, Translator
from gateway.words import Gap


class LaterTranslator:
    """Imports what it stands for when the first call needs it; implements `base.Translator`."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[], Translator]) -> None:
        """`find` gives the translator, the same one each time."""
        self._find = find

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return self._find().gaps(body, facts)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        return self._find().request(body, facts, now, new_id)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return self._find().answer(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return self._find().reader(sent)
