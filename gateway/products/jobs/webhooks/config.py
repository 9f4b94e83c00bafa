"""Reads `webhooks`, the endpoints that hear of the ends of jobs, and `webhook_settings`, how what they hear leaves."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gateway.admin.describe import plain, without_password
from gateway.admin.describe import shown as shown_fields
from gateway.core.config.fields import Names, ProxyUrl, Section, Text, problem_of, split_url
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, Settings, placed_after
from gateway.core.config.schema import Entry, KeyEntry, check
from gateway.core.config.source import Document, Path, beside, did_you_mean
from gateway.core.snapshot import Key, PolicySnapshot, with_settings
from gateway.drivers.durability import JobSettings
from gateway.products.jobs.request import WEBHOOK_SECRETS
from gateway.products.jobs.rules import JOBS, JobRules
from gateway.products.jobs.webhooks.rules import (
    EVENTS,
    REQUESTED,
    WEBHOOK_SETTINGS,
    WEBHOOKS,
    WebhookRules,
    Webhooks,
    WebhookSettings,
)
from gateway.products.jobs.webhooks.secrets_config import HookSecrets

MOST_NAME_CHARS: Final = 64
_ANONYMOUS: Final = "anonymous"


def _hook_url(url: str) -> str:
    parts = split_url(url, ("http", "https"))
    if parts.username is not None or parts.password is not None:
        raise problem_of("must not carry a user or password: receivers check the signature")
    if "#" in url:
        raise problem_of("must not have a fragment")
    return url


HookUrl = Annotated[str, AfterValidator(_hook_url)]


class WebhookSettingsEntry(Entry):
    """The section `webhook_settings:`."""

    egress_proxy: ProxyUrl | None = Field(default=None, repr=False)
    ca_file: Text | None = None
    request_secrets: HookSecrets | None = Field(default=None, repr=False)


class WebhookEntry(Entry):
    """One entry of `webhooks:`."""

    url: HookUrl = Field(repr=False)
    secrets: HookSecrets = Field(repr=False)
    events: Names = Field(default=["*"])
    tenants: list[Text] = Field(default=[])


class WebhooksSection(SectionSpec):
    """The sections `webhooks` and `webhook_settings`, and `webhook_secrets` of a key."""

    of_file: ClassVar[EntryField[dict[str, Any]]] = EntryField("webhooks", Section, {}, after="jobs")
    of_settings: ClassVar[EntryField[dict[str, Any]]] = EntryField("webhook_settings", Section, {}, after="webhooks")
    of_key: ClassVar[EntryField[list[bytes] | None]] = EntryField(
        "webhook_secrets", HookSecrets | None, None, after="workflow"
    )
    file_fields = (of_file, of_settings)
    key_fields = (of_key,)

    def read_key(self, reading: ConfigReading, path: Path, entry: KeyEntry) -> Settings:
        return {WEBHOOK_SECRETS: tuple(self.of_key.of(entry) or ())}

    def read_sections(self, reading: ConfigReading) -> None:
        document, config = reading.document, reading.config
        reading.settings[WEBHOOKS] = webhook_section(document, self.of_file.of(config), reading.keys.values())
        reading.settings[WEBHOOK_SETTINGS] = webhook_settings(document, has_keys=bool(config.keys))

    def finish(self, reading: ConfigReading, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Gives the caller of a gateway without keys the secrets that sign the deliveries of its requests."""
        secrets = WEBHOOK_SETTINGS.of(snapshot).request_secrets
        return replace(snapshot, anonymous=with_settings(snapshot.anonymous, {WEBHOOK_SECRETS: secrets}))

    def notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterator[str]:
        jobs = JOBS.of(snapshot)
        return webhook_notices(WEBHOOKS.of(snapshot), jobs.settings, jobs.default, snapshot.keys.values())

    def describe(self, snapshot: PolicySnapshot, shown: dict[str, Any]) -> dict[str, Any]:
        """Shows the receivers, and how webhooks leave, without what may be secret."""
        shown = placed_after(["passthrough_admin"], shown, webhooks=plain(WEBHOOKS.of(snapshot)))
        settings = WEBHOOK_SETTINGS.of(snapshot)
        proxy = without_password(settings.egress_proxy) if settings.egress_proxy else None
        return placed_after(["models"], shown, webhook_settings=shown_fields(settings, egress_proxy=proxy))


def webhook_section(document: Document, names: Iterable[str], keys: Iterable[Key]) -> Webhooks:
    """Returns the endpoints by name; notes the section's problems."""
    keys = tuple(keys)
    found: dict[str, WebhookRules] = {}
    for name in names:
        path: Path = ("webhooks", name)
        if not name.isascii() or not name.isprintable() or not 0 < len(name) <= MOST_NAME_CHARS:
            document.complain(
                path, f"its name goes into metrics: it must be printable ASCII, at most {MOST_NAME_CHARS} characters"
            )
            continue
        if name == REQUESTED:
            document.complain(path, "this name stands for URLs that requests name: give it another one")
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


def webhook_settings(document: Document, *, has_keys: bool) -> WebhookSettings:
    """Returns how webhooks leave; notes the section's problems."""
    path: Path = ("webhook_settings",)
    entry = check(WebhookSettingsEntry, document, path)
    if entry is None:
        return WebhookSettings()
    if entry.request_secrets and has_keys:
        document.complain(
            (*path, "request_secrets"),
            "is for a gateway without keys; with keys each has its own, as keys[].webhook_secrets: who shares a secret can "
            "forge what others are told",
        )
    ca_file = beside(document, entry.ca_file) if entry.ca_file is not None else None
    if ca_file is not None and not _has_certificates(ca_file):
        shown = document.show((*path, "ca_file"), entry.ca_file)
        document.complain((*path, "ca_file"), f"there is no file with certificates (PEM) at {shown}")
    return WebhookSettings(entry.egress_proxy, ca_file, tuple(entry.request_secrets or ()))


def _has_certificates(file: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)
    except (OSError, ValueError):  # an ssl.SSLError is an OSError; ValueError: a NUL in the name
        return False
    return True


def webhook_notices(webhooks: Webhooks, jobs: JobSettings, rules: JobRules, keys: Collection[Key]) -> Iterator[str]:
    """Yields what is worth a word at start."""
    if webhooks and not jobs.is_on:
        yield "webhooks tell of jobs, and there are none here: `jobs: {store: sqlite:///jobs.db}` turns them on"
    for hook in webhooks.values():
        if hook.url.startswith("http://"):
            yield f"webhooks.{hook.name}: its events go over the wire in the clear: use https"
    if rules.allow_request_urls and keys and not any(WEBHOOK_SECRETS.of(key) for key in keys):
        yield "jobs.yaml allows URLs in requests, and no key has webhook_secrets to sign what they are told: none can name one"


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
