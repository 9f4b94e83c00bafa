"""The section `webhooks`: whom the ends of jobs are told to; its secrets stay where they are."""

from __future__ import annotations

import base64
from pathlib import Path

import orjson
import pytest

from gateway.config.describe import describe
from gateway.policy.webhooks.rules import WebhookRules
from tests.config.support import ENVIRON, GOOD, load_text, problems_of

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
    return load_text(folder, with_hook(entry), SECRETS).webhooks["crm"]


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


@pytest.mark.parametrize(
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
    shown = orjson.dumps(describe(snapshot)).decode() + repr(snapshot) + repr(snapshot.webhooks)

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
