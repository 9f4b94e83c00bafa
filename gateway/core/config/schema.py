"""The shape of every entry that a user writes; it is strict, and unknown fields are refused.

Entries are flat on purpose: the contents of a section or a list are checked entry by entry. First the entries of config.yaml;
those of policy files are beside their readers. At the end `check`, which puts pydantic's findings into words. It must not know
how entries relate to each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_core import ErrorDetails

from gateway.core.balancing import Choice
from gateway.core.config.fields import (
    Address,
    Amount,
    ApiKey,
    ApiKeys,
    BaseUrl,
    CallerDigest,
    Count,
    Duration,
    EnvText,
    FailClosed,
    Flag,
    Headers,
    Label,
    Names,
    Port,
    PositiveDuration,
    ProxyUrl,
    Section,
    Size,
    Text,
)
from gateway.core.config.source import Document, Path, did_you_mean, kind_of, path_text, quoted
from gateway.core.snapshot import Dialect, FallbackUse, LimitsAre, OnLoss
from gateway.core.types import LANES, Lane

Kind = Literal[
    "openai",
    "azure",
    "anthropic",
    "groq",
    "mistral",
    "together",
    "fireworks",
    "xai",
    "gemini",
    "openrouter",
    "deepseek",
    "vertex",
    "cohere",
    "bedrock",
    "vllm",
    "sglang",
    "ollama",
    "llamacpp",
    "tgi",
    "other",
]
"""The kind of a provider: the rules by which it counts, and the words of its errors."""
Speaks = Annotated[list[Literal["chat", "responses", "messages"]], Field(min_length=1)]
"""The languages of a provider or target; a call in another one is converted."""


class Entry(BaseModel):
    """The base of all entries: an empty value, or an empty variable, counts as a missing one."""

    # A config uses few of the kinds of entries, so each builds its validator when it is first used, and not at every start.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)
    stand_ins: ClassVar[Section] = {}
    """Values for required fields that are bad or missing, so that the entry's other fields can still be checked."""
    field_order: ClassVar[tuple[str, ...]] = ()
    """The fields in the order in which messages have them, where it is not that of their definition."""
    peers: ClassVar[Mapping[str, type[Entry]]] = {}
    """The entries whose fields are mistaken for each other's, this one among them, by what each is."""

    @model_validator(mode="before")
    @classmethod
    def _tidy(cls, data: object) -> object:
        data = cls.spelled_out(data)
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None and not (isinstance(v, EnvText) and v == "")}

    @classmethod
    def spelled_out(cls, data: object) -> object:
        """Returns the entry in full, where it is written in a short form."""
        return data

    def written(self) -> dict[str, Any]:
        """Returns the fields that the file names, with their values."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


def keyed_by(names: Iterable[str], label: str, kind: Any) -> type[Entry]:
    """Returns the kind of a mapping that has these names only, such as lanes, each with a value of this kind or none."""
    fields: dict[str, Any] = dict.fromkeys(names, (kind | None, None))
    return create_model(label, __base__=Entry, __module__=__name__, **fields)


class ConfigFile(Entry):
    """The file config.yaml; the contents of its sections are checked entry by entry."""

    server: Section = {}
    admin: Section = {}
    policies: Text | None = None
    providers: Section = {}
    models: Section = {}
    passthrough: Any = None
    keys: list[Any] = []


class ServerEntry(Entry):
    """The section `server:`."""

    host: Text = "127.0.0.1"
    port: Port = 8080
    max_body: Size | None = None
    max_json_values: Count = 1_000_000
    body_timeout: PositiveDuration = 60.0
    grace: Duration = 30.0
    notice: Duration = 0.0


class AdminEntry(Entry):
    """The section `admin:`."""

    key: CallerDigest | None = Field(default=None, repr=False)
    listen: Address | None = None


class ProviderEntry(Entry):
    """One entry of `providers:`."""

    stand_ins: ClassVar[Section] = {"dialect": "azure", "base_url": "emulator://none"}

    dialect: Dialect
    base_url: BaseUrl | None = None
    messages_url: BaseUrl | None = None
    region: Text | None = None
    kind: Kind | None = None
    api_key: ApiKey = Field(default=None, repr=False)
    api_keys: ApiKeys = Field(default=[], repr=False)
    headers: Headers = Field(default={}, repr=False)
    api_version: Text | None = None
    transport: Literal["http1", "httpx"] = "http1"
    http2: Flag = False
    proxy: ProxyUrl | None = Field(default=None, repr=False)
    ca_file: Text | None = None
    max_connections: Count = 1000
    idle_expiry: Duration = 60.0
    limits_are: LimitsAre | None = None
    accepts_callers_of: list[Text] = []
    emulate_without_key: Flag = False
    speaks: Speaks | None = None
    project: Text | None = None
    location: Text | None = None
    learn_models: Flag = False
    auth: Any = Field(default=None, repr=False)


class PassthroughEntry(Entry):
    """The provider that gets calls to endpoints unknown to the gateway."""

    provider: Text
    admin: Flag = False

    @classmethod
    def spelled_out(cls, data: object) -> object:
        """Accepts the provider's name alone."""
        return {"provider": data} if isinstance(data, str) else data


class LimitedEntry(Entry):
    """The limits of a target or a key."""

    rpm: Amount | None = None
    tpm: Amount | None = None
    rpd: Amount | None = None
    max_concurrency: Count | None = None
    fail_closed: FailClosed = False


class TargetEntry(LimitedEntry):
    """One entry of a model's `targets:`."""

    provider: Text
    model: Label | None = None
    burst: Amount | None = None
    input_tpm: Amount | None = None
    output_tpm: Amount | None = None
    adaptive_concurrency: Flag = False
    order: Count = 1
    weight: Amount = 1.0
    capabilities: Section | None = None
    price: Section | None = None
    speaks: Speaks | None = None
    body: Section | None = None
    embedding_task: Literal["document", "query"] | None = None
    strip: Text | None = None

    @classmethod
    def spelled_out(cls, data: object) -> object:
        """Accepts `openai/gpt-4o`: a provider and its name for the model."""
        if not isinstance(data, str):
            return data
        provider, _, model = data.partition("/")
        return {"provider": provider, "model": model or None}


class BodyEntry(Entry):
    """What a target's config sets in the bodies of its calls, and leaves out of them."""

    set: Section = Field(default_factory=dict)
    drop: list[Text] = Field(default_factory=list)


class CapabilitiesEntry(Entry):
    """The capabilities of a target; `context_window` is in tokens, input and output together."""

    tools: Flag = True
    images: Flag = True
    structured_output: Flag = True
    context_window: Count | None = None


class ModelEntry(Entry):
    """One entry of `models:`."""

    stand_ins: ClassVar[Section] = {"targets": [None]}

    targets: Annotated[list[Any], Field(min_length=1)]
    fallbacks: list[Text] = []
    context_fallbacks: list[Text] = []
    choose: Choice = "weighted"
    admission: Text = "default"
    queue: Text = "default"
    retries: Text = "default"
    breakers: Text = "default"
    timeouts: Text = "default"
    on_loss: OnLoss = "report"
    prefer_native: Flag = True
    remember_thinking: Flag = True
    thinks: Flag | None = None


class KeyEntry(LimitedEntry):
    """One entry of `keys:`."""

    stand_ins: ClassVar[Section] = {"name": "nobody", "key": f"sha256:{'0' * 64}"}

    name: Label
    key: CallerDigest = Field(repr=False)
    tenant: Label | None = None
    lane: Literal["interactive", "batch", "background"] = "interactive"
    critical: Flag = False
    names_tenants: Flag = False
    models: Names = ["*"]
    fallbacks: FallbackUse = "any"
    budget_usd_per_day: Amount | None = None
    allow_unpriced: Flag = False
    allow_overspend: Flag = False


def every_lane(given: Mapping[Any, float], built_in: Mapping[Lane, float]) -> dict[Lane, float]:
    """Returns a value for each lane; the highest lane has that of `interactive` where it is not named itself."""
    merged = {**built_in, **given}
    return {**merged, LANES[0]: given.get(LANES[0], merged["interactive"])}


# --- checking one entry: a bad field is noted and dropped, so that one mistake does not hide the next ---

EntryT = TypeVar("EntryT", bound=Entry)

_WANTED = {
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "bytes_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "an address such as 127.0.0.1:9090",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "flag_or_list": "true, false or a list of limits",
}
_BOUNDS = {
    "missing": "is missing",
    "too_short": "needs at least one entry",
    "string_too_short": "must not be empty",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}


_SUGGESTIONS = {
    "claude": "anthropic",
    "messages": "anthropic",
    "google": "gemini",
    "generate": "gemini",
    "vertexai": "vertex",
    "aws": "bedrock",
    "amazon": "bedrock",
    "converse": "bedrock",
}
"""Other names of what a field knows."""


def check(kind: type[EntryT], document: Document, path: Path) -> EntryT | None:
    """Returns the entry at this path without its bad fields, which are noted; None when too little remains."""
    data = document.at(path)
    data = {} if data is None else data
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    # By field, in the order of messages; fields that the entry has not come last.
    ranks = {name: rank for rank, name in enumerate(_fields(kind))}
    for detail in sorted(details, key=lambda one: ranks.get(str(one["loc"][0]) if one["loc"] else "", len(ranks))):
        _report(kind, document, path, detail)
    bad = {detail["loc"][0] for detail in details if detail["loc"]}
    if not isinstance(data, dict) or not bad:
        return None
    good = {name: value for name, value in data.items() if name not in bad and value is not None}
    try:
        # A stand-in takes the place of a bad field that must not be missing.
        return kind.model_validate({**kind.stand_ins, **good})
    except ValidationError:
        return None


def check_sets(kind: type[EntryT], document: Document | None) -> dict[str, EntryT]:
    """Returns the named sets of a policy file (None: it does not exist), always with a `default`.

    A set that cannot be used keeps its name, so that picking it is not a second mistake.
    """
    sets = {"default": kind()}
    if document is None:
        return sets
    if not isinstance(document.data, dict):
        document.complain((), f"expected named sets such as `default: {{...}}`, not {quoted(document.data)}")
        return sets
    return sets | {name: check(kind, document, (name,)) or kind() for name in document.data}


def check_part(kind: type[EntryT], document: Document | None, path: Path) -> EntryT:
    """Returns the sound part of the mapping at this path; missing fields have built-in values."""
    if document is None or not isinstance(document.at(path), dict):
        return kind()
    return check(kind, document, path) or kind()


def _report(kind: type[Entry], document: Document, path: Path, detail: ErrorDetails) -> None:
    # pydantic puts `[key]` behind the name of a mapping's bad key; the file has no such step.
    here = (*path, *(step for step in detail["loc"] if step != "[key]"))
    if detail["type"] == "extra_forbidden":
        if len(detail["loc"]) > 1 and here[-1] in _fields(kind):
            document.complain(here, f"unknown field here: it belongs into {path_text(path)}")
            return
        known = did_you_mean(here[-1], _fields(kind))
        document.complain(here, f"unknown field{known if 'did you' in known else _elsewhere(kind, here[-1]) or known}")
    else:
        document.complain(here, _in_words(detail, document.show(here, detail["input"])))


def _fields(kind: type[Entry]) -> list[str]:
    return [kind.model_fields[name].alias or name for name in kind.field_order or kind.model_fields]


def _elsewhere(kind: type[Entry], name: str | int) -> str:
    """Returns whose field it is, if it is one of another kind of entry."""
    owners = [label for label, other in kind.peers.items() if name in _fields(other)]
    return f" here: it is one of {' or '.join(owners)}" if owners else ""


def _in_words(detail: ErrorDetails, shown: str) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "said":
        return str(context["message"])
    if kind == "about_value":
        return f"{shown} {context['message']}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        suggestion = _SUGGESTIONS.get(str(detail["input"]).lower(), "")
        known = (
            f"; did you mean {quoted(suggestion)}?" if suggestion in choices else did_you_mean(detail["input"], choices)
        )
        # A suggestion would give away a value that came from the environment.
        known = "" if shown.startswith("the value") else known
        return f"{shown} is not one of {', '.join(choices)}{known if 'did you' in known else ''}"
    if kind in _WANTED:
        quote = "; quote it" if _WANTED[kind].startswith("text") and _is_scalar(detail["input"]) else ""
        return f"expected {_WANTED[kind]}, not {kind_of(detail['input'])}{quote}"
    return _BOUNDS.get(kind, "cannot be used ({type})").format(**{**context, "type": kind})


def _is_scalar(value: object) -> bool:
    return isinstance(value, (bool, int, float))
