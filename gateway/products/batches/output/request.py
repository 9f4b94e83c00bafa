"""What a caller may ask of a batch: the fields of `POST /v1/batches`, checked as OpenAI checks them.

https://platform.openai.com/docs/api-reference/batch/create
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from gateway.core.errors import InvalidRequest
from gateway.products.jobs.service.job_request import read_metadata

FIELDS: Final = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
LEAST_WINDOW_S, LONGEST_WINDOW_S = 600, 7 * 86_400
LEAST_LIFE_S, LONGEST_LIFE_S = 3600, 30 * 86_400
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A batch as it was asked for."""

    input_file_id: str
    endpoint: str
    """Such as `/v1/chat/completions`."""
    window: str
    """As the caller wrote it."""
    window_s: float
    metadata: Mapping[str, str]
    output_lasts_s: float | None
    """For how long its files are kept, where the caller says so."""


def read_batch_request(asked: Mapping[str, Any], endpoints: Collection[str]) -> BatchRequest:
    """Reads the fields; `endpoints` are paths below the base URL. Raises InvalidRequest, naming the field and the remedy."""
    unknown = next((name for name in asked if name not in FIELDS), None)
    if unknown is not None:
        _refuse(unknown[:64], f"is unknown; known are {', '.join(FIELDS)}")
    file_id = _text(asked, "input_file_id")
    endpoint = _text(asked, "endpoint")
    path = endpoint.removeprefix("/v1")
    if path not in endpoints:
        _refuse("endpoint", f"must be one of {', '.join('/v1' + one for one in endpoints)}")
    window = _text(asked, "completion_window")
    return BatchRequest(
        file_id, f"/v1{path}", window, _window_s(window), read_metadata(asked.get("metadata")), _life_s(asked)
    )


def _text(asked: Mapping[str, Any], name: str) -> str:
    value = asked.get(name)
    if value is None:
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        _refuse(name, "must be a text of 1 to 256 characters")
    return value


def _window_s(window: str) -> float:
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not LEAST_WINDOW_S <= seconds <= LONGEST_WINDOW_S:
        _refuse("completion_window", 'must be "24h", or another time from "10m" to "7d"')
    return float(seconds)


def _life_s(asked: Mapping[str, Any]) -> float | None:
    said = asked.get("output_expires_after")
    if said is None:
        return None
    seconds = said.get("seconds") if isinstance(said, dict) and said.get("anchor") == "created_at" else None
    if type(seconds) is not int or not LEAST_LIFE_S <= seconds <= LONGEST_LIFE_S:
        _refuse(
            "output_expires_after",
            f'must be {{"anchor": "created_at", "seconds": {LEAST_LIFE_S} to {LONGEST_LIFE_S}}}',
        )
    return float(seconds)


def _refuse(name: str, problem: str) -> NoReturn:
    raise InvalidRequest(f"The field '{name}' {problem}.", param=name)
