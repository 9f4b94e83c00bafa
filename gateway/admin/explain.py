"""What would happen to a request, without sending anything; and what the gateway makes of a provider's error.

In this order: a request's route, targets and policies (`explain`), a provider's error (its class, rule, and why it
matched), and what a call becomes at targets that do not speak its language. What products do for a request their sections of
the config say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import orjson

from gateway.admin.describe import targets_hidden_from_callers
from gateway.core import request_fields
from gateway.core.balancing import Action, Choice, ClassRule, Retries
from gateway.core.call import CallProduct, CallRoute
from gateway.core.error_tables import Diagnosis, ErrorFacts, ErrorRule, ErrorTable, answer_of, read_body
from gateway.core.errors import InvalidRequest, NotFound, Unauthorised
from gateway.core.health.detector import BreakerRules
from gateway.core.ledger import usage_usd
from gateway.core.limits.limit_table import Limits
from gateway.core.openai.bodies import Capabilities
from gateway.core.openai.sse import json_object
from gateway.core.openai.usage import estimate_input_tokens
from gateway.core.patience import SDK_S
from gateway.core.request_fields import METADATA, Peeked, RoutePlan, peek, plan_route
from gateway.core.snapshot import Counting, ExplainedRequest, Key, Model, PolicySnapshot, Rates, Target
from gateway.core.types import Clocks, Endpoint, FindUnsupportedFields, How, Phase, RawHeaders, Usage
from gateway.dialects import http as door
from gateway.dialects.endpoints import ENDPOINTS
from gateway.dialects.target_languages import Conversion

_CHARGES = {
    "max": "the larger of input tokens and max_tokens",
    "sum": "input tokens and max_tokens",
    "input": "input tokens",
    "real": "input tokens and what answers usually take",
}
PROXY_PATIENCE_S = 60.0
"""Seconds that nginx, ALB and others wait for the first byte of an answer, unless they are told."""
_CHOICES: Mapping[Choice, str] = {
    "weighted": "each tier shared by weight",
    "in_order": "as listed",
    "least_loaded": "in each tier the least loaded first",
    "fastest": "in each tier the fastest first",
}


def explain(
    policy: PolicySnapshot,
    body: bytes,
    *,
    path: str,
    key_name: str | None,
    shows_upstream: bool = False,
    products: Sequence[CallProduct] = (),
) -> str:
    """Show key, model, plan with targets and limits, and the policies in force for a request. Nothing is sent.

    `shows_upstream`: also what targets of another language are sent. `products` are those around calls, the outermost first.

    Raises the GatewayError that the request would be answered with.
    """
    endpoint, body = door.endpoint_at(path, body) or (_endpoint(path), body)
    key = _key(policy, key_name)
    peeked = peek(endpoint, body, {})
    model = (
        request_fields.find_model(policy, key, peeked.model)
        if peeked.model
        else request_fields.unnamed_model(policy, key)
    )
    if model is None:
        return f"relayed as it is, by passthrough, to the provider {policy.passthrough.provider if policy.passthrough else '-'}"
    shown = explain_sent(policy, endpoint, model, body) if shows_upstream else ()
    return "\n".join((*_lines(policy, endpoint, key, peeked, model, body, products), *shown))


def _lines(
    policy: PolicySnapshot,
    endpoint: Endpoint,
    key: Key,
    peeked: Peeked,
    model: Model,
    body: bytes,
    products: Sequence[CallProduct],
) -> Iterator[str]:
    yield f"endpoint  {endpoint.name} ({endpoint.path}), {'streamed' if peeked.stream else 'not streamed'}"
    yield f"key       {key.name} (tenant {key.tenant}, lane {key.lane}){_limits(key.limits)}{_budget(key)}"
    yield f"model     {peeked.model or 'none'}" + (
        "" if model.name == peeked.model else f", served by the entry {model.name!r}"
    )
    yield f"lane      {_lane(key, model)}"
    plan = plan_route(policy, key, model, endpoint, is_callers=False)
    yield f"deadline  {_deadline(plan)}"
    if products:
        yield from explain_products(products, plan.route)
    if instead := [line for one in policy.sections for line in one.explain_instead(model)]:
        yield from instead
        return
    if not peeked.stream and model.holding.interim is None and plan.deadline_s > PROXY_PATIENCE_S:
        yield "proxy     one in front has to wait as long for the first byte (nginx: proxy_read_timeout, 60 s unless it is set)"
    request = ExplainedRequest(policy, endpoint, key, model, peeked.model, body, peeked.parsed, peeked.stream)
    sections = sorted(policy.sections, key=lambda one: one.explain_order)
    yield from (line for one in sections if one.explain_order < 0 for line in one.explain(request))
    yield from _retries(model.retries)
    yield from (line for one in sections if one.explain_order > 0 for line in one.explain(request))
    yield f"plan      {_CHOICES[model.choice]}"
    strangers = list(targets_hidden_from_callers(model))
    for number, (target, use) in enumerate(_plan(model), 1):
        yield f"  {number}. {target.name}{use}{_limits(target.limits)}"
        yield from (f"     {bound}" for one, bound in strangers if one.name == target.name)
        yield from (f"     {line}" for line in _target(request, target))
        yield from (f"     {line}" for line in explain_conversion(endpoint, model, target, body))
    asks = model.include_usage and endpoint.usage_option
    yield f"usage     {'asked for in streams, hidden from callers who did not ask' if asks else 'as the provider reports it'}"


def explain_products(products: Sequence[CallProduct], facts: CallRoute) -> Iterator[str]:
    """Yields the order in which products stand around the calls of a route, and which of them a header adds."""

    def around(*asked: bytes) -> list[str]:
        return [one.name for one in products if one.for_route(facts, frozenset(asked)) is not None]

    usual = around()
    yield f"around    a call: {' -> '.join(usual) or 'nothing'}"
    added: dict[str, list[str]] = {}
    for option in sorted(frozenset().union(*(one.options for one in products))):
        more = ", ".join(name for name in around(option) if name not in usual)
        name = "metadata in the body" if option == METADATA else option.decode()
        if more:
            added.setdefault(more, []).append(name)
    for more, names in added.items():
        yield f"          {more}: with {', '.join(names)}"


def _deadline(plan: RoutePlan) -> str:
    """Returns in words how long a call waits at most whose caller has set no time."""
    if not plan.waits_as_client:
        return f"{plan.deadline_s:g} s to start, from the lane; a caller's own timeout wins"
    return (
        f"the caller's own timeout; {SDK_S:g} s to start for an SDK that sends none, {plan.deadline_s:g} s for other clients, "
        "less for those seen to hang up (GET /admin/queue)"
    )


def _plan(model: Model) -> Iterator[tuple[Target, str]]:
    """Yields the targets that a call may use, with the words that say when."""
    for target in model.plan:
        yield target, "" if target in model.targets else "  (fallback)"
    for target in model.context_plan:
        yield target, "  (where the context is too long for the others)"


def _suspect(clocks: Clocks) -> str:
    if not clocks.suspect_in_flight:
        return "never suspect for its silence"
    return f"suspect when {clocks.suspect_in_flight} calls hear nothing for {clocks.suspect_factor:g} times what is usual there"


def _target(request: ExplainedRequest, target: Target) -> Iterator[str]:
    endpoint, key = request.endpoint, request.key
    clocks = target.clocks_by.get((endpoint.name, key.lane), target.clocks)
    yield f"tier {target.order}, weight {target.weight:g}, account {target.account or 'of the caller'}"
    yield f"{_rewrite(endpoint, request.requested_model, target)}; {_price(request, target)}"
    yield _counts(target.counting)
    if target.edits is not None:
        names = ", ".join(name for name, _ in target.edits.set) or "nothing"
        yield f"of the body the config sets {names} and drops {', '.join(target.edits.drop) or 'nothing'}"
    if lacking := _lacking(target.capabilities):
        yield f"skipped by calls that need {lacking}"
    yield (
        f"connect {clocks.connect_s:g} s, first byte {clocks.first_byte_s:g} s, "
        f"idle {clocks.idle_s:g} s, total {clocks.total_s:g} s"
    )
    if request.is_stream:
        first_s = clocks.first_event_s
        yield f"first event {'by what is usual there' if first_s is None else f'{first_s:g} s'}"
    yield _suspect(clocks)
    if request.is_stream and clocks.least_events_per_s:
        yield f"a stream drips below {clocks.least_events_per_s:g} events/s over {clocks.drip_window_s:g} s"
    yield _breaker(target.breaker, key)


def _endpoint(path: str) -> Endpoint:
    found = next((one for one in ENDPOINTS if path in (one.path, "/v1" + one.path)), None)
    if found is None:
        raise NotFound(
            f"Unknown path {path}; known: {', '.join((*('/v1' + one.path for one in ENDPOINTS), door.KNOWN))}."
        )
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


def _budget(key: Key) -> str:
    return "" if key.budget_usd_per_day is None else f", ${key.budget_usd_per_day:g} a day"


def _rewrite(endpoint: Endpoint, requested_model: str, target: Target) -> str:
    name = target.model or requested_model.removeprefix(target.strip)
    if endpoint.name in target.gaps:
        return f"asked for {name!r}"
    if name == requested_model:
        return "the body goes as it came" if target.edits is None else "the body's model stays"
    return f"the body's model becomes {name!r}{'' if target.edits is not None else ', nothing else changes'}"


def attempt_usd(request: ExplainedRequest, target: Target) -> float | None:
    """Returns what an attempt at the target is estimated to cost before anything was learned; None: not priced."""
    endpoint, body = request.endpoint, request.body
    rates = target.find_rates(target.model or request.requested_model)
    if endpoint.media is not None:
        parsed = request.parsed or {}
        certain = endpoint.media.certain(None, body, parsed)
        return usage_usd(rates, endpoint.media.estimated(certain, body, parsed))
    if endpoint.tokens == "none" or request.parsed is None:
        return usage_usd(rates, Usage(0, 0))
    tokens = estimate_input_tokens(body, request.parsed)
    output_tokens = target.counting.first_output_tokens if endpoint.tokens == "both" else 0
    return usage_usd(rates, Usage(tokens, output_tokens, estimated=True))


def _price(request: ExplainedRequest, target: Target) -> str:
    endpoint, key = request.endpoint, request.key
    rates = target.find_rates(target.model or request.requested_model)
    is_billed = endpoint.media is not None or (endpoint.tokens != "none" and not endpoint.counts_tokens)
    is_refused = is_billed and key.budget_usd_per_day is not None and not key.allow_unpriced
    refusal = ": 403 unpriced_endpoint for this key, which has a budget" if is_refused else ""
    if rates is None:
        return f"price not known{refusal}"
    parts = []
    if rates.prices_tokens:
        usual = [_of_tokens(rates), *_of_long_inputs(rates)]
        parts += [f"{usual[0]} per million tokens", *usual[1:]]
        for tier, other in rates.by_tier.items():
            others = [_of_tokens(other), *_of_long_inputs(other)]
            parts += [f"{tier} {prices}" for prices in others if prices not in usual]
    parts += [f"${usd:g} per {unit}" for usd, unit in _of_other_units(rates) if usd]
    if is_billed and attempt_usd(request, target) is None:
        parts.append(f"no price for {endpoint.name}{refusal}")
    return "; ".join(parts)


def _of_other_units(rates: Rates) -> Iterator[tuple[float, str]]:
    yield rates.character_usd * 1e6, "million characters"
    yield rates.audio_second_usd * 3600, "hour of sound"
    yield rates.image_usd, "picture"
    yield rates.request_usd * 1000, "thousand calls"
    yield rates.search_usd * 1000, "thousand searches"


def _of_long_inputs(rates: Rates) -> Iterator[str]:
    for start, dearer in reversed(rates.above):
        yield f"above {start:,} input tokens {_of_tokens(dearer)}"


def _of_tokens(rates: Rates) -> str:
    return f"${rates.input_usd * 1e6:g} in, ${rates.output_usd * 1e6:g} out"


def _lane(key: Key, model: Model) -> str:
    """Returns in words how a call of this key waits when nothing has room."""
    holding = model.holding
    parts = []
    if len(model.plan) > len(model.targets):
        parts.append(
            f"waits {holding.prefer_primary_for_s[key.lane]:g} s for the model's own targets before a fallback"
        )
    if key.lane in ("batch", "background"):
        parts.append(f"leaves {holding.reserve_percent:g} % of each limit to higher lanes in use")
    if key.critical:
        parts.append("may ask for critical")
    return f"{key.lane}{': ' if parts else ''}{', '.join(parts)}"


def _retries(retries: Retries) -> Iterator[str]:
    """Yields in words how often the call may be tried, and what each class of error leads to."""
    caps = [f"{rule.attempts}{_range(rule.above_usd, rule.below_usd)}" for rule in retries.by_cost]
    money = "" if retries.max_usd_per_call is None else f"; at most ${retries.max_usd_per_call:g} for all of them"
    yield f"attempts  {', '.join([f'{retries.attempts}', *caps])}{money}"
    if retries.hedging is not None:
        hedge = retries.hedging
        yield f"          a second one after {hedge.percentile:g} % of answers have begun, not before {hedge.at_least_s:g} s"
    for action in Action:
        names = [_tries(name, rule) for name, rule in retries.by_class.items() if rule.action is action]
        if names:
            yield f"  {action.value:<18}{', '.join(names)}"


def _tries(name: str, rule: ClassRule) -> str:
    if rule.action is not Action.RETRY:
        return str(name)
    return f"{name} {rule.attempts}x{' (first at once)' if rule.is_first_immediate else ''}"


def _range(above_usd: float | None, below_usd: float | None) -> str:
    bounds = [f"above ${above_usd:g}"] if above_usd is not None else []
    bounds += [f"below ${below_usd:g}"] if below_usd is not None else []
    return f" for {' and '.join(bounds)} each"


def _lacking(can: Capabilities) -> str:
    """Names what the target cannot do."""
    lacking = [name.replace("_", " ") for name in ("tools", "images", "structured_output") if not getattr(can, name)]
    lacking += [f"more than {can.context_window} tokens"] if can.context_window is not None else []
    return ", ".join(lacking)


def _breaker(rules: BreakerRules, key: Key) -> str:
    if not rules.is_enabled:
        return "no breaker"
    return (
        f"opens for {rules.open_s:g} s after {rules.consecutive_failures} failures in a row or "
        f"{rules.failure_rate_percent:g} % of {rules.min_calls} calls or more in {rules.window_s:g} s, if that lasts; "
        f"with all open a call waits {rules.hold_for_s[key.lane]:g} s"
    )


def _counts(counting: Counting) -> str:
    """Returns in words by which rule a call is charged against the limits, and whether they are learned."""
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


# --- A provider's error ---


_SHOWN_CHARS = 200
_SCOPES = {
    "target": "this target",
    "key": "every target of this credential",
    "account": "every credential of the provider",
}


def explain_error(table: ErrorTable, status: int, body: bytes, headers: RawHeaders, wall_now: float) -> str:
    """Show what an error answer means: its class, whom it concerns, when to come back, and the rule that says so."""
    diagnosis = table.diagnose(Phase.ANSWERED, status, headers, body, wall_now)
    answer = answer_of(Phase.ANSWERED, status, headers, read_body(body).wording)
    return "\n".join(_error_lines(table, diagnosis, answer))


def read_headers(lines: Sequence[str]) -> RawHeaders:
    """Reads headers as they are written on a command line. Raises InvalidRequest for one without a colon."""
    pairs = [text.partition(":") for text in lines]
    for name, colon, _ in pairs:
        if not colon or not name.strip():
            raise InvalidRequest(f"{name!r} is not a header: write for example --header 'retry-after: 20'")
    return [(name.strip().lower().encode("latin-1", "replace"), value.strip().encode()) for name, _, value in pairs]


def _error_lines(table: ErrorTable, diagnosis: Diagnosis, answer: ErrorFacts) -> Iterator[str]:
    rule = table.rule_named(diagnosis.rule)
    yield f"class       {diagnosis.error_class}"
    yield f"concerns    {_SCOPES[diagnosis.scope]}"
    yield f"come back   {_delay(diagnosis.delay_s)}"
    yield f"never fits  {'yes: it asks for more than the limit ever holds' if diagnosis.never_fits else 'no'}"
    yield f"kind        {table.kind or 'other'}"
    if rule is None:
        yield "rule        none: not even the status tells anything"
    else:
        yield f"rule        {rule.name}  ({rule.where})"
        yield f"because     {'; '.join(_matched(rule, answer))}"
    yield f"read as     {_cut(answer.wording.text) or 'nothing'}"


def _delay(delay_s: float | None) -> str:
    return "the provider does not say" if delay_s is None else f"in {delay_s:.6g} s at the earliest"


def _matched(rule: ErrorRule, answer: ErrorFacts) -> Iterator[str]:
    """Yields the conditions of the rule, as this answer meets them."""
    wording = answer.wording
    if rule.phases:
        yield f"phase is {answer.phase}"
    if rule.statuses:
        yield f"status is {answer.status}"
    exact = (
        ("code", rule.codes.intersection(wording.codes)),
        ("type", rule.types.intersection(wording.types)),
        ("body_status", rule.states.intersection(wording.states)),
        ("finish_reason", rule.finishes.intersection(wording.finishes)),
    )
    for field, words in exact:
        if words:
            yield f"{field} is {_any(words)}"
    if rule.says:
        yield f"says {_any(str(phrase) for phrase in rule.says if phrase.is_in(wording.text, wording.numberless))}"
    for name, phrases in rule.headers:
        yield f"header {name.decode()} says {_any(map(str, phrases))}"


def _any(words: Iterable[str]) -> str:
    return " or ".join(sorted(map(repr, words)))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


# --- What a call becomes at targets that do not speak its language ---


_CALLED: Final = {
    "chat": "chat completions",
    "responses": "Responses",
    "messages": "Anthropic's Messages",
    "generate": "Gemini's generateContent",
    "vertex": "Vertex AI's generateContent",
    "converse": "Bedrock's Converse",
    "claude": "Anthropic's Messages, as Bedrock has them",
    "claude_at_vertex": "Anthropic's Messages, as Vertex AI has them",
}


def explain_conversion(endpoint: Endpoint, model: Model, target: Target, body: bytes) -> Iterator[str]:
    """Yields what is lost where a call is put into another language for the target, and on what that rests."""
    find_gaps = target.gaps.get(endpoint.name)
    if find_gaps is None:
        return
    parsed = _edited(target, json_object(body) or {})
    gaps = find_gaps(parsed)
    if isinstance(find_gaps, Conversion):
        lossless = "" if gaps else "; nothing is lost"
        yield f"put into {_CALLED.get(find_gaps.pair.target, find_gaps.pair.target)}{lossless}"
    yield from (f"{gap.field} is {gap.how}: {gap.why}" for gap in gaps)
    if names := _in_the_way(find_gaps, model, parsed):
        yield f"skipped by this call, for {', '.join(names)}"
    if isinstance(find_gaps, Conversion):
        yield from _known(find_gaps, target.model or model_at_provider(parsed, target))


def explain_sent(policy: PolicySnapshot, endpoint: Endpoint, model: Model, body: bytes) -> Iterator[str]:
    """Yields, target by target, what a call becomes in another language."""
    fields = json_object(body) or {}
    for target in (*model.plan, *model.context_plan):
        conversion = target.gaps.get(endpoint.name)
        edited = _edited(target, fields)
        if conversion is not None and _in_the_way(conversion, model, edited):
            yield f"sent      {target.name}: nothing, for this call skips it"
            continue
        if not isinstance(conversion, Conversion):
            yield f"sent      {target.name}: as it came, but for what is said above"
            continue
        try:
            path, sent = conversion.shown({**edited, "model": model_at_provider(fields, target)})
        except InvalidRequest as error:
            yield f"sent      {target.name}: nothing, for the request cannot be put into its language: {error.message}"
            continue
        yield f"sent      {target.name}: POST {policy.providers[target.provider].base_url}{path}"
        yield orjson.dumps(sent, option=orjson.OPT_INDENT_2).decode()


def _edited(target: Target, body: dict[str, Any]) -> dict[str, Any]:
    return body if target.edits is None else target.edits.seen(body)


def model_at_provider(body: Mapping[str, Any], target: Target) -> str:
    """Returns the name by which the target's provider is asked for the model."""
    return target.model or str(body.get("model", "")).removeprefix(target.strip)


def _in_the_way(find_gaps: FindUnsupportedFields, model: Model, body: dict[str, Any]) -> list[str]:
    """Returns the fields for which the call does not go to a target."""
    return [gap.field for gap in find_gaps(body) if gap.how is How.REFUSED or model.on_loss == "refuse"]


def _known(conversion: Conversion, model: str) -> Iterator[str]:
    """Yields the facts of a model that the conversion rests on, by where they are from."""
    facts = sorted(conversion.languages.find_sources(model).items(), key=lambda one: one[1].source)
    for source, group in groupby(facts, key=lambda one: one[1].source):
        shown = ", ".join(f"{name} {_written(one.value)}" for name, one in group)
        yield f"known of {model} ({source}): {shown}"


def _written(value: Any) -> str:
    """Returns a fact as models.yaml has it."""
    return orjson.dumps(value).decode().replace('"', "").replace(",", ", ")
