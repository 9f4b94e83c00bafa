"""The gates and lines of all targets, under the targets' stable names: a reload changes their numbers, not their state.

A wildcard target (`openai/*`) has a gate for each model name that is asked for, because that is how providers count; their
number is bounded. It must not know calls.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.clock import Clock
from gateway.flow.delayqueue import DelayQueue, Line
from gateway.policy.gate import Gate
from gateway.policy.snapshot import Model, PolicySnapshot, Target

MOST_WILDCARDS = 512
"""So many model names of wildcard targets have gates of their own; more share that of the target."""


class Gates:
    """Finds the line of a target."""

    __slots__ = ("_clock", "_queue", "_wild", "lines")

    def __init__(self, clock: Clock, queue: DelayQueue, policy: PolicySnapshot) -> None:
        self._clock = clock
        self._queue = queue
        self._wild: dict[str, str] = {}
        self.lines: dict[str, Line] = {}
        """By the name of the gate."""
        self.install(policy)

    def install(self, policy: PolicySnapshot) -> None:
        """Puts a policy's numbers in force. What it does not name is forgotten, unless somebody still uses it."""
        targets = {target.name: target for model in _models(policy) for target in model.plan}
        for name in [*self.lines]:
            named_by = self._wild.get(name, name)
            if named_by not in targets:
                self._forget(name)
            elif named_by != name:
                self._open(name, targets[named_by])
        for name, target in targets.items():
            self._wild.pop(name, None)
            self._open(name, target)

    def line(self, target: Target, model_name: str) -> Line:
        """The line of a target; of a wildcard, the one for the model that the call names."""
        if target.model is not None:
            line = self.lines.get(target.name)
            return line if line is not None else self._open(target.name, target)  # an earlier policy's: it lives on
        name = f"{target.provider}/{model_name}"
        line = self.lines.get(name)
        return line if line is not None else self._open_wild(name, target)

    def is_wild(self, name: str) -> bool:
        """Whether a client's own words are in the name: then it is no label for a metric."""
        return name in self._wild

    def _open_wild(self, name: str, target: Target) -> Line:
        if len(self._wild) >= MOST_WILDCARDS:
            for idle in [*self._wild]:
                self._forget(idle)
        if len(self._wild) >= MOST_WILDCARDS:
            return self.lines.get(target.name) or self._open(target.name, target)
        self._wild[name] = target.name
        return self._open(name, target)

    def _open(self, name: str, target: Target) -> Line:
        line = self.lines.get(name)
        now = self._clock.monotonic()
        if line is None:
            line = self.lines[name] = self._queue.line(Gate(name, target.limits, target.counting, now))
        else:
            line.gate.configure(target.limits, target.counting, now)
        return line

    def _forget(self, name: str) -> None:
        """Unless somebody waits or runs there, or it is to be left alone for a while."""
        line = self.lines[name]
        if not len(line.lineup) and not line.gate.in_flight and line.gate.paused_until <= self._clock.monotonic():
            del self.lines[name]
            self._wild.pop(name, None)
            self._queue.drop_line(name)


def _models(policy: PolicySnapshot) -> Iterable[Model]:
    yield from policy.models.values()
    for _, model in policy.patterns:
        yield model
