"""Where a provider is: the base URL of its entry, or the one that its vendor's own SDK uses.

Vendors' SDKs take a base URL without the version of the API; the version is added here, and one that is written is understood.
Vertex AI is at a host for each location, and everything there lies below a project. Source: google-genai, `_api_client.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.core.config.admission.admission import kind_of_host
from gateway.core.config.schema import ProviderEntry
from gateway.core.config.source.problems import Document, Path, quoted
from gateway.core.types.words import EMULATOR

_HOSTS: Final[Mapping[str, str]] = {
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
_EXAMPLES: Final[Mapping[str, str]] = {
    "openai": "`base_url: https://api.openai.com/v1`, or where your server is",
    "azure": "`base_url: https://RESOURCE.openai.azure.com`",
}
"""What is to be written for those that are in no usual place."""
_REGIONAL: Final[Mapping[str, str]] = {"bedrock": "https://bedrock-runtime.{region}.amazonaws.com"}
_REGION: Final = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]{1,2}")
HOST_REGION: Final = re.compile(r"(?:^|\.)bedrock-(?:runtime(?:-fips)?|mantle)\.([a-z]{2}(?:-[a-z]+)+-\d)\.")
"""Hosts of Bedrock's tell their region."""
_MANTLE: Final = "bedrock-mantle."
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
"""By dialect, the kinds of hosts that are known not to speak it."""
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
    return _with_version(entry.base_url, _VERSIONS.get(entry.dialect, ""), entry.dialect)


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
        told = "is missing: name the project at Google that pays, as in `project: my-project`"
        document.complain((*path, "project"), told)
    if entry.location is None and entry.region is None:
        told = "is missing: name the region, as in `location: europe-west1`, or `global`, `us`, `eu`"
        document.complain((*path, "location"), told)
    wrong = [field for field in _SUCH if (said := getattr(entry, field)) is not None and not _STEP.fullmatch(said)]
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
            told = ": a region of Google's is a `location`" if entry.dialect == "vertex" else ""
            document.complain(here, f"is for the {' and '.join(_REGIONAL)} dialect only{told}")
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
