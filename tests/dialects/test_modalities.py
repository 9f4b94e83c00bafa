"""What a request shows besides text is a gap where the model is known not to take it, in whichever language it is."""

from __future__ import annotations

from typing import Any

from gateway.core.types import How
from gateway.dialects.base import Json, ModelFacts
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint, gaps_of_modalities
from tests.rows import rows

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
SOUND = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
PAPER = {"type": "file", "file": {"file_data": "AA==", "filename": "a.pdf"}}
NOTE = {"type": "file", "file": {"file_data": "AA==", "filename": "a.txt"}}
RESULT = {"type": "tool_result", "content": [{"type": "image", "source": {}}]}


def said(*parts: Any) -> Json:
    return {"messages": [{"role": "user", "content": "words"}, {"role": "user", "content": [{"type": "text"}, *parts]}]}


@rows(
    ("body", "reads", "fields"),
    [
        (said(PICTURE, PICTURE, SOUND), (), ["messages.image_url", "messages.input_audio"]),
        (said(PICTURE, SOUND), ("image",), ["messages.input_audio"]),
        (said(PAPER, NOTE), ("image",), ["messages.file"]),
        (said(NOTE), (), []),
        (said(RESULT), ("pdf",), ["messages.image"]),
        (said({"type": "document", "source": {"media_type": "application/pdf"}}), (), ["messages.document"]),
        (
            {"input": [{"content": [{"type": "input_image"}]}, {"output": [{"type": "input_image"}]}]},
            (),
            ["input.input_image"],
        ),
        ({"input": "words", "messages": [5, {"content": [5, {"type": []}]}]}, (), []),
    ],
)
def test_what_a_model_does_not_read_is_told_by_its_field(body: Json, reads: tuple[str, ...], fields: list[str]) -> None:
    found = gaps_of_modalities(body, reads)

    assert sorted(gap.field for gap in found) == fields
    assert {gap.how for gap in found} <= {How.REFUSED}


def test_a_conversion_asks_the_facts_of_its_model() -> None:
    """By their row a text model refuses pictures, though its dialect has words for them."""
    facts = {"plain": ModelFacts(reads=()), "unknown": ModelFacts()}
    spoken = TargetLanguages("gemini", frozenset(("generate",)), "gemini", facts.__getitem__)
    refused = {
        model: [gap.field for gap in gaps_by_endpoint(spoken, model)["chat"](said(PICTURE)) if gap.how is How.REFUSED]
        for model in facts
    }

    assert refused == {"plain": ["messages.image_url"], "unknown": []}
