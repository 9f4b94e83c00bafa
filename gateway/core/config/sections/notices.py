"""Notices at start about things that are accepted but noteworthy; no notice holds a secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path as FilePath
from urllib.parse import urlsplit

from gateway.core.config.fields.fields.fields import is_loopback
from gateway.core.config.providers.credentials import is_first
from gateway.core.config.schema import ConfigFile
from gateway.core.config.source.problems import Document, Path, path_text, printable
from gateway.core.config.state.shared_limits.redis_url import parse_redis_url
from gateway.core.snapshot.route_plan import strangers_of
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.core.snapshot.snapshot.snapshot import Key, Model
from gateway.core.types.words import EMULATOR
from gateway.fleet.lease.lease.shared_state import SharedState
from gateway.products.realtime.rules.capable import why_no_sessions

_READABLE_BY_OTHERS = 0o044
_URLS = frozenset({"proxy", "state", "redis", "store"})
"""Fields whose value is secret only with a user or password in it."""


def find_notices(
    document: Document,
    config: ConfigFile,
    providers: Mapping[str, Provider],
    models: Mapping[str, Model],
    keys: Mapping[bytes, Key],
    shared: SharedState | None,
    of_jobs: SharedState | None,
) -> tuple[str, ...]:
    """Returns all notices about a sound config; `of_jobs` is the Redis that has the jobs."""
    notices = [*_provider_notices(providers), *_credential_notices(providers, models)]
    notices += _realtime_notices(providers, models)
    notices += _redis_notices("state", shared)
    notices += _redis_notices("jobs.store", of_jobs if of_jobs != shared else None)
    literal = [path_text(path) for path in _secret_paths(document, config) if _is_literal(document, path)]
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


def _credential_notices(providers: Mapping[str, Provider], models: Mapping[str, Model]) -> Iterator[str]:
    """Tells which targets of a plan see the caller's credential and which do not, so that neither is a surprise.

    The emulator is left out: it shows the credential to nobody.
    """
    keyless = {n for n, p in providers.items() if p.is_callers and not p.base_url.startswith(EMULATOR)}
    for name, model in models.items():
        bound = model.for_callers or model
        going_to = [one for one in (*bound.plan, *bound.context_plan) if one.name not in bound.withheld]
        shown_to = dict.fromkeys(target.provider for target in going_to if target.provider in keyless)
        if len(shown_to) > 1:
            yield f"model {name}: the caller's credential is passed to every one of: {', '.join(shown_to)}"
        for target, use in strangers_of(model):
            yield f"model {name}: {target.name} {use}"


def _realtime_notices(providers: Mapping[str, Provider], models: Mapping[str, Model]) -> Iterator[str]:
    """Tells what realtime sessions lack: of targets whose model is called so, as all with nothing else are."""
    asking = [
        (name, target)
        for name, model in models.items()
        for target in model.targets
        if "realtime" in (target.model or name) and is_first(target.provider)
    ]
    for name, target in asking:
        why = why_no_sessions(providers[target.provider])
        if why is not None:
            yield f"model {name}: {target.name} can have no realtime sessions: provider {target.provider} {why}"
    if asking and find_spec("websockets") is None:
        names = ", ".join(dict.fromkeys(name for name, _ in asking))
        yield f"model {names}: realtime sessions need a package that is not installed: pip install '.[realtime]'"


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


def _secret_paths(document: Document, config: ConfigFile) -> Iterator[Path]:
    yield ("admin", "key")
    for here in (("state",), ("jobs", "store")):
        yield from (here, (*here, "redis"), (*here, "password"))
    for name in config.providers:
        yield ("providers", name, "api_key")
        listed = document.at(("providers", name, "api_keys"))
        yield from (("providers", name, "api_keys", index) for index in range(len(listed or ())))
        yield ("providers", name, "proxy")
        yield from (("providers", name, "auth", field) for field in ("secret_key", "session_token", "token"))
    for index in range(len(config.keys)):
        yield ("keys", index, "key")


def _is_literal(document: Document, path: Path) -> bool:
    value = document.at(path)
    if not isinstance(value, str) or not value or path in document.origins:
        return False
    return not value.startswith("sha256:") and (path[-1] not in _URLS or "@" in value)


def _is_readable_by_others(file: str) -> bool:
    try:
        return bool(FilePath(file).stat().st_mode & _READABLE_BY_OTHERS)
    except OSError:  # gone since it was read
        return False


def _is_weighted(model: Model) -> bool:
    return any(target.weight != 1.0 for target in model.targets)


def _is_mixed(model: Model) -> bool:
    spoken = {(target.order, frozenset(target.gaps)) for target in model.targets}
    return len(spoken) > len({order for order, _ in spoken})
