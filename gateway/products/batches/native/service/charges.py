"""What parts cost their keys, booked before they are sent and set right when they are over: no two of them, and no live call
beside them, spend the same money of a budget.

    take (before the part is noted) -> remember (by each worker that has it next) -> settle (when it runs here, or is done)

A charge counts for the day (UTC) on which it was taken, for which it is given back; what the answers cost is booked as they
come (`ProviderAnswers`), so for a moment both count. Where what is spent outlives this process, so do charges; otherwise the
next one books them again. Invariant: the part's mark says what is charged for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.snapshot.snapshot.snapshot import Key
from gateway.products.batches.input.lines import read_line
from gateway.products.batches.native.lines.answers.input import lines_of
from gateway.products.batches.native.rules.choice import NoPart
from gateway.products.batches.native.rules.part import Part
from gateway.products.batches.output.line_request import request_of
from gateway.products.jobs.calls.ports.ports import MakeCall, NativeAccounts
from gateway.products.jobs.model.ids import line_id
from gateway.products.jobs.model.job import Job
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.store.blobs import Blobs

DAY_S = 86_400


class PartCharges:
    """Charges keys that have a budget; all others are charged nothing."""

    def __init__(
        self,
        blobs: Blobs,
        accounts: NativeAccounts,
        make_call: MakeCall,
        price_of: Callable[[Call], float],
        rules_of: Callable[[Job], JobRules],
        clock: Clock,
    ) -> None:
        """`price_of` gives what a call is reckoned with in a budget, in US dollars."""
        self._blobs = blobs
        self._accounts = accounts
        self._make_call = make_call
        self._price_of = price_of
        self._rules_of = rules_of
        self._clock = clock
        self._known: set[str] = set()
        """Parts whose charges this process has booked."""

    async def take(self, job: Job, chunk: int, has_result: Collection[int], key: Key, part: Part) -> Part | None:
        """Returns the part with what was charged for it; None: its key has not enough left today.

        Raises NoPart where it never has, JobsUnavailable.
        """
        budget_usd = key.budget_usd_per_day
        if budget_usd is None:
            return part
        if self._accounts.is_spent(key):
            return None
        usd = await self._estimate(job, chunk, has_result)
        if usd > budget_usd:
            raise NoPart(f"it costs about ${usd:.2g}, and its key may spend ${budget_usd:g} a day")
        day = await self._accounts.charge(key, usd)
        if day is None:
            return None
        self._known.add(part.origin)
        return replace(part, charged_usd=usd, charged_day=day)

    def remember(self, job: Job, part: Part) -> None:
        """Books what an earlier life of this process has charged, where that is not known any more."""
        if not part.charged_usd or part.origin in self._known:
            return
        self._known.add(part.origin)
        is_todays = part.charged_day == int(self._clock.wall() // DAY_S)
        if is_todays and not self._accounts.outlives:
            self._accounts.correct(job.key, part.charged_day, part.charged_usd)

    def settle(self, job: Job, part: Part) -> None:
        """Gives back what was charged for a part that is over."""
        if part.charged_usd:
            self._known.discard(part.origin)
            self._accounts.correct(job.key, part.charged_day, -part.charged_usd)

    async def _estimate(self, job: Job, chunk: int, has_result: Collection[int]) -> float:
        rules, now, usd = self._rules_of(job), self._clock.wall(), 0.0
        try:
            async for lines in lines_of(self._blobs, job, chunk, has_result):
                for line in lines:
                    read = read_line(line.text)
                    name = line_id(job.id, line.number)
                    try:
                        call = await self._make_call(request_of(job, rules, now, name, read.body, read.parsed))
                    except GatewayError:
                        continue  # a line that is refused here; there, too, most likely
                    usd += self._price_of(call)
        except (FileNotFoundError, ValueError) as error:
            raise NoPart("its input cannot be read") from error
        return usd * rules.batches.native.price_factor
