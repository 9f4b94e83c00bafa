"""Describes a snapshot as plain data, for `/admin/config` and the command line.

Every dataclass is walked field by field, so that a new field is shown without a change here. Invariant: no secret at any depth:
fields that are not part of the `repr` are left out, credentials are `set` or not, headers are names, URLs lose their user and
password.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gateway.core.balancing import Action, ClassRule, Retries
from gateway.core.config.admission import WINDOWS
from gateway.core.limits.limit_table import Limits
from gateway.core.openai.bodies import BodyEdits
from gateway.core.snapshot import Counting, DescribesSettings, Key, Model, PolicySnapshot, Provider, Rates, Target
from gateway.core.types import Server, SharedState


def plain(value: object) -> Any:
    """Returns the value as JSON has it; of a dataclass, the fields that are part of its `repr`."""
    if is_dataclass(value) and not isinstance(value, type):
        return shown(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(plain, value))
    return [*map(plain, value)] if isinstance(value, tuple | list) else value


def shown(item: Any, *without: str, **instead: Any) -> dict[str, Any]:
    """Returns a dataclass's printable fields except `without`; `instead` replaces or adds values."""
    names = [one.name for one in fields(item) if one.repr and one.name not in (*without, *instead)]
    return {name: plain(getattr(item, name)) for name in names} | instead


def describe(snapshot: PolicySnapshot) -> dict[str, Any]:
    """Returns the whole snapshot, ready for JSON."""
    models = (*snapshot.models.values(), *(model for _, model in snapshot.patterns))
    described = shown(
        snapshot,
        *("patterns", "anonymous", "lane_deadline_s", "emulated"),
        server=_server(snapshot.server),
        lanes={
            lane: {"deadline_s": deadline_s, "age_after_s": snapshot.queue.age_after_s.get(lane)}
            for lane, deadline_s in snapshot.lane_deadline_s.items()
        },
        queue=shown(snapshot.queue, "age_after_s"),
        shared=describe_redis(snapshot.shared),
        providers={name: describe_provider(provider) for name, provider in snapshot.providers.items()},
        models={model.name: describe_model(model, snapshot.sections) for model in models},
        errors=_errors(models),
        passthrough=snapshot.passthrough.provider if snapshot.passthrough else None,
        keys=[describe_key(key, snapshot.sections) for key in snapshot.keys.values()],
    )
    for section in snapshot.sections:
        described = section.describe(snapshot, described)
    return described


def describe_redis(shared: SharedState | None) -> dict[str, Any] | None:
    """Returns a Redis without its login."""
    return None if shared is None else shown(shared, url=without_password(shared.url))


def describe_provider(provider: Provider) -> dict[str, Any]:
    """Returns a provider without its credential."""
    return shown(
        provider,
        *("name", "is_self_hosted", "is_stand_in"),
        group=provider.group or provider.name,
        base_url=without_password(provider.base_url),
        api_key="set" if provider.api_key else "absent" if provider.auth is not None else "absent (caller's own)",
        auth=None if provider.auth is None else str(provider.auth),
        headers=[name for name, _ in provider.headers],
        proxy=without_password(provider.proxy) if provider.proxy else None,
    )


def describe_model(model: Model, sections: Iterable[DescribesSettings] = ()) -> dict[str, Any]:
    """Returns a model, its targets and the plan its calls follow."""
    described = shown(
        model,
        *(
            "name",
            "choice",
            "model_for_caller_credentials",
            "without_caller_credential",
            "skipped",
            "credentials_of",
            "answered_by",
        ),
        targets=[describe_target(target) for target in model.targets],
        choose=model.choice,
        plan=[target.name for target in model.plan],
        context_plan=[target.name for target in model.context_plan],
        retries=describe_retries(model.retries),
    )
    for section in sections:
        described = section.describe_model(model, described)
    return described


def describe_target(target: Target) -> dict[str, Any]:
    """Returns a target with its limits, its clocks and, where its model is fixed, its price."""
    return shown(
        target,
        "thinks",
        *("edits", *([] if target.strip else ["strip"])),
        **({} if target.edits is None else {"body": _edits(target.edits)}),
        account=target.account or "caller's own",
        limits=_limits(target.limits),
        counting=_counting(target.counting),
        clocks_by=_clocks_by(target),
        errors=target.counting.kind or "other",
        usd_per_million=_price(target.find_rates(target.model)) if target.model else "by the asked model",
    )


def _edits(edits: BodyEdits) -> dict[str, Any]:
    """Returns the names of the fields: what a field is set to may be of a variable."""
    return {"set": [name for name, _ in edits.set], "drop": [*edits.drop]}


def describe_retries(retries: Retries) -> dict[str, Any]:
    """Returns the rules of retries, in the words of retries.yaml."""
    budget = ("budget_percent_of_active", "budget_min_concurrent", "tokens", "retry_tokens", "timeout_tokens")
    return shown(
        retries,
        *(*budget, "hedging"),
        budget={name.removeprefix("budget_"): getattr(retries, name) for name in budget},
        by_class={str(name): _class_rule(rule) for name, rule in retries.by_class.items()},
        by_cost=[_those_set(rule) for rule in retries.by_cost],
        hedge=plain(retries.hedging),
    )


def describe_key(key: Key, sections: Iterable[DescribesSettings] = ()) -> dict[str, Any]:
    """Returns a key without its secret and its digest."""
    described = shown(key, "allows", limits=_limits(key.limits))
    for section in sections:
        described = section.describe_key(key, described)
    return described


def _server(server: Server) -> dict[str, Any]:
    listen = server.admin_listen
    return shown(
        server,
        "small_body_bytes",
        admin_key="set" if server.admin_digest else "absent",
        admin_listen=f"{listen[0]}:{listen[1]}" if listen else None,
    )


def _errors(models: tuple[Model, ...]) -> dict[str, dict[str, str]]:
    """Returns the error class of each rule, in the order of evaluation, for each kind of provider with targets."""
    tables = {target.counting.kind or "other": target.errors for model in models for target in model.targets}
    return {kind: {rule.name: str(rule.error_class) for rule in table.rules} for kind, table in tables.items()}


def _class_rule(rule: ClassRule) -> str | dict[str, Any]:
    if rule.action is not Action.RETRY:
        return str(rule.action.value)
    return {"attempts": rule.attempts, "first": "immediate" if rule.is_first_immediate else "backoff"}


def _those_set(item: Any, *without: str) -> dict[str, Any]:
    return {name: value for name, value in shown(item, *without).items() if value is not None}


def _clocks_by(target: Target) -> dict[str, dict[str, dict[str, float]]]:
    """Returns the clocks that differ from the target's own, by endpoint and lane."""
    usual = shown(target.clocks)
    by: dict[str, dict[str, dict[str, float]]] = {}
    for (endpoint, lane), clocks in target.clocks_by.items():
        other = {name: value for name, value in shown(clocks).items() if value != usual[name]}
        by.setdefault(endpoint, {})[lane] = other
    return by


def _limits(limits: Limits) -> dict[str, Any]:
    """Returns the limits that are set, and those of them that fail closed, if any."""
    return _those_set(limits, *(() if limits.fail_closed else ("fail_closed",)))


def _counting(counting: Counting) -> dict[str, Any]:
    return shown(
        counting,
        "style",
        kind=counting.kind or "other",
        windows=next(name for name, known in WINDOWS.items() if known == counting.style),
        tokenizer="heuristic" if counting.exact_tokens is None else "exact",
    )


def _price(rates: Rates | None) -> dict[str, Any] | None:
    if rates is None:
        return None
    own = {"above", "by_tier", "soon", "prices_tokens", "least_audio_s"}
    units = ("search_usd", "character_usd", "audio_second_usd", "image_usd", "request_usd")
    priced = {one.name: getattr(rates, one.name) for one in fields(rates) if one.name not in own}
    known = {name: usd for name, usd in priced.items() if usd is not None and (usd or name not in units)}
    shown: dict[str, Any] = {name.removesuffix("_usd"): round(usd * 1e6, 9) for name, usd in known.items()}
    if rates.above:
        shown["above"] = {str(start): _price(dearer) for start, dearer in rates.above}
    if rates.by_tier:
        shown["service_tiers"] = {tier: _price(other) for tier, other in rates.by_tier.items()}
    return shown


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}"))


def targets_hidden_from_callers(model: Model) -> Iterator[tuple[Target, str]]:
    """Yields the targets that do not see callers' own credentials, and in words what that means."""
    bound = model.model_for_caller_credentials
    if bound is None:
        return
    kept = {target.name for target in (*bound.plan, *bound.context_plan)}
    for target in {target.name: target for target in (*model.plan, *model.context_plan)}.values():
        if target.name in bound.without_caller_credential:
            what = "is called without the caller's own credential"
        elif target.name not in kept:
            what = "is skipped by calls with a credential of the caller's own"
        else:
            continue
        remedy = f"providers.{target.provider}.accepts_callers_of: [{bound.credentials_of}] lets it go there"
        yield target, f"{what}, which is taken to be one of {bound.credentials_of} ({remedy})"
