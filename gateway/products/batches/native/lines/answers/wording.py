"""The lines of a part in the words of its provider, and the provider's answers in those of the lines' owner.

A target's own edits of bodies are made as for calls. Where a line cannot be said there, or only with a loss that its model's
policy refuses, it is none of the part: it runs here, along the plan, or fails as a call would. It must not know HTTP or stores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from typing import Final, NamedTuple

import orjson

from gateway.core.errors import InvalidRequest
from gateway.core.openai.json_edit.json_edit import with_model
from gateway.core.snapshot.snapshot.snapshot import PolicySnapshot
from gateway.core.types.provider_errors import Phase, UpstreamFailed
from gateway.core.types.words import How
from gateway.dialects.base.base import ServerFacts
from gateway.dialects.registry.pair import Pair
from gateway.dialects.registry.registry import PATHS, pair_of
from gateway.dialects.spoken import Conversion, Spoken
from gateway.dialects.sse.relayed_errors import for_openai
from gateway.products.batches.native.lines.lines import ProviderAnswer, part_line
from gateway.products.batches.native.rules.part import Part
from gateway.products.batches.output.marks import ENDPOINT, MODELS
from gateway.products.jobs.model.job import Job

MESSAGES: Final = "messages"
_MARK: Final = b'"gw1.'
"""Begins the signature of thinking that another provider's model did; keep in step with `from_messages.thinking.MARK`."""


class SaidLine(NamedTuple):
    """A line as the provider gets it, and what it loses on the way: fields, and how."""

    text: bytes
    lost: tuple[tuple[str, str], ...] = ()


class LineWording:
    """Of one part. Made anew for each use: the policy in force says how."""

    def __init__(self, policy: PolicySnapshot, job: Job, part: Part, url: str, now: float) -> None:
        """`url` is the endpoint as the provider spells it, `now` wall-clock seconds."""
        model = policy.find_model(job.marks[MODELS][0])
        targets = () if model is None else model.targets
        self._target = next((one for one in targets if one.name == part.target), None)
        self._refuses_loss = model is not None and model.on_loss == "refuse"
        self._part = part
        self._url = url
        self._now = now
        path = str(job.about[ENDPOINT]).removeprefix("/v1")
        self._asked = next((name for name, known in PATHS.items() if known == path), "")
        self._conversion = self._converting() if part.is_inline and self._asked != MESSAGES else None
        self.lost: Counter[tuple[str, str]] = Counter()
        """By field, and how, the number of lines that have lost it."""

    @property
    def converts(self) -> bool:
        """Tells whether answers are in other words than their owner's."""
        return self._conversion is not None

    def line(self, line_id: str, body: bytes) -> bytes | None:
        """Returns a line of the part without what separates it from the next; None: it cannot be said there."""
        said = self._said(line_id, with_model(body, self._part.model))
        if said is None:
            return None
        self.lost.update(said.lost)
        if not self._part.is_inline:
            return part_line(line_id, self._url, said.text, self._part.model)
        return b'{"custom_id":%b,"params":%b}' % (orjson.dumps(line_id), said.text.translate(None, b"\r\n"))

    def answer(self, line_id: str, body: bytes, told: ProviderAnswer) -> bytes | None:
        """Returns an answer in the words of the line, whose body is `body`; None: it is none that can be read."""
        if self._conversion is None:
            return told.body
        if told.status >= 400:
            return for_openai(told.status, told.body, self._class_of(told)) or told.body
        said = self._edited(with_model(body, self._part.model)) if body else None
        if said is None:
            return None
        pair = self._conversion.pair
        try:
            sent, _, _ = pair.request(said.text, self._facts(pair), self._now, _ids(line_id))
            made = pair.answer(sent, told.body)
        except (InvalidRequest, UpstreamFailed):
            return None
        return made

    def _converting(self) -> Conversion:
        """Returns what the target's calls of this endpoint are converted by; where it is gone, what any such target's are."""
        found = None if self._target is None else self._target.gaps.get(self._asked)
        if isinstance(found, Conversion) and found.pair.spoken == MESSAGES:
            return found
        spoken = Spoken("anthropic", frozenset((MESSAGES,)), "anthropic")
        return Conversion(pair_of(self._asked, MESSAGES), spoken, self._part.model)

    def _said(self, line_id: str, body: bytes) -> SaidLine | None:
        edited = self._edited(body)
        if edited is None or self._conversion is None:
            return edited if edited is None or _MARK not in body else self._unmarked(edited)
        pair = self._conversion.pair
        try:
            _, made, gaps = pair.request(
                edited.text, self._facts(pair), self._now, _ids(line_id), refuses_loss=self._refuses_loss
            )
        except InvalidRequest:
            return None
        return SaidLine(made, (*edited.lost, *((gap.field, str(gap.how)) for gap in gaps)))

    def _edited(self, body: bytes) -> SaidLine | None:
        edits = None if self._target is None else self._target.edits
        if edits is None:
            return SaidLine(body)
        made, dropped = edits.apply(body)
        lost = tuple((name, str(How.DROPPED)) for name in dropped)
        return None if dropped and self._refuses_loss else SaidLine(made, lost)

    def _unmarked(self, line: SaidLine) -> SaidLine | None:
        from gateway.dialects.anthropic.in_request.thinking import without_marks  # few conversations have one

        made, gaps = without_marks(line.text)
        if gaps and self._refuses_loss:
            return None
        return SaidLine(made, (*line.lost, *((gap.field, str(gap.how)) for gap in gaps)))

    def _facts(self, pair: Pair) -> ServerFacts:
        assert self._conversion is not None  # noqa: S101  # who asks has one
        return self._conversion.spoken.facts(pair, self._part.model)

    def _class_of(self, told: ProviderAnswer) -> str | None:
        if self._target is None:
            return None
        table = self._target.errors
        return table.diagnose(Phase.ANSWERED, told.status, [], told.body, self._now).error_class


def _ids(line_id: str) -> Callable[[], str]:
    """Returns what makes new ids, the same ones for the same line."""
    numbers = count()
    return lambda: blake2b(b"%d %b" % (next(numbers), line_id.encode()), digest_size=12).hexdigest()
