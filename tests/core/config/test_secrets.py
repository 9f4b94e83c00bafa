"""No secret in anything that is shown: descriptions, representations, problems, notices."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.admin.describe import describe, shown
from gateway.core.errors import ConfigError
from tests.rows import rows
from tests.support.configs import EXAMPLE, leaves, load, load_text, problems_of

CANARY = "canary-4f9a1c7e55"

STATE = f"state: {{redis: 'rediss://cache.example', username: {CANARY}-user, password: {CANARY}-pw}}"
FULL = f"""\
{STATE}
admin: {{key: {CANARY}-admin, listen: "[::1]:9090"}}
providers:
  q: {{dialect: openai, base_url: https://q.example}}
  p:
    dialect: azure
    base_url: https://x.example/v1
    api_key: {CANARY}-key
    headers: {{X-Token: {CANARY}-header}}
    transport: httpx
    proxy: http://{CANARY}-user:{CANARY}-pw@proxy.example:3128
    api_version: 2024-10-21
  r: {{dialect: openai, base_url: https://r.example, api_keys: [{CANARY}-first, {CANARY}-second]}}
models:
  m:
    targets:
      - {{provider: p, rpm: 5, fail_closed: [rpm]}}
      - {{provider: r, order: 2, weight: 3, capabilities: {{tools: false, context_window: 9}}}}
    choose: in_order
    retries: default
    breakers: default
    context_fallbacks: ["*"]
  "*": {{targets: [p]}}
keys:
  - {{name: web, key: {CANARY}-caller, lane: batch, budget_usd_per_day: 2}}
passthrough: q
"""


UNFILLED = [
    "$GATEWAY_WEB_KEY_X",
    "{{GATEWAY_ADMIN_KEY}}",
    "{{ .Values.gateway.key }}",
    "%GATEWAY_WEB_KEY%",
    "$(cat /run/secrets/key)",
    "$${WEB_KEY_OF_MINE}",
    "os.environ/WEB-KEY-OF-MINE",
]
PLACES = {
    "keys[0].key": "keys: [{name: web, key: 'X'}]",
    "admin.key": "admin: {key: 'X'}",
    "providers.p.api_key": "providers: {p: {dialect: openai, base_url: 'https://p.example', api_key: 'X'}}",
    "providers.p.api_keys[1]": "providers: {p: {dialect: openai, base_url: 'https://p.example', api_keys: [a-good-one, 'X']}}",
    "providers.p.headers": "providers: {p: {dialect: openai, base_url: 'https://p.example', headers: {x-key: 'X'}}}",
    "state.password": "state: {redis: 'redis://cache.example', password: 'X'}",
    "keys[0].webhook_secrets[0]": "keys: [{name: web, key: 'abcdefghijklmnopqrst', webhook_secrets: ['X']}]",
}


@pytest.mark.parametrize("text", UNFILLED)
@pytest.mark.parametrize("place", PLACES)
def test_the_name_of_a_variable_is_no_secret(tmp_path: Path, place: str, text: str) -> None:
    """It would open the gateway to everybody who reads the file, or go to a provider as a credential."""
    problems = problems_of(tmp_path, PLACES[place].replace("X", text, 1))

    said = [problem for problem in problems if "variable" in problem]
    assert len(said) == 1
    assert said[0].startswith(f"config.yaml:1: {place}")


def test_a_secret_may_have_dollars_and_braces(tmp_path: Path) -> None:
    """As generated ones do."""
    text = "keys: [{name: a, key: '$$2b$$12$$abcdefghijklmnop'}, {name: b, key: 'a{b}c%d%e$fghijklmno'}]"

    assert not [problem for problem in problems_of(tmp_path, text) if "variable" in problem]


def test_description_is_complete_json_without_a_secret(tmp_path: Path) -> None:
    """Every secret of the config is there by name only."""
    snapshot = load_text(tmp_path, FULL)

    shown = describe(snapshot)

    assert CANARY not in json.dumps(shown)
    assert not [leaf for leaf in leaves(shown) if isinstance(leaf, bytes)]
    assert [shown["providers"][name]["api_key"] for name in ("p", "r", "r#2")] == ["set"] * 3
    assert shown["providers"]["p"]["headers"] == ["X-Token"]
    assert shown["providers"]["p"]["proxy"] == "http://***@proxy.example:3128"
    assert shown["shared"]["url"] == "rediss://***@cache.example"
    assert shown["server"]["admin_key"] == "set"
    assert shown["server"]["admin_listen"] == "::1:9090"
    assert [key["name"] for key in shown["keys"]] == ["web"]
    assert set(shown["models"]) == {"m", "*"}
    assert shown["models"]["m"]["targets"][0]["limits"] == {
        "requests_per_min": 5,
        "unstated_burst_s": 10,
        "fail_closed": ["requests_per_min"],
    }


def test_description_says_where_the_callers_credential_is_used() -> None:
    """A provider without a key is told apart."""
    assert describe(load(EXAMPLE, {}))["providers"]["openai"]["api_key"] == "absent (caller's own)"


def test_representation_holds_no_secret_and_no_digest_of_one(tmp_path: Path) -> None:
    """A snapshot in a log or a traceback gives nothing away."""
    snapshot = load_text(tmp_path, FULL)
    shown = repr(snapshot) + str(snapshot) + "".join(snapshot.notices)

    assert CANARY not in shown
    assert not [digest for digest in snapshot.keys if repr(digest) in shown]


@rows(
    ("good", "bad"),
    [
        (f"{CANARY}-admin", f'"{CANARY} with spaces"'),
        (f"{CANARY}-admin", f"sha256:{CANARY}"),
        (f"{CANARY}-admin", f"[{CANARY}]"),
        (f"{CANARY}-key", f'"{CANARY}\\n"'),
        (f"{CANARY}-key", f"{{{CANARY}: {CANARY}}}"),
        (f"{{X-Token: {CANARY}-header}}", CANARY),
        (f"{CANARY}-header", f'"{CANARY}\\r\\nb: c"'),
        (f"{CANARY}-header", f"[{CANARY}]"),
        ("https://x.example/v1", f"https://u:{CANARY}@x.example/v1"),
        ("https://x.example/v1", f"https://x.example/v1?key={CANARY}"),
        ("https://x.example/v1", f"ftp://{CANARY}"),
        ("http://canary", f"smtp://{CANARY}"),
        (f"{CANARY}-first", f'"{CANARY} with spaces"'),
        (f"{CANARY}-first", f"{CANARY}-second"),
        (f"{CANARY}-first", f"[{CANARY}]"),
        (f"[{CANARY}-first, {CANARY}-second]", f"[{CANARY}]"),
        (f"[{CANARY}-first, {CANARY}-second]", f"{{{CANARY}: {CANARY}}}"),
        (f"[{CANARY}-first, {CANARY}-second]", f"[{CANARY}, {CANARY}2], api_key: {CANARY}3"),
        (f"{CANARY}-caller", "canary-short"),
        (f"{CANARY}-caller", f"{CANARY}é"),
        (f"{CANARY}-caller", f"[{CANARY}]"),
        (STATE, f"state: postgres://:{CANARY}@h/0"),
        (STATE, f"state: rediss://:{CANARY}@h/zero"),
        (STATE, f"state: rediss://:{CANARY}"),
        (STATE, f"state: rediss://:{CANARY}/@h"),
        (STATE, f"state: rediss://u:{CANARY}#@h"),
        (STATE, f"state: rediss://h?password={CANARY}"),
        (STATE, f"state: rediss+cluster://:{CANARY}@h/0"),
        (STATE, f"state: rediss+sentinel://:{CANARY}@h"),
        (STATE, f"state: rediss://:{CANARY}@h:x"),
        (STATE, f"state: [rediss://:{CANARY}@h]"),
        (STATE, f"state: {{redis: 'http://:{CANARY}@h'}}"),
        (STATE, f"state: {{redis: ['rediss://:{CANARY}@h']}}"),
        (STATE, f"state: {{redis: 'rediss://:{CANARY}@h', password: {CANARY}-2}}"),
        (STATE, f"state: {{redis: 'rediss://h', password: [{CANARY}]}}"),
        (STATE, f'state: {{redis: "rediss://h", password: "{CANARY}\\n"}}'),
        (STATE, f"state: {{redis: 'rediss://h', username: {CANARY}}}"),
    ],
)
def test_problem_with_a_secret_does_not_show_it(tmp_path: Path, good: str, bad: str) -> None:
    """Whatever is wrong with a field that may hold a secret."""
    text = FULL.replace(good, bad)
    assert text != FULL

    problems = problems_of(tmp_path, text)

    assert problems
    assert CANARY not in "\n".join(problems)
    assert "canary-short" not in "\n".join(problems)


@rows(
    "line",
    [
        "server: {host: '${S}'}",
        "server: {port: '${S}'}",
        "server: {grace: '${S}'}",
        "server: {max_body: 'x${S}'}",
        "admin: {listen: '${S}'}",
        "state: os.environ/S",
        "state: 'sqlite:///${S}/x'",
        "state: 'redis://h:${S}'",
        "state: 'redis+sentinel://h/${S}/x'",
        "state: {redis: '${S}'}",
        "state: {redis: 'redis://h', namespace: '{${S}}'}",
        "state: {redis: 'redis://h', timeout: '${S}'}",
        "state: {redis: 'redis://h', replicas: '${S}'}",
        "state: {redis: 'redis://h', connections: '${S}'}",
        "state: {redis: 'rediss://h', ca_file: '${S}'}",
        "keys: [{name: a, key: abababababababababab, rpm: 1, fail_closed: '${S}'}]",
        "keys: [{name: a, key: abababababababababab, rpm: 1, fail_closed: ['${S}']}]",
        "policies: env.S",
        "passthrough: '${S}'",
        "keys: [{name: a, key: abababababababababab, models: ['${S}']}]",
        "keys: [{name: a, key: abababababababababab, lane: '${S}'}]",
        "keys: '${S}'",
    ],
)
def test_variable_in_the_wrong_place_is_shown_by_its_name(tmp_path: Path, line: str) -> None:
    """The value of a variable is never in a problem: it may be a secret put into the wrong field."""
    text = f"{line}\nproviders: {{p: {{dialect: openai, base_url: 'https://x'}}}}\nmodels: {{m: {{targets: [p]}}}}\n"

    problems = problems_of(tmp_path, text, {"S": CANARY})

    assert problems
    assert CANARY not in "\n".join(problems)


@pytest.mark.parametrize("target", ["'${S}'", "'${S}/x'", "{provider: '${S}'}"])
def test_variable_in_a_short_form_is_shown_by_its_name(tmp_path: Path, target: str) -> None:
    """What a short form is taken apart into still comes from the variable."""
    text = f"providers: {{p: {{dialect: openai, base_url: 'https://x'}}}}\nmodels: {{m: {{targets: [{target}]}}}}\n"

    problems = problems_of(tmp_path, text, {"S": CANARY})

    assert problems
    assert CANARY not in "\n".join(problems)


@rows("field", ["dialect", "transport", "ca_file", "api_version", "idle_expiry"])
def test_variable_in_the_wrong_provider_field_is_shown_by_its_name(tmp_path: Path, field: str) -> None:
    """The same for every field of a provider."""
    fields = {"dialect": "openai", "base_url": "https://x", field: "${S}"}
    text = f"providers: {{p: {json.dumps(fields)}}}\nmodels: {{m: {{targets: [p]}}}}\n"

    problems = problems_of(tmp_path, text, {"S": CANARY})

    assert problems
    assert CANARY not in "\n".join(problems)


def test_error_drags_no_secret_along_in_its_causes(tmp_path: Path) -> None:
    """A traceback printed by mistake shows the problems and nothing else."""
    (tmp_path / "c.yaml").write_text(FULL.replace("azure", "opnai"))

    with pytest.raises(ConfigError) as raised:
        load(tmp_path / "c.yaml")

    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


def test_a_field_that_is_not_printed_is_not_described() -> None:
    """Wherever it is: a new secret needs no word in the description."""

    @dataclass
    class Login:
        user: str
        password: str = field(default=CANARY, repr=False)

    @dataclass
    class Page:
        logins: list[Login]
        by_name: dict[str, Login]
        token: str = field(default=CANARY, repr=False)

    login = Login("u")

    assert shown(Page([login], {"u": login})) == {"logins": [{"user": "u"}], "by_name": {"u": {"user": "u"}}}
