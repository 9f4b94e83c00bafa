"""Variables in a document, and the types of single fields: how a value is read, and the message for a bad one.

First `substitute`, then the types, by the kind of value: durations and sizes, names, secrets, URLs, addresses.
Reading is strict: a number in quotes is no number, unless it came from a variable; a duration or size has a unit, because a
later reader would have to guess that of a bare number. Invariant: no message repeats the value of a field that may hold a
secret.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from gateway.core.config.source import Document, Path, quoted
from gateway.core.types import EMULATOR

# --- environment variables: `${VAR}`, `${VAR:-default}`, `os.environ/VAR`, `env.VAR` ---


_REFERENCE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|(?P<odd>\{))")
_WHOLE_VALUE = re.compile(r"(?:os\.environ/|env\.)(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


class EnvText(str):
    """Text from a variable; fields that take numbers read its digits, because a variable has no type."""

    __slots__ = ()


def substitute(document: Document, environ: Mapping[str, str]) -> Document:
    """Returns the document with its variables filled in; a missing variable becomes None and a problem.

    `${}` works anywhere in a text, the other two only as the whole value; `$$` is a dollar. The value of a variable is
    data: it is never read as YAML or substituted again. Invariant: a value that cannot be resolved is a problem that names
    the variable, and nothing else.
    """
    pass_ = _Pass(document, environ)
    data = pass_.resolve(document.data, ())
    return replace(document, data=data, origins=pass_.origins, broken=frozenset(pass_.broken))


class _Pass:
    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ
        self.origins: dict[Path, str] = {}
        self.broken: set[Path] = set()

    def resolve(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {name: self.resolve(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item, (*path, index)) for index, item in enumerate(value)]
        return self._text(value, path) if isinstance(value, str) else value

    def _text(self, text: str, path: Path) -> str | None:
        whole = _WHOLE_VALUE.fullmatch(text)
        if whole is not None:
            text = f"${{{whole['name']}}}"
        if "$" not in text:
            return text
        references = [match for match in _REFERENCE.finditer(text) if not match["dollar"]]
        resolved = [self._lookup(match, path) for match in references]
        if None in resolved:
            self.broken.add(path)
            return None
        found = iter(resolved)
        filled = _REFERENCE.sub(lambda match: "$" if match["dollar"] else next(found) or "", text)
        if not references:
            return filled
        if not any(self._takes_default(match) and match["default"] != ":-" for match in references):
            self.origins[path] = whole[0] if whole else " and ".join(f"${{{match['name']}}}" for match in references)
        return EnvText(filled)

    def _lookup(self, match: re.Match[str], path: Path) -> str | None:
        if "${" in (match["default"] or ""):
            problem = f"the default of ${{{match['name']}}} cannot hold another variable; write it out, or set {match['name']}"
            self._document.complain(path, problem)
            return None
        if match["odd"]:
            self._document.complain(path, "`${` needs a variable's name and a `}`; write `$${` for the characters")
            return None
        if self._takes_default(match):
            return str(match["default"][2:])
        value = self._environ.get(match["name"])
        if value is None:
            self._document.complain(path, f"the environment variable {match['name']} is not set")
        return value

    def _takes_default(self, match: re.Match[str]) -> bool:
        """Returns whether the default is used: as in a shell, for a variable that is unset or empty."""
        return match["default"] is not None and not self._environ.get(match["name"])


MIN_SECRET_CHARS = 16

_CREDENTIAL_HEADERS = frozenset({"authorization", "api-key"})
_FRAMING_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection"})
_PLACEHOLDER = re.compile(
    r"(?i:sk-)?(?:(?i:replace|change)[-_ ]?(?i:me)(?![A-Za-z])|(?i:your[-_ ](?:\w+[-_ ])?key)|<)|(?i:sk-)?(.)\1{7,}\Z"
)
"""Matches placeholders of secrets in example files: well-known phrases, or one repeated character."""
_UNFILLED = re.compile(
    r"\$[A-Z_][A-Z0-9_]*|%[A-Za-z_][A-Za-z0-9_]*%|.*(?:\$\{|\$\(|\{\{).*|(?:os\.environ/|env\.[A-Z_]+\Z).*", re.DOTALL
)
"""Matches the name of a value that some tool was to fill in: a shell, systemd, Helm, Jinja, Windows."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_FACTOR = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?")
_BARE_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MAX_DURATION_S = 366 * 86400.0
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(B|kB|MB|GB|KiB|MiB|GiB)", re.IGNORECASE)
_BYTES: Final = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
MAX_SIZE_BYTES = 2**40


def parse_duration(text: object) -> float:
    """Returns seconds. Raises ValueError, whose message continues a sentence that begins with the value."""
    match = _DURATION.fullmatch(str(text))
    if match is None:
        what = "has no unit" if _BARE_NUMBER.fullmatch(str(text)) else "is not a duration"
        raise ValueError(f"{what}: write for example 300ms, 30s, 5m, 6h or 1d")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds > MAX_DURATION_S:
        raise ValueError("is too long: at most 366d")
    return seconds


def parse_size(text: object) -> int:
    """Returns bytes. Raises ValueError, whose message continues a sentence that begins with the value."""
    match = _SIZE.fullmatch(str(text))
    if match is None:
        what = "has no unit" if _BARE_NUMBER.fullmatch(str(text)) else "is not a size"
        raise ValueError(f"{what}: write for example 500kB, 20MB or 512MiB")
    size = int(float(match[1]) * _BYTES[match[2].lower()])
    if size > MAX_SIZE_BYTES:
        raise ValueError("is too large: at most 1024GiB")
    return size


def problem_of(message: str) -> PydanticCustomError:
    """Returns a problem whose message does not show the value."""
    return PydanticCustomError("said", "{message}", {"message": message})


def refused(message: str) -> Any:
    """Returns the type of a field that is a problem wherever it stands, whatever its value."""

    def refuse(_value: object) -> object:
        raise problem_of(message)

    return Annotated[Any, BeforeValidator(refuse)]


def problem_about_value(message: str) -> PydanticCustomError:
    """Returns a problem whose message begins with the value: never for a field that may hold a secret."""
    return PydanticCustomError("about_value", "{message}", {"message": message})


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
        raise problem_about_value(str(error)) from None


def _positive_duration(value: object) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise problem_about_value("must be longer than nothing")
    return seconds


def _size(value: object) -> int:
    try:
        size = parse_size(value)
    except ValueError as error:
        raise problem_about_value(str(error)) from None
    if size == 0:
        raise problem_about_value("must be more than nothing")
    return size


def _first_event(value: object) -> float | None:
    return None if value == "auto" else _positive_duration(value)


def _section_or_off(value: object) -> object:
    value = accept_off(value)
    if value != "off" and not isinstance(value, dict):
        raise problem_about_value("is neither a mapping nor `off`")
    return value


def _times(value: object) -> float:
    """Reads a factor such as `4x`."""
    text = str(value)
    if not text.endswith("x") or not _FACTOR.fullmatch(text[:-1]) or not 1 <= float(text[:-1]) <= 1000:
        raise problem_about_value("is not so many times what is usual: write for example 4x, at least 1x")
    return float(text[:-1])


def _fail_closed(value: object) -> object:
    value = _flag(value)
    if not isinstance(value, (bool, list)):
        raise PydanticCustomError("flag_or_list", "")
    return value


def accept_off(value: object) -> object:
    """Accepts false for `off`, as which YAML reads a bare `off`."""
    return "off" if value is False else value


def _interim(value: object) -> object:
    return str(value) if type(value) is int else accept_off(value)


def _header_safe(text: str) -> str:
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise problem_of("must be printable ASCII without spaces; is there a line break at its end?")
    return text


def real_secret(text: str) -> str:
    """Returns the text; raises for the placeholder of a secret, and for the name of a variable in its place."""
    refuse_unfilled(text)
    if _PLACEHOLDER.match(text):
        raise problem_of(
            "is a placeholder, which anybody could guess: put a real secret in its place (openssl rand -hex 24 makes one)"
        )
    return text


def refuse_unfilled(text: str) -> None:
    """Raises where the text names a variable that nobody has put the value of in its place."""
    if _UNFILLED.fullmatch(text):
        raise problem_of(
            "is the name of a variable, not its value: write ${NAME} for a variable of the environment, and set it"
        )


def is_label(text: str) -> bool:
    """Returns whether the text can go into a header, a metric and a log line as it is."""
    return bool(text) and text.isascii() and text.isprintable()


def is_pattern(name: str) -> bool:
    """Returns whether `fnmatch` treats the name as a pattern."""
    return any(c in name for c in "*?[")


def _label(text: str) -> str:
    if not is_label(text):
        raise problem_of("must be printable ASCII, for it goes into headers and metrics")
    return text


def _api_key(text: str | None) -> str | None:
    return _header_safe(real_secret(text)) if text else None


def _two_or_more(keys: list[str | None]) -> list[str | None]:
    if len(keys) < 2:
        raise problem_of("needs two or more; write a single one as api_key")
    return keys


def _digest(value: object) -> object:
    """Returns the SHA-256 of a caller's secret; the field may also hold the digest itself."""
    if not isinstance(value, str):
        return value
    if value.startswith("sha256:"):
        if not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", value):
            raise problem_of("sha256: must be followed by 64 hexadecimal digits")
        return bytes.fromhex(value[7:])
    refuse_unfilled(value)
    if len(_header_safe(value)) < MIN_SECRET_CHARS:
        raise problem_of(f"is too short to be a secret: at least {MIN_SECRET_CHARS} characters")
    return sha256(real_secret(value).encode()).digest()


def _attempts(number: int) -> int:
    if number < 1:
        raise problem_of("must be at least 1, for the first attempt is one of them")
    return number


def split_url(url: str, schemes: tuple[str, ...]) -> SplitResult:
    """Returns the parts of a URL; raises when it is not of these schemes, has no host, or holds odd characters."""
    choice = ", ".join(f"{scheme}://" for scheme in schemes)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise problem_of("holds characters that a URL cannot have")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # reading it is what checks it
    except ValueError:
        raise problem_of("is not a valid URL") from None
    if parts.scheme not in schemes or "://" not in url:
        raise problem_of(f"must begin with {choice}")
    if not parts.hostname:
        raise problem_of("has no host")
    return parts


def _base_url(url: str) -> str:
    if url.startswith(EMULATOR):
        if not re.fullmatch(r"emulator://[A-Za-z0-9_-]+", url.rstrip("/")):
            raise problem_of("must be emulator://NAME, with a name of letters, digits, - and _")
        return url.rstrip("/")
    parts = split_url(url, ("http", "https", "emulator"))
    if parts.username is not None or parts.password is not None:
        raise problem_of("must not carry a user or password: use api_key or headers")
    if "?" in url or "#" in url:
        raise problem_of("must not have a query or fragment")
    return url.rstrip("/")


def _proxy_url(url: str) -> str:
    split_url(url, ("http", "https", "socks5", "socks5h"))
    return url


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Returns the headers with a value; names are compared without case."""
    seen = set()
    for name, value in headers.items():
        low, shown = name.lower(), quoted(name)
        if not _HEADER_NAME.fullmatch(name):
            raise problem_of(f"{shown} is not a header name")
        if low in _CREDENTIAL_HEADERS:
            raise problem_of(f"{shown} is set by the gateway itself: use api_key")
        if low in _FRAMING_HEADERS:
            raise problem_of(f"{shown} is set by the gateway itself")
        if low in seen:
            raise problem_of(f"{shown} is here twice")
        if not value.isascii() or not value.replace("\t", "").isprintable():
            raise problem_of(f"the value of {shown} must be printable ASCII; is there a line break at its end?")
        if _UNFILLED.fullmatch(value):
            raise problem_of(
                f"the value of {shown} is the name of a variable; write ${{NAME}} for one of the environment"
            )
        seen.add(low)
    return {name: value for name, value in headers.items() if value}


def _listen(value: object) -> object:
    """Reads `host:port`, with IPv6 in brackets."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]]+):([0-9]{1,5})", value)
    if match is None or int(match[2]) > 65535:
        raise problem_about_value("is not an address: write for example 127.0.0.1:9090")
    return match[1].strip("[]"), int(match[2])


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


Text = Annotated[str, Field(min_length=1)]
Label = Annotated[str, Field(min_length=1), AfterValidator(_label)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1, le=10**9)]
Amount = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1e15, allow_inf_nan=False)]
Attempts = Annotated[int, BeforeValidator(_number), AfterValidator(_attempts), Field(le=100)]
Whole = Annotated[int, BeforeValidator(_number), Field(ge=0, le=10**9)]
Factor = Annotated[float, BeforeValidator(_number), Field(ge=1, le=1000, allow_inf_nan=False)]
Percentile = Annotated[float, BeforeValidator(_number), Field(ge=50, le=99.9)]
Tokens = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1e15, allow_inf_nan=False)]
Percent = Annotated[float, BeforeValidator(_number), Field(ge=0, le=100, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_number), Field(gt=0, le=100, allow_inf_nan=False)]
Usd = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1e9, allow_inf_nan=False)]
Port = Annotated[int, BeforeValidator(_number), Field(ge=0, le=65535)]
Duration = Annotated[float, BeforeValidator(_duration)]
PositiveDuration = Annotated[float, BeforeValidator(_positive_duration)]
FirstEvent = Annotated[float | None, BeforeValidator(_first_event)]
"""Seconds until the first event; None: `auto`."""
Times = Annotated[float, BeforeValidator(_times)]
Interim = Annotated[Literal["off", "102", "103"], BeforeValidator(_interim)]
SectionOrOff = Annotated[Any, BeforeValidator(_section_or_off)]
Size = Annotated[int, BeforeValidator(_size)]
CallerDigest = Annotated[bytes, BeforeValidator(_digest)]
Names = Annotated[list[Text], Field(min_length=1)]
Address = Annotated[tuple[str, int], BeforeValidator(_listen)]
FailClosed = Annotated[Any, BeforeValidator(_fail_closed)]
UpToOne = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1)]
BaseUrl = Annotated[str, AfterValidator(_base_url)]
ProxyUrl = Annotated[str, AfterValidator(_proxy_url)]
ApiKey = Annotated[str | None, AfterValidator(_api_key)]
ApiKeys = Annotated[list[ApiKey], AfterValidator(_two_or_more)]
Headers = Annotated[dict[str, str], AfterValidator(_headers)]
Section = dict[str, Any]
