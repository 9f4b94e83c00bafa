"""The ids of files, batches, jobs and events: ours are known by their looks, so those of a provider's can be left to it.

An id is a mark and 22 letters and digits, of which the last three follow from the rest: a provider's own id passes for one of
ours once in hundreds of millions, although OpenAI's files have just as many letters. The rest are 113 bits of a draw, or of the
digest of another id: whoever makes a file of a batch twice gives it the same id.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, Literal

FILE: Final = "file-gw"
BATCH: Final = "batch_gw"
JOB: Final = "job_gw"
EVENT: Final = "evt_gw"
DELIVERY: Final = "msg_gw"
Mark = Literal["file-gw", "batch_gw", "job_gw", "evt_gw", "msg_gw"]

DRAW_BYTES = 16
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BODY, _CHECK = 19, 3
_ID = re.compile(r"(file-gw|batch_gw|job_gw|evt_gw|msg_gw)([0-9A-Za-z]{19})([0-9A-Za-z]{3})")


def new_id(mark: Mark, draw: bytes) -> str:
    """Returns an id made of `DRAW_BYTES` random bytes or more."""
    body = _base62(int.from_bytes(draw), _BODY)
    return f"{mark}{body}{_check_of(mark, body)}"


def derived_file_id(batch_id: str, role: Literal["output", "errors"]) -> str:
    """Returns the id of a batch's own file, always the same."""
    return new_id(FILE, blake2b(batch_id.encode(), digest_size=DRAW_BYTES, person=f"batch {role}".encode()).digest())


def derived_event_ids(job_id: str, endpoint: str) -> tuple[str, str]:
    """Returns the ids of the event of a job's end, and of its delivery to an endpoint, always the same."""
    told = job_id.encode()
    event = blake2b(told, digest_size=DRAW_BYTES, person=b"event").digest()
    delivery = blake2b(told + b"\0" + endpoint.encode(), digest_size=DRAW_BYTES, person=b"delivery").digest()
    return new_id(EVENT, event), new_id(DELIVERY, delivery)


def is_ours(mark: Mark, id: str) -> bool:
    """Returns whether the id is of this kind and looks like one that a gateway made."""
    parts = _ID.fullmatch(id)
    return parts is not None and parts[1] == mark and _check_of(mark, parts[2]) == parts[3]


def line_id(batch_id: str, line: int) -> str:
    """Returns the id of one line's request: that of its batch, and the line's number from 0."""
    return f"batch_req_{batch_id.removeprefix(BATCH)}{line:06d}"


def _check_of(mark: str, body: str) -> str:
    return _base62(int.from_bytes(blake2b(f"{mark}{body}".encode(), digest_size=8).digest()), _CHECK)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(digits)
