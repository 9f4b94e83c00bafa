"""Keeps waiting streams alive with SSE comments for clients whose call is held, or whose provider is silent.

The timers of SDKs and load balancers must not fire while a call waits for its first byte. One sweep over the calls in order of
their due times replaces a timer for each; a call costs one dictionary entry. It knows neither connections nor queues:
`call.comment` sends, `describe` writes the text. Invariant: a call gets no comment before its model's delay, nor after its
`end`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice

from gateway.core.call import Call

log = logging.getLogger("gateway.flow")

MAX_COMMENTS = 200
"""The comments sent for each delay in one sweep: thousands of calls that came at once must not block the loop."""

_Waiting = dict[int, tuple[float, Call]]
"""By the call's identity: the time of the next comment, and the call. With one delay for all, the order of insertion is the
order of due time.
"""


def waiting_for(call: Call) -> bytes:
    """Returns the comment for a call that is not held: it names the target whose answer the call waits for."""
    return b"waiting for " + call.attempts[-1].target.encode() if call.attempts else b"waiting"


class KeepAlive:
    """The streams that have nothing for their client yet. `begin` wants times that do not go back."""

    __slots__ = ("_describe", "_waiting")

    def __init__(self, describe: Callable[[Call], bytes] = waiting_for) -> None:
        """`describe` gives a comment's text: one line, without the colon."""
        self._describe = describe
        self._waiting: dict[float, _Waiting] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def begin(self, call: Call, now: float) -> None:
        """Sends `call` a comment whenever it has waited another `keepalive_after_s` of its model."""
        delay_s = call.model.holding.keepalive_after_s
        waiting = self._waiting.get(delay_s)
        if waiting is None:
            waiting = self._waiting[delay_s] = {}
        waiting[id(call)] = (now + delay_s, call)

    def end(self, call: Call) -> None:
        """Stops the comments because the answer begins, or there will be none; a second call does nothing."""
        waiting = self._waiting.get(call.model.holding.keepalive_after_s)
        if waiting is not None:
            waiting.pop(id(call), None)

    def sweep(self, now: float) -> None:
        """Sends the comments that are due, at most MAX_COMMENTS for each delay; called every SWEEP_S of the deadlines."""
        for delay_s, waiting in list(self._waiting.items()):
            for call in list(islice(_due(waiting, now), MAX_COMMENTS)):
                del waiting[id(call)]
                if self._tell(call):
                    waiting[id(call)] = (now + delay_s, call)
            if not waiting:
                del self._waiting[delay_s]  # reloads may bring ever new ones

    def _tell(self, call: Call) -> bool:
        """Sends the comment; returns whether that worked. A defect costs only this call its comments, and the sweep goes on."""
        try:
            return call.comment is not None and call.comment(self._describe(call))
        except Exception:
            log.exception("defect while keeping %s alive", call.id)
            return False


def _due(waiting: _Waiting, now: float) -> Iterator[Call]:
    for due, call in waiting.values():
        if due > now:
            return
        yield call
