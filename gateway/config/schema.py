"""The shape of every entry a user writes: strict, unknown fields refused, each entry checked on its own.

Entries are flat on purpose: `check` drops a bad field and goes on, so one mistake does not hide the next. What entries
say about each other is not known here. Invariant: no message repeats the value of a field that may hold a secret.
"""

from __future__ import annotations

import ipaddress
import re
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from gateway.call import Lane
from gateway.config.env import EnvText
from gateway.config.problems import Document, Path, did_you_mean, kind_of, quoted
from gateway.config.units import parse_duration, parse_size

MIN_SECRET_CHARS = 16
EMULATOR = "emulator://"

_CREDENTIAL_HEADERS = frozenset({"authorization", "api-key"})
_FRAMING_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")


def _said(message: str) -> PydanticCustomError:
    """A problem in its own words, without the value."""
    return PydanticCustomError("said", "{message}", {"message": message})


def _about_value(message: str) -> PydanticCustomError:
    """A problem whose sentence begins with the value: never for a field that may hold a secret."""
    return PydanticCustomError("about_value", "{message}", {"message": message})


# --- fields ---


def _number(value: object) -> object:
    if isinstance(value, EnvText) and _WHOLE_NUMBER.fullmatch(value):
        return int(value)
    return float(value) if isinstance(value, EnvText) and _NUMBER.fullmatch(value) else value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, EnvText) else value


def _duration(value: object) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise _about_value(str(error)) from None


def _positive_duration(value: object) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise _about_value("must be longer than nothing")
    return seconds


def _size(value: object) -> int:
    try:
        size = parse_size(value)
    except ValueError as error:
        raise _about_value(str(error)) from None
    if size == 0:
        raise _about_value("must be more than nothing")
    return size


def _only_memory(value: str) -> str:
    if value != "memory":
        raise _said('only "memory" exists in this version')  # a redis URL may carry a password: it is not shown
    return value


def _header_safe(text: str) -> str:
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise _said("must be printable ASCII without spaces; is there a line break at its end?")
    return text


def _api_key(text: str | None) -> str | None:
    return _header_safe(text) if text else None


def _digest(value: object) -> object:
    """The SHA-256 of a caller's secret, which may be given as such."""
    if not isinstance(value, str):
        return value
    if value.startswith("sha256:"):
        if not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", value):
            raise _said("sha256: must be followed by 64 hexadecimal digits")
        return bytes.fromhex(value[7:])
    if len(_header_safe(value)) < MIN_SECRET_CHARS:
        raise _said(f"is too short to be a secret: at least {MIN_SECRET_CHARS} characters")
    return sha256(value.encode()).digest()


def _split_url(url: str, schemes: tuple[str, ...]) -> SplitResult:
    """The parts of a URL; raises when it is not one of these schemes with a host and nothing odd in it."""
    choice = ", ".join(f"{scheme}://" for scheme in schemes)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise _said("holds characters that a URL cannot have")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # reading it is what checks it
    except ValueError:
        raise _said("is not a valid URL") from None
    if parts.scheme not in schemes or "://" not in url:
        raise _said(f"must begin with {choice}")
    if not parts.hostname:
        raise _said("has no host")
    return parts


def _base_url(url: str) -> str:
    if url.startswith(EMULATOR):
        if not re.fullmatch(r"emulator://[A-Za-z0-9_-]+", url.rstrip("/")):
            raise _said("must be emulator://NAME, with a name of letters, digits, - and _")
        return url.rstrip("/")
    parts = _split_url(url, ("http", "https", "emulator"))
    if parts.username is not None or parts.password is not None:
        raise _said("must not carry a user or password: use api_key or headers")
    if "?" in url or "#" in url:
        raise _said("must not have a query or fragment")
    return url.rstrip("/")


def _proxy_url(url: str | None) -> str | None:
    if url is not None:
        _split_url(url, ("http", "https", "socks5", "socks5h"))
    return url


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Those with a value. Names are compared without case."""
    seen = set()
    for name, value in headers.items():
        low, shown = name.lower(), quoted(name)
        if not _HEADER_NAME.fullmatch(name):
            raise _said(f"{shown} is not a header name")
        if low in _CREDENTIAL_HEADERS:
            raise _said(f"{shown} is set by the gateway itself: use api_key")
        if low in _FRAMING_HEADERS:
            raise _said(f"{shown} is set by the gateway itself")
        if low in seen:
            raise _said(f"{shown} is here twice")
        if not value.isascii() or not value.replace("\t", "").isprintable():
            raise _said(f"the value of {shown} must be printable ASCII; is there a line break at its end?")
        seen.add(low)
    return {name: value for name, value in headers.items() if value}


def _listen(value: object) -> object:
    """`host:port`, IPv6 in brackets."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]+):([0-9]{1,5})", value)
    if match is None or int(match[2]) > 65535:
        raise _about_value("is not an address: write for example 127.0.0.1:9090")
    return match[1].strip("[]"), int(match[2])


def is_loopback(host: str) -> bool:
    """Only this machine can reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


Text = Annotated[str, Field(min_length=1)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1, le=10**9)]
Amount = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1e15, allow_inf_nan=False)]
Usd = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1e9, allow_inf_nan=False)]
Port = Annotated[int, BeforeValidator(_number), Field(ge=0, le=65535)]
Duration = Annotated[float, BeforeValidator(_duration)]
PositiveDuration = Annotated[float, BeforeValidator(_positive_duration)]
Size = Annotated[int, BeforeValidator(_size)]
CallerDigest = Annotated[bytes, BeforeValidator(_digest)]
Names = Annotated[list[Text], Field(min_length=1)]
Mapping = dict[str, Any]


# --- entries ---


class Entry(BaseModel):
    """What all entries share: an empty value, or an empty variable, is the same as none."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)
    stand_ins: ClassVar[Mapping] = {}
    """For required fields that are bad or missing, so that what else the entry says can still be checked."""

    @model_validator(mode="before")
    @classmethod
    def _tidy(cls, data: object) -> object:
        data = cls.spelled_out(data)
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None and not (isinstance(v, EnvText) and v == "")}

    @classmethod
    def spelled_out(cls, data: object) -> object:
        """The entry in full, where it has a short form."""
        return data


class ConfigFile(Entry):
    """config.yaml; what is inside the sections is checked entry by entry."""

    server: Mapping = {}
    admin: Mapping = {}
    state: Annotated[str, AfterValidator(_only_memory)] = "memory"
    policies: Text | None = None
    providers: Mapping = {}
    models: Mapping = {}
    passthrough: Text | None = None
    keys: list[Any] = []


class ServerEntry(Entry):
    host: Text = "127.0.0.1"
    port: Port = 8080
    max_body: Size = 20_000_000
    body_timeout: PositiveDuration = 60.0
    grace: Duration = 30.0


class AdminEntry(Entry):
    key: CallerDigest | None = Field(default=None, repr=False)
    listen: Annotated[tuple[str, int], BeforeValidator(_listen)] | None = None


class ProviderEntry(Entry):
    stand_ins: ClassVar[Mapping] = {"dialect": "azure", "base_url": "emulator://none"}

    dialect: Literal["openai", "azure"]
    base_url: Annotated[str, AfterValidator(_base_url)]
    api_key: Annotated[str | None, AfterValidator(_api_key)] = Field(default=None, repr=False)
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = Field(default={}, repr=False)
    api_version: Text | None = None
    transport: Literal["http1", "httpx"] = "http1"
    http2: Flag = False
    proxy: Annotated[str | None, AfterValidator(_proxy_url)] = Field(default=None, repr=False)
    ca_file: Text | None = None
    max_connections: Count = 1000
    idle_expiry: Duration = 60.0
    emulate_without_key: Flag = False


class PriceEntry(Entry):
    """US dollars per million tokens."""

    input_usd_per_million: Usd
    output_usd_per_million: Usd = 0.0
    cached_input_usd_per_million: Usd | None = None


class LimitedEntry(Entry):
    """What a target or a key may use."""

    rpm: Amount | None = None
    tpm: Amount | None = None
    rpd: Amount | None = None
    max_concurrency: Count | None = None


class TargetEntry(LimitedEntry):
    provider: Text
    model: Text | None = None
    weight: Amount = 1.0
    price: Mapping | None = None

    @classmethod
    def spelled_out(cls, data: object) -> object:
        """`openai/gpt-4o`: a provider and what it calls the model."""
        if not isinstance(data, str):
            return data
        provider, _, model = data.partition("/")
        return {"provider": provider, "model": model or None}


class ModelEntry(Entry):
    stand_ins: ClassVar[Mapping] = {"targets": [None]}

    targets: Annotated[list[Any], Field(min_length=1)]
    fallbacks: list[Text] = []
    context_fallbacks: list[Text] = []
    admission: Text = "default"
    timeouts: Text = "default"


class KeyEntry(LimitedEntry):
    name: Text
    key: CallerDigest = Field(repr=False)
    tenant: Text | None = None
    lane: Lane = "interactive"
    models: Names = ["*"]
    budget_usd_per_day: Amount | None = None


class AdmissionSet(Entry):
    """A set of admission.yaml. Keep the defaults of this and the next in step with the files in policies/."""

    include_usage: Flag = True


class TimeoutsSet(Entry):
    """A set of timeouts.yaml."""

    connect: PositiveDuration = 5.0
    write: PositiveDuration = 60.0
    first_byte: PositiveDuration = 600.0
    idle: PositiveDuration = 300.0
    total: PositiveDuration = 3600.0


class QueueSet(Entry):
    """A set of queue.yaml."""

    lanes: Mapping = {}


class LaneEntries(Entry):
    interactive: Mapping = {}
    batch: Mapping = {}
    background: Mapping = {}


class LaneEntry(Entry):
    deadline: PositiveDuration | None = None


# --- checking ---

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
}
_BOUNDS = {
    "missing": "is missing",
    "too_short": "needs at least one entry",
    "string_too_short": "must not be empty",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}


def check(kind: type[EntryT], document: Document, path: Path) -> EntryT | None:
    """The entry at this path, without its bad fields: those are noted. None when too little remains."""
    data = document.at(path)
    data = {} if data is None else data
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    for detail in details:
        _report(kind, document, path, detail)
    bad = {detail["loc"][0] for detail in details if detail["loc"]}
    if not isinstance(data, dict) or not bad:
        return None
    good = {name: value for name, value in data.items() if name not in bad and value is not None}
    try:
        return kind.model_validate({**kind.stand_ins, **good})
    except ValidationError:
        return None


def _report(kind: type[Entry], document: Document, path: Path, detail: ErrorDetails) -> None:
    here = (*path, *(step for step in detail["loc"] if step != "[key]"))
    if detail["type"] == "extra_forbidden":
        document.complain(here, f"unknown field{did_you_mean(here[-1], kind.model_fields)}")
    else:
        document.complain(here, _in_words(detail, document.show(here, detail["input"])))


def _in_words(detail: ErrorDetails, shown: str) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "said":
        return str(context["message"])
    if kind == "about_value":
        return f"{shown} {context['message']}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        known = "" if shown.startswith("the value") else did_you_mean(detail["input"], choices)
        return f"{shown} is not one of {', '.join(choices)}{known if 'did you' in known else ''}"
    if kind in _WANTED:
        quote = "; quote it" if _WANTED[kind].startswith("text") and _is_scalar(detail["input"]) else ""
        return f"expected {_WANTED[kind]}, not {kind_of(detail['input'])}{quote}"
    return _BOUNDS.get(kind, "cannot be used ({type})").format(**{**context, "type": kind})


def _is_scalar(value: object) -> bool:
    return isinstance(value, (bool, int, float))
