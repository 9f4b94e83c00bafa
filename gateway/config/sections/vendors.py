"""Where callers' own credentials may go: a credential stays with one vendor, whatever a call falls back to.

Whose credentials they are is told by the first target without an `api_key`. Of one vendor are the accounts of one provider,
providers at the same scheme, host and port, those whose hosts belong to the same known company (two regions of one), and all
servers of the operator's own house. The emulator is nobody: what it is sent goes nowhere. A declared `kind` of a hosted
provider does not count, for anybody's server may be told to behave like another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from gateway.config.policies.admission import kind_of_host
from gateway.config.reading.fields import EMULATOR
from gateway.config.reading.problems import Document, Path, did_you_mean
from gateway.config.schema import ConfigFile, ProviderEntry
from gateway.config.sections.credentials import Groups
from gateway.policy.snapshot import Model, Provider, Target

_PORTS = {"http": 80, "https": 443}


def check_accepted(document: Document, config: ConfigFile, path: Path, entry: ProviderEntry) -> None:
    """Note what `accepts_callers_of` names that is not there."""
    for index, name in enumerate(entry.accepts_callers_of):
        if name not in config.providers:
            here = (*path, "accepts_callers_of", index)
            suggestion = "" if document.origin_of(here) else did_you_mean(name, config.providers)
            document.complain(here, f"no provider {document.show(here, name)}{suggestion}")


def bind_credentials(model: Model, groups: Groups) -> Model:
    """The model with the form of it that calls with a credential of their own use; as it is where that may go everywhere."""
    providers = {one.name: one for group in groups.values() for one in group}
    keyless = {
        target.name: providers[target.provider]
        for target in (*model.plan, *model.context_plan)
        if providers[target.provider].api_key is None and not _is_emulator(providers[target.provider])
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
    """Whether the provider may see credentials that are those of the first."""
    vendor = _vendor_of(first)
    return _vendor_of(provider) == vendor or any(
        _vendor_of(groups[name][0]) == vendor for name in provider.accepts_callers_of
    )


def _vendor_of(provider: Provider) -> tuple[str, str, int]:
    """Equal for providers of one vendor: scheme, who it is, and the port."""
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
    """What our errors end with, where more targets could have been tried."""
    names = dict.fromkeys(provider.group for provider in skipped.values())
    remedies = " and ".join(f"providers.{name}.accepts_callers_of: [{first.group}]" for name in names)
    return (
        f" Not tried: {', '.join(skipped)}, for the caller's own credential is taken to be one of {first.group}, and is shown "
        f"to no other vendor; {remedies} in the gateway's config allows it."
    )
