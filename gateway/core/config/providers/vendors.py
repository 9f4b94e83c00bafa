"""Keeps callers' own credentials with one vendor, whatever targets a call falls back to.

The first target without an `api_key` determines the vendor of the credentials. Providers are of one vendor if they are
accounts of one provider, have the same scheme, host and port, have hosts of the same known company (two regions of one), or
are servers of the operator's own house. The emulator may see every credential, because it sends nothing on. A declared `kind`
of a hosted provider does not count, because any server may be told to behave like another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from gateway.core.config.admission.admission import kind_of_host
from gateway.core.config.providers.credentials import Groups
from gateway.core.config.schema import ConfigFile, ProviderEntry
from gateway.core.config.source.problems import Document, Path, did_you_mean
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.core.snapshot.snapshot.snapshot import Model, Target
from gateway.core.types.words import EMULATOR

_PORTS = {"http": 80, "https": 443}


def check_accepted(document: Document, config: ConfigFile, path: Path, entry: ProviderEntry) -> None:
    """Notes names in `accepts_callers_of` that do not exist."""
    for index, name in enumerate(entry.accepts_callers_of):
        if name not in config.providers:
            here = (*path, "accepts_callers_of", index)
            suggestion = "" if document.origin_of(here) else did_you_mean(name, config.providers)
            document.complain(here, f"no provider {document.show(here, name)}{suggestion}")


def bind_credentials(model: Model, groups: Groups) -> Model:
    """Returns the model with a reduced form for calls with the caller's own credential, where that may not go everywhere."""
    providers = {one.name: one for group in groups.values() for one in group}
    keyless = {
        target.name: providers[target.provider]
        for target in (*model.plan, *model.context_plan)
        if providers[target.provider].is_callers and not _is_emulator(providers[target.provider])
    }
    first = next(iter(keyless.values()), None)
    strangers = {name: one for name, one in keyless.items() if first and not _may_see(one, first, groups)}
    if first is None or not strangers:
        return model
    withheld = frozenset(name for name, one in strangers.items() if one.is_self_hosted)
    skipped = {name: one for name, one in strangers.items() if name not in withheld}
    return replace(
        model,
        for_callers=replace(
            model,
            targets=_without(model.targets, skipped),
            plan=_without(model.plan, skipped),
            context_plan=_without(model.context_plan, skipped),
            withheld=withheld,
            skipped=_sentence(skipped, first) if skipped else "",
            credentials_of=first.group,
        ),
    )


def _without(targets: Sequence[Target], skipped: Mapping[str, Provider]) -> tuple[Target, ...]:
    return tuple(target for target in targets if target.name not in skipped)


def _may_see(provider: Provider, first: Provider, groups: Groups) -> bool:
    """Tells whether the provider may see credentials of the first provider's vendor."""
    vendor = _vendor_of(first)
    return _vendor_of(provider) == vendor or any(
        _vendor_of(groups[name][0]) == vendor for name in provider.accepts_callers_of
    )


def _vendor_of(provider: Provider) -> tuple[str, str, int]:
    """Returns the vendor's identity, which is equal for its providers: scheme, company or host, and port."""
    if provider.is_self_hosted:
        return "", "its own house", 0
    url = urlsplit(provider.base_url)
    host = (url.hostname or "").rstrip(".")
    port = url.port or _PORTS.get(url.scheme, 0)
    known = kind_of_host(host)
    return url.scheme, host if known == "other" else f"={known}", port


def _is_emulator(provider: Provider) -> bool:
    return provider.base_url.startswith(EMULATOR)


def _sentence(skipped: Mapping[str, Provider], first: Provider) -> str:
    """Returns the sentence at the end of errors where further targets were withheld from the caller's credential."""
    names = dict.fromkeys(provider.group for provider in skipped.values())
    remedies = " and ".join(f"providers.{name}.accepts_callers_of: [{first.group}]" for name in names)
    return (
        f" Not tried: {', '.join(skipped)}, for the caller's own credential is taken to be one of {first.group}, and is shown "
        f"to no other vendor; {remedies} in the gateway's config allows it."
    )
