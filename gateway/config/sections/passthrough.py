"""`passthrough`: where the endpoints go that the gateway knows nothing of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.config.policies.folder import PolicySets
from gateway.config.reading.check import check
from gateway.config.reading.problems import Document, Path, did_you_mean
from gateway.config.schema import ConfigFile, PassthroughEntry
from gateway.config.sections.credentials import account_of
from gateway.config.sections.targets import TargetParts
from gateway.policy.snapshot import Provider, Target


def passthrough_section(
    document: Document, config: ConfigFile, providers: Mapping[str, Provider]
) -> PassthroughEntry | None:
    """The entry, where there is one and its provider can be used; what is wrong with it is noted in the document."""
    if config.passthrough is None:
        return None
    entry = check(PassthroughEntry, document, ("passthrough",))
    if entry is None:
        return None
    path: Path = ("passthrough", "provider") if isinstance(document.at(("passthrough",)), dict) else ("passthrough",)
    provider = providers.get(entry.provider)
    if entry.provider not in config.providers:
        suggestion = "" if document.origin_of(path) else did_you_mean(entry.provider, config.providers)
        document.complain(path, f"no provider {document.show(path, entry.provider)}{suggestion}")
    elif provider is not None and provider.dialect == "azure" and provider.api_version is not None:
        document.complain(
            path, f"{provider.name} has an api_version: Azure's deployments have none of the other endpoints"
        )
    return entry if provider is not None else None


def passthrough_target(provider: Provider, policies: PolicySets, parts: TargetParts) -> Target:
    """Its answers come from endpoints of every kind: what they tell of limits is not that of the models."""
    kind = parts.kinds[provider.group]
    timeouts = policies.timeouts["default"]
    counting = policies.admission["default"].counting(kind, adaptive=False, find_tokenizer=None)
    return Target(
        name=f"{provider.name}/*",
        provider=provider.name,
        model=None,
        upstream=parts.upstreams[provider.name, None],
        clocks=timeouts.default,
        clocks_by=timeouts.by,
        counting=replace(counting, learns=False),
        account=account_of(provider),
        breaker=policies.breakers["default"],
        errors=policies.errors.of(kind),
    )
