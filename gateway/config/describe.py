"""A snapshot as plain data, for `/admin/config` and the command line.

Invariant: no secret at any depth. Credentials are `set` or not, headers are names, URLs lose their user and password.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gateway.config.counting import windows_of
from gateway.policy.caching import Caching
from gateway.policy.retry import Action, ClassRule, CostRule, Retries
from gateway.policy.snapshot import (
    Counting,
    Key,
    Limits,
    Model,
    PolicySnapshot,
    Provider,
    Rates,
    Server,
    SharedState,
    Target,
)


def describe(snapshot: PolicySnapshot) -> dict[str, Any]:
    """Everything that is in force, ready for JSON."""
    return {
        "version": snapshot.version,
        "digest": snapshot.digest,
        "loaded_at": snapshot.loaded_at,
        "files": list(snapshot.files),
        "notices": list(snapshot.notices),
        "server": _server(snapshot.server),
        "lanes": {
            lane: {"deadline_s": deadline_s, "age_after_s": snapshot.queue.age_after_s.get(lane)}
            for lane, deadline_s in snapshot.lane_deadline_s.items()
        },
        "queue": {name: value for name, value in asdict(snapshot.queue).items() if name != "age_after_s"},
        "state": snapshot.state,
        "shared": describe_shared(snapshot.shared) if snapshot.shared else None,
        "store": asdict(snapshot.store),
        "providers": {name: describe_provider(provider) for name, provider in snapshot.providers.items()},
        "models": {
            model.name: describe_model(model)
            for model in (*snapshot.models.values(), *(model for _, model in snapshot.patterns))
        },
        "errors": _errors(snapshot),
        "passthrough": snapshot.passthrough.provider if snapshot.passthrough else None,
        "passthrough_admin": snapshot.passthrough_admin,
        "objects": _objects(snapshot),
        "keys": [describe_key(key) for key in snapshot.keys.values()],
    }


def _objects(snapshot: PolicySnapshot) -> dict[str, Any] | str:
    """Whose the objects at providers are."""
    rules = snapshot.objects
    if rules is None:
        return "of the only tenant"
    shared = "all" if rules.is_open else sorted((*rules.ids, *(f"{prefix}*" for prefix in rules.prefixes)))
    return {"of": "their tenant", "shared": shared}


def describe_shared(shared: SharedState) -> dict[str, Any]:
    """The Redis that replicas share, without its user and password."""
    return {**asdict(shared), "url": _masked(shared.url)}


def describe_provider(provider: Provider) -> dict[str, Any]:
    """A provider without its credential."""
    return {
        "group": provider.group or provider.name,
        "dialect": provider.dialect,
        "base_url": _masked(provider.base_url),
        "api_key": "set" if provider.api_key else "absent (caller's own)",
        "limits_are": provider.limits_are,
        "accepts_callers_of": list(provider.accepts_callers_of),
        "headers": [name for name, _ in provider.headers],
        "api_version": provider.api_version,
        "transport": provider.transport,
        "http2": provider.http2,
        "proxy": _masked(provider.proxy) if provider.proxy else None,
        "ca_file": provider.ca_file,
        "max_connections": provider.max_connections,
        "idle_expiry_s": provider.idle_expiry_s,
    }


def describe_model(model: Model) -> dict[str, Any]:
    """A model, its targets and the plan its calls follow."""
    return {
        "targets": [describe_target(target) for target in model.targets],
        "fallbacks": list(model.fallbacks),
        "context_fallbacks": list(model.context_fallbacks),
        "choose": model.choice,
        "plan": [target.name for target in model.plan],
        "context_plan": [target.name for target in model.context_plan],
        "holding": asdict(model.holding),
        "retries": describe_retries(model.retries),
        "cache": describe_caching(model.caching),
        "include_usage": model.include_usage,
    }


def describe_target(target: Target) -> dict[str, Any]:
    """A target with its limits, its clocks and, where its model is fixed, its price."""
    return {
        "name": target.name,
        "provider": target.provider,
        "model": target.model,
        "account": target.account or "caller's own",
        "order": target.order,
        "weight": target.weight,
        "capabilities": asdict(target.capabilities),
        "limits": _limits(target.limits),
        "counting": _counting(target.counting),
        "clocks": asdict(target.clocks),
        "clocks_by": _clocks_by(target),
        "breaker": asdict(target.breaker),
        "errors": target.counting.kind or "other",
        "usd_per_million": _price(target.find_rates(target.model)) if target.model else "by the asked model",
    }


def describe_retries(retries: Retries) -> dict[str, Any]:
    """How often a call is tried and what each class of error deserves, in the words of retries.yaml."""
    return {
        "attempts": retries.attempts,
        "backoff": asdict(retries.backoff),
        "budget": {
            "percent_of_active": retries.budget_percent_of_active,
            "min_concurrent": retries.budget_min_concurrent,
            "tokens": retries.tokens,
            "retry_tokens": retries.retry_tokens,
            "timeout_tokens": retries.timeout_tokens,
        },
        "by_class": {str(name): _class_rule(rule) for name, rule in retries.by_class.items()},
        "by_cost": [_cost_rule(rule) for rule in retries.by_cost],
        "max_usd_per_call": retries.max_usd_per_call,
        "hedge": asdict(retries.hedging) if retries.hedging else None,
    }


def describe_caching(caching: Caching) -> dict[str, Any]:
    """What is kept and shared, in the words of cache.yaml; the version stands for where the calls go, too."""
    return {
        "set": caching.name,
        "version": caching.version,
        "idempotency": {
            "keep_s": caching.keep_s,
            "lease_s": caching.lease_s,
            "max_entry_bytes": caching.max_record_bytes,
        },
        "coalesce": caching.coalesce,
        "exact": {**asdict(caching.exact), "ignore": sorted(caching.exact.ignore)},
        "semantic": asdict(caching.semantic) if caching.semantic else None,
    }


def describe_key(key: Key) -> dict[str, Any]:
    """A key by name: neither its secret nor the digest of it."""
    return {
        "name": key.name,
        "tenant": key.tenant,
        "lane": key.lane,
        "critical": key.critical,
        "names_tenants": key.names_tenants,
        "models": list(key.models),
        "limits": _limits(key.limits),
        "budget_usd_per_day": key.budget_usd_per_day,
        "allow_unpriced": key.allow_unpriced,
    }


def _server(server: Server) -> dict[str, Any]:
    listen = server.admin_listen
    return {
        "host": server.host,
        "port": server.port,
        "max_body_bytes": server.max_body_bytes,
        "max_json_values": server.max_json_values,
        "body_timeout_s": server.body_timeout_s,
        "grace_s": server.grace_s,
        "notice_s": server.notice_s,
        "admin_key": "set" if server.admin_digest else "absent",
        "admin_listen": f"{listen[0]}:{listen[1]}" if listen else None,
    }


def _errors(snapshot: PolicySnapshot) -> dict[str, dict[str, str]]:
    """By kind of provider, as far as there are targets: what each rule says, in the order in which they are asked."""
    models = (*snapshot.models.values(), *(model for _, model in snapshot.patterns))
    tables = {target.counting.kind or "other": target.errors for model in models for target in model.targets}
    return {kind: {rule.name: str(rule.error_class) for rule in table.rules} for kind, table in tables.items()}


def _class_rule(rule: ClassRule) -> str | dict[str, Any]:
    if rule.action is not Action.RETRY:
        return str(rule.action.value)
    return {"attempts": rule.attempts, "first": "immediate" if rule.is_first_immediate else "backoff"}


def _cost_rule(rule: CostRule) -> dict[str, float]:
    return {name: value for name, value in asdict(rule).items() if value is not None}


def _clocks_by(target: Target) -> dict[str, dict[str, dict[str, float]]]:
    """By endpoint and lane, what differs from the target's own clocks."""
    usual = asdict(target.clocks)
    shown: dict[str, dict[str, dict[str, float]]] = {}
    for (endpoint, lane), clocks in target.clocks_by.items():
        other = {name: value for name, value in asdict(clocks).items() if value != usual[name]}
        shown.setdefault(endpoint, {})[lane] = other
    return shown


def _limits(limits: Limits) -> dict[str, Any]:
    """Those that are set, and which of them fail closed, if any."""
    said = {name: value for name, value in asdict(limits).items() if value is not None and name != "fail_closed"}
    return said | ({"fail_closed": sorted(limits.fail_closed)} if limits.fail_closed else {})


def _counting(counting: Counting) -> dict[str, Any]:
    return {
        "kind": counting.kind or "other",
        "charge": counting.charge,
        "excludes_cached": counting.excludes_cached,
        "windows": windows_of(counting.style),
        "learns": counting.learns,
        "first_output_tokens": counting.first_output_tokens,
        "arrival_lag_s": counting.arrival_lag_s,
        "adaptive": counting.adaptive,
        "tokenizer": "heuristic" if counting.exact_tokens is None else "exact",
    }


def _price(rates: Rates | None) -> dict[str, float] | None:
    if rates is None:
        return None
    return {name.removesuffix("_usd"): round(usd * 1e6, 9) for name, usd in asdict(rates).items()}


def _masked(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"***@{parts.netloc.rpartition('@')[2]}"))
