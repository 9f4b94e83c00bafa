"""What a target speaks, what conversions have to know of it, and what a call in another language loses on its way there.

At the end: what a request shows a model besides text, and what of it a model is known not to take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final, Literal

from gateway.core.snapshot import MAX_NAME_CHARS
from gateway.core.types import FindUnsupportedFields, Gap, How
from gateway.dialects.base import OPENAIS_FIELDS, Json, ModelFacts, ServerFacts, object_of, once, text_of
from gateway.dialects.issuers import OPENAIS_KINDS
from gateway.dialects.known import MOST_REMEMBERED, Known
from gateway.dialects.memory import UnknownMemory
from gateway.dialects.registry import COUNTS, INTO_CHAT, OPENAIS_COUNTS, Pair, pair_of, pairs_for
from gateway.dialects.schema_tools.chat_parts import type_of_name

_OWN_LANGUAGE: Final[Mapping[str, str]] = {
    "anthropic": "messages", "gemini": "generate", "vertex": "vertex", "bedrock": "converse",
}  # fmt: skip
"""The one language of dialects that are not OpenAI's. Vertex says what Gemini says, at other places."""
_OF_CLAUDE: Final = {"bedrock": frozenset(("converse", "claude")), "vertex": frozenset(("claude_at_vertex",))}
"""What clouds speak with models of Anthropic's."""
_NOT_THERE: Final = ("completions", "embeddings", "moderations", "images", "speech", "transcriptions")
"""Endpoints of OpenAI's that are in no other language."""

_CHAT_ALONE: Final = frozenset(("mistral", "gemini", "anthropic", "cohere"))
"""Kinds of servers whose API knows chat completions and no Responses."""

_FORGETFUL: Final = frozenset(("mistral", "gemini", "anthropic", "cohere", "groq"))
"""Kinds of servers that refuse a `reasoning_content` in a message, or leave it unread."""

_TAKE_LONGER_USERS: Final = frozenset(("openrouter", "other"))
"""Kinds of servers that take longer identifiers of users than OpenAI; of the others so do Zhipu's and Doubao's."""
_LONGER_USERS: Final = 128
_SIGNED_IN: Final[Mapping[str, Literal["reasoning_details", "extra_content"]]] = {
    "gemini": "extra_content",
    "vertex": "extra_content",
    "openrouter": "reasoning_details",
}
"""Where chat completions of these kinds have what their models signed."""
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "openai": OPENAIS_FIELDS,
    "azure": OPENAIS_FIELDS,
    "openrouter": OPENAIS_FIELDS | {"top_k"},
    "groq": frozenset(("service_tier",)),
    "mistral": frozenset(("metadata", "prompt_cache_key")),
    **dict.fromkeys(("vllm", "sglang", "together", "fireworks"), frozenset(("top_k",))),
}
"""What a server knows beside the fields that all of them have (see `ServerFacts.knows`), by its kind."""

FindModel = Callable[[str], ModelFacts]
"""Returns what is known of a model by the provider's name for it."""

_OPENAIS: Final = frozenset(("chat", "responses"))
"""Languages between which a call is put without knowing anything of the model."""
_UNKNOWN: Final = ModelFacts()
_UNKNOWN_MEMORY: Final = UnknownMemory()


def _unknown(_model: str) -> ModelFacts:
    return _UNKNOWN


@dataclass(frozen=True, slots=True)
class TargetLanguages:
    """What a target speaks, and what conversions have to know of it."""

    kind: str
    speaks: frozenset[str] | None
    """The languages of the target; None: unknown, its answers show which of OpenAI's two it is, for who has another says so."""
    dialect: str = "openai"
    find_model: FindModel = field(default=_unknown, compare=False)
    approximates: bool = False
    sets: frozenset[str] = frozenset()
    """The fields that the config sets in the target's requests: whoever does knows that the target takes them."""
    find_sources: Callable[[str], Mapping[str, Known]] = field(default=lambda _model: {}, compare=False)
    _facts: dict[tuple[str, str, str], ServerFacts] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What was found, by the languages of a conversion and the model: calls ask for the same again and again."""

    def at(self, model: str | None) -> TargetLanguages:
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
        key = pair.source, pair.target, model[:MAX_NAME_CHARS]
        is_openais = pair.source in _OPENAIS and pair.target in _OPENAIS
        known = _UNKNOWN if is_openais else self.find_model(model)
        found = self._facts.get(key)
        if found is None or found.model is not known:  # providers may tell more of their models
            if len(self._facts) >= MOST_REMEMBERED:  # callers may send any name to a target that takes every model
                self._facts.clear()
            issuer = self.dialect if self.dialect in _OWN_LANGUAGE else ""
            plain = facts_of(self.kind)
            knows = plain.knows | self.sets
            found = replace(plain, issuer=issuer, model=known, approximates=self.approximates, knows=knows)
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
    if kind in OPENAIS_KINDS:
        return ServerFacts(
            bound_field="max_completion_tokens",
            takes_developer=True,
            takes_custom_tools=True,
            takes_reasoning=False,
            requires_all=True,
            knows=_KNOWN[kind],
        )
    knows = _KNOWN.get(kind, frozenset())
    found = ServerFacts(takes_reasoning=kind not in _FORGETFUL, signed_in=_SIGNED_IN.get(kind, ""), knows=knows)
    return replace(found, most_user_characters=_LONGER_USERS) if kind in _TAKE_LONGER_USERS else found


def gaps_by_endpoint(languages: TargetLanguages, model: str | None) -> Mapping[str, FindUnsupportedFields]:
    """Returns by endpoint what finds the gaps of a request for such a target; endpoints that it speaks have none.

    `model` is the provider's name for it; None: the caller's own is.
    """
    pairs = languages.pairs
    found: dict[str, FindUnsupportedFields] = {
        language: Conversion(pair, languages, model) for language, pair in pairs.items()
    }
    if COUNTS not in pairs and "messages" not in (languages.speaks or ()):
        found[COUNTS] = partial(_gap_of_endpoint, COUNTS)
    if languages.dialect in _OWN_LANGUAGE:
        found |= {name: partial(_gap_of_endpoint, name) for name in _NOT_THERE if name not in found}
    return found


def why_never(endpoint: str, languages: TargetLanguages, model: str | None) -> str | None:
    """Returns why a target refuses each call to this endpoint; None: it takes some, or it is not known.

    `model` is the provider's name for it; None: the caller's own is.
    """
    if languages.dialect not in _OWN_LANGUAGE or endpoint in ("chat", *INTO_CHAT):
        return None
    find_gaps = gaps_by_endpoint(languages, model).get(endpoint)
    if find_gaps is None or isinstance(find_gaps, partial):
        return f"the dialect {languages.dialect} has no such endpoint"
    return next((gap.why for gap in find_gaps({}) if gap.how is How.REFUSED), None)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What becomes of calls to one endpoint at one target. Called with a parsed request, it returns its gaps."""

    pair: Pair
    languages: TargetLanguages
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
        source = {**body, "model": self.model or body.get("model")}
        sent = self.pair.translator.request(source, self._facts(body), 0.0, lambda: "id")
        return sent.place or self.pair.place(str(source["model"]), source.get("stream") is True), sent.body

    def _facts(self, body: Json) -> ServerFacts:
        return self.languages.facts(self.pair, self.model or str(body.get("model")))


def _gap_of_endpoint(name: str, _body: Json) -> Sequence[Gap]:
    return (Gap(f"the endpoint '{name}'", How.REFUSED, "the provider has no such endpoint"),)


# --- What a request shows a model besides text ---


_KINDS: Final = {
    "image_url": "image", "input_image": "image", "image": "image", "computer_screenshot": "image",
    "input_audio": "audio", "video_url": "video",
    "file": "pdf", "input_file": "pdf", "document": "pdf",
}  # fmt: skip
"""Kinds of parts, in all languages, and what they show."""


_WORDS: Final = {"image": "pictures", "audio": "sound", "video": "video", "pdf": "PDF"}


_PDF: Final = "application/pdf"


_MOST_PARTS: Final = 4096


def gaps_of_modalities(body: Json, reads: tuple[str, ...]) -> list[Gap]:
    """Returns what of a request a model cannot take that takes text and `reads` alone, each kind of part once.

    The parts are looked at once, in whichever language the request is, and only where something is known of the model; what
    has no kind that is known here is the conversion's own business.
    """
    found: dict[str, Gap] = {}
    for name in ("messages", "input"):
        items = body.get(name)
        if type(items) is list:
            for part in islice(_parts(items), _MOST_PARTS):
                kind = part.get("type")
                shown = _KINDS.get(kind) if type(kind) is str else None
                if shown is not None and shown not in reads and (shown != "pdf" or _is_pdf(part)):
                    where = f"{name}.{kind}"
                    found[where] = Gap(where, How.REFUSED, f"the model takes no {_WORDS[shown]}")
    return list(found.values())


def _parts(items: list[Any]) -> Iterator[Json]:
    """Yields the parts of messages and of results of tools; most messages are plain, and have none."""
    for item in reversed(items):
        if type(item) is not dict:
            continue
        for name in ("content", "output"):
            content = item.get(name)
            if type(content) is list:
                for part in content:
                    if type(part) is dict:
                        yield part
                        inner = part.get("content")
                        if type(inner) is list:
                            yield from (one for one in inner if type(one) is dict)


def _is_pdf(part: Json) -> bool:
    """Returns whether a file is known to be a PDF, by its type, its name or its place."""
    file = part if part.get("type") == "input_file" else object_of(part.get("file"))
    source = object_of(part.get("source"))
    kinds = (source.get("media_type"), type_of_name(source.get("url")), type_of_name(file.get("filename")))
    return _PDF in kinds or text_of(file.get("file_data")).startswith(f"data:{_PDF}")
