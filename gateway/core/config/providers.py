"""Addresses of providers, their credentials and accounts, and who sees the credentials of callers; in this order.

Vendors' SDKs take a base URL without the version of the API; the version is added here, and one that is written is understood.
Vertex AI is at a host for each location, and everything there lies below a project. Source: google-genai, `_api_client.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote, urlsplit

from gateway.core.config.admission import kind_of_host
from gateway.core.config.schema import ConfigFile, ProviderEntry
from gateway.core.config.source import Document, Path, did_you_mean, quoted
from gateway.core.snapshot import Model, Provider, Target
from gateway.core.types import EMULATOR

_HOSTS: Final[Mapping[str, str]] = {
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
_EXAMPLES: Final[Mapping[str, str]] = {
    "openai": "`base_url: https://api.openai.com/v1`, or where your server is",
    "azure": "`base_url: https://RESOURCE.openai.azure.com`",
}
"""The example of an address for those that are in no usual place."""
_REGIONAL: Final[Mapping[str, str]] = {"bedrock": "https://bedrock-runtime.{region}.amazonaws.com"}
_REGION: Final = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]{1,2}")
HOST_REGION: Final = re.compile(r"(?:^|\.)bedrock-(?:runtime(?:-fips)?|mantle)\.([a-z]{2}(?:-[a-z]+)+-\d)\.")
"""The hosts of Bedrock's, which name their region."""
_MANTLE: Final = "bedrock-mantle."
_OPENAIS_HOST: Final = re.compile(r"https://(?:[a-z]+\.)?api\.openai\.com/?")
"""OpenAI's own addresses, those of a region too, without the version that all their paths begin with."""
_ENDPOINT: Final = re.compile(r"/(?:messages|chat/completions|responses|embeddings|models?)$")
_OPENAIS: Final[Mapping[str, tuple[str, str]]] = {
    "gemini": ("/openai", "https://generativelanguage.googleapis.com/v1beta/openai"),
    "vertex": ("/endpoints", "…/projects/PROJECT/locations/LOCATION/endpoints/openapi"),
    "bedrock": ("/openai", "https://bedrock-runtime.REGION.amazonaws.com/openai/v1"),
}
"""Where clouds have OpenAI's API: what its addresses have in them, and a whole one."""
_ONES_OWN: Final[Mapping[str, frozenset[str]]] = {
    "anthropic": frozenset(("openai", "gemini", "vertex")),
    "gemini": frozenset(("openai", "azure", "anthropic", "vertex", "bedrock")),
    "vertex": frozenset(("openai", "azure", "anthropic", "gemini", "bedrock")),
    "bedrock": frozenset(("openai", "azure", "anthropic", "gemini", "vertex")),
}
"""The kinds of hosts, by dialect, that are known not to speak it."""
_VERSIONS: Final[Mapping[str, str]] = {"anthropic": "/v1", "gemini": "/v1beta", "vertex": "/v1"}
_ANY_VERSION: Final = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?$")
_SEVERAL_REGIONS: Final = ("us", "eu")
_PROJECTS: Final = "/projects/"
_SUCH: Final = {"project": "my-project", "location": "europe-west1"}
_STEP: Final = re.compile(r"[a-z0-9]([a-z0-9.:-]*[a-z0-9])?")
"""A project's or location's name, which becomes a step of the path, or a part of the host."""


def address_of(document: Document, path: Path, entry: ProviderEntry) -> str:
    """Returns the base URL with the version of the API; notes where an entry of a dialect without a usual one lacks it."""
    if document.at((*path, "dialect")) != entry.dialect:  # which was found wrong: what hangs on it is not known
        return f"{EMULATOR}none"
    _check_region(document, path, entry)
    if entry.base_url is not None and entry.base_url.startswith(EMULATOR):
        return entry.base_url
    if entry.base_url is not None:
        _check_url(document, (*path, "base_url"), entry.dialect, entry.base_url)
    if entry.dialect == "vertex":
        return _address_at_vertex(document, path, entry)
    if entry.base_url is None and entry.dialect in _REGIONAL:
        return _REGIONAL[entry.dialect].format(region=entry.region) if entry.region else f"{EMULATOR}none"
    if entry.base_url is None:
        if entry.dialect not in _HOSTS:
            document.complain((*path, "base_url"), f"is missing: write {_EXAMPLES[entry.dialect]}")
            return f"{EMULATOR}none"
        return _HOSTS[entry.dialect] + _VERSIONS[entry.dialect]
    is_openais = entry.dialect == "openai" and _OPENAIS_HOST.fullmatch(entry.base_url) is not None
    version = "/v1" if is_openais else _VERSIONS.get(entry.dialect, "")
    return _with_version(entry.base_url.rstrip("/") if is_openais else entry.base_url, version, entry.dialect)


def messages_address_of(document: Document, path: Path, entry: ProviderEntry) -> str | None:
    """Returns where the server takes Messages, with the version of Anthropic's API; notes where it cannot be there."""
    url, here = entry.messages_url, (*path, "messages_url")
    if url is None:
        return None
    if entry.dialect != "openai":
        document.complain(here, "is for the dialect openai only: others have one address for all that they speak")
    elif "messages" not in (entry.speaks or ()):
        document.complain(
            here, "is of no use to a provider that is not said to speak messages: add `speaks: [chat, messages]`"
        )
    elif entry.base_url is not None and _server_of(url) != _server_of(entry.base_url):
        remedy = "make it a provider of its own, with `dialect: anthropic`"
        document.complain(here, f"is another server's than base_url is: {remedy}")
    elif found := _ENDPOINT.search(urlsplit(url).path):
        document.complain(here, f"is the address of an endpoint: leave {quoted(found[0])} out")
    return _with_version(url, _VERSIONS["anthropic"], "anthropic")


def _server_of(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _with_version(base_url: str, version: str, dialect: str) -> str:
    """Returns the base URL with a version; another one that is written holds where the vendor has several."""
    if base_url.endswith(version):
        return base_url
    has_other = dialect in ("gemini", "vertex") and _ANY_VERSION.search(urlsplit(base_url).path)
    return base_url if has_other else base_url + version


def _address_at_vertex(document: Document, path: Path, entry: ProviderEntry) -> str:
    if entry.base_url is not None and _PROJECTS in entry.base_url:
        return entry.base_url
    if entry.base_url is not None and entry.project is None and entry.location is None:
        return _with_version(entry.base_url, _VERSIONS["vertex"], "vertex")  # of Google's express mode, or a proxy
    if entry.project is None:
        problem = "is missing: name the project at Google that pays, as in `project: my-project`"
        document.complain((*path, "project"), problem)
    if entry.location is None and entry.region is None:
        problem = "is missing: name the region, as in `location: europe-west1`, or `global`, `us`, `eu`"
        document.complain((*path, "location"), problem)
    wrong = [field for field in _SUCH if (value := getattr(entry, field)) is not None and not _STEP.fullmatch(value)]
    for field in wrong:
        shown = document.show((*path, field), getattr(entry, field))
        document.complain((*path, field), f"{shown} is no name that Google gives, such as {_SUCH[field]}")
    if wrong or entry.project is None or entry.location is None:
        return f"{EMULATOR}none"
    base_url = _with_version(entry.base_url or _host_of(entry.location), _VERSIONS["vertex"], "vertex")
    return f"{base_url}{_PROJECTS}{entry.project}/locations/{entry.location}"


def _check_url(document: Document, path: Path, dialect: str, base_url: str) -> None:
    """Notes an address that cannot be one of this dialect: of an endpoint, of OpenAI's API at a cloud, of another vendor."""
    url = urlsplit(base_url)
    kind = kind_of_host(url.hostname or "")
    if found := _ENDPOINT.search(url.path):
        document.complain(path, f"is the address of an endpoint: leave {quoted(found[0])} out")
    elif dialect == "openai":
        mark, whole = _OPENAIS.get(kind, ("", ""))
        if mark not in url.path and _MANTLE not in base_url:
            document.complain(path, f"has not OpenAI's API: use {whole}, or `dialect: {kind}` without a base_url")
    elif kind in _ONES_OWN.get(dialect, ()):
        document.complain(path, f"is an address of {kind}'s: leave it out, or use `dialect: {kind}`")
    elif dialect == "gemini" and url.path.endswith(_OPENAIS["gemini"][0]):
        document.complain(path, "is an address of OpenAI's API: use `dialect: openai` for it, or leave its path out")
    elif dialect == "bedrock" and _MANTLE in base_url:
        remedy = "use `dialect: anthropic` with /anthropic behind the host, or `dialect: openai` with /v1"
        document.complain(path, f"does not speak Converse: {remedy}")


def _host_of(location: str) -> str:
    if location == "global":
        return "https://aiplatform.googleapis.com"
    if location in _SEVERAL_REGIONS:
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _check_region(document: Document, path: Path, entry: ProviderEntry) -> None:
    """Notes what is wrong with the region of an entry, or with an address that is not of its dialect."""
    here = (*path, "region")
    host = HOST_REGION.search(urlsplit(entry.base_url or "").hostname or "")
    if entry.dialect not in _REGIONAL:
        if entry.region is not None:
            hint = ": a region of Google's is a `location`" if entry.dialect == "vertex" else ""
            document.complain(here, f"is for the {' and '.join(_REGIONAL)} dialect only{hint}")
    elif entry.region is None:
        if entry.base_url is None and entry.location is None:
            document.complain(here, "is missing: name the region of AWS's whose models are asked, such as us-east-1")
    elif host is not None and host[1] != entry.region:
        shown = document.show(here, entry.region)
        document.complain(here, f"is {shown}, and the host of base_url is in {quoted(host[1])}: leave one of them out")
    elif not _REGION.fullmatch(entry.region):
        document.complain(here, f"{document.show(here, entry.region)} is no region of AWS's such as us-east-1")
    if entry.dialect == "bedrock" and entry.base_url is not None and entry.base_url.endswith("/v1"):
        document.complain(
            (*path, "base_url"), "is an address of OpenAI's API: use `dialect: openai` for it, or leave its path out"
        )


# --- credentials: with several, each is an account and becomes a provider of its own ---


_SECRET_NAME = re.compile(
    "auth|key|token|secret|passw|pwd|credential|cookie|session|signature|jwt|bearer|subscription", re.IGNORECASE
)
_PLAIN_HEADERS = frozenset(
    {
        "accept",
        "accept-language",
        "anthropic-beta",
        "anthropic-version",
        "cache-control",
        "content-type",
        "http-referer",
        "openai-beta",
        "origin",
        "referer",
        "user-agent",
        "x-openrouter-categories",
        "x-openrouter-title",
        "x-title",
    }
)
"""Headers that name the application or a version, which answers may hold."""
Groups = Mapping[str, tuple[Provider, ...]]
"""The providers of the config by their names there, each with its credentials in order."""


def check_credentials(document: Document, path: Path, entry: ProviderEntry) -> None:
    """Notes contradictions between the credentials of the provider at this path."""
    if entry.api_key and entry.api_keys:
        document.complain((*path, "api_keys"), "and api_key exclude each other: list them all in api_keys")
    first: dict[str, int] = {}
    for index, secret in enumerate(entry.api_keys):
        if secret and first.setdefault(secret, index) != index:
            document.complain((*path, "api_keys", index), f"is the same credential as api_keys[{first[secret]}]")


def check_presence(document: Document, path: Path, entry: ProviderEntry, has_keys: bool) -> None:
    """Notes a credential that is configured but empty, where no caller's credential could replace it.

    Without `keys` the caller's own credential is passed through. With them callers send secrets of the gateway, which no
    provider knows, so every call to this provider would fail.
    """
    if not has_keys or entry.emulate_without_key or secrets_of(entry):
        return
    for field in ("api_key", "api_keys"):
        here = (*path, field)
        written = document.at(here)
        if written is None or (any(written) if isinstance(written, list) else written):
            continue  # nothing is written there, or something that was found wrong already
        places: list[Path] = [(*here, n) for n in range(len(written))] if isinstance(written, list) else [here]
        variables = [origin for origin in map(document.origin_of, places) if origin]
        remedy = f"set {', '.join(variables)}" if variables else "write it down, or leave the field out"
        document.complain(
            here, f"is empty, and callers' secrets are the gateway's own (keys), which no provider knows: {remedy}"
        )


def secrets_of(entry: ProviderEntry) -> list[str]:
    """Returns the credentials in order without empty ones; an empty list means the caller's own."""
    return [secret for secret in (entry.api_key, *entry.api_keys) if secret]


def other_secrets_of(document: Document, path: Path, entry: ProviderEntry) -> tuple[str, ...]:
    """Returns the other secrets that a provider gets: values of headers, and the proxy's password.

    A header is secret when its name says so, or when its value comes from a variable, unless its name is known to be
    harmless.
    """
    fetched = {name for name in entry.headers if document.origin_of((*path, "headers", name))}
    secret = [name for name in entry.headers if _is_secret(name, name in fetched)]
    found = [part for name in secret for part in _parts(name, entry.headers[name])]
    password = urlsplit(entry.proxy).password if entry.proxy else None
    return (*found, *([password, unquote(password)] if password else []))


def _is_secret(header: str, is_fetched: bool) -> bool:
    if header.lower() in _PLAIN_HEADERS:
        return False
    return is_fetched or _SECRET_NAME.search(header) is not None


def _parts(name: str, value: str) -> list[str]:
    """Returns the secret parts of a header: the token behind a scheme (`Bearer …`), the values of cookies."""
    if name.lower() == "cookie":
        return [pair.partition("=")[2].strip() for pair in value.split(";")]
    scheme, _, token = value.partition(" ")
    return [token.strip() if token and scheme.isalpha() else value]


def group_of(provider: Provider, secrets: Sequence[str]) -> tuple[Provider, ...]:
    """Returns the provider once per credential (without any, as it is); answers are searched for the secrets of all.

    The first keeps the provider's name, the others are numbered: `openai`, `openai#2`, `openai#3`. No message may hold a
    part of a credential. Invariant: a group has one member at least, and its first is named as the group.
    """
    shared = tuple(dict.fromkeys((*provider.secrets, *secrets)))
    group = tuple(
        replace(
            provider,
            name=provider.name if number == 1 else f"{provider.name}#{number}",
            api_key=secret,
            secrets=shared,
        )
        for number, secret in enumerate(secrets, 1)
    )
    return group or (provider,)


def is_first(provider: str) -> bool:
    """Returns whether the provider is the first of its group: notices about a group are given once."""
    return "#" not in provider  # which the config's own names cannot have


def account_of(provider: Provider) -> str:
    """Returns the account that pays for calls to the provider; empty: the caller's own."""
    return "" if provider.is_callers else provider.name


# --- callers' own credentials stay with one vendor, whatever targets a call falls back to ---


_PORTS = {"http": 80, "https": 443}


def check_accepted(document: Document, config: ConfigFile, path: Path, entry: ProviderEntry) -> None:
    """Notes names in `accepts_callers_of` that do not exist."""
    for index, name in enumerate(entry.accepts_callers_of):
        if name not in config.providers:
            here = (*path, "accepts_callers_of", index)
            suggestion = "" if document.origin_of(here) else did_you_mean(name, config.providers)
            document.complain(here, f"no provider {document.show(here, name)}{suggestion}")


def bind_credentials(model: Model, groups: Groups) -> Model:
    """Returns the model with a reduced form for calls with the caller's own credential, where that may not go everywhere.

    The first target without an `api_key` determines the vendor of the credentials. Providers are of one vendor if they are
    accounts of one provider, have the same scheme, host and port, have hosts of the same known company (two regions of
    one), or are servers of the operator's own house. The emulator may see every credential, because it sends nothing on. A
    declared `kind` of a hosted provider does not count, because any server may be made to behave like another's.
    """
    providers = {one.name: one for group in groups.values() for one in group}
    keyless = {
        target.name: providers[target.provider]
        for target in (*model.plan, *model.context_plan)
        if providers[target.provider].is_callers and not providers[target.provider].base_url.startswith(EMULATOR)
    }
    first = next(iter(keyless.values()), None)
    strangers = {name: one for name, one in keyless.items() if first and not _may_see(one, first, groups)}
    if first is None or not strangers:
        return model
    withheld = frozenset(name for name, one in strangers.items() if one.is_self_hosted)
    skipped = {name: one for name, one in strangers.items() if name not in withheld}
    return replace(
        model,
        model_for_caller_credentials=replace(
            model,
            targets=_without(model.targets, skipped),
            plan=_without(model.plan, skipped),
            context_plan=_without(model.context_plan, skipped),
            without_caller_credential=withheld,
            skipped=_sentence(skipped, first) if skipped else "",
            credentials_of=first.group,
        ),
    )


def _without(targets: Sequence[Target], skipped: Mapping[str, Provider]) -> tuple[Target, ...]:
    return tuple(target for target in targets if target.name not in skipped)


def _may_see(provider: Provider, first: Provider, groups: Groups) -> bool:
    """Returns whether the provider may see credentials of the first provider's vendor."""
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


def _sentence(skipped: Mapping[str, Provider], first: Provider) -> str:
    """Returns the sentence at the end of errors where further targets were withheld from the caller's credential."""
    names = dict.fromkeys(provider.group for provider in skipped.values())
    remedies = " and ".join(f"providers.{name}.accepts_callers_of: [{first.group}]" for name in names)
    return (
        f" Not tried: {', '.join(skipped)}, for the caller's own credential is taken to be one of {first.group}, and is shown "
        f"to no other vendor; {remedies} in the gateway's config allows it."
    )
