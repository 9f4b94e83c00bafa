"""From config files to a snapshot: what compiles, and how every mistake is said."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest

from gateway.core.balancing import Choice
from gateway.core.config import load as loading
from gateway.core.config.admission import KINDS
from gateway.core.config.load import load_snapshot
from gateway.core.errors import ConfigError
from gateway.core.limits.limit_table import Limits
from gateway.core.openai.bodies import Capabilities
from gateway.core.request_fields import find_model
from gateway.core.snapshot import CHECKS_ANSWERS, Dialect, PolicySnapshot, Provider
from gateway.core.types import Upstream
from gateway.dialects.config import DialectLanguages
from gateway.features.grouping.rules import GROUPING, GroupRules
from gateway.features.output.rules import OUTPUT
from gateway.sections import SECTIONS
from tests.rows import rows
from tests.support.configs import EXAMPLE, GOOD, NOW, connect, load, load_text, problems_of

KEY = "a-secret-of-sixteen-characters"


def config(**changes: str) -> str:
    """A good config in flow style, one section a line; `providers` is line 1, `models` line 2, the rest follow."""
    sections = {
        "providers": "{openai: {dialect: openai, base_url: 'https://api.openai.com/v1'}}",
        "models": "{gpt-4o: {targets: [openai]}}",
    }
    return "".join(f"{name}: {text}\n" for name, text in (sections | changes).items())


def provider(fields: str) -> str:
    """A config whose one provider `p` has these fields, on line 1."""
    return config(providers=f"{{p: {{{fields}}}}}", models="{m: {targets: [p]}}")


LITELLM = (
    "this is a config of LiteLLM's; here each model_name is an entry of `models`, and each api_base with its api_key one of "
    "`providers`: config.example.yaml, docs/start.md"
)
AZURE = "dialect: azure, base_url: 'https://x.openai.azure.com'"
OPENAI = "dialect: openai, base_url: 'https://x'"

# --- mistakes ---


@rows(
    ("text", "problem"),
    [
        (config(servr="{}"), 'config.yaml:3: servr: unknown field; did you mean "server"?'),
        (
            "model_list:\n- {model_name: gpt-4o, litellm_params: {model: openai/gpt-4o}}\nlitellm_settings: {}\n",
            f"config.yaml:1: model_list: {LITELLM}",
        ),
        (
            "general_settings: {master_key: sk-1234}\nlitellm_settings: {a: 1}\n",
            f"config.yaml:2: litellm_settings: {LITELLM}",
        ),
        (config(server="{prt: 1}"), 'config.yaml:3: server.prt: unknown field; did you mean "port"?'),
        (config(server="{port: 70000}"), "config.yaml:3: server.port: must be at most 65535"),
        (config(server="{port: '80'}"), "config.yaml:3: server.port: expected a whole number, not text"),
        (config(server="{port: 1.5}"), "config.yaml:3: server.port: expected a whole number, not a number"),
        (config(server="{port: true}"), "config.yaml:3: server.port: expected a whole number, not true or false"),
        (config(server="[]"), "config.yaml:3: server: expected a mapping, not a list"),
        (config(server="{host: ''}"), "config.yaml:3: server.host: must not be empty"),
        (
            config(server="{max_body: 20}"),
            "config.yaml:3: server.max_body: 20 has no unit: write for example 500kB, 20MB or 512MiB",
        ),
        (config(server="{max_body: 0B}"), 'config.yaml:3: server.max_body: "0B" must be more than nothing'),
        (
            config(server="{grace: soon}"),
            'config.yaml:3: server.grace: "soon" is not a duration: write for example 300ms, 30s, 5m, 6h or 1d',
        ),
        (config(server="{body_timeout: 0s}"), 'config.yaml:3: server.body_timeout: "0s" must be longer than nothing'),
        (
            config(server="{host: 0.0.0.0}"),
            'config.yaml:3: server.host: refused: without keys anyone who can reach "0.0.0.0" could use the gateway; '
            "add keys or bind 127.0.0.1",
        ),
        (
            config(admin="{listen: '9090'}"),
            'config.yaml:3: admin.listen: "9090" is not an address: write for example 127.0.0.1:9090',
        ),
        (
            config(admin="{listen: 'x:99999'}"),
            'config.yaml:3: admin.listen: "x:99999" is not an address: write for example 127.0.0.1:9090',
        ),
        (
            config(admin="{listen: '127.0.0.1:8080'}"),
            "config.yaml:3: admin.listen: is the address of the server itself: choose another port",
        ),
        (
            config(admin="{key: short}"),
            "config.yaml:3: admin.key: is too short to be a secret: at least 16 characters",
        ),
        (
            config(admin="{key: 'sha256:12'}"),
            "config.yaml:3: admin.key: sha256: must be followed by 64 hexadecimal digits",
        ),
        (
            config(state="'redis://:pw@/0'"),
            "config.yaml:3: state: has no host",
        ),
        (
            config(policies="nowhere"),
            'config.yaml:3: policies: the folder "nowhere" cannot be read: No such file or directory',
        ),
        (
            config(policies="config.yaml"),
            'config.yaml:3: policies: the folder "config.yaml" cannot be read: Not a directory',
        ),
        (config(passthrough="opnai"), 'config.yaml:3: passthrough: no provider "opnai"; did you mean "openai"?'),
        (
            provider(f"{AZURE}, api_version: 2024-10-21") + "passthrough: p",
            "config.yaml:3: passthrough: p has an api_version: Azure's deployments have none of the other endpoints",
        ),
        ("models: {m: {targets: [p]}}", "config.yaml:1: providers: is missing: at least one provider is needed"),
        (config(models="{}"), 'config.yaml:2: models: is missing: at least one model is needed; "*" takes every name'),
        ("[]", "config.yaml:1: expected a mapping, not a list"),
        ("# nothing\n- x", "config.yaml:2: expected a mapping, not a list"),
        ("just text", "config.yaml:1: expected a mapping, not text"),
        # providers
        (
            provider("dialect: cohere, base_url: 'https://x'"),
            'config.yaml:1: providers.p.dialect: "cohere" is not one of openai, azure, anthropic, gemini, vertex, '
            "bedrock",
        ),
        (provider("base_url: 'https://x'"), "config.yaml:1: providers.p.dialect: is missing"),
        (
            provider("dialect: openai"),
            "config.yaml:1: providers.p.base_url: is missing: write `base_url: https://api.openai.com/v1`, or where your "
            "server is",
        ),
        (
            provider("dialect: openai, base_url: 'ftp://x'"),
            "config.yaml:1: providers.p.base_url: must begin with http://, https://, emulator://",
        ),
        (
            provider("dialect: openai, base_url: api.openai.com/v1"),
            "config.yaml:1: providers.p.base_url: must begin with http://, https://, emulator://",
        ),
        (
            provider("dialect: openai, base_url: 'https:/x'"),
            "config.yaml:1: providers.p.base_url: must begin with http://, https://, emulator://",
        ),
        (
            provider("dialect: openai, base_url: 'https:///v1'"),
            "config.yaml:1: providers.p.base_url: has no host",
        ),
        (
            provider("dialect: openai, base_url: 'https://x:port/'"),
            "config.yaml:1: providers.p.base_url: is not a valid URL",
        ),
        (
            provider("dialect: openai, base_url: 'https://[x/'"),
            "config.yaml:1: providers.p.base_url: is not a valid URL",
        ),
        (
            provider("dialect: openai, base_url: 'https://u:p@x/v1'"),
            "config.yaml:1: providers.p.base_url: must not carry a user or password: use api_key or headers",
        ),
        (
            provider("dialect: openai, base_url: 'https://x/v1?key=1'"),
            "config.yaml:1: providers.p.base_url: must not have a query or fragment",
        ),
        (
            provider("dialect: openai, base_url: 'https://x\\y'"),
            "config.yaml:1: providers.p.base_url: holds characters that a URL cannot have",
        ),
        (
            provider("dialect: openai, base_url: 'emulator://a/b'"),
            "config.yaml:1: providers.p.base_url: must be emulator://NAME, with a name of letters, digits, - and _",
        ),
        (
            provider(f"{OPENAI}, api_key: 1234"),
            "config.yaml:1: providers.p.api_key: expected text, not a number; quote it",
        ),
        (
            provider(f'{OPENAI}, api_key: "sk-x\\n"'),
            "config.yaml:1: providers.p.api_key: must be printable ASCII without spaces; "
            "is there a line break at its end?",
        ),
        (
            provider(f"{OPENAI}, headers: {{Authorization: x}}"),
            'config.yaml:1: providers.p.headers: "Authorization" is set by the gateway itself: use api_key',
        ),
        (
            provider(f"{OPENAI}, headers: {{Host: x}}"),
            'config.yaml:1: providers.p.headers: "Host" is set by the gateway itself',
        ),
        (
            provider(f"{OPENAI}, headers: {{'a b': x}}"),
            'config.yaml:1: providers.p.headers: "a b" is not a header name',
        ),
        (provider(f"{OPENAI}, headers: {{a: x, A: y}}"), 'config.yaml:1: providers.p.headers: "A" is here twice'),
        (
            provider(f'{OPENAI}, headers: {{a: "x\\r\\ny: z"}}'),
            'config.yaml:1: providers.p.headers: the value of "a" must be printable ASCII; '
            "is there a line break at its end?",
        ),
        (
            provider(f"{OPENAI}, headers: {{a: 1}}"),
            "config.yaml:1: providers.p.headers.a: expected text, not a number; quote it",
        ),
        (
            provider(f"{OPENAI}, api_version: v1"),
            "config.yaml:1: providers.p.api_version: is for the azure dialect only",
        ),
        (provider(f"{OPENAI}, http2: true"), "config.yaml:1: providers.p.http2: needs `transport: httpx`"),
        (provider(f"{OPENAI}, proxy: 'http://x'"), "config.yaml:1: providers.p.proxy: needs `transport: httpx`"),
        (
            provider(f"{OPENAI}, transport: httpx, proxy: 'x:1'"),
            "config.yaml:1: providers.p.proxy: must begin with http://, https://, socks5://, socks5h://",
        ),
        (
            provider(f"{OPENAI}, transport: http"),
            'config.yaml:1: providers.p.transport: "http" is not one of http1, httpx; did you mean "httpx"?',
        ),
        (
            provider(f"{OPENAI}, kind: grok"),
            f'config.yaml:1: providers.p.kind: "grok" is not one of {", ".join(KINDS)}; did you mean "groq"?',
        ),
        (provider(f"{OPENAI}, ca_file: ca.pem"), 'config.yaml:1: providers.p.ca_file: there is no file "ca.pem"'),
        (provider(f"{OPENAI}, max_connections: 0"), "config.yaml:1: providers.p.max_connections: must be at least 1"),
        (
            provider(f"{OPENAI}, emulate_without_key: yes please"),
            "config.yaml:1: providers.p.emulate_without_key: expected true or false, not text",
        ),
        (
            config(
                providers="{'a/b': {dialect: openai, base_url: 'https://x'}}",
                models="{m: {targets: [{provider: a/b}]}}",
            ),
            'config.yaml:1: providers."a/b": a provider\'s name is made of letters, digits, dots, - and _',
        ),
        # models
        (
            config(models='{"a\\nb": {targets: [openai/x]}}'),
            'config.yaml:2: models."a\\nb": a model\'s name must be printable ASCII, for it goes into headers',
        ),
        (
            config(models='{m: {targets: [{provider: openai, model: "x\\r\\ny"}]}}'),
            "config.yaml:2: models.m.targets[0].model: must be printable ASCII, for it goes into headers and metrics",
        ),
        (config(models="{m: }"), "config.yaml:2: models.m.targets: is missing"),
        (config(models="{m: {targets: []}}"), "config.yaml:2: models.m.targets: needs at least one entry"),
        (config(models="{m: {targets: openai}}"), "config.yaml:2: models.m.targets: expected a list, not text"),
        (config(models="{m: {targets: [7]}}"), "config.yaml:2: models.m.targets[0]: expected a mapping, not a number"),
        (
            config(models="{m: {targets: [{model: x}]}}"),
            "config.yaml:2: models.m.targets[0].provider: is missing",
        ),
        (
            config(models="{gpt-4.1: {targets: [{provider: opnai}]}}"),
            'config.yaml:2: models."gpt-4.1".targets[0].provider: no provider "opnai"; did you mean "openai"?',
        ),
        (
            config(models="{m: {targets: [xyz/gpt-4o]}}"),
            'config.yaml:2: models.m.targets[0].provider: no provider "xyz"; there are: openai',
        ),
        (
            config(models="{m: {targets: [{provider: openai, rpm: 0}]}}"),
            "config.yaml:2: models.m.targets[0].rpm: must be more than 0",
        ),
        (
            config(models="{m: {targets: [{provider: openai, tpm: .inf}]}}"),
            "config.yaml:2: models.m.targets[0].tpm: must be at most 1e+15",
        ),
        (
            config(models="{m: {targets: [{provider: openai, max_concurrency: 1.5}]}}"),
            "config.yaml:2: models.m.targets[0].max_concurrency: expected a whole number, not a number",
        ),
        (
            config(models="{m: {targets: [{provider: openai, wieght: 2}]}}"),
            'config.yaml:2: models.m.targets[0].wieght: unknown field; did you mean "weight"?',
        ),
        (
            config(models="{m: {targets: [{provider: openai, price: {output_usd_per_million: 1}}]}}"),
            "config.yaml:2: models.m.targets[0].price.input_usd_per_million: is missing: write what a million tokens of input "
            "cost (0: they are free), or a price by the character, hour of sound, picture or call",
        ),
        (
            config(models="{m: {targets: [openai/x, openai/x]}}"),
            "config.yaml:2: models.m.targets[1]: is the same place as a target above it: list it once, with all its limits",
        ),
        (
            config(models="{x: {targets: [openai, {provider: openai, model: x, rpm: 5}]}}"),
            "config.yaml:2: models.x.targets[1]: is the same place as a target above it: list it once, with all its limits",
        ),
        (
            config(models="{'x*': {targets: [openai, {provider: openai, rpm: 5}]}}"),
            'config.yaml:2: models."x*".targets[1]: is the same place as a target above it: '
            "list it once, with all its limits",
        ),
        (
            config(models="{m: {targets: [{provider: openai, input_tpn: 1}]}}"),
            'config.yaml:2: models.m.targets[0].input_tpn: unknown field; did you mean "input_tpm"?',
        ),
        (
            config(models="{m: {targets: [{provider: openai, output_tpm: -1}]}}"),
            "config.yaml:2: models.m.targets[0].output_tpm: must be more than 0",
        ),
        (
            config(models="{m: {targets: [{provider: openai, adaptive_concurrency: 8}]}}"),
            "config.yaml:2: models.m.targets[0].adaptive_concurrency: expected true or false, not a number",
        ),
        (
            config(models="{gpt-4o: {targets: [openai], fallbacks: [gpt-40]}}"),
            'config.yaml:2: models.gpt-4o.fallbacks[0]: no model "gpt-40"; did you mean "gpt-4o"?',
        ),
        (
            config(models="{a: {targets: [openai], fallbacks: [a]}}"),
            "config.yaml:2: models.a.fallbacks: leads back to itself: a -> a",
        ),
        (
            config(
                models="{a: {targets: [openai], context_fallbacks: [b]}, b: {targets: [openai], context_fallbacks: [a]}}"
            ),
            "config.yaml:2: models.a.context_fallbacks: leads back to itself: a -> b -> a",
        ),
        (
            config(models="{m: {targets: [openai], timeouts: slow}}"),
            'config.yaml:2: models.m.timeouts: no set "slow"; there are: default',
        ),
        (
            config(models="{m: {targets: [openai], admission: defualt}}"),
            'config.yaml:2: models.m.admission: no set "defualt"; did you mean "default"?',
        ),
        (
            config(models="{m: {targets: [openai], queue: defualt}}"),
            'config.yaml:2: models.m.queue: no set "defualt"; did you mean "default"?',
        ),
        (
            config(models="{m: {targets: [openai], choose: random}}"),
            'config.yaml:2: models.m.choose: "random" is not one of in_order, weighted, least_loaded, fastest',
        ),
        (
            config(models="{m: {targets: [{provider: openai, order: 0}]}}"),
            "config.yaml:2: models.m.targets[0].order: must be at least 1",
        ),
        (
            config(models="{m: {targets: [{provider: openai, weight: 0}]}}"),
            "config.yaml:2: models.m.targets[0].weight: must be more than 0",
        ),
        (
            config(models="{m: {targets: [{provider: openai, capabilities: [tools]}]}}"),
            "config.yaml:2: models.m.targets[0].capabilities: expected a mapping, not a list",
        ),
        (
            config(models="{m: {targets: [{provider: openai, capabilities: {tool: false}}]}}"),
            'config.yaml:2: models.m.targets[0].capabilities.tool: unknown field; did you mean "tools"?',
        ),
        (
            config(models="{m: {targets: [{provider: openai, capabilities: {context_window: 128k}}]}}"),
            "config.yaml:2: models.m.targets[0].capabilities.context_window: expected a whole number, not text",
        ),
        (
            "providers: {}\nmodels:\n  *: x",
            'config.yaml:3: is not valid YAML: a name that begins with * must be quoted: "*"',
        ),
        # keys
        (config(keys="[7]"), "config.yaml:3: keys[0]: expected a mapping, not a number"),
        (config(keys=f"[{{key: {KEY}}}]"), "config.yaml:3: keys[0].name: is missing"),
        (
            config(keys=f'[{{name: "a\\nb", key: {KEY}}}]'),
            "config.yaml:3: keys[0].name: must be printable ASCII, for it goes into headers and metrics",
        ),
        (config(keys="[{name: a}]"), "config.yaml:3: keys[0].key: is missing"),
        (
            config(keys=f"[{{name: a, key: {KEY}, budget: 5}}]"),
            'config.yaml:3: keys[0].budget: unknown field; did you mean "budget_usd_per_day"?',
        ),
        (
            config(keys="[{name: a, key: fifteen-chars-x}]"),
            "config.yaml:3: keys[0].key: is too short to be a secret: at least 16 characters",
        ),
        (
            config(keys="[{name: a, key: 1234567890123456}]"),
            "config.yaml:3: keys[0].key: expected text, not a number; quote it",
        ),
        (
            config(keys="[{name: a, key: 'sha256:xyz'}]"),
            "config.yaml:3: keys[0].key: sha256: must be followed by 64 hexadecimal digits",
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}}}, {{name: b, key: {KEY}}}]"),
            "config.yaml:3: keys[1].key: is the same secret as that of key a",
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}}}, {{name: a, key: {KEY}2}}]"),
            'config.yaml:3: keys[1].name: "a" is here twice',
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}}}]", admin=f"{{key: {KEY}}}"),
            "config.yaml:3: keys[0].key: is the same secret as admin.key",
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, lane: batsch}}]"),
            'config.yaml:3: keys[0].lane: "batsch" is not one of interactive, batch, background; did you mean "batch"?',
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, lane: critical}}]"),
            'config.yaml:3: keys[0].lane: "critical" is not one of interactive, batch, background',
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, critical: please}}]"),
            "config.yaml:3: keys[0].critical: expected true or false, not text",
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, name_tenants: true}}]"),
            'config.yaml:3: keys[0].name_tenants: unknown field; did you mean "names_tenants"?',
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, input_tpm: 5}}]"),
            "config.yaml:3: keys[0].input_tpm: unknown field here: it is one of a target (models.NAME.targets)",
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, quota: 5}}]"),
            "config.yaml:3: keys[0].quota: unknown field; there are: rpm, tpm, rpd, max_concurrency, fail_closed, name, "
            "key, tenant, lane, critical, names_tenants, "
            "accepts_202, keeps_responses, models, fallbacks, budget_usd_per_day, allow_unpriced, allow_overspend, "
            "workflow, webhook_secrets",
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, models: [gpt-4]}}]"),
            'config.yaml:3: keys[0].models[0]: no model "gpt-4"; did you mean "gpt-4o"?',
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, models: []}}]"),
            "config.yaml:3: keys[0].models: needs at least one entry",
        ),
        (
            config(keys=f"[{{name: a, key: {KEY}, budget_usd_per_day: -1}}]"),
            "config.yaml:3: keys[0].budget_usd_per_day: must be more than 0",
        ),
    ],
)
def test_mistake_is_said_with_line_path_and_suggestion(tmp_path: Path, text: str, problem: str) -> None:
    """One mistake is one line, and only that."""
    found = problems_of(tmp_path, text)

    assert [line.replace(f"{tmp_path}/", "") for line in found] == [problem]


TEN_MISTAKES = """\
server:
  prt: 8080
  grace: 30
state: sqlite
providers:
  openai:
    dialect: openai
    base_url: https://user:pw@api.openai.com
    http2: true
    api_key: ${NOT_SET}
models:
  gpt-4o:
    targets:
      - {provider: opnai, rpm: -1}
    fallbacks: [gpt-4o-mini, gpt-5]
  gpt-4o-mini:
    targets: []
    fallbacks: [gpt-4o]
keys:
  - {name: web, key: short, lane: fast}
passthrough: openia
"""


def test_all_mistakes_are_said_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """A mistake of one kind never hides one of another, in the same entry or elsewhere."""
    assert problems_of(tmp_path, TEN_MISTAKES, {}) == [
        'config.yaml:2: server.prt: unknown field; did you mean "port"?',
        "config.yaml:3: server.grace: 30 has no unit: write for example 300ms, 30s, 5m, 6h or 1d",
        "config.yaml:4: state: must be memory, sqlite:///FILE (an absolute path has four slashes: "
        "sqlite:////var/lib/gateway.db), or begin with redis://, rediss://, redis+sentinel://, rediss+sentinel://, "
        "redis+cluster://, rediss+cluster://",
        "config.yaml:8: providers.openai.base_url: must not carry a user or password: use api_key or headers",
        "config.yaml:9: providers.openai.http2: needs `transport: httpx`",
        "config.yaml:10: providers.openai.api_key: the environment variable NOT_SET is not set",
        "config.yaml:14: models.gpt-4o.targets[0].rpm: must be more than 0",
        'config.yaml:14: models.gpt-4o.targets[0].provider: no provider "opnai"; did you mean "openai"?',
        'config.yaml:15: models.gpt-4o.fallbacks[1]: no model "gpt-5"; did you mean "gpt-4o"?',
        "config.yaml:15: models.gpt-4o.fallbacks: leads back to itself: gpt-4o -> gpt-4o-mini -> gpt-4o",
        "config.yaml:17: models.gpt-4o-mini.targets: needs at least one entry",
        "config.yaml:20: keys[0].key: is too short to be a secret: at least 16 characters",
        'config.yaml:20: keys[0].lane: "fast" is not one of interactive, batch, background',
        'config.yaml:21: passthrough: no provider "openia"; did you mean "openai"?',
    ]


def test_a_name_given_twice_is_said_with_the_other_mistakes_of_its_keys(tmp_path: Path) -> None:
    """Whichever of the two cannot be used; and what else is wrong with that one is said, too."""
    keys = (
        "keys:\n"
        f"- {{name: a, key: {KEY}}}\n"
        "- {name: a, key: short, models: [gpt-5]}\n"
        "- {name: b, key: '${NOT_SET}', models: [gpt-6]}\n"
        "- {name: b}\n"
    )

    problems = problems_of(tmp_path, GOOD + keys, {"OPENAI_API_KEY": KEY})

    assert sorted(problem.partition("keys")[2] for problem in problems) == [
        "[1].key: is too short to be a secret: at least 16 characters",
        '[1].models[0]: no model "gpt-5"; did you mean "gpt-4o"?',
        '[1].name: "a" is here twice',
        "[2].key: the environment variable NOT_SET is not set",
        '[2].models[0]: no model "gpt-6"; did you mean "gpt-4o"?',
        "[3].key: is missing",
        '[3].name: "b" is here twice',
    ]


def test_two_cycles_are_both_named(tmp_path: Path) -> None:
    """Mending one must not uncover the other."""
    models = (
        "{a: {targets: [openai], fallbacks: [b]}, b: {targets: [openai], fallbacks: [a, c]}, "
        "c: {targets: [openai], fallbacks: [b]}}"
    )

    assert problems_of(tmp_path, config(models=models)) == [
        "config.yaml:2: models.a.fallbacks: leads back to itself: a -> b -> a",
        "config.yaml:2: models.b.fallbacks: leads back to itself: b -> c -> b",
    ]


def test_file_is_named_as_the_user_named_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative stays relative, for policy files too."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "queue.yaml").write_text("default: {lane: 1}\n")
    (tmp_path / "c.yaml").write_text(config(policies="policies", stat="memory"))
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError) as raised:
        load(Path("c.yaml"))

    assert raised.value.problems == [
        'c.yaml:4: stat: unknown field; did you mean "state"?',
        'policies/queue.yaml:1: default.lane: unknown field; did you mean "lanes"?',
    ]


def test_problem_is_one_printable_line_whatever_the_names_hold(tmp_path: Path) -> None:
    """Line breaks and terminal codes in names and values are escaped."""
    text = config(server='{"a\\nb\\e[31m": 1, grace: "x\\u2028y\\e]0;t\\a"}', passthrough=f'"{"q" * 5000}"')

    problems = problems_of(tmp_path, text)

    assert len(problems) == 3
    assert all(line.isprintable() and len(line) < 300 for line in problems)


@pytest.mark.parametrize("error", [OSError(2, "No such file"), ValueError("http://u:pw@h"), ImportError("h2")])
def test_provider_that_cannot_be_connected_is_a_problem(tmp_path: Path, error: Exception) -> None:
    """A bad CA file or a missing package is found at load, without the error's own text where it may hold a secret."""
    (tmp_path / "config.yaml").write_text(config())

    def refuse(_provider: Provider, _model: str | None) -> Upstream:
        raise error

    with pytest.raises(ConfigError) as raised:
        load_snapshot(
            tmp_path / "config.yaml",
            {},
            sections=SECTIONS,
            languages=DialectLanguages(),
            connect=refuse,
            version=1,
            now_wall=NOW,
        )

    assert "config.yaml:1: providers.openai: cannot be set up: " in str(raised.value)
    assert "pw" not in str(raised.value)


# --- what compiles ---


def test_example_config_works_with_an_empty_environment() -> None:
    """The tour runs as it is: the emulator stands in for the providers, of which there is one of each dialect."""
    snapshot = load(EXAMPLE, {})

    assert {provider.base_url for provider in snapshot.providers.values()} == {"emulator://default"}
    assert {provider.dialect for provider in snapshot.providers.values()} == {*get_args(Dialect)} - {"azure"}
    assert set(snapshot.models) == {"gpt-4o", "gpt-4o-mini", "text-embedding-3-small", "claude", "flash", "nova"}
    assert [t.name for t in snapshot.models["gpt-4o"].plan] == ["openai/gpt-4o", "openai/gpt-4o-mini"]
    assert snapshot.passthrough is not None
    assert snapshot.passthrough.name == "openai/*"
    assert snapshot.notices[0] == "provider openai is the emulator inside this process: its answers are made up"
    assert all("is the emulator inside this process" in notice for notice in snapshot.notices)


def test_example_config_uses_the_real_provider_when_there_is_a_key() -> None:
    """One variable switches from the emulator to OpenAI."""
    snapshot = load(EXAMPLE, {"OPENAI_API_KEY": "sk-real"})

    assert snapshot.providers["openai"].base_url == "https://api.openai.com/v1"
    assert snapshot.providers["openai"].api_key == "sk-real"
    assert not any("openai" in notice for notice in snapshot.notices)


def test_commented_lines_of_the_example_are_true(tmp_path: Path) -> None:
    """What the tour shows in comments works when it is uncommented."""
    lines = []
    for line in EXAMPLE.read_text().splitlines():
        body = line.lstrip().removeprefix("# ")
        is_yaml = (
            ":" in body.split("#")[0] and line.lstrip().startswith("# ") and "`" not in body and "A tour" not in body
        )
        lines.append(line.replace("# ", "", 1) if is_yaml and not body.startswith("${") else line)
    (tmp_path / "policies").mkdir()
    text = "\n".join(lines).replace("sha256:...", "sha256:" + "0" * 64).replace("state: memory", "# or: memory")
    environ = {
        "AZURE_API_KEY": "az",
        "GATEWAY_ADMIN_KEY": KEY,
        "WEB_KEY": KEY + "2",
        "GROQ_KEY_1": "g1",
        "AWS_BEARER_TOKEN_BEDROCK": "aws",
        "GROQ_KEY_2": "g2",
        "REDIS_PASSWORD": "r",
        "HOOK_SECRET": KEY + "3",
    }

    snapshot = load_text(tmp_path, text, environ)

    assert snapshot.shared is not None
    assert snapshot.shared.url == "rediss://:r@cache.internal:6380/0"
    assert set(snapshot.providers) == {
        "openai", "azure-east", "groq", "groq#2", "anthropic", "gemini", "vertex", "bedrock", "vertex-openai"
    }  # fmt: skip
    assert [key.name for key in snapshot.keys.values()] == ["web", "nightly"]
    assert snapshot.server.admin_listen == ("127.0.0.1", 9090)
    model = snapshot.models["gpt-4o"]
    assert model.targets[1].limits == Limits(unstated_burst_s=10.0, requests_per_min=300, tokens_per_min=50000)
    assert [(t.name, t.order, t.weight) for t in model.targets] == [
        ("openai/gpt-4o", 1, 3),
        ("azure-east/my-deployment", 1, 1),
        ("groq/llama-3.3-70b-versatile", 2, 1),
        ("groq#2/llama-3.3-70b-versatile", 2, 1),
    ]
    assert model.targets[2].capabilities == Capabilities(images=False, context_window=131072)
    assert [t.name for t in model.context_plan] == ["azure-east/my-long-deployment"]


def test_defaults_of_the_server(tmp_path: Path) -> None:
    """An absent section is the same as an empty one."""
    server = load_text(tmp_path, GOOD + "server:\nadmin:\nkeys:\n").server

    assert (server.host, server.port, server.max_body_bytes) == ("127.0.0.1", 8080, None)
    assert (server.body_timeout_s, server.grace_s) == (60.0, 30.0)
    assert (server.admin_listen, server.admin_digest) == (None, None)


def test_numbers_and_flags_may_come_from_the_environment(tmp_path: Path) -> None:
    """Digits of a variable are a number where a number belongs, text where text belongs; empty is absent."""
    text = config(
        server="{port: '${PORT}', grace: '${GRACE}'}",
        providers="{openai: {dialect: openai, base_url: 'https://x', api_key: '${PORT}', emulate_without_key: '${YES}'}}",
        models="{m: {targets: [{provider: openai, model: '${PORT}', rpm: env.RPM, tpm: '${NOTHING}', weight: '${W}'}]}}",
    )
    environ = {"PORT": "8443", "GRACE": "5s", "YES": "true", "RPM": "100", "NOTHING": "", "W": "0.5"}

    snapshot = load_text(tmp_path, text, environ)

    assert snapshot.server.port == 8443
    assert snapshot.server.grace_s == 5
    assert snapshot.providers["openai"].api_key == "8443"
    target = snapshot.models["m"].targets[0]
    assert (target.model, target.limits, target.weight) == (
        "8443",
        Limits(unstated_burst_s=10.0, requests_per_min=100),
        0.5,
    )


def test_http2_without_its_package_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found at load, not by the first call."""
    monkeypatch.setattr(loading, "find_spec", lambda _name: None)

    assert problems_of(tmp_path, provider(f"{OPENAI}, transport: httpx, http2: true")) == [
        "config.yaml:1: providers.p.http2: needs the Python package h2, which is not installed (the extra http2)"
    ]
    assert problems_of(tmp_path, provider(f"{OPENAI}, transport: httpx")) == []


def test_provider_fields_reach_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trailing slashes go, empty headers go, the CA file is found beside the config."""
    monkeypatch.setattr(loading, "find_spec", lambda name: name)  # as if every package were installed
    (tmp_path / "ca.pem").write_text("")
    fields = (
        "dialect: azure, base_url: 'https://x.example/', api_key: k, headers: {X-Team: search, X-Empty: ''}, "
        "api_version: 2024-10-21, transport: httpx, http2: true, proxy: 'http://u:p@proxy:3128', ca_file: ca.pem, "
        "max_connections: 7, idle_expiry: 5s"
    )

    found = load_text(tmp_path, provider(fields)).providers["p"]

    assert found == Provider(
        name="p",
        dialect="azure",
        base_url="https://x.example",
        api_key="k",
        headers=(("X-Team", "search"),),
        api_version="2024-10-21",
        transport="httpx",
        http2=True,
        proxy="http://u:p@proxy:3128",
        ca_file=str(tmp_path / "ca.pem"),
        ca_digest=sha256(b"").hexdigest(),
        max_connections=7,
        idle_expiry_s=5.0,
        group="p",
    )


@pytest.mark.parametrize("key", ["", "api_key: ''", "api_key: ", "api_key: '${NONE:-}'"])
def test_provider_without_a_key_passes_the_callers_through(tmp_path: Path, key: str) -> None:
    """Absent, empty and an empty variable are the same."""
    assert load_text(tmp_path, provider(f"{OPENAI}, {key}")).providers["p"].api_key is None


def test_targets_are_named_by_provider_and_model(tmp_path: Path) -> None:
    """A pattern passes the asked name on."""
    models = (
        "{m: {targets: [openai, {provider: openai, model: x, rpm: 5}, openai/a/b]}, "
        "'gpt-*': {targets: [openai, openai/y]}}"
    )

    snapshot = load_text(tmp_path, config(models=models))

    assert [(t.name, t.model) for t in snapshot.models["m"].targets] == [
        ("openai/m", "m"),
        ("openai/x", "x"),
        ("openai/a/b", "a/b"),
    ]
    pattern = snapshot.find_model("gpt-9")
    assert pattern is not None
    assert [(t.name, t.model) for t in pattern.targets] == [("openai/*", None), ("openai/y", "y")]


def test_plan_follows_fallbacks_depth_first_each_target_once(tmp_path: Path) -> None:
    """Its own targets, then each fallback's with the fallbacks of that one."""
    models = (
        "{a: {targets: [openai/1], fallbacks: [b, c]}, b: {targets: [openai/2], fallbacks: [d]}, "
        "c: {targets: [openai/3, openai/1]}, d: {targets: [openai/4], fallbacks: [c]}}"
    )

    plan = load_text(tmp_path, config(models=models)).models["a"].plan

    assert [t.name for t in plan] == ["openai/1", "openai/2", "openai/4", "openai/3"]


def test_context_plan_follows_context_fallbacks_without_the_models_own_targets(tmp_path: Path) -> None:
    """Depth first, each target once; where the call was too long already, it is not sent again."""
    models = (
        "{a: {targets: [openai/1], context_fallbacks: [b, c]}, b: {targets: [openai/2], context_fallbacks: [d]}, "
        "c: {targets: [openai/3, openai/1]}, d: {targets: [openai/4, openai/2], fallbacks: [a], context_fallbacks: [c]}}"
    )

    snapshot = load_text(tmp_path, config(models=models))

    plans = {name: [t.name for t in model.context_plan] for name, model in snapshot.models.items()}
    assert plans == {
        "a": ["openai/2", "openai/4", "openai/3"],
        "b": ["openai/4", "openai/3", "openai/1"],
        "c": [],
        "d": ["openai/3", "openai/1"],
    }
    assert [t.name for t in snapshot.models["a"].plan] == ["openai/1"]


def test_targets_are_listed_tier_by_tier(tmp_path: Path) -> None:
    """Within a tier as they are written; the fallbacks come after all of them."""
    models = (
        "{a: {targets: [{provider: openai, model: x, order: 2}, openai/y, {provider: openai, model: z, order: 2}, "
        "{provider: openai, model: w, order: 1, weight: 3}], fallbacks: [b]}, b: {targets: [openai/v]}}"
    )

    model = load_text(tmp_path, config(models=models)).models["a"]

    assert [(t.name, t.order, t.weight) for t in model.targets] == [
        ("openai/y", 1, 1),
        ("openai/w", 1, 3),
        ("openai/x", 2, 1),
        ("openai/z", 2, 1),
    ]
    assert [t.name for t in model.plan] == ["openai/y", "openai/w", "openai/x", "openai/z", "openai/v"]


def test_targets_share_by_weight_unless_another_choice_is_made(tmp_path: Path) -> None:
    """One word of the model."""
    models = "".join(f"{name}: {{targets: [openai], choose: {name}}}, " for name in get_args(Choice))

    snapshot = load_text(tmp_path, config(models=f"{{{models} m: {{targets: [openai]}}}}"))

    assert {name: model.choice for name, model in snapshot.models.items()} == {
        **{name: name for name in get_args(Choice)},
        "m": "weighted",
    }


def test_capabilities_reach_the_target(tmp_path: Path) -> None:
    """What nobody denies is there."""
    can = "{tools: false, images: false, structured_output: false, context_window: 128000}"
    models = f"{{m: {{targets: [{{provider: openai, capabilities: {can}}}, openai/x]}}}}"

    targets = load_text(tmp_path, config(models=models)).models["m"].targets

    assert [t.capabilities for t in targets] == [Capabilities(False, False, False, 128000), Capabilities()]


def test_fallbacks_and_context_fallbacks_may_cross(tmp_path: Path) -> None:
    """A cycle through both kinds is none: they are followed for different reasons."""
    models = "{a: {targets: [openai], fallbacks: [b]}, b: {targets: [openai], context_fallbacks: [a]}}"

    assert load_text(tmp_path, config(models=models)).models["b"].context_fallbacks == ("a",)


def test_longest_pattern_wins_and_exact_names_come_first(tmp_path: Path) -> None:
    """Of two patterns as long, the alphabet decides, so that the order of the file does not matter."""
    names = ("'*'", "'gpt-*'", "'gpt-?'", "gpt-x")

    snapshot = load_text(tmp_path, config(models=f"{{{', '.join(f'{n}: {{targets: [openai]}}' for n in names)}}}"))

    found = [snapshot.find_model(name) for name in ("gpt-x", "gpt-4", "gpt-44", "o3", "GPT-x")]
    assert [model.name for model in found if model] == ["gpt-x", "gpt-*", "gpt-*", "*", "*"]


def test_one_upstream_per_provider_and_model(tmp_path: Path) -> None:
    """Targets of the same place share a wire."""
    models = (
        "{a: {targets: [openai/x]}, b: {targets: [{provider: openai, model: x, rpm: 1}]}, '*': {targets: [openai]}}"
    )
    (tmp_path / "config.yaml").write_text(config(models=models, passthrough="openai"))
    asked: list[tuple[str, str | None]] = []

    def note(provider: Provider, model: str | None) -> Upstream:
        asked.append((provider.name, model))
        return connect(provider, model)

    snapshot = load_snapshot(
        tmp_path / "config.yaml",
        {},
        sections=SECTIONS,
        languages=DialectLanguages(),
        connect=note,
        version=3,
        now_wall=NOW,
    )

    assert asked == [("openai", "x"), ("openai", None)]
    assert snapshot.models["a"].targets[0].upstream is snapshot.models["b"].targets[0].upstream
    assert (snapshot.version, snapshot.loaded_at) == (3, NOW)


def test_keys_are_kept_as_digests(tmp_path: Path) -> None:
    """Plain or given as SHA-256, a key is found by its secret and keeps its rights."""
    hashed = sha256(b"another-secret-of-some-length").hexdigest().upper()
    keys = (
        f"[{{name: web, key: {KEY}}}, {{name: night, key: 'sha256:{hashed}', tenant: t, lane: batch, "
        "critical: true, names_tenants: true, models: ['gpt-4*', o3], rpm: 6, tpm: 7, rpd: 8, max_concurrency: 9, "
        "budget_usd_per_day: 1.5}]"
    )

    snapshot = load_text(
        tmp_path,
        config(keys=keys, models="{'*': {targets: [openai]}}", server="{host: 0.0.0.0}", admin=f"{{key: {KEY}-2}}"),
    )

    web, night = snapshot.find_key(KEY.encode()), snapshot.find_key(b"another-secret-of-some-length")
    assert web is not None
    assert night is not None
    assert (web.name, web.tenant, web.lane, web.models, web.allows) == ("web", "web", "interactive", ("*",), None)
    assert (night.tenant, night.lane, night.budget_usd_per_day) == ("t", "batch", 1.5)
    assert night.limits == Limits(6, 7, 8, 9)
    assert [(key.critical, key.names_tenants) for key in (web, night)] == [(False, False), (True, True)]
    assert night.allows is not None
    assert [bool(night.allows.match(name)) for name in ("gpt-4o", "o3", "o3x", "gpt-5")] == [True, True, False, False]
    assert snapshot.find_key(b"nobody") is None
    assert snapshot.server.admin_digest == sha256(f"{KEY}-2".encode()).digest()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_keys(tmp_path: Path, host: str) -> None:
    """Everybody is `anonymous` then."""
    snapshot = load_text(tmp_path, config(server=f"{{host: '{host}'}}"))

    assert snapshot.keys == {}
    assert (snapshot.anonymous.name, snapshot.anonymous.tenant) == ("anonymous", "anonymous")


@rows("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.internal", "127.1", "localhost.evil.example"])
def test_other_hosts_are_refused_without_keys(tmp_path: Path, host: str) -> None:
    """What is not surely loopback counts as open."""
    assert "refused" in problems_of(tmp_path, config(server=f"{{host: '{host}'}}"))[0]


def test_host_of_the_process_wins_over_the_file(tmp_path: Path) -> None:
    """A flag cannot open what the file would refuse; brackets around IPv6 go."""
    path = tmp_path / "config.yaml"
    path.write_text(config(server="{host: 0.0.0.0}"))

    with pytest.raises(ConfigError, match=r'server.host: refused: .* "::"'):
        load_snapshot(
            path,
            {},
            sections=SECTIONS,
            languages=DialectLanguages(),
            connect=connect,
            version=1,
            now_wall=NOW,
            host="[::]",
        )
    snapshot = load_snapshot(
        path,
        {},
        sections=SECTIONS,
        languages=DialectLanguages(),
        connect=connect,
        version=1,
        now_wall=NOW,
        host="[::1]",
    )
    assert snapshot.server.host == "::1"


# --- digest ---


def test_digest_names_the_resolved_content(tmp_path: Path) -> None:
    """Comments, order and spelling do not count; a changed secret in the environment does."""
    first = load_text(tmp_path, GOOD).digest

    assert load_text(tmp_path, f"# a comment\n{GOOD}").digest == first
    assert load_text(tmp_path, GOOD.replace("${OPENAI_API_KEY}", "sk-test")).digest == first
    assert load_text(tmp_path, GOOD, {"OPENAI_API_KEY": "sk-other"}).digest != first
    assert load_text(tmp_path, GOOD.replace("gpt-4o", "gpt-5")).digest != first


def test_digest_tells_structures_apart(tmp_path: Path) -> None:
    """Moving a value to another field or entry changes it."""
    digests = {
        load_text(tmp_path, config(models=models)).digest
        for models in (
            "{a: {targets: [openai/x, openai/y]}}",
            "{a: {targets: [openai/y, openai/x]}}",
            "{a: {targets: [openai/x]}, b: {targets: [openai/y]}}",
            "{a: {targets: [{provider: openai, rpm: 5}]}}",
            "{a: {targets: [{provider: openai, tpm: 5}]}}",
            "{a: {targets: [{provider: openai, input_tpm: 5}]}}",
            "{a: {targets: [{provider: openai, output_tpm: 5}]}}",
            "{a: {targets: [{provider: openai, adaptive_concurrency: true}]}}",
            "{a: {targets: [{provider: openai, order: 2}]}}",
            "{a: {targets: [{provider: openai, weight: 2}]}}",
            "{a: {targets: [{provider: openai, capabilities: {tools: false}}]}}",
            "{a: {targets: [openai], choose: fastest}}",
        )
    }

    assert len(digests) == 12


def test_what_a_key_or_provider_is_counts_for_the_digest(tmp_path: Path) -> None:
    """So that a reload puts it in force."""
    openai = "dialect: openai, base_url: 'https://x'"
    digests = {
        load_text(tmp_path, provider(f"{openai}{kind}") + f"keys: [{{name: a, key: {KEY}{flag}}}]\n").digest
        for kind in ("", ", kind: groq", ", kind: xai")
        for flag in ("", ", critical: true", ", names_tenants: true")
    }

    assert len(digests) == 9


# --- notices ---


def test_weights_that_do_nothing_are_announced(tmp_path: Path) -> None:
    """Who asks for the order of the file has no use for them; nothing else that is written down is idle."""
    weighted = "targets: [{provider: openai, weight: 2}, openai/x]"
    text = config(
        models=f"{{a: {{{weighted}, choose: in_order}}, b: {{{weighted}}}, c: {{{weighted}, choose: fastest}}, "
        "d: {targets: [openai], choose: in_order, context_fallbacks: [b]}}",
        keys="[{name: web, key: '${K}', rpm: 3}]",
    )

    assert load_text(tmp_path, text, {"K": KEY}).notices == (
        "weights do nothing where targets are chosen in_order: model a",
    )


def test_weights_among_languages_are_announced(tmp_path: Path) -> None:
    """Where those of the caller's language go first whatever the weights say, and only there."""
    providers = f"providers: {{openai: {{{OPENAI}}}, claude: {{dialect: anthropic, api_key: k}}}}\n"
    mixed = "targets: [{provider: openai, weight: 2}, claude/x]"
    apart = "targets: [{provider: openai, weight: 2}, openai/x, {provider: claude, order: 2}]"
    models = (
        f"{{a: {{{mixed}}}, b: {{{mixed}, prefer_native: false}}, c: {{{apart}}}, d: {{targets: [openai, claude]}}}}"
    )

    notices = load_text(tmp_path, providers + f"models: {models}\n").notices

    assert [notice for notice in notices if "weights count" in notice] == [
        "weights count among targets that speak the caller's language, and these go before the others of their order: "
        "model a; prefer_native: false lets weights alone decide"
    ]


FALLING_BACK = (
    "{good: {targets: [openai], fallbacks: [spare], context_fallbacks: [long]}, spare: {targets: [openai], fallbacks: "
    "[last]}, last: {targets: [openai]}, long: {targets: [openai]}, 'good-*': {targets: [openai], fallbacks: [good]}}"
)


def falling_back(tmp_path: Path, fields: str) -> PolicySnapshot:
    """What compiles with one key that has these fields."""
    return load_text(
        tmp_path, config(models=FALLING_BACK, keys=f"[{{name: web, key: '${{K}}', {fields}}}]"), {"K": KEY}
    )


@rows(
    ("fields", "pairs"),
    [
        ("models: [good]", "good -> spare, good -> long, good -> last"),
        ("models: [good, last, 'l*']", "good -> spare"),
        ("models: [good-1]", "good-* -> good, good-* -> spare, good-* -> long, good-* -> last"),
        ("models: ['*']", ""),
        ("models: [good], fallbacks: allowed", ""),
        ("models: [last]", ""),
    ],
)
def test_fallbacks_that_a_key_may_not_ask_for_are_announced(tmp_path: Path, fields: str, pairs: str) -> None:
    """Its calls go there all the same, unless it says otherwise."""
    remedy = "; fallbacks: allowed at the key leaves that out"
    told = f"key web: its models do not allow what they fall back to: {pairs}{remedy}"

    assert falling_back(tmp_path, fields).notices == ((told,) if pairs else ())


@rows(
    ("fields", "plan", "context_plan", "skipped"),
    [
        ("models: [good]", ["good", "spare", "last"], ["long"], ""),
        ("models: [good], fallbacks: allowed", ["good"], [], " The key may not fall back to spare, long, last."),
        (
            "models: [good, 'l*'], fallbacks: allowed",
            ["good", "last"],
            ["long"],
            " The key may not fall back to spare.",
        ),
        ("models: [good, spare, last, long], fallbacks: allowed", ["good", "spare", "last"], ["long"], ""),
        ("fallbacks: allowed", ["good", "spare", "last"], ["long"], ""),
    ],
)
def test_a_key_says_whether_its_calls_fall_back_to_what_it_may_not_ask_for(
    tmp_path: Path, fields: str, plan: list[str], context_plan: list[str], skipped: str
) -> None:
    """By default they do; a fallback behind one that is left out is used if it is allowed."""
    policy = falling_back(tmp_path, fields)
    (key,) = policy.keys.values()
    model = find_model(policy, key, "good")

    assert [target.model for target in model.plan] == plan
    assert [target.model for target in model.context_plan] == context_plan
    assert model.skipped == skipped


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_readable_file_with_a_literal_secret_is_announced(tmp_path: Path, mode: int) -> None:
    """Only literal secrets count: a variable or a digest gives nothing away; and a private folder hides its files."""
    tmp_path.chmod(0o755)
    file = tmp_path / "config.yaml"
    file.write_text(
        provider(f"{OPENAI}, api_key: literal, transport: httpx, proxy: 'http://u:p@x'")
        + f"keys: [{{name: a, key: {KEY}}}, {{name: b, key: '${{K}}', tenant: a}}, "
        + f"{{name: c, key: 'sha256:{'0' * 64}', tenant: a}}]\n"
        + f"admin: {{key: '${{NONE:-{KEY}-admin}}'}}\n"
    )
    file.chmod(mode)

    assert load(file, {"K": KEY + "2"}).notices == (
        f"{file} can be read by other users and holds a secret "
        "(admin.key, providers.p.api_key, providers.p.proxy, keys[0].key): "
        "make it private (chmod 600) or take the secret from the environment",
    )
    tmp_path.chmod(0o700)
    assert load(file, {"K": KEY + "2"}).notices == ()
    tmp_path.chmod(0o755)
    file.chmod(0o600)
    assert load(file, {"K": KEY + "2"}).notices == ()


@pytest.mark.parametrize(("mode", "folder"), [(0o640, 0o701), (0o604, 0o710)])
def test_who_may_read_the_file_has_to_reach_it(tmp_path: Path, mode: int, folder: int) -> None:
    """The group reads it and only others may search the folder, or the other way round."""
    tmp_path.chmod(folder)
    file = tmp_path / "config.yaml"
    file.write_text(provider(f"{OPENAI}, api_key: literal"))
    file.chmod(mode)

    assert load(file, {}).notices == ()


@pytest.mark.parametrize(
    ("url", "announced"), [("http://vllm:8000/v1", True), ("http://localhost:8000", False), ("https://vllm", False)]
)
def test_key_over_plain_http_is_announced(tmp_path: Path, url: str, announced: bool) -> None:
    """Unless it stays on this machine."""
    text = provider(f"dialect: openai, base_url: '{url}', api_key: '${{K}}'")

    notices = load_text(tmp_path, text, {"K": "k"}).notices

    assert notices == (("provider p: its api_key travels unencrypted to vllm: use https",) if announced else ())


def test_credential_shown_to_several_providers_is_announced(tmp_path: Path) -> None:
    """Of a whole plan, fallbacks included; the emulator and providers with a key of their own do not see it."""
    url = "dialect: openai, base_url: 'https://x'"
    text = config(
        providers=f"{{a: {{{url}}}, b: {{{url}}}, own: {{{url}, api_key: '${{K}}'}}, "
        "fake: {dialect: openai, base_url: 'emulator://x'}}",
        models="{m: {targets: [a/1, a/2, own, fake], fallbacks: [n]}, n: {targets: [b]}, "
        "long: {targets: [a], context_fallbacks: [n]}}",
    )

    notices = load_text(tmp_path, text, {"K": KEY}).notices

    assert [notice for notice in notices if "credential" in notice] == [
        "model m: the caller's credential is passed to every one of: a, b",
        "model long: the caller's credential is passed to every one of: a, b",
    ]


def test_a_tenant_that_another_keys_calls_could_name_is_refused(tmp_path: Path) -> None:
    """They would share a queue, records and caches."""
    keys = """\
keys:
  - {name: a, key: key-of-a-0123456789, names_tenants: true}
  - {name: b, key: key-of-b-0123456789, tenant: a/b}
  - {name: c, key: key-of-c-0123456789, tenant: b/c}
"""
    assert problems_of(tmp_path, GOOD + keys) == [
        'config.yaml:7: keys[1]: the tenant "a/b" could be named by calls of the tenant a: rename it'
    ]


def test_a_model_may_have_its_embeddings_go_together(tmp_path: Path) -> None:
    """By a window and a number; without the field nothing is grouped, and a mistake is said with its line."""

    def models(text: str) -> str:
        return GOOD.replace("gpt-4o]}", f"gpt-4o], group_embeddings: {text}}}")

    assert GROUPING.of(load_text(tmp_path, GOOD).models["gpt-4o"]) is None
    assert GROUPING.of(load_text(tmp_path, models("{}")).models["gpt-4o"]) == GroupRules(0.005, 64)
    assert GROUPING.of(load_text(tmp_path, models("{window: 20ms, most: 9}")).models["gpt-4o"]) == GroupRules(0.02, 9)
    assert problems_of(tmp_path, models("{windows: 20ms}")) == [
        'config.yaml:4: models.gpt-4o.group_embeddings.windows: unknown field; did you mean "window"?'
    ]


def test_a_models_output_is_compiled_and_every_mistake_is_told(tmp_path: Path) -> None:
    """A schema that cannot be used, a helper that is none, a bound of money where nothing has a price."""
    (tmp_path / "good.json").write_text('{"type": "object"}')
    (tmp_path / "bad.json").write_text('{"$ref": "https://example.com/x.json"}')

    def models(output: str) -> str:
        return GOOD.replace("gpt-4o]}", f"gpt-4o], output: {output}}}")

    rule = load_text(tmp_path, models("{schema: good.json, on_invalid: {retry: 2, repair_with: gpt-4o}}"))
    compiled = OUTPUT.of(rule.models["gpt-4o"])
    assert compiled is not None
    assert (compiled.retry, compiled.repair_with, compiled.at_last, compiled.stream) == (2, "gpt-4o", "fail", "relay")
    assert str(tmp_path / "good.json") in rule.files
    assert CHECKS_ANSWERS.of(rule.models["gpt-4o"])
    assert not CHECKS_ANSWERS.of(load_text(tmp_path, GOOD).models["gpt-4o"])
    assert load_text(tmp_path, models("{schema: request}")).digest != load_text(tmp_path, GOOD).digest
    at = "config.yaml:4: models.gpt-4o.output"
    for said, problem in (
        ("{schema: none.json}", f'{at}.schema: the file "none.json" cannot be read: No such file or directory'),
        ("{schema: good.json, on_invalid: {retry: 6}}", f"{at}.on_invalid.retry: must be at most 5"),
        ("{schema: good.json, on_invalid: {repair_with: gpt-4}}", 'no model "gpt-4"; did you mean "gpt-4o"?'),
        ("{shema: good.json}", f'{at}.shema: unknown field; did you mean "schema"?'),
        ("{schema: bad.json}", "references to other documents are not followed"),
    ):
        assert any(problem in one for one in problems_of(tmp_path, models(said)))


def test_without_the_extra_an_output_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.features.output.config.is_installed", lambda: False)
    text = GOOD.replace("gpt-4o]}", "gpt-4o], output: {schema: request}}")
    assert any("pip install '.[output]'" in one for one in problems_of(tmp_path, text))


@pytest.mark.parametrize("host", ["https://api.openai.com", "https://api.openai.com/", "https://eu.api.openai.com"])
def test_openais_address_may_lack_its_version(tmp_path: Path, host: str) -> None:
    """All paths of OpenAI's begin with it; another server's may begin with anything."""
    openai = load_text(tmp_path, provider(f"dialect: openai, base_url: '{host}'")).providers["p"]
    other = load_text(tmp_path, provider("dialect: openai, base_url: 'https://x'")).providers["p"]

    assert openai.base_url == f"{host.rstrip('/')}/v1"
    assert other.base_url == "https://x"
