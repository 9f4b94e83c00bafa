"""Fields of a multipart/form-data body, found by their offsets: right, or refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.bodies import MAX_PARTS, MultipartError, boundary_of, find_form_fields
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

HEAD = b"Content-Disposition: form-data; "
MODEL = HEAD + b'name="model"\r\n\r\nwhisper-1'
FILE = HEAD + b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nRIFF\x00\r\n\r\n--x--\r\n\xff'


def form(*parts: bytes, boundary: bytes = b"B0") -> bytes:
    """A body of these parts."""
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


def values_of(body: bytes, name: str = "model", boundary: bytes = b"B0") -> list[bytes]:
    """The values of all fields with that name."""
    return [body[start:end] for start, end in find_form_fields(body, boundary, [name])[name]]


@rows(
    "head",
    [
        b'Content-Disposition: form-data; name="model"',
        b"content-disposition: form-data; name=model",
        b'CONTENT-DISPOSITION:form-data;NAME="model"',
        b'Content-Disposition: form-data ; filename="f"; name="model"',
        b'Content-Disposition: form-data; filename="a\\"; name=x"; name="model"',
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"; x=y',
        b'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain; charset=utf-8',
    ],
)
def test_a_field_is_found_however_its_head_is_written(head: bytes) -> None:
    """Upper or lower case, quoted or not, among other headers and parameters."""
    assert values_of(form(FILE, head + b"\r\n\r\nwhisper-1")) == [b"whisper-1"]


@rows(
    "part",
    [
        FILE,
        HEAD + b'name="file"; filename="model"\r\n\r\nx',
        HEAD + b'filename="; name=model"; name="file"\r\n\r\nx',
        HEAD + b'filename="\\"; name=model"; name="file"\r\n\r\nx',
        HEAD + b'name="models"\r\n\r\nx',
        HEAD + b'name="my model"\r\n\r\nx',
        HEAD + b"name*=utf-8''model\r\n\r\nx",
        b'Content-Disposition: attachment; name="model"\r\n\r\nx',
        b'X-Content-Disposition: form-data; name="model"\r\n\r\nx',
        b"\r\n" + MODEL,
        HEAD + b'name="file"\r\n\r\n' + MODEL,
        b"\r\n",
    ],
)
def test_what_only_looks_like_the_field_is_not_it(part: bytes) -> None:
    """A file's name, a file's content, another field."""
    assert values_of(form(part)) == []
    assert values_of(form(part, MODEL, part)) == [b"whisper-1"]


def test_each_of_several_fields_is_found() -> None:
    """The caller refuses them: two parsers may disagree about which of two wins."""
    assert values_of(form(MODEL, FILE, MODEL.replace(b"-1", b"-2"))) == [b"whisper-1", b"whisper-2"]


@rows("value", [b"", b"\r\n", b"a\r\nb", b"\r\n\r\n", b"-", b"--", b"\r\n--", b"\r\n--B"])
def test_any_value_is_cut_out_whole(value: bytes) -> None:
    """Line ends and dashes belong to it."""
    assert values_of(form(FILE, HEAD + b'name="model"\r\n\r\n' + value, FILE)) == [value]


def test_text_around_the_parts_is_no_part() -> None:
    """A preamble, and whatever follows the last boundary (RFC 2046, 5.1.1)."""
    body = b"preamble\r\n" + form(MODEL) + form(MODEL)

    assert values_of(body) == [b"whisper-1"]
    assert values_of(b"--B0--\r\n") == []


@BOUNDED
@given(st.lists(st.binary(max_size=20).filter(lambda value: b"--B0" not in value), max_size=4), st.binary(max_size=9))
def test_values_of_any_bytes_are_found_in_order(values: list[bytes], noise: bytes) -> None:
    """The rest of the body is not looked at."""
    file = HEAD + b'name="file"; filename="f"\r\n\r\n' + noise.replace(b"--", b"")
    body = form(*(part for value in values for part in (HEAD + b'name="model"\r\n\r\n' + value, file)))

    assert values_of(body) == values


@BOUNDED
@given(
    st.lists(st.sampled_from([b"--B0", b"--", b"\r\n", MODEL, HEAD, b'name="model"', b"x", b"\r\n\r\n"]), max_size=12)
)
def test_malformed_bodies_are_refused_or_read(pieces: list[bytes]) -> None:
    """Nothing but MultipartError is raised, and offsets lie inside the body."""
    body = b"".join(pieces)
    with contextlib.suppress(MultipartError):
        for start, end in find_form_fields(body, b"B0", ["model"])["model"]:
            assert 0 < start <= end < len(body)


def test_a_truncated_body_is_refused_at_every_length() -> None:
    """It is read only when its last boundary has come."""
    body = form(FILE, MODEL)
    end = len(body) - len(b"\r\n")

    for length in range(end):
        with pytest.raises(MultipartError):
            find_form_fields(body[:length], b"B0", ["model"])
    assert values_of(body[:end]) == [b"whisper-1"]


@rows(
    ("body", "problem"),
    [
        (b"", "does not occur"),
        (b"model=whisper-1", "does not occur"),
        (form(MODEL, boundary=b"other"), "does not occur"),
        (b"--B0\r\n" + MODEL, "does not end"),
        (b"--B0\n" + MODEL + b"\n--B0--", "line"),
        (form(MODEL, boundary=b"B01"), "line"),
        (form(HEAD + b'name="x"', MODEL), "head"),
        (form(HEAD + b'name="' + b"x" * 9000 + b'"\r\n\r\nv'), "head"),
    ],
)
def test_a_malformed_body_says_what_is_wrong(body: bytes, problem: str) -> None:
    """A part without a head would let two parsers see different fields."""
    with pytest.raises(MultipartError, match=problem):
        find_form_fields(body, b"B0", ["model"])


class CountedBody(bytes):
    """A body that counts the bytes it was asked to search through, at most."""

    searched = 0

    def find(self, sub: bytes, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]  # as used
        at = super().find(sub, start, len(self) if end is None else end)
        self.searched += (len(self) if at < 0 and end is None else max(at, start)) - start
        return at


@pytest.mark.parametrize("part", [b"\r\nv", MODEL, HEAD + b'filename="' + b";=" * 3000 + b'"\r\n\r\nv'])
def test_a_body_of_very_many_parts_is_refused_after_the_first_thousand(part: bytes) -> None:
    """The work is bounded by the bytes of the parts looked at, not by their number squared."""
    body = CountedBody(form(*[part] * (100_000 if len(part) < 100 else 2000)))

    with pytest.raises(MultipartError, match=f"more than {MAX_PARTS} parts"):
        find_form_fields(body, b"B0", ["model"])

    assert body.searched <= 3 * MAX_PARTS * (len(part) + 20)


@rows(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'multipart/form-data; boundary="a b:c"', b"a b:c"),
        (b"multipart/form-data;BOUNDARY=abc; charset=utf-8", b"abc"),
        (b"multipart/form-data; xboundary=no; boundary=abc", b"abc"),
        (b"multipart/form-data; boundary=" + b"x" * 70, b"x" * 70),
    ],
)
def test_the_boundary_is_read_from_the_content_type(content_type: bytes, boundary: bytes) -> None:
    """Quoted or not (RFC 2046, 5.1.1: 1 to 70 characters)."""
    assert boundary_of(content_type) == boundary


@rows("parameters", [b"", b"; boundary=", b'; boundary=""', b"; boundary=" + b"x" * 71, b"; xboundary=a"])
def test_a_content_type_without_a_usable_boundary_is_refused(parameters: bytes) -> None:
    """There is nothing to cut the body by."""
    with pytest.raises(MultipartError):
        boundary_of(b"multipart/form-data" + parameters)
