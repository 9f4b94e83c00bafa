"""Config files in, one `PolicySnapshot` out: read, check everything, and only then build.

Nothing is connected and no price looked up before the whole config is sound. Invariant: either a snapshot is returned,
or `ConfigError` carries every problem of every file, each on its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase, translate
from functools import cache
from hashlib import sha256
from pathlib import Path as FilePath

from gateway.config.env import substitute
from gateway.config.notices import find_notices
from gateway.config.policies import Policies, read_policies
from gateway.config.prices import price_finder
from gateway.config.problems import Document, Path, Problem, did_you_mean, printable
from gateway.config.routes import Pair, build_models, check_routes, compile_patterns, is_pattern, limits_of, pairs_of
from gateway.config.schema import (
    EMULATOR,
    AdminEntry,
    ConfigFile,
    KeyEntry,
    ProviderEntry,
    ServerEntry,
    check,
    is_loopback,
)
from gateway.config.source import read_document
from gateway.errors import ConfigError
from gateway.policy.snapshot import Key, PolicySnapshot, Provider, Server, Target
from gateway.ports import Upstream

ANONYMOUS = Key(name="anonymous", tenant="anonymous", digest=b"")


def load_snapshot(
    path: FilePath,
    environ: Mapping[str, str],
    *,
    connect: Callable[[Provider, str | None], Upstream],
    version: int,
    now_wall: float,
) -> PolicySnapshot:
    """Read and compile the config at `path`.

    `connect` makes the upstream of a provider and a model (None: the asked one), once for each pair; `now_wall` is in
    seconds. Raises ConfigError with all problems, and nothing else.
    """
    problems: list[Problem] = []
    document = _read(path, environ, problems)
    config = check(ConfigFile, document, ()) if document else None
    if document is None or config is None:
        raise _config_error(problems)
    policies = _read_policies(document, config, environ)
    server = _server(document, config)
    providers = _providers(document, config)
    keys = _keys(document, config, server)
    routes = check_routes(document, config, policies)
    _check_passthrough(document, config)
    if problems:
        raise _config_error(problems)

    pairs = [*pairs_of(routes), *([(config.passthrough, None)] if config.passthrough else [])]
    upstreams = _connect_all(document, pairs, providers, connect)
    if problems:
        raise _config_error(problems)

    find_prices = cache(lambda name: price_finder(providers[name], now_wall))
    models = build_models(routes, policies, upstreams, find_prices)
    passthrough = _passthrough(config.passthrough, policies, upstreams)
    _look_up_known_prices(target for model in models.values() for target in model.targets)
    documents = (document, *policies.documents)
    return PolicySnapshot(
        version=version,
        digest=_digest(documents),
        loaded_at=now_wall,
        files=tuple(d.file for d in documents),
        server=server,
        providers=providers,
        models={name: model for name, model in models.items() if not is_pattern(name)},
        patterns=compile_patterns(models),
        keys=keys,
        anonymous=ANONYMOUS,
        lane_deadline_s=policies.lane_deadline_s,
        passthrough=passthrough,
        notices=find_notices(document, config, providers, models, keys),
    )


def locate_policies(path: FilePath, environ: Mapping[str, str]) -> FilePath | None:
    """The policy folder the config names, as far as it can be read; for those who watch it."""
    document = _read(path, environ, [])
    named = document.at(("policies",)) if document else None
    return path.parent / named if isinstance(named, str) and named and "\0" not in named else None


def _read(path: FilePath, environ: Mapping[str, str], problems: list[Problem]) -> Document | None:
    document = read_document(path, problems)
    return substitute(document, environ) if document else None


def _config_error(problems: Iterable[Problem]) -> ConfigError:
    """In the order of the files as they were met, and of their lines."""
    order = {file: number for number, file in enumerate(dict.fromkeys(problem.file for problem in problems))}
    ranked = sorted(problems, key=lambda problem: (order[problem.file], problem.line))
    return ConfigError(list(dict.fromkeys(str(problem) for problem in ranked)))


# --- sections ---


def _read_policies(document: Document, config: ConfigFile, environ: Mapping[str, str]) -> Policies:
    folder = FilePath(document.file).parent / config.policies if config.policies is not None else None
    try:
        return read_policies(folder, environ, document.problems)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        shown = document.show(("policies",), str(folder))
        document.complain(("policies",), f"the folder {shown} cannot be read: {reason}")
        return read_policies(None, environ, document.problems)


def _server(document: Document, config: ConfigFile) -> Server:
    server = check(ServerEntry, document, ("server",)) or ServerEntry()
    admin = check(AdminEntry, document, ("admin",)) or AdminEntry()
    if not config.keys and not is_loopback(server.host):
        document.complain(
            ("server", "host"),
            f"refused: without keys anyone who can reach {document.show(('server', 'host'), server.host)} could use "
            "the gateway; add keys or bind 127.0.0.1",
        )
    if admin.listen == (server.host, server.port):
        document.complain(("admin", "listen"), "is the address of the server itself: choose another port")
    return Server(
        host=server.host,
        port=server.port,
        max_body_bytes=server.max_body,
        body_timeout_s=server.body_timeout,
        grace_s=server.grace,
        admin_listen=admin.listen,
        admin_digest=admin.key,
    )


def _providers(document: Document, config: ConfigFile) -> dict[str, Provider]:
    if not config.providers:
        document.complain(("providers",), "is missing: at least one provider is needed")
    if not config.models:
        document.complain(("models",), 'is missing: at least one model is needed; "*" takes every name')
    providers: dict[str, Provider] = {}
    for name in config.providers:
        entry = check(ProviderEntry, document, ("providers", name))
        if entry is not None:
            _check_provider(document, name, entry)
            providers[name] = _provider(document, name, entry)
    return providers


def _check_provider(document: Document, name: str, entry: ProviderEntry) -> None:
    path: Path = ("providers", name)
    if "/" in name or not name:
        document.complain(path, "a provider's name must not be empty or have a / in it")
    if entry.api_version is not None and entry.dialect != "azure":
        document.complain((*path, "api_version"), "is for the azure dialect only")
    if entry.transport != "httpx":
        for field in ("http2", "proxy"):
            if getattr(entry, field):
                document.complain((*path, field), "needs `transport: httpx`")
    if entry.ca_file is not None and not _is_file(_beside(document, entry.ca_file)):
        document.complain((*path, "ca_file"), f"there is no file {document.show((*path, 'ca_file'), entry.ca_file)}")


def _is_file(path: str) -> bool:
    try:
        return FilePath(path).is_file()
    except (OSError, ValueError):
        return False


def _beside(document: Document, file: str) -> str:
    return str(FilePath(document.file).parent / file)


def _provider(document: Document, name: str, entry: ProviderEntry) -> Provider:
    emulated = entry.emulate_without_key and not entry.api_key
    return Provider(
        name=name,
        dialect=entry.dialect,
        base_url=f"{EMULATOR}default" if emulated else entry.base_url,
        api_key=entry.api_key,
        headers=tuple(entry.headers.items()),
        api_version=entry.api_version,
        transport=entry.transport,
        http2=entry.http2,
        proxy=entry.proxy,
        ca_file=_beside(document, entry.ca_file) if entry.ca_file is not None else None,
        max_connections=entry.max_connections,
        idle_expiry_s=entry.idle_expiry,
    )


def _keys(document: Document, config: ConfigFile, server: Server) -> dict[bytes, Key]:
    keys: dict[bytes, Key] = {}
    names: set[str] = set()
    for index in range(len(config.keys)):
        path: Path = ("keys", index)
        entry = check(KeyEntry, document, path)
        if entry is None:
            continue
        if entry.name in names:
            document.complain((*path, "name"), f"{document.show((*path, 'name'), entry.name)} is here twice")
        if entry.key in keys:
            document.complain((*path, "key"), f"is the same secret as that of key {keys[entry.key].name}")
        if entry.key == server.admin_digest:
            document.complain((*path, "key"), "is the same secret as admin.key")
        _check_allowed(document, config, path, entry.models)
        names.add(entry.name)
        keys.setdefault(entry.key, _key(entry))
    return keys


def _check_allowed(document: Document, config: ConfigFile, path: Path, allowed: list[str]) -> None:
    """A plain name that no entry of `models` could serve is a slip of the pen."""
    for number, name in enumerate(allowed):
        if not is_pattern(name) and not any(fnmatchcase(name, model) or name == model for model in config.models):
            here = (*path, "models", number)
            suggestion = "" if here in document.origins else did_you_mean(name, config.models)
            document.complain(here, f"no model {document.show(here, name)}{suggestion}")


def _key(entry: KeyEntry) -> Key:
    allows = None if "*" in entry.models else re.compile("|".join(translate(name) for name in entry.models))
    return Key(
        name=entry.name,
        tenant=entry.tenant or entry.name,
        digest=entry.key,
        lane=entry.lane,
        models=tuple(entry.models),
        allows=allows,
        limits=limits_of(entry.rpm, entry.tpm, entry.rpd, entry.max_concurrency),
        budget_usd_per_day=entry.budget_usd_per_day,
    )


def _check_passthrough(document: Document, config: ConfigFile) -> None:
    path: Path = ("passthrough",)
    if config.passthrough is not None and config.passthrough not in config.providers:
        suggestion = "" if path in document.origins else did_you_mean(config.passthrough, config.providers)
        document.complain(path, f"no provider {document.show(path, config.passthrough)}{suggestion}")


# --- building ---


def _connect_all(
    document: Document,
    pairs: Iterable[Pair],
    providers: Mapping[str, Provider],
    connect: Callable[[Provider, str | None], Upstream],
) -> dict[Pair, Upstream]:
    """One upstream for each provider and model, shared by all targets that name them; problems are noted."""
    upstreams: dict[Pair, Upstream] = {}
    for provider, model in dict.fromkeys(pairs):
        try:
            upstreams[provider, model] = connect(providers[provider], model)
        except (OSError, ValueError, ImportError) as error:  # a bad CA file; http2 without its package
            document.complain(("providers", provider), f"cannot be set up: {_reason(error)}")
    return upstreams


def _reason(error: Exception) -> str:
    """The kind of error only: its text may hold a URL with a password in it."""
    if isinstance(error, ImportError):
        return "a Python package that it needs is not installed (http2 needs the extra of that name)"
    return getattr(error, "strerror", None) or type(error).__name__


def _passthrough(provider: str | None, policies: Policies, upstreams: Mapping[Pair, Upstream]) -> Target | None:
    if provider is None:
        return None
    return Target(
        name=f"{provider}/*",
        provider=provider,
        model=None,
        upstream=upstreams[provider, None],
        clocks=policies.clocks["default"],
    )


def _look_up_known_prices(targets: Iterable[Target]) -> None:
    """So that no call has to: the finders remember."""
    for target in targets:
        if target.model is not None:
            target.find_rates(target.model)


def _digest(documents: Iterable[Document]) -> str:
    """SHA-256 over all resolved content. Every value goes in hashed, so that no secret can be read off the input."""
    total = sha256()
    for document in documents:
        total.update(f"{FilePath(document.file).name}\n".encode("utf-8", "surrogatepass"))
        for line in sorted(_digest_lines(document.data, ())):
            total.update(line.encode())
    return total.hexdigest()


def _digest_lines(value: object, path: Path) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    shown = "" if isinstance(value, (dict, list)) else str(value)
    hashed = sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()
    yield f"{printable(repr(path))} {type(value).__name__} {hashed}\n"
    for step, item in items:
        yield from _digest_lines(item, (*path, step))
