"""What a call's answer has to be, and what follows if it is something else.

A rule belongs to one call (`Call.output`). The edge takes it from the model's policy; a step of a pipeline sets its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from gateway.features.output.schema.schema import OutputSchema

OUTPUT_INVALID: Final = "output_invalid"
"""The class of an attempt whose answer broke its rule, and the code of the error."""
CHECKED: Final = frozenset(("chat", "responses", "messages"))
"""The endpoints whose answers are texts that a schema can be for."""
MOST_RETRIES: Final = 5

AtLast = Literal["fail", "pass"]
StreamRule = Literal["relay", "buffer"]


class OutputResult(StrEnum):
    """What came of the check of one call's answer; also the value of `x-gateway-output`, and a label."""

    VALID = "valid"
    RETRIED = "retried"
    """Valid, after the same request was sent again."""
    REPAIRED = "repaired"
    """Valid, after a model has corrected it."""
    INVALID = "invalid"
    REFUSED = "refused"
    """The model declined to answer, or its provider filtered the answer: no violation."""
    SKIPPED = "skipped"
    """Not checked: cut off at a length, a tool call, too large, or a schema of the caller's that is none."""


class Violation(NamedTuple):
    """Where an answer breaks its rule. Never holds a word of the answer."""

    rule: str
    """`json`: it is no JSON; else the keyword of the schema, such as `required`; `schema` where that could not be told."""
    path: str
    """A JSON Pointer into the answer. Names that are not in the schema stand as `*`; `` is the answer itself."""

    def __str__(self) -> str:
        return f"rule `{self.rule}` at `{self.path or '/'}`"


@dataclass(frozen=True, slots=True)
class OutputRule:
    """What an answer has to be, and what is done about one that is not."""

    schema: OutputSchema | None = None
    """None: the one that the request itself names (`response_format`, `text.format`); a request without one is not checked."""
    retry: int = 0
    """So many times the same request is sent again."""
    repair_with: str | None = None
    """The name of the model that is then asked to correct the answer, once for each invalid text; None: nobody is."""
    at_last: AtLast = "fail"
    """What the client gets when nothing has helped: an error, or the answer as it came."""
    max_usd: float | None = None
    """What retries and repairs of one call may cost together, as estimated; None: no bound but those of every call."""
    stream: StreamRule = "relay"
    """Streams are relayed as they come and only counted, or held back until they are known to be good."""
    digest: bytes = field(init=False, repr=False)
    """Names the rule in keys of stored answers: what was good enough for another rule is another answer."""

    def __post_init__(self) -> None:
        schema = b"request" if self.schema is None else self.schema.digest
        how = f"{self.retry}|{self.repair_with}|{self.at_last}|{self.stream}".encode()
        object.__setattr__(self, "digest", sha256(schema + how).digest())
