"""Reads `webhooks`: the endpoints that hear of the ends of jobs."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config.reading.check import check
from gateway.config.reading.fields import Names, Text, real_secret, said, split_url
from gateway.config.reading.problems import Document, Path, did_you_mean
from gateway.config.schema import ConfigFile, Entry
from gateway.policy.jobs.rules import JobSettings
from gateway.policy.snapshot import Key
from gateway.policy.webhooks.events import EVENTS
from gateway.policy.webhooks.rules import WebhookRules, Webhooks

MIN_SECRET_BYTES: Final = 24
MOST_NAME_CHARS: Final = 64
_PREFIX: Final = "whsec_"
_ANONYMOUS: Final = "anonymous"
_REMEDY: Final = 'make one with: echo "whsec_$(openssl rand -base64 32)"'


def _hook_url(url: str) -> str:
    parts = split_url(url, ("http", "https"))
    if parts.username is not None or parts.password is not None:
        raise said("must not carry a user or password: receivers check the signature")
    if "#" in url:
        raise said("must not have a fragment")
    return url


def _hook_secret(secret: object) -> object:
    """Returns the bytes of the key: what `whsec_` stands before is base64, everything else is taken as it is."""
    if not isinstance(secret, str):
        return secret
    key = _decoded(secret.removeprefix(_PREFIX)) if secret.startswith(_PREFIX) else real_secret(secret).encode()
    if len(key) < MIN_SECRET_BYTES:
        raise said(f"is too short to be a secret: at least {MIN_SECRET_BYTES} bytes; {_REMEDY}")
    return key


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise said(f"is not base64 after whsec_; {_REMEDY}") from None


def _one_or_two(secrets: list[bytes]) -> list[bytes]:
    if len(secrets) > 2:
        raise said("takes one secret, or two while receivers change from one to the other")
    if len(set(secrets)) < len(secrets):
        raise said("has the same secret twice")
    return secrets


HookUrl = Annotated[str, AfterValidator(_hook_url)]
HookSecret = Annotated[bytes, BeforeValidator(_hook_secret)]
HookSecrets = Annotated[list[HookSecret], Field(min_length=1), AfterValidator(_one_or_two)]


class WebhookEntry(Entry):
    """One entry of `webhooks:`."""

    url: HookUrl = Field(repr=False)
    secrets: HookSecrets = Field(repr=False)
    events: Names = Field(default=["*"])
    tenants: list[Text] = Field(default=[])


def webhook_section(document: Document, config: ConfigFile, keys: Iterable[Key]) -> Webhooks:
    """Returns the endpoints by name; notes the section's problems."""
    keys = tuple(keys)
    found: dict[str, WebhookRules] = {}
    for name in config.webhooks:
        path: Path = ("webhooks", name)
        if not name.isascii() or not name.isprintable() or not 0 < len(name) <= MOST_NAME_CHARS:
            document.complain(
                path, f"its name goes into metrics: it must be printable ASCII, at most {MOST_NAME_CHARS} characters"
            )
            continue
        entry = check(WebhookEntry, document, path)
        if entry is None:
            continue
        _check_events(document, path, entry.events)
        _check_tenants(document, path, entry.tenants, keys)
        parts = urlsplit(entry.url)
        found[name] = WebhookRules(
            name=name,
            origin=f"{parts.scheme}://{parts.netloc}",
            url=entry.url,
            secrets=tuple(entry.secrets),
            events=tuple(entry.events),
            tenants=tuple(entry.tenants),
        )
    return found


def webhook_notices(webhooks: Webhooks, jobs: JobSettings) -> Iterator[str]:
    """Yields what is worth a word at start."""
    if webhooks and not jobs.store:
        yield "webhooks tell of jobs, and there are none here: `jobs: {store: sqlite:///jobs.db}` turns them on"
    for rules in webhooks.values():
        if rules.url.startswith("http://"):
            yield f"webhooks.{rules.name}: its events go over the wire in the clear: use https"


def _check_events(document: Document, path: Path, events: Iterable[str]) -> None:
    for index, pattern in enumerate(events):
        if not any(fnmatchcase(event, pattern) for event in EVENTS):
            document.complain(
                (*path, "events", index),
                f"{document.show((*path, 'events', index), pattern)} fits no event{did_you_mean(pattern, EVENTS)}",
            )


def _check_tenants(document: Document, path: Path, tenants: Iterable[str], keys: Collection[Key]) -> None:
    known = {key.tenant for key in keys} or {_ANONYMOUS}
    named = [key.tenant for key in keys if key.names_tenants]
    for index, tenant in enumerate(tenants):
        if tenant not in known and not any(tenant.startswith(f"{one}/") for one in named):
            here = (*path, "tenants", index)
            shown = document.show(here, tenant)
            document.complain(here, f"no key has the tenant {shown}{did_you_mean(tenant, sorted(known))}")
