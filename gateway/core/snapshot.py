"""The compiled policy: one immutable object that a call reads once and lives on until its end.

`config/` compiles it, `app.py` swaps it in one assignment. Everything the hot path asks is a look-up here; nothing is
parsed, merged or formatted while a call runs. Runtime state (connection pools and the like) lives elsewhere, keyed by
the stable names of this page, so that a reload does not reset it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from re import Pattern
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from gateway.core.balancing import Choice, Retries, Tiers
from gateway.core.error_tables import ErrorTable
from gateway.core.health.detector import BreakerRules
from gateway.core.limits.bucket import ChargeRule
from gateway.core.limits.limit_table import CONTINUOUS, Limits, Style
from gateway.core.openai.bodies import BodyEdits, Capabilities
from gateway.core.types import (
    Clocks,
    Endpoint,
    FindUnsupportedFields,
    Lane,
    Learn,
    QueueBounds,
    Server,
    SharedState,
    StoreBounds,
    Upstream,
)

# --- what products compile of the config: the core carries it, and does not know what it is ---

SettingT = TypeVar("SettingT")


class HasSettings(Protocol):
    """A model, a key, or the whole snapshot."""

    @property
    def settings(self) -> Mapping[Setting[Any], Any]: ...


class Setting(Generic[SettingT]):
    """A typed place for what one product's part of the config was compiled to; on a model, a key or the whole snapshot.

    It is defined once, beside the product's rules, and is equal to itself only. A holder has no entry for the default, so
    `SETTING in holder.settings` is whether it has another value.
    """

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: SettingT) -> None:
        self.name = name
        self.default = default

    def __repr__(self) -> str:
        return f"<Setting {self.name}>"

    def of(self, holder: HasSettings) -> SettingT:
        """Returns the holder's value."""
        value: SettingT = holder.settings.get(self, self.default)
        return value


class ExplainedRequest(NamedTuple):
    """A request of which it is explained what would happen to it."""

    policy: PolicySnapshot
    endpoint: Endpoint
    key: Key
    model: Model
    requested_model: str
    """The model as the body names it; empty: it names none."""
    body: bytes
    parsed: dict[str, Any] | None
    """The body as JSON; None: it is none."""
    is_stream: bool


class DescribesSettings(Protocol):
    """Shows one product's settings of the models and keys of a snapshot, and what they make of a request."""

    explain_order: int
    """The order in which the lines of products stand: below 0 before the lines on attempts, above 0 behind them."""

    def explain(self, request: ExplainedRequest) -> Iterable[str]:
        """Returns the lines on what this product does for a request. Raises the GatewayError that it would be answered with."""
        ...

    def explain_instead(self, model: Model) -> Iterable[str]:
        """Returns the lines on what becomes of requests for a model that are no calls to its targets; none: they are."""
        ...

    def describe(self, snapshot: PolicySnapshot, shown: dict[str, Any]) -> dict[str, Any]:
        """Returns the snapshot as it is shown, with this product's part."""
        ...

    def describe_key(self, key: Key, shown: dict[str, Any]) -> dict[str, Any]:
        """Returns the key as it is shown, with this product's part."""
        ...

    def describe_model(self, model: Model, shown: dict[str, Any]) -> dict[str, Any]:
        """Returns the model as it is shown, with this product's part."""
        ...


# --- providers: where one is, whose language it speaks, what it is called with ---

Dialect = Literal["openai", "azure", "anthropic", "gemini", "vertex", "bedrock"]
"""The vendor whose addresses, credentials and language a provider has."""
LimitsAre = Literal["account", "server"]
"""The limits of a provider are each credential's own, as hosted providers count; or those of one server, whoever asks."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Where a provider is and how to speak to it. Two equal providers share one connection pool."""

    name: str
    dialect: Dialect
    base_url: str
    """The base URL without a trailing slash; `emulator://NAME` is answered inside the process."""
    api_key: str | None = field(default=None, repr=False)
    """The key; None: that of `auth`, else the caller's own is passed through."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The headers that are sent with every request."""
    api_version: str | None = None
    """The version of Azure's API: set for the deployments URL, None for `/openai/v1`."""
    transport: Literal["http1", "httpx"] = "http1"
    http2: bool = False
    proxy: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    ca_digest: str | None = None
    """The file's digest when it was loaded: another content makes another provider, with connections of its own."""
    max_connections: int = 1000
    idle_expiry_s: float = 60.0
    limits_are: LimitsAre = "account"
    """The owner of its limits, refusals and spent quotas, where callers bring their own credentials."""
    accepts_callers_of: tuple[str, ...] = field(default=(), compare=False)
    """Providers, by their names in the config, whose callers' own credentials it may be shown in a fallback."""
    group: str = ""
    """Its name in the config, which all its credentials share: `openai` of `openai#2`."""
    is_self_hosted: bool = False
    """It is of the operator's own house: it may know of the callers' traces."""
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Texts that none of its answers may repeat, besides `api_key`: credentials of its group, secret headers and the like."""
    speaks: tuple[str, ...] | None = field(default=None, compare=False)
    """The languages that it is declared to speak, such as `chat` and `responses`; None: its kind decides, or its answers."""
    auth: Hashable | None = None
    """The cloud's credential that it is called with, in place of a key."""
    is_stand_in: bool = False
    """The emulator answers in its place, because it has no credential and `emulate_without_key` is set."""
    learns_models: bool = False
    """Its list of models is asked for what it tells of them."""
    messages_url: str | None = None
    """The URL in place of `base_url` for Anthropic's Messages, at the same server; None: they are beside everything else."""

    @property
    def is_callers(self) -> bool:
        """Returns whether it is shown the caller's own credential, as the config has none for it."""
        return self.api_key is None and self.auth is None


# --- models, and the targets that serve them ---


@dataclass(frozen=True, slots=True)
class Counting:
    """How a target's provider counts against its limits, from `admission.yaml`."""

    kind: str = ""
    """The provider whose headers to expect, as `headers.provider_of` names it; empty: nobody's in particular."""
    charge: ChargeRule = "sum"
    excludes_cached: bool = False
    """Tokens read from the provider's cache do not count."""
    style: Style = CONTINUOUS
    learns: bool = True
    """Correct the limits from the headers of its answers, and search for a rate where nobody states one."""
    first_output_tokens: int = 512
    """The tokens that an answer is taken to cost before any was seen, where the caller sets no bound."""
    arrival_lag_s: float = 0.0
    """Seconds by which its counter may learn late of a first call: name, connection, TLS."""
    adaptive: bool = False
    """It queues without bound: keep it at the concurrency where its time to first byte begins to grow."""
    exact_tokens: Callable[[str], Callable[[str], int] | None] | None = field(default=None, repr=False, compare=False)
    """Finds a model's tokenizer by its name, where the `tokenizer` extra is installed and asked for."""


@dataclass(frozen=True, slots=True)
class Holding:
    """How calls of one model are held, from `queue.yaml`."""

    keepalive_after_s: float = 10.0
    """A stream that has waited so long is answered with comments from then on."""
    interim: int | None = None
    """The interim response that a call which is no stream gets as often: 102 or 103. None: none."""
    reserve_percent: float = 10.0
    """The part of each limit that is kept from the lanes below `interactive`."""
    prefer_primary_for_s: Mapping[Lane, float] = field(
        default_factory=lambda: {"critical": 2.0, "interactive": 2.0, "batch": 60.0, "background": 21600.0}
    )
    """Hold for the model's own targets so long before its fallbacks are used."""


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per token or other unit, at one time, of one model, for calls of the standard service tier."""

    input_usd: float
    output_usd: float
    cached_input_usd: float
    cache_write_usd: float | None = None
    """The price of input that the provider puts into its cache; None: as any other."""
    cache_write_1h_usd: float | None = None
    """The price of input that it puts there for an hour; None: as for shorter."""
    audio_input_usd: float | None = None
    """The price of input that is sound; None: as any other."""
    audio_output_usd: float | None = None
    """The price of output that is sound; None: as any other."""
    cached_audio_input_usd: float | None = None
    """The price of input that is sound and read from the provider's cache; None: as text from there."""
    image_input_usd: float | None = None
    image_output_usd: float | None = None
    cached_image_input_usd: float | None = None
    video_input_usd: float | None = None
    video_output_usd: float | None = None
    reasoning_usd: float | None = None
    """The price of output that is reasoning; None: as any other."""
    search_usd: float = 0.0
    """The price of one search of the web."""
    character_usd: float = 0.0
    """The price of one character that is spoken."""
    audio_second_usd: float = 0.0
    """The price of one second that is transcribed or spoken."""
    least_audio_s: float = 0.0
    """The least seconds of sound that are billed: shorter sound is billed as if it were so long."""
    image_usd: float = 0.0
    """The price of one picture that is made."""
    request_usd: float = 0.0
    """The price of one call, whatever it uses."""
    prices_tokens: bool = True
    """False: the model is sold by other units alone, and a call of which none is known has no price."""
    above: tuple[tuple[int, Rates], ...] = ()
    """The rates of all units for calls with more input tokens than the number; the largest number first."""
    by_tier: Mapping[str, Rates] = field(default_factory=dict)
    """The rates of other service tiers, by the words that answers name them with."""
    soon: Rates | None = None
    """The rates that will follow within minutes; None: these last longer."""

    def at(self, input_tokens: float, tier: str = "") -> Rates:
        """Returns the rates of a call with so much input that was processed at this tier."""
        rates = self.by_tier.get(tier, self) if tier else self
        for start, dearer in rates.above:
            if input_tokens > start:
                return dearer
        return rates


FindRates = Callable[[str], Rates | None]
"""Finds the rates of a model now, by the name that the provider knows; None: not priced."""
RatesAt = Callable[[float], tuple[Rates | None, float]]
"""Returns rates at a time, and until when they hold: seconds since the epoch, or inf."""
MAX_NAME_CHARS: Final = 200
"""Of a model's name that is looked up: a caller may send any."""


def no_rates(_model: str) -> Rates | None:
    """Nothing is priced."""
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """One place that can serve a model."""

    name: str
    """`provider/model`, stable over reloads; `provider/*` where the caller's own model name is used."""
    provider: str
    model: str | None
    """The provider's name for it; None: the name the client asked for."""
    upstream: Upstream = field(repr=False, compare=False)
    clocks: Clocks
    converters_by_path: Mapping[str, Upstream] = field(default_factory=dict, repr=False, compare=False)
    """The converters, by path, that put calls into another language for it; more may come up while it is in use."""
    on_unknown_path: Learn | None = field(default=None, repr=False, compare=False)
    """Called for a better answer when the target knows no such path; None: what it speaks is known."""
    gaps: Mapping[str, FindUnsupportedFields] = field(default_factory=dict, repr=False, compare=False)
    """Finds what a request would lose, by the endpoints whose calls are put into another language for this target."""
    limits: Limits = field(default_factory=Limits)
    counting: Counting = Counting()
    weight: float = 1.0
    order: int = 1
    """Its tier among the model's own targets: the lower one goes first."""
    capabilities: Capabilities = field(default_factory=Capabilities)
    account: str = ""
    """The account that pays: the provider's name and, where it has several credentials, the credential's number; empty: the
    caller's own."""
    breaker: BreakerRules = field(default_factory=BreakerRules)
    errors: ErrorTable = field(default_factory=ErrorTable, repr=False)
    """The meaning of its error answers."""
    thinks: bool = False
    """Its model thinks before it answers, whoever asks for it: minutes without a word are usual."""
    clocks_by: Mapping[tuple[str, Lane], Clocks] = field(default_factory=dict, repr=False)
    """The clocks by endpoint and lane, where they differ from `clocks`."""
    edits: BodyEdits | None = None
    """The changes in the bodies of its calls; None: nothing."""
    strip: str = ""
    """The text that is taken off the front of the name that the client asked for, where the target has no model of its own."""
    find_most_input: Callable[[str], int | None] | None = field(default=None, repr=False, compare=False)
    """How many tokens a model reads, by the provider's name for it; None: nobody knows. A declared window goes before it."""
    find_rates: FindRates = field(default=no_rates, repr=False, compare=False)
    """The price of a model at this target's provider. Remembers."""


OnLoss = Literal["report", "refuse", "approximate"]
"""A call for which a target's language has no words goes with a report; does not go there; or goes as what comes near."""


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of `models:`: a name or an `fnmatch` pattern, and where its calls may go."""

    name: str
    targets: tuple[Target, ...]
    plan: tuple[Target, ...]
    """Its own targets, then those of its fallbacks, each once."""
    holding: Holding = Holding()
    fallbacks: tuple[str, ...] = ()
    context_fallbacks: tuple[str, ...] = ()
    context_plan: tuple[Target, ...] = ()
    """The targets of its context fallbacks, in order."""
    choice: Choice = "in_order"
    """How one of its own targets is chosen."""
    retries: Retries = field(default_factory=Retries)
    on_loss: OnLoss = "report"
    prefers_native: bool = True
    """Within one tier, targets that speak the caller's language go before those that a call is converted for."""
    remembers_thinking: bool = True
    """Keep what its answers are signed with for callers that do not send it back."""
    include_usage: bool = True
    """Ask providers for usage in streams even when the caller did not."""
    model_for_caller_credentials: Model | None = None
    """The model that calls with a credential of their own use instead; None: theirs may go to every target of the plan."""
    without_caller_credential: frozenset[str] = frozenset()
    """Names of targets, of the operator's own house, that are called without the caller's credential."""
    skipped: str = ""
    """A sentence on the targets that are left out, for errors of ours; empty: none are."""
    credentials_of: str = ""
    """The provider that the callers' credentials are taken to be of, where some target must not see them."""
    answered_by: str = ""
    """What answers its calls where it has no targets, with its article, such as `a pipeline`; empty: its targets do."""
    settings: Mapping[Setting[Any], Any] = field(default_factory=dict, repr=False, hash=False)
    """What products have compiled of its part of the config, without what is as usual."""
    tiers: Tiers[Target] = field(init=False, repr=False, compare=False)
    """Its own targets, ready to be arranged."""
    others: tuple[Target, ...] = field(init=False, repr=False)
    """The targets of its fallbacks."""
    restricts: bool = field(init=False, repr=False)
    """Some target of the plan cannot do everything."""
    converted: frozenset[str] = field(init=False, repr=False)
    """The endpoints whose calls are put into another language for some target of the plan."""
    preferred: Mapping[str, tuple[Target, ...]] = field(init=False, repr=False)
    """Its own targets by such an endpoint, as its calls prefer them: of one `order`, those without a conversion first."""
    nameless: frozenset[str] = field(init=False, repr=False)
    """Names of which nothing is left for some target of the plan: there is no such model."""

    def rank_for(self, endpoint: str) -> Callable[[Target], tuple[int, bool]]:
        """Returns the tier of a target among its own, for calls to this endpoint."""
        prefers = self.prefers_native
        return lambda target: (target.order, prefers and endpoint in target.gaps)

    def __post_init__(self) -> None:
        converted = frozenset(name for target in (*self.plan, *self.context_plan) for name in target.gaps)
        derived = {
            "tiers": Tiers(self.targets),
            "others": tuple(target for target in self.plan if target not in self.targets),
            "restricts": any(target.capabilities.is_restricted for target in (*self.plan, *self.context_plan)),
            "nameless": frozenset(
                target.strip for target in (*self.plan, *self.context_plan) if target.strip and target.model is None
            ),
            "converted": converted,
            "preferred": {name: tuple(sorted(self.targets, key=self.rank_for(name))) for name in converted},
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)


# --- keys, and all of it together ---

FallbackUse = Literal["any", "allowed"]
"""A key's calls use every fallback of their models; or those only that its `models` allow."""


@dataclass(frozen=True, slots=True)
class Key:
    """A caller. `digest` is the SHA-256 of its secret; the secret itself is not kept."""

    name: str
    tenant: str
    digest: bytes = field(repr=False)
    lane: Lane = "interactive"
    is_lane_chosen: bool = False
    """True if the config names the lane, even if it is the usual one."""
    critical: bool = False
    """Its calls may ask for the lane `critical`."""
    names_tenants: bool = False
    """Its calls may name the tenant they are for, with `x-gateway-tenant`."""
    models: tuple[str, ...] = ("*",)
    allows: Pattern[str] | None = None
    """The pattern of the models it may use, compiled from `models`; None: every model."""
    fallbacks: FallbackUse = "any"
    """Whether its calls fall back to models that `allows` leaves out."""
    limits: Limits = field(default_factory=Limits)
    budget_usd_per_day: float | None = None
    allow_unpriced: bool = False
    """Where it has a budget, its calls may use endpoints that are passed through and have no price."""
    allow_overspend: bool = False
    """Where it has a budget, one call may cost more than is left, if it usually does not."""
    settings: Mapping[Setting[Any], Any] = field(default_factory=dict, repr=False, hash=False)
    """What products have compiled of its part of the config, without what is as usual."""


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """All of the config, compiled. `digest` names the content, `version` counts the swaps of this process."""

    version: int
    digest: str
    loaded_at: float
    """The time of loading (wall clock, seconds)."""
    files: tuple[str, ...]
    """The files it was read from, for `/admin/config`."""
    server: Server
    providers: Mapping[str, Provider]
    models: Mapping[str, Model]
    """The models by exact name, patterns not among them."""
    patterns: tuple[tuple[Pattern[str], Model], ...]
    """The models by pattern, the longest pattern first."""
    keys: Mapping[bytes, Key] = field(repr=False)
    """The keys by SHA-256 digest of the secret; empty: everybody is `anonymous`."""
    anonymous: Key
    lane_deadline_s: Mapping[Lane, float]
    """For every lane. Calls for which nobody has chosen a lane wait for as long as their clients do, if `waits_as_clients`."""
    waits_as_clients: bool = True
    """False if queue.yaml names the deadline of `interactive`, which then holds for all calls of that lane."""
    queue: QueueBounds = field(default_factory=QueueBounds)
    state: str = "memory"
    """The place where what outlives a call is kept: `memory`, `sqlite:///path`, or `redis`; fixed at start."""
    shared: SharedState | None = None
    """The Redis that replicas share, where `state` is `redis`."""
    store: StoreBounds = field(default_factory=lambda: StoreBounds({}, 256 * 1024 * 1024))
    """The bounds of the store."""
    passthrough: Target | None = None
    """The target that the other endpoints go to."""
    passthrough_admin: bool = False
    """Endpoints that manage the account are passed through, too."""
    settings: Mapping[Setting[Any], Any] = field(default_factory=dict, repr=False, hash=False)
    """What products have compiled of the config, without what is as usual."""
    extra_models: Mapping[str, Callable[[PolicySnapshot, str], Model | None]] = field(default_factory=dict, repr=False)
    """Finds the models that are no entry of the config, by the beginning of their names; no pattern is asked for these."""
    extra_names: tuple[str, ...] = field(default=(), repr=False)
    """The names of these models, as they are listed behind those of the config."""
    sections: tuple[DescribesSettings, ...] = field(default=(), repr=False, compare=False)
    """What shows the settings where the snapshot is shown."""
    notices: tuple[str, ...] = ()
    """Notices about what is accepted, but worth a word at start."""
    emulated: tuple[str, ...] = ()
    """The providers in whose place the emulator answers callers of other machines: the gateway is not ready then."""

    def find_key(self, secret: bytes) -> Key | None:
        """The key with this secret, compared in constant time; None when there is none."""
        digest = sha256(secret).digest()
        key = self.keys.get(digest)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None

    def find_model(self, name: str) -> Model | None:
        """The entry for this name: the exact one, else the longest matching pattern."""
        model = self.models.get(name)
        if model is not None:
            return model
        for prefix, find in self.extra_models.items():
            if name.startswith(prefix):  # then no pattern is asked: a name that is misspelt is no model
                return find(self, name)
        return next((model for pattern, model in self.patterns if pattern.match(name)), None)


HolderT = TypeVar("HolderT", bound=Model | Key | PolicySnapshot)


def with_settings(holder: HolderT, values: Mapping[Setting[Any], Any]) -> HolderT:
    """Returns the holder with these values; what is the default of its setting leaves no entry, so that equals are equal."""
    settings = {setting: value for setting, value in {**holder.settings, **values}.items() if value != setting.default}
    return replace(holder, settings=settings)


class Policies:
    """Holds the snapshot in force; a swap is one assignment, and a call keeps the one it came in with."""

    __slots__ = ("current",)

    def __init__(self, first: PolicySnapshot) -> None:
        self.current = first


READS_FORMS: Final[Setting[bool]] = Setting("reads_forms", False)
"""On the snapshot: a product reads the forms of requests that are passed through, so none is relayed piece by piece."""
CHECKS_ANSWERS: Final[Setting[bool]] = Setting("checks_answers", False)
"""On a model: a product checks the texts of its answers, call by call: they are not to be had but by calls."""

# --- what a key makes of a model ---


def for_key(policy: PolicySnapshot, key: Key, model: Model) -> Model:
    """Returns the model without the fallbacks that the key may not use, if its `fallbacks` are the allowed ones."""
    allows = key.allows
    if allows is None or key.fallbacks == "any":
        return model
    followed = followed_models(model, {**policy.models, **{one.name: one for _, one in policy.patterns}})
    kept = [model, *(one for name, one in followed.items() if allows.match(name))]
    names = frozenset(target.name for one in kept for target in one.targets)
    if names.issuperset(target.name for target in (*model.plan, *model.context_plan)):
        return model
    left_out = ", ".join(name for name in followed if not allows.match(name))
    bound = model.model_for_caller_credentials
    reduced = _only(model, names, left_out)
    return reduced if bound is None else replace(reduced, model_for_caller_credentials=_only(bound, names, left_out))


def followed_models(model: Model, models: Mapping[str, Model]) -> dict[str, Model]:
    """Returns the models that calls of a model may fall back to, by their names; `models` are all entries of the config."""
    followed: dict[str, Model] = {}
    ahead = [*model.fallbacks, *model.context_fallbacks]
    while ahead:
        name = ahead.pop(0)
        if name != model.name and name not in followed:
            followed[name] = models[name]
            ahead += (*models[name].fallbacks, *models[name].context_fallbacks)
    return followed


def _only(model: Model, names: frozenset[str], left_out: str) -> Model:
    return replace(
        model,
        plan=tuple(target for target in model.plan if target.name in names),
        context_plan=tuple(target for target in model.context_plan if target.name in names),
        skipped=f"{model.skipped} The key may not fall back to {left_out}.",
    )
