"""Embeddings by InvokeModel: what is sent in the form of each maker, what comes back, what is refused."""

from __future__ import annotations

from base64 import b64decode
from struct import unpack
from typing import Any, Literal

import pytest
from openai.types import CreateEmbeddingResponse

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import MalformedAnswer, ModelFacts, ServerFacts
from gateway.dialects.embeddings import EmbeddingsOverInvoke
from tests.rows import rows

PAIR = EmbeddingsOverInvoke()
Form = Literal["none", "cohere", "nova", "titan"]


def facts(form: Form) -> ServerFacts:
    return ServerFacts(model=ModelFacts(embeds=form))


def sent(form: Form, **body: Any) -> Any:
    return PAIR.request({"model": "m", **body}, facts(form), 0.0, lambda: "abc")


def lost(form: Form, **body: Any) -> dict[str, str]:
    return {gap.field: gap.how.value for gap in PAIR.gaps({"model": "m", **body}, facts(form))}


@rows(
    ("form", "asked", "body"),
    [
        ("titan", {"input": "a"}, {"inputText": "a"}),
        ("titan", {"input": ["a"], "dimensions": 256}, {"inputText": "a", "dimensions": 256}),
        ("cohere", {"input": "a"}, {"texts": ["a"], "input_type": "search_document"}),
        ("cohere", {"input": "a", "input_type": "query"}, {"texts": ["a"], "input_type": "search_query"}),
        ("cohere", {"input": "a", "input_type": "clustering"}, {"texts": ["a"], "input_type": "clustering"}),
        (
            "nova",
            {"input": "a", "dimensions": 256, "input_type": "query"},
            {
                "schemaVersion": "nova-multimodal-embed-v1",
                "taskType": "SINGLE_EMBEDDING",
                "singleEmbeddingParams": {
                    "embeddingPurpose": "TEXT_RETRIEVAL",
                    "embeddingDimension": 256,
                    "text": {"truncationMode": "NONE", "value": "a"},
                },
            },
        ),
        (
            "cohere",
            {"input": ["a", "b"], "dimensions": 256, "input_type": "search_query"},
            {"texts": ["a", "b"], "input_type": "search_query", "output_dimension": 256},
        ),
    ],
)
def test_what_is_sent(form: Form, asked: dict[str, Any], body: dict[str, Any]) -> None:
    assert sent(form, **asked).body == body
    assert lost(form, **asked) == {}


@rows(
    ("form", "asked", "gaps"),
    [
        ("none", {"input": "a"}, {"endpoint": "refused"}),
        ("titan", {"input": ["a", "b"]}, {}),
        ("titan", {"input": [1, 2]}, {"input": "refused"}),
        ("cohere", {"input": ["a"] * 97}, {}),
        ("nova", {"input": "a", "input_type": "odd"}, {"input_type": "dropped"}),
        (
            "titan",
            {"input": "a", "input_type": "x", "user": "u", "odd": 1},
            {"input_type": "dropped", "user": "dropped", "other": "dropped"},
        ),
    ],
)
def test_what_is_lost(form: Form, asked: dict[str, Any], gaps: dict[str, str]) -> None:
    assert lost(form, **asked) == gaps


@rows("given", [None, 5, [], [1], {}])
def test_what_is_no_text_is_told(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        sent("titan", input=given)


@rows(
    ("said", "usage"),
    [
        ({"embeddings": [[0.5], [1.5]], "response_type": "embeddings_floats"}, None),
        ({"embeddings": [{"embeddingType": "TEXT", "embedding": [one]} for one in (0.5, 1.5)]}, None),
        ({"embeddings": {"float": [[0.5], [1.5]]}, "meta": {"billed_units": {"input_tokens": 4}}}, 4),
    ],
)
def test_what_comes_back(said: dict[str, Any], usage: int | None) -> None:
    """Numbers, or packed as the official SDK asks for."""
    made = PAIR.answer(sent("cohere", input=["a", "b"]), said)
    assert [one["embedding"] for one in made["data"]] == [[0.5], [1.5]]
    assert ("usage" in made) == (usage is not None)
    if usage is not None:
        CreateEmbeddingResponse.model_validate(made, strict=True)
        assert made["usage"] == {"prompt_tokens": usage, "total_tokens": usage}
    packed = PAIR.answer(sent("cohere", input=["a", "b"], encoding_format="base64"), said)
    assert [unpack("<f", b64decode(one["embedding"])) for one in packed["data"]] == [(0.5,), (1.5,)]


@rows(
    "said",
    [
        {},
        {"embedding": "x"},
        {"embeddings": []},
        {"embeddings": [{}]},
        {"embeddings": [[1.0], [2.0]]},
        {"embeddings": {"int8": [[1]]}},
        {"embedding": ["x"]},
    ],
)
def test_what_is_no_answer_is_told(said: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        PAIR.answer(sent("titan", input="a", encoding_format="base64"), said)


def test_nothing_of_it_is_streamed() -> None:
    with pytest.raises(MalformedAnswer):
        PAIR.reader(sent("titan", input="a"))
