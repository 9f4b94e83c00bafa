"""The question of a request, and the ports of the semantic cache: vectors for texts, and the nearest of the stored ones.

First the ports. Then a request is split into the last user message, compared by meaning, and everything else, which must match
exactly. Chats and Responses that end in a user's plain text have such a question; those that end in a picture, a sound, a
tool's result or an assistant's message have none, nor have requests for several choices. Invariant: two requests with equal
text and equal rest are the same request, but for the fields that are left out.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import orjson

from gateway.core.call import Call
from gateway.features.identity import LARGE_BYTES, digest, reads_one_way
from gateway.features.reuse.keys import partition_key
from gateway.features.reuse.rules import CACHING, NOT_OF_THE_QUESTION
from gateway.features.reuse.similar import SemanticQuery
from gateway.features.semantic.store import VectorRow

# --- the ports of the semantic cache ---


class EmbeddingFailed(Exception):
    """No embeddings are to be had at present; the message says why, for the log."""


class EmbeddingDenied(EmbeddingFailed):
    """This caller gets no embedding because of its own limit, budget or credential, which says nothing of the model."""


class Embedder(Protocol):
    """Makes vectors of texts: texts that mean the same get vectors of nearly the same direction."""

    async def embed(self, text: str, call: Call) -> Sequence[float] | None:
        """Returns the text's vector, of any length but zero, made on behalf of a call; None: this text has none.

        Raises EmbeddingFailed.
        """
        ...


class Near(NamedTuple):
    """A row that a search has found, without its vector; `similarity` is the cosine, at most 1."""

    row: VectorRow
    similarity: float


class Neighbourhood(Protocol):
    """The rows of one partition, ready to be searched. All of one model and one tenant."""

    def __len__(self) -> int: ...
    def search(self, vector: bytes, threshold: float, most: int, now_wall: float) -> list[Near]:
        """Returns the rows at least so near and not expired, the nearest first. In any thread, while rows come and go."""
        ...


class Index(Protocol):
    """The partitions in memory, bounded by bytes: the least recently used go first.

    All but `pack` and `build` belong to the event loop's thread, and take microseconds.
    """

    def pack(self, vector: Sequence[float]) -> bytes:
        """Returns the direction of a vector, compact. Raises ValueError when it has none."""
        ...

    def build(self, rows: Sequence[VectorRow], most: int) -> Neighbourhood:
        """Returns a partition of the last `most` of these rows, in any thread, because many rows take long."""
        ...

    def put(self, partition: bytes, built: Neighbourhood) -> None: ...
    def get(self, partition: bytes) -> Neighbourhood | None:
        """Returns the partition; None: it is not in memory."""
        ...

    def add(self, row: VectorRow, most: int) -> None:
        """Adds a row to its partition, if that is in memory, in place of one with its id; beyond `most` the oldest goes."""
        ...

    def remove(self, partition: bytes, id: bytes) -> None: ...
    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes rows as `Vectors.forget` does."""
        ...


# --- the question of a request, apart from everything else in it ---

MOST_CHARS = 8000
"""An embedding of a longer text says little, and its answer rarely serves another question."""
_TEXTS = {"chat": "text", "responses": "input_text", "messages": "text"}
"""The type of a plain text part, by endpoint."""
_FIELDS = {"chat": "messages", "responses": "input", "messages": "messages"}


@dataclass(frozen=True, slots=True)
class Question:
    """`rest` is the request without the text, canonical; to be hashed."""

    text: str
    rest: bytes


def last_question(endpoint: str, parsed: dict[str, Any], ignored: Set[str] = frozenset()) -> Question | None:
    """Returns the question of a request, `ignored` top-level fields left out; None: it cannot be judged by its meaning."""
    if endpoint not in _FIELDS or parsed.get("n") not in (None, 1):
        return None
    field = _FIELDS[endpoint]
    found = _of_items(parsed.get(field), _TEXTS[endpoint])
    if found is None or not found[0].strip() or len(found[0]) > MOST_CHARS:
        return None
    text, items = found
    left_out = NOT_OF_THE_QUESTION | ignored
    rest = {name: value for name, value in parsed.items() if name not in left_out}
    rest[field] = items
    try:
        return Question(text, orjson.dumps(rest, option=orjson.OPT_SORT_KEYS))
    except TypeError:  # nested too deeply to be written again
        return None


def query_of(call: Call, parsed: dict[str, Any]) -> SemanticQuery | None:
    """Returns the call's question for the cache; None: it cannot be judged by its meaning."""
    caching = CACHING.of(call.route.model)
    if caching.semantic is None or len(call.request.body) > LARGE_BYTES or not reads_one_way(call.request.body, parsed):
        return None
    question = last_question(call.request.endpoint.name, parsed, caching.exact.ignore)
    if question is None:
        return None
    embedder = call.route.policy.find_model(caching.semantic.embeddings)
    space = "" if embedder is None else CACHING.of(embedder).version  # where it goes makes its vectors what they are
    partition = digest(partition_key(call, caching, question.rest), space.encode())
    return SemanticQuery(partition, question.text, caching.semantic, call.request.model_name, call.request.tenant)


def _of_items(items: object, text_type: str) -> tuple[str, object] | None:
    """Returns the text of the last message, and all messages without it."""
    if type(items) is str and text_type == _TEXTS["responses"]:
        return items, ""
    if type(items) is not list or not items:
        return None
    last = items[-1]
    if type(last) is not dict or last.get("role") != "user" or last.get("type", "message") != "message":
        return None
    found = _of_content(last.get("content"), text_type)
    return None if found is None else (found[0], [*items[:-1], {**last, "content": found[1]}])


def _of_content(content: object, text_type: str) -> tuple[str, object] | None:
    """Returns the text of a string, or of parts that are all text; whatever else a part carries stays with the rest."""
    if type(content) is str:
        return content, ""
    if type(content) is not list or not all([_is_text(part, text_type) for part in content]):  # noqa: C419 - half the time
        return None
    return "\n".join([part["text"] for part in content]), [{**part, "text": ""} for part in content]


def _is_text(part: object, text_type: str) -> bool:
    return type(part) is dict and part.get("type") == text_type and type(part.get("text")) is str
