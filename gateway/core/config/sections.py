"""Reads the sections server, providers, keys and passthrough, and checks their entries against each other.

Problems are noted in the document; after a problem, the returned values only serve to find more problems. At the end
`find_notices`: what is accepted, but worth a word at start.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase, translate
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path as FilePath
from typing import Any
from urllib.parse import urlsplit

from gateway.core.config.admission import SELF_HOSTED, kind_of_provider, limits_by_kind
from gateway.core.config.fields import is_loopback, is_pattern
from gateway.core.config.models import TargetParts, check_fail_closed, limits_of
from gateway.core.config.policies import PolicySets
from gateway.core.config.product_sections import ConfigReading, Sections, entry_kinds
from gateway.core.config.providers import (
    Groups,
    account_of,
    address_of,
    check_accepted,
    check_credentials,
    check_presence,
    group_of,
    is_first,
    messages_address_of,
    other_secrets_of,
    secrets_of,
)
from gateway.core.config.schema import (
    AdminEntry,
    ConfigFile,
    KeyEntry,
    Kind,
    PassthroughEntry,
    ProviderEntry,
    ServerEntry,
    check,
)
from gateway.core.config.source import Document, Path, beside, did_you_mean, is_file, path_text, printable, quoted
from gateway.core.config.state import parse_redis_url
from gateway.core.openai.bodies import LARGE_BYTES
from gateway.core.snapshot import (
    Key,
    Model,
    PolicySnapshot,
    Provider,
    Setting,
    Target,
    followed_models,
    targets_hidden_from_callers,
    with_settings,
)
from gateway.core.types import EMULATOR, Server, SharedState

_PROVIDER_NAME = re.compile(r"[A-Za-z0-9._-]+")
_WITHOUT_OPENAIS = ("gemini", "vertex", "bedrock")
"""Dialects that have none of OpenAI's other endpoints, which are passed through."""


def server_section(document: Document, config: ConfigFile, chosen_host: str | None) -> Server:
    """Returns the server's settings; `chosen_host`, the host the process listens at, goes before the file's."""
    server = check(ServerEntry, document, ("server",)) or ServerEntry()
    admin = check(AdminEntry, document, ("admin",)) or AdminEntry()
    path: Path = ("server", "host")
    host = (chosen_host or server.host).strip("[]")
    if not config.keys and not is_loopback(host):
        shown = quoted(host) if chosen_host else document.show(path, host)
        document.complain(
            path,
            f"refused: without keys anyone who can reach {shown} could use the gateway; add keys or bind 127.0.0.1",
        )
    if admin.listen == (host, server.port):
        document.complain(("admin", "listen"), "is the address of the server itself: choose another port")
    return Server(
        host=host,
        port=server.port,
        max_body_bytes=server.max_body,
        max_json_values=server.max_json_values,
        small_body_bytes=min(
            LARGE_BYTES, 2 * server.max_json_values, server.max_body or LARGE_BYTES
        ),  # a value: 2 bytes
        body_timeout_s=server.body_timeout,
        grace_s=server.grace,
        notice_s=server.notice,
        admin_listen=admin.listen,
        admin_digest=admin.key,
    )


def provider_section(
    reading: ConfigReading, sections: Sections, listing: Collection[str]
) -> tuple[Groups, dict[str, Kind]]:
    """Returns every readable provider with its credentials, and the kind of each, by name."""
    document, config, shape = reading.document, reading.config, entry_kinds(sections).provider
    if not config.providers:
        document.complain(("providers",), "is missing: at least one provider is needed")
    if not config.models:
        document.complain(("models",), 'is missing: at least one model is needed; "*" takes every name')
    groups: dict[str, tuple[Provider, ...]] = {}
    kinds: dict[str, Kind] = {}
    for name in config.providers:
        entry = check(shape, document, ("providers", name))
        if entry is not None:
            _check_provider(document, name, entry, listing)
            check_presence(document, ("providers", name), entry, bool(config.keys))
            check_accepted(document, config, ("providers", name), entry)
            provider = replace(_provider(document, name, entry), auth=_credential(reading, name, entry, sections))
            kinds[name] = kind = kind_of_provider(entry, provider)
            provider = replace(
                provider, limits_are=entry.limits_are or limits_by_kind(kind), is_self_hosted=kind in SELF_HOSTED
            )
            groups[name] = group_of(provider, secrets_of(entry))
    return groups, kinds


def _credential(reading: ConfigReading, name: str, entry: ProviderEntry, sections: Sections) -> Hashable | None:
    """Returns what a provider is called with in place of a key; None: it has no `auth`, or none that can be used."""
    if entry.auth is None:
        return None
    reader = next((section for section in sections if section.reads_credentials), None)
    if reader is None:
        reading.document.complain(("providers", name, "auth"), "credentials of clouds are not installed")
        return None
    return reader.read_credential(reading, name, entry)


def _check_provider(document: Document, name: str, entry: ProviderEntry, listing: Collection[str]) -> None:
    path: Path = ("providers", name)
    if not _PROVIDER_NAME.fullmatch(name):
        document.complain(path, "a provider's name is made of letters, digits, dots, - and _")
    check_credentials(document, path, entry)
    if entry.api_version is not None and entry.dialect != "azure":
        document.complain((*path, "api_version"), "is for the azure dialect only")
    for field in ("project", "location") if document.at((*path, "dialect")) == entry.dialect else ():
        if getattr(entry, field) is not None and entry.dialect != "vertex":
            hint = ": a region of Amazon's is a `region`" if entry.dialect == "bedrock" else ""
            document.complain((*path, field), f"is for the vertex dialect only{hint}")
    if entry.learn_models and entry.dialect not in listing:
        document.complain(
            (*path, "learn_models"),
            f"is for the dialects {' and '.join(sorted(listing))}, whose lists tell more than names",
        )
    elif entry.learn_models and not (secrets_of(entry) or entry.auth or entry.emulate_without_key):
        document.complain(
            (*path, "learn_models"), "needs an `api_key`: nobody calls, so there is no caller's credential"
        )
    if entry.transport != "httpx":
        for field in ("http2", "proxy"):
            if getattr(entry, field):
                document.complain((*path, field), "needs `transport: httpx`")
    elif entry.http2 and find_spec("h2") is None:  # the transport itself would notice with its first call
        document.complain((*path, "http2"), "needs the Python package h2, which is not installed (the extra http2)")
    if entry.ca_file is not None and not is_file(beside(document, entry.ca_file)):
        document.complain((*path, "ca_file"), f"there is no file {document.show((*path, 'ca_file'), entry.ca_file)}")


def _digest_of(path: str) -> str | None:
    """Returns the SHA-256 of a file's content; None: it cannot be read, which is noted elsewhere."""
    try:
        return sha256(FilePath(path).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None


def _provider(document: Document, name: str, entry: ProviderEntry) -> Provider:
    emulated = entry.emulate_without_key and not secrets_of(entry) and entry.auth is None
    return Provider(
        name=name,
        dialect=entry.dialect,
        speaks=None if entry.speaks is None else tuple(entry.speaks),
        base_url=f"{EMULATOR}default" if emulated else address_of(document, ("providers", name), entry),
        messages_url=messages_address_of(document, ("providers", name), entry),
        headers=tuple(entry.headers.items()),
        api_version=entry.api_version,
        transport=entry.transport,
        http2=entry.http2,
        proxy=entry.proxy,
        ca_file=beside(document, entry.ca_file) if entry.ca_file is not None else None,
        ca_digest=_digest_of(beside(document, entry.ca_file)) if entry.ca_file is not None else None,
        max_connections=entry.max_connections,
        idle_expiry_s=entry.idle_expiry,
        group=name,
        accepts_callers_of=tuple(entry.accepts_callers_of),
        secrets=other_secrets_of(document, ("providers", name), entry),
        is_stand_in=emulated,
        learns_models=entry.learn_models,
    )


def key_section(reading: ConfigReading, server: Server, sections: Sections) -> dict[bytes, Key]:
    """Returns the callers by the digest of their secret."""
    document, config, shape = reading.document, reading.config, entry_kinds(sections).key
    keys: dict[bytes, Key] = {}
    names: set[str] = set()
    places: dict[int, Key] = {}
    for index in range(len(config.keys)):
        path: Path = ("keys", index)
        name = document.at((*path, "name"))  # also of an entry that cannot be used: told with its other mistakes
        if isinstance(name, str):
            if name in names:
                document.complain((*path, "name"), f"{document.show((*path, 'name'), name)} is here twice")
            names.add(name)
        entry = check(shape, document, path)
        if entry is None:
            continue
        if entry.key in keys and any(entry.key):  # zeros stand in for a key that cannot be used
            document.complain((*path, "key"), f"is the same secret as that of key {keys[entry.key].name}")
        if entry.key == server.admin_digest:
            document.complain((*path, "key"), "is the same secret as admin.key")
        check_fail_closed(document, path, entry, learns=False)
        _check_allowed(document, config, path, entry.models)
        settings: dict[Setting[Any], Any] = {}
        for section in sections:
            settings.update(section.read_key(reading, path, entry))
        places[index] = keys.setdefault(entry.key, with_settings(_key(entry), settings))
    _check_tenants(document, places)
    return keys


def _check_tenants(document: Document, keys: Mapping[int, Key]) -> None:
    """Notes tenants named `OWNER/...` where calls of the tenant OWNER may name their own tenants below it."""
    named = {key.tenant for key in keys.values() if key.names_tenants}
    for index, key in keys.items():
        owner = next((one for one in named if key.tenant.startswith(f"{one}/")), None)
        if owner is not None:
            shown = document.show(("keys", index, "tenant"), key.tenant)
            document.complain(
                ("keys", index), f"the tenant {shown} could be named by calls of the tenant {owner}: rename it"
            )


def _check_allowed(document: Document, config: ConfigFile, path: Path, allowed: list[str]) -> None:
    """Notes plain names that no entry of `models` can serve, which are typing errors."""
    for number, name in enumerate(allowed):
        if not is_pattern(name) and not any(fnmatchcase(name, model) or name == model for model in config.models):
            here = (*path, "models", number)
            suggestion = "" if document.origin_of(here) else did_you_mean(name, config.models)
            document.complain(here, f"no model {document.show(here, name)}{suggestion}")


def _key(entry: KeyEntry) -> Key:
    allows = None if "*" in entry.models else re.compile("|".join(translate(name) for name in entry.models))
    return Key(
        name=entry.name,
        tenant=entry.tenant or entry.name,
        digest=entry.key,
        lane=entry.lane,
        is_lane_chosen="lane" in entry.model_fields_set,
        critical=entry.critical,
        names_tenants=entry.names_tenants,
        models=tuple(entry.models),
        allows=allows,
        fallbacks=entry.fallbacks,
        limits=limits_of(entry),
        budget_usd_per_day=entry.budget_usd_per_day,
        allow_unpriced=entry.allow_unpriced,
        allow_overspend=entry.allow_overspend,
    )


def passthrough_section(
    document: Document, config: ConfigFile, providers: Mapping[str, Provider]
) -> PassthroughEntry | None:
    """Returns the entry where its provider can be used, else None; notes its problems."""
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
    elif provider is not None and provider.dialect in _WITHOUT_OPENAIS:
        document.complain(
            path, f"the dialect {provider.dialect} has none of OpenAI's other endpoints: name another provider"
        )
    elif provider is not None and provider.dialect == "azure" and provider.api_version is not None:
        document.complain(
            path, f"{provider.name} has an api_version: Azure's deployments have none of the other endpoints"
        )
    return entry if provider is not None else None


def passthrough_target(provider: Provider, policies: PolicySets, parts: TargetParts) -> Target:
    """Returns the target of unknown endpoints, which learns no limits: its answers may report those of any endpoint."""
    kind = parts.kinds[provider.group]
    timeouts = policies.timeouts["default"]
    counting = policies.admission["default"].counting(kind, adaptive=False, find_tokenizer=None)
    upstream = parts.upstreams[provider.name, None]
    language = parts.languages.of(policies, provider, kind, provider.speaks, ("", None))
    # What it does not speak is told of at once; nothing is learned from its answers, which are relayed as they are.
    conversions = None if language.speaks is None else language.conversions(upstream, f"{provider.base_url} None")
    return Target(
        name=f"{provider.name}/*",
        provider=provider.name,
        model=None,
        upstream=upstream,
        converters_by_path={} if conversions is None else conversions.converters_by_path,
        clocks=timeouts.default,
        clocks_by=timeouts.by,
        counting=replace(counting, learns=False),
        account=account_of(provider),
        breaker=policies.breakers["default"],
        errors=policies.errors.of(kind),
    )


# --- notices at start about what is accepted but noteworthy; none holds a secret ---

_READABLE_BY_OTHERS = 0o044
_URLS = frozenset({"proxy", "state", "redis", "store"})
"""Fields whose value is secret only with a user or password in it."""


def find_notices(reading: ConfigReading, snapshot: PolicySnapshot, sections: Sections) -> tuple[str, ...]:
    """Returns all notices about a sound config."""
    document, config = reading.document, reading.config
    providers, models, keys, shared = reading.providers, reading.built, reading.keys, snapshot.shared
    notices = [*_provider_notices(providers), *_credential_notices(providers, models)]
    for section in sections:
        notices += section.provider_notices(reading, snapshot)
    notices += _redis_notices("state", shared)
    for name, redis in (one for section in sections for one in section.stores(snapshot).items()):
        notices += _redis_notices(name, redis if redis != shared else None)
    literal = [path_text(path) for path in _secret_paths(document, config, sections) if _is_literal(document, path)]
    if literal and _is_readable_by_others(document.file):
        notices.append(
            f"{document.file} can be read by other users and holds a secret ({', '.join(literal)}): "
            "make it private (chmod 600) or take the secret from the environment"
        )
    ordered = [name for name, model in models.items() if model.choice == "in_order" and _is_weighted(model)]
    if ordered:
        notices.append(f"weights do nothing where targets are chosen in_order: model {', '.join(ordered)}")
    mixed = [
        name for name, model in models.items() if model.prefers_native and _is_weighted(model) and _is_mixed(model)
    ]
    if mixed:
        notices.append(
            "weights count among targets that speak the caller's language, and these go before the others of their order: "
            f"model {', '.join(mixed)}; prefer_native: false lets weights alone decide"
        )
    closed = [] if shared else list(dict.fromkeys(_closed(models, keys)))
    if closed:
        notices.append(f"fail_closed does nothing without a redis state: {', '.join(closed)}")
    notices += _fallback_notices(models, keys.values())
    notices += _unpriced_notices(models, keys.values())
    budgeted = [key.name for key in keys.values() if key.budget_usd_per_day is not None]
    if budgeted and shared is None:
        notices.append(f"a start forgets what was spent of budgets without a redis state: key {_few(budgeted)}")
    return tuple(printable(notice) for notice in notices)


def _provider_notices(providers: Mapping[str, Provider]) -> Iterator[str]:
    for name, provider in providers.items():
        if not is_first(name):
            continue
        url = urlsplit(provider.base_url)
        if provider.base_url.startswith(EMULATOR):
            yield f"provider {name} is the emulator inside this process: its answers are made up"
        elif url.scheme == "http" and not provider.is_callers and not is_loopback(url.hostname or ""):
            what = "api_key" if provider.api_key else "credential"
            yield f"provider {name}: its {what} travels unencrypted to {url.hostname}: use https"


def _fallback_notices(models: Mapping[str, Model], keys: Iterable[Key]) -> Iterator[str]:
    """Yields the notices of models that a key reaches by falling back that it may not ask for."""
    for key in keys:
        if key.allows is None or key.fallbacks == "allowed":
            continue
        pairs = [
            f"{name} -> {other}"
            for name, model in models.items()
            if key.allows.match(name) or any(fnmatchcase(allowed, name) for allowed in key.models)
            for other in followed_models(model, models)
            if not key.allows.match(other)
        ]
        if pairs:
            yield (
                f"key {key.name}: its models do not allow what they fall back to: {', '.join(pairs)}; "
                "fallbacks: allowed at the key leaves that out"
            )


def _few(names: Collection[str]) -> str:
    """Returns the first names, and how many more there are."""
    shown = list(names)[:5]
    return ", ".join([*shown, f"{len(names) - 5} more"] if len(names) > 5 else shown)


def _unpriced_notices(models: Mapping[str, Model], keys: Iterable[Key]) -> Iterator[str]:
    """Yields notices of models that keys with a budget are refused, or use beside their budget, because they have no price."""
    for key in keys:
        if key.budget_usd_per_day is None:
            continue
        needed_by: dict[str, list[str]] = {}
        for name, model in models.items():
            if key.allows is not None and not key.allows.match(name):
                continue
            for target in (*model.plan, *model.context_plan):
                if target.model is not None and target.find_rates(target.model) is None:
                    needed_by.setdefault(target.name, []).append(name)
        unpriced = [f"{target} ({_few(dict.fromkeys(names))})" for target, names in needed_by.items()]
        if unpriced and key.allow_unpriced:
            yield f"key {key.name}: its budget does not count what has no price: {', '.join(unpriced)}"
        elif unpriced:
            yield (
                f"key {key.name} has a budget and is refused models with a target that has no price: {', '.join(unpriced)}; "
                "set price at the target, or allow_unpriced: true at the key"
            )


def _credential_notices(providers: Mapping[str, Provider], models: Mapping[str, Model]) -> Iterator[str]:
    """Yields notices of a plan's targets that see the caller's credential and of those that do not, so that neither surprises.

    The emulator is left out: it shows the credential to nobody.
    """
    keyless = {n for n, p in providers.items() if p.is_callers and not p.base_url.startswith(EMULATOR)}
    for name, model in models.items():
        bound = model.model_for_caller_credentials or model
        going_to = [
            one for one in (*bound.plan, *bound.context_plan) if one.name not in bound.without_caller_credential
        ]
        shown_to = dict.fromkeys(target.provider for target in going_to if target.provider in keyless)
        if len(shown_to) > 1:
            yield f"model {name}: the caller's credential is passed to every one of: {', '.join(shown_to)}"
        for target, use in targets_hidden_from_callers(model):
            yield f"model {name}: {target.name} {use}"


def _redis_notices(name: str, shared: SharedState | None) -> Iterator[str]:
    url = parse_redis_url(shared.url) if shared else None
    far = [name for name in url.names if not is_loopback(name)] if url else []
    if url and not url.login and far:
        how = "without a password" if url.is_encrypted else "without a password and unencrypted"
        yield f"{name}: {', '.join(far)} is used {how}: whoever can reach it reads and changes what is kept there"
    elif url and not url.is_encrypted and far:
        yield f"{name}: its password travels unencrypted to {', '.join(far)}: use rediss"


def _closed(models: Mapping[str, Model], keys: Mapping[bytes, Key]) -> Iterator[str]:
    """Yields the targets and keys with limits that fail closed, in the words of the config."""
    for model in models.values():
        own = (target for target in model.targets if target.limits.fail_closed and is_first(target.provider))
        yield from (f"target {target.name}" for target in own)
    yield from (f"key {key.name}" for key in keys.values() if key.limits.fail_closed)


def _secret_paths(document: Document, config: ConfigFile, sections: Sections) -> Iterator[Path]:
    yield ("admin", "key")
    yield from (("state",), ("state", "redis"), ("state", "password"))
    for section in sections:
        yield from section.secret_paths()
    for name in config.providers:
        yield ("providers", name, "api_key")
        listed = document.at(("providers", name, "api_keys"))
        yield from (("providers", name, "api_keys", index) for index in range(len(listed or ())))
        yield ("providers", name, "proxy")
        yield from (("providers", name, *path) for section in sections for path in section.provider_secrets)
    for index in range(len(config.keys)):
        yield ("keys", index, "key")


def _is_literal(document: Document, path: Path) -> bool:
    value = document.at(path)
    if not isinstance(value, str) or not value or path in document.origins:
        return False
    return not value.startswith("sha256:") and (path[-1] not in _URLS or "@" in value)


def _is_readable_by_others(file: str) -> bool:
    """Returns whether the group or all may read the file, and search its folder for it."""
    try:
        mode, folder = FilePath(file).stat().st_mode, FilePath(file).parent.stat().st_mode
        return bool(
            mode & folder << 2 & _READABLE_BY_OTHERS
        )  # search is the bit of execution, two below that of reading
    except OSError:  # gone since it was read
        return False


def _is_weighted(model: Model) -> bool:
    return any(target.weight != 1.0 for target in model.targets)


def _is_mixed(model: Model) -> bool:
    languages = {(target.order, frozenset(target.gaps)) for target in model.targets}
    return len(languages) > len({order for order, _ in languages})
