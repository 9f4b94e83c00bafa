"""A way from a caller's language to a target's, on bytes: what goes there, what comes back, and what a 404 means."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from gateway.core.errors import BodyTooComplex, InvalidRequest
from gateway.core.openai.json_edit.json_edit import find_fields, insert_field, remove_fields, replace_field
from gateway.core.openai.json_edit.json_text import is_overcrowded
from gateway.core.openai.sse.sse import json_object
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.provider_errors import ErrorClass, Phase, UpstreamFailed
from gateway.core.types.words import Gap, How
from gateway.dialects.base.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    Reader,
    ServerFacts,
    Translator,
    lost_in,
    strings,
    text_of,
)
from gateway.dialects.embeddings.common import MostTexts, in_pieces, put_together

_MODEL_WORDS: Final = ("model", "deployment")
_PATH_WORDS: Final = ("path", "route", " url", "_url", "endpoint", "v1/responses", "v1/chat/completions")
_NOT_FOUND: Final = ("not found", "404 not found", "resource not found", "method not allowed")


_MOST_DIGITS: Final = 10
Place = Callable[[str, bool], str]
"""Returns the path below the base URL at which a model is asked, for a stream or a whole answer."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Converts calls in the language `asked`, for a target that speaks `spoken` at `place`."""

    asked: str
    spoken: str
    place: Place
    translator: Translator
    headers: RawHeaders = ()
    """What the target's language wants said besides."""
    header_fields: Mapping[bytes, str] = field(default_factory=dict)
    """Headers of the caller's, lists of words, that the target wants in the body, and the fields for them."""
    kept_headers: Container[bytes] = ()
    """Headers of the caller's that mean something in its language alone, and to this target."""
    keeps_bytes: bool = False
    """The caller's language is the target's, but for fields around it: all others go as they are written."""
    most_texts: MostTexts | None = None
    """How many texts go in one call; None: nothing is asked for in pieces."""
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
        """Converts a request. Raises InvalidRequest where it cannot be said in the target's language.

        `refuses_loss`: also where it cannot be said as the caller said it; `headers` are the caller's.
        """
        body = json_object(given)
        if body is None:
            raise InvalidRequest("The body must be a JSON object.")
        asked = self._with_headers(body, headers) if self.header_fields else body
        try:
            sent = self.translator.request(asked, facts, now, new_id)
        except InvalidRequest:  # that a field cannot be served is said before that one makes no sense
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
            told = "A text of the call holds JSON that is nested too deeply to be converted."
            raise InvalidRequest(told, param="messages", code=BodyTooComplex.code) from error

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
        said = [found for answer in answers if (found := json_object(answer)) is not None and "data" in found]
        if len(said) < len(answers):
            raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, "a part of the answer is none")
        return orjson.dumps(put_together(said))

    def with_count(self, sent: ConvertedRequest, headers: RawHeaders) -> ConvertedRequest:
        """Returns the request with the tokens that were read, where a header of its answer tells them."""
        if not self.counted_in:
            return sent
        told = next((value for name, value in headers if name == self.counted_in), b"")
        return replace(sent, read=int(told)) if told.isdigit() and len(told) < _MOST_DIGITS else sent

    def answer(self, sent: ConvertedRequest, body: bytes) -> bytes:
        """Converts a whole answer; what is none goes on as it is, and is found to be none there.

        Raises UpstreamFailed where something in it is missing, or it would take too long to read.
        """
        if is_overcrowded(body):
            raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, "the answer has too many values")
        said = json_object(body)
        if said is None or isinstance(said.get("error"), dict):
            return body
        try:
            made = self.translator.answer(sent, said)
            return body if made is said else orjson.dumps(made)
        except (MalformedAnswer, orjson.JSONEncodeError) as error:
            raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, str(error)) from error

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Returns what converts a streamed answer."""
        return self.translator.reader(sent)


def refuse(gaps: Sequence[Gap], *, refuses_loss: bool) -> None:
    """Raises InvalidRequest where something cannot be said in the target's language, or may not be lost."""
    refused = [gap for gap in gaps if refuses_loss or gap.how is How.REFUSED]
    if refused:
        named = "; ".join(f"'{gap.field}' ({gap.why})" for gap in refused)
        message = f"The model's provider cannot serve {named}. Send the call without, or use another model."
        raise InvalidRequest(message, param=refused[0].field, code="unsupported_by_targets")


def _with_envelope(given: bytes, asked: Json, made: Json) -> bytes:
    """Returns the caller's bytes with the top-level fields that were left out, set or added."""
    for name in asked.keys() - made.keys():
        given = remove_fields(given, find_fields(given, name))
    for name, value in made.items():
        if name not in asked:
            given = insert_field(given, name, orjson.dumps(value))
        elif value is not asked[name]:
            fields = find_fields(given, name)
            given = replace_field(remove_fields(given, fields[:-1]), name, orjson.dumps(value))
    return given


def says_path_is_unknown(body: bytes) -> bool:
    """Returns whether a 404 or 405 means the path, and not a model or anything else that was asked for.

    OpenAI names the path that a model is to be asked at, where that is another one; a web server's page, and what frameworks
    say by themselves, is no word on what was asked.
    """
    said = json_object(body)
    if said is None:
        return True
    error = said.get("error")
    if isinstance(error, dict):
        message = text_of(error.get("message")).lower()
        words = f"{text_of(error.get('code')).lower()} {message}"
        return any(word in words for word in _PATH_WORDS) or message.strip(" .") in _NOT_FOUND
    words = f"{said.get('detail')} {said.get('message')} {error}".lower()
    return not any(word in words for word in _MODEL_WORDS)
