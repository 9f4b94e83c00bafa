"""What a 429 means: for the call that got it, for the target's pauses, and for what is believed of its limits.

It must not know calls, plans or the time that a call still has. Invariants: all refusals of one epoch lengthen a pause once; a
refusal that comes whatever the rate pauses nobody.
"""

from __future__ import annotations

from enum import Enum

from gateway.core.error_tables.classify import Diagnosis
from gateway.core.limits.estimate.cost import Cost
from gateway.core.limits.headers.provider_headers import read_limit_headers
from gateway.core.limits.reservation.grant import Grant
from gateway.core.limits.table.limit_table import levels
from gateway.core.limits.target_limits.gate.gate import LONGEST_HOLD_S
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.provider_errors import ErrorClass


class Refusal(Enum):
    """What a 429 means for the call that got it."""

    WAIT = "wait"
    """The target is paused; the call goes back to the head of its queue."""
    NEVER_FITS = "never fits"
    """It asks for more than the limit ever holds there."""
    EXHAUSTED = "exhausted"
    """The account is spent until its reset."""


def refused(grant: Grant, diagnosis: Diagnosis, headers: RawHeaders, now: float, wall_now: float) -> Refusal:
    """Ends an attempt that the provider refused for its rate or its account, and pauses the target.

    The latest of all hints wins. A refused call keeps what it took of the requests, because most providers count it;
    its tokens only where no header tells the level, and once for all calls of one epoch: whatever made our level too
    high (a provider's clock starts with the first arrival, ours with the first dispatch) is so put right.
    """
    gate = grant.gate
    grant.forget(now)
    if diagnosis.never_fits:
        grant.cancel(now)
        return Refusal.NEVER_FITS
    delay_s, is_for_tokens = diagnosis.delay_s, diagnosis.error_class == ErrorClass.RATE_LIMIT_TOKENS
    learned = read_limit_headers(headers, wall_now, gate.counting.kind) if gate.counting.learns else None
    gate.learn(learned, grant.at, grant.mark, now)
    is_first = grant.epoch == gate.pauses.epoch and not gate.pauses.refusals_in_a_row
    keeps_tokens = is_for_tokens and learned is None and is_first
    is_exhausted = diagnosis.error_class == ErrorClass.QUOTA_EXHAUSTED or (delay_s or 0.0) > LONGEST_HOLD_S
    grant.is_told = not is_exhausted
    grant.end(grant.cost if keeps_tokens else Cost(grant.cost.requests, 0, 0), now)
    if is_exhausted:
        gate.exhaust(delay_s, now)
        return Refusal.EXHAUSTED
    _slow_down(grant, delay_s, now, is_for_tokens=is_for_tokens)
    return Refusal.WAIT


def _slow_down(grant: Grant, delay_s: float | None, now: float, *, is_for_tokens: bool) -> None:
    """Pauses for as long as was asked; where nobody says, for longer each time, and the rate is searched for."""
    gate = grant.gate
    pauses, discovery, table = gate.pauses, gate.discovery, gate.limits.table
    gate.is_plain = False
    if not discovery.refused(grant.at, now, is_current=grant.epoch == pauses.epoch):
        return  # it comes whatever the rate: no reason to leave the others waiting, the call alone goes again
    is_first = pauses.refused(grant.epoch)
    if is_for_tokens or not levels.burst_refused(gate.limits, now, is_first=is_first):
        discovery.count_unexplained()  # else too many went at once: no word on the rate
    if delay_s is not None:
        gate.pause(pauses.believed_s(delay_s), now)
    if discovery.search is not None:
        if discovery.is_distrusted and discovery.trust_if_in_vain(table.refills_per_s(requests=True)):
            gate.review_rate(now)
        return
    if delay_s is None and is_first:
        gate.pause(pauses.backoff_s, now)
    if discovery.is_unexplained and pauses.refusals_in_a_row == 1 and gate.counting.learns:
        # It does serve us, but not as much as we were told: somebody else uses the account, or the config is wrong.
        discovery.distrust(table.refills_per_s(requests=True), now)
