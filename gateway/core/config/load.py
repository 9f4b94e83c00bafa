"""Loads the config files into one `PolicySnapshot`: it reads them, checks everything, and only then builds.

First the sections server, providers, keys and passthrough, whose entries are checked against each other; after a problem their
values only serve to find more problems. Then `load_snapshot`, which is the order of it all. No provider is connected and no
price looked up before the whole config is sound. Invariant: either a snapshot is returned, or `ConfigError` carries every
problem of every file, each with its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase, translate
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path as FilePath

from gateway.core.config.admission import SELF_HOSTED, kind_of_provider, limits_by_kind
from gateway.core.config.fields import is_loopback, is_pattern, substitute
from gateway.core.config.models import (
    ConfigParts,
    Converse,
    LanguageTable,
    Pair,
    TargetParts,
    as_wired,
    build_models,
    check_endpoints,
    check_fail_closed,
    check_routes,
    compile_patterns,
    limits_of,
    pairs_of,
    places_of,
)
from gateway.core.config.policies import PolicySets, read_policies
from gateway.core.config.product_sections import ConfigReading, Sections, entry_kinds, merged
from gateway.core.config.providers import (
    Groups,
    account_of,
    check_accepted,
    check_credentials,
    check_presence,
    group_of,
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
from gateway.core.config.source import Document, Path, Problem, beside, is_file, printable, quoted, read_document
from gateway.core.errors import ConfigError
from gateway.core.openai.bodies import LARGE_BYTES
from gateway.core.snapshot import Key, PolicySnapshot, Provider, Target, with_settings
from gateway.core.types import EMULATOR, Server, Upstream

# --- the sections of the core ---

_PROVIDER_NAME = re.compile(r"[A-Za-z0-9._-]+")


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


def provider_section(reading: ConfigReading, languages: LanguageTable) -> tuple[Groups, dict[str, Kind]]:
    """Returns every readable provider with its credentials, and the kind of each, by name."""
    document, config, shape = reading.document, reading.config, entry_kinds(reading.sections).provider
    if not config.providers:
        document.complain(("providers",), "is missing: at least one provider is needed")
    if not config.models:
        document.complain(("models",), 'is missing: at least one model is needed; "*" takes every name')
    groups: dict[str, tuple[Provider, ...]] = {}
    kinds: dict[str, Kind] = {}
    for name in config.providers:
        entry = check(shape, document, ("providers", name))
        if entry is not None:
            _check_provider(document, name, entry, languages)
            check_presence(document, ("providers", name), entry, bool(config.keys))
            check_accepted(document, config, ("providers", name), entry)
            provider = replace(_provider(document, name, entry, languages), auth=_credential(reading, name, entry))
            kinds[name] = kind = kind_of_provider(entry, provider)
            provider = replace(
                provider, limits_are=entry.limits_are or limits_by_kind(kind), is_self_hosted=kind in SELF_HOSTED
            )
            groups[name] = group_of(provider, secrets_of(entry))
    return groups, kinds


def _credential(reading: ConfigReading, name: str, entry: ProviderEntry) -> Hashable | None:
    """Returns what a provider is called with in place of a key; None: it has no `auth`, or none that can be used."""
    if entry.auth is None:
        return None
    reader = next((section for section in reading.sections if section.reads_credentials), None)
    if reader is None:
        reading.document.complain(("providers", name, "auth"), "credentials of clouds are not installed")
        return None
    return reader.read_credential(reading, name, entry)


def _check_provider(document: Document, name: str, entry: ProviderEntry, languages: LanguageTable) -> None:
    path: Path = ("providers", name)
    if not _PROVIDER_NAME.fullmatch(name):
        document.complain(path, "a provider's name is made of letters, digits, dots, - and _")
    check_credentials(document, path, entry)
    languages.check_provider(document, path, entry)
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


def _provider(document: Document, name: str, entry: ProviderEntry, languages: LanguageTable) -> Provider:
    path: Path = ("providers", name)
    emulated = entry.emulate_without_key and not secrets_of(entry) and entry.auth is None
    return Provider(
        name=name,
        dialect=entry.dialect,
        speaks=None if entry.speaks is None else tuple(entry.speaks),
        base_url=f"{EMULATOR}default" if emulated else languages.address_of(document, path, entry),
        messages_url=languages.messages_address_of(document, path, entry),
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
        secrets=other_secrets_of(document, path, entry),
        is_stand_in=emulated,
        learns_models=entry.learn_models,
    )


def key_section(reading: ConfigReading, server: Server) -> dict[bytes, Key]:
    """Returns the callers by the digest of their secret."""
    document, config, shape = reading.document, reading.config, entry_kinds(reading.sections).key
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
        settings = merged(section.read_key(reading, path, entry) for section in reading.sections)
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
            document.no_such((*path, "models", number), "model", name, config.models)


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
    document: Document, config: ConfigFile, providers: Mapping[str, Provider], languages: LanguageTable
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
        document.no_such(path, "provider", entry.provider, config.providers)
    elif provider is not None and (problem := languages.why_no_passthrough(provider)) is not None:
        document.complain(path, problem)
    return entry if provider is not None else None


def passthrough_target(provider: Provider, parts: TargetParts) -> Target:
    """Returns the target of unknown endpoints, which learns no limits: its answers may report those of any endpoint."""
    kind, policies = parts.kinds[provider.group], parts.policies
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


# --- the whole config ---

LITELLM = ("model_list", "litellm_settings", "router_settings", "general_settings")
"""The sections of a config of LiteLLM's proxy (its docs, "All settings"); none of them is one of ours."""
ANONYMOUS = Key(name="anonymous", tenant="anonymous", digest=b"")


def load_snapshot(
    path: FilePath,
    environ: Mapping[str, str],
    *,
    sections: Sections,
    languages: LanguageTable,
    connect: Callable[[Provider, str | None], Upstream],
    converse: Converse = as_wired,
    version: int,
    now_wall: float,
    host: str | None = None,
    wall: Callable[[], float] | None = None,
) -> PolicySnapshot:
    """Reads and compiles the config at `path`.

    `sections` are what products read of it, in their order; `languages` is what is known of the languages of targets. `connect`
    makes the upstream of a provider and a model (None: the asked one), once for each pair; `converse` puts around it what
    conversations need at it. `now_wall` is in seconds; `host` is where the process listens whatever the file says; `wall` is
    the clock that prices change by, None: they stay those of `now_wall`.
    Raises ConfigError with all problems, and nothing else.
    """
    document, config = _read_config(path, environ, sections)
    problems = document.problems
    policies = _read_policies(document, config, environ, sections)
    server = server_section(document, config, host)
    read = (section.read_state(document, config) for section in sections)
    state, shared = next((found for found in read if found is not None), ("memory", None))
    reading = ConfigReading(
        document, config, environ, sections, policies.folders, dict(policies.settings), state, shared
    )
    groups, kinds = provider_section(reading, languages)
    providers = {provider.name: provider for group in groups.values() for provider in group}
    reading.providers = providers
    reading.keys = keys = key_section(reading, server)
    parts = ConfigParts(groups, kinds, policies, languages)
    routes = check_routes(reading, parts)
    for section in sections:
        section.read_more(reading)
    check_endpoints(reading, routes, parts)
    relayed = passthrough_section(document, config, providers, languages)
    for section in sections:
        section.read_sections(reading)
    if problems:
        raise _config_error(problems)

    pairs = [*pairs_of(places_of(routes), groups), *([(relayed.provider, None)] if relayed else [])]
    upstreams = _connect(document, pairs, providers, connect)
    upstreams = {
        (name, model): converse(upstream, providers[name], kinds[providers[name].group])
        for (name, model), upstream in upstreams.items()
    }
    find_prices = cache(lambda group: languages.price_finder(groups[group][0], wall or (lambda: now_wall)))
    exact = {name: route for name, route in routes.items() if policies.admission[route.entry.admission].is_exact}
    counted = dict.fromkeys(place.model for place in places_of(exact))
    find_tokenizer, unknown = languages.load_tokenizers(counted) if exact else (None, ())
    target_parts = TargetParts(groups, kinds, policies, languages, upstreams, find_prices, find_tokenizer)
    models, sharing = build_models(reading, routes, target_parts)
    passthrough = passthrough_target(providers[relayed.provider], target_parts) if relayed else None
    for target in (target for one in models.values() for target in one.targets):
        # Its price is known from now on, so that no call has to look it up: finders remember.
        if target.model is not None:
            target.find_rates(target.model)
    documents = (document, *policies.documents)
    authorities = {one.ca_file: one.ca_digest or "" for one in providers.values() if one.ca_file is not None}
    reading.built = models
    snapshot = PolicySnapshot(
        version=version,
        digest=_digest(
            documents,
            [
                *reading.digests,
                *(one.hex() for one in reading.files.values()),
                *authorities.values(),
            ],
        ),
        loaded_at=now_wall,
        files=(*(d.file for d in documents), *reading.files, *authorities),
        server=server,
        providers=providers,
        models={name: model for name, model in models.items() if not is_pattern(name)},
        patterns=compile_patterns(models),
        keys=keys,
        anonymous=ANONYMOUS,
        lane_deadline_s=policies.queue.lane_deadline_s,
        waits_as_clients=policies.queue.waits_as_clients,
        queue=policies.queue.bounds,
        state=state,
        shared=shared,
        passthrough=passthrough,
        passthrough_admin=relayed is not None and relayed.admin,
        sections=sections,
        emulated=() if is_loopback(server.host) else tuple(p.name for p in providers.values() if p.is_stand_in),
    )
    snapshot = with_settings(snapshot, reading.settings)
    for section in sections:
        snapshot = section.finish(reading, snapshot)
    return replace(
        snapshot,
        notices=(
            *(notice for section in sections for notice in section.credential_notices(reading, snapshot)),
            *(notice for section in sections for notice in section.config_notices(reading, snapshot)),
            *sharing,
            *(notice for section in sections for notice in section.notices(reading, snapshot)),
            *unknown,
        ),
    )


def _read_config(path: FilePath, environ: Mapping[str, str], sections: Sections) -> tuple[Document, ConfigFile]:
    """Returns the file and its sections; raises ConfigError where it cannot be read at all, or is not one of ours."""
    problems: list[Problem] = []
    document = _read(path, environ, problems)
    if document is None and not path.exists():
        ways = "name the config by --config or GATEWAY_CONFIG, or write one: docs/start.md begins with it"
        raise ConfigError([printable(f"{path}: there is no such file; {ways}")])
    if document is None:
        raise _config_error(problems)
    foreign = next((name for name in LITELLM if document.at((name,)) is not None), None)
    if foreign is not None:
        document.complain(
            (foreign,),
            "this is a config of LiteLLM's; here each model_name is an entry of `models`, and each api_base with its api_key "
            "one of `providers`: config.example.yaml, docs/start.md",
        )
        raise _config_error(problems)
    config = check(entry_kinds(sections).config, document, ())
    if config is None:
        raise _config_error(problems)
    return document, config


def _connect(
    document: Document,
    pairs: Iterable[Pair],
    providers: Mapping[str, Provider],
    connect: Callable[[Provider, str | None], Upstream],
) -> dict[Pair, Upstream]:
    """Returns an upstream for each provider and model, which all targets of that pair share. Raises ConfigError."""
    upstreams: dict[Pair, Upstream] = {}
    for owner, model in dict.fromkeys(pairs):
        try:
            upstreams[owner, model] = connect(providers[owner], model)
        except (OSError, ValueError, ImportError) as error:  # a bad CA file; a proxy that needs a package
            document.complain(("providers", providers[owner].group), f"cannot be set up: {_reason(error)}")
    if document.problems:
        raise _config_error(document.problems)
    return upstreams


def locate_policies(path: FilePath, environ: Mapping[str, str]) -> FilePath | None:
    """Returns the policy folder that the config names; None where the config cannot be read, or there is no folder."""
    document = _read(path, environ, [])
    named = document.at(("policies",)) if document else None
    return path.parent / named if isinstance(named, str) and named and "\0" not in named else None


def _read(path: FilePath, environ: Mapping[str, str], problems: list[Problem]) -> Document | None:
    document = read_document(path, problems)
    return substitute(document, environ) if document else None


def _config_error(problems: Iterable[Problem]) -> ConfigError:
    """Returns the error with its problems in the order in which the files were read, and of their lines."""
    order = {file: number for number, file in enumerate(dict.fromkeys(problem.file for problem in problems))}
    ranked = sorted(problems, key=lambda problem: (order[problem.file], problem.line))
    return ConfigError(list(dict.fromkeys(str(problem) for problem in ranked)))


def _read_policies(
    document: Document, config: ConfigFile, environ: Mapping[str, str], sections: Sections
) -> PolicySets:
    beside = FilePath(document.file).parent
    folder = beside / config.policies if config.policies is not None else None
    try:
        return read_policies(folder, environ, document.problems, beside, sections)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        shown = document.show(("policies",), config.policies)
        document.complain(("policies",), f"the folder {shown} cannot be read: {reason}")
        return read_policies(None, environ, document.problems, sections=sections)


def _reason(error: Exception) -> str:
    """Returns the kind of error without its text, which may hold a URL with a password."""
    if isinstance(error, ImportError):
        return "a Python package that it needs is not installed"
    return getattr(error, "strerror", None) or type(error).__name__


def _digest(documents: Iterable[Document], others: Iterable[str]) -> str:
    """Returns the SHA-256 of all resolved content; every value is hashed first, so that the input holds no secret.

    `others` are the digests of what products have read, of the other files that the config names, and of certificates.
    """
    total = sha256("".join(others).encode())
    for document in documents:
        total.update(f"{FilePath(document.file).name}\n".encode("utf-8", "surrogatepass"))
        for line in sorted(_digest_lines(document.data, ())):
            total.update(line.encode())
    return total.hexdigest()


def _digest_lines(value: object, path: Path) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    shown = "" if isinstance(value, (dict, list)) else str(value)
    hashed = sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()
    kind = "str" if isinstance(value, str) else type(value).__name__  # from a variable or not is the same
    yield f"{printable(repr(path))} {kind} {hashed}\n"
    for step, item in items:
        yield from _digest_lines(item, (*path, step))
