"""The parts of a config that products read: which fields they add to the core's entries, and what becomes of them.

The core loads a config with the sections that its caller names, in their order, and knows none of them. A section holds nothing
of any config: what it compiles is a `Setting` of a model, a key or the snapshot. Problems are noted in the documents that
they are of.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from pydantic import Field, create_model

from gateway.core.config.schema import ConfigFile, Entry, EntryT, KeyEntry, ModelEntry, ProviderEntry, TargetEntry
from gateway.core.config.source import Document, Path, Problem
from gateway.core.snapshot import ExplainedRequest, Key, Model, PolicySnapshot, Provider, Setting
from gateway.core.types import SharedState

FieldT = TypeVar("FieldT")
HAVE_EMBEDDINGS: Final = "; Gemini, Vertex AI, and Titan and Cohere at Bedrock have embeddings, and so have OpenAI's"
"""The end of a message about a target that has none."""
Settings = Mapping[Setting[Any], Any]
Sections = tuple["SectionSpec", ...]


class EntryField(Generic[FieldT]):
    """A field that a product adds to an entry of the core: to a model, a key, or the file itself."""

    __slots__ = ("after", "default", "kind", "name")

    def __init__(self, name: str, kind: Any, default: FieldT, *, after: str) -> None:
        """`kind` is the type that pydantic checks; messages that list the entry's fields have it behind `after`."""
        self.name = name
        self.kind = kind
        self.default = default
        self.after = after

    def of(self, entry: Entry) -> FieldT:
        """Returns the value of an entry that has the field."""
        value: FieldT = getattr(entry, self.name)
        return value


@dataclass(frozen=True, slots=True)
class ModelReading:
    """One entry of `models` that can be read."""

    name: str
    entry: ModelEntry
    settings: Settings
    providers: Sequence[str]
    """The provider of each target, by its name in the config."""
    why_never: Callable[[str], list[str | None]]
    """Returns of each target why it refuses every call to an endpoint; None: it takes some, or it is not known."""


@dataclass(slots=True)
class ConfigReading:
    """One config while it is loaded: what is known of it so far."""

    document: Document
    config: ConfigFile
    environ: Mapping[str, str]
    sections: Sections
    folders: Mapping[SectionSpec, tuple[Document, ...]]
    """The files of folders in the policy folder, by the section that has read them."""
    settings: dict[Setting[Any], Any]
    """What the whole snapshot gets."""
    state: str
    shared: SharedState | None
    providers: Mapping[str, Provider] = field(default_factory=dict)
    keys: Mapping[bytes, Key] = field(default_factory=dict)
    models: Mapping[str, ModelReading] = field(default_factory=dict)
    """The readable entries of `models`."""
    digests: list[str] = field(default_factory=list)
    """What the snapshot's digest also depends on."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The other files that the config names, each with the digest of what it holds: a change is a change of the config."""
    built: Mapping[str, Model] = field(default_factory=dict)
    """The models, patterns among them, once everything is sound."""

    def why_none(self, endpoint: str, model: str) -> str | None:
        """Returns why no target of a model takes a call to this endpoint; None: one does, or it is not known."""
        matching = [name for name in self.models if name == model or fnmatchcase(model, name)]
        if not matching:
            return None
        # As for a call: the exact name goes first, then the longest pattern.
        found = self.models[model if model in matching else max(matching, key=len)]
        whys = found.why_never(endpoint)
        return whys[0] if whys and all(whys) and not found.entry.fallbacks else None


class SectionSpec:
    """What one product reads of a config: names that are its own, then methods, called in the order in which they stand here.

    A product overrides those that it needs; the others do nothing.
    """

    policy_files: Sequence[str] = ()
    """The names of its files in the policy folder."""
    file_fields: Sequence[EntryField[Any]] = ()
    key_fields: Sequence[EntryField[Any]] = ()
    model_fields: Sequence[EntryField[Any]] = ()
    reads_credentials: ClassVar[bool] = False
    """It reads `auth` of providers."""
    provider_secrets: ClassVar[Sequence[Path]] = ()
    """The fields of a provider that may hold a secret."""
    explain_order: int = 0
    """The order of the lines of `explain`: below 0 before those on attempts, above 0 behind them."""

    def list_files(self, folder: FilePath) -> Iterable[FilePath]:
        """Returns its files in folders of a policy folder, whose changes are changes of the config. Raises OSError."""
        return ()

    def read_state(self, document: Document, config: ConfigFile) -> tuple[str, SharedState | None] | None:
        """Returns where what outlives a call is kept, and the Redis of it; None: another section knows."""
        return None

    def read_folder(self, folder: FilePath, environ: Mapping[str, str], problems: list[Problem]) -> Iterable[Document]:
        """Reads its files in folders of a policy folder. Raises OSError."""
        return ()

    def read_policies(self, documents: Mapping[str, Document], beside: FilePath) -> Settings:
        """Returns what its policy files say of all the config; relative paths in them start at the folder `beside`."""
        return {}

    def read_credential(self, reading: ConfigReading, name: str, entry: ProviderEntry) -> Hashable | None:
        """Returns the credential that a provider is called with in place of a key, by its `auth`; notes its problems."""
        return None

    def read_key(self, reading: ConfigReading, path: Path, entry: KeyEntry) -> Settings:
        """Returns the settings of the key at this path, and notes the problems of its entry."""
        return {}

    def read_model(self, reading: ConfigReading, name: str, entry: ModelEntry) -> Settings:
        """Returns the settings of a model, and notes the problems of its entry."""
        return {}

    def sets(self, reading: ConfigReading) -> Iterable[tuple[EntryField[str], Mapping[str, object]]]:
        """Returns the fields by which a model picks a set of its policy files, each with the sets that there are."""
        return ()

    def read_more(self, reading: ConfigReading) -> None:
        """Reads what depends on the entries of all models."""

    def check_model(self, reading: ConfigReading, model: ModelReading) -> None:
        """Notes what no target of a model can serve, although its entry asks for it."""

    def check_models(self, reading: ConfigReading) -> None:
        """Notes the same of what other parts of the config ask of models."""

    def read_sections(self, reading: ConfigReading) -> None:
        """Reads its sections of the file."""

    def answer_parts(self, model: Model) -> Iterable[str]:
        """Returns what makes a model's answers others than those that were stored before its settings were these."""
        return ()

    def finish_model(self, reading: ConfigReading, entry: ModelEntry, model: Model) -> Settings:
        """Returns more settings of a model of a sound config, whose targets are built."""
        return {}

    def finish(self, reading: ConfigReading, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Returns the snapshot of a sound config with what this product has besides its settings."""
        return snapshot

    def credential_notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterable[str]:
        """Yields what is worth a word about credentials. These come first."""
        return ()

    def config_notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterable[str]:
        """Yields what is worth a word about what the core reads. These come second."""
        return ()

    def provider_notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterable[str]:
        """Yields what is worth a word about the providers of models. These follow those of the config about providers."""
        return ()

    def store_notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterable[str]:
        """Yields what is worth a word about where things are kept. These follow those about providers."""
        return ()

    def notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterable[str]:
        """Yields what is worth a word at start about a sound config."""
        return ()

    def stores(self, snapshot: PolicySnapshot) -> Mapping[str, SharedState | None]:
        """Returns where it keeps things in a Redis, by the path in the config; None: it does not."""
        return {}

    def secret_paths(self) -> Iterable[Path]:
        """Returns the fields of the file that may hold a secret."""
        return ()

    def describe(self, snapshot: PolicySnapshot, shown: dict[str, Any]) -> dict[str, Any]:
        """Returns the snapshot as `/admin/config` shows it, with this product's part."""
        return shown

    def describe_key(self, key: Key, shown: dict[str, Any]) -> dict[str, Any]:
        """Returns the key as `/admin/config` shows it, with this product's part."""
        return shown

    def describe_model(self, model: Model, shown: dict[str, Any]) -> dict[str, Any]:
        """Returns the model as `/admin/config` shows it, with this product's part."""
        return shown

    def explain(self, request: ExplainedRequest) -> Iterable[str]:
        """Yields the lines of `gateway explain` on what this product does for a request, where it has an `explain_order`."""
        return ()

    def explain_instead(self, model: Model) -> Iterable[str]:
        """Yields the lines on what becomes of requests for a model that are no calls to its targets; none: they are."""
        return ()


def merged(parts: Iterable[Settings]) -> dict[Setting[Any], Any]:
    """Returns the settings of several products together."""
    return {setting: value for part in parts for setting, value in part.items()}


def placed_after(before: Sequence[str], shown: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Returns what is shown with more of it behind the first of these names that it has."""
    place = next((name for name in before if name in shown), None)
    found: dict[str, Any] = {}
    for name, value in shown.items():
        found |= {name: value, **(more if name == place else {})}
    return found


class EntryKinds(NamedTuple):
    """The kinds of entries of a config whose fields are mistaken for each other's, with the fields of products."""

    config: type[ConfigFile]
    provider: type[ProviderEntry]
    model: type[ModelEntry]
    target: type[TargetEntry]
    key: type[KeyEntry]


@lru_cache(maxsize=8)
def entry_kinds(sections: Sections) -> EntryKinds:
    """Returns the kinds of entries of a config that has these sections."""
    kinds = EntryKinds(
        _with_fields(ConfigFile, [field for section in sections for field in section.file_fields]),
        _with_fields(ProviderEntry, ()),
        _with_fields(ModelEntry, [field for section in sections for field in section.model_fields]),
        _with_fields(TargetEntry, ()),
        _with_fields(KeyEntry, [field for section in sections for field in section.key_fields]),
    )
    peers = {
        "a provider (providers.NAME)": kinds.provider,
        "a model (models.NAME)": kinds.model,
        "a target (models.NAME.targets)": kinds.target,
        "a key (keys)": kinds.key,
    }
    for kind in peers.values():
        kind.peers = peers
    return kinds


def _with_fields(base: type[EntryT], fields: Iterable[EntryField[Any]]) -> type[EntryT]:
    """Returns the kind of entry with these fields besides its own."""
    fields = tuple(fields)
    given: dict[str, Any] = {one.name: (one.kind, Field(default=one.default, repr=False)) for one in fields}
    made: type[EntryT] = create_model(base.__name__, __base__=base, __module__=__name__, **given)
    order, left = list(base.model_fields), list(fields)
    while left:
        one = next((one for one in left if one.after in order), left[0])
        left.remove(one)
        # The field before it may be that of a product which is not there: then it stands last.
        order.insert(order.index(one.after) + 1 if one.after in order else len(order), one.name)
    made.field_order = tuple(order)
    return made
