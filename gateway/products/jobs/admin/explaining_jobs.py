"""Tells how a request would fare as a job or a line of a batch: where it is kept, how it is tried, when it is one unasked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.core.ledger import usage_usd
from gateway.core.limits.estimate import estimate_input_tokens
from gateway.core.openai.media import MEDIA, certain_usage, estimated_media_usage
from gateway.core.peek import Peeked
from gateway.core.snapshot import Key, Model, PolicySnapshot, Target
from gateway.core.types import Endpoint, Usage
from gateway.products.batches.input import bare_provider
from gateway.products.batches.native.rules import has_batch_api
from gateway.products.jobs.calls.ports import attempts_allowed
from gateway.products.jobs.rules import JobRules, RunAs
from gateway.products.jobs.service.job_service import segment_of

_RUN: Mapping[RunAs, str] = {
    "here": "at the usual price",
    "flex": "with service_tier flex",
    "native": "at the provider's own Batch API",
    "cheapest": "at the provider's own Batch API, and with service_tier flex what cannot go there",
}


def explain_job(
    policy: PolicySnapshot, endpoint: Endpoint, key: Key, peeked: Peeked, model: Model, body: bytes
) -> Iterator[str]:
    """Yields the lines on jobs."""
    settings = policy.jobs.settings
    if not policy.jobs.is_on:
        yield "job       none: this gateway takes no jobs (jobs.store)"
        return
    rules, at_all = model.jobs, policy.jobs.default
    price_usd = attempt_usd(endpoint, peeked, model.plan[0], body)
    segment = segment_of(at_all.segments, price_usd)
    at_once = next(one.concurrency for one in at_all.segments if one.name == segment)
    shown = "price not known" if price_usd is None else f"about ${price_usd:.2g} an attempt"
    yield f"job       segment {segment} ({at_once} pieces at a time; {shown}), lane {key.lane}"
    yield f"  tried             {attempts_allowed(rules, price_usd)}x within {rules.deadline_s:g} s"
    yield f"  in a batch        {_in_batch(policy, model, rules)}"
    yield f"  if refused        {_if_refused(key, rules)}"
    group = bare_provider(policy, model)
    if group is not None:
        yield f"  refused           for callers with a credential of their own, which {group} needs and no job keeps"
    place = settings.store or "the shared Redis"
    worker = "run here" if settings.works else "run by nobody" if settings.store else "run by other gateways"
    yield f"  kept              in {place}, files in {settings.files}; {worker}"


def attempt_usd(endpoint: Endpoint, peeked: Peeked, target: Target, body: bytes) -> float | None:
    """Returns what an attempt at the target is estimated to cost before anything was learned; None: not priced."""
    rates = target.find_rates(target.model or peeked.model)
    if endpoint.name in MEDIA:
        parsed = peeked.parsed or {}
        certain = certain_usage(endpoint.name, None, body, parsed)
        return usage_usd(rates, estimated_media_usage(endpoint.name, certain, body, parsed))
    if endpoint.tokens == "none" or peeked.parsed is None:
        return usage_usd(rates, Usage(0, 0))
    tokens = estimate_input_tokens(body, peeked.parsed)
    output_tokens = target.counting.first_output_tokens if endpoint.tokens == "both" else 0
    return usage_usd(rates, Usage(tokens, output_tokens, estimated=True))


def _in_batch(policy: PolicySnapshot, model: Model, rules: JobRules) -> str:
    batches = rules.batches
    run = _RUN[batches.run]
    if batches.run == "native" and not any(has_batch_api(policy.providers[one.provider]) for one in model.targets):
        run = "at the usual price, since no provider of the model has a Batch API that is known here"
    together = f", {batches.group_embeddings} inputs in one request" if batches.group_embeddings else ""
    classes = ", ".join(sorted(batches.brake_classes))
    return (
        f"{run}, up to {batches.window} lines at a time{together}; {batches.brake_after} in a row that fail for "
        f"{classes or 'nothing'} slow it down to single tries"
    )


def _if_refused(key: Key, rules: JobRules) -> str:
    if key.lane not in rules.degrade.lanes:
        return f"a plain call stays refused: degrade_to_job does not have the lane {key.lane}"
    what = f"a call becomes a job (202) instead of {', '.join(sorted(rules.degrade.when))}"
    return what if key.accepts_202 else f"{what}, if its key had accepts_202; this one is refused"
