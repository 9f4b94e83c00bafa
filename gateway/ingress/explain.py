"""What would happen to a request, told without sending anything."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.call import Endpoint
from gateway.errors import NotFound, Unauthorised
from gateway.ingress import parse
from gateway.ingress.routes import ENDPOINTS
from gateway.policy.snapshot import Counting, Key, Limits, Model, PolicySnapshot, Target

_CHARGES = {
    "max": "the larger of input tokens and max_tokens",
    "sum": "input tokens and max_tokens",
    "input": "input tokens",
    "real": "input tokens and what answers usually take",
}


def explain(policy: PolicySnapshot, body: bytes, *, path: str, key_name: str | None) -> str:
    """Show key, model, plan with targets and limits, and the policies in force for a request. Nothing is sent.

    Raises the GatewayError that the request would be answered with.
    """
    endpoint = _endpoint(path)
    key = _key(policy, key_name)
    peeked = parse.peek(endpoint, body, {})
    model = parse.find_model(policy, key, peeked.model)
    return "\n".join(_lines(policy, endpoint, key, peeked, model))


def _lines(policy: PolicySnapshot, endpoint: Endpoint, key: Key, peeked: parse.Peeked, model: Model) -> Iterator[str]:
    yield f"endpoint  {endpoint.name} ({endpoint.path}), {'streamed' if peeked.stream else 'not streamed'}"
    yield f"key       {key.name} (tenant {key.tenant}, lane {key.lane}){_limits(key.limits)}"
    yield f"model     {peeked.model}" + ("" if model.name == peeked.model else f", served by the entry {model.name!r}")
    yield f"lane      {_lane(key, model)}"
    yield f"deadline  {policy.lane_deadline_s[key.lane]:g} s to start, from the lane; a caller's own header wins"
    yield "plan"
    for number, target in enumerate(model.plan, 1):
        own = "" if target in model.targets else "  (fallback)"
        yield f"  {number}. {target.name}{own}{_limits(target.limits)}"
        yield f"     {_rewrite(peeked.model, target)}; {_price(peeked.model, target)}"
        yield f"     {_counts(target.counting)}"
        clocks = target.clocks
        yield (
            f"     connect {clocks.connect_s:g} s, first byte {clocks.first_byte_s:g} s, "
            f"idle {clocks.idle_s:g} s, total {clocks.total_s:g} s"
        )
    asks = model.include_usage and endpoint.usage_option
    yield f"usage     {'asked for in streams, hidden from callers who did not ask' if asks else 'as the provider reports it'}"


def _endpoint(path: str) -> Endpoint:
    found = next((one for one in ENDPOINTS if path in (one.path, "/v1" + one.path)), None)
    if found is None:
        raise NotFound(f"Unknown path {path}; known: {', '.join('/v1' + one.path for one in ENDPOINTS)}.")
    return found


def _key(policy: PolicySnapshot, name: str | None) -> Key:
    if not policy.keys:
        return policy.anonymous
    keys = {key.name: key for key in policy.keys.values()}
    if name is None and len(keys) == 1:
        return next(iter(keys.values()))
    if name not in keys:
        raise Unauthorised(f"Name the key that calls with --key: {', '.join(keys)}.")
    return keys[name]


def _rewrite(asked: str, target: Target) -> str:
    if target.model is None or target.model == asked:
        return "the body goes as it came"
    return f"the body's model becomes {target.model!r}, nothing else changes"


def _price(asked: str, target: Target) -> str:
    rates = target.find_rates(target.model or asked)
    if rates is None:
        return "price not known"
    return f"${rates.input_usd * 1e6:g} in, ${rates.output_usd * 1e6:g} out per million tokens"


def _lane(key: Key, model: Model) -> str:
    """How a call of this key waits when nothing has room."""
    holding = model.holding
    told = []
    if len(model.plan) > len(model.targets):
        told.append(f"waits {holding.prefer_primary_for_s[key.lane]:g} s for the model's own targets before a fallback")
    if key.lane in ("batch", "background"):
        told.append(f"leaves {holding.reserve_percent:g} % of each limit to higher lanes")
    if key.critical:
        told.append("may ask for critical")
    return f"{key.lane}{': ' if told else ''}{', '.join(told)}"


def _counts(counting: Counting) -> str:
    """By which rule a call is charged against the limits, and whether they are learned."""
    style = counting.style
    windows = [] if style.request_window_s is None else [f"requests in windows of {style.request_window_s:g} s"]
    windows += [] if style.token_window_s is None else [f"tokens in windows of {style.token_window_s:g} s"]
    learns = "limits learned from answers" if counting.learns else "no limits learned"
    cached = ", cached ones not" if counting.excludes_cached else ""
    adaptive = ["concurrency follows the first byte"] if counting.adaptive else []
    return "; ".join([f"charged {_CHARGES[counting.charge]}{cached}", *windows, learns, *adaptive])


def _limits(limits: Limits) -> str:
    shown = (
        (limits.requests_per_min, "requests/min"),
        (limits.request_burst, "of them in a burst"),
        (limits.tokens_per_min, "tokens/min"),
        (limits.input_tokens_per_min, "input tokens/min"),
        (limits.output_tokens_per_min, "output tokens/min"),
        (limits.requests_per_day, "requests/day"),
        (limits.max_concurrency, "in flight"),
    )
    text = ", ".join(f"{value:.15g} {unit}" for value, unit in shown if value is not None)
    return f"  [{text}]" if text else ""
