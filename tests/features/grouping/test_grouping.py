"""Bodies of several callers as one, and the parts of its answer: nothing is lost, mixed up or counted twice."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.types import Usage
from gateway.features.grouping.rules import joined_body, read_group_input, shared_out, split_answer
from tests.rows import rows

TEXTS = st.one_of(st.text(max_size=9), st.lists(st.text(max_size=9), min_size=1, max_size=5))


def vector(text: str) -> str:
    """Stands for an embedding: nobody else's."""
    return f"vector of {text}"


@given(st.lists(TEXTS, min_size=1, max_size=8), st.integers(0, 10_000), st.randoms())
def test_everybody_gets_the_answer_to_its_own_input(inputs: list[Any], tokens: int, random: Any) -> None:
    """In its own order, counted from 0, whatever the order of the answer's entries; tokens add up."""
    asked = [read_group_input({"model": "m", "dimensions": 3, "input": one}) for one in inputs]
    known = [one for one in asked if one is not None]
    sent = orjson.loads(joined_body(known))
    data = [{"object": "embedding", "index": at, "embedding": vector(text)} for at, text in enumerate(sent["input"])]
    random.shuffle(data)
    answer = {
        "object": "list",
        "data": data,
        "model": "m-1",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }

    parts = split_answer(
        *("embeddings", orjson.dumps(answer), [len(one.items) for one in known]),
        *([len(orjson.dumps(one)) for one in inputs], Usage(tokens, 0)),
    )

    assert sent == {"model": "m", "dimensions": 3, "input": [text for one in known for text in one.items]}
    assert parts is not None
    for part, one in zip(parts, known, strict=True):
        body = orjson.loads(part.body)
        assert [entry["embedding"] for entry in body["data"]] == [vector(str(text)) for text in one.items]
        assert [entry["index"] for entry in body["data"]] == list(range(len(one.items)))
        assert part.usage is not None
        assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == part.usage.input
        assert (body["object"], body["model"]) == ("list", "m-1")
    assert sum(part.usage.input for part in parts if part.usage is not None) == tokens


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), min_size=1, max_size=70))
def test_shares_add_up(total: int, weights: list[int]) -> None:
    """To the last token; nobody is off by one or more."""
    shares = shared_out(total, weights)

    assert sum(shares) == total
    whole = sum(weights)
    if whole:
        assert all(abs(share - total * weight / whole) < 1 for share, weight in zip(shares, weights, strict=True))


@rows(
    "body",
    [
        {},
        {"input": []},
        {"input": ["a", 1]},
        {"input": [True]},
        {"input": [{"type": "text", "text": "a"}]},  # one input of several parts, with pictures perhaps
        {"input": "a", "stream": True},
        {"input": None},
    ],
)
def test_what_is_no_list_of_inputs_is_sent_as_it_is(body: dict[str, Any]) -> None:
    """Its provider says what is wrong with it."""
    assert read_group_input(body) is None


def test_token_numbers_do_not_go_with_texts() -> None:
    """A list of numbers is one input."""
    one, several = read_group_input({"input": [1, 2]}), read_group_input({"input": [[1], [2, 3]]})

    assert one is not None
    assert several is not None
    assert (one.kind, one.items, several.kind, several.items) == ("tokens", [[1, 2]], "tokens", [[1], [2, 3]])


@rows(
    "answer",
    [
        {"data": [{"index": 0}]},
        {"data": [{"index": 0}, {"index": 0}]},
        {"data": [{"index": 1}, {"index": 2}]},
        {"data": [{}, {}]},
        {"data": None},
        {"results": [{}, {}]},
        [],
    ],
)
def test_an_answer_to_something_else_is_nobodys(answer: Any) -> None:
    """Two were asked for."""
    assert split_answer("embeddings", orjson.dumps(answer), [1, 1], [1, 1], None) is None


def test_moderations_are_told_apart_by_their_order() -> None:
    """They have no index, and no usage."""
    answer = orjson.dumps({"id": "modr-1", "results": [{"flagged": False}, {"flagged": True}, {"flagged": False}]})

    parts = split_answer("moderations", answer, [1, 2], [1, 1], None)

    assert parts is not None
    flagged = [[one["flagged"] for one in orjson.loads(part.body)["results"]] for part in parts]
    assert flagged == [[False], [True, False]]
