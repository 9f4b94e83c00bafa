"""Embeddings at targets whose API is not OpenAI's: texts go, vectors come.

First what all have in common: providers answer with numbers, and base64, which OpenAI's SDK asks for by itself, is made here;
what a text is for has no name at OpenAI's, so callers and configs say it as `input_type`, the way other servers of that API
know it. Then Google's: the Gemini API takes many texts at once; Vertex AI asks older models by `predict`, and Gemini's by
`embedContent`, of which several are a batch. Then Bedrock's InvokeModel, whose body is each maker's own: Titan and Nova take
one text a call, Cohere up to 96; a model's facts say which (`embeds`). Sources: the Gemini API's reference, batchEmbedContents;
Vertex AI's, text embeddings; google-genai, `models.embed_content`; Amazon's model parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.core.openai.vectors import packed
from gateway.core.types import Gap, How
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    Reader,
    ServerFacts,
    gaps_of_fields,
    object_of,
    objects,
    once,
    text_of,
)
from gateway.dialects.registry import place_of_content, place_of_contents

HINT: Final = "the target has no such option"
_KNOWN: Final = frozenset(("model", "input", "dimensions", "encoding_format", "user", "input_type"))
_LOST: Final = {"user": (How.DROPPED, HINT, ())}
_COMMON_NAMES: Final = {"search_document": "document", "passage": "document", "search_query": "query"}


def task_of(body: Json) -> str:
    """Returns what the texts are for, in one word of several that mean the same; empty: it is not said."""
    task = text_of(body.get("input_type")).lower()
    return _COMMON_NAMES.get(task, task)


def texts_of(body: Json) -> list[str]:
    """Returns the texts of a request. Raises InvalidRequest."""
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise InvalidRequest("The field 'input' must be a string or a list of strings for this model.", param="input")
    return texts


def common_gaps(body: Json) -> list[Gap]:
    """Returns the gaps of what no model takes."""
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


_TASKS: Final = {
    "document": "RETRIEVAL_DOCUMENT",
    "query": "RETRIEVAL_QUERY",
    "classification": "CLASSIFICATION",
    "clustering": "CLUSTERING",
    "similarity": "SEMANTIC_SIMILARITY",
}
"""What texts are for, in Google's words."""


class EmbeddingsOverGenerate(NeverStreamed):
    """Serves a caller of embeddings by batchEmbedContents; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        found = common_gaps(body)
        if body.get("input_type") is not None and task_of(body) not in _TASKS:
            found.append(Gap("input_type", How.DROPPED, HINT))
        return once(found)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        model = f"models/{text_of(body.get('model')).removeprefix('models/')}"
        texts = texts_of(body)
        made = {"requests": [{"model": model, **_config(body), "content": _content(text)} for text in texts]}
        return ConvertedRequest(made, body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        count = object_of(body.get("usageMetadata")).get("promptTokenCount")
        return embeddings_of(sent, self._vectors(body), count if type(count) is int else None)

    def _vectors(self, body: Json) -> list[list[Any]]:
        return [_values(one) for one in objects(body.get("embeddings"))]


class EmbeddingsAtVertex(EmbeddingsOverGenerate):
    """Serves a caller of embeddings at Vertex AI, in the form that the model has there."""

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        texts, config, model = texts_of(body), _config(body), text_of(body.get("model"))
        made: Json
        if facts.model.embeds != "gemini":
            task = {"task_type": config.pop("taskType")} if "taskType" in config else {}
            made = {"instances": [{"content": text, **task} for text in texts]}
            return ConvertedRequest(made | ({"parameters": config} if config else {}), body, new_id(), now)
        of = {"embedContentConfig": config} if config else {}
        if len(texts) == 1:
            made = {"content": _content(texts[0]), **of}
            return ConvertedRequest(made, body, new_id(), now, place=place_of_content(model))
        made = {"requests": [{"content": _content(text), **of} for text in texts]}
        return ConvertedRequest(made, body, new_id(), now, place=place_of_contents(model))

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        if "predictions" not in body:
            return super().answer(sent, body)
        rows = [object_of(one.get("embeddings")) for one in objects(body["predictions"])]
        counts = [object_of(one.get("statistics")).get("token_count") for one in rows]
        known = [int(count) for count in counts if isinstance(count, int | float)]
        read = sum(known) if known and len(known) == len(counts) else None
        return embeddings_of(sent, [_values(one) for one in rows], read)

    def _vectors(self, body: Json) -> list[list[Any]]:
        return [_values(body["embedding"])] if isinstance(body.get("embedding"), dict) else super()._vectors(body)


def _config(body: Json) -> Json:
    """Returns what is said of all texts at once."""
    made: Json = {}
    if (task := _TASKS.get(task_of(body))) is not None:
        made["taskType"] = task
    if body.get("dimensions") is not None:
        made["outputDimensionality"] = body["dimensions"]
    return made


def _content(text: str) -> Json:
    return {"parts": [{"text": text}]}


def _values(embedding: Json) -> list[Any]:
    values = embedding.get("values")
    if not isinstance(values, list) or not values:
        raise MalformedAnswer("the answer has an embedding without values")
    return values


_COHERES: Final = {"document": "search_document", "query": "search_query"}
_DEFAULT_TASK: Final = "search_document"
"""The purpose of a text for Cohere, which requires one, where nobody names it."""
_NOVAS: Final = {
    "document": "GENERIC_INDEX",
    "query": "TEXT_RETRIEVAL",
    "classification": "CLASSIFICATION",
    "clustering": "CLUSTERING",
}
_NOVA_SCHEMA: Final = "nova-multimodal-embed-v1"


class EmbeddingsOverInvoke(NeverStreamed):
    """Serves a caller of embeddings by InvokeModel; implements `base.Translator`."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        form = facts.model.embeds
        if form not in _FORMS:
            why = "it is not known how the model is asked for embeddings: a row of models.yaml says it by `embeds`"
            return (Gap("endpoint", How.REFUSED, why),)
        found = common_gaps(body)
        if body.get("input_type") is not None and (form == "titan" or (form == "nova" and task_of(body) not in _NOVAS)):
            found.append(Gap("input_type", How.DROPPED, HINT))
        return once(found)

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        make = _FORMS.get(facts.model.embeds, _as_titan)
        return ConvertedRequest(make(body, texts_of(body)), body, new_id(), now)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        count = body.get("inputTextTokenCount")
        if count is None:  # Cohere's tells it in a header, if at all
            count = object_of(object_of(body.get("meta")).get("billed_units")).get("input_tokens")
        return embeddings_of(sent, _vectors(body), count if type(count) is int else None)


def _as_titan(body: Json, texts: list[str]) -> Json:
    size = body.get("dimensions")
    return {"inputText": texts[0]} | ({"dimensions": size} if size is not None else {})


def _as_cohere(body: Json, texts: list[str]) -> Json:
    size, task = body.get("dimensions"), task_of(body)
    made: Json = {"texts": texts, "input_type": _COHERES.get(task, text_of(body.get("input_type")) or _DEFAULT_TASK)}
    return made | ({"output_dimension": size} if size is not None else {})


def _as_nova(body: Json, texts: list[str]) -> Json:
    size = body.get("dimensions")
    params: Json = {"embeddingPurpose": _NOVAS.get(task_of(body), _NOVAS["document"])}
    params |= {"embeddingDimension": size} if size is not None else {}
    params["text"] = {"truncationMode": "NONE", "value": texts[0]}  # as with OpenAI, what is too long is refused
    return {"schemaVersion": _NOVA_SCHEMA, "taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": params}


_FORMS: Final[dict[str, Callable[[Json, list[str]], Json]]] = {
    "cohere": _as_cohere,
    "nova": _as_nova,
    "titan": _as_titan,
}


def _vectors(body: Json) -> list[Any]:
    """Returns the vectors of an answer. Raises MalformedAnswer where one is none."""
    found = body.get("embeddings", [body.get("embedding")])
    if isinstance(found, dict):
        found = found.get("float")
    made = [one.get("embedding") if isinstance(one, dict) else one for one in found] if isinstance(found, list) else []
    if not made or not all(isinstance(one, list) for one in made):
        raise MalformedAnswer("the answer has no embeddings")
    return made
