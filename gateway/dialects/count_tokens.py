"""How many tokens a request has: counted by the target that would serve it, where that can, else estimated.

Clients ask this before each turn, and can do without. So it goes past limits, queues and retries, and tells breakers nothing:
no count takes a generation's place, and none of its failures is a target's. Invariant: whoever asks gets a number, unless the
request itself is wrong, or the caller's own credential.
"""

from __future__ import annotations

import asyncio

import orjson

from gateway.core.admission.admission import Admission
from gateway.core.answers import JSON_TYPE, AttemptDeadlines, dispatch
from gateway.core.call import Call, CallFeature, CallRoute, ErrorAnswer, Reply, Serve, Stream, Whole
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest
from gateway.core.ledger import Accounts, answer_headers
from gateway.core.openai.headers import response_headers
from gateway.core.retry import Attempt
from gateway.core.snapshot import Target
from gateway.core.types import UpstreamFailed
from gateway.dialects import shapes
from gateway.dialects.endpoints import COUNT_TOKENS

WAIT_S = 10.0
"""A count that takes longer is not worth it."""
CALLERS_FAULTS = frozenset((400, 413, 422))
"""What a target says with these of a request it would say of the request itself, too."""
CREDENTIALS_FAULTS = frozenset((401, 403))
ESTIMATED = (b"x-gateway-estimated", b"true")


class TokenCounts(CallFeature):
    """Answers questions for the tokens of a request. One per process; holds no state of any call."""

    __slots__ = ("_accounts", "_admission", "_clock", "_returned", "_returned_by_many", "_watch")

    name = "count_tokens"
    options: frozenset[bytes] = frozenset()

    def __init__(self, clock: Clock, admission: Admission, accounts: Accounts) -> None:
        self._clock = clock
        self._admission = admission
        self._accounts = accounts
        self._returned = response_headers()
        self._returned_by_many = response_headers(limits=False)
        self._watch = AttemptDeadlines()  # nobody sweeps it: WAIT_S is all that these attempts have

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for the endpoints that ask for a count."""
        return self if route.endpoint.counts_tokens else None

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Answers one question, and never goes on. Raises InvalidRequest where there is nothing to count."""
        return await self._counted(call) or self._estimated(call)

    async def _counted(self, call: Call) -> Reply | None:
        """Returns what a target says; None: the one whose turn it would be does not count."""
        for target in call.route.model.targets:
            find_gaps = target.gaps.get(COUNT_TOKENS.name)
            if call.request.endpoint is not COUNT_TOKENS or (find_gaps is not None and find_gaps({})):
                return None
            if not self._admission.gates.line(target, call).gate.health.is_clear:
                continue
            answer = await self._fetch(call, target)
            if answer is not None and self._is_last_word(call, answer):
                outcome = answer.error_class if isinstance(answer, ErrorAnswer) else "ok"
                self._accounts.settle(call, answer.status, outcome, attempt=answer.attempt)
                shared = (self._returned if len(call.route.model.plan) == 1 else self._returned_by_many).keep(
                    answer.headers
                )
                return Reply(
                    answer.status, shared + answer_headers(call, self._clock.monotonic()), answer.body, shared=shared
                )
        return None

    async def _fetch(self, call: Call, target: Target) -> Whole | ErrorAnswer | None:
        """Returns the target's answer; None: there was none."""
        try:
            async with asyncio.timeout(WAIT_S):
                answer = await dispatch(call, Attempt(target, self._clock.monotonic()), self._clock, self._watch)
        except (UpstreamFailed, TimeoutError):
            return None
        return None if isinstance(answer, Stream) else answer

    def _is_last_word(self, call: Call, answer: Whole | ErrorAnswer) -> bool:
        if answer.status < 300 or answer.status in CALLERS_FAULTS:
            return True
        is_callers = call.request.credential is not None and not answer.attempt.target.account
        return is_callers and answer.status in CREDENTIALS_FAULTS

    def _estimated(self, call: Call) -> Reply:
        is_message = call.request.endpoint is COUNT_TOKENS
        field = "messages" if is_message else "contents"  # what is counted first of all
        if call.parsed is not None and not isinstance(call.parsed.get(field), list):
            raise InvalidRequest(f"The field '{field}' must be a list of {field}.", param=field)
        language: shapes.Language = "messages" if is_message else "generate"
        tokens = self._admission.costs.usage(call, call.route.model.targets[0]).input
        self._accounts.settle(call, 200, "ok")
        shared = [(b"content-type", JSON_TYPE), ESTIMATED]
        headers = shared + answer_headers(call, self._clock.monotonic())
        return Reply(200, headers, orjson.dumps(shapes.count(language, tokens)), shared=shared)
