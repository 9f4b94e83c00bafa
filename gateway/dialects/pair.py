"""A way from a caller's language to a target's, on bytes: what goes there, what comes back, and what a 404 means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.dialects.base import ConvertedRequest, MalformedAnswer, Reader, ServerFacts, Translator, text_of
from gateway.errors import InvalidRequest
from gateway.policy.openai.sse import json_object
from gateway.provider_errors import ErrorClass, Phase, UpstreamFailed
from gateway.words import Gap, How

_MODEL_WORDS: Final = ("model", "deployment")
_PATH_WORDS: Final = ("path", "route", " url", "_url", "endpoint", "v1/responses", "v1/chat/completions")
_NOT_FOUND: Final = ("not found", "404 not found", "resource not found", "method not allowed")


@dataclass(frozen=True, slots=True)
class Pair:
    """Converts calls in the language `asked`, for a target that speaks `spoken` at `path`."""

    asked: str
    spoken: str
    path: str
    translator: Translator

    def request(
        self, given: bytes, facts: ServerFacts, now: float, new_id: Callable[[], str]
    ) -> tuple[ConvertedRequest, bytes, Sequence[Gap]]:
        """Converts a request. Raises InvalidRequest where it cannot be said in the target's language."""
        body = json_object(given)
        if body is None:
            raise InvalidRequest("The body must be a JSON object.")
        gaps = self.translator.gaps(body, facts)
        refused = [gap for gap in gaps if gap.how is How.REFUSED]
        if refused:
            named = "; ".join(f"'{gap.field}' ({gap.why})" for gap in refused)
            message = f"The model's provider cannot serve {named}. Send the call without, or use another model."
            raise InvalidRequest(message, param=refused[0].field, code="unsupported_by_targets")
        sent = self.translator.request(body, facts, now, new_id)
        return sent, orjson.dumps(sent.body), gaps

    def answer(self, sent: ConvertedRequest, body: bytes) -> bytes:
        """Converts a whole answer; what is none goes on as it is, and is found to be none there.

        Raises UpstreamFailed where something in it is missing.
        """
        said = json_object(body)
        if said is None or isinstance(said.get("error"), dict):
            return body
        try:
            return orjson.dumps(self.translator.answer(sent, said))
        except MalformedAnswer as error:
            raise UpstreamFailed(ErrorClass.MALFORMED_RESPONSE, Phase.ANSWERED, str(error)) from error

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Returns what converts a streamed answer."""
        return self.translator.reader(sent)


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
