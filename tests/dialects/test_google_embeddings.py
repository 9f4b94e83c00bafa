"""Callers of embeddings at Google: texts go at once, vectors come back as they were asked for."""

from __future__ import annotations

import struct
from base64 import b64decode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import ConvertedRequest, MalformedAnswer, ModelFacts, ServerFacts
from gateway.dialects.embeddings import EmbeddingsAtVertex, EmbeddingsOverGenerate
from tests.dialects.odd import odd_bodies
from tests.rows import rows

GEMINI, VERTEX = EmbeddingsOverGenerate(), EmbeddingsAtVertex()
SAID = {"embeddings": [{"values": [0.5, -1]}, {"values": [0.25, 2.0]}], "usageMetadata": {"promptTokenCount": 7}}
SAID_AT_VERTEX = {
    "predictions": [
        {"embeddings": {"values": [0.5, -1], "statistics": {"token_count": 3}}},
        {"embeddings": {"values": [0.25, 2.0], "statistics": {"token_count": 4.0}}},
    ]
}


def sent(pair: EmbeddingsOverGenerate, **body: Any) -> ConvertedRequest:
    return pair.request({"model": "e", "input": ["a", "b"]} | body, ServerFacts(), 0.0, lambda: "abc")


def test_texts_go_at_once() -> None:
    """One is a list of one."""
    one = {"model": "models/e", "content": {"parts": [{"text": "a"}]}}
    assert sent(GEMINI, input="a").body == {"requests": [one]}
    assert sent(GEMINI, dimensions=8).body["requests"][1] == {
        "model": "models/e",
        "outputDimensionality": 8,
        "content": {"parts": [{"text": "b"}]},
    }
    assert sent(VERTEX, dimensions=8).body == {
        "instances": [{"content": "a"}, {"content": "b"}],
        "parameters": {"outputDimensionality": 8},
    }


def test_gemini_at_vertex_is_asked_in_its_own_way() -> None:
    """One text by embedContent, several as a batch; the size stands in a config of its own. So does google-genai."""
    facts, body = ServerFacts(model=ModelFacts(embeds="gemini")), {"model": "gemini-embedding-001", "dimensions": 8}
    config = {"embedContentConfig": {"outputDimensionality": 8}}
    content = [{"content": {"parts": [{"text": text}]}, **config} for text in "ab"]
    place = "/publishers/google/models/gemini-embedding-001"

    one = VERTEX.request(body | {"input": ["a"]}, facts, 0.0, lambda: "abc")
    assert (one.body, one.place) == (content[0], f"{place}:embedContent")
    said = {"embedding": {"values": [0.5]}, "usageMetadata": {"promptTokenCount": 2}}
    made = VERTEX.answer(one, said)
    assert (made["data"][0]["embedding"], made["usage"]["prompt_tokens"]) == ([0.5], 2)
    two = VERTEX.request(body | {"input": ["a", "b"]}, facts, 0.0, lambda: "abc")
    assert (two.body, two.place) == ({"requests": content}, f"{place}:batchEmbedContents")
    assert [one["embedding"] for one in VERTEX.answer(two, SAID)["data"]] == [[0.5, -1], [0.25, 2.0]]


@rows(
    "said, task",
    [
        ("document", "RETRIEVAL_DOCUMENT"),
        ("search_document", "RETRIEVAL_DOCUMENT"),
        ("query", "RETRIEVAL_QUERY"),
        ("clustering", "CLUSTERING"),
        ("similarity", "SEMANTIC_SIMILARITY"),
    ],
)
def test_what_the_texts_are_for_is_told(said: str, task: str) -> None:
    assert [one["taskType"] for one in sent(GEMINI, input_type=said).body["requests"]] == [task, task]
    assert [one["task_type"] for one in sent(VERTEX, input_type=said).body["instances"]] == [task, task]
    facts = ServerFacts(model=ModelFacts(embeds="gemini"))
    own = VERTEX.request({"model": "e", "input": "a", "input_type": said}, facts, 0.0, lambda: "abc")
    assert own.body["embedContentConfig"] == {"taskType": task}
    assert not GEMINI.gaps({"model": "e", "input": "a", "input_type": said}, ServerFacts())
    assert [gap.field for gap in GEMINI.gaps({"input": "a", "input_type": "odd"}, ServerFacts())] == ["input_type"]


@rows("pair, said", [(GEMINI, SAID), (VERTEX, SAID_AT_VERTEX)])
def test_vectors_come_back(pair: EmbeddingsOverGenerate, said: Any) -> None:
    """As numbers, or packed as OpenAI does; with what was read, where it is told."""
    made = pair.answer(sent(pair), said)
    assert [(one["index"], one["embedding"]) for one in made["data"]] == [(0, [0.5, -1]), (1, [0.25, 2.0])]
    assert (made["object"], made["model"], made["usage"]) == ("list", "e", {"prompt_tokens": 7, "total_tokens": 7})
    packed = pair.answer(sent(pair, encoding_format="base64"), said)["data"][1]["embedding"]
    assert struct.unpack("<2f", b64decode(packed)) == (0.25, 2.0)


def test_what_is_not_told_is_not_made_up() -> None:
    assert "usage" not in GEMINI.answer(sent(GEMINI), {"embeddings": SAID["embeddings"]})


@rows(
    "said", [{}, {"embeddings": [{"values": [1.0]}]}, {"embeddings": [{}, {}]}, {"embeddings": [{"values": ["x"]}] * 2}]
)
def test_an_answer_that_lacks_a_vector_is_none(said: Any) -> None:
    with pytest.raises(MalformedAnswer):
        GEMINI.answer(sent(GEMINI, encoding_format="base64"), said)


@rows("given", [[1, 2], [[1, 2], [3]]])
def test_numbers_of_tokens_are_refused(given: Any) -> None:
    """They are another vocabulary's."""
    body = {"model": "e", "input": given, "user": "u", "my_own": 1}
    found = {gap.field: gap.how.value for gap in GEMINI.gaps(body, ServerFacts())}

    assert found == {"input": "refused", "user": "dropped", "other": "dropped"}
    with pytest.raises(InvalidRequest, match="input"):
        sent(GEMINI, input=given)


@given(odd_bodies("input", "dimensions", "encoding_format"), odd_bodies("embeddings", "predictions", "usageMetadata"))
def test_anything_is_read(body: dict[str, Any], said: dict[str, Any]) -> None:
    for pair in (GEMINI, VERTEX):
        pair.gaps(body, ServerFacts())
        with suppress(InvalidRequest, MalformedAnswer):
            pair.answer(pair.request(body, ServerFacts(), 0.0, str), said)
