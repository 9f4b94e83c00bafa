"""By which pair a call in one language reaches a target that speaks another. The only list of pairs.

In this order: where a model is reached, below the base URL; what a pair does with bytes; the list, and how it is searched.
A language's own code is imported when the first target that speaks it, or the first call in it, is there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson

from gateway.core.errors import BodyTooComplex, InvalidRequest
from gateway.core.openai.json_edit import find_fields, insert_field, is_overcrowded, remove_fields, replace_field
from gateway.core.openai.sse import BYTE_ORDER_MARK, error_json, failed_error, json_object
from gateway.core.types import ErrorClass, Gap, How, Phase, RawHeaders, UpstreamFailed, without_region
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    KnownFields,
    MalformedAnswer,
    Reader,
    ServerFacts,
    ThroughChat,
    Translator,
    lost_in,
    strings,
)

MostTexts = Callable[[ServerFacts], int]
"""Returns how many texts a model takes in one call."""
_PUBLISHER: Final = "/publishers/google"
"""Stands before the models of Google's own among all that a project reaches."""
_CLAUDES_PUBLISHER: Final = "/publishers/anthropic"
_MODELS: Final = "models/"
"""The Gemini API's own names of models begin so."""
_SPACE: Final = b" \t\r\n"
Place = Callable[[str, bool], str]
"""Returns the path below the base URL at which a model is asked, for a stream or a whole answer."""


def _at_google(publisher: str, action: str, streamed: str | None = None) -> Place:
    """Returns the place where the model is a step of the path, and what is done with it stands behind a colon.

    The place raises InvalidRequest where the name would lead elsewhere. Source: the reference of the Gemini API, and of
    Vertex AI (`projects.locations.publishers.models`).
    """

    def place(model: str, is_stream: bool) -> str:
        return f"{publisher}/{_MODELS}{_step(model)}:{streamed if is_stream and streamed else action}"

    return place


def _step(model: str) -> str:
    """Returns a model's name as one step of a path: nothing in it leads to another one."""
    name = model.removeprefix(_MODELS)
    if name in ("", ".", "..") or not name.isprintable():
        raise InvalidRequest("The model's name cannot be part of a URL.", param="model")
    return quote(name, safe="")


def place_of_content(model: str) -> str:
    """Returns the path at which Vertex AI asks Gemini for the embedding of one text. Raises InvalidRequest."""
    return f"{_PUBLISHER}/{_MODELS}{_step(model)}:embedContent"


def place_of_contents(model: str) -> str:
    """Returns the path at which Vertex AI asks Gemini for embeddings of several texts. Raises InvalidRequest."""
    return f"{_PUBLISHER}/{_MODELS}{_step(model)}:batchEmbedContents"


def front_of(model: str, *, is_stream: bool) -> bytes:
    """Returns what a body begins with that says what the path of a caller of Gemini's says.

    Inside the gateway both stand there, where all other languages have them; `gemini/in_request.py` takes it out again.
    """
    return b'{"model":%b%b' % (orjson.dumps(model), b',"stream":true' if is_stream else b"")


def put_in(front: bytes, body: bytes) -> bytes:
    """Returns the body with its front; one that is no object as it is."""
    given = body.lstrip(_SPACE)
    if not given.startswith(b"{"):
        return body
    rest = given[1:].lstrip(_SPACE)
    return b"%b%b%b" % (front, b"" if rest.startswith(b"}") else b",", rest)


def _at_bedrock(action: str, streamed: str) -> Place:
    """Returns the place where Bedrock is asked, at another path for a stream. It raises UpstreamFailed as `_segment` does."""
    return lambda model, is_stream: f"/model/{_segment(model)}/{streamed if is_stream else action}"


def _segment(model: str) -> str:
    """Returns a model's name as one step of a path, an ARN with slashes, too.

    Raises UpstreamFailed where it would lead to another one.
    """
    if model in ("", ".", "..") or not model.isprintable():
        raise UpstreamFailed(ErrorClass.BAD_REQUEST, Phase.NOTHING_SENT, "the model's name cannot be part of a URL")
    return quote(model, safe="")


# --- A way from a caller's language to a target's, on bytes ---


_MOST_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Pair:
    """Converts calls in the language `source`, for a target that speaks `target` at `place`."""

    source: str
    target: str
    place: Place
    translator: Translator
    headers: RawHeaders = ()
    """Headers that the target's language requires."""
    header_fields: Mapping[bytes, str] = field(default_factory=dict)
    """Headers of the caller's, lists of words, that the target wants in the body, and the fields for them."""
    kept_headers: Container[bytes] = ()
    """Headers of the caller's that mean something in its language alone, and to this target."""
    keeps_bytes: bool = False
    """The caller's language is the target's, but for fields around it: all others go as they are written."""
    most_texts: MostTexts | None = None
    """How many texts go in one call; None: nothing goes in pieces."""
    counted_in: bytes = b""
    """The header of an answer that tells how many tokens were read; empty: the answer does."""

    def request(
        self,
        given: bytes,
        facts: ServerFacts,
        now: float,
        new_id: Callable[[], str],
        *,
        refuses_loss: bool = False,
        headers: RawHeaders = (),
    ) -> tuple[ConvertedRequest, bytes, Sequence[Gap]]:
        """Converts a request. Raises InvalidRequest where the target's language cannot express it.

        `refuses_loss`: also where it cannot be said as the caller said it; `headers` are the caller's.
        """
        body = json_object(given)
        if body is None:
            raise InvalidRequest("The body must be a JSON object.")
        source = self._with_headers(body, headers) if self.header_fields else body
        try:
            sent = self.translator.request(source, facts, now, new_id)
        except InvalidRequest:  # a field that cannot be served is named before one that makes no sense
            refuse(self.translator.gaps(body, facts), refuses_loss=refuses_loss)
            raise
        gaps = lost_in(sent, self.translator, facts)
        refuse(gaps, refuses_loss=refuses_loss)
        if self.keeps_bytes:
            return sent, _with_envelope(given, body, sent.body), gaps
        try:
            return sent, orjson.dumps(sent.body), gaps
        except orjson.JSONEncodeError as error:
            # JSON in a text of the call, such as a tool's arguments, has become a part of it.
            message = "A text of the call holds JSON that is nested too deeply to be converted."
            raise InvalidRequest(message, param="messages", code=BodyTooComplex.code) from error

    def _with_headers(self, body: Json, headers: RawHeaders) -> Json:
        """Returns the request with what its headers say that the target wants in the body."""
        made = dict(body)
        for name, value in headers:
            if (field := self.header_fields.get(name)) is not None:
                words = (word.strip() for word in value.decode("latin-1").split(","))
                made[field] = list(dict.fromkeys([*strings(made.get(field)), *filter(None, words)]))
        return made

    def pieces(self, given: bytes, facts: ServerFacts) -> list[bytes]:
        """Returns the requests that a call becomes which asks for more at once than the target gives; none: it is one."""
        body = json_object(given) if self.most_texts is not None else None
        if self.most_texts is None or body is None:
            return []
        return [orjson.dumps(piece) for piece in in_pieces(body, self.most_texts(facts))]

    def put_together(self, answers: Sequence[bytes]) -> bytes:
        """Returns the converted answers to the pieces of a call as one. Raises UpstreamFailed where one is none."""
        parsed = [found for answer in answers if (found := json_object(answer)) is not None and "data" in found]
        if len(parsed) < len(answers):
            raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, "a part of the answer is none")
        return orjson.dumps(put_together(parsed))

    def with_count(self, sent: ConvertedRequest, headers: RawHeaders) -> ConvertedRequest:
        """Returns the request with the tokens that were read, where a header of its answer tells them."""
        if not self.counted_in:
            return sent
        count = next((value for name, value in headers if name == self.counted_in), b"")
        return replace(sent, read=int(count)) if count.isdigit() and len(count) < _MOST_DIGITS else sent

    def answer(self, sent: ConvertedRequest, body: bytes) -> bytes:
        """Converts a whole answer; what is none goes on as it is, and is found to be none there.

        Raises UpstreamFailed where something in it is missing, or it would take too long to read.
        """
        if is_overcrowded(body):
            raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, "the answer has too many values")
        body = body.removeprefix(BYTE_ORDER_MARK)
        parsed = json_object(body)
        if parsed is None or isinstance(parsed.get("error"), dict):
            return body
        if (error := failed_error(parsed)) is not None:  # no language says it as a reason why an answer ended
            return error_json(error)
        try:
            made = self.translator.answer(sent, parsed)
            return body if made is parsed else orjson.dumps(made)
        except (MalformedAnswer, orjson.JSONEncodeError) as error:
            raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, str(error)) from error

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Returns what converts a streamed answer. Raises UpstreamFailed where none can be streamed."""
        try:
            return self.translator.reader(sent)
        except MalformedAnswer as error:
            raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, str(error)) from error


def refuse(gaps: Sequence[Gap], *, refuses_loss: bool) -> None:
    """Raises InvalidRequest where the target's language cannot express something, or where nothing may be lost."""
    refused = [gap for gap in gaps if refuses_loss or gap.how is How.REFUSED]
    if refused:
        named = "; ".join(f"'{gap.field}' ({gap.why})" for gap in refused)
        message = f"The model's provider cannot serve {named}. Send the call without, or use another model."
        raise InvalidRequest(message, param=refused[0].field, code="unsupported_by_targets")


def _with_envelope(given: bytes, request: Json, made: Json) -> bytes:
    """Returns the caller's bytes with the top-level fields that were left out, set or added."""
    for name in request.keys() - made.keys():  # left out
        given = remove_fields(given, find_fields(given, name))
    for name, value in made.items():
        if name not in request:
            given = insert_field(given, name, orjson.dumps(value))
        elif value is not request[name]:  # the same object: it is as the caller wrote it, and so are its bytes
            fields = find_fields(given, name)
            given = replace_field(remove_fields(given, fields[:-1]), name, orjson.dumps(value))
    return given


# --- The list of pairs, and how it is searched ---


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

_OPENAI: Final = "gateway.dialects.openai.translators"
_GEMINI: Final = "gateway.dialects.gemini.translators"
_GEMINI_EMBEDDINGS: Final = "gateway.dialects.embeddings"
_CLAUDE: Final = "gateway.dialects.anthropic.translators"
INTO_CHAT: Final[Mapping[str, tuple[str, str]]] = {
    "responses": (_OPENAI, "ResponsesOverChat"),
    "messages": ("gateway.dialects.anthropic.in_gaps", "MessagesOverChat"),
    "generate": ("gateway.dialects.gemini.in_gaps", "GenerateOverChat"),
}
"""The translators that serve a caller's language by chat completions, by that language."""
_OUT_OF_CHAT: Final[Mapping[str, tuple[str, str]]] = {
    "responses": (_OPENAI, "ChatOverResponses"),
    "messages": (_CLAUDE, "ChatOverMessages"),
    "generate": (_GEMINI, "ChatOverGenerate"),
    "vertex": (_GEMINI, "ChatOverGenerate"),
    "converse": ("gateway.dialects.bedrock.request", "ChatOverConverse"),
    "claude_at_vertex": (_CLAUDE, "ChatAtVertex"),
}
"""The translators that serve callers of chat completions by a target's language, by that language."""
_OUT_OF_HUB: Final[Mapping[str, tuple[str, str]]] = {"responses": (_OPENAI, "HubOverResponses")}
"""The translators that serve callers of other languages, where they are not those of `_OUT_OF_CHAT`."""
_FORMS: Final[Mapping[str, tuple[str, str]]] = {
    "chat": ("gateway.dialects.openai.fields", "CHAT"),
    "responses": ("gateway.dialects.openai.fields", "RESPONSES"),
    "messages": ("gateway.dialects.anthropic.in_gaps", "MESSAGES"),
    "generate": ("gateway.dialects.gemini.in_gaps", "GENERATE"),
}
"""The fields that a request may have, by the caller's language."""


class _Direct(NamedTuple):
    """A way that does not lead by chat completions."""

    translator: tuple[str, str]
    place: Place
    header_fields: Mapping[bytes, str] = {}
    """Headers of the caller's that go into the body, and the fields for them."""
    kept_headers: Container[bytes] = ()
    """Headers of the caller's that mean something in its language alone, and to this target."""
    keeps_bytes: bool = False
    """Only the fields around the body change."""
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
        _at_google("", "batchEmbedContents"),
        most_texts=lambda _facts: _GEMINIS_TEXTS,
    ),
    ("embeddings", "vertex"): _Direct(
        (_GEMINI_EMBEDDINGS, "EmbeddingsAtVertex"),
        _at_google(_PUBLISHER, "predict"),
        most_texts=lambda facts: _GEMINIS_TEXTS if facts.model.embeds == "gemini" else _PREDICTS_TEXTS,
    ),
    ("embeddings", "converse"): _Direct(
        ("gateway.dialects.embeddings", "EmbeddingsOverInvoke"),
        _at_bedrock("invoke", "invoke-with-response-stream"),
        most_texts=lambda facts: _COHERES_TEXTS if facts.model.embeds == "cohere" else 1,
        counted_in=b"x-amzn-bedrock-input-token-count",
    ),
    ("messages", "claude"): _Direct(
        (_CLAUDE, "MessagesAtBedrock"),
        _at_bedrock("invoke", "invoke-with-response-stream"),
        {_BETAS: "anthropic_beta"},
        keeps_bytes=True,
    ),
    ("messages", "claude_at_vertex"): _Direct(
        (_CLAUDE, "MessagesAtVertex"),
        _at_google(_CLAUDES_PUBLISHER, "rawPredict", "streamRawPredict"),
        kept_headers=(_BETAS,),
        keeps_bytes=True,
    ),
    (COUNTS, "claude"): _Direct(
        (_CLAUDE, "CountsAtBedrock"),
        # CountTokens knows models, and none by a profile of several regions.
        lambda model, _is_stream: f"/model/{_segment(without_region(model))}/count-tokens",
        {_BETAS: "anthropic_beta"},
    ),
    (COUNTS, "claude_at_vertex"): _Direct(
        (_CLAUDE, "CountsAtVertex"),
        lambda _model, _is_stream: f"{_CLAUDES_PUBLISHER}/{_MODELS}count-tokens:rawPredict",
        kept_headers=(_BETAS,),
    ),
    (COUNTS, OPENAIS_COUNTS): _Direct(
        ("gateway.dialects.openai.translators", "CountsOfResponses"),
        lambda _model, _is_stream: "/responses/input_tokens",
    ),
    (COUNTS, "generate"): _Direct((_GEMINI, "CountsOfGenerate"), _at_google("", "countTokens")),
    (COUNTS, "vertex"): _Direct((_GEMINI, "CountsAtVertexAI"), _at_google(_PUBLISHER, "countTokens")),
}
"""The ways that lead straight, by the caller's endpoint and the target's language."""

_PLACES: Final[Mapping[str, Place]] = {
    "chat": lambda _model, _is_stream: PATHS["chat"],
    "responses": lambda _model, _is_stream: PATHS["responses"],
    "messages": lambda _model, _is_stream: PATHS["messages"],
    "generate": _at_google("", "generateContent", "streamGenerateContent?alt=sse"),
    "vertex": _at_google(_PUBLISHER, "generateContent", "streamGenerateContent?alt=sse"),
    "converse": _at_bedrock("converse", "converse-stream"),
    "claude_at_vertex": _at_google(_CLAUDES_PUBLISHER, "rawPredict", "streamRawPredict"),
}
_HEADERS: Final[Mapping[str, RawHeaders]] = {"messages": ((b"anthropic-version", b"2023-06-01"),)}
"""Headers that a language requires, by its name. Of Anthropic's versions the older one takes all that the newer one does, and
`temperature` besides, where the model has it."""
_PREFERRED: Final = tuple(_PLACES)
"""The languages in order of preference: of several that a target speaks and the caller does not, the first is taken."""


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
        return {language: pair_of(language, "chat") for language in ("messages", "generate")}
    found = {}
    # Google's targets take Gemini's language as it is, at paths of their own: it needs no pair there.
    unspoken = PATHS.keys() - speaks - ({"generate"} if own_place(speaks) else set())
    for language in unspoken:
        target_language = next((one for one in sorted(speaks) if (language, one) in _DIRECT), None)
        if target_language is None and language in ("chat", *INTO_CHAT):
            target_language = next((one for one in _PREFERRED if one in speaks), None)
        if target_language is not None:
            found[language] = pair_of(language, target_language)
    return found


def own_place(speaks: frozenset[str] | None) -> Place | None:
    """Returns where a target takes calls in Gemini's language, which name their model in the path; None: it does not."""
    return next((_PLACES[one] for one in ("generate", "vertex") if one in (speaks or ())), None)


@cache
def pair_of(source: str, target: str) -> Pair:
    """Returns the way from one language to another, both known."""
    translator: Translator
    if (source, target) in _DIRECT:
        way = _DIRECT[source, target]
        translator = _made(way.translator)
        return Pair(source, target, way.place, translator, (), *way[2:])
    if target == "chat":
        translator = _made(INTO_CHAT[source])
    elif source == "chat":
        translator = _made(_OUT_OF_CHAT[target])
    else:
        translator = ThroughChat(_made(INTO_CHAT[source]), _made(_OUT_OF_HUB.get(target, _OUT_OF_CHAT[target])))
    translator = KnownFields(partial(_imported, _FORMS[source]), translator)
    return Pair(source, target, _PLACES[target], translator, _HEADERS.get(target, ()))


def _made(place: tuple[str, str]) -> Translator:
    return LaterTranslator(partial(_created, place))


@cache
def _created(place: tuple[str, str]) -> Translator:
    made: Translator = _imported(place)()
    return made


@cache
def _imported(place: tuple[str, str]) -> Any:
    module, name = place
    return getattr(import_module(module), name)


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


def in_pieces(body: Json, most: int) -> list[Json]:
    """Returns the request as several, of at most so many texts each; none where it is small enough, or makes no sense."""
    given = body.get("input")
    if not isinstance(given, list) or len(given) <= most or not all(isinstance(one, str) for one in given):
        return []
    return [{**body, "input": given[at : at + most]} for at in range(0, len(given), most)]


def put_together(answers: Sequence[Json]) -> Json:
    """Returns the answers to the pieces of a request as the one to all of it; usage only where each tells it."""
    data = [one for answer in answers for one in answer["data"]]
    made = {**answers[0], "data": [{**one, "index": index} for index, one in enumerate(data)]}
    made.pop("usage", None)
    if all("usage" in answer for answer in answers):
        read = sum(answer["usage"]["prompt_tokens"] for answer in answers)
        made["usage"] = {"prompt_tokens": read, "total_tokens": read}
    return made
