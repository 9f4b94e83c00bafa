"""Several credentials of one provider: what they compile to, every mistake with them, and that none is ever shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.admin.describe import describe
from gateway.core.config.load import load_snapshot
from gateway.core.snapshot import PolicySnapshot, Provider
from gateway.core.types import Upstream
from gateway.dialects.config import DialectLanguages
from gateway.sections import SECTIONS
from tests.rows import rows
from tests.support.configs import NOW, connect, load, load_text, problems_of

ENVIRON = {"A": "sk-canary-a", "B": "sk-canary-b", "C": "sk-canary-c", "EMPTY": ""}


def config(credentials: str, models: str = "{gpt-4o: {targets: [openai]}}", more: str = "") -> str:
    """A provider `openai` with these credentials on line 1, these models on line 2."""
    return (
        f"providers: {{openai: {{dialect: openai, base_url: 'https://api.openai.com/v1', {credentials}}}, "
        f"other: {{dialect: openai, base_url: 'https://other.example'}}}}\nmodels: {models}\n{more}"
    )


def load_three(folder: Path, models: str = "{gpt-4o: {targets: [openai]}}", more: str = "") -> PolicySnapshot:
    """The snapshot where `openai` has three."""
    return load_text(folder, config("api_keys: ['${A}', env.B, os.environ/C]", models, more), ENVIRON)


def test_each_credential_is_a_provider_of_the_same_group(tmp_path: Path) -> None:
    """Alike in all but its name and its secret; the first keeps the name."""
    providers = load_three(tmp_path).providers

    assert [(p.name, p.api_key, p.group) for p in providers.values()] == [
        ("openai", "sk-canary-a", "openai"),
        ("openai#2", "sk-canary-b", "openai"),
        ("openai#3", "sk-canary-c", "openai"),
        ("other", None, "other"),
    ]
    assert list(providers) == ["openai", "openai#2", "openai#3", "other"]
    assert {p.base_url for p in providers.values() if p.group == "openai"} == {"https://api.openai.com/v1"}


def test_each_target_is_one_target_per_credential(tmp_path: Path) -> None:
    """Beside each other, with the same order, weight, limits, price and way of counting, each on an account of its own."""
    models = (
        "{m: {targets: [{provider: openai, model: x, rpm: 5, weight: 2, order: 3, capabilities: {tools: false}}, other], "
        "fallbacks: [n]}, n: {targets: [openai]}, 'p*': {targets: [openai]}}"
    )

    snapshot = load_three(tmp_path, models)

    m, n = snapshot.models["m"], snapshot.models["n"]
    assert [(t.name, t.provider, t.account) for t in m.targets] == [
        ("other/m", "other", ""),
        ("openai/x", "openai", "openai"),
        ("openai#2/x", "openai#2", "openai#2"),
        ("openai#3/x", "openai#3", "openai#3"),
    ]
    same = [(t.order, t.weight, t.limits, t.capabilities, t.counting, t.find_rates) for t in m.targets[1:]]
    assert same == same[:1] * 3
    assert same[0][2].requests_per_min == 5
    assert [t.name for t in m.plan[4:]] == [t.name for t in n.targets] == ["openai/n", "openai#2/n", "openai#3/n"]
    pattern = snapshot.find_model("px")
    assert pattern is not None
    assert [t.name for t in pattern.targets] == ["openai/*", "openai#2/*", "openai#3/*"]


def test_each_credential_is_connected_by_itself(tmp_path: Path) -> None:
    """Each target sends with its own secret."""
    path = tmp_path / "config.yaml"
    path.write_text(config("api_keys: ['${A}', '${B}']", more="passthrough: openai\n"))
    asked: list[tuple[str, str | None, str | None]] = []

    def note(provider: Provider, model: str | None) -> Upstream:
        asked.append((provider.name, provider.api_key, model))
        return connect(provider, model)

    load_snapshot(path, ENVIRON, sections=SECTIONS, languages=DialectLanguages(), connect=note, version=1, now_wall=NOW)

    assert asked == [
        ("openai", "sk-canary-a", "gpt-4o"),
        ("openai#2", "sk-canary-b", "gpt-4o"),
        ("openai", "sk-canary-a", None),
    ]


def test_passthrough_goes_to_the_first(tmp_path: Path) -> None:
    """Files and the like belong to one account."""
    target = load_three(tmp_path, more="passthrough: openai\n").passthrough

    assert target is not None
    assert (target.name, target.provider, target.account) == ("openai/*", "openai", "openai")


@rows(
    ("credentials", "names", "account"),
    [
        ("api_key: '${A}'", ["openai"], "openai"),
        ("api_keys: ['${A}', '${EMPTY}']", ["openai"], "openai"),
        ("api_keys: ['${EMPTY}', '${B}', '${C}']", ["openai", "openai#2"], "openai"),
        ("api_keys: ['${EMPTY}', '']", ["openai"], ""),
        ("api_key: '${EMPTY}', api_keys: ['${A}', '${B}']", ["openai", "openai#2"], "openai"),
        ("api_keys: ", ["openai"], ""),
        ("emulate_without_key: true", ["openai"], ""),
    ],
)
def test_empty_credentials_are_absent_ones(tmp_path: Path, credentials: str, names: list[str], account: str) -> None:
    """So a variable may be left empty; with none, the caller's own is used, and no account is ours."""
    snapshot = load_text(tmp_path, config(credentials), ENVIRON)

    assert [p.name for p in snapshot.providers.values() if p.group == "openai"] == names
    assert snapshot.models["gpt-4o"].targets[0].account == account


def test_provider_with_credentials_is_not_emulated(tmp_path: Path) -> None:
    """Only one that has none at all."""
    urls = [
        load_text(tmp_path, config(f"emulate_without_key: true, {keys}"), ENVIRON).providers["openai"].base_url
        for keys in ("api_keys: ['${A}', '${B}']", "api_keys: ['${EMPTY}', '']")
    ]

    assert urls == ["https://api.openai.com/v1", "emulator://default"]


@rows(
    ("credentials", "problem"),
    [
        ("api_keys: ['${A}']", "api_keys: needs two or more; write a single one as api_key"),
        ("api_keys: []", "api_keys: needs two or more; write a single one as api_key"),
        ("api_keys: sk-canary-a", "api_keys: expected a list, not text"),
        ("api_keys: ['${A}', 12345]", "api_keys[1]: expected text, not a number; quote it"),
        (
            'api_keys: [sk-canary-a, "sk-canary-b\\n"]',
            "api_keys[1]: must be printable ASCII without spaces; is there a line break at its end?",
        ),
        ("api_keys: [sk-canary-a, '${NONE}']", "api_keys[1]: the environment variable NONE is not set"),
        ("api_keys: ['${A}', b, sk-canary-a]", "api_keys[2]: is the same credential as api_keys[0]"),
        (
            "api_key: '${A}', api_keys: ['${B}', '${C}']",
            "api_keys: and api_key exclude each other: list them all in api_keys",
        ),
    ],
)
def test_mistake_with_credentials_is_said_once_without_them(tmp_path: Path, credentials: str, problem: str) -> None:
    """With the number of the one that is meant."""
    assert problems_of(tmp_path, config(credentials), ENVIRON) == [f"config.yaml:1: providers.openai.{problem}"]


def test_no_credential_is_shown(tmp_path: Path) -> None:
    """Neither in descriptions nor in representations and notices; which account a target uses is."""
    models = "{m: {targets: [{provider: openai, rpm: 1}]}, n: {targets: [{provider: openai, model: m, rpm: 2}]}}"
    text = config("api_keys: [sk-canary-a, '${B}', sk-canary-c]", models)
    path = tmp_path / "config.yaml"
    path.write_text(text)
    tmp_path.chmod(0o755)
    path.chmod(0o644)

    snapshot = load(path, ENVIRON)

    shown = describe(snapshot)
    assert "canary" not in json.dumps(shown) + repr(snapshot)
    assert [shown["providers"][name]["api_key"] for name in ("openai", "openai#2", "other")] == [
        "set",
        "set",
        "absent (caller's own)",
    ]
    assert [t["account"] for t in shown["models"]["m"]["targets"]] == ["openai", "openai#2", "openai#3"]
    assert snapshot.notices == (
        f"{path} can be read by other users and holds a secret "
        "(providers.openai.api_keys[0], providers.openai.api_keys[2]): "
        "make it private (chmod 600) or take the secret from the environment",
        "target openai/m has different limits in the models m, n: the smallest hold (rpm 1)",
    )


def test_what_concerns_the_group_is_announced_once(tmp_path: Path) -> None:
    """Three credentials over plain HTTP are one mistake."""
    text = config("api_keys: ['${A}', '${B}', '${C}']").replace("https://api.openai.com", "http://vllm")

    assert load_text(tmp_path, text, ENVIRON).notices == (
        "provider openai: its api_key travels unencrypted to vllm: use https",
    )


def test_changed_credential_counts_for_the_digest(tmp_path: Path) -> None:
    """So that a reload puts it in force."""
    digests = {
        load_text(tmp_path, config(f"api_keys: [{keys}]")).digest for keys in ("a, b", "b, a", "a, c", "a, b, c")
    }

    assert len(digests) == 4


KEYED = "keys: [{name: app, key: a-secret-of-the-gateway}]\n"


@rows(
    ("credentials", "problem"),
    [
        ("api_key: '${EMPTY}'", "api_key: is empty, {}: set ${{EMPTY}}"),
        ("api_key: '${EMPTY:-}'", "api_key: is empty, {}: set ${{EMPTY}}"),
        ("api_key: '${NOWHERE:-}'", "api_key: is empty, {}: set ${{NOWHERE}}"),
        ("api_key: ''", "api_key: is empty, {}: write it down, or leave the field out"),
        ("api_keys: ['${EMPTY}', '${NOWHERE:-}']", "api_keys: is empty, {}: set ${{EMPTY}}, ${{NOWHERE}}"),
    ],
)
def test_empty_credential_is_a_mistake_where_callers_have_keys(tmp_path: Path, credentials: str, problem: str) -> None:
    """No provider knows a secret of the gateway, so nothing could take the credential's place."""
    said = problem.format("and callers' secrets are the gateway's own (keys), which no provider knows")

    assert problems_of(tmp_path, config(credentials) + KEYED, ENVIRON) == [f"config.yaml:1: providers.openai.{said}"]


@pytest.mark.parametrize(
    "credentials", ["", "api_key: '${A}'", "api_keys: ['${EMPTY}', '${B}']", "api_key: '', emulate_without_key: true"]
)
def test_credential_that_nobody_wrote_down_is_none(tmp_path: Path, credentials: str) -> None:
    """A server of one's own needs none; one of several may be empty; and the emulator stands in where that is asked for."""
    assert problems_of(tmp_path, config(credentials) + KEYED, ENVIRON) == []


@rows(
    "secret",
    [
        *(
            "replace-me-with-24-random-bytes",
            "REPLACE_ME_0123456789",
            "changeme0123456789",
            "change-me-please-now",
        ),
        *("your-api-key-goes-here", "your_openai_key_goes_here", "<the secret>".replace(" ", "-") * 2),
        *("xxxxxxxxxxxxxxxxxxxxxxxx", "0000000000000000", "sk-xxxxxxxxxxxxxxxxxxxxxxxxxxx"),
    ],
)
def test_placeholders_are_no_secrets(tmp_path: Path, secret: str) -> None:
    """Neither of callers, nor of operators, nor at a provider; no message repeats them."""
    text = config("api_key: '${SECRET}'") + "keys: [{name: app, key: '${SECRET}'}]\nadmin: {key: '${SECRET}'}\n"

    problems = problems_of(tmp_path, text, {**ENVIRON, "SECRET": secret})

    assert sorted(problem.split(": ")[1] for problem in problems) == [
        *("admin.key", "keys[0].key", "providers.openai.api_key"),
    ]
    assert all("is a placeholder" in problem and secret not in problem for problem in problems)


@rows("secret", ["EMPTY", "none", "x", "sk-real", "replacement-parts-0123", "exchange-me-0123456789"])
def test_odd_credentials_are_not_taken_for_placeholders(tmp_path: Path, secret: str) -> None:
    """Servers of one's own often want any word."""
    assert problems_of(tmp_path, config("api_key: '${SECRET}'"), {**ENVIRON, "SECRET": secret}) == []


@pytest.mark.parametrize(
    ("host", "credentials", "emulated"),
    [
        ("0.0.0.0", "api_key: '', emulate_without_key: true", ("openai",)),
        ("127.0.0.1", "api_key: '', emulate_without_key: true", ()),
        ("0.0.0.0", "api_key: '${A}', emulate_without_key: true", ()),
    ],
)
def test_snapshot_names_whom_the_emulator_stands_in_for(
    tmp_path: Path, host: str, credentials: str, emulated: tuple[str, ...]
) -> None:
    """Only where callers of other machines would take its answers for a provider's."""
    text = config(credentials) + KEYED + f"server: {{host: {host}}}\n"

    assert load_text(tmp_path, text, ENVIRON).emulated == emulated


@rows(
    ("header", "value", "secret"),
    [
        ("X-Api-Token", "literal-but-called-so", "literal-but-called-so"),
        ("X-Team", "search", None),
        ("X-Team", "${A}", "sk-canary-a"),
        ("X-Title", "${A}", None),
        ("Helicone-Auth", "Bearer ${A}", "sk-canary-a"),
        ("Cookie", "a=first-one; b=second-one", "second-one"),
    ],
)
def test_what_else_is_secret_is_told_by_a_headers_name_or_its_variable(
    tmp_path: Path, header: str, value: str, secret: str | None
) -> None:
    """Answers may not repeat it; the name of an application they may."""
    text = config(
        f"api_key: '${{B}}', headers: {{{header}: '{value}'}}, transport: httpx, proxy: 'http://u:p%40ss@proxy'"
    )

    secrets = load_text(tmp_path, text, ENVIRON).providers["openai"].secrets

    assert {"p%40ss", "p@ss", "sk-canary-b"} <= set(secrets)
    assert set(secrets) - {"p%40ss", "p@ss", "sk-canary-b", "first-one"} == ({secret} if secret else set())


def test_no_credential_of_a_group_may_be_repeated_by_anothers_answers(tmp_path: Path) -> None:
    """A provider may give the answer to one that it had for the other."""
    providers = load_three(tmp_path).providers

    assert {provider.secrets for provider in providers.values() if provider.group == "openai"} == {
        ("sk-canary-a", "sk-canary-b", "sk-canary-c")
    }
