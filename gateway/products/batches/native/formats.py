"""Batches and their lines as providers' own Batch APIs spell them. What these say is believed only as far as it can be checked.

First a batch and its lines in OpenAI's words, then in Anthropic's, which are read into the same values; last the ports of who
calls these APIs. Our name of a line is
the line's id, whose number says where its result belongs: what its owner calls it, which may be as long as 512 characters or
not be fit for everybody, stays at home.

Sources: https://platform.openai.com/docs/api-reference/batch/object (of Azure and Groq some of the fields are absent) and
https://platform.claude.com/docs/en/api/messages/batches.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, Protocol

import orjson

from gateway.core.limits.headers import rfc3339
from gateway.core.openai.json_edit import find_fields, with_model
from gateway.core.openai.usage import add_beside, read_usage
from gateway.core.snapshot import Key, Provider
from gateway.core.types import Usage

PART: Final = "gateway_part"
"""The entry of a provider's batch's metadata that has the name of our part."""
ENDED: Final = frozenset(("completed", "failed", "expired", "cancelled"))
FULL: Final = frozenset(("token_limit_exceeded", "too_many_tasks_enqueued", "rate_limit_exceeded"))
"""Codes that say: not now. The provider takes only so many tokens into its queue."""
_MOST_CHARS = 300


class ProviderRefused(Exception):
    """A provider has answered that it does not do what was asked. The message says why, without secrets."""

    def __init__(self, status: int, code: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class NeverSent(Exception):
    """Nothing was asked of the provider, and nothing will be. The message says why, without secrets."""


class PendingResult(Exception):
    """A batch that may be the one that is looked for is not over, and its lines are not known before."""


class RemoteBatch(NamedTuple):
    """What is read of a provider's batch."""

    id: str
    status: str
    input_file: str = ""
    output: str = ""
    """The id of its output file; empty: none, or none yet."""
    errors: str = ""
    part: str = ""
    """The name of our part, as its metadata has it."""
    created_at: float = 0.0
    completed: int = 0
    """Lines that have an answer, by its own count."""
    code: str = ""
    """Why it failed."""
    message: str = ""

    @property
    def is_over(self) -> bool:
        """Returns whether the provider does nothing more of it."""
        return self.status in ENDED

    @property
    def is_full(self) -> bool:
        """Returns whether it failed for want of room in the provider's queue."""
        return self.code in FULL


def read_batch(value: object) -> RemoteBatch | None:
    """Returns a provider's batch; None: the text says nothing of one."""
    if not isinstance(value, dict) or not _text(value.get("id")) or not _text(value.get("status")):
        return None
    counts, metadata, errors = (_mapping(value.get(name)) for name in ("request_counts", "metadata", "errors"))
    data = errors.get("data")
    first = _mapping(data[0]) if isinstance(data, list) and data else {}
    return RemoteBatch(
        _text(value["id"]),
        _text(value["status"]),
        _text(value.get("input_file_id")),
        _text(value.get("output_file_id")),
        _text(value.get("error_file_id")),
        _text(metadata.get(PART)),
        _number(value.get("created_at")),
        int(_number(counts.get("completed"))),
        _text(first.get("code")),
        _text(first.get("message"))[:_MOST_CHARS],
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else 0.0


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


# --- Anthropic's words, read into the same values ---

_STATUSES: Final = {"in_progress": "in_progress", "canceling": "cancelling"}
_OWN_FAULTS: Final = {"invalid_request_error": 400, "request_too_large": 413}
"""Types of errors that say that the line itself is wrong, and their statuses; whatever else went wrong may go well here."""


def read_message_batch(value: object) -> RemoteBatch | None:
    """Returns a batch in the words of all Batch APIs; None: the text says nothing of one.

    Its results, which are asked for by its own id, stand for an output file.
    """
    if not isinstance(value, dict) or not isinstance(value.get("id"), str) or not value["id"]:
        return None
    processing, counts = value.get("processing_status"), _counts(value)
    if processing == "ended":
        status = "cancelled" if counts.get("canceled") else "expired" if counts.get("expired") else "completed"
    elif isinstance(processing, str) and processing:
        status = _STATUSES.get(processing, processing)
    else:
        return None
    output = value["id"] if processing == "ended" and isinstance(value.get("results_url"), str) else ""
    done = counts.get("succeeded", 0) + counts.get("errored", 0)
    return RemoteBatch(value["id"], status, output=output, created_at=_time(value.get("created_at")), completed=done)


def count_of(value: Mapping[str, Any]) -> int:
    """Returns how many lines a batch has."""
    return sum(_counts(value).values())


def read_result(text: bytes, prefix: str) -> ProviderAnswer | None:
    """Returns what a line of a batch's results answers, as the provider wrote it; None: nothing that can be kept.

    `prefix` is what the ids of all lines of the batch begin with.
    """
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    result = line.get("result") if isinstance(line, dict) else None
    number = number_of(line.get("custom_id"), prefix) if isinstance(line, dict) else None
    if number is None or not isinstance(result, dict):
        return None
    message, error = result.get("message"), result.get("error")
    if result.get("type") == "succeeded" and isinstance(message, dict):
        usage = message.get("usage")
        reported = read_usage(usage) if isinstance(usage, dict) else None
        return ProviderAnswer(number, 200, _inner(text, "message"), reported)
    if result.get("type") == "errored" and isinstance(error, dict):
        inner = error.get("error")
        status = _OWN_FAULTS.get(str(inner.get("type"))) if isinstance(inner, dict) else None
        return None if status is None else ProviderAnswer(number, status, _inner(text, "error"), None)
    return None


def _inner(text: bytes, name: str) -> bytes:
    for step in ("result", name):
        place = find_fields(text, step)[-1]
        text = text[place.start : place.end]
    return text


def _counts(value: Mapping[str, Any]) -> dict[str, int]:
    counts = value.get("request_counts")
    items = counts.items() if isinstance(counts, dict) else ()
    return {name: number for name, number in items if type(number) is int and number > 0}


def _time(value: object) -> float:
    """Returns a time as seconds since 1970; 0.0: it is none."""
    return (rfc3339(value.encode(errors="replace")) if isinstance(value, str) else None) or 0.0


# --- ports: what keys may spend there, and the Batch APIs themselves ---


class NativeAccounts(Protocol):
    """What keys may spend, where no call is made of it."""

    def is_spent(self, key: Key) -> bool:
        """Returns whether the key has nothing left of its budget."""
        ...

    def paid(self, key: Key, usd: float) -> None:
        """Books what was paid on the key's account."""
        ...

    @property
    def outlives(self) -> bool:
        """Returns whether what is booked is known to whoever comes after this process."""
        ...

    async def charge(self, key: Key, usd: float) -> int | None:
        """Books ahead what is going to be paid; returns the day it counts for. None: the budget has not so much left."""
        ...

    def correct(self, key: str, day: int, usd: float) -> None:
        """Corrects what was charged on a day by so much (below 0: less was spent). A day that is over gives nothing back."""
        ...


class ProviderBatches(Protocol):
    """Providers' own Files and Batch APIs, with the credentials of the config.

    Every method raises ProviderRefused, or Unreachable where there was no answer, or one that says nothing: then what was
    asked may have been done.
    """

    async def upload(self, provider: Provider, filename: str, size: int, content: AsyncIterator[bytes]) -> str:
        """Uploads the input file of a batch, of so many bytes; returns its id."""
        ...

    async def find_file(self, provider: Provider, filename: str, not_before: float) -> str | None:
        """Returns the id of the input file of that name; older ones than `not_before` are not looked at."""
        ...

    async def create(
        self, provider: Provider, file_id: str, endpoint: str, part: str, may_send: Callable[[], bool]
    ) -> RemoteBatch:
        """Makes a batch that can be recognised by `part`, unless `may_send`, asked as the last thing before, says no.

        Raises NeverSent where nothing was asked of the provider.
        """
        ...

    async def submit(
        self, provider: Provider, size: int, content: AsyncIterator[bytes], may_send: Callable[[], bool]
    ) -> RemoteBatch:
        """Makes a batch of lines that go along, `size` bytes of them; `may_send` is asked before each piece is sent.

        Raises NeverSent where not all of them were: then there is no batch.
        """
        ...

    async def find_submitted(
        self,
        provider: Provider,
        is_ours: Callable[[str], bool],
        lines: int,
        others: Collection[str],
        not_before: float,
    ) -> RemoteBatch | None:
        """Returns the batch of so many lines that went along, by their names; `others` are known to be somebody else's.

        Raises PendingResult where one that may be it tells nothing of its lines yet.
        """
        ...

    async def find_batch(self, provider: Provider, part: str, file_id: str, not_before: float) -> RemoteBatch | None:
        """Returns the batch that was made for `part`, or of that file where the provider keeps no metadata."""
        ...

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        """Returns a batch as it is now."""
        ...

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        """Asks a batch to stop."""
        ...

    def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        """Yields the bytes of a file; what comes before an error is good."""
        ...

    async def remove(self, provider: Provider, file_id: str) -> None:
        """Removes a file; one that is not there is removed."""
        ...
