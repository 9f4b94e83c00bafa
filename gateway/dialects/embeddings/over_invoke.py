"""Embeddings by InvokeModel, whose body is each maker's own: Titan and Nova take one text a call, Cohere up to 96.

In which form a model is asked is told by its facts (`embeds`). Source: Amazon's model parameters of Titan Embeddings, Nova
Multimodal Embeddings and Cohere Embed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.types import Gap, How
from gateway.dialects.base import ConvertedRequest, Json, MalformedAnswer, ServerFacts, object_of, once, text_of
from gateway.dialects.embeddings.common import HINT, NeverStreamed, common_gaps, embeddings_of, task_of, texts_of

_COHERES: Final = {"document": "search_document", "query": "search_query"}
_DEFAULT_TASK: Final = "search_document"
"""What Cohere is told that a text is for, where nobody says: it has to be told."""
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
