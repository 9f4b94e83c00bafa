"""Loads the config files into one `PolicySnapshot`: it reads them, checks everything, and only then builds.

No provider is connected and no price looked up before the whole config is sound. Invariant: either a snapshot is returned,
or `ConfigError` carries every problem of every file, each with its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path as FilePath

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
    check_routes,
    compile_patterns,
    pairs_of,
    places_of,
)
from gateway.core.config.policies import PolicySets, read_policies
from gateway.core.config.product_sections import ConfigReading, Sections, entry_kinds
from gateway.core.config.schema import ConfigFile, check
from gateway.core.config.sections import (
    key_section,
    passthrough_section,
    passthrough_target,
    provider_section,
    server_section,
)
from gateway.core.config.source import Document, Path, Problem, printable, read_document
from gateway.core.errors import ConfigError
from gateway.core.snapshot import Key, PolicySnapshot, Provider, with_settings
from gateway.core.types import Upstream

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
    target_parts = TargetParts(groups, upstreams, find_prices, kinds, languages, find_tokenizer)
    models, sharing = build_models(reading, routes, policies, target_parts)
    passthrough = passthrough_target(providers[relayed.provider], policies, target_parts) if relayed else None
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

    `others` are the digests of pipelines, and of the files with schemas and certificates.
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
