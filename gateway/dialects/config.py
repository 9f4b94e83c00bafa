"""What a config says of dialects: addresses of providers, the file `models.yaml`, and what targets speak; in this order.

Vendors' SDKs take a base URL without the version of the API; the version is added here, and one that is written is
understood. Vertex AI is at a host for each location, and everything there lies below a project (google-genai,
`_api_client.py`). The built-in models.yaml is of the same form as a user's, and goes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from gateway.core.config.admission import kind_of_host
from gateway.core.config.error_tables import built_in_folder
from gateway.core.config.fields import Count, Flag, Text
from gateway.core.config.product_sections import HAVE_EMBEDDINGS, ConfigReading, SectionSpec, Settings
from gateway.core.config.providers import secrets_of
from gateway.core.config.schema import Entry, ProviderEntry, check
from gateway.core.config.source import Document, Path, Problem, quoted, read_document
from gateway.core.snapshot import HasSettings, PolicySnapshot, Provider, Setting, Target, with_settings
from gateway.core.types import (
    BEDROCK_HOST,
    EMULATOR,
    Conversions,
    FindUnsupportedFields,
    Upstream,
    name_in_cloud,
)
from gateway.dialects.known import LISTS, ListedModels, ModelTable, Row, in_order, load_tokenizers, price_finder
from gateway.dialects.memory import THINKING
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint, languages_of, why_never

# --- addresses ---

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
    host = BEDROCK_HOST.search(urlsplit(entry.base_url or "").hostname or "")
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


# --- fields, languages and models that a dialect does not have ---


def check_provider(document: Document, path: Path, entry: ProviderEntry) -> None:
    """Notes fields of the provider at this path that are for other dialects."""
    if entry.api_version is not None and entry.dialect != "azure":
        document.complain((*path, "api_version"), "is for the azure dialect only")
    for field in ("project", "location") if document.at((*path, "dialect")) == entry.dialect else ():
        if getattr(entry, field) is not None and entry.dialect != "vertex":
            hint = ": a region of Amazon's is a `region`" if entry.dialect == "bedrock" else ""
            document.complain((*path, field), f"is for the vertex dialect only{hint}")
    if entry.learn_models and entry.dialect not in LISTS:
        document.complain(
            (*path, "learn_models"),
            f"is for the dialects {' and '.join(sorted(LISTS))}, whose lists tell more than names",
        )
    elif entry.learn_models and not (secrets_of(entry) or entry.auth or entry.emulate_without_key):
        document.complain(
            (*path, "learn_models"), "needs an `api_key`: nobody calls, so there is no caller's credential"
        )


_KNOWN_BY_NAMES: Final = (
    ("embeddings", re.compile(r"text-embedding-|.*-embedding-\d|.*\.(titan-embed|embed)-|amazon\..*-embeddings$")),
    (
        "realtime",
        re.compile(r"(gpt-(4o-)?(mini-)?|gpt-4o-mini-)realtime|gemini-live-|.*-native-audio|.*nova-(2-)?sonic"),
    ),
    ("transcriptions", re.compile(r"whisper|gpt-4o-(mini-)?transcribe")),
    ("speech", re.compile(r"tts-1|gpt-4o-mini-tts|.*-preview-tts")),
    ("images", re.compile(r"dall-e-|gpt-image-|imagen-|.*nova-canvas|.*titan-image|stability\.")),
    ("moderations", re.compile(r"(omni|text)-moderation-")),
)
"""Endpoints, and the names of models that are asked there and nowhere else."""
_OWN: Final = frozenset(("gemini", "vertex", "bedrock"))
"""Dialects with a language of their own, which have none of OpenAI's."""


def why_no_passthrough(provider: Provider) -> str | None:
    """Returns why other endpoints cannot be passed through to the provider; None: they can."""
    if provider.dialect in _OWN:
        return f"the dialect {provider.dialect} has none of OpenAI's other endpoints: name another provider"
    if provider.dialect == "azure" and provider.api_version is not None:
        return f"{provider.name} has an api_version: Azure's deployments have none of the other endpoints"
    return None


def check_speaks(document: Document, path: Path, dialect: str, speaks: object) -> None:
    """Notes languages that no provider of this dialect has."""
    if not isinstance(speaks, list | tuple):
        return
    if dialect in _OWN:
        document.complain(path, f"is not for the dialect {dialect}, which has a language of its own: leave it out")
    elif dialect == "anthropic" and "messages" not in speaks:
        problem = "lacks messages, which is the language of the dialect anthropic: add it, or use `dialect: openai`"
        document.complain(path, problem)


def check_name(document: Document, path: Path, names: tuple[str, str], why_never: Callable[[str], str | None]) -> None:
    """Notes that a target has no word for the endpoint that models of its names are asked for, and nowhere else."""
    found = (
        (one, endpoint)
        for one in dict.fromkeys(reversed(names))
        for endpoint, pattern in _KNOWN_BY_NAMES
        if pattern.match(name_in_cloud(one))
    )
    for one, endpoint in found:
        why = why_never(endpoint)
        if why is not None:
            remedy = HAVE_EMBEDDINGS if endpoint == "embeddings" else ""
            document.complain(
                path, f"{quoted(one)} is asked for {endpoint}, and {why}: name a provider that has it{remedy}"
            )
            return


# --- models.yaml: what conversions have to know of models ---

MODELS: Final = "models.yaml"
MOST_ROWS: Final = 500
THINKING_BYTES: Final = 32 * 1024 * 1024
"""The room in the store for what turns were signed with."""


class ModelFactsEntry(Entry):
    """One row of models.yaml. Keep the defaults in step with `dialects.base.ModelFacts`."""

    max_output: Count | None = None
    max_input: Count | None = None
    reads: list[Literal["image", "pdf", "audio", "video"]] | None = None
    sampling: Flag = True
    stops: Flag = True
    thinking: Literal["none", "budget", "adaptive", "level"] = "none"
    efforts: list[Text] = Field(default_factory=list)
    thinking_off: Literal["disabled", "between_tools", "never"] = "disabled"
    thinks_unasked: Flag = False
    binds_thinking: Flag = False
    forced_tools: Flag = True
    json_schema: Flag = False
    tools_with_schema: Flag = True
    later_system: Flag = False
    logprobs: Flag = False
    cache_marks: Flag = False
    own_fields: Literal["none", "anthropic", "nova", "openai", "qwen", "xai"] = "none"
    caches: list[Literal["tools", "system", "messages"]] = Field(default_factory=list)
    beside_results: list[Literal["text", "image", "document"]] = Field(default=["text", "image", "document"])
    in_results: list[Literal["text", "image", "document"]] = Field(default=["image"])
    json_results: Flag = False
    embeds: Literal["none", "cohere", "gemini", "nova", "titan"] = "none"


def read_models(document: Document | None) -> ModelTable:
    """Returns the table with the rows of the user's file (None: there is none) behind the built-in ones; notes problems."""
    own = in_order(_rows(document)) if document is not None else []
    return ModelTable(lambda: _built_in(built_in_folder().parent / MODELS), own)


@lru_cache(maxsize=1)
def _built_in(file: FilePath) -> tuple[Row, ...]:
    """Reads the built-in file; raises RuntimeError where it is missing or bad, because then the installation is broken."""
    problems: list[Problem] = []
    document = read_document(file, problems)
    rows = in_order(_rows(document)) if document is not None else []
    if problems:
        raise RuntimeError(f"the built-in table of models cannot be used: {problems[0]}")
    return tuple(rows)


def _rows(document: Document) -> dict[str, dict[str, Any]]:
    """Returns the sound rows of all groups by pattern, each with the fields that it names."""
    if not isinstance(document.data, dict):
        document.complain(
            (), f'expected groups such as `anthropic: {{"claude-*": {{…}}}}`, not {quoted(document.data)}'
        )
        return {}
    rows: dict[str, dict[str, Any]] = {}
    for group, members in document.data.items():
        if not isinstance(members, dict):
            document.complain(
                (group,), f'expected rows such as `"claude-*": {{max_output: 64000}}`, not {quoted(members)}'
            )
            continue
        for pattern in members:
            entry = check(ModelFactsEntry, document, (group, pattern))
            if entry is not None:
                named = {name: getattr(entry, name) for name in entry.model_fields_set}
                rows[pattern] = {
                    name: tuple(value) if isinstance(value, list) else value for name, value in named.items()
                }
    if len(rows) > MOST_ROWS:
        document.complain((), f"has {len(rows)} rows, of which a file takes {MOST_ROWS}")
    return rows


MODEL_TABLE: Final[Setting[ModelTable]] = Setting("models", ModelTable(lambda: ()))
"""What is known of models, while a config is loaded; no snapshot has it."""


class ModelsSection(SectionSpec):
    """The file models.yaml."""

    policy_files = (MODELS,)

    def read_policies(self, documents: Mapping[str, Document], beside: FilePath) -> Settings:
        return {MODEL_TABLE: read_models(documents.get(MODELS))}

    def finish(self, reading: ConfigReading, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Makes room in the store for what turns were signed with, where calls are converted."""
        snapshot = with_settings(snapshot, {MODEL_TABLE: MODEL_TABLE.default})
        if not any(one.remembers_thinking and any(map(_is_anothers, one.plan)) for one in reading.built.values()):
            return snapshot
        answers = {**snapshot.store.answers, THINKING: THINKING_BYTES}
        return replace(snapshot, store=replace(snapshot.store, answers=answers))


def _is_anothers(target: Target) -> bool:
    """Returns whether the target's language is none of OpenAI's, so that something has to be known of its model."""
    return target.find_most_input is not None


# --- what targets speak ---

Convert = Callable[[Upstream, TargetLanguages, str], Conversions | None]
"""Returns what puts calls into another language for a server that speaks these; None: it speaks all.

The last argument names the server and its model, for what is learned of it."""


def as_it_is(_upstream: Upstream, _languages: TargetLanguages, _place: str) -> None:
    """Converts nothing."""


@dataclass(frozen=True, slots=True)
class DialectLanguage:
    """What one target speaks, by the tables of the dialects."""

    languages: TargetLanguages
    model: str | None
    convert: Convert

    @property
    def speaks(self) -> frozenset[str] | None:
        return self.languages.speaks

    @property
    def gaps(self) -> Mapping[str, FindUnsupportedFields]:
        return gaps_by_endpoint(self.languages, self.model)

    @property
    def find_most_input(self) -> Callable[[str], int | None] | None:
        return self.languages.find_most_input if self.languages.has_own_language else None

    def why_never(self, endpoint: str) -> str | None:
        return why_never(endpoint, self.languages, self.model)

    def conversions(self, upstream: Upstream, place: str) -> Conversions | None:
        return self.convert(upstream, self.languages, place)


class DialectLanguages:
    """The languages of targets, by the tables of the dialects, models.yaml and what providers list; prices and tokenizers."""

    address_of = staticmethod(address_of)
    messages_address_of = staticmethod(messages_address_of)
    check_provider = staticmethod(check_provider)
    check_speaks = staticmethod(check_speaks)
    check_name = staticmethod(check_name)
    why_no_passthrough = staticmethod(why_no_passthrough)
    price_finder = staticmethod(price_finder)
    load_tokenizers = staticmethod(load_tokenizers)

    def __init__(self, convert: Convert = as_it_is, listed: ListedModels | None = None) -> None:
        """`convert` makes the conversions; `listed` are the models that providers list, None: none is asked."""
        self._convert = convert
        self._listed = listed

    def of(
        self,
        policies: HasSettings,
        provider: Provider,
        kind: str,
        declared: Sequence[str] | None,
        place: tuple[str, str | None],
        *,
        approximates: bool = False,
        sets: frozenset[str] = frozenset(),
        as_listed: bool = False,
    ) -> DialectLanguage:
        """Returns what a target speaks, with a model of this name."""
        name, model = place
        table = MODEL_TABLE.of(policies)
        if as_listed and self._listed is not None and provider.learns_models:
            table = table.for_provider(self._listed, provider.group)
        speaks = languages_of(provider.dialect, kind, declared)
        languages = TargetLanguages(
            *(kind, speaks, provider.dialect, table.of),
            approximates=approximates,
            sets=sets,
            find_sources=table.sources,
        ).at(name)
        return DialectLanguage(languages, model, self._convert)
