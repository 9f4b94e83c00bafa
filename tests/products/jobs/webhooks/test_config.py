"""The section `webhooks`: whom the ends of jobs are told to; its secrets stay where they are."""

from __future__ import annotations

import base64
from pathlib import Path

import orjson
import trustme

from gateway.admin.describe import describe
from gateway.products.jobs.request import WEBHOOK_SECRETS
from gateway.products.jobs.rules import JOBS
from gateway.products.jobs.webhooks.rules import WEBHOOK_SETTINGS, WEBHOOKS, WebhookRules
from tests.rows import rows
from tests.support.configs import ENVIRON, GOOD, load_text, problems_of

KEYS = """\
keys:
  - {name: web, key: "a-key-of-the-web-1234", tenant: acme, names_tenants: true}
  - {name: nightly, key: "a-key-of-the-night-12", tenant: lab}
"""
RAW, ENCODED = "r4w" * 9, "whsec_" + base64.b64encode(bytes(range(32))).decode()
SECRETS = {**ENVIRON, "HOOK_NEW": ENCODED, "HOOK_OLD": RAW}


def with_hook(entry: str, name: str = "crm") -> str:
    return f"{GOOD}{KEYS}webhooks:\n  {name}: {entry}\n"


def hook(folder: Path, entry: str) -> WebhookRules:
    return WEBHOOKS.of(load_text(folder, with_hook(entry), SECRETS))["crm"]


def test_an_endpoint_is_read_with_both_its_secrets(tmp_path: Path) -> None:
    """What begins with whsec_ is base64, the other is taken as it is."""
    rules = hook(
        tmp_path,
        '{url: "https://crm.internal:8443/hooks?t=1", secrets: ["${HOOK_NEW}", "${HOOK_OLD}"], '
        "events: [batch.*, job.failed], tenants: [acme/eu, lab]}",
    )

    assert rules.secrets == (bytes(range(32)), RAW.encode())
    assert (rules.url, rules.origin) == ("https://crm.internal:8443/hooks?t=1", "https://crm.internal:8443")
    assert rules.hears("batch.completed", "lab")
    assert rules.hears("job.failed", "acme/eu/x")
    assert not rules.hears("job.succeeded", "lab")
    assert not rules.hears("job.failed", "acme/us")
    assert not rules.hears("job.failed", "laboratory")


def test_by_default_it_hears_of_everything(tmp_path: Path) -> None:
    """A URL and a secret are enough."""
    rules = hook(tmp_path, '{url: "http://crm.internal", secrets: ["${HOOK_OLD}"]}')

    assert rules.hears("job.expired", "anybody")


@rows(
    ("entry", "problem"),
    [
        ('{secrets: ["${HOOK_OLD}"]}', "webhooks.crm.url: is missing"),
        ('{url: "https://h"}', "webhooks.crm.secrets: is missing"),
        ('{url: "https://h", secrets: []}', "webhooks.crm.secrets: needs at least one entry"),
        ('{url: "https://h", secrets: [a-short-one]}', "webhooks.crm.secrets[0]: is too short to be a secret"),
        ('{url: "https://h", secrets: [whsec_c2hvcnQ=]}', "webhooks.crm.secrets[0]: is too short to be a secret"),
        ('{url: "https://h", secrets: ["whsec_ü"]}', "webhooks.crm.secrets[0]: is not base64 after whsec_"),
        (
            '{url: "https://h", secrets: ["<your-secret-goes-here-please>"]}',
            "webhooks.crm.secrets[0]: is a placeholder",
        ),
        ('{url: "https://h", secrets: [1]}', "webhooks.crm.secrets[0]: expected text, not a number"),
        (
            '{url: "https://h", secrets: ["${HOOK_OLD}", "${HOOK_OLD}"]}',
            "webhooks.crm.secrets: has the same secret twice",
        ),
        ('{url: "https://h", secrets: ["${HOOK_OLD}", "${HOOK_NEW}", "${HOOK_OLD}x"]}', "takes one secret, or two"),
        ('{url: "ftp://h", secrets: ["${HOOK_OLD}"]}', "webhooks.crm.url: must begin with http://, https://"),
        ('{url: "https://u:p@h", secrets: ["${HOOK_OLD}"]}', "webhooks.crm.url: must not carry a user or password"),
        ('{url: "https://h", secrets: ["${HOOK_OLD}"], events: [batch.complete]}', 'did you mean "batch.completed"?'),
        ('{url: "https://h", secrets: ["${HOOK_OLD}"], events: []}', "webhooks.crm.events: needs at least one entry"),
        (
            '{url: "https://h", secrets: ["${HOOK_OLD}"], tenants: [akme]}',
            'no key has the tenant "akme"; did you mean "acme"?',
        ),
        ('{url: "https://h", secrets: ["${HOOK_OLD}"], tenants: [lab/x]}', 'no key has the tenant "lab/x"'),
        (
            '{url: "https://h", secrets: ["${HOOK_OLD}"], event: [x]}',
            'webhooks.crm.event: unknown field; did you mean "events"?',
        ),
    ],
)
def test_every_mistake_is_told_with_its_line(tmp_path: Path, entry: str, problem: str) -> None:
    """And with its remedy."""
    (told,) = problems_of(tmp_path, with_hook(entry), SECRETS)

    assert told.startswith("config.yaml:9: ")
    assert problem in told
    assert RAW not in told


def test_a_name_that_no_metric_can_have_is_refused(tmp_path: Path) -> None:
    """It would be a label."""
    (told,) = problems_of(tmp_path, with_hook('{url: "https://h", secrets: ["${HOOK_OLD}"]}', "'ü'"), SECRETS)

    assert "its name goes into metrics" in told


def test_nothing_shows_a_secret_or_the_path_of_a_url(tmp_path: Path) -> None:
    """Neither the description of the config, nor the text of any of its parts, nor a notice."""
    text = with_hook('{url: "http://crm.internal/p4th?t0ken=1", secrets: ["${HOOK_NEW}", "${HOOK_OLD}"]}')
    snapshot = load_text(tmp_path, text, SECRETS)
    shown = orjson.dumps(describe(snapshot)).decode() + repr(snapshot) + repr(WEBHOOKS.of(snapshot))

    assert '"origin":"http://crm.internal"' in shown
    for secret in (RAW, ENCODED[6:], "p4th", "t0ken"):
        assert secret not in shown
        assert not any(secret in notice for notice in snapshot.notices)
    assert any(
        notice.startswith("webhooks.crm: its events go over the wire in the clear") for notice in snapshot.notices
    )


def test_webhooks_without_jobs_are_worth_a_word(tmp_path: Path) -> None:
    """Nothing would ever be told."""
    snapshot = load_text(tmp_path, with_hook('{url: "https://h", secrets: ["${HOOK_OLD}"]}') + "jobs: off\n", SECRETS)

    assert any("there are none here" in notice for notice in snapshot.notices)


def test_a_key_has_secrets_of_its_own_for_urls_of_its_requests(tmp_path: Path) -> None:
    """Read as those of endpoints are; without keys `webhook_settings` has them. Nothing shows them."""
    keyed = KEYS.replace("tenant: lab", 'tenant: lab, webhook_secrets: ["${HOOK_NEW}", "${HOOK_OLD}"]')
    snapshot = load_text(tmp_path, GOOD + keyed, SECRETS)
    open_to_all = load_text(tmp_path, f'{GOOD}webhook_settings: {{request_secrets: ["${{HOOK_OLD}}"]}}\n', SECRETS)
    shown = "".join(orjson.dumps(describe(one)).decode() + repr(one) for one in (snapshot, open_to_all))

    assert {key.name: WEBHOOK_SECRETS.of(key) for key in snapshot.keys.values()} == {
        "web": (),
        "nightly": (bytes(range(32)), RAW.encode()),
    }
    assert WEBHOOK_SECRETS.of(open_to_all.anonymous) == (RAW.encode(),)
    assert RAW not in shown
    assert ENCODED[6:] not in shown


def test_the_proxy_and_the_authorities_of_webhooks_are_read(tmp_path: Path) -> None:
    """The proxy's password is not shown."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    text = f'{GOOD}webhook_settings: {{egress_proxy: "http://u:pr0xy@proxy:3128", ca_file: ca.pem}}\n'
    snapshot = load_text(tmp_path, text, SECRETS)
    described = describe(snapshot)["webhook_settings"]

    assert WEBHOOK_SETTINGS.of(snapshot).egress_proxy == "http://u:pr0xy@proxy:3128"
    assert described == {"egress_proxy": "http://***@proxy:3128", "ca_file": str(tmp_path / "ca.pem")}
    assert "pr0xy" not in repr(snapshot)


@rows(
    ("section", "problem"),
    [
        ("{egress_proxy: proxy}", "webhook_settings.egress_proxy: must begin with http://"),
        ("{ca_file: config.yaml}", "webhook_settings.ca_file: there is no file with certificates (PEM) at"),
        ("{ca_file: gone.pem}", "webhook_settings.ca_file: there is no file with certificates (PEM) at"),
        ("{request_secrets: [short]}", "webhook_settings.request_secrets[0]: is too short to be a secret"),
        ('{request_secrets: ["${HOOK_OLD}"]}', "with keys each has its own, as keys[].webhook_secrets"),
        ("{proxy: x}", "webhook_settings.proxy: unknown field"),
    ],
)
def test_mistakes_of_webhook_settings_are_told(tmp_path: Path, section: str, problem: str) -> None:
    """With their remedy."""
    (told,) = problems_of(tmp_path, f"{GOOD}{KEYS}webhook_settings: {section}\n", SECRETS)

    assert problem in told
    assert RAW not in told


def test_no_endpoint_has_the_name_of_all_urls_of_requests(tmp_path: Path) -> None:
    """In metrics they would be one."""
    (told,) = problems_of(tmp_path, with_hook('{url: "https://h", secrets: ["${HOOK_OLD}"]}', '"(requests)"'), SECRETS)

    assert "this name stands for URLs that requests name" in told


def test_urls_that_nothing_could_sign_are_worth_a_word(tmp_path: Path) -> None:
    """Allowed, but no key has a secret for them."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/jobs.yaml").write_text(
        "default: {allow_request_urls: true}\nother: {allow_request_urls: true}\n"
    )
    (told,) = problems_of(tmp_path, f"{GOOD}{KEYS}policies: policies\n", SECRETS)
    assert "only the set `default` can say it" in told

    (tmp_path / "policies/jobs.yaml").write_text("default: {allow_request_urls: true}\n")
    snapshot = load_text(tmp_path, f"{GOOD}{KEYS}policies: policies\n", SECRETS)
    assert JOBS.of(snapshot).default.allow_request_urls
    assert any("no key has webhook_secrets" in notice for notice in snapshot.notices)
