"""Lines of a batch as a provider gets them, and what it says of them.

Our name of a line is the line's id, whose number says where its result belongs: what its owner calls it, which may be as long
as 512 characters or not be fit for everybody, stays at home.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from gateway.core.openai.json_edit import find_fields, with_model
from gateway.core.openai.usage import add_beside, read_usage
from gateway.core.types import Usage

PERMANENT: Final = frozenset((400, 413, 415, 422))
"""Statuses that say that the line itself is wrong; whatever else went wrong there may go well here."""
_MOST_DIGITS: Final = 12


class ProviderAnswer(NamedTuple):
    """What a provider has answered to one line."""

    number: int
    status: int
    body: bytes
    usage: Usage | None


def part_line(line_id: str, url: str, body: bytes, model: str) -> bytes:
    """Returns a line of a part's input file, with its end."""
    named = with_model(body, model).translate(None, b"\r\n")
    return b'{"custom_id":%b,"method":"POST","url":%b,"body":%b}\n' % (orjson.dumps(line_id), orjson.dumps(url), named)


def read_answer(text: bytes, prefix: str) -> ProviderAnswer | None:
    """Returns what a line of a provider's output or error file answers; None: nothing that can be kept.

    `prefix` is what the ids of all lines of the batch begin with.
    """
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    custom_id, response = (line.get(name) for name in ("custom_id", "response")) if isinstance(line, dict) else (0, 0)
    number = number_of(custom_id, prefix)
    if number is None or not isinstance(response, dict):
        return None
    status, body = response.get("status_code"), response.get("body")
    if type(status) is not int or not isinstance(body, dict):
        return None
    if not (200 <= status < 300 or status in PERMANENT):
        return None
    reported = body.get("usage")
    usage = read_usage(reported) if isinstance(reported, dict) else None
    if usage is not None:
        add_beside(usage, body)
    return ProviderAnswer(number, status, _bytes_of_body(text), usage)


def number_of(custom_id: object, prefix: str) -> int | None:
    """Returns the number of the line that a provider names so; None: it is none of the batch's."""
    if not isinstance(custom_id, str) or not custom_id.startswith(prefix):
        return None
    digits = custom_id.removeprefix(prefix)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


def _bytes_of_body(text: bytes) -> bytes:
    """Returns the body as the provider wrote it."""
    for name in ("response", "body"):
        place = find_fields(text, name)[-1]
        text = text[place.start : place.end]
    return text
