"""A way from a caller's language to a target's, on bytes: what goes there, what comes back, and what a 404 means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.dialects.base import ConvertedRequest, MalformedAnswer, Reader, ServerFacts, Translator
from gateway.errors import InvalidRequest
from gateway.policy.openai.sse import json_object
from gateway.provider_errors import ErrorClass, Phase, UpstreamFailed
from gateway.words import Gap, How

_MODEL_WORDS: Final = ("model", "deployment")
_PATH_WORDS: Final = ("path", "route", "v1/responses", "v1/chat/completions")


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


def names_missing_model(body: bytes) -> bool:
    """Returns whether a 404 says that a model is missing, not the path: then another path changes nothing.

    OpenAI names the path that a model is to be asked at, where that is another one.
    """
    said = json_object(body) or {}
    error: Any = said.get("error", said)
    if not isinstance(error, dict):
        return False
    words = f"{error.get('code')} {error.get('message')} {error.get('param')}".lower()
    return any(word in words for word in _MODEL_WORDS) and not any(word in words for word in _PATH_WORDS)
