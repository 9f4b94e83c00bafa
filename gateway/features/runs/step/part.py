"""Which part of which run a call is, as it says by itself: in headers, in `baggage`, or in its body's `metadata`.

Sources: W3C Baggage (members `name=value;properties`, values percent-encoded).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from gateway.core.errors import InvalidRequest
from gateway.features.runs.rules.outcome import TOLD_OUTCOMES
from gateway.features.runs.rules.workflow import OTHER, RunOutcome, RunPart, RunWords, Workflows

WORKFLOW, RUN, TASK = b"x-gateway-workflow", b"x-gateway-run", b"x-gateway-task"
STEP, OUTCOME, BAGGAGE = b"x-gateway-step", b"x-gateway-run-outcome", b"baggage"
HEADERS = frozenset((WORKFLOW, RUN, TASK, STEP, OUTCOME))
OTHERS = OTHER, OTHER
ID_CHARS = "A-Z a-z 0-9 . _ : / [ ] -"
_ID = re.compile(r"[A-Za-z0-9._:/[\]-]{1,128}")
_RAW_ID = re.compile(rb"[A-Za-z0-9._:/[\]-]{1,128}")
_OWN_MEMBER = re.compile(rb"(?i)x-gateway-")
_INDEX = re.compile(r"(.+)\[\d+\]")


def is_id(text: object) -> bool:
    """Tells whether it can name a workflow, a run, a task or a step."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def task_of_step(step: str) -> str:
    """Returns the task of which the step is one: `summarise` of `summarise[3]`."""
    indexed = _INDEX.fullmatch(step)
    return step if indexed is None else indexed[1]


def run_words(index: Mapping[bytes, bytes], metadata: object = None) -> RunWords:
    """Returns what a call says: its headers first, then its baggage, then the `metadata` of its body.

    Raises InvalidRequest for a name that is none, but not for one in `metadata`: there it may mean something else.
    """
    workflow, run, task, step = index.get(WORKFLOW), index.get(RUN), index.get(TASK), index.get(STEP)
    words = RunWords(
        "" if workflow is None else _name(WORKFLOW, workflow),
        "" if run is None else _name(RUN, run),
        "" if task is None else _name(TASK, task),
    )
    if task is None and step is not None:
        words = words._replace(task=task_of_step(_name(STEP, step)))
    baggage = index.get(BAGGAGE)
    if baggage is not None and _OWN_MEMBER.search(baggage) is not None:
        words = RunWords(*(said or found for said, found in zip(words, _in_baggage(baggage), strict=True)))
    if isinstance(metadata, dict) and not all(words):
        words = RunWords(
            *(said or _in_metadata(metadata, name) for said, name in zip(words, words._fields, strict=True))
        )
    return words


def part_of(words: RunWords, workflows: Workflows, fixed: str = "") -> RunPart | None:
    """Returns the part that a call with these words is; None: of nothing. `fixed` is its key's workflow, which holds."""
    workflow = fixed or words.workflow
    if not (workflow or words.run or words.task):
        return None
    rules = workflows.get(workflow)
    labels = OTHERS if rules is None else rules.labels.get(words.task) or (workflow, OTHER)
    return RunPart(workflow, words.run, words.task, labels, rules)


def outcome_said(index: Mapping[bytes, bytes], part: RunPart | None) -> str:
    """Returns the outcome that a call's header gives its run; empty: none. Raises InvalidRequest."""
    said = index.get(OUTCOME)
    if said is None:
        return ""
    outcome = read_outcome(said.decode("latin-1"), "header 'x-gateway-run-outcome'")
    if part is None or not part.run:
        raise InvalidRequest(
            "The header 'x-gateway-run-outcome' needs the run of which it speaks: send 'x-gateway-run', too.",
            param="x-gateway-run",
            code="missing_field",
        )
    return outcome


def read_outcome(said: object, said_by: str) -> RunOutcome:
    """Returns the outcome that a caller tells. Raises InvalidRequest, naming what said it."""
    outcome = next((one for one in TOLD_OUTCOMES if one == said), None)
    if outcome is None:
        raise InvalidRequest(f"The {said_by} must be 'succeeded' or 'failed'.", param="outcome", code="invalid_value")
    return outcome


def without_own_members(baggage: bytes) -> bytes:
    """Returns the baggage without what is meant for the gateway; it may be empty then."""
    members = (member.strip() for member in baggage.split(b","))
    return b",".join(member for member in members if member.partition(b"=")[0].strip().lower() not in HEADERS)


def _name(header: bytes, value: bytes) -> str:
    if _RAW_ID.fullmatch(value) is None:
        name = header.decode()
        raise InvalidRequest(
            f"The header '{name}' must have 1 to 128 of {ID_CHARS}; leave it out, or put other characters as one of these.",
            param=name,
            code="invalid_value",
        )
    return value.decode()


def _in_baggage(baggage: bytes) -> RunWords:
    found: dict[bytes, str] = {}
    for member in baggage.split(b","):
        name, is_there, value = member.partition(b";")[0].partition(b"=")
        name = name.strip().lower()
        if is_there and name in HEADERS:
            text = unquote(value.strip().decode("latin-1"))
            if not is_id(text):
                raise InvalidRequest(
                    f"The member '{name.decode()}' of the header 'baggage' must have 1 to 128 of {ID_CHARS}, "
                    "percent-encoded where baggage wants it.",
                    param="baggage",
                    code="invalid_value",
                )
            found[name] = text
    task = found.get(TASK) or (task_of_step(found[STEP]) if STEP in found else "")
    return RunWords(found.get(WORKFLOW, ""), found.get(RUN, ""), task)


def _in_metadata(metadata: Mapping[str, object], name: str) -> str:
    value = metadata.get(name)
    return value if isinstance(value, str) and is_id(value) else ""
