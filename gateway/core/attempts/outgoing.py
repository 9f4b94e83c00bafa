"""Builds the request for a target: the client's own bytes, changed only where a rule needs it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import orjson

from gateway.core.call import Call
from gateway.core.errors import InvalidRequest
from gateway.core.openai import json_edit
from gateway.core.openai.bodies import LARGE_BYTES, BodyEdits, Large, edited
from gateway.core.snapshot.route_plan import upstream_model
from gateway.core.snapshot.snapshot import Target
from gateway.core.types import Attempt, Clocks, Gap, How, Outgoing, Spliced
from gateway.features.reuse.rules.keys import ACCOUNTS

# Ends attempts that have no answer in time.
#
# A transport's clocks watch single phases; this watches the whole attempt, up to the caller's own deadline. One sweep over the
# open attempts replaces a timer for each; now and then `look` is called with all of them. Invariant: a task is only
# cancelled while it is watched.


SWEEP_S = 0.05
LOOK_S = 0.25
MANY = 500
"""With more open attempts than this, all of them are looked at less often."""

log = logging.getLogger("gateway")
Task: TypeAlias = asyncio.Task[Any]
Open: TypeAlias = Mapping[Task, tuple[float, Call]]
"""The open attempts by task: the monotonic time at which each ends, and the call whose last attempt it is."""


class AttemptDeadlines:
    """The attempts that have no answer yet, each by its task, with the time (monotonic seconds) at which it is cancelled."""

    __slots__ = ("_expired", "_look_at", "_open", "_paired", "look")

    def __init__(self) -> None:
        self._open: dict[Task, tuple[float, Call]] = {}
        self._expired: set[Task] = set()
        self._paired: dict[Task, tuple[Call, bool]] = {}
        self._look_at = 0.0
        self.look: Callable[[Open, float], None] | None = None
        """A callback for all open attempts and the time, called every LOOK_S while there are any."""

    def begin(self, ends_at: float, task: Task | None, call: Call) -> Task | None:
        """Watches the current task for the call's last attempt; `task` is the current task, if the caller knows it."""
        task = task or asyncio.current_task()
        if task is not None:
            self._open[task] = (ends_at, call)
        return task

    def end(self, task: Task | None) -> None:
        """Stops watching the task."""
        if task is not None:
            self._open.pop(task, None)
            if self._expired:
                self._expired.discard(task)
            if self._paired:
                self._paired.pop(task, None)

    def pair(self, task: Task, beside: Call, *, is_spared: bool) -> None:
        """Marks the task as one of two attempts of its call; the other is the last of `beside`. A spared task may be late."""
        self._paired[task] = beside, is_spared

    def part(self, task: Task) -> None:
        """Marks the task as its call's only attempt again, because the other has failed."""
        self._paired.pop(task, None)

    def beside(self, task: Task) -> Call | None:
        """Returns the call whose last attempt runs beside this task; None: the task is its call's only attempt."""
        return self._paired[task][0] if task in self._paired else None

    def is_spared(self, task: Task) -> bool:
        """Returns whether the task is left alone until its time is up or the other attempt has failed."""
        return task in self._paired and self._paired[task][1]

    def shorten(self, task: Task, ends_at: float) -> None:
        """Brings the end of the task's time forward to `ends_at`."""
        entry = self._open.get(task)
        if entry is not None and ends_at < entry[0]:
            self._open[task] = (ends_at, entry[1])

    def expire(self, task: Task) -> None:
        """Cancels the task as if its time were up; does nothing if it is not watched any more."""
        if self._open.pop(task, None) is not None:
            self._expired.add(task)
            task.cancel()

    def uncancel_expired(self, task: Task | None) -> bool:
        """Uncancels the task if the CancelledError that it has just caught came from here; returns whether nothing else did."""
        if task is None or task not in self._expired:
            return False
        self._expired.discard(task)
        return task.uncancel() == 0

    def sweep(self, now: float) -> None:
        """Cancels the tasks whose time is up; called every SWEEP_S."""
        for task in [task for task, (ends_at, _) in self._open.items() if ends_at <= now]:
            self.expire(task)
        if self._open and now >= self._look_at and self.look is not None:
            self._look_at = now + LOOK_S * max(1.0, len(self._open) / MANY)
            try:
                self.look(self._open, now)
            except Exception:  # a defect in `look` must not keep attempts from timing out
                log.exception("looking at the open attempts failed")


_STORED_PROMPT = re.compile(rb'"prompt"\s*:\s*\{')


def outgoing_of(call: Call, target: Target, clocks: Clocks, attempt: Attempt) -> Outgoing:
    """Returns the request of this attempt; a caller's own deadline bounds the time to its first byte."""
    first_byte_s = clocks.first_byte_s
    if call.deadline_is_callers:
        first_byte_s = min(first_byte_s, max(0.001, call.deadline - attempt.started_at))
    model = target.model
    if model is None:
        model = upstream_model(call, target)
    headers, credential = call.headers, call.credential
    if credential is not None and target.name in call.model.without_caller_credential:
        headers, credential = [header for header in headers if header[0] not in ACCOUNTS], None
    body: bytes | Spliced = call.body
    if model != call.model_name or call.large is not None or call.stream or call.lowered is not None:
        body = _body_for(call, model)
    if target.edits is not None and call.endpoint.request == "json":
        edits = target.edits if call.endpoint.name != "count_tokens" else target.edits.of_count()
        body = _edited(body, edits, attempt, refuses_loss=call.model.on_loss == "refuse")
    return Outgoing(
        call.method,
        call.path,
        call.query,
        model,
        headers,
        body,
        credential,
        clocks,
        first_byte_s,
        attempt,
    )


def _body_for(call: Call, model: str) -> bytes | Spliced:
    """Returns the client's bytes, changed only where a rule needs it: the model's name, and the request for usage."""
    body, large = call.body if call.lowered is None else call.lowered.body, call.large
    if large is not None and large.model is not None and call.model_name:
        return _large_body(call, large, None if model == call.model_name else model)
    if model != call.model_name and body:
        if call.model_span is not None and call.model_name and len(body) > LARGE_BYTES:
            return Spliced(body, [(*call.model_span, model.encode())])
        body = _with_model(body, model, call.model_span) if call.model_name else _named(body, model)
    if adds_usage(call):
        body = json_edit.with_include_usage(body, call.stream_options)
    return body


def _edited(body: bytes | Spliced, edits: BodyEdits, attempt: Attempt, *, refuses_loss: bool) -> bytes:
    """Makes what the target's config says of the body; what is dropped from it is told as what is lost in a conversion.

    Raises InvalidRequest where nothing may be lost.
    """
    made, dropped = edits.apply(bytes(body))
    if dropped and refuses_loss:
        named = ", ".join(f"'{name}'" for name in dropped)
        message = f"The config of the model's target drops {named}. Send the call without, or use another model."
        raise InvalidRequest(message, param=dropped[0], code="unsupported_by_targets")
    attempt.gaps = [Gap(name, How.DROPPED, "the config of the target drops it") for name in dropped]
    return made


def _large_body(call: Call, large: Large, model: str | None) -> bytes | Spliced:
    is_asking = adds_usage(call)
    if model is None and not is_asking:
        return call.body
    return edited(call.body, large, model, call.stream_options, adds_usage=is_asking)


def _named(body: bytes, model: str) -> bytes:
    """Adds the target's model to a body that names none, unless it has a stored prompt, which has a model of its own."""
    if _STORED_PROMPT.search(body) is not None:
        return body
    if json_edit.find_fields(body, "model"):  # null
        return json_edit.with_model(body, model)
    return json_edit.insert_field(body, "model", orjson.dumps(model))


def _with_model(body: bytes, model: str, span: tuple[int, int] | None) -> bytes:
    if span is None:
        return json_edit.with_model(body, model)
    return body[: span[0]] + model.encode() + body[span[1] :]


def adds_usage(call: Call) -> bool:
    """Returns whether the gateway asks for usage in the stream, because the caller did not say."""
    if not (call.stream and call.endpoint.usage_option and call.model.include_usage):
        return False
    options = call.stream_options
    return options is None or (isinstance(options, dict) and options.get("include_usage") is None)
