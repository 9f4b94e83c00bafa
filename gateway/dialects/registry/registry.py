"""By which pair a call in one language reaches a target that speaks another. The only list of pairs.

A language's own code is imported when the first target that speaks it, or the first call in it, is there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Final, NamedTuple

from gateway.core.types.exchange import RawHeaders
from gateway.core.types.words import Gap
from gateway.dialects.base.base import ConvertedRequest, Json, Reader, ServerFacts, Translator
from gateway.dialects.base.hub import ThroughChat
from gateway.dialects.embeddings.common import MostTexts
from gateway.dialects.gemini import places as gemini
from gateway.dialects.places import at_converse, at_count, at_invoke
from gateway.dialects.registry.pair import Pair, Place

PATHS: Final[Mapping[str, str]] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "messages": "/messages",
    "count_tokens": "/messages/count_tokens",
    "generate": "/generate",
    "embeddings": "/embeddings",
}
"""The endpoints whose calls can be converted, by their names; all others are a target's own business."""
COUNTS: Final = "count_tokens"
"""The endpoint of questions, which nobody is refused: who cannot be asked so is not asked at all."""

_OPENAI: Final = "gateway.dialects.openai.translators.translators"
_GEMINI: Final = "gateway.dialects.gemini.translators.translators"
_GEMINI_EMBEDDINGS: Final = "gateway.dialects.embeddings.over_generate"
_BEDROCK: Final = "gateway.dialects.bedrock"
_ENVELOPE: Final = "gateway.dialects.anthropic.places.envelope"
_CLAUDE_COUNTS: Final = "gateway.dialects.anthropic.places.counting"
_GEMINI_COUNTS: Final = "gateway.dialects.gemini.translators.counting"
INTO_CHAT: Final[Mapping[str, tuple[str, str]]] = {
    "responses": (_OPENAI, "ResponsesOverChat"),
    "messages": ("gateway.dialects.anthropic.in_stream.translator", "MessagesOverChat"),
    "generate": ("gateway.dialects.gemini.in_gaps.translators", "GenerateOverChat"),
}
"""By the caller's language, what serves it by chat completions."""
_OUT_OF_CHAT: Final[Mapping[str, tuple[str, str]]] = {
    "responses": (_OPENAI, "ChatOverResponses"),
    "messages": ("gateway.dialects.anthropic.places.translators", "ChatOverMessages"),
    "generate": (_GEMINI, "ChatOverGenerate"),
    "vertex": (_GEMINI, "ChatOverGenerate"),
    "converse": (f"{_BEDROCK}.translators", "ChatOverConverse"),
    "claude_at_vertex": ("gateway.dialects.anthropic.places.at_vertex", "ChatAtVertex"),
}
"""By the target's language, what serves a caller of chat completions by it."""


class _Direct(NamedTuple):
    """A way that does not lead by chat completions."""

    translator: tuple[str, str]
    place: Place
    header_fields: Mapping[bytes, str] = {}
    """Headers of the caller's that go into the body, and the fields for them."""
    kept_headers: Container[bytes] = ()
    """Headers of the caller's that mean something in its language alone, and to this target."""
    keeps_bytes: bool = False
    """Of the body only the fields around it change."""
    most_texts: MostTexts | None = None
    """How many texts go in one call, of embeddings."""
    counted_in: bytes = b""
    """The header of an answer that tells how many tokens were read."""


OPENAIS_COUNTS: Final = "input_tokens"  # stands for a language: of the servers with Responses, OpenAI alone counts
_BETAS: Final = b"anthropic-beta"
_COHERES_TEXTS: Final = 96
_GEMINIS_TEXTS: Final = 100
_PREDICTS_TEXTS: Final = 250
"""The most texts for embeddings in one call."""
_DIRECT: Final[Mapping[tuple[str, str], _Direct]] = {
    ("embeddings", "generate"): _Direct(
        (_GEMINI_EMBEDDINGS, "EmbeddingsOverGenerate"),
        gemini.place_of_embeddings,
        most_texts=lambda _facts: _GEMINIS_TEXTS,
    ),
    ("embeddings", "vertex"): _Direct(
        (_GEMINI_EMBEDDINGS, "EmbeddingsAtVertex"),
        gemini.place_of_embeddings_at_vertex,
        most_texts=lambda facts: _GEMINIS_TEXTS if facts.model.embeds == "gemini" else _PREDICTS_TEXTS,
    ),
    ("embeddings", "converse"): _Direct(
        ("gateway.dialects.embeddings.over_invoke", "EmbeddingsOverInvoke"),
        at_invoke,
        most_texts=lambda facts: _COHERES_TEXTS if facts.model.embeds == "cohere" else 1,
        counted_in=b"x-amzn-bedrock-input-token-count",
    ),
    ("messages", "claude"): _Direct(
        (_ENVELOPE, "MessagesAtBedrock"), at_invoke, {_BETAS: "anthropic_beta"}, keeps_bytes=True
    ),
    ("messages", "claude_at_vertex"): _Direct(
        (_ENVELOPE, "MessagesAtVertex"), gemini.place_of_claude_at_vertex, kept_headers=(_BETAS,), keeps_bytes=True
    ),
    (COUNTS, "claude"): _Direct((_CLAUDE_COUNTS, "CountsAtBedrock"), at_count, {_BETAS: "anthropic_beta"}),
    (COUNTS, "claude_at_vertex"): _Direct(
        (_CLAUDE_COUNTS, "CountsAtVertex"), gemini.place_of_claude_counts_at_vertex, kept_headers=(_BETAS,)
    ),
    (COUNTS, OPENAIS_COUNTS): _Direct(
        ("gateway.dialects.openai.translators.counting", "CountsOfResponses"),
        lambda _model, _is_stream: "/responses/input_tokens",
    ),
    (COUNTS, "generate"): _Direct((_GEMINI_COUNTS, "CountsOfGenerate"), gemini.place_of_counts),
    (COUNTS, "vertex"): _Direct((_GEMINI_COUNTS, "CountsAtVertexAI"), gemini.place_of_counts_at_vertex),
}
"""By the caller's endpoint and the target's language, where one leads straight to the other."""

_PLACES: Final[Mapping[str, Place]] = {
    "chat": lambda _model, _is_stream: PATHS["chat"],
    "responses": lambda _model, _is_stream: PATHS["responses"],
    "messages": lambda _model, _is_stream: PATHS["messages"],
    "generate": gemini.place_of_gemini,
    "vertex": gemini.place_at_vertex,
    "converse": at_converse,
    "claude_at_vertex": gemini.place_of_claude_at_vertex,
}
_HEADERS: Final[Mapping[str, RawHeaders]] = {"messages": ((b"anthropic-version", b"2023-06-01"),)}
"""What a language wants said besides, by its name. Of Anthropic's versions the older one takes all that the newer one does, and
`temperature` besides, where the model has it."""
_PREFERRED: Final = tuple(_PLACES)
"""Of several languages that a target speaks and the caller does not, the first of these is taken."""


def pair_at(path: str) -> Pair | None:
    """Returns the way by which a call to this path reaches a server that does not know it; None: there is none."""
    if path == PATHS["chat"]:
        return pair_of("chat", "responses")
    return pair_of("responses", "chat") if path == PATHS["responses"] else None


def pairs_for(speaks: frozenset[str] | None) -> Mapping[str, Pair]:
    """Returns by endpoint the pairs for a server that is known to speak these languages only.

    Where that is not known (None), it is taken to have chat completions and no Messages.
    """
    if speaks is None:
        return {asked: pair_of(asked, "chat") for asked in ("messages", "generate")}
    found = {}
    unspoken = PATHS.keys() - speaks - ({"generate"} if own_place(speaks) else set())
    for asked in unspoken:
        spoken = next((one for one in sorted(speaks) if (asked, one) in _DIRECT), None)
        if spoken is None and asked in ("chat", *INTO_CHAT):
            spoken = next((one for one in _PREFERRED if one in speaks), None)
        if spoken is not None:
            found[asked] = pair_of(asked, spoken)
    return found


def own_place(speaks: frozenset[str] | None) -> Place | None:
    """Returns where a target takes calls in Gemini's language, which name their model in the path; None: it does not."""
    return next((_PLACES[one] for one in ("generate", "vertex") if one in (speaks or ())), None)


@cache
def pair_of(asked: str, spoken: str) -> Pair:
    """Returns the way from one language to another, both known."""
    translator: Translator
    if (asked, spoken) in _DIRECT:
        way = _DIRECT[asked, spoken]
        translator = _made(way.translator)
        return Pair(asked, spoken, way.place, translator, (), *way[2:])
    if spoken == "chat":
        translator = _made(INTO_CHAT[asked])
    elif asked == "chat":
        translator = _made(_OUT_OF_CHAT[spoken])
    else:
        translator = ThroughChat(_made(INTO_CHAT[asked]), _made(_OUT_OF_CHAT[spoken]))
    return Pair(asked, spoken, _PLACES[spoken], translator, _HEADERS.get(spoken, ()))


def _made(place: tuple[str, str]) -> Translator:
    return LaterTranslator(partial(_imported, place))


@cache
def _imported(place: tuple[str, str]) -> Translator:
    module, name = place
    made: Translator = getattr(import_module(module), name)()
    return made


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
