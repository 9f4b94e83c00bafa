"""The form of an upload, read as it comes in: its file goes on piece by piece, its few other fields are kept.

Source: RFC 7578; parsed by python-multipart. It must not know what the fields mean. Invariant: beside the piece that is being
read no more is held than `MOST_FIELD_BYTES`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.core.errors import InvalidRequest
from gateway.core.openai.bodies.multipart import MultipartError, boundary_of
from gateway.core.peek.peek import malformed_form

MOST_FIELD_BYTES = 65_536
"""Of all fields but the file, names and heads included."""
MOST_NAME_CHARS = 255
STEP_BYTES = 32_768
"""Parsed at a time: bytes that look like the beginning of a boundary are looked at one by one."""
FILE = "file"


class UploadForm:
    """A form with one file."""

    def __init__(self, content_type: bytes) -> None:
        """Raises InvalidRequest for another content type, or one without a boundary."""
        if not content_type.lower().startswith(b"multipart/form-data"):
            raise InvalidRequest(
                "A file is sent as multipart/form-data with the fields 'purpose' and 'file'; set the content type.",
                code="invalid_content_type",
            )
        try:
            boundary = boundary_of(content_type)
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._head_end,
                    "on_part_data": self._data,
                    "on_part_end": self._part_end,
                    "on_end": self._end,
                },
            )
        except (MultipartError, FormParserError) as problem:
            raise malformed_form(str(problem)) from None
        self._parser.logger = logging.Logger("unheard", logging.CRITICAL + 1)  # what clients get wrong, they are told
        self.fields: dict[str, str] = {}
        """Those that are complete, by name."""
        self.filename: str | None = None
        """As the client called the file, without folders; None: it has not begun."""
        self.is_complete = False
        self._file: list[bytes] = []
        self._field_bytes = 0
        self._name = ""
        self._value = bytearray()
        self._header: tuple[bytearray, bytearray] = bytearray(), bytearray()
        self._disposition = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yields what of the piece belongs to the file, in steps of about a millisecond. Raises InvalidRequest."""
        for at in range(0, len(piece), STEP_BYTES):
            try:
                self._parser.write(piece[at : at + STEP_BYTES])
            except FormParserError as problem:
                raise malformed_form(str(problem)) from None
            part, self._file = b"".join(self._file), []
            yield part

    def close(self) -> None:
        """The body has ended. Raises InvalidRequest where the form has not."""
        if not self.is_complete:
            raise malformed_form("it ends before its last boundary")

    # The parser's callbacks.

    def _begin(self) -> None:
        self._disposition = b""
        self._value.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header[0].extend(data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header[1].extend(data[start:end])

    def _header_end(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            self._disposition = bytes(value)
        name.clear()
        value.clear()

    def _head_end(self) -> None:
        kind, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise malformed_form("a part has no name")
        self._name = name.decode(errors="replace")
        if self._name == FILE:
            if self.filename is not None:
                raise InvalidRequest("The field 'file' occurs more than once; send one file.", param=FILE)
            self.filename = plain_name(options.get(b"filename", b""))
        elif self._name in self.fields:
            raise InvalidRequest(f"The field '{self._name[:64]}' occurs more than once.", param=self._name[:64])

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self._file.append(data[start:end])
            return
        self._count(end - start)
        self._value += data[start:end]

    def _part_end(self) -> None:
        if self._name != FILE:
            self.fields[self._name] = self._value.decode(errors="replace")

    def _end(self) -> None:
        self.is_complete = True

    def _count(self, more: int) -> None:
        self._field_bytes += more
        if self._field_bytes > MOST_FIELD_BYTES:
            raise malformed_form(f"its fields have more than {MOST_FIELD_BYTES} bytes beside the file")


def plain_name(sent: bytes) -> str:
    """Returns the name of a file without folders, control characters and what is no text."""
    text = sent.decode(errors="replace").replace("\\", "/").rpartition("/")[2]
    return "".join(character for character in text if character.isprintable())[:MOST_NAME_CHARS]
