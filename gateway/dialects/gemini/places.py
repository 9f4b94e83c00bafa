"""Where models are asked: the model is a step of the path, what is done with it stands behind a colon.

Source: the reference of the Gemini API, and of Vertex AI (`projects.locations.publishers.models`).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import orjson

from gateway.core.errors import InvalidRequest

_MODELS: Final = "models/"
"""The Gemini API's own names of models begin so."""
_SPACE: Final = b" \t\r\n"
_PUBLISHER: Final = "/publishers/google"
"""Stands before the models of Google's own among all that a project reaches."""


def place_of_gemini(model: str, is_stream: bool) -> str:
    """Returns the path of a model below the version of the API. Raises InvalidRequest."""
    return f"/{_MODELS}{_step(model)}:{_ask(is_stream=is_stream)}"


def place_at_vertex(model: str, is_stream: bool) -> str:
    """Returns the path of a model below a project's location. Raises InvalidRequest."""
    return f"{_PUBLISHER}/{_MODELS}{_step(model)}:{_ask(is_stream=is_stream)}"


def place_of_claude_at_vertex(model: str, is_stream: bool) -> str:
    """Returns the path of a model of Anthropic's below a project's location. Raises InvalidRequest."""
    return f"/publishers/anthropic/{_MODELS}{_step(model)}:{'streamRawPredict' if is_stream else 'rawPredict'}"


def place_of_counts(model: str, _is_stream: bool) -> str:
    """Returns the path at which the Gemini API counts the tokens of a request. Raises InvalidRequest."""
    return f"/{_MODELS}{_step(model)}:countTokens"


def place_of_counts_at_vertex(model: str, _is_stream: bool) -> str:
    """Returns the path at which Vertex AI counts the tokens of a request to Google's own. Raises InvalidRequest."""
    return f"{_PUBLISHER}/{_MODELS}{_step(model)}:countTokens"


def place_of_claude_counts_at_vertex(_model: str, _is_stream: bool) -> str:
    """Returns the path at which Vertex AI counts the tokens of requests to all models of Anthropic's."""
    return f"/publishers/anthropic/{_MODELS}count-tokens:rawPredict"


def place_of_embeddings(model: str, _is_stream: bool) -> str:
    """Returns the path at which the Gemini API takes several texts at once. Raises InvalidRequest."""
    return f"/{_MODELS}{_step(model)}:batchEmbedContents"


def place_of_content(model: str) -> str:
    """Returns the path at which Vertex AI asks Gemini for the embedding of one text. Raises InvalidRequest."""
    return f"{_PUBLISHER}/{_MODELS}{_step(model)}:embedContent"


def place_of_contents(model: str) -> str:
    """Returns the path at which Vertex AI asks Gemini for embeddings of several texts. Raises InvalidRequest."""
    return f"{_PUBLISHER}/{_MODELS}{_step(model)}:batchEmbedContents"


def place_of_embeddings_at_vertex(model: str, _is_stream: bool) -> str:
    """Returns the path at which Vertex AI takes texts for embeddings. Raises InvalidRequest."""
    return f"{_PUBLISHER}/{_MODELS}{_step(model)}:predict"


def front_of(model: str, *, is_stream: bool) -> bytes:
    """Returns what a body begins with that says what the path of a caller of Gemini's says.

    Inside the gateway both stand there, where all other languages have them; `in_request.py` takes it out again.
    """
    return b'{"model":%b%b' % (orjson.dumps(model), b',"stream":true' if is_stream else b"")


def put_in(front: bytes, body: bytes) -> bytes:
    """Returns the body with its front; one that is no object as it is."""
    given = body.lstrip(_SPACE)
    if not given.startswith(b"{"):
        return body
    rest = given[1:].lstrip(_SPACE)
    return b"%b%b%b" % (front, b"" if rest.startswith(b"}") else b",", rest)


def _ask(*, is_stream: bool) -> str:
    return "streamGenerateContent?alt=sse" if is_stream else "generateContent"


def _step(model: str) -> str:
    """Returns a model's name as one step of a path: nothing in it leads to another one."""
    name = model.removeprefix(_MODELS)
    if name in ("", ".", "..") or not name.isprintable():
        raise InvalidRequest("The model's name cannot be part of a URL.", param="model")
    return quote(name, safe="")
