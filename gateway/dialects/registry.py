"""Which languages a target speaks, and by which pair a call in another one reaches it. The only list of pairs.

A language's own code is imported when the first target that speaks it, or the first call in it, is there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from typing import Final, NamedTuple

from gateway.dialects.base import Json, ModelFacts, ServerFacts, Translator, once
from gateway.dialects.embeddings.common import MostTexts
from gateway.dialects.gemini import places as gemini
from gateway.dialects.hub import ThroughChat
from gateway.dialects.known.modalities import gaps_of_modalities
from gateway.dialects.known.models import MOST_NAME_CHARS, MOST_REMEMBERED, Known
from gateway.dialects.later import LaterTranslator
from gateway.dialects.pair import Pair, Place
from gateway.dialects.places import at_converse, at_count, at_invoke
from gateway.dialects.remembered import UnknownMemory
from gateway.exchange import RawHeaders
from gateway.words import FindGaps, Gap, How

PATHS: Final[Mapping[str, str]] = {
    "chat": "/chat/completions", "responses": "/responses", "messages": "/messages",
    "count_tokens": "/messages/count_tokens", "generate": "/generate", "embeddings": "/embeddings",
}  # fmt: skip
"""The endpoints whose calls can be converted, by their names; all others are a target's own business."""
COUNTS: Final = "count_tokens"
"""The endpoint of questions, which nobody is refused: who cannot be asked so is not asked at all."""

_OPENAI: Final = "gateway.dialects.openai.translators"
_GEMINI: Final = "gateway.dialects.gemini.translators"
_GEMINI_EMBEDDINGS: Final = "gateway.dialects.embeddings.over_generate"
_BEDROCK: Final = "gateway.dialects.bedrock"
_ENVELOPE: Final = "gateway.dialects.anthropic.envelope"
_CLAUDE_COUNTS: Final = "gateway.dialects.anthropic.counting"
_GEMINI_COUNTS: Final = "gateway.dialects.gemini.counting"
_INTO_CHAT: Final[Mapping[str, tuple[str, str]]] = {
    "responses": (_OPENAI, "ResponsesOverChat"),
    "messages": ("gateway.dialects.anthropic.from_messages.translator", "MessagesOverChat"),
    "generate": ("gateway.dialects.gemini.from_generate.translators", "GenerateOverChat"),
}
"""By the caller's language, what serves it by chat completions."""
_OUT_OF_CHAT: Final[Mapping[str, tuple[str, str]]] = {
    "responses": (_OPENAI, "ChatOverResponses"),
    "messages": ("gateway.dialects.anthropic.translators", "ChatOverMessages"),
    "generate": (_GEMINI, "ChatOverGenerate"),
    "vertex": (_GEMINI, "ChatOverGenerate"),
    "converse": (f"{_BEDROCK}.translators", "ChatOverConverse"),
    "claude_at_vertex": ("gateway.dialects.anthropic.at_vertex", "ChatAtVertex"),
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
        ("gateway.dialects.openai.counting", "CountsOfResponses"), lambda _model, _is_stream: "/responses/input_tokens"
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

_OWN_LANGUAGE: Final[Mapping[str, str]] = {
    "anthropic": "messages", "gemini": "generate", "vertex": "vertex", "bedrock": "converse",
}  # fmt: skip
"""The one language of dialects that are not OpenAI's. Vertex says what Gemini says, at other places."""
_OF_CLAUDE: Final = {"bedrock": frozenset(("converse", "claude")), "vertex": frozenset(("claude_at_vertex",))}
"""What clouds speak with models of Anthropic's."""
_NOT_THERE: Final = ("completions", "embeddings", "moderations", "images", "speech", "transcriptions")
"""Endpoints of OpenAI's that are in no other language."""

_CHAT_ALONE: Final = frozenset(("deepseek", "mistral", "gemini", "anthropic", "cohere"))
"""Kinds of servers whose API knows chat completions and no Responses."""

_FORGETFUL: Final = frozenset(("mistral", "gemini", "anthropic", "cohere", "groq"))
"""Kinds of servers that refuse a `reasoning_content` in a message, or leave it unread."""

FindModel = Callable[[str], ModelFacts]
"""Returns what is known of a model by the provider's name for it."""

_OPENAIS: Final = frozenset(("chat", "responses"))
"""Languages between which a call is put without knowing anything of the model."""
_UNKNOWN: Final = ModelFacts()
_UNKNOWN_MEMORY: Final = UnknownMemory()


def _unknown(_model: str) -> ModelFacts:
    return _UNKNOWN


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a target speaks, and what conversions have to know of it."""

    kind: str
    speaks: frozenset[str] | None
    """None: it is not known, and its answers tell; of OpenAI's two languages, for who has another says so."""
    dialect: str = "openai"
    find_model: FindModel = field(default=_unknown, compare=False)
    approximates: bool = False
    find_sources: Callable[[str], Mapping[str, Known]] = field(default=lambda _model: {}, compare=False)
    _facts: dict[tuple[str, str, str], ServerFacts] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was found, by the languages of a conversion and the model: calls ask for the same again and again."""

    def at(self, model: str | None) -> Spoken:
        """Returns what is spoken with one model: Claude has its own language at Bedrock besides, and at Vertex alone."""
        found = _OF_CLAUDE.get(self.dialect)
        if found is None or not model or self.speaks != frozenset((_OWN_LANGUAGE[self.dialect],)):
            return self
        is_claude = self.find_model(model).own_fields == "anthropic"
        return replace(self, speaks=found) if is_claude else self

    @property
    def pairs(self) -> Mapping[str, Pair]:
        """Returns by endpoint the pairs that calls need; of what the answers tell (see `speaks`), none."""
        found = pairs_for(self.speaks)
        counts = self.kind == "openai" and (self.speaks is None or "responses" in self.speaks) and COUNTS not in found
        return {**found, COUNTS: pair_of(COUNTS, OPENAIS_COUNTS)} if counts else found

    @property
    def has_own_language(self) -> bool:
        """Returns whether the dialect is none of OpenAI's, so that something has to be known of the model."""
        return self.dialect in _OWN_LANGUAGE

    def find_most_input(self, model: str) -> int | None:
        """Returns how many tokens a model reads; None: it is not known."""
        return self.find_model(model).max_input

    def facts(self, pair: Pair, model: str) -> ServerFacts:
        """Returns what this conversion has to know of the target and this model of it."""
        key = pair.asked, pair.spoken, model[:MOST_NAME_CHARS]
        is_openais = pair.asked in _OPENAIS and pair.spoken in _OPENAIS
        known = _UNKNOWN if is_openais else self.find_model(model)
        found = self._facts.get(key)
        if found is None or found.model is not known:  # providers may tell more of their models
            if len(self._facts) >= MOST_REMEMBERED:  # callers may send any name to a target that takes every model
                self._facts.clear()
            issuer = self.dialect if self.dialect in _OWN_LANGUAGE else ""
            found = replace(facts_of(self.kind), issuer=issuer, model=known, approximates=self.approximates)
            self._facts[key] = found
        return found


def languages_of(dialect: str, kind: str, declared: Sequence[str] | None) -> frozenset[str] | None:
    """Returns what a server of this kind speaks, as declared or by the tables; None: everything is tried, and learned from.

    That holds for OpenAI too, where it depends on the model.
    """
    if declared is not None:
        return frozenset(declared)
    if dialect in _OWN_LANGUAGE:
        return frozenset((_OWN_LANGUAGE[dialect],))
    return frozenset(("chat",)) if kind in _CHAT_ALONE else None


def facts_of(kind: str) -> ServerFacts:
    """Returns what conversions have to know of a server of this kind."""
    if kind in ("openai", "azure"):
        return ServerFacts(
            bound_field="max_completion_tokens",
            takes_developer=True,
            takes_custom_tools=True,
            takes_reasoning=False,
            requires_all=True,
        )
    return ServerFacts(takes_reasoning=kind not in _FORGETFUL)


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
        if spoken is None and asked in ("chat", *_INTO_CHAT):
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
        translator = _made(_INTO_CHAT[asked])
    elif asked == "chat":
        translator = _made(_OUT_OF_CHAT[spoken])
    else:
        translator = ThroughChat(_made(_INTO_CHAT[asked]), _made(_OUT_OF_CHAT[spoken]))
    return Pair(asked, spoken, _PLACES[spoken], translator, _HEADERS.get(spoken, ()))


def _made(place: tuple[str, str]) -> Translator:
    return LaterTranslator(partial(_imported, place))


@cache
def _imported(place: tuple[str, str]) -> Translator:
    module, name = place
    made: Translator = getattr(import_module(module), name)()
    return made


def gaps_by_endpoint(spoken: Spoken, model: str | None) -> Mapping[str, FindGaps]:
    """Returns by endpoint what tells the gaps of a request for such a target; endpoints that it speaks have none.

    `model` is the provider's name for it; None: the caller's own is.
    """
    pairs = spoken.pairs
    found: dict[str, FindGaps] = {asked: Conversion(pair, spoken, model) for asked, pair in pairs.items()}
    if COUNTS not in pairs and "messages" not in (spoken.speaks or ()):
        found[COUNTS] = partial(_gap_of_endpoint, COUNTS)
    if spoken.dialect in _OWN_LANGUAGE:
        found |= {name: partial(_gap_of_endpoint, name) for name in _NOT_THERE if name not in found}
    return found


def why_never(endpoint: str, spoken: Spoken, model: str | None) -> str | None:
    """Returns why a target refuses each call to this endpoint; None: it takes some, or it is not known.

    `model` is the provider's name for it; None: the caller's own is.
    """
    if spoken.dialect not in _OWN_LANGUAGE or endpoint in ("chat", *_INTO_CHAT):
        return None
    find_gaps = gaps_by_endpoint(spoken, model).get(endpoint)
    if find_gaps is None or isinstance(find_gaps, partial):
        return f"the dialect {spoken.dialect} has no such endpoint"
    return next((gap.why for gap in find_gaps({}) if gap.how is How.REFUSED), None)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What becomes of calls to one endpoint at one target. Called with a parsed request, it tells its gaps."""

    pair: Pair
    spoken: Spoken
    model: str | None
    """The provider's name for it; None: the caller's own is."""

    def __call__(self, body: Json) -> Sequence[Gap]:
        facts = self._facts(body)
        found = self.pair.translator.gaps(body, replace(facts, memory=_UNKNOWN_MEMORY) if facts.issuer else facts)
        reads = facts.model.reads
        shown = gaps_of_modalities(body, reads) if reads is not None else []
        return once([*found, *shown]) if shown else found

    def shown(self, body: Json) -> tuple[str, Json]:
        """Returns path and body of the request that is sent, with ids that mean nothing. Raises InvalidRequest."""
        asked = {**body, "model": self.model or body.get("model")}
        sent = self.pair.translator.request(asked, self._facts(body), 0.0, lambda: "id")
        return sent.place or self.pair.place(str(asked["model"]), asked.get("stream") is True), sent.body

    def _facts(self, body: Json) -> ServerFacts:
        return self.spoken.facts(self.pair, self.model or str(body.get("model")))


def _gap_of_endpoint(name: str, _body: Json) -> Sequence[Gap]:
    return (Gap(f"the endpoint '{name}'", How.REFUSED, "the provider has no such endpoint"),)
