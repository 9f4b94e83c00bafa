"""What speech, transcriptions and pictures use: as reported, as known, and as estimated."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.openai.media import PICTURES, SPEECH, TRANSCRIPTION, read_media_answer
from gateway.core.openai.usage import find_usage, read_seconds
from gateway.core.types import MediaUsage, Usage, UsageParts
from tests.rows import rows

MEDIA: dict[str, MediaUsage] = {"images": PICTURES, "speech": SPEECH, "transcriptions": TRANSCRIPTION}
TOKENS = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}
DETAILS = {"text_tokens": 0, "audio_tokens": 14}


def form(sound: bytes) -> bytes:
    return b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + sound


def wav(*chunks: tuple[bytes, bytes], data: bytes, size: int | None = None) -> bytes:
    """A form with a sound file: its chunks, and then its sound, of as many bytes as it says."""
    told = [name + struct.pack("<I", len(body)) + body + bytes(len(body) % 2) for name, body in chunks]
    sound = b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return form(b"RIFF\0\0\0\0WAVE" + b"".join(told) + sound)


def fmt(rate: int = 8000, align: int = 2, kind: int = 1) -> tuple[bytes, bytes]:
    return b"fmt ", struct.pack("<HHIIHH", kind, 1, rate, rate * align, align, 8 * align)


@rows(
    ("answer", "usage"),
    [
        pytest.param({"text": "x", "usage": TOKENS | {"input_token_details": DETAILS}}, (14, 45, 0.0), id="tokens"),
        pytest.param({"text": "x", "usage": {"type": "duration", "seconds": 27}}, (0, 0, 27.0), id="a duration"),
        pytest.param({"text": "x", "duration": 8.47}, (0, 0, 8.47), id="verbose_json"),
        pytest.param({"text": "x", "duration": "8.47"}, (0, 0, 8.47), id="as a text"),
        pytest.param(
            {"usage": {"prompt_tokens": 4, "completion_tokens": 635, "prompt_audio_seconds": 203}},
            (4, 635, 203.0),
            id="Mistral",
        ),
        pytest.param(
            {"usage": {"input_tokens": 83, "output_tokens": 30, "seconds": 9.2, "total_tokens": 113}},
            (83, 30, 9.2),
            id="both",
        ),
        pytest.param({"text": "x"}, None, id="nothing"),
        pytest.param({"usage": {"type": "duration", "seconds": -1}}, None, id="less than nothing"),
        pytest.param({"usage": {"type": "duration", "seconds": None}, "duration": "long"}, None, id="no numbers"),
        pytest.param({"usage": "x", "duration": float("nan")}, None, id="no number"),
    ],
)
def test_an_answer_reports_tokens_or_seconds(answer: dict[str, Any], usage: tuple[int, int, float] | None) -> None:
    read = read_media_answer(answer)

    assert (None if read is None else (read.input, read.output, read.parts.audio_s)) == usage


@rows(
    ("event", "usage"),
    [
        (b'{"type":"transcript.text.done","text":"x","usage":{"type":"tokens","input_tokens":14,'
         b'"input_token_details":{"text_tokens":0,"audio_tokens":14},"output_tokens":45,"total_tokens":59}}', (14, 45, 0.0)),
        (b'{"type":"transcript.text.done","text":"x","usage":{"type":"duration","seconds":27}}', (0, 0, 27.0)),
        (b'{"type":"speech.audio.done","usage":{"input_tokens":14,"output_tokens":101,"total_tokens":115}}', (14, 101, 0.0)),
    ],
)  # fmt: skip
def test_the_last_event_of_a_stream_reports_the_same(event: bytes, usage: tuple[int, int, float]) -> None:
    read = find_usage(b"event: x\ndata: " + event + b"\n\n")

    assert read is not None
    assert (read.input, read.output, read.parts.audio_s) == usage


@rows(
    ("endpoint", "asked", "usage"),
    [
        ("speech", {"input": "x" * 700}, Usage(175, 1050, parts=UsageParts(audio_output=1050, characters=700))),
        ("images", {"prompt": "a cat", "quality": "low", "size": "1024x1024"},
         Usage(2, 272, parts=UsageParts(image_output=272, images=1))),
        ("images", {"prompt": "a cat", "quality": "medium", "size": "1024x1536", "n": 2},
         Usage(2, 3168, parts=UsageParts(image_output=3168, images=2))),
        ("images", {"prompt": 7, "quality": ["low"], "size": "auto"},
         Usage(1, 6240, parts=UsageParts(image_output=6240, images=1))),
        ("transcriptions", {}, Usage(20, 7, parts=UsageParts(audio_input=20, audio_s=2.0))),
    ],
)  # fmt: skip
def test_what_is_not_reported_is_estimated_by_the_request(endpoint: str, asked: dict[str, Any], usage: Usage) -> None:
    body = wav(fmt(), data=bytes(32_000))
    certain = MEDIA[endpoint].certain(None, body, asked)

    estimated = MEDIA[endpoint].estimated(certain, body, asked)

    assert estimated.estimated
    assert (estimated.input, estimated.output, estimated.parts) == (usage.input, usage.output, usage.parts)
    assert (certain.input, certain.output, certain.estimated) == (0, 0, False)


@pytest.mark.parametrize("endpoint", sorted(MEDIA))
def test_a_number_that_is_missing_beside_another_is_estimated(endpoint: str) -> None:
    """Null, or more than any call can have used: it is not taken for nothing."""
    body, asked = wav(fmt(), data=bytes(32_000)), {"input": "x" * 700, "prompt": "a cat"}
    nothing = MEDIA[endpoint].estimated(MEDIA[endpoint].certain(None, body, asked), body, asked)
    for told, read, made in (
        ({"input_tokens": None, "output_tokens": 45}, nothing.input, 45),
        ({"input_tokens": 1 << 31, "output_tokens": 45}, nothing.input, 45),
        ({"input_tokens": 14, "output_tokens": "x"}, 14, nothing.output),
    ):
        certain = MEDIA[endpoint].certain(read_media_answer({"usage": told}), body, asked)

        estimated = MEDIA[endpoint].estimated(certain, body, asked)

        assert (estimated.input, estimated.output, estimated.estimated) == (read, made, True), told


@given(
    st.sampled_from(sorted(MEDIA)),
    st.none() | st.builds(Usage, st.integers(0, 10**6), st.integers(0, 10**6)),
    st.binary() | st.binary().map(lambda data: wav(fmt(), data=data)),
    st.dictionaries(
        st.sampled_from(["input", "n", "size", "quality", "prompt"]),
        st.none() | st.integers() | st.text() | st.lists(st.integers()),
    ),
    st.none() | st.integers(0, 10**6),
)
def test_an_estimate_keeps_what_is_certain(
    endpoint: str, told: Usage | None, body: bytes, asked: dict[str, Any], written: int | None
) -> None:
    """Of any request: each number of tokens that is reported stays, and so does every quantity that is known."""
    certain = MEDIA[endpoint].certain(told, body, asked)
    estimated = MEDIA[endpoint].estimated(certain, body, asked, written)

    if told is not None:
        assert (certain.input, certain.output) == (told.input, told.output)
        assert estimated.input == told.input or not told.input
        assert estimated.output == told.output or not told.output
    for name in ("characters", "images", "audio_s"):
        known = getattr(certain.parts, name)
        assert getattr(estimated.parts, name) >= known
        assert not known or getattr(estimated.parts, name) == known
    assert min(estimated.input, estimated.output) >= 0


@rows(
    ("value", "seconds"),
    [
        (3, 3.0),
        ("2.5", 2.5),
        (0, 0.0),
        (-1, None),
        (True, None),
        ("x", None),
        (None, None),
        (10**400, None),
        (1e8, None),
    ],
)
def test_seconds_are_sane_numbers(value: object, seconds: float | None) -> None:
    assert read_seconds(value) == seconds
