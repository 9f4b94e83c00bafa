"""The ids of files, batches, responses and jobs: ours are known by their looks, so those of a provider's can be left to it.

An id is a mark and 22 letters and digits, of which the last three follow from the rest: a provider's own id passes for one of
ours once in hundreds of millions, although OpenAI's files have just as many letters. The rest are 113 bits of a draw, or of the
digest of another id. The files of a batch have its own id moved on by fixed steps: whoever makes one twice gives it the same
id, and by the id of a file its batch is known before there is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, Literal, get_args

FILE: Final = "file-gw"
BATCH: Final = "batch_gw"
RESPONSE: Final = "resp_gw"
JOB: Final = "job_gw"
EVENT: Final = "evt_gw"
DELIVERY: Final = "msg_gw"
DEAD_LETTER: Final = "dl_gw"
RUN: Final = "run_gw"
Mark = Literal["file-gw", "batch_gw", "resp_gw", "job_gw", "evt_gw", "msg_gw", "dl_gw", "run_gw"]

Role = Literal["output", "errors"]
"""What a file of a batch's own is to it."""

DRAW_BYTES = 16
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS: Final = [low + high for high in _DIGITS for low in _DIGITS]
"""What two digits of a number are written as: half as many divisions."""
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_BODY, _CHECK = 19, 3
_ID = re.compile(r"(file-gw|batch_gw|resp_gw|job_gw|evt_gw|msg_gw|dl_gw|run_gw)([0-9A-Za-z]{19})([0-9A-Za-z]{3})")
_STEPS: Final = {
    role: int.from_bytes(blake2b(digest_size=DRAW_BYTES, person=f"batch {role}".encode()).digest())
    for role in get_args(Role)
}
"""How far the id of a batch's own file lies behind the batch's."""


def new_id(mark: Mark, draw: bytes) -> str:
    """Returns an id made of `DRAW_BYTES` random bytes or more."""
    body = _base62(int.from_bytes(draw), _BODY)
    return f"{mark}{body}{_check_of(mark, body)}"


def derived_file_id(batch_id: str, role: Role) -> str:
    """Returns the id of a batch's own file, always the same. Raises ValueError for what is no batch's id."""
    return _moved(BATCH, batch_id, FILE, _STEPS[role])


def batches_of_file(file_id: str) -> Sequence[tuple[str, Role]]:
    """Returns the batches that could have a file with this id, and what it would be to each; there is one of them at most."""
    if not is_ours(FILE, file_id):
        return []
    return [(_moved(FILE, file_id, BATCH, -_STEPS[role]), role) for role in get_args(Role)]


def derived_event_ids(job_id: str, endpoint: str) -> tuple[str, str]:
    """Returns the ids of the event of a job's end, and of its delivery to an endpoint, always the same."""
    told = job_id.encode()
    event = blake2b(told, digest_size=DRAW_BYTES, person=b"event").digest()
    delivery = blake2b(told + b"\0" + endpoint.encode(), digest_size=DRAW_BYTES, person=b"delivery").digest()
    return new_id(EVENT, event), new_id(DELIVERY, delivery)


def derived_redelivery_id(delivery_id: str) -> str:
    """Returns the id of the delivery that is made in place of one that has ended, always the same."""
    told = delivery_id.encode()
    return new_id(DELIVERY, blake2b(told, digest_size=DRAW_BYTES, person=b"redelivery").digest())


def derived_replay_id(mark: Mark, letter_id: str, number: int) -> str:
    """Returns the id of the job that replays a dead letter for the `number`-th time, always the same."""
    told = f"{letter_id}\0{number}".encode()
    return new_id(mark, blake2b(told, digest_size=DRAW_BYTES, person=b"replay").digest())


def derived_call_id(record: bytes, number: int) -> str:
    """Returns the id of the `number`-th job that stands for a call with an `Idempotency-Key`, always the same."""
    told = record + b"\0%d" % number
    return new_id(JOB, blake2b(told, digest_size=DRAW_BYTES, person=b"call").digest())


def derived_child_id(mark: Mark, run_id: str, step: str, attempt: int) -> str:
    """Returns the id of the job that is the `attempt`-th one of a run's step, always the same."""
    told = f"{run_id}\0{step}\0{attempt}".encode()
    return new_id(mark, blake2b(told, digest_size=DRAW_BYTES, person=b"child").digest())


def derived_response_id(tenant: str, provider_id: str) -> str:
    """Returns the id under which the gateway keeps a response that a provider calls `provider_id`, always the same."""
    told = f"{len(tenant)}:{tenant}{provider_id}".encode()
    return new_id(RESPONSE, blake2b(told, digest_size=DRAW_BYTES, person=b"response").digest())


def is_ours(mark: Mark, id: str) -> bool:
    """Returns whether the id is of this kind and looks like one that a gateway made."""
    parts = _ID.fullmatch(id)
    return parts is not None and parts[1] == mark and _check_of(mark, parts[2]) == parts[3]


def line_id(batch_id: str, line: int) -> str:
    """Returns the id of one line's request: that of its batch, and the line's number from 0."""
    return f"batch_req_{batch_id.removeprefix(BATCH)}{line:06d}"


def _moved(mark: Mark, id: str, to: Mark, step: int) -> str:
    """Returns the id of the other kind that lies so far behind this one."""
    parts = _ID.fullmatch(id)
    if parts is None or parts[1] != mark:
        raise ValueError(f"{id!r} does not begin with {mark}")
    number = 0
    for digit in reversed(parts[2]):
        number = 62 * number + _VALUES[digit]
    body = _base62((number + step) % 62**_BODY, _BODY)
    return f"{to}{body}{_check_of(to, body)}"


def _check_of(mark: str, body: str) -> str:
    return _base62(int.from_bytes(blake2b(f"{mark}{body}".encode(), digest_size=8).digest()), _CHECK)


def _base62(number: int, length: int) -> str:
    """Returns the lowest digits of a number, the lowest first."""
    digits = []
    for _ in range(length // 2):
        number, pair = divmod(number, 62 * 62)
        digits.append(_PAIRS[pair])
    if length % 2:
        digits.append(_DIGITS[number % 62])
    return "".join(digits)
