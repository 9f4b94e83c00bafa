"""What every conversion between two languages is made of: gaps, facts, what was sent, translator, reader.

Everything here and below is pure: no I/O, no clock, no draws; time and new ids come as arguments. Bodies are plain dicts as
orjson parses them, because an object per message would cost more than the conversion itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gateway.words import Gap, How

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a conversion has to know of its target."""

    bound_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the target's chat completions name the most tokens of an answer: OpenAI and Azure the newer way."""
    takes_developer: bool = False
    """The target's chat completions know the role `developer`; elsewhere it is `system`."""
    takes_custom_tools: bool = False
    """The target's chat completions know tools whose input is free text, and what else OpenAI's alone know."""
    takes_reasoning: bool = True
    """The target's chat completions take back what the model thought, in plain words; others refuse the unknown field."""


@dataclass(frozen=True, slots=True)
class ConvertedRequest:
    """A converted request, and what its answer needs to know of it."""

    body: Json
    asked: Json
    """The caller's own request, some of which its answer repeats."""
    id: str
    """Of the answer, without a prefix; the ids of its items are made from it."""
    now: float
    """Wall time in seconds at which the request was converted."""
    custom_tools: frozenset[str] = field(default_factory=frozenset)
    """Names of tools with free text as input that went out as functions."""


class Translator(Protocol):
    """One pair: the caller's language, and the target's."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        """Returns what would not arrive as it was said, each field once; a gap that is REFUSED makes the target incapable."""
        ...

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        """Converts a request. Raises InvalidRequest, naming the place, where no target could understand it."""
        ...

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        """Converts a whole answer. Raises MalformedAnswer where it is none."""
        ...

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Returns what converts a streamed answer."""
        ...


class Reader(Protocol):
    """Converts one stream: is fed bytes of the target's and gives whole events of the caller's language."""

    def feed(self, chunk: bytes) -> bytes:
        """Returns the events that this chunk has completed; empty when there is none."""
        ...

    def close(self, *, is_clean: bool) -> bytes:
        """Returns the last events, if the target's stream has come to its end.

        An end is never invented: where the target's was cut, nothing comes, and the relay says so.
        """
        ...


class MalformedAnswer(Exception):
    """A target's answer is not what its language says."""


def gaps_of_fields(body: Json, table: Mapping[str, tuple[How, str, tuple[object, ...]]]) -> list[Gap]:
    """Returns the gaps among the top-level fields; the table names for each what becomes of it, why, and harmless values."""
    return [
        Gap(name, table[name][0], table[name][1])
        for name in body.keys() & table.keys()
        if body[name] is not None and body[name] not in table[name][2]
    ]


def once(gaps: Sequence[Gap]) -> list[Gap]:
    """Returns each field once, the worst of its gaps, in the order of the fields' names."""
    worst = {How.APPROXIMATED: 0, How.DROPPED: 1, How.REFUSED: 2}
    found: dict[str, Gap] = {}
    for gap in gaps:
        if gap.field not in found or worst[gap.how] > worst[found[gap.field].how]:
            found[gap.field] = gap
    return [found[name] for name in sorted(found)]


def objects(value: object) -> list[Json]:
    """Returns the objects of a list; none where it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def object_of(value: object) -> Json:
    """Returns the value, if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def strings(value: object) -> list[str]:
    """Returns the strings of a list; none where it is no list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Returns the value, if it is a string; else an empty one."""
    return value if isinstance(value, str) else ""
