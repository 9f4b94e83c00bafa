"""Notices about what a config has that is accepted but worth a word at start; none holds a secret.

They are in the log of the start, in `gateway check` and in `/admin/config`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path as FilePath
from urllib.parse import urlsplit

from gateway.admin.describe import targets_hidden_from_callers
from gateway.core.config.fields import is_loopback
from gateway.core.config.product_sections import ConfigReading, Sections, SectionSpec
from gateway.core.config.providers import is_first
from gateway.core.config.schema import ConfigFile
from gateway.core.config.source import Document, Path, path_text, printable
from gateway.core.snapshot import Key, Model, PolicySnapshot, Provider, followed_models
from gateway.core.types import EMULATOR

_READABLE_BY_OTHERS = 0o044
_URLS = frozenset({"proxy", "state", "redis", "store"})
"""Fields whose value is secret only with a user or password in it."""


class NoticesSection(SectionSpec):
    """The notices about what the core reads of a config."""

    def config_notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterator[str]:
        return map(printable, find_notices(reading, snapshot))


def find_notices(reading: ConfigReading, snapshot: PolicySnapshot) -> list[str]:
    """Returns all notices about a sound config; where sections have some about providers and stores, theirs are among them."""
    document, config, sections = reading.document, reading.config, reading.sections
    providers, models, keys, shared = reading.providers, reading.built, reading.keys, snapshot.shared
    notices = [*_provider_notices(providers), *_credential_notices(providers, models)]
    for section in sections:
        notices += section.provider_notices(reading, snapshot)
    for section in sections:
        notices += section.store_notices(reading, snapshot)
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
    return notices


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
