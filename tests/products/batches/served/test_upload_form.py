"""The form of an upload: the same file and fields, however the bytes come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.products.batches.files_http import MOST_FIELD_BYTES, UploadForm, plain_name
from tests.rows import rows

BOUNDARY = "X--bound"
TYPE = f"multipart/form-data; boundary={BOUNDARY}".encode()
ENDS = [f"--{BOUNDARY}"[:-1].encode(), b"\r\n--X--bou"]
TRICKY = st.sampled_from([b"\r\n", b"\r", b"\n", b"--", b"-", b"a", b"\0", b"\xff", *ENDS])


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    file = "" if filename is None else f'; filename="{filename}"'
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n"


def read(data: bytes, size: int) -> tuple[UploadForm, bytes]:
    form = UploadForm(TYPE)
    found = b"".join(piece for at in range(0, len(data), size) for piece in form.feed(data[at : at + size]))
    form.close()
    return form, found


@given(st.lists(TRICKY, max_size=30).map(b"".join), st.binary(max_size=20), st.integers(1, 40), st.booleans())
def test_the_file_is_what_was_sent(file: bytes, value: bytes, size: int, is_last: bool) -> None:
    """Whatever it looks like, wherever it is cut."""
    end = f"--{BOUNDARY}".encode()
    if end in b"\r\n" + file + b"\r\n" or end in b"\r\n" + value + b"\r\n":
        return
    parts = [part("purpose", value), part("file", file, "in.jsonl")]
    data = b"".join(parts if is_last else parts[::-1]) + end + b"--\r\n"

    form, found = read(data, size)

    assert found == file
    assert form.fields == {"purpose": value.decode(errors="replace")}
    assert form.filename == "in.jsonl"


@given(st.binary(max_size=300), st.integers(1, 50))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes, size: int) -> None:
    """By the one error that there is for it."""
    with pytest.raises(InvalidRequest):
        read(data, size)


def test_the_log_says_nothing_of_what_clients_get_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """Or whoever likes fills it: they are told, and the refusal is in the log of calls."""
    good = part("purpose", b"batch") + f"--{BOUNDARY}--\r\n".encode()
    for data in (b"-" * 99, part("a", b"", "b\r\n c") + good, good.replace(b"\r\n", b"\n")):
        with pytest.raises(InvalidRequest):
            read(data, 4096)
    read(good + b"behind its end", 4096)

    assert caplog.records == []


def test_fields_take_no_more_than_they_may() -> None:
    """In one or in many, names and heads counted."""
    many = b"".join(part(f"field {number}", b"x" * 100) for number in range(MOST_FIELD_BYTES // 100))

    for data in (part("one", b"x" * (MOST_FIELD_BYTES + 1)), many):
        with pytest.raises(InvalidRequest, match="beside the file"):
            read(data, 4096)


@rows(
    ("sent", "name"),
    [
        (b"in.jsonl", "in.jsonl"),
        (b"../../etc/passwd", "passwd"),
        (b"C:\\files\\in.jsonl", "in.jsonl"),
        (b"a\r\nb\0.jsonl", "ab.jsonl"),
        ("nächtlich.jsonl".encode(), "nächtlich.jsonl"),
        (b"\xff.jsonl", "\ufffd.jsonl"),
        (b"x" * 300, "x" * 255),
        (b"", ""),
    ],
)
def test_a_name_is_plain(sent: bytes, name: str) -> None:
    """Without folders, control characters, and an end that is too far."""
    assert plain_name(sent) == name
