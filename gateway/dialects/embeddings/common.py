"""What all embeddings have in common that are asked for in another language than OpenAI's: texts go, vectors come.

Providers answer with numbers; base64, which OpenAI's SDK asks for by itself, is made here. What a text is for has no name at
OpenAI's; callers and configs say it as `input_type`, the way other servers of that API know it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.core.openai.vectors import packed
from gateway.core.types import Gap, How
from gateway.dialects.base import ConvertedRequest, Json, MalformedAnswer, Reader, ServerFacts, gaps_of_fields, text_of

HINT: Final = "the target has no such option"
_KNOWN: Final = frozenset(("model", "input", "dimensions", "encoding_format", "user", "input_type"))
_LOST: Final = {"user": (How.DROPPED, HINT, ())}
_TASKS: Final = {"search_document": "document", "passage": "document", "search_query": "query"}
MostTexts = Callable[[ServerFacts], int]
"""Returns how many texts a model takes in one call."""


def task_of(body: Json) -> str:
    """Returns what the texts are for, in one word of several that mean the same; empty: it is not said."""
    task = text_of(body.get("input_type")).lower()
    return _TASKS.get(task, task)


def texts_of(body: Json) -> list[str]:
    """Returns the texts of a request. Raises InvalidRequest."""
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise InvalidRequest("The field 'input' must be a string or a list of strings for this model.", param="input")
    return texts


def common_gaps(body: Json) -> list[Gap]:
    """Returns what no model can be told."""
    found = gaps_of_fields(body, _LOST)
    if any(value is not None and name not in _KNOWN for name, value in body.items()):
        found.append(Gap("other", How.DROPPED, HINT))
    if _is_numbers(body.get("input")):
        found.append(
            Gap("input", How.REFUSED, "the target takes texts, and no numbers of tokens: send the texts themselves")
        )
    return found


def embeddings_of(sent: ConvertedRequest, vectors: Sequence[list[Any]], read: int | None) -> Json:
    """Returns the answer as OpenAI has it. Raises MalformedAnswer where there is not one vector for each text.

    `read` are the tokens that were read; None: the answer does not tell, and a header may.
    """
    if len(vectors) != len(texts_of(sent.source)):
        raise MalformedAnswer("the answer has not one embedding for each input")
    packs = sent.source.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if packs else vector}
        for index, vector in enumerate(vectors)
    ]
    made: Json = {"object": "list", "data": data, "model": sent.source.get("model")}
    read = sent.read if read is None else read
    return made | ({} if read is None else {"usage": {"prompt_tokens": read, "total_tokens": read}})


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


class NeverStreamed:
    """Has what conversions of embeddings need of `base.Translator` besides."""

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Raises MalformedAnswer: embeddings are not streamed."""
        raise MalformedAnswer("the provider has streamed embeddings")


def _packed(vector: Sequence[float]) -> str:
    """Returns a vector in base64. Raises MalformedAnswer."""
    try:
        return packed(vector).decode()
    except (TypeError, OverflowError) as error:
        raise MalformedAnswer("an embedding is no list of numbers") from error


def _is_numbers(given: Any) -> bool:
    first = given[0] if isinstance(given, list) and given else None
    return isinstance(first, int | list) and not isinstance(first, bool)
