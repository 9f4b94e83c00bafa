"""Texts for embeddings as Google takes them, and back: many at once, at the Gemini API and at Vertex AI.

Vertex AI asks older models by `predict`, and Gemini's by `embedContent`, of which several are a batch. Sources: the Gemini
API's reference, batchEmbedContents; Vertex AI's, text embeddings (`predict`); google-genai, `models.embed_content`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.types import Gap, How
from gateway.dialects.base import (
    ConvertedRequest,
    Json,
    MalformedAnswer,
    ServerFacts,
    object_of,
    objects,
    once,
    text_of,
)
from gateway.dialects.embeddings.common import HINT, NeverStreamed, common_gaps, embeddings_of, task_of, texts_of
from gateway.dialects.registry import place_of_content, place_of_contents

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
